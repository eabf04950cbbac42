//! The outcome of a plan's runs as data: the JSON document that `--json` writes, which `docs/guide/sim.md` describes.

use std::collections::BTreeMap;

use crate::scenario::Bound;
use crate::statistics::Estimate;
use crate::world::Run;
use serde::Serialize;

use super::plan::{Kept, Plan, Point};
use crate::report::short;

/// The results of all runs of a plan.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Title of the scenario.
    title: String,
    /// Version of the program.
    version: &'static str,
    /// The first seed.
    seed: u64,
    /// Number of seeds.
    seeds: u32,
    /// True if every bound is met in every run of every point.
    met: bool,
    /// The results of each point, which is a combination of swept values.
    pub(super) points: Vec<PointOutcome>,
}

/// The result of one point: a combination of swept values, run with every seed.
#[derive(Debug, Serialize)]
pub(super) struct PointOutcome {
    /// The swept keys and their values.
    pub(super) set: BTreeMap<String, String>,
    /// Every metric, by its name.
    pub(super) metrics: BTreeMap<String, Measured>,
    /// Every bound of the scenario, in order, with its verdict.
    pub(super) bounds: Vec<BoundOutcome>,
    /// Number of events that the event queue handled in all runs of the point.
    events: u64,
    /// The whole run of the first seed; `None` unless it was kept for a page.
    #[serde(skip)]
    pub(super) run: Option<Run>,
}

/// A metric's values over all seeds. In JSON, infinity and NaN (a latency without requests) are `null`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    /// Mean over the seeds.
    pub(super) mean: f64,
    /// Half width of the mean's 95 % confidence interval; NaN for a single seed, `null` in JSON.
    pub(super) ci95: f64,
    /// The value of each seed's run, in the order of the seeds.
    pub(super) values: Vec<f64>,
}

/// A bound with its verdict.
#[derive(Debug, Serialize)]
pub(super) struct BoundOutcome {
    /// Name of the metric that the bound limits.
    pub(super) metric: String,
    /// Start of the window in which the metric is measured, in seconds of virtual time; `None`: the counted time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from_s: Option<f64>,
    /// End of the window in which the metric is measured, in seconds of virtual time; `None`: the counted time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until_s: Option<f64>,
    /// Smallest value that meets the bound, in the metric's unit; `None`: no lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) min: Option<f64>,
    /// Largest value that meets the bound, in the metric's unit; `None`: no upper bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max: Option<f64>,
    /// The metric's measured values.
    #[serde(flatten)]
    pub(super) measured: Measured,
    /// True if the run of every seed meets the bound.
    pub(super) met: bool,
    /// Reason for the bound; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) why: String,
}

impl Measured {
    fn new(values: Vec<f64>) -> Self {
        let Estimate { mean, half_width } = Estimate::of(&values);
        Self { mean, ci95: half_width, values }
    }
}

impl BoundOutcome {
    fn new(bound: &Bound, values: Vec<f64>) -> Self {
        let seconds = |at: evenkeel_control::Instant| at.since(evenkeel_control::Instant::ZERO).as_secs_f64();
        Self {
            metric: bound.metric.to_string(),
            from_s: bound.window.map(|(from, _)| seconds(from)),
            until_s: bound.window.map(|(_, until)| seconds(until)),
            min: bound.min,
            max: bound.max,
            met: values.iter().all(|&value| bound.is_met_by(value)),
            measured: Measured::new(values),
            why: bound.why.clone(),
        }
    }

    /// The bound as a formula: `light.p99_ms ≤ 5 ms (3 s to 5 s)`.
    pub(super) fn formula(&self) -> String {
        let metric = &self.metric;
        let show = |value| quantity(metric, value);
        let formula = match (self.min, self.max) {
            (Some(min), Some(max)) => format!("{} ≤ {metric} ≤ {}", show(min), show(max)),
            (Some(min), None) => format!("{metric} ≥ {}", show(min)),
            (None, Some(max)) => format!("{metric} ≤ {}", show(max)),
            (None, None) => metric.clone(),
        };
        match (self.from_s, self.until_s) {
            (Some(from), Some(until)) => format!("{formula} ({} s to {} s)", short(from), short(until)),
            _ => formula,
        }
    }

    /// The measured metric as text: its value, or for several seeds its mean, smallest and largest value.
    pub(super) fn shown(&self) -> String {
        let show = |value| quantity(&self.metric, value);
        match self.measured.values[..] {
            [value] => show(value),
            ref values => {
                let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                format!("{} (seeds: {} to {})", show(self.measured.mean), show(least), show(most))
            }
        }
    }
}

/// A value of `metric` as text, with the unit that ends the metric's name.
fn quantity(metric: &str, value: f64) -> String {
    let unit = |suffix: &str, unit: &str, factor: f64| {
        metric.ends_with(suffix).then(|| format!("{} {unit}", short(value / factor)))
    };
    if value.is_nan() {
        return "nothing to measure".into();
    }
    if value.is_infinite() {
        return "no bound".into();
    }
    unit("bytes_per_s", "MB/s", 1e6)
        .or_else(|| unit("_bytes", "KiB", 1024.0))
        .or_else(|| unit("_ms", "ms", 1.0))
        .or_else(|| unit("_percent", "%", 1.0))
        .unwrap_or_else(|| short(value))
}

impl PointOutcome {
    fn new(plan: &Plan, point: &Point, kept: Vec<Kept>) -> Self {
        let column = |of: &dyn Fn(&Kept) -> f64| kept.iter().map(of).collect::<Vec<_>>();
        let metrics = plan.metrics.iter().enumerate();
        let bounds = point.scenario.bounds.iter().enumerate();
        Self {
            set: plan.keys.iter().cloned().zip(point.values.iter().cloned()).collect(),
            metrics: metrics
                .map(|(i, metric)| (metric.to_string(), Measured::new(column(&|kept| kept.metrics[i]))))
                .collect(),
            bounds: bounds.map(|(i, bound)| BoundOutcome::new(bound, column(&|kept| kept.bounds[i]))).collect(),
            events: kept.iter().map(|kept| kept.events).sum(),
            run: kept.into_iter().find_map(|kept| kept.run),
        }
    }

    /// A metric of the point by its name. Every metric of the pool and of each tenant exists.
    pub(super) fn metric(&self, name: &str) -> &Measured {
        &self.metrics[name]
    }
}

impl Outcome {
    /// The outcome of `plan`. `kept` has the kept part of each run, in the order of [`Plan::runs`].
    pub fn new(plan: &Plan, kept: Vec<Kept>) -> Self {
        let mut kept = kept.into_iter();
        let points = plan.points.iter().map(|point| {
            let mine = kept.by_ref().take(plan.seeds as usize).collect();
            PointOutcome::new(plan, point, mine)
        });
        let points: Vec<PointOutcome> = points.collect();
        let met = points.iter().all(|point| point.bounds.iter().all(|bound| bound.met));
        Self {
            title: plan.title.clone(),
            version: env!("CARGO_PKG_VERSION"),
            seed: plan.seed,
            seeds: plan.seeds,
            met,
            points,
        }
    }

    /// True if every bound is met in every run of every point.
    pub fn met(&self) -> bool {
        self.met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_unit_of_their_metric() {
        for (metric, value, shown) in [
            ("a.bytes_per_s", 98_926_592.0, "98.93 MB/s"),
            ("budget_mean_bytes", 524_288.0, "512 KiB"),
            ("budget_max_bytes", f64::INFINITY, "no bound"),
            ("a.p99_ms", 5.2671, "5.267 ms"),
            ("a.p99_ms", f64::NAN, "nothing to measure"),
            ("a.share_percent", 12.5, "12.5 %"),
            ("a.iops", 1510.4, "1510"),
            ("budget_cv", 0.031_2, "0.0312"),
        ] {
            assert_eq!(quantity(metric, value), shown);
        }
    }
}
