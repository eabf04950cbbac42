//! Connects to an NBD server and negotiates as its client, under TLS if the target's URI asks for it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_nbd::client::{Connected, Handshake, MAX_OPTION_REPLY, Outcome, Purpose, Refusal, Violation, Wanted};
use evenkeel_nbd::wire::{Framing, option, reply};
use evenkeel_policy::uri::{Address, Target};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to, socket_with};
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection};

use crate::tls::{self, Stream};

/// Longest wait for a server to accept a connection, and again for the whole negotiation.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reason why a connection was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The host's name has no address, or could not be looked up.
    #[error("cannot find the host `{host}`: {cause}; correct the name, or the name service (DNS)")]
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
    #[error("the server closed the connection during the handshake; that server's log may say why")]
    Closed,
    /// The server's message is not NBD as specified.
    #[error("{0}")]
    Violation(Violation),
    /// The server refused the export or the list of exports.
    #[error("{0}")]
    Refused(Refusal),
    /// The server sent data after the negotiation, before the client's first request.
    #[error(
        "the server sent data before the first request, against the NBD protocol; try another version of that server"
    )]
    Premature,
    /// The server requires TLS, and the target's URI does not ask for it.
    #[error(
        "{0}; write nbds instead of nbd in the URI, and name the file of the authority of the server's certificate"
    )]
    NeedsTls(Refusal),
    /// The server refuses TLS, for which the target's URI asks.
    #[error(
        "TLS cannot start: {0}; set up TLS on that server, or write nbd instead of nbds in a network that is trusted"
    )]
    NoTls(Refusal),
    /// The target's URI asks for TLS, and no CA certificate is set.
    #[error(
        "the URI asks for TLS, and no CA certificate is set; name the file of the authority of the server's certificate"
    )]
    NoAuthority,
    /// The name that the server's certificate must have cannot be one of a certificate.
    #[error("{0:?} cannot be the name of a certificate; give a valid one by tls-hostname=NAME in the URI")]
    Name(String),
    /// A file with certificates or a key cannot be used.
    #[error("{0}")]
    Files(tls::Error),
    /// Unencrypted data followed the server's consent to TLS: perhaps an attacker in between has sent it.
    #[error("the server sent unencrypted data after its consent to TLS; check the network between")]
    Unencrypted,
    /// The TLS handshake failed, or one side refused the other's certificate.
    #[error("TLS failed: {cause}; {}", cure(.cause))]
    Tls {
        /// The error of the TLS library.
        cause: rustls::Error,
    },
}

/// The remedy for a failed TLS handshake.
fn cure(cause: &rustls::Error) -> &'static str {
    use CertificateError::{BadSignature, Expired, ExpiredContext, UnknownIssuer};
    use CertificateError::{NotValidForName, NotValidForNameContext};
    match cause {
        // An authority of the same name with another key gives a bad signature.
        rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature) => {
            "name the file of the authority that signed the server's certificate"
        }
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "use a host name of the certificate, or give one by tls-hostname=NAME in the URI"
        }
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => "renew the server's certificate",
        rustls::Error::AlertReceived(_) => {
            "the server's log says why: the server may need a client certificate, of an authority that it trusts"
        }
        _ => "the server's log may say why",
    }
}

/// A connection to an NBD server after the negotiation.
pub struct Dialed {
    /// The socket of the connection.
    pub socket: OwnedFd,
    /// The TLS session through which all bytes go; `None` without TLS.
    pub tls: Option<Box<Stream>>,
}

/// Names of the exports that the target's server lists. `tls`: the certificates for a target with TLS. Blocks for as long as
/// [`connect`] may.
///
/// # Errors
/// If no connection was made, or if the server refuses to list its exports.
pub fn list(target: &Target, tls: Option<&Arc<ClientConfig>>) -> Result<Vec<String>, DialError> {
    let (export, framing) = (String::new(), Framing::Structured);
    let wanted = Wanted { export, purpose: Purpose::List, framing, base_allocation: false, tls: target.tls.is_some() };
    let (_, outcome) = dial(target, tls, wanted)?;
    match outcome {
        Outcome::Listed(exports) => Ok(exports.into_iter().map(|export| export.name).collect()),
        Outcome::Refused(refusal) => Err(refused(target, refusal)),
        // None was asked for.
        Outcome::Connected(_) | Outcome::Described(_) | Outcome::StartTls => Err(DialError::Closed),
    }
}

/// The error for a server's refusal.
fn refused(target: &Target, refusal: Refusal) -> DialError {
    match (refusal.option, refusal.code) {
        (option::STARTTLS, _) => DialError::NoTls(refusal),
        (_, reply::ERR_TLS_REQD) if target.tls.is_none() => DialError::NeedsTls(refusal),
        _ => DialError::Refused(refusal),
    }
}

/// Connects to the target and negotiates its export. Blocks for at most 20 s, and 10 s more for each further address of the
/// host. `tls`: the certificates for a target with TLS; `framing`: the best framing of replies to ask for; `base_allocation`:
/// asks for block status, too. The returned socket is nonblocking.
///
/// # Errors
/// If the connection, TLS or the negotiation fails. A target with TLS is never connected without it.
pub fn connect(
    target: &Target,
    tls: Option<&Arc<ClientConfig>>,
    framing: Framing,
    base_allocation: bool,
) -> Result<(Dialed, Connected), DialError> {
    let export = target.export.clone();
    let wanted = Wanted { export, purpose: Purpose::Go, framing, base_allocation, tls: target.tls.is_some() };
    match dial(target, tls, wanted)? {
        (dialed, Outcome::Connected(connected)) => {
            rustix::io::ioctl_fionbio(&dialed.socket, true).map_err(|error| DialError::Broken(error.into()))?;
            Ok((dialed, connected))
        }
        (_, Outcome::Refused(refusal)) => Err(refused(target, refusal)),
        // None was asked for.
        (_, Outcome::Described(_) | Outcome::Listed(_) | Outcome::StartTls) => Err(DialError::Closed),
    }
}

fn dial(target: &Target, tls: Option<&Arc<ClientConfig>>, wanted: Wanted) -> Result<(Dialed, Outcome), DialError> {
    let session = session(target, tls)?;
    match &target.address {
        Address::Tcp(host, port) => {
            let stream = tcp(host, *port)?;
            shake_hands(stream, session, wanted)
        }
        Address::Unix(path) => shake_hands(unix(path, PATIENCE).map_err(DialError::Connect)?, session, wanted),
    }
}

/// The TLS session with the target's server before its first byte; `None` for a target without TLS.
fn session(target: &Target, tls: Option<&Arc<ClientConfig>>) -> Result<Option<Box<ClientConnection>>, DialError> {
    let Some(name) = &target.tls else { return Ok(None) };
    let config = tls.ok_or(DialError::NoAuthority)?;
    let server = ServerName::try_from(name.clone()).map_err(|_| DialError::Name(name.clone()))?;
    let session = ClientConnection::new(Arc::clone(config), server).map_err(|cause| DialError::Tls { cause })?;
    Ok(Some(Box::new(session)))
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

/// A stream to a server during the negotiation, which blocks and has a time limit.
struct Line<S> {
    stream: S,
    until: Instant,
    tls: Option<Box<ClientConnection>>,
}

impl<S: Read + Write + AsFd> Line<S> {
    /// Bounds the next system call by the time that is left.
    fn hurry(&self) -> Result<(), DialError> {
        let left = self.until.saturating_duration_since(Instant::now());
        // A timeout of zero would mean none.
        if left.is_zero() {
            return Err(DialError::Late(PATIENCE));
        }
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&self.stream, direction, Some(left)).map_err(|error| DialError::Broken(error.into()))?;
        }
        Ok(())
    }

    /// Starts TLS, and waits until the server's certificate is verified.
    fn start_tls(&mut self, session: Box<ClientConnection>) -> Result<(), DialError> {
        self.tls = Some(session);
        self.flush()?;
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.receive_tls()?;
        }
        Ok(())
    }

    /// Receives once from the socket, decrypts, and sends the answers of TLS itself.
    fn receive_tls(&mut self) -> Result<(), DialError> {
        self.hurry()?;
        let Some(tls) = &mut self.tls else { return Ok(()) };
        match tls.read_tls(&mut self.stream) {
            Ok(0) => return Err(DialError::Closed),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(broken(error)),
        }
        if let Err(cause) = tls.process_new_packets() {
            // The server learns the reason, if it still listens.
            let _ = tls.write_tls(&mut self.stream);
            return Err(DialError::Tls { cause });
        }
        self.flush()
    }

    /// Receives into `into`, which has room; returns the number of bytes, at least 1.
    fn receive(&mut self, into: &mut [u8]) -> Result<usize, DialError> {
        loop {
            let received = match &mut self.tls {
                Some(tls) => tls.reader().read(into),
                None => {
                    self.hurry()?;
                    self.stream.read(into)
                }
            };
            match received {
                Ok(0) => return Err(DialError::Closed),
                Ok(received) => return Ok(received),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.tls.is_some() => self.receive_tls()?,
                Err(error) => return Err(broken(error)),
            }
        }
    }

    /// True if the server has sent bytes that were not received yet, as far as TLS has decrypted them.
    fn holds_more(&mut self) -> bool {
        let Some(tls) = &mut self.tls else { return false };
        tls.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), DialError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.hurry()?;
        let Some(tls) = &mut self.tls else { return self.stream.write_all(bytes).map_err(broken) };
        tls.writer().write_all(bytes).map_err(broken)?;
        let Err(error) = self.flush() else { return Ok(()) };
        // The server may have said why before it closed the connection.
        match self.receive(&mut [0]) {
            Err(reason @ DialError::Tls { .. }) => Err(reason),
            _ => Err(error),
        }
    }

    /// Sends the encrypted bytes that wait in the TLS session.
    fn flush(&mut self) -> Result<(), DialError> {
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            match tls.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }
}

/// Negotiates on a connected stream. `session`: the TLS session that starts when the server agrees, if TLS is wanted.
fn shake_hands<S: Read + Write + AsFd>(
    stream: S,
    mut session: Option<Box<ClientConnection>>,
    wanted: Wanted,
) -> Result<(Dialed, Outcome), DialError>
where
    OwnedFd: From<S>,
{
    let mut line = Line { stream, until: Instant::now() + PATIENCE, tls: None };
    let mut handshake = Handshake::new(wanted);
    let mut input = vec![0; MAX_OPTION_REPLY + 64];
    let (mut filled, mut out) = (0, Vec::new());
    loop {
        filled += line.receive(&mut input[filled..])?;
        let step = handshake.advance(&input[..filled], &mut out).map_err(DialError::Violation)?;
        input.copy_within(step.consumed..filled, 0);
        filled -= step.consumed;
        line.send(&out)?;
        out.clear();
        match step.outcome {
            None => {}
            Some(Outcome::StartTls) if filled > 0 => return Err(DialError::Unencrypted),
            Some(Outcome::StartTls) => {
                line.start_tls(session.take().ok_or(DialError::NoAuthority)?)?;
                handshake.secured(&mut out);
                line.send(&out)?;
                out.clear();
            }
            Some(Outcome::Connected(_)) if filled > 0 || line.holds_more() => return Err(DialError::Premature),
            Some(outcome) => {
                let tls = line.tls.map(|session| Box::new(Stream::client(*session)));
                return Ok((Dialed { socket: line.stream.into(), tls }, outcome));
            }
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
    use std::os::unix::net::UnixListener;

    use rustix::net::{bind, listen};

    use super::*;
    use crate::tls::authority::Authority;

    /// The error of connecting with TLS to a server that sends `words` behind its greeting. The server must not learn the name of
    /// the export.
    fn against(name: &str, words: &[u8]) -> DialError {
        let folder = std::env::temp_dir().join(format!("evenkeel-dial-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (authority, socket) = (folder.join("ca.pem"), folder.join("socket"));
        std::fs::write(&authority, Authority::new().certificate).unwrap();
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let said = [&b"NBDMAGICIHAVEOPT\0\x03"[..], words].concat();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&said).unwrap();
            let mut heard = Vec::new();
            // A reset says the same as an end.
            let _ = stream.read_to_end(&mut heard);
            heard
        });
        let config = tls::client(("ca", authority.as_path()), None).unwrap();
        let target: Target = format!("nbds+unix:///secret?socket={}", socket.display()).parse().unwrap();
        let error = connect(&target, Some(&config), Framing::Simple, false).err().expect("no connection");
        let heard = server.join().unwrap();
        assert!(!heard.windows(6).any(|bytes| bytes == b"secret"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
        error
    }

    #[test]
    fn a_server_without_tls_hears_nothing_in_clear() {
        let answer = |kind: u32| {
            [&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], &5_u32.to_be_bytes(), &kind.to_be_bytes(), &[0; 4]].concat()
        };
        let refused = against("refuses", &answer(reply::ERR_UNSUP));
        assert!(matches!(refused, DialError::NoTls(_)), "{refused}");
        assert!(refused.to_string().contains("set up TLS on that server"), "{refused}");
        let injected = against("injected", &[answer(reply::ACK), answer(reply::ACK)].concat());
        assert!(matches!(injected, DialError::Unencrypted), "{injected}");
        let target: Target = "nbds://localhost/secret".parse().unwrap();
        let untrusting = connect(&target, None, Framing::Simple, false).err().expect("no authority");
        assert!(matches!(untrusting, DialError::NoAuthority), "{untrusting}");
    }

    #[test]
    fn a_failure_of_tls_has_its_remedy() {
        use rustls::Error;
        for (cause, remedy) in [
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), "name the file of the authority"),
            (Error::InvalidCertificate(CertificateError::NotValidForName), "tls-hostname=NAME"),
            (Error::InvalidCertificate(CertificateError::Expired), "renew the server's certificate"),
            (Error::AlertReceived(rustls::AlertDescription::CertificateRequired), "may need a client certificate"),
            (Error::DecryptError, "log may say why"),
        ] {
            let text = DialError::Tls { cause }.to_string();
            assert!(text.starts_with("TLS failed: ") && text.contains(remedy), "{text}");
        }
    }

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
