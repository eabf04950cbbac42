//! `evenkeel load URI`: runs the load generator of the crate `evenkeel-load` and prints its results.

use std::path::PathBuf;

use crate::control::whole;
use crate::output::{self, Usage};
use crate::parallel;
use anyhow::{Error, bail, ensure};
use evenkeel_load::{
    Extras, Job, JobOptions, Journal, Record, Report, check_result, jobs, progress_line, seed_from_time,
};
use evenkeel_policy::units::UnitError;
use evenkeel_policy::uri::Target;

/// Options of `evenkeel load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    // As an attribute, since brackets are links in documentation.
    #[arg(
        value_parser = export,
        help = "Export to load: nbd[s]://HOST[:PORT]/EXPORT or nbd[s]+unix:///EXPORT?socket=PATH"
    )]
    uri: Option<String>,
    /// Several jobs at once, from a TOML file of `[[job]]` tables
    #[arg(long, value_name = "FILE")]
    jobs: Option<PathBuf>,
    #[command(flatten)]
    options: JobOptions,
    /// Seed of an earlier run, to repeat its requests and content [default: chosen and printed]
    #[arg(long, value_name = "N", value_parser = whole::<u64>)]
    seed: Option<u64>,
    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
    /// Record every durable write in FILE (- is standard output)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["jobs", "check_journal"])]
    journal: Option<PathBuf>,
    /// Instead of a load, check that the export holds every write that FILE records as durable
    #[arg(long, value_name = "FILE", conflicts_with_all = ["jobs", "fill", "connections", "threads"])]
    check_journal: Option<PathBuf>,
}

/// Checks that `text` is the URI of an NBD export, and returns it unchanged.
fn export(text: &str) -> Result<String, UnitError> {
    text.parse::<Target>().map(|_| text.to_owned())
}

/// Runs the load and prints its result.
///
/// # Errors
/// When a server cannot be reached or is lost, requests fail, or content is wrong.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let seed = args.seed.unwrap_or_else(seed_from_time);
    let jobs = jobs(args.jobs.as_deref(), args.uri.as_deref(), &args.options, seed).map_err(judged)?;
    let record = args.check_journal.as_deref().map(Record::read).transpose()?;
    let journal = match (&args.journal, jobs.as_slice()) {
        (Some(path), [job]) => Some(journal(path, job, args.json)?),
        _ => None,
    };
    // The first interrupt ends the load and prints what there is; the second ends the process.
    let stop = parallel::interrupts()?;
    let extras = Extras { journal: journal.as_ref(), record: record.as_ref() };
    let progress = output::spinner("{elapsed:>4}  {msg}");
    let results =
        evenkeel_load::run(&jobs, &extras, &stop, &mut |results| progress.set_message(progress_line(results)));
    progress.finish_and_clear();
    let results = results?;
    let report = Report::new(seed, &results);
    if let (Some(record), None) = (&record, args.json.then_some(())) {
        output::print(&format!("{}\n", check_result(record, &results)))?;
    } else if args.json {
        output::print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else if args.journal.as_deref() == Some(std::path::Path::new("-")) {
        output::complain(&report.text());
    } else {
        output::print(&report.text())?;
    }
    let failures = report.failures();
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(())
}

fn journal(path: &std::path::Path, job: &Job, json: bool) -> anyhow::Result<Journal> {
    ensure!(
        !(json && path == std::path::Path::new("-")),
        Usage("--journal - and --json would both write to standard output: give the journal a file".into())
    );
    Journal::of(job, path).map_err(judged)
}

/// The error for the exit status: an error in the job's options counts as a wrong command line ([`Usage`]).
fn judged(error: evenkeel_load::Error) -> Error {
    let is_of_options = error.is_of_options();
    let error = Error::from(error);
    if is_of_options { Usage(format!("{error:#}")).into() } else { error }
}
