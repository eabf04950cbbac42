//! The settings with which this host takes part in a cluster.

use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use evenkeel_control::Instant;
use evenkeel_policy::config;

use crate::error::Error;

/// The settings with which this host takes part in a cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) cluster: config::Cluster,
    /// Name of this host in the cluster.
    pub(crate) host: String,
    /// Number of this start of the host's process (wall-clock nanoseconds since 1970); later starts have larger numbers.
    pub(crate) incarnation: u64,
    /// Function that returns the wall-clock time since 1970; tests replace it.
    pub(crate) clock: fn() -> Instant,
}

impl Settings {
    /// The settings of this host: those of the configuration, and the system's host name if the configuration has none.
    ///
    /// # Errors
    /// If the system's host name cannot be used and the configuration has no other.
    pub fn of_this_host(cluster: &config::Cluster) -> Result<Self, Error> {
        let host = match &cluster.host {
            Some(host) => host.clone(),
            None => {
                let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
                if !evenkeel_policy::is_name(&name) {
                    return Err(Error::Host(name));
                }
                name
            }
        };
        Ok(Self { cluster: cluster.clone(), host, incarnation: wall_clock().as_nanos(), clock: wall_clock })
    }

    /// Prefix of all etcd keys of the cluster.
    pub(crate) fn prefix(&self) -> String {
        format!("evenkeel/{}/", self.cluster.name)
    }

    pub(crate) fn period(&self) -> StdDuration {
        self.cluster.period.into()
    }

    /// Longest time that etcd may take for one request: a period, but at least 0.5 s and at most 2 s. After a period, the
    /// next value is due.
    pub(crate) fn patience(&self) -> StdDuration {
        self.period().clamp(StdDuration::from_millis(500), StdDuration::from_secs(2))
    }
}

/// The wall-clock time since 1970.
pub(crate) fn wall_clock() -> Instant {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
