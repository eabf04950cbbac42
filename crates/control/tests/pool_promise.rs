//! A promised throughput on a pool: kept where a limit alone loses it, beside other owners of limits, and how it ends.

use std::collections::VecDeque;

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::limits::Owner;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::promise::{Binding, Goals, Scope};
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket, goal};
use evenkeel_control::response;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::throughput::{Rate, Reason};
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};

const BLOCK: u32 = 64 << 10;
const STEP: Duration = Duration::from_micros(100);
const MB: u64 = 1_000_000;
const PROMISE: u64 = 50 * MB;

const CONFIG: Config = Config {
    scheduler: Scheduler::Mclock,
    admission: Admission::Fixed { budget_bytes: 1 << 20 },
    base_cost_bytes: 0,
    cost: CostModel { base_bytes: 4_096, write_percent: 100 },
    limit: Rates::UNSET,
    limit_burst: Duration::from_millis(10),
    goal: None,
};

/// As tenants are by default: a limit would lose what late looks cost.
fn qos() -> Qos {
    Qos { burst: Duration::from_millis(10), ..Qos::default() }
}

/// A pool in front of a device that serves one request after the other, at a rate that falls to a tenth now and then.
struct Bench {
    pool: Pool<TenantId>,
    now: Instant,
    inside: VecDeque<(TenantId, Ticket)>,
    credit: f64,
    rng: SplitMix64,
    /// Part of the time in which the device is slow, and until when it is as it is now.
    slow_part: f64,
    slow: bool,
    turns_at: Instant,
    /// Who keeps how many requests in the pool.
    clients: Vec<(TenantId, usize)>,
    /// Who of them reads.
    reader: Option<TenantId>,
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
            reader: None,
        }
    }

    fn join(&mut self, qos: Qos, depth: usize) -> TenantId {
        let id = self.pool.join(self.now, qos);
        self.clients.push((id, depth));
        id
    }

    fn promise(&mut self, tenant: TenantId, bytes_per_s: u64) {
        self.pool.set_promises(self.now, tenant, &Goals::of_all(Rate::BytesPerS(bytes_per_s)));
    }

    /// Time passes.
    fn run(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        while self.now < until {
            self.now += STEP;
            if self.slow_part > 0.0 && self.now >= self.turns_at {
                self.slow = !self.slow;
                let mean_s = if self.slow { 0.15 } else { 0.15 * (1.0 - self.slow_part) / self.slow_part };
                let length_s = mean_s * 2.0 * self.rng.next_f64();
                self.turns_at = self.now + Duration::from_nanos((length_s * 1e9) as u64);
            }
            let rate = if self.slow && self.slow_part > 0.0 { 20e6 } else { 200e6 };
            self.credit += rate * STEP.as_secs_f64();
            while self.credit >= f64::from(BLOCK)
                && let Some((_, ticket)) = self.inside.pop_front()
            {
                self.credit -= f64::from(BLOCK);
                self.pool.complete(self.now, ticket, Outcome::Done);
            }
            if self.inside.is_empty() {
                self.credit = self.credit.min(f64::from(BLOCK));
            }
            for &(tenant, depth) in &self.clients {
                let view = self.pool.tenant(tenant).expect("has not left");
                for _ in view.queued + view.in_flight as usize..depth {
                    let kind = if Some(tenant) == self.reader { Kind::Read } else { Kind::Write };
                    self.pool.submit(self.now, tenant, Work { kind, bytes: BLOCK }, tenant).expect("has not left");
                }
            }
            while let Next::Run(tenant, ticket) = self.pool.dispatch(self.now) {
                self.inside.push_back((tenant, ticket));
            }
        }
    }

    fn written(&self, tenant: TenantId) -> u64 {
        self.pool.tenant(tenant).expect("has not left").stats.write_bytes
    }

    /// Bytes per second of each of these over so long.
    fn rates(&mut self, seconds: u64, tenants: &[TenantId]) -> Vec<f64> {
        let before: Vec<u64> = tenants.iter().map(|&tenant| self.written(tenant)).collect();
        self.run(1_000 * seconds);
        tenants
            .iter()
            .zip(before)
            .map(|(&tenant, before)| (self.written(tenant) - before) as f64 / seconds as f64)
            .collect()
    }

    fn limit(&self, tenant: TenantId) -> Option<(Owner, u64)> {
        self.pool.tenant(tenant).expect("has not left").limit_bytes_per_s.binding()
    }

    fn state(&self, tenant: TenantId) -> (Binding, Reason) {
        let promise =
            self.pool.tenant(tenant).expect("has not left").promise(Scope::All).expect("was promised something");
        (promise.binding, promise.limit.reason)
    }
}

fn off(measured: f64, promised: u64) -> f64 {
    (measured / promised as f64 - 1.0).abs()
}

#[test]
fn a_promise_is_kept_on_a_device_that_makes_a_plain_limit_lose() {
    for seed in 1..=5 {
        let mut bench = Bench::new(seed, 0.3);
        let limit = Qos { limit: Rates { bytes_per_s: PROMISE, iops: 0 }, ..qos() };
        // Half as much, so that there is room for both.
        let limited = bench.join(Qos { limit: Rates { bytes_per_s: PROMISE / 2, iops: 0 }, ..limit }, 8);
        let promised = bench.join(qos(), 8);
        bench.promise(promised, PROMISE);
        bench.run(5_000);
        let rates = bench.rates(60, &[limited, promised]);
        assert!(off(rates[0], PROMISE / 2) > 0.03, "seed {seed}: the device costs the limit nothing: {rates:?}");
        assert!(off(rates[1], PROMISE) < 0.005, "seed {seed}: {rates:?}");
    }
}

#[test]
fn without_trouble_the_promise_is_the_limit_in_every_second() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), 8);
    bench.promise(tenant, PROMISE);
    bench.run(3_000);
    for second in 0..10 {
        let rate = bench.rates(1, &[tenant])[0];
        assert!(off(rate, PROMISE) < 0.01, "second {second}: {rate}");
    }
    let (binding, reason) = bench.state(tenant);
    assert_eq!(binding, Binding::Limit(Owner::Throughput));
    assert!(!matches!(reason, Reason::AppLimited { .. } | Reason::AtCeiling { .. }), "{reason:?}");
}

#[test]
fn the_smallest_limit_binds_and_nothing_is_owed_for_it() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), 8);
    bench.promise(tenant, PROMISE);
    bench.run(2_000);
    // Somebody else's limit, for so long that what is owed would be much.
    bench.pool.set_limit(bench.now, tenant, Owner::Operator, Rates { bytes_per_s: PROMISE / 2, iops: 0 });
    let rate = bench.rates(5, &[tenant])[0];
    assert!(off(rate, PROMISE / 2) < 0.01, "{rate}");
    assert_eq!(bench.limit(tenant), Some((Owner::Operator, PROMISE / 2)));
    let (binding, reason) = bench.state(tenant);
    assert_eq!(binding, Binding::Limit(Owner::Operator));
    assert!(matches!(reason, Reason::OtherLimit { .. }), "{reason:?}");
    bench.pool.set_limit(bench.now, tenant, Owner::Operator, Rates::UNSET);
    bench.run(1_000);
    let rate = bench.rates(3, &[tenant])[0];
    assert!(off(rate, PROMISE) < 0.02, "not repaid: {rate}");
    assert_eq!(bench.state(tenant).0, Binding::Limit(Owner::Throughput));
}

#[test]
fn a_reservation_wins_over_the_promise() {
    let mut bench = Bench::new(1, 0.0);
    let reserved = Rates { bytes_per_s: 2 * PROMISE, iops: 0 };
    let tenant = bench.join(Qos { reservation: reserved, ..qos() }, 16);
    bench.promise(tenant, PROMISE);
    bench.run(1_000);
    let rate = bench.rates(3, &[tenant])[0];
    assert!(rate > 1.95 * PROMISE as f64, "{rate}");
    assert_eq!(bench.state(tenant).0, Binding::Reservation);
    // When it is gone, what was had by it is not taken back.
    bench.pool.set_qos(bench.now, tenant, qos());
    bench.run(1_000);
    let rate = bench.rates(3, &[tenant])[0];
    assert!(off(rate, PROMISE) < 0.02, "{rate}");
}

#[test]
fn slots_that_bind_are_named_and_nothing_is_owed_for_them() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), 8);
    let other = bench.join(qos(), 32);
    bench.promise(tenant, PROMISE);
    bench.run(2_000);
    bench.pool.set_slots(bench.now, tenant, Owner::Slots, Some(1));
    let rate = bench.rates(5, &[tenant, other])[0];
    assert!(rate < 0.9 * PROMISE as f64, "one slot beside a full device: {rate}");
    assert_eq!(bench.state(tenant).0, Binding::Limit(Owner::Slots));
    bench.pool.set_slots(bench.now, tenant, Owner::Slots, None);
    bench.run(1_000);
    let rate = bench.rates(3, &[tenant])[0];
    assert!(off(rate, PROMISE) < 0.03, "not repaid: {rate}");
}

#[test]
fn who_is_held_back_for_a_goal_is_owed_nothing_for_it() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), 64);
    // As much as the device gives: it is full.
    bench.promise(tenant, 4 * PROMISE);
    let reader = bench.join(qos(), 1);
    bench.reader = Some(reader);
    // 64 writes keep a read waiting for 20 ms.
    let response = response::Config {
        step: Duration::ZERO,
        max_delay: Duration::from_secs(1),
        ..response::Config::adaptive(Duration::from_millis(5))
    };
    let goal = goal::Config { response, statistic: goal::Statistic::Mean, load: goal::Load::Writes };
    let config = Config { admission: Admission::None, goal: Some(goal), ..CONFIG };
    bench.pool.reconfigure(bench.now, config);
    bench.run(10_000);
    let view = bench.pool.tenant(tenant).expect("is there");
    assert!(view.hold.is_some(), "reads take too long");
    let promise = view.promise(Scope::All).expect("was promised something");
    let by_goal = |record: &&evenkeel_control::pool::promise::Record| record.binding == Binding::Limit(Owner::Response);
    let held: u64 = promise.records.iter().filter(by_goal).map(|record| record.times).sum();
    let all: u64 = promise.records.iter().map(|record| record.times).sum();
    assert!(2 * held > all, "{held} of {all}: {:?}", promise.records);
    for record in promise.records.iter().filter(by_goal) {
        assert!(matches!(record.limit.reason, Reason::OtherLimit { .. }), "nothing is owed for it: {record:?}");
    }
}

#[test]
fn who_asks_for_less_has_no_claim_on_it_later() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), 8);
    bench.promise(tenant, PROMISE);
    bench.run(2_000);
    bench.clients[0].1 = 0;
    for _ in 0..100 {
        // 64 KiB every 50 ms.
        let work = Work { kind: Kind::Write, bytes: BLOCK };
        bench.pool.submit(bench.now, tenant, work, tenant).expect("has not left");
        bench.run(50);
    }
    let (_, reason) = bench.state(tenant);
    assert!(matches!(reason, Reason::AppLimited { .. }), "{reason:?}");
    bench.clients[0].1 = 8;
    bench.run(1_000);
    let rate = bench.rates(3, &[tenant])[0];
    assert!(off(rate, PROMISE) < 0.03, "{rate}");
}

#[test]
fn who_never_asks_is_idle_from_the_first_moment() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), 0);
    bench.promise(tenant, PROMISE);
    for _ in 0..30 {
        bench.run(100);
        // Nobody dispatches for it: whoever looks at an idle pool asks it to decide.
        bench.pool.tick_controllers(bench.now);
        let (_, reason) = bench.state(tenant);
        assert!(matches!(reason, Reason::Idle | Reason::NotEnoughData), "{reason:?}");
    }
}

#[test]
fn what_the_device_cannot_give_is_said_and_the_promise_holds_again_after() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), 8);
    // Eight times the weight: a ninth of the device is left, less than half of what was promised.
    let heavy = bench.join(Qos { weight: 8, ..qos() }, 0);
    bench.promise(tenant, PROMISE);
    bench.run(3_000);
    assert_eq!(bench.pool.take_promise_decision(), None, "the promise is kept");
    bench.clients[1].1 = 32;
    let rates = bench.rates(10, &[tenant, heavy]);
    assert!(rates[0] < 0.6 * PROMISE as f64, "{rates:?}");
    let (_, reason) = bench.state(tenant);
    assert!(matches!(reason, Reason::AtCeiling { .. }), "{reason:?}");
    let decided = bench.pool.take_promise_decision();
    assert!(decided.is_some_and(|(id, _, reason)| id == tenant && reason.name() == "at_ceiling"), "{decided:?}");
    bench.clients[1].1 = 0;
    bench.run(1_000);
    // What is owed is bounded, and repaid slowly.
    for second in 0..10 {
        let rate = bench.rates(1, &[tenant])[0];
        assert!((0.99..=1.26).contains(&(rate / PROMISE as f64)), "second {second}: {rate}");
    }
    bench.run(120_000);
    let rate = bench.rates(10, &[tenant])[0];
    assert!(off(rate, PROMISE) < 0.005, "{rate}");
}

#[test]
fn promises_of_requests_and_of_several_tenants_come_change_and_go() {
    let mut bench = Bench::new(3, 0.2);
    let tenants = [bench.join(qos(), 8), bench.join(qos(), 8), bench.join(qos(), 1)];
    bench.promise(tenants[0], PROMISE);
    bench.pool.set_promises(bench.now, tenants[1], &Goals::of_all(Rate::RequestsPerS(300)));
    bench.run(5_000);
    let rates = bench.rates(40, &tenants);
    assert!(off(rates[0], PROMISE) < 0.01, "{rates:?}");
    assert!(off(rates[1], 300 * u64::from(BLOCK)) < 0.01, "{rates:?}");
    let view = bench.pool.tenant(tenants[1]).expect("is there");
    assert_eq!(view.limit_iops.binding().map(|(owner, _)| owner), Some(Owner::Throughput));
    assert_eq!(view.limit_bytes_per_s.binding(), None);
    assert!(!view.promise(Scope::All).expect("was promised").records.is_empty());

    // Another rate, another unit, none.
    bench.promise(tenants[0], PROMISE / 2);
    bench.promise(tenants[1], PROMISE / 2);
    bench.run(1_000);
    let rates = bench.rates(40, &tenants);
    assert!(off(rates[0], PROMISE / 2) < 0.01 && off(rates[1], PROMISE / 2) < 0.01, "{rates:?}");
    bench.pool.set_promises(bench.now, tenants[0], &Goals::NONE);
    let view = bench.pool.tenant(tenants[0]).expect("is there");
    assert!(view.promises().next().is_none() && view.limit_bytes_per_s.binding().is_none());
    let left: Vec<_> = bench.pool.leave(tenants[1]);
    assert!(!left.is_empty(), "it had requests waiting");
    bench.clients.remove(1);
    bench.run(1_000);
    assert!(bench.pool.tenant(tenants[1]).is_none());
}

#[test]
fn first_come_first_served_knows_no_promise() {
    let mut bench = Bench::new(1, 0.0);
    bench.pool.reconfigure(bench.now, Config { scheduler: Scheduler::None, ..CONFIG });
    let tenant = bench.join(qos(), 16);
    bench.promise(tenant, PROMISE);
    bench.run(1_000);
    assert!(bench.rates(2, &[tenant])[0] > 3.5 * PROMISE as f64);
    bench.pool.reconfigure(bench.now, CONFIG);
    bench.run(2_000);
    let rate = bench.rates(2, &[tenant])[0];
    assert!(off(rate, PROMISE) < 0.02, "{rate}");
}
