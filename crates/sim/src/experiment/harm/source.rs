//! The hash of Rust source, without comments and indentation. The build script includes this file, too.

use super::fnv::{BASIS, fnv1a};

/// The hash of files, each given as its path from the root of a crate's source (`mclock/mod.rs`) and its text. The order of
/// the files does not matter. Test files (`tests.rs`, or in a folder `tests`) are left out.
pub(super) fn hash(mut files: Vec<(String, String)>) -> u64 {
    let is_test = |path: &str| path.split('/').any(|part| matches!(part, "tests" | "tests.rs"));
    files.retain(|(path, _)| !is_test(path));
    files.sort();
    let lines = files.iter().flat_map(|(path, text)| [path.as_str()].into_iter().chain(code(text)));
    // Each line with its end: nothing moves from one to the next unseen.
    lines.fold(BASIS, |hash, line| fnv1a(fnv1a(hash, line.as_bytes()), b"\n"))
}

/// The lines of a Rust source that hold code, without indentation. Equal code gives equal lines, as the formatter sets the
/// line breaks.
pub(super) fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"))
}
