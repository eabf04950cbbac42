//! The agent's pages: `/api/v1/state`, `/api/v1/decisions`, `/metrics`, `/healthz`, and at `/` a page that names them.

use axum::extract::Query;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use evenkeel_guard::loops::record::State;
use evenkeel_policy::decision::{DecisionRecord, Decisions};
use serde::Deserialize;

use crate::refusal::Refusal;

mod metrics;

#[derive(Deserialize)]
struct Wanted {
    pool: Option<String>,
    count: Option<usize>,
}

/// Everything that can be read of an agent: its `state`, and the newest `records` of its decisions about one pool or
/// all, as many as asked for.
pub fn router(
    state: impl Fn() -> State + Clone + Send + Sync + 'static,
    records: impl Fn(Option<&str>, usize) -> Vec<DecisionRecord> + Clone + Send + Sync + 'static,
) -> Router {
    let (shown, known, scraped, judged) = (state.clone(), state.clone(), state.clone(), state);
    let decisions = async move |Query(wanted): Query<Wanted>| {
        if let Some(refusal) = wanted.pool.as_deref().and_then(|name| unknown(name, &known())) {
            return Err(refusal);
        }
        let decisions = records(wanted.pool.as_deref(), wanted.count.unwrap_or(usize::MAX));
        Ok(Json(Decisions { decisions }))
    };
    Router::new()
        .route("/", get(Html(include_str!("page.html"))))
        .route("/api/v1/state", get(async move || Json(shown())))
        .route("/api/v1/decisions", get(decisions))
        .route("/metrics", get(async move |asked: HeaderMap| metrics::answer(&asked, scraped())))
        .route("/healthz", get(async move || health(&judged())))
}

/// A refusal where no pool has this name.
fn unknown(name: &str, state: &State) -> Option<Refusal> {
    let known: Vec<&str> = state.pools.iter().map(|pool| pool.name.as_str()).collect();
    (!known.contains(&name)).then(|| {
        let message = evenkeel_policy::unknown("pool", name, &known);
        Refusal::new(404, "unknown_pool", message, "name a pool that is enforced here, or an OSD")
    })
}

/// 200 while measuring works.
fn health(state: &State) -> Response {
    let lost = state.packets().any(|(pool, _)| pool.reason == "signal_lost");
    if lost { (StatusCode::SERVICE_UNAVAILABLE, "signal lost\n").into_response() } else { "ok\n".into_response() }
}
