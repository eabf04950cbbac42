//! The percentile of read latencies that a latency target names, from timings of single reads.

use evenkeel_control::response::Shape;
use evenkeel_control::{Duration, Instant};

use crate::loops::record::ReadPercentiles;
use crate::sensor::tracepoints::{BUCKETS, middle};

/// Length of one half of the window over which a percentile is taken. The window covers the latest 5 to 10 s: its older half
/// is dropped when the newer half is full.
const HALF_WINDOW: Duration = Duration::from_secs(5);

/// Counts of timed reads by latency, of the latest 5 to 10 s.
pub(in crate::loops) struct Window {
    /// Number of reads in each bucket, in the older half of the window.
    full: Vec<u64>,
    /// Number of reads in each bucket, in the newer half of the window.
    filling: Vec<u64>,
    since: Instant,
}

impl Window {
    /// A window without reads, whose newer half begins at `since`.
    pub(in crate::loops) fn new(since: Instant) -> Self {
        Self { full: vec![0; BUCKETS], filling: vec![0; BUCKETS], since }
    }

    /// Begins a new half of the window, and drops the older half, if the present one is full at `now`.
    pub(in crate::loops) fn advance(&mut self, now: Instant) {
        if now.since(self.since) >= HALF_WINDOW {
            std::mem::swap(&mut self.full, &mut self.filling);
            self.filling.fill(0);
            self.since = now;
        }
    }

    /// Adds `reads` reads of the current interval to a bucket of [`crate::sensor::tracepoints`]; false if there is no such one.
    pub(in crate::loops) fn count(&mut self, bucket: usize, reads: u64) -> bool {
        let count = self.filling.get_mut(bucket);
        let is_there = count.is_some();
        count.into_iter().for_each(|count| *count += reads);
        is_there
    }

    /// The usual percentiles of all reads in the window; `None` without reads.
    pub(in crate::loops) fn usual(&self) -> Option<ReadPercentiles> {
        let ms = |quantile| self.at(quantile).map(Duration::as_millis_f64);
        Some(ReadPercentiles { p50_ms: ms(0.5)?, p99_ms: ms(0.99)?, p999_ms: ms(0.999)? })
    }

    fn at(&self, quantile: f64) -> Option<Duration> {
        let counts = || self.full.iter().zip(&self.filling).map(|(full, filling)| full + filling);
        let total: u64 = counts().sum();
        let rank = ((quantile * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let reached = |count| {
            seen += count;
            seen >= rank
        };
        counts().position(reached).map(middle)
    }
}

/// Counts timed reads by latency, for a latency target that is for a percentile.
pub(in crate::loops) struct Percentile {
    quantile: f64,
    /// Shape of the distribution of latencies. The shape and the mean of an interval together give the percentile that the
    /// controller observes.
    shape: Shape,
    window: Window,
}

impl Percentile {
    /// Counts for the percentile `percentile`, above 0 and below 100.
    pub(in crate::loops) fn new(percentile: f64) -> Self {
        let since = Instant::ZERO;
        Self { quantile: percentile / 100.0, shape: Shape::new(since), window: Window::new(since) }
    }

    /// Begins a new half of the window, and drops the older half, if the present one is full at `now`.
    pub(in crate::loops) fn advance(&mut self, now: Instant) {
        self.window.advance(now);
    }

    /// Adds `reads` reads of the current interval to a bucket of [`crate::sensor::tracepoints`].
    pub(in crate::loops) fn count(&mut self, bucket: usize, reads: u64) {
        if self.window.count(bucket, reads) {
            self.shape.record_many(middle(bucket), reads);
        }
    }

    /// The percentile of read latencies in the interval that ends at `now`, whose reads took `mean` on average; `None` as
    /// long as no single read has been measured.
    pub(in crate::loops) fn figure(&mut self, now: Instant, mean: Duration) -> Option<Duration> {
        self.shape.close_interval(now);
        self.shape.percentile(mean, self.quantile)
    }

    /// The percentile of all reads in the window (latest 5 to 10 s); `None` without reads.
    pub(in crate::loops) fn measured(&self) -> Option<Duration> {
        self.window.at(self.quantile)
    }

    /// The usual percentiles of all reads in the window; `None` without reads.
    pub(in crate::loops) fn usual(&self) -> Option<ReadPercentiles> {
        self.window.usual()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(ms: u64) -> usize {
        (0..BUCKETS).find(|bucket| middle(*bucket) >= Duration::from_millis(ms)).expect("a bucket")
    }

    #[test]
    fn the_window_tells_the_percentile_and_forgets() {
        let mut percentile = Percentile::new(90.0);
        assert_eq!((percentile.measured(), percentile.figure(Instant::ZERO, Duration::from_millis(1))), (None, None));
        percentile.count(bucket(2), 900);
        percentile.count(bucket(40), 99);
        assert_eq!(percentile.measured(), Some(middle(bucket(2))), "899.1 of 999");
        percentile.count(bucket(40), 2);
        assert_eq!(percentile.measured(), Some(middle(bucket(40))), "901 of 1,001");
        let usual = percentile.usual().expect("reads");
        let [two, forty] = [2, 40].map(|ms| middle(bucket(ms)).as_millis_f64());
        assert_eq!((usual.p50_ms, usual.p99_ms, usual.p999_ms), (two, forty, forty));
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        percentile.advance(at(4));
        percentile.advance(at(5));
        assert!(percentile.measured().is_some());
        percentile.advance(at(10));
        assert_eq!((percentile.measured(), percentile.usual()), (None, None));
    }
}
