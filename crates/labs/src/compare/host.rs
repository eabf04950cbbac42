//! Measures how fast the machine's memory is while servers are compared.
//!
//! A virtual machine shares caches and memory with other machines, and neither load average nor stolen time shows the use by
//! the other machines. A server that moves gigabytes per second is affected first. So a fixed piece of work is timed on every
//! core during a measurement, in CPU time of the working thread, which depends on the hardware and not on scheduling.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause between two pieces of work. A piece takes some 50 us, so timing takes half a per cent of a core.
const PAUSE: Duration = Duration::from_millis(10);
/// Number of blocks copied in a piece of work.
const COPIES: usize = 60;
/// Size of a copied block, in bytes.
const BLOCK: usize = 4096;
/// Size of the memory from which blocks are copied, in bytes: larger than any cache.
const REGION: usize = 256 << 20;

/// The memory from which blocks are copied.
#[derive(Clone, Debug)]
pub(super) struct Memory(Arc<[u8]>);

impl Memory {
    /// Allocates and fills the memory.
    pub(super) fn new() -> Self {
        Self(vec![7; REGION].into())
    }

    /// Starts timing the memory, with a thread on each core.
    pub(super) fn watch(&self) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cores).map(|core| {
            let (stop, region) = (Arc::clone(&stop), Arc::clone(&self.0));
            std::thread::spawn(move || time_pieces(core, &region, &stop))
        });
        Watch { threads: threads.collect(), stop }
    }
}

/// The running timing threads.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<u64>>>,
}

impl Watch {
    /// Stops the timing. Returns the median CPU time of copying a block, in nanoseconds.
    pub(super) fn finish(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut times: Vec<u64> = self.threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect();
        times.sort_unstable();
        times.get(times.len() / 2).map_or(f64::NAN, |&ns| ns as f64 / COPIES as f64)
    }
}

fn time_pieces(core: usize, region: &[u8], stop: &AtomicBool) -> Vec<u64> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // Without it two threads may time the same core, which is worse but not wrong.
    let _ = rustix::thread::sched_setaffinity(None, &set);
    let mut random = core as u64;
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        // The first few only bring the program's own lines back into the cache.
        copy_blocks(region, &mut random, COPIES / 10);
        let before = thread_cpu_ns();
        copy_blocks(region, &mut random, COPIES);
        times.push(thread_cpu_ns() - before);
    }
    times
}

fn copy_blocks(region: &[u8], random: &mut u64, times: usize) {
    let mut block = [0; BLOCK];
    for _ in 0..times {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (*random >> 33) as usize % (REGION / BLOCK) * BLOCK;
        std::hint::black_box(&mut block).copy_from_slice(&region[at..at + BLOCK]);
    }
}

fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
