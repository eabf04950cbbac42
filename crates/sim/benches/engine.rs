//! Events per second of the simulator, compared with a bare binary heap.
//!
//! ```text
//! cargo bench -p evenkeel-sim --bench engine             a table
//! cargo bench -p evenkeel-sim --bench engine -- --json   the same as JSON
//! cargo bench -p evenkeel-sim --bench engine -- --smoke  quick, with loose bounds, for CI
//! ```
//!
//! A case is a whole run: clients, pool, admission, device model and all statistics. One event is one turn of the loop.
//! The yardstick is `std::collections::BinaryHeap` with 128 entries: the smallest possible simulator pops one entry and
//! pushes a later one (instant, order, number) per event. Rounds of simulator and heap alternate, so that both run under
//! the same conditions; the ratio is taken round by round. Time is CPU time of the thread, so that other processes count
//! only as far as they slow down caches and clock rate.
//!
//! Under `cargo test`, which passes no `--bench`, the benchmark runs as with `--smoke`.

mod support;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

use evenkeel_control::admission;
use evenkeel_control::mclock::Qos;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::store::StoreParams;
use evenkeel_sim::workload::{Requests, Spec};
use evenkeel_sim::world::{Client, Setup, Tenant, run_quietly};
use support::{Spread, spread, time};

/// The smoke test fails if an event's CPU time, divided by that of one pop and push of the heap, exceeds this. Noise stays far
/// below; quadratic work or an allocation per event exceeds it. Tests are little optimised, which slows the simulator more.
const SMOKE_RATIO: f64 = 60.0;

/// Entries of the binary heap that runs are compared with.
const ENTRIES: u64 = 128;

struct Case {
    name: &'static str,
    setup: Setup,
}

struct Plan {
    rounds: usize,
    length: Duration,
}

struct Row {
    name: &'static str,
    events: u64,
    requests: u64,
    world_ns: Spread,
    heap_ns: Spread,
    ratio: Spread,
}

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    let plan = if smoke {
        Plan { rounds: 3, length: Duration::from_secs(1) }
    } else {
        Plan { rounds: 15, length: Duration::from_secs(20) }
    };
    let rows: Vec<Row> = cases(plan.length).iter().map(|case| measure(case, &plan)).collect();
    if has("--json") {
        print_json(&rows);
    } else {
        print_table(&rows);
    }
    if smoke {
        for row in &rows {
            assert!(row.ratio.low <= SMOKE_RATIO, "{}: {:.1} times a binary heap", row.name, row.ratio.low);
        }
    }
}

fn cases(duration: Duration) -> Vec<Case> {
    let client = |tenant, workload| Client { tenant, workload, from: Instant::ZERO, until: Instant::FAR_FUTURE };
    let write = |bytes| Requests::random(Kind::Write, bytes, 1 << 30);
    let setup = |admission, clients| {
        let tenant = |weight| Tenant::new(format!("weight {weight}"), Qos { weight, ..Qos::default() });
        let (device, tenants) = (DeviceParams::Store(StoreParams::ssd()), vec![tenant(1), tenant(10)]);
        let mut setup = Setup::new(device, tenants, clients, duration);
        (setup.pool.admission, setup.pool.base_cost_bytes) = (admission, 4_000);
        Setup { sample_every: Duration::from_millis(100), ..setup }
    };
    let fixed = admission::Config::Fixed { budget_bytes: 512 << 10 };
    let slowfast = admission::Config::SlowFast(admission::SlowFastConfig::REPAIRED);
    let closed = || vec![client(0, Spec::closed(64, write(4_096))), client(1, Spec::closed(1, write(4_096)))];
    let open = (0..64).map(|i| client(i % 2, Spec::open(300.0, write(4_096)))).collect();
    vec![
        Case { name: "closed loop", setup: setup(fixed, closed()) },
        Case { name: "closed loop, slowfast", setup: setup(slowfast, closed()) },
        Case { name: "64 clients, open loop", setup: setup(fixed, open) },
    ]
}

fn measure(case: &Case, plan: &Plan) -> Row {
    let mut yardstick = Yardstick::new();
    let (mut world, mut heap) = (Vec::new(), Vec::new());
    let (mut events, mut requests) = (0, 0);
    // The first round of each warms up.
    for round in 0..=plan.rounds {
        let (result, seconds) = time(|| run_quietly(&case.setup, 1));
        let result = result.unwrap_or_else(|failure| panic!("{}: {failure}", case.name));
        (events, requests) = (result.events, result.tenants.iter().map(|tenant| tenant.requests).sum());
        let ((), heap_seconds) = time(|| (0..events).for_each(|_| yardstick.step()));
        if round > 0 {
            world.push(seconds * 1e9 / events as f64);
            heap.push(heap_seconds * 1e9 / events as f64);
        }
    }
    let ratio = world.iter().zip(&heap).map(|(a, b)| a / b).collect();
    Row { name: case.name, events, requests, world_ns: spread(world), heap_ns: spread(heap), ratio: spread(ratio) }
}

struct Yardstick {
    heap: BinaryHeap<Reverse<(u64, u64, u64)>>,
    order: u64,
    random: u64,
}

impl Yardstick {
    fn new() -> Self {
        let heap = (0..ENTRIES).map(|number| Reverse((number, number, number))).collect();
        Self { heap, order: ENTRIES, random: 0x9E37_79B9_7F4A_7C15 }
    }

    fn step(&mut self) {
        let Some(Reverse((at, _, number))) = self.heap.pop() else { return };
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.order += 1;
        self.heap.push(Reverse((at + 1 + self.random % 1_000_000, self.order, black_box(number))));
    }
}

fn print_table(rows: &[Row]) {
    let cell = |s: &Spread, digits: usize| format!("{:.digits$} ({:.digits$}-{:.digits$})", s.median, s.low, s.high);
    println!("one event, median (lowest-highest round)");
    println!(
        "{:<22} {:>10} {:>9} {:>18} {:>10} {:>18} {:>18}",
        "case", "events", "requests", "run ns", "Mevents/s", "BinaryHeap ns", "ratio"
    );
    for row in rows {
        println!(
            "{:<22} {:>10} {:>9} {:>18} {:>10.2} {:>18} {:>18}",
            row.name,
            row.events,
            row.requests,
            cell(&row.world_ns, 0),
            1e3 / row.world_ns.median,
            cell(&row.heap_ns, 0),
            cell(&row.ratio, 2)
        );
    }
}

fn print_json(rows: &[Row]) {
    let json = |s: &Spread| format!(r#"{{"low":{:.3},"median":{:.3},"high":{:.3}}}"#, s.low, s.median, s.high);
    let rows: Vec<String> = rows
        .iter()
        .map(|row| {
            let (world, heap, ratio) = (json(&row.world_ns), json(&row.heap_ns), json(&row.ratio));
            format!(
                r#"{{"case":"{}","events":{},"requests":{},"event_ns":{world},"binary_heap_ns":{heap},"ratio":{ratio}}}"#,
                row.name, row.events, row.requests
            )
        })
        .collect();
    println!(r#"{{"engine":[{}]}}"#, rows.join(","));
}
