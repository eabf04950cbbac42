//! The agent's own port: `/api/v1/state`, `/api/v1/decisions`, `/metrics`, `/healthz`.

use std::fmt;
use std::sync::{Arc, Mutex};

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use evenkeel_guard::agent::array_record::{ArrayState, ArrayVolumeState, QueueState, SlotsRecord};
use evenkeel_guard::agent::osd_record::{OsdRecord, OsdState};
use evenkeel_guard::agent::promise_record::{DirectionState, HybridState, PromiseRecord};
use evenkeel_guard::agent::record::{self, ClientState, DeviceState, Record, ResourceState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::{Registry, Unit};
use serde::{Deserialize, Serialize};

use super::run::{Shared, lock};
use crate::http::metrics::{CONTENT_TYPE, Figure, Metric, each, exchange, family, metric};

type Agent = State<Arc<Mutex<Shared>>>;

/// Answer of `/api/v1/decisions`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Decisions {
    /// Newest first.
    pub(super) decisions: Vec<Record>,
    /// About promised throughputs, newest first.
    #[serde(default)]
    pub(super) promises: Vec<PromiseRecord>,
    /// About slots of arrays, newest first.
    #[serde(default)]
    pub(super) slots: Vec<SlotsRecord>,
    /// About OSDs, newest first.
    #[serde(default)]
    pub(super) osds: Vec<OsdRecord>,
}

#[derive(Deserialize)]
struct Wanted {
    resource: Option<String>,
    count: Option<usize>,
}

/// Everything that can be read.
pub(super) fn router(shared: Arc<Mutex<Shared>>) -> Router {
    Router::new()
        .route("/api/v1/state", get(async |State(agent): Agent| Json(lock(&agent).state())))
        .route("/api/v1/decisions", get(decisions))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .with_state(shared)
}

async fn decisions(State(agent): Agent, Query(wanted): Query<Wanted>) -> Response {
    let shared = lock(&agent);
    let (agent, keeper, arrays) = (shared.agent(), shared.keeper(), shared.arrays());
    let osds = shared.osd_names();
    let known = agent.resources().chain(keeper.names()).chain(arrays.names());
    let known: Vec<&str> = known.chain(osds.iter().map(String::as_str)).collect();
    if let Some(name) = wanted.resource.as_ref().filter(|name| !known.contains(&name.as_str())) {
        let message = evenkeel_policy::unknown("resource", name, &known);
        let error = serde_json::json!({ "kind": "unknown_resource", "message": message, "cure": "name a resource that has a goal" });
        return (StatusCode::NOT_FOUND, Json(serde_json::json!({ "error": error }))).into_response();
    }
    let (name, count) = (wanted.resource.as_deref(), wanted.count.unwrap_or(usize::MAX));
    Json(Decisions {
        decisions: agent.records(name, count),
        promises: keeper.records(name, count),
        slots: arrays.records(name, count),
        osds: shared.osd_records(name, count),
    })
    .into_response()
}

/// 200 while measuring works.
async fn health(State(agent): Agent) -> Response {
    let state = lock(&agent).state();
    let lost = state.resources.iter().any(|resource| resource.reason == "signal_lost");
    if lost { (StatusCode::SERVICE_UNAVAILABLE, "signal lost\n").into_response() } else { "ok\n".into_response() }
}

async fn metrics(State(agent): Agent) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], render(lock(&agent).state())).into_response()
}

fn render(state: record::State) -> String {
    let mut registry = Registry::with_prefix("evenkeel_guard");
    registry.register_collector(Box::new(Snapshot(state)));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Snapshot(record::State);

const SECONDS: Option<Unit> = Some(Unit::Seconds);

fn seconds(ms: f64) -> Option<Figure<'static>> {
    Some(Figure::Gauge(ms / 1e3))
}

const AGENT: &[Metric<record::State>] = &[
    metric("uptime", "Time since the start.", SECONDS, |s| Some(Figure::Gauge(s.uptime_s))),
    metric("acting", "1 if decisions take effect.", None, |s| Some(Figure::Gauge(f64::from(u8::from(s.acting))))),
    metric("ticks", "Decisions taken, each for all resources.", None, |s| Some(Figure::Counter(s.ticks_total as f64))),
    metric("late_ticks", "Decisions that came late.", None, |s| Some(Figure::Counter(s.late_ticks_total as f64))),
    metric("errors", "Measurements and changes that failed.", None, |s| Some(Figure::Counter(s.errors_total as f64))),
];

const RESOURCE: &[Metric<ResourceState>] = &[
    metric("goal", "What the response time of reads is to stay below.", SECONDS, |r| seconds(r.goal_ms)),
    metric("read_response_time", "Mean of the last interval; absent without reads.", SECONDS, |r| {
        r.read_response_ms.and_then(seconds)
    }),
    metric("read_response_time_percentile", "That of the goal, over 5 to 10 s; absent for the mean.", SECONDS, |r| {
        r.read_percentile_ms.and_then(seconds)
    }),
    metric("delay", "Mean delay of those held back.", SECONDS, |r| seconds(r.mean_delay_ms)),
    metric("in_flight_requests", "Requests inside the devices.", None, |r| Some(Figure::Gauge(r.in_flight as f64))),
];

const DEVICE: &[Metric<DeviceState>] = &[
    metric("device_read_response_time", "Mean of the last interval; absent without reads.", SECONDS, |d| {
        d.read_response_ms.and_then(seconds)
    }),
    metric("device_write_response_time", "Mean of the last interval; absent without writes.", SECONDS, |d| {
        d.write_response_ms.and_then(seconds)
    }),
];

const CLIENT: &[Metric<ClientState>] = &[
    metric("client_delay", "How long what is sent to a client waits.", SECONDS, |c| seconds(c.delay_ms)),
    metric("client_load_bytes_per_second", "What a client moves.", None, |c| Some(Figure::Gauge(c.bytes_per_s))),
];

const HYBRID: &[Metric<HybridState>] = &[
    metric("hybrid_slow_device_bytes_per_second", "What the slow device is taken to give.", None, |h| {
        h.slow_bytes_per_s.map(Figure::Gauge)
    }),
    metric("hybrid_background_bytes_per_second", "What the slow device does for nobody with a promise.", None, |h| {
        Some(Figure::Gauge(h.background_bytes_per_s))
    }),
];

const PROMISE: &[Metric<DirectionState>] = &[
    metric("promise_promised_per_second", "What was promised, in the unit of the promise.", None, |d| {
        Some(Figure::Gauge(d.promised))
    }),
    metric("promise_measured_per_second", "What it got in the last period.", None, |d| Some(Figure::Gauge(d.measured))),
    metric("promise_limit_per_second", "The limit that is assigned.", None, |d| Some(Figure::Gauge(d.limit))),
    metric("promise_miss_ratio", "Part of its bytes that reached the slow device; absent without I/O.", None, |d| {
        d.miss_rate.map(Figure::Gauge)
    }),
];

const ARRAY: &[Metric<ArrayState>] = &[
    metric("array_slots", "All slots together, on all hosts; absent = no bound.", None, |a| {
        a.total_slots.map(Figure::Gauge)
    }),
    metric("array_exchanged", "1 while other hosts have a say.", None, |a| {
        Some(Figure::Gauge(f64::from(u8::from(a.exchanged))))
    }),
];

const VOLUME: &[Metric<ArrayVolumeState>] = &[
    metric("volume_goal", "What the mean response time is to stay below; absent = no goal.", SECONDS, |v| {
        v.slots.goal_ms.and_then(seconds)
    }),
    metric("volume_response_time", "Mean of the last period; absent without requests.", SECONDS, |v| {
        v.response_ms.and_then(seconds)
    }),
    metric("volume_device_latency", "Mean time inside the array, likewise.", SECONDS, |v| {
        v.slots.device_latency_ms.and_then(seconds)
    }),
    metric("volume_needed_slots", "Slots that its goal needs.", None, |v| Some(Figure::Gauge(v.slots.need))),
    metric("volume_granted_slots", "Slots that it has; absent = no bound.", None, |v| {
        v.slots.granted.map(Figure::Gauge)
    }),
    metric("volume_used_slots", "Slots that it used, in the mean.", None, |v| Some(Figure::Gauge(v.slots.used))),
    metric("volume_goal_windows", "Seconds judged.", None, |v| Some(Figure::Counter(v.slots.windows_total as f64))),
    metric("volume_goal_violations", "Of those, above the goal.", None, |v| {
        Some(Figure::Counter(v.slots.violated_total as f64))
    }),
];

const QUEUE: &[Metric<QueueState>] = &[
    metric("queue_length", "Requests that a disk may have inside, for each hardware queue.", None, |q| {
        q.value.map(|value| Figure::Gauge(value.into()))
    }),
    metric("queue_changes", "Times that it was changed.", None, |q| Some(Figure::Counter(q.changes_total as f64))),
];

const OSD: &[Metric<OsdState>] = &[
    metric("osd_controlled", "1 if the throttle is set by the agent.", None, |o| {
        Some(Figure::Gauge(f64::from(u8::from(o.standing == "controlled"))))
    }),
    metric("osd_budget_bytes", "Cost that may be inside the store, as decided.", None, |o| {
        o.budget_bytes.map(|bytes| Figure::Gauge(bytes as f64))
    }),
    metric("osd_throttle_bytes", "Cost that may be inside the store, as the OSD says.", None, |o| {
        o.throttle_bytes.map(|bytes| Figure::Gauge(bytes as f64))
    }),
    metric("osd_inside_bytes", "Cost inside the store.", None, |o| Some(Figure::Gauge(o.measured.inside_bytes as f64))),
    metric("osd_store_latency", "Mean of the last interval; absent without commits.", SECONDS, |o| {
        o.measured.store_latency_ms.and_then(seconds)
    }),
    metric("osd_commits_per_second", "Transactions committed in the last interval.", None, |o| {
        Some(Figure::Gauge(o.measured.commits_per_s))
    }),
    metric("osd_samples", "Samples taken.", None, |o| Some(Figure::Counter(o.samples_total as f64))),
    metric("osd_skipped_samples", "Samples left out because an answer came late.", None, |o| {
        Some(Figure::Counter(o.skipped_total as f64))
    }),
    metric("osd_changes", "Times that the throttle was set.", None, |o| Some(Figure::Counter(o.changes_total as f64))),
    metric("osd_restarts", "Times that the OSD was seen to have started anew.", None, |o| {
        Some(Figure::Counter(o.restarts_total as f64))
    }),
    metric("osd_errors", "Questions and changes that failed.", None, |o| Some(Figure::Counter(o.errors_total as f64))),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = &self.0;
        each(&mut encoder, AGENT, [state], |_| Vec::new())?;
        each(&mut encoder, RESOURCE, &state.resources, |resource| vec![("resource", resource.name.clone())])?;
        for metric in DEVICE {
            let samples = state.resources.iter().flat_map(|resource| {
                resource.devices.iter().filter_map(|device| {
                    let labels = vec![("resource", resource.name.clone()), ("device", device.name.clone())];
                    Some((labels, (metric.figure)(device)?))
                })
            });
            family(&mut encoder, metric.name, metric.help, metric.unit.as_ref(), samples.collect())?;
        }
        for metric in CLIENT {
            let samples = state.resources.iter().flat_map(|resource| {
                resource.clients.iter().filter_map(|client| {
                    let labels = vec![("resource", resource.name.clone()), ("client", client.address.clone())];
                    Some((labels, (metric.figure)(client)?))
                })
            });
            family(&mut encoder, metric.name, metric.help, metric.unit.as_ref(), samples.collect())?;
        }
        self.arrays(&mut encoder)?;
        each(&mut encoder, HYBRID, &state.hybrids, |hybrid| vec![("hybrid", hybrid.name.clone())])?;
        each(&mut encoder, OSD, &state.osds, |osd| vec![("osd", osd.name.clone())])?;
        for metric in PROMISE {
            let samples = state.hybrids.iter().flat_map(|hybrid| {
                hybrid.tenants.iter().flat_map(move |tenant| {
                    [("read", &tenant.read), ("write", &tenant.write)].into_iter().filter_map(
                        move |(direction, goal)| {
                            let goal = goal.as_ref()?;
                            let labels = vec![
                                ("hybrid", hybrid.name.clone()),
                                ("group", tenant.group.clone()),
                                ("direction", direction.to_owned()),
                                ("unit", goal.unit.clone()),
                            ];
                            Some((labels, (metric.figure)(goal)?))
                        },
                    )
                })
            });
            family(&mut encoder, metric.name, metric.help, metric.unit.as_ref(), samples.collect())?;
        }
        Ok(())
    }
}

impl Snapshot {
    fn arrays(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let state = &self.0;
        if let Some(state) = &state.exchange {
            exchange(encoder, state)?;
        }
        each(encoder, ARRAY, &state.arrays, |array| vec![("array", array.name.clone())])?;
        let volumes = || state.arrays.iter().flat_map(|array| array.volumes.iter().map(move |volume| (array, volume)));
        let labels = |array: &ArrayState, volume: &ArrayVolumeState| {
            vec![("array", array.name.clone()), ("volume", volume.name.clone())]
        };
        for metric in VOLUME {
            let samples =
                volumes().filter_map(|(array, volume)| Some((labels(array, volume), (metric.figure)(volume)?)));
            family(encoder, metric.name, metric.help, metric.unit.as_ref(), samples.collect())?;
        }
        for metric in QUEUE {
            let samples = volumes().flat_map(|(array, volume)| {
                volume.queues.iter().filter_map(move |queue| {
                    let mut labels = labels(array, volume);
                    labels.extend([("disk", queue.disk.clone()), ("setting", queue.setting.clone())]);
                    Some((labels, (metric.figure)(queue)?))
                })
            });
            family(encoder, metric.name, metric.help, metric.unit.as_ref(), samples.collect())?;
        }
        Ok(())
    }
}
