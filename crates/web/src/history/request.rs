//! `/api/v1/history`, for server and agent alike.

use axum::Json;
use evenkeel_policy::history::History;
use evenkeel_policy::moment;
use evenkeel_policy::units::Duration;
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::answer::{Error, Query, answer, empty};
use super::recorder::{Recorder, now};
use crate::refusal::Refusal;
use crate::serving::elsewhere_in_turn;

/// Answers are made one at a time: each may take a fraction of a second of a processor, and tens of megabytes.
static TURN: Semaphore = Semaphore::const_new(1);
/// Time before the end at which an answer begins, if the request names no start, in seconds.
const USUAL_LENGTH_S: u64 = 600;

/// Cure of a request that cannot be answered.
const CURE: &str = "see docs/reference/api.md for the parameters";

/// The parameters of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    from: Option<String>,
    to: Option<String>,
    step: Option<String>,
    pool: Option<String>,
    tenant: Option<String>,
}

impl Wanted {
    /// Reads the parameters, at Unix time `now` in seconds, without an answer.
    #[cfg(feature = "fuzz")]
    pub(crate) fn check(self, now: u64) -> Result<(), Refusal> {
        self.query(now).map(drop).map_err(|error| Refusal::new(400, "invalid_request", error, CURE))
    }

    fn query(self, now: u64) -> Result<Query, String> {
        let time =
            |key: &str, text: &str| moment::parse(text, now, moment::utc).map_err(|error| format!("{key}: {error}"));
        let to = self.to.map_or(Ok(now + 1), |to| time("to", &to))?;
        let from = self.from.map_or(Ok(to.saturating_sub(USUAL_LENGTH_S)), |from| time("from", &from))?;
        let step = |text: String| {
            let step = text.parse().or_else(|_| text.parse::<Duration>().map(|step| step.as_nanos() / 1_000_000_000));
            step.map_err(|error| format!("step: {error}"))
        };
        Ok(Query { from, to, step: self.step.map(step).transpose()?, pool: self.pool, tenant: self.tenant })
    }
}

/// The answer to a request.
pub(crate) async fn answered(recorder: Option<&Recorder>, wanted: Wanted) -> Result<Json<History>, Refusal> {
    let off = |cure: &str| Refusal::new(404, "no_history", "no history is recorded here", cure);
    let Some(recorder) = recorder else {
        return Err(off("set agent.data_dir to a folder for the history"));
    };
    let key = recorder.key();
    let place = recorder.place().ok_or_else(|| off(&format!("set {key} to a number of bytes, such as \"256MiB\"")))?;
    let query = wanted.query(now().as_secs()).map_err(|error| Refusal::new(400, "invalid_request", error, CURE))?;
    let problem = recorder.problem();
    let made = elsewhere_in_turn(&TURN, move || {
        // It is made with the first second that is recorded.
        if place.folder.exists() { answer(&place.folder, &query) } else { empty(&query) }
    })
    .await;
    let failed = |_| {
        let cure = "see the log of this server or agent, and report the error";
        Refusal::new(500, "internal", "an internal error ended the reading of the history", cure)
    };
    let mut history = made.map_err(failed)?.map_err(|error| match error {
        Error::History(error) => {
            Refusal::new(500, "system", error, "make the folder readable, or see the log for why nothing is recorded")
        }
        error => Refusal::new(400, "invalid_request", error, CURE),
    })?;
    history.problems.extend(problem.map(|problem| format!("nothing is recorded at present: {problem}")));
    Ok(Json(history))
}
