//! What experiments of one kind say together.

use super::meter::Rate;

/// Standard errors from a bound that make an outcome certain.
const CERTAIN: f64 = 1.5;
/// A change that an experiment of this precision, in units of the bound, does not recommend is not worth more effort.
const CLOSE: f64 = 0.5;
/// Smallest variance of one comparison: drift spoils what looks more precise (0.1 %).
const MIN_VARIANCE: f64 = 1e-6;
/// What each new comparison leaves of the weight of those before.
const MEMORY: f64 = 0.95;

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Certain enough to change something.
    Move,
    /// Nothing speaks for a change.
    Stay,
    /// Go on.
    Open,
}

/// A mean of ln(throughput ratio), weighted by inverse variance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    weight: f64,
    sum: f64,
}

impl Evidence {
    /// Adds ln(`upper` / `lower`).
    pub(super) fn add(&mut self, lower: Rate, upper: Rate) {
        let weight = 1.0 / (lower.variance + upper.variance).max(MIN_VARIANCE);
        self.weight = self.weight * MEMORY + weight;
        self.sum = self.sum * MEMORY + weight * libm::log(upper.rate / lower.rate);
    }

    /// Adds another ratio to this one: the reference has moved.
    pub(super) fn shift(&mut self, by: &Self) {
        let mean = self.mean() + by.mean();
        self.weight = if self.weight > 0.0 { 1.0 / (1.0 / self.weight + 1.0 / by.weight) } else { by.weight };
        self.sum = mean * self.weight;
    }

    pub(super) fn mean(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }

    /// Whether the ratio is above the bound: then move, which takes certainty.
    pub(super) fn is_above(&self, bound: f64) -> Verdict {
        let (distance, error) = (self.mean() - bound, self.error());
        if distance > CERTAIN * error {
            Verdict::Move
        } else if distance < 0.0 && (-distance > CERTAIN * error || error < bound * CLOSE) {
            Verdict::Stay
        } else {
            Verdict::Open
        }
    }

    /// Whether the ratio is below the bound: then move, which takes certainty.
    pub(super) fn is_below(&self, bound: f64) -> Verdict {
        let (distance, error) = (bound - self.mean(), self.error());
        if distance > CERTAIN * error {
            Verdict::Move
        } else if distance < 0.0 && (-distance > CERTAIN * error || error < libm::fabs(bound) * CLOSE) {
            Verdict::Stay
        } else {
            Verdict::Open
        }
    }

    fn error(&self) -> f64 {
        if self.weight > 0.0 { 1.0 / libm::sqrt(self.weight) } else { f64::INFINITY }
    }
}
