//! One client connection: everything that moves with it from worker to worker.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use evenkeel_control::pool::TenantId;
use evenkeel_control::units::Work;
use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::server::{Handshake, Limits, ReplyHeader, Session};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno};

use super::meter::Toll;
use super::transport::{Peer, Transport};
use crate::backend::Extent;
use crate::buffer::{Budget, Buffer, BufferPool};
use crate::handshakes::Ticket;
use crate::shared::Snapshot;
use crate::tls::Room;
use crate::volume::Volume;

/// Names a connection for the life of the process: a slot and how often it was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnKey {
    /// Place in every table of connections.
    pub(crate) slot: u32,
    /// Tells the users of one slot apart.
    pub(crate) generation: u32,
}

impl ConnKey {
    /// As epoll carries it.
    pub(crate) fn to_event(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Out of what epoll carried.
    pub(crate) fn from_event(data: u64) -> Self {
        Self { slot: data as u32, generation: (data >> 32) as u32 }
    }
}

/// A request on its way through the pool.
pub(crate) struct Request {
    /// Whose it is.
    pub(crate) key: ConnKey,
    /// Which volume.
    pub(crate) volume: u32,
    /// The protocol's header.
    pub(crate) command: Command,
    /// Its flags.
    pub(crate) flags: CommandFlags,
    /// The client's name for the request.
    pub(crate) cookie: u64,
    /// First byte.
    pub(crate) offset: u64,
    /// Number of bytes.
    pub(crate) length: u64,
    /// What a write carries.
    pub(crate) buffer: Option<Buffer>,
    /// What it asks of the device, and is charged for.
    pub(crate) work: Work,
    /// Bytes taken from the buffer budget.
    pub(crate) charge: u64,
}

impl Request {
    /// Whether the result must be on stable storage before the reply.
    #[inline]
    pub(crate) fn is_durable(&self) -> bool {
        self.flags.contains(CommandFlags::FUA)
            && matches!(self.command, Command::Write | Command::Trim | Command::WriteZeroes)
    }
}

/// What a request brought.
pub(crate) enum Output {
    /// Nothing but success.
    Nothing,
    /// Bytes of a memory volume, sent from where they are.
    InPlace(*const u8),
    /// Bytes read.
    Bytes(Buffer),
    /// What is allocated.
    Extents(Vec<Extent>),
}

/// A request that is done, on its way to its connection.
pub(crate) struct Completion {
    /// Whose it is.
    pub(crate) key: ConnKey,
    /// Of the request.
    pub(crate) flags: CommandFlags,
    /// Of the request.
    pub(crate) cookie: u64,
    /// Of the request.
    pub(crate) offset: u64,
    /// Of the request.
    pub(crate) length: u64,
    /// Bytes of the buffer budget to give back once the reply is sent.
    pub(crate) charge: u64,
    /// What it brought.
    pub(crate) result: Result<Output, Errno>,
}

// SAFETY: `Output::InPlace` points into a volume that the connection holds; the bytes are only handed to the kernel.
unsafe impl Send for Completion {}

/// What follows a reply's header.
pub(crate) enum Payload {
    /// Nothing.
    None,
    /// Bytes of a memory volume that the connection holds.
    InPlace(*const u8, usize),
    /// Bytes read.
    Buffer(Buffer),
    /// Bytes made for the occasion: handshake, block status.
    Owned(Vec<u8>),
}

impl Payload {
    #[inline]
    fn parts(&self) -> (*const u8, usize) {
        match self {
            Self::None => (std::ptr::null(), 0),
            Self::InPlace(ptr, len) => (*ptr, *len),
            Self::Buffer(buffer) => (buffer.as_slice().as_ptr(), buffer.len()),
            Self::Owned(bytes) => (bytes.as_ptr(), bytes.len()),
        }
    }
}

struct Reply {
    /// Absent where the payload is a whole message.
    header: Option<ReplyHeader>,
    payload: Payload,
    charge: u64,
}

// SAFETY: `Payload::InPlace` points into a volume that the connection holds and moves with.
unsafe impl Send for Reply {}

impl Reply {
    #[inline]
    fn header(&self) -> &[u8] {
        self.header.as_ref().map_or(&[], ReplyHeader::as_slice)
    }
}

/// Replies on their way out, bounded by the bound on requests in flight.
#[derive(Default)]
pub(crate) struct OutQueue {
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that are sent already.
    sent: usize,
    /// Bytes of the buffer budget that the replies hold.
    charged: u64,
}

/// Room for the pieces of one send, kept from send to send.
#[derive(Default)]
pub(crate) struct SendList {
    pieces: Vec<libc::iovec>,
    /// For TLS, which uses it to receive, too.
    pub(crate) room: Room,
}

// SAFETY: the pointers in it are only used within one call of `OutQueue::flush`.
unsafe impl Send for SendList {}

/// Replies that go out with one system call at most; two parts each, and the kernel takes 1024.
const REPLIES_PER_SEND: usize = 512;

impl OutQueue {
    /// Queues a reply.
    #[inline]
    pub(crate) fn push(&mut self, header: Option<ReplyHeader>, payload: Payload, charge: u64) {
        self.charged += charge;
        self.replies.push_back(Reply { header, payload, charge });
    }

    /// Replies waiting.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.replies.len()
    }

    /// Sends as much as the socket takes; how many bytes that was.
    pub(crate) fn flush(
        &mut self,
        transport: &mut Transport,
        list: &mut SendList,
        buffers: &mut BufferPool,
        budget: &Budget,
    ) -> io::Result<u64> {
        if !transport.push()? {
            return Ok(0);
        }
        let mut all = 0;
        let iov = &mut list.pieces;
        while !self.replies.is_empty() {
            iov.clear();
            let mut skip = self.sent;
            let mut total = 0;
            for reply in self.replies.iter().take(REPLIES_PER_SEND) {
                let header = reply.header();
                for (ptr, len) in [(header.as_ptr(), header.len()), reply.payload.parts()] {
                    if skip >= len {
                        skip -= len;
                        continue;
                    }
                    // SAFETY: `skip < len`.
                    let from = unsafe { ptr.add(skip) };
                    iov.push(libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len - skip });
                    total += len - skip;
                    skip = 0;
                }
            }
            // SAFETY: headers and payloads live in the queue, and volumes with the connection.
            let sent = match unsafe { transport.send(iov, &mut list.room) } {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(all),
                Err(error) => return Err(error),
            };
            self.advance(sent, buffers, budget);
            all += sent as u64;
            if sent < total {
                return Ok(all);
            }
        }
        Ok(all)
    }

    #[inline]
    fn advance(&mut self, sent: usize, buffers: &mut BufferPool, budget: &Budget) {
        self.sent += sent;
        while let Some(front) = self.replies.front() {
            let whole = front.header().len() + front.payload.parts().1;
            if self.sent < whole {
                return;
            }
            self.sent -= whole;
            if let Some(reply) = self.replies.pop_front() {
                self.charged -= reply.charge;
                budget.give(reply.charge);
                if let Payload::Buffer(buffer) = reply.payload {
                    buffers.give(buffer);
                }
            }
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self, buffers: &mut BufferPool, budget: &Budget) {
        self.sent = 0;
        self.charged = 0;
        for reply in self.replies.drain(..) {
            budget.give(reply.charge);
            if let Payload::Buffer(buffer) = reply.payload {
                buffers.give(buffer);
            }
        }
    }
}

/// A connection that has chosen its export.
pub(crate) struct Attached {
    /// What was negotiated.
    pub(crate) session: Session,
    /// The export. Holding it keeps its memory in place for replies.
    pub(crate) volume: Arc<Volume>,
    /// What requests may ask.
    pub(crate) limits: Limits,
    /// Who pays.
    pub(crate) tenant: TenantId,
    /// Name of the tenant.
    pub(crate) tenant_name: Arc<str>,
    /// Whether payloads of reads need buffers: not so for volumes in memory.
    pub(crate) reads_need_buffers: bool,
}

/// How far a connection has come.
pub(crate) enum Phase {
    /// Negotiating.
    Handshake(Box<Handshake>),
    /// Serving.
    Attached(Box<Attached>),
}

/// The rest of a write that has only partly arrived.
pub(crate) struct Incoming {
    /// The request, with the buffer to fill.
    pub(crate) request: Request,
    /// Bytes that are there.
    pub(crate) filled: usize,
    /// How fast they come.
    pub(crate) pace: Pace,
}

/// How long a connection's pace is measured before it is judged.
pub(crate) const PACE_WINDOW: Duration = Duration::from_secs(20);
/// Bytes a second below which a connection that holds memory counts as stuck: slower than any link one would put
/// storage behind.
const SLOWEST: u64 = 64 << 10;

/// Whether bytes move, judged in windows: neither a byte now and then nor a quick start passes for progress.
pub(crate) struct Pace {
    since: Instant,
    bytes: u64,
}

impl Pace {
    /// Starts a window.
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, bytes: 0 }
    }

    /// Bytes have moved.
    #[inline]
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Whether too little has moved in the window that ends now, if one does. To be asked about once a second.
    fn was_slow(&mut self, now: Instant) -> bool {
        let age = now.since(self.since);
        if age < PACE_WINDOW {
            return false;
        }
        let slow = self.bytes < age.as_nanos() / 1_000_000 * SLOWEST / 1000;
        *self = Self::new(now);
        slow
    }
}

/// Payload of a refused write, to be skipped before the error goes out.
pub(crate) struct Discard {
    /// Bytes still to come.
    pub(crate) remaining: u64,
    /// The client's name for the request.
    pub(crate) cookie: u64,
    /// First byte of the request.
    pub(crate) offset: u64,
    /// Why it was refused.
    pub(crate) errno: Errno,
}

/// Why nothing is read from a connection for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paused {
    /// It is read.
    No,
    /// It has as many requests outstanding as it may; a reply sent ends this.
    Full,
    /// The buffer budget has not so many bytes free; others' replies end this.
    Memory(u64),
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Not yet.
    Open,
    /// No more requests will come; outstanding ones are answered, then it closes.
    Draining,
}

/// One client.
pub(crate) struct Connection {
    /// Its name.
    pub(crate) key: ConnKey,
    /// Its stream.
    pub(crate) transport: Transport,
    /// Who is there.
    pub(crate) peer: Peer,
    /// How far it has come.
    pub(crate) phase: Phase,
    /// While it negotiates.
    pub(crate) ticket: Option<Ticket>,
    /// Whether it was refused a volume; it may ask for others.
    pub(crate) refused: bool,
    /// When it was accepted.
    pub(crate) since: Instant,
    /// Received and not yet understood; short unless reading is paused.
    pub(crate) leftover: Vec<u8>,
    /// A write under way.
    pub(crate) incoming: Option<Incoming>,
    /// A refused write under way.
    pub(crate) discard: Option<Discard>,
    /// Replies under way.
    pub(crate) out: OutQueue,
    /// How fast they go.
    pub(crate) pace: Pace,
    /// Requests handed to the pool and not yet answered.
    pub(crate) in_flight: u32,
    /// Bytes of the buffer budget that its requests hold, not counting replies.
    pub(crate) charged: u64,
    /// Why it is not read, if so.
    pub(crate) paused: Paused,
    /// How it ends.
    pub(crate) ending: Ending,
    /// Whether replies reach nobody any more: they are dropped, and epoll is not asked. What the client sent before
    /// may still wait in the socket.
    pub(crate) gone: bool,
    /// Whether a disconnect request was received.
    pub(crate) said_goodbye: bool,
    /// What epoll is asked to report at present.
    pub(crate) interest: u32,
    /// Whether it is on the list of connections with something to send.
    pub(crate) dirty: bool,
    /// Requests received.
    pub(crate) requests: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// Bytes sent.
    pub(crate) sent: u64,
    /// What it has cost its worker since that was last told.
    pub(crate) toll: Toll,
}

impl Connection {
    /// A new connection, about to be greeted.
    pub(crate) fn new(key: ConnKey, transport: Transport, peer: Peer, handshake: Handshake, now: Instant) -> Self {
        Self {
            key,
            transport,
            peer,
            phase: Phase::Handshake(Box::new(handshake)),
            ticket: None,
            refused: false,
            since: now,
            leftover: Vec::new(),
            incoming: None,
            discard: None,
            out: OutQueue::default(),
            pace: Pace::new(now),
            in_flight: 0,
            charged: 0,
            paused: Paused::No,
            ending: Ending::Open,
            gone: false,
            said_goodbye: false,
            interest: 0,
            dirty: false,
            requests: 0,
            received: 0,
            sent: 0,
            toll: Toll::default(),
        }
    }

    /// Requests for which the client has no reply yet.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.in_flight as usize + self.out.len()
    }

    /// Bytes of the buffer budget it holds.
    #[inline]
    pub(crate) fn held(&self) -> u64 {
        self.charged + self.out.charged
    }

    /// Whether nothing remains to be done before it may close.
    pub(crate) fn is_done(&self) -> bool {
        match self.ending {
            Ending::Open => false,
            Ending::Draining => {
                self.in_flight == 0 && (self.gone || self.out.len() == 0 && !self.transport.wants_send())
            }
        }
    }

    /// Takes over what a new snapshot says of it; false when it must end: its volume was removed, needs TLS by now, or is
    /// not for this client any more.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) -> bool {
        // Who has just proved who it is and said nothing since is judged with its first word.
        let admitted = self.peer.identity.is_none() || snapshot.admits(&self.peer);
        if let (Some(stream), Some(acceptor)) = (self.transport.tls(), &snapshot.tls)
            && !(stream.follow(acceptor) && admitted)
        {
            tracing::info!(peer = %self.peer, "closing a connection: its certificate is not accepted any more");
            return false;
        }
        let Phase::Attached(attached) = &mut self.phase else { return true };
        if snapshot.volume(attached.volume.id).is_none() {
            return false;
        }
        if self.transport.tls().is_none() && snapshot.needs_tls(&attached.volume, &self.peer) {
            tracing::info!(peer = %self.peer, volume = attached.volume.name, "closing a connection: its volume needs TLS now");
            return false;
        }
        if let Err(barred) = snapshot.admits_to(&attached.volume, &self.peer) {
            let (volume, why) = (&attached.volume.name, barred.because());
            tracing::info!(peer = %self.peer, volume, why, "closing a connection: it may not have its volume any more");
            return false;
        }
        if let Some((name, tenant)) = snapshot.tenant(&attached.volume, &self.peer) {
            attached.tenant = tenant;
            attached.tenant_name = name;
        }
        attached.limits.size = attached.volume.size();
        true
    }

    /// The volume it is attached to.
    pub(crate) fn volume(&self) -> Option<&Arc<Volume>> {
        match &self.phase {
            Phase::Attached(attached) => Some(&attached.volume),
            Phase::Handshake(_) => None,
        }
    }

    /// Whether it has received or taken too little for too long. To be asked about once a second.
    pub(crate) fn is_stuck(&mut self, now: Instant) -> bool {
        if self.out.len() == 0 {
            self.pace = Pace::new(now);
        }
        let receiving = self.incoming.as_mut().is_some_and(|incoming| incoming.pace.was_slow(now));
        receiving | self.pace.was_slow(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many seconds a connection counts as slow of which `bytes` arrive in second `n`.
    fn slow_after(bytes: impl Fn(u64) -> u64) -> Option<u64> {
        let mut pace = Pace::new(Instant::ZERO);
        (1..=600).find(|&second| {
            pace.moved(bytes(second));
            pace.was_slow(Instant::ZERO + Duration::from_secs(second))
        })
    }

    #[test]
    fn what_trickles_is_slow_and_what_flows_is_not() {
        assert_eq!(slow_after(|_| 0), Some(20));
        assert_eq!(slow_after(|second| u64::from(second % 15 == 0)), Some(20), "a byte now and then");
        assert_eq!(slow_after(|second| if second == 1 { 1 << 30 } else { 0 }), Some(40), "a quick start");
        assert_eq!(slow_after(|_| SLOWEST), None);
        assert_eq!(slow_after(|second| if second % 10 == 0 { SLOWEST * 10 } else { 0 }), None, "in bursts");
    }
}
