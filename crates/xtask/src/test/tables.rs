//! `docs/reference/failures.md` as test cases. Test programs include this file.

const PAGE: &str = include_str!("../../../../docs/reference/failures.md");

/// The cells of the table under a heading of that page.
pub(crate) fn table<const COLUMNS: usize>(heading: &str) -> Vec<[&'static str; COLUMNS]> {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).expect("a heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let lines = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let rows: Vec<_> = lines
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            <[&str; COLUMNS]>::try_from(cells).unwrap_or_else(|cells| panic!("{cells:?}"))
        })
        .collect();
    assert!(rows.len() > 5, "the table of {heading:?} is gone");
    rows
}
