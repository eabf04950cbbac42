//! Figures 12 to 16: response time targets of a small reader beside twelve writers, which write in bursts.

use std::collections::BTreeMap;

use evenkeel_control::response::Config;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::link::{Delayed, LinkParams};

use super::hosts::{READER, at, ms, reader, writers};
use super::judge::{ABOVE_BAR, Verdict, judge};
use super::tuning::{PARAMETERS, PID, pid};
use super::world::{Control, Outcome, Setup, Tick, read_ms, written_mb_per_s};
use super::{Execute, Options};
use crate::experiment::paired::{self, Figures};
use crate::experiment::{Better, Claim, Row, Section};
use crate::report::{Axis, Plot, Series, Style};
use crate::statistics::Estimate;

/// The paper's response time targets, in ms.
const TARGETS_MS: [f64; 3] = [20.0, 15.0, 10.0];
/// Step of the constant delays that are tried, in tenths of a ms: 0.5 ms, the distance of the paper's delay classes.
const STEP_TENTHS: u32 = 5;
/// The largest constant delay that is tried, in tenths of a ms.
const MOST_TENTHS: u32 = 200;
/// Start of the writers' first burst, in seconds of the run, as in the paper.
const LEAD_S: u64 = 10;
/// Pause between two bursts of the writers, in seconds, as in the paper.
const PAUSE_S: u64 = 5;

/// Bar: the longest time to settle after the beginning of a burst, in seconds.
const SETTLE_BAR: f64 = 1.0;
/// Bar: the lowest written throughput, in per cent of the throughput with the best constant delay.
const WRITTEN_BAR: f64 = 97.0;

/// Beginning and end of each burst of the writers.
fn bursts(options: &Options) -> Vec<(Instant, Instant)> {
    let (length, count) = if options.quick { (15, 2) } else { (30, 3) };
    (0..count).map(|n| LEAD_S + n * (length + PAUSE_S)).map(|begin| (at(begin), at(begin + length))).collect()
}

fn setup(bursts: &[(Instant, Instant)], control: Control) -> Setup {
    let end = bursts.last().map_or(Instant::ZERO, |&(_, end)| end) + Duration::from_secs(PAUSE_S);
    let duration = end.since(Instant::ZERO);
    let hosts = std::iter::once(reader(duration)).chain(writers(3, bursts)).collect();
    Setup { link: LinkParams::shared(), hosts, on: Delayed::Acknowledgements, control, duration }
}

/// The control that delays all writers by a constant time, in ms.
fn constant(delay_ms: f64) -> Control {
    Control::Schedule((0..3).map(|host| (Instant::ZERO, READER + 1 + host, ms(delay_ms))).collect())
}

/// An arm: the control of the writers' delay in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    /// A constant delay, in tenths of a ms; 0 means no control.
    Constant(u32),
    /// The published controller with the target at this index of [`TARGETS_MS`].
    Published(usize),
    /// The project's own controller with the target at this index of [`TARGETS_MS`].
    Ours(usize),
    /// The published controller with tuned constants and the target at this index of [`TARGETS_MS`].
    Tuned(usize),
}

impl Arm {
    /// The arm's control; `tuned` are the tuned values of the published controller's [`PARAMETERS`].
    fn control(self, tuned: &[f64]) -> Control {
        match self {
            Self::Constant(tenths) => constant(f64::from(tenths) / 10.0),
            Self::Published(target) => Control::Controller(Config::pid(ms(TARGETS_MS[target]))),
            Self::Ours(target) => Control::Controller(Config::adaptive(ms(TARGETS_MS[target]))),
            Self::Tuned(target) => Control::Controller(pid(TARGETS_MS[target], tuned)),
        }
    }
}

/// An arm's verdicts by one response time target, one for each seed.
struct Judged(Vec<Verdict>);

impl Judged {
    fn estimate(&self, figure: impl Fn(&Verdict) -> f64) -> Estimate {
        Estimate::over(&self.0, figure)
    }

    fn figures(&self, figure: impl Fn(&Verdict) -> f64) -> Figures {
        self.0.iter().map(figure).collect()
    }

    fn above_percent(&self) -> f64 {
        self.estimate(Verdict::above_percent).mean
    }

    /// Throughput relative to that under `best`, in per cent.
    fn written_percent(&self, best: &Self) -> Figures {
        let [ours, best] = [self, best].map(|judged| judged.figures(|verdict| verdict.written_mb_per_s));
        paired::ratios(&ours, &best).into_iter().map(|ratio| 100.0 * ratio).collect()
    }
}

/// The figure of the first burst. `values` has one figure for each burst.
fn first(values: &[f64]) -> f64 {
    values.first().copied().unwrap_or(f64::NAN)
}

fn later(values: &[f64]) -> f64 {
    Estimate::of(values.get(1..).unwrap_or_default()).mean
}

/// The outcomes of each arm's runs, one for each seed.
type Outcomes = BTreeMap<Arm, Vec<Outcome>>;

fn judged(outcomes: &Outcomes, arm: Arm, bursts: &[(Instant, Instant)], target_ms: f64) -> Judged {
    Judged(outcomes[&arm].iter().map(|run| judge(run, bursts, target_ms)).collect())
}

/// The smallest constant delay, in tenths of a ms, under which at most [`ABOVE_BAR`] per cent of the windows are above the
/// target, with its verdicts.
fn best_constant(outcomes: &Outcomes, bursts: &[(Instant, Instant)], target_ms: f64) -> Option<(u32, Judged)> {
    let constants =
        outcomes.keys().filter_map(|&arm| if let Arm::Constant(tenths) = arm { Some(tenths) } else { None });
    let judged = constants.map(|tenths| (tenths, judged(outcomes, Arm::Constant(tenths), bursts, target_ms)));
    judged.into_iter().find(|(_, judged)| judged.above_percent() <= ABOVE_BAR)
}

/// Runs figures 11 to 16: constant delays, the published controller and the project's own with all response time targets.
pub(super) fn run<E>(
    options: &Options,
    execute: &mut Execute<'_, E>,
    claims: &mut Vec<Claim>,
) -> Result<Vec<Section>, E> {
    let bursts = bursts(options);
    let seeds: Vec<u64> = (options.seed..).take(options.count(30, 5)).collect();
    let tuned = options.tuned.values(PID, &PARAMETERS);
    let classes = (0..=MOST_TENTHS).step_by(STEP_TENTHS as usize).map(Arm::Constant);
    let mut arms: Vec<Arm> =
        classes.chain((0..TARGETS_MS.len()).flat_map(|target| [Arm::Published(target), Arm::Ours(target)])).collect();
    arms.extend((0..TARGETS_MS.len()).filter(|_| tuned.is_some()).map(Arm::Tuned));
    let mut outcomes = Outcomes::default();
    let mut add = |arms: Vec<Arm>, outcomes: &mut Outcomes| -> Result<(), E> {
        let setup_of = |arm: &Arm| setup(&bursts, arm.control(tuned.as_deref().unwrap_or_default()));
        let runs: Vec<(Setup, u64)> =
            arms.iter().flat_map(|arm| seeds.iter().map(|&seed| (setup_of(arm), seed)).collect::<Vec<_>>()).collect();
        let mut made = execute("targets", &runs)?.into_iter();
        outcomes.extend(arms.into_iter().map(|arm| (arm, made.by_ref().take(seeds.len()).collect())));
        Ok(())
    };
    add(arms, &mut outcomes)?;
    // The best class is at most half a ms above the best constant.
    let between = |target_ms: f64, outcomes: &Outcomes| -> Vec<Arm> {
        let best = best_constant(outcomes, &bursts, target_ms).map_or(0, |(tenths, _)| tenths);
        (best.saturating_sub(STEP_TENTHS - 1)..best).map(Arm::Constant).collect()
    };
    let mut finer: Vec<Arm> = TARGETS_MS.into_iter().flat_map(|target_ms| between(target_ms, &outcomes)).collect();
    finer.sort_unstable();
    finer.dedup();
    add(finer, &mut outcomes)?;
    let mut section = Section::new(
        "Figures 12 to 16: latency targets",
        [
            format!(
                "A reader of 4 KiB at 256 KiB/s and, in bursts of {} s with {PAUSE_S} s in between, 12 writers of 64 KiB on \
                 three hosts. Means over 1 s are held against the target, from 1 s after the beginning of each burst on. \
                 Baseline: no control. Best constant delay: the smallest multiple of 0.1 ms with at most 1 % of the \
                 windows above the target over all seeds, in force all the time; chosen with hindsight.",
                bursts[0].1.since(bursts[0].0).as_secs_f64(),
            ),
            "The published controller's gains are not in the paper; these held a real target with the same load \
             (0.3 classes/ms, 1 s, weight of the newest sample 0.15)."
                .to_owned(),
            options.tuned.text(),
        ],
    );
    for (place, target_ms) in TARGETS_MS.into_iter().enumerate() {
        let judged = |arm: Arm| judged(&outcomes, arm, &bursts, target_ms);
        let best = best_constant(&outcomes, &bursts, target_ms);
        let (none, published, ours) =
            (judged(Arm::Constant(0)), judged(Arm::Published(place)), judged(Arm::Ours(place)));
        let best = best.as_ref().map(|(tenths, judged)| (f64::from(*tenths) / 10.0, judged));
        let others: Vec<(String, Judged)> =
            tuned.iter().map(|_| (format!("{PID}_tuned"), judged(Arm::Tuned(place)))).collect();
        rows(&mut section, target_ms, best, [&none, &published, &ours], &others);
        target_claims(claims, target_ms, &none, &published);
    }
    section.figures = over_time(&outcomes);
    let trade = trade_off(&outcomes, &bursts, claims);
    Ok(vec![section, trade])
}

/// Adds the report rows of one response time target. `best` is the best constant delay in ms, with its verdicts; `columns` are no
/// control, the published controller and the project's own.
fn rows(
    section: &mut Section,
    target_ms: f64,
    best: Option<(f64, &Judged)>,
    columns: [&Judged; 3],
    others: &[(String, Judged)],
) {
    let case = format!("{target_ms} ms");
    let mut add = |metric: &str, unit, better, bar, figure: &dyn Fn(&Verdict) -> f64| {
        let row = Row { bar, ..Row::new(&case, metric, unit, better) };
        let columns = columns.map(|judged| Some(judged.figures(figure)));
        let constant = best.map(|(_, judged)| ("best_constant".to_owned(), judged.figures(figure)));
        let tuned = others.iter().map(|(name, judged)| (name.clone(), judged.figures(figure)));
        section.rows.extend(paired::columns(&row, columns, constant.into_iter().chain(tuned)));
    };
    add("above_target_percent", "%", Better::Lower, Some(ABOVE_BAR), &Verdict::above_percent);
    add("settle_s", "s", Better::Lower, Some(SETTLE_BAR), &|verdict| first(&verdict.settle_s));
    add("settle_again_s", "s", Better::Lower, Some(SETTLE_BAR), &|verdict| later(&verdict.settle_s));
    add("overshoot_ratio", "", Better::Lower, None, &|verdict| first(&verdict.overshoot_ratio));
    add("overshoot_again_ratio", "", Better::Lower, None, &|verdict| later(&verdict.overshoot_ratio));
    add("late_mean_ratio", "", Better::Lower, None, &|verdict| verdict.late_ratio);
    add("write_mb_per_s", "MB/s", Better::Higher, None, &|verdict| verdict.written_mb_per_s);
    if let Some((delay_ms, best)) = best {
        let metric = "write_throughput_vs_best_constant_percent";
        let row = Row { bar: Some(WRITTEN_BAR), ..Row::new(&case, metric, "%", Better::Higher) };
        let columns = columns.map(|judged| Some(judged.written_percent(best)));
        let constant = ("best_constant".to_owned(), best.written_percent(best));
        let tuned = others.iter().map(|(name, judged)| (name.clone(), judged.written_percent(best)));
        section.rows.extend(paired::columns(&row, columns, std::iter::once(constant).chain(tuned)));
        section
            .rows
            .push(Row { baseline: Some(delay_ms), ..Row::new(&case, "best_constant_delay_ms", "ms", Better::Lower) });
    }
}

fn target_claims(claims: &mut Vec<Claim>, target_ms: f64, none: &Judged, published: &Judged) {
    let late = |judged: &Judged| judged.estimate(|verdict| verdict.late_ratio).mean;
    let settle = published.estimate(|verdict| first(&verdict.settle_s)).mean;
    claims.push(Claim {
        source: "fig. 12, 14",
        text: format!("The controller lowers the reader's mean latency from far above {target_ms} ms to that target."),
        reproduced: late(none) > 1.5 && late(published) < 1.05,
        numbers: format!(
            "second halves of the bursts: {:.2} times the target without control, {:.2} times with; the mean is the target, so \
             that {:.0} % of the 1 s windows lie above, and the first burst takes {settle:.1} s to settle",
            late(none),
            late(published),
            published.above_percent(),
        ),
    });
    let overshoot = published.estimate(|verdict| first(&verdict.overshoot_ratio)).mean;
    claims.push(Claim {
        source: "fig. 12, 14",
        text: format!("When 12 writers begin at once, the published controller overshoots {target_ms} ms for a while."),
        reproduced: overshoot > 1.05,
        numbers: format!("largest mean over 1 s: {overshoot:.2} times the target"),
    });
}

/// Plots of figures 12, 13 and 16: the runs with the first seed over time.
fn over_time(outcomes: &Outcomes) -> Vec<Plot> {
    let series = |name: String, arm: Arm, figure: &dyn Fn(&[Tick]) -> Option<f64>| {
        let windows = outcomes[&arm].first().into_iter().flat_map(|run| run.ticks.chunks(5));
        let point = |window: &[Tick]| Some((window[0].at.since(Instant::ZERO).as_secs_f64(), figure(window)?));
        Series::new(name, Style::Dotted, windows.filter_map(point))
    };
    let arms = |ours: bool| {
        let method = move |place| if ours { Arm::Ours(place) } else { Arm::Published(place) };
        let targets = (0..).zip(TARGETS_MS).map(move |(place, target)| (format!("target {target} ms"), method(place)));
        std::iter::once(("no control".to_owned(), Arm::Constant(0))).chain(targets)
    };
    let plot = |title: &str, y: &str, ours: bool, figure: &dyn Fn(&[Tick]) -> Option<f64>| {
        let title = format!("{title}, {}", if ours { "Evenkeel" } else { "published controller" });
        let series = arms(ours).map(|(name, arm)| series(name, arm, figure));
        Plot::new(title, "First seed, means over 0.5 s.", Axis::linear("s"), Axis::linear(y), series)
    };
    let delay = |window: &[Tick]| {
        let writers = |tick: &Tick| tick.delay_ms[1..].iter().sum::<f64>() / 3.0;
        Some(window.iter().map(writers).sum::<f64>() / window.len() as f64)
    };
    let plots = |ours: bool| {
        [
            plot("Latency of reads", "ms", ours, &read_ms),
            plot("Written by all", "MB/s", ours, &|window| Some(written_mb_per_s(window))),
            plot("Mean delay of the writers", "ms", ours, &delay),
        ]
    };
    [false, true].into_iter().flat_map(plots).collect()
}

/// The report section with figures 11 and 13: response time of reads and written throughput as functions of a constant delay.
fn trade_off(outcomes: &Outcomes, bursts: &[(Instant, Instant)], claims: &mut Vec<Claim>) -> Section {
    let means = |tenths: u32| {
        let busy = |run: &Outcome| -> Vec<Tick> {
            let settled = |&(begin, end): &(Instant, Instant)| run.between(begin + Duration::from_secs(1), end);
            bursts.iter().flat_map(settled).cloned().collect()
        };
        let all: Vec<Vec<Tick>> = outcomes[&Arm::Constant(tenths)].iter().map(busy).collect();
        let wait = Estimate::over(&all, |ticks| read_ms(ticks).unwrap_or(f64::NAN)).mean;
        (f64::from(tenths) / 10.0, wait, Estimate::over(&all, |ticks| written_mb_per_s(ticks)).mean)
    };
    let points: Vec<(f64, f64, f64)> = (0..=MOST_TENTHS).step_by(STEP_TENTHS as usize).map(means).collect();
    let mut section = Section {
        title: "Figures 11 and 13: the cost of lower latency".to_owned(),
        text: vec!["Constant delays, all seeds: mean latency of a read and payload written by 12 writers.".to_owned()],
        ..Section::default()
    };
    for &(delay_ms, wait, written) in points.iter().filter(|(delay_ms, ..)| [0.0, 4.5, 9.5, 20.0].contains(delay_ms)) {
        let case = format!("delay {delay_ms} ms");
        let row = |metric, unit, better, value| Row { baseline: Some(value), ..Row::new(&case, metric, unit, better) };
        section.rows.push(row("read_wait_ms", "ms", Better::Lower, wait));
        section.rows.push(row("write_mb_per_s", "MB/s", Better::Higher, written));
    }
    let named = points.iter().map(|&(delay_ms, wait, written)| (written, wait, format!("{delay_ms} ms")));
    section.figures.push(Plot::new(
        "Latency of a read over payload written",
        "One point for each constant delay, 0 to 20 ms.",
        Axis::linear("MB/s"),
        Axis::linear("ms"),
        [Series::named("constant delay", Style::Dotted, named)],
    ));
    // The first 15 % of throughput, and the next 15 %.
    let (most, worst) = (points[0].2, points[0].1);
    let wait_at = |part: f64| points.iter().find(|&&(.., written)| written <= part * most).map(|&(_, wait, _)| wait);
    if let (Some(first), Some(second)) = (wait_at(0.85), wait_at(0.70)) {
        claims.push(Claim {
            source: "fig. 11, 13",
            text: "The first reduction of write throughput shortens reads most; each further one costs more."
                .to_owned(),
            reproduced: worst - first > 2.0 * (first - second),
            numbers: format!(
                "15 % less than {most:.1} MB/s of writes shortens reads from {worst:.1} to {first:.1} ms, another 15 % \
                 to {second:.1} ms (paper: 39 to 33 MB/s by 25 ms, another 7 MB/s by 5 ms)"
            ),
        });
    }
    section
}
