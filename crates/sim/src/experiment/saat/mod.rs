//! Guaranteed throughput on a cached device: the experiments of the SAAT paper.
//!
//! C. Wang, D. Sun, Y. Chai and F. Zhou, *Enabling Accurate Performance Isolation on Hybrid Storage Devices in Cloud
//! Environment*. The device is the model [`evenkeel_model::cached`] under the kernel's throttle. Where the paper leaves
//! something open, a value is chosen and documented.
//!
//! | module | contents |
//! |---|---|
//! | [`tenants`] | generated requests of tenants, after the paper's Table I |
//! | [`recorded`] | requests of tenants that replay a recorded trace |
//! | [`world`] | tenants, throttle, device and counters in virtual time |
//! | [`mod@run`] | one run under a controller |
//! | [`grid`] | the fourteen groups of experiments |
//! | `oracle` | the best limits of each period, found by trying |
//! | `sensitivity` | results with other constants that fit the paper's figures for a plain limit, too |
//! | `judge` | rows of the report, and claims |
//! | `tuning` | settings of the published controller, tuned on a training set |

pub mod grid;
mod judge;
mod oracle;
pub mod recorded;
pub mod run;
mod sensitivity;
pub mod tenants;
mod tuning;
pub mod world;

pub use tuning::tuned;

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_control::Duration;
use evenkeel_control::throughput::{Config, Method};
use evenkeel_model::cached::CachedParams;

use super::once::once;
use super::tune::Tuned;
use super::{Options, Report};
use recorded::Recorded;
use tenants::Habits;
use world::{Control, Outcome, PERIOD, Setup};

/// Name on the command line and in results.
pub const NAME: &str = "saat";

/// Interval between the decisions of the project's own controller.
const STEP: Duration = Duration::from_millis(100);

/// Recorded traces that replace generated requests, by their names in the paper's Table I.
pub type Traces = BTreeMap<&'static str, Arc<Recorded>>;

/// The type [`super::Execute`] with this experiment's setup and outcome.
pub type Execute<'a, E> = super::Execute<'a, E, Setup, Outcome>;

/// An arm of the experiment: the controller of the tenants' limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    Static,
    /// The published controller, deciding once a second.
    Saat,
    /// The project's own controller, deciding ten times a second.
    Accurate,
    /// The project's own controller, deciding once a second.
    AccurateSecond,
    /// The published controller, deciding ten times a second.
    SaatOften,
    /// No controller: the best limits of each second, found with knowledge of the future.
    Oracle,
    /// The published controller with tuned settings.
    SaatTuned,
}

impl Arm {
    const ALL: [Self; 7] = [
        Self::Static,
        Self::Saat,
        Self::Accurate,
        Self::AccurateSecond,
        Self::SaatOften,
        Self::Oracle,
        Self::SaatTuned,
    ];

    /// The arms of a run: all, the last one only if there are tuned settings for it.
    fn of(tuned: &Tuned) -> &'static [Self] {
        let all: &'static [Self] = &Self::ALL;
        if tuned.baselines.contains_key(tuning::SAAT) { all } else { &all[..all.len() - 1] }
    }

    /// Name in results of an arm that has no column of its own; `None` for the three arms with columns.
    const fn name(self) -> Option<&'static str> {
        match self {
            Self::Static | Self::Saat | Self::Accurate => None,
            Self::AccurateSecond => Some("accurate_1s"),
            Self::SaatOften => Some("saat_100ms"),
            Self::Oracle => Some("oracle"),
            Self::SaatTuned => Some("saat_tuned"),
        }
    }

    fn control(self, device: &CachedParams, tuned: &Tuned) -> Control {
        Control::Controller(match self {
            Self::Oracle => return Control::Oracle,
            Self::Static => Config { method: Method::Static, ..Config::DEFAULT },
            Self::Saat => published(device, PERIOD),
            Self::SaatOften => published(device, STEP),
            Self::SaatTuned => {
                let values = tuned.values(tuning::SAAT, &tuning::PARAMETERS).unwrap_or_default();
                tuning::config(device, &values)
            }
            Self::Accurate => Config { method: Method::Accurate, interval: STEP, ..Config::DEFAULT },
            Self::AccurateSecond => Config { method: Method::Accurate, interval: PERIOD, ..Config::DEFAULT },
        })
    }
}

/// The published controller, deciding once each `interval`. The paper measured the slow device beforehand; ours has to find out.
fn published(device: &CachedParams, interval: Duration) -> Config {
    let slow_bytes_per_s = Some(device.slow_bytes_per_s);
    Config { method: Method::Saat, interval, slow_bytes_per_s, ..Config::DEFAULT }
}

/// Runs all groups under all controllers. Tenants replay `traces` where given, and send generated requests otherwise.
///
/// # Errors
/// The errors of `execute`.
pub fn run<E>(options: &Options, traces: &Traces, execute: &mut Execute<'_, E>) -> Result<Report, E> {
    let device = CachedParams::paper();
    // Not shorter with `quick`: what is still owed at the end would weigh more than the paper's runs let it.
    let seconds = 300;
    let seeds: Vec<u64> = (options.seed..).take(options.count(30, 1)).collect();
    let groups = grid::groups(traces);
    let planned = |arms: &[Arm], device: &CachedParams, habits: &Habits, seeds: &[u64]| {
        let mut runs = Vec::new();
        for arm in arms {
            for tenants in groups.iter().flat_map(|group| &group.cases) {
                let setup = Setup {
                    device: *device,
                    tenants: tenants.clone(),
                    habits: *habits,
                    control: arm.control(device, &options.tuned),
                    lead: Duration::from_secs(10),
                    duration: Duration::from_secs(seconds),
                };
                runs.extend(seeds.iter().map(|&seed| (setup.clone(), seed)));
            }
        }
        runs
    };
    let arms = Arm::of(&options.tuned);
    let made = planned(arms, &device, &Habits::FITTED, &seeds);
    let known = execute("groups", &made)?;
    let runs: Vec<(&Setup, &Outcome)> = made.iter().map(|(setup, _)| setup).zip(&known).collect();
    let mut report = judge::report(options, arms, &groups, &runs, seeds.len(), seconds);
    report.intro.push(options.tuned.text());
    if !options.quick {
        let seeds = &seeds[..sensitivity::SEEDS.min(seeds.len())];
        let of = |(_, device, habits): &sensitivity::Variant| planned(&sensitivity::ARMS, device, habits, seeds);
        let runs: Vec<(Setup, u64)> = sensitivity::variants().iter().flat_map(of).collect();
        // The first variant is the one of the groups.
        let outcomes = once("sensitivity", &runs, &made, &known, execute)?;
        let runs: Vec<(&Setup, &Outcome)> = runs.iter().map(|(setup, _)| setup).zip(&outcomes).collect();
        report.sections.push(sensitivity::section(&groups, &runs, seeds.len(), seconds));
    }
    if let (false, Some(section)) = (traces.is_empty(), report.sections.first_mut()) {
        let names: Vec<&str> = traces.keys().copied().collect();
        section
            .text
            .push(format!("Load of the tenants {}: recorded traces. All other load is generated.", names.join(", ")));
    }
    Ok(report)
}
