//! Measures how much work a worker has, whatever share of a core it gets.
//!
//! CPU time alone does not show that. A worker that is limited to a fifth of a core, or shares a core, never uses much of it,
//! however many requests wait. So a worker that never waits for events counts as fully busy.

use alloc::vec::Vec;

use crate::time::Duration;

/// A worker that is busy for up to the first part of the time counts as not full, from the second part on as full, and in
/// between as full in proportion.
const FULL: (f64, f64) = (0.8, 0.95);
/// Weight of a report of a worker that was never busy; the weight of a report of one that was busy all the time is 1.
const IDLE: f64 = 1e-9;

/// Report of a worker about its own work since its previous report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Part of the time (0 to 1) for which the worker had something to do, on a processor or waiting for one.
    pub busy: f64,
    /// CPU time of all requests that wait for the worker when a request is served, that one included; mean over requests.
    pub backlog: Duration,
    /// Mean CPU time of a request.
    pub each: Duration,
}

/// Sums over a worker's reports in the present interval. Times are in nanoseconds, weighted by how busy the worker was.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    reports: f64,
    busy: f64,
    weight: f64,
    backlog: f64,
    each: f64,
}

/// The part that a connection's observed load makes of its worker's time in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    /// Load while the worker was not full, as a part of the interval.
    pub(super) open: f32,
    /// Load while the worker was full, as a part of the interval.
    pub(super) hidden: f32,
    /// CPU time of the connection's requests that were waiting while the worker was full, as a part of the interval.
    pub(super) waiting: f32,
}

impl Part {
    /// The part for an observed load of `load` nanoseconds, if `self` is the part for one nanosecond.
    pub(super) fn times(self, load: u64) -> Self {
        let times = load as f32;
        Self { open: self.open * times, hidden: self.hidden * times, waiting: self.waiting * times }
    }
}

/// The reports of all workers in the present interval.
#[derive(Debug, Default)]
pub(super) struct Usages {
    reports: Vec<Sums>,
    /// True if any worker has reported in this or an earlier interval.
    known: bool,
}

impl Usages {
    pub(super) fn resize(&mut self, workers: usize) {
        self.reports.resize(workers, Sums::default());
    }

    pub(super) fn observe(&mut self, worker: u32, usage: Usage) {
        let Some(sums) = self.reports.get_mut(worker as usize) else { return };
        let busy = usage.busy.clamp(0.0, 1.0);
        let weight = busy.max(IDLE);
        sums.reports += 1.0;
        sums.busy += busy;
        sums.weight += weight;
        sums.backlog += weight * usage.backlog.as_nanos() as f64;
        sums.each += weight * usage.each.as_nanos() as f64;
        self.known = true;
    }

    /// The part of the worker's interval that one nanosecond of observed load makes. `sum`: observed loads of all connections
    /// of the worker, in ns. `None`: the worker hangs and has not reported, so that loads of the interval are incomplete.
    pub(super) fn part(&self, worker: usize, sum: u64, interval_ns: f64) -> Option<Part> {
        let sums = self.reports.get(worker).filter(|sums| sums.reports > 0.0);
        let Some(sums) = sums else {
            // Where no worker ever reports, loads are taken as they are; no worker is busy for more than all of the time.
            let open = (1.0 / interval_ns.max(sum as f64)) as f32;
            return (!self.known).then_some(Part { open, ..Part::default() });
        };
        let (busy, sum) = (sums.busy / sums.reports, sum.max(1) as f64);
        let full = ((busy - FULL.0) / (FULL.1 - FULL.0)).clamp(0.0, 1.0);
        Some(Part {
            open: (busy * (1.0 - full) / sum) as f32,
            hidden: (busy * full / sum) as f32,
            waiting: (sums.backlog / sums.weight / interval_ns * full / sum) as f32,
        })
    }

    /// Mean CPU time of a request over all workers, in ns; `None` if no worker has reported a request.
    pub(super) fn each_ns(&self) -> Option<f64> {
        let (mut busy, mut requests) = (0.0, 0.0);
        for sums in self.reports.iter().filter(|sums| sums.each > 0.0) {
            let share = sums.busy / sums.reports;
            busy += share;
            requests += share * sums.weight / sums.each;
        }
        (requests > 0.0).then(|| busy / requests)
    }

    /// Ends the interval: discards its reports.
    pub(super) fn end_interval(&mut self) {
        self.reports.fill(Sums::default());
    }
}
