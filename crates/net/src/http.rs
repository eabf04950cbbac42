//! The HTTP client: HTTP/1.1 over TCP, TLS or a Unix socket, with bounds on the time and size of answers.
//!
//! [`ask`] is for programs without an async runtime: it makes one request on a connection of its own. A [`Connection`] takes
//! requests one after the other, and an answer may go on for as long as its reader reads it.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderValue;
pub use hyper::{Method, StatusCode};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::dial::unix;

/// Longest time that [`ask`] spends on connecting, over all addresses of the server's host.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Fewest bytes of an answer's body per millisecond in the long run. A server that sends a byte now and then would otherwise
/// occupy [`ask`] for days.
const SLOWEST: usize = 16;

/// The address at which an HTTP server listens, with the kind of connection.
#[derive(Clone, Debug)]
pub enum Place {
    /// HTTP over a Unix socket with this path.
    Socket(PathBuf),
    /// HTTP over TCP: host name or address, without the brackets of IPv6, and port.
    Plain(String, u16),
    /// HTTPS: host, port, and the TLS configuration with the client's trusted authorities and its own certificate.
    Secure(String, u16, Arc<ClientConfig>),
}

impl Place {
    /// Host and port as in a URL, which is the header `Host` of requests; `localhost` for a Unix socket.
    pub fn authority(&self) -> String {
        match self {
            Self::Socket(_) => "localhost".to_owned(),
            Self::Plain(host, port) | Self::Secure(host, port, _) if host.contains(':') => format!("[{host}]:{port}"),
            Self::Plain(host, port) | Self::Secure(host, port, _) => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Plain(..) => write!(f, "http://{}", self.authority()),
            Self::Secure(..) => write!(f, "https://{}", self.authority()),
        }
    }
}

/// Reason why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection could be made.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The server sent no answer, or no further part of it, within this time, or sent an answer's parts very slowly.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The connection broke, or one side does not trust the other's certificate, or the server does not speak HTTP.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The answer is longer than this number of bytes.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

/// Sends a request with a JSON `body`, and waits for the answer, whose body may have at most `most` bytes; returns its status
/// and body. Connecting may take 5 s or `patience`, whichever is shorter; the answer's head and each further part may take
/// `patience`. The whole body may take `patience`, and a second for each 16 kB of it.
///
/// # Errors
/// If no answer comes, or if it is longer than `most` bytes or not UTF-8.
pub fn ask(
    place: &Place,
    (patience, most): (Duration, usize),
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(StatusCode, String), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Connect)?;
    runtime.block_on(async {
        let mut connection = Connection::open(place, CONNECT_PATIENCE.min(patience)).await?;
        let asked = connection.send(method, path, body.map(Value::to_string));
        let (status, mut body) = within(patience, asked).await?;
        let (begun, mut answer) = (Instant::now(), Vec::new());
        while within(patience, body.read(&mut answer, most)).await? > 0 {
            if begun.elapsed() > patience + Duration::from_millis((answer.len() / SLOWEST) as u64) {
                return Err(Error::Late(patience));
            }
        }
        String::from_utf8(answer).map(|answer| (status, answer)).map_err(|error| broken(&error))
    })
}

/// Waits for the result of `work` for at most `patience`.
///
/// # Errors
/// The errors of `work`, or [`Error::Late`] if `work` takes longer.
pub async fn within<T>(patience: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(patience, work).await.unwrap_or(Err(Error::Late(patience)))
}

/// A connection to an HTTP server, for requests one after the other; closed when dropped.
pub struct Connection {
    authority: String,
    authorization: Option<HeaderValue>,
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects to a server. All addresses of its host together may take `patience`, and the TLS handshake may take
    /// `patience` again.
    ///
    /// # Errors
    /// If no address accepts the connection in time, or one side does not trust the other's certificate.
    pub async fn open(place: &Place, patience: Duration) -> Result<Self, Error> {
        let authority = place.authority();
        match place {
            Place::Socket(path) => {
                // Waits while the server's backlog is full, where a nonblocking socket would be refused.
                let stream = unix(path, patience).map_err(Error::Connect)?;
                stream.set_nonblocking(true).map_err(Error::Connect)?;
                Self::begin(authority, UnixStream::from_std(stream).map_err(Error::Connect)?).await
            }
            Place::Plain(host, port) => Self::begin(authority, dial(host, *port, patience).await?).await,
            Place::Secure(host, port, config) => {
                let name = ServerName::try_from(host.clone()).map_err(|error| broken(&error))?;
                let stream = dial(host, *port, patience).await?;
                let secured = TlsConnector::from(Arc::clone(config)).connect(name, stream);
                let secured = within(patience, async { secured.await.map_err(|error| broken(&error)) }).await?;
                Self::begin(authority, secured).await
            }
        }
    }

    async fn begin(
        authority: String,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, Error> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        // The request that waits for an answer gets the error, too.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { authority, authorization: None, sender, driver })
    }

    /// Makes this value the header `Authorization` of all further requests; `None`: without that header.
    ///
    /// # Errors
    /// If the value has characters that no header may have.
    pub fn authorize(&mut self, value: Option<&str>) -> Result<(), Error> {
        self.authorization = None;
        if let Some(value) = value {
            let mut value = HeaderValue::from_str(value).map_err(|error| broken(&error))?;
            // It is not shown in logs.
            value.set_sensitive(true);
            self.authorization = Some(value);
        }
        Ok(())
    }

    /// Sends a request, with a body in JSON if `body` is given, and waits without a limit for the head of the answer; returns
    /// the status and the unread body.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(StatusCode, Body), Error> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.authority);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
            // Without it etcd would take the name in its own certificate for the name of the user.
            request = request.header(header::ACCEPT, "application/json");
        }
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value.clone());
        }
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        let request = request.body(body).map_err(|error| broken(&error))?;
        self.sender.ready().await.map_err(|error| broken(&error))?;
        let answer = self.sender.send_request(request).await.map_err(|error| broken(&error))?;
        Ok((answer.status(), Body(answer.into_body())))
    }
}

/// The body of an answer, which is read part by part.
pub struct Body(Incoming);

impl Body {
    /// Waits for the body's next bytes and appends them to `buffer`, which may hold at most `most` bytes; returns their
    /// number, 0 at the end of the body. No bytes are lost if the future is dropped while it waits.
    ///
    /// # Errors
    /// If the connection breaks, or if the buffer would hold more than `most` bytes.
    pub async fn read(&mut self, buffer: &mut Vec<u8>, most: usize) -> Result<usize, Error> {
        while let Some(frame) = self.0.frame().await {
            let part = frame.map_err(|error| broken(&error))?.into_data().unwrap_or_default();
            if buffer.len() + part.len() > most {
                return Err(Error::TooLong(most));
            }
            buffer.extend_from_slice(&part);
            if !part.is_empty() {
                return Ok(part.len());
            }
        }
        Ok(0)
    }
}

async fn dial(host: &str, port: u16, patience: Duration) -> Result<TcpStream, Error> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await.map_err(Error::Connect)?.collect();
    first_of(&addresses, patience).await
}

/// Connects to the first of the addresses that accepts. Each address has an equal part of `patience`.
async fn first_of(addresses: &[SocketAddr], patience: Duration) -> Result<TcpStream, Error> {
    let patience = patience / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut last = io::Error::other("the host has no address");
    for address in addresses {
        match timeout(patience, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Small requests, each of them waited for.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(cause)) => last = cause,
            Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, Error::Late(patience)),
        }
    }
    Err(Error::Connect(last))
}

/// The error of a broken connection, with the text of `error` and all its causes.
fn broken(error: &dyn std::error::Error) -> Error {
    let causes = std::iter::successors(Some(error), |error| error.source());
    Error::Broken(causes.map(ToString::to_string).collect::<Vec<_>>().join(": "))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Calls [`ask`] on a server that sends the bytes `answer` and closes the connection; returns the request that the server
    /// received, and the result.
    fn asked(answer: &'static str, most: usize) -> (String, Result<(StatusCode, String), Error>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, mut request) = (listener.accept().unwrap().0, [0; 1024]);
            let read = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        let place = Place::Plain("localhost".into(), port);
        let body = Value::from("hello");
        let answer = ask(&place, (Duration::from_secs(20), most), Method::POST, "/a?b=c", Some(&body));
        (server.join().unwrap(), answer)
    }

    #[test]
    fn a_request_has_a_host_and_a_length_and_an_answer_any_framing() {
        for answer in [
            "HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}",
            "HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
            "HTTP/1.1 409 Conflict\r\nConnection: close\r\n\r\n{}",
        ] {
            let (request, answer) = asked(answer, 2);
            assert_eq!(answer.unwrap(), (StatusCode::CONFLICT, "{}".to_owned()));
            let request = request.to_lowercase();
            assert!(
                request.starts_with("post /a?b=c http/1.1\r\n") && request.ends_with("\r\n\r\n\"hello\""),
                "{request}"
            );
            assert!(request.contains("host: localhost:") && request.contains("content-length: 7\r\n"), "{request}");
        }
    }

    #[test]
    fn a_connection_is_authorized_until_that_is_taken_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = Place::Plain("127.0.0.1".into(), listener.local_addr().unwrap().port());
        let server = thread::spawn(move || {
            let (mut stream, mut part) = (listener.accept().unwrap().0, [0; 1024]);
            let mut answer = || {
                let read = stream.read(&mut part).unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                String::from_utf8_lossy(&part[..read]).to_lowercase()
            };
            [answer(), answer()]
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = Connection::open(&place, Duration::from_secs(20)).await.unwrap();
            for value in [Some("token.7"), None] {
                connection.authorize(value).unwrap();
                let (status, mut body) = connection.send(Method::GET, "/", None).await.unwrap();
                assert_eq!((status, body.read(&mut Vec::new(), 1).await.unwrap()), (StatusCode::OK, 0));
            }
            assert!(connection.authorize(Some("a\nb")).is_err());
        });
        let [with, without] = server.join().unwrap();
        assert!(with.contains("authorization: token.7\r\n") && !without.contains("authorization"), "{with}{without}");
    }

    #[test]
    fn what_is_no_answer_is_told_apart() {
        let answer = |text, most| asked(text, most).1.unwrap_err();
        let whole = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert!(matches!(answer(whole, 1), Error::TooLong(1)));
        for broken in
            ["220 mail ready\r\n\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", ""]
        {
            assert!(matches!(answer(broken, 9), Error::Broken(_)), "{broken}");
        }
        let absent = Place::Socket("/nowhere/control.sock".into());
        let refused = ask(&absent, (Duration::from_secs(1), 1), Method::GET, "/", None).unwrap_err();
        assert!(matches!(&refused, Error::Connect(cause) if cause.kind() == io::ErrorKind::NotFound), "{refused}");
    }

    #[test]
    fn a_silent_server_has_its_time_and_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = Place::Plain("127.0.0.1".into(), listener.local_addr().unwrap().port());
        let patience = Duration::from_millis(50);
        let late = ask(&place, (patience, 1), Method::GET, "/", None).unwrap_err();
        assert!(matches!(late, Error::Late(_)), "{late}");
    }

    #[test]
    fn an_answer_that_trickles_has_its_time_and_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = Place::Plain("127.0.0.1".into(), listener.local_addr().unwrap().port());
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n").unwrap();
            // The client sends no more: a wait, which ends when the client leaves.
            stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            let mut trickle = || stream.write_all(b"x").is_ok() && !matches!(stream.read(&mut [0; 1]), Ok(0));
            (0..2_000).take_while(|_| trickle()).count()
        });
        let late = ask(&place, (Duration::from_millis(400), 2_000), Method::GET, "/", None).unwrap_err();
        assert!(matches!(late, Error::Late(_)), "{late}");
        assert!(server.join().unwrap() < 2_000);
    }

    #[test]
    fn an_address_that_is_silent_leaves_time_for_the_next_one() {
        use rustix::net::{AddressFamily, SocketType, bind, connect, getsockname, listen, socket};
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let full = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&full, &local).unwrap();
        listen(&full, 0).unwrap();
        let silent = SocketAddr::try_from(getsockname(&full).unwrap()).unwrap();
        let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        connect(&client, &silent).unwrap();
        let listener = TcpListener::bind(local).unwrap();
        let good = listener.local_addr().unwrap();
        let patience = Duration::from_millis(400);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connected = runtime.block_on(within(patience, first_of(&[silent, good], patience)));
        assert_eq!(connected.unwrap().peer_addr().unwrap(), good);
        let late = runtime.block_on(within(patience * 2, first_of(&[silent], patience))).unwrap_err();
        assert!(matches!(&late, Error::Connect(cause) if cause.kind() == io::ErrorKind::TimedOut), "{late}");
    }

    #[test]
    fn places_are_written_as_urls() {
        assert_eq!(Place::Plain("::1".into(), 80).to_string(), "http://[::1]:80");
        assert_eq!(Place::Socket("/run/control.sock".into()).to_string(), "/run/control.sock");
    }
}
