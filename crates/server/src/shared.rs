//! What all workers see: pools, volumes, tenants, and who serves which connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};

use evenkeel_control::mclock::Wish;
use evenkeel_control::placement::{self, Placement};
use evenkeel_control::pool::{Pool, TenantId};
use evenkeel_control::response::Reason;
use evenkeel_control::units::Direction;
use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::server::Tls;
use evenkeel_nbd::wire::Command;
use evenkeel_policy::Config;
use evenkeel_policy::access::{Barred, Caller};
use evenkeel_policy::config::{Volume as Settings, Workers};
use evenkeel_policy::explain::{self, Throttles};
use evenkeel_policy::state::OverdueIo;
use evenkeel_policy::target;

use crate::backend::emulate::Device;
use crate::budget::Budget;
use crate::faults::Faults;
use crate::handshakes::Handshakes;
use crate::refusals::Refusals;
use crate::tls::Acceptor;
use crate::volume::Volume;
use crate::worker::connection::{ConnKey, Request, is_change};
use crate::worker::mailbox::{Mailbox, Message};
use crate::worker::transport::Peer;

/// A pool with its lock. Held for microseconds: workers go in with a batch.
pub(crate) struct SharedPool {
    /// Name in the configuration.
    pub(crate) name: String,
    /// The state machine.
    pub(crate) state: Mutex<Pool<Box<Request>>>,
    /// Age at which an operation inside the back end counts as lost, in nanoseconds.
    pub(crate) overdue_after_ns: AtomicU64,
    /// Bytes of slices, by direction, as the pool said last.
    slice_bytes: [AtomicU32; 2],
    /// The latency target was reported as missed, and not as met since.
    target_missed: AtomicBool,
}

impl SharedPool {
    /// A pool under its name.
    pub(crate) fn new(name: String, state: Pool<Box<Request>>, overdue_after_ns: u64) -> Self {
        let slice_bytes = Direction::ALL.map(|direction| AtomicU32::new(state.slice_bytes(direction)));
        let (state, overdue_after_ns) = (Mutex::new(state), AtomicU64::new(overdue_after_ns));
        Self { name, state, overdue_after_ns, slice_bytes, target_missed: AtomicBool::new(false) }
    }

    /// Bytes of the slices into which large requests are divided.
    #[inline]
    pub(crate) fn slice_bytes(&self, direction: Direction) -> u64 {
        self.slice_bytes[direction as usize].load(Ordering::Relaxed).into()
    }

    /// Makes known how large slices are to be from now on.
    #[inline]
    pub(crate) fn note_slices(&self, state: &Pool<Box<Request>>) {
        for direction in Direction::ALL {
            let (bytes, known) = (state.slice_bytes(direction), &self.slice_bytes[direction as usize]);
            if known.load(Ordering::Relaxed) != bytes {
                known.store(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Logs why the target's controller decided as it did: a target that is missed since is a warning.
    #[cold]
    pub(crate) fn log_target(&self, reason: &Reason) {
        let (pool, name, because) = (&self.name, reason.name(), explain::latency(reason, Throttles::Tenants));
        match self.newly_missed(reason) {
            Some(true) => tracing::warn!(pool, reason = name, "latency target missed: {because}"),
            Some(false) => tracing::info!(pool, reason = name, "latency target not missed any more: {because}"),
            None => tracing::info!(pool, reason = name, "latency target: {because}"),
        }
    }

    /// Whether the target is missed, if that is new: it is missed until it is certain that it is not.
    fn newly_missed(&self, reason: &Reason) -> Option<bool> {
        let missed = target::is_missed(reason)?;
        (self.target_missed.swap(missed, Ordering::Relaxed) != missed).then_some(missed)
    }

    /// Takes the lock.
    ///
    /// Workers hold it for a batch, some 10 us. Sleeping and being woken takes as long on a machine and several times
    /// that on a virtual one, so it is tried for about as long first.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Pool<Box<Request>>> {
        const TRIES: u32 = 200;
        for _ in 0..TRIES {
            match self.state.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => (0..16).for_each(|_| std::hint::spin_loop()),
            }
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything a worker looks up, immutable; replaced as a whole when something changes.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// The configuration it was made from.
    pub(crate) config: Arc<Config>,
    /// Volumes by id; removed ones leave a gap.
    pub(crate) volumes: Vec<Option<Arc<Volume>>>,
    /// What the configuration says of volumes, by id: a list asks this of thousands of them.
    pub(crate) settings: Vec<Option<Arc<Settings>>>,
    /// Volumes by name.
    pub(crate) by_name: HashMap<String, u32>,
    /// Pools, never removed.
    pub(crate) pools: Vec<Arc<SharedPool>>,
    /// Each pool's tenants by name.
    pub(crate) tenants: Vec<HashMap<Arc<str>, TenantId>>,
    /// Each pool's modelled device, if it emulates one.
    pub(crate) devices: Vec<Option<Arc<Device>>>,
    /// What encrypts connections, if they can be.
    pub(crate) tls: Option<Arc<Acceptor>>,
}

impl Snapshot {
    /// The volume a client asks for.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Volume>> {
        let name = if name.is_empty() { self.config.default_export()? } else { name };
        let id = *self.by_name.get(name)?;
        self.volume(id)
    }

    /// The volume with this id, unless it was removed.
    #[inline]
    pub(crate) fn volume(&self, id: u32) -> Option<&Arc<Volume>> {
        self.volumes.get(id as usize)?.as_ref()
    }

    /// What a new connection is offered. All or nothing is better than asking for each volume: the names of
    /// volumes are then hidden before TLS.
    pub(crate) fn offered_tls(&self, peer: &Peer) -> Tls {
        match &self.tls {
            None => Tls::No,
            Some(_) if self.config.all_need_tls(peer.is_remote()) => Tls::Forced,
            Some(_) => Tls::Selective,
        }
    }

    /// What the configuration says of a volume, if it still has it.
    pub(crate) fn settings(&self, volume: &Volume) -> Option<&Settings> {
        self.settings.get(volume.id as usize)?.as_deref()
    }

    /// Whether a client must use TLS for a volume with these settings.
    pub(crate) fn needs_tls(&self, settings: Option<&Settings>, peer: &Peer) -> bool {
        settings.is_some_and(|settings| self.config.needs_tls(settings, peer.is_remote()))
    }

    /// Whether the lists of the server and of a volume with these settings let a client open it.
    pub(crate) fn admits_to(&self, settings: Option<&Settings>, peer: &Peer) -> Result<(), Barred> {
        let caller = peer.caller();
        match settings {
            Some(settings) => self.config.admits_to(settings, &caller),
            None => self.config.admits(&caller),
        }
    }

    /// Whether a client whose certificate was verified may have any volume.
    pub(crate) fn admits(&self, peer: &Peer) -> bool {
        let named_only = self.config.server.tls.as_ref().is_some_and(|tls| tls.named_only);
        let certificate = peer.caller().certificate;
        !named_only || self.config.tenant_of_client(&Caller { certificate, ..Caller::default() }).is_some()
    }

    /// Who pays for a connection of `peer` to `volume`.
    pub(crate) fn tenant(&self, volume: &Volume, peer: &Peer) -> Option<(Arc<str>, TenantId)> {
        let name = match self.config.tenant_of_client(&peer.caller()) {
            Some(name) => name,
            None => self.config.tenant_of(&volume.name, self.settings(volume)?),
        };
        let (name, &id) = self.tenants.get(volume.pool)?.get_key_value(name)?;
        Some((Arc::clone(name), id))
    }
}

/// Report of a worker about itself.
#[derive(Default)]
pub(crate) struct WorkerStats {
    /// Connections it serves, those on their way to it included.
    pub(crate) connections: AtomicU32,
    /// Requests received.
    pub(crate) requests: AtomicU64,
    /// CPU time used, in nanoseconds.
    pub(crate) cpu_ns: AtomicU64,
    /// Share of the last second for which it had something to do, as the bits of a float.
    pub(crate) busy: AtomicU64,
    /// When its loop last came round to its housekeeping, in nanoseconds of the clock; 0 before its first time and after
    /// its end.
    pub(crate) heard_ns: AtomicU64,
    /// Operations that the back end seems to have lost, with their pools: their volumes may be removed meanwhile.
    pub(crate) overdue: Mutex<Vec<(usize, OverdueIo)>>,
    /// Its connections, as of the last second.
    pub(crate) clients: Mutex<Vec<crate::worker::seen::Seen>>,
}

/// Names and homes of connections.
pub(crate) struct Slots {
    /// Of the connection that uses each slot, or used it last; one more if its client has closed its end.
    generations: Vec<AtomicU32>,
    homes: Vec<AtomicU32>,
    /// Requests that outlived their connection.
    orphans: Vec<AtomicU32>,
    free: Mutex<Vec<u32>>,
}

impl Slots {
    /// Room for `count` connections.
    pub(crate) fn new(count: u32) -> Self {
        let zeros = || (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { generations: zeros(), homes: zeros(), orphans: zeros(), free: Mutex::new((0..count).rev().collect()) }
    }

    /// Names a new connection, which has no home yet; `None` when there are too many.
    pub(crate) fn take(&self) -> Option<ConnKey> {
        Some(self.key(self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?))
    }

    /// The connection that uses a slot at present, or used it last.
    pub(crate) fn key(&self, slot: u32) -> ConnKey {
        ConnKey { slot, generation: self.generations[slot as usize].load(Ordering::Acquire) & !1 }
    }

    /// The connection is gone; what is under way for it is not to be delivered. Its slot is free once its
    /// `in_flight` requests have ended too: otherwise clients that come, ask and go could fill a pool's queue without bound.
    pub(crate) fn give(&self, key: ConnKey, in_flight: u32) {
        let slot = key.slot as usize;
        // One more than there are, so that the last of them does not free the slot before we are done.
        self.orphans[slot].store(in_flight + 1, Ordering::Release);
        self.generations[slot].store(key.generation.wrapping_add(2), Ordering::Release);
        self.bury(key);
    }

    /// The client of a connection has closed its end.
    pub(crate) fn half_close(&self, key: ConnKey) {
        self.generations[key.slot as usize].store(key.generation | 1, Ordering::Release);
    }

    /// A request has ended whose connection is gone.
    pub(crate) fn bury(&self, key: ConnKey) {
        if self.orphans[key.slot as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(key.slot);
        }
    }

    /// Whether the connection still exists.
    #[inline]
    pub(crate) fn is_alive(&self, key: ConnKey) -> bool {
        self.generations[key.slot as usize].load(Ordering::Acquire) & !1 == key.generation
    }

    /// The fate of a request of a connection, now that its turn has come.
    #[inline]
    pub(crate) fn wish(&self, key: ConnKey, command: Command) -> Wish {
        let generation = self.generations[key.slot as usize].load(Ordering::Acquire);
        if generation == key.generation {
            Wish::Now
        } else if generation == key.generation | 1 && is_change(command) {
            Wish::Later
        } else {
            Wish::Never
        }
    }

    /// The worker that serves the connection.
    #[inline]
    pub(crate) fn home(&self, key: ConnKey) -> usize {
        self.homes[key.slot as usize].load(Ordering::Acquire) as usize
    }

    /// The connection now belongs to `worker`, which is about to get it.
    pub(crate) fn set_home(&self, key: ConnKey, worker: usize) {
        self.homes[key.slot as usize].store(worker as u32, Ordering::Release);
    }

    /// Every connection that exists at this moment, about.
    pub(crate) fn all_alive(&self) -> Vec<ConnKey> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut used = vec![true; self.homes.len()];
        free.into_iter().for_each(|slot| used[slot as usize] = false);
        (0..used.len()).filter(|&slot| used[slot]).map(|slot| self.key(slot as u32)).collect()
    }

    /// Connections that exist, and those that requests have outlived.
    pub(crate) fn taken(&self) -> u32 {
        (self.len() - self.free.lock().unwrap_or_else(PoisonError::into_inner).len()) as u32
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.homes.len()
    }
}

/// Bounds from the configuration that do not change while the server runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Requests of one connection without a reply.
    pub(crate) in_flight: usize,
    /// Time a client has to choose an export, in nanoseconds.
    pub(crate) handshake_ns: u64,
    /// Connections that have not chosen an export.
    pub(crate) handshakes: u32,
    /// The same of one client.
    pub(crate) handshakes_of_client: u32,
    /// How long a TCP peer may acknowledge nothing before it counts as gone.
    pub(crate) peer_timeout: Duration,
    /// The longest that a worker looks for events before it sleeps.
    pub(crate) busy_poll: Duration,
}

/// What all workers share.
pub(crate) struct Shared {
    snapshot: RwLock<Arc<Snapshot>>,
    /// Counts replacements of the snapshot, so that a worker notices with one load.
    epoch: AtomicU64,
    /// How to reach each worker that there ever was: as many places as there can be. One that has ended is closed.
    mailboxes: Vec<OnceLock<Arc<Mailbox>>>,
    /// Reports of the workers; as many places as there can be.
    pub(crate) stats: Vec<WorkerStats>,
    /// How many workers there are to be; those beyond are leaving or have left.
    workers: AtomicUsize,
    /// Connections.
    pub(crate) slots: Slots,
    /// Decides which worker serves which of them.
    placement: Mutex<Placement>,
    /// Connections that it has moved.
    pub(crate) moves: AtomicU64,
    /// Bound on buffered payloads.
    pub(crate) budget: Budget,
    /// Bytes that connections have sent ahead of what they may have outstanding.
    pub(crate) sent_ahead: AtomicU64,
    /// Other bounds.
    pub(crate) bounds: Bounds,
    /// Connections accepted.
    pub(crate) accepted: AtomicU64,
    /// Connections refused for want of a slot or a descriptor.
    pub(crate) refused: AtomicU64,
    /// Times that TLS came to stand.
    pub(crate) tls_handshakes: AtomicU64,
    /// Who has not chosen an export yet.
    pub(crate) handshakes: Arc<Handshakes>,
    /// Clients turned away by the rules.
    pub(crate) refusals: Refusals,
    /// Set when the server stops.
    pub(crate) draining: AtomicBool,
    /// Whether requests to files may have a higher I/O priority than others.
    pub(crate) raises_priority: bool,
    /// What a test lets fail.
    pub(crate) faults: Faults,
}

impl Shared {
    /// Shared state for so many workers, none of which has started.
    pub(crate) fn new(
        workers: usize,
        slots: u32,
        budget: Budget,
        bounds: Bounds,
        placement: placement::Config,
        faults: Faults,
    ) -> Self {
        Self {
            placement: Mutex::new(Placement::new(placement, workers, 0, crate::clock::now())),
            moves: AtomicU64::new(0),
            snapshot: RwLock::default(),
            epoch: AtomicU64::new(0),
            stats: std::iter::repeat_with(WorkerStats::default).take(Workers::MAX as usize).collect(),
            mailboxes: std::iter::repeat_with(OnceLock::new).take(Workers::MAX as usize).collect(),
            workers: AtomicUsize::new(workers),
            slots: Slots::new(slots),
            budget,
            sent_ahead: AtomicU64::new(0),
            bounds,
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            handshakes: Arc::new(Handshakes::new(&bounds, slots)),
            tls_handshakes: AtomicU64::new(0),
            refusals: Refusals::default(),
            draining: AtomicBool::new(false),
            raises_priority: false,
            faults,
        }
    }

    /// The newest snapshot.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Which snapshot is the newest.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Replaces the snapshot and wakes the workers.
    pub(crate) fn publish(&self, snapshot: Snapshot) {
        self.handshakes.set_exports(snapshot.by_name.len());
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.tell_all(|| Message::Refresh);
    }

    /// Tells every worker the same, those that leave included.
    pub(crate) fn tell_all(&self, message: impl Fn() -> Message) {
        for mailbox in self.mailboxes.iter().filter_map(OnceLock::get) {
            // To one that has ended there is nothing to say.
            let _ = mailbox.post(message());
        }
    }

    /// How many workers there are to be.
    pub(crate) fn workers(&self) -> usize {
        self.workers.load(Ordering::Acquire)
    }

    /// There are to be so many workers from now on, all of which run; newcomers go to them. How many connections those
    /// have that are beyond.
    pub(crate) fn set_workers(&self, workers: usize) -> usize {
        self.workers.store(workers, Ordering::Release);
        let decision = self.placement().set_workers(crate::clock::now(), workers);
        self.moves.fetch_add(decision.moves as u64, Ordering::Relaxed);
        decision.moves
    }

    /// The mailbox of a worker, made when it is first needed.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn make_mailbox(&self, worker: usize) -> rustix::io::Result<&Arc<Mailbox>> {
        let place = &self.mailboxes[worker];
        if place.get().is_none() {
            // Who came first is right.
            let _ = place.set(Arc::new(Mailbox::new()?.with(self.faults.clone())));
        }
        place.get().ok_or(rustix::io::Errno::AGAIN)
    }

    /// How to reach a worker, if there ever was one.
    pub(crate) fn mailbox(&self, worker: usize) -> Option<&Arc<Mailbox>> {
        self.mailboxes.get(worker)?.get()
    }

    /// Whether all workers but the first have ended.
    pub(crate) fn first_is_alone(&self) -> bool {
        self.mailboxes.iter().skip(1).filter_map(OnceLock::get).all(|mailbox| mailbox.is_closed())
    }

    /// Leaves a message for a worker. If it has ended, another one takes care of what must not be lost.
    pub(crate) fn post(&self, worker: usize, message: Message) {
        let returned = match self.mailbox(worker) {
            Some(mailbox) => mailbox.post(message).err(),
            None => Some(message),
        };
        if let Some(message) = returned {
            self.redirect(worker, message);
        }
    }

    /// Leaves all messages for a worker, as [`Self::post`] does.
    pub(crate) fn post_all(&self, worker: usize, messages: &mut Vec<Message>) {
        if let Some(mailbox) = self.mailbox(worker) {
            mailbox.post_all(messages);
        }
        for message in messages.drain(..) {
            self.redirect(worker, message);
        }
    }

    /// A message was for a worker that has ended: the first worker, which never leaves, places the connection anew or
    /// finds it.
    fn redirect(&self, worker: usize, message: Message) {
        match message {
            Message::Accepted(..) | Message::Adopt(_) => {
                self.stats[worker].connections.fetch_sub(1, Ordering::Relaxed);
                self.stats[0].connections.fetch_add(1, Ordering::Relaxed);
            }
            Message::Completed(..) => {}
            // It has no connection any more that could move, and no operation.
            _ => return,
        }
        if let (1.., Some(first)) = (worker, self.mailbox(0)) {
            // The first ends with the server, and connections with it.
            let _ = first.post(message);
        }
    }

    /// Takes the lock of the placement: at accept, at close, and for each worker as often as connections may move.
    pub(crate) fn placement(&self) -> MutexGuard<'_, Placement> {
        self.placement.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation that its back end seems to have lost.
pub(crate) fn overdue(
    volume: &str,
    kind: &'static str,
    offset: u64,
    bytes: u64,
    since: Instant,
    now: Instant,
) -> OverdueIo {
    OverdueIo {
        volume: volume.to_owned(),
        age_s: now.since(since).as_secs_f64(),
        kind: kind.to_owned(),
        offset_bytes: offset,
        length_bytes: bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_missed_once_until_it_is_met_again() {
        let pool = SharedPool::new(
            "main".into(),
            Pool::new((&evenkeel_policy::config::Pool::default()).into(), Instant::ZERO, 1),
            0,
        );
        let (measured, target, delay) = (Duration::from_millis(30), Duration::from_millis(20), Duration::ZERO);
        let over = Reason::ReadsOverTarget { measured, target };
        let missed = Reason::Unachievable { measured, target };
        let met = Reason::ReadsUnderTarget { measured: target, target };
        for (reason, newly) in [
            (Reason::NotEnoughData, None),
            (over, None),
            (missed, Some(true)),
            (missed, None),
            (over, None),
            (Reason::NoNoisy { measured, target }, None),
            (Reason::TestingEffect { delay }, None),
            (met, Some(false)),
            (Reason::Idle, None),
            (Reason::Ineffective { delay }, Some(true)),
            (Reason::Idle, Some(false)),
        ] {
            assert_eq!(pool.newly_missed(&reason), newly, "{reason:?}");
        }
    }
}
