//! The time that admission control takes for a request: ask, admit, complete.
//!
//! ```text
//! cargo bench -p evenkeel-control --bench admission             a table
//! cargo bench -p evenkeel-control --bench admission -- --smoke  quick, with a loose bound, for CI
//! ```
//!
//! The device serves one request at a time and the budget is always full, so that every method is at work: intervals end
//! and decisions are made as in a server. The figure is the median of rounds. Under `cargo test`, which passes no
//! `--bench`, the program runs as with `--smoke`.

use std::hint::black_box;
use std::time::Instant as WallClock;

use evenkeel_control::admission::{Admission, Config, ElasticConfig, SlowFastConfig};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

const COST: u64 = 8_096;
/// Time between completions: a device of 500,000 requests a second.
const STEP: Duration = Duration::from_nanos(2_000);
/// Longest time for a request in the smoke test, in ns: far beyond noise and a debug build.
const SMOKE_NS: f64 = 2_000.0;

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    let (rounds, operations) = if smoke { (5, 20_000) } else { (31, 1_000_000) };
    let answers = [
        Config::None,
        Config::Fixed { budget_bytes: 512 << 10 },
        Config::Elastic(ElasticConfig::default()),
        Config::SlowFast(SlowFastConfig::REPAIRED),
        Config::Theta,
        Config::Wbt { target: Duration::from_millis(2) },
        Config::Vegas,
        Config::Gradient,
    ];
    println!("{:<10} {:>8}", "admission", "ns");
    for config in answers {
        let mut times: Vec<f64> = (0..rounds).map(|_| round(config, operations)).collect();
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        println!("{:<10} {median:>8.1}", config.name());
        assert!(!smoke || median < SMOKE_NS, "{}: {median} ns", config.name());
    }
}

/// Mean time of an operation (ask, admit, complete) in ns, over `operations` operations.
fn round(config: Config, operations: usize) -> f64 {
    let mut admission = Admission::new(config, Instant::ZERO, 1);
    let mut since = vec![Instant::ZERO; 256];
    let (mut first, mut next, mut now) = (0usize, 0usize, Instant::ZERO);
    let begin = WallClock::now();
    for _ in 0..operations {
        while next - first < 128 && admission.fits(COST) {
            admission.admit(COST);
            since[next & 255] = now;
            next += 1;
        }
        now += STEP;
        admission.observe(now, COST, Kind::Read, 4_096, now.since(since[first & 255]));
        first += 1;
    }
    black_box(&admission);
    begin.elapsed().as_nanos() as f64 / operations as f64
}
