//! What experiments of one kind say together.

use super::meter::Rate;

/// Standard errors from a bound that make an outcome certain.
const CERTAIN: f64 = 1.5;
/// An outcome this close to the bound, in units of the bound, counts as reached.
const CLOSE: f64 = 0.25;
/// Smallest variance of one comparison: drift spoils what looks more precise (0.1 %).
const MIN_VARIANCE: f64 = 1e-6;
/// What each new comparison leaves of the weight of those before.
const MEMORY: f64 = 0.95;

/// Where the truth lies with respect to a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Above,
    Below,
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

    pub(super) fn verdict(&self, bound: f64) -> Verdict {
        if self.weight == 0.0 {
            return Verdict::Open;
        }
        let (mean, error) = (self.mean(), 1.0 / libm::sqrt(self.weight));
        if error * CERTAIN < bound * CLOSE {
            if mean > bound { Verdict::Above } else { Verdict::Below }
        } else if mean - CERTAIN * error > bound {
            Verdict::Above
        } else if mean + CERTAIN * error < bound {
            Verdict::Below
        } else {
            Verdict::Open
        }
    }
}
