//! Compares predicted figures with real ones.

use super::recorded::FIGURES;
use super::{Measured, Tenants};
use crate::check::figures::Spread;

/// Real figures of two settings whose ratio is closer to 1 than this do not differ.
const DIFFERS: f64 = 0.10;

/// The error of a predicted figure.
#[derive(Debug, PartialEq)]
pub(super) struct Off {
    /// Place of the setting.
    pub(super) setting: usize,
    /// The tenant.
    pub(super) tenant: String,
    /// Place of the figure in [`FIGURES`].
    pub(super) figure: usize,
    /// The error in percent of the real figure.
    pub(super) percent: f64,
}

/// The errors of predictions.
#[derive(Debug, PartialEq)]
pub(super) struct Errors {
    /// Median error over settings and tenants of each of [`FIGURES`], in percent of the real figure.
    pub(super) of: [f64; 3],
    /// Share of the pairs of settings, tenant by tenant and figure by figure, that are predicted in the real order, in percent;
    /// `None` if no pair differs.
    pub(super) ranking: Option<f64>,
    /// Number of such pairs.
    pub(super) pairs: u64,
    /// The largest error; `None` without figures.
    pub(super) worst: Option<Off>,
}

impl Errors {
    /// The errors of `predicted`, which has the figures of the same settings as `real`, in the same order.
    pub(super) fn of(predicted: &[Tenants], real: &[Tenants]) -> Self {
        let mut all: Vec<Off> = Vec::new();
        for (setting, (predicted, real)) in predicted.iter().zip(real).enumerate() {
            for (tenant, real) in real {
                for (figure, real) in real.figures.into_iter().enumerate() {
                    let off = |one: &Measured| 100.0 * (one.figures[figure] / real - 1.0).abs();
                    // A tenant without a prediction is wrong by all.
                    let percent = predicted.get(tenant).map_or(100.0, off);
                    all.push(Off { setting, tenant: tenant.clone(), figure, percent });
                }
            }
        }
        let of = std::array::from_fn(|figure| {
            let errors = all.iter().filter(|off| off.figure == figure).map(|off| off.percent);
            Spread::of(errors).map_or(f64::NAN, |spread| spread.median)
        });
        let worst = all.into_iter().max_by(|a, b| a.percent.total_cmp(&b.percent));
        let (mut pairs, mut right) = (0_u64, 0_u64);
        for (place, first) in real.iter().enumerate() {
            for (later, second) in real.iter().enumerate().skip(place + 1) {
                for (tenant, first) in first {
                    let Some(second) = second.get(tenant) else { continue };
                    for figure in 0..FIGURES.len() {
                        let (a, b) = (first.figures[figure], second.figures[figure]);
                        if (a - b).abs() <= DIFFERS * a.min(b) {
                            continue;
                        }
                        pairs += 1;
                        let at = |place: usize| predicted.get(place)?.get(tenant).map(|one| one.figures[figure]);
                        right += u64::from(at(place).zip(at(later)).is_some_and(|(x, y)| (x < y) == (a < b)));
                    }
                }
            }
        }
        let ranking = (pairs > 0).then(|| 100.0 * right as f64 / pairs as f64);
        Self { of, ranking, pairs, worst }
    }
}

/// The scatter of each of [`FIGURES`] between the rounds of real runs of the same settings: the median over settings and tenants
/// of the mean distance from the median of the rounds, in percent of this median. 0 with less than two rounds.
pub(super) fn scatter(rounds: &[Vec<Tenants>]) -> [f64; 3] {
    let Some(first) = rounds.first().filter(|_| rounds.len() > 1) else { return [0.0; 3] };
    std::array::from_fn(|figure| {
        let mut all = Vec::new();
        for (setting, tenants) in first.iter().enumerate() {
            for tenant in tenants.keys() {
                let one = |round: &Vec<Tenants>| Some(round.get(setting)?.get(tenant)?.figures[figure]);
                let values: Vec<f64> = rounds.iter().filter_map(one).collect();
                if let Some(spread) = Spread::of(values.iter().copied()) {
                    let apart: f64 = values.iter().map(|value| (value / spread.median - 1.0).abs()).sum();
                    all.push(100.0 * apart / values.len() as f64);
                }
            }
        }
        Spread::of(all).map_or(0.0, |spread| spread.median)
    })
}

/// The predicted and real figures of each tenant, a line each.
pub(super) fn lines(predicted: &Tenants, real: &Tenants) -> Vec<String> {
    let line = |(tenant, real): (&String, &Measured)| {
        let cell = |figure: usize| {
            let predicted = predicted.get(tenant).map_or(f64::NAN, |one| one.figures[figure]);
            format!("{} {predicted:.2} predicted, {:.2} measured", FIGURES[figure], real.figures[figure])
        };
        format!("{tenant}: {}", (0..FIGURES.len()).map(cell).collect::<Vec<_>>().join("; "))
    };
    real.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(all: &[(&str, [f64; 3])]) -> Tenants {
        let one =
            |(name, figures): &(&str, [f64; 3])| ((*name).to_owned(), Measured { requests: 1, figures: *figures });
        all.iter().map(one).collect()
    }

    #[test]
    fn errors_are_medians_in_percent_of_the_real_figures() {
        let real = [tenants(&[("a", [100.0, 10.0, 20.0]), ("b", [10.0, 1.0, 2.0]), ("c", [1.0, 1.0, 1.0])])];
        let predicted = [tenants(&[("a", [110.0, 8.0, 20.0]), ("b", [10.0, 1.1, 2.0]), ("c", [1.5, 1.0, 1.0])])];
        let Errors { of: [throughput, p50, p99], ranking, pairs, worst } = Errors::of(&predicted, &real);
        assert!((throughput - 10.0).abs() < 1e-9 && (p50 - 10.0).abs() < 1e-9, "{throughput} {p50}");
        assert_eq!(p99, 0.0);
        assert_eq!((ranking, pairs), (None, 0));
        let worst = worst.unwrap();
        assert_eq!((worst.setting, worst.tenant.as_str(), worst.figure), (0, "c", 0));
        assert!((worst.percent - 50.0).abs() < 1e-9, "{worst:?}");
        assert_eq!(lines(&predicted[0], &real[0]).len(), 3);
        // A missing tenant is no good prediction.
        assert_eq!(Errors::of(&[Tenants::new()], &real).of, [100.0; 3]);
        assert!(Errors::of(&[], &[]).of[0].is_nan());
    }

    #[test]
    fn the_scatter_of_rounds_is_a_median_over_cases() {
        let round = |a: f64, b: f64, c: f64| -> Vec<Tenants> {
            vec![tenants(&[("a", [a, 1.0, 1.0]), ("b", [b, 1.0, 1.0])]), tenants(&[("a", [c, 1.0, 1.0])])]
        };
        let rounds = [round(100.0, 10.0, 3.0), round(110.0, 10.0, 1.0), round(90.0, 10.0, 2.0)];
        // By a fifteenth, not at all, and by a third.
        let [throughput, p50, p99] = scatter(&rounds);
        assert!((throughput - 20.0 / 3.0).abs() < 1e-9, "{throughput}");
        assert_eq!((p50, p99), (0.0, 0.0));
        assert_eq!((scatter(&rounds[..1]), scatter(&[])), ([0.0; 3], [0.0; 3]));
    }

    #[test]
    fn the_order_of_settings_counts_where_they_differ() {
        let real = [tenants(&[("a", [100.0, 10.0, 40.0])]), tenants(&[("a", [105.0, 20.0, 10.0])])];
        let right = [tenants(&[("a", [100.0, 1.0, 9.0])]), tenants(&[("a", [90.0, 2.0, 8.0])])];
        assert_eq!((Errors::of(&right, &real).ranking, Errors::of(&right, &real).pairs), (Some(100.0), 2));
        let half = [tenants(&[("a", [100.0, 3.0, 9.0])]), tenants(&[("a", [90.0, 2.0, 8.0])])];
        assert_eq!(Errors::of(&half, &real).ranking, Some(50.0));
    }
}
