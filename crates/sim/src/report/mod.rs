//! A result as one HTML page that needs nothing from elsewhere: tables, verdicts and interactive plots.
//!
//! Fill a [`Page`] and write [`Page::html`] to a file. The page carries its data as JSON and draws it with the script
//! beside this file (`plot.js` draws one plot, `page.js` the rest); everything goes in as text, never as markup, and
//! the page forbids itself to load anything.

mod experiment;
mod number;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use experiment::{Document, document, page, text};
pub use number::{Decimal, short};

/// A page.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Page {
    /// Heading and window title.
    pub title: String,
    /// The introduction, a paragraph each.
    pub intro: Vec<String>,
    /// The facts that repeat it: seed, version, command; name and value, on one line under the heading.
    pub facts: Vec<(String, String)>,
    /// The bounds, and whether each was met; the summary of these stands at the top.
    pub checks: Vec<Check>,
    /// The rest, in order.
    pub sections: Vec<Section>,
}

/// A bound or claim, and whether it holds.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The bound, as a sentence or formula: `light.p99_ms ≤ 5`.
    pub what: String,
    /// The measured figure, with its unit.
    pub measured: String,
    /// True if it holds.
    pub met: bool,
    /// Why it matters, or why it fails; may be empty.
    pub note: String,
}

/// A part of a page under its own heading.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// A paragraph each.
    pub text: Vec<String>,
    /// Tables, plots and listings; neighbouring plots stand side by side where there is room.
    pub blocks: Vec<Block>,
}

/// The content of a section.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Block {
    /// Rows and columns; a click on a heading sorts.
    Table(Table),
    /// A plot.
    Plot(Plot),
    /// Text as it stands, such as a configuration; folded away until asked for.
    Listing {
        /// Its name.
        title: String,
        /// Its text.
        text: String,
    },
}

/// Rows and columns.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// Caption; may be empty.
    pub title: String,
    /// Headings, with units.
    pub columns: Vec<String>,
    /// As many cells as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// A text.
    Text(String),
    /// A number, shown with four significant digits.
    Number(Decimal),
    /// A mean and the half width of its 95 % confidence interval.
    Interval(Decimal, Decimal),
    /// True if something is met.
    Met(bool),
    /// Nothing to show.
    Empty,
}

/// A plot: series over one x axis and one y axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plot {
    /// Heading.
    pub title: String,
    /// A sentence on how to read it; may be empty.
    pub note: String,
    /// To the right.
    pub x: Axis,
    /// Upward.
    pub y: Axis,
    /// The curves, in the order of the legend.
    pub series: Vec<Series>,
    /// Vertical lines with a name, such as a change in mid-run.
    pub marks: Vec<Mark>,
    /// Plots with the same non-empty link zoom and move their cursor together.
    pub link: String,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: String,
    /// How values are spread over it.
    pub scale: Scale,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear }
    }

    /// A logarithmic axis; values of 0 and less are not drawn.
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log }
    }

    /// An axis of shares, for percentile curves: 90 %, 99 % and 99.9 % are equally far apart. Values are shares of 1.
    pub fn nines(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Nines }
    }
}

/// How values are spread over an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Evenly, from 0 if that is near.
    #[default]
    Linear,
    /// By ratio.
    Log,
    /// By the ratio of what is left to 1.
    Nines,
}

/// Points of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How its points are joined.
    pub style: Style,
    /// Coordinates in the order in which they are joined; what is not finite is a gap.
    pub points: Vec<(Decimal, Decimal)>,
    /// A name for each point, shown under the cursor; empty = none.
    pub labels: Vec<String>,
    /// True if it is hidden until asked for.
    pub hidden: bool,
}

/// The way in which a plot joins its points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// By a line.
    #[default]
    Line,
    /// Each value holds until the next.
    Steps,
    /// By a line with a dot at each point.
    Dotted,
    /// Not at all.
    Dots,
}

/// A vertical line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Where on the x axis.
    pub at: Decimal,
    /// The event.
    pub label: String,
}

impl Series {
    /// A series without names for its points.
    pub fn new(name: impl Into<String>, style: Style, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().map(|(x, y)| (Decimal(x), Decimal(y))).collect();
        Self { name: name.into(), style, points, labels: Vec::new(), hidden: false }
    }

    /// A series whose points have names.
    pub fn named(name: impl Into<String>, style: Style, points: impl IntoIterator<Item = (f64, f64, String)>) -> Self {
        let (points, labels): (Vec<_>, _) = points.into_iter().map(|(x, y, label)| ((x, y), label)).unzip();
        Self { labels, ..Self::new(name, style, points) }
    }
}

impl Plot {
    /// A plot of series over these axes.
    pub fn new(
        title: impl Into<String>,
        note: impl Into<String>,
        x: Axis,
        y: Axis,
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        Self { title: title.into(), note: note.into(), x, y, series: series.into_iter().collect(), ..Self::default() }
    }

    /// True if there is anything to draw.
    pub fn has_points(&self) -> bool {
        let drawn = |&(x, y): &(Decimal, Decimal)| x.0.is_finite() && y.0.is_finite();
        self.series.iter().any(|series| series.points.iter().any(drawn))
    }
}

impl Page {
    /// The page as one HTML document.
    pub fn html(&self) -> String {
        // A value that cannot be written does not exist: everything is text or Decimal.
        let data = serde_json::to_string(self).unwrap_or_default();
        format!(
            include_str!("page.html"),
            title = escape(&self.title),
            style = include_str!("page.css"),
            data = in_script(&data),
            plot = include_str!("plot.js"),
            page = include_str!("page.js"),
        )
    }
}

/// Text as HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON that no text in it can take out of its script element.
fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
