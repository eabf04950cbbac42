//! The checks on every request, and the headers of every answer.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use evenkeel_policy::http::Http;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::refusal::Refusal;
use crate::sparing::Sparing;

/// Upper bound on the body of a request, in bytes: larger than any useful body.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 10;

/// Bound on the part of a Host header that is shown, in bytes: more than the longest name with its port.
const SHOWN_HOST_BYTES: usize = 300;

/// The Content-Security-Policy header: a page loads only files of this server, runs no inline scripts, and cannot be shown in a
/// frame of another page.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The rule for Host headers at a status address.
pub(crate) struct Hosts {
    /// True at a loopback address.
    pub(crate) loopback: bool,
    /// Name of the table of the configuration that contains `http`: `server` or `agent`.
    pub(crate) table: &'static str,
    /// The settings of the table `server.http` or `agent.http`.
    pub(crate) http: Http,
    /// True while new connections are HTTPS. No page of another site gets answers by it: its browser asks for a certificate of
    /// the site's own name.
    pub(crate) is_secure: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Hosts {
    /// The refusal of a request with this Host header; `None` if the request passes. A web page whose host name resolves to this
    /// machine could otherwise read all data (DNS rebinding).
    fn refusal(&self, host: Option<&HeaderValue>) -> Option<Refusal> {
        let Self { loopback, table, http, is_secure } = self;
        // Browsers always send the header; probes of load balancers may not.
        if !loopback && (host.is_none() || is_secure()) {
            return None;
        }
        let host = host.and_then(|host| host.to_str().ok());
        if host.is_some_and(|host| http.admits(host, *loopback)) {
            return None;
        }
        let host = host.map(|host| host.get(..SHOWN_HOST_BYTES).unwrap_or(host));
        let message = match host {
            Some(host) if *loopback => format!("the Host header says {host:?}, which is not this machine"),
            Some(host) => {
                format!("the Host header says {host:?}, which is not an IP address and not in {table}.http.hosts")
            }
            None => "the request has no readable Host header".to_owned(),
        };
        let address = match *loopback {
            true => {
                let scheme = if is_secure() { "https" } else { "http" };
                format!("use {scheme}://127.0.0.1 or {scheme}://localhost with the port")
            }
            false => format!("use the IP address, or HTTPS with [{table}.tls]"),
        };
        let cure = format!("{address}; or add the name to hosts in [{table}.http], and restart");
        Some(Refusal::new(StatusCode::MISDIRECTED_REQUEST.as_u16(), "foreign_host", message, cure))
    }
}

/// Adds the checks for a status address: only reading requests pass, and of those over plain HTTP only those whose Host header
/// names this machine. Refusals of other hosts are logged, because monitoring systems often show no more than the status 421.
pub(crate) fn read_only(router: Router, hosts: Hosts) -> Router {
    let (hosts, sparing) = (Arc::new(hosts), Arc::new(Sparing::default()));
    let refuse_foreign_hosts = move |request: Request, next: Next| {
        let refusal = hosts.refusal(request.headers().get(header::HOST));
        if let Some(Refusal { kind, message, cure, .. }) = &refusal
            && let Some(not_logged) = sparing.count(kind, Instant::now())
        {
            let peer = request.extensions().get::<Caller>().and_then(|caller| caller.address());
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, not_logged, "refusing an HTTP request with status 421: {message}; {cure}");
        }
        async move {
            match refusal {
                Some(refusal) => refusal.into_response(),
                None => next.run(request).await,
            }
        }
    };
    let router = finish(router).layer(from_fn(refuse_writes)).layer(from_fn(refuse_foreign_hosts));
    router.layer(from_fn(refuse_two_hosts)).layer(map_response(add_headers))
}

/// Adds the checks for the control socket: an upper bound on the size of requests.
pub(crate) fn control(router: Router) -> Router {
    let router = finish(router).layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    router.layer(from_fn(refuse_two_hosts)).layer(map_response(add_headers))
}

fn finish(router: Router) -> Router {
    router
        .fallback(async || {
            let cure = "try /api/v1/state, /metrics or /healthz; docs/reference/api.md lists all paths";
            Refusal::new(404, "not_found", "the API has nothing at the path of this request", cure)
        })
        .method_not_allowed_fallback(async |method: Method| {
            let message = format!("the method {method} is not allowed at the path of this request");
            Refusal::new(405, "method_not_allowed", message, "see docs/reference/api.md for the methods of each path")
        })
}

async fn refuse_writes(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let refusal = Refusal::new(
        405,
        "read_only",
        "the status address is read-only: nothing can be changed over TCP",
        "use the control socket, for example by `evenkeel volume`, `evenkeel tenant`, `evenkeel pool` or `evenkeel reload`",
    );
    let mut response = refusal.into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// Refuses a request with two Host headers, because a proxy may use one of them and this server the other (RFC 9112, 3.2).
async fn refuse_two_hosts(request: Request, next: Next) -> Response {
    if request.headers().get_all(header::HOST).iter().nth(1).is_none() {
        return next.run(request).await;
    }
    let refusal = Refusal::new(
        StatusCode::BAD_REQUEST.as_u16(),
        "two_hosts",
        "the request has more than one Host header",
        "send one Host header, with the address to which the request goes",
    );
    refusal.into_response()
}

async fn add_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Figures are of the moment; the files of the dashboard say something else themselves.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::body::{Body, to_bytes};
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    /// Status and body of the answer to a request with this Host header.
    async fn ask(router: &Router, host: Option<&str>) -> (u16, String) {
        let request = axum::http::Request::get("/livez");
        let request = if let Some(host) = host { request.header(header::HOST, host) } else { request };
        let request = request.body(Body::empty()).expect("a request");
        let Ok(answer) = TowerToHyperService::new(router.clone()).call(request).await;
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), usize::MAX).await.expect("a body in memory");
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn plain_http_answers_addresses_and_configured_names_alone() {
        let is_secure = Arc::new(AtomicBool::new(false));
        let router = |loopback: bool| {
            let secure = Arc::clone(&is_secure);
            let hosts = Hosts {
                loopback,
                table: "agent",
                http: Http { hosts: vec!["storage1".to_owned()], ..Http::default() },
                is_secure: Box::new(move || secure.load(Ordering::Relaxed)),
            };
            let router = Router::new().route("/livez", axum::routing::get(async || "ok\n"));
            read_only(router, hosts)
        };
        let (here, there) = (router(true), router(false));
        for host in ["localhost:9810", "127.0.0.1:9810", "storage1:9810"] {
            for router in [&here, &there] {
                assert_eq!(ask(router, Some(host)).await, (200, "ok\n".to_owned()), "{host}");
            }
        }
        assert_eq!((ask(&here, Some("192.0.2.1")).await.0, ask(&there, Some("192.0.2.1")).await.0), (421, 200));
        assert_eq!((ask(&here, None).await.0, ask(&there, None).await.0), (421, 200));
        for router in [&here, &there] {
            let (status, body) = ask(router, Some("evil.example:9810")).await;
            assert_eq!(status, 421);
            for part in ["foreign_host", "evil.example:9810", "add the name to hosts in [agent.http]"] {
                assert!(body.contains(part), "{body}");
            }
        }
        let (status, body) = ask(&there, Some("a".repeat(10_000).as_str())).await;
        assert!(status == 421 && body.len() < 1_000, "{body}");
        // The certificate is the check.
        is_secure.store(true, Ordering::Relaxed);
        let host = Some("storage2.example.org");
        assert_eq!((ask(&here, host).await.0, ask(&there, host).await.0), (421, 200));
        assert!(ask(&here, host).await.1.contains("use https://127.0.0.1 or"), "its scheme");
    }
}
