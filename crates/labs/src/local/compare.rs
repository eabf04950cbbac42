//! The agent compared with what the kernel has against noisy neighbours: wbt, BFQ, Kyber, io.cost, and a limit by hand.
//!
//! A step has a disk and a load beside the protected reader, and one row for each means. All rows have the same target for the
//! reader's p99: half-way between the disk without other load and the disk without any means. A limit by hand is the best of a
//! sweep: of those under which the reader meets the target, the one with most throughput. Where the load hardly harms the reader
//! there is nothing to protect, and no bar is judged.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::judge::{self, Outcome};
use super::load::on_ext4;
use super::postgresql::Counts;
use super::{BULK, PROTECTED};
use crate::base::process::{self, Running};
use crate::check::figures::Figures;
use crate::check::steps::Plan;
use crate::machine::devices::make_disk;
use crate::machine::guard::{self, Guard};
use crate::machine::guest::{GROUPS, in_group, put};

/// Measured time of a row in seconds: in a short run, and in a full run.
const SECONDS: [u64; 2] = [10, 110];
/// Largest measured time of the rows whose windows are judged, in seconds.
const LONGEST: u64 = 600;
/// Time after which a means has to be in force.
const SETTLE: Duration = Duration::from_secs(3);
/// Time of a run of the recipe for io.cost's model, in seconds.
const MODEL_SECONDS: u64 = 3;
/// Limits of the sweep by hand, as parts of the disk's throughput.
const SWEEP: [f64; 5] = [0.8, 0.6, 0.4, 0.2, 0.1];
/// Reads of a window at least; a window lasts for a second at least.
const WINDOW_READS: usize = 200;
/// Number of windows below which a part of them says little.
const ENOUGH_WINDOWS: u32 = 100;
const PERCENTILE: f64 = 0.99;
/// Smallest p99 without any means, as a multiple of that without other load, from which on there is something to protect.
const HARMED: f64 = 1.2;
/// Mount point of the file system of a load with files.
const FOLDER: &str = "/mnt/local-compare";
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

impl Disk {
    /// A disk with a time for each request in ns, so many requests at a time, and a bound in MiB per second. `keeps`: "1" if the
    /// disk keeps its content, else "0".
    const fn new(name: &'static str, title: &'static str, keeps: &'static str, speed: [&'static str; 3]) -> Self {
        let [ns, at_a_time, mbps] = speed;
        let settings = [
            ("memory_backed", keeps),
            ("irqmode", "2"),
            ("completion_nsec", ns),
            ("hw_queue_depth", at_a_time),
            ("mbps", mbps),
        ];
        Self { name, title, settings }
    }
}

/// A request of an SSD takes 100 us, of the disk 4 ms; all have a bound on bytes per second. The last one keeps its content for a
/// file system.
pub(super) static DISKS: [Disk; 3] = [
    Disk::new("cssd", "SSD, 100 us, 32 at a time, 200 MiB/s", "0", ["100000", "32", "200"]),
    Disk::new("cdisk", "disk, 4 ms, 2 at a time, 100 MiB/s", "0", ["4000000", "2", "100"]),
    Disk::new("cfiles", "SSD with ext4, 100 us, 32 at a time, 200 MiB/s", "1", ["100000", "32", "200"]),
];

/// The requests of the protected reader, of 4 KiB each.
pub(super) struct Reader {
    pub(super) title: &'static str,
    pub(super) arguments: &'static [&'static str],
}

pub(super) static READERS: [Reader; 2] = [
    Reader { title: "one read in flight", arguments: &["--iodepth=1"] },
    Reader {
        title: "bursts of 8 reads",
        arguments: &["--iodepth=8", "--iodepth_batch=8", "--thinktime=20ms", "--thinktime_blocks=8"],
    },
];

/// A load beside the protected reader.
pub(super) struct Load {
    title: &'static str,
    arguments: &'static [&'static str],
    /// True if the load uses a file of a file system on the disk, and not the disk itself.
    in_file: bool,
}

impl Load {
    /// A load that uses the disk itself.
    const fn of_disk(title: &'static str, arguments: &'static [&'static str]) -> Self {
        Self { title, arguments, in_file: false }
    }
}

pub(super) static LOADS: [Load; 6] = [
    Load::of_disk("bulk writer", &["--direct=1", "--rw=write", "--bs=256k", "--iodepth=32"]),
    Load::of_disk("buffered writer", &["--direct=0", "--rw=write", "--bs=1m", "--size=512m", "--fsync=64"]),
    Load::of_disk("bulk reader", &["--direct=1", "--rw=read", "--bs=256k", "--iodepth=32"]),
    Load::of_disk(
        "mixture",
        &["--direct=1", "--rw=randrw", "--rwmixread=70", "--bssplit=4k/50:64k/50", "--iodepth=64"],
    ),
    Load::of_disk(
        "writer that comes and goes",
        &["--direct=1", "--rw=write", "--bs=256k", "--iodepth=32", "--thinktime=2s", "--thinktime_iotime=2s"],
    ),
    Load {
        title: "buffered writer of a file",
        arguments: &["--direct=0", "--rw=write", "--bs=1m", "--size=256m", "--fsync=64"],
        in_file: true,
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
pub(super) struct Row {
    pub(super) mean_ms: f64,
    p50_ms: f64,
    pub(super) p99_ms: f64,
    p999_ms: f64,
    windows: Windows,
    /// Number of seconds whose p99 is above the target.
    missed_s: usize,
    /// Of both groups, in MB per second.
    pub(super) mb_per_s: f64,
    /// Part of the processor's time that was used.
    busy: f64,
}

/// The windows of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Windows {
    all: u32,
    /// Windows whose p99 is above the target.
    missed: u32,
}

impl Windows {
    /// Part of the windows that miss the target, in percent; 100 without a window, which has met nothing.
    fn missed_percent(self) -> f64 {
        if self.all == 0 { 100.0 } else { f64::from(self.missed) / f64::from(self.all) * 100.0 }
    }
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, part) = (self.all, self.missed_percent());
        let text = match all {
            // A run without a window has met nothing.
            0 => "no window".to_owned(),
            ENOUGH_WINDOWS.. => format!("{part:.1} % of {all}"),
            _ => format!("{part:.1} % of only {all}"),
        };
        f.pad(&text)
    }
}

impl Row {
    fn meets(&self, target_ms: f64) -> bool {
        self.p99_ms <= target_ms
    }

    fn outcome(&self) -> Outcome {
        Outcome { missed: self.windows.missed_percent(), mb_per_s: self.mb_per_s }
    }
}

/// Measured time of the rows whose windows are judged, in seconds: enough for [`ENOUGH_WINDOWS`] of single reads that take as
/// long as the target. `seconds`: measured time of the other rows.
fn judged_seconds(seconds: u64, target_ms: f64) -> u64 {
    let reads = f64::from(ENOUGH_WINDOWS) * WINDOW_READS as f64;
    ((reads * target_ms / 1e3).ceil() as u64).clamp(seconds, LONGEST)
}

/// Compares all means on a disk beside a load; prints a line for each, and records the bars.
pub(super) fn compare(
    plan: &Plan,
    disk: &Disk,
    load: &Load,
    reader: &'static Reader,
    figures: &mut Figures,
) -> Result<String> {
    let stage = Stage::new(disk, reader)?;
    let mut compared = || compare_on(plan, &stage, disk, load, figures);
    if !load.in_file {
        return compared();
    }
    // Without a journal, as programs of all groups wait for commits.
    on_ext4(&format!("/dev/{}", stage.name), &["-O", "^has_journal"], FOLDER, compared)
}

fn compare_on(plan: &Plan, stage: &Stage, disk: &Disk, load: &Load, figures: &mut Figures) -> Result<String> {
    let [short, full] = SECONDS;
    let seconds = plan.either(short, full);
    let reader = stage.reader;
    let alone = stage.measure(seconds, f64::INFINITY)?;
    let unmanaged = stage.row(plan, Means::Nothing, load, seconds, f64::INFINITY)?.context("needs nothing")?;
    let target_ms = f64::midpoint(alone.p99_ms, unmanaged.p99_ms);
    println!(
        "lab: {}, {} beside {}: p99 {:.2} ms alone, {:.2} ms without means, target {target_ms:.2} ms",
        disk.title, reader.title, load.title, alone.p99_ms, unmanaged.p99_ms
    );
    println!("lab: means           p50 ms   p99 ms  p99.9 ms     windows missed  seconds    MB/s  processor");
    let mut io_cost: Option<Row> = None;
    let mut by_hand: Option<f64> = None;
    let mut ours = None;
    let fixed = [Means::Nothing, Means::Wbt, Means::Bfq, Means::Kyber, Means::IoCost];
    let sweep = SWEEP.map(Means::Limit);
    for means in fixed.into_iter().chain(sweep).chain([Means::Evenkeel]) {
        let is_judged = plan.full && matches!(means, Means::IoCost | Means::Evenkeel);
        let seconds = if is_judged { judged_seconds(seconds, target_ms) } else { seconds };
        let Some(row) = stage.row(plan, means, load, seconds, target_ms)? else {
            println!("lab: {means:<14} the kernel has none");
            continue;
        };
        println!(
            "lab: {means:<14} {:>7.2} {:>8.2} {:>9.2} {:>18} {:>8} {:>7.1} {:>8.1} %",
            row.p50_ms,
            row.p99_ms,
            row.p999_ms,
            row.windows,
            row.missed_s,
            row.mb_per_s,
            row.busy * 100.0
        );
        match means {
            Means::Limit(_) if row.meets(target_ms) => {
                by_hand = Some(by_hand.map_or(row.mb_per_s, |best| best.max(row.mb_per_s)));
            }
            Means::IoCost => io_cost = Some(row),
            Means::Evenkeel => ours = Some(row),
            _ => {}
        }
    }
    let ours = ours.context("the agent has no row")?;
    let best = by_hand.map_or_else(
        || "no limit of the sweep meets the target".to_owned(),
        |best| format!("{:.0} % of the throughput of the best limit by hand", ours.mb_per_s / best * 100.0),
    );
    if unmanaged.p99_ms < HARMED * alone.p99_ms {
        println!("lab: nothing to protect: the load hardly harms the reader, and no bar is judged");
    } else {
        let windows = plan.full.then_some([ENOUGH_WINDOWS, ours.windows.all]);
        judge::bars(figures, &ours.outcome(), windows, by_hand);
    }
    ensure!(
        ours.p99_ms <= unmanaged.p99_ms.max(1.5 * target_ms),
        "p99 {:.2} ms under the agent, {:.2} ms without it",
        ours.p99_ms,
        unmanaged.p99_ms
    );
    let io_cost = io_cost.map_or_else(
        || "the kernel has no io.cost".to_owned(),
        |other| judge::beside_io_cost(&ours.outcome(), &other.outcome()),
    );
    Ok(format!("windows that miss the target: {}, {best}; {io_cost}", ours.windows))
}

/// A disk, in a state without any means.
pub(super) struct Stage {
    name: &'static str,
    reader: &'static Reader,
    /// The device number, such as `259:0`.
    number: String,
}

impl Stage {
    fn new(disk: &Disk, reader: &'static Reader) -> Result<Self> {
        if !Path::new("/sys/block").join(disk.name).exists() {
            make_disk(disk.name, 4096, &disk.settings)?;
        }
        let stage = Self::on(disk.name, reader)?;
        stage.clear()?;
        Ok(stage)
    }

    /// The disk with this name, as it is.
    pub(super) fn on(name: &'static str, reader: &'static Reader) -> Result<Self> {
        let number = std::fs::read_to_string(format!("/sys/block/{name}/dev"))?.trim().to_owned();
        Ok(Self { name, reader, number })
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
        fio_on(&format!("/dev/{}", self.name), group, seconds)
    }

    /// The figures under a means; `None` if the kernel does not have it.
    fn row(&self, plan: &Plan, means: Means, load: &Load, seconds: u64, target_ms: f64) -> Result<Option<Row>> {
        if !self.begin(means, target_ms)? {
            return Ok(None);
        }
        let file = format!("{FOLDER}/bulk");
        let mut command = if load.in_file { fio_on(&file, BULK, 3600) } else { self.fio(BULK, 3600) };
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
    pub(super) fn measure(&self, seconds: u64, target_ms: f64) -> Result<Row> {
        let (bytes, busy, begun) = (self.moved()?, processor()?, Instant::now());
        let mut fio = self.fio(PROTECTED, seconds);
        fio.args(["--direct=1", "--rw=randread", "--bs=4k", "--output-format=json"]).args(self.reader.arguments);
        process::json(fio.arg(format!("--write_lat_log={LOG}")))?;
        let elapsed = begun.elapsed().as_secs_f64();
        let log = std::fs::read_to_string(format!("{LOG}_clat.1.log")).context("cannot read the latency log of fio")?;
        let moved = (self.moved()? - bytes) as f64;
        let after = processor()?;
        let used = (after.0 - busy.0) as f64 / (after.1 - busy.1).max(1) as f64;
        let mut reads = reads(&log)?;
        let (windows, missed_s) = (windows(&reads, target_ms), missed_seconds(&reads, target_ms));
        reads.sort_unstable_by(|a, b| a.1.total_cmp(&b.1));
        ensure!(!reads.is_empty(), "fio read nothing");
        let at = |part: f64| reads[((part * reads.len() as f64) as usize).min(reads.len() - 1)].1;
        Ok(Row {
            mean_ms: reads.iter().map(|read| read.1).sum::<f64>() / reads.len() as f64,
            p50_ms: at(0.5),
            p99_ms: at(PERCENTILE),
            p999_ms: at(0.999),
            windows,
            missed_s,
            mb_per_s: moved / elapsed / 1e6,
            busy: used,
        })
    }

    /// Bytes that the disk has read and written.
    fn moved(&self) -> Result<u64> {
        Ok(Counts::read(self.name)?.sectors * 512)
    }
}

/// A command that runs fio on a file or disk in a control group.
fn fio_on(file: &str, group: &str, seconds: u64) -> Command {
    let mut fio = in_group(group);
    fio.args(["fio", "--name=load", "--ioengine=libaio", "--thread", "--time_based"]);
    fio.arg(format!("--filename={file}")).arg(format!("--runtime={seconds}"));
    fio
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

/// The windows of `reads`, and those whose p99 is above the target.
fn windows(reads: &[(f64, f64)], target_ms: f64) -> Windows {
    let (mut windows, mut from) = (Windows::default(), 0);
    for to in 0..reads.len() {
        if to + 1 - from < WINDOW_READS || reads[to].0 - reads[from].0 < 1e3 {
            continue;
        }
        let mut window: Vec<f64> = reads[from..=to].iter().map(|read| read.1).collect();
        window.sort_unstable_by(f64::total_cmp);
        let at = ((PERCENTILE * window.len() as f64) as usize).min(window.len() - 1);
        windows.all += 1;
        windows.missed += u32::from(window[at] > target_ms);
        from = to + 1;
    }
    windows
}

/// Number of seconds whose p99 is above the target.
fn missed_seconds(reads: &[(f64, f64)], target_ms: f64) -> usize {
    let mut seconds: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (at, latency) in reads {
        seconds.entry((at / 1e3) as u64).or_default().push(*latency);
    }
    let is_missed = |latencies: &mut Vec<f64>| {
        latencies.sort_unstable_by(f64::total_cmp);
        latencies[((PERCENTILE * latencies.len() as f64) as usize).min(latencies.len() - 1)] > target_ms
    };
    seconds.values_mut().map(is_missed).filter(|missed| *missed).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_missed_if_a_hundredth_of_its_reads_is_slow() {
        // A read each 5 ms for three seconds: one slow read of 200 is less, two are a hundredth.
        let slow = |n: u32| n < 1 || (200..202).contains(&n);
        let reads: Vec<(f64, f64)> = (0..600).map(|n| (f64::from(n) * 5.0, if slow(n) { 9.0 } else { 1.0 })).collect();
        assert_eq!(missed_seconds(&reads, 5.0), 1);
        assert_eq!((missed_seconds(&reads, 0.5), missed_seconds(&[], 0.5)), (3, 0));
    }

    #[test]
    fn windows_hold_200_reads_and_a_second_at_least() {
        // A read each 2 ms: a window holds 501, of which six may be slow.
        let with = |slow: usize| -> Vec<(f64, f64)> {
            (0..1_002).map(|n| (n as f64 * 2.0, if n < slow { 9.0 } else { 1.0 })).collect()
        };
        let of = |all, missed| Windows { all, missed };
        assert_eq!([5, 6].map(|slow| windows(&with(slow), 5.0)), [of(2, 0), of(2, 1)]);
        // A read each 10 ms: 200 of them take 2 s.
        let slow: Vec<(f64, f64)> = (0..400).map(|n| (f64::from(n) * 10.0, f64::from(n / 200))).collect();
        assert_eq!(windows(&slow, 0.5), of(2, 1));
        assert_eq!(windows(&slow[..199], 0.5), of(0, 0));
    }

    #[test]
    fn few_windows_are_called_few_and_without_one_no_target_is_met() {
        let text = |all, missed| Windows { all, missed }.to_string();
        assert_eq!([text(0, 0), text(99, 0), text(100, 1)], ["no window", "0.0 % of only 99", "1.0 % of 100"]);
        let missed = |all, missed| Windows { all, missed }.missed_percent();
        assert_eq!([missed(0, 0), missed(200, 1), missed(9, 9)], [100.0, 0.5, 100.0]);
    }

    #[test]
    fn judged_rows_are_long_enough_for_windows_of_slow_reads_but_not_endless() {
        // 200 reads of 10 ms are 2 s, and 100 of these windows 200 s.
        assert_eq!([0.3, 10.0, 900.0].map(|target_ms| judged_seconds(110, target_ms)), [110, 200, LONGEST]);
    }

    #[test]
    fn a_load_with_files_has_a_disk_that_keeps_them() {
        for (_, [disk, load, _]) in super::super::guest::COMPARISONS {
            let keeps = DISKS[disk].settings.contains(&("memory_backed", "1"));
            assert_eq!(keeps, LOADS[load].in_file, "{} on {}", LOADS[load].title, DISKS[disk].title);
        }
    }

    #[test]
    fn a_log_of_fio_is_read() {
        assert_eq!(reads("3, 2500000, 0, 4096, 0\n4, 1000, 0, 4096, 0\n").unwrap(), [(3.0, 2.5), (4.0, 0.001)]);
        assert!(reads("x, y\n").is_err());
    }
}
