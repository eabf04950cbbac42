//! Rules on volumes whose data is in another NBD server or in a Ceph cluster.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::Findings;
use crate::config::{Backend, Cache, Server, Unflushed, Volume};
use crate::units::Duration;
use crate::uri::Address;

/// The most connections to one remote server; more do not raise throughput.
const MAX_REMOTE_CONNECTIONS: u32 = 64;
/// Shortest and longest time for which requests wait for a remote server. TCP counts a server as lost if it has acknowledged no
/// data for this time.
const RECONNECT_TIMEOUT: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];

/// True if, by its settings, a server listens at the address.
fn listens_at(server: &Server, address: &Address) -> bool {
    match address {
        Address::Tcp(host, port) => {
            let host: IpAddr = match host.parse() {
                Ok(host) => host,
                Err(_) if host.eq_ignore_ascii_case("localhost") => Ipv4Addr::LOCALHOST.into(),
                Err(_) => return false,
            };
            server.listen.iter().any(|own| {
                let same = own.ip() == host || (own.ip().is_unspecified() && host.is_loopback());
                own.port() == *port && *port != 0 && same
            })
        }
        Address::Unix(path) => {
            let in_full = |path: &Path| std::path::absolute(path).ok();
            server
                .unix_paths()
                .iter()
                .any(|own| own == path || in_full(own).is_some_and(|own| in_full(path) == Some(own)))
        }
    }
}

/// Checks a volume that is an export of another NBD server.
pub(super) fn export(server: &Server, name: &str, volume: &Volume, out: &mut Findings) {
    let at = |key: &'static str| ["volumes", name, key];
    match (volume.backend, &volume.uri) {
        (Backend::Nbd, None) => {
            out.error(&at("backend"), "backend \"nbd\" needs a uri, for example uri = \"nbd://192.0.2.1:10809/disk0\"");
        }
        (Backend::Nbd, Some(uri)) => out.error_if(
            listens_at(server, &uri.address),
            &at("uri"),
            "is this server's own address, and the server would wait for itself; name another server",
        ),
        (other, Some(_)) => {
            out.error(
                &at("uri"),
                format!("backend {:?} has no uri; remove this key, or use backend = \"nbd\"", other.name()),
            );
        }
        (_, None) => {}
    }
    encryption(name, volume, out);
    if volume.backend != Backend::Nbd {
        // The default of a key cannot be told from its absence, and does no harm.
        let usual = Volume::default();
        for (key, given) in [
            ("connections", volume.connections != usual.connections),
            ("reconnect_timeout", volume.reconnect_timeout != usual.reconnect_timeout),
            ("unflushed", volume.unflushed != Unflushed::Lost),
            ("uri_tls", volume.uri_tls.is_some()),
        ] {
            let why =
                format!("backend {:?} has no {key}; remove this key, or use backend = \"nbd\"", volume.backend.name());
            out.error_if(given, &at(key), &why);
        }
        return;
    }
    out.range(&at("connections"), volume.connections, [1, MAX_REMOTE_CONNECTIONS], "");
    out.range(&at("reconnect_timeout"), volume.reconnect_timeout, RECONNECT_TIMEOUT, "\"");
}

/// Checks that a volume names certificates if its URI asks for TLS, and only then.
fn encryption(name: &str, volume: &Volume, out: &mut Findings) {
    let Some(uri) = volume.uri.as_ref().filter(|_| volume.backend == Backend::Nbd) else { return };
    let at = |key: &'static str| ["volumes", name, key];
    match (&uri.tls, &volume.uri_tls) {
        (Some(_), None) => {
            let cure = "set uri_tls.authorities to the certificate of the authority that signed that server's";
            out.error(&at("uri"), format!("asks for TLS, and no CA certificate is set; {cure}"));
        }
        (None, Some(_)) => {
            let cure = "write nbds:// or nbds+unix:// in uri, or remove this key";
            out.error(&at("uri_tls"), format!("is of no use with a uri without TLS; {cure}"));
        }
        (_, Some(files)) => {
            if let Some(fault) = files.fault() {
                out.error(&at("uri_tls"), fault);
            }
        }
        (None, None) => {}
    }
}

/// Checks that a volume with a cache setting has its data on this host or is an RBD image, whose client has a cache.
pub(super) fn cache(name: &str, volume: &Volume, out: &mut Findings) {
    let cached = matches!(volume.backend, Backend::File | Backend::Block | Backend::Rbd);
    let why = format!("backend {:?} has no cache; remove this key, or use backend = \"file\"", volume.backend.name());
    out.error_if(!cached && volume.cache != Cache::Direct, &["volumes", name, "cache"], &why);
}

/// Checks a volume that is an image of a Ceph cluster.
pub(super) fn image(name: &str, volume: &Volume, out: &mut Findings) {
    let at = |key: &'static str| ["volumes", name, key];
    if volume.backend == Backend::Rbd {
        out.error_if(
            volume.rbd.is_none(),
            &at("backend"),
            "backend \"rbd\" needs an image, for example rbd = \"pool/image\"",
        );
        let user = volume.ceph_user.as_deref();
        out.error_if(
            user.is_some_and(|user| user.is_empty() || user.starts_with("client.") || user.contains('\0')),
            &at("ceph_user"),
            "write the user without \"client.\", for example ceph_user = \"evenkeel\"",
        );
        return;
    }
    for (key, given) in [
        ("rbd", volume.rbd.is_some()),
        ("ceph_conf", volume.ceph_conf.is_some()),
        ("ceph_user", volume.ceph_user.is_some()),
        ("ceph_keyring", volume.ceph_keyring.is_some()),
    ] {
        let why =
            format!("backend {:?} has no {key}; remove this key, or use backend = \"rbd\"", volume.backend.name());
        out.error_if(given, &at(key), &why);
    }
}
