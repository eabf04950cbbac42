//! An OSD with the settings of a hard disk, on a device as slow for each request as one: what fixed budgets give, and what the
//! agent makes of it, with and without control of deferred writes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::LEARNING;
use super::judge::Verdict;
use super::stage::{Stage, Window, cell, median, progress};
use crate::check::run::{Lab, Options};

/// The settings by which BlueStore treats a file as a device that rotates: it charges 670,000 bytes for each write, and
/// defers those of less than 64 KiB.
const SETTINGS: &str = "bluestore_debug_enforce_settings = hdd
osd_mclock_scheduler_client_res = 1
";
/// A disk: what it transfers in a second, and what it takes for a write beside that.
const SPEED: u64 = 150_000_000;
const EACH: Duration = Duration::from_millis(4);
/// Fixed budgets, in MiB; the last lets everything in.
const FIXED_MIB: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The agent as it is, and with deferred writes left alone.
const AGENTS: [(&str, &str); 2] = [("agent", ""), ("agent, deferred = false", "deferred = false")];
/// A request takes longer than on flash, and so does the end of those admitted before.
const SETTLING: Duration = Duration::from_secs(4);

/// Measures all cases, and prints the table of medians and the bars.
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

/// All fixed budgets, then the agents.
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
