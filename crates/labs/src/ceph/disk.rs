//! The part `disk` of the Ceph lab: the effect of fixed budgets and of the agent, with and without control of deferred writes,
//! on an OSD with the settings of a hard disk and a device that is as slow per request as a disk.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::LEARNING;
use super::judge::Verdict;
use super::stage::{Stage, Window, cell, median, progress};
use crate::check::run::{Lab, Options};

/// Settings with which BlueStore treats a file as a rotating device: BlueStore's throttle then charges 670,000 bytes for each
/// write, and BlueStore defers writes of less than 64 KiB.
const SETTINGS: &str = "bluestore_debug_enforce_settings = hdd
osd_mclock_scheduler_client_res = 1
";
/// Throughput of the emulated disk, in bytes per second.
const SPEED: u64 = 150_000_000;
/// Additional time of each write on the emulated disk.
const EACH: Duration = Duration::from_millis(4);
/// Fixed budgets of the OSD's throttle, in MiB. The last one is so large that it throttles no request.
const FIXED_MIB: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The agent's variants, each as name and setting: with default settings, and without control of deferred writes.
const AGENTS: [(&str, &str); 2] = [("agent", ""), ("agent, deferred = false", "deferred = false")];
/// Time for which a fixed budget is in force before it is measured, so that requests admitted under the earlier budget
/// complete; they take longer than on flash.
const SETTLING: Duration = Duration::from_secs(4);

/// Measures all budgets and the agent's variants, prints the table of medians, and checks the bars.
pub(crate) fn run(lab: &mut Lab, options: &Options, begun: Instant) -> Result<()> {
    progress(begun, "disk: an OSD");
    let stage = Stage::start(options, 1, SETTINGS)?;
    stage.set_pace(SPEED, EACH)?;
    let _bulk = stage.start_bulk()?;
    let mut repeats = Vec::new();
    for repeat in 1..=options.repeats {
        progress(begun, &format!("disk: repeat {repeat} of {}", options.repeats));
        repeats.push(measure(&stage, Duration::from_secs(options.seconds))?);
    }
    let rows = repeats[0].iter().enumerate();
    let medians: Option<Vec<Window>> =
        rows.map(|(row, window)| median(&window.case, repeats.iter().map(|windows| &windows[row]))).collect();
    let medians = medians.context("nothing was measured")?;
    let (fixed, agents) = medians.split_at(FIXED_MIB.len());
    report(lab, fixed, agents)
}

/// Measures all fixed budgets, and after them the agent's variants.
fn measure(stage: &Stage, time: Duration) -> Result<Vec<Window>> {
    let mut windows = Vec::new();
    for mib in FIXED_MIB {
        stage.set_throttle(Some(mib << 20))?;
        thread::sleep(SETTLING);
        windows.push(stage.window(&format!("{mib} MiB"), time)?);
    }
    stage.set_throttle(None)?;
    for (name, settings) in AGENTS {
        let guard = stage.start_guard(settings, &[])?;
        stage.wait_for("the OSD is controlled", |stage| stage.standing() == "controlled")?;
        thread::sleep(LEARNING);
        windows.push(stage.window(name, time)?);
        println!("lab: {}", stage.why()?);
        stage.stop_guard(guard)?;
    }
    Ok(windows)
}

fn report(lab: &mut Lab, fixed: &[Window], agents: &[Window]) -> Result<()> {
    println!("\n| budget | bulk, light p99 (p50) |\n|---|---|");
    for window in fixed.iter().chain(agents) {
        println!("| {} | {} |", window.case, cell(window));
    }
    println!();
    for agent in agents {
        let verdict = Verdict::of(agent, fixed).context("no fixed budget was measured")?;
        let line = format!("{}: {verdict}", agent.case);
        if agent.case == AGENTS[0].0 {
            lab.check("ours_meets_the_bars_on_a_disk", verdict.holds(), &line);
        } else {
            println!("lab: {line}");
        }
    }
    Ok(())
}
