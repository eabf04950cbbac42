//! Requests to one etcd server: JSON over HTTP/1.1, with bounds on the time and size of answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_net::http::{self, Body, Method, Place, StatusCode, within};
use evenkeel_policy::config::Endpoint;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Largest number of bytes of an answer, or of one line of a streamed answer: as much as the values of all hosts at their
/// longest.
const MAX_ANSWER_BYTES: usize = 48 << 20;
/// etcd's error code for a key or lease that does not exist.
const NOT_FOUND: i64 = 5;

/// Reason why a request to an etcd server failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The HTTP request got no complete answer.
    #[error("{endpoint}: {cause}")]
    Http { endpoint: Endpoint, cause: http::Error },
    /// etcd refused the request.
    #[error("{endpoint} refuses: {message}{}", cure(message))]
    Refused { endpoint: Endpoint, code: i64, message: String },
    /// The answer is not one that etcd sends.
    #[error("{endpoint} does not answer like etcd ({why}); is it an etcd, of version 3.4 or later?")]
    Answer { endpoint: Endpoint, why: String },
    /// etcd has compacted away the revision from which changes were to be reported.
    #[error("{endpoint} has forgotten the changes since revision {revision}")]
    Compacted { endpoint: Endpoint, revision: i64 },
}

/// Text of the cure for a refusal that repeats until an operator acts; empty for other refusals. `message`: etcd's message.
fn cure(message: &str) -> &'static str {
    let says = |parts: &[&str]| parts.iter().any(|part| message.contains(part));
    if says(&["database space exceeded"]) {
        "; compact, defragment and disarm the alarm (etcdctl), and start etcd with --auto-compaction-mode=periodic \
         --auto-compaction-retention=5m"
    } else if says(&["user name is empty", "invalid auth token", "permission denied"]) {
        "; its authentication is not supported: turn that off (etcdctl auth disable), or name an etcd without it"
    } else {
        ""
    }
}

impl Error {
    /// True if etcd refused the request because a lease or key does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == NOT_FOUND)
    }
}

/// Bytes of HTTP bodies sent to and received from etcd servers since the start.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

impl Traffic {
    /// Adds `received` bytes to the count, and returns `received`.
    fn count(&self, received: usize) -> usize {
        self.received.fetch_add(received as u64, Ordering::Relaxed);
        received
    }
}

/// An error message in the form in which etcd's gateway sends it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    code: i64,
    grpc_code: i64,
    message: String,
}

impl Refusal {
    pub(super) fn at(self, endpoint: &Endpoint) -> Error {
        let code = if self.code == 0 { self.grpc_code } else { self.code };
        Error::Refused { endpoint: endpoint.clone(), code, message: self.message }
    }
}

/// A connection to one etcd server, for requests one after the other.
pub(super) struct Connection {
    endpoint: Endpoint,
    connection: http::Connection,
    patience: Duration,
    traffic: Arc<Traffic>,
}

impl Connection {
    /// Connects to an etcd server. Connecting and every later request may take `patience`.
    pub(super) async fn open(endpoint: &Endpoint, patience: Duration, traffic: &Arc<Traffic>) -> Result<Self, Error> {
        let place = Place::Plain(endpoint.host().to_owned(), endpoint.port());
        let opened = within(patience, http::Connection::open(&place, patience)).await;
        let connection = opened.map_err(|cause| Error::Http { endpoint: endpoint.clone(), cause })?;
        Ok(Self { endpoint: endpoint.clone(), connection, patience, traffic: Arc::clone(traffic) })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a request, and waits for the whole answer for at most the connection's `patience`.
    pub(super) async fn call<A: DeserializeOwned>(&mut self, path: &'static str, question: &Value) -> Result<A, Error> {
        let (mut answer, traffic, patience) = (Vec::new(), Arc::clone(&self.traffic), self.patience);
        let asked = async {
            let (status, mut body) = self.ask(path, question).await?;
            while traffic.count(body.read(&mut answer, MAX_ANSWER_BYTES).await?) > 0 {}
            Ok(status)
        };
        let status = within(patience, asked).await.map_err(|cause| self.failed(cause))?;
        judge(&self.endpoint, status, &answer)?;
        serde_json::from_slice(&answer).map_err(|error| unlike(&self.endpoint, &error))
    }

    /// Sends a request whose answer comes line by line; only the answer's head must come within the connection's `patience`.
    pub(super) async fn stream(mut self, path: &'static str, question: &Value) -> Result<Lines, Error> {
        let asked = within(self.patience, self.ask(path, question)).await;
        let (status, body) = asked.map_err(|cause| self.failed(cause))?;
        if status != StatusCode::OK {
            return Err(unlike(&self.endpoint, &format!("HTTP status {status}")));
        }
        Ok(Lines { connection: self, body, buffer: Vec::new(), searched: 0 })
    }

    fn failed(&self, cause: http::Error) -> Error {
        Error::Http { endpoint: self.endpoint.clone(), cause }
    }

    async fn ask(&mut self, path: &'static str, question: &Value) -> Result<(StatusCode, Body), http::Error> {
        let question = question.to_string();
        self.traffic.sent.fetch_add(question.len() as u64, Ordering::Relaxed);
        self.connection.send(Method::POST, path, Some(question)).await
    }
}

/// An answer whose body comes line by line, with one JSON value in each line.
pub(super) struct Lines {
    connection: Connection,
    body: Body,
    buffer: Vec<u8>,
    /// Number of bytes at the beginning of `buffer` that were searched for an end of line and have none.
    searched: usize,
}

impl Lines {
    pub(super) fn endpoint(&self) -> &Endpoint {
        self.connection.endpoint()
    }

    /// The value in the next line; waits for the line without a limit. No bytes are lost if the future is dropped while it
    /// waits.
    pub(super) async fn next<A: DeserializeOwned>(&mut self) -> Result<A, Error> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=self.searched + end).collect();
                self.searched = 0;
                return serde_json::from_slice(&line).map_err(|error| unlike(self.endpoint(), &error));
            }
            self.searched = self.buffer.len();
            let read = self.body.read(&mut self.buffer, MAX_ANSWER_BYTES).await;
            if self.connection.traffic.count(read.map_err(|cause| self.connection.failed(cause))?) == 0 {
                return Err(self.connection.failed(http::Error::Broken("it was closed".into())));
            }
        }
    }
}

fn judge(endpoint: &Endpoint, status: StatusCode, answer: &[u8]) -> Result<(), Error> {
    if status == StatusCode::OK {
        return Ok(());
    }
    match serde_json::from_slice::<Refusal>(answer) {
        Ok(refusal) if !refusal.message.is_empty() => Err(refusal.at(endpoint)),
        _ => Err(unlike(endpoint, &format!("HTTP status {status}"))),
    }
}

pub(super) fn unlike(endpoint: &Endpoint, why: &impl ToString) -> Error {
    Error::Answer { endpoint: endpoint.clone(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_repeats_is_shown_with_its_cure() {
        let refused = |message: &str| {
            let refusal = Refusal { message: message.to_owned(), ..Refusal::default() };
            refusal.at(&"http://127.0.0.1:1".parse().expect("an address")).to_string()
        };
        assert!(refused("etcdserver: mvcc: database space exceeded").contains("exceeded; compact, defragment"));
        assert!(refused("etcdserver: user name is empty").contains("etcdctl auth disable"));
        assert!(refused("etcdserver: requested lease not found").ends_with("not found"));
    }
}
