//! The thread that records.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_policy::health::{Level, Trouble};

use super::ledger::{BEHIND_CURE, Ledger, Sense};
use super::place::{Place, Program};
use super::room::Room;

/// Time for which a stop waits for the last second to be recorded: a disk that hangs does not delay it further.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Time after the start of a second at which the one before is recorded.
const AFTER: Duration = Duration::from_millis(5);

/// Cure if [`Recorder`] cannot have a thread.
pub const NO_THREAD_CURE: &str = "raise the limit of threads (ulimit -u, TasksMax=) and restart";

/// Name of the trouble that nothing is recorded at present.
pub(crate) const HISTORY_LOST: &str = "history_lost";

/// A function that returns the present place; `None` if no history is recorded.
type PlaceOf = Arc<dyn Fn() -> Option<Place> + Send + Sync>;

/// The reason why nothing is recorded at present; `None` while the history is recorded.
type Reason = Mutex<Option<String>>;

/// A history that a thread records once a second, for as long as the process lives.
pub struct Recorder {
    program: Program,
    place: PlaceOf,
    /// The error for which nothing is recorded at present.
    problem: Arc<Reason>,
    /// The reason why nothing is recorded by the present clock; `None` unless it was set back.
    behind: Arc<Reason>,
    /// The room for the history; `None` if it is not known.
    room: Arc<Mutex<Option<Room>>>,
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
        let (place, problem): (PlaceOf, Arc<Reason>) = (Arc::new(place), Arc::default());
        let behind: Arc<Reason> = Arc::default();
        let room: Arc<Mutex<Option<Room>>> = Arc::default();
        let (of_thread, told, measured) = (Arc::clone(&place), Arc::clone(&problem), Arc::clone(&room));
        let by_clock = Arc::clone(&behind);
        let work = move || record(program, &*of_thread, sense, (&*told, &*by_clock, &*measured), &stopped);
        thread::Builder::new().name("evenkeel-history".into()).spawn(work)?;
        Ok(Self { program, place, problem, behind, room, stops })
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

    /// The trouble that nothing is recorded at present although the configuration has a place for it, or that there is soon no
    /// more room at that place; `None` otherwise.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let place = self.place()?;
        let Some(problem) = self.problem() else {
            if let Some(behind) = self.behind.lock().unwrap_or_else(PoisonError::into_inner).clone() {
                return Some(Trouble::new(Level::Warning, "clock_set_back", "history", behind, BEHIND_CURE));
            }
            let room = *self.room.lock().unwrap_or_else(PoisonError::into_inner);
            return room?.trouble(&place, self.key());
        };
        let (folder, key) = (place.folder.display(), self.key());
        Some(Trouble::new(
            Level::Warning,
            HISTORY_LOST,
            "",
            format!("no history is recorded: {problem}"),
            format!(
                "make room in {folder}, make it writable, or end the other program that uses it; or set {key} = \"off\""
            ),
        ))
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
    (problem, behind, room): (&Reason, &Reason, &Mutex<Option<Room>>),
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
        let place = place();
        ledger.record(now().as_secs(), place.as_ref(), &mut sense);
        *problem.lock().unwrap_or_else(PoisonError::into_inner) = ledger.problem();
        *behind.lock().unwrap_or_else(PoisonError::into_inner) = ledger.behind();
        let measured = place.and_then(|place| Room::measure(&place, ledger.bytes()));
        *room.lock().unwrap_or_else(PoisonError::into_inner) = measured;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_that_is_not_recorded_is_a_trouble_unless_it_is_off() {
        let recorder = |problem: Option<&str>, place: Option<Place>| Recorder {
            program: Program { name: "server", key: "server.history" },
            place: Arc::new(move || place.clone()),
            problem: Arc::new(Mutex::new(problem.map(str::to_owned))),
            behind: Arc::default(),
            room: Arc::default(),
            stops: sync_channel(1).0,
        };
        let place = || Some(Place { folder: "/srv/history".into(), bytes: 1 << 23 });
        let trouble = recorder(Some("No space left on device"), place()).trouble().expect("a trouble");
        assert_eq!((trouble.level, trouble.kind.as_str()), (Level::Warning, HISTORY_LOST));
        assert!(trouble.because.ends_with("recorded: No space left on device"), "{trouble:?}");
        let Trouble { cure, .. } = trouble;
        assert!(cure.contains("/srv/history") && cure.ends_with("server.history = \"off\""), "{cure}");
        assert_eq!(recorder(None, place()).trouble(), None);
        assert_eq!(recorder(Some("it was in use"), None).trouble(), None, "it is off");
        let set_back = recorder(None, place());
        *set_back.behind.lock().expect("no panic") = Some("the clock was set back".to_owned());
        let trouble = set_back.trouble().expect("a trouble");
        assert_eq!((trouble.kind.as_str(), trouble.cure.contains("timedatectl")), ("clock_set_back", true));
        let soon_full = recorder(None, place());
        let room = Room { free_bytes: 1 << 20, capacity_bytes: 1 << 30, missing_bytes: 1 << 22 };
        *soon_full.room.lock().expect("no panic") = Some(room);
        assert_eq!(soon_full.trouble().map(|trouble| trouble.kind).as_deref(), Some("space"));
    }
}
