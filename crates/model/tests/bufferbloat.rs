//! Bufferbloat, and its cure by admission control: a bulk writer and a light client with strict priority share a batching store
//! that accepts every request, in virtual time. With `--nocapture --test-threads=1` the runs print their figures.

use std::collections::{HashMap, VecDeque};

use evenkeel_control::admission::{Admission, Config, Repairs, SlowFastConfig};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::store::{Store, StoreParams};

const KIB: u64 = 1 << 10;
/// Cost of a request on top of its payload, in bytes: BlueStore's for an SSD.
const BASE_COST_BYTES: u64 = 4_000;
const BULK_BYTES: u32 = 64 << 10;
const LIGHT_BYTES: u32 = 4 << 10;
/// Time from a completion of the light client to its next request.
const LIGHT_PERIOD: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Client {
    /// Writes 4 KiB at queue depth 1; its requests go before the bulk writer's.
    Light,
    /// Writes 64 KiB at a fixed queue depth, without think time.
    Bulk,
}

#[derive(Clone, Copy)]
struct Request {
    client: Client,
    submitted_at: Instant,
    admitted_at: Instant,
}

impl Request {
    fn bytes(&self) -> u32 {
        match self.client {
            Client::Light => LIGHT_BYTES,
            Client::Bulk => BULK_BYTES,
        }
    }

    fn cost(&self) -> u64 {
        u64::from(self.bytes()) + BASE_COST_BYTES
    }
}

/// The path of requests: two queues, admission, the store.
struct Path {
    admission: Admission,
    store: Store,
    light: VecDeque<Request>,
    bulk: VecDeque<Request>,
    inside: HashMap<u64, Request>,
    next_id: u64,
}

impl Path {
    fn submit(&mut self, now: Instant, client: Client) {
        let request = Request { client, submitted_at: now, admitted_at: now };
        match client {
            Client::Light => self.light.push_back(request),
            Client::Bulk => self.bulk.push_back(request),
        }
    }

    /// Submits requests to the store while the budget has room, the light client's first. A request that does not fit waits,
    /// and no other request overtakes it.
    fn dispatch(&mut self, now: Instant) {
        loop {
            let queue = if self.light.is_empty() { &mut self.bulk } else { &mut self.light };
            let Some(&request) = queue.front().filter(|request| self.admission.fits(request.cost())) else { return };
            queue.pop_front();
            self.admission.admit(request.cost());
            self.inside.insert(self.next_id, Request { admitted_at: now, ..request });
            self.store.submit(now, self.next_id, Io { kind: Kind::Write, offset: 0, bytes: request.bytes() });
            self.next_id += 1;
        }
    }

    fn complete(&mut self, now: Instant, id: u64) -> Request {
        let request = self.inside.remove(&id).expect("the store answers each request once");
        self.admission.observe(
            now,
            request.cost(),
            Kind::Write,
            u64::from(request.bytes()),
            now.since(request.admitted_at),
        );
        request
    }
}

#[derive(Debug)]
struct Outcome {
    light_p50_ms: f64,
    light_p99_ms: f64,
    bulk_mb_per_s: f64,
    budget_bytes: u64,
}

/// Runs the light client beside a bulk writer of queue depth `bulk_depth` for `length`; figures are from the second half.
fn run(config: Config, store: StoreParams, bulk_depth: usize, length: Duration) -> Outcome {
    let mut path = Path {
        admission: Admission::new(config, Instant::ZERO, 1),
        store: Store::new(store, 1),
        light: VecDeque::new(),
        bulk: VecDeque::new(),
        inside: HashMap::new(),
        next_id: 0,
    };
    for _ in 0..bulk_depth {
        path.submit(Instant::ZERO, Client::Bulk);
    }
    let end = Instant::ZERO + length;
    let measure_from = Instant::ZERO + Duration::from_nanos(length.as_nanos() / 2);
    let mut next_light = Instant::ZERO;
    let (mut light_ms, mut bulk_bytes) = (Vec::new(), 0u64);
    loop {
        let now = path.store.next_event().min(path.admission.next_tick()).min(next_light);
        if now >= end {
            break;
        }
        while let Some(id) = path.store.poll(now) {
            let request = path.complete(now, id);
            let counts = now >= measure_from;
            match request.client {
                Client::Bulk => {
                    bulk_bytes += if counts { u64::from(BULK_BYTES) } else { 0 };
                    path.submit(now, Client::Bulk);
                }
                Client::Light => {
                    if counts {
                        light_ms.push(now.since(request.submitted_at).as_millis_f64());
                    }
                    next_light = now.max(request.submitted_at + LIGHT_PERIOD);
                }
            }
        }
        if now >= next_light {
            path.submit(now, Client::Light);
            next_light = Instant::FAR_FUTURE;
        }
        path.admission.tick(now);
        path.dispatch(now);
    }
    light_ms.sort_by(f64::total_cmp);
    let outcome = Outcome {
        light_p50_ms: light_ms[light_ms.len() / 2],
        light_p99_ms: light_ms[light_ms.len() * 99 / 100],
        bulk_mb_per_s: bulk_bytes as f64 / 1e6 / end.since(measure_from).as_secs_f64(),
        budget_bytes: path.admission.decision().budget_bytes,
    };
    println!(
        "{:24} light p50 {:6.1} ms  p99 {:6.1} ms  bulk {:6.1} MB/s",
        name(&config),
        outcome.light_p50_ms,
        outcome.light_p99_ms,
        outcome.bulk_mb_per_s
    );
    outcome
}

fn name(config: &Config) -> String {
    match config {
        Config::None => "none".into(),
        Config::Fixed { budget_bytes } => format!("fixed {} KiB", budget_bytes / KIB),
        Config::SlowFast(settings) => match settings.repairs {
            Repairs::NONE => "slowfast as published".into(),
            Repairs::ALL => "slowfast".into(),
            _ => "slowfast, some repairs".into(),
        },
        other => other.name().into(),
    }
}

fn fixed(budget_kib: u64) -> Config {
    Config::Fixed { budget_bytes: budget_kib * KIB }
}

fn bulk_64_on_an_ssd(config: Config) -> Outcome {
    run(config, StoreParams::ssd(), 64, Duration::from_secs(40))
}

#[test]
fn a_deeper_back_end_costs_the_light_client_latency_and_a_shallow_one_costs_throughput() {
    let outcomes = [64, 128, 256, 512, 1_024, 4_096].map(|kib| bulk_64_on_an_ssd(fixed(kib)));
    let none = bulk_64_on_an_ssd(Config::None);
    // Beyond the knee all depth is latency.
    for pair in outcomes[2..].windows(2) {
        assert!(pair[1].light_p50_ms > 1.5 * pair[0].light_p50_ms, "{pair:?}");
        assert!(pair[1].light_p99_ms > 1.3 * pair[0].light_p99_ms, "{pair:?}");
        assert!(pair[1].bulk_mb_per_s < 1.3 * pair[0].bulk_mb_per_s, "{pair:?}");
    }
    // Before it the back end starves.
    let [starved_64, starved_128, knee_256, knee_512, ..] = &outcomes;
    for starved in [starved_64, starved_128] {
        assert!(starved.bulk_mb_per_s < 0.5 * none.bulk_mb_per_s, "{starved:?}");
    }
    // At it most of the throughput is there at a fraction of the latency.
    for (knee, share) in [(knee_256, 0.75), (knee_512, 0.95)] {
        assert!(knee.bulk_mb_per_s > share * none.bulk_mb_per_s, "{knee:?}");
        assert!(knee.light_p99_ms < none.light_p99_ms / 5.0, "{knee:?}");
    }
    assert!(none.light_p50_ms > 10.0 * knee_256.light_p50_ms, "{none:?}");
}

#[test]
fn slowfast_finds_the_knee_by_itself() {
    let (starved, bloated) = (bulk_64_on_an_ssd(fixed(128)), bulk_64_on_an_ssd(Config::None));
    for config in [SlowFastConfig::PUBLISHED, SlowFastConfig::REPAIRED] {
        let adapted = bulk_64_on_an_ssd(Config::SlowFast(config));
        assert!(adapted.bulk_mb_per_s > 1.5 * starved.bulk_mb_per_s, "{adapted:?}");
        assert!(adapted.light_p50_ms < bloated.light_p50_ms / 3.0, "{adapted:?}");
        assert!(adapted.light_p99_ms < bloated.light_p99_ms / 2.0, "{adapted:?}");
    }
    // Repaired: at least nine tenths of the throughput at no more than a fifth of the tail.
    let repaired = bulk_64_on_an_ssd(Config::SlowFast(SlowFastConfig::REPAIRED));
    assert!(repaired.bulk_mb_per_s > 0.9 * bloated.bulk_mb_per_s, "{repaired:?}");
    assert!(repaired.light_p99_ms < bloated.light_p99_ms / 5.0, "{repaired:?}");
    assert!((200 * KIB..800 * KIB).contains(&repaired.budget_bytes), "{repaired:?}");
}

#[test]
fn repaired_slowfast_finds_the_knee_of_faster_and_slower_devices_too() {
    let scaled = |factor: u64| StoreParams {
        bandwidth_bytes_per_s: StoreParams::ssd().bandwidth_bytes_per_s / 10 * factor,
        iops: StoreParams::ssd().iops / 10 * factor,
        ..StoreParams::ssd()
    };
    for factor in [5, 10, 40] {
        let run = |config| run(config, scaled(factor), 64, Duration::from_secs(100));
        let (none, repaired) = (run(Config::None), run(Config::SlowFast(SlowFastConfig::REPAIRED)));
        assert!(repaired.bulk_mb_per_s > 0.85 * none.bulk_mb_per_s, "x {factor}: {repaired:?} {none:?}");
        assert!(repaired.light_p50_ms < none.light_p50_ms / 2.0, "x {factor}: {repaired:?} {none:?}");
        assert!(repaired.light_p99_ms < none.light_p99_ms * 0.7, "x {factor}: {repaired:?} {none:?}");
    }
}

/// On a disk a single request takes longer than the initial target of the published SlowFast, and a queue of requests much
/// longer than its fast interval.
#[test]
fn repaired_slowfast_finds_the_knee_of_a_disk() {
    let disk = StoreParams { deferred_max_bytes: 0, ..StoreParams::hdd() };
    let run = |config| run(config, disk, 64, Duration::from_secs(200));
    let with = |repairs| Config::SlowFast(SlowFastConfig { repairs, ..SlowFastConfig::PUBLISHED });
    let none = run(Config::None);
    let published = run(with(Repairs::NONE));
    assert!(published.bulk_mb_per_s < 0.4 * none.bulk_mb_per_s, "starved: {published:?} {none:?}");
    let repaired = run(with(Repairs::ALL));
    assert!(repaired.bulk_mb_per_s > 0.8 * none.bulk_mb_per_s, "{repaired:?} {none:?}");
    assert!(repaired.light_p50_ms < none.light_p50_ms / 4.0, "{repaired:?} {none:?}");
    // Each of these two repairs is needed for it.
    let starved = run(with(Repairs { feasible_target: false, ..Repairs::ALL }));
    assert!(starved.bulk_mb_per_s < 0.4 * none.bulk_mb_per_s, "{starved:?} {none:?}");
    let bloated = run(with(Repairs { local_fit: false, ..Repairs::ALL }));
    assert!(bloated.light_p50_ms > none.light_p50_ms / 2.0, "{bloated:?} {none:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || format!("{:?}", bulk_64_on_an_ssd(Config::SlowFast(SlowFastConfig::REPAIRED)));
    assert_eq!(run(), run());
}
