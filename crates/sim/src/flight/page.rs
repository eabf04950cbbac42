//! Results of replay and advice as pages with plots.

use super::advise::Advice;
use super::figures::{Figures, Moment, TargetFigures};
use super::replay::Comparison;
use super::text::refusal;
use crate::report::{Axis, Block, Cell, Check, Decimal, Page, Plot, Section, Series, Style, Table};

/// Group of the plots over time, which makes them zoom together.
const TIME: &str = "time";

/// The page of a replay; `command` is the command line that repeats it.
pub fn page(comparison: &Comparison, command: String) -> Page {
    let facts = [
        ("pool", comparison.pool.clone()),
        ("requests", comparison.requests.to_string()),
        ("seed", comparison.seed.to_string()),
        ("evenkeel", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let source = Section { title: "Command".into(), text: vec![command], blocks: Vec::new() };
    Page {
        title: format!("Replay of pool {}", comparison.pool),
        intro: comparison.notes.clone(),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).into(),
        checks: checks(comparison),
        sections: vec![table(comparison), course(comparison), source],
    }
}

/// The page of an advice; `command` is the command line that repeats it.
pub fn advice(advice: &Advice, command: String) -> Page {
    let facts = [
        ("pool", advice.pool.clone()),
        ("seed", advice.seed.to_string()),
        ("evenkeel", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let mut intro = match advice.chosen() {
        Some(chosen) => vec![format!("Advised: {}.", chosen.change)],
        None => refusal(advice).lines().filter(|line| !line.is_empty()).map(|line| line.trim().to_owned()).collect(),
    };
    intro.extend(advice.notes.iter().cloned());
    let mut sections = vec![policies(advice)];
    if !advice.advised.is_empty() {
        let listing = Block::Listing { title: "TOML".into(), text: advice.advised.clone() };
        sections.push(Section { title: "Policy to use".into(), text: Vec::new(), blocks: vec![listing] });
    }
    sections.push(Section { title: "Command".into(), text: vec![command], blocks: Vec::new() });
    let shown = advice.chosen().or(advice.candidates.first());
    let checks = match shown {
        Some(shown) => shown.figures.targets.iter().map(|target| check(&shown.change, target)).collect(),
        None => Vec::new(),
    };
    Page {
        title: format!("Advice on pool {}", advice.pool),
        intro,
        facts: facts.map(|(name, value)| (name.to_owned(), value)).into(),
        checks,
        sections,
    }
}

/// The policies that were tried, as a table and by lost throughput and worst figure.
fn policies(advice: &Advice) -> Section {
    let columns = ["policy", "throughput lost, %", "worst figure / target", "met"];
    let rows = advice.candidates.iter().map(|candidate| {
        let worst = if candidate.worst().is_finite() { Cell::Number(Decimal(candidate.worst())) } else { Cell::Empty };
        let lost = Cell::Number(Decimal(candidate.lost * 100.0));
        vec![Cell::Text(candidate.change.clone()), lost, worst, Cell::Met(candidate.met)]
    });
    let table = Table { title: String::new(), columns: columns.map(str::to_owned).into(), rows: rows.collect() };
    let series = [("met", true), ("missed", false)].map(|(name, met)| {
        let own = advice.candidates.iter().filter(|candidate| candidate.met == met);
        let points = own.map(|candidate| (candidate.lost * 100.0, candidate.worst(), candidate.change.clone()));
        Series::named(name, Style::Dots, points)
    });
    let (x, y) = (Axis::linear("throughput lost, %"), Axis::log("worst figure / target"));
    let plot = Plot::new("Frontier", "Points to the left below 1 are best.", x, y, series);
    let text = "Each policy is the wanted one with one change. The worst figure is that of the target that is missed \
                most, or a due rate divided by the achieved one.";
    Section { title: "Policies".into(), text: vec![text.into()], blocks: vec![Block::Plot(plot), Block::Table(table)] }
}

/// The runs that are compared, with their names.
fn runs(comparison: &Comparison) -> Vec<(&'static str, &Figures)> {
    let mut runs = vec![("recorded", &comparison.recorded), ("simulated", &comparison.before)];
    runs.extend(comparison.after.as_ref().map(|after| ("changed", after)));
    runs
}

/// The verdict on a target in the run `name`.
fn check(name: &str, target: &TargetFigures) -> Check {
    Check {
        what: format!("{name}: {}", target.target),
        measured: format!("{} ms", crate::report::short(target.achieved_ms)),
        met: target.met,
        note: match target.seconds {
            0 => "no requests".to_owned(),
            seconds => format!("missed in {} of {seconds} s", target.missed_s),
        },
    }
}

fn checks(comparison: &Comparison) -> Vec<Check> {
    let of = |(name, figures): (&'static str, &Figures)| -> Vec<Check> {
        figures.targets.iter().map(|target| check(name, target)).collect()
    };
    runs(comparison).into_iter().flat_map(of).collect()
}

fn table(comparison: &Comparison) -> Section {
    let columns = [
        "tenant",
        "run",
        "requests",
        "IOPS",
        "MB/s",
        "mean, ms",
        "p50, ms",
        "p99, ms",
        "p99.9, ms",
        "throttled, ms",
        "target missed, s",
    ];
    let mut rows = Vec::new();
    for place in 0..comparison.recorded.tenants.len() {
        for (name, figures) in runs(comparison) {
            let Some(tenant) = figures.tenants.get(place) else { continue };
            let numbers = [
                tenant.requests as f64,
                tenant.iops,
                tenant.bytes_per_s / 1e6,
                tenant.mean_ms,
                tenant.p50_ms,
                tenant.p99_ms,
                tenant.p999_ms,
                tenant.throttled_ms,
                tenant.missed_s as f64,
            ];
            let texts = [Cell::Text(tenant.tenant.clone()), Cell::Text(name.to_owned())];
            rows.push(texts.into_iter().chain(numbers.map(|number| Cell::Number(Decimal(number)))).collect());
        }
    }
    let table = Table { title: String::new(), columns: columns.map(str::to_owned).into(), rows };
    let text = vec![
        "Recorded: as it was. Simulated: the recorded policy on the device as given, to check both. Changed: with the \
         new policy, or the device as set. Throttled: mean queue latency of a request."
            .to_owned(),
    ];
    Section { title: "Tenants".into(), text, blocks: vec![Block::Table(table)] }
}

fn course(comparison: &Comparison) -> Section {
    let mut blocks = Vec::new();
    for (place, tenant) in comparison.recorded.tenants.iter().enumerate() {
        let plot = |title: &str, y: Axis, of: &dyn Fn(&Moment) -> f64| {
            let lines = runs(comparison).into_iter().map(|(name, figures)| {
                let moments = figures.course.iter().enumerate();
                // A second without requests has no moments.
                let at = |all: &Vec<Moment>| all.get(place).copied().unwrap_or_default();
                let points = moments.map(|(second, all)| (second as f64, of(&at(all))));
                Series::new(name, Style::Line, points)
            });
            let title = format!("{title}: {}", tenant.tenant);
            Block::Plot(Plot { link: TIME.into(), ..Plot::new(title, "", Axis::linear("time, s"), y, lines) })
        };
        blocks.push(plot("Throughput", Axis::linear("IOPS"), &|moment| moment.requests as f64));
        blocks.push(plot("Latency, 99th percentile", Axis::log("ms"), &|moment| {
            if moment.requests == 0 { f64::NAN } else { moment.p99_ns as f64 / 1e6 }
        }));
    }
    let text = "Each request counts in the second in which it completes.";
    Section { title: "Over time".into(), text: vec![text.into()], blocks }
}
