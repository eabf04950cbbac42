//! Requests about recordings of the flight recorder. Only the control socket answers them, as they make files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use evenkeel_server::{Order, Recorded};
use serde::Deserialize;

use super::body::Body;
use super::manager::Manager;
use crate::caller::Caller;
use crate::refusal::Refusal;
use crate::serving::elsewhere;

/// Length of a recording if the request names none.
const USUAL: Duration = Duration::from_secs(60);
/// Longest recording: a month.
const LONGEST_S: f64 = 31.0 * 86_400.0;
/// Bound on the size of a file if the request names none, in bytes.
const USUAL_BYTES: u64 = 1 << 30;

/// The body of a request for a recording.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wished {
    /// Absolute path of the file.
    file: PathBuf,
    /// Length of a recording that begins now, in seconds.
    #[serde(default)]
    for_s: Option<f64>,
    /// Length of a recording of the past, in seconds.
    #[serde(default)]
    last_s: Option<f64>,
    /// The only pool to record.
    #[serde(default)]
    pool: Option<String>,
    /// Bound on the size of the file.
    #[serde(default)]
    max_bytes: Option<u64>,
    /// Key with which offsets and names are scrambled.
    #[serde(default)]
    anonymise: Option<String>,
    /// True to replace a recording of that name.
    #[serde(default)]
    force: bool,
}

impl Wished {
    /// The order that the request makes, and true if it is for a recording of the past.
    ///
    /// # Errors
    /// If a length is no time, or there are two.
    pub(crate) fn order(self) -> Result<(Order, bool), Refusal> {
        let (seconds, is_past) = match (self.for_s, self.last_s) {
            (Some(_), Some(_)) => {
                let message = "for_s is for a recording from now on and last_s for one of the past, and both are given";
                return Err(Refusal::new(422, "invalid_request", message, "leave one of them out"));
            }
            (None, Some(seconds)) => (seconds, true),
            (seconds, None) => (seconds.unwrap_or(USUAL.as_secs_f64()), false),
        };
        let length = Some(seconds).filter(|&seconds| seconds > 0.0 && seconds <= LONGEST_S);
        let length = length.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
            let message = format!("{seconds} s is not a valid length of a recording");
            Refusal::new(422, "invalid_request", message, format!("use more than 0 and at most {LONGEST_S} seconds"))
        })?;
        let order = Order {
            file: self.file,
            pool: self.pool,
            length,
            max_bytes: self.max_bytes.unwrap_or(USUAL_BYTES),
            key: self.anonymise.map(String::into_bytes),
            force: self.force,
        };
        Ok((order, is_past))
    }
}

type Answer = Result<Json<Recorded>, Refusal>;

/// Does something with the server on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Refusal> + Send + 'static) -> Result<T, Refusal> {
    let failed = "an internal error of the server ended the recording command";
    let done = elsewhere(work).await;
    done.unwrap_or_else(|_| Err(Refusal::new(500, "internal", failed, "report the error in the server's log")))
}

/// Begins a recording, or saves one of the past.
pub(super) async fn record(
    State(manager): State<Arc<Manager>>,
    Extension(by): Extension<Caller>,
    Body(wished): Body<Wished>,
) -> Answer {
    let (order, is_past) = wished.order()?;
    let file = order.file.clone();
    let recorded = blocking(move || {
        let server = manager.server();
        let recorded = if is_past { server.record_last(order) } else { server.record(order) };
        recorded.map_err(Refusal::from)
    })
    .await?;
    // A path may have line breaks.
    tracing::info!("recording requests into {file:?}, asked for by {by}");
    Ok(Json(recorded))
}

/// The figures of the recording under way, or of the newest one.
pub(super) async fn status(State(manager): State<Arc<Manager>>) -> Result<Json<Option<Recorded>>, Refusal> {
    blocking(move || Ok(manager.server().recorded())).await.map(Json)
}

/// Ends the recording under way.
pub(super) async fn end(State(manager): State<Arc<Manager>>, Extension(by): Extension<Caller>) -> Answer {
    let (was_under_way, ended) = blocking(move || {
        let server = manager.server();
        Ok((server.recorded().is_some_and(|newest| !newest.ended), server.end_recording()))
    })
    .await?;
    if was_under_way && let Some(Recorded { file, .. }) = &ended {
        tracing::info!("the recording into {file:?} ends, asked for by {by}");
    }
    let none = || {
        Refusal::new(
            404,
            "not_found",
            "no recording was made since the server's start",
            "begin one with `evenkeel record FILE`",
        )
    };
    ended.map(Json).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn order(body: serde_json::Value) -> Result<(Order, bool), Refusal> {
        serde_json::from_value::<Wished>(body).expect("its form is right").order()
    }

    #[test]
    fn a_request_is_an_order() {
        let (usual, is_past) = order(json!({ "file": "/f" })).expect("right");
        assert_eq!((usual.length, usual.max_bytes, usual.force, is_past), (USUAL, USUAL_BYTES, false, false));
        assert!(usual.pool.is_none() && usual.key.is_none());
        let body =
            json!({ "file": "/f", "last_s": 1.5, "pool": "p", "anonymise": "key", "force": true, "max_bytes": 5 });
        let (order, is_past) = order(body).expect("right");
        assert_eq!((order.length, order.max_bytes, is_past), (Duration::from_millis(1500), 5, true));
        assert_eq!((order.pool.as_deref(), order.key.as_deref(), order.force), (Some("p"), Some(&b"key"[..]), true));
    }

    #[test]
    fn a_length_that_is_none_is_refused() {
        for body in [
            json!({ "file": "/f", "for_s": 0 }),
            json!({ "file": "/f", "for_s": -1 }),
            json!({ "file": "/f", "last_s": 1e300 }),
            json!({ "file": "/f", "for_s": 1, "last_s": 1 }),
        ] {
            let refusal = order(body.clone()).err().unwrap_or_else(|| panic!("{body} is accepted"));
            assert_eq!((refusal.status, refusal.kind), (422, "invalid_request"), "{body}: {refusal:?}");
        }
    }
}
