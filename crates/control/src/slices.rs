//! Slices: how large may the pieces be that large requests are divided into?
//!
//! A device that has begun with a request does not leave it for another one. A request of 32 MiB on a device with 500 MB/s
//! therefore makes a request of 4 KiB wait for 64 ms, whatever the scheduler does. Requests are divided into slices in front
//! of the scheduler, so that it may serve other requests between slices. Small slices cost throughput on a device that takes a
//! fixed time for each operation, so a slice is as large as it may be without taking the device longer than a few small
//! requests:
//!
//! ```text
//! t(slice) <= MULTIPLE x t(small)
//! ```
//!
//! Both times are measured. A request of any size waits equally long in the device's own queue, so the difference of the mean
//! latencies of slices and of small requests is the difference of the times that they take the device: `mean(slice) -
//! mean(small) <= (MULTIPLE - 1) x t(small)`, where `t(small)` is the smallest recent mean of small requests, with the
//! shortest queue. Slices are compared with small requests of their own direction, because a cache may take writes at once
//! and not reads; with those of the other direction if there are no others. Without small requests there is none to protect,
//! and the slice size stays.
//!
//! Means of some dozen latencies scatter, in a long queue by more than the difference that is looked for. So slices shrink
//! only if the difference exceeds the allowed one by more than four standard errors, and grow only if the difference plus
//! four standard errors is at most half of the allowed one. They never grow because slices are *faster* than small requests:
//! no slice takes the device less time, so a layer behind the pool (an I/O scheduler that sorts by position) prefers slices,
//! and the difference does not tell how long a slice takes.
//!
//! Where a cache serves small requests but not slices, the difference is not the time of a slice's bytes, and smaller slices
//! are not faster ones. If all of the difference is time of bytes, slices of a part p of the size have a part p of the
//! difference; if none of it is, all of it. Beyond the middle, (1 + p) / 2, slices get their former size back, and shrink
//! again after a minute at the earliest.
//!
//! Reads and writes have slice sizes of their own, which are powers of two. Where the pool has measured a base cost (the bytes
//! whose transfer takes as long as one operation), a slice may always have `MULTIPLE - 1` times the base cost: it takes the
//! device `MULTIPLE` times as long as a request without payload.

use crate::time::{Duration, Instant};
use crate::units::{Direction, Kind, Part};

/// A slice takes the device at most this many times as long as a small request. At 4, three quarters of the slice's time go
/// into the transfer of its bytes.
const MULTIPLE: f64 = 4.0;
/// Requests of up to this many bytes count as small: nearly all of their time goes into the operation itself.
const SMALL: u32 = 16 << 10;
/// Time over which latencies are averaged; the slice size is decided once in this time.
const WINDOW: Duration = Duration::from_secs(1);
/// A window decides about the slice size only with at least this many small requests and this many slices.
const SAMPLES: u32 = 16;
/// A difference of two means of up to this many standard errors may be chance. There is a decision a second: chance would
/// exceed two standard errors once a minute, four once in hours if the samples were independent, which latencies in one
/// queue are not.
const SURE: f64 = 4.0;
/// The remembered smallest mean latency of small requests rises by 1 / this number in each window (1 s), so it doubles in 45 s.
/// Slices that were not faster for being smaller keep their size for as many windows.
const FADING: f64 = 64.0;

/// The smallest slice, in bytes: as large as the requests of common bulk clients.
pub const LEAST: u32 = 64 << 10;
/// The largest slice, in bytes.
pub const MOST: u32 = 1 << 20;
/// The size of slices before the first decision, in bytes.
pub const FIRST: u32 = 256 << 10;

/// Largest number of bytes of one divided request that are queued in its pool or in flight at a time: as many as those of a
/// common bulk client with 64 requests of 64 KiB.
const UNDER_WAY: u64 = 4 << 20;

/// The progress of one request that is carried out in slices.
#[derive(Clone, Debug)]
pub struct Division {
    offset: u64,
    length: u64,
    slice: u64,
    /// Bytes from the start of the request for which slices have begun.
    begun: u64,
    under_way: u32,
    most: u32,
}

impl Division {
    /// A request of `length` bytes at byte `offset`, in slices of `slice` bytes, a power of two; no slice has begun. `moved`:
    /// bytes that the device moves for one slice; the more, the fewer slices may be under way at a time.
    pub const fn new(offset: u64, length: u64, slice: u64, moved: u64) -> Self {
        let most = UNDER_WAY / moved;
        Self { offset, length, slice, begun: 0, under_way: 0, most: if most == 0 { 1 } else { most as u32 } }
    }

    /// Bytes of the whole request.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of the request for which no slice has begun.
    pub const fn left(&self) -> u64 {
        self.length - self.begun
    }

    /// Length of the next slice in bytes. Each slice but the last ends at an offset that is a multiple of the slice size.
    pub fn next(&self) -> u64 {
        self.left().min(self.slice - (self.offset + self.begun) % self.slice)
    }

    /// True if another slice may begin: bytes are left, and fewer slices are under way than may be.
    pub const fn may_begin(&self) -> bool {
        self.left() > 0 && self.under_way < self.most
    }

    /// Begins the next slice; returns its offset and length in bytes, and its position in the request.
    pub fn begin(&mut self) -> (u64, u64, Part) {
        self.begin_within(|_, length| length)
    }

    /// As [`Self::begin`], with a slice that may be shorter: `most` returns how long at most, at least 1, for an offset and
    /// [`Self::next`].
    pub fn begin_within(&mut self, most: impl FnOnce(u64, u64) -> u64) -> (u64, u64, Part) {
        let (offset, next, first) = (self.offset + self.begun, self.next(), self.begun == 0);
        let length = most(offset, next).min(next);
        self.begun += length;
        self.under_way += 1;
        let part = match (first, self.left()) {
            (true, 0) => Part::Whole,
            (true, _) => Part::First,
            (false, 0) => Part::Last,
            (false, _) => Part::Middle,
        };
        (offset, length, part)
    }

    /// Notes that one of the slices under way has completed.
    pub const fn end(&mut self) {
        self.under_way -= 1;
    }

    /// Begins the request's last step, after which no slice follows: a flush, or the rest of the request as one piece.
    pub const fn begin_last(&mut self) {
        self.begun = self.length;
        self.under_way += 1;
    }

    /// True if no slice is under way.
    pub const fn is_waiting(&self) -> bool {
        self.under_way == 0
    }
}

/// Sums over the latencies of a window, from which their mean is computed.
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

    /// The mean of the latencies, if there are at least [`SAMPLES`] of them; resets the sums in any case.
    fn take(&mut self) -> Option<Mean> {
        let Self { sum_ns, squares, count } = core::mem::take(self);
        let n = f64::from(count);
        let ns = sum_ns / n;
        (count >= SAMPLES).then(|| Mean { ns, variance: (squares / n - ns * ns).max(0.0) / n })
    }
}

/// The size of slices of one direction.
#[derive(Clone, Copy, Debug)]
struct Size {
    bytes: u32,
    /// Slice size, and difference of the mean latencies of slices and small requests in ns, when slices began to shrink; `None`
    /// if the difference has been short enough since.
    before: Option<(u32, f64)>,
    /// Number of windows in which slices do not shrink.
    kept_for: f64,
}

impl Size {
    /// Decides the size anew from the difference of the mean latencies of slices and small requests in a window, `extra` ±
    /// `chance`, and the `allowed` one, all in ns. Slices do not shrink below `least` bytes.
    fn decide(&mut self, extra: f64, chance: f64, allowed: f64, least: u32) {
        self.kept_for -= 1.0;
        let in_vain = |&(bytes, before): &(u32, f64)| {
            extra - chance > 0.5 * (1.0 + f64::from(self.bytes) / f64::from(bytes)) * before
        };
        if let Some((bytes, _)) = self.before.filter(in_vain) {
            *self = Self { bytes, before: None, kept_for: FADING };
        } else if extra - chance > allowed && self.kept_for <= 0.0 {
            self.before.get_or_insert((self.bytes, extra));
            self.bytes = if self.bytes > least { (self.bytes / 2).max(least) } else { self.bytes };
        } else {
            self.before = self.before.filter(|_| extra + chance > allowed);
            if chance <= allowed / 2.0 && (0.0..=allowed / 2.0).contains(&(extra + chance)) {
                // One of twice the size moves twice the bytes.
                self.bytes = (self.bytes * 2).min(MOST);
            }
        }
    }
}

/// Decides the size of slices on one device. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Slices {
    sizes: [Size; 2],
    /// Slice size that the measured base cost always allows, in bytes; 0 if no base cost was measured.
    priced: u32,
    small: [Forming; 2],
    sliced: [Forming; 2],
    /// The smallest recent mean latency of small requests of each direction, in nanoseconds.
    floor_ns: [f64; 2],
    window_ends: Instant,
}

impl Slices {
    /// Starts with slices of [`FIRST`] bytes in both directions; the first window begins at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            sizes: [Size { bytes: FIRST, before: None, kept_for: 0.0 }; 2],
            priced: 0,
            small: [Forming::default(); 2],
            sliced: [Forming::default(); 2],
            floor_ns: [f64::INFINITY; 2],
            window_ends: now + WINDOW,
        }
    }

    /// Size of the slices of reads or of writes, in bytes: a power of two from [`LEAST`] to [`MOST`].
    #[inline]
    pub fn bytes(&self, direction: Direction) -> u32 {
        self.sizes[direction as usize].bytes.max(self.priced)
    }

    /// Takes a measured base cost: beside the transfer of its payload, each request takes the device as long as the transfer of
    /// `base` bytes. 0: none was measured.
    pub(crate) fn set_price(&mut self, base: u32) {
        let longest = (f64::from(base) * (MULTIPLE - 1.0)).min(f64::from(MOST)) as u32;
        self.priced = longest.checked_ilog2().map_or(0, |power| 1 << power);
    }

    /// The division into slices of a request of `bytes` bytes at byte `offset`; `None` if the request stays whole.
    #[inline]
    pub fn divide(&self, kind: Kind, offset: u64, bytes: u64) -> Option<Division> {
        let slice = u64::from(self.bytes(kind.direction()?));
        (bytes > slice).then(|| Division::new(offset, bytes, slice, slice))
    }

    /// Takes the device latency of a request or slice of `bytes` bytes that completes at `now`. O(1).
    #[inline]
    pub fn observe(&mut self, now: Instant, kind: Kind, bytes: u32, latency: Duration) {
        let Some(direction) = kind.direction() else { return };
        if bytes <= SMALL {
            self.small[direction as usize].add(latency);
        } else if bytes == self.bytes(direction) && !self.is_too_fast(direction, latency) {
            self.sliced[direction as usize].add(latency);
        }
        if now >= self.window_ends {
            self.decide(now);
        }
    }

    /// True if a slice has taken less time than small requests of its direction do without a queue: a hole in a file, or a cache,
    /// has served it and not the device. Among others it would make slices look short, and let them grow.
    fn is_too_fast(&self, direction: Direction, latency: Duration) -> bool {
        let floor_ns = self.floor_ns[direction as usize];
        floor_ns.is_finite() && (latency.as_nanos() as f64) < floor_ns
    }

    #[cold]
    fn decide(&mut self, now: Instant) {
        self.window_ends = now + WINDOW;
        let has_none = self.small.map(|small| small.count == 0);
        let small = [self.small[0].take(), self.small[1].take()];
        let sliced = [self.sliced[0].take(), self.sliced[1].take()];
        for (floor_ns, small) in self.floor_ns.iter_mut().zip(small) {
            if let Some(small) = small {
                *floor_ns = small.ns.min(*floor_ns * (1.0 + 1.0 / FADING));
            }
        }
        let least = LEAST.max(self.priced);
        for (own, size) in self.sizes.iter_mut().enumerate() {
            // Those of its own direction wait in the same queue as a slice.
            let of = if has_none[own] { 1 - own } else { own };
            let (Some(small), Some(mean)) = (small[of], sliced[own]) else { continue };
            let chance = SURE * libm::sqrt(mean.variance + small.variance);
            size.decide(mean.ns - small.ns, chance, self.floor_ns[of] * (MULTIPLE - 1.0), least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The size of read slices, in bytes, after the `seconds` from `from_s` on, in each millisecond of which a read of 4 KiB and
    /// a slice complete. `took`: the latency of a request of so many bytes.
    fn after(slices: &mut Slices, from_s: u64, seconds: u64, took: impl Fn(u32) -> Duration) -> u32 {
        for ms in from_s * 1000..(from_s + seconds) * 1000 {
            let now = Instant::ZERO + Duration::from_millis(ms);
            for bytes in [4096, slices.bytes(Direction::Read)] {
                slices.observe(now, Kind::Read, bytes, took(bytes));
            }
        }
        slices.bytes(Direction::Read)
    }

    /// [`after`] on a device that takes `base_us` µs for an operation, transfers `mb_per_s` MB/s, and lets each request wait for
    /// `queue_us` µs first.
    fn settled(slices: &mut Slices, from_s: u64, seconds: u64, base_us: u64, mb_per_s: u64, queue_us: u64) -> u32 {
        let took = |bytes: u32| Duration::from_micros(queue_us + base_us + u64::from(bytes) / mb_per_s);
        after(slices, from_s, seconds, took)
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
        let mut shorter = Division::new(4096, 8 << 20, 1 << 20, 1 << 20);
        let first = shorter.begin_within(|_, next| next - 4096);
        assert_eq!(first, (4096, (1 << 20) - 8192, Part::First));
        assert_eq!(shorter.begin(), ((1 << 20) - 4096, 4096, Part::Middle), "up to the multiple");
        let mut one = Division::new(0, 4096, 1 << 20, 1 << 20);
        assert_eq!((one.begin_within(|_, next| next), one.left()), ((0, 4096, Part::Whole), 0));
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
                    // A queue of random length, to which the requests themselves add 0.1 and 0.35 ms. Slices of another size wait
                    // for as many of that size.
                    let slice = slices.bytes(Direction::Read);
                    let slice_us = slice_us * u64::from(slice) / u64::from(FIRST);
                    for (bytes, us, own) in [(4096, small_us, 100), (slice, slice_us, 350)] {
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
            assert_eq!(run(&mut slices, 70, 40_000, 160_000), LEAST, "clearly longer in a long queue, seed {seed}");
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
    #[test]
    fn writes_that_a_cache_takes_at_once_do_not_shrink_slices_of_reads() {
        let mut slices = Slices::new(Instant::ZERO);
        for ms in 0..10_000 {
            let now = Instant::ZERO + Duration::from_millis(ms);
            slices.observe(now, Kind::Write, 4096, Duration::from_micros(200));
            let slice = slices.bytes(Direction::Read);
            // At first there are too few small reads to decide.
            for bytes in [4096, slice].into_iter().filter(|&bytes| bytes == slice || ms % 100 == 0 || ms > 5_000) {
                let took = Duration::from_micros(8_000 + u64::from(bytes) / 150);
                slices.observe(now, Kind::Read, bytes, took);
            }
        }
        assert_eq!(slices.bytes(Direction::Read), MOST);
    }

    #[test]
    fn slices_of_holes_do_not_make_slices_of_data_grow() {
        let mut slices = Slices::new(Instant::ZERO);
        let mut most = 0;
        for step in 0..120_000 {
            let now = Instant::ZERO + Duration::from_nanos(step * 250_000);
            let slice = slices.bytes(Direction::Read);
            // 0.1 ms and 500 MB/s for data; of four slices three are holes, which take 0.03 ms.
            let data = |bytes: u32| Duration::from_nanos(100_000 + u64::from(bytes) * 2);
            let took = if step % 4 == 0 { data(slice) } else { Duration::from_micros(30) };
            slices.observe(now, Kind::Read, slice, took);
            slices.observe(now, Kind::Read, 4096, data(4096));
            // In the first seconds the time of small requests is not known.
            most = if step < 40_000 { 0 } else { most.max(slices.bytes(Direction::Read)) };
        }
        assert_eq!(most, FIRST / 2);
    }

    #[test]
    fn slices_that_a_cache_does_not_serve_are_tried_smaller_once_a_minute() {
        let mut slices = Slices::new(Instant::ZERO);
        let mut smaller = 0;
        for second in 0..200 {
            // 4 KiB in 0.1 ms, and slices from a disk behind the cache, with 150 MB/s.
            let took = |bytes: u32| match bytes {
                4096 => Duration::from_micros(100),
                _ => Duration::from_micros(8_000 + u64::from(bytes) / 150),
            };
            smaller += u32::from(after(&mut slices, second, 1, took) < FIRST);
        }
        assert!((2..=4).contains(&smaller), "for {smaller} of 200 s");
    }

    proptest! {
        /// Slices take four times as long as small requests at most, or half of their size would save less than a quarter of the
        /// difference. `more_us`: what an operation of a slice takes beyond that of a small request, which a cache may serve.
        #[test]
        fn slices_shrink_as_far_as_that_makes_them_faster(
            small_us in 10u64..10_000,
            more_us in prop_oneof![Just(0u64), 0u64..20_000],
            mb_per_s in 50u64..5_000,
        ) {
            let took = |bytes: u32| {
                let own_us = if bytes <= SMALL { small_us } else { small_us + more_us };
                Duration::from_nanos(own_us * 1_000 + u64::from(bytes) * 1_000 / mb_per_s)
            };
            let mut slices = Slices::new(Instant::ZERO);
            let bytes = after(&mut slices, 0, 30, took);
            let ns = |bytes| took(bytes).as_nanos() as f64;
            let extra = |bytes| ns(bytes) - ns(4096);
            let saved = |bytes: u32| f64::from(bytes / 2) * 1e3 / mb_per_s as f64;
            let allowed = (MULTIPLE - 1.0) * ns(4096);
            let (is_short, is_useless) = (extra(bytes) <= 1.01 * allowed, saved(bytes) <= 0.26 * extra(bytes));
            prop_assert!(bytes == LEAST || is_short || is_useless, "{bytes} bytes");
            prop_assert!(bytes >= FIRST || saved(FIRST) >= 0.24 * extra(FIRST), "{bytes} bytes in vain");
        }
    }
}
