//! The state of an agent in the form of a server's, for the dashboard: the pools enforced here with their verdicts, and the
//! clients, groups or volumes on them as tenants, by the names that the history has.

use std::collections::BTreeMap;

use evenkeel_guard::loops::record::{self, At, Part, ReadPercentiles};
use evenkeel_policy::config::Enforcement;
use evenkeel_policy::decision::DecisionRecord;
use evenkeel_policy::figures::short;
use evenkeel_policy::state::{AdmissionState, PoolState, State, TenantState, ThrottledState};
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
    /// Pools, tenants and troubles in the form of a server's state, without workers and volumes.
    #[serde(flatten)]
    state: State,
}

/// An enforcement point of a pool.
#[derive(Debug, Serialize)]
struct Point {
    point: Enforcement,
    method: String,
    /// The setting that the enforcement point changes, such as `io.max of 2 groups`.
    acts_on: String,
    /// Problems of the enforcement point, with their cures.
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
            if let Some(reads) = enforced.reads.as_ref().and_then(|reads| reads.percentiles) {
                percentiles.entry(enforced.name.clone()).or_insert(reads);
            }
            points.entry(enforced.name.clone()).or_default().push(Point {
                point: enforced.point(),
                method: enforced.method.clone(),
                acts_on: enforced.at.acts_on(),
                notes: enforced.notes.clone(),
            });
            let pool = of_pool(enforced);
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

fn of_pool(enforced: &record::PoolState) -> PoolState {
    let in_flight_requests = enforced.in_flight;
    let mut parts = enforced.parts();
    let pool = PoolState {
        name: enforced.name.clone(),
        admission: AdmissionState { in_flight_requests, ..AdmissionState::default() },
        queued_requests: parts.iter().map(|part| part.queued).sum(),
        latency_target: enforced.latency_target.clone(),
        lately: Some(enforced.lately.clone()),
        ..PoolState::default()
    };
    let mut tenants = Vec::new();
    if enforced.point() == Enforcement::Packets {
        parts.sort_by(|a, b| b.lately.bytes_per_s.total_cmp(&a.lately.bytes_per_s));
        tenants.extend(parts.iter().take(CLIENTS).map(tenant));
    } else {
        parts.iter().for_each(|part| add(&mut tenants, tenant(part)));
    }
    match &enforced.at {
        At::QueueDepth(at) => PoolState { slots: Some(at.slots.clone()), tenants, ..pool },
        At::Osd(at) => {
            let budget_bytes = at.throttle_bytes.or(at.admission.budget_bytes);
            let admission = AdmissionState { budget_bytes, ..at.admission.clone() };
            PoolState { admission, queued_requests: at.waiting, ..pool }
        }
        _ => PoolState { tenants, ..pool },
    }
}

fn tenant(part: &Part<'_>) -> TenantState {
    let throttled = (part.delay_ms > 0.0).then(|| ThrottledState {
        slots_owner: "latency".into(),
        delay_ms: part.delay_ms,
        because: part.lately.because.clone(),
        ..ThrottledState::default()
    });
    TenantState {
        name: part.tenant.to_owned(),
        throttle: part.throttle.to_owned(),
        throttled,
        slots: part.slots.cloned(),
        guarantees: part.guarantees.iter().copied().cloned().collect(),
        queued_requests: part.queued,
        lately: Some(part.lately.clone()),
        ..TenantState::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use evenkeel_guard::loops::record::{
        CgroupState, ClientState, GroupState, OsdState, PacketsState, QueueDepthState, ReadsState, VolumeState,
    };
    use evenkeel_policy::state::{GuaranteeState, TenantSlotsState};
    use evenkeel_policy::verdict::{self, Lately, Verdict};

    use super::*;
    use crate::guard::history::samples;

    fn pool(name: &str, at: At) -> record::PoolState {
        let lately = Lately { iops: 10.0, because: "reads take 15 ms".into(), ..Lately::default() };
        record::PoolState { name: name.into(), method: "pid".into(), lately, at, ..record::PoolState::default() }
    }

    /// A group of the tenant `db` with a guarantee of 50 MB/s for reads, of which it gets `measured`.
    fn guaranteed(name: &str, measured: f64) -> GroupState {
        let read = GuaranteeState {
            of: "read".into(),
            unit: "bytes".into(),
            guaranteed_per_s: 50_000_000,
            measured_per_s: Some(measured),
            ..GuaranteeState::default()
        };
        let targets = vec![verdict::of_guarantee(&read)];
        let lately = Lately { bytes_per_s: measured, targets, ..Lately::default() };
        GroupState { tenant: "db".into(), group: name.into(), read: Some(read), lately, ..GroupState::default() }
    }

    fn noisy(tenant: &str, p99_ms: Option<f64>) -> GroupState {
        let throttled_by = verdict::delayed(3.0, "it has most of the load");
        let lately = Lately { iops: 10.0, p99_ms, throttled_by, ..Lately::default() };
        GroupState { tenant: tenant.into(), group: "slice".into(), delay_ms: 3.0, lately, ..GroupState::default() }
    }

    fn agent() -> record::State {
        let client = |address: &str, delay_ms| {
            let throttled_by = verdict::delayed(delay_ms, "it has most of the load");
            let lately = Lately { bytes_per_s: 1e6, throttled_by, ..Lately::default() };
            ClientState { address: address.into(), delay_ms, lately, ..ClientState::default() }
        };
        let packets = PacketsState {
            clients: vec![client("192.0.2.1", 0.0), client("192.0.2.2", 34.5)],
            packets: "acknowledgements".into(),
            ..PacketsState::default()
        };
        let groups = vec![guaranteed("a", 50e6), guaranteed("b", 20e6)];
        let cached = CgroupState { groups, ..CgroupState::default() };
        let local = CgroupState { groups: vec![noisy("batch", None)], ..CgroupState::default() };
        let lately = Lately { iops: 10.0, latency_ms: Some(12.5), ..Lately::default() };
        let slots = TenantSlotsState { target_ms: Some(10.0), ..TenantSlotsState::default() };
        let lun = VolumeState { name: "lun".into(), queued: 3, slots, lately, ..VolumeState::default() };
        let shared = QueueDepthState { volumes: vec![lun], ..QueueDepthState::default() };
        let admission = AdmissionState { budget_bytes: Some(1 << 20), ..AdmissionState::default() };
        let osd = OsdState { admission, throttle_bytes: Some(1 << 21), waiting: 2, ..OsdState::default() };
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
    fn pools_have_their_figures_throttles_and_points() {
        let shown = Shown::of(&agent(), vec![DecisionRecord::default()]);
        assert_eq!(shown.facts, ["NOT ACTING", "decides every 100 ms"]);
        let names: Vec<&str> = shown.state.pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!(names, ["vg0", "cached", "san", "osd.3"], "a pool at two points is one");
        let points: Vec<&str> = shown.points["vg0"].iter().map(|point| point.acts_on.as_str()).collect();
        assert_eq!(points, ["departure time of acknowledgements", "io.max of 1 group"]);
        let [vg0, cached, san, osd] = &shown.state.pools[..] else { panic!("{names:?}") };
        assert_eq!(vg0.lately.as_ref().map(|lately| lately.because.as_str()), Some("reads take 15 ms"));
        let by = |tenant: &TenantState| Some(tenant.lately.as_ref()?.throttled_by.as_ref()?.how.clone());
        let throttled: Vec<Option<String>> = vg0.tenants.iter().map(by).collect();
        assert_eq!(throttled, [None, Some("34.5 ms delay".into()), Some("3.00 ms delay".into())]);
        let delays: Vec<Option<f64>> =
            vg0.tenants.iter().map(|tenant| tenant.throttled.as_ref().map(|by| by.delay_ms)).collect();
        assert_eq!(delays, [None, Some(34.5), Some(3.0)]);
        // Both groups of the tenant: one gets its guarantee.
        let [db] = &cached.tenants[..] else { panic!("{cached:?}") };
        let lately = db.lately.as_ref().expect("figures");
        let verdicts: Vec<Verdict> = lately.targets.iter().map(|target| target.verdict).collect();
        assert_eq!((verdicts, lately.bytes_per_s), (vec![Verdict::Met, Verdict::Missed], 70e6));
        assert_eq!((db.guarantees.len(), db.guarantees[0].of.as_str()), (2, "read"));
        assert!(san.slots.is_some() && san.tenants[0].slots.is_some(), "{san:?}");
        assert_eq!((san.queued_requests, osd.queued_requests), (3, 2));
        assert_eq!(osd.admission.budget_bytes, Some(1 << 21), "the throttle in force");
    }

    #[test]
    fn pools_whose_reads_are_timed_have_three_percentiles() {
        let percentiles = Some(ReadPercentiles { p50_ms: 0.5, p99_ms: 2.0, p999_ms: 7.25 });
        let timed = |name: &str, at| {
            let reads = Some(ReadsState { percentiles, ..ReadsState::default() });
            record::PoolState { reads, ..pool(name, at) }
        };
        let local = At::Cgroup(CgroupState::default());
        let pools = vec![timed("a", At::default()), timed("b", local), pool("c", At::default())];
        let shown = Shown::of(&record::State { pools, ..record::State::default() }, Vec::new());
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
    fn a_tenant_has_the_largest_percentile_of_its_groups() {
        let groups = [None, Some(2.0), Some(8.0), Some(4.0)].map(|p99_ms| noisy("db", p99_ms));
        let at = At::Cgroup(CgroupState { groups: groups.into(), ..CgroupState::default() });
        let shown = of_pool(&pool("disk", at));
        let [tenant] = &shown.tenants[..] else { panic!("{shown:?}") };
        assert_eq!(tenant.lately.as_ref().and_then(|lately| lately.p99_ms), Some(8.0));
    }
}
