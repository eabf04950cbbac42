//! Refuses or closes file descriptors that a client passes over a Unix socket; the server uses none of them.
//!
//! The client can determine how long closing the last reference to a descriptor takes: a TCP socket lingers, a deleted file
//! of a terabyte is truncated. From Linux 6.16 on, a socket can have the kernel refuse passed descriptors. On older kernels
//! the descriptors are received, and a separate thread closes them.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use crate::prompt;

/// Number of the socket option `SO_PASSRIGHTS` (Linux 6.16).
const SO_PASSRIGHTS: libc::c_int = 83;
/// Largest number of descriptors in one message (the kernel's `SCM_MAX_FD`).
const MOST: usize = 253;
/// Size of a control message with [`MOST`] descriptors, in machine words.
const WORDS: usize = (size_of::<libc::cmsghdr>() + MOST * size_of::<RawFd>()).div_ceil(size_of::<usize>());
/// Largest number of messages that are read from a socket before it is closed: more than a socket holds, unless its peer goes
/// on sending.
const MESSAGES: usize = 1024;

/// Makes the kernel refuse descriptors that are passed to a Unix socket or, for a listening socket, to connections that it
/// accepts later; false if the kernel cannot do that.
pub(crate) fn refuse(socket: BorrowedFd<'_>) -> bool {
    let no: libc::c_int = 0;
    let length = size_of_val(&no) as libc::socklen_t;
    // SAFETY: the option is an integer of this length.
    unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const no).cast(), length) == 0
    }
}

/// Receives into `iov` as `readv` does, without blocking. If descriptors come with the data, the call fails with EPROTO, and
/// another thread closes them.
///
/// # Safety
/// Every element must point to writable memory of its length.
pub(super) unsafe fn receive(socket: BorrowedFd<'_>, iov: &[libc::iovec]) -> isize {
    let mut passed = Vec::new();
    // SAFETY: by this function's contract.
    let received = unsafe { take(socket, iov, &mut passed) };
    if passed.is_empty() {
        return received;
    }
    passed.into_iter().for_each(close);
    // SAFETY: the pointer is to this thread's own variable.
    unsafe { *libc::__errno_location() = libc::EPROTO };
    -1
}

/// Has another thread close a descriptor, and the descriptors that wait to be received from it, so that the caller need not
/// wait.
pub(super) fn close(fd: OwnedFd) {
    static CLOSER: OnceLock<Option<Sender<OwnedFd>>> = OnceLock::new();
    let closer = CLOSER.get_or_init(|| {
        let (sender, fds) = channel::<OwnedFd>();
        let run = move || {
            prompt::roam();
            fds.into_iter().for_each(|fd| empty(fd).into_iter().for_each(close));
        };
        std::thread::Builder::new().name("evenkeel-close".into()).spawn(run).ok().map(|_| sender)
    });
    if let Some(closer) = closer {
        // The thread ends with the process.
        let _ = closer.send(fd);
    }
}

/// Closes a descriptor after receiving all waiting messages from it; returns the descriptors that were passed in these
/// messages.
fn empty(fd: OwnedFd) -> Vec<OwnedFd> {
    use std::os::fd::AsFd as _;
    let at_once = libc::linger { l_onoff: 0, l_linger: 0 };
    let length = size_of_val(&at_once) as libc::socklen_t;
    // SAFETY: the option is a structure of this length; descriptors that are no sockets have no such option.
    unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const at_once).cast(), length) };
    let (mut bytes, mut passed) = ([0_u8; 4096], Vec::new());
    for _ in 0..MESSAGES {
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        // SAFETY: the array is as long as it says.
        if unsafe { take(fd.as_fd(), &iov, &mut passed) } <= 0 {
            break;
        }
    }
    passed
}

/// Receives into `iov` without blocking, and adds the descriptors that come with the data to `passed`.
///
/// # Safety
/// Every element must point to writable memory of its length.
unsafe fn take(socket: BorrowedFd<'_>, iov: &[libc::iovec], passed: &mut Vec<OwnedFd>) -> isize {
    let mut control = [0_usize; WORDS];
    // SAFETY: all-zero is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_ptr().cast_mut();
    message.msg_iovlen = iov.len() as _;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: by this function's contract, and the control buffer is as long as it says.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if received < 0 {
        return received;
    }
    // SAFETY: the kernel has filled the buffer with whole control messages.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: the header and its data lie within the buffer; each descriptor is new and has no other owner.
        unsafe {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header);
                let bytes = (*header).cmsg_len as usize - (data.addr() - header.addr());
                let fds = (0..bytes / size_of::<RawFd>()).map(|n| data.cast::<RawFd>().add(n).read_unaligned());
                passed.extend(fds.map(|fd| OwnedFd::from_raw_fd(fd)));
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    received
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// Sends four bytes and the descriptor `fd` over a Unix socket.
    fn pass(socket: &UnixStream, fd: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(socket, &[io::IoSlice::new(b"four")], &mut control, SendFlags::empty())
    }

    /// Both ends of a TCP connection.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn a_socket_that_is_passed_is_closed_without_lingering() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (passed, mut far) = connection();
        // Without the thread, closing it would wait for the far end to read what is on its way.
        let linger = libc::linger { l_onoff: 1, l_linger: 100_000 };
        let length = size_of_val(&linger) as libc::socklen_t;
        // SAFETY: the option is a structure of this length.
        unsafe {
            libc::setsockopt(passed.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), length)
        };
        pass(&theirs, passed.as_fd()).unwrap();
        drop(passed);
        let mut bytes = [0_u8; 16];
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        // SAFETY: the array is as long as it says.
        assert_eq!(unsafe { receive(ours.as_fd(), &iov) }, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPROTO));
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(far.read(&mut bytes).unwrap(), 0, "the last reference is gone");
    }

    #[test]
    fn a_socket_is_closed_with_the_descriptors_that_wait_in_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (passed, mut far) = connection();
        pass(&theirs, passed.as_fd()).unwrap();
        drop((passed, theirs));
        close(ours.into());
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(far.read(&mut [0_u8; 16]).unwrap(), 0);
    }

    #[test]
    fn a_kernel_that_can_refuse_descriptors_does() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (passed, _far) = connection();
        if refuse(ours.as_fd()) {
            assert_eq!(pass(&theirs, passed.as_fd()), Err(rustix::io::Errno::PERM));
        } else {
            assert!(pass(&theirs, passed.as_fd()).is_ok());
        }
    }
}
