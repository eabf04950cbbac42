//! Throughput with its standard error, while one budget is in force.

use super::super::Completion;
use crate::time::{Duration, Instant};

/// Completions in a block, at least.
const BLOCK_COMPLETIONS: u32 = 16;
/// Share of the mean latency that a block lasts, at least.
const BLOCK_LATENCIES: f64 = 0.5;
/// Blocks whose scatter is remembered.
const MEMORY_BLOCKS: f64 = 16.0;
/// Mean latency: weight of a new completion.
const LATENCY_WEIGHT: f64 = 1.0 / 32.0;
/// A silence this many times the mean latency is no variation: a stall, or nothing to do.
const SILENT_LATENCIES: f64 = 16.0;

/// A throughput in bytes per nanosecond and the relative variance of that estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) rate: f64,
    pub(super) variance: f64,
}

/// What a completion did to the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing new.
    None,
    /// A block has ended.
    Block,
    /// Nothing completed for long: what was measured is void.
    Silence,
}

/// Sums over blocks. A block begins and ends with a completion, so that a device that completes in batches is measured
/// over whole batches, and lasts at least one mean latency.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    /// What was admitted before does not count: it met another budget.
    counts_from: Instant,
    /// The block under way.
    began_at: Option<Instant>,
    last_at: Instant,
    bytes: f64,
    completions: u32,
    held_back: u32,
    /// Closed blocks: their number and sums over bytes b and lengths t.
    pub(super) blocks: u32,
    sum_b: f64,
    sum_t: f64,
    sum_bb: f64,
    sum_bt: f64,
    sum_tt: f64,
    /// (Completions while a request was held back, completions) of the last block, if the budget did not bind in it.
    pub(super) slack: Option<(u64, u64)>,
    /// Outlives the budget.
    mean_latency_ns: f64,
    block_ns: f64,
    block_variance: f64,
    mean_cost: f64,
}

impl Meter {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            counts_from: now,
            began_at: None,
            last_at: now,
            bytes: 0.0,
            completions: 0,
            held_back: 0,
            blocks: 0,
            sum_b: 0.0,
            sum_t: 0.0,
            sum_bb: 0.0,
            sum_bt: 0.0,
            sum_tt: 0.0,
            slack: None,
            mean_latency_ns: 0.0,
            block_ns: 0.0,
            block_variance: 0.0,
            mean_cost: 0.0,
        }
    }

    /// Begins anew; a budget has come into force at `now`.
    pub(super) fn restart(&mut self, now: Instant) {
        *self = Self {
            mean_latency_ns: self.mean_latency_ns,
            mean_cost: self.mean_cost,
            block_variance: self.block_variance,
            last_at: self.last_at,
            ..Self::new(now)
        };
    }

    /// Begins a new interval under the same budget, without a gap.
    pub(super) fn carry_on(&mut self) {
        let (began_at, bytes, completions, held_back) = (self.began_at, self.bytes, self.completions, self.held_back);
        self.restart(self.counts_from);
        (self.began_at, self.bytes, self.completions, self.held_back) = (began_at, bytes, completions, held_back);
    }

    /// Mean cost of a request, exponentially over about the last 32.
    pub(super) fn mean_cost(&self) -> f64 {
        self.mean_cost
    }

    /// A request has left.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> Progress {
        let latency_ns = done.latency.as_nanos() as f64;
        let (cost, gap) = (done.cost_bytes as f64, done.now.since(self.last_at));
        if self.mean_cost == 0.0 {
            (self.mean_latency_ns, self.mean_cost) = (latency_ns, cost);
        }
        if gap > Duration::ZERO {
            let progress = self.close(done.now, gap);
            if progress != Progress::None {
                self.account(done, latency_ns, cost);
                return progress;
            }
        }
        self.account(done, latency_ns, cost);
        Progress::None
    }

    #[inline]
    fn account(&mut self, done: &Completion, latency_ns: f64, cost: f64) {
        self.last_at = done.now;
        self.mean_latency_ns += (latency_ns - self.mean_latency_ns) * LATENCY_WEIGHT;
        self.mean_cost += (cost - self.mean_cost) * LATENCY_WEIGHT;
        match self.began_at {
            Some(began_at) if began_at < done.now => {
                self.bytes += done.payload_bytes as f64;
                self.completions += 1;
                self.held_back += u32::from(done.holding_back);
            }
            Some(_) => {}
            None if done.now - done.latency >= self.counts_from => {
                self.began_at = Some(done.now);
                self.block_ns = self.mean_latency_ns * BLOCK_LATENCIES;
            }
            None => {}
        }
    }

    /// Time has moved on to `now`: all completions of the last instant are in. Closes the block if it is long enough.
    #[inline]
    fn close(&mut self, now: Instant, gap: Duration) -> Progress {
        let Some(began_at) = self.began_at else { return Progress::None };
        if gap.as_nanos() as f64 > SILENT_LATENCIES * self.mean_latency_ns {
            self.restart(now);
            return Progress::Silence;
        }
        let length = self.last_at.since(began_at).as_nanos() as f64;
        if self.completions < BLOCK_COMPLETIONS || length < self.block_ns {
            return Progress::None;
        }
        let bytes = core::mem::take(&mut self.bytes);
        let bound = self.held_back * 4 >= self.completions * 3;
        self.slack = (!bound).then_some((u64::from(self.held_back), u64::from(self.completions)));
        (self.completions, self.held_back) = (0, 0);
        self.began_at = Some(self.last_at);
        self.block_ns = self.mean_latency_ns * BLOCK_LATENCIES;
        self.blocks += 1;
        self.sum_b += bytes;
        self.sum_t += length;
        self.sum_bb += bytes * bytes;
        self.sum_bt += bytes * length;
        self.sum_tt += length * length;
        Progress::Block
    }

    /// The throughput so far, if there are at least two blocks: a ratio estimate with its variance from the blocks.
    pub(super) fn rate(&mut self) -> Option<Rate> {
        if self.blocks < 2 || self.sum_t <= 0.0 || self.sum_b <= 0.0 {
            return None;
        }
        let (n, rate) = (f64::from(self.blocks), self.sum_b / self.sum_t);
        let scatter = (self.sum_bb - 2.0 * rate * self.sum_bt + rate * rate * self.sum_tt).max(0.0);
        // Relative variance of one block. A handful of blocks may agree by chance: those before have a say.
        let block = scatter * n * n / ((n - 1.0) * self.sum_b * self.sum_b);
        let weight = n / (n + MEMORY_BLOCKS);
        self.block_variance = if self.block_variance == 0.0 {
            block
        } else {
            self.block_variance + (block - self.block_variance) * weight
        };
        Some(Rate { rate, variance: self.block_variance.max(block) / n })
    }
}

impl Rate {
    /// An exponential mean over about eight measurements.
    pub(super) fn averaged_with(self, new: Self) -> Self {
        let (old_weight, weight) = (0.875, 0.125);
        Self {
            rate: old_weight * self.rate + weight * new.rate,
            variance: old_weight * old_weight * self.variance + weight * weight * new.variance,
        }
    }
}
