//! A worker: one thread, its connections, and the loop that serves them.
//!
//! ```text
//!  wait ─▶ receive ─▶ pump ───────────────▶ submit ─▶ send ─▶ wait
//!          (parse)    (pools: complete,      (ring)   (replies)
//!                      submit, dispatch;
//!                      execute what is ready)
//! ```
//!
//! Every step works on all that the previous one produced, so that locks, clock
//! readings and system calls are paid once a batch. Connections are `Send` and own
//! nothing of the worker; a request that another worker dispatched comes back to its
//! connection by mail.

mod accept;
pub(crate) mod connection;
pub(crate) mod mailbox;
mod meter;
mod occupation;
mod operations;
mod pump;
mod receive;
mod residence;
pub(crate) mod seen;
mod stepwise;
#[cfg(test)]
mod tests;
pub(crate) mod transport;

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration as StdDuration;

use evenkeel_control::placement::Sample;
use evenkeel_control::{Duration, Instant};
use rustix::event::epoll;

pub(crate) use accept::Listener;
use connection::{ConnKey, Connection, Paused, SendList};
use mailbox::{Mailbox, Message};
use meter::Meter;
use occupation::Occupation;
use operations::Operations;
use pump::PoolWork;
use seen::Seen;

use crate::buffer::BufferPool;
use crate::clock;
use crate::engine::uring::Uring;
use crate::refusals::Reason;
use crate::shared::{Shared, Snapshot};
use crate::spin::Spin;

/// Bytes received with one system call: a batch of small requests, or a good part of a large write.
const SCRATCH: usize = 256 << 10;
/// The same while connections keep more than a quarter of the buffer budget of what they have sent ahead.
const SCRATCH_UNDER_PRESSURE: usize = 8 << 10;
/// Events taken with one system call.
const EVENTS: usize = 256;
/// How often slow matters are looked after: deadlines, lost operations, statistics.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// How soon a connection that waits for buffer memory is tried again.
const MEMORY_RETRY: Duration = Duration::from_millis(2);
/// Names of what epoll reports; connections report their key, whose slot is never this great.
const MAILBOX_EVENT: u64 = u64::MAX;
const RING_EVENT: u64 = u64::MAX - 1;
const LISTENER_EVENTS: u64 = u64::MAX - 1024;

const READ: u32 = libc::EPOLLIN as u32;
const WRITE: u32 = libc::EPOLLOUT as u32;
const GONE: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// A worker's state; lives on its thread.
pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    ring: Option<Uring>,
    /// The kernel waits to the millisecond only.
    coarse_wait: bool,
    spin: Spin,
    listeners: Vec<Listener>,
    /// When to listen again after running out of descriptors.
    accept_at: Instant,

    snapshot: Arc<Snapshot>,
    epoch: u64,
    connections: Vec<Option<Box<Connection>>>,
    count: usize,
    pools: Vec<PoolWork>,
    /// Pools with something to do in this round.
    active: VecDeque<usize>,
    operations: Operations,
    /// Operations of which the kernel did only a part.
    unfinished: Vec<u32>,
    buffers: BufferPool,

    /// Connections with replies to send.
    dirty: Vec<u32>,
    /// Connections that may read again.
    resume: Vec<u32>,
    /// Connections that wait for buffer memory.
    hungry: Vec<ConnKey>,
    /// Mail for other workers, by worker.
    outbox: Vec<Vec<Message>>,

    scratch: Vec<u8>,
    send_list: SendList,
    inbox: Vec<Message>,
    requests: u64,
    meter: Meter,
    occupation: Occupation,
    housekeeping_at: Instant,
    /// There are fewer workers than there were, and this is not one of them.
    leaving: bool,
    draining: bool,
    stopped: bool,
}

impl Worker {
    /// A worker with its mailbox; the ring, if any, is set up on the thread that runs it.
    pub(crate) fn new(index: usize, shared: Arc<Shared>, listeners: Vec<Listener>) -> rustix::io::Result<Self> {
        let mailbox = Arc::clone(shared.make_mailbox(index)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, mailbox.event(), epoll::EventData::new_u64(MAILBOX_EVENT), epoll::EventFlags::IN)?;
        for (n, listener) in listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(LISTENER_EVENTS + n as u64);
            epoll::add(&epoll, listener.as_fd(), data, epoll::EventFlags::IN)?;
        }
        let slots = shared.slots.len();
        // Those of who had this place before are not lost.
        let stats = &shared.stats[index];
        let (requests, cpu_ns) = (stats.requests.load(Ordering::Relaxed), stats.cpu_ns.load(Ordering::Relaxed));
        Ok(Self {
            index,
            mailbox,
            epoll,
            ring: None,
            coarse_wait: false,
            spin: Spin::new(shared.bounds.busy_poll),
            listeners,
            accept_at: Instant::FAR_FUTURE,
            snapshot: Arc::default(),
            epoch: u64::MAX,
            connections: std::iter::repeat_with(|| None).take(slots).collect(),
            count: 0,
            pools: Vec::new(),
            active: VecDeque::new(),
            operations: Operations::default(),
            unfinished: Vec::new(),
            buffers: BufferPool::default(),
            dirty: Vec::new(),
            resume: Vec::new(),
            hungry: Vec::new(),
            outbox: Vec::new(),
            scratch: vec![0; SCRATCH],
            send_list: SendList::default(),
            inbox: Vec::new(),
            requests,
            meter: Meter::new(requests),
            occupation: Occupation::after(cpu_ns),
            housekeeping_at: clock::now(),
            leaving: false,
            draining: false,
            stopped: false,
            shared,
        })
    }

    /// Serves until told to stop.
    pub(crate) fn run(mut self, with_ring: bool) {
        // Promises are kept to the microsecond; the default slack of 50 us would blur every deadline.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        if with_ring {
            match self.start_ring() {
                Ok(ring) => self.ring = Some(ring),
                Err(error) => {
                    tracing::warn!(%error, worker = self.index, "no io_uring for this worker; files are served by threads");
                }
            }
        }
        self.refresh();
        self.occupation.begin();
        self.shared.stats[self.index].heard_ns.store(clock::now().as_nanos(), Ordering::Relaxed);
        let mut events: Vec<libc::epoll_event> = Vec::with_capacity(EVENTS);
        while !(self.stopped || self.draining && self.is_idle() || self.has_left()) {
            let timeout = self.timeout();
            self.wait(&mut events, timeout);
            self.meter.begin_round();
            if self.shared.epoch() != self.epoch {
                self.refresh();
            }
            for event in events.drain(..) {
                self.on_event(event.u64, event.events);
            }
            self.reap();
            self.on_timers();
            let watch = self.meter.start();
            self.pump();
            self.meter.share(watch, self.requests);
            if let Some(ring) = &mut self.ring {
                ring.submit();
            }
            self.send_replies();
            self.post_mail();
        }
        if self.leaving {
            // Whoever takes this place counts anew from what is recorded. It may have been its turn to look at a pool.
            self.shared.post(0, Message::Visit);
        } else {
            self.shared.stats[self.index].heard_ns.store(0, Ordering::Relaxed);
        }
        self.finish();
    }

    fn start_ring(&self) -> std::io::Result<Uring> {
        let ring = Uring::new()?;
        // SAFETY: the descriptor is open as long as the ring, which outlives this call.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.fd()) };
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(RING_EVENT), epoll::EventFlags::IN)?;
        Ok(ring)
    }

    /// Waits for events, and looks for them without sleeping for as long as [`Spin`] expects them soon.
    fn wait(&mut self, events: &mut Vec<libc::epoll_event>, timeout: Duration) {
        const NOW: Duration = Duration::ZERO;
        if timeout == NOW {
            return self.poll(events, NOW);
        }
        let begun = clock::now();
        let until = begun + self.spin.window().min(timeout);
        let mut now = begun;
        while now < until {
            self.poll(events, NOW);
            if !events.is_empty() {
                self.meter.waited(now.since(begun), now.since(begun));
                return;
            }
            // Whoever wants the processor goes first: often the client that we wait for.
            rustix::thread::sched_yield();
            let before = std::mem::replace(&mut now, clock::now());
            if self.spin.is_crowded_out(now.since(before)) {
                break;
            }
        }
        self.poll(events, (begun + timeout).since(now));
        let waited = clock::now().since(begun);
        self.meter.waited(waited, now.since(begun));
        // Completions of the ring mostly interrupt the wait instead of being events in it. They do not count: looking for
        // them doubled the processor time of an operation and made no device faster.
        self.spin.slept(waited, !events.is_empty());
    }

    /// Asks for events. The timeout is good to the nanosecond, because promises are kept by it; where the kernel
    /// (before 5.11) or a sandbox knows only milliseconds, it is rounded up.
    fn poll(&mut self, events: &mut Vec<libc::epoll_event>, timeout: Duration) {
        let nanos = timeout.as_nanos();
        let (epoll, room) = (self.epoll.as_raw_fd(), events.capacity() as libc::c_int);
        let ready = if self.coarse_wait {
            let millis = nanos.div_ceil(1_000_000).min(libc::c_int::MAX as u64);
            // SAFETY: `events` has room for as many.
            unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, millis as libc::c_int).into() }
        } else {
            let timeout =
                libc::timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
            let no_mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: as above; the timeout outlives the call, and there is no signal mask.
            unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    epoll,
                    events.as_mut_ptr(),
                    room,
                    &raw const timeout,
                    no_mask,
                    0usize,
                )
            }
        };
        if ready >= 0 {
            // SAFETY: the kernel has filled in as many.
            unsafe { events.set_len(ready as usize) };
            return;
        }
        match std::io::Error::last_os_error() {
            error if error.kind() == std::io::ErrorKind::Interrupted => {}
            error if !self.coarse_wait && matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                tracing::warn!(%error, "no epoll_pwait2: waits are good to a millisecond only, which coarsens limits");
                self.coarse_wait = true;
            }
            error => {
                // Nothing sensible is left to do, but spinning at full speed would make it worse.
                tracing::error!(%error, "waiting for events failed");
                std::thread::sleep(StdDuration::from_millis(100));
            }
        }
    }

    /// How long nothing will happen by itself.
    fn timeout(&self) -> Duration {
        let now = clock::now();
        let busy =
            !self.resume.is_empty() || !self.active.is_empty() || self.ring.as_ref().is_some_and(Uring::wants_submit);
        let mut wake = if busy { now } else { self.housekeeping_at + HOUSEKEEPING };
        if !self.hungry.is_empty() {
            wake = wake.min(now + MEMORY_RETRY);
        }
        wake = wake.min(self.accept_at).min(self.operations.next_try());
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
        if flags & GONE != 0 && (connection.interest & READ == 0 || flags & READ == 0) {
            self.lose(connection);
            return;
        }
        if flags & WRITE != 0 {
            self.mark_dirty(&mut connection);
        }
        if flags & READ != 0 {
            self.receive(connection);
        } else {
            self.connections[key.slot as usize] = Some(connection);
        }
    }

    fn on_mail(&mut self) {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.mailbox.take(&mut inbox);
        for message in inbox.drain(..) {
            match message {
                Message::Accepted(transport, peer, key, ticket) => self.open(transport, peer, key, ticket),
                Message::Adopt(connection) => self.adopt(connection),
                Message::Completed(completion) => self.deliver(*completion),
                Message::IoDone(token, result) => self.operation_done(token, result),
                Message::Start(token) => self.start(token),
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
    }

    fn on_timers(&mut self) {
        let now = clock::now();
        for index in 0..self.pools.len() {
            if self.pools[index].wake_at <= now {
                self.activate(index);
            }
        }
        if self.accept_at <= now {
            self.resume_accepting();
        }
        if self.operations.next_try() <= now {
            self.try_again();
        }
        if !self.hungry.is_empty() {
            // Only those with a chance: each try costs a copy of what the connection has sent ahead.
            let free = self.shared.budget.free();
            let (connections, resume) = (&self.connections, &mut self.resume);
            self.hungry.retain(|key| match &connections[key.slot as usize] {
                Some(connection) if connection.key == *key => {
                    let waits = matches!(connection.paused, Paused::Memory(bytes) if bytes > free);
                    if !waits {
                        resume.push(key.slot);
                    }
                    waits
                }
                _ => false,
            });
        }
        for slot in std::mem::take(&mut self.resume) {
            if let Some(connection) = self.connections[slot as usize].take() {
                self.receive(connection);
            }
        }
        if self.housekeeping_at + HOUSEKEEPING <= now {
            self.keep_house(now);
        }
    }

    /// Takes a new snapshot of pools, volumes and tenants, and closes the connections to volumes that it lacks.
    fn refresh(&mut self) {
        // The epoch first: a replacement in between is then noticed in the next round.
        self.epoch = self.shared.epoch();
        self.snapshot = self.shared.snapshot();
        while self.pools.len() < self.snapshot.pools.len() {
            self.pools.push(PoolWork::default());
        }
        for slot in 0..self.connections.len() {
            if let Some(mut connection) = self.connections[slot].take() {
                if connection.follow(&self.snapshot) {
                    self.connections[slot] = Some(connection);
                } else {
                    self.close(connection);
                }
            }
        }
        // Limits may have been raised: what waits may go.
        for index in 0..self.pools.len() {
            self.activate(index);
        }
    }

    /// Sends what is to be sent, and lets connections read again that now may.
    fn send_replies(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let Some(mut connection) = self.connections[slot as usize].take() else { continue };
            connection.dirty = false;
            if self.send(&mut connection) {
                self.keep(connection);
            } else {
                self.lose(connection);
            }
        }
        self.dirty = dirty;
    }

    /// Sends to one connection; false when it is lost.
    fn send(&mut self, connection: &mut Connection) -> bool {
        let sent = if connection.gone {
            connection.out.clear(&mut self.buffers, &self.shared.budget);
            Ok(0)
        } else {
            let watch = self.meter.start();
            let sent = connection.out.flush(
                &mut connection.transport,
                &mut self.send_list,
                &mut self.buffers,
                &self.shared.budget,
            );
            self.meter.stop(watch, &mut connection.toll);
            sent
        };
        match sent {
            Ok(sent) => {
                connection.pace.moved(sent);
                connection.sent += sent;
                let full = connection.outstanding() >= self.shared.bounds.in_flight;
                if connection.paused == Paused::Full && !full {
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
        self.count == 0 && self.operations.is_empty()
    }

    fn post_mail(&mut self) {
        for (worker, mail) in self.outbox.iter_mut().enumerate() {
            if !mail.is_empty() {
                self.shared.post_all(worker, mail);
            }
        }
    }

    /// The last act: nothing may be freed that the kernel or a thread still writes to.
    fn finish(mut self) {
        if !self.operations.is_empty() {
            tracing::warn!(
                worker = self.index,
                operations = self.operations.len(),
                "stopping with operations still inside the back end"
            );
            std::mem::forget(self.ring.take());
        }
        for slot in 0..self.connections.len() {
            if let Some(connection) = self.connections[slot].take() {
                self.close(connection);
            }
        }
    }

    /// Tells the placement what each connection has cost; the first worker also asks it what should move.
    fn tell_loads(&mut self, now: Instant) {
        let (shared, here) = (&self.shared, self.index as u32);
        let usage = self.occupation.take(now, self.meter.take_rounds());
        let stats = &shared.stats[self.index];
        stats.cpu_ns.store(self.occupation.cpu_ns(), Ordering::Relaxed);
        stats.busy.store(usage.busy.to_bits(), Ordering::Relaxed);
        let mut placement = shared.placement();
        placement.tell(here, usage);
        for connection in self.connections.iter_mut().flatten() {
            let (slot, toll) = (connection.key.slot, connection.toll.take(connection.requests));
            let requests = connection.requests - toll.requests;
            let cpu = Duration::from_nanos(toll.ns() + self.meter.of_requests(requests));
            placement.observe(slot, Sample { cpu, received_bytes: toll.received });
            // It did not come as far as was decided, or is on its way still: then its next worker says so.
            if placement.worker(slot) != Some(here) {
                placement.found_on(slot, here);
            }
        }
        let decides = here == 0 && !self.draining;
        let Some(decision) = decides.then(|| placement.tick(now)).flatten() else { return };
        shared.moves.fetch_add(decision.moves as u64, Ordering::Relaxed);
        if decision.moves > 0 {
            let (reason, because) = (decision.reason.name(), evenkeel_policy::state::placement(&decision.reason));
            tracing::info!(moves = decision.moves, reason, "placement: {because}");
        }
        for one in placement.moves() {
            let key = shared.slots.key(one.slot);
            shared.post(one.from as usize, Message::Move(key, one.to as usize));
        }
    }

    fn keep_house(&mut self, now: Instant) {
        self.housekeeping_at = now;
        let stats = &self.shared.stats[self.index];
        stats.requests.store(self.requests, Ordering::Relaxed);
        stats.heard_ns.store(now.as_nanos(), Ordering::Relaxed);
        self.report_overdue(now);
        let pressed = self.shared.budget.used() > self.shared.budget.limit() / 4 * 3;
        let mut clients = Vec::with_capacity(self.count);
        for slot in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[slot] else { continue };
            let too_long = match &connection.phase {
                connection::Phase::Handshake(_) => (now.since(connection.since).as_nanos()
                    > self.shared.bounds.handshake_ns)
                    .then_some("no export chosen in time"),
                connection::Phase::Attached(_) => {
                    // Asked in any case: a window begins when one ends.
                    let stuck = connection.is_stuck(now) && pressed && connection.held() > 0;
                    stuck.then_some("it holds buffer memory that others need and moves next to no data")
                }
            };
            if let Some(why) = too_long
                && let Some(connection) = self.connections[slot].take()
            {
                if connection.volume().is_none() {
                    self.shared.refusals.count(Reason::HandshakeTimeout);
                }
                tracing::info!(peer = %connection.peer, why, "closing a connection");
                self.close(connection);
                continue;
            }
            clients.extend(self.connections[slot].as_ref().and_then(|connection| Seen::of(connection, now)));
        }
        self.tell_loads(now);
        *self.shared.stats[self.index].clients.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = clients;
    }
}

/// Keeps a message for another worker until the end of the round.
fn mail(outbox: &mut Vec<Vec<Message>>, worker: usize, message: Message) {
    if outbox.len() <= worker {
        outbox.resize_with(worker + 1, Vec::new);
    }
    outbox[worker].push(message);
}
