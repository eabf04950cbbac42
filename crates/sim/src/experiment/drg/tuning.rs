//! Tuning of the baselines on another array, other loads, other targets and other seeds than those that are reported.

use evenkeel_control::Duration;
use evenkeel_control::slots::{Config, Method};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::raid::Raid0Params;

use super::judge::violations;
use super::load::Source;
use super::world::{Outcome, Setup};
use super::{Case, Execute, LATENCY, NAME, Options, TOTAL, Traces, array};
use crate::experiment::tune::{Parameter, Subject, Tuned, seeded, tune};

const SLOTS: Parameter = Parameter::new("slots", TOTAL, 8.0, 800.0);
/// Latency at which a method aims; the array's requests take 5 ms and more.
const LATENCY_MS: Parameter = Parameter::new("latency_ms", 100.0, 10.0, 400.0);
/// Time between two decisions; the project's own method decides every 0.1 s.
const PERIOD_S: Parameter = Parameter::new("period_s", 1.0, 0.1, 5.0);

/// The baselines that are tuned, with their parameters.
pub(super) const SUBJECTS: [(Method, &[Parameter]); 4] = [
    (Method::Rwd, &[SLOTS]),
    (Method::Parda, &[SLOTS, LATENCY_MS, PERIOD_S]),
    (Method::SfqD, &[SLOTS]),
    (Method::Drg, &[SLOTS, LATENCY_MS, PERIOD_S]),
];

/// Counted time of a run, in seconds.
const SECONDS: u64 = 40;
/// Disks of the training set's array.
const MEMBERS: u32 = 6;
/// Requests per second, relative to those of the reported cases, and latency targets in ms: by case of the training set.
const TRAINING: [(f64, [u64; 4]); 2] = [(0.72, [200, 300, 600, 900]), (0.78, [500, 350, 300, 200])];

/// The parameters of a method; none if it is not tuned.
pub(super) fn parameters(method: Method) -> &'static [Parameter] {
    let found = SUBJECTS.into_iter().find(|(other, _)| *other == method);
    found.map(|(_, parameters)| parameters).unwrap_or_default()
}

/// A method with these values of its parameters.
pub(super) fn config(method: Method, values: &[f64]) -> Config {
    let slots = values.first().copied().unwrap_or(TOTAL);
    let latency = values.get(1).map_or(LATENCY, |ms| Duration::from_nanos((ms * 1e6) as u64));
    let published = Config::published(method, latency, slots);
    let period = values.get(2).map_or(published.period, |s| Duration::from_nanos((s * 1e9) as u64));
    Config { period, ..published }
}

fn device() -> DeviceParams {
    match array() {
        DeviceParams::Raid0(raid) => DeviceParams::Raid0(Raid0Params { members: MEMBERS, ..raid }),
        other => other,
    }
}

fn setup(slots: Config, (load, targets_ms): (f64, [u64; 4])) -> Setup {
    let mut setup = Case::SloA.setup(slots, &Traces::default());
    setup.capacity = setup.capacity / 8 * u64::from(MEMBERS);
    (setup.device, setup.duration) = (device(), Duration::from_secs(SECONDS));
    for (workload, target_ms) in setup.workloads.iter_mut().zip(targets_ms) {
        workload.target = Duration::from_millis(target_ms);
        workload.weight = (100_000 / target_ms) as u32;
        if let Source::Twin(habits) = &mut workload.source {
            habits.rate_per_s *= load;
            habits.varies *= 1.3;
        }
    }
    setup
}

fn runs(seed: u64, slots: Config) -> Vec<(Setup, u64)> {
    TRAINING.into_iter().flat_map(|case| seeded(setup(slots, case), seed)).collect()
}

/// Seconds with a missed target in per cent, mean over all workloads and runs.
fn cost(runs: &[(Setup, u64)], outcomes: &[Outcome]) -> f64 {
    let mut all = Vec::new();
    for ((setup, _), outcome) in runs.iter().zip(outcomes) {
        let target_ms = setup.workloads.iter().map(|workload| workload.target.as_nanos() / 1_000_000);
        all.extend(outcome.seconds.iter().zip(target_ms).map(|(seconds, target_ms)| violations(seconds, target_ms)));
    }
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// Tunes the baselines on the training set.
///
/// # Errors
/// The errors of `execute`.
pub fn tuned<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Tuned, E> {
    let subjects: [Subject; 4] = SUBJECTS.map(|(method, parameters)| (method.name(), parameters));
    let runs_of = |name: &str, values: &[f64]| {
        let method = Method::ALL.into_iter().find(|method| method.name() == name).unwrap_or_default();
        runs(options.seed, config(method, values))
    };
    tune(NAME, options.seed, &subjects, &runs_of, &cost, execute)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::super::Arm;
    use super::super::world::Second;
    use super::*;
    use crate::experiment::tune::SEED_OFFSET;

    #[test]
    fn published_values_are_the_published_methods_and_all_in_range_are_valid() {
        for (method, parameters) in SUBJECTS {
            let of = |value: fn(&Parameter) -> f64| config(method, &parameters.iter().map(value).collect::<Vec<_>>());
            assert_eq!(of(|parameter| parameter.published), Config::published(method, LATENCY, TOTAL));
            assert_eq!(of(|parameter| parameter.low).validate(), Ok(()));
            assert_eq!(of(|parameter| parameter.high).validate(), Ok(()));
        }
    }

    #[test]
    fn adaptive_baselines_may_decide_as_often_as_the_method_they_are_compared_with() {
        for method in [Method::Parda, Method::Drg] {
            let lowest: Vec<f64> = parameters(method).iter().map(|parameter| parameter.low).collect();
            assert_eq!(config(method, &lowest).period, Config::NEEDS.period, "{}", method.name());
        }
    }

    #[test]
    fn tuned_arms_are_run_beside_the_published_ones_if_there_are_any() {
        let none = Tuned::default();
        assert_eq!(Arm::of(&none).len(), Method::ALL.len());
        let options = Options { seed: 5, ..Options::default() };
        let mut count = 0;
        let tuned = tuned(&options, &mut |_, runs: &[(Setup, u64)]| -> Result<_, Infallible> {
            count += runs.len();
            assert!(runs.iter().all(|(setup, seed)| setup.device != array() && *seed >= SEED_OFFSET));
            // The more slots, the more targets are missed.
            let missed = |setup: &Setup| Second { completed: 1, response_s: setup.slots.most / 200.0, sent: 1 };
            Ok(runs.iter().map(|(setup, _)| Outcome { seconds: vec![vec![missed(setup); 3]; 4] }).collect())
        });
        let tuned = tuned.unwrap_or_else(|never| match never {});
        assert_eq!((count, tuned.runs), (4 * tuned.runs, 4 * tuned.tries));
        let arms = Arm::of(&tuned);
        assert_eq!(arms.len(), Method::ALL.len() + 4);
        let arm = Arm { method: Method::SfqD, is_tuned: true };
        assert!(arms.contains(&arm) && arm.name() == "sfq_d_tuned");
        assert!(arm.config(&tuned).most < TOTAL, "{:?}", arm.config(&tuned));
        assert_eq!(Arm { method: Method::SfqD, is_tuned: false }.config(&tuned).most, TOTAL);
        assert_eq!(Arm { method: Method::Needs, is_tuned: false }.config(&tuned), Config::NEEDS);
    }

    #[test]
    fn the_cost_is_the_share_of_missed_seconds() {
        let runs = runs(1, config(Method::Rwd, &[100.0]));
        let second = |response_s| Second { completed: 1, response_s, sent: 1 };
        // Above all targets in one second of four.
        let seconds = [0.1, 2.0, 0.1, 0.1].map(second).to_vec();
        let outcomes: Vec<Outcome> = runs.iter().map(|_| Outcome { seconds: vec![seconds.clone(); 4] }).collect();
        assert!((cost(&runs, &outcomes) - 25.0).abs() < 1e-9);
    }
}
