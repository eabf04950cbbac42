//! Estimates a percentile of latencies from the mean of one control interval and the learned shape of their distribution.

use core::mem;

use crate::histogram::Histogram;
use crate::time::{Duration, Instant};

/// Length of one half of the window of time over which the shape is learned. The older half is dropped as a whole when the
/// newer one is complete, so that the shape covers the latest 5 to 10 s; after a pause in reads both halves are.
const HALF_WINDOW: Duration = Duration::from_secs(5);

/// The ratio of a percentile of latencies to their mean, learned over several seconds.
///
/// One control interval has too few reads for a percentile, and a percentile over many intervals shows the effect of a
/// decision late, because it counts earlier reads. So a percentile is estimated as the mean of the present interval times a
/// ratio from the distribution's shape, which changes slowly. The shape is that of latencies divided by the mean of their own
/// interval, so that a change of the mean between intervals does not alter the shape.
pub struct Shape {
    /// Latencies of reads in the present control interval.
    interval: Histogram,
    /// Latencies divided by the mean of their interval ([`UNIT`] = 1), in the older half of the window, which is complete.
    full: Histogram,
    /// Latencies divided by the mean of their interval ([`UNIT`] = 1), in the newer half of the window, which began at `since`.
    filling: Histogram,
    since: Instant,
}

/// The duration that stands for a latency equal to its interval's mean, in histograms of latencies divided by means.
const UNIT: Duration = Duration::from_millis(1);

impl Shape {
    /// A shape without reads, whose first half of the window begins at `now`.
    pub fn new(now: Instant) -> Self {
        let empty = Histogram::new;
        Self { interval: empty(), full: empty(), filling: empty(), since: now }
    }

    /// Counts the latency of a read of the present interval.
    #[inline]
    pub fn record(&mut self, response_time: Duration) {
        self.interval.record(response_time);
    }

    /// Counts `count` reads of the present interval with about the same latency.
    pub fn record_many(&mut self, response_time: Duration, count: u64) {
        self.interval.record_many(response_time, count);
    }

    /// Ends the present interval: its latencies, divided by their mean, enter the window.
    pub fn close_interval(&mut self, now: Instant) {
        let interval = mem::take(&mut self.interval);
        let mean = interval.mean();
        if mean > Duration::ZERO {
            let age = now.since(self.since);
            if age >= HALF_WINDOW {
                // All in the newer half came within `HALF_WINDOW` of its beginning.
                let newer = mem::take(&mut self.filling);
                self.full = if age < HALF_WINDOW + HALF_WINDOW { newer } else { Histogram::new() };
                self.since = now;
            }
            for (response_time, count) in interval.buckets() {
                // The last bucket has no bound.
                let times = response_time.min(interval.max()).as_nanos() as f64 / mean.as_nanos() as f64;
                self.filling.record_many(Duration::from_nanos((times * UNIT.as_nanos() as f64) as u64), count);
            }
        }
    }

    /// Estimates the `quantile` (0 to 1) of latencies whose mean is `mean`; `None` before an interval with reads was closed.
    pub fn percentile(&self, mean: Duration, quantile: f64) -> Option<Duration> {
        let mut window = self.full.clone();
        window.merge(&self.filling);
        let times = window.quantile(quantile).as_nanos() as f64 / UNIT.as_nanos() as f64;
        (window.count() > 0).then(|| Duration::from_nanos((mean.as_nanos() as f64 * times) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_as_many_times_the_mean_as_it_was() {
        let ms = Duration::from_millis;
        let mut shape = Shape::new(Instant::ZERO);
        assert_eq!(shape.percentile(ms(1), 0.99), None);
        // One read in ten takes five times as long as the others, whatever they take.
        for (second, unit) in (0..12).zip([1, 3].into_iter().cycle()) {
            shape.record_many(ms(unit), 90);
            (0..10).for_each(|_| shape.record(ms(5 * unit)));
            shape.close_interval(Instant::ZERO + Duration::from_secs(second));
        }
        let expected = 5.0 / 1.4;
        let times = shape.percentile(ms(1_000), 0.95).unwrap().as_secs_f64();
        // Bounds of two buckets of 12.5 %, and times that are cut to whole units.
        assert!((expected - 1e-3..expected * 1.27).contains(&times), "{times}");
    }

    #[test]
    fn a_shape_from_before_a_pause_is_forgotten_with_the_first_reads_after_it() {
        let ms = Duration::from_millis;
        // The caller ends intervals without reads, or ends none while no read comes.
        for ends_intervals in [true, false] {
            let mut shape = Shape::new(Instant::ZERO);
            for second in 0..7_200 {
                let now = Instant::ZERO + Duration::from_secs(second);
                if second < 12 {
                    shape.record_many(ms(1), 90);
                    shape.record_many(ms(5), 10);
                }
                if second < 12 || ends_intervals {
                    shape.close_interval(now);
                }
            }
            assert!(shape.percentile(ms(1), 0.95).is_some_and(|time| time > ms(3)), "without reads it stays");
            // Now all reads take equally long.
            shape.record_many(ms(2), 100);
            shape.close_interval(Instant::ZERO + Duration::from_secs(7_200));
            assert_eq!(shape.percentile(ms(1), 0.95), Some(ms(1)), "intervals without reads end: {ends_intervals}");
        }
    }
}
