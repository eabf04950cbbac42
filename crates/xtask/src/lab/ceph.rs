//! A Ceph OSD on a paced device under a bulk and a light client: what a fixed throttle gives, and what the agent makes of it.
//!
//! No virtual machine: the daemons of the distribution's packages run on this one, by themselves.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::ceph_stage::{self, Stage, Window};
use super::{Lab, Options};

/// Speed of the device, and what it falls to.
const SPEED: u64 = 40 << 20;
const SLOWER: u64 = SPEED * 2 / 5;
/// How long the agent may learn, and how long after a change of the device it is given.
const LEARNING: Duration = Duration::from_secs(30);
const AFTER_CHANGE: Duration = Duration::from_secs(10);
const SMALL: u64 = 256 << 10;
const UNTHROTTLED: u64 = 64 << 20;
/// What must hold in one short run on a machine that does other things as well, where the 99th percentile tells more about
/// the machine than about the throttle: that of the medians. What is aimed at (90 % of the throughput, 1.3 times the 99th
/// percentile of the best fixed budget) takes an idle machine, a sweep and repeats.
const LEAST_THROUGHPUT: f64 = 0.8;
const MOST_LATENCY: f64 = 0.6;
const PATIENCE: Duration = Duration::from_secs(20);

/// Why the lab cannot run on this machine, if so.
pub(crate) fn missing() -> Option<String> {
    ceph_stage::missing()
}

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    if let Some(why) = missing() {
        anyhow::bail!("Ceph cannot be tried here: {why}");
    }
    let begun = Instant::now();
    let mut stage = Stage::start(options)?;
    println!("lab: an OSD is up after {:.0} s", begun.elapsed().as_secs_f64());
    let _bulk = stage.start_bulk()?;
    let fixed = |speed: u64, budget: u64| -> Result<Window> {
        stage.set_speed(speed)?;
        stage.set_throttle(Some(budget))?;
        thread::sleep(Duration::from_secs(2));
        stage.window(&format!("{} KiB at {} MiB/s", budget >> 10, speed >> 20))
    };
    let small = fixed(SPEED, SMALL)?;
    let all = fixed(SPEED, UNTHROTTLED)?;
    let all_slower = fixed(SLOWER, UNTHROTTLED)?;
    stage.set_throttle(None)?;
    stage.set_speed(SPEED)?;
    lab.check(
        "a_small_throttle_shortens_the_wait_of_the_light_client",
        small.light_p50_ms < MOST_LATENCY * all.light_p50_ms,
        &format!("{small}; {all}"),
    );

    let dry = stage.start_guard(&["--dry-run"])?;
    stage.wait_for("the OSD is watched", |stage| stage.standing() == "watched")?;
    thread::sleep(Duration::from_secs(2));
    lab.check("dry_run_sets_nothing", stage.overrides()?.is_empty(), &format!("{:?}", stage.overrides()?));
    stage.stop_guard(dry)?;

    let guard = stage.start_guard(&[])?;
    stage.wait_for("the OSD is controlled", |stage| stage.standing() == "controlled")?;
    thread::sleep(LEARNING);
    let ours = stage.window("the agent")?;
    println!("lab: {}", stage.why()?);
    lab.check(
        "the_agent_keeps_the_light_client_waiting_less",
        ours.light_p50_ms < MOST_LATENCY * all.light_p50_ms
            && ours.bulk_mb_per_s > LEAST_THROUGHPUT * all.bulk_mb_per_s,
        &format!("{ours}; {all}"),
    );
    stage.set_speed(SLOWER)?;
    thread::sleep(AFTER_CHANGE);
    let slower = stage.window("the agent, slower device")?;
    println!("lab: {}", stage.why()?);
    lab.check(
        "also_after_the_device_has_become_slower",
        slower.light_p50_ms < MOST_LATENCY * all_slower.light_p50_ms
            && slower.bulk_mb_per_s > LEAST_THROUGHPUT * all_slower.bulk_mb_per_s,
        &format!("{slower}; {all_slower}"),
    );
    println!("lab: the agent takes {:.2} % of a core", stage.cost_of(&guard, Duration::from_secs(5))?);

    stage.restart_osd()?;
    stage.wait_for("it is controlled again", |stage| stage.standing() == "controlled" && stage.restarts() > 0)?;
    let again = stage.overrides()?;
    lab.check("an_osd_that_starts_anew_is_controlled_again", !again.is_empty(), &format!("{again:?}"));
    stage.stop_guard(guard)?;
    lab.check("a_stop_puts_the_throttle_back", stage.overrides()?.is_empty(), &format!("{:?}", stage.overrides()?));

    let guard = stage.start_guard(&[])?;
    stage.wait_for("the throttle is set", |stage| stage.overrides().is_ok_and(|set| !set.is_empty()))?;
    guard.kill();
    let begun = Instant::now();
    while !stage.overrides()?.is_empty() {
        ensure!(begun.elapsed() < PATIENCE, "the throttle is still set: {:?}", stage.overrides()?);
        thread::sleep(Duration::from_millis(50));
    }
    let took = begun.elapsed().as_secs_f64();
    lab.check("a_killed_agent_leaves_nothing_behind", true, &format!("put back after {took:.1} s"));
    Ok(())
}
