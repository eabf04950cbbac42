//! Puts back what the journal lists.

use std::path::Path;

use super::delay::{remove_filter, remove_qdisc};
use super::error::Error;
use super::{ceph_option, file, io_max};
use crate::journal::{Journal, Knob, Restoration, Restored, State};
use crate::sensor::queue;

impl Journal {
    /// Puts one setting back.
    ///
    /// # Errors
    /// [`Error::File`] or what the kernel refuses; the setting stays in the journal.
    pub fn restore(&mut self, knob: &Knob) -> Result<Restored, Error> {
        let Some(state) = self.state(knob) else { return Ok(Restored::Nothing) };
        let result = put_back(knob, state)?;
        self.restored(knob)?;
        Ok(result)
    }

    /// Puts everything back, as far as it goes: an error for one setting does not keep the others from being restored.
    pub fn restore_all(&mut self) -> Restoration {
        let knobs = self.pending().cloned().collect();
        self.restore_each(knobs)
    }

    /// Tries once more to put back all settings that an earlier run left changed.
    pub(crate) fn restore_left(&mut self) -> Restoration {
        let knobs = self.left().iter().cloned().collect();
        self.restore_each(knobs)
    }

    /// Puts a setting back if an earlier run left it changed; does nothing otherwise.
    ///
    /// # Errors
    /// As [`restore`](Self::restore); the setting is not to be changed then.
    pub(crate) fn settle(&mut self, knob: &Knob) -> Result<(), Error> {
        if self.left().contains(knob) {
            self.restore(knob)?;
        }
        Ok(())
    }

    fn restore_each(&mut self, mut knobs: Vec<Knob>) -> Restoration {
        // A disk that hangs holds up what comes after it.
        knobs.sort_by_key(|knob| matches!(knob, Knob::File(path) if queue::Knob::waits_for_disk(path)));
        knobs
            .into_iter()
            .map(|knob| {
                let result = self.restore(&knob);
                (knob, result)
            })
            .collect()
    }
}

/// True if the kernel lowered a `queue_depth` below the value that we had `seen`, as when the disk's target has no room for
/// more requests (SCSI: TASK SET FULL).
fn lowered_by_kernel(path: &Path, seen: &str, found: &str) -> bool {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    path.ends_with(queue::Knob::QueueDepth.name())
        && number(found).zip(number(seen)).is_some_and(|(now, ours)| now < ours)
}

fn put_back(knob: &Knob, state: &State) -> Result<Restored, Error> {
    match knob {
        Knob::Qdisc(device) => remove_qdisc(device).map(|had| if had { Restored::Done } else { Restored::Nothing }),
        Knob::Filter(device) => {
            // What was there before says whether `clsact` is ours.
            let made_clsact = state.before.as_deref() == Some("");
            remove_filter(device, made_clsact).map(|had| if had { Restored::Done } else { Restored::Nothing })
        }
        Knob::IoMax { path, device } => {
            let Some(before) = &state.before else { return Ok(Restored::Nothing) };
            io_max::put_back(path, device, before, state.seen.as_deref())
        }
        Knob::CephOption { socket, option } => {
            let Some(before) = &state.before else { return Ok(Restored::Nothing) };
            ceph_option::put_back(socket, option, before, state.seen.as_deref())
        }
        Knob::File(path) => {
            let Some(before) = &state.before else { return Ok(Restored::Nothing) };
            if !path.exists() {
                // A cgroup or device that is gone took its setting along.
                return Ok(Restored::Nothing);
            }
            let found = file::read(path)?;
            if found == *before {
                return Ok(Restored::Nothing);
            }
            if state.seen.as_ref().is_some_and(|seen| *seen != found && !lowered_by_kernel(path, seen, &found)) {
                return Ok(Restored::Foreign { found });
            }
            file::write(path, before).map(|()| Restored::Done)
        }
    }
}
