//! A TLS stream over a non-blocking socket, on the server's or on the client's side.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use rustls::{CipherSuite, ClientConnection, Connection, IoState, ProtocolVersion};

use super::{Acceptor, Identity};

/// Largest number of bytes that are received or encrypted at once: four TLS records of the greatest length, so that one
/// system call serves several records and the processor's caches hold them.
const BATCH: usize = 64 << 10;
/// Smallest number of bytes that one system call asks to receive.
const LEAST: usize = 4 << 10;
/// Largest number of reads of the socket in a row that yield no byte for the caller, as in a handshake.
const FRUITLESS: usize = 4;
/// Largest number of received bytes that one call decrypts if they carry no data.
const IDLE: usize = 8 << 10;
/// Largest number of bytes in a row that a peer may send after the handshake without data among them. The longest record has 18
/// KiB. The TLS library keeps a message of up to 64 KiB that comes in many records, and does not show its size.
const MOST_SILENT: usize = 24 << 10;
/// Longest plaintext of a record, in bytes.
const RECORD: usize = 16 << 10;
/// Upper bound on the bytes that a record has beside its plaintext.
const BESIDE: usize = 32;

/// A connected, non-blocking socket that carries a TLS stream.
pub trait Carrier {
    /// Receives into `bytes`; returns the number of bytes, where 0 means that the peer has ended its stream.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes have arrived; an error because of which the connection is lost.
    fn receive_bytes(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Sends the bytes of `pieces`, without blocking and without SIGPIPE; returns the number of bytes accepted.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full; an error because of which the connection is lost.
    fn send_pieces(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Carrier for BorrowedFd<'_> {
    fn receive_bytes(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let (received, _) = retry_on_intr(|| recv(self, &mut *bytes, RecvFlags::empty()))?;
        Ok(received)
    }

    fn send_pieces(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(retry_on_intr(|| sendmsg(self, pieces, &mut SendAncillaryBuffer::default(), flags))?)
    }
}

/// Scratch memory for one call of a stream's method, shared by all streams of a thread. Allocated when it is first used.
#[derive(Default)]
pub struct Scratch(Vec<u8>);

impl Scratch {
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
pub struct Cipher {
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

/// The TLS session of one connection.
///
/// Buffers at most: one partial record for each direction, the bytes received with one system call, 24 KiB of messages of TLS
/// itself after the handshake, and 64 KiB that are encrypted and not yet sent. [`Stream::held`] counts these, without the partial
/// records.
pub struct Stream {
    session: Connection,
    /// The TLS settings under which the client was admitted; `None` on the client's side.
    acceptor: Option<Arc<Acceptor>>,
    /// Bytes received and not yet decrypted, because the caller's buffers had no room.
    unread: Vec<u8>,
    /// Number of bytes decrypted and not yet taken by the caller.
    decrypted: usize,
    /// Number of bytes decrypted since the handshake or since the newest data; the TLS library may keep them.
    silent: usize,
    /// About the number of bytes encrypted and not yet sent.
    unsent: usize,
    /// True if the peer has ended its TLS stream (close_notify).
    ended: bool,
    /// True if [`Self::receive`] has reported this end.
    has_reported_end: bool,
}

impl Stream {
    /// The server's side of a session, before the first byte is received.
    ///
    /// # Errors
    /// As [`Acceptor::session`].
    pub fn server(acceptor: Arc<Acceptor>) -> Result<Self, rustls::Error> {
        let session = Connection::Server(acceptor.session()?);
        Ok(Self { acceptor: Some(acceptor), ..Self::of(session) })
    }

    /// The client's side of a session whose handshake is done, and whose decrypted bytes are all taken.
    pub fn client(mut session: ClientConnection) -> Self {
        // The stream bounds what it has encrypted ahead.
        session.set_buffer_limit(None);
        let ended = session.process_new_packets().is_ok_and(|state| state.peer_has_closed());
        Self { ended, ..Self::of(Connection::Client(session)) }
    }

    fn of(session: Connection) -> Self {
        Self {
            session,
            acceptor: None,
            unread: Vec::new(),
            decrypted: 0,
            silent: 0,
            unsent: 0,
            ended: false,
            has_reported_end: false,
        }
    }

    /// The peer's identity, from its certificate; `None` during the handshake, and if the peer has shown none.
    pub fn identity(&self) -> Option<Identity> {
        self.session.peer_certificates()?.first().map(Identity::of)
    }

    /// TLS version and cipher; `None` during the handshake.
    pub fn cipher(&self) -> Option<Cipher> {
        if self.session.is_handshaking() {
            return None;
        }
        Some(Cipher {
            version: self.session.protocol_version()?,
            suite: self.session.negotiated_cipher_suite()?.suite(),
        })
    }

    /// On the server's side takes over new TLS settings; false if they do not admit the client. A running handshake goes on under
    /// the settings with which it began, because there is no certificate to check until it is over.
    pub fn follow(&mut self, acceptor: &Arc<Acceptor>) -> bool {
        let Some(own) = &mut self.acceptor else { return true };
        if Arc::ptr_eq(acceptor, own) || self.session.is_handshaking() {
            return true;
        }
        *own = Arc::clone(acceptor);
        acceptor.admits(self.session.peer_certificates().unwrap_or_default())
    }

    /// True if the stream holds received data, or its end, that is to be read although the socket reports no event: a peer may
    /// end its TLS stream and keep the socket open.
    #[inline]
    pub fn has_received(&self) -> bool {
        self.decrypted > 0 || !self.unread.is_empty() || (self.ended && !self.has_reported_end)
    }

    /// Bytes that the stream holds: received and not taken by the caller, or accepted by [`Self::send`] and not sent. Of a record
    /// that has arrived in part, only what came after the newest data counts.
    #[inline]
    pub fn held(&self) -> usize {
        self.unread.len() + self.decrypted + self.silent + self.unsent
    }

    /// True if the stream holds encrypted data to be sent.
    #[inline]
    pub fn wants_send(&self) -> bool {
        self.session.wants_write()
    }

    /// Receives into up to two buffers, one after the other, of which at least one has room; returns the number of bytes,
    /// where 0 means that the peer has ended its stream.
    ///
    /// # Errors
    /// `WouldBlock` if there are no bytes for the caller; an error that [`reason`] explains if the peer violates TLS or is
    /// not admitted.
    pub fn receive(
        &mut self,
        carrier: &impl Carrier,
        first: &mut [u8],
        second: &mut [u8],
        room: &mut Scratch,
    ) -> io::Result<usize> {
        let mut places = Places { first, second, filled: 0 };
        self.take(&mut places)?;
        if places.filled == 0 && !self.unread.is_empty() {
            let unread = std::mem::take(&mut self.unread);
            self.unread = self.decrypt(&unread, &mut places)?.to_vec();
        }
        for _ in 0..FRUITLESS {
            if places.filled > 0 || self.ended {
                self.has_reported_end = places.filled == 0;
                return Ok(places.filled);
            }
            if !self.unread.is_empty() {
                break;
            }
            let bytes = room.bytes();
            let most = (places.first.len() + places.second.len()).clamp(LEAST, BATCH);
            match carrier.receive_bytes(&mut bytes[..most])? {
                0 => return Ok(0),
                received => self.unread = self.decrypt(&bytes[..received], &mut places)?.to_vec(),
            }
        }
        if places.filled > 0 { Ok(places.filled) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Decrypts `bytes` until the buffers `places` are full, or until the records yield too little data; returns the
    /// remaining bytes. A record such as a change of keys may cost some microseconds and carry no data.
    #[inline]
    fn decrypt<'a>(&mut self, mut bytes: &'a [u8], places: &mut Places<'_>) -> io::Result<&'a [u8]> {
        let (whole, before) = (bytes.len(), places.filled);
        let is_worth_it = |left: usize, filled: usize| whole - left < IDLE + 2 * (filled - before);
        let handshake = self.session.is_handshaking();
        while !bytes.is_empty() && self.decrypted == 0 && !self.ended {
            if !handshake && !is_worth_it(bytes.len(), places.filled) {
                break;
            }
            let (left, negotiates) = (bytes.len(), self.session.is_handshaking());
            self.session.read_tls(&mut bytes)?;
            let fed = left - bytes.len();
            let state: IoState = self
                .session
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            self.decrypted = state.plaintext_bytes_to_read();
            self.ended = state.peer_has_closed();
            self.heard(fed, negotiates)?;
            self.take(places)?;
        }
        // Nothing that comes after the end is of any meaning.
        Ok(if self.ended { &[] } else { bytes })
    }

    /// Counts `fed` bytes that were decrypted, with data among them if `self.decrypted` is above zero. `negotiates`: true if they
    /// came during the handshake.
    ///
    /// # Errors
    /// If the peer has sent more than [`MOST_SILENT`] bytes without data.
    #[inline]
    fn heard(&mut self, fed: usize, negotiates: bool) -> io::Result<()> {
        if self.decrypted > 0 || negotiates {
            self.silent = 0;
            return Ok(());
        }
        self.silent += fed;
        if self.silent <= MOST_SILENT || self.ended {
            return Ok(());
        }
        let why = rustls::Error::General("the peer sends messages of TLS, and no data among them".to_owned());
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    #[inline]
    fn take(&mut self, places: &mut Places<'_>) -> io::Result<()> {
        while self.decrypted > 0 && !places.is_full() {
            let taken = self.session.reader().read(places.free())?;
            places.filled += taken;
            self.decrypted -= taken;
        }
        Ok(())
    }

    /// Encrypts and sends the bytes that `fill` puts into the slices given to it, until it puts in none; returns the number of
    /// bytes accepted. `fill` returns the number of bytes that it has put in. Accepted bytes that do not fit into the socket wait
    /// for [`Self::push`], and no more are asked for until they are sent.
    ///
    /// # Errors
    /// `WouldBlock` if no byte could be accepted.
    pub fn send(
        &mut self,
        carrier: &impl Carrier,
        room: &mut Scratch,
        mut fill: impl FnMut(&mut [u8]) -> usize,
    ) -> io::Result<usize> {
        let mut taken = 0;
        while self.push(carrier)? {
            let bytes = room.bytes();
            let filled = fill(bytes);
            if filled == 0 {
                return Ok(taken);
            }
            self.session.writer().write_all(&bytes[..filled])?;
            self.unsent += filled + filled.div_ceil(RECORD) * BESIDE;
            taken += filled;
        }
        if taken > 0 { Ok(taken) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Sends the encrypted data that is buffered; true if all of it was sent.
    ///
    /// # Errors
    /// The error because of which the connection is lost.
    pub fn push(&mut self, carrier: &impl Carrier) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Sender(carrier)) {
                Ok(sent) => self.unsent = self.unsent.saturating_sub(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.unsent = 0;
        Ok(true)
    }

    /// Notifies the peer that no more data follows (close_notify), if the socket has room for the message.
    pub fn end(&mut self, carrier: &impl Carrier) {
        self.session.send_close_notify();
        let _ = self.push(carrier);
    }
}

/// The TLS library's error behind an error of [`Stream::receive`]; `None` if the error is one of the socket.
pub fn reason(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The interface by which rustls writes to a socket.
struct Sender<'a, C>(&'a C);

impl<C: Carrier> Write for Sender<'_, C> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_pieces(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_pieces(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::authority::Authority;
    use super::*;

    #[test]
    fn bytes_without_data_are_counted_up_to_a_bound() {
        let authority = Authority::new();
        let config = authority.client(&authority.issue("near"));
        let session = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
        let mut stream = Stream::of(Connection::Client(session));
        stream.heard(2 * MOST_SILENT, true).unwrap();
        assert_eq!(stream.held(), 0, "a handshake has a bound of its own");
        stream.heard(MOST_SILENT, false).unwrap();
        assert_eq!(stream.held(), MOST_SILENT);
        stream.decrypted = 1;
        stream.heard(MOST_SILENT, false).unwrap();
        assert_eq!(stream.held(), 1, "there was data");
        stream.decrypted = 0;
        stream.heard(MOST_SILENT, false).unwrap();
        let error = stream.heard(1, false).unwrap_err();
        assert!(reason(&error).is_some_and(|why| why.to_string().contains("no data among them")), "{error}");
    }
}
