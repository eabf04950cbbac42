//! The byte stream under a connection: a socket, as it is or under TLS.

pub(crate) mod passed;
pub(crate) mod socket;
pub(crate) mod tls;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::access::Caller;
use rustix::net::sockopt;

use crate::faults::Faults;
use socket::Socket;
use tls::{Acceptor, Cipher, Identity};

/// A connected, non-blocking stream.
pub(crate) struct Transport {
    socket: Socket,
    /// The encryption, once the client has asked for it.
    tls: Option<Box<tls::Stream>>,
}

/// The other end, as far as the transport tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Address of a TCP peer.
    pub(crate) address: Option<IpAddr>,
    /// Port of a TCP peer.
    pub(crate) port: u16,
    /// User of a Unix peer.
    pub(crate) uid: Option<u32>,
    /// Version and cipher, once TLS is established.
    pub(crate) cipher: Option<Cipher>,
    /// Identity that the peer has proved under TLS.
    pub(crate) identity: Option<Arc<Identity>>,
}

impl Peer {
    /// True if the peer may be on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        self.uid.is_none()
    }

    /// The peer in the form that access lists judge.
    pub(crate) fn caller(&self) -> Caller<'_> {
        let certificate = self.identity.as_ref().map(|identity| (&identity.names[..], &identity.fingerprint));
        Caller { address: self.address, uid: self.uid, certificate }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.address, self.uid) {
            (Some(address), _) => std::net::SocketAddr::new(address, self.port).fmt(f)?,
            (None, Some(uid)) => write!(f, "unix uid {uid}")?,
            (None, None) => f.write_str("unix")?,
        }
        self.identity.as_ref().map_or(Ok(()), |identity| write!(f, " ({identity})"))
    }
}

/// Keepalive probes that TCP sends to a silent peer, spread over the second half of its time.
const KEEPALIVE_PROBES: u32 = 6;

/// Sets the options of a TCP socket; those of a listening socket are inherited by the connections that it accepts. A peer
/// counts as gone when it has acknowledged nothing for `patience` (seconds to hours): neither data nor keepalive probes.
pub(crate) fn prepare(socket: BorrowedFd<'_>, patience: Duration) {
    let second = Duration::from_secs(1);
    let idle = (patience / 2).max(second);
    // None of these is worth refusing a connection for.
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, idle);
    let _ = sockopt::set_tcp_keepintvl(socket, (idle / KEEPALIVE_PROBES).max(second));
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES);
    let _ = sockopt::set_tcp_user_timeout(socket, patience.as_millis().try_into().unwrap_or(u32::MAX));
}

impl Transport {
    /// Takes over a connected TCP socket whose options [`prepare`] has set.
    pub(crate) fn tcp(fd: OwnedFd) -> Self {
        Self { socket: Socket::new(fd), tls: None }
    }

    /// Takes over an accepted Unix socket.
    pub(crate) fn unix(fd: OwnedFd) -> Self {
        // The default of 208 KiB counts overhead and would cut a batch of 32 replies of 4 KiB in two.
        let _ = sockopt::set_socket_send_buffer_size(&fd, UNIX_SEND_BUFFER);
        let refuses = passed::refuse(fd.as_fd());
        let socket = Socket::new(fd);
        Self { socket: if refuses { socket } else { socket.that_brings_descriptors() }, tls: None }
    }

    /// The same stream, whose client may have passed descriptors before the kernel was asked to refuse them.
    pub(crate) fn that_brings_descriptors(self) -> Self {
        Self { socket: self.socket.that_brings_descriptors(), ..self }
    }

    /// The same stream with failures that a test injects.
    pub(crate) fn with(self, faults: Faults) -> Self {
        Self { socket: self.socket.with(faults), ..self }
    }

    /// Begins TLS: from here on everything is encrypted in both directions.
    ///
    /// # Errors
    /// None that a checked configuration can cause.
    pub(crate) fn secure(&mut self, acceptor: Arc<Acceptor>) -> Result<(), rustls::Error> {
        self.tls = Some(Box::new(tls::Stream::new(acceptor)?));
        Ok(())
    }

    /// The encryption, if there is any.
    #[inline]
    pub(crate) fn tls(&mut self) -> Option<&mut tls::Stream> {
        self.tls.as_deref_mut()
    }

    /// True if the stream is encrypted.
    #[inline]
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// True if TLS holds received data of which no event of the socket tells.
    #[inline]
    pub(crate) fn has_received(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_received())
    }

    /// True if TLS holds data to be sent: taken by [`Self::send`], or its own messages.
    #[inline]
    pub(crate) fn wants_send(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_send())
    }

    /// Sends the data that TLS holds; true if all of it went.
    #[inline]
    pub(crate) fn push(&mut self) -> io::Result<bool> {
        self.tls.as_mut().map_or(Ok(true), |tls| tls.push(&self.socket))
    }

    /// Acknowledges over TCP at once what has arrived, without waiting for an answer to carry that: a client that sends a
    /// message in pieces may wait for it before the next piece. Lasts until something is received or sent.
    pub(crate) fn acknowledge(&self) {
        // Not so on Unix sockets, where there is nothing to acknowledge.
        let _ = sockopt::set_tcp_quickack(self.fd(), true);
    }

    /// Bytes that the socket has taken and the peer has not acknowledged; 0 where the system does not tell.
    pub(crate) fn on_their_way(&self) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open, and the call writes one integer.
        let told = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&self.fd()), libc::TIOCOUTQ, &raw mut bytes) };
        if told == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
    }

    /// Tells the peer under TLS that nothing more comes; without TLS does nothing.
    pub(crate) fn end(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.end(&self.socket);
        }
    }

    /// Shuts down the sending direction; the socket stays open.
    pub(crate) fn end_sending(&self) {
        // A peer that is gone needs no word.
        let _ = rustix::net::shutdown(self.fd(), rustix::net::Shutdown::Write);
    }

    /// Discards up to `pieces` times 16 KiB that the peer has sent and the server will not read; 0 = the peer has finished.
    pub(crate) fn discard(&self, pieces: usize) -> io::Result<usize> {
        self.socket.discard(pieces)
    }

    /// The socket.
    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Receives into up to two buffers, one after the other. 0 = the peer has finished. `room`: scratch memory for TLS.
    #[inline]
    pub(crate) fn receive(&mut self, first: &mut [u8], second: &mut [u8], room: &mut tls::Room) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            return tls.receive(&self.socket, first, second, room);
        }
        let iov = [first, second].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        let iov = if iov[0].iov_len == 0 { &iov[1..] } else { &iov[..] };
        // SAFETY: the slices are valid for their lengths.
        unsafe { self.socket.receive(iov) }
    }

    /// Sends what `iov` points to, without blocking and without SIGPIPE; returns the bytes taken, which under TLS may still
    /// wait for [`Self::push`]. `room`: scratch memory for TLS.
    ///
    /// # Safety
    /// Every element must point to readable memory of its length. Memory that others
    /// write meanwhile is allowed (the kernel copies it); only its content is then undefined.
    #[inline]
    pub(crate) unsafe fn send(&mut self, iov: &[libc::iovec], room: &mut tls::Room) -> io::Result<usize> {
        // SAFETY: by this function's contract.
        unsafe {
            match &mut self.tls {
                Some(tls) => tls.send(&self.socket, iov, room),
                None => self.socket.send(iov),
            }
        }
    }
}

/// Send buffer of a Unix socket in bytes, as far as `net.core.wmem_max` allows.
const UNIX_SEND_BUFFER: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn accepted_sockets_have_what_the_listening_one_was_given() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        prepare(listener.as_fd(), Duration::from_secs(120));
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(sockopt::tcp_nodelay(&accepted), Ok(true));
        assert_eq!(sockopt::socket_keepalive(&accepted), Ok(true));
        assert_eq!(sockopt::tcp_keepidle(&accepted), Ok(Duration::from_secs(60)));
        assert_eq!(sockopt::tcp_keepintvl(&accepted), Ok(Duration::from_secs(10)));
        assert_eq!(sockopt::tcp_keepcnt(&accepted), Ok(KEEPALIVE_PROBES));
        assert_eq!(sockopt::tcp_user_timeout(&accepted), Ok(120_000));
    }
}
