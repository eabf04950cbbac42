use std::collections::BTreeSet;
use std::path::Path;

use clap::CommandFactory as _;

use super::*;
use crate::Cli;

/// All commands that are not hidden, each as its words without `evenkeel`.
fn paths() -> Vec<String> {
    fn add(command: &Command, path: &str, paths: &mut Vec<String>) {
        paths.push(path.to_owned());
        visible(command).for_each(|below| add(below, &join(path, below.get_name()), paths));
    }
    let mut paths = Vec::new();
    add(&Cli::command(), "", &mut paths);
    paths
}

/// The words of the Evenkeel command in a shell line: behind ` & `, and before a pipe, redirection or semicolon.
fn words(line: &str) -> Vec<&str> {
    let line = line.rsplit(" & ").next().unwrap_or(line);
    let line = line.split([';', '|', '>']).next().unwrap_or(line);
    line.split_whitespace().collect()
}

#[test]
fn every_command_has_facts_and_every_fact_a_command() {
    let facts: Vec<&str> = commands::COMMANDS.iter().map(|facts| facts.command).collect();
    let paths = paths();
    assert!(paths.len() > 30, "{paths:?}");
    for path in &paths {
        assert!(facts.contains(&path.as_str()), "{path:?} has no row in manual/commands.rs");
    }
    for command in facts {
        assert!(paths.iter().any(|path| path == command), "{command:?} of manual/commands.rs is no command");
    }
}

#[test]
fn every_example_is_a_command_line_of_its_command() {
    let mut read = 0;
    for facts in commands::COMMANDS {
        for (line, effect) in facts.examples {
            let words = words(line);
            assert!(words.join(" ").starts_with(format!("evenkeel {}", facts.command).trim_end()), "{line}");
            let parsed = Cli::command().try_get_matches_from(&words);
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            assert!(!effect.is_empty() && !effect.ends_with('.'), "{line}: {effect}");
            read += 1;
        }
    }
    assert!(read > 50, "only {read} examples");
    assert!(Cli::command().try_get_matches_from(words("evenkeel serve --no-such-flag")).is_err());
}

#[test]
fn every_page_has_its_sections_and_names_pages_that_exist() {
    let pages = rendered(Cli::command()).expect("pages");
    let names: BTreeSet<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), paths().len() + 1, "{names:?}");
    for (name, page) in &pages {
        let text = String::from_utf8(page.clone()).expect("UTF-8");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "FILES", "EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            let heading = format!("\n.SH {section}");
            let heading = if section.contains(' ') { format!("\n.SH \"{section}\"") } else { heading };
            assert!(text.contains(&heading), "{name} has no {section}:\n{text}");
        }
        assert_eq!(text.matches(".ds Aq").count(), 2, "{name}");
    }
    for facts in commands::COMMANDS {
        assert!(!facts.see.is_empty() && !facts.pages.is_empty(), "{}", facts.command);
        for page in facts.see {
            let file = page.replace('(', ".").replace(')', "");
            assert!(names.contains(file.as_str()), "{}: {page} does not exist", facts.command);
        }
        for path in facts.pages {
            assert!(book::PAGES.iter().any(|page| page.path == *path), "{}: {path} does not exist", facts.command);
        }
    }
}

#[test]
fn a_synopsis_has_the_values_of_options() {
    let pages = rendered(Cli::command()).expect("pages");
    let (_, page) = pages.iter().find(|(name, _)| name == "evenkeel-tenant-set.1").expect("a page");
    let page = String::from_utf8_lossy(page);
    assert!(page.contains(r"[\fB\-\-limit\-iops\fR \fI<N>\fR]"), "{page}");
}

#[test]
fn completions_offer_what_users_may_type() {
    let script = script(Cli::command(), Shell::Bash);
    assert!(script.contains("compgen -W \"auto io_uring epoll\""), "{script}");
    assert!(script.contains("reset") && !script.contains("sentinel"), "{script}");
    // Names come from the running server, by a command that is not offered itself.
    assert!(script.contains("_evenkeel \"$@\"") && script.contains("_evenkeel() {"), "{script}");
    let zsh = super::script(Cli::command(), Shell::Zsh);
    let place = |text: &str| zsh.find(text).unwrap_or_else(|| panic!("no {text} in {zsh}"));
    let (first, names, call) = (place("_evenkeel() {"), place("_evenkeel_words \"$@\""), place("$funcstack[1]"));
    assert!(first < names && names < call && zsh.starts_with("#compdef evenkeel"), "{zsh}");
    let fish = super::script(Cli::command(), Shell::Fish);
    for option in ["history volume\" -l tenant -x", "history suggest record volume tenant\" -l pool -x"] {
        assert!(fish.contains(option), "{fish}");
    }
    assert!(Cli::command().try_get_matches_from(["evenkeel", "names", "tenants"]).is_ok());
    assert!(!paths().iter().any(|path| path == "names"));
}

#[test]
fn help_shows_the_examples() {
    let mut program = with_examples(Cli::command());
    let help = program.render_long_help().to_string();
    assert!(help.contains("First steps:\n  evenkeel serve  "), "{help}");
    let mut serve = program.find_subcommand("tenant").expect("a group").clone();
    let help = serve.render_help().to_string();
    assert!(help.contains("\n  evenkeel tenant set backup --limit-bytes-per-s 50MB  at most 50 MB/s"), "{help}");
}

#[test]
fn the_book_has_every_page_of_the_manual() {
    fn add(folder: &Path, below: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                add(&entry.path(), &format!("{name}/"), found);
            } else if name.ends_with(".md") && !name.starts_with("results/") {
                found.insert(name);
            }
        }
    }
    let mut found = BTreeSet::from(["README.md".to_owned()]);
    add(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs"), "", &mut found);
    let listed: BTreeSet<String> = book::PAGES.iter().map(|page| page.path.to_owned()).collect();
    assert_eq!(listed, found, "the list in manual/book.rs differs from docs/");
}

#[test]
fn the_book_has_sections_terms_and_metrics() {
    let page = book::Page {
        path: "a.md",
        text: "# T\nOne [two](b.md). Three.\n\n## H `x`\n| a | b |\n|---|---|\n| c | `d` |\n```\n# code\n```\n- e\n",
    };
    let sections = book::sections(&page);
    let shown: Vec<(&str, Vec<String>)> =
        sections.iter().map(|section| (section.heading, section.sentences().collect())).collect();
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(shown, [("T", texts(&["One two.", "Three."])), ("H `x`", texts(&["a: b", "c: d", "e"]))]);
    assert!(sections[0].code().next().is_none() && sections[1].code().eq(["# code"]));
    assert_eq!((sections[1].anchor().as_str(), sections[1].title), ("h-x", "T"));

    let page = book::Page {
        path: "a.md",
        text: "# T\nname | meaning | key\n---|:--|---\n`x` | [y](z.md) |\n`a\\|b` | **c** | `d`\n\none | two\n",
    };
    let shown: Vec<String> = book::sections(&page)[0].sentences().collect();
    assert_eq!(shown, ["name: meaning; key", "x: y", "a|b: c; d", "one | two"]);

    let terms = book::terms();
    let term = |name: &str| terms.iter().find(|term| term.names.iter().any(|other| other == name));
    let backpressure = term("backpressure").expect("a term");
    assert!(backpressure.links.contains(&"guide/security.md#bounds-on-clients"), "{:?}", backpressure.links);
    assert!(backpressure.codes.contains(&"server.buffer_memory"), "{:?}", backpressure.codes);
    assert!(term("SIOC").is_some() && term("noisy neighbour").is_some() && term("term").is_none());

    let metrics = book::metrics();
    let page = book::PAGES.iter().find(|page| page.path == book::METRICS).expect("the page");
    let missing: Vec<&str> =
        metrics.iter().map(|metric| &*metric.name).filter(|name| !page.text.contains(&format!("`{name}`"))).collect();
    assert!(metrics.len() > 100 && missing.is_empty(), "{missing:?}");
    let failed = metrics.iter().find(|metric| metric.name == "evenkeel_volume_failed").expect("a metric");
    assert!(failed.help.contains("failed flush"), "{failed:?}");
}

#[test]
fn keys_have_types_defaults_and_meanings() {
    let keys = keys::keys();
    let facts = |path: &str| {
        let key = keys.iter().find(|key| key.path == path).unwrap_or_else(|| panic!("no key {path}"));
        assert!(!key.meaning.is_empty(), "{path}");
        key.facts()
    };
    assert_eq!(facts("server.buffer_memory"), "bytes, default \"256MiB\"");
    assert_eq!(facts("pools.NAME.limit.burst"), "time, default \"10ms\"");
    assert_eq!(facts("tenants.NAME.weight"), "integer from 1 to 1000000, default 1");
    assert_eq!(facts("tenants.NAME.priority"), "\"normal\", \"background\", default \"normal\"");
    assert!(facts("pools.NAME.tuning.admission").ends_with("default \"elastic\""));
    assert_eq!(facts("agent.interval"), "time, default \"100ms\"");
    assert_eq!(facts("agent.ceph.deferred"), "true or false, default true");
    facts("agent.tls.certificate");
    facts("tenants.NAME.pools.NAME.limit");
    let page = String::from_utf8(troff::file(&keys, &[])).expect("UTF-8");
    for key in &keys {
        let name = key.path.rsplit('.').next().unwrap_or(&key.path);
        assert!(page.contains(name), "evenkeel.toml(5) lacks {}", key.path);
    }
    evenkeel_policy::Config::parse(FILE_EXAMPLE, "the example").expect("a configuration");
}
