//! Elastic admission control on imagined devices, and properties that hold for any sequence of events.

use std::collections::VecDeque;

use evenkeel_control::admission::{Admission, Config, ElasticConfig, Reason};
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::{self, Next, Outcome, Pool, Scheduler};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

use events::{Event, Run, event};

use crate::events;

const KIB: u64 = 1 << 10;
const COST: u64 = 8 * KIB;

fn elastic() -> Config {
    Config::Elastic(ElasticConfig::default())
}

/// A device of `servers` parallel servers with one queue for all or one for each, and a client that keeps `depth` requests
/// outstanding.
struct Plant {
    admission: Admission,
    now: Instant,
    rng: SplitMix64,
    servers: usize,
    service: Duration,
    /// Half width of the uniform distribution of service times, as a part of their mean.
    spread: f64,
    depth: usize,
    /// True if each request is for one server, drawn at random, so that throughput approaches its limit slowly.
    own_queues: bool,
    /// Admitted requests that wait for a server: when admitted and for which server, in order of admission.
    waiting: VecDeque<(Instant, usize)>,
    /// Requests being served: when the service ends, when the request was admitted, and the server.
    served: Vec<(Instant, Instant, usize)>,
    completed: u64,
}

impl Plant {
    fn new(servers: usize, service_us: u64) -> Self {
        Self {
            admission: Admission::new(elastic(), Instant::ZERO, 0),
            now: Instant::ZERO,
            rng: SplitMix64::new(7),
            servers,
            service: Duration::from_micros(service_us),
            spread: 0.2,
            depth: 256,
            own_queues: false,
            waiting: VecDeque::new(),
            served: Vec::new(),
            completed: 0,
        }
    }

    fn budget_requests(&self) -> u64 {
        self.admission.decision().budget_bytes / COST
    }

    fn admit(&mut self) {
        while self.waiting.len() + self.served.len() < self.depth && self.admission.fits(COST) {
            self.admission.admit(COST);
            let server = if self.own_queues { self.rng.next_below(self.servers as u64) as usize } else { 0 };
            self.waiting.push_back((self.now, server));
        }
        while let Some(next) = self.next_to_start() {
            let Some((since, server)) = self.waiting.remove(next) else { return };
            let factor = 1.0 + self.spread * (2.0 * self.rng.next_f64() - 1.0);
            let service = Duration::from_nanos((self.service.as_nanos() as f64 * factor) as u64);
            self.served.push((self.now + service, since, server));
        }
    }

    /// Index in `waiting` of the oldest request for which a server is free.
    fn next_to_start(&self) -> Option<usize> {
        let is_free = |wanted: usize| self.served.iter().all(|&(_, _, server)| server != wanted);
        match self.own_queues {
            true => self.waiting.iter().position(|&(_, server)| is_free(server)),
            false => (self.served.len() < self.servers && !self.waiting.is_empty()).then_some(0),
        }
    }

    /// Runs for `length`; returns the median of the budget in force over time, in requests, and the throughput in requests per
    /// second. The median, because questions put other budgets in force for short times.
    fn run(&mut self, length: Duration) -> (f64, f64) {
        let (begin, end) = (self.now, self.now + length);
        let before = self.completed;
        let mut in_force: Vec<(u64, f64)> = Vec::new();
        self.admit();
        while let Some(next) = (0..self.served.len()).min_by_key(|&i| self.served[i].0) {
            if self.served[next].0 > end {
                break;
            }
            let (at, since, _) = self.served.swap_remove(next);
            in_force.push((self.budget_requests(), at.since(self.now).as_secs_f64()));
            self.now = at;
            self.admission.observe(at, COST, Kind::Read, COST, at.since(since));
            self.completed += 1;
            self.admission.tick(at);
            self.admit();
        }
        in_force.push((self.budget_requests(), end.since(self.now).as_secs_f64()));
        self.now = end;
        let seconds = end.since(begin).as_secs_f64();
        in_force.sort_unstable_by_key(|&(budget, _)| budget);
        let mut below = 0.0;
        let median = in_force.iter().find(|&&(_, time)| {
            below += time;
            below >= seconds / 2.0
        });
        let budget = median.map_or(0, |&(budget, _)| budget);
        (budget as f64, (self.completed - before) as f64 / seconds)
    }
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// As many requests as servers keep all servers busy: the knee is known exactly. The budget finds it to a factor of two.
#[test]
fn finds_the_knee_of_a_device_with_parallel_servers() {
    for (servers, service_us) in [(8, 1_000), (16, 200), (64, 2_000), (128, 100)] {
        let mut plant = Plant::new(servers, service_us);
        plant.run(secs(10));
        let (budget, throughput) = plant.run(secs(10));
        let (knee, peak) = (servers as f64, servers as f64 * 1e6 / service_us as f64);
        assert!((knee * 0.95..knee * 2.1).contains(&budget), "{servers} servers: {budget:.1} requests");
        assert!(throughput > peak * 0.95, "{servers} servers: {throughput:.0} of {peak:.0}");
    }
}

#[test]
fn one_server_gets_a_budget_of_a_few_requests() {
    let mut plant = Plant::new(1, 100);
    plant.run(secs(5));
    let (budget, _) = plant.run(secs(5));
    assert!(budget <= 4.0, "{budget:.2} requests");
}

#[test]
fn follows_a_device_that_changes() {
    let mut plant = Plant::new(16, 500);
    plant.run(secs(3));
    for (servers, service_us) in [(64, 500), (16, 500), (16, 150), (16, 1_500)] {
        plant.servers = servers;
        plant.service = Duration::from_micros(service_us);
        plant.run(secs(20));
        let (budget, throughput) = plant.run(secs(10));
        let (knee, peak) = (servers as f64, servers as f64 * 1e6 / service_us as f64);
        assert!((knee * 0.9..knee * 2.1).contains(&budget), "{servers} x {service_us} us: {budget:.1} requests");
        assert!(throughput > peak * 0.93, "{servers} x {service_us} us: {throughput:.0} of {peak:.0}");
    }
}

/// A client may send far more than the device completes: requests in flight then take some seconds, and not ever longer.
#[test]
fn in_place_of_no_bound_the_device_gets_what_it_completes_in_seconds() {
    let mut plant = Plant::new(1, 20_000);
    plant.depth = 4_096;
    let mut most = 0;
    for _ in 0..300 {
        plant.run(Duration::from_millis(100));
        most = most.max(plant.admission.in_flight_bytes() / COST);
    }
    // 50 requests per second for 6.4 s, and the scatter of a measurement.
    assert!(most <= 400, "{most} requests");
}

/// Where each request takes 150 ms, the first budget still grows as long as more requests at once do not take longer.
#[test]
fn the_first_budget_grows_on_a_device_with_a_long_latency() {
    let budget = |servers| {
        let mut plant = Plant::new(servers, 150_000);
        plant.run(secs(2));
        plant.budget_requests()
    };
    let (serial, parallel) = (budget(1), budget(64));
    assert!(serial <= 4 && parallel >= 64, "{serial} and {parallel} requests");
}

/// Light load, or none, shows nothing of the device and must not change the budget (a defect of SlowFast CoDel).
#[test]
fn light_load_and_idleness_leave_no_trace() {
    let mut plant = Plant::new(32, 500);
    plant.run(secs(10));
    let (learned, _) = plant.run(secs(1));
    for depth in [1, 4, 0] {
        plant.depth = depth;
        plant.run(secs(600));
        plant.depth = 256;
        // The question that fell due meanwhile is asked first.
        plant.run(secs(2));
        let (budget, _) = plant.run(secs(1));
        // The search is as fine as that.
        assert!((learned * 0.5..=learned * 2.0).contains(&budget), "{budget:.1} after {learned:.1} requests");
    }
}

#[test]
fn a_stall_changes_nothing() {
    let mut plant = Plant::new(16, 500);
    plant.run(secs(10));
    let (learned, _) = plant.run(secs(1));
    let stall = secs(1);
    plant.served.iter_mut().for_each(|(end, ..)| *end += stall);
    plant.run(stall);
    let (budget, _) = plant.run(secs(1));
    assert!((learned * 0.85..learned * 1.2).contains(&budget), "{budget:.1} after {learned:.1} requests");
}

#[test]
fn a_larger_tolerance_gives_a_smaller_budget_where_the_curve_bends_slowly() {
    let budget = |tolerance| {
        let mut plant = Plant::new(16, 500);
        (plant.spread, plant.own_queues) = (1.0, true);
        plant.admission.reconfigure(Config::Elastic(ElasticConfig { tolerance }), Instant::ZERO);
        plant.run(secs(5));
        plant.run(secs(5)).0
    };
    let (small, large) = (budget(0.25), budget(0.01));
    assert!(small < large * 0.95, "{small:.1} and {large:.1} requests");
}

/// A device that serves one request at a time, for a time that depends on size, and a client with 64 requests of 4 KiB and
/// 4 MiB. A few large requests in flight are enough, and one that takes as long as two thousand small ones is no stall.
#[test]
fn sizes_that_differ_widely_are_no_stalls_and_hide_nothing() {
    let (mut admission, mut rng) = (Admission::new(elastic(), Instant::ZERO, 0), SplitMix64::new(3));
    let mut size = || if rng.next_f64() < 0.8 { 4 * KIB } else { 4096 * KIB };
    let (mut now, mut next, mut inside) = (Instant::ZERO, size(), VecDeque::new());
    for _ in 0..200_000 {
        while inside.len() < 64 && admission.fits(next) {
            admission.admit(next);
            inside.push_back((next, now));
            next = size();
        }
        let (bytes, since) = inside.pop_front().expect("something fits an empty device");
        now += Duration::from_nanos(20_000 + 20 * bytes);
        admission.observe(now, bytes, Kind::Read, bytes, now.since(since));
        admission.tick(now);
    }
    let decision = admission.decision();
    assert!(decision.budget_bytes <= 4 * 4096 * KIB, "{} after {now:?}: {:?}", decision.budget_bytes, decision.reason);
}

/// A bulk client whose requests grow eightfold, beside bursts of small ones, on a link with a latency. With the larger
/// requests a budget twice as large gains much, which it did not before: answers from before the change must not count.
#[test]
fn requests_of_another_size_get_a_budget_for_them() {
    const SMALL: u64 = 4 * KIB;
    const CHANGE_AT: u64 = 40_000;
    let mut admission = Admission::new(elastic(), Instant::ZERO, 0);
    let (mut link_free, mut inside) = (Instant::ZERO, VecDeque::new());
    let (mut now, mut sent) = (Instant::ZERO, 0_u64);
    let (mut judged_from, mut bytes) = (Instant::ZERO, 0_u64);
    for n in 0..CHANGE_AT + 4_000 {
        loop {
            let bulk = if n < CHANGE_AT { 4 * COST } else { 32 * COST };
            let cost = if sent % 500 < 100 && sent % 2 == 0 { SMALL } else { bulk };
            if inside.len() >= 256 || !admission.fits(cost) {
                break;
            }
            admission.admit(cost);
            link_free = link_free.max(now) + Duration::from_nanos(10 * cost);
            inside.push_back((now, link_free + Duration::from_millis(2), cost));
            sent += 1;
        }
        let (since, done, cost) = inside.pop_front().expect("something fits an empty device");
        now = done;
        admission.observe(now, cost, Kind::Write, cost, now.since(since));
        admission.tick(now);
        if n == CHANGE_AT + 2_000 {
            (judged_from, bytes) = (now, 0);
        }
        bytes += cost;
    }
    // One at a time would be 57 % of what the link can do.
    let share = bytes as f64 * 10e-9 / now.since(judged_from).as_secs_f64();
    assert!(share > 0.9, "{share} of the link");
}

#[test]
fn says_why() {
    let mut plant = Plant::new(64, 1_000);
    let mut seen = std::collections::BTreeSet::new();
    for ms in 0..75_000 {
        // A device that grows, and a load that fills it.
        if ms == 2_000 {
            (plant.servers, plant.depth) = (512, 4_096);
        }
        plant.run(Duration::from_millis(1));
        let text = format!("{:?}", plant.admission.decision().reason);
        seen.insert(text.chars().take_while(char::is_ascii_alphabetic).collect::<String>());
    }
    assert_eq!(plant.admission.decision().target, None);
    plant.depth = 2;
    plant.run(secs(1));
    assert!(matches!(plant.admission.decision().reason, Reason::AppLimited { .. }));
    for part in ["IncreasePays", "IncreaseFutile", "ReductionFree", "ReductionCosts"] {
        assert!(seen.iter().any(|text| text.contains(part)), "{part} is missing in {seen:?}");
    }
}

#[test]
fn settings_out_of_range_are_named_and_moved_into_range() {
    for tolerance in [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY] {
        let config = ElasticConfig { tolerance };
        assert_eq!(config.validate().expect_err("out of range").setting, "tolerance");
        let mut plant = Plant::new(4, 500);
        plant.admission.reconfigure(Config::Elastic(config), Instant::ZERO);
        plant.run(secs(1));
        assert!(plant.budget_requests() >= 1);
    }
    assert_eq!(ElasticConfig::default().validate(), Ok(()));
}

/// A burst of regular requests, up to 64 at a time and one completion each `step_ns` ns, so that intervals end and decisions
/// are made between the random events.
fn steady(admission: &mut Admission, now: &mut Instant, requests: u64, step_ns: u64) {
    let mut inside = VecDeque::new();
    for _ in 0..requests {
        while inside.len() < 64 && admission.fits(COST) {
            admission.admit(COST);
            inside.push_back(*now);
        }
        *now += Duration::from_nanos(step_ns);
        if let Some(since) = inside.pop_front() {
            admission.observe(*now, COST, Kind::Read, COST, now.since(since));
        }
    }
    inside.iter().for_each(|_| admission.forget(COST));
}

proptest! {
    #[test]
    fn the_budget_stays_within_bounds_whatever_happens(
        tolerance: f64,
        parts in prop::collection::vec((prop::collection::vec(event(), 0..40), 0u64..2_000, 1u64..100_000), 1..6),
    ) {
        let config = Config::Elastic(ElasticConfig { tolerance });
        let (mut one, mut other) = (Run::new(config, 1), Run::new(config, 2));
        for (events, requests, step_ns) in parts {
            for event in events {
                one.apply(event);
                // Only one of the two is ticked: punctuality does not matter.
                if matches!(event, Event::Tick) {
                    prop_assert!(one.admission.next_tick() > one.now || one.now == Instant::FAR_FUTURE);
                    prop_assert_eq!(one.admission.tick(one.now), None);
                } else {
                    other.apply(event);
                }
                prop_assert_eq!(&one.inside, &other.inside, "a decision depends on the seed or on ticks");
                let decision = one.admission.decision();
                prop_assert!(decision.budget_bytes >= 4 * KIB, "{decision:?}");
                let told = format!("{:?}", decision.reason);
                prop_assert!(!told.contains("NaN"), "{told}");
                prop_assert_eq!(one.admission.in_flight_bytes(), one.inside.iter().sum::<u64>());
            }
            steady(&mut one.admission, &mut one.now, requests, step_ns);
            steady(&mut other.admission, &mut other.now, requests, step_ns);
            prop_assert_eq!(one.admission.decision().budget_bytes, other.admission.decision().budget_bytes);
        }
    }
}

/// Throughput, in MB/s in the last of 30 s, of a client that submits 64 reads of 64 KiB, waits for all of them and begins anew,
/// on a device with a latency of 1 ms and a bandwidth of 2 GB/s.
fn batches(admission: Config, reservation: Rates) -> f64 {
    const BYTES: u32 = 64 << 10;
    let config = pool::Config {
        scheduler: Scheduler::Mclock,
        admission,
        base_cost_bytes: 4_000,
        cost: CostModel::default(),
        limit: Rates::UNSET,
        limit_burst: Duration::ZERO,
        target: None,
        slots: None,
    };
    let mut pool = Pool::new(config, Instant::ZERO, 1);
    let tenant = pool.join(Instant::ZERO, Qos { reservation, ..Qos::default() });
    let (mut now, mut free_at, mut done) = (Instant::ZERO, Instant::ZERO, 0_u64);
    let mut inside = VecDeque::new();
    while now.as_nanos() < 30_000_000_000 {
        for _ in 0..64 {
            pool.submit(now, tenant, Work::new(Kind::Read, BYTES), ()).expect("it is there");
        }
        loop {
            while let Next::Run((), ticket) = pool.dispatch(now) {
                free_at = free_at.max(now) + Duration::from_nanos(u64::from(BYTES) / 2);
                inside.push_back((free_at + Duration::from_millis(1), ticket));
            }
            let Some((at, ticket)) = inside.pop_front() else { break };
            now = at;
            pool.complete(now, ticket, Outcome::Done);
            done += u64::from(now.as_nanos() >= 29_000_000_000);
        }
    }
    done as f64 * f64::from(BYTES) / 1e6
}

#[test]
fn a_load_in_batches_gets_a_budget_for_them() {
    let none = batches(Config::None, Rates::UNSET);
    // Beside a reservation a budget stays that the load fills less than three quarters of the time.
    for (reservation, least) in [(Rates::UNSET, 0.9), (Rates { iops: 100, ..Rates::UNSET }, 0.6)] {
        let elastic = batches(elastic(), reservation);
        assert!(elastic >= least * none, "{reservation:?}: {elastic:.0} MB/s, {none:.0} without");
    }
}
