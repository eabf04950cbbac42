//! A pool's throughput guarantees: met on devices where a fixed limit of the same rate falls short, beside limits that other
//! controllers set, and taken away again.

mod bench;
mod directions;

use evenkeel_control::Duration;
use evenkeel_control::admission::Config as Admission;
use evenkeel_control::limits::Owner;
use evenkeel_control::mclock::Qos;
use evenkeel_control::pool::guarantee::{Binding, Scope, Throughputs};
use evenkeel_control::pool::{Config, Scheduler, TenantId, target};
use evenkeel_control::response;
use evenkeel_control::throughput::{Rate, Reason};
use evenkeel_control::units::{Kind, Rates};

use bench::{BLOCK, Bench, CONFIG, Stalls, limit, mb, off, qos};

/// Guaranteed throughput of a tenant in most of these tests, in megabytes per second.
const GUARANTEE: u64 = 50;

fn of_all(rate: u64) -> Throughputs {
    Throughputs { all: mb(rate), ..Throughputs::NONE }
}

/// Runs for `seconds`; returns the megabytes per second that each tenant writes in that time.
fn written<const N: usize>(bench: &mut Bench, seconds: u64, tenants: [TenantId; N]) -> [f64; N] {
    bench.rates(seconds, tenants).map(|[_, writes]| writes)
}

#[test]
fn a_guarantee_is_kept_on_a_device_that_makes_a_plain_limit_lose() {
    for seed in 1..=5 {
        let mut bench = Bench::new(seed, 0.3);
        // Half as much, so that there is room for both.
        let limited = bench.join(Qos { limit: limit(GUARANTEE / 2), ..qos() }, Throughputs::NONE, 0, 8);
        let guaranteed = bench.join(qos(), of_all(GUARANTEE), 0, 8);
        bench.run(5_000);
        let rates = written(&mut bench, 60, [limited, guaranteed]);
        assert!(off(rates[0], GUARANTEE / 2) > 0.03, "seed {seed}: the device costs the limit nothing: {rates:?}");
        assert!(off(rates[1], GUARANTEE) < 0.005, "seed {seed}: {rates:?}");
    }
}

/// Same device and settings as in `crates/server/tests/guarantee.rs`, which asserts that the server passes them to the pool.
#[test]
fn on_a_device_that_stalls_a_guarantee_is_met_and_changes() {
    const RATE: u64 = 2;
    // 28 s are 40 stalls.
    const PERIODS_S: u64 = 28;
    // What the first stalls cost is repaid in less than a minute.
    const SETTLES_MS: u64 = 70_000;
    let mut bench = Bench::stalling(1, 20.0, Stalls { every_ms: 700, stalls_ms: 250 });
    bench.pool.reconfigure(bench.now, Config { admission: Admission::None, ..CONFIG });
    // As many bytes as 16 writes of 16 KiB.
    let limited = bench.join(Qos { limit: limit(RATE), ..qos() }, Throughputs::NONE, 0, 4);
    let guaranteed = bench.join(qos(), of_all(RATE), 0, 4);
    let measure = |bench: &mut Bench| {
        bench.run(SETTLES_MS);
        written(bench, PERIODS_S, [limited, guaranteed])
    };
    let rates = measure(&mut bench);
    assert!(rates[0] < 0.9 * RATE as f64 && off(rates[1], RATE) < 0.005, "{rates:?}");
    bench.pool.set_qos(bench.now, guaranteed, Qos { reservation: limit(2 * RATE), ..qos() });
    let rates = measure(&mut bench);
    assert!(rates[1] > 1.2 * RATE as f64, "a reservation of twice as much: {rates:?}");
    bench.pool.set_qos(bench.now, guaranteed, Qos { limit: limit(RATE / 2), ..qos() });
    let rates = measure(&mut bench);
    assert!(rates[1] <= 1.005 * (RATE / 2) as f64, "a limit of half as much: {rates:?}");
    bench.pool.set_qos(bench.now, guaranteed, qos());
    bench.guarantee(guaranteed, of_all(RATE / 2));
    let rates = measure(&mut bench);
    assert!(off(rates[1], RATE / 2) < 0.005, "half the guarantee: {rates:?}");
    bench.guarantee(guaranteed, Throughputs::NONE);
    let rates = measure(&mut bench);
    assert!(rates[1] > 3.0 * RATE as f64, "no guarantee and no limit: {rates:?}");
    bench.guarantee(guaranteed, Throughputs { write: mb(RATE), ..Throughputs::NONE });
    bench.set_depth(guaranteed, Kind::Read, 4);
    bench.run(SETTLES_MS);
    let [reads, writes] = bench.rates(PERIODS_S, [guaranteed])[0];
    assert!(off(writes, RATE) < 0.005 && reads > 1.5 * RATE as f64, "of writes alone: {reads}, {writes}");
}

#[test]
fn without_trouble_the_guarantee_is_the_limit_in_every_second() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), of_all(GUARANTEE), 0, 8);
    bench.run(3_000);
    for second in 0..10 {
        let rate = written(&mut bench, 1, [tenant])[0];
        assert!(off(rate, GUARANTEE) < 0.01, "second {second}: {rate}");
    }
    let (binding, reason) = bench.state(tenant, Scope::All);
    assert_eq!(binding, Binding::Limit(Owner::Throughput));
    assert!(!matches!(reason, Reason::AppLimited { .. } | Reason::AtCeiling { .. }), "{reason:?}");
}

#[test]
fn the_smallest_limit_binds_and_nothing_is_owed_for_it() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), of_all(GUARANTEE), 0, 8);
    bench.run(2_000);
    // Somebody else's limit, for so long that what is owed would be much.
    bench.pool.set_limit(bench.now, tenant, Owner::Operator, limit(GUARANTEE / 2));
    let rate = written(&mut bench, 5, [tenant])[0];
    assert!(off(rate, GUARANTEE / 2) < 0.01, "{rate}");
    let view = bench.pool.tenant(tenant).expect("has not left");
    assert_eq!(view.limit_bytes_per_s.binding(), Some((Owner::Operator, limit(GUARANTEE / 2).bytes_per_s)));
    let (binding, reason) = bench.state(tenant, Scope::All);
    assert_eq!(binding, Binding::Limit(Owner::Operator));
    assert!(matches!(reason, Reason::OtherLimit { .. }), "{reason:?}");
    bench.pool.set_limit(bench.now, tenant, Owner::Operator, Rates::UNSET);
    bench.run(1_000);
    let rate = written(&mut bench, 3, [tenant])[0];
    assert!(off(rate, GUARANTEE) < 0.02, "not repaid: {rate}");
    assert_eq!(bench.state(tenant, Scope::All).0, Binding::Limit(Owner::Throughput));
}

#[test]
fn a_reservation_wins_over_the_guarantee() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(Qos { reservation: limit(2 * GUARANTEE), ..qos() }, of_all(GUARANTEE), 0, 16);
    bench.run(1_000);
    let rate = written(&mut bench, 3, [tenant])[0];
    assert!(rate > 1.95 * GUARANTEE as f64, "{rate}");
    assert_eq!(bench.state(tenant, Scope::All).0, Binding::Reservation);
    // When it is gone, what was had by it is not taken back.
    bench.pool.set_qos(bench.now, tenant, qos());
    bench.run(1_000);
    let rate = written(&mut bench, 3, [tenant])[0];
    assert!(off(rate, GUARANTEE) < 0.02, "{rate}");
}

#[test]
fn slots_that_bind_are_named_and_nothing_is_owed_for_them() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), Throughputs::NONE, 0, 8);
    let other = bench.join(qos(), Throughputs::NONE, 0, 32);
    bench.guarantee(tenant, of_all(GUARANTEE));
    bench.run(2_000);
    bench.pool.set_slots(bench.now, tenant, Owner::Slots, Some(1));
    let rate = written(&mut bench, 5, [tenant, other])[0];
    assert!(rate < 0.9 * GUARANTEE as f64, "one slot beside a full device: {rate}");
    assert_eq!(bench.state(tenant, Scope::All).0, Binding::Limit(Owner::Slots));
    bench.pool.set_slots(bench.now, tenant, Owner::Slots, None);
    bench.run(1_000);
    let rate = written(&mut bench, 3, [tenant])[0];
    assert!(off(rate, GUARANTEE) < 0.03, "not repaid: {rate}");
}

#[test]
fn a_throughput_guarantee_is_above_a_latency_target() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), Throughputs::NONE, 0, 64);
    // As much as the device gives: it is full.
    bench.guarantee(tenant, of_all(4 * GUARANTEE));
    bench.join(qos(), Throughputs::NONE, 1, 0);
    // 64 writes keep a read waiting for 20 ms.
    let response = response::Config {
        step: Duration::ZERO,
        max_delay: Duration::from_secs(1),
        ..response::Config::adaptive(Duration::from_millis(5))
    };
    let target = target::Config { response, statistic: target::Statistic::Mean, load: target::Load::Writes };
    let config = Config { admission: Admission::None, target: Some(target), ..CONFIG };
    bench.pool.reconfigure(bench.now, config);
    bench.run(10_000);
    let view = bench.pool.tenant(tenant).expect("is there");
    assert!(view.throttled.is_none(), "{:?}", view.throttled);
    let guarantee = view.guarantee(Scope::All).expect("was guaranteed something");
    let by_target =
        guarantee.records.iter().filter(|record| record.decision.binding == Binding::Limit(Owner::Latency)).count();
    assert_eq!(by_target, 0, "{:?}", guarantee.records);
    let reason = bench.pool.target().and_then(|target| target.records.last()).map(|entry| entry.decision.reason.name());
    assert_eq!(reason, Some("no_noisy"));
}

#[test]
fn who_asks_for_less_has_no_claim_on_it_later() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), of_all(GUARANTEE), 0, 8);
    bench.run(2_000);
    bench.set_depth(tenant, Kind::Write, 0);
    for _ in 0..100 {
        // 64 KiB every 50 ms.
        bench.submit(tenant, Kind::Write);
        bench.run(50);
    }
    let (_, reason) = bench.state(tenant, Scope::All);
    assert!(matches!(reason, Reason::AppLimited { .. }), "{reason:?}");
    bench.set_depth(tenant, Kind::Write, 8);
    bench.run(1_000);
    let rate = written(&mut bench, 3, [tenant])[0];
    assert!(off(rate, GUARANTEE) < 0.03, "{rate}");
}

#[test]
fn who_never_asks_is_idle_from_the_first_moment() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), of_all(GUARANTEE), 0, 0);
    for _ in 0..30 {
        bench.run(100);
        // Nobody dispatches for it: whoever looks at an idle pool asks it to decide.
        bench.pool.tick_controllers(bench.now);
        let (_, reason) = bench.state(tenant, Scope::All);
        assert!(matches!(reason, Reason::Idle | Reason::NotEnoughData), "{reason:?}");
    }
}

#[test]
fn what_the_device_cannot_give_is_said_and_the_guarantee_holds_again_after() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), Throughputs::NONE, 0, 8);
    // Eight times the weight: a ninth of the device is left, less than half of what was guaranteed.
    let heavy = bench.join(Qos { weight: 8, ..qos() }, Throughputs::NONE, 0, 0);
    bench.guarantee(tenant, of_all(GUARANTEE));
    bench.run(3_000);
    assert_eq!(bench.pool.take_guarantee_decision(), None, "the guarantee is kept");
    bench.set_depth(heavy, Kind::Write, 32);
    let rates = written(&mut bench, 10, [tenant, heavy]);
    assert!(rates[0] < 0.6 * GUARANTEE as f64, "{rates:?}");
    let (_, reason) = bench.state(tenant, Scope::All);
    assert!(matches!(reason, Reason::AtCeiling { .. }), "{reason:?}");
    let decided = bench.pool.take_guarantee_decision();
    assert!(decided.is_some_and(|(id, _, reason)| id == tenant && reason.name() == "at_ceiling"), "{decided:?}");
    bench.set_depth(heavy, Kind::Write, 0);
    bench.run(1_000);
    assert_eq!(bench.pool.take_guarantee_decision(), None, "a debt that is being repaid is not forgiven");
    // What is owed is bounded, and repaid slowly.
    for second in 0..10 {
        let rate = written(&mut bench, 1, [tenant])[0];
        assert!((0.99..=1.26).contains(&(rate / GUARANTEE as f64)), "second {second}: {rate}");
    }
    bench.run(120_000);
    let decided = bench.pool.take_guarantee_decision();
    assert!(decided.is_some_and(|(_, _, reason)| reason.verdict() == Some(false)), "{decided:?}");
    let rate = written(&mut bench, 10, [tenant])[0];
    assert!(off(rate, GUARANTEE) < 0.005, "{rate}");
}

#[test]
fn guarantees_of_requests_and_of_several_tenants_come_change_and_go() {
    let mut bench = Bench::new(3, 0.2);
    let tenants = [
        bench.join(qos(), of_all(GUARANTEE), 0, 8),
        bench.join(qos(), Throughputs::of_all(Rate::RequestsPerS(300)), 0, 8),
        bench.join(qos(), Throughputs::NONE, 0, 1),
    ];
    bench.run(5_000);
    let rates = written(&mut bench, 40, tenants);
    assert!(off(rates[0], GUARANTEE) < 0.01, "{rates:?}");
    assert!(off(rates[1] * 1e6 / f64::from(BLOCK), 300) < 0.01, "{rates:?}");
    let view = bench.pool.tenant(tenants[1]).expect("is there");
    assert_eq!(view.limit_iops.binding().map(|(owner, _)| owner), Some(Owner::Throughput));
    assert_eq!(view.limit_bytes_per_s.binding(), None);
    assert!(view.guarantee(Scope::All).expect("was guaranteed").records.last().is_some());

    // Another rate, another unit, none.
    bench.guarantee(tenants[0], of_all(GUARANTEE / 2));
    bench.guarantee(tenants[1], of_all(GUARANTEE / 2));
    bench.run(1_000);
    let rates = written(&mut bench, 40, tenants);
    assert!(off(rates[0], GUARANTEE / 2) < 0.01 && off(rates[1], GUARANTEE / 2) < 0.01, "{rates:?}");
    bench.guarantee(tenants[0], Throughputs::NONE);
    let view = bench.pool.tenant(tenants[0]).expect("is there");
    assert!(view.guarantees().next().is_none() && view.limit_bytes_per_s.binding().is_none());
    assert!(bench.leave(tenants[1]) > 0, "it had requests waiting");
    bench.run(1_000);
    assert!(bench.pool.tenant(tenants[1]).is_none());
}

#[test]
fn first_come_first_served_knows_no_guarantee() {
    let mut bench = Bench::new(1, 0.0);
    bench.pool.reconfigure(bench.now, Config { scheduler: Scheduler::None, ..CONFIG });
    let tenant = bench.join(qos(), of_all(GUARANTEE), 0, 16);
    bench.run(1_000);
    assert!(written(&mut bench, 2, [tenant])[0] > 3.5 * GUARANTEE as f64);
    bench.pool.reconfigure(bench.now, CONFIG);
    bench.run(2_000);
    let rate = written(&mut bench, 2, [tenant])[0];
    assert!(off(rate, GUARANTEE) < 0.02, "{rate}");
}

#[test]
fn what_waited_first_come_first_served_waits_for_its_guarantee_afterwards() {
    // One at a time, so that nothing is inside when one has left.
    let one = Config { admission: Admission::Fixed { budget_bytes: u64::from(BLOCK) }, ..CONFIG };
    for slow_part in [0.0, 0.3] {
        let mut bench = Bench::new(1, slow_part);
        let tenant = bench.join(qos(), of_all(GUARANTEE), 0, 8);
        bench.run(3_000);
        bench.pool.reconfigure(bench.now, Config { scheduler: Scheduler::None, ..one });
        bench.set_depth(tenant, Kind::Write, 0);
        // Enough for 40 s at what was guaranteed. Some leave while others wait, and nobody comes any more.
        (0..40 * GUARANTEE * 1_000_000 / u64::from(BLOCK)).for_each(|_| bench.submit(tenant, Kind::Write));
        bench.run(200);
        bench.pool.reconfigure(bench.now, one);
        bench.run(1_000);
        for tenth in 0..20 {
            bench.run(100);
            let (_, reason) = bench.state(tenant, Scope::All);
            let idle = matches!(reason, Reason::Idle | Reason::AppLimited { .. });
            assert!(!idle, "{slow_part} slow, after {tenth} tenths of a second: {reason:?}");
            // Nor is anything taken back of what it got while it had no limit.
            let taken = matches!(reason, Reason::GivingBack { .. });
            assert!(!taken || slow_part > 0.0, "after {tenth} tenths of a second: {reason:?}");
        }
        let rate = written(&mut bench, 30, [tenant])[0];
        assert!(off(rate, GUARANTEE) < 0.01, "{slow_part} slow: {rate}");
        bench.run(10_000);
        let (_, reason) = bench.state(tenant, Scope::All);
        assert!(matches!(reason, Reason::Idle), "all done: {reason:?}");
    }
}
