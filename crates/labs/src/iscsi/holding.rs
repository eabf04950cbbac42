//! Starts and ends `evenkeel guard delay`, which throttles single clients.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stage::address;
use crate::base::process::Running;
use crate::machine::guard::kill_sentinel;

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

    /// Kills the sentinel, and after it the program.
    pub(super) fn kill_with_sentinel(self) -> Result<()> {
        kill_sentinel(self.running.id())?;
        self.running.kill();
        Ok(())
    }

    /// Ends the program as Ctrl-C does. Returns the number of packets that the program dropped.
    pub(super) fn stop(mut self) -> Result<u64> {
        self.running.signal(libc::SIGTERM);
        let last = self.lines.by_ref().map_while(Result::ok).last().context("guard delay ended without a word")?;
        ensure!(self.running.wait(Duration::from_secs(20))?.success(), "guard delay failed");
        let dropped = last.strip_prefix("settings restored; ").and_then(|t| t.split(' ').next());
        let dropped = dropped.and_then(|n| n.parse().ok());
        dropped.with_context(|| format!("guard delay ended with {last:?}"))
    }
}
