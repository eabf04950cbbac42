//! HTTP requests to a server or an agent, and error messages with advice if it does not answer.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use evenkeel_net::http::{self, Error, Method, Place, StatusCode};
use evenkeel_policy::check::Errors;
use evenkeel_policy::config::Server;
use evenkeel_policy::document::Document;
use evenkeel_policy::source::Source;
use serde::Deserialize;
use serde_json::Value;

use super::Connect;

/// Time limit for each part of an answer. Only the removal of a volume takes long, as the server waits for its device.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Upper bound on an answer, in bytes: enough for the state of thousands of tenants, or of 100,000 clients of an agent.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The one table of a configuration that names the control socket: `[server]`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    server: Server,
}

/// The table `[server]` of a configuration file. Faults in other tables are ignored: a running server keeps the last
/// configuration without faults, so its control socket is where `[server]` says.
///
/// # Errors
/// A file that cannot be read or is no TOML, or a fault in `[server]`.
pub(super) fn named(file: &Path) -> Result<Server, Errors> {
    let source = Source::read(file)?;
    let (document, mut problems) = Document::parse(&source.host.text, &source.host.origin);
    let (named, wrong) = document.read::<Named>();
    problems.extend(wrong);
    match named {
        Some(named) if problems.is_empty() => Ok(named.server),
        _ => Err(Errors(problems)),
    }
}

/// The error of a request that the server refused.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refusal {
    status: StatusCode,
    message: String,
    /// The body of the server's answer, unchanged: JSON with message and cure.
    pub(super) body: String,
}

/// The error that no program listens at a place.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Absent(String);

/// The path of the API that consists of `prefix` and the percent-encoded `name`.
pub(crate) fn path(prefix: &str, name: &str) -> String {
    let encoded = name.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    format!("{prefix}{}", encoded.collect::<String>())
}

/// Sends a GET request for `path` and returns the body of the answer. Each part of the answer may take `patience`.
///
/// # Errors
/// When no server answers at `place`, or the server refuses the request.
pub(crate) fn get(place: &Place, path: &str, patience: Duration) -> anyhow::Result<String> {
    send(place, patience, Method::GET, path, None)
}

impl Connect {
    /// Sends a request to the server's control socket and returns the body of a successful answer, of which each part may take
    /// `patience`.
    ///
    /// # Errors
    /// When the options name no server, no server answers, or the server refuses the request.
    pub(crate) fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> anyhow::Result<String> {
        send(&self.socket()?, patience, method, path, body)
    }
}

/// Sends a request and returns the body of a successful answer. Each part of the answer may take `patience`.
///
/// # Errors
/// When no server answers at `place`, or the server refuses the request.
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

/// True if no program listens at the place that was asked. One that does not answer in time may be there, and hang.
pub(super) fn is_absent(error: &anyhow::Error) -> bool {
    error.is::<Absent>()
}

/// True if a server or an agent has answered, and refused the request.
pub(crate) fn is_refusal(error: &anyhow::Error) -> bool {
    error.is::<Refusal>()
}

/// True if the server has no such path or object, as a server of an older version has no newer request.
pub(super) fn is_unknown(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.status == StatusCode::NOT_FOUND)
}

fn explain(place: &Place, error: Error) -> anyhow::Error {
    let what = match (place, &error) {
        (Place::Socket(_), Error::Connect(cause)) => match cause.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                return Absent(format!(
                    "no server answers on {place}; start one with `evenkeel serve`, or name its socket with --control, --data-dir or --config"
                ))
                .into();
            }
            ErrorKind::PermissionDenied => {
                return anyhow!("{place} belongs to another user; run this command as the user that runs the server");
            }
            _ => place.to_string(),
        },
        (_, Error::Connect(_)) => {
            format!("nothing answers on {}; is a server or agent running, with this status address?", place.authority())
        }
        (Place::Socket(_), _) => format!("the server on {place} did not answer; see the server's log"),
        (Place::Plain(..), _) => format!(
            "{} did not answer over HTTP; if it serves HTTPS, write https:// before the address",
            place.authority()
        ),
        (Place::Secure(..), Error::Broken(_)) => format!("TLS with {place} failed; check --ca, --cert and --key"),
        (Place::Secure(..), _) => format!("the server or agent at {place} did not answer; see its log"),
    };
    let is_absent = matches!(&error, Error::Connect(cause) if cause.kind() == ErrorKind::ConnectionRefused);
    let error = anyhow::Error::new(error);
    if is_absent { error.context(Absent(what)) } else { error.context(what) }
}

pub(crate) fn refusal(status: StatusCode, body: &str) -> anyhow::Error {
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    let [message, cure] = ["message", "cure"].map(|name| answer["error"][name].as_str());
    let (Some(message), Some(cure)) = (message, cure) else {
        return anyhow!("the server answered with status {}: {body}", status.as_u16());
    };
    Refusal { status, message: format!("{message}\nwhat to do: {cure}"), body: body.to_owned() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_faults_elsewhere_names_its_server() {
        let folder = crate::folder::Folder::new();
        let socket = |text: &str| {
            let file = folder.file("named.toml", text);
            named(&file).map(|server| server.control_path()).map_err(|errors| errors.to_string())
        };
        let control = "[server]\ncontrol = \"/run/c.sock\"\n";
        let faults = format!("{control}[pools.main]\nlatency.target = \"-20ms\"\n[tenant]\na = 5\n");
        assert_eq!(socket(&faults), Ok("/run/c.sock".into()));
        for wrong in ["[server]\ncontrol = 5\n", "[server]\ncontrl = \"/run/c.sock\"\n", "server = 5\n", "[server\n"] {
            assert!(socket(wrong).is_err(), "{wrong}: another server");
        }
    }

    #[test]
    fn a_program_that_does_not_answer_in_time_may_be_there() {
        let place = Place::Plain("127.0.0.1".into(), 9809);
        let of = |kind: ErrorKind| explain(&place, Error::Connect(kind.into()));
        let (refused, late) = (of(ErrorKind::ConnectionRefused), of(ErrorKind::TimedOut));
        assert!(is_absent(&refused) && !is_absent(&late), "{refused:#}; {late:#}");
        assert!(refused.to_string().starts_with("nothing answers on 127.0.0.1:9809; is a server or"), "{refused}");
        assert_eq!(refused.to_string(), late.to_string());
        assert!(is_absent(&explain(&Place::Socket("/none".into()), Error::Connect(ErrorKind::NotFound.into()))));
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(path("/v/", "disk0"), "/v/disk0");
        assert_eq!(path("/v/", "a/../b c"), "/v/a%2F..%2Fb%20c");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let body = r#"{"error":{"kind":"exists","message":"there is one","cure":"choose another"}}"#;
        assert_eq!(refusal(StatusCode::CONFLICT, body).to_string(), "there is one\nwhat to do: choose another");
        assert!(is_unknown(&refusal(StatusCode::NOT_FOUND, body)) && !is_unknown(&refusal(StatusCode::CONFLICT, body)));
        let unread = refusal(StatusCode::CONFLICT, body).context("not read");
        assert!(is_refusal(&unread) && !is_refusal(&anyhow!("broken")));
    }
}
