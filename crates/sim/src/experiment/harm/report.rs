//! The report: for each controller, how many cases each method harms and helps.

use evenkeel_control::{placement as connections, slots as latency_targets};

use super::judge::GAINED;
use super::response::{self, Method};
use super::{Config, placement, slots, throughput};
use crate::experiment::{Better, Claim, Execute, Options, Report, Row, Section};

/// Name on the command line and in results.
pub const NAME: &str = "harm";

/// Number of cases in a set. For admission control a full run judges all of them.
pub const SET: u64 = 1_000;
/// Number of cases that a quick run judges for admission control.
const QUICK_CASES: u64 = 60;
/// Number of cases that a full run judges for each other controller.
const OTHER_CASES: u64 = 200;
/// Number of cases that a quick run judges for each other controller.
const OTHER_QUICK_CASES: u64 = 24;
/// Bar: the largest share of the cases that the project's own method may harm, 0 to 1.
const BAR: f64 = 0.01;

/// The controller that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Admission control.
    Admission,
    /// The latency target of a pool.
    LatencyTarget,
    /// The placement of connections.
    Placement,
    /// Latency targets of hosts that share a device.
    Slots,
    /// Guarantees of throughput on a cached device.
    Guarantees,
}

evenkeel_control::named!(Controller: Admission "admission", LatencyTarget "latency target", Placement "placement",
    Slots "slots", Guarantees "guarantees");

impl Controller {
    /// Names of the judged methods, in this order: the project's own, the published one if any, and constants if any.
    fn methods(self) -> Vec<String> {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        match self {
            Self::Admission => super::methods().into_iter().map(|method| method.name).collect(),
            Self::LatencyTarget => names(&["adaptive", "pid"]),
            Self::Placement => names(&placements().map(|config| config.name())),
            Self::Slots => names(&["slots"]),
            Self::Guarantees => names(&["accurate"]),
        }
    }

    /// Names of the verdicts that are counted for the controller.
    const fn metrics(self) -> &'static [&'static str] {
        match self {
            Self::Admission | Self::Placement => &["harmed", "harmed_gravely", "helped", "gained"],
            Self::LatencyTarget => &["harmed", "harmed_gravely", "helped"],
            Self::Slots | Self::Guarantees => &["harmed", "harmed_gravely"],
        }
    }
}

fn placements() -> [connections::Config; 2] {
    [connections::Config::default(), connections::Config::Genetic(connections::Moving::published())]
}

/// The cases and controllers to judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The controllers.
    pub controllers: Vec<Controller>,
    /// Cases per controller, at most [`SET`]. `None`: 1,000 for admission control and 200 for each other controller, fewer in
    /// a quick run.
    pub cases: Option<u64>,
}

/// The verdict on a method in one case.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// True if the method is worse than its reference (no control, or the best fixed setting).
    pub harmed: bool,
    /// True if the method is far worse than its reference.
    pub gravely: bool,
    /// True if the method is far better than its reference.
    pub helped: bool,
    /// The method's gain divided by the best constant's; `None` where no constant is worth having.
    pub(super) part_of_gain: Option<f64>,
    /// The method's effect on throughput and latencies, in words.
    pub(super) effect: String,
    /// The text of a small scenario that shows the harm; `None` if no harm was found or none was sought.
    pub failure: Option<String>,
}

impl Judged {
    fn new(verdict: super::Verdict, effect: &dyn std::fmt::Display, part_of_gain: Option<f64>) -> Self {
        let super::Verdict { harmed, gravely, helped } = verdict;
        Self { harmed, gravely, helped, part_of_gain, effect: effect.to_string(), failure: None }
    }
}

/// Judges a controller's methods on the case of a seed; the project's own method comes first. With `shrinks`, a small
/// scenario that shows the harm is sought if the project's admission control harms the case.
///
/// # Errors
/// The errors of `execute`.
pub fn judge<E>(
    controller: Controller,
    seed: u64,
    shrinks: bool,
    execute: &mut Execute<'_, E>,
) -> Result<Vec<Judged>, E> {
    Ok(match controller {
        Controller::Admission => {
            let methods = super::methods();
            let Some(case) = super::case(seed, f64::INFINITY, &methods, execute)? else { return Ok(Vec::new()) };
            let mut judged = admission(&case, &methods);
            if shrinks && judged[0].harmed {
                judged[0].failure = super::failure(&case, &methods[0], execute);
            }
            judged
        }
        Controller::LatencyTarget => {
            let methods = [Method::Adaptive, Method::Pid];
            let case = response::case(seed, f64::INFINITY, &methods, execute)?;
            let judged = |case: &response::Case, method| Judged::new(case.verdict(method), case.effect(method), None);
            case.map_or_else(Vec::new, |case| (0..methods.len()).map(|method| judged(&case, method)).collect())
        }
        Controller::Placement => placements()
            .map(|config| {
                let case = placement::judge(seed, config);
                Judged::new(case.verdict(), &case.effect, case.part_of_gain)
            })
            .to_vec(),
        Controller::Slots => {
            let effect = slots::judged(seed, latency_targets::Config::NEEDS);
            vec![Judged::new(effect.verdict(), &effect.light, None)]
        }
        Controller::Guarantees => {
            let effect = throughput::judged(seed);
            vec![Judged::new(effect.verdict(), &effect.light, None)]
        }
    })
}

fn admission(case: &super::Case, methods: &[super::Method]) -> Vec<Judged> {
    let constants: Vec<usize> =
        (0..methods.len()).filter(|&place| matches!(methods[place].admission, Config::Fixed { .. })).collect();
    let judged = |place| Judged::new(case.verdict(place), case.effect(place), case.part_of_gain(place, &constants));
    (0..methods.len()).map(judged).collect()
}

/// Seed of a case, and the verdict on each method.
pub type Answer = (u64, Vec<Judged>);

/// The number of cases that the method with number `method` harms, and the number that it helps.
fn counts(answers: &[Answer], method: usize) -> (usize, usize) {
    let count = |counts: fn(&Judged) -> bool| answers.iter().filter(|(_, judged)| counts(&judged[method])).count();
    (count(|case| case.harmed), count(|case| case.helped))
}

/// The number of the constant method that harms the fewest cases; among equals, of the one that helps most cases.
fn best_constant(answers: &[Answer], methods: usize) -> Option<usize> {
    (2..methods).min_by_key(|&method| {
        let (harmed, helped) = counts(answers, method);
        (harmed, std::cmp::Reverse(helped))
    })
}

/// The report section of one controller: rows that count verdicts. `methods` are the project's own, the published one, and
/// constants; each constant has a row, and the best one also fills the baseline column. `asked`: number of cases planned.
/// `metrics`: names of the verdicts to count.
pub(super) fn section(title: &str, asked: usize, methods: &[String], answers: &[Answer], metrics: &[&str]) -> Section {
    let count = answers.len();
    let best = best_constant(answers, methods.len());
    let mut rows = Vec::new();
    for &metric in metrics {
        let counts = |case: &Judged| match metric {
            "harmed" => case.harmed,
            "harmed_gravely" => case.gravely,
            "helped" => case.helped,
            _ => case.part_of_gain.is_some_and(|part| part >= GAINED),
        };
        let of = |method: usize| answers.iter().filter(|(_, judged)| counts(&judged[method])).count() as f64;
        let better = if metric.starts_with("harmed") { Better::Lower } else { Better::Higher };
        let worth = || answers.iter().filter(|(_, judged)| judged[0].part_of_gain.is_some()).count();
        let case = match metric {
            "gained" => format!("{title}, {} cases that a constant helps", worth()),
            _ => format!("{title}, {count} drawn cases"),
        };
        let row = Row::new(&case, metric, "cases", better);
        let bar = match metric {
            "harmed" => Some((BAR * count as f64).floor()),
            "harmed_gravely" => Some(0.0),
            _ => None,
        };
        let faithful = (methods.len() > 1).then(|| of(1));
        rows.push(Row { evenkeel: Some(of(0)), faithful, baseline: best.map(of), bar, ..row.clone() });
        for (method, name) in methods.iter().enumerate().skip(2) {
            rows.push(Row { method: Some(name.clone()), baseline: Some(of(method)), ..row.clone() });
        }
    }
    let range = answers.first().zip(answers.last());
    let mut text = vec![range.map_or_else(
        || "No case was judged.".to_owned(),
        |((first, _), (last, _))| format!("Cases {first} to {last} of the generator."),
    )];
    if count < asked {
        text.push(format!("Interrupted: {count} of {asked} cases were judged."));
    }
    for (method, name) in methods.iter().enumerate() {
        for (seed, judged) in answers.iter().filter(|(_, judged)| judged[method].harmed) {
            let gravely = if judged[method].gravely { " gravely" } else { "" };
            text.push(format!("Case {seed} is harmed{gravely} by {name}: {}", judged[method].effect));
        }
    }
    Section { title: title.into(), text, rows, figures: Vec::new() }
}

/// The claim that the first method harms fewer cases and helps more than each constant; `None` if there is no constant. The
/// claim's numbers name the best constant.
pub(super) fn claim(methods: &[String], answers: &[Answer]) -> Option<Claim> {
    let best = best_constant(answers, methods.len())?;
    let (harmed, helped) = counts(answers, 0);
    let beats = |method| {
        let (others_harmed, others_helped) = counts(answers, method);
        harmed < others_harmed && helped > others_helped
    };
    let (best_harmed, best_helped) = counts(answers, best);
    Some(Claim {
        source: "aim",
        text: "Admission control harms fewer cases and helps more than each fixed budget.".into(),
        reproduced: (2..methods.len()).all(beats),
        numbers: format!(
            "{} harms {harmed} and helps {helped} of {} cases; {}, the fixed budget that harms the fewest, harms \
             {best_harmed} and helps {best_helped}",
            methods[0],
            answers.len(),
            methods[best],
        ),
    })
}

/// A function that judges a controller on the cases of these seeds. Answers come in the order of the seeds; after an
/// interrupt the last ones are missing.
pub type Ask<'a, E> = dyn FnMut(Controller, &[u64]) -> Result<Vec<Answer>, E> + 'a;

/// Judges the plan's controllers by `ask`; the report counts the cases that each method harms and helps.
///
/// # Errors
/// The errors of `ask`.
pub fn run<E>(options: &Options, plan: &Plan, ask: &mut Ask<'_, E>) -> Result<Report, E> {
    let from = options.seed * SET;
    let (mut sections, mut claims) = (Vec::new(), Vec::new());
    for &controller in &plan.controllers {
        let usual = match (controller, options.quick) {
            (Controller::Admission, false) => SET,
            (Controller::Admission, true) => QUICK_CASES,
            (_, false) => OTHER_CASES,
            (_, true) => OTHER_QUICK_CASES,
        };
        let seeds: Vec<u64> = (from..from + plan.cases.unwrap_or(usual).min(SET)).collect();
        let (methods, answers) = (controller.methods(), ask(controller, &seeds)?);
        sections.push(section(controller.name(), seeds.len(), &methods, &answers, controller.metrics()));
        claims.extend(claim(&methods, &answers));
        if answers.len() < seeds.len() {
            break;
        }
    }
    Ok(Report {
        experiment: NAME,
        seed: options.seed,
        intro: [
            "Each controller is compared with a reference, which is no control, on devices and loads drawn at random. A case \
             is harmed if total throughput is below 0.95 of the reference's, or a light tenant's p50 or p99 above 1.1 of the \
             reference's (99 % confidence); harmed_gravely: below 0.8, or above 2. A case is helped if light tenants have \
             half of the reference's p99 at 0.97 of its throughput. A case may be both. gained: of the cases in which the \
             best constant setting helps (chosen on one seed, judged on another), those in which the method helps at least \
             half as much.",
            "Half of the cases of admission control carry a limit, a reservation or a latency target. There the reference is \
             the best fixed setting under the same policy, chosen on a seed of its own, and less than 0.95 of a reservation \
             is harm, too.",
        ].map(str::to_owned).to_vec(),
        sections,
        claims,
    })
}
