//! The state that all workers share: mailboxes of the workers, homes of the connections, and counters.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use evenkeel_control::Duration;
use evenkeel_control::placement::{self, Placement};
use evenkeel_policy::config::Workers;
use evenkeel_policy::state::OverdueIo;

use crate::budget::Budget;
use crate::connections::Slots;
use crate::faults::Faults;
use crate::handshakes::Handshakes;
use crate::mailbox::Mailbox;
use crate::prompt;
use crate::recorder::{Host, Recorder};
use crate::refusals::Refusals;
use crate::snapshot::Snapshot;
use crate::space::Spaces;
use crate::worker::message::Message;
use crate::worker::seen::Seen;

/// Figures that a worker reports about itself.
#[derive(Default)]
pub(crate) struct WorkerStats {
    /// Number of connections that the worker serves, including those on their way to it.
    pub(crate) connections: AtomicU32,
    /// Number of requests that the worker has received.
    pub(crate) requests: AtomicU64,
    /// CPU time that the worker's thread has used, in nanoseconds.
    pub(crate) cpu_ns: AtomicU64,
    /// Fraction of the latest second in which the worker was busy, 0 to 1, as the bits of an `f64`.
    pub(crate) busy: AtomicU64,
    /// Time of the worker's latest housekeeping, in nanoseconds of `CLOCK_MONOTONIC`; 0 before the first housekeeping and
    /// after the worker's end.
    pub(crate) heard_ns: AtomicU64,
    /// Operations that the back end seems to have lost, each with the index of its pool, because the operation's volume may
    /// have been removed.
    pub(crate) overdue: Mutex<Vec<(usize, OverdueIo)>>,
    /// The worker's connections that have chosen an export, with figures at most about 1 s old.
    pub(crate) clients: Mutex<Vec<Seen>>,
}

/// Bounds from the configuration that do not change while the server runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Largest number of requests of one connection without a reply.
    pub(crate) in_flight: usize,
    /// Time within which a client must choose an export, in nanoseconds.
    pub(crate) handshake_ns: u64,
    /// Largest number of connections that have not chosen an export yet.
    pub(crate) handshakes: u32,
    /// Largest number of connections of one client that have not chosen an export yet.
    pub(crate) handshakes_of_client: u32,
    /// Time without an acknowledgement after which a TCP peer counts as gone.
    pub(crate) peer_timeout: Duration,
    /// Longest time for which a worker polls for events before it sleeps.
    pub(crate) busy_poll: Duration,
}

/// The state that all workers share.
pub(crate) struct Shared {
    snapshot: RwLock<Arc<Snapshot>>,
    /// Number of times that the snapshot was replaced; a worker notices a replacement by reading this number.
    epoch: AtomicU64,
    /// Mailboxes by index of the worker, with a place for each worker that there can be; set once the worker has been
    /// started. The mailbox of a worker that has ended is closed.
    mailboxes: Vec<OnceLock<Arc<Mailbox<Message>>>>,
    /// Figures of the workers, by index, with a place for each worker that there can be.
    pub(crate) stats: Vec<WorkerStats>,
    /// Number of workers wanted; workers with this index or a higher one are leaving or have ended.
    workers: AtomicUsize,
    /// Keys and homes of all connections.
    pub(crate) slots: Slots,
    /// Decides which worker serves which connection.
    placement: Mutex<Placement>,
    /// Number of times that placement has moved a connection.
    pub(crate) moves: AtomicU64,
    /// The budget for the bytes of payload that are buffered.
    pub(crate) budget: Budget,
    /// Bounds from the configuration that do not change while the server runs.
    pub(crate) bounds: Bounds,
    /// Number of connections accepted since the start.
    pub(crate) accepted: AtomicU64,
    /// Number of connections refused since the start for want of a slot or a file descriptor.
    pub(crate) refused: AtomicU64,
    /// Number of TLS handshakes completed since the start.
    pub(crate) tls_handshakes: AtomicU64,
    /// Bounds on connections and on negotiations, with the present counts of both.
    pub(crate) handshakes: Arc<Handshakes>,
    /// Numbers of clients refused since the start, by reason.
    pub(crate) refusals: Refusals,
    /// Space of the volumes in files.
    pub(crate) spaces: Spaces,
    /// Records requests in files.
    pub(crate) recorder: Recorder,
    /// Paths of the program's own files, which no recording replaces.
    pub(crate) own_files: Vec<PathBuf>,
    /// True once the server is stopping.
    pub(crate) draining: AtomicBool,
    /// True if a worker had to end while requests were in flight, not only while clients had not taken their answers.
    pub(crate) left_in_flight: AtomicBool,
    /// True if a worker had to end while clients had not taken all of their answers.
    pub(crate) left_unsent: AtomicBool,
    /// True if the limit of open files allows fewer connections than the configuration: further clients wait.
    pub(crate) limits_descriptors: bool,
    /// True if the process may give requests to files a raised I/O priority.
    pub(crate) raises_priority: bool,
    /// Faults that a test injects.
    pub(crate) faults: Faults,
}

impl Shared {
    /// The shared state for `workers` workers, none of which has started, and at most `slots` connections, of which each client
    /// and each tenant may have a part.
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
            spaces: Spaces::default(),
            recorder: Recorder::default(),
            own_files: Vec::new(),
            draining: AtomicBool::new(false),
            left_in_flight: AtomicBool::new(false),
            left_unsent: AtomicBool::new(false),
            limits_descriptors: false,
            raises_priority: false,
            faults,
        }
    }

    /// True if the limit of open files allows no further connection.
    pub(crate) fn lacks_descriptors(&self) -> bool {
        self.limits_descriptors && self.slots.taken() as usize >= self.slots.len()
    }

    /// The newest snapshot.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Number of the newest snapshot: how often the snapshot has been replaced.
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

    /// Posts a message to every worker, including workers that are leaving.
    pub(crate) fn tell_all(&self, message: impl Fn() -> Message) {
        for mailbox in self.mailboxes.iter().filter_map(OnceLock::get) {
            // To one that has ended there is nothing to say.
            let _ = mailbox.post(message());
        }
    }

    /// Number of workers wanted; workers with a higher or equal index are leaving or have ended.
    pub(crate) fn workers(&self) -> usize {
        self.workers.load(Ordering::Acquire)
    }

    /// Sets the number of workers, all of which run already; from now on connections are placed on these workers. Returns how
    /// many connections have to move.
    pub(crate) fn set_workers(&self, workers: usize) -> usize {
        self.workers.store(workers, Ordering::Release);
        let decision = self.placement().set_workers(crate::clock::now(), workers);
        self.moves.fetch_add(decision.moves as u64, Ordering::Relaxed);
        decision.moves
    }

    /// The mailbox of the worker with this index; makes it if there is none yet.
    ///
    /// # Errors
    /// If there is no file descriptor left.
    pub(crate) fn make_mailbox(&self, worker: usize) -> rustix::io::Result<&Arc<Mailbox<Message>>> {
        let place = &self.mailboxes[worker];
        if place.get().is_none() {
            // Who came first is right.
            let _ = place.set(Arc::new(Mailbox::with(self.faults.clone())?));
        }
        place.get().ok_or(rustix::io::Errno::AGAIN)
    }

    /// The mailbox of the worker with this index, if it has ever been made.
    pub(crate) fn mailbox(&self, worker: usize) -> Option<&Arc<Mailbox<Message>>> {
        self.mailboxes.get(worker)?.get()
    }

    /// True if all workers other than worker 0 have ended.
    pub(crate) fn first_is_alone(&self) -> bool {
        self.mailboxes.iter().skip(1).filter_map(OnceLock::get).all(|mailbox| mailbox.is_closed())
    }

    /// Posts a message to a worker. If the worker has ended, worker 0 gets the messages that must not be lost.
    pub(crate) fn post(&self, worker: usize, message: Message) {
        let returned = match self.mailbox(worker) {
            Some(mailbox) => mailbox.post(message).err(),
            None => Some(message),
        };
        if let Some(message) = returned {
            self.redirect(worker, message);
        }
    }

    /// Posts all messages to a worker, in order, as [`Self::post`] does; empties `messages`.
    pub(crate) fn post_all(&self, worker: usize, messages: &mut Vec<Message>) {
        if let Some(mailbox) = self.mailbox(worker) {
            mailbox.post_all(messages);
        }
        for message in messages.drain(..) {
            self.redirect(worker, message);
        }
    }

    /// Handles a message for a worker that has ended: worker 0, which never leaves, gets connections and completed
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

    /// Locks the placement. Called when a connection is accepted or closed, and by each worker as often as connections may
    /// move.
    pub(crate) fn placement(&self) -> MutexGuard<'_, Placement> {
        self.placement.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host for Shared {
    fn snapshot(&self) -> Arc<Snapshot> {
        Self::snapshot(self)
    }

    fn epoch(&self) -> u64 {
        Self::epoch(self)
    }

    fn workers(&self) -> usize {
        Self::workers(self)
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn own_files(&self) -> &[PathBuf] {
        &self.own_files
    }
}
