//! The stage of the caches lab inside the virtual machine: a slow device behind a fast one, control groups, and tenants.
//!
//! ```text
//!  fio in group a ─ io.max ─┐
//!  fio in group b ─ io.max ─┴─▶ cached device (dm-cache, dm-writecache, bcache) ──▶ fast: 64 MB, as fast as memory
//!                                                                     └───▶ slow: 10 MB/s
//! ```
//!
//! A tenant alternately reads a burst of data that is in the cache and a burst of data that is not, as fast as its limit
//! allows. On a dm-writecache, which caches only writes, the tenant writes these bursts.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::base::process::Running;
use crate::base::random::xorshift;
use crate::machine::devices::{lvm, make_disk, remove_disk};
use crate::machine::guest::{GROUPS, in_group, put, tool, until};

const MIB: u64 = 1 << 20;
const FAST_MIB: u64 = 64;
/// Size of the slow device, in MiB. The device is sparse: unwritten parts take no memory.
const SLOW_MIB: u64 = 16 << 10;
/// Rate of the slow device, in MiB per second (a setting of null_blk).
const SLOW_MB_PER_S: u64 = 10;
/// Size of the hot data that tenants read, in MiB; it fits into the cache.
const HOT_MIB: u64 = 60;
/// Size of the hot data that tenants write on a dm-writecache, in MiB.
const HOT_WRITTEN_MIB: u64 = 20;
/// Size of a tenant's request, in bytes.
const BLOCK: u64 = 64 << 10;
/// Mean length of a burst of cache hits at the guaranteed rate, in seconds.
const HOT_BURST_S: f64 = 0.72;
/// Mean length of a burst of cache misses at the guaranteed rate, in seconds: about one slice of the kernel's throttle
/// (100 ms). The slow device needs several slices to serve such a burst.
const COLD_BURST_S: f64 = 0.105;
/// Name of the cached device in device mapper.
const DM_NAME: &str = "hyb";
/// Time limit until a new device is ready.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// The driver that combines the two devices. Its spelling is its name in the agent's reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    DmCache,
    DmWritecache,
    Bcache,
}

impl Kind {
    /// The direction of the requests, guarantees and limits of tenants on such a device: `read` or `write`.
    pub(super) fn direction(self) -> &'static str {
        if self == Self::DmWritecache { "write" } else { "read" }
    }

    /// Size of the hot data, in MiB: smaller on a dm-writecache, which evicts the oldest block even if it is used again.
    fn hot_mib(self) -> u64 {
        if self == Self::DmWritecache { HOT_WRITTEN_MIB } else { HOT_MIB }
    }
}

/// A cached device that was made for one run.
#[derive(Debug)]
pub(super) struct Cached {
    pub(super) kind: Kind,
    pub(super) path: PathBuf,
    /// The device number, as `MAJOR:MINOR`.
    pub(super) number: String,
    /// Names of the disks of which the cached device consists; they are removed with it.
    disks: Vec<String>,
}

/// Mounts the control groups.
pub(super) fn build() -> Result<()> {
    tool("mount", &["-t", "cgroup2", "cgroup2", GROUPS])?;
    put(format!("{GROUPS}/cgroup.subtree_control"), "+io")
}

/// Number of the next device to be made. Numbers are not used again, because bcache keeps old devices.
static NEXT_DEVICE: AtomicU64 = AtomicU64::new(1);

impl Cached {
    /// Makes the fast and the slow device, combines them, and reads the hot data into the cache.
    pub(super) fn make(kind: Kind) -> Result<Self> {
        let number = NEXT_DEVICE.fetch_add(1, Ordering::Relaxed);
        let disks = ["hfd", "hsd", "hmd"].map(|name| format!("{name}{number}"));
        let [fast, slow, metadata] = &disks;
        make_disk(fast, FAST_MIB, &[])?;
        make_disk(slow, SLOW_MIB, &[("mbps", &SLOW_MB_PER_S.to_string())])?;
        let sectors = SLOW_MIB * MIB / 512;
        let name = match kind {
            Kind::DmCache => {
                make_disk(metadata, 16, &[])?;
                join_by_dm(&format!(
                    "0 {sectors} cache /dev/{metadata} /dev/{fast} /dev/{slow} 128 1 writeback smq 2 migration_threshold 4096"
                ))?
            }
            // Filled to the brim, so that what it does not hold has to wait for the slow device.
            Kind::DmWritecache => join_by_dm(&format!(
                "0 {sectors} writecache s /dev/{slow} /dev/{fast} 4096 4 high_watermark 98 low_watermark 96"
            ))?,
            Kind::Bcache => join_by_bcache(fast, slow)?,
        };
        let path = match kind {
            Kind::DmCache | Kind::DmWritecache => format!("/dev/mapper/{DM_NAME}"),
            Kind::Bcache => format!("/dev/{name}"),
        };
        let number = std::fs::read_to_string(format!("/sys/class/block/{name}/dev"))?.trim().to_owned();
        let cached = Self { kind, path: path.into(), number, disks: disks.into() };
        cached.warm()?;
        Ok(cached)
    }

    /// Makes a cached logical volume with LVM; it exists until the machine ends.
    pub(super) fn make_by_lvm(group: &str, volume: &str) -> Result<Self> {
        let (fast, slow) = ("fast", "slow");
        // Room for what LVM writes beside the data.
        make_disk(fast, FAST_MIB + 32, &[])?;
        make_disk(slow, SLOW_MIB + 64, &[("mbps", &SLOW_MB_PER_S.to_string())])?;
        let path = PathBuf::from(format!("/dev/{group}/{volume}"));
        let commands = format!(
            "vgcreate {group} /dev/{slow} /dev/{fast}\n\
             lvcreate -y -Wn -Zn -L {SLOW_MIB}m -n {volume} {group} /dev/{slow}\n\
             lvcreate -y -Wn -Zn -l 100%PVS -n cache {group} /dev/{fast}\n\
             lvconvert -y --type cache --cachevol cache --cachemode writeback --chunksize 64k \
             --cachesettings migration_threshold=4096 {group}/{volume}\n"
        );
        lvm(&[slow, fast], &commands, std::slice::from_ref(&path))?;
        let device = std::fs::metadata(&path)?.rdev();
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let cached = Self { kind: Kind::DmCache, path, number, disks: Vec::new() };
        cached.warm()?;
        Ok(cached)
    }

    /// Numbers of blocks that dm-cache has demoted and promoted so far, which takes the slow device's time from the tenants;
    /// `None` for other drivers.
    pub(super) fn moved(&self) -> Result<Option<[u64; 2]>> {
        if self.kind != Kind::DmCache {
            return Ok(None);
        }
        let status = tool("dmsetup", &["status", "--noudevsync", &self.path.display().to_string()])?;
        let words: Vec<&str> = status.split_whitespace().collect();
        // After START LENGTH `cache`: sizes and places of metadata and cache, hits and misses of reads and of writes.
        let word = |at: usize| words.get(at).and_then(|word| word.parse().ok()).context("dmsetup status");
        Ok(Some([word(11)?, word(12)?]))
    }

    fn warm(&self) -> Result<()> {
        let name = format!("--filename={}", self.path.display());
        let size = format!("--size={}m", self.kind.hot_mib());
        let fio = ["--name=warm", &name, &size, "--direct=1", "--ioengine=libaio", "--iodepth=8", "--bs=64k"];
        tool("fio", &[&fio[..], &["--rw=randwrite", "--loops=2", "--output-format=terse"]].concat())?;
        // What is promoted lately is still on its way.
        thread::sleep(Duration::from_secs(2));
        Ok(())
    }

    /// Removes the device. A bcache device is left until the machine ends, because it can be removed only when all its data is
    /// written back.
    pub(super) fn remove(self) -> Result<()> {
        let used = match self.kind {
            Kind::DmCache => &self.disks[..],
            Kind::DmWritecache => &self.disks[..2],
            Kind::Bcache => return Ok(()),
        };
        tool("dmsetup", &["remove", "--noudevsync", DM_NAME])?;
        used.iter().try_for_each(|disk| remove_disk(disk))
    }
}

/// Combines devices by device mapper, with the table `table`. Returns the kernel's name of the cached device.
fn join_by_dm(table: &str) -> Result<String> {
    tool("dmsetup", &["create", "--noudevsync", DM_NAME, "--table", table])?;
    tool("dmsetup", &["mknodes"])?;
    Ok("dm-0".to_owned())
}

/// Combines the devices `fast` and `slow` by bcache. Returns the kernel's name of the cached device.
fn join_by_bcache(fast: &str, slow: &str) -> Result<String> {
    let (fast, slow_path) = (format!("/dev/{fast}"), format!("/dev/{slow}"));
    let sizes = ["--bucket", "64k", "--block", "4k", "--wipe-bcache", "--writeback"];
    tool("make-bcache", &[&sizes[..], &["-C", &fast, "-B", &slow_path]].concat())?;
    for disk in [&fast, &slow_path] {
        put("/sys/fs/bcache/register", disk)?;
    }
    let settings = format!("/sys/block/{slow}/bcache");
    let name = until("device of bcache", || {
        let link = std::fs::read_link(format!("{settings}/dev")).ok()?;
        Path::new(&format!("{settings}/cache")).exists().then_some(())?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    })?;
    for (key, value) in [
        ("sequential_cutoff", "0"),
        ("cache_mode", "writeback"),
        ("cache/congested_read_threshold_us", "0"),
        ("cache/congested_write_threshold_us", "0"),
    ] {
        put(format!("{settings}/{key}"), value)?;
    }
    Ok(name)
}

/// A job file for fio: `operation` (reads or writes) in bursts, alternately in the hot part `hot_mib` of the device and in the
/// cold rest, for `seconds`. Bursts have the mean lengths that `rate` gives, in bytes per second.
fn bursts(device: &Path, operation: &str, seed: u64, hot_mib: std::ops::Range<u64>, rate: u64, seconds: u64) -> String {
    let device = device.display();
    let blocks_of = |seconds: f64| (seconds * rate as f64 / BLOCK as f64) as u64;
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ seed;
    let mut below = |bound: u64| xorshift(&mut state) % bound;
    let mut text = format!("fio version 2 iolog\n{device} add\n{device} open\n");
    let (mut left, mut cold) = (seconds * rate / BLOCK, false);
    while left > 0 {
        let (mean, from, to) =
            if cold { (COLD_BURST_S, 2 * HOT_MIB, SLOW_MIB) } else { (HOT_BURST_S, hot_mib.start, hot_mib.end) };
        let burst = blocks_of(mean * (0.5 + below(1_000) as f64 / 1_000.0)).min(left);
        for _ in 0..burst {
            let at = (from * MIB / BLOCK + below((to - from) * MIB / BLOCK)) * BLOCK;
            // Writing to a string does not fail.
            let _ = writeln!(text, "{device} {operation} {at} {BLOCK}");
        }
        left -= burst;
        cold = !cold;
    }
    let _ = writeln!(text, "{device} close");
    text
}

/// A tenant: a control group in which fio runs.
pub(super) struct Tenant {
    pub(super) group: PathBuf,
    /// The tenant's guarantee, in bytes per second.
    pub(super) guaranteed: u64,
    number: String,
    /// Direction of the tenant's requests: `read` or `write`.
    direction: &'static str,
    fio: Option<Running>,
}

/// Number of the next control group. Each run gets new groups, whose counters begin at zero.
static NEXT_GROUP: AtomicU64 = AtomicU64::new(1);

impl Tenant {
    /// Makes a tenant with a control group of a new name, without load.
    pub(super) fn make(cached: &Cached, guaranteed: u64) -> Result<Self> {
        let number = NEXT_GROUP.fetch_add(1, Ordering::Relaxed);
        Self::named(cached, &format!("tenant-{number}"), guaranteed)
    }

    /// Makes a tenant whose control group has the path `name`, which may begin with a parent group.
    pub(super) fn named(cached: &Cached, name: &str, guaranteed: u64) -> Result<Self> {
        let mut group = PathBuf::from(GROUPS);
        for part in name.split('/') {
            put(group.join("cgroup.subtree_control"), "+io")?;
            group.push(part);
            std::fs::create_dir(&group).with_context(|| format!("cannot make {}", group.display()))?;
        }
        let direction = cached.kind.direction();
        Ok(Self { group, guaranteed, number: cached.number.clone(), direction, fio: None })
    }

    /// Name of the tenant's group.
    pub(super) fn name(&self) -> String {
        self.group.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Starts the tenant's load for at most `seconds`. The tenant is number `index` of `of` tenants, each of which has its own
    /// part of the hot data.
    pub(super) fn load(&mut self, cached: &Cached, index: u64, of: u64, seconds: u64) -> Result<()> {
        let part = cached.kind.hot_mib() / of;
        let log = format!("/run/{}.iolog", self.name());
        // Twice as much as the guarantee takes, so that it does not end early.
        let (hot, rate) = (index * part..(index + 1) * part, self.guaranteed);
        put(&log, &bursts(&cached.path, self.direction, index + 1, hot, rate, 2 * seconds))?;
        let mut shell = in_group(&self.group);
        shell.args(["fio", "--name=tenant", "--direct=1", "--ioengine=libaio", "--iodepth=8", "--replay_no_stall=1"]);
        shell.arg(format!("--filename={}", cached.path.display())).arg(format!("--read_iolog={log}"));
        shell.args(["--output-format=terse", "--thread"]).stdin(Stdio::null()).stdout(Stdio::null());
        self.fio = Some(Running::spawn(&mut shell)?);
        until("I/O of a tenant", || (self.bytes().ok()? > 0).then_some(()))
    }

    /// The value of `key` (for example `bps`) in the tenant's direction for the cached device, from `file` of the control group.
    fn word(&self, file: &str, key: &str) -> Result<Option<String>> {
        let text = std::fs::read_to_string(self.group.join(file))?;
        let row = text.lines().find(|line| line.split(' ').next() == Some(&self.number));
        let key = format!("{}{key}=", &self.direction[..1]);
        let word = row.and_then(|row| row.split(' ').find_map(|word| word.strip_prefix(&key)));
        Ok(word.map(str::to_owned))
    }

    /// The tenant's limit in `io.max`, in bytes per second.
    pub(super) fn limit(&self) -> Result<Option<u64>> {
        let word = self.word("io.max", "bps")?.filter(|word| word != "max");
        word.map(|word| word.parse().context("the limit in io.max is not a number")).transpose()
    }

    /// Writes the tenant's limit to `io.max`; `None` removes it.
    pub(super) fn set_limit(&self, limit: Option<u64>) -> Result<()> {
        let limit = limit.map_or_else(|| "max".into(), |limit| limit.to_string());
        put(self.group.join("io.max"), &format!("{} {}bps={limit}", self.number, &self.direction[..1]))
    }

    /// Bytes that the tenant's control group has read or written so far, in the tenant's direction.
    fn bytes(&self) -> Result<u64> {
        self.word("io.stat", "bytes")?.map_or(Ok(0), |word| word.parse().context("bytes in io.stat are no number"))
    }

    /// Ends the tenant's load.
    pub(super) fn stop(&mut self) -> Result<()> {
        if let Some(fio) = self.fio.take() {
            fio.stop(libc::SIGINT, READY_LIMIT)?;
        }
        Ok(())
    }

    /// Ends the tenant's load and removes its control group.
    pub(super) fn remove(mut self) -> Result<()> {
        self.stop()?;
        until("removal of the tenant's cgroup", || std::fs::remove_dir(&self.group).ok())
    }
}

/// Figures on how well a throughput guarantee was kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Kept {
    /// Deviation of the mean throughput: |mean − guarantee| ÷ guarantee, in percent.
    pub(super) dat_percent: f64,
    /// Jitter: mean of |throughput of a second − guarantee| ÷ guarantee, in percent. Of all divisions of the time into seconds,
    /// the one with the smallest value counts: the agent keeps the guarantee over seconds whose beginnings are not known, and
    /// any other division shows arrears that are made up for as jitter.
    pub(super) jitter_percent: f64,
    /// Jitter under the division of the time into seconds that gives the largest value, in percent.
    pub(super) worst_jitter_percent: f64,
    /// Lowest throughput of a tenth of a second, and of a second, in MB/s. Together they distinguish one long gap from many
    /// short ones.
    pub(super) least_mb_per_s: [f64; 2],
    pub(super) mb_per_s: f64,
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { dat_percent, jitter_percent, worst_jitter_percent, least_mb_per_s: [part, second], mb_per_s } = self;
        write!(
            f,
            "{mb_per_s:.2} MB/s, DAT {dat_percent:.2} %, jitter {jitter_percent:.1} to {worst_jitter_percent:.1} %, least \
             {second:.1} MB/s in a second, {part:.1} in a tenth"
        )
    }
}

/// Computes the figures from `rates`, throughputs in bytes per second over successive parts of a second; a second has `parts`
/// parts.
fn kept(rates: &[f64], parts: usize, guaranteed: f64) -> Kept {
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let extremes = |stretch: &[f64]| {
        // All beginnings see as many seconds.
        let seconds = (stretch.len() + 1 - parts) / parts;
        let jitter = |first: usize| {
            let seconds = stretch[first..].chunks_exact(parts).take(seconds);
            let off: Vec<f64> = seconds.map(|second| (mean(second) - guaranteed).abs() / guaranteed * 100.0).collect();
            mean(&off)
        };
        let jitters = (0..parts).map(jitter);
        jitters.fold((f64::INFINITY, 0.0_f64), |(least, most), jitter| (least.min(jitter), most.max(jitter)))
    };
    // A controller that was not woken in time goes on with later seconds, which on a busy host it is now and then.
    let stretches = rates.chunks(STRETCH_S * parts).filter(|stretch| stretch.len() + 1 >= 2 * parts);
    let (least, most): (Vec<f64>, Vec<f64>) = stretches.map(extremes).unzip();
    Kept {
        dat_percent: (mean(rates) - guaranteed).abs() / guaranteed * 100.0,
        jitter_percent: mean(&least),
        worst_jitter_percent: mean(&most),
        least_mb_per_s: [1, parts]
            .map(|length| rates.windows(length).map(|rates| mean(rates) / 1e6).fold(f64::INFINITY, f64::min)),
        mb_per_s: mean(rates) / 1e6,
    }
}

/// Number of measurements per second.
const PARTS: usize = 10;
/// Number of successive seconds within which the division of the time into seconds is fixed; each stretch has its own.
const STRETCH_S: usize = 10;

/// Measures the throughput of all tenants for `seconds` seconds.
pub(super) fn measure(tenants: &mut [Tenant], seconds: usize) -> Result<Vec<Kept>> {
    let read = |tenants: &[Tenant]| -> Result<(Instant, Vec<u64>)> {
        let bytes = tenants.iter().map(Tenant::bytes).collect::<Result<_>>()?;
        Ok((Instant::now(), bytes))
    };
    let mut rates = vec![Vec::new(); tenants.len()];
    let mut before = read(tenants)?;
    let mut due = before.0;
    for _ in 0..seconds * PARTS {
        due += Duration::from_secs(1) / PARTS as u32;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let after = read(tenants)?;
        let length = (after.0 - before.0).as_secs_f64();
        for (rates, (before, after)) in rates.iter_mut().zip(before.1.iter().zip(&after.1)) {
            rates.push((after - before) as f64 / length);
        }
        before = after;
    }
    for tenant in tenants.iter_mut() {
        if let Some(fio) = &mut tenant.fio
            && let Some(status) = fio.ended()?
        {
            bail!("the load of {} ended before its time: {status}", tenant.name());
        }
    }
    Ok(rates.iter().zip(tenants).map(|(rates, tenant)| kept(rates, PARTS, tenant.guaranteed as f64)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_of_the_mean_and_mean_deviation() {
        let whole = kept(&[90.0, 110.0, 70.0, 110.0], 1, 100.0);
        assert!((whole.dat_percent - 5.0).abs() < 1e-9 && (whole.jitter_percent - 15.0).abs() < 1e-9, "{whole}");
        assert_eq!(whole.jitter_percent, whole.worst_jitter_percent);
        // What is short in one half is had back in the other one; seconds that begin between see neither whole.
        let halves = kept(&[120.0, 80.0, 120.0, 100.0, 100.0, 80.0, 120.0, 80.0, 120.0], 2, 100.0);
        assert!(halves.jitter_percent < 1e-9 && (halves.worst_jitter_percent - 5.0).abs() < 1e-9, "{halves}");
    }

    #[test]
    fn bursts_hit_and_miss_in_turn_and_are_the_same_every_time() {
        let make = || bursts(Path::new("/dev/x"), "read", 1, 0..60, 30 * MIB, 18);
        let text = make();
        assert_eq!(text, make());
        let places: Vec<u64> = text
            .lines()
            .filter_map(|line| line.split_once(" read ")?.1.split(' ').next())
            .map(|at| at.parse().expect("a place"))
            .collect();
        assert_eq!(places.len() as u64 * BLOCK, 540 * MIB);
        assert!(places.iter().all(|at| at + BLOCK <= SLOW_MIB * MIB && at % BLOCK == 0));
        let cold = places.iter().filter(|&&at| at >= HOT_MIB * MIB).count();
        let part = cold as f64 / places.len() as f64;
        assert!((0.06..0.16).contains(&part), "about a ninth misses: {part}");
        let turns = places.windows(2).filter(|pair| (pair[0] < HOT_MIB * MIB) != (pair[1] < HOT_MIB * MIB)).count();
        assert!((20..60).contains(&turns), "in bursts: {turns} turns");
    }
}
