//! Measures the CPU time of a tick of the agent with 500 control groups of a device with a latency target, all throttled, and
//! the part of it that writes limits: the difference to an agent that writes none. Limits are bounded to 0.5 % of a core.
//!
//! The files are plain ones, so that the kernel's work for a row of `io.max` is not included.
//!
//! ```text
//! cargo bench -p evenkeel-guard --bench groups
//! ```
//!
//! Under `cargo test`, which passes no `--bench`, fewer ticks are taken, and times are not judged.

use std::path::Path;

use evenkeel_control::{Duration, Instant};
use evenkeel_guard::config::Abilities;
use evenkeel_guard::discovery::Roots;
use evenkeel_guard::journal::Journal;
use evenkeel_guard::{Agent, Config};
use rustix::time::{ClockId, clock_gettime};

/// CPU time that this thread has used so far; other programs on the machine do not count.
fn cpu_time() -> std::time::Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    std::time::Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

const GROUPS: u64 = 500;
/// Number of ticks, of which the first ones, with the search for groups, do not count.
const TICKS: u64 = 300;
const SMOKE_TICKS: u64 = 100;
const WARM_UP: u64 = 30;
/// Bar: CPU time of writes in a tick of 100 ms, in ms.
const MOST_MS: f64 = 0.5;
const POLICY: &str = "[pools.disk]\ndevices = [\"no-disk\"]\nlatency.target = \"10ms\"\n\
    [tenants.db]\nmatch = [\"cgroup:db\"]\nthrottle = \"never\"\n\
    [tenants.bulk]\nmatch = [\"cgroup:bulk-*\"]\nthrottle = \"always\"\n";

fn put(path: &Path, text: &str) {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    std::fs::write(path, text).expect("written");
}

/// Makes the files of a device and of its groups.
fn make(root: &Path) {
    let device = root.join("sys/class/block/no-disk");
    put(&device.join("dev"), "4095:1");
    std::fs::create_dir_all(root.join("sys/dev/block")).expect("a folder");
    std::os::unix::fs::symlink(&device, root.join("sys/dev/block/4095:1")).expect("a link");
    put(&root.join("cgroup/cgroup.controllers"), "io\n");
    for group in std::iter::once("db".to_owned()).chain((1..GROUPS).map(|number| format!("bulk-{number}"))) {
        put(&root.join("cgroup").join(&group).join("io.stat"), "");
        put(&root.join("cgroup").join(&group).join("io.max"), "");
    }
}

/// The mean CPU time of a tick in ms; without a journal no limit is written.
fn run(root: &Path, ticks: u64, mut journal: Option<&mut Journal>) -> f64 {
    let config = Config::parse(POLICY, "bench", Abilities { tracepoints: false }).expect("valid");
    let cgroups = root.join("cgroup");
    let mut agent = Agent::open(&config, &Roots::under(root), &cgroups).expect("valid");
    let mut spent = std::time::Duration::ZERO;
    for tick in 1..=ticks {
        put(&cgroups.join("db/io.stat"), &format!("4095:1 rbytes={} wbytes=0 rios={tick} wios=0\n", 4_096 * tick));
        for number in 1..GROUPS {
            let writes = tick * (1 + number % 9);
            let text = format!("4095:1 rbytes=0 wbytes={} rios=0 wios={writes}\n", 65_536 * writes);
            put(&cgroups.join(format!("bulk-{number}/io.stat")), &text);
        }
        // Slow and fast reads in turn, so that all limits change all the time.
        let (reads, writes) = (10 * tick, 2_500 * tick);
        let ms: u64 = (1..=tick).map(|tick| if tick / 20 % 2 == 0 { 400 } else { 50 }).sum();
        let (read_sectors, written_sectors, write_ms) = (8 * reads, 128 * writes, 20 * writes);
        let diskstats =
            format!("4095 1 no-disk {reads} 0 {read_sectors} {ms} {writes} 0 {written_sectors} {write_ms} 0 0 0\n");
        let now = Instant::ZERO + Duration::from_millis(100 * tick);
        let started = cpu_time();
        let errors = agent.tick(now, diskstats.as_bytes(), journal.as_deref_mut());
        if tick > WARM_UP {
            spent += cpu_time() - started;
        }
        assert!(errors.is_empty(), "{errors:?}");
    }
    spent.as_secs_f64() * 1e3 / (ticks - WARM_UP) as f64
}

fn main() {
    let smoke = !std::env::args().any(|argument| argument == "--bench");
    let ticks = if smoke { SMOKE_TICKS } else { TICKS };
    let root = std::env::temp_dir().join(format!("evenkeel-guard-groups-{}", std::process::id()));
    make(&root);
    let dry_ms = run(&root, ticks, None);
    let mut journal = Journal::open(root.join("journal")).expect("a journal");
    let all_ms = run(&root, ticks, Some(&mut journal));
    assert!(!journal.is_clear(), "limits are set");
    let writes_ms = (all_ms - dry_ms).max(0.0);
    println!("groups   a tick, mean ms   writes, mean ms   writes, of a core at 100 ms");
    println!("{GROUPS:>6}   {all_ms:>15.3}   {writes_ms:>15.3}   {writes_ms:>25.2} %");
    assert!(smoke || writes_ms <= MOST_MS, "writes take more than {MOST_MS} ms in a tick");
    drop(journal);
    let _ = std::fs::remove_dir_all(&root);
}
