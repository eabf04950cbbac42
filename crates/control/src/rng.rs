//! A small seeded generator for controllers that explore.

/// SplitMix64: 64 bits of state, passes BigCrush, one multiply-xor chain a draw (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that replays exactly from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 uniformly distributed bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number, uniform in the open interval (0, 1).
    pub fn next_f64(&mut self) -> f64 {
        ((self.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// The next number, uniform below `bound`; 0 when `bound` is 0. The bias is below `bound` / 2^64.
    pub fn next_below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// The next standard normal number (Box and Muller 1958); the same bits on every machine.
    pub fn next_normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.next_f64()));
        radius * libm::cos(2.0 * core::f64::consts::PI * self.next_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_reference_sequence() {
        // First outputs of the published reference implementation for seed 1234567.
        let mut rng = SplitMix64::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], expected);
    }

    #[test]
    fn draws_have_the_moments_of_their_distributions() {
        let mut rng = SplitMix64::new(1);
        let n = 100_000;
        let (mut sum, mut squares, mut uniform, mut below) = (0.0, 0.0, 0.0, 0);
        for _ in 0..n {
            let z = rng.next_normal();
            sum += z;
            squares += z * z;
            let u = rng.next_f64();
            assert!(u > 0.0 && u < 1.0);
            uniform += u;
            let k = rng.next_below(10);
            assert!(k < 10);
            below += k;
        }
        let n = f64::from(n);
        // Four standard errors of each mean.
        assert!((sum / n).abs() < 4.0 / n.sqrt());
        assert!((squares / n - 1.0).abs() < 4.0 * (2.0 / n).sqrt());
        assert!((uniform / n - 0.5).abs() < 4.0 * (1.0 / 12.0 / n).sqrt());
        assert!((below as f64 / n - 4.5).abs() < 4.0 * (8.25 / n).sqrt());
    }
}
