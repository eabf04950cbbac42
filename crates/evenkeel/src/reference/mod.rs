//! Generated tables of the manual's pages, and the test that the pages have them.
//!
//! `EVENKEEL_WRITE=1 cargo test -p evenkeel --bin evenkeel reference` writes the tables into the pages.

use std::collections::BTreeMap;
use std::path::Path;

mod api;
mod cli;
mod config;
mod metrics;

const END: &str = "<!-- end -->";

/// A generated part of a page, between a marker with the block's name and the marker [`END`].
#[derive(Clone)]
struct Block {
    /// Path of the page from the root of the repository.
    page: &'static str,
    name: &'static str,
    text: String,
}

impl Block {
    fn marker(&self) -> String {
        format!("<!-- begin generated: {} -->\n", self.name)
    }

    /// `page` with this block's text in place of the old text between the markers; panics if a marker is missing.
    fn put_into(&self, page: &str) -> String {
        let parts = page.split_once(&self.marker()).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) = parts.unwrap_or_else(|| panic!("{} lacks {}and {END}", self.page, self.marker()));
        format!("{before}{}\n{}\n{END}{after}", self.marker(), self.text)
    }
}

/// A Markdown table, without bars at the ends of its rows.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = format!("{}\n{}\n", head.join(" | "), vec!["---"; head.len()].join("|"));
    head + &rows.map(|cells| cells.join(" | ") + "\n").collect::<String>()
}

/// `name` as Markdown code, with a link to the page that `pages` has for `key`, if any.
fn linked(name: &str, key: &str, pages: &[(&str, &str)]) -> String {
    match pages.iter().find(|(known, _)| *known == key) {
        Some((_, page)) => format!("[`{name}`]({page})"),
        None => format!("`{name}`"),
    }
}

/// `sentence` as a part of another sentence: without its full stop, and with a small first letter unless it begins with a proper
/// name or an abbreviation.
fn phrase(sentence: &str) -> String {
    const NAMES: [&str; 4] = ["Ceph", "Linux", "QoS", "Unix"];
    let sentence = sentence.trim().trim_end_matches('.');
    let mut letters = sentence.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some('a'..='z' | ' ')) if !NAMES.iter().any(|name| sentence.starts_with(name)) => {
            first.to_lowercase().collect::<String>() + &sentence[first.len_utf8()..]
        }
        _ => sentence.to_owned(),
    }
}

#[test]
fn tables_of_the_manual_are_those_of_the_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |page: &str| std::fs::read_to_string(root.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    let blocks = [config::blocks(), cli::blocks(), api::blocks(), metrics::blocks()].concat();
    let mut pages: BTreeMap<&str, String> = BTreeMap::new();
    for block in &blocks {
        let page = pages.entry(block.page).or_insert_with(|| read(block.page));
        *page = block.put_into(page);
    }
    let markers: usize = pages.values().map(|page| page.matches("<!-- begin generated: ").count()).sum();
    assert_eq!(markers, blocks.len(), "a page has a block that is not generated");
    let stale: Vec<&str> = pages.iter().filter(|(page, text)| read(page) != **text).map(|(page, _)| *page).collect();
    if std::env::var_os("EVENKEEL_WRITE").is_some_and(|write| write == "1") {
        stale.iter().for_each(|page| std::fs::write(root.join(page), &pages[page]).expect("written"));
        return;
    }
    assert!(stale.is_empty(), "{stale:?} differ from the program; EVENKEEL_WRITE=1 with this test writes them");
}

#[test]
fn a_block_takes_the_place_of_the_one_before() {
    let block = Block { page: "page.md", name: "b", text: "new\n".into() };
    let page = "a\n<!-- begin generated: b -->\nold\n<!-- end -->\nc <!-- end -->\n";
    assert_eq!(block.put_into(page), "a\n<!-- begin generated: b -->\n\nnew\n\n<!-- end -->\nc <!-- end -->\n");
    let rows = [vec!["x".to_owned(), String::new()]];
    assert_eq!(table(&["a", "b"], rows.into_iter()), "a | b\n---|---\nx | \n");
    assert_eq!(phrase("Longest delay."), "longest delay");
    assert_eq!(phrase("Unix sockets."), "Unix sockets");
    assert_eq!(phrase("TCP ports."), "TCP ports");
}
