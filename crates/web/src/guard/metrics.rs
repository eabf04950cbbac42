//! `/metrics` of the agent, made from the same records as `/api/v1/state`.

use std::fmt;

use axum::http::HeaderMap;
use axum::response::Response;
use evenkeel_guard::loops::record::{
    At, CgroupState, ClientState, DeviceState, DirectionState, GroupState, OsdState, PacketsState, PoolState,
    QueueDepthState, QueueState, State, VolumeState,
};
use evenkeel_policy::config::Enforcement;
use evenkeel_policy::verdict::{self, Verdict};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::openmetrics::{
    self, Labels, Metric, Row, SECONDS, cluster, counter, each, family, gauge, ms, some, whether,
};

/// Clients that a scrape has one by one: those with the most load. An agent may see a hundred thousand, and each
/// would be series of its own; `guard status` shows all.
const CLIENTS_SHOWN: usize = 500;

/// The answer to a scrape.
pub(super) fn answer(asked: &HeaderMap, state: State) -> Response {
    openmetrics::answer(asked, "evenkeel_guard", Snapshot(state))
}

#[derive(Debug)]
struct Snapshot(State);

const AGENT: &[Metric<State>] = &[
    gauge("uptime", "Time since the start.", SECONDS, |s| Some(s.uptime_s)),
    gauge("acting", "1 if decisions take effect.", None, |s| whether(s.acting)),
    counter("ticks", "Decisions taken, each for all pools.", None, |s| s.ticks_total),
    counter("late_ticks", "Decisions that came late.", None, |s| s.late_ticks_total),
    counter("errors", "Measurements and changes that failed.", None, |s| s.errors_total),
    gauge("map_age", "Age of the map of clients and devices.", SECONDS, |s| s.map_age_s),
];

/// Of pools with a latency target.
const POOL: &[Metric<PoolState>] = &[
    gauge("latency_target_missed", "1 while the figure of the target is above it and there are reads.", None, |p| {
        let At::Packets(at) = &p.at else { return None };
        let figure = at.read_percentile_ms.or(at.read_latency_ms);
        whether(verdict::latency(at.target_ms, figure, &p.reason).is_missed())
    }),
    gauge(
        "latency_target_unachievable",
        "1 while the target is missed with every noisy client throttled as far as allowed.",
        None,
        |p| whether(p.reason == "unachievable"),
    ),
    gauge("throttle_ineffective", "1 while a trial has shown that the delay changes nothing.", None, |p| {
        whether(p.reason == "ineffective")
    }),
    gauge("signal_lost", "1 while nothing is measured, so that no client is throttled.", None, |p| {
        whether(p.reason == "signal_lost")
    }),
];

const PACKETS: &[Metric<PacketsState>] = &[
    gauge("latency_target", "Latency target for reads.", SECONDS, |r| ms(Some(r.target_ms))),
    gauge("read_latency", "Mean of the last interval; absent without reads.", SECONDS, |r| ms(r.read_latency_ms)),
    gauge("read_latency_percentile", "That of the target, over 5 to 10 s; absent for the mean.", SECONDS, |r| {
        ms(r.read_percentile_ms)
    }),
    gauge("read_bytes_per_second", "Read from the devices in the last interval.", None, |r| Some(r.read_bytes_per_s)),
    gauge("write_bytes_per_second", "Written to them, likewise.", None, |r| Some(r.write_bytes_per_s)),
    gauge("in_flight_requests", "Requests in flight in the devices.", None, |r| some(r.in_flight)),
    gauge("delay", "Mean delay of those throttled.", SECONDS, |r| ms(Some(r.mean_delay_ms))),
    gauge("clients", "Clients that reach the pool.", None, |r| some(r.clients.len() as u64)),
    gauge("throttled_clients", "Of those, throttled.", None, |r| {
        some(r.clients.iter().filter(|client| client.delay_ms > 0.0).count() as u64)
    }),
];

const DEVICE: &[Metric<DeviceState>] =
    &[
        gauge("device_read_latency", "Mean of the last interval; absent without reads.", SECONDS, |d| {
            ms(d.read_latency_ms)
        }),
        gauge("device_write_latency", "Mean of the last interval; absent without writes.", SECONDS, |d| {
            ms(d.write_latency_ms)
        }),
    ];

/// Of the clients with the most load.
const CLIENT: &[Metric<ClientState>] = &[
    gauge(
        "client_delay",
        "How long what is sent to a client waits; the 500 clients with the most load.",
        SECONDS,
        |c| ms(Some(c.delay_ms)),
    ),
    gauge("client_load_bytes_per_second", "Throughput of a client, likewise.", None, |c| Some(c.bytes_per_s)),
];

const CGROUP: &[Metric<CgroupState>] = &[
    gauge("slow_device_bytes_per_second", "Assumed throughput of the slow device.", None, |h| h.slow_bytes_per_s),
    gauge("background_bytes_per_second", "Throughput of the slow device for groups without a guarantee.", None, |h| {
        Some(h.background_bytes_per_s)
    }),
];

const GROUP: &[Metric<GroupState>] =
    &[gauge("guarantee_foreign", "1 while another program has set limits, which are left alone.", None, |g| {
        whether(g.foreign_limit.is_some())
    })];

/// Of guaranteed throughputs, in bytes or requests as the label `unit` says.
const GUARANTEE: &[Metric<DirectionState>] = &[
    gauge("guarantee_guaranteed_per_second", "Guaranteed throughput, in the unit of the guarantee.", None, |d| {
        Some(d.guaranteed)
    }),
    gauge("guarantee_measured_per_second", "Its throughput in the last period.", None, |d| Some(d.measured)),
    gauge("guarantee_limit_per_second", "The limit that is assigned.", None, |d| Some(d.limit)),
    gauge("guarantee_miss_ratio", "Part of its bytes that reached the slow device; absent without I/O.", None, |d| {
        d.miss_rate
    }),
    gauge(
        "guarantee_unachievable",
        "1 while it asks for what it was guaranteed and the devices cannot give it.",
        None,
        |d| whether(verdict::guarantee(d.guaranteed, Some(d.measured), &d.reason) == Verdict::Unachievable),
    ),
];

const QUEUE_DEPTH: &[Metric<QueueDepthState>] = &[
    gauge("slots", "All slots together, on all hosts; absent = no bound.", None, |a| a.total_slots),
    gauge("slots_clustered", "1 while decided with other hosts.", None, |a| whether(a.clustered)),
    gauge(
        "latency_target_scale_ratio",
        "All targets could be met if they were so many times as large; up to 1 they are met. Absent without targets, or where 10 would not do.",
        None,
        |a| a.tightness,
    ),
];

const VOLUME: &[Metric<VolumeState>] = &[
    gauge("volume_latency_target", "Target for the mean latency; absent = no target.", SECONDS, |v| {
        ms(v.slots.target_ms)
    }),
    gauge(
        "volume_latency_target_unachievable",
        "1 while its target cannot be met beside the others; absent = no target.",
        None,
        |v| v.slots.target_ms.and_then(|_| whether(v.slots.reason == "unachievable")),
    ),
    gauge("volume_latency", "Mean of the last period; absent without requests.", SECONDS, |v| ms(v.latency_ms)),
    gauge("volume_device_latency", "Mean time in the array, likewise.", SECONDS, |v| ms(v.slots.device_latency_ms)),
    gauge("volume_needed_slots", "Slots that its target needs.", None, |v| Some(v.slots.need)),
    gauge("volume_granted_slots", "Slots that it has; absent = no bound.", None, |v| v.slots.granted),
    gauge("volume_used_slots", "Slots that it used, in the mean.", None, |v| Some(v.slots.used)),
    counter("volume_latency_target_windows", "Seconds judged.", None, |v| v.slots.windows_total),
    counter("volume_latency_target_violations", "Of those, above the target.", None, |v| v.slots.violated_total),
];

const QUEUE: &[Metric<QueueState>] = &[
    gauge("queue_length", "Requests that a disk may have in flight, for each hardware queue.", None, |q| {
        q.value.map(f64::from)
    }),
    gauge("queue_foreign", "1 while another program has set the length, which is left alone.", None, |q| {
        whether(q.foreign.is_some())
    }),
    counter("queue_changes", "Times that it was changed.", None, |q| q.changes_total),
];

const OSD: &[Metric<OsdState>] = &[
    gauge("osd_controlled", "1 if the throttle is set by the agent.", None, |o| whether(o.condition == "controlled")),
    gauge("osd_foreign", "1 while another program has set the throttle, which is left alone.", None, |o| {
        whether(o.condition == "foreign")
    }),
    gauge("osd_unusable", "1 while the OSD cannot be controlled.", None, |o| whether(o.condition == "unusable")),
    gauge("osd_budget_bytes", "Cost that may be in flight in the store, as decided.", None, |o| some(o.budget_bytes)),
    gauge("osd_throttle_bytes", "Cost that may be in flight in the store, as the OSD says.", None, |o| {
        o.throttle_bytes.and_then(some)
    }),
    gauge("osd_in_flight_bytes", "Cost in flight in the store.", None, |o| some(o.measured.in_flight_bytes)),
    gauge("osd_waiting_transactions", "Transactions that wait at the throttle.", None, |o| some(o.measured.waiting)),
    gauge("osd_target", "Latency that the controller aims at; absent = it has no aim.", SECONDS, |o| ms(o.target_ms)),
    gauge("osd_store_latency", "Mean of the last interval; absent without commits.", SECONDS, |o| {
        ms(o.measured.store_latency_ms)
    }),
    gauge("osd_commits_per_second", "Transactions committed in the last interval.", None, |o| {
        Some(o.measured.commits_per_s)
    }),
    counter("osd_samples", "Samples taken.", None, |o| o.samples_total),
    counter("osd_skipped_samples", "Samples left out because an answer came late.", None, |o| o.skipped_total),
    counter("osd_changes", "Times that the throttle was set.", None, |o| o.changes_total),
    counter("osd_restarts", "Times that the OSD was seen to have started anew.", None, |o| o.restarts_total),
    counter("osd_errors", "Questions and changes that failed.", None, |o| o.errors_total),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (state, encoder) = (&self.0, &mut encoder);
        let build = vec![("version", state.version.as_str().into())];
        family(encoder, ("build_info", "Version, always 1.", None), MetricType::Gauge, [(build, 1.0)].into_iter())?;
        each(encoder, AGENT, &[(Vec::new(), state)])?;
        cluster(encoder, state.cluster.as_ref())?;
        let pools = rows(&Vec::new(), "pool", &state.pools, |pool| &pool.name);
        let at_packets: Vec<_> =
            pools.iter().filter(|(_, pool)| pool.point() == Enforcement::Packets).cloned().collect();
        each(encoder, POOL, &at_packets)?;
        packets(encoder, &of(state.packets()))?;
        arrays(encoder, &of(state.queue_depths()))?;
        cgroups(encoder, &of(state.cgroups()))?;
        let osds = state.osds().map(|(pool, at)| (vec![("osd", pool.name.as_str().into())], at));
        each(encoder, OSD, &osds.collect::<Vec<_>>())
    }
}

/// A row for each pool, by its name.
fn of<'a, T>(pools: impl Iterator<Item = (&'a PoolState, &'a T)>) -> Vec<Row<'a, T>> {
    pools.map(|(pool, at)| (vec![("pool", pool.name.as_str().into())], at)).collect()
}

/// A row for each of these, with one label more than what they belong to.
fn rows<'a, T>(outer: &Labels<'a>, label: &'static str, all: &'a [T], name: fn(&T) -> &str) -> Vec<Row<'a, T>> {
    all.iter().map(|one| (outer.iter().cloned().chain([(label, name(one).into())]).collect(), one)).collect()
}

fn packets(encoder: &mut DescriptorEncoder<'_>, pools: &[Row<'_, PacketsState>]) -> fmt::Result {
    each(encoder, PACKETS, pools)?;
    let devices = pools.iter().flat_map(|(of, r)| rows(of, "device", &r.devices, |device| &device.name));
    each(encoder, DEVICE, &devices.collect::<Vec<_>>())?;
    let clients = pools.iter().flat_map(|(of, pool)| pool.clients.iter().map(move |client| (of, client)));
    let mut clients: Vec<(&Labels<'_>, &ClientState)> = clients.collect();
    clients.sort_by(|(_, a), (_, b)| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    clients.truncate(CLIENTS_SHOWN);
    let clients = clients
        .into_iter()
        .map(|(of, client)| (of.iter().cloned().chain([("client", client.address.as_str().into())]).collect(), client));
    each(encoder, CLIENT, &clients.collect::<Vec<_>>())
}

fn arrays(encoder: &mut DescriptorEncoder<'_>, arrays: &[Row<'_, QueueDepthState>]) -> fmt::Result {
    each(encoder, QUEUE_DEPTH, arrays)?;
    let volumes = arrays.iter().flat_map(|(of, array)| rows(of, "volume", &array.volumes, |volume| &volume.name));
    let volumes: Vec<_> = volumes.collect();
    each(encoder, VOLUME, &volumes)?;
    let queues = volumes.iter().flat_map(|(of, volume)| {
        volume.queues.iter().map(move |queue| {
            let of = of.iter().cloned();
            let disk = [("disk", queue.disk.as_str().into()), ("setting", queue.setting.as_str().into())];
            (of.chain(disk).collect(), queue)
        })
    });
    each(encoder, QUEUE, &queues.collect::<Vec<_>>())
}

fn cgroups(encoder: &mut DescriptorEncoder<'_>, pools: &[Row<'_, CgroupState>]) -> fmt::Result {
    each(encoder, CGROUP, pools)?;
    let groups = pools.iter().flat_map(|(of, pool)| {
        pool.groups.iter().map(move |group| {
            let names = [("tenant", group.tenant.as_str().into()), ("group", group.group.as_str().into())];
            (of.iter().cloned().chain(names).collect(), group)
        })
    });
    let groups: Vec<Row<'_, GroupState>> = groups.collect();
    each(encoder, GROUP, &groups)?;
    let directions = groups.iter().flat_map(|(of, group)| {
        let both = [("read", &group.read), ("write", &group.write)];
        both.into_iter().filter_map(move |(direction, guarantee)| {
            let guarantee = guarantee.as_ref()?;
            let kind = [("direction", direction.into()), ("unit", guarantee.unit.name().into())];
            Some((of.iter().cloned().chain(kind).collect(), guarantee))
        })
    });
    each(encoder, GUARANTEE, &directions.collect::<Vec<_>>())
}
