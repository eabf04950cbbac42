//! Throughput with its standard error, while one budget is in force.

use super::super::Completion;
use crate::time::{Duration, Instant};

/// Completions in a block, at least: at first and at most.
const BLOCK_COMPLETIONS: u32 = 16;
const MAX_BLOCK_COMPLETIONS: u32 = 256;
/// Blocks that scatter by more (relative variance, in requests) become twice as long, by less half as long. A device that
/// serves in bursts looks unsteady over short times only.
const UNSTEADY: f64 = 0.02;
const STEADY: f64 = 0.001;
/// Share of the mean latency that a block lasts, at least.
const BLOCK_LATENCIES: f64 = 0.5;
/// Blocks whose scatter is remembered.
const MEMORY_BLOCKS: f64 = 16.0;
/// Mean latency: weight of a new completion.
const LATENCY_WEIGHT: f64 = 1.0 / 32.0;
/// Mean square of the cost: weight of a new completion.
const SQUARE_WEIGHT: f64 = 1.0 / 64.0;
/// What is usual: weight of a new measurement, at least.
const USUAL_WEIGHT: f64 = 1.0 / 256.0;
/// What is recent: weight of a new measurement.
const RECENT_WEIGHT: f64 = 1.0 / 8.0;
/// A silence this many times the mean latency is no variation: a stall, or nothing to do.
const SILENT_LATENCIES: f64 = 16.0;

/// A throughput in bytes per nanosecond and the relative variance of that estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) rate: f64,
    pub(super) variance: f64,
    /// The same in requests per nanosecond.
    pub(super) requests: f64,
    pub(super) requests_variance: f64,
}

/// Sums over blocks of an amount x and their lengths t, for a ratio estimate of x per t.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    x: f64,
    xx: f64,
    xt: f64,
    t: f64,
    tt: f64,
}

impl Sums {
    fn add(&mut self, x: f64, t: f64) {
        self.x += x;
        self.xx += x * x;
        self.xt += x * t;
        self.t += t;
        self.tt += t * t;
    }

    /// Σx/Σt and the relative variance of one of `n` blocks.
    fn ratio(&self, n: f64) -> Option<(f64, f64)> {
        if n < 2.0 || self.t <= 0.0 || self.x <= 0.0 {
            return None;
        }
        let rate = self.x / self.t;
        let scatter = (self.xx - 2.0 * rate * self.xt + rate * rate * self.tt).max(0.0);
        Some((rate, scatter * n * n / ((n - 1.0) * self.x * self.x)))
    }
}

/// The relative variance of one block. A handful of blocks may agree by chance: those before have a say.
#[derive(Clone, Copy, Debug, Default)]
struct Scatter(f64);

impl Scatter {
    /// The variance of the mean of `n` blocks that scatter by `block`.
    fn of_mean(&mut self, block: f64, n: f64) -> f64 {
        let weight = n / (n + MEMORY_BLOCKS);
        self.0 = if self.0 == 0.0 { block } else { self.0 + (block - self.0) * weight };
        self.0.max(block) / n
    }
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
    by_bytes: Sums,
    by_requests: Sums,
    /// (Completions while a request was held back, completions) of the last block, if the budget did not bind in it.
    pub(super) slack: Option<(u64, u64)>,
    /// Outlives the budget.
    mean_latency_ns: f64,
    block_ns: f64,
    bytes_scatter: Scatter,
    requests_scatter: Scatter,
    mean_square_cost: f64,
    mean_cost: f64,
    block_completions: u32,
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
            by_bytes: Sums { x: 0.0, xx: 0.0, xt: 0.0, t: 0.0, tt: 0.0 },
            by_requests: Sums { x: 0.0, xx: 0.0, xt: 0.0, t: 0.0, tt: 0.0 },
            slack: None,
            mean_latency_ns: 0.0,
            block_ns: 0.0,
            bytes_scatter: Scatter(0.0),
            requests_scatter: Scatter(0.0),
            mean_square_cost: 0.0,
            mean_cost: 0.0,
            block_completions: BLOCK_COMPLETIONS,
        }
    }

    /// Begins anew; a budget has come into force at `now`.
    pub(super) fn restart(&mut self, now: Instant) {
        *self = Self {
            mean_latency_ns: self.mean_latency_ns,
            mean_cost: self.mean_cost,
            mean_square_cost: self.mean_square_cost,
            block_completions: self.block_completions,
            bytes_scatter: self.bytes_scatter,
            requests_scatter: self.requests_scatter,
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

    /// Cost of a request that is large for this load: the root of the mean square, over about the last 64. Requests of
    /// a light client beside it hardly lower it.
    pub(super) fn large_cost(&self) -> f64 {
        libm::sqrt(self.mean_square_cost)
    }

    /// A request has left.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> Progress {
        let latency_ns = done.latency.as_nanos() as f64;
        let (cost, gap) = (done.cost_bytes as f64, done.now.since(self.last_at));
        if self.mean_cost == 0.0 {
            (self.mean_latency_ns, self.mean_cost, self.mean_square_cost) = (latency_ns, cost, cost * cost);
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
        self.mean_square_cost += (cost * cost - self.mean_square_cost) * SQUARE_WEIGHT;
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
        if self.completions < self.block_completions || length < self.block_ns {
            return Progress::None;
        }
        let bytes = core::mem::take(&mut self.bytes);
        let bound = self.held_back * 4 >= self.completions * 3;
        self.slack = (!bound).then_some((u64::from(self.held_back), u64::from(self.completions)));
        self.blocks += 1;
        self.by_bytes.add(bytes, length);
        self.by_requests.add(f64::from(self.completions), length);
        (self.completions, self.held_back) = (0, 0);
        self.began_at = Some(self.last_at);
        self.block_ns = self.mean_latency_ns * BLOCK_LATENCIES;
        Progress::Block
    }

    /// The throughput so far, if there are at least two blocks: a ratio estimate with its variance from the blocks.
    pub(super) fn rate(&mut self) -> Option<Rate> {
        let n = f64::from(self.blocks);
        let (rate, block) = self.by_bytes.ratio(n)?;
        let (requests, requests_block) = self.by_requests.ratio(n)?;
        let variance = self.bytes_scatter.of_mean(block, n);
        let requests_variance = self.requests_scatter.of_mean(requests_block, n);
        self.choose_block_length();
        Some(Rate { rate, variance, requests, requests_variance })
    }

    fn choose_block_length(&mut self) {
        let scatter = self.requests_scatter.0;
        if scatter > UNSTEADY && self.block_completions < MAX_BLOCK_COMPLETIONS {
            self.block_completions *= 2;
        } else if scatter < STEADY && self.block_completions > BLOCK_COMPLETIONS {
            self.block_completions /= 2;
        } else {
            return;
        }
        // Learned anew: how it depends on the length is the question.
        (self.bytes_scatter, self.requests_scatter) = (Scatter(0.0), Scatter(0.0));
    }
}

impl Rate {
    /// A mean by inverse variance over at most about 256 measurements: one that scatters, as while the load changes, says
    /// little about what is usual.
    pub(super) fn averaged_with(self, new: Self) -> Self {
        let weight = (self.variance / (self.variance + new.variance).max(f64::MIN_POSITIVE)).max(USUAL_WEIGHT);
        self.mixed_with(new, weight)
    }

    /// An exponential mean over about eight measurements.
    pub(super) fn smoothed_with(self, new: Self) -> Self {
        self.mixed_with(new, RECENT_WEIGHT)
    }

    fn mixed_with(self, new: Self, weight: f64) -> Self {
        let rest = 1.0 - weight;
        let mean = |old: f64, new: f64| rest * old + weight * new;
        let variance = |old: f64, new: f64| rest * rest * old + weight * weight * new;
        Self {
            rate: mean(self.rate, new.rate),
            variance: variance(self.variance, new.variance),
            requests: mean(self.requests, new.requests),
            requests_variance: variance(self.requests_variance, new.requests_variance),
        }
    }
}
