//! `/api/v1`: state for all clients, changes on the control socket.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use axum::{Extension, Router};
use evenkeel_policy::config::Volume;
use evenkeel_policy::state::TenantState;
use evenkeel_policy::units::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::manager::{Consent, Manager};
use crate::caller::Caller;
use crate::refusal::Refusal;
use crate::serving::elsewhere;

type Shared = State<Arc<Manager>>;

/// The caller, of each connection.
type By = Extension<Caller>;

/// The routes that read.
pub(super) fn read_router() -> Router<Arc<Manager>> {
    Router::new()
        .route("/api/v1/state", get(state))
        .route("/api/v1/clients", get(async |State(manager): Shared| Json(manager.clients())))
        .route("/healthz", get(health))
}

/// The routes that change.
pub(super) fn write_router() -> Router<Arc<Manager>> {
    Router::new()
        .route("/api/v1/config", get(config))
        .route("/api/v1/reload", post(reload))
        .route("/api/v1/volumes", post(create_volume))
        .route("/api/v1/volumes/{name}", patch(grow_volume).delete(remove_volume))
        .route("/api/v1/server", patch(set_server))
        .route("/api/v1/tenants/{name}", patch(set_tenant))
        .route("/api/v1/pools/{name}", patch(set_pool))
}

/// The changes: one sentence each.
#[derive(Serialize)]
struct Changed {
    changes: Vec<String>,
}

type Answer = Result<Json<Changed>, Refusal>;

/// How much of the state is wanted.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Wanted {
    /// Without what takes most room: buckets of histograms, and decisions about guarantees but the newest.
    brief: bool,
    /// Of all tenants this one alone.
    tenant: Option<String>,
    /// The parts that are left out elsewhere: all about this tenant.
    whole: Option<String>,
}

async fn state(State(manager): Shared, Query(wanted): Query<Wanted>) -> Response {
    let mut state = manager.state();
    for pool in &mut state.pools {
        if let Some(name) = &wanted.tenant {
            pool.tenants.retain(|tenant| tenant.name == *name);
        }
        let short = |tenant: &&mut TenantState| wanted.brief && wanted.whole.as_ref() != Some(&tenant.name);
        for tenant in pool.tenants.iter_mut().filter(short) {
            for latency in [&mut tenant.queue_latency, &mut tenant.device_latency, &mut tenant.latency] {
                latency.buckets.clear();
            }
            tenant.guarantees.iter_mut().for_each(|guarantee| guarantee.decisions.clear());
        }
    }
    Json(state).into_response()
}

async fn config(State(manager): Shared) -> Response {
    Json(&*manager.config()).into_response()
}

/// 200 while new clients are served, 503 while the server drains.
async fn health(State(manager): Shared) -> Response {
    if manager.state().draining {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    "ok\n".into_response()
}

async fn reload(State(manager): Shared, Extension(by): By) -> Answer {
    change(move || manager.reload(&by)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewVolume {
    name: String,
    #[serde(default)]
    volume: Volume,
}

async fn create_volume(
    State(manager): Shared,
    Extension(by): By,
    Body(NewVolume { name, volume }): Body<NewVolume>,
) -> Answer {
    change(move || {
        let notes = manager.create_volume(&by, &name, volume)?;
        Ok(std::iter::once(format!("volume {name} added")).chain(notes).collect())
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewSize {
    size: Bytes,
}

async fn grow_volume(
    State(manager): Shared,
    Extension(by): By,
    Path(name): Path<String>,
    Body(NewSize { size }): Body<NewSize>,
) -> Answer {
    change(move || {
        let notes = manager.grow_volume(&by, &name, size)?;
        Ok(std::iter::once(format!("volume {name} grown to {size}")).chain(notes).collect())
    })
    .await
}

async fn remove_volume(State(manager): Shared, Extension(by): By, Path(name): Path<String>) -> Answer {
    change(move || manager.remove_volume(&by, &name)).await
}

async fn set_server(State(manager): Shared, Extension(by): By, Body(patch): Body<Value>) -> Answer {
    change(move || manager.set_server(&by, patch)).await
}

async fn set_tenant(
    State(manager): Shared,
    Extension(by): By,
    Path(name): Path<String>,
    Body(mut patch): Body<Value>,
) -> Answer {
    let consent = Consent::take(&mut patch)?;
    change(move || manager.set_tenant(&by, &name, patch, consent)).await
}

async fn set_pool(
    State(manager): Shared,
    Extension(by): By,
    Path(name): Path<String>,
    Body(mut patch): Body<Value>,
) -> Answer {
    let consent = Consent::take(&mut patch)?;
    change(move || manager.set_pool(&by, &name, patch, consent)).await
}

/// The body of a request; a refusal says what was expected.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        Json::from_request(request, state).await.map(|Json(content)| Self(content)).map_err(|rejection| {
            let cure = "send JSON with Content-Type: application/json; `evenkeel config schema` describes the values";
            let message = evenkeel_policy::explain(&rejection.body_text());
            Refusal::new(rejection.status().as_u16(), "invalid_request", message, cure)
        })
    }
}

/// Makes a change away from the thread that answers others: opening and closing volumes takes its time.
async fn change(make: impl FnOnce() -> Result<Vec<String>, Refusal> + Send + 'static) -> Answer {
    let failed =
        |_| Refusal::new(500, "internal", "the change failed inside the server", "see the server's log, and report it");
    let changes = elsewhere(make).await.map_err(failed).and_then(|made| made)?;
    Ok(Json(Changed { changes }))
}
