//! The hash of Rust source: of what is compiled into a program, not of how it is written.
//!
//! Comments, white space, trailing commas and items under `#[cfg(test)]` do not count; all else does. Part of the build
//! script, too.

use super::fnv::{BASIS, fnv1a};

/// The start of an item that is compiled for tests alone.
const TEST_ITEM: &str = "#[cfg(test)]";

/// The hash of files, given as paths from the root of a crate's source (`mclock/mod.rs`) and texts, in any order.
pub(super) fn hash(mut files: Vec<(String, String)>) -> u64 {
    files.sort();
    let essences: Vec<(String, Essence)> = files.into_iter().map(|(path, text)| (path, essence(&text))).collect();
    let tests: Vec<String> = (essences.iter())
        .flat_map(|(path, essence)| essence.test_modules.iter().map(move |module| format!("{}{module}", home(path))))
        .collect();
    let is_test = |path: &str| {
        tests
            .iter()
            .any(|test| path.strip_prefix(test.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/')))
    };
    (essences.iter().filter(|(path, _)| !is_test(path)).flat_map(|(path, essence)| [path, &essence.text]))
        // A length before each part: nothing moves from one into the next unseen.
        .fold(BASIS, |hash, part| fnv1a(fnv1a(hash, &(part.len() as u64).to_le_bytes()), part.as_bytes()))
}

/// The folder of the modules that a file declares, with a slash at its end.
fn home(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').map_or(("", path), |(folder, name)| (folder, name));
    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder,
        _ => format!("{folder}{}/", name.trim_end_matches(".rs")),
    }
}

/// What counts of a file.
pub(super) struct Essence {
    pub(super) text: String,
    /// Modules in files of their own that are declared for tests alone.
    test_modules: Vec<String>,
}

/// What counts of a text.
pub(super) fn essence(text: &str) -> Essence {
    let mut essence = Essence { text: String::new(), test_modules: Vec::new() };
    // Of a test item: where its text begins, and how many brackets are open.
    let (mut test, mut depth) = (None, 0_usize);
    let mut rest = text;
    while !rest.is_empty() {
        let (token, length) = token(rest);
        rest = &rest[length..];
        let Some(token) = token else { continue };
        let out = &mut essence.text;
        if matches!(token, ")" | "]" | "}") && out.ends_with(',') {
            out.pop();
        }
        // Words stay apart.
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        if out.ends_with(is_word) && token.starts_with(is_word) {
            out.push(' ');
        }
        out.push_str(token);
        match test {
            None if out.ends_with(TEST_ITEM) => (test, depth) = (Some(out.len() - TEST_ITEM.len()), 0),
            None => {}
            Some(start) => {
                match token {
                    "(" | "[" | "{" => depth += 1,
                    ")" | "]" | "}" => depth = depth.saturating_sub(1),
                    _ => {}
                }
                if depth > 0 || !matches!(token, ";" | "}" | ",") {
                    continue;
                }
                let item = &out[start + TEST_ITEM.len()..];
                let module = item.split_once("mod ").and_then(|(_, name)| name.strip_suffix(';'));
                essence.test_modules.extend(module.map(str::to_owned));
                out.truncate(start);
                test = None;
            }
        }
    }
    essence
}

/// The first token of a text, `None` if it is white space or a comment, and its length.
fn token(text: &str) -> (Option<&str>, usize) {
    let whole = |length: usize| (Some(&text[..length]), length);
    let first = text.chars().next().unwrap_or(' ');
    if first.is_whitespace() {
        return (None, first.len_utf8());
    }
    if text.starts_with("//") {
        return (None, text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return (None, block_comment(text));
    }
    if first == '"' {
        return whole(quoted(text));
    }
    if first == '\'' {
        // A character, or a lifetime.
        let mut characters = text.char_indices().skip(1);
        let (_, second) = characters.next().unwrap_or((0, ' '));
        let closes = characters.next().is_some_and(|(_, third)| third == '\'');
        return whole(if second == '\\' {
            2 + text[2..].char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1)
        } else if closes {
            2 + second.len_utf8()
        } else {
            1
        });
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if !is_word(first) {
        return whole(first.len_utf8());
    }
    let word = text.find(|c| !is_word(c)).unwrap_or(text.len());
    let hashes = text[word..].len() - text[word..].trim_start_matches('#').len();
    let is_raw = matches!(&text[..word], "r" | "br" | "cr") && text[word + hashes..].starts_with('"');
    if is_raw {
        let end = format!("\"{}", "#".repeat(hashes));
        let body = word + hashes + 1;
        return whole(text[body..].find(&end).map_or(text.len(), |at| body + at + end.len()));
    }
    whole(word)
}

/// The length of a comment with those in it.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let step = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of a string with its quotes.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}
