//! The steps of a lab: run in the guest, printed on the guest's console, counted on the host.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::figures::{Figures, told};
use super::run::{Lab, Options};
use crate::base::build;
use crate::machine::vm;

const PASSED: &str = "lab: passed ";
const FAILED: &str = "lab: failed ";
const SKIPPED: &str = "lab: skipped ";
const FIGURE: &str = "lab: figure ";
/// Prefix of a console line that contains the new text of a page of the guide.
const PAGE: &str = "lab: page ";

/// Options for the steps of a guest.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[arg(long)]
    pub(crate) binary: PathBuf,
    /// Only steps whose name has this in it.
    #[arg(long, default_value = "")]
    pub(crate) only: String,
    /// All steps at full length.
    #[arg(long)]
    pub(crate) full: bool,
    /// Number of times that a step with measured figures is taken.
    #[arg(long, default_value_t = 1)]
    pub(crate) repeats: u64,
}

impl Plan {
    /// The guest's plan for a run with these options.
    pub(crate) fn of(options: &Options) -> Self {
        let Options { binary, only, full, repeats, .. } = options;
        Self { binary: binary.clone(), only: only.clone(), full: *full, repeats: if *full { *repeats } else { 1 } }
    }

    /// The plan as arguments of the guest's command, without the binary.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--only".into(), self.only.clone(), "--repeats".into(), self.repeats.to_string()];
        arguments.extend(self.full.then(|| "--full".into()));
        arguments
    }

    /// Those of `steps`, each with its name, that the plan contains.
    pub(crate) fn wanted<S: Copy + 'static>(
        &self,
        steps: &'static [(&'static str, S)],
    ) -> impl Iterator<Item = (&'static str, S)> {
        steps.iter().filter(|(name, _)| name.contains(&self.only)).copied()
    }

    /// `full` in a full run, `short` in any other run.
    pub(crate) fn either<T>(&self, short: T, full: T) -> T {
        if self.full { full } else { short }
    }

    /// Time limit of a run in which all steps, run once, take at most `once`.
    pub(crate) fn limit(&self, once: Duration) -> Duration {
        once * u32::try_from(self.repeats).unwrap_or(u32::MAX)
    }
}

/// In the guest: runs the step `name` as often as planned, and prints its result.
pub(crate) fn take(plan: &Plan, name: &str, step: impl Fn(&mut Figures) -> Result<String>) {
    let mut figures = Figures::default();
    let outcome = figures.collect(plan.repeats, step);
    tell_figures(name, &figures, outcome);
}

/// In the guest: runs the step `name` once, and prints its result. In full runs its measurement is so long that a missed bar
/// fails the step; in others missed bars are only printed.
pub(crate) fn take_once(plan: &Plan, name: &str, step: impl FnOnce(&mut Figures) -> Result<String>) {
    let mut figures = Figures::default();
    let outcome = step(&mut figures);
    tell_figures(name, &figures, figures.judge_by(plan.full, outcome));
}

fn tell_figures(name: &str, figures: &Figures, outcome: Result<String>) {
    figures.lines().iter().for_each(|line| println!("{FIGURE}{name}::{line}"));
    tell(name, outcome);
}

/// In the guest: prints the result of the step `name` for the host.
pub(crate) fn tell(name: &str, outcome: Result<String>) {
    println!("{}{name} {}", if outcome.is_ok() { PASSED } else { FAILED }, told(&outcome));
}

/// In the guest: prints for the host that the step `name` is skipped, and the reason.
pub(crate) fn tell_skipped(name: &str, reason: &str) {
    println!("{SKIPPED}{name} {reason}");
}

/// In the guest: prints the text of a page of the guide for the host, because the guest cannot write to the workspace.
pub(crate) fn tell_page(name: &str, text: &str) -> Result<()> {
    println!("{PAGE}{name} {}", serde_json::to_string(text)?);
    Ok(())
}

/// On the host: writes a page of the guide that a guest has printed.
fn write_page(told: &str) -> Result<()> {
    let (name, text) = told.split_once(' ').context("the page has no name")?;
    let text: String = serde_json::from_str(text)?;
    build::write_page(name, &text)
}

/// On the host: counts steps from the lines of a guest's console.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) taken: usize,
    /// Instant at which the last reported step ended.
    pub(crate) since: Instant,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self { taken: 0, since: Instant::now() }
    }

    /// Handles a line of the console: the result of a step, the text of a page, or a text to show.
    pub(crate) fn hear(&mut self, lab: &mut Lab, line: &str) {
        let passed = line.strip_prefix(PASSED);
        if let Some(text) = passed.or_else(|| line.strip_prefix(FAILED)) {
            let (name, detail) = text.split_once(' ').unwrap_or((text, ""));
            self.taken += 1;
            lab.check(name, passed.is_some(), detail);
            let took = self.since.elapsed().as_secs();
            if took > 0 {
                println!("lab: {name} took {took} s");
            }
            self.since = Instant::now();
        } else if let Some((name, reason)) = line.strip_prefix(SKIPPED).and_then(|text| text.split_once(' ')) {
            self.taken += 1;
            if let Err(e) = lab.skipped(name, reason) {
                lab.failed(name, &format!("it is skipped, and that cannot be written: {e:#}"));
            }
        } else if let Some(page) = line.strip_prefix(PAGE) {
            lab.check("a_page_is_written", write_page(page).is_ok(), page);
        } else if let Some(figure) = line.strip_prefix(FIGURE) {
            println!("{FIGURE}{}::{figure}", lab.name);
        } else if line.starts_with("lab: ") || line.starts_with("Error") {
            println!("{line}");
        }
    }
}

/// On the host: reports the steps of a guest until the guest ends. It must report `expected` steps within `limit`.
pub(crate) fn report(lab: &mut Lab, guest: vm::Guest, limit: Duration, expected: usize) -> Result<()> {
    let mut steps = Steps::new();
    guest.finish(limit, |line| steps.hear(lab, line))?;
    ensure!(steps.taken == expected, "{} of {expected} steps were reported", steps.taken);
    Ok(())
}
