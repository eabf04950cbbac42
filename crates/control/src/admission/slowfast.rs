//! SlowFast CoDel: a budget that follows a latency target, and a target that follows the throughput-latency curve.
//!
//! Mirvakili, Just, Maltzahn, "Managing Bufferbloat in Cloud Storage Systems", with the constants and the behaviour of
//! the authors' public implementation. Each known defect of that form stays reproducible and has a repair behind its
//! own switch in [`Repairs`].
//!
//! ```text
//!            every 50 ms                                  every 500 ms
//!  min latency ──▶ fast loop ──▶ budget     throughput ──▶ slow loop ──▶ target ──▶ fast loop
//! ```
//!
//! Intervals are closed by whatever comes first after their end, a completion or a tick, always as of their end.
//! What is decided is therefore a function of what completed when, however late or often the caller ticks.

use alloc::collections::VecDeque;
use core::fmt;

use super::curve::{self, Sample};
use super::{Decision, Reason};
use crate::rng::SplitMix64;
use crate::time::{Duration, Instant};

const MIB: f64 = 1_048_576.0;
/// Shorter intervals would only cost time; CoDel's square root never gets there from sensible settings.
const MIN_INTERVAL: Duration = Duration::from_micros(1);
/// More samples than this only slow the fit down.
const MAX_HISTORY: u32 = 10_000;

/// `early_fit`: enough samples for a first slope (5 s at the published interval).
const EARLY_SAMPLES: usize = 10;
/// `guarded_fit`: targets must differ by at least 2 % (standard deviation of the logarithm) to determine a curve.
const MIN_DEVIATION: f64 = 0.02;
/// `floored_mode`: the mode of the draw stays this fraction of the minimum target above it.
const MODE_CLEARANCE: f64 = 0.1;
/// `settling_exploration`: a fit within this ratio of the last one counts as agreement.
const AGREEMENT: f64 = 1.25;
/// `settling_exploration`: the spread that always remains, so that a change of the device is noticed.
const SETTLED_P99_FACTOR: f64 = 1.25;

/// Settings of SlowFast CoDel. `Default` is the published form: constants of the authors' public implementation with
/// the paper's trade-off of 0.1 and no repairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowFastConfig {
    /// Period of the fast loop while the target is met.
    pub fast_interval: Duration,
    /// Period of the slow loop.
    pub slow_interval: Duration,
    /// Target before the first fit.
    pub target_initial: Duration,
    /// Smallest target.
    pub target_min: Duration,
    /// Largest target.
    pub target_max: Duration,
    /// Budget at the start, in bytes.
    pub budget_initial_bytes: u64,
    /// Smallest budget, in bytes.
    pub budget_min_bytes: u64,
    /// Largest budget, in bytes. The public implementation has no such bound; use alone bounds its growth.
    pub budget_max_bytes: u64,
    /// Growth of the budget in a fast interval that met the target, in bytes.
    pub budget_increment_bytes: u64,
    /// The most a fast interval may leave of the budget when the target is far exceeded, as a fraction (0 to 1).
    pub budget_decrease_floor: f64,
    /// The budget grows only while it is below this multiple of the peak occupancy (at least 1).
    pub budget_headroom: f64,
    /// Slow intervals kept for the fit; the published form does not fit before it has them all.
    pub history_samples: u32,
    /// Slope of the throughput-latency curve at the target, in MiB/s per ms: larger means less latency and less throughput.
    pub tradeoff_mib_per_s_per_ms: f64,
    /// The same slope with throughput and latency each in units of its mean (per cent of throughput per per cent of
    /// latency); used instead of the absolute one with [`Repairs::relative_tradeoff`].
    pub tradeoff_relative: f64,
    /// 99th percentile of the explored targets as a multiple of the optimum (above 1).
    pub exploration_p99_factor: f64,
    /// Which known defects are repaired.
    pub repairs: Repairs,
}

impl Default for SlowFastConfig {
    fn default() -> Self {
        Self::PUBLISHED
    }
}

impl SlowFastConfig {
    /// The published form.
    pub const PUBLISHED: Self = Self {
        fast_interval: Duration::from_millis(50),
        slow_interval: Duration::from_millis(500),
        target_initial: Duration::from_millis(5),
        target_min: Duration::from_millis(1),
        target_max: Duration::from_secs(1),
        budget_initial_bytes: 100 << 10,
        budget_min_bytes: 100 << 10,
        budget_max_bytes: 1 << 30,
        budget_increment_bytes: 10 << 10,
        budget_decrease_floor: 0.5,
        budget_headroom: 1.5,
        history_samples: 100,
        tradeoff_mib_per_s_per_ms: 0.1,
        tradeoff_relative: 0.1,
        exploration_p99_factor: 5.0,
        repairs: Repairs::NONE,
    };

    /// The published constants with every defect repaired.
    pub const REPAIRED: Self = Self { repairs: Repairs::ALL, ..Self::PUBLISHED };

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not, and what would be right.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let positive = |x: f64| x > 0.0 && x.is_finite();
        let rules = [
            (self.fast_interval >= MIN_INTERVAL, "fast_interval", "at least 1 us"),
            (self.slow_interval >= self.fast_interval, "slow_interval", "at least fast_interval"),
            (self.target_min >= MIN_INTERVAL, "target_min", "at least 1 us"),
            (self.target_max > self.target_min, "target_max", "greater than target_min"),
            (
                (self.target_min..=self.target_max).contains(&self.target_initial),
                "target_initial",
                "from target_min to target_max",
            ),
            (self.budget_min_bytes > 0, "budget_min_bytes", "greater than 0"),
            (self.budget_max_bytes >= self.budget_min_bytes, "budget_max_bytes", "at least budget_min_bytes"),
            (
                (self.budget_min_bytes..=self.budget_max_bytes).contains(&self.budget_initial_bytes),
                "budget_initial_bytes",
                "from budget_min_bytes to budget_max_bytes",
            ),
            (self.budget_increment_bytes > 0, "budget_increment_bytes", "greater than 0"),
            (
                positive(self.budget_decrease_floor) && self.budget_decrease_floor < 1.0,
                "budget_decrease_floor",
                "between 0 and 1",
            ),
            (self.budget_headroom >= 1.0 && self.budget_headroom.is_finite(), "budget_headroom", "at least 1"),
            ((2..=MAX_HISTORY).contains(&self.history_samples), "history_samples", "from 2 to 10000"),
            (positive(self.tradeoff_mib_per_s_per_ms), "tradeoff_mib_per_s_per_ms", "greater than 0"),
            (positive(self.tradeoff_relative), "tradeoff_relative", "greater than 0"),
            (
                self.exploration_p99_factor > 1.0 && self.exploration_p99_factor.is_finite(),
                "exploration_p99_factor",
                "greater than 1",
            ),
        ];
        match rules.iter().find(|(ok, ..)| !ok) {
            None => Ok(()),
            Some(&(_, setting, must_be)) => Err(InvalidConfig { setting, must_be }),
        }
    }

    /// The same settings, moved into range where [`SlowFastConfig::validate`] would refuse them.
    fn in_range(self) -> Self {
        let between = |low: f64, high: f64, x: f64, otherwise: f64| if low < x && x < high { x } else { otherwise };
        let (infinity, published) = (f64::INFINITY, Self::PUBLISHED);
        let fast_interval = self.fast_interval.max(MIN_INTERVAL);
        let target_min = self.target_min.max(MIN_INTERVAL);
        let target_max = self.target_max.max(target_min + Duration::from_nanos(1));
        let budget_min_bytes = self.budget_min_bytes.max(1);
        let budget_max_bytes = self.budget_max_bytes.max(budget_min_bytes);
        Self {
            fast_interval,
            slow_interval: self.slow_interval.max(fast_interval),
            target_initial: self.target_initial.clamp(target_min, target_max),
            target_min,
            target_max,
            budget_initial_bytes: self.budget_initial_bytes.clamp(budget_min_bytes, budget_max_bytes),
            budget_min_bytes,
            budget_max_bytes,
            budget_increment_bytes: self.budget_increment_bytes.max(1),
            budget_decrease_floor: between(0.0, 1.0, self.budget_decrease_floor, published.budget_decrease_floor),
            budget_headroom: between(0.0, infinity, self.budget_headroom, published.budget_headroom).max(1.0),
            history_samples: self.history_samples.clamp(2, MAX_HISTORY),
            tradeoff_mib_per_s_per_ms: between(
                0.0,
                infinity,
                self.tradeoff_mib_per_s_per_ms,
                published.tradeoff_mib_per_s_per_ms,
            ),
            tradeoff_relative: between(0.0, infinity, self.tradeoff_relative, published.tradeoff_relative),
            exploration_p99_factor: between(
                1.0,
                infinity,
                self.exploration_p99_factor,
                published.exploration_p99_factor,
            ),
            repairs: self.repairs,
        }
    }
}

/// A setting of [`SlowFastConfig`] that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    /// The field.
    pub setting: &'static str,
    /// What it must be.
    pub must_be: &'static str,
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.setting, self.must_be)
    }
}

impl core::error::Error for InvalidConfig {}

/// One switch for each known defect of the published form; `false` keeps the defect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Defect: no fit for `history_samples` slow intervals (50 s). Repair: fit from 10 samples on.
    pub early_fit: bool,
    /// Defect: 10 KiB an interval take 327 s from 100 KiB to 64 MiB. Repair: grow in proportion to budget and latency
    /// margin, mirroring the decrease.
    pub proportional_growth: bool,
    /// Defect: a history at one target divides by zero, and the garbage target keeps it there. Repair: without a curve
    /// the optimum stays; it never leaves the range of targets that were tried.
    pub guarded_fit: bool,
    /// Defect: an optimum at the minimum target makes the exploration take ln(0), and it stops for ever. Repair: keep
    /// the mode of the draw above the minimum.
    pub floored_mode: bool,
    /// Defect: light load looks like a flat curve, which pins the target at its minimum, where it stays when the load
    /// returns. Repair: learn only from intervals in which the budget was the limit, and hold the optimum otherwise.
    pub app_limited: bool,
    /// Defect: a trade-off in MiB/s per ms means something else on every device. Repair: throughput and latency in
    /// units of their means.
    pub relative_tradeoff: bool,
    /// Defect: targets are drawn up to 5 times the optimum for ever. Repair: the spread halves with each fit that
    /// agrees with the last, down to 1.25 times, and opens again when one does not.
    pub settling_exploration: bool,
    /// Defect: a draw below the optimum is pushed further down. Repair: it is pulled towards the optimum.
    pub pull_towards_optimum: bool,
}

impl Repairs {
    /// The published form.
    pub const NONE: Self = Self {
        early_fit: false,
        proportional_growth: false,
        guarded_fit: false,
        floored_mode: false,
        app_limited: false,
        relative_tradeoff: false,
        settling_exploration: false,
        pull_towards_optimum: false,
    };

    /// Every known defect repaired.
    pub const ALL: Self = Self {
        early_fit: true,
        proportional_growth: true,
        guarded_fit: true,
        floored_mode: true,
        app_limited: true,
        relative_tradeoff: true,
        settling_exploration: true,
        pull_towards_optimum: true,
    };
}

/// What completed since the fast loop last ran.
struct FastInterval {
    ends_at: Instant,
    length: Duration,
    /// `Duration::MAX` = nothing completed.
    min_latency: Duration,
    /// Violations in a row.
    violations: u32,
}

/// What completed since the slow loop last ran.
struct SlowInterval {
    ends_at: Instant,
    completions: u64,
    /// Completions while a request was held back.
    held_back: u64,
    bytes: u64,
    peak_bytes: u64,
}

/// The two loops.
pub(super) struct SlowFast {
    config: SlowFastConfig,
    rng: SplitMix64,
    budget_bytes: u64,
    target: Duration,
    /// Target without exploration noise.
    optimum: Duration,
    fast: FastInterval,
    slow: SlowInterval,
    history: VecDeque<Sample>,
    /// Fits in a row that agreed.
    agreeing_fits: u32,
    decision: Decision,
}

impl SlowFast {
    pub(super) fn new(config: SlowFastConfig, now: Instant, seed: u64) -> Self {
        let config = config.in_range();
        Self {
            rng: SplitMix64::new(seed),
            budget_bytes: config.budget_initial_bytes,
            target: config.target_initial,
            optimum: config.target_initial,
            fast: FastInterval {
                ends_at: now + config.fast_interval,
                length: config.fast_interval,
                min_latency: Duration::MAX,
                violations: 0,
            },
            slow: SlowInterval {
                ends_at: now + config.slow_interval,
                completions: 0,
                held_back: 0,
                bytes: 0,
                peak_bytes: config.budget_min_bytes,
            },
            history: VecDeque::with_capacity(config.history_samples as usize),
            agreeing_fits: 0,
            decision: Decision {
                at: now,
                budget_bytes: config.budget_initial_bytes,
                target: Some(config.target_initial),
                reason: Reason::Initial,
                target_reason: Reason::Initial,
            },
            config,
        }
    }

    /// New settings; budget, target, optimum and history stay as far as the new bounds allow.
    pub(super) fn reconfigure(&mut self, config: SlowFastConfig, now: Instant) {
        let config = config.in_range();
        self.budget_bytes = self.budget_bytes.clamp(config.budget_min_bytes, config.budget_max_bytes);
        self.target = self.target.clamp(config.target_min, config.target_max);
        self.optimum = self.optimum.clamp(config.target_min, config.target_max);
        let surplus = self.history.len().saturating_sub(config.history_samples as usize);
        self.history.drain(..surplus);
        self.agreeing_fits = 0;
        self.fast.length = config.fast_interval;
        self.fast.ends_at = now + config.fast_interval;
        self.slow.ends_at = now + config.slow_interval;
        self.config = config;
        self.reset_slow_interval();
        self.decide(now, Reason::Configured);
    }

    #[inline]
    pub(super) fn next_tick(&self) -> Instant {
        self.fast.ends_at.min(self.slow.ends_at)
    }

    pub(super) fn decision(&self) -> Decision {
        self.decision
    }

    /// A request has left; `inside` still counts it.
    #[inline]
    pub(super) fn observe(&mut self, inside: u64, holding_back: bool, payload_bytes: u64, latency: Duration) {
        self.fast.min_latency = self.fast.min_latency.min(latency);
        let slow = &mut self.slow;
        slow.held_back += u64::from(holding_back);
        slow.peak_bytes = slow.peak_bytes.max(inside);
        slow.bytes = slow.bytes.saturating_add(payload_bytes);
        slow.completions += 1;
    }

    /// Closes the intervals that ended by `now`, in order of their ends; whether anything was decided.
    ///
    /// All that was observed lies before the earlier end, so each loop has something to do at most once, and the
    /// empty intervals up to `now` are skipped by arithmetic: two steps at most, however late the call.
    pub(super) fn close_intervals(&mut self, now: Instant, inside: u64) -> bool {
        let mut decided = false;
        let slow_first = self.slow.ends_at < self.fast.ends_at;
        if slow_first && self.slow.ends_at <= now {
            decided |= self.close_slow_interval(now);
        }
        if self.fast.ends_at <= now {
            decided |= self.close_fast_interval(now, inside);
        }
        if !slow_first && self.slow.ends_at <= now {
            decided |= self.close_slow_interval(now);
        }
        decided
    }

    fn decide(&mut self, at: Instant, reason: Reason) {
        self.decision.at = at;
        self.decision.budget_bytes = self.budget_bytes;
        self.decision.target = Some(self.target);
        self.decision.reason = reason;
    }

    /// Budget-adjusting CoDel (the paper's algorithm 1).
    fn close_fast_interval(&mut self, now: Instant, inside: u64) -> bool {
        let ended_at = self.fast.ends_at;
        let min = core::mem::replace(&mut self.fast.min_latency, Duration::MAX);
        let reason = if min == Duration::MAX {
            if inside > 0 { Reason::Stalled { inside_bytes: inside } } else { Reason::Idle }
        } else if min > self.target {
            self.fast.violations = self.fast.violations.saturating_add(1);
            let divisor = libm::round(libm::sqrt(f64::from(self.fast.violations))) as u64;
            let shortened = Duration::from_nanos(self.config.fast_interval.as_nanos() / divisor.max(1));
            self.fast.length = shortened.max(MIN_INTERVAL);
            self.shrink_budget(min)
        } else {
            self.fast.violations = 0;
            self.fast.length = self.config.fast_interval;
            self.grow_budget(min)
        };
        self.fast.ends_at = first_end_after(now, ended_at, self.fast.length);
        // Silence is reported once, not every interval.
        let silent = matches!(reason, Reason::Idle | Reason::Stalled { .. });
        let told = silent && core::mem::discriminant(&reason) == core::mem::discriminant(&self.decision.reason);
        if !told {
            self.decide(ended_at, reason);
        }
        !told
    }

    fn shrink_budget(&mut self, min: Duration) -> Reason {
        let ratio = self.target.as_nanos() as f64 / min.as_nanos() as f64;
        let kept = self.budget_bytes as f64 * ratio.max(self.config.budget_decrease_floor);
        self.budget_bytes = (kept as u64).clamp(self.config.budget_min_bytes, self.config.budget_max_bytes);
        Reason::LatencyOverTarget { min, target: self.target }
    }

    fn grow_budget(&mut self, min: Duration) -> Reason {
        let config = &self.config;
        let peak_bytes = self.slow.peak_bytes;
        let ceiling = peak_bytes as f64 * config.budget_headroom;
        if self.budget_bytes as f64 >= ceiling {
            return Reason::BudgetNotUsed { peak_bytes };
        }
        if self.budget_bytes >= config.budget_max_bytes {
            return Reason::BudgetAtMaximum;
        }
        let mut grown = self.budget_bytes.saturating_add(config.budget_increment_bytes);
        if config.repairs.proportional_growth {
            // The inverse of the decrease: latency at half the target asks for twice the budget.
            let ratio = self.target.as_nanos() as f64 / min.as_nanos().max(1) as f64;
            let proportional = self.budget_bytes as f64 * ratio.min(1.0 / config.budget_decrease_floor);
            grown = grown.max(proportional.min(ceiling) as u64);
        }
        self.budget_bytes = grown.min(config.budget_max_bytes);
        Reason::LatencyUnderTarget { min, target: self.target }
    }

    /// The target-adjusting loop. An interval without completions changes nothing.
    fn close_slow_interval(&mut self, now: Instant) -> bool {
        let ended_at = self.slow.ends_at;
        self.slow.ends_at = first_end_after(now, ended_at, self.config.slow_interval);
        let SlowInterval { completions, held_back, bytes, .. } = self.slow;
        self.reset_slow_interval();
        if completions == 0 {
            return false;
        }
        let reason = if self.config.repairs.app_limited && held_back * 2 < completions {
            self.target = self.optimum;
            Reason::AppLimited { held_back, completions }
        } else {
            let mib_per_s = bytes as f64 / MIB / self.config.slow_interval.as_secs_f64();
            if self.history.len() == self.config.history_samples as usize {
                self.history.pop_front();
            }
            self.history.push_back(Sample { target_ms: self.target.as_millis_f64(), mib_per_s });
            let reason = self.find_optimum();
            self.explore();
            reason
        };
        self.decide(ended_at, reason);
        self.decision.target_reason = reason;
        true
    }

    fn reset_slow_interval(&mut self) {
        self.slow = SlowInterval {
            ends_at: self.slow.ends_at,
            completions: 0,
            held_back: 0,
            bytes: 0,
            peak_bytes: self.config.budget_min_bytes,
        };
    }

    /// The target at which the fitted curve has the slope that the trade-off asks for.
    fn find_optimum(&mut self) -> Reason {
        let config = &self.config;
        let repairs = config.repairs;
        let samples = self.history.len() as u32;
        let needed = if repairs.early_fit {
            EARLY_SAMPLES.min(config.history_samples as usize)
        } else {
            config.history_samples as usize
        };
        if self.history.len() < needed {
            self.optimum = config.target_initial;
            return Reason::TargetExplored { optimum: self.optimum, samples };
        }
        let guarded = curve::fit(self.history.iter(), MIN_DEVIATION);
        let (Some(fit), true) = (guarded, repairs.guarded_fit || repairs.relative_tradeoff) else {
            if repairs.guarded_fit {
                return Reason::FitDegenerate { samples };
            }
            let slope_mib_per_s = curve::slope_by_normal_equations(self.history.iter());
            return self.accept_fit(slope_mib_per_s, slope_mib_per_s / config.tradeoff_mib_per_s_per_ms);
        };
        let mut optimum_ms = if repairs.relative_tradeoff {
            // slope / mean is the elasticity at the mean; it falls in proportion to latency along a logarithm.
            fit.mean_ms * (fit.slope_mib_per_s / fit.mean_mib_per_s) / config.tradeoff_relative
        } else {
            fit.slope_mib_per_s / config.tradeoff_mib_per_s_per_ms
        };
        if repairs.guarded_fit {
            optimum_ms = optimum_ms.clamp(fit.lowest_ms, fit.highest_ms);
        }
        self.accept_fit(fit.slope_mib_per_s, optimum_ms)
    }

    fn accept_fit(&mut self, slope_mib_per_s: f64, optimum_ms: f64) -> Reason {
        let before = self.optimum.as_millis_f64();
        self.optimum = self.target_from_ms(optimum_ms);
        let after = self.optimum.as_millis_f64();
        let agrees = after <= before * AGREEMENT && before <= after * AGREEMENT;
        self.agreeing_fits = if agrees { self.agreeing_fits.saturating_add(1) } else { 0 };
        Reason::TargetFitted { optimum: self.optimum, slope_mib_per_s }
    }

    /// Draws the next target around the optimum, so that the curve is known on both sides of it.
    fn explore(&mut self) {
        let Self { config, rng, .. } = self;
        let repairs = config.repairs;
        let floor = config.target_min.as_millis_f64();
        let optimum = self.optimum.as_millis_f64();
        let mode = if repairs.floored_mode { optimum.max(floor * (1.0 + MODE_CLEARANCE)) } else { optimum };
        let p99_factor = if repairs.settling_exploration {
            let settled = libm::exp2(-f64::from(self.agreeing_fits));
            (1.0 + (config.exploration_p99_factor - 1.0) * settled).max(SETTLED_P99_FACTOR)
        } else {
            config.exploration_p99_factor
        };
        let mut drawn = curve::draw_lognormal(rng, floor, mode, mode * p99_factor);
        if drawn < optimum {
            let push = (drawn - optimum) * rng.next_f64() / 2.0;
            drawn += if repairs.pull_towards_optimum { -push } else { push };
        }
        self.target = self.target_from_ms(drawn);
    }

    /// A target within its bounds; what is not a number becomes the smallest.
    fn target_from_ms(&self, ms: f64) -> Duration {
        // The cast saturates and takes NaN to 0.
        Duration::from_nanos((ms * 1e6) as u64).clamp(self.config.target_min, self.config.target_max)
    }
}

/// The first of `end`, `end + length`, `end + 2·length`, … that lies after `now`, but not `end` itself.
fn first_end_after(now: Instant, end: Instant, length: Duration) -> Instant {
    let whole = now.since(end).as_nanos() / length.as_nanos().max(1);
    end + Duration::from_nanos((whole + 1).saturating_mul(length.as_nanos()))
}
