//! The changes that a reload of the configuration makes, and the differences that need a restart.

use std::collections::BTreeMap;
use std::fmt;

use crate::config::{Cluster, Config, Server, Volume};
use crate::units::Bytes;

/// A difference between two configurations that can take effect without dropping a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A setting of the server changes.
    Server {
        /// Key of the setting in the table `server`.
        key: &'static str,
    },
    /// A setting of the cluster changes.
    Cluster {
        /// Key of the setting in the table `cluster`.
        key: &'static str,
    },
    /// The pool with this name is added.
    PoolAdded(String),
    /// Settings of the pool with this name change.
    PoolChanged(String),
    /// The pool with this name, which has no volumes any more, is removed.
    PoolRemoved(String),
    /// The tenant with this name is added.
    TenantAdded(String),
    /// Settings of the tenant with this name change.
    TenantChanged(String),
    /// The tenant with this name is removed. Each of its connections passes to the tenant that now owns it.
    TenantRemoved(String),
    /// The volume with this name is added.
    VolumeAdded(String),
    /// The volume with this name is removed, which ends its connections.
    VolumeRemoved(String),
    /// A volume becomes longer.
    VolumeGrown {
        /// Name of the volume.
        name: String,
        /// New size of the volume.
        to: Bytes,
    },
    /// The volume with this name changes its tenant, its limit, its description, its access lists, or the clients that must use
    /// TLS.
    VolumeChanged(String),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { key } => write!(f, "server.{key} changed"),
            Self::Cluster { key } => write!(f, "cluster.{key} changed"),
            Self::PoolAdded(name) => write!(f, "pool {name} added"),
            Self::PoolChanged(name) => write!(f, "pool {name} changed"),
            Self::PoolRemoved(name) => write!(f, "pool {name} removed"),
            Self::TenantAdded(name) => write!(f, "tenant {name} added"),
            Self::TenantChanged(name) => write!(f, "tenant {name} changed"),
            Self::TenantRemoved(name) => write!(f, "tenant {name} removed"),
            Self::VolumeAdded(name) => write!(f, "volume {name} added"),
            Self::VolumeRemoved(name) => write!(f, "volume {name} removed"),
            Self::VolumeGrown { name, to } => write!(f, "volume {name} grown to {to}"),
            Self::VolumeChanged(name) => write!(f, "volume {name} changed"),
        }
    }
}

/// The error that a reload is not possible: the keys of all differences that need a restart, with a reason where it is not
/// obvious.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeedsRestart(pub Vec<String>);

impl fmt::Display for NeedsRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing was changed, because these changes need a restart: {}", self.0.join("; "))
    }
}

impl std::error::Error for NeedsRestart {}

/// The changes that lead from `old`, the configuration in force, to `new`, in an order in which they can be made one by one.
///
/// # Errors
/// Every difference that cannot take effect in a running server.
pub fn plan(old: &Config, new: &Config) -> Result<Vec<Change>, NeedsRestart> {
    let mut restart = Vec::new();
    let mut changes = server_changes(&old.server, &new.server, &mut restart);
    let pools = differences(&old.pools, &new.pools);
    let tenants = differences(&old.tenants, &new.tenants);
    let volumes = differences(&old.volumes, &new.volumes);
    changes.extend(pools.added.into_iter().map(Change::PoolAdded));
    for name in pools.changed {
        if old.pools[&name].emulate.is_some() != new.pools[&name].emulate.is_some() {
            restart.push(format!("pools.{name}.emulate (a running pool cannot gain or lose an emulated device)"));
        }
        changes.push(Change::PoolChanged(name));
    }
    changes.extend(tenants.added.into_iter().map(Change::TenantAdded));
    changes.extend(tenants.changed.into_iter().map(Change::TenantChanged));
    // Before additions: a new volume may take over the file of a removed one.
    changes.extend(volumes.removed.into_iter().map(Change::VolumeRemoved));
    changes.extend(volumes.added.into_iter().map(Change::VolumeAdded));
    for name in volumes.changed {
        volume_changes(&name, &old.volumes[&name], &new.volumes[&name], &mut changes, &mut restart);
    }
    changes.extend(tenants.removed.into_iter().map(Change::TenantRemoved));
    changes.extend(pools.removed.into_iter().map(Change::PoolRemoved));
    changes.extend(cluster_changes(&old.cluster, &new.cluster, &mut restart));
    if restart.is_empty() { Ok(changes) } else { Err(NeedsRestart(restart)) }
}

/// The given keys whose values differ between two tables.
macro_rules! differing {
    ($old:ident, $new:ident; $($key:ident)+) => {
        [$(($old.$key != $new.$key).then_some(stringify!($key))),+].into_iter().flatten()
    };
}

fn server_changes(old: &Server, new: &Server, restart: &mut Vec<String>) -> Vec<Change> {
    // Paths that the configuration leaves out derive from `data_dir`.
    let complete = |server: &Server| Server {
        unix: Some(server.unix_paths()),
        control: Some(server.control_path()),
        ..server.clone()
    };
    let (old, new) = (complete(old), complete(new));
    let fixed = differing!(old, new; listen unix status control http data_dir placement engine busy_poll read_only
        max_connections max_inflight_per_connection buffer_memory handshake_timeout max_handshakes
        max_handshakes_per_client peer_timeout);
    restart.extend(fixed.map(|key| format!("server.{key}")));
    let live = differing!(old, new; history record workers volume_dirs default_export max_request drain_timeout allow deny
            tls);
    live.map(|key| Change::Server { key }).collect()
}

fn cluster_changes(old: &Cluster, new: &Cluster, restart: &mut Vec<String>) -> Vec<Change> {
    let fixed = differing!(old, new; etcd tls user password_file name host period lease totals);
    restart.extend(fixed.map(|key| format!("cluster.{key}")));
    differing!(old, new; shards_above shard_size).map(|key| Change::Cluster { key }).collect()
}

fn volume_changes(name: &str, old: &Volume, new: &Volume, changes: &mut Vec<Change>, restart: &mut Vec<String>) {
    let fixed = differing!(old, new; pool backend path uri uri_tls rbd ceph_conf ceph_user ceph_keyring connections
        reconnect_timeout unflushed read_only cache);
    restart.extend(fixed.map(|key| format!("volumes.{name}.{key}")));
    match (old.size, new.size) {
        (Some(from), Some(to)) if to < from => {
            restart.push(format!("volumes.{name}.size (from {from} to {to}: a volume in use cannot shrink)"));
        }
        (from, Some(to)) if from != Some(to) => changes.push(Change::VolumeGrown { name: name.into(), to }),
        _ => {}
    }
    if differing!(old, new; tenant limit description tls allow deny).next().is_some() {
        changes.push(Change::VolumeChanged(name.into()));
    }
}

/// The names by which two tables (of pools, tenants or volumes) differ.
struct Differences {
    added: Vec<String>,
    changed: Vec<String>,
    removed: Vec<String>,
}

fn differences<T: PartialEq>(old: &BTreeMap<String, T>, new: &BTreeMap<String, T>) -> Differences {
    let missing = |of: &BTreeMap<String, T>, from: &BTreeMap<String, T>| {
        of.keys().filter(|name| !from.contains_key(*name)).cloned().collect()
    };
    let changed = new.iter().filter(|(name, value)| old.get(*name).is_some_and(|old| old != *value));
    Differences {
        added: missing(new, old),
        changed: changed.map(|(name, _)| name.clone()).collect(),
        removed: missing(old, new),
    }
}
