//! A histogram of whole numbers whose buckets grow with the number.

/// Number of bits that tell the buckets of a power of two apart.
const BITS: u32 = 6;
/// Number of buckets for each power of two; numbers below it have buckets of their own.
const BUCKETS: u64 = 1 << BITS;

/// Counts numbers in buckets that are at most 1/64 (1.6 %) as wide as the numbers in them. Memory: at most 8 bytes for each
/// bucket up to that of the largest number, 30 KiB for the whole range.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    /// Counts a number.
    pub(super) fn add(&mut self, number: u64) {
        let bucket = bucket(number);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.max = self.max.max(number);
    }

    /// Number of numbers.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The largest number; 0 if there is none.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// The number at the quantile `share` (0 to 1), rounded down to the start of its bucket, by at most 1.6 %. 0 without numbers.
    pub(super) fn quantile(&self, share: f64) -> u64 {
        let rank = ((share * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        let mut below = 0;
        let found = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        });
        found.map_or(0, first)
    }

    /// For each bucket that has numbers: the start of the bucket, and the share (0 to 1) of all numbers up to its end.
    pub(super) fn shares(&self) -> Vec<(u64, f64)> {
        let mut below = 0;
        let used = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        used.map(|(bucket, count)| {
            below += count;
            (first(bucket), below as f64 / self.total as f64)
        })
        .collect()
    }
}

/// Index of a number's bucket.
fn bucket(number: u64) -> usize {
    if number < BUCKETS {
        return number as usize;
    }
    let power = number.ilog2();
    let part = (number >> (power - BITS)) - BUCKETS;
    (u64::from(power - BITS) * BUCKETS + BUCKETS + part) as usize
}

/// The smallest number of a bucket.
fn first(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < BUCKETS {
        return bucket;
    }
    (BUCKETS + bucket % BUCKETS) << (bucket / BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_of_a_thousand_numbers_are_literal() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.total(), histogram.max()), (0, 0, 0));
        (1..=1000).for_each(|number| histogram.add(number));
        // 500 is in the bucket of 500 to 503, 990 in that of 984 to 991.
        assert_eq!([0.0, 0.01, 0.5, 0.99, 1.0].map(|share| histogram.quantile(share)), [1, 10, 500, 984, 1000]);
        assert_eq!((histogram.total(), histogram.max()), (1000, 1000));
        assert_eq!(histogram.shares()[..2], [(1, 0.001), (2, 0.002)]);
        assert_eq!(histogram.shares().last().map(|(_, share)| *share), Some(1.0));
    }

    #[test]
    fn multiples_of_a_block_are_exact() {
        for number in [512, 4096, 12_288, 65_536, 1 << 20, 3 << 30] {
            let mut histogram = Histogram::default();
            histogram.add(number);
            assert_eq!(histogram.quantile(0.5), number);
        }
    }

    proptest! {
        #[test]
        fn a_bucket_begins_at_most_a_64th_below_its_numbers(number: u64, shift in 0..64u32) {
            let number = number >> shift;
            let begin = first(bucket(number));
            prop_assert!(begin <= number && number - begin <= number / 64, "{number}: {begin}");
            prop_assert_eq!(bucket(begin), bucket(number));
        }
    }
}
