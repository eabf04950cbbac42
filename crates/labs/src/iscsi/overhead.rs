//! The cost of an agent that throttles no client: throughput is measured alternately without and with the agent. In one step
//! the device limits the throughput, in another step the processor.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::control::Agent;
use super::holding::Holding;
use super::observe::{mean, observe, writers};
use super::stage::{Segments, Server, load_fast};
use crate::check::figures::Figures;
use crate::check::steps::Plan;
use crate::machine::guest::tool;

/// Time after the agent's start or end that is not measured. A change of queueing disciplines under load may lose a packet
/// once, which pauses the packet's connection.
const SETTLED: Duration = Duration::from_millis(700);
/// A latency target that is met without a throttle, in ms.
const TARGET_MS: u32 = 500;
/// Largest loss of throughput of a working mechanism, in percent; a larger loss in any measurement fails the step.
const LIMIT: f64 = 3.0;
/// Bar: the largest median loss of throughput, in percent.
const WANTED: f64 = 1.0;
/// Like [`LIMIT`] for the step in which the processor limits the throughput; the emulated one copies a byte per instruction.
const PROCESSOR_LIMIT: f64 = 7.0;
/// Instructions per second of the emulated processor.
const INSTRUCTIONS_PER_S: f64 = 500e6;
const TICKS_PER_S: f64 = 10.0;

fn loss(without: f64, with: f64) -> f64 {
    (1.0 - with / without) * 100.0
}

/// Measures the throughput of twelve writers on the slow device, alternately with and without the agent.
pub(super) fn of_a_busy_device(plan: &Plan, figures: &mut Figures) -> Result<String> {
    let rounds = plan.either(2, 4);
    const WINDOW: Duration = Duration::from_secs(2);
    let before = Segments::count()?;
    let writing = writers(Server::Lio, 60)?;
    thread::sleep(Duration::from_millis(1500));
    let rates = std::cell::RefCell::new(Vec::new());
    let window = || -> Result<f64> {
        thread::sleep(SETTLED);
        let windows = observe(&Server::Lio.device(1), Instant::now(), 1, WINDOW)?;
        let rate = mean(windows.iter().map(|w| w.written_mb_per_s));
        rates.borrow_mut().push(format!("{rate:.2}"));
        Ok(rate)
    };
    let (mut without, mut with, mut processor) = (0.0, 0.0, 0.0);
    for round in 0..rounds {
        let mut guarded = || -> Result<()> {
            let agent = Agent::start(&plan.binary, TARGET_MS, "10s")?;
            with += window()? / f64::from(rounds);
            processor += agent.processor_percent()? / f64::from(rounds);
            agent.stop().map(drop)
        };
        // In turn first and last, so that what drifts meets both alike.
        if round % 2 == 1 {
            guarded()?;
        }
        without += window()? / f64::from(rounds);
        if round % 2 == 0 {
            guarded()?;
        }
    }
    drop(writing);
    let lost = loss(without, with);
    println!("lab: in turn without, with, with, without, ...: {} MB/s", rates.borrow().join(" "));
    let detail = format!(
        "{without:.2} -> {with:.2} MB/s, a loss of {lost:.2} %; {:.2} million instructions a tick; {}",
        processor / 100.0 * INSTRUCTIONS_PER_S / TICKS_PER_S / 1e6,
        before.since_start()?
    );
    if lost > WANTED {
        println!("lab: missed: a throughput loss of {lost:.2} % is more than {WANTED} %");
    }
    // The twelve writers keep the device busy whatever the processor does beside it, unless one of them is throttled.
    figures.at_most("loss_percent", lost, 15.0, LIMIT);
    Ok(detail)
}

/// Throughput in MB/s of one writer, and of one reader after it, on the device without service time.
fn fast() -> Result<[f64; 2]> {
    let write = load_fast(&["--seconds", "0.3", "--write"])?.mb_per_s;
    Ok([write, load_fast(&["--seconds", "0.3"])?.mb_per_s])
}

/// Measures one client whose throughput the processor limits: without Evenkeel, with the queues that throttle another client,
/// and with the agent while it throttles no client.
pub(super) fn of_a_busy_processor(plan: &Plan, figures: &mut Figures) -> Result<String> {
    const ROUNDS: usize = 2;
    const ARMS: [&str; 7] = [
        "without Evenkeel",
        "pfifo as the root qdisc, without the agent",
        "another client throttled",
        "agent",
        "agent that only watches",
        "htb as the root qdisc, without the agent",
        "fq as the root qdisc, without the agent",
    ];
    /// Index in `ARMS` of the arm with an agent that throttles no client.
    const IDLE: usize = 3;
    // What else is measured says where a loss comes from.
    let is_measured = |arm: usize| plan.full || arm == 0 || arm == IDLE;
    let mut rates = [[0.0; 2]; ARMS.len()];
    fast()?;
    for _ in 0..ROUNDS {
        for (arm, rates) in rates.iter_mut().enumerate().filter(|(arm, _)| is_measured(*arm)) {
            let found = match arm {
                0 => fast()?,
                // The bridge has none, which a network card always has: what any would cost is part of what ours costs.
                1 | 5 | 6 => {
                    let kind: &[&str] = match arm {
                        1 => &["pfifo"],
                        5 => &["htb"],
                        _ => &["fq", "nopacing", "limit", "100000", "flow_limit", "100000"],
                    };
                    tool("tc", &[&["qdisc", "add", "dev", "br0", "root", "handle", "1:"], kind].concat())?;
                    let found = fast()?;
                    tool("tc", &["qdisc", "del", "dev", "br0", "root"])?;
                    found
                }
                2 => {
                    let holding = Holding::start(&plan.binary, &[99], 1_000, "all", &[])?;
                    let found = fast()?;
                    holding.stop()?;
                    found
                }
                _ => {
                    let start = if arm == IDLE { Agent::start } else { Agent::watching };
                    let agent = start(&plan.binary, TARGET_MS, "10s")?;
                    let found = fast()?;
                    agent.stop()?;
                    found
                }
            };
            rates.iter_mut().zip(found).for_each(|(sum, rate)| *sum += rate / ROUNDS as f64);
        }
    }
    let lost = |arm: usize, kind: usize| loss(rates[0][kind], rates[arm][kind]);
    let mut detail = format!("a writer of {:.1} MB/s and a reader of {:.1} lose", rates[0][0], rates[0][1]);
    for (arm, name) in ARMS.iter().enumerate().skip(1).filter(|(arm, _)| is_measured(*arm)) {
        detail += &format!(" {:.2} and {:.2} % ({name}),", lost(arm, 0), lost(arm, 1));
    }
    let detail = detail.trim_end_matches(',').to_owned();
    let worst = lost(IDLE, 0).max(lost(IDLE, 1));
    if worst > WANTED {
        println!("lab: missed: a throughput loss of {worst:.2} % is more than {WANTED} %");
    }
    // A program that looks at every packet while no client is throttled.
    figures.at_most("loss_percent", worst, 30.0, PROCESSOR_LIMIT);
    Ok(detail)
}
