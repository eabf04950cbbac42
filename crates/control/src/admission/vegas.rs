//! Vegas (Brakmo, Peterson 1995) as limiters of concurrency in services use it: keep a small queue.
//!
//! The queue is estimated from the lowest latency ever seen: `limit · (1 − lowest / latency)` requests. The limit, in
//! requests, moves at each completion by steps of log₁₀(limit): up while the queue is below 3 steps, down when it is
//! above 6, and by 6 when there is hardly any queue. It stays when less than half of it is in use. The lowest latency
//! is forgotten now and then (each 30 times the limit), or a slower device would never be believed. Bytes are requests
//! times their mean cost.

use super::{Completion, MeanCost, Reason, bounded};
use crate::time::Duration;

/// Queue up to which the limit grows, in steps.
const ALPHA: f64 = 3.0;
/// Queue beyond which the limit shrinks, in steps.
const BETA: f64 = 6.0;
/// Completions for each request of the limit until the lowest latency is measured anew.
const PROBE_EVERY: f64 = 30.0;
/// The limit at the start, in requests.
const INITIAL: f64 = 20.0;

/// The limit.
pub(super) struct Vegas {
    limit: f64,
    cost: MeanCost,
    lowest: Duration,
    until_probe: f64,
}

impl Vegas {
    pub(super) const fn new() -> Self {
        Self { limit: INITIAL, cost: MeanCost::new(), lowest: Duration::MAX, until_probe: INITIAL * PROBE_EVERY }
    }

    pub(super) fn budget_bytes(&self) -> u64 {
        bounded(self.limit * self.cost.bytes()) as u64
    }

    /// One completion.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> Reason {
        let latency = done.latency.max(Duration::from_nanos(1));
        self.cost.observe(done.cost_bytes);
        self.until_probe -= 1.0;
        if self.until_probe < 0.0 {
            self.until_probe = self.limit * PROBE_EVERY;
            self.lowest = latency;
        }
        self.lowest = self.lowest.min(latency);
        let queued = self.limit * (1.0 - self.lowest.as_nanos() as f64 / latency.as_nanos() as f64);
        let in_use = done.in_flight_bytes as f64 * 2.0 >= self.limit * self.cost.bytes();
        if in_use {
            let step = libm::log10(self.limit).max(1.0);
            self.limit += if queued <= step {
                BETA * step
            } else if queued < ALPHA * step {
                step
            } else if queued > BETA * step {
                -step
            } else {
                0.0
            };
            self.limit = bounded(self.limit.max(1.0) * self.cost.bytes()) / self.cost.bytes();
        }
        Reason::QueueEstimated { requests: queued }
    }
}
