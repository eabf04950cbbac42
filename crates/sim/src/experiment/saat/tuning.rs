//! Tuning of the published controller, the baseline, on another device, other tenants and other seeds than those that are
//! reported.

use evenkeel_control::Duration;
use evenkeel_control::throughput::Config;
use evenkeel_model::cached::CachedParams;

use super::judge::{judge, worst_phases};
use super::tenants::{Habits, TRACES};
use super::world::{Control, Outcome, Setup, Tenant};
use super::{Execute, NAME, Options, published};
use crate::experiment::tune::{Parameter, Tuned, seeded, tune};

/// Name of the published controller in the file of tuned values.
pub(super) const SAAT: &str = "saat";
/// Parameters of the published controller.
pub(super) const PARAMETERS: [Parameter; 2] =
    [Parameter::new("interval_s", 1.0, 0.05, 10.0), Parameter::new("max_raise", 4.0, 1.2, 16.0)];

/// Tenants of the training set that share a device, by their traces, with the guarantee of each in MB/s. The reported groups have
/// other combinations and other guarantees.
const TRAINING: [(&[&str], f64); 4] =
    [(&["mds"], 160.0), (&["stg"], 190.0), (&["usr", "rsrch"], 170.0), (&["web", "prn", "mds"], 120.0)];
/// Counted time of a run.
const DURATION: Duration = Duration::from_secs(120);

/// The published controller with these values of [`PARAMETERS`].
pub(super) fn config(device: &CachedParams, values: &[f64]) -> Config {
    let usual = published(device, super::PERIOD);
    let &[interval_s, max_raise] = values else { return usual };
    Config { interval: Duration::from_nanos((interval_s * 1e9) as u64), max_raise, ..usual }
}

/// The training set's device: a slower slow device.
fn device() -> CachedParams {
    CachedParams { slow_bytes_per_s: 130_000_000, slow_latency: Duration::from_micros(1_100), ..CachedParams::paper() }
}

fn runs(seed: u64, values: &[f64]) -> Vec<(Setup, u64)> {
    let device = device();
    let of = |(names, mb_per_s): (&[&str], f64)| {
        let traces = names.iter().filter_map(|name| TRACES.iter().find(|trace| trace.name == *name));
        let tenants = traces.map(|trace| Tenant { trace: *trace, recorded: None, guaranteed: mb_per_s * 1e6 });
        let setup = Setup {
            device,
            tenants: tenants.collect(),
            habits: Habits { phase_sigma: 0.8, ..Habits::FITTED },
            control: Control::Controller(config(&device, values)),
            lead: Duration::from_secs(10),
            duration: DURATION,
        };
        seeded(setup, seed)
    };
    TRAINING.into_iter().flat_map(of).collect()
}

/// DAT plus jitter in per cent, each in its worst phase as in the report, mean over all runs.
fn cost(runs: &[(Setup, u64)], outcomes: &[Outcome]) -> f64 {
    let figures = runs.iter().zip(outcomes).map(|((setup, _), outcome)| worst_phases(&judge(setup, outcome)));
    figures.map(|[dat, jitter]| dat + jitter).sum::<f64>() / outcomes.len().max(1) as f64
}

/// Tunes the published controller on the training set.
///
/// # Errors
/// The errors of `execute`.
pub fn tuned<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Tuned, E> {
    tune(NAME, options.seed, &[(SAAT, &PARAMETERS)], &|_, values| runs(options.seed, values), &cost, execute)
}

#[cfg(test)]
mod tests {
    use super::super::grid;
    use super::*;
    use crate::experiment::tune::{SEED_OFFSET, SEEDS};

    #[test]
    fn published_values_are_the_published_controller_and_all_values_in_range_are_valid() {
        let device = device();
        let of = |value: fn(&Parameter) -> f64| config(&device, &PARAMETERS.each_ref().map(value));
        assert_eq!(of(|parameter| parameter.published), published(&device, super::super::PERIOD));
        assert_eq!(of(|parameter| parameter.low).validate(), Ok(()));
        assert_eq!(of(|parameter| parameter.high).validate(), Ok(()));
    }

    #[test]
    fn the_training_set_has_other_tenants_and_another_device_than_the_reported_groups() {
        let runs = runs(7, &[0.5, 2.0]);
        assert_eq!(runs.len(), TRAINING.len() * SEEDS as usize);
        let groups = grid::groups(&super::super::Traces::new());
        let training = TRAINING.into_iter().flat_map(|each| [each; SEEDS as usize]);
        for ((setup, seed), (names, _)) in runs.iter().zip(training) {
            assert_eq!(setup.tenants.len(), names.len(), "all traces are known");
            assert!(setup.device != CachedParams::paper() && *seed >= SEED_OFFSET);
            let same = |tenants: &Vec<Tenant>| *tenants == setup.tenants;
            assert!(!groups.iter().flat_map(|group| &group.cases).any(same));
        }
    }

    #[test]
    fn the_cost_is_deviation_and_jitter() {
        let runs = runs(7, &[0.5, 2.0]);
        let outcome = |(setup, _): &(Setup, u64)| Outcome {
            tenths: setup.tenants.iter().map(|tenant| vec![0.09 * tenant.guaranteed; 20]).collect(),
        };
        let outcomes: Vec<Outcome> = runs.iter().map(outcome).collect();
        assert!((cost(&runs, &outcomes) - 20.0).abs() < 1e-9, "10 % each");
        // Right in the controllers' own seconds; the second that begins half a second later has a fifth too little.
        let shifted = |(setup, _): &(Setup, u64)| Outcome {
            tenths: setup
                .tenants
                .iter()
                .map(|tenant| {
                    let part = |place: usize| if (5..15).contains(&place) { 0.08 } else { 0.12 };
                    (0..20).map(|place| part(place) * tenant.guaranteed).collect()
                })
                .collect(),
        };
        let outcomes: Vec<Outcome> = runs.iter().map(shifted).collect();
        assert!((cost(&runs, &outcomes) - 40.0).abs() < 1e-9, "20 % each in the worst phase");
    }
}
