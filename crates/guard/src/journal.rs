//! The journal: what was there before us, written and synced before anything is changed.
//!
//! One line of JSON an event, in the order in which things happen:
//!
//! ```text
//! {"intend":{"knob":{"file":"/sys/fs/cgroup/a/io.max"},"before":"","set":"8:0 wbps=1000000"}}
//! {"confirm":{"knob":{"file":"/sys/fs/cgroup/a/io.max"},"seen":"8:0 rbps=max wbps=1000000 riops=max wiops=max"}}
//! {"restored":{"knob":{"file":"/sys/fs/cgroup/a/io.max"}}}
//! ```
//!
//! A process that dies between `intend` and `confirm` may have changed the setting or not: it is put back whatever it
//! holds. After `confirm` it is put back only if it still holds what we saw, as otherwise somebody else has changed it
//! since. A last line that is cut short is an intention that was never acted on.
//!
//! Whoever holds the lock (a file beside the journal) may act: the agent, or after it the sentinel, `guard reset`, or
//! the next agent.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::actuator::{self, Error};

/// Lines after which the journal is written anew with only what is still set. At a change of one setting ten times a
/// second it is reached after some three minutes, and reading it takes milliseconds.
const COMPACT_LINES: usize = if cfg!(test) { 50 } else { 4_000 };

/// Something that can be set, by what it takes to find it again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// A file that holds a setting.
    File(PathBuf),
    /// The delay classes on a network device.
    Qdisc(String),
    /// The nftables table.
    Table,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Intend { knob: Knob, before: Option<String>, set: Option<String> },
    Confirm { knob: Knob, seen: String },
    Restored { knob: Knob },
}

/// What is known about a setting that is not as it was before us.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct State {
    before: Option<String>,
    set: Option<String>,
    /// As read back after the last write; none while that is under way.
    seen: Option<String>,
}

/// What happened to one setting when it was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// It is as it was before.
    Done,
    /// It was so already, or is gone.
    Nothing,
    /// Somebody else changed it after us, and it stays as they want it.
    Foreign {
        /// What it holds.
        found: String,
    },
}

/// What happened to each setting when all were put back.
pub type Restoration = Vec<(Knob, Result<Restored, Error>)>;

/// An open journal, locked for this process.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
    states: BTreeMap<Knob, State>,
    /// Holds the lock until it is dropped.
    _lock: File,
}

impl Journal {
    /// Opens or creates the journal and locks it. What an earlier process left in it is waiting for
    /// [`restore_all`](Self::restore_all).
    ///
    /// # Errors
    /// [`Error::JournalInUse`] if another process has it, [`Error::JournalFormat`] if a line other than the last makes
    /// no sense, [`Error::File`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir).map_err(|e| failed("make the directory of", &path, e))?;
        }
        let lock_path = with_suffix(&path, ".lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|e| failed("open", &lock_path, e))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::JournalInUse { path }),
            Err(e) => return Err(failed("lock", &lock_path, e.into())),
        }
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(|e| failed("open", &path, e))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|e| failed("read", &path, e))?;
        let states = parse(&path, &text)?;
        let mut journal = Self { path, file, lines: 0, states, _lock: lock };
        // Also cuts off a last line that is not whole.
        if !text.is_empty() {
            journal.compact()?;
        }
        Ok(journal)
    }

    /// Whether everything is as it was before us.
    pub fn is_clear(&self) -> bool {
        self.states.is_empty()
    }

    /// What is not as it was before us.
    pub fn pending(&self) -> impl Iterator<Item = &Knob> {
        self.states.keys()
    }

    /// Writes down what is about to be set; when this returns, it is on disk. `before` counts only the first time.
    ///
    /// # Errors
    /// [`Error::File`]; then the setting must not be changed.
    pub fn intend(&mut self, knob: &Knob, before: Option<&str>, set: Option<&str>) -> Result<(), Error> {
        let known = self.states.get(knob).and_then(|s| s.before.clone());
        let before = known.or_else(|| before.map(str::to_owned));
        let set = set.map(str::to_owned);
        self.append(&Line::Intend { knob: knob.clone(), before, set })
    }

    /// Writes down what the setting holds after the change.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn confirm(&mut self, knob: &Knob, seen: &str) -> Result<(), Error> {
        self.append(&Line::Confirm { knob: knob.clone(), seen: seen.to_owned() })
    }

    /// Puts one setting back.
    ///
    /// # Errors
    /// [`Error::File`] or what the kernel refuses; the setting stays in the journal.
    pub fn restore(&mut self, knob: &Knob) -> Result<Restored, Error> {
        let Some(state) = self.states.get(knob) else { return Ok(Restored::Nothing) };
        let result = put_back(knob, state)?;
        self.append(&Line::Restored { knob: knob.clone() })?;
        Ok(result)
    }

    /// Puts everything back, as far as it goes: an error for one setting does not keep the others from being restored.
    pub fn restore_all(&mut self) -> Restoration {
        let knobs: Vec<Knob> = self.states.keys().cloned().collect();
        knobs
            .into_iter()
            .map(|knob| {
                let result = self.restore(&knob);
                (knob, result)
            })
            .collect()
    }

    fn append(&mut self, line: &Line) -> Result<(), Error> {
        let path = &self.path;
        let text = to_json(line).map_err(|e| failed("write", path, e))?;
        self.file.write_all(text.as_bytes()).map_err(|e| failed("write", path, e))?;
        self.file.sync_data().map_err(|e| failed("sync", path, e))?;
        self.lines += 1;
        update(&mut self.states, line.clone());
        if self.lines >= COMPACT_LINES { self.compact() } else { Ok(()) }
    }

    /// Writes the journal anew with only what is still set. A crash leaves the old one or the new one.
    fn compact(&mut self) -> Result<(), Error> {
        let part = with_suffix(&self.path, ".part");
        let write = || {
            let mut text = String::new();
            for (knob, state) in &self.states {
                let State { before, set, seen } = state.clone();
                text += &to_json(&Line::Intend { knob: knob.clone(), before, set })?;
                if let Some(seen) = seen {
                    text += &to_json(&Line::Confirm { knob: knob.clone(), seen })?;
                }
            }
            let mut file = File::create(&part)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&part, &self.path)?;
            // The new name must be on disk as well.
            let dir = self.path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(dir)?.sync_all()?;
            OpenOptions::new().read(true).append(true).open(&self.path)
        };
        self.file = write().map_err(|e| failed("write", &self.path, e))?;
        self.lines = 2 * self.states.len();
        Ok(())
    }
}

fn put_back(knob: &Knob, state: &State) -> Result<Restored, Error> {
    match knob {
        Knob::Qdisc(device) => {
            actuator::remove_classes(device).map(|had| if had { Restored::Done } else { Restored::Nothing })
        }
        Knob::Table => actuator::remove_table().map(|()| Restored::Done),
        Knob::File(path) => {
            let Some(before) = &state.before else { return Ok(Restored::Nothing) };
            if !path.exists() {
                // A cgroup or device that is gone took its setting along.
                return Ok(Restored::Nothing);
            }
            let found = actuator::read_file(path)?;
            if found == *before {
                return Ok(Restored::Nothing);
            }
            if state.seen.as_ref().is_some_and(|seen| *seen != found) {
                return Ok(Restored::Foreign { found });
            }
            actuator::write_file(path, before).map(|()| Restored::Done)
        }
    }
}

/// One line. Fails only for a path that is not UTF-8.
fn to_json(line: &Line) -> std::io::Result<String> {
    Ok(serde_json::to_string(line)? + "\n")
}

fn update(states: &mut BTreeMap<Knob, State>, line: Line) {
    match line {
        Line::Intend { knob, before, set } => {
            let state = states.entry(knob).or_default();
            state.before = state.before.take().or(before);
            state.set = set;
            state.seen = None;
        }
        Line::Confirm { knob, seen } => states.entry(knob).or_default().seen = Some(seen),
        Line::Restored { knob } => {
            states.remove(&knob);
        }
    }
}

fn parse(path: &Path, text: &[u8]) -> Result<BTreeMap<Knob, State>, Error> {
    let mut states = BTreeMap::new();
    // What follows the last end of line was cut short, and nothing was done after it.
    let whole = text.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
    for (number, line) in text[..whole].split(|&b| b == b'\n').enumerate().filter(|(_, l)| !l.is_empty()) {
        let line = serde_json::from_slice(line).map_err(|e| Error::JournalFormat {
            path: path.to_owned(),
            line: number + 1,
            problem: e.to_string(),
        })?;
        update(&mut states, line);
    }
    Ok(states)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn failed(doing: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { doing, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
