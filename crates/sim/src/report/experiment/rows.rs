//! The rows of an experiment's report as JSON.

use serde::Serialize;

use crate::experiment::{Better, Claim, Report, Row};

/// The document of `--json`; `docs/guide/reproduce.md` describes every field.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    experiment: &'static str,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    constants: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sets_used: Option<usize>,
    rows: Vec<RowDocument<'a>>,
    claims: &'a [Claim],
}

#[derive(Debug, Serialize)]
struct RowDocument<'a> {
    case: &'a str,
    metric: String,
    unit: &'static str,
    better: Better,
    paper: Option<f64>,
    baseline: Option<f64>,
    faithful: Option<f64>,
    evenkeel: Option<f64>,
    evenkeel_ci95: Option<f64>,
}

/// The document with the rows of `report`. If the report is about drawn cases, `constants` is the hash from which the set of
/// cases follows, and `sets_used` is the number of sets used so far.
pub fn document<'a>(report: &'a Report, constants: Option<&'a str>, sets_used: Option<usize>) -> Document<'a> {
    // JSON has no infinity and no NaN: they become null.
    let row = |row: &'a Row| RowDocument {
        case: &row.case,
        metric: row.full_metric(),
        unit: row.unit,
        better: row.better,
        paper: row.paper,
        baseline: row.baseline,
        faithful: row.faithful,
        evenkeel: row.evenkeel,
        evenkeel_ci95: row.half_width,
    };
    let rows = report.sections.iter().flat_map(|section| &section.rows).map(row).collect();
    Document { experiment: report.experiment, seed: report.seed, constants, sets_used, rows, claims: &report.claims }
}
