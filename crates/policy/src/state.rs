//! The records behind `/api/v1/state`: the performance that every tenant gets, and the controllers' decisions with reasons.
//!
//! Names end with their unit. Counters count from the start of the server. A rate or budget that is not set or
//! not bounded is `null`.

use std::collections::BTreeMap;

use evenkeel_control::Instant;
use evenkeel_control::log::Entry;
use evenkeel_control::pool::guarantee::{Decision, View};
use evenkeel_control::pool::{TenantId, target};
use evenkeel_control::throughput::Rate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::{DecisionRecord, MostThrottled, Unit};
use crate::explain::{self, Throttles};
pub use crate::lately::LimitWaits;
use crate::lately::{Lately, ThrottledBy};
use crate::parts::set;
pub use crate::parts::{HostPartState, PartsState, TotalState, TotalsState};
pub use crate::space::SpaceState;
use crate::tenant::Percentile;
pub use crate::trouble::FailureState;
use crate::trouble::Health;

/// The JSON schema of [`State`] (draft 2020-12).
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(State).to_value()
}

/// The server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// Version of the program.
    pub version: String,
    /// Time since the start.
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
    /// Length of a period.
    pub period_s: f64,
    /// `shared`: slots are decided from what all hosts report; `holding`: our own reports have not come back for a while,
    /// the last decision stays in force; `lost`: this host is on its own.
    pub status: String,
    /// The same as a sentence.
    pub because: String,
    /// Part of its share that this host takes, 0 to 1; less than 1 only after it joined.
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
    /// Name: how often the cluster is halved, and which part it is.
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

/// A shared device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolState {
    /// Name in the configuration.
    pub name: String,
    /// `mclock` or `none`.
    pub scheduler: String,
    /// Admission control.
    pub admission: AdmissionState,
    /// Requests queued.
    pub queued_requests: u64,
    /// The limit in force and its owners.
    pub limit: LimitState,
    /// Latency target for reads, if any.
    pub latency_target: Option<LatencyTargetState>,
    /// Shares of slots, if any.
    #[serde(default)]
    pub slots: Option<SlotsState>,
    /// Sizes of slices, as measured.
    #[serde(default)]
    pub slices: SlicesState,
    /// I/Os in flight for longer than `stall_report_after`.
    pub overdue: Vec<OverdueIo>,
    /// Figures and verdicts of the last one or two seconds.
    #[serde(default)]
    pub lately: Option<Lately>,
    /// Tenants with connections or a configuration.
    pub tenants: Vec<TenantState>,
}

/// Sizes of the slices into which large requests are divided. They change as slices and small requests are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlicesState {
    /// Bytes of a slice of a read.
    pub read_bytes: u64,
    /// Bytes of a slice of a write.
    pub write_bytes: u64,
}

/// Division of a device's slots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlotsState {
    /// Name of the method.
    pub method: String,
    /// Together with other hosts; else this pool decides alone.
    pub clustered: bool,
    /// All slots together, on all hosts; `null` = no bound.
    pub total: Option<f64>,
    /// Smallest factor by which all targets could be multiplied and still be met; they are met if it is at most 1. `null`
    /// without targets, or for a factor above ten.
    pub tightness: Option<f64>,
}

/// The need of a tenant's latency target, and the slots granted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantSlotsState {
    /// The target for its latency over a second.
    pub target_ms: Option<f64>,
    /// The figure of the latencies that the target bounds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub percentile: String,
    /// Slots that its target needs.
    pub need: f64,
    /// Slots that it has; `null` = no bound.
    pub granted: Option<f64>,
    /// The figure of its latencies in the last period, of which `percentile` is one; `null` = nothing completed, or no target.
    #[serde(default)]
    pub measured_ms: Option<f64>,
    /// Slots that it used in the last period, in the mean.
    pub used: f64,
    /// Latency less that of the device in the last period, in the mean; `null` = nothing completed.
    pub queueing_delay_ms: Option<f64>,
    /// Latency of the device in the last period, in the mean; `null` = nothing completed.
    pub device_latency_ms: Option<f64>,
    /// Seconds in which something completed, since the tenant has the target.
    pub windows_total: u64,
    /// Seconds of `windows_total` in which the figure was above the target.
    pub violated_total: u64,
    /// Name of the reason for the number of slots.
    pub reason: String,
    /// The reason as a sentence.
    pub because: String,
}

/// Admission control and its newest decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdmissionState {
    /// `none`, `fixed`, `elastic` or `slowfast`.
    pub kind: String,
    /// Cost that may be in flight; `null` = unbounded.
    pub budget_bytes: Option<u64>,
    /// Bytes that a request costs beside its own in weights and for `elastic`, as configured or measured.
    pub base_cost_bytes: u64,
    /// Cost in flight.
    pub in_flight_bytes: u64,
    /// Requests in flight.
    pub in_flight_requests: u64,
    /// Latency the controller aims at, if it has an aim.
    pub target_ms: Option<f64>,
    /// When it was decided, on the scale of [`State::uptime_s`].
    pub decided_at_s: f64,
    /// Reason as a sentence.
    pub reason: String,
    /// Reason for the value of the target, as a sentence; empty without a target.
    pub target_reason: String,
    /// Reason as data, for programs.
    pub reason_data: ReasonData,
}

/// The figures behind a decision; what does not apply is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReasonData {
    /// Name of the reason, `latency_over_target` for example.
    pub kind: String,
    /// Smallest latency of the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_latency_ms: Option<f64>,
    /// The target it was measured by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ms: Option<f64>,
    /// The most that was in flight lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Bytes in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_bytes: Option<u64>,
    /// The centre of the drawn target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimum_ms: Option<f64>,
    /// Slope of the fitted curve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_mib_per_s: Option<f64>,
    /// Samples in the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u32>,
    /// Completions of the interval whose requests waited for the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<u64>,
    /// All completions of the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completions: Option<u64>,
    /// The number the decision follows, in a unit that `kind` implies: a ratio, or requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
}

/// A limit with the owner of the entry that binds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitState {
    /// Requests per second.
    pub iops: Option<u64>,
    /// The owner of that, for example `operator`.
    pub iops_owner: Option<String>,
    /// Payload bytes per second.
    pub bytes_per_s: Option<u64>,
    /// The owner of that.
    pub bytes_per_s_owner: Option<String>,
}

/// An I/O that has been in flight for too long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverdueIo {
    /// The volume.
    pub volume: String,
    /// Time since it entered the device.
    pub age_s: f64,
    /// `read`, `write`, `flush`, ...
    pub kind: String,
    /// Offset in the volume.
    pub offset_bytes: u64,
    /// Length of the request.
    pub length_bytes: u64,
}

/// A tenant on one pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantState {
    /// Name in the configuration.
    pub name: String,
    /// QoS policy.
    pub qos: QosState,
    /// The limit in force and its owners.
    pub limit: LimitState,
    /// Order of throttling for latency targets: `never`, `last`, `normal` or `always`.
    pub throttle: String,
    /// Throttle for the pool's latency target, if any.
    pub throttled: Option<ThrottledState>,
    /// Slots of the tenant, on a pool with `slots`.
    #[serde(default)]
    pub slots: Option<TenantSlotsState>,
    /// Throughput guarantees: one for all requests, or one for each direction.
    pub guarantees: Vec<GuaranteeState>,
    /// Connections.
    pub connections: u64,
    /// Requests queued.
    pub queued_requests: u64,
    /// Requests in flight.
    pub in_flight_requests: u64,
    /// Reads completed.
    pub reads_total: u64,
    /// Writes completed.
    pub writes_total: u64,
    /// Flushes completed.
    pub flushes_total: u64,
    /// Trims, zeroings and the like completed.
    pub metas_total: u64,
    /// Payload bytes read.
    pub read_bytes_total: u64,
    /// Payload bytes written.
    pub write_bytes_total: u64,
    /// Requests that the device failed.
    pub errors_total: u64,
    /// Requests dispatched for the reservation.
    pub by_reservation_total: u64,
    /// Requests dispatched by weight.
    pub by_weight_total: u64,
    /// Arrival to dispatch.
    pub queue_latency: LatencyState,
    /// Dispatch to completion.
    pub device_latency: LatencyState,
    /// Arrival to completion.
    pub latency: LatencyState,
    /// Figures and verdicts of the last one or two seconds.
    #[serde(default)]
    pub lately: Option<Lately>,
    /// Its parts of reservation and limit in a cluster; `null` = all.
    #[serde(default)]
    pub parts: Option<PartsState>,
}

/// A latency target for reads, and what was decided for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyTargetState {
    /// The bound on the figure.
    pub target_ms: f64,
    /// The figure: `mean`, or a percentile such as `p99`.
    pub percentile: String,
    /// The figure when it was last measured; `null` before the first read that counts.
    pub measured_ms: Option<f64>,
    /// The newest decision; `null` before the first.
    pub decision: Option<DecisionRecord>,
    /// Decisions lately, oldest first; the newest is the one above.
    pub decisions: Vec<DecisionRecord>,
}

impl LatencyTargetState {
    /// The record of a decision for the latency target of `pool`, with the times of `at`. `name` gives the name of a tenant;
    /// `None` if the tenant has left.
    pub fn record(
        pool: &str,
        percentile: Percentile,
        decision: &target::Decision,
        name: impl Fn(TenantId) -> Option<String>,
        at: DecisionRecord,
    ) -> DecisionRecord {
        let target::Decision { reason, mean_delay, throttled, released } = decision;
        let name = |id| name(id).unwrap_or_else(|| "a tenant that has left".into());
        let most = throttled.first.iter().flatten().map(|one| MostThrottled {
            tenant: name(one.tenant),
            client: String::new(),
            delay_ms: one.delay.as_millis_f64(),
            bytes_per_s: one.bytes_per_s,
        });
        let mut record = DecisionRecord {
            throttled: throttled.count.into(),
            most_throttled: most.collect(),
            released: released.count.into(),
            some_released: released.first.iter().flatten().map(|&id| name(id)).collect(),
            ..at.with_latency(pool, percentile, reason, *mean_delay)
        };
        record.because = explain::latency(reason, Throttles::Tenants, &record);
        record
    }
}

/// The throttle of a tenant for a latency target. Its reservation is served all the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThrottledState {
    /// Requests it may have in flight, slots that are delayed included: the smallest that any owner set.
    pub slots: u64,
    /// The owner of that, for example `latency`.
    pub slots_owner: String,
    /// Time for which a slot stays empty after a request.
    pub delay_ms: f64,
    /// Reason for the length of the delay, as a sentence.
    pub because: String,
}

/// A guaranteed throughput, and what was decided for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuaranteeState {
    /// The requests that it is about: `all`, `read` or `write`.
    pub of: String,
    /// `bytes` or `requests`.
    pub unit: String,
    /// Guaranteed number each second.
    pub guaranteed_per_s: u64,
    /// The same on all hosts of the cluster; `null` = all is guaranteed here.
    pub total_per_s: Option<u64>,
    /// Number each second that it got in the last interval; `null` before the first.
    pub measured_per_s: Option<f64>,
    /// The limit that was assigned for it. The smallest limit of all owners is in force.
    pub limit_per_s: u64,
    /// Name of the reason, `compensating` for example.
    pub reason: String,
    /// Reason as a sentence.
    pub because: String,
    /// The cause that decided how much it got: `reservation`, or the owner of the smallest limit, `throughput` if it is
    /// this one.
    pub binding: String,
    /// Decisions lately, oldest first.
    pub decisions: Vec<DecisionRecord>,
}

impl GuaranteeState {
    /// The record of a throughput guarantee, with the decisions that were first taken at `since` or later, in seconds since the
    /// start of the program. `of` are pool and tenant; `at` converts an instant to such seconds.
    pub fn of(view: &View<'_>, of: [&str; 2], since: f64, at: impl Fn(Instant) -> f64) -> Self {
        let [pool, tenant] = of.map(str::to_owned);
        let subject = explain::part_of(&tenant, view.scope.name());
        let decision = |entry: &Entry<Decision>| {
            let Decision { limit, binding } = &entry.decision;
            DecisionRecord {
                pool: pool.clone(),
                tenant: tenant.clone(),
                of: view.scope.name().into(),
                reason: limit.reason.name().into(),
                because: explain::guarantee(limit, Some(*binding), &subject),
                set: Some(limit.limit.value() as f64),
                set_in: Unit::from(limit.limit),
                ..DecisionRecord::of(entry, &at)
            }
        };
        Self {
            of: view.scope.name().into(),
            unit: match view.guaranteed {
                Rate::BytesPerS(_) => "bytes",
                Rate::RequestsPerS(_) => "requests",
            }
            .into(),
            guaranteed_per_s: view.guaranteed.value(),
            total_per_s: (view.total != view.guaranteed).then_some(view.total.value()),
            measured_per_s: view.measured,
            limit_per_s: view.limit.limit.value(),
            reason: view.limit.reason.name().into(),
            because: explain::guarantee(&view.limit, Some(view.binding), &subject),
            binding: view.binding.name().into(),
            decisions: view.records.iter().filter(|entry| at(entry.from) >= since).map(decision).collect(),
        }
    }

    /// The requests that the guarantee is about, as a suffix of a rate in texts; empty for all requests.
    pub fn of_what(&self) -> &'static str {
        match self.of.as_str() {
            "read" => " of reads",
            "write" => " of writes",
            _ => "",
        }
    }
}

/// The QoS policy of a tenant, as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QosState {
    /// Requests per second that the tenant gets whenever the tenant has requests.
    pub reservation_iops: Option<u64>,
    /// Payload bytes per second that the tenant gets whenever the tenant has requests.
    pub reservation_bytes_per_s: Option<u64>,
    /// Requests per second that the tenant never exceeds.
    pub limit_iops: Option<u64>,
    /// Payload bytes per second that the tenant never exceeds.
    pub limit_bytes_per_s: Option<u64>,
    /// Share of what reservations leave.
    pub weight: u32,
    /// Unused limit it may save up.
    pub burst_ms: u64,
    /// `normal` or `background`.
    pub priority: String,
}

/// A distribution of durations since the start. Percentiles are upper bounds, at most 12.5 % above.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyState {
    /// Number of latencies counted.
    pub count: u64,
    /// Sum of the latencies.
    pub sum_s: f64,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// The longest, exactly.
    pub max_ms: f64,
    /// Buckets that are not empty: upper bound in seconds and count in this bucket alone, shortest first.
    pub buckets: Vec<(f64, u64)>,
}

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
    /// File or device, if any.
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
    /// Time since the start.
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
    /// The tenant that pays for it.
    pub tenant: String,
    /// The worker that serves it.
    pub worker: u32,
    /// When it was accepted, on the scale of [`State::uptime_s`].
    pub since_s: f64,
    /// When the figures below were taken, on the same scale.
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
    /// Where it is.
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

impl From<&evenkeel_control::histogram::Histogram> for LatencyState {
    fn from(h: &evenkeel_control::histogram::Histogram) -> Self {
        let ms = |q| h.quantile(q).as_millis_f64();
        Self {
            count: h.count(),
            sum_s: h.sum().as_secs_f64(),
            mean_ms: h.mean().as_millis_f64(),
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            max_ms: h.max().as_millis_f64(),
            buckets: h.buckets().map(|(le, count)| (le.as_secs_f64(), count)).collect(),
        }
    }
}

impl From<&evenkeel_control::mclock::Qos> for QosState {
    fn from(qos: &evenkeel_control::mclock::Qos) -> Self {
        Self {
            reservation_iops: set(qos.reservation.iops),
            reservation_bytes_per_s: set(qos.reservation.bytes_per_s),
            limit_iops: set(qos.limit.iops),
            limit_bytes_per_s: set(qos.limit.bytes_per_s),
            weight: qos.weight,
            burst_ms: qos.burst.as_nanos() / 1_000_000,
            priority: if qos.background { "background" } else { "normal" }.into(),
        }
    }
}

impl LimitState {
    /// The record of the binding entries (the lowest limits) of the limits on IOPS and on bytes per second.
    pub fn new(iops: &evenkeel_control::limits::LimitSet, bytes_per_s: &evenkeel_control::limits::LimitSet) -> Self {
        let owner = |set: &evenkeel_control::limits::LimitSet| set.binding().map(|(owner, _)| owner.name().to_owned());
        Self {
            iops: iops.effective(),
            iops_owner: owner(iops),
            bytes_per_s: bytes_per_s.effective(),
            bytes_per_s_owner: owner(bytes_per_s),
        }
    }
}

impl From<&evenkeel_control::admission::Reason> for ReasonData {
    fn from(reason: &evenkeel_control::admission::Reason) -> Self {
        use evenkeel_control::admission::Reason;
        let ms = |d: evenkeel_control::Duration| Some(d.as_millis_f64());
        let named = |kind: &str| Self { kind: kind.into(), ..Self::default() };
        match *reason {
            Reason::Initial => named("initial"),
            Reason::Configured => named("configured"),
            Reason::Idle => named("idle"),
            Reason::Stalled { in_flight_bytes } => Self { in_flight_bytes: Some(in_flight_bytes), ..named("stalled") },
            Reason::LatencyOverTarget { min, target } => {
                Self { min_latency_ms: ms(min), target_ms: ms(target), ..named("latency_over_target") }
            }
            Reason::LatencyUnderTarget { min, target } => {
                Self { min_latency_ms: ms(min), target_ms: ms(target), ..named("latency_under_target") }
            }
            Reason::BudgetNotUsed { peak_bytes } => Self { peak_bytes: Some(peak_bytes), ..named("budget_not_used") },
            Reason::BudgetAtMaximum => named("budget_at_maximum"),
            Reason::TargetExplored { optimum, samples } => {
                Self { optimum_ms: ms(optimum), samples: Some(samples), ..named("target_explored") }
            }
            Reason::TargetFitted { optimum, slope_mib_per_s } => {
                Self { optimum_ms: ms(optimum), slope_mib_per_s: Some(slope_mib_per_s), ..named("target_fitted") }
            }
            Reason::FitDegenerate { samples } => Self { samples: Some(samples), ..named("fit_degenerate") },
            Reason::AppLimited { waited, completions } => {
                Self { waited: Some(waited), completions: Some(completions), ..named("app_limited") }
            }
            Reason::IncreasePays { gain } => Self { factor: Some(gain), ..named("increase_pays") },
            Reason::IncreaseFutile { gain } => Self { factor: Some(gain), ..named("increase_futile") },
            Reason::ReductionFree { loss } => Self { factor: Some(loss), ..named("reduction_free") },
            Reason::ReductionCosts { loss } => Self { factor: Some(loss), ..named("reduction_costs") },
            Reason::Power { power } => Self { factor: Some(power), ..named("power") },
            Reason::QueueEstimated { requests } => Self { factor: Some(requests), ..named("queue_estimated") },
            Reason::LatencyGradient { gradient } => Self { factor: Some(gradient), ..named("latency_gradient") },
        }
    }
}
