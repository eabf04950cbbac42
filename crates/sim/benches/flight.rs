//! Speed of a replay as a multiple of real time, and the CPU time of a recording's statistics for a request.
//!
//! ```text
//! cargo bench -p evenkeel-sim --bench flight             both figures, with their bars
//! cargo bench -p evenkeel-sim --bench flight -- --smoke  quick, with loose bounds, for CI
//! ```
//!
//! The recording has 5,000 requests a second of 50 clients; half of the clients are closed loops, half are paced. A replay
//! includes the inference of causes, and simulates the default policy. Time is CPU time of the thread, so that other processes
//! count only as far as they slow down caches and clock rate. A figure is the median of rounds.
//!
//! Under `cargo test`, which passes no `--bench`, the benchmark runs as with `--smoke`.

mod support;

use std::hint::black_box;

use evenkeel_control::Duration;
use evenkeel_flight::statistics::Statistics;
use evenkeel_flight::{Head, Item, Kind, Name, Recording, Request, Table};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::store::StoreParams;
use evenkeel_sim::flight::load::Load;
use evenkeel_sim::flight::policy::Policy;
use evenkeel_sim::flight::replay::simulate;
use support::{spread, time};

/// Bar of the replay's speed, as a multiple of real time.
const SPEED_BAR: f64 = 50.0;
/// The smoke test fails at a lower speed. Noise and little optimisation stay far above; quadratic work does not.
const SMOKE_SPEED: f64 = 3.0;
/// Bar of the statistics' CPU time, in ns a request: a hundredth of the time between requests at 10,000 a second.
const STATISTICS_BAR_NS: f64 = 1_000.0;
/// The smoke test fails if the statistics take longer, in ns a request.
const SMOKE_STATISTICS_NS: f64 = 20_000.0;
/// Number of clients.
const CLIENTS: u32 = 50;
/// Time between two requests of a client: all clients together send 5,000 a second.
const PERIOD_NS: u64 = 10_000_000;
/// Recorded latency of a request.
const LATENCY_NS: u64 = 9_950_000;

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    let (rounds, seconds) = if smoke { (3, 4) } else { (11, 60) };
    let recording = recording(seconds);
    let (mut speeds, mut costs) = (Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=rounds {
        let took_s = replay(&recording);
        let cost_ns = statistics(&recording);
        if round > 0 {
            speeds.push(seconds as f64 / took_s);
            costs.push(cost_ns);
        }
    }
    let (speed, cost) = (spread(speeds), spread(costs));
    let verdict = |met: bool| if met { "met" } else { "MISSED" };
    println!("{} requests of {seconds} s; median (lowest-highest round)", recording.requests.len());
    println!(
        "replay, times real time: {:.0} ({:.0}-{:.0}), bar >= {SPEED_BAR:.0}, {}",
        speed.median,
        speed.low,
        speed.high,
        verdict(speed.median >= SPEED_BAR)
    );
    println!(
        "statistics, ns a request: {:.0} ({:.0}-{:.0}), bar <= {STATISTICS_BAR_NS:.0}, {}",
        cost.median,
        cost.low,
        cost.high,
        verdict(cost.median <= STATISTICS_BAR_NS)
    );
    if smoke {
        assert!(speed.high >= SMOKE_SPEED, "a replay runs at {:.1} times real time", speed.high);
        assert!(cost.low <= SMOKE_STATISTICS_NS, "statistics take {:.0} ns a request", cost.low);
    }
}

/// A recording of some seconds.
fn recording(seconds: u64) -> Recording {
    let name = |table, number, name: String| Name { table, number, name, pool: "main".into(), bytes: 1 << 34 };
    let mut names = vec![name(Table::Volume, 0, "disk0".into())];
    names.extend([0, 1].map(|tenant| name(Table::Tenant, tenant, format!("tenant-{tenant}"))));
    names.extend((0..CLIENTS).map(|client| name(Table::Client, client, format!("client-{client}"))));
    let (mut requests, mut random) = (Vec::new(), 0x9E37_79B9_7F4A_7C15_u64);
    for client in 0..CLIENTS {
        let is_closed = client % 2 == 0;
        let first_ns = u64::from(client) * PERIOD_NS / u64::from(CLIENTS);
        let mut completed_ns = first_ns;
        for number in 0..seconds * 1_000_000_000 / PERIOD_NS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let device_ns = LATENCY_NS - random % 100_000;
            // The next one right after the answer, or when its time has come.
            let due_ns = first_ns + number * PERIOD_NS + random % 5_000_000;
            let arrival_ns = if is_closed { completed_ns + 20_000 } else { due_ns };
            completed_ns = arrival_ns + device_ns;
            requests.push(Request {
                arrival_ns,
                device_ns,
                tenant: client % 2,
                client,
                kind: if random % 10 < 7 { Kind::Read } else { Kind::Write },
                offset: ((random >> 20) % (1 << 22)) << 12,
                length: 4_096,
                ..Request::default()
            });
        }
    }
    requests.sort_by_key(|request| request.arrival_ns);
    let head = Head { source: "serve".into(), ..Head::default() };
    Recording { head, names, requests, lost: 0, complete: true }
}

/// Replays the recording. Returns the CPU time in seconds.
fn replay(recording: &Recording) -> f64 {
    let (read_latency, write_latency) = (Duration::from_micros(9_000), Duration::from_micros(9_000));
    let device = DeviceParams::Store(StoreParams { read_latency, write_latency, ..StoreParams::ssd() });
    let policy = Policy::parse("[pools.main]\n", "bench", "main", &[]).unwrap_or_else(|errors| panic!("{errors:?}"));
    let recording = recording.clone();
    let (figures, took_s) = time(|| {
        let load = Load::new(recording, None).unwrap_or_else(|error| panic!("{error}"));
        assert!(load.dependent() > 0.4, "half of the clients are closed loops");
        simulate(&load, &device, Some(&policy), &[], 1).unwrap_or_else(|failure| panic!("{failure}"))
    });
    assert_eq!(figures.unfinished, 0);
    black_box(figures);
    took_s
}

/// Computes the statistics of the recording. Returns the CPU time in ns a request.
fn statistics(recording: &Recording) -> f64 {
    let names = recording.names.iter().cloned().map(Item::Name);
    let items: Vec<Item> = names.chain(recording.requests.iter().copied().map(Item::Request)).collect();
    let (summary, took_s) = time(|| {
        let mut statistics = Statistics::new(&recording.head);
        items.iter().for_each(|item| statistics.observe(item));
        statistics.summary()
    });
    assert_eq!(summary.total.requests, recording.requests.len() as u64);
    black_box(summary);
    took_s * 1e9 / recording.requests.len() as f64
}
