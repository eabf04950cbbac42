//! `evenkeel sim SCENARIO.toml`: simulates the controllers on a modelled device, in virtual time.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use evenkeel_sim::sweep::{self, Choice, Outcome, Plan, Sweep};

use crate::control::whole;
use crate::output;
use crate::parallel::{self, INTERRUPTED, Stopped};

/// Environment variable with the folder in which a trace is searched if it is not in the scenario's folder.
const TRACES: &str = "EVENKEEL_TRACES";
/// Exit status for an invalid scenario; the parser of the command line uses the same one.
const BAD_INPUT: u8 = 2;

/// Options of `evenkeel sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The scenario; - is standard input
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// Override a value of the scenario by its dotted key: pool.tuning.admission=none, client.0.workload.queue_depth=8
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Run the scenario with each of these values; several sweeps are combined
    #[arg(long = "sweep", value_name = "KEY=A,B,...")]
    sweeps: Vec<Sweep>,
    /// Run so many seeds, each one greater than the one before, and show means with 95 % confidence intervals
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    seeds: Option<u32>,
    /// The first seed
    #[arg(long, value_name = "N", value_parser = whole::<u64>)]
    seed: Option<u64>,
    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
    /// Also write the result as one HTML page with plots
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Runs at the same time [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
}

/// Runs the scenario and prints the results. The exit status is 0 if every bound of the scenario is met, 1 if one is missed, 2
/// for invalid input, and 130 after an interrupt.
pub(crate) fn run(args: &Args) -> ExitCode {
    match simulate(args) {
        Ok(outcome) if outcome.met() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            output::complain(&format!("evenkeel: {error:#}\n"));
            match error.downcast_ref::<Stopped>() {
                Some(Stopped::Interrupted { .. }) => ExitCode::from(INTERRUPTED),
                _ => ExitCode::from(BAD_INPUT),
            }
        }
    }
}

fn simulate(args: &Args) -> anyhow::Result<Outcome> {
    let (text, origin) = read(&args.scenario)?;
    let choice = Choice { set: &args.set, sweeps: &args.sweeps, seeds: args.seeds, seed: args.seed };
    let warn = &mut |warning: &_| output::complain(&format!("evenkeel: warning: {warning}\n"));
    let plan = Plan::new(&choice, &text, &origin, &mut |name| open(&args.scenario, name), warn)?;
    let _prepared = args.report.as_deref().map(output::prepare).transpose()?;
    let stop = parallel::interrupts()?;
    let threads = args.jobs.map_or_else(parallel::cores, usize::from);
    let runs = plan.runs();
    let keep = |place, run| plan.keep(place, run, args.report.is_some());
    let kept = parallel::simulate(&runs, threads, &stop, keep).map_err(|stopped| match stopped {
        Stopped::Failed { place, failure } => anyhow!("{}: {failure}", plan.name(place)),
        stopped @ Stopped::Interrupted { .. } => stopped.into(),
    })?;
    let outcome = Outcome::new(&plan, kept);
    output::show(args.json, &outcome, |outcome| sweep::text(&plan, outcome))?;
    if let Some(path) = &args.report {
        let page = sweep::page(&plan, &outcome, &text, output::command());
        std::fs::write(path, page.html()).with_context(|| output::cannot_write(path))?;
    }
    Ok(outcome)
}

/// Reads the scenario from a file or, for `-`, from standard input. Returns its text, and its name for messages.
fn read(path: &Path) -> anyhow::Result<(String, String)> {
    if path == Path::new("-") {
        let text = io::read_to_string(io::stdin()).context("cannot read the scenario from standard input")?;
        return Ok((text, "standard input".into()));
    }
    let origin = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the scenario {origin}"))?;
    Ok((text, origin))
}

/// Opens the trace `name`: by its path if that is absolute, else in the scenario's folder, else in the folder that the variable
/// `EVENKEEL_TRACES` names.
fn open(scenario: &Path, name: &str) -> io::Result<Box<dyn BufRead>> {
    let beside = scenario.parent().unwrap_or(Path::new("")).join(name);
    let file = match (File::open(&beside), std::env::var_os(TRACES)) {
        (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
            File::open(Path::new(&folder).join(name))
        }
        (file, _) => file,
    };
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            error.kind(),
            format!("trace not found: put it at {}, or set the variable {TRACES} to its folder", beside.display()),
        ),
        _ => error,
    };
    Ok(Box::new(BufReader::new(file.map_err(explain)?)))
}
