//! `cargo xtask test`: runs every check of the project in one command, and counts them.

mod job;
#[cfg(test)]
mod skip;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use evenkeel_labs::base::build::{self, cargo};
use evenkeel_labs::base::packages;
use evenkeel_labs::base::record::Page;
use evenkeel_labs::base::spelled::spelled;
use evenkeel_labs::base::tally::Tally;
use evenkeel_labs::lab;
use job::{Job, Outcome, Reads};

/// A step of `cargo xtask test`: a kind of check or a lab, which can be run alone.
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
    /// Guaranteed throughputs on cached devices in a virtual machine.
    Caches,
    /// Lengths of queues of SCSI and NVMe disks in a virtual machine.
    Initiators,
    /// Packet delay on a real iSCSI target in a virtual machine.
    Iscsi,
    /// Attacks on a server beside a light client.
    Isolation,
    /// A latency target on a disk of a host in a virtual machine.
    Local,
    /// The kernel's NBD client in a virtual machine.
    NbdClient,
    /// The package, installed, upgraded and removed in a virtual machine.
    Package,
    /// An image of a Ceph cluster through librbd.
    Rbd,
    /// Predictions from a recording beside real runs.
    Replay,
    /// Latency targets across hosts in network namespaces.
    Slots,
    /// A server under load and injected faults, without lost data or leaks.
    Soak,
    /// NBD tests of other projects, run against Evenkeel's server.
    Suites,
    /// Failing disks in a virtual machine.
    SyncFailure,
    /// The units under systemd in a virtual machine.
    Systemd,
    /// A reservation and a limit over three servers.
    Totals,
}

impl Step {
    fn name(self) -> String {
        spelled(&self)
    }

    fn in_quick(self) -> bool {
        matches!(self, Self::Fmt | Self::Clippy | Self::Build | Self::Tests | Self::Doc)
    }

    /// The lab that this step runs, if it is a lab.
    fn lab(self) -> Option<lab::Name> {
        lab::Name::from_str(&self.name(), false).ok()
    }
}

/// The labs and the soak, each with the number of quarters of a processor that it takes, in the order of their start; those that
/// run alone start when all other jobs have ended. The longest ones are first, so that no processor is idle at the end. A lab
/// that judges latencies takes a whole processor although it mostly waits: beside busy emulated processors its requests would be
/// late by hundreds of milliseconds.
const LABS: [(Step, u32); 18] = [
    // Two machines, each of one processor.
    (Step::Iscsi, 8),
    (Step::Ceph, 4),
    (Step::Caches, 4),
    // Two processors.
    (Step::Isolation, 8),
    (Step::Systemd, 3),
    (Step::Browser, 2),
    (Step::Package, 4),
    (Step::Slots, 4),
    (Step::Totals, 4),
    (Step::Local, 4),
    (Step::Initiators, 4),
    (Step::Soak, 3),
    (Step::Suites, 4),
    (Step::Rbd, 2),
    (Step::Replay, 8),
    (Step::Durability, 4),
    (Step::SyncFailure, 4),
    (Step::NbdClient, 4),
];

/// Time limit of a job at the lowest priority, and of one that waits for cargo's lock. Such a job may make no progress while the
/// others leave no processor idle, for an hour on two slow cores; then all at the lowest priority share the processors.
const LEISURE_LIMIT: Duration = Duration::from_secs(3 * 3600);
/// Time limit of a job with `--full`; the labs' virtual machines have up to two hours.
const FULL_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// Name of the longest test program at normal priority; it mostly waits for its clients.
const LONGEST_TEST: &str = "evenkeel-clients";
/// Names of the long test programs that run in virtual time alone. No clock judges them, so they run at the lowest priority, on
/// the processors that other jobs leave idle.
const VIRTUAL_TIME_TESTS: [&str; 3] = ["control-all", "sim", "sim-all"];

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave out benchmarks and labs.
    #[arg(long)]
    quick: bool,
    /// Afterwards run the long jobs that need the whole machine, one after the other, with all repeats and sweeps: takes hours,
    /// and writes a page of docs/results for each lab.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Write jobs and checks, with command, date, commit and machine, to docs/results/full.md.
    #[arg(long, requires = "full", conflicts_with = "only")]
    record: bool,
    /// Only this step; may be repeated.
    #[arg(long)]
    only: Vec<Step>,
    /// Keep the files of the virtual machines.
    #[arg(long)]
    keep: bool,
}

impl Args {
    /// The page of results that this run writes by [`Page::record_self`]; `None` without `--record`.
    pub(crate) fn page(&self) -> Option<Page> {
        let what = "All checks, and what needs the machine for itself. Figures of labs are on pages of their own.";
        let page = Page { name: "full".into(), title: "Full test run".into(), what: what.into(), seed: None };
        self.record.then_some(page)
    }

    fn wants(&self, step: Step) -> bool {
        if self.only.is_empty() { !self.quick || step.in_quick() } else { self.only.contains(&step) }
    }

    fn labs(&self) -> impl Iterator<Item = (Step, u32)> {
        LABS.into_iter().filter(|(step, _)| self.wants(*step))
    }

    /// Names of the programs that the wanted steps run.
    fn programs(&self) -> Vec<&'static str> {
        let tests = if self.wants(Step::Tests) { &packages::TESTS[..] } else { &[] };
        let labs = self.labs().filter_map(|(step, _)| step.lab()).flat_map(lab::programs);
        tests.iter().copied().chain(labs).collect()
    }
}

/// The results of the jobs that have ended so far.
#[derive(Debug, Default)]
struct Totals {
    tally: Tally,
    /// Time that each step has taken; the tally has the failures.
    steps: BTreeMap<Step, Spent>,
}

/// Time that a step has taken: the sum of its jobs' durations, and the sum of their CPU times.
#[derive(Debug, Default, Clone, Copy)]
struct Spent {
    wall: Duration,
    processor: Duration,
}

impl Totals {
    fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.tally.add(Tally::one_skipped(name, reason));
    }

    /// Counts a failure outside of jobs under the name `name`, and prints the reason.
    fn fail(&mut self, name: &str, reason: &str) {
        println!("{name}: FAILED: {reason}");
        self.tally.add(Tally::one_failed(name));
    }

    /// Counts a job's outcome and prints a line about it; short test programs that passed are not printed.
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

    /// The report as text: the skipped and failed checks by name, and the time of each step.
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

/// Runs the steps that the arguments select. True if no check failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let started = Instant::now();
    let processors = thread::available_parallelism().map_or(2, usize::from);
    let (logs, own) = (log_dir()?, std::env::current_exe()?);
    let totals = Mutex::new(Totals::default());
    let lock = || totals.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = |outcome| lock().add(outcome);

    // Packages come over the network while the compiler takes the processors, and then what machines need.
    let programs = args.programs();
    let boots: Vec<lab::Name> = args.labs().filter_map(|(step, _)| step.lab()).filter(|lab| lab::boots(*lab)).collect();
    let fetching = thread::spawn(move || {
        let provided = packages::provide(&programs);
        let prepared = if boots.into_iter().any(|lab| lab::missing(lab).is_none()) { lab::prepare() } else { Ok(()) };
        (provided, prepared)
    });
    let mut built = Built::default();
    if args.wants(Step::Fmt) {
        let mut fmt = cargo();
        fmt.args(["fmt", "--all", "--check", "--", "--color=never"]);
        ended(Job::new(Step::Fmt, fmt).run(&logs));
    }
    if args.wants(Step::Build) || args.wants(Step::Tests) || args.labs().next().is_some() {
        println!("build: running");
        let mut build = cargo();
        build.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
        let outcome = Job::new(Step::Build, build).run_and(&logs, |line| built.line(line));
        let succeeded = outcome.tally.failed.is_empty();
        ended(outcome);
        if succeeded && (built.tests.is_empty() || built.binary.is_none()) {
            lock().fail("programs", "cargo has built everything, and named no test program or not evenkeel");
        }
    }
    let fetched = fetching.join().unwrap_or_else(|_| (Err(anyhow::anyhow!("installing them panicked")), Ok(())));
    let machines = fetched.1.is_ok();
    for (name, outcome) in [("packages", fetched.0), ("machines", fetched.1)] {
        if let Err(e) = outcome {
            lock().fail(name, &format!("{e:#}"));
        }
    }
    for &step in Step::value_variants() {
        if args.only.is_empty() && !args.wants(step) {
            lock().skip(step.name(), "left out by --quick");
        }
    }
    if args.wants(Step::Tests)
        && let Some(text) = packages::missing_text(&packages::TESTS)
    {
        println!("Tests without their peers are skipped. {text}");
    }
    let (mut jobs, binary, server_tests) = (Vec::new(), built.binary.take(), built.test("server-all"));
    let mut tests = if args.wants(Step::Tests) { built.tests() } else { Vec::new() }.into_iter();
    jobs.extend(tests.next());
    for (step, quarters) in args.labs() {
        match (obstacle(step, machines), &binary) {
            (Some(reason), _) => lock().skip(format!("lab {}", step.name()), reason),
            (None, None) => lock().skip(format!("lab {}", step.name()), "there is no program to test"),
            (None, Some(binary)) => {
                let mut job = lab_job(step, quarters, args, &own, binary);
                if let Some(program) = &server_tests {
                    // The lab would build it, and wait until the jobs that take cargo's lock have ended.
                    job.command.env(build::SERVER_TESTS, program);
                }
                jobs.push(job);
            }
        }
    }
    // What takes cargo's lock runs one after the other beside the rest.
    jobs.extend(cargo_jobs(args));
    jobs.extend(tests);
    println!("{} jobs, side by side on {processors} processors", jobs.len());
    job::run(jobs, processors, &logs, ended);
    if args.full {
        let possible = |job: Job| match obstacle(job.step, machines).filter(|_| job.reads == Reads::Lab) {
            Some(reason) => {
                ended(job.skipped(reason));
                None
            }
            None => Some(job),
        };
        // Each takes all processors.
        job::run(full_jobs(args, &own).into_iter().filter_map(possible).collect(), processors, &logs, ended);
    }

    let totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    print!("{}", totals.report());
    println!("({:.0} s in all; logs in {})", started.elapsed().as_secs_f64(), logs.display());
    let Tally { passed, failed, skipped } = &totals.tally;
    println!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len());
    Ok(failed.is_empty())
}

/// The programs that a build made, according to cargo's messages.
#[derive(Debug, Default)]
struct Built {
    /// Path of the program `evenkeel`, once it was built.
    binary: Option<PathBuf>,
    tests: Vec<Program>,
}

/// A test program, which must run in the folder of its package.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    path: PathBuf,
    folder: PathBuf,
}

impl Built {
    /// Handles a line of cargo's output. True if the line is a message in JSON, which does not belong in the log.
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

    /// Path of the test program with this name.
    fn test(&self, name: &str) -> Option<PathBuf> {
        self.tests.iter().find(|program| program.name == name).map(|program| program.path.clone())
    }

    /// A job for each test program, sorted by name so that all runs have the same order, but [`LONGEST_TEST`] first.
    fn tests(mut self) -> Vec<Job> {
        self.tests.sort_by_key(|program| (program.name != LONGEST_TEST, program.name.clone()));
        let job = |program: Program| {
            let mut command = Command::new(program.path);
            command.current_dir(program.folder);
            let quarters = if program.name == LONGEST_TEST { 2 } else { 4 };
            let at_leisure = VIRTUAL_TIME_TESTS.contains(&program.name.as_str());
            let job = Job { name: program.name, reads: Reads::Harness, quarters, ..Job::new(Step::Tests, command) };
            if at_leisure { Job { limit: LEISURE_LIMIT, ..job.at_leisure() } } else { job }
        };
        self.tests.into_iter().map(job).collect()
    }
}

/// The reason why the lab of a step cannot run; `None` if it can run. `machines` is true if the files of virtual machines are
/// available.
fn obstacle(step: Step, machines: bool) -> Option<String> {
    let lab = step.lab()?;
    let fetched = machines || !lab::boots(lab);
    lab::missing(lab).or_else(|| (!fetched).then(|| "packages of its virtual machine could not be fetched".to_owned()))
}

/// The job of a lab, which runs as a process of its own.
fn lab_job(step: Step, quarters: u32, args: &Args, own: &Path, binary: &Path) -> Job {
    let mut command = Command::new(own);
    match step {
        Step::Soak => command.args(["soak", "--short"]),
        _ => command.args(["lab", &step.name()]),
    };
    command.arg("--binary").arg(binary);
    if args.keep {
        command.arg("--keep");
    }
    // The attackers of `isolation` have the lowest priority, too. `replay` compares runs that need all processors.
    let alone = matches!(step, Step::Isolation | Step::Replay);
    Job { reads: Reads::Lab, quarters, alone, ..Job::new(step, command) }
}

/// The jobs that take cargo's lock. Those that only compile run at the lowest priority.
fn cargo_jobs(args: &Args) -> Vec<Job> {
    let job = |step: Step, name: &str, reads: Reads, words: &[&str]| {
        let mut command = cargo();
        command.args(words);
        if step == Step::Doc {
            command.env("RUSTDOCFLAGS", "-D warnings");
        }
        Job { name: name.into(), reads, cargo: true, limit: LEISURE_LIMIT, ..Job::new(step, command) }
    };
    // All packages, because some alone would have their dependencies built again with fewer features.
    let bench = ["bench", "--workspace", "--profile", "dev"];
    let benches = ["mclock", "placement", "engine", "flight", "recording"].map(|name| ["--bench", name]).concat();
    let jobs = [
        // First: it would wait for the others until the rest has ended.
        job(Step::Bench, "bench", Reads::Status, &[&bench[..], &benches[..], &["--", "--smoke"][..]].concat()),
        job(Step::Clippy, "clippy", Reads::Status, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
            .at_leisure(),
        job(Step::Doc, "doc", Reads::Status, &["doc", "--workspace", "--no-deps", "--quiet"]).at_leisure(),
        job(Step::Tests, "doc-tests", Reads::Harness, &["test", "--workspace", "--doc"]).at_leisure(),
    ];
    jobs.into_iter().filter(|job| args.wants(job.step)).collect()
}

/// The jobs that `--full` adds, which run after all others and one at a time.
fn full_jobs(args: &Args, own: &Path) -> Vec<Job> {
    let job = |step: Step, name: &str, reads: Reads, words: &[&str]| {
        let mut command = Command::new(own);
        command.args(words);
        let (name, limit) = (format!("full-{name}"), FULL_LIMIT);
        Job { name, reads, quarters: u32::MAX, limit, ..Job::new(step, command) }
    };
    let mut jobs = Vec::new();
    for (step, _) in args.labs() {
        let name = step.name();
        match step {
            // They have no longer form.
            Step::SyncFailure | Step::NbdClient => {}
            Step::Soak => jobs.push(job(step, &name, Reads::Lab, &["soak", "--minutes", "10"])),
            _ => jobs.push(job(step, &name, Reads::Lab, &["lab", &name, "--full", "--record"])),
        }
    }
    if args.wants(Step::Tests) {
        let mut harm = cargo();
        harm.args(["run", "--release", "--quiet", "--package", "evenkeel", "--", "reproduce", "harm", "--record"]);
        let name = "full-harm".to_owned();
        jobs.push(Job { name, quarters: u32::MAX, limit: FULL_LIMIT, ..Job::new(Step::Tests, harm) });
    }
    if args.wants(Step::Package) {
        jobs.push(job(Step::Package, "deb", Reads::Status, &["deb", "--check-reproducible"]));
    }
    jobs
}

fn log_dir() -> Result<PathBuf> {
    let dir = build::target_dir()?.join("xtask");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Args {
        use clap::{Args as _, FromArgMatches as _};
        let command = Args::augment_args(clap::Command::new("test"));
        Args::from_arg_matches(&command.get_matches_from([&["test"], words].concat())).unwrap()
    }

    #[test]
    fn every_lab_is_a_step_and_runs_once() {
        let mut labs: Vec<String> = LABS.iter().map(|(step, _)| step.name()).collect();
        let mut expected: Vec<String> = lab::Name::value_variants().iter().map(spelled).collect();
        expected.push(Step::Soak.name());
        labs.sort();
        expected.sort();
        assert_eq!(labs, expected);
        let steps = Step::value_variants().iter().filter(|step| step.lab().is_some() || **step == Step::Soak);
        assert_eq!(steps.count(), LABS.len());
    }

    #[test]
    fn jobs_of_a_full_run_have_names_of_their_own_and_time() {
        let jobs = full_jobs(&args(&["--full"]), Path::new("xtask"));
        let mut names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert!(names.contains(&"full-package") && names.contains(&"full-deb"));
        assert!(names.contains(&"full-harm") && names.contains(&"full-soak"));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), jobs.len());
        assert!(jobs.iter().all(|job| job.limit == FULL_LIMIT));
    }

    #[test]
    fn a_whole_full_run_is_recorded_if_asked() {
        let page = |words: &[&str]| args(words).page().map(|page| page.name);
        assert_eq!((page(&["--full", "--record"]).as_deref(), page(&["--full"])), (Some("full"), None));
        let is_refused = |words: &[&str]| {
            use clap::Args as _;
            let command = Args::augment_args(clap::Command::new("test"));
            command.try_get_matches_from([&["test"], words].concat()).is_err()
        };
        assert!(!is_refused(&["--full", "--record"]));
        assert!(is_refused(&["--record"]) && is_refused(&["--full", "--record", "--only", "fmt"]));
    }

    #[test]
    fn programs_are_wanted_for_the_wanted_steps_alone() {
        assert_eq!(args(&["--only", "fmt", "--only", "soak"]).programs(), Vec::<&str>::new());
        assert_eq!(args(&["--only", "browser"]).programs(), ["chromium"]);
        assert_eq!(args(&["--quick"]).programs(), packages::TESTS);
        assert!(args(&[]).programs().contains(&"qemu-system-x86_64"));
    }

    #[test]
    fn tests_in_virtual_time_run_at_the_lowest_priority_and_have_time() {
        let program = |name: &str| Program { name: name.into(), path: "/t/x".into(), folder: "/".into() };
        let built = Built { binary: None, tests: ["sim-all", "web", LONGEST_TEST].map(program).into() };
        let jobs: Vec<(String, u32, bool)> =
            built.tests().into_iter().map(|job| (job.name, job.quarters, job.limit == LEISURE_LIMIT)).collect();
        let expected: [(&str, u32, bool); 3] = [(LONGEST_TEST, 2, false), ("sim-all", 0, true), ("web", 4, false)];
        assert_eq!(jobs, expected.map(|(name, quarters, long)| (name.to_owned(), quarters, long)));
        for name in VIRTUAL_TIME_TESTS {
            let package = name.strip_suffix("-all").unwrap_or(name);
            let manifest = build::workspace().join("crates").join(package).join("Cargo.toml");
            let manifest = std::fs::read_to_string(manifest).unwrap();
            assert!(package == name || manifest.contains("name = \"all\""), "{name} is no test program");
        }
    }

    #[test]
    fn labs_that_need_all_processors_run_alone() {
        let alone = |step: Step| lab_job(step, 8, &args(&[]), Path::new("xtask"), Path::new("evenkeel")).alone;
        assert!(alone(Step::Isolation) && alone(Step::Replay) && !alone(Step::Iscsi));
    }

    #[test]
    fn the_benchmarks_are_cargo_s_first_job() {
        let names: Vec<String> = cargo_jobs(&args(&[])).into_iter().map(|job| job.name).collect();
        assert_eq!(names, ["bench", "clippy", "doc", "doc-tests"]);
    }

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
        assert_eq!(built.test("server-serving").as_deref(), Some(Path::new("/t/serving-1")));
        assert_eq!(built.test("server-all"), None);
    }
}
