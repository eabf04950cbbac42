//! Tests by trial if the delay has any effect.
//!
//! An acknowledgement that travels on data is not delayed by delaying bare ones, so that a throttle can be without any
//! effect. Samples alone cannot show that: while reads stay slow at the longest delay, clients that come and go change
//! more than the delay does. So the controller lifts the delay and restores it in turn, in pairs of blocks (one
//! with the delay, one without) whose order alternates, so that a slow drift cancels.
//!
//! By Little's law (see [`super::gain`]) a pair gives y = (X·R without the delay) − (X·R with the delay) = k·q + chance, with
//! q = Σx·d while the delay is in force. Let S(k) be the sum of (y − k·q)² over n pairs. If the size of the chance is
//! unknown, the likelihood ratio of k = 0 (no effect) against k = 1 (each request meets the delay once) is
//! (S(1)/S(0))^(n/2). If k = 1, the probability that this ratio ever exceeds 1/[`ERROR`] is at most [`ERROR`].
//!
//! The trial ends when the ratio or its inverse exceeds 1/[`ERROR`], and after twenty pairs without a verdict.

use super::gain::{PATIENCE, Point};

/// Largest probability with which an effective throttle may be found ineffective.
const ERROR: f64 = 1e-3;

/// The result of a trial.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    Effective,
    Ineffective,
    /// Chance was too large beside the effect for a verdict.
    Undecided,
}

/// A trial under way, which tests if the delay has any effect.
#[derive(Clone, Debug, Default)]
pub(super) struct Trial {
    /// Number of intervals that the trial has taken so far.
    pub(super) intervals: u32,
    /// Sums of X·R and of Σx·d over the present pair's intervals with the delay in force.
    held: Point,
    /// Sums of X·R and of Σx·d over the present pair's intervals with the delay lifted.
    lifted: Point,
    /// The sums S(0) and S(1) of the module's documentation.
    errors: [f64; 2],
}

impl Trial {
    /// Number of intervals of a block, in which the delay is either in force or lifted. The first interval does not count:
    /// requests from the block before are still in flight in it.
    const BLOCK: u32 = PATIENCE as u32 / 2;

    /// True if the delay is in force in the next interval.
    pub(super) fn holds(&self) -> bool {
        // Held, lifted, lifted, held, and so on.
        matches!(self.intervals / Self::BLOCK % 4, 0 | 3)
    }

    /// Takes the figures of an interval in which the delay was in force or lifted as [`Self::holds`] demanded. Returns the
    /// verdict at the end of the trial.
    pub(super) fn take(&mut self, point: &Point) -> Option<Verdict> {
        let sums = if self.holds() { &mut self.held } else { &mut self.lifted };
        if !self.intervals.is_multiple_of(Self::BLOCK) {
            // Of X·R, not of X.
            sums.load += point.load * point.response_ms;
            sums.load_delay += point.load_delay;
        }
        self.intervals += 1;
        if !self.intervals.is_multiple_of(2 * Self::BLOCK) {
            return None;
        }
        let (held, lifted) = (core::mem::take(&mut self.held), core::mem::take(&mut self.lifted));
        let (y, q) = (lifted.load - held.load, held.load_delay - lifted.load_delay);
        self.errors = [self.errors[0] + y * y, self.errors[1] + (y - q) * (y - q)];
        let pairs = f64::from(self.intervals / (2 * Self::BLOCK));
        let evidence = 0.5 * pairs * libm::log(self.errors[1] / self.errors[0]);
        match () {
            () if evidence > -libm::log(ERROR) => Some(Verdict::Ineffective),
            () if evidence < libm::log(ERROR) => Some(Verdict::Effective),
            () => (pairs >= 2.0 * PATIENCE).then_some(Verdict::Undecided),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    /// The verdict of a trial with twelve clients of 64 KiB in circulation each on saturated storage, whose requests meet the
    /// delay `k` times. Latencies are measured with the relative `noise`; the amount in circulation grows by the part `drift`
    /// in each interval.
    fn trial(k: f64, noise: f64, drift: f64, seed: u64) -> Verdict {
        let mut rng = SplitMix64::new(seed);
        let mut trial = Trial::default();
        let mut circulation = 12.0 * 65_536.0 * 1e3;
        for _ in 1..=1_000 {
            let delay_ms = if trial.holds() { 20.0 } else { 0.0 };
            let response_ms = (circulation / 18e6 - k * delay_ms).max(4.0);
            let load = circulation / (response_ms + k * delay_ms);
            let measured = response_ms * libm::exp(noise * rng.next_normal());
            let point = Point { load, response_ms: measured, load_delay: load * delay_ms };
            if let Some(ended) = trial.take(&point) {
                return ended;
            }
            circulation *= 1.0 + drift;
        }
        panic!("a trial ends");
    }

    #[test]
    fn a_delay_without_effect_is_found_out_in_time() {
        // Reads of an interval scatter by some 30 % where six complete in it.
        let found = (0..2_000).filter(|&seed| trial(0.0, 0.3, 0.0, seed) == Verdict::Ineffective);
        assert!(found.count() >= 1_980);
    }

    #[test]
    fn one_that_is_effective_is_not_ineffective() {
        for (k, drift) in [(1.0, 0.0), (1.0, 0.002), (1.0, -0.002), (2.0, 0.0), (5.0, 0.0)] {
            let runs = (0..5_000).map(|seed| trial(k, 0.3, drift, seed));
            let accused = runs.filter(|&verdict| verdict == Verdict::Ineffective).count();
            assert!(accused <= 5, "k {k}, drift {drift}: {accused} of 5000");
        }
    }

    #[test]
    fn where_nothing_can_be_measured_a_trial_ends_without_a_verdict_against_the_throttle() {
        let mut nonsense = Trial::default();
        let point = Point { load: f64::NAN, ..Point::default() };
        let verdict = (0..1_000).find_map(|_| nonsense.take(&point));
        assert_eq!(verdict, Some(Verdict::Undecided));
    }
}
