//! `evenkeel load URI`: a batching load generator for NBD servers.
//!
//! | module | question |
//! |---|---|
//! | [`job`] | what was asked for? |
//! | [`stream`] | which requests, in which order? |
//! | [`pace`] | when is each due? |
//! | [`content`], [`model`], [`region`] | what may each block hold? |
//! | [`mod@journal`] | what must survive a power cut? |
//! | [`connection`], [`send`], [`worker`] | sockets and threads |
//! | [`measure`], [`mod@run`], [`report`] | what came of it? |
//!
//! One thread serves a group of connections. Requests that are due together leave in one
//! send, answers are parsed in place out of one large receive, and what a batch can share
//! (clock reading, system call) it shares, so that the server is the bottleneck.

mod connection;
mod content;
pub(crate) mod job;
mod journal;
mod measure;
mod model;
mod pace;
mod region;
mod report;
mod run;
mod send;
mod stream;
mod worker;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail, ensure};
use evenkeel_policy::uri::Target;
use indicatif::{ProgressBar, ProgressStyle};

use job::{Job, JobOptions};
use journal::{Journal, Record};
pub(crate) use report::Report;
pub(crate) use run::{Extras, JobResult, run as run_jobs};

/// Options of `evenkeel load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    // As an attribute, since brackets are links in documentation.
    #[arg(
        required_unless_present = "jobs",
        help = "Export to load: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH"
    )]
    uri: Option<String>,
    /// Several jobs at once, from a TOML file of [[job]] tables
    #[arg(long, value_name = "FILE")]
    jobs: Option<PathBuf>,
    #[command(flatten)]
    options: JobOptions,
    /// Repeat the requests and the content of an earlier run [default: chosen and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
    /// Record every durable write in FILE (- is standard output)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["jobs", "check_journal"])]
    journal: Option<PathBuf>,
    /// Instead of a load, check that the export holds every write that FILE records as durable
    #[arg(long, value_name = "FILE", conflicts_with = "jobs")]
    check_journal: Option<PathBuf>,
}

/// Runs the load and prints its result.
///
/// # Errors
/// Reports a server that cannot be reached or is lost, request errors and content mismatches.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let seed = args.seed.unwrap_or_else(seed_from_time);
    let jobs = jobs(args, seed)?;
    let record = args.check_journal.as_deref().map(Record::read).transpose()?;
    let journal = match (&args.journal, jobs.as_slice()) {
        (Some(path), [job]) => Some(journal(path, job, args.json)?),
        _ => None,
    };
    // The first interrupt ends the load and prints what there is; the second ends the process.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch interrupts")?;
    }
    let extras = Extras { journal: journal.as_ref(), record: record.as_ref() };
    let progress = progress();
    let results = run_jobs(&jobs, &extras, &stop, &mut |results| progress.set_message(line(results)));
    progress.finish_and_clear();
    let results = results?;
    let report = Report::new(seed, &results);
    if let (Some(record), None) = (&record, args.json.then_some(())) {
        println!("{}", checked(record, &results));
    } else if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else if args.journal.as_deref() == Some(std::path::Path::new("-")) {
        eprint!("{}", report.text());
    } else {
        print!("{}", report.text());
    }
    let failures = report.failures();
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(())
}

/// The jobs that the arguments describe.
fn jobs(args: &Args, seed: u64) -> anyhow::Result<Vec<Job>> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let listed = match (&args.jobs, &args.uri) {
        (Some(path), uri) => job::read_file(path, uri.as_deref(), &args.options)?,
        (None, Some(uri)) => vec![("load".to_owned(), uri.parse()?, args.options.clone())],
        (None, None) => bail!("give a URI or --jobs FILE"),
    };
    let several = listed.len() > 1;
    let with_seed = |(index, (name, target, options)): (usize, (String, Target, JobOptions))| {
        // A single job uses the seed as it is, so that its content can be checked later.
        let seed = if several { content::mix(seed ^ index as u64) } else { seed };
        options.job(&name, target, seed, cores).with_context(|| format!("job `{name}`"))
    };
    listed.into_iter().enumerate().map(with_seed).collect()
}

fn journal(path: &std::path::Path, job: &Job, json: bool) -> anyhow::Result<Journal> {
    ensure!(
        !(json && path == std::path::Path::new("-")),
        "--journal - and --json would both write to standard output: give the journal a file"
    );
    ensure!(job.fua || job.flush_every.is_some(), "--journal records what becomes durable: add --fua or --flush-every");
    ensure!(
        job.trim_percent == 0 && job.zero_percent == 0,
        "--journal needs writes whose content can be recognised: leave --trim-percent and --zero-percent out"
    );
    ensure!(job.grain().is_multiple_of(content::SECTOR), "--journal needs block sizes that are multiples of 512");
    Journal::create(path, job.seed, job.grain())
}

fn checked(record: &Record, results: &[JobResult]) -> String {
    let bytes: u64 = results.iter().map(JobResult::verified_bytes).sum();
    let lost = results.iter().find_map(JobResult::failure);
    let lines = record.floors.len();
    match lost {
        Some(failure) => format!("checked {bytes} bytes against {lines} journal entries: {failure}"),
        None => format!("checked {bytes} bytes against {lines} journal entries: all there"),
    }
}

/// A seed that differs between runs.
fn seed_from_time() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // 32 bits are easier to type again.
    content::mix(now.as_nanos() as u64 ^ u64::from(std::process::id())) >> 32
}

/// A line on the terminal; nothing where standard error is none.
fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{elapsed:>4}  {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    bar
}

/// The last second of each job.
fn line(results: &[JobResult]) -> String {
    let job = |result: &JobResult| {
        let name = result.name();
        match result.seconds.last() {
            None => format!("{name}: ..."),
            Some(second) => format!(
                "{name}: {} IOPS {:.1} MB/s p50 {:.3} ms p99 {:.3} ms{}",
                second.requests,
                second.bytes as f64 / 1e6,
                second.p50_ns as f64 / 1e6,
                second.p99_ns as f64 / 1e6,
                if second.errors > 0 { format!(" {} errors", second.errors) } else { String::new() },
            ),
        }
    };
    results.iter().map(job).collect::<Vec<_>>().join(" | ")
}
