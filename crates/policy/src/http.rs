//! HTTP beyond this machine: whether it is encrypted, and who may read.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tls::Files;

/// How the status page, metrics and API are served at `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// HTTPS with the certificate of the table `tls`.
    pub tls: Where,
    /// Client certificates of HTTPS, with `clients` in `tls`.
    pub certificates: Asked,
}

/// At which addresses HTTP is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// Beyond loopback.
    #[default]
    Remote,
    /// Everywhere.
    Always,
    /// Nowhere.
    No,
}

impl Where {
    /// True if HTTP is encrypted: at loopback addresses if `loopback`, else at all others.
    pub const fn applies(self, loopback: bool) -> bool {
        match self {
            Self::Remote => !loopback,
            Self::Always => true,
            Self::No => false,
        }
    }
}

/// Certificates of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// Needed.
    #[default]
    Required,
    /// A client without one may read, with a bad one not.
    Optional,
}

/// Encryption and client certificates at a status address: the tables `http` and `tls` of a server or an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Name of the table that has these tables, `server` or `agent`: for messages.
    pub table: &'static str,
    /// The table `http`.
    pub http: Http,
    /// The files in the table `tls`, if there is one.
    pub files: Option<Files>,
}

impl Terms {
    /// True if HTTPS is served at this status address.
    pub fn is_https(&self, address: SocketAddr) -> bool {
        self.files.is_some() && self.http.tls.applies(address.ip().is_loopback())
    }

    /// The danger of this status address to be read by any client in the network, as a sentence; `None` if there is none, or
    /// the configuration says that it is meant.
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

    /// Keys in the two tables that do not fit together, each with what is wrong and what would be right.
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
        faults
    }
}

/// True if a Host header names the local machine: `localhost` or a loopback address, with or without port.
pub fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_this_machine;

    #[test]
    fn only_names_of_this_machine_pass() {
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
            "127.0.0.1.evil.example",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
