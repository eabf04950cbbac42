//! Admission: how much may be in flight?
//!
//! A back end that accepts everything at once takes the choice of what goes next away from the scheduler: a request
//! that matters waits behind all that was handed over before it. Admission bounds the cost of the requests in flight, so
//! that the rest queues where it can still be reordered.
//!
//! | answer | budget |
//! |---|---|
//! | [`Config::None`] | unbounded |
//! | [`Config::Fixed`] | constant |
//! | [`Config::Elastic`] | the smallest that costs no throughput |
//! | [`Config::SlowFast`] | adapted by two loops, see [`SlowFastConfig`] |
//! | [`Config::Theta`] | baseline: latency and its gradient, at each completion |
//! | [`Config::Wbt`] | baseline: halved and doubled around a fixed latency target |
//! | [`Config::Vegas`] | baseline: a small queue over the lowest latency ever seen |
//! | [`Config::Gradient`] | baseline: the ratio of long-term to present latency |
//!
//! Ask [`Admission::fits`], take in with [`Admission::admit`], give back with [`Admission::observe`] (it says something
//! about the back end) or [`Admission::forget`] (it does not). Call [`Admission::tick`] at [`Admission::next_tick`] or
//! whenever convenient: what an adaptive answer decides depends on what was observed and when, not on how punctually
//! it is called.

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

/// Which answer, with its settings. As text a name alone or a table with `kind`; the default is elastic.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(remote = "Self", tag = "kind", rename_all = "lowercase"))]
pub enum Config {
    /// Everything is admitted at once.
    None,
    /// A constant budget.
    Fixed {
        /// Budget in bytes.
        #[cfg_attr(feature = "serde", serde(rename = "budget", with = "crate::text::AsBytes"))]
        budget_bytes: u64,
    },
    /// The smallest budget that costs no throughput.
    Elastic(ElasticConfig),
    /// SlowFast CoDel: a fast loop keeps the smallest latency at a target, a slow one chooses the target.
    SlowFast(SlowFastConfig),
    /// The later rule of SlowFast's authors: the budget shrinks while latency is long or rises.
    Theta,
    /// The rule of Linux's writeback throttle: the budget is halved while latency exceeds the target.
    Wbt {
        /// Smallest latency of a window that is still good.
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

    /// True if the method is there to compare with, for simulations alone.
    pub const fn is_baseline(&self) -> bool {
        matches!(self, Self::Theta | Self::Wbt { .. } | Self::Vegas | Self::Gradient)
    }

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not, and what would be right.
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

/// The concern that goes before throughput.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Care {
    /// Nothing.
    #[default]
    None,
    /// A reservation: what is in flight of others may not keep it waiting for long.
    Reservation,
    /// A latency target, with or without reservations: latency shows each larger budget that is tried.
    Target,
}

/// Why the controller decided what it decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No decision yet: the starting values.
    Initial,
    /// The operator chose the budget.
    Configured,
    /// Nothing completed and nothing is in flight: nothing is known, nothing changes.
    Idle,
    /// Nothing completed although requests are in flight: nothing is known, nothing changes.
    Stalled {
        /// Cost of the requests in flight, in bytes.
        in_flight_bytes: u64,
    },
    /// Even the fastest request of the interval took longer than the target: a queue that stays, so the budget shrinks.
    LatencyOverTarget {
        /// Smallest latency of the interval.
        min: Duration,
        /// The target for the smallest latency.
        target: Duration,
    },
    /// The target is met and the budget is in use, so it grows.
    LatencyUnderTarget {
        /// Smallest latency of the interval.
        min: Duration,
        /// The target for the smallest latency.
        target: Duration,
    },
    /// The target is met, but a larger budget would change nothing: less than the present one is in use.
    BudgetNotUsed {
        /// The most that was in flight lately, in bytes.
        peak_bytes: u64,
    },
    /// The target is met and the budget is the largest allowed.
    BudgetAtMaximum,
    /// A target was drawn around the optimum without a fit: not enough samples yet.
    TargetExplored {
        /// The centre of the draw.
        optimum: Duration,
        /// Samples in the history.
        samples: u32,
    },
    /// A target was drawn around the optimum of the fitted throughput-latency curve.
    TargetFitted {
        /// The centre of the draw.
        optimum: Duration,
        /// Slope of the curve against ln(latency), in MiB/s.
        slope_mib_per_s: f64,
    },
    /// The samples do not determine a curve (all at one target); the optimum stays.
    FitDegenerate {
        /// Samples in the history.
        samples: u32,
    },
    /// The budget was not what limited the throughput, so the interval teaches nothing; the target is the optimum.
    AppLimited {
        /// Completions while a request was throttled by the budget.
        waited: u64,
        /// All completions of the interval.
        completions: u64,
    },
    /// A larger budget brings more throughput than is tolerated to be lost.
    IncreasePays {
        /// Part of the larger budget's throughput that it gains.
        gain: f64,
    },
    /// A larger budget gains no more throughput than is tolerated to be lost: the budget is big enough.
    IncreaseFutile {
        /// Part of the larger budget's throughput that it gains.
        gain: f64,
    },
    /// A smaller budget is enough too.
    ReductionFree {
        /// Part of the larger budget's throughput that the smaller one loses.
        loss: f64,
    },
    /// A smaller budget costs more throughput than is tolerated: the budget is small enough.
    ReductionCosts {
        /// Part of the larger budget's throughput that the smaller one loses.
        loss: f64,
    },
    /// The budget is divided by latency · (gradient of latency + 1) / lowest latency, half of it at each completion.
    Power {
        /// The divisor; 1 on an empty device.
        power: f64,
    },
    /// The limit follows the estimated queue.
    QueueEstimated {
        /// Requests that wait in the back end.
        requests: f64,
    },
    /// The limit follows the ratio of long-term to present latency.
    LatencyGradient {
        /// The ratio times the tolerance of 1.5, bounded to 0.5 to 1.
        gradient: f64,
    },
}

/// The controller's decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// When the decision was due.
    pub at: Instant,
    /// Bytes that may be in flight; `u64::MAX` = unbounded.
    pub budget_bytes: u64,
    /// Latency the controller aims at, if it has an aim.
    pub target: Option<Duration>,
    /// Why the budget is what it is.
    pub reason: Reason,
    /// Why the target is what it is: the newest reason of the loop that sets it.
    pub target_reason: Reason,
}

impl Decision {
    /// No bound and no reason yet.
    const fn initial(now: Instant) -> Self {
        let reason = Reason::Initial;
        Self { at: now, budget_bytes: u64::MAX, target: None, reason, target_reason: reason }
    }
}

/// The smallest budget of `elastic` and the baselines, in bytes: one request of any size still enters.
const MIN_BUDGET: u64 = 4 << 10;
/// The largest budget of the answers that have no setting for it, in bytes.
const MAX_BUDGET: u64 = 1 << 30;
/// How often an answer that changes at each completion reports its decision.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// A budget within bounds; what is not a number becomes the smallest.
fn bounded(budget: f64) -> f64 {
    budget.min(MAX_BUDGET as f64).max(MIN_BUDGET as f64)
}

/// A request that has left, as adaptive answers see it.
#[derive(Clone, Copy)]
struct Completion {
    now: Instant,
    /// Cost in flight, this request included.
    in_flight_bytes: u64,
    /// A request waits because it does not fit.
    holding_back: bool,
    cost_bytes: u64,
    payload_bytes: u64,
    latency: Duration,
}

/// Mean cost of requests, exponentially over about the last hundred.
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

    /// The mean; 64 KiB before the first request, and at least 1.
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
/// nanoseconds, and do not allocate; `observe` closes an interval of the adaptive answers when one has ended
/// (at most three, O(history)).
pub struct Admission {
    throttle: Throttle,
    /// True if the last answer of [`Admission::fits`] was no. A cell, so that a scheduler can ask from a closure.
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
    /// A controller that starts at `now`; `seed` feeds exploration.
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

    /// True if a request of this cost fits now.
    ///
    /// It fits if the sum stays within the budget. A request larger than the whole budget fits when what is in flight
    /// does not exceed the budget: it could not enter otherwise. A request that does not fit counts as throttled until
    /// the next one is admitted.
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

    /// The budget in force, or the settled one while a smaller one is being tried, in bytes; `u64::MAX` = unbounded.
    #[inline]
    pub fn settled_bytes(&self) -> u64 {
        match &self.law {
            Law::Elastic(elastic) => self.throttle.budget.max(elastic.settled_bytes()),
            _ => self.throttle.budget,
        }
    }

    /// True if a request waits because it does not fit.
    #[inline]
    pub(crate) fn is_holding_back(&self) -> bool {
        self.holding_back.get()
    }

    /// True if the budget is found by trials (`elastic`), so that the unit of cost may change.
    #[inline]
    pub(crate) fn is_elastic(&self) -> bool {
        matches!(self.law, Law::Elastic(_))
    }

    /// Records whether requests wait for the budget, where [`Admission::fits`] is not asked: the back end has the throttle,
    /// or requests wait for something else.
    #[inline]
    pub fn set_waiting(&self, waiting: bool) {
        self.holding_back.set(waiting);
    }

    /// Sets what goes before throughput from now on. Where anything does, the `elastic` budget begins small if nothing is
    /// known of it, and grows by smaller steps.
    pub fn set_care(&mut self, now: Instant, care: Care) {
        if let Law::Elastic(law) = &mut self.law {
            law.set_care(now, care);
            self.throttle.budget = law.decision().budget_bytes;
        }
    }

    /// Takes a change of the base cost: the `elastic` budget has room for as many requests as before.
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

    /// A request has left after `latency` in the back end, having moved `payload_bytes`. No method uses `_kind`.
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

    /// A request has left that says nothing about the back end (cancelled, failed at once).
    #[inline]
    pub fn forget(&mut self, cost_bytes: u64) {
        self.throttle.release(cost_bytes);
    }

    /// When [`Admission::tick`] wants to run next; `Instant::FAR_FUTURE` = never.
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

    /// Changes the settings in force; what is in flight stays counted.
    ///
    /// An adaptive answer keeps what it has learned when only its own settings change. Settings that
    /// [`SlowFastConfig::validate`] refuses are moved into range.
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

    /// Puts a law with a first budget in force.
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

    /// Puts what SlowFast CoDel decided in force.
    fn apply(&mut self) {
        if let Law::SlowFast(law) = &self.law {
            self.decision = law.decision();
            self.throttle.budget = self.decision.budget_bytes;
            self.next_tick = law.next_tick();
            self.untold = true;
        }
    }
}
