//! Reads the tables of `docs/reference/failures.md` as test cases. Test programs of several crates and a lab include this file.

const PAGE: &str = include_str!("../../../../docs/reference/failures.md");

/// The cells of the table below the heading `## HEADING`, row by row.
pub(crate) fn table<const COLUMNS: usize>(heading: &str) -> Vec<[&'static str; COLUMNS]> {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).expect("a heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let lines = section.lines().skip_while(|line| !line.starts_with("---|")).skip(1);
    let rows: Vec<_> = lines
        .take_while(|line| !line.is_empty())
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            <[&str; COLUMNS]>::try_from(cells).unwrap_or_else(|cells| panic!("{cells:?}"))
        })
        .collect();
    assert!(rows.len() > 5, "the table of {heading:?} is gone");
    rows
}
