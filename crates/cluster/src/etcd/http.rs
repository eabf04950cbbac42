//! Requests to one etcd server: JSON over HTTP/1.1, bounded in time and size.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_policy::config::Endpoint;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The longest answer, and the longest line of a stream: the values of all hosts at their longest.
const MAX_ANSWER_BYTES: usize = 48 << 20;
/// etcd's name for a key or lease that is not there.
const NOT_FOUND: i64 = 5;

/// Why etcd did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No connection.
    #[error("cannot connect to {endpoint}: {cause}")]
    Connect { endpoint: Endpoint, cause: std::io::Error },
    /// No answer.
    #[error("{endpoint} did not answer within {patience:?}")]
    Timeout { endpoint: Endpoint, patience: Duration },
    /// The connection broke.
    #[error("the connection to {endpoint} broke: {cause}")]
    Broken { endpoint: Endpoint, cause: String },
    /// It says no.
    #[error("{endpoint} refuses: {message}")]
    Refused { endpoint: Endpoint, code: i64, message: String },
    /// It says something that etcd does not say.
    #[error("{endpoint} does not answer like etcd ({why}); is it one, of version 3.4 or later?")]
    Answer { endpoint: Endpoint, why: String },
    /// What was to be watched has been compacted away.
    #[error("{endpoint} has forgotten the changes since revision {revision}")]
    Compacted { endpoint: Endpoint, revision: i64 },
}

impl Error {
    /// Whether a lease or key is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == NOT_FOUND)
    }
}

/// Payload bytes to and from etcd.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// What etcd's gateway says when it refuses.
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

/// A connection for requests, one after the other.
pub(super) struct Connection {
    endpoint: Endpoint,
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    patience: Duration,
    traffic: Arc<Traffic>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects; every step of this and of what follows takes `patience` at most.
    pub(super) async fn open(endpoint: &Endpoint, patience: Duration, traffic: &Arc<Traffic>) -> Result<Self, Error> {
        let connect = TcpStream::connect((endpoint.host(), endpoint.port()));
        let connected = within(endpoint, patience, connect).await?;
        let stream = connected.map_err(|cause| Error::Connect { endpoint: endpoint.clone(), cause })?;
        // Small requests, each of them waited for.
        let _ = stream.set_nodelay(true);
        let handshake = within(endpoint, patience, http1::handshake(TokioIo::new(stream))).await?;
        let (sender, connection) = handshake.map_err(|error| broken(endpoint, &error))?;
        // What goes wrong with it is told to the request that waits for an answer.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { endpoint: endpoint.clone(), sender, driver, patience, traffic: Arc::clone(traffic) })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Asks and waits for the whole answer.
    pub(super) async fn call<A: DeserializeOwned>(&mut self, path: &'static str, question: &Value) -> Result<A, Error> {
        let (endpoint, patience) = (self.endpoint.clone(), self.patience);
        let asked = async {
            let (status, mut body) = self.ask(path, question).await?;
            let mut answer = Vec::new();
            while let Some(part) = next_part(&self.endpoint, &mut body, &self.traffic).await? {
                bounded(&self.endpoint, answer.len() + part.len())?;
                answer.extend_from_slice(&part);
            }
            judge(&self.endpoint, status, &answer)?;
            serde_json::from_slice(&answer).map_err(|error| unlike(&self.endpoint, &error))
        };
        timeout(patience, asked).await.map_err(|_| Error::Timeout { endpoint, patience })?
    }

    /// Asks; the answer comes line by line, for as long as it takes.
    pub(super) async fn stream(mut self, path: &'static str, question: &Value) -> Result<Lines, Error> {
        let (endpoint, patience) = (self.endpoint.clone(), self.patience);
        let asked = timeout(patience, self.ask(path, question)).await;
        let (status, body) = asked.map_err(|_| Error::Timeout { endpoint, patience })??;
        if status != StatusCode::OK {
            return Err(unlike(&self.endpoint, &format!("HTTP status {status}")));
        }
        Ok(Lines { connection: self, body, buffer: Vec::new(), searched: 0 })
    }

    async fn ask(&mut self, path: &'static str, question: &Value) -> Result<(StatusCode, Incoming), Error> {
        let text = question.to_string();
        self.traffic.sent.fetch_add(text.len() as u64, Ordering::Relaxed);
        let host = HeaderValue::from_str(&self.endpoint.authority()).map_err(|error| unlike(&self.endpoint, &error))?;
        let request = Request::post(path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(text)))
            .map_err(|error| unlike(&self.endpoint, &error))?;
        self.sender.ready().await.map_err(|error| broken(&self.endpoint, &error))?;
        let response = self.sender.send_request(request).await.map_err(|error| broken(&self.endpoint, &error))?;
        Ok((response.status(), response.into_body()))
    }
}

/// An answer that comes line by line.
pub(super) struct Lines {
    connection: Connection,
    body: Incoming,
    buffer: Vec<u8>,
    /// So much of it has no end of line.
    searched: usize,
}

impl Lines {
    pub(super) fn endpoint(&self) -> &Endpoint {
        self.connection.endpoint()
    }

    /// The next line; waits for as long as it takes. Loses nothing when it is dropped while it waits.
    pub(super) async fn next<A: DeserializeOwned>(&mut self) -> Result<A, Error> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=self.searched + end).collect();
                self.searched = 0;
                return serde_json::from_slice(&line).map_err(|error| unlike(self.endpoint(), &error));
            }
            self.searched = self.buffer.len();
            let part = next_part(&self.connection.endpoint, &mut self.body, &self.connection.traffic).await?;
            let part = part.ok_or_else(|| broken(self.endpoint(), &"it was closed"))?;
            bounded(self.endpoint(), self.buffer.len() + part.len())?;
            self.buffer.extend_from_slice(&part);
        }
    }
}

async fn within<T>(endpoint: &Endpoint, patience: Duration, work: impl Future<Output = T>) -> Result<T, Error> {
    timeout(patience, work).await.map_err(|_| Error::Timeout { endpoint: endpoint.clone(), patience })
}

async fn next_part(endpoint: &Endpoint, body: &mut Incoming, traffic: &Traffic) -> Result<Option<Bytes>, Error> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(endpoint, &error))?;
        if let Ok(part) = frame.into_data() {
            traffic.received.fetch_add(part.len() as u64, Ordering::Relaxed);
            return Ok(Some(part));
        }
    }
    Ok(None)
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

fn bounded(endpoint: &Endpoint, bytes: usize) -> Result<(), Error> {
    if bytes > MAX_ANSWER_BYTES {
        return Err(unlike(endpoint, &format!("more than {MAX_ANSWER_BYTES} bytes")));
    }
    Ok(())
}

fn broken(endpoint: &Endpoint, cause: &impl ToString) -> Error {
    Error::Broken { endpoint: endpoint.clone(), cause: cause.to_string() }
}

pub(super) fn unlike(endpoint: &Endpoint, why: &impl ToString) -> Error {
    Error::Answer { endpoint: endpoint.clone(), why: why.to_string() }
}
