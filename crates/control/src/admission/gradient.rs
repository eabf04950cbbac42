//! A limit that follows the ratio of long-term to present latency, as limiters of concurrency in services use it.
//!
//! `limit ← (1 − 0.2) · limit + 0.2 · (limit · g + 4)` requests at each completion, with
//! `g = clamp(1.5 · long / latency, 0.5, 1)` and `long` an exponential mean of latency over 600 completions, which shrinks
//! by 5 % when it is more than twice the present latency. The limit stays while less than half of it is in use. The budget
//! in bytes is the limit times the mean cost of a request.

use super::{Completion, MeanCost, Reason, bounded};
use crate::time::Duration;

/// The limit does not shrink while latency is below the long-term mean times this factor.
const TOLERANCE: f64 = 1.5;
/// Number of requests that may queue in the back end, which is added to the limit.
const QUEUE: f64 = 4.0;
/// Weight of the new limit in the average with the old one.
const SMOOTHING: f64 = 0.2;
/// Number of completions over which the long-term mean latency reaches back.
const WINDOW: f64 = 600.0;
/// The limit at the start, in requests.
const INITIAL: f64 = 20.0;

/// The limit on requests in flight, and the figures from which it follows.
pub(super) struct Gradient {
    limit: f64,
    cost: MeanCost,
    /// Long-term mean latency in ns; 0 = none yet.
    long_ns: f64,
}

impl Gradient {
    pub(super) const fn new() -> Self {
        Self { limit: INITIAL, cost: MeanCost::new(), long_ns: 0.0 }
    }

    pub(super) fn budget_bytes(&self) -> u64 {
        bounded(self.limit * self.cost.bytes()) as u64
    }

    /// Takes a completion and sets the limit anew.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> Reason {
        let latency = done.latency.max(Duration::from_nanos(1)).as_nanos() as f64;
        self.cost.observe(done.cost_bytes);
        if self.long_ns == 0.0 {
            self.long_ns = latency;
        }
        self.long_ns += (latency - self.long_ns) / WINDOW;
        if self.long_ns > 2.0 * latency {
            self.long_ns *= 0.95;
        }
        let gradient = (TOLERANCE * self.long_ns / latency).clamp(0.5, 1.0);
        let in_use = done.in_flight_bytes as f64 * 2.0 >= self.limit * self.cost.bytes();
        if in_use {
            self.limit += SMOOTHING * (self.limit * gradient + QUEUE - self.limit);
            self.limit = bounded(self.limit.max(1.0) * self.cost.bytes()) / self.cost.bytes();
        }
        Reason::LatencyGradient { gradient }
    }
}
