//! One workload's report on one period.

use crate::time::Duration;

/// The report of one workload (a tenant on a device) on one period, in whole numbers: sums over the period's requests. Each slice
/// of a request that is divided into slices counts as a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Length of the period.
    pub length: Duration,
    /// Requests that arrived in the period.
    pub arrived: u64,
    /// Requests that the device completed in the period.
    pub completed: u64,
    /// Payload bytes of the requests completed in the period.
    pub bytes: u64,
    /// Requests queued at the host when the period ended: q⁰ of the DRG paper.
    pub queued: u64,
    /// The time that the queued requests had waited when the period ended, added up: D⁰ of the DRG paper.
    pub waited: Duration,
    /// The time that the workload's requests spent in the device during the period, added up.
    pub occupied: Duration,
    /// The time, in this and earlier periods, in which the requests completed in the period waited for others to the same bytes
    /// after they were dispatched, added up; `occupied` of those periods contains it.
    pub aside: Duration,
    /// Device latencies of the requests completed in the period, added up, without `aside`.
    pub device_time: Duration,
    /// Latencies from arrival to completion of the requests completed in the period, added up. A request that is divided into
    /// slices counts once. Waits for requests to the same bytes are left out, as above.
    pub latency: Duration,
}

impl Report {
    /// Mean number of requests in flight: the slots that were used.
    pub fn used(&self) -> f64 {
        over(self.occupied, self.length)
    }

    /// Arrivals per second.
    pub fn arrival_rate(&self) -> f64 {
        per_second(self.arrived, self.length)
    }

    /// Completions per second.
    pub fn completion_rate(&self) -> f64 {
        per_second(self.completed, self.length)
    }

    /// Mean device latency in seconds; `None` when nothing completed.
    pub fn device_latency_s(&self) -> Option<f64> {
        mean_s(self.device_time, self.completed)
    }

    /// Mean latency from arrival to completion in seconds, true only if no request is divided into slices; `None` when nothing
    /// completed.
    pub fn latency_s(&self) -> Option<f64> {
        mean_s(self.latency, self.completed)
    }

    /// True if no request of the workload arrived, completed, was queued or was in flight.
    pub fn is_idle(&self) -> bool {
        self.arrived == 0 && self.completed == 0 && self.queued == 0 && self.occupied == Duration::ZERO
    }
}

fn over(sum: Duration, length: Duration) -> f64 {
    if length == Duration::ZERO { 0.0 } else { sum.as_secs_f64() / length.as_secs_f64() }
}

fn per_second(count: u64, length: Duration) -> f64 {
    if length == Duration::ZERO { 0.0 } else { count as f64 / length.as_secs_f64() }
}

fn mean_s(sum: Duration, count: u64) -> Option<f64> {
    (count > 0).then(|| sum.as_secs_f64() / count as f64)
}
