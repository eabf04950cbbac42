//! How many requests a disk may have in flight: `queue_depth`, `nr_requests`.
//!
//! A change of `nr_requests` stops the disk's queue for a moment, so that it is made only where it is worth it
//! ([`Depth::change`]). The value that was there before us is never exceeded.

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
    /// True if the present value is ours.
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

    /// The value found by the last look.
    pub fn value(&self) -> Option<u32> {
        self.value
    }

    /// The value before us.
    pub fn before(&self) -> Option<u32> {
        self.before
    }

    /// The value that another program has set since our last change. It is left alone as long as it is so.
    pub fn foreign(&self) -> Option<&str> {
        self.foreign.as_deref()
    }

    /// Times that it was changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Slots of all hardware queues together, as far as is known.
    pub fn slots(&self) -> u64 {
        u64::from(self.value.unwrap_or(0)) * u64::from(self.queue.queues.get())
    }

    /// True if the disk is still there.
    pub fn is_there(&self) -> bool {
        self.queue.path.exists()
    }

    /// True if it is as an earlier run left it, because it could not be put back. It is left alone then.
    pub fn is_left(&self, journal: &Journal) -> bool {
        journal.left().contains(&Knob::File(self.queue.path.clone()))
    }

    /// Reads the length in force: the one to restore until the first change, later perhaps one of another program.
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

    /// Gives it so many slots, of all its hardware queues together; with `f64::INFINITY` it becomes what it was before.
    /// Whether anything was changed. Look before.
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

    /// Forgets a disk that is gone, and its setting with it.
    ///
    /// # Errors
    /// [`Error::File`]; the journal keeps it.
    pub fn forget(mut self, journal: &mut Journal) -> Result<(), Error> {
        self.knob.restore(journal)
    }
}

#[cfg(test)]
#[path = "queue_length_tests.rs"]
mod tests;
