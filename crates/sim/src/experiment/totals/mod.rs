//! One reservation and one limit of a tenant over a cluster: [`evenkeel_control::cluster::totals`] in virtual time.
//!
//! The demand for the tenant is spread over the members by Zipf's law, and moves every ten seconds. On each member a second
//! tenant always has requests. Members die, lose the store, lose reports, or have other clocks.
//!
//! | module | contents |
//! |---|---|
//! | [`world`] | all members in virtual time, and the central scheduler |
//! | [`setup`] | a run's setup, and its steps |
//! | `host` | a member with its scheduler and its device |
//! | `exchange` | the store through which members report, with delays and faults |
//! | `traffic` | the bytes that a member sends and receives, and the time for reading them |

mod exchange;
mod host;
pub mod setup;
mod traffic;
pub mod world;

use super::paired::{self, Figures};
use super::{Better, Options, Report, Row, Section};
use crate::statistics::Estimate;
use setup::{LIMIT, RESERVATION, STEPS_PER_S, Setup};
use world::Outcome;

/// Name on the command line and in results.
pub const NAME: &str = "totals";

/// The type [`super::Execute`] with this experiment's setup and outcome.
pub type Execute<'a, E> = super::Execute<'a, E, Setup, Outcome>;

/// Numbers of members.
const MEMBERS: [usize; 4] = [3, 100, 1_000, LARGEST];
/// Number of members that is left out of a quick run, and has [`LARGEST_SEEDS`], as a run takes a minute.
const LARGEST: usize = 10_000;
/// Number of seeds with [`LARGEST`] members.
const LARGEST_SEEDS: usize = 3;
/// The most bytes that a member may send and receive in a period, divided by the square root of the number of members.
const BYTES_PER_ROOT: f64 = 5_000.0;
/// The most processor time that a member may take in a period, in milliseconds.
const PROCESSOR_MS: f64 = 1.0;
/// Length of a judged window, in seconds.
const WINDOW_S: usize = 3;
/// Distance of the beginnings of two windows, in steps.
const STRIDE: usize = STEPS_PER_S / 2;
/// Seconds before the first window.
const LEAD_S: usize = 5;

/// The fault of a case, in addition to demand that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Nothing fails.
    None,
    /// A tenth of the members, at least one, dies and starts again later.
    Death,
    /// A tenth of the members, at least one, loses the store for a while and serves on.
    Partition,
    /// Reports are lost or late.
    Loss,
    /// Members' clocks are off by minutes, so that they report at any time of a period, and are slightly fast or slow.
    Skew,
}

evenkeel_control::named!(Fault: None "moves", Death "death", Partition "partition", Loss "loss", Skew "skew");

/// The shares of a run's windows in which the limit was exceeded or the reservation missed, and the throughput.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    /// Per cent of all windows in which the limit is exceeded by more than 5 %.
    pub limit_exceeded: f64,
    /// Per cent of the settled windows in which less than 95 % of the reservation is served, or of what the central scheduler
    /// serves if that is less.
    pub reservation_missed: f64,
    /// The same of all windows.
    pub missed_of_all: f64,
    /// The part of the reservation that is not served in settled windows though the central scheduler serves it, in per cent of
    /// what that serves of the reservation. A window with more does not make up for one with less.
    pub reservation_deficit: f64,
    /// Service in settled windows, in per cent of that of the central scheduler.
    pub throughput: f64,
}

/// Judges what a method served, per step, against the central scheduler.
pub fn judge(setup: &Setup, served: &[f64], central: &[f64]) -> Judged {
    let length = WINDOW_S * STEPS_PER_S;
    let (mut all, mut settled) = (0.0, 0.0);
    let (mut exceeded, mut missed, mut missed_settled) = (0.0, 0.0, 0.0);
    let (mut ours, mut theirs) = (0.0, 0.0);
    let (mut lacking, mut reserved) = (0.0, 0.0);
    let last = served.len().min(central.len()).saturating_sub(length);
    for from in (LEAD_S * STEPS_PER_S..last).step_by(STRIDE) {
        let sum = |served: &[f64]| served[from..from + length].iter().sum::<f64>();
        let (got, could) = (sum(served), sum(central));
        let wanted = could.min(RESERVATION as f64 * WINDOW_S as f64);
        let is_missed = f64::from(u8::from(got < 0.95 * wanted));
        all += 1.0;
        exceeded += f64::from(u8::from(got > 1.05 * LIMIT as f64 * WINDOW_S as f64));
        missed += is_missed;
        if setup.is_settled(from, from + length) {
            settled += 1.0;
            missed_settled += is_missed;
            ours += got;
            theirs += could;
            lacking += (wanted - got).max(0.0);
            reserved += wanted;
        }
    }
    let percent = |part: f64, whole: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
    Judged {
        limit_exceeded: percent(exceeded, all),
        reservation_missed: percent(missed_settled, settled),
        missed_of_all: percent(missed, all),
        reservation_deficit: percent(lacking, reserved),
        throughput: percent(ours, theirs),
    }
}

/// Runs all cases.
///
/// # Errors
/// The errors of `execute`.
pub fn run<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Report, E> {
    let seconds: u64 = if options.quick { 40 } else { 60 };
    let sizes: Vec<usize> = MEMBERS.into_iter().filter(|members| !options.quick || *members < LARGEST).collect();
    let count = |members: usize| options.count(if members < LARGEST { 30 } else { LARGEST_SEEDS }, 2);
    let mut runs: Vec<(Setup, u64)> = Vec::new();
    for &members in &sizes {
        for fault in Fault::ALL {
            let setup = Setup { members, fault, seconds };
            runs.extend((options.seed..).take(count(members)).map(|seed| (setup.clone(), seed)));
        }
    }
    let outcomes = execute("cases", &runs)?;
    let mut rest = outcomes.as_slice();
    let mut sections = Vec::new();
    for &members in &sizes {
        let text =
            ["death, partition: a tenth of the members, at least one, dies or loses the store from second 12 to 27. \
                     loss: reports are lost or late. skew: clocks are wrong. moves: no fault."];
        let mut section = Section::new(&format!("{members} members"), text);
        for fault in Fault::ALL {
            let (of_case, others) = rest.split_at(count(members).min(rest.len()));
            rest = others;
            if !of_case.is_empty() {
                section.rows.extend(rows(&Setup { members, fault, seconds }, of_case));
            }
        }
        sections.push(section);
    }
    let intro = [
        "A tenant with 3,000 IOPS reserved and a limit of 4,000 asks for 5,000, spread over all members by Zipf's law; \
         the spread changes every 10 s. A second tenant takes all the devices' time that it can get.",
        "Baseline: each member has an equal part of reservation and limit. Evenkeel: each member decides its part by \
         demand, from reports that go through a store once a second, with up to 100 members up to four times a second. \
         central: one scheduler for all members. Figures are of windows of 3 s. A window is settled from 3 s after \
         demand moves, and from 6 s after a member dies, loses the store or returns.",
        "limit_exceeded_percent: windows in which the limit is exceeded by more than 5 %. reservation_missed_percent: \
         settled windows in which less than 95 % of the reservation is served, or of what central serves if that is \
         less (…_of_all: of all windows). …_vs_central_percent: in settled windows, in per cent of central.",
        "Traffic is of values for this tenant alone, as etcd sends them: with more than 100 members those of a shard, \
         and sums of shards. Its bar is 5 KB times the square root of the number of members. Processor time is measured \
         on the machine of the run: for decisions, the modelled store and reading of values, without HTTP.",
        "In cases with skew, clocks are off by minutes and up to 1 % fast or slow; parts depend on the order of reports \
         in the store, not on clocks. In a cluster divided into shards, sums of shards count, too, however far off \
         their clocks are.",
    ];
    let intro = intro.map(str::to_owned).to_vec();
    Ok(Report { experiment: NAME, seed: options.seed, intro, sections, claims: Vec::new() })
}

/// A judged figure of one method, for each outcome of a case.
fn figure(setup: &Setup, outcomes: &[Outcome], served: fn(&Outcome) -> &Vec<f64>, of: fn(&Judged) -> f64) -> Figures {
    outcomes.iter().map(|outcome| of(&judge(setup, served(outcome), &outcome.central))).collect()
}

/// The rows of a judged figure, by method.
fn compared(row: &Row, setup: &Setup, outcomes: &[Outcome], of: fn(&Judged) -> f64) -> Vec<Row> {
    let equal = figure(setup, outcomes, |outcome| &outcome.equal, of);
    let ours = figure(setup, outcomes, |outcome| &outcome.parts, of);
    let central = figure(setup, outcomes, |outcome| &outcome.central, of);
    paired::columns(row, [Some(equal), None, Some(ours)], [("central".to_owned(), central)])
}

fn rows(setup: &Setup, outcomes: &[Outcome]) -> Vec<Row> {
    let case = format!("{} members, {}", setup.members, setup.fault.name());
    let mut rows = Vec::new();
    let row = Row { bar: Some(1.0), ..Row::new(&case, "limit_exceeded_percent", "%", Better::Lower) };
    rows.extend(compared(&row, setup, outcomes, |judged| judged.limit_exceeded));
    let row = Row { bar: Some(1.0), ..Row::new(&case, "reservation_missed_percent", "%", Better::Lower) };
    rows.extend(compared(&row, setup, outcomes, |judged| judged.reservation_missed));
    let row = Row::new(&case, "reservation_missed_of_all_percent", "%", Better::Lower);
    rows.extend(compared(&row, setup, outcomes, |judged| judged.missed_of_all));
    let row = Row { bar: Some(1.0), ..Row::new(&case, "reservation_deficit_vs_central_percent", "%", Better::Lower) };
    rows.extend(compared(&row, setup, outcomes, |judged| judged.reservation_deficit));
    let row = Row { bar: Some(97.0), ..Row::new(&case, "throughput_vs_central_percent", "%", Better::Higher) };
    rows.extend(compared(&row, setup, outcomes, |judged| judged.throughput));
    let bytes = BYTES_PER_ROOT * libm::sqrt(setup.members as f64);
    let mut add = |metric: &str, unit: &'static str, bar: Option<f64>, of: fn(&Outcome) -> f64| {
        let row = Row { bar, ..Row::new(&case, metric, unit, Better::Lower) };
        let ours = Estimate::over(outcomes, of);
        rows.extend(row.columns([None, None, Some(ours)], std::iter::empty::<(&str, Option<f64>)>()));
    };
    add("largest_sum_of_parts", "", Some(1.0 + 1e-9), |outcome| outcome.most);
    add("reports_per_member_and_period", "", None, |outcome| outcome.reports);
    add("traffic_bytes_per_member_and_period", "B", Some(bytes), |outcome| outcome.traffic);
    add("processor_ms_per_member_and_period", "ms", Some(PROCESSOR_MS), |outcome| outcome.processor_ms);
    rows
}
