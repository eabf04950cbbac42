//! The cluster of hosts that share a device: its settings, and the report that each host sends to the others.

use std::fmt;
use std::str::FromStr;

use evenkeel_control::cluster as control;
use evenkeel_control::cluster::shard::Sizes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::{is_name, unusable_name};
use crate::units::{Duration, UnitError, as_text};

mod record;

pub use record::{
    MAX_MEMBERS, MAX_POOLS, MAX_RECORD_BYTES, MAX_SUM_BYTES, MAX_SUM_POOLS, MAX_SUM_TOTALS, MAX_TOTALS, Pools, Record,
    TooLarge, Totals, Unreadable, VERSION, received_bytes, together,
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

/// The cluster of hosts whose pools are one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Up to 16 addresses of one etcd, "http://10.0.0.1:2379"; no TLS.
    pub etcd: Vec<Endpoint>,
    /// The cluster.
    pub name: String,
    /// Unique name in the cluster. Default: host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Control interval, 100 ms to 1 min; the same in the whole cluster.
    pub period: Duration,
    /// How long a suspect host keeps its share, 2 to 600 periods; the same in the whole cluster.
    pub lease: Duration,
    /// Larger clusters are divided; 1 to 200.
    pub shards_above: u64,
    /// Mean members of a shard, 1 to 200. Default: found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_size: Option<u64>,
    /// Tenants' reservations and limits are totals over all members; `false`: each host has the whole values.
    pub totals: bool,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            etcd: Vec::new(),
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

    /// True if tenants' reservations and limits are totals over all members: `totals` is set, and there is an etcd.
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
}

/// The address of an etcd server: `"http://10.0.0.1:2379"`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
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
        let wrong = |why: &str| UnitError::new(format!("{text:?} {why}; write for example \"http://10.0.0.1:2379\""));
        if text.starts_with("https://") {
            return Err(wrong("asks for TLS, which is not built in yet: use http:// in a network you trust"));
        }
        let rest = text.strip_prefix("http://").ok_or_else(|| wrong("is not the address of an etcd server"))?;
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
        Ok(Self { host: host.into(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

as_text!(Endpoint, "the address of an etcd server such as \"http://10.0.0.1:2379\"", None, {
    "type": "string",
    "pattern": "^http://"
});
