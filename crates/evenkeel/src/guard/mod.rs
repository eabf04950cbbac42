//! `evenkeel guard`: keep the response time of reads on storage that is already there.

use std::path::PathBuf;

use anyhow::Context;
use evenkeel_guard::discovery::map::Configured;
use evenkeel_guard::discovery::{Map, Survey, resolved};
use evenkeel_guard::preflight::{self, Evidence};

use crate::output;

mod acting;
mod hold;
mod restore;
mod show;

/// What to do.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show which client reaches which volume, device and resource
    Discover {
        /// Print the map as JSON
        #[arg(long)]
        json: bool,
    },
    /// Tell what this kernel offers, what is missing, and what is lost by it
    ///
    /// Changes and loads nothing. Exit status 1 if clients cannot be held back here.
    Check {
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delay what is sent to some clients, for a while, and put everything back
    ///
    /// Shows what a delay does to a client, without any controller. Needs root. However this command ends, also by
    /// kill -9, the delay ends with it.
    Hold(hold::Args),
    /// Put back everything that an agent changed and could not put back itself
    ///
    /// For systemd's ExecStopPost, and after both the agent and its sentinel were killed. Refuses while an agent runs.
    Reset(restore::Args),
    /// Waits for the agent's death and puts everything back; started by the agent
    #[command(hide = true)]
    Sentinel(restore::Args),
}

/// Runs the command.
///
/// # Errors
/// What kept it from doing what was asked.
pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Discover { json } => discover(json),
        Command::Check { json } => check(json),
        Command::Hold(args) => hold::run(&args),
        Command::Reset(args) => restore::reset(&args),
        Command::Sentinel(args) => restore::sentinel(&args),
    }
}

fn discover(json: bool) -> anyhow::Result<()> {
    let map = Map::of(&Survey::of_this_machine(), &Configured::new(), resolved);
    output::print(&if json { in_json(&map)? } else { show::map(&map) });
    Ok(())
}

fn check(json: bool) -> anyhow::Result<()> {
    let preflight = preflight::judge(&Evidence::read(&evenkeel_guard::discovery::Roots::default(), &modules_folder()));
    output::print(&if json { in_json(&preflight)? } else { show::preflight(&preflight) });
    anyhow::ensure!(
        preflight.can_act,
        "clients cannot be held back here; --dry-run works as far as things can be measured"
    );
    Ok(())
}

/// Where the modules of the running kernel are.
fn modules_folder() -> PathBuf {
    let kernel = rustix::system::uname();
    PathBuf::from("/lib/modules").join(kernel.release().to_string_lossy().as_ref())
}

fn in_json(record: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(format!("{}\n", serde_json::to_string_pretty(record).context("cannot be written as JSON")?))
}
