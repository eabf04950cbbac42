//! Reasons why a host cannot take part.

use std::io;

use evenkeel_control::InvalidConfig;

/// Reason why a host cannot take part. Faults that come later are logged, and shown in the state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system's host name is no name, and the configuration has no other.
    #[error("the system's host name {0:?} cannot be used in the cluster; set cluster.host in the configuration")]
    Host(String),
    /// A setting is out of range.
    #[error("cluster: {0}")]
    Setting(InvalidConfig),
    /// The system refuses what the thread needs.
    #[error("cannot start the thread of the cluster")]
    Start(#[source] io::Error),
    /// The system refuses what a request to etcd needs.
    #[error("cannot ask etcd")]
    Ask(#[source] io::Error),
}
