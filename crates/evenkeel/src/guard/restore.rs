//! `evenkeel guard reset` and `evenkeel guard sentinel`: the journal put back, by hand or after the agent's death.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::bail;
use evenkeel_guard::actuator::remove_leftovers;
use evenkeel_guard::journal::{Journal, Knob, Restoration, Restored};
use evenkeel_guard::sentinel::{self, Sentinel};

/// Where the journal is unless told otherwise: what it lists does not outlive the system that it was set in.
pub(crate) const JOURNAL: &str = "/run/evenkeel/guard.journal";

/// Whoever comes right after an agent's death waits until its sentinel has done its work.
pub(crate) const SENTINEL_LIMIT: Duration = Duration::from_secs(2);

/// Arguments of both.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The agent's journal
    #[arg(long, default_value = JOURNAL)]
    journal: PathBuf,
}

/// `evenkeel guard reset`.
pub(super) fn reset(args: &Args) -> anyhow::Result<()> {
    let mut journal = Journal::open_within(&args.journal, SENTINEL_LIMIT)?;
    let listed = journal.restore_all();
    let nothing = listed.is_empty();
    report(listed)?;
    // What was set with another journal, or one that is lost, is known by its name.
    let more = remove_leftovers()?;
    if nothing && more.is_empty() {
        crate::output::print("nothing to put back\n");
    }
    report(more.into_iter().map(|knob| (knob, Ok(Restored::Done))).collect())
}

/// `evenkeel guard sentinel`, with the agent's pipe as standard input.
pub(super) fn sentinel(args: &Args) -> anyhow::Result<()> {
    match sentinel::watch(std::io::stdin(), &args.journal)? {
        Some(results) => report(results),
        None => Ok(()),
    }
}

/// Starts this program as the sentinel of `journal`.
pub(crate) fn start_sentinel(journal: &Path) -> anyhow::Result<Sentinel> {
    // Not by its path, where an update may have put another version.
    let mut command = Command::new("/proc/self/exe");
    command.args(["guard", "sentinel", "--journal"]).arg(journal);
    Ok(Sentinel::start(&mut command)?)
}

/// The same as [`report`] for an agent that ends as it should: what went well is not told.
pub(crate) fn report_failures(results: Restoration) -> anyhow::Result<()> {
    report(
        results.into_iter().filter(|(_, result)| !matches!(result, Ok(Restored::Done | Restored::Nothing))).collect(),
    )
}

/// Prints what happened to each setting.
pub(crate) fn report(results: Restoration) -> anyhow::Result<()> {
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
            Ok(Restored::Foreign { found }) => format!("{name}: left alone, as somebody else set it to {found:?}"),
            Err(e) => {
                failures += 1;
                format!("{name}: {e}")
            }
        };
        crate::output::print(&format!("{text}\n"));
    }
    if failures > 0 {
        bail!("{failures} settings could not be put back; they stay in the journal for the next `guard reset`");
    }
    Ok(())
}
