//! Tests of `evenkeel help` and `evenkeel manual`, run as programs.

#[path = "../../xtask/src/test/skip.rs"]
mod skip;

use std::process::{Command, Output};

use serde_json::Value;

fn evenkeel(line: &str) -> Output {
    let words = line.split(' ').filter(|word| !word.is_empty());
    Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(words).output().expect("it runs")
}

/// Runs `evenkeel` with the arguments in `line`, asserts that it succeeds, and returns its standard output.
fn text(line: &str) -> String {
    let output = evenkeel(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn help_of_a_command_is_its_help() {
    for command in ["", "serve", "tenant set", "guard run"] {
        assert_eq!(text(&format!("help {command}")), text(&format!("{command} --help")), "{command}");
    }
    assert!(text("help tenant set").contains("--reservation-iops"));
    assert_eq!(text("tenant help set"), text("help tenant set"));
    assert_eq!(text("guard config help"), text("help guard config"));
    assert!(text("help").contains("evenkeel help backpressure"));
}

#[test]
fn text_that_cannot_be_written_is_an_error() {
    for command in ["config example", "completions bash", "help limit"] {
        let full = std::fs::File::create("/dev/full").expect("a device of every Linux");
        let mut program = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let output = program.args(command.split(' ')).stdout(full).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains("cannot write to standard output: No space left"), "{command}: {said}");
    }
}

#[test]
fn help_of_a_term_is_the_manuals() {
    let help = text("help noisy neighbour");
    assert!(help.starts_with("glossary\n  noisy tenant, noisy neighbour: A tenant that delays others"), "{help}");
    for part in ["keys of evenkeel.toml", "pools.NAME.tuning.noisy", "pages", "evenkeel help --page algorithms/"] {
        assert!(help.contains(part), "{part} is missing in\n{help}");
    }
    assert!(text("help --search pool").starts_with("glossary\n  pool: "));
    let found: Value = serde_json::from_str(&text("help --json p99")).expect("JSON");
    assert_eq!((&found["rows"][0]["kind"], &found["rows"][0]["name"]), (&"term".into(), &"p99".into()));
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/glossary.md")).expect("a page");
    assert_eq!(text("help --page glossary"), page);
}

#[test]
fn help_says_when_the_manual_has_nothing() {
    for line in ["help backpresure", "help --json backpresure", "help --page backpressure"] {
        let output = evenkeel(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(said.starts_with("evenkeel: the manual has no "), "{line}: {said}");
        assert!(line.contains("--page") || said.contains("did you mean backpressure?"), "{line}: {said}");
    }
}

#[test]
fn manual_pages_are_valid_troff() {
    let folder = std::env::temp_dir().join(format!("evenkeel-manual-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    text(&format!("manual {}", folder.display()));
    let pages: Vec<_> = std::fs::read_dir(&folder).expect("pages").map(|page| page.expect("a page").path()).collect();
    let groff = Command::new("groff").args(["-ww", "-man", "-Tutf8", "-rLL=100n"]).args(&pages).output();
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(pages.len() > 30, "{pages:?}");
    let Ok(groff) = groff else { return skip::skip("groff is missing; install the package groff") };
    let warnings = String::from_utf8_lossy(&groff.stderr);
    assert!(groff.status.success() && warnings.is_empty(), "{warnings}");
    let shown = String::from_utf8_lossy(&groff.stdout);
    assert!(shown.contains("evenkeel help --page serve"), "{shown}");
}
