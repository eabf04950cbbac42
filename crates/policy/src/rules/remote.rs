//! Rules on volumes whose data is in another NBD server or in a Ceph cluster.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::Findings;
use crate::config::{Backend, Cache, Config, Server, Tenant, Unflushed, Volume};
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

/// Warns of a volume whose requests may count twice for totals of tenants: at this server, and at the one that exports it.
pub(super) fn twice(config: &Config, name: &str, volume: &Volume, out: &mut Findings) {
    let bare = Tenant::default();
    let has_totals = |tenant: &Tenant| {
        let tenant = tenant.on(&volume.pool);
        tenant.reservation != bare.reservation || tenant.limit != bare.limit || tenant.guarantee != bare.guarantee
    };
    let of_volume = config.tenants.iter().filter(|(name, _)| volume.tenant.as_ref().is_none_or(|own| own == *name));
    let mut tenants = of_volume.map(|(_, tenant)| tenant);
    if volume.backend == Backend::Nbd && config.cluster.has_totals() && tenants.any(has_totals) {
        let message = format!(
            "requests count against the limits and guarantees of tenants here, and again at the server in uri if that is a member of cluster {:?} with the same pool and tenants, so that a tenant gets about half of its limit; give this volume a pool of another name",
            config.cluster.name
        );
        out.warning(&["volumes", name, "uri"], message);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rates;

    #[test]
    fn a_volume_that_may_count_twice_for_totals_is_a_warning() {
        let warnings = |backend: Backend, is_member: bool, iops: u64| {
            let mut config = Config::default();
            if is_member {
                config.cluster.etcd = vec!["http://127.0.0.1:2379".parse().unwrap()];
            }
            let reservation = Rates { iops, ..Rates::default() };
            config.tenants.insert("db".into(), Tenant { reservation, ..Tenant::default() });
            let mut out = Findings(Vec::new());
            twice(&config, "disk0", &Volume { backend, ..Volume::default() }, &mut out);
            out.0.len()
        };
        assert_eq!(warnings(Backend::Nbd, true, 100), 1);
        for (backend, is_member, iops) in
            [(Backend::File, true, 100), (Backend::Nbd, false, 100), (Backend::Nbd, true, 0)]
        {
            assert_eq!(warnings(backend, is_member, iops), 0, "{is_member} {iops}");
        }
    }

    #[test]
    fn a_volume_of_a_tenant_without_totals_counts_for_none() {
        let mut config = Config::default();
        config.cluster.etcd = vec!["http://127.0.0.1:2379".parse().unwrap()];
        let reservation = Rates { iops: 100, ..Rates::default() };
        config.tenants.insert("db".into(), Tenant { reservation, ..Tenant::default() });
        config.tenants.insert("web".into(), Tenant::default());
        for (tenant, warnings) in [("db", 1), ("web", 0)] {
            let mut out = Findings(Vec::new());
            let volume = Volume { backend: Backend::Nbd, tenant: Some(tenant.into()), ..Volume::default() };
            twice(&config, "disk0", &volume, &mut out);
            assert_eq!(out.0.len(), warnings, "{tenant}");
        }
    }
}
