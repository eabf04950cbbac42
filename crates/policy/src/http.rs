//! Settings of HTTP for clients on other machines: encryption, and the clients that may read.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tls::Files;

/// Rules for HTTP at `status`: status page, metrics and API.
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
        faults
    }
}

/// True if the value of a Host header names the local machine: `localhost` or a loopback address, with or without port.
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
