//! A TLS stream over a non-blocking socket.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

pub(crate) use evenkeel_net::tls::{Acceptor, Identity};
use rustls::{CipherSuite, IoState, ProtocolVersion, ServerConnection};

use super::socket::Socket;

/// Largest number of bytes that are received or encrypted at once: four TLS records of the greatest length, so that one
/// system call serves several records and the processor's caches hold them.
const BATCH: usize = 64 << 10;
/// Smallest number of bytes that one system call asks to receive.
const LEAST: usize = 4 << 10;
/// Largest number of reads of the socket in a row that yield no byte for the caller, as in a handshake.
const FRUITLESS: usize = 4;
/// Largest number of received bytes that one call decrypts if they carry no data.
const IDLE: usize = 8 << 10;

/// Scratch memory for one call of a stream's method, shared by all streams of a worker. Allocated when it is first used.
#[derive(Default)]
pub(crate) struct Room(Vec<u8>);

impl Room {
    fn bytes(&mut self) -> &mut [u8] {
        self.0.resize(BATCH, 0);
        &mut self.0
    }
}

/// The caller's two buffers for received bytes, which are filled one after the other.
struct Places<'a> {
    first: &'a mut [u8],
    second: &'a mut [u8],
    filled: usize,
}

impl Places<'_> {
    fn free(&mut self) -> &mut [u8] {
        match self.filled.checked_sub(self.first.len()) {
            None => &mut self.first[self.filled..],
            Some(into_second) => &mut self.second[into_second..],
        }
    }

    fn is_full(&mut self) -> bool {
        self.free().is_empty()
    }
}

/// TLS version and cipher of an encrypted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cipher {
    version: ProtocolVersion,
    suite: CipherSuite,
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.version {
            ProtocolVersion::TLSv1_2 => "TLSv1.2",
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            _ => "TLS",
        };
        write!(f, "{version} {}", self.suite.as_str().unwrap_or("?"))
    }
}

/// The TLS session of one connection, on the server's side.
///
/// Buffers at most: one partial record for each direction, the bytes received with one system call, and [`BATCH`] bytes that
/// are encrypted and not yet sent.
pub(crate) struct Stream {
    session: ServerConnection,
    /// The TLS settings under which the client was admitted.
    acceptor: Arc<Acceptor>,
    /// Bytes received and not yet decrypted, because the caller's buffers had no room.
    unread: Vec<u8>,
    /// Number of bytes decrypted and not yet taken by the caller.
    decrypted: usize,
    /// True if the peer has ended its TLS stream (close_notify).
    ended: bool,
}

impl Stream {
    /// The server's side of a session, before the first byte is received.
    ///
    /// # Errors
    /// As [`Acceptor::session`].
    pub(crate) fn new(acceptor: Arc<Acceptor>) -> Result<Self, rustls::Error> {
        let session = acceptor.session()?;
        Ok(Self { session, acceptor, unread: Vec::new(), decrypted: 0, ended: false })
    }

    /// The client's identity, from its certificate; `None` during the handshake, and if the client has shown none.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.session.peer_certificates()?.first().map(Identity::of)
    }

    /// TLS version and cipher; `None` during the handshake.
    pub(crate) fn cipher(&self) -> Option<Cipher> {
        if self.session.is_handshaking() {
            return None;
        }
        Some(Cipher {
            version: self.session.protocol_version()?,
            suite: self.session.negotiated_cipher_suite()?.suite(),
        })
    }

    /// Takes over new TLS settings; false if they do not admit the client. A running handshake goes on under the settings
    /// with which it began, because there is no certificate to check until it is over.
    pub(crate) fn follow(&mut self, acceptor: &Arc<Acceptor>) -> bool {
        if Arc::ptr_eq(acceptor, &self.acceptor) || self.session.is_handshaking() {
            return true;
        }
        self.acceptor = Arc::clone(acceptor);
        acceptor.admits(self.session.peer_certificates().unwrap_or_default())
    }

    /// True if the stream holds received data that is to be read although the socket reports no event.
    pub(crate) fn has_received(&self) -> bool {
        self.decrypted > 0 || !self.unread.is_empty()
    }

    /// True if the stream holds encrypted data to be sent.
    pub(crate) fn wants_send(&self) -> bool {
        self.session.wants_write()
    }

    /// Receives into up to two buffers, one after the other, of which at least one has room; returns the number of bytes,
    /// where 0 means that the peer has ended its stream.
    ///
    /// # Errors
    /// `WouldBlock` if there are no bytes for the caller; an error that [`reason`] explains if the peer violates TLS or is
    /// not admitted.
    pub(crate) fn receive(
        &mut self,
        socket: &Socket,
        first: &mut [u8],
        second: &mut [u8],
        room: &mut Room,
    ) -> io::Result<usize> {
        let mut places = Places { first, second, filled: 0 };
        self.take(&mut places)?;
        if places.filled == 0 && !self.unread.is_empty() {
            let unread = std::mem::take(&mut self.unread);
            self.unread = self.decrypt(&unread, &mut places)?.to_vec();
        }
        for _ in 0..FRUITLESS {
            if places.filled > 0 || self.ended {
                return Ok(places.filled);
            }
            if !self.unread.is_empty() {
                break;
            }
            let bytes = room.bytes();
            let most = (places.first.len() + places.second.len()).clamp(LEAST, BATCH);
            let iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most };
            // SAFETY: there are so many bytes, and they are ours alone.
            match unsafe { socket.receive(&[iov]) }? {
                0 => return Ok(0),
                received => self.unread = self.decrypt(&bytes[..received], &mut places)?.to_vec(),
            }
        }
        if places.filled > 0 { Ok(places.filled) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Decrypts `bytes` until the buffers `places` are full, or until the records yield too little data; returns the
    /// remaining bytes. A record such as a change of keys may cost some microseconds and carry no data.
    fn decrypt<'a>(&mut self, mut bytes: &'a [u8], places: &mut Places<'_>) -> io::Result<&'a [u8]> {
        let (whole, before) = (bytes.len(), places.filled);
        let is_worth_it = |left: usize, filled: usize| whole - left < IDLE + 2 * (filled - before);
        let handshake = self.session.is_handshaking();
        while !bytes.is_empty() && self.decrypted == 0 && !self.ended {
            if !handshake && !is_worth_it(bytes.len(), places.filled) {
                break;
            }
            self.session.read_tls(&mut bytes)?;
            let state: IoState = self
                .session
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            self.decrypted = state.plaintext_bytes_to_read();
            self.ended = state.peer_has_closed();
            self.take(places)?;
        }
        // Nothing that comes after the end is of any meaning.
        Ok(if self.ended { &[] } else { bytes })
    }

    fn take(&mut self, places: &mut Places<'_>) -> io::Result<()> {
        while self.decrypted > 0 && !places.is_full() {
            let taken = self.session.reader().read(places.free())?;
            places.filled += taken;
            self.decrypted -= taken;
        }
        Ok(())
    }

    /// Encrypts and sends the bytes to which `iov` points; returns the number of bytes accepted. Accepted bytes that do not
    /// fit into the socket wait for [`Self::push`], and no more are accepted until they are sent.
    ///
    /// # Errors
    /// `WouldBlock` if no byte could be accepted.
    ///
    /// # Safety
    /// Every element must point to readable memory of its length. Other threads may write to this memory during the call;
    /// then only the content of the sent bytes is undefined.
    pub(crate) unsafe fn send(&mut self, socket: &Socket, iov: &[libc::iovec], room: &mut Room) -> io::Result<usize> {
        let (mut rest, mut skip, mut taken) = (iov, 0, 0);
        while self.push(socket)? {
            let bytes = room.bytes();
            let mut filled = 0;
            while let Some((piece, after)) = rest.split_first() {
                let length = (piece.iov_len - skip).min(bytes.len() - filled);
                // SAFETY: the source by this function's contract, from `skip` within its length; the target has so many
                // bytes left and is ours alone.
                unsafe {
                    let from = piece.iov_base.cast::<u8>().add(skip);
                    std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(filled), length);
                }
                filled += length;
                skip += length;
                if skip < piece.iov_len {
                    break;
                }
                (rest, skip) = (after, 0);
            }
            if filled == 0 {
                return Ok(taken);
            }
            self.session.writer().write_all(&bytes[..filled])?;
            taken += filled;
        }
        if taken > 0 { Ok(taken) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Sends the encrypted data that is buffered; true if all of it was sent.
    pub(crate) fn push(&mut self, socket: &Socket) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Sender(socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Notifies the peer that no more data follows (close_notify), if the socket has room for the message.
    pub(crate) fn end(&mut self, socket: &Socket) {
        self.session.send_close_notify();
        let _ = self.push(socket);
    }
}

/// The TLS library's error behind an error of [`Stream::receive`]; `None` if the error is one of the socket.
pub(crate) fn reason(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The interface by which rustls writes to a socket.
struct Sender<'a>(&'a Socket);

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: an `IoSlice` has the layout of an `iovec`.
        let iov = unsafe { std::slice::from_raw_parts(pieces.as_ptr().cast::<libc::iovec>(), pieces.len()) };
        // SAFETY: the slices outlive the call.
        unsafe { self.0.send(iov) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
