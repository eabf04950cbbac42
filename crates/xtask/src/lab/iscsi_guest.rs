//! The iSCSI lab inside the machine: the steps, and those that hold single clients back.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::guest::tool;
use super::iscsi_stage::{self as stage, Measured, Server, UNCAPPED, address, retransmits, signal, with_window};
use super::steps::{self, figure};
use super::{iscsi_baselines, iscsi_control, iscsi_others, iscsi_overhead, iscsi_servers};
use crate::process::Running;

/// How long each measurement of one delay takes.
const MEASURE_SECONDS: &str = "2";
/// Delays of the sweep, in microseconds: multiples of the step, up to the paper's longest.
const SWEEP_US: [u64; 6] = [0, 2_000, 4_000, 6_000, 8_000, 9_500];
const SHORT_SWEEP_US: [u64; 3] = [0, 4_250, 9_500];
/// The other actuator.
pub(super) const EDT: [&str; 2] = ["--actuator", "edt"];
/// The same as on kernels before 6.6.
const FILTERS: [&str; 3] = ["--actuator", "edt", "--filters"];

/// Two machines share the steps, side by side, so that the lab takes half as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Machine {
    /// Delays by hand, baselines, deaths.
    Delays,
    /// The agent.
    Agent,
}

impl Machine {
    pub(super) const ALL: [Self; 2] = [Self::Delays, Self::Agent];

    /// As on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Delays => "delays",
            Self::Agent => "agent",
        }
    }
}

fn load(host: usize, arguments: &[&str]) -> Result<Measured> {
    stage::load(Server::Lio, host, arguments)
}

/// `evenkeel guard hold` under way.
pub(super) struct Holding {
    running: Running,
    lines: std::io::Lines<BufReader<Box<dyn std::io::Read + Send>>>,
}

impl Holding {
    pub(super) fn start(binary: &Path, hosts: &[usize], delay_us: u64, packets: &str, more: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(["guard", "hold", "--device", "br0"]);
        for &host in hosts {
            command.args(["--client", &address(host)]);
        }
        command.args(["--delay", &format!("{delay_us}us"), "--packets", packets, "--journal", "/run/hold.journal"]);
        command.args(more).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut running = Running::spawn(&mut command)?;
        let output: Box<dyn std::io::Read + Send> = Box::new(running.take_stdout()?);
        let mut lines = BufReader::new(output).lines();
        let mut first = lines.next().context("guard hold said nothing")??;
        // What an earlier one left comes first.
        while first.ends_with(": put back") {
            first = lines.next().context("guard hold ended without a word")??;
        }
        ensure!(first.starts_with("holding "), "guard hold said {first:?}");
        Ok(Self { running, lines })
    }

    /// Ends it as Ctrl-C does; the result is how many packets it dropped.
    pub(super) fn stop(mut self) -> Result<u64> {
        signal(self.running.id(), libc::SIGTERM);
        let last = self.lines.by_ref().map_while(Result::ok).last().context("guard hold ended without a word")?;
        ensure!(self.running.wait(Duration::from_secs(20))?.success(), "guard hold failed");
        let dropped = last.strip_prefix("put back; ").and_then(|t| t.split(' ').next()).and_then(|n| n.parse().ok());
        dropped.with_context(|| format!("guard hold ended with {last:?}"))
    }
}

/// Least squares: intercept, slope, coefficient of determination.
fn line_through(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let n = points.len() as f64;
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let sxx: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    let sxy: f64 = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    let syy: f64 = points.iter().map(|p| (p.1 - my).powi(2)).sum();
    let slope = sxy / sxx;
    (my - slope * mx, slope, if syy > 0.0 { sxy * sxy / (sxx * syy) } else { 0.0 })
}

/// What a step says when it holds; an error when it does not.
type Step = fn(&Path) -> Result<String>;

/// In this order on each machine.
const STEPS: [(Machine, &str, Step); 30] = [
    (Machine::Delays, "a_configured_qdisc_is_refused", refuses_foreign),
    (Machine::Delays, "writes_slow_down_with_the_delay_of_acknowledgements", |binary| {
        sweep(binary, "acknowledgements", true, &SWEEP_US, &[])
    }),
    (Machine::Delays, "reads_slow_down_with_the_delay_of_data", |binary| sweep(binary, "data", false, &SWEEP_US, &[])),
    (Machine::Delays, "writes_slow_down_with_departure_times", |binary| {
        sweep(binary, "acknowledgements", true, &SHORT_SWEEP_US, &EDT)
    }),
    (Machine::Delays, "reads_slow_down_with_departure_times", |binary| {
        sweep(binary, "data", false, &SHORT_SWEEP_US, &EDT)
    }),
    (Machine::Delays, "writes_slow_down_with_departure_times_by_filters", |binary| {
        sweep(binary, "acknowledgements", true, &SHORT_SWEEP_US, &FILTERS)
    }),
    (Machine::Delays, "reads_slow_down_with_departure_times_by_filters", |binary| {
        sweep(binary, "data", false, &SHORT_SWEEP_US, &FILTERS)
    }),
    (Machine::Delays, "a_client_over_ipv6_is_held_and_let_go", over_ipv6),
    (Machine::Delays, "without_a_window_cap_all_packets_must_wait", uncapped),
    (Machine::Delays, "other_clients_are_not_touched", iscsi_others::alone),
    (Machine::Delays, "clients_that_are_not_held_gain_when_others_are_held", iscsi_others::beside_held),
    (Machine::Delays, "delay_against_rate_limits_and_policing", iscsi_baselines::compare),
    (Machine::Delays, "the_agent_killed_ends_the_delay_at_once", |binary| killed(binary, false)),
    (Machine::Delays, "agent_and_sentinel_killed_end_the_delay_after_its_timeout", |binary| killed(binary, true)),
    (Machine::Delays, "agent_and_sentinel_killed_end_departure_times_at_once", killed_with_departure_times),
    (Machine::Delays, "filters_go_whoever_is_killed", killed_with_filters),
    (Machine::Delays, "a_killed_sentinel_is_replaced", sentinel_killed),
    (Machine::Delays, "a_second_agent_is_refused", second_agent),
    (Machine::Delays, "the_agent_costs_a_busy_device_nothing", iscsi_overhead::of_a_busy_device),
    (Machine::Delays, "the_agent_costs_a_busy_processor_little", iscsi_overhead::of_a_busy_processor),
    (Machine::Agent, "the_tutorial_works_as_written", iscsi_control::tutorial),
    (Machine::Agent, "the_agent_holds_20_ms", |binary| iscsi_control::agent(binary, 20)),
    (Machine::Agent, "the_agent_holds_15_ms", |binary| iscsi_control::agent(binary, 15)),
    (Machine::Agent, "the_agent_holds_10_ms", |binary| iscsi_control::agent(binary, 10)),
    (Machine::Agent, "a_percentile_is_what_the_load_itself_saw", iscsi_control::percentile),
    (Machine::Agent, "a_delay_without_effect_is_noticed", iscsi_control::without_effect),
    (Machine::Agent, "clients_of_tgt_are_found_and_held", |binary| iscsi_servers::hold(binary, Server::Tgt)),
    (Machine::Agent, "the_agent_keeps_a_goal_on_tgt", |binary| iscsi_servers::agent(binary, Server::Tgt)),
    (Machine::Agent, "clients_of_evenkeel_serve_are_found_and_held", |binary| {
        iscsi_servers::hold(binary, Server::Evenkeel)
    }),
    (Machine::Agent, "the_agent_keeps_a_goal_on_evenkeel_serve", |binary| {
        iscsi_servers::agent(binary, Server::Evenkeel)
    }),
];

fn wanted(machine: Machine, only: &str) -> impl Iterator<Item = (&'static str, Step)> {
    let of_it = STEPS.iter().filter(move |(on, name, _)| *on == machine && name.contains(only));
    of_it.map(|(_, name, step)| (*name, *step))
}

/// Number of a machine's steps whose name has `only` in it, for the host.
pub(super) fn steps(machine: Machine, only: &str) -> usize {
    wanted(machine, only).count()
}

/// In the guest: builds everything and takes the steps.
pub(super) fn run(binary: &Path, machine: Machine, only: &str) -> Result<()> {
    stage::build()?;
    stage::keep_in_memory(binary)?;
    load(1, &["--seconds", "0.2", "--write"])?;
    println!("lab: ready");
    for (name, step) in wanted(machine, only) {
        steps::take(name, || step(binary));
    }
    Ok(())
}

fn root_qdisc() -> Result<String> {
    Ok(tool("tc", &["qdisc", "show", "dev", "br0", "root"])?.trim().to_owned())
}

fn refuses_foreign(binary: &Path) -> Result<String> {
    tool("tc", &["qdisc", "add", "dev", "br0", "root", "handle", "1:", "pfifo", "limit", "777"])?;
    let output = Command::new(binary)
        .args(["guard", "hold", "--device", "br0", "--client", "10.0.0.11", "--delay", "1ms", "--for", "1s"])
        .output()?;
    let left = root_qdisc()?;
    tool("tc", &["qdisc", "del", "dev", "br0", "root"])?;
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(!output.status.success() && message.contains("pfifo 1:"), "guard hold said {message:?}");
    ensure!(left.contains("777"), "the qdisc is now {left:?}");
    Ok(String::new())
}

fn sweep(binary: &Path, packets: &str, write: bool, delays_us: &[u64], more: &[&str]) -> Result<String> {
    let mut arguments = vec!["--seconds", MEASURE_SECONDS];
    if write {
        arguments.push("--write");
    }
    let before = retransmits()?;
    let mut points = Vec::new();
    let mut rates = BTreeMap::new();
    let mut dropped = 0;
    for &delay in delays_us {
        // Without any delay nothing of ours is in force, not even the classes.
        let holding = (delay > 0).then(|| Holding::start(binary, &[1], delay, packets, more)).transpose()?;
        let measured = load(1, &arguments)?;
        if let Some(holding) = holding {
            dropped += holding.stop()?;
        }
        points.push((delay as f64 / 1e3, measured.mean_ms));
        rates.insert(delay, measured.mb_per_s);
        println!(
            "lab: {packets} {:.2} ms: request {:.3} ms, {:.2} MB/s",
            delay as f64 / 1e3,
            measured.mean_ms,
            measured.mb_per_s
        );
    }
    let again = retransmits()? - before;
    let (base, slope, fit) = line_through(&points);
    let (full, held) = (rates[&0], rates[&9_500]);
    let detail = format!(
        "request = {base:.2} + {slope:.2} x delay ms, R2 {fit:.4}; {full:.2} -> {held:.2} MB/s at 9.5 ms; \
         {again} retransmits, {dropped} drops"
    );
    ensure!(fit > 0.99, "not linear: {detail}");
    ensure!(full >= 4.0 * held, "less than a quarter: {detail}");
    ensure!(dropped == 0, "packets were lost: {detail}");
    figure(again == 0, || format!("packets were sent again: {detail}"))?;
    Ok(detail)
}

/// An initiator over IPv6, by each actuator; what it does over IPv4 is another client's.
fn over_ipv6(binary: &Path) -> Result<String> {
    const DELAY_MS: f64 = 9.5;
    stage::add_ipv6()?;
    let writes = ["--seconds", "1", "--write"];
    let before = retransmits()?;
    let free = stage::load_ipv6(&writes)?.mean_ms;
    let mut detail = format!("{free:.2} ms a write free");
    for more in [&["--client", stage::ADDRESS_6][..], &["--client", stage::ADDRESS_6, EDT[0], EDT[1]]] {
        let holding = Holding::start(binary, &[], 9_500, "acknowledgements", more)?;
        let (held, beside) = (stage::load_ipv6(&writes)?.mean_ms, load(1, &writes)?.mean_ms);
        let dropped = holding.stop()?;
        let after = stage::load_ipv6(&writes)?.mean_ms;
        detail += &format!("; {held:.2} held, {beside:.2} over IPv4, {after:.2} let go, {dropped} drops");
        ensure!(held >= free + 2.0 * DELAY_MS, "not held: {detail}");
        ensure!(beside <= 1.1 * free && after <= 1.1 * free, "held without need: {detail}");
        ensure!(dropped == 0, "packets were lost: {detail}");
    }
    let again = retransmits()? - before;
    figure(again == 0, || format!("{again} retransmits: {detail}"))?;
    Ok(detail)
}

fn uncapped(binary: &Path) -> Result<String> {
    let measure = |packets: &str| -> Result<Measured> {
        let holding = Holding::start(binary, &[1], 9_500, packets, &[])?;
        let measured = load(1, &["--seconds", MEASURE_SECONDS, "--write"]);
        holding.stop()?;
        measured
    };
    let (free, bare, all) = with_window(UNCAPPED, || {
        let free = load(1, &["--seconds", MEASURE_SECONDS, "--write"])?;
        Ok((free, measure("acknowledgements")?, measure("all")?))
    })?;
    let detail = format!(
        "{:.2} MB/s free, {:.2} with acknowledgements delayed by 9.5 ms, {:.2} with all packets",
        free.mb_per_s, bare.mb_per_s, all.mb_per_s
    );
    // If acknowledgements did bite here, the agent's fallback would be there for nothing.
    ensure!(bare.mb_per_s > 0.9 * free.mb_per_s, "acknowledgements bite: {detail}");
    ensure!(all.mb_per_s < free.mb_per_s / 3.0, "all packets do not bite: {detail}");
    Ok(detail)
}

/// The sentinel: the only other process with this journal on its command line.
fn sentinel_pid() -> Result<u32> {
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else { continue };
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.split(|&b| b == 0).any(|word| word == b"sentinel") {
            return Ok(pid);
        }
    }
    bail!("no sentinel runs")
}

/// Kills with SIGKILL. With `both`, the sentinel goes first and the table does not belong to the process, so that
/// nothing but the timeout is left.
fn killed(binary: &Path, both: bool) -> Result<String> {
    const TIMEOUT: Duration = Duration::from_secs(6);
    let free = load(1, &["--seconds", "1", "--write"])?;
    let more: &[&str] = if both { &["--shared-table", "--timeout", "6s"] } else { &[] };
    let holding = Holding::start(binary, &[1], 9_500, "all", more)?;
    let held = load(1, &["--seconds", "1", "--write"])?;
    ensure!(held.mean_ms > 3.0 * free.mean_ms, "the delay does not bite: {free:?}, {held:?}");
    let killed_at = Instant::now();
    if both {
        signal(sentinel_pid()?, libc::SIGKILL);
    }
    holding.running.kill();
    let mut detail = String::new();
    if both {
        let still = load(1, &["--seconds", "1", "--write"])?;
        ensure!(still.mean_ms > 3.0 * free.mean_ms, "the delay ended before its timeout: {still:?}");
        thread::sleep((TIMEOUT + Duration::from_millis(500)).saturating_sub(killed_at.elapsed()));
        detail.push_str("with nobody left, ");
    } else {
        let deadline = Duration::from_secs(2);
        while root_qdisc()?.contains("htb") {
            ensure!(killed_at.elapsed() < deadline, "the sentinel did not remove the classes: {}", root_qdisc()?);
            thread::sleep(Duration::from_millis(20));
        }
        detail.push_str(&format!("classes gone {:.2} s after the kill, ", killed_at.elapsed().as_secs_f64()));
    }
    let after = load(1, &["--seconds", "1", "--write"])?;
    detail.push_str(&format!(
        "request {:.2} ms free, {:.2} held, {:.2} after the kill",
        free.mean_ms, held.mean_ms, after.mean_ms
    ));
    ensure!(after.mean_ms < free.mean_ms + 9.5, "still held: {detail}");
    if both {
        // What is left is without effect, and found without the journal too.
        std::fs::remove_file("/run/hold.journal")?;
        let output = Command::new(binary).args(["guard", "reset", "--journal", "/run/hold.journal"]).output()?;
        let said = String::from_utf8_lossy(&output.stdout).replace('\n', "; ");
        ensure!(output.status.success() && !root_qdisc()?.contains("htb"), "guard reset said {said}");
        detail.push_str("; guard reset removed the classes");
    }
    figure(after.mean_ms <= 1.05 * free.mean_ms, || format!("slower than before: {detail}"))?;
    Ok(detail)
}

/// The program goes with the process that attached it, whoever else dies.
fn killed_with_departure_times(binary: &Path) -> Result<String> {
    let free = load(1, &["--seconds", "0.5", "--write"])?;
    let holding = Holding::start(binary, &[1], 9_500, "all", &EDT)?;
    let held = load(1, &["--seconds", "0.5", "--write"])?;
    signal(sentinel_pid()?, libc::SIGKILL);
    holding.running.kill();
    let after = load(1, &["--seconds", "0.5", "--write"])?;
    let left = root_qdisc()?;
    let output = Command::new(binary).args(["guard", "reset", "--journal", "/run/hold.journal"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).replace('\n', "; ");
    let detail = format!(
        "request {:.2} ms free, {:.2} held, {:.2} after the kill; left: {left:?}",
        free.mean_ms, held.mean_ms, after.mean_ms
    );
    ensure!(held.mean_ms > free.mean_ms + 9.5, "the delay does not bite: {detail}");
    ensure!(after.mean_ms < free.mean_ms + 9.5, "still held: {detail}");
    ensure!(output.status.success() && !root_qdisc()?.contains("7ee1:"), "guard reset said {said}");
    figure(after.mean_ms <= 1.05 * free.mean_ms, || format!("slower than before: {detail}"))?;
    Ok(detail)
}

/// What is left of filters on the bridge: ours and foreign ones, and what they hang on.
fn filters() -> Result<String> {
    let hooks = tool("tc", &["qdisc", "show", "dev", "br0"])?;
    let hooks = hooks.lines().filter(|line| line.contains("clsact")).collect::<Vec<_>>().join("; ");
    let filters = tool("tc", &["filter", "show", "dev", "br0", "egress"])?;
    Ok(format!("{hooks} {}", filters.trim()).trim().to_owned())
}

/// A filter outlives its process: the sentinel removes it, `guard reset` where there is no journal, and the next agent; until
/// then what it holds ends by its timeout. What somebody else hung there stays.
fn killed_with_filters(binary: &Path) -> Result<String> {
    const TIMEOUT: Duration = Duration::from_secs(2);
    const LIMIT: Duration = Duration::from_secs(2);
    let request = || Ok::<f64, anyhow::Error>(load(1, &["--seconds", "0.5", "--write"])?.mean_ms);
    let free = request()?;
    let start = || Holding::start(binary, &[1], 9_500, "all", &[&FILTERS[..], &["--timeout", "2s"]].concat());
    let bites = |held: f64| {
        ensure!(held > free + 9.5, "the delay does not bite: {free:.2} ms, {held:.2} ms held");
        Ok(())
    };

    // The agent alone.
    let holding = start()?;
    let (held, attached) = (request()?, filters()?);
    bites(held)?;
    ensure!(attached.contains("clsact") && attached.contains("evenkeel"), "no filter: {attached}");
    holding.running.kill();
    let killed_at = Instant::now();
    while !filters()?.is_empty() || root_qdisc()?.contains("7ee1:") {
        ensure!(killed_at.elapsed() < LIMIT, "the sentinel did not remove it: {}", filters()?);
        thread::sleep(Duration::from_millis(20));
    }
    let after = request()?;
    let mut detail = format!(
        "request {free:.2} ms free, {held:.2} held; agent killed: gone after {:.2} s, {after:.2} ms",
        killed_at.elapsed().as_secs_f64()
    );
    ensure!(after < free + 9.5, "still held: {detail}");
    figure(after <= 1.05 * free, || format!("slower than before: {detail}"))?;

    // Both: the timeout, then `guard reset` with the journal, without it, and the next start, also of an agent that has
    // another journal and no use for filters.
    for cure in ["reset", "reset without a journal", "start", "start with classes and without a journal"] {
        let holding = start()?;
        signal(sentinel_pid()?, libc::SIGKILL);
        holding.running.kill();
        let killed_at = Instant::now();
        bites(request()?)?;
        thread::sleep((TIMEOUT + Duration::from_millis(200)).saturating_sub(killed_at.elapsed()));
        let after = request()?;
        ensure!(after < free + 9.5, "held beyond the timeout: {after:.2} ms; {detail}");
        figure(after <= 1.05 * free, || format!("slower after the timeout: {after:.2} ms; {detail}"))?;
        ensure!(filters()?.contains("evenkeel"), "nothing was left to remove");
        let hooks = filters()?.matches("clsact").count();
        let forgotten = cure.ends_with("without a journal");
        if forgotten {
            std::fs::remove_file("/run/hold.journal")?;
        }
        if cure == "start" {
            start()?.stop()?;
        } else if cure.starts_with("start") {
            Holding::start(binary, &[99], 1_000, "all", &[])?.stop()?;
        } else {
            let output = Command::new(binary).args(["guard", "reset", "--journal", "/run/hold.journal"]).output()?;
            ensure!(output.status.success(), "guard reset: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let left = filters()?;
        // Without the journal nobody knows whose `clsact` it is.
        let expected = if forgotten { hooks } else { 0 };
        ensure!(!left.contains("evenkeel") && left.matches("clsact").count() == expected, "left after {cure}: {left}");
        ensure!(!root_qdisc()?.contains("7ee1:"), "left after {cure}: {}", root_qdisc()?);
        if expected > 0 {
            tool("tc", &["qdisc", "del", "dev", "br0", "clsact"])?;
        }
        detail += &format!("; both killed: {after:.2} ms after the timeout, removed by {cure}");
    }

    // Somebody else's.
    tool("tc", &["qdisc", "add", "dev", "br0", "clsact"])?;
    tool("tc", &["filter", "add", "dev", "br0", "egress", "matchall", "classid", "1:1"])?;
    let holding = start()?;
    bites(request()?)?;
    holding.stop()?;
    let left = filters()?;
    ensure!(left.contains("matchall") && !left.contains("evenkeel"), "left beside a foreign filter: {left}");
    tool("tc", &["qdisc", "del", "dev", "br0", "clsact"])?;
    Ok(detail)
}

/// The agent survives its sentinel, and starts another one, which does its work.
fn sentinel_killed(binary: &Path) -> Result<String> {
    const LIMIT: Duration = Duration::from_secs(2);
    let holding = Holding::start(binary, &[1], 9_500, "all", &[])?;
    let first = sentinel_pid()?;
    signal(first, libc::SIGKILL);
    let killed_at = Instant::now();
    let second = loop {
        match sentinel_pid() {
            Ok(pid) if pid != first => break pid,
            _ => ensure!(killed_at.elapsed() < LIMIT, "no other sentinel was started"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    let replaced_s = killed_at.elapsed().as_secs_f64();
    let held = load(1, &["--seconds", "0.5", "--write"])?;
    ensure!(held.mean_ms > 9.5, "the delay ended with the sentinel: {held:?}");
    holding.running.kill();
    let killed_at = Instant::now();
    while root_qdisc()?.contains("htb") || Path::new(&format!("/proc/{second}")).exists() {
        ensure!(killed_at.elapsed() < LIMIT, "the second sentinel did not remove the classes: {}", root_qdisc()?);
        thread::sleep(Duration::from_millis(20));
    }
    let after = load(1, &["--seconds", "0.5", "--write"])?;
    ensure!(after.mean_ms < 9.5, "still held: {after:?}");
    Ok(format!("another sentinel after {replaced_s:.2} s; it removed the classes when the agent was killed"))
}

/// Another agent, with a journal of its own so that no lock keeps it away, is refused and leaves the first one's
/// delay as it is.
fn second_agent(binary: &Path) -> Result<String> {
    let free = load(1, &["--seconds", "0.5", "--write"])?;
    let holding = Holding::start(binary, &[1], 9_500, "all", &[])?;
    let output = Command::new(binary)
        .args(["guard", "hold", "--device", "br0", "--client", "10.0.0.12", "--delay", "1ms", "--for", "1s"])
        .args(["--journal", "/run/second.journal"])
        .output()?;
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let held = load(1, &["--seconds", "0.5", "--write"])?;
    let reset = Command::new(binary).args(["guard", "reset", "--journal", "/run/second.journal"]).output()?;
    let still = load(1, &["--seconds", "0.5", "--write"])?;
    holding.stop()?;
    ensure!(!output.status.success() && message.contains("another agent"), "the second one said {message:?}");
    let refusal = String::from_utf8_lossy(&reset.stderr).trim().to_owned();
    ensure!(!reset.status.success() && refusal.contains("another agent"), "guard reset said {refusal:?}");
    let detail =
        format!("{:.2} ms a request free, {:.2} and {:.2} beside it", free.mean_ms, held.mean_ms, still.mean_ms);
    ensure!(held.mean_ms.min(still.mean_ms) > free.mean_ms + 9.5, "the first one's delay is gone: {detail}");
    Ok(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found() {
        let points: Vec<(f64, f64)> = (0..5).map(|d| (f64::from(d), 2.9 + 2.0 * f64::from(d))).collect();
        let (base, slope, fit) = line_through(&points);
        assert!((base - 2.9).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9 && fit > 0.999_999);
        assert!(line_through(&[(0.0, 1.0), (1.0, 0.0), (2.0, 1.0)]).2 < 0.1);
    }

    #[test]
    fn every_step_is_taken_on_one_machine() {
        assert_eq!(Machine::ALL.map(|machine| steps(machine, "")).iter().sum::<usize>(), STEPS.len());
        assert_eq!(steps(Machine::Delays, "no such step"), 0);
    }
}
