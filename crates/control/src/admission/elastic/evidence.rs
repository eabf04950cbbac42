//! What experiments of one kind say together.

use super::meter::Rate;

/// Standard errors from a bound that make an outcome certain.
const CERTAIN: f64 = 1.5;
/// The same for a single comparison, whose own scatter is unknown.
const CERTAIN_ALONE: f64 = 3.0;
/// A change that an experiment of this precision, in units of the bound, does not recommend is not worth more effort.
const CLOSE: f64 = 1.0;
/// Smallest variance of one comparison: drift spoils what looks more precise (0.1 %).
const MIN_VARIANCE: f64 = 1e-6;
/// Standard errors from all before that make a comparison a sign of another time.
const CONTRADICTION: f64 = 4.0;
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

/// A mean of ln(throughput ratio), weighted by inverse variance. Comparisons that disagree by more than their errors
/// explain enlarge the error of the mean.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    comparisons: f64,
    weight: f64,
    sum: f64,
    squares: f64,
}

impl Evidence {
    /// Adds ln(`upper` / `lower`) of the bytes.
    pub(super) fn add(&mut self, lower: Rate, upper: Rate) {
        self.add_ratio(libm::log(upper.rate / lower.rate), lower.variance + upper.variance);
    }

    /// Adds ln(`upper` / `lower`) of the requests.
    pub(super) fn add_requests(&mut self, lower: Rate, upper: Rate) {
        self.add_ratio(libm::log(upper.requests / lower.requests), lower.requests_variance + upper.requests_variance);
    }

    fn add_ratio(&mut self, ratio: f64, variance: f64) {
        let weight = 1.0 / variance.max(MIN_VARIANCE);
        if self.comparisons > 1.5 {
            let error = libm::sqrt(self.variance() + self.excess() / weight);
            if libm::fabs(ratio - self.mean()) > CONTRADICTION * error {
                // What was true before is not any longer.
                *self = Self::default();
            }
        }
        self.comparisons = self.comparisons * MEMORY + 1.0;
        self.weight = self.weight * MEMORY + weight;
        self.sum = self.sum * MEMORY + weight * ratio;
        self.squares = self.squares * MEMORY + weight * ratio * ratio;
    }

    /// Adds another ratio to this one: the reference has moved.
    pub(super) fn shift(&mut self, by: &Self) {
        let (mean, variance) = (self.mean() + by.mean(), by.variance());
        let variance = if self.weight > 0.0 { self.variance() + variance } else { variance };
        self.comparisons = self.comparisons.max(2.0);
        self.weight = 1.0 / variance;
        self.sum = mean * self.weight;
        self.squares = mean * mean * self.weight;
    }

    pub(super) fn mean(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }

    /// The mean less its standard error: nothing when nothing is known.
    pub(super) fn at_least(&self) -> f64 {
        if self.weight > 0.0 { self.mean() - libm::sqrt(self.variance()) } else { 0.0 }
    }

    /// Of the mean.
    fn variance(&self) -> f64 {
        if self.weight <= 0.0 {
            return f64::INFINITY;
        }
        self.excess() / self.weight
    }

    /// By how much comparisons scatter more than their variances say; at least 1.
    fn excess(&self) -> f64 {
        if self.comparisons > 1.5 {
            ((self.squares - self.sum * self.sum / self.weight) / (self.comparisons - 1.0)).max(1.0)
        } else {
            1.0
        }
    }

    /// The mean plus its standard error.
    pub(super) fn at_most(&self) -> f64 {
        self.mean() + libm::sqrt(self.variance())
    }

    /// Whether the ratio may be above the bound: it is not certain to be below.
    pub(super) fn allows(&self, bound: f64) -> bool {
        self.mean() + self.margin() >= bound
    }

    /// What counts as certain, in units of the ratio.
    fn margin(&self) -> f64 {
        let errors = if self.comparisons > 1.5 { CERTAIN } else { CERTAIN_ALONE };
        errors * libm::sqrt(self.variance())
    }

    /// Whether the ratio is above the bound: then move, which takes certainty.
    pub(super) fn is_above(&self, bound: f64) -> Verdict {
        self.verdict(self.mean() - bound, bound)
    }

    /// Whether the ratio is below the bound: then move, which takes certainty.
    pub(super) fn is_below(&self, bound: f64) -> Verdict {
        self.verdict(bound - self.mean(), bound)
    }

    fn verdict(&self, distance: f64, bound: f64) -> Verdict {
        let margin = self.margin();
        if distance > margin {
            Verdict::Move
        } else if distance < 0.0 && (-distance > margin || margin < libm::fabs(bound) * CLOSE) {
            Verdict::Stay
        } else {
            Verdict::Open
        }
    }
}
