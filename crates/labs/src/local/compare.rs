//! The agent compared with what the kernel has against noisy neighbours: wbt, BFQ, Kyber, io.cost, and a limit by hand.
//!
//! A step has a disk and a load beside the protected reader, and one row for each means. All rows have the same target for the
//! reader's p99: half-way between the disk without other load and the disk without any means. A limit by hand is the best of a
//! sweep: of those under which the reader meets the target, the one with most throughput.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{BULK, PROTECTED};
use crate::base::process::{self, Running};
use crate::check::steps::Plan;
use crate::machine::devices::make_disk;
use crate::machine::guard::{self, Guard};
use crate::machine::guest::{GROUPS, in_group, put};

/// Measured time of a row in seconds: in a short run, and in a full run.
const SECONDS: [u64; 2] = [10, 100];
/// Time after which a means has to be in force.
const SETTLE: Duration = Duration::from_secs(3);
/// Time of a run of the recipe for io.cost's model, in seconds.
const MODEL_SECONDS: u64 = 3;
/// Limits of the sweep by hand, as parts of the disk's throughput.
const SWEEP: [f64; 5] = [0.8, 0.6, 0.4, 0.2, 0.1];
/// Reads of a window at least; a window lasts for a second at least.
const WINDOW_READS: usize = 200;
const PERCENTILE: f64 = 0.99;
/// Weights of the protected group and of the other one, where a means has weights.
const WEIGHTS: [&str; 2] = ["1000", "100"];
const LOG: &str = "/run/local-compare";
const END_LIMIT: Duration = Duration::from_secs(60);

/// A modelled disk.
pub(super) struct Disk {
    name: &'static str,
    title: &'static str,
    settings: [(&'static str, &'static str); 5],
}

/// A request of the SSD takes 100 us, of the disk 4 ms; both have a bound on bytes per second.
pub(super) const DISKS: [Disk; 2] = [
    Disk {
        name: "cssd",
        title: "SSD, 100 us, 32 at a time, 200 MiB/s",
        settings: [
            ("memory_backed", "0"),
            ("irqmode", "2"),
            ("completion_nsec", "100000"),
            ("hw_queue_depth", "32"),
            ("mbps", "200"),
        ],
    },
    Disk {
        name: "cdisk",
        title: "disk, 4 ms, 2 at a time, 100 MiB/s",
        settings: [
            ("memory_backed", "0"),
            ("irqmode", "2"),
            ("completion_nsec", "4000000"),
            ("hw_queue_depth", "2"),
            ("mbps", "100"),
        ],
    },
];

/// A load beside the protected reader.
pub(super) struct Load {
    title: &'static str,
    arguments: &'static [&'static str],
}

pub(super) const LOADS: [Load; 5] = [
    Load { title: "bulk writer", arguments: &["--direct=1", "--rw=write", "--bs=256k", "--iodepth=32"] },
    Load { title: "buffered writer", arguments: &["--direct=0", "--rw=write", "--bs=1m", "--size=512m", "--fsync=64"] },
    Load { title: "bulk reader", arguments: &["--direct=1", "--rw=read", "--bs=256k", "--iodepth=32"] },
    Load {
        title: "mixture",
        arguments: &["--direct=1", "--rw=randrw", "--rwmixread=70", "--bssplit=4k/50:64k/50", "--iodepth=64"],
    },
    Load {
        title: "writer that comes and goes",
        arguments: &[
            "--direct=1",
            "--rw=write",
            "--bs=256k",
            "--iodepth=32",
            "--thinktime=2s",
            "--thinktime_iotime=2s",
        ],
    },
];

/// A means against noisy neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Means {
    Nothing,
    Wbt,
    Bfq,
    Kyber,
    IoCost,
    /// `io.max` of the other group, as a part of the disk's throughput.
    Limit(f64),
    Evenkeel,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Nothing => "nothing",
            Self::Wbt => "wbt",
            Self::Bfq => "BFQ, weights",
            Self::Kyber => "Kyber",
            Self::IoCost => "io.cost",
            Self::Limit(part) => return f.pad(&format!("io.max {:.0} %", part * 100.0)),
            Self::Evenkeel => "Evenkeel",
        };
        f.pad(name)
    }
}

/// The figures of a row.
#[derive(Clone, Copy, Debug)]
struct Row {
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    /// Part of the windows whose p99 is above the target.
    missed: f64,
    /// Of both groups, in MB per second.
    mb_per_s: f64,
    /// Part of the processor's time that was used.
    busy: f64,
}

impl Row {
    fn meets(&self, target_ms: f64) -> bool {
        self.p99_ms <= target_ms
    }
}

/// Compares all means on a disk beside a load; prints a line for each.
pub(super) fn compare(plan: &Plan, disk: &Disk, load: &Load) -> Result<String> {
    let [short, full] = SECONDS;
    let seconds = plan.either(short, full);
    let stage = Stage::new(disk)?;
    let alone = stage.measure(seconds, f64::INFINITY)?;
    let unmanaged = stage.row(plan, Means::Nothing, load, seconds, f64::INFINITY)?.context("needs nothing")?;
    let target_ms = f64::midpoint(alone.p99_ms, unmanaged.p99_ms);
    println!(
        "lab: {} beside {}: p99 {:.2} ms alone, {:.2} ms without means, target {target_ms:.2} ms",
        disk.title, load.title, alone.p99_ms, unmanaged.p99_ms
    );
    println!("lab: means           p50 ms   p99 ms  p99.9 ms  windows missed    MB/s  processor");
    let mut by_hand: Option<f64> = None;
    let mut ours = None;
    let fixed = [Means::Nothing, Means::Wbt, Means::Bfq, Means::Kyber, Means::IoCost];
    let sweep = SWEEP.map(Means::Limit);
    for means in fixed.into_iter().chain(sweep).chain([Means::Evenkeel]) {
        let Some(row) = stage.row(plan, means, load, seconds, target_ms)? else {
            println!("lab: {means:<14} the kernel has none");
            continue;
        };
        println!(
            "lab: {means:<14} {:>7.2} {:>8.2} {:>9.2} {:>13.1} % {:>7.1} {:>8.1} %",
            row.p50_ms,
            row.p99_ms,
            row.p999_ms,
            row.missed * 100.0,
            row.mb_per_s,
            row.busy * 100.0
        );
        match means {
            Means::Limit(_) if row.meets(target_ms) => {
                by_hand = Some(by_hand.map_or(row.mb_per_s, |best| best.max(row.mb_per_s)));
            }
            Means::Evenkeel => ours = Some(row),
            _ => {}
        }
    }
    let ours = ours.context("the agent has no row")?;
    let best = by_hand.map_or_else(
        || "no limit of the sweep meets the target".to_owned(),
        |best| format!("{:.0} % of the throughput of the best limit by hand", ours.mb_per_s / best * 100.0),
    );
    // Where the load does not harm the reader there is nothing to protect.
    ensure!(
        ours.p99_ms <= unmanaged.p99_ms.max(1.5 * target_ms),
        "p99 {:.2} ms under the agent, {:.2} ms without it",
        ours.p99_ms,
        unmanaged.p99_ms
    );
    Ok(format!("target missed in {:.1} % of the windows, {best}", ours.missed * 100.0))
}

/// A disk, in a state without any means.
struct Stage {
    name: &'static str,
    /// The device number, such as `259:0`.
    number: String,
}

impl Stage {
    fn new(disk: &Disk) -> Result<Self> {
        if !Path::new("/sys/block").join(disk.name).exists() {
            make_disk(disk.name, 4096, &disk.settings)?;
        }
        let number = std::fs::read_to_string(format!("/sys/block/{}/dev", disk.name))?.trim().to_owned();
        let stage = Self { name: disk.name, number };
        stage.clear()?;
        Ok(stage)
    }

    fn queue(&self, file: &str, value: &str) -> Result<()> {
        put(format!("/sys/block/{}/queue/{file}", self.name), value)
    }

    /// Takes every means away.
    fn clear(&self) -> Result<()> {
        self.queue("scheduler", "none")?;
        if Path::new(&format!("/sys/block/{}/queue/wbt_lat_usec", self.name)).exists() {
            self.queue("wbt_lat_usec", "0")?;
        }
        if Path::new(&format!("{GROUPS}/io.cost.qos")).exists() {
            put(format!("{GROUPS}/io.cost.qos"), &format!("{} enable=0", self.number))?;
        }
        put(format!("{GROUPS}/{BULK}/io.max"), &format!("{} rbps=max wbps=max riops=max wiops=max", self.number))
    }

    /// True if the kernel has the means, which is then in force.
    fn begin(&self, means: Means, target_ms: f64) -> Result<bool> {
        match means {
            Means::Nothing | Means::Evenkeel => Ok(true),
            Means::Wbt => Ok(self.queue("wbt_lat_usec", "-1").is_ok()),
            Means::Kyber => Ok(self.queue("scheduler", "kyber").is_ok()),
            Means::Bfq => {
                if self.queue("scheduler", "bfq").is_err() {
                    return Ok(false);
                }
                for (group, weight) in [PROTECTED, BULK].into_iter().zip(WEIGHTS) {
                    put(format!("{GROUPS}/{group}/io.bfq.weight"), weight)?;
                }
                Ok(true)
            }
            Means::IoCost => self.begin_io_cost(target_ms),
            Means::Limit(_) => Ok(true),
        }
    }

    /// Measures io.cost's model on this disk as the kernel's own recipe does (tools/cgroup/iocost_coef_gen.py), with shorter runs,
    /// and sets its qos by the target.
    fn begin_io_cost(&self, target_ms: f64) -> Result<bool> {
        if !Path::new(&format!("{GROUPS}/io.cost.model")).exists() {
            return Ok(false);
        }
        let mut model = format!("{} ctrl=user model=linear", self.number);
        for (key, kind, block, depth, jobs) in [
            ("rbps", "read", "1m", "16", "4"),
            ("rseqiops", "read", "4k", "64", "1"),
            ("rrandiops", "randread", "4k", "64", "4"),
            ("wbps", "write", "1m", "16", "4"),
            ("wseqiops", "write", "4k", "64", "1"),
            ("wrandiops", "randwrite", "4k", "64", "4"),
        ] {
            let mut fio = self.fio(PROTECTED, MODEL_SECONDS);
            fio.args(["--direct=1", "--output-format=json", "--group_reporting"]);
            fio.arg(format!("--rw={kind}")).arg(format!("--bs={block}"));
            fio.arg(format!("--iodepth={depth}")).arg(format!("--numjobs={jobs}"));
            let report = process::json(&mut fio)?;
            let of = &report["jobs"][0][if kind.contains("read") { "read" } else { "write" }];
            let value = if key.ends_with("iops") { &of["iops"] } else { &of["bw_bytes"] };
            let value = value.as_f64().context("no rate in the report of fio")?;
            model += &format!(" {key}={value:.0}");
        }
        put(format!("{GROUPS}/io.cost.model"), &model)?;
        let us = target_ms * 1e3;
        let qos = format!(
            "{} enable=1 ctrl=user rpct=99.00 rlat={us:.0} wpct=99.00 wlat={:.0} min=50.00 max=150.00",
            self.number,
            2.0 * us
        );
        put(format!("{GROUPS}/io.cost.qos"), &qos)?;
        for (group, weight) in [PROTECTED, BULK].into_iter().zip(WEIGHTS) {
            put(format!("{GROUPS}/{group}/io.weight"), weight)?;
        }
        Ok(true)
    }

    /// A command that runs fio on the disk in a control group.
    fn fio(&self, group: &str, seconds: u64) -> Command {
        let mut fio = in_group(group);
        fio.args(["fio", "--name=load", "--ioengine=libaio", "--thread", "--time_based"]);
        fio.arg(format!("--filename=/dev/{}", self.name)).arg(format!("--runtime={seconds}"));
        fio
    }

    /// The figures under a means; `None` if the kernel does not have it.
    fn row(&self, plan: &Plan, means: Means, load: &Load, seconds: u64, target_ms: f64) -> Result<Option<Row>> {
        if !self.begin(means, target_ms)? {
            return Ok(None);
        }
        let mut command = self.fio(BULK, 3600);
        command.args(load.arguments).arg("--output-format=terse").stdin(Stdio::null()).stdout(Stdio::null());
        let beside = Running::spawn(&mut command)?;
        thread::sleep(Duration::from_secs(1));
        if let Means::Limit(part) = means {
            // All that the disk has is known from the run without means.
            let bytes = self.bytes_per_s()? * part;
            put(format!("{GROUPS}/{BULK}/io.max"), &format!("{} rbps={bytes:.0} wbps={bytes:.0}", self.number))?;
        }
        let guard = (means == Means::Evenkeel).then(|| self.guard(plan, target_ms)).transpose()?;
        // The reader has to be there for what goes by its latency.
        self.measure(SETTLE.as_secs(), target_ms)?;
        let row = self.measure(seconds, target_ms)?;
        if let Some(guard) = guard {
            guard.stop()?;
        }
        beside.signal(libc::SIGINT);
        self.clear()?;
        beside.wait(END_LIMIT)?;
        Ok(Some(row))
    }

    fn guard(&self, plan: &Plan, target_ms: f64) -> Result<Guard> {
        let config = format!(
            "[pools.disk]\ndevices = [\"/dev/{}\"]\nlatency = {{ target = \"{}us\", percentile = 99 }}\n\
             [tenants.reader]\nmatch = [\"cgroup:{PROTECTED}\"]\nthrottle = \"never\"\n\
             [tenants.writer]\nmatch = [\"cgroup:{BULK}\"]\n",
            self.name,
            (target_ms * 1e3) as u64
        );
        Guard::start(&plan.binary, guard::ONLY, &config)
    }

    /// The disk's bound on bytes per second.
    fn bytes_per_s(&self) -> Result<f64> {
        let disk = DISKS.iter().find(|disk| disk.name == self.name).context("no disk of this lab has this name")?;
        let mbps = disk.settings.iter().find(|(key, _)| *key == "mbps").context("the disk has no mbps bound")?.1;
        Ok(mbps.parse::<f64>()? * f64::from(1 << 20))
    }

    /// Reads in the protected group for `seconds`.
    fn measure(&self, seconds: u64, target_ms: f64) -> Result<Row> {
        let (bytes, busy, begun) = (self.moved()?, processor()?, Instant::now());
        let mut fio = self.fio(PROTECTED, seconds);
        fio.args(["--direct=1", "--rw=randread", "--bs=4k", "--iodepth=1", "--output-format=json"]);
        process::json(fio.arg(format!("--write_lat_log={LOG}")))?;
        let elapsed = begun.elapsed().as_secs_f64();
        let log = std::fs::read_to_string(format!("{LOG}_clat.1.log")).context("cannot read the latency log of fio")?;
        let moved = (self.moved()? - bytes) as f64;
        let after = processor()?;
        let used = (after.0 - busy.0) as f64 / (after.1 - busy.1).max(1) as f64;
        let mut reads = reads(&log)?;
        let missed = missed(&reads, target_ms);
        reads.sort_unstable_by(|a, b| a.1.total_cmp(&b.1));
        ensure!(!reads.is_empty(), "fio read nothing");
        let at = |part: f64| reads[((part * reads.len() as f64) as usize).min(reads.len() - 1)].1;
        Ok(Row {
            p50_ms: at(0.5),
            p99_ms: at(PERCENTILE),
            p999_ms: at(0.999),
            missed,
            mb_per_s: moved / elapsed / 1e6,
            busy: used,
        })
    }

    /// Bytes that the disk has read and written.
    fn moved(&self) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/sys/block/{}/stat", self.name))?;
        let fields: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [read, written] = [2, 6].map(|at| fields.get(at).copied().unwrap_or(0));
        Ok((read + written) * 512)
    }
}

/// Times of the processors since the start, in ticks: used, and all.
fn processor() -> Result<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat has no first line")?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    let all: u64 = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    Ok((all - idle, all))
}

/// Time in ms and latency in ms of each read in a log of fio.
fn reads(log: &str) -> Result<Vec<(f64, f64)>> {
    let read = |line: &str| -> Option<(f64, f64)> {
        let mut fields = line.split(',').map(str::trim);
        let (at, ns): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((at, ns / 1e6))
    };
    log.lines().map(|line| read(line).with_context(|| format!("a line of fio's log: {line}"))).collect()
}

/// The part of the windows whose p99 is above the target, 0 to 1.
fn missed(reads: &[(f64, f64)], target_ms: f64) -> f64 {
    let (mut windows, mut missed, mut from) = (0_u32, 0_u32, 0);
    for to in 0..reads.len() {
        if to + 1 - from < WINDOW_READS || reads[to].0 - reads[from].0 < 1e3 {
            continue;
        }
        let mut window: Vec<f64> = reads[from..=to].iter().map(|read| read.1).collect();
        window.sort_unstable_by(f64::total_cmp);
        let at = ((PERCENTILE * window.len() as f64) as usize).min(window.len() - 1);
        windows += 1;
        missed += u32::from(window[at] > target_ms);
        from = to + 1;
    }
    f64::from(missed) / f64::from(windows.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_200_reads_and_a_second_at_least() {
        // A read each 2 ms: a window holds 501, of which six may be slow.
        let with = |slow: usize| -> Vec<(f64, f64)> {
            (0..1_002).map(|n| (n as f64 * 2.0, if n < slow { 9.0 } else { 1.0 })).collect()
        };
        assert_eq!([5, 6].map(|slow| missed(&with(slow), 5.0)), [0.0, 0.5]);
        // A read each 10 ms: 200 of them take 2 s.
        let slow: Vec<(f64, f64)> = (0..400).map(|n| (f64::from(n) * 10.0, f64::from(n / 200))).collect();
        assert_eq!(missed(&slow, 0.5), 0.5);
    }

    #[test]
    fn a_log_of_fio_is_read() {
        assert_eq!(reads("3, 2500000, 0, 4096, 0\n4, 1000, 0, 4096, 0\n").unwrap(), [(3.0, 2.5), (4.0, 0.001)]);
        assert!(reads("x, y\n").is_err());
    }
}
