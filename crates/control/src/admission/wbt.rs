//! The rule of Linux's writeback throttle (blk-wbt): the budget is halved after a window whose latency exceeds the target,
//! and doubled after one whose latency meets it.
//!
//! After each window of 100 ms, its smallest latency is compared with a fixed target (2 ms for flash, 75 ms for disks). The
//! budget is `base / 2^step`. If the latency exceeds the target, the step rises by one, and windows shrink to
//! `100 ms / √(step + 1)`; otherwise the step falls by one, down to −2 (`base · 4`). After five windows in a row without
//! completions, each further one moves the step by one towards 0. In Linux only reads are measured and only writes are
//! throttled; here all requests are measured and throttled.

use super::{Completion, MAX_BUDGET, MIN_BUDGET, Reason};
use crate::time::{Duration, Instant};

/// Length of a window at step 0, in ns.
const WINDOW_NS: f64 = 1e8;
/// Budget at step 0, in bytes: 16 requests (Linux's default depth) of 64 KiB.
const BASE_BYTES: u64 = 1 << 20;
/// Lowest step, at which the budget is four times the base.
const MIN_STEP: i32 = -2;
/// Highest step, at which the budget has long reached its lower bound.
const MAX_STEP: i32 = 16;
/// Number of windows in a row without completions after which each further one moves the step towards 0.
const UNKNOWN_WINDOWS: u32 = 5;

/// The step, which gives the budget, and the present window.
pub(super) struct Wbt {
    target: Duration,
    step: i32,
    min_latency: Duration,
    unknown: u32,
    ends_at: Instant,
}

impl Wbt {
    pub(super) fn new(target: Duration, now: Instant) -> Self {
        let mut wbt = Self { target, step: 0, min_latency: Duration::MAX, unknown: 0, ends_at: now };
        wbt.ends_at = now + wbt.window();
        wbt
    }

    pub(super) fn set_target(&mut self, target: Duration) {
        self.target = target;
    }

    pub(super) fn budget_bytes(&self) -> u64 {
        let scaled = if self.step < 0 { BASE_BYTES << -self.step } else { BASE_BYTES >> self.step };
        scaled.clamp(MIN_BUDGET, MAX_BUDGET)
    }

    pub(super) fn next_tick(&self) -> Instant {
        self.ends_at
    }

    fn window(&self) -> Duration {
        Duration::from_nanos((WINDOW_NS / libm::sqrt(f64::from(self.step.max(0)) + 1.0)) as u64)
    }

    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) {
        self.min_latency = self.min_latency.min(done.latency);
    }

    /// Closes the windows that ended by `now`; returns the reason if the step was decided anew. O(1): after at most a few empty
    /// windows the step is 0, and further ones change nothing.
    pub(super) fn close(&mut self, now: Instant) -> Option<Reason> {
        let min = core::mem::replace(&mut self.min_latency, Duration::MAX);
        let mut reason = None;
        if min < Duration::MAX {
            self.unknown = 0;
            if min > self.target {
                self.step = (self.step + 1).min(MAX_STEP);
                reason = Some(Reason::LatencyOverTarget { min, target: self.target });
            } else {
                self.step = (self.step - 1).max(MIN_STEP);
                reason = Some(Reason::LatencyUnderTarget { min, target: self.target });
            }
            self.ends_at += self.window();
        }
        while self.ends_at <= now && self.step != 0 {
            self.unknown += 1;
            if self.unknown > UNKNOWN_WINDOWS {
                self.step -= self.step.signum();
                reason = Some(Reason::Idle);
            }
            self.ends_at += self.window();
        }
        if self.ends_at <= now {
            let missed = now.since(self.ends_at).as_nanos() / WINDOW_NS as u64 + 1;
            self.ends_at += Duration::from_nanos(missed.saturating_mul(WINDOW_NS as u64));
            self.unknown = UNKNOWN_WINDOWS;
        }
        reason
    }
}
