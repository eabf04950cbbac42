//! Tests that carry out the manual's tutorials as written, if these need no special environment; labs carry out the others.

use std::fs;
use std::path::Path;

use port::Port;
use tutorial::{How, Stage, Step, fits, follow, play, rewritten, steps};

#[path = "serve/port.rs"]
mod port;
#[path = "../../labs/src/base/tutorial.rs"]
mod tutorial;

/// Environment in which a tutorial is carried out: with the `evenkeel` under test, and the page's commands unchanged.
const PLAIN: Stage = Stage { program: env!("CARGO_BIN_EXE_evenkeel"), instead: &[], prepare: |_| () };

#[test]
fn the_server_does_what_its_tutorial_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/tutorial-server.md");
    let page = fs::read_to_string(&path).expect("a page");
    // On free ports in place of the usual ones.
    let ports = [(); 2].map(|()| Port::reserve());
    let [volumes, status] = ports.each_ref().map(|port| format!("127.0.0.1:{}", port.number()));
    let instead = [("127.0.0.1:10809", &*volumes), ("127.0.0.1:9809", &*status)];
    let stage = Stage { instead: &instead, ..PLAIN };
    let (commands, written) = play(&page, &stage).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(commands > 10, "{commands} commands only");
    if let Some(written) = written {
        fs::write(path, written).expect("written");
    }
}

#[test]
fn every_tutorial_can_be_followed_by_a_reader() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    for name in ["server", "iscsi", "lvm", "ceph"] {
        let page = fs::read_to_string(guide.join(format!("tutorial-{name}.md"))).expect("a page");
        let places = ["**Slows down:**", "**Abort:**", "**Undo:**", "\n## ", "\n## Run it as a service\n"];
        let places = places.map(|text| page.find(text).unwrap_or_else(|| panic!("{name}: no {text}")));
        assert!(places.is_sorted(), "{name}: {places:?}");
        let steps = steps(&page).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        let commands = steps.iter().filter_map(|step| match step {
            Step::Command(command, how, _) => Some((command.as_str(), how.terminal)),
            Step::File(..) => None,
        });
        // A program in the terminal, and its end, in turn.
        let typed: Vec<_> = commands.clone().filter(|(_, terminal)| *terminal).map(|(command, _)| command).collect();
        assert!(!typed.is_empty(), "{name}: no terminal");
        for pair in typed.chunks(2) {
            assert!(matches!(pair, [program, "^C"] if *program != "^C"), "{name}: {pair:?}");
        }
        for (command, _) in commands {
            let idiom =
                ["timeout ", "|| ", "until ", "while ", "kill ", " &"].into_iter().find(|i| command.contains(i));
            assert_eq!(idiom, None, "{name}: {command}");
        }
    }
}

#[test]
fn a_page_is_read() {
    let page = "Text\n```toml\n# a.toml\nb = 1\n```\n```console\n$ one\nans ... r\n$ two\n```\n\
                ```console terminal about except 0 errors, 20 ms\n$ three\n```\n```console terminal\n^C\nbye\n```\n";
    let (once, terminal) = (How::default(), How { terminal: true, ..How::default() });
    let about = How { about: Some(vec!["0 errors".into(), "20 ms".into()]), ..terminal.clone() };
    let expected = [
        Step::File("a.toml".into(), "# a.toml\nb = 1\n".into()),
        Step::Command("one".into(), once.clone(), 7..8),
        Step::Command("two".into(), once, 9..9),
        Step::Command("three".into(), about, 12..12),
        Step::Command("^C".into(), terminal, 15..16),
    ];
    assert_eq!(steps(page).unwrap(), expected);
    for wrong in [
        "```toml\na = 1\n```",
        "```console\nanswer\n```",
        "```console\n$ a\n```\n```console\nb\n```",
        "```console a\n```",
        "```console about 0 errors\n```",
        "```console aboutness\n```",
    ] {
        assert!(steps(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_answer_is_compared() {
    for (pattern, text, exact, about) in [
        ("a ... c\n", "a   b\nc\n", true, true),
        ("a ... c", "a b d", false, false),
        ("a ...", "a", true, true),
        ("... c", "b c", true, true),
        ("a", "a b", false, false),
        ("", "a", false, false),
        ("a ... b ... c", "a x b c", true, true),
        ("a ... b ... c", "a x c", false, false),
        ("read 7 12.5 MB/s", "read  1016 3 MB/s", false, true),
        ("10.0.0.1 waits ... 4", "10.0.0.12 waits 1 2.25", false, false),
        ("b1 of osd.0 waits ... 4", "b1 of osd.0 waits 1 2.25", false, true),
        ("b1", "b2", false, false),
        ("... 7 ms", "3 s 12 ms", false, true),
        ("1,010 µs ... b", "7 µs\nb", false, true),
        ("... no ... 5", "no 15", true, true),
        ("up 5 s, 0 errors", "up 7 s, 0 errors", false, true),
        ("up 5 s, 0 errors", "up 0 s, 1 errors", false, false),
        ("... 0 errors", "10 errors", true, false),
        ("read 7 ms", "read -7 ms", false, false),
        ("read 7 ms", "read . ms", false, false),
    ] {
        assert_eq!(fits(pattern, text, None), exact, "{pattern:?} {text:?}");
        assert_eq!(fits(pattern, text, Some(&["0 errors".to_owned()])), about, "about {pattern:?} {text:?}");
    }
}

#[test]
fn answers_that_do_not_fit_are_written_into_the_page() {
    let block = |one: &str, two: &str| {
        format!("# A\n\n```console\n$ one\n{one}$ two\n```\nB\n\n```console about\n$ three\n{two}```\nC\n")
    };
    let page = block("first ... line\nsecond\n", "took 3 s\n");
    let seen = |answers: [&str; 3]| rewritten(&page, &answers.map(str::to_owned)).unwrap();
    assert_eq!(seen(["first fine line\nsecond\n", "", "took 3 s\n"]), page);
    assert_eq!(seen(["first line  \n\nthird\n", "", "took 3 ms\n"]), block("first line\n\nthird\n", "took 3 ms\n"));
    assert_eq!(seen(["", "", ""]), block("", ""));
    assert!(rewritten(&page, &["first line second".to_owned()]).is_err());
}

#[test]
fn numbers_of_answers_that_fit_are_written_into_the_page_with_their_blanks() {
    let block = |answer: &str| format!("```console about except 0 errors\n$ one\n{answer}```\n");
    let page = block("took 3 s, ..., 0 errors\n...\n  name  MB/s\n  b1     1.5\n  ...\n");
    let answer = "took 12 s, some 4 late, 0 errors\nmore\n\n  name   MB/s\n  b1    104.5  \nend\n".to_owned();
    let written = block("took 12 s, ..., 0 errors\n...\n  name   MB/s\n  b1    104.5\n  ...\n");
    assert_eq!(rewritten(&page, &[answer]).unwrap(), written);
}

#[test]
fn a_page_is_followed() {
    let follow = |page: &str| follow(page, &PLAIN, true).unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(follow("```console\n$ echo one\none\n$ true\n```\n").len(), 2);
    // The third line is there at the third time.
    assert_eq!(follow("```console repeat\n$ echo >> lines; wc -l < lines\n3\n```\n"), ["3\n"]);
    let terminal = "```console terminal\n$ bash -c 'trap \"echo bye; exit\" INT; echo hello; exec 3<> <(:); read -u 3'\nhello\n```\n\
                    ```console terminal\n^C\nbye\n```\n";
    assert_eq!(follow(terminal), ["hello\n", "bye\n"]);
    let stage = Stage { instead: &[("usual", "here")], ..PLAIN };
    let page =
        "```toml\n# a\nb = \"usual\"\n```\n```console\n$ cat a\n# a\nb = \"usual\"\n$ echo usual | wc -c\n5\n```\n";
    assert_eq!(tutorial::follow(page, &stage, true).unwrap()[1], "5\n");
}

#[test]
fn a_page_that_is_wrong_is_an_error() {
    for (kind, wrong, told) in [
        ("", "$ echo one\ntwo", "the answer is\none"),
        ("", "$ false", "status 1"),
        ("", "$ exit 3", "ended the shell"),
        (" terminal", "$ echo over\nmore", "has ended:\nover"),
        (" terminal", "^C", "without a program"),
    ] {
        let page = format!("```console{kind}\n{wrong}\n```\n");
        let error = follow(&page, &PLAIN, true).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_command_that_fails_is_repeated_though_its_answer_fits() {
    let page =
        "```console repeat\n$ echo x >> file; test $(wc -l < file) -ge 2\n```\n```console\n$ wc -l < file\n2\n```\n";
    assert_eq!(follow(page, &PLAIN, true).unwrap().len(), 2);
}
