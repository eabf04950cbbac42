//! Refuses or closes file descriptors that a client passes over a Unix socket; the server uses none of them.
//!
//! The client can determine how long closing a descriptor takes: a TCP socket lingers, a deleted file of a terabyte is
//! truncated, a FUSE file system does not answer. From Linux 6.16 on, a socket can have the kernel refuse passed descriptors.
//! On older kernels the descriptors are received, and threads of their [users](super::users) close them. The server's own
//! sockets are closed by a thread that closes nothing else.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::users::{MOST, User};
use crate::prompt;

/// Number of the socket option `SO_PASSRIGHTS` (Linux 6.16).
const SO_PASSRIGHTS: libc::c_int = 83;
/// Size of a control message with [`MOST`] descriptors, in machine words.
const WORDS: usize = (size_of::<libc::cmsghdr>() + MOST * size_of::<RawFd>()).div_ceil(size_of::<usize>());
/// Largest number of messages that are read from a socket before it is closed: more than a socket holds that is shut down.
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

/// Receives into `iov` from a connection of `user` as `readv` does, without blocking. If descriptors come with the data, the
/// call fails with EPROTO, and another thread closes them. For a user who is barred the call fails with EPROTO and receives
/// nothing.
///
/// # Safety
/// Every element must point to writable memory of its length.
pub(super) unsafe fn receive(socket: BorrowedFd<'_>, iov: &[libc::iovec], user: &Arc<User>) -> isize {
    if !user.is_barred() {
        let mut passed = Vec::new();
        // SAFETY: by this function's contract.
        let received = unsafe { take(socket, iov, &mut passed) };
        if passed.is_empty() {
            return received;
        }
        user.give(passed);
    }
    // SAFETY: the pointer is to this thread's own variable.
    unsafe { *libc::__errno_location() = libc::EPROTO };
    -1
}

/// A socket of the server that is to be closed, and the user of its peer.
type Closed = (OwnedFd, Arc<User>);

/// The way to the thread that closes sockets; `None` until the thread has been started.
pub(super) type Closer = Mutex<Option<Sender<Closed>>>;

/// Has another thread close the socket of a connection of `user`, which is shut down, so that the caller need not wait. If
/// descriptors wait in the socket, a thread of the user closes both.
pub(super) fn close(socket: OwnedFd, user: Arc<User>) {
    static CLOSER: Closer = Mutex::new(None);
    close_by(&CLOSER, start, socket, user);
}

/// Closes a socket as [`close`] does, by the thread of `closer`, which `start` starts if it is not running yet. Without that
/// thread the socket is left to a thread of the user, and the next call tries again.
pub(super) fn close_by(
    closer: &Closer,
    start: impl FnOnce() -> io::Result<Sender<Closed>>,
    socket: OwnedFd,
    user: Arc<User>,
) {
    let mut sender = closer.lock().unwrap_or_else(PoisonError::into_inner);
    if sender.is_none() {
        *sender = start().ok();
    }
    let unsent = match &*sender {
        // The thread ends with the process.
        Some(sender) => sender.send((socket, user)).err().map(|unsent| unsent.0),
        None => Some((socket, user)),
    };
    drop(sender);
    if let Some((socket, user)) = unsent {
        user.give(vec![socket]);
    }
}

/// Starts a thread that closes sockets; returns the way to it.
pub(super) fn start() -> io::Result<Sender<Closed>> {
    let (sender, sockets) = channel::<Closed>();
    let run = move || {
        prompt::roam();
        for (socket, user) in sockets {
            if holds_descriptors(socket.as_fd()) {
                user.give(vec![socket]);
            }
        }
    };
    std::thread::Builder::new().name("evenkeel-close".into()).spawn(run)?;
    Ok(sender)
}

/// True if descriptors wait in a socket. Receives what waits before them: without descriptors the socket is empty afterwards,
/// and closing it closes nothing else.
fn holds_descriptors(socket: BorrowedFd<'_>) -> bool {
    let mut bytes = [0_u8; 4096];
    for _ in 0..MESSAGES {
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all-zero is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the array is as long as it says. Without room for control messages the kernel makes no descriptors.
        let peeked = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        let Some(length @ 1..) = usize::try_from(peeked).ok() else { return false };
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            return true;
        }
        // SAFETY: as above; exactly these bytes bring no descriptors.
        unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), length, libc::MSG_DONTWAIT) };
    }
    true
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
pub(super) mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;
    use crate::transport::socket::Socket;

    /// Sends four bytes and the descriptor `fd` over a Unix socket.
    pub(crate) fn pass(socket: &UnixStream, fd: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(socket, &[io::IoSlice::new(b"four")], &mut control, SendFlags::empty())
    }

    /// Both ends of a TCP connection.
    pub(crate) fn connection() -> (TcpStream, TcpStream) {
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
        let user = User::of(ours.as_fd());
        let mut bytes = [0_u8; 16];
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        // SAFETY: the array is as long as it says.
        assert_eq!(unsafe { receive(ours.as_fd(), &iov, &user) }, -1);
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
        let user = User::of(ours.as_fd());
        close(ours.into(), user);
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(far.read(&mut [0_u8; 16]).unwrap(), 0);
    }

    #[test]
    fn a_socket_without_descriptors_is_closed_although_its_user_is_barred() {
        // A TCP socket shows at its far end that it is closed.
        let (own, mut far) = connection();
        close(own.into(), User::barred());
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(far.read(&mut [0; 16]).unwrap(), 0);
    }

    #[test]
    fn what_waits_before_descriptors_is_not_taken_for_them() {
        let ((ours, mut theirs), (passed, _far)) = (UnixStream::pair().unwrap(), connection());
        assert!(!holds_descriptors(ours.as_fd()), "nothing waits");
        theirs.write_all(&[0; 3 * 4096 + 1]).unwrap();
        assert!(!holds_descriptors(ours.as_fd()));
        theirs.write_all(&[0; 3 * 4096 + 1]).unwrap();
        pass(&theirs, passed.as_fd()).unwrap();
        theirs.write_all(&[0; 4096]).unwrap();
        assert!(holds_descriptors(ours.as_fd()));
        // They still wait, and no descriptor was made of them.
        let (mut bytes, mut passed) = ([0_u8; 8192], Vec::new());
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        // A peek that ends where a message ends shows the descriptors of the next one.
        while passed.is_empty() {
            // SAFETY: the array is as long as it says.
            assert!(unsafe { take(ours.as_fd(), &iov, &mut passed) } > 0);
        }
        assert_eq!(passed.len(), 1);
        assert!(!holds_descriptors(ours.as_fd()));
    }

    #[test]
    fn descriptors_that_come_with_urgent_data_are_found_and_received() {
        let ((ours, theirs), (passed, mut far)) = (UnixStream::pair().unwrap(), connection());
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [passed.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        if sendmsg(&theirs, &[io::IoSlice::new(b"!")], &mut control, SendFlags::OOB).is_err() {
            println!("skipped: the kernel has no urgent data of Unix sockets");
            return;
        }
        drop(passed);
        let socket = Socket::new(ours.into()).that_brings_descriptors();
        assert!(holds_descriptors(socket.fd()));
        let user = User::of(socket.fd());
        let mut bytes = [0_u8; 16];
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        // SAFETY: the array is as long as it says.
        assert_eq!(unsafe { receive(socket.fd(), &iov, &user) }, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPROTO));
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(far.read(&mut bytes).unwrap(), 0, "the last reference is gone");
    }

    #[test]
    fn nothing_is_received_from_a_user_who_is_barred() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ((passed, _far), user) = (connection(), User::barred());
        pass(&theirs, passed.as_fd()).unwrap();
        let mut bytes = [0_u8; 16];
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        // SAFETY: the array is as long as it says.
        assert_eq!(unsafe { receive(ours.as_fd(), &iov, &user) }, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPROTO));
        assert_eq!(rustix::io::ioctl_fionread(&ours), Ok(4), "no descriptor was made");
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
