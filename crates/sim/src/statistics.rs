//! Statistics over several seeds.

/// Mean of independent values, with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Arithmetic mean; NaN without values.
    pub mean: f64,
    /// Half width of the 95 % confidence interval of the mean, by Student's t distribution; NaN for fewer than two values.
    pub half_width: f64,
}

/// 97.5 % quantiles of Student's t distribution with 1 to 30 degrees of freedom.
const T_975: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The 97.5 % quantile of Student's t distribution for any number of degrees of freedom. Beyond [`T_975`] an approximation is
/// used, which tends to the quantile of the normal distribution as 1/degrees.
fn t_975(degrees: usize) -> f64 {
    match T_975.get(degrees.wrapping_sub(1)) {
        Some(&quantile) => quantile,
        None => 1.960 + (T_975[29] - 1.960) * 30.0 / degrees as f64,
    }
}

impl Estimate {
    /// The mean of `values` with its confidence interval. O(n).
    pub fn of(values: &[f64]) -> Self {
        let (mean, error) = mean_and_error(values);
        Self { mean, half_width: if values.len() < 2 { f64::NAN } else { t_975(values.len() - 1) * error } }
    }

    /// The mean, with its confidence interval, of `figure` over all `items`.
    pub fn over<T>(items: impl IntoIterator<Item = T>, figure: impl Fn(T) -> f64) -> Self {
        Self::of(&items.into_iter().map(figure).collect::<Vec<_>>())
    }
}

/// The mean of `values`, and the mean's standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

/// 99.5 % quantiles of Student's t distribution with 1 to 9 degrees of freedom.
const T_995: [f64; 9] = [63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250];

/// Lower and upper end of the 99 % confidence interval of the mean of independent values, by Student's t distribution. The
/// interval is unbounded for fewer than two values, and for more than ten. O(n).
pub fn interval_99(values: &[f64]) -> (f64, f64) {
    let Some(quantile) = T_995.get(values.len().wrapping_sub(2)) else { return (f64::NEG_INFINITY, f64::INFINITY) };
    let (mean, error) = mean_and_error(values);
    (mean - quantile * error, mean + quantile * error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_control::rng::SplitMix64;

    #[test]
    fn a_textbook_sample() {
        // Mean 5, standard deviation 2.138, n = 8: 2.365 · 2.138 / √8 = 1.788.
        let estimate = Estimate::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(estimate.mean, 5.0);
        assert!((estimate.half_width - 1.788).abs() < 1e-3, "{estimate:?}");
        assert!(Estimate::of(&[1.0]).half_width.is_nan() && Estimate::of(&[]).mean.is_nan());
        assert!(t_975(31) < t_975(30) && t_975(1_000_000) < 1.961);
    }

    #[test]
    fn ninety_five_of_a_hundred_intervals_hold_the_mean() {
        // Sums of twelve uniform values are nearly normal with mean 6.
        let mut rng = SplitMix64::new(1);
        let mut uniform = || rng.next_below(1 << 30) as f64 / f64::from(1 << 30);
        let trials = 2000;
        let held = (0..trials).filter(|_| {
            let values: Vec<f64> = (0..5).map(|_| (0..12).map(|_| uniform()).sum()).collect();
            let estimate = Estimate::of(&values);
            (estimate.mean - 6.0).abs() <= estimate.half_width
        });
        let share = held.count() as f64 / f64::from(trials);
        assert!((0.935..0.965).contains(&share), "{share}");
    }
}
