//! Elastic: finds the smallest budget that costs no more throughput than is tolerated.
//!
//! A *question* asks if a budget is enough in place of a larger one. Both are put in force in turn, and their throughputs are
//! compared, with their errors. A budget is enough only if it is shown to lose little; as long as nothing is certain there is
//! no bound. With a reservation the search begins with a small budget instead, which is compared with one
//! twice as large, and as long as nothing is certain the small budget stays. See `docs/algorithms/elastic.md`.
//!
//! ```text
//!  climb:   is B enough in place of none?    no: B <- 8 B, up to no bound;  yes: narrow
//!  narrow:  is a smaller one enough, too?    down to one that is not, then between the two, to a factor of 2
//!  settled: the same questions again, upwards and downwards, for a small share of the time
//! ```
//!
//! All decisions are made at completions, so that it does not matter when `tick` is called.

use super::{Completion, Decision, InvalidConfig, MIN_BUDGET, Reason};
use crate::price::Change;
use crate::time::{Duration, Instant};

mod evidence;
mod meter;

use evidence::{Evidence, Verdict};
use meter::{Meter, Rate};

/// The first budget that is tried, in bytes.
const FIRST_BYTES: f64 = 8_388_608.0;
/// Factor between the two budgets of a question in the search. If throughput hardly grows over a factor of eight, its knee is
/// below the smaller budget: a plateau of this width with more growth beyond it is unlikely.
const STEP: f64 = 8.0;
/// The largest budget, in bytes.
const MOST_BYTES: f64 = 1_099_511_627_776.0;
/// The search ends when the smallest budget known to be enough is at most this factor above one that is not.
const FINEST: f64 = 2.0;
/// Part of the time in which the settled search tries larger budgets: too rare to show in a 99th percentile.
const SHARE_UP: f64 = 0.008;
/// Smallest number of completions of an interval, and largest number of comparisons of a question: sums over this many are
/// close to normally distributed.
const SAMPLE: u32 = 32;

/// Settings of [`Config::Elastic`](super::Config::Elastic).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
pub struct ElasticConfig {
    /// Throughput that a smaller budget may cost, as a fraction, 0.001 to 0.5.
    pub tolerance: f64,
}

impl Default for ElasticConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl ElasticConfig {
    pub(super) const DEFAULT: Self = Self { tolerance: 0.025 };
    const RANGE: core::ops::RangeInclusive<f64> = 0.001..=0.5;

    /// Checks that the tolerance is in its range.
    ///
    /// # Errors
    /// The tolerance, if it is out of range.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        InvalidConfig::check(&[(Self::RANGE.contains(&self.tolerance), "tolerance", "from 0.001 to 0.5")])
    }

    fn tolerance_in_range(&self) -> f64 {
        self.tolerance.min(*Self::RANGE.end()).max(*Self::RANGE.start())
    }
}

/// The budget of the present question that is in force: the smaller or the larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Low,
    High,
}

/// Array index of questions about a budget smaller than `enough`.
const DOWN: usize = 0;
/// Array index of questions about a budget larger than `enough`.
const UP: usize = 1;

/// The controller of the `elastic` budget.
pub(super) struct Elastic {
    tolerance: f64,
    /// True if a tenant has a reservation, which takes precedence over throughput.
    reserved: bool,
    /// The smallest budget known to be enough, in bytes; infinite: no bound.
    enough: f64,
    /// The largest budget below `enough` known not to be enough, in bytes; 0: none is known.
    costs: f64,
    /// Largest cost of requests in flight without a bound, in bytes; infinite: not known.
    most: f64,
    /// The smaller budget of the present question, in bytes: is it enough in place of `high`?
    low: f64,
    /// The larger budget of the present question, in bytes; infinite: no bound.
    high: f64,
    asking: bool,
    side: Side,
    /// True if `enough` was set without certainty, and no question about it was answered since.
    unproven: bool,
    /// Least length of a measurement interval, in ns; 0: not known yet.
    shortest: f64,
    /// Length of the first measurement interval, in ns: the least length at the beginning of a question. 0: not known yet.
    sample: f64,
    /// The latest throughput of the present question under `high`.
    before: Option<Rate>,
    /// The throughput of the present question under `low`, measured after `before`; `None` unless the load filled `low`.
    during: Option<Rate>,
    evidence: Evidence,
    /// Mean cost of a request in bytes in the first interval after the last question ended; `None` before that interval.
    usual: Option<f64>,
    /// True if the mean cost of a request in the last interval differed from `usual` by more than the factor [`FINEST`].
    differed: bool,
    /// Mean cost of a request, in bytes.
    mean_cost: f64,
    /// Mean cost of a request, in bytes, with each request weighted by its cost.
    cost: f64,
    /// When the present question was asked.
    asked: Instant,
    /// When the settled search asks its next question, by direction ([`DOWN`], [`UP`]).
    due: [Instant; 2],
    meter: Meter,
    decision: Decision,
}

impl Elastic {
    pub(super) fn new(config: ElasticConfig, now: Instant) -> Self {
        let mut elastic = Self {
            tolerance: config.tolerance_in_range(),
            reserved: false,
            enough: f64::INFINITY,
            costs: 0.0,
            most: f64::INFINITY,
            low: FIRST_BYTES,
            high: f64::INFINITY,
            asking: false,
            side: Side::High,
            unproven: false,
            shortest: 0.0,
            sample: 0.0,
            before: None,
            during: None,
            evidence: Evidence::default(),
            usual: None,
            differed: false,
            mean_cost: 0.0,
            cost: 0.0,
            asked: now,
            due: [now; 2],
            meter: Meter::new(now),
            decision: Decision::initial(now),
        };
        elastic.ask(now, FIRST_BYTES);
        elastic.put_in_force(now, Side::Low);
        elastic
    }

    pub(super) fn reconfigure(&mut self, config: ElasticConfig) {
        self.tolerance = config.tolerance_in_range();
    }

    /// Sets from now on if a tenant has a reservation.
    pub(super) fn set_reserved(&mut self, now: Instant, reserved: bool) {
        match (core::mem::replace(&mut self.reserved, reserved), reserved) {
            // A bound that is known stays; where there is none, what comes at once is in the device before anything is known.
            (false, true) if self.costs == 0.0 || self.enough == f64::INFINITY => {
                self.costs = 0.0;
                self.enough = self.enough.min(FIRST_BYTES / (STEP * STEP));
                self.ask(now, self.enough);
            }
            // A budget that a reservation has kept small is asked about at once.
            (true, false) if self.enough.is_finite() => {
                self.ask(now, self.enough);
            }
            _ => {}
        }
    }

    /// Takes a change of the base cost of requests: scales the budgets so that as many requests of mean size fit as before.
    pub(super) fn rescale(&mut self, now: Instant, change: Change) {
        let more = f64::from(change.base) - f64::from(change.before);
        for budget in [&mut self.enough, &mut self.costs, &mut self.most, &mut self.low, &mut self.high] {
            *budget *= change.factor;
        }
        self.enough = self.enough.max(MIN_BUDGET as f64);
        if self.cost > 0.0 {
            (self.mean_cost, self.cost) = ((self.mean_cost + more).max(1.0), (self.cost + more).max(1.0));
        }
        (self.usual, self.differed, self.before, self.during) = (None, false, None, None);
        self.put_in_force(now, if self.asking && self.low == self.enough { Side::Low } else { Side::High });
    }

    pub(super) fn decision(&self) -> Decision {
        self.decision
    }

    /// The smallest budget known to be enough, in bytes; `u64::MAX` if there is no bound.
    pub(super) fn settled_bytes(&self) -> u64 {
        self.enough as u64
    }

    fn in_force(&self) -> f64 {
        match (self.asking, self.side) {
            (false, _) => self.enough,
            (true, Side::Low) => self.low,
            (true, Side::High) => self.high,
        }
    }

    /// Takes a completion; true if the decision (budget or reason) may have changed.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> bool {
        // A budget beyond what the load has in flight is no bound; the load still fills `low`.
        let least = match self.in_force() {
            // Without a bound, a load that comes and goes fills nothing.
            budget if budget == f64::INFINITY && self.most.is_finite() => self.low.max(self.most / FINEST),
            budget if budget > self.low => self.low,
            _ => f64::INFINITY,
        };
        let ran_empty = done.in_flight_bytes <= done.cost_bytes && !done.holding_back;
        if ran_empty && self.decision.reason == Reason::Initial {
            self.decision.reason = Reason::AppLimited { waited: 0, completions: 1 };
            return true;
        }
        self.meter.observe(done, least, self.shortest).is_some_and(|rate| self.interval(done.now, rate))
    }

    fn interval(&mut self, now: Instant, rate: Rate) -> bool {
        (self.mean_cost, self.cost) = (rate.mean_cost(), rate.cost_of_a_byte());
        if self.sample == 0.0 {
            (self.sample, self.shortest) = (rate.length, rate.length);
            self.meter.restart(now);
            return false;
        }
        if rate.length > FINEST * self.shortest {
            self.shortest = rate.length;
        }
        if self.asking && self.low == self.enough && self.high < self.larger() {
            return self.ask(now, self.enough);
        }
        match (self.asking, self.side) {
            (false, _) => self.ask_again(now, rate),
            (true, Side::Low) => {
                // A budget that the load does not fill cannot cost anything.
                self.during = rate.is_loaded().then_some(rate);
                // At the second comparison of a question downwards, if the search has met no budget that is not enough.
                let is_first = self.costs == 0.0 && self.low < self.enough && self.evidence.count == 1;
                if let (Some(before), true) = (self.before, rate.is_loaded() && is_first) {
                    let loss = 1.0 - rate.bytes / before.bytes;
                    if loss < self.tolerance && self.evidence.loss() < self.tolerance {
                        return self.descend(now, rate, loss);
                    }
                }
                self.put_in_force(now, Side::High)
            }
            (true, Side::High) if !rate.is_loaded() => {
                // Nothing is learned.
                self.decision.reason = rate.too_light();
                self.settle(now, 0.0)
            }
            (true, Side::High) => {
                if let (before, Some(during)) = (self.before.replace(rate).unwrap_or(rate), self.during.take()) {
                    let [before, during, after] = [before, during, rate].map(|rate| (rate.bytes, rate.length));
                    self.evidence.add([before, after], during);
                    if self.evidence.is_round() {
                        self.shortest *= FINEST;
                    }
                    let loss = self.evidence.loss();
                    let is_futile = self.reserved && self.low == self.enough && loss < self.tolerance;
                    match self.evidence.verdict(self.tolerance) {
                        // A reservation would feel each further trial.
                        Verdict::Open if is_futile && self.evidence.is_round() => {
                            (self.decision.reason, self.unproven) = (Reason::IncreaseFutile { gain: loss }, false);
                            return self.settle(now, loss);
                        }
                        Verdict::Open => {}
                        Verdict::Enough => return self.is_enough(now, loss),
                        Verdict::Costs => return self.is_not_enough(now, loss),
                    }
                }
                self.put_in_force(now, Side::Low)
            }
        }
    }

    /// Takes `low`, which seems to be enough, as the new budget, and tries the next smaller one at once. When a budget turns out
    /// not to be enough, the one taken so is asked about again.
    fn descend(&mut self, now: Instant, rate: Rate, loss: f64) -> bool {
        self.take_low(now, loss);
        self.unproven = true;
        if self.asking {
            self.before = Some(rate);
            self.put_in_force(now, Side::Low);
        }
        true
    }

    /// Takes `low` as the budget known to be enough, and asks the next question.
    fn take_low(&mut self, now: Instant, loss: f64) -> bool {
        self.decision.reason = Reason::ReductionFree { loss };
        self.unproven = false;
        self.enough = self.low;
        self.narrow(now, loss)
    }

    fn is_enough(&mut self, now: Instant, loss: f64) -> bool {
        if self.low < self.enough {
            return self.take_low(now, loss);
        }
        (self.decision.reason, self.unproven) = (Reason::IncreaseFutile { gain: loss }, false);
        self.settle(now, loss)
    }

    fn is_not_enough(&mut self, now: Instant, loss: f64) -> bool {
        // No throughput grows faster than the budget.
        self.costs = (self.low / (1.0 - loss)).min(self.enough.min(self.most)).max(self.low);
        if self.high == self.enough {
            self.decision.reason = Reason::ReductionCosts { loss };
            return if self.unproven { self.ask(now, self.enough) } else { self.narrow(now, loss) };
        }
        self.unproven = false;
        self.decision.reason = Reason::IncreasePays { gain: loss };
        self.enough = if self.reserved { self.high } else { f64::INFINITY };
        if self.high == f64::INFINITY { self.settle(now, loss) } else { self.ask(now, self.high) }
    }

    /// The larger budget with which a question upwards compares `low`, in bytes; infinite: no bound.
    fn larger(&self) -> f64 {
        let larger = if self.reserved {
            // Under less than two large requests one large request is in flight, as under any budget, and a disk, which sorts
            // requests, serves two hardly faster than one.
            (FINEST * self.low).max(STEP * self.mean_cost).max(FINEST * self.cost + self.cost)
        } else {
            STEP * self.low
        };
        if larger > MOST_BYTES { f64::INFINITY } else { larger }
    }

    /// Asks the next question of the search, about a budget below `enough`; settles if the search is at its end.
    fn narrow(&mut self, now: Instant, loss: f64) -> bool {
        let upper = self.enough.min(self.most);
        let smaller = if self.costs > 0.0 { libm::sqrt(self.costs * upper) } else { upper / STEP };
        let found = upper <= self.costs * FINEST || smaller < FINEST * self.cost || upper == f64::INFINITY;
        if found { self.settle(now, loss) } else { self.ask(now, smaller) }
    }

    fn settle(&mut self, now: Instant, loss: f64) -> bool {
        // What a question downwards loses is paid for by as much time as makes it tolerable.
        let (direction, times) = if self.low == self.enough {
            (UP, 1.0 / SHARE_UP)
        } else {
            (DOWN, FINEST * (loss / self.tolerance).max(1.0))
        };
        // The question has put the budget that costs something, to latency or throughput, in force for half of its time.
        let cost_ns = 0.5 * now.since(self.asked).as_nanos() as f64;
        self.due[direction] = now + Duration::from_nanos((cost_ns * times) as u64);
        (self.asking, self.usual, self.differed) = (false, None, false);
        self.put_in_force(now, Side::High)
    }

    /// After the search has settled: asks a question again if one is due, or the load has changed.
    fn ask_again(&mut self, now: Instant, rate: Rate) -> bool {
        if self.enough == f64::INFINITY {
            (self.costs, self.most) = (0.0, rate.highest());
            return now >= self.due[DOWN] && self.narrow(now, 0.0);
        }
        if !rate.is_loaded() {
            self.decision.reason = rate.too_light();
            return true;
        }
        // Another load may need another budget.
        let usual = *self.usual.get_or_insert(rate.mean_cost());
        let differs = !(usual / FINEST..=usual * FINEST).contains(&rate.mean_cost());
        if now >= self.due[UP] || core::mem::replace(&mut self.differed, differs) && differs {
            return self.ask(now, self.enough);
        }
        let low = self.enough / FINEST;
        now >= self.due[DOWN] && low > FINEST * self.cost && self.ask(now, low)
    }

    /// Begins the question if the budget `low` is enough in place of the next larger one. Returns true.
    fn ask(&mut self, now: Instant, low: f64) -> bool {
        self.low = low.max(MIN_BUDGET as f64);
        self.high = if self.low < self.enough { self.enough } else { self.larger() };
        (self.evidence, self.before, self.during) = (Evidence::default(), None, None);
        self.shortest = self.sample;
        (self.asked, self.asking) = (now, true);
        self.put_in_force(now, if self.low == self.enough { Side::Low } else { Side::High })
    }

    /// Puts one budget of the present question in force from `now` on, or `enough` if there is no question. Returns true.
    fn put_in_force(&mut self, now: Instant, side: Side) -> bool {
        self.side = side;
        let budget = self.in_force();
        let budget_bytes = if budget > MOST_BYTES { u64::MAX } else { (budget as u64).max(MIN_BUDGET) };
        self.decision = Decision { at: now, budget_bytes, ..self.decision };
        self.meter.restart(now);
        true
    }
}
