//! The settings with which this host takes part in a cluster.

use std::path::{Path, PathBuf};
use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use evenkeel_control::Instant;
use evenkeel_policy::config;

use crate::error::Error;
use crate::etcd::Access;

/// Name of the file with the safe parts of tenants' totals.
const KEPT: &str = "cluster.json";

/// Number of letters of a host's name that [`Settings::renamed`] keeps, so that a name has at most 64 with the suffix.
const KEPT_LETTERS: usize = 55;

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
    /// The file with the safe parts of tenants' totals, for the next process of this host; `None`: there is none.
    pub(crate) kept: Option<PathBuf>,
    /// True if this process takes another name when another running process has its name; otherwise it then decides alone.
    pub(crate) may_rename: bool,
}

impl Settings {
    /// The settings of this host: those of the configuration, and the system's host name if the configuration has none.
    ///
    /// # Errors
    /// If the system's host name cannot be used and the configuration has no other, or if a file with a certificate or the
    /// password of etcd cannot be used.
    pub fn of_this_host(cluster: &config::Cluster) -> Result<Self, Error> {
        Access::of(cluster).check().map_err(Error::Access)?;
        Self::unchecked(cluster)
    }

    /// As [`Self::of_this_host`], without a look at the files.
    pub(crate) fn unchecked(cluster: &config::Cluster) -> Result<Self, Error> {
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
        let incarnation = wall_clock().as_nanos();
        let clock = wall_clock;
        Ok(Self { cluster: cluster.clone(), host, incarnation, clock, kept: None, may_rename: true })
    }

    /// The same settings, for a process that decides alone while another running process has its name, instead of taking another
    /// name: both have the same load.
    #[must_use]
    pub fn alone_beside_another(self) -> Self {
        Self { may_rename: false, ..self }
    }

    /// The same settings with a file in this folder for the safe parts (at most 1/members) of tenants' totals, with which a
    /// restart without etcd continues. Processes with the same host name have to use the same folder.
    #[must_use]
    pub fn kept_in(self, folder: &Path) -> Self {
        Self { kept: Some(folder.join(KEPT)), ..self }
    }

    /// The same settings with a name for this process alone, as another running process has the name `taken`.
    pub(crate) fn renamed(&self, taken: &str) -> Self {
        // Two processes seldom start in the same nanosecond of four seconds.
        let (base, suffix) = (taken.chars().take(KEPT_LETTERS), self.incarnation & 0xffff_ffff);
        Self { host: format!("{}-{suffix:08x}", base.collect::<String>()), ..self.clone() }
    }

    /// Paths of the files that [`Self::kept_in`] uses in this folder, existing or not.
    pub fn files_in(folder: &Path) -> [PathBuf; 2] {
        let file = folder.join(KEPT);
        [next(&file), file]
    }

    /// Prefix of all etcd keys of the cluster.
    pub(crate) fn prefix(&self) -> String {
        format!("evenkeel/{}/", self.cluster.name)
    }

    pub(crate) fn period(&self) -> StdDuration {
        self.cluster.period.into()
    }

    /// Longest time that etcd may take for one request: a period, or a third of the lease if that is longer, so that another
    /// server can be asked before the lease ends; at least 0.5 s and at most 5 s. Slow disks need longer leases.
    pub(crate) fn patience(&self) -> StdDuration {
        let third = StdDuration::from(self.cluster.lease) / 3;
        self.period().max(third).clamp(StdDuration::from_millis(500), StdDuration::from_secs(5))
    }
}

/// The wall-clock time since 1970.
pub(crate) fn wall_clock() -> Instant {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Path of the next version of the file at `path`, until that takes its place.
pub(crate) fn next(path: &Path) -> PathBuf {
    path.with_extension("new")
}
