//! Restores settings: on an operator's command, after the agent's death, at its start and at its end.

use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Say;
use crate::actuator::{Error, remove_leftovers};
use crate::journal::{Journal, Knob, Restoration, Restored};
use crate::sentinel::{self, Sentinel};

/// Longest wait for the journal's lock while a sentinel restores settings after its agent's death.
pub(super) const SENTINEL_LIMIT: Duration = Duration::from_secs(2);

/// Restores the settings that an agent changed and could not restore itself, and prints the result for each.
///
/// # Errors
/// A journal in use, or settings that could not be restored; the journal keeps them.
pub fn reset(journal: &Path, say: Say) -> Result<(), Error> {
    let listed = Journal::open_within(journal, SENTINEL_LIMIT)?.restore_all();
    let nothing = listed.is_empty();
    report(listed, say)?;
    // What was set with another journal, or one that is lost, is known by its name.
    let more = remove_leftovers()?;
    if nothing && more.is_empty() {
        say("nothing to restore\n");
    }
    report(more.into_iter().map(|knob| (knob, Ok(Restored::Done))).collect(), say)
}

/// Runs the sentinel ([`sentinel::watch`]) and prints the result of restoring each setting.
///
/// # Errors
/// As [`sentinel::watch`], and [`Error::NotRestored`] if settings could not be restored.
pub fn sentinel(pipe: impl Read, journal: &Path, say: Say) -> Result<(), Error> {
    sentinel::watch(pipe, journal)?.map_or(Ok(()), |results| report(results, say))
}

/// Starts this program as the sentinel of `journal`.
pub(super) fn start_sentinel(journal: &Path) -> Result<Sentinel, Error> {
    // Not by its path, where an update may have put another version.
    let mut command = Command::new("/proc/self/exe");
    command.args(["guard", "sentinel", "--journal"]).arg(journal);
    Sentinel::start(&mut command)
}

/// Restores the settings that an earlier run left changed. A setting that cannot be restored is left alone and stays in the
/// journal; the agent controls all other devices and OSDs.
pub(super) fn begin(journal: &mut Journal, say: Say) {
    if let Err(error) = report(journal.restore_all(), say) {
        tracing::warn!(
            "{error}. The agent starts, and leaves these settings alone; a reload tries again to restore them"
        );
        journal.leave_pending();
    }
}

/// Restores the settings that an earlier run left changed, for an agent whose configuration sets nothing any more. Does
/// nothing without a journal, or while another process has the journal in use.
pub fn leftovers(journal: &Path, say: Say) {
    if journal.metadata().map_or(true, |metadata| metadata.len() == 0) {
        return;
    }
    match Journal::open(journal) {
        Ok(mut journal) if !journal.is_clear() => {
            tracing::warn!("an earlier run left settings changed: the agent restores them now");
            if let Err(error) = report(journal.restore_all(), say) {
                tracing::warn!("{error}");
            }
        }
        Ok(_) | Err(Error::JournalInUse { .. }) => {}
        Err(error) => tracing::warn!("settings that an earlier run may have left changed are not restored: {error}"),
    }
}

/// As [`report`], for an agent that ends regularly: settings that were restored are not mentioned.
pub(super) fn report_failures(mut results: Restoration, say: Say) -> Result<(), Error> {
    results.retain(|(_, result)| !matches!(result, Ok(Restored::Done | Restored::Nothing)));
    report(results, say)
}

/// Prints the result of restoring each setting; [`Error::NotRestored`] if some could not be restored.
pub(super) fn report(results: Restoration, say: Say) -> Result<(), Error> {
    let mut failures = 0;
    for (knob, result) in results {
        let name = match knob {
            Knob::File(path) => path.display().to_string(),
            Knob::Filter(device) => format!("filter on {device}"),
            Knob::Qdisc(device) => format!("queueing discipline on {device}"),
            Knob::CephOption { socket, option } => format!("{option} at {}", socket.display()),
            Knob::IoMax { path, device } => format!("{} of {device}", path.display()),
        };
        let text = match result {
            Ok(Restored::Done) => format!("{name}: restored"),
            Ok(Restored::Nothing) => format!("{name}: no change needed: has its earlier value, or is gone"),
            Ok(Restored::Foreign { found }) => format!("{name}: not restored: another program set it to {found:?}"),
            Err(e) => {
                failures += 1;
                format!("{name}: {e}")
            }
        };
        say(&format!("{text}\n"));
    }
    if failures > 0 { Err(Error::NotRestored { failures }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actuator::FileKnob;

    #[test]
    fn what_an_earlier_run_left_is_restored_also_where_nothing_is_to_be_set_any_more() {
        let root = crate::folder::folder("leftovers");
        let (knob, path) = (root.file("knob", "64"), root.join("journal"));
        leftovers(&path, |_| {});
        assert!(!path.exists(), "no journal is made");
        let mut journal = Journal::open(&path).expect("opened");
        FileKnob::new(&knob).set(&mut journal, "8").expect("set");
        let value = || std::fs::read_to_string(&knob).expect("read").trim().to_owned();
        leftovers(&path, |_| {});
        assert_eq!(value(), "8", "another process has the journal in use");
        drop(journal);
        leftovers(&path, |_| {});
        assert_eq!(value(), "64");
        assert!(Journal::open(&path).expect("opened").is_clear());
    }

    #[test]
    fn a_setting_that_cannot_be_restored_keeps_no_agent_from_starting() {
        let root = crate::folder::folder("begin");
        let (good, bad, path) = (root.join("good"), root.join("bad"), root.join("journal"));
        let mut journal = Journal::open(&path).expect("opened");
        for knob in [&good, &bad] {
            std::fs::write(knob, "64").expect("written");
            FileKnob::new(knob).set(&mut journal, "8").expect("set");
        }
        drop(journal);
        // No file, so that nothing can be read from it.
        std::fs::remove_file(&bad).and_then(|()| std::fs::create_dir(&bad)).expect("in its place");
        let mut journal = Journal::open(&path).expect("opened");
        begin(&mut journal, |_| {});
        assert_eq!(std::fs::read_to_string(&good).expect("read").trim(), "64");
        assert_eq!(journal.left().iter().collect::<Vec<_>>(), [&Knob::File(bad.clone())]);
        assert!(journal.restore_left().iter().all(|(_, result)| result.is_err()) && !journal.is_clear());
        std::fs::remove_dir(&bad).and_then(|()| std::fs::write(&bad, "8")).expect("back");
        assert!(journal.restore_left().iter().all(|(_, result)| result.is_ok()));
        assert_eq!(std::fs::read_to_string(&bad).expect("read").trim(), "64");
        assert!(journal.left().is_empty() && journal.is_clear());
    }
}
