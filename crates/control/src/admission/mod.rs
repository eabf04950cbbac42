//! Admission: how much may be inside the back end?
//!
//! A back end that accepts everything at once takes the choice of what goes next away from the scheduler: a request
//! that matters waits behind all that was handed over before it. Admission bounds the cost of what is inside, so
//! that the rest queues where it can still be reordered.
//!
//! | answer | budget |
//! |---|---|
//! | [`Config::None`] | unbounded |
//! | [`Config::Fixed`] | constant |
//! | [`Config::SlowFast`] | adapted by two loops, see [`SlowFastConfig`] |
//!
//! Ask [`Admission::fits`], take in with [`Admission::admit`], give back with [`Admission::observe`] (it says something
//! about the back end) or [`Admission::forget`] (it does not). Call [`Admission::tick`] at [`Admission::next_tick`] or
//! whenever convenient: what an adaptive answer decides depends on what was observed and when, not on how punctually
//! it is called.

use alloc::boxed::Box;
use core::cell::Cell;
use core::fmt;

use crate::time::{Duration, Instant};

mod config;
mod curve;
mod fixed;
mod slowfast;

pub use config::{InvalidConfig, Repairs, SlowFastConfig};
use fixed::Throttle;
use slowfast::SlowFast;

/// Which answer, with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Config {
    /// Everything is admitted at once.
    None,
    /// A constant budget.
    Fixed {
        /// Budget in bytes.
        budget_bytes: u64,
    },
    /// SlowFast CoDel.
    SlowFast(SlowFastConfig),
}

/// Why the controller decided what it decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No decision yet: the starting values.
    Initial,
    /// The operator chose the budget.
    Configured,
    /// Nothing completed and nothing is inside: nothing is known, nothing changes.
    Idle,
    /// Nothing completed although something is inside: nothing is known, nothing changes.
    Stalled {
        /// Cost of what is inside, in bytes.
        inside_bytes: u64,
    },
    /// Even the fastest request of the interval took longer than the target: a standing queue, so the budget shrinks.
    LatencyOverTarget {
        /// Smallest latency of the interval.
        min: Duration,
        /// The target it is measured by.
        target: Duration,
    },
    /// The target is met and the budget is in use, so it grows.
    LatencyUnderTarget {
        /// Smallest latency of the interval.
        min: Duration,
        /// The target it is measured by.
        target: Duration,
    },
    /// The target is met, but a larger budget would change nothing: less than the present one is in use.
    BudgetNotUsed {
        /// The most that was inside lately, in bytes.
        peak_bytes: u64,
    },
    /// The target is met and the budget is the largest allowed.
    BudgetAtMaximum,
    /// A target was drawn around the optimum without a fit: not enough samples yet.
    TargetExplored {
        /// What the draw centres on.
        optimum: Duration,
        /// Samples in the history.
        samples: u32,
    },
    /// A target was drawn around the optimum of the fitted throughput-latency curve.
    TargetFitted {
        /// What the draw centres on.
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
        /// Completions while a request was held back by the budget.
        held_back: u64,
        /// All completions of the interval.
        completions: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Initial => f.write_str("starting value"),
            Self::Configured => f.write_str("as configured"),
            Self::Idle => f.write_str("idle"),
            Self::Stalled { inside_bytes } => write!(f, "no completions with {inside_bytes} bytes inside"),
            Self::LatencyOverTarget { min, target } => {
                write!(f, "lowest latency {min:?} over target {target:?}: budget shrinks")
            }
            Self::LatencyUnderTarget { min, target } => {
                write!(f, "lowest latency {min:?} within target {target:?}: budget grows")
            }
            Self::BudgetNotUsed { peak_bytes } => {
                write!(f, "target met, at most {peak_bytes} bytes in use: no need to grow")
            }
            Self::BudgetAtMaximum => f.write_str("target met, budget at its maximum"),
            Self::TargetExplored { optimum, samples } => {
                write!(f, "target drawn around {optimum:?}, {samples} samples so far")
            }
            Self::TargetFitted { optimum, slope_mib_per_s } => {
                write!(f, "target drawn around the fitted optimum {optimum:?} (slope {slope_mib_per_s:.1} MiB/s)")
            }
            Self::FitDegenerate { samples } => {
                write!(f, "{samples} samples at one target determine no curve: optimum kept")
            }
            Self::AppLimited { held_back, completions } => {
                write!(
                    f,
                    "load too light to learn from ({held_back} of {completions} completions while one was held back)"
                )
            }
        }
    }
}

/// What the controller decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// When it was due.
    pub at: Instant,
    /// Bytes that may be inside the back end; `u64::MAX` = unbounded.
    pub budget_bytes: u64,
    /// Latency the controller aims at, if it has an aim.
    pub target: Option<Duration>,
    /// Why.
    pub reason: Reason,
    /// Why the target is what it is: the newest reason of the loop that sets it.
    pub target_reason: Reason,
}

enum Law {
    Constant,
    SlowFast(Box<SlowFast>),
}

/// Admission control in front of one back end.
///
/// [`Admission::fits`], [`Admission::admit`], [`Admission::observe`] and [`Admission::forget`] are O(1), a few
/// nanoseconds, and do not allocate; `observe` closes an interval of the adaptive answers when one has ended
/// (at most three, O(history)).
pub struct Admission {
    throttle: Throttle,
    /// Whether the last answer of [`Admission::fits`] was no. A cell, so that a scheduler can ask from a closure.
    holding_back: Cell<bool>,
    law: Law,
    next_tick: Instant,
    decision: Decision,
    /// Decided since [`Admission::tick`] last told.
    untold: bool,
    config: Config,
    seed: u64,
}

impl Admission {
    /// A controller that starts at `now`; `seed` feeds exploration.
    pub fn new(config: Config, now: Instant, seed: u64) -> Self {
        let initial = Decision {
            at: now,
            budget_bytes: u64::MAX,
            target: None,
            reason: Reason::Configured,
            target_reason: Reason::Initial,
        };
        let mut admission = Self {
            throttle: Throttle::new(u64::MAX),
            holding_back: Cell::new(false),
            law: Law::Constant,
            next_tick: Instant::FAR_FUTURE,
            decision: initial,
            untold: false,
            config: Config::None,
            seed,
        };
        admission.reconfigure(config, now);
        admission
    }

    /// Whether a request of this cost fits now.
    ///
    /// It fits if the sum stays within the budget. A request larger than the whole budget fits when what is inside
    /// does not exceed the budget: it could not enter otherwise. A request that does not fit counts as held back until
    /// the next one is admitted.
    #[inline]
    pub fn fits(&self, cost_bytes: u64) -> bool {
        let fits = self.throttle.fits(cost_bytes);
        self.holding_back.set(!fits);
        fits
    }

    /// Takes a request in.
    #[inline]
    pub fn admit(&mut self, cost_bytes: u64) {
        self.throttle.admit(cost_bytes);
    }

    /// A request has left after `latency` in the back end, having moved `payload_bytes`.
    #[inline]
    pub fn observe(&mut self, now: Instant, cost_bytes: u64, payload_bytes: u64, latency: Duration) {
        if now >= self.next_tick {
            self.close_intervals(now);
        }
        if let Law::SlowFast(law) = &mut self.law {
            law.observe(now, self.throttle.inside, self.holding_back.get(), payload_bytes, latency);
        }
        self.throttle.release(cost_bytes);
    }

    /// A request has left without telling anything about the back end (cancelled, failed at once).
    #[inline]
    pub fn forget(&mut self, cost_bytes: u64) {
        self.throttle.release(cost_bytes);
    }

    /// When [`Admission::tick`] wants to run next; `Instant::FAR_FUTURE` = never.
    #[inline]
    pub fn next_tick(&self) -> Instant {
        self.next_tick
    }

    /// Runs what is due at `now`; the newest decision if something was decided since the last call.
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

    /// Cost of all that is inside, in bytes.
    pub fn inside_bytes(&self) -> u64 {
        self.throttle.inside
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings in force; what is inside stays counted.
    ///
    /// SlowFast CoDel keeps what it has learned when only its own settings change. Settings that
    /// [`SlowFastConfig::validate`] refuses are moved into range.
    pub fn reconfigure(&mut self, config: Config, now: Instant) {
        match (config, &mut self.law) {
            (Config::None, _) => self.hold_constant(now, u64::MAX),
            (Config::Fixed { budget_bytes }, _) => self.hold_constant(now, budget_bytes),
            (Config::SlowFast(settings), Law::SlowFast(law)) => {
                law.reconfigure(settings, now);
                self.apply();
            }
            (Config::SlowFast(settings), Law::Constant) => {
                self.law = Law::SlowFast(Box::new(SlowFast::new(settings, now, self.seed)));
                self.apply();
            }
        }
        self.config = config;
    }

    fn hold_constant(&mut self, now: Instant, budget_bytes: u64) {
        self.law = Law::Constant;
        self.next_tick = Instant::FAR_FUTURE;
        self.throttle.budget = budget_bytes;
        self.decision = Decision {
            at: now,
            budget_bytes,
            target: None,
            reason: Reason::Configured,
            target_reason: Reason::Initial,
        };
        self.untold = true;
    }

    #[cold]
    fn close_intervals(&mut self, now: Instant) {
        if let Law::SlowFast(law) = &mut self.law {
            let closed = law.close_intervals(now, self.throttle.inside);
            self.next_tick = law.next_tick();
            if closed {
                self.apply();
            }
        }
    }

    /// Puts what the adaptive law decided in force.
    fn apply(&mut self) {
        if let Law::SlowFast(law) = &self.law {
            self.decision = law.decision();
            self.throttle.budget = self.decision.budget_bytes;
            self.next_tick = law.next_tick();
            self.untold = true;
        }
    }
}
