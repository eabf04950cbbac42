//! Zipf's distribution: a few hot blocks and many cold ones, drawn in constant time and memory.

use evenkeel_control::rng::SplitMix64;

/// Draws ranks `0..n` with probability proportional to `1 / (rank + 1)^s`.
///
/// Rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates
/// from monotone discrete distributions", 1996): the hat is the density's integral, which
/// can be inverted. A draw takes fewer than two tries on average for any `n` and `s`, and gives the same bits on every machine.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: f64,
    s: f64,
    /// Integral of the hat at the lower end of the first rank.
    low: f64,
    /// Integral of the hat at the upper end of the last rank.
    high: f64,
    /// A drawn number that differs from its rank by at most this is accepted without the rejection test.
    squeeze: f64,
}

/// A permutation that assigns blocks to ranks and spreads neighbouring ranks far apart. The permutation is the same for all
/// clients that use equally many blocks.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    n: u64,
    /// Factor of the permutation, coprime to `n`, so that no two ranks get the same block.
    factor: u64,
}

impl Zipf {
    /// A distribution over `n` ranks (at least 1) with exponent `s` (above 0, at most 10; other values are clamped).
    pub fn new(n: u64, s: f64) -> Self {
        let n = n.max(1) as f64;
        let s = if s > 0.0 { s.min(10.0) } else { f64::MIN_POSITIVE };
        let mut zipf = Self { n, s, low: 0.0, high: 0.0, squeeze: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(n + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// Draws a rank. Rank 0 is the most frequent one.
    pub fn draw(&self, rng: &mut SplitMix64) -> u64 {
        loop {
            let u = self.high + rng.next_f64() * (self.low - self.high);
            let x = self.inverse(u);
            let rank = libm::floor(x + 0.5).clamp(1.0, self.n);
            if rank - x <= self.squeeze || u >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        libm::exp(-self.s * libm::log(x))
    }

    /// Integral of the density from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        exp_m1_over(log * (1.0 - self.s)) * log
    }

    fn inverse(&self, u: f64) -> f64 {
        // Below -1 only by rounding, where the logarithm would not exist.
        let t = (u * (1.0 - self.s)).max(-1.0);
        libm::exp(ln_1p_over(t) * u)
    }
}

impl Scatter {
    /// A permutation of `n` blocks (at least 1).
    pub fn new(n: u64) -> Self {
        let n = n.max(1);
        // Near the golden ratio of them multiples spread most evenly.
        let mut factor = ((n as f64 * 0.618_033_988_749_895) as u64).max(1);
        while gcd(factor, n) != 1 {
            factor += 1;
        }
        Self { n, factor }
    }

    /// The number of the block with this `rank`, which must be below the number of blocks.
    pub fn place(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.factor) % u128::from(self.n)) as u64
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// `(e^t - 1) / t`, extended by 1 at t = 0, so that the exponent 1 needs no special case.
fn exp_m1_over(t: f64) -> f64 {
    if t.abs() > 1e-8 { libm::expm1(t) / t } else { 1.0 + t / 2.0 }
}

/// `ln(1 + t) / t`, extended by 1 at t = 0.
fn ln_1p_over(t: f64) -> f64 {
    if t.abs() > 1e-8 { libm::log1p(t) / t } else { 1.0 - t / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        for s in [0.5, 1.0, 1.1, 2.5] {
            let n = 50;
            let zipf = Zipf::new(n, s);
            let mut rng = SplitMix64::new(7);
            let mut counts = vec![0u32; n as usize];
            let draws = 200_000;
            for _ in 0..draws {
                counts[zipf.draw(&mut rng) as usize] += 1;
            }
            let norm: f64 = (1..=n).map(|k| (k as f64).powf(-s)).sum();
            for (rank, &count) in counts.iter().enumerate() {
                let p = ((rank + 1) as f64).powf(-s) / norm;
                let mean = p * f64::from(draws);
                // Five standard deviations of a binomial count.
                let tolerance = 5.0 * (mean * (1.0 - p)).sqrt() + 1.0;
                assert!((f64::from(count) - mean).abs() < tolerance, "s {s} rank {rank}: {count}, not {mean}");
            }
        }
    }

    #[test]
    fn one_rank_and_very_many_ranks_stay_in_range() {
        let mut rng = SplitMix64::new(1);
        for n in [1, 2, 3, 1 << 40, u64::MAX] {
            for s in [0.01, 0.99, 1.0, 1.2, 8.0] {
                let zipf = Zipf::new(n, s);
                for _ in 0..200 {
                    assert!(zipf.draw(&mut rng) < n, "{n} {s}");
                }
            }
        }
    }

    #[test]
    fn a_scatter_meets_every_block_once_and_parts_neighbours() {
        for n in [1, 2, 3, 10, 1000, 65536] {
            let scatter = Scatter::new(n);
            let mut blocks: Vec<u64> = (0..n).map(|rank| scatter.place(rank)).collect();
            if n > 100 {
                assert!(blocks.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > n / 4), "{n}");
            }
            blocks.sort_unstable();
            assert_eq!(blocks, (0..n).collect::<Vec<_>>());
        }
    }
}
