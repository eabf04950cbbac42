//! Does the delay do anything?
//!
//! An acknowledgement that travels on data is not delayed by delaying bare ones, so that a throttle can be without any
//! effect. Looking on cannot tell: when reads stay slow although everyone is held back as far as allowed, the delay moves
//! no more, and clients that come and go change more than it does. So it is tried: the delay is lifted and put back in
//! force in turn, in pairs of blocks whose order alternates, so that a slow drift cancels.
//!
//! By Little's law (see [`super::gain`]) a pair gives y = X·R without the delay − X·R with it = k·q + chance, with q = Σx·d
//! while it is in force. k is the slope of the line through the origin, and its standard error s follows from how far
//! pairs are off that line; nothing is assumed about the size of the noise. If pairs are off by chance alone, normally
//! and alike, (k̂ − k)/s is distributed as Student's t with one degree of freedom less than there are pairs.
//!
//! - *It does not bite* is said when that is above the quantile of 2·10⁻⁴ for k = 1, which every request that meets the
//!   delay once has, and k̂ is below one third. There are three looks: at most 6 in 10,000 trials accuse a throttle that
//!   bites.
//! - *It bites* is said when k = 0 can be excluded at 10⁻³, at one of four looks.
//! - Otherwise nobody knows, and it is tried again later.

use super::gain::Point;

/// Intervals of a block. In the first of them requests are still under way that met the other state.
const BLOCK: u32 = 6;
const SKIP: u32 = 1;
/// Pairs after which the sums are looked at, and the quantiles of Student's t there: of 2·10⁻⁴ (none where too few pairs
/// would make it meaningless), and of 10⁻³.
const LOOKS: [(u32, Option<f64>, f64); 4] =
    [(4, None, 10.21), (8, Some(6.31), 4.79), (12, Some(5.00), 4.02), (16, Some(4.53), 3.73)];
/// What a request that meets the delay has at least, and below what it must seem to be for the verdict.
const BITES: f64 = 1.0;
const BITES_NOT: f64 = 1.0 / 3.0;
/// Pairs are never taken to agree better than this part of what they measure.
const LEAST_NOISE: f64 = 0.01;

/// What a trial ends with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The delay has an effect: k and its standard error.
    Bites { k: f64, error: f64 },
    /// It has none.
    BitesNot,
    /// Too noisy to tell.
    Unknown,
}

/// A trial under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Trial {
    /// Intervals so far.
    intervals: u32,
    /// Sums of X·R and of Σx·d in the pair under way, with the delay in force and lifted.
    held: Sums,
    lifted: Sums,
    /// Over pairs: q², q·y, y², and their number.
    qq: f64,
    qy: f64,
    yy: f64,
    pairs: u32,
    /// Sum of X·R over all blocks.
    size: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    product: f64,
    load_delay: f64,
    intervals: f64,
}

impl Trial {
    /// Whether the delay is in force in the next interval.
    pub(super) fn holds(&self) -> bool {
        let block = self.intervals / BLOCK;
        // Held, lifted, lifted, held, and so on.
        matches!(block % 4, 0 | 3)
    }

    /// Takes an interval in which the delay was as [`Self::holds`] said before it.
    pub(super) fn take(&mut self, point: &Point) -> Option<Verdict> {
        let sums = if self.holds() { &mut self.held } else { &mut self.lifted };
        if self.intervals % BLOCK >= SKIP {
            sums.product += point.load * point.response_ms;
            sums.load_delay += point.load_delay;
            sums.intervals += 1.0;
        }
        self.intervals += 1;
        if !self.intervals.is_multiple_of(2 * BLOCK) {
            return None;
        }
        let mean = |sum: f64, sums: &Sums| sum / sums.intervals.max(1.0);
        let (held, lifted) = (mean(self.held.product, &self.held), mean(self.lifted.product, &self.lifted));
        let y = lifted - held;
        let q = mean(self.held.load_delay, &self.held) - mean(self.lifted.load_delay, &self.lifted);
        (self.held, self.lifted) = (Sums::default(), Sums::default());
        (self.qq, self.qy, self.yy) = (self.qq + q * q, self.qy + q * y, self.yy + y * y);
        (self.pairs, self.size) = (self.pairs + 1, self.size + held + lifted);
        let &(last, ..) = LOOKS.last()?;
        let look = LOOKS.iter().find(|(pairs, ..)| *pairs == self.pairs);
        look.and_then(|&(_, not, does)| self.judge(not, does)).or((self.pairs >= last).then_some(Verdict::Unknown))
    }

    fn judge(&self, not: Option<f64>, does: f64) -> Option<Verdict> {
        let pairs = f64::from(self.pairs);
        let k = self.qy / self.qq;
        let residual = ((self.yy - k * self.qy) / (pairs - 1.0)).max(0.0);
        let least = LEAST_NOISE * self.size / (2.0 * pairs);
        let error = libm::sqrt(residual.max(least * least) / self.qq);
        if !(k.is_finite() && error.is_finite()) {
            return None;
        }
        if not.is_some_and(|quantile| BITES - k > quantile * error) && k < BITES_NOT {
            return Some(Verdict::BitesNot);
        }
        (k > does * error && k >= BITES_NOT).then_some(Verdict::Bites { k, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    /// Clients with 64 KiB each on saturated storage, measured with this relative noise. `drift` is how much they grow in
    /// each interval.
    fn trial(k: f64, noise: f64, drift: f64, seed: u64) -> (Verdict, u32) {
        let mut rng = SplitMix64::new(seed);
        let mut trial = Trial::default();
        let mut circulation = 12.0 * 65_536.0 * 1e3;
        for interval in 1..=1_000 {
            let delay_ms = if trial.holds() { 20.0 } else { 0.0 };
            let response_ms = (circulation / 18e6 - k * delay_ms).max(4.0);
            let load = circulation / (response_ms + k * delay_ms);
            let measured = response_ms * libm::exp(noise * rng.next_normal());
            let point = Point { load, response_ms: measured, load_delay: load * delay_ms };
            if let Some(verdict) = trial.take(&point) {
                return (verdict, interval);
            }
            circulation *= 1.0 + drift;
        }
        (Verdict::Unknown, u32::MAX)
    }

    #[test]
    fn a_delay_without_effect_is_found_out_in_time() {
        // Reads of an interval scatter by some 30 % where six complete in it.
        let found = (0..2_000).filter(|&seed| {
            let (verdict, intervals) = trial(0.0, 0.3, 0.0, seed);
            verdict == Verdict::BitesNot && intervals <= 16 * 2 * BLOCK
        });
        assert!(found.count() >= 1_980);
    }

    #[test]
    fn one_that_bites_is_not_accused() {
        for (k, drift) in [(1.0, 0.0), (1.0, 0.002), (1.0, -0.002), (2.0, 0.0), (5.0, 0.0)] {
            let accused = (0..5_000).filter(|&seed| trial(k, 0.3, drift, seed).0 == Verdict::BitesNot).count();
            assert!(accused <= 5, "k {k}, drift {drift}: {accused} of 5000");
        }
    }

    #[test]
    fn what_it_does_is_measured() {
        for k in [1.0, 2.0] {
            let (verdict, intervals) = trial(k, 0.1, 0.0, 1);
            let Verdict::Bites { k: found, error } = verdict else { panic!("{k}: {verdict:?}") };
            assert!((found - k).abs() < 4.0 * error && error < 0.3, "{k}: {found} {error}");
            assert!(intervals <= 8 * 2 * BLOCK);
        }
    }

    #[test]
    fn where_nothing_can_be_seen_nothing_is_said() {
        assert_eq!(trial(0.0, 3.0, 0.0, 5).0, Verdict::Unknown);
        let mut nonsense = Trial::default();
        let point = Point { load: f64::NAN, ..Point::default() };
        let verdict = (0..1_000).find_map(|_| nonsense.take(&point));
        assert_eq!(verdict, Some(Verdict::Unknown));
    }
}
