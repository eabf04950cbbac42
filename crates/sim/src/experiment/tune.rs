//! Tuning of baselines: one automated search, the same for every baseline, with the same number of runs.
//!
//! A search tries [`TRIES`] sets of values: the published ones, then random ones, then steps along one coordinate at a time from
//! the best set so far, in both directions and ever shorter. Everything follows from a seed. The sets of one round do not
//! depend on each other, so a caller with several cores runs them at once.

use std::collections::BTreeMap;

use evenkeel_control::rng::SplitMix64;
use serde::{Deserialize, Serialize};

use super::Execute;

/// Sets of values that are tried in one round.
const WIDTH: usize = 4;
/// Rounds with the published values and random ones.
const RANDOM_ROUNDS: usize = 4;
/// Rounds of steps from the best set so far.
const STEP_ROUNDS: usize = 8;
/// Sets of values that a search tries.
pub const TRIES: usize = WIDTH * (RANDOM_ROUNDS + STEP_ROUNDS);
/// Length of the first steps along a coordinate, as a fraction of the parameter's range.
const FIRST_STEP: f64 = 0.2;
/// Factor on the length of the steps each time that all coordinates had their turn.
const SHORTER: f64 = 0.7;

/// A parameter of a baseline, and the range in which it is tuned. The search divides the range evenly by ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Name in results.
    pub name: &'static str,
    /// The published value, or the one chosen here where the paper has none.
    pub published: f64,
    /// Lower end of the range, above 0.
    pub low: f64,
    /// Upper end of the range.
    pub high: f64,
}

impl Parameter {
    /// A parameter with its published value and range.
    pub const fn new(name: &'static str, published: f64, low: f64, high: f64) -> Self {
        Self { name, published, low, high }
    }

    /// The value at `place` of the range, 0 to 1, with three digits.
    fn value(&self, place: f64) -> f64 {
        let value = self.low * libm::exp(place * libm::log(self.high / self.low));
        format!("{value:.2e}").parse::<f64>().unwrap_or(value).clamp(self.low, self.high)
    }

    /// The place of `value` in the range, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        (libm::log(value / self.low) / libm::log(self.high / self.low)).clamp(0.0, 1.0)
    }
}

/// The best values that a search has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// One value for each parameter.
    pub values: Vec<f64>,
    /// Cost of these values.
    pub cost: f64,
    /// Cost of the published values.
    pub published_cost: f64,
}

/// A function that returns the cost (lower is better) of each of several sets of values of the tuned settings.
pub type Evaluate<'a, E> = &'a mut dyn FnMut(&[Vec<f64>]) -> Result<Vec<f64>, E>;

/// Searches the values with the least cost. `evaluate` returns the cost of each set of values; a cost that is not a number
/// counts as infinite. Of sets with the same cost the first one counts, so the published values unless others are better.
///
/// # Errors
/// The errors of `evaluate`.
pub fn search<E>(parameters: &[Parameter], seed: u64, evaluate: Evaluate<'_, E>) -> Result<Found, E> {
    let mut rng = SplitMix64::new(seed);
    let published: Vec<f64> = parameters.iter().map(|parameter| parameter.published).collect();
    let mut found = Found { values: published.clone(), cost: f64::INFINITY, published_cost: f64::INFINITY };
    for round in 0..RANDOM_ROUNDS + STEP_ROUNDS {
        let mut sets: Vec<Vec<f64>> = Vec::with_capacity(WIDTH);
        for number in 0..WIDTH {
            sets.push(match round.checked_sub(RANDOM_ROUNDS) {
                None if round + number == 0 => published.clone(),
                None => parameters.iter().map(|parameter| parameter.value(rng.next_f64())).collect(),
                Some(round) => stepped(parameters, &found.values, round, number),
            });
        }
        let costs = evaluate(&sets)?;
        if round == 0 {
            found.published_cost = costs.first().copied().unwrap_or(f64::INFINITY);
        }
        for (values, cost) in sets.into_iter().zip(costs) {
            if cost < found.cost {
                (found.values, found.cost) = (values, cost);
            }
        }
    }
    Ok(found)
}

/// The set of values with this `number` in a round of steps from `best`: each coordinate in turn, up and down. The steps are
/// [`SHORTER`] after all coordinates.
fn stepped(parameters: &[Parameter], best: &[f64], round: usize, number: usize) -> Vec<f64> {
    // Rounds continue with the coordinate at which the last one ended, if there are more coordinates than steps in a round.
    let place = round * WIDTH + number;
    let (turn, coordinate) = (place / (2 * parameters.len().max(1)), place / 2 % parameters.len().max(1));
    let length = FIRST_STEP * libm::pow(SHORTER, turn as f64);
    let step = if place.is_multiple_of(2) { length } else { -length };
    let mut values = best.to_vec();
    if let Some((value, parameter)) = values.get_mut(coordinate).zip(parameters.get(coordinate)) {
        *value = parameter.value((parameter.place(*value) + step).clamp(0.0, 1.0));
    }
    values
}

/// The tuned parameters of an experiment's baselines, as in `docs/results/tuned/NAME.toml`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// The experiment.
    pub experiment: String,
    /// Seed of the search and of the runs of the training set.
    pub seed: u64,
    /// Sets of values that were tried for each baseline.
    pub tries: usize,
    /// Runs that were made for each baseline.
    pub runs: usize,
    /// The tuned baselines by name.
    #[serde(default)]
    pub baselines: BTreeMap<String, Baseline>,
}

/// A tuned baseline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Cost of the published values on the training set.
    pub published_cost: f64,
    /// Cost of the tuned values on the training set.
    pub cost: f64,
    /// The tuned values by parameter.
    pub values: BTreeMap<String, f64>,
}

impl Tuned {
    /// The tuned values of a baseline in the order of `parameters`, the published value for a parameter that is missing; `None`
    /// if the baseline was not tuned.
    pub fn values(&self, baseline: &str, parameters: &[Parameter]) -> Option<Vec<f64>> {
        let tuned = &self.baselines.get(baseline)?.values;
        let value = |parameter: &Parameter| tuned.get(parameter.name).copied().unwrap_or(parameter.published);
        Some(parameters.iter().map(value).collect())
    }

    /// Reads the text of a file of tuned values.
    ///
    /// # Errors
    /// A message that says where the text is wrong.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// The text of the file of these values.
    ///
    /// # Errors
    /// A message: a number has no form in TOML, as a seed of 2^63 or more.
    pub fn to_toml(&self) -> Result<String, String> {
        let head = "Costs are those of the training set in docs/results/PROTOCOL.md.";
        let values = toml::to_string(self).map_err(|error| error.to_string())?;
        Ok(format!("# Written by evenkeel reproduce {} --tune. {head}\n\n{values}", self.experiment))
    }

    /// A sentence for the report that names the tuned values of each baseline, or says that there are none.
    pub fn text(&self) -> String {
        if self.baselines.is_empty() {
            return "No baseline is tuned: published values stand for tuned ones.".to_owned();
        }
        let value = |(name, value): (&String, &f64)| format!("{name} {value}");
        let baseline = |(name, baseline): (&String, &Baseline)| {
            format!("{name} ({})", baseline.values.iter().map(value).collect::<Vec<_>>().join(", "))
        };
        let all: Vec<String> = self.baselines.iter().map(baseline).collect();
        format!("Tuned on the training set by one search, {} runs for each baseline: {}.", self.runs, all.join(", "))
    }
}

/// The runs of the training set of a baseline with this name and these values.
type RunsOf<'a, S> = &'a dyn Fn(&str, &[f64]) -> Vec<(S, u64)>;
/// The cost of values, from their runs and outcomes.
type CostOf<'a, S, O> = &'a dyn Fn(&[(S, u64)], &[O]) -> f64;

/// Seeds of a training set.
pub(super) const SEEDS: u64 = 2;
/// Difference between an experiment's seed and the first one of its training set.
pub(super) const SEED_OFFSET: u64 = 3_000_000;

/// The runs of a setup of a training set, one for each seed of the set. `seed` is that of the experiment.
pub(super) fn seeded<S: Clone>(setup: S, seed: u64) -> impl Iterator<Item = (S, u64)> {
    (0..SEEDS).map(move |n| (setup.clone(), seed + SEED_OFFSET + n))
}

/// A baseline to be tuned: its name and its parameters.
pub(super) type Subject = (&'static str, &'static [Parameter]);

/// Tunes `subjects` one after the other. `runs_of` gives the runs of the training set with these values of the baseline with this
/// name: as many for all values of all baselines. `cost_of` gives the cost of values from their runs and outcomes.
pub(super) fn tune<S, O, E>(
    experiment: &str,
    seed: u64,
    subjects: &[Subject],
    runs_of: RunsOf<'_, S>,
    cost_of: CostOf<'_, S, O>,
    execute: &mut Execute<'_, E, S, O>,
) -> Result<Tuned, E> {
    let mut tuned = Tuned { experiment: experiment.to_owned(), seed, tries: TRIES, ..Tuned::default() };
    for &(name, parameters) in subjects {
        let mut made = 0;
        let found = search(parameters, seed, &mut |sets| {
            let runs: Vec<(S, u64)> = sets.iter().flat_map(|values| runs_of(name, values)).collect();
            let outcomes = execute(name, &runs)?;
            made += runs.len();
            let each = (runs.len() / sets.len().max(1)).max(1);
            Ok(runs.chunks(each).zip(outcomes.chunks(each)).map(|(runs, outcomes)| cost_of(runs, outcomes)).collect())
        })?;
        tuned.runs = made;
        let names = parameters.iter().map(|parameter| parameter.name.to_owned());
        let baseline = Baseline {
            published_cost: found.published_cost,
            cost: found.cost,
            values: names.zip(found.values).collect(),
        };
        tuned.baselines.insert(name.to_owned(), baseline);
    }
    Ok(tuned)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    const TWO: [Parameter; 2] =
        [Parameter::new("gain", 0.3, 0.01, 10.0), Parameter::new("integral_s", 1.0, 0.05, 10.0)];

    /// Squared distances by ratio from the values `at`.
    fn bowl(at: &[f64]) -> impl Fn(&[f64]) -> f64 {
        let squared = |ratio: f64| libm::log(ratio) * libm::log(ratio);
        move |values: &[f64]| values.iter().zip(at).map(|(value, at)| squared(value / at)).sum()
    }

    fn searched(parameters: &[Parameter], seed: u64, cost: &dyn Fn(&[f64]) -> f64) -> (Found, Vec<Vec<f64>>) {
        let mut tried = Vec::new();
        let found = search(parameters, seed, &mut |sets: &[Vec<f64>]| -> Result<_, Infallible> {
            tried.extend_from_slice(sets);
            Ok(sets.iter().map(|values| cost(values)).collect())
        });
        (found.unwrap_or_else(|never| match never {}), tried)
    }

    proptest! {
        #[test]
        fn what_is_found_is_the_best_tried_in_range_and_no_worse_than_published(
            seed in any::<u64>(), gain in 0.01f64..10.0, integral in 0.05f64..10.0,
        ) {
            let at = [gain, integral];
            let cost = bowl(&at);
            let (found, tried) = searched(&TWO, seed, &cost);
            prop_assert_eq!(tried.len(), TRIES);
            prop_assert_eq!(&tried[0], &vec![0.3, 1.0]);
            let least = tried.iter().map(|values| cost(values)).fold(f64::INFINITY, f64::min);
            prop_assert_eq!((found.cost, found.published_cost), (least, cost(&[0.3, 1.0])));
            prop_assert_eq!(cost(&found.values), found.cost);
            for values in &tried {
                for (value, parameter) in values.iter().zip(&TWO) {
                    prop_assert!((parameter.low..=parameter.high).contains(value), "{}", value);
                }
            }
        }
    }

    #[test]
    fn a_search_comes_close_wherever_the_optimum_is() {
        let mut rng = SplitMix64::new(3);
        let (mut found, mut published) = (0.0, 0.0);
        for seed in 0..100 {
            let at = TWO.map(|parameter| parameter.value(rng.next_f64()));
            let (best, _) = searched(&TWO, seed, &bowl(&at));
            (found, published) = (found + best.cost, published + best.published_cost);
        }
        assert!(found < 0.15 * published, "{found} of {published}");
    }

    #[test]
    fn the_search_follows_from_its_seed_and_keeps_the_published_values_if_none_is_better() {
        let at = [3.0, 0.2];
        assert_eq!(searched(&TWO, 5, &bowl(&at)), searched(&TWO, 5, &bowl(&at)));
        assert_ne!(searched(&TWO, 5, &bowl(&at)).1, searched(&TWO, 6, &bowl(&at)).1);
        assert_eq!(searched(&TWO, 5, &|_| 1.0).0.values, [0.3, 1.0]);
        assert_eq!(searched(&TWO, 5, &|_| f64::NAN).0.values, [0.3, 1.0]);
    }

    #[test]
    fn every_baseline_has_as_many_runs_and_its_values_survive_the_file() {
        type Run = ((bool, Vec<f64>), u64);
        const ONE: [Parameter; 1] = [Parameter::new("interval_s", 5.0, 0.5, 10.0)];
        let runs_of = |name: &str, values: &[f64]| -> Vec<Run> {
            vec![((name == "two", values.to_vec()), 1), ((false, Vec::new()), 2)]
        };
        let cost_of = |runs: &[Run], outcomes: &[f64]| {
            assert_eq!((runs.len(), outcomes.len()), (2, 2));
            outcomes[0]
        };
        let mut counts = BTreeMap::new();
        let (one, two): (&'static [Parameter], &'static [Parameter]) = (&ONE, &TWO);
        let tuned = tune("saat", 9, &[("one", one), ("two", two)], &runs_of, &cost_of, &mut |name, runs: &[Run]| {
            *counts.entry(name.to_owned()).or_insert(0) += runs.len();
            let cost = |((two, values), _): &Run| match (*two, values.len()) {
                (true, _) => bowl(&[3.0, 0.2])(values),
                (false, 1) => bowl(&[1.0])(values),
                _ => 0.0,
            };
            Ok::<_, Infallible>(runs.iter().map(cost).collect())
        });
        let tuned = tuned.unwrap_or_else(|never| match never {});
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [2 * TRIES; 2]);
        assert_eq!((tuned.runs, tuned.tries, tuned.baselines.len()), (2 * TRIES, TRIES, 2));
        let one = tuned.values("one", &ONE).expect("tuned");
        assert!((0.7..1.4).contains(&one[0]), "{one:?}");
        let text = tuned.to_toml().expect("a text");
        assert_eq!(Tuned::from_toml(&text).as_ref(), Ok(&tuned), "{text}");
        assert!(Tuned::from_toml("experiment = \"saat\"\nspeed = 1\n").is_err());
        assert!(tuned.text().contains("one (interval_s ") && Tuned::default().text().contains("published"));
        let other = [Parameter::new("delta", 0.05, 0.01, 1.0)];
        assert_eq!((tuned.values("one", &other), tuned.values("three", &ONE)), (Some(vec![0.05]), None));
    }
}
