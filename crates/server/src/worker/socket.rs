//! A connected, non-blocking socket: one system call for many pieces.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::faults::{Call, Faults};

/// A socket, closed with its owner.
pub(crate) struct Socket {
    fd: OwnedFd,
    faults: Faults,
}

impl Socket {
    /// Takes over a socket.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, faults: Faults::NONE }
    }

    /// The same with what a test lets fail.
    pub(crate) fn with(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// The descriptor.
    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Receives into `iov`, one piece after the other; 0 = the peer has finished.
    ///
    /// # Safety
    /// Every element must point to writable memory of its length.
    #[inline]
    pub(crate) unsafe fn receive(&self, iov: &[libc::iovec]) -> io::Result<usize> {
        // SAFETY: by this function's contract.
        let readv = || unsafe { libc::readv(self.fd.as_raw_fd(), iov.as_ptr(), iov.len() as i32) };
        self.call(Call::Receive, readv)
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
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: by this function's contract.
        let sendmsg = || unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, flags) };
        self.call(Call::Send, sendmsg)
    }

    /// Repeats a call while a signal interrupts it.
    #[inline]
    fn call(&self, which: Call, mut call: impl FnMut() -> isize) -> io::Result<usize> {
        loop {
            let error = match self.faults.check(which) {
                Ok(()) => match call() {
                    moved @ 0.. => return Ok(moved as usize),
                    _ => io::Error::last_os_error(),
                },
                Err(errno) => errno.into(),
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // Want of memory in the kernel passes, and is nothing to lose a connection for.
                Some(libc::ENOBUFS | libc::ENOMEM) => return Err(io::ErrorKind::WouldBlock.into()),
                _ => return Err(error),
            }
        }
    }
}
