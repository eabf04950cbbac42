//! The two programs of the demonstration: a reader and a bulk writer, each a process of its own in a control group.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::output;

/// Bytes to which direct requests are aligned.
const ALIGNMENT: usize = 4096;
/// Size of a read, and the number of reads in flight.
const READ: Kind = Kind { bytes: 4 << 10, depth: 1, writes: false };
/// Size of a write, and the number of writes in flight.
const WRITE: Kind = Kind { bytes: 256 << 10, depth: 16, writes: true };

/// Options of the hidden command that runs one of the programs.
#[derive(Debug, clap::Args)]
pub(in crate::demo) struct Args {
    /// Folder of the control group to join
    #[arg(long)]
    group: PathBuf,
    /// The device, whose content is lost
    #[arg(long)]
    device: PathBuf,
    /// Seconds of load before the measurement
    #[arg(long)]
    warmup: u64,
    /// Measured seconds
    #[arg(long)]
    seconds: u64,
    /// Write instead of read
    #[arg(long)]
    writes: bool,
}

/// The requests of a program.
#[derive(Clone, Copy, Debug)]
struct Kind {
    bytes: usize,
    /// Requests in flight, each by a thread of its own.
    depth: u64,
    writes: bool,
}

/// Figures of a program over the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    /// Requests completed.
    pub(super) requests: u64,
    /// Throughput.
    pub(super) bytes_per_s: f64,
    /// Mean latency.
    pub(super) mean_ms: f64,
    /// Median of the latencies.
    pub(super) p50_ms: f64,
    /// 99th percentile of the latencies.
    pub(super) p99_ms: f64,
}

/// Joins the control group, runs the program, and prints its figures as JSON.
///
/// # Errors
/// When the group cannot be joined, or a request fails.
pub(in crate::demo) fn run(args: &Args) -> anyhow::Result<()> {
    let processes = args.group.join("cgroup.procs");
    std::fs::write(&processes, "0").with_context(|| format!("cannot join {}", processes.display()))?;
    let kind = if args.writes { WRITE } else { READ };
    let mut options = OpenOptions::new();
    options.read(true).write(args.writes).custom_flags(libc::O_DIRECT);
    let device = options.open(&args.device).with_context(|| format!("cannot open {}", args.device.display()))?;
    let figures = load(&device, kind, Duration::from_secs(args.warmup), Duration::from_secs(args.seconds))?;
    output::print(&(serde_json::to_string(&figures)? + "\n"))
}

/// Keeps requests of this kind in flight on the device, and returns the figures of those that complete in the measured time.
fn load(mut device: &File, kind: Kind, warmup: Duration, measured: Duration) -> anyhow::Result<Figures> {
    let size = device.seek(SeekFrom::End(0))?;
    let blocks = size / kind.bytes as u64;
    ensure!(blocks > 0, "the device is smaller than a request of {} bytes", kind.bytes);
    let (begin, next) = (Instant::now() + warmup, AtomicU64::new(0));
    let end = begin + measured;
    let thread = |number: u64| -> std::io::Result<Vec<u64>> {
        let mut memory = vec![0x5a_u8; kind.bytes + ALIGNMENT];
        let aligned = memory.as_ptr().align_offset(ALIGNMENT);
        let buffer = &mut memory[aligned..aligned + kind.bytes];
        let (mut random, mut latencies) = (number + 1, Vec::new());
        loop {
            let place = if kind.writes { next.fetch_add(1, Ordering::Relaxed) } else { scattered(&mut random) };
            let (offset, asked) = ((place % blocks) * kind.bytes as u64, Instant::now());
            if kind.writes {
                device.write_all_at(buffer, offset)?;
            } else {
                device.read_exact_at(buffer, offset)?;
            }
            let now = Instant::now();
            if now >= end {
                return Ok(latencies);
            }
            if now >= begin {
                latencies.push((now - asked).as_nanos() as u64);
            }
        }
    };
    let each: Vec<std::io::Result<Vec<u64>>> = std::thread::scope(|scope| {
        let thread = &thread;
        let threads: Vec<_> = (0..kind.depth).map(|number| scope.spawn(move || thread(number))).collect();
        let lost = || std::io::Error::other("a thread of the load has panicked");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(lost()))).collect()
    });
    let mut latencies = Vec::new();
    for result in each {
        latencies.extend(result.context("a request to the loop device failed")?);
    }
    Ok(figures(latencies, kind.bytes, measured))
}

/// The next number of a sequence that looks random (xorshift); `state` is not 0.
fn scattered(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Figures of requests of this size with these latencies in ns, which completed within `measured`.
fn figures(mut latencies: Vec<u64>, bytes: usize, measured: Duration) -> Figures {
    latencies.sort_unstable();
    let count = latencies.len();
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = |part: f64| {
        let place = ((part * count as f64).ceil() as usize).clamp(1, count.max(1)) - 1;
        latencies.get(place).map_or(0.0, |ns| ms(*ns))
    };
    Figures {
        requests: count as u64,
        bytes_per_s: (count * bytes) as f64 / measured.as_secs_f64().max(1e-9),
        mean_ms: ms(latencies.iter().sum()) / count.max(1) as f64,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_latencies() {
        let latencies: Vec<u64> = (1..=100).rev().map(|ms| ms * 1_000_000).collect();
        let found = figures(latencies, 1 << 20, Duration::from_secs(2));
        let expected =
            Figures { requests: 100, bytes_per_s: f64::from(50 << 20), mean_ms: 50.5, p50_ms: 50.0, p99_ms: 99.0 };
        assert_eq!(found, expected);
        assert_eq!(figures(Vec::new(), 4096, Duration::ZERO), Figures::default());
    }

    #[test]
    fn both_programs_reach_the_whole_of_a_file() {
        let folder = crate::folder::Folder::new();
        let path = folder.file("data", vec![0; 1 << 20]);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let run = |kind| load(&file, kind, Duration::ZERO, Duration::from_millis(50)).unwrap();
        let (written, read) = (run(WRITE), run(READ));
        assert!(written.requests > 0 && read.requests > 0 && read.p99_ms >= read.p50_ms, "{written:?} {read:?}");
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0x5a), "the writer came round");
    }
}
