//! The agent's HTTP API: `/api/v1/state`, `/api/v1/pools`, `/api/v1/decisions`, `/api/v1/health`,
//! `/api/v1/history`, `/metrics`, `/healthz`, `/livez`, and at `/` the dashboard.

use std::sync::Arc;
use std::time::Instant;

use axum::extract;
use axum::http::HeaderMap;
use axum::routing::on;
use axum::{Json, Router};
use evenkeel_guard::loops::record::State;
use evenkeel_policy::decision::{DecisionRecord, Decisions};
use evenkeel_policy::health::Health;
use evenkeel_policy::history::History;
use serde::Deserialize;

use crate::dashboard;
use crate::history::Recorder;
use crate::probe::{self, Newest};
use crate::refusal::Refusal;
use crate::request::{self, Asked, Request, read};

mod history;
pub(crate) mod metrics;
mod shown;

pub use history::record;
use shown::Shown;

#[derive(Deserialize)]
struct Wanted {
    pool: Option<String>,
    count: Option<usize>,
}

/// A function that returns the state of an agent at its last interval.
type StateOf = Box<dyn Fn() -> State + Send + Sync>;

/// A function that returns the newest decisions of an agent about one pool, or about all pools (`None`), at most this number.
type RecordsOf = Box<dyn Fn(Option<&str>, usize) -> Vec<DecisionRecord> + Send + Sync>;

/// The agent behind the API.
pub struct Agent {
    state: StateOf,
    records: RecordsOf,
    /// Records the history; `None` if the agent has no folder for it, or no thread could be started.
    history: Option<Arc<Recorder>>,
    /// The newest health, for probes.
    newest: Newest,
}

impl Agent {
    /// The state of the agent, with the trouble that its history is not recorded.
    fn current(&self) -> State {
        let mut state = (self.state)();
        if let Some(trouble) = self.history.as_ref().and_then(|history| history.trouble()) {
            let troubles = std::mem::take(&mut state.health.troubles);
            state.health = Health::of(troubles.into_iter().chain([trouble]).collect());
        }
        state
    }

    /// The answer to `/healthz` at `now`. For a health the whole state is copied, under the lock that the agent's decisions need.
    fn probed(&self, now: Instant) -> probe::Answer {
        self.newest.answer(now, || self.current().health)
    }
}

type Shared = extract::State<Arc<Agent>>;

/// The requests that an agent answers.
pub const READS: &[Request<Arc<Agent>>] = &[
    read("/api/v1/state", "everything measured and decided at the last interval", |method| {
        on(method, async |extract::State(agent): Shared| Json(agent.current()))
    }),
    read("/api/v1/pools", "the same in the form of a server's state, for the dashboard", |method| {
        on(method, async |extract::State(agent): Shared| {
            Json(Shown::of(&agent.current(), (agent.records)(None, shown::DECISIONS)))
        })
    }),
    read(
        "/api/v1/decisions?pool=NAME&count=N",
        "decisions with their reasons, newest first; the pool may be an OSD (`osd.0`)",
        |method| on(method, decisions),
    ),
    read("/api/v1/health", "troubles with cause and cure", |method| {
        on(method, async |extract::State(agent): Shared| Json(agent.current().health))
    }),
    read(
        "/api/v1/history?from=TIME&to=TIME&step=S&pool=NAME&tenant=NAME",
        "figures, events and gaps [of the past](#the-history)",
        |method| on(method, history),
    ),
    read("/metrics", "Prometheus; names begin with `evenkeel_guard_`", |method| {
        on(method, async |extract::State(agent): Shared, asked: HeaderMap| metrics::answer(&asked, agent.current()))
    }),
    read("/healthz", "200 `ok` or `warning`; 503 with cause and cure while critical", |method| {
        on(method, async |extract::State(agent): Shared| agent.probed(Instant::now()))
    }),
    read("/livez", "always 200 `ok`", |method| on(method, probe::live)),
];

/// The router of an agent's API. `state` returns the agent's state, `records` its newest decisions; `history` records both.
pub fn router(
    state: impl Fn() -> State + Send + Sync + 'static,
    records: impl Fn(Option<&str>, usize) -> Vec<DecisionRecord> + Send + Sync + 'static,
    history: Option<Arc<Recorder>>,
) -> Router {
    let agent = Agent { state: Box::new(state), records: Box::new(records), history, newest: Newest::default() };
    dashboard::router().merge(request::router(READS)).with_state(Arc::new(agent))
}

async fn history(
    extract::State(agent): Shared,
    Asked(wanted): Asked<crate::history::Wanted>,
) -> Result<Json<History>, Refusal> {
    crate::history::answered(agent.history.as_deref(), wanted).await
}

async fn decisions(extract::State(agent): Shared, Asked(wanted): Asked<Wanted>) -> Result<Json<Decisions>, Refusal> {
    if let Some(refusal) = wanted.pool.as_deref().and_then(|name| unknown(name, &agent.current())) {
        return Err(refusal);
    }
    let decisions = (agent.records)(wanted.pool.as_deref(), wanted.count.unwrap_or(usize::MAX));
    Ok(Json(Decisions { decisions }))
}

/// The refusal of a request for the pool `name`; `None` if a pool of the agent has this name.
fn unknown(name: &str, state: &State) -> Option<Refusal> {
    let known: Vec<&str> = state.pools.iter().map(|pool| pool.name.as_str()).collect();
    (!known.contains(&name)).then(|| {
        let message = evenkeel_policy::unknown("pool", name, &known);
        Refusal::new(404, "unknown_pool", message, "name a pool or an OSD that `evenkeel guard status` shows")
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use axum::http::StatusCode;
    use evenkeel_policy::health::{Level, Trouble};

    use super::*;

    #[test]
    fn however_often_health_is_asked_for_the_state_is_collected_once_a_second() {
        let collected = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&collected);
        // The signal of a pool is lost in the third second.
        let state = move || {
            let is_lost = counts.fetch_add(1, Ordering::Relaxed) == 2;
            let lost = Trouble::new(Level::Critical, "signal_lost", "pool a", "nothing is measured", "look for it");
            State { health: Health::of(is_lost.then_some(lost).into_iter().collect()), ..State::default() }
        };
        let agent = Agent {
            state: Box::new(state),
            records: Box::new(|_, _| Vec::new()),
            history: None,
            newest: Newest::default(),
        };
        let begun = Instant::now();
        let answers: Vec<_> = (0..4_000).map(|ms| agent.probed(begun + Duration::from_millis(ms))).collect();
        assert_eq!(collected.load(Ordering::Relaxed), 4);
        let lost = "critical: pool a: nothing is measured; look for it\n";
        for (second, (status, body)) in [
            (0, (StatusCode::OK, "ok\n")),
            (1, (StatusCode::OK, "ok\n")),
            (2, (StatusCode::SERVICE_UNAVAILABLE, lost)),
            (3, (StatusCode::OK, "ok\n")),
        ] {
            assert_eq!(answers[1_000 * second + 999], (status, body.to_owned()));
        }
    }
}
