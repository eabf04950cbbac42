//! `evenkeel guard`: the agent that enforces QoS on existing storage, and the commands that ask it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use evenkeel_guard::config::{Abilities, Config, EXAMPLE};
use evenkeel_guard::discovery::map::Configured;
use evenkeel_guard::discovery::{Map, Roots, Survey, osds, resolved};
use evenkeel_guard::host;
use evenkeel_guard::preflight::{self, Evidence, Preflight};
use evenkeel_policy::check::Problem;
use evenkeel_policy::config::Status;
use evenkeel_policy::decision::Decisions;
use evenkeel_policy::history::History;
use evenkeel_policy::state::State;
use serde::de::DeserializeOwned;

use crate::control::{self, Certificates, PATIENCE, Site, path};
use crate::history;
use crate::output;

mod cluster;
mod delay;
mod run;
pub(crate) mod show;

/// Message about a configuration that gives an agent nothing to do.
pub(crate) const IDLE: &str = "no pool has anything to enforce here; add a table [pools.NAME] with one of these: latency (NAME as `evenkeel guard discover` shows it); devices, beside a tenant whose control groups have a throughput guarantee; tuning.slots, beside a tenant that names a device of the pool; devices = [\"osd:*\"]";

/// The default port of the status address.
pub(crate) const PORT: u16 = 9810;

/// Subcommands.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Measure, decide and throttle until it is stopped
    Run(run::Args),
    /// Show which client reaches which volume, device and pool
    Discover {
        /// Configuration file, whose pools with devices of their own are shown too
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print clients, volumes, devices and pools as JSON
        #[arg(long)]
        json: bool,
    },
    /// Explain the agent's configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show what a running agent measures and does
    Status {
        /// Print the whole record as JSON, as /api/v1/state does
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        connect: Connect,
    },
    /// Explain why clients are or are not throttled: the newest decisions, newest first
    Why {
        /// The pool or OSD; all if left out
        pool: Option<String>,
        /// Largest number of decisions to show
        #[arg(long, short = 'n', default_value_t = 10, value_name = "N", value_parser = control::whole::<usize>)]
        count: usize,
        /// Show the newest decisions of the hour before this time, from the history: 02:40, 2026-11-28T02:40:00Z, -2h
        #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
        at: Option<String>,
        /// Print the records as JSON, as /api/v1/decisions does, and with --at as /api/v1/history does
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        connect: Connect,
    },
    /// Delay what is sent to some clients, for a while, and restore every setting
    ///
    /// Shows what a delay does to a client, without any controller. Needs root. However this command ends, also by
    /// kill -9, the delay ends with it.
    Delay(delay::Args),
    /// Restore every setting that an agent changed and could not restore itself
    ///
    /// For systemd's ExecStopPost, and after both the agent and its sentinel were killed. Refuses while an agent runs.
    Reset(JournalArgs),
    /// Waits for the agent's death and restores every setting; started by the agent
    #[command(hide = true)]
    Sentinel(JournalArgs),
}

/// Default path of the journal, on a file system that is lost at a reboot, like the settings that it lists.
const JOURNAL: &str = "/run/evenkeel/guard.journal";

/// The journal whose settings are restored.
#[derive(clap::Args)]
pub(crate) struct JournalArgs {
    /// The agent's journal, which lists the settings to restore
    #[arg(long, default_value = JOURNAL)]
    journal: PathBuf,
}

/// Commands on configurations.
#[derive(clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a configuration that shows every key, commented
    Example,
}

/// The agent that a command asks.
#[derive(clap::Args)]
pub(crate) struct Connect {
    /// Status address of the agent
    #[arg(long, value_name = "ADDR:PORT|https://HOST:PORT", default_value = "127.0.0.1:9810")]
    status: Site,

    #[command(flatten)]
    certificates: Certificates,
}

impl Connect {
    fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let text = control::get(&self.certificates.reach(&self.status, PORT)?, path, PATIENCE)?;
        read_answer(&text)
    }
}

/// Parses the answer of an agent.
///
/// # Errors
/// When the text is the answer of a server, or of an agent of another version.
pub(crate) fn read_answer<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    serde_json::from_str(text).map_err(|error| match serde_json::from_str::<State>(text) {
        Ok(_) => anyhow!("a server answers at --status, not an agent; use `evenkeel state` or `evenkeel top`"),
        Err(_) => {
            let why = "the agent speaks another version of the API: use the agent's version of evenkeel";
            anyhow::Error::new(error).context(why)
        }
    })
}

/// Runs a subcommand of `evenkeel guard`.
///
/// # Errors
/// The errors of the subcommand.
pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Discover { config, json } => discover(config.as_deref(), json),
        Command::Config(ConfigCommand::Example) => output::print(EXAMPLE),
        Command::Status { json, connect } => output::show(json, &connect.get("/api/v1/state")?, show::state),
        Command::Why { pool, count, at: Some(at), json, connect } => {
            let at = history::moment_of("--at", &at, history::now())?;
            let past: History = connect.get(&history::asked(&show::asked_before(at, pool)))?;
            output::show(json, &past, |past| show::past(past, count, history::zone::local))
        }
        Command::Why { pool, count, at: None, json, connect } => {
            let asked = pool.as_ref().map_or_else(String::new, |name| path("&pool=", name));
            let decisions: Decisions = connect.get(&format!("/api/v1/decisions?count={count}{asked}"))?;
            output::show(json, &decisions, show::decisions)
        }
        Command::Delay(args) => delay::run(&args),
        Command::Reset(args) => Ok(host::reset(&args.journal, output::say)?),
        // The agent's pipe is standard input.
        Command::Sentinel(args) => Ok(host::sentinel(std::io::stdin(), &args.journal, output::say)?),
    }
}

fn discover(config: Option<&Path>, json: bool) -> anyhow::Result<()> {
    let config = config.map(read).transpose()?.map(|(config, _)| config);
    let configured = config.as_ref().map_or_else(Configured::new, Config::configured);
    let sockets = config.map_or_else(Vec::new, |config| config.agent.ceph.sockets);
    let mut map = Map::of(&Survey::of_this_machine(), &configured, resolved);
    map.osds = osds::find(Path::new("/"), &sockets);
    output::show(json, &map, show::map)
}

/// Reads an agent's configuration; returns it with the warnings about it.
fn read(file: &Path) -> anyhow::Result<(Config, Vec<Problem>)> {
    Config::read(file, abilities()).map_err(|errors| anyhow!("the configuration cannot be used\n{errors}"))
}

/// True if a configuration gives an agent nothing to enforce, so that the agent refuses to run.
pub(crate) fn is_idle(config: &Config) -> bool {
    !config.watches_devices() && config.ceph.is_none()
}

fn evidence() -> Evidence {
    Evidence::read(&Roots::default(), &modules_folder())
}

/// The features of this kernel that the agent needs, each present or missing.
pub(crate) fn judged() -> Preflight {
    preflight::judge(&evidence())
}

/// The kinds of measurement that this kernel allows.
pub(crate) fn abilities() -> Abilities {
    Abilities { tracepoints: evidence().tracepoints }
}

/// Folder with the modules of the running kernel.
fn modules_folder() -> PathBuf {
    let kernel = rustix::system::uname();
    PathBuf::from("/lib/modules").join(kernel.release().to_string_lossy().as_ref())
}

/// The address of the API in the setting `agent.status`; `None` if the API is off.
fn address(status: Status) -> Option<SocketAddr> {
    match status {
        Status::Off => None,
        Status::At(address) => Some(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_its_answer() {
        let state = serde_json::to_string(&State::default()).unwrap();
        let error = read_answer::<evenkeel_guard::loops::record::State>(&state).map(drop).unwrap_err();
        assert!(error.to_string().contains("use `evenkeel state`"), "{error}");
        let error = read_answer::<Decisions>("{").map(drop).unwrap_err();
        assert!(error.to_string().contains("another version"), "{error}");
    }
}
