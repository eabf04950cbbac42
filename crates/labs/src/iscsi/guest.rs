//! The iSCSI lab inside the virtual machine: the list of steps, and the steps that throttle single clients.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::holding::Holding;
use super::stage::{self, Measured, Segments, Server, UNCAPPED, with_window};
use super::{baselines, control, others, overhead, servers};
use crate::base::process;
use crate::check::figures::Figures;
use crate::check::steps::{self, Plan};
use crate::machine::guard::children;
use crate::machine::guest::{signal, tool};

/// Seconds of each measurement of one delay: in a short run, and in a full run.
const MEASURE_SECONDS: [&str; 2] = ["1", "2"];
/// Delays of the sweep, in microseconds; the last one is the longest delay of the paper.
const SWEEP_US: [u64; 6] = [0, 2_000, 4_000, 6_000, 8_000, 9_500];
/// Delays of the sweep in a short run, and of every sweep with filters, in microseconds.
const SHORT_SWEEP_US: [u64; 3] = [0, 4_250, 9_500];
/// Option that makes the program throttle by traffic control filters, as on kernels before 6.6.
const FILTERS: [&str; 1] = ["--filters"];

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
}

fn load(host: usize, arguments: &[&str]) -> Result<Measured> {
    stage::load(Server::Lio, host, arguments)
}

/// Intercept, slope and coefficient of determination (R²) of the least-squares line through (x, y) points.
fn line_through(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let n = points.len() as f64;
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let sxx: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    let sxy: f64 = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    let syy: f64 = points.iter().map(|p| (p.1 - my).powi(2)).sum();
    let slope = sxy / sxx;
    (my - slope * mx, slope, if syy > 0.0 { sxy * sxy / (sxx * syy) } else { 0.0 })
}

/// A step of the lab. It returns a summary if it passes, otherwise an error.
type Step = fn(&Plan, &mut Figures) -> Result<String>;

/// All steps, each with its machine and name, in their order on each machine.
const STEPS: [(Machine, &str, Step); 29] = [
    (Machine::Delays, "a_configured_qdisc_is_refused", |plan, _| refuses_foreign(&plan.binary)),
    (Machine::Delays, "writes_slow_down_with_the_delay_of_acknowledgements", |plan, figures| {
        sweep(plan, figures, "acknowledgements", true, plan.either(&SHORT_SWEEP_US[..], &SWEEP_US), &[])
    }),
    (Machine::Delays, "reads_slow_down_with_the_delay_of_data", |plan, figures| {
        sweep(plan, figures, "data", false, plan.either(&SHORT_SWEEP_US[..], &SWEEP_US), &[])
    }),
    (Machine::Delays, "writes_slow_down_with_the_delay_by_filters", |plan, figures| {
        sweep(plan, figures, "acknowledgements", true, &SHORT_SWEEP_US, &FILTERS)
    }),
    (Machine::Delays, "reads_slow_down_with_the_delay_by_filters", |plan, figures| {
        sweep(plan, figures, "data", false, &SHORT_SWEEP_US, &FILTERS)
    }),
    (Machine::Delays, "a_client_over_ipv6_is_throttled_and_released", |plan, figures| over_ipv6(&plan.binary, figures)),
    (Machine::Delays, "without_a_window_cap_all_packets_must_wait", |plan, _| uncapped(plan)),
    (Machine::Delays, "other_clients_are_not_touched", others::alone),
    (Machine::Delays, "clients_that_are_not_held_gain_when_others_are_held", others::beside_held),
    (Machine::Delays, "delay_against_rate_limits_and_policing", baselines::compare),
    (Machine::Delays, "the_agent_killed_ends_the_delay_at_once", killed),
    (Machine::Delays, "agent_and_sentinel_killed_end_the_delay_at_once", killed_with_sentinel),
    (Machine::Delays, "filters_go_whichever_process_is_killed", killed_with_filters),
    (Machine::Delays, "what_others_remove_is_made_again", |plan, _| removed_by_others(&plan.binary)),
    (Machine::Delays, "a_killed_sentinel_is_replaced", |plan, _| sentinel_killed(&plan.binary)),
    (Machine::Delays, "a_second_agent_is_refused", |plan, _| second_agent(&plan.binary)),
    (Machine::Delays, "the_agent_costs_a_busy_device_nothing", overhead::of_a_busy_device),
    (Machine::Delays, "the_agent_costs_a_busy_processor_little", overhead::of_a_busy_processor),
    (Machine::Agent, "the_tutorial_works_as_written", |plan, _| control::tutorial(&plan.binary)),
    (Machine::Agent, "the_policy_of_all_labs_is_enforced", |plan, _| control::shared_policy(&plan.binary)),
    (Machine::Agent, "the_agent_holds_20_ms", |plan, figures| control::agent(&plan.binary, figures, 20)),
    (Machine::Agent, "the_agent_holds_15_ms", |plan, figures| control::agent(&plan.binary, figures, 15)),
    (Machine::Agent, "the_agent_holds_10_ms", |plan, figures| control::agent(&plan.binary, figures, 10)),
    (Machine::Agent, "a_percentile_is_what_the_load_itself_saw", control::percentile),
    (Machine::Delays, "a_delay_without_effect_is_noticed", control::without_effect),
    (Machine::Agent, "clients_of_tgt_are_found_and_held", |plan, _| servers::hold(&plan.binary, Server::Tgt)),
    (Machine::Agent, "the_agent_meets_a_target_on_tgt", |plan, figures| {
        servers::agent(&plan.binary, figures, Server::Tgt)
    }),
    (Machine::Agent, "clients_of_evenkeel_serve_are_found_and_held", |plan, _| {
        servers::hold(&plan.binary, Server::Evenkeel)
    }),
    (Machine::Agent, "the_agent_meets_a_target_on_evenkeel_serve", |plan, figures| {
        servers::agent(&plan.binary, figures, Server::Evenkeel)
    }),
];

/// Steps that run only in full runs or if they are selected by name: comparisons and costs, whose figures need repeats, and the
/// agent with other latency targets or on another server, where the mechanism is the same.
const ONLY_FULL: [&str; 6] = [
    "delay_against_rate_limits_and_policing",
    "the_agent_costs_a_busy_device_nothing",
    "the_agent_costs_a_busy_processor_little",
    "the_agent_holds_15_ms",
    "the_agent_holds_10_ms",
    "the_agent_meets_a_target_on_tgt",
];

fn wanted(machine: Machine, plan: &Plan) -> impl Iterator<Item = (&'static str, Step)> {
    let all = plan.full || !plan.only.is_empty();
    let of_it = STEPS
        .iter()
        .filter(move |(on, name, _)| *on == machine && name.contains(&plan.only) && (all || !ONLY_FULL.contains(name)));
    of_it.map(|(_, name, step)| (*name, *step))
}

/// Number of steps that the plan contains for a machine, for the report on the host.
pub(super) fn steps(machine: Machine, plan: &Plan) -> usize {
    wanted(machine, plan).count()
}

/// Builds the stage and runs the machine's steps; runs inside the virtual machine.
pub(crate) fn run(plan: &Plan, machine: Machine) -> Result<()> {
    stage::build()?;
    stage::keep_in_memory(&plan.binary)?;
    load(1, &["--seconds", "0.2", "--write"])?;
    println!("lab: ready");
    for (name, step) in wanted(machine, plan) {
        steps::take(plan, name, |figures| step(plan, figures));
    }
    Ok(())
}

fn root_qdisc() -> Result<String> {
    Ok(tool("tc", &["qdisc", "show", "dev", "br0", "root"])?.trim().to_owned())
}

/// True if queueing disciplines of Evenkeel are installed on the network interface.
fn has_queues() -> Result<bool> {
    Ok(root_qdisc()?.contains("7ee1:"))
}

/// Waits until `holds` returns true. The error after `limit` shows the present queueing disciplines and processes.
fn until(what: &str, limit: Duration, holds: impl FnMut() -> Result<bool>) -> Result<Duration> {
    process::until(what, [limit, Duration::from_millis(20)], holds)
        .with_context(|| format!("there are {:?} and {:?}", root_qdisc(), filters()))
}

fn refuses_foreign(binary: &Path) -> Result<String> {
    tool("tc", &["qdisc", "add", "dev", "br0", "root", "handle", "1:", "pfifo", "limit", "777"])?;
    let output = Command::new(binary)
        .args(["guard", "delay", "--device", "br0", "--client", "10.0.0.11", "--delay", "1ms", "--for", "1s"])
        .output()?;
    let left = root_qdisc()?;
    tool("tc", &["qdisc", "del", "dev", "br0", "root"])?;
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(!output.status.success() && message.contains("pfifo 1:"), "guard delay said {message:?}");
    ensure!(left.contains("777"), "the qdisc is now {left:?}");
    Ok(String::new())
}

fn sweep(
    plan: &Plan,
    figures: &mut Figures,
    packets: &str,
    write: bool,
    delays_us: &[u64],
    more: &[&str],
) -> Result<String> {
    let mut arguments = vec!["--seconds", plan.either(MEASURE_SECONDS[0], MEASURE_SECONDS[1])];
    if write {
        arguments.push("--write");
    }
    let before = Segments::count()?;
    let mut points = Vec::new();
    let mut rates = BTreeMap::new();
    let mut dropped = 0;
    for &delay in delays_us {
        // Without any delay nothing of ours is in force, not even the queues.
        let holding = (delay > 0).then(|| Holding::start(&plan.binary, &[1], delay, packets, more)).transpose()?;
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
    let segments = before.since_start()?;
    let (base, slope, fit) = line_through(&points);
    let (full, held) = (rates[&0], rates[&9_500]);
    let detail = format!(
        "request = {base:.2} + {slope:.2} x delay ms, R2 {fit:.4}; {full:.2} -> {held:.2} MB/s at 9.5 ms; \
         {segments}, {dropped} drops"
    );
    ensure!(fit > 0.99, "not linear: {detail}");
    ensure!(full >= 4.0 * held, "less than a quarter: {detail}");
    ensure!(dropped == 0, "packets were lost: {detail}");
    segments.judge(figures, "retransmits");
    Ok(detail)
}

/// Checks the delay of an initiator that is connected over IPv6, with links and with filters. The initiator's connection over
/// IPv4 counts as another client.
fn over_ipv6(binary: &Path, figures: &mut Figures) -> Result<String> {
    const DELAY_MS: f64 = 9.5;
    stage::add_ipv6()?;
    let writes = ["--seconds", "1", "--write"];
    let before = Segments::count()?;
    let free = stage::load_ipv6(&writes)?.mean_ms;
    let mut detail = format!("{free:.2} ms a write free");
    for more in [&["--client", stage::ADDRESS_6][..], &["--client", stage::ADDRESS_6, FILTERS[0]]] {
        let holding = Holding::start(binary, &[], 9_500, "acknowledgements", more)?;
        let (held, beside) = (stage::load_ipv6(&writes)?.mean_ms, load(1, &writes)?.mean_ms);
        let dropped = holding.stop()?;
        let after = stage::load_ipv6(&writes)?.mean_ms;
        detail += &format!("; {held:.2} held, {beside:.2} over IPv4, {after:.2} released, {dropped} drops");
        ensure!(held >= free + 2.0 * DELAY_MS, "not held: {detail}");
        ensure!(beside <= 1.1 * free && after <= 1.1 * free, "held without need: {detail}");
        ensure!(dropped == 0, "packets were lost: {detail}");
    }
    let segments = before.since_start()?;
    segments.judge(figures, "retransmits");
    Ok(format!("{detail}; {segments}"))
}

fn uncapped(plan: &Plan) -> Result<String> {
    let writes = ["--seconds", plan.either(MEASURE_SECONDS[0], MEASURE_SECONDS[1]), "--write"];
    let measure = |packets: &str| -> Result<Measured> {
        let holding = Holding::start(&plan.binary, &[1], 9_500, packets, &[])?;
        let measured = load(1, &writes);
        holding.stop()?;
        measured
    };
    let (free, bare, all) = with_window(UNCAPPED, || {
        let free = load(1, &writes)?;
        Ok((free, measure("acknowledgements")?, measure("all")?))
    })?;
    let detail = format!(
        "{:.2} MB/s free, {:.2} with acknowledgements delayed by 9.5 ms, {:.2} with all packets",
        free.mb_per_s, bare.mb_per_s, all.mb_per_s
    );
    // If delayed acknowledgements were effective here, the agent's fallback would be there for nothing.
    ensure!(bare.mb_per_s > 0.9 * free.mb_per_s, "delayed acknowledgements throttle the writer: {detail}");
    ensure!(all.mb_per_s < free.mb_per_s / 3.0, "delaying all packets is ineffective: {detail}");
    Ok(detail)
}

/// Checks that the delay is removed after the agent is killed with SIGKILL.
fn killed(plan: &Plan, figures: &mut Figures) -> Result<String> {
    const LIMIT: Duration = Duration::from_secs(10);
    let free = load(1, &["--seconds", "1", "--write"])?;
    let holding = Holding::start(&plan.binary, &[1], 9_500, "all", &[])?;
    let held = load(1, &["--seconds", "1", "--write"])?;
    ensure!(held.mean_ms > 3.0 * free.mean_ms, "the delay is ineffective: {free:?}, {held:?}");
    holding.running.kill();
    let gone_s = until("the sentinel removes the queues", LIMIT, || Ok(!has_queues()?))?.as_secs_f64();
    let after = load(1, &["--seconds", "1", "--write"])?;
    as_before(figures, after.mean_ms, free.mean_ms);
    Ok(format!(
        "queues gone {gone_s:.2} s after the kill, request {:.2} ms free, {:.2} held, {:.2} after the kill",
        free.mean_ms, held.mean_ms, after.mean_ms
    ))
}

/// Records as a figure that a request after the end of a delay (`after_ms`) takes as long as one before it (`free_ms`).
fn as_before(figures: &mut Figures, after_ms: f64, free_ms: f64) {
    figures.at_most("after_of_free", after_ms / free_ms, (free_ms + 9.5) / free_ms, 1.05);
}

/// Checks that the BPF program is removed when the process that attached it ends, and not when another process ends.
fn killed_with_sentinel(Plan { binary, .. }: &Plan, figures: &mut Figures) -> Result<String> {
    let free = load(1, &["--seconds", "0.5", "--write"])?;
    let holding = Holding::start(binary, &[1], 9_500, "all", &[])?;
    let held = load(1, &["--seconds", "0.5", "--write"])?;
    holding.kill_with_sentinel()?;
    let after = load(1, &["--seconds", "0.5", "--write"])?;
    let left = root_qdisc()?;
    let output = Command::new(binary).args(["guard", "reset", "--journal", "/run/hold.journal"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).replace('\n', "; ");
    let detail = format!(
        "request {:.2} ms free, {:.2} held, {:.2} after the kill; left: {left:?}",
        free.mean_ms, held.mean_ms, after.mean_ms
    );
    ensure!(held.mean_ms > free.mean_ms + 9.5, "the delay is ineffective: {detail}");
    as_before(figures, after.mean_ms, free.mean_ms);
    ensure!(output.status.success() && !root_qdisc()?.contains("7ee1:"), "guard reset said {said}");
    Ok(detail)
}

/// The traffic control filters on the bridge, those of Evenkeel and those of other programs, with their queueing disciplines.
fn filters() -> Result<String> {
    let hooks = tool("tc", &["qdisc", "show", "dev", "br0"])?;
    let hooks = hooks.lines().filter(|line| line.contains("clsact")).collect::<Vec<_>>().join("; ");
    let filters = tool("tc", &["filter", "show", "dev", "br0", "egress"])?;
    Ok(format!("{hooks} {}", filters.trim()).trim().to_owned())
}

/// Checks the removal of traffic control filters, which outlive the process that made them. They are removed by the sentinel, by
/// `guard reset` without a journal, and by the next agent; until then delayed packets have a timeout. Filters of other programs
/// stay.
fn killed_with_filters(Plan { binary, .. }: &Plan, figures: &mut Figures) -> Result<String> {
    // Long enough for a busy machine to start a client within it.
    const TIMEOUT: Duration = Duration::from_secs(10);
    const LIMIT: Duration = Duration::from_secs(20);
    let request = || Ok::<f64, anyhow::Error>(load(1, &["--seconds", "0.5", "--write"])?.mean_ms);
    let free = request()?;
    let start = || Holding::start(binary, &[1], 9_500, "all", &[&FILTERS[..], &["--timeout", "10s"]].concat());
    let effective = |held: f64| {
        ensure!(held > free + 9.5, "the delay is ineffective: {free:.2} ms, {held:.2} ms held");
        Ok(())
    };

    // The agent alone.
    let holding = start()?;
    let (held, attached) = (request()?, filters()?);
    effective(held)?;
    ensure!(attached.contains("clsact") && attached.contains("evenkeel"), "no filter: {attached}");
    holding.running.kill();
    let gone = until("the sentinel removes the filter", LIMIT, || Ok(filters()?.is_empty() && !has_queues()?))?;
    let after = request()?;
    let mut detail = format!(
        "request {free:.2} ms free, {held:.2} held; agent killed: gone after {:.2} s, {after:.2} ms",
        gone.as_secs_f64()
    );
    let mut slowest = after;

    // Both: the timeout, then `guard reset` with the journal, without it, and the next start, also of an agent that has
    // another journal and no use for filters.
    for cure in ["reset", "reset without a journal", "start", "start by links and without a journal"] {
        let holding = start()?;
        holding.kill_with_sentinel()?;
        let killed_at = Instant::now();
        effective(request()?)?;
        thread::sleep((TIMEOUT + Duration::from_millis(200)).saturating_sub(killed_at.elapsed()));
        let after = request()?;
        slowest = slowest.max(after);
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
        // Without the journal the owner of `clsact` is unknown.
        let expected = if forgotten { hooks } else { 0 };
        ensure!(!left.contains("evenkeel") && left.matches("clsact").count() == expected, "left after {cure}: {left}");
        ensure!(!root_qdisc()?.contains("7ee1:"), "left after {cure}: {}", root_qdisc()?);
        if expected > 0 {
            tool("tc", &["qdisc", "del", "dev", "br0", "clsact"])?;
        }
        detail += &format!("; both killed: {after:.2} ms after the timeout, removed by {cure}");
    }

    // Another program's.
    tool("tc", &["qdisc", "add", "dev", "br0", "clsact"])?;
    tool("tc", &["filter", "add", "dev", "br0", "egress", "matchall", "classid", "1:1"])?;
    let holding = start()?;
    effective(request()?)?;
    holding.stop()?;
    let left = filters()?;
    ensure!(left.contains("matchall") && !left.contains("evenkeel"), "left beside a foreign filter: {left}");
    tool("tc", &["qdisc", "del", "dev", "br0", "clsact"])?;
    as_before(figures, slowest, free);
    Ok(detail)
}

/// Checks that the agent restores what another program has removed: queueing disciplines, and a filter with its queueing
/// discipline.
fn removed_by_others(binary: &Path) -> Result<String> {
    const LIMIT: Duration = Duration::from_secs(5);
    let free = load(1, &["--seconds", "0.5", "--write"])?.mean_ms;
    let mut detail = format!("request {free:.2} ms free");
    for (more, removed) in [(&[][..], &["root"][..]), (&FILTERS, &["root", "clsact"])] {
        let holding = Holding::start(binary, &[1], 9_500, "all", more)?;
        for what in removed {
            tool("tc", &["qdisc", "del", "dev", "br0", what])?;
        }
        let is_made = || Ok(has_queues()? && more.is_empty() != filters()?.contains("evenkeel"));
        let again_s = until("all is made again", LIMIT, is_made)?.as_secs_f64();
        let held = load(1, &["--seconds", "0.5", "--write"])?.mean_ms;
        holding.stop()?;
        detail += &format!("; {} made again after {again_s:.2} s, {held:.2} ms held", removed.join(" and "));
        ensure!(held > free + 9.5, "the delay is ineffective: {detail}");
    }
    Ok(detail)
}

/// Checks that the agent survives the death of its sentinel, and starts a new sentinel that works.
fn sentinel_killed(binary: &Path) -> Result<String> {
    const LIMIT: Duration = Duration::from_secs(2);
    let holding = Holding::start(binary, &[1], 9_500, "all", &[])?;
    let sentinels = || children(holding.running.id());
    let first = *sentinels()?.first().context("the agent has no sentinel")?;
    signal(first, libc::SIGKILL);
    let killed_at = Instant::now();
    let second = loop {
        match sentinels()?.into_iter().find(|pid| *pid != first) {
            Some(pid) => break pid,
            None => ensure!(killed_at.elapsed() < LIMIT, "no other sentinel was started"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    let replaced_s = killed_at.elapsed().as_secs_f64();
    let held = load(1, &["--seconds", "0.5", "--write"])?;
    ensure!(held.mean_ms > 9.5, "the delay ended with the sentinel: {held:?}");
    holding.running.kill();
    until("the second sentinel removes the queues and ends", LIMIT, || {
        Ok(!has_queues()? && !Path::new(&format!("/proc/{second}")).exists())
    })?;
    let after = load(1, &["--seconds", "0.5", "--write"])?;
    ensure!(after.mean_ms < 9.5, "still held: {after:?}");
    Ok(format!("another sentinel after {replaced_s:.2} s; it removed the queues when the agent was killed"))
}

/// Checks that a second agent is refused, and leaves the first agent's delay unchanged. The second agent has a journal of its
/// own, so that no lock stops it earlier.
fn second_agent(binary: &Path) -> Result<String> {
    let free = load(1, &["--seconds", "0.5", "--write"])?;
    let holding = Holding::start(binary, &[1], 9_500, "all", &[])?;
    let output = Command::new(binary)
        .args(["guard", "delay", "--device", "br0", "--client", "10.0.0.12", "--delay", "1ms", "--for", "1s"])
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
        let count = |only: &str, full| {
            let plan = Plan { binary: "evenkeel".into(), only: only.into(), full, repeats: 1 };
            Machine::ALL.map(|machine| steps(machine, &plan)).iter().sum::<usize>()
        };
        assert_eq!(count("", true), STEPS.len());
        assert_eq!(count("", false), STEPS.len() - ONLY_FULL.len());
        assert_eq!((count(ONLY_FULL[0], false), count("no such step", true)), (1, 0));
    }
}
