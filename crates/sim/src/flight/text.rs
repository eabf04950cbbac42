//! Results of replay, fit and advice as text for a terminal, at most 100 columns wide.

use std::fmt::Write as _;

use evenkeel_policy::figures::{aligned, counted};

use super::advise::{Advice, Kept};
use super::figures::{Figures, TargetFigures};
use super::fit::Fit;
use super::replay::Comparison;
use super::speed;
use crate::report::short;

/// Largest width of a line, in columns of the terminal.
const WIDTH: usize = 100;

/// The comparison of a replay as text.
pub fn replay(comparison: &Comparison) -> String {
    let mut out = format!(
        "pool {}: {}, of which {} wait for an earlier one; seed {}\n\n",
        comparison.pool,
        counted(comparison.requests, "request"),
        percent(comparison.dependent),
        comparison.seed
    );
    let heads =
        ["tenant", "run", "requests", "IOPS", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "throttled ms", "missed s"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    let runs = [("recorded", Some(&comparison.recorded)), ("simulated", Some(&comparison.before))];
    let runs: Vec<(&str, &Figures)> = runs
        .into_iter()
        .chain([("changed", comparison.after.as_ref())])
        .filter_map(|(name, figures)| Some((name, figures?)))
        .collect();
    for place in 0..comparison.recorded.tenants.len() {
        for (turn, (name, figures)) in runs.iter().enumerate() {
            let Some(tenant) = figures.tenants.get(place) else { continue };
            let who = if turn == 0 { tenant.tenant.clone() } else { String::new() };
            let numbers = [
                tenant.iops,
                tenant.bytes_per_s / 1e6,
                tenant.p50_ms,
                tenant.p99_ms,
                tenant.p999_ms,
                tenant.throttled_ms,
            ];
            let row = [who, (*name).to_owned(), tenant.requests.to_string()].into_iter();
            table.push(row.chain(numbers.map(short)).chain([tenant.missed_s.to_string()]).collect());
        }
    }
    out += &aligned(&table, 2, WIDTH);
    if !comparison.calibration.is_empty() {
        out += "\ndifference of simulated from recorded:\n";
        for off in &comparison.calibration {
            let _ = writeln!(
                out,
                "  {}: IOPS {}, p50 {}, p99 {}",
                off.tenant,
                signed(off.iops),
                signed(off.p50),
                signed(off.p99)
            );
        }
    }
    for (name, figures) in runs {
        for target in &figures.targets {
            let _ = writeln!(out, "{name}: {}", judged(target));
        }
    }
    out + &notes(&comparison.notes)
}

/// A fitted device as text, without its parameters as TOML.
pub fn fit(fit: &Fit) -> String {
    let mut out = format!(
        "{}, from {} requests; seed {}\n\nmean error on the second half of the recording {}:\n",
        fit.family,
        fit.requests,
        fit.seed,
        percent(fit.error)
    );
    let mut table = vec![["", "recorded", "simulated", "error"].map(str::to_owned).to_vec()];
    for compared in &fit.held_out {
        let unit = if compared.what == "throughput" { "IOPS" } else { "ms" };
        table.push(vec![
            format!("{}, {unit}", compared.what),
            short(compared.recorded),
            short(compared.simulated),
            signed(compared.off()),
        ]);
    }
    out += &aligned(&table, 1, WIDTH);
    out += "\nkinds of device model that were tried, each with its error on the first half (0.1 = about 10 %):\n";
    for tried in &fit.tried {
        let _ = writeln!(out, "  {}: {}", tried.family, short(tried.error));
    }
    let (direct, us) = (&fit.direct, |ns: f64| short(ns / 1e3));
    let _ = writeln!(
        out,
        "\nidle device: a read takes {} µs, a write {} µs; recorded: {} in flight on average, at most {} IOPS, {} MB/s",
        us(direct.read.base_ns),
        us(direct.write.base_ns),
        short(direct.in_flight),
        short(direct.most_iops),
        short(direct.most_bytes_per_s / 1e6)
    );
    out + &notes(&fit.notes)
}

/// Advice as text.
pub fn advice(advice: &Advice) -> String {
    let mut out = format!("pool {}; seed {}\n\n", advice.pool, advice.seed);
    let mut table = vec![["policy", "throughput lost", "targets"].map(str::to_owned).to_vec()];
    for (place, candidate) in advice.candidates.iter().enumerate() {
        let verdict = match (candidate.met, advice.chosen == Some(place)) {
            (true, true) => "met, advised",
            (true, false) => "met",
            (false, _) => "missed",
        };
        table.push(vec![candidate.change.clone(), percent(candidate.lost), verdict.to_owned()]);
    }
    out += &aligned(&table, 1, WIDTH);
    for untried in &advice.untried {
        let _ = writeln!(out, "not simulated: {}: {}", untried.change, untried.failure);
    }
    let shown = advice.chosen().or(advice.candidates.first());
    if let Some(candidate) = shown {
        let _ = writeln!(out, "\n{}:", candidate.change);
        for target in &candidate.figures.targets {
            let _ = writeln!(out, "  {}", judged(target));
        }
        candidate.guarantees.iter().for_each(|kept| out += &guarantee(kept));
        let unfinished = candidate.figures.unfinished;
        if unfinished > 0 {
            let _ =
                writeln!(out, "  {unfinished} requests did not complete: too much load; every target counts as missed");
        }
    }
    if advice.chosen.is_none() {
        return out + &refusal(advice) + &notes(&advice.notes);
    }
    match advice.confidence {
        Some(confidence) => {
            let _ = writeln!(
                out,
                "\nconfidence: the latency targets are met in {} of random draws of simulated seconds (bootstrap);\n\
                 errors of the device model are not included",
                percent(confidence)
            );
        }
        None if advice.chosen().is_some_and(|candidate| candidate.figures.targets.is_empty()) => {}
        None => out += "\nconfidence unknown: the run is too short, or hardly any requests count for a target\n",
    }
    out += &notes(&advice.notes);
    let _ = write!(out, "\n{}", advice.advised);
    out
}

/// The reasons why no policy is advised, and what would meet the targets.
pub(super) fn refusal(advice: &Advice) -> String {
    let mut out = "\nno policy that was tried meets all targets and guarantees\n".to_owned();
    for target in &advice.unjudged {
        let _ = writeln!(out, "  {target}: no recorded request counts; remove the target, or record its requests");
    }
    for unmet in &advice.unmet {
        let (best, ratio) = (short(unmet.best_ms), short(unmet.ratio));
        let _ = writeln!(out, "  {}: {best} ms at best, {ratio} times the target", unmet.target);
    }
    advice.unkept.iter().for_each(|kept| out += &guarantee(kept));
    if advice.unjudged.is_empty() && advice.unmet.is_empty() && advice.unkept.is_empty() {
        out += "  each of them is met by some of these policies, but no policy meets all\n";
    }
    if let Some(faster) = &advice.faster {
        let _ = match faster.factor {
            Some(factor) => {
                writeln!(
                    out,
                    "a device {} times as fast would meet all, by this policy: {}",
                    short(factor),
                    faster.change
                )
            }
            None => writeln!(out, "not even a device {} times as fast would meet all of them", speed::HIGHEST),
        };
    }
    match advice.load_share {
        Some(share) if share > 0.0 => {
            let _ = writeln!(out, "with {} of this load the wanted policy meets its latency targets", percent(share));
        }
        Some(_) => out += "the wanted policy misses its latency targets even down to 1/64 of this load\n",
        None => {}
    }
    out
}

/// A target with its verdict.
fn judged(target: &TargetFigures) -> String {
    let (about, verdict) = (&target.target, target.verdict());
    if target.seconds == 0 {
        return format!("{about}: {verdict}");
    }
    let achieved = short(target.achieved_ms);
    format!("{about}: {verdict} with {achieved} ms, missed in {} of {} s", target.missed_s, target.seconds)
}

/// A guarantee with its verdict, as a line.
fn guarantee(kept: &Kept) -> String {
    let verdict = if kept.met { "met" } else { "missed" };
    let (achieved, due) = (short(kept.achieved), short(kept.due));
    format!("  {}: guarantee {verdict} with {achieved} of {due} {}\n", kept.tenant, kept.unit)
}

fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}

fn percent(share: f64) -> String {
    format!("{} %", short((share * 1000.0).round() / 10.0))
}

fn signed(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}
