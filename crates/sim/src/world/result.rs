//! The outcome of a run.

use evenkeel_control::admission::Reason;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use super::Latencies;

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The seed with which the run can be repeated.
    pub seed: u64,
    /// Start of the counted time.
    pub counted_from: Instant,
    /// Length of the counted time.
    pub counted: Duration,
    /// Per tenant: its figures over the counted time.
    pub tenants: Vec<TenantResult>,
    /// The admission budget over the counted time.
    pub budget: BudgetSpread,
    /// One sample for each `sample_every` of the counted time.
    pub series: Vec<Sample>,
    /// Number of events that the event queue handled in the whole run.
    pub events: u64,
    /// Per worker: its figures over the counted time; empty if clients reach the pool directly.
    pub workers: Vec<WorkerResult>,
    /// Number of moves of a connection to another worker in the counted time.
    pub moves: u64,
}

/// A worker's figures over the counted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerResult {
    /// Fraction of the counted time in which the worker was busy, 0 to 1, taken over whole intervals of 0.1 s.
    pub busy: f64,
}

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The request's kind.
    pub kind: Kind,
    /// The request's payload, in bytes.
    pub bytes: u32,
    /// Instant at which the client sent the request.
    pub sent_at: Instant,
    /// Instant at which the request entered the pool; later than `sent_at` if workers receive requests.
    pub entered_at: Instant,
    /// Instant at which the request was admitted to the device.
    pub admitted_at: Instant,
    /// Instant at which the device completed the request; the client gets the reply later if workers send replies.
    pub left_at: Instant,
    /// Priority inversion: time for which the request waited behind admitted requests that it outranks.
    pub inversion: Duration,
    /// Number of the client in the setup, from 0.
    pub client: usize,
    /// Number that the client's workload gave the request.
    pub number: u32,
}

/// A tenant's figures over the counted time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantResult {
    /// The tenant's name.
    pub name: String,
    /// Number of requests completed.
    pub requests: u64,
    /// Payload read and written, in bytes.
    pub bytes: u64,
    /// Payload read, in bytes; a part of `bytes`.
    pub read_bytes: u64,
    /// Latency: from the client's sending of a request to its receipt of the reply.
    pub response: Latencies,
    /// Queue latency: from a request's entry into the pool to its admission. With workers, a request enters the pool when a
    /// worker has received it.
    pub queue_wait: Latencies,
    /// Device latency: from a request's admission to its completion by the device.
    pub device: Latencies,
    /// Priority inversion: time for which requests waited behind admitted requests that they outrank, summed over all requests.
    pub inversion: Duration,
    /// Shortage against the tenant's reservation, as far as the tenant sent requests for it.
    pub deficit: Deficit,
}

impl TenantResult {
    /// Mean time that a request and its reply spent at workers: waiting there, being received and being sent.
    pub fn worker_mean(&self) -> Duration {
        self.response.mean() - self.queue_wait.mean() - self.device.mean()
    }

    /// Mean [`TenantResult::inversion`] per request.
    pub fn inversion_per_request(&self) -> Duration {
        Duration::from_nanos(self.inversion.as_nanos() / self.requests.max(1))
    }
}

/// Shortage against a reservation, over windows of one second from the start of the counted time.
///
/// In each window a tenant is due its reservation, but at most its demand: requests outstanding when the window begins, and
/// requests submitted in the window. Requests submitted in the window's last 10 ms that are outstanding at its end count for the
/// next window. The window's deficit is the amount due minus the amount completed, if positive: in requests if the reservation
/// has a request rate, in bytes if it has a byte rate. A window that the end of the run cuts short is not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deficit {
    /// Sum of the windows' deficits, in requests.
    pub requests: u64,
    /// Sum of the windows' deficits, in payload bytes.
    pub bytes: u64,
    /// Number of windows with a deficit.
    pub windows: u64,
}

/// Value, in bytes, that stands for "no bound" in a mean budget over time partly with and partly without a bound.
pub const NO_BOUND_BYTES: u64 = 1 << 30;

/// Statistics of the admission budget over time. Each budget is weighted by the time for which it was in force; no bound
/// counts as [`NO_BOUND_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetSpread {
    /// Mean budget, in bytes; infinite if there never was a bound.
    pub mean_bytes: f64,
    /// Coefficient of variation: standard deviation divided by mean; 0 if there never was a bound.
    pub cv: f64,
    /// The smallest budget, in bytes.
    pub min_bytes: u64,
    /// The largest budget, in bytes; `u64::MAX` = unbounded.
    pub max_bytes: u64,
}

/// State of a run at an instant, and figures of the interval since the previous sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Instant of the sample, which ends the interval.
    pub at: Instant,
    /// Admission budget in force at `at`, in bytes; `u64::MAX` = unbounded.
    pub budget_bytes: u64,
    /// Latency target of the admission control, in force at `at`; `None` if its method has no target.
    pub target: Option<Duration>,
    /// Reason for the admission budget.
    pub reason: Reason,
    /// Reason for the latency target.
    pub target_reason: Reason,
    /// Admission cost of the requests in flight at `at`, in bytes.
    pub in_flight_bytes: u64,
    /// Number of requests that are queued for admission at `at`.
    pub queued: usize,
    /// Per tenant: its figures of the interval.
    pub tenants: Vec<TenantSample>,
}

/// A tenant's figures since the previous sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TenantSample {
    /// Completions in the interval.
    pub served: Served,
    /// 99th percentile of the latency of the interval's completions, exact; zero without completions.
    pub p99_response: Duration,
}

/// Sums over the requests that completed in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Number of completed requests.
    pub requests: u64,
    /// Payload of the completed requests, in bytes.
    pub bytes: u64,
    /// Sum of the latencies of the completed requests, in nanoseconds.
    pub response_ns: u64,
}

impl Served {
    /// Mean latency; `None` without completions.
    pub fn mean_response(&self) -> Option<Duration> {
        self.response_ns.checked_div(self.requests).map(Duration::from_nanos)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.response_ns = self.response_ns.saturating_add(other.response_ns);
    }
}

/// A window: several consecutive samples, combined.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Start of the window.
    pub from: Instant,
    /// End of the window.
    pub until: Instant,
    /// Per tenant: its completions in the window.
    pub tenants: Vec<Served>,
}

impl Window {
    /// Payload bytes per second of all tenants together, over the window.
    pub fn bytes_per_s(&self) -> f64 {
        let bytes: u64 = self.tenants.iter().map(|tenant| tenant.bytes).sum();
        bytes as f64 / self.until.since(self.from).as_secs_f64()
    }
}

impl Run {
    /// Payload bytes per second of all tenants together, over the counted time.
    pub fn bytes_per_s(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.bytes).sum::<u64>() as f64 / self.counted.as_secs_f64()
    }

    /// Completed requests per second of all tenants together, over the counted time.
    pub fn requests_per_s(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.requests).sum::<u64>() as f64 / self.counted.as_secs_f64()
    }

    /// The series combined into windows of `length`, rounded to whole samples (at least one). An incomplete window at
    /// the end is left out.
    pub fn windows(&self, length: Duration) -> Vec<Window> {
        windows(&self.series, self.counted_from, length)
    }
}

/// The windows of [`Run::windows`], computed from a series of samples that begins at `from`.
pub(crate) fn windows(series: &[Sample], mut from: Instant, length: Duration) -> Vec<Window> {
    let Some(first) = series.first() else { return Vec::new() };
    let step = first.at.since(from).as_nanos().max(1);
    let samples = (length.as_nanos().saturating_add(step / 2) / step).max(1) as usize;
    let chunks = series.chunks_exact(samples);
    chunks
        .map(|chunk| {
            let mut window = Window { from, until: from, tenants: vec![Served::default(); first.tenants.len()] };
            for sample in chunk {
                window.until = sample.at;
                for (sum, tenant) in window.tenants.iter_mut().zip(&sample.tenants) {
                    sum.add(&tenant.served);
                }
            }
            from = window.until;
            window
        })
        .collect()
}
