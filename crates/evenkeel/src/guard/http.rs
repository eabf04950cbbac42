//! The agent's own port: `/api/v1/state`, `/api/v1/decisions`, `/metrics`, `/healthz`, and at `/` a page that names them.

use std::sync::{Arc, Mutex};

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use evenkeel_policy::decision::Decisions;
use serde::Deserialize;

use super::metrics;
use super::run::{Shared, lock};

type Agent = State<Arc<Mutex<Shared>>>;

#[derive(Deserialize)]
struct Wanted {
    pool: Option<String>,
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
    let known = shared.agent.names();
    if let Some(name) = wanted.pool.as_ref().filter(|name| !known.contains(name)) {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let message = evenkeel_policy::unknown("pool", name, &known);
        let error = serde_json::json!({ "kind": "unknown_pool", "message": message, "cure": "name a pool that is enforced here, or an OSD" });
        return (StatusCode::NOT_FOUND, Json(serde_json::json!({ "error": error }))).into_response();
    }
    let decisions = shared.agent.records(wanted.pool.as_deref(), wanted.count.unwrap_or(usize::MAX));
    Json(Decisions { decisions }).into_response()
}

/// 200 while measuring works.
async fn health(State(agent): Agent) -> Response {
    let state = lock(&agent).state();
    let lost = state.packets().any(|(pool, _)| pool.reason == "signal_lost");
    if lost { (StatusCode::SERVICE_UNAVAILABLE, "signal lost\n").into_response() } else { "ok\n".into_response() }
}

async fn scrape(State(agent): Agent, asked: HeaderMap) -> Response {
    let state = lock(&agent).state();
    metrics::answer(&asked, state)
}
