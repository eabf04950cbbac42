//! What an experiment answers.

/// The whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the experiment, as on the command line.
    pub experiment: &'static str,
    /// The seed that repeats it.
    pub seed: u64,
    /// What it is about, a paragraph each.
    pub intro: Vec<String>,
    /// Figures and tables, in order.
    pub sections: Vec<Section>,
    /// What the paper says and what came of it.
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
    /// What to draw.
    pub figures: Vec<Figure>,
}

/// Which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
}

impl Better {
    /// Name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Higher => "higher",
        }
    }
}

/// One metric of one case, side by side.
#[derive(Clone, Debug, PartialEq)]
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
    /// What the paper says, where it gives a figure.
    pub paper: Option<f64>,
    /// Without the paper's method, as the section says; or the method named above.
    pub baseline: Option<f64>,
    /// The paper's method as published.
    pub faithful: Option<f64>,
    /// Ours.
    pub evenkeel: Option<f64>,
    /// Half width of the 95 % confidence interval of ours, where there are several seeds.
    pub half_width: Option<f64>,
    /// What ours is to reach.
    pub bar: Option<f64>,
}

impl Row {
    /// A row without figures yet.
    pub fn new(case: &str, metric: &str, unit: &'static str, better: Better) -> Self {
        Self {
            case: case.to_owned(),
            metric: metric.to_owned(),
            method: None,
            unit,
            better,
            paper: None,
            baseline: None,
            faithful: None,
            evenkeel: None,
            half_width: None,
            bar: None,
        }
    }

    /// The metric, with the method at its end if it is not one of the columns.
    pub fn full_metric(&self) -> String {
        match &self.method {
            None => self.metric.clone(),
            Some(method) => format!("{}_{method}", self.metric),
        }
    }

    /// Whether ours reaches its bar; `None` without a bar.
    pub fn is_met(&self) -> Option<bool> {
        let bar = self.bar?;
        Some(self.evenkeel.is_some_and(|ours| match self.better {
            Better::Lower => ours <= bar,
            Better::Higher => ours >= bar,
        }))
    }
}

/// Something the paper says, and whether it is so here.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Where the paper says it.
    pub source: &'static str,
    /// What it says, in our words.
    pub text: String,
    /// Whether it is so here.
    pub reproduced: bool,
    /// The figures behind the verdict.
    pub numbers: String,
}

/// Coordinates, each with a name that may be empty.
pub type Points = Vec<(f64, f64, String)>;

/// A plot as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Heading.
    pub title: String,
    /// How to read it.
    pub note: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// Whether points are joined.
    pub joined: bool,
    /// Name and points, which may have names of their own.
    pub series: Vec<(String, Points)>,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it counts, with its unit.
    pub label: String,
    /// By ratio.
    pub log: bool,
}

impl Axis {
    /// An even axis.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), log: false }
    }

    /// An axis by ratio.
    pub fn log(label: &str) -> Self {
        Self { label: label.to_owned(), log: true }
    }
}
