//! The time that a pool takes for a request: submit, dispatch and complete, with and without guaranteed throughputs.
//!
//! ```text
//! cargo bench -p evenkeel-control --bench pool             a table
//! cargo bench -p evenkeel-control --bench pool -- --smoke  quick, with a loose bound, for CI
//! ```
//!
//! Each tenant keeps four requests queued, a third of them writes; in a step one request completes, and the next one is
//! dispatched and replaced. Guarantees are above the device's throughput, so that no request waits for them. A figure is the
//! median of rounds; rounds of the rows alternate, so that all rows meet the same machine. Under `cargo test`, which passes
//! no `--bench`, the program runs as with `--smoke`.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant as WallClock;

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::guarantee::Throughputs;
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket};
use evenkeel_control::throughput::Rate;
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};

const BACKLOG: usize = 4;
/// Number of requests in flight: the device's queue depth.
const INSIDE: usize = 64;
/// Time between two completions: a device of 500,000 requests per second.
const STEP: Duration = Duration::from_micros(2);
/// Largest time for a request in the smoke test, in ns: far beyond noise and a debug build.
const SMOKE_NS: f64 = 20_000.0;

const CONFIG: Config = Config {
    scheduler: Scheduler::Mclock,
    admission: Admission::None,
    base_cost_bytes: 4_000,
    cost: CostModel { base_bytes: 4_000, write_percent: 100 },
    limit: Rates::UNSET,
    limit_burst: Duration::from_millis(10),
    target: None,
    slots: None,
};

/// A payload of the size that a server queues for a request: 80 bytes, stored inline.
type Payload = [u64; 10];

struct Loaded {
    pool: Pool<Payload>,
    tenants: Vec<TenantId>,
    now: Instant,
    pushed: u64,
    inside: VecDeque<Ticket>,
}

impl Loaded {
    fn new(tenants: usize, targets: &Throughputs) -> Self {
        let mut pool = Pool::new(CONFIG, Instant::ZERO, 1);
        let qos = Qos { burst: Duration::from_millis(10), ..Qos::default() };
        let tenants: Vec<TenantId> = (0..tenants).map(|_| pool.join(Instant::ZERO, qos)).collect();
        for &id in &tenants {
            pool.set_guarantees(Instant::ZERO, id, targets);
        }
        let mut loaded = Self { pool, tenants, now: Instant::ZERO, pushed: 0, inside: VecDeque::new() };
        for _ in 0..BACKLOG {
            (0..loaded.tenants.len()).for_each(|place| loaded.push(place));
        }
        for _ in 0..INSIDE {
            loaded.now += STEP;
            loaded.dispatch();
        }
        loaded
    }

    fn push(&mut self, place: usize) {
        self.pushed += 1;
        let kind = if self.pushed.is_multiple_of(3) { Kind::Write } else { Kind::Read };
        let mut payload = [self.pushed; 10];
        payload[0] = place as u64;
        let pushed = self.pool.submit(self.now, self.tenants[place], Work::new(kind, 4_096), payload);
        assert!(pushed.is_ok(), "nobody leaves");
    }

    fn dispatch(&mut self) {
        match self.pool.dispatch(self.now) {
            Next::Run(payload, ticket) => {
                self.inside.push_back(ticket);
                self.push(black_box(payload)[0] as usize);
            }
            Next::Wait(_) | Next::Idle => panic!("nothing throttles these"),
        }
    }

    /// One step of the benchmark: a request completes, the next is dispatched, and the tenant of the latter submits another.
    fn step(&mut self) {
        self.now += STEP;
        if let Some(ticket) = self.inside.pop_front() {
            self.pool.complete(self.now, ticket, Outcome::Done);
        }
        self.dispatch();
    }
}

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    let (rounds, operations) = if smoke { (3, 4_000) } else { (31, 50_000) };
    let rate = Some(Rate::BytesPerS(10_000_000_000));
    let rows = [
        ("none", Throughputs::NONE),
        ("of all", Throughputs { all: rate, ..Throughputs::NONE }),
        ("of writes", Throughputs { write: rate, ..Throughputs::NONE }),
        ("of each", Throughputs { read: rate, write: rate, ..Throughputs::NONE }),
    ];
    println!("{:<10} {:>8} {:>22}", "guarantee", "tenants", "ns (lowest-highest)");
    for tenants in [3, 100, 1_000] {
        let mut loaded = rows.map(|(_, targets)| Loaded::new(tenants, &targets));
        let mut times = rows.map(|_| Vec::new());
        for round in 0..=rounds {
            for (loaded, times) in loaded.iter_mut().zip(&mut times) {
                let begin = WallClock::now();
                (0..operations).for_each(|_| loaded.step());
                let ns = begin.elapsed().as_nanos() as f64 / f64::from(operations);
                // The first warms up.
                times.extend((round > 0).then_some(ns));
            }
        }
        for ((name, _), times) in rows.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let (low, median, high) = (times[0], times[times.len() / 2], times[times.len() - 1]);
            println!("{name:<10} {tenants:>8} {:>22}", format!("{median:.0} ({low:.0}-{high:.0})"));
            assert!(!smoke || low < SMOKE_NS, "{name}, {tenants} tenants: {low} ns");
        }
    }
}
