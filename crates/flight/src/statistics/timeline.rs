//! The course of a recording's figures over time.

use super::histogram::Histogram;
use super::{SECOND_NS, completion, moves_data};
use crate::request::{Item, Outcome, Request};

/// The most steps of a timeline.
const MOST_STEPS: u64 = 300;
/// The shortest step, in nanoseconds.
const SHORTEST_NS: u64 = 10_000_000;

/// Computes the course of some tenants' figures, item by item, in at most 300 steps of equal length.
///
/// Memory: at most 60 KiB for each step and tenant; some 10 KiB with usual latencies.
#[derive(Clone, Debug)]
pub struct Timeline {
    begin_ns: u64,
    step_ns: u64,
    rows: Vec<Row>,
}

/// The course of the figures of a tenant, or of all tenants together.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// Number of the tenant; `None` for all tenants together.
    pub number: Option<u32>,
    /// The figures of each step.
    pub points: Vec<Point>,
    /// Sizes of reads and writes in bytes, ascending, each with the share (0 to 1) of those that are not larger.
    pub sizes: Vec<(u64, f64)>,
}

/// The figures of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Start of the step, in seconds since the start of the timeline.
    pub at_s: f64,
    /// Arrivals per second.
    pub iops: f64,
    /// Bytes of the reads and writes that arrived, per second.
    pub bytes_per_s: f64,
    /// Mean number of requests in flight, from arrival to completion.
    pub in_flight: f64,
    /// Median and 99th percentile of the queue latency of requests that arrived in the step, in nanoseconds; `None` without any.
    pub queue_ns: Option<[u64; 2]>,
    /// Median and 99th percentile of the device latency of requests that arrived in the step, in nanoseconds; `None` without any.
    pub device_ns: Option<[u64; 2]>,
}

/// The steps of a tenant.
#[derive(Clone, Debug)]
struct Row {
    number: Option<u32>,
    steps: Vec<Step>,
    sizes: Histogram,
}

#[derive(Clone, Debug, Default)]
struct Step {
    requests: u64,
    bytes: u64,
    /// Time in the step for which requests were in flight, summed over the requests.
    in_flight_ns: u64,
    queue: Histogram,
    device: Histogram,
}

impl Timeline {
    /// A timeline of a recording from `begin_ns` after its start on, of this length, for all tenants together and for each of
    /// `tenants`, which are numbers of the recording.
    pub fn new(begin_ns: u64, duration_ns: u64, tenants: &[u32]) -> Self {
        let step_ns = duration_ns.div_ceil(MOST_STEPS).max(SHORTEST_NS);
        let steps = duration_ns.div_ceil(step_ns).max(1) as usize;
        let row = |number| Row { number, steps: vec![Step::default(); steps], sizes: Histogram::default() };
        let rows = std::iter::once(None).chain(tenants.iter().copied().map(Some)).map(row).collect();
        Self { begin_ns, step_ns, rows }
    }

    /// Takes an item of the recording into account. A request that arrived after the end counts for the last step, one before the
    /// begin for the first.
    pub fn observe(&mut self, item: &Item) {
        let Item::Request(request) = item else { return };
        for row in &mut self.rows {
            if row.number.is_none_or(|number| number == request.tenant) {
                row.count(request, self.begin_ns, self.step_ns);
            }
        }
    }

    /// The courses: of all tenants together first, then of each tenant in the order given.
    pub fn courses(&self) -> Vec<Course> {
        let step_s = self.step_ns as f64 / SECOND_NS as f64;
        let percentiles =
            |histogram: &Histogram| (histogram.total() > 0).then(|| [0.5, 0.99].map(|share| histogram.quantile(share)));
        let point = |(index, step): (usize, &Step)| Point {
            at_s: index as f64 * step_s,
            iops: step.requests as f64 / step_s,
            bytes_per_s: step.bytes as f64 / step_s,
            in_flight: step.in_flight_ns as f64 / self.step_ns as f64,
            queue_ns: percentiles(&step.queue),
            device_ns: percentiles(&step.device),
        };
        let course = |row: &Row| Course {
            number: row.number,
            points: row.steps.iter().enumerate().map(point).collect(),
            sizes: row.sizes.shares(),
        };
        self.rows.iter().map(course).collect()
    }
}

impl Row {
    fn count(&mut self, request: &Request, begin_ns: u64, step_ns: u64) {
        let since_begin = |at_ns: u64| at_ns.saturating_sub(begin_ns);
        let (arrival_ns, end_ns) = (since_begin(request.arrival_ns), since_begin(completion(request)));
        let last = self.steps.len() - 1;
        let index = |at_ns: u64| ((at_ns / step_ns) as usize).min(last);
        let arrival = index(arrival_ns);
        let step = &mut self.steps[arrival];
        step.requests += 1;
        if moves_data(request) {
            step.bytes = step.bytes.saturating_add(request.length);
            self.sizes.add(request.length);
        }
        if request.outcome == Outcome::Done {
            step.queue.add(request.queue_ns);
            step.device.add(request.device_ns);
        }
        for (number, step) in self.steps.iter_mut().enumerate().take(index(end_ns) + 1).skip(arrival) {
            let step_begin_ns = (number as u64).saturating_mul(step_ns);
            let from = arrival_ns.max(step_begin_ns);
            let to = end_ns.min(step_begin_ns.saturating_add(step_ns));
            step.in_flight_ns = step.in_flight_ns.saturating_add(to.saturating_sub(from));
        }
    }
}
