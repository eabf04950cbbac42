//! The best fixed budget of a setup, found by sweep: what an operator with all the time in the world would configure.
//!
//! It is the smallest budget that keeps [`KEPT`] of the peak throughput, the peak being the most that any budget gives,
//! no bound included. No controller can know it without trying all of them on the very load that will come.
//!
//! [`Search`] says which budgets to try next and takes what they gave, so that a caller with several cores can try many at
//! a time; [`sweep`] does it on one.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use evenkeel_control::admission::Config;

use super::batch::Batch;
use super::{Digest, Execute};
use crate::world::{Failure, Progress, Setup, run};

/// Share of the peak throughput that the oracle keeps.
pub const KEPT: f64 = 0.97;

/// Budgets of the first round: the cost of an empty request, doubled so many times.
const FIRST_DOUBLINGS: u32 = 13;

/// Beyond so many doublings (2^40 empty requests) no request is throttled.
const MAX_DOUBLINGS: u32 = 40;

/// The bracket around the answer is halved (by ratio) so many times: 2^(1/16), 4.4 % of the budget.
const HALVINGS: u32 = 4;

/// The result of the sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Oracle {
    /// The smallest budget that keeps [`KEPT`] of the peak, in bytes.
    pub budget_bytes: u64,
    /// Its throughput: payload of all tenants per second, mean over the seeds.
    pub bytes_per_s: f64,
    /// The most throughput that any budget gave.
    pub peak_bytes_per_s: f64,
    /// Every budget that was tried, smallest first, without the one without bound.
    pub points: Vec<Point>,
}

/// A budget and what it gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes inside.
    pub budget_bytes: u64,
    /// Payload of all tenants per second, mean over the seeds.
    pub bytes_per_s: f64,
}

/// A search on its way.
///
/// It doubles the budget from one empty request up to where it never holds anything back, then narrows down the first
/// step that reaches that share of the peak. Throughput need not rise with the budget: what a dip beyond the first success hides does
/// not matter, as the smallest budget is wanted.
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
    /// A search for a pool with this base cost of a request.
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

    /// The budgets to try next; nothing when the search is over. The same until [`Search::learn`] was called.
    pub fn wants(&self) -> &[Config] {
        &self.asked
    }

    /// Learns the result of each of [`Search::wants`]: throughput, and whether any request was throttled.
    ///
    /// # Panics
    /// When there are not as many.
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

    /// The result; `None` while the search is on.
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

/// The results of the runs of one budget, as [`Search::learn`] wants them.
pub fn gave<'a>(runs: impl IntoIterator<Item = &'a Digest>) -> (f64, bool) {
    let (mut sum, mut count, mut throttled) = (0.0, 0.0, false);
    for run in runs {
        sum += run.bytes_per_s;
        count += 1.0;
        throttled |= run.throttled;
    }
    (sum / count, throttled)
}

/// The setup with this admission.
pub(super) fn with(setup: &Setup, admission: Config) -> Setup {
    let mut setup = setup.clone();
    setup.pool.admission = admission;
    setup
}

/// The oracles of all setups, each with the seeds of its runs; each round of the searches is one batch.
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

/// Finds the oracle of `setup`, whose own admission does not matter. Each budget is run once for each seed.
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
