//! One client connection: everything that moves with it from worker to worker.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use evenkeel_control::pool::TenantId;
use evenkeel_control::units::Work;
use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::server::{Handshake, Limits, ReplyHeader, Session};
use evenkeel_nbd::wire::Errno;

use super::divided::DividedRequests;
use super::meter::Toll;
use super::readers::Share;
use super::request::{ConnKey, Request, Whole};
use super::sources::Set;
use crate::budget::{Account, Charge, Member, Waiting};
use crate::buffer::{Buffer, BufferPool};
use crate::clock;
use crate::handshakes::{Place, Ticket};
use crate::snapshot::Snapshot;
use crate::transport::tls::Room;
use crate::transport::{Peer, Transport};
use crate::volume::Volume;

/// Requests that a tenant may have outstanding on volumes in memory over all its connections (some 15 MB of requests), and
/// the number that each of these connections may have in any case.
const AT_ONCE_OF_TENANT: usize = 65_536;
const AT_ONCE_LEAST: usize = 16;

/// The payload after a reply's header.
pub(crate) enum Payload {
    /// Nothing.
    None,
    /// Bytes of a memory volume, sent from where they are; the connection holds the volume.
    InPlace(*const u8, usize),
    /// Bytes read into a buffer.
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
    /// `None` if the payload is a whole message.
    header: Option<ReplyHeader>,
    payload: Payload,
    charge: Charge,
}

// SAFETY: `Payload::InPlace` points into a volume that the connection holds and moves with.
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

/// Replies on their way out, bounded by the bound on requests in flight.
#[derive(Default)]
pub(crate) struct OutQueue {
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that are already sent.
    sent: usize,
    /// Bytes of all replies that are not sent yet.
    bytes: usize,
    /// Bytes of the buffer budget that the replies hold.
    charged: u64,
}

/// How much a socket has taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Bytes taken.
    pub(crate) bytes: u64,
    /// True if there is more to send, which the socket may take.
    pub(crate) more: bool,
}

/// Memory for the list of pieces of one send, kept from send to send.
#[derive(Default)]
pub(crate) struct SendList {
    pieces: Vec<libc::iovec>,
    /// Scratch memory for TLS, which uses it to receive, too.
    pub(crate) room: Room,
}

// SAFETY: the pointers in it are only used within one call of `OutQueue::flush`.
unsafe impl Send for SendList {}

/// Replies that go out with one system call at most; two parts each, and the kernel takes 1024.
const REPLIES_PER_SEND: usize = 512;

impl OutQueue {
    /// Queues a reply.
    #[inline(always)]
    pub(crate) fn push(&mut self, header: Option<ReplyHeader>, payload: Payload, charge: Charge) {
        self.charged += charge.bytes();
        let reply = Reply { header, payload, charge };
        self.bytes += reply.len();
        self.replies.push_back(reply);
    }

    /// Number of replies waiting.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.replies.len()
    }

    /// Bytes of replies that are not sent yet.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sends as much as the socket takes, up to `most` bytes.
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
                    if total == left {
                        break;
                    }
                    // SAFETY: `skip < len`.
                    let from = unsafe { ptr.add(skip) };
                    let length = (len - skip).min(left - total);
                    iov.push(libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length });
                    total += length;
                    skip = 0;
                }
                if total == left {
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

    /// Drops all replies.
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

/// A connection that has chosen its export.
pub(crate) struct Attached {
    /// The negotiated session.
    pub(crate) session: Session,
    /// The export. Holding it keeps its memory in place for replies.
    pub(crate) volume: Arc<Volume>,
    /// The limits of requests to the export.
    pub(crate) limits: Limits,
    /// The tenant that pays.
    pub(crate) tenant: TenantId,
    /// Name of the tenant.
    pub(crate) tenant_name: Arc<str>,
    /// Membership in the tenant's account, which it shares with the tenant's other connections.
    pub(crate) account: Member,
    /// True if the worker carries requests out itself, as for volumes in memory: reads need no buffers, and no request is
    /// left in a device when a client is gone.
    pub(crate) at_once: bool,
}

/// How far a connection has come.
pub(crate) enum Phase {
    /// Negotiating.
    Handshake(Box<Handshake>),
    /// Serving.
    Attached(Box<Attached>),
}

/// A write, or a slice of one, whose payload has only partly arrived.
pub(crate) struct Incoming {
    /// The request, with the buffer to fill.
    pub(crate) request: Request,
    /// The request's work for the device.
    pub(crate) work: Work,
    /// Bytes of the payload that have arrived.
    pub(crate) filled: usize,
}

/// How long a connection lingers at most. Most answers arrive within a round trip; a client that takes longer loses them only
/// if it goes on asking, and no client delays a stop of the server for longer.
const LINGERS: Duration = Duration::from_secs(2);
/// Bytes a second below which a connection that holds memory for its client counts as stalled: slower than any link one would
/// put storage behind.
const SLOWEST: u64 = 64 << 10;
/// A connection counts as stalled, too, if it needs more than this number of seconds to take or send all that it holds, while
/// its tenant has more than its share of memory and other tenants wait.
const MOVES_ALL_IN_S: u64 = 8;

/// Measures for how long a connection has moved next to no data.
pub(crate) struct Progress {
    looked_at: Instant,
    moved: u64,
    /// Bytes that were sent and had not arrived when progress was last looked at.
    on_their_way: u64,
    /// True if there was data to move when progress was last looked at.
    had: bool,
    stalled_since: Option<Instant>,
}

impl Progress {
    /// No data had to move so far.
    pub(crate) fn new(now: Instant) -> Self {
        Self { looked_at: now, moved: 0, on_their_way: 0, had: false, stalled_since: None }
    }

    /// Counts bytes that have moved.
    #[inline]
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// For how long next to no data has moved; zero unless there was data to move at this look and the last. Sent bytes count
    /// when they have arrived: a full socket takes none for seconds, and then many. To be called once a second. `least`:
    /// bytes a second below which data counts as not moving.
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

/// Payload of a refused write, to be skipped before the error goes out.
pub(crate) struct Discard {
    /// Bytes still to come.
    pub(crate) remaining: u64,
    /// The cookie by which the client knows the request.
    pub(crate) cookie: u64,
    /// Offset of the request's first byte.
    pub(crate) offset: u64,
    /// Why the write was refused.
    pub(crate) errno: Errno,
    /// The divided write whose rest this is, and which is answered by itself; `None` for a whole write.
    pub(crate) whole: Option<Whole>,
}

/// Why a connection is not read for now, if it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paused {
    /// It is read.
    No,
    /// It has as many requests outstanding as it may; the next reply that is sent ends the pause.
    Full,
    /// It waits for this number of bytes of buffer memory; the replies of other connections end the pause.
    Memory(u64),
    /// It negotiates and waits for its turn.
    Turn,
}

/// The state of a connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It has not begun to end.
    Open,
    /// No more requests will come; outstanding ones are answered, then it closes.
    Draining,
    /// The client has closed its end: its changes are carried out, then the connection closes. If the client has closed both
    /// ends, which shows when a reply is sent, requests that have not begun are dropped.
    HalfClosed,
    /// All is done and sent, and the stream to the client has been ended. The socket stays, and bytes that still come are
    /// discarded, until the client has everything or has closed: TCP resets a socket that is closed while requests arrive,
    /// and then the client loses the answers that are on their way.
    Lingering,
}

/// One client's connection.
pub(crate) struct Connection {
    /// Name of the connection.
    pub(crate) key: ConnKey,
    /// The byte stream to the client.
    pub(crate) transport: Transport,
    /// The other end.
    pub(crate) peer: Peer,
    /// How far the connection has come: negotiating or serving.
    pub(crate) phase: Phase,
    /// Its negotiation, as long as that lasts.
    pub(crate) ticket: Option<Ticket>,
    /// Counts the connection as one of its client's.
    pub(crate) place: Place,
    /// True if the client was greeted.
    pub(crate) greeted: bool,
    /// True if the client was refused a volume; it may ask for others.
    pub(crate) refused: bool,
    /// When the connection was accepted.
    pub(crate) since: Instant,
    /// Bytes received and not yet parsed; few unless reading is paused.
    pub(crate) leftover: Vec<u8>,
    /// A write, or a slice of one, whose payload is arriving.
    pub(crate) incoming: Option<Incoming>,
    /// The divided write to which the next payload belongs.
    pub(crate) arriving: Option<Whole>,
    /// Requests that are carried out in slices.
    pub(crate) divided: DividedRequests,
    /// A refused write whose payload is being skipped.
    pub(crate) discard: Option<Discard>,
    /// Replies to be sent.
    pub(crate) out: OutQueue,
    /// How fast payloads come and go.
    pub(crate) progress: Progress,
    /// Requests and slices handed to the pool and not yet done.
    pub(crate) in_flight: u32,
    /// Those of the requests in flight that [change](super::request::is_change) something.
    pub(crate) changes: u32,
    /// Bytes of the buffer budget that the connection's requests hold, without those that replies hold.
    pub(crate) charged: u64,
    /// Why the connection is not read, if so.
    pub(crate) paused: Paused,
    /// Set while the connection waits for buffer memory that others could give back.
    pub(crate) waiting: Option<Waiting>,
    /// The state of its end.
    pub(crate) ending: Ending,
    /// When a lingering socket is closed, whatever the client has received by then.
    lingers_until: Instant,
    /// True if no client receives replies any more: they are dropped, and epoll is not asked. What the client sent
    /// before may still wait in the socket.
    pub(crate) gone: bool,
    /// True if a disconnect request was received.
    pub(crate) said_goodbye: bool,
    /// The events that epoll is asked to report at present.
    pub(crate) interest: u32,
    /// The epoll set that the connection is in.
    pub(crate) set: Set,
    /// True if it is on the list of connections with something to send.
    pub(crate) dirty: bool,
    /// Its place among the connections to be read.
    pub(crate) share: Share,
    /// Requests received.
    pub(crate) requests: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// Bytes sent.
    pub(crate) sent: u64,
    /// Cost to its worker since that was last reported.
    pub(crate) toll: Toll,
}

impl Connection {
    /// A new connection, about to be greeted.
    pub(crate) fn new(
        key: ConnKey,
        transport: Transport,
        peer: Peer,
        handshake: Handshake,
        place: Place,
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

    /// Requests for which the client has no reply yet.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.in_flight as usize + self.out.len()
    }

    /// True if no further request may be taken. `in_flight`: the bound for one connection; requests that need no buffer are
    /// also bounded for all connections of a tenant together.
    #[inline]
    pub(crate) fn is_full(&self, in_flight: usize) -> bool {
        let most = match &self.phase {
            Phase::Attached(attached) if attached.at_once => {
                let share = AT_ONCE_OF_TENANT / attached.account.connections().max(1) as usize;
                in_flight.min(share.max(AT_ONCE_LEAST))
            }
            _ => in_flight,
        };
        // Reads of a client that is gone are not carried out.
        let used = if self.gone { self.changes as usize } else { self.outstanding() };
        used >= most
    }

    /// Number of connections of its tenant, itself included; 1 while it has no tenant.
    #[inline]
    pub(crate) fn connections_of_tenant(&self) -> u32 {
        match &self.phase {
            Phase::Attached(attached) => attached.account.connections().max(1),
            Phase::Handshake(_) => 1,
        }
    }

    /// Bytes of the buffer budget that the connection holds.
    #[inline]
    pub(crate) fn held(&self) -> u64 {
        self.charged + self.out.charged
    }

    /// Bytes of the buffer budget that its requests in flight hold.
    pub(crate) fn inside(&self) -> u64 {
        let arriving = self.incoming.as_ref().map_or(0, |incoming| incoming.request.charge.bytes());
        self.charged - arriving - self.divided.held()
    }

    /// True if the answer to an option is to go on now: there is more of it, and all of it so far is sent.
    pub(crate) fn has_more_to_say(&self) -> bool {
        self.is_unfinished() && self.out.len() == 0
    }

    /// True in the middle of the answer to an option of which the client has not taken all so far.
    pub(crate) fn is_answering(&self) -> bool {
        self.is_unfinished() && self.out.len() > 0
    }

    fn is_unfinished(&self) -> bool {
        matches!(&self.phase, Phase::Handshake(handshake) if handshake.is_unfinished())
    }

    /// True if the connection waits for memory that it may not take yet.
    pub(crate) fn waits_for_memory(&mut self, now: Instant) -> bool {
        let held = self.held();
        let (Paused::Memory(bytes), Phase::Attached(attached)) = (self.paused, &self.phase) else { return false };
        let account = &attached.account;
        if account.waits_for_the_gone(attached.volume.id, bytes) {
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

    /// True if nothing remains to be done before the connection may close.
    pub(crate) fn is_done(&self) -> bool {
        match self.ending {
            Ending::Open => false,
            Ending::Draining => self.in_flight == 0 && self.is_sent(),
            Ending::HalfClosed => self.changes == 0 && self.is_sent(),
            Ending::Lingering => self.gone || self.transport.on_their_way() == 0 || clock::now() >= self.lingers_until,
        }
    }

    /// Ends the stream of a connection that is done; true if its socket has to stay until the client has all that was sent.
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

    /// True if no reply waits for the client.
    fn is_sent(&self) -> bool {
        self.gone || self.out.len() == 0 && !self.transport.wants_send()
    }

    /// Takes over a new snapshot; false when the connection must end: its volume was removed, now needs TLS, or does not
    /// admit this client any more.
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
        let settings = snapshot.settings(&attached.volume);
        if self.transport.tls().is_none() && snapshot.needs_tls(settings, &self.peer) {
            tracing::info!(peer = %self.peer, volume = attached.volume.name, "closing a connection: its volume needs TLS now");
            return false;
        }
        if let Err(barred) = snapshot.admits_to(settings, &self.peer) {
            let (volume, why) = (&attached.volume.name, barred.because());
            tracing::info!(peer = %self.peer, volume, why, "closing a connection: its volume no longer admits it");
            return false;
        }
        if let Some((name, tenant)) = snapshot.tenant(&attached.volume, &self.peer) {
            attached.tenant = tenant;
            if attached.tenant_name != name {
                attached.account = attached.account.other(&name).join();
            }
            attached.tenant_name = name;
        }
        attached.limits.size = attached.volume.size();
        true
    }

    /// The volume that the connection is attached to.
    pub(crate) fn volume(&self) -> Option<&Arc<Volume>> {
        match &self.phase {
            Phase::Attached(attached) => Some(&attached.volume),
            Phase::Handshake(_) => None,
        }
    }

    /// For how long the connection has kept memory for its client and moved next to no data. How slow that is depends on how
    /// much it holds if its tenant is `in_the_way`. At a stop (`draining`) replies without memory count, too. To be called once a
    /// second.
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

    /// Account of the tenant's buffer memory.
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

    /// The longest stall of a connection in ten minutes, in seconds, if `bytes(n)` arrive in second `n`.
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
