//! The jobs that `cargo xtask test` runs at the same time. A job is a program, with the number of processors that it needs and
//! the way in which its results are counted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_labs::base::process;
use evenkeel_labs::base::scratch::Scratch;
use evenkeel_labs::base::tally::{Harness, Lines, Tally};

use super::Step;

/// Time limit of a job, after which a hanging job is ended: three times that of the longest one at normal priority, a lab with
/// some 550 s on two slow cores.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Number of lines at the end of a failed job's output that are shown; the job's log file has all lines.
const SHOWN_LINES: usize = 200;
/// Number of quarters of a processor that jobs may take in excess of the machine's processors, because jobs that mostly wait
/// leave theirs idle.
const SHARED_QUARTERS: u32 = 2;

/// The way in which the results of a job are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// The job is one check, judged by its exit status.
    Status,
    /// Checks are counted from the summary lines of test programs.
    Harness,
    /// Checks are counted from a lab's output, which has one line for each check.
    Lab,
}

/// A program to run, and the resources that it takes.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) step: Step,
    /// Name of the job's log file, and of its failure in the report.
    pub(super) name: String,
    pub(super) command: Command,
    pub(super) reads: Reads,
    /// Number of quarters of a processor that the job takes; a lab mostly waits, or emulates one or two processors.
    pub(super) quarters: u32,
    /// True if the job takes cargo's lock; only one such job runs at a time.
    pub(super) cargo: bool,
    /// True if no other job may run beside the job, not even one at the lowest priority.
    pub(super) alone: bool,
    /// Time limit of the job, after which it is ended and counts as failed.
    pub(super) limit: Duration,
}

/// The outcome of a job.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) step: Step,
    pub(super) name: String,
    pub(super) tally: Tally,
    pub(super) wall: Duration,
    /// User plus system CPU time of all ended processes of the job.
    pub(super) processor: Duration,
}

impl Job {
    /// A job that takes one processor and is judged by its exit status.
    pub(super) fn new(step: Step, command: Command) -> Self {
        let name = step.name();
        Self { step, name, command, reads: Reads::Status, quarters: 4, cargo: false, alone: false, limit: LIMIT }
    }

    /// The job, changed to run at the lowest priority (SCHED_IDLE), so that it takes no CPU time from other jobs.
    pub(super) fn at_leisure(self) -> Self {
        let mut command = Command::new("chrt");
        command.args(["--idle", "0"]).arg(self.command.get_program()).args(self.command.get_args());
        for (key, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        if let Some(folder) = self.command.get_current_dir() {
            command.current_dir(folder);
        }
        Self { command, quarters: 0, ..self }
    }

    /// Outcome of a job that cannot run, for this reason.
    pub(super) fn skipped(self, reason: String) -> Outcome {
        let tally = Tally::one_skipped(&self.name, reason);
        Outcome { step: self.step, name: self.name, tally, wall: Duration::ZERO, processor: Duration::ZERO }
    }

    /// Runs the job to its end. Its output goes to `LOGS/NAME.log`; the last lines are shown if it fails.
    pub(super) fn run(self, logs: &Path) -> Outcome {
        self.run_and(logs, |_| false)
    }

    /// As [`Job::run`]; lines of output for which `takes` returns true are neither counted nor logged.
    pub(super) fn run_and(mut self, logs: &Path, takes: impl FnMut(&str) -> bool) -> Outcome {
        let (begun, mut processor) = (Instant::now(), Duration::ZERO);
        let tally = self.count(logs, takes, &mut processor).unwrap_or_else(|e| {
            println!("{}: {e:#}", self.name);
            Tally::one_failed(&self.name)
        });
        Outcome { step: self.step, name: self.name, tally, wall: begun.elapsed(), processor }
    }

    fn count(&mut self, logs: &Path, mut takes: impl FnMut(&str) -> bool, processor: &mut Duration) -> Result<Tally> {
        let scratch = Scratch::new("job")?;
        let skip_log = scratch.path().join("skipped");
        self.command.env("EVENKEEL_SKIP_LOG", &skip_log);
        if self.reads == Reads::Harness {
            // What a killed test leaves behind goes with the job. Labs remove their own, or keep it.
            self.command.env("TMPDIR", scratch.path());
        }
        let mut output = Output { path: logs.join(format!("{}.log", self.name)), text: String::new() };
        let (mut harness, mut lab) = (Harness::of(&self.name), Lines::default());
        let ended = process::stream(&mut self.command, self.limit, |line| {
            if takes(line) {
                return;
            }
            match self.reads {
                Reads::Status => {}
                Reads::Harness => harness.line(line),
                Reads::Lab => lab.line(line),
            }
            output.line(line);
        });
        let (status, used) = match ended {
            Ok(ended) => ended,
            Err(e) => {
                output.save(false)?;
                return Err(e);
            }
        };
        *processor = used;
        output.save(status.success())?;
        let mut tally = match self.reads {
            Reads::Status if status.success() => Tally::one_passed(),
            Reads::Status => Tally::one_failed(&self.name),
            Reads::Harness => harness.finish(status.success()),
            Reads::Lab => lab.finish(&self.name, status.success()),
        };
        tally.apply_skip_log(&self.name, &std::fs::read_to_string(&skip_log).unwrap_or_default());
        Ok(tally)
    }
}

/// The output of a job: all of it goes to a log file; the last lines are printed only if the job failed.
#[derive(Debug)]
struct Output {
    path: PathBuf,
    text: String,
}

impl Output {
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
            let mut text = format!("last {shown} of {} lines of {}:\n", lines.len(), self.path.display());
            lines[lines.len() - shown..].iter().for_each(|line| text += &format!("  | {line}\n"));
            // In one piece, because other jobs print as well.
            print!("{text}");
        }
        std::fs::write(&self.path, &self.text).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The waiting jobs, the number of running jobs, and the resources that these have not taken: `free` quarters of a processor,
/// and cargo's lock.
#[derive(Debug)]
struct Queue {
    waiting: Vec<Job>,
    running: usize,
    free: u32,
    cargo: bool,
    /// True while a job runs beside which no other job may run.
    alone: bool,
}

impl Queue {
    fn new(waiting: Vec<Job>, free: u32) -> Self {
        Self { waiting, running: 0, free, cargo: false, alone: false }
    }

    /// Takes the first waiting job that fits into the free resources. `all` is the total number of quarters of a processor.
    fn take(&mut self, all: u32) -> Option<Job> {
        let may_start = |job: &Job| !self.alone && (self.running == 0 || !job.alone);
        let fits = |job: &Job| job.quarters.min(all) <= self.free && !(job.cargo && self.cargo) && may_start(job);
        let job = self.waiting.remove(self.waiting.iter().position(fits)?);
        self.running += 1;
        self.free -= job.quarters.min(all);
        self.cargo |= job.cargo;
        self.alone = job.alone;
        Some(job)
    }
}

/// The resources that a running job has taken. They return to the queue when the value is dropped, even by a panic.
struct Taken<'a> {
    queue: &'a Mutex<Queue>,
    changed: &'a Condvar,
    quarters: u32,
    cargo: bool,
    alone: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.running -= 1;
        queue.free += self.quarters;
        queue.cargo &= !self.cargo;
        queue.alone &= !self.alone;
        drop(queue);
        self.changed.notify_all();
    }
}

/// Runs the jobs at the same time on `processors` processors, earlier ones first. Calls `ended` with each outcome.
pub(super) fn run(jobs: Vec<Job>, processors: usize, logs: &Path, ended: impl Fn(Outcome) + Sync) {
    let all = 4 * processors as u32 + SHARED_QUARTERS;
    // More threads than processors: jobs at the lowest priority take a thread each, and no processor.
    let threads = jobs.len().min(4 * processors + 4);
    let queue = Mutex::new(Queue::new(jobs, all));
    let changed = Condvar::new();
    let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || {
        let mut queue = lock();
        loop {
            if queue.waiting.is_empty() {
                return None;
            }
            if let Some(job) = queue.take(all) {
                return Some(job);
            }
            queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let (quarters, cargo, alone) = (job.quarters.min(all), job.cargo, job.alone);
                    let _taken = Taken { queue: &queue, changed: &changed, quarters, cargo, alone };
                    ended(job.run(logs));
                }
                changed.notify_all();
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::skip::skip;
    use super::*;

    fn job(name: &str, quarters: u32, cargo: bool) -> Job {
        let name = name.to_owned();
        Job { name, quarters, cargo, ..Job::new(Step::Tests, Command::new("true")) }
    }

    #[test]
    fn a_job_waits_for_processors_and_for_cargo_and_keeps_no_other_waiting() {
        let waiting = vec![
            job("clippy", 4, true),
            job("doc", 2, true),
            job("two", 8, false),
            job("one", 4, false),
            job("x", 1, false),
        ];
        let mut queue = Queue::new(waiting, 8);
        let taken: Vec<String> = std::iter::from_fn(|| queue.take(8)).map(|job| job.name).collect();
        assert_eq!((taken, queue.free), (vec!["clippy".to_owned(), "one".to_owned()], 0));
        (queue.free, queue.cargo) = (8, false);
        let taken: Vec<String> = std::iter::from_fn(|| queue.take(8)).map(|job| job.name).collect();
        assert_eq!(taken, ["doc", "x"]);
    }

    #[test]
    fn a_job_alone_waits_until_no_other_runs_and_keeps_all_others_waiting() {
        let alone = Job { alone: true, ..job("alone", 4, false) };
        let mut queue = Queue::new(vec![job("before", 4, false), alone, job("leisure", 0, false)], 8);
        let taken: Vec<String> = std::iter::from_fn(|| queue.take(8)).map(|job| job.name).collect();
        assert_eq!(taken, ["before", "leisure"]);
        (queue.free, queue.running) = (8, 0);
        queue.waiting.push(job("after", 0, false));
        let taken: Vec<String> = std::iter::from_fn(|| queue.take(8)).map(|job| job.name).collect();
        assert_eq!((taken, queue.waiting.len()), (vec!["alone".to_owned()], 1));
    }

    #[test]
    fn a_job_at_leisure_has_the_lowest_priority_and_is_otherwise_the_same() {
        let logs = Scratch::new("leisure").unwrap();
        let mut job = job("policy", 4, true);
        let script = "[ $VALUE = 3 ] && [ $PWD = / ] && awk '{ exit $41 != 5 }' /proc/self/stat";
        job.command = Command::new("sh");
        job.command.args(["-c", script]).env("VALUE", "3").current_dir("/");
        let job = job.at_leisure();
        assert!(job.quarters == 0 && job.cargo);
        assert_eq!(job.run(logs.path()).tally, Tally::one_passed());
    }

    #[test]
    fn a_job_that_panics_keeps_no_other_waiting() {
        let logs = Scratch::new("panic").unwrap();
        let jobs = (0..6).map(|i| job(&format!("job-{i}"), 8, true)).collect();
        let ended = std::sync::atomic::AtomicUsize::new(0);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(jobs, 2, logs.path(), |outcome| {
                ended.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                assert_ne!(outcome.name, "job-1");
            });
        }));
        assert!(ran.is_err() && ended.into_inner() == 6);
    }

    /// Runs this test program as a job in which only this test runs, and skips.
    #[test]
    fn a_test_that_cannot_run_is_skipped_by_its_name_and_its_files_are_removed() {
        let (own, folder) =
            ("test::job::tests::a_test_that_cannot_run_is_skipped_by_its_name_and_its_files_are_removed", "TMPDIR=");
        if std::env::var_os("AS_A_JOB").is_some() {
            println!("\n{folder}{}", Scratch::new("left").unwrap().path().parent().unwrap().display());
            return skip("as asked");
        }
        let logs = Scratch::new("t").unwrap();
        let mut job = Job { reads: Reads::Harness, ..job("x", 1, false) };
        job.command = Command::new(std::env::current_exe().unwrap());
        job.command.args(["--exact", own, "--nocapture"]).env("AS_A_JOB", "1");
        let mut folders = Vec::new();
        let outcome = job.run_and(logs.path(), |line| {
            folders.extend(line.strip_prefix(folder).map(PathBuf::from));
            false
        });
        assert_eq!(outcome.tally, Tally::one_skipped(format!("x {own}"), "as asked"));
        assert!(folders.len() == 1 && !folders[0].exists(), "{folders:?}");
    }

    #[test]
    fn all_jobs_run_once_and_a_failure_is_one_by_name() {
        let logs = Scratch::new("jobs").unwrap();
        let mut jobs: Vec<Job> = (0..20).map(|i| job(&format!("job-{i}"), 1 + i % 12, i % 3 == 0)).collect();
        jobs[7].command = Command::new("false");
        jobs[4].alone = true;
        let ended = Mutex::new(Vec::new());
        run(jobs, 2, logs.path(), |outcome| ended.lock().unwrap().push((outcome.name, outcome.tally)));
        let ended = ended.into_inner().unwrap();
        assert_eq!(ended.len(), 20);
        let failed: Vec<_> = ended.iter().filter(|(_, tally)| !tally.failed.is_empty()).collect();
        assert_eq!(failed, [&("job-7".to_owned(), Tally::one_failed("job-7"))]);
        assert!(ended.iter().all(|(_, tally)| tally.passed as usize + tally.failed.len() == 1));
    }
}
