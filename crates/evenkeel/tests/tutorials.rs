//! The tutorials, run as they are written: files from their text, commands in one shell, answers compared.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const EVENKEEL: &str = env!("CARGO_BIN_EXE_evenkeel");
/// How long one tutorial may take, in seconds; a bound for broken runs.
const PATIENCE: &str = "180";
/// Stands for anything in an answer.
const ANYTHING: &str = "...";

/// What a tutorial tells its reader to do.
#[derive(Debug, PartialEq)]
enum Step {
    /// A block of TOML whose first line is `# NAME`: a file of this name.
    File(String, String),
    /// A command of a `console` block, after `$ `, and the lines below it.
    Command(String, String),
}

/// The steps of a page.
fn steps(page: &str) -> Vec<Step> {
    let (mut steps, mut lines) = (Vec::new(), page.lines());
    while let Some(line) = lines.next() {
        let block = lines.by_ref();
        match line {
            "```toml" => {
                let text: Vec<&str> = block.take_while(|line| *line != "```").collect();
                let name = text.first().and_then(|line| line.strip_prefix("# ")).expect("the name of a file");
                steps.push(Step::File(name.to_owned(), text.join("\n") + "\n"));
            }
            "```console" => {
                for line in block.take_while(|line| *line != "```") {
                    if let Some(command) = line.strip_prefix("$ ") {
                        steps.push(Step::Command(command.to_owned(), String::new()));
                    } else if let Some(Step::Command(_, answer)) = steps.last_mut() {
                        answer.extend([line, "\n"]);
                    } else {
                        panic!("an answer without a command: {line}");
                    }
                }
            }
            _ => {}
        }
    }
    steps
}

/// Whether `text` is `pattern`, in which [`ANYTHING`] stands for anything. How many blanks there are does not count.
fn fits(pattern: &str, text: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (pattern, text) = (words(pattern), words(text));
    let parts: Vec<&str> = pattern.split(ANYTHING).map(str::trim).collect();
    let [first, between @ .., last] = parts.as_slice() else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in between {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// A shell that runs one command after the other in a folder of its own, which both end with the value.
struct Shell {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Shell {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch folder");
        let programs = Path::new(EVENKEEL).parent().expect("a folder").display().to_string();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("timeout");
        command.args(["-k", "5", PATIENCE, "bash"]).current_dir(&folder).env("PATH", path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let (commands, answers) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut shell = Self { child, commands, answers: BufReader::new(answers), folder };
        shell.run("exec 2>&1");
        shell
    }

    /// Runs a command; its status, and everything that was printed meanwhile.
    fn run(&mut self, command: &str) -> (i32, String) {
        const END: &str = "end of the answer: ";
        writeln!(self.commands, "{command}\necho \"{END}$?\"").expect("the shell lives");
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).expect("text") > 0, "{command} ended the shell:\n{answer}");
            match line.trim_end().rsplit_once(END) {
                Some((before, status)) => return (status.parse().expect("a number"), answer + before),
                None => answer += &line,
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It passes the signal on to everything that it has started, servers in the background included.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// An address where nobody listens.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").to_string()
}

/// Does what a page says, on free ports in place of the usual ones.
fn follow(name: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/{name}.md"));
    let page = fs::read_to_string(page)
        .expect("a page")
        .replace("127.0.0.1:10809", &free_address())
        .replace("127.0.0.1:9809", &free_address());
    let (mut shell, steps) = (Shell::new(name), steps(&page));
    assert!(steps.len() > 10, "{steps:?}");
    for step in steps {
        match step {
            Step::File(name, text) => fs::write(shell.folder.join(name), text).expect("written"),
            Step::Command(command, expected) => {
                let (status, answer) = shell.run(&command);
                assert_eq!(status, 0, "{command}\n{answer}");
                assert!(fits(&expected, &answer), "{command}\nthe page says\n{expected}\nthe answer is\n{answer}");
            }
        }
    }
}

#[test]
fn the_server_does_what_its_tutorial_says() {
    follow("tutorial-server");
}

#[test]
fn a_page_is_read_and_an_answer_compared() {
    let page = "Text\n```toml\n# a.toml\nb = 1\n```\n```console\n$ one\nans ... r\n$ two\n```\n";
    let command = |command: &str, answer: &str| Step::Command(command.into(), answer.into());
    let file = Step::File("a.toml".into(), "# a.toml\nb = 1\n".into());
    assert_eq!(steps(page), [file, command("one", "ans ... r\n"), command("two", "")]);
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
