//! Vegas (Brakmo, Peterson 1995) as limiters of concurrency in services use it: the limit keeps a small queue.
//!
//! The queue is estimated from the lowest latency seen: `limit · (1 − lowest / latency)` requests. The limit, in
//! requests, moves at each completion by steps of log₁₀(limit): up by 6 steps while the queue is at most 1 step, up by 1
//! while it is below 3, down by 1 when it is above 6. The limit stays while less than half of it is in use. The lowest
//! latency is forgotten after 30 completions for each request of the limit; otherwise a device that becomes slower would
//! look like a queue for ever. The budget in bytes is the limit times the mean cost of a request.

use super::{Completion, MeanCost, Reason, bounded};
use crate::time::Duration;

/// The limit grows while the estimated queue is below this many steps.
const ALPHA: f64 = 3.0;
/// The limit shrinks while the estimated queue is above this many steps.
const BETA: f64 = 6.0;
/// The lowest latency is measured anew after this many completions for each request of the limit.
const PROBE_EVERY: f64 = 30.0;
/// The limit at the start, in requests.
const INITIAL: f64 = 20.0;

/// The limit on requests in flight, and the figures from which it follows.
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

    /// Takes a completion and sets the limit anew.
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
