//! The agent in the iSCSI lab: its start, status and end, and its control of many writers beside one reader.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::observe::{UNTHROTTLED_MS, Window, mean, observe, reader, writers};
use super::stage::{
    GROUP, LIO_PORT, NBD_PORTS, Segments, Server, TGT_PORT, UNCAPPED, address, volume_path, with_window,
};
use crate::base::process;
use crate::check::figures::Figures;
use crate::check::steps::Plan;
use crate::machine::guard::{self, Guard};
use crate::machine::guest::{follow_tutorial, tool};

/// Bar: the largest mean latency of reads in any second after a restart of the load, as a multiple of the latency target.
const OVERSHOOT_LIMIT: f64 = 1.5;
const SECOND: Duration = Duration::from_secs(1);
/// Statistic of the latency that the target bounds by default, as a TOML value.
const MEAN: &str = "\"mean\"";

/// A running `evenkeel guard run`.
pub(super) struct Agent {
    guard: Guard,
    /// Instant at which the agent was ready.
    ready: Instant,
    /// CPU time that the agent had used until `ready`, in nanoseconds.
    before_ns: u64,
}

impl Agent {
    /// Starts the agent with a latency target for the volume group, and waits until the agent controls the volume group.
    pub(super) fn start(binary: &Path, target_ms: u32, discover_every: &str) -> Result<Self> {
        Self::start_on(binary, target_ms, discover_every, MEAN, "\"br0\"")
    }

    /// Starts the agent without a network interface: it measures and decides, but throttles nothing.
    pub(super) fn watching(binary: &Path, target_ms: u32, discover_every: &str) -> Result<Self> {
        Self::start_on(binary, target_ms, discover_every, MEAN, "")
    }

    fn start_on(
        binary: &Path,
        target_ms: u32,
        discover_every: &str,
        percentile: &str,
        interfaces: &str,
    ) -> Result<Self> {
        let config = format!(
            "{}[pools.{GROUP}]\nlatency.target = \"{target_ms}ms\"\nlatency.percentile = {percentile}\n",
            tables(interfaces, discover_every)
        );
        let guard = Guard::start(binary, guard::ONLY, &config)?;
        let before_ns = process::cpu_ns(guard.running.id())?;
        Ok(Self { guard, ready: Instant::now(), before_ns })
    }

    /// CPU time that the agent has used since it was ready, in percent of one processor.
    pub(super) fn processor_percent(&self) -> Result<f64> {
        let used = (process::cpu_ns(self.guard.running.id())? - self.before_ns) as f64;
        Ok(used / self.ready.elapsed().as_nanos() as f64 * 100.0)
    }

    /// Ends the agent as systemd does. Returns the agent's log.
    pub(super) fn stop(self) -> Result<String> {
        self.guard.stop()
    }
}

/// Text of the table `[agent]` of this host's configuration.
fn tables(interfaces: &str, discover_every: &str) -> String {
    let [readers, writers] = NBD_PORTS;
    format!(
        "interfaces = [{interfaces}]\nports = [{LIO_PORT}, {TGT_PORT}, {readers}, {writers}]\n\
         discover_every = \"{discover_every}\"\n\n"
    )
}

/// Checks the agent with the policy file that all labs share, which has a latency target for the volume group.
pub(super) fn shared_policy(binary: &Path) -> Result<String> {
    let (guard, settings) = Guard::enforce(binary, guard::ONLY, &tables("\"br0\"", "1s"), GROUP)?;
    let packets = packets(binary)?;
    guard.stop()?;
    Ok(format!("{settings}; packets: {packets}"))
}

/// Output of `evenkeel guard status --json`.
fn status(binary: &Path) -> Result<String> {
    guard::ask(binary, guard::ONLY, &["status", "--json"])
}

/// Delay of each throttled client in milliseconds, as the agent reports it.
fn held(binary: &Path) -> Result<BTreeMap<String, f64>> {
    parse_held(&status(binary)?)
}

/// The kind of packets that the agent delays (acknowledgements or all), as it reports.
fn packets(binary: &Path) -> Result<String> {
    let state: Value = serde_json::from_str(&status(binary)?).context("guard status")?;
    let packets = state["pools"][0]["packets"].as_str();
    Ok(packets.context("guard status names no packets")?.to_owned())
}

fn parse_held(state: &str) -> Result<BTreeMap<String, f64>> {
    let state: Value = serde_json::from_str(state).context("guard status")?;
    let resources = state["pools"].as_array().context("guard status names no pools")?;
    let clients = resources.iter().filter_map(|resource| resource["clients"].as_array()).flatten();
    let mut held = BTreeMap::new();
    for client in clients {
        let address = client["address"].as_str().context("a client without an address")?;
        // The agent leaves out a delay of 0.
        let delay = match &client["delay_ms"] {
            Value::Null => 0.0,
            delay => delay.as_f64().context("a delay that is no number")?,
        };
        if delay > 0.0 {
            held.insert(address.to_owned(), delay);
        }
    }
    Ok(held)
}

/// Checks that the agent throttles some of the writers' hosts, and no other host.
fn holds_writers_alone(binary: &Path) -> Result<()> {
    let held = held(binary)?;
    let writers: Vec<String> = (2..=4).map(address).collect();
    ensure!(!held.is_empty(), "no host is held");
    ensure!(held.keys().all(|client| writers.contains(client)), "held: {held:?}, writers: {writers:?}");
    Ok(())
}

/// Checks that no client is throttled.
fn holds_no_host(binary: &Path) -> Result<()> {
    let held = held(binary)?;
    ensure!(held.is_empty(), "a client is still throttled 5 s after the load stopped: {held:?}");
    Ok(())
}

fn print_windows(target_ms: u32, windows: &[Window]) {
    for window in windows {
        let read = window.read_ms.map_or("none".to_owned(), |ms| format!("{ms:.1}"));
        println!(
            "lab: target {target_ms} ms, {:.1} s: reads {read} ms, writes {:.1} MB/s",
            window.at_s, window.written_mb_per_s
        );
    }
}

/// Largest mean latency in ms of the windows that begin at least `from_s` seconds after the start of the load.
fn worst(windows: &[Window], from_s: f64) -> f64 {
    windows.iter().filter(|w| w.at_s >= from_s + 1.0).filter_map(|w| w.read_ms).fold(0.0, f64::max)
}

/// Checks the agent with writers that start, stop, start again and stop.
pub(super) fn agent(binary: &Path, figures: &mut Figures, target_ms: u32) -> Result<String> {
    const ON: u64 = 12;
    const PAUSE: u64 = 5;
    const AGAIN: u64 = 6;
    let before = Segments::count()?;
    let agent = Agent::start(binary, target_ms, "1s")?;
    thread::sleep(SECOND);
    let _reading = reader(Server::Lio, ON + PAUSE + AGAIN + PAUSE + 2)?;
    let device = Server::Lio.device(1);
    let mut phases = Vec::new();
    for (writing_s, pause_s) in [(ON, PAUSE), (AGAIN, PAUSE)] {
        let started = Instant::now();
        let writing = writers(Server::Lio, writing_s)?;
        let windows = observe(&device, started, writing_s, SECOND)?;
        // With the writers still there; what this takes is not part of any window.
        let acts = holds_writers_alone(binary);
        drop(writing);
        observe(&device, started, pause_s, SECOND)?;
        acts?;
        holds_no_host(binary)?;
        phases.push(windows);
    }
    let processor = agent.processor_percent()?;
    let chosen = packets(binary)?;
    ensure!(chosen == "acknowledgements", "an effective throttle was given up: {chosen} wait");
    let segments = before.since_start()?;
    agent.stop()?;
    // While the queueing discipline is exchanged, the kernel drops what the device sends, and the reader still reads.
    let stopped = before.since_start()?;
    let target = f64::from(target_ms);
    let (first, again) = (&phases[0], &phases[1]);
    print_windows(target_ms, first);
    print_windows(target_ms, again);
    let (settled, overshoot, late) = (worst(first, 5.0), worst(again, 0.0), worst(again, 3.0));
    let written = mean(first.iter().filter(|w| w.at_s >= 6.0).map(|w| w.written_mb_per_s));
    let detail = format!(
        "worst second from 5 s on {settled:.1} ms, at the restart {overshoot:.1} ms, from 3 s after it {late:.1} ms; \
         writes {written:.1} MB/s; {segments}, with the agent's end {stopped}; \
         the agent took {processor:.1} % of the processor"
    );
    ensure!(settled > 0.0 && late > 0.0, "no reads: {detail}");
    // The queue is never longer than all writers make it. What comes before a restart is noticed may meet all of it, and
    // the log-ins of the writers beside it.
    figures.at_most("settled_ms", settled, UNTHROTTLED_MS, 1.15 * target);
    figures.at_most("restart_ms", overshoot, 1.25 * UNTHROTTLED_MS, OVERSHOOT_LIMIT * target);
    figures.at_most("settled_again_ms", late, UNTHROTTLED_MS, 1.15 * target);
    segments.judge(figures, "retransmits");
    stopped.judge(figures, "retransmits_with_end");
    Ok(detail)
}

/// Runs reader and writers on `server` under the agent, once and for `seconds`. Returns the windows of the second half, and the
/// mean latency of reads in ms after the agent has ended.
pub(super) fn spell(binary: &Path, server: Server, target_ms: u32, seconds: u64) -> Result<(Vec<Window>, f64)> {
    let agent = Agent::start(binary, target_ms, "1s")?;
    let reading = reader(server, seconds + 9)?;
    thread::sleep(SECOND);
    let started = Instant::now();
    let writing = writers(server, seconds + 7)?;
    let mut windows = observe(&server.device(1), started, seconds, SECOND)?;
    let acts = holds_writers_alone(binary);
    agent.stop()?;
    let free = observe(&server.device(1), started, 2, SECOND)?;
    drop((writing, reading));
    print_windows(target_ms, &windows);
    acts?;
    windows.retain(|w| w.at_s > seconds as f64 / 2.0 + 1.0);
    Ok((windows, free[1].read_ms.context("no reads after the agent's end")?))
}

/// Checks the agent with iSCSI targets that have an uncapped receive window, so that delayed acknowledgements have no effect.
/// The agent must notice this, delay all packets instead, and report the change.
pub(super) fn without_effect(Plan { binary, .. }: &Plan, figures: &mut Figures) -> Result<String> {
    const TARGET_MS: u32 = 20;
    /// Longest trial of the agent, in seconds. A trial begins when all hosts have the longest allowed delay.
    const LIMIT_S: u64 = 30;
    /// Seconds after which the result is certain. A trial that ends undecided by chance is followed by another one after as
    /// long as it took.
    const SURE_S: u64 = 60 + 2 * LIMIT_S;
    const AFTER_S: u64 = 8;
    with_window(UNCAPPED, || {
        let agent = Agent::start(binary, TARGET_MS, "1s")?;
        let _reading = reader(Server::Lio, SURE_S + AFTER_S + 10)?;
        thread::sleep(SECOND);
        let _writing = writers(Server::Lio, SURE_S + AFTER_S + 10)?;
        let started = Instant::now();
        let device = Server::Lio.device(1);
        let mut before = Vec::new();
        while packets(binary)? != "all" {
            if started.elapsed() >= Duration::from_secs(SURE_S) {
                let why = guard::ask(binary, guard::ONLY, &["why"])?;
                bail!("not noticed in {SURE_S} s: {}", why.trim());
            }
            before.extend(observe(&device, started, 1, SECOND)?);
        }
        let noticed_s = started.elapsed().as_secs_f64();
        let after = observe(&device, started, AFTER_S, SECOND)?;
        let said = guard::ask(binary, guard::ONLY, &["why", "-n", "100"])?;
        agent.stop()?;
        print_windows(TARGET_MS, &before);
        print_windows(TARGET_MS, &after);
        let reads = |windows: &[Window]| mean(windows.iter().filter_map(|w| w.read_ms));
        let writes = |windows: &[Window]| mean(windows.iter().filter_map(|w| w.write_ms));
        let detail = format!(
            "noticed after {noticed_s:.0} s; with all packets held reads {:.1} -> {:.1} ms, writes in the target {:.1} -> {:.1}",
            reads(&before),
            reads(&after),
            writes(&before),
            writes(&after)
        );
        ensure!(
            said.contains("all packets to throttled clients wait"),
            "{detail}; the reason is not on record: {said}"
        );
        figures.at_most("noticed_s", noticed_s, SURE_S as f64, LIMIT_S as f64);
        // What a read waits for. There are few reads, each waits for another number of writes, and their mean over so few
        // seconds scatters by as much as is to be seen. More delay makes no queue longer.
        figures.at_most("writes_of_before", writes(&after) / writes(&before), 1.05, 0.97);
        Ok(detail)
    })
}

/// Does the tutorial about iSCSI, under the load of the four hosts that it describes.
pub(super) fn tutorial(binary: &Path) -> Result<String> {
    /// Duration of the load in seconds: longer than the tutorial.
    const LOAD_S: u64 = 200;
    let _reading = reader(Server::Lio, LOAD_S)?;
    let _writing = writers(Server::Lio, LOAD_S)?;
    // Who has not logged in is not found.
    thread::sleep(3 * SECOND);
    follow_tutorial("tutorial-iscsi", binary)
}

/// Compares a percentile of the read latency that the agent measures with the figure of the load generator. Reads arrive at
/// random times, and wait for each other on the slow device.
pub(super) fn percentile(Plan { binary, .. }: &Plan, figures: &mut Figures) -> Result<String> {
    const TRACING: &str = "/sys/kernel/tracing";
    /// Option of fio for the rate of each job, in requests per second; the device serves 333 requests per second.
    const RATE: &str = "--rate_iops=40";
    if !Path::new(TRACING).join("events").exists() {
        tool("mount", &["-t", "tracefs", "none", TRACING])?;
    }
    let volume = volume_path(Server::Lio.volume(1)).display().to_string();
    let fio = |seconds: &str| -> Result<Value> {
        let mut command = process::program("fio");
        command.args(["--name=reads", "--direct=1", "--rw=randread", "--bs=4k", "--size=60m"]);
        // One read at a time each: who submits several waits for the device's only place, and sees none complete meanwhile.
        command.args(["--ioengine=psync", "--numjobs=6", "--thread", "--group_reporting", RATE]);
        command.args(["--rate_process=poisson", "--time_based", "--clocksource=clock_gettime"]);
        command.args(["--percentile_list=50:99", "--output-format=json"]);
        process::json(command.arg(format!("--filename={volume}")).arg(format!("--runtime={seconds}")))
    };
    // From the host into memory.
    fio("1")?;
    let agent = Agent::start_on(binary, 500, "10s", "99", "\"br0\"")?;
    let seen = fio("4")?;
    let state: Value = serde_json::from_str(&status(binary)?).context("guard status")?;
    agent.stop()?;
    let of = |percentile: &str| {
        let ns = seen["jobs"][0]["read"]["clat_ns"]["percentile"][percentile].as_f64();
        ns.map(|ns| ns / 1e6).with_context(|| format!("fio printed no percentile {percentile}"))
    };
    let (median, own) = (of("50.000000")?, of("99.000000")?);
    let reads = seen["jobs"][0]["read"]["total_ios"].as_u64().unwrap_or(0);
    let measured =
        state["pools"][0]["latency_target"]["measured_ms"].as_f64().context("no measured_ms of the agent")?;
    let detail = format!("{reads} reads: p99 {own:.2} ms by fio (median {median:.2} ms), {measured:.2} by the agent");
    // So many that a percentile has more than one read beyond it, which differ at all.
    figures.at_least("reads", reads as f64, 200.0, 600.0);
    figures.at_least("p99_of_median", own / median, 1.0, 1.5);
    // Another percentile, or another unit, is further away.
    figures.at_most("apart_percent", (measured / own - 1.0).abs() * 100.0, 50.0, 15.0);
    Ok(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_held_is_read_from_the_status() {
        let state = r#"{"pools":[{"clients":[{"address":"10.0.0.12","delay_ms":4.5},
            {"address":"10.0.0.11"}]}]}"#;
        assert_eq!(parse_held(state).unwrap(), BTreeMap::from([("10.0.0.12".to_owned(), 4.5)]));
        assert!(parse_held("{}").is_err());
        assert!(parse_held(r#"{"pools":[{"clients":[{"delay_ms":1.0}]}]}"#).is_err());
        assert!(parse_held(r#"{"pools":[{"clients":[{"address":"a","delay_ms":"1"}]}]}"#).is_err());
    }

    #[test]
    fn the_worst_window_begins_after_the_settling() {
        let window =
            |at_s, ms| Window { at_s, read_ms: Some(ms), write_ms: None, own_mb_per_s: 0.0, written_mb_per_s: 0.0 };
        let windows = [window(1.0, 50.0), window(5.5, 30.0), window(6.0, 9.0), window(7.0, 11.0)];
        assert_eq!((worst(&windows, 5.0), worst(&windows, 0.0)), (11.0, 50.0));
    }
}
