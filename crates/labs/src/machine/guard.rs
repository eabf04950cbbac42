//! `evenkeel guard run` in a guest: started, asked, stopped, killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::base::process::{self, Running};
use crate::check::policy;
use crate::machine::guest::signal;

const READY_LIMIT: Duration = Duration::from_secs(60);

/// Where an agent has its files, and where it answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) status: &'static str,
}

/// Of the only agent.
pub(crate) const ONLY: Place = Place { name: "guard", status: "127.0.0.1:9810" };

impl Place {
    fn file(&self, kind: &str) -> String {
        format!("/run/{}.{kind}", self.name)
    }

    pub(crate) fn journal(&self) -> String {
        self.file("journal")
    }

    /// The tables of its file, whose `[agent]` goes on with `config`.
    fn tables(&self, config: &str) -> String {
        format!("[agent]\njournal = \"{}\"\nstatus = \"{}\"\n{config}", self.journal(), self.status)
    }

    /// The agent's output until now.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.file("log")).unwrap_or_default().trim().to_owned()
    }
}

/// An agent under way.
pub(crate) struct Guard {
    pub(crate) binary: PathBuf,
    place: Place,
    pub(crate) running: Running,
}

impl Guard {
    /// Starts it, and waits until it guards. `config` goes on with keys of `[agent]`.
    pub(crate) fn start(binary: &Path, place: Place, config: &str) -> Result<Self> {
        std::fs::write(place.file("toml"), place.tables(config))?;
        Self::run(binary, place)
    }

    /// The same with the [`policy`] that all labs share, which must be enforced at this host for `pool` alone; its settings.
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

    /// `evenkeel guard status --json`.
    pub(crate) fn state(&self) -> Result<Value> {
        let text = self.ask(&["status", "--json"])?;
        serde_json::from_str(&text).context("guard status")
    }

    /// [`ask`] about this agent.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<String> {
        ask(&self.binary, self.place, arguments)
    }

    /// Ends it as systemd does; the result is its log.
    pub(crate) fn stop(self) -> Result<String> {
        signal(self.running.id(), libc::SIGTERM);
        let status = self.running.wait(READY_LIMIT)?;
        ensure!(status.success(), "guard run failed at its end: {}", self.place.said());
        Ok(self.place.said())
    }

    /// Kills it, and its sentinel before if `both`.
    pub(crate) fn kill(self, both: bool) -> Result<()> {
        if both {
            kill_sentinel(self.running.id())?;
        }
        signal(self.running.id(), libc::SIGKILL);
        self.running.wait(READY_LIMIT).map(drop)
    }
}

/// Kills the sentinel, an agent's first child, and stops the agent, which would start another one.
pub(crate) fn kill_sentinel(agent: u32) -> Result<()> {
    signal(agent, libc::SIGSTOP);
    let children = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children"))?;
    let sentinel = children.split_ascii_whitespace().next().context("the agent has no sentinel")?;
    signal(sentinel.parse()?, libc::SIGKILL);
    Ok(())
}

/// `evenkeel guard ARGUMENTS --status ADDRESS`.
pub(crate) fn ask(binary: &Path, place: Place, arguments: &[&str]) -> Result<String> {
    process::output(Command::new(binary).arg("guard").args(arguments).args(["--status", place.status]))
}

/// `evenkeel guard reset`, with what the journal of a dead agent lists.
pub(crate) fn reset(binary: &Path, place: Place) -> Result<String> {
    process::output(Command::new(binary).args(["guard", "reset", "--journal", &place.journal()]))
}
