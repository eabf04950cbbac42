//! A batching store with a deep buffer, shaped like Ceph's BlueStore.
//!
//! ```text
//!                 ┌───────────── data stage ─────────────┐        ┌──── commit stage ────┐
//!  write ────────▶│ queue ─▶ link (bandwidth, IOPS) ─▶ access latency │─▶ queue ─▶ one committer, │─▶ done
//!  small write ───┼──────────────────────────────────────┼───────▶│   everything queued   │─▶ done, applied later
//!  flush, meta ───┼──────────────────────────────────────┼───────▶│   in one batch        │─▶ done
//!  read ─────────▶│                same                  │─▶ done └──────────────────────┘
//!                 └──────────────────────────────────────┘
//! ```
//!
//! The store accepts every request. So the caller decides how many requests wait inside, in order of arrival, where no
//! scheduler can reorder them. A commit costs the same for any number of requests: throughput needs some queue depth, and any
//! more depth only adds latency. If the log is on the same device (`commit_bytes`), a commit also takes time on the link.
//!
//! A stall stops the device's own clock. Events are kept in device time, so that a stall moves all of them at once.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use crate::Io;
use crate::clock::{DeviceClock, polled};
use crate::jitter::Jitter;
pub use crate::params::InvalidParams;
use crate::params::{check, faster_rate, faster_time};

/// Shortest period of stalls: each stall is an event, and with a shorter period a core would do nothing but handle stalls.
const MIN_STALL_EVERY: Duration = Duration::from_millis(1);

/// The parameters of a [`Store`]; everything can change while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", schemars(rename = "Emulate", transform = crate::preset::schema::<Self>))]
pub struct StoreParams {
    /// Payload the link moves, reads and writes together, in bytes per second.
    #[cfg_attr(feature = "serde", serde(rename = "bandwidth", with = "evenkeel_control::text::AsBytes"))]
    pub bandwidth_bytes_per_s: u64,
    /// Requests the link moves per second, however small; its inverse is the base cost of a request.
    pub iops: u64,
    /// Time from a read's leaving the link until its data is there; these times of requests overlap.
    pub read_latency: Duration,
    /// Time from a write's leaving the link until its data is on the device, not yet committed; these times overlap.
    pub write_latency: Duration,
    /// Time that one commit takes, however many requests it makes durable.
    pub commit_latency: Duration,
    /// The bytes that each commit first writes over the link, in turn with the data; 0 = the log is on another device.
    #[cfg_attr(feature = "serde", serde(rename = "commit_size", with = "evenkeel_control::text::AsBytes"))]
    pub commit_bytes: u32,
    /// Largest number of requests that one commit makes durable.
    pub commit_batch_max: u32,
    /// Writes of at most this size go into the log, are done when it commits and are applied afterwards; 0 = none.
    #[cfg_attr(feature = "serde", serde(rename = "deferred_max", with = "evenkeel_control::text::AsBytes"))]
    pub deferred_max_bytes: u32,
    /// Deferred bytes that may await application; beyond them small writes are not deferred.
    #[cfg_attr(feature = "serde", serde(rename = "deferred_backlog_max", with = "evenkeel_control::text::AsBytes"))]
    pub deferred_backlog_max_bytes: u64,
    /// Variation of read, write and commit latency; as text the standard deviation of their logarithm, 0 (none) to 2.
    #[cfg_attr(feature = "serde", serde(with = "crate::preset::jitter"), schemars(with = "f64"))]
    pub jitter: Jitter,
    /// Period of stalls; zero = none.
    pub stall_every: Duration,
    /// Duration of each stall.
    pub stall_for: Duration,
}

#[cfg(feature = "serde")]
impl crate::preset::Preset for StoreParams {
    const PRESETS: crate::preset::Presets<Self> = &[("ssd", Self::ssd), ("hdd", Self::hdd)];
}

impl StoreParams {
    /// A store on a SATA-class SSD: 100 MB/s, 25,000 requests per second, 100 µs access latency, 1 ms per commit.
    ///
    /// With writes of 64 KiB, 256 to 512 KiB in flight bring most of the throughput; more in flight only adds latency.
    pub const fn ssd() -> Self {
        Self {
            bandwidth_bytes_per_s: 100_000_000,
            iops: 25_000,
            read_latency: Duration::from_micros(100),
            write_latency: Duration::from_micros(100),
            commit_latency: Duration::from_micros(1_000),
            commit_bytes: 0,
            commit_batch_max: 4_096,
            deferred_max_bytes: 0,
            deferred_backlog_max_bytes: 0,
            jitter: Jitter::LogNormal { sigma: 0.25 },
            stall_every: Duration::ZERO,
            stall_for: Duration::ZERO,
        }
    }

    /// A store on a disk on which every request seeks: 180 requests per second, 150 MB/s, 10 ms per commit. Writes of at most
    /// 32 KiB go to the log first.
    pub const fn hdd() -> Self {
        Self {
            bandwidth_bytes_per_s: 150_000_000,
            iops: 180,
            read_latency: Duration::from_micros(500),
            write_latency: Duration::from_micros(500),
            commit_latency: Duration::from_millis(10),
            commit_bytes: 0,
            commit_batch_max: 4_096,
            deferred_max_bytes: 32 << 10,
            deferred_backlog_max_bytes: 64 << 20,
            jitter: Jitter::LogNormal { sigma: 0.25 },
            stall_every: Duration::ZERO,
            stall_for: Duration::ZERO,
        }
    }

    /// The parameters with all times divided by `speed` and all rates multiplied by it, except those of periodic stalls;
    /// `speed` is above 0.
    pub fn scaled(&self, speed: f64) -> Self {
        let (time, rate) = (faster_time(speed), faster_rate(speed));
        Self {
            bandwidth_bytes_per_s: rate(self.bandwidth_bytes_per_s),
            iops: rate(self.iops),
            read_latency: time(self.read_latency),
            write_latency: time(self.write_latency),
            commit_latency: time(self.commit_latency),
            ..*self
        }
    }

    /// Checks that the parameters are in range and fit together.
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        let rules = [
            (self.bandwidth_bytes_per_s > 0, "bandwidth", "greater than 0"),
            (self.iops > 0, "iops", "greater than 0"),
            (self.commit_batch_max > 0, "commit_batch_max", "greater than 0"),
            (self.jitter.is_valid(), "jitter", "0 to 2"),
            (
                self.stall_every == Duration::ZERO || self.stall_for < self.stall_every,
                "stall_for",
                "shorter than stall_every",
            ),
            (
                self.stall_every == Duration::ZERO || self.stall_every >= MIN_STALL_EVERY,
                "stall_every",
                "0 (never) or at least 1ms",
            ),
        ];
        check(&rules)
    }

    /// Time for which a request occupies the link, rounded up, so that neither the bandwidth nor the IOPS are exceeded.
    fn link_time(&self, bytes: u32) -> Duration {
        let transfer = (u64::from(bytes) * 1_000_000_000).div_ceil(self.bandwidth_bytes_per_s.max(1));
        let base = 1_000_000_000u64.div_ceil(self.iops.max(1));
        Duration::from_nanos(transfer.max(base))
    }

    /// Time of a commit whose log entry holds `logged_bytes` of payload, before jitter.
    fn commit_time(&self, logged_bytes: u64) -> Duration {
        let transfer =
            (u128::from(logged_bytes) * 1_000_000_000).div_ceil(u128::from(self.bandwidth_bytes_per_s.max(1)));
        self.commit_latency + Duration::from_nanos(transfer as u64)
    }
}

/// A transfer over the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Transfer {
    Read {
        id: u64,
        bytes: u32,
    },
    Write {
        id: u64,
        bytes: u32,
    },
    /// Application of a deferred write, whose request has completed already.
    Apply {
        bytes: u32,
    },
    /// The `commit_bytes` that a commit writes to the log before its commit latency begins.
    Log {
        bytes: u32,
    },
}

impl Transfer {
    const fn bytes(self) -> u32 {
        match self {
            Self::Read { bytes, .. } | Self::Write { bytes, .. } | Self::Apply { bytes } | Self::Log { bytes } => bytes,
        }
    }
}

/// A request that waits for a commit or is part of one.
#[derive(Clone, Copy, Debug)]
struct Transaction {
    id: u64,
    /// Payload of a deferred write, which goes into the log and is applied after the commit; 0 for other requests.
    logged_bytes: u32,
}

/// The store. See the module's documentation.
///
/// A call whose `now` lies before that of an earlier call counts as made at the latest `now` so far. O(log n) a request.
pub struct Store {
    params: StoreParams,
    rng: SplitMix64,
    seen: Instant,
    clock: DeviceClock,
    next_stall: Instant,
    inside: usize,
    /// The transfer on the link, with its end (device time); `None` = the link is idle.
    moving: Option<(Instant, Transfer)>,
    /// Transfers that wait for the link, in order of arrival.
    link_queue: VecDeque<Transfer>,
    /// Transfers that have left the link, by the time at which their latency ends (device time), then in order of
    /// leaving the link.
    landing: BinaryHeap<Reverse<(Instant, u64, Transfer)>>,
    landings: u64,
    /// End of the present commit (device time); `None` = no commit, or its log write is not done yet.
    commit_end: Option<Instant>,
    /// Transactions of the present commit.
    batch: Vec<Transaction>,
    /// Transactions that wait for the next commit, in order of arrival.
    commit_queue: VecDeque<Transaction>,
    deferred_bytes: u64,
    done: VecDeque<u64>,
}

impl Store {
    /// An idle store. The same seed and calls give the same completions.
    pub fn new(params: StoreParams, seed: u64) -> Self {
        Self {
            params,
            rng: SplitMix64::new(seed),
            seen: Instant::ZERO,
            clock: DeviceClock::default(),
            next_stall: first_stall(Instant::ZERO, params.stall_every),
            inside: 0,
            moving: None,
            link_queue: VecDeque::new(),
            landing: BinaryHeap::new(),
            landings: 0,
            commit_end: None,
            batch: Vec::new(),
            commit_queue: VecDeque::new(),
            deferred_bytes: 0,
            done: VecDeque::new(),
        }
    }

    /// Takes a request. [`Store::poll`] returns `id` when it has completed.
    pub fn submit(&mut self, now: Instant, id: u64, io: Io) {
        let device_now = self.advance(now);
        self.inside += 1;
        let bytes = io.bytes;
        match io.kind {
            Kind::Read => self.send(device_now, Transfer::Read { id, bytes }),
            Kind::Write if self.defers(bytes) => {
                self.deferred_bytes += u64::from(bytes);
                self.log(device_now, Transaction { id, logged_bytes: bytes });
            }
            Kind::Write => self.send(device_now, Transfer::Write { id, bytes }),
            Kind::Flush | Kind::Meta => self.log(device_now, Transaction { id, logged_bytes: 0 }),
        }
    }

    polled!();

    /// The parameters in force.
    pub fn params(&self) -> &StoreParams {
        &self.params
    }

    /// Changes the parameters. Transfers on the link, access latencies and a commit in progress end as planned.
    pub fn set_params(&mut self, now: Instant, params: StoreParams) {
        self.advance(now);
        if params.stall_every != self.params.stall_every {
            self.next_stall = first_stall(self.seen, params.stall_every);
        }
        self.params = params;
    }

    fn defers(&self, bytes: u32) -> bool {
        (1..=self.params.deferred_max_bytes).contains(&bytes)
            && self.deferred_bytes + u64::from(bytes) <= self.params.deferred_backlog_max_bytes
    }

    /// Handles all events due by `now`, in order of time; returns the device time at `now`.
    fn advance(&mut self, now: Instant) -> Instant {
        self.seen = self.seen.max(now);
        loop {
            let event = self.next_device_event();
            if self.next_stall <= self.seen.min(event) {
                self.begin_stall(event);
            } else if event <= self.seen {
                self.step();
            } else {
                return self.clock.at(self.seen);
            }
        }
    }

    /// Begins the periodic stall that is due. If the device was idle (`event` is `FAR_FUTURE`) and missed several, only the last
    /// one is applied.
    fn begin_stall(&mut self, event: Instant) {
        let every = self.params.stall_every;
        if event == Instant::FAR_FUTURE {
            let missed = self.seen.since(self.next_stall).as_nanos() / every.as_nanos().max(1);
            self.next_stall += Duration::from_nanos(missed * every.as_nanos());
        }
        self.clock.stall(self.next_stall, self.params.stall_for);
        self.next_stall += every;
    }

    fn next_device_event(&self) -> Instant {
        let ends =
            [self.moving.map(|(end, _)| end), self.landing.peek().map(|&Reverse((end, ..))| end), self.commit_end];
        ends.into_iter().flatten().min().map_or(Instant::FAR_FUTURE, |end| self.clock.reached(end))
    }

    /// Handles the earliest event. Simultaneous events are handled in the order link, access latency, commit, so that the next
    /// commit takes all requests that are ready.
    fn step(&mut self) {
        let moving = self.moving.map_or(Instant::FAR_FUTURE, |(end, _)| end);
        let landing = self.landing.peek().map_or(Instant::FAR_FUTURE, |&Reverse((end, ..))| end);
        let commit = self.commit_end.unwrap_or(Instant::FAR_FUTURE);
        if moving <= landing.min(commit) {
            self.finish_transfer();
        } else if landing <= commit {
            self.finish_landing();
        } else {
            self.finish_commit();
        }
    }

    fn send(&mut self, at: Instant, transfer: Transfer) {
        self.link_queue.push_back(transfer);
        if self.moving.is_none() {
            self.start_transfer(at);
        }
    }

    fn start_transfer(&mut self, at: Instant) {
        self.moving =
            self.link_queue.pop_front().map(|transfer| (at + self.params.link_time(transfer.bytes()), transfer));
    }

    fn finish_transfer(&mut self) {
        let Some((at, transfer)) = self.moving else { return };
        let nominal = match transfer {
            Transfer::Read { .. } => self.params.read_latency,
            Transfer::Write { .. } | Transfer::Apply { .. } => self.params.write_latency,
            Transfer::Log { .. } => {
                self.commit(at);
                return self.start_transfer(at);
            }
        };
        let latency = self.params.jitter.apply(nominal, &mut self.rng);
        self.landing.push(Reverse((at + latency, self.landings, transfer)));
        self.landings += 1;
        self.start_transfer(at);
    }

    fn finish_landing(&mut self) {
        let Some(Reverse((at, _, transfer))) = self.landing.pop() else { return };
        match transfer {
            Transfer::Read { id, .. } => self.done.push_back(id),
            Transfer::Write { id, .. } => self.log(at, Transaction { id, logged_bytes: 0 }),
            Transfer::Apply { bytes } => self.deferred_bytes -= u64::from(bytes),
            // Does not land: its commit begins when it leaves the link.
            Transfer::Log { .. } => {}
        }
    }

    fn log(&mut self, at: Instant, transaction: Transaction) {
        self.commit_queue.push_back(transaction);
        if self.batch.is_empty() {
            self.start_commit(at);
        }
    }

    fn start_commit(&mut self, at: Instant) {
        let take = self.commit_queue.len().min(self.params.commit_batch_max.max(1) as usize);
        self.batch.extend(self.commit_queue.drain(..take));
        match self.params.commit_bytes {
            _ if take == 0 => {}
            0 => self.commit(at),
            bytes => {
                self.link_queue.push_back(Transfer::Log { bytes });
                if self.moving.is_none() {
                    self.start_transfer(at);
                }
            }
        }
    }

    fn commit(&mut self, at: Instant) {
        let logged_bytes = self.batch.iter().map(|transaction| u64::from(transaction.logged_bytes)).sum();
        self.commit_end = Some(at + self.params.jitter.apply(self.params.commit_time(logged_bytes), &mut self.rng));
    }

    fn finish_commit(&mut self) {
        let Some(at) = self.commit_end.take() else { return };
        let mut batch = core::mem::take(&mut self.batch);
        for Transaction { id, logged_bytes } in batch.drain(..) {
            self.done.push_back(id);
            if logged_bytes > 0 {
                self.send(at, Transfer::Apply { bytes: logged_bytes });
            }
        }
        self.batch = batch;
        self.start_commit(at);
    }
}

fn first_stall(now: Instant, every: Duration) -> Instant {
    if every == Duration::ZERO { Instant::FAR_FUTURE } else { now + every }
}
