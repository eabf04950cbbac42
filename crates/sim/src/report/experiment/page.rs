//! The report of an experiment as an HTML page with plots.

use super::distinct;
use crate::experiment::{self, End, Report, Row, Section as Part};

use crate::report::{Block, Cell, Check, Page, Section, Table, short};

/// The page of a report: first the claims, then for each section its plots and a table per metric. `quick`: the report is
/// that of a quick run; `seeds`: the number of seeds, if it is not the experiment's own.
pub fn page(report: &Report, quick: bool, seeds: Option<usize>) -> Page {
    let mut command = format!("evenkeel reproduce {} --seed {}", report.experiment, report.seed);
    if quick {
        command.push_str(" --quick");
    }
    if let Some(seeds) = seeds {
        command += &format!(" --seeds {seeds}");
    }
    let facts =
        [("seed", report.seed.to_string()), ("version", env!("CARGO_PKG_VERSION").to_owned()), ("command", command)];
    Page {
        title: format!("Evenkeel reproduces {}", report.experiment),
        intro: report.intro.clone(),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        checks: report.sections.iter().flat_map(|section| &section.rows).filter_map(check).collect(),
        sections: std::iter::once(claims(report))
            .chain(report.sections.iter().map(section))
            .chain(limits(report.experiment))
            .collect(),
    }
}

/// The row's bar as a check of the page; `None` if the row has no bar.
fn check(row: &Row) -> Option<Check> {
    let (met, bar) = (row.is_met()?, row.bar?);
    let sign = match row.better {
        experiment::Better::Lower => '≤',
        experiment::Better::Higher => '≥',
    };
    let measured = row.evenkeel.map_or_else(|| "nothing".to_owned(), |ours| format!("{} {}", short(ours), row.unit));
    let what = format!("{}: {} {sign} {}", row.case, row.metric, short(bar));
    Some(Check { what, measured: measured.trim_end().to_owned(), met, note: String::new() })
}

fn claims(report: &Report) -> Section {
    let rows = report.claims.iter().map(|claim| {
        vec![
            Cell::Text(claim.source.to_owned()),
            Cell::Text(claim.text.clone()),
            // Not the word for a bar: that a claim does not come out is no fault of what is shown here.
            Cell::Text(if claim.reproduced { "✓ yes" } else { "✗ no" }.to_owned()),
            Cell::Text(claim.numbers.clone()),
        ]
    });
    let (title, columns) = match report.experiment {
        experiment::harm::NAME => ("Aims", ["where", "aim", "reached", "figures"]),
        _ => ("Claims of the paper", ["where", "claim", "reproduced", "figures"]),
    };
    let table = Table { title: String::new(), columns: columns.map(str::to_owned).to_vec(), rows: rows.collect() };
    Section { title: title.to_owned(), text: Vec::new(), blocks: vec![Block::Table(table)] }
}

/// The section with the limits of the experiment; `None` if it has none.
fn limits(experiment: &str) -> Option<Section> {
    let text: Vec<String> = experiment::limits::of(experiment).iter().map(|&limit| limit.to_owned()).collect();
    (!text.is_empty()).then(|| Section { title: "Limits".to_owned(), text, blocks: Vec::new() })
}

fn section(part: &Part) -> Section {
    let plots = part.figures.iter().cloned().map(Block::Plot);
    let metrics = distinct(part.rows.iter().map(|row| row.metric.as_str()));
    let tables = metrics.into_iter().flat_map(|metric| {
        let both = [Some(table(part, metric)), differences(part, metric)];
        both.into_iter().flatten().map(Block::Table)
    });
    Section { title: part.title.clone(), text: part.text.clone(), blocks: plots.chain(tables).collect() }
}

/// The table of one metric of a section: a line for each case, a column for each method.
fn table(part: &Part, metric: &str) -> Table {
    let rows = || part.rows.iter().filter(|row| row.metric == metric && row.end.is_none());
    let methods = distinct(rows().filter_map(|row| row.method.as_deref()));
    let number = |value: Option<f64>| value.map_or(Cell::Empty, |value| Cell::Number(value.into()));
    let line = |row: &Row| {
        let ours = match (row.evenkeel, row.half_width) {
            (Some(mean), Some(width)) => Cell::Interval(mean.into(), width.into()),
            (mean, _) => number(mean),
        };
        let mut cells = vec![Cell::Text(row.case.clone()), ours, row.is_met().map_or(Cell::Empty, Cell::Met)];
        cells.extend([number(row.faithful), number(row.baseline), number(row.paper)]);
        let of = |method| rows().find(|other| other.case == row.case && other.method.as_deref() == Some(method));
        cells.extend(methods.iter().map(|method| number(of(method).and_then(|row| row.baseline))));
        cells
    };
    let unit = rows().next().map_or("", |row| row.unit);
    let heading = if unit.is_empty() { metric.to_owned() } else { format!("{metric}, {unit}") };
    let fixed = ["case", "evenkeel", "bar met", "as published", "baseline", "paper"];
    let columns: Vec<&str> = fixed.into_iter().chain(methods.iter().copied()).collect();
    let rows: Vec<Vec<Cell>> = rows().filter(|row| row.method.is_none()).map(line).collect();
    // A column of which this metric has nothing says nothing.
    let shown: Vec<bool> = (0..columns.len()).map(|at| rows.iter().any(|row| row[at] != Cell::Empty)).collect();
    let keep = |at: &usize| shown[*at];
    Table {
        title: heading,
        columns: (0..columns.len()).filter(keep).map(|at| columns[at].to_owned()).collect(),
        rows: rows.iter().map(|row| (0..row.len()).filter(keep).map(|at| row[at].clone()).collect()).collect(),
    }
}

/// The table of the intervals of one metric's differences: a line for each case, a column for each method from which the
/// project's own differs. `None` without intervals.
fn differences(part: &Part, metric: &str) -> Option<Table> {
    let rows = |end: End| part.rows.iter().filter(move |row| row.metric == metric && row.end == Some(end));
    let cases = distinct(rows(End::Low).map(|row| row.case.as_str()));
    let methods = distinct(rows(End::Low).filter_map(|row| row.method.as_deref()));
    let at = |end: End, case: &str, method: Option<&str>, of: fn(&Row) -> Option<f64>| {
        rows(end).find(|row| row.case == case && row.method.as_deref() == method).and_then(of)
    };
    let interval = |case: &str, method: Option<&str>, of: fn(&Row) -> Option<f64>| match (
        at(End::Low, case, method, of),
        at(End::High, case, method, of),
    ) {
        (Some(low), Some(high)) => Cell::Text(format!("{} to {}", short(low), short(high))),
        _ => Cell::Empty,
    };
    let line = |case: &&str| {
        let mut cells = vec![Cell::Text((*case).to_owned())];
        cells.push(interval(case, None, |row| row.faithful));
        cells.push(interval(case, None, |row| row.baseline));
        cells.extend(methods.iter().map(|method| interval(case, Some(method), |row| row.baseline)));
        cells
    };
    let lines: Vec<Vec<Cell>> = cases.iter().map(line).collect();
    let columns = ["case", "as published", "baseline"].into_iter().chain(methods.iter().copied());
    (!lines.is_empty()).then(|| Table {
        title: format!("{metric}: evenkeel minus each method, 95 % interval, paired by seed"),
        columns: columns.map(str::to_owned).collect(),
        rows: lines,
    })
}
