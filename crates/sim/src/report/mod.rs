//! A result as one self-contained HTML page: tables, verdicts and interactive plots.
//!
//! Fill a [`Page`] and write [`Page::html`] to a file. The page carries its data as JSON and draws it with the scripts
//! beside this file (`plot.js` draws one plot, `page.js` the rest). All content goes in as text, never as markup, and
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
    /// The introduction; one element is one paragraph.
    pub intro: Vec<String>,
    /// Facts with which the result can be repeated (seed, version, command), as name and value, shown on one line under
    /// the heading.
    pub facts: Vec<(String, String)>,
    /// Bounds with their verdicts; a summary stands at the top of the page.
    pub checks: Vec<Check>,
    /// The sections, in order.
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
    /// Reason for the bound, or for the failure; may be empty.
    pub note: String,
}

/// A part of a page under its own heading.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// Text; one element is one paragraph.
    pub text: Vec<String>,
    /// Tables, plots and listings; neighbouring plots stand side by side where the window is wide enough.
    pub blocks: Vec<Block>,
}

/// The content of a section.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Block {
    /// Rows and columns; a click on a heading sorts the rows.
    Table(Table),
    /// A plot.
    Plot(Plot),
    /// Text as it stands, such as a configuration; folded until the reader opens it.
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
    /// Rows; each has as many cells as there are columns.
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
    /// A sentence on how to read it; may be empty.
    pub note: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves, in the order of the legend.
    pub series: Vec<Series>,
    /// Vertical lines with a name, such as a change in mid-run.
    pub marks: Vec<Mark>,
    /// Plots of a page with the same non-empty link zoom and move their cursors together.
    pub link: String,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: String,
    /// Spread of the values over the axis.
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

    /// An axis for percentile curves, over shares from 0 to 1: 90 %, 99 % and 99.9 % are equally far apart.
    pub fn nines(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Nines }
    }
}

/// Spread of values over an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Linearly; the axis begins at 0 if the values come near.
    #[default]
    Linear,
    /// Logarithmically.
    Log,
    /// By the logarithm of 1 minus the value.
    Nines,
}

/// A series of points.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How its points are joined.
    pub style: Style,
    /// Coordinates in the order in which they are joined; a value that is not finite makes a gap.
    pub points: Vec<(Decimal, Decimal)>,
    /// A name for each point, shown under the cursor; empty = none.
    pub labels: Vec<String>,
    /// True if the series is hidden until the reader selects it in the legend.
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
    /// Not joined.
    Dots,
}

/// A vertical line with a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Position on the x axis.
    pub at: Decimal,
    /// Name of the event.
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

    /// True if any series has points.
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

/// Text with HTML's special characters escaped.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON for a script element: no text in it can end the element.
fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
