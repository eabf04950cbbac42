//! Tests that no setting stays changed if agent, sentinel or both are killed with SIGKILL at any moment. The processes are
//! real; files take the place of the kernel's settings: one plain setting, and the limits of three control groups, which are
//! set together.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_guard::actuator::io_max::{self, IoMax, Limits};
use evenkeel_guard::actuator::{Error, FileKnob};
use evenkeel_guard::journal::Journal;
use evenkeel_guard::sensor::diskstats::DeviceNumber;
use evenkeel_guard::sentinel::{self, Sentinel};

const ROLE: &str = "EVENKEEL_TEST_ROLE";
const FOLDER: &str = "EVENKEEL_TEST_FOLDER";
const KNOB: &str = "max";
/// Rows of the three groups' `io.max` before the agent starts; the last group has no row.
const ROWS: [&str; 3] =
    ["253:0 rbps=max wbps=70000 riops=max wiops=max", "253:0 rbps=9000 wbps=max riops=5 wiops=max", ""];
const DEVICE: DeviceNumber = DeviceNumber { major: 253, minor: 0 };
/// Moments, in ms from the agent's start, at which processes are killed: before, at and long after the agent's first change.
const MOMENTS_MS: [u64; 12] = [0, 1, 2, 4, 6, 9, 13, 18, 24, 33, 47, 80];
const LIMIT: Duration = Duration::from_secs(30);

/// If this process was started as the agent or the sentinel of a test, runs that role and returns true.
fn played(test: &str) -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    match role.as_str() {
        "sentinel" => drop(sentinel::watch(std::io::stdin(), &folder.join("journal")).unwrap()),
        "agent" => agent(test, &folder),
        other => panic!("unknown role {other}"),
    }
    true
}

/// The command that starts this test's program again in another role.
fn role(test: &str, role: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(ROLE, role).env(FOLDER, folder).stdout(Stdio::null());
    command
}

/// The role of the agent: changes the settings as fast as possible until the process is killed, and replaces a sentinel that
/// has ended.
fn agent(test: &str, folder: &Path) {
    let start = || {
        let sentinel = Sentinel::start(&mut role(test, "sentinel", folder)).unwrap();
        std::fs::write(folder.join("pid.part"), sentinel.id().to_string()).unwrap();
        std::fs::rename(folder.join("pid.part"), folder.join("pid")).unwrap();
        sentinel
    };
    let mut journal = Journal::open(folder.join("journal")).unwrap();
    journal.restore_all();
    let mut sentinel = start();
    let mut knob = FileKnob::new(folder.join("knob"));
    let mut groups = groups(folder).map(|group| IoMax::new(&group, DEVICE));
    for round in 0u64.. {
        if !sentinel.is_alive() {
            sentinel = start();
        }
        knob.set(&mut journal, &format!("limit {round}")).unwrap();
        let limits = Limits { rbps: Some(1_000_000 + round), wbps: Some(2_000_000 + round), ..Limits::NONE };
        let mut rows: Vec<(&mut IoMax, Limits)> = groups.iter_mut().map(|group| (group, limits)).collect();
        for change in io_max::set_all(&mut journal, &mut rows).unwrap() {
            assert!(matches!(change, Ok(io_max::Change::Made)), "{change:?}");
        }
    }
}

/// The folders of the three control groups.
fn groups(folder: &Path) -> [PathBuf; 3] {
    [0, 1, 2].map(|n| folder.join(format!("group{n}")))
}

/// One text with the value of the plain setting and the rows of the three groups. A row without limits counts as no row, as
/// in the kernel.
fn settings(knob: &str, rows: [&str; 3]) -> String {
    let rows = rows.map(|row| if Limits::of(row, DEVICE) == Ok(Limits::NONE) { "" } else { row.trim() });
    format!("{}; {}", knob.trim(), rows.join("; "))
}

fn original() -> String {
    settings(KNOB, ROWS)
}

/// A running agent process, and the folder with its files.
struct Trial {
    folder: PathBuf,
    agent: Child,
}

impl Trial {
    fn start(test: &str, moment: u64) -> Self {
        let folder = std::env::temp_dir().join(format!("evenkeel-{test}-{}-{moment}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("knob"), format!("{KNOB}\n")).unwrap();
        for (group, row) in groups(&folder).iter().zip(ROWS) {
            std::fs::create_dir_all(group).unwrap();
            std::fs::write(group.join("io.max"), row).unwrap();
        }
        let agent = role(test, "agent", &folder).stdin(Stdio::null()).spawn().unwrap();
        Self { folder, agent }
    }

    /// Process id of the sentinel; waits until there is one.
    fn sentinel(&self) -> i32 {
        self.until("a sentinel", || std::fs::read_to_string(self.folder.join("pid")).ok()?.parse().ok())
    }

    fn settings(&self) -> String {
        let rows = groups(&self.folder).map(|group| std::fs::read_to_string(group.join("io.max")).unwrap());
        let knob = std::fs::read_to_string(self.folder.join("knob")).unwrap();
        settings(&knob, [&rows[0], &rows[1], &rows[2]])
    }

    /// Waits until the groups' limits are changed; the plain setting is changed before them.
    fn changed(&self) {
        let limited = |group: &PathBuf| {
            let row = std::fs::read_to_string(group.join("io.max")).unwrap();
            Limits::of(&row, DEVICE).is_ok_and(|limits| limits.rbps >= Some(1_000_000))
        };
        self.until("a change", || groups(&self.folder).iter().any(limited).then_some(()));
    }

    fn is_original(&self) -> bool {
        self.settings() == original()
    }

    fn kill_agent(&mut self) {
        self.agent.kill().unwrap();
        self.agent.wait().unwrap();
    }

    /// The journal; waits until no other process has locked it.
    fn journal(&self) -> Journal {
        self.until("the journal", || match Journal::open(self.folder.join("journal")) {
            Ok(journal) => Some(journal),
            Err(Error::JournalInUse { .. }) => None,
            Err(e) => panic!("{e}"),
        })
    }

    fn until<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(value) = found() {
                return value;
            }
            assert!(started.elapsed() < LIMIT, "no {what} within {LIMIT:?}; the settings are {:?}", self.settings());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn kill(pid: i32) {
    use rustix::process::{Pid, Signal, kill_process};
    // It may have ended by itself meanwhile.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

fn wait(moment: u64) {
    std::thread::sleep(Duration::from_millis(moment));
}

#[test]
fn the_sentinel_restores_what_a_killed_agent_had_set() {
    const TEST: &str = "the_sentinel_restores_what_a_killed_agent_had_set";
    if played(TEST) {
        return;
    }
    let mut seen_changed = 0;
    for moment in MOMENTS_MS {
        let mut trial = Trial::start(TEST, moment);
        if moment > 5 {
            trial.changed();
        }
        wait(moment);
        trial.kill_agent();
        seen_changed += usize::from(!trial.is_original());
        trial.until("original", || (trial.is_original() && trial.journal().is_clear()).then_some(()));
    }
    assert!(seen_changed > 0, "no agent was killed while the setting was changed");
}

#[test]
fn a_killed_sentinel_is_replaced() {
    const TEST: &str = "a_killed_sentinel_is_replaced";
    if played(TEST) {
        return;
    }
    for moment in &MOMENTS_MS[..6] {
        let mut trial = Trial::start(TEST, *moment);
        let first = trial.sentinel();
        wait(*moment);
        kill(first);
        trial.until("another sentinel", || (trial.sentinel() != first).then_some(()));
        trial.changed();
        trial.kill_agent();
        trial.until("original", || (trial.is_original() && trial.journal().is_clear()).then_some(()));
    }
}

#[test]
fn the_journal_restores_what_is_left_when_both_are_killed() {
    const TEST: &str = "the_journal_restores_what_is_left_when_both_are_killed";
    if played(TEST) {
        return;
    }
    let mut left = 0;
    for moment in MOMENTS_MS {
        let mut trial = Trial::start(TEST, moment);
        trial.changed();
        wait(moment);
        // The agent may replace the first one before it dies itself.
        kill(trial.sentinel());
        trial.kill_agent();
        kill(trial.sentinel());
        left += usize::from(!trial.is_original());
        let mut journal = trial.journal();
        for (knob, result) in journal.restore_all() {
            assert!(result.is_ok(), "{knob:?}: {result:?}");
        }
        assert_eq!(trial.settings(), original());
        assert!(journal.is_clear());
    }
    assert!(left > 0, "in no trial was anything left to restore");
}
