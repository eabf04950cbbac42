//! The oracle: the best fixed admission budget of a setup, found by a sweep. An operator with unlimited time would use it.
//!
//! The oracle is the smallest budget that keeps [`KEPT`] of the peak throughput. The peak is the highest throughput of all
//! budgets, including no bound. No controller can know the oracle without trying all budgets on the load that will come.
//!
//! [`Search`] names the budgets to try next and receives their results, so that a caller with several cores can try many at
//! once; [`sweep`] tries them on one core.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use evenkeel_control::admission::Config;

use super::batch::Batch;
use super::{Digest, Execute};
use crate::world::{Failure, Progress, Setup, run};

/// Fraction of the peak throughput that the oracle keeps.
pub const KEPT: f64 = 0.97;

/// The first round tries the cost of an empty request as the budget, and this cost doubled once, twice, up to so many times.
const FIRST_DOUBLINGS: u32 = 13;

/// Number of doublings at which the search stops, even if requests are still throttled: 2^40 times the cost of an empty request.
const MAX_DOUBLINGS: u32 = 40;

/// Number of steps that narrow down the oracle. Each takes the square root of the factor, 2 at first, between the oracle and
/// the next smaller budget: after four steps the factor is 2^(1/16), 4.4 % of the budget.
const HALVINGS: u32 = 4;

/// The result of the sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Oracle {
    /// The smallest budget that keeps [`KEPT`] of the peak throughput, in bytes.
    pub budget_bytes: u64,
    /// Payload bytes per second of all tenants together under `budget_bytes`, mean over the seeds.
    pub bytes_per_s: f64,
    /// The highest throughput of all budgets, including no bound, in payload bytes per second.
    pub peak_bytes_per_s: f64,
    /// Every budget that was tried, with its throughput, smallest budget first; without the run that has no bound.
    pub points: Vec<Point>,
}

/// An admission budget that was tried, and the throughput under it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Admission budget in bytes.
    pub budget_bytes: u64,
    /// Payload bytes per second of all tenants together, mean over the seeds.
    pub bytes_per_s: f64,
}

/// A search for the oracle, in progress.
///
/// The search doubles the budget, from the cost of one empty request up to the first budget that throttles no request. Of
/// these budgets it takes the smallest that reaches [`KEPT`] of the peak throughput, and narrows down the gap to the next
/// smaller one. Throughput need not rise with the budget, but a dip at larger budgets does not matter, as the smallest
/// budget is sought.
#[derive(Clone, Debug)]
pub struct Search {
    smallest: u64,
    unbounded: Option<f64>,
    points: Vec<Point>,
    throttled: bool,
    asked: Vec<Config>,
    place: usize,
    halvings: u32,
}

impl Search {
    /// A search for a pool in which a request costs `base_cost_bytes` on top of its payload.
    pub fn new(base_cost_bytes: u32) -> Self {
        let smallest = u64::from(base_cost_bytes).max(1);
        let fixed = |doubling| Config::Fixed { budget_bytes: smallest << doubling };
        Self {
            smallest,
            unbounded: None,
            points: Vec::new(),
            throttled: true,
            asked: std::iter::once(Config::None).chain((0..=FIRST_DOUBLINGS).map(fixed)).collect(),
            place: 0,
            halvings: 0,
        }
    }

    /// The budgets to try next, the same until [`Search::learn`] is called; empty when the search is over.
    pub fn wants(&self) -> &[Config] {
        &self.asked
    }

    /// Takes the results of the budgets of [`Search::wants`], in their order: throughput in bytes per second, and true if any
    /// request was throttled.
    ///
    /// # Panics
    /// When results and budgets are not equal in number.
    pub fn learn(&mut self, gave: &[(f64, bool)]) {
        assert_eq!(gave.len(), self.asked.len(), "as many answers as questions");
        for (config, &(bytes_per_s, throttled)) in std::mem::take(&mut self.asked).iter().zip(gave) {
            match *config {
                Config::Fixed { budget_bytes } => {
                    let point = Point { budget_bytes, bytes_per_s };
                    let place = self.points.partition_point(|point| point.budget_bytes < budget_bytes);
                    if place == self.points.len() {
                        self.throttled = throttled;
                    }
                    self.points.insert(place, point);
                }
                _ => self.unbounded = Some(bytes_per_s),
            }
        }
        if self.throttled && self.points.len() <= MAX_DOUBLINGS as usize {
            let budget_bytes = self.smallest << self.points.len();
            self.asked = vec![Config::Fixed { budget_bytes }];
            return;
        }
        let enough = KEPT * self.peak();
        let last = self.points.len() - 1;
        self.place = self.points.iter().position(|point| point.bytes_per_s >= enough).unwrap_or(last);
        let Some(below) = self.place.checked_sub(1).filter(|_| self.halvings < HALVINGS) else { return };
        self.halvings += 1;
        let (low, high) = (self.points[below].budget_bytes, self.points[self.place].budget_bytes);
        let between = libm::sqrt(low as f64 * high as f64) as u64;
        self.asked = vec![Config::Fixed { budget_bytes: between }];
    }

    fn peak(&self) -> f64 {
        self.points.iter().map(|point| point.bytes_per_s).fold(self.unbounded.unwrap_or(0.0), f64::max)
    }

    /// The oracle; `None` while the search has budgets to try.
    pub fn found(&self) -> Option<Oracle> {
        let point = self.points.get(self.place).filter(|_| self.asked.is_empty())?;
        Some(Oracle {
            budget_bytes: point.budget_bytes,
            bytes_per_s: point.bytes_per_s,
            peak_bytes_per_s: self.peak(),
            points: self.points.clone(),
        })
    }
}

/// The result of one budget for [`Search::learn`], from its runs: mean throughput, and true if any run throttled a request.
pub fn gave<'a>(runs: impl IntoIterator<Item = &'a Digest>) -> (f64, bool) {
    let (mut sum, mut count, mut throttled) = (0.0, 0.0, false);
    for run in runs {
        sum += run.bytes_per_s;
        count += 1.0;
        throttled |= run.throttled;
    }
    (sum / count, throttled)
}

/// A copy of the setup with `admission` as its admission control.
pub(super) fn with(setup: &Setup, admission: Config) -> Setup {
    let mut setup = setup.clone();
    setup.pool.admission = admission;
    setup
}

/// Finds the oracle of each setup; a setup comes with the seeds of its runs. All searches advance together, and each round
/// of them is one batch of runs.
pub(super) fn oracles<E>(
    name: &str,
    setups: &[(Setup, &[u64])],
    execute: &mut Execute<'_, E>,
) -> Result<Vec<Oracle>, E> {
    let mut searches: Vec<Search> = setups.iter().map(|(setup, _)| Search::new(setup.pool.base_cost_bytes)).collect();
    loop {
        let mut batch = Batch::new();
        for (place, (search, (setup, seeds))) in searches.iter().zip(setups).enumerate() {
            for (question, &config) in search.wants().iter().enumerate() {
                batch.add(&(place, question), &with(setup, config), seeds);
            }
        }
        let mut answers: BTreeMap<usize, Vec<(f64, bool)>> = BTreeMap::new();
        for ((place, _), digests) in batch.execute(name, execute)? {
            answers.entry(place).or_default().push(gave(&digests));
        }
        if answers.is_empty() {
            return Ok(searches.iter().filter_map(Search::found).collect());
        }
        for (place, gave) in answers {
            searches[place].learn(&gave);
        }
    }
}

/// Finds the oracle of `setup`; the setup's own admission control has no effect. Each budget is run once for each seed.
///
/// # Errors
/// As [`run`].
pub fn sweep(
    setup: &Setup,
    seeds: &[u64],
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Oracle, Failure> {
    let execute: &mut Execute<'_, Failure> =
        &mut |_, runs| runs.iter().map(|(setup, seed)| run(setup, *seed, progress).map(Digest::of)).collect();
    oracles("", &[(setup.clone(), seeds)], execute).map(|mut found| found.remove(0))
}
