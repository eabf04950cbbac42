//! The cluster of hosts that share a device: its settings, and the report that each host sends to the others.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use evenkeel_control::cluster as control;
use evenkeel_control::cluster::shard::Sizes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::{is_name, unusable_name};
use crate::units::{Duration, UnitError, as_text};

mod record;

pub use record::{
    Header, MAX_MEMBERS, MAX_POOLS, MAX_RECORD_BYTES, MAX_SUM_BYTES, MAX_SUM_POOLS, MAX_SUM_TOTALS, MAX_TENANT_NAME,
    MAX_TOTALS, Pools, READS, Record, TooLarge, Totals, Unreadable, VERSION, received_bytes, together,
};

/// The most addresses of etcd: no etcd cluster has more members that serve clients.
const MAX_ENDPOINTS: usize = 16;
/// Shortest and longest period of the hosts' reports. Figures of shorter periods are mostly noise, and keep etcd's disk busy;
/// with longer periods decisions come too late.
const PERIOD_RANGE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];
/// Longest lease, in periods. A host without a report for longer is not expected to return soon.
const MAX_LEASE_PERIODS: u64 = 600;
/// Upper bound on the number of hosts that read each other's single reports (`shards_above`, `shard_size`). It is lower than the
/// number of hosts that a host can track, because some shards are larger than the mean.
const MAX_TOGETHER: u64 = 200;

/// Settings of the cluster: the hosts that share the devices of their pools, and report to each other through etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Up to 16 addresses of one etcd, "https://10.0.0.1:2379".
    pub etcd: Vec<Endpoint>,
    /// Certificates for "https://".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<EtcdTls>,
    /// User of etcd's authentication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File with the password of `user` in its first line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Cluster's name.
    pub name: String,
    /// Unique name in the cluster. Default: host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Control interval, 100 ms to 1 min; equal on all hosts.
    pub period: Duration,
    /// Time that a suspect host keeps its share, 2 to 600 periods; equal on all hosts.
    pub lease: Duration,
    /// Larger clusters are divided; 1 to 200.
    pub shards_above: u64,
    /// Mean members of a shard, 1 to 200. Default: found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_size: Option<u64>,
    /// Tenants' reservations, limits and guarantees are totals over all members; `false`: each host has the whole values.
    pub totals: bool,
}

/// Name, in a [`Record`], of the total that a tenant's throughput guarantee is; the tenant's own name stands for its reservation
/// and limit. `of`: the requests that the guarantee is about, `all`, `read` or `write`. `None` if the name is too long for a
/// record: the guarantee then holds on each host.
pub fn guarantee_total(of: &str, tenant: &str) -> Option<String> {
    // No name of a tenant begins with a word and a space.
    let name = format!("{of} {tenant}");
    (name.len() <= MAX_TENANT_NAME).then_some(name)
}

/// The tenant of a total in a [`Record`], and the policy's key of the guarantee that the total is; `None`: reservation and limit.
pub fn tenant_of_total(name: &str) -> (&str, Option<&'static str>) {
    let guarantee = name.split_once(' ').and_then(|(of, tenant)| match of {
        "all" => Some((tenant, "guarantee")),
        "read" => Some((tenant, "guarantee.read")),
        "write" => Some((tenant, "guarantee.write")),
        _ => None,
    });
    guarantee.map_or((name, None), |(tenant, key)| (tenant, Some(key)))
}

/// Certificates with which a host reaches etcd or the NBD server of a volume. The files are read again for each new connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EtcdTls {
    /// PEM: authorities of the server's certificate.
    pub authorities: PathBuf,
    /// PEM: this host's client certificate, then the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// PEM: its private key, not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl EtcdTls {
    /// The fault of a certificate without its key, or of a key without its certificate, with the remedy.
    pub fn fault(&self) -> Option<&'static str> {
        let is_half = self.certificate.is_some() != self.key.is_some();
        is_half.then_some("has only one of certificate and key; set both or neither")
    }

    /// The paths of all files that are named.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let files = [Some(&self.authorities), self.certificate.as_ref(), self.key.as_ref()];
        files.into_iter().flatten().map(PathBuf::as_path)
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            etcd: Vec::new(),
            tls: None,
            user: None,
            password_file: None,
            name: "main".into(),
            host: None,
            period: Duration::from_millis(1_000),
            lease: Duration::from_millis(3_000),
            shards_above: 100,
            shard_size: None,
            totals: true,
        }
    }
}

impl Cluster {
    /// The settings as the controller's configuration. The lease is rounded down to whole periods.
    pub fn control(&self) -> control::Config {
        let lease = self.lease.as_nanos() / self.period.as_nanos().max(1);
        control::Config { lease, ..control::Config::new(self.period) }
    }

    /// The number of members above which the cluster is divided, and the size of its shards.
    pub fn sizes(&self) -> Sizes {
        Sizes { above: self.shards_above, most: self.shard_size }
    }

    /// True if tenants' reservations, limits and guarantees are totals over all members: `totals` is set, and there is an etcd.
    pub fn has_totals(&self) -> bool {
        self.totals && !self.etcd.is_empty()
    }

    /// The lease in etcd, in whole seconds: `lease` rounded up, but at least the 2 s that etcd grants.
    pub fn lease_seconds(&self) -> u64 {
        self.lease.as_nanos().div_ceil(1_000_000_000).max(2)
    }

    /// The faults of the settings, each as its key in the table `cluster` and a message with the fault and the remedy.
    pub fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if self.etcd.len() > MAX_ENDPOINTS {
            let message =
                format!("has {} addresses; use at most {MAX_ENDPOINTS}, all of one etcd cluster", self.etcd.len());
            faults.push(("etcd", message));
        }
        faults.extend(self.faults_of_access());
        for (key, name) in [("name", Some(&self.name)), ("host", self.host.as_ref())] {
            if let Some(name) = name.filter(|name| !is_name(name)) {
                faults.push((key, unusable_name(name)));
            }
        }
        let [shortest, longest] = PERIOD_RANGE;
        if !(shortest..=longest).contains(&self.period) {
            faults.push(("period", format!("{} is out of range; use \"{shortest}\" to \"{longest}\"", self.period)));
        }
        if !(2..=MAX_LEASE_PERIODS).contains(&self.control().lease) {
            faults.push(("lease", format!("must be 2 to {MAX_LEASE_PERIODS} times cluster.period ({})", self.period)));
        }
        for (key, members) in [("shards_above", Some(self.shards_above)), ("shard_size", self.shard_size)] {
            if members.is_some_and(|members| !(1..=MAX_TOGETHER).contains(&members)) {
                faults.push((key, format!("must be 1 to {MAX_TOGETHER} members")));
            }
        }
        faults
    }

    /// The faults of the settings for TLS and authentication, as in [`Self::faults`].
    fn faults_of_access(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let (any_secure, all_secure) =
            (self.etcd.iter().any(Endpoint::is_secure), self.etcd.iter().all(Endpoint::is_secure));
        match &self.tls {
            None if any_secure => {
                let cure = "set cluster.tls.authorities to the certificate of the authority that signed etcd's";
                faults.push(("etcd", format!("has an https:// address, and no CA certificate is set; {cure}")));
            }
            Some(_) if !any_secure && !self.etcd.is_empty() => {
                let cure = "write https:// in cluster.etcd, or remove this table";
                faults.push(("tls", format!("is of no use with http:// addresses; {cure}")));
            }
            Some(tls) => faults.extend(tls.fault().map(|fault| ("tls", fault.to_owned()))),
            _ => {}
        }
        match (&self.user, &self.password_file) {
            (Some(_), None) => {
                faults.push(("user", "has no password; set cluster.password_file to a file with it".into()));
            }
            (None, Some(_)) => faults.push(("password_file", "belongs to no user; set cluster.user".into())),
            (Some(user), _) if user.is_empty() => {
                faults.push(("user", "is empty; write the name of a user of etcd".into()));
            }
            (Some(_), Some(_)) if !all_secure => {
                let cure = "write https:// addresses, and set cluster.tls.authorities";
                let why = "has an http:// address, which would carry the password in clear";
                faults.push(("etcd", format!("{why}; {cure}")));
            }
            _ => {}
        }
        faults
    }
}

/// The address of an etcd server: `"https://10.0.0.1:2379"`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    secure: bool,
    host: String,
    port: u16,
}

impl Endpoint {
    /// True if the address begins with `https://`.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Host name or address of the etcd server; an IPv6 address is without brackets.
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// TCP port of the etcd server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Host and port in the form of a URL.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl FromStr for Endpoint {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = |why: &str| UnitError::new(format!("{text:?} {why}; write for example \"https://10.0.0.1:2379\""));
        let (secure, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(wrong("is not the address of an etcd server")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| wrong("has no port"))?;
        let port = port.parse().ok().filter(|&port| port > 0).ok_or_else(|| wrong("has no usable port"))?;
        let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let usable = match in_brackets {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
                !host.is_empty() && host.len() <= 253 && host.chars().all(allowed)
            }
        };
        if !usable {
            return Err(wrong("has no usable host name or address"));
        }
        Ok(Self { secure, host: host.into(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

as_text!(Endpoint, "the address of an etcd server such as \"https://10.0.0.1:2379\"", None, {
    "type": "string",
    "pattern": "^https?://"
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarantee_is_a_total_of_its_own_beside_its_tenant() {
        for (of, key) in [("all", "guarantee"), ("read", "guarantee.read"), ("write", "guarantee.write")] {
            for tenant in ["db", "db/slice of db.service"] {
                let name = guarantee_total(of, tenant).expect("a short name");
                assert_eq!(tenant_of_total(&name), (tenant, Some(key)));
            }
        }
        for tenant in ["db", "read", "read/all of it", "db/read 1"] {
            assert_eq!(tenant_of_total(tenant), (tenant, None));
        }
        assert_eq!(guarantee_total("read", &"x".repeat(MAX_TENANT_NAME - 4)), None);
        assert!(guarantee_total("read", &"x".repeat(MAX_TENANT_NAME - 5)).is_some());
    }
}
