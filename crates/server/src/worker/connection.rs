//! One client connection: everything that moves with it from worker to worker.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use evenkeel_control::pool::TenantId;
use evenkeel_control::units::Work;
use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::server::{Handshake, Limits, ReplyHeader, Session, request};
use evenkeel_nbd::wire::{Command, Errno};

use super::divided::DividedRequests;
use super::meter::Toll;
use super::readers::Share;
use super::request::{ConnKey, Request, Whole};
use super::sources::Set;
use super::sparse::Sparse;
use crate::backend::Backend;
use crate::budget::{Account, Ahead, Charge, Member, Waiting};
use crate::buffer::{Buffer, BufferPool};
use crate::clock;
use crate::handshakes::{Place, Ticket};
use crate::snapshot::Snapshot;
use crate::transport::tls::Scratch;
use crate::transport::{Peer, Transport};
use crate::volume::Volume;

/// Largest numbers of outstanding requests on volumes in memory, and of unsent replies of other volumes: of a tenant over all its
/// connections (some 15 MB), and `LEAST`: of each connection even if the tenant's share per connection is smaller.
const AT_ONCE_OF_TENANT: usize = 65_536;
const AT_ONCE_LEAST: usize = 16;

/// The payload after a reply's header.
pub(crate) enum Payload {
    /// Nothing.
    None,
    /// Address and number of bytes of a volume in memory, which are sent without a copy; the connection holds the volume.
    InPlace(*const u8, usize),
    /// Bytes of a volume in memory with holes beside data, which are sent without a copy; the connection holds the volume.
    Sparse(Sparse),
    /// Bytes read into a buffer.
    Buffer(Buffer),
    /// Bytes composed by the server: a message of the negotiation, or a block status.
    Owned(Vec<u8>),
}

impl Payload {
    /// The `len` bytes from `offset` of a volume in memory, which can be read at the address `at`.
    #[inline]
    pub(super) fn in_place(backend: &Backend, at: *const u8, offset: u64, len: u64) -> Self {
        let sparse = match backend {
            Backend::Memory(memory) | Backend::Emulate(memory, _) => Sparse::of(memory, offset, len),
            Backend::File(_) | Backend::Remote(_) | Backend::Rbd(_) => None,
        };
        sparse.map_or(Self::InPlace(at, len as usize), Self::Sparse)
    }

    /// Address and number of bytes; of [`Self::Sparse`] no address.
    #[inline]
    fn parts(&self) -> (*const u8, usize) {
        match self {
            Self::None => (std::ptr::null(), 0),
            Self::InPlace(ptr, len) => (*ptr, *len),
            Self::Sparse(sparse) => (std::ptr::null(), sparse.bytes()),
            Self::Buffer(buffer) => (buffer.as_slice().as_ptr(), buffer.len()),
            Self::Owned(bytes) => (bytes.as_ptr(), bytes.len()),
        }
    }
}

struct Reply {
    /// The reply's header; `None` if the payload is a whole message.
    header: Option<ReplyHeader>,
    payload: Payload,
    charge: Charge,
}

// SAFETY: `Payload::InPlace` and `Payload::Sparse` point into a volume that the connection holds and moves with.
unsafe impl Send for Reply {}

impl Reply {
    #[inline]
    fn header(&self) -> &[u8] {
        self.header.as_ref().map_or(&[], ReplyHeader::as_slice)
    }

    #[inline]
    fn len(&self) -> usize {
        self.header().len() + self.payload.parts().1
    }
}

/// A connection's replies that are not completely sent. The bound on requests in flight also bounds their number.
#[derive(Default)]
pub(crate) struct OutQueue {
    replies: VecDeque<Reply>,
    /// Bytes of the first reply in the queue that are already sent.
    sent: usize,
    /// Bytes of the replies in the queue, without the bytes that are already sent.
    bytes: usize,
    /// Bytes of the buffer budget that the replies in the queue hold.
    charged: u64,
}

/// The result of sending replies: how much the socket has taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Bytes that the socket has taken in this call.
    pub(crate) bytes: u64,
    /// True if the limit of bytes ended the call: replies are left, and the socket may have room for them.
    pub(crate) more: bool,
}

/// Memory for the list of pieces that one system call sends; kept for the next call.
#[derive(Default)]
pub(crate) struct SendList {
    pieces: Vec<libc::iovec>,
    /// Scratch memory of TLS, for sending and receiving.
    pub(crate) room: Scratch,
}

// SAFETY: the pointers in it are only used within one call of `OutQueue::flush`.
unsafe impl Send for SendList {}

/// Largest number of parts in one system call that the kernel takes.
const PARTS_PER_SEND: usize = 1024;
/// Largest number of replies in one system call: most have two parts.
const REPLIES_PER_SEND: usize = PARTS_PER_SEND / 2;

impl OutQueue {
    /// Queues a reply; `charge`: the buffer memory that it holds.
    #[inline(always)]
    pub(crate) fn push(&mut self, header: Option<ReplyHeader>, payload: Payload, charge: Charge) {
        self.charged += charge.bytes();
        let reply = Reply { header, payload, charge };
        self.bytes += reply.len();
        self.replies.push_back(reply);
    }

    /// Number of replies in the queue, of which the first may be partly sent.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.replies.len()
    }

    /// Bytes of the replies in the queue that are not sent yet.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sends queued replies until the socket takes no more or `most` bytes are sent.
    pub(crate) fn flush(
        &mut self,
        transport: &mut Transport,
        list: &mut SendList,
        buffers: &mut BufferPool,
        most: usize,
    ) -> io::Result<Sent> {
        let mut all = Sent::default();
        if !transport.push()? {
            return Ok(all);
        }
        let iov = &mut list.pieces;
        while !self.replies.is_empty() {
            iov.clear();
            let mut skip = self.sent;
            let mut total = 0;
            let left = most - all.bytes as usize;
            if left == 0 {
                return Ok(Sent { more: true, ..all });
            }
            for reply in self.replies.iter().take(REPLIES_PER_SEND) {
                let header = reply.header();
                for (ptr, len) in [(header.as_ptr(), header.len()), reply.payload.parts()] {
                    if skip >= len {
                        skip -= len;
                        continue;
                    }
                    if total == left || iov.len() == PARTS_PER_SEND {
                        break;
                    }
                    let length = (len - skip).min(left - total);
                    if let (Payload::Sparse(sparse), true) = (&reply.payload, ptr.is_null()) {
                        // SAFETY: the connection holds the volume.
                        total += unsafe { sparse.add_to(iov, skip, length, PARTS_PER_SEND) };
                    } else {
                        // SAFETY: `skip < len`.
                        let from = unsafe { ptr.add(skip) };
                        iov.push(libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length });
                        total += length;
                    }
                    skip = 0;
                }
                if total == left || iov.len() == PARTS_PER_SEND {
                    break;
                }
            }
            // SAFETY: headers and payloads live in the queue, and volumes with the connection.
            let sent = match unsafe { transport.send(iov, &mut list.room) } {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(all),
                Err(error) => return Err(error),
            };
            self.advance(sent, buffers);
            all.bytes += sent as u64;
            if sent < total {
                return Ok(all);
            }
        }
        Ok(all)
    }

    #[inline]
    fn advance(&mut self, sent: usize, buffers: &mut BufferPool) {
        self.sent += sent;
        self.bytes -= sent;
        while let Some(front) = self.replies.front() {
            let whole = front.len();
            if self.sent < whole {
                return;
            }
            self.sent -= whole;
            if let Some(reply) = self.replies.pop_front() {
                self.charged -= reply.charge.bytes();
                if let Payload::Buffer(buffer) = reply.payload {
                    buffers.give(buffer);
                }
            }
        }
    }

    /// Drops all replies in the queue without sending them.
    pub(crate) fn clear(&mut self, buffers: &mut BufferPool) {
        self.sent = 0;
        self.bytes = 0;
        self.charged = 0;
        for reply in self.replies.drain(..) {
            if let Payload::Buffer(buffer) = reply.payload {
                buffers.give(buffer);
            }
        }
    }
}

/// State of a connection whose client has chosen an export.
pub(crate) struct Attached {
    /// The negotiated session.
    pub(crate) session: Session,
    /// The volume that is exported. While the connection holds it, the volume's memory stays in place for replies.
    pub(crate) volume: Arc<Volume>,
    /// The limits of requests to the export, such as its size in bytes.
    pub(crate) limits: Limits,
    /// The tenant to which the connection's requests are charged.
    pub(crate) tenant: TenantId,
    /// Name of that tenant.
    pub(crate) tenant_name: Arc<str>,
    /// The connection's membership in its tenant's account of buffer memory; all connections of the tenant share the account.
    pub(crate) account: Member,
    /// True if the worker carries requests out itself, as for volumes in memory: reads need no buffers, and no request is
    /// left in a device after a client is gone.
    pub(crate) at_once: bool,
}

/// The stage of a connection.
pub(crate) enum Phase {
    /// The client negotiates: it has not chosen an export yet.
    Handshake(Box<Handshake>),
    /// The client has chosen an export and sends requests.
    Attached(Box<Attached>),
}

/// A write, or a slice of one, whose payload has not completely arrived.
pub(crate) struct Incoming {
    /// The request, with the buffer for the payload.
    pub(crate) request: Request,
    /// The request's work for the device.
    pub(crate) work: Work,
    /// Bytes of the payload that have arrived so far.
    pub(crate) filled: usize,
}

/// Longest time for which a connection lingers (see [`Ending::Lingering`]), and so for which it can delay a stop of the
/// server. Most answers arrive within a round trip; a slower client loses them only if it goes on sending requests.
const LINGERS: Duration = Duration::from_secs(2);
/// A connection that holds buffer memory counts as stalled if it moves fewer bytes a second than this: slower than any link
/// that one would put storage behind.
const SLOWEST: u64 = 64 << 10;
/// While a tenant has more than its share of buffer memory and other tenants wait, a connection of the tenant counts as
/// stalled, too, if at its present speed the bytes that it holds need more than this number of seconds.
const MOVES_ALL_IN_S: u64 = 8;

/// Measures for how long a connection has moved too little data.
pub(crate) struct Progress {
    looked_at: Instant,
    moved: u64,
    /// Bytes that had been sent, and not acknowledged by the client's TCP, at the newest call of [`Self::stalled`].
    on_their_way: u64,
    /// True if there was data to move at the newest call of [`Self::stalled`].
    had: bool,
    stalled_since: Option<Instant>,
}

impl Progress {
    /// The state at `now`, before any data had to move.
    pub(crate) fn new(now: Instant) -> Self {
        Self { looked_at: now, moved: 0, on_their_way: 0, had: false, stalled_since: None }
    }

    /// Counts bytes that were received from the client or taken by its socket.
    #[inline]
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// For how long fewer than `least` bytes a second have moved; zero unless there was data to move both at this call and at
    /// the one before. Sent bytes count when they have arrived at the client (`on_their_way`: sent and not arrived), because
    /// a full socket takes none for seconds and many at once afterwards. To be called once a second.
    fn stalled(&mut self, now: Instant, something_to_move: bool, on_their_way: u64, least: u64) -> Duration {
        let age = now.since(self.looked_at);
        let arrived = (self.moved + self.on_their_way).saturating_sub(on_their_way);
        let slow = something_to_move && self.had && arrived < age.as_nanos() / 1_000_000 * least / 1000;
        self.stalled_since = slow.then(|| self.stalled_since.unwrap_or(self.looked_at));
        (self.looked_at, self.moved) = (now, 0);
        (self.on_their_way, self.had) = (on_their_way, something_to_move);
        self.stalled_since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

/// The payload of a refused write, to be skipped before the error is sent.
pub(crate) struct Discard {
    /// Bytes of the payload that are still to be received and skipped.
    pub(crate) remaining: u64,
    /// The cookie by which the client knows the request.
    pub(crate) cookie: u64,
    /// Offset of the write's first byte in the volume.
    pub(crate) offset: u64,
    /// The error to be sent to the client.
    pub(crate) errno: Errno,
    /// If the payload is the rest of a divided write: that write, which is answered when all its slices have ended. `None`
    /// for an undivided write.
    pub(crate) whole: Option<Whole>,
}

/// Reason why the server does not read from a connection at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paused {
    /// None: the connection is read.
    No,
    /// The connection has as many requests outstanding as it may; the next reply that is sent ends the pause.
    Full,
    /// The connection waits for this number of bytes of buffer memory; the pause ends when other connections' replies release
    /// memory, or when the limit of the connection's volume has let some of its requests pass.
    Memory(u64),
    /// The connection negotiates, and waits for its client's turn.
    Turn,
}

/// Progress of the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The connection has not begun to end.
    Open,
    /// The server reads no more requests; outstanding ones are answered, then the connection closes.
    Draining,
    /// The client has closed its sending side: requests that change something are carried out, then the connection closes. If
    /// the client has closed its receiving side, too, which shows when a reply is sent, requests that have not begun are
    /// dropped.
    HalfClosed,
    /// All replies are sent, and the stream to the client has been ended. The socket stays open, and received bytes are
    /// discarded, until the client has received everything or has closed: TCP resets a socket that is closed while requests
    /// arrive, and the client would lose the answers that are on their way.
    Lingering,
}

/// One client's connection.
pub(crate) struct Connection {
    /// Key of the connection, unique for the life of the process.
    pub(crate) key: ConnKey,
    /// The byte stream to the client.
    pub(crate) transport: Transport,
    /// Address and identity of the client.
    pub(crate) peer: Peer,
    /// The stage of the connection: negotiating or serving.
    pub(crate) phase: Phase,
    /// Counts and times the connection's negotiation, as long as that lasts.
    pub(crate) ticket: Option<Ticket>,
    /// Counts the connection among those of its client.
    pub(crate) place: Place,
    /// True if the server's greeting was queued for the client.
    pub(crate) greeted: bool,
    /// True if the client was refused a volume; the client may go on to ask for others.
    pub(crate) refused: bool,
    /// When the connection was accepted.
    pub(crate) since: Instant,
    /// Bytes received and not yet parsed: less than a request unless reading is paused.
    pub(crate) leftover: Vec<u8>,
    /// Counts these bytes, and those that TLS holds.
    pub(crate) ahead: Ahead,
    /// A write, or a slice of one, whose payload is arriving.
    pub(crate) incoming: Option<Incoming>,
    /// The divided write whose payload comes next in the stream.
    pub(crate) arriving: Option<Whole>,
    /// The connection's requests that are carried out in slices.
    pub(crate) divided: DividedRequests,
    /// The refused write whose payload is being skipped.
    pub(crate) discard: Option<Discard>,
    /// Replies that are not completely sent.
    pub(crate) out: OutQueue,
    /// Rate at which payloads are received and sent, to find a stall.
    pub(crate) progress: Progress,
    /// Number of requests and slices that were handed to the pool and are not done.
    pub(crate) in_flight: u32,
    /// Number of the requests in flight that [change](super::request::is_change) something.
    pub(crate) changes: u32,
    /// Bytes of the buffer budget that the connection's requests hold, without the bytes that its replies hold.
    pub(crate) charged: u64,
    /// Reason why the server does not read from the connection, or [`Paused::No`].
    pub(crate) paused: Paused,
    /// Set while the connection waits for buffer memory that other connections could release.
    pub(crate) waiting: Option<Waiting>,
    /// While the connection was not read, the end of its stream was looked for when so many bytes had been received.
    pub(crate) looked_at: Option<u64>,
    /// Progress of the end of the connection.
    pub(crate) ending: Ending,
    /// If the connection lingers: moment when its socket is closed even if the client has not received everything.
    lingers_until: Instant,
    /// True if the client receives nothing any more: replies are dropped, and epoll does not watch the socket. Requests that
    /// the client sent before may still wait in the socket.
    pub(crate) gone: bool,
    /// True if the client has sent a disconnect request.
    pub(crate) said_goodbye: bool,
    /// The epoll events that the connection's socket is watched for at present.
    pub(crate) interest: u32,
    /// The epoll set of its worker that the connection is in.
    pub(crate) set: Set,
    /// True if the connection is on its worker's list of connections with bytes to send.
    pub(crate) dirty: bool,
    /// The connection's place in the order in which its worker reads connections.
    pub(crate) share: Share,
    /// Requests received since the connection was accepted.
    pub(crate) requests: u64,
    /// Bytes received since the connection was accepted.
    pub(crate) received: u64,
    /// Bytes sent since the connection was accepted.
    pub(crate) sent: u64,
    /// Cost of the connection to its worker since the worker's newest report of it.
    pub(crate) toll: Toll,
}

impl Connection {
    /// A connection accepted at `now`, which is to be greeted. `ahead`: the count of bytes of a new connection.
    pub(crate) fn new(
        key: ConnKey,
        transport: Transport,
        peer: Peer,
        handshake: Handshake,
        place: Place,
        ahead: Ahead,
        now: Instant,
    ) -> Self {
        Self {
            key,
            transport,
            peer,
            phase: Phase::Handshake(Box::new(handshake)),
            ticket: None,
            place,
            greeted: false,
            refused: false,
            since: now,
            leftover: Vec::new(),
            ahead,
            incoming: None,
            arriving: None,
            divided: DividedRequests::default(),
            discard: None,
            out: OutQueue::default(),
            progress: Progress::new(now),
            in_flight: 0,
            changes: 0,
            charged: 0,
            paused: Paused::No,
            waiting: None,
            looked_at: None,
            ending: Ending::Open,
            lingers_until: Instant::FAR_FUTURE,
            gone: false,
            said_goodbye: false,
            interest: 0,
            set: Set::Crowd,
            dirty: false,
            share: Share::default(),
            requests: 0,
            received: 0,
            sent: 0,
            toll: Toll::default(),
        }
    }

    /// Number of requests whose replies are not completely sent.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.in_flight as usize + self.out.len()
    }

    /// True if the connection may take no further request. `in_flight`: largest number of outstanding requests of one
    /// connection. Requests on volumes in memory, and replies of other volumes, are also bounded for all connections of a tenant
    /// together.
    #[inline]
    pub(crate) fn is_full(&self, in_flight: usize) -> bool {
        let share = |attached: &Attached| {
            let share = AT_ONCE_OF_TENANT / attached.account.connections().max(1) as usize;
            in_flight.min(share.max(AT_ONCE_LEAST))
        };
        // Reads of a client that is gone are not carried out.
        let used = if self.gone { self.changes as usize } else { self.outstanding() };
        match &self.phase {
            Phase::Attached(attached) if attached.at_once => used >= share(attached),
            // A request inside a device holds buffer memory, a reply without payload does not.
            Phase::Attached(attached) => {
                let unsent = self.out.len();
                used >= in_flight || unsent >= AT_ONCE_LEAST && unsent >= share(attached)
            }
            Phase::Handshake(_) => used >= in_flight,
        }
    }

    /// Number of connections of this connection's tenant, itself included; 1 while the connection has no tenant.
    #[inline]
    pub(crate) fn connections_of_tenant(&self) -> u32 {
        match &self.phase {
            Phase::Attached(attached) => attached.account.connections().max(1),
            Phase::Handshake(_) => 1,
        }
    }

    /// Bytes of the buffer budget that the connection's requests and replies hold.
    #[inline]
    pub(crate) fn held(&self) -> u64 {
        self.charged + self.out.charged
    }

    /// Counts the bytes that the connection holds beside its requests: those that are not parsed, and those that TLS holds.
    #[inline]
    pub(crate) fn count_ahead(&mut self) {
        self.ahead.set(self.leftover.len() + self.transport.held());
    }

    /// Bytes of the buffer budget that the connection's requests in flight hold.
    pub(crate) fn inside(&self) -> u64 {
        let arriving = self.incoming.as_ref().map_or(0, |incoming| incoming.request.charge.bytes());
        self.charged - arriving - self.divided.held()
    }

    /// True if the next part of a long answer to an option is to be composed: all parts so far are sent, and they were not
    /// the last.
    pub(crate) fn has_more_to_say(&self) -> bool {
        self.is_unfinished() && self.out.len() == 0
    }

    /// True if a long answer to an option is unfinished, and its parts so far are not completely sent.
    pub(crate) fn is_answering(&self) -> bool {
        self.is_unfinished() && self.out.len() > 0
    }

    fn is_unfinished(&self) -> bool {
        matches!(&self.phase, Phase::Handshake(handshake) if handshake.is_unfinished())
    }

    /// True if a request that needs `bytes` bytes must wait until requests to the volume have ended that its tenant left behind,
    /// or the connection's own ones that wait for the volume's limit.
    #[inline]
    pub(crate) fn waits_for_its_own(&self, bytes: u64) -> bool {
        let Phase::Attached(attached) = &self.phase else { return false };
        let Attached { account, volume, .. } = &**attached;
        let for_limit = volume.passes_soon(bytes).is_some_and(|soon| {
            // Connections of other tenants have their own memory; idle ones would take this tenant's.
            let connections = volume.connections.load(Ordering::Relaxed).min(account.connections());
            account.waits_for_limit(self.charged, bytes, soon, connections)
        });
        for_limit || account.waits_for_the_gone(volume.id, bytes)
    }

    /// True if the connection is paused for want of buffer memory and may not take that memory yet.
    pub(crate) fn waits_for_memory(&mut self, now: Instant) -> bool {
        let held = self.held();
        let (Paused::Memory(bytes), Phase::Attached(attached)) = (self.paused, &self.phase) else { return false };
        let account = &attached.account;
        if self.waits_for_its_own(bytes) {
            // No memory of others would help.
            self.waiting = None;
            return true;
        }
        if let Some(waiting) = &self.waiting {
            waiting.goes_on(now, bytes);
        }
        let waits = !account.may_take(held, bytes, self.waiting.as_ref());
        if waits && self.waiting.is_none() {
            self.waiting = Some(account.wait(now));
        }
        waits
    }

    /// True if the end of the connection's stream would not be noticed otherwise while the connection is not read, and was not
    /// looked for since bytes were last received. What TLS brings is not readable before its turn.
    pub(crate) fn may_end_unseen(&self) -> bool {
        let is_new = self.looked_at != Some(self.received);
        self.ending == Ending::Open && is_new && self.volume().is_some() && !self.transport.is_secure()
    }

    /// True if a disconnect request is in `rest`: all bytes of the client's stream, which has ended, that are not parsed yet.
    pub(crate) fn says_goodbye(&mut self, mut rest: &[u8]) -> bool {
        let Phase::Attached(attached) = &self.phase else { return false };
        let extended = attached.session.extended();
        // What is left of the payload of a write that arrives, or is skipped.
        let arriving = self.incoming.as_ref().map_or(0, |incoming| incoming.request.length - incoming.filled as u64);
        let slices = match self.arriving {
            Some(whole) => self.divided.get(whole).map_or(0, |divided| divided.slices.left()),
            None => 0,
        };
        let skipped = self.discard.as_ref().map_or(0, |discard| discard.remaining);
        let mut payload = arriving + slices + skipped;
        loop {
            let Ok(from) = usize::try_from(payload) else { return false };
            let Some(behind) = rest.get(from..) else { return false };
            match request::parse(behind, extended) {
                Ok(Some((header, _))) if header.command == Command::Disconnect => return true,
                Ok(Some((header, header_len))) => {
                    payload = header.payload_len(extended);
                    rest = &behind[header_len..];
                }
                // The stream ends here, or cannot be understood.
                Ok(None) | Err(_) => return false,
            }
        }
    }

    /// True if the connection is ending and nothing is left to be done or sent, so that it may close.
    pub(crate) fn is_done(&self) -> bool {
        match self.ending {
            Ending::Open => false,
            Ending::Draining => self.in_flight == 0 && self.is_sent(),
            Ending::HalfClosed => self.changes == 0 && self.is_sent(),
            Ending::Lingering => self.gone || self.transport.on_their_way() == 0 || clock::now() >= self.lingers_until,
        }
    }

    /// Ends the stream to the client of a connection that is done; true if the socket must stay open until the client has
    /// received all that was sent.
    pub(crate) fn lingers(&mut self) -> bool {
        // A Unix socket has delivered what it took.
        let is_tcp = self.peer.address.is_some();
        if self.ending != Ending::Draining || self.gone || !is_tcp || self.transport.on_their_way() == 0 {
            return false;
        }
        self.transport.end();
        // The last word of TLS waits for room in the socket, and goes before the end of the stream.
        if !self.transport.wants_send() {
            self.transport.end_sending();
            self.ending = Ending::Lingering;
            self.lingers_until = clock::now() + LINGERS;
        }
        true
    }

    /// True if all requests are answered, and the client has not taken all of the answers.
    pub(crate) fn has_untaken_answers(&self) -> bool {
        self.in_flight == 0 && (self.ending == Ending::Lingering || !self.is_sent())
    }

    /// True if no byte is left to be sent to the client.
    fn is_sent(&self) -> bool {
        self.gone || self.out.len() == 0 && !self.transport.wants_send()
    }

    /// Applies a new snapshot of the configuration.
    ///
    /// # Errors
    /// The connection must end: its certificate is not accepted any more, or its volume needs TLS now, or does not admit this
    /// client any more, each with kind and reason for the log; or its volume was removed.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) -> Result<(), Option<(&'static str, String)>> {
        // Who has just proved who it is and said nothing since is judged with its first word.
        let admitted = self.peer.identity.is_none() || snapshot.admits(&self.peer);
        if let (Some(stream), Some(acceptor)) = (self.transport.tls(), &snapshot.tls)
            && !(stream.follow(acceptor) && admitted)
        {
            let why = "the client's certificate is no longer accepted by [server.tls] as reloaded; give it a valid one";
            return Err(Some(("certificate after a reload", why.to_owned())));
        }
        let Phase::Attached(attached) = &mut self.phase else { return Ok(()) };
        if snapshot.volume(attached.volume.id).is_none() {
            return Err(None);
        }
        let settings = snapshot.settings(&attached.volume);
        if self.transport.tls().is_none() && snapshot.needs_tls(settings, &self.peer) {
            let why = format!("volume {} needs TLS since a reload; connect with TLS (nbds)", attached.volume.name);
            return Err(Some(("TLS after a reload", why)));
        }
        if let Err(barred) = snapshot.admits_to(settings, &self.peer) {
            let (volume, why) = (&attached.volume.name, barred.because());
            let why = format!("since a reload, access rules of volume {volume} refuse the client: {why}");
            return Err(Some(("access after a reload", why)));
        }
        if let Some((name, tenant)) = snapshot.tenant(&attached.volume, &self.peer) {
            attached.tenant = tenant;
            if attached.tenant_name != name {
                attached.account = attached.account.other(&name).join();
                self.ahead.belongs_to(&attached.account);
                // It waits among the connections of the other tenant from its next look on.
                self.waiting = None;
            }
            attached.tenant_name = name;
        }
        attached.limits.size = attached.volume.size();
        Ok(())
    }

    /// The volume that the connection is attached to; `None` while it negotiates.
    pub(crate) fn volume(&self) -> Option<&Arc<Volume>> {
        match &self.phase {
            Phase::Attached(attached) => Some(&attached.volume),
            Phase::Handshake(_) => None,
        }
    }

    /// For how long the connection has held buffer memory and moved too little data. Too little is less than [`SLOWEST`] and,
    /// if the connection's tenant is `in_the_way` of other tenants, also less than [`MOVES_ALL_IN_S`] asks for. While the
    /// server stops (`draining`), replies without buffer memory count as data to move, too. To be called once a second.
    pub(crate) fn stalled(&mut self, now: Instant, in_the_way: bool, draining: bool) -> Duration {
        let waits_to_send = self.out.charged > 0 || draining && self.out.len() > 0;
        let waits_for_client = self.incoming.is_some() || waits_to_send;
        // A Unix socket keeps little, and counts its own overhead.
        let remote = self.peer.address.is_some();
        let on_their_way = if remote && waits_to_send { self.transport.on_their_way() } else { 0 };
        let arriving = self.incoming.as_ref().map_or(0, |incoming| incoming.request.charge.bytes());
        let least = if in_the_way { SLOWEST.max((self.out.charged + arriving) / MOVES_ALL_IN_S) } else { SLOWEST };
        self.progress.stalled(now, waits_for_client, on_their_way, least)
    }

    /// The tenant's account of buffer memory; `None` while the connection negotiates.
    pub(crate) fn account(&self) -> Option<&Arc<Account>> {
        match &self.phase {
            Phase::Attached(attached) => Some(&attached.account),
            Phase::Handshake(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest stall of a connection in ten minutes, in seconds, if `bytes(n)` bytes arrive in second `n`.
    fn longest_stall(bytes: impl Fn(u64) -> u64) -> u64 {
        let mut progress = Progress::new(Instant::ZERO);
        let stalls = (1..=600).map(|second| {
            progress.moved(bytes(second));
            progress.stalled(Instant::ZERO + Duration::from_secs(second), true, 0, SLOWEST).as_nanos() / 1_000_000_000
        });
        stalls.max().unwrap()
    }

    #[test]
    fn a_trickle_is_a_stall_and_a_flow_is_not() {
        // There was something to move at two looks.
        assert_eq!(longest_stall(|_| 0), 599);
        assert_eq!(longest_stall(|second| u64::from(second % 15 == 0)), 599, "a byte now and then");
        assert_eq!(longest_stall(|second| if second == 1 { 1 << 30 } else { 0 }), 599, "a quick start");
        assert_eq!(longest_stall(|_| SLOWEST), 0);
        assert_eq!(longest_stall(|second| if second % 10 == 0 { SLOWEST * 10 } else { 0 }), 9, "in bursts");
        // A socket takes 4 MiB every 8 s, and half a MiB arrives every second.
        let mut progress = Progress::new(Instant::ZERO);
        for second in 0..60 {
            progress.moved(if second % 8 == 0 { 4 << 20 } else { 0 });
            let on_their_way = (8 - second % 8) << 19;
            let stalled = progress.stalled(Instant::ZERO + Duration::from_secs(second), true, on_their_way, SLOWEST);
            assert_eq!(stalled, Duration::ZERO, "second {second}");
        }
    }
}
