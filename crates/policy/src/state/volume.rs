//! The records of a volume: its connections, and the remote server or image behind it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tenant::LimitState;
use crate::lately::{LimitWaits, ThrottledBy};
use crate::space::SpaceState;
use crate::trouble::FailureState;

/// An export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeState {
    /// Name of the export.
    pub name: String,
    /// Tenant of the export's connections.
    pub tenant: String,
    /// Pool of the export.
    pub pool: String,
    /// `memory`, `file`, `block`, `emulate`, `nbd` or `rbd`.
    pub backend: String,
    /// Path of the file or device; `null` for a volume in neither.
    pub path: Option<String>,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Connections.
    pub connections: u64,
    /// Offers to clients, `flush` for example.
    pub flags: Vec<String>,
    /// Failed flush: writes since the last good one may be lost; flushes fail until a restart.
    pub error: Option<String>,
    /// Failed requests of ten minutes, by kind and error.
    #[serde(default)]
    pub failures: Vec<FailureState>,
    /// The server behind the volume, for `nbd`.
    #[serde(default)]
    pub remote: Option<RemoteState>,
    /// The image behind the volume, for `rbd`.
    #[serde(default)]
    pub rbd: Option<RbdState>,
    /// Allocated and free space, for `file`.
    #[serde(default)]
    pub space: Option<SpaceState>,
    /// Its file was deleted, moved or replaced.
    #[serde(default)]
    pub displaced: bool,
    /// Trims completed.
    #[serde(default)]
    pub trims_total: u64,
    /// Bytes of completed trims.
    #[serde(default)]
    pub trimmed_bytes_total: u64,
    /// Limit in force.
    #[serde(default)]
    pub limit: LimitState,
    /// Its limit, while requests wait.
    #[serde(default)]
    pub throttled_by: Option<ThrottledBy>,
    /// Requests that waited for the limit.
    #[serde(default)]
    pub waits: Option<LimitWaits>,
}

/// The connections of a server at one moment: the answer of `/api/v1/clients`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clients {
    /// Time since the server's start.
    pub uptime_s: f64,
    /// Connections that have chosen an export, each as its worker saw it last: once a second.
    pub clients: Vec<ClientState>,
}

/// A connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientState {
    /// Name of the connection, unique until the server restarts.
    pub id: String,
    /// `192.0.2.7:51234`, or `unix uid 1000`; under TLS with the name in its certificate.
    pub address: String,
    /// Version and cipher of TLS, if it is encrypted.
    #[serde(default)]
    pub tls: Option<String>,
    /// Volume that the connection uses.
    pub volume: String,
    /// Pool of the volume.
    pub pool: String,
    /// The tenant whose policy applies to the connection.
    pub tenant: String,
    /// The worker that serves it.
    pub worker: u32,
    /// Time at which the connection was accepted, on the scale of the state's `uptime_s`.
    pub since_s: f64,
    /// Time at which the figures below were taken, on the same scale.
    pub counted_at_s: f64,
    /// Requests received.
    pub requests_total: u64,
    /// Requests not yet answered.
    pub in_flight_requests: u64,
    /// Bytes received from it, headers included.
    pub received_bytes_total: u64,
    /// Bytes sent to it, headers included.
    pub sent_bytes_total: u64,
}

/// The image of a Ceph cluster behind a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RbdState {
    /// `POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]`.
    pub image: String,
    /// Bytes of one object of the cluster.
    pub object_bytes: u64,
    /// Requests that the cluster has not answered.
    pub in_flight_requests: u64,
    /// Times that its size has changed since it was opened.
    pub resizes_total: u64,
}

/// The remote server behind a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteState {
    /// Address of the export on the other server.
    pub uri: String,
    /// True if there is a connection to it.
    pub connected: bool,
    /// Connections at present.
    pub connections: u64,
    /// Connections wanted.
    pub connections_wanted: u64,
    /// Connections made since the start in place of ones that broke.
    pub reconnects_total: u64,
    /// Requests sent again after the connection broke on which they had been sent.
    pub retransmits_total: u64,
    /// Requests sent and not answered.
    pub in_flight_requests: u64,
    /// Requests that wait to be sent.
    pub waiting_requests: u64,
    /// For how long there has been no connection; `null` while there is one.
    pub away_ms: Option<u64>,
    /// Writes were acknowledged since the last flush of their connection.
    pub unflushed: bool,
    /// Reason for which the last connection broke, or could not be made. It stays after a connection was made.
    pub last_error: Option<String>,
}
