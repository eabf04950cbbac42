//! Starts and ends `evenkeel guard delay`, which throttles single clients.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stage::address;
use crate::base::process::Running;
use crate::machine::guest::signal;

/// A running `evenkeel guard delay`.
pub(super) struct Holding {
    pub(super) running: Running,
    lines: std::io::Lines<BufReader<Box<dyn std::io::Read + Send>>>,
}

impl Holding {
    pub(super) fn start(binary: &Path, hosts: &[usize], delay_us: u64, packets: &str, more: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(["guard", "delay", "--device", "br0"]);
        for &host in hosts {
            command.args(["--client", &address(host)]);
        }
        command.args(["--delay", &format!("{delay_us}us"), "--packets", packets, "--journal", "/run/hold.journal"]);
        command.args(more).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut running = Running::spawn(&mut command)?;
        let output: Box<dyn std::io::Read + Send> = Box::new(running.take_stdout()?);
        let mut lines = BufReader::new(output).lines();
        let mut first = lines.next().context("guard delay said nothing")??;
        // What an earlier one left comes first.
        while first.ends_with(": restored") {
            first = lines.next().context("guard delay ended without a word")??;
        }
        ensure!(first.starts_with("delaying "), "guard delay said {first:?}");
        Ok(Self { running, lines })
    }

    /// Kills the sentinel, and after it the program. The program is stopped first (SIGSTOP), so that it starts no new sentinel.
    pub(super) fn kill_with_sentinel(self) -> Result<()> {
        signal(self.running.id(), libc::SIGSTOP);
        signal(sentinel_of(self.running.id())?, libc::SIGKILL);
        self.running.kill();
        Ok(())
    }

    /// Ends the program as Ctrl-C does. Returns the number of packets that the program dropped.
    pub(super) fn stop(mut self) -> Result<u64> {
        signal(self.running.id(), libc::SIGTERM);
        let last = self.lines.by_ref().map_while(Result::ok).last().context("guard delay ended without a word")?;
        ensure!(self.running.wait(Duration::from_secs(20))?.success(), "guard delay failed");
        let dropped = last.strip_prefix("settings restored; ").and_then(|t| t.split(' ').next());
        let dropped = dropped.and_then(|n| n.parse().ok());
        dropped.with_context(|| format!("guard delay ended with {last:?}"))
    }
}

/// Process ids of running sentinels, each with its parent's process id.
pub(super) fn sentinels() -> Result<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else { continue };
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.split(|&b| b == 0).any(|word| word == b"sentinel") {
            // After the name in parentheses come the state and the parent.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
            found.extend(parent.map(|parent| (pid, parent)));
        }
    }
    Ok(found)
}

/// Process id of the sentinel of the agent with the process id `agent`.
pub(super) fn sentinel_of(agent: u32) -> Result<u32> {
    let all = sentinels()?;
    let own = all.iter().find(|(_, parent)| *parent == agent);
    own.map(|(pid, _)| *pid).with_context(|| format!("agent {agent} has no sentinel; there are {all:?}"))
}
