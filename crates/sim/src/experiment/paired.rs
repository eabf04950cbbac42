//! Confidence intervals of the differences between methods, paired by seed.
//!
//! Runs of two methods with one seed have the same device, load and random numbers, so their difference varies less from seed to
//! seed than either figure. The interval of the mean difference, 95 % by Student's t distribution, contains 0 if the methods
//! cannot be told apart.

use super::{End, Row};
use crate::statistics::Estimate;

/// One method's figures of a metric, one for each seed, in the order of the seeds.
pub(super) type Figures = Vec<f64>;

/// The ends of the mean's interval; `None` for fewer than two values, or if a value is not finite.
fn interval(values: &[f64]) -> Option<[f64; 2]> {
    let Estimate { mean, half_width } = Estimate::of(values);
    let ends = [mean - half_width, mean + half_width];
    ends.iter().all(|end| end.is_finite()).then_some(ends)
}

/// The ends of the interval of the mean difference of `ours` from `other`, over the seeds that both have.
fn difference(ours: &[f64], other: &[f64]) -> Option<[f64; 2]> {
    interval(&ours.iter().zip(other).map(|(ours, other)| ours - other).collect::<Vec<_>>())
}

/// The least that the mean difference of `ours` from `other` may be: the lower end of its interval, or the mean difference where
/// there is no interval. At most 0: `ours` is not above `other`, or the methods are tied.
pub(super) fn at_least(ours: &[f64], other: &[f64]) -> f64 {
    let mean = || Estimate::of(&ours.iter().zip(other).map(|(ours, other)| ours - other).collect::<Vec<_>>()).mean;
    difference(ours, other).map_or_else(mean, |[low, _]| low)
}

/// The ratios of `ours` to `reference`, over the seeds that both have. Their mean is the ratio of the two means. They vary as
/// this ratio does (it is linearised), so that its interval has the error of the reference, too. The ratio itself for each seed
/// if it or the reference is not finite, or the reference not above 0.
pub(super) fn ratios(ours: &[f64], reference: &[f64]) -> Figures {
    let pairs: Vec<(f64, f64)> = ours.iter().copied().zip(reference.iter().copied()).collect();
    let is = Estimate::over(&pairs, |pair| pair.0).mean;
    let was = Estimate::over(&pairs, |pair| pair.1).mean;
    let ratio = is / was.max(f64::MIN_POSITIVE);
    if was <= 0.0 || !was.is_finite() || !ratio.is_finite() {
        return vec![ratio; pairs.len()];
    }
    pairs.iter().map(|(ours, reference)| ratio + (ours - ratio * reference) / was).collect()
}

/// The rows of a metric, based on `row`: those of [`Row::columns`] with the means over the seeds and, after them, the same
/// rows with the ends of intervals. Methods with fewer seeds have the first ones. No ends with a single seed.
pub(super) fn columns(
    row: &Row,
    [baseline, faithful, ours]: [Option<Figures>; 3],
    others: impl IntoIterator<Item = (String, Figures)>,
) -> Vec<Row> {
    let others: Vec<(String, Figures)> = others.into_iter().collect();
    let estimate = |figures: &Option<Figures>| figures.as_deref().map(Estimate::of);
    let means = others.iter().map(|(method, figures)| (method.clone(), Some(Estimate::of(figures).mean)));
    let mut rows = row.columns([&baseline, &faithful, &ours].map(estimate), means);
    let Some(ours) = ours else { return rows };
    let Some(own) = interval(&ours) else { return rows };
    let from = |figures: Option<Figures>| figures.and_then(|figures| difference(&ours, &figures));
    let [from_baseline, from_faithful] = [baseline, faithful].map(from);
    for end in End::ALL {
        let at = |ends: Option<[f64; 2]>| ends.map(|ends| ends[end as usize]);
        let blank = Row { end: Some(end), bar: None, paper: None, ..row.clone() };
        rows.push(Row {
            baseline: at(from_baseline),
            faithful: at(from_faithful),
            evenkeel: Some(own[end as usize]),
            ..blank.clone()
        });
        rows.extend(others.iter().map(|(method, figures)| Row {
            method: Some(method.clone()),
            baseline: at(difference(&ours, figures)),
            ..blank.clone()
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Better;
    use evenkeel_control::rng::SplitMix64;

    fn row() -> Row {
        Row { bar: Some(1.0), paper: Some(3.0), ..Row::new("case", "light_p99_ms", "ms", Better::Lower) }
    }

    #[test]
    fn a_difference_that_all_seeds_share_is_certain_although_figures_vary() {
        let other = [10.0, 30.0, 20.0, 50.0];
        let ours = other.map(|figure| figure - 2.0);
        let wbt = [("wbt".to_owned(), other[..3].to_vec())];
        let rows = columns(&row(), [Some(other.to_vec()), None, Some(ours.to_vec())], wbt);
        let find = |name: &str| rows.iter().find(|row| row.full_metric() == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(rows.len(), 6);
        let (main, low, high) = (find("light_p99_ms"), find("light_p99_ms_low"), find("light_p99_ms_high"));
        assert_eq!((main.baseline, main.evenkeel, main.bar), (Some(27.5), Some(25.5), Some(1.0)));
        assert_eq!((low.baseline, high.baseline, low.faithful), (Some(-2.0), Some(-2.0), None));
        assert!(low.evenkeel < main.evenkeel && main.evenkeel < high.evenkeel, "its own mean is not certain");
        assert_eq!((low.bar, low.paper, low.is_met()), (None, None, None), "ends are not judged");
        let ends = ["light_p99_ms_wbt_low", "light_p99_ms_wbt_high"].map(|name| find(name).baseline);
        assert_eq!(ends, [Some(-2.0); 2], "over the three seeds that both have");
        assert_eq!(find("light_p99_ms_wbt").baseline, Some(20.0));
    }

    #[test]
    fn a_tie_is_not_above_and_a_difference_that_all_seeds_share_is() {
        assert!(at_least(&[3.0, 5.0, 1.0], &[2.0, 3.0, 3.0]) < 0.0);
        assert_eq!(at_least(&[3.0, 5.0], &[2.0, 4.0]), 1.0);
        assert_eq!(at_least(&[3.0, 3.0], &[3.0, 3.0]), 0.0);
        assert_eq!(at_least(&[3.0], &[2.5]), 0.5);
    }

    #[test]
    fn the_interval_of_a_ratio_has_the_error_of_the_reference() {
        let (ours, reference) = ([2.0, 4.0, 9.0], [4.0, 8.0, 18.0]);
        assert_eq!(ratios(&ours, &reference), [0.5; 3], "one ratio in all seeds is certain, however much both vary");
        assert_eq!(ratios(&ours[..2], &reference), [0.5; 2], "over the seeds that both have");
        let uncertain = ratios(&[6.0; 3], &[1.0, 2.0, 3.0]);
        assert_eq!(uncertain, [4.5, 3.0, 1.5]);
        assert_eq!(ratios(&[1.0, f64::INFINITY], &[1.0, 1.0]), [f64::INFINITY; 2]);
        assert_eq!(ratios(&[1.0, 2.0], &[1.0, f64::INFINITY]), [0.0; 2], "better than a reference that starves");
        assert!(ratios(&[f64::INFINITY], &[f64::INFINITY])[0].is_nan());
        assert_eq!((ratios(&[0.0], &[0.0]), ratios(&[], &[1.0])), (vec![0.0], Vec::new()));
    }

    #[test]
    fn nineteen_of_twenty_intervals_have_the_true_ratio() {
        let mut rng = SplitMix64::new(9);
        let held = (0..1_000).filter(|_| {
            let mut drawn = |mean: f64| (0..30).map(|_| mean + 0.2 * rng.next_normal()).collect::<Vec<_>>();
            let (ours, reference) = (drawn(1.0), drawn(2.0));
            let [low, high] = interval(&ratios(&ours, &reference)).expect("an interval");
            (low..=high).contains(&0.5)
        });
        let held = held.count();
        assert!((920..980).contains(&held), "{held}");
    }

    #[test]
    fn one_seed_has_no_interval_and_an_infinite_figure_neither() {
        assert_eq!(columns(&row(), [Some(vec![1.0]), None, Some(vec![2.0])], []).len(), 1);
        assert_eq!(columns(&row(), [None, None, Some(vec![2.0, f64::INFINITY])], []).len(), 1);
        assert_eq!(columns(&row(), [Some(vec![1.0, 2.0]), None, None], []).len(), 1);
        let rows = columns(&row(), [Some(vec![1.0, f64::NAN]), None, Some(vec![2.0, 3.0])], []);
        assert_eq!((rows.len(), rows[1].baseline), (3, None));
    }

    #[test]
    fn nineteen_of_twenty_intervals_have_the_true_difference() {
        let mut rng = SplitMix64::new(7);
        let held = (0..1_000).filter(|_| {
            let other: Vec<f64> = (0..30).map(|_| 100.0 * rng.next_normal()).collect();
            let ours: Vec<f64> = other.iter().map(|other| other + 3.0 + rng.next_normal()).collect();
            let [low, high] = difference(&ours, &other).expect("an interval");
            (low..=high).contains(&3.0)
        });
        let held = held.count();
        assert!((925..975).contains(&held), "{held}");
    }
}
