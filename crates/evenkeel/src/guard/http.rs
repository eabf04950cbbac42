//! The agent's own port: `/api/v1/state`, `/api/v1/decisions`, `/metrics`, `/healthz`, and at `/` a page that names them.

use std::sync::{Arc, Mutex};

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use evenkeel_guard::agent::array_record::SlotsRecord;
use evenkeel_guard::agent::guarantee_record::GuaranteeRecord;
use evenkeel_guard::agent::osd_record::OsdRecord;
use evenkeel_guard::agent::record::Record;
use serde::{Deserialize, Serialize};

use super::metrics;
use super::run::{Shared, lock};

type Agent = State<Arc<Mutex<Shared>>>;

/// Answer of `/api/v1/decisions`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Decisions {
    /// Newest first.
    pub(crate) decisions: Vec<Record>,
    /// About guaranteed throughputs, newest first.
    #[serde(default)]
    pub(crate) guarantees: Vec<GuaranteeRecord>,
    /// About slots of arrays, newest first.
    #[serde(default)]
    pub(crate) slots: Vec<SlotsRecord>,
    /// About OSDs, newest first.
    #[serde(default)]
    pub(crate) osds: Vec<OsdRecord>,
}

#[derive(Deserialize)]
struct Wanted {
    resource: Option<String>,
    count: Option<usize>,
}

/// Everything that can be read.
pub(super) fn router(shared: Arc<Mutex<Shared>>) -> Router {
    Router::new()
        .route("/", get(Html(include_str!("page.html"))))
        .route("/api/v1/state", get(async |State(agent): Agent| Json(lock(&agent).state())))
        .route("/api/v1/decisions", get(decisions))
        .route("/metrics", get(scrape))
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
        guarantees: keeper.records(name, count),
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

async fn scrape(State(agent): Agent, asked: HeaderMap) -> Response {
    let state = lock(&agent).state();
    metrics::answer(&asked, state)
}
