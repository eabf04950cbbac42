//! Standard output, which may be a closed pipe or one that is not read.

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

/// Longest wait of a server or an agent for a reader of its start message.
const PATIENCE: Duration = Duration::from_millis(500);

/// Prints `text`. A closed pipe, as with `| head`, is no error.
///
/// # Errors
/// When standard output cannot take the text, as on a full disk.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write(&mut io::stdout().lock(), text)
}

/// Prints `text` in a program that continues if it cannot be printed.
pub(crate) fn say(text: &str) {
    let _ = print(text);
}

fn write(out: &mut impl Write, text: &str) -> anyhow::Result<()> {
    unless_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Ignores an error of writing to standard output if a pipe is closed.
///
/// # Errors
/// Any other error.
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
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// An error of a command line that parses but cannot be used: exit status 2, as of one that does not parse.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// An error of a configuration that an agent cannot use: another start would end in the same way.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unusable(pub(crate) String);

/// Exit status after [`Unusable`], for `RestartPreventExitStatus=` of systemd: EX_CONFIG.
pub(crate) const UNUSABLE: u8 = 78;

/// A report that is still to be written. On drop a file that was made for it and is empty is removed.
pub(crate) struct Prepared(Option<PathBuf>);

impl Drop for Prepared {
    fn drop(&mut self) {
        let made = self.0.iter().filter(|path| std::fs::metadata(path).is_ok_and(|found| found.len() == 0));
        made.for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Checks that a report can be written, before minutes of work instead of afterwards. An existing file keeps its content.
///
/// # Errors
/// When the file cannot be written; names it.
pub(crate) fn prepare(path: &Path) -> anyhow::Result<Prepared> {
    let is_new = std::fs::symlink_metadata(path).is_err();
    OpenOptions::new().append(true).create(true).open(path).with_context(|| cannot_write(path))?;
    Ok(Prepared(is_new.then(|| path.to_owned())))
}

/// Error message about a report that cannot be written.
pub(crate) fn cannot_write(path: &Path) -> String {
    format!("cannot write the report {}", path.display())
}

/// Prints a record as JSON, or as the text that `text` makes of it.
///
/// # Errors
/// When the record cannot be serialised, or as of [`print()`].
pub(crate) fn show<T: Serialize>(json: bool, record: &T, text: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    print(&if json { serde_json::to_string_pretty(record)? + "\n" } else { text(record) })
}

/// Prints `text`, which must fit a pipe's buffer, in a program that keeps running. A reader that has stopped does not
/// block the program, and gets the lines when it reads again.
pub(crate) fn announce(text: String) {
    // Not by `io::stdout`, whose lock would be held by a write that never returns.
    let Ok(out) = io::stdout().as_fd().try_clone_to_owned() else { return say(&text) };
    let text = Arc::new(text);
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

/// A progress line on the terminal; nothing if standard error is no terminal.
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

/// A word, quoted for a shell if necessary.
pub(crate) fn quoted(word: String) -> String {
    let is_special = |c: char| c.is_whitespace() || "\"'{}[]*?$;&|<>()`\\#!".contains(c);
    if word.is_empty() || word.contains(is_special) { format!("'{}'", word.replace('\'', "'\\''")) } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that fails every write with this error.
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
        let folder = std::env::temp_dir().join(format!("evenkeel-prepare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (there, away) = (folder.join("r.html"), folder.join("no/r.html"));
        std::fs::write(&there, "old").unwrap();
        drop(prepare(&there).unwrap());
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "old");
        let new = folder.join("new.html");
        drop(prepare(&new).unwrap());
        assert!(!new.exists(), "an empty report is left");
        let error = format!("{:#}", prepare(&away).map(drop).unwrap_err());
        assert!(error.starts_with(&format!("cannot write the report {}: ", away.display())), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
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
