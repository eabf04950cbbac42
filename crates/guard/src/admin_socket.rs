//! The admin socket of a Ceph daemon: one question and one answer on each connection.
//!
//! A question is a JSON object with the command in `prefix`, ended by a zero byte. The answer is its length, four bytes, most
//! significant first, and so many bytes: JSON, or a text that begins with `ERROR: (`. What is pure stands first, what opens
//! sockets at the end.

use std::borrow::Cow;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use serde_json::{Map, Value};

/// More than any answer that is asked for here: all counters of an OSD are 20 KB, its configuration 100 KB.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Bytes before an answer that hold its length.
const LENGTH_BYTES: usize = 4;
/// Room for what is read at once: all of an answer to a sample's questions.
const PART_BYTES: usize = 16 << 10;
/// How long is waited for the end of an answer before what has come of it is taken out: an answer that is longer than what the
/// system holds, some 200 KB, would never end otherwise.
const DRAIN_EVERY: Duration = Duration::from_millis(20);
/// The beginning of an answer that is a refusal.
const REFUSAL: &str = "ERROR: (";

/// Why a daemon gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process listens there.
    #[error("no process listens on {}: the OSD is down, or its admin socket is elsewhere", .path.display())]
    Absent {
        /// The socket.
        path: PathBuf,
    },
    /// The answer did not come in time.
    #[error("{} gave no answer within {limit:?}: the OSD is busy or hangs", .path.display())]
    Late {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// The daemon does not do it.
    #[error("{} refused {command:?}: {answer}", .path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The command.
        command: String,
        /// In its words.
        answer: String,
    },
    /// The answer is none of a Ceph daemon.
    #[error("{}: {problem}; is this the admin socket of a Ceph daemon of version 16 to 19?", .path.display())]
    Odd {
        /// The socket.
        path: PathBuf,
        /// The fault.
        problem: Malformed,
    },
    /// Anything else that the system says.
    #[error("cannot use {}: {cause}{}", .path.display(), cure(.cause))]
    Io {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// The cure.
fn cure(cause: &io::Error) -> &'static str {
    if cause.kind() == io::ErrorKind::PermissionDenied { "; run as root or as the user ceph" } else { "" }
}

impl Error {
    /// True if no process listens: the daemon is gone, and what was set in it as well.
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }
}

/// An answer that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends before it is complete.
    #[error("the answer ends after {got} of {wanted} bytes")]
    Short {
        /// Bytes that came, length included.
        got: usize,
        /// Bytes that should have come.
        wanted: usize,
    },
    /// It is longer than any that is asked for.
    #[error("the daemon announces an answer of {0} bytes, longer than any it gives: is the socket a Ceph daemon's?")]
    Long(usize),
    /// It is not JSON.
    #[error("the answer is not JSON: {0}")]
    Json(String),
    /// Something is not in it, or is of another kind.
    #[error("the answer has no {0}")]
    Lacks(String),
}

/// The message to send: a command with its arguments.
pub fn question(prefix: &str, arguments: &[(&str, Value)]) -> Vec<u8> {
    let mut object = Map::new();
    object.insert("prefix".into(), prefix.into());
    object.insert("format".into(), "json".into());
    object.extend(arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    let mut bytes = Value::Object(object).to_string().into_bytes();
    bytes.push(0);
    bytes
}

/// How long an answer is, its length included, as soon as that is known.
///
/// # Errors
/// [`Malformed::Long`].
pub fn wanted(received: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(length) = received.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_ANSWER_BYTES { Err(Malformed::Long(length)) } else { Ok(Some(LENGTH_BYTES + length)) }
}

/// A complete answer as text.
///
/// # Errors
/// [`Malformed::Short`] if the daemon said no more, [`Malformed::Long`].
pub fn text(received: &[u8]) -> Result<Cow<'_, str>, Malformed> {
    let wanted = wanted(received)?.unwrap_or(LENGTH_BYTES);
    match received.get(LENGTH_BYTES..wanted) {
        // The quicker check first.
        Some(body) => Ok(str::from_utf8(body).map_or_else(|_| String::from_utf8_lossy(body), Cow::Borrowed)),
        None => Err(Malformed::Short { got: received.len(), wanted }),
    }
}

/// Why the daemon does not do what it was asked for, in its words, if that is what it says.
pub fn refusal(text: &str) -> Option<String> {
    text.starts_with(REFUSAL).then(|| text.trim_end().replace('\n', ": "))
}

/// An answer that is no refusal. Commands that have nothing to say answer with nothing, which is `null` here.
///
/// # Errors
/// [`Malformed::Json`].
pub fn json(text: &str) -> Result<Value, Malformed> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(text).map_err(|error| Malformed::Json(error.to_string()))
}

/// The value of an option in an answer to `config get`.
///
/// # Errors
/// [`Malformed::Lacks`].
pub fn option_value<'a>(answer: &'a Value, option: &str) -> Result<&'a str, Malformed> {
    answer.get(option).and_then(Value::as_str).ok_or_else(|| Malformed::Lacks(option.to_owned()))
}

/// The value that was set for an option in the running daemon, in an answer to `config diff`; `None` if none was. (Ceph 16
/// answers `config diff get` with all options as well.)
///
/// # Errors
/// [`Malformed::Lacks`].
pub fn override_of(answer: &Value, option: &str) -> Result<Option<String>, Malformed> {
    let diff = answer.get("diff").and_then(Value::as_object).ok_or_else(|| Malformed::Lacks("diff".into()))?;
    let Some(value) = diff.get(option).and_then(|levels| levels.get("override")) else { return Ok(None) };
    match value {
        Value::String(text) => Ok(Some(text.clone())),
        Value::Number(number) => Ok(Some(number.to_string())),
        _ => Err(Malformed::Lacks(format!("text or number as the override of {option}"))),
    }
}

/// The admin socket of one daemon.
#[derive(Clone, Debug)]
pub struct AdminSocket {
    path: PathBuf,
    limit: Duration,
}

impl AdminSocket {
    /// The socket at `path`; each answer has to come within `limit`.
    pub fn new(path: impl Into<PathBuf>, limit: Duration) -> Self {
        Self { path: path.into(), limit }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks, and waits for the answer. The result also has the process that listens, 0 if it is in a process namespace
    /// that is not ours.
    ///
    /// # Errors
    /// See [`Error`]; after [`Error::Late`] it is not known whether the command was carried out.
    pub fn ask(&self, prefix: &str, arguments: &[(&str, Value)]) -> Result<(Value, i32), Error> {
        let mut answers = [Vec::new()];
        let pid = self.ask_all([&question(prefix, arguments)], &mut answers)?;
        Ok((self.understand(prefix, &answers[0], json)?, pid))
    }

    /// Asks several questions at once and waits until all answers have come, each in its buffer as it was received; what was
    /// there before is overwritten. Cheaper than one after the other, and the answers are of nearly the same time. The result
    /// is the process that listens, as that of [`ask`](Self::ask).
    ///
    /// # Errors
    /// See [`Error`]; the limit holds for all answers together.
    pub fn ask_all<const N: usize>(&self, questions: [&[u8]; N], answers: &mut [Vec<u8>; N]) -> Result<i32, Error> {
        self.try_to_ask_all(questions, answers).map_err(|cause| self.failed(cause))
    }

    /// The content of an answer to `command` by `parse`, unless it is a refusal.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Odd`].
    pub fn understand<T>(
        &self,
        command: &str,
        received: &[u8],
        parse: impl FnOnce(&str) -> Result<T, Malformed>,
    ) -> Result<T, Error> {
        let odd = |problem| Error::Odd { path: self.path.clone(), problem };
        let text = text(received).map_err(odd)?;
        match refusal(&text) {
            Some(answer) => Err(Error::Refused { path: self.path.clone(), command: command.to_owned(), answer }),
            None => parse(&text).map_err(odd),
        }
    }

    /// The value of an option that is in force.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn option(&self, option: &str) -> Result<String, Error> {
        let (answer, _) = self.ask("config get", &[("var", option.into())])?;
        let value = option_value(&answer, option).map(str::to_owned);
        value.map_err(|problem| Error::Odd { path: self.path.clone(), problem })
    }

    /// The value that was set for an option in the running daemon.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn option_override(&self, option: &str) -> Result<Option<String>, Error> {
        let (answer, _) = self.ask("config diff", &[])?;
        override_of(&answer, option).map_err(|problem| Error::Odd { path: self.path.clone(), problem })
    }

    /// Sets an option in the running daemon alone, or takes that back with `None`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set_option(&self, option: &str, value: Option<&str>) -> Result<(), Error> {
        match value {
            Some(value) => self.ask("config set", &[("var", option.into()), ("val", vec![value].into())]),
            None => self.ask("config unset", &[("var", option.into())]),
        }
        .map(drop)
    }

    fn try_to_ask_all<const N: usize>(&self, questions: [&[u8]; N], answers: &mut [Vec<u8>; N]) -> io::Result<i32> {
        let deadline = Instant::now() + self.limit;
        let (mut streams, mut pid) = (Vec::with_capacity(N), 0);
        for question in questions {
            let mut stream = self.connect()?;
            stream.write_all(question)?;
            streams.push(stream);
        }
        // A daemon answers one connection after the other: when it has answered the last, all answers are there.
        for (stream, answer) in streams.iter().zip(answers).rev() {
            receive(stream, answer, deadline)?;
            pid = rustix::net::sockopt::socket_peercred(stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        }
        Ok(pid)
    }

    /// Connects without waiting: a daemon that hangs has a full queue of connections, and a blocking call would wait for
    /// ever.
    fn connect(&self) -> io::Result<UnixStream> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
        Ok(UnixStream::from(socket))
    }

    fn failed(&self, cause: io::Error) -> Error {
        let path = self.path.clone();
        match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::Absent { path },
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Late { path, limit: self.limit },
            _ => Error::Io { path, cause },
        }
    }
}

/// Waits for an answer; one that is cut off is an error of the step that reads it next.
///
/// The daemon writes the length, then the body, and closes. Only the last wakes us up: on an idle machine waking up costs more
/// than all that is done with the answer.
fn receive(stream: &UnixStream, answer: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
    answer.clear();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let wait = Timespec::try_from(left.min(DRAIN_EVERY)).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // A length that is too long is complained about as well.
        while wanted(answer).is_ok_and(|wanted| wanted.is_none_or(|wanted| answer.len() < wanted)) {
            answer.reserve(PART_BYTES);
            match read(stream, spare_capacity(answer)) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if wanted(answer).map_or(true, |wanted| wanted.is_some_and(|wanted| answer.len() >= wanted)) {
            return Ok(());
        }
    }
}

#[cfg(test)]
#[path = "admin_socket_tests.rs"]
mod tests;
