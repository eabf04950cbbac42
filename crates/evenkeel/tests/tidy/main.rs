//! Tests of the texts that a person reads: docs, help, messages, comments and names use the project's words; the links, keys,
//! metrics and commands in them exist; pages have a readable length.

use std::path::{Path, PathBuf};
use std::process::Command;

mod names;
mod references;
mod words;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The README, and all files in crates, docs, fuzz, packaging and scenarios whose names have one of `endings`; tests are left
/// out.
fn shipped(endings: &[&str]) -> Vec<PathBuf> {
    let folders = ["crates", "docs", "fuzz", "packaging", "scenarios"];
    let found = folders.map(|folder| files(&root().join(folder), endings));
    [vec![root().join("README.md")], found.concat()].concat()
}

/// Files below `folder` whose names have one of `endings`, sorted. Tests, benches, corpora and build results are left out.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    for path in entries {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let left_out = ["target", "tests", "benches", "fuzz", "build", "corpus"];
        if path.is_dir() && !left_out.contains(&&*name) && !name.starts_with('.') {
            found.extend(files(&path, endings));
        } else if endings.iter().any(|ending| name.ends_with(ending)) && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The text of a file.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `path` relative to the project's root.
fn short(path: &Path) -> String {
    path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned()
}

/// Paths of the README and of the pages of `docs/`, without `docs/results/`.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), &[".md"]);
    pages.retain(|page| !short(page).starts_with("docs/results/"));
    [vec![root().join("README.md")], pages].concat()
}

/// Runs `evenkeel ARGUMENTS`, asserts that it succeeds, and returns its output.
fn evenkeel(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Upper bound on the words of one page of the manual.
const WORDS_OF_A_PAGE: usize = 2_500;
/// Upper bound on the words of all pages in `docs/` together.
const WORDS: usize = 45_000;

#[test]
fn pages_are_short() {
    let words: Vec<(String, usize)> =
        pages().iter().map(|page| (short(page), read(page).split_whitespace().count())).collect();
    let long: Vec<_> = words.iter().filter(|(_, words)| *words > WORDS_OF_A_PAGE).collect();
    assert!(long.is_empty(), "longer than {WORDS_OF_A_PAGE} words: {long:?}");
    let docs = words.iter().filter(|(page, _)| page.starts_with("docs/"));
    let all: usize = docs.map(|(_, words)| words).sum();
    assert!((20_000..=WORDS).contains(&all), "{all} words in docs/, at most {WORDS}: make pages shorter");
}
