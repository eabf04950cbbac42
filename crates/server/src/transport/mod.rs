//! The byte stream of a connection: a socket, plain or under TLS.

pub(crate) mod passed;
pub(crate) mod socket;
pub(crate) mod tls;
pub(crate) mod users;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::access::Caller;
use rustix::net::sockopt;

use crate::faults::Faults;
use socket::Socket;
use tls::{Acceptor, Cipher, Identity};

/// A connected, non-blocking byte stream to a client or server.
pub(crate) struct Transport {
    socket: Socket,
    /// The TLS session, once the client has asked for TLS.
    tls: Option<Box<tls::Stream>>,
}

/// The identity of the other end of a connection, as far as the transport shows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// IP address of a TCP peer; `None` for a Unix socket.
    pub(crate) address: Option<IpAddr>,
    /// Port of a TCP peer; 0 for a Unix socket.
    pub(crate) port: u16,
    /// User id of the peer's process on a Unix socket; `None` for TCP.
    pub(crate) uid: Option<u32>,
    /// TLS version and cipher, once TLS is established.
    pub(crate) cipher: Option<Cipher>,
    /// Identity that the peer has proved under TLS by a client certificate.
    pub(crate) identity: Option<Arc<Identity>>,
}

impl Peer {
    /// True if the peer may be on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        self.uid.is_none()
    }

    /// The peer in the form that access lists check.
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

/// Number of keepalive probes that TCP sends to a silent peer, spread over the second half of the time after which the peer
/// counts as gone.
const KEEPALIVE_PROBES: u32 = 6;

/// Sets the options of a TCP socket; those of a listening socket are inherited by the connections that it accepts. A peer
/// counts as gone if it has acknowledged neither data nor keepalive probes for `patience` (seconds to hours).
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

    /// Bounds the memory that the kernel takes for replies that the client does not receive, beside what is under way to it.
    /// Replies beyond that stay in buffer memory, where they count for their tenant.
    pub(crate) fn bound_unsent(&self) {
        let (fd, bytes) = (self.fd().as_raw_fd(), UNSENT_OF_MANY);
        let (value, length) = ((&raw const bytes).cast(), size_of_val(&bytes) as libc::socklen_t);
        // SAFETY: the option is an integer of this length.
        let code = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, value, length) };
        if code != 0 {
            // A Unix socket has no such option.
            let _ = sockopt::set_socket_send_buffer_size(self.fd(), UNIX_SEND_BUFFER_OF_MANY);
        }
    }

    /// The bound that [`Self::bound_unsent`] has set for a TCP socket, in bytes; 0 if there is none.
    #[cfg(test)]
    pub(crate) fn unsent_bound(&self) -> libc::c_int {
        let mut bytes: libc::c_int = 0;
        let mut length = size_of_val(&bytes) as libc::socklen_t;
        let (fd, option, value) = (self.fd().as_raw_fd(), libc::TCP_NOTSENT_LOWAT, (&raw mut bytes).cast());
        // SAFETY: the option is an integer of this length.
        let code = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, option, value, &raw mut length) };
        assert_eq!(code, 0, "it is a TCP socket");
        bytes
    }

    /// This stream, marked as one whose client may have passed descriptors before the kernel was asked to refuse them.
    pub(crate) fn that_brings_descriptors(self) -> Self {
        Self { socket: self.socket.that_brings_descriptors(), ..self }
    }

    /// True if the stream is a Unix socket of a user who is barred: of the descriptors that the user has passed, too many are not
    /// closed yet.
    pub(crate) fn is_barred(&self) -> bool {
        self.socket.is_barred()
    }

    /// This stream, as one of a user with too many descriptors that are not closed.
    #[cfg(test)]
    pub(crate) fn barred(self) -> Self {
        Self { socket: self.socket.of(users::User::barred()), ..self }
    }

    /// This stream, with faults that a test injects.
    pub(crate) fn with(self, faults: Faults) -> Self {
        Self { socket: self.socket.with(faults), ..self }
    }

    /// This stream under the TLS session `tls` of a client, if there is one.
    pub(crate) fn under(self, tls: Option<Box<tls::Stream>>) -> Self {
        Self { tls, ..self }
    }

    /// Begins TLS: from now on all data is encrypted in both directions.
    ///
    /// # Errors
    /// An error of the TLS library; none with a configuration that has passed its checks.
    pub(crate) fn secure(&mut self, acceptor: Arc<Acceptor>) -> Result<(), rustls::Error> {
        self.tls = Some(Box::new(tls::Stream::server(acceptor)?));
        Ok(())
    }

    /// The TLS session; `None` without TLS.
    #[inline]
    pub(crate) fn tls(&mut self) -> Option<&mut tls::Stream> {
        self.tls.as_deref_mut()
    }

    /// True if the stream is encrypted.
    #[inline]
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// True if TLS holds received data that is to be read although the socket reports no event.
    #[inline]
    pub(crate) fn has_received(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_received())
    }

    /// True if TLS holds data to be sent: bytes accepted by [`Self::send`], or messages of TLS itself.
    #[inline]
    pub(crate) fn wants_send(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_send())
    }

    /// Bytes that TLS holds: received and not taken by [`Self::receive`], or accepted by [`Self::send`] and not sent.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.held())
    }

    /// Sends the data that TLS holds; true if all of it was sent.
    #[inline]
    pub(crate) fn push(&mut self) -> io::Result<bool> {
        self.tls.as_mut().map_or(Ok(true), |tls| tls.push(&self.socket))
    }

    /// Makes TCP acknowledge received data at once, not only with the next data that is sent: a client that sends a message
    /// in pieces may wait for the acknowledgement before the next piece. The effect ends when data is received or sent.
    ///
    /// A message whose last piece is sent with MSG_MORE, as libnbd sends LIST_META_CONTEXT without queries, does not leave the
    /// client's kernel before a timer of 200 ms ends or a segment of this server comes. The server cannot know of the message, so
    /// there is nothing to acknowledge.
    pub(crate) fn acknowledge(&self) {
        // Not so on Unix sockets, where there is nothing to acknowledge.
        let _ = sockopt::set_tcp_quickack(self.fd(), true);
    }

    /// Number of bytes that the socket has accepted and the peer has not acknowledged; 0 if the system does not show it.
    pub(crate) fn on_their_way(&self) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open, and the call writes one integer.
        let told = unsafe { libc::ioctl(self.fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if told == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
    }

    /// Under TLS, notifies the peer that no more data follows; without TLS does nothing.
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

    /// Discards up to `pieces` times 16 KiB of received data that the server will not use; 0 means that the peer has ended
    /// its stream.
    pub(crate) fn discard(&self, pieces: usize) -> io::Result<usize> {
        self.socket.discard(pieces)
    }

    /// Copies all received bytes that wait in the socket into `into`, and leaves them there; returns their number. `None` if they
    /// are more than fit, or cannot be read in this way.
    pub(crate) fn peek_all(&self, into: &mut [u8]) -> Option<usize> {
        if self.is_secure() { None } else { self.socket.peek_all(into) }
    }

    /// Descriptor of the socket.
    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Receives into up to two buffers, one after the other; returns the number of bytes, where 0 means that the peer has
    /// ended its stream. `room`: scratch memory for TLS.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
        room: &mut tls::Scratch,
    ) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            return tls.receive(&self.socket, first, second, room);
        }
        let iov = [first, second].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        let iov = if iov[0].iov_len == 0 { &iov[1..] } else { &iov[..] };
        // SAFETY: the slices are valid for their lengths.
        unsafe { self.socket.receive(iov) }
    }

    /// Sends the bytes to which `iov` points, without blocking and without SIGPIPE; returns the number of bytes accepted,
    /// which under TLS may still wait for [`Self::push`]. `room`: scratch memory for TLS.
    ///
    /// # Safety
    /// Every element must point to readable memory of its length. Other threads may write to this memory during the call (the
    /// kernel copies it); then only the content of the sent bytes is undefined.
    #[inline]
    pub(crate) unsafe fn send(&mut self, iov: &[libc::iovec], room: &mut tls::Scratch) -> io::Result<usize> {
        // SAFETY: by this function's contract.
        unsafe {
            match &mut self.tls {
                Some(tls) => tls::send(tls, &self.socket, iov, room),
                None => self.socket.send(iov),
            }
        }
    }
}

/// Size of the send buffer of a Unix socket in bytes, as far as `net.core.wmem_max` allows.
const UNIX_SEND_BUFFER: usize = 1 << 20;
/// Replaces [`UNIX_SEND_BUFFER`] for a client with many connections: the default of `net.core.wmem_max`.
const UNIX_SEND_BUFFER_OF_MANY: usize = 208 << 10;
/// Number of bytes that wait unsent in the TCP socket of a client with many connections, at most: a worker refills them in time
/// if the client takes less than some GB/s. The kernel would otherwise take up to `net.ipv4.tcp_wmem` (4 MiB) for a client that
/// receives nothing.
const UNSENT_OF_MANY: libc::c_int = 512 << 10;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn replies_that_are_not_received_take_a_bounded_part_of_the_kernels_memory() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let tcp = Transport::tcp(listener.accept().unwrap().0.into());
        assert_eq!(tcp.unsent_bound(), 0);
        tcp.bound_unsent();
        assert_eq!(tcp.unsent_bound(), UNSENT_OF_MANY);

        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let unix = Transport::unix(ours.into());
        unix.bound_unsent();
        // The kernel doubles it.
        assert!(sockopt::socket_send_buffer_size(unix.fd()).unwrap() <= 2 * UNIX_SEND_BUFFER_OF_MANY);
    }

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
