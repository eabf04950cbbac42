//! The changes of a reload, and those that it cannot make.

use std::collections::BTreeMap;
use std::fmt;

use crate::config::{Cluster, Config, Server, Volume};
use crate::units::Bytes;

/// A difference between two configurations that can take effect without dropping a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A setting of the server.
    Server {
        /// The key.
        key: &'static str,
    },
    /// A setting of the cluster.
    Cluster {
        /// The key.
        key: &'static str,
    },
    /// A pool appears.
    PoolAdded(String),
    /// A pool has other settings.
    PoolChanged(String),
    /// A pool, on which no volume is left, disappears.
    PoolRemoved(String),
    /// A tenant appears.
    TenantAdded(String),
    /// A tenant has other settings.
    TenantChanged(String),
    /// A tenant disappears; each of its connections passes to the tenant that it now belongs to.
    TenantRemoved(String),
    /// A volume appears.
    VolumeAdded(String),
    /// A volume disappears; its connections end.
    VolumeRemoved(String),
    /// A volume becomes longer.
    VolumeGrown {
        /// The volume.
        name: String,
        /// Its new size.
        to: Bytes,
    },
    /// A volume has another tenant or description, other access lists, or needs TLS of other clients.
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

/// Differences that need a restart, each as its key, with the reason where one is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeedsRestart(pub Vec<String>);

impl fmt::Display for NeedsRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing was changed, because these changes need a restart: {}", self.0.join("; "))
    }
}

impl std::error::Error for NeedsRestart {}

/// The plan from `old`, which is in force, to `new`, in an order in which the changes can be made one after the other.
///
/// # Errors
/// Names every difference that cannot take effect in a running server.
pub fn plan(old: &Config, new: &Config) -> Result<Vec<Change>, NeedsRestart> {
    let mut restart = Vec::new();
    let mut changes = server_changes(&old.server, &new.server, &mut restart);
    let pools = differences(&old.pools, &new.pools);
    let tenants = differences(&old.tenants, &new.tenants);
    let volumes = differences(&old.volumes, &new.volumes);
    changes.extend(pools.added.into_iter().map(Change::PoolAdded));
    for name in pools.changed {
        if old.pools[&name].emulate.is_some() != new.pools[&name].emulate.is_some() {
            restart.push(format!("pools.{name}.emulate (a running pool keeps or lacks its emulated device)"));
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

fn server_changes(old: &Server, new: &Server, restart: &mut Vec<String>) -> Vec<Change> {
    let fixed = [
        ("listen", old.listen != new.listen),
        ("unix", old.unix_paths() != new.unix_paths()),
        ("status", old.status != new.status),
        ("control", old.control_path() != new.control_path()),
        ("http", old.http != new.http),
        ("data_dir", old.data_dir != new.data_dir),
        ("placement", old.placement != new.placement),
        ("engine", old.engine != new.engine),
        ("busy_poll", old.busy_poll != new.busy_poll),
        ("read_only", old.read_only != new.read_only),
        ("max_connections", old.max_connections != new.max_connections),
        ("max_inflight_per_connection", old.max_inflight_per_connection != new.max_inflight_per_connection),
        ("buffer_memory", old.buffer_memory != new.buffer_memory),
        ("handshake_timeout", old.handshake_timeout != new.handshake_timeout),
        ("max_handshakes", old.max_handshakes != new.max_handshakes),
        ("max_handshakes_per_client", old.max_handshakes_per_client != new.max_handshakes_per_client),
        ("peer_timeout", old.peer_timeout != new.peer_timeout),
    ];
    restart.extend(fixed.iter().filter(|(_, differs)| *differs).map(|(key, _)| format!("server.{key}")));
    let live = [
        ("workers", old.workers != new.workers),
        ("volume_dirs", old.volume_dirs != new.volume_dirs),
        ("default_export", old.default_export != new.default_export),
        ("max_request", old.max_request != new.max_request),
        ("drain_timeout", old.drain_timeout != new.drain_timeout),
        ("allow", old.allow != new.allow),
        ("deny", old.deny != new.deny),
        ("tls", old.tls != new.tls),
    ];
    live.iter().filter(|(_, differs)| *differs).map(|&(key, _)| Change::Server { key }).collect()
}

fn cluster_changes(old: &Cluster, new: &Cluster, restart: &mut Vec<String>) -> Vec<Change> {
    let fixed = [
        ("etcd", old.etcd != new.etcd),
        ("name", old.name != new.name),
        ("host", old.host != new.host),
        ("period", old.period != new.period),
        ("lease", old.lease != new.lease),
    ];
    restart.extend(fixed.iter().filter(|(_, differs)| *differs).map(|(key, _)| format!("cluster.{key}")));
    let live =
        [("shards_above", old.shards_above != new.shards_above), ("shard_size", old.shard_size != new.shard_size)];
    live.iter().filter(|(_, differs)| *differs).map(|&(key, _)| Change::Cluster { key }).collect()
}

fn volume_changes(name: &str, old: &Volume, new: &Volume, changes: &mut Vec<Change>, restart: &mut Vec<String>) {
    let fixed = [
        ("pool", old.pool != new.pool),
        ("backend", old.backend != new.backend),
        ("path", old.path != new.path),
        ("uri", old.uri != new.uri),
        ("rbd", old.rbd != new.rbd),
        ("ceph_conf", old.ceph_conf != new.ceph_conf),
        ("ceph_user", old.ceph_user != new.ceph_user),
        ("ceph_keyring", old.ceph_keyring != new.ceph_keyring),
        ("connections", old.connections != new.connections),
        ("reconnect_timeout", old.reconnect_timeout != new.reconnect_timeout),
        ("unflushed", old.unflushed != new.unflushed),
        ("read_only", old.read_only != new.read_only),
        ("cache", old.cache != new.cache),
    ];
    restart.extend(fixed.iter().filter(|(_, differs)| *differs).map(|(key, _)| format!("volumes.{name}.{key}")));
    match (old.size, new.size) {
        (Some(from), Some(to)) if to < from => {
            restart.push(format!("volumes.{name}.size (from {from} to {to}: a volume in use cannot shrink)"));
        }
        (from, Some(to)) if from != Some(to) => changes.push(Change::VolumeGrown { name: name.into(), to }),
        _ => {}
    }
    let access = |volume: &Volume| (volume.tls, volume.allow.clone(), volume.deny.clone());
    if old.tenant != new.tenant || old.description != new.description || access(old) != access(new) {
        changes.push(Change::VolumeChanged(name.into()));
    }
}

/// Names that differ between two tables.
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
