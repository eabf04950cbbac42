//! The report of an experiment as text, 100 columns wide.

use std::fmt::Write as _;

use super::distinct;
use crate::experiment::{End, Report, Row, Section, drg, harm, iscsi, limits, messenger, saat, totals};

use crate::report::short;

/// Lines that explain the columns of this experiment's table.
fn about(experiment: &str) -> &'static [&'static str] {
    match experiment {
        iscsi::NAME => &[
            "baseline: no control, or as the section says. faithful: the published PID controller.",
            "evenkeel: adaptive, mean over seeds ± 95 % confidence. others: methods without a column.",
        ],
        saat::NAME => &[
            "baseline: the guarantee as the limit. faithful: SAAT as published, every second.",
            "evenkeel: accurate, every 100 ms, mean over seeds ± 95 % confidence.",
            "others: methods without a column.",
        ],
        messenger::NAME => &[
            "baseline: round robin. faithful: the genetic algorithm as published, every 5 s.",
            "evenkeel: waits, every 100 ms, mean over seeds ± 95 % confidence.",
            "others: methods without a column.",
        ],
        drg::NAME => &[
            "baseline: RW(D), weights after the targets. faithful: DRG as published, every second.",
            "evenkeel: needs, every 100 ms, mean over seeds ± 95 % confidence.",
            "others: methods without a column.",
        ],
        totals::NAME => &[
            "baseline: equal parts of reservation and limit. evenkeel: parts by demand, decided by each",
            "member, mean over seeds ± 95 % confidence. others: a central scheduler.",
        ],
        harm::NAME => &[
            "Cases that each method harms or helps, against no control. baseline: the fixed budget that harms the",
            "fewest. faithful: the published method. evenkeel: the default. All fixed budgets: --json and --report.",
            "The harmed cases, with the size of the harm: --report.",
        ],
        _ => &[
            "baseline: no admission control; for steps the fixed budget that was best before the step.",
            "faithful: SlowFast CoDel as published. evenkeel: elastic, mean over seeds ± 95 % confidence.",
            "others: methods without a column.",
        ],
    }
}

/// Largest width of a line of text, in columns.
const WIDTH: usize = 100;

/// The report as text: the introduction, for each metric a table with a line per case and the figures of methods without a
/// column, then the limits, the missed bars and the claims. The report of [`harm`] has tables, bars and aims alone.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    let is_whole = report.experiment != harm::NAME;
    if is_whole {
        write_paragraphs(&mut text, &report.intro);
    }
    for section in &report.sections {
        write_section(&mut text, section, is_whole);
    }
    let _ = writeln!(text, "\n{}", about(report.experiment).join("\n"));
    let limits = limits::of(report.experiment);
    if !limits.is_empty() {
        let _ = writeln!(text, "\nLIMITS");
    }
    for limit in limits {
        write_wrapped(&mut text, "  - ", limit);
    }
    let rows = || report.sections.iter().flat_map(|section| &section.rows);
    let (met, judged) = rows().filter_map(Row::is_met).fold((0, 0), |(met, all), is| (met + u32::from(is), all + 1));
    if judged > 0 {
        let _ = writeln!(text, "\nBARS: {met} of {judged} met");
    }
    for row in rows().filter(|row| row.is_met() == Some(false)) {
        let (ours, bar) = (cell(row.evenkeel), cell(row.bar));
        let _ = writeln!(text, "  missed: {}: {} {ours}{}, bar {bar}", row.case, row.metric, unit(row));
    }
    let reproduced = report.claims.iter().filter(|claim| claim.reproduced).count();
    if !report.claims.is_empty() {
        let (title, verb) = match report.experiment {
            harm::NAME => ("AIMS", "reached"),
            _ => ("CLAIMS OF THE PAPER", "reproduced"),
        };
        let _ = writeln!(text, "\n{title}: {reproduced} of {} {verb}", report.claims.len());
    }
    for claim in &report.claims {
        let verdict = if claim.reproduced { "yes" } else { "NO " };
        write_wrapped(&mut text, &format!("  {verdict}  "), &format!("{} ({})", claim.text, claim.source));
        write_wrapped(&mut text, "       ", &claim.numbers);
    }
    text
}

/// Appends `words` to `text` in lines of at most [`WIDTH`] columns. `lead` begins the first line; further lines are indented
/// by the width of `lead`.
fn write_wrapped(text: &mut String, lead: &str, words: &str) {
    let mut line = lead.to_owned();
    for word in words.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{}", line.trim_end());
            line = " ".repeat(lead.chars().count());
        }
        line.push_str(word);
        line.push(' ');
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

/// Appends each paragraph after an empty line.
fn write_paragraphs(text: &mut String, paragraphs: &[String]) {
    for paragraph in paragraphs {
        text.push('\n');
        write_wrapped(text, "", paragraph);
    }
}

/// Appends a section. `is_whole`: with its paragraphs, which name cases without bars, and with methods that have no column.
fn write_section(text: &mut String, section: &Section, is_whole: bool) {
    let _ = writeln!(text, "\n{}", section.title.to_uppercase());
    if is_whole {
        write_paragraphs(text, &section.text);
    }
    let columns = || section.rows.iter().filter(|row| row.method.is_none() && row.end.is_none());
    for metric in distinct(columns().map(|row| row.metric.as_str())) {
        let rows: Vec<&Row> = columns().filter(|row| row.metric == metric).collect();
        let _ = writeln!(
            text,
            "\n{:<48} {:>9} {:>9} {:>9} {:>17}",
            format!("{metric}{}", rows.first().map_or_else(String::new, |row| unit(row))),
            "baseline",
            "faithful",
            "evenkeel",
            "bar"
        );
        for row in rows {
            let bar = match (row.is_met(), row.bar) {
                (Some(met), Some(bar)) => format!("{} {}", short(bar), if met { "met" } else { "MISSED" }),
                _ => String::new(),
            };
            let ours = match row.half_width {
                Some(width) => format!("{} ±{}", cell(row.evenkeel), short(width)),
                None => cell(row.evenkeel),
            };
            let _ = writeln!(
                text,
                "  {:<46} {:>9} {:>9} {ours:>16} {bar:>10}",
                row.case,
                cell(row.baseline),
                cell(row.faithful)
            );
        }
        write_differences(text, section, metric);
        if is_whole {
            write_others(text, section, metric);
        }
    }
}

/// Appends a line for each case with the figures of the methods that have no column.
fn write_others(text: &mut String, section: &Section, metric: &str) {
    let rows = || {
        let rows = section.rows.iter().filter(|row| row.metric == metric && row.end.is_none());
        rows.filter_map(|row| Some((row.case.as_str(), row.method.as_deref()?, row.baseline?)))
    };
    for case in distinct(rows().map(|(case, ..)| case)) {
        let figure = |(_, method, figure): (&str, &str, f64)| format!("{method} {}", short(figure));
        let figures: Vec<String> = rows().filter(|(other, ..)| *other == case).map(figure).collect();
        write_wrapped(text, "  others  ", &format!("{case}: {}", figures.join(", ")));
    }
}

/// Appends the intervals of the differences from the methods with columns, if the metric has any.
fn write_differences(text: &mut String, section: &Section, metric: &str) {
    let ends = |end: End| {
        let rows = section.rows.iter().filter(move |row| row.metric == metric && row.method.is_none());
        rows.filter(move |row| row.end == Some(end) && (row.baseline.is_some() || row.faithful.is_some()))
    };
    let mut pairs = ends(End::Low).zip(ends(End::High)).peekable();
    if pairs.peek().is_some() {
        let from = "  evenkeel minus each, 95 % paired";
        let _ = writeln!(text, "{from:<48} {:>24} {:>24}", "baseline", "faithful");
    }
    for (low, high) in pairs {
        let of = |low: Option<f64>, high: Option<f64>| match (low, high) {
            (Some(low), Some(high)) => format!("{} to {}", short(low), short(high)),
            _ => String::new(),
        };
        let (baseline, faithful) = (of(low.baseline, high.baseline), of(low.faithful, high.faithful));
        let line = format!("  {:<46} {baseline:>24} {faithful:>24}", low.case);
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(String::new, short)
}

fn unit(row: &Row) -> String {
    if row.unit.is_empty() { String::new() } else { format!(" {}", row.unit) }
}
