//! Requests to servers and agents, and advice when none answers.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::anyhow;
use evenkeel_net::http::{self, Error, Method, Place, StatusCode};
use serde::Deserialize;
use serde_json::Value;

/// Longest wait for an answer. Only the removal of a volume takes long: it waits for the device.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Longest answer: enough for the state of thousands of tenants.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A path of the API: `prefix` and the percent-encoded name.
pub(crate) fn path(prefix: &str, name: &str) -> String {
    let encoded = name.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    format!("{prefix}{}", encoded.collect::<String>())
}

/// The answer to a GET request for `path`; each part of it may take `patience`.
///
/// # Errors
/// When no server answers at `place`, or it refuses the request.
pub(crate) fn get(place: &Place, path: &str, patience: Duration) -> anyhow::Result<String> {
    send(place, patience, Method::GET, path, None)
}

/// Sends a request; the body of a successful answer.
///
/// # Errors
/// When no server answers at `place`, or it refuses the request.
pub(super) fn send(
    place: &Place,
    patience: Duration,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<String> {
    let (status, body) =
        http::ask(place, (patience, MAX_ANSWER_BYTES), method, path, body).map_err(|error| explain(place, error))?;
    if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
}

fn explain(place: &Place, error: Error) -> anyhow::Error {
    let what = match (place, &error) {
        (Place::Socket(_), Error::Connect(cause)) => match cause.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                return anyhow!(
                    "no server answers on {place}; start one with `evenkeel serve`, or name its socket with --control, --data-dir or --config"
                );
            }
            ErrorKind::PermissionDenied => {
                return anyhow!("{place} belongs to another user; run this command as the user that runs the server");
            }
            _ => place.to_string(),
        },
        (_, Error::Connect(_)) => {
            format!("nothing answers on {}; is it running, and is this its status address?", place.authority())
        }
        (Place::Socket(_), _) => "the server did not answer".to_owned(),
        (Place::Plain(..), _) => format!("{} did not answer; is it https:// there?", place.authority()),
        (Place::Secure(..), Error::Broken(_)) => format!("TLS with {place} failed"),
        (Place::Secure(..), _) => format!("{place} did not answer"),
    };
    anyhow::Error::new(error).context(what)
}

fn refusal(status: StatusCode, body: &str) -> anyhow::Error {
    #[derive(Deserialize)]
    struct Answer {
        error: Inner,
    }
    #[derive(Deserialize)]
    struct Inner {
        message: String,
        cure: String,
    }
    match serde_json::from_str(body) {
        Ok(Answer { error }) => anyhow!("{}\nwhat to do: {}", error.message, error.cure),
        Err(_) => anyhow!("the server answered with status {}: {body}", status.as_u16()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded() {
        assert_eq!(path("/v/", "disk0"), "/v/disk0");
        assert_eq!(path("/v/", "a/../b c"), "/v/a%2F..%2Fb%20c");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let body = r#"{"error":{"kind":"exists","message":"there is one","cure":"choose another"}}"#;
        assert_eq!(refusal(StatusCode::CONFLICT, body).to_string(), "there is one\nwhat to do: choose another");
    }
}
