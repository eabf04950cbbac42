//! Figures of repeated runs.

use serde::Serialize;

/// Median and range of a figure over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Middle value; of an even number of rounds the mean of the two in the middle.
    pub(crate) median: f64,
    /// Smallest value.
    pub(crate) min: f64,
    /// Largest value.
    pub(crate) max: f64,
}

impl Spread {
    /// Of at least one finite value; `None` without any.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self { median, min, max })
    }

    /// Of the quotient round by round: what disturbs a round disturbs both sides of it.
    pub(crate) fn of_ratio(above: &[f64], below: &[f64]) -> Option<Self> {
        Self::of(above.iter().zip(below).map(|(a, b)| a / b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_paired_ratios() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([]), None);
        let ratio = Spread::of_ratio(&[10.0, 40.0, 1.0], &[5.0, 10.0, 0.0]).unwrap();
        assert_eq!((ratio.min, ratio.max), (2.0, 4.0), "a round without a figure has no ratio");
    }
}
