//! The digest of a run: its figures without the distributions, so that thousands of digests fit in memory.

use evenkeel_control::{Duration, Instant};

use crate::world::{BudgetSpread, Deficit, Latencies, Run, Sample, TenantResult, Window, windows};

/// The figures of a run's counted time, without its distributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Digest {
    /// Payload bytes per second of all tenants.
    pub bytes_per_s: f64,
    /// Completed requests per second of all tenants.
    pub requests_per_s: f64,
    /// True if any request waited for admission.
    pub throttled: bool,
    /// The admission budget over time.
    pub budget: BudgetSpread,
    /// The figures of each tenant, in the order of the setup's tenants.
    pub tenants: Vec<TenantDigest>,
    /// Start of the counted time, at which the series begins.
    pub counted_from: Instant,
    /// One sample for each interval of the setup's `sample_every` in the counted time.
    pub series: Vec<Sample>,
}

/// A tenant's figures in the counted time.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantDigest {
    /// Requests completed.
    pub requests: u64,
    /// Payload bytes per second.
    pub bytes_per_s: f64,
    /// Latency: queue latency + device latency.
    pub response: LatencyDigest,
    /// Device latency alone.
    pub device: LatencyDigest,
    /// See [`TenantResult::inversion`].
    pub inversion_s: f64,
    /// See [`TenantResult::deficit`].
    pub deficit: Deficit,
}

/// Mean and percentiles of a distribution of latencies, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyDigest {
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
}

impl LatencyDigest {
    fn of(latencies: &Latencies) -> Self {
        let ms = Duration::as_millis_f64;
        Self {
            mean_ms: ms(latencies.mean()),
            p50_ms: ms(latencies.p50()),
            p95_ms: ms(latencies.quantile(0.95)),
            p99_ms: ms(latencies.p99()),
            p999_ms: ms(latencies.p999()),
        }
    }
}

impl Digest {
    /// The figures of `run`.
    pub fn of(run: Run) -> Self {
        let seconds = run.counted.as_secs_f64();
        let tenant = |tenant: &TenantResult| TenantDigest {
            requests: tenant.requests,
            bytes_per_s: tenant.bytes as f64 / seconds,
            response: LatencyDigest::of(&tenant.response),
            device: LatencyDigest::of(&tenant.device),
            inversion_s: tenant.inversion.as_secs_f64(),
            deficit: tenant.deficit,
        };
        Self {
            bytes_per_s: run.bytes_per_s(),
            requests_per_s: run.requests_per_s(),
            throttled: run.tenants.iter().any(|tenant| tenant.queue_wait.max() > Duration::ZERO),
            budget: run.budget,
            tenants: run.tenants.iter().map(tenant).collect(),
            counted_from: run.counted_from,
            series: run.series,
        }
    }

    /// The series summed up in windows of `length`, as by [`Run::windows`].
    pub fn windows(&self, length: Duration) -> Vec<Window> {
        windows(&self.series, self.counted_from, length)
    }
}
