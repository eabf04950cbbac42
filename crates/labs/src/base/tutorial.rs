//! A tutorial, done as it is written: files from its text, commands in one shell, answers compared.
//!
//! The labs play the pages that need a stage; `crates/evenkeel/tests/tutorials.rs`, which includes this file, those that do not.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// How long one tutorial may take, in seconds; a bound for broken runs.
const PATIENCE: &str = "180";
/// Stands for anything in an answer.
const ANYTHING: &str = "...";

/// A step of a tutorial.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// A block of TOML whose first line is `# NAME`: a file of this name.
    File(String, String),
    /// A command of a `console` block, after `$ `, and the lines below it.
    Command(String, String),
}

/// The steps of a page; an error for a file without a name, or an answer without a command.
pub(crate) fn steps(page: &str) -> Result<Vec<Step>> {
    let (mut steps, mut lines) = (Vec::new(), page.lines());
    while let Some(line) = lines.next() {
        let block = lines.by_ref();
        match line {
            "```toml" => {
                let text: Vec<&str> = block.take_while(|line| *line != "```").collect();
                let name = text.first().and_then(|line| line.strip_prefix("# ")).context("a file without a name")?;
                steps.push(Step::File(name.to_owned(), text.join("\n") + "\n"));
            }
            "```console" => {
                for line in block.take_while(|line| *line != "```") {
                    if let Some(command) = line.strip_prefix("$ ") {
                        steps.push(Step::Command(command.to_owned(), String::new()));
                    } else if let Some(Step::Command(_, answer)) = steps.last_mut() {
                        answer.extend([line, "\n"]);
                    } else {
                        bail!("an answer without a command: {line}");
                    }
                }
            }
            _ => {}
        }
    }
    Ok(steps)
}

/// True if `text` is `pattern`, in which [`ANYTHING`] stands for anything. How many blanks there are does not count.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
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

/// True if a line is the word of a shell about a job that a signal ended: `bash: line 7: 4711 Killed  COMMAND`.
fn is_notice(line: &str) -> bool {
    let number = |text: &str| text.parse::<u32>().is_ok();
    let mut words = line.strip_prefix("bash: line ").unwrap_or_default().split_whitespace();
    words.next().and_then(|word| word.strip_suffix(':')).is_some_and(number)
        && words.next().is_some_and(number)
        && words.next().is_some_and(|signal| ["Killed", "Terminated", "Hangup"].contains(&signal))
}

/// A shell that runs one command after the other in a folder of its own, which both end with the value.
struct Shell {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Shell {
    /// Starts it, with the folder of `program` before the others that programs are looked for in; `prepare` has the last word
    /// about how.
    fn new(program: &Path, prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("evenkeel-tutorial-{}-{number}", std::process::id()));
        fs::create_dir(&folder).context("no scratch folder")?;
        let programs = program.parent().context("a program without a folder")?.display().to_string();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("timeout");
        command.args(["-k", "5", PATIENCE, "bash"]).current_dir(&folder).env("PATH", path);
        prepare(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("no shell")?;
        let (commands, answers) = (child.stdin.take().context("not piped")?, child.stdout.take().context("not piped")?);
        let mut shell = Self { child, commands, answers: BufReader::new(answers), folder };
        shell.run("exec 2>&1")?;
        Ok(shell)
    }

    /// Runs a command; its status, and everything that was printed meanwhile, but for the shell's word that a job was ended by a
    /// signal, which comes now or with a later command.
    fn run(&mut self, command: &str) -> Result<(i32, String)> {
        const END: &str = "end of the answer: ";
        // In one piece: a command that ends the shell would end it before the rest is written.
        let lines = format!("{command}\necho \"{END}$?\"\n");
        self.commands.write_all(lines.as_bytes()).context("the shell is gone")?;
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            ensure!(self.answers.read_line(&mut line)? > 0, "{command} ended the shell:\n{answer}");
            match line.trim_end().rsplit_once(END) {
                Some((before, status)) => return Ok((status.parse()?, answer + before)),
                None if is_notice(&line) => {}
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

/// Does what `page` says, with `program` for `evenkeel`, in a shell that `prepare` may do something to before it starts; how many
/// commands that were. The first command that fails, or answers something else than the page says, is the error.
pub(crate) fn follow(page: &str, program: &Path, prepare: impl FnOnce(&mut Command)) -> Result<usize> {
    let (mut shell, mut commands) = (Shell::new(program, prepare)?, 0);
    for step in steps(page)? {
        match step {
            Step::File(name, text) => fs::write(shell.folder.join(name), text)?,
            Step::Command(command, expected) => {
                let (status, answer) = shell.run(&command)?;
                ensure!(status == 0, "{command}\nended with status {status}:\n{answer}");
                ensure!(fits(&expected, &answer), "{command}\nthe page says\n{expected}\nthe answer is\n{answer}");
                commands += 1;
            }
        }
    }
    Ok(commands)
}
