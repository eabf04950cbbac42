//! Tests that docs, help, messages and doc comments use the project's words, and that their sentences have a named subject.

use super::{read, root, shipped, short};

/// Phrases that texts must not contain (metaphors, and subjects without a name), each with the standard words to use instead.
const REJECTED: [(&str, &str); 46] = [
    ("held back", "throttled"),
    ("hold back", "throttle"),
    ("holds back", "throttles"),
    ("holding back", "throttling"),
    ("let in", "admitted"),
    ("lets in", "admits"),
    ("letting in", "admitting"),
    ("let go", "released"),
    ("lets go", "releases"),
    ("waiting outside", "queued"),
    ("inside the device", "in flight, in the device"),
    ("inside the back end", "in flight, in the back end"),
    ("response time", "latency"),
    ("response times", "latencies"),
    ("hybrid", "cached device"),
    ("standing", "priority, rank"),
    ("read later", "backpressure"),
    ("look before sleeping", "busy poll"),
    ("offender", "noisy tenant or client"),
    ("offenders", "noisy tenants or clients"),
    ("promise", "guarantee, reservation, QoS policy"),
    ("promises", "guarantees, reservations, QoS policy"),
    ("promised", "guaranteed, reserved"),
    ("goal", "latency target, throughput guarantee"),
    ("goals", "latency targets, throughput guarantees"),
    ("infeasible", "unachievable"),
    ("guarantee is kept", "guarantee is met"),
    ("guarantees are kept", "guarantees are met"),
    ("target is kept", "target is met"),
    ("targets are kept", "targets are met"),
    ("does not bite", "is ineffective"),
    ("bites", "is effective"),
    ("nobody", "no client, no tenant, no process"),
    ("somebody", "a client, a tenant, a process"),
    ("anybody", "a client, a tenant, a process"),
    ("everybody", "all clients, all tenants, all processes"),
    ("someone", "a client, a tenant, a process"),
    ("anyone", "a client, a tenant, a process"),
    ("everyone", "all clients, all tenants, all processes"),
    ("whoever", "the client, the tenant or the process that"),
    ("the exchange", "the cluster"),
    ("an exchange", "a cluster"),
    ("silent host", "suspect member"),
    ("silent member", "suspect member"),
    ("is told", "receives, learns, gets the answer"),
    ("are told", "receive, learn, get the answer"),
];

/// Exceptions from [`REJECTED`]: a phrase (if empty, any phrase), a part of the file's path, and words that stand as often in the
/// passage as the phrase.
const ELSEWHERE: [(&str, &str, &str); 9] = [
    // JavaScript's.
    ("promise", "browser/devtools.rs", ""),
    // To distinguish.
    ("are told", "", "are told apart"),
    // Quotes code as it was.
    ("", "docs/results/", ""),
    // Titles of papers, and the words of their measures.
    ("hybrid", "", "Hybrid Storage Devices"),
    ("response time", "crates/sim/src/experiment/drg/", ""),
    ("response times", "crates/sim/src/experiment/drg/", ""),
    ("response time", "crates/sim/src/experiment/iscsi/", ""),
    ("response time", "crates/evenkeel/src/reproduce/", ""),
    // The name of a column of the traces of Microsoft Research.
    ("response time", "crates/sim/src/workload/trace/", "host,disk"),
];

/// The text in a line of Rust that a person may read: the doc comment, or the contents of the strings.
fn readable(line: &str) -> String {
    let line = line.trim_start();
    match line {
        _ if line.starts_with("///") || line.starts_with("//!") => line.to_owned(),
        _ if line.starts_with("//") => String::new(),
        _ => line.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(" "),
    }
}

/// The passages of `text` that a person may read, each with the numbers of its lines: a line or, of a doc comment in Rust,
/// consecutive lines up to one without words, because a phrase may go over a line break.
fn passages(is_rust: bool, text: &str) -> Vec<Vec<(usize, String)>> {
    let mut found: Vec<Vec<(usize, String)>> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (1..).zip(text.lines()) {
        let shown = if is_rust { readable(line) } else { line.to_owned() };
        let is_comment = is_rust && line.trim_start().starts_with("//") && words(&shown) != " ";
        match found.last_mut() {
            Some(passage) if goes_on && is_comment => passage.push((number, shown)),
            _ if shown.is_empty() => {}
            _ => found.push(vec![(number, shown)]),
        }
        goes_on = is_comment;
    }
    found
}

/// The rejected phrases in a passage, each with the number of the line where it ends and the standard words to use instead.
/// `name`: path of the file.
fn complaints(name: &str, passage: &[(usize, String)]) -> Vec<(usize, &'static str, &'static str)> {
    let joined = |lines: &[(usize, String)]| lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join(" ");
    let all = words(&joined(passage));
    let times = |phrase: &str| all.matches(&words(phrase)).count();
    let accepted = |phrase: &str| {
        let mut exceptions =
            ELSEWHERE.iter().filter(|(which, file, _)| (which.is_empty() || *which == phrase) && name.contains(file));
        exceptions.any(|(_, _, has)| has.is_empty() || times(has) == times(phrase))
    };
    let found = rejected(&joined(passage)).into_iter().filter(|(phrase, _)| !accepted(phrase));
    let ends = |phrase: &str| {
        let mut lengths = 1..=passage.len();
        let length = lengths.find(|&length| words(&joined(&passage[..length])).contains(&words(phrase)));
        length.map_or(0, |length| passage[length - 1].0)
    };
    found.map(|(phrase, instead)| (ends(phrase), phrase, instead)).collect()
}

/// The words of `text` in lower case, separated by one space, with a space at both ends.
fn words(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '-').filter(|word| !word.is_empty());
    words.fold(" ".to_owned(), |words, word| words + &word.to_lowercase() + " ")
}

/// The rejected phrases in `text`, each with the standard words to use instead.
fn rejected(text: &str) -> Vec<(&'static str, &'static str)> {
    let words = words(text);
    REJECTED.into_iter().filter(|(phrase, _)| words.contains(&format!(" {phrase} "))).collect()
}

/// Ends of the names of the files whose words are checked: sources, pages, the dashboard, and all that the packages install.
const TEXTS: [&str; 20] = [
    ".rs", ".md", ".js", ".html", ".css", ".svg", ".yml", ".yaml", ".toml", ".json", ".service", ".socket", ".conf",
    ".bash", ".fish", ".zsh", "control", "log", "inst", "rm",
];

#[test]
fn words_are_those_of_the_field() {
    let mut found = Vec::new();
    let mut lines = 0;
    let alone = ["Containerfile", ".ci/run"].map(|name| root().join(name));
    for path in shipped(&TEXTS).into_iter().chain(alone) {
        let (name, text) = (short(&path), read(&path));
        // Tests at the end of a file are read by developers alone.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for passage in passages(name.ends_with(".rs"), text) {
            lines += passage.len();
            for (number, phrase, instead) in complaints(&name, &passage) {
                let line = text.lines().nth(number - 1).unwrap_or_default().trim();
                found.push(format!("{name}:{number}: not \"{phrase}\" but {instead}: {line}"));
            }
        }
    }
    assert!(lines > 20_000, "only {lines} lines are read");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_rejected_phrase_is_found_over_a_line_break() {
    let text = "/// Clients that are held\n/// back are told\n/// apart.\n\n/// Of a\n/// response\n///\n/// time.\nfn held() {}\n// back\n\
                /// A tenant is told.\n/// It is not told\n/// what they are told.\n";
    let found: Vec<_> = passages(true, text).iter().flat_map(|passage| complaints("src/some.rs", passage)).collect();
    let found: Vec<_> = found.into_iter().map(|(line, phrase, _)| (line, phrase)).collect();
    assert_eq!(found, [(2, "held back"), (11, "is told"), (13, "are told")]);
    let page = "Clients that are held\nback are told";
    let found: Vec<_> = passages(false, page).iter().flat_map(|passage| complaints("docs/some.md", passage)).collect();
    assert_eq!(found.len(), 1, "a line of a page is a paragraph: {found:?}");
    let both = [(1, "They are told apart, and are told.".to_owned())];
    assert_eq!(complaints("src/some.rs", &both).len(), 1, "an exception is for its own words alone");
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

/// Words with which no doc comment, help or message may begin, because a sentence should begin with a named subject or a verb.
const BEGINNINGS: [&str; 4] = ["what", "whatever", "whether", "whoever"];

/// Line number and first word, in lower case, of each doc comment and of each string with a space in the Rust text `text`.
fn beginnings(text: &str) -> Vec<(usize, String)> {
    let first = |text: &str| text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase();
    let mut found = Vec::new();
    let mut in_comment = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        match comment {
            Some(comment) if !in_comment => found.push((number, first(comment.trim_start()))),
            Some(_) => {}
            None if line.starts_with("//") => {}
            None => found.extend(
                line.split('"').skip(1).step_by(2).filter(|text| text.contains(' ')).map(|text| (number, first(text))),
            ),
        }
        in_comment = comment.is_some();
    }
    found
}

#[test]
fn comments_and_messages_begin_with_a_name_or_a_verb() {
    let mut complaints = Vec::new();
    let mut seen = 0;
    for path in shipped(&[".rs"]) {
        let (name, text) = (short(&path), read(&path));
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, word) in beginnings(text) {
            seen += 1;
            if BEGINNINGS.contains(&&*word) {
                complaints.push(format!("{name}:{number}: begins with \"{word}\""));
            }
        }
    }
    assert!(seen > 10_000, "only {seen} comments and messages are read");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn panels_and_alerts_begin_with_a_name() {
    let keys = ["\"title\": \"", "\"description\": \"", "summary: '", "description: '"];
    let (mut seen, mut complaints) = (0, Vec::new());
    for path in shipped(&["evenkeel.json", "alerts.yml"]) {
        for line in read(&path).lines() {
            let Some(shown) = keys.iter().find_map(|key| line.trim_start().strip_prefix(*key)) else { continue };
            seen += 1;
            let first = shown.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase();
            if BEGINNINGS.contains(&&*first) || first == "how" {
                complaints.push(format!("{}: {shown}", short(&path)));
            }
        }
    }
    assert!(seen > 100, "only {seen} texts are found");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_beginning_is_that_of_the_first_line() {
    let text = "/// Whether it fits.\n/// What else.\nfn a() {\n    bail!(\"what {x} is\"); // what\n}\n//! \n";
    let words: Vec<_> = beginnings(text).into_iter().filter(|(_, word)| BEGINNINGS.contains(&&**word)).collect();
    assert_eq!(words, [(1, "whether".to_owned()), (4, "what".to_owned())]);
}
