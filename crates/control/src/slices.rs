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
//! Both times are measured. What a request spends in the device's own queue it spends there whatever its size, so the
//! difference of the mean latencies of slices and of small requests is the difference of the times that they take the
//! device: `mean(slice) - mean(small) <= (MULTIPLE - 1) x t(small)`, where `t(small)` is the least recent mean of small
//! requests, with the shortest queue. Without small requests there is none to protect, and the size stays.
//!
//! Each direction has a size of its own. Sizes are powers of two.

use crate::time::{Duration, Instant};
use crate::units::{Direction, Kind};

/// Slices take the device at most so many times as long as a small request: at least three quarters of its time are left for
/// transfers when large and small requests take turns.
const MULTIPLE: u64 = 4;
/// Requests up to so many bytes are small: nearly all of their time goes into the operation itself.
const SMALL: u32 = 16 << 10;
/// Time over which latencies are averaged.
const WINDOW: Duration = Duration::from_secs(1);
/// Requests of either kind without which a window decides nothing.
const SAMPLES: u32 = 16;
/// The least recent mean of small requests fades by 1/64 a window: it doubles in 45 s.
const FADING: u64 = 64;

/// The smallest slice, in bytes: as large as the requests of common bulk clients.
pub const LEAST: u32 = 64 << 10;
/// The largest slice, in bytes.
pub const MOST: u32 = 1 << 20;
/// The size of slices until something is known.
pub const FIRST: u32 = 256 << 10;

/// A mean that is being formed.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum_ns: u64,
    count: u32,
}

impl Mean {
    #[inline]
    fn add(&mut self, latency: Duration) {
        self.sum_ns = self.sum_ns.saturating_add(latency.as_nanos());
        self.count += 1;
    }

    /// The mean in nanoseconds, if there are enough samples; begins anew.
    fn take(&mut self) -> Option<u64> {
        let Self { sum_ns, count } = core::mem::take(self);
        (count >= SAMPLES).then(|| sum_ns / u64::from(count))
    }
}

/// The size of slices on one device. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Slices {
    bytes: [u32; 2],
    small: Mean,
    sliced: [Mean; 2],
    /// The least recent mean of small requests, in nanoseconds.
    floor_ns: u64,
    window_ends: Instant,
}

impl Slices {
    /// Slices of [`FIRST`] bytes.
    pub fn new(now: Instant) -> Self {
        Self {
            bytes: [FIRST; 2],
            small: Mean::default(),
            sliced: [Mean::default(); 2],
            floor_ns: u64::MAX,
            window_ends: now + WINDOW,
        }
    }

    /// Bytes of a slice of this direction, a power of two from [`LEAST`] to [`MOST`].
    #[inline]
    pub fn bytes(&self, direction: Direction) -> u32 {
        self.bytes[direction as usize]
    }

    /// A request of so many bytes has come back from the device after `latency`. O(1).
    #[inline]
    pub fn observe(&mut self, now: Instant, kind: Kind, bytes: u32, latency: Duration) {
        let Some(direction) = kind.direction() else { return };
        if bytes <= SMALL {
            self.small.add(latency);
        } else if bytes == self.bytes[direction as usize] {
            self.sliced[direction as usize].add(latency);
        }
        if now >= self.window_ends {
            self.decide(now);
        }
    }

    #[cold]
    fn decide(&mut self, now: Instant) {
        self.window_ends = now + WINDOW;
        let small = self.small.take();
        let sliced = [self.sliced[0].take(), self.sliced[1].take()];
        let Some(small) = small else { return };
        self.floor_ns = small.min(self.floor_ns.saturating_add(self.floor_ns / FADING));
        let allowed = self.floor_ns.saturating_mul(MULTIPLE - 1);
        for (bytes, mean) in self.bytes.iter_mut().zip(sliced) {
            let Some(mean) = mean else { continue };
            let extra = mean.saturating_sub(small);
            if extra > allowed {
                *bytes = (*bytes / 2).max(LEAST);
            } else if extra.saturating_mul(2) <= allowed {
                // One of twice the size moves twice the bytes.
                *bytes = (*bytes * 2).min(MOST);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of read slices on a device with a time for an operation and a bandwidth, after `seconds` in which a queue of
    /// `queue_us` stands before everything.
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
    fn a_queue_in_the_device_changes_nothing_and_another_device_does() {
        let mut slices = Slices::new(Instant::ZERO);
        assert_eq!(settled(&mut slices, 0, 10, 80, 3000, 0), 512 << 10);
        assert_eq!(settled(&mut slices, 10, 20, 80, 3000, 20_000), 512 << 10, "20 ms of queue");
        assert_eq!(settled(&mut slices, 30, 10, 80, 300, 0), 64 << 10, "a tenth of the bandwidth");
        assert_eq!(slices.bytes(Direction::Write), FIRST, "there were no writes");
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
