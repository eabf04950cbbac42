//! Slices: how large may the pieces be that large requests are divided into?
//!
//! A device that has begun with a request does not leave it for another one. A request of 32 MiB on a device with 500 MB/s
//! therefore makes a request of 4 KiB wait for 64 ms, whatever the scheduler does. Requests are divided into slices in front
//! of the scheduler, so that it may serve others in between. Small slices cost throughput where a device pays for each
//! operation, so a slice is as large as it may be without taking the device longer than a few small requests:
//!
//! ```text
//! t(slice) <= MULTIPLE x t(small)
//! ```
//!
//! Both times are measured. A request of any size waits equally long in the device's own queue, so the difference of the mean
//! latencies of slices and of small requests is the difference of the times that they take the device: `mean(slice) -
//! mean(small) <= (MULTIPLE - 1) x t(small)`, where `t(small)` is the smallest recent mean of small requests, with the
//! shortest queue. Without small requests there is none to protect, and the size stays.
//!
//! Means of some dozen latencies scatter, in a long queue by more than the difference that is looked for. So a slice shrinks
//! only where the difference exceeds what is allowed by four standard errors, and grows only where the difference and four
//! standard errors stay below half of what is allowed. It never grows because slices are *faster* than small requests: no
//! slice takes the device less time, so something behind the pool (an I/O scheduler that sorts by place) prefers slices, and
//! the difference says nothing.
//!
//! Each direction has a size of its own. Sizes are powers of two. Where the pool has measured a base cost, a slice may always
//! have `MULTIPLE - 1` times the base cost: it then takes the device `MULTIPLE` times as long as a request without payload.

use crate::time::{Duration, Instant};
use crate::units::{Direction, Kind, Part};

/// A slice takes the device at most this many times as long as a small request; three quarters of its time then go into the
/// transfer of its bytes.
const MULTIPLE: f64 = 4.0;
/// Requests of up to this many bytes count as small: nearly all of their time goes into the operation itself.
const SMALL: u32 = 16 << 10;
/// Time over which latencies are averaged.
const WINDOW: Duration = Duration::from_secs(1);
/// Fewest small requests, and fewest slices, with which a window decides about the size.
const SAMPLES: u32 = 16;
/// Standard errors within which a difference of two means may be chance. There is a decision a second: two standard errors
/// would be crossed by chance once a minute, four once in hours if the samples were independent. Latencies of one queue are
/// not.
const SURE: f64 = 4.0;
/// The remembered smallest mean of small requests rises by 1/64 a window: it doubles in 45 s.
const FADING: f64 = 64.0;

/// The smallest slice, in bytes: as large as the requests of common bulk clients.
pub const LEAST: u32 = 64 << 10;
/// The largest slice, in bytes.
pub const MOST: u32 = 1 << 20;
/// The size of slices before the first decision, in bytes.
pub const FIRST: u32 = 256 << 10;

/// Most bytes of one divided request that are in its pool or device at a time: as much as a common bulk client with 64
/// requests of 64 KiB.
const UNDER_WAY: u64 = 4 << 20;

/// A request that is carried out in slices, and how far it has come.
#[derive(Clone, Debug)]
pub struct Division {
    offset: u64,
    length: u64,
    slice: u64,
    /// Bytes from the front of the request for which slices have begun.
    begun: u64,
    under_way: u32,
    most: u32,
}

impl Division {
    /// A request of `length` bytes at `offset` in slices of `slice` bytes, a power of two; no slice has begun. `moved`: bytes
    /// that the device moves for a slice, which bound how many slices are under way.
    pub const fn new(offset: u64, length: u64, slice: u64, moved: u64) -> Self {
        let most = UNDER_WAY / moved;
        Self { offset, length, slice, begun: 0, under_way: 0, most: if most == 0 { 1 } else { most as u32 } }
    }

    /// Bytes of the whole request.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Bytes for which no slice has begun.
    pub const fn left(&self) -> u64 {
        self.length - self.begun
    }

    /// Bytes of the next slice: slices end at multiples of their size.
    pub fn next(&self) -> u64 {
        self.left().min(self.slice - (self.offset + self.begun) % self.slice)
    }

    /// True if another slice may begin: few enough are under way.
    pub const fn may_begin(&self) -> bool {
        self.left() > 0 && self.under_way < self.most
    }

    /// Begins the next slice; returns its offset, length and part.
    pub fn begin(&mut self) -> (u64, u64, Part) {
        let (offset, length, first) = (self.offset + self.begun, self.next(), self.begun == 0);
        self.begun += length;
        self.under_way += 1;
        let part = match (first, self.left()) {
            (true, _) => Part::First,
            (false, 0) => Part::Last,
            (false, _) => Part::Middle,
        };
        (offset, length, part)
    }

    /// Notes that a slice is done.
    pub const fn end(&mut self) {
        self.under_way -= 1;
    }

    /// Begins a last step that the request waits for: a flush, or all that is left as one piece.
    pub const fn begin_last(&mut self) {
        self.begun = self.length;
        self.under_way += 1;
    }

    /// True if no slice is under way.
    pub const fn is_waiting(&self) -> bool {
        self.under_way == 0
    }
}

/// Sums of latencies, from which a mean is formed.
#[derive(Clone, Copy, Debug, Default)]
struct Forming {
    sum_ns: f64,
    squares: f64,
    count: u32,
}

/// A mean latency in nanoseconds, and the square of its standard error.
#[derive(Clone, Copy)]
struct Mean {
    ns: f64,
    variance: f64,
}

impl Forming {
    #[inline]
    fn add(&mut self, latency: Duration) {
        let ns = latency.as_nanos() as f64;
        self.sum_ns += ns;
        self.squares += ns * ns;
        self.count += 1;
    }

    /// The mean, if there are at least [`SAMPLES`] latencies; resets the sums.
    fn take(&mut self) -> Option<Mean> {
        let Self { sum_ns, squares, count } = core::mem::take(self);
        let n = f64::from(count);
        let ns = sum_ns / n;
        (count >= SAMPLES).then(|| Mean { ns, variance: (squares / n - ns * ns).max(0.0) / n })
    }
}

/// The size of slices on one device. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Slices {
    bytes: [u32; 2],
    /// Smallest size of a slice that the base cost allows, in bytes; 0 if no base cost was measured.
    priced: u32,
    small: [Forming; 2],
    sliced: [Forming; 2],
    /// The smallest recent mean latency of small requests, in nanoseconds.
    floor_ns: f64,
    window_ends: Instant,
}

impl Slices {
    /// Slices of [`FIRST`] bytes.
    pub fn new(now: Instant) -> Self {
        Self {
            bytes: [FIRST; 2],
            priced: 0,
            small: [Forming::default(); 2],
            sliced: [Forming::default(); 2],
            floor_ns: f64::INFINITY,
            window_ends: now + WINDOW,
        }
    }

    /// Bytes of a slice of this direction, a power of two from [`LEAST`] to [`MOST`].
    #[inline]
    pub fn bytes(&self, direction: Direction) -> u32 {
        self.bytes[direction as usize].max(self.priced)
    }

    /// Takes a measured base cost: each request takes the device as long as `base` bytes, on top of its payload.
    pub(crate) fn set_price(&mut self, base: u32) {
        let longest = (f64::from(base) * (MULTIPLE - 1.0)).min(f64::from(MOST)) as u32;
        self.priced = longest.checked_ilog2().map_or(0, |power| 1 << power);
    }

    /// The division of a request at `offset`; `None` if it stays whole.
    #[inline]
    pub fn divide(&self, kind: Kind, offset: u64, bytes: u64) -> Option<Division> {
        let slice = u64::from(self.bytes(kind.direction()?));
        (bytes > slice).then(|| Division::new(offset, bytes, slice, slice))
    }

    /// Takes the latency of a request of this size that the device has completed. O(1).
    #[inline]
    pub fn observe(&mut self, now: Instant, kind: Kind, bytes: u32, latency: Duration) {
        let Some(direction) = kind.direction() else { return };
        if bytes <= SMALL {
            self.small[direction as usize].add(latency);
        } else if bytes == self.bytes(direction) {
            self.sliced[direction as usize].add(latency);
        }
        if now >= self.window_ends {
            self.decide(now);
        }
    }

    #[cold]
    fn decide(&mut self, now: Instant) {
        self.window_ends = now + WINDOW;
        let [reads, writes] = &mut self.small;
        let (reads, writes) = (reads.take(), writes.take());
        let sliced = [self.sliced[0].take(), self.sliced[1].take()];
        // Those of its own direction wait in the same queue as a slice; the fastest ones are to be protected.
        let (Some(small_reads), Some(small_writes)) = (reads.or(writes), writes.or(reads)) else { return };
        self.floor_ns = small_reads.ns.min(small_writes.ns).min(self.floor_ns * (1.0 + 1.0 / FADING));
        let allowed = self.floor_ns * (MULTIPLE - 1.0);
        for ((bytes, mean), small) in self.bytes.iter_mut().zip(sliced).zip([small_reads, small_writes]) {
            let Some(mean) = mean else { continue };
            let (extra, chance) = (mean.ns - small.ns, SURE * libm::sqrt(mean.variance + small.variance));
            if extra - chance > allowed {
                *bytes = (*bytes / 2).max(LEAST);
            } else if chance <= allowed / 2.0 && (0.0..=allowed / 2.0).contains(&(extra + chance)) {
                // One of twice the size moves twice the bytes.
                *bytes = (*bytes * 2).min(MOST);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of read slices after `seconds` on a device that takes `base_us` for an operation and moves `mb_per_s`, where
    /// every request first waits for `queue_us`.
    fn settled(slices: &mut Slices, from_s: u64, seconds: u64, base_us: u64, mb_per_s: u64, queue_us: u64) -> u32 {
        for ms in from_s * 1000..(from_s + seconds) * 1000 {
            let now = Instant::ZERO + Duration::from_millis(ms);
            for bytes in [4096, slices.bytes(Direction::Read)] {
                let us = queue_us + base_us + u64::from(bytes) / mb_per_s;
                slices.observe(now, Kind::Read, bytes, Duration::from_micros(us));
            }
        }
        slices.bytes(Direction::Read)
    }

    #[test]
    fn a_slice_takes_at_most_four_times_as_long_as_a_small_request() {
        // base + bytes/bandwidth: (100 us, 1 GB/s) allows 300 us more, so 256 KiB; and so on.
        for (base_us, mb_per_s, bytes) in
            [(100, 1000, 256 << 10), (80, 3000, 512 << 10), (100, 300, 64 << 10), (8000, 150, MOST), (10, 1000, LEAST)]
        {
            let mut slices = Slices::new(Instant::ZERO);
            assert_eq!(settled(&mut slices, 0, 10, base_us, mb_per_s, 0), bytes, "{base_us} us, {mb_per_s} MB/s");
        }
    }

    #[test]
    fn slices_cover_a_request_once_and_end_at_multiples() {
        for (offset, length, slice) in [(0, 1 << 20, 256 << 10), (4096, 8 << 20, 64 << 10), (100_000, 70_000, 65_536)] {
            let mut division = Division::new(offset, length, slice, slice);
            let (mut at, mut under_way, mut begins) = (offset, 0_u64, 0);
            while division.left() > 0 {
                if !division.may_begin() {
                    (under_way, _) = (under_way - 1, division.end());
                }
                let (from, bytes, part) = division.begin();
                assert!(from == at && bytes <= slice);
                assert!((from + bytes).is_multiple_of(slice) || division.left() == 0);
                (at, under_way) = (from + bytes, under_way + 1);
                assert!(under_way * slice <= UNDER_WAY);
                begins += u32::from(part.begins());
                assert_eq!((part.begins(), part.ends()), (from == offset, division.left() == 0));
            }
            assert_eq!((at, begins), (offset + length, 1));
            (0..under_way).for_each(|_| division.end());
            assert!(division.is_waiting() && !division.may_begin());
        }
        let slices = Slices::new(Instant::ZERO);
        assert!(
            slices.divide(Kind::Read, 0, u64::from(FIRST)).is_none()
                && slices.divide(Kind::Flush, 0, 1 << 30).is_none()
        );
        assert_eq!(
            slices.divide(Kind::Write, 0, u64::from(FIRST) + 1).map(|division| division.next()),
            Some(u64::from(FIRST))
        );
    }

    #[test]
    fn a_queue_in_the_device_changes_nothing_and_another_device_does() {
        let mut slices = Slices::new(Instant::ZERO);
        assert_eq!(settled(&mut slices, 0, 10, 80, 3000, 0), 512 << 10);
        assert_eq!(settled(&mut slices, 10, 20, 80, 3000, 20_000), 512 << 10, "20 ms of queue");
        assert_eq!(settled(&mut slices, 30, 10, 80, 300, 0), 64 << 10, "a tenth of the bandwidth");
        assert_eq!(slices.bytes(Direction::Write), FIRST, "there were no writes");
    }

    #[test]
    fn in_a_long_queue_chance_and_a_preference_for_slices_change_nothing() {
        for seed in 0..20 {
            let mut random = crate::rng::SplitMix64::new(seed);
            let mut run = |slices: &mut Slices, from_s: u64, small_us: u64, slice_us: u64| {
                for ms in from_s * 1000..(from_s + 30) * 1000 {
                    let now = Instant::ZERO + Duration::from_millis(ms);
                    // A queue of random length, to which the requests themselves add 0.1 and 0.35 ms.
                    for (bytes, us, own) in [(4096, small_us, 100), (slices.bytes(Direction::Read), slice_us, 350)] {
                        let queue = random.next_below(2 * us);
                        slices.observe(now, Kind::Read, bytes, Duration::from_micros(queue + own));
                    }
                }
                slices.bytes(Direction::Read)
            };
            let mut slices = Slices::new(Instant::ZERO);
            assert_eq!(settled(&mut slices, 0, 10, 100, 1000, 0), FIRST);
            assert_eq!(run(&mut slices, 10, 40_000, 40_000), FIRST, "chance, seed {seed}");
            assert_eq!(run(&mut slices, 40, 40_000, 6_000), FIRST, "slices are preferred, seed {seed}");
            assert_eq!(run(&mut slices, 70, 40_000, 80_000), LEAST, "clearly longer in a long queue, seed {seed}");
        }
    }

    #[test]
    fn without_small_requests_or_with_few_of_them_the_size_stays() {
        let mut slices = Slices::new(Instant::ZERO);
        for ms in 0..10_000 {
            let now = Instant::ZERO + Duration::from_millis(ms);
            slices.observe(now, Kind::Write, FIRST, Duration::from_millis(50));
            if ms % 100 == 0 {
                slices.observe(now, Kind::Read, 4096, Duration::from_micros(10));
            }
        }
        assert_eq!(slices.bytes(Direction::Write), FIRST);
    }
}
