//! The growth of a device's totals between two readings of `/proc/diskstats`.

use evenkeel_control::Duration;

use super::SECTOR_BYTES;
use super::text::Totals;

/// A total that is smaller than before counts as wrapped around if the wrap means a growth of less than this number, and as
/// reset otherwise. No device completes 2^30 requests between two ticks.
pub(super) const MAX_MOVE: u64 = 1 << 30;

/// Figures of a device's reads, or of its writes, in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Number of requests completed in the interval.
    pub completed: u64,
    /// Bytes read or written in the interval.
    pub bytes: u64,
    /// Sum of the latencies of the completed requests.
    pub time: Duration,
}

impl Flow {
    /// Mean latency of the completed requests, as the block layer measures it; `None` if no request completed.
    pub fn mean_latency(&self) -> Option<Duration> {
        self.time.as_nanos().checked_div(self.completed).map(Duration::from_nanos)
    }

    /// Bytes per second over `interval`; 0 if `interval` is zero.
    pub fn bytes_per_s(&self, interval: Duration) -> f64 {
        if interval == Duration::ZERO { 0.0 } else { self.bytes as f64 / interval.as_secs_f64() }
    }

    /// Requests completed per second over `interval`; 0 if `interval` is zero.
    pub fn iops(&self, interval: Duration) -> f64 {
        if interval == Duration::ZERO { 0.0 } else { self.completed as f64 / interval.as_secs_f64() }
    }

    /// The sum of the two flows' figures.
    pub fn plus(self, other: Self) -> Self {
        Self {
            completed: self.completed.saturating_add(other.completed),
            bytes: self.bytes.saturating_add(other.bytes),
            time: self.time + other.time,
        }
    }
}

/// A device's figures between two readings of `/proc/diskstats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time between the two readings.
    pub interval: Duration,
    /// Figures of the device's reads.
    pub reads: Flow,
    /// Figures of the device's writes.
    pub writes: Flow,
    /// Requests in flight at the second reading.
    pub in_flight: u64,
}

impl Sample {
    /// The sum of two devices' figures; the interval is the longer one of the two.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            interval: self.interval.max(other.interval),
            reads: self.reads.plus(other.reads),
            writes: self.writes.plus(other.writes),
            in_flight: self.in_flight.saturating_add(other.in_flight),
        }
    }

    /// Reads and writes together.
    pub fn all(&self) -> Flow {
        self.reads.plus(self.writes)
    }

    /// True if requests are in flight and none completed in the interval: the device is not idle, but there is no latency to
    /// measure.
    pub fn is_stuck(&self) -> bool {
        self.in_flight > 0 && self.reads.completed == 0 && self.writes.completed == 0
    }
}

/// The figures of a device after a reading of `/proc/diskstats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The device was not in the previous reading, or its totals were reset: its figures are known only from the next reading
    /// on.
    First,
    /// The device's figures between the previous reading and this one.
    Sample(Sample),
}

impl Reading {
    /// The figures, if they are known.
    #[inline]
    pub fn sample(self) -> Option<Sample> {
        match self {
            Self::First => None,
            Self::Sample(sample) => Some(sample),
        }
    }
}

/// The growth of a total from `before` to `now`, also across a wrap at 32 or 64 bits; `None` if the total was reset.
#[inline]
pub(super) fn moved(before: u64, now: u64) -> Option<u64> {
    if now >= before {
        return Some(now - before);
    }
    moved_back(before, now)
}

/// As [`moved`], for a total `now` that is lower than `before`.
#[cold]
fn moved_back(before: u64, now: u64) -> Option<u64> {
    let across_64 = now.wrapping_sub(before);
    let across_32 = u32::try_from(before).ok().map(|_| (now + (1 << 32)) - before);
    across_32.into_iter().chain([across_64]).find(|&n| n < MAX_MOVE)
}

/// Totals of a device's reads or writes, kept for comparison at the next reading; the total of time is kept elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) completed: u64,
    pub(super) sectors: u64,
}

/// The growth of the totals of a device's reads or writes in an interval. 32 bits are enough: no device moves 2 TB in an
/// interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    completed: u32,
    sectors: u32,
    time_ms: u32,
}

impl Moved {
    pub(super) const ZERO: Self = Self { completed: 0, sectors: 0, time_ms: 0 };

    #[inline(always)]
    pub(super) fn between(before: &mut Kept, time_ms: &mut u32, now: &Totals) -> Option<Self> {
        let moved = |before, now| moved(before, now).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let completed = moved(before.completed, now.completed);
        let sectors = moved(before.sectors, now.sectors);
        let time = moved_32(*time_ms, now.time_ms as u32);
        (before.completed, before.sectors, *time_ms) = (now.completed, now.sectors, now.time_ms as u32);
        Some(Self { completed: completed?, sectors: sectors?, time_ms: time? })
    }

    #[inline]
    fn flow(&self) -> Flow {
        Flow {
            completed: self.completed.into(),
            bytes: u64::from(self.sectors) * SECTOR_BYTES,
            time: Duration::from_millis(self.time_ms.into()),
        }
    }
}

/// As [`moved`], for totals that wrap at 32 bits.
#[inline(always)]
fn moved_32(before: u32, now: u32) -> Option<u32> {
    let n = now.wrapping_sub(before);
    (now >= before || u64::from(n) < MAX_MOVE).then_some(n)
}

/// The length of `interval` in microseconds, rounded up, as kept in [`Move`]; 0 for `None`.
pub(super) fn interval_us(interval: Option<Duration>) -> u32 {
    u32::try_from(interval.unwrap_or_default().as_nanos().div_ceil(1_000)).unwrap_or(u32::MAX)
}

/// A device's figures between two readings in compact form, because every tick goes through the figures of all devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    interval_us: u32,
    reads: Moved,
    writes: Moved,
    /// Requests in flight at the second reading; [`Self::NOTHING`] if no figures are known yet.
    in_flight: u32,
}

impl Move {
    /// Value of `in_flight` for a device without figures; no device ever has that many requests in flight.
    const NOTHING: u32 = u32::MAX;
    pub(super) const FIRST: Self =
        Self { interval_us: 0, reads: Moved::ZERO, writes: Moved::ZERO, in_flight: Self::NOTHING };

    #[inline(always)]
    pub(super) fn of(interval_us: u32, both: Option<(Moved, Moved)>, in_flight: u32) -> Self {
        both.map_or(Self::FIRST, |(reads, writes)| Self { interval_us, reads, writes, in_flight })
    }

    /// True if the device's figures between two readings are known.
    #[inline]
    pub(crate) fn is_sample(&self) -> bool {
        self.in_flight != Self::NOTHING
    }

    /// Time between the two readings, in microseconds.
    #[inline]
    pub(crate) fn interval_us(&self) -> u32 {
        self.interval_us
    }

    /// Bytes read between the two readings.
    #[inline]
    pub(crate) fn read_bytes(&self) -> u64 {
        u64::from(self.reads.sectors) * SECTOR_BYTES
    }

    /// Bytes written between the two readings.
    #[inline]
    pub(crate) fn written_bytes(&self) -> u64 {
        u64::from(self.writes.sectors) * SECTOR_BYTES
    }

    /// Number of reads, and number of writes, completed between the two readings.
    pub(crate) fn completed(&self) -> [u64; 2] {
        [self.reads.completed.into(), self.writes.completed.into()]
    }

    #[inline]
    pub(super) fn reading(&self) -> Reading {
        if !self.is_sample() {
            return Reading::First;
        }
        let (reads, writes) = (self.reads.flow(), self.writes.flow());
        let interval = Duration::from_micros(self.interval_us.into());
        Reading::Sample(Sample { interval, reads, writes, in_flight: self.in_flight.into() })
    }
}

/// The sum of several devices' figures, by the rules of [`Sample::plus`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    samples: u32,
    interval_us: u32,
    /// Sums over the devices: completed reads, sectors read, and the reads' latencies in ms.
    reads: [u64; 3],
    /// Sums over the devices: completed writes, sectors written, and the writes' latencies in ms.
    writes: [u64; 3],
    in_flight: u64,
}

impl Sum {
    /// Adds the figures of a device; they must be known ([`Move::is_sample`]).
    #[inline(always)]
    pub(crate) fn add(&mut self, device: &Move) {
        let add = |sum: &mut [u64; 3], moved: &Moved| {
            sum[0] += u64::from(moved.completed);
            sum[1] += u64::from(moved.sectors);
            sum[2] += u64::from(moved.time_ms);
        };
        self.samples += 1;
        self.interval_us = self.interval_us.max(device.interval_us);
        add(&mut self.reads, &device.reads);
        add(&mut self.writes, &device.writes);
        self.in_flight += u64::from(device.in_flight);
    }

    /// The sum as a sample; `None` if no device was added.
    pub(crate) fn sample(&self) -> Option<Sample> {
        let flow = |[completed, sectors, time_ms]: [u64; 3]| Flow {
            completed,
            bytes: sectors.saturating_mul(SECTOR_BYTES),
            time: Duration::from_millis(time_ms),
        };
        let interval = Duration::from_micros(self.interval_us.into());
        let (reads, writes, in_flight) = (flow(self.reads), flow(self.writes), self.in_flight);
        (self.samples > 0).then_some(Sample { interval, reads, writes, in_flight })
    }
}
