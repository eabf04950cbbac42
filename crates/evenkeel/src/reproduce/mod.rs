//! `evenkeel reproduce`: repeats the papers' experiments in virtual time, with Evenkeel's methods beside those of the papers.

mod chosen;
mod harm;
mod longest;
mod record;
#[cfg(test)]
mod tests;
mod traces;
mod tuned;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use evenkeel_policy::figures::counted;
use evenkeel_record::Origin;
use evenkeel_sim::experiment::harm::constants;
use evenkeel_sim::experiment::harm::sets::Sets;
use evenkeel_sim::experiment::{self, Digest, Options, Report, bufferbloat, drg, iscsi, messenger, saat, totals};
use evenkeel_sim::report;
use evenkeel_sim::world::Setup;

use self::chosen::Chosen;
use crate::control::whole;
use crate::output::{self, Usage};
use crate::parallel::{self, INTERRUPTED, Stopped};

/// A paper's experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Admission control: the SlowFast CoDel paper, and every method against the best fixed budget
    Bufferbloat,
    /// Latency of a shared iSCSI target: the packet-delay paper, latency targets against bursts of writers
    Iscsi,
    /// Guaranteed throughput on a cached device: the SAAT paper, fourteen groups
    Saat,
    /// Connections of a storage cluster on worker threads: the Ceph messenger paper, every placement against round robin
    Messenger,
    /// Latency targets of hosts that share an array: the DRG paper, four workloads and two sets of targets
    Drg,
    /// One reservation and limit of a tenant over a cluster: parts by demand against a central scheduler
    Totals,
    /// First, do no harm: each controller against none, on devices and loads drawn at random
    Harm,
}

/// Arguments of `evenkeel reproduce`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The experiment
    experiment: Chosen,
    /// Seed; the same seed gives the same figures on every machine. Without it 1; for harm the seed that follows from the
    /// controllers' source and defaults, so that a changed controller is judged on new cases
    #[arg(long, value_name = "N", value_parser = seed)]
    seed: Option<u64>,
    /// Fewer seeds and shorter runs: the same cases in about a tenth of the time
    #[arg(long)]
    quick: bool,
    /// Seeds of each case and method; without it as many as docs/results/PROTOCOL.md says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: Option<u16>,
    /// In a checkout of Evenkeel: tune the baselines of iscsi, saat, messenger or drg on the training set, and write the best
    /// values into docs/results/tuned, from where later runs of the experiment take them
    #[arg(long, conflicts_with_all = ["quick", "json", "report", "traces", "record", "seeds"])]
    tune: bool,
    /// Print the rows as JSON; with all one document per line
    #[arg(long)]
    json: bool,
    /// Write an HTML page with plots, which loads nothing else
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Recorded traces, or folders of them, that are replayed in place of generated load: for saat MSR Cambridge files
    /// (usr_0.csv), for drg files whose names begin with web or wsrch, and with tpcc
    #[arg(long, value_name = "PATH")]
    traces: Vec<PathBuf>,
    /// Runs at a time; one for each core if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// In a checkout of Evenkeel: write the figures, with command, seed, date, commit and machine, into the
    /// experiment's section of docs/results/papers.md. For harm: add this run to the record of drawn sets
    #[arg(long, conflicts_with = "traces")]
    record: bool,
    #[command(flatten)]
    harm: harm::HarmArgs,
}

/// Parses a seed, which must be less than 2^48.
fn seed(text: &str) -> Result<u64, String> {
    let seed = whole::<u64>(text)?;
    if seed < (1 << 48) { Ok(seed) } else { Err("is too large; use less than 2^48".into()) }
}

/// Runs an experiment and prints its results. The exit status does not depend on the figures.
pub(crate) fn run(args: &Args) -> ExitCode {
    match show(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("evenkeel: {error:#}\n"));
            let interrupted =
                matches!(error.downcast_ref(), Some(Stopped::Interrupted { .. })) || error.is::<Partial>();
            match interrupted {
                true => ExitCode::from(INTERRUPTED),
                false if error.is::<Usage>() => ExitCode::from(2),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn show(args: &Args) -> anyhow::Result<()> {
    let experiments = args.experiment.experiments();
    let (is_all, is_harm) = (args.experiment == Chosen::All, args.experiment == Chosen::One(Experiment::Harm));
    let has_harm = experiments.contains(&Experiment::Harm);
    if let Some(option) = args.harm.given().filter(|_| !is_harm) {
        bail!(Usage(format!("{option} is for harm: other experiments draw no cases")));
    }
    ensure!(
        !(has_harm && args.record && args.seed.is_some()),
        Usage("--record of harm takes no --seed: the record is of sets whose seed follows from the constants".into())
    );
    ensure!(
        !is_harm || args.seeds.is_none(),
        Usage("--seeds is for other experiments: harm judges --cases, each with its own seeds".into())
    );
    if args.tune {
        let Chosen::One(experiment) = args.experiment else {
            bail!(Usage("--tune is for one experiment at a time: tune each by its name, then run all".into()));
        };
        return tuned::tune(args, experiment);
    }
    ensure!(
        args.traces.is_empty() || [Experiment::Saat, Experiment::Drg].map(Chosen::One).contains(&args.experiment),
        Usage("--traces is for saat and drg: the tenants of other experiments are not recorded".into())
    );
    ensure!(
        !is_all || args.report.is_none(),
        Usage("--report is for one experiment: write the page of each by its name".into())
    );
    let _prepared = args.report.as_deref().map(output::prepare).transpose()?;
    // All that is read is checked before hours of work.
    for &experiment in &experiments {
        tuned::read(experiment).map(drop)?;
    }
    if has_harm {
        args.harm.read(args.seed.is_none()).map(drop)?;
    }
    let origin = args.record.then(record::origin).transpose()?;
    let stop = parallel::interrupts()?;
    chosen::in_turn(&experiments, |experiment| one(args, experiment, origin.as_ref(), &stop))
}

/// Runs one experiment and prints its results. `origin`: date, commit and machine, if the results are recorded.
fn one(args: &Args, experiment: Experiment, origin: Option<&Origin>, stop: &AtomicBool) -> anyhow::Result<()> {
    let is_harm = experiment == Experiment::Harm;
    let mut sets = is_harm.then(|| args.harm.read(args.seed.is_none())).transpose()?;
    let begun = Instant::now();
    let report = reproduce(args, experiment, stop)?;
    if let (Some(sets), Some(origin)) = (sets.as_mut(), origin) {
        args.harm.add(sets, &report, origin)?;
    }
    let took = format!("{:.0} s on {}", begun.elapsed().as_secs_f64(), counted(threads(args) as u64, "thread"));
    if let Some(origin) = origin.filter(|_| !is_harm) {
        let (seed, quick, took) = (report.seed, args.quick, took.clone());
        let section = record::Section { experiment, seed, quick, seeds: args.seeds, took };
        record::write(&section, origin, &report::text(&report))?;
    }
    if let Some(path) = &args.report {
        let html = report::page(&report, args.quick, args.seeds.map(usize::from)).html();
        std::fs::write(path, html).with_context(|| output::cannot_write(path))?;
    }
    let (constants, used) = (sets.as_ref().map(|sets| sets.constants.as_str()), sets.as_ref().and_then(Sets::used));
    let document = report::document(&report, constants, used);
    let text = || {
        let mut text = report::text(&report);
        text += &format!("\n{took}, seed {}.\n", report.seed);
        if let Some(sets) = &sets {
            text += &(sets.words(&args.harm.sets.display().to_string()) + "\n");
        }
        if let Some(path) = &args.report {
            text += &format!("Plots: {}\n", path.display());
        }
        if args.record && !is_harm {
            text += &format!("Recorded: {}\n", record::FILE);
        }
        text
    };
    match args.experiment {
        Chosen::All if args.json => output::print(&(serde_json::to_string(&document)? + "\n"))?,
        Chosen::All => output::print(&format!("\nevenkeel reproduce {}\n{}", record::name(experiment), text()))?,
        Chosen::One(_) => output::show(args.json, &document, |_| text())?,
    }
    if stop.load(Ordering::Relaxed) { Err(Partial.into()) } else { Ok(()) }
}

/// The error of an interrupted run that has printed figures of the cases that were finished at the interrupt.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: the figures are about the cases that were judged until then")]
struct Partial;

fn threads(args: &Args) -> usize {
    args.jobs.map_or_else(parallel::cores, usize::from)
}

fn reproduce(args: &Args, experiment: Experiment, stop: &AtomicBool) -> anyhow::Result<Report> {
    let is_harm = experiment == Experiment::Harm;
    let usual = if is_harm { constants::seed(constants::hash()) } else { 1 };
    let options = Options {
        seed: args.seed.unwrap_or(usual),
        quick: args.quick,
        seeds: args.seeds.filter(|_| !is_harm).map(usize::from),
        tuned: tuned::read(experiment)?,
    };
    let mut pace = longest::Pace::default();
    let mut execute = |name: &str, runs: &[(Setup, u64)]| -> Result<Vec<Digest>, Stopped> {
        if stop.load(Ordering::Relaxed) {
            return Err(Stopped::Interrupted { done: 0, of: runs.len() });
        }
        let order = pace.order(runs);
        let sorted: Vec<(&Setup, u64)> = order.iter().map(|&place| (&runs[place].0, runs[place].1)).collect();
        let begun = Instant::now();
        let made = parallel::simulate(&sorted, threads(args), stop, |_, run| (run.events, Digest::of(run)))
            .map_err(|stopped| longest::before_order(stopped, &order))?;
        tracing::debug!("{name}: {} runs in {:.1} s", runs.len(), begun.elapsed().as_secs_f64());
        let mut digests: Vec<Option<Digest>> = runs.iter().map(|_| None).collect();
        for (&place, (events, digest)) in order.iter().zip(made) {
            pace.learn(&runs[place].0, events);
            digests[place] = Some(digest);
        }
        Ok(digests.into_iter().flatten().collect())
    };
    let execute: &mut experiment::Execute<'_, Stopped> = &mut execute;
    Ok(match experiment {
        Experiment::Bufferbloat => bufferbloat::run(&options, execute)?,
        Experiment::Harm => harm::run(&options, &args.harm, threads(args), stop)?,
        Experiment::Iscsi => {
            iscsi::run(&options, &mut |name, runs| each(args, stop, name, runs, iscsi::world::simulate))?
        }
        Experiment::Saat => saat::run(&options, &traces::read(&args.traces)?, &mut |name, runs| {
            each(args, stop, name, runs, saat::run::simulate)
        })?,
        Experiment::Messenger => {
            messenger::run(&options, &mut |name, runs| each(args, stop, name, runs, messenger::world::simulate))?
        }
        Experiment::Drg => drg::run(&options, &traces::of_drg(&args.traces)?, &mut |name, runs| {
            each(args, stop, name, runs, drg::world::simulate)
        })?,
        Experiment::Totals => totals::run(&options, &mut |name, runs| {
            each(args, stop, name, runs, |setup, seed| totals::world::timed(setup, seed, &processor_ns))
        })?,
    })
}

/// Processor time that this thread has used, in nanoseconds.
fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs `simulate` on each setup with its seed, on all threads; returns the outcomes in the order of `runs`.
fn each<S: Sync, O: Send>(
    args: &Args,
    stop: &AtomicBool,
    name: &str,
    runs: &[(S, u64)],
    simulate: impl Fn(&S, u64) -> Result<O, String> + Sync,
) -> anyhow::Result<Vec<O>> {
    let begun = Instant::now();
    let outcomes = parallel::each(runs, threads(args), stop, |(setup, seed)| simulate(setup, *seed));
    tracing::debug!("{name}: {} runs in {:.1} s", runs.len(), begun.elapsed().as_secs_f64());
    outcomes
}
