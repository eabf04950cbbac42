//! Guarantees to reads alone and to writes alone: each is met, and neither throttles the other.

use std::collections::BTreeMap;

use evenkeel_control::limits::Owner;
use evenkeel_control::mclock::Qos;
use evenkeel_control::pool::guarantee::{Binding, Scope, Throughputs};
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket};
use evenkeel_control::throughput::{Rate, Reason};
use evenkeel_control::units::{Direction, Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

use super::bench::{BLOCK, Bench, CONFIG, limit, mb, off, qos};

const READ: Scope = Scope::Of(Direction::Read);
const WRITE: Scope = Scope::Of(Direction::Write);

/// Runs for `seconds`; returns `[read, written]` of the tenant in megabytes per second of that time.
fn moved(bench: &mut Bench, seconds: u64, tenant: TenantId) -> [f64; 2] {
    let [rates] = bench.rates(seconds, [tenant]);
    rates
}

#[test]
fn a_guarantee_to_one_direction_throttles_nothing_else() {
    for (targets, guaranteed) in [
        (Throughputs { read: mb(50), ..Throughputs::NONE }, 0),
        (Throughputs { write: mb(50), ..Throughputs::NONE }, 1),
    ] {
        let mut bench = Bench::new(1, 0.0);
        let tenant = bench.join(qos(), targets, 16, 16);
        bench.run(2_000);
        for second in 0..10 {
            let rates = moved(&mut bench, 1, tenant);
            assert!(off(rates[guaranteed], 50) < 0.01, "second {second}: {rates:?}");
            assert!(off(rates[1 - guaranteed], 150) < 0.01, "all that is left: {rates:?}");
        }
        let scope = [READ, WRITE][guaranteed];
        assert_eq!(bench.state(tenant, scope).0, Binding::Limit(Owner::Throughput));
        let view = bench.pool.tenant(tenant).expect("has not left");
        assert_eq!(view.guarantees().count(), 1);
        assert_eq!(view.limit_bytes_per_s.binding(), None, "nothing limits both together");
    }
}

#[test]
fn both_are_kept_on_a_device_that_is_slow_now_and_then() {
    for seed in 1..=5 {
        let mut bench = Bench::new(seed, 0.3);
        let tenant = bench.join(qos(), Throughputs { read: mb(20), write: mb(50), ..Throughputs::NONE }, 8, 8);
        bench.run(5_000);
        let rates = moved(&mut bench, 60, tenant);
        assert!(off(rates[0], 20) < 0.005 && off(rates[1], 50) < 0.005, "seed {seed}: {rates:?}");
    }
}

#[test]
fn directions_have_units_of_their_own() {
    let mut bench = Bench::new(1, 0.2);
    let targets = Throughputs { read: Some(Rate::RequestsPerS(300)), write: mb(40), ..Throughputs::NONE };
    let tenant = bench.join(qos(), targets, 8, 8);
    bench.run(5_000);
    let rates = moved(&mut bench, 40, tenant);
    assert!(off(rates[0] * 1e6 / f64::from(BLOCK), 300) < 0.01 && off(rates[1], 40) < 0.01, "{rates:?}");
}

#[test]
fn a_direction_that_asks_for_less_is_not_short_because_the_other_asks() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), Throughputs { read: mb(50), write: mb(50), ..Throughputs::NONE }, 8, 0);
    bench.run(2_000);
    for _ in 0..100 {
        // A write every 50 ms.
        bench.submit(tenant, Kind::Write);
        bench.run(50);
    }
    let (_, reason) = bench.state(tenant, WRITE);
    assert!(matches!(reason, Reason::AppLimited { .. }), "{reason:?}");
    let (_, reason) = bench.state(tenant, READ);
    assert!(!matches!(reason, Reason::AppLimited { .. } | Reason::AtCeiling { .. }), "{reason:?}");
    bench.set_depth(tenant, Kind::Write, 8);
    bench.run(1_000);
    let rates = moved(&mut bench, 3, tenant);
    assert!(off(rates[0], 50) < 0.03 && off(rates[1], 50) < 0.03, "nothing was owed: {rates:?}");
}

#[test]
fn a_reservation_passes_the_limit_of_a_direction_only_when_nothing_else_waits() {
    let mut bench = Bench::new(1, 0.0);
    let qos = Qos { reservation: limit(120), ..qos() };
    let tenant = bench.join(qos, Throughputs { write: mb(20), ..Throughputs::NONE }, 0, 16);
    bench.run(1_000);
    let rates = moved(&mut bench, 3, tenant);
    assert!(rates[1] > 115.0, "{rates:?}");
    assert_eq!(bench.state(tenant, WRITE).0, Binding::Reservation);
    // Reads can take what the reservation is owed.
    bench.set_depth(tenant, Kind::Read, 16);
    bench.run(2_000);
    let rates = moved(&mut bench, 5, tenant);
    assert!(off(rates[1], 20) < 0.02 && rates[0] > 175.0, "{rates:?}");
    assert_eq!(bench.state(tenant, WRITE).0, Binding::Limit(Owner::Throughput));
}

#[test]
fn a_smaller_limit_on_both_binds_and_nothing_is_owed_for_it() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), Throughputs { read: mb(50), ..Throughputs::NONE }, 8, 24);
    bench.run(2_000);
    for (operator, of_reads) in [(60, 5.0..45.0), (30, 2.0..29.0)] {
        // The larger one leaves reads less than their guarantee because writes take most of it.
        bench.pool.set_limit(bench.now, tenant, Owner::Operator, limit(operator));
        bench.run(1_000);
        let rates = moved(&mut bench, 5, tenant);
        assert!(off(rates[0] + rates[1], operator) < 0.01 && of_reads.contains(&rates[0]), "{rates:?}");
        let (binding, reason) = bench.state(tenant, READ);
        assert_eq!(binding, Binding::Limit(Owner::Operator));
        assert!(matches!(reason, Reason::OtherLimit { .. }), "{reason:?}");
    }
    bench.pool.set_limit(bench.now, tenant, Owner::Operator, Rates::UNSET);
    bench.run(1_000);
    let rates = moved(&mut bench, 3, tenant);
    assert!(off(rates[0], 50) < 0.02, "not repaid: {rates:?}");
    // Nor for slots.
    bench.pool.set_slots(bench.now, tenant, Owner::Slots, Some(1));
    let rival = bench.join(qos(), Throughputs::NONE, 32, 0);
    bench.run(3_000);
    assert_eq!(bench.state(tenant, READ).0, Binding::Limit(Owner::Slots));
    bench.pool.set_slots(bench.now, tenant, Owner::Slots, None);
    bench.set_depth(rival, Kind::Read, 0);
    bench.run(1_000);
    let rates = moved(&mut bench, 3, tenant);
    assert!(off(rates[0], 50) < 0.03, "not repaid: {rates:?}");
}

#[test]
fn a_limit_in_another_unit_is_seen_to_bind() {
    let mut bench = Bench::new(1, 0.0);
    // 300 requests of 64 KiB are 19.7 MB.
    let tenant = bench.join(qos(), Throughputs { all: mb(50), ..Throughputs::NONE }, 0, 8);
    bench.pool.set_limit(bench.now, tenant, Owner::Operator, Rates { iops: 300, bytes_per_s: 0 });
    bench.run(5_000);
    let (binding, reason) = bench.state(tenant, Scope::All);
    assert_eq!(binding, Binding::Limit(Owner::Operator));
    assert!(matches!(reason, Reason::OtherLimit { .. }), "{reason:?}");
}

#[test]
fn guarantees_of_different_scopes_come_change_and_go() {
    let mut bench = Bench::new(1, 0.0);
    let tenant = bench.join(qos(), Throughputs { read: mb(50), write: mb(20), ..Throughputs::NONE }, 8, 8);
    bench.run(2_000);
    let mut expect = |targets: Throughputs, expected: [u64; 2]| {
        bench.guarantee(tenant, targets);
        bench.run(2_000);
        let rates = moved(&mut bench, 5, tenant);
        assert!(off(rates[0], expected[0]) < 0.02 && off(rates[1], expected[1]) < 0.02, "{targets:?}: {rates:?}");
    };
    expect(Throughputs { read: mb(20), write: mb(50), ..Throughputs::NONE }, [20, 50]);
    expect(Throughputs { write: mb(50), ..Throughputs::NONE }, [150, 50]);
    expect(Throughputs { all: mb(60), ..Throughputs::NONE }, [30, 30]);
    expect(Throughputs { all: mb(60), write: mb(20), ..Throughputs::NONE }, [40, 20]);
    expect(Throughputs::NONE, [100, 100]);
    expect(Throughputs { read: mb(50), ..Throughputs::NONE }, [50, 150]);
    // First come, first served knows none, and afterwards they hold again.
    bench.pool.reconfigure(bench.now, Config { scheduler: Scheduler::None, ..CONFIG });
    let rates = moved(&mut bench, 3, tenant);
    assert!(rates[0] > 90.0, "{rates:?}");
    bench.pool.reconfigure(bench.now, CONFIG);
    bench.run(2_000);
    let rates = moved(&mut bench, 3, tenant);
    assert!(off(rates[0], 50) < 0.02, "{rates:?}");
}

#[derive(Clone, Debug)]
enum Event {
    Submit(usize, Kind),
    Complete(usize),
    Guarantee(usize, Throughputs),
    Qos(usize, Qos),
    Scheduler(Scheduler),
    Slots(usize, Option<u64>),
    Leave(usize),
    Wait(u64),
    /// From now on dispatch gives this tenant's requests back instead of running them, as after a disconnect.
    Disown(usize),
}

fn an_event() -> impl Strategy<Value = Event> {
    let rate = || {
        prop::option::of(prop::sample::select(vec![
            Rate::BytesPerS(1_000_000),
            Rate::BytesPerS(50_000_000),
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
            .prop_map(|(tenant, all, read, write)| Event::Guarantee(tenant, Throughputs { all, read, write })),
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

    /// Under any events each request leaves the pool exactly once and in the end; mClock keeps a tenant's requests of one kind
    /// in order.
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
                    pool.submit(now, tenants[tenant], Work::new(kind, bytes), next).expect("is there");
                    waiting.insert(next, (tenants[tenant], kind));
                    next += 1;
                }
                Event::Complete(place) if !inside.is_empty() => {
                    let ticket = inside.remove(place % inside.len());
                    pool.complete(now, ticket, Outcome::Done);
                }
                Event::Complete(_) => {}
                Event::Guarantee(tenant, targets) => pool.set_guarantees(now, tenants[tenant], &targets),
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
                    Err(request) => (request.expect("nothing is put off"), None),
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
