//! Connects to an NBD server and negotiates as its client.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_nbd::client::{Connected, Handshake, MAX_OPTION_REPLY, Outcome, Purpose, Refusal, Violation, Wanted};
use evenkeel_nbd::wire::Framing;
use evenkeel_policy::uri::{Address, Target};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to, socket_with};

/// Longest wait for a server to accept a connection, and again for the whole negotiation.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reason why a connection was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The host's name has no address, or could not be looked up.
    #[error("cannot find the host `{host}`: {cause}")]
    Host {
        /// Name of the host.
        host: String,
        /// The system's error of the look-up.
        cause: io::Error,
    },
    /// The connection was refused or failed: for example, no process listens at the address.
    #[error("{0}")]
    Connect(io::Error),
    /// The server has not completed the negotiation within this time.
    #[error("the server did not finish the handshake within {} s", .0.as_secs())]
    Late(Duration),
    /// The connection broke during the negotiation.
    #[error("the connection broke during the handshake: {0}")]
    Broken(io::Error),
    /// The server closed the connection before the negotiation was complete.
    #[error("the server closed the connection during the handshake: its log may say why")]
    Closed,
    /// The server's message is not NBD as specified.
    #[error("{0}")]
    Violation(Violation),
    /// The server refused the export or the list of exports.
    #[error("{0}")]
    Refused(Refusal),
    /// The server sent data after the negotiation, before the client's first request.
    #[error("the server sent data before the first request")]
    Premature,
}

/// Names of the exports that the target's server lists. Blocks for as long as [`connect`] may.
///
/// # Errors
/// If no connection was made, or if the server refuses to list its exports.
pub fn list(target: &Target) -> Result<Vec<String>, DialError> {
    let wanted =
        Wanted { export: String::new(), purpose: Purpose::List, framing: Framing::Structured, base_allocation: false };
    let (_, outcome) = dial(target, wanted)?;
    match outcome {
        Outcome::Listed(exports) => Ok(exports.into_iter().map(|export| export.name).collect()),
        Outcome::Refused(refusal) => Err(DialError::Refused(refusal)),
        // Neither was asked for.
        Outcome::Connected(_) | Outcome::Described(_) => Err(DialError::Closed),
    }
}

/// Connects to the target and negotiates its export. Blocks for at most 20 s, and 10 s more for each further address of the
/// host. `framing`: the best framing of replies to ask for; `base_allocation`: asks for block status, too. The returned
/// socket is nonblocking.
///
/// # Errors
/// If the connection or the negotiation fails.
pub fn connect(target: &Target, framing: Framing, base_allocation: bool) -> Result<(OwnedFd, Connected), DialError> {
    let wanted = Wanted { export: target.export.clone(), purpose: Purpose::Go, framing, base_allocation };
    match dial(target, wanted)? {
        (socket, Outcome::Connected(connected)) => {
            rustix::io::ioctl_fionbio(&socket, true).map_err(|error| DialError::Broken(error.into()))?;
            Ok((socket, connected))
        }
        (_, Outcome::Refused(refusal)) => Err(DialError::Refused(refusal)),
        // Neither was asked for.
        (_, Outcome::Described(_) | Outcome::Listed(_)) => Err(DialError::Closed),
    }
}

fn dial(target: &Target, wanted: Wanted) -> Result<(OwnedFd, Outcome), DialError> {
    match &target.address {
        Address::Tcp(host, port) => {
            let stream = tcp(host, *port)?;
            shake_hands(stream, wanted)
        }
        Address::Unix(path) => shake_hands(unix(path, PATIENCE).map_err(DialError::Connect)?, wanted),
    }
}

/// Connects to a Unix socket. If the server's backlog of connections is full, waits for at most `patience`.
pub(crate) fn unix(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The kernel waits for room in the backlog as long as for room to send.
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    let address = SocketAddrUnix::new(path)?;
    match retry_on_intr(|| connect_to(&socket, &address)) {
        Err(Errno::AGAIN) => Err(io::Error::new(
            ErrorKind::TimedOut,
            format!("the server accepted no connection within {patience:?}: it hangs or has too many clients"),
        )),
        connected => Ok(connected.map(|()| socket.into())?),
    }
}

fn tcp(host: &str, port: u16) -> Result<TcpStream, DialError> {
    let unknown = |cause| DialError::Host { host: host.to_owned(), cause };
    let addresses = (host, port).to_socket_addrs().map_err(unknown)?;
    let mut last = unknown(io::Error::other("it has no address"));
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                // A batch leaves in one send; waiting for more would only delay it.
                stream.set_nodelay(true).map_err(DialError::Connect)?;
                return Ok(stream);
            }
            Err(error) => last = DialError::Connect(error),
        }
    }
    Err(last)
}

fn shake_hands<S: Read + Write + AsFd>(mut stream: S, wanted: Wanted) -> Result<(OwnedFd, Outcome), DialError>
where
    OwnedFd: From<S>,
{
    let until = Instant::now() + PATIENCE;
    let mut handshake = Handshake::new(wanted);
    let mut input = vec![0; MAX_OPTION_REPLY + 64];
    let (mut filled, mut out) = (0, Vec::new());
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // A timeout of zero would mean none.
        if left.is_zero() {
            return Err(DialError::Late(PATIENCE));
        }
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&stream, direction, Some(left)).map_err(|error| DialError::Broken(error.into()))?;
        }
        let received = match stream.read(&mut input[filled..]) {
            Ok(0) => return Err(DialError::Closed),
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(error)),
        };
        filled += received;
        let step = handshake.advance(&input[..filled], &mut out).map_err(DialError::Violation)?;
        input.copy_within(step.consumed..filled, 0);
        filled -= step.consumed;
        if !out.is_empty() {
            stream.write_all(&out).map_err(broken)?;
            out.clear();
        }
        match step.outcome {
            None => {}
            Some(Outcome::Connected(_)) if filled > 0 => return Err(DialError::Premature),
            Some(outcome) => return Ok((stream.into(), outcome)),
        }
    }
}

fn broken(error: io::Error) -> DialError {
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        DialError::Late(PATIENCE)
    } else {
        DialError::Broken(error)
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{bind, listen};

    use super::*;

    #[test]
    fn a_unix_server_that_accepts_nothing_has_its_time_and_no_more() {
        let path = std::env::temp_dir().join(format!("evenkeel-dial-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let server = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&server, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&server, 0).unwrap();
        let patience = Duration::from_millis(20);
        // The backlog has room for one.
        let _first = unix(&path, patience).unwrap();
        let second = unix(&path, patience).unwrap_err();
        assert_eq!(second.kind(), ErrorKind::TimedOut, "{second}");
        drop(rustix::net::accept(&server).unwrap());
        assert!(unix(&path, patience).is_ok());
        std::fs::remove_file(&path).unwrap();
    }
}
