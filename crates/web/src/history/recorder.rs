//! The thread that records.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ledger::{Ledger, Sense};
use super::place::{Place, Program};

/// How long a stop waits for the last second to be recorded: a disk that hangs does not delay it further.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Time after the begin of a second at which the one before is recorded.
const AFTER: Duration = Duration::from_millis(5);

/// Cure if [`Recorder`] cannot have a thread.
pub const NO_THREAD_CURE: &str = "raise the limit of threads (ulimit -u, TasksMax=) and restart";

/// A function that returns the present place; `None` if no history is recorded.
type PlaceOf = Arc<dyn Fn() -> Option<Place> + Send + Sync>;

/// A history that a thread records once a second, for as long as the process lives.
pub struct Recorder {
    program: Program,
    place: PlaceOf,
    /// The error for which nothing is recorded at present.
    problem: Arc<Mutex<Option<String>>>,
    stops: SyncSender<SyncSender<()>>,
}

impl Recorder {
    /// Starts the thread. `place` is asked once a second.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(
        program: Program,
        place: impl Fn() -> Option<Place> + Send + Sync + 'static,
        sense: impl Sense + 'static,
    ) -> io::Result<Self> {
        let (stops, stopped) = sync_channel(1);
        let (place, problem): (PlaceOf, Arc<Mutex<Option<String>>>) = (Arc::new(place), Arc::default());
        let (of_thread, told) = (Arc::clone(&place), Arc::clone(&problem));
        let work = move || record(program, &*of_thread, sense, &told, &stopped);
        thread::Builder::new().name("evenkeel-history".into()).spawn(work)?;
        Ok(Self { program, place, problem, stops })
    }

    /// Records that the program stops. Returns when that is on disk, or after two seconds.
    pub fn stop(&self) {
        let (done, finished) = sync_channel(1);
        if self.stops.try_send(done).is_ok() {
            let _ = finished.recv_timeout(STOP_PATIENCE);
        }
    }

    /// The key of the configuration that sets the bound.
    pub(crate) fn key(&self) -> &'static str {
        self.program.key
    }

    /// The present place; `None` if no history is recorded.
    pub(crate) fn place(&self) -> Option<Place> {
        (self.place)()
    }

    /// The error for which nothing is recorded at present.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Unix time.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn record(
    program: Program,
    place: &dyn Fn() -> Option<Place>,
    mut sense: impl Sense,
    problem: &Mutex<Option<String>>,
    stopped: &Receiver<SyncSender<()>>,
) {
    let mut ledger = Ledger::new(program, now().as_secs());
    loop {
        let next = Duration::from_secs(1) + AFTER - Duration::from_nanos(now().subsec_nanos().into());
        match stopped.recv_timeout(next) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(done) => {
                ledger.stop(now().as_secs(), place().as_ref(), &mut sense);
                let _ = done.send(());
                return;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        ledger.record(now().as_secs(), place().as_ref(), &mut sense);
        *problem.lock().unwrap_or_else(PoisonError::into_inner) = ledger.problem();
    }
}
