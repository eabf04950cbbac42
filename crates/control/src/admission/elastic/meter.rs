//! Measures throughput: completions, summed over intervals.

use super::super::{Completion, Reason};
use super::SAMPLE;
use crate::time::{Duration, Instant};

/// A time in mean latencies. After this time under a new budget the requests in flight have been replaced; and an interval
/// lasts at least as long, so that a device that completes requests in batches is measured over several batches.
const LATENCIES: f64 = 2.0;
/// A time in mean latencies: after a longer one without a completion the device is taken to have stood still.
const SILENCE: f64 = 16.0;

/// Sums over the completions of an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    bytes: f64,
    pub(super) cost: f64,
    /// Sum of the squared costs.
    pub(super) squares: f64,
    completions: u32,
    loaded: u32,
    /// Largest cost of the requests in flight, in bytes.
    pub(super) highest: u64,
    /// Nanoseconds in which the device had requests, up to the moment when it last ran empty.
    busy: f64,
    /// Longest time from one completion to the next while the device had requests, in ns.
    pub(super) gap: f64,
}

/// The throughput of an interval under one budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Payload bytes per nanosecond.
    pub(super) bytes: f64,
    /// Length of the interval in nanoseconds, without times in which the device had no requests.
    pub(super) length: f64,
    /// Mean latency of the requests that were admitted under the budget, in ns.
    pub(super) latency: f64,
    pub(super) of: Sums,
}

impl Rate {
    /// True if the load filled the budget at three of four completions or more. It is false without payload: flushes alone
    /// show no throughput.
    pub(super) fn is_loaded(&self) -> bool {
        self.bytes > 0.0 && self.of.loaded * 4 >= self.of.completions * 3
    }

    /// The reason to report if the load did not fill the budget in the interval.
    pub(super) fn too_light(&self) -> Reason {
        Reason::AppLimited { waited: self.of.loaded.into(), completions: self.of.completions.into() }
    }

    /// Mean cost of a request in the interval, in bytes.
    pub(super) fn mean_cost(&self) -> f64 {
        self.of.cost / f64::from(self.of.completions)
    }
}

/// Measures throughput under the budget in force, while the device has requests.
#[derive(Default)]
pub(super) struct Meter {
    sums: Sums,
    began: Option<Instant>,
    last: Instant,
    /// When the present budget came into force. Requests admitted earlier do not count in the mean latency.
    counts_from: Instant,
    /// Number of completions of requests admitted since `counts_from`, counted up to [`SAMPLE`].
    settling: u32,
    /// Mean latency of requests admitted since `counts_from`, in ns.
    latency_ns: f64,
    /// The shortest time, in ns, that is taken for a mean latency until the measurement begins.
    least_latency: f64,
}

impl Meter {
    /// Begins another measurement, because another budget is in force from `now` on. `latency`: mean latency under the larger
    /// budget, in ns. Closed-loop clients have as many requests outstanding under the smaller budget, most of them queued. Their
    /// mix of sizes settles only when all have been replaced, which takes this latency where throughput is equal.
    pub(super) fn restart(&mut self, now: Instant, latency: f64) {
        *self = Self { last: self.last, counts_from: now, least_latency: latency, ..Self::default() };
    }

    /// Takes a completion, at which the load counts as filling the budget if more than `least` bytes of cost are in flight.
    /// Returns the interval that ended before it, if one has. An interval lasts from one completion to another, at least
    /// `shortest` nanoseconds. With `shortest` 0 it also lasts until the sum of costs is as certain as that of [`SAMPLE`]
    /// requests of equal size. Other intervals have no such condition: it would prefer ends after small requests.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion, least: f64, shortest: f64) -> Option<Rate> {
        let (gap, mut ended) = (done.now.since(self.last), None);
        if let Some(began) = self.began.filter(|_| gap > Duration::ZERO) {
            let sums = self.sums;
            let length = sums.busy + self.last.since(began).as_nanos() as f64;
            let is_sample = sums.completions >= SAMPLE
                && (shortest > 0.0 || sums.cost * sums.cost >= f64::from(SAMPLE) * sums.squares);
            if gap.as_nanos() as f64 > SILENCE * self.latency_ns && done.latency < gap {
                self.restart(done.now, self.least_latency);
            } else if is_sample && length >= shortest.max(LATENCIES * self.latency_ns) {
                ended = Some(Rate { bytes: sums.bytes / length, length, latency: self.latency_ns, of: sums });
                (self.sums, self.began) = (Sums::default(), Some(self.last));
            }
        }
        self.last = done.now;
        if done.now - done.latency >= self.counts_from {
            self.settling = (self.settling + 1).min(SAMPLE);
            self.latency_ns += (done.latency.as_nanos() as f64 - self.latency_ns) / f64::from(self.settling);
        }
        if self.began.is_some_and(|began| began < done.now) {
            self.count(done, least, gap);
        }
        if done.ran_empty() {
            // What follows is not the device's doing, until it is busy again.
            self.sums.busy += self.began.take().map_or(0.0, |began| done.now.since(began).as_nanos() as f64);
        } else if self.began.is_none() {
            // What is in flight has been replaced under this budget.
            let latency = self.latency_ns.max(self.least_latency);
            let replaced = done.now.since(self.counts_from).as_nanos() as f64 >= LATENCIES * latency;
            self.began = (self.settling == SAMPLE && replaced).then_some(done.now);
        }
        ended
    }

    #[inline]
    fn count(&mut self, done: &Completion, least: f64, gap: Duration) {
        let cost = done.cost_bytes as f64;
        self.sums.bytes += done.payload_bytes as f64;
        self.sums.cost += cost;
        self.sums.squares += cost * cost;
        self.sums.completions += 1;
        self.sums.loaded += u32::from(done.holding_back || done.in_flight_bytes as f64 > least);
        self.sums.highest = self.sums.highest.max(done.in_flight_bytes);
        self.sums.gap = self.sums.gap.max(gap.as_nanos() as f64);
    }
}
