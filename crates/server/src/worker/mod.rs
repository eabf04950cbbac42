//! A worker: one thread with its connections, and the loop that serves them.
//!
//! ```text
//!  wait ─▶ receive ─▶ pump ───────────────▶ submit ─▶ send ─▶ wait
//!          (parse)    (pools: complete,      (ring)   (replies)
//!                      submit, dispatch;
//!                      execute what is ready)
//! ```
//!
//! Every step works on all that the previous step has produced, so that the cost of locks, clock readings and system calls is
//! paid once a batch. Steps that may take long have a time limit, and go on in the next round. Connections are `Send` and own
//! nothing of the worker; a request that another worker has dispatched comes back to its connection as a message to the
//! connection's worker.

mod accept;
mod connection;
mod divide;
mod divided;
mod ended;
mod house;
mod hungry;
mod long;
pub(crate) mod message;
mod meter;
mod occupation;
mod operations;
mod pump;
mod readers;
mod receive;
mod recording;
pub(crate) mod request;
mod residence;
pub(crate) mod seen;
mod sources;
mod sparse;
mod stepwise;
#[cfg(test)]
mod tests;
mod turns;
mod waking;

use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration as StdDuration;

use evenkeel_control::{Duration, Instant};
use rustix::io::Errno;

use connection::{Connection, Paused, SendList, Sent};
use ended::ENDS_IN_A_ROUND;
use house::{House, IN_A_ROUND};
use hungry::Hungry;
use long::LongSends;
use message::Message;
use meter::Meter;
use occupation::Occupation;
use operations::Operations;
use pump::PoolWork;
use readers::Readers;
use recording::Tape;
use request::{ConnKey, Spare};
use sources::{ENDED, GONE, LISTENER_EVENTS, MAILBOX_EVENT, READ, RING_EVENT, Set, Sources, WRITE};
use turns::Turns;
use waking::Waking;

use crate::backend::operation::{Report, Reports};
use crate::buffer::BufferPool;
use crate::clock;
use crate::engine::uring::Uring;
use crate::failures::Failures;
use crate::faults::Call;
use crate::listen::Listener;
use crate::mailbox::Mailbox;
use crate::prompt;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::spin::Spin;
use crate::transport::Peer;

/// Largest number of bytes received with one system call: a batch of small requests, or a part of a large write. The kernel
/// copies 64 KiB in some 10 µs, and 256 KiB, which do not stay in a processor's cache, in up to 120 µs.
const SCRATCH: usize = 64 << 10;
/// Longest time that a worker with one active connection spends in a row on each of its tasks: pools, receiving much, sending
/// much, and operations that are tried again or given up.
const TURN: Duration = Duration::from_micros(250);
/// Replaces [`TURN`] for a worker with several active connections, whose requests wait for a round of all tasks.
const TURN_BESIDE_OTHERS: Duration = Duration::from_micros(100);
/// Replaces [`SCRATCH`], and [`IN_A_ROW`] under TLS, for connections of tenants that hold too many bytes beside requests, see
/// [`crate::budget::Ahead`].
const SCRATCH_UNDER_PRESSURE: usize = 8 << 10;
/// Interval at which a worker checks if connections that wait for buffer memory may have it.
const MEMORY_RETRY: Duration = Duration::from_millis(2);
/// Interval at which a worker checks, while the server stops, if clients have received everything.
const LINGER_RETRY: Duration = Duration::from_millis(20);
/// A connection with at most this number of bytes to send is served before connections that have more.
const SHORT: usize = 64 << 10;
/// Cost of a system call that sends, as the number of bytes that are sent in the same time.
const CALL: usize = 8 << 10;
/// Largest number of back ends' reports that are handled in one round: some 5 us each.
const REPORTS: usize = 256;
/// Number of back ends' reports that are handled between two looks at the clock.
const REPORTS_AT_ONCE: usize = 32;
/// Largest number of bytes that a connection sends in a row while others wait: some 100 us. A socket may take megabytes at
/// once.
const IN_A_ROW: usize = 256 << 10;
/// Replaces [`IN_A_ROW`] for the only active connection of a worker: the replies to its reads are sent together, and pools with
/// requests of other workers still wait for less than half a millisecond.
const IN_A_ROW_ALONE: usize = 1 << 20;
/// Text in the log for a connection that the server ends of its own accord.
const CLOSING: &str = "closing a connection";
/// A worker's state, which only the worker's thread uses.
pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox<Message>>,
    /// Back ends' reports on this worker's operations; they wake the worker like the mailbox.
    reports: Arc<Reports>,
    sources: Sources,
    ring: Option<Uring>,
    spin: Spin,
    listeners: Vec<Listener>,
    /// When to accept connections again after a pause; [`Instant::FAR_FUTURE`] without one.
    accept_at: Instant,

    snapshot: Arc<Snapshot>,
    epoch: u64,
    connections: Vec<Option<Box<Connection>>>,
    /// First slot whose connection has not been checked against the newest snapshot; the slots behind it have not been,
    /// either.
    unjudged: usize,
    count: usize,
    pools: Vec<PoolWork>,
    /// Indices of pools that have something to do in this round.
    active: VecDeque<usize>,
    operations: Operations,
    /// Tokens of operations of which only a part was done, and which are to be continued.
    unfinished: Vec<u32>,
    buffers: BufferPool,
    spare: Spare,
    /// Counts failures that do not belong to a volume, to log each kind rarely.
    failures: Failures,

    /// Slots of connections that may have bytes to send.
    dirty: Vec<u32>,
    /// Connections that have much to send.
    long: LongSends,
    /// Slots of connections that may be read again after a pause.
    resume: Vec<u32>,
    readers: Readers,
    /// Connections that wait for buffer memory.
    hungry: Hungry,
    /// Negotiating connections that wait for their client's turn.
    turns: Turns,
    waking: Waking,
    /// Number of ends of streams and of connections that were handled in this round.
    ends: u32,
    /// Messages to be sent at the end of the round, by the index of the receiving worker.
    outbox: Vec<Vec<Message>>,

    scratch: Vec<u8>,
    send_list: SendList,
    inbox: Vec<Message>,
    /// Scratch memory: back ends' reports that were just taken over.
    arrived: Vec<Report>,
    /// Back ends' reports that are still to be handled, oldest first.
    reported: VecDeque<Report>,
    requests: u64,
    tape: Tape,
    meter: Meter,
    occupation: Occupation,
    house: House,
    /// True if the thread stays on a processor of its own.
    is_kept: bool,
    /// True if the number of workers was reduced and this worker is to end.
    leaving: bool,
    draining: bool,
    /// When to check next if clients have received everything; [`Instant::FAR_FUTURE`] unless the server stops.
    linger_at: Instant,
    stopped: bool,
}

impl Worker {
    /// A worker with its mailbox. [`Self::run`] sets up its io_uring, if it is to have one, on the worker's thread.
    pub(crate) fn new(index: usize, shared: Arc<Shared>, listeners: Vec<Listener>) -> rustix::io::Result<Self> {
        let mailbox = Arc::clone(shared.make_mailbox(index)?);
        let reports = Arc::new(mailbox.beside());
        reports.open();
        let sources = Sources::new()?;
        sources.add(mailbox.event(), MAILBOX_EVENT, READ, Set::Own)?;
        for (n, listener) in listeners.iter().enumerate() {
            listener.prepare(shared.bounds.peer_timeout);
            sources.add(listener.as_fd(), LISTENER_EVENTS + n as u64, READ, Set::Own)?;
        }
        let slots = shared.slots.len();
        let interval = shared.placement().interval();
        // Those of who had this place before are not lost.
        let stats = &shared.stats[index];
        let (requests, cpu_ns) = (stats.requests.load(Ordering::Relaxed), stats.cpu_ns.load(Ordering::Relaxed));
        Ok(Self {
            index,
            mailbox,
            reports,
            sources,
            ring: None,
            spin: Spin::new(shared.bounds.busy_poll),
            listeners,
            accept_at: Instant::FAR_FUTURE,
            snapshot: Arc::default(),
            epoch: u64::MAX,
            connections: std::iter::repeat_with(|| None).take(slots).collect(),
            unjudged: slots,
            count: 0,
            pools: Vec::new(),
            active: VecDeque::new(),
            operations: Operations::default(),
            unfinished: Vec::new(),
            buffers: BufferPool::new(shared.faults.clone()),
            spare: Spare::default(),
            failures: Failures::default(),
            dirty: Vec::new(),
            long: LongSends::default(),
            resume: Vec::new(),
            readers: Readers::since(clock::now()),
            hungry: Hungry::default(),
            turns: Turns::default(),
            waking: Waking::default(),
            ends: 0,
            outbox: Vec::new(),
            scratch: vec![0; SCRATCH],
            send_list: SendList::default(),
            inbox: Vec::new(),
            arrived: Vec::new(),
            reported: VecDeque::new(),
            requests,
            tape: Tape::default(),
            meter: Meter::new(requests),
            occupation: Occupation::after(cpu_ns),
            house: House::new(clock::now(), interval),
            is_kept: false,
            leaving: false,
            draining: false,
            linger_at: Instant::FAR_FUTURE,
            stopped: false,
            shared,
        })
    }

    /// Serves connections until the server has stopped, or until the number of workers was reduced and this worker has no
    /// work left.
    pub(crate) fn run(mut self, with_ring: bool) {
        prompt::keep_time();
        if with_ring {
            match self.start_ring() {
                Ok(ring) => self.ring = Some(ring),
                Err(error) => {
                    tracing::warn!(%error, worker = self.index, "the kernel gives this worker no io_uring; it serves files by threads, which costs more CPU per request");
                }
            }
        }
        self.refresh();
        if self.shared.draining.load(Ordering::Acquire) {
            // It begins after the others were sent the message.
            self.drain();
        }
        self.occupation.begin();
        self.shared.stats[self.index].heard_ns.store(clock::now().as_nanos(), Ordering::Relaxed);
        let mut events: Vec<libc::epoll_event> = Vec::with_capacity(sources::EVENTS);
        while !(self.stopped || self.has_drained() || self.has_left()) {
            let timeout = self.timeout();
            self.waking.round_ends();
            let others = self.wait(&mut events, timeout);
            self.waking.round_begins(events.len() - others, others);
            self.meter.begin_round();
            if self.shared.epoch() != self.epoch {
                self.refresh();
            }
            self.judge_some();
            for event in events.drain(..) {
                self.on_event(event.u64, event.events);
            }
            if !self.reported.is_empty() {
                self.take_reports();
            }
            self.reap();
            self.on_timers();
            self.read_in_turn();
            let watch = self.meter.start();
            self.pump();
            self.meter.share(watch, self.requests);
            self.tape.settle();
            self.submit();
            self.send_replies();
            self.post_mail();
        }
        if !self.leaving {
            self.shared.stats[self.index].heard_ns.store(0, Ordering::Relaxed);
        }
        if self.index > 0 {
            // It may have been this worker's turn to look at a pool, and the first ends when the others have.
            self.shared.post(0, Message::Visit);
        }
        self.finish();
    }

    fn start_ring(&self) -> io::Result<Uring> {
        let ring = Uring::new(&self.shared.faults)?;
        // SAFETY: the descriptor is open as long as the ring, which outlives this call.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.fd()) };
        self.sources.add(fd, RING_EVENT, READ, Set::Own)?;
        Ok(ring)
    }

    /// Waits for events for at most `timeout`: looks for them without sleeping for as long as [`Spin`] advises, then sleeps.
    /// Returns how many of the events are not of the crowd set.
    fn wait(&mut self, events: &mut Vec<libc::epoll_event>, timeout: Duration) -> usize {
        const NOW: Duration = Duration::ZERO;
        if timeout == NOW {
            return self.poll(events, NOW);
        }
        let begun = clock::now();
        let until = begun + self.spin.window(begun).min(timeout);
        let mut now = begun;
        while now < until {
            let others = self.poll(events, NOW);
            if !events.is_empty() {
                if others == 0 {
                    self.spin.slept(now.since(begun), false);
                }
                self.meter.waited(now.since(begun), now.since(begun));
                return others;
            }
            // Another thread that wants the processor goes first: often the client that this worker waits for.
            rustix::thread::sched_yield();
            let before = std::mem::replace(&mut now, clock::now());
            if self.spin.is_crowded_out(now.since(before), now) {
                break;
            }
        }
        let others = self.poll(events, (begun + timeout).since(now));
        let waited = clock::now().since(begun);
        self.meter.waited(waited, now.since(begun));
        // Completions of the ring mostly interrupt the wait instead of being events in it. They do not count: looking for
        // them doubled the processor time of an operation and made no device faster. A crowd, of which there is always one more,
        // would keep the worker looking for good.
        self.spin.slept(waited, others > 0);
        others
    }

    /// Asks the kernel for events; returns how many of them are not of the crowd set.
    fn poll(&mut self, events: &mut Vec<libc::epoll_event>, timeout: Duration) -> usize {
        match self
            .shared
            .faults
            .check(Call::Wait)
            .and_then(|()| self.sources.wait(events, timeout, !self.readers.has_crowd()))
        {
            Ok(others) => return others,
            Err(Errno::INTR) => {}
            Err(error @ (Errno::NOSYS | Errno::PERM)) if self.sources.wait_coarsely() => {
                tracing::warn!(%error, "the kernel has no epoll_pwait2 (Linux 5.11 has it), or a filter of system calls forbids it: timers are exact to a millisecond only, and throughput under a limit is less even");
            }
            Err(error) => {
                if let Some(more) = self.count_failure("wait", error.raw_os_error()) {
                    tracing::error!(%error, not_logged = more, "waiting for events failed (epoll); this worker tries again every 100 ms, and its clients wait. Look at the kernel's log");
                }
                // Nothing sensible is left to do, but spinning at full speed would make it worse.
                std::thread::sleep(StdDuration::from_millis(100));
            }
        }
        0
    }

    /// Counts a failure that does not belong to a volume. Returns `Some(n)` if it is to be logged: `n` failures of the same
    /// kind were not logged since the previous log line.
    fn count_failure(&mut self, what: &'static str, errno: i32) -> Option<u64> {
        self.failures.count(what, errno, clock::now())
    }

    /// Logs an action on a connection, at most once in 10 s for each `kind` of reason: a client that is refused may come
    /// again ten thousand times a second.
    fn say(&mut self, what: &str, kind: &'static str, peer: &Peer, why: &dyn Display) {
        if let Some(not_logged) = self.count_failure(kind, 0) {
            tracing::info!(%peer, %why, not_logged, "{what}");
        }
    }

    /// Longest time that the worker may sleep if no event comes; zero if work is left over from this round.
    fn timeout(&self) -> Duration {
        let now = clock::now();
        let judged = self.unjudged == self.connections.len();
        let none_reads = self.resume.is_empty() && self.readers.is_empty() && self.hungry.unfed == 0;
        let none_reported = self.reported.is_empty() && self.unfinished.is_empty() && !self.operations.has_lost();
        let none_sends = self.dirty.is_empty() && self.long.is_empty();
        let busy = !(none_reads && none_reported && none_sends && self.active.is_empty() && judged);
        let mut wake = if busy { now } else { self.house.due_at() };
        if let Some(ring) = &self.ring {
            wake = wake.min(ring.submit_at(now));
        }
        if !self.hungry.is_empty() {
            wake = wake.min(now + MEMORY_RETRY);
        }
        wake = wake.min(self.linger_at).min(self.accept_at).min(self.turns.at()).min(self.operations.next_try());
        wake = self.pools.iter().map(|pool| pool.wake_at).fold(wake, Instant::min);
        wake.since(now)
    }

    fn on_event(&mut self, data: u64, flags: u32) {
        match data {
            MAILBOX_EVENT => self.on_mail(),
            // Completions are reaped in every round.
            RING_EVENT => {}
            LISTENER_EVENTS.. => self.accept((data - LISTENER_EVENTS) as usize),
            key => self.on_connection(ConnKey::from_event(key), flags),
        }
    }

    fn on_connection(&mut self, key: ConnKey, flags: u32) {
        // Reported in one batch with what closed it; its slot may have a new user by now.
        let Some(mut connection) = self.connections[key.slot as usize].take_if(|c| c.key == key) else { return };
        // One that waits to be read is reported again in each round, and handled in its turn.
        let waits_to_be_read = flags & READ != 0 && connection.share.waits();
        if flags & (GONE | ENDED) != 0 && !waits_to_be_read {
            if self.ends >= ENDS_IN_A_ROUND {
                self.connections[key.slot as usize] = Some(connection);
                return;
            }
            self.ends += 1;
        }
        if flags & GONE != 0 && (connection.interest & READ == 0 || flags & READ == 0) {
            let negotiates = connection.ticket.as_ref().map(|ticket| (ticket.client(), self.waking.begin()));
            self.lose(connection);
            if let Some((client, work)) = negotiates {
                self.waking.charge_anyway(&self.shared.handshakes, client, &work);
            }
            return;
        }
        if flags & WRITE != 0 {
            self.mark_dirty(&mut connection);
        }
        if flags & READ != 0 {
            self.receive_in_turn(connection);
        } else if flags & ENDED != 0 {
            self.stream_has_ended(&mut connection);
            self.keep(connection);
        } else {
            self.connections[key.slot as usize] = Some(connection);
        }
    }

    fn on_mail(&mut self) {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.mailbox.take(&mut inbox);
        for message in inbox.drain(..) {
            match message {
                Message::Accepted(transport, peer, key, ticket, place) => {
                    let work = self.waking.begin();
                    self.open(transport, peer, key, ticket, place, &work);
                }
                Message::Adopt(connection) => {
                    let key = connection.key;
                    self.adopt(connection);
                    self.welcome(key);
                }
                Message::Completed(request, result) => {
                    self.waking.others();
                    self.deliver(request, result);
                }
                Message::Move(key, to) => self.hand_over(key, to),
                // Looked for in every round.
                Message::Refresh => {}
                Message::Visit => (0..self.pools.len()).for_each(|pool| self.activate(pool)),
                Message::Leave => self.leave(),
                Message::Stay => self.leaving = false,
                Message::Drain => self.drain(),
                Message::Stop => self.stopped = true,
            }
        }
        self.inbox = inbox;
        self.take_reports();
    }

    /// Longest time that the worker spends in a row on each of its tasks.
    fn turn(&self) -> Duration {
        if self.serves_several() { TURN_BESIDE_OTHERS } else { TURN }
    }

    /// True if the worker has several active connections: some that were read within the last second or two.
    /// One that was silent for longer is active from its next read on, for which it may wait for a round of long turns.
    #[inline]
    fn serves_several(&self) -> bool {
        self.count > 1 && self.readers.are_several()
    }

    /// Handles the next [`REPORTS`] reports of back ends in the order in which they came, for a [turn](Self::turn); the rest
    /// waits for the next round.
    fn take_reports(&mut self) {
        self.reports.take_beside(&mut self.arrived);
        self.reported.extend(self.arrived.drain(..));
        let until = clock::now() + self.turn();
        for handled in 0..REPORTS.min(self.reported.len()) {
            if handled % REPORTS_AT_ONCE == REPORTS_AT_ONCE - 1 && clock::now() >= until {
                break;
            }
            match self.reported.pop_front() {
                Some(Report::Done(token, result)) => self.operation_done(token, result),
                Some(Report::Start(token)) => self.start(token),
                None => {}
            }
        }
    }

    fn on_timers(&mut self) {
        let now = clock::now();
        self.tape.stamp(now);
        self.readers.pass(now);
        self.ends = 0;
        for index in 0..self.pools.len() {
            if self.pools[index].wake_at <= now {
                self.activate(index);
            }
        }
        if self.accept_at <= now {
            self.resume_accepting();
        }
        if self.linger_at <= now {
            self.linger_at = now + LINGER_RETRY;
            self.end_lingering();
        }
        if self.turns.at() <= now {
            self.take_turns();
        }
        if self.operations.next_try() <= now {
            self.try_again();
        }
        let resume = std::mem::take(&mut self.resume);
        self.feed(now);
        for slot in resume {
            if let Some(connection) = self.connections[slot as usize].take() {
                self.receive_in_turn(connection);
            }
        }
        if self.house.due_at() <= now {
            self.keep_house(now);
        }
        if self.operations.has_lost() {
            self.give_up_overdue(now, clock::now() + self.turn());
        }
    }

    /// Takes a new snapshot of pools, volumes and tenants; the worker checks its connections against it in the next rounds.
    fn refresh(&mut self) {
        // The epoch first: a replacement in between is then noticed in the next round.
        self.epoch = self.shared.epoch();
        self.snapshot = self.shared.snapshot();
        while self.pools.len() < self.snapshot.pools.len() {
            self.pools.push(PoolWork::default());
        }
        self.unjudged = 0;
        let prompt = prompt::is_wanted();
        prompt::be_prompt(prompt);
        self.is_kept = prompt::keep_apart(self.index, self.shared.workers(), prompt, self.is_kept);
        // Limits may have been raised: what waits may go.
        for index in 0..self.pools.len() {
            self.activate(index);
        }
    }

    /// Checks the next [`IN_A_ROUND`] connections against the newest snapshot, for a [turn](Self::turn), and closes those that
    /// must end. To check a certificate once more takes a fraction of a millisecond, and so does discarding what a client has
    /// sent.
    fn judge_some(&mut self) {
        self.judge_some_by(clock::now);
    }

    /// As [`Self::judge_some`], with the present instant by `time`.
    fn judge_some_by(&mut self, mut time: impl FnMut() -> Instant) {
        let (mut judged, mut until) = (0, Instant::FAR_FUTURE);
        while judged < IN_A_ROUND && self.unjudged < self.connections.len() {
            let slot = self.unjudged;
            if self.connections[slot].is_some() {
                let now = time();
                if judged == 0 {
                    until = now + self.turn();
                } else if now >= until {
                    return;
                }
                judged += 1;
                self.judge(slot);
            }
            self.unjudged += 1;
        }
    }

    /// Checks the connection in a slot against the newest snapshot, unless that was done; closes the connection if it must
    /// end.
    fn judge(&mut self, slot: usize) {
        if let Some(mut connection) = self.connections[slot].take_if(|_| slot >= self.unjudged) {
            if self.follows(&mut connection) {
                self.connections[slot] = Some(connection);
            } else {
                self.close(connection);
            }
        }
    }

    /// Sends replies. Connections with little to send come first; the others have a [turn](Self::turn) together, in which their
    /// tenants take turns, and those that are not reached go on in the next round.
    fn send_replies(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        // Many short ones take as long as a long one.
        let (mut unseen, mut until, mut is_over) = (0, Instant::FAR_FUTURE, false);
        for slot in dirty.drain(..) {
            let bytes = self.connections[slot as usize].as_ref().map_or(0, |connection| connection.out.bytes());
            if bytes > SHORT || is_over {
                self.send_later(slot);
                continue;
            }
            if until == Instant::FAR_FUTURE {
                until = clock::now() + self.turn();
            }
            if self.send_some(slot) {
                self.send_later(slot);
            }
            unseen += bytes + CALL;
            if unseen > SHORT {
                (unseen, is_over) = (0, clock::now() >= until);
            }
        }
        // A client that was lost while it was sent to may have asked once more, and was answered.
        for slot in std::mem::replace(&mut self.dirty, dirty) {
            self.send_later(slot);
        }
        if self.long.is_empty() {
            return;
        }
        let until = clock::now() + self.turn();
        while let Some(slot) = self.long.pop() {
            if self.send_some(slot) {
                self.send_later(slot);
            }
            if clock::now() >= until {
                break;
            }
        }
    }

    /// Puts the connection in `slot` among those that have much to send. Connections that negotiate have the turns of one tenant.
    fn send_later(&mut self, slot: u32) {
        let Some(connection) = &self.connections[slot as usize] else { return };
        // Two tenants never have the same account.
        let tenant = connection.account().map_or(0, |account| Arc::as_ptr(account).addr());
        self.long.push(tenant, slot);
    }

    /// Sends replies of one connection, as many bytes as it may send in a row; true if bytes are left that its socket may
    /// take.
    fn send_some(&mut self, slot: u32) -> bool {
        let Some(mut connection) = self.connections[slot as usize].take() else { return false };
        connection.dirty = false;
        if !self.send(&mut connection) {
            self.lose(connection);
            return false;
        }
        let more = connection.dirty;
        self.keep(connection);
        more
    }

    /// Sends replies of one connection, which stays dirty if bytes are left that its socket may take; false if the connection
    /// is lost. If the connection had too many requests outstanding, it may be read again.
    fn send(&mut self, connection: &mut Connection) -> bool {
        let negotiates = connection.ticket.as_ref().map(|ticket| (ticket.client(), self.waking.begin()));
        let sent = if connection.gone {
            connection.out.clear(&mut self.buffers);
            Ok(Sent::default())
        } else {
            let watch = self.meter.start();
            let out = &mut connection.out;
            let most = if connection.transport.is_secure() && connection.ahead.is_crowded() {
                // What TLS has encrypted holds memory until the client takes it.
                SCRATCH_UNDER_PRESSURE
            } else if self.serves_several() {
                IN_A_ROW
            } else {
                IN_A_ROW_ALONE
            };
            let sent = out.flush(&mut connection.transport, &mut self.send_list, &mut self.buffers, most);
            self.meter.stop(watch, &mut connection.toll);
            connection.count_ahead();
            sent
        };
        match negotiates {
            Some((client, work)) => self.waking.charge(&self.shared.handshakes, client, &work),
            None => self.waking.others(),
        }
        match sent {
            Ok(sent) => {
                connection.progress.moved(sent.bytes);
                connection.sent += sent.bytes;
                connection.dirty |= sent.more;
                let full = connection.is_full(self.shared.bounds.in_flight);
                if connection.paused == Paused::Full && !full && !connection.is_answering() {
                    self.resume.push(connection.key.slot);
                }
                true
            }
            Err(error) => {
                tracing::debug!(peer = %connection.peer, %error, "sending failed");
                false
            }
        }
    }

    fn mark_dirty(&mut self, connection: &mut Connection) {
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(connection.key.slot);
        }
    }

    fn is_idle(&self) -> bool {
        self.count == 0 && self.operations.is_empty() && self.active.is_empty()
    }

    /// True if the server stops and this worker has nothing left to do; if so, closes its mailbox. Connections may be on
    /// their way here from workers that do not know of the stop yet. So the first worker, which gets the messages that the
    /// others cannot take any more, ends last.
    fn has_drained(&self) -> bool {
        let done = self.draining && self.is_idle() && (self.index > 0 || self.shared.first_is_alone());
        done && self.mailbox.close_if_empty()
    }

    fn post_mail(&mut self) {
        for (worker, mail) in self.outbox.iter_mut().enumerate() {
            if !mail.is_empty() {
                self.shared.post_all(worker, mail);
            }
        }
    }

    /// Ends the worker and closes its connections. Memory that the kernel or a thread may still write to is never freed.
    fn finish(mut self) {
        if !self.operations.is_empty() {
            tracing::warn!(
                worker = self.index,
                operations = self.operations.len(),
                "a worker stops while operations are still in flight: their clients get no answer"
            );
            std::mem::forget(self.ring.take());
        }
        let (mut in_flight, mut slow, mut slow_one) = (!self.operations.is_empty(), 0_u64, None);
        for slot in 0..self.connections.len() {
            if let Some(connection) = self.connections[slot].take() {
                in_flight |= connection.in_flight > 0;
                if connection.has_untaken_answers() {
                    slow += 1;
                    slow_one = Some(connection.peer.to_string());
                }
                self.close(connection);
            }
        }
        if in_flight {
            self.shared.left_in_flight.store(true, Ordering::Release);
        }
        if let Some(client) = slow_one {
            self.shared.left_unsent.store(true, Ordering::Release);
            tracing::warn!(
                worker = self.index,
                clients = slow,
                %client,
                "a worker stops while clients have not taken all of their answers; one of them is named here"
            );
        }
        self.tape.settle();
    }
}

/// Stores a message to the worker with this index; it is sent at the end of the round.
fn mail(outbox: &mut Vec<Vec<Message>>, worker: usize, message: Message) {
    if outbox.len() <= worker {
        outbox.resize_with(worker + 1, Vec::new);
    }
    outbox[worker].push(message);
}
