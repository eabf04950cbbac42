//! Tests of verdicts: a case for every rule, and properties of all verdicts.

use evenkeel_policy::decision::DecisionRecord;
use evenkeel_policy::state::{
    AdmissionState, GuaranteeState, LatencyTargetState, LimitState, PartsState, PoolState, QosState, TenantSlotsState,
    TenantState, ThrottledState,
};
use evenkeel_policy::verdict::{
    Cause, Counts, Kind, Lately, ThrottledBy, Verdict, at_guarantee, at_part, by_seconds, delayed, delays, guarantee,
    judge, latency, latency_target, of_latency, shortened,
};
use proptest::prelude::*;

/// The counters of a tenant after `requests` requests of 4 KiB with this latency.
fn work(requests: u64, queue_ms: f64, device_ms: f64) -> Counts {
    let sum = |ms: f64| requests as f64 * ms / 1e3;
    Counts {
        requests,
        bytes: requests * 4096,
        latencies: requests,
        latency_s: sum(queue_ms + device_ms),
        queue_s: sum(queue_ms),
        device_s: sum(device_ms),
        ..Counts::default()
    }
}

/// A pool with an elastic budget and `queued` waiting requests.
fn pool(queued: u64) -> PoolState {
    let admission = AdmissionState {
        kind: "elastic".into(),
        budget_bytes: Some(256 << 10),
        in_flight_bytes: 256 << 10,
        reason: "the load is too light to learn from".into(),
        ..AdmissionState::default()
    };
    PoolState { name: "main".into(), admission, queued_requests: queued, ..PoolState::default() }
}

fn iops(limit: u64) -> LimitState {
    LimitState { iops: Some(limit), iops_owner: Some("operator".into()), ..LimitState::default() }
}

/// The recent figures of a pool, and those of its only tenant, after a second of work.
fn judged(mut pool: PoolState, tenant: TenantState, work: Counts) -> (Lately, Lately) {
    pool.tenants = vec![tenant];
    judge(&mut pool, &[Some(work)], 1.0);
    (pool.lately.unwrap(), pool.tenants.remove(0).lately.unwrap())
}

/// The throttle in recent figures; `None` if there is no throttle.
fn cause(lately: &Lately) -> Option<(Cause, &str, &str)> {
    lately.throttled_by.as_ref().map(|by| (by.cause, by.by.as_str(), by.how.as_str()))
}

fn verdicts(lately: &Lately) -> Vec<(&str, Kind, Verdict)> {
    lately.targets.iter().map(|target| (target.what.as_str(), target.kind, target.verdict)).collect()
}

#[test]
fn rates_and_latencies_are_those_of_the_window() {
    let mut pool = pool(0);
    pool.tenants = vec![TenantState::default(), TenantState::default(), TenantState::default()];
    judge(&mut pool, &[Some(work(100, 1.0, 3.0)), Some(work(300, 5.0, 7.0)), None], 2.0);
    let all = pool.lately.unwrap();
    assert_eq!((all.window_s, all.iops, all.bytes_per_s), (2.0, 200.0, 200.0 * 4096.0));
    let means = [all.latency_ms, all.queue_latency_ms, all.device_latency_ms].map(|ms| (ms.unwrap() * 1e3).round());
    assert_eq!(means, [10_000.0, 4_000.0, 6_000.0]);
    let one = pool.tenants[0].lately.as_ref().unwrap();
    assert_eq!((one.iops, one.because.as_str()), (50.0, "nothing throttles it"));
    assert_eq!(pool.tenants[2].lately, None, "a tenant that is newer than the window");
    let (_, idle) = judged(self::pool(0), TenantState::default(), Counts::default());
    assert_eq!((idle.iops, idle.latency_ms, idle.queue_latency_ms), (0.0, None, None));
}

#[test]
fn counts_grow_and_a_count_that_began_anew_has_not() {
    let (was, is) = (work(100, 1.0, 1.0), work(150, 1.0, 1.0));
    let grown = Counts { queued: 3, ..is }.since(&Counts { queued: 5, ..was });
    assert_eq!((grown.requests, grown.bytes, grown.queued), (50, 50 * 4096, 3));
    let back = was.since(&is);
    assert_eq!((back.requests, back.queue_s), (0, 0.0));
}

#[test]
fn a_latency_target_is_met_missed_unachievable_or_idle() {
    for (measured, reason, expected) in [
        (Some(10.0), "", Verdict::Met),
        (Some(20.0), "under_target", Verdict::Met),
        (Some(20.1), "", Verdict::Missed),
        (Some(30.0), "reads_over_target", Verdict::Missed),
        (Some(30.0), "no_noisy", Verdict::Missed),
        (Some(30.0), "unachievable", Verdict::Unachievable),
        (Some(10.0), "unachievable", Verdict::Met),
        (None, "reads_over_target", Verdict::Idle),
        (Some(30.0), "not_enough_data", Verdict::Idle),
        (Some(30.0), "idle", Verdict::Idle),
        (Some(30.0), "signal_lost", Verdict::Idle),
    ] {
        assert_eq!(latency(20.0, measured, reason), expected, "{measured:?} {reason}");
        let decision = DecisionRecord { reason: reason.into(), because: "so".into(), ..DecisionRecord::default() };
        let target = LatencyTargetState {
            target_ms: 20.0,
            percentile: "p99".into(),
            measured_ms: measured,
            decision: Some(decision),
            ..LatencyTargetState::default()
        };
        let pool = || PoolState { latency_target: Some(target.clone()), ..pool(0) };
        let (busy, _) = judged(pool(), TenantState::default(), work(100, 0.0, 1.0));
        assert_eq!(verdicts(&busy), [("p99 < 20 ms", Kind::Latency, expected)]);
        assert_eq!(busy.because, "so; admission: the load is too light to learn from");
        let (still, _) = judged(pool(), TenantState::default(), Counts::default());
        assert_eq!(still.targets[0].verdict, Verdict::Idle, "nothing completes");
    }
}

#[test]
fn a_pools_target_is_unachievable_while_the_throttle_as_large_as_allowed_is_tested() {
    for (measured, expected) in [(30.0, Verdict::Unachievable), (10.0, Verdict::Met)] {
        let decision = DecisionRecord { reason: "testing_effect".into(), ..DecisionRecord::default() };
        let target = LatencyTargetState {
            target_ms: 20.0,
            measured_ms: Some(measured),
            decision: Some(decision),
            ..LatencyTargetState::default()
        };
        assert_eq!(latency_target(&target), expected, "{measured} ms");
    }
    assert_eq!(latency(20.0, Some(30.0), "testing_effect"), Verdict::Missed);
}

#[test]
fn a_tenants_latency_target_is_judged_by_its_seconds() {
    for (windows, violated, reason, expected) in [
        (1, 0, "need_met", Verdict::Met),
        (1, 1, "need_met", Verdict::Missed),
        (2, 1, "unachievable", Verdict::Unachievable),
        (1, 0, "unachievable", Verdict::Met),
        (0, 0, "idle", Verdict::Idle),
    ] {
        let slots = TenantSlotsState { target_ms: Some(30.0), reason: reason.into(), ..TenantSlotsState::default() };
        let tenant = TenantState { slots: Some(slots), ..TenantState::default() };
        let (_, lately) = judged(pool(0), tenant, Counts { windows, violated, ..Counts::default() });
        assert_eq!(verdicts(&lately), [("mean < 30 ms", Kind::Latency, expected)], "{reason}");
    }
}

#[test]
fn where_no_second_ended_the_measured_figure_is_judged() {
    for (seconds, violated, measured, reason, expected) in [
        (1, 0, Some(40.0), "need_met", Verdict::Met),
        (1, 0, None, "need_met", Verdict::Met),
        (1, 1, Some(10.0), "need_met", Verdict::Missed),
        (1, 1, Some(10.0), "unachievable", Verdict::Unachievable),
        (0, 0, Some(30.0), "need_met", Verdict::Met),
        (0, 0, Some(40.0), "need_met", Verdict::Missed),
        (0, 0, Some(40.0), "unachievable", Verdict::Unachievable),
        (0, 0, Some(40.0), "idle", Verdict::Idle),
        (0, 0, None, "need_met", Verdict::Idle),
    ] {
        let (target_ms, percentile, reason) = (Some(30.0), "p99".to_owned(), reason.to_owned());
        let slots = TenantSlotsState { target_ms, percentile, reason, ..TenantSlotsState::default() };
        let target = by_seconds(&slots, seconds, violated, measured).expect("a target");
        assert_eq!((target.what.as_str(), target.verdict), ("p99 < 30 ms", expected), "{seconds} {measured:?}");
    }
    assert_eq!(by_seconds(&TenantSlotsState::default(), 1, 0, None), None);
}

#[test]
fn a_guarantee_is_met_missed_unachievable_or_idle() {
    for (measured, reason, expected) in [
        (Some(980.0), "compensating", Verdict::Met),
        (Some(980.0), "unachievable", Verdict::Met),
        (Some(970.0), "compensating", Verdict::Missed),
        (Some(970.0), "other_limit", Verdict::Missed),
        (Some(970.0), "unachievable", Verdict::Unachievable),
        (Some(970.0), "at_ceiling", Verdict::Unachievable),
        (Some(970.0), "no_solution", Verdict::Unachievable),
        (None, "compensating", Verdict::Idle),
        (Some(10.0), "idle", Verdict::Idle),
        (Some(10.0), "app_limited", Verdict::Idle),
        (Some(10.0), "not_enough_data", Verdict::Idle),
        (Some(10.0), "counters_reset", Verdict::Idle),
        (Some(10.0), "signal_lost", Verdict::Idle),
    ] {
        assert_eq!(guarantee(1000.0, measured, reason), expected, "{measured:?} {reason}");
    }
    let of = |of: &str, unit: &str, guaranteed_per_s| GuaranteeState {
        of: of.into(),
        unit: unit.into(),
        guaranteed_per_s,
        because: "it got all".into(),
        ..GuaranteeState::default()
    };
    let guarantees = vec![of("read", "bytes", 50_000_000), of("write", "requests", 400), of("all", "requests", 1)];
    let tenant = TenantState { guarantees, queued_requests: 1, ..TenantState::default() };
    let (_, lately) = judged(pool(1), tenant, Counts::default());
    let texts: Vec<&str> = lately.targets.iter().map(|target| target.what.as_str()).collect();
    assert_eq!(texts, ["50.0 MB/s read", "400 IOPS write", "1.0 IOPS"]);
    assert_eq!(lately.because, "it got all");
}

#[test]
fn throttles_outside_the_server_name_their_owner_and_their_amount() {
    let shown = |by: Option<ThrottledBy>| by.map(|by| (by.by, by.how));
    let of = |by: &str, how: &str| Some((by.to_owned(), how.to_owned()));
    assert_eq!(shown(delayed(34.5, "why")), of("latency", "34.5 ms delay"));
    assert_eq!(shown(delays(2, "client", 3.0, "why")), of("latency", "2 clients, mean 3.00 ms"));
    assert_eq!(shown(shortened(6, "why")), of("slots", "queue of 6"));
    assert_eq!((delayed(0.0, "why"), delays(0, "client", 3.0, "why"), shortened(0, "why")), (None, None, None));
    assert_eq!(at_part(2e7, "why").by, "operator");
    let guarantee = |measured| GuaranteeState {
        unit: "bytes".into(),
        limit_per_s: 42_000_000,
        measured_per_s: Some(measured),
        binding: "throughput".into(),
        ..GuaranteeState::default()
    };
    assert_eq!(shown(at_guarantee(&guarantee(41e6))), of("throughput", "42.0 MB/s"));
    assert_eq!(at_guarantee(&guarantee(20e6)), None);
    let (percentile, measured_ms) = ("p99".into(), Some(15.0));
    let target = LatencyTargetState { target_ms: 10.0, percentile, measured_ms, ..LatencyTargetState::default() };
    let judged = of_latency(&target, "unachievable");
    assert_eq!((judged.what.as_str(), judged.verdict), ("p99 < 10 ms", Verdict::Unachievable));
}

#[test]
fn who_asks_for_less_than_its_reservation_is_idle() {
    let reserved = |queued_requests| TenantState {
        qos: QosState { reservation_iops: Some(100), ..QosState::default() },
        queued_requests,
        ..TenantState::default()
    };
    let queued = |requests, queue_ms, queued| Counts { queued, ..work(requests, queue_ms, 1.0) };
    let of_limited_volume = |limited_s| Counts { limited_s, ..queued(97, 80.0, 8) };
    for (tenant, work, expected, why) in [
        (reserved(1), queued(98, 20.0, 1), Verdict::Met, "98 %"),
        (reserved(0), queued(98, 0.0, 0), Verdict::Met, "98 % and nothing queued"),
        (reserved(8), queued(97, 80.0, 8), Verdict::Missed, "97 %, and eight queued all the time"),
        (reserved(0), queued(97, 80.0, 0), Verdict::Idle, "nothing is queued at the end"),
        (reserved(1), queued(50, 0.2, 0), Verdict::Idle, "one just arrived"),
        (reserved(1), queued(50, 0.2, 1), Verdict::Idle, "one is queued at either end by chance"),
        (reserved(1), queued(40, 20.0, 0), Verdict::Missed, "one at a time, and it waits most of the time"),
        (reserved(8), of_limited_volume(7.5), Verdict::Idle, "nearly all of the wait was for the limit of a volume"),
        (reserved(8), of_limited_volume(7.0), Verdict::Missed, "that limit, and a backlog"),
        (reserved(3), queued(0, 0.0, 3), Verdict::Missed, "nothing is dispatched"),
        (reserved(3), queued(0, 0.0, 0), Verdict::Idle, "all have just arrived"),
    ] {
        let (_, lately) = judged(pool(0), tenant, work);
        assert_eq!(verdicts(&lately), [("100 IOPS", Kind::Reservation, expected)], "{why}");
    }
    let qos = QosState { reservation_bytes_per_s: Some(1_000_000), ..QosState::default() };
    let tenant = TenantState { qos, queued_requests: 2, ..TenantState::default() };
    let (_, lately) = judged(pool(2), tenant, queued(100, 20.0, 2));
    assert_eq!(verdicts(&lately), [("1.00 MB/s", Kind::Reservation, Verdict::Missed)]);
}

#[test]
fn what_is_queued_at_a_pools_limit_waits_for_the_limit_and_not_for_admission() {
    let waiting = |queued_requests| TenantState { queued_requests, ..TenantState::default() };
    let limited = |queued| PoolState { limit: iops(100), ..pool(queued) };
    let (pool_at, tenant) = judged(limited(7), waiting(7), work(95, 5.0, 1.0));
    assert_eq!(cause(&pool_at), Some((Cause::PoolLimit, "operator", "100 IOPS")));
    assert_eq!(pool_at.because, "pool main is at its limit of 100 IOPS, set by the operator");
    assert_eq!(cause(&tenant), Some((Cause::PoolLimit, "operator", "100 IOPS")));
    assert_eq!(tenant.because, "7 requests are queued: pool main is at its limit of 100 IOPS, set by the operator");
    // A tenant with nothing queued is not throttled by it.
    let (pool_at, tenant) = judged(limited(0), waiting(0), work(95, 5.0, 1.0));
    assert_eq!((cause(&pool_at).is_some(), cause(&tenant)), (true, None));
    // Below the limit it is the budget.
    let (below, tenant) = judged(limited(1), waiting(1), work(94, 5.0, 1.0));
    assert_eq!(cause(&below), Some((Cause::Admission, "elastic", "256 KiB")));
    assert_eq!(cause(&tenant), None);
    let expected =
        "1 request is queued: the admission budget of 256 KiB is used up: the load is too light to learn from";
    assert_eq!(tenant.because, expected);
    // Without a budget nothing binds.
    let unbounded = PoolState { admission: AdmissionState::default(), ..pool(1) };
    let (open, tenant) = judged(unbounded, waiting(1), work(94, 5.0, 1.0));
    let expected = "1 request is queued: no limit and no budget is reached";
    assert_eq!((cause(&open), tenant.because.as_str()), (None, expected));
    let (idle, _) = judged(pool(0), waiting(0), work(94, 5.0, 1.0));
    assert_eq!(cause(&idle), None, "nothing is queued");
}

#[test]
fn what_is_queued_below_a_limit_waits_for_the_limit_if_the_budget_has_room() {
    let waiting = |limit| TenantState { limit, queued_requests: 7, ..TenantState::default() };
    let with = |in_flight_bytes| {
        let admission = AdmissionState { in_flight_bytes, ..pool(7).admission };
        PoolState { admission, limit: iops(100), ..pool(7) }
    };
    let slow = || work(50, 100.0, 1.0);
    let (pool_of, tenant) = judged(with(0), waiting(LimitState::default()), slow());
    assert_eq!(cause(&pool_of), Some((Cause::PoolLimit, "operator", "100 IOPS")));
    let expected = "the limit of 100 IOPS, set by the operator, spreads the requests of pool main over time";
    assert_eq!(pool_of.because, expected);
    assert_eq!(tenant.because, format!("7 requests are queued: {}", pool_of.because));
    // A budget that is used up binds, and so it does for the requests of a moment.
    let (pool_of, _) = judged(with(256 << 10), waiting(LimitState::default()), slow());
    assert_eq!(cause(&pool_of), Some((Cause::Admission, "elastic", "256 KiB")));
    let (pool_of, _) = judged(with(0), waiting(LimitState::default()), work(50, 1.0, 1.0));
    assert_eq!(cause(&pool_of), Some((Cause::Admission, "elastic", "256 KiB")));
    // The tenant's own limit, where the pool has none.
    let unlimited = PoolState { limit: LimitState::default(), ..with(0) };
    let (pool_of, tenant) = judged(unlimited, waiting(iops(200)), slow());
    assert_eq!((cause(&pool_of), cause(&tenant)), (None, Some((Cause::Limit, "operator", "200 IOPS"))));
    // Where both have one, the lower of the two.
    let (_, tenant) = judged(with(0), waiting(iops(200)), slow());
    assert_eq!(cause(&tenant), Some((Cause::PoolLimit, "operator", "100 IOPS")));
}

#[test]
fn a_limit_that_is_a_part_is_named_with_its_total() {
    let qos = QosState { limit_iops: Some(4000), ..QosState::default() };
    let parts = PartsState { limit_iops: Some(1000), ..PartsState::default() };
    for (requests, parts, total) in [
        (1000, Some(parts.clone()), true),
        // Its requests are spaced.
        (900, Some(parts), true),
        (1000, None, false),
    ] {
        let tenant =
            TenantState { limit: iops(1000), qos: qos.clone(), parts, queued_requests: 7, ..TenantState::default() };
        let admission = AdmissionState { in_flight_bytes: 0, ..pool(7).admission };
        let (_, tenant) = judged(PoolState { admission, ..pool(7) }, tenant, work(requests, 7.0, 1.0));
        let because = "this is this host's part of the limit of 4000 IOPS over all hosts of the cluster";
        assert_eq!(tenant.because.contains(because), total, "{}", tenant.because);
        assert_eq!(cause(&tenant), Some((Cause::Limit, "operator", "1000 IOPS")));
    }
}

#[test]
fn a_backlog_at_a_tenants_own_limit_does_not_wait_for_the_pools() {
    let tenant = |limit| TenantState { limit, queued_requests: 7, ..TenantState::default() };
    let wide = || {
        let admission = AdmissionState { in_flight_bytes: 0, ..pool(7).admission };
        PoolState { admission, limit: iops(100_000), ..pool(7) }
    };
    // Below the tenant's limit, and at it.
    for (requests, because) in [
        (900, "the limit of 1000 IOPS, set by the operator, spreads the requests of the tenant over time"),
        (1000, "it is at its limit of 1000 IOPS, set by the operator"),
    ] {
        let (pool_of, tenant) = judged(wide(), tenant(iops(1000)), work(requests, 7.0, 1.0));
        assert_eq!((cause(&pool_of), cause(&tenant)), (None, Some((Cause::Limit, "operator", "1000 IOPS"))));
        assert_eq!(tenant.because, because);
    }
    // Another tenant waits for the pool only with a backlog of its own.
    for (queue_ms, expected) in
        [(7.0, (Cause::PoolLimit, "operator", "100.0k IOPS")), (0.1, (Cause::Admission, "elastic", "256 KiB"))]
    {
        let tenants = vec![tenant(iops(1000)), tenant(LimitState::default())];
        let mut pool = PoolState { tenants, ..wide() };
        judge(&mut pool, &[Some(work(900, 7.0, 1.0)), Some(work(900, queue_ms, 1.0))], 1.0);
        assert_eq!(cause(pool.tenants[0].lately.as_ref().unwrap()), Some((Cause::Limit, "operator", "1000 IOPS")));
        assert_eq!(cause(pool.lately.as_ref().unwrap()), Some(expected));
    }
}

#[test]
fn what_is_queued_for_a_tenants_own_limit_does_not_wait_for_admission() {
    let limited = || TenantState { limit: iops(50), queued_requests: 9, ..TenantState::default() };
    let (pool_of, tenant) = judged(pool(9), limited(), work(50, 5.0, 1.0));
    assert_eq!((cause(&pool_of), cause(&tenant)), (None, Some((Cause::Limit, "operator", "50 IOPS"))));
    assert_eq!(tenant.because, "it is at its limit of 50 IOPS, set by the operator");
    // The pool's number, which is from another instant, says nothing.
    let (pool_of, _) = judged(pool(10), limited(), work(50, 5.0, 1.0));
    assert_eq!(cause(&pool_of), None);
    // A request of another tenant, which has no limit.
    let other = TenantState { queued_requests: 1, ..TenantState::default() };
    let mut both = PoolState { tenants: vec![limited(), other], ..pool(10) };
    judge(&mut both, &[Some(work(50, 5.0, 1.0)), Some(work(50, 5.0, 1.0))], 1.0);
    assert_eq!(cause(&both.lately.unwrap()), Some((Cause::Admission, "elastic", "256 KiB")));
}

#[test]
fn the_strictest_throttle_of_a_tenant_is_named() {
    let throttled = ThrottledState { slots: 4, slots_owner: "latency".into(), delay_ms: 12.5, because: "91 %".into() };
    let slots = |used| TenantSlotsState {
        granted: Some(4.0),
        used,
        because: "by weight".into(),
        ..TenantSlotsState::default()
    };
    let with = |throttled: Option<ThrottledState>, limit: LimitState, used: f64| TenantState {
        throttled,
        limit,
        slots: Some(slots(used)),
        ..TenantState::default()
    };
    let bytes = LimitState {
        iops: Some(1000),
        bytes_per_s: Some(409_600),
        bytes_per_s_owner: Some("throughput".into()),
        ..LimitState::default()
    };
    for (tenant, expected, because) in [
        (
            with(Some(throttled), iops(100), 4.0),
            Some((Cause::LatencyTarget, "latency", "4 slots, 12.5 ms delay")),
            "throttled for the pool's latency target: 91 %",
        ),
        (
            with(None, iops(100), 4.0),
            Some((Cause::Limit, "operator", "100 IOPS")),
            "it is at its limit of 100 IOPS, set by the operator",
        ),
        (
            with(None, bytes, 4.0),
            Some((Cause::Limit, "throughput", "0.41 MB/s")),
            "it is at its limit of 0.41 MB/s, set by the throughput guarantee",
        ),
        (with(None, iops(1000), 3.8), Some((Cause::Slots, "slots", "4 slots")), "by weight"),
        (with(None, iops(1000), 3.76), None, "by weight"),
    ] {
        let (_, lately) = judged(pool(0), tenant, work(100, 1.0, 1.0));
        assert_eq!((cause(&lately), lately.because.as_str()), (expected, because));
    }
    // A limit that keeps a guarantee has the guarantee's reason.
    let guarantee = GuaranteeState { binding: "operator".into(), because: "it got all".into(), ..Default::default() };
    let tenant = TenantState { guarantees: vec![guarantee], limit: iops(100), ..TenantState::default() };
    assert_eq!(judged(pool(0), tenant, work(100, 1.0, 1.0)).1.because, "it got all");
}

fn any_pool() -> impl Strategy<Value = (PoolState, Vec<Option<Counts>>)> {
    let limit = || prop::option::of(1..2_000u64).prop_map(|iops| LimitState { iops, ..LimitState::default() });
    let tenant = (limit(), prop::option::of(1..2_000u64), 0..5u64, 0..2_000u64, 0..50u64, 0..5u64);
    let tenant = tenant.prop_map(|(limit, reservation_iops, queued_requests, requests, queue_ms, queued)| {
        let qos = QosState { reservation_iops, ..QosState::default() };
        let tenant = TenantState { limit, qos, queued_requests, ..TenantState::default() };
        (tenant, Some(Counts { queued: queued.min(queued_requests), ..work(requests, queue_ms as f64, 1.0) }))
    });
    (limit(), prop::bool::ANY, prop::collection::vec(tenant, 0..5)).prop_map(|(limit, budget, tenants)| {
        let (tenants, work): (Vec<_>, Vec<_>) = tenants.into_iter().unzip();
        let mut pool = pool(tenants.iter().map(|tenant: &TenantState| tenant.queued_requests).sum());
        pool.admission.budget_bytes = pool.admission.budget_bytes.filter(|_| budget);
        (PoolState { limit, tenants, ..pool }, work)
    })
}

#[test]
fn an_idle_tenant_takes_few_bytes_of_an_answer() {
    let lately = Lately { window_s: 1.0, ..Lately::default() };
    assert_eq!(serde_json::to_string(&lately).unwrap(), r#"{"window_s":1.0}"#);
    let tenant = TenantState { name: "db".into(), lately: Some(lately), ..TenantState::default() };
    let text = serde_json::to_string(&tenant).unwrap();
    assert!(text.len() < 1_000, "{} bytes: {text}", text.len());
    assert_eq!(serde_json::from_str::<TenantState>(&text).unwrap(), tenant);
}

proptest! {
    #[test]
    fn rules_hold_for_every_pool((mut pool, work) in any_pool(), window_s in 1.0..2.0f64) {
        judge(&mut pool, &work, window_s);
        let lately = pool.lately.as_ref().unwrap();
        let at_limit = pool.limit.iops.is_some_and(|limit| lately.iops >= 0.95 * limit as f64);
        let of_pool = lately.throttled_by.as_ref().map(|by| by.cause);
        // A pool at its limit never names admission, and neither do its tenants.
        prop_assert!(!at_limit || of_pool == Some(Cause::PoolLimit));
        // Below its limit it names the limit only if no budget is used up.
        let may_wait = at_limit || pool.admission.budget_bytes.is_none();
        prop_assert!(of_pool != Some(Cause::PoolLimit) || may_wait);
        prop_assert!(!(at_limit && lately.because.contains("admission")), "{}", lately.because);
        prop_assert!(of_pool != Some(Cause::Admission) || pool.queued_requests > 0);
        for tenant in &pool.tenants {
            let lately = tenant.lately.as_ref().unwrap();
            let by = lately.throttled_by.as_ref().map(|by| by.cause);
            prop_assert!(by != Some(Cause::Admission));
            prop_assert!(by != Some(Cause::PoolLimit) || may_wait && tenant.queued_requests > 0);
            prop_assert!(!(at_limit && lately.because.contains("learn")), "{}", lately.because);
            prop_assert!(!lately.because.is_empty());
            // Requests that wait have a reason; without any, no reservation is missed.
            prop_assert!(tenant.queued_requests == 0 || lately.because != "nothing throttles it");
            let missed = lately.targets.iter().any(|target| target.verdict.is_missed());
            prop_assert!(!missed || tenant.queued_requests > 0);
            // What is reserved and delivered is met, whatever is queued.
            let reserved = tenant.qos.reservation_iops;
            let delivered = reserved.is_some_and(|reserved| lately.iops >= reserved as f64);
            prop_assert!(!delivered || lately.targets[0].verdict == Verdict::Met);
        }
    }
}
