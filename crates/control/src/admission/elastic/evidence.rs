//! Comparisons of throughput under two budgets, and the verdict on the smaller budget.

use super::{FINEST, SAMPLE, STEP};

/// An answer is certain if this many standard errors do not change it.
const CERTAIN: f64 = 2.0;
/// A verdict is looked for after each round of this many comparisons.
const ROUND: u32 = SAMPLE / STEP as u32;
/// If every comparison shows a loss above this part of the throughput (an octave), two of them are enough for a verdict. A
/// stall of the device is in one of them, and says nothing about the budget.
const HOPELESS: f64 = 1.0 - 1.0 / FINEST;

/// The answer to the question if the smaller of two budgets is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The answer is not certain yet.
    Open,
    /// The measured loss of the smaller budget is below the tolerance, and certainly below twice the tolerance.
    Enough,
    /// The smaller budget loses more than the tolerance, or no answer became certain.
    Costs,
}

/// Throughput with the larger budget and loss by the smaller one, over all comparisons of a question. Each counts by its
/// shortest interval: a stall of the device makes the interval longer that it falls into, and counts alike on both sides.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    pub(super) count: u32,
    /// Number of comparisons that show a loss above [`HOPELESS`].
    hopeless: u32,
    length: f64,
    served: f64,
    lost: f64,
    /// Sum over comparisons of the squared number of lost bytes, for the error of the loss.
    lost_squares: f64,
    products: f64,
    length_squares: f64,
}

impl Evidence {
    /// Adds a comparison of an interval with the smaller budget and of those with the larger one before and after it: each has
    /// a throughput in bytes per ns, and a length in ns.
    pub(super) fn add(&mut self, [before, after]: [(f64, f64); 2], (smaller, length): (f64, f64)) {
        let (larger, length) = (0.5 * (before.0 + after.0), length.min(before.1).min(after.1));
        let lost = (larger - smaller) * length;
        self.count += 1;
        self.hopeless += u32::from(larger - smaller > HOPELESS * larger);
        self.length += length;
        self.served += larger * length;
        self.lost += lost;
        self.lost_squares += lost * lost;
        self.products += lost * length;
        self.length_squares += length * length;
    }

    /// Throughput that the smaller budget loses, as a part of the larger one's throughput; 0 without comparisons, negative for
    /// a gain.
    pub(super) fn loss(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.lost / self.served }
    }

    /// Half the width of the 95 % confidence interval of the loss: Student's t, to a few per cent.
    fn error(&self) -> f64 {
        let slope = self.lost / self.length;
        let residual = self.lost_squares - 2.0 * slope * self.products + slope * slope * self.length_squares;
        let (count, free) = (f64::from(self.count), f64::from(self.count - 1));
        libm::sqrt(residual.max(0.0) * count / free) / self.served * CERTAIN * (1.0 + 2.0 / free)
    }

    /// The verdict by the comparisons so far, one at least. `tolerance`: loss that is tolerated, as a part (0 to 1) of the
    /// throughput.
    pub(super) fn verdict(&self, tolerance: f64) -> Verdict {
        let loss = self.loss();
        match self.error() {
            _ if self.count >= 2 && self.hopeless == self.count => Verdict::Costs,
            _ if !self.is_round() => Verdict::Open,
            error if loss < tolerance && loss + error < 2.0 * tolerance => Verdict::Enough,
            error if loss - error > tolerance || self.count >= SAMPLE => Verdict::Costs,
            _ => Verdict::Open,
        }
    }

    /// True if a round of comparisons is complete, so that the next ones should be longer.
    pub(super) fn is_round(&self) -> bool {
        self.count.is_multiple_of(ROUND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evidence of comparisons of two budgets with the same throughput. Each interval lasts for 10 ms, but the one of number
    /// `stalled`, in which the device stands still for another 500 ms.
    fn beside_a_stall(stalled: u32, comparisons: u32) -> Evidence {
        let interval = |number: u32| if number == stalled { (10.0 / 510.0, 510.0) } else { (1.0, 10.0) };
        let mut evidence = Evidence::default();
        for low in (1..2 * comparisons).step_by(2) {
            evidence.add([interval(low - 1), interval(low + 1)], interval(low));
        }
        evidence
    }

    #[test]
    fn one_stall_answers_no_question() {
        for stalled in 0..=2 * ROUND {
            for comparisons in 1..=ROUND {
                let verdict = beside_a_stall(stalled, comparisons).verdict(0.025);
                assert_eq!(verdict, Verdict::Open, "interval {stalled}, {comparisons} comparisons");
            }
        }
        assert_eq!(beside_a_stall(u32::MAX, ROUND).verdict(0.025), Verdict::Enough);
    }

    #[test]
    fn a_stall_counts_alike_on_both_sides() {
        let [low, high] = [3, 4].map(|stalled| beside_a_stall(stalled, ROUND).lost);
        assert!(low > 0.0 && (low + high).abs() < 1e-9, "{low} and {high}");
    }

    #[test]
    fn two_comparisons_are_enough_for_a_budget_that_loses_most() {
        let mut evidence = Evidence::default();
        for verdict in [Verdict::Open, Verdict::Costs] {
            evidence.add([(1.0, 10.0); 2], (0.4, 12.0));
            assert_eq!(evidence.verdict(0.025), verdict);
        }
    }
}
