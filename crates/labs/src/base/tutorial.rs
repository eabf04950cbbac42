//! Runs a tutorial page as it is written: makes its files, types its commands, and compares the answers with the page.
//!
//! The labs run pages that need a stage (virtual machine, cluster); `crates/evenkeel/tests/tutorials.rs`, which includes this
//! file, runs the other pages. `console` blocks of a page may have words after their name, which no reader sees:
//!
//! - `repeat`: the command is repeated until its answer fits; the page's text before it says to wait
//! - `terminal`: the command keeps running in a terminal of its own, until a `^C` in a later block of this kind
//! - `about`: numbers in answers may differ from the page's, which are those of one run; digits of names (`vg1`, `osd.0`,
//!   addresses) may not. This is the last word, but phrases with exact numbers may follow: `about except 0 errors, target 20 ms`

use std::env;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Longest life of a shell or terminal, in seconds; only faulty runs reach this limit.
const PATIENCE: &str = "180";
/// Longest wait for an answer that fits the page.
const WAIT: Duration = Duration::from_secs(60);
/// Interval at which a command is repeated or its answer is read again.
const PAUSE: Duration = Duration::from_millis(100);
/// Stands for any text in an answer.
const ANYTHING: &str = "...";
/// Stands for Ctrl-C, which interrupts the program in the terminal.
const INTERRUPT: &str = "^C";

/// True if the answers of the run are to replace those of the page.
pub(crate) fn is_to_be_written() -> bool {
    env::var_os("EVENKEEL_WRITE").is_some_and(|value| value == "1")
}

/// Options of a block: how its commands are run, and their answers compared.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct How {
    pub(crate) repeat: bool,
    pub(crate) terminal: bool,
    /// `Some`: numbers in answers may differ from the page's, except in these phrases. `None`: all numbers are exact.
    pub(crate) about: Option<Vec<String>>,
}

/// A step of a page.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// A block of TOML whose first line is `# NAME`: name and content of a file.
    File(String, String),
    /// A command of a `console` block, the block's options, and the lines of the page that show the command's answer.
    Command(String, How, Range<usize>),
}

/// The steps of a page, given as its text. A file without a name, an answer without a command, or an unknown kind of block is
/// an error.
pub(crate) fn steps(page: &str) -> Result<Vec<Step>> {
    let (mut steps, mut lines) = (Vec::new(), page.lines().enumerate());
    while let Some((_, line)) = lines.next() {
        let block = lines.by_ref().take_while(|(_, line)| *line != "```");
        if line == "```toml" {
            let text: Vec<&str> = block.map(|(_, line)| line).collect();
            let name = text.first().and_then(|line| line.strip_prefix("# ")).context("a file without a name")?;
            steps.push(Step::File(name.to_owned(), text.join("\n") + "\n"));
        } else if let Some(words) = line.strip_prefix("```console") {
            let how = how(words)?;
            let first = steps.len();
            for (number, line) in block {
                let command = line.strip_prefix("$ ").or_else(|| (how.terminal && line == INTERRUPT).then_some(line));
                if let Some(command) = command {
                    steps.push(Step::Command(command.to_owned(), how.clone(), number + 1..number + 1));
                } else if let Some(Step::Command(.., answer)) = steps.get_mut(first..).and_then(<[Step]>::last_mut) {
                    answer.end = number + 1;
                } else {
                    bail!("an answer without a command: {line}");
                }
            }
        }
    }
    Ok(steps)
}

fn how(words: &str) -> Result<How> {
    let mut how = How::default();
    let (words, phrases) = match words.split_once(" about") {
        Some((words, phrases)) => (words, Some(phrases)),
        None => (words, None),
    };
    if let Some(phrases) = phrases {
        let phrases = match phrases.strip_prefix(" except ") {
            Some(phrases) => phrases.split(", ").map(str::to_owned).collect(),
            None if phrases.trim().is_empty() => Vec::new(),
            None => bail!("about{phrases}: phrases are after `except`"),
        };
        how.about = Some(phrases);
    }
    for word in words.split_whitespace() {
        match word {
            "repeat" => how.repeat = true,
            "terminal" => how.terminal = true,
            _ => bail!("an unknown kind of console: {word}"),
        }
    }
    Ok(how)
}

/// True if `text` fits `pattern`, in which [`ANYTHING`] stands for any text. With `about`, each number of the pattern that is
/// outside of the phrases of `about` stands for any number. Any sequence of blanks counts as one blank.
pub(crate) fn fits(pattern: &str, text: &str, about: Option<&[String]>) -> bool {
    filled(pattern, text, about).is_some()
}

/// `text` with [`ANYTHING`] in the places where `pattern` has it; `None` if the text does not fit the pattern.
fn filled(pattern: &str, text: &str, about: Option<&[String]>) -> Option<String> {
    let raw: Vec<&str> = pattern.split(ANYTHING).collect();
    let segments: Vec<Vec<Part>> = raw.iter().map(|segment| parts(&words(segment), about)).collect();
    let text_words = words(text);
    let (mut at, mut filled) = (0, String::new());
    for (number, (raw, segment)) in raw.iter().zip(&segments).enumerate() {
        let (is_first, is_last) = (number == 0, number + 1 == segments.len());
        let fits = |from: usize| {
            let end = end_of(segment, &text_words, from)?;
            (!is_last || end == text_words.len()).then_some((from, end))
        };
        let (from, end) = if is_first {
            fits(0)
        } else {
            (at..=text_words.len()).filter(|at| text_words.is_char_boundary(*at)).find_map(fits)
        }?;
        if !is_first {
            filled += ANYTHING;
        }
        let inner = raw.trim();
        let (before, after) = raw.split_once(inner).filter(|_| !inner.is_empty()).unwrap_or((raw, ""));
        filled += &[before, spaced(text, from, end), after].concat();
        at = end;
    }
    Some(filled)
}

/// A part of a pattern that must be found in the text.
#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    /// This number; `None`: any number.
    Number(Option<String>),
}

/// The words of a text, separated by single blanks.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The parts of a piece of a pattern that contains no [`ANYTHING`].
fn parts(pattern: &str, about: Option<&[String]>) -> Vec<Part> {
    let Some(phrases) = about else { return vec![Part::Text(pattern.to_owned())] };
    let exact: Vec<Range<usize>> = phrases
        .iter()
        .flat_map(|phrase| pattern.match_indices(phrase.as_str()).map(|(at, found)| at..at + found.len()))
        .collect();
    let (mut parts, mut at, mut text) = (Vec::new(), 0, String::new());
    while let Some(next) = pattern[at..].chars().next() {
        let number = number(&pattern[at..]);
        let before = &pattern[..at];
        let is_of_a_name = before.ends_with(|c: char| c.is_alphabetic() || c == '_')
            || before.strip_suffix(['.', '-', ':']).is_some_and(|name| name.ends_with(char::is_alphanumeric))
            || number.matches('.').count() > 1;
        if number.is_empty() || is_of_a_name {
            let taken = if number.is_empty() { next.len_utf8() } else { number.len() };
            text += &pattern[at..at + taken];
            at += taken;
        } else {
            let is_exact = exact.iter().any(|phrase| phrase.contains(&at));
            parts.extend([Part::Text(std::mem::take(&mut text)), Part::Number(is_exact.then(|| number.to_owned()))]);
            at += number.len();
        }
    }
    parts.push(Part::Text(text));
    parts
}

/// The number at the start of the text, with fraction and thousands separators; an address counts as a number, too.
fn number(text: &str) -> &str {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = digits(text);
    while end > 0 {
        end += match text.as_bytes()[end..].first() {
            Some(b'.') if digits(&text[end + 1..]) > 0 => 1 + digits(&text[end + 1..]),
            Some(b',') if digits(&text[end + 1..]) == 3 => 4,
            _ => break,
        };
    }
    &text[..end]
}

/// The end of the text that `parts` match when they begin at `from`; `None` if they do not match there.
fn end_of(parts: &[Part], text: &str, from: usize) -> Option<usize> {
    let mut at = from;
    for part in parts {
        at += match part {
            Part::Text(part) => text[at..].strip_prefix(part.as_str()).map(|_| part.len())?,
            Part::Number(exact) => {
                let is_inside = text[..at].ends_with(|c: char| c.is_ascii_digit());
                let number = number(&text[at..]);
                let is_it = exact.as_ref().is_none_or(|exact| exact == number);
                (!is_inside && !number.is_empty() && is_it).then_some(number.len())?
            }
        };
    }
    Some(at)
}

/// The piece of `text` that corresponds to the range `from..end` of its [`words`], with the text's own blanks.
fn spaced(text: &str, from: usize, end: usize) -> &str {
    // Where each byte of the words comes from.
    let mut places = Vec::new();
    for word in text.split_whitespace() {
        let at = word.as_ptr().addr() - text.as_ptr().addr();
        if !places.is_empty() {
            places.push(at - 1);
        }
        places.extend(at..at + word.len());
    }
    if from == end { "" } else { &text[places[from]..=places[end - 1]] }
}

/// The page with its answers replaced by `seen`, the answers of a run in the order of the page's commands. An answer that
/// fits stays as in the page, except for numbers in blocks with `about`.
pub(crate) fn rewritten(page: &str, seen: &[String]) -> Result<String> {
    let lines: Vec<&str> = page.lines().collect();
    let (mut written, mut at, mut seen) = (Vec::new(), 0, seen.iter());
    for step in steps(page)? {
        let Step::Command(_, how, answer) = step else { continue };
        let text = seen.next().context("fewer answers than commands")?;
        let filled = filled(&lines[answer.clone()].join("\n"), text, how.about.as_deref());
        if how.about.is_some() || filled.is_none() {
            written.extend(lines[at..answer.start].iter().map(|&line| line.to_owned()));
            written.extend(filled.unwrap_or_else(|| text.clone()).lines().map(|line| line.trim_end().to_owned()));
            at = answer.end;
        }
    }
    written.extend(lines[at..].iter().map(|&line| line.to_owned()));
    Ok(written.join("\n") + "\n")
}

/// The environment in which a page's steps are done.
pub(crate) struct Stage<'a> {
    /// Path of the program `evenkeel`.
    pub(crate) program: &'a str,
    /// Replacements, each a text of the page and the text that files and commands get in its place. In answers the
    /// replacement is undone.
    pub(crate) instead: &'a [(&'a str, &'a str)],
    /// Function that is called with each command before the command starts.
    pub(crate) prepare: fn(&mut Command),
}

impl Stage<'_> {
    fn here(&self, text: &str) -> String {
        self.instead.iter().fold(text.to_owned(), |text, (page, here)| text.replace(page, here))
    }

    fn as_the_page_says(&self, text: &str) -> String {
        self.instead.iter().rev().fold(text.to_owned(), |text, (page, here)| text.replace(here, page))
    }
}

/// Does the steps of `page`. Returns the number of the page's commands and, if answers [are to be
/// written](is_to_be_written), the page with the answers of this run. If they are not, the first answer that does not fit is
/// an error. A command that fails is always an error.
pub(crate) fn play(page: &str, stage: &Stage) -> Result<(usize, Option<String>)> {
    let write = is_to_be_written();
    let seen = follow(page, stage, !write)?;
    Ok((seen.len(), write.then(|| rewritten(page, &seen)).transpose()?))
}

/// Does the steps of `page` in a new folder. Returns the answers of the page's commands. `strict`: an answer that does not fit
/// the page is an error.
pub(crate) fn follow(page: &str, stage: &Stage, strict: bool) -> Result<Vec<String>> {
    let lines: Vec<&str> = page.lines().collect();
    let (desk, mut seen) = (Desk::new()?, Vec::new());
    let mut shell = Shell::new(&desk, stage)?;
    let mut terminal: Option<Terminal> = None;
    for step in steps(page)? {
        let (command, how, answer) = match step {
            Step::File(name, text) => {
                fs::write(desk.folder().join(name), stage.here(&text))?;
                continue;
            }
            Step::Command(command, how, answer) => (command, how, answer),
        };
        let expected = lines[answer].join("\n");
        let typed = stage.here(&command);
        let deadline = Instant::now() + WAIT;
        if how.terminal && command != INTERRUPT {
            ensure!(terminal.is_none(), "{command}\nanother program goes on in the terminal");
            terminal = Some(Terminal::new(&desk, stage, &typed)?);
        }
        let answer = loop {
            let mut failed = 0;
            let text = match terminal.as_mut().filter(|_| how.terminal) {
                None if how.terminal => bail!("{command} without a program in the terminal"),
                Some(_) if command == INTERRUPT => terminal.take().context("a terminal")?.interrupt()?,
                Some(terminal) => terminal.shown()?,
                None => {
                    let (status, text) = shell.run(&typed)?;
                    failed = status;
                    text
                }
            };
            let text = stage.as_the_page_says(&text);
            let waits = (how.repeat || how.terminal && command != INTERRUPT) && Instant::now() < deadline;
            if !waits || failed == 0 && fits(&expected, &text, how.about.as_deref()) {
                ensure!(failed == 0, "{command}\nended with status {failed}:\n{text}");
                break text;
            }
            thread::sleep(PAUSE);
        };
        ensure!(
            !strict || fits(&expected, &answer, how.about.as_deref()),
            "{command}\nthe page says\n{expected}\nthe answer is\n{answer}"
        );
        seen.push(answer);
    }
    Ok(seen)
}

/// The folder in which a page's steps are done, empty at first, and beside it a file for the terminal's output. Both are
/// removed on drop.
struct Desk(PathBuf);

impl Desk {
    fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let desk = Self(env::temp_dir().join(format!("evenkeel-tutorial-{}-{number}", std::process::id())));
        fs::create_dir(&desk.0).context("no scratch folder")?;
        fs::create_dir(desk.folder())?;
        Ok(desk)
    }

    fn folder(&self) -> PathBuf {
        self.0.join("folder")
    }

    /// A `timeout` command with these arguments, to be run in the folder. In its `PATH` the stage's `evenkeel` comes before
    /// other programs of this name.
    fn command(&self, stage: &Stage, arguments: &[&str]) -> Result<Command> {
        let programs = Path::new(stage.program).parent().context("a program without a folder")?.display().to_string();
        let path = format!("{programs}:{}", env::var("PATH").unwrap_or_default());
        let mut command = Command::new("timeout");
        command.args(arguments).current_dir(self.folder()).env("PATH", path);
        (stage.prepare)(&mut command);
        Ok(command)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A shell that runs one command after another.
struct Shell {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Shell {
    fn new(desk: &Desk, stage: &Stage) -> Result<Self> {
        let mut command = desk.command(stage, &["-k", "5", PATIENCE, "bash"])?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("no shell")?;
        let (commands, answers) = (child.stdin.take().context("not piped")?, child.stdout.take().context("not piped")?);
        let mut shell = Self { child, commands, answers: BufReader::new(answers) };
        shell.run("exec 2>&1")?;
        Ok(shell)
    }

    /// Runs a command to its end. Returns the command's exit status, and its output.
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
                None => answer += &line,
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        end(&mut self.child, Signal::TERM);
    }
}

/// A terminal in which one program keeps running.
struct Terminal {
    child: Child,
    shown: PathBuf,
}

impl Terminal {
    fn new(desk: &Desk, stage: &Stage, command: &str) -> Result<Self> {
        let shown = desk.0.join("terminal");
        let output = File::create(&shown)?;
        // In the foreground it passes a signal on once.
        let line = format!("exec {command}");
        let mut command = desk.command(stage, &["--foreground", "-k", PATIENCE, PATIENCE, "bash", "-c", &line])?;
        command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        Ok(Self { child: command.spawn().context("no terminal")?, shown })
    }

    /// The program's output so far. It is an error if the program has ended.
    fn shown(&mut self) -> Result<String> {
        let status = self.child.try_wait()?;
        let text = fs::read_to_string(&self.shown)?;
        ensure!(status.is_none(), "the program in the terminal has ended:\n{text}");
        Ok(text)
    }

    /// Sends Ctrl-C and waits for the program's successful end. Returns the program's output since the Ctrl-C.
    fn interrupt(mut self) -> Result<String> {
        let before = self.shown()?.len();
        let status = end(&mut self.child, Signal::INT).context("the program in the terminal cannot be ended")?;
        let text = fs::read_to_string(&self.shown)?;
        ensure!(status.success(), "the program in the terminal ended with {status}:\n{text}");
        Ok(text.get(before..).unwrap_or_default().to_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        end(&mut self.child, Signal::TERM);
    }
}

/// Ends a program that runs under `timeout` by a signal, which `timeout` passes on to all its processes.
fn end(child: &mut Child, signal: Signal) -> Option<std::process::ExitStatus> {
    // A number may be another process's once it has been waited for.
    if let Ok(Some(status)) = child.try_wait() {
        return Some(status);
    }
    let _ = kill_process(Pid::from_child(child), signal);
    child.wait().ok()
}
