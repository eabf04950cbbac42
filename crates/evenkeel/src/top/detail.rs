//! The content of the detail view: settings, figures and decisions of one row.

use evenkeel_guard::loops::record::{self, At, GroupState};
use evenkeel_policy::decision::{DecisionRecord, newest};
use evenkeel_policy::state::{
    ClientState, LatencyState, PartsState, PoolState, QosState, State, TenantSlotsState, TenantState, VolumeState,
};

use super::figures::{bytes, counted, ms, rates, uptime};
use super::row::{Id, Tab};
use super::serve::{client_name, percentiles, totals_by_host};
use super::source::{Answer, More, Wanted};
use crate::control::show;
use crate::guard;

/// The most totals of tenants of other hosts that are shown with a pool.
const OTHERS: usize = 8;

/// The content of the detail view of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Detail {
    /// Settings and figures of the row, as pairs of name and text.
    pub(super) facts: Vec<(&'static str, String)>,
    /// The controllers' decisions about the row, newest first.
    pub(super) decisions: Vec<DecisionRecord>,
}

/// The detail view's content for the row `wanted`, from the whole state in `answer`. `more`: the newest answer about this row
/// alone, and the one before it.
pub(super) fn of(answer: &Answer, wanted: &Wanted, more: (Option<&More>, Option<&More>)) -> Detail {
    let Wanted { tab, id } = wanted;
    match answer {
        Answer::Serve(state, clients) => of_server(state, &clients.clients, *tab, id, more).unwrap_or_default(),
        Answer::Guard(state) => of_agent(state, *tab, id, more.0),
    }
}

fn of_server(
    state: &State,
    clients: &[ClientState],
    tab: Tab,
    id: &Id,
    more: (Option<&More>, Option<&More>),
) -> Option<Detail> {
    match tab {
        Tab::Pools => {
            let pool = state.pools.iter().find(|pool| pool.name == id.name)?;
            let mut detail = of_pool(pool);
            let is_here = |name: &str| pool.tenants.iter().any(|tenant| tenant.name == name);
            let others = totals_by_host(state).filter(|of| of.pool == pool.name && !is_here(&of.tenant));
            detail.facts.extend(others.take(OTHERS).map(|of| ("elsewhere", format!("{}, {}", of.tenant, of.text()))));
            Some(detail)
        }
        Tab::Tenants => {
            let tenant = |state: &State| {
                let pool = state.pools.iter().find(|pool| pool.name == id.of)?;
                pool.tenants.iter().find(|tenant| tenant.name == id.name).cloned()
            };
            let full = |more: Option<&More>| if let Some(More::Serve(state)) = more { tenant(state) } else { None };
            let mut detail = of_tenant(&full(more.0).or_else(|| tenant(state))?, full(more.1).as_ref());
            let ours = totals_by_host(state).filter(|of| of.pool == id.of && of.tenant == id.name);
            detail.facts.extend(ours.map(|of| ("by host", of.text())));
            Some(detail)
        }
        Tab::Volumes => state.volumes.iter().find(|volume| volume.name == id.name).map(of_volume),
        Tab::Clients => {
            let mut clients = clients.iter();
            let client = clients.find(|client| client.volume == id.of && client_name(client) == id.name)?;
            Some(of_client(client, state.uptime_s))
        }
        Tab::Guarded | Tab::Initiators | Tab::Groups | Tab::Queues | Tab::Osds => None,
    }
}

fn of_pool(pool: &PoolState) -> Detail {
    let decisions = pool.latency_target.iter().flat_map(|target| target.decisions.iter().rev().cloned());
    Detail { facts: show::pool_facts(pool), decisions: decisions.collect() }
}

/// The parts of reservation and limit that apply on this host, with the totals over all hosts of the cluster.
fn totals(qos: &QosState, parts: &PartsState) -> String {
    let reserved = [
        rates(parts.reservation_iops, parts.reservation_bytes_per_s),
        rates(qos.reservation_iops, qos.reservation_bytes_per_s),
    ];
    let limit = [rates(parts.limit_iops, parts.limit_bytes_per_s), rates(qos.limit_iops, qos.limit_bytes_per_s)];
    let [reserved, limit] = [reserved, limit].map(|rates| rates.join(" of "));
    format!("reservation {reserved}, limit {limit}: this host's parts of the cluster's totals")
}

fn of_tenant(tenant: &TenantState, before: Option<&TenantState>) -> Detail {
    let qos = &tenant.qos;
    let mut facts = vec![
        (
            "guaranteed",
            format!(
                "reservation {}, weight {}, {}, {}",
                rates(qos.reservation_iops, qos.reservation_bytes_per_s),
                qos.weight,
                qos.priority,
                tenant.throttle
            ),
        ),
        ("limit", show::limit(&tenant.limit)),
        (
            "requests",
            format!(
                "{} queued, {} in flight, {}, {}",
                tenant.queued_requests,
                tenant.in_flight_requests,
                counted(tenant.connections, "connection"),
                counted(tenant.errors_total, "error")
            ),
        ),
    ];
    facts.extend(tenant.parts.as_ref().map(|parts| ("totals", totals(qos, parts))));
    let line = |now: &LatencyState, of: fn(&TenantState) -> &LatencyState| {
        percentiles(now, before.map(of))
            .map(|[p50, p99, p999]| format!("p50 {} ms, p99 {} ms, p99.9 {} ms", ms(p50), ms(p99), ms(p999)))
    };
    let since = if before.is_some() { "just now" } else { "since the start" };
    if let Some(text) = line(&tenant.latency, |tenant| &tenant.latency) {
        facts.push(("latency", format!("{text}, {since}")));
    }
    facts.extend(line(&tenant.queue_latency, |tenant| &tenant.queue_latency).map(|text| ("queue", text)));
    facts.extend(line(&tenant.device_latency, |tenant| &tenant.device_latency).map(|text| ("device", text)));
    facts.extend(tenant.slots.as_ref().map(|of| ("slots", slots(of))));
    let mut decisions = Vec::new();
    for guarantee in &tenant.guarantees {
        facts.push(("guarantee", show::guarantee(guarantee)));
        decisions.extend(guarantee.decisions.iter().cloned());
    }
    Detail { facts, decisions: newest(decisions, usize::MAX) }
}

fn of_volume(volume: &VolumeState) -> Detail {
    let access = if volume.read_only { "read-only" } else { "read and write" };
    let mut facts = vec![
        ("tenant", volume.tenant.clone()),
        ("size", format!("{}, {access}", bytes(volume.size_bytes))),
        ("backend", format!("{} {}", volume.backend, show::place(volume).unwrap_or_default())),
        ("clients", volume.connections.to_string()),
        ("offers", volume.flags.join(" ")),
    ];
    facts.extend(volume.remote.iter().map(|remote| ("server", show::remote(remote))));
    facts.extend(volume.error.iter().map(|error| ("FAILED", error.clone())));
    Detail { facts, decisions: Vec::new() }
}

fn of_client(client: &ClientState, uptime_s: f64) -> Detail {
    let facts = vec![
        ("volume", format!("{} on pool {}", client.volume, client.pool)),
        ("tenant", client.tenant.clone()),
        ("worker", client.worker.to_string()),
        ("connected", uptime((uptime_s - client.since_s).max(0.0))),
        ("requests", format!("{} so far, {} in flight", client.requests_total, client.in_flight_requests)),
        ("bytes", format!("{} received, {} sent", bytes(client.received_bytes_total), bytes(client.sent_bytes_total))),
    ];
    Detail { facts, decisions: Vec::new() }
}

fn of_agent(state: &record::State, tab: Tab, id: &Id, more: Option<&More>) -> Detail {
    let mut detail = Detail { facts: guard_facts(state, tab, id).unwrap_or_default(), decisions: Vec::new() };
    let Some(More::Guard(all)) = more else { return detail };
    let told = all.decisions.iter().filter_map(|record| {
        let client = record.clients.iter().find(|client| client.client == id.name);
        let because = match tab {
            Tab::Initiators => client
                .map(|client| format!("delay {} ms: {}; {}", ms(client.delay_ms), client.because, record.because))?,
            Tab::Groups if record.of != id.name && client.is_none() => return None,
            Tab::Queues if record.tenant != id.name => return None,
            Tab::Osds => {
                let budget = record.set.map_or_else(|| "all".into(), |budget| bytes(budget as u64));
                format!("{} ({budget} in flight)", record.because)
            }
            _ => record.because.clone(),
        };
        Some(DecisionRecord { because, ..record.clone() })
    });
    detail.decisions = newest(told.collect(), usize::MAX);
    detail
}

fn guard_facts(state: &record::State, tab: Tab, id: &Id) -> Option<Vec<(&'static str, String)>> {
    let mut facts = Vec::new();
    match tab {
        Tab::Guarded => {
            let pool = state.pools.iter().find(|pool| pool.name == id.name && pool.reads.is_some())?;
            let in_flight = format!("{} in flight", counted(pool.in_flight, "request"));
            match &pool.at {
                At::Packets(at) => {
                    let devices: Vec<&str> = at.devices.iter().map(|device| device.name.as_str()).collect();
                    facts.push(("devices", format!("{}, {in_flight}", devices.join(" "))));
                    facts.push(("clients", at.clients.len().to_string()));
                    facts.push(("packets", at.packets.clone()));
                }
                At::Cgroup(at) => facts.push(("device", format!("{}, {in_flight}", at.device))),
                _ => {}
            }
            facts.extend(pool.reads.as_ref().and_then(|of| of.percentiles.as_ref()).map(reads));
            facts.push(("why", pool.lately.because.clone()));
        }
        Tab::Initiators => {
            let (_, of) = state.packets().find(|(pool, _)| pool.name == id.of)?;
            let client = of.clients.iter().find(|client| client.address == id.name)?;
            facts.push(("names", client.names.join(" ")));
            facts.push(("throttle", client.throttle.clone()));
            facts.push(("load", if client.load_is_estimated { "estimated" } else { "measured" }.into()));
            facts.extend(client.exempt_because.iter().map(|why| ("exempt", why.clone())));
        }
        Tab::Groups => {
            let of_pool = |(pool, _): &(&record::PoolState, &record::CgroupState)| pool.name == id.of;
            let point = state.cgroups().filter(of_pool).find(|(pool, _)| group_of(pool, &id.name).is_some());
            let (pool, at) = point.or_else(|| state.cgroups().find(of_pool))?;
            facts.push(("device", format!("{} {}, by {}", at.kind, at.device, pool.method)));
            if let Some(group) = group_of(pool, &id.name) {
                let matched = Some(guard::show::matched(group)).filter(|by| !by.is_empty());
                facts.extend(matched.map(|by| ("matched by", by)));
                facts.extend(group.read_percentiles.as_ref().map(reads));
            }
        }
        Tab::Queues => {
            let (_, array) = state.queue_depths().find(|(pool, _)| pool.name == id.of)?;
            let volume = array.volumes.iter().find(|volume| volume.name == id.name)?;
            facts.push(("device", volume.device.clone()));
            facts.push(("slots", slots(&volume.slots)));
            for queue in &volume.queues {
                facts.push(("queue", format!("{} {}", queue.setting, guard::show::queue(queue))));
            }
        }
        Tab::Osds => {
            let (pool, osd) = state.osds().find(|(pool, _)| pool.name == id.name)?;
            let set = osd.throttle_bytes.map_or_else(|| "without bound".into(), bytes);
            facts.push(("throttle", format!("{set}, {}, by {}", osd.condition, pool.method)));
            let inside = bytes(osd.admission.in_flight_bytes);
            facts.push(("in flight", format!("{inside}, {} waiting", osd.waiting)));
            facts.push(("why", pool.lately.because.clone()));
        }
        Tab::Pools | Tab::Tenants | Tab::Volumes | Tab::Clients => {}
    }
    Some(facts)
}

/// The group of the row with this name. With a guarantee each direction has a row, with a latency target the group has one. A
/// pool with both has two points, and a group may be at both.
fn group_of<'a>(pool: &'a record::PoolState, row: &str) -> Option<&'a GroupState> {
    let ends: &[&str] = if pool.reads.is_some() { &[""] } else { &[" read", " write"] };
    let is_of_row = |group: &&GroupState| row.strip_prefix(group.group.as_str()).is_some_and(|end| ends.contains(&end));
    pool.groups().iter().find(is_of_row)
}

/// The fact about the percentiles of the reads of a pool or group.
fn reads(of: &record::ReadPercentiles) -> (&'static str, String) {
    let [p50, p99, p999] = [of.p50_ms, of.p99_ms, of.p999_ms].map(ms);
    ("reads", format!("p50 {p50} ms, p99 {p99} ms, p99.9 {p999} ms, last 5 to 10 s"))
}

/// A tenant's slots as text: granted, needed and used, and the number of seconds in which its latency target was missed.
fn slots(slots: &TenantSlotsState) -> String {
    let granted = slots.granted.map_or_else(|| "without bound".into(), |granted| format!("{granted:.1}"));
    let TenantSlotsState { need, used, violated_total: missed, windows_total: all, because, .. } = slots;
    format!("granted {granted}, needed {need:.1}, used {used:.1}; target missed in {missed} of {all} s: {because}")
}

#[cfg(test)]
mod tests {
    use evenkeel_guard::loops::record::{CgroupState, ReadPercentiles, ReadsState};
    use evenkeel_policy::state::{ClusterState, HostPartState, TotalState, TotalsState};

    use super::*;

    #[test]
    fn pools_of_an_agent_have_the_percentiles_of_their_reads() {
        let percentiles = Some(ReadPercentiles { p50_ms: 0.5, p99_ms: 2.0, p999_ms: 7.25 });
        for at in [At::default(), At::Cgroup(CgroupState::default())] {
            let reads = Some(ReadsState { percentiles, ..ReadsState::default() });
            let pool = record::PoolState { name: "a".into(), reads, at, ..record::PoolState::default() };
            let state = record::State { pools: vec![pool], ..record::State::default() };
            let id = Id { name: "a".into(), ..Id::default() };
            let facts = guard_facts(&state, Tab::Guarded, &id).expect("facts");
            let reads = "p50 0.500 ms, p99 2.00 ms, p99.9 7.25 ms, last 5 to 10 s";
            assert!(facts.contains(&("reads", reads.to_owned())), "{facts:?}");
        }
    }

    #[test]
    fn a_group_has_the_percentiles_of_its_own_reads_and_the_entry_that_names_it() {
        let read_percentiles = Some(ReadPercentiles { p50_ms: 0.5, p99_ms: 2.0, p999_ms: 7.25 });
        let group = GroupState {
            group: "kubepods/pod7".into(),
            matched_by: "pod:shop/db".into(),
            also_matched_by: vec!["cgroup:kubepods/* of tenant rest".into()],
            read_percentiles,
            ..GroupState::default()
        };
        let other = GroupState { group: "kubepods/pod77".into(), ..GroupState::default() };
        // A guarantee for this group is at another point of the pool.
        let matched_by = "cgroup:kubepods/*".into();
        let guaranteed = GroupState { group: group.group.clone(), matched_by, ..GroupState::default() };
        let pool = |groups, reads| {
            let at = At::Cgroup(CgroupState { groups, ..CgroupState::default() });
            record::PoolState { name: "disk".into(), reads, at, ..record::PoolState::default() }
        };
        let local = pool(vec![other, group], Some(ReadsState::default()));
        let state = record::State { pools: vec![pool(vec![guaranteed], None), local], ..record::State::default() };
        let facts = |name: &str| {
            let id = Id { of: "disk".into(), name: name.into() };
            guard_facts(&state, Tab::Groups, &id).expect("facts")
        };
        let found = facts("kubepods/pod7");
        for (name, text) in [
            ("reads", "p50 0.500 ms, p99 2.00 ms, p99.9 7.25 ms, last 5 to 10 s"),
            ("matched by", "pod:shop/db, which precedes cgroup:kubepods/* of tenant rest"),
        ] {
            assert!(found.contains(&(name, text.to_owned())), "{found:?}");
        }
        assert_eq!(facts("kubepods/pod77").len(), 1, "nothing is known of its reads");
        for row in ["kubepods/pod7 read", "kubepods/pod7 write"] {
            assert_eq!(facts(row)[1..], [("matched by", "cgroup:kubepods/*".to_owned())]);
        }
        assert_eq!(facts("kubepods/pod7 other").len(), 1, "the device alone");
    }

    #[test]
    fn a_tenant_with_parts_has_its_totals_beside_them() {
        let qos = QosState { limit_iops: Some(800), reservation_iops: Some(300), ..QosState::default() };
        let parts = PartsState { limit_iops: Some(200), reservation_iops: Some(100), ..PartsState::default() };
        let tenant = TenantState { qos, parts: Some(parts), ..TenantState::default() };
        let shown = |tenant: &TenantState| of_tenant(tenant, None).facts;
        let totals = "reservation 100 IOPS of 300 IOPS, limit 200 IOPS of 800 IOPS: this host's parts of the \
                      cluster's totals";
        assert!(shown(&tenant).contains(&("totals", totals.to_owned())), "{:?}", shown(&tenant));
        let whole = TenantState { parts: None, ..tenant };
        assert!(!shown(&whole).iter().any(|(name, _)| *name == "totals"));
    }

    #[test]
    fn totals_have_their_parts_by_host_also_of_tenants_of_other_hosts() {
        let total = |tenant: &str| TotalState {
            pool: "main".into(),
            tenant: tenant.into(),
            unit: "requests".into(),
            hosts: vec![HostPartState { host: "storage2".into(), part: 0.75 }],
            more_hosts: 2,
            more_part: 0.25,
        };
        let totals = TotalsState { by_host: vec![total("db"), total("web")], ..TotalsState::default() };
        let tenants = vec![TenantState { name: "db".into(), ..TenantState::default() }];
        let state = State {
            pools: vec![PoolState { name: "main".into(), tenants, ..PoolState::default() }],
            cluster: Some(ClusterState { totals: Some(totals), ..ClusterState::default() }),
            ..State::default()
        };
        let facts = |tab: Tab, of: &str, name: &str| {
            let id = Id { of: of.into(), name: name.into() };
            of_server(&state, &[], tab, &id, (None, None)).expect("a row").facts
        };
        let parts = "requests: storage2 75 %, 2 more 25 %";
        let db = facts(Tab::Tenants, "main", "db");
        assert!(db.contains(&("by host", parts.to_owned())), "{db:?}");
        let main = facts(Tab::Pools, "", "main");
        let others: Vec<&String> = main.iter().filter(|(name, _)| *name == "elsewhere").map(|(_, text)| text).collect();
        assert_eq!(others, [&format!("web, {parts}")]);
    }
}
