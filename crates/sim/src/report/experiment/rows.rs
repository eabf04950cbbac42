//! Rows as JSON.

use serde::Serialize;

use crate::experiment::{Report, Row};

/// The document of `--json`; `docs/reproduce.md` describes every field.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    experiment: &'static str,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    constants: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sets_used: Option<usize>,
    rows: Vec<RowDocument<'a>>,
    claims: Vec<ClaimDocument<'a>>,
}

#[derive(Debug, Serialize)]
struct RowDocument<'a> {
    case: &'a str,
    metric: String,
    unit: &'static str,
    better: &'static str,
    paper: Option<f64>,
    baseline: Option<f64>,
    faithful: Option<f64>,
    evenkeel: Option<f64>,
    evenkeel_ci95: Option<f64>,
}

#[derive(Debug, Serialize)]
struct ClaimDocument<'a> {
    source: &'static str,
    claim: &'a str,
    reproduced: bool,
    numbers: &'a str,
}

/// The rows of `report`. Where cases were drawn, `constants` is the hash that they follow from, and `sets_used` how many sets
/// were drawn before.
pub fn document<'a>(report: &'a Report, constants: Option<&'a str>, sets_used: Option<usize>) -> Document<'a> {
    // JSON has no infinity and no NaN.
    let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
    let row = |row: &'_ Row| RowDocument {
        case: "",
        metric: row.full_metric(),
        unit: row.unit,
        better: row.better.name(),
        paper: finite(row.paper),
        baseline: finite(row.baseline),
        faithful: finite(row.faithful),
        evenkeel: finite(row.evenkeel),
        evenkeel_ci95: finite(row.half_width),
    };
    let rows = report.sections.iter().flat_map(|section| &section.rows);
    Document {
        experiment: report.experiment,
        seed: report.seed,
        constants,
        sets_used,
        rows: rows.map(|each| RowDocument { case: &each.case, ..row(each) }).collect(),
        claims: report
            .claims
            .iter()
            .map(|claim| ClaimDocument {
                source: claim.source,
                claim: &claim.text,
                reproduced: claim.reproduced,
                numbers: &claim.numbers,
            })
            .collect(),
    }
}
