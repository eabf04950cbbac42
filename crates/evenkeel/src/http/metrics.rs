//! `/metrics` in the OpenMetrics text format, made from the same records as `/api/v1/state`.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenkeel_policy::state::{LatencyState, PoolState, State, TenantState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::serve::Manager;

/// The format that [`text::encode`] writes.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
enum Figure<'a> {
    Counter(f64),
    Gauge(f64),
    Histogram(&'a LatencyState),
}

impl Figure<'_> {
    fn kind(&self) -> MetricType {
        match self {
            Self::Counter(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Histogram(_) => MetricType::Histogram,
        }
    }
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
        self.kind()
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
type Sample<'a> = (Vec<(&'static str, String)>, Figure<'a>);

/// Writes one metric with all its samples; a metric without samples is left out.
fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    samples: Vec<Sample<'_>>,
) -> fmt::Result {
    let Some((_, first)) = samples.first() else { return Ok(()) };
    let mut encoder = encoder.encode_descriptor(name, help, unit, first.kind())?;
    for (labels, figure) in &samples {
        figure.encode(encoder.encode_family(labels)?)?;
    }
    Ok(())
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.server(&mut encoder)?;
        self.pools(&mut encoder)?;
        self.tenants(&mut encoder)?;
        self.volumes(&mut encoder)
    }
}

/// Counts stay exact up to 2^53, centuries of any of them.
fn number(value: u64) -> f64 {
    value as f64
}

impl Snapshot {
    fn server(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let state = &self.0;
        let alone = |figure| vec![(Vec::new(), figure)];
        let labels = vec![("version", state.version.clone()), ("engine", state.engine.clone())];
        family(encoder, "build_info", "Version and engine, always 1.", None, vec![(labels, Figure::Gauge(1.0))])?;
        family(encoder, "uptime", "Time since the start.", Some(&Unit::Seconds), alone(Figure::Gauge(state.uptime_s)))?;
        family(
            encoder,
            "connections",
            "Connections at present.",
            None,
            alone(Figure::Gauge(number(state.connections))),
        )?;
        family(
            encoder,
            "accepted_connections",
            "Connections accepted.",
            None,
            alone(Figure::Counter(number(state.accepted_connections_total))),
        )?;
        family(
            encoder,
            "refused_connections",
            "Connections closed at once because there were too many.",
            None,
            alone(Figure::Counter(number(state.refused_connections_total))),
        )?;
        family(
            encoder,
            "buffer_memory_used",
            "Payload buffers in use.",
            Some(&Unit::Bytes),
            alone(Figure::Gauge(number(state.buffer_memory_used_bytes))),
        )?;
        family(
            encoder,
            "buffer_memory_limit",
            "Bound on payload buffers.",
            Some(&Unit::Bytes),
            alone(Figure::Gauge(number(state.buffer_memory_limit_bytes))),
        )?;
        let workers = |figure: fn(&evenkeel_policy::state::WorkerState) -> Figure<'static>| {
            state.workers.iter().map(|worker| (vec![("worker", worker.index.to_string())], figure(worker))).collect()
        };
        family(
            encoder,
            "worker_connections",
            "Connections of a worker at present.",
            None,
            workers(|w| Figure::Gauge(number(w.connections))),
        )?;
        family(
            encoder,
            "worker_requests",
            "Requests a worker received.",
            None,
            workers(|w| Figure::Counter(number(w.requests_total))),
        )?;
        family(
            encoder,
            "worker_cpu",
            "CPU time a worker used.",
            Some(&Unit::Seconds),
            workers(|w| Figure::Counter(w.cpu_s)),
        )
    }

    fn pools(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pools = |figure: fn(&PoolState) -> Option<Figure<'static>>| -> Vec<Sample<'static>> {
            let labels = |pool: &PoolState| vec![("pool", pool.name.clone())];
            self.0.pools.iter().filter_map(|pool| Some((labels(pool), figure(pool)?))).collect()
        };
        family(
            encoder,
            "pool_queued_requests",
            "Requests waiting in front of admission.",
            None,
            pools(|p| Some(Figure::Gauge(number(p.queued_requests)))),
        )?;
        family(
            encoder,
            "pool_inside_requests",
            "Requests inside the device.",
            None,
            pools(|p| Some(Figure::Gauge(number(p.admission.inside_requests)))),
        )?;
        family(
            encoder,
            "pool_inside",
            "Cost inside the device.",
            Some(&Unit::Bytes),
            pools(|p| Some(Figure::Gauge(number(p.admission.inside_bytes)))),
        )?;
        family(
            encoder,
            "pool_budget",
            "Cost that may be inside the device; absent = unbounded.",
            Some(&Unit::Bytes),
            pools(|p| p.admission.budget_bytes.map(|b| Figure::Gauge(number(b)))),
        )?;
        family(
            encoder,
            "pool_target",
            "Latency that admission control aims at.",
            Some(&Unit::Seconds),
            pools(|p| p.admission.target_ms.map(|ms| Figure::Gauge(ms / 1e3))),
        )?;
        family(
            encoder,
            "pool_overdue_requests",
            "I/Os that have been inside the device for too long.",
            None,
            pools(|p| Some(Figure::Gauge(p.overdue.len() as f64))),
        )
    }

    fn tenants(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all: Vec<(&PoolState, &TenantState)> =
            self.0.pools.iter().flat_map(|pool| pool.tenants.iter().map(move |tenant| (pool, tenant))).collect();
        let labels =
            |pool: &PoolState, tenant: &TenantState| vec![("pool", pool.name.clone()), ("tenant", tenant.name.clone())];
        let one = |figure: fn(&TenantState) -> Figure<'_>| -> Vec<Sample<'_>> {
            all.iter().map(|(pool, tenant)| (labels(pool, tenant), figure(tenant))).collect()
        };
        family(
            encoder,
            "tenant_connections",
            "Connections at present.",
            None,
            one(|t| Figure::Gauge(number(t.connections))),
        )?;
        family(
            encoder,
            "tenant_queued_requests",
            "Requests waiting.",
            None,
            one(|t| Figure::Gauge(number(t.queued_requests))),
        )?;
        family(
            encoder,
            "tenant_inside_requests",
            "Requests inside the device.",
            None,
            one(|t| Figure::Gauge(number(t.inside_requests))),
        )?;
        let by = |label: &'static str, figures: &[(&str, fn(&TenantState) -> u64)]| -> Vec<Sample<'static>> {
            let sample = |pool: &PoolState, tenant: &TenantState, value: &str, figure: fn(&TenantState) -> u64| {
                let mut labels = labels(pool, tenant);
                labels.push((label, value.to_owned()));
                (labels, Figure::Counter(number(figure(tenant))))
            };
            all.iter()
                .flat_map(|(pool, tenant)| {
                    figures.iter().map(move |(value, figure)| sample(pool, tenant, value, *figure))
                })
                .collect()
        };
        family(
            encoder,
            "tenant_requests",
            "Requests completed.",
            None,
            by(
                "op",
                &[
                    ("read", |t| t.reads_total),
                    ("write", |t| t.writes_total),
                    ("flush", |t| t.flushes_total),
                    ("meta", |t| t.metas_total),
                ],
            ),
        )?;
        family(
            encoder,
            "tenant_payload",
            "Payload moved.",
            Some(&Unit::Bytes),
            by("op", &[("read", |t| t.read_bytes_total), ("write", |t| t.write_bytes_total)]),
        )?;
        family(
            encoder,
            "tenant_dispatched_requests",
            "Requests that went to the device, by what entitled them.",
            None,
            by("phase", &[("reservation", |t| t.by_reservation_total), ("weight", |t| t.by_weight_total)]),
        )?;
        family(
            encoder,
            "tenant_errors",
            "Requests the device failed.",
            None,
            one(|t| Figure::Counter(number(t.errors_total))),
        )?;
        family(
            encoder,
            "tenant_queue_wait",
            "From arrival to admission.",
            Some(&Unit::Seconds),
            one(|t| Figure::Histogram(&t.queue_wait)),
        )?;
        family(
            encoder,
            "tenant_device_latency",
            "From admission to completion.",
            Some(&Unit::Seconds),
            one(|t| Figure::Histogram(&t.device_latency)),
        )?;
        family(
            encoder,
            "tenant_response_time",
            "From arrival to completion.",
            Some(&Unit::Seconds),
            one(|t| Figure::Histogram(&t.response_time)),
        )
    }

    fn volumes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let volumes = |figure: fn(&evenkeel_policy::state::VolumeState) -> f64| -> Vec<Sample<'static>> {
            self.0
                .volumes
                .iter()
                .map(|volume| {
                    (
                        vec![("volume", volume.name.clone()), ("pool", volume.pool.clone())],
                        Figure::Gauge(figure(volume)),
                    )
                })
                .collect()
        };
        family(encoder, "volume_size", "Size of the volume.", Some(&Unit::Bytes), volumes(|v| number(v.size_bytes)))?;
        family(encoder, "volume_connections", "Connections at present.", None, volumes(|v| number(v.connections)))?;
        family(
            encoder,
            "volume_failed",
            "1 after a failed flush: data may be lost.",
            None,
            volumes(|v| f64::from(u8::from(v.error.is_some()))),
        )
    }
}
