//! The outcome of a run.

use evenkeel_control::admission::Reason;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use super::Latencies;

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The seed that repeats it.
    pub seed: u64,
    /// Where the counted time begins.
    pub counted_from: Instant,
    /// How long it is.
    pub counted: Duration,
    /// One for each tenant: what it received in the counted time.
    pub tenants: Vec<TenantResult>,
    /// The admission budget over the counted time.
    pub budget: BudgetSpread,
    /// One for each `sample_every` of the counted time.
    pub series: Vec<Sample>,
    /// Events of the engine.
    pub events: u64,
    /// One for each worker; none where clients reach the pool without.
    pub workers: Vec<WorkerResult>,
    /// Connections that went to another worker in the counted time.
    pub moves: u64,
}

/// A worker's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerResult {
    /// The part of the counted time, 0 to 1, for which it had something to do. Whole seconds count.
    pub busy: f64,
}

/// One request from end to end.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Its kind.
    pub kind: Kind,
    /// Payload, in bytes.
    pub bytes: u32,
    /// When the client sent it.
    pub sent_at: Instant,
    /// When it came to the pool: later than the client sent it where there are workers in between.
    pub entered_at: Instant,
    /// When it went into the device.
    pub admitted_at: Instant,
    /// When the device was done with it: earlier than the client saw where there are workers in between.
    pub left_at: Instant,
    /// How long it waited behind admitted work that it outranks.
    pub inversion: Duration,
}

/// A tenant's figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantResult {
    /// Its name.
    pub name: String,
    /// Requests completed.
    pub requests: u64,
    /// Payload moved, in bytes.
    pub bytes: u64,
    /// Of it, read.
    pub read_bytes: u64,
    /// From submission to completion: the latency.
    pub response: Latencies,
    /// From submission to admission: the queue latency. Where there are workers, submission is when one has received it.
    pub queue_wait: Latencies,
    /// From admission to completion: the device latency.
    pub device: Latencies,
    /// How long its requests waited behind admitted work that they outrank, summed over the requests.
    pub inversion: Duration,
    /// The part of the reservation that the tenant asked for and did not get.
    pub deficit: Deficit,
}

impl TenantResult {
    /// Mean time that requests and replies spent at workers, waiting and being received or sent.
    pub fn worker_mean(&self) -> Duration {
        self.response.mean() - self.queue_wait.mean() - self.device.mean()
    }

    /// Mean [`TenantResult::inversion`] of a request.
    pub fn inversion_per_request(&self) -> Duration {
        Duration::from_nanos(self.inversion.as_nanos() / self.requests.max(1))
    }
}

/// The shortage of reservations, over windows of a second from the start of the counted time.
///
/// In each window a tenant was guaranteed its reservation, and had asked for what was outstanding when the window began
/// and for what it submitted in it, but for what came in the last 10 ms of it and is under way when it ends: that belongs
/// to the next one. The deficit is the smaller of the two less what completed, if that is more than nothing: for requests and for bytes, each where the reservation has such a rate. A window that the end of the run
/// cuts short is not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deficit {
    /// Requests.
    pub requests: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Windows with a deficit.
    pub windows: u64,
}

/// A time without a bound counts as this budget, in bytes, in a mean with times under a bound.
pub const NO_BOUND_BYTES: u64 = 1 << 30;

/// The admission budget over time: each value counts for as long as it was in force, [`NO_BOUND_BYTES`] without a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetSpread {
    /// Mean, in bytes; infinite when there never was a bound.
    pub mean_bytes: f64,
    /// Standard deviation over mean; 0 when there never was a bound.
    pub cv: f64,
    /// The smallest, in bytes.
    pub min_bytes: u64,
    /// The largest, in bytes; `u64::MAX` = unbounded.
    pub max_bytes: u64,
}

/// A moment of a run, and sums over the time since the previous sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// End of the interval.
    pub at: Instant,
    /// Admission budget in force, in bytes; `u64::MAX` = unbounded.
    pub budget_bytes: u64,
    /// Target in force.
    pub target: Option<Duration>,
    /// Why the budget is what it is.
    pub reason: Reason,
    /// Why the target is what it is.
    pub target_reason: Reason,
    /// Cost in flight, in bytes.
    pub in_flight_bytes: u64,
    /// Requests that wait for admission.
    pub queued: usize,
    /// One for each tenant.
    pub tenants: Vec<TenantSample>,
}

/// A tenant's figures since the previous sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TenantSample {
    /// Requests, bytes, time.
    pub served: Served,
    /// 99th percentile of the latency, exactly; zero when nothing completed.
    pub p99_response: Duration,
}

/// Completions in some time.
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
    /// Mean latency; `None` when nothing completed.
    pub fn mean_response(&self) -> Option<Duration> {
        self.response_ns.checked_div(self.requests).map(Duration::from_nanos)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.response_ns = self.response_ns.saturating_add(other.response_ns);
    }
}

/// Consecutive samples put together.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Where it begins.
    pub from: Instant,
    /// Where it ends.
    pub until: Instant,
    /// One for each tenant.
    pub tenants: Vec<Served>,
}

impl Window {
    /// Payload of all tenants per second.
    pub fn bytes_per_s(&self) -> f64 {
        let bytes: u64 = self.tenants.iter().map(|tenant| tenant.bytes).sum();
        bytes as f64 / self.until.since(self.from).as_secs_f64()
    }
}

impl Run {
    /// Payload of all tenants per second of counted time.
    pub fn bytes_per_s(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.bytes).sum::<u64>() as f64 / self.counted.as_secs_f64()
    }

    /// Requests of all tenants per second of counted time.
    pub fn requests_per_s(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.requests).sum::<u64>() as f64 / self.counted.as_secs_f64()
    }

    /// The series in windows of `length`, rounded to whole samples (at least one); what is left over at the end is
    /// left out.
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
