//! Comparisons of two budgets, and when they are enough.

use super::SAMPLE;

/// Standard errors that make an answer certain.
const CERTAIN: f64 = 2.0;
/// Number of comparisons of one length after which the answer is looked for.
pub(super) const ROUND: u32 = 4;
/// A loss above this part of the throughput needs no more than two comparisons.
const HOPELESS: f64 = 0.5;

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not certain yet.
    Open,
    /// The smaller budget seems to lose less than is tolerated, and certainly loses less than twice that.
    Enough,
    /// The smaller budget loses more than is tolerated, or no answer became certain.
    Costs,
}

/// The smaller budget's loss and the larger one's throughput, over all comparisons; each counts by its length.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    count: u32,
    length: f64,
    served: f64,
    lost: f64,
    /// Sums of squares and products of what was lost and of the length, for the error of their ratio.
    lost_squares: f64,
    products: f64,
    length_squares: f64,
}

impl Evidence {
    /// True if the next comparison is the second one.
    pub(super) fn is_second(&self) -> bool {
        self.count == 1
    }

    /// Adds a comparison: the throughputs with the larger and the smaller budget over a time `length`.
    pub(super) fn add(&mut self, larger: f64, smaller: f64, length: f64) {
        let lost = (larger - smaller) * length;
        self.count += 1;
        self.length += length;
        self.served += larger * length;
        self.lost += lost;
        self.lost_squares += lost * lost;
        self.products += lost * length;
        self.length_squares += length * length;
    }

    /// The part of the larger budget's throughput that the smaller one loses; 0 without comparisons.
    pub(super) fn loss(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.lost / self.served }
    }

    /// Half the width of the interval in which the loss lies with 95 % certainty: Student's, to a few per cent.
    fn error(&self) -> f64 {
        let slope = self.lost / self.length;
        let residual = self.lost_squares - 2.0 * slope * self.products + slope * slope * self.length_squares;
        let (count, free) = (f64::from(self.count), f64::from(self.count - 1));
        libm::sqrt(residual.max(0.0) * count / free) / self.served * CERTAIN * (1.0 + 2.0 / free)
    }

    /// The answer, when a loss of `tolerance` is tolerated.
    pub(super) fn verdict(&self, tolerance: f64) -> Verdict {
        let loss = self.loss();
        if self.count >= 2 && loss > HOPELESS {
            return Verdict::Costs;
        }
        if self.count == 0 || !self.count.is_multiple_of(ROUND) {
            return Verdict::Open;
        }
        match self.error() {
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
