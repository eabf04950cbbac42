//! HTTP/1.1 over a Unix socket, as much of it as our own server speaks: one request, one answer, one connection.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;

use super::https::Secure;

/// Removing a volume waits for its device; nothing else takes long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Nobody who listens takes longer to accept.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// The state of thousands of tenants fits.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// A server's control socket.
pub(super) struct Client {
    socket: PathBuf,
}

/// Where an API can be read.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A server's control socket.
    Socket(PathBuf),
    /// The status address of a server or an agent.
    Address(SocketAddr),
    /// The same where it is HTTPS.
    Secure(Secure),
}

impl Place {
    /// Reads a path, waiting no longer than `patience` for each part of the answer.
    ///
    /// # Errors
    /// When nobody answers there, or the answer is a refusal.
    pub(crate) fn get(&self, path: &str, patience: Duration) -> anyhow::Result<String> {
        match self {
            Self::Socket(socket) => Client::new(socket.clone()).send_within(patience, "GET", path, None),
            Self::Address(address) => get_over_tcp(patience, *address, path),
            Self::Secure(secure) => secure.get(patience, path),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(socket) => socket.display().fmt(f),
            Self::Address(address) => write!(f, "http://{address}"),
            Self::Secure(secure) => secure.fmt(f),
        }
    }
}

/// `prefix` and a name, percent-encoded.
pub(crate) fn path(prefix: &str, name: &str) -> String {
    let encoded = name.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    format!("{prefix}{}", encoded.collect::<String>())
}

impl Client {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<String> {
        self.send("GET", path, None)
    }

    /// Sends a request; the body of a good answer.
    pub(super) fn send(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<String> {
        self.send_within(PATIENCE, method, path, body)
    }

    fn send_within(
        &self,
        patience: Duration,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<String> {
        let mut stream = UnixStream::connect(&self.socket).map_err(|error| self.explain(error))?;
        stream.set_read_timeout(Some(patience)).and_then(|()| stream.set_write_timeout(Some(patience)))?;
        answer(&exchange(&mut stream, &request(method, path, body)).context("the server did not answer")?)
    }

    fn explain(&self, error: io::Error) -> anyhow::Error {
        let socket = self.socket.display();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => anyhow!(
                "no server answers on {socket}; start one with `evenkeel serve`, or name its socket with --control, --data-dir or --config"
            ),
            io::ErrorKind::PermissionDenied => {
                anyhow!("{socket} belongs to another user; run this command as the user that runs the server")
            }
            _ => anyhow!("cannot connect to {socket}: {error}"),
        }
    }
}

pub(super) fn request(method: &str, path: &str, body: Option<&Value>) -> String {
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}Content-Length: {length}\r\n\r\n{body}"
    )
}

fn get_over_tcp(patience: Duration, address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE.min(patience))
        .with_context(|| format!("nothing answers on {address}; is it running, and is this its status address?"))?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    answer(
        &exchange(&mut stream, &request("GET", path, None))
            .with_context(|| format!("{address} did not answer; is it https:// there?"))?,
    )
}

/// The body of a good answer.
pub(super) fn answer(said: &str) -> anyhow::Result<String> {
    let (status, body) = parse(said)?;
    if (200..300).contains(&status) { Ok(body.to_owned()) } else { Err(refusal(status, body)) }
}

pub(super) fn exchange(stream: &mut (impl Read + Write), request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Status and body of an answer.
fn parse(answer: &str) -> anyhow::Result<(u16, &str)> {
    let first = answer.lines().next().unwrap_or_default();
    let status = first.strip_prefix("HTTP/").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let Some(status) = status else { bail!("this is no HTTP answer (is it https:// there?): {first:?}") };
    let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(|| anyhow!("the answer ends before its body"))?;
    Ok((status, body))
}

fn refusal(status: u16, body: &str) -> anyhow::Error {
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
        Err(_) => anyhow!("the server answered with status {status}: {body}"),
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
    fn answers_are_told_apart() {
        assert_eq!(parse("HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}").expect("an answer"), (200, "{}"));
        assert!(parse("HTTP/1.1 200 OK\r\n").is_err());
        assert!(parse("220 mail ready\r\n\r\n").is_err_and(|error| error.to_string().contains("no HTTP answer")));
        let error = refusal(409, r#"{"error":{"kind":"exists","message":"there is one","cure":"choose another"}}"#);
        assert_eq!(error.to_string(), "there is one\nwhat to do: choose another");
    }
}
