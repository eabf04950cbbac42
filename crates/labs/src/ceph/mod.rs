//! The Ceph lab: an OSD on a paced device under a bulk client and light clients. The agent must control the OSD, and must not
//! leave changed settings behind. Module [`full`] judges the effect of the agent's throttle.
//!
//! The lab needs no virtual machine: it starts daemons of the distribution's packages on this machine.

mod admin;
pub(crate) mod cluster;
mod disk;
mod full;
mod judge;
pub(crate) mod pace;
mod recovery;
pub(crate) mod stage;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use self::cluster::FLASH;
use self::stage::{Stage, Window};
use crate::check::run::{Lab, Options};
use crate::machine::guard::kill_sentinel;

/// Speed of the paced device, in bytes per second. On a slower device a single flush of RocksDB takes hundreds of milliseconds;
/// on a faster device the processors are the limit.
pub(crate) const SPEED: u64 = 40 << 20;
/// Time for which the agent learns after its start, before it is judged.
pub(crate) const LEARNING: Duration = Duration::from_secs(30);
/// Time for which the agent learns after a change of the device, before it is judged.
pub(crate) const AFTER_CHANGE: Duration = Duration::from_secs(10);
/// A small budget of the throttle, in KiB, which must shorten the light clients' latency.
pub(crate) const SMALL_KIB: u64 = 256;
/// Bar: the highest median latency of the light clients under [`SMALL_KIB`], divided by their median without a throttle.
pub(crate) const SMALL_MOST: f64 = 0.6;
/// A budget of the throttle, in KiB, that is so large that it throttles no request.
const ALL_KIB: u64 = 64 << 10;
/// Time for which a fixed budget is in force before it is measured.
const SETTLING: Duration = Duration::from_secs(2);
/// Length of a window of the short run, whose figures are only shown.
const SHORT: Duration = Duration::from_secs(4);
/// Time for which the agent learns before a window of the short run.
const SHORT_LEARNING: Duration = Duration::from_secs(8);
/// Longest wait until the agent's settings are removed from an OSD.
const PATIENCE: Duration = Duration::from_secs(60);
/// Name of the step that does the tutorial, the only step that can be selected alone.
const TUTORIAL: &str = "the_tutorial_works_as_written";

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    if options.full {
        return full::run(lab, options);
    }
    let begun = Instant::now();
    let mut stage = Stage::start(options, 1, FLASH)?;
    println!("lab: an OSD is up after {:.0} s", begun.elapsed().as_secs_f64());
    let _bulk = stage.start_bulk()?;
    if !options.only.is_empty() && TUTORIAL.contains(&options.only) {
        return tutorial(lab, &stage);
    }
    let budgets = sweep(&stage, SPEED, &[SMALL_KIB, ALL_KIB], SHORT)?;
    let (small, all) = (&budgets[0], &budgets[1]);
    // Four times as short on an idle machine; the median, because it bears other load better than the 99th percentile.
    lab.check(
        "a_small_throttle_shortens_the_latency_of_the_light_clients",
        small.light_p50_ms < SMALL_MOST * all.light_p50_ms,
        &format!("{small}; {all}"),
    );

    let dry = stage.start_guard("", &["--dry-run"])?;
    stage.wait_for("the OSD is watched", |stage| stage.standing() == "watched")?;
    thread::sleep(Duration::from_secs(2));
    lab.check("dry_run_sets_nothing", stage.overrides()?.is_empty(), &format!("{:?}", stage.overrides()?));
    stage.stop_guard(dry)?;

    let guard = stage.start_guard("", &[])?;
    stage.wait_for("the OSD is controlled", |stage| stage.standing() == "controlled")?;
    thread::sleep(SHORT_LEARNING);
    let method = stage.window("the agent", SHORT)?;
    println!("lab: {}", stage.why()?);
    judge::figures(lab, &method, all);
    stage.stop_guard(guard)?;

    // A fixed budget from here on: whether the default finds one worth setting depends on the machine.
    let fixed = format!("tuning.admission = {{ kind = \"fixed\", budget = \"{SMALL_KIB}KiB\" }}");
    let guard = stage.start_guard(&fixed, &[])?;
    stage.wait_for("the throttle is in the OSD", |stage| {
        stage.throttle().is_ok_and(|bytes| bytes == Some(SMALL_KIB << 10))
    })?;
    lab.passed("the_agent_s_throttle_reaches_the_osd", &format!("{:?}", stage.overrides()?));

    stage.cluster().kill_osd(0);
    stage.cluster().start_osd(0)?;
    stage.wait_for("osd.0 is controlled again", |stage| {
        stage.standing() == "controlled"
            && stage.restarts() > 0
            && stage.overrides().is_ok_and(|overrides| !overrides.is_empty())
    })?;
    let again = stage.overrides()?;
    lab.passed("an_osd_that_starts_anew_is_controlled_again", &format!("{again:?}"));
    stage.stop_guard(guard)?;
    lab.check("a_stop_puts_the_throttle_back", stage.overrides()?.is_empty(), &format!("{:?}", stage.overrides()?));

    let (guard, settings) = stage.start_guard_by_policy()?;
    stage.wait_for("the OSD is controlled by the policy", |stage| stage.standing() == "controlled")?;
    stage.stop_guard(guard)?;
    lab.passed("the_policy_of_all_labs_is_enforced", &settings);

    let guard = stage.start_guard(&fixed, &[])?;
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

    let guard = stage.start_guard(&fixed, &[])?;
    stage.wait_for("the throttle is set", |stage| stage.overrides().is_ok_and(|set| !set.is_empty()))?;
    kill_sentinel(guard.id())?;
    guard.kill();
    let (left, said) = (stage.overrides()?, stage.reset()?);
    let restored = !left.is_empty() && stage.overrides()?.is_empty();
    lab.check("agent_and_sentinel_killed_leave_the_throttle_until_the_reset", restored, &format!("{left:?}: {said}"));
    tutorial(lab, &stage)
}

/// Does the tutorial about Ceph while the bulk client runs.
fn tutorial(lab: &mut Lab, stage: &Stage) -> Result<()> {
    stage.set_speed(SPEED)?;
    let begun = Instant::now();
    let told = stage.follow_tutorial();
    println!("lab: the tutorial took {:.0} s", begun.elapsed().as_secs_f64());
    lab.check(TUTORIAL, told.is_ok(), &told.unwrap_or_else(|e| format!("{e:#}")));
    Ok(())
}

/// Measures fixed budgets on a device with `speed` bytes per second, each for `time`. Afterwards the throttle is as before.
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
