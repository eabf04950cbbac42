//! The answer of an experiment.

use serde::Serialize;

use crate::report::Plot;
use crate::statistics::Estimate;

/// The whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the experiment, as on the command line.
    pub experiment: &'static str,
    /// The seed that repeats it.
    pub seed: u64,
    /// The introduction, a paragraph each.
    pub intro: Vec<String>,
    /// Figures and tables, in order.
    pub sections: Vec<Section>,
    /// The paper's claims, and what came of them.
    pub claims: Vec<Claim>,
}

/// A part of the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// How to read it, a paragraph each.
    pub text: Vec<String>,
    /// One for each case and metric.
    pub rows: Vec<Row>,
    /// The plots.
    pub figures: Vec<Plot>,
}

impl Section {
    /// A part without figures yet.
    pub fn new<const N: usize>(title: &str, text: [impl Into<String>; N]) -> Self {
        Self { title: title.to_owned(), text: text.map(Into::into).to_vec(), ..Self::default() }
    }
}

/// Which direction is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better.
    #[default]
    Lower,
    /// More is better.
    Higher,
}

/// One metric of one case, side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The case.
    pub case: String,
    /// The metric.
    pub metric: String,
    /// The method that `baseline` is about, if it has no column of its own.
    pub method: Option<String>,
    /// Its unit; empty for ratios and counts.
    pub unit: &'static str,
    /// Which direction is better.
    pub better: Better,
    /// The paper's figure, where it gives one.
    pub paper: Option<f64>,
    /// Without the paper's method, as the section says; or the method named above.
    pub baseline: Option<f64>,
    /// The paper's method as published.
    pub faithful: Option<f64>,
    /// Our method.
    pub evenkeel: Option<f64>,
    /// Half width of the 95 % confidence interval of ours, where there are several seeds.
    pub half_width: Option<f64>,
    /// The value that our method must reach.
    pub bar: Option<f64>,
}

impl Row {
    /// A row without figures yet.
    pub fn new(case: &str, metric: &str, unit: &'static str, better: Better) -> Self {
        Self { case: case.to_owned(), metric: metric.to_owned(), unit, better, ..Self::default() }
    }

    /// The metric by method: a row with the baseline, the published method and ours side by side, and one for each other
    /// method by its name.
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

    /// The metric, with the method at its end if it is not one of the columns.
    pub fn full_metric(&self) -> String {
        match &self.method {
            None => self.metric.clone(),
            Some(method) => format!("{}_{method}", self.metric),
        }
    }

    /// True if ours reaches its bar; `None` without a bar.
    pub fn is_met(&self) -> Option<bool> {
        let bar = self.bar?;
        Some(self.evenkeel.is_some_and(|ours| match self.better {
            Better::Lower => ours <= bar,
            Better::Higher => ours >= bar,
        }))
    }
}

/// Something the paper says, and whether it is so here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// Where the paper says it.
    pub source: &'static str,
    /// The claim in our words.
    #[serde(rename = "claim")]
    pub text: String,
    /// True if it is so here.
    pub reproduced: bool,
    /// The figures behind the verdict.
    pub numbers: String,
}
