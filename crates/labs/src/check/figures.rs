//! Figures that the steps of a lab measure, and the limits by which steps pass or fail.
//!
//! A figure has two limits. `sure` follows from the lab's construction: only a broken mechanism crosses it, so a single
//! measurement beyond it fails the step. `bound` is the bar for accuracy, which one measurement may miss by chance: the median
//! of several repeats must meet it. If there is only one measurement, the bar is only printed.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Serialize;

/// Number of times that a step which measures figures is run with `--full`.
pub(crate) const REPEATS: u64 = 5;

/// The side of its limits on which a figure must lie: the sign of the comparison, and the comparison, which is false for NaN.
type Side = (&'static str, fn(&f64, &f64) -> bool);
const AT_MOST: Side = ("<=", f64::le);
const AT_LEAST: Side = (">=", f64::ge);

/// A figure, with its value in each repeat of the step.
#[derive(Debug, Clone)]
struct Figure {
    name: String,
    side: Side,
    bound: f64,
    values: Vec<f64>,
}

impl Figure {
    fn median(&self) -> f64 {
        Spread::of(self.values.iter().copied()).map_or(f64::NAN, |spread| spread.median)
    }

    fn is_met(&self) -> bool {
        (self.side.1)(&self.median(), &self.bound)
    }

    /// The figure as a line of text: `settled_ms 17.70 (bar <= 23.00, met)`, with all values if there are several.
    fn line(&self) -> String {
        let Self { name, side: (sign, _), bound, values } = self;
        let of = match &values[..] {
            [_] => String::new(),
            several => {
                let several: Vec<String> = several.iter().map(|value| format!("{value:.2}")).collect();
                format!(", median of {}", several.join(" "))
            }
        };
        let verdict = if self.is_met() { "met" } else { "MISSED" };
        format!("{name} {:.2}{of} (bar {sign} {bound:.2}, {verdict})", self.median())
    }
}

/// The figures of one step, over all its repeats.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    figures: Vec<Figure>,
    /// Values that have no limit, by name, for a report.
    aside: BTreeMap<String, Vec<f64>>,
    /// Measurements beyond their limit `sure`, as text.
    broken: Vec<String>,
}

impl Figures {
    /// Records a figure that must be small: at most `sure` in every repeat, and at most `bound` in the median.
    pub(crate) fn at_most(&mut self, name: &str, value: f64, sure: f64, bound: f64) {
        self.take(name, AT_MOST, value, sure, bound);
    }

    /// Records a figure that must be large: at least `sure` in every repeat, and at least `bound` in the median.
    pub(crate) fn at_least(&mut self, name: &str, value: f64, sure: f64, bound: f64) {
        self.take(name, AT_LEAST, value, sure, bound);
    }

    /// Records a value without limits, which only [`Self::median`] returns.
    pub(crate) fn aside(&mut self, name: &str, value: f64) {
        self.aside.entry(name.to_owned()).or_default().push(value);
    }

    fn take(&mut self, name: &str, side: Side, value: f64, sure: f64, bound: f64) {
        let (sign, holds) = side;
        if !holds(&value, &sure) {
            self.broken.push(format!("{name} {value:.2} is not {sign} {sure:.2}"));
        }
        match self.figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.values.push(value),
            None => self.figures.push(Figure { name: name.to_owned(), side, bound, values: vec![value] }),
        }
    }

    /// Runs a step `repeats` times, even after a failure, but only once if it measures no figures. Returns the first failure,
    /// or the last result if no run fails.
    pub(crate) fn collect(
        &mut self,
        repeats: u64,
        mut step: impl FnMut(&mut Self) -> Result<String>,
    ) -> Result<String> {
        let mut outcome = Ok(String::new());
        for repeat in 1..=repeats {
            let one = step(self);
            if repeats > 1 {
                println!("lab: repeat {repeat} of {repeats}: {}", told(&one));
            }
            // The first failure stays.
            outcome = outcome.and(one);
            if self.figures.is_empty() {
                break;
            }
        }
        self.judge(repeats, outcome)
    }

    /// The outcome of a step that was run `repeats` times and gave `outcome`: a failure if a measurement is beyond its limit
    /// `sure`, or if, with several repeats, a median misses its bar.
    pub(crate) fn judge(&self, repeats: u64, outcome: Result<String>) -> Result<String> {
        self.judge_by(repeats > 1, outcome)
    }

    /// The outcome of a step that gave `outcome`: a failure if a measurement is beyond its limit `sure`, or if `bars` decide and
    /// a median misses its bar.
    pub(crate) fn judge_by(&self, bars: bool, outcome: Result<String>) -> Result<String> {
        let detail = outcome?;
        ensure!(self.broken.is_empty(), "broken: {}; {detail}", self.broken.join(", "));
        let missed: Vec<String> = self.figures.iter().filter(|figure| !figure.is_met()).map(Figure::line).collect();
        ensure!(!bars || missed.is_empty(), "{}; {detail}", missed.join("; "));
        Ok(detail)
    }

    /// The median of the figure with this name over the repeats; `None` if it was not measured.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        let aside = || Spread::of(self.aside.get(name)?.iter().copied()).map(|spread| spread.median);
        self.figures.iter().find(|figure| figure.name == name).map(Figure::median).or_else(aside)
    }

    /// Measurements beyond their limit `sure`, each as text with the limit.
    pub(crate) fn broken(&self) -> &[String] {
        &self.broken
    }

    /// Names of the figures whose median misses its bar.
    pub(crate) fn missed(&self) -> Vec<String> {
        self.figures.iter().filter(|figure| !figure.is_met()).map(|figure| figure.name.clone()).collect()
    }

    /// A line of text for each figure.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.figures.iter().map(Figure::line).collect()
    }
}

/// The outcome of a step as one line of text.
pub(crate) fn told(outcome: &Result<String>) -> String {
    match outcome {
        Ok(detail) => detail.clone(),
        Err(e) => format!("{e:#}").replace('\n', " "),
    }
}

/// Median and range of a figure over several rounds of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Median; for an even number of rounds the mean of the two middle values.
    pub(crate) median: f64,
    /// Smallest value.
    pub(crate) min: f64,
    /// Largest value.
    pub(crate) max: f64,
}

impl Spread {
    /// Median and range of the finite values; `None` if there are none.
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

    /// Median and range of `above` divided by `below`, taken round by round, because a disturbance affects both figures of a
    /// round.
    pub(crate) fn of_ratio(above: &[f64], below: &[f64]) -> Option<Self> {
        Self::of(above.iter().zip(below).map(|(a, b)| a / b))
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    /// Runs a step that measures one of `values` in each repeat, with 10 as `bound` and 20 as `sure`. Returns the figures, true
    /// if the step passed, and the number of runs.
    fn taken(values: &[f64]) -> (Figures, bool, usize) {
        let (mut figures, mut times) = (Figures::default(), 0);
        let outcome = figures.collect(values.len() as u64, |figures| {
            times += 1;
            figures.at_most("wait_ms", values[times - 1], 20.0, 10.0);
            Ok(String::new())
        });
        (figures, outcome.is_ok(), times)
    }

    #[test]
    fn the_median_of_the_repeats_decides() {
        let (figures, passed, times) = taken(&[9.0, 19.0, 8.0, 11.0, 7.0]);
        assert!(passed && times == 5);
        assert_eq!(figures.lines(), ["wait_ms 9.00, median of 9.00 19.00 8.00 11.00 7.00 (bar <= 10.00, met)"]);
        assert!(!taken(&[9.0, 19.0, 8.0, 11.0, 12.0]).1);
    }

    #[test]
    fn a_bar_missed_once_is_printed_and_no_failure() {
        let (figures, passed, _) = taken(&[11.0]);
        assert!(passed);
        assert_eq!(figures.lines(), ["wait_ms 11.00 (bar <= 10.00, MISSED)"]);
    }

    #[test]
    fn a_bar_missed_once_is_a_failure_where_bars_decide() {
        let (figures, ..) = taken(&[11.0]);
        let judged = |bars| figures.judge_by(bars, Ok("detail".into()));
        assert_eq!(judged(false).unwrap(), "detail");
        assert_eq!(judged(true).unwrap_err().to_string(), "wait_ms 11.00 (bar <= 10.00, MISSED); detail");
        assert!(taken(&[10.0]).0.judge_by(true, Ok(String::new())).is_ok());
    }

    #[test]
    fn one_measurement_beyond_what_works_is_a_failure() {
        assert!(!taken(&[21.0]).1 && !taken(&[9.0, 9.0, 21.0]).1 && !taken(&[f64::NAN]).1);
        let mut figures = Figures::default();
        let rate = |figures: &mut Figures| {
            figures.at_least("rate", 0.4, 0.5, 0.9);
            Ok(String::new())
        };
        assert!(figures.collect(1, rate).is_err());
    }

    #[test]
    fn all_repeats_are_taken_whatever_comes_of_each() {
        assert_eq!(taken(&[21.0, 9.0, 9.0]).2, 3);
        let (mut figures, mut times) = (Figures::default(), 0);
        let outcome = figures.collect(3, |figures| {
            times += 1;
            figures.at_most("wait_ms", 1.0, 20.0, 10.0);
            if times == 1 { bail!("a limit was left") } else { Ok(String::new()) }
        });
        assert!(outcome.is_err() && times == 3);
    }

    #[test]
    fn a_value_aside_has_a_median_and_no_verdict() {
        let mut figures = Figures::default();
        for value in [3.0, 1.0, 2.0] {
            figures.aside("p99_ms", value);
        }
        assert_eq!((figures.median("p99_ms"), figures.median("other")), (Some(2.0), None));
        assert!(figures.lines().is_empty() && figures.missed().is_empty());
    }

    #[test]
    fn a_step_without_figures_is_taken_once() {
        for holds in [true, false] {
            let mut times = 0;
            let outcome = Figures::default().collect(3, |_| {
                times += 1;
                if holds { Ok(String::new()) } else { bail!("a limit was left") }
            });
            assert_eq!((outcome.is_ok(), times), (holds, 1));
        }
    }

    #[test]
    fn medians_and_paired_ratios() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([]), None);
        let ratio = Spread::of_ratio(&[10.0, 40.0, 1.0], &[5.0, 10.0, 0.0]).unwrap();
        assert_eq!((ratio.min, ratio.max), (2.0, 4.0), "a round without a figure has no ratio");
    }
}
