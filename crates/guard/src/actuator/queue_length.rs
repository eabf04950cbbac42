//! Sets how many requests a disk may have in flight: the kernel's settings `queue_depth` and `nr_requests`.
//!
//! A change of `nr_requests` stops the disk's queue for a moment, so that small changes are not made ([`Depth::change`]). The
//! value before the agent's first change is never exceeded.
//!
//! The kernel lowers a `queue_depth` while the disk's target has no room for more requests, and raises it again by one in two
//! minutes, up to the value that was written last. So a lowered value is never taken for the value to restore: written back,
//! it would stay for good.

use evenkeel_control::slots::Depth;

use super::error::Error;
use super::file::{FileKnob, read as read_file};
use crate::journal::{Journal, Knob};
use crate::sensor::queue::{self, Queue};

/// The length of one disk's queues.
#[derive(Debug)]
pub struct QueueLength {
    queue: Queue,
    knob: FileKnob,
    value: Option<u32>,
    before: Option<u32>,
    /// True if the agent set the value in force.
    ours: bool,
    foreign: Option<String>,
    changes: u64,
}

impl QueueLength {
    /// The length of `queue`, which is left alone until the first [`QueueLength::set`].
    pub fn new(queue: Queue) -> Self {
        let knob = FileKnob::new(&queue.path);
        Self { queue, knob, value: None, before: None, ours: false, foreign: None, changes: 0 }
    }

    /// The disk's queue, whose length this value sets.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The length of each hardware queue, as the agent read or set it last; changes by other programs do not count. `None`
    /// before the first [`Self::read`].
    pub fn value(&self) -> Option<u32> {
        self.value
    }

    /// The length before the agent's first change; `None` before the first [`Self::read`].
    pub fn before(&self) -> Option<u32> {
        self.before
    }

    /// The value that another program has set since the agent's last change; the agent does not change the setting until its
    /// own value is back. `None` while no other program has set a value.
    pub fn foreign(&self) -> Option<&str> {
        self.foreign.as_deref()
    }

    /// Number of times that the agent has changed the length.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Slots (requests that may be in flight) of the disk's hardware queues together; 0 before the first [`Self::read`].
    pub fn slots(&self) -> u64 {
        u64::from(self.value.unwrap_or(0)) * u64::from(self.queue.queues.get())
    }

    /// True if the disk still exists.
    pub fn is_there(&self) -> bool {
        self.queue.path.exists()
    }

    /// True if the setting still has a value that an earlier run of the agent left, because it could not be restored; the
    /// agent does not change such a setting.
    pub fn is_left(&self, journal: &Journal) -> bool {
        journal.left().contains(&self.setting())
    }

    fn setting(&self) -> Knob {
        Knob::File(self.queue.path.clone())
    }

    /// Reads the length in force. Until the agent's first change (which `journal` may list from an earlier time), this length
    /// is the one to restore; after it, a length that the agent did not set counts as another program's.
    ///
    /// # Errors
    /// [`Error::File`] if the setting cannot be read or holds no number.
    pub fn read(&mut self, journal: Option<&Journal>) -> Result<(), Error> {
        let text = read_file(&self.queue.path)?;
        let odd = |_| Error::odd("understand", &self.queue.path, format!("{text:?} is not a number"));
        let found = text.trim().parse::<u32>().map_err(odd)?;
        if self.ours && journal.is_some_and(|journal| journal.state(&self.setting()).is_none()) {
            // Restored by the agent itself: by the point that had the disk before a reload.
            (self.ours, self.foreign, self.knob) = (false, None, FileKnob::new(&self.queue.path));
        }
        let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<u32>().ok());
        let noted = journal.filter(|journal| !self.ours && !self.is_left(journal));
        if let Some(state) = noted.and_then(|journal| journal.state(&self.setting()))
            && let Some(before) = number(&state.before)
        {
            // Set before this disk was found again, while it hung.
            (self.ours, self.before, self.value) = (true, Some(before), number(&state.seen).or(Some(found)));
        }
        if self.ours {
            self.foreign = (self.value != Some(found)).then_some(text);
        } else if !self.is_lowered(found) {
            // Nothing of ours is in force: this is what it will be again.
            self.before = Some(found);
        }
        if self.foreign.is_none() {
            self.value = Some(found);
        }
        Ok(())
    }

    /// True if `found` may be a `queue_depth` that the kernel has lowered for lack of room in the disk's target.
    fn is_lowered(&self, found: u32) -> bool {
        self.queue.knob == queue::Knob::QueueDepth && self.before.is_some_and(|before| found < before)
    }

    /// Sets the length so that all hardware queues together have `slots` slots; `f64::INFINITY` restores the length before
    /// the agent's first change. Call [`Self::read`] before. True if the length was changed.
    ///
    /// # Errors
    /// [`Error::File`] when the setting or the journal cannot be written.
    pub fn set(&mut self, journal: &mut Journal, slots: f64) -> Result<bool, Error> {
        let (Some(value), Some(before), None) = (self.value, self.before, &self.foreign) else { return Ok(false) };
        let depth = Depth { queues: self.queue.queues, least: self.queue.knob.least().min(before), most: before };
        let Some(wanted) = depth.change(value, slots).filter(|_| !self.is_left(journal)) else { return Ok(false) };
        if wanted > value && !self.ours {
            // Lowered by the kernel, which raises it again.
            return Ok(false);
        }
        self.knob.assume_before(&before.to_string());
        let result = match wanted == before {
            true => self.knob.restore(journal).map(|()| None),
            false => self.knob.set(journal, &wanted.to_string()),
        };
        if let Ok(Some(found)) = &result {
            self.foreign = Some(found.clone());
            return Ok(false);
        }
        // Also an error may come after the change, as from a journal on a full disk.
        self.ours = journal.state(&self.setting()).is_some();
        // The kernel may have its own idea of the value, which is then not another program's.
        let found = read_file(&self.queue.path).ok().and_then(|text| text.trim().parse::<u32>().ok());
        self.value = found.or(if result.is_ok() { Some(wanted) } else { self.value });
        result?;
        self.changes += 1;
        Ok(true)
    }

    /// Ends the control of this disk: restores the length if the setting's file still exists, and takes the setting off the
    /// journal.
    ///
    /// # Errors
    /// [`Error::File`]; on an error the setting stays in the journal.
    pub fn forget(mut self, journal: &mut Journal) -> Result<(), Error> {
        self.knob.restore(journal)
    }
}

#[cfg(test)]
#[path = "queue_length_tests.rs"]
mod tests;
