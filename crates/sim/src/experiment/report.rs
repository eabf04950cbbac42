//! The report of an experiment.

use serde::Serialize;

use crate::report::Plot;
use crate::statistics::Estimate;

/// The report of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the experiment, as on the command line.
    pub experiment: &'static str,
    /// The seed with which the experiment can be repeated.
    pub seed: u64,
    /// The introduction; one element is one paragraph.
    pub intro: Vec<String>,
    /// Parts with figures and tables, in order.
    pub sections: Vec<Section>,
    /// Claims of the paper, each with its verdict.
    pub claims: Vec<Claim>,
}

/// A part of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// Explanation of the part; one element is one paragraph.
    pub text: Vec<String>,
    /// A row for each case and metric, and a further one for each method that has no column of its own.
    pub rows: Vec<Row>,
    /// The plots.
    pub figures: Vec<Plot>,
}

impl Section {
    /// A section with a title and a text, without rows and plots.
    pub fn new<const N: usize>(title: &str, text: [impl Into<String>; N]) -> Self {
        Self { title: title.to_owned(), text: text.map(Into::into).to_vec(), ..Self::default() }
    }
}

/// The direction in which a metric's values are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better.
    #[default]
    Lower,
    /// More is better.
    Higher,
}

/// An end of a 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The lower end.
    Low,
    /// The upper end.
    High,
}

evenkeel_control::named!(End: Low "low", High "high");

/// One metric of one case, by method.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Name of the case (device, load).
    pub case: String,
    /// Name of the metric.
    pub metric: String,
    /// Name of the method whose figure is in `baseline`, in the row of a method that has no column of its own.
    pub method: Option<String>,
    /// The metric's unit; empty for ratios and counts.
    pub unit: &'static str,
    /// The direction in which the metric's values are better.
    pub better: Better,
    /// The figure that the paper states; `None` if it states none.
    pub paper: Option<f64>,
    /// Figure of the method named by `method`. If `method` is `None`, figure of the section's baseline method, which is
    /// neither the paper's nor the project's.
    pub baseline: Option<f64>,
    /// Figure of the paper's method as published, measured here.
    pub faithful: Option<f64>,
    /// Figure of the project's own method.
    pub evenkeel: Option<f64>,
    /// Half width of the 95 % confidence interval of `evenkeel`; `None` with a single seed.
    pub half_width: Option<f64>,
    /// The value that the project's own method must reach.
    pub bar: Option<f64>,
    /// If the row has no figures but ends of intervals: which. `evenkeel` is then that end for the mean of the project's own
    /// method, each other figure that for the mean difference of the project's own method from the figure's method.
    pub end: Option<End>,
}

impl Row {
    /// A row without figures.
    pub fn new(case: &str, metric: &str, unit: &'static str, better: Better) -> Self {
        Self { case: case.to_owned(), metric: metric.to_owned(), unit, better, ..Self::default() }
    }

    /// The metric's rows, based on this row: one with the figures of baseline, published method and project's own method, and
    /// one for each of `others` (name and figure).
    pub fn columns(
        &self,
        [baseline, faithful, ours]: [Option<Estimate>; 3],
        others: impl IntoIterator<Item = (impl Into<String>, Option<f64>)>,
    ) -> Vec<Self> {
        let mean = |estimate: Option<Estimate>| estimate.map(|estimate| estimate.mean);
        let main = Self {
            baseline: mean(baseline),
            faithful: mean(faithful),
            evenkeel: mean(ours),
            half_width: ours.map(|estimate| estimate.half_width).filter(|width| width.is_finite()),
            ..self.clone()
        };
        let evenkeel = main.evenkeel;
        let other = |(method, baseline): (_, _)| Self {
            method: Some(Into::into(method)),
            baseline,
            evenkeel,
            paper: None,
            bar: None,
            ..self.clone()
        };
        std::iter::once(main).chain(others.into_iter().map(other)).collect()
    }

    /// The metric's name, followed by the names of `method` and `end` if these are set.
    pub fn full_metric(&self) -> String {
        let parts = [Some(self.metric.as_str()), self.method.as_deref(), self.end.map(End::name)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("_")
    }

    /// True if the project's own method reaches the bar; `None` without a bar.
    pub fn is_met(&self) -> Option<bool> {
        let bar = self.bar?;
        Some(self.evenkeel.is_some_and(|ours| match self.better {
            Better::Lower => ours <= bar,
            Better::Higher => ours >= bar,
        }))
    }
}

/// A claim of the paper, and the verdict of the runs on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// The part of the paper with the claim, for example a figure.
    pub source: &'static str,
    /// The claim in a sentence.
    #[serde(rename = "claim")]
    pub text: String,
    /// True if the claim holds in the runs.
    pub reproduced: bool,
    /// The figures behind the verdict.
    pub numbers: String,
}
