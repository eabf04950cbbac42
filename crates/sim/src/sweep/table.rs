//! The results of a plan as text for a terminal, at most 100 columns wide.

use std::fmt::Write as _;

use evenkeel_policy::figures::aligned;

use super::outcome::{Measured, Outcome, PointOutcome};
use super::plan::{self, Plan};
use crate::report::short;

/// Largest width of a line, in columns of the terminal.
const WIDTH: usize = 100;
/// Columns of the table: heading, metric of a tenant, and divisor of the metric's value.
const COLUMNS: [(&str, &str, f64); 6] = [
    ("IOPS", "iops", 1.0),
    ("MB/s", "bytes_per_s", 1e6),
    ("mean ms", "mean_ms", 1.0),
    ("p50 ms", "p50_ms", 1.0),
    ("p99 ms", "p99_ms", 1.0),
    ("p99.9 ms", "p999_ms", 1.0),
];

/// The outcome as text: title, a row for each tenant of each point, and the bounds.
pub fn text(plan: &Plan, outcome: &Outcome) -> String {
    let setup = &plan.points[0].scenario.setup;
    let mut out = format!("{}\n", plan.title);
    let seeds = match plan.seeds {
        1 => format!("seed {}", plan.seed),
        n => format!("mean of {n} seeds from {}, ± half of the 95 % confidence interval", plan.seed),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{} s after {} s of warm-up, {seeds}\n",
        short(setup.duration.as_secs_f64()),
        short(setup.warmup.as_secs_f64())
    );
    out += &rows(plan, outcome);
    out += "\n";
    out += &bounds(plan, outcome);
    out
}

fn rows(plan: &Plan, outcome: &Outcome) -> String {
    let mut table: Vec<Vec<String>> = Vec::new();
    let keys = plan.keys.iter().map(|key| plan::short(key).to_owned());
    let figures = columns(plan.seeds);
    let names = figures.iter().map(|column| column.0.to_owned());
    table.push(keys.chain(["tenant".to_owned()]).chain(names).collect());
    for (point, result) in plan.points.iter().zip(&outcome.points) {
        for (place, tenant) in plan.tenants.iter().enumerate() {
            // A value that is the same as above is not repeated.
            let values = point.values.iter().map(|value| if place == 0 { value.clone() } else { String::new() });
            let figures =
                figures.iter().map(|&(_, metric, unit)| figure(result.metric(&format!("{tenant}.{metric}")), unit));
            table.push(values.chain([tenant.clone()]).chain(figures).collect());
        }
    }
    let mut out = aligned(&table, plan.keys.len() + 1, WIDTH);
    if let ([_], [result]) = (&plan.points[..], &outcome.points[..]) {
        out += &budget(result);
    }
    out
}

/// The columns that fit the width. With several seeds a column is twice as wide, for the confidence interval, so the median is
/// left out.
fn columns(seeds: u32) -> Vec<(&'static str, &'static str, f64)> {
    COLUMNS.into_iter().filter(|column| seeds == 1 || column.1 != "p50_ms").collect()
}

fn figure(measured: &Measured, unit: f64) -> String {
    let mean = short(measured.mean / unit);
    match measured.values.len() {
        1 => mean,
        _ => format!("{mean} ±{}", brief(measured.ci95 / unit)),
    }
}

/// A number as text with two significant digits, enough for the width of a confidence interval.
fn brief(value: f64) -> String {
    let rounded: f64 = format!("{value:.1e}").parse().unwrap_or(value);
    short(rounded)
}

fn budget(result: &PointOutcome) -> String {
    let mean = result.metric("budget_mean_bytes").mean;
    if !mean.is_finite() {
        return "\nadmission budget: none\n".into();
    }
    let (least, most) = (result.metric("budget_min_bytes"), result.metric("budget_max_bytes"));
    let kib = |bytes: f64| if bytes.is_finite() { format!("{} KiB", short(bytes / 1024.0)) } else { "no bound".into() };
    format!(
        "\nadmission budget: mean {}, {} to {}, coefficient of variation {}\n",
        kib(mean),
        kib(least.values.iter().copied().fold(f64::INFINITY, f64::min)),
        kib(most.values.iter().copied().fold(0.0, f64::max)),
        short(result.metric("budget_cv").mean)
    )
}

/// The verdicts on the bounds as text: on all bounds if there is a single point, only on missed bounds in a sweep.
fn bounds(plan: &Plan, outcome: &Outcome) -> String {
    let mut out = String::new();
    let all = || outcome.points.iter().flat_map(|point| &point.bounds);
    if all().next().is_none() {
        return "the scenario has no bounds\n".into();
    }
    for (point, result) in plan.points.iter().zip(&outcome.points) {
        let shown = result.bounds.iter().filter(|bound| plan.points.len() == 1 || !bound.met);
        for bound in shown {
            let sign = if bound.met { "met   " } else { "MISSED" };
            let at = plan.label(point).map_or_else(String::new, |label| format!(" at {label}"));
            let _ = writeln!(out, "{sign} {}: {}{at}", bound.formula(), bound.shown());
        }
    }
    let (met, count) = (all().filter(|bound| bound.met).count(), all().count());
    let _ = writeln!(out, "{met} of {count} bounds met");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncertainty_has_two_digits() {
        assert_eq!((brief(0.012_345), brief(123.4), brief(f64::NAN)), ("0.012".into(), "120".into(), "–".into()));
    }
}
