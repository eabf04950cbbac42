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
    /// Connections that the worker serves, including those on their way to it.
    pub(crate) connections: AtomicU32,
    /// Requests received.
    pub(crate) requests: AtomicU64,
    /// CPU time used, in nanoseconds.
    pub(crate) cpu_ns: AtomicU64,
    /// Fraction of the last second for which the worker had something to do, 0 to 1, as the bits of an `f64`.
    pub(crate) busy: AtomicU64,
    /// When the worker's loop last came round to its housekeeping, in nanoseconds of the clock; 0 before its first time and
    /// after its end.
    pub(crate) heard_ns: AtomicU64,
    /// Operations that the back end seems to have lost, with the indices of their pools: their volumes may have been removed.
    pub(crate) overdue: Mutex<Vec<(usize, OverdueIo)>>,
    /// The worker's connections, as of the last second.
    pub(crate) clients: Mutex<Vec<Seen>>,
}

/// Bounds from the configuration that do not change while the server runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Most requests of one connection without a reply.
    pub(crate) in_flight: usize,
    /// Time a client has to choose an export, in nanoseconds.
    pub(crate) handshake_ns: u64,
    /// Most connections that have not chosen an export.
    pub(crate) handshakes: u32,
    /// Most connections of one client that have not chosen an export.
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
    /// Mailbox of each worker that there ever was, with a place for each that there can be. That of an ended one is closed.
    mailboxes: Vec<OnceLock<Arc<Mailbox<Message>>>>,
    /// Reports of the workers; as many places as there can be.
    pub(crate) stats: Vec<WorkerStats>,
    /// Number of workers wanted; those with a higher index are leaving or have left.
    workers: AtomicUsize,
    /// Names and homes of all connections.
    pub(crate) slots: Slots,
    /// Decides which worker serves which connection.
    placement: Mutex<Placement>,
    /// Number of times that placement has moved a connection.
    pub(crate) moves: AtomicU64,
    /// Bound on buffered payloads.
    pub(crate) budget: Budget,
    /// Bytes received that wait to be parsed, as of requests beyond the connections' bound on outstanding ones.
    pub(crate) sent_ahead: AtomicU64,
    /// Other bounds.
    pub(crate) bounds: Bounds,
    /// Connections accepted.
    pub(crate) accepted: AtomicU64,
    /// Connections refused for want of a slot or a descriptor.
    pub(crate) refused: AtomicU64,
    /// TLS handshakes completed.
    pub(crate) tls_handshakes: AtomicU64,
    /// Bounds on connections and negotiations, and their counts.
    pub(crate) handshakes: Arc<Handshakes>,
    /// Counts of clients turned away, by reason.
    pub(crate) refusals: Refusals,
    /// Set when the server stops.
    pub(crate) draining: AtomicBool,
    /// True if requests to files may have a higher I/O priority than others.
    pub(crate) raises_priority: bool,
    /// The faults of a test.
    pub(crate) faults: Faults,
}

impl Shared {
    /// State for `workers` workers, none of which has started, and at most `slots` connections.
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

    /// Number of the newest snapshot.
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

    /// Posts a message to every worker, including those that leave.
    pub(crate) fn tell_all(&self, message: impl Fn() -> Message) {
        for mailbox in self.mailboxes.iter().filter_map(OnceLock::get) {
            // To one that has ended there is nothing to say.
            let _ = mailbox.post(message());
        }
    }

    /// Number of workers wanted.
    pub(crate) fn workers(&self) -> usize {
        self.workers.load(Ordering::Acquire)
    }

    /// Sets the number of workers, all of which run; new connections go to them. Returns how many connections have to move.
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

    /// The mailbox of a worker, if there ever was one.
    pub(crate) fn mailbox(&self, worker: usize) -> Option<&Arc<Mailbox<Message>>> {
        self.mailboxes.get(worker)?.get()
    }

    /// True if all workers but the first have ended.
    pub(crate) fn first_is_alone(&self) -> bool {
        self.mailboxes.iter().skip(1).filter_map(OnceLock::get).all(|mailbox| mailbox.is_closed())
    }

    /// Leaves a message for a worker. If that has ended, the first worker gets the messages that must not be lost.
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

    /// Handles a message for a worker that has ended: the first worker, which never leaves, gets connections and completed
    /// operations; other messages are dropped.
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
