//! The records behind `/api/v1/state`: the performance that every tenant gets, and the controllers' decisions with reasons.
//!
//! Names end with their unit. Counters count from the start of the server. A rate or budget that is not set or
//! not bounded is `null`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::lately::{LimitWaits, is_default};
pub use crate::parts::{HostPartState, PartsState, TotalState, TotalsState};
pub use crate::space::SpaceState;
pub use crate::trouble::FailureState;
use crate::trouble::Health;

mod pool;
mod tenant;
mod volume;

pub use pool::{AdmissionState, LatencyTargetState, OverdueIo, PoolState, SlicesState, SlotsState};
pub use tenant::{GuaranteeState, LatencyState, LimitState, QosState, TenantSlotsState, TenantState, ThrottledState};
pub use volume::{ClientState, Clients, RbdState, RemoteState, VolumeState};

/// The JSON schema of [`State`] (draft 2020-12).
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(State).to_value()
}

/// The server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// Version of the program.
    pub version: String,
    /// Time since the server's start.
    pub uptime_s: f64,
    /// `io_uring` or `epoll`.
    pub engine: String,
    /// Troubles, worst first.
    #[serde(default)]
    pub health: Health,
    /// Every volume is read-only.
    pub read_only: bool,
    /// True during a graceful stop.
    pub draining: bool,
    /// Threads that serve connections.
    pub workers: Vec<WorkerState>,
    /// Placement of connections on workers.
    pub placement: PlacementState,
    /// Connections.
    pub connections: u64,
    /// Connections accepted.
    pub accepted_connections_total: u64,
    /// Connections closed at once: too many, or no descriptors left.
    pub refused_connections_total: u64,
    /// Completed TLS handshakes of NBD.
    #[serde(default)]
    pub tls_handshakes_total: u64,
    /// Connections refused or closed before they had a volume, by reason.
    #[serde(default)]
    pub refused_clients_total: BTreeMap<String, u64>,
    /// Payload buffers in use.
    pub buffer_memory_used_bytes: u64,
    /// Bound on payload buffers.
    pub buffer_memory_limit_bytes: u64,
    /// Shared devices.
    pub pools: Vec<PoolState>,
    /// Exports.
    pub volumes: Vec<VolumeState>,
    /// The cluster of this host, if it is in one.
    #[serde(default)]
    pub cluster: Option<ClusterState>,
}

/// The cluster as this host knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterState {
    /// Name of the cluster.
    pub name: String,
    /// Name of this host in it.
    pub host: String,
    /// Time between two reports and decisions of a host, in seconds.
    pub period_s: f64,
    /// `shared`: slots are decided from what all hosts report; `holding`: this host's reports have not come back from
    /// etcd for a while, and its last decision stays in force; `lost`: this host decides by its own measurements.
    pub status: String,
    /// The same as a sentence.
    pub because: String,
    /// Part of its share of slots that this host takes, 0 to 1; less than 1 only after this host joined.
    pub ramp: f64,
    /// True if etcd reports changes to this host at present.
    pub connected: bool,
    /// Server of etcd that reports the changes.
    pub endpoint: Option<String>,
    /// The error that prevents reading or writing at present.
    pub error: Option<String>,
    /// The last period that was decided.
    pub decided_period: Option<u64>,
    /// Time since the end of the last period that we reported and saw come back.
    pub age_s: Option<f64>,
    /// Members that are read individually, this host included, by name: all, or those of its shard.
    pub members: Vec<MemberState>,
    /// Members in the last period decided, all shards together.
    #[serde(default)]
    pub counted_members: u64,
    /// The shard of this host, where the cluster is divided.
    #[serde(default)]
    pub shard: Option<String>,
    /// Shards that reported sums, this host's included.
    #[serde(default)]
    pub shards: Vec<ShardState>,
    /// Totals of tenants; `null` if this host has none and knows of none.
    #[serde(default)]
    pub totals: Option<TotalsState>,
    /// Periods decided since the start.
    pub decided_periods_total: u64,
    /// Times that the cluster was lost since the start.
    pub lost_total: u64,
    /// Values of other hosts that were ignored, by reason.
    pub ignored_total: BTreeMap<String, u64>,
    /// Bytes sent to etcd.
    pub sent_bytes_total: u64,
    /// Bytes received from etcd.
    pub received_bytes_total: u64,
}

/// A member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemberState {
    /// Name.
    pub name: String,
    /// `present`, `suspect` (its last report counts) or `expired` (its share is the others').
    pub presence: String,
    /// Periods since its last report.
    pub missed_periods: u64,
}

/// A shard of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShardState {
    /// Name: `3-005` is part 5 (hexadecimal, from 0) of a cluster that is halved three times.
    pub name: String,
    /// `present`, `suspect` (its last sum counts) or `expired` (its share is the others').
    pub presence: String,
    /// Periods since its last sum.
    pub missed_periods: u64,
    /// Members in that sum.
    pub members: u64,
}

/// Placement of connections on workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementState {
    /// Name of the method.
    pub method: String,
    /// Reason for which connections moved last, or did not.
    pub reason: String,
    /// The same as a sentence with its figures.
    pub because: String,
    /// Connections that were moved since the start.
    pub moves_total: u64,
}

/// A thread that serves connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerState {
    /// Position among the workers.
    pub index: u32,
    /// True after the number of workers was reduced: this one has given its connections away, and ends after its last request.
    #[serde(default)]
    pub leaving: bool,
    /// Connections at present.
    pub connections: u64,
    /// Requests received.
    pub requests_total: u64,
    /// CPU time used.
    pub cpu_s: f64,
    /// Share of the last second (0 to 1) for which it had something to do, on a processor or waiting for one.
    #[serde(default)]
    pub busy: f64,
}
