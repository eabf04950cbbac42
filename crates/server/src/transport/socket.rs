//! A connected, non-blocking socket that sends and receives many pieces of memory with one system call.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::passed;
use super::users::User;
use crate::faults::{Call, Faults};

/// Number of bytes discarded with one call: thousands of requests without data, yet too few for a hostile client to keep a
/// worker busy.
const PIECE: usize = 16 << 10;
/// Largest number of pieces of [`PIECE`] bytes that are discarded in a row.
pub(crate) const PIECES: usize = 16;

/// A connected socket, which is closed when this value is dropped.
pub(crate) struct Socket {
    fd: ManuallyDrop<OwnedFd>,
    /// The client's user, if the client may have passed descriptors, which may take long to close.
    user: Option<Arc<User>>,
    faults: Faults,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if let Some(user) = self.user.take() {
            let _ = rustix::net::shutdown(&fd, rustix::net::Shutdown::Both);
            passed::close(fd, user);
        }
    }
}

impl Socket {
    /// Takes over the open socket `fd`.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), user: None, faults: Faults::NONE }
    }

    /// This socket, marked as one to which the client may pass descriptors.
    pub(crate) fn that_brings_descriptors(self) -> Self {
        // Otherwise the kernel closes descriptors that come with urgent data on the thread that receives or closes.
        let _ = rustix::net::sockopt::set_socket_oobinline(self.fd(), true);
        let user = self.user.clone().unwrap_or_else(|| User::of(self.fd()));
        self.of(user)
    }

    /// This socket, as one of `user`, who may pass descriptors.
    pub(super) fn of(mut self, user: Arc<User>) -> Self {
        self.user = Some(user);
        self
    }

    /// True if of the descriptors that the client's user has passed too many are not closed yet.
    pub(crate) fn is_barred(&self) -> bool {
        self.user.as_ref().is_some_and(|user| user.is_barred())
    }

    /// This socket, with faults that a test injects.
    pub(crate) fn with(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Descriptor of the socket.
    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Receives into the memory to which `iov` points, one piece after the other; returns the number of bytes, where 0 means
    /// that the peer has ended its stream.
    ///
    /// # Safety
    /// Every element must point to writable memory of its length.
    #[inline]
    pub(crate) unsafe fn receive(&self, iov: &[libc::iovec]) -> io::Result<usize> {
        if let Some(user) = &self.user {
            // SAFETY: by this function's contract.
            return self.call(Call::Receive, || unsafe { passed::receive(self.fd.as_fd(), iov, user) });
        }
        // SAFETY: by this function's contract.
        let readv = || unsafe { libc::readv(self.fd.as_raw_fd(), iov.as_ptr(), iov.len() as i32) };
        self.call(Call::Receive, readv)
    }

    /// Sends the bytes to which `iov` points, without blocking and without SIGPIPE; returns the number of bytes accepted.
    ///
    /// # Safety
    /// Every element must point to readable memory of its length. Other threads may write to this memory during the call (the
    /// kernel copies it); then only the content of the sent bytes is undefined.
    #[inline]
    pub(crate) unsafe fn send(&self, iov: &[libc::iovec]) -> io::Result<usize> {
        // SAFETY: all-zero is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = iov.as_ptr().cast_mut();
        message.msg_iovlen = iov.len() as _;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: by this function's contract.
        let sendmsg = || unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, flags) };
        self.call(Call::Send, sendmsg)
    }

    /// Discards up to `pieces` times 16 KiB of received data that the server will not use; 0 means that the peer has ended
    /// its stream. Otherwise, if a TCP socket were closed with unread bytes, the connection would be reset, and the peer
    /// would lose replies that are on their way.
    pub(crate) fn discard(&self, pieces: usize) -> io::Result<usize> {
        let mut unread = [0_u8; PIECE];
        for _ in 1..pieces {
            if self.discard_into(&mut unread)? == 0 {
                return Ok(0);
            }
        }
        self.discard_into(&mut unread)
    }

    /// Copies all received bytes that wait in the socket into `into`, and leaves them there; returns their number. `None` if they
    /// are more than fit.
    pub(crate) fn peek_all(&self, into: &mut [u8]) -> Option<usize> {
        let waiting = usize::try_from(rustix::io::ioctl_fionread(self.fd()).ok()?).ok()?;
        if waiting == 0 {
            return Some(0);
        }
        if waiting > into.len() {
            return None;
        }
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let (fd, at, len) = (self.fd.as_raw_fd(), into.as_mut_ptr(), into.len());
        // SAFETY: the slice is as long as it says.
        let peek = || unsafe { libc::recv(fd, at.cast(), len, flags) };
        self.call(Call::Receive, peek).ok().filter(|&peeked| peeked == waiting)
    }

    fn discard_into(&self, unread: &mut [u8]) -> io::Result<usize> {
        let iov = [libc::iovec { iov_base: unread.as_mut_ptr().cast(), iov_len: unread.len() }];
        // SAFETY: the slice is as long as it says.
        unsafe { self.receive(&iov) }
    }

    /// Makes a system call, with the faults for calls of kind `which`; repeats the call while a signal interrupts it.
    #[inline(always)]
    fn call(&self, which: Call, mut call: impl FnMut() -> isize) -> io::Result<usize> {
        loop {
            let error = match self.faults.check(which) {
                Ok(()) => match call() {
                    moved @ 0.. => return Ok(moved as usize),
                    _ => io::Error::last_os_error(),
                },
                Err(errno) => errno.into(),
            };
            if let Some(error) = lasting(error) {
                return Err(error);
            }
        }
    }
}

/// The error of a system call that is reported to the caller; `None` if the call has to be repeated. A lack of kernel memory
/// becomes `WouldBlock`.
#[cold]
fn lasting(error: io::Error) -> Option<io::Error> {
    match error.raw_os_error() {
        Some(libc::EINTR) => None,
        // Want of memory in the kernel passes, and is nothing to lose a connection for.
        Some(libc::ENOBUFS | libc::ENOMEM) => Some(io::ErrorKind::WouldBlock.into()),
        _ => Some(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn bytes_that_are_peeked_at_stay_where_they_are() {
        let (mut client, server) = std::os::unix::net::UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let socket = Socket::new(server.into());
        let mut bytes = [0; 16];
        assert_eq!(socket.peek_all(&mut bytes), Some(0));
        for part in ["in ", "two ", "parts"] {
            client.write_all(part.as_bytes()).unwrap();
        }
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(socket.peek_all(&mut bytes[..11]), None, "all or nothing");
        for _ in 0..2 {
            assert_eq!(socket.peek_all(&mut bytes), Some(12));
            assert_eq!(&bytes[..12], b"in two parts");
        }
        assert_eq!(socket.discard(1).unwrap(), 12);
        assert_eq!(socket.peek_all(&mut bytes), Some(0), "nothing is left");
    }

    #[test]
    fn answers_on_their_way_survive_a_close_with_unread_requests() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(b"a request that is never read").unwrap();
        server.set_nonblocking(true).unwrap();
        let socket = Socket::new(server.into());
        // More than the client's side takes, so that the rest is on its way.
        let answer = [0x5a_u8; 64 << 10];
        let mut sent = 0;
        // SAFETY: the array is as long as it says.
        while let Ok(bytes) = unsafe {
            socket.send(&[libc::iovec { iov_base: answer.as_ptr().cast_mut().cast(), iov_len: answer.len() }])
        } {
            sent += bytes;
        }
        assert!(sent > answer.len());
        let _ = socket.discard(PIECES);
        drop(socket);
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), sent);
    }
}
