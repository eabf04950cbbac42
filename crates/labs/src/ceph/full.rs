//! The measurements of `cargo xtask lab ceph --full`: fixed budgets, SlowFast CoDel and the project's own method on a device
//! whose speed changes; the agent's cost; recovery; an emulated disk. Prints tables for docs/results/ceph.md.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cluster::FLASH;
use super::judge::{MOST_P50, Verdict};
use super::stage::{Stage, Window, cell, median, progress};
use super::{disk, recovery};
use crate::base::process;
use crate::ceph::{AFTER_CHANGE, LEARNING, SMALL_KIB, SMALL_MOST, SPEED, sweep};
use crate::check::figures::Spread;
use crate::check::run::{Lab, Options};

/// Fixed budgets of the OSD's throttle, in KiB. The last one is so large that it throttles no request.
const FIXED_KIB: [u64; 8] = [128, SMALL_KIB, 512, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Speeds of the device, in bytes per second: its usual speed, 0.4 times and 2.5 times the usual speed.
const SPEEDS: [u64; 3] = [SPEED, SPEED * 2 / 5, SPEED * 5 / 2];
/// Controllers, each as name, setting, and learning time in units of [`LEARNING`]. SlowFast CoDel makes its first fit after
/// 50 s; `elastic`, the project's own, is the default.
const METHODS: [(&str, &str, u32); 2] = [("slowfast", "tuning.admission = \"slowfast\"", 2), ("elastic", "", 1)];
/// Interval over which the agent's CPU time is measured.
const COUNTED: Duration = Duration::from_secs(10);
/// Number of pairs of runs, one with and one without an agent in a dry run. Runs are many and short, because an OSD's
/// throughput changes more over time than a dry run costs.
const PAIRS: usize = 36;
/// Number of pairs that the printed range leaves out at each end of the sorted list. The range of the remaining pairs contains
/// the true median with 97 % confidence.
const OUTSIDE: usize = 11;
/// Length of each run of a pair.
const HALF: Duration = Duration::from_millis(1_500);
/// Bar: the largest CPU time of the agent, in per cent of a core, and also the largest loss of throughput by a dry run, in per
/// cent.
const MOST_COST: f64 = 1.0;

/// Runs the parts `comparison`, `cost`, `recovery` and `disk`, or only those whose name contains the option `only`. Verdicts
/// are about medians of `repeats` runs.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let begun = Instant::now();
    println!("lab: {}", process::version("ceph-osd"));
    let wanted = |part: &str| part.contains(&options.only);
    if wanted("comparison") || wanted("cost") {
        let stage = Stage::start(options, 1, FLASH)?;
        let _bulk = stage.start_bulk()?;
        if wanted("comparison") {
            compare(lab, options, &stage, begun)?;
        }
        if wanted("cost") {
            progress(begun, "cost");
            cost(lab, options, &stage)?;
        }
    }
    if wanted("recovery") {
        recovery::run(lab, options, begun)?;
    }
    if wanted("disk") {
        disk::run(lab, options, begun)?;
    }
    progress(begun, "done");
    Ok(())
}

fn compare(lab: &mut Lab, options: &Options, stage: &Stage, begun: Instant) -> Result<()> {
    let time = Duration::from_secs(options.seconds);
    let mut repeats = Vec::new();
    for repeat in 1..=options.repeats {
        let mut speeds: [Vec<Window>; 3] = Default::default();
        for (windows, speed) in speeds.iter_mut().zip(SPEEDS) {
            progress(begun, &format!("repeat {repeat} of {}: fixed at {} MiB/s", options.repeats, speed >> 20));
            *windows = sweep(stage, speed, &FIXED_KIB, time)?;
        }
        for (method, settings, learning) in METHODS {
            progress(begun, &format!("repeat {repeat} of {}: {method}", options.repeats));
            let windows = controlled(stage, (method, settings), LEARNING * learning, time)?;
            speeds.iter_mut().zip(windows).for_each(|(all, window)| all.push(window));
        }
        repeats.push(speeds);
    }
    report(lab, &repeats)
}

/// Measures the clients under the agent with the controller `method`, at each speed of the device. The speed changes while
/// the agent runs; `learning` is the time before the first measurement, `time` the length of each.
fn controlled(
    stage: &Stage,
    (method, settings): (&str, &str),
    learning: Duration,
    time: Duration,
) -> Result<Vec<Window>> {
    stage.set_speed(SPEED)?;
    let guard = stage.start_guard(settings, &[])?;
    stage.wait_for("the OSD is controlled", |stage| stage.standing() == "controlled")?;
    let mut windows = Vec::new();
    for speed in SPEEDS {
        if speed == SPEED {
            thread::sleep(learning);
        } else {
            // Both changes begin at the first speed.
            stage.set_speed(SPEED)?;
            thread::sleep(AFTER_CHANGE * 2);
            stage.set_speed(speed)?;
            thread::sleep(AFTER_CHANGE);
        }
        windows.push(stage.window(&format!("{method} at {} MiB/s", speed >> 20), time)?);
        println!("lab: {}", stage.why()?);
    }
    stage.stop_guard(guard)?;
    Ok(windows)
}

/// Prints the medians over the repeats as a table, and checks the bars. Each repeat has one list per speed of the device.
fn report(lab: &mut Lab, repeats: &[[Vec<Window>; 3]]) -> Result<()> {
    let names = FIXED_KIB.iter().map(|kib| format!("{kib} KiB")).chain(METHODS.map(|(name, ..)| name.to_owned()));
    let mut tables = Vec::new();
    for speed in 0..SPEEDS.len() {
        let windows: Option<Vec<Window>> = names
            .clone()
            .enumerate()
            .map(|(row, name)| median(&name, repeats.iter().filter_map(|repeat| repeat[speed].get(row))))
            .collect();
        tables.push(windows.context("something was not measured")?);
    }
    println!("\n| budget | {} |", SPEEDS.map(|speed| format!("{} MiB/s", speed >> 20)).join(" | "));
    println!("|---|---|---|---|");
    for (row, name) in names.enumerate() {
        let cells: Vec<String> = tables.iter().map(|windows| cell(&windows[row])).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    println!();
    for (windows, speed) in tables.iter().zip(SPEEDS) {
        let (fixed, methods) = windows.split_at(FIXED_KIB.len());
        for method in methods {
            let verdict = Verdict::of(method, fixed).context("no fixed budget was measured")?;
            let line = format!("{} at {} MiB/s: {verdict}", method.case, speed >> 20);
            if method.case != "elastic" {
                println!("lab: {line}");
                continue;
            }
            lab.check(&format!("ours_meets_the_bars_at_{}_mib_per_s", speed >> 20), verdict.holds(), &line);
            let all = fixed.last().context("no fixed budget was measured")?;
            let median = method.light_p50_ms / all.light_p50_ms;
            let line = format!("light p50 {median:.2} times that without a throttle (bar {MOST_P50})");
            if speed <= SPEED {
                lab.check(&format!("ours_halves_the_median_at_{}_mib_per_s", speed >> 20), median <= MOST_P50, &line);
            } else {
                println!("lab: {line}");
            }
        }
    }
    let fixed = |kib| FIXED_KIB.iter().position(|&of| of == kib).map(|row| &tables[0][row]);
    let (small, all) = fixed(SMALL_KIB).zip(fixed(64 << 10)).context("no fixed budget was measured")?;
    lab.check(
        "a_small_throttle_shortens_the_latency_of_the_light_clients",
        small.light_p99_ms < SMALL_MOST * all.light_p99_ms,
        &format!("{small}; {all}"),
    );
    Ok(())
}

/// Measures the agent's CPU time, and the loss of the OSD's throughput by a dry run: on the paced device, and on memory, where
/// the processors limit the OSD.
fn cost(lab: &mut Lab, options: &Options, stage: &Stage) -> Result<()> {
    stage.set_speed(SPEED)?;
    let guard = stage.start_guard("", &[])?;
    stage.wait_for("the OSD is controlled", |stage| stage.standing() == "controlled")?;
    let (mut agent, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..options.repeats {
        let before = stage.admin(0).thread_ns()?;
        agent.push(stage.cost_of(&guard, COUNTED)?);
        answers.push((stage.admin(0).thread_ns()? - before) as f64 / COUNTED.as_nanos() as f64 * 100.0);
    }
    let middle = |of: Vec<f64>| Spread::of(of).map(|spread| spread.median).context("nothing was counted");
    let (core, answered) = (middle(agent)?, middle(answers)?);
    stage.stop_guard(guard)?;
    lab.check(
        "the_agent_takes_a_hundredth_of_a_core_at_most",
        core <= MOST_COST,
        &format!("{core:.2} % of a core, median of {}; the OSD's answers take {answered:.2} %", options.repeats),
    );
    let paced = lost(stage)?;
    println!("lab: a dry run takes {paced} of the throughput on the paced device");
    stage.set_speed(0)?;
    let unpaced = lost(stage)?;
    println!("lab: a dry run takes {unpaced} of the throughput on memory");
    stage.set_speed(SPEED)?;
    lab.check("a_dry_run_costs_a_hundredth_at_most", paced.median <= MOST_COST, &paced.to_string());
    Ok(())
}

/// Loss of the OSD's throughput by an agent in a dry run, in per cent.
#[derive(Debug, Clone, Copy)]
struct Lost {
    median: f64,
    /// Range that contains the true median with 97 % confidence, see [`OUTSIDE`].
    between: [f64; 2],
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, between: [least, most] } = self;
        write!(f, "{median:.2} % ({least:.2} to {most:.2}, {PAIRS} pairs)")
    }
}

/// Measures the loss of throughput by a dry run, in pairs of runs. The order within a pair alternates from pair to pair.
fn lost(stage: &Stage) -> Result<Lost> {
    let mut lost = Vec::new();
    for pair in 0..PAIRS {
        let [mut with, mut without] = [0.0; 2];
        for half in 0..2 {
            if (pair + half) % 2 == 0 {
                without = stage.requests_per_s(HALF)?;
                continue;
            }
            let guard = stage.start_guard("", &["--dry-run"])?;
            stage.wait_for("the OSD is watched", |stage| stage.standing() == "watched")?;
            with = stage.requests_per_s(HALF)?;
            stage.stop_guard(guard)?;
        }
        ensure!(without > 0.0, "nothing was written");
        lost.push((1.0 - with / without) * 100.0);
    }
    lost.sort_by(f64::total_cmp);
    let median = Spread::of(lost.iter().copied()).context("nothing was measured")?.median;
    Ok(Lost { median, between: [lost[OUTSIDE], lost[PAIRS - 1 - OUTSIDE]] })
}
