//! A small NBD client for labs and comparisons.
//!
//! The client shares no code with the server or with `evenkeel load`, as a client that judges a server must not repeat
//! the server's mistakes. It uses the fixed newstyle handshake, simple replies and blocking sockets.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
pub(crate) const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const FLAG_SEND_FLUSH: u16 = 1 << 2;
const FLAG_SEND_FUA: u16 = 1 << 3;
const FLAG_MULTI_CONN: u16 = 1 << 8;

/// A kind of NBD request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
}

/// An error reply of the server, with the protocol's error number. The connection stays usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) u32);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answered with error {}", self.0)
    }
}

impl std::error::Error for Refused {}

/// A connection in its transmission phase.
pub(crate) struct Client {
    /// The socket. One of TCP is used by the same calls.
    stream: UnixStream,
    /// Size of the export in bytes.
    pub(crate) size: u64,
    flags: u16,
}

impl Client {
    /// Connects to the export at `address`, a path of a Unix socket or `host:port`. Failed attempts are repeated until `limit`
    /// has passed.
    pub(crate) fn connect(address: &str, export: &str, limit: Duration) -> Result<Self> {
        let deadline = Instant::now() + limit;
        loop {
            match dial(address, limit) {
                Ok(stream) => return Self::negotiate(stream, export).context("NBD handshake"),
                Err(e) if Instant::now() > deadline => {
                    return Err(e).with_context(|| format!("cannot connect to {address} within {limit:?}"));
                }
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Connects to the export at `address` in a single attempt. Every later read and write of the socket waits at most `limit`.
    pub(crate) fn connect_once(address: &str, export: &str, limit: Duration) -> Result<Self> {
        let stream = dial(address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Self::negotiate(stream, export)
    }

    fn negotiate(mut stream: UnixStream, export: &str) -> Result<Self> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        ensure!(be64(&greeting[..8]) == INIT_MAGIC && be64(&greeting[8..16]) == OPTION_MAGIC, "not an NBD server");
        // Fixed newstyle and no zeroes.
        let mut hello = 3u32.to_be_bytes().to_vec();
        go(&mut hello, export);
        stream.write_all(&hello)?;
        let (mut size, mut flags) = (0, 0);
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            ensure!(be64(&head[..8]) == OPTION_REPLY_MAGIC, "bad option reply");
            let (kind, length) = (be32(&head[12..16]), be32(&head[16..20]));
            ensure!(length <= 64 << 10, "option reply of {length} bytes");
            let mut data = vec![0; length as usize];
            stream.read_exact(&mut data)?;
            match kind {
                REPLY_ACK => return Ok(Self { stream, size, flags }),
                REPLY_INFO if data.len() == 12 && data[..2] == INFO_EXPORT.to_be_bytes() => {
                    size = be64(&data[2..10]);
                    flags = u16::from_be_bytes([data[10], data[11]]);
                }
                REPLY_INFO => {}
                other => bail!("the server refused export `{export}`: {other:#x} {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    /// True if the server offers FLUSH and FUA; without them it guarantees no durability.
    pub(crate) fn promises_durability(&self) -> bool {
        self.flags & FLAG_SEND_FLUSH != 0 && self.flags & FLAG_SEND_FUA != 0
    }

    /// True if the server offers that a FLUSH covers writes completed on other connections (`NBD_FLAG_CAN_MULTI_CONN`).
    pub(crate) fn multi_conn(&self) -> bool {
        self.flags & FLAG_MULTI_CONN != 0
    }

    /// Sends a request. `cookie` identifies its reply, `at` is its offset in bytes; `fua` asks that a write be durable before
    /// the reply.
    pub(crate) fn send(
        &mut self,
        command: Command,
        fua: bool,
        cookie: u64,
        at: u64,
        bytes: u32,
        data: &[u8],
    ) -> Result<()> {
        let mut message = Vec::with_capacity(28 + data.len());
        request(&mut message, REQUEST_MAGIC, [u16::from(fua), command as u16], cookie, at, bytes);
        message.extend(data);
        self.stream.write_all(&message).context("the server closed the connection")
    }

    /// Receives a reply without data and returns its cookie. An error reply becomes a [`Refused`].
    pub(crate) fn receive(&mut self) -> Result<u64> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).context("the server closed the connection")?;
        ensure!(be32(&reply[..4]) == REPLY_MAGIC, "bad reply");
        let error = be32(&reply[4..8]);
        if error != 0 {
            return Err(Refused(error).into());
        }
        Ok(be64(&reply[8..]))
    }

    /// Reads `into.len()` bytes at offset `at` and waits for the reply; no other request may be in flight.
    pub(crate) fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        self.send(Command::Read, false, at, at, u32::try_from(into.len())?, &[])?;
        ensure!(self.receive_read(into)? == at, "reply to a request that was not made");
        Ok(())
    }

    /// A second handle of the connection, so that one thread sends while another receives.
    pub(crate) fn twin(&self) -> Result<Self> {
        Ok(Self { stream: self.stream.try_clone()?, size: self.size, flags: self.flags })
    }

    /// Receives the reply to a read, with its data, and returns its cookie.
    pub(crate) fn receive_read(&mut self, into: &mut [u8]) -> Result<u64> {
        let cookie = self.receive()?;
        self.data(into)?;
        Ok(cookie)
    }

    /// Receives the data that follows the header of the reply to a read.
    pub(crate) fn data(&mut self, into: &mut [u8]) -> Result<()> {
        Ok(self.stream.read_exact(into)?)
    }

    /// Shuts the connection down. A thread that waits on a twin of it gets an error.
    pub(crate) fn shut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends a disconnect request and ends the connection.
    pub(crate) fn disconnect(mut self) -> Result<()> {
        self.send(Command::Disconnect, false, 0, 0, 0, &[])
    }
}

/// Connects a socket to `address`, a path of a Unix socket or `host:port`.
fn dial(address: &str, limit: Duration) -> io::Result<UnixStream> {
    if Path::new(address).is_absolute() {
        return UnixStream::connect(address);
    }
    let resolved = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    TcpStream::connect_timeout(&resolved, limit).map(|stream| OwnedFd::from(stream).into())
}

/// Appends an option of the handshake whose length field is `length`, whatever the length of `data`.
pub(crate) fn option(out: &mut Vec<u8>, code: u32, length: u32, data: &[u8]) {
    out.extend(OPTION_MAGIC.to_be_bytes());
    out.extend(code.to_be_bytes());
    out.extend(length.to_be_bytes());
    out.extend(data);
}

/// Appends a text with its length.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u32).to_be_bytes());
    out.extend(text.as_bytes());
}

/// Appends the option that chooses an export and ends the handshake.
pub(crate) fn go(out: &mut Vec<u8>, export: &str) {
    let mut data = Vec::new();
    string(&mut data, export);
    data.extend(0u16.to_be_bytes());
    option(out, OPTION_GO, data.len() as u32, &data);
}

/// Appends the header of a request.
pub(crate) fn request(out: &mut Vec<u8>, magic: u32, [flags, command]: [u16; 2], cookie: u64, at: u64, length: u32) {
    out.extend(magic.to_be_bytes());
    out.extend(flags.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(at.to_be_bytes());
    out.extend(length.to_be_bytes());
}

fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b))
}

fn be32(bytes: &[u8]) -> u32 {
    be64(bytes) as u32
}
