//! Rules on HTTP beyond this machine.

use std::net::SocketAddr;

use super::Findings;
use crate::config::{Asked, Server, Where};

/// The address of the status page, metrics and API.
pub(super) fn at(server: &Server, address: SocketAddr, out: &mut Findings) {
    let loopback = address.ip().is_loopback();
    let encrypted = server.http.tls.applies(loopback);
    if encrypted && server.tls.is_none() {
        let (key, why) = match server.http.tls {
            Where::Always => (&["server", "http", "tls"][..], "there is no certificate for HTTPS".to_owned()),
            _ => (
                &["server", "status"][..],
                format!("{address} is reachable from other machines, and nothing would be encrypted"),
            ),
        };
        out.error(
            key,
            format!("{why}; add [server.tls] with certificate and key, or say [server.http] tls = \"no\" to serve plain HTTP"),
        );
        return;
    }
    let asked = server.tls.as_ref().is_some_and(|tls| tls.clients.is_some());
    let known = encrypted && asked && server.http.certificates == Asked::Required;
    if !loopback && !known {
        let how = if encrypted { "" } else { ", unencrypted" };
        out.warning(
            &["server", "status"],
            format!("everyone who reaches {address} can read the names and loads of all tenants{how}"),
        );
    }
}
