//! The figures of the iSCSI target's devices, window by window; and the loads of the iSCSI lab: twelve writers and one reader.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::stage::{SERVICE_NS, Server, load_command, quiet};
use crate::base::process::Running;

/// Number of writers on each of the hosts 2 to 4.
const WRITERS: usize = 4;
/// Rate of the reader in bytes per second, as in the packet-delay paper.
const READER_BYTES_PER_S: &str = "262144";
const SLOW_DEVICE: &str = "slow";
/// Mean latency in ms of a read without a throttle: the read waits behind one write of every writer.
pub(super) const UNTHROTTLED_MS: f64 = (3 * WRITERS + 1) as f64 * SERVICE_NS as f64 / 1e6;

/// Counters of a block device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    reads: u64,
    read_ms: u64,
    writes: u64,
    written_sectors: u64,
    write_ms: u64,
}

fn parse_counters(diskstats: &str) -> Result<BTreeMap<&str, Counters>> {
    let device = |line| {
        let fields: Vec<&str> = str::split_whitespace(line).collect();
        let at =
            |n: usize| fields.get(n).and_then(|f| f.parse().ok()).with_context(|| format!("field {n} of {line:?}"));
        let (reads, read_ms) = (at(3)?, at(6)?);
        let (writes, written_sectors, write_ms) = (at(7)?, at(9)?, at(10)?);
        Ok((fields[2], Counters { reads, read_ms, writes, written_sectors, write_ms }))
    };
    diskstats.lines().filter(|line| line.split_whitespace().nth(2).is_some()).map(device).collect()
}

/// Figures of the iSCSI target's devices in one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Window {
    /// Seconds from the start of the observation to the end of the window.
    pub(super) at_s: f64,
    /// Mean latency of reads on the observed device, in ms; `None` without reads.
    pub(super) read_ms: Option<f64>,
    /// Mean latency of writes on all volumes, in ms; `None` without writes.
    pub(super) write_ms: Option<f64>,
    /// Throughput of writes to the observed device, in MB/s.
    pub(super) own_mb_per_s: f64,
    /// Throughput of writes to all volumes together, in MB/s.
    pub(super) written_mb_per_s: f64,
}

/// Observes a device, and all volumes together, for `count` windows of `length`. `started` is the start of the observation.
pub(super) fn observe(device: &str, started: Instant, count: u64, length: Duration) -> Result<Vec<Window>> {
    let read = || -> Result<[Counters; 3]> {
        let text = std::fs::read_to_string("/proc/diskstats")?;
        let counters = parse_counters(&text)?;
        let of = |name: &str| counters.get(name).copied().with_context(|| format!("no device {name}"));
        let volumes = counters.iter().filter(|(name, _)| name.starts_with("dm-"));
        let writes = volumes.fold(Counters::default(), |sum, (_, one)| Counters {
            writes: sum.writes + one.writes,
            write_ms: sum.write_ms + one.write_ms,
            ..sum
        });
        Ok([of(device)?, of(SLOW_DEVICE)?, writes])
    };
    let mut before = read()?;
    let mut at = Instant::now();
    let mut windows = Vec::new();
    for _ in 0..count {
        thread::sleep((at + length).saturating_duration_since(Instant::now()));
        let (now, after) = (Instant::now(), read()?);
        let mean = |requests: u64, ms: u64| (requests > 0).then(|| ms as f64 / requests as f64);
        let read_ms = mean(after[0].reads - before[0].reads, after[0].read_ms - before[0].read_ms);
        let write_ms = mean(after[2].writes - before[2].writes, after[2].write_ms - before[2].write_ms);
        let rate = |n: usize| {
            let bytes = (after[n].written_sectors - before[n].written_sectors) as f64 * 512.0;
            bytes / 1e6 / now.duration_since(at).as_secs_f64()
        };
        let at_s = now.duration_since(started).as_secs_f64();
        windows.push(Window { at_s, read_ms, write_ms, own_mb_per_s: rate(0), written_mb_per_s: rate(1) });
        (before, at) = (after, now);
    }
    Ok(windows)
}

/// Starts the reader on host 1, which reads at random offsets with a fixed rate, for `seconds`.
pub(super) fn reader(server: Server, seconds: u64) -> Result<Running> {
    let seconds = seconds.to_string();
    let rate = ["--bytes", "4096", "--random", "--rate", READER_BYTES_PER_S, "--seconds", &seconds];
    Running::spawn(quiet(&mut load_command(server, 1, 0, &rate)?))
}

/// Starts the twelve writers on hosts 2 to 4, for `seconds`.
pub(super) fn writers(server: Server, seconds: u64) -> Result<Vec<Running>> {
    let seconds = seconds.to_string();
    let all = (2..=4).flat_map(|host| (1..=WRITERS).map(move |worker| (host, worker)));
    all.map(|(host, worker)| {
        let mut command = load_command(server, host, worker, &["--write", "--seconds", &seconds])?;
        Running::spawn(quiet(&mut command))
    })
    .collect()
}

pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0u32, 0.0), |(n, s), v| (n + 1, s + v));
    sum / f64::from(count.max(1))
}

/// Runs reader and writers. Returns the mean latency of reads in ms, and the MB/s written, over `seconds` windows of 1 s after
/// the log-ins.
pub(super) fn beside_writers(server: Server, seconds: u64) -> Result<(f64, f64)> {
    let reading = reader(server, seconds + 3)?;
    let writing = writers(server, seconds + 3)?;
    // Twelve log-ins on one emulated processor.
    thread::sleep(Duration::from_secs(2));
    let windows = observe(&server.device(1), Instant::now(), seconds, Duration::from_secs(1))?;
    drop((reading, writing));
    let read_ms = mean(windows.iter().filter_map(|w| w.read_ms));
    Ok((read_ms, mean(windows.iter().map(|w| w.written_mb_per_s))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_diskstats() {
        let text = "253 0 dm-0 10 0 80 45 7 0 56 9 0 1 2\n 252 0 slow 1 2 3 4 5 6 4096 8 9 10 11\n";
        let counters = parse_counters(text).unwrap();
        assert_eq!(counters["dm-0"], Counters { reads: 10, read_ms: 45, writes: 7, written_sectors: 56, write_ms: 9 });
        assert_eq!(counters["slow"].written_sectors, 4096);
        assert!(parse_counters("253 0 dm-0 1").is_err());
    }
}
