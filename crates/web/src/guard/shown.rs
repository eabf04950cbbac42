//! The state of an agent in the form of a server's, for the dashboard: the pools enforced here with their verdicts, and the
//! clients, groups or volumes on them as tenants, by the names that the history has.

use std::collections::BTreeMap;

use evenkeel_guard::loops::record::{
    self, At, CgroupState, ClientState, GroupState, GroupThrottleState, LocalState, OsdState, PacketsState,
    QueueDepthState, ReadPercentiles, VolumeState,
};
use evenkeel_policy::config::Enforcement;
use evenkeel_policy::decision::{DecisionRecord, Unit};
use evenkeel_policy::figures::{bytes, bytes_per_s, counted, ms, short};
use evenkeel_policy::state::{
    AdmissionState, GuaranteeState, LatencyTargetState, PoolState, SlotsState, State, TenantState, ThrottledState,
};
use evenkeel_policy::verdict::{self, AT_LIMIT, Cause, Lately, Target, ThrottledBy};
use serde::Serialize;

/// Decisions of an answer at most: the newest.
pub(super) const DECISIONS: usize = 200;
/// Clients of a pool in an answer at most: those with the most load. An agent may see a hundred thousand.
const CLIENTS: usize = 1_000;

/// The answer of `/api/v1/pools`.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    /// Facts about the agent for the head of the page.
    facts: Vec<String>,
    /// Enforcement points by the name of their pool.
    points: BTreeMap<String, Vec<Point>>,
    /// Percentiles of the reads of each pool whose reads are timed one by one, by the name of the pool.
    percentiles: BTreeMap<String, ReadPercentiles>,
    /// Decisions, oldest first.
    decisions: Vec<DecisionRecord>,
    /// The rest as of a server; it has no workers and no volumes.
    #[serde(flatten)]
    state: State,
}

/// An enforcement point of a pool.
#[derive(Debug, Serialize)]
struct Point {
    point: Enforcement,
    method: String,
    /// The setting that it changes.
    acts_on: String,
    /// Missing or wrong things, and their cures.
    notes: Vec<String>,
}

impl Shown {
    /// The answer for an agent's state and its newest decisions, newest first.
    pub(super) fn of(agent: &record::State, mut decisions: Vec<DecisionRecord>) -> Self {
        decisions.reverse();
        let acting = if agent.acting { "acting" } else { "NOT ACTING" };
        let facts = vec![acting.to_owned(), format!("decides every {} ms", short(agent.interval_ms))];
        let mut points: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        let mut percentiles: BTreeMap<String, ReadPercentiles> = BTreeMap::new();
        let mut pools: Vec<PoolState> = Vec::new();
        for enforced in &agent.pools {
            if let Some(reads) = percentiles_of(&enforced.at) {
                percentiles.entry(enforced.name.clone()).or_insert(reads);
            }
            points.entry(enforced.name.clone()).or_default().push(Point {
                point: enforced.point(),
                method: enforced.method.clone(),
                acts_on: acts_on(&enforced.at),
                notes: enforced.notes.clone(),
            });
            let pool = of_pool(enforced, agent.interval_ms / 1e3);
            match pools.iter_mut().find(|known| known.name == pool.name) {
                Some(known) => join(known, pool),
                None => pools.push(pool),
            }
        }
        let state = State {
            version: agent.version.clone(),
            uptime_s: agent.uptime_s,
            health: agent.health.clone(),
            cluster: agent.cluster.clone(),
            pools,
            ..State::default()
        };
        Self { facts, points, percentiles, decisions, state }
    }
}

/// Percentiles of the reads of a pool; `None` if its reads are not timed one by one.
fn percentiles_of(at: &At) -> Option<ReadPercentiles> {
    match at {
        At::Packets(at) => at.read_percentiles,
        At::Cgroup(at) => at.latency.as_ref()?.read_percentiles,
        At::QueueDepth(_) | At::Osd(_) => None,
    }
}

fn acts_on(at: &At) -> String {
    match at {
        At::Packets(at) if at.packets == "all" => "departure time of packets".to_owned(),
        At::Packets(at) => format!("departure time of {}", at.packets),
        At::Cgroup(at) => format!("io.max of {}", counted(at.groups.len() as u64, "group")),
        At::QueueDepth(at) => {
            let queues: usize = at.volumes.iter().map(|volume| volume.queues.len()).sum();
            format!("length of {}", counted(queues as u64, "queue"))
        }
        At::Osd(_) => "throttle of BlueStore".to_owned(),
    }
}

/// Adds the tenants and verdicts of a pool at a further enforcement point; its rates are those of the first.
fn join(known: &mut PoolState, pool: PoolState) {
    known.latency_target = known.latency_target.take().or(pool.latency_target);
    known.slots = known.slots.take().or(pool.slots);
    if let (Some(known), Some(lately)) = (&mut known.lately, pool.lately) {
        known.targets.extend(lately.targets);
        known.throttled_by = known.throttled_by.take().or(lately.throttled_by);
    }
    pool.tenants.into_iter().for_each(|tenant| add(&mut known.tenants, tenant));
}

/// Adds a tenant to those of a pool. Two with one name are one: control groups of the same tenant.
fn add(tenants: &mut Vec<TenantState>, tenant: TenantState) {
    let Some(known) = tenants.iter_mut().find(|known| known.name == tenant.name) else {
        tenants.push(tenant);
        return;
    };
    known.guarantees.extend(tenant.guarantees);
    known.throttled = known.throttled.take().or(tenant.throttled);
    if let (Some(known), Some(lately)) = (&mut known.lately, tenant.lately) {
        known.iops += lately.iops;
        known.bytes_per_s += lately.bytes_per_s;
        // Of several groups the largest.
        known.p99_ms = known.p99_ms.into_iter().chain(lately.p99_ms).reduce(f64::max);
        known.targets.extend(lately.targets);
        known.throttled_by = known.throttled_by.take().or(lately.throttled_by);
    }
}

fn of_pool(enforced: &record::PoolState, window_s: f64) -> PoolState {
    let pool = match &enforced.at {
        At::Packets(at) => packets(enforced, at),
        At::Cgroup(at) => match &at.latency {
            Some(latency) => local(enforced, at, latency),
            None => guaranteed(at),
        },
        At::QueueDepth(at) => queue_depth(enforced, at),
        At::Osd(at) => osd(enforced, at),
    };
    let mut pool = PoolState { name: enforced.name.clone(), ..pool };
    let of_tenants = pool.tenants.iter_mut().filter_map(|tenant| tenant.lately.as_mut());
    for lately in of_tenants.chain(pool.lately.as_mut()) {
        lately.window_s = window_s;
    }
    pool
}

fn packets(enforced: &record::PoolState, at: &PacketsState) -> PoolState {
    let throttled = at.clients.iter().filter(|client| client.delay_ms > 0.0).count();
    let mut clients: Vec<&ClientState> = at.clients.iter().collect();
    clients.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    clients.truncate(CLIENTS);
    let latency_ms = at.latency_ms.or(at.read_latency_ms);
    let lately = Lately {
        iops: at.iops,
        bytes_per_s: at.read_bytes_per_s + at.write_bytes_per_s,
        latency_ms,
        device_latency_ms: latency_ms,
        p99_ms: at.p99_ms(),
        targets: vec![at.target(&enforced.reason)],
        throttled_by: for_target(throttled, "client", at.mean_delay_ms, &enforced.because),
        because: enforced.because.clone(),
        ..Lately::default()
    };
    PoolState {
        admission: AdmissionState { in_flight_requests: at.in_flight, ..AdmissionState::default() },
        latency_target: Some(target(at.target_ms, &at.percentile, at.figure_ms())),
        lately: Some(lately),
        tenants: clients.into_iter().map(client).collect(),
        ..PoolState::default()
    }
}

fn client(client: &ClientState) -> TenantState {
    let because = client.exempt_because.as_ref().unwrap_or(&client.because);
    let lately = Lately { bytes_per_s: client.bytes_per_s, ..Lately::default() };
    slowed(&client.address, &client.throttle, client.delay_ms, because, lately)
}

/// The throttle of a pool of which so many clients or groups are throttled for its latency target; `None` if none is.
fn for_target(throttled: usize, thing: &str, mean_delay_ms: f64, because: &str) -> Option<ThrottledBy> {
    (throttled > 0).then(|| ThrottledBy {
        by: "latency".into(),
        cause: Cause::LatencyTarget,
        how: format!("{}, mean {} ms", counted(throttled as u64, thing), ms(mean_delay_ms)),
        because: because.to_owned(),
    })
}

fn target(target_ms: f64, percentile: &str, measured_ms: Option<f64>) -> LatencyTargetState {
    LatencyTargetState { target_ms, percentile: percentile.to_owned(), measured_ms, ..LatencyTargetState::default() }
}

/// A client or tenant that is throttled for a latency target if its delay is not 0.
fn slowed(name: &str, throttle: &str, delay_ms: f64, because: &str, lately: Lately) -> TenantState {
    let is_throttled = delay_ms > 0.0;
    let owner = || "latency".to_owned();
    let throttled_by = is_throttled.then(|| ThrottledBy {
        by: owner(),
        cause: Cause::LatencyTarget,
        how: format!("{} ms delay", ms(delay_ms)),
        because: because.to_owned(),
    });
    let throttled = is_throttled.then(|| ThrottledState {
        slots_owner: owner(),
        delay_ms,
        because: because.to_owned(),
        ..ThrottledState::default()
    });
    TenantState {
        name: name.to_owned(),
        throttle: throttle.to_owned(),
        throttled,
        lately: Some(Lately { throttled_by, because: because.to_owned(), ..lately }),
        ..TenantState::default()
    }
}

fn local(enforced: &record::PoolState, at: &CgroupState, latency: &LocalState) -> PoolState {
    let of_groups = at.groups.iter().filter_map(|group| Some((group, group.latency.as_ref()?)));
    let throttled = of_groups.clone().filter(|(_, of)| of.delay_ms > 0.0).count();
    let lately = Lately {
        iops: latency.iops,
        bytes_per_s: latency.bytes_per_s,
        latency_ms: latency.read_latency_ms,
        device_latency_ms: latency.read_latency_ms,
        p99_ms: latency.p99_ms(),
        targets: latency.target(&enforced.reason).into_iter().collect(),
        throttled_by: for_target(throttled, "group", latency.mean_delay_ms, &enforced.because),
        because: enforced.because.clone(),
        ..Lately::default()
    };
    let mut tenants = Vec::new();
    of_groups.for_each(|(group, of)| add(&mut tenants, throttled_group(group, of)));
    PoolState {
        admission: AdmissionState { in_flight_requests: latency.in_flight, ..AdmissionState::default() },
        latency_target: latency.target_ms.map(|ms| target(ms, &latency.percentile, latency.figure_ms())),
        lately: Some(lately),
        tenants,
        ..PoolState::default()
    }
}

fn throttled_group(group: &GroupState, of: &GroupThrottleState) -> TenantState {
    let because = of.exempt_because.as_ref().unwrap_or(&of.because);
    let p99_ms = of.read_percentiles.map(|reads| reads.p99_ms);
    let lately = Lately { iops: of.iops, bytes_per_s: of.bytes_per_s, p99_ms, ..Lately::default() };
    let mut tenant = slowed(&group.tenant, &of.throttle, of.delay_ms, because, lately);
    // Without a wait for the latency target, it is the tenant's limit that throttles.
    let is_at_limit = of.delay_ms <= 0.0 && !of.because.is_empty();
    if let Some(lately) = tenant.lately.as_mut().filter(|_| is_at_limit) {
        lately.throttled_by = Some(ThrottledBy {
            by: "operator".into(),
            cause: Cause::Limit,
            how: bytes_per_s(of.bytes_per_s),
            because: of.because.clone(),
        });
    }
    tenant
}

fn guaranteed(at: &CgroupState) -> PoolState {
    let mut tenants = Vec::new();
    at.groups.iter().for_each(|group| add(&mut tenants, guaranteed_group(group)));
    let of_tenants = || tenants.iter().filter_map(|tenant| tenant.lately.as_ref());
    let lately = Lately {
        iops: of_tenants().map(|lately| lately.iops).sum(),
        bytes_per_s: at.background_bytes_per_s + of_tenants().map(|lately| lately.bytes_per_s).sum::<f64>(),
        ..Lately::default()
    };
    PoolState { lately: Some(lately), tenants, ..PoolState::default() }
}

fn guaranteed_group(group: &GroupState) -> TenantState {
    let (mut lately, mut guarantees) = (Lately::default(), Vec::new());
    for (of, direction) in [("read", &group.read), ("write", &group.write)] {
        let Some(state) = direction else { continue };
        let in_bytes = state.unit == Unit::BytesPerS;
        let rate = if in_bytes { &mut lately.bytes_per_s } else { &mut lately.iops };
        *rate += state.measured;
        let target = state.target();
        lately.targets.push(Target { what: format!("{} {of}", target.what), ..target });
        let is_at_limit = state.measured >= AT_LIMIT * state.limit && group.foreign_limit.is_none();
        if is_at_limit && lately.throttled_by.is_none() {
            lately.throttled_by = Some(ThrottledBy {
                by: "throughput".into(),
                cause: Cause::Limit,
                how: state.rate(state.limit),
                because: state.because.clone(),
            });
        }
        if lately.because.is_empty() {
            lately.because.clone_from(&state.because);
        }
        guarantees.push(GuaranteeState {
            of: of.into(),
            unit: if in_bytes { "bytes" } else { "requests" }.into(),
            guaranteed_per_s: state.guaranteed as u64,
            total_per_s: state.total.map(|total| total as u64),
            measured_per_s: Some(state.measured),
            limit_per_s: state.limit as u64,
            reason: state.reason.clone(),
            because: state.because.clone(),
            binding: "throughput".into(),
            decisions: Vec::new(),
        });
    }
    TenantState { name: group.tenant.clone(), guarantees, lately: Some(lately), ..TenantState::default() }
}

fn queue_depth(enforced: &record::PoolState, at: &QueueDepthState) -> PoolState {
    let sum = |of: fn(&VolumeState) -> f64| at.volumes.iter().map(of).sum::<f64>();
    let iops = sum(|volume| volume.iops);
    let latencies = sum(|volume| volume.iops * volume.latency_ms.unwrap_or(0.0));
    let lately = Lately {
        iops,
        bytes_per_s: sum(|volume| volume.bytes_per_s),
        latency_ms: (iops > 0.0).then_some(latencies / iops),
        device_latency_ms: (iops > 0.0).then_some(latencies / iops),
        because: enforced.because.clone(),
        ..Lately::default()
    };
    let slots = SlotsState {
        method: enforced.method.clone(),
        clustered: at.clustered,
        total: at.total_slots,
        tightness: at.tightness,
    };
    PoolState {
        queued_requests: at.volumes.iter().map(|volume| volume.queued).sum(),
        slots: Some(slots),
        lately: Some(lately),
        tenants: at.volumes.iter().map(volume).collect(),
        ..PoolState::default()
    }
}

fn volume(volume: &VolumeState) -> TenantState {
    let slots = &volume.slots;
    let shortened =
        volume.queues.iter().filter(|queue| queue.value.zip(queue.before).is_some_and(|(is, was)| is < was));
    let length: u64 = shortened.filter_map(|queue| queue.value).map(u64::from).sum();
    let throttled_by = (length > 0).then(|| ThrottledBy {
        by: "slots".into(),
        cause: Cause::Slots,
        how: format!("queue of {length}"),
        because: slots.because.clone(),
    });
    let lately = Lately {
        iops: volume.iops,
        bytes_per_s: volume.bytes_per_s,
        latency_ms: volume.latency_ms,
        queue_latency_ms: slots.queueing_delay_ms,
        device_latency_ms: slots.device_latency_ms,
        targets: verdict::by_seconds(slots, 0, 0, volume.latency_ms).into_iter().collect(),
        throttled_by,
        because: slots.because.clone(),
        ..Lately::default()
    };
    TenantState {
        name: volume.name.clone(),
        slots: Some(slots.clone()),
        queued_requests: volume.queued,
        lately: Some(lately),
        ..TenantState::default()
    }
}

fn osd(enforced: &record::PoolState, at: &OsdState) -> PoolState {
    let record::Measured { store_latency_ms, commits_per_s, cost_bytes_per_s, in_flight_bytes, waiting } = at.measured;
    let budget = at.throttle_bytes.unwrap_or(at.budget_bytes);
    let lately = Lately {
        iops: commits_per_s,
        bytes_per_s: cost_bytes_per_s,
        latency_ms: store_latency_ms,
        device_latency_ms: store_latency_ms,
        throttled_by: (waiting > 0).then(|| ThrottledBy {
            by: enforced.method.clone(),
            cause: Cause::Admission,
            how: bytes(budget),
            because: enforced.because.clone(),
        }),
        because: enforced.because.clone(),
        ..Lately::default()
    };
    let admission = AdmissionState {
        kind: enforced.method.clone(),
        budget_bytes: Some(budget),
        in_flight_bytes,
        target_ms: at.target_ms,
        reason: enforced.because.clone(),
        ..AdmissionState::default()
    };
    PoolState { admission, queued_requests: waiting, lately: Some(lately), ..PoolState::default() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use evenkeel_guard::loops::record::{DirectionState, Measured, QueueState};
    use evenkeel_policy::state::TenantSlotsState;
    use evenkeel_policy::verdict::Verdict;

    use super::*;
    use crate::guard::history::samples;

    fn pool(name: &str, at: At) -> record::PoolState {
        let (reason, because) = ("reads_over_target".into(), "reads take 15 ms".into());
        record::PoolState {
            name: name.into(),
            method: "pid".into(),
            reason,
            because,
            at,
            ..record::PoolState::default()
        }
    }

    fn agent() -> record::State {
        let client = |address: &str, delay_ms| ClientState {
            address: address.into(),
            bytes_per_s: 1e6,
            delay_ms,
            because: "it has most of the load".into(),
            ..ClientState::default()
        };
        let packets = PacketsState {
            target_ms: 10.0,
            percentile: "p99".into(),
            read_percentile_ms: Some(15.0),
            latency_ms: Some(6.0),
            iops: 100.0,
            clients: vec![client("192.0.2.1", 0.0), client("192.0.2.2", 34.5)],
            packets: "acknowledgements".into(),
            ..PacketsState::default()
        };
        let read = |measured| DirectionState {
            unit: Unit::BytesPerS,
            guaranteed: 50e6,
            measured,
            limit: measured,
            reason: "compensating".into(),
            ..DirectionState::default()
        };
        let group = |name: &str, measured| GroupState {
            tenant: "db".into(),
            group: name.into(),
            read: Some(read(measured)),
            ..GroupState::default()
        };
        let cached = CgroupState { groups: vec![group("a", 50e6), group("b", 20e6)], ..CgroupState::default() };
        let noisy = GroupThrottleState { iops: 10.0, delay_ms: 3.0, ..GroupThrottleState::default() };
        let noisy = GroupState { tenant: "batch".into(), latency: Some(noisy), ..GroupState::default() };
        let (target_ms, percentile) = (Some(5.0), "mean".into());
        let latency = LocalState { target_ms, percentile, iops: 10.0, ..LocalState::default() };
        let local = CgroupState { latency: Some(latency), groups: vec![noisy], ..CgroupState::default() };
        let queue = QueueState { value: Some(6), before: Some(32), ..QueueState::default() };
        let slots = TenantSlotsState { target_ms: Some(10.0), ..TenantSlotsState::default() };
        let lun = VolumeState {
            name: "lun".into(),
            iops: 10.0,
            latency_ms: Some(12.5),
            slots,
            queues: vec![queue],
            ..VolumeState::default()
        };
        let shared = QueueDepthState { volumes: vec![lun], ..QueueDepthState::default() };
        let measured = Measured { commits_per_s: 5.0, waiting: 2, ..Measured::default() };
        let osd = OsdState { budget_bytes: 1 << 20, measured, ..OsdState::default() };
        record::State {
            interval_ms: 100.0,
            pools: vec![
                pool("vg0", At::Packets(packets)),
                pool("cached", At::Cgroup(cached)),
                pool("vg0", At::Cgroup(local)),
                pool("san", At::QueueDepth(shared)),
                pool("osd.3", At::Osd(osd)),
            ],
            ..record::State::default()
        }
    }

    #[test]
    fn pools_have_their_verdicts_throttles_and_points() {
        let shown = Shown::of(&agent(), vec![DecisionRecord::default()]);
        assert_eq!(shown.facts, ["NOT ACTING", "decides every 100 ms"]);
        let names: Vec<&str> = shown.state.pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!(names, ["vg0", "cached", "san", "osd.3"], "a pool at two points is one");
        let points: Vec<&str> = shown.points["vg0"].iter().map(|point| point.acts_on.as_str()).collect();
        assert_eq!(points, ["departure time of acknowledgements", "io.max of 1 group"]);
        let [vg0, cached, san, osd] = &shown.state.pools[..] else { panic!("{names:?}") };
        let of = |pool: &PoolState| pool.lately.clone().expect("figures");
        assert_eq!((of(vg0).targets[0].verdict, of(vg0).p99_ms), (Verdict::Missed, Some(15.0)));
        assert_eq!(of(vg0).throttled_by.expect("throttled").how, "1 client, mean 0 ms");
        let throttled = |pool: &PoolState| -> Vec<Option<String>> {
            let by = |tenant: &TenantState| Some(tenant.lately.as_ref()?.throttled_by.as_ref()?.how.clone());
            pool.tenants.iter().map(by).collect()
        };
        assert_eq!(throttled(vg0), [None, Some("34.5 ms delay".into()), Some("3.00 ms delay".into())]);
        // Both groups of the tenant: one gets its guarantee.
        let db = cached.tenants[0].lately.as_ref().expect("figures");
        let verdicts: Vec<Verdict> = db.targets.iter().map(|target| target.verdict).collect();
        assert_eq!((verdicts, db.bytes_per_s), (vec![Verdict::Met, Verdict::Missed], 70e6));
        assert!(db.targets[0].what.ends_with(" read"), "{:?}", db.targets);
        assert_eq!(throttled(san), [Some("queue of 6".into())]);
        assert_eq!(of(osd).throttled_by.expect("two wait").how, "1.0 MiB");
        assert!(of(osd).window_s > 0.0);
    }

    #[test]
    fn pools_whose_reads_are_timed_have_three_percentiles_for_each_target() {
        let read_percentiles = Some(ReadPercentiles { p50_ms: 0.5, p99_ms: 2.0, p999_ms: 7.25 });
        let percentile = || "mean".to_owned();
        let packets = PacketsState { percentile: percentile(), read_percentiles, ..PacketsState::default() };
        let latency = LocalState { percentile: percentile(), read_percentiles, ..LocalState::default() };
        let local = CgroupState { latency: Some(latency), ..CgroupState::default() };
        let pools = vec![pool("a", At::Packets(packets)), pool("b", At::Cgroup(local)), pool("c", At::default())];
        let shown = Shown::of(&record::State { pools, ..record::State::default() }, Vec::new());
        let p99_ms = |pool: &PoolState| pool.lately.as_ref().and_then(|lately| lately.p99_ms);
        let all: Vec<Option<f64>> = shown.state.pools.iter().map(p99_ms).collect();
        assert_eq!(all, [Some(2.0), Some(2.0), None]);
        let answer = serde_json::to_value(&shown).expect("JSON");
        for name in ["a", "b"] {
            assert_eq!(answer["percentiles"][name]["p999_ms"], 7.25, "{name}");
        }
        assert!(answer["percentiles"]["c"].is_null());
    }

    #[test]
    fn the_answer_is_a_state_with_more() {
        let answer = serde_json::to_value(Shown::of(&agent(), Vec::new())).expect("JSON");
        for key in ["facts", "points", "decisions", "version", "uptime_s", "health", "pools", "volumes", "workers"] {
            assert!(!answer[key].is_null(), "{key} in {answer}");
        }
        assert_eq!(answer["points"]["san"][0]["point"], "queue_depth");
    }

    #[test]
    fn tenants_have_the_names_of_the_history() {
        let agent = agent();
        let recorded: BTreeSet<(String, String)> = samples(&agent)
            .iter()
            .filter(|sample| !sample.series.tenant.is_empty())
            .map(|sample| (sample.series.pool.clone(), sample.series.tenant.clone()))
            .collect();
        let shown = Shown::of(&agent, Vec::new()).state.pools;
        let of = |pool: &PoolState| -> Vec<(String, String)> {
            pool.tenants.iter().map(|tenant| (pool.name.clone(), tenant.name.clone())).collect()
        };
        assert_eq!(shown.iter().flat_map(of).collect::<BTreeSet<_>>(), recorded);
    }

    #[test]
    fn a_group_at_its_part_of_a_limit_is_throttled_by_the_operator() {
        let of =
            GroupThrottleState { bytes_per_s: 2e7, because: "at its limit".into(), ..GroupThrottleState::default() };
        let by = |of: &GroupThrottleState| throttled_group(&GroupState::default(), of).lately.unwrap().throttled_by;
        let limited = by(&of).unwrap();
        assert_eq!((limited.by.as_str(), limited.how.as_str()), ("operator", bytes_per_s(2e7).as_str()));
        assert_eq!(by(&GroupThrottleState { delay_ms: 3.0, ..of }).unwrap().by, "latency");
        assert!(by(&GroupThrottleState::default()).is_none());
    }

    #[test]
    fn a_tenant_has_the_largest_percentile_of_its_groups() {
        let mut tenants = Vec::new();
        for p99_ms in [None, Some(2.0), Some(8.0), Some(4.0)] {
            let read_percentiles = p99_ms.map(|p99_ms| ReadPercentiles { p50_ms: 1.0, p99_ms, p999_ms: 9.0 });
            let of = GroupThrottleState { read_percentiles, ..GroupThrottleState::default() };
            add(&mut tenants, throttled_group(&GroupState { tenant: "db".into(), ..GroupState::default() }, &of));
        }
        let [tenant] = &tenants[..] else { panic!("{tenants:?}") };
        assert_eq!(tenant.lately.as_ref().and_then(|lately| lately.p99_ms), Some(8.0));
    }
}
