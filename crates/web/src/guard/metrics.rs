//! The agent's `/metrics`, made from the records that `/api/v1/state` shows, too.

use std::fmt;

use axum::http::HeaderMap;
use axum::response::Response;
use evenkeel_guard::loops::record::{
    At, CgroupState, ClientState, DeviceState, GroupState, OsdState, PacketsState, PoolState, QueueDepthState,
    QueueState, State, VolumeState,
};
use evenkeel_policy::state::GuaranteeState;
use evenkeel_policy::verdict::{self, Verdict};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::openmetrics::{
    self, BYTES, Description, Family, Row, SECONDS, TROUBLES, Table, Values, cluster, cluster_described, counter, each,
    family, gauge, help, ms, rows, some, troubles, whether,
};

const PREFIX: &str = "evenkeel_guard";
const READS: &str = "Mean read latency, last interval.";
const PERCENTILE: &str = "Target's percentile of read latency, over 5 to 10 s.";

/// The most clients that have series of their own in a scrape; the clients with the most load are chosen. An agent may see a
/// hundred thousand clients; `guard status` shows all.
const CLIENTS_SHOWN: usize = 500;

/// The answer to a scrape.
pub(super) fn answer(asked: &HeaderMap, state: State) -> Response {
    openmetrics::answer(asked, PREFIX, Snapshot(state))
}

#[derive(Debug)]
struct Snapshot(State);

const BUILD: Family = Family::gauges("build_info", &["version"], "Always 1.");

const AGENT: Table<State> = Table {
    labels: &[],
    metrics: &[
        gauge("uptime", "Time since the agent's start.", SECONDS, |s| Some(s.uptime_s)),
        gauge("acting", "1 if decisions take effect.", None, |s| whether(s.acting)),
        counter("ticks", "Decisions, each for all pools.", None, |s| s.ticks_total),
        counter("late_ticks", "Late decisions.", None, |s| s.late_ticks_total),
        counter("errors", "Failed measurements and changes.", None, |s| s.errors_total),
        gauge("map_age", "Age of the map of clients and devices.", SECONDS, |s| s.map_age_s),
    ],
};

/// Metrics of pools whose clients' packets are delayed for a latency target.
const PACKETS: Table<PoolState> = Table {
    labels: &["pool"],
    metrics: &[
        gauge("latency_target_missed", "1 while reads miss the target.", None, missed),
        gauge(
            "latency_target_unachievable",
            "1 while missed with every noisy client throttled as far as allowed.",
            None,
            |p| reason_is(p, "unachievable"),
        ),
        gauge("throttle_ineffective", "1 while a trial has shown no effect of the delay.", None, |p| {
            reason_is(p, "ineffective")
        }),
        gauge("signal_lost", "1 while nothing is measured, and no client throttled.", None, |p| {
            reason_is(p, "signal_lost")
        }),
        gauge("latency_target", "Latency target for reads.", SECONDS, target),
        gauge("read_latency", READS, SECONDS, read_latency),
        gauge("read_latency_percentile", PERCENTILE, SECONDS, |p| ms(p.percentile_ms())),
        gauge("read_bytes_per_second", "Bytes read.", None, |p| packets(p).map(|at| at.read_bytes_per_s)),
        gauge("write_bytes_per_second", "Bytes written.", None, |p| packets(p).map(|at| at.write_bytes_per_s)),
        gauge("in_flight_requests", "Requests in flight.", None, |p| some(p.in_flight)),
        gauge("delay", "Mean delay of throttled clients.", SECONDS, |p| ms(Some(p.mean_delay_ms))),
        gauge("clients", "Clients.", None, |p| some(packets(p)?.clients.len() as u64)),
        gauge("throttled_clients", "Throttled clients.", None, |p| {
            some(packets(p)?.clients.iter().filter(|client| client.delay_ms > 0.0).count() as u64)
        }),
    ],
};

/// The state of a pool whose clients' packets are delayed; `None` for other pools.
fn packets(pool: &PoolState) -> Option<&PacketsState> {
    if let At::Packets(at) = &pool.at { Some(at) } else { None }
}

fn target(pool: &PoolState) -> Option<f64> {
    ms(pool.latency_target.as_ref().map(|target| target.target_ms))
}

fn missed(pool: &PoolState) -> Option<f64> {
    let target = pool.latency_target.as_ref()?;
    whether(verdict::of_latency(target, &pool.reason).verdict.is_missed())
}

/// 1 if the newest decision on the pool has this reason, else 0; `None` for a pool without a latency target.
fn reason_is(pool: &PoolState, reason: &str) -> Option<f64> {
    pool.latency_target.as_ref().and_then(|_| whether(pool.reason == reason))
}

fn read_latency(pool: &PoolState) -> Option<f64> {
    ms(pool.reads.as_ref()?.latency_ms)
}

const DEVICE: Table<DeviceState> = Table {
    labels: &["pool", "device"],
    metrics: &[
        gauge("device_read_latency", READS, SECONDS, |d| ms(d.read_latency_ms)),
        gauge("device_write_latency", "Mean write latency, last interval.", SECONDS, |d| ms(d.write_latency_ms)),
    ],
};

/// Metrics of each of the [`CLIENTS_SHOWN`] clients with the most load.
const CLIENT: Table<ClientState> = Table {
    labels: &["pool", "client"],
    metrics: &[
        gauge("client_delay", "Delay of packets to the client.", SECONDS, |c| ms(Some(c.delay_ms))),
        gauge("client_load_bytes_per_second", "Client's throughput.", None, |c| Some(c.lately.bytes_per_s)),
    ],
};

const CGROUP: Table<CgroupState> = Table {
    labels: &["pool"],
    metrics: &[
        gauge("slow_device_bytes_per_second", "Assumed throughput of the slow device.", None, |h| h.slow_bytes_per_s),
        gauge("background_bytes_per_second", "Slow device's load from groups without a guarantee.", None, |h| {
            Some(h.background_bytes_per_s)
        }),
    ],
};

/// Metrics of devices with a latency target for control groups, or with tenants' limits.
const LOCAL: Table<PoolState> = Table {
    labels: &["pool"],
    metrics: &[
        gauge("local_latency_target", "Latency target for reads.", SECONDS, target),
        gauge("local_read_latency", READS, SECONDS, read_latency),
        gauge("local_read_latency_percentile", PERCENTILE, SECONDS, |p| ms(p.percentile_ms())),
        gauge("local_latency_target_missed", "1 while reads miss the target.", None, missed),
        gauge("local_latency_target_unachievable", "1 while missed with all noisy groups throttled.", None, |p| {
            reason_is(p, "unachievable")
        }),
        gauge("local_throttle_ineffective", "1 while a trial has shown no effect of limits.", None, |p| {
            reason_is(p, "ineffective")
        }),
        gauge("local_bytes_per_second", "Bytes read and written.", None, |p| Some(p.lately.bytes_per_s)),
        gauge("local_in_flight_requests", "Requests in flight.", None, |p| some(p.in_flight)),
        gauge("local_delay", "Mean wait that limits add for noisy groups.", SECONDS, |p| ms(Some(p.mean_delay_ms))),
    ],
};

/// Metrics of the groups of such devices.
const LOCAL_GROUP: Table<GroupState> = Table {
    labels: &["pool", "tenant", "group"],
    metrics: &[
        gauge("group_delay", "Wait that limits add to a request.", SECONDS, |g| ms(Some(g.delay_ms))),
        gauge("group_load_bytes_per_second", "Group's throughput.", None, |g| Some(g.lately.bytes_per_s)),
    ],
};

const GROUP: Table<GroupState> = Table {
    labels: &["pool", "tenant", "group"],
    metrics: &[gauge("guarantee_foreign", "1 while another program's limit stays in force.", None, |g| {
        whether(g.foreign_limit.is_some())
    })],
};

/// Metrics of guaranteed throughputs, in bytes or requests according to the label `unit`.
const GUARANTEE: Table<GuaranteeState> = Table {
    labels: &["pool", "tenant", "group", "direction", "unit"],
    metrics: &[
        gauge("guarantee_guaranteed_per_second", "Guaranteed throughput.", None, |d| some(d.guaranteed_per_s)),
        gauge("guarantee_measured_per_second", "Throughput in the last period.", None, |d| d.measured_per_s),
        gauge("guarantee_limit_per_second", "Limit assigned.", None, |d| some(d.limit_per_s)),
        gauge("guarantee_miss_ratio", "Part of the bytes that missed the cache.", None, |d| d.miss_rate),
        gauge("guarantee_unachievable", "1 while the devices cannot sustain the guarantee.", None, |d| {
            whether(verdict::of_guarantee(d).verdict == Verdict::Unachievable)
        }),
    ],
};

const QUEUE_DEPTH: Table<QueueDepthState> = Table {
    labels: &["pool"],
    metrics: &[
        gauge("slots", help::SLOTS, None, |a| a.slots.total),
        gauge("slots_clustered", help::CLUSTERED, None, |a| whether(a.slots.clustered)),
        gauge("latency_target_scale_ratio", help::SCALE, None, |a| a.slots.tightness),
    ],
};

const VOLUME: Table<VolumeState> = Table {
    labels: &["pool", "volume"],
    metrics: &[
        gauge("volume_latency_target", "Target for the mean latency.", SECONDS, |v| ms(v.slots.target_ms)),
        gauge("volume_latency_target_unachievable", help::UNACHIEVABLE, None, |v| {
            v.slots.target_ms.and_then(|_| whether(v.slots.reason == "unachievable"))
        }),
        gauge("volume_latency", "Mean latency in the last period.", SECONDS, |v| ms(v.lately.latency_ms)),
        gauge("volume_device_latency", "Mean device latency in the last period.", SECONDS, |v| {
            ms(v.slots.device_latency_ms)
        }),
        gauge("volume_needed_slots", help::NEEDED, None, |v| Some(v.slots.need)),
        gauge("volume_granted_slots", help::GRANTED, None, |v| v.slots.granted),
        gauge("volume_used_slots", help::USED, None, |v| Some(v.slots.used)),
        counter("volume_latency_target_windows", help::WINDOWS, None, |v| v.slots.windows_total),
        counter("volume_latency_target_violations", help::VIOLATIONS, None, |v| v.slots.violated_total),
    ],
};

const QUEUE: Table<QueueState> = Table {
    labels: &["pool", "volume", "disk", "setting"],
    metrics: &[
        gauge("queue_length", "Requests allowed in flight, for each hardware queue.", None, |q| q.value.map(f64::from)),
        gauge("queue_foreign", "1 while another program's length stays in force.", None, |q| {
            whether(q.foreign.is_some())
        }),
        counter("queue_changes", "Changes of queue length.", None, |q| q.changes_total),
    ],
};

const OSD: Table<OsdState> = Table {
    labels: &["osd"],
    metrics: &[
        gauge("osd_controlled", "1 while the agent sets the throttle.", None, |o| whether(o.condition == "controlled")),
        gauge("osd_foreign", "1 while another program's throttle stays in force.", None, |o| {
            whether(o.condition == "foreign")
        }),
        gauge("osd_unusable", "1 while the throttle cannot be set.", None, |o| whether(o.condition == "unusable")),
        gauge("osd_budget", "Cost that may be in flight, as decided.", BYTES, |o| {
            o.admission.budget_bytes.and_then(some)
        }),
        gauge("osd_throttle", "Cost that may be in flight, as the OSD says.", BYTES, |o| {
            o.throttle_bytes.and_then(some)
        }),
        gauge("osd_in_flight", "Cost in flight.", BYTES, |o| some(o.admission.in_flight_bytes)),
        gauge("osd_waiting_transactions", "Transactions waiting at the throttle.", None, |o| some(o.waiting)),
        gauge("osd_target", "Latency target for commits.", SECONDS, |o| ms(o.admission.target_ms)),
        counter("osd_samples", "Samples taken.", None, |o| o.samples_total),
        counter("osd_skipped_samples", "Samples skipped after a late answer.", None, |o| o.skipped_total),
        counter("osd_changes", "Changes of the throttle.", None, |o| o.changes_total),
        counter("osd_restarts", "Restarts seen.", None, |o| o.restarts_total),
        counter("osd_errors", "Failed queries and changes.", None, |o| o.errors_total),
    ],
};

/// Figures of an OSD's store.
const STORE: Table<PoolState> = Table {
    labels: &["osd"],
    metrics: &[
        gauge("osd_store_latency", "Mean commit latency, last interval.", SECONDS, |p| ms(p.lately.latency_ms)),
        gauge("osd_commits_per_second", "Transactions committed.", None, |p| Some(p.lately.iops)),
    ],
};

/// The descriptions of all metrics of the agent, for the manual.
pub(crate) fn described() -> Vec<Description> {
    [
        PACKETS.described(PREFIX),
        QUEUE_DEPTH.described(PREFIX),
        CGROUP.described(PREFIX),
        LOCAL.described(PREFIX),
        LOCAL_GROUP.described(PREFIX),
        DEVICE.described(PREFIX),
        CLIENT.described(PREFIX),
        GROUP.described(PREFIX),
        GUARANTEE.described(PREFIX),
        VOLUME.described(PREFIX),
        QUEUE.described(PREFIX),
        OSD.described(PREFIX),
        STORE.described(PREFIX),
        cluster_described(PREFIX),
        TROUBLES.described(PREFIX),
        AGENT.described(PREFIX),
        BUILD.described(PREFIX),
    ]
    .concat()
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (state, encoder) = (&self.0, &mut encoder);
        family(encoder, &BUILD, [(vec![state.version.as_str().into()], 1.0)].into_iter())?;
        each(encoder, &AGENT, &[(Vec::new(), state)])?;
        troubles(encoder, &state.health)?;
        cluster(encoder, state.cluster.as_ref())?;
        each(encoder, &PACKETS, &of(state.packets().map(|(pool, _)| (pool, pool))))?;
        clients(encoder, &of(state.packets()))?;
        arrays(encoder, &of(state.queue_depths()))?;
        let locals = state.cgroups().filter(|(pool, _)| pool.reads.is_some());
        each(encoder, &LOCAL, &of(locals.map(|(pool, _)| (pool, pool))))?;
        let guaranteed = state.cgroups().filter(|(pool, _)| pool.reads.is_none());
        each(encoder, &CGROUP, &of(guaranteed))?;
        groups(encoder, &of(state.cgroups()))?;
        each(encoder, &OSD, &of(state.osds()))?;
        each(encoder, &STORE, &of(state.osds().map(|(pool, _)| (pool, pool))))
    }
}

/// One row for each record of a pool, with the pool's name as label.
fn of<'a, T>(pools: impl Iterator<Item = (&'a PoolState, &'a T)>) -> Vec<Row<'a, T>> {
    pools.map(|(pool, at)| (vec![pool.name.as_str().into()], at)).collect()
}

fn clients(encoder: &mut DescriptorEncoder<'_>, pools: &[Row<'_, PacketsState>]) -> fmt::Result {
    let devices = pools.iter().flat_map(|(of, r)| rows(of, &r.devices, |device| [device.name.as_str()]));
    each(encoder, &DEVICE, &devices.collect::<Vec<_>>())?;
    let clients = pools.iter().flat_map(|(of, pool)| pool.clients.iter().map(move |client| (of, client)));
    let mut clients: Vec<(&Values<'_>, &ClientState)> = clients.collect();
    clients.sort_by(|(_, a), (_, b)| b.lately.bytes_per_s.total_cmp(&a.lately.bytes_per_s));
    clients.truncate(CLIENTS_SHOWN);
    let clients = clients
        .into_iter()
        .map(|(of, client)| (of.iter().cloned().chain([client.address.as_str().into()]).collect(), client));
    each(encoder, &CLIENT, &clients.collect::<Vec<_>>())
}

fn arrays(encoder: &mut DescriptorEncoder<'_>, arrays: &[Row<'_, QueueDepthState>]) -> fmt::Result {
    each(encoder, &QUEUE_DEPTH, arrays)?;
    let volumes = arrays.iter().flat_map(|(of, array)| rows(of, &array.volumes, |v| [v.name.as_str()]));
    let volumes: Vec<_> = volumes.collect();
    each(encoder, &VOLUME, &volumes)?;
    let queues =
        volumes.iter().flat_map(|(of, volume)| rows(of, &volume.queues, |q| [q.disk.as_str(), q.setting.as_str()]));
    each(encoder, &QUEUE, &queues.collect::<Vec<_>>())
}

fn groups(encoder: &mut DescriptorEncoder<'_>, pools: &[Row<'_, CgroupState>]) -> fmt::Result {
    let groups = pools.iter().flat_map(|(of, pool)| rows(of, &pool.groups, |g| [g.tenant.as_str(), g.group.as_str()]));
    let groups: Vec<Row<'_, GroupState>> = groups.collect();
    each(encoder, &GROUP, &groups)?;
    let throttled: Vec<_> = groups.iter().filter(|(_, group)| !group.throttle.is_empty()).cloned().collect();
    each(encoder, &LOCAL_GROUP, &throttled)?;
    let directions =
        groups.iter().flat_map(|(of, group)| rows(of, group.guarantees(), |g| [g.of.as_str(), g.rates_in().name()]));
    each(encoder, &GUARANTEE, &directions.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use evenkeel_guard::loops::record::ReadsState;
    use evenkeel_policy::state::LatencyTargetState;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn a_local_device_has_the_figures_of_its_target_and_of_its_groups() {
        let (percentile, latency_ms) = ("mean".into(), Some(8.0));
        let target =
            LatencyTargetState { target_ms: 5.0, percentile, measured_ms: latency_ms, ..LatencyTargetState::default() };
        let group = GroupState {
            tenant: "bulk".into(),
            group: "slice/tar".into(),
            throttle: "normal".into(),
            delay_ms: 250.0,
            ..GroupState::default()
        };
        let at = At::Cgroup(CgroupState { groups: vec![group], ..CgroupState::default() });
        let pool = PoolState {
            name: "disk".into(),
            latency_target: Some(target),
            reads: Some(ReadsState { latency_ms, ..ReadsState::default() }),
            at,
            ..PoolState::default()
        };
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Snapshot(State { pools: vec![pool], ..State::default() })));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        for line in [
            "evenkeel_guard_local_latency_target_seconds{pool=\"disk\"} 0.005\n",
            "evenkeel_guard_local_read_latency_seconds{pool=\"disk\"} 0.008\n",
            "evenkeel_guard_local_latency_target_missed{pool=\"disk\"} 1.0\n",
            "evenkeel_guard_troubles{level=\"critical\"} 0.0\n",
            "evenkeel_guard_group_delay_seconds{pool=\"disk\",tenant=\"bulk\",group=\"slice/tar\"} 0.25\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        let other = "evenkeel_guard_background_bytes_per_second{pool=\"disk\"}";
        assert!(!text.contains(other), "a figure of guarantees");
    }
}
