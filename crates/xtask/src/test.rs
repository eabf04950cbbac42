//! `cargo xtask test`: everything that must hold, in one command, counted.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::build::{self, cargo};
use crate::lab;
use crate::packages;
use crate::process;
use crate::scratch::Scratch;
use crate::tally::{Harness, Tally};

/// Far above what any step takes on two slow cores; a step that hangs ends there.
const STEP_LIMIT: Duration = Duration::from_secs(40 * 60);
/// Lines shown of the output of a failed step; all of it is in its log file.
const SHOWN_LINES: usize = 200;

/// A part of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Source is formatted.
    Fmt,
    /// No warning of compiler or clippy.
    Clippy,
    /// Everything compiles, once, for all steps after it.
    Build,
    /// All tests, with real clients.
    Tests,
    /// Documentation builds without a warning.
    Doc,
    /// Benchmarks run.
    Bench,
    /// The dashboard in a real browser.
    Browser,
    /// The throttle of a Ceph OSD.
    Ceph,
    /// Power cuts in a virtual machine.
    Durability,
    /// Promised throughputs on hybrid devices in a virtual machine.
    Hybrid,
    /// Lengths of queues of SCSI and NVMe disks in a virtual machine.
    Initiators,
    /// Packet delay on a real iSCSI target in a virtual machine.
    Iscsi,
    /// The kernel's NBD client in a virtual machine.
    NbdClient,
    /// The package, installed, upgraded and removed in a virtual machine.
    Package,
    /// An image of a Ceph cluster through librbd.
    Rbd,
    /// Goals for response times across hosts in network namespaces.
    Slots,
    /// Everything happens to one server for two minutes.
    Soak,
    /// Failing disks in a virtual machine.
    SyncFailure,
    /// The units under systemd in a virtual machine.
    Systemd,
}

impl Step {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    fn in_quick(self) -> bool {
        !matches!(
            self,
            Self::Bench
                | Self::Browser
                | Self::Ceph
                | Self::Durability
                | Self::Hybrid
                | Self::Initiators
                | Self::Iscsi
                | Self::NbdClient
                | Self::Package
                | Self::Rbd
                | Self::Slots
                | Self::Soak
                | Self::SyncFailure
                | Self::Systemd
        )
    }
}

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave out benchmarks and virtual machines.
    #[arg(long)]
    quick: bool,
    /// Only this step; may be repeated.
    #[arg(long)]
    only: Vec<Step>,
    /// Keep the files of the virtual machines.
    #[arg(long)]
    keep: bool,
}

impl Args {
    fn wants(&self, step: Step) -> bool {
        if self.only.is_empty() { !self.quick || step.in_quick() } else { self.only.contains(&step) }
    }
}

/// Runs the wanted steps; the result is whether nothing failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let started = Instant::now();
    let mut total = Tally::default();
    provide_packages(&mut total);
    let logs = log_dir()?;
    for &step in Step::value_variants() {
        if !args.wants(step) {
            if args.only.is_empty() {
                total.add(Tally::one_skipped(step.name(), "left out by --quick"));
            }
            continue;
        }
        println!("{}: running", step.name());
        let begun = Instant::now();
        let tally = run_step(step, args, &logs).unwrap_or_else(|e| {
            println!("{}: {e:#}", step.name());
            Tally::one_failed(step.name())
        });
        let verdict = if tally.failed.is_empty() { "ok" } else { "FAILED" };
        println!(
            "{}: {verdict}, {} passed, {} failed, {} skipped, {:.1} s",
            step.name(),
            tally.passed,
            tally.failed.len(),
            tally.skipped.len(),
            begun.elapsed().as_secs_f64()
        );
        total.add(tally);
    }
    print!("{}", report(&total));
    println!("({:.0} s in all; logs in {})", started.elapsed().as_secs_f64(), logs.display());
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed.len(), total.skipped.len());
    Ok(total.failed.is_empty())
}

/// Parts that were skipped, measured twice or failed, by name.
fn report(total: &Tally) -> String {
    let mut text = String::new();
    for (name, reason) in &total.skipped {
        let _ = writeln!(text, "skipped: {name}: {reason}");
    }
    for name in &total.repeated {
        let _ = writeln!(text, "measured twice: {name}");
    }
    for name in &total.failed {
        let _ = writeln!(text, "failed: {name}");
    }
    text
}

fn provide_packages(total: &mut Tally) {
    match packages::provide() {
        Ok(missing) if missing.is_empty() => {}
        Ok(missing) => {
            println!("Not installed: {}. Tests that need them are skipped. Install them with", missing.join(", "));
            println!("  {}", packages::command(&missing));
        }
        Err(e) => {
            println!("packages: {e:#}");
            total.add(Tally::one_failed("packages"));
        }
    }
}

fn run_step(step: Step, args: &Args, logs: &Path) -> Result<Tally> {
    let log = logs.join(format!("{}.log", step.name()));
    let plain = |command: &mut Command| -> Result<Tally> {
        let mut output = Output::new(log.clone());
        let status = process::stream(command, STEP_LIMIT, |line| output.line(line))?;
        output.save(status.success())?;
        Ok(if status.success() { Tally::one_passed() } else { Tally::one_failed(step.name()) })
    };
    match step {
        Step::Fmt => plain(cargo().args(["fmt", "--all", "--check", "--", "--color=never"])),
        Step::Clippy => plain(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        Step::Build => plain(cargo().args(["test", "--workspace", "--no-run"])),
        Step::Tests => tests(log),
        Step::Doc => {
            plain(cargo().args(["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"))
        }
        Step::Bench => plain(cargo().args([
            "bench",
            "--package",
            "evenkeel-control",
            "--package",
            "evenkeel-sim",
            "--bench",
            "mclock",
            "--bench",
            "placement",
            "--bench",
            "engine",
            "--",
            "--smoke",
        ])),
        Step::Browser => match lab::without_browser() {
            Some(why) => Ok(Tally::one_skipped("lab browser", why)),
            None => lab::run_in_test(lab::Name::Browser, args.keep),
        },
        Step::Ceph => match lab::without_ceph() {
            Some(why) => Ok(Tally::one_skipped("lab ceph", why)),
            None => lab::run_in_test(lab::Name::Ceph, args.keep),
        },
        Step::Durability => lab_step(lab::Name::Durability, args.keep),
        Step::Hybrid => lab_step(lab::Name::Hybrid, args.keep),
        Step::Initiators => lab_step(lab::Name::Initiators, args.keep),
        Step::Iscsi => lab_step(lab::Name::Iscsi, args.keep),
        Step::NbdClient => lab_step(lab::Name::NbdClient, args.keep),
        Step::Package => match lab::without_package() {
            Some(why) => Ok(Tally::one_skipped("lab package", why)),
            None => lab_step(lab::Name::Package, args.keep),
        },
        Step::Rbd => match lab::without_rbd() {
            Some(why) => Ok(Tally::one_skipped("lab rbd", why)),
            None => lab::run_in_test(lab::Name::Rbd, args.keep),
        },
        Step::Slots => match lab::without_slots() {
            Some(why) => Ok(Tally::one_skipped("lab slots", why)),
            None => lab::run_in_test(lab::Name::Slots, args.keep),
        },
        Step::Soak => lab::run_soak(&lab::soak::Args::in_test(args.keep)),
        Step::SyncFailure => lab_step(lab::Name::SyncFailure, args.keep),
        Step::Systemd => match lab::without_systemd() {
            Some(why) => Ok(Tally::one_skipped("lab systemd", why)),
            None => lab_step(lab::Name::Systemd, args.keep),
        },
    }
}

fn tests(log: PathBuf) -> Result<Tally> {
    let scratch = Scratch::new("skips")?;
    let skip_log = scratch.path().join("log");
    let mut command = cargo();
    // One failed test program must not hide the results of the others.
    command.args(["test", "--workspace", "--no-fail-fast"]).env("EVENKEEL_SKIP_LOG", &skip_log);
    let mut harness = Harness::default();
    let mut output = Output::new(log);
    let status = process::stream(&mut command, STEP_LIMIT, |line| {
        harness.line(line);
        output.line(line);
    })?;
    output.save(status.success())?;
    let mut tally = harness.finish(status.success());
    tally.apply_skip_log(&std::fs::read_to_string(&skip_log).unwrap_or_default());
    Ok(tally)
}

fn lab_step(name: lab::Name, keep: bool) -> Result<Tally> {
    if let Some(reason) = lab::unavailable() {
        return Ok(Tally::one_skipped(format!("lab {}", name.text()), reason));
    }
    lab::run_in_test(name, keep)
}

/// The output of a step, on disk as a whole, on the screen only when the step failed.
#[derive(Debug)]
struct Output {
    path: PathBuf,
    text: String,
}

impl Output {
    fn new(path: PathBuf) -> Self {
        Self { path, text: String::new() }
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn save(&self, success: bool) -> Result<()> {
        if !success {
            // Cargo's progress says nothing about the failure.
            let progress = ["Checking ", "Compiling ", "Documenting ", "Downloaded ", "Downloading "];
            let news = |line: &&str| !progress.iter().any(|p| line.trim_start().starts_with(p));
            let lines: Vec<&str> = self.text.lines().filter(news).collect();
            let shown = lines.len().min(SHOWN_LINES);
            println!("last {shown} of {} lines of {}:", lines.len(), self.path.display());
            lines[lines.len() - shown..].iter().for_each(|line| println!("  | {line}"));
        }
        std::fs::write(&self.path, &self.text).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn log_dir() -> Result<PathBuf> {
    let dir = build::target_dir()?.join("xtask");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}
