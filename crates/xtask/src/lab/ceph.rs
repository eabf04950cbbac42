//! A Ceph OSD on a paced device under a bulk and a light client: what a fixed throttle gives, and what the agent makes of it.
//!
//! No virtual machine: the daemons of the distribution's packages run on this one, by themselves.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::ceph_cluster::FLASH;
use super::ceph_judge::Verdict;
use super::ceph_stage::{self, Stage, Window};
use super::{Lab, Options, ceph_full};

/// Speed of the device, in bytes per second: a slower one is kept for hundreds of milliseconds by what RocksDB flushes at once,
/// a faster one by the processors.
pub(crate) const SPEED: u64 = 40 << 20;
/// What the speed falls to.
const SLOWER: u64 = SPEED * 2 / 5;
/// How long the agent may learn, and how long after a change of the device it is given.
pub(crate) const LEARNING: Duration = Duration::from_secs(30);
pub(crate) const AFTER_CHANGE: Duration = Duration::from_secs(10);
/// How long a fixed budget is in force before it is measured.
const SETTLING: Duration = Duration::from_secs(2);
/// Fixed budgets of the short run, in KiB: one that is too small for the device, those that may suit it, and no throttle.
const FIXED_KIB: [u64; 4] = [256, 512, 1 << 10, 64 << 10];
/// What the small throttle must make of the 99th percentile without one.
const SMALL_MOST: f64 = 0.6;
/// What the agent must keep of the throughput and make of the median wait without a throttle. That much is robust on a machine
/// that does other things as well; the bars are printed, and decide with `--full`.
const LEAST_THROUGHPUT: f64 = 0.8;
const MOST_MEDIAN: f64 = 0.6;
const PATIENCE: Duration = Duration::from_secs(20);
/// The only step that can be asked for by itself.
const TUTORIAL: &str = "the_tutorial_works_as_written";

/// Why the lab cannot run on this machine, if so.
pub(crate) fn missing() -> Option<String> {
    ceph_stage::missing()
}

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    if let Some(why) = missing() {
        anyhow::bail!("Ceph cannot be tried here: {why}");
    }
    if options.full {
        return ceph_full::run(lab, options);
    }
    let begun = Instant::now();
    let mut stage = Stage::start(options, 1, FLASH)?;
    println!("lab: an OSD is up after {:.0} s", begun.elapsed().as_secs_f64());
    let _bulk = stage.start_bulk()?;
    if !options.only.is_empty() && TUTORIAL.contains(&options.only) {
        return tutorial(lab, &stage);
    }
    let time = Duration::from_secs(options.seconds);
    let fixed = sweep(&stage, SPEED, &FIXED_KIB, time)?;
    let fixed_slower = sweep(&stage, SLOWER, &FIXED_KIB, time)?;
    stage.set_speed(SPEED)?;
    let (small, all) = (&fixed[0], &fixed[FIXED_KIB.len() - 1]);
    lab.check(
        "a_small_throttle_shortens_the_wait_of_the_light_client",
        small.light_p99_ms < SMALL_MOST * all.light_p99_ms,
        &format!("{small}; {all}"),
    );

    let dry = stage.start_guard("", &["--dry-run"])?;
    stage.wait_for("the OSD is watched", |stage| stage.standing() == "watched")?;
    thread::sleep(Duration::from_secs(2));
    lab.check("dry_run_sets_nothing", stage.overrides()?.is_empty(), &format!("{:?}", stage.overrides()?));
    stage.stop_guard(dry)?;

    let guard = stage.start_guard("", &[])?;
    stage.wait_for("the OSD is controlled", |stage| stage.standing() == "controlled")?;
    let learnt = || {
        thread::sleep(LEARNING);
        stage.window("the agent", time)
    };
    judge(lab, &stage, "the_agent_keeps_the_light_clients_waiting_less", learnt, &fixed)?;
    let again = Cell::new(false);
    let changed = || {
        if again.replace(true) {
            stage.set_speed(SPEED)?;
            thread::sleep(LEARNING);
        }
        stage.set_speed(SLOWER)?;
        thread::sleep(AFTER_CHANGE);
        stage.window("the agent, slower device", time)
    };
    judge(lab, &stage, "also_after_the_device_has_become_slower", changed, &fixed_slower)?;
    println!("lab: the agent takes {:.2} % of a core", stage.cost_of(&guard, Duration::from_secs(5))?);

    stage.cluster().kill_osd(0);
    stage.cluster().start_osd(0)?;
    stage.wait_for("it is controlled again", |stage| stage.standing() == "controlled" && stage.restarts() > 0)?;
    let again = stage.overrides()?;
    lab.check("an_osd_that_starts_anew_is_controlled_again", !again.is_empty(), &format!("{again:?}"));
    stage.stop_guard(guard)?;
    lab.check("a_stop_puts_the_throttle_back", stage.overrides()?.is_empty(), &format!("{:?}", stage.overrides()?));

    let guard = stage.start_guard("", &[])?;
    stage.wait_for("the throttle is set", |stage| stage.overrides().is_ok_and(|set| !set.is_empty()))?;
    guard.kill();
    let begun = Instant::now();
    let mut left = stage.overrides()?;
    while !left.is_empty() && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(50));
        left = stage.overrides()?;
    }
    let took = begun.elapsed().as_secs_f64();
    lab.check("a_killed_agent_leaves_nothing_behind", left.is_empty(), &format!("{left:?} after {took:.1} s"));
    tutorial(lab, &stage)
}

/// Does what the tutorial says, beside the bulk client.
fn tutorial(lab: &mut Lab, stage: &Stage) -> Result<()> {
    stage.set_speed(SPEED)?;
    let begun = Instant::now();
    let told = stage.follow_tutorial();
    println!("lab: the tutorial took {:.0} s", begun.elapsed().as_secs_f64());
    lab.check(TUTORIAL, told.is_ok(), &told.unwrap_or_else(|e| format!("{e:#}")));
    Ok(())
}

/// What fixed budgets give on a device of this speed; the throttle is as it was afterwards.
pub(crate) fn sweep(stage: &Stage, speed: u64, budgets_kib: &[u64], time: Duration) -> Result<Vec<Window>> {
    stage.set_speed(speed)?;
    let mut windows = Vec::new();
    for kib in budgets_kib {
        stage.set_throttle(Some(kib << 10))?;
        thread::sleep(SETTLING);
        windows.push(stage.window(&format!("{kib} KiB at {} MiB/s", speed >> 20), time)?);
    }
    stage.set_throttle(None)?;
    Ok(windows)
}

/// Prints the bars; what decides is less. The agent goes on trying other budgets: what leads to a window in which it misses
/// is done once more.
fn judge(
    lab: &mut Lab,
    stage: &Stage,
    check: &str,
    window: impl Fn() -> Result<Window>,
    fixed: &[Window],
) -> Result<()> {
    let all = fixed.last().context("no fixed budget was measured")?;
    let measure = || -> Result<(bool, String)> {
        let method = window()?;
        println!("lab: {}", stage.why()?);
        let verdict = Verdict::of(&method, fixed).context("no fixed budget was measured")?;
        println!("lab: bars {}: {verdict}", if verdict.holds() { "met" } else { "MISSED" });
        let median = method.light_p50_ms / all.light_p50_ms;
        let told = format!("bulk {:.2}, light p50 {median:.2} of unthrottled; {method}; {all}", verdict.kept);
        Ok((verdict.kept >= LEAST_THROUGHPUT && median <= MOST_MEDIAN, told))
    };
    let (mut holds, mut told) = measure()?;
    if !holds {
        lab.repeated(check, &told);
        (holds, told) = measure()?;
    }
    lab.check(check, holds, &told);
    Ok(())
}
