//! A fixed-size log-linear histogram of durations for the request path.
//!
//! Recording is an integer bit scan and two additions (about 2 ns), the size is
//! fixed, and no allocation happens after construction. Eight sub-buckets per power
//! of two bound the relative error of a quantile at 12.5 % (one bucket width).

use crate::time::Duration;

/// Binary logarithm of the number of buckets (2^3 = 8) into which each power of two of durations is divided.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// Durations below 2^9 ns (512 ns) share the first bucket: no use of this crate needs finer ones.
const FLOOR_BITS: u32 = 9;
/// Durations of 2^37 ns (137 s) and more share the last bucket.
const CEIL_BITS: u32 = 37;
/// Number of buckets.
pub const BUCKETS: usize = (CEIL_BITS - FLOOR_BITS) as usize * SUB + 2;

/// Counts of durations in buckets at most 12.5 % wide, from 512 ns to 137 s; shorter and longer ones have a bucket each.
#[derive(Clone)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    total: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram.
    pub const fn new() -> Self {
        Self { counts: [0; BUCKETS], total: 0, sum_ns: 0, max_ns: 0 }
    }

    #[inline]
    fn bucket(ns: u64) -> usize {
        if ns < 1 << FLOOR_BITS {
            return 0;
        }
        if ns >= 1 << CEIL_BITS {
            return BUCKETS - 1;
        }
        let exponent = 63 - ns.leading_zeros();
        let sub = (ns >> (exponent - SUB_BITS)) as usize & (SUB - 1);
        1 + (exponent - FLOOR_BITS) as usize * SUB + sub
    }

    /// The smallest duration that is too long for bucket `index`; `Duration::MAX` for the last bucket.
    pub fn upper_bound(index: usize) -> Duration {
        if index == 0 {
            return Duration::from_nanos(1 << FLOOR_BITS);
        }
        if index >= BUCKETS - 1 {
            return Duration::MAX;
        }
        let exponent = FLOOR_BITS + ((index - 1) / SUB) as u32;
        let sub = ((index - 1) % SUB + 1) as u64;
        Duration::from_nanos((1 << exponent) + (sub << (exponent - SUB_BITS)))
    }

    /// Counts one duration.
    #[inline]
    pub fn record(&mut self, value: Duration) {
        let ns = value.as_nanos();
        self.counts[Self::bucket(ns)] += 1;
        self.total += 1;
        self.sum_ns = self.sum_ns.wrapping_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Counts the same duration `count` times.
    pub fn record_many(&mut self, value: Duration, count: u64) {
        if count == 0 {
            return;
        }
        let ns = value.as_nanos();
        self.counts[Self::bucket(ns)] += count;
        self.total += count;
        self.sum_ns = self.sum_ns.wrapping_add(ns.wrapping_mul(count));
        self.max_ns = self.max_ns.max(ns);
    }

    /// Number of durations counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Sum of all durations counted. Wraps around at 2^64 ns; the wrapping difference of two readings stays exact.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// The longest duration counted, exactly.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Mean duration; zero when nothing was counted.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.total).unwrap_or(0))
    }

    /// An upper bound of the `q` quantile (`0.0..=1.0`), at most one bucket width (12.5 %) above it and never above the maximum.
    /// Zero when nothing was counted.
    pub fn quantile(&self, q: f64) -> Duration {
        if self.total == 0 {
            return Duration::ZERO;
        }
        let rank = (libm::ceil(q * self.total as f64) as u64).clamp(1, self.total);
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Self::upper_bound(index).min(self.max());
            }
        }
        self.max()
    }

    /// Upper bound and count of each bucket that is not empty, shortest first.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|&(_, &count)| count > 0)
            .map(|(index, &count)| (Self::upper_bound(index), count))
    }

    /// The durations counted since `before` was a copy of this histogram; all of them if it counted more than this one does.
    /// The longest is known to the bucket only: [`Self::max`] is its upper bound, and never above the longest of all.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let Some(total) = self.total.checked_sub(before.total) else { return self.clone() };
        let mut grown = Self { total, sum_ns: self.sum_ns.wrapping_sub(before.sum_ns), ..self.clone() };
        for (mine, theirs) in grown.counts.iter_mut().zip(&before.counts) {
            *mine = mine.saturating_sub(*theirs);
        }
        let longest = grown.counts.iter().rposition(|&count| count > 0);
        grown.max_ns = longest.map_or(0, |index| Self::upper_bound(index).as_nanos().min(self.max_ns));
        grown
    }

    /// Adds all durations that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_is_zero() {
        let h = Histogram::new();
        assert_eq!((h.count(), h.mean(), h.quantile(0.99)), (0, Duration::ZERO, Duration::ZERO));
    }

    proptest! {
        #[test]
        fn every_value_lies_below_its_bucket_bound_and_above_the_one_before(ns in 0u64..1 << 40) {
            let index = Histogram::bucket(ns);
            prop_assert!(ns < Histogram::upper_bound(index).as_nanos());
            if index > 0 {
                prop_assert!(ns >= Histogram::upper_bound(index - 1).as_nanos());
            }
        }

        #[test]
        fn many_at_once_count_as_one_by_one(ns in 0u64..1 << 40, count in 0u64..20) {
            let (mut at_once, mut one_by_one) = (Histogram::new(), Histogram::new());
            at_once.record_many(Duration::from_nanos(ns), count);
            (0..count).for_each(|_| one_by_one.record(Duration::from_nanos(ns)));
            prop_assert!(at_once.counts == one_by_one.counts);
            prop_assert_eq!((at_once.count(), at_once.sum()), (one_by_one.count(), one_by_one.sum()));
            prop_assert_eq!(at_once.max(), one_by_one.max());
        }

        /// With 1000 requests in flight a histogram's sum grows by 1000 s each second, and passes 2^64 ns after 213 days.
        #[test]
        fn sums_of_what_is_counted_meanwhile_are_exact_beyond_the_largest_sum(times in 1u64..100, ns in 1u64..1 << 40) {
            let mut h = Histogram::new();
            h.record_many(Duration::from_nanos(u64::MAX / 100), times);
            let mut before = h.sum().as_nanos();
            for _ in 0..200 {
                h.record_many(Duration::from_nanos(u64::MAX / 100), 1);
                h.record(Duration::from_nanos(ns));
                let other = h.clone();
                h.merge(&Histogram::new());
                prop_assert_eq!(h.sum(), other.sum());
                let after = h.sum().as_nanos();
                prop_assert_eq!(after.wrapping_sub(before), u64::MAX / 100 + ns);
                before = after;
            }
        }

        #[test]
        fn what_was_counted_since_a_copy_is_what_was_recorded_since(
            earlier in proptest::collection::vec(0u64..1 << 40, 0..50),
            later in proptest::collection::vec(0u64..1 << 40, 0..50),
        ) {
            let (mut all, mut alone) = (Histogram::new(), Histogram::new());
            earlier.iter().for_each(|&ns| all.record(Duration::from_nanos(ns)));
            let before = all.clone();
            for &ns in &later {
                all.record(Duration::from_nanos(ns));
                alone.record(Duration::from_nanos(ns));
            }
            let since = all.since(&before);
            prop_assert!(since.counts == alone.counts);
            prop_assert_eq!((since.count(), since.sum()), (alone.count(), alone.sum()));
            prop_assert!(since.max() >= alone.max() && since.max() <= all.max());
            // A histogram that began anew in between.
            let anew = Histogram::new().since(&all);
            prop_assert_eq!(anew.count(), 0);
        }

        #[test]
        fn quantiles_bound_the_exact_ones(mut values in proptest::collection::vec(512u64..1 << 36, 1..200), q in 0.0f64..=1.0) {
            let mut h = Histogram::new();
            for &v in &values {
                h.record(Duration::from_nanos(v));
            }
            values.sort_unstable();
            let rank = ((q * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1];
            let got = h.quantile(q).as_nanos();
            prop_assert!(got >= exact && got as f64 <= exact as f64 * 1.126, "{got} for {exact}");
        }
    }
}
