//! The shape of a distribution of latencies: from the mean of an interval to a percentile.

use core::mem;

use crate::histogram::Histogram;
use crate::time::{Duration, Instant};

/// How long latencies count for the shape of their distribution: each half is dropped as a whole when the next one
/// is full, so that a percentile is over the last 5 to 10 s.
const HALF_WINDOW: Duration = Duration::from_secs(5);

/// By how much a percentile of latencies exceeds their mean.
///
/// An interval has too few reads for a percentile, and a percentile over many intervals tells late what a decision did,
/// because it counts reads from before. So the mean of the interval says how long reads take, and the shape of the
/// distribution, which changes slowly, how many times that the percentile is. The shape is that of latencies as
/// multiples of the mean of their own interval, so that a change from one interval to the next is no part of it.
pub struct Shape {
    /// Latencies of the present interval.
    interval: Histogram,
    /// Multiples of means over the window: its full and its latest half.
    full: Histogram,
    filling: Histogram,
    since: Instant,
}

/// The record of a multiple of 1.
const UNIT: Duration = Duration::from_millis(1);

impl Shape {
    /// Nothing is known before the first read.
    pub fn new(now: Instant) -> Self {
        let empty = Histogram::new;
        Self { interval: empty(), full: empty(), filling: empty(), since: now }
    }

    /// Counts the latency of a read of the present interval.
    #[inline]
    pub fn record(&mut self, response_time: Duration) {
        self.interval.record(response_time);
    }

    /// Counts so many reads of about the same latency.
    pub fn record_many(&mut self, response_time: Duration, count: u64) {
        self.interval.record_many(response_time, count);
    }

    /// Takes the reads of an interval into account.
    pub fn close_interval(&mut self, now: Instant) {
        if now.since(self.since) >= HALF_WINDOW && self.filling.count() > 0 {
            self.full = mem::take(&mut self.filling);
            self.since = now;
        }
        let interval = mem::take(&mut self.interval);
        let mean = interval.mean();
        if mean > Duration::ZERO {
            for (response_time, count) in interval.buckets() {
                // The last bucket has no bound.
                let times = response_time.min(interval.max()).as_nanos() as f64 / mean.as_nanos() as f64;
                self.filling.record_many(Duration::from_nanos((times * UNIT.as_nanos() as f64) as u64), count);
            }
        }
    }

    /// The `quantile` (0 to 1) of reads that take `mean` on average; `None` before the first read was counted.
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
}
