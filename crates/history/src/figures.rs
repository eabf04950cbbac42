//! Figures of series, and how they add up to figures of a longer time.

use std::sync::Arc;

/// Name of a series. Names order by pool, tenant, device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series {
    /// Name of the pool.
    pub pool: String,
    /// Name of the tenant; empty for the whole pool.
    pub tenant: String,
    /// Name of the device; empty for all devices of the pool together.
    pub device: String,
}

/// A quantity that has a value in each second, such as requests in flight. Without a value for a second, as an unlimited
/// tenant's limit, that second is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Number of seconds with a value.
    pub seconds: u64,
    /// Sum of the values of these seconds.
    pub sum: u64,
    /// Largest value of a second.
    pub max: u64,
}

impl Gauge {
    /// The gauge of one second with this value. A gauge without a value is the default.
    pub const fn at(value: u64) -> Self {
        Self { seconds: 1, sum: value, max: value }
    }

    /// The mean of the seconds with a value.
    pub fn mean(self) -> Option<f64> {
        (self.seconds > 0).then(|| self.sum as f64 / self.seconds as f64)
    }

    /// Adds the seconds of another gauge: sums add, of the maxima the larger stays.
    pub fn add(&mut self, other: Self) {
        self.seconds = self.seconds.saturating_add(other.seconds);
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

/// Figures of a series for a second or longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of completed requests.
    pub requests: u64,
    /// Payload bytes of these requests.
    pub bytes: u64,
    /// Number of failed requests.
    pub errors: u64,
    /// Sum of the latencies of the completed requests, in microseconds.
    pub latency_us: u64,
    /// Median of the latencies, in microseconds; for more than a second the largest of the seconds' medians.
    pub p50_us: u64,
    /// 99th percentile of the latencies, with the unit and rule of `p50_us`.
    pub p99_us: u64,
    /// 99.9th percentile of the latencies, with the unit and rule of `p50_us`.
    pub p999_us: u64,
    /// Number of queued requests.
    pub queued: Gauge,
    /// Number of requests in flight.
    pub in_flight: Gauge,
    /// Budget of admission control, in bytes.
    pub budget: Gauge,
    /// Granted slots (requests that may be in flight), in thousandths of a slot.
    pub slots: Gauge,
    /// Limit in force, in requests per second.
    pub limit_iops: Gauge,
    /// Limit in force, in payload bytes per second.
    pub limit_bytes_per_s: Gauge,
    /// Throttle delay of a request, in microseconds.
    pub delay_us: Gauge,
}

impl Figures {
    /// Mean latency in microseconds; `None` if no request completed.
    pub fn mean_us(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.latency_us as f64 / self.requests as f64)
    }

    /// True if no request completed, failed, was queued or was in flight. Idle series are not recorded.
    pub const fn is_idle(&self) -> bool {
        self.requests == 0 && self.bytes == 0 && self.errors == 0 && self.queued.max == 0 && self.in_flight.max == 0
    }

    /// Adds figures of another time: sums add, of percentiles and maxima the larger stays. The order does not matter.
    pub fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.errors = self.errors.saturating_add(other.errors);
        self.latency_us = self.latency_us.saturating_add(other.latency_us);
        self.p50_us = self.p50_us.max(other.p50_us);
        self.p99_us = self.p99_us.max(other.p99_us);
        self.p999_us = self.p999_us.max(other.p999_us);
        self.queued.add(other.queued);
        self.in_flight.add(other.in_flight);
        self.budget.add(other.budget);
        self.slots.add(other.slots);
        self.limit_iops.add(other.limit_iops);
        self.limit_bytes_per_s.add(other.limit_bytes_per_s);
        self.delay_us.add(other.delay_us);
    }
}

/// Figures of one series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The series.
    pub series: Arc<Series>,
    /// Figures of the series.
    pub figures: Figures,
}

/// All series that were not idle in one step of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Begin of the step, Unix time in seconds.
    pub at: u64,
    /// Length of the step, in seconds.
    pub seconds: u64,
    /// Recorded seconds of the step; the others are a gap.
    pub recorded: u64,
    /// Figures of the series. A series without figures was idle in the recorded seconds.
    pub samples: Vec<Sample>,
}

impl Slice {
    /// The slice of the second that begins at `at`. Idle samples are left out; samples of the same series are added.
    pub(crate) fn second(at: u64, samples: &[Sample]) -> Self {
        let mut samples: Vec<Sample> = samples.iter().filter(|sample| !sample.figures.is_idle()).cloned().collect();
        samples.sort_by(|a, b| a.series.cmp(&b.series));
        samples.dedup_by(|later, first| {
            let same = later.series == first.series;
            if same {
                first.figures.add(&later.figures);
            }
            same
        });
        Self { at, seconds: 1, recorded: 1, samples }
    }

    /// End of the step, Unix time in seconds.
    pub const fn end(&self) -> u64 {
        self.at.saturating_add(self.seconds)
    }
}
