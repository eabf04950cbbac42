//! The journal: the values that settings had before the agent changed them. Each value is on disk before its setting is
//! changed.
//!
//! One line of JSON for each event, in the order in which they happen:
//!
//! ```text
//! {"format":1}
//! {"intend":{"knob":{"file":"/sys/fs/cgroup/a/io.max"},"before":"","set":"8:0 wbps=1000000"}}
//! {"confirm":{"knob":{"file":"/sys/fs/cgroup/a/io.max"},"seen":"8:0 rbps=max wbps=1000000 riops=max wiops=max"}}
//! {"restored":{"knob":{"file":"/sys/fs/cgroup/a/io.max"}}}
//! ```
//!
//! A process that dies between `intend` and `confirm` may or may not have changed the setting: the setting is restored (set
//! to its value `before`) whatever it holds. After `confirm` a setting is restored only if it still holds the value `seen`;
//! otherwise another program has changed it since. A last line that is cut short is an intention that was never acted on.
//! While no setting is changed, the journal is empty.
//!
//! From a journal in another format, this version uses the lines that it understands: the settings in these lines can be
//! restored. The old journal is kept beside the new one, with `.format-N` appended to its name.
//!
//! Only the process that holds the lock (a file beside the journal) may change settings: the agent, or after its end the
//! sentinel, `guard reset`, or the next agent. Journal and lock can only be written by their owner: the settings that the
//! journal lists are written as root, and another user's lock would keep the sentinel from its work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::actuator::Error;

/// Number of lines from which the journal is rewritten with only the settings that are still changed. With one setting
/// changed ten times a second, this happens about every three minutes; 4,000 lines are read in milliseconds.
const COMPACT_LINES: usize = if cfg!(test) { 50 } else { 4_000 };
/// Number of the format that this version writes.
const FORMAT: u32 = 1;
const LOCK_POLL: Duration = Duration::from_millis(5);
/// Mode of journal and lock: reading and writing for the owner alone.
const PRIVATE: u32 = 0o600;
/// Bits of a file's mode that let other users write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A setting that the agent changes: the facts that are needed to find the setting again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// The setting in the file at this path.
    File(PathBuf),
    /// The traffic-control filter that runs the agent's program on packets of this network device. This variant comes before
    /// `Qdisc`, because settings are restored in the variants' order: when the queueing discipline is removed, no more
    /// packets may come to wait in it.
    Filter(String),
    /// The queueing discipline, of this network device, in which delayed packets wait.
    Qdisc(String),
    /// A control group's limits on one block device.
    IoMax {
        /// Path of the group's file `io.max`.
        path: PathBuf,
        /// The device, as `MAJOR:MINOR`.
        device: String,
    },
    /// An option of a running Ceph daemon.
    CephOption {
        /// Path of the daemon's admin socket.
        socket: PathBuf,
        /// Name of the option.
        option: String,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Format(u32),
    Intend { knob: Knob, before: Option<String>, set: Option<String> },
    Confirm { knob: Knob, seen: String },
    Restored { knob: Knob },
}

/// The record of a setting that the agent has changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// The value before the agent's first change; `None` for a setting without a value, such as a queueing discipline.
    pub(crate) before: Option<String>,
    set: Option<String>,
    /// The value read back after the agent's latest write; `None` while a write is under way.
    pub(crate) seen: Option<String>,
}

/// The result of restoring one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// The setting has got its value before the agent's first change back.
    Done,
    /// Nothing had to be done: the setting had its earlier value already, or no longer exists.
    Nothing,
    /// Another program has changed the setting after the agent did; the setting keeps that program's value.
    Foreign {
        /// The value that the setting holds.
        found: String,
    },
}

/// The result of restoring, for each setting.
pub type Restoration = Vec<(Knob, Result<Restored, Error>)>;

/// An open journal; this process holds its lock.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
    /// Length of the file's complete lines together, in bytes.
    bytes: u64,
    /// True if an incomplete line follows the complete ones and could not be cut off yet.
    torn: bool,
    states: BTreeMap<Knob, State>,
    /// Settings that an earlier run, or an ended part of this one, left changed and that could not be restored so far; the
    /// agent does not set them before they are restored.
    left: BTreeSet<Knob>,
    /// The locked file beside the journal; dropping it releases the lock.
    _lock: File,
}

impl Journal {
    /// Opens or creates the journal and locks it. Settings that an earlier process left changed stay listed until
    /// [`restore_all`](Self::restore_all).
    ///
    /// # Errors
    /// [`Error::JournalInUse`] if another process has locked the journal, [`Error::JournalFormat`] if a line other than the
    /// last cannot be understood, [`Error::JournalNotOurs`] if another user could have written the journal, [`Error::File`]
    /// if a file cannot be read or written.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir).map_err(|e| Error::file("make the directory of", &path, e))?;
        }
        let lock_path = with_suffix(&path, ".lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(PRIVATE)
            .open(&lock_path)
            .map_err(|e| Error::file("open", &lock_path, e))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::JournalInUse { path }),
            Err(e) => return Err(Error::file("lock", &lock_path, e.into())),
        }
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(PRIVATE)
            .open(&path)
            .map_err(|e| Error::file("open", &path, e))?;
        let metadata = file.metadata().map_err(|e| Error::file("read", &path, e))?;
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & WRITABLE_BY_OTHERS != 0 {
            return Err(Error::JournalNotOurs { path });
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|e| Error::file("read", &path, e))?;
        let whole = whole(&text);
        let Parsed { states, format, unread } = parse(&path, &text[..whole])?;
        let lines = text[..whole].iter().filter(|&&b| b == b'\n').count();
        let torn = whole < text.len();
        let mut journal =
            Self { path, file, lines, bytes: whole as u64, torn, states, left: BTreeSet::new(), _lock: lock };
        journal.cut().map_err(|e| Error::file("cut off the last line of", &journal.path, e))?;
        if format != FORMAT {
            let aside = with_suffix(&journal.path, &format!(".format-{format}"));
            std::fs::copy(&journal.path, &aside).map_err(|e| Error::file("write", &aside, e))?;
            journal.compact()?;
            tracing::warn!(
                "the journal {} is of format {format}, this version writes {FORMAT}: it lists {} settings that can be restored, and {unread} lines that this version does not know; a copy of it is kept as {}",
                journal.path.display(),
                journal.states.len(),
                aside.display()
            );
        }
        // On a full disk there is no room for a new one, and what the old one lists can still be restored.
        if journal.lines > 1 + 2 * journal.states.len() {
            let _ = journal.compact();
        }
        Ok(journal)
    }

    /// As [`open`](Self::open), but waits up to `limit` for the lock: a sentinel that restores settings holds the lock no
    /// longer than packets are delayed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_within(path: impl Into<PathBuf>, limit: Duration) -> Result<Self, Error> {
        let path = path.into();
        let deadline = Instant::now() + limit;
        loop {
            match Self::open(&path) {
                Err(Error::JournalInUse { .. }) if Instant::now() < deadline => std::thread::sleep(LOCK_POLL),
                result => return result,
            }
        }
    }

    /// True if the journal lists no changed setting.
    pub fn is_clear(&self) -> bool {
        self.states.is_empty()
    }

    /// The settings that the agent has changed and not yet restored.
    pub fn pending(&self) -> impl Iterator<Item = &Knob> {
        self.states.keys()
    }

    /// Marks all settings that the journal lists now as left changed by an earlier run.
    pub(crate) fn leave_pending(&mut self) {
        self.left = self.states.keys().cloned().collect();
    }

    /// Marks a setting that could not be restored and is no longer controlled as left changed, if the journal lists it.
    pub(crate) fn leave(&mut self, knob: &Knob) {
        if self.states.contains_key(knob) {
            self.left.insert(knob.clone());
        }
    }

    /// The settings that an earlier run, or an ended part of this one, left changed and that could not be restored so far.
    pub(crate) fn left(&self) -> &BTreeSet<Knob> {
        &self.left
    }

    /// Writes that a setting is about to be changed from `before` to `set`; when this call returns, the line is on disk. The
    /// first `before` counts until the setting is restored.
    ///
    /// # Errors
    /// [`Error::File`]; on an error the setting must not be changed.
    pub fn intend(&mut self, knob: &Knob, before: Option<&str>, set: Option<&str>) -> Result<(), Error> {
        self.intend_all(vec![(knob.clone(), before.map(str::to_owned), set.map(str::to_owned))])
    }

    /// As [`intend`](Self::intend) for many settings in one write: each with its value before and the value to be set.
    ///
    /// # Errors
    /// [`Error::File`]; on an error none of the settings may be changed.
    pub fn intend_all(&mut self, settings: Vec<(Knob, Option<String>, Option<String>)>) -> Result<(), Error> {
        let lines = settings.into_iter().map(|(knob, before, set)| {
            let known = self.states.get(&knob).and_then(|state| state.before.clone());
            Line::Intend { knob, before: known.or(before), set }
        });
        let lines = lines.collect();
        self.append(lines)
    }

    /// Writes the value `seen` that a setting holds after the change.
    ///
    /// # Errors
    /// [`Error::File`] if the journal cannot be written.
    pub fn confirm(&mut self, knob: &Knob, seen: &str) -> Result<(), Error> {
        self.confirm_all(vec![(knob.clone(), seen.to_owned())])
    }

    /// As [`confirm`](Self::confirm) for many settings in one write.
    ///
    /// # Errors
    /// [`Error::File`] if the journal cannot be written.
    pub fn confirm_all(&mut self, settings: Vec<(Knob, String)>) -> Result<(), Error> {
        // Known to this process also where the disk has no room for it.
        for (knob, seen) in &settings {
            if let Some(state) = self.states.get_mut(knob) {
                state.seen = Some(seen.clone());
            }
        }
        self.append(settings.into_iter().map(|(knob, seen)| Line::Confirm { knob, seen }).collect())
    }

    /// The record of a setting; `None` if the agent has not changed the setting.
    pub(crate) fn state(&self, knob: &Knob) -> Option<&State> {
        self.states.get(knob)
    }

    /// Writes that a setting has its value before the agent's first change again.
    ///
    /// # Errors
    /// [`Error::File`] if the journal cannot be written.
    pub(crate) fn restored(&mut self, knob: &Knob) -> Result<(), Error> {
        self.restored_all(vec![knob.clone()])
    }

    /// As [`restored`](Self::restored) for many settings in one write.
    ///
    /// # Errors
    /// [`Error::File`] if the journal cannot be written.
    pub(crate) fn restored_all(&mut self, knobs: Vec<Knob>) -> Result<(), Error> {
        self.append(knobs.iter().map(|knob| Line::Restored { knob: knob.clone() }).collect())?;
        for knob in &knobs {
            self.left.remove(knob);
        }
        Ok(())
    }

    fn append(&mut self, lines: Vec<Line>) -> Result<(), Error> {
        if lines.is_empty() {
            return Ok(());
        }
        let begin = (self.bytes == 0).then_some(Line::Format(FORMAT));
        let lines: Vec<Line> = begin.into_iter().chain(lines).collect();
        let text = lines.iter().map(to_json).collect::<std::io::Result<String>>();
        let text = text.map_err(|e| Error::file("write", &self.path, e))?;
        self.cut().map_err(|e| Error::file("cut off the last line of", &self.path, e))?;
        if let Err(e) = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data()) {
            // A full disk takes half a line, which must not stand before the next one.
            self.torn = true;
            let _ = self.cut();
            return Err(Error::file("write", &self.path, e));
        }
        self.bytes += text.len() as u64;
        self.lines += lines.len();
        lines.into_iter().for_each(|line| update(&mut self.states, line));
        // Nothing to restore, nothing to read: an older version need not know the knobs that were there. If it cannot be
        // emptied, or a crash undoes that, it says the same, only longer.
        if self.states.is_empty() && self.file.set_len(0).is_ok() {
            (self.bytes, self.lines) = (0, 0);
        }
        // With many settings a new one is long itself.
        let many = COMPACT_LINES.max(8 * self.states.len());
        if self.lines >= many && self.compact().is_err() {
            // The old one is as good, only longer.
            self.lines = many / 2;
        }
        Ok(())
    }

    /// Cuts off an incomplete line at the end of the file.
    fn cut(&mut self) -> std::io::Result<()> {
        if self.torn {
            self.file.set_len(self.bytes)?;
            self.torn = false;
        }
        Ok(())
    }

    /// Rewrites the journal with only the settings that are still changed. A crash leaves either the old journal or the new
    /// one in place.
    fn compact(&mut self) -> Result<(), Error> {
        let part = with_suffix(&self.path, ".part");
        let dir = self.path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let write = || {
            let mut text = to_json(&Line::Format(FORMAT))?;
            for (knob, state) in &self.states {
                let State { before, set, seen } = state.clone();
                text += &to_json(&Line::Intend { knob: knob.clone(), before, set })?;
                if let Some(seen) = seen {
                    text += &to_json(&Line::Confirm { knob: knob.clone(), seen })?;
                }
            }
            // Both are open before the old journal loses its name: what comes later is not to be written to that.
            let dir = File::open(dir)?;
            let mut file = OpenOptions::new().create(true).read(true).append(true).mode(PRIVATE).open(&part)?;
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&part, &self.path)?;
            Ok((dir, file, text.len() as u64))
        };
        let (dir, file, bytes) = write().map_err(|e| Error::file("write", &self.path, e))?;
        (self.file, self.bytes, self.lines) = (file, bytes, 1 + 2 * self.states.len());
        // The new name must be on disk as well.
        dir.sync_all().map_err(|e| Error::file("write", &self.path, e))
    }
}

/// The text of one line, with the line end. Fails only for a path that is not UTF-8.
fn to_json(line: &Line) -> std::io::Result<String> {
    Ok(serde_json::to_string(line)? + "\n")
}

fn update(states: &mut BTreeMap<Knob, State>, line: Line) {
    match line {
        Line::Format(_) => {}
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

/// Length of the complete lines at the beginning of `text`, in bytes. An incomplete line may follow; no setting was changed
/// after it was written.
fn whole(text: &[u8]) -> usize {
    text.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1)
}

/// The parsed content of a journal: changed settings, number of its format, and unread lines.
struct Parsed {
    states: BTreeMap<Knob, State>,
    format: u32,
    /// Number of lines of another format that this version does not understand.
    unread: usize,
}

fn parse(path: &Path, text: &[u8]) -> Result<Parsed, Error> {
    let mut parsed = Parsed { states: BTreeMap::new(), format: FORMAT, unread: 0 };
    for (number, line) in text[..whole(text)].split(|&b| b == b'\n').enumerate().filter(|(_, l)| !l.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(Line::Format(format)) if number == 0 => parsed.format = format,
            Ok(line) => update(&mut parsed.states, line),
            Err(_) if parsed.format != FORMAT => parsed.unread += 1,
            Err(error) => {
                let problem = error.to_string();
                return Err(Error::JournalFormat { path: path.to_owned(), line: number + 1, problem });
            }
        }
    }
    Ok(parsed)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests;
