//! `evenkeel suggest`: measures a device by reads alone, or reads a history, and prints a policy to start with.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::bail;
use evenkeel_policy::figures::{aligned, bytes, count, megabytes, ms};
use evenkeel_policy::units::Duration;
use evenkeel_web::history::Query;
use serde::Serialize;

use crate::control::Reach;
use crate::history;
use crate::output::{self, Usage};

mod judge;
mod measure;
mod past;

use judge::Suggestion;

/// Arguments of `suggest`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Block device or file to measure; without it, the history of a server or an agent is used
    #[arg(long, value_name = "PATH", conflicts_with_all = ["status", "control", "config", "data_dir", "dir", "pool"])]
    device: Option<PathBuf>,

    /// Read the history in this folder (DATA_DIR/history) instead of asking a server or an agent, which need not run
    #[arg(long, value_name = "DIR", conflicts_with_all = ["status", "control", "config", "data_dir"])]
    dir: Option<PathBuf>,

    /// Pool of the history; needed if it has several
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,

    /// Time to measure, 60s unless given; of a history the time until now, 1h unless given
    #[arg(long = "for", value_name = "TIME")]
    period: Option<Duration>,

    /// Read a device that is in use without asking
    #[arg(long)]
    yes: bool,

    /// Print figures and policy as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    reach: Reach,
}

/// Throughput and latency at one number of requests in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Cell {
    /// Size of a request; of a history the mean.
    pub(crate) size_bytes: u64,
    /// Requests in flight; of a history the nearest of 1, 4, 16 and 64.
    pub(crate) in_flight: u64,
    pub(crate) iops: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// The numbers of requests in flight that are compared.
pub(crate) const DEPTHS: [u64; 4] = [1, 4, 16, 64];

/// Prints figures and a policy to start with.
///
/// # Errors
/// A device that cannot be read or may not be, or a history that does not suffice.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let suggestion = match &args.device {
        Some(path) => of_device(path, args)?,
        None => of_history(args)?,
    };
    output::show(args.json, &suggestion, text)
}

fn of_device(path: &Path, args: &Args) -> anyhow::Result<Suggestion> {
    let period = args.period.unwrap_or(Duration::from_secs(60));
    if period < measure::SHORTEST {
        bail!(Usage(format!("--for {period} is too short; give at least {}", measure::SHORTEST)));
    }
    let target = measure::Target::open(path)?;
    if target.is_in_use() && !args.yes {
        ask(path, period)?;
    }
    output::complain(&format!("evenkeel: measuring {} by reads for {period}\n", path.display()));
    let cells = target.measure(period)?;
    let source = format!("{}, {}, by reads at random for {period}", path.display(), bytes(target.length()));
    let mut suggestion = judge::of(&source, "main", cells)?;
    suggestion.notes.extend(target.doubt());
    Ok(suggestion)
}

/// Asks on the terminal for consent to read a device that is in use.
fn ask(path: &Path, period: Duration) -> anyhow::Result<()> {
    let what = format!(
        "{} is in use, and up to {} reads in flight slow its users for {period}",
        path.display(),
        DEPTHS[DEPTHS.len() - 1]
    );
    if !io::stdin().is_terminal() {
        bail!(Usage(format!("{what}; give --yes to read it all the same")));
    }
    output::complain(&format!("{what}. Read it? [y/N] "));
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if !answer.trim_start().starts_with(['y', 'Y']) {
        bail!("{} was not read, as the answer was no", path.display());
    }
    Ok(())
}

fn of_history(args: &Args) -> anyhow::Result<Suggestion> {
    let period = args.period.unwrap_or(Duration::from_secs(3_600));
    let to = history::now() + 1;
    let from = to.saturating_sub((period.as_nanos() / 1_000_000_000).max(1));
    // Seconds: in longer steps light and heavy load are mixed.
    let query = Query { from, to, step: Some(1), pool: args.pool.clone(), tenant: Some(String::new()) };
    let past = history::fetch(args.dir.as_deref(), &args.reach, query)?;
    let pool = past::pool(&past, args.pool.as_deref())?;
    let source = format!("the history of pool {pool} over the last {period}");
    judge::of(&source, &pool, past::cells(&past, &pool))
}

/// The figures as a table, and the policy below it.
fn text(suggestion: &Suggestion) -> String {
    let head = ["size", "in flight", "IOPS", "MB/s", "p50 ms", "p99 ms"].map(str::to_owned).to_vec();
    let row = |cell: &Cell| {
        let Cell { size_bytes, in_flight, iops, bytes_per_s, p50_ms, p99_ms } = cell;
        vec![bytes(*size_bytes), in_flight.to_string(), count(*iops), megabytes(*bytes_per_s), ms(*p50_ms), ms(*p99_ms)]
    };
    let table: Vec<_> = std::iter::once(head).chain(suggestion.cells.iter().map(row)).collect();
    let notes: String = suggestion.notes.iter().map(|note| format!("note: {note}\n")).collect();
    let gap = if notes.is_empty() { "" } else { "\n" };
    format!("{}\n{notes}{gap}{}", aligned(&table, 0, usize::MAX), suggestion.policy)
}
