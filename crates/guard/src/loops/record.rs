//! The records of the agent and of each enforcement point. Figures, verdicts, targets, guarantees, slots and budgets are the
//! records of a server, under the same names.
//!
//! Units are last in the names. What does not apply is `null`. Clients, groups and figures leave out what is 0, false, empty or
//! `null`: there may be very many.

use evenkeel_policy::health::Health;
use evenkeel_policy::state::{
    AdmissionState, ClusterState, GuaranteeState, LatencyTargetState, SlotsState, TenantSlotsState, is_default,
};
use evenkeel_policy::verdict::Lately;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::At;
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
    /// Time since the agent's start.
    pub uptime_s: f64,
    /// Troubles, worst first.
    #[serde(default)]
    pub health: Health,
    /// Control intervals so far; one a second with OSDs only.
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
    pub last_error_age_s: Option<f64>,
    /// Age of the map of clients and devices; `null` where none is needed.
    pub map_age_s: Option<f64>,
    /// The pools enforced here, by enforcement point.
    pub pools: Vec<PoolState>,
    /// The cluster, if this host is in one.
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
    /// Faults and missing parts, and their cures.
    pub notes: Vec<String>,
    /// Figures of the last interval, verdicts, and the newest reason as a sentence, which is empty where each tenant has its own.
    pub lately: Lately,
    /// Latency target for reads of the pool's devices, if any; its decisions are at `/api/v1/decisions`.
    pub latency_target: Option<LatencyTargetState>,
    /// Reads of the pool's devices; `null` where neither a latency target nor a tenant's limit is enforced.
    pub reads: Option<ReadsState>,
    /// Requests in flight in the pool's devices, where they are counted.
    pub in_flight: u64,
    /// Mean delay of throttled clients or groups for the latency target, weighted by their loads.
    pub mean_delay_ms: f64,
    /// Figures that only this enforcement point has.
    #[serde(flatten)]
    pub at: At,
}

impl PoolState {
    /// The figure of the read latencies that the latency target bounds, in milliseconds, or their mean without a target; `None`
    /// without reads.
    pub fn figure_ms(&self) -> Option<f64> {
        match &self.latency_target {
            Some(target) => target.measured_ms,
            None => self.reads.as_ref()?.latency_ms,
        }
    }

    /// The percentile that the latency target bounds, over the reads of the last 5 to 10 s, in milliseconds; `None` without
    /// reads, and where the target bounds the mean.
    pub fn percentile_ms(&self) -> Option<f64> {
        self.latency_target.as_ref().filter(|target| target.percentile != "mean")?.measured_ms
    }

    /// The control groups of the pool; none at other points than `cgroup`.
    pub fn groups(&self) -> &[GroupState] {
        if let At::Cgroup(at) = &self.at { &at.groups } else { &[] }
    }
}

/// A client, control group or volume of a pool, as all views show it.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Its own name: an address, the path of a group, or the tenant of a volume.
    pub name: &'a str,
    /// The tenant of a group; else the same as `name`.
    pub tenant: &'a str,
    /// Order in which it is throttled for the latency target; empty without a target.
    pub throttle: &'a str,
    /// Delay of its packets or requests for the latency target.
    pub delay_ms: f64,
    /// Requests that are queued.
    pub queued: u64,
    /// Figures, verdicts and throttle.
    pub lately: &'a Lately,
    /// Percentiles of its own reads, where they are known.
    pub percentiles: Option<ReadPercentiles>,
    /// Throughput guarantees.
    pub guarantees: Vec<&'a GuaranteeState>,
    /// Slots of a volume.
    pub slots: Option<&'a TenantSlotsState>,
    /// Queues of the disks of a volume.
    pub queues: &'a [QueueState],
}

impl<'a> Part<'a> {
    const fn new(name: &'a str, tenant: &'a str, lately: &'a Lately) -> Self {
        let (throttle, delay_ms, queued, percentiles) = ("", 0.0, 0, None);
        Self {
            name,
            tenant,
            throttle,
            delay_ms,
            queued,
            lately,
            percentiles,
            guarantees: Vec::new(),
            slots: None,
            queues: &[],
        }
    }

    pub(super) fn of_client(client: &'a ClientState) -> Self {
        let part = Self::new(&client.address, &client.address, &client.lately);
        Self { throttle: &client.throttle, delay_ms: client.delay_ms, ..part }
    }

    pub(super) fn of_group(group: &'a GroupState) -> Self {
        Self {
            throttle: &group.throttle,
            delay_ms: group.delay_ms,
            percentiles: group.read_percentiles,
            guarantees: group.guarantees().collect(),
            ..Self::new(&group.group, &group.tenant, &group.lately)
        }
    }

    pub(super) fn of_volume(volume: &'a VolumeState) -> Self {
        let part = Self::new(&volume.name, &volume.name, &volume.lately);
        Self { queued: volume.queued, slots: Some(&volume.slots), queues: &volume.queues, ..part }
    }
}

/// Reads of a pool's devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadsState {
    /// Reads that are measured: `groups` (of groups that are not noisy), `device` (all, one by one), `statistics` (all, by
    /// the kernel's means), `pressure` (an estimate from `io.pressure` of groups that are not noisy).
    pub measured: String,
    /// Mean latency of these reads in the last interval; `null` if none completed.
    pub latency_ms: Option<f64>,
    /// Percentiles of the reads that are timed one by one; `null` without such reads.
    pub percentiles: Option<ReadPercentiles>,
}

/// A pool with a latency target, whose clients' packets may wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PacketsState {
    /// Bytes read per second in the last interval.
    pub read_bytes_per_s: f64,
    /// Bytes written per second in the last interval.
    pub write_bytes_per_s: f64,
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
#[serde(default)]
pub struct ClientState {
    /// IP address of the client.
    pub address: String,
    /// Names that storage targets know the client by, such as iSCSI initiator names.
    #[serde(skip_serializing_if = "is_default")]
    pub names: Vec<String>,
    /// Order in which the client is throttled for the latency target: `never`, `last`, `normal` or `always`.
    pub throttle: String,
    /// Reason for which the client is never throttled, where that is not the policy's `throttle`.
    #[serde(skip_serializing_if = "is_default")]
    pub exempt_because: Option<String>,
    /// True if the load is not measured: the load of a device that several clients share was divided equally among them.
    #[serde(skip_serializing_if = "is_default")]
    pub load_is_estimated: bool,
    /// Delay of packets to the client.
    #[serde(skip_serializing_if = "is_default")]
    pub delay_ms: f64,
    /// Payload of the last interval, and the throttle. Requests are not counted. `because` explains the client's delay, or why
    /// the client is never throttled; it is empty if neither applies.
    pub lately: Lately,
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
    /// Groups with a guarantee, or of a device with a latency target.
    pub groups: Vec<GroupState>,
}

impl CgroupState {
    /// The figures of a device whose groups have throughput guarantees: those of all groups, and the load of others.
    pub fn sum(&self) -> Lately {
        let sum = sum(self.groups.iter().map(|group| &group.lately));
        Lately { bytes_per_s: sum.bytes_per_s + self.background_bytes_per_s, ..sum }
    }
}

/// The figures of groups or volumes together.
fn sum<'a>(all: impl Iterator<Item = &'a Lately>) -> Lately {
    let mut sum = Lately::default();
    // Of each latency the requests that it is of, and their time.
    let mut timed = [(0.0_f64, 0.0_f64); 3];
    for one in all {
        sum.window_s = sum.window_s.max(one.window_s);
        sum.iops += one.iops;
        sum.bytes_per_s += one.bytes_per_s;
        let latencies = [one.latency_ms, one.queue_latency_ms, one.device_latency_ms];
        for ((iops, total), ms) in timed.iter_mut().zip(latencies) {
            *iops += ms.map_or(0.0, |_| one.iops);
            *total += ms.map_or(0.0, |ms| one.iops * ms);
        }
    }
    let mean = |(iops, total): (f64, f64)| (iops > 0.0).then_some(total / iops);
    let [latency_ms, queue_latency_ms, device_latency_ms] = timed.map(mean);
    Lately { latency_ms, queue_latency_ms, device_latency_ms, ..sum }
}

/// A group with a guarantee, or of a device with a latency target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GroupState {
    /// Name of the tenant that the group belongs to.
    pub tenant: String,
    /// The control group, below `/sys/fs/cgroup`.
    pub group: String,
    /// Guarantee for reads, if there is one.
    #[serde(skip_serializing_if = "is_default")]
    pub read: Option<GuaranteeState>,
    /// Guarantee for writes, if there is one.
    #[serde(skip_serializing_if = "is_default")]
    pub write: Option<GuaranteeState>,
    /// Limits in `io.max` that another program has set; the agent then leaves the group alone.
    #[serde(skip_serializing_if = "is_default")]
    pub foreign_limit: Option<String>,
    /// Entry of `match` by which the group belongs to its tenant: of all that fit, the most specific.
    #[serde(skip_serializing_if = "is_default")]
    pub matched_by: String,
    /// Entries of other tenants that fit the group too, each with its tenant, the most specific first; at most 4. Empty where
    /// only guarantees are enforced.
    #[serde(skip_serializing_if = "is_default")]
    pub also_matched_by: Vec<String>,
    /// Order in which the group is throttled: `never`, `last`, `normal` or `always`; empty where only guarantees are enforced.
    #[serde(skip_serializing_if = "is_default")]
    pub throttle: String,
    /// Reason for which the group is never throttled, where that is not the policy's `throttle`.
    #[serde(skip_serializing_if = "is_default")]
    pub exempt_because: Option<String>,
    /// Wait for the latency target that the limits add to a request of the group.
    #[serde(skip_serializing_if = "is_default")]
    pub delay_ms: f64,
    /// The limits for the latency target, and of the tenant, as in `io.max`; `null` without one.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: Option<String>,
    /// Percentiles of the group's own reads, without those that `io.max` delays; `null` without such reads, where reads of groups
    /// cannot be distinguished, and for groups beyond 128 on a host.
    #[serde(skip_serializing_if = "is_default")]
    pub read_percentiles: Option<ReadPercentiles>,
    /// Load, verdicts on the guarantees, and the throttle. The load of a group with a guarantee is counted in the guarantee's
    /// unit alone. `because` explains the throttle, or why the group is never throttled; it is empty if neither applies.
    pub lately: Lately,
}

impl GroupState {
    /// The guarantees of the group, reads first.
    pub fn guarantees(&self) -> impl Iterator<Item = &GuaranteeState> {
        [&self.read, &self.write].into_iter().flatten()
    }
}

/// An array that hosts share, and the volumes of it that this host uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueDepthState {
    /// Time between two decisions.
    pub period_s: f64,
    /// Division of the array's slots.
    pub slots: SlotsState,
    /// The volumes of this host.
    pub volumes: Vec<VolumeState>,
}

impl QueueDepthState {
    /// The figures of all volumes of this host.
    pub fn sum(&self) -> Lately {
        sum(self.volumes.iter().map(|volume| &volume.lately))
    }
}

/// A volume of an array on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeState {
    /// Name of the tenant that the volume belongs to.
    pub name: String,
    /// The device as configured.
    pub device: String,
    /// Requests of the volume that wait in this host's queues; an estimate where the kernel does not count them.
    pub queued: u64,
    /// Latency target, slots needed, slots granted, and the reason.
    pub slots: TenantSlotsState,
    /// Queues of the disks through which the host reaches the volume.
    pub queues: Vec<QueueState>,
    /// Figures of the last period, with the latency as the kernel measures it, the verdict on the target, and the throttle. Where
    /// the queue's setting is `nr_requests`, the wait for a place in the queue is not included.
    pub lately: Lately,
}

impl VolumeState {
    /// Slots (requests) of the queues that the agent has shortened, together; 0 while no queue is shortened.
    pub fn shortened(&self) -> u64 {
        let is_shorter = |queue: &&QueueState| queue.value.zip(queue.before).is_some_and(|(is, was)| is < was);
        self.queues.iter().filter(is_shorter).filter_map(|queue| queue.value).map(u64::from).sum()
    }
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
    /// The value that another program has set since; the agent changes the setting only after its own value is back.
    pub foreign: Option<String>,
}

/// An OSD of this host. The requests of its `lately` are transactions committed, and the bytes are their cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OsdState {
    /// Path of the OSD's admin socket.
    pub socket: String,
    /// `controlled`, `watched` (nothing is set), `starting`, `absent`, `late`, `foreign` (another program set the throttle and
    /// it is left alone) or `unusable`.
    pub condition: String,
    /// Reason for which the OSD is neither controlled nor watched; `null` if it is controlled or watched.
    pub problem: Option<String>,
    /// The controller with its budget: the cost of transactions that it allows in flight. The cost is their bytes, and the base
    /// cost that BlueStore charges for each. `in_flight_requests` and `base_cost_bytes` are 0: the agent does not know them.
    pub admission: AdmissionState,
    /// Throttle of the OSD: bytes that it allows in flight; `null` until it has answered.
    pub throttle_bytes: Option<u64>,
    /// Transactions that wait at the throttle; a thread of the OSD waits with each.
    pub waiting: u64,
    /// Number of samples of the OSD's counters that were taken.
    pub samples_total: u64,
    /// Samples that were skipped because the one before had not been answered in time.
    pub skipped_total: u64,
    /// Times that the budget was set.
    pub changes_total: u64,
    /// Restarts of the OSD that the agent has seen.
    pub restarts_total: u64,
    /// Questions without a usable answer, and changes that failed.
    pub errors_total: u64,
}

#[cfg(test)]
mod tests {
    use evenkeel_control::response::ClientReason;
    use evenkeel_policy::{explain, verdict};

    use super::*;

    /// Clients that an agent may see.
    const CLIENTS: usize = 100_000;
    /// Bound on an answer that `evenkeel guard status` and `evenkeel top` read, in bytes.
    const MAX_ANSWER_BYTES: usize = 64 << 20;

    fn client() -> ClientState {
        ClientState {
            address: "192.0.2.200".into(),
            throttle: "normal".into(),
            lately: Lately { window_s: 0.25, ..Lately::default() },
            ..ClientState::default()
        }
    }

    fn json(row: &impl Serialize) -> String {
        serde_json::to_string(row).unwrap()
    }

    #[test]
    fn rows_of_idle_clients_and_groups_are_short() {
        let idle = json(&client());
        assert_eq!(idle, r#"{"address":"192.0.2.200","throttle":"normal","lately":{"window_s":0.25}}"#);
        assert_eq!(serde_json::from_str::<ClientState>(&idle).unwrap(), client());
        let lately = client().lately;
        let group = GroupState { tenant: "db".into(), group: "a".into(), lately, ..GroupState::default() };
        let idle = json(&group);
        assert_eq!(idle, r#"{"tenant":"db","group":"a","lately":{"window_s":0.25}}"#);
        assert_eq!(serde_json::from_str::<GroupState>(&idle).unwrap(), group);
    }

    #[test]
    fn a_row_with_every_field_is_read_as_well() {
        let whole = r#"{"address":"192.0.2.200","names":[],"throttle":"normal","exempt_because":null,
            "load_is_estimated":false,"delay_ms":0.0,"lately":{"window_s":0.25,"iops":0.0,"bytes_per_s":0.0,
            "by_reservation_iops":0.0,"by_weight_iops":0.0,"errors":0,"latency_ms":null,"queue_latency_ms":null,
            "device_latency_ms":null,"p99_ms":null,"targets":[],"throttled_by":null,"because":""}}"#;
        assert_eq!(serde_json::from_str::<ClientState>(whole).unwrap(), client());
        let schema = schema();
        for kind in ["ClientState", "GroupState", "Lately"] {
            let kind = &schema["$defs"][kind];
            assert!(kind["properties"].is_object() && kind["required"].is_null(), "{kind:#}");
        }
    }

    #[test]
    fn very_many_clients_fit_into_an_answer_even_if_all_are_throttled() {
        let (delay_ms, because) = (1_234.567_890_123, explain::throttled(&ClientReason::Owed));
        let throttled_by = verdict::delayed(delay_ms, &because);
        let throttled = ClientState {
            names: vec!["iqn.1993-08.org.debian:01:0123456789ab".into()],
            load_is_estimated: true,
            delay_ms,
            lately: Lately { bytes_per_s: 123_456_789.012_345, throttled_by, because, ..client().lately },
            ..client()
        };
        let row = json(&throttled);
        assert!(CLIENTS * (row.len() + 1) < MAX_ANSWER_BYTES, "{} bytes: {row}", row.len());
        let read: ClientState = serde_json::from_str(&row).unwrap();
        assert_eq!((read.names, read.lately.throttled_by), (throttled.names, throttled.lately.throttled_by));
    }

    #[test]
    fn latencies_of_volumes_are_weighted_by_their_requests() {
        let volume = |iops: f64, parts: Option<[f64; 2]>| {
            let lately = Lately {
                iops,
                latency_ms: parts.map(|[queue, device]| queue + device),
                queue_latency_ms: parts.map(|[queue, _]| queue),
                device_latency_ms: parts.map(|[_, device]| device),
                ..Lately::default()
            };
            VolumeState { lately, ..VolumeState::default() }
        };
        let volumes = vec![volume(30.0, Some([1.0, 3.0])), volume(10.0, Some([5.0, 7.0])), volume(5.0, None)];
        let sum = QueueDepthState { volumes, ..QueueDepthState::default() }.sum();
        let latencies = [sum.latency_ms, sum.queue_latency_ms, sum.device_latency_ms];
        assert_eq!((sum.iops, latencies), (45.0, [Some(6.0), Some(2.0), Some(4.0)]));
    }
}
