//! Admission: how much may be in flight?
//!
//! If a back end accepts all requests at once, the scheduler cannot choose which goes next: an important request waits
//! behind all that were handed over before it. Admission control bounds the cost of the requests in flight, so that
//! further requests queue where they can still be reordered.
//!
//! | method | budget (cost that may be in flight) |
//! |---|---|
//! | [`Config::None`] | unbounded |
//! | [`Config::Fixed`] | constant |
//! | [`Config::Elastic`] | the smallest that costs (nearly) no throughput |
//! | [`Config::SlowFast`] | adapted by two loops, see [`SlowFastConfig`] |
//! | [`Config::Theta`] | baseline: latency and its gradient, at each completion |
//! | [`Config::Wbt`] | baseline: halved and doubled around a fixed latency target |
//! | [`Config::Vegas`] | baseline: a small queue over the lowest latency ever seen |
//! | [`Config::Gradient`] | baseline: the ratio of long-term to present latency |
//!
//! Ask [`Admission::fits`] if a request fits, and call [`Admission::admit`] when it enters the back end. When it leaves, call
//! [`Admission::observe`], or [`Admission::forget`] if its latency is not the back end's. Call [`Admission::tick`] at
//! [`Admission::next_tick`] or whenever convenient: the decisions of an adaptive method depend on what was observed and
//! when, not on how punctually `tick` is called.

use alloc::boxed::Box;
use core::cell::Cell;

use crate::price::Change;
use crate::time::{Duration, Instant};
use crate::units::Kind;

mod config;
mod curve;
mod elastic;
mod fixed;
mod gradient;
mod slowfast;
mod theta;
mod vegas;
mod wbt;
#[cfg(feature = "serde")]
mod written;

pub use config::{InvalidConfig, Repairs, SlowFastConfig};
use elastic::Elastic;
pub use elastic::ElasticConfig;
use fixed::Throttle;
use gradient::Gradient;
use slowfast::SlowFast;
use theta::Theta;
use vegas::Vegas;
use wbt::Wbt;

/// The method of admission control, with its settings. Written as a name alone or as a table with `kind`; the default is
/// elastic.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(remote = "Self", tag = "kind", rename_all = "lowercase"))]
pub enum Config {
    /// All requests are admitted at once.
    None,
    /// A constant budget.
    Fixed {
        /// Budget in bytes.
        #[cfg_attr(feature = "serde", serde(rename = "budget", with = "crate::text::AsBytes"))]
        budget_bytes: u64,
    },
    /// The smallest budget that costs no more throughput than is tolerated, found by trials.
    Elastic(ElasticConfig),
    /// SlowFast CoDel: a fast loop keeps the smallest latency of each interval at a target, a slow loop chooses the target.
    SlowFast(SlowFastConfig),
    /// The later rule of SlowFast's authors: the budget shrinks while latency is long or rises.
    Theta,
    /// The rule of Linux's writeback throttle: the budget is halved while latency exceeds the target.
    Wbt {
        /// Target for the smallest latency in each window (100 ms or less): a longer one halves the budget.
        target: Duration,
    },
    /// The rule of TCP Vegas: a limit on requests in flight keeps the estimated queue in the device within bounds.
    Vegas,
    /// A limit on requests in flight that shrinks as latency rises above its long-term mean, by their ratio.
    Gradient,
}

impl Config {
    /// Name as written in configurations and results.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fixed { .. } => "fixed",
            Self::Elastic(_) => "elastic",
            Self::SlowFast(_) => "slowfast",
            Self::Theta => "theta",
            Self::Wbt { .. } => "wbt",
            Self::Vegas => "vegas",
            Self::Gradient => "gradient",
        }
    }

    /// True if the method is a baseline for comparisons, used in simulations only.
    pub const fn is_baseline(&self) -> bool {
        matches!(self, Self::Theta | Self::Wbt { .. } | Self::Vegas | Self::Gradient)
    }

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not make sense, and its required value.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let positive = |holds, setting| InvalidConfig::check(&[(holds, setting, "greater than 0")]);
        match self {
            Self::None | Self::Theta | Self::Vegas | Self::Gradient => Ok(()),
            Self::Fixed { budget_bytes } => positive(*budget_bytes > 0, "budget"),
            Self::Elastic(settings) => settings.validate(),
            Self::SlowFast(settings) => settings.validate(),
            Self::Wbt { target } => positive(!target.is_zero(), "target"),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::Elastic(ElasticConfig::default())
    }
}

/// Reason for the present budget, or for the present latency target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Reason {
    /// There was no decision yet: the initial values are in force.
    #[default]
    Initial,
    /// The operator chose the budget.
    Configured,
    /// No request completed in the interval and none is in flight: the budget stays.
    Idle,
    /// No request completed in the interval although requests are in flight: the budget stays.
    Stalled {
        /// Cost of the requests in flight, in bytes.
        in_flight_bytes: u64,
    },
    /// Even the fastest request of the interval took longer than the target: requests queue in the device all the time,
    /// so the budget shrinks.
    LatencyOverTarget {
        /// Smallest latency of the interval.
        min: Duration,
        /// The target for the smallest latency.
        target: Duration,
    },
    /// The target is met and the budget is in use, so the budget grows.
    LatencyUnderTarget {
        /// Smallest latency of the interval.
        min: Duration,
        /// The target for the smallest latency.
        target: Duration,
    },
    /// The target is met, but a larger budget would change nothing: less than the present one is in use.
    BudgetNotUsed {
        /// Largest cost of the requests in flight since the slow loop last ran, in bytes.
        peak_bytes: u64,
    },
    /// The target is met and the budget is the largest allowed.
    BudgetAtMaximum,
    /// A latency target was drawn around the initial target: there are not enough samples for a fit yet.
    TargetExplored {
        /// The latency around which the target was drawn.
        optimum: Duration,
        /// Number of samples (slow intervals) so far.
        samples: u32,
    },
    /// A latency target was drawn around the optimum of the fitted throughput-latency curve.
    TargetFitted {
        /// The optimum, around which the target was drawn.
        optimum: Duration,
        /// Slope of throughput over ln(latency) in the fitted curve, in MiB/s.
        slope_mib_per_s: f64,
    },
    /// The samples do not determine a throughput-latency curve, because all have one target; the optimum stays.
    FitDegenerate {
        /// Number of samples (slow intervals) so far.
        samples: u32,
    },
    /// The budget did not limit the throughput in the interval, so nothing is learned from it. A method
    /// with a latency target sets the target to its optimum.
    AppLimited {
        /// Number of completions while a request was throttled by the budget.
        waited: u64,
        /// Number of all completions of the interval.
        completions: u64,
    },
    /// A larger budget gains more throughput than the tolerance: the budget grows.
    IncreasePays {
        /// Throughput that the larger budget gains, as a part (0 to 1) of its throughput.
        gain: f64,
    },
    /// A larger budget gains no more throughput than the tolerance: the budget is large enough.
    IncreaseFutile {
        /// Throughput that the larger budget gains, as a part (0 to 1) of its throughput.
        gain: f64,
    },
    /// A smaller budget loses no more throughput than the tolerance: the budget shrinks.
    ReductionFree {
        /// Throughput that the smaller budget loses, as a part (0 to 1) of the larger one's throughput.
        loss: f64,
    },
    /// A smaller budget loses more throughput than the tolerance: the budget stays.
    ReductionCosts {
        /// Throughput that the smaller budget loses, as a part (0 to 1) of the larger one's throughput.
        loss: f64,
    },
    /// The budget is divided by the power, latency · (gradient of latency + 1) / lowest latency; each completion makes half of
    /// that change.
    Power {
        /// The power; 1 on an empty device.
        power: f64,
    },
    /// The limit on requests in flight follows the estimated queue in the back end.
    QueueEstimated {
        /// Estimated number of requests that wait in the back end.
        requests: f64,
    },
    /// The limit on requests in flight follows the ratio of long-term to present latency.
    LatencyGradient {
        /// The ratio times the tolerance of 1.5, bounded to 0.5 to 1.
        gradient: f64,
    },
}

/// A decision of admission control about the budget and the latency target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Time at which the decision was due.
    pub at: Instant,
    /// Cost of requests that may be in flight, in bytes; `u64::MAX` = unbounded.
    pub budget_bytes: u64,
    /// Target for the smallest latency of an interval; `None` for methods without a target.
    pub target: Option<Duration>,
    /// Reason for the size of the budget.
    pub reason: Reason,
    /// Reason for the value of the target: the newest reason of the slow loop of SlowFast CoDel.
    pub target_reason: Reason,
}

impl Decision {
    /// The decision before the first one: no bound.
    const fn initial(now: Instant) -> Self {
        let reason = Reason::Initial;
        Self { at: now, budget_bytes: u64::MAX, target: None, reason, target_reason: reason }
    }
}

/// The smallest budget of `elastic` and the baselines, in bytes: one request of any size is still admitted.
const MIN_BUDGET: u64 = 4 << 10;
/// The largest budget of the baselines, which have no setting for it, in bytes.
const MAX_BUDGET: u64 = 1 << 30;
/// Time between two reports of decisions of a method that may decide at each completion.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// The budget, moved into the range from [`MIN_BUDGET`] to [`MAX_BUDGET`]; NaN becomes the smallest one.
fn bounded(budget: f64) -> f64 {
    budget.min(MAX_BUDGET as f64).max(MIN_BUDGET as f64)
}

/// A request that left the back end, as adaptive methods get it.
#[derive(Clone, Copy)]
struct Completion {
    now: Instant,
    /// Cost of the requests in flight in bytes, this request included.
    in_flight_bytes: u64,
    /// True if another request waits because it does not fit the budget.
    holding_back: bool,
    cost_bytes: u64,
    payload_bytes: u64,
    latency: Duration,
}

impl Completion {
    /// True if the device has nothing left to do, and no request waits because of the budget.
    #[inline]
    fn ran_empty(&self) -> bool {
        self.in_flight_bytes <= self.cost_bytes && !self.holding_back
    }
}

/// Exponential mean of the costs of requests, in bytes, over about the last hundred requests; 0 before the first.
#[derive(Clone, Copy)]
struct MeanCost(f64);

impl MeanCost {
    const fn new() -> Self {
        Self(0.0)
    }

    #[inline]
    fn observe(&mut self, cost_bytes: u64) {
        let cost = cost_bytes as f64;
        self.0 = if self.0 == 0.0 { cost } else { self.0 + (cost - self.0) / 100.0 };
    }

    /// The mean cost in bytes, at least 1; 64 KiB before the first request.
    fn bytes(&self) -> f64 {
        if self.0 == 0.0 { 65_536.0 } else { self.0.max(1.0) }
    }
}

enum Law {
    Constant,
    Elastic(Box<Elastic>),
    SlowFast(Box<SlowFast>),
    Theta(Theta),
    Wbt(Wbt),
    Vegas(Vegas),
    Gradient(Gradient),
}

/// Admission control in front of one back end.
///
/// [`Admission::fits`], [`Admission::admit`], [`Admission::observe`] and [`Admission::forget`] are O(1), a few
/// nanoseconds, and do not allocate; `observe` also closes the intervals of an adaptive method that have ended
/// (at most three, O(history)).
pub struct Admission {
    throttle: Throttle,
    /// True if [`Admission::fits`] returned false last. A cell, so that a scheduler can call it from a closure.
    holding_back: Cell<bool>,
    law: Law,
    next_tick: Instant,
    decision: Decision,
    /// True if there is a decision that [`Admission::tick`] has not reported.
    untold: bool,
    config: Config,
    seed: u64,
}

impl Admission {
    /// Admission control that starts at `now`; `seed` is for the random targets of SlowFast CoDel.
    pub fn new(config: Config, now: Instant, seed: u64) -> Self {
        let mut admission = Self {
            throttle: Throttle::new(u64::MAX),
            holding_back: Cell::new(false),
            law: Law::Constant,
            next_tick: Instant::FAR_FUTURE,
            decision: Decision::initial(now),
            untold: false,
            config: Config::None,
            seed,
        };
        admission.reconfigure(config, now);
        admission
    }

    /// True if a request of this cost fits the budget now.
    ///
    /// It fits if its cost and the cost of the requests in flight together are within the budget. A request larger than the
    /// whole budget fits when the cost in flight does not exceed the budget: it could never enter otherwise. A request that
    /// does not fit counts as throttled until the next call.
    #[inline]
    pub fn fits(&self, cost_bytes: u64) -> bool {
        let fits = self.throttle.fits(cost_bytes);
        self.holding_back.set(!fits);
        fits
    }

    /// The budget in force, in bytes; `u64::MAX` = unbounded.
    #[inline]
    pub fn budget_bytes(&self) -> u64 {
        self.throttle.budget
    }

    /// The budget in force, or while `elastic` tries a smaller one the budget known to be enough, in bytes; `u64::MAX` =
    /// unbounded.
    #[inline]
    pub fn settled_bytes(&self) -> u64 {
        match &self.law {
            Law::Elastic(elastic) => self.throttle.budget.max(elastic.settled_bytes()),
            _ => self.throttle.budget,
        }
    }

    /// True if a request waits because it does not fit the budget.
    #[inline]
    pub(crate) fn is_holding_back(&self) -> bool {
        self.holding_back.get()
    }

    /// True if the budget is found by trials (`elastic`), so that the unit of cost may change.
    #[inline]
    pub(crate) fn is_elastic(&self) -> bool {
        matches!(self.law, Law::Elastic(_))
    }

    /// Records if requests wait for the budget, for callers that do not ask [`Admission::fits`]: the back end applies the
    /// budget itself, or all requests wait for something else.
    #[inline]
    pub fn set_waiting(&self, waiting: bool) {
        self.holding_back.set(waiting);
    }

    /// Sets from now on if a tenant has a reservation, which takes precedence over throughput: requests in flight of other
    /// tenants may not delay it for long. An `elastic` budget of which nothing is known yet then begins small, and grows by
    /// smaller steps.
    pub fn set_reserved(&mut self, now: Instant, reserved: bool) {
        if let Law::Elastic(law) = &mut self.law {
            law.set_reserved(now, reserved);
            self.throttle.budget = law.decision().budget_bytes;
        }
    }

    /// Takes a change of the base cost of requests: the `elastic` budget is scaled so that as many requests fit as before.
    pub(crate) fn rescale(&mut self, now: Instant, change: Change) {
        if let Law::Elastic(law) = &mut self.law {
            law.rescale(now, change);
            let budget_bytes = law.decision().budget_bytes;
            self.throttle.budget = budget_bytes;
            (self.decision.at, self.decision.budget_bytes) = (now, budget_bytes);
        }
    }

    /// Adds the cost of a request that enters the back end.
    #[inline]
    pub fn admit(&mut self, cost_bytes: u64) {
        self.throttle.admit(cost_bytes);
    }

    /// Notes that a request leaves the back end at `now`, after `latency` in it, having moved `payload_bytes`. No method uses
    /// `_kind`.
    #[inline]
    pub fn observe(&mut self, now: Instant, cost_bytes: u64, _kind: Kind, payload_bytes: u64, latency: Duration) {
        if now >= self.next_tick {
            self.close_intervals(now);
        }
        let done = Completion {
            now,
            in_flight_bytes: self.throttle.inside,
            holding_back: self.holding_back.get(),
            cost_bytes,
            payload_bytes,
            latency,
        };
        let changed = match &mut self.law {
            Law::Constant => None,
            Law::Elastic(law) => law.observe(&done).then(|| {
                let decision = law.decision();
                (decision.reason, decision.budget_bytes)
            }),
            Law::SlowFast(law) => {
                law.observe(&done);
                None
            }
            Law::Wbt(law) => {
                law.observe(&done);
                None
            }
            Law::Theta(law) => Some((law.observe(&done), law.budget_bytes())),
            Law::Vegas(law) => Some((law.observe(&done), law.budget_bytes())),
            Law::Gradient(law) => Some((law.observe(&done), law.budget_bytes())),
        };
        if let Some((reason, budget_bytes)) = changed {
            self.throttle.budget = budget_bytes;
            self.decision.at = now;
            self.decision.budget_bytes = budget_bytes;
            self.decision.reason = reason;
        }
        self.throttle.release(cost_bytes);
    }

    /// Notes that a request has left whose latency is not the back end's, because it was cancelled or failed at once.
    #[inline]
    pub fn forget(&mut self, cost_bytes: u64) {
        self.throttle.release(cost_bytes);
    }

    /// Time at which [`Admission::tick`] should be called next; `Instant::FAR_FUTURE` = never.
    #[inline]
    pub fn next_tick(&self) -> Instant {
        self.next_tick
    }

    /// Closes intervals that are over at `now`; returns the newest decision if something was decided since the last call.
    pub fn tick(&mut self, now: Instant) -> Option<Decision> {
        if now >= self.next_tick {
            self.close_intervals(now);
        }
        core::mem::take(&mut self.untold).then_some(self.decision)
    }

    /// The decision in force.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Cost of requests in flight, in bytes.
    pub fn in_flight_bytes(&self) -> u64 {
        self.throttle.inside
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings in force; requests in flight stay counted.
    ///
    /// An adaptive method keeps what it has learned when only its own settings change. Settings that
    /// [`SlowFastConfig::validate`] refuses are moved into their range.
    pub fn reconfigure(&mut self, config: Config, now: Instant) {
        match (config, &mut self.law) {
            (Config::None, _) => self.begin(Law::Constant, now, u64::MAX),
            (Config::Fixed { budget_bytes }, _) => self.begin(Law::Constant, now, budget_bytes),
            (Config::SlowFast(settings), Law::SlowFast(law)) => {
                law.reconfigure(settings, now);
                self.apply();
            }
            (Config::SlowFast(settings), _) => {
                self.law = Law::SlowFast(Box::new(SlowFast::new(settings, now, self.seed)));
                self.apply();
            }
            (Config::Elastic(settings), Law::Elastic(law)) => law.reconfigure(settings),
            (Config::Elastic(settings), _) => {
                let law = Box::new(Elastic::new(settings, now));
                let budget_bytes = law.decision().budget_bytes;
                self.begin(Law::Elastic(law), now, budget_bytes);
            }
            (Config::Wbt { target }, Law::Wbt(law)) => law.set_target(target),
            (Config::Theta, Law::Theta(_)) | (Config::Vegas, Law::Vegas(_)) | (Config::Gradient, Law::Gradient(_)) => {}
            (Config::Wbt { target }, _) => {
                let law = Wbt::new(target, now);
                let budget_bytes = law.budget_bytes();
                self.begin(Law::Wbt(law), now, budget_bytes);
                self.decision.target = Some(target);
            }
            (Config::Theta, _) => {
                let law = Theta::new();
                let budget_bytes = law.budget_bytes();
                self.begin(Law::Theta(law), now, budget_bytes);
            }
            (Config::Vegas, _) => {
                let law = Vegas::new();
                let budget_bytes = law.budget_bytes();
                self.begin(Law::Vegas(law), now, budget_bytes);
            }
            (Config::Gradient, _) => {
                let law = Gradient::new();
                let budget_bytes = law.budget_bytes();
                self.begin(Law::Gradient(law), now, budget_bytes);
            }
        }
        self.config = config;
    }

    /// Puts another method (`law`) in force, with its first budget.
    fn begin(&mut self, law: Law, now: Instant, budget_bytes: u64) {
        let reason = if matches!(law, Law::Constant) { Reason::Configured } else { Reason::Initial };
        self.next_tick = match &law {
            Law::Constant => Instant::FAR_FUTURE,
            Law::Wbt(law) => law.next_tick(),
            _ => now + TELL_EVERY,
        };
        self.law = law;
        self.throttle.budget = budget_bytes;
        self.decision = Decision { at: now, budget_bytes, target: None, reason, target_reason: Reason::Initial };
        self.untold = true;
    }

    #[cold]
    fn close_intervals(&mut self, now: Instant) {
        match &mut self.law {
            Law::Constant => {}
            Law::SlowFast(law) => {
                let closed = law.close_intervals(now, self.throttle.inside);
                self.next_tick = law.next_tick();
                if closed {
                    self.apply();
                }
            }
            Law::Wbt(law) => {
                let at = law.next_tick();
                if let Some(reason) = law.close(now) {
                    let (budget_bytes, target) = (law.budget_bytes(), self.decision.target);
                    self.throttle.budget = budget_bytes;
                    self.decision = Decision { at, budget_bytes, target, reason, target_reason: Reason::Configured };
                    self.untold = true;
                }
                self.next_tick = law.next_tick();
            }
            Law::Elastic(_) | Law::Theta(_) | Law::Vegas(_) | Law::Gradient(_) => {
                self.untold = self.decision.at + TELL_EVERY >= self.next_tick;
                self.next_tick = now + TELL_EVERY;
            }
        }
    }

    /// Puts the newest decision of SlowFast CoDel in force.
    fn apply(&mut self) {
        if let Law::SlowFast(law) = &self.law {
            self.decision = law.decision();
            self.throttle.budget = self.decision.budget_bytes;
            self.next_tick = law.next_tick();
            self.untold = true;
        }
    }
}
