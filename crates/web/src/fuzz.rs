//! Body of the fuzz target: the same code runs under a fuzzer and, on stable Rust, in the tests.
//!
//! Each request of the server's tables is routed and parsed as the server does; its change is made in a configuration, and is not
//! put into force.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::body::{Body as Content, to_bytes};
use axum::extract::State;
use axum::http::{self, HeaderMap, Method, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, on};
use evenkeel_guard::loops::record;
use evenkeel_policy::Config;
use evenkeel_policy::change::plan;
use evenkeel_policy::check::check;
use evenkeel_policy::config::Http;
use evenkeel_policy::state::{self, PoolState, TenantState};
use evenkeel_server::Error;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::caller::Caller;
use crate::refusal::Refusal;
use crate::request::{Asked, Named, Request};
use crate::serve::api::{Answer, Changed, NewSettings, NewVolume, VolumeChange, Wanted};
use crate::serve::body::Body;
use crate::serve::edit::{self, Consent};
use crate::serve::recording::Wished;
use crate::serve::{CHANGES, READS, audit, metrics, source};
use crate::{dashboard, guard, history, rules};

/// Unix time of all requests, in seconds.
const NOW_S: u64 = 1_800_000_000;
/// The configuration that requests change. Volume `fixed` counts as one that a file defines.
const CONFIG: &str = r#"
[pools.main]
limit = { iops = 5000 }
[pools.main.tuning]
admission = { kind = "fixed", budget = "1MiB" }
[pools.slow]
latency = { target = "20ms", percentile = 99.0 }
emulate = { preset = "hdd" }
[tenants.light]
reservation = { iops = 1000 }
[tenants.batch]
weight = 3
limit = { bytes_per_s = "100MB", burst = "50ms" }
[volumes.fixed]
backend = "memory"
size = "1MiB"
[volumes.v]
size = "1GiB"
tenant = "light"
[volumes.m]
backend = "emulate"
pool = "slow"
size = "1MiB"
"#;

/// The state of the handlers: the configuration that a change begins with.
type Held = State<Arc<Config>>;

/// Routers as on the control socket and at the status address of a server. The agent's API is below `/guard` of both.
struct Served {
    runtime: Runtime,
    control: Router,
    status: Router,
}

thread_local! {
    static SERVED: Served = Served::new();
}

impl Served {
    fn new() -> Self {
        let config = Arc::new(check(CONFIG, "fuzz").into_result().expect("a configuration").config);
        let agent = Router::new().nest("/guard", guard::router(record::State::default, |_, _| Vec::new(), None));
        let http = Http::default();
        let hosts = rules::Hosts { loopback: true, table: "server", http, is_secure: Box::new(|| false) };
        let reads = || -> Router { dry(READS).with_state(Arc::clone(&config)).merge(agent.clone()) };
        Self {
            runtime: Builder::new_current_thread().build().expect("a runtime"),
            control: rules::control(reads().merge(dry(CHANGES).with_state::<()>(Arc::clone(&config)))),
            status: rules::read_only(dashboard::router::<()>().merge(reads()), hosts),
        }
    }

    /// The status and the body of the answer to a request.
    fn ask(&self, router: &Router, request: http::Request<Vec<u8>>) -> (StatusCode, Vec<u8>) {
        self.runtime.block_on(async {
            let Ok(answer) = TowerToHyperService::new(router.clone()).call(request.map(Content::from)).await;
            let status = answer.status();
            (status, to_bytes(answer.into_body(), usize::MAX).await.expect("a body in memory").to_vec())
        })
    }
}

/// Reads the bytes as an HTTP request: a line with method and target, lines with headers, an empty line, the body. A refusal must
/// have a status of 4xx and a message. An accepted change must be the same after it was written and read again, and must change
/// nothing when it is requested a second time. Over TCP no change may be accepted.
pub fn api(data: &[u8]) {
    let Some(request) = request(data) else { return };
    SERVED.with(|served| {
        let method = request.method().clone();
        let (status, body) = served.ask(&served.status, request.clone());
        judge(&method, status, &body);
        assert!(status.is_client_error() || matches!(method, Method::GET | Method::HEAD), "{method}: {status}");
        let (status, body) = served.ask(&served.control, request);
        judge(&method, status, &body);
    });
}

fn request(data: &[u8]) -> Option<http::Request<Vec<u8>>> {
    let end = data.windows(2).position(|two| two == b"\n\n").unwrap_or(data.len());
    let mut lines = data[..end].split(|&byte| byte == b'\n');
    let mut words = lines.next()?.split(|&byte| byte == b' ');
    let mut request = http::Request::builder().method(words.next()?).uri(words.next()?);
    for line in lines {
        let colon = line.iter().position(|&byte| byte == b':')?;
        request = request.header(&line[..colon], line[colon + 1..].trim_ascii());
    }
    request.body(data.get(end + 2..).unwrap_or_default().to_vec()).ok()
}

/// Asserts that the answer is a success, or a refusal with a reason that the client can read.
fn judge(method: &Method, status: StatusCode, body: &[u8]) {
    if status.is_success() || status == StatusCode::NOT_MODIFIED {
        return;
    }
    assert!(status.is_client_error(), "{status}: {}", body.escape_ascii());
    // Its answer has no body.
    if method == Method::HEAD {
        return;
    }
    let answer: Value = serde_json::from_slice(body).unwrap_or_else(|error| panic!("{error}: {}", body.escape_ascii()));
    for member in ["kind", "message", "cure"] {
        let text = answer["error"][member].as_str().unwrap_or_default();
        assert!(!text.trim().is_empty(), "{status} without a {member}: {answer}");
    }
}

/// The router of a server's requests, with handlers that put nothing into force.
fn dry<S>(requests: &[Request<S>]) -> Router<Arc<Config>> {
    requests.iter().fold(Router::new(), |router, request| {
        let method = MethodFilter::try_from(request.method.clone()).expect("a method of the standard");
        let path = request.path.split('?').next().unwrap_or(request.path);
        let handler = match (request.method.as_str(), path) {
            ("GET", "/api/v1/state") => on(method, async |Asked(wanted): Asked<Wanted>| Json(wanted.of(shown()))),
            ("GET", "/api/v1/clients" | "/api/v1/health" | "/healthz" | "/livez") => on(method, async || "ok\n"),
            ("GET", "/api/v1/history") => {
                on(method, async |Asked(wanted): Asked<history::Wanted>| wanted.check(NOW_S).map(|()| "ok\n"))
            }
            ("GET", "/metrics") => on(method, async |asked: HeaderMap| metrics::of(&asked, shown())),
            ("GET", "/api/v1/config") => on(method, async |State(config): Held| Json(&*config).into_response()),
            ("POST", "/api/v1/reload" | "/api/v1/reload/preview") => on(method, async || "ok\n"),
            ("POST", "/api/v1/volumes") => on(method, create_volume),
            ("PATCH", "/api/v1/volumes/{name}") => on(method, set_volume),
            ("DELETE", "/api/v1/volumes/{name}") => on(method, remove_volume),
            ("PATCH", "/api/v1/server") => on(method, set_server),
            ("PATCH", "/api/v1/tenants/{name}") => on(method, set_tenant),
            ("DELETE", "/api/v1/tenants/{name}") => on(method, remove_tenant),
            ("PATCH", "/api/v1/pools/{name}") => on(method, set_pool),
            ("DELETE", "/api/v1/pools/{name}") => on(method, remove_pool),
            ("GET" | "DELETE", "/api/v1/record") => on(method, async || "ok\n"),
            ("POST", "/api/v1/record") => on(method, async |Body(wished): Body<Wished>| wished.order().map(|_| "ok\n")),
            (method, path) => panic!("{method} {path} is not fuzzed"),
        };
        router.route(path, handler)
    })
}

fn shown() -> state::State {
    let tenant = |name: &str| TenantState { name: name.into(), ..TenantState::default() };
    let pool =
        PoolState { name: "main".into(), tenants: ["light", "batch"].map(tenant).into(), ..PoolState::default() };
    state::State { pools: vec![pool], ..state::State::default() }
}

async fn create_volume(State(config): Held, Body(NewVolume { name, volume, force }): Body<NewVolume>) -> Answer {
    let after = edit::with_volume(&config, &name, volume)?;
    accept(&config, &after, Consent { force, ..Consent::default() })
}

async fn set_volume(State(config): Held, Named(name): Named, Body(settings): Body<NewSettings>) -> Answer {
    let (patch, size, consent) = match settings.change()? {
        VolumeChange::Size(size) => (serde_json::json!({}), Some(size), Consent::default()),
        VolumeChange::Settings(patch, consent) => (patch, None, consent),
    };
    let mut after = edit::with_volume_patch(&config, &name, patch)?;
    match after.volumes.get_mut(&name).zip(size) {
        Some((volume, size)) if volume.size.is_some_and(|present| size <= present) => {
            return Err(Error::Refused("a volume only grows".into()).into());
        }
        Some((volume, size)) => volume.size = Some(size),
        None => {}
    }
    accept(&config, &after, consent)
}

async fn remove_tenant(State(config): Held, Named(name): Named) -> Answer {
    accept(&config, &edit::without_tenant(&config, &name)?, Consent::default())
}

async fn remove_pool(State(config): Held, Named(name): Named) -> Answer {
    accept(&config, &edit::without_pool(&config, &name)?, Consent::default())
}

async fn remove_volume(State(config): Held, Named(name): Named) -> Answer {
    let (after, volume) = edit::without_volume(&config, &name)?;
    assert_eq!(config.volumes.get(&name), Some(&volume));
    accept(&config, &after, Consent::default())
}

async fn set_server(State(config): Held, Body(patch): Body<Value>) -> Answer {
    twice(&config, Consent::default(), |config| edit::with_server(config, patch.clone()))
}

async fn set_tenant(State(config): Held, Named(name): Named, Body(mut patch): Body<Value>) -> Answer {
    let consent = Consent::take(&mut patch)?;
    twice(&config, consent, |config| edit::with_tenant(config, &name, patch.clone(), consent))
}

async fn set_pool(State(config): Held, Named(name): Named, Body(mut patch): Body<Value>) -> Answer {
    let consent = Consent::take(&mut patch)?;
    twice(&config, consent, |config| edit::with_pool(config, &name, patch.clone(), consent))
}

/// Accepts or refuses a change; asserts that one that is accepted changes nothing when it is made again.
fn twice(before: &Config, consent: Consent, change: impl Fn(&Config) -> Result<Config, Refusal>) -> Answer {
    let after = change(before)?;
    let answer = accept(before, &after, consent)?;
    let again = change(&after).unwrap_or_else(|refusal| panic!("refused the second time: {refusal:?}"));
    assert_eq!(again, after, "the same change, made twice, gives another configuration");
    Ok(answer)
}

/// Accepts or refuses a changed configuration as a running server does; asserts that one that is accepted is the same after it
/// was written and read again, by the API and by the record of volumes.
fn accept(before: &Config, after: &Config, consent: Consent) -> Answer {
    edit::new_warnings(before, after)?;
    edit::refuse_hangs(before, after, consent)?;
    let changes = plan(before, after).map_err(|needed| Error::Refused(needed.to_string()))?;
    if changes.is_empty() {
        assert_eq!((&before.pools, &before.tenants), (&after.pools, &after.tenants), "a change without effect");
    }
    audit::log(&Caller::Unknown, "the configuration", before, after);
    let json = serde_json::to_string(after).expect("a configuration can be written");
    let read: Config = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert_eq!(&read, after, "JSON makes something else of it");
    let fixed = BTreeSet::from(["fixed".to_owned()]);
    let record = source::text_of(after, &fixed).expect("accepted changes can be recorded");
    let mut recorded = source::volumes_of(&record).unwrap_or_else(|error| panic!("{error}: {record}"));
    recorded.extend(after.volumes.get_key_value("fixed").map(|(name, volume)| (name.clone(), volume.clone())));
    assert_eq!(recorded, after.volumes, "the record makes something else of it");
    Ok(Json(Changed { changes: changes.iter().map(ToString::to_string).collect() }))
}
