//! SlowFast CoDel: a budget that follows a latency target, and a target that follows the throughput-latency curve.
//!
//! Mirvakili, Just, Maltzahn, "Managing Bufferbloat in Cloud Storage Systems", with the constants and the behaviour of
//! the authors' public implementation. Each known defect of that form stays reproducible and has a repair behind its
//! own switch in [`Repairs`](super::Repairs).
//!
//! ```text
//!            every 50 ms                                  every 500 ms
//!  min latency ──▶ fast loop ──▶ budget     throughput ──▶ slow loop ──▶ target ──▶ fast loop
//! ```
//!
//! An interval is closed by the first completion or tick after its end, always as of its end. Decisions therefore
//! depend only on which requests completed when, however late or often the caller ticks.

use alloc::collections::VecDeque;

use super::config::{MIN_INTERVAL, SlowFastConfig};
use super::curve::{self, Sample};
use super::{Completion, Decision, Reason};
use crate::rng::SplitMix64;
use crate::time::{Duration, Instant};

const MIB: f64 = 1_048_576.0;

/// Repair `early_fit`: number of samples (slow intervals) for a first fit: 5 s at the published interval.
const EARLY_SAMPLES: usize = 10;
/// Repair `guarded_fit`: targets must differ by at least 2 % (standard deviation of the logarithm) to determine a curve.
const MIN_DEVIATION: f64 = 0.02;
/// Repair `local_fit`: samples count whose target is within this factor of the optimum.
const NEIGHBOURHOOD: f64 = 3.0;
/// Repair `floored_mode`: the mode of the draw is above the minimum target by at least this part of that target.
const MODE_CLEARANCE: f64 = 0.1;
/// Repair `settling_exploration`: a fit agrees with the previous one if their optima are within this factor of each other.
const AGREEMENT: f64 = 1.25;
/// Repair `settling_exploration`: the least spread of the draw (99th percentile over optimum), so that a change of the device
/// is noticed.
const SETTLED_P99_FACTOR: f64 = 1.25;

/// The present interval of the fast loop.
struct FastInterval {
    ends_at: Instant,
    length: Duration,
    /// Smallest latency of the completed requests that count; `Duration::MAX` if there is none.
    min_latency: Duration,
    /// Repair `await_effect`: requests admitted before this instant do not count.
    counts_from: Instant,
    /// True if a request completed that does not count.
    stale: bool,
    /// Number of intervals in a row that missed the target.
    violations: u32,
}

/// The present interval of the slow loop.
struct SlowInterval {
    ends_at: Instant,
    completions: u64,
    /// Number of completions while another request was throttled.
    waited: u64,
    bytes: u64,
    peak_bytes: u64,
    /// Number of fast intervals in it with completions that count.
    judged: u32,
    /// Number of fast intervals in it that missed the target with the smallest budget.
    unachievable: u32,
    /// Smallest latency of the unachievable fast intervals; `Duration::MAX` if there is none.
    unachievable_min: Duration,
}

impl SlowInterval {
    fn new(ends_at: Instant, budget_min_bytes: u64) -> Self {
        Self {
            ends_at,
            completions: 0,
            waited: 0,
            bytes: 0,
            peak_bytes: budget_min_bytes,
            judged: 0,
            unachievable: 0,
            unachievable_min: Duration::MAX,
        }
    }

    /// The smallest latency with the smallest budget, if most fast intervals missed the target with this budget.
    fn unachievable_below(&self) -> Option<Duration> {
        (self.unachievable * 2 > self.judged).then_some(self.unachievable_min)
    }
}

/// SlowFast CoDel: the state of the fast and of the slow loop.
pub(super) struct SlowFast {
    config: SlowFastConfig,
    rng: SplitMix64,
    budget_bytes: u64,
    target: Duration,
    /// The latency around which targets are drawn at random.
    optimum: Duration,
    fast: FastInterval,
    slow: SlowInterval,
    history: VecDeque<Sample>,
    /// Number of fits in a row whose optimum agreed with the one before ([`AGREEMENT`]).
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
                counts_from: now,
                stale: false,
                violations: 0,
            },
            slow: SlowInterval::new(now + config.slow_interval, config.budget_min_bytes),
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

    /// Changes the settings; budget, target, optimum and history stay as far as the new bounds allow.
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
        self.slow = SlowInterval::new(now + config.slow_interval, config.budget_min_bytes);
        self.config = config;
        self.decide(now, Reason::Configured);
    }

    #[inline]
    pub(super) fn next_tick(&self) -> Instant {
        self.fast.ends_at.min(self.slow.ends_at)
    }

    pub(super) fn decision(&self) -> Decision {
        self.decision
    }

    /// Counts a request that left the back end, in the present interval of both loops.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) {
        if done.now - done.latency >= self.fast.counts_from || !self.config.repairs.await_effect {
            self.fast.min_latency = self.fast.min_latency.min(done.latency);
        } else {
            self.fast.stale = true;
        }
        let slow = &mut self.slow;
        slow.waited += u64::from(done.holding_back);
        slow.peak_bytes = slow.peak_bytes.max(done.in_flight_bytes);
        slow.bytes = slow.bytes.saturating_add(done.payload_bytes);
        slow.completions += 1;
    }

    /// Closes the intervals of both loops that ended by `now`, in order of their ends; true if a decision was made. `inside`:
    /// cost of the requests in flight, in bytes.
    ///
    /// All observed completions lie before the earlier end, so only one interval of each loop has any, and the empty
    /// intervals up to `now` are skipped by arithmetic: three steps at most, however late the call.
    pub(super) fn close_intervals(&mut self, now: Instant, inside: u64) -> bool {
        let mut decided = false;
        if self.slow.ends_at < self.fast.ends_at && self.slow.ends_at <= now {
            // No further than the end of the fast interval: its verdict belongs to the slow interval it ends in, and
            // not to the one that contains `now`.
            let before_fast_end = Instant::from_nanos(self.fast.ends_at.as_nanos() - 1);
            decided |= self.close_slow_interval(now.min(before_fast_end));
        }
        if self.fast.ends_at <= now {
            decided |= self.close_fast_interval(now, inside);
        }
        if self.slow.ends_at <= now {
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

    /// Ends an interval of the fast loop, which adjusts the budget (the paper's algorithm 1). True if a decision was made.
    fn close_fast_interval(&mut self, now: Instant, inside: u64) -> bool {
        let ended_at = self.fast.ends_at;
        let min = core::mem::replace(&mut self.fast.min_latency, Duration::MAX);
        let stale = core::mem::take(&mut self.fast.stale);
        let budget_before = self.budget_bytes;
        let reason = if min == Duration::MAX {
            if stale {
                self.fast.ends_at = first_end_after(now, ended_at, self.fast.length);
                return false;
            }
            if inside > 0 { Reason::Stalled { in_flight_bytes: inside } } else { Reason::Idle }
        } else if min > self.target {
            self.slow.judged += 1;
            self.fast.violations = self.fast.violations.saturating_add(1);
            let divisor = libm::round(libm::sqrt(f64::from(self.fast.violations))) as u64;
            let shortened = Duration::from_nanos(self.config.fast_interval.as_nanos() / divisor.max(1));
            self.fast.length = shortened.max(MIN_INTERVAL);
            self.shrink_budget(min)
        } else {
            self.slow.judged += 1;
            self.fast.violations = 0;
            self.fast.length = self.config.fast_interval;
            self.grow_budget(min)
        };
        self.fast.ends_at = first_end_after(now, ended_at, self.fast.length);
        if self.budget_bytes != budget_before {
            self.fast.counts_from = ended_at;
        }
        // Silence is reported once, not every interval.
        let silent = matches!(reason, Reason::Idle | Reason::Stalled { .. });
        let told = silent && core::mem::discriminant(&reason) == core::mem::discriminant(&self.decision.reason);
        if !told {
            self.decide(ended_at, reason);
        }
        !told
    }

    fn shrink_budget(&mut self, min: Duration) -> Reason {
        if self.budget_bytes == self.config.budget_min_bytes {
            self.slow.unachievable += 1;
            self.slow.unachievable_min = self.slow.unachievable_min.min(min);
        }
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

    /// Ends an interval of the slow loop, which adjusts the target. True if a decision was made: an interval without
    /// completions changes nothing.
    fn close_slow_interval(&mut self, now: Instant) -> bool {
        let ended_at = self.slow.ends_at;
        let next_end = first_end_after(now, ended_at, self.config.slow_interval);
        let next = SlowInterval::new(next_end, self.config.budget_min_bytes);
        let closed = core::mem::replace(&mut self.slow, next);
        let SlowInterval { completions, waited, bytes, .. } = closed;
        if completions == 0 {
            return false;
        }
        let reason = if self.config.repairs.app_limited && waited * 2 < completions {
            self.target = self.optimum;
            Reason::AppLimited { waited, completions }
        } else {
            let mib_per_s = bytes as f64 / MIB / self.config.slow_interval.as_secs_f64();
            if self.history.len() == self.config.history_samples as usize {
                self.history.pop_front();
            }
            let unachievable_below = closed.unachievable_below().filter(|_| self.config.repairs.feasible_target);
            let in_force = unachievable_below.unwrap_or(self.target);
            self.history.push_back(Sample { target_ms: in_force.as_millis_f64(), mib_per_s });
            let mut reason = self.find_optimum();
            if let Some(min) = unachievable_below.filter(|&min| min > self.optimum) {
                reason = Reason::LatencyOverTarget { min, target: self.target };
                self.optimum = min.min(self.config.target_max);
            }
            self.explore();
            reason
        };
        self.decide(ended_at, reason);
        self.decision.target_reason = reason;
        true
    }

    /// Sets the optimum to the latency at which the fitted throughput-latency curve has the slope that the configured trade-off
    /// asks for. Returns the reason.
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
        let centre_ms = self.optimum.as_millis_f64();
        let is_near = |sample: &&Sample| {
            sample.target_ms <= centre_ms * NEIGHBOURHOOD && centre_ms <= sample.target_ms * NEIGHBOURHOOD
        };
        let local = repairs.local_fit && self.history.iter().filter(is_near).count() >= needed;
        let counting = self.history.iter().filter(|sample| !local || is_near(sample));
        let guarded = curve::fit(counting.clone(), MIN_DEVIATION);
        let (Some(fit), true) = (guarded, repairs.guarded_fit || repairs.relative_tradeoff) else {
            if repairs.guarded_fit {
                return Reason::FitDegenerate { samples };
            }
            let slope_mib_per_s = curve::slope_by_normal_equations(counting);
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

    /// Converts `ms` to a target within the configured bounds; NaN becomes the smallest target.
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
