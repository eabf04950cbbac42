//! The history as the service that records it sees it: seconds go in, and no fault of the disk comes out.

use std::ops::Range;
use std::path::PathBuf;

use crate::error::{Error, Note};
use crate::figures::{Sample, Slice};
use crate::folder::{Disk, Plain, Sink};
use crate::mark::Mark;
use crate::store::Store;

/// Time after an error until recording is tried again, in seconds.
pub(crate) const RETRY_S: u64 = 10;
/// Largest step by which the clock may be set back, in seconds, before the later data are set aside. After a smaller step
/// nothing is recorded until the clock has caught up.
pub(crate) const STEP_BACK_S: u64 = 3_600;
/// Seconds behind the newest data before these are set aside: a clock that is wrong for minutes after a start hides no data.
pub(crate) const BACK_SECONDS: u64 = 600;
/// Bound on the notes that wait for [`History::take_notes`].
const MAX_NOTES: usize = 100;

/// Bounds of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all files together, [`Bounds::LEAST`] at least. They are never exceeded.
    pub bytes: u64,
}

impl Bounds {
    /// The smallest bound, in bytes.
    pub const LEAST: u64 = 4 << 20;
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes: 256 << 20 }
    }
}

/// The figures and events of one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Start of the second, Unix time in seconds.
    pub at: u64,
    /// Figures of the series. Idle series are left out; samples of the same series are added.
    pub samples: Vec<Sample>,
    /// Events that were noticed in this second; none may be later.
    pub marks: Vec<Mark>,
}

/// The state of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Bytes of all files together.
    pub bytes: u64,
    /// Start of the oldest data, Unix time in seconds; `None` without data.
    pub oldest: Option<u64>,
    /// End of the newest data, Unix time in seconds; `None` without data.
    pub newest: Option<u64>,
    /// The error because of which recording pauses at present; `None` while it does not pause.
    pub paused: Option<String>,
    /// Seconds not recorded because of an error since the history was opened.
    pub lost_seconds: u64,
    /// Seconds not recorded because they were not later than the newest one: the clock was set back.
    pub skipped_seconds: u64,
    /// Coarser steps and marks not recorded because they were too large for the bound.
    pub dropped_blocks: u64,
    /// Errors since the history was opened.
    pub errors: u64,
}

/// A history that is recorded. One process at a time records in a folder; any number may read.
#[derive(Debug)]
pub struct History {
    disk: Disk,
    /// `None` if the folder could not be opened so far.
    store: Option<Store>,
    /// Time in which recording is not tried, Unix time in seconds, and the error.
    pause: Option<(Range<u64>, String)>,
    /// Seconds without a break that were further behind the newest data than [`STEP_BACK_S`].
    back: u64,
    /// The counters are right; the rest is filled in by [`History::status`].
    counted: Status,
    notes: Vec<Note>,
}

impl History {
    /// Opens a history, or begins one. The folder is made if it is missing. If it cannot be used, recording begins paused, and
    /// is tried again as after any other error. The notes name files that were set aside or cut, and the cause of a pause.
    ///
    /// Reads the newest file of each resolution: at most 3/32 of the bound each.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process records in this folder, [`Error::Bound`] if the bound is too small.
    pub fn open(folder: impl Into<PathBuf>, bounds: Bounds) -> Result<(Self, Vec<Note>), Error> {
        if bounds.bytes < Bounds::LEAST {
            return Err(Error::Bound { bytes: bounds.bytes });
        }
        Self::open_with(folder.into(), bounds.bytes, Box::new(Plain))
    }

    /// As [`Self::open`], with any bound, and blocks written by `sink`.
    pub(crate) fn open_with(folder: PathBuf, bound: u64, sink: Box<dyn Sink>) -> Result<(Self, Vec<Note>), Error> {
        let disk = Disk { folder, bound, sink };
        let (counted, notes) = (Status::default(), Vec::new());
        let mut history = Self { disk, store: None, pause: None, back: 0, counted, notes };
        match history.opened().map(|_| ()) {
            Ok(()) => {}
            Err(error @ Error::InUse { .. }) => return Err(error),
            Err(error) => history.paused(0, &error),
        }
        let notes = history.take_notes();
        Ok((history, notes))
    }

    /// Records a second. Seconds have to be in order; a missing one is a gap. An error pauses recording for ten seconds, is
    /// counted, and makes a note. What was recorded survives the end of the process at any moment, and after [`Self::sync`]
    /// also a loss of power.
    ///
    /// O(s log s) for s series; blocks for as long as the system takes for a write to its cache, and once in five minutes for
    /// one to the disk.
    pub fn append(&mut self, second: &Second) {
        // The clock may have been set back during the pause.
        if self.pause.as_ref().is_some_and(|(time, _)| time.contains(&second.at)) {
            self.counted.lost_seconds += 1;
            return;
        }
        let recorded = self.record(second);
        // What is left to write is tried again with the next second.
        let finished = if matches!(recorded, Ok(true)) { self.flush() } else { Ok(()) };
        match recorded {
            Ok(true) => {}
            Ok(false) => self.counted.skipped_seconds += 1,
            Err(_) => self.counted.lost_seconds += 1,
        }
        match recorded.and(finished) {
            Err(error) => self.paused(second.at, &error),
            Ok(()) => {
                if self.pause.take().is_some() {
                    self.note(Note::Resumed { lost_seconds: self.counted.lost_seconds });
                }
            }
        }
    }

    /// Makes all that was recorded survive a loss of power; true if it does. Blocks until the disk has it.
    pub fn sync(&mut self) -> bool {
        let Some(store) = &mut self.store else { return false };
        let (synced, newest) = (store.sync(&self.disk), store.end());
        synced.map_err(|error| self.paused(newest, &error)).is_ok()
    }

    /// Size, age and errors of the history at present. O(files).
    pub fn status(&self) -> Status {
        let mut status = self.counted.clone();
        status.paused = self.pause.as_ref().map(|(_, because)| because.clone());
        if let Some(store) = &self.store {
            (status.bytes, status.oldest) = (store.bytes(), store.oldest());
            status.newest = Some(store.end()).filter(|end| *end > 0);
        }
        status
    }

    /// Start of the oldest data, Unix time in seconds; `None` without data.
    pub fn oldest(&self) -> Option<u64> {
        self.store.as_ref().and_then(Store::oldest)
    }

    /// The messages for the log since the last call, oldest first; at most 100 are kept.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Records a second; false if it is not later than the newest one.
    fn record(&mut self, second: &Second) -> Result<bool, Error> {
        let newest = self.opened()?.end();
        self.back = if newest.saturating_sub(second.at) > STEP_BACK_S { self.back + 1 } else { 0 };
        if second.at < newest && self.back <= BACK_SECONDS {
            return Ok(false);
        }
        if second.at < newest
            && let Some(store) = self.store.take()
        {
            // Its lock is released before the folder is opened anew.
            store.set_later_aside(&self.disk, second.at, &mut self.notes)?;
        }
        self.opened()?;
        self.flush()?;
        let Some(store) = &mut self.store else { return Ok(false) };
        let marks = second.marks.iter().cloned().map(|mark| Mark { at: mark.at.min(second.at), ..mark }).collect();
        store.second(&mut self.disk, Slice::second(second.at, &second.samples), marks)?;
        Ok(true)
    }

    /// The store, opened if it is not.
    fn opened(&mut self) -> Result<&mut Store, Error> {
        let store = match self.store.take() {
            Some(store) => store,
            None => Store::load(&self.disk, &mut self.notes)?,
        };
        Ok(self.store.insert(store))
    }

    /// Writes what is left to write.
    fn flush(&mut self) -> Result<(), Error> {
        if let Some(store) = &mut self.store {
            self.counted.dropped_blocks += store.flush(&mut self.disk)?;
        }
        Ok(())
    }

    fn paused(&mut self, at: u64, error: &Error) {
        self.counted.errors += 1;
        let because = error.to_string();
        if self.pause.is_none() {
            self.note(Note::Paused { because: because.clone() });
        }
        self.pause = Some((at..at.saturating_add(RETRY_S), because));
    }

    fn note(&mut self, note: Note) {
        self.notes.push(note);
        let surplus = self.notes.len().saturating_sub(MAX_NOTES);
        self.notes.drain(..surplus);
    }
}
