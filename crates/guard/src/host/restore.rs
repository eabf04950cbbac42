//! Restores settings: by hand, after the agent's death, and at its end.

use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Say;
use crate::actuator::{Error, remove_leftovers};
use crate::journal::{Journal, Knob, Restoration, Restored};
use crate::sentinel::{self, Sentinel};

/// A restore right after an agent's death waits so long for its sentinel to do its work.
pub(super) const SENTINEL_LIMIT: Duration = Duration::from_secs(2);

/// Puts back what an agent changed and could not put back itself, and says so.
///
/// # Errors
/// A journal in use, or what could not be put back; the journal keeps it.
pub fn reset(journal: &Path, say: Say) -> Result<(), Error> {
    let listed = Journal::open_within(journal, SENTINEL_LIMIT)?.restore_all();
    let nothing = listed.is_empty();
    report(listed, say)?;
    // What was set with another journal, or one that is lost, is known by its name.
    let more = remove_leftovers()?;
    if nothing && more.is_empty() {
        say("nothing to put back\n");
    }
    report(more.into_iter().map(|knob| (knob, Ok(Restored::Done))).collect(), say)
}

/// The life of the sentinel, as of [`sentinel::watch`], with what happened to each setting.
///
/// # Errors
/// As of [`sentinel::watch`], and what could not be put back.
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

/// The same as [`report`] for an agent that ends as it should: what went well is not reported.
pub(super) fn report_failures(mut results: Restoration, say: Say) -> Result<(), Error> {
    results.retain(|(_, result)| !matches!(result, Ok(Restored::Done | Restored::Nothing)));
    report(results, say)
}

/// Says what happened to each setting.
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
            Ok(Restored::Done) => format!("{name}: put back"),
            Ok(Restored::Nothing) => format!("{name}: was as before"),
            Ok(Restored::Foreign { found }) => format!("{name}: left alone: another program set it to {found:?}"),
            Err(e) => {
                failures += 1;
                format!("{name}: {e}")
            }
        };
        say(&format!("{text}\n"));
    }
    if failures > 0 { Err(Error::NotPutBack { failures }) } else { Ok(()) }
}
