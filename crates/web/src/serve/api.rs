//! The server's API `/api/v1`: the state for all clients, and changes on the control socket.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use evenkeel_policy::Config;
use evenkeel_policy::config::Volume;
use evenkeel_policy::history::History;
use evenkeel_policy::state::TenantState;
use evenkeel_policy::units::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::audit;
use super::body::Body;
use super::edit::Consent;
use super::manager::{Manager, Outcome};
use super::recording;
use crate::caller::Caller;
use crate::history;
use crate::probe;
use crate::refusal::Refusal;
use crate::request::{Asked, Named, Request, read, write};
use crate::serving::elsewhere_in_turn;

type Shared = State<Arc<Manager>>;

/// Permits for changes to take a thread that may block: one change is made at a time, and one more waits. So changes that wait
/// for a device that hangs leave the other threads to other requests.
static BEING_MADE: Semaphore = Semaphore::const_new(2);

/// The caller, as an extension of each connection's requests.
type By = Extension<Caller>;

/// The requests that make no change.
pub const READS: &[Request<Arc<Manager>>] = &[
    read(
        "/api/v1/state",
        "everything as JSON. `?brief=true` leaves out histogram buckets and older decisions about guarantees; `&whole=NAME` keeps this tenant's. `?tenant=NAME` leaves out other tenants",
        |method| on(method, state),
    ),
    read(
        "/api/v1/clients",
        "connections that have chosen an export, as of the last second: address, volume, tenant, requests, bytes",
        |method| on(method, async |State(manager): Shared| Json(manager.clients())),
    ),
    read("/api/v1/health", "troubles with cause and cure", |method| {
        on(method, async |State(manager): Shared| Json(manager.state().health))
    }),
    read(
        "/api/v1/history?from=TIME&to=TIME&step=S&pool=NAME&tenant=NAME",
        "figures, events and gaps [of the past](#the-history)",
        |method| on(method, history),
    ),
    read("/metrics", "Prometheus", |method| on(method, super::metrics::metrics)),
    read("/healthz", "200 `ok` or `warning`; 503 with cause and cure while critical, or draining", |method| {
        on(method, health)
    }),
    read("/livez", "always 200 `ok`", |method| on(method, probe::live)),
];

/// The requests that make changes, and reading requests that only the control socket answers.
pub const CHANGES: &[Request<Arc<Manager>>] = &[
    read("/api/v1/config", "the configuration in force, and `config_file`, the path of its file", |method| {
        on(method, config)
    }),
    write(Method::POST, "/api/v1/reload", "", "as SIGHUP", |method| on(method, reload)),
    write(
        Method::POST,
        "/api/v1/reload/preview",
        "",
        "lists the changes that a reload would make, and makes none",
        |method| on(method, preview),
    ),
    write(
        Method::POST,
        "/api/v1/volumes",
        r#"{"name": "v", "volume": {"size": "20GiB"}}"#,
        "creates a volume; keys as in `[volumes.v]`",
        |method| on(method, create_volume),
    ),
    write(
        Method::PATCH,
        "/api/v1/volumes/{name}",
        r#"{"size": "40GiB"}"#,
        "grows it; or sets `tenant`, `description`, `limit`, `tls`, `allow`, `deny`",
        |method| on(method, set_volume),
    ),
    write(Method::DELETE, "/api/v1/volumes/{name}", "", "removes it, keeps its file", |method| {
        remove(method, Manager::remove_volume)
    }),
    write(Method::PATCH, "/api/v1/server", r#"{"workers": 4}"#, "merges into `[server]`", |method| {
        on(method, set_server)
    }),
    write(
        Method::PATCH,
        "/api/v1/tenants/{name}",
        r#"{"weight": 3, "limit": {"iops": 500}}"#,
        "merges into the tenant; `\"create\": true` makes one",
        |method| set(method, Manager::set_tenant),
    ),
    write(
        Method::DELETE,
        "/api/v1/tenants/{name}",
        "",
        "removes it; its connections pass to other tenants",
        |method| remove(method, Manager::remove_tenant),
    ),
    write(
        Method::PATCH,
        "/api/v1/pools/{name}",
        r#"{"tuning": {"admission": "none"}, "emulate": {"iops": 700}}"#,
        "merges into the pool; `\"create\": true` makes one",
        |method| set(method, Manager::set_pool),
    ),
    write(Method::DELETE, "/api/v1/pools/{name}", "", "removes it, if it has no volumes", |method| {
        remove(method, Manager::remove_pool)
    }),
    read("/api/v1/record", "figures of the recording under way, or of the newest one; `null` without one", |method| {
        on(method, recording::status)
    }),
    write(
        Method::POST,
        "/api/v1/record",
        r#"{"file": "/var/tmp/shop.evf", "for_s": 60}"#,
        "begins to record every request, for 60 s if `for_s` is left out; with `last_s` saves those of the past; also `pool`, `max_bytes`, `anonymise` (a key of 16 characters or more), `force`. Answers `{\"file\", \"requests\", \"lost\", \"bytes\", \"seconds\", \"note\", \"ended\", \"error\"}`",
        |method| on(method, recording::record),
    ),
    write(
        Method::DELETE,
        "/api/v1/record",
        "",
        "ends the recording, keeps its file and answers its figures",
        |method| on(method, recording::end),
    ),
];

/// The answer to a change: one sentence for each changed object.
#[derive(Serialize)]
pub(crate) struct Changed {
    pub(crate) changes: Vec<String>,
}

pub(crate) type Answer = Result<Json<Changed>, Refusal>;

/// The parameters of a request for the state: the parts to be returned.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    /// True if the largest parts are left out: buckets of histograms, and older decisions about guarantees.
    brief: bool,
    /// The only tenant to be returned; `None`: all tenants.
    tenant: Option<String>,
    /// A tenant that is returned completely although `brief` is set.
    whole: Option<String>,
}

impl Wanted {
    /// Removes the parts of `state` that are not wanted.
    pub(crate) fn of(&self, mut state: evenkeel_policy::state::State) -> evenkeel_policy::state::State {
        for pool in &mut state.pools {
            if let Some(name) = &self.tenant {
                pool.tenants.retain(|tenant| tenant.name == *name);
            }
            let short = |tenant: &&mut TenantState| self.brief && self.whole.as_ref() != Some(&tenant.name);
            for tenant in pool.tenants.iter_mut().filter(short) {
                for latency in [&mut tenant.queue_latency, &mut tenant.device_latency, &mut tenant.latency] {
                    latency.buckets.clear();
                }
                tenant.guarantees.iter_mut().for_each(|guarantee| guarantee.decisions.clear());
            }
        }
        state
    }
}

async fn state(State(manager): Shared, Asked(wanted): Asked<Wanted>) -> Response {
    Json(wanted.of(manager.state())).into_response()
}

async fn history(
    State(manager): Shared,
    Extension(by): By,
    Asked(wanted): Asked<history::Wanted>,
) -> Result<Json<History>, Refusal> {
    let Json(mut history) = history::answered(manager.history(), wanted).await?;
    // Like the configuration, its values are for clients of the control socket.
    if by.address().is_some() {
        audit::hide_values(&mut history);
    }
    Ok(Json(history))
}

/// The configuration in force, with its file.
#[derive(Serialize)]
struct InForce<'a> {
    /// Absolute path; `None` without a file, or if the path is not Unicode.
    config_file: Option<String>,
    #[serde(flatten)]
    config: &'a Config,
}

async fn config(State(manager): Shared) -> Response {
    let config_file = manager.config_file().and_then(|file| file.into_os_string().into_string().ok());
    let config = manager.config();
    Json(InForce { config_file, config: &config }).into_response()
}

/// The answer to `/healthz`: 503 while the server drains, as it accepts no clients; else by its health.
async fn health(State(manager): Shared) -> probe::Answer {
    if manager.server().is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    manager.probed()
}

async fn reload(State(manager): Shared, Extension(by): By) -> Answer {
    change(move || manager.reload(&by)).await
}

/// The changes that a reload would make. This is no parameter of `/reload`, because a server of an older version would ignore the
/// parameter and reload; it refuses an unknown path.
async fn preview(State(manager): Shared) -> Answer {
    change(move || manager.preview()).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewVolume {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) volume: Volume,
    #[serde(default)]
    pub(crate) force: bool,
}

async fn create_volume(
    State(manager): Shared,
    Extension(by): By,
    Body(NewVolume { name, volume, force }): Body<NewVolume>,
) -> Answer {
    change(move || {
        let notes = manager.create_volume(&by, &name, volume, Consent { force, ..Consent::default() })?;
        Ok(std::iter::once(format!("volume {name} added")).chain(notes).collect())
    })
    .await
}

/// New settings of a volume; those that are left out stay.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NewSettings {
    size: Option<Bytes>,
    #[serde(deserialize_with = "given")]
    tenant: Option<Value>,
    #[serde(deserialize_with = "given")]
    description: Option<Value>,
    #[serde(deserialize_with = "given")]
    limit: Option<Value>,
    #[serde(deserialize_with = "given")]
    tls: Option<Value>,
    #[serde(deserialize_with = "given")]
    allow: Option<Value>,
    #[serde(deserialize_with = "given")]
    deny: Option<Value>,
    force: bool,
}

/// Reads a member of a JSON object so that `null`, which removes a setting, differs from a missing member.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A change of a volume.
#[derive(Debug)]
pub(crate) enum VolumeChange {
    /// A new size.
    Size(Bytes),
    /// A merge patch of its other settings.
    Settings(Value, Consent),
}

impl NewSettings {
    /// The change that is requested.
    ///
    /// # Errors
    /// If the request has neither a size nor other settings, or both: the size would stay changed if the settings were refused.
    pub(crate) fn change(self) -> Result<VolumeChange, Refusal> {
        let Self { size, tenant, description, limit, tls, allow, deny, force } = self;
        let members = [
            ("tenant", tenant),
            ("description", description),
            ("limit", limit),
            ("tls", tls),
            ("allow", allow),
            ("deny", deny),
        ];
        let members = members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let patch: Map<String, Value> = members.collect();
        match (size, patch.is_empty()) {
            (Some(size), true) => Ok(VolumeChange::Size(size)),
            (None, false) => Ok(VolumeChange::Settings(patch.into(), Consent { force, ..Consent::default() })),
            _ => {
                let message = "a request must change either the size of a volume or its other settings, and not both";
                Err(Refusal::new(422, "invalid_request", message, "give size alone, or without it other settings"))
            }
        }
    }
}

async fn set_volume(
    State(manager): Shared,
    Extension(by): By,
    Named(name): Named,
    Body(settings): Body<NewSettings>,
) -> Answer {
    let wanted = settings.change()?;
    change(move || match wanted {
        VolumeChange::Settings(patch, consent) => manager.set_volume(&by, &name, patch, consent),
        VolumeChange::Size(size) => {
            let notes = manager.grow_volume(&by, &name, size)?;
            Ok(std::iter::once(format!("volume {name} grown to {size}")).chain(notes).collect())
        }
    })
    .await
}

async fn set_server(State(manager): Shared, Extension(by): By, Body(patch): Body<Value>) -> Answer {
    change(move || manager.set_server(&by, patch)).await
}

/// The handler of a request whose body is merged into the settings of a tenant or pool.
fn set(method: MethodFilter, to: fn(&Manager, &Caller, &str, Value, Consent) -> Outcome) -> MethodRouter<Arc<Manager>> {
    on(
        method,
        async move |State(manager): Shared, Extension(by): By, Named(name): Named, Body(mut body): Body<Value>| {
            let consent = Consent::take(&mut body)?;
            change(move || to(&manager, &by, &name, body, consent)).await
        },
    )
}

/// The handler of a request that removes a volume, tenant or pool.
fn remove(method: MethodFilter, remove: fn(&Manager, &Caller, &str) -> Outcome) -> MethodRouter<Arc<Manager>> {
    on(method, async move |State(manager): Shared, Extension(by): By, Named(name): Named| {
        change(move || remove(&manager, &by, &name)).await
    })
}

/// Makes a change on another thread than the one that answers requests, because opening and closing volumes takes time.
async fn change(make: impl FnOnce() -> Outcome + Send + 'static) -> Answer {
    let failed =
        |_| Refusal::new(500, "internal", "an internal error ended the change", "report the error in the server's log");
    let changes = elsewhere_in_turn(&BEING_MADE, make).await.map_err(failed).and_then(|made| made)?;
    Ok(Json(Changed { changes }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::serving::elsewhere;

    #[test]
    fn changes_that_hang_leave_threads_to_other_requests() {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(4).build().expect("a runtime");
        let (end, hangs) = std::sync::mpsc::channel::<()>();
        let hangs = Arc::new(std::sync::Mutex::new(hangs));
        let other = runtime.block_on(async {
            for _ in 0..8 {
                let hangs = Arc::clone(&hangs);
                tokio::spawn(change(move || {
                    if let Ok(hangs) = hangs.lock() {
                        let _ = hangs.recv();
                    }
                    Ok(Vec::new())
                }));
            }
            tokio::task::yield_now().await;
            tokio::time::timeout(std::time::Duration::from_secs(30), elsewhere(|| 5)).await
        });
        drop(end);
        assert!(matches!(other, Ok(Ok(5))), "the threads that may block are all taken");
    }

    #[test]
    fn a_volume_gets_another_size_or_other_settings() {
        let read = |body: Value| serde_json::from_value::<NewSettings>(body).expect("settings").change();
        assert!(matches!(read(json!({ "size": "2MiB" })), Ok(VolumeChange::Size(Bytes(size))) if size == 2 << 20));
        for patch in [
            json!({ "allow": null, "deny": ["unix"], "limit": { "when": null }, "tenant": "a", "tls": null }),
            json!({ "description": null, "limit": null, "tenant": null }),
        ] {
            let read_patch = match read(patch.clone()) {
                Ok(VolumeChange::Settings(read, consent)) if !consent.force => read,
                other => panic!("{other:?}"),
            };
            assert_eq!(read_patch, patch, "null is a value");
        }
        for body in [json!({}), json!({ "force": true }), json!({ "size": "2MiB", "tls": null })] {
            assert_eq!(read(body).expect_err("none or two").kind, "invalid_request");
        }
        assert!(serde_json::from_value::<NewSettings>(json!({ "path": "/a" })).is_err());
    }
}
