//! The checks on every request, and the headers of every answer.

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use evenkeel_policy::http::is_this_machine;

use crate::refusal::Refusal;

/// Upper bound on the body of a request, in bytes: larger than any useful body.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 10;

/// The Content-Security-Policy header: a page loads only files of this server, runs no inline scripts, and cannot be shown in a
/// frame of another page.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Adds the checks for a status address: only reading requests pass, and with `loopback` only those whose Host header names this
/// machine.
pub(crate) fn read_only(router: Router, loopback: bool) -> Router {
    let router = finish(router).layer(from_fn(refuse_writes));
    let router = if loopback { router.layer(from_fn(refuse_foreign_hosts)) } else { router };
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
            Refusal::new(404, "not_found", "there is nothing at this path", "see /api/v1/state, /metrics and /healthz")
        })
        .method_not_allowed_fallback(async |method: Method| {
            let message = format!("{method} is not allowed at this path");
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
        "this address only shows; nothing can be changed over TCP",
        "use the control socket, for example by `evenkeel volume`, `evenkeel tenant`, `evenkeel pool` or `evenkeel reload`",
    );
    let mut response = refusal.into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// Refuses a request whose Host header names another host: a web page whose host name resolves to 127.0.0.1 could otherwise read
/// all data (DNS rebinding).
async fn refuse_foreign_hosts(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if host.is_some_and(is_this_machine) {
        return next.run(request).await;
    }
    let message = match host {
        Some(host) => format!("the Host header says {host:?}, which is not this machine"),
        None => "the request has no readable Host header".to_owned(),
    };
    let refusal = Refusal::new(
        StatusCode::MISDIRECTED_REQUEST.as_u16(),
        "foreign_host",
        message,
        "use http://127.0.0.1 or http://localhost with the port",
    );
    refusal.into_response()
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
