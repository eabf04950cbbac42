//! What the agent costs while it throttles nobody: throughput without it and with it, in turn, where the device is what
//! limits it and where the processor is.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::iscsi_control::Agent;
use super::iscsi_guest::{EDT, Holding};
use super::iscsi_observe::{Window, mean, observe, writers};
use super::iscsi_stage::{Server, load_fast, retransmits};

const ROUNDS: usize = 4;
/// Queueing disciplines that come or go under load may cost a packet, and the connection that lost it a pause; that is
/// paid once.
const SETTLED: Duration = Duration::from_millis(700);
/// A goal that nobody endangers.
const GOAL_MS: u32 = 500;
/// What may be lost of the throughput, in percent, and what is aimed at.
const LIMIT: f64 = 3.0;
const WANTED: f64 = 1.0;
/// The same where the emulated processor is the limit, which copies at a byte an instruction.
const PROCESSOR_LIMIT: f64 = 15.0;
/// What the emulated processor does in a second.
const INSTRUCTIONS_PER_S: f64 = 500e6;
const TICKS_PER_S: f64 = 10.0;

fn loss(without: f64, with: f64) -> f64 {
    (1.0 - with / without) * 100.0
}

/// Twelve writers on the slow device, the agent coming and going beside them.
pub(super) fn of_a_busy_device(binary: &Path) -> Result<String> {
    const WINDOW: Duration = Duration::from_secs(2);
    let before = retransmits()?;
    let writing = writers(Server::Lio, 60)?;
    thread::sleep(Duration::from_millis(1500));
    let rates = std::cell::RefCell::new(Vec::new());
    let window = || -> Result<f64> {
        thread::sleep(SETTLED);
        let mut windows: Vec<Window> = Vec::new();
        observe(&Server::Lio.device(1), Instant::now(), 1, WINDOW, &mut windows)?;
        let rate = mean(windows.iter().map(|w| w.written_mb_per_s));
        rates.borrow_mut().push(format!("{rate:.2}"));
        Ok(rate)
    };
    let (mut without, mut with, mut processor) = (0.0, 0.0, 0.0);
    for round in 0..ROUNDS {
        let mut guarded = || -> Result<()> {
            let agent = Agent::start(binary, GOAL_MS, "10s")?;
            with += window()? / ROUNDS as f64;
            processor += agent.processor_percent()? / ROUNDS as f64;
            agent.stop().map(drop)
        };
        // In turn first and last, so that what drifts meets both alike.
        if round % 2 == 1 {
            guarded()?;
        }
        without += window()? / ROUNDS as f64;
        if round % 2 == 0 {
            guarded()?;
        }
    }
    drop(writing);
    let lost = loss(without, with);
    println!("lab: in turn without, with, with, without, ...: {} MB/s", rates.borrow().join(" "));
    let detail = format!(
        "{without:.2} -> {with:.2} MB/s, a loss of {lost:.2} %; {:.2} million instructions a tick; {} retransmits",
        processor / 100.0 * INSTRUCTIONS_PER_S / TICKS_PER_S / 1e6,
        retransmits()? - before
    );
    if lost > WANTED {
        println!("lab: missed: a loss of {lost:.2} % is more than {WANTED} %");
    }
    ensure!(lost <= LIMIT, "the agent costs too much: {detail}");
    Ok(detail)
}

/// Throughput in MB/s of one writer, then of one reader, on the device that serves at once.
fn fast() -> Result<[f64; 2]> {
    let write = load_fast(&["--seconds", "0.3", "--write"])?.mb_per_s;
    Ok([write, load_fast(&["--seconds", "0.3"])?.mb_per_s])
}

/// One client that the processor limits, with nothing, with what each actuator sets for a client that is not there, and
/// with the agent.
pub(super) fn of_a_busy_processor(binary: &Path) -> Result<String> {
    const ROUNDS: usize = 2;
    let mut rates = [[0.0; 2]; 4];
    let mut add = |arm: usize, found: [f64; 2]| {
        rates[arm].iter_mut().zip(found).for_each(|(sum, rate)| *sum += rate / ROUNDS as f64);
    };
    fast()?;
    for _ in 0..ROUNDS {
        add(0, fast()?);
        for (arm, more) in [(1, &[][..]), (2, &EDT[..])] {
            let holding = Holding::start(binary, &[99], 1_000, "all", more)?;
            add(arm, fast()?);
            holding.stop()?;
        }
        let agent = Agent::start(binary, GOAL_MS, "10s")?;
        add(3, fast()?);
        agent.stop()?;
    }
    let lost = |arm: usize, kind: usize| loss(rates[0][kind], rates[arm][kind]);
    let text = |name: &str, kind: usize| {
        format!(
            "a {name} of {:.1} MB/s loses {:.2} % by classes and table, {:.2} % by departure times, {:.2} % by the agent \
             with classes",
            rates[0][kind],
            lost(1, kind),
            lost(2, kind),
            lost(3, kind)
        )
    };
    let detail = format!("{}; {}", text("writer", 0), text("reader", 1));
    ensure!(lost(3, 0).max(lost(3, 1)) <= PROCESSOR_LIMIT, "the agent takes too much: {detail}");
    Ok(detail)
}
