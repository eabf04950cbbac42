//! Writing to standard output, which may be a closed pipe or a pipe whose reader has stopped; errors with their exit statuses;
//! reports as files.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Upper bound on the time for which a server or an agent waits until its start message is written.
const PATIENCE: Duration = Duration::from_millis(500);

/// Prints `text`. A closed pipe, as with `| head`, is no error.
///
/// # Errors
/// When standard output cannot take the text, as on a full disk.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let text = shown(text, out.is_terminal());
    write(&mut out, &text)
}

/// Prints `text`. Returns false if standard output is a closed pipe, so that nothing more need be printed.
///
/// # Errors
/// As of [`print()`].
pub(crate) fn print_to_reader(text: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    let text = shown(text, out.is_terminal());
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => unless_closed(written).map(|()| true),
    }
}

/// Prints `text` to standard output; a failure is ignored.
pub(crate) fn say(text: &str) {
    let _ = print(text);
}

fn write(out: &mut impl Write, text: &str) -> anyhow::Result<()> {
    unless_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Ignores the error of a write to standard output if its cause is a closed pipe.
///
/// # Errors
/// Any other error of the write.
pub(crate) fn unless_closed(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes `text` to standard error. A failure is ignored, as there is no place to report it.
pub(crate) fn complain(text: &str) {
    let mut out = io::stderr().lock();
    let text = shown(text, out.is_terminal());
    let _ = out.write_all(text.as_bytes());
}

/// True for a character by which a text could drive a terminal, or change the order in which the terminal shows other text: a
/// control character, or one of those for text from right to left.
fn is_steering(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` as it is written. A terminal gets no control characters but those of lines and columns: names, paths and messages of
/// other servers are part of many texts, and could drive the terminal.
pub(crate) fn shown(text: &str, is_terminal: bool) -> Cow<'_, str> {
    let drives = |character: char| is_steering(character) && !matches!(character, '\n' | '\t');
    if is_terminal && text.contains(drives) { text.replace(drives, "?").into() } else { text.into() }
}

/// The error of a command line that parses but cannot be used. The exit status is 2, as after a command line that does not parse.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// The error of a configuration that the agent cannot use, so that a restart of the agent would end in the same way. The exit
/// status is [`UNUSABLE`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unusable(pub(crate) String);

/// Exit status after [`Unusable`]: `EX_CONFIG`, which the unit file names in `RestartPreventExitStatus=`.
pub(crate) const UNUSABLE: u8 = 78;

/// The file of a report, checked before the work by [`prepare`]. On drop the file is removed if `prepare` made it and it is
/// still empty.
pub(crate) struct Prepared(Option<PathBuf>);

impl Drop for Prepared {
    fn drop(&mut self) {
        let made = self.0.iter().filter(|path| std::fs::metadata(path).is_ok_and(|found| found.len() == 0));
        made.for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Checks that a report can be written to `path`, so that the user learns of an error before minutes of work. Makes an empty file
/// if there is none; an existing file keeps its content.
///
/// # Errors
/// When the file cannot be written; the message names the file.
pub(crate) fn prepare(path: &Path) -> anyhow::Result<Prepared> {
    let is_new = std::fs::symlink_metadata(path).is_err();
    OpenOptions::new().append(true).create(true).open(path).with_context(|| cannot_write(path))?;
    Ok(Prepared(is_new.then(|| path.to_owned())))
}

/// Error message about a report that cannot be written to `path`.
pub(crate) fn cannot_write(path: &Path) -> String {
    format!("cannot write the report {}", path.display())
}

/// Prints a record as JSON if `json` is true, else as the text that `text` makes of the record.
///
/// # Errors
/// When the record cannot be serialised, or as of [`print()`].
pub(crate) fn show<T: Serialize>(json: bool, record: &T, text: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    print(&if json { serde_json::to_string_pretty(record)? + "\n" } else { text(record) })
}

/// Prints the start message of a server or an agent; it must fit a pipe's buffer. A reader of standard output that has stopped
/// delays the program by at most [`PATIENCE`], and gets the message when it reads again.
pub(crate) fn announce(text: String) {
    // Not by `io::stdout`, whose lock would be held by a write that never returns.
    let Ok(out) = io::stdout().as_fd().try_clone_to_owned() else { return say(&text) };
    let text = Arc::new(shown(&text, io::stdout().is_terminal()).into_owned());
    let (done, written) = channel();
    let write = {
        let text = Arc::clone(&text);
        move || {
            let _ = File::from(out).write_all(text.as_bytes());
            let _ = done.send(());
        }
    };
    match thread::Builder::new().name("evenkeel-out".into()).spawn(write) {
        Ok(_) => drop(written.recv_timeout(PATIENCE)),
        Err(_) => say(&text),
    }
}

/// `text`, which came from elsewhere, without the characters by which it could drive a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.replace(is_steering, "?")
}

/// A progress line on standard error, in the form `template`; nothing is drawn if standard error is no terminal.
pub(crate) fn spinner(template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// The command line of this run, with the program's name instead of its path.
pub(crate) fn command() -> String {
    let arguments = std::env::args_os().skip(1).map(|argument| quoted(argument.to_string_lossy().into_owned()));
    format!("evenkeel {}", arguments.collect::<Vec<_>>().join(" "))
}

/// `word`, in quotes if a shell would otherwise change or divide it.
pub(crate) fn quoted(word: String) -> String {
    let is_special = |c: char| c.is_whitespace() || "\"'{}[]*?$;&|<>()`\\#!".contains(c);
    if word.is_empty() || word.contains(is_special) { format!("'{}'", word.replace('\'', "'\\''")) } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer whose every write fails with an error of the kind in the field.
    struct Refusing(io::ErrorKind);

    impl Write for Refusing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_an_error_and_a_reader_that_has_seen_enough_is_none() {
        let full = write(&mut Refusing(io::ErrorKind::StorageFull), "text").unwrap_err();
        assert!(format!("{full:#}").starts_with("cannot write to standard output: "), "{full:#}");
        write(&mut Refusing(io::ErrorKind::BrokenPipe), "text").unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_known_before_the_work_and_keeps_its_content() {
        let folder = crate::folder::Folder::new();
        let (there, away) = (folder.file("r.html", "old"), folder.join("no/r.html"));
        drop(prepare(&there).unwrap());
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "old");
        let new = folder.join("new.html");
        drop(prepare(&new).unwrap());
        assert!(!new.exists(), "an empty report is left");
        let error = format!("{:#}", prepare(&away).map(drop).unwrap_err());
        assert!(error.starts_with(&format!("cannot write the report {}: ", away.display())), "{error}");
    }

    #[test]
    fn control_characters_are_not_printed() {
        assert_eq!(printable("a\u{1b}[2J\nb\u{9b}\u{7f}ö"), "a?[2J?b??ö");
    }

    #[test]
    fn a_terminal_is_not_driven_by_text_and_a_file_gets_all_of_it() {
        let text = "volume \u{1b}]0;x\u{7}\u{9b}2J\r\n\tö";
        assert_eq!(shown(text, true), "volume ?]0;x??2J?\n\tö");
        assert_eq!(shown(text, false), text);
        // A name cannot make the words behind it read from right to left.
        assert_eq!(shown("iqn.a\u{202e}b\u{2066}c ö", true), "iqn.a?b?c ö");
        assert_eq!(printable("a\u{200f}b\u{61c}"), "a?b?");
    }

    #[test]
    fn a_word_that_a_shell_would_take_apart_is_quoted() {
        for (word, expected) in [
            ("/run/nbd.sock", "/run/nbd.sock"),
            ("/a b", "'/a b'"),
            ("it's", "'it'\\''s'"),
            ("`x`", "'`x`'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word.to_owned()), expected);
        }
    }
}
