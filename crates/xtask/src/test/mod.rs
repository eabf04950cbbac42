//! `cargo xtask test`: everything that must hold, in one command, counted.

mod full;
mod job;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::build::{self, cargo};
use crate::lab;
use crate::packages;
use crate::tally::Tally;
use job::{Job, Outcome, Reads};

/// A part of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
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
    /// Everything happens to one server.
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
        matches!(self, Self::Fmt | Self::Clippy | Self::Build | Self::Tests | Self::Doc)
    }

    /// The lab of a step, with the quarters of a processor that it takes beside others.
    fn lab(self) -> Option<(lab::Name, u32)> {
        Some(match self {
            Self::Browser => (lab::Name::Browser, 2),
            Self::Ceph => (lab::Name::Ceph, 1),
            Self::Durability => (lab::Name::Durability, 4),
            Self::Hybrid => (lab::Name::Hybrid, 4),
            Self::Initiators => (lab::Name::Initiators, 4),
            // Two machines, each of one processor.
            Self::Iscsi => (lab::Name::Iscsi, 8),
            Self::NbdClient => (lab::Name::NbdClient, 4),
            Self::Package => (lab::Name::Package, 4),
            Self::Rbd => (lab::Name::Rbd, 1),
            Self::Slots => (lab::Name::Slots, 1),
            Self::SyncFailure => (lab::Name::SyncFailure, 4),
            Self::Systemd => (lab::Name::Systemd, 3),
            Self::Fmt | Self::Clippy | Self::Build | Self::Tests | Self::Doc | Self::Bench | Self::Soak => return None,
        })
    }
}

/// Labs and the soak in the order in which they begin: those that take longest first, so that no processor waits at the end.
const LABS: [Step; 13] = [
    Step::Iscsi,
    Step::Ceph,
    Step::Hybrid,
    Step::Systemd,
    Step::Browser,
    Step::Package,
    Step::Initiators,
    Step::Soak,
    Step::Slots,
    Step::Rbd,
    Step::Durability,
    Step::SyncFailure,
    Step::NbdClient,
];

/// The test program that takes longest, by a factor of ten, and mostly waits for its clients.
const LONGEST_TEST: &str = "evenkeel-clients";

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave out benchmarks and labs.
    #[arg(long)]
    quick: bool,
    /// Afterwards judge what needs the machine for itself, with all repeats and sweeps, one after the other: takes hours, and
    /// writes docs/results/full.md.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
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

/// What the steps have brought so far.
#[derive(Debug, Default)]
struct Totals {
    tally: Tally,
    /// Of each step: whether it failed is in the tally.
    steps: BTreeMap<Step, Spent>,
}

/// What a step took: the time of its jobs added up, and the time of processors.
#[derive(Debug, Default, Clone, Copy)]
struct Spent {
    wall: Duration,
    processor: Duration,
}

impl Totals {
    fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.tally.add(Tally::one_skipped(name, reason));
    }

    /// Counts a job and prints a line about it, unless it is one of many that went well.
    fn add(&mut self, outcome: Outcome) {
        let Outcome { step, name, tally, wall, processor, .. } = outcome;
        if step != Step::Tests || !tally.failed.is_empty() || wall > Duration::from_secs(10) {
            println!(
                "{name}: {}, {} passed, {} failed, {} skipped, {:.1} s ({:.1} s of processor time)",
                if tally.failed.is_empty() { "ok" } else { "FAILED" },
                tally.passed,
                tally.failed.len(),
                tally.skipped.len(),
                wall.as_secs_f64(),
                processor.as_secs_f64()
            );
        }
        let spent = self.steps.entry(step).or_default();
        spent.wall += wall;
        spent.processor += processor;
        self.tally.add(tally);
    }

    /// Parts that were skipped or failed, by name, and the time of each step.
    fn report(&self) -> String {
        let mut text = String::new();
        for (name, reason) in &self.tally.skipped {
            let _ = writeln!(text, "skipped: {name}: {reason}");
        }
        for name in &self.tally.failed {
            let _ = writeln!(text, "failed: {name}");
        }
        let _ = writeln!(text, "{:<14} {:>9} {:>14}", "step", "seconds", "processor s");
        for (step, Spent { wall, processor }) in &self.steps {
            let _ = writeln!(text, "{:<14} {:>9.1} {:>14.1}", step.name(), wall.as_secs_f64(), processor.as_secs_f64());
        }
        text
    }
}

/// Runs the wanted steps; the result is whether nothing failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let started = Instant::now();
    let processors = thread::available_parallelism().map_or(2, usize::from);
    let logs = log_dir()?;
    let totals = Mutex::new(Totals::default());
    let ended = |outcome| totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(outcome);

    // Packages come over the network while the compiler takes the processors, and then what the labs need.
    let boots = LABS.iter().any(|&step| args.wants(step) && step.lab().is_some());
    let fetching = thread::spawn(move || {
        let provided = packages::provide();
        // What is missing is found, and said, once more when the labs are about to begin.
        if boots && LABS.iter().filter_map(|step| step.lab()).any(|(name, _)| lab::missing(name).is_none()) {
            let _ = lab::prepare();
        }
        provided
    });
    let mut built = Built::default();
    if args.wants(Step::Fmt) {
        let mut fmt = cargo();
        fmt.args(["fmt", "--all", "--check", "--", "--color=never"]);
        ended(Job::new(Step::Fmt, fmt).run(&logs));
    }
    if args.wants(Step::Build) || args.wants(Step::Tests) || LABS.iter().any(|&lab| args.wants(lab)) {
        println!("build: running");
        let mut build = cargo();
        build.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
        ended(Job::new(Step::Build, build).run_and(&logs, |line| built.line(line)));
    }
    let provided = fetching.join().unwrap_or_else(|_| Err(anyhow::anyhow!("installing them panicked")));
    let (mut jobs, binary) = (Vec::new(), built.binary.take());
    let mut tests = if args.wants(Step::Tests) { built.tests() } else { Vec::new() }.into_iter();
    jobs.extend(tests.next());
    {
        let mut totals = totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        report_packages(provided, &mut totals);
        for &step in Step::value_variants() {
            if args.only.is_empty() && !args.wants(step) {
                totals.skip(step.name(), "left out by --quick");
            }
        }
        for &step in &LABS {
            if args.wants(step) {
                match lab_job(step, args, binary.as_deref())? {
                    Ok(job) => jobs.push(job),
                    Err(reason) => totals.skip(format!("lab {}", step.name()), reason),
                }
            }
        }
        if binary.is_none() && jobs.iter().any(|job| job.reads == Reads::Lab) {
            jobs.retain(|job| job.reads != Reads::Lab);
            totals.skip("labs", "there is no program to test");
        }
    }
    if jobs.iter().any(|job| job.step.lab().is_some()) {
        lab::prepare().context("cannot fetch the guest's kernel")?;
    }
    // One after the other, beside the labs.
    jobs.extend(cargo_jobs(args));
    jobs.extend(tests);
    println!("{} jobs, side by side on {processors} processors", jobs.len());
    job::run(jobs, processors, &logs, ended);
    if args.full {
        let outcomes = Mutex::new(Vec::new());
        // Each takes all processors.
        job::run(full_jobs(args)?, processors, &logs, |outcome| {
            outcomes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(full::Row::of(&outcome));
            ended(outcome);
        });
        full::write(&outcomes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))?;
    }

    let totals = totals.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    print!("{}", totals.report());
    println!("({:.0} s in all; logs in {})", started.elapsed().as_secs_f64(), logs.display());
    let Tally { passed, failed, skipped } = &totals.tally;
    println!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len());
    Ok(failed.is_empty())
}

fn report_packages(provided: Result<Vec<&'static str>>, totals: &mut Totals) {
    match provided {
        Ok(missing) if missing.is_empty() => {}
        Ok(missing) => {
            println!("Not installed: {}. Tests that need them are skipped. Install them with", missing.join(", "));
            println!("  {}", packages::command(&missing));
        }
        Err(e) => {
            println!("packages: {e:#}");
            totals.tally.add(Tally::one_failed("packages"));
        }
    }
}

/// What the build has made, as cargo tells it.
#[derive(Debug, Default)]
struct Built {
    /// Evenkeel's program.
    binary: Option<PathBuf>,
    tests: Vec<Program>,
}

/// A test program, and the folder of its package, in which it runs.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    path: PathBuf,
    folder: PathBuf,
}

impl Built {
    /// Takes a line of cargo's; the result is whether it is one for machines.
    fn line(&mut self, line: &str) -> bool {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { return false };
        let (Some(path), target) = (message["executable"].as_str(), &message["target"]) else {
            return message.is_object();
        };
        let (name, path) = (target["name"].as_str().unwrap_or_default().to_owned(), PathBuf::from(path));
        let folder = message["manifest_path"].as_str().and_then(|path| Path::new(path).parent());
        let folder = folder.map(Path::to_owned).unwrap_or_default();
        if message["profile"]["test"] == true {
            let package = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            let name = if target["kind"][0] == "test" { format!("{package}-{name}") } else { package };
            self.tests.push(Program { name, path, folder });
        } else if target["kind"][0] == "bin" && name == "evenkeel" {
            self.binary = Some(path);
        }
        true
    }

    /// Those in the order of their names, so that no two runs differ by it, but the longest one first.
    fn tests(mut self) -> Vec<Job> {
        self.tests.sort_by_key(|program| (program.name != LONGEST_TEST, program.name.clone()));
        let job = |program: Program| {
            let mut command = Command::new(program.path);
            command.current_dir(program.folder);
            let quarters = if program.name == LONGEST_TEST { 2 } else { 4 };
            Job { name: program.name, reads: Reads::Harness, quarters, ..Job::new(Step::Tests, command) }
        };
        self.tests.into_iter().map(job).collect()
    }
}

/// A lab as a program of its own, or why it cannot run here.
fn lab_job(step: Step, args: &Args, binary: Option<&Path>) -> Result<Result<Job, String>> {
    let mut command = Command::new(std::env::current_exe()?);
    let quarters = match step.lab() {
        Some((lab, quarters)) => {
            if let Some(reason) = lab::missing(lab) {
                return Ok(Err(reason));
            }
            command.args(["lab", lab.text()]);
            quarters
        }
        None => {
            command.args(["soak", "--short"]);
            3
        }
    };
    if let Some(binary) = binary {
        command.arg("--binary").arg(binary);
    }
    if args.keep {
        command.arg("--keep");
    }
    Ok(Ok(Job { reads: Reads::Lab, quarters, ..Job::new(step, command) }))
}

/// What takes cargo's lock.
fn cargo_jobs(args: &Args) -> Vec<Job> {
    let job = |step: Step, name: &str, reads: Reads, words: &[&str]| {
        let mut command = cargo();
        command.args(words);
        if step == Step::Doc {
            command.env("RUSTDOCFLAGS", "-D warnings");
        }
        Job { name: name.into(), reads, cargo: true, ..Job::new(step, command) }
    };
    // All packages, because some alone would have their dependencies built again with fewer features.
    let bench = ["bench", "--workspace", "--profile", "dev"];
    let benches = ["--bench", "mclock", "--bench", "placement", "--bench", "engine", "--", "--smoke"];
    let jobs = [
        job(Step::Clippy, "clippy", Reads::Status, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        job(Step::Tests, "doc-tests", Reads::Harness, &["test", "--workspace", "--doc"]),
        job(Step::Doc, "doc", Reads::Status, &["doc", "--workspace", "--no-deps", "--quiet"]),
        job(Step::Bench, "bench", Reads::Status, &[&bench[..], &benches].concat()),
    ];
    jobs.into_iter().filter(|job| args.wants(job.step)).collect()
}

/// What `--full` judges after everything else: each alone on the machine.
fn full_jobs(args: &Args) -> Result<Vec<Job>> {
    let own = std::env::current_exe()?;
    let job = |step: Step, reads: Reads, words: &[&str]| {
        let mut command = Command::new(&own);
        command.args(words);
        Job { name: format!("full-{}", step.name()), reads, quarters: u32::MAX, ..Job::new(step, command) }
    };
    let labs = LABS.into_iter().filter(|step| !matches!(step, Step::SyncFailure | Step::NbdClient));
    let names = labs.filter_map(|step| Some((step, step.lab()?.0)));
    let possible = names.filter(|(step, name)| args.wants(*step) && lab::missing(*name).is_none());
    let mut jobs: Vec<Job> =
        possible.map(|(step, name)| job(step, Reads::Lab, &["lab", name.text(), "--full"])).collect();
    if args.wants(Step::Soak) {
        jobs.push(job(Step::Soak, Reads::Lab, &["soak", "--minutes", "10"]));
    }
    if args.wants(Step::Package) {
        jobs.push(job(Step::Package, Reads::Status, &["deb", "--check-reproducible"]));
    }
    Ok(jobs)
}

fn log_dir() -> Result<PathBuf> {
    let dir = build::target_dir()?.join("xtask");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_what_cargo_says_that_it_has_made() {
        let mut built = Built::default();
        let artifact = |kind: &str, name: &str, test: bool, path: &str| {
            let (target, profile) =
                (serde_json::json!({"kind": [kind], "name": name}), serde_json::json!({"test": test}));
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/p/crates/server/Cargo.toml", "target": target,
                "profile": profile, "executable": path,
            })
        };
        for message in [
            artifact("test", "serving", true, "/t/serving-1"),
            artifact("lib", "evenkeel_server", true, "/t/server-2"),
            artifact("bin", "evenkeel", false, "/t/evenkeel"),
            artifact("bin", "evenkeel", true, "/t/evenkeel-3"),
            serde_json::json!({"reason": "build-finished", "success": true}),
        ] {
            assert!(built.line(&message.to_string()));
        }
        assert!(!built.line("warning: something"));
        assert_eq!(built.binary.as_deref(), Some(Path::new("/t/evenkeel")));
        let names: Vec<&str> = built.tests.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["server-serving", "server", "server"]);
        assert_eq!(built.tests[0].folder, Path::new("/p/crates/server"));
    }
}
