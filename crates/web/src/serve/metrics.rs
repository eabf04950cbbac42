//! `/metrics` of the server, made from the same records as `/api/v1/state`.

use std::fmt;
use std::sync::Arc;

use axum::extract;
use axum::http::HeaderMap;
use axum::response::Response;
use evenkeel_policy::state::{
    GuaranteeState, LatencyTargetState, PoolState, RemoteState, SlotsState, State, TenantSlotsState, TenantState,
    VolumeState, WorkerState,
};
use evenkeel_policy::verdict::{self, Verdict};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::manager::Manager;
use crate::openmetrics::{
    BYTES, Metric, Row, SECONDS, answer, cluster, counter, each, family, gauge, histogram, ms, some, time, whether,
};

/// `/metrics`.
pub(super) async fn metrics(extract::State(manager): extract::State<Arc<Manager>>, asked: HeaderMap) -> Response {
    answer(&asked, "evenkeel", Snapshot(manager.state()))
}

#[derive(Debug)]
struct Snapshot(State);

const SERVER: &[Metric<State>] = &[
    gauge("uptime", "Time since the start.", SECONDS, |s| Some(s.uptime_s)),
    gauge("draining", "1 while a graceful stop is under way.", None, |s| whether(s.draining)),
    gauge("connections", "Connections at present.", None, |s| some(s.connections)),
    counter("placement_moves", "Connections moved between workers.", None, |s| s.placement.moves_total),
    counter("accepted_connections", "Connections accepted.", None, |s| s.accepted_connections_total),
    counter("refused_connections", "Connections closed at once because there were too many.", None, |s| {
        s.refused_connections_total
    }),
    counter("tls_handshakes", "NBD connections on which TLS came to stand.", None, |s| s.tls_handshakes_total),
    gauge("buffer_memory_used", "Payload buffers in use.", BYTES, |s| some(s.buffer_memory_used_bytes)),
    gauge("buffer_memory_limit", "Bound on payload buffers.", BYTES, |s| some(s.buffer_memory_limit_bytes)),
];

const WORKER: &[Metric<WorkerState>] = &[
    gauge("worker_connections", "Connections of a worker at present.", None, |w| some(w.connections)),
    counter("worker_requests", "Requests a worker received.", None, |w| w.requests_total),
    gauge("worker_busy_ratio", "Share of the last second for which a worker had something to do.", None, |w| {
        Some(w.busy)
    }),
    time("worker_cpu", "CPU time a worker used.", |w| w.cpu_s),
];

const POOL: &[Metric<PoolState>] = &[
    gauge("pool_queued_requests", "Requests waiting in front of admission.", None, |p| some(p.queued_requests)),
    gauge("pool_in_flight_requests", "Requests in flight.", None, |p| some(p.admission.in_flight_requests)),
    gauge("pool_in_flight", "Cost in flight.", BYTES, |p| some(p.admission.in_flight_bytes)),
    gauge("pool_budget", "Cost that may be in flight; absent = unbounded.", BYTES, |p| {
        p.admission.budget_bytes.and_then(some)
    }),
    gauge("pool_target", "Latency that admission control aims at; absent = it has no aim.", SECONDS, |p| {
        ms(p.admission.target_ms)
    }),
    gauge("pool_overdue_requests", "I/Os that have been in flight for too long.", None, |p| {
        some(p.overdue.len() as u64)
    }),
];

/// Of pools with a latency target.
const TARGET: &[Metric<LatencyTargetState>] = &[
    gauge("pool_latency_target", "Latency target for reads; absent = no target.", SECONDS, |g| Some(g.target_ms / 1e3)),
    gauge("pool_latency_measured", "The figure of the target when it was last measured.", SECONDS, |g| {
        ms(g.measured_ms)
    }),
    gauge("pool_latency_target_missed", "1 while that figure is above the target and there are reads.", None, |g| {
        whether(verdict::latency_target(g).is_missed())
    }),
    gauge(
        "pool_latency_target_unachievable",
        "1 while the target is missed with every noisy tenant throttled as far as allowed.",
        None,
        |g| whether(verdict::latency_target(g) == Verdict::Unachievable),
    ),
    gauge("pool_throttle_ineffective", "1 while a trial has shown that throttling changes nothing.", None, |g| {
        whether(g.decision.as_ref().is_some_and(|decision| decision.reason == "ineffective"))
    }),
    gauge("pool_throttled_tenants", "Tenants throttled for the target.", None, |g| {
        some(g.decision.as_ref().map_or(0, |decision| decision.throttled))
    }),
];

/// Of pools whose slots are shared out.
const POOL_SLOTS: &[Metric<SlotsState>] = &[
    gauge("pool_slots", "All slots together, on all hosts; absent = no bound.", None, |s| s.total),
    gauge("pool_slots_clustered", "1 while decided with other hosts.", None, |s| whether(s.clustered)),
    gauge(
        "pool_latency_target_scale_ratio",
        "All targets could be met if they were so many times as large; up to 1 they are met. Absent without targets, or where 10 would not do.",
        None,
        |s| s.tightness,
    ),
];

const TENANT: &[Metric<TenantState>] = &[
    gauge("tenant_connections", "Connections at present.", None, |t| some(t.connections)),
    gauge("tenant_queued_requests", "Requests waiting.", None, |t| some(t.queued_requests)),
    gauge("tenant_in_flight_requests", "Requests in flight.", None, |t| some(t.in_flight_requests)),
    gauge(
        "tenant_slots",
        "Requests it may have in flight while it is throttled for the pool's latency target.",
        None,
        |t| t.throttled.as_ref().and_then(|hold| some(hold.slots)),
    ),
    gauge("tenant_throttle_delay", "How long each of its slots stays empty after a request, likewise.", SECONDS, |t| {
        ms(t.throttled.as_ref().map(|hold| hold.delay_ms))
    }),
    counter("tenant_errors", "Requests the device failed.", None, |t| t.errors_total),
    histogram("tenant_queue_latency", "From arrival to admission.", |t| &t.queue_latency),
    histogram("tenant_device_latency", "From admission to completion.", |t| &t.device_latency),
    histogram("tenant_latency", "From arrival to completion.", |t| &t.latency),
];

/// Of tenants on pools whose slots are shared out.
const TENANT_SLOTS: &[Metric<TenantSlotsState>] = &[
    gauge("tenant_latency_target", "Its latency target; absent = no target.", SECONDS, |s| ms(s.target_ms)),
    gauge(
        "tenant_latency_target_unachievable",
        "1 while its target cannot be met beside the others; absent = no target.",
        None,
        |s| s.target_ms.and_then(|_| whether(s.reason == "unachievable")),
    ),
    gauge("tenant_needed_slots", "Slots that the target needs.", None, |s| Some(s.need)),
    gauge("tenant_granted_slots", "Slots granted; absent = no bound.", None, |s| s.granted),
    gauge("tenant_used_slots", "Slots used in the last period, in the mean.", None, |s| Some(s.used)),
    counter("tenant_latency_target_windows", "Seconds in which the target was judged.", None, |s| s.windows_total),
    counter("tenant_latency_target_violations", "Of those, how many violated it.", None, |s| s.violated_total),
];

/// Of guaranteed throughputs, in bytes or requests as the label `unit` says.
const GUARANTEE: &[Metric<GuaranteeState>] = &[
    gauge("tenant_guarantee", "Bytes or requests per second that are guaranteed; absent = none.", None, |p| {
        some(p.guaranteed_per_s)
    }),
    gauge("tenant_guarantee_measured", "Its throughput in the last interval.", None, |p| p.measured_per_s),
    gauge("tenant_guarantee_limit", "The limit assigned for that.", None, |p| some(p.limit_per_s)),
    gauge(
        "tenant_guarantee_unachievable",
        "1 while it asks for what is guaranteed and the device cannot give it.",
        None,
        |p| {
            let verdict = verdict::guarantee(p.guaranteed_per_s as f64, p.measured_per_s, &p.reason);
            whether(verdict == Verdict::Unachievable)
        },
    ),
];

type Count = fn(&TenantState) -> u64;

/// Counts of a tenant that differ in one label.
struct Counts {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    label: &'static str,
    values: &'static [(&'static str, Count)],
}

const TENANT_COUNTS: &[Counts] = &[
    Counts {
        name: "tenant_requests",
        help: "Requests completed.",
        unit: None,
        label: "op",
        values: &[
            ("read", |t| t.reads_total),
            ("write", |t| t.writes_total),
            ("flush", |t| t.flushes_total),
            ("meta", |t| t.metas_total),
        ],
    },
    Counts {
        name: "tenant_payload",
        help: "Payload moved.",
        unit: BYTES,
        label: "op",
        values: &[("read", |t| t.read_bytes_total), ("write", |t| t.write_bytes_total)],
    },
    Counts {
        name: "tenant_dispatched_requests",
        help: "Requests that went to the device, by what entitled them.",
        unit: None,
        label: "phase",
        values: &[("reservation", |t| t.by_reservation_total), ("weight", |t| t.by_weight_total)],
    },
];

const VOLUME: &[Metric<VolumeState>] = &[
    gauge("volume_size", "Size of the volume.", BYTES, |v| some(v.size_bytes)),
    gauge("volume_connections", "Connections at present.", None, |v| some(v.connections)),
    gauge("volume_failed", "1 after a failed flush: data may be lost.", None, |v| whether(v.error.is_some())),
];

/// Of volumes on another server.
const REMOTE: &[Metric<RemoteState>] = &[
    gauge("remote_connections", "Connections to the server behind the volume; 0 = it is away.", None, |r| {
        some(r.connections)
    }),
    counter("remote_reconnects", "Connections made in place of ones that broke.", None, |r| r.reconnects_total),
    counter("remote_retransmits", "Requests sent again after their connection broke.", None, |r| r.retransmits_total),
    gauge("remote_in_flight_requests", "Requests sent and not answered.", None, |r| some(r.in_flight_requests)),
    gauge("remote_waiting_requests", "Requests that wait to be sent.", None, |r| some(r.waiting_requests)),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (state, encoder) = (&self.0, &mut encoder);
        let build = vec![("version", state.version.as_str().into()), ("engine", state.engine.as_str().into())];
        let about = ("build_info", "Version and engine, always 1.", None);
        family(encoder, about, MetricType::Gauge, [(build, 1.0)].into_iter())?;
        each(encoder, SERVER, &[(Vec::new(), state)])?;
        let refused = state.refused_clients_total.iter();
        let refused = refused.map(|(reason, count)| (vec![("reason", reason.as_str().into())], *count as f64));
        let about = ("refused_clients", "Clients refused a volume, or closed before they had one, by reason.", None);
        family(encoder, about, MetricType::Counter, refused)?;
        let workers = state.workers.iter().map(|worker| (vec![("worker", worker.index.to_string().into())], worker));
        each(encoder, WORKER, &workers.collect::<Vec<_>>())?;
        pools(encoder, &state.pools)?;
        let volumes = state.volumes.iter().map(|volume| {
            (vec![("volume", volume.name.as_str().into()), ("pool", volume.pool.as_str().into())], volume)
        });
        let volumes: Vec<_> = volumes.collect();
        each(encoder, VOLUME, &volumes)?;
        each(encoder, REMOTE, &part(&volumes, |volume| volume.remote.as_ref()))?;
        cluster(encoder, state.cluster.as_ref())?;
        tenants(encoder, &state.pools)
    }
}

/// The rows of those that have this part, with the same labels.
fn part<'a, T, P>(rows: &[Row<'a, T>], part: impl Fn(&'a T) -> Option<&'a P>) -> Vec<Row<'a, P>> {
    rows.iter().filter_map(|(labels, record)| Some((labels.clone(), part(record)?))).collect()
}

fn pools(encoder: &mut DescriptorEncoder<'_>, pools: &[PoolState]) -> fmt::Result {
    let rows: Vec<_> = pools.iter().map(|pool| (vec![("pool", pool.name.as_str().into())], pool)).collect();
    each(encoder, POOL, &rows)?;
    each(encoder, TARGET, &part(&rows, |pool| pool.latency_target.as_ref()))?;
    each(encoder, POOL_SLOTS, &part(&rows, |pool| pool.slots.as_ref()))
}

fn tenants(encoder: &mut DescriptorEncoder<'_>, pools: &[PoolState]) -> fmt::Result {
    let rows: Vec<Row<'_, TenantState>> = pools
        .iter()
        .flat_map(|pool| {
            pool.tenants.iter().map(move |tenant| {
                (vec![("pool", pool.name.as_str().into()), ("tenant", tenant.name.as_str().into())], tenant)
            })
        })
        .collect();
    each(encoder, TENANT, &rows)?;
    each(encoder, TENANT_SLOTS, &part(&rows, |tenant| tenant.slots.as_ref()))?;
    let guarantees = rows.iter().flat_map(|(labels, tenant)| {
        tenant.guarantees.iter().map(move |guarantee| {
            let kind = [("of", guarantee.of.as_str().into()), ("unit", guarantee.unit.as_str().into())];
            (labels.iter().cloned().chain(kind).collect(), guarantee)
        })
    });
    each(encoder, GUARANTEE, &guarantees.collect::<Vec<_>>())?;
    for counts in TENANT_COUNTS {
        let samples = rows.iter().flat_map(|(labels, tenant)| {
            counts.values.iter().map(move |&(value, count)| {
                let kind = [(counts.label, value.into())];
                (labels.iter().cloned().chain(kind).collect(), count(tenant) as f64)
            })
        });
        family(encoder, (counts.name, counts.help, counts.unit.clone()), MetricType::Counter, samples)?;
    }
    Ok(())
}
