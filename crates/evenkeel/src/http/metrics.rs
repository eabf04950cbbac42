//! `/metrics` in the OpenMetrics text format, made from the same records as `/api/v1/state`.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenkeel_policy::state::{
    ExchangeState, LatencyState, PoolState, PromiseState, State, TenantSlotsState, TenantState, VolumeState,
    WorkerState,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::serve::Manager;

/// The format that [`text::encode`] writes.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bucket bounds are the powers of two from 2^13 ns (8 µs) to 2^35 ns (34 s): bounds of the server's own finer
/// histogram, so that the counts are exact.
const BUCKET_EXPONENTS: std::ops::RangeInclusive<u32> = 13..=35;

/// `/metrics`.
pub(super) fn router() -> Router<Arc<Manager>> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(extract::State(manager): extract::State<Arc<Manager>>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], render(manager.state())).into_response()
}

/// The state as OpenMetrics text.
pub(super) fn render(state: State) -> String {
    let mut registry = Registry::with_prefix("evenkeel");
    registry.register_collector(Box::new(Snapshot(state)));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Snapshot(State);

/// A figure that was counted elsewhere.
pub(crate) enum Figure<'a> {
    Counter(f64),
    Gauge(f64),
    Histogram(&'a LatencyState),
}

impl EncodeMetric for Figure<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Counter(value) => encoder.encode_counter::<NoLabelSet, _, f64>(value, None),
            Self::Gauge(value) => encoder.encode_gauge(value),
            Self::Histogram(latency) => {
                encoder.encode_histogram::<NoLabelSet>(latency.sum_s, latency.count, &buckets(latency), None)
            }
        }
    }

    fn metric_type(&self) -> MetricType {
        match self {
            Self::Counter(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Histogram(_) => MetricType::Histogram,
        }
    }
}

/// Counts between the bounds of [`BUCKET_EXPONENTS`], and above the last.
fn buckets(latency: &LatencyState) -> Vec<(f64, u64)> {
    let mut fine = latency.buckets.iter().peekable();
    let bounds = BUCKET_EXPONENTS.map(|exponent| (1u64 << exponent) as f64 / 1e9).chain([f64::INFINITY]);
    bounds
        .map(|bound| {
            let mut count = 0;
            while let Some((_, n)) = fine.next_if(|(upper, _)| *upper <= bound) {
                count += n;
            }
            (bound, count)
        })
        .collect()
}

/// One sample: its labels and its figure.
pub(crate) type Sample<'a> = (Vec<(&'static str, String)>, Figure<'a>);

/// A metric that every `T` has, or lacks at the moment.
pub(crate) struct Metric<T> {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) unit: Option<Unit>,
    pub(crate) figure: for<'a> fn(&'a T) -> Option<Figure<'a>>,
}

pub(crate) const fn metric<T>(
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    figure: for<'a> fn(&'a T) -> Option<Figure<'a>>,
) -> Metric<T> {
    Metric { name, help, unit, figure }
}

type TenantCount = fn(&TenantState) -> u64;

/// Counts of a tenant that differ in one label.
struct Counts {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    label: &'static str,
    values: &'static [(&'static str, TenantCount)],
}

const BYTES: Option<Unit> = Some(Unit::Bytes);
const SECONDS: Option<Unit> = Some(Unit::Seconds);

/// Counts stay exact up to 2^53, centuries of any of them.
fn gauge(value: u64) -> Option<Figure<'static>> {
    Some(Figure::Gauge(value as f64))
}

fn counter(value: u64) -> Option<Figure<'static>> {
    Some(Figure::Counter(value as f64))
}

const SERVER: &[Metric<State>] = &[
    metric("uptime", "Time since the start.", SECONDS, |s| Some(Figure::Gauge(s.uptime_s))),
    metric("connections", "Connections at present.", None, |s| gauge(s.connections)),
    metric("placement_moves", "Connections moved between workers.", None, |s| counter(s.placement.moves_total)),
    metric("accepted_connections", "Connections accepted.", None, |s| counter(s.accepted_connections_total)),
    metric("refused_connections", "Connections closed at once because there were too many.", None, |s| {
        counter(s.refused_connections_total)
    }),
    metric("buffer_memory_used", "Payload buffers in use.", BYTES, |s| gauge(s.buffer_memory_used_bytes)),
    metric("buffer_memory_limit", "Bound on payload buffers.", BYTES, |s| gauge(s.buffer_memory_limit_bytes)),
];

const WORKER: &[Metric<WorkerState>] = &[
    metric("worker_connections", "Connections of a worker at present.", None, |w| gauge(w.connections)),
    metric("worker_requests", "Requests a worker received.", None, |w| counter(w.requests_total)),
    metric("worker_busy_ratio", "Share of the last second for which a worker had something to do.", None, |w| {
        Some(Figure::Gauge(w.busy))
    }),
    metric("worker_cpu", "CPU time a worker used.", SECONDS, |w| Some(Figure::Counter(w.cpu_s))),
];

const POOL: &[Metric<PoolState>] = &[
    metric("pool_queued_requests", "Requests waiting in front of admission.", None, |p| gauge(p.queued_requests)),
    metric("pool_inside_requests", "Requests inside the device.", None, |p| gauge(p.admission.inside_requests)),
    metric("pool_inside", "Cost inside the device.", BYTES, |p| gauge(p.admission.inside_bytes)),
    metric("pool_budget", "Cost that may be inside the device; absent = unbounded.", BYTES, |p| {
        p.admission.budget_bytes.and_then(gauge)
    }),
    metric("pool_target", "Latency that admission control aims at; absent = it has no aim.", SECONDS, |p| {
        p.admission.target_ms.map(|ms| Figure::Gauge(ms / 1e3))
    }),
    metric("pool_goal", "What the response time of reads is to stay below; absent = no goal.", SECONDS, |p| {
        p.goal.as_ref().map(|goal| Figure::Gauge(goal.goal_ms / 1e3))
    }),
    metric("pool_goal_measured", "The figure of the goal when it was last measured.", SECONDS, |p| {
        p.goal.as_ref().and_then(|goal| goal.measured_ms).map(|ms| Figure::Gauge(ms / 1e3))
    }),
    metric("pool_held_tenants", "Tenants held back for the goal.", None, |p| {
        let decision = p.goal.as_ref().map(|goal| goal.decision.as_ref().map_or(0, |decision| decision.held));
        decision.and_then(gauge)
    }),
    metric("pool_overdue_requests", "I/Os that have been inside the device for too long.", None, |p| {
        gauge(p.overdue.len() as u64)
    }),
];

const EXCHANGE: &[Metric<ExchangeState>] = &[
    metric("exchange_connected", "1 while changes come from etcd.", None, |e| gauge(u64::from(e.connected))),
    metric("exchange_lost", "1 while this host is on its own.", None, |e| gauge(u64::from(e.standing == "lost"))),
    metric("exchange_losses", "Times that the exchange was lost.", None, |e| counter(e.lost_total)),
    metric("exchange_ramp_ratio", "How much of its share this host takes.", None, |e| Some(Figure::Gauge(e.ramp))),
    metric("exchange_age", "Since the end of the last period that was reported and came back.", SECONDS, |e| {
        e.age_s.map(Figure::Gauge)
    }),
    metric("exchange_rounds", "Periods decided.", None, |e| counter(e.rounds_total)),
    metric("exchange_counted_hosts", "Hosts of the last period decided, in all sections.", None, |e| {
        gauge(e.hosts_total)
    }),
    metric("exchange_sent", "Sent to etcd.", BYTES, |e| counter(e.sent_bytes_total)),
    metric("exchange_received", "Received from etcd.", BYTES, |e| counter(e.received_bytes_total)),
];

const SLOTS: &[Metric<TenantSlotsState>] = &[
    metric("tenant_goal", "What the mean response time is to stay below; absent = no goal.", SECONDS, |s| {
        s.goal_ms.map(|ms| Figure::Gauge(ms / 1e3))
    }),
    metric("tenant_needed_slots", "Slots that the goal needs.", None, |s| Some(Figure::Gauge(s.need))),
    metric("tenant_granted_slots", "Slots granted; absent = no bound.", None, |s| s.granted.map(Figure::Gauge)),
    metric("tenant_used_slots", "Slots used in the last period, in the mean.", None, |s| Some(Figure::Gauge(s.used))),
    metric("tenant_goal_windows", "Seconds in which the goal was judged.", None, |s| counter(s.windows_total)),
    metric("tenant_goal_violations", "Of those, how many violated it.", None, |s| counter(s.violated_total)),
];

const TENANT: &[Metric<TenantState>] = &[
    metric("tenant_connections", "Connections at present.", None, |t| gauge(t.connections)),
    metric("tenant_queued_requests", "Requests waiting.", None, |t| gauge(t.queued_requests)),
    metric("tenant_inside_requests", "Requests inside the device.", None, |t| gauge(t.inside_requests)),
    metric("tenant_slots", "Requests it may have inside while it is held back for the pool's goal.", None, |t| {
        t.hold.as_ref().and_then(|hold| gauge(hold.slots))
    }),
    metric("tenant_rest", "How long each of its slots rests after a request, likewise.", SECONDS, |t| {
        t.hold.as_ref().map(|hold| Figure::Gauge(hold.rest_ms / 1e3))
    }),
    metric("tenant_errors", "Requests the device failed.", None, |t| counter(t.errors_total)),
    metric("tenant_queue_wait", "From arrival to admission.", SECONDS, |t| Some(Figure::Histogram(&t.queue_wait))),
    metric("tenant_device_latency", "From admission to completion.", SECONDS, |t| {
        Some(Figure::Histogram(&t.device_latency))
    }),
    metric("tenant_response_time", "From arrival to completion.", SECONDS, |t| {
        Some(Figure::Histogram(&t.response_time))
    }),
];

const PROMISE: &[Metric<PromiseState>] = &[
    metric("tenant_promise", "Bytes or requests per second that it was promised; absent = none.", None, |p| {
        gauge(p.promised_per_s)
    }),
    metric("tenant_promise_limit", "The limit assigned for that, likewise.", None, |p| gauge(p.limit_per_s)),
];

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
    metric("volume_size", "Size of the volume.", BYTES, |v| gauge(v.size_bytes)),
    metric("volume_connections", "Connections at present.", None, |v| gauge(v.connections)),
    metric("volume_failed", "1 after a failed flush: data may be lost.", None, |v| gauge(u64::from(v.error.is_some()))),
];

/// Of volumes on another server.
const REMOTE: &[Metric<VolumeState>] = &[
    metric("remote_connections", "Connections to the server behind the volume; 0 = it is away.", None, |v| {
        v.remote.as_ref().and_then(|remote| gauge(remote.connections))
    }),
    metric("remote_reconnects", "Connections made in place of ones that broke.", None, |v| {
        v.remote.as_ref().and_then(|remote| counter(remote.reconnects_total))
    }),
    metric("remote_resent_requests", "Requests sent again after their connection broke.", None, |v| {
        v.remote.as_ref().and_then(|remote| counter(remote.resent_total))
    }),
    metric("remote_in_flight_requests", "Requests sent and not answered.", None, |v| {
        v.remote.as_ref().and_then(|remote| gauge(remote.in_flight_requests))
    }),
    metric("remote_waiting_requests", "Requests that wait to be sent.", None, |v| {
        v.remote.as_ref().and_then(|remote| gauge(remote.waiting_requests))
    }),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = &self.0;
        let build = vec![("version", state.version.clone()), ("engine", state.engine.clone())];
        family(&mut encoder, "build_info", "Version and engine, always 1.", None, vec![(build, Figure::Gauge(1.0))])?;
        each(&mut encoder, SERVER, [state], |_| Vec::new())?;
        each(&mut encoder, WORKER, &state.workers, |worker| vec![("worker", worker.index.to_string())])?;
        each(&mut encoder, POOL, &state.pools, |pool| vec![("pool", pool.name.clone())])?;
        let volume = |volume: &VolumeState| vec![("volume", volume.name.clone()), ("pool", volume.pool.clone())];
        each(&mut encoder, VOLUME, &state.volumes, volume)?;
        if let Some(state) = &state.exchange {
            exchange(&mut encoder, state)?;
        }
        each(&mut encoder, REMOTE, &state.volumes, volume)?;
        self.tenants(&mut encoder)
    }
}

/// How the exchange between hosts goes.
pub(crate) fn exchange(encoder: &mut DescriptorEncoder<'_>, exchange: &ExchangeState) -> fmt::Result {
    each(encoder, EXCHANGE, [exchange], |_| Vec::new())?;
    let hosts = ["present", "silent", "out"].map(|presence| {
        let count = exchange.hosts.iter().filter(|host| host.presence == presence).count();
        (vec![("presence", presence.to_owned())], Figure::Gauge(count as f64))
    });
    let help = "Hosts that are read one by one, this one included: of the group, or of its section.";
    family(encoder, "exchange_hosts", help, None, hosts.into())?;
    let sections = ["present", "silent", "out"].map(|presence| {
        let count = exchange.sections.iter().filter(|section| section.presence == presence).count();
        (vec![("presence", presence.to_owned())], Figure::Gauge(count as f64))
    });
    family(encoder, "exchange_sections", "Sections that told sums.", None, sections.into())?;
    let ignored = exchange
        .ignored_total
        .iter()
        .map(|(reason, &count)| (vec![("reason", reason.clone())], Figure::Counter(count as f64)));
    family(encoder, "exchange_ignored", "Values of other hosts that were ignored.", None, ignored.collect())
}

impl Snapshot {
    fn tenants(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |pool: &'_ PoolState, tenant: &TenantState| {
            vec![("pool", pool.name.clone()), ("tenant", tenant.name.clone())]
        };
        let all = || self.0.pools.iter().flat_map(|pool| pool.tenants.iter().map(move |tenant| (pool, tenant)));
        for metric in TENANT {
            let sample = |(pool, tenant)| Some((of(pool, tenant), (metric.figure)(tenant)?));
            family(encoder, metric.name, metric.help, metric.unit.as_ref(), all().filter_map(sample).collect())?;
        }
        for metric in SLOTS {
            let samples =
                all().filter_map(|(pool, tenant)| Some((of(pool, tenant), (metric.figure)(tenant.slots.as_ref()?)?)));
            family(encoder, metric.name, metric.help, metric.unit.as_ref(), samples.collect())?;
        }
        for metric in PROMISE {
            let samples = all().flat_map(|(pool, tenant)| {
                tenant.promises.iter().filter_map(move |promise| {
                    let mut labels = of(pool, tenant);
                    labels.push(("of", promise.of.clone()));
                    Some((labels, (metric.figure)(promise)?))
                })
            });
            family(encoder, metric.name, metric.help, metric.unit.as_ref(), samples.collect())?;
        }
        for counts in TENANT_COUNTS {
            let samples = all().flat_map(|(pool, tenant)| {
                counts.values.iter().map(move |(value, count)| {
                    let mut labels = of(pool, tenant);
                    labels.push((counts.label, (*value).to_owned()));
                    (labels, Figure::Counter(count(tenant) as f64))
                })
            });
            family(encoder, counts.name, counts.help, counts.unit.as_ref(), samples.collect())?;
        }
        Ok(())
    }
}

/// Writes every metric of `all`.
pub(crate) fn each<'a, T: 'a>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[Metric<T>],
    all: impl IntoIterator<Item = &'a T> + Clone,
    labels: impl Fn(&T) -> Vec<(&'static str, String)>,
) -> fmt::Result {
    for metric in metrics {
        let samples = all.clone().into_iter().filter_map(|one| Some((labels(one), (metric.figure)(one)?)));
        family(encoder, metric.name, metric.help, metric.unit.as_ref(), samples.collect())?;
    }
    Ok(())
}

/// Writes one metric with all its samples; a metric without samples is left out.
pub(crate) fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    samples: Vec<Sample<'_>>,
) -> fmt::Result {
    let Some((_, first)) = samples.first() else { return Ok(()) };
    let mut encoder = encoder.encode_descriptor(name, help, unit, first.metric_type())?;
    for (labels, figure) in &samples {
        figure.encode(encoder.encode_family(labels)?)?;
    }
    Ok(())
}
