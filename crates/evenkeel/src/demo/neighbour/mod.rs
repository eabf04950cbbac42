//! `evenkeel demo neighbour`: a reader beside a bulk writer on one disk, with nothing between them, with a limit by hand, and
//! with `evenkeel guard`.
//!
//! The disk is a loop device over a scratch file. Reader and writer are processes of this program in control groups of their
//! own; the agent is a process of this program, too.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use indicatif::ProgressBar;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::bufferbloat::Folder;
use crate::output;
use crate::parallel::Stopped;

pub(super) mod load;
mod picture;
mod stage;

use load::Figures;
use stage::Stage;

/// Names of the control groups.
const READER: &str = "reader";
const WRITER: &str = "writer";
/// Names of the phases, in their order.
const ALONE: &str = "alone";
const NOTHING: &str = "nothing";
const BY_HAND: &str = "io.max by hand";
const EVENKEEL: &str = "Evenkeel";
/// Seconds of load before a measurement, and before that of the agent, which finds its limits meanwhile.
const WARMUP_S: u64 = 1;
const SETTLE_S: u64 = 15;
/// Seconds of measurement without a writer.
const ALONE_S: u64 = 3;
/// The writer is noticed if it makes the mean latency this many times as long.
const SLOWED: f64 = 1.2;
/// Interval at which the demonstration checks whether reader, writer and agent have ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time after which an agent that does not stop is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Options of `evenkeel demo neighbour`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Seconds to measure each phase
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Scratch file of 256 MiB on the disk to try; it must not exist [default: a file in /var/tmp]
    #[arg(long)]
    file: Option<PathBuf>,
    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
    /// Also write the result as an HTML page with a plot
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Figures of a phase.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    phase: &'static str,
    reader: Figures,
    /// `None` without a writer.
    writer: Option<Figures>,
}

/// Measures all phases and prints the results.
///
/// # Errors
/// When this process is not root, the host lacks a part, or a process fails.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "run as root: the demo makes a loop device and control groups");
    let _prepared = args.html.as_ref().map(|path| output::prepare(path)).transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch interrupts")?;
    }
    let folder = Folder::create()?;
    let total = total_s(args.seconds);
    let progress = output::spinner(&format!("{{spinner}} {{elapsed}} of about {total}s  {{msg}}"));
    progress.set_message("making a disk and control groups");
    let scratch = || PathBuf::from(format!("/var/tmp/evenkeel-demo-{}", std::process::id()));
    let stage = Stage::build(&args.file.clone().unwrap_or_else(scratch))?;
    let mut demo = Demo { stage: &stage, seconds: args.seconds, stop: &stop, progress: &progress, rows: Vec::new() };
    let target_ms = demo.phases(folder.path());
    let rows = demo.rows;
    progress.finish_and_clear();
    drop(stage);
    let target_ms = target_ms?;
    if rows.is_empty() {
        return Err(Stopped::Interrupted { done: 0, of: 4 }.into());
    }
    let record = serde_json::json!({ "target_ms": target_ms, "phases": rows });
    output::show(args.json, &record, |_| picture::text(&rows) + "\n" + &picture::conclusions(&rows, target_ms))?;
    if let Some(path) = &args.html {
        let page = picture::page(&rows, target_ms, output::command()).html();
        std::fs::write(path, page).with_context(|| output::cannot_write(path))?;
    }
    if rows.len() < 4 { Err(Stopped::Interrupted { done: rows.len(), of: 4 }.into()) } else { Ok(()) }
}

/// Seconds that all phases take, with this many seconds of measurement.
const fn total_s(seconds: u64) -> u64 {
    (WARMUP_S + ALONE_S) + 2 * (WARMUP_S + seconds) + (SETTLE_S + seconds)
}

/// The policy of the agent: a target for the mean of the reads on `device`.
fn policy(device: &Path, groups: [String; 2], target_ms: f64, journal: &Path) -> String {
    let [reader, writer] = groups;
    format!(
        "[agent]\nstatus = \"off\"\nhistory = \"off\"\njournal = \"{}\"\n\
         [pools.demo]\ndevices = [\"{}\"]\nlatency.target = \"{}us\"\nenforce = [\"cgroup\"]\n\
         [tenants.reader]\nmatch = [\"cgroup:{reader}\"]\nthrottle = \"never\"\n\
         [tenants.writer]\nmatch = [\"cgroup:{writer}\"]\n",
        journal.display(),
        device.display(),
        (target_ms * 1e3).ceil() as u64
    )
}

/// A process that is killed on drop.
struct Running(Child);

impl Running {
    fn is_over(&mut self) -> anyhow::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Ends the process by a signal that it can obey; waits for its end.
    fn stop(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.0), Signal::TERM)?;
        let begun = Instant::now();
        while !self.is_over()? && begun.elapsed() < STOP_WITHIN {
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The measurements so far, and what they need.
struct Demo<'a> {
    stage: &'a Stage,
    seconds: u64,
    stop: &'a AtomicBool,
    progress: &'a ProgressBar,
    rows: Vec<Row>,
}

impl Demo<'_> {
    /// Measures all phases, or those before an interrupt; returns the latency target of the last phase in ms.
    fn phases(&mut self, folder: &Path) -> anyhow::Result<Option<f64>> {
        let Some(alone) = self.measure(ALONE, WARMUP_S, ALONE_S)? else { return Ok(None) };
        let Some(nothing) = self.measure(NOTHING, WARMUP_S, self.seconds)? else { return Ok(None) };
        let rate = nothing.writer.map_or(0.0, |writer| writer.bytes_per_s);
        self.stage.limit_writer(Some((rate / 2.0) as u64))?;
        let by_hand = self.measure(BY_HAND, WARMUP_S, self.seconds)?;
        self.stage.limit_writer(None)?;
        if by_hand.is_none() {
            return Ok(None);
        }
        let (alone_ms, nothing_ms) = (alone.reader.mean_ms, nothing.reader.mean_ms);
        let target_ms = (alone_ms + (nothing_ms - alone_ms) / 3.0).max(SLOWED * alone_ms);
        let agent = self.start_agent(folder, target_ms)?;
        let measured = self.measure(EVENKEEL, SETTLE_S, self.seconds);
        self.stop_agent(agent, folder)?;
        measured?;
        Ok(Some(target_ms))
    }

    fn start_agent(&self, folder: &Path, target_ms: f64) -> anyhow::Result<Running> {
        let groups = [READER, WRITER].map(|name| self.stage.path_of(name));
        let config = folder.join("guard.toml");
        let text = policy(self.stage.device(), groups, target_ms, &folder.join("journal"));
        std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        let log = folder.join("guard.log");
        let log = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["guard", "run", "--config"]).arg(config);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        started.map(Running).context("cannot start the agent")
    }

    /// Stops the agent, which removes its limits; an agent that has ended by itself is an error.
    fn stop_agent(&self, mut agent: Running, folder: &Path) -> anyhow::Result<()> {
        if agent.is_over()? && !self.stop.load(Ordering::Relaxed) {
            let log = std::fs::read_to_string(folder.join("guard.log")).unwrap_or_default();
            bail!("`evenkeel guard` of the demonstration has ended by itself: {}", log.trim());
        }
        // An interrupt from the terminal reaches the agent as well.
        let _ = agent.stop();
        Ok(())
    }

    /// Runs reader and writer for a phase; `None` if it was interrupted.
    fn measure(&mut self, phase: &'static str, warmup: u64, seconds: u64) -> anyhow::Result<Option<Row>> {
        self.progress.set_message(phase);
        let mut running = vec![self.start(READER, warmup, seconds)?];
        if phase != ALONE {
            running.push(self.start(WRITER, warmup, seconds)?);
        }
        let mut figures = Vec::new();
        for mut process in running {
            while !process.is_over()? && !self.stop.load(Ordering::Relaxed) {
                self.progress.tick();
                thread::sleep(LOOK_EVERY);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let mut text = String::new();
            if let Some(output) = &mut process.0.stdout {
                output.read_to_string(&mut text)?;
            }
            let failed = || format!("phase {phase}: the reader or writer ended without figures; see its error above");
            figures.push(serde_json::from_str::<Figures>(&text).with_context(failed)?);
        }
        let row = Row { phase, reader: figures[0], writer: figures.get(1).copied() };
        self.rows.push(row);
        Ok(Some(row))
    }

    /// Starts a program in its control group.
    fn start(&self, group: &str, warmup: u64, seconds: u64) -> anyhow::Result<Running> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["demo", "neighbour-load", "--group"]).arg(self.stage.group(group));
        command.arg("--device").arg(self.stage.device());
        command.args(["--warmup", &warmup.to_string(), "--seconds", &seconds.to_string()]);
        if group == WRITER {
            command.arg("--writes");
        }
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        started.map(Running).context("cannot start a load of the demonstration")
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_guard::Config;
    use evenkeel_guard::config::Abilities;

    use super::*;

    #[test]
    fn by_default_it_takes_less_than_a_minute() {
        assert!(total_s(6) < 55, "{} s, and some to write the file", total_s(6));
    }

    #[test]
    fn the_policy_is_one_of_the_agent() {
        let groups = ["demo/reader", "demo/writer"].map(str::to_owned);
        let text = policy(Path::new("/dev/loop7"), groups, 12.5, Path::new("/tmp/d/journal"));
        let config = Config::parse(&text, "demo", Abilities { tracepoints: false }).unwrap();
        let pool = &config.local["demo"];
        let target_ms = pool.latency.map(|latency| latency.target.as_millis_f64());
        assert_eq!((pool.device.as_str(), target_ms), ("/dev/loop7", Some(12.5)));
        assert_eq!((pool.tenant_of("demo/writer"), pool.tenant_of("demo/other")), (Some(1), None));
    }
}
