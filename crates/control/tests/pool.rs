//! The pool as a whole: no request is lost or served twice, every bound holds, and all settings change while it runs.

use std::collections::{HashMap, HashSet, VecDeque};

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::limits::Owner;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::guarantee::Throughputs;
use evenkeel_control::pool::target;
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket};
use evenkeel_control::response::{self, Throttle};
use evenkeel_control::throughput::Rate;
use evenkeel_control::units::{Kind, Part, Rates, Work};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const READ: Work = Work::new(Kind::Read, 4096);

fn config() -> Config {
    Config {
        scheduler: Scheduler::Mclock,
        admission: Admission::None,
        base_cost_bytes: 4000,
        cost: CostModel::default(),
        limit: Rates::UNSET,
        limit_burst: Duration::ZERO,
        target: None,
        slots: None,
    }
}

fn pool(config: Config) -> Pool<u64> {
    Pool::new(config, Instant::ZERO, 1)
}

fn at(us: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(us)
}

fn drain(pool: &mut Pool<u64>, now: Instant) -> Vec<(u64, Ticket)> {
    let mut out = Vec::new();
    while let Next::Run(request, ticket) = pool.dispatch(now) {
        out.push((request, ticket));
    }
    out
}

#[test]
fn latency_is_counted_in_two_parts() {
    let mut pool = pool(Config { admission: Admission::Fixed { budget_bytes: 8096 }, ..config() });
    let tenant = pool.join(at(0), Qos::default());
    pool.submit(at(0), tenant, READ, 1).unwrap();
    pool.submit(at(0), tenant, READ, 2).unwrap();
    let Next::Run(1, first) = pool.dispatch(at(0)) else { panic!("the first fits") };
    assert!(matches!(pool.dispatch(at(10)), Next::Wait(_)), "the second does not");
    pool.complete(at(100), first, Outcome::Done);
    let Next::Run(2, second) = pool.dispatch(at(100)) else { panic!("now it does") };
    pool.complete(at(400), second, Outcome::Done);
    let view = pool.tenant(tenant).unwrap();
    assert_eq!((view.stats.reads, view.stats.read_bytes), (2, 8192));
    assert_eq!(view.stats.queue_latency.max(), Duration::from_micros(100));
    assert_eq!(view.stats.device_latency.max(), Duration::from_micros(300));
    assert_eq!(view.stats.latency.max(), Duration::from_micros(400));
    assert!(matches!(pool.dispatch(at(400)), Next::Idle));
}

#[test]
fn a_wait_for_the_pools_limit_ends_later_whatever_a_guarantee_without_a_scheduler_says() {
    let limit = Rates { iops: 10, bytes_per_s: 0 };
    let mut pool = pool(Config { scheduler: Scheduler::None, limit, ..config() });
    let tenant = pool.join(at(0), Qos::default());
    let guaranteed = Throughputs { all: Some(Rate::RequestsPerS(5)), read: None, write: None };
    pool.set_guarantees(at(0), tenant, &guaranteed);
    for request in 0..4 {
        pool.submit(at(0), tenant, READ, request).unwrap();
    }
    for now in [0, 50_000, 150_000, 260_000] {
        let _ = drain(&mut pool, at(now));
        let Next::Wait(until) = pool.dispatch(at(now)) else { panic!("the rest waits for the limit") };
        assert!(until > at(now), "{until:?} at {now} us");
    }
}

#[test]
fn a_request_that_its_limit_admits_does_not_wait_for_one_that_does_not_fit() {
    const LARGE: Work = Work::new(Kind::Read, 65536);
    let mut pool = pool(Config { admission: Admission::Fixed { budget_bytes: 100_000 }, ..config() });
    let bulk = pool.join(at(0), Qos::default());
    let limit = Rates { iops: 100, bytes_per_s: 0 };
    let light = pool.join(at(0), Qos { weight: 1000, limit, burst: Duration::ZERO, ..Qos::default() });
    for request in 0..3 {
        pool.submit(at(0), bulk, LARGE, request).unwrap();
        pool.submit(at(0), light, READ, 100 + request).unwrap();
    }
    let mut inside: Vec<u64> = drain(&mut pool, at(0)).into_iter().map(|(request, _)| request).collect();
    inside.sort_unstable();
    assert_eq!(inside, [0, 100], "another large request does not fit, the next light one has to wait for its limit");
    let Next::Wait(until) = pool.dispatch(at(0)) else { panic!("nothing fits") };
    assert_eq!(until, at(10_000), "when the limit lets go");
    let Next::Run(101, _) = pool.dispatch(until) else { panic!("the light one fits") };
}

#[test]
fn the_smallest_of_all_owners_limits_binds_and_its_owner_is_named() {
    let mut pool = pool(config());
    let tenant = pool.join(at(0), Qos { limit: Rates { iops: 1000, bytes_per_s: 0 }, ..Qos::default() });
    pool.set_limit(at(0), tenant, Owner::Latency, Rates { iops: 100, bytes_per_s: 0 });
    assert_eq!(pool.tenant(tenant).unwrap().limit_iops.binding(), Some((Owner::Latency, 100)));
    (0..200).for_each(|n| pool.submit(at(0), tenant, READ, n).unwrap());
    let count = |pool: &mut Pool<u64>, from_us: u64, us: u64| {
        let mut count = 0;
        for t in 0..us / 100 {
            for (_, ticket) in drain(pool, at(from_us + t * 100)) {
                pool.complete(at(from_us + t * 100), ticket, Outcome::Done);
                count += 1;
            }
        }
        count
    };
    let slow = count(&mut pool, 0, 100_000);
    assert!((10..=11).contains(&slow), "{slow} in 0.1 s at 100 IOPS");
    pool.set_limit(at(100_000), tenant, Owner::Latency, Rates::UNSET);
    assert_eq!(pool.tenant(tenant).unwrap().limit_iops.binding(), Some((Owner::Operator, 1000)));
    let fast = count(&mut pool, 100_000, 100_000);
    assert!((95..=101).contains(&fast), "{fast} in 0.1 s at 1000 IOPS");
}

#[test]
fn slots_bound_what_a_tenant_has_in_flight_and_delay_no_other() {
    let mut pool = pool(config());
    let [few, many] = [(); 2].map(|()| pool.join(at(0), Qos::default()));
    pool.set_slots(at(0), few, Owner::Slots, Some(2));
    for n in 0..10 {
        pool.submit(at(0), few, READ, n).unwrap();
        pool.submit(at(0), many, READ, 100 + n).unwrap();
    }
    let mut inside = drain(&mut pool, at(0));
    assert_eq!(inside.iter().filter(|(n, _)| *n < 100).count(), 2);
    assert_eq!(inside.iter().filter(|(n, _)| *n >= 100).count(), 10);
    let position = inside.iter().position(|(n, _)| *n < 100).unwrap();
    let (_, ticket) = inside.remove(position);
    pool.complete(at(1), ticket, Outcome::Done);
    assert_eq!(drain(&mut pool, at(1)).len(), 1, "a slot freed is a slot filled");
    pool.set_slots(at(2), few, Owner::Slots, None);
    assert_eq!(drain(&mut pool, at(2)).len(), 7, "and without a bound the rest goes");
}

#[test]
fn the_pool_limit_counts_every_tenant_and_makes_up_for_late_calls() {
    let limit = Rates { iops: 1000, bytes_per_s: 0 };
    let mut pool = pool(Config { limit, limit_burst: Duration::from_millis(10), ..config() });
    let tenants = [(); 2].map(|()| pool.join(at(0), Qos::default()));
    let mut served = [0, 0];
    // Asked every 3 ms only, although a request is due every millisecond.
    for step in 0..1000 {
        for (tenant, id) in [(0, tenants[0]), (1, tenants[1])] {
            while pool.tenant(id).unwrap().queued < 4 {
                pool.submit(at(step * 3000), id, READ, tenant).unwrap();
            }
        }
        for (tenant, ticket) in drain(&mut pool, at(step * 3000)) {
            served[tenant as usize] += 1;
            pool.complete(at(step * 3000), ticket, Outcome::Done);
        }
    }
    let total = served[0] + served[1];
    assert!((2990..=3011).contains(&total), "{total} in 3 s at 1000 IOPS");
    assert!(i32::abs(served[0] - served[1]) <= 2, "{served:?}");
}

/// The settings of `crates/server/tests/neighbour.rs`, at four times the rate. That test asserts that the server applies them.
#[test]
fn a_light_tenant_gets_its_half_of_a_slow_pool() {
    const PERIOD_US: u64 = 5_000;
    let limit = Rates { iops: 200, bytes_per_s: 0 };
    // How late the light tenant is with its next request.
    for late_us in [100, 2_000, PERIOD_US - 100] {
        let mut pool = pool(Config { limit, limit_burst: Duration::from_millis(10), ..config() });
        let [heavy, light] = [(); 2].map(|()| pool.join(at(0), Qos::default()));
        let (mut served, mut light_sends) = ([0, 0], 0);
        for now in (0..60_000_000).step_by(100) {
            while pool.tenant(heavy).unwrap().queued < 32 {
                pool.submit(at(now), heavy, READ, 0).unwrap();
            }
            if now == light_sends {
                pool.submit(at(now), light, READ, 1).unwrap();
            }
            for (tenant, ticket) in drain(&mut pool, at(now)) {
                served[tenant as usize] += 1;
                pool.complete(at(now), ticket, Outcome::Done);
                if tenant == 1 {
                    light_sends = now + late_us;
                }
            }
        }
        let total = served[0] + served[1];
        println!("{late_us} us late: {served:?}");
        assert!((11_990..=12_003).contains(&total), "{late_us} us late: {total} in 60 s at 200 IOPS");
        assert!(served[1] * 1_000 >= 495 * total, "{late_us} us late: {served:?}");
    }
}

#[test]
fn an_abandoned_request_delays_no_other_and_may_still_return() {
    let mut pool = pool(Config { admission: Admission::Fixed { budget_bytes: 8096 }, ..config() });
    let tenant = pool.join(at(0), Qos::default());
    pool.set_slots(at(0), tenant, Owner::Slots, Some(1));
    (0..3).for_each(|n| pool.submit(at(0), tenant, READ, n).unwrap());
    let Next::Run(_, mut lost) = pool.dispatch(at(0)) else { panic!("fits") };
    assert!(matches!(pool.dispatch(at(0)), Next::Wait(_)));
    pool.give_up(at(0), &mut lost);
    pool.give_up(at(0), &mut lost);
    assert_eq!(pool.admission().in_flight_bytes(), 0);
    let Next::Run(_, next) = pool.dispatch(at(1)) else { panic!("its place and its slot are free") };
    assert!(matches!(pool.dispatch(at(1)), Next::Wait(_)));
    assert_eq!(pool.in_flight(), 2);
    pool.complete(at(2), lost, Outcome::Done);
    assert_eq!(pool.admission().in_flight_bytes(), 8096, "only the second counts");
    pool.complete(at(3), next, Outcome::Failed);
    assert_eq!((pool.in_flight(), pool.admission().in_flight_bytes()), (0, 0));
    assert_eq!(pool.tenant(tenant).unwrap().stats.errors, 1);
}

#[test]
fn decisions_of_admission_are_reported_once() {
    let slowfast = Admission::SlowFast(evenkeel_control::admission::SlowFastConfig::default());
    let mut pool = pool(Config { admission: slowfast, ..config() });
    let tenant = pool.join(at(0), Qos::default());
    assert!(pool.take_decision().is_none());
    for ms in 0..60 {
        pool.submit(at(ms * 1000), tenant, READ, ms).unwrap();
        for (_, ticket) in drain(&mut pool, at(ms * 1000)) {
            pool.complete(at(ms * 1000 + 900), ticket, Outcome::Done);
        }
    }
    let decision = pool.take_decision().expect("the first interval of 50 ms is over");
    assert_eq!(decision.budget_bytes, pool.admission().decision().budget_bytes);
    assert!(pool.take_decision().is_none());
}

#[test]
fn a_tenant_that_left_cannot_be_taken_for_its_successor() {
    let mut pool = pool(config());
    let old = pool.join(at(0), Qos::default());
    pool.submit(at(0), old, READ, 1).unwrap();
    pool.submit(at(0), old, READ, 2).unwrap();
    let Next::Run(1, ticket) = pool.dispatch(at(0)) else { panic!("fits") };
    assert_eq!(pool.leave(old), [2]);
    assert_eq!(pool.leave(old), [] as [u64; 0]);
    let new = pool.join(at(1), Qos::default());
    assert_eq!(pool.submit(at(1), old, READ, 3), Err(3));
    pool.complete(at(2), ticket, Outcome::Done);
    assert!(pool.tenant(old).is_none());
    let view = pool.tenant(new).unwrap();
    assert_eq!((view.stats.reads, view.in_flight, view.queued), (0, 0, 0));
    assert_eq!(pool.in_flight(), 0);
}

/// Dispatches all requests that may go at `now`, of which odd numbers are unwanted. Returns the even numbers, which are served,
/// and the odd ones, which are given back.
fn drain_even(pool: &mut Pool<u64>, now: Instant) -> (Vec<u64>, Vec<u64>) {
    let (mut served, mut unwanted) = (Vec::new(), Vec::new());
    loop {
        match pool.dispatch_wanted(now, |request| request % 2 == 0) {
            Ok(Next::Run(request, ticket)) => {
                pool.complete(now, ticket, Outcome::Done);
                served.push(request);
            }
            Ok(_) => return (served, unwanted),
            Err(request) => unwanted.extend(request),
        }
    }
}

#[test]
fn unwanted_requests_use_up_no_guarantee() {
    for scheduler in [Scheduler::Mclock, Scheduler::None] {
        // One request a second by the tenant's limit and by the pool's, and room for one inside.
        let limit = Rates { iops: 1, bytes_per_s: 0 };
        let admission = Admission::Fixed { budget_bytes: 8096 };
        let mut pool = pool(Config { scheduler, limit, admission, ..config() });
        let tenant = pool.join(at(0), Qos { limit, ..Qos::default() });
        for request in [2, 1, 3, 5, 4, 7, 9] {
            pool.submit(at(0), tenant, READ, request).unwrap();
        }
        assert_eq!(drain_even(&mut pool, at(0)), (vec![2], vec![]));
        assert_eq!(drain_even(&mut pool, at(999_999)), (vec![], vec![]), "their turn has not come");
        // A client that came back after a crash is served at its next turn, whatever it had left behind.
        assert_eq!(drain_even(&mut pool, at(1_000_000)), (vec![4], vec![1, 3, 5]));
        assert_eq!(drain_even(&mut pool, at(2_000_000)), (vec![], vec![7, 9]));
        let view = pool.tenant(tenant).unwrap();
        assert_eq!((view.stats.reads, view.queued, view.in_flight, pool.queued()), (2, 0, 0, 0));
        assert!(matches!(pool.dispatch(at(2_000_000)), Next::Idle));
        pool.submit(at(2_000_000), tenant, READ, 6).unwrap();
        assert_eq!(drain_even(&mut pool, at(2_000_000)).0, [6], "the last turn is still there");
    }
}

proptest! {
    /// A queue with unwanted requests serves the others at the same times as a queue that never had them.
    #[test]
    fn unwanted_requests_leave_no_trace(
        tenants in prop::collection::vec((1..20u32, 0..4u64), 1..5),
        requests in prop::collection::vec((0..5usize, 0..50_000u32, any::<bool>()), 1..80),
    ) {
        let run = |with_unwanted: bool| {
            let mut pool = pool(config());
            let ids: Vec<_> = tenants
                .iter()
                .map(|&(weight, k)| {
                    let limit = Rates { iops: k * 100, bytes_per_s: 0 };
                    pool.join(at(0), Qos { weight, limit, ..Qos::default() })
                })
                .collect();
            // Everybody comes and goes with a request that is wanted, so that ties are broken alike.
            let each = (0..ids.len()).map(|tenant| (tenant, 1, true));
            let all = each.clone().chain(requests.iter().copied()).chain(each);
            for (number, (tenant, bytes, wanted)) in (0..).zip(all) {
                if wanted || with_unwanted {
                    let work = Work::new(Kind::Read, bytes);
                    pool.submit(at(0), ids[tenant % ids.len()], work, number * 2 + u64::from(!wanted)).unwrap();
                }
            }
            // 82 requests at 100 IOPS take less than a second.
            let served: Vec<_> = (0..100).map(|n| drain_even(&mut pool, at(n * 10_000)).0).collect();
            (served, pool.queued())
        };
        let (served, left) = run(true);
        prop_assert_eq!(&served, &run(false).0);
        prop_assert_eq!(left, 0);
        prop_assert_eq!(served.iter().flatten().count(), requests.iter().filter(|r| r.2).count() + 2 * tenants.len());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Submit(usize, u32, bool),
    Dispatch,
    Complete(usize, bool),
    Wait(u64),
    Join,
    Leave(usize),
    Slots(usize, Option<u64>),
    Limit(usize, u64),
    Switch(bool),
    Budget(Option<u64>),
    Abandon(usize),
    Target(Option<u64>),
    Throttle(usize, Throttle),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6usize, 0..100_000u32, any::<bool>()).prop_map(|(t, b, read)| Step::Submit(t, b, read)),
        6 => Just(Step::Dispatch),
        6 => (0..32usize, any::<bool>()).prop_map(|(n, ok)| Step::Complete(n, ok)),
        3 => (1..100_000u64).prop_map(Step::Wait),
        1 => Just(Step::Join),
        1 => (0..6usize).prop_map(Step::Leave),
        1 => (0..6usize, proptest::option::of(1..4u64)).prop_map(|(t, s)| Step::Slots(t, s)),
        1 => (0..6usize, 0..10_000u64).prop_map(|(t, l)| Step::Limit(t, l)),
        1 => any::<bool>().prop_map(Step::Switch),
        1 => proptest::option::of(1..1_000_000u64).prop_map(Step::Budget),
        1 => (0..32usize).prop_map(Step::Abandon),
        1 => proptest::option::of(10..50_000u64).prop_map(Step::Target),
        1 => (0..6usize, prop::sample::select(vec![Throttle::Normal, Throttle::Last, Throttle::Never, Throttle::Always]))
            .prop_map(|(t, throttle)| Step::Throttle(t, throttle)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_comes_out_exactly_once_in_its_tenants_order(steps in proptest::collection::vec(step(), 1..300)) {
        let mut settings = config();
        let mut pool = pool(settings);
        let mut now = 0;
        let mut tenants: Vec<TenantId> = vec![pool.join(at(0), Qos::default())];
        let mut waiting: HashMap<TenantId, VecDeque<u64>> = HashMap::new();
        let mut inside: Vec<(u64, Ticket)> = Vec::new();
        let mut finished = HashSet::new();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Submit(t, bytes, read) => {
                    let tenant = tenants[t % tenants.len()];
                    let kind = if read { Kind::Read } else { Kind::Write };
                    prop_assert_eq!(pool.submit(at(now), tenant, Work::new(kind, bytes), next), Ok(()));
                    waiting.entry(tenant).or_default().push_back(next);
                    next += 1;
                }
                Step::Dispatch => {
                    match pool.dispatch(at(now)) {
                        Next::Run(request, ticket) => {
                            let queue = waiting.values_mut().find(|q| q.contains(&request)).expect("it was waiting");
                            prop_assert_eq!(queue.pop_front(), Some(request), "in order");
                            inside.push((request, ticket));
                        }
                        Next::Wait(until) => prop_assert!(until > at(now), "waiting for the past would spin"),
                        Next::Idle => prop_assert_eq!(pool.queued(), 0),
                    }
                }
                Step::Complete(n, ok) if !inside.is_empty() => {
                    let (request, ticket) = inside.swap_remove(n % inside.len());
                    pool.complete(at(now), ticket, if ok { Outcome::Done } else { Outcome::Failed });
                    prop_assert!(finished.insert(request));
                }
                Step::Abandon(n) if !inside.is_empty() => {
                    let n = n % inside.len();
                    pool.exempt(&mut inside[n].1);
                }
                Step::Complete(..) | Step::Abandon(_) => {}
                Step::Wait(us) => now += us,
                Step::Join => tenants.push(pool.join(at(now), Qos::default())),
                Step::Leave(t) if tenants.len() > 1 => {
                    let tenant = tenants.swap_remove(t % tenants.len());
                    let expected: Vec<u64> = waiting.remove(&tenant).unwrap_or_default().into();
                    prop_assert_eq!(pool.leave(tenant), expected);
                }
                Step::Leave(_) => {}
                Step::Slots(t, slots) => pool.set_slots(at(now), tenants[t % tenants.len()], Owner::Slots, slots),
                Step::Limit(t, iops) => {
                    let limit = Rates { iops, bytes_per_s: 0 };
                    pool.set_limit(at(now), tenants[t % tenants.len()], Owner::Throughput, limit);
                }
                Step::Switch(on) => {
                    settings.scheduler = if on { Scheduler::Mclock } else { Scheduler::None };
                    pool.reconfigure(at(now), settings);
                }
                Step::Target(us) => {
                    settings.target = us.map(|us| target::Config {
                        response: response::Config {
                            interval: Duration::from_millis(10),
                            step: Duration::ZERO,
                            ..response::Config::adaptive(Duration::from_micros(us))
                        },
                        statistic: target::Statistic::Percentile(90.0),
                        load: target::Load::All,
                    });
                    pool.reconfigure(at(now), settings);
                }
                Step::Throttle(t, throttle) => pool.set_throttle(tenants[t % tenants.len()], throttle),
                Step::Budget(budget) => {
                    settings.admission =
                        budget.map_or(Admission::None, |budget_bytes| Admission::Fixed { budget_bytes });
                    pool.reconfigure(at(now), settings);
                }
            }
            prop_assert_eq!(pool.queued(), waiting.values().map(VecDeque::len).sum::<usize>());
            prop_assert_eq!(pool.in_flight(), inside.len() as u64);
            for view in tenants.iter().filter_map(|&tenant| pool.tenant(tenant)) {
                let held = view.throttled.map(|hold| hold.slots);
                prop_assert!(held.is_none() || view.slots.binding().is_some_and(|(_, slots)| Some(slots) <= held));
                prop_assert!(held.is_none() || view.throttle != Throttle::Never || settings.target.is_some());
            }
        }
        // With nothing in the way, everything gets through.
        settings.admission = Admission::None;
        settings.target = None;
        pool.reconfigure(at(now), settings);
        for &tenant in &tenants {
            pool.set_slots(at(now), tenant, Owner::Slots, None);
            pool.set_limit(at(now), tenant, Owner::Throughput, Rates::UNSET);
        }
        for (_, ticket) in inside.drain(..) {
            pool.complete(at(now), ticket, Outcome::Done);
        }
        now += 10_000_000;
        let rest = drain(&mut pool, at(now)).len();
        prop_assert_eq!(rest, waiting.values().map(VecDeque::len).sum::<usize>());
        prop_assert_eq!(pool.queued(), 0);
    }
}

/// A request in three slices counts as one request in limits and in statistics; its latency is from the submission of its first
/// slice to the completion of its last.
#[test]
fn a_divided_request_counts_once() {
    let mut pool = pool(config());
    let limit = Rates { iops: 1, bytes_per_s: 0 };
    let tenant = pool.join(at(0), Qos { limit, ..Qos::default() });
    for (n, part) in [Part::First, Part::Middle, Part::Last].into_iter().enumerate() {
        pool.submit(at(0), tenant, Work { part, ..Work::new(Kind::Read, 65_536) }, n as u64).unwrap();
    }
    pool.submit(at(0), tenant, READ, 3).unwrap();
    pool.submit(at(0), tenant, READ, 4).unwrap();
    let second = 1_000_000;
    let mut slices = drain(&mut pool, at(0));
    assert_eq!(slices.len(), 1, "the limit of one request a second is used up");
    slices.extend(drain(&mut pool, at(second)));
    let (_, next) = slices.pop().unwrap();
    assert_eq!(slices.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1, 2], "and slices two and three do not count");
    for (n, mut slice) in slices {
        if n == 2 {
            slice.began_at(at(0));
        }
        pool.complete(at(2 * second), slice, Outcome::Done);
    }
    let stats = pool.tenant(tenant).unwrap().stats;
    assert_eq!((stats.reads, stats.read_bytes), (1, 3 * 65_536));
    assert_eq!((stats.latency.count(), stats.device_latency.count(), stats.queue_latency.count()), (1, 3, 2));
    assert_eq!(stats.latency.max(), Duration::from_secs(2));
    pool.complete(at(2 * second), next, Outcome::Done);
}
