//! The tutorials that need no stage, done as they are written. The labs do the others in the same way.

use std::fs;
use std::path::Path;

use port::Port;
use tutorial::{Step, fits, follow, steps};

#[path = "serve/port.rs"]
mod port;
#[path = "../../labs/src/base/tutorial.rs"]
mod tutorial;

const EVENKEEL: &str = env!("CARGO_BIN_EXE_evenkeel");

/// A page of the guide.
fn page(name: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/guide/{name}.md"));
    fs::read_to_string(page).expect("a page")
}

#[test]
fn the_server_does_what_its_tutorial_says() {
    // On free ports in place of the usual ones.
    let page = page("tutorial-server");
    let ports = [(); 2].map(|()| Port::reserve());
    let [volumes, status] = ports.each_ref().map(|port| format!("127.0.0.1:{}", port.number()));
    let page = page.replace("127.0.0.1:10809", &volumes).replace("127.0.0.1:9809", &status);
    let commands = follow(&page, Path::new(EVENKEEL), |_| ()).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(commands > 10, "{commands} commands only");
}

#[test]
fn a_page_is_read_and_an_answer_compared() {
    let page = "Text\n```toml\n# a.toml\nb = 1\n```\n```console\n$ one\nans ... r\n$ two\n```\n";
    let command = |command: &str, answer: &str| Step::Command(command.into(), answer.into());
    let file = Step::File("a.toml".into(), "# a.toml\nb = 1\n".into());
    assert_eq!(steps(page).unwrap(), [file, command("one", "ans ... r\n"), command("two", "")]);
    assert!(steps("```toml\na = 1\n```").is_err() && steps("```console\nanswer\n```").is_err());
    for (pattern, text, expected) in [
        ("a ... c\n", "a   b\nc\n", true),
        ("a ... c", "a b d", false),
        ("a ...", "a", true),
        ("... c", "b c", true),
        ("a", "a b", false),
        ("", "a", false),
        ("a ... b ... c", "a x b c", true),
        ("a ... b ... c", "a x c", false),
    ] {
        assert_eq!(fits(pattern, text), expected, "{pattern:?} {text:?}");
    }
}

#[test]
fn a_page_that_is_wrong_is_told() {
    let follow = |command: &str| follow(&format!("```console\n{command}\n```\n"), Path::new(EVENKEEL), |_| ());
    assert_eq!(follow("$ echo one\none\n$ true").unwrap(), 2);
    // What the shell says about jobs is none of the answer, whenever it comes.
    let jobs = "$ sleep 60 &\n$ sleep 61 &\n$ kill -9 %1; kill %2\n$ wait || true\n$ true";
    assert_eq!(follow(jobs).unwrap(), 5);
    for (wrong, told) in
        [("$ echo one\ntwo", "the answer is\none"), ("$ false", "status 1"), ("$ exit 3", "ended the shell")]
    {
        let error = follow(wrong).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}
