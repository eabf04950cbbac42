//! Standard output that may be a closed pipe, or one without a reader.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// How long a server or an agent waits for a reader of what it says at its start.
const PATIENCE: Duration = Duration::from_millis(500);

/// Prints `text`. A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// When standard output cannot take it, for example on a full disk.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write(&mut io::stdout().lock(), text)
}

/// Prints `text` from a program that goes on whether or not it can be read.
pub(crate) fn say(text: &str) {
    let _ = print(text);
}

fn write(out: &mut impl Write, text: &str) -> anyhow::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints a record as JSON, or the `text` that is made of it.
///
/// # Errors
/// When the record cannot be written as JSON, or as of [`print()`].
pub(crate) fn show<T: Serialize>(json: bool, record: &T, text: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    print(&if json { serde_json::to_string_pretty(record)? + "\n" } else { text(record) })
}

/// Prints `text`, which fits a pipe, from a program that lasts: a reader that has stopped does not keep it from going on.
/// The lines then come when the reader does.
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

/// A line on the terminal that shows how far some work is; nothing where standard error is none.
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

/// The command line that repeats what is shown, with the name of the program instead of its path.
pub(crate) fn command() -> String {
    let quoted =
        |argument: String| match argument.contains(|c: char| c.is_whitespace() || "\"'{}[]*?$;&|<>()".contains(c)) {
            true => format!("'{}'", argument.replace('\'', "'\\''")),
            false => argument,
        };
    let arguments = std::env::args_os().skip(1).map(|argument| quoted(argument.to_string_lossy().into_owned()));
    format!("evenkeel {}", arguments.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses every write with this error.
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
}
