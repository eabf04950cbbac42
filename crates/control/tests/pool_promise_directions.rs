//! Promises to reads alone and to writes alone: each is kept, and neither holds the other back.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::limits::Owner;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::promise::{Binding, Goals, Scope};
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::throughput::{Rate, Reason};
use evenkeel_control::units::{Direction, Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const BLOCK: u32 = 64 << 10;
const STEP: Duration = Duration::from_micros(100);
const MB: u64 = 1_000_000;
const READ: Scope = Scope::Of(Direction::Read);
const WRITE: Scope = Scope::Of(Direction::Write);

const CONFIG: Config = Config {
    scheduler: Scheduler::Mclock,
    admission: Admission::Fixed { budget_bytes: 1 << 20 },
    base_cost_bytes: 0,
    cost: CostModel { base_bytes: 4_096, write_percent: 100 },
    limit: Rates::UNSET,
    limit_burst: Duration::from_millis(10),
    goal: None,
};

fn qos() -> Qos {
    Qos { burst: Duration::from_millis(10), ..Qos::default() }
}

fn mb(rate: u64) -> Option<Rate> {
    Some(Rate::BytesPerS(rate * MB))
}

fn limit(rate: u64) -> Rates {
    Rates { bytes_per_s: rate * MB, iops: 0 }
}

/// A pool in front of a device of 200 MB/s that serves one request after the other, and now and then a tenth as fast.
struct Bench {
    pool: Pool<(TenantId, Kind)>,
    now: Instant,
    inside: VecDeque<(TenantId, Kind, Ticket)>,
    credit: f64,
    rng: SplitMix64,
    slow_part: f64,
    slow: bool,
    turns_at: Instant,
    /// Who keeps how many requests of a kind in the pool, and how many there are.
    clients: Vec<(TenantId, Kind, usize, usize)>,
}

impl Bench {
    fn new(seed: u64, slow_part: f64) -> Self {
        Self {
            pool: Pool::new(CONFIG, Instant::ZERO, seed),
            now: Instant::ZERO,
            inside: VecDeque::new(),
            credit: 0.0,
            rng: SplitMix64::new(seed),
            slow_part,
            slow: true,
            turns_at: Instant::ZERO,
            clients: Vec::new(),
        }
    }

    /// A tenant that keeps so many reads and so many writes in the pool.
    fn join(&mut self, qos: Qos, goals: Goals, reads: usize, writes: usize) -> TenantId {
        let id = self.pool.join(self.now, qos);
        self.clients.extend([(id, Kind::Read, reads, 0), (id, Kind::Write, writes, 0)]);
        self.pool.set_promises(self.now, id, &goals);
        id
    }

    fn set_depth(&mut self, id: TenantId, kind: Kind, depth: usize) {
        self.clients.iter_mut().filter(|client| (client.0, client.1) == (id, kind)).for_each(|client| client.2 = depth);
    }

    fn run(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        while self.now < until {
            self.now += STEP;
            if self.slow_part > 0.0 && self.now >= self.turns_at {
                self.slow = !self.slow;
                let mean_s = if self.slow { 0.15 } else { 0.15 * (1.0 - self.slow_part) / self.slow_part };
                self.turns_at = self.now + Duration::from_nanos((mean_s * 2.0 * self.rng.next_f64() * 1e9) as u64);
            }
            self.credit += if self.slow && self.slow_part > 0.0 { 20e6 } else { 200e6 } * STEP.as_secs_f64();
            while self.credit >= f64::from(BLOCK)
                && let Some((id, kind, ticket)) = self.inside.pop_front()
            {
                self.credit -= f64::from(BLOCK);
                self.pool.complete(self.now, ticket, Outcome::Done);
                self.clients.iter_mut().filter(|client| (client.0, client.1) == (id, kind)).for_each(|c| c.3 -= 1);
            }
            if self.inside.is_empty() {
                self.credit = self.credit.min(f64::from(BLOCK));
            }
            for (id, kind, depth, there) in &mut self.clients {
                while *there < *depth {
                    *there += 1;
                    let work = Work { kind: *kind, bytes: BLOCK };
                    self.pool.submit(self.now, *id, work, (*id, *kind)).expect("has not left");
                }
            }
            while let Next::Run((id, kind), ticket) = self.pool.dispatch(self.now) {
                self.inside.push_back((id, kind, ticket));
            }
        }
    }

    /// Megabytes per second that a tenant reads and writes over so long.
    fn rates(&mut self, seconds: u64, id: TenantId) -> [f64; 2] {
        let moved = |pool: &Pool<_>| {
            let stats = pool.tenant(id).expect("has not left").stats;
            [stats.read_bytes, stats.write_bytes]
        };
        let before = moved(&self.pool);
        self.run(1_000 * seconds);
        let after = moved(&self.pool);
        [0, 1].map(|direction| (after[direction] - before[direction]) as f64 / 1e6 / seconds as f64)
    }

    fn state(&self, id: TenantId, scope: Scope) -> (Binding, Reason) {
        let promise = self.pool.tenant(id).expect("has not left").promise(scope).expect("was promised something");
        (promise.binding, promise.limit.reason)
    }
}

fn off(measured: f64, promised: u64) -> f64 {
    (measured / promised as f64 - 1.0).abs()
}

#[test]
fn a_promise_to_one_direction_holds_nothing_else_back() {
    for (goals, promised) in [(Goals { read: mb(50), ..Goals::NONE }, 0), (Goals { write: mb(50), ..Goals::NONE }, 1)] {
        let mut bench = Bench::new(1, 0.0);
        let tenant = bench.join(qos(), goals, 16, 16);
        bench.run(2_000);
        for second in 0..10 {
            let rates = bench.rates(1, tenant);
            assert!(off(rates[promised], 50) < 0.01, "second {second}: {rates:?}");
            assert!(off(rates[1 - promised], 150) < 0.01, "all that is left: {rates:?}");
        }
        let scope = [READ, WRITE][promised];
        assert_eq!(bench.state(tenant, scope).0, Binding::Limit(Owner::Throughput));
        let view = bench.pool.tenant(tenant).expect("has not left");
        assert_eq!(view.promises().count(), 1);
        assert_eq!(view.limit_bytes_per_s.binding(), None, "nothing limits both together");
    }
}

#[test]
fn both_are_kept_on_a_device_that_is_slow_now_and_then() {
    for seed in 1..=5 {
        let mut bench = Bench::new(seed, 0.3);
        let tenant = bench.join(qos(), Goals { read: mb(20), write: mb(50), ..Goals::NONE }, 8, 8);
        bench.run(5_000);
        let rates = bench.rates(60, tenant);
        assert!(off(rates[0], 20) < 0.005 && off(rates[1], 50) < 0.005, "seed {seed}: {rates:?}");
    }
}

#[test]
fn directions_have_units_of_their_own() {
    let mut bench = Bench::new(1, 0.2);
    let goals = Goals { read: Some(Rate::RequestsPerS(300)), write: mb(40), ..Goals::NONE };
    let tenant = bench.join(qos(), goals, 8, 8);
    bench.run(5_000);
    let rates = bench.rates(40, tenant);
    assert!(off(rates[0] * 1e6 / f64::from(BLOCK), 300) < 0.01 && off(rates[1], 40) < 0.01, "{rates:?}");
}

#[test]
fn a_direction_that_asks_for_less_is_not_short_because_the_other_asks() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), Goals { read: mb(50), write: mb(50), ..Goals::NONE }, 8, 0);
    bench.run(2_000);
    for _ in 0..100 {
        // A write every 50 ms.
        bench
            .pool
            .submit(bench.now, tenant, Work { kind: Kind::Write, bytes: BLOCK }, (tenant, Kind::Flush))
            .expect("is there");
        bench.run(50);
    }
    let (_, reason) = bench.state(tenant, WRITE);
    assert!(matches!(reason, Reason::AppLimited { .. }), "{reason:?}");
    let (_, reason) = bench.state(tenant, READ);
    assert!(!matches!(reason, Reason::AppLimited { .. } | Reason::AtCeiling { .. }), "{reason:?}");
    bench.set_depth(tenant, Kind::Write, 8);
    bench.run(1_000);
    let rates = bench.rates(3, tenant);
    assert!(off(rates[0], 50) < 0.03 && off(rates[1], 50) < 0.03, "nothing was owed: {rates:?}");
}

#[test]
fn a_reservation_passes_the_limit_of_a_direction_only_when_nothing_else_waits() {
    let mut bench = Bench::new(1, 0.0);
    let qos = Qos { reservation: limit(120), ..qos() };
    let tenant = bench.join(qos, Goals { write: mb(20), ..Goals::NONE }, 0, 16);
    bench.run(1_000);
    let rates = bench.rates(3, tenant);
    assert!(rates[1] > 115.0, "{rates:?}");
    assert_eq!(bench.state(tenant, WRITE).0, Binding::Reservation);
    // Reads can take what the reservation is owed.
    bench.set_depth(tenant, Kind::Read, 16);
    bench.run(2_000);
    let rates = bench.rates(5, tenant);
    assert!(off(rates[1], 20) < 0.02 && rates[0] > 175.0, "{rates:?}");
    assert_eq!(bench.state(tenant, WRITE).0, Binding::Limit(Owner::Throughput));
}

#[test]
fn a_smaller_limit_on_both_binds_and_nothing_is_owed_for_it() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), Goals { read: mb(50), ..Goals::NONE }, 8, 24);
    bench.run(2_000);
    for (operator, of_reads) in [(60, 5.0..45.0), (30, 2.0..29.0)] {
        // The larger one leaves reads less than their promise because writes take most of it.
        bench.pool.set_limit(bench.now, tenant, Owner::Operator, limit(operator));
        bench.run(1_000);
        let rates = bench.rates(5, tenant);
        assert!(off(rates[0] + rates[1], operator) < 0.01 && of_reads.contains(&rates[0]), "{rates:?}");
        let (binding, reason) = bench.state(tenant, READ);
        assert_eq!(binding, Binding::Limit(Owner::Operator));
        assert!(matches!(reason, Reason::OtherLimit { .. }), "{reason:?}");
    }
    bench.pool.set_limit(bench.now, tenant, Owner::Operator, Rates::UNSET);
    bench.run(1_000);
    let rates = bench.rates(3, tenant);
    assert!(off(rates[0], 50) < 0.02, "not repaid: {rates:?}");
    // Nor for slots.
    bench.pool.set_slots(bench.now, tenant, Owner::Slots, Some(1));
    let rival = bench.join(qos(), Goals::NONE, 32, 0);
    bench.run(3_000);
    assert_eq!(bench.state(tenant, READ).0, Binding::Limit(Owner::Slots));
    bench.pool.set_slots(bench.now, tenant, Owner::Slots, None);
    bench.set_depth(rival, Kind::Read, 0);
    bench.run(1_000);
    let rates = bench.rates(3, tenant);
    assert!(off(rates[0], 50) < 0.03, "not repaid: {rates:?}");
}

#[test]
fn a_limit_in_another_unit_is_seen_to_bind() {
    let mut bench = Bench::new(1, 0.0);
    // 300 requests of 64 KiB are 19.7 MB.
    let tenant = bench.join(qos(), Goals::of_all(Rate::BytesPerS(50 * MB)), 0, 8);
    bench.pool.set_limit(bench.now, tenant, Owner::Operator, Rates { iops: 300, bytes_per_s: 0 });
    bench.run(5_000);
    let (binding, reason) = bench.state(tenant, Scope::All);
    assert_eq!(binding, Binding::Limit(Owner::Operator));
    assert!(matches!(reason, Reason::OtherLimit { .. }), "{reason:?}");
}

#[test]
fn promises_of_different_scopes_come_change_and_go() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), Goals { read: mb(50), write: mb(20), ..Goals::NONE }, 8, 8);
    bench.run(2_000);
    let mut expect = |goals: Goals, expected: [u64; 2]| {
        bench.pool.set_promises(bench.now, tenant, &goals);
        bench.run(2_000);
        let rates = bench.rates(5, tenant);
        assert!(off(rates[0], expected[0]) < 0.02 && off(rates[1], expected[1]) < 0.02, "{goals:?}: {rates:?}");
    };
    expect(Goals { read: mb(20), write: mb(50), ..Goals::NONE }, [20, 50]);
    expect(Goals { write: mb(50), ..Goals::NONE }, [150, 50]);
    expect(Goals { all: mb(60), ..Goals::NONE }, [30, 30]);
    expect(Goals { all: mb(60), write: mb(20), ..Goals::NONE }, [40, 20]);
    expect(Goals::NONE, [100, 100]);
    expect(Goals { read: mb(50), ..Goals::NONE }, [50, 150]);
    // First come, first served knows none, and afterwards they hold again.
    bench.pool.reconfigure(bench.now, Config { scheduler: Scheduler::None, ..CONFIG });
    let rates = bench.rates(3, tenant);
    assert!(rates[0] > 90.0, "{rates:?}");
    bench.pool.reconfigure(bench.now, CONFIG);
    bench.run(2_000);
    let rates = bench.rates(3, tenant);
    assert!(off(rates[0], 50) < 0.02, "{rates:?}");
}

#[derive(Clone, Debug)]
enum Event {
    Submit(usize, Kind),
    Complete(usize),
    Promise(usize, Goals),
    Qos(usize, Qos),
    Scheduler(Scheduler),
    Slots(usize, Option<u64>),
    Leave(usize),
    Wait(u64),
    /// The requests of this tenant are not wanted any more.
    Disown(usize),
}

fn an_event() -> impl Strategy<Value = Event> {
    let rate = || {
        prop::option::of(prop::sample::select(vec![
            Rate::BytesPerS(MB),
            Rate::BytesPerS(50 * MB),
            Rate::RequestsPerS(100),
        ]))
    };
    let rates = || {
        prop::sample::select(vec![Rates::UNSET, Rates::UNSET, limit(2), limit(40), Rates { iops: 50, bytes_per_s: 0 }])
    };
    let kinds = vec![Kind::Read, Kind::Write, Kind::Flush, Kind::Meta];
    prop_oneof![
        20 => (0..3_usize, prop::sample::select(kinds)).prop_map(|(tenant, kind)| Event::Submit(tenant, kind)),
        10 => (0..8_usize).prop_map(Event::Complete),
        3 => (0..3_usize, rate(), rate(), rate())
            .prop_map(|(tenant, all, read, write)| Event::Promise(tenant, Goals { all, read, write })),
        2 => (0..3_usize, rates(), rates())
            .prop_map(|(tenant, reservation, limit)| Event::Qos(tenant, Qos { reservation, limit, ..qos() })),
        1 => prop::sample::select(vec![Scheduler::Mclock, Scheduler::None]).prop_map(Event::Scheduler),
        1 => (0..3_usize, prop::option::of(1..4_u64)).prop_map(|(tenant, slots)| Event::Slots(tenant, slots)),
        1 => (0..3_usize).prop_map(Event::Leave),
        8 => prop::sample::select(vec![10, 1_000, 30_000, 200_000, 2_000_000]).prop_map(Event::Wait),
        1 => (0..3_usize).prop_map(Event::Disown),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever changes: each request comes out once, those of a kind in their order, and none is kept for ever.
    #[test]
    fn nothing_is_lost_or_stuck_or_overtaken_by_its_own_kind(events in prop::collection::vec(an_event(), 1..200)) {
        let mut now = Instant::ZERO;
        let mut pool = Pool::new(CONFIG, now, 1);
        let mut tenants: Vec<TenantId> = (0..3).map(|_| pool.join(now, qos())).collect();
        let mut inside: Vec<Ticket> = Vec::new();
        let mut next = 0_u64;
        let mut waiting: BTreeMap<u64, (TenantId, Kind)> = BTreeMap::new();
        let mut last: BTreeMap<(String, u8), u64> = BTreeMap::new();
        let key = |id: TenantId, kind: Kind| (format!("{id:?}"), kind as u8);
        let mut disowned: Vec<TenantId> = Vec::new();
        for event in events.into_iter().map(Some).chain([None]) {
            let ends = event.is_none();
            match event.unwrap_or(Event::Wait(0)) {
                Event::Submit(tenant, kind) => {
                    let bytes = if matches!(kind, Kind::Read | Kind::Write) { BLOCK } else { 0 };
                    pool.submit(now, tenants[tenant], Work { kind, bytes }, next).expect("is there");
                    waiting.insert(next, (tenants[tenant], kind));
                    next += 1;
                }
                Event::Complete(place) if !inside.is_empty() => {
                    let ticket = inside.remove(place % inside.len());
                    pool.complete(now, ticket, Outcome::Done);
                }
                Event::Complete(_) => {}
                Event::Promise(tenant, goals) => pool.set_promises(now, tenants[tenant], &goals),
                Event::Qos(tenant, qos) => pool.set_qos(now, tenants[tenant], qos),
                Event::Scheduler(scheduler) => pool.reconfigure(now, Config { scheduler, ..CONFIG }),
                Event::Slots(tenant, slots) => pool.set_slots(now, tenants[tenant], Owner::Slots, slots),
                Event::Leave(tenant) => {
                    for request in pool.leave(tenants[tenant]) {
                        prop_assert_eq!(waiting.remove(&request).map(|(id, _)| id), Some(tenants[tenant]));
                    }
                    prop_assert!(waiting.values().all(|(id, _)| *id != tenants[tenant]), "all of them");
                    tenants[tenant] = pool.join(now, qos());
                }
                Event::Wait(us) => now += Duration::from_micros(us),
                Event::Disown(tenant) => disowned.push(tenants[tenant]),
            }
            for _ in 0.. {
                let wanted = |request: &u64| !disowned.contains(&waiting[request].0);
                let (request, ticket) = match pool.dispatch_wanted(now, wanted) {
                    Ok(Next::Run(request, ticket)) => (request, Some(ticket)),
                    Err(request) => (request, None),
                    // To the end: everything comes out when its time has come.
                    Ok(Next::Wait(until)) if ends => {
                        prop_assert!(until > now);
                        if let Some(ticket) = inside.pop() {
                            pool.complete(now, ticket, Outcome::Done);
                        } else {
                            prop_assert!(until < Instant::FAR_FUTURE, "{} are stuck", waiting.len());
                            now = until;
                        }
                        continue;
                    }
                    Ok(_) => break,
                };
                let (id, kind) = waiting.remove(&request).expect("comes out once");
                if pool.config().scheduler == Scheduler::Mclock {
                    let before = last.insert(key(id, kind), request);
                    prop_assert!(before.is_none_or(|before| before < request), "{request} of {kind:?} was overtaken");
                }
                inside.extend(ticket);
            }
            prop_assert_eq!(pool.queued(), waiting.len());
        }
        prop_assert!(waiting.is_empty());
    }
}
