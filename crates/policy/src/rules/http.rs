//! Rules on HTTP beyond this machine.

use std::net::SocketAddr;

use super::Findings;
use crate::config::{Asked, Server, Where};

/// What somebody in the network could do at the address of the status page, metrics and API, if it is more than was
/// said to be meant.
pub(crate) fn danger(server: &Server, address: SocketAddr) -> Option<String> {
    let http = &server.http;
    if address.ip().is_loopback() || http.tls == Where::No {
        return None;
    }
    let why = match &server.tls {
        None => "unencrypted; set [server.tls] for HTTPS, or tls = \"no\" in [server.http] if that is meant",
        Some(tls) if tls.clients.is_none() && http.certificates == Asked::Required => {
            "because HTTPS asks for no client certificate; set server.tls.clients, or certificates = \"optional\" in [server.http] if that is meant"
        }
        Some(_) => return None,
    };
    Some(format!("everyone who reaches {address} can read the names and loads of all tenants, {why}"))
}

/// Settings that make sense together.
pub(super) fn settings(server: &Server, out: &mut Findings) {
    out.error_if(
        server.http.tls == Where::Always && server.tls.is_none(),
        &["server", "http", "tls"],
        "there is no certificate for HTTPS; add [server.tls] with certificate and key, or remove this key",
    );
}
