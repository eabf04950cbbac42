//! TLS streams over the server's sockets.

use std::io::{self, IoSlice};

use evenkeel_net::tls::Carrier;
pub(crate) use evenkeel_net::tls::{Acceptor, Cipher, Identity, Scratch, Stream, reason};

use super::socket::Socket;

impl Carrier for Socket {
    #[inline]
    fn receive_bytes(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the slice is as long as it says, and it is ours alone.
        unsafe { self.receive(&[iov]) }
    }

    #[inline]
    fn send_pieces(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: an `IoSlice` has the layout of an `iovec`.
        let iov = unsafe { std::slice::from_raw_parts(pieces.as_ptr().cast::<libc::iovec>(), pieces.len()) };
        // SAFETY: the slices outlive the call.
        unsafe { self.send(iov) }
    }
}

/// Encrypts and sends the bytes to which `iov` points; returns the number of bytes accepted. Accepted bytes that do not fit into
/// the socket wait for [`Stream::push`], and no more are accepted until they are sent.
///
/// # Errors
/// `WouldBlock` if no byte could be accepted.
///
/// # Safety
/// Every element must point to readable memory of its length. Other threads may write to this memory during the call; then
/// only the content of the sent bytes is undefined.
pub(crate) unsafe fn send(
    stream: &mut Stream,
    socket: &Socket,
    iov: &[libc::iovec],
    room: &mut Scratch,
) -> io::Result<usize> {
    let (mut rest, mut skip) = (iov, 0);
    stream.send(socket, room, |bytes| {
        let mut filled = 0;
        while let Some((piece, after)) = rest.split_first() {
            let length = (piece.iov_len - skip).min(bytes.len() - filled);
            // SAFETY: the source by this function's contract, from `skip` within its length; the target has so many bytes
            // left and is ours alone.
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
        filled
    })
}
