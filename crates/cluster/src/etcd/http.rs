//! Requests to one etcd server: JSON over HTTP/1.1, with bounds on the time and size of answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_net::http::{self, Body, Method, StatusCode, within};
use evenkeel_policy::config::Endpoint;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::access::Access;

/// Largest number of bytes of an answer, or of one line of a streamed answer: as much as the values of all hosts at their
/// longest.
const MAX_ANSWER_BYTES: usize = 48 << 20;
/// etcd's error code for a key or lease that does not exist.
const NOT_FOUND: i64 = 5;
/// Start of the text by which etcd's gateway refuses clients whose certificate has a common name, while it has users.
const NAMED: &str = "CommonName of client";

/// Reason why a request to an etcd server failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The HTTP request got no complete answer.
    #[error("{endpoint}: {cause}{}", cure_of_certificates(cause))]
    Http { endpoint: Endpoint, cause: http::Error },
    /// A certificate or the password cannot be used, or etcd has refused the password a moment ago.
    #[error("{endpoint}: {why}")]
    Access { endpoint: Endpoint, why: String },
    /// etcd refused the request.
    #[error("{endpoint} refuses the request: {message}{}", cure(message))]
    Refused { endpoint: Endpoint, code: i64, message: String },
    /// The answer is not one that etcd sends.
    #[error("{endpoint} does not answer like etcd ({why}); is it an etcd, of version 3.4 or later?")]
    Answer { endpoint: Endpoint, why: String },
    /// The cluster has more keys than are read at once.
    #[error(
        "{endpoint} has more than {most} keys of this cluster's members or shards, so that this host cannot know all members; delete keys that are of no host, or give hosts on other devices another cluster.name"
    )]
    TooMany { endpoint: Endpoint, most: u32 },
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
    } else if says(&["user name is empty", "invalid auth token"]) {
        "; its authentication is turned on: set cluster.user and cluster.password_file"
    } else if says(&["invalid user ID or password"]) {
        "; correct cluster.user, and the password in the file of cluster.password_file"
    } else if says(&["permission denied"]) {
        "; give the user of cluster.user a role that may write keys below evenkeel/ (etcdctl role grant-permission --prefix=true ROLE \
         readwrite evenkeel/)"
    } else if says(&[NAMED]) {
        "; while etcd's authentication is turned on, its gateway takes no certificate with a name: issue the one of \
         cluster.tls.certificate without a common name (CN)"
    } else {
        ""
    }
}

/// Text of the cure for a TLS connection in which one side refuses the other's certificate; empty for other errors.
fn cure_of_certificates(cause: &http::Error) -> &'static str {
    if cause.to_string().to_lowercase().contains("certificate") {
        "; compare the files of cluster.tls with etcd's --cert-file (its names, its authority) and --trusted-ca-file"
    } else {
        ""
    }
}

impl Error {
    /// True if etcd refused the request because a lease or key does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == NOT_FOUND)
    }

    /// True if etcd needs another token: the old one has expired, was given before a change of users or roles, or is none.
    fn is_about_token(&self) -> bool {
        const STALE: [&str; 3] = ["invalid auth token", "revision of auth store is old", "user name is empty"];
        matches!(self, Self::Refused { message, .. } if STALE.iter().any(|part| message.contains(part)))
    }

    /// True if etcd does not take user and password. Of other refusals another server may know nothing.
    fn is_about_password(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains("authentication failed"))
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

/// An error message in the form in which etcd's gateway sends it in place of a stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Streamless {
    error: Refusal,
}

/// The answer to user and password.
#[derive(Debug, Deserialize)]
struct Authenticated {
    token: String,
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
    access: Arc<Access>,
}

impl Connection {
    /// Connects to an etcd server. Connecting and every later request may take `patience`.
    pub(super) async fn open(endpoint: &Endpoint, patience: Duration, access: &Arc<Access>) -> Result<Self, Error> {
        let place = if endpoint.is_secure() {
            let to = endpoint.clone();
            access.off_thread(patience, move |access| access.place(&to)).await
        } else {
            access.place(endpoint)
        };
        let place = place.map_err(|why| Error::Access { endpoint: endpoint.clone(), why })?;
        let opened = within(patience, http::Connection::open(&place, patience)).await;
        let connection = opened.map_err(|cause| Error::Http { endpoint: endpoint.clone(), cause })?;
        Ok(Self { endpoint: endpoint.clone(), connection, patience, access: Arc::clone(access) })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a request, and waits for the whole answer for at most the connection's `patience`. If etcd needs another token,
    /// asks for one, and sends the request again: etcd has not done it.
    pub(super) async fn call<A: DeserializeOwned>(&mut self, path: &'static str, question: &Value) -> Result<A, Error> {
        let token = self.token().await?;
        match self.call_with(token.as_deref(), path, question).await {
            Err(error) if error.is_about_token() && self.access.has_login() => {
                self.access.forget(token.as_deref());
                let token = self.token().await?;
                self.call_with(token.as_deref(), path, question).await
            }
            done => done,
        }
    }

    async fn call_with<A: DeserializeOwned>(
        &mut self,
        token: Option<&str>,
        path: &'static str,
        question: &Value,
    ) -> Result<A, Error> {
        let (mut answer, access, patience) = (Vec::new(), Arc::clone(&self.access), self.patience);
        let asked = async {
            let (status, mut body) = self.ask(token, path, question).await?;
            while access.traffic.count(body.read(&mut answer, MAX_ANSWER_BYTES).await?) > 0 {}
            Ok(status)
        };
        let status = within(patience, asked).await.map_err(|cause| self.failed(cause))?;
        judge(&self.endpoint, status, &answer)?;
        serde_json::from_slice(&answer).map_err(|error| unlike(&self.endpoint, &error))
    }

    /// Sends a request whose answer comes line by line; only the answer's head must come within the connection's `patience`.
    /// The token is the one of the request before.
    pub(super) async fn stream(mut self, path: &'static str, question: &Value) -> Result<Lines, Error> {
        let token = self.token().await?;
        let asked = within(self.patience, self.ask(token.as_deref(), path, question)).await;
        let (status, mut body) = asked.map_err(|cause| self.failed(cause))?;
        if status != StatusCode::OK {
            let (mut answer, patience) = (Vec::new(), self.patience);
            let read = async {
                while body.read(&mut answer, MAX_ANSWER_BYTES).await? > 0 {}
                Ok(())
            };
            within(patience, read).await.map_err(|cause| self.failed(cause))?;
            judge(&self.endpoint, status, &answer)?;
        }
        Ok(Lines { connection: self, body, buffer: Vec::new(), searched: 0 })
    }

    /// The token for the next request; `None` if etcd needs none.
    async fn token(&mut self) -> Result<Option<Arc<str>>, Error> {
        let unusable = |endpoint: &Endpoint, why: String| Error::Access { endpoint: endpoint.clone(), why };
        if let Some(token) = self.access.token().map_err(|why| unusable(&self.endpoint, why))? {
            return Ok(token);
        }
        let question = self.access.off_thread(self.patience, Access::question).await;
        let Some(question) = question.map_err(|why| unusable(&self.endpoint, why))? else { return Ok(None) };
        let token = match self.call_with::<Authenticated>(None, "/v3/auth/authenticate", &question).await {
            Ok(answer) => Some(Arc::<str>::from(answer.token)),
            Err(Error::Refused { message, .. }) if message.contains("authentication is not enabled") => None,
            Err(error) => {
                if error.is_about_password() {
                    self.access.refused(&error.to_string());
                }
                return Err(error);
            }
        };
        self.access.learn(token.clone());
        Ok(token)
    }

    fn failed(&self, cause: http::Error) -> Error {
        Error::Http { endpoint: self.endpoint.clone(), cause }
    }

    async fn ask(
        &mut self,
        token: Option<&str>,
        path: &'static str,
        question: &Value,
    ) -> Result<(StatusCode, Body), http::Error> {
        let question = question.to_string();
        self.access.traffic.sent.fetch_add(question.len() as u64, Ordering::Relaxed);
        self.connection.authorize(token)?;
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
            if self.connection.access.traffic.count(read.map_err(|cause| self.connection.failed(cause))?) == 0 {
                return Err(self.connection.failed(http::Error::Broken("it was closed".into())));
            }
        }
    }
}

fn judge(endpoint: &Endpoint, status: StatusCode, answer: &[u8]) -> Result<(), Error> {
    if status == StatusCode::OK {
        return Ok(());
    }
    let plain = serde_json::from_slice::<Refusal>(answer).ok();
    let streamless = || serde_json::from_slice::<Streamless>(answer).ok().map(|answer| answer.error);
    let is_said = |refusal: &Refusal| !refusal.message.is_empty();
    // That one is not in JSON.
    let named = || {
        let message = str::from_utf8(answer).ok().filter(|text| text.starts_with(NAMED))?.trim().to_owned();
        Some(Refusal { message, ..Refusal::default() })
    };
    match plain.filter(is_said).or_else(|| streamless().filter(is_said)).or_else(named) {
        Some(refusal) => Err(refusal.at(endpoint)),
        None => Err(unlike(endpoint, &format!("HTTP status {status}"))),
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
        assert!(refused("etcdserver: user name is empty").contains("set cluster.user"));
        assert!(refused("etcdserver: permission denied").contains("readwrite evenkeel/"));
        let wrong = "etcdserver: authentication failed, invalid user ID or password";
        assert!(refused(wrong).contains("cluster.password_file"));
        assert!(refused("etcdserver: requested lease not found").ends_with("not found"));
        let endpoint: Endpoint = "https://127.0.0.1:1".parse().expect("an address");
        let broken = |why: &str| {
            Error::Http { endpoint: endpoint.clone(), cause: http::Error::Broken(why.to_owned()) }.to_string()
        };
        assert!(broken("invalid peer certificate: UnknownIssuer").contains("UnknownIssuer; compare the files"));
        assert!(broken("it was closed").ends_with("it was closed"));
    }

    #[test]
    fn refusals_are_read_in_both_forms() {
        let endpoint: Endpoint = "https://127.0.0.1:1".parse().expect("an address");
        let refused =
            |answer: &str| judge(&endpoint, StatusCode::UNAUTHORIZED, answer.as_bytes()).expect_err("refused");
        for answer in [
            "{\"error\":\"etcdserver: invalid auth token\",\"message\":\"etcdserver: invalid auth token\",\"code\":16}",
            "{\"error\":{\"grpc_code\":16,\"http_code\":401,\"message\":\"etcdserver: invalid auth token\"}}",
        ] {
            let error = refused(answer);
            assert!(error.is_about_token() && matches!(error, Error::Refused { code: 16, .. }), "{error}");
        }
        let message = |text: &str| refused(&format!("{{\"message\":\"etcdserver: {text}\"}}"));
        assert!(message("authentication failed, invalid user ID or password").is_about_password());
        for text in ["request timed out", "no leader", "leader changed", "authentication is not enabled"] {
            assert!(!message(text).is_about_password(), "{text}: other servers may still be asked");
        }
        let named = refused("CommonName of client sending a request against gateway will be ignored and not used\n");
        assert!(!named.is_about_token() && !named.is_about_password(), "{named}");
        assert!(named.to_string().contains("not used; while etcd's authentication"), "{named}");
        let other = refused("<html>");
        assert!(!other.is_about_token() && other.to_string().contains("HTTP status 401"), "{other}");
    }
}
