//! How many requests a disk may have in flight: `queue_depth`, `nr_requests`.
//!
//! A change of `nr_requests` stops the disk's queue for a moment, so that small changes are left out ([`Depth::change`]). The
//! value before our first change is never exceeded.

use evenkeel_control::slots::Depth;

use super::error::Error;
use super::file::{FileKnob, Written, read as read_file};
use crate::journal::{Journal, Knob};
use crate::sensor::queue::Queue;

/// The length of one disk's queues.
#[derive(Debug)]
pub struct QueueLength {
    queue: Queue,
    knob: FileKnob,
    value: Option<u32>,
    before: Option<u32>,
    /// True if the value in force was set by us.
    ours: bool,
    foreign: Option<String>,
    changes: u64,
}

impl QueueLength {
    /// A queue that is left alone until the first [`QueueLength::set`].
    pub fn new(queue: Queue) -> Self {
        let knob = FileKnob::new(&queue.path);
        Self { queue, knob, value: None, before: None, ours: false, foreign: None, changes: 0 }
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The value that was read or set last, other programs' changes left out; `None` before the first [`Self::read`].
    pub fn value(&self) -> Option<u32> {
        self.value
    }

    /// The value before our first change.
    pub fn before(&self) -> Option<u32> {
        self.before
    }

    /// The value that another program has set since our last change; until our value is back, the setting is left alone.
    pub fn foreign(&self) -> Option<&str> {
        self.foreign.as_deref()
    }

    /// Number of changes that were made.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Slots of all hardware queues together; 0 before the first [`Self::read`].
    pub fn slots(&self) -> u64 {
        u64::from(self.value.unwrap_or(0)) * u64::from(self.queue.queues.get())
    }

    /// True if the disk is still there.
    pub fn is_there(&self) -> bool {
        self.queue.path.exists()
    }

    /// True if the setting is as an earlier run left it, because it could not be put back; it is then left alone.
    pub fn is_left(&self, journal: &Journal) -> bool {
        journal.left().contains(&Knob::File(self.queue.path.clone()))
    }

    /// Reads the length in force. Before our first change it is the one to restore; later, a value that is not ours is
    /// another program's.
    ///
    /// # Errors
    /// [`Error::File`], also when it holds no number.
    pub fn read(&mut self) -> Result<(), Error> {
        let text = read_file(&self.queue.path)?;
        let found = text.trim().parse().map_err(|_| Error::File {
            doing: "understand",
            path: self.queue.path.clone(),
            cause: std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{text:?} is no number")),
        })?;
        if self.ours {
            self.foreign = (self.value != Some(found)).then_some(text);
        } else {
            // Nothing of ours is in force: this is what it will be again.
            self.before = Some(found);
        }
        if self.foreign.is_none() {
            self.value = Some(found);
        }
        Ok(())
    }

    /// Sets the length for `slots` slots on all hardware queues together; `f64::INFINITY` restores the value before our first
    /// change. Call [`Self::read`] before. True if anything was changed.
    ///
    /// # Errors
    /// [`Error::File`] when the setting or the journal cannot be written.
    pub fn set(&mut self, journal: &mut Journal, slots: f64) -> Result<bool, Error> {
        let (Some(value), Some(before), None) = (self.value, self.before, &self.foreign) else { return Ok(false) };
        let depth = Depth { queues: self.queue.queues, least: self.queue.knob.least().min(before), most: before };
        let Some(wanted) = depth.change(value, slots).filter(|_| !self.is_left(journal)) else { return Ok(false) };
        if wanted == before {
            self.knob.restore(journal)?;
            (self.ours, self.value) = (false, Some(before));
        } else {
            match self.knob.set(journal, &wanted.to_string())? {
                Written::Same | Written::Changed => {
                    self.ours = true;
                    // The kernel may have its own idea of it, which is then not another program's.
                    self.value = read_file(&self.queue.path)?.trim().parse().ok().or(Some(wanted));
                }
                Written::Foreign { found } => {
                    self.foreign = Some(found);
                    return Ok(false);
                }
            }
        }
        self.changes += 1;
        Ok(true)
    }

    /// Forgets a disk that is gone; its setting leaves the journal, and is restored first if the file is still there.
    ///
    /// # Errors
    /// [`Error::File`]; the setting then stays in the journal.
    pub fn forget(mut self, journal: &mut Journal) -> Result<(), Error> {
        self.knob.restore(journal)
    }
}

#[cfg(test)]
#[path = "queue_length_tests.rs"]
mod tests;
