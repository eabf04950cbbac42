//! How many cases each method harms and helps, of each controller.

use evenkeel_control::{placement as connections, slots as latency_targets};

use super::response::{self, Method};
use super::{Config, placement, slots, throughput};
use crate::experiment::{Better, Execute, Options, Report, Row, Section};

/// Name of the experiment.
pub const NAME: &str = "harm";

/// Cases of a whole run and of a quick one: of admission, and of every other controller.
const CASES: u64 = 1_000;
const QUICK_CASES: u64 = 60;
const OTHER_CASES: u64 = 200;
const OTHER_QUICK_CASES: u64 = 24;
/// Part of a constant's gain that counts as having it.
const GAINED: f64 = 0.5;

/// Asks the judge of one controller, who makes the runs of a case alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asked {
    /// The placement of connections.
    Placement(connections::Config),
    /// Latency targets of hosts that share a device.
    Slots(latency_targets::Config),
    /// Guarantees of throughput on a cached device.
    Throughput,
}

impl Asked {
    /// The method that is judged.
    fn method(&self) -> &'static str {
        match self {
            Self::Placement(config) => config.name(),
            Self::Slots(_) => "slots",
            Self::Throughput => "accurate",
        }
    }
}

/// What came of a case.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    pub(super) harmed: bool,
    pub(super) gravely: bool,
    pub(super) helped: bool,
    pub(super) part_of_gain: Option<f64>,
    pub(super) effect: String,
}

/// Judges one case.
pub fn judge(asked: Asked, seed: u64) -> Judged {
    let shared = |super::shared::Verdict { harmed, gravely }, light: &super::shared::Light| Judged {
        harmed,
        gravely,
        effect: light.to_string(),
        ..Judged::default()
    };
    match asked {
        Asked::Placement(config) => {
            let case = placement::judge(seed, config);
            let super::Verdict { harmed, gravely, helped } = case.verdict();
            Judged { harmed, gravely, helped, part_of_gain: case.part_of_gain, effect: case.effect.to_string() }
        }
        Asked::Slots(config) => {
            let effect = slots::judged(seed, config);
            shared(effect.verdict(), &effect.light)
        }
        Asked::Throughput => {
            let effect = throughput::judged(seed);
            shared(effect.verdict(), &effect.light)
        }
    }
}

/// The cases of a method.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) judged: Vec<Judged>,
}

/// Rows of counts. The first method is ours, the second one the published one; others have rows of their own. `metrics` are
/// those that the judge of this controller knows.
pub(super) fn section(title: &str, from: u64, methods: &[Column], metrics: &[&str]) -> Section {
    let count = methods.first().map_or(0, |method| method.judged.len());
    let mut rows = Vec::new();
    for &metric in metrics {
        let counts = |case: &&Judged| match metric {
            "harmed" => case.harmed,
            "harmed_gravely" => case.gravely,
            "helped" => case.helped,
            _ => case.part_of_gain.is_some_and(|part| part >= GAINED),
        };
        let of = |method: &Column| method.judged.iter().filter(counts).count() as f64;
        let better = if metric.starts_with("harmed") { Better::Lower } else { Better::Higher };
        let worth = || methods[0].judged.iter().filter(|case| case.part_of_gain.is_some()).count();
        let case = match metric {
            "gained" => format!("{title}, {} cases worth it", worth()),
            _ => format!("{title}, {count} drawn cases"),
        };
        let row = Row::new(&case, metric, "cases", better);
        rows.push(Row { evenkeel: methods.first().map(of), faithful: methods.get(1).map(of), ..row.clone() });
        for method in methods.iter().skip(2) {
            rows.push(Row { method: Some(method.name.clone()), baseline: Some(of(method)), ..row.clone() });
        }
    }
    let mut text = vec![format!("Cases {from} to {} of the generator.", (from + count as u64).saturating_sub(1))];
    for Column { name, judged } in methods {
        for (seed, case) in (from..).zip(judged).filter(|(_, case)| case.harmed) {
            let gravely = if case.gravely { " gravely" } else { "" };
            text.push(format!("Case {seed} is harmed{gravely} by {name}: {}", case.effect));
        }
    }
    Section { title: title.into(), text, rows, figures: Vec::new() }
}

/// Runs of judges, in the same order.
pub type Ask<'a, E> = dyn FnMut(&str, &[(Asked, u64)]) -> Result<Vec<Judged>, E> + 'a;

/// How many cases each method harms and helps.
///
/// # Errors
/// Those of `execute` and `ask`.
pub fn run<E>(options: &Options, execute: &mut Execute<'_, E>, ask: &mut Ask<'_, E>) -> Result<Report, E> {
    let (count, others) = if options.quick { (QUICK_CASES, OTHER_QUICK_CASES) } else { (CASES, OTHER_CASES) };
    let from = options.seed * CASES;
    let mut sections = vec![admission(from, count, execute)?, latency_target(from, others, execute)?];
    let published = connections::Config::Genetic(connections::Moving::published());
    for (title, metrics, methods) in [
        (
            "placement",
            &["harmed", "harmed_gravely", "helped", "gained"][..],
            &[Asked::Placement(connections::Config::default()), Asked::Placement(published)][..],
        ),
        ("slots", &["harmed", "harmed_gravely"], &[Asked::Slots(latency_targets::Config::NEEDS)]),
        ("guarantees", &["harmed", "harmed_gravely"], &[Asked::Throughput]),
    ] {
        let mut columns = Vec::new();
        for &asked in methods {
            let runs: Vec<(Asked, u64)> = (from..from + others).map(|seed| (asked, seed)).collect();
            columns.push(Column { name: asked.method().into(), judged: ask(title, &runs)? });
        }
        sections.push(section(title, from, &columns, metrics));
    }
    Ok(Report {
        experiment: NAME,
        seed: options.seed,
        intro: vec![
            "Each controller against none, on devices and loads drawn at random. A case is harmed if total throughput is \
             below 0.95 of none's or a light tenant's p50 or p99 above 1.1 of none's, beyond doubt (99 %); it is helped if \
             light tenants have half of none's p99 at 0.97 of its throughput. A case may be both. Where the best constant \
             helps (chosen on one seed, judged on another), a method has gained if it has half of that."
                .into(),
        ],
        sections,
        claims: Vec::new(),
    })
}

fn admission<E>(from: u64, count: u64, execute: &mut Execute<'_, E>) -> Result<Section, E> {
    let methods = super::methods();
    let cases = super::cases(from, count, f64::INFINITY, &methods, execute)?;
    let constants: Vec<usize> =
        (0..methods.len()).filter(|&place| matches!(methods[place].admission, Config::Fixed { .. })).collect();
    let columns: Vec<Column> = (methods.iter().enumerate())
        .map(|(place, method)| {
            let judged = |case: &super::Case| {
                let super::Verdict { harmed, gravely, helped } = case.verdict(place);
                let part_of_gain = case.part_of_gain(place, &constants);
                Judged { harmed, gravely, helped, part_of_gain, effect: case.effect(place).to_string() }
            };
            Column { name: method.name.clone(), judged: cases.iter().map(judged).collect() }
        })
        .collect();
    Ok(section("admission", from, &columns, &["harmed", "harmed_gravely", "helped", "gained"]))
}

fn latency_target<E>(from: u64, count: u64, execute: &mut Execute<'_, E>) -> Result<Section, E> {
    let methods = [("adaptive", Method::Adaptive), ("pid", Method::Pid)];
    let cases = response::cases(from, count, f64::INFINITY, &methods.map(|(_, method)| method), execute)?;
    let columns = [0, 1].map(|place| {
        let judged = |case: &response::Case| {
            let response::Verdict { harmed, gravely, helped } = case.verdict(place);
            Judged { harmed, gravely, helped, part_of_gain: None, effect: case.effect(place).to_string() }
        };
        Column { name: methods[place].0.into(), judged: cases.iter().map(judged).collect() }
    });
    Ok(section("latency target", from, &columns, &["harmed", "harmed_gravely", "helped"]))
}
