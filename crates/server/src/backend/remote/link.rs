//! A connection to a remote server: requests to be sent, requests in flight, and the parser of replies.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use evenkeel_control::Instant;
use evenkeel_nbd::client::{Connected, Expect, MAX_CARRY, MAX_REQUEST, Replies, Request, Sink, Violation};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Framing, STATE_HOLE, STATE_ZERO};

use super::{Guaranteed, Job};
use crate::backend::operation::{Extent, FileIo};
use crate::clock;
use crate::transport::Transport;
use crate::transport::tls::Scratch;

/// Largest number of requests in flight on one connection: enough to keep a slow server busy. Further requests wait in the
/// driver, where they can still go to another connection.
pub(super) const DEPTH: usize = 256;
/// Longest range of a trim, zeroing or block-status request, in bytes: compact headers cannot express 4 GiB.
const MAX_RANGE: u64 = 1 << 31;
/// Largest number of extents of one reply that are kept; the client asks again for the rest of its range.
const MAX_EXTENTS: usize = 1024;
/// Largest number of pieces of memory that one system call sends; the kernel's limit (`UIO_MAXIOV`) is 1024, and more pieces
/// than these hardly save time.
const MAX_PIECES: usize = 128;
/// Largest number of bytes received with one system call.
pub(super) const SCRATCH: usize = 256 << 10;
/// Number of times that a connection is read in a row before other connections get their turn.
const READS_IN_A_ROW: usize = 4;

const _: () = assert!(SCRATCH > MAX_CARRY);

/// An operation in flight on a connection.
pub(super) enum Flight {
    /// A job, or a part of a job that takes several requests.
    Job(Job),
    /// A flush that belongs to a round of flushes on all connections; it covers the first `covers` acknowledged writes of its
    /// connection.
    Flush {
        /// Value of [`Link::acknowledged`] when the flush was queued.
        covers: u64,
        /// Number of the round of flushes to which this flush belongs.
        round: u64,
    },
}

struct Slot {
    cookie: u64,
    command: Command,
    offset: u64,
    length: u64,
    extents: Vec<Extent>,
    /// Number of bytes that `extents` covers.
    told: u64,
    /// True once the whole request has been sent, so that its payload is not read any more.
    is_sent: bool,
    flight: Flight,
}

/// The result of a request that the remote server has answered.
pub(super) struct Answer {
    /// The operation that was answered.
    pub(super) flight: Flight,
    /// Length of the request's range, in bytes.
    pub(super) length: u64,
    /// The extents of a block-status request (otherwise empty), or the server's error.
    pub(super) result: Result<Vec<Extent>, Errno>,
}

/// The requests in flight. The lower 32 bits of a request's cookie are the index of its slot, the upper 32 bits a serial
/// number, so that a second reply to a request is detected.
#[derive(Default)]
struct Slots {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    serial: u32,
}

impl Slots {
    fn get(&self, cookie: u64) -> Option<&Slot> {
        self.slots.get(cookie as u32 as usize)?.as_ref().filter(|slot| slot.cookie == cookie)
    }

    fn get_mut(&mut self, cookie: u64) -> Option<&mut Slot> {
        self.slots.get_mut(cookie as u32 as usize)?.as_mut().filter(|slot| slot.cookie == cookie)
    }
}

/// A request to be sent: its header and, for a write, a pointer to its payload.
struct Outgoing {
    cookie: u64,
    header: [u8; MAX_REQUEST],
    header_len: usize,
    payload: *const u8,
    payload_len: usize,
}

/// A connection whose handshake is done.
pub(super) struct Link {
    transport: Transport,
    /// Serial number, which distinguishes the connection from earlier ones in the same place.
    pub(super) serial: u32,
    /// Time at which the connection was made.
    pub(super) since: Instant,
    framing: Framing,
    has_context: bool,
    replies: Replies,
    carry: Vec<u8>,
    /// Scratch memory for TLS.
    room: Scratch,
    slots: Slots,
    out: VecDeque<Outgoing>,
    /// Number of bytes of the first request in `out` that have been sent.
    sent: usize,
    /// True while the socket's send buffer is full, so that epoll watches it for room.
    pub(super) is_blocked: bool,
    /// Number of writes, trims and zeroings that were acknowledged on this connection and not durable at that time.
    acknowledged: u64,
    /// Number of the requests in `acknowledged` that a later flush has covered.
    flushed: u64,
    /// True if the server has answered a request on this connection other than with the error that it is shutting down.
    pub(super) has_answered: bool,
}

// SAFETY: the pointers of `out` and of the jobs in flight come with the duty to finish the operation; see `FileIo`.
unsafe impl Send for Link {}

impl Link {
    /// A connection after its handshake, whose result is `connected`.
    pub(super) fn new(transport: Transport, connected: &Connected, serial: u32) -> Self {
        Self {
            transport,
            serial,
            since: clock::now(),
            framing: connected.framing,
            has_context: connected.context.is_some(),
            replies: Replies::new(connected.framing, connected.context),
            carry: Vec::new(),
            room: Scratch::default(),
            slots: Slots::default(),
            out: VecDeque::new(),
            sent: 0,
            is_blocked: false,
            acknowledged: 0,
            flushed: 0,
            has_answered: false,
        }
    }

    /// Descriptor of the connection's socket.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.transport.fd()
    }

    /// True if TLS holds received data, of which the socket reports no event.
    pub(super) fn has_received(&self) -> bool {
        self.transport.has_received()
    }

    /// Number of requests sent or queued and not answered.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.slots.len() - self.slots.free.len()
    }

    /// True if writes acknowledged on this connection have not been covered by a flush.
    pub(super) fn is_dirty(&self) -> bool {
        self.acknowledged > self.flushed
    }

    /// True if the server supports block-status requests on this connection, which show data and holes.
    pub(super) fn has_extents(&self) -> bool {
        self.has_context
    }

    /// Queues a request for a job, or for as much of the job as fits into one request.
    pub(super) fn queue(&mut self, job: Job, guaranteed: &Guaranteed) {
        let (mut payload, mut flags) = ((std::ptr::null(), 0), CommandFlags::NONE);
        let (command, offset, length) = match job.io {
            FileIo::Read { offset, len, .. } => (Command::Read, offset, u64::from(len)),
            FileIo::Write { ptr, len, offset, durable } => {
                payload = (ptr, len as usize);
                flags |= if durable { CommandFlags::FUA } else { CommandFlags::NONE };
                (Command::Write, offset, u64::from(len))
            }
            FileIo::Trim { offset, len } => (Command::Trim, offset, len),
            FileIo::Zero { offset, len, punch, may_write } => {
                flags |= if punch { CommandFlags::NONE } else { CommandFlags::NO_HOLE };
                flags |= if guaranteed.tries_fast(may_write) { CommandFlags::FAST_ZERO } else { CommandFlags::NONE };
                (Command::WriteZeroes, offset, len)
            }
            FileIo::Cache { offset, len } => (Command::Cache, offset, len),
            FileIo::Extents { offset, len, .. } => (Command::BlockStatus, offset, len),
            // The driver's own affair.
            FileIo::Sync { .. } => (Command::Flush, 0, 0),
        };
        let (offset, length) = match command {
            Command::Read | Command::Write | Command::Flush => (offset, length),
            _ => (offset + job.done, (length - job.done).min(MAX_RANGE)),
        };
        self.push(command, flags, offset, length, payload, Flight::Job(job));
    }

    /// Queues a flush for the round of flushes with this number; it covers all writes acknowledged on this connection so far.
    pub(super) fn queue_flush(&mut self, round: u64) {
        let flight = Flight::Flush { covers: self.acknowledged, round };
        self.push(Command::Flush, CommandFlags::NONE, 0, 0, (std::ptr::null(), 0), flight);
    }

    fn push(
        &mut self,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        length: u64,
        (payload, payload_len): (*const u8, usize),
        flight: Flight,
    ) {
        let slots = &mut self.slots;
        let index = slots.free.pop().unwrap_or_else(|| {
            slots.slots.push(None);
            slots.slots.len() as u32 - 1
        });
        slots.serial = slots.serial.wrapping_add(1).max(1);
        let cookie = u64::from(slots.serial) << 32 | u64::from(index);
        slots.slots[index as usize] =
            Some(Slot { cookie, command, offset, length, extents: Vec::new(), told: 0, is_sent: false, flight });
        let mut header = [0; MAX_REQUEST];
        let header_len = Request { cookie, command, flags, offset, length }.encode_into(self.framing, &mut header);
        self.out.push_back(Outgoing { cookie, header, header_len, payload, payload_len });
    }

    /// Sends queued requests and what TLS holds, as much as the socket accepts.
    ///
    /// # Errors
    /// The error because of which the connection is lost.
    pub(super) fn send(&mut self) -> io::Result<()> {
        self.is_blocked = false;
        while !self.out.is_empty() {
            let mut iov = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_PIECES];
            let (mut count, mut skip) = (0, self.sent);
            for outgoing in &self.out {
                if count + 2 > MAX_PIECES {
                    break;
                }
                let parts = [(outgoing.header.as_ptr(), outgoing.header_len), (outgoing.payload, outgoing.payload_len)];
                for (ptr, len) in parts {
                    let skipped = skip.min(len);
                    skip -= skipped;
                    if len > skipped {
                        // SAFETY: `skipped` bytes into `len`.
                        let base = unsafe { ptr.add(skipped) };
                        iov[count] = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len - skipped };
                        count += 1;
                    }
                }
            }
            // SAFETY: headers are in `out`, and a payload is valid until its job is reported done.
            match unsafe { self.transport.send(&iov[..count], &mut self.room) } {
                Ok(sent) => self.consume(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.is_blocked = !self.transport.push()?;
        Ok(())
    }

    fn consume(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some(first) = self.out.front() {
            let length = first.header_len + first.payload_len;
            if self.sent < length {
                break;
            }
            if let Some(slot) = self.slots.get_mut(first.cookie) {
                slot.is_sent = true;
            }
            self.sent -= length;
            self.out.pop_front();
        }
    }

    /// Reads and parses the replies that have arrived; appends the requests that they complete to `answers`.
    ///
    /// # Errors
    /// The reason why the connection is of no further use.
    pub(super) fn receive(&mut self, scratch: &mut [u8], answers: &mut Vec<Answer>) -> Result<(), Broken> {
        for _ in 0..READS_IN_A_ROW {
            let carried = self.carry.len();
            scratch[..carried].copy_from_slice(&self.carry);
            let received = match self.transport.receive(&mut [], &mut scratch[carried..], &mut self.room) {
                Ok(0) => return Err(Broken::Closed),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Broken::Socket(error)),
            };
            let filled = carried + received;
            let before = answers.len();
            let mut sink = Answers { slots: &mut self.slots, answers };
            let parsed = self.replies.parse(&scratch[..filled], &mut sink);
            // What was answered before a server broke the protocol counts.
            for answer in &answers[before..] {
                // Good-bye is no answer.
                self.has_answered |= !matches!(answer.result, Err(Errno::Shutdown));
                match (&answer.flight, &answer.result) {
                    (Flight::Job(job), Ok(_)) if job.leaves_something_to_flush() => self.acknowledged += 1,
                    (Flight::Flush { covers, .. }, Ok(_)) => self.flushed = self.flushed.max(*covers),
                    _ => {}
                }
            }
            let consumed = parsed.map_err(Broken::Violation)?;
            self.carry.clear();
            self.carry.extend_from_slice(&scratch[consumed..filled]);
            if filled < scratch.len() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// All operations that were in flight when the connection was lost.
    pub(super) fn into_flights(self) -> impl Iterator<Item = Flight> {
        self.slots.slots.into_iter().flatten().map(|slot| slot.flight)
    }

    /// Sends a disconnect request, which gets no reply, unless other requests are still to be sent.
    pub(super) fn disconnect(&mut self) {
        if self.out.is_empty() {
            let request =
                Request { cookie: 0, command: Command::Disconnect, flags: CommandFlags::NONE, offset: 0, length: 0 };
            let mut header = [0; MAX_REQUEST];
            let header_len = request.encode_into(self.framing, &mut header);
            self.out.push_back(Outgoing { cookie: 0, header, header_len, payload: std::ptr::null(), payload_len: 0 });
            // The server may be gone, or not listening: then it will notice the end of the connection.
            let _ = self.send();
        }
        self.transport.end();
    }
}

/// The reason why a connection is of no further use.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the server closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Socket(io::Error),
    #[error("{0}")]
    Violation(Violation),
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Receives the parsed replies of one batch of received bytes.
struct Answers<'a> {
    slots: &'a mut Slots,
    answers: &'a mut Vec<Answer>,
}

impl Answers<'_> {
    /// Fills a part of the buffer of a read, `length` bytes at `offset` of the export, with `fill`.
    fn place(&mut self, cookie: u64, offset: u64, length: u64, fill: impl FnOnce(&mut [u8])) {
        let Some(slot) = self.slots.get_mut(cookie) else { return };
        let Flight::Job(Job { io: FileIo::Read { ptr, len, .. }, .. }) = slot.flight else { return };
        // SAFETY: `ptr` is valid for `len` bytes until the operation is reported done, and no other code uses them.
        let buffer = unsafe { std::slice::from_raw_parts_mut(ptr, len as usize) };
        let start = offset.wrapping_sub(slot.offset) as usize;
        // The parser has held it against what was asked.
        if let Some(part) = start.checked_add(length as usize).and_then(|end| buffer.get_mut(start..end)) {
            fill(part);
        }
    }
}

impl Sink for Answers<'_> {
    #[inline]
    fn expect(&self, cookie: u64) -> Option<Expect> {
        // An answer ends the operation, after which the buffer of a write is another client's.
        let slot = self.slots.get(cookie).filter(|slot| slot.is_sent)?;
        Some(Expect { command: slot.command, offset: slot.offset, length: slot.length, unfragmented: false })
    }

    #[inline]
    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) {
        self.place(cookie, offset, bytes.len() as u64, |part| part.copy_from_slice(bytes));
    }

    fn hole(&mut self, cookie: u64, offset: u64, length: u64) {
        self.place(cookie, offset, length, |part| part.fill(0));
    }

    fn extent(&mut self, cookie: u64, _context: u32, length: u64, status: u64) {
        let Some(slot) = self.slots.get_mut(cookie) else { return };
        // What is allocated or may hold anything is shown as data: that is never wrong.
        let both = u64::from(STATE_HOLE | STATE_ZERO);
        let hole = status & both == both;
        let len = length.min(slot.length - slot.told);
        slot.told += len;
        let has_room = slot.extents.len() < MAX_EXTENTS;
        match slot.extents.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ if len > 0 && has_room => slot.extents.push(Extent { len, hole }),
            // A gap would move what follows.
            _ => slot.told = slot.length,
        }
    }

    fn done(&mut self, cookie: u64, result: Result<(), Errno>) {
        let index = cookie as u32;
        let Some(slot) = self.slots.slots.get_mut(index as usize).and_then(Option::take) else { return };
        self.slots.free.push(index);
        self.answers.push(Answer { flight: slot.flight, length: slot.length, result: result.map(|()| slot.extents) });
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_nbd::wire::TransmissionFlags;

    use super::super::ReplyTo;
    use super::*;

    #[test]
    fn extents_end_where_the_question_ended() {
        let (mut slots, mut answers) = (Slots::default(), Vec::new());
        slots.slots.push(Some(Slot {
            cookie: 0,
            command: Command::BlockStatus,
            offset: 4096,
            length: 1000,
            extents: Vec::new(),
            told: 0,
            is_sent: true,
            flight: Flight::Flush { covers: 0, round: 0 },
        }));
        let mut sink = Answers { slots: &mut slots, answers: &mut answers };
        for status in [0, STATE_HOLE | STATE_ZERO, 0] {
            sink.extent(0, 0, 600, status.into());
        }
        let slot = slots.get(0).expect("in flight");
        let extents: Vec<_> = slot.extents.iter().map(|extent| (extent.len, extent.hole)).collect();
        assert_eq!((extents, slot.told), (vec![(600, false), (400, true)], 1000));
    }

    #[test]
    fn a_write_that_is_answered_before_it_was_sent_ends_the_connection() {
        use std::io::{Read, Write};
        let (ours, mut server) = std::os::unix::net::UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("settable");
        let connected = Connected {
            size: 1 << 30,
            flags: TransmissionFlags::HAS_FLAGS,
            min_block: 1,
            preferred_block: 4096,
            max_payload: 32 << 20,
            framing: Framing::Simple,
            context: None,
            name: None,
            description: None,
        };
        let guaranteed = Guaranteed::of(&connected).expect("usable");
        let mut link = Link::new(Transport::unix(ours.into()), &connected, 1);
        let payload = vec![7; 16 << 20];
        let (to, _result) = std::sync::mpsc::channel();
        let job = |len| Job {
            io: FileIo::Write { ptr: payload.as_ptr(), len, offset: 0, durable: false },
            to: ReplyTo::Thread(to.clone()),
            done: 0,
            order: 0,
            lost_at: None,
        };
        let (mut scratch, mut answers) = (vec![0; SCRATCH], Vec::new());
        let mut header = [0; 28];
        let reply = |header: &[u8]| [&0x6744_6698_u32.to_be_bytes(), &[0; 4], &header[8..16]].concat();

        // One that has gone out in full is answered as ever.
        link.queue(job(512), &guaranteed);
        link.send().expect("there is room");
        server.read_exact(&mut header).expect("a header");
        server.read_exact(&mut [0; 512]).expect("a payload");
        server.write_all(&reply(&header)).expect("a reply");
        link.receive(&mut scratch, &mut answers).expect("in order");
        assert_eq!((answers.len(), link.in_flight()), (1, 0));

        link.queue(job(16 << 20), &guaranteed);
        link.send().expect("there is some room");
        assert!(link.is_blocked);
        server.read_exact(&mut header).expect("a header");
        server.write_all(&reply(&header)).expect("a reply");
        let broken = link.receive(&mut scratch, &mut answers).expect_err("a lie");
        assert!(matches!(broken, Broken::Violation(_)), "{broken}");
        assert_eq!((answers.len(), link.into_flights().count()), (1, 1), "the write goes to the next connection");
    }
}
