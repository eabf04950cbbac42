//! The records of the agent and of each enforcement point.
//!
//! Units are last in the names. What does not apply is `null`.

use evenkeel_policy::config::Enforcement;
use evenkeel_policy::decision::Unit;
use evenkeel_policy::state::{ClusterState, TenantSlotsState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::discovery::Note;

/// The JSON schema of [`State`] (draft 2020-12).
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(State).to_value()
}

/// The agent at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// Version of the program.
    pub version: String,
    /// Time since the start.
    pub uptime_s: f64,
    /// Decisions taken, each for all pools; of OSDs alone, seconds.
    pub ticks_total: u64,
    /// Time between decisions.
    pub interval_ms: f64,
    /// True if decisions take effect.
    pub acting: bool,
    /// Why not, or how, as a sentence.
    pub acting_reason: String,
    /// Decisions more than half an interval late.
    pub late_ticks_total: u64,
    /// Failed measurements and changes.
    pub errors_total: u64,
    /// The last error.
    pub last_error: Option<String>,
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
pub enum At {
    /// Packets of clients wait for a latency target.
    Packets(PacketsState),
    /// Control groups are limited for throughput guarantees.
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

/// A pool with a latency target, whose clients' packets may wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PacketsState {
    /// The target for the latency of reads.
    pub target_ms: f64,
    /// Which figure of the latencies that is: `mean`, or for example `p99`.
    pub percentile: String,
    /// Mean latency of the reads of the last interval; `null` if none completed.
    pub read_latency_ms: Option<f64>,
    /// That percentile of the reads of the last 5 to 10 s, to 3 %; `null` without reads, and for a target for the mean.
    pub read_percentile_ms: Option<f64>,
    /// Bytes read per second in the last interval.
    pub read_bytes_per_s: f64,
    /// Bytes written per second in the last interval.
    pub write_bytes_per_s: f64,
    /// Requests in flight in its devices.
    pub in_flight: u64,
    /// Mean delay of those throttled, weighted by their load.
    pub mean_delay_ms: f64,
    /// Which packets wait: `acknowledgements`, `data` or `all`.
    pub packets: String,
    /// Devices measured.
    pub devices: Vec<DeviceState>,
    /// Clients that reach it.
    pub clients: Vec<ClientState>,
}

/// A device of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceState {
    /// The kernel's name.
    pub name: String,
    /// Mean latency of the reads of the last interval; `null` if none completed.
    pub read_latency_ms: Option<f64>,
    /// Mean latency of the writes of the last interval; `null` if none completed.
    pub write_latency_ms: Option<f64>,
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
    /// Its address.
    pub address: String,
    /// Names that targets know it by.
    pub names: Vec<String>,
    /// The order in which it is throttled for the latency target: `never`, `last`, `normal` or `always`.
    pub throttle: String,
    /// Why it is never throttled, if not because an operator said so.
    pub exempt_because: Option<String>,
    /// Its load.
    pub bytes_per_s: f64,
    /// True if the load is an equal part of what a device shared with others did, because nothing more is known.
    pub load_is_estimated: bool,
    /// How long what is sent to it waits.
    pub delay_ms: f64,
    /// Why so long; empty if it is not throttled.
    pub because: String,
}

/// A device whose control groups have throughput guarantees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CgroupState {
    /// The device as configured.
    pub device: String,
    /// `dm-cache`, `dm-writecache`, `bcache` or `other`; empty while the device is not there.
    pub kind: String,
    /// Number of the device that groups use.
    pub device_number: String,
    /// Number of the fast device below it, where that is known.
    pub fast_number: Option<String>,
    /// Number of the slow device below it.
    pub slow_number: String,
    /// The assumed rate of the slow device; `null` before it was seen busy.
    pub slow_bytes_per_s: Option<f64>,
    /// True if decisions rest on it.
    pub slow_is_trusted: bool,
    /// The slow device's rate in the last period without a guarantee: write-back, promotion, other groups.
    pub background_bytes_per_s: f64,
    /// The cache's own figures, where it has them.
    pub cache: Option<CacheState>,
    /// Groups with a guarantee.
    pub groups: Vec<GroupState>,
}

/// A cache's own figures since it was set up, of all that use it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheState {
    /// Reads that the fast device answered; of bcache all requests that it counts.
    pub read_hits_total: Option<u64>,
    /// Reads that it did not.
    pub read_misses_total: Option<u64>,
    /// Writes that the fast device took.
    pub write_hits_total: Option<u64>,
    /// Writes that it did not.
    pub write_misses_total: Option<u64>,
    /// Bytes that are on the fast device alone.
    pub dirty_bytes: Option<u64>,
    /// The fault, in the cache's own words.
    pub trouble: Option<String>,
}

/// A group with a guarantee.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupState {
    /// Name of its tenant.
    pub tenant: String,
    /// The control group, below `/sys/fs/cgroup`.
    pub group: String,
    /// Reads, if a throughput is guaranteed for them.
    pub read: Option<DirectionState>,
    /// Writes, likewise.
    pub write: Option<DirectionState>,
    /// Limits that another program has set: this group is left alone.
    pub foreign_limit: Option<String>,
}

/// One direction of a guarantee.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectionState {
    /// Unit of the three rates below.
    pub unit: Unit,
    /// The guaranteed rate.
    pub guaranteed: f64,
    /// The rate in the last period.
    pub measured: f64,
    /// Part of its bytes that reached the slow device in the last period, 0 to 1; `null` without I/O.
    pub miss_rate: Option<f64>,
    /// The limit that is assigned.
    pub limit: f64,
    /// Why, for programs.
    pub reason: String,
    /// Why, as a sentence.
    pub because: String,
}

/// An array that hosts share, and the volumes of it that this host uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueDepthState {
    /// How often is decided.
    pub period_s: f64,
    /// True if other hosts have a say at present.
    pub clustered: bool,
    /// All slots together, on all hosts; `null` = no bound, or nothing decided yet.
    pub total_slots: Option<f64>,
    /// By how much all targets could be scaled and still be met; `null` without targets, or where ten times would not do.
    pub tightness: Option<f64>,
    /// The volumes of this host.
    pub volumes: Vec<VolumeState>,
}

/// A volume of an array on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeState {
    /// Name of its tenant.
    pub name: String,
    /// The device as configured.
    pub device: String,
    /// Requests completed per second in the last period.
    pub iops: f64,
    /// Payload bytes per second in the last period.
    pub bytes_per_s: f64,
    /// Mean latency of the last period as the kernel measures it; `null` without requests. Where the setting is
    /// `nr_requests`, without the wait for a place.
    pub latency_ms: Option<f64>,
    /// Requests waiting at this host; where waiting does not show, an estimate.
    pub queued: u64,
    /// Target, need, slots and why.
    pub slots: TenantSlotsState,
    /// The queues that it is reached through.
    pub queues: Vec<QueueState>,
}

/// A disk's queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueState {
    /// The kernel's name of the disk.
    pub disk: String,
    /// `queue_depth` or `nr_requests`.
    pub setting: String,
    /// So many hardware queues have this length each.
    pub hardware_queues: u32,
    /// The setting's value; `null` before it was read.
    pub value: Option<u32>,
    /// The value before us, which is never exceeded.
    pub before: Option<u32>,
    /// Times that it was changed since the start.
    pub changes_total: u64,
    /// The value that another program has set since: the agent leaves it alone until its own value is back.
    pub foreign: Option<String>,
}

/// An OSD's figures in the last sampling interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Mean time from passing the throttle to being committed; `null` if nothing was committed.
    pub store_latency_ms: Option<f64>,
    /// Transactions committed.
    pub commits_per_s: f64,
    /// Their cost: bytes, and the base that BlueStore charges.
    pub cost_bytes_per_s: f64,
    /// Cost in flight.
    pub in_flight_bytes: u64,
    /// Transactions that wait at the throttle, and with each of them a thread of the OSD.
    pub waiting: u64,
}

/// An OSD of this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OsdState {
    /// Its admin socket.
    pub socket: String,
    /// `controlled`, `watched` (nothing is set), `starting`, `absent`, `late`, `foreign` (another program set the throttle and
    /// it is left alone) or `unusable`.
    pub condition: String,
    /// Why, if it is neither controlled nor watched.
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
