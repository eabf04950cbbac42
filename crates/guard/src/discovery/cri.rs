//! Labels and annotations of Kubernetes pods, from the container runtime by its CRI (container runtime interface).
//!
//! One call of gRPC, `ListPodSandbox`, on a connection of its own. The call needs a small part of HTTP/2: headers are sent as
//! literals, and the headers of the answer are not read. Pure functions stand first, functions that use sockets last.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Roots;

/// Sockets of runtimes by convention: containerd, CRI-O, K3s, cri-dockerd, k0s and MicroK8s.
const SOCKETS: [&str; 6] = [
    "run/containerd/containerd.sock",
    "run/crio/crio.sock",
    "run/k3s/containerd/containerd.sock",
    "run/cri-dockerd.sock",
    "run/k0s/containerd.sock",
    "var/snap/microk8s/common/run/containerd.sock",
];
/// Longest time of a call: a runtime that sends its answer byte by byte gets no more.
const WITHIN: Duration = Duration::from_secs(2);
/// Largest answer in bytes: kubelet's own bound.
const MAX_ANSWER: usize = 16 << 20;
/// Largest frame in bytes that a peer may send unless it was allowed larger ones.
const MAX_FRAME: usize = 16_384;
/// Largest number of frames of an answer: several times those of the largest answer.
const MAX_FRAMES: usize = 10_000;
/// Largest number of fields of an answer: those of 2,500 pods with 50 labels and annotations each, with room to spare. Fields
/// may have two bytes, and each takes much more memory.
const MAX_FIELDS: usize = 500_000;

/// The bytes with which a connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// Flags of frames; an acknowledgement has the bit of the end of a stream.
const END_STREAM: u8 = 1;
const ACKNOWLEDGED: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
/// The stream of the call.
const STREAM: u32 = 1;
/// Settings: no pushes, and the window of a stream.
const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW: u16 = 4;
/// The largest window, so that the answer never waits, and the window before any update.
const WINDOW: u32 = (1 << 31) - 1;
const FIRST_WINDOW: u32 = 65_535;
/// Start of a header with name and value as literals, which is not remembered.
const LITERAL: u8 = 0;
/// Headers of the call, each shorter than 127 bytes.
const CALL: [(&str, &str); 6] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/runtime.v1.RuntimeService/ListPodSandbox"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
];
/// The message of the call: a filter (field 1) by the state (2) "ready", which is the default.
const READY_ONES: [u8; 4] = [0x0a, 2, 0x12, 0];

/// Fields of the runtime's messages.
const ITEMS: u64 = 1;
const METADATA: u64 = 2;
const LABELS: u64 = 5;
const ANNOTATIONS: u64 = 6;
const UID: u64 = 2;
const KEY: u64 = 1;
const VALUE: u64 = 2;

/// Labels and annotations of a pod, as they were when the pod was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Values of labels by their keys.
    pub labels: BTreeMap<String, String>,
    /// Values of annotations by their keys.
    pub annotations: BTreeMap<String, String>,
}

/// An error because of which labels and annotations of pods are not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No container runtime has a CRI socket at a known path.
    #[error("no container runtime has a CRI socket at {} or the like", Path::new("/").join(SOCKETS[0]).display())]
    Absent,
    /// The container runtime's socket cannot be used.
    #[error("cannot ask the container runtime at {}: {cause}", .path.display())]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The runtime refuses the call, or answers in an unknown format.
    #[error("the container runtime at {} {problem}", .path.display())]
    Odd {
        /// Path of the socket.
        path: PathBuf,
        /// The fault of the answer.
        problem: &'static str,
    },
}

/// The fault of an answer without a message.
const REFUSED: &str = "does not list pods; its CRI v1 plugin may be off";
const ODD: &str = "gives an answer that is not a list of pods";
const LONG: &str = "gives an answer that is longer than 16 MiB";

/// A number of Protocol Buffers at the start of `bytes`, which begin behind it afterwards.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for place in 0..10 {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << (7 * place);
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The fields of a message of Protocol Buffers that are texts or messages, with their numbers; `None` if it is no message, or
/// has more fields than are `left` of [`MAX_FIELDS`].
fn fields<'m>(mut bytes: &'m [u8], left: &mut usize) -> Option<Vec<(u64, &'m [u8])>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = number(&mut bytes)?;
        let length = match key & 7 {
            0 => {
                number(&mut bytes)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(number(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (field, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        if key & 7 == 2 {
            *left = left.checked_sub(1)?;
            fields.push((key >> 3, field));
        }
    }
    Some(fields)
}

/// The text in the last field with this number; empty without one.
fn text(fields: &[(u64, &[u8])], wanted: u64) -> String {
    let last = fields.iter().rev().find(|(number, _)| *number == wanted);
    last.map_or_else(String::new, |(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
}

/// Marks of pods by the pods' UIDs, from a message `ListPodSandboxResponse`; `None` if it is none.
fn pods(message: &[u8]) -> Option<BTreeMap<String, Marks>> {
    let mut left = MAX_FIELDS;
    let entry = |field: &[u8], left: &mut usize| {
        let fields = fields(field, left)?;
        Some((text(&fields, KEY), text(&fields, VALUE)))
    };
    let mut pods = BTreeMap::new();
    for (_, pod) in fields(message, &mut left)?.into_iter().filter(|(number, _)| *number == ITEMS) {
        let (mut uid, mut marks) = (String::new(), Marks::default());
        for (number, field) in fields(pod, &mut left)? {
            match number {
                METADATA => uid = text(&fields(field, &mut left)?, UID),
                LABELS => marks.labels.extend([entry(field, &mut left)?]),
                ANNOTATIONS => marks.annotations.extend([entry(field, &mut left)?]),
                _ => {}
            }
        }
        if !uid.is_empty() {
            pods.insert(uid, marks);
        }
    }
    Some(pods)
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A message as gRPC sends it: not compressed, with its length.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend(message);
    bytes
}

/// All bytes of the call, but for acknowledgements.
fn call() -> Vec<u8> {
    let mut settings = Vec::new();
    for (setting, value) in [(ENABLE_PUSH, 0), (INITIAL_WINDOW, WINDOW)] {
        settings.extend(setting.to_be_bytes());
        settings.extend(u32::to_be_bytes(value));
    }
    let mut headers = Vec::new();
    for (name, value) in CALL {
        headers.push(LITERAL);
        for text in [name, value] {
            headers.push(text.len() as u8);
            headers.extend(text.as_bytes());
        }
    }
    let parts = [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &settings),
        frame(WINDOW_UPDATE, 0, 0, &(WINDOW - FIRST_WINDOW).to_be_bytes()),
        frame(HEADERS, END_HEADERS, STREAM, &headers),
        frame(DATA, END_STREAM, STREAM, &framed(&READY_ONES)),
    ];
    parts.concat()
}

/// The step after a frame of the answer.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Read the next frame.
    More,
    /// Send this frame first.
    Send(Vec<u8>),
    /// The answer is complete.
    End,
}

/// The answer to the call, from its frames.
#[derive(Debug, Default)]
struct Answer(Vec<u8>);

impl Answer {
    /// Takes in a frame.
    fn take(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<Next, &'static str> {
        let ends = if flags & END_STREAM != 0 { Next::End } else { Next::More };
        match kind {
            DATA if stream == STREAM => {
                let body = if flags & PADDED == 0 {
                    payload
                } else {
                    let (padding, rest) = payload.split_first().ok_or(ODD)?;
                    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(ODD)?;
                    &rest[..length]
                };
                self.0.extend(body);
                if self.0.len() > MAX_ANSWER { Err(LONG) } else { Ok(ends) }
            }
            HEADERS if stream == STREAM => Ok(ends),
            SETTINGS if flags & ACKNOWLEDGED == 0 => Ok(Next::Send(frame(SETTINGS, ACKNOWLEDGED, 0, &[]))),
            PING if flags & ACKNOWLEDGED == 0 => Ok(Next::Send(frame(PING, ACKNOWLEDGED, 0, payload))),
            RESET if stream == STREAM => Err(REFUSED),
            GO_AWAY => Err(REFUSED),
            _ => Ok(Next::More),
        }
    }

    /// Marks of pods in the complete answer.
    fn pods(&self) -> Result<BTreeMap<String, Marks>, &'static str> {
        // A call that fails has headers alone.
        let (head, rest) = self.0.split_first_chunk::<5>().ok_or(REFUSED)?;
        let [compressed, length @ ..] = *head;
        let message = rest.get(..u32::from_be_bytes(length) as usize).filter(|_| compressed == 0);
        message.and_then(pods).ok_or(ODD)
    }
}

/// Reads `bytes` in full before the moment `end`.
fn fill(stream: &mut UnixStream, mut bytes: &mut [u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Asks the runtime behind the socket at `path`.
fn ask(path: &Path) -> Result<BTreeMap<String, Marks>, Error> {
    let io = |cause| Error::Io { path: path.to_owned(), cause };
    let odd = |problem| Error::Odd { path: path.to_owned(), problem };
    let mut stream = UnixStream::connect(path).map_err(io)?;
    let end = Instant::now() + WITHIN;
    stream.set_write_timeout(Some(WITHIN)).map_err(io)?;
    stream.write_all(&call()).map_err(io)?;
    let mut answer = Answer::default();
    for _ in 0..MAX_FRAMES {
        let mut head = [0; 9];
        fill(&mut stream, &mut head, end).map_err(io)?;
        let [a, b, c, kind, flags, stream_number @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > MAX_FRAME {
            return Err(odd(ODD));
        }
        let mut payload = vec![0; length];
        fill(&mut stream, &mut payload, end).map_err(io)?;
        match answer.take(kind, flags, u32::from_be_bytes(stream_number) & WINDOW, &payload).map_err(odd)? {
            Next::More => {}
            Next::Send(frame) => stream.write_all(&frame).map_err(io)?,
            Next::End => return answer.pods().map_err(odd),
        }
    }
    Err(odd(LONG))
}

/// Marks of this host's pods by the pods' UIDs, from all runtimes that answer: beside that of Kubernetes a host may have one
/// that knows no pods.
///
/// # Errors
/// [`Error`], if no runtime answers: of the last one that has a socket, or [`Error::Absent`].
pub fn marks(roots: &Roots) -> Result<BTreeMap<String, Marks>, Error> {
    let mut pods: Option<BTreeMap<String, Marks>> = None;
    let mut why = Error::Absent;
    for path in SOCKETS.map(|socket| roots.root.join(socket)) {
        if !path.exists() {
            continue;
        }
        match ask(&path) {
            Ok(more) => pods.get_or_insert_default().extend(more),
            Err(error) => why = error,
        }
    }
    pods.ok_or(why)
}

#[cfg(test)]
#[path = "cri_tests.rs"]
pub(crate) mod tests;
