//! Queries over the admin socket of a Ceph daemon: one question and one answer on each connection.
//!
//! A question is a JSON object with the command in `prefix`, ended by a zero byte. An answer is a length (four bytes,
//! big-endian) and that many bytes: JSON, or a text that begins with `ERROR: (`. Pure functions stand first, those that use
//! sockets last.

use std::borrow::Cow;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use serde_json::{Map, Value};

/// Longest answer that is accepted, in bytes: all counters of an OSD are 20 KB, its configuration 100 KB.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Size, in bytes, of the length field before an answer.
const LENGTH_BYTES: usize = 4;
/// Bytes read by one system call: enough for the whole answer to a question for counters.
const PART_BYTES: usize = 16 << 10;
/// Time to wait for the end of an answer before the bytes that have arrived are read. Without this, an answer longer than the
/// system's socket buffer, some 200 KB, would never end.
const DRAIN_EVERY: Duration = Duration::from_millis(20);
/// The text with which an answer begins if the daemon refused the command.
const REFUSAL: &str = "ERROR: (";

/// An error because of which there is no usable answer of a daemon.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process listens on the socket.
    #[error("no process listens on {}: the OSD is down, or its admin socket is elsewhere", .path.display())]
    Absent {
        /// Path of the admin socket.
        path: PathBuf,
    },
    /// The answer did not come within the time limit.
    #[error("the OSD at {} gave no answer within {limit:?}: it is busy or hangs", .path.display())]
    Late {
        /// Path of the admin socket.
        path: PathBuf,
        /// The time limit of the answer.
        limit: Duration,
    },
    /// The daemon refused the command.
    #[error("the OSD at {} refused the command {command:?}: {answer}", .path.display())]
    Refused {
        /// Path of the admin socket.
        path: PathBuf,
        /// Name of the command, as in the question's `prefix`.
        command: String,
        /// The daemon's reason, in its own words.
        answer: String,
    },
    /// The answer does not have the format of a Ceph daemon's answers.
    #[error("{}: {problem}; is this the admin socket of a Ceph daemon of version 16 to 19?", .path.display())]
    Odd {
        /// Path of the admin socket.
        path: PathBuf,
        /// The fault because of which the answer cannot be used.
        problem: Malformed,
    },
    /// Any other error of the system.
    #[error("cannot use the admin socket {}: {cause}{}", .path.display(), cure(.cause))]
    Io {
        /// Path of the admin socket.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// Advice for the error message, with a leading semicolon; empty if there is none.
fn cure(cause: &io::Error) -> &'static str {
    if cause.kind() == io::ErrorKind::PermissionDenied { "; run as root or as the user ceph" } else { "" }
}

impl Error {
    /// True if no process listens on the socket: the daemon is gone, and so are the options that were set in the running
    /// daemon.
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }
}

/// The fault of an answer that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The answer ends before it is complete.
    #[error("the answer ends after {got} of {wanted} bytes")]
    Short {
        /// Number of bytes received, length field included.
        got: usize,
        /// Number of bytes announced by the length field, itself included.
        wanted: usize,
    },
    /// The length field announces this many bytes, more than any answer of a Ceph daemon has.
    #[error("the daemon announces an answer of {0} bytes, longer than any it gives: is the socket a Ceph daemon's?")]
    Long(usize),
    /// The answer is not JSON; the text is the parser's message.
    #[error("the answer is not JSON: {0}")]
    Json(String),
    /// The answer has no entry of this name, or the entry has another type.
    #[error("the answer has no {0}")]
    Lacks(String),
}

/// The bytes of a request to the admin socket: the command `prefix` with its arguments, as JSON.
pub fn question(prefix: &str, arguments: &[(&str, Value)]) -> Vec<u8> {
    let mut object = Map::new();
    object.insert("prefix".into(), prefix.into());
    object.insert("format".into(), "json".into());
    object.extend(arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    let mut bytes = Value::Object(object).to_string().into_bytes();
    bytes.push(0);
    bytes
}

/// Length of the whole answer in bytes, length field included, from the bytes received so far; `None` before the whole length
/// field has been received.
///
/// # Errors
/// [`Malformed::Long`] if the announced length exceeds the largest accepted one.
pub fn wanted(received: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(length) = received.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_ANSWER_BYTES { Err(Malformed::Long(length)) } else { Ok(Some(LENGTH_BYTES + length)) }
}

/// The text of a complete answer, without the length field.
///
/// # Errors
/// [`Malformed::Short`] if `received` ends before the answer does, [`Malformed::Long`].
pub fn text(received: &[u8]) -> Result<Cow<'_, str>, Malformed> {
    let wanted = wanted(received)?.unwrap_or(LENGTH_BYTES);
    match received.get(LENGTH_BYTES..wanted) {
        // The quicker check first.
        Some(body) => Ok(str::from_utf8(body).map_or_else(|_| String::from_utf8_lossy(body), Cow::Borrowed)),
        None => Err(Malformed::Short { got: received.len(), wanted }),
    }
}

/// The daemon's reason, in its own words, if `text` is a refusal; otherwise `None`.
pub fn refusal(text: &str) -> Option<String> {
    text.starts_with(REFUSAL).then(|| text.trim_end().replace('\n', ": "))
}

/// Parses the text of an answer that is no refusal. An empty answer, as to commands without a result, becomes `null`.
///
/// # Errors
/// [`Malformed::Json`] if the text is not JSON.
pub fn json(text: &str) -> Result<Value, Malformed> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(text).map_err(|error| Malformed::Json(error.to_string()))
}

/// The value of an option in an answer to `config get`.
///
/// # Errors
/// [`Malformed::Lacks`] if the answer does not contain the option.
pub fn option_value<'a>(answer: &'a Value, option: &str) -> Result<&'a str, Malformed> {
    answer.get(option).and_then(Value::as_str).ok_or_else(|| Malformed::Lacks(option.to_owned()))
}

/// The value that was set for an option in the running daemon, in an answer to `config diff`; `None` if no value was set
/// there. (Ceph 16 answers `config diff get` with all options as well.)
///
/// # Errors
/// [`Malformed::Lacks`] if the answer has another structure.
pub fn override_of(answer: &Value, option: &str) -> Result<Option<String>, Malformed> {
    let diff = answer.get("diff").and_then(Value::as_object).ok_or_else(|| Malformed::Lacks("diff".into()))?;
    let Some(value) = diff.get(option).and_then(|levels| levels.get("override")) else { return Ok(None) };
    match value {
        Value::String(text) => Ok(Some(text.clone())),
        Value::Number(number) => Ok(Some(number.to_string())),
        _ => Err(Malformed::Lacks(format!("override of {option} that is a text or a number"))),
    }
}

/// Access to the admin socket of one Ceph daemon.
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

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends the command `prefix` with its arguments and waits for the answer. Also returns the id of the process that
    /// listens, 0 if that process is in another PID namespace.
    ///
    /// # Errors
    /// See [`Error`]; after [`Error::Late`] it is not known whether the command was carried out.
    pub fn ask(&self, prefix: &str, arguments: &[(&str, Value)]) -> Result<(Value, i32), Error> {
        let mut answers = [Vec::new()];
        let pid = self.ask_all([&question(prefix, arguments)], &mut answers)?;
        Ok((self.understand(prefix, &answers[0], json)?, pid))
    }

    /// Asks several questions at once, each on a connection of its own, and waits for all answers. Each answer replaces the
    /// content of its buffer. This is cheaper than asking one after the other, and the answers show nearly the same moment.
    /// Returns the id of the listening process, as [`ask`](Self::ask) does.
    ///
    /// # Errors
    /// See [`Error`]; the time limit applies to all answers together.
    pub fn ask_all<const N: usize>(&self, questions: [&[u8]; N], answers: &mut [Vec<u8>; N]) -> Result<i32, Error> {
        self.try_to_ask_all(questions, answers).map_err(|cause| self.failed(cause))
    }

    /// Parses an answer to `command` with `parse`, unless it is a refusal.
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

    /// Asks for the value of an option that is in force in the daemon, wherever it was set.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn option(&self, option: &str) -> Result<String, Error> {
        let (answer, _) = self.ask("config get", &[("var", option.into())])?;
        let value = option_value(&answer, option).map(str::to_owned);
        value.map_err(|problem| Error::Odd { path: self.path.clone(), problem })
    }

    /// Asks for the value that was set for an option in the running daemon; `None` if no value was set there.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn option_override(&self, option: &str) -> Result<Option<String>, Error> {
        let (answer, _) = self.ask("config diff", &[])?;
        override_of(&answer, option).map_err(|problem| Error::Odd { path: self.path.clone(), problem })
    }

    /// Sets an option in the running daemon, not in the cluster's configuration; `None` as `value` unsets the option in the
    /// running daemon.
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

    /// Connects without waiting: a daemon that hangs has a full queue of connections, so that a blocking call would wait for
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

/// Waits until `deadline` for an answer and puts it into `answer`. An answer that is cut off is no error here; [`text`]
/// reports that.
///
/// The daemon writes the length, then the body, and closes the connection. Only the close wakes this thread, because on an
/// idle machine a wake-up costs more than handling the answer.
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
