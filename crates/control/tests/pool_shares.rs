//! Shares of the admission budget: which requests pass although the budget is used up, and which do not.

use std::collections::VecDeque;

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::mclock::{CostModel, Pull, Qos, Queue, Wish};
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket};
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const BASE: u64 = 4_000;
const SMALL: Work = Work::new(Kind::Read, 4_096);

fn config(budget_bytes: u64) -> Config {
    Config {
        scheduler: Scheduler::Mclock,
        admission: Admission::Fixed { budget_bytes },
        base_cost_bytes: BASE as u32,
        cost: CostModel { base_bytes: BASE as u32, write_percent: 100 },
        limit: Rates::UNSET,
        limit_burst: Duration::ZERO,
        target: None,
        slots: None,
    }
}

fn weight(weight: u32) -> Qos {
    Qos { weight, ..Qos::default() }
}

fn at(us: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(us)
}

fn cost(work: &Work) -> u64 {
    BASE + u64::from(work.bytes)
}

/// Dispatches all requests that may go at `now`; returns the tenant's number and the ticket of each.
fn drain(pool: &mut Pool<usize>, now: Instant) -> Vec<(usize, Ticket)> {
    let mut out = Vec::new();
    while let Next::Run(tenant, ticket) = pool.dispatch(now) {
        out.push((tenant, ticket));
    }
    out
}

fn count(run: &[(usize, Ticket)], tenant: usize) -> usize {
    run.iter().filter(|(of, _)| *of == tenant).count()
}

/// A light tenant that is far ahead of a slow one by served bytes still gets its share of the budget in flight, and no more.
#[test]
fn a_tenant_passes_beside_a_full_budget_up_to_its_share() {
    let mut pool = Pool::new(config(64_000), Instant::ZERO, 1);
    let bulk = pool.join(at(0), weight(1));
    let light = pool.join(at(0), weight(1));
    // The light one alone, until it is ahead by as much as it may be.
    for _ in 0..1_000 {
        pool.submit(at(0), light, SMALL, 1).expect("live");
        let run = drain(&mut pool, at(0));
        run.into_iter().for_each(|(_, ticket)| pool.complete(at(0), ticket, Outcome::Done));
    }
    (0..50).for_each(|_| pool.submit(at(0), bulk, SMALL, 0).expect("live"));
    assert_eq!(count(&drain(&mut pool, at(0)), 0), 7, "7 x 8,096 of 64,000");
    (0..50).for_each(|_| pool.submit(at(0), light, SMALL, 1).expect("live"));
    let run = drain(&mut pool, at(0));
    assert_eq!((count(&run, 0), count(&run, 1)), (0, 3), "3 x 8,096 of half of it");
}

/// The share of a tenant that its limit throttles is checked again when the limit lets a request pass, and when it is removed.
#[test]
fn a_tenant_passes_beside_the_budget_as_soon_as_its_limit_lets_it() {
    for lifted in [false, true] {
        let mut pool = Pool::new(config(64_000), Instant::ZERO, 1);
        let bulk = pool.join(at(0), weight(1));
        let limited = Qos { limit: Rates { iops: 10, bytes_per_s: 0 }, ..weight(1) };
        let light = pool.join(at(0), limited);
        // Its limit is used up.
        (0..50).for_each(|_| pool.submit(at(0), light, SMALL, 1).expect("live"));
        for (_, ticket) in drain(&mut pool, at(0)) {
            pool.complete(at(0), ticket, Outcome::Done);
        }
        (0..50).for_each(|_| pool.submit(at(1), bulk, SMALL, 0).expect("live"));
        let run = drain(&mut pool, at(1));
        assert_eq!((count(&run, 0), count(&run, 1)), (7, 0), "the limit throttles the light one");
        assert_eq!(drain(&mut pool, at(2)).len(), 0);
        let due = if lifted {
            pool.set_qos(at(3), light, weight(1));
            at(3)
        } else {
            at(100_001)
        };
        assert_eq!(count(&drain(&mut pool, due), 1), if lifted { 3 } else { 1 }, "limit lifted: {lifted}");
    }
}

/// With many tenants each share is smaller than a request. A small request passes beside the budget nevertheless, unless it is
/// the turn of a tenant with a greater weight; a request that is no smaller than the others waits for its turn.
#[test]
fn a_tenant_in_a_crowd_has_a_small_request_in_flight() {
    for (weight_of_crowd, bytes, hung, passes) in
        [(1, 16_384, 0, 1), (1, 16_384, 100, 1), (2, 16_384, 0, 0), (1, 65_536, 0, 0), (1, 65_536, 100, 0)]
    {
        let work = Work::new(Kind::Read, bytes);
        let mut pool = Pool::new(config(200_000), Instant::ZERO, 1);
        let (light, lost) = (pool.join(at(0), weight(1)), pool.join(at(0), weight(1)));
        // Requests that were given up take nothing of the budget, and do not count in the mean size.
        let mut given_up: Vec<(usize, Ticket)> = Vec::new();
        for _ in 0..hung {
            pool.submit(at(0), lost, SMALL, 2).expect("live");
            given_up.extend(drain(&mut pool, at(0)));
            given_up.iter_mut().for_each(|(_, ticket)| pool.give_up(at(0), ticket));
        }
        // It is ahead of everybody by bytes.
        for _ in 0..100 {
            pool.submit(at(0), light, work, 1).expect("live");
            let run = drain(&mut pool, at(0));
            run.into_iter().for_each(|(_, ticket)| pool.complete(at(0), ticket, Outcome::Done));
        }
        let crowd: Vec<TenantId> = (0..50).map(|_| pool.join(at(0), weight(weight_of_crowd))).collect();
        for &tenant in &crowd {
            (0..8).for_each(|_| pool.submit(at(0), tenant, Work::new(Kind::Read, 65_536), 0).expect("live"));
        }
        assert_eq!(count(&drain(&mut pool, at(0)), 0), 2, "as many as the budget holds");
        (0..2).for_each(|_| pool.submit(at(0), light, work, 1).expect("live"));
        let run = drain(&mut pool, at(0));
        assert_eq!((count(&run, 0), count(&run, 1)), (0, passes), "{bytes} beside weight {weight_of_crowd}, {hung}");
    }
}

/// The pool is called only at the instants that it names. A reservation falls due while the room for a large request is awaited,
/// and goes before that request no later than a moment (4 ms) afterwards.
#[test]
fn a_reservation_that_falls_due_is_woken_for_while_a_large_request_waits_for_room() {
    let mut pool = Pool::new(config(64_000), at(0), 1);
    let reservation = Rates { iops: 100, bytes_per_s: 0 };
    let (bulk, large) = (pool.join(at(0), weight(1)), pool.join(at(0), weight(1)));
    let reserved = pool.join(at(0), Qos { reservation, ..weight(1) });
    (0..50).for_each(|_| pool.submit(at(0), bulk, SMALL, 0).expect("live"));
    let mut of_bulk = VecDeque::from(drain(&mut pool, at(0)));
    pool.submit(at(0), large, Work::new(Kind::Read, 56_000), 1).expect("live");
    (0..4).for_each(|_| pool.submit(at(0), reserved, SMALL, 2).expect("live"));
    // The first one is due, the second has room in its tenant's share; the third falls due after 10 ms.
    let of_reserved = drain(&mut pool, at(0));
    assert_eq!((of_bulk.len(), count(&of_reserved, 2), of_reserved.len()), (7, 2, 2));
    // Until others have overtaken the large request for long enough.
    loop {
        let (_, ticket) = of_bulk.pop_front().expect("two of them have room");
        pool.complete(at(0), ticket, Outcome::Done);
        let run = drain(&mut pool, at(0));
        assert_eq!(run.len(), count(&run, 0));
        if run.is_empty() && of_bulk.len() == 1 {
            break;
        }
        of_bulk.extend(run);
    }
    let mut now = at(0);
    let ticket = loop {
        match pool.dispatch(now) {
            Next::Run(2, ticket) => break ticket,
            Next::Wait(until) if until > now && until < at(1_000_000) => now = until,
            next => panic!("{next:?} at {now:?}"),
        }
    };
    assert!(ticket.is_reserved() && (at(10_000)..=at(14_000)).contains(&now), "{now:?}");
}

/// Requests of each tenant (weight, kind, number kept outstanding) served in `seconds`, on a device that serves reads in one
/// queue and writes in another, one at a time in each, in `read_us` and `write_us` µs.
fn closed(budget: u64, tenants: &[(u32, Kind, usize)], read_us: u64, write_us: u64, seconds: u64) -> Vec<u64> {
    let qos = [0, 1].map(|tenant| weight(tenants.get(tenant).map_or(1, |&(weight, ..)| weight)));
    closed_with(budget, tenants, qos, read_us, write_us, seconds)
}

fn closed_with(
    budget: u64,
    tenants: &[(u32, Kind, usize)],
    qos: [Qos; 2],
    read_us: u64,
    write_us: u64,
    seconds: u64,
) -> Vec<u64> {
    let mut pool = Pool::new(config(budget), Instant::ZERO, 1);
    let ids: Vec<TenantId> = (0..tenants.len()).map(|tenant| pool.join(at(0), qos[tenant])).collect();
    let work = |tenant: usize| Work::new(tenants[tenant].1, 4_096);
    for (place, &(_, _, depth)) in tenants.iter().enumerate() {
        (0..depth).for_each(|_| pool.submit(at(0), ids[place], work(place), place).expect("live"));
    }
    let mut queues: [VecDeque<(usize, Ticket)>; 2] = Default::default();
    let mut done = vec![0; tenants.len()];
    let (mut due, mut now) = ([u64::MAX; 2], 0);
    let took = [read_us, write_us];
    while now < seconds * 1_000_000 {
        for (tenant, ticket) in drain(&mut pool, at(now)) {
            queues[usize::from(tenants[tenant].1 == Kind::Write)].push_back((tenant, ticket));
        }
        for kind in 0..2 {
            if due[kind] == u64::MAX && !queues[kind].is_empty() {
                due[kind] = now + took[kind];
            }
        }
        let kind = usize::from(due[1] < due[0]);
        now = due[kind];
        due[kind] = u64::MAX;
        let (tenant, ticket) = queues[kind].pop_front().expect("one is served");
        pool.complete(at(now), ticket, Outcome::Done);
        done[tenant] += 1;
        pool.submit(at(now), ids[tenant], work(tenant), tenant).expect("live");
    }
    done
}

#[test]
fn weights_divide_a_device_whatever_its_budget() {
    for budget in [8_096, 20_000, 64_000, 512_000] {
        let done = closed(budget, &[(1, Kind::Read, 256), (3, Kind::Read, 256)], 100, 100, 20);
        let ratio = done[1] as f64 / done[0] as f64;
        assert!((2.6..3.6).contains(&ratio), "{ratio} with a budget of {budget}");
    }
}

/// In a device in which reads and writes do not wait for each other, a slow writer takes the reader no throughput.
#[test]
fn a_slow_writer_does_not_slow_down_a_fast_reader() {
    let both = [(1, Kind::Read, 64), (1, Kind::Write, 64)];
    let done = closed(256_000, &both, 100, 10_000, 10);
    let alone = closed(256_000, &both[..1], 100, 10_000, 10);
    assert!(done[0] * 20 > alone[0] * 19, "{done:?} beside {alone:?} alone");
}

/// The device serves 10,000 requests per second. Half of that, the tenant's share, is less than its reservation of 7,000.
#[test]
fn shares_take_nothing_from_a_reservation() {
    let reservation = Rates { iops: 7_000, bytes_per_s: 0 };
    let tenants = [(1, Kind::Read, 64), (1, Kind::Read, 64)];
    let done = closed_with(64_000, &tenants, [Qos::default(), Qos { reservation, ..Qos::default() }], 100, 100, 10);
    assert!(done[1] >= 69_000, "{done:?}");
}

fn queue(qos: [Qos; 2]) -> (Queue<usize>, [evenkeel_control::mclock::ClientId; 2]) {
    let mut queue = Queue::new(CostModel { base_bytes: 0, write_percent: 100 });
    let ids = qos.map(|qos| queue.join(Instant::ZERO, qos));
    (queue, ids)
}

/// However much a client was served ahead of its turn, it does not wait long for its next turn by weight.
#[test]
fn what_passes_beside_is_no_lasting_debt() {
    let (mut queue, [bulk, light]) = queue([Qos::default(), Qos::default()]);
    for _ in 0..100_000 {
        assert_eq!(queue.push(at(0), light, SMALL, 1), Ok(()));
        let pulled = queue.pull_beside(at(0), light, |_, _| true, |_| true);
        assert!(matches!(pulled, Ok(Pull::Ready { payload: 1, .. })));
    }
    assert_eq!(queue.push(at(0), light, SMALL, 1), Ok(()));
    for served in 0.. {
        assert_eq!(queue.push(at(0), bulk, SMALL, 0), Ok(()));
        let Pull::Ready { payload, .. } = queue.pull(at(0), |_, _| true) else { panic!("both wait") };
        if payload == 1 {
            // It is behind by no more than what a reservation may be ahead by, 1 MiB, and the last request.
            assert!((200..=258).contains(&served), "after {served} requests of the other");
            break;
        }
    }
}

#[test]
fn no_client_passes_a_limit_a_block_or_a_normal_client() {
    let limit = Rates { iops: 1, bytes_per_s: 0 };
    let (mut queue, [limited, background]) =
        queue([Qos { limit, ..Qos::default() }, Qos { background: true, ..Qos::default() }]);
    let beside = |queue: &mut Queue<usize>, id| queue.pull_beside(at(0), id, |_, _| true, |_| true);
    (0..4).for_each(|n| queue.push(at(0), limited, SMALL, n).expect("live"));
    queue.push(at(0), background, SMALL, 9).expect("live");
    assert!(matches!(beside(&mut queue, background), Ok(Pull::Idle)), "behind a normal one");
    assert!(matches!(queue.pull_beside(at(0), limited, |_, _| false, |_| true), Ok(Pull::Refused(_))));
    let put_off = queue.pull_beside(at(0), limited, |_, _| true, |_| Wish::Later);
    assert!(matches!(put_off, Err(None)), "the first is put off");
    let unwanted = queue.pull_beside(at(0), limited, |_, _| true, |_| Wish::Never);
    assert!(matches!(unwanted, Err(Some((_, 1)))));
    assert!(matches!(beside(&mut queue, limited), Ok(Pull::Ready { payload: 2, .. })), "the limit lets one pass");
    assert!(matches!(beside(&mut queue, limited), Ok(Pull::Idle)), "and no second one");
    let (mut queue, [blocked, left]) = self::queue([Qos::default(), Qos::default()]);
    for id in [blocked, left] {
        queue.push(at(0), id, SMALL, 1).expect("live");
    }
    queue.block(at(0), blocked);
    queue.leave(left);
    for id in [blocked, left] {
        assert!(matches!(beside(&mut queue, id), Ok(Pull::Idle)));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Submit(usize, u32),
    Complete(usize),
    Exempt(usize),
    Weight(usize, u32),
    Budget(u64),
    Leave(usize),
    Switch,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..5usize, prop_oneof![0..10_000u32, 0..300_000u32]).prop_map(|(t, b)| Step::Submit(t, b)),
        8 => (0..64usize).prop_map(Step::Complete),
        1 => (0..64usize).prop_map(Step::Exempt),
        1 => (0..5usize, 0..20u32).prop_map(|(t, w)| Step::Weight(t, w)),
        1 => (1..500_000u64).prop_map(Step::Budget),
        1 => (0..5usize).prop_map(Step::Leave),
        1 => Just(Step::Switch),
    ]
}

/// A tenant's figures in the test's own account, to which the rule of shares is applied.
struct Seen {
    id: TenantId,
    weight: u64,
    queued: VecDeque<u64>,
    in_flight: usize,
    cost: u64,
}

impl Seen {
    fn new(pool: &mut Pool<usize>) -> Self {
        Self { id: pool.join(at(0), weight(1)), weight: 1, queued: VecDeque::new(), in_flight: 0, cost: 0 }
    }
}

fn share(seen: &[Seen], budget: u64, of: usize) -> u64 {
    let sharing = |one: &&Seen| one.in_flight > 0 || !one.queued.is_empty();
    let weights: u64 = seen.iter().filter(sharing).map(|one| one.weight).sum();
    budget * seen[of].weight / weights.max(1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every dispatched request passes by the rule of shares, and no tenant whose share has room waits after it has submitted a
    /// request or one of its requests has completed.
    #[test]
    fn the_rule_holds_whatever_happens(steps in proptest::collection::vec(step(), 1..400)) {
        let (mut budget, mut inside) = (100_000, 0);
        let mut settings = config(budget);
        let mut pool = Pool::new(settings, Instant::ZERO, 1);
        let mut seen: Vec<Seen> = (0..5).map(|_| Seen::new(&mut pool)).collect();
        let mut running: Vec<(usize, TenantId, u64, Ticket)> = Vec::new();
        for step in steps {
            let mut asks = None;
            match step {
                Step::Submit(t, bytes) => {
                    let work = Work::new(Kind::Read, bytes);
                    pool.submit(at(0), seen[t].id, work, t).expect("live");
                    seen[t].queued.push_back(cost(&work));
                    asks = Some(t);
                }
                Step::Complete(n) if !running.is_empty() => {
                    let n = n % running.len();
                    let (t, id, cost, ticket) = running.swap_remove(n);
                    pool.complete(at(0), ticket, Outcome::Done);
                    inside -= cost;
                    if seen[t].id == id {
                        seen[t].in_flight -= 1;
                        seen[t].cost -= cost;
                        asks = Some(t);
                    }
                }
                Step::Exempt(n) if !running.is_empty() => {
                    let n = n % running.len();
                    let (t, id, cost, ticket) = &mut running[n];
                    pool.exempt(ticket);
                    inside -= *cost;
                    if seen[*t].id == *id {
                        seen[*t].cost -= *cost;
                    }
                    *cost = 0;
                }
                Step::Complete(_) | Step::Exempt(_) => {}
                Step::Weight(t, to) => {
                    pool.set_qos(at(0), seen[t].id, weight(to));
                    seen[t].weight = u64::from(to.max(1));
                }
                Step::Budget(to) => {
                    (budget, settings.admission) = (to, Admission::Fixed { budget_bytes: to });
                    pool.reconfigure(at(0), settings);
                }
                Step::Leave(t) => {
                    pool.leave(seen[t].id);
                    seen[t] = Seen::new(&mut pool);
                }
                Step::Switch => {
                    settings.scheduler = match settings.scheduler {
                        Scheduler::Mclock => Scheduler::None,
                        Scheduler::None => Scheduler::Mclock,
                    };
                    pool.reconfigure(at(0), settings);
                }
            }
            while let Next::Run(t, ticket) = pool.dispatch(at(0)) {
                let cost = seen[t].queued.front().copied().expect("it was queued");
                let fits = inside + cost <= budget || cost > budget && inside <= budget;
                let counted = running.iter().filter(|(.., cost, _)| *cost > 0).count() as u64;
                let shares = settings.scheduler == Scheduler::Mclock
                    && (seen[t].cost + cost <= share(&seen, budget, t) || seen[t].cost == 0 && cost * counted < inside);
                prop_assert!(fits || shares, "{cost} beside {inside} of {budget}");
                seen[t].queued.pop_front();
                inside += cost;
                seen[t].in_flight += 1;
                seen[t].cost += cost;
                running.push((t, seen[t].id, cost, ticket));
            }
            prop_assert_eq!(pool.admission().in_flight_bytes(), inside);
            if let Some(t) = asks.filter(|_| settings.scheduler == Scheduler::Mclock)
                && let Some(next) = seen[t].queued.front()
            {
                // One that has nothing in flight and is larger than its share may have priority.
                let large = |of: usize| seen[of].queued.front().is_some_and(|&cost| cost > share(&seen, budget, of));
                let one_waits = (0..5).any(|of| of != t && seen[of].cost == 0 && large(of));
                prop_assert!(one_waits || seen[t].cost + next > share(&seen, budget, t), "{t} has room");
            }
        }
    }
}

/// Cost in bytes served of each tenant (request size in bytes, number of requests kept outstanding, QoS policy), after
/// `requests` completions, on a device that serves one request after the other at 100 bytes of cost per µs.
fn served(budget_bytes: u64, tenants: &[(u32, usize, Qos)], requests: usize) -> Vec<u64> {
    let mut pool = Pool::new(config(budget_bytes), Instant::ZERO, 1);
    let ids: Vec<_> = tenants.iter().map(|(.., qos)| pool.join(Instant::ZERO, *qos)).collect();
    let mut served = vec![0; tenants.len()];
    let (mut now, mut inside) = (Instant::ZERO, VecDeque::new());
    for (place, &(bytes, depth, _)) in tenants.iter().enumerate() {
        (0..depth).for_each(|_| pool.submit(now, ids[place], Work::new(Kind::Read, bytes), place).expect("there"));
    }
    for _ in 0..requests {
        while let Next::Run(place, ticket) = pool.dispatch(now) {
            inside.push_back((place, ticket));
        }
        let Some((place, ticket)) = inside.pop_front() else { panic!("nothing is in flight") };
        let (bytes, ..) = tenants[place];
        let cost = BASE + u64::from(bytes);
        now += Duration::from_micros(cost / 100);
        pool.complete(now, ticket, Outcome::Done);
        pool.submit(now, ids[place], Work::new(Kind::Read, bytes), place).expect("there");
        served[place] += cost;
    }
    served
}

#[test]
fn small_requests_that_pass_starve_no_large_one() {
    const KIB: u32 = 1 << 10;
    let small = (4 * KIB, 16, weight(1));
    let eight: Vec<_> = (0..8).map(|_| small).chain([(256 * KIB, 8, weight(1))]).collect();
    for (budget, tenants) in [
        (128, vec![small, small, (64 * KIB, 8, weight(1))]),
        (1024, eight),
        (128, vec![(4 * KIB, 16, weight(4)), (64 * KIB, 8, weight(1))]),
        (128, vec![(4 * KIB, 64, weight(1)), (64 * KIB, 8, weight(4))]),
    ] {
        let served = served(budget << 10, &tenants, 100_000);
        let (all, weights) = (served.iter().sum::<u64>(), tenants.iter().map(|(.., qos)| qos.weight).sum::<u32>());
        for ((bytes, _, qos), served) in tenants.iter().zip(&served) {
            let part = *served as f64 / all as f64 * f64::from(weights) / f64::from(qos.weight);
            assert!(part > 0.6, "{bytes} of {budget} KiB: {part:.2} of its share");
        }
    }
}

#[test]
fn a_reservation_that_cannot_be_met_starves_no_large_request_behind_a_budget() {
    let reservation = Rates { iops: 1_000_000, ..Rates::UNSET };
    let tenants = [(4_096, 64, Qos { reservation, ..Qos::default() }), (262_144, 8, Qos::default())];
    let served = served(262_144, &tenants, 200_000);
    // A 64th of what the reservation takes.
    assert!(served[1] * 80 > served[0], "{served:?}");
}

#[test]
fn a_reservation_passes_a_used_up_budget_however_much_it_has_had_alone() {
    let reservation = Rates { iops: 1_000_000, ..Rates::UNSET };
    let mut pool = Pool::new(config(16_192), Instant::ZERO, 1);
    let reserved = pool.join(at(0), Qos { reservation, ..Qos::default() });
    let other = pool.join(at(0), weight(1));
    for _ in 0..1_000 {
        pool.submit(at(0), reserved, SMALL, 0).expect("live");
        drain(&mut pool, at(0)).into_iter().for_each(|(_, ticket)| pool.complete(at(0), ticket, Outcome::Done));
    }
    (0..2).for_each(|_| pool.submit(at(0), other, SMALL, 1).expect("live"));
    let of_other = drain(&mut pool, at(0));
    assert_eq!(count(&of_other, 1), 2, "the budget is used up");
    pool.submit(at(0), reserved, SMALL, 0).expect("live");
    assert_eq!(count(&drain(&mut pool, at(0)), 0), 1, "nothing else waits");
}

/// Requests of each tenant (QoS policy, request size in bytes, number kept queued) completed in each of twenty seconds. The
/// device takes 1 ms for each of any number of requests; requests of the first tenant hang in it for ever.
fn beside_a_hang(budget_bytes: u64, tenants: &[(Qos, u32, usize)]) -> Vec<Vec<u64>> {
    let mut pool = Pool::new(config(budget_bytes), at(0), 1);
    let ids: Vec<TenantId> = tenants.iter().map(|(qos, ..)| pool.join(at(0), *qos)).collect();
    let (mut done, mut inside) = (vec![vec![0; 20]; ids.len()], Vec::<(u64, usize, Ticket)>::new());
    for ms in 1..20_000_u64 {
        let now = at(ms * 1_000);
        let (over, left) = std::mem::take(&mut inside).into_iter().partition(|(due, ..)| *due <= ms);
        inside = left;
        let over: Vec<(u64, usize, Ticket)> = over;
        for (_, place, ticket) in over {
            done[place][(ms / 1_000) as usize] += 1;
            pool.complete(now, ticket, Outcome::Done);
        }
        for (place, (_, bytes, depth)) in tenants.iter().enumerate() {
            while pool.tenant(ids[place]).unwrap().queued < *depth {
                pool.submit(now, ids[place], Work::new(Kind::Read, *bytes), place).unwrap();
            }
        }
        while let Next::Run(place, ticket) = pool.dispatch(now) {
            inside.push((if place == 0 { u64::MAX } else { ms + 1 }, place, ticket));
        }
    }
    done
}

#[test]
fn a_reservation_and_shares_go_on_beside_requests_that_hang() {
    let reserved = Qos { reservation: Rates { iops: 1_000, bytes_per_s: 0 }, ..weight(1) };
    let done = beside_a_hang(256 << 10, &[(weight(1), 4 << 10, 64), (reserved, 4 << 10, 64)]);
    let good = done[1].iter().filter(|&&done| done >= 900).count();
    assert!(good >= 17, "what a reservation of 1,000 a second gets: {:?}", done[1]);

    // 200 of 256 KiB are lost, and a request of 128 KiB waits for room that does not come.
    let tenants = [(weight(1), 200 << 10, 1), (weight(1), 128 << 10, 1), (weight(1), 4 << 10, 8)];
    let done = beside_a_hang(256 << 10, &tenants);
    let good = done[2].iter().filter(|&&done| done >= 500).count();
    assert!(good >= 17, "what small requests get: {:?}, the large one: {:?}", done[2], done[1]);
}

#[test]
fn a_tenant_with_a_reservation_that_is_kept_starves_no_large_request() {
    for iops in [50, 1_000, 2_000] {
        let reservation = Rates { iops, ..Rates::UNSET };
        let small = (4_096, 16, weight(1));
        let reserved = (4_096, 16, Qos { reservation, ..weight(1) });
        let tenants: Vec<_> = (0..8).map(|_| small).chain([reserved, (262_144, 8, weight(1))]).collect();
        let served = served(1 << 20, &tenants, 100_000);
        let part = served[9] as f64 / served.iter().sum::<u64>() as f64 * 10.0;
        assert!(part > 0.5, "{part:.2} of its share beside a reservation of {iops}");
    }
}

/// The longest time, in ms, without a completion of a tenant with a reservation of 1,000 requests per second, which it always
/// asks for. Flushes fill the budget, take `sync_ms` ms and end together; another tenant's request of `bytes` bytes waits.
fn longest_silence_beside_syncs(sync_ms: u64, bytes: u32) -> u64 {
    const FLUSH: Work = Work::new(Kind::Flush, 0);
    let mut pool = Pool::new(config(128 << 10), at(0), 1);
    let reservation = Rates { iops: 1_000, bytes_per_s: 0 };
    let reserved = pool.join(at(0), Qos { reservation, ..weight(1) });
    let other = pool.join(at(0), weight(1));
    let (mut inside, mut last, mut longest) = (Vec::<(u64, usize, Ticket)>::new(), 0, 0);
    let (mut large, mut flushes) = (0, 0);
    for ms in 1..20_000_u64 {
        let now = at(ms * 1_000);
        for (due, kind, ticket) in std::mem::take(&mut inside) {
            if due > ms {
                inside.push((due, kind, ticket));
                continue;
            }
            pool.complete(now, ticket, Outcome::Done);
            match kind {
                0 => (longest, last) = (longest.max(ms - last), ms),
                1 => large -= 1,
                _ => flushes -= 1,
            }
        }
        while pool.tenant(reserved).unwrap().queued < 4 {
            pool.submit(now, reserved, SMALL, 0).unwrap();
        }
        if large == 0 {
            pool.submit(now, other, Work::new(Kind::Write, bytes), 1).unwrap();
            large = 1;
        }
        for _ in flushes..64 {
            pool.submit(now, other, FLUSH, 2).unwrap();
        }
        flushes = 64;
        while let Next::Run(kind, ticket) = pool.dispatch(now) {
            inside.push((if kind == 2 { (ms / sync_ms + 1) * sync_ms } else { ms + 1 }, kind, ticket));
        }
    }
    longest
}

#[test]
fn what_goes_before_reservations_stops_them_for_little_of_the_time() {
    for (sync_ms, bytes, most) in [(20, 4 << 10, 3), (200, 4 << 10, 3), (20, 64 << 10, 25), (200, 64 << 10, 25)] {
        let longest = longest_silence_beside_syncs(sync_ms, bytes);
        assert!(longest <= most, "{longest} ms beside {bytes} bytes and syncs of {sync_ms} ms");
    }
}

/// The device stands still for 300 ms every 5 s. A large request that waits for room meets this now and then; the pool must soon
/// make room for large requests again.
#[test]
fn a_large_request_gets_on_after_a_device_has_stood_still() {
    let mut pool = Pool::new(config(128 << 10), at(0), 1);
    let ids = [pool.join(at(0), weight(1)), pool.join(at(0), weight(1)), pool.join(at(0), weight(1))];
    let (mut inside, mut last, mut longest) = (VecDeque::<(usize, Ticket)>::new(), 0, 0);
    for ms in 1..120_000_u64 {
        let now = at(ms * 1_000);
        for (tenant, bytes) in [(0, 4_096), (1, 4_096), (2, 100 << 10)] {
            while pool.tenant(ids[tenant]).unwrap().queued < 16 {
                pool.submit(now, ids[tenant], Work::new(Kind::Read, bytes), tenant).unwrap();
            }
        }
        while let Next::Run(tenant, ticket) = pool.dispatch(now) {
            inside.push_back((tenant, ticket));
        }
        if ms % 5_000 < 300 {
            continue;
        }
        // The device moves 8 MB a second.
        let mut left: i64 = 8_000;
        while left > 0
            && let Some((tenant, ticket)) = inside.pop_front()
        {
            left -= i64::from(ticket.work().bytes) + BASE as i64;
            if tenant == 2 {
                (longest, last) = (longest.max(ms - last), ms);
            }
            pool.complete(now, ticket, Outcome::Done);
        }
    }
    assert!(longest <= 2_300, "{longest} ms without a large request");
}

/// A device takes 1 ms for a request and 10 us for each 1,000 bytes. Beside each request 1 MiB of a hole is read, in 5 us.
#[test]
fn reads_that_take_the_device_no_time_do_not_change_the_measured_base_cost() {
    let base_cost = |is_noted: bool| {
        let mut pool = Pool::new(config(4 << 20), at(0), 1);
        let tenant = pool.join(at(0), weight(1));
        let (mut now, mut inside, mut sent) = (at(0), VecDeque::<(usize, Ticket)>::new(), 0_usize);
        for _ in 0..40_000 {
            while pool.tenant(tenant).unwrap().queued < 8 {
                let bytes = if sent % 2 == 0 { 4_096 << (sent / 2 % 7) } else { 1 << 20 };
                pool.submit(now, tenant, Work::new(Kind::Read, bytes), sent % 2).unwrap();
                sent += 1;
            }
            inside.extend(drain(&mut pool, now));
            let (is_hole, mut ticket) = inside.pop_front().expect("the budget has room");
            if is_hole == 1 {
                now += Duration::from_micros(5);
                if is_noted {
                    ticket.note_blank();
                }
            } else {
                now += Duration::from_micros(1_000 + u64::from(ticket.work().bytes) / 100);
            }
            pool.complete(now, ticket, Outcome::Done);
        }
        pool.base_cost()
    };
    let (noted, counted) = (base_cost(true), base_cost(false));
    assert!((80_000..120_000).contains(&noted), "{noted} of 100,000 bytes");
    assert!(!(80_000..120_000).contains(&counted), "{counted}: without the note it would be another one");
}

/// A device takes 1 ms for a request and 10 us for each 1,000 bytes.
#[test]
fn a_base_cost_that_was_measured_is_forgotten_where_there_is_no_budget_any_more() {
    let mut pool = Pool::new(config(1 << 20), at(0), 1);
    let tenant = pool.join(at(0), weight(1));
    let (mut now, mut inside, mut sent) = (at(0), VecDeque::<(usize, Ticket)>::new(), 0);
    let mut step = |pool: &mut Pool<usize>, pause: Duration| {
        while pool.tenant(tenant).unwrap().queued < 8 {
            pool.submit(now, tenant, Work::new(Kind::Read, 4_096 << (sent % 7)), 0).unwrap();
            sent += 1;
        }
        inside.extend(drain(pool, now));
        let (_, ticket) = inside.pop_front().expect("the budget has room");
        now += pause + Duration::from_micros(1_000 + u64::from(ticket.work().bytes) / 100);
        pool.complete(now, ticket, Outcome::Done);
        (now, pool.base_cost())
    };
    for _ in 0..5_000 {
        step(&mut pool, Duration::ZERO);
    }
    let (now, found) = step(&mut pool, Duration::ZERO);
    assert!((80_000..120_000).contains(&found), "{found} of 100,000 bytes");
    pool.reconfigure(now, Config { admission: Admission::None, ..config(1 << 20) });
    assert_eq!(step(&mut pool, Duration::from_secs(59 * 60)).1, found, "before an hour is over");
    assert_eq!(step(&mut pool, Duration::from_secs(2 * 60)).1, BASE);
}
