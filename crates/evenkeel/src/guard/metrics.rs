//! `/metrics` of the agent, made from the same records as `/api/v1/state`.

use std::fmt;

use axum::http::HeaderMap;
use axum::response::Response;
use evenkeel_guard::agent::array_record::{ArrayState, ArrayVolumeState, QueueState};
use evenkeel_guard::agent::guarantee_record::{DirectionState, GuaranteeState, HybridState};
use evenkeel_guard::agent::osd_record::OsdState;
use evenkeel_guard::agent::record::{ClientState, DeviceState, ResourceState, State};
use evenkeel_policy::verdict::{self, Verdict};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::http::openmetrics::{
    self, Labels, Metric, Row, SECONDS, counter, each, exchange, family, gauge, ms, some, whether,
};

/// Clients that a scrape tells of one by one: those with the most load. An agent may see a hundred thousand, and each
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
    counter("ticks", "Decisions taken, each for all resources.", None, |s| s.ticks_total),
    counter("late_ticks", "Decisions that came late.", None, |s| s.late_ticks_total),
    counter("errors", "Measurements and changes that failed.", None, |s| s.errors_total),
    gauge("map_age", "Age of the map of clients and devices.", SECONDS, |s| s.map_age_s),
];

const RESOURCE: &[Metric<ResourceState>] = &[
    gauge("goal", "What the latency of reads is to stay below.", SECONDS, |r| ms(Some(r.target_ms))),
    gauge("goal_missed", "1 while the figure of the goal is above it and somebody reads.", None, |r| {
        let figure = r.read_percentile_ms.or(r.read_response_ms);
        whether(verdict::latency(r.target_ms, figure, &r.reason).is_missed())
    }),
    gauge(
        "goal_unachievable",
        "1 while the goal is missed with every noisy client throttled as far as allowed.",
        None,
        |r| whether(r.reason == "unachievable"),
    ),
    gauge("goal_throttle_ineffective", "1 while a trial has shown that the delay changes nothing.", None, |r| {
        whether(r.reason == "ineffective")
    }),
    gauge("goal_signal_lost", "1 while nothing is measured, so that no client is throttled.", None, |r| {
        whether(r.reason == "signal_lost")
    }),
    gauge(
        "read_response_time",
        "Mean of the last interval; absent without reads.",
        SECONDS,
        |r| ms(r.read_response_ms),
    ),
    gauge("read_response_time_percentile", "That of the goal, over 5 to 10 s; absent for the mean.", SECONDS, |r| {
        ms(r.read_percentile_ms)
    }),
    gauge("read_bytes_per_second", "Read from the devices in the last interval.", None, |r| Some(r.read_bytes_per_s)),
    gauge("write_bytes_per_second", "Written to them, likewise.", None, |r| Some(r.write_bytes_per_s)),
    gauge("in_flight_requests", "Requests inside the devices.", None, |r| some(r.in_flight)),
    gauge("delay", "Mean delay of those throttled.", SECONDS, |r| ms(Some(r.mean_delay_ms))),
    gauge("clients", "Clients that reach the resource.", None, |r| some(r.clients.len() as u64)),
    gauge("held_clients", "Of those, throttled.", None, |r| {
        some(r.clients.iter().filter(|client| client.delay_ms > 0.0).count() as u64)
    }),
];

const DEVICE: &[Metric<DeviceState>] = &[
    gauge("device_read_response_time", "Mean of the last interval; absent without reads.", SECONDS, |d| {
        ms(d.read_response_ms)
    }),
    gauge("device_write_response_time", "Mean of the last interval; absent without writes.", SECONDS, |d| {
        ms(d.write_response_ms)
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
    gauge("client_load_bytes_per_second", "What a client moves, likewise.", None, |c| Some(c.bytes_per_s)),
];

const HYBRID: &[Metric<HybridState>] = &[
    gauge("hybrid_slow_device_bytes_per_second", "What the slow device is taken to give.", None, |h| {
        h.slow_bytes_per_s
    }),
    gauge(
        "hybrid_background_bytes_per_second",
        "What the slow device does for groups without a guarantee.",
        None,
        |h| Some(h.background_bytes_per_s),
    ),
];

const GROUP: &[Metric<GuaranteeState>] =
    &[gauge("guarantee_foreign", "1 while another program has set limits, which are left alone.", None, |g| {
        whether(g.foreign_limit.is_some())
    })];

/// Of guaranteed throughputs, in bytes or requests as the label `unit` says.
const GUARANTEE: &[Metric<DirectionState>] = &[
    gauge("guarantee_guaranteed_per_second", "What was guaranteed, in the unit of the guarantee.", None, |d| {
        Some(d.guaranteed)
    }),
    gauge("guarantee_measured_per_second", "What it got in the last period.", None, |d| Some(d.measured)),
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

const ARRAY: &[Metric<ArrayState>] = &[
    gauge("array_slots", "All slots together, on all hosts; absent = no bound.", None, |a| a.total_slots),
    gauge("array_exchanged", "1 while other hosts have a say.", None, |a| whether(a.exchanged)),
    gauge(
        "array_goal_scale_ratio",
        "All goals could be kept if they were so many times as large; up to 1 they are kept. Absent without goals, or where 10 would not do.",
        None,
        |a| a.tightness,
    ),
];

const VOLUME: &[Metric<ArrayVolumeState>] = &[
    gauge("volume_goal", "What the mean latency is to stay below; absent = no goal.", SECONDS, |v| {
        ms(v.slots.target_ms)
    }),
    gauge(
        "volume_goal_unachievable",
        "1 while its goal cannot be kept beside the others; absent = no goal.",
        None,
        |v| v.slots.target_ms.and_then(|_| whether(v.slots.reason == "unachievable")),
    ),
    gauge("volume_response_time", "Mean of the last period; absent without requests.", SECONDS, |v| ms(v.response_ms)),
    gauge("volume_device_latency", "Mean time inside the array, likewise.", SECONDS, |v| ms(v.slots.device_latency_ms)),
    gauge("volume_needed_slots", "Slots that its goal needs.", None, |v| Some(v.slots.need)),
    gauge("volume_granted_slots", "Slots that it has; absent = no bound.", None, |v| v.slots.granted),
    gauge("volume_used_slots", "Slots that it used, in the mean.", None, |v| Some(v.slots.used)),
    counter("volume_goal_windows", "Seconds judged.", None, |v| v.slots.windows_total),
    counter("volume_goal_violations", "Of those, above the goal.", None, |v| v.slots.violated_total),
];

const QUEUE: &[Metric<QueueState>] = &[
    gauge("queue_length", "Requests that a disk may have inside, for each hardware queue.", None, |q| {
        q.value.map(f64::from)
    }),
    gauge("queue_foreign", "1 while somebody else has set the length, which is left alone.", None, |q| {
        whether(q.foreign.is_some())
    }),
    counter("queue_changes", "Times that it was changed.", None, |q| q.changes_total),
];

const OSD: &[Metric<OsdState>] = &[
    gauge("osd_controlled", "1 if the throttle is set by the agent.", None, |o| whether(o.standing == "controlled")),
    gauge("osd_foreign", "1 while somebody else has set the throttle, which is left alone.", None, |o| {
        whether(o.standing == "foreign")
    }),
    gauge("osd_unusable", "1 while the OSD cannot be controlled.", None, |o| whether(o.standing == "unusable")),
    gauge("osd_budget_bytes", "Cost that may be inside the store, as decided; absent = unbounded.", None, |o| {
        o.budget_bytes.and_then(some)
    }),
    gauge("osd_throttle_bytes", "Cost that may be inside the store, as the OSD says.", None, |o| {
        o.throttle_bytes.and_then(some)
    }),
    gauge("osd_inside_bytes", "Cost inside the store.", None, |o| some(o.measured.in_flight_bytes)),
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
        resources(encoder, &state.resources)?;
        exchange(encoder, state.exchange.as_ref())?;
        arrays(encoder, &state.arrays)?;
        hybrids(encoder, &state.hybrids)?;
        each(encoder, OSD, &rows(&Vec::new(), "osd", &state.osds, |osd| &osd.name))
    }
}

/// A row for each of these, with one label more than what they belong to.
fn rows<'a, T>(outer: &Labels<'a>, label: &'static str, all: &'a [T], name: fn(&T) -> &str) -> Vec<Row<'a, T>> {
    all.iter().map(|one| (outer.iter().cloned().chain([(label, name(one).into())]).collect(), one)).collect()
}

fn resources(encoder: &mut DescriptorEncoder<'_>, resources: &[ResourceState]) -> fmt::Result {
    let resources = rows(&Vec::new(), "resource", resources, |resource| &resource.name);
    each(encoder, RESOURCE, &resources)?;
    let devices = resources.iter().flat_map(|(of, r)| rows(of, "device", &r.devices, |device| &device.name));
    each(encoder, DEVICE, &devices.collect::<Vec<_>>())?;
    let clients = resources.iter().flat_map(|(of, resource)| resource.clients.iter().map(move |client| (of, client)));
    let mut clients: Vec<(&Labels<'_>, &ClientState)> = clients.collect();
    clients.sort_by(|(_, a), (_, b)| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    clients.truncate(CLIENTS_SHOWN);
    let clients = clients
        .into_iter()
        .map(|(of, client)| (of.iter().cloned().chain([("client", client.address.as_str().into())]).collect(), client));
    each(encoder, CLIENT, &clients.collect::<Vec<_>>())
}

fn arrays(encoder: &mut DescriptorEncoder<'_>, arrays: &[ArrayState]) -> fmt::Result {
    let arrays = rows(&Vec::new(), "array", arrays, |array| &array.name);
    each(encoder, ARRAY, &arrays)?;
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

fn hybrids(encoder: &mut DescriptorEncoder<'_>, hybrids: &[HybridState]) -> fmt::Result {
    let hybrids = rows(&Vec::new(), "hybrid", hybrids, |hybrid| &hybrid.name);
    each(encoder, HYBRID, &hybrids)?;
    let groups = hybrids.iter().flat_map(|(of, hybrid)| {
        hybrid.tenants.iter().map(move |group| {
            let names = [("tenant", group.tenant.as_str().into()), ("group", group.group.as_str().into())];
            (of.iter().cloned().chain(names).collect(), group)
        })
    });
    let groups: Vec<Row<'_, GuaranteeState>> = groups.collect();
    each(encoder, GROUP, &groups)?;
    let directions = groups.iter().flat_map(|(of, group)| {
        let both = [("read", &group.read), ("write", &group.write)];
        both.into_iter().filter_map(move |(direction, guarantee)| {
            let guarantee = guarantee.as_ref()?;
            let kind = [("direction", direction.into()), ("unit", guarantee.unit.as_str().into())];
            Some((of.iter().cloned().chain(kind).collect(), guarantee))
        })
    });
    each(encoder, GUARANTEE, &directions.collect::<Vec<_>>())
}
