//! Reasons why this host cannot take part in a cluster.

use std::io;

use evenkeel_control::InvalidConfig;

/// Reason why this host cannot begin to take part in a cluster. Later faults are logged, and shown in the cluster's state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system's host name (given here) cannot be a name in the cluster, and the configuration has no other name.
    #[error("the system's host name {0:?} is not usable in the cluster; set cluster.host in the configuration")]
    Host(String),
    /// A file that the configuration names for etcd cannot be used; with the file and the cure.
    #[error("{0}")]
    Access(String),
    /// A setting of the cluster is out of range.
    #[error("cluster: {0}")]
    Setting(InvalidConfig),
    /// The system has not started the cluster's thread or its runtime.
    #[error("cannot start a thread of the cluster; raise the limits of threads and open files (ulimit -u, -n)")]
    Start(#[source] io::Error),
    /// The system has not started the runtime that a request to etcd needs.
    #[error("cannot start threads for a request to etcd; raise the limits of threads and open files (ulimit -u, -n)")]
    Ask(#[source] io::Error),
}
