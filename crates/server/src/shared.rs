//! The state that all workers share: how to reach each of them, who serves which connection, and counters.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use evenkeel_control::Duration;
use evenkeel_control::placement::{self, Placement};
use evenkeel_policy::config::Workers;
use evenkeel_policy::state::OverdueIo;

use crate::budget::Budget;
use crate::faults::Faults;
use crate::handshakes::Handshakes;
use crate::mailbox::Mailbox;
use crate::prompt;
use crate::refusals::Refusals;
use crate::slots::Slots;
use crate::snapshot::Snapshot;
use crate::worker::message::Message;
use crate::worker::seen::Seen;

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
    pub(crate) clients: Mutex<Vec<Seen>>,
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

/// The state that all workers share.
pub(crate) struct Shared {
    snapshot: RwLock<Arc<Snapshot>>,
    /// Counts replacements of the snapshot, so that a worker notices with one load.
    epoch: AtomicU64,
    /// How to reach each worker that there ever was: as many places as there can be. One that has ended is closed.
    mailboxes: Vec<OnceLock<Arc<Mailbox<Message>>>>,
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
    /// TLS handshakes completed.
    pub(crate) tls_handshakes: AtomicU64,
    /// The clients that have not chosen an export yet.
    pub(crate) handshakes: Arc<Handshakes>,
    /// Clients turned away by the rules.
    pub(crate) refusals: Refusals,
    /// Set when the server stops.
    pub(crate) draining: AtomicBool,
    /// True if requests to files may have a higher I/O priority than others.
    pub(crate) raises_priority: bool,
    /// The faults of a test.
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
            handshakes: Arc::new(Handshakes::new(
                bounds.handshakes,
                bounds.handshakes_of_client,
                Duration::from_nanos(bounds.handshake_ns),
                slots,
            )),
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
        prompt::follow(&snapshot.config);
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
    pub(crate) fn make_mailbox(&self, worker: usize) -> rustix::io::Result<&Arc<Mailbox<Message>>> {
        let place = &self.mailboxes[worker];
        if place.get().is_none() {
            // Who came first is right.
            let _ = place.set(Arc::new(Mailbox::with(self.faults.clone())?));
        }
        place.get().ok_or(rustix::io::Errno::AGAIN)
    }

    /// How to reach a worker, if there ever was one.
    pub(crate) fn mailbox(&self, worker: usize) -> Option<&Arc<Mailbox<Message>>> {
        self.mailboxes.get(worker)?.get()
    }

    /// True if all workers but the first have ended.
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
