//! Queues bytes for the server, so that many requests are sent by one system call.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use evenkeel_net::tls::{Scratch, Stream};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// The most pieces that are passed to the kernel in one call. The kernel's limit (`UIO_MAXIOV`) is 1024, but more than 64 gain
/// no speed.
const MAX_PIECES: usize = 64;
/// Number of sent bytes at the front of the buffer from which on the unsent bytes are moved to the front.
const COMPACT_AT: usize = 1 << 20;

/// A run of bytes to send.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// The next bytes of the queue's own buffer, given by their number.
    Own(usize),
    /// A part of the shared payload, given by start and length in bytes.
    Shared(usize, usize),
}

/// The bytes still to be sent on one connection, in order.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    own: Vec<u8>,
    sent: usize,
    pieces: VecDeque<Piece>,
}

impl SendQueue {
    /// True if no bytes are left to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Lets `write` append bytes to the queue.
    #[inline]
    pub(crate) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.own.len();
        write(&mut self.own);
        let added = self.own.len() - before;
        match self.pieces.back_mut() {
            Some(Piece::Own(length)) => *length += added,
            _ => self.pieces.push_back(Piece::Own(added)),
        }
    }

    /// Appends a part of the payload that the caller passes to [`SendQueue::send`].
    pub(crate) fn append_shared(&mut self, start: usize, length: usize) {
        self.pieces.push_back(Piece::Shared(start, length));
    }

    /// Sends as many bytes as the socket accepts. True if the queue is empty afterwards.
    ///
    /// # Errors
    /// The socket's error; a full socket is no error.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, shared: &[u8]) -> Result<bool, Errno> {
        while !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_PIECES];
            let (mut own, mut count) = (self.sent, 0);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(match *piece {
                    Piece::Own(length) => {
                        own += length;
                        &self.own[own - length..own]
                    }
                    Piece::Shared(start, length) => &shared[start..start + length],
                });
                count += 1;
            }
            match sendmsg(socket, &slices[..count], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                Ok(sent) => self.consume(sent),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Encrypts and sends as many bytes as the socket accepts. True if neither the queue nor the TLS stream has bytes left.
    ///
    /// # Errors
    /// The error because of which the connection is lost; a full socket is no error.
    pub(crate) fn send_encrypted(
        &mut self,
        tls: &mut Stream,
        socket: BorrowedFd<'_>,
        shared: &[u8],
        room: &mut Scratch,
    ) -> io::Result<bool> {
        match tls.send(&socket, room, |into| self.take(shared, into)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(tls.push(&socket)? && self.is_empty())
    }

    /// Moves the first bytes of the queue into `into`; returns their number.
    fn take(&mut self, shared: &[u8], into: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < into.len() {
            let bytes = match self.pieces.front() {
                None => break,
                Some(&Piece::Own(length)) => &self.own[self.sent..self.sent + length],
                Some(&Piece::Shared(start, length)) => &shared[start..start + length],
            };
            let length = bytes.len().min(into.len() - filled);
            into[filled..filled + length].copy_from_slice(&bytes[..length]);
            filled += length;
            self.consume(length);
        }
        filled
    }

    fn consume(&mut self, mut bytes: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let length = match piece {
                Piece::Own(length) | Piece::Shared(_, length) => length,
            };
            let here = bytes.min(*length);
            *length -= here;
            bytes -= here;
            let finished = *length == 0;
            match piece {
                Piece::Own(_) => self.sent += here,
                Piece::Shared(start, _) => *start += here,
            }
            if !finished {
                break;
            }
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() {
            self.own.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT_AT {
            self.own.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn everything_arrives_once_and_in_order_through_a_small_socket() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let shared: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let (mut queue, mut expected, mut got) = (SendQueue::default(), Vec::new(), Vec::new());
        for i in 0..200usize {
            let header = vec![i as u8; 1 + i % 40];
            queue.append(|out| out.extend_from_slice(&header));
            expected.extend_from_slice(&header);
            if i % 3 > 0 {
                let (start, length) = (i * 7, 900 * i);
                queue.append_shared(start, length);
                expected.extend_from_slice(&shared[start..start + length]);
            }
        }
        let mut chunk = vec![0; 70_001];
        while got.len() < expected.len() {
            queue.send(ours.as_fd(), &shared).unwrap();
            if let Ok(n) = theirs.read(&mut chunk) {
                got.extend_from_slice(&chunk[..n]);
            }
        }
        assert!(got == expected && queue.is_empty());
        assert!(queue.own.is_empty());
    }

    #[test]
    fn what_is_encrypted_is_the_same_bytes_in_order() {
        let shared: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        for room in [1, 7, 4096, 1 << 20] {
            let (mut queue, mut expected, mut got) = (SendQueue::default(), Vec::new(), Vec::new());
            for i in 0..50usize {
                let header = vec![i as u8; 28];
                queue.append(|out| out.extend_from_slice(&header));
                queue.append_shared(i * 3, 700 * (i % 4));
                expected.extend_from_slice(&header);
                expected.extend_from_slice(&shared[i * 3..i * 3 + 700 * (i % 4)]);
            }
            let mut into = vec![0; room];
            loop {
                match queue.take(&shared, &mut into) {
                    0 => break,
                    taken => got.extend_from_slice(&into[..taken]),
                }
            }
            assert!(got == expected && queue.is_empty(), "{room} bytes at once");
        }
    }

    #[test]
    fn a_closed_peer_is_an_error_and_no_signal() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut queue = SendQueue::default();
        queue.append(|out| out.push(1));
        assert_eq!(queue.send(ours.as_fd(), &[]), Err(Errno::PIPE));
    }
}
