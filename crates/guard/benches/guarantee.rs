//! Measures the CPU time of a control period for throughput guarantees: parsing `io.stat` and `io.max` of each group,
//! deciding, recording; without the kernel's part of reading and writing.
//!
//! The texts are as Linux 6.12 writes them for a dm-cache; each group has a guarantee and some misses, and uses nine tenths
//! of its limit, so that every limit is decided anew in every period.
//!
//! ```text
//! cargo bench -p evenkeel-guard --bench guarantee
//! ```
//!
//! Under `cargo test`, which passes no `--bench`, the largest case is left out.

use std::fmt::Write as _;
use std::hint::black_box;

use evenkeel_control::throughput::{Counters, SlowDevice, TenantId};
use evenkeel_control::{Duration, Instant};
use evenkeel_guard::Config;
use evenkeel_guard::actuator::io_max::Limits;
use evenkeel_guard::config::Abilities;
use evenkeel_guard::loops::cgroup::{Found, Guarantees};
use evenkeel_guard::sensor::cgroup::Usage;
use evenkeel_guard::sensor::diskstats::DeviceNumber;
use rustix::time::{ClockId, clock_gettime};

const PERIODS: u64 = 60;
const CACHED: DeviceNumber = DeviceNumber { major: 253, minor: 0 };
const SLOW: DeviceNumber = DeviceNumber { major: 251, minor: 1 };

/// CPU time that this thread has used so far; other programs on the machine do not count.
fn cpu_time() -> std::time::Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    std::time::Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Texts of a group's `io.stat` and `io.max`. `moved`: bytes that the group has read, and as many written; `limit`: bytes per
/// second for each direction.
fn files(moved: u64, limit: u64) -> (String, String) {
    let mut stat = String::new();
    for (device, part) in [("251:1", 9), ("251:0", 1), ("253:0", 1)] {
        let (bytes, requests) = (moved / part, moved / part / 65_536);
        let _ =
            writeln!(stat, "{device} rbytes={bytes} wbytes={bytes} rios={requests} wios={requests} dbytes=0 dios=0");
    }
    (stat, format!("253:0 rbps={limit} wbps={limit} riops=max wiops=max\n"))
}

fn main() {
    println!("groups   a decision, mean ms   of a core, once a second   ten times a second");
    let smoke = !std::env::args().any(|argument| argument == "--bench");
    for groups in [10, 100, 1_000].into_iter().filter(|&groups| !smoke || groups < 1_000) {
        let text = "[pools.pool]\ndevices = [\"dm-0\"]\ntuning.guarantee.interval = \"1s\"\n[tenants.all]\nmatch = [\"cgroup:tenants/*\"]\n\
                    guarantee.read = { bytes_per_s = \"10MB\" }\nguarantee.write = { bytes_per_s = \"10MB\" }\n";
        let config = Config::parse(text, "bench", Abilities { tracepoints: false }).expect("valid");
        let mut guarantees = Guarantees::new("pool", &config.cached["pool"]).expect("valid");
        let ids: Vec<TenantId> = (0..groups)
            .map(|n| guarantees.join("all", &format!("tenants/{n}")).expect("valid").expect("is there"))
            .collect();
        let mut moved = vec![0; groups];
        let mut spent = std::time::Duration::ZERO;
        let mut changed = 0;
        for period in 0..PERIODS {
            let before: Vec<(TenantId, Limits)> = guarantees.limits().collect();
            let recorded: Vec<(String, String)> = before
                .iter()
                .zip(&mut moved)
                .map(|((_, limits), moved)| {
                    let limit = limits.rbps.expect("guaranteed");
                    *moved += limit * 9 / 10;
                    files(*moved, limit)
                })
                .collect();
            let all: u64 = moved.iter().map(|moved| moved / 9).sum();
            let counters = Counters { read_bytes: all, written_bytes: all, ..Counters::ZERO };
            let slow = SlowDevice { counters, busy: Duration::from_millis(900 * period) };
            let started = cpu_time();
            let found: Vec<Found> = ids
                .iter()
                .zip(&recorded)
                .map(|(&tenant, (stat, max))| Found {
                    tenant,
                    usage: Some(Usage::parse(stat.as_bytes(), CACHED, Some(SLOW)).expect("the kernel's")),
                    limits: Some(Limits::of(max, CACHED).expect("the kernel's")),
                })
                .collect();
            guarantees.tick(Instant::ZERO + Duration::from_secs(period), Some(slow), &found);
            let limits: Vec<(TenantId, Limits)> = guarantees.limits().collect();
            changed += black_box(&limits).iter().zip(&before).filter(|(after, before)| after != before).count();
            spent += cpu_time() - started;
        }
        assert!(changed as u64 > groups as u64 * PERIODS / 4, "limits are decided anew: {changed}");
        let mean_ms = spent.as_secs_f64() * 1e3 / PERIODS as f64;
        println!("{groups:>6}   {mean_ms:>19.3}   {:>22.3} %   {:>16.2} %", mean_ms / 10.0, mean_ms);
    }
}
