//! The later variant of SlowFast CoDel's authors: a window driven by the latency and by its gradient, at each completion.
//!
//! With θ = Δlatency/Δt between consecutive completions, the power is `latency · (θ + 1) / min_latency` (1 on an empty
//! device), and `budget ← γ · (budget / power + β) + (1 − γ) · budget`, γ = 0.5, β = 100 KiB. The form is that of
//! PowerTCP (Addanki, Michel, Schmid, NSDI 2022).

use super::{Completion, Reason, bounded};
use crate::time::{Duration, Instant};

/// γ: weight of the new budget in the average with the old one.
const GAMMA: f64 = 0.5;
/// β: bytes added to the budget at each completion; the queue that remains in equilibrium is of this order.
const BETA_BYTES: f64 = 102_400.0;
/// Lower bound on the power, for latencies that fall faster than time passes, so that θ + 1 is negative or zero.
const MIN_POWER: f64 = 0.1;

/// The budget, which the rule calls the window, and the latencies that it depends on.
pub(super) struct Theta {
    budget: f64,
    min_latency: Duration,
    last: Option<(Instant, Duration)>,
}

impl Theta {
    /// Starts with a budget of β = 100 KiB.
    pub(super) const fn new() -> Self {
        Self { budget: BETA_BYTES, min_latency: Duration::MAX, last: None }
    }

    pub(super) fn budget_bytes(&self) -> u64 {
        self.budget as u64
    }

    /// Takes a completion and sets the budget anew. A second completion at the same instant has no gradient (θ = 0).
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> Reason {
        let latency = done.latency.max(Duration::from_nanos(1));
        self.min_latency = self.min_latency.min(latency);
        let theta = match self.last {
            Some((at, before)) if done.now > at => {
                (latency.as_nanos() as f64 - before.as_nanos() as f64) / done.now.since(at).as_nanos() as f64
            }
            _ => 0.0,
        };
        self.last = Some((done.now, latency));
        let ratio = latency.as_nanos() as f64 / self.min_latency.as_nanos() as f64;
        let power = (ratio * (theta + 1.0)).max(MIN_POWER);
        self.budget = bounded(GAMMA * (self.budget / power + BETA_BYTES) + (1.0 - GAMMA) * self.budget);
        Reason::Power { power }
    }
}
