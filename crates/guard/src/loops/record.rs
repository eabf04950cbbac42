//! The records of the agent and of each enforcement point.
//!
//! Units are last in the names. What does not apply is `null`.

use evenkeel_policy::config::Enforcement;
use evenkeel_policy::decision::Unit;
use evenkeel_policy::figures::{count, megabytes, short};
use evenkeel_policy::health::Health;
use evenkeel_policy::state::{ClusterState, TenantSlotsState};
use evenkeel_policy::verdict::{self, Kind, Target};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::discovery::Note;
use crate::sensor::cache::CacheState;

/// The JSON schema of [`State`] (draft 2020-12).
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(State).to_value()
}

/// The agent at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// Version of the program.
    pub version: String,
    /// Boot ID of the host; empty if unknown.
    #[serde(default)]
    pub boot_id: String,
    /// Time since the start.
    pub uptime_s: f64,
    /// Troubles, worst first.
    #[serde(default)]
    pub health: Health,
    /// Decisions taken, each for all pools; of OSDs alone, seconds.
    pub ticks_total: u64,
    /// Time between decisions.
    pub interval_ms: f64,
    /// True if decisions take effect.
    pub acting: bool,
    /// Explanation of `acting`, as a sentence.
    pub acting_reason: String,
    /// Decisions more than half an interval late.
    pub late_ticks_total: u64,
    /// Failed measurements and changes.
    pub errors_total: u64,
    /// The last error.
    pub last_error: Option<String>,
    /// Time since the last error.
    #[serde(default)]
    pub last_error_age_s: Option<f64>,
    /// Age of the map of clients and devices; `null` where none is needed.
    #[serde(default)]
    pub map_age_s: Option<f64>,
    /// The pools enforced here, by enforcement point.
    pub pools: Vec<PoolState>,
    /// The cluster, if this host is in one.
    #[serde(default)]
    pub cluster: Option<ClusterState>,
    /// The uncertain parts of the map of clients and devices.
    pub notes: Vec<Note>,
}

/// A pool at one enforcement point of this host; of Ceph, an OSD.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolState {
    /// Name in the configuration; of an OSD `osd.3`.
    pub name: String,
    /// Method of the controller.
    pub method: String,
    /// Name of the newest reason; empty where each tenant has its own.
    pub reason: String,
    /// The reason as a sentence.
    pub because: String,
    /// Missing or wrong things, and their cures.
    pub notes: Vec<String>,
    /// The rest, by enforcement point.
    #[serde(flatten)]
    pub at: At,
}

/// An enforcement point's figures of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "point", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "there is one for each pool")]
pub enum At {
    /// Packets of clients wait for a latency target.
    Packets(PacketsState),
    /// Control groups are limited for throughput guarantees, or for a latency target.
    Cgroup(CgroupState),
    /// Queues of shared disks are shortened.
    QueueDepth(QueueDepthState),
    /// The throttle of an OSD is set.
    Osd(OsdState),
}

impl Default for At {
    fn default() -> Self {
        Self::Packets(PacketsState::default())
    }
}

macro_rules! at_point {
    ($($name:ident $variant:ident $state:ty),*) => {
        impl State {
            $(
                #[doc = concat!("The pools at the point `", stringify!($name), "`, with what is known of them there.")]
                pub fn $name(&self) -> impl Iterator<Item = (&PoolState, &$state)> {
                    self.pools.iter().filter_map(|pool| if let At::$variant(at) = &pool.at { Some((pool, at)) } else { None })
                }
            )*
        }
    };
}
at_point!(packets Packets PacketsState, cgroups Cgroup CgroupState, queue_depths QueueDepth QueueDepthState, osds Osd OsdState);

impl PoolState {
    /// The enforcement point.
    pub const fn point(&self) -> Enforcement {
        match self.at {
            At::Packets(_) => Enforcement::Packets,
            At::Cgroup(_) => Enforcement::Cgroup,
            At::QueueDepth(_) => Enforcement::QueueDepth,
            At::Osd(_) => Enforcement::Osd,
        }
    }
}

macro_rules! latency_figure {
    ($($state:ty),*) => {
        $(
            impl $state {
                /// The figure that the latency target bounds, in milliseconds; `None` without reads.
                pub fn figure_ms(&self) -> Option<f64> {
                    if self.percentile == "mean" { self.read_latency_ms } else { self.read_percentile_ms }
                }

                /// 99th percentile of the read latencies, in milliseconds; `None` if reads are not timed one by one.
                pub fn p99_ms(&self) -> Option<f64> {
                    let bounded = self.read_percentile_ms.filter(|_| self.percentile == "p99");
                    self.read_percentiles.map(|of| of.p99_ms).or(bounded)
                }
            }
        )*
    };
}
latency_figure!(PacketsState, LocalState);

/// A latency target with its verdict.
fn latency_target(percentile: &str, target_ms: f64, figure_ms: Option<f64>, reason: &str) -> Target {
    Target {
        what: format!("{percentile} < {} ms", short(target_ms)),
        kind: Kind::Latency,
        verdict: verdict::latency(target_ms, figure_ms, reason),
    }
}

impl PacketsState {
    /// The latency target with its verdict. `reason`: name of the pool's newest reason.
    pub fn target(&self, reason: &str) -> Target {
        latency_target(&self.percentile, self.target_ms, self.figure_ms(), reason)
    }
}

impl LocalState {
    /// The latency target with its verdict; `None` without a target. `reason`: name of the pool's newest reason.
    pub fn target(&self, reason: &str) -> Option<Target> {
        let target_ms = self.target_ms?;
        Some(latency_target(&self.percentile, target_ms, self.figure_ms(), reason))
    }
}

impl DirectionState {
    /// A rate in the guarantee's unit, as text.
    pub fn rate(&self, value: f64) -> String {
        if self.unit == Unit::BytesPerS { megabytes(value) + " MB/s" } else { count(value) + " IOPS" }
    }

    /// The guarantee with its verdict.
    pub fn target(&self) -> Target {
        let verdict = verdict::guarantee(self.guaranteed, Some(self.measured), &self.reason);
        Target { what: self.rate(self.guaranteed), kind: Kind::Guarantee, verdict }
    }
}

/// A pool with a latency target, whose clients' packets may wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PacketsState {
    /// Latency target for reads of the pool's devices.
    pub target_ms: f64,
    /// Figure of the read latencies that the target bounds: `mean`, or a percentile such as `p99`.
    pub percentile: String,
    /// Mean latency of the reads of the last interval; `null` if none completed.
    pub read_latency_ms: Option<f64>,
    /// Percentile that the target bounds, over the reads of the last 5 to 10 s, exact to 3 %; `null` without reads, and where the
    /// target bounds the mean.
    pub read_percentile_ms: Option<f64>,
    /// Percentiles of the reads that are timed one by one; `null` without reads, and where the target bounds the mean.
    #[serde(default)]
    pub read_percentiles: Option<ReadPercentiles>,
    /// Requests completed per second in the last interval.
    #[serde(default)]
    pub iops: f64,
    /// Mean latency of all requests of the last interval; `null` if none completed.
    #[serde(default)]
    pub latency_ms: Option<f64>,
    /// Bytes read per second in the last interval.
    pub read_bytes_per_s: f64,
    /// Bytes written per second in the last interval.
    pub write_bytes_per_s: f64,
    /// Requests in flight in the pool's devices.
    pub in_flight: u64,
    /// Mean delay of packets to throttled clients, weighted by the clients' loads.
    pub mean_delay_ms: f64,
    /// Kind of packets to clients that are delayed: `acknowledgements`, `data` or `all`.
    pub packets: String,
    /// Devices whose latency is measured.
    pub devices: Vec<DeviceState>,
    /// Clients that use the pool's devices.
    pub clients: Vec<ClientState>,
}

/// Percentiles of read latencies over the last 5 to 10 s, exact to 3 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadPercentiles {
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
}

/// A device of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceState {
    /// The kernel's name of the device, for example `sda`.
    pub name: String,
    /// Mean latency of the reads of the last interval; `null` if none completed.
    pub read_latency_ms: Option<f64>,
    /// Mean latency of the writes of the last interval; `null` if none completed.
    pub write_latency_ms: Option<f64>,
    /// Requests completed per second.
    #[serde(default)]
    pub iops: f64,
    /// Mean latency of all requests of the last interval; `null` if none completed.
    #[serde(default)]
    pub latency_ms: Option<f64>,
    /// Bytes read per second.
    pub read_bytes_per_s: f64,
    /// Bytes written per second.
    pub write_bytes_per_s: f64,
    /// Requests in flight.
    pub in_flight: u64,
}

/// A client of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientState {
    /// IP address of the client.
    pub address: String,
    /// Names that storage targets know the client by, such as iSCSI initiator names.
    pub names: Vec<String>,
    /// Order in which the client is throttled for the latency target: `never`, `last`, `normal` or `always`.
    pub throttle: String,
    /// Reason for which the client is never throttled, where that is not the policy's `throttle`.
    pub exempt_because: Option<String>,
    /// Load of the client, in payload bytes per second of the last interval.
    pub bytes_per_s: f64,
    /// True if the load is not measured: the load of a device that several clients share was divided equally among them.
    pub load_is_estimated: bool,
    /// Delay of packets to the client.
    pub delay_ms: f64,
    /// Reason for the length of the delay; empty if the client is not throttled.
    pub because: String,
}

/// A device whose control groups have throughput guarantees, or a latency target or limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CgroupState {
    /// The device as configured.
    pub device: String,
    /// `dm-cache`, `dm-writecache`, `bcache` or `other`; empty while the device is not there.
    pub kind: String,
    /// Number (`major:minor`) of the device that groups use.
    pub device_number: String,
    /// Number of the fast device below that device, where it is known.
    pub fast_number: Option<String>,
    /// Number of the slow device below that device.
    pub slow_number: String,
    /// Assumed highest rate of the slow device; `null` before the agent has seen the device busy.
    pub slow_bytes_per_s: Option<f64>,
    /// True if decisions use `slow_bytes_per_s`.
    pub slow_is_trusted: bool,
    /// Rate of the slow device in the last period that no guarantee accounts for: write-back, promotion, other groups.
    pub background_bytes_per_s: f64,
    /// Figures that the cache itself counts, where it does.
    pub cache: Option<CacheState>,
    /// Latency of the device, with its target; `null` where the pool is for throughput guarantees.
    #[serde(default)]
    pub latency: Option<LocalState>,
    /// Groups with a guarantee, or of a device with a latency target.
    pub groups: Vec<GroupState>,
}

/// A device of this host whose noisy control groups are throttled for a latency target, or limited for tenants' limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalState {
    /// Latency target for reads; `null` where only tenants' limits are enforced.
    pub target_ms: Option<f64>,
    /// Figure of the read latencies that the target bounds: `mean` (also without a target), or a percentile such as `p99`.
    pub percentile: String,
    /// Reads that are measured: `groups` (of groups that are not noisy), `device` (all, one by one), `statistics` (all, by
    /// the kernel's means), `pressure` (an estimate from `io.pressure` of groups that are not noisy).
    pub measured: String,
    /// Mean latency of these reads in the last interval; `null` if none completed.
    pub read_latency_ms: Option<f64>,
    /// Percentile that the target bounds, over the reads of the last 5 to 10 s; `null` without reads, and where the target
    /// bounds the mean.
    pub read_percentile_ms: Option<f64>,
    /// Percentiles of the reads that are timed one by one; `null` without such reads.
    #[serde(default)]
    pub read_percentiles: Option<ReadPercentiles>,
    /// Requests of the device completed per second in the last interval.
    pub iops: f64,
    /// Bytes that the device read and wrote per second in the last interval.
    pub bytes_per_s: f64,
    /// Requests in flight in the device.
    pub in_flight: u64,
    /// Mean wait that limits add to a request of a noisy group, weighted by the groups' loads.
    pub mean_delay_ms: f64,
}

/// A control group of a device with a latency target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupThrottleState {
    /// Order in which the group is throttled: `never`, `last`, `normal` or `always`.
    pub throttle: String,
    /// Reason for which the group is never throttled, where that is not the policy's `throttle`.
    pub exempt_because: Option<String>,
    /// Bytes that the group read and wrote per second.
    pub bytes_per_s: f64,
    /// Requests of the group per second.
    pub iops: f64,
    /// Wait that the limits add to a request of the group.
    pub delay_ms: f64,
    /// Percentiles of the group's own reads, without those that `io.max` delays; `null` without such reads, where reads of groups
    /// cannot be distinguished, and for groups beyond 128 on a host.
    #[serde(default)]
    pub read_percentiles: Option<ReadPercentiles>,
    /// The limits, as in `io.max`; `null` while the group is not throttled.
    pub limits: Option<String>,
    /// Reason for the present throttle of the group; empty if it is not throttled.
    pub because: String,
}

/// A group with a guarantee, or of a device with a latency target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupState {
    /// Name of the tenant that the group belongs to.
    pub tenant: String,
    /// The control group, below `/sys/fs/cgroup`.
    pub group: String,
    /// Guarantee for reads, if there is one.
    pub read: Option<DirectionState>,
    /// Guarantee for writes, if there is one.
    pub write: Option<DirectionState>,
    /// Limits in `io.max` that another program has set; the agent then leaves the group alone.
    pub foreign_limit: Option<String>,
    /// Entry of `match` by which the group belongs to its tenant: of all that fit, the most specific.
    #[serde(default)]
    pub matched_by: String,
    /// Entries of other tenants that fit the group too, each with its tenant, the most specific first; at most 4. Empty where
    /// only guarantees are enforced.
    #[serde(default)]
    pub also_matched_by: Vec<String>,
    /// Load and limits for the device's latency target; `null` for a group with a guarantee.
    #[serde(default)]
    pub latency: Option<GroupThrottleState>,
}

/// One direction of a guarantee.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectionState {
    /// Unit of the rates below.
    pub unit: Unit,
    /// The guaranteed rate.
    pub guaranteed: f64,
    /// The rate that is guaranteed on all hosts of the cluster together; `null` = all is guaranteed here.
    #[serde(default)]
    pub total: Option<f64>,
    /// The rate in the last period.
    pub measured: f64,
    /// Part of the bytes of this direction that reached the slow device in the last period, 0 to 1; `null` without I/O.
    pub miss_rate: Option<f64>,
    /// Limit that the controller has assigned.
    pub limit: f64,
    /// Name of the reason for the limit.
    pub reason: String,
    /// The reason as a sentence.
    pub because: String,
}

/// An array that hosts share, and the volumes of it that this host uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueDepthState {
    /// Time between two decisions.
    pub period_s: f64,
    /// True if slots are decided together with the other hosts of the cluster at present.
    pub clustered: bool,
    /// All slots together, on all hosts; `null` = no bound, or nothing decided yet.
    pub total_slots: Option<f64>,
    /// Factor by which all latency targets could be multiplied and just be met: up to 1 they are met. `null` without targets, or
    /// where a factor of ten would not do.
    pub tightness: Option<f64>,
    /// The volumes of this host.
    pub volumes: Vec<VolumeState>,
}

/// A volume of an array on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeState {
    /// Name of the tenant that the volume belongs to.
    pub name: String,
    /// The device as configured.
    pub device: String,
    /// Requests completed per second in the last period.
    pub iops: f64,
    /// Payload bytes per second in the last period.
    pub bytes_per_s: f64,
    /// Mean latency of the last period as the kernel measures it; `null` without requests. Where the queue's setting is
    /// `nr_requests`, the wait for a place in the queue is not included.
    pub latency_ms: Option<f64>,
    /// Requests of the volume that wait in this host's queues; an estimate where the kernel does not count them.
    pub queued: u64,
    /// Latency target, slots needed, slots granted, and the reason.
    pub slots: TenantSlotsState,
    /// Queues of the disks through which the host reaches the volume.
    pub queues: Vec<QueueState>,
}

/// A disk's queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueState {
    /// The kernel's name of the disk.
    pub disk: String,
    /// `queue_depth` or `nr_requests`.
    pub setting: String,
    /// Number of hardware queues of the disk, each of which has the length `value`.
    pub hardware_queues: u32,
    /// The setting's value; `null` before it was read.
    pub value: Option<u32>,
    /// Value of the setting before the agent changed it; the agent never sets more.
    pub before: Option<u32>,
    /// Times that the agent has changed the setting since its start.
    pub changes_total: u64,
    /// The value that another program has set since: the agent leaves it alone until its own value is back.
    pub foreign: Option<String>,
}

/// An OSD's figures in the last sampling interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Mean time from passing the throttle to being committed; `null` if nothing was committed.
    pub store_latency_ms: Option<f64>,
    /// Transactions committed per second.
    pub commits_per_s: f64,
    /// Cost of the committed transactions per second: bytes, and the base cost that BlueStore charges for each.
    pub cost_bytes_per_s: f64,
    /// Cost of the transactions in flight.
    pub in_flight_bytes: u64,
    /// Transactions that wait at the throttle; a thread of the OSD waits with each.
    pub waiting: u64,
}

/// An OSD of this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OsdState {
    /// Path of the OSD's admin socket.
    pub socket: String,
    /// `controlled`, `watched` (nothing is set), `starting`, `absent`, `late`, `foreign` (another program set the throttle and
    /// it is left alone) or `unusable`.
    pub condition: String,
    /// Reason for which the OSD is neither controlled nor watched; `null` if it is.
    pub problem: Option<String>,
    /// Budget of the controller: bytes that it allows in flight.
    pub budget_bytes: u64,
    /// Throttle of the OSD: bytes that it allows in flight; `null` until it has answered.
    pub throttle_bytes: Option<u64>,
    /// Latency that the controller aims at, if it has an aim.
    pub target_ms: Option<f64>,
    /// The figures of the last sampling interval.
    pub measured: Measured,
    /// Samples taken.
    pub samples_total: u64,
    /// Samples that were skipped because the one before had not been answered in time.
    pub skipped_total: u64,
    /// Times that the budget was set.
    pub changes_total: u64,
    /// Times that the OSD was seen to have started anew.
    pub restarts_total: u64,
    /// Questions without a usable answer, and changes that failed.
    pub errors_total: u64,
}
