//! How this host takes part.

use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use evenkeel_control::Instant;
use evenkeel_policy::config;

use crate::error::Error;

/// How this host takes part.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) cluster: config::Cluster,
    /// Name of this host.
    pub(crate) host: String,
    /// Which life of it: later starts have larger numbers.
    pub(crate) incarnation: u64,
    /// Wall-clock time since 1970.
    pub(crate) clock: fn() -> Instant,
}

impl Settings {
    /// Of this system.
    ///
    /// # Errors
    /// When the system's host name is none that can be used and no other was given.
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

    /// Where the cluster has its keys.
    pub(crate) fn prefix(&self) -> String {
        format!("evenkeel/{}/", self.cluster.name)
    }

    pub(crate) fn period(&self) -> StdDuration {
        self.cluster.period.into()
    }

    /// How long etcd may take for one request: a value that comes later than the next one is of no use.
    pub(crate) fn patience(&self) -> StdDuration {
        self.period().clamp(StdDuration::from_millis(500), StdDuration::from_secs(2))
    }
}

/// Wall-clock time since 1970.
pub(crate) fn wall_clock() -> Instant {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
