use clap::CommandFactory as _;

use super::*;
use crate::Cli;

fn found(words: &str) -> Found {
    search::search(words, &Cli::command())
}

#[test]
fn words_of_the_field_give_their_definition_first() {
    for (words, says) in [
        ("backpressure", "stops reading"),
        ("noisy neighbour", "delays others"),
        ("SLO", "bound on"),
        ("throttle", "slow a tenant on purpose"),
        ("cgroup", "io.max"),
        ("bufferbloat", "queue too long"),
        ("SIOC", "queue depth"),
        ("io.max", "cgroups"),
        ("dmClock", "several servers"),
        ("p99", "99th percentile"),
    ] {
        let found = found(words);
        let first = found.rows.first().unwrap_or_else(|| panic!("nothing about {words}"));
        assert!(first.kind == Kind::Term && first.text.contains(says), "{words}: {}: {}", first.name, first.text);
        assert!(found.rows.len() <= 12 && found.rows.iter().any(|row| row.kind == Kind::Section), "{words}");
        let extracts = found.rows.iter().all(|row| row.kind != Kind::Section || row.text.chars().count() < 190);
        assert!(extracts, "{words}");
    }
}

#[test]
fn keys_metrics_commands_and_headings_are_found() {
    let names = |words: &str, kind: Kind| {
        let rows = found(words).rows.into_iter().filter(|row| row.kind == kind);
        rows.map(|row| row.name).collect::<Vec<_>>()
    };
    assert_eq!(names("base_cost", Kind::Key)[0], "pools.NAME.tuning.base_cost");
    assert_eq!(names("tenants.database.limit.iops", Kind::Key)[0], "tenants.NAME.limit.iops");
    assert_eq!(names("throttle", Kind::Key)[0], "tenants.NAME.throttle");
    assert_eq!(names("p99", Kind::Key)[0], "tenants.NAME.latency.percentile");
    assert_eq!(names("evenkeel_pool_budget_bytes", Kind::Metric)[0], "evenkeel_pool_budget_bytes");
    assert_eq!(names("backpressure", Kind::Metric)[0], "evenkeel_buffer_memory_used_bytes");
    assert_eq!(names("bufferbloat", Kind::Command)[0], "evenkeel demo bufferbloat");
    assert_eq!(names("EvenkeelVolumeFailed", Kind::Section)[0], "EvenkeelVolumeFailed");
    assert_eq!(names("requests hang", Kind::Section)[0], "Requests hang");
}

#[test]
fn other_forms_of_a_word_are_found_and_other_words_are_not() {
    let first = |words: &str| found(words).rows.first().map(|row| row.name.clone());
    assert_eq!(first("Noisy-Neighbours").as_deref(), Some("noisy tenant, noisy neighbour"));
    assert_eq!(first("queue_depth"), first("queue depth"));
    assert_eq!(first("slot").as_deref(), Some("slots"));
    assert!(found("eservatio").rows.is_empty() && found("reservat").rows.is_empty());
}

#[test]
fn a_misspelled_word_gives_suggestions() {
    let suggestions = |words: &str| {
        let found = found(words);
        assert!(found.rows.is_empty(), "{words}");
        found.suggestions
    };
    assert!(suggestions("backpresure").contains(&"backpressure".to_owned()));
    assert!(suggestions("noisy neighbor").contains(&"noisy neighbour".to_owned()));
    assert!(suggestions("tenant zet").contains(&"tenant set".to_owned()));
    assert!(suggestions("xyzzyplugh").is_empty());
}

#[test]
fn a_page_has_several_names() {
    for name in ["serve", "guide/serve", "docs/guide/serve.md", "/usr/share/doc/evenkeel/guide/serve.md#volumes"] {
        assert!(page(name).expect(name).starts_with("# "), "{name}");
        assert_eq!(page(name).expect(name), page("serve").expect("a page"));
    }
    assert!(page("architecture").is_ok() && page("README").is_ok());
    assert!(page("serv").expect_err("no page").to_string().contains("guide/serve, "));
}

#[test]
fn help_behind_a_group_of_commands_stands_in_front() {
    let program = Cli::command();
    let moved = |words: &str| {
        let words = in_front(words.split(' ').map(Into::into).collect(), &program);
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(moved("evenkeel tenant help set"), "evenkeel help tenant set");
    assert_eq!(moved("evenkeel guard config help"), "evenkeel help guard config");
    for line in
        ["evenkeel", "evenkeel help help", "evenkeel load help", "evenkeel tenant set help", "evenkeel --log help"]
    {
        assert_eq!(moved(line), line);
    }
}

#[test]
fn a_command_of_other_programs_is_answered_by_ours() {
    let said = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        hinted(Cli::command().try_get_matches_from(&words).expect_err(line), &words).to_string()
    };
    for (line, hint) in [
        ("evenkeel config check a.toml", "tip: `evenkeel check FILE`"),
        ("evenkeel guard check", "tip: `evenkeel check FILE`"),
    ] {
        let said = said(line);
        assert!(said.contains(hint) && !said.contains("similar subcommand"), "{line}: {said}");
    }
    assert!(said("evenkeel stat").contains("similar subcommand"));
    for line in ["evenkeel volume resize db 5GiB", "evenkeel volume delete db"] {
        assert!(Cli::command().try_get_matches_from(line.split(' ')).is_ok(), "{line}");
    }
}

#[test]
fn commands_are_distinguished_from_terms() {
    let program = Cli::command();
    let is = |words: &str| is_command(&program, &words.split(' ').map(str::to_owned).collect::<Vec<_>>());
    assert!(is("serve") && is("tenant set") && is_command(&program, &[]));
    assert!(!is("backpressure") && !is("tenant limit"));
}
