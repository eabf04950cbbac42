//! The thread that records.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenkeel_guard::host::lock;
use evenkeel_policy::figures::uptime;
use evenkeel_policy::health::Trouble;

use super::ledger::{BEHIND_CURE, Ledger, Sense};
use super::place::{Place, Program};
use super::room::Room;

/// Time for which a stop waits for the last second to be recorded: a disk that hangs does not delay it further.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Time after the start of a second at which the one before is recorded.
const AFTER: Duration = Duration::from_millis(5);
/// Time from which on the recording of a second takes so long that nothing is recorded: a sync of a busy disk takes less.
const STUCK_AFTER: Duration = Duration::from_secs(15);

/// Cure if [`Recorder`] cannot have a thread.
pub const NO_THREAD_CURE: &str = "raise the limit of threads (ulimit -u, TasksMax=) and restart";

/// Name of the trouble that nothing is recorded at present.
pub(crate) const HISTORY_LOST: &str = "history_lost";

/// A function that returns the present place; `None` if no history is recorded.
type PlaceOf = Arc<dyn Fn() -> Option<Place> + Send + Sync>;

/// The newest turn of the thread, of which there is one in a second, and all that it has found.
struct Turn {
    began: Instant,
    /// The error for which nothing is recorded at present.
    problem: Option<String>,
    /// The reason why nothing is recorded by the present clock; `None` unless it was set back.
    behind: Option<String>,
    /// The room for the history; `None` if it is not known.
    room: Option<Room>,
}

/// A history that a thread records once a second, for as long as the process lives.
pub struct Recorder {
    program: Program,
    place: PlaceOf,
    turn: Arc<Mutex<Turn>>,
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
        let place: PlaceOf = Arc::new(place);
        let turn = Arc::new(Mutex::new(Turn { began: Instant::now(), problem: None, behind: None, room: None }));
        let (of_thread, shared) = (Arc::clone(&place), Arc::clone(&turn));
        let work = move || record(program, &*of_thread, sense, &shared, &stopped);
        thread::Builder::new().name("evenkeel-history".into()).spawn(work)?;
        Ok(Self { program, place, turn, stops })
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
        lock(&self.turn).problem.clone()
    }

    /// The trouble that nothing is recorded at present although the configuration has a place for it, or that there is soon no
    /// more room at that place; `None` otherwise.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.trouble_at(Instant::now())
    }

    /// As [`Self::trouble`], at the instant `now`.
    fn trouble_at(&self, now: Instant) -> Option<Trouble> {
        let place = self.place()?;
        let turn = lock(&self.turn);
        let (folder, key, taken) = (place.folder.display(), self.key(), now.saturating_duration_since(turn.began));
        let (because, cure) = if taken >= STUCK_AFTER {
            let time = uptime(taken.as_secs_f64());
            (
                format!("no history is recorded: to write to {folder} has taken {time} so far, and goes on"),
                format!(
                    "look for errors of the disk of {folder} in the kernel's log, `journalctl -k`, or of a panic in that of the {}; or set {key} = \"off\" and restart",
                    self.program.name
                ),
            )
        } else if let Some(problem) = &turn.problem {
            (
                format!("no history is recorded: {problem}"),
                format!(
                    "make room in {folder}, make it writable, or end the other program that uses it; or set {key} = \"off\""
                ),
            )
        } else if let Some(behind) = &turn.behind {
            return Some(Trouble::warning("clock_set_back", "history", behind, BEHIND_CURE));
        } else {
            return turn.room?.trouble(&place, key);
        };
        Some(Trouble::warning(HISTORY_LOST, "", because, cure))
    }
}

/// Unix time.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Puts into the turn all that the ledger knows of it.
fn publish(turn: &Mutex<Turn>, ledger: &Ledger) {
    let (problem, behind) = (ledger.problem(), ledger.behind());
    let mut turn = lock(turn);
    (turn.problem, turn.behind) = (problem, behind);
}

fn record(
    program: Program,
    place: &dyn Fn() -> Option<Place>,
    mut sense: impl Sense,
    turn: &Mutex<Turn>,
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
        lock(turn).began = Instant::now();
        let place = place();
        ledger.record(now().as_secs(), place.as_ref(), &mut sense);
        publish(turn, &ledger);
        // A disk that hangs delays the measurement.
        let room = place.and_then(|place| Room::measure(&place, ledger.bytes()));
        lock(turn).room = room;
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_history::Sample;
    use evenkeel_policy::health::Level;

    use super::*;
    use crate::folder::Folder;
    use crate::history::marks::Held;

    struct Nothing;

    impl Sense for Nothing {
        fn samples(&mut self) -> Vec<Sample> {
            Vec::new()
        }

        fn held(&mut self) -> Held {
            Held::default()
        }
    }

    #[test]
    fn an_error_is_known_before_the_room_is_measured() {
        let scratch = Folder::new();
        let place = Place { folder: scratch.join("history"), bytes: 1 << 23 };
        std::fs::write(&place.folder, "a file").expect("written");
        let mut ledger = Ledger::new(Program { name: "server", key: "server.history" }, 100);
        ledger.record(101, Some(&place), &mut Nothing);
        let turn = Mutex::new(Turn { began: Instant::now(), problem: None, behind: None, room: None });
        publish(&turn, &ledger);
        let turn = lock(&turn);
        assert!(turn.problem.as_ref().is_some_and(|problem| problem.contains("history")) && turn.room.is_none());
    }

    #[test]
    fn a_history_that_is_not_recorded_is_a_trouble_unless_it_is_off() {
        let recorder = |problem: Option<&str>, place: Option<Place>| {
            let (program, place) = (Program { name: "server", key: "server.history" }, Arc::new(move || place.clone()));
            let (began, problem) = (Instant::now(), problem.map(str::to_owned));
            let turn = Arc::new(Mutex::new(Turn { began, problem, behind: None, room: None }));
            Recorder { program, place, turn, stops: sync_channel(1).0 }
        };
        let place = || Some(Place { folder: "/srv/history".into(), bytes: 1 << 23 });
        let trouble = recorder(Some("No space left on device"), place()).trouble().expect("a trouble");
        assert_eq!((trouble.level, trouble.kind.as_str()), (Level::Warning, HISTORY_LOST));
        assert!(trouble.because.ends_with("recorded: No space left on device"), "{trouble:?}");
        let Trouble { cure, .. } = trouble;
        assert!(cure.contains("/srv/history") && cure.ends_with("server.history = \"off\""), "{cure}");
        assert_eq!(recorder(None, place()).trouble(), None);
        assert_eq!(recorder(Some("it was in use"), None).trouble(), None, "it is off");
        // Its disk hangs, so that the thread finds no error.
        let hangs = recorder(None, place());
        let trouble = |after: Duration| hangs.trouble_at(Instant::now() + after);
        let stuck = trouble(Duration::from_secs(60)).expect("a trouble");
        assert_eq!((stuck.kind.as_str(), trouble(Duration::from_secs(5))), (HISTORY_LOST, None));
        assert!(stuck.because.contains("to write to /srv/history has taken") && stuck.cure.contains("journalctl -k"));
        let off = recorder(None, None);
        assert_eq!(off.trouble_at(Instant::now() + Duration::from_secs(60)), None, "it is off");
        let set_back = recorder(None, place());
        lock(&set_back.turn).behind = Some("the clock was set back".to_owned());
        let trouble = set_back.trouble().expect("a trouble");
        assert_eq!((trouble.kind.as_str(), trouble.cure.contains("timedatectl")), ("clock_set_back", true));
        let soon_full = recorder(None, place());
        let room = Room { free_bytes: 1 << 20, capacity_bytes: 1 << 30, missing_bytes: 1 << 22 };
        lock(&soon_full.turn).room = Some(room);
        assert_eq!(soon_full.trouble().map(|trouble| trouble.kind).as_deref(), Some("space"));
    }
}
