//! The time that the controller of latency targets takes for an interval of one pool: observe and tick.
//!
//! ```text
//! cargo bench -p evenkeel-control --bench response             a table
//! cargo bench -p evenkeel-control --bench response -- --smoke  quick, with a loose bound, for CI
//! ```
//!
//! Every client is noisy, and the latency swings around the target, so that delays change all the time. The figure is the
//! median of rounds. Under `cargo test`, which passes no `--bench`, the program runs as with `--smoke`.

use std::hint::black_box;
use std::time::Instant as WallClock;

use evenkeel_control::response::{ClientId, ClientSample, Config, Controller, Sample, Throttle};
use evenkeel_control::{Duration, Instant};

const TARGET: Duration = Duration::from_millis(15);
/// Longest time for an interval in the smoke test, for each client, in ns: far beyond noise and a debug build.
const SMOKE_NS_PER_CLIENT: f64 = 20_000.0;

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    let (rounds, ticks) = if smoke { (3, 200) } else { (31, 10_000) };
    println!("{:<10} {:>8} {:>10}", "method", "clients", "us");
    for (name, config) in [("pid", Config::pid(TARGET)), ("adaptive", Config::adaptive(TARGET))] {
        for clients in [1, 10, 100] {
            let mut times: Vec<f64> = (0..rounds).map(|_| round(&config, clients, ticks)).collect();
            times.sort_by(f64::total_cmp);
            let median = times[times.len() / 2];
            println!("{name:<10} {clients:>8} {:>10.2}", median / 1e3);
            assert!(!smoke || median < SMOKE_NS_PER_CLIENT * clients as f64, "{name}, {clients} clients: {median} ns");
        }
    }
}

/// Mean time of an interval of a pool with this many clients, in ns, over `ticks` intervals.
fn round(config: &Config, clients: u64, ticks: u64) -> f64 {
    let Ok(mut controller) = Controller::new(config) else { return f64::INFINITY };
    let mut samples: Vec<ClientSample> = (0..clients)
        .map(|id| ClientSample {
            client: ClientId(id),
            throttle: Throttle::Normal,
            bytes_per_s: 1e6,
            all_bytes_per_s: 1e6,
            freed_bytes_per_s: 1e6,
            reads: false,
            paid: f64::INFINITY,
        })
        .collect();
    let begin = WallClock::now();
    for tick in 0..ticks {
        let now = Instant::ZERO + Duration::from_millis(100 * (tick + 1));
        for (sample, id) in samples.iter_mut().zip(0..) {
            sample.bytes_per_s = 1e6 + 1e4 * ((tick * 7 + id * 13) % 17) as f64;
        }
        let read_response = Some(Duration::from_micros(13_000 + 250 * (tick * 5 % 17)));
        controller.observe(now, &Sample { read_response, reads: 6, clients: &samples });
        black_box(controller.tick(now));
    }
    begin.elapsed().as_nanos() as f64 / ticks as f64
}
