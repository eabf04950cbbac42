//! A result as one self-contained HTML page: tables, verdicts and interactive plots.
//!
//! Fill a [`Page`] and write [`Page::html`] to a file. The page contains its data as JSON, and the scripts that draw it:
//! `plot.js` draws one plot with the means of [`evenkeel_policy::PLOT`], `page.js` the rest. All content is inserted as text,
//! never as markup, and the page's content security policy forbids it to load anything.

mod experiment;
mod number;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use experiment::{Document, document, page, text};
pub use number::{Decimal, short};

/// The content of a report page.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Page {
    /// Heading and window title.
    pub title: String,
    /// The introduction; one element is one paragraph.
    pub intro: Vec<String>,
    /// Facts with which the result can be repeated, each as name and value (seed, version, command). The page shows them on
    /// one line under the heading.
    pub facts: Vec<(String, String)>,
    /// Bounds and claims with their verdicts. The page shows a summary of them at its top.
    pub checks: Vec<Check>,
    /// The sections, in order.
    pub sections: Vec<Section>,
}

/// A bound or a claim, with its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The bound or claim, as a sentence or a formula such as `light.p99_ms ≤ 5`.
    pub what: String,
    /// The measured figure, with its unit.
    pub measured: String,
    /// True if the bound or claim holds.
    pub met: bool,
    /// Reason for the bound, or reason why it does not hold; may be empty.
    pub note: String,
}

/// A part of a page under its own heading.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Section {
    /// Heading of the section.
    pub title: String,
    /// Text under the heading; one element is one paragraph.
    pub text: Vec<String>,
    /// Tables, plots and listings, in order. Successive plots are placed side by side if the window is wide enough.
    pub blocks: Vec<Block>,
}

/// A piece of a section's content.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Block {
    /// A table; a click on a column's heading sorts its rows.
    Table(Table),
    /// A plot.
    Plot(Plot),
    /// Preformatted text, such as a configuration. It is folded until the reader opens it.
    Listing {
        /// Name of the listing.
        title: String,
        /// Text of the listing.
        text: String,
    },
}

/// A table of a page.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// Caption of the table; may be empty.
    pub title: String,
    /// Headings of the columns, with units.
    pub columns: Vec<String>,
    /// Rows of the table; each has as many cells as `columns` has headings.
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
    /// A verdict: true if a bound is met.
    Met(bool),
    /// An empty cell.
    Empty,
}

/// A plot: series over one x axis and one y axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plot {
    /// Heading.
    pub title: String,
    /// A sentence on how to read the plot; may be empty.
    pub note: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves, in the order of the legend.
    pub series: Vec<Series>,
    /// Named vertical lines, such as one for a change in mid-run.
    pub marks: Vec<Mark>,
    /// Name of a group of plots: plots of a page with the same name zoom and move their cursors together. Empty: no group.
    pub link: String,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: String,
    /// Mapping of values to positions on the axis.
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

    /// An axis for percentile curves, over shares from 0 to 1. The distance from 90 % to 99 % equals that from 99 % to 99.9 %.
    pub fn nines(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Nines }
    }
}

/// Mapping of values to positions on an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Linear. The axis begins at 0 if the smallest value is near 0.
    #[default]
    Linear,
    /// Logarithmic.
    Log,
    /// Logarithmic in 1 minus the value.
    Nines,
}

/// A series of points.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// Name of the series in the legend.
    pub name: String,
    /// Style by which the points of the series are joined.
    pub style: Style,
    /// Points as x and y, in the order in which they are joined. A coordinate that is not finite makes a gap.
    pub points: Vec<(Decimal, Decimal)>,
    /// A name for each point, shown under the cursor; an empty list if points have no names.
    pub labels: Vec<String>,
    /// True if the series is hidden until the reader selects it in the legend.
    pub hidden: bool,
}

/// The way in which a plot joins its points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// A line through the points.
    #[default]
    Line,
    /// Steps: each value holds until the next point.
    Steps,
    /// A line through the points, with a dot at each point.
    Dotted,
    /// A dot at each point, without a line.
    Dots,
}

/// A named vertical line in a plot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Position of the line on the x axis.
    pub at: Decimal,
    /// Name of the event that the line marks.
    pub label: String,
}

impl Series {
    /// A series without names for its points.
    pub fn new(name: impl Into<String>, style: Style, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().map(|(x, y)| (Decimal(x), Decimal(y))).collect();
        Self { name: name.into(), style, points, labels: Vec::new(), hidden: false }
    }

    /// A series whose points have names: `points` are x, y and name.
    pub fn named(name: impl Into<String>, style: Style, points: impl IntoIterator<Item = (f64, f64, String)>) -> Self {
        let (points, labels): (Vec<_>, _) = points.into_iter().map(|(x, y, label)| ((x, y), label)).unzip();
        Self { labels, ..Self::new(name, style, points) }
    }
}

impl Plot {
    /// A plot of series over the axes `x` and `y`, without marks and link.
    pub fn new(
        title: impl Into<String>,
        note: impl Into<String>,
        x: Axis,
        y: Axis,
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        Self { title: title.into(), note: note.into(), x, y, series: series.into_iter().collect(), ..Self::default() }
    }

    /// True if any series of the plot has points.
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
            common = evenkeel_policy::PLOT,
            plot = include_str!("plot.js"),
            page = include_str!("page.js"),
        )
    }
}

/// Text with HTML's special characters escaped.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The JSON with `<`, `>` and `&` escaped, so that no text in it can end the script element that contains it.
fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
