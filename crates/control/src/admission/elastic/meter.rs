//! Throughput with its standard error, while one budget is in force.

use super::super::Completion;
use super::work::{BYTES, Block, Moments, REQUESTS, Weights};
use crate::time::{Duration, Instant};
use crate::units::Kind;

/// Completions in a block, at least: at first and at most.
const BLOCK_COMPLETIONS: u32 = 16;
const MAX_BLOCK_COMPLETIONS: u32 = 256;
/// Blocks that scatter by more (relative variance, in requests) become twice as long, by less half as long. A device that
/// serves in bursts looks unsteady over short times only.
const UNSTEADY: f64 = 0.02;
const STEADY: f64 = 0.005;
/// Share of the mean latency that a block lasts, at least.
const BLOCK_LATENCIES: f64 = 0.5;
/// What each block leaves of the weight of those before when the weights are learned.
const WEIGHTS_MEMORY: f64 = 1.0 - 1.0 / 256.0;
/// Blocks whose scatter is remembered.
const MEMORY_BLOCKS: f64 = 16.0;
/// Mean latency: weight of a new completion.
const LATENCY_WEIGHT: f64 = 1.0 / 32.0;
/// Mean of inverse costs: weight of a new completion; and what it leaves of those before in the mean of squares.
const INVERSE_WEIGHT: f64 = 1.0 / 64.0;
const RECENT_MEMORY: f64 = 1.0 - 1.0 / 64.0;
/// What each completion leaves of the weight of those before in the size of what makes the load.
const SIZE_MEMORY: f64 = 1.0 - 1.0 / 512.0;
/// Sizes are alike when their relative variance, weighted by size, is below. As many requests of 4 KiB as of 64 KiB make
/// 0.09 with a base cost of 4,000 B, all powers of two 0.29.
const ALIKE: f64 = 0.1;
/// What is usual: weight of a new measurement, at least.
const USUAL_WEIGHT: f64 = 1.0 / 256.0;
/// What is recent: weight of a new measurement.
const RECENT_WEIGHT: f64 = 1.0 / 8.0;
/// A silence of so many mean latencies is no variation: there was nothing to do, or, if it is so many times as long as the
/// longest lately too, the device stalled. (A single large request among small ones may take a hundred times the mean.)
const SILENT_LATENCIES: f64 = 16.0;
const SILENT_GAPS: f64 = 2.0;
/// What each completion leaves of the longest gap, and its most in mean latencies.
const GAP_MEMORY: f64 = 1.0 - 1.0 / 16384.0;
const MAX_GAP_LATENCIES: f64 = 1024.0;

/// A throughput in bytes per nanosecond and the relative variance of that estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) rate: f64,
    pub(super) variance: f64,
    /// The same in work (what the requests should have taken) per nanosecond.
    pub(super) work: f64,
    pub(super) work_variance: f64,
    /// Share of the requests that write.
    pub(super) writes: f64,
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
    block: Block,
    completions: u32,
    held_back: u32,
    /// Closed blocks.
    pub(super) blocks: u32,
    moments: Moments,
    /// (Completions while a request was held back, completions) of the last block, if the budget did not bind in it.
    pub(super) slack: Option<(u64, u64)>,
    /// Outlives the budget.
    mean_latency_ns: f64,
    longest_gap_ns: f64,
    block_ns: f64,
    bytes_scatter: Scatter,
    requests_scatter: Scatter,
    work_scatter: Scatter,
    /// All blocks, and what they say about the time that requests take.
    history: Moments,
    weights: Weights,
    /// Fading sums over few completions: of the square of the cost, and of their weights.
    recent_squares: f64,
    recent: f64,
    /// Harmonic.
    mean_inverse_cost: f64,
    /// Fading sums over many: of the cost, its square and its third power.
    costs: f64,
    squares: f64,
    cubes: f64,
    block_completions: u32,
}

impl Meter {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            counts_from: now,
            began_at: None,
            last_at: now,
            block: Block::ZERO,
            completions: 0,
            held_back: 0,
            blocks: 0,
            moments: Moments::ZERO,
            slack: None,
            mean_latency_ns: 0.0,
            longest_gap_ns: 0.0,
            block_ns: 0.0,
            bytes_scatter: Scatter(0.0),
            requests_scatter: Scatter(0.0),
            work_scatter: Scatter(0.0),
            history: Moments::ZERO,
            weights: BYTES,
            recent_squares: 0.0,
            recent: 0.0,
            mean_inverse_cost: 0.0,
            costs: 0.0,
            squares: 0.0,
            cubes: 0.0,
            block_completions: BLOCK_COMPLETIONS,
        }
    }

    /// Begins anew; a budget has come into force at `now`.
    pub(super) fn restart(&mut self, now: Instant) {
        *self = Self {
            counts_from: now,
            began_at: None,
            block: Block::ZERO,
            completions: 0,
            held_back: 0,
            blocks: 0,
            moments: Moments::ZERO,
            slack: None,
            block_ns: 0.0,
            ..*self
        };
    }

    /// Begins a new interval under the same budget, without a gap.
    pub(super) fn carry_on(&mut self) {
        (self.blocks, self.moments, self.slack) = (0, Moments::ZERO, None);
    }

    /// Cost of a request that is small for this load: the harmonic mean, over about the last 64.
    pub(super) fn small_cost(&self) -> f64 {
        if self.mean_inverse_cost > 0.0 { 1.0 / self.mean_inverse_cost } else { 0.0 }
    }

    /// Cost of a request that is large for this load: the root of the mean square, over about the last 64. Requests of
    /// a light client beside it hardly lower it.
    pub(super) fn large_cost(&self) -> f64 {
        if self.recent > 0.0 { libm::sqrt(self.recent_squares / self.recent) } else { 0.0 }
    }

    /// A request has left.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> Progress {
        let latency_ns = done.latency.as_nanos() as f64;
        let (cost, gap) = (done.cost_bytes as f64, done.now.since(self.last_at));
        if self.mean_inverse_cost == 0.0 {
            (self.mean_latency_ns, self.mean_inverse_cost) = (latency_ns, 1.0 / cost.max(1.0));
        }
        let progress = if gap > Duration::ZERO { self.close(done, gap) } else { Progress::None };
        self.account(done, latency_ns, cost);
        progress
    }

    #[inline]
    fn account(&mut self, done: &Completion, latency_ns: f64, cost: f64) {
        self.last_at = done.now;
        self.mean_latency_ns += (latency_ns - self.mean_latency_ns) * LATENCY_WEIGHT;
        self.mean_inverse_cost += (1.0 / cost.max(1.0) - self.mean_inverse_cost) * INVERSE_WEIGHT;
        self.recent = self.recent * RECENT_MEMORY + 1.0;
        self.recent_squares = self.recent_squares * RECENT_MEMORY + cost * cost;
        self.costs = self.costs * SIZE_MEMORY + cost;
        self.squares = self.squares * SIZE_MEMORY + cost * cost;
        self.cubes = self.cubes * SIZE_MEMORY + cost * cost * cost;
        match self.began_at {
            Some(began_at) if began_at < done.now => {
                self.block.add(done.kind == Kind::Write, done.payload_bytes as f64);
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
    fn close(&mut self, done: &Completion, gap: Duration) -> Progress {
        let Some(began_at) = self.began_at else { return Progress::None };
        let gap_ns = gap.as_nanos() as f64;
        // What was inside all the time took that long; otherwise there was nothing to do.
        let busy = done.latency >= gap;
        let silent =
            gap_ns > SILENT_LATENCIES * self.mean_latency_ns && (!busy || gap_ns > SILENT_GAPS * self.longest_gap_ns);
        if busy && done.holding_back {
            let gap_ns = gap_ns.min(MAX_GAP_LATENCIES * self.mean_latency_ns);
            self.longest_gap_ns = gap_ns.max(self.longest_gap_ns * GAP_MEMORY);
        }
        if silent {
            self.restart(done.now);
            return Progress::Silence;
        }
        let length = self.last_at.since(began_at).as_nanos() as f64;
        if self.completions < self.block_completions || length < self.block_ns {
            return Progress::None;
        }
        let mut block = core::mem::take(&mut self.block);
        block.set_length(length);
        let bound = self.held_back * 4 >= self.completions * 3;
        self.slack = (!bound).then_some((u64::from(self.held_back), u64::from(self.completions)));
        self.blocks += 1;
        self.moments.add(&block);
        self.history.fade(WEIGHTS_MEMORY);
        self.history.add(&block);
        (self.completions, self.held_back) = (0, 0);
        self.began_at = Some(self.last_at);
        self.block_ns = self.mean_latency_ns * BLOCK_LATENCIES;
        Progress::Block
    }

    /// The throughput so far, if there are at least two blocks: ratio estimates with their variances from the blocks.
    pub(super) fn rate(&mut self) -> Option<Rate> {
        let n = f64::from(self.blocks);
        let (rate, block) = self.moments.ratio(&BYTES)?;
        let (_, requests_block) = self.moments.ratio(&REQUESTS)?;
        let (work, work_block) = self.moments.ratio(&self.weights)?;
        let variance = self.bytes_scatter.of_mean(block, n);
        let work_variance = self.work_scatter.of_mean(work_block, n);
        self.requests_scatter.of_mean(requests_block, n);
        self.choose_block_length();
        Some(Rate { rate, variance, work, work_variance, writes: self.moments.writes() })
    }

    /// Size of the requests that make the load: the mean of the cost, by cost, over about the last 512 completions.
    /// Light clients do not show in it, nor do their bursts.
    pub(super) fn size(&self) -> f64 {
        if self.costs > 0.0 { self.squares / self.costs } else { 0.0 }
    }

    /// Work per nanosecond in the blocks so far, and its relative standard error by what blocks usually scatter.
    pub(super) fn so_far(&self) -> Option<(f64, f64)> {
        let work = self.moments.mean(&self.weights)?;
        Some((work, libm::sqrt(self.work_scatter.0 / f64::from(self.blocks))))
    }

    /// Bytes per nanosecond in the blocks so far, and its relative standard error by what blocks usually scatter.
    pub(super) fn bytes_so_far(&self) -> Option<(f64, f64)> {
        let rate = self.moments.mean(&BYTES)?;
        Some((rate, libm::sqrt(self.bytes_scatter.0 / f64::from(self.blocks))))
    }

    /// Whether the requests that make the load are of one size: the relative variance of their cost, by cost.
    fn sizes_are_alike(&self) -> bool {
        self.cubes * self.costs < (1.0 + ALIKE) * self.squares * self.squares
    }

    /// Learns the sizes of requests anew: others have come.
    pub(super) fn forget_sizes(&mut self) {
        (self.recent, self.recent_squares) = (0.0, 0.0);
        (self.costs, self.squares, self.cubes) = (0.0, 0.0, 0.0);
    }

    /// Learns anew what requests take. Whatever is to be compared must be measured with the same weights.
    pub(super) fn learn_weights(&mut self) {
        if let Some(weights) = self.history.weights() {
            self.weights = weights;
        }
    }

    /// Begins with the shortest blocks again.
    pub(super) fn shorten_blocks(&mut self) {
        self.block_completions = BLOCK_COMPLETIONS;
    }

    fn choose_block_length(&mut self) {
        // A light client that comes and goes makes the number of requests scatter, whatever the device does.
        let (requests, bytes) = (self.requests_scatter.0, self.bytes_scatter.0);
        let scatter = if self.sizes_are_alike() { requests.min(bytes) } else { requests };
        if scatter > UNSTEADY && self.block_completions < MAX_BLOCK_COMPLETIONS {
            self.block_completions *= 2;
        } else if scatter < STEADY && self.block_completions > BLOCK_COMPLETIONS {
            self.block_completions /= 2;
        } else {
            return;
        }
        // Learned anew: how it depends on the length is the question.
        (self.bytes_scatter, self.requests_scatter, self.work_scatter) = (Scatter(0.0), Scatter(0.0), Scatter(0.0));
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
            work: mean(self.work, new.work),
            work_variance: variance(self.work_variance, new.work_variance),
            writes: mean(self.writes, new.writes),
        }
    }
}
