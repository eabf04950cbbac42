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
    /// By tenant: its figures over the counted time.
    pub tenants: Vec<TenantResult>,
    /// The admission budget over the counted time.
    pub budget: BudgetSpread,
    /// One sample for each `sample_every` of the counted time.
    pub series: Vec<Sample>,
    /// Events that the engine handled.
    pub events: u64,
    /// By worker: its figures; empty where clients reach the pool directly.
    pub workers: Vec<WorkerResult>,
    /// Connections that were moved to another worker in the counted time.
    pub moves: u64,
}

/// A worker's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerResult {
    /// Part of the counted time that the worker was busy, 0 to 1; intervals of 0.1 s that lie in the counted time count.
    pub busy: f64,
}

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Its kind.
    pub kind: Kind,
    /// Payload, in bytes.
    pub bytes: u32,
    /// When the client sent it.
    pub sent_at: Instant,
    /// When it entered the pool: later than `sent_at` if workers receive requests.
    pub entered_at: Instant,
    /// When it was admitted to the device.
    pub admitted_at: Instant,
    /// When the device completed it: earlier than its client got the reply if workers send replies.
    pub left_at: Instant,
    /// How long it waited behind admitted requests that it outranks.
    pub inversion: Duration,
}

/// A tenant's figures over the counted time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantResult {
    /// Its name.
    pub name: String,
    /// Requests completed.
    pub requests: u64,
    /// Payload moved, in bytes.
    pub bytes: u64,
    /// Payload read, in bytes; part of `bytes`.
    pub read_bytes: u64,
    /// Latency: from submission to completion.
    pub response: Latencies,
    /// Queue latency: from submission to admission. With workers, a request is submitted when a worker has received it.
    pub queue_wait: Latencies,
    /// Device latency: from admission to completion.
    pub device: Latencies,
    /// Priority inversion: how long requests waited behind admitted requests that they outrank, summed over all requests.
    pub inversion: Duration,
    /// The part of the reservation that the tenant asked for and did not get.
    pub deficit: Deficit,
}

impl TenantResult {
    /// Mean time that a request and its reply spent at workers, waiting, being received and being sent.
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
/// In each window a tenant was due its reservation, but no more than it had asked for: its requests outstanding when the window
/// began and those submitted in it. Requests that came in the window's last 10 ms and are outstanding at its end count for the
/// next window. The deficit is what was due less what completed, if positive; it is taken for requests and for bytes, if the
/// reservation has such a rate. A window that the end of the run cuts short is not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deficit {
    /// Sum of the deficits, in requests.
    pub requests: u64,
    /// Sum of the deficits, in payload bytes.
    pub bytes: u64,
    /// Number of windows with a deficit.
    pub windows: u64,
}

/// The budget, in bytes, as which time without a bound counts in a mean that also covers time with a bound.
pub const NO_BOUND_BYTES: u64 = 1 << 30;

/// The admission budget over time. Each value is weighted by the time for which it was in force; no bound counts as
/// [`NO_BOUND_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetSpread {
    /// Mean in bytes; infinite if there never was a bound.
    pub mean_bytes: f64,
    /// Standard deviation divided by mean; 0 if there never was a bound.
    pub cv: f64,
    /// The smallest budget, in bytes.
    pub min_bytes: u64,
    /// The largest budget, in bytes; `u64::MAX` = unbounded.
    pub max_bytes: u64,
}

/// State of a run at an instant, and figures of the interval since the previous sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The instant, which ends the interval.
    pub at: Instant,
    /// Admission budget in force, in bytes; `u64::MAX` = unbounded.
    pub budget_bytes: u64,
    /// The pool's latency target in force, if the admission has one.
    pub target: Option<Duration>,
    /// Reason for the budget.
    pub reason: Reason,
    /// Reason for the target.
    pub target_reason: Reason,
    /// Cost of the requests in flight, in bytes.
    pub in_flight_bytes: u64,
    /// Requests queued for admission.
    pub queued: usize,
    /// By tenant: its figures of the interval.
    pub tenants: Vec<TenantSample>,
}

/// A tenant's figures since the previous sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TenantSample {
    /// Completions in the interval.
    pub served: Served,
    /// Exact 99th percentile of the latency; zero without completions.
    pub p99_response: Duration,
}

/// Completions in some interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests.
    pub requests: u64,
    /// Payload, in bytes.
    pub bytes: u64,
    /// Sum of latencies, in nanoseconds.
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

/// Several consecutive samples, combined.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Start of the window.
    pub from: Instant,
    /// End of the window.
    pub until: Instant,
    /// By tenant: its completions.
    pub tenants: Vec<Served>,
}

impl Window {
    /// Payload bytes per second of all tenants.
    pub fn bytes_per_s(&self) -> f64 {
        let bytes: u64 = self.tenants.iter().map(|tenant| tenant.bytes).sum();
        bytes as f64 / self.until.since(self.from).as_secs_f64()
    }
}

impl Run {
    /// Payload bytes per second of all tenants, over the counted time.
    pub fn bytes_per_s(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.bytes).sum::<u64>() as f64 / self.counted.as_secs_f64()
    }

    /// Completed requests per second of all tenants, over the counted time.
    pub fn requests_per_s(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.requests).sum::<u64>() as f64 / self.counted.as_secs_f64()
    }

    /// The series combined into windows of `length`, rounded to whole samples (at least one). An incomplete window at
    /// the end is left out.
    pub fn windows(&self, length: Duration) -> Vec<Window> {
        windows(&self.series, self.counted_from, length)
    }
}

/// [`Run::windows`] of a series alone.
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
