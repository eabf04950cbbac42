//! How much a worker has to do, whatever share of a core it gets.
//!
//! CPU time alone does not tell. A worker that is held to a fifth of a core, or shares one, never uses much of it,
//! however many requests wait. And when all workers are full, each uses all that it gets: what tells them apart is how
//! long a request waits behind others. So a worker that never waits for events counts as fully busy, and a full one
//! counts for more than that where more lies before it than before the full one that has least.

use alloc::vec::Vec;

use crate::time::Duration;

/// A worker is full where it is busy for more than the first share of the time, without doubt beyond the second.
const FULL: (f64, f64) = (0.8, 0.95);
/// What lies before a full worker counts for at most so many times what it can do: figures are rough, and a few steps do
/// the rest.
const MOST_DEMAND: f64 = 3.0;
/// Weight of a new interval in what a worker's load is multiplied by.
const WEIGHT: f64 = 0.5;

/// What a worker tells of itself once an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Share of the time (0 to 1) for which it had something to do, on a processor or waiting for one.
    pub busy: f64,
    /// CPU time that requests take which lie before it at the same time, in the mean over requests.
    pub backlog: Duration,
}

/// What all workers have told.
#[derive(Debug, Default)]
pub(super) struct Usages {
    /// Of the interval under way.
    told: Vec<Option<Usage>>,
    /// What each worker's load is multiplied by: at least 1.
    demand: Vec<f64>,
    /// How certain it is that a worker is full, 0 to 1.
    fullness: Vec<f64>,
    /// Whether any worker ever told.
    known: bool,
}

impl Usages {
    pub(super) fn resize(&mut self, workers: usize) {
        self.told.resize(workers, None);
        self.demand.resize(workers, 1.0);
        self.fullness.resize(workers, 0.0);
    }

    pub(super) fn tell(&mut self, worker: u32, usage: Usage) {
        if let Some(told) = self.told.get_mut(worker as usize) {
            *told = Some(usage);
            self.known = true;
        }
    }

    /// Whether what was observed of the worker's connections is all of an interval. A worker that hangs tells nothing.
    pub(super) fn is_told(&self, worker: u32) -> bool {
        !self.known || self.told.get(worker as usize).is_some_and(Option::is_some)
    }

    /// What makes observed loads, which sum up to `sum`, the share of `interval_ns` for which the worker was busy.
    pub(super) fn scale(&self, worker: usize, sum: u64, interval_ns: f64) -> f64 {
        match self.told.get(worker) {
            Some(Some(usage)) if sum > 0 => usage.busy.clamp(0.0, 1.0) * interval_ns / sum as f64,
            _ => 1.0,
        }
    }

    /// What the worker's load is multiplied by.
    pub(super) fn demand(&self, worker: u32) -> f64 {
        self.demand.get(worker as usize).copied().unwrap_or(1.0)
    }

    /// How certain it is that the worker is full, 0 to 1.
    pub(super) fn fullness(&self, worker: u32) -> f64 {
        self.fullness.get(worker as usize).copied().unwrap_or(0.0)
    }

    /// The interval ends.
    pub(super) fn end_interval(&mut self) {
        let full = |usage: &&Usage| usage.busy > FULL.0 && usage.backlog > Duration::ZERO;
        let least = self.told.iter().flatten().filter(full).map(|usage| usage.backlog.as_nanos()).min();
        for ((told, demand), fullness) in self.told.iter_mut().zip(&mut self.demand).zip(&mut self.fullness) {
            let Some(usage) = told.take() else { continue };
            let times = least.map_or(1.0, |least| usage.backlog.as_nanos() as f64 / least as f64);
            *fullness = ((usage.busy - FULL.0) / (FULL.1 - FULL.0)).clamp(0.0, 1.0);
            let now = 1.0 + (times.clamp(1.0, MOST_DEMAND) - 1.0) * *fullness;
            *demand += (now - *demand) * WEIGHT;
        }
    }
}
