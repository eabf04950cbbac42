//! A fast device that caches a slow one, and the kernel's throttle above them.
//!
//! | module | what it does |
//! |---|---|
//! | `cache` | the blocks that are on the fast device |
//! | [`throttle`] | `io.max` in slices of 100 ms |
//!
//! Each device serves one request after the other at its rate, first come, first served; a request completes a fixed latency
//! after it has been served. A hit goes to the fast device. A read that misses goes to the slow device, and [`Promotion`]
//! decides if its block is cached from then on. A write of a block that is being cached goes to the fast device; if it replaces
//! a dirty block, it waits until that block is written to the slow device. Other writes go to the slow device. Facts and their
//! sources: `docs/algorithms/models.md`.

mod cache;
mod params;
pub mod throttle;

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

pub use params::{CachedParams, Promotion};

use crate::Io;
use cache::Cache;

/// Number of uncached blocks whose misses are counted, as a multiple of the blocks that the fast device holds.
const GHOSTS: usize = 4;

/// A completed request, with the bytes that it moved on the slow device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The caller's id of the request.
    pub id: u64,
    /// Bytes read from the slow device for the request.
    pub slow_read: u64,
    /// Bytes written to the slow device for the request: its own payload, and dirty blocks that its blocks replaced.
    pub slow_written: u64,
}

/// One of the two devices, fast or slow.
#[derive(Clone, Debug, Default)]
struct Side {
    /// When the device has moved the payload of all its requests.
    free_at: Instant,
    /// Total time with requests in flight, up to `busy_until`.
    busy: Duration,
    /// When the device's last request completes.
    busy_until: Instant,
    /// Requests in flight, in order of completion.
    under_way: VecDeque<(Instant, Done)>,
}

impl Side {
    /// Queues a transfer of `bytes` behind all earlier ones. Returns when it completes: `latency` after its bytes have moved.
    fn serve(&mut self, now: Instant, bytes: u64, bytes_per_s: u64, latency: Duration) -> Instant {
        let time = bytes.saturating_mul(1_000_000_000) / bytes_per_s.max(1);
        self.free_at = self.free_at.max(now) + Duration::from_nanos(time);
        let done = self.free_at + latency;
        self.busy = self.busy + done.since(self.busy_until.max(now));
        self.busy_until = self.busy_until.max(done);
        done
    }

    fn finish(&mut self, at: Instant, done: Done) {
        let at = self.under_way.back().map_or(at, |&(last, _)| last.max(at));
        self.under_way.push_back((at, done));
    }

    fn next(&self) -> Instant {
        self.under_way.front().map_or(Instant::FAR_FUTURE, |&(at, _)| at)
    }
}

/// A fast device that caches a slow one. See the module's documentation.
///
/// The `now` of a call must not lie before that of an earlier call. O(blocks of the request) a call.
#[derive(Clone, Debug)]
pub struct Cached {
    params: CachedParams,
    cache: Cache,
    /// Uncached blocks that missed lately, each with its number of misses: a hash table in which a block replaces the block
    /// before it at the same place. Empty with [`Promotion::Always`].
    ghosts: Vec<(u64, u8)>,
    fast: Side,
    slow: Side,
    slow_read: u64,
    slow_written: u64,
    /// When the next dirty block may be written back.
    write_back_at: Instant,
}

impl Cached {
    /// An idle device whose cache is empty.
    pub fn new(params: CachedParams) -> Self {
        let blocks = usize::try_from(params.blocks()).unwrap_or(1);
        let ghosts = match params.promotion {
            Promotion::Always => Vec::new(),
            Promotion::Reused { .. } => vec![(u64::MAX, 0); GHOSTS * blocks.max(1)],
        };
        Self {
            params,
            cache: Cache::new(blocks),
            ghosts,
            fast: Side::default(),
            slow: Side::default(),
            slow_read: 0,
            slow_written: 0,
            write_back_at: Instant::ZERO,
        }
    }

    /// Returns the bytes read from the slow device so far, the bytes written to it, and its busy time until `now`. Bytes of
    /// write-back and of requests still in flight are included.
    pub fn slow_device(&self, now: Instant) -> (u64, u64, Duration) {
        let ahead = self.slow.busy_until.since(now);
        (self.slow_read, self.slow_written, Duration::from_nanos(self.slow.busy.as_nanos() - ahead.as_nanos()))
    }

    /// Changes the parameters, except sizes and promotion, for requests submitted from now on.
    pub fn set_params(&mut self, now: Instant, params: CachedParams) {
        self.write_back(now);
        let CachedParams { fast_bytes, block_bytes, promotion, .. } = self.params;
        self.params = CachedParams { fast_bytes, block_bytes, promotion, ..params };
    }

    /// Stalls both devices: they serve nothing for `length` from `now`.
    pub fn stall(&mut self, now: Instant, length: Duration) {
        self.write_back(now);
        for side in [&mut self.fast, &mut self.slow] {
            side.free_at = side.free_at.max(now) + length;
            side.busy_until += length;
            for (at, _) in &mut side.under_way {
                *at += length;
            }
        }
    }

    /// Takes a request. [`Self::poll`] returns `id` when it has completed.
    pub fn submit(&mut self, now: Instant, id: u64, io: Io) {
        self.write_back(now);
        let mut done = Done { id, slow_read: 0, slow_written: 0 };
        let (mut fast, mut slow_read, mut slow_write) = (0, 0, 0);
        let (mut offset, end) = (io.offset, io.offset.saturating_add(u64::from(io.bytes)));
        let write = io.kind == Kind::Write;
        let block_bytes = u64::from(self.params.block_bytes);
        if matches!(io.kind, Kind::Read | Kind::Write) {
            while offset < end {
                let block = offset / block_bytes;
                let next = (block + 1).saturating_mul(block_bytes).min(end);
                let bytes = next - offset;
                offset = next;
                if self.cache.touch(block, write) {
                    fast += bytes;
                } else if !self.takes_in(block) {
                    *if write { &mut slow_write } else { &mut slow_read } += bytes;
                } else {
                    *if write { &mut fast } else { &mut slow_read } += bytes;
                    slow_write += if self.cache.insert(block, write) { block_bytes } else { 0 };
                }
            }
        }
        let CachedParams { fast_bytes_per_s, fast_latency, slow_bytes_per_s, slow_latency, .. } = self.params;
        let mut fast_done = now;
        if fast > 0 {
            fast_done = self.fast.serve(now, fast, fast_bytes_per_s, fast_latency);
        }
        let mut slow_done = Instant::ZERO;
        if slow_read > 0 {
            slow_done = self.slow.serve(now, slow_read, slow_bytes_per_s, slow_latency);
        }
        if slow_write > 0 {
            let written = self.slow.serve(now, slow_write, slow_bytes_per_s, slow_latency);
            // A read does not wait for the block that it pushed out.
            if write {
                slow_done = written;
            }
        }
        (done.slow_read, done.slow_written) = (slow_read, slow_write);
        self.slow_read += slow_read;
        self.slow_written += slow_write;
        if slow_done > fast_done {
            self.slow.finish(slow_done, done);
        } else {
            self.fast.finish(fast_done, done);
        }
    }

    /// Time of the next poll; `Instant::FAR_FUTURE` when nothing is in flight.
    pub fn next_event(&self) -> Instant {
        self.fast.next().min(self.slow.next())
    }

    /// The next request that completed by `now`, in order of completion; call until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<Done> {
        let side = if self.fast.next() <= self.slow.next() { &mut self.fast } else { &mut self.slow };
        if side.next() > now {
            return None;
        }
        side.under_way.pop_front().map(|(_, done)| done)
    }

    /// Counts a miss of `block`. True if the block is cached from now on.
    fn takes_in(&mut self, block: u64) -> bool {
        let Promotion::Reused { misses } = self.params.promotion else { return true };
        let place = (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % self.ghosts.len();
        let ghost = &mut self.ghosts[place];
        if ghost.0 != block {
            *ghost = (block, 0);
        }
        ghost.1 = ghost.1.saturating_add(1);
        ghost.1 > misses
    }

    /// Writes back dirty blocks, as many as the write-back rate allowed between the last call and `now`.
    fn write_back(&mut self, now: Instant) {
        let CachedParams {
            write_back_bytes_per_s: rate, dirty_above, block_bytes, slow_bytes_per_s, slow_latency, ..
        } = self.params;
        if rate == 0 {
            return;
        }
        let most = libm::floor(dirty_above * self.params.blocks() as f64) as usize;
        let step = Duration::from_nanos(u64::from(block_bytes) * 1_000_000_000 / rate);
        while self.write_back_at <= now {
            if self.cache.dirty() <= most || !self.cache.clean_one() {
                // Time in which nothing was to be done is not made up for.
                self.write_back_at = now + step;
                return;
            }
            self.slow.serve(self.write_back_at, u64::from(block_bytes), slow_bytes_per_s, slow_latency);
            self.slow_written += u64::from(block_bytes);
            self.write_back_at += step;
        }
    }
}
