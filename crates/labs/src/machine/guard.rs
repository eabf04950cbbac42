//! Starts, asks, stops and kills the agent, `evenkeel guard run`, in a guest.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::base::process::{self, Running};
use crate::check::policy;
use crate::machine::guest::signal;

const READY_LIMIT: Duration = Duration::from_secs(60);

/// An agent's identity: the name of its files, and the address of its status API.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) status: &'static str,
}

/// The identity of an agent that is the only one in the guest.
pub(crate) const ONLY: Place = Place { name: "guard", status: "127.0.0.1:9810" };

impl Place {
    fn file(&self, kind: &str) -> String {
        format!("/run/{}.{kind}", self.name)
    }

    pub(crate) fn journal(&self) -> String {
        self.file("journal")
    }

    /// Text of the agent's configuration file; `config` is appended to the table `[agent]`.
    fn tables(&self, config: &str) -> String {
        format!("[agent]\njournal = \"{}\"\nstatus = \"{}\"\n{config}", self.journal(), self.status)
    }

    /// The content of the agent's log so far.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.file("log")).unwrap_or_default().trim().to_owned()
    }
}

/// A running agent.
pub(crate) struct Guard {
    pub(crate) binary: PathBuf,
    place: Place,
    pub(crate) running: Running,
}

impl Guard {
    /// Starts an agent, and waits until it controls its pools. `config` is appended to the table `[agent]`.
    pub(crate) fn start(binary: &Path, place: Place, config: &str) -> Result<Self> {
        std::fs::write(place.file("toml"), place.tables(config))?;
        Self::run(binary, place)
    }

    /// Starts an agent with the [`policy`] that all labs share. Of its pools this host must enforce only `pool`. Returns the
    /// agent, and the pool's effective settings as text.
    pub(crate) fn enforce(binary: &Path, place: Place, config: &str, pool: &str) -> Result<(Self, String)> {
        let file = PathBuf::from(place.file("toml"));
        policy::write(&file, &place.tables(config))?;
        let settings = policy::is_enforced(binary, &file, pool)?;
        Ok((Self::run(binary, place)?, settings))
    }

    fn run(binary: &Path, place: Place) -> Result<Self> {
        let file = place.file("toml");
        // What an earlier one has said is no sign of this one.
        let _ = std::fs::remove_file(place.file("log"));
        let started = Instant::now();
        let mut command = Command::new(binary);
        let mut running =
            process::daemon(Path::new("/run"), place.name, command.args(["guard", "run", "--config", &file]))?;
        while !place.said().contains("guarding ") {
            if let Some(status) = running.ended()? {
                bail!("guard run ended with {status}: {}", place.said());
            }
            ensure!(started.elapsed() < READY_LIMIT, "guard run does not get ready; it said {}", place.said());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { binary: binary.to_owned(), place, running })
    }

    /// Gives the agent a newer configuration, as systemd does at a reload. `config` is appended to the table `[agent]`.
    pub(crate) fn reload(&self, config: &str) -> Result<()> {
        std::fs::write(self.place.file("toml"), self.place.tables(config))?;
        self.running.signal(libc::SIGHUP);
        Ok(())
    }

    /// Output of `evenkeel guard status --json`, parsed.
    pub(crate) fn state(&self) -> Result<Value> {
        let text = self.ask(&["status", "--json"])?;
        serde_json::from_str(&text).context("guard status")
    }

    /// Runs a command of `evenkeel guard` for this agent, see [`ask`].
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<String> {
        ask(&self.binary, self.place, arguments)
    }

    /// Ends the agent as systemd does. Returns the agent's log.
    pub(crate) fn stop(self) -> Result<String> {
        let status = self.running.stop(libc::SIGTERM, READY_LIMIT)?;
        ensure!(status.success(), "guard run failed at its end: {}", self.place.said());
        Ok(self.place.said())
    }

    /// Kills the agent. With `both`, kills the agent's sentinel first.
    pub(crate) fn kill(self, both: bool) -> Result<()> {
        if both {
            kill_sentinel(self.running.id())?;
        }
        self.running.signal(libc::SIGKILL);
        self.running.wait(READY_LIMIT).map(drop)
    }
}

/// Kills the sentinel of the agent with this process id; the sentinel is the agent's first child. The agent is stopped (SIGSTOP)
/// first, as it would start another sentinel.
pub(crate) fn kill_sentinel(agent: u32) -> Result<()> {
    signal(agent, libc::SIGSTOP);
    signal(*children(agent)?.first().context("the agent has no sentinel")?, libc::SIGKILL);
    Ok(())
}

/// Process ids of the children of a process, those of its first thread first. An agent has no other children than sentinels.
pub(crate) fn children(parent: u32) -> Result<Vec<u32>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{parent}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        children.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(children)
}

/// Output of `evenkeel guard ARGUMENTS --status ADDRESS`.
pub(crate) fn ask(binary: &Path, place: Place, arguments: &[&str]) -> Result<String> {
    process::output(Command::new(binary).arg("guard").args(arguments).args(["--status", place.status]))
}

/// Output of `evenkeel guard reset` with the journal of a dead agent.
pub(crate) fn reset(binary: &Path, place: Place) -> Result<String> {
    process::output(Command::new(binary).args(["guard", "reset", "--journal", &place.journal()]))
}
