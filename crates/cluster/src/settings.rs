//! The settings by which this host takes part.

use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use evenkeel_control::Instant;
use evenkeel_policy::config;

use crate::error::Error;

/// The settings by which this host takes part.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) cluster: config::Cluster,
    /// Name of this host.
    pub(crate) host: String,
    /// Number of this start of the host's process; later starts have larger numbers.
    pub(crate) incarnation: u64,
    /// Returns the wall-clock time since 1970.
    pub(crate) clock: fn() -> Instant,
}

impl Settings {
    /// The settings on this system.
    ///
    /// # Errors
    /// When the system's host name cannot be used and the configuration has no other.
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

    /// Prefix of all keys of the cluster.
    pub(crate) fn prefix(&self) -> String {
        format!("evenkeel/{}/", self.cluster.name)
    }

    pub(crate) fn period(&self) -> StdDuration {
        self.cluster.period.into()
    }

    /// How long etcd may take for one request: about a period (0.5 to 2 s), as a value is useless once the next is due.
    pub(crate) fn patience(&self) -> StdDuration {
        self.period().clamp(StdDuration::from_millis(500), StdDuration::from_secs(2))
    }
}

/// Wall-clock time since 1970.
pub(crate) fn wall_clock() -> Instant {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
