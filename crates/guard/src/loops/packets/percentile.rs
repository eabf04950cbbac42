//! A percentile of the latencies of reads, where single reads are measured.

use evenkeel_control::response::Shape;
use evenkeel_control::{Duration, Instant};

use crate::sensor::tracepoints::{BUCKETS, middle};

/// Half of the window of a percentile, which covers the last 5 to 10 s: the older half is dropped when the newer one is full.
const HALF_WINDOW: Duration = Duration::from_secs(5);

/// Counts single reads for the percentile of a latency target.
pub(super) struct Percentile {
    quantile: f64,
    /// Shape of the distribution of latencies: with the mean of an interval it gives the percentile that the controller
    /// observes.
    shape: Shape,
    /// Number of reads in each bucket, in the older half of the window.
    full: Vec<u64>,
    /// Number of reads in each bucket, in the newer half of the window.
    filling: Vec<u64>,
    since: Instant,
}

impl Percentile {
    /// `percentile`: above 0, below 100.
    pub(super) fn new(percentile: f64) -> Self {
        let empty = || vec![0; BUCKETS];
        let (full, filling, since) = (empty(), empty(), Instant::ZERO);
        Self { quantile: percentile / 100.0, shape: Shape::new(since), full, filling, since }
    }

    /// Begins a new half of the window, and drops the oldest one, if it is time.
    pub(super) fn advance(&mut self, now: Instant) {
        if now.since(self.since) >= HALF_WINDOW {
            std::mem::swap(&mut self.full, &mut self.filling);
            self.filling.fill(0);
            self.since = now;
        }
    }

    /// Counts `reads` reads of this interval that came into a bucket.
    pub(super) fn count(&mut self, bucket: usize, reads: u64) {
        if let Some(count) = self.filling.get_mut(bucket) {
            *count += reads;
            self.shape.record_many(middle(bucket), reads);
        }
    }

    /// The percentile for an interval whose reads took `mean` on average; `None` as long as no single read has been measured.
    pub(super) fn figure(&mut self, now: Instant, mean: Duration) -> Option<Duration> {
        self.shape.close_interval(now);
        self.shape.percentile(mean, self.quantile)
    }

    /// The percentile over the window; `None` without reads.
    pub(super) fn measured(&self) -> Option<Duration> {
        let counts = || self.full.iter().zip(&self.filling).map(|(full, filling)| full + filling);
        let total: u64 = counts().sum();
        let rank = ((self.quantile * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let reached = |count| {
            seen += count;
            seen >= rank
        };
        counts().position(reached).map(middle)
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
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        percentile.advance(at(4));
        percentile.advance(at(5));
        assert!(percentile.measured().is_some());
        percentile.advance(at(10));
        assert_eq!(percentile.measured(), None);
    }
}
