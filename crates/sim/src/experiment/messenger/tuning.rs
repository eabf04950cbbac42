//! Tuning of the methods that move connections, the baselines, on another cluster, other loads and other seeds than those
//! that are reported.

use evenkeel_control::Duration;
use evenkeel_control::placement::{Config, Moving};

use super::cluster::{Load, Opening, Skew};
use super::world::{Outcome, Setup};
use super::{Execute, NAME, Options, setup};
use crate::experiment::tune::{Parameter, Tuned, seeded, tune};

/// Name of the published method in the file of tuned values.
pub(super) const GENETIC: &str = "genetic";
/// Name of LPT in the file of tuned values.
pub(super) const LPT: &str = "lpt";
/// Parameters of the published method.
pub(super) const OF_GENETIC: [Parameter; 2] = parameters(Moving::published(), 5.0);
/// Parameters of LPT.
pub(super) const OF_LPT: [Parameter; 2] = parameters(Moving::slow(), 1.0);

/// Counted time of a run, in seconds.
const SECONDS: u64 = 10;
/// Inequality of the training set's destinations: less, more of it common to all, and faster changes.
const TRAINING_SKEW: Skew = Skew { sigma: 0.6, common: 0.7, drifting: 0.2, memory_s: 15.0 };
/// Factor on the workers' costs in the training set: slower processors with the same network.
const SLOWER: f64 = 1.3;

/// The settings of a method that moves connections, with its published `interval_s`.
const fn parameters(published: Moving, interval_s: f64) -> [Parameter; 2] {
    [Parameter::new("interval_s", interval_s, 0.1, 10.0), Parameter::new("min_gain", published.min_gain, 0.005, 0.5)]
}

/// The method with this name and these values of its parameters.
pub(super) fn config(method: &str, values: &[f64]) -> Config {
    let &[interval_s, min_gain] = values else { return Config::RoundRobin };
    let moving = Moving { interval: Duration::from_nanos((interval_s * 1e9) as u64), min_gain };
    if method == LPT { Config::Lpt(moving) } else { Config::Genetic(moving) }
}

/// The training set: half of the requests are writes, or a tenth; both opening orders.
fn runs(seed: u64, placement: Config) -> Vec<(Setup, u64)> {
    let mut runs = Vec::new();
    for (writes, load, opening) in [(0.5, Load::Random, Opening::Random), (0.1, Load::Equal, Opening::Colliding)] {
        let usual = setup(writes, load, placement, SECONDS);
        let params = usual.params.slower(SLOWER);
        runs.extend(seeded(Setup { params, skew: TRAINING_SKEW, opening, ..usual }, seed));
    }
    runs
}

/// Minus the requests completed per second, mean over all runs.
fn cost(_: &[(Setup, u64)], outcomes: &[Outcome]) -> f64 {
    let completed = outcomes.iter().map(|outcome| outcome.per_s[0] + outcome.per_s[1]);
    -completed.sum::<f64>() / outcomes.len().max(1) as f64
}

/// Tunes the methods that move connections on the training set.
///
/// # Errors
/// The errors of `execute`.
pub fn tuned<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Tuned, E> {
    let runs_of = |method: &str, values: &[f64]| runs(options.seed, config(method, values));
    tune(NAME, options.seed, &[(GENETIC, &OF_GENETIC), (LPT, &OF_LPT)], &runs_of, &cost, execute)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use evenkeel_policy::config::Placement;

    use super::super::SKEW;
    use super::*;
    use crate::experiment::tune::SEED_OFFSET;

    #[test]
    fn published_values_are_the_published_methods() {
        let published = |parameters: [Parameter; 2]| parameters.map(|parameter| parameter.published);
        assert_eq!(config(GENETIC, &published(OF_GENETIC)), Config::Genetic(Moving::published()));
        assert_eq!(config(LPT, &published(OF_LPT)), Config::Lpt(Moving::slow()));
        // Both may decide as often as the method they are compared with.
        let interval = |config: Config| match config {
            Config::Genetic(moving) | Config::Lpt(moving) | Config::Waits(moving) => Some(moving.interval),
            _ => None,
        };
        for (name, parameters) in [(GENETIC, OF_GENETIC), (LPT, OF_LPT)] {
            let often = config(name, &parameters.map(|parameter| parameter.low));
            assert_eq!(interval(often), interval(Placement::Waits.control()), "{name}");
        }
    }

    #[test]
    fn both_methods_are_tuned_with_as_many_runs_on_another_cluster() {
        let mut count = 0;
        let options = Options { seed: 4, ..Options::default() };
        let tuned = tuned(&options, &mut |_, runs: &[(Setup, u64)]| -> Result<_, Infallible> {
            count += runs.len();
            assert!(runs.iter().all(|(setup, seed)| setup.skew != SKEW && *seed >= SEED_OFFSET));
            // The longer the interval, the more is done.
            let outcome = |(setup, _): &(Setup, u64)| match setup.placement {
                Config::Genetic(moving) | Config::Lpt(moving) => {
                    Outcome { per_s: [moving.interval.as_secs_f64(), 0.0], ..Outcome::default() }
                }
                _ => Outcome::default(),
            };
            Ok(runs.iter().map(outcome).collect())
        });
        let tuned = tuned.unwrap_or_else(|never| match never {});
        assert_eq!((count, tuned.runs), (2 * tuned.runs, 4 * tuned.tries));
        for (name, parameters) in [(GENETIC, OF_GENETIC), (LPT, OF_LPT)] {
            let values = tuned.values(name, &parameters).expect("tuned");
            assert!(values[0] > 7.0, "{values:?}");
        }
    }
}
