//! The byte stream under a connection. TLS becomes another variant here.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;

/// A connected, non-blocking stream.
pub(crate) enum Transport {
    /// TCP.
    Tcp(OwnedFd),
    /// A Unix socket.
    Unix(OwnedFd),
}

/// Who is at the other end, as far as the transport tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Address of a TCP peer.
    pub(crate) address: Option<IpAddr>,
    /// Port of a TCP peer.
    pub(crate) port: u16,
    /// User of a Unix peer.
    pub(crate) uid: Option<u32>,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.address, self.uid) {
            (Some(address), _) => std::net::SocketAddr::new(address, self.port).fmt(f),
            (None, Some(uid)) => write!(f, "unix uid {uid}"),
            (None, None) => f.write_str("unix"),
        }
    }
}

/// In how many intervals TCP asks a silent peer whether it is still there, after half of the time that it has.
const KEEPALIVE_PROBES: u32 = 6;

impl Transport {
    /// Takes over an accepted TCP socket, whose peer counts as gone when it has acknowledged nothing for `patience`
    /// (seconds to hours): neither data nor, where there is none, a question.
    pub(crate) fn tcp(fd: OwnedFd, patience: Duration) -> Self {
        let second = Duration::from_secs(1);
        let idle = (patience / 2).max(second);
        // None of these is worth refusing a connection for.
        let _ = sockopt::set_tcp_nodelay(&fd, true);
        let _ = sockopt::set_socket_keepalive(&fd, true);
        let _ = sockopt::set_tcp_keepidle(&fd, idle);
        let _ = sockopt::set_tcp_keepintvl(&fd, (idle / KEEPALIVE_PROBES).max(second));
        let _ = sockopt::set_tcp_keepcnt(&fd, KEEPALIVE_PROBES);
        let _ = sockopt::set_tcp_user_timeout(&fd, patience.as_millis().try_into().unwrap_or(u32::MAX));
        Self::Tcp(fd)
    }

    /// Takes over an accepted Unix socket.
    pub(crate) fn unix(fd: OwnedFd) -> Self {
        // The default of 208 KiB counts overhead and would cut a batch of 32 replies of 4 KiB in two.
        let _ = sockopt::set_socket_send_buffer_size(&fd, UNIX_SEND_BUFFER);
        Self::Unix(fd)
    }

    /// The socket.
    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(fd) | Self::Unix(fd) => fd.as_fd(),
        }
    }

    /// Receives into up to two buffers, one after the other. 0 = the peer has finished.
    #[inline]
    pub(crate) fn receive(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let iov = [
            libc::iovec { iov_base: first.as_mut_ptr().cast(), iov_len: first.len() },
            libc::iovec { iov_base: second.as_mut_ptr().cast(), iov_len: second.len() },
        ];
        let iov = if first.is_empty() { &iov[1..] } else { &iov[..] };
        loop {
            // SAFETY: the slices are valid for their lengths.
            let n = unsafe { libc::readv(self.fd().as_raw_fd(), iov.as_ptr(), iov.len() as i32) };
            if n >= 0 {
                return Ok(n as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Sends what `iov` points to, without blocking and without SIGPIPE; bytes taken.
    ///
    /// # Safety
    /// Every element must point to readable memory of its length. Memory that others
    /// write meanwhile is allowed (the kernel copies it); only its content is then undefined.
    #[inline]
    pub(crate) unsafe fn send(&self, iov: &[libc::iovec]) -> io::Result<usize> {
        // SAFETY: all-zero is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = iov.as_ptr().cast_mut();
        message.msg_iovlen = iov.len() as _;
        loop {
            // SAFETY: by this function's contract.
            let n = unsafe {
                libc::sendmsg(self.fd().as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
            };
            if n >= 0 {
                return Ok(n as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Send buffer of a Unix socket in bytes, as far as `net.core.wmem_max` allows.
const UNIX_SEND_BUFFER: usize = 1 << 20;
