//! The server's `/metrics`, made from the records that `/api/v1/state` shows, too.

use std::fmt;
use std::sync::Arc;

use axum::extract;
use axum::http::HeaderMap;
use axum::response::Response;
use evenkeel_policy::health::file_systems;
use evenkeel_policy::space::FileSystem;
use evenkeel_policy::state::{
    GuaranteeState, LatencyTargetState, LimitWaits, PoolState, RemoteState, SlotsState, SpaceState, State,
    TenantSlotsState, TenantState, VolumeState, WorkerState,
};
use evenkeel_policy::verdict::{self, Verdict};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::manager::Manager;
use crate::openmetrics::{
    BYTES, Description, Family, Row, SECONDS, TROUBLES, Table, answer, cluster, cluster_described, counter, each,
    family, gauge, help, histogram, ms, rows, some, time, troubles, whether,
};

const PREFIX: &str = "evenkeel";

/// Handles a request for `/metrics`.
pub(super) async fn metrics(extract::State(manager): extract::State<Arc<Manager>>, asked: HeaderMap) -> Response {
    of(&asked, manager.state())
}

/// The metrics of a state, in the format that the headers `asked` accept.
pub(crate) fn of(asked: &HeaderMap, state: State) -> Response {
    answer(asked, PREFIX, Snapshot(state))
}

#[derive(Debug)]
struct Snapshot(State);

const BUILD: Family = Family::gauges("build_info", &["version", "engine"], "Always 1.");

const SERVER: Table<State> = Table {
    labels: &[],
    metrics: &[
        gauge("uptime", "Time since the server's start.", SECONDS, |s| Some(s.uptime_s)),
        gauge("draining", "1 during a graceful stop.", None, |s| whether(s.draining)),
        gauge("connections", "Connections.", None, |s| some(s.connections)),
        counter("placement_moves", "Connections moved between workers.", None, |s| s.placement.moves_total),
        counter("accepted_connections", "Connections accepted.", None, |s| s.accepted_connections_total),
        counter("refused_connections", "Connections closed at once: too many, or no descriptors left.", None, |s| {
            s.refused_connections_total
        }),
        counter("tls_handshakes", "NBD connections that completed a TLS handshake.", None, |s| s.tls_handshakes_total),
        gauge("buffer_memory_used", "Payload buffers in use.", BYTES, |s| some(s.buffer_memory_used_bytes)),
        gauge("buffer_memory_limit", "Bound on payload buffers.", BYTES, |s| some(s.buffer_memory_limit_bytes)),
    ],
};

const REFUSED: Family =
    Family::counters("refused_clients", &["reason"], "Connections refused or closed before they had a volume.");

const WORKER: Table<WorkerState> = Table {
    labels: &["worker"],
    metrics: &[
        gauge("worker_connections", "Connections.", None, |w| some(w.connections)),
        counter("worker_requests", "Requests received.", None, |w| w.requests_total),
        gauge("worker_busy_ratio", "Share of the last second with work, running or runnable.", None, |w| Some(w.busy)),
        time("worker_cpu", "Processor time.", |w| w.cpu_s),
    ],
};

const POOL: Table<PoolState> = Table {
    labels: &["pool"],
    metrics: &[
        gauge("pool_queued_requests", "Requests queued.", None, |p| some(p.queued_requests)),
        gauge("pool_in_flight_requests", "Requests in flight.", None, |p| some(p.admission.in_flight_requests)),
        gauge("pool_in_flight", "Cost in flight.", BYTES, |p| some(p.admission.in_flight_bytes)),
        gauge("pool_budget", "Cost that may be in flight; absent: unbounded.", BYTES, |p| {
            p.admission.budget_bytes.and_then(some)
        }),
        gauge("pool_base_cost", "Cost of a request beyond its bytes.", BYTES, |p| some(p.admission.base_cost_bytes)),
        gauge("pool_target", "Latency target of admission control.", SECONDS, |p| ms(p.admission.target_ms)),
        gauge("pool_overdue_requests", "Requests in flight for longer than `stall_report_after`.", None, |p| {
            some(p.overdue.len() as u64)
        }),
    ],
};

/// Metrics of pools with a latency target.
const TARGET: Table<LatencyTargetState> = Table {
    labels: &["pool"],
    metrics: &[
        gauge("pool_latency_target", "Latency target for reads.", SECONDS, |g| Some(g.target_ms / 1e3)),
        gauge("pool_latency_measured", "Latency of reads, last measured.", SECONDS, |g| ms(g.measured_ms)),
        gauge("pool_latency_target_missed", "1 while reads miss the target.", None, |g| {
            whether(verdict::latency_target(g).is_missed())
        }),
        gauge(
            "pool_latency_target_unachievable",
            "1 while missed with every noisy tenant throttled as far as allowed.",
            None,
            |g| whether(verdict::latency_target(g) == Verdict::Unachievable),
        ),
        gauge("pool_throttle_ineffective", "1 while a trial has shown no effect of the throttle.", None, |g| {
            whether(g.decision.as_ref().is_some_and(|decision| decision.reason == "ineffective"))
        }),
        gauge("pool_throttled_tenants", "Tenants throttled for the latency target.", None, |g| {
            some(g.decision.as_ref().map_or(0, |decision| decision.throttled))
        }),
    ],
};

/// Metrics of pools whose slots are shared out.
const POOL_SLOTS: Table<SlotsState> = Table {
    labels: &["pool"],
    metrics: &[
        gauge("pool_slots", help::SLOTS, None, |s| s.total),
        gauge("pool_slots_clustered", help::CLUSTERED, None, |s| whether(s.clustered)),
        gauge("pool_latency_target_scale_ratio", help::SCALE, None, |s| s.tightness),
    ],
};

const TENANT: Table<TenantState> = Table {
    labels: &["pool", "tenant"],
    metrics: &[
        gauge("tenant_connections", "Connections.", None, |t| some(t.connections)),
        gauge("tenant_queued_requests", "Requests queued.", None, |t| some(t.queued_requests)),
        gauge("tenant_in_flight_requests", "Requests in flight.", None, |t| some(t.in_flight_requests)),
        gauge("tenant_slots", "Requests allowed in flight while throttled for the pool's target.", None, |t| {
            t.throttled.as_ref().and_then(|hold| some(hold.slots))
        }),
        gauge("tenant_throttle_delay", "Pause of a throttled tenant's slot after a request.", SECONDS, |t| {
            ms(t.throttled.as_ref().map(|hold| hold.delay_ms))
        }),
        counter("tenant_errors", "Requests that the device failed.", None, |t| t.errors_total),
        histogram("tenant_queue_latency", "Arrival to dispatch.", |t| &t.queue_latency),
        histogram("tenant_device_latency", "Dispatch to completion.", |t| &t.device_latency),
        histogram("tenant_latency", "Arrival to completion.", |t| &t.latency),
    ],
};

/// Metrics of tenants on pools whose slots are shared out.
const TENANT_SLOTS: Table<TenantSlotsState> = Table {
    labels: &["pool", "tenant"],
    metrics: &[
        gauge("tenant_latency_target", "Latency target, with slots.", SECONDS, |s| ms(s.target_ms)),
        gauge("tenant_latency_target_unachievable", help::UNACHIEVABLE, None, |s| {
            s.target_ms.and_then(|_| whether(s.reason == "unachievable"))
        }),
        gauge("tenant_needed_slots", help::NEEDED, None, |s| Some(s.need)),
        gauge("tenant_granted_slots", help::GRANTED, None, |s| s.granted),
        gauge("tenant_used_slots", help::USED, None, |s| Some(s.used)),
        counter("tenant_latency_target_windows", help::WINDOWS, None, |s| s.windows_total),
        counter("tenant_latency_target_violations", help::VIOLATIONS, None, |s| s.violated_total),
    ],
};

/// Metrics of guaranteed throughputs, in bytes or requests according to the label `unit`.
const GUARANTEE: Table<GuaranteeState> = Table {
    labels: &["pool", "tenant", "of", "unit"],
    metrics: &[
        gauge("tenant_guarantee", "Guaranteed throughput per second.", None, |p| some(p.guaranteed_per_s)),
        gauge("tenant_guarantee_measured", "Throughput in the last interval.", None, |p| p.measured_per_s),
        gauge("tenant_guarantee_limit", "Limit assigned for the guarantee.", None, |p| some(p.limit_per_s)),
        gauge("tenant_guarantee_unachievable", "1 while the device cannot sustain the guarantee.", None, |p| {
            let verdict = verdict::guarantee(p.guaranteed_per_s as f64, p.measured_per_s, &p.reason);
            whether(verdict == Verdict::Unachievable)
        }),
    ],
};

type Count = fn(&TenantState) -> u64;

/// A metric with several counts per tenant, which are distinguished by the value of the last label.
struct Counts {
    family: Family,
    values: &'static [(&'static str, Count)],
}

const fn counts(
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    labels: &'static [&'static str],
    values: &'static [(&'static str, Count)],
) -> Counts {
    Counts { family: Family { name, help, unit, metric_type: MetricType::Counter, labels }, values }
}

const TENANT_COUNTS: &[Counts] = &[
    counts(
        "tenant_requests",
        "Completed requests: `read`, `write`, `flush`, `meta`.",
        None,
        &["pool", "tenant", "op"],
        &[
            ("read", |t| t.reads_total),
            ("write", |t| t.writes_total),
            ("flush", |t| t.flushes_total),
            ("meta", |t| t.metas_total),
        ],
    ),
    counts(
        "tenant_payload",
        "Payload of completed requests: `read`, `write`.",
        BYTES,
        &["pool", "tenant", "op"],
        &[("read", |t| t.read_bytes_total), ("write", |t| t.write_bytes_total)],
    ),
    counts(
        "tenant_dispatched_requests",
        "Dispatched requests, by `reservation` or `weight`.",
        None,
        &["pool", "tenant", "phase"],
        &[("reservation", |t| t.by_reservation_total), ("weight", |t| t.by_weight_total)],
    ),
];

const VOLUME: Table<VolumeState> = Table {
    labels: &["volume", "pool"],
    metrics: &[
        gauge("volume_size", "Size.", BYTES, |v| some(v.size_bytes)),
        gauge("volume_connections", "Connections.", None, |v| some(v.connections)),
        gauge("volume_failed", "1 after a failed flush: data may be lost.", None, |v| whether(v.error.is_some())),
        counter("volume_trims", "Trims completed.", None, |v| v.trims_total),
        counter("volume_trimmed", "Bytes of completed trims.", BYTES, |v| v.trimmed_bytes_total),
        gauge("volume_limit_iops", "Limit of the volume.", None, |v| v.limit.iops.and_then(some)),
        gauge("volume_limit_bytes_per_second", "Limit of the volume.", None, |v| v.limit.bytes_per_s.and_then(some)),
    ],
};

/// Metrics of volumes with a limit.
const WAITS: Table<LimitWaits> = Table {
    labels: &["volume", "pool"],
    metrics: &[
        gauge("volume_limit_waiting_requests", "Requests that wait for the limit.", None, |w| some(w.waiting_requests)),
        counter("volume_limit_waited_requests", "Requests that waited for the limit.", None, |w| {
            w.waited_requests_total
        }),
        time("volume_limit_waited", "Time that requests waited for the limit.", |w| w.waited_ms_total as f64 / 1e3),
    ],
};

/// Metrics of volumes in files.
const SPACE: Table<SpaceState> = Table {
    labels: &["volume", "pool"],
    metrics: &[gauge("volume_allocated", "Space that the file system has allocated.", BYTES, |s| {
        some(s.allocated_bytes)
    })],
};

type OfFileSystem = fn(&FileSystem<'_>) -> u64;

const fn of_file_system(name: &'static str, help: &'static str) -> Family {
    Family { name, help, unit: BYTES, metric_type: MetricType::Gauge, labels: &["path"] }
}

/// Metrics of file systems with volumes. The label is the path of one of the volumes.
const FILE_SYSTEMS: &[(Family, OfFileSystem)] = &[
    (of_file_system("file_system_size", "Size of a file system with volumes."), |f| f.capacity_bytes),
    (of_file_system("file_system_free", "Free space of the file system."), |f| f.free_bytes),
    (of_file_system("file_system_unallocated", "Space that volumes may still allocate."), |f| f.unallocated_bytes),
];

/// Metrics of volumes on another server.
const REMOTE: Table<RemoteState> = Table {
    labels: &["volume", "pool"],
    metrics: &[
        gauge("remote_connections", "Connections to the server behind the volume; 0: unreachable.", None, |r| {
            some(r.connections)
        }),
        counter("remote_reconnects", "Connections that replaced broken ones.", None, |r| r.reconnects_total),
        counter("remote_retransmits", "Requests sent again after a break.", None, |r| r.retransmits_total),
        gauge("remote_in_flight_requests", "Requests sent and not answered.", None, |r| some(r.in_flight_requests)),
        gauge("remote_waiting_requests", "Requests not yet sent.", None, |r| some(r.waiting_requests)),
    ],
};

/// The descriptions of all metrics of the server, for the manual.
pub(crate) fn described() -> Vec<Description> {
    let counts: Vec<Description> = TENANT_COUNTS.iter().flat_map(|counts| counts.family.described(PREFIX)).collect();
    let file_systems: Vec<Description> = FILE_SYSTEMS.iter().flat_map(|(metric, _)| metric.described(PREFIX)).collect();
    [
        TENANT.described(PREFIX),
        TENANT_SLOTS.described(PREFIX),
        counts,
        GUARANTEE.described(PREFIX),
        POOL.described(PREFIX),
        TARGET.described(PREFIX),
        POOL_SLOTS.described(PREFIX),
        VOLUME.described(PREFIX),
        WAITS.described(PREFIX),
        SPACE.described(PREFIX),
        REMOTE.described(PREFIX),
        file_systems,
        cluster_described(PREFIX),
        REFUSED.described(PREFIX),
        TROUBLES.described(PREFIX),
        WORKER.described(PREFIX),
        SERVER.described(PREFIX),
        BUILD.described(PREFIX),
    ]
    .concat()
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (state, encoder) = (&self.0, &mut encoder);
        let build = vec![state.version.as_str().into(), state.engine.as_str().into()];
        family(encoder, &BUILD, [(build, 1.0)].into_iter())?;
        each(encoder, &SERVER, &[(Vec::new(), state)])?;
        troubles(encoder, &state.health)?;
        let refused = state.refused_clients_total.iter();
        let refused = refused.map(|(reason, count)| (vec![reason.as_str().into()], *count as f64));
        family(encoder, &REFUSED, refused)?;
        let workers = state.workers.iter().map(|worker| (vec![worker.index.to_string().into()], worker));
        each(encoder, &WORKER, &workers.collect::<Vec<_>>())?;
        pools(encoder, &state.pools)?;
        let volumes =
            state.volumes.iter().map(|volume| (vec![volume.name.as_str().into(), volume.pool.as_str().into()], volume));
        let volumes: Vec<_> = volumes.collect();
        each(encoder, &VOLUME, &volumes)?;
        each(encoder, &WAITS, &part(&volumes, |volume| volume.waits.as_ref()))?;
        each(encoder, &SPACE, &part(&volumes, |volume| volume.space.as_ref()))?;
        let systems = file_systems(&state.volumes);
        for (metric, of) in FILE_SYSTEMS {
            family(encoder, metric, systems.iter().map(|system| (vec![system.path.into()], of(system) as f64)))?;
        }
        each(encoder, &REMOTE, &part(&volumes, |volume| volume.remote.as_ref()))?;
        cluster(encoder, state.cluster.as_ref())?;
        tenants(encoder, &state.pools)
    }
}

/// Rows about a part of records: for each of `rows` whose record has the part, a row with the part and the same label values.
fn part<'a, T, P>(rows: &[Row<'a, T>], part: impl Fn(&'a T) -> Option<&'a P>) -> Vec<Row<'a, P>> {
    rows.iter().filter_map(|(labels, record)| Some((labels.clone(), part(record)?))).collect()
}

fn pools(encoder: &mut DescriptorEncoder<'_>, pools: &[PoolState]) -> fmt::Result {
    let rows: Vec<_> = pools.iter().map(|pool| (vec![pool.name.as_str().into()], pool)).collect();
    each(encoder, &POOL, &rows)?;
    each(encoder, &TARGET, &part(&rows, |pool| pool.latency_target.as_ref()))?;
    each(encoder, &POOL_SLOTS, &part(&rows, |pool| pool.slots.as_ref()))
}

fn tenants(encoder: &mut DescriptorEncoder<'_>, pools: &[PoolState]) -> fmt::Result {
    let tenants = pools.iter().flat_map(|pool| pool.tenants.iter().map(move |tenant| (pool, tenant)));
    let tenants: Vec<Row<'_, TenantState>> =
        tenants.map(|(pool, tenant)| (vec![pool.name.as_str().into(), tenant.name.as_str().into()], tenant)).collect();
    each(encoder, &TENANT, &tenants)?;
    each(encoder, &TENANT_SLOTS, &part(&tenants, |tenant| tenant.slots.as_ref()))?;
    let guarantees =
        tenants.iter().flat_map(|(of, tenant)| rows(of, &tenant.guarantees, |g| [g.of.as_str(), g.unit.as_str()]));
    each(encoder, &GUARANTEE, &guarantees.collect::<Vec<_>>())?;
    for counts in TENANT_COUNTS {
        let samples = tenants.iter().flat_map(|(values, tenant)| {
            counts.values.iter().map(move |&(value, count)| {
                (values.iter().cloned().chain([value.into()]).collect(), count(tenant) as f64)
            })
        });
        family(encoder, &counts.family, samples)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::health::{Health, Level, Trouble};
    use evenkeel_policy::state::LimitState;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    fn scraped(volumes: Vec<VolumeState>) -> String {
        scraped_of(State { volumes, ..State::default() })
    }

    fn scraped_of(state: State) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Snapshot(state)));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn troubles_are_counted_by_severity() {
        let trouble = |level| Trouble::new(level, "stalled", "pool main", "a read hangs", "");
        let troubles = [Level::Critical, Level::Warning, Level::Warning].map(trouble);
        for (troubles, critical, warning) in [(troubles.to_vec(), 1, 2), (Vec::new(), 0, 0)] {
            let text = scraped_of(State { health: Health::of(troubles), ..State::default() });
            for line in [
                format!("evenkeel_troubles{{level=\"critical\"}} {critical}"),
                format!("evenkeel_troubles{{level=\"warning\"}} {warning}"),
            ] {
                assert!(text.contains(&line), "{line} is not in {text}");
            }
        }
    }

    #[test]
    fn a_volume_with_a_limit_shows_it_and_the_requests_that_waited_for_it() {
        let waits = LimitWaits { waiting_requests: 3, waited_requests_total: 40, waited_ms_total: 2_500 };
        let volume = |name: &str| VolumeState { name: name.into(), pool: "main".into(), ..VolumeState::default() };
        let limit = LimitState { iops: Some(100), ..LimitState::default() };
        let text = scraped(vec![VolumeState { limit, waits: Some(waits), ..volume("a") }, volume("free")]);
        for line in [
            "evenkeel_volume_limit_iops{volume=\"a\",pool=\"main\"} 100",
            "evenkeel_volume_limit_waiting_requests{volume=\"a\",pool=\"main\"} 3",
            "evenkeel_volume_limit_waited_requests_total{volume=\"a\",pool=\"main\"} 40",
            "evenkeel_volume_limit_waited_seconds_total{volume=\"a\",pool=\"main\"} 2.5",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("limit_bytes_per_second{") && !text.contains("limit_iops{volume=\"free\""), "{text}");
        assert!(!text.contains("waiting_requests{volume=\"free\""), "{text}");
    }

    #[test]
    fn volumes_in_files_show_their_space_and_each_file_system_its_own_once() {
        let volume = |name: &str, allocated_bytes| VolumeState {
            name: name.into(),
            pool: "main".into(),
            path: Some(format!("/srv/{name}.img")),
            size_bytes: 100,
            space: Some(SpaceState {
                allocated_bytes,
                file_system: "8:1".into(),
                free_bytes: 30,
                capacity_bytes: 1_000,
            }),
            trims_total: 3,
            trimmed_bytes_total: 12_288,
            ..VolumeState::default()
        };
        let memory = VolumeState { name: "m".into(), ..VolumeState::default() };
        let text = scraped(vec![volume("a", 60), volume("b", 10), memory]);
        for line in [
            "evenkeel_volume_allocated_bytes{volume=\"a\",pool=\"main\"} 60",
            "evenkeel_volume_trims_total{volume=\"a\",pool=\"main\"} 3",
            "evenkeel_volume_trimmed_bytes_total{volume=\"a\",pool=\"main\"} 12288",
            "evenkeel_file_system_size_bytes{path=\"/srv/a.img\"} 1000",
            "evenkeel_file_system_free_bytes{path=\"/srv/a.img\"} 30",
            "evenkeel_file_system_unallocated_bytes{path=\"/srv/a.img\"} 130",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("/srv/b.img") && !text.contains("allocated_bytes{volume=\"m\""), "{text}");
    }
}
