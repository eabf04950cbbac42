//! Restores the settings that the journal lists to their values before the agent's first change.

use std::path::Path;
use std::thread;

use super::delay::{remove_filter, remove_qdisc};
use super::error::Error;
use super::{ceph_option, file, io_max};
use crate::journal::{Journal, Knob, Restoration, Restored, State};
use crate::sensor::queue;

impl Journal {
    /// Restores one setting to its value before the agent's first change.
    ///
    /// # Errors
    /// [`Error::File`], or an error of the kernel or of a Ceph daemon; on an error the setting stays in the journal.
    pub fn restore(&mut self, knob: &Knob) -> Result<Restored, Error> {
        let Some(state) = self.state(knob) else { return Ok(Restored::Nothing) };
        let result = restore(knob, state)?;
        self.restored(knob)?;
        Ok(result)
    }

    /// Restores all settings that the journal lists; an error for one setting does not keep the others from being restored.
    pub fn restore_all(&mut self) -> Restoration {
        let knobs = self.pending().cloned().collect();
        self.restore_each(knobs)
    }

    /// Tries once more to restore all settings that an earlier run left changed.
    pub(crate) fn restore_left(&mut self) -> Restoration {
        let knobs = self.left().iter().cloned().collect();
        self.restore_each(knobs)
    }

    /// Restores a setting if an earlier run of the agent left it changed; does nothing otherwise.
    ///
    /// # Errors
    /// As [`restore`](Self::restore); on an error the setting must not be changed.
    pub(crate) fn settle(&mut self, knob: &Knob) -> Result<(), Error> {
        if self.left().contains(knob) {
            self.restore(knob)?;
        }
        Ok(())
    }

    fn restore_each(&mut self, knobs: Vec<Knob>) -> Restoration {
        // What hangs holds up what comes after it: an OSD for seconds, a disk for as long as it likes.
        let waits = |knob: &Knob| matches!(knob, Knob::File(path) if queue::Knob::waits_for_disk(path));
        let (slow, quick): (Vec<Knob>, Vec<Knob>) = knobs.into_iter().partition(waits);
        let (options, quick): (Vec<Knob>, Vec<Knob>) =
            quick.into_iter().partition(|knob| matches!(knob, Knob::CephOption { .. }));
        let mut results: Restoration = quick.into_iter().map(|knob| self.restore_one(knob)).collect();
        let answers = self.restore_in_parallel(&options);
        results.extend(options.into_iter().zip(answers).map(|(knob, answer)| {
            let result = answer.and_then(|restored| self.restored(&knob).map(|()| restored));
            (knob, result)
        }));
        results.extend(slow.into_iter().map(|knob| self.restore_one(knob)));
        results
    }

    fn restore_one(&mut self, knob: Knob) -> (Knob, Result<Restored, Error>) {
        let result = self.restore(&knob);
        (knob, result)
    }

    /// Restores settings in parallel, each in a thread of its own, or in this thread if no thread can be started; the journal
    /// still lists the settings afterwards.
    fn restore_in_parallel(&self, knobs: &[Knob]) -> Vec<Result<Restored, Error>> {
        let one = |knob: &Knob| self.state(knob).map_or(Ok(Restored::Nothing), |state| restore(knob, state));
        thread::scope(|scope| {
            let threads = knobs.iter().map(|knob| thread::Builder::new().spawn_scoped(scope, move || one(knob)));
            let threads: Vec<_> = threads.collect();
            let answers = threads.into_iter().zip(knobs).map(|(thread, knob)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(_) => one(knob),
            });
            answers.collect()
        })
    }
}

/// True if the kernel lowered a `queue_depth` below `seen`, the value read after the agent's last write, as when the disk's
/// target has no room for more requests (SCSI: TASK SET FULL).
fn lowered_by_kernel(path: &Path, seen: &str, found: &str) -> bool {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    path.ends_with(queue::Knob::QueueDepth.name())
        && number(found).zip(number(seen)).is_some_and(|(now, ours)| now < ours)
}

fn restore(knob: &Knob, state: &State) -> Result<Restored, Error> {
    let done = |had| if had { Restored::Done } else { Restored::Nothing };
    let seen = state.seen.as_deref();
    match (knob, state.before.as_deref()) {
        (Knob::Qdisc(device), _) => remove_qdisc(device).map(done),
        // What was there before says whether `clsact` is ours.
        (Knob::Filter(device), before) => remove_filter(device, before == Some("")).map(done),
        (_, None) => Ok(Restored::Nothing),
        (Knob::IoMax { path, device }, Some(before)) => io_max::restore(path, device, before, seen),
        (Knob::CephOption { socket, option }, Some(before)) => ceph_option::restore(socket, option, before, seen),
        // A cgroup or device that is gone took its setting along.
        (Knob::File(path), Some(_)) if !path.exists() => Ok(Restored::Nothing),
        (Knob::File(path), Some(before)) => {
            let found = file::read(path)?;
            match seen {
                _ if found == before => Ok(Restored::Nothing),
                Some(seen) if seen != found && !lowered_by_kernel(path, seen, &found) => {
                    Ok(Restored::Foreign { found })
                }
                _ => file::write(path, before).map(|()| Restored::Done),
            }
        }
    }
}
