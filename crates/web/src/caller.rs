//! The caller of a request: the process or address at the other end of the connection, as far as the kernel knows it.

use std::fmt;
use std::net::SocketAddr;

use tokio::net::UnixStream;

/// The caller that requests a change.
#[derive(Clone, Copy, Debug)]
pub enum Caller {
    /// A client of the status address.
    Address(SocketAddr),
    /// A process of this machine that is connected to the control socket.
    Process(Process),
    /// A client of the control socket about which the kernel gives no information.
    Unknown,
    /// SIGHUP, with the process that sent it if the kernel names that process.
    Signal(Option<Process>),
}

/// A process of this machine, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Id of the user that runs the process.
    pub uid: u32,
    /// Process id; `None` if the kernel does not name it.
    pub pid: Option<i32>,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.uid)?;
        let Some(pid) = self.pid else { return Ok(()) };
        write!(f, ", pid {pid}")?;
        match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            // A process may call itself anything.
            Ok(name) => write!(f, " ({})", name.trim_end().escape_debug()),
            Err(_) => Ok(()),
        }
    }
}

impl Caller {
    /// The process at the other end of a Unix socket.
    pub(crate) fn of(stream: &UnixStream) -> Self {
        stream.peer_cred().map_or(Self::Unknown, |peer| Self::Process(Process { uid: peer.uid(), pid: peer.pid() }))
    }

    /// The caller's network address; `None` unless the caller is a client of the status address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        if let Self::Address(address) = self { Some(*address) } else { None }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Process(process) => process.fmt(f),
            Self::Unknown => f.write_str("a client of the control socket"),
            Self::Signal(None) => f.write_str("SIGHUP"),
            Self::Signal(Some(process)) => write!(f, "SIGHUP of {process}"),
        }
    }
}
