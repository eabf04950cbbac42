//! Reaches a server and shakes hands.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use evenkeel_nbd::client::{Connected, Goal, Handshake, MAX_OPTION_REPLY, Outcome, Wanted};
use evenkeel_nbd::wire::Framing;

use super::uri::{Address, Target};

/// How long a server may take for each step of the handshake.
const PATIENCE: Duration = Duration::from_secs(10);

trait Socket: Read + Write {}
impl Socket for TcpStream {}
impl Socket for UnixStream {}

/// Connects to the target and negotiates; the socket comes back nonblocking.
///
/// # Errors
/// What kept the connection from being made, with the address.
pub(super) fn connect(target: &Target, framing: Framing) -> anyhow::Result<(OwnedFd, Connected)> {
    let result = match &target.address {
        Address::Tcp(host, port) => tcp(host, *port).and_then(|mut stream| {
            let connected = shake_hands(&mut stream, target, framing)?;
            stream.set_nonblocking(true)?;
            Ok((OwnedFd::from(stream), connected))
        }),
        Address::Unix(path) => UnixStream::connect(path).map_err(anyhow::Error::from).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let connected = shake_hands(&mut stream, target, framing)?;
            stream.set_nonblocking(true)?;
            Ok((OwnedFd::from(stream), connected))
        }),
    };
    result.with_context(|| format!("cannot use {target}"))
}

fn tcp(host: &str, port: u16) -> anyhow::Result<TcpStream> {
    let addresses = (host, port).to_socket_addrs().with_context(|| format!("cannot find the host `{host}`"))?;
    let mut last = anyhow!("the host `{host}` has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                // A batch leaves in one send; waiting for more would only delay it.
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

fn shake_hands(stream: &mut impl Socket, target: &Target, framing: Framing) -> anyhow::Result<Connected> {
    let wanted = Wanted { export: target.export.clone(), goal: Goal::Go, framing, base_allocation: false };
    let mut handshake = Handshake::new(wanted);
    let mut input = vec![0; MAX_OPTION_REPLY + 64];
    let (mut filled, mut out) = (0, Vec::new());
    loop {
        let received = match stream.read(&mut input[filled..]) {
            Ok(0) => bail!("the server closed the connection during the handshake"),
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!("the server did not answer the handshake within {} s", PATIENCE.as_secs())
            }
            Err(error) => return Err(error).context("the connection broke during the handshake"),
        };
        filled += received;
        let step = handshake.advance(&input[..filled], &mut out)?;
        input.copy_within(step.consumed..filled, 0);
        filled -= step.consumed;
        if !out.is_empty() {
            stream.write_all(&out).context("the connection broke during the handshake")?;
            out.clear();
        }
        match step.outcome {
            None => {}
            Some(Outcome::Connected(_)) if filled > 0 => bail!("the server sent data before the first request"),
            Some(Outcome::Connected(connected)) => return Ok(connected),
            Some(Outcome::Refused(refusal)) => return Err(refusal.into()),
            Some(Outcome::Described(_) | Outcome::Listed(_)) => bail!("the handshake ended without a connection"),
        }
    }
}
