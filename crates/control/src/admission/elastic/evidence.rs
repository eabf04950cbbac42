//! What experiments of one kind say together.

/// Standard errors from a bound that make an outcome certain.
const CERTAIN: f64 = 1.5;
/// The same for a single comparison, whose own scatter is unknown.
const CERTAIN_ALONE: f64 = 3.0;
/// A change that an experiment of this precision, in units of the bound, does not recommend is not worth more effort.
const CLOSE: f64 = 1.0;
/// A reduction that seems free is tried at this precision: what it costs if that was wrong is little, and seen later.
const CLOSE_ENOUGH: f64 = 1.5;
/// Smallest variance of one comparison: drift spoils what looks more precise (0.1 %).
const MIN_VARIANCE: f64 = 1e-6;
/// Standard errors from all before that make a comparison a sign of another time.
const CONTRADICTION: f64 = 4.0;
/// What each new comparison leaves of the weight of those before.
const MEMORY: f64 = 0.95;
/// The same for what they say lately.
const RECENT_MEMORY: f64 = 0.7;

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
    /// Of the latest ones, and not of what was only guessed: weight and weighted sum.
    recent: [f64; 2],
}

impl Evidence {
    /// Adds a comparison with its variance.
    pub(super) fn add(&mut self, ratio: f64, variance: f64) {
        let weight = 1.0 / variance.max(MIN_VARIANCE);
        if self.comparisons > 1.5 {
            let error = libm::sqrt(self.variance() + self.excess() / weight);
            if libm::fabs(ratio - self.mean()) > CONTRADICTION * error {
                // What was true before is not any longer.
                *self = Self::default();
            }
        }
        self.recent = [self.recent[0] * RECENT_MEMORY + weight, self.recent[1] * RECENT_MEMORY + weight * ratio];
        let [recent_weight, recent_sum] = self.recent;
        let off = recent_sum / recent_weight - self.mean();
        if self.comparisons > 1.5 && libm::fabs(off) > CONTRADICTION * libm::sqrt(self.variance() + 1.0 / recent_weight)
        {
            // Each alone may be chance; together they are not.
            *self = Self { recent: self.recent, ..Self::default() };
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
        self.recent = [0.0; 2];
        self.weight = 1.0 / variance;
        self.sum = mean * self.weight;
        self.squares = mean * mean * self.weight;
    }

    pub(super) fn mean(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }

    /// Makes the mean no more certain than `error`.
    pub(super) fn doubt(&mut self, error: f64) {
        if !self.is_empty() {
            let mean = self.mean();
            self.recent = [0.0; 2];
            self.comparisons = 2.0;
            self.weight = 1.0 / self.variance().max(error * error);
            (self.sum, self.squares) = (mean * self.weight, mean * mean * self.weight);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.weight <= 0.0
    }

    /// Standard error of the mean.
    pub(super) fn error(&self) -> f64 {
        libm::sqrt(self.variance())
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

    /// Whether the ratio may be above the bound (`sign` 1) or below it (-1): the opposite is not certain.
    pub(super) fn allows(&self, bound: f64, sign: f64) -> bool {
        (self.mean() - bound) * sign + self.margin() >= 0.0
    }

    /// What counts as certain, in units of the ratio.
    fn margin(&self) -> f64 {
        let errors = if self.comparisons > 1.5 { CERTAIN } else { CERTAIN_ALONE };
        errors * libm::sqrt(self.variance())
    }

    /// Whether the ratio is above the bound (`sign` 1) or below it (-1): then move, which takes certainty.
    /// `hasty`: or if it seems so and is as good as certain.
    pub(super) fn verdict(&self, bound: f64, sign: f64, hasty: bool) -> Verdict {
        let (distance, margin) = ((self.mean() - bound) * sign, self.margin());
        if distance > margin || (hasty && distance > 0.0 && margin < bound * CLOSE_ENOUGH) {
            Verdict::Move
        } else if distance < 0.0 && (-distance > margin || margin < libm::fabs(bound) * CLOSE) {
            Verdict::Stay
        } else {
            Verdict::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imprecise_comparisons_that_agree_outweigh_a_precise_guess_from_before() {
        let mut evidence = Evidence::default();
        (0..4).for_each(|_| evidence.add(0.0, 1e-4));
        evidence.doubt(0.03);
        // Each alone lies 3 of its errors from the guess, which is no contradiction.
        (0..6).for_each(|_| evidence.add(0.75, 0.0625));
        assert!(evidence.mean() > 0.7, "{}", evidence.mean());
        // A single one may be chance.
        let mut evidence = Evidence::default();
        (0..4).for_each(|_| evidence.add(0.0, 1e-4));
        evidence.doubt(0.03);
        evidence.add(0.75, 0.0625);
        assert!(evidence.mean() < 0.05, "{}", evidence.mean());
    }
}
