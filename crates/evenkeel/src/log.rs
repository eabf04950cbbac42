//! The log: lines on stderr.
//!
//! In a server or an agent a separate thread writes the lines, because a write does not return while the reader of stderr has
//! stopped reading. Lines for which the queue to that thread has no room are dropped and counted, and so are lines that cannot
//! be written, as to a file on a full disk.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use evenkeel_policy::closest;
use evenkeel_policy::figures::counted;
use evenkeel_web::process::{failed_to_log, lost_a_line};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::output;

/// Upper bound on the lines that wait to be written: some 150 KiB, enough for a reader of stderr that is a little late.
const MAX_WAITING: usize = 1024;
/// Upper bound on the time for which the program waits at its end until the queued lines are written.
const END_PATIENCE: Duration = Duration::from_millis(500);
/// Names of the log levels, for error messages.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Parses the filter of `--log`. A word without `=` must be a level or begin with `evenkeel`, because otherwise a mistyped
/// level would disable the log.
fn parse(filter: &str) -> anyhow::Result<EnvFilter> {
    let bare = filter.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains(['=', '[']));
    let mut unknown = bare.filter(|word| !word.starts_with("evenkeel") && word.parse::<LevelFilter>().is_err());
    if let Some(word) = unknown.next() {
        let cure = match closest(word, &LEVELS) {
            Some(close) => format!("did you mean {close:?}?"),
            None => format!("use {}, or a filter such as evenkeel_server=debug", LEVELS.join(", ")),
        };
        bail!("--log {filter:?}: {word:?} is not a level; {cure}");
    }
    EnvFilter::builder()
        .parse(filter)
        .with_context(|| format!("--log {filter:?} is not a filter; use info, or for example evenkeel_server=debug"))
}

enum Message {
    Line(Vec<u8>),
    /// A request for an answer through the channel as soon as all earlier lines are written.
    End(SyncSender<()>),
}

/// The destination of log lines.
#[derive(Clone)]
pub(crate) struct Log {
    /// The queue to the thread that writes; `None` if the caller's thread writes each line itself.
    writer: Option<SyncSender<Message>>,
    dropped: Arc<AtomicU64>,
}

impl Log {
    /// Logs lines that pass `filter` to stderr from now on. `serves`: true for a server or an agent, whose lines (those of
    /// panics too) a separate thread writes.
    ///
    /// # Errors
    /// When `filter` is invalid, or no thread can be started.
    pub(crate) fn start(filter: &str, serves: bool) -> anyhow::Result<Self> {
        let parsed = parse(filter)?;
        let log = if serves {
            // Not by `io::stderr`, whose lock would be held by a write that never returns.
            let stderr = io::stderr().as_fd().try_clone_to_owned();
            let stderr = stderr.context("cannot write the log to stderr; start the server with stderr open")?;
            let log = Self::by_thread(File::from(stderr))
                .context("cannot start a thread for the log; raise the limit of threads (ulimit -u)")?;
            let panics = log.clone();
            std::panic::set_hook(Box::new(move |panic| {
                let thread = thread::current();
                panics.say(&format!("thread '{}' {panic}", thread.name().unwrap_or("?")));
                let trace = Backtrace::capture();
                if trace.status() == BacktraceStatus::Captured {
                    panics.say(&trace.to_string());
                }
                // The program may end before the thread that writes has its turn.
                panics.finish();
            }));
            log
        } else {
            Self { writer: None, dropped: Arc::default() }
        };
        tracing_subscriber::fmt()
            .with_env_filter(parsed)
            .with_writer(log.clone())
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .init();
        Ok(log)
    }

    fn by_thread(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (writer, messages) = sync_channel(MAX_WAITING);
        let log = Self { writer: Some(writer), dropped: Arc::default() };
        let dropped = Arc::clone(&log.dropped);
        thread::Builder::new().name("evenkeel-log".into()).spawn(move || write(&mut out, &messages, &dropped))?;
        Ok(log)
    }

    /// Logs a line without level and time, whatever the filter is.
    pub(crate) fn say(&self, line: &str) {
        let line = output::shown(line, io::stderr().is_terminal());
        self.take(format!("{line}\n").into_bytes());
    }

    fn take(&self, line: Vec<u8>) {
        match &self.writer {
            Some(writer) => {
                if writer.try_send(Message::Line(line)).is_err() {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                    lost_a_line();
                }
            }
            None => drop(io::stderr().write_all(&line)),
        }
    }

    /// Waits until all lines are written, at most for [`END_PATIENCE`].
    pub(crate) fn finish(&self) {
        let Some(writer) = &self.writer else { return };
        let until = Instant::now() + END_PATIENCE;
        let (done, written) = sync_channel(1);
        while writer.try_send(Message::End(done.clone())).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Writes the lines of all messages to `out`, and the number of missing lines where some are missing. Ends with the channel.
fn write(out: &mut impl Write, messages: &Receiver<Message>, dropped: &AtomicU64) {
    // True while the newest line, or the note about missing ones, could not be written.
    let mut fails = false;
    for message in messages {
        match message {
            Message::Line(line) => {
                // A part of the line that failed may be there, so that the note comes before the next one.
                let noted = if fails { note(out, dropped, true) } else { Ok(()) };
                let written = noted.and_then(|()| out.write_all(&line));
                fails = written.is_err();
                if let Err(error) = written {
                    dropped.fetch_add(1, Ordering::Relaxed);
                    failed_to_log(&error);
                }
            }
            Message::End(done) => drop(done.send(())),
        }
        if !fails {
            fails = note(out, dropped, false).is_err();
        }
    }
}

/// Writes the number of missing lines, if lines are missing. `fails`: true if one of them could not be written.
///
/// # Errors
/// Those of `out`; the lines still count as missing.
fn note(out: &mut impl Write, dropped: &AtomicU64, fails: bool) -> io::Result<()> {
    let count = dropped.swap(0, Ordering::Relaxed);
    if count == 0 {
        return Ok(());
    }
    let (gap, why) = if fails { ("\n", "stderr could not be written") } else { ("", "stderr is read too slowly") };
    let note = format!("{gap}the log lacks {} here: {why}\n", counted(count, "line"));
    out.write_all(note.as_bytes()).inspect_err(|_| {
        dropped.fetch_add(count, Ordering::Relaxed);
    })
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Lines<'a>;

    fn make_writer(&'a self) -> Lines<'a> {
        Lines(self)
    }
}

/// A writer that queues the bytes of each call of `write` as one log line.
pub(crate) struct Lines<'a>(&'a Log);

impl Write for Lines<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.take(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A stream whose reader reads one line for each message through `turns`, and all lines when `turns` has ended.
    struct Slow {
        turns: Receiver<()>,
        read: Arc<Mutex<String>>,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // After the last turn it takes everything.
            let _ = self.turns.recv();
            self.read.lock().unwrap().push_str(std::str::from_utf8(line).unwrap());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Log, Sender<()>, Arc<Mutex<String>>) {
        let (turn, turns) = channel();
        let read = Arc::<Mutex<String>>::default();
        let log = Log::by_thread(Slow { turns, read: Arc::clone(&read) }).unwrap();
        (log, turn, read)
    }

    #[test]
    fn a_reader_that_stops_blocks_no_writer_and_learns_how_much_it_has_missed() {
        let (log, turn, read) = slow();
        // One line may be in the writer's hands.
        let lines = 3 * MAX_WAITING;
        (0..lines).for_each(|n| log.say(&format!("line {n}")));
        log.finish();
        assert_eq!(*read.lock().unwrap(), "");
        let dropped = log.dropped.load(Ordering::Relaxed);
        assert!((lines - MAX_WAITING - 1..=lines - MAX_WAITING).contains(&(dropped as usize)), "{dropped}");
        drop(turn);
        log.finish();
        let read = read.lock().unwrap();
        let said = format!("the log lacks {dropped} lines here");
        assert!(read.starts_with("line 0\n") && read.contains(&said), "{said}: {read}");
        assert_eq!(read.lines().count(), lines - dropped as usize + 1);
    }

    /// A stream that takes two bytes, and no more while it is full.
    struct Full {
        is_full: Arc<Mutex<bool>>,
        has_part: bool,
        read: Arc<Mutex<String>>,
    }

    impl Write for Full {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let is_full = *self.is_full.lock().unwrap();
            if is_full && std::mem::replace(&mut self.has_part, true) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = if is_full { 2 } else { line.len() };
            self.read.lock().unwrap().push_str(std::str::from_utf8(&line[..taken]).unwrap());
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_said_when_they_can_be_again() {
        let (is_full, read) = (Arc::new(Mutex::new(true)), Arc::<Mutex<String>>::default());
        let full = Full { is_full: Arc::clone(&is_full), has_part: false, read: Arc::clone(&read) };
        let log = Log::by_thread(full).unwrap();
        (0..3).for_each(|n| log.say(&format!("line {n}")));
        log.finish();
        assert_eq!((read.lock().unwrap().as_str(), log.dropped.load(Ordering::Relaxed)), ("li", 3));
        *is_full.lock().unwrap() = false;
        log.say("line 3");
        log.finish();
        let said = "li\nthe log lacks 3 lines here: stderr could not be written\nline 3\n";
        assert_eq!(read.lock().unwrap().as_str(), said);
        assert_eq!(log.dropped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_mistyped_level_is_refused_instead_of_silencing_everything() {
        let error = parse("wran").unwrap_err().to_string();
        assert_eq!(error, "--log \"wran\": \"wran\" is not a level; did you mean \"warn\"?");
        assert!(parse("evenkeel_server=debug,nonsense").unwrap_err().to_string().contains("evenkeel_server=debug"));
        for filter in ["warn", "WARN", "off", "evenkeel_server", "info,evenkeel_web=trace", "h2=warn", ""] {
            parse(filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
        }
    }

    #[test]
    fn the_end_waits_for_what_is_not_written_yet() {
        let (log, turn, read) = slow();
        drop(turn);
        (0..100).for_each(|n| log.say(&format!("line {n}")));
        log.finish();
        assert_eq!(read.lock().unwrap().lines().count(), 100);
    }
}
