//! Refusals of requests, as they are logged and sent as answers.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use evenkeel_policy::check::Errors;
use evenkeel_server::Error;
use serde::Serialize;
use serde_json::json;

/// The refusal of a request, sent as `{"error": {"kind", "message", "cure"}}`. The request has made no change, except with the
/// kind `not_recorded`, and possibly with `no_answer`.
#[derive(Debug, Serialize)]
pub struct Refusal {
    /// Name of the reason, for programs.
    pub(crate) kind: &'static str,
    /// The reason in a sentence.
    pub message: String,
    /// The cure in a sentence.
    pub cure: String,
    /// HTTP status of the answer.
    #[serde(skip)]
    pub(crate) status: u16,
}

impl Refusal {
    pub(crate) fn new(status: u16, kind: &'static str, message: impl ToString, cure: impl ToString) -> Self {
        Self { kind, message: message.to_string(), cure: cure.to_string(), status }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        if let Error::NotOurs { volume, path, why, cure } = error {
            return Self::new(409, "not_ours", format!("volume {volume:?} ({}): {why}", path.display()), cure);
        }
        let (status, kind, cure) = match &error {
            Error::Unknown { .. } => (404, "not_found", "`evenkeel state` lists pools, tenants and volumes"),
            Error::InUse { .. } => (409, "in_use", "stop the other server, or give the volume another path"),
            Error::Refused(why) if why.contains("need a restart") => {
                (409, "refused", "restart the server to apply the changes, or undo them in the configuration file")
            }
            Error::Refused(_) => (409, "refused", "correct what the message names and try again"),
            // The cause is a sentence of ours, with its cure.
            Error::Opening { cause, .. } if cause.get_ref().is_some() => {
                (422, "volume_unusable", "correct what the message names and try again")
            }
            Error::Volume { .. } | Error::Opening { .. } => {
                (422, "volume_unusable", "check the path, its permissions and the free space")
            }
            Error::Remote { .. } => (422, "volume_unusable", "start the server that uri names, or correct uri"),
            Error::Rbd { .. } => {
                (422, "volume_unusable", "correct image, user or keyring; `ceph -s` shows the cluster")
            }
            Error::NoAnswer { .. } => (
                504,
                "no_answer",
                "look at the device (dmesg, `ceph -s`); see `evenkeel state` before you repeat the command",
            ),
            Error::Tls(_) => (422, "invalid_configuration", "correct the file or the key that names it, and try again"),
            _ => (500, "system", "give the server the memory, disk space or right that the system refuses; try again"),
        };
        Self::new(status, kind, error, cure)
    }
}

impl From<Errors> for Refusal {
    fn from(errors: Errors) -> Self {
        Self::new(422, "invalid_configuration", errors, "correct what the message names and try again")
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(json!({ "error": self }))).into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_the_caller_can_mend_is_no_fault_of_the_server() {
        let volume = || "v".to_owned();
        for (error, kind) in [
            (Error::Remote { volume: volume(), uri: "nbd://a/b".into(), why: "no answer".into() }, "volume_unusable"),
            (Error::Rbd { volume: volume(), image: "p/i".into(), why: "no such image".into() }, "volume_unusable"),
        ] {
            let refusal = Refusal::from(error);
            assert_eq!((refusal.status, refusal.kind), (422, kind), "{refusal:?}");
            assert!(!refusal.cure.contains("log"), "{refusal:?}");
        }
    }

    #[test]
    fn a_message_with_its_own_cure_is_not_contradicted() {
        for (cause, cure) in [
            (io::Error::other("it is not there, and a new file needs a size"), "what the message names"),
            (io::Error::from_raw_os_error(13), "permissions"),
        ] {
            let (volume, path, action) = ("v".to_owned(), "v.img".into(), "open");
            let refusal = Refusal::from(Error::Opening { volume, path, action, cause });
            assert_eq!((refusal.status, refusal.kind), (422, "volume_unusable"), "{refusal:?}");
            assert!(refusal.cure.contains(cure), "{refusal:?}");
        }
    }

    #[test]
    fn a_device_that_does_not_answer_is_not_a_lack_of_the_system() {
        let refusal =
            Refusal::from(Error::NoAnswer { volume: "v".into(), patience: std::time::Duration::from_secs(5) });
        assert_eq!((refusal.status, refusal.kind), (504, "no_answer"), "{refusal:?}");
        assert!(refusal.cure.contains("dmesg") && refusal.cure.contains("before you repeat"), "{refusal:?}");
    }
}
