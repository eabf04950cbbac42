//! The iSCSI lab inside the machine: a target on a slow device, initiators in network namespaces, and the steps.
//!
//! ```text
//!  b1 ─veth─┐          ┌ target t1 ─ vg1-lv1 ┐
//!  b2 ─veth─┤ br0 ──── ┤ target t2 ─ vg1-lv2 ├─ slow (one request at a time, 3 ms each)
//!  ...      ┘  ▲       └ ...                 ┘
//!              └ delay classes
//! ```

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::guest::tool;
use super::iscsi_control;
use crate::process::{self, Running};

/// Initiator hosts.
const HOSTS: usize = 4;
/// Sectors of a volume: 128 MiB.
const VOLUME_SECTORS: usize = 262_144;
/// The device serves one request at a time in this time.
const SERVICE_NS: u32 = 3_000_000;
/// Receive window of the target. Without a cap, delayed acknowledgements slow nobody down, because responses carry
/// them along.
const TARGET_WINDOW: &str = "4096 16384 16384";
/// The kernel's default: as large as it gets.
const UNCAPPED: &str = "4096 131072 6291456";
const INITIATOR_WINDOW: &str = "4096 65536 65536";
const CONFIG: &str = "/sys/kernel/config";
/// How long each measurement of one delay takes.
const MEASURE_SECONDS: &str = "2";
/// Delays of the sweep, in microseconds: multiples of the step, up to the paper's longest.
const SWEEP_US: [u64; 6] = [0, 2_000, 4_000, 6_000, 8_000, 9_500];

fn put(path: impl AsRef<Path>, value: &str) -> Result<()> {
    let path = path.as_ref();
    std::fs::write(path, value).with_context(|| format!("cannot write {value:?} to {}", path.display()))
}

fn make_dir(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}

fn ip(arguments: &str) -> Result<()> {
    tool("ip", &arguments.split(' ').collect::<Vec<_>>()).map(|_| ())
}

/// Device, volumes, network, target.
fn build() -> Result<()> {
    if !Path::new(CONFIG).join("target").exists() {
        let _ = tool("mount", &["-t", "configfs", "configfs", CONFIG]);
    }
    let disk = format!("{CONFIG}/nullb/slow");
    make_dir(&disk)?;
    let service = SERVICE_NS.to_string();
    for (key, value) in [
        ("memory_backed", "1"),
        ("size", "1024"),
        ("blocksize", "512"),
        ("irqmode", "2"),
        ("completion_nsec", &service),
        ("hw_queue_depth", "1"),
        ("submit_queues", "1"),
        ("power", "1"),
    ] {
        put(format!("{disk}/{key}"), value)?;
    }
    put("/sys/block/slow/queue/scheduler", "none")?;

    // The target's side first: its window counts when the portal is made.
    for (key, value) in [("tcp_rmem", TARGET_WINDOW), ("tcp_early_retrans", "0")] {
        put(format!("/proc/sys/net/ipv4/{key}"), value)?;
    }
    ip("link add br0 type bridge forward_delay 0 stp_state 0")?;
    ip("addr add 10.0.0.1/24 dev br0")?;
    ip("link set br0 up")?;
    for n in 1..=HOSTS {
        ip(&format!("netns add b{n}"))?;
        ip(&format!("link add v{n} type veth peer name eth0 netns b{n}"))?;
        ip(&format!("link set v{n} master br0 up"))?;
        ip(&format!("-n b{n} addr add 10.0.0.{}/24 dev eth0", 10 + n))?;
        ip(&format!("-n b{n} link set lo up"))?;
        ip(&format!("-n b{n} link set eth0 up"))?;
        let settings = format!(
            "echo '{INITIATOR_WINDOW}' > /proc/sys/net/ipv4/tcp_rmem; echo 0 > /proc/sys/net/ipv4/tcp_early_retrans"
        );
        tool("ip", &["netns", "exec", &format!("b{n}"), "sh", "-c", &settings])?;
        // A volume as LVM makes it: volume group vg1.
        let table = format!("0 {VOLUME_SECTORS} linear /dev/slow {}", (n - 1) * VOLUME_SECTORS);
        let uuid = format!("LVM-{:A<32}{n:B<32}", "");
        let name = format!("vg1-lv{n}");
        tool("dmsetup", &["create", "--noudevsync", &name, "--uuid", &uuid, "--table", &table])?;
        tool("dmsetup", &["mknodes"])?;
        let store = format!("{CONFIG}/target/core/iblock_0/lv{n}");
        make_dir(&store)?;
        put(format!("{store}/control"), &format!("udev_path=/dev/mapper/{name}"))?;
        put(format!("{store}/enable"), "1")?;
        let group = format!("{CONFIG}/target/iscsi/{}/tpgt_1", target(n));
        make_dir(format!("{group}/lun/lun_0"))?;
        std::os::unix::fs::symlink(&store, format!("{group}/lun/lun_0/store"))?;
        make_dir(format!("{group}/np/10.0.0.1:3260"))?;
        put(format!("{group}/attrib/authentication"), "0")?;
        // Access lists, not demo mode, which does not tell where a client comes from.
        for initiator in (0..=HOSTS).map(|worker| initiator(n, worker)) {
            let acl = format!("{group}/acls/{initiator}");
            make_dir(format!("{acl}/lun_0"))?;
            std::os::unix::fs::symlink(format!("{group}/lun/lun_0"), format!("{acl}/lun_0/lun"))?;
        }
        put(format!("{group}/enable"), "1")?;
    }
    Ok(())
}

fn target(host: usize) -> String {
    format!("iqn.2026-01.lab:t{host}")
}

fn initiator(host: usize, worker: usize) -> String {
    format!("iqn.2026-01.lab:b{host}.{worker}")
}

fn address(host: usize) -> String {
    format!("10.0.0.{}", 10 + host)
}

/// Result of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    mean_ms: f64,
    mb_per_s: f64,
}

fn parse_load(line: &str) -> Option<(&str, Measured)> {
    let words: Vec<&str> = line.strip_prefix("lab: load ")?.split(' ').collect();
    let [tag, "mean_ms", mean, "mb_per_s", rate, "requests", _] = words[..] else { return None };
    Some((tag, Measured { mean_ms: mean.parse().ok()?, mb_per_s: rate.parse().ok()? }))
}

/// An initiator on `host`.
pub(super) fn load_command(host: usize, worker: usize, arguments: &[&str]) -> Result<Command> {
    let mut command = process::program("ip");
    command.args(["netns", "exec", &format!("b{host}")]).arg(std::env::current_exe()?);
    command.args(["guest", "iscsi-load", "--portal", "10.0.0.1:3260", "--target", &target(host)]);
    command.args(["--initiator", &initiator(host, worker), "--tag", &format!("b{host}.{worker}")]);
    command.args(arguments);
    Ok(command)
}

/// One initiator's result.
fn load(host: usize, arguments: &[&str]) -> Result<Measured> {
    let text = process::output(&mut load_command(host, 0, arguments)?)?;
    text.lines().find_map(parse_load).map(|(_, m)| m).with_context(|| format!("no result in {text:?}"))
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
        let first = lines.next().context("guard hold said nothing")??;
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

pub(super) fn signal(pid: u32, signal: i32) {
    // SAFETY: kill has no memory effects; the process is a child that has not been reaped.
    unsafe { libc::kill(pid as i32, signal) };
}

/// TCP segments sent again since the start, on the target and on all hosts.
pub(super) fn retransmits() -> Result<u64> {
    let mut total = parse_retransmits(&std::fs::read_to_string("/proc/net/snmp")?)?;
    for host in 1..=HOSTS {
        total += parse_retransmits(&tool("ip", &["netns", "exec", &format!("b{host}"), "cat", "/proc/net/snmp"])?)?;
    }
    Ok(total)
}

fn parse_retransmits(snmp: &str) -> Result<u64> {
    let mut lines = snmp.lines().filter_map(|l| l.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().context("no TCP counters")?, lines.next().context("no TCP counters")?);
    let found = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "RetransSegs");
    Ok(found.context("no counter of retransmits")?.1.parse()?)
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

/// In this order.
const STEPS: [(&str, Step); 11] = [
    ("a_configured_qdisc_is_refused", refuses_foreign),
    ("writes_slow_down_with_the_delay_of_acknowledgements", |binary| sweep(binary, "acknowledgements", true)),
    ("reads_slow_down_with_the_delay_of_data", |binary| sweep(binary, "data", false)),
    ("without_a_window_cap_all_packets_must_wait", uncapped),
    ("other_clients_are_not_touched", others),
    ("a_constant_delay_of_writers_helps_the_reads", iscsi_control::constant),
    ("the_agent_holds_20_ms", |binary| iscsi_control::agent(binary, 20)),
    ("the_agent_holds_15_ms", |binary| iscsi_control::agent(binary, 15)),
    ("the_agent_holds_10_ms", |binary| iscsi_control::agent(binary, 10)),
    ("the_agent_killed_ends_the_delay_at_once", |binary| killed(binary, false)),
    ("agent_and_sentinel_killed_end_the_delay_after_its_timeout", |binary| killed(binary, true)),
];

/// Number of steps whose name has `only` in it, for the host.
pub(super) fn steps(only: &str) -> usize {
    STEPS.iter().filter(|(name, _)| name.contains(only)).count()
}

/// In the guest: builds everything and takes the steps.
pub(super) fn run(binary: &Path, only: &str) -> Result<()> {
    build()?;
    // Everything that is measured later comes over from the host once.
    load(1, &["--seconds", "0.2", "--write"])?;
    Command::new(binary).args(["guard", "hold", "--help"]).stdout(Stdio::null()).status()?;
    println!("lab: ready");
    for (name, step) in STEPS.into_iter().filter(|(name, _)| name.contains(only)) {
        match step(binary) {
            Ok(detail) => println!("lab: passed {name} {detail}"),
            Err(e) => println!("lab: failed {name} {}", format!("{e:#}").replace('\n', " ")),
        }
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

fn sweep(binary: &Path, packets: &str, write: bool) -> Result<String> {
    let mut arguments = vec!["--seconds", MEASURE_SECONDS];
    if write {
        arguments.push("--write");
    }
    let before = retransmits()?;
    let mut points = Vec::new();
    let mut rates = BTreeMap::new();
    let mut dropped = 0;
    for delay in SWEEP_US {
        // Without any delay nothing of ours is in force, not even the classes.
        let holding = (delay > 0).then(|| Holding::start(binary, &[1], delay, packets, &[])).transpose()?;
        let measured = load(1, &arguments)?;
        if let Some(holding) = holding {
            dropped += holding.stop()?;
        }
        points.push((delay as f64 / 1e3, measured.mean_ms));
        rates.insert(delay, measured.mb_per_s);
        println!(
            "lab: {packets} {:.1} ms: request {:.3} ms, {:.2} MB/s",
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
    ensure!(again == 0 && dropped == 0, "packets were lost: {detail}");
    Ok(detail)
}

/// Runs `body` with another cap on the receive window. The kernel lets a window grow up to the cap of the moment, so
/// that it counts for connections that are made meanwhile.
fn with_window<T>(window: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    const SETTING: &str = "/proc/sys/net/ipv4/tcp_rmem";
    put(SETTING, window)?;
    let result = body();
    put(SETTING, TARGET_WINDOW)?;
    result
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

fn others(binary: &Path) -> Result<String> {
    let free = load(2, &["--seconds", MEASURE_SECONDS, "--write"])?;
    let holding = Holding::start(binary, &[1], 9_500, "all", &[])?;
    let beside = load(2, &["--seconds", MEASURE_SECONDS, "--write"])?;
    holding.stop()?;
    let detail = format!(
        "a client that is not held: {:.3} ms a request without classes, {:.3} ms with (reads and writes)",
        free.mean_ms, beside.mean_ms
    );
    ensure!(beside.mean_ms <= 1.01 * free.mean_ms, "{detail}");
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
    ensure!(after.mean_ms <= 1.05 * free.mean_ms, "still held: {detail}");
    if both {
        // What is left is without effect; the journal knows it.
        let output = Command::new(binary).args(["guard", "reset", "--journal", "/run/hold.journal"]).output()?;
        let said = String::from_utf8_lossy(&output.stdout).replace('\n', "; ");
        ensure!(output.status.success() && !root_qdisc()?.contains("htb"), "guard reset said {said}");
        detail.push_str("; guard reset removed the classes");
    }
    Ok(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_counters_are_understood() {
        let line = "lab: load b1.0 mean_ms 3.5000 mb_per_s 18.720 requests 571";
        assert_eq!(parse_load(line), Some(("b1.0", Measured { mean_ms: 3.5, mb_per_s: 18.72 })));
        assert_eq!(parse_load("lab: window b1.0 3 mean_ms 1 requests 2"), None);
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoMin InSegs RetransSegs InErrs\nTcp: 200 5 7 0\n";
        assert_eq!(parse_retransmits(snmp).unwrap(), 7);
        assert!(parse_retransmits("Udp: x\n").is_err());
    }

    #[test]
    fn the_line_is_found() {
        let points: Vec<(f64, f64)> = (0..5).map(|d| (f64::from(d), 2.9 + 2.0 * f64::from(d))).collect();
        let (base, slope, fit) = line_through(&points);
        assert!((base - 2.9).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9 && fit > 0.999_999);
        assert!(line_through(&[(0.0, 1.0), (1.0, 0.0), (2.0, 1.0)]).2 < 0.1);
    }
}
