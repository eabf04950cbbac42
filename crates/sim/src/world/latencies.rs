//! A distribution of latencies, kept to three significant digits.

use evenkeel_control::Duration;
use hdrhistogram::Histogram;

/// Number of significant decimal digits kept: a quantile is at most 0.1 % above the exact one.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The distribution of requests' latencies. Count, mean and maximum are exact; quantiles are at most 0.1 % too high. A request
/// costs O(1); memory grows with the logarithm of the longest latency.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new(SIGNIFICANT_DIGITS).expect("up to five digits are possible");
        Self { histogram, sum_ns: 0, max_ns: 0 }
    }
}

impl Latencies {
    /// Counts the latency of one request.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        let ns = latency.as_nanos();
        // Grows as needed and takes every value there is.
        let _ = self.histogram.record(ns);
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the latencies that were recorded in `other`.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same precision, and the histogram grows as needed.
        let _ = self.histogram.add(&other.histogram);
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of requests whose latency was recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Mean latency; zero without requests.
    pub fn mean(&self) -> Duration {
        let count = u128::from(self.count().max(1));
        Duration::from_nanos(u64::try_from(self.sum_ns / count).unwrap_or(u64::MAX))
    }

    /// The longest latency; zero without requests.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The latency that the fraction `q` (0 to 1) of the requests does not exceed; at most the maximum; zero without requests.
    pub fn quantile(&self, q: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_quantile(q).min(self.max_ns))
    }

    /// Median latency; zero without requests.
    pub fn p50(&self) -> Duration {
        self.quantile(0.5)
    }

    /// 99th percentile of the latency; zero without requests.
    pub fn p99(&self) -> Duration {
        self.quantile(0.99)
    }

    /// 99.9th percentile of the latency; zero without requests.
    pub fn p999(&self) -> Duration {
        self.quantile(0.999)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_within_a_thousandth_of_the_exact_ones(
            mut values in proptest::collection::vec(1u64..1 << 45, 1..300),
            q in 0.0f64..=1.0,
        ) {
            let (mut all, mut half) = (Latencies::default(), Latencies::default());
            for (place, &ns) in values.iter().enumerate() {
                let into = if place % 2 == 0 { &mut all } else { &mut half };
                into.record(Duration::from_nanos(ns));
            }
            all.merge(&half);
            let mean = values.iter().map(|&ns| u128::from(ns)).sum::<u128>() / values.len() as u128;
            prop_assert_eq!(u128::from(all.mean().as_nanos()), mean);
            values.sort_unstable();
            let rank = ((q * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let (exact, got) = (values[rank - 1], all.quantile(q).as_nanos());
            prop_assert!(got >= exact && got as f64 <= exact as f64 * 1.001, "{} for {}", got, exact);
            prop_assert_eq!(all.max().as_nanos(), values[values.len() - 1]);
        }
    }

    #[test]
    fn nothing_counted_is_zero() {
        let empty = Latencies::default();
        assert_eq!((empty.count(), empty.mean(), empty.p99()), (0, Duration::ZERO, Duration::ZERO));
    }
}
