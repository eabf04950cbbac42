//! Statistics of a recording, in one pass and in memory that does not grow with the number of requests: at most 100 KiB for each
//! tenant (usually 15), of at most 16,384 tenants; further ones count together.
//!
//! [`Statistics`] computes figures of the whole recording, [`Timeline`] their course. Both count and keep histograms; the
//! working set is estimated by a HyperLogLog of 4,096 registers, with a standard error of 1.6 %.

mod histogram;
mod sketch;
#[cfg(test)]
mod tests;
mod timeline;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use serde::{Serialize, Serializer};

use crate::request::{Head, Item, Kind, Outcome, Request, Table};
use histogram::Histogram;
use sketch::{Sketch, mixed};
pub use timeline::{Course, Point, Timeline};

/// Number of requests that are kept to bring them into the order of arrival. A request that arrived before as many later ones
/// completed counts as if it had arrived with the latest request counted.
const REORDERED: usize = 1 << 16;
/// Number of requests of a volume among whose ends the start of a sequential request is looked up.
const RECENT: usize = 32;
/// Unit of the working set, in bits of the offset: 1 MiB.
const EXTENT_BITS: u32 = 20;
/// The most extents of one request that count for the working set.
const MOST_EXTENTS: usize = 64;
/// The most tenants with figures of their own.
const MOST_TENANTS: usize = 1 << 14;
/// The most volumes whose last requests are kept; requests of others are not sequential.
const MOST_VOLUMES: usize = 1 << 16;
/// Name of the tenants beyond [`MOST_TENANTS`], together.
const OTHERS: &str = "others";
/// The most requests in flight that are counted, a bound on memory for recordings with wrong times.
const MOST_IN_FLIGHT: usize = 1 << 20;
/// Length of the steps whose counts give the burstiness.
const STEP_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Computes the figures of a recording, item by item.
///
/// The order of requests does not matter as long as they are less than 65,536 requests away from their place in the order of
/// arrival.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    head: Head,
    /// Names of tenants.
    names: HashMap<u32, String>,
    /// Requests that are not counted yet, of which the earliest is taken first.
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// Number of requests observed.
    observed: u64,
    /// Latest arrival that is counted.
    now_ns: u64,
    /// Earliest arrival, or start of a time with lost requests; `None` without items.
    begin_ns: Option<u64>,
    /// Latest completion, or end of a time with lost requests.
    end_ns: u64,
    lost: u64,
    total: Group,
    tenants: BTreeMap<u32, Group>,
    /// Tenants beyond [`MOST_TENANTS`], together.
    others: Option<Box<Group>>,
    volumes: HashMap<u32, Ends>,
}

/// The figures of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The head of the recording.
    pub head: Head,
    /// The time that the figures count from, in nanoseconds since the start of the recording: 0, or the first arrival if more
    /// than half of the time is before it, as in a segment of a server's ring.
    pub begin_ns: u64,
    /// Time from `begin_ns` to the last completion, in nanoseconds.
    pub duration_ns: u64,
    /// Number of requests that could not be recorded.
    pub lost: u64,
    /// The figures of all requests together.
    pub total: Figures,
    /// The figures of each tenant, in the order of the tenants' numbers; of more than 16,384 tenants those that came last count
    /// together, behind the others, as `others` without a number.
    pub tenants: Vec<Figures>,
}

/// The figures of a tenant, or of all tenants together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Number of the tenant; `None` for all tenants together, and for `others`.
    #[serde(skip)]
    pub number: Option<u32>,
    /// Name of the tenant; empty for all tenants together.
    pub tenant: String,
    /// Number of requests.
    pub requests: u64,
    /// Bytes of reads and writes.
    pub bytes: u64,
    /// Mean number of requests per second.
    pub iops: f64,
    /// The most requests that arrived within a second of the recording's clock.
    pub peak_iops: u64,
    /// Mean number of bytes per second.
    pub bytes_per_s: f64,
    /// Share of reads in reads and writes, from 0 to 1; `None` without any.
    pub read_share: Option<f64>,
    /// Share of the reads and writes that begin where one of the last 32 of the same volume ended; `None` without any.
    pub sequential_share: Option<f64>,
    /// Sizes of reads and writes; `None` without any.
    pub sizes: Option<Sizes>,
    /// Requests in flight, from arrival to completion; `None` if the recording has no latencies.
    pub in_flight: Option<InFlight>,
    /// Queue latency of the requests that succeeded; `None` if the recording has no latencies.
    pub queue: Option<Latency>,
    /// Device latency of the requests that succeeded; `None` if the recording has no latencies.
    pub device: Option<Latency>,
    /// Estimated bytes of the extents of 1 MiB that were read or written.
    pub working_set_bytes: u64,
    /// Index of dispersion of the arrivals per 100 ms: variance / mean. Evenly spaced arrivals have 0, independent ones 1.
    pub burstiness: f64,
    /// Number of failed requests.
    pub failed: u64,
    /// Number of cancelled requests.
    pub cancelled: u64,
    /// Number of requests that repeat an earlier one.
    pub retried: u64,
}

/// Sizes of requests, in bytes. Percentiles are rounded down by at most 1.6 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// 10th percentile.
    pub p10: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// The largest size.
    pub max: u64,
}

/// Number of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct InFlight {
    /// Mean over the duration, by Little's law: the sum of all latencies / duration.
    pub mean: f64,
    /// The largest number.
    pub peak: u64,
}

/// Percentiles of a latency, in nanoseconds, rounded down by at most 1.6 %; serialised in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Median.
    #[serde(rename = "p50_ms", serialize_with = "in_ms")]
    pub p50_ns: u64,
    /// 99th percentile.
    #[serde(rename = "p99_ms", serialize_with = "in_ms")]
    pub p99_ns: u64,
    /// 99.9th percentile.
    #[serde(rename = "p999_ms", serialize_with = "in_ms")]
    pub p999_ns: u64,
}

fn in_ms<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ns as f64 / 1e6)
}

/// A request with its number in the order of observation.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: Request,
    number: u64,
}

/// Counts and histograms of some requests.
#[derive(Clone, Debug, Default)]
struct Group {
    requests: u64,
    reads: u64,
    bytes: u64,
    sequential: u64,
    failed: u64,
    cancelled: u64,
    retried: u64,
    sizes: Histogram,
    queue: Histogram,
    device: Histogram,
    extents: Sketch,
    arrivals: Arrivals,
    /// Sum of the latencies of all requests, in nanoseconds.
    latencies_ns: u128,
    /// Completions of the requests in flight, of which the earliest is taken first.
    in_flight: BinaryHeap<Reverse<u64>>,
    peak_in_flight: usize,
}

/// Counts of arrivals in steps of 100 ms and in seconds.
#[derive(Clone, Debug, Default)]
struct Arrivals {
    step: u64,
    in_step: u64,
    /// Sum of the squares of the counts of earlier steps.
    squares: u128,
    second: u64,
    in_second: u64,
    peak: u64,
}

/// Ends of a volume's last requests.
#[derive(Clone, Debug)]
struct Ends {
    ends: [u64; RECENT],
    next: usize,
}

impl Summary {
    /// The time that the figures count from, as Unix time in nanoseconds; 0 if the start of the recording is not known.
    pub fn begun_unix_ns(&self) -> u64 {
        match self.head.started_unix_ns {
            0 => 0,
            start => start.saturating_add(self.begin_ns),
        }
    }
}

impl Statistics {
    /// Statistics of no request. `head` is that of the recording.
    pub fn new(head: &Head) -> Self {
        Self { head: head.clone(), ..Self::default() }
    }

    /// Takes an item of the recording into account.
    pub fn observe(&mut self, item: &Item) {
        match item {
            Item::Name(name) => {
                if name.table == Table::Tenant {
                    self.names.insert(name.number, name.name.clone());
                }
            }
            Item::Request(request) => {
                self.begin(request.arrival_ns);
                self.waiting.push(Reverse(Waiting { request: *request, number: self.observed }));
                self.observed += 1;
                if self.waiting.len() > REORDERED {
                    self.count_earliest();
                }
            }
            Item::Lost { requests, from_ns, to_ns } => {
                self.begin(*from_ns);
                self.lost = self.lost.saturating_add(*requests);
                self.end_ns = self.end_ns.max(*to_ns);
            }
        }
    }

    /// The figures of all items.
    pub fn summary(mut self) -> Summary {
        while self.count_earliest() {}
        // A segment of a ring counts from the ring's begin, which may be days before.
        let begin_ns = self.begin_ns.filter(|begin| *begin > self.end_ns / 2).unwrap_or(0);
        let duration_ns = self.end_ns.saturating_sub(begin_ns);
        let clock = Clock {
            duration_ns,
            steps: (self.now_ns / STEP_NS + 1).saturating_sub(begin_ns / STEP_NS).max(1),
            has_latencies: self.total.latencies_ns > 0,
        };
        let tenants = self.tenants.iter().map(|(number, group)| {
            let name = self.names.get(number).cloned().unwrap_or_else(|| format!("tenant {number}"));
            group.figures(Some(*number), name, &clock)
        });
        let others = self.others.iter().map(|group| group.figures(None, OTHERS.to_owned(), &clock));
        Summary {
            begin_ns,
            duration_ns,
            lost: self.lost,
            total: self.total.figures(None, String::new(), &clock),
            tenants: tenants.chain(others).collect(),
            head: self.head,
        }
    }

    /// Takes into account that something was observed at `at_ns`.
    fn begin(&mut self, at_ns: u64) {
        self.begin_ns = Some(self.begin_ns.map_or(at_ns, |begin| begin.min(at_ns)));
    }

    /// Counts the earliest request that is not counted yet; false if there is none.
    fn count_earliest(&mut self) -> bool {
        let Some(Reverse(Waiting { request, .. })) = self.waiting.pop() else { return false };
        self.now_ns = self.now_ns.max(request.arrival_ns);
        let end_ns = completion(&request);
        self.end_ns = self.end_ns.max(end_ns);
        let has_room = self.volumes.len() < MOST_VOLUMES || self.volumes.contains_key(&request.volume);
        let is_sequential =
            moves_data(&request) && has_room && self.volumes.entry(request.volume).or_default().meet(&request);
        let has_own = self.tenants.len() < MOST_TENANTS || self.tenants.contains_key(&request.tenant);
        let own = if has_own {
            self.tenants.entry(request.tenant).or_default()
        } else {
            &mut **self.others.get_or_insert_default()
        };
        for group in [&mut self.total, own] {
            group.count(&request, self.now_ns, end_ns, is_sequential);
        }
        true
    }
}

/// The times to which figures relate.
struct Clock {
    duration_ns: u64,
    /// Number of steps of [`STEP_NS`] from the begin up to the last arrival.
    steps: u64,
    has_latencies: bool,
}

/// The time at which a request was completed, in nanoseconds since the start of the recording.
fn completion(request: &Request) -> u64 {
    request.arrival_ns.saturating_add(request.queue_ns).saturating_add(request.device_ns)
}

fn moves_data(request: &Request) -> bool {
    matches!(request.kind, Kind::Read | Kind::Write)
}

impl Group {
    /// Counts a request that arrived at `at_ns`, which never decreases, and was completed at `end_ns`.
    fn count(&mut self, request: &Request, at_ns: u64, end_ns: u64, is_sequential: bool) {
        self.requests += 1;
        self.retried += u64::from(request.retried);
        if moves_data(request) {
            self.reads += u64::from(request.kind == Kind::Read);
            self.bytes = self.bytes.saturating_add(request.length);
            self.sequential += u64::from(is_sequential);
            self.sizes.add(request.length);
            let last = request.offset.saturating_add(request.length.saturating_sub(1)) >> EXTENT_BITS;
            for extent in (request.offset >> EXTENT_BITS..=last).take(MOST_EXTENTS) {
                self.extents.add(mixed(u64::from(request.volume)).wrapping_add(extent));
            }
        }
        match request.outcome {
            Outcome::Done => {
                self.queue.add(request.queue_ns);
                self.device.add(request.device_ns);
            }
            Outcome::Failed(_) => self.failed += 1,
            Outcome::Cancelled => self.cancelled += 1,
        }
        self.arrivals.add(at_ns);
        self.latencies_ns += u128::from(request.queue_ns) + u128::from(request.device_ns);
        while self.in_flight.peek().is_some_and(|Reverse(end)| *end <= at_ns) {
            self.in_flight.pop();
        }
        if end_ns > at_ns && self.in_flight.len() < MOST_IN_FLIGHT {
            self.in_flight.push(Reverse(end_ns));
            self.peak_in_flight = self.peak_in_flight.max(self.in_flight.len());
        }
    }

    fn figures(&self, number: Option<u32>, tenant: String, clock: &Clock) -> Figures {
        let seconds = clock.duration_ns as f64 / SECOND_NS as f64;
        let per_s = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let with_data = self.sizes.total();
        let share = |count: u64| (with_data > 0).then(|| count as f64 / with_data as f64);
        let sizes = Sizes {
            p10: self.sizes.quantile(0.1),
            p50: self.sizes.quantile(0.5),
            p90: self.sizes.quantile(0.9),
            max: self.sizes.max(),
        };
        let latency = |histogram: &Histogram| {
            let [p50_ns, p99_ns, p999_ns] = [0.5, 0.99, 0.999].map(|share| histogram.quantile(share));
            (clock.has_latencies && histogram.total() > 0).then_some(Latency { p50_ns, p99_ns, p999_ns })
        };
        let mean = self.latencies_ns as f64 / clock.duration_ns.max(1) as f64;
        Figures {
            number,
            tenant,
            requests: self.requests,
            bytes: self.bytes,
            iops: per_s(self.requests),
            peak_iops: self.arrivals.peak,
            bytes_per_s: per_s(self.bytes),
            read_share: share(self.reads),
            sizes: (with_data > 0).then_some(sizes),
            sequential_share: share(self.sequential),
            in_flight: clock.has_latencies.then_some(InFlight { mean, peak: self.peak_in_flight as u64 }),
            queue: latency(&self.queue),
            device: latency(&self.device),
            working_set_bytes: self.extents.count() << EXTENT_BITS,
            burstiness: self.arrivals.dispersion(self.requests, clock.steps),
            failed: self.failed,
            cancelled: self.cancelled,
            retried: self.retried,
        }
    }
}

impl Arrivals {
    /// Counts an arrival at `at_ns`, which never decreases.
    fn add(&mut self, at_ns: u64) {
        let (step, second) = (at_ns / STEP_NS, at_ns / SECOND_NS);
        if step > self.step {
            self.squares += square(self.in_step);
            (self.step, self.in_step) = (step, 0);
        }
        if second > self.second {
            (self.second, self.in_second) = (second, 0);
        }
        self.in_step += 1;
        self.in_second += 1;
        self.peak = self.peak.max(self.in_second);
    }

    /// Variance / mean of the counts of so many steps with so many requests; 0 without requests.
    fn dispersion(&self, requests: u64, steps: u64) -> f64 {
        if requests == 0 {
            return 0.0;
        }
        let mean = requests as f64 / steps as f64;
        let squares = (self.squares + square(self.in_step)) as f64 / steps as f64;
        ((squares - mean * mean) / mean).max(0.0)
    }
}

fn square(number: u64) -> u128 {
    u128::from(number) * u128::from(number)
}

impl Default for Ends {
    fn default() -> Self {
        // No request begins there.
        Self { ends: [u64::MAX; RECENT], next: 0 }
    }
}

impl Ends {
    /// True if the request begins at one of the ends. Adds the request's own end.
    fn meet(&mut self, request: &Request) -> bool {
        let meets = self.ends.contains(&request.offset);
        self.ends[self.next] = request.offset.saturating_add(request.length);
        self.next = (self.next + 1) % RECENT;
        meets
    }
}

impl Waiting {
    fn key(&self) -> (u64, u64) {
        (self.request.arrival_ns, self.number)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}
