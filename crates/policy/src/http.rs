//! Settings of HTTP for clients on other machines: encryption, and the clients that may read.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tls::Files;

/// Rules for HTTP at `status`: status page, metrics and API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// HTTPS with the certificate of the table `tls`.
    pub tls: Where,
    /// Client certificates of HTTPS, with `clients` in `tls`.
    pub certificates: Asked,
    /// Names of this machine for plain HTTP: `["storage1"]`; IP addresses and `localhost` need none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

impl Http {
    /// True if plain HTTP answers a request with this Host header: `localhost`, a name of `hosts`, or an IP address. `loopback`
    /// is true if the server listens on a loopback address: then of IP addresses only those of loopback are answered.
    ///
    /// A web page of another site can make its own host name resolve to this machine (DNS rebinding). Its browser then sends
    /// requests with that name in the Host header, and lets the page read the answers.
    pub fn admits(&self, host: &str, loopback: bool) -> bool {
        let name = without_port(host);
        let name = name.strip_suffix('.').unwrap_or(name);
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|address| !loopback || address.is_loopback())
            || self.hosts.iter().any(|known| known.strip_suffix('.').unwrap_or(known).eq_ignore_ascii_case(name))
    }
}

/// At which addresses HTTP is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// Addresses beyond loopback.
    #[default]
    Remote,
    /// All addresses.
    Always,
    /// No address.
    No,
}

impl Where {
    /// True if HTTP is encrypted. `loopback`: the question is about loopback addresses, otherwise about all other addresses.
    pub const fn applies(self, loopback: bool) -> bool {
        match self {
            Self::Remote => !loopback,
            Self::Always => true,
            Self::No => false,
        }
    }
}

/// Demand for certificates of clients, over HTTPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// Needed.
    #[default]
    Required,
    /// A client without one may read, with a bad one not.
    Optional,
}

/// The settings of encryption and client certificates at a status address: the tables `http` and `tls` of a server or an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Name of the table that contains `http` and `tls`: `server` or `agent`; for messages.
    pub table: &'static str,
    /// The settings of the table `http`.
    pub http: Http,
    /// The files that the table `tls` names; `None` without this table.
    pub files: Option<Files>,
}

impl Terms {
    /// True if HTTPS is served at this status address.
    pub fn is_https(&self, address: SocketAddr) -> bool {
        self.files.is_some() && self.http.tls.applies(address.ip().is_loopback())
    }

    /// The danger, as a sentence, that any client in the network can read at this status address; `None` if there is no danger,
    /// or the configuration allows it explicitly.
    pub fn danger(&self, address: SocketAddr) -> Option<String> {
        let Self { table, http, files } = self;
        if address.ip().is_loopback() || http.tls == Where::No {
            return None;
        }
        let why = match files {
            None => {
                format!("unencrypted; set [{table}.tls] for HTTPS, or tls = \"no\" in [{table}.http] if that is meant")
            }
            Some(files) if files.clients.is_none() && http.certificates == Asked::Required => format!(
                "because HTTPS asks for no client certificate; set {table}.tls.clients, or certificates = \"optional\" in [{table}.http] if that is meant"
            ),
            Some(_) => return None,
        };
        Some(format!("every client that reaches {address} can read all names and loads, {why}"))
    }

    /// Keys of the tables `http` and `tls` that do not fit together, each with a message that has the fault and the remedy.
    pub fn faults(&self) -> Vec<([&'static str; 2], String)> {
        let mut faults = Vec::new();
        if self.files.as_ref().is_some_and(|files| files.revoked.is_some() && files.clients.is_none()) {
            let why = "nothing can be revoked where clients need no certificate; set clients, or remove this key";
            faults.push((["tls", "revoked"], why.to_owned()));
        }
        if self.http.tls == Where::Always && self.files.is_none() {
            let table = self.table;
            let why = format!(
                "there is no certificate for HTTPS; add [{table}.tls] with certificate and key, or remove this key"
            );
            faults.push((["http", "tls"], why));
        }
        let is_host = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        if let Some(wrong) = self.http.hosts.iter().find(|name| !is_host(name)) {
            let why =
                format!("{wrong:?} is not a host name; write a name alone, without http:// and port: \"storage1\"");
            faults.push((["http", "hosts"], why));
        }
        faults
    }
}

/// The value of a Host header without the port, and of an IPv6 address without brackets and zone.
fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split([']', '%']).next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_pass() {
        let is_this_machine = |host: &str| Http::default().admits(host, true);
        for host in ["localhost", "LOCALHOST:9809", "127.0.0.1", "127.0.0.1:9809", "[::1]:9809", "[::1]", "127.9.9.9:1"]
        {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9809",
            "localhost.evil.example",
            "10.0.0.1:9809",
            "",
            "[::2]:9809",
            "[fe80::1%1]:9809",
            "127.0.0.1.evil.example",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn beyond_loopback_addresses_and_configured_names_pass() {
        let hosts = vec!["storage1".into(), "storage1.example.org".into(), "storage3.example.org.".into()];
        let http = Http { hosts, ..Http::default() };
        let zones = ["[fe80::1%2]:9809", "[fe80::1%25eth0]:9809", "[fe80::1%eth0]"];
        for host in ["10.0.0.1:9809", "[2001:db8::1]:9809", "192.0.2.1", "localhost:1"].into_iter().chain(zones) {
            assert!(http.admits(host, false) && Http::default().admits(host, false), "{host}");
        }
        for host in ["storage1", "STORAGE1:9809", "storage1.example.org.:80", "storage3.example.org:9809"] {
            assert!(http.admits(host, false) && http.admits(host, true), "{host}");
            assert!(!Http::default().admits(host, false), "{host}");
        }
        for host in ["evil.example", "storage1.evil.example:9809", "10.0.0.1.evil.example", "", ":9809", "[storage2]"] {
            assert!(!http.admits(host, false), "{host}");
        }
    }
}
