//! Elastic: finds the smallest budget that costs no more throughput than is tolerated.
//!
//! A *question* asks if a budget is enough in place of a larger one. Both are put in force in turn, and their throughputs are
//! compared, with their errors. A budget is enough only if it is shown to lose little; as long as nothing is certain there is
//! no bound. With a reservation the search begins with a small budget instead, which is compared with one
//! twice as large, and as long as nothing is certain the small budget stays. Otherwise the first budget grows from the smallest
//! one until requests take [`FIRST_LATENCY`]. In place of no bound, a multiple of what the device completes in that time is in
//! force. See `docs/algorithms/elastic.md`.
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

/// The largest first budget, in bytes.
const FIRST_BYTES: f64 = 8_388_608.0;
/// Latency at which the first budget stops growing, in ns: a disk completes ten random requests in this time. The budget in
/// place of no bound follows from it: what is in flight delays all that comes later.
const FIRST_LATENCY: f64 = 1e8;
/// Factor between the two budgets of a question in the search. If throughput hardly grows over a factor of eight, its knee is
/// below the smaller budget: a plateau of this width with more growth beyond it is unlikely.
const STEP: f64 = 8.0;
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
}

/// The budget of the present question that is in force: the smaller or the larger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Side {
    Low,
    #[default]
    High,
}

/// The controller of the `elastic` budget.
#[derive(Default)]
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
    /// The larger budget of the present question, `enough` if there is none, in bytes; infinite: no bound.
    high: f64,
    /// The largest budget in force in a question: the cost that the device completes in [`STEP`] times [`FIRST_LATENCY`], in
    /// bytes. Without a question [`STEP`] times as much may be in force. Infinite: not known yet.
    ceiling: f64,
    /// The smallest budget that tells something as the larger one of a question, in bytes.
    least_high: f64,
    /// The smallest latency so far, in ns.
    quickest: f64,
    asking: bool,
    side: Side,
    /// True if `enough` was set without certainty, and no question about it was answered since.
    unproven: bool,
    /// Least length of a measurement interval, in ns; 0: not known yet.
    shortest: f64,
    /// Length of the first measurement interval without a stall, in ns: the least length at the beginning of a question. 0: not
    /// known yet.
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
    /// Mean cost of a request, in bytes, with each request weighted by its cost.
    cost: f64,
    /// When the present question was asked.
    asked: Instant,
    /// When the settled search next asks about a budget smaller than `enough`.
    down_due: Instant,
    /// When the settled search next asks about a budget larger than `enough`.
    up_due: Instant,
    /// Mean latency in the last interval under the larger budget, in ns; 0: not known yet.
    latency: f64,
    meter: Meter,
    /// When the budget was last put in force.
    at: Instant,
    reason: Reason,
}

impl Elastic {
    pub(super) fn new(config: ElasticConfig, now: Instant) -> Self {
        let none = f64::INFINITY;
        let mut elastic = Self { enough: none, most: none, ceiling: none, quickest: none, ..Self::default() };
        elastic.reconfigure(config);
        elastic.ask(now, MIN_BUDGET as f64);
        elastic.put_in_force(now, Side::Low);
        elastic
    }

    pub(super) fn reconfigure(&mut self, config: ElasticConfig) {
        self.tolerance = config.tolerance.min(*ElasticConfig::RANGE.end()).max(*ElasticConfig::RANGE.start());
    }

    /// Sets from now on if a tenant has a reservation.
    pub(super) fn set_reserved(&mut self, now: Instant, reserved: bool) {
        match (core::mem::replace(&mut self.reserved, reserved), reserved) {
            // A bound that is known stays; where there is none, what comes at once is in the device before anything is known.
            (false, true) if self.costs == 0.0 || self.enough == f64::INFINITY => {
                (self.costs, self.enough) = (0.0, self.enough.min(FIRST_BYTES / (STEP * STEP)));
                self.ask(now, self.enough);
            }
            // The reservation may have kept the budget small.
            (true, false) => self.up_due = now,
            _ => {}
        }
    }

    /// Takes a change of the base cost of requests: scales the budgets so that as many requests of mean size fit as before.
    pub(super) fn rescale(&mut self, now: Instant, change: Change) {
        let Self { enough, costs, most, low, high, ceiling, .. } = self;
        for budget in [enough, costs, most, low, high, ceiling] {
            *budget *= change.factor;
        }
        self.enough = self.enough.max(MIN_BUDGET as f64);
        (self.usual, self.differed) = (None, false);
        self.put_in_force(now, self.side);
    }

    pub(super) fn decision(&self) -> Decision {
        let budget = if self.side == Side::Low { self.low } else { self.high };
        // A client that sends more than the device completes would fill the device for good.
        let ceiling = if self.asking { self.ceiling } else { STEP * self.ceiling };
        let budget_bytes = (budget.min(ceiling) as u64).max(MIN_BUDGET);
        Decision { budget_bytes, reason: self.reason, ..Decision::initial(self.at) }
    }

    /// The smallest budget known to be enough, in bytes; `u64::MAX` if there is no bound.
    pub(super) fn settled_bytes(&self) -> u64 {
        self.enough as u64
    }

    /// Takes a completion; true if the decision (budget or reason) may have changed.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> bool {
        // A budget beyond what the load has in flight is no bound; the load still fills `low`.
        let least = match self.side {
            // Without a bound, a load that comes and goes fills nothing.
            Side::High if self.high == f64::INFINITY && self.most.is_finite() => self.low.max(self.most / FINEST),
            Side::High if self.high > self.low => self.low,
            _ => f64::INFINITY,
        };
        if done.ran_empty() && self.reason == Reason::Initial {
            self.reason = Reason::AppLimited { waited: 0, completions: 1 };
            return true;
        }
        let latency = done.latency.as_nanos() as f64;
        self.quickest = self.quickest.min(latency);
        // Where even a request alone takes long, another one beside it may take as long again.
        let is_quick = latency < FIRST_LATENCY.max(FINEST * self.quickest) && done.now - done.latency >= self.at;
        if is_quick && self.sample == 0.0 && self.low < self.enough.min(FIRST_BYTES) {
            self.low *= FINEST;
            return self.put_in_force(done.now, Side::Low);
        }
        self.meter.observe(done, least, self.shortest).is_some_and(|rate| self.interval(done.now, rate))
    }

    fn interval(&mut self, now: Instant, rate: Rate) -> bool {
        self.cost = rate.of.squares / rate.of.cost;
        // With a reservation trials are to be short.
        self.latency = if self.side == Side::High && !self.reserved { rate.latency } else { self.latency };
        // Under less than two large requests one large request is in flight, as under any budget, and a disk, which sorts
        // requests, serves two hardly faster than one.
        self.least_high = (STEP * rate.mean_cost()).max(FINEST * self.cost + self.cost);
        self.ceiling = self.least_high.max(rate.of.cost / rate.length * STEP * FIRST_LATENCY);
        // A stall of the device, which makes most of an interval, says nothing about the length that intervals need.
        let length = rate.length - if FINEST * rate.of.gap > rate.length { rate.of.gap } else { 0.0 };
        if self.sample == 0.0 {
            (self.sample, self.shortest) = (length.max(1.0), length.max(1.0));
            self.meter.restart(now, self.latency);
            return false;
        }
        self.shortest = if length > FINEST * self.shortest { length } else { self.shortest };
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
                let loss = self.before.map_or(1.0, |before| 1.0 - rate.bytes / before.bytes);
                if rate.is_loaded() && is_first && loss.max(self.evidence.loss()) < self.tolerance {
                    // Takes `low`, and tries the next smaller budget at once. When one turns out not to be enough, the last
                    // one that was taken so is asked about again.
                    self.is_enough(now, loss);
                    self.unproven = true;
                    if self.asking {
                        self.before = Some(rate);
                        self.put_in_force(now, Side::Low);
                    }
                    return true;
                }
                self.put_in_force(now, Side::High)
            }
            (true, Side::High) if !rate.is_loaded() => {
                // Nothing is learned.
                self.reason = rate.too_light();
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
                    // A reservation would feel each further trial upwards. Downwards a round of comparisons says more than the
                    // two by which the search takes a budget at first.
                    let may_end = if self.low < self.enough { self.costs == 0.0 } else { self.reserved };
                    match self.evidence.verdict(self.tolerance) {
                        Verdict::Open if may_end && loss < self.tolerance && self.evidence.is_round() => {
                            self.unproven = (self.low < self.enough) & self.is_enough(now, loss);
                            return true;
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

    /// Takes `low` as the budget known to be enough, and asks the next question.
    fn is_enough(&mut self, now: Instant, loss: f64) -> bool {
        self.unproven = false;
        if self.low < self.enough {
            (self.enough, self.reason) = (self.low, Reason::ReductionFree { loss });
            return self.narrow(now, loss);
        }
        self.reason = Reason::IncreaseFutile { gain: loss };
        self.settle(now, loss)
    }

    fn is_not_enough(&mut self, now: Instant, loss: f64) -> bool {
        // No throughput grows faster than the budget.
        self.costs = (self.low / (1.0 - loss)).min(self.enough.min(self.most)).max(self.low);
        if self.high == self.enough {
            self.reason = Reason::ReductionCosts { loss };
            return if self.unproven { self.ask(now, self.enough) } else { self.narrow(now, loss) };
        }
        (self.unproven, self.reason) = (false, Reason::IncreasePays { gain: loss });
        self.enough = if self.reserved { self.high } else { f64::INFINITY };
        if self.high == f64::INFINITY { self.settle(now, loss) } else { self.ask(now, self.high) }
    }

    /// The larger budget with which a question upwards compares `low`, in bytes; infinite: no bound.
    fn larger(&self) -> f64 {
        let larger = if self.reserved { self.least_high.max(FINEST * self.low) } else { STEP * self.low };
        if larger > STEP * self.ceiling { f64::INFINITY } else { larger }
    }

    /// Asks the next question of the search, about a budget below `enough`; settles if the search is at its end.
    fn narrow(&mut self, now: Instant, loss: f64) -> bool {
        let upper = self.enough.min(self.most);
        let smaller = if self.costs > 0.0 { libm::sqrt(self.costs * upper) } else { upper / STEP };
        let found = upper <= self.costs * FINEST || smaller < FINEST * self.cost || upper == f64::INFINITY;
        if found { self.settle(now, loss) } else { self.ask(now, smaller) }
    }

    fn settle(&mut self, now: Instant, loss: f64) -> bool {
        // The question has put the budget that costs something, to latency or throughput, in force for half of its time.
        let cost_ns = 0.5 * now.since(self.asked).as_nanos() as f64;
        let wait = |times: f64| now + Duration::from_nanos((cost_ns * times) as u64);
        if self.low == self.enough {
            self.up_due = wait(1.0 / SHARE_UP);
        } else {
            // What the question has lost is paid for by as much time as makes it tolerable.
            self.down_due = wait(FINEST * (loss / self.tolerance).max(1.0));
        }
        (self.high, self.asking, self.usual, self.differed) = (self.enough, false, None, false);
        self.put_in_force(now, Side::High)
    }

    /// After the search has settled: asks a question again if one is due, or the load has changed.
    fn ask_again(&mut self, now: Instant, rate: Rate) -> bool {
        if self.enough == f64::INFINITY {
            (self.costs, self.most) = (0.0, rate.of.highest as f64);
            return now >= self.down_due && self.narrow(now, 0.0);
        }
        if !rate.is_loaded() {
            self.reason = rate.too_light();
            return true;
        }
        // Another load may need another budget.
        let usual = *self.usual.get_or_insert(rate.mean_cost());
        let differs = !(usual / FINEST..=usual * FINEST).contains(&rate.mean_cost());
        if now >= self.up_due || core::mem::replace(&mut self.differed, differs) && differs {
            return self.ask(now, self.enough);
        }
        let low = self.enough / FINEST;
        now >= self.down_due && low > FINEST * self.cost && self.ask(now, low)
    }

    /// Begins the question if the budget `low` is enough in place of the next larger one. Returns true.
    fn ask(&mut self, now: Instant, low: f64) -> bool {
        self.low = low.max(MIN_BUDGET as f64);
        self.high = if self.low < self.enough { self.enough } else { self.larger() };
        (self.evidence, self.before, self.during) = (Evidence::default(), None, None);
        (self.asked, self.asking, self.shortest) = (now, true, self.sample);
        self.put_in_force(now, if self.low == self.enough { Side::Low } else { Side::High })
    }

    /// Puts one budget of the present question in force from `now` on, or `enough` if there is no question. Returns true.
    fn put_in_force(&mut self, now: Instant, side: Side) -> bool {
        (self.side, self.at) = (side, now);
        self.meter.restart(now, self.latency);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest least length of an interval, in ns, on a device that completes ten requests at a time, one each millisecond,
    /// and stands still for 3 s before completion number `stalled`.
    fn longest_beside_a_stall(stalled: u64) -> f64 {
        let (mut elastic, mut now) = (Elastic::new(ElasticConfig::DEFAULT, Instant::ZERO), Instant::ZERO);
        let stall = Duration::from_secs(3);
        (0..2_000_u64).fold(0.0, |longest, number| {
            now += Duration::from_millis(1) + if number == stalled { stall } else { Duration::ZERO };
            let waits = (stalled..stalled + 10).contains(&number);
            let latency = Duration::from_millis(10) + if waits { stall } else { Duration::ZERO };
            let (cost_bytes, payload_bytes, in_flight_bytes) = (MIN_BUDGET, MIN_BUDGET, 10 * MIN_BUDGET);
            let holding_back = true;
            elastic.observe(&Completion { now, in_flight_bytes, holding_back, cost_bytes, payload_bytes, latency });
            elastic.shortest.max(longest)
        })
    }

    #[test]
    fn nothing_counts_before_requests_would_have_been_replaced_under_the_larger_budget() {
        for larger_ms in [0, 1, 100, 1_000] {
            let (mut meter, mut now) = (Meter::default(), Instant::ZERO);
            meter.restart(now, f64::from(larger_ms) * 1e6);
            let (cost_bytes, payload_bytes, in_flight_bytes) = (MIN_BUDGET, MIN_BUDGET, 2 * MIN_BUDGET);
            let (holding_back, latency) = (true, Duration::from_millis(2));
            let rate = loop {
                now += Duration::from_millis(1);
                let done = Completion { now, in_flight_bytes, holding_back, cost_bytes, payload_bytes, latency };
                if let Some(rate) = meter.observe(&done, f64::INFINITY, 0.0) {
                    break rate;
                }
            };
            let began_ms = now.since(Instant::ZERO).as_millis_f64() - rate.length / 1e6;
            let least_ms = 2.0 * f64::from(larger_ms);
            assert!((least_ms..least_ms.max(32.0) + 5.0).contains(&began_ms), "{began_ms} of {larger_ms} ms");
            assert!((rate.latency - 2e6).abs() < 1.0, "{}", rate.latency);
        }
    }

    #[test]
    fn a_stall_makes_no_question_longer() {
        for stalled in (0..1_500).step_by(7) {
            let longest = longest_beside_a_stall(stalled);
            assert!(longest < 5e8, "completion {stalled}: {longest} ns");
        }
    }
}
