//! The part `recovery` of the Ceph lab, the experiment of the SlowFast CoDel paper: one of two OSDs dies, objects are written,
//! the OSD returns, and a bursty client writes during recovery. Measures the client's latency without a throttle, with a
//! fixed budget, and with the agent.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::SPEED;
use super::stage::{OBJECT_BYTES, Stage, Window, median, progress};
use crate::base::process;
use crate::check::figures::Spread;
use crate::check::run::{Lab, Options};

/// Settings of the OSDs, with the policy of the paper: the client has a reservation of 1,000 requests/s and twice the weight of
/// recovery.
///
/// Under mClock Ceph allows 1,000 objects in recovery at once, but each placement group starts few at a time. A usual OSD has
/// some hundred groups; the lab's has 32, so each starts four objects. By default each start is charged as 20 MiB; later
/// versions charge the object's size, and so do these settings. Objects are smaller than any of the budgets.
const SETTINGS: &str = "bluestore_throttle_cost_per_io = 4000
bluestore_prefer_deferred_size = 0
osd_mclock_scheduler_client_res = 1000
osd_mclock_scheduler_client_wgt = 2
osd_mclock_scheduler_background_recovery_res = 1
osd_mclock_scheduler_background_recovery_wgt = 1
osd_recovery_cost = 65536
osd_recovery_max_single_start = 4
";
/// Number of objects that are written while the OSD is dead: their recovery lasts longer than the measurement.
const LOST: u64 = 12_000;
/// Number of the OSD that dies.
const VICTIM: usize = 1;
/// Fixed budgets of the OSD's throttle, in KiB. The last one is so large that it throttles no request.
const FIXED_KIB: [u64; 3] = [256, 1 << 10, 64 << 10];
/// Number of successive recoveries under one agent, which has not seen any recovery before the first.
const AGENT_TIMES: usize = 2;
/// Time within which placement groups agree which objects are missing, or which OSD serves them.
const PEERING: Duration = Duration::from_secs(3);
/// Time limit of a recovery.
const LONGEST: Duration = Duration::from_secs(180);

/// Figures of a recovery under one throttle.
struct Row {
    name: String,
    calm: Window,
    recovering: Window,
    took: Duration,
}

impl Row {
    /// The medians of a case over its repeats; `None` without repeats.
    fn median<'a>(rows: impl Iterator<Item = &'a Self> + Clone) -> Option<Self> {
        let name = rows.clone().next()?.name.clone();
        let took = Spread::of(rows.clone().map(|row| row.took.as_secs_f64()))?.median;
        Some(Self {
            calm: median(&name, rows.clone().map(|row| &row.calm))?,
            recovering: median(&name, rows.map(|row| &row.recovering))?,
            took: Duration::from_secs_f64(took),
            name,
        })
    }
}

/// Measures all cases, and prints the table of medians.
pub(crate) fn run(lab: &mut Lab, options: &Options, begun: Instant) -> Result<()> {
    progress(begun, "recovery: two OSDs");
    let mut stage = Stage::start(options, 2, SETTINGS)?;
    stage.cluster().ceph(&["osd", "set", "noout"])?;
    // So that the objects exist, and all recoveries find the same.
    stage.populate(LOST)?;
    let time = Duration::from_secs(options.seconds);
    let mut repeats = Vec::new();
    for repeat in 1..=options.repeats {
        let mut rows = Vec::new();
        for kib in FIXED_KIB {
            progress(begun, &format!("recovery: repeat {repeat} of {}, {kib} KiB", options.repeats));
            rows.push(recovery(&mut stage, &format!("{kib} KiB"), Some(kib << 10), time)?);
        }
        stage.set_throttle(None)?;
        let guard = stage.start_guard("", &[])?;
        for number in 1..=AGENT_TIMES {
            progress(begun, &format!("recovery: repeat {repeat} of {}, agent, time {number}", options.repeats));
            rows.push(recovery(&mut stage, &format!("agent, recovery {number}"), None, time)?);
            println!("lab: {}", stage.why()?);
        }
        stage.stop_guard(guard)?;
        repeats.push(rows);
    }
    let rows: Option<Vec<Row>> =
        (0..repeats[0].len()).map(|row| Row::median(repeats.iter().map(|rows| &rows[row]))).collect();
    report(lab, &rows.context("nothing was measured")?);
    Ok(())
}

/// Runs a recovery and measures the client for `time`. `budget` is a fixed budget in bytes; `None`: under the running agent.
fn recovery(stage: &mut Stage, name: &str, budget: Option<u64>, time: Duration) -> Result<Row> {
    stage.set_speed(SPEED)?;
    throttle(stage, budget)?;
    // After a recovery the groups go back to where they belong.
    thread::sleep(PEERING);
    let calm = stage.bursts(&format!("{name}, no recovery"), time)?;
    // What is not measured need not be slow.
    stage.set_speed(0)?;
    stage.cluster().kill_osd(VICTIM);
    stage.cluster().ceph(&["osd", "down", &VICTIM.to_string()])?;
    stage.populate(LOST)?;
    stage.cluster().ceph(&["osd", "set", "norecover"])?;
    stage.cluster().start_osd(VICTIM)?;
    thread::sleep(PEERING);
    throttle(stage, budget)?;
    let before = stage.counted("recovery_ops")?;
    stage.set_speed(SPEED)?;
    stage.cluster().ceph(&["osd", "unset", "norecover"])?;
    let begun = Instant::now();
    let recovering = stage.bursts(&format!("{name}, recovery"), time)?;
    let meanwhile = stage.counted("recovery_ops")? - before;
    ensure!(meanwhile < LOST, "{name}: the recovery was over before the measurement: {meanwhile} of {LOST} objects");
    process::until(&format!("{name}: the end of the recovery"), [LONGEST, Duration::from_millis(200)], || {
        Ok(stage.counted("recovery_ops")? - before >= LOST)
    })?;
    let took = begun.elapsed();
    println!("lab: {name}: {meanwhile} objects during the measurement, all {LOST} after {:.0} s", took.as_secs_f64());
    Ok(Row { name: name.to_owned(), calm, recovering, took })
}

fn throttle(stage: &Stage, budget: Option<u64>) -> Result<()> {
    match budget {
        Some(budget) => stage.set_throttle(Some(budget)),
        None => stage.wait_for("the OSDs are controlled", |stage| stage.standing() == "controlled"),
    }
}

fn report(lab: &mut Lab, rows: &[Row]) {
    println!("\n| budget | no recovery: p50, p99 | recovery: p50, p99 | recovery took |");
    println!("|---|---|---|---|");
    let ms = |window: &Window| format!("{:.1}, {:.0} ms", window.light_p50_ms, window.light_p99_ms);
    for Row { name, calm, recovering, took } in rows {
        let took = took.as_secs_f64();
        let rate = (LOST * OBJECT_BYTES) as f64 / 1e6 / took;
        println!("| {name} | {} | {} | {took:.0} s, {rate:.1} MB/s |", ms(calm), ms(recovering));
    }
    println!();
    let (fixed, agent) = rows.split_at(FIXED_KIB.len());
    let (Some(none), Some(agent)) = (fixed.last(), agent.last()) else { return };
    let (wait, least) = (agent.recovering.light_p99_ms, none.recovering.light_p99_ms);
    lab.check(
        "the_bursty_client_waits_less_beside_a_recovery_under_the_agent",
        wait < least,
        &format!("p99 {wait:.0} ms, without a throttle {least:.0} ms"),
    );
}
