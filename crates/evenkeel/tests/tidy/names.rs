//! Tests that the names which Evenkeel defines use the project's words: keys of the configuration, fields of the API, metrics,
//! options of commands, and public names of the crates.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{evenkeel, files, read, root, short};

/// Words that names must not contain, each with the standard words to use instead. An entry of two words stands for two adjacent
/// parts of a name.
const REJECTED: [(&str, &str); 35] = [
    ("hold back", "throttle"),
    ("held back", "throttled"),
    ("holding back", "throttling"),
    ("let in", "admit"),
    ("let go", "release"),
    ("rest", "throttle, delay"),
    ("rests", "throttles"),
    ("resting", "throttled, delayed"),
    ("goal", "latency target, throughput guarantee"),
    ("goals", "latency targets, throughput guarantees"),
    ("promise", "guarantee, reservation, QoS policy"),
    ("promises", "guarantees, reservations, QoS policy"),
    ("promised", "guaranteed, reserved"),
    ("offender", "noisy tenant or client"),
    ("offenders", "noisy tenants or clients"),
    ("standing", "priority"),
    ("inside", "in flight"),
    ("places", "slots"),
    ("room", "budget"),
    ("infeasible", "unachievable"),
    ("bites", "is effective"),
    ("response time", "latency"),
    ("hybrid", "cached device"),
    ("resent", "retransmits"),
    ("round", "period"),
    ("rounds", "periods"),
    ("silent", "suspect"),
    ("fleet", "cluster"),
    ("exchange", "cluster"),
    ("exchanged", "clustered"),
    ("section", "shard"),
    ("sections", "shards"),
    ("look", "sample, read"),
    ("looked", "sampled, read"),
    ("told", "reported, sent"),
];

/// Exceptions from [`REJECTED`]: a name, the rejected word that the name may contain, and the beginning of the paths of the files
/// in which it may.
const ELSEWHERE: [(&str, &str, &str); 4] = [
    // The scheduling of that name.
    ("round_robin", "round", ""),
    ("RoundRobin", "round", "crates/"),
    // Parts of a report of the simulator.
    ("Section", "section", "crates/sim/src/"),
    ("sections", "sections", "crates/sim/src/"),
];

/// The parts of a name in snake, kebab or camel case, as words in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && !before.is_ascii_uppercase()) {
            words.push(String::new());
        }
        if c.is_ascii_alphanumeric() {
            words.last_mut().expect("a word").push(c.to_ascii_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The first rejected word in a name from `file`, with the standard words to use instead; `None` if there is none.
fn rejected(name: &str, file: &str) -> Option<(&'static str, &'static str)> {
    let words = format!(" {} ", words(name).join(" "));
    let found = REJECTED.into_iter().find(|(word, _)| words.contains(&format!(" {word} ")))?;
    let elsewhere =
        |(which, word, path): &(&str, &str, &str)| (*which, *word) == (name, found.0) && file.starts_with(path);
    (!ELSEWHERE.iter().any(elsewhere)).then_some(found)
}

/// The name of the public item or field that a line of Rust declares; `None` if it declares none.
fn public(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split_whitespace();
    let kinds = ["fn", "const", "struct", "enum", "trait", "type", "mod", "static", "unsafe", "async", "use"];
    let mut word = words.next()?;
    while kinds.contains(&word) {
        if word == "use" {
            return None;
        }
        word = words.next()?;
    }
    word.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Names of an enum's variants and of their fields. `lines`: lines of Rust from the one after `pub enum` on.
fn variants<'t>(lines: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let body = lines.take_while(|line| *line != "}");
    let named = body.map(str::trim_start).filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
    named.filter_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_').next()).collect()
}

#[test]
fn public_names_are_the_words_of_the_field() {
    let (mut names, mut complaints) = (0, Vec::new());
    for path in files(&root().join("crates"), &[".rs"]) {
        let (file, text) = (short(&path), read(&path));
        // For developers of Evenkeel alone.
        if file.starts_with("crates/labs/") || file.starts_with("crates/xtask/") {
            continue;
        }
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let mut found: Vec<&str> = text.lines().filter_map(public).collect();
        let enums = text.lines().enumerate().filter(|(_, line)| line.starts_with("pub enum "));
        found.extend(enums.flat_map(|(number, _)| variants(text.lines().skip(number + 1))));
        names += found.len();
        complaints.extend(found.into_iter().filter_map(|name| {
            let (word, instead) = rejected(name, &file)?;
            Some(format!("{file}: {name}: not \"{word}\" but {instead}"))
        }));
    }
    assert!(names > 3_000, "only {names} names are found");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Words that names of tests must not contain. Each stands for adjacent parts of a name.
const REJECTED_IN_TESTS: [&str; 25] = [
    "held back",
    "hold back",
    "let in",
    "lets in",
    "offender",
    "offenders",
    "promise",
    "promises",
    "promised",
    "inside",
    "goal",
    "goals",
    "infeasible",
    "bite",
    "bites",
    "response time",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
    "everyone",
    "whoever",
    "is told",
];

/// The names of the tests in a Rust text.
fn tests(text: &str) -> Vec<&str> {
    let after = text.split("#[test]\n").skip(1);
    let names = after.filter_map(|text| text.split_once("fn ")?.1.split('(').next());
    names.collect()
}

/// Sources in and below `folder`, those of tests too.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    let sources = files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let below = folders.iter().filter(|path| !path.ends_with("target")).flat_map(|path| self::sources(path));
    sources.chain(below).collect()
}

#[test]
fn names_of_tests_are_the_words_of_the_field() {
    let (mut seen, mut complaints) = (0, Vec::new());
    for path in sources(&root().join("crates")) {
        let text = read(&path);
        for name in tests(&text) {
            seen += 1;
            // To tell apart is to distinguish.
            let words = format!(" {} ", words(&name.replace("told_apart", "")).join(" "));
            if let Some(word) = REJECTED_IN_TESTS.iter().find(|word| words.contains(&format!(" {word} "))) {
                complaints.push(format!("{}: {name}: \"{word}\"", short(&path)));
            }
        }
    }
    assert!(seen > 1_500, "only {seen} tests are found");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Adds the names of all properties in a JSON schema to `found`.
fn properties(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            found.extend(
                map.get("properties").and_then(Value::as_object).into_iter().flat_map(|map| map.keys().cloned()),
            );
            map.values().for_each(|value| properties(value, found));
        }
        Value::Array(all) => all.iter().for_each(|value| properties(value, found)),
        _ => {}
    }
}

#[test]
fn keys_metrics_and_options_are_the_words_of_the_field() {
    let mut names = BTreeSet::new();
    for document in ["config", "agent", "state", "agent-state"] {
        let schema = evenkeel(&["config", "schema", document]);
        properties(&serde_json::from_str(&schema).expect("JSON"), &mut names);
    }
    let monitoring = read(&root().join("docs/guide/monitoring.md"));
    let metrics = monitoring.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    names.extend(metrics.filter(|word| word.starts_with("evenkeel_")).map(str::to_owned));
    names.extend(super::references::flags());
    let complaints: Vec<_> = names.iter().filter_map(|name| Some((name, rejected(name, "")?))).collect();
    assert!(names.len() > 300, "only {} names are found", names.len());
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn a_rejected_word_is_found_as_a_whole() {
    for (name, word) in [
        ("inside_bytes", Some("inside")),
        ("HoldBack", Some("hold back")),
        ("--resent-total", Some("resent")),
        ("restore", None),
        ("round_robin", None),
        ("threshold_background", None),
        ("sections_above", Some("sections")),
        ("RoundRobin", Some("round")),
    ] {
        assert_eq!(rejected(name, "").map(|(word, _)| word), word, "{name}");
    }
    assert_eq!(public("    pub const fn inside(&self) -> u64 {"), Some("inside"));
    assert_eq!(public("    pub rest: Duration,"), Some("rest"));
    assert_eq!(public("    pub(super) rest: Duration,"), None);
    assert_eq!(variants("    /// It.\n    Goal { rest: u8 },\n    Other,\n}\n".lines()), ["Goal", "Other"]);
}
