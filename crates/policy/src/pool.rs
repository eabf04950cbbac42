//! A pool of the policy: a shared device whose capacity the tenants compete for.

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::mclock::CostModel;
use evenkeel_control::pool::target;
use evenkeel_control::response;
use evenkeel_control::slots::{self, Method as Slots};
use evenkeel_model::store::StoreParams;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guarantee::{CachedDevice, GuaranteeTuning};
use crate::target::{Method, Noisy, default_noisy_above};
use crate::tenant::{Latency, Limit};
use crate::units::{Bytes, Duration};

/// Shortest interval between two decisions for a pool's latency target.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Length of the interval between two decisions as a multiple of the latency target, within 100 ms to 10 s, so that most
/// requests that are measured in an interval began in it.
const INTERVAL_TARGETS: u64 = 2;

/// A shared device that saturates: one scheduler and one admission control in front of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// Devices on hosts of `guard`: `["/dev/vg1/lv1"]`, `["vg1"]` (a volume group), `["osd:*"]`; for latency targets of control
    /// groups also the path of a mounted file system. Default: those of the volume group, array or disk with the pool's name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Latency target of reads: `{ target = "20ms", percentile = 99, of = "reads" }`; `percentile` defaults to "mean".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Most that the pool dispatches: `iops`, `bytes_per_s`, `when`, `burst` (unused limit saved up, as time at its rate; "0s"
    /// costs throughput).
    pub limit: Limit,
    /// Longest extra wait of a throttled request.
    pub max_delay: Duration,
    /// Enforcement points: "queue" of `serve`, the others of `guard`. Default: wherever it applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce: Option<Vec<Enforcement>>,
    /// Further settings.
    pub tuning: Tuning,
    /// Modelled device, for volumes with `backend = "emulate"`.
    #[serde(deserialize_with = "evenkeel_model::preset::read_some", skip_serializing_if = "Option::is_none")]
    pub emulate: Option<StoreParams>,
}

/// Methods and settings by which a pool enforces its policy. The defaults suit most devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tuning {
    /// Order of requests.
    pub scheduler: Scheduler,
    /// Bound on what may be in flight.
    pub admission: Admission,
    /// Least cost of a request beside its payload; more where measured, while requests wait for the pool's budget.
    pub base_cost: Bytes,
    /// Cost of a written byte in percent of a read one, for weights; 1 to 10000.
    #[schemars(range(min = 1, max = 10_000))]
    pub write_cost_percent: u32,
    /// Age in flight at which a request is overdue.
    pub stall_report_after: Duration,
    /// Controller of the latency target; "pid": as published.
    pub method: Method,
    /// Load that makes a tenant noisy.
    pub noisy: Noisy,
    /// For "pid": noisy above so many bytes/s.
    pub noisy_above: Bytes,
    /// "needs": bounds requests in flight for tenants' `latency` targets, alone or in a cluster; for comparison "rwd", "parda",
    /// on one host "drg".
    pub slots: Slots,
    /// Mean device latency for slots. Default: found by "needs", else half of the smallest target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_latency: Option<Duration>,
    /// Most slots of all hosts together; the total of "rwd".
    #[schemars(range(min = 1, max = 1_000_000))]
    pub slots_most: u32,
    /// Control interval without a cluster, "100ms" to "60s". Default: 1 s; 100 ms for "needs" in `serve`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_period: Option<Duration>,
    /// For `guard`: parts of a cached device, `{ slow = "/dev/sdb", fast = "/dev/nvme0n1", slow_bytes_per_s = "150MB" }`.
    /// Default: found.
    pub cache: CachedDevice,
    /// For `guard`: throughput guarantees of control groups.
    pub guarantee: GuaranteeTuning,
}

/// An enforcement point: a place where requests are counted and slowed down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// The queue of `evenkeel serve`.
    #[default]
    Queue,
    /// Departure times of packets to clients of this host's targets.
    Packets,
    /// Limits of control groups.
    Cgroup,
    /// Lengths of the queues of this host's disks.
    QueueDepth,
    /// Throttles of Ceph's OSDs.
    Osd,
}

evenkeel_control::named!(Enforcement: Queue "queue", Packets "packets", Cgroup "cgroup", QueueDepth "queue_depth",
    Osd "osd");

/// The order of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// Reservation, weight and limit of each tenant.
    #[default]
    Mclock,
    /// First come, first served, without tenants' reservations, weights, limits and guarantees.
    None,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            latency: None,
            limit: Limit::default(),
            max_delay: Duration::from_secs(2),
            enforce: None,
            tuning: Tuning::default(),
            emulate: None,
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            scheduler: Scheduler::Mclock,
            admission: Admission::default(),
            base_cost: Bytes(4_000),
            write_cost_percent: 100,
            stall_report_after: Duration::from_secs(10),
            method: Method::Adaptive,
            noisy: Noisy::Writers,
            noisy_above: default_noisy_above(),
            slots: Slots::None,
            slots_latency: None,
            slots_most: 4_096,
            slots_period: None,
            cache: CachedDevice::default(),
            guarantee: GuaranteeTuning::default(),
        }
    }
}

impl Pool {
    /// The controller's configuration for the pool's latency target; `None` without a target.
    pub(crate) fn target(&self) -> Option<target::Config> {
        let (latency, tuning) = (self.latency?, &self.tuning);
        let target = latency.target;
        let published = tuning.method.published(target);
        let interval = Duration::from_nanos(target.as_nanos().saturating_mul(INTERVAL_TARGETS));
        Some(target::Config {
            response: response::Config {
                interval: interval.clamp(SHORTEST_INTERVAL, Duration::from_secs(10)),
                // The published method is in classes; otherwise any delay will do.
                step: if tuning.method == Method::Pid { published.step } else { Duration::ZERO },
                max_delay: self.max_delay,
                noisy_bytes_per_s: tuning.noisy_above.0,
                ..published
            },
            statistic: latency.percentile.into(),
            load: tuning.noisy.into(),
        })
    }

    /// The controller's configuration for the pool's slots; `None` if slots are not used. `period` is the reporting period of the
    /// cluster, if the host is in one.
    pub(crate) fn slots(&self, period: Option<Duration>) -> Option<slots::Config> {
        let tuning = &self.tuning;
        if tuning.slots == Slots::None {
            return None;
        }
        let published = || slots::Config::published(tuning.slots, Duration::ZERO, 0.0).period;
        let own = if tuning.slots == Slots::Needs { slots::Config::NEEDS.period } else { published() };
        let own = tuning.slots_period.map_or(own, Into::into);
        let period = period.unwrap_or(own);
        Some(slots::Config::configured(tuning.slots, period, tuning.slots_latency, tuning.slots_most))
    }
}

impl From<&Pool> for evenkeel_control::pool::Config {
    fn from(pool: &Pool) -> Self {
        let tuning = &pool.tuning;
        let base = u32::try_from(tuning.base_cost.0).unwrap_or(u32::MAX);
        Self {
            scheduler: match tuning.scheduler {
                Scheduler::Mclock => evenkeel_control::pool::Scheduler::Mclock,
                Scheduler::None => evenkeel_control::pool::Scheduler::None,
            },
            admission: tuning.admission,
            base_cost_bytes: base,
            cost: CostModel { base_bytes: base, write_percent: tuning.write_cost_percent },
            limit: pool.limit.in_force().into(),
            limit_burst: pool.limit.burst,
            target: pool.target(),
            slots: pool.slots(None),
        }
    }
}
