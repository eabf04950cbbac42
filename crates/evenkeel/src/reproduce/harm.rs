//! `evenkeel reproduce harm`: judges the chosen controllers on randomly drawn cases. Each thread judges one case at a time; an
//! interrupt ends the work.

use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, anyhow};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use evenkeel_record::Origin;
use evenkeel_sim::experiment::harm::sets::Sets;
use evenkeel_sim::experiment::harm::{self, Controller, Plan, SET};
use evenkeel_sim::experiment::{Digest, Options, Report};
use evenkeel_sim::world::{self, Failure, Setup};

use crate::{output, parallel};

/// Upper bound on the lines of progress for each controller if standard error is no terminal.
const LINES: usize = 20;

/// Arguments for this experiment alone.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Options for harm")]
pub(super) struct HarmArgs {
    /// Cases of each controller; without it 1,000 of admission and 200 of each other, with --quick 60 and 24
    #[arg(long, value_name = "N", conflicts_with = "quick", value_parser = clap::value_parser!(u64).range(1..=SET))]
    cases: Option<u64>,
    /// Judge this controller alone; may be repeated
    #[arg(long, value_name = "CONTROLLER", value_parser = controller())]
    controller: Vec<Controller>,
    /// Shrink each case of admission control that the default harms, and write it into this folder as a scenario,
    /// case-SEED.toml, for evenkeel sim: its bounds are what no control gives, so it fails until the harm is mended. Takes some
    /// minutes for each
    #[arg(long, value_name = "DIR")]
    write_failures: Option<PathBuf>,
    /// The record of drawn sets, which says how many were used
    #[arg(long, value_name = "FILE", default_value = "docs/results/harm-sets.md")]
    pub(super) sets: PathBuf,
}

impl HarmArgs {
    /// Name of the first option that was given among those for harm alone, so that other experiments can refuse it.
    pub(super) fn given(&self) -> Option<&'static str> {
        let given = [
            (self.cases.is_some(), "--cases"),
            (!self.controller.is_empty(), "--controller"),
            (self.write_failures.is_some(), "--write-failures"),
        ];
        given.into_iter().find_map(|(given, name)| given.then_some(name))
    }

    /// Reads the record of drawn sets, whose file may be missing. `drawn`: true if the seed of this run follows from the
    /// controllers' constants, false if `--seed` gave it.
    pub(super) fn read(&self, drawn: bool) -> anyhow::Result<Sets> {
        let path = self.sets.display();
        let text = match std::fs::read_to_string(&self.sets) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => Some(text.with_context(|| format!("cannot read {path}"))?),
        };
        Sets::read(text, drawn).map_err(|why| anyhow!("{path} {why}"))
    }

    /// Adds the run with this report to the record of drawn sets, and writes the file.
    pub(super) fn add(&self, sets: &mut Sets, report: &Report, origin: &Origin) -> anyhow::Result<()> {
        let origin = [origin.date.as_str(), origin.commit.as_str(), origin.machine.as_str()];
        std::fs::write(&self.sets, sets.record(report, origin)).with_context(|| {
            format!("cannot write {}; with --sets name a file in a folder that exists", self.sets.display())
        })
    }

    fn plan(&self) -> Plan {
        let wanted = |controller: &Controller| self.controller.is_empty() || self.controller.contains(controller);
        Plan { controllers: Controller::ALL.into_iter().filter(wanted).collect(), cases: self.cases }
    }
}

/// A parser for the option `--controller`: names as in results, with hyphens in place of spaces.
fn controller() -> impl TypedValueParser<Value = Controller> {
    const NAMES: [(&str, &str); Controller::ALL.len()] = [
        ("admission", "Admission control"),
        ("latency-target", "The latency target of a pool"),
        ("placement", "The placement of connections on workers"),
        ("slots", "Latency targets of hosts that share a device"),
        ("guarantees", "Guarantees of throughput"),
    ];
    let values = NAMES.map(|(name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(values).try_map(|given| {
        let found = NAMES.into_iter().zip(Controller::ALL).find(|((name, _), _)| *name == given);
        found.map(|(_, controller)| controller).ok_or("no controller")
    })
}

/// Judges the cases of all chosen controllers. After an interrupt the report covers the cases judged until the interrupt.
///
/// # Errors
/// When a simulation fails (the message names the case), or a scenario cannot be written.
pub(super) fn run(options: &Options, args: &HarmArgs, threads: usize, stop: &AtomicBool) -> anyhow::Result<Report> {
    let folder = args.write_failures.as_deref();
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder).with_context(|| cannot_write(folder))?;
    }
    harm::run(options, &args.plan(), &mut |controller, seeds| judge(controller, seeds, folder, threads, stop))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}; with --write-failures name a folder in which files can be made", path.display())
}

/// Writes the scenario of the case `seed` into `folder`, if the first of `judged` has a shrunken failure.
fn write(folder: &Path, seed: u64, judged: &[harm::Judged]) -> anyhow::Result<()> {
    let Some(text) = judged.first().and_then(|ours| ours.failure.as_ref()) else { return Ok(()) };
    let path = folder.join(format!("case-{seed}.toml"));
    std::fs::write(&path, text).with_context(|| cannot_write(&path))
}

fn judge(
    controller: Controller,
    seeds: &[u64],
    failures: Option<&Path>,
    threads: usize,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<(u64, Vec<harm::Judged>)>> {
    let (done, harmed, gravely) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let silent = std::io::stderr().is_terminal();
    let results = parallel::until(seeds, threads, stop, |_, &seed, tick| -> Result<_, Option<anyhow::Error>> {
        let mut execute = |_: &str, runs: &[(Setup, u64)]| -> Result<Vec<Digest>, Failure> {
            runs.iter().map(|(setup, seed)| world::run(setup, *seed, &mut |_| tick(0.0)).map(Digest::of)).collect()
        };
        let judged = match harm::judge(controller, seed, failures.is_some(), &mut execute) {
            Err(Failure::Cancelled { .. }) => return Err(None),
            judged => judged.with_context(|| format!("{} case {seed}", controller.name()))?,
        };
        failures.map_or(Ok(()), |folder| write(folder, seed, &judged))?;
        let count = |counter: &AtomicUsize, counts: bool| {
            counter.fetch_add(usize::from(counts), Ordering::Relaxed) + usize::from(counts)
        };
        let ours = judged.first();
        let harmed = count(&harmed, ours.is_some_and(|case| case.harmed));
        let gravely = count(&gravely, ours.is_some_and(|case| case.gravely));
        let done = count(&done, true);
        if !silent && done.is_multiple_of(seeds.len().div_ceil(LINES)) {
            let name = controller.name();
            let of = seeds.len();
            let line = format!("{name}: {done} of {of} cases judged, {harmed} harmed, {gravely} of them gravely\n");
            output::complain(&line);
        }
        Ok((seed, judged))
    });
    results
        .into_iter()
        .flatten()
        .filter_map(|result| result.map_or_else(|error| error.map(Err), |judged| Some(Ok(judged))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_judged_in_order_on_any_number_of_threads_until_an_interrupt() {
        // Placement's cases are the shortest.
        let judge =
            |threads, stop| judge(Controller::Placement, &[4, 5, 6], None, threads, &AtomicBool::new(stop)).unwrap();
        let (one, two) = (judge(1, false), judge(2, false));
        assert_eq!(one.iter().map(|(seed, _)| *seed).collect::<Vec<_>>(), [4, 5, 6]);
        assert_eq!(format!("{one:?}"), format!("{two:?}"));
        assert!(judge(2, true).is_empty());
    }

    #[test]
    fn a_harmed_case_with_a_scenario_becomes_a_file() {
        let folder = crate::folder::Folder::new();
        let judged = |failure: Option<&str>| {
            let mut judged = harm::Judged::default();
            judged.failure = failure.map(str::to_owned);
            vec![judged]
        };
        write(&folder, 7, &judged(Some("title = \"seven\"\n"))).unwrap();
        write(&folder, 8, &judged(None)).unwrap();
        assert_eq!(std::fs::read_to_string(folder.join("case-7.toml")).unwrap(), "title = \"seven\"\n");
        assert!(!folder.join("case-8.toml").exists());
        let error = write(&folder.join("case-7.toml"), 9, &judged(Some(""))).unwrap_err();
        assert!(format!("{error:#}").contains("--write-failures"), "{error:#}");
    }

    #[test]
    fn a_controller_has_its_name_in_results() {
        for each in Controller::ALL {
            let name = each.name().replace(' ', "-");
            let parsed = controller().parse_ref(&clap::Command::new(""), None, name.as_ref());
            assert_eq!(parsed.ok(), Some(each), "{name}");
        }
        let helps = controller().possible_values().expect("listed").filter(|value| value.get_help().is_some()).count();
        assert_eq!(helps, Controller::ALL.len());
    }

    #[test]
    fn a_plan_has_the_named_controllers_in_the_order_of_the_report() {
        let args = HarmArgs {
            controller: vec![Controller::Slots, Controller::Admission],
            cases: Some(40),
            ..HarmArgs::default()
        };
        let plan = Plan { controllers: vec![Controller::Admission, Controller::Slots], cases: Some(40) };
        assert_eq!((args.plan(), args.given()), (plan, Some("--cases")));
        assert_eq!(
            (HarmArgs::default().plan().controllers, HarmArgs::default().given()),
            (Controller::ALL.to_vec(), None)
        );
    }
}
