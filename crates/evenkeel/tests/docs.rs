//! Docs, help, messages and doc comments use the project's words; links, keys and metrics in the docs exist.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Phrases that have a standard word: of a metaphor, or a subject without a name.
const REJECTED: [(&str, &str); 18] = [
    ("held back", "throttled"),
    ("hold back", "throttle"),
    ("holds back", "throttles"),
    ("let in", "admitted"),
    ("offender", "noisy tenant or client"),
    ("offenders", "noisy tenants or clients"),
    ("promise", "guarantee, reservation, QoS policy"),
    ("promises", "guarantees, reservations, QoS policy"),
    ("promised", "guaranteed, reserved"),
    ("goal", "latency target, throughput guarantee"),
    ("goals", "latency targets, throughput guarantees"),
    ("infeasible", "unachievable"),
    ("does not bite", "is ineffective"),
    ("nobody", "no client, no tenant, no process"),
    ("somebody", "a client, a tenant, a process"),
    ("whoever", "the client, the tenant or the process that"),
    ("is told", "receives, learns, gets the answer"),
    ("are told", "receive, learn, get the answer"),
];

/// Where a phrase means something else: in files whose path, and lines whose text, has these in it.
const ELSEWHERE: [(&str, &str, &str); 4] = [
    // What a client asks of the protocol's negotiation.
    ("goal", "crates/nbd/", "Goal::"),
    // JavaScript's.
    ("promise", "browser/devtools.rs", ""),
    // To distinguish.
    ("are told", "", "are told apart"),
    // Quotes code as it was.
    ("", "docs/results/", ""),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What is shipped or read of the project with one of these endings.
fn shipped(endings: &[&str]) -> Vec<PathBuf> {
    let folders = ["crates", "docs", "packaging", "scenarios"].map(|folder| files(&root().join(folder), endings));
    [vec![root().join("README.md")], folders.concat()].concat()
}

/// Files below `folder` with one of these endings, in order; no tests, benches and results of builds.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    for path in entries {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() && !["target", "tests", "benches", "fuzz", "build"].contains(&&*name) && !name.starts_with('.')
        {
            found.extend(files(&path, endings));
        } else if endings.iter().any(|ending| name.ends_with(ending)) && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// What a person may read of a line of Rust: a doc comment, or what stands in quotes.
fn readable(line: &str) -> String {
    let line = line.trim_start();
    match line {
        _ if line.starts_with("///") || line.starts_with("//!") => line.to_owned(),
        _ if line.starts_with("//") => String::new(),
        _ => line.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(" "),
    }
}

/// The text's words in lower case, one space between them and around each.
fn words(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '-').filter(|word| !word.is_empty());
    words.fold(" ".to_owned(), |words, word| words + &word.to_lowercase() + " ")
}

/// The rejected phrases in a text.
fn rejected(text: &str) -> Vec<(&'static str, &'static str)> {
    let words = words(text);
    REJECTED.into_iter().filter(|(phrase, _)| words.contains(&format!(" {phrase} "))).collect()
}

#[test]
fn words_are_those_of_the_field() {
    let mut complaints = Vec::new();
    let root = root();
    let mut read = 0;
    for path in shipped(&[".rs", ".md", ".js", ".html", ".yml", ".toml"]) {
        let name = path.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("text");
        // Tests at the end of a file are read by developers alone.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, line) in (1..).zip(text.lines()) {
            let shown = if name.ends_with(".rs") { readable(line) } else { line.to_owned() };
            read += usize::from(!shown.is_empty());
            for (phrase, instead) in rejected(&shown) {
                let elsewhere = |(which, file, has): &(&str, &str, &str)| {
                    (which.is_empty() || *which == phrase) && name.contains(file) && line.contains(has)
                };
                if !ELSEWHERE.iter().any(elsewhere) {
                    complaints.push(format!("{name}:{number}: not \"{phrase}\" but {instead}: {}", line.trim()));
                }
            }
        }
    }
    assert!(read > 20_000, "only {read} lines are read");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_rejected_phrase_is_found_where_a_person_reads_it() {
    let phrases = |line| rejected(&readable(line)).into_iter().map(|(phrase, _)| phrase).collect::<Vec<_>>();
    assert_eq!(phrases("    /// Requests that are Held back."), ["held back"]);
    assert_eq!(phrases(r#"    bail!("{name}: nobody listens, the goal is {goal}");"#), ["goal", "nobody"]);
    assert_eq!(phrases("    let goal = held_back(nobody); // whoever"), [""; 0]);
    assert_eq!(phrases("    // Nobody is told."), [""; 0]);
    assert_eq!(phrases("/// A goalkeeper's go-al."), [""; 0]);
}

/// A heading's name in links.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The lines of a page outside its blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

#[test]
fn links_lead_somewhere() {
    let mut anchors: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    let pages = shipped(&[".md"]);
    for page in &pages {
        let text = std::fs::read_to_string(page).expect("text");
        let headings =
            prose(&text).filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#')));
        anchors.insert(page.canonicalize().expect("a path"), headings.collect());
    }
    let (mut links, mut broken) = (0, Vec::new());
    for page in &pages {
        let text = std::fs::read_to_string(page).expect("text");
        for target in prose(&text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let known = file.canonicalize().ok().is_some_and(|file| {
                heading.is_empty() || anchors.get(&file).is_some_and(|known| known.iter().any(|name| name == heading))
            });
            if !known {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(links > 200, "only {links} links are found");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// What a schema says at a place, behind references and what may be null.
fn resolved<'a>(schema: &'a Value, mut at: &'a Value) -> &'a Value {
    while let Some(path) = at["$ref"].as_str().or_else(|| at["anyOf"][0]["$ref"].as_str()) {
        at = &schema["$defs"][path.trim_start_matches("#/$defs/")];
    }
    at
}

/// Whether a configuration may have the key; names of pools and the like are one letter.
fn is_known(schema: &Value, key: &str) -> bool {
    let step = |at, part: &str| {
        let table = resolved(schema, at);
        if part.len() == 1 { &table["additionalProperties"] } else { &table["properties"][part] }
    };
    !key.split('.').fold(schema, step).is_null()
}

#[test]
fn keys_of_the_glossary_are_in_the_configuration_and_metrics_in_the_reference() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(["config", "schema"]).output();
    let schema: Value = serde_json::from_slice(&output.expect("it runs").stdout).expect("JSON");
    let page = |name: &str| std::fs::read_to_string(root().join("docs").join(name)).expect("text");
    let (glossary, reference) = (page("glossary.md"), page("guide/monitoring.md"));
    let quoted: Vec<&str> = glossary.split('`').skip(1).step_by(2).collect();
    let keys = quoted.iter().filter_map(|text| text.split(" = ").next());
    let keys: Vec<&str> =
        keys.filter(|key| ["server.", "pools.", "tenants."].iter().any(|t| key.starts_with(t))).collect();
    let unknown: Vec<_> = keys.iter().filter(|key| !is_known(&schema, key)).collect();
    assert!(keys.len() > 20 && unknown.is_empty(), "{unknown:?}");
    let metrics: Vec<_> = quoted.iter().filter(|text| text.starts_with("evenkeel_")).collect();
    let unknown: Vec<_> = metrics.iter().filter(|name| !reference.contains(&format!("`{name}`"))).collect();
    assert!(metrics.len() > 20 && unknown.is_empty(), "{unknown:?}");
    assert!(is_known(&schema, "pools.P.tuning.slots") && !is_known(&schema, "pools.P.tuning.slot"));
}
