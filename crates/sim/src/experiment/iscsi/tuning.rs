//! Tuning of the published controller, the baseline, on other targets, loads and seeds than those that are reported.

use evenkeel_control::response::{Config, Method, PidConfig};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::link::{Delayed, LinkParams};

use super::hosts::{at, ms, reader, writers};
use super::judge::{ABOVE_BAR, judge};
use super::world::{Control, Outcome, Setup};
use super::{Execute, NAME, Options};
use crate::experiment::tune::{Parameter, SEEDS, Tuned, seeded, tune};

/// Name of the published controller in the file of tuned values and, with `_tuned`, in results.
pub(super) const PID: &str = "pid";
/// Parameters of the published controller. The set point is a fraction of the target; the paper controls to the target itself.
pub(super) const PARAMETERS: [Parameter; 4] = [
    Parameter::new("set_point", 1.0, 0.5, 1.0),
    Parameter::new("gain_classes_per_ms", PidConfig::DEFAULT.gain_classes_per_ms, 0.03, 10.0),
    Parameter::new("integral_s", 1.0, 0.05, 10.0),
    Parameter::new("newest_weight", PidConfig::DEFAULT.newest_weight, 0.02, 1.0),
];
/// Cost of each per cent of the windows above the target beyond [`ABOVE_BAR`], in per cent of throughput.
const ABOVE_COST: f64 = 10.0;
/// Bursts of the training set: beginnings and ends in seconds.
const BURSTS_S: [(u64, u64); 3] = [(6, 18), (22, 34), (38, 50)];

/// The published controller with these values of [`PARAMETERS`].
pub(super) fn pid(target_ms: f64, values: &[f64]) -> Config {
    let &[set_point, gain_classes_per_ms, integral_s, newest_weight] = values else {
        return Config::pid(ms(target_ms));
    };
    let integral_time = ms(1e3 * integral_s);
    let pid = PidConfig { gain_classes_per_ms, integral_time, newest_weight, ..PidConfig::DEFAULT };
    Config { method: Method::Pid(pid), ..Config::pid(ms(set_point * target_ms)) }
}

/// A case of the training set.
struct Training {
    link: LinkParams,
    /// Hosts with four writers each.
    hosts: u64,
    target_ms: f64,
}

/// Two other targets, one faster and one with four slow servers, each with two latency targets.
fn training() -> [Training; 4] {
    let shared = LinkParams::shared();
    let fast =
        LinkParams { read_time: Duration::from_micros(1_800), write_time: Duration::from_micros(2_200), ..shared };
    let wide = LinkParams {
        servers: 4,
        read_time: Duration::from_millis(8),
        write_time: Duration::from_millis(11),
        target_window_bytes: 16 << 10,
        ..shared
    };
    [(fast, 2, 8.0), (fast, 4, 12.0), (wide, 3, 18.0), (wide, 4, 24.0)].map(|(link, hosts, target_ms)| Training {
        link,
        hosts,
        target_ms,
    })
}

fn bursts() -> [(Instant, Instant); 3] {
    BURSTS_S.map(|(begin, end)| (at(begin), at(end)))
}

/// The most that the target's storage could write, in MB/s.
fn most_mb_per_s(link: &LinkParams) -> f64 {
    f64::from(link.servers) * 65_536.0 / 1e6 / link.write_time.as_secs_f64()
}

fn runs(seed: u64, values: &[f64]) -> Vec<(Setup, u64)> {
    let bursts = bursts();
    let duration = bursts[2].1.since(Instant::ZERO);
    let of = |training: Training| {
        let hosts = std::iter::once(reader(duration)).chain(writers(training.hosts, &bursts)).collect();
        let control = Control::Controller(pid(training.target_ms, values));
        seeded(Setup { link: training.link, hosts, on: Delayed::Acknowledgements, control, duration }, seed)
    };
    training().into_iter().flat_map(of).collect()
}

/// Throughput lost of the most that is possible, in per cent, plus [`ABOVE_COST`] for each per cent of the windows above the
/// target beyond [`ABOVE_BAR`]; mean over all runs.
fn cost(_: &[(Setup, u64)], outcomes: &[Outcome]) -> f64 {
    let (training, bursts) = (training(), bursts());
    let of = |(place, outcome): (usize, &Outcome)| {
        let Training { link, target_ms, .. } = &training[place / SEEDS as usize];
        let verdict = judge(outcome, &bursts, *target_ms);
        let lost = 100.0 * (1.0 - verdict.written_mb_per_s / most_mb_per_s(link));
        lost + ABOVE_COST * (verdict.above_percent() - ABOVE_BAR).max(0.0)
    };
    outcomes.iter().enumerate().map(of).sum::<f64>() / outcomes.len().max(1) as f64
}

/// Tunes the published controller on the training set.
///
/// # Errors
/// The errors of `execute`.
pub fn tuned<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Tuned, E> {
    tune(NAME, options.seed, &[(PID, &PARAMETERS)], &|_, values| runs(options.seed, values), &cost, execute)
}

#[cfg(test)]
mod tests {
    use super::super::world::simulate;
    use super::*;

    #[test]
    fn published_values_are_the_published_controller() {
        let published = PARAMETERS.map(|parameter| parameter.published);
        assert_eq!(pid(15.0, &published), Config::pid(ms(15.0)));
        let other = pid(20.0, &[0.8, 1.0, 0.3, 0.5]);
        assert_eq!((other.target, other.validate().is_ok()), (ms(16.0), true));
        let Method::Pid(constants) = other.method else { panic!("{other:?}") };
        assert_eq!((constants.gain_classes_per_ms, constants.newest_weight), (1.0, 0.5));
        assert_eq!(constants.integral_time, Duration::from_millis(300));
    }

    #[test]
    fn all_values_in_range_are_valid_and_a_set_point_below_the_target_costs_less() {
        for end in [PARAMETERS.map(|parameter| parameter.low), PARAMETERS.map(|parameter| parameter.high)] {
            assert_eq!(pid(10.0, &end).validate(), Ok(()));
        }
        let cost_of = |values: &[f64]| {
            let runs = runs(1, values);
            let run = |(setup, seed): &(Setup, u64)| simulate(setup, *seed).expect("a run");
            cost(&runs, &runs.iter().map(run).collect::<Vec<_>>())
        };
        let published = cost_of(&PARAMETERS.map(|parameter| parameter.published));
        assert!(cost_of(&[0.8, 1.0, 0.3, 0.5]) < published, "{published}");
    }

    #[test]
    fn training_and_reported_targets_are_different_devices() {
        for training in training() {
            assert_ne!(training.link, LinkParams::shared());
            assert!(most_mb_per_s(&training.link) > 0.0);
        }
    }
}
