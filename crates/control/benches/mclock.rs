//! The time of an operation of the mClock scheduler, compared with that of a plain binary heap of the same size.
//!
//! ```text
//! cargo bench -p evenkeel-control --bench mclock             a table
//! cargo bench -p evenkeel-control --bench mclock -- --json   the same as JSON
//! cargo bench -p evenkeel-control --bench mclock -- --smoke  quick, with loose bounds, for CI
//! ```
//!
//! One operation is one pull, and one push for the client that was served, so that the number of queued
//! requests stays. The yardstick is `std::collections::BinaryHeap`: one push and one pop of a
//! (key, client, payload) of the same size with as many entries as there are clients. Rounds
//! of the two alternate, so that both meet the same machine; the ratio is taken round by round.
//!
//! Under `cargo test`, which passes no `--bench`, the program runs as with `--smoke`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Instant as WallClock;

use evenkeel_control::mclock::{ClientId, CostModel, Pull, Qos, Queue};
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};

const SIZES: [usize; 5] = [3, 100, 1_000, 10_000, 100_000];

/// Requests that each client keeps queued.
const BACKLOG: usize = 4;

/// Time between two pulls in virtual time: a device of 500,000 requests per second.
const STEP_NS: u64 = 2_000;

/// Largest ratio of the scheduler's time to the heap's in the smoke test: far beyond noise, so only a lost O(log n) or an
/// allocation per request gets there.
const SMOKE_RATIO: f64 = 12.0;

/// A payload of the size that a server queues for a request: 80 bytes, stored inline.
#[derive(Clone, Copy)]
struct Payload([u64; 10]);

struct Plan {
    rounds: usize,
    operations: usize,
}

struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

struct Row {
    clients: usize,
    mclock_ns: Spread,
    heap_ns: Spread,
    ratio: Spread,
}

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    let plan = if smoke { Plan { rounds: 5, operations: 4_000 } } else { Plan { rounds: 31, operations: 50_000 } };
    let rows: Vec<Row> = SIZES.iter().map(|&clients| measure(clients, &plan)).collect();
    let join_ns = measure_join(10_000, plan.rounds);
    if has("--json") {
        print_json(&rows, &join_ns);
    } else {
        print_table(&rows, &join_ns);
    }
    if smoke {
        for row in &rows {
            let (clients, ratio) = (row.clients, row.ratio.low);
            assert!(ratio <= SMOKE_RATIO, "{clients} clients: {ratio:.1} times a binary heap");
        }
    }
}

/// The QoS policy of client `i` of `clients`. Half of the clients have a reservation, a quarter a limit; together the
/// reservations are half of the device's rate.
fn qos(i: usize, clients: usize) -> Qos {
    let share = (1_000_000_000 / STEP_NS / clients as u64).max(1);
    let mut qos = Qos { weight: 1 + (i % 7) as u32, burst: Duration::from_millis(10), ..Qos::default() };
    if i.is_multiple_of(2) {
        qos.reservation = Rates { iops: share, bytes_per_s: 0 };
    }
    if i % 4 == 1 {
        qos.limit = Rates { iops: 2 * share, bytes_per_s: 0 };
    }
    qos
}

fn work(i: u64) -> Work {
    let kind = if i.is_multiple_of(3) { Kind::Write } else { Kind::Read };
    Work::new(kind, 4_096 << (i % 3))
}

struct Loaded {
    queue: Queue<Payload>,
    now_ns: u64,
    pushed: u64,
}

impl Loaded {
    fn new(clients: usize) -> Self {
        let mut queue = Queue::new(CostModel::default());
        let ids: Vec<ClientId> = (0..clients).map(|i| queue.join(Instant::ZERO, qos(i, clients))).collect();
        let mut loaded = Self { queue, now_ns: 0, pushed: 0 };
        for _ in 0..BACKLOG {
            for &id in &ids {
                loaded.push(id);
            }
        }
        loaded
    }

    fn push(&mut self, id: ClientId) {
        self.pushed += 1;
        let payload = Payload([self.pushed; 10]);
        let pushed = self.queue.push(Instant::from_nanos(self.now_ns), id, work(self.pushed), payload);
        assert!(pushed.is_ok(), "the client is live");
    }

    /// One operation of the scheduler: one pull, and one push for the client that was served.
    fn step(&mut self) {
        self.now_ns += STEP_NS;
        match self.queue.pull(Instant::from_nanos(self.now_ns), |_, _| true) {
            Pull::Ready { client, payload, .. } => {
                black_box(payload.0);
                self.push(client);
            }
            Pull::Refused(_) | Pull::Wait(_) | Pull::Idle => panic!("a client without limit waits"),
        }
    }
}

#[derive(Clone, Copy)]
struct Timed {
    key: u64,
    client: u32,
    payload: Payload,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.key, self.client) == (other.key, other.client)
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.key, self.client).cmp(&(other.key, other.client))
    }
}

struct Yardstick {
    heap: BinaryHeap<Reverse<Timed>>,
    random: u64,
}

impl Yardstick {
    fn new(clients: usize) -> Self {
        let mut yardstick = Self { heap: BinaryHeap::new(), random: 0x9E37_79B9_7F4A_7C15 };
        for client in 0..clients as u32 {
            yardstick.push(0, client);
        }
        yardstick
    }

    /// Pushes an entry of `client` with a key somewhat larger than `from`, like the next tag of a client that was served.
    fn push(&mut self, from: u64, client: u32) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let key = from + 1 + self.random % 1_000_000;
        self.heap.push(Reverse(Timed { key, client, payload: Payload([key; 10]) }));
    }

    /// One operation of the heap: one pop and one push.
    fn step(&mut self) {
        let Some(Reverse(Timed { key, client, payload })) = self.heap.pop() else { return };
        black_box(payload.0);
        self.push(key, client);
    }
}

fn measure(clients: usize, plan: &Plan) -> Row {
    let mut loaded = Loaded::new(clients);
    let mut yardstick = Yardstick::new(clients);
    let mut mclock = Vec::new();
    let mut heap = Vec::new();
    // The first round of each warms up and lets the tags spread.
    for round in 0..=plan.rounds {
        let a = time(plan.operations, || loaded.step());
        let b = time(plan.operations, || yardstick.step());
        if round > 0 {
            mclock.push(a);
            heap.push(b);
        }
    }
    let ratio = mclock.iter().zip(&heap).map(|(a, b)| a / b).collect();
    Row { clients, mclock_ns: spread(mclock), heap_ns: spread(heap), ratio: spread(ratio) }
}

/// Time in ns for a client to join a queue of `clients` clients with queued requests, and to push its first request.
fn measure_join(clients: usize, rounds: usize) -> Spread {
    const JOINS: usize = 256;
    let mut loaded = Loaded::new(clients);
    let now = Instant::from_nanos(loaded.now_ns);
    let times = (0..rounds).map(|_| {
        let mut ids = Vec::with_capacity(JOINS);
        let ns = time(JOINS, || {
            let id = loaded.queue.join(now, qos(ids.len(), clients));
            loaded.push(id);
            ids.push(id);
        });
        for id in ids {
            assert_eq!(loaded.queue.leave(id).len(), 1);
        }
        ns
    });
    spread(times.collect())
}

/// Mean time of a call of `body` in ns, over `calls` calls.
fn time(calls: usize, mut body: impl FnMut()) -> f64 {
    let start = WallClock::now();
    for _ in 0..calls {
        body();
    }
    start.elapsed().as_secs_f64() * 1e9 / calls as f64
}

fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    Spread { low: values[0], median: values[values.len() / 2], high: values[values.len() - 1] }
}

fn print_table(rows: &[Row], join_ns: &Spread) {
    let cell = |s: &Spread, digits: usize| format!("{:.digits$} ({:.digits$}-{:.digits$})", s.median, s.low, s.high);
    println!("one pull + one push, median (lowest-highest round)");
    println!("{:>8}  {:>24}  {:>24}  {:>20}", "clients", "mClock ns", "BinaryHeap ns", "ratio");
    for row in rows {
        let (mclock, heap, ratio) = (cell(&row.mclock_ns, 0), cell(&row.heap_ns, 0), cell(&row.ratio, 2));
        println!("{:>8}  {mclock:>24}  {heap:>24}  {ratio:>20}", row.clients);
    }
    println!("join with a first request, at 10,000 clients: {} ns", cell(join_ns, 0));
}

fn print_json(rows: &[Row], join_ns: &Spread) {
    let json = |s: &Spread| format!(r#"{{"low":{:.3},"median":{:.3},"high":{:.3}}}"#, s.low, s.median, s.high);
    let rows: Vec<String> = rows
        .iter()
        .map(|row| {
            let (mclock, heap, ratio) = (json(&row.mclock_ns), json(&row.heap_ns), json(&row.ratio));
            format!(r#"{{"clients":{},"mclock_ns":{mclock},"binary_heap_ns":{heap},"ratio":{ratio}}}"#, row.clients)
        })
        .collect();
    println!(r#"{{"pull_push":[{}],"join_at_10000_ns":{}}}"#, rows.join(","), json(join_ns));
}
