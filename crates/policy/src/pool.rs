//! A pool of the policy: a shared device that saturates.

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::mclock::CostModel;
use evenkeel_control::pool::target;
use evenkeel_control::{response, slots};
use evenkeel_model::store::StoreParams;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guarantee::{CachedDevice, GuaranteeTuning};
use crate::slots::Slots;
use crate::target::{Method, Noisy, default_noisy_above};
use crate::tenant::{Latency, Limit};
use crate::units::{Bytes, Duration};

/// How often a pool's target is measured and decided, at most.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// An interval in targets: what is measured in one should have begun in it.
const INTERVAL_TARGETS: u64 = 2;

/// A shared device that saturates: one scheduler and one admission control in front of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// Devices that belong to it on hosts that run `evenkeel guard`: block devices by path or name, Ceph's OSDs as "osd:osd.0"
    /// or "osd:*". Without this key they are those that stand on what has the pool's name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// What the latency of reads is to stay below; noisy tenants are throttled for it, and their own reads do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// The most the pool lets through.
    pub limit: Limit,
    /// The longest that a throttled request waits more than it would otherwise.
    pub max_delay: Duration,
    /// Where the policy is enforced on this pool: "queue" (`evenkeel serve`), "packets", "cgroup", "queue_depth", "osd"
    /// (`evenkeel guard`). Without this key wherever it applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce: Option<Vec<Enforcement>>,
    /// All else.
    pub tuning: Tuning,
    /// Parameters of the emulated device behind volumes with `backend = "emulate"`.
    #[serde(deserialize_with = "evenkeel_model::preset::read_some", skip_serializing_if = "Option::is_none")]
    pub emulate: Option<StoreParams>,
}

/// How a pool does what its policy says. The defaults suit most devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tuning {
    /// Which request goes next.
    pub scheduler: Scheduler,
    /// How much may be in flight in the device: "elastic", "none", "slowfast", or a table with `kind`.
    pub admission: Admission,
    /// What a request costs on top of its payload, for admission and for weights: about 4000 on an SSD, 670000 on a disk.
    pub base_cost: Bytes,
    /// What a written byte costs in hundredths of a read byte; weights count in cost, admission does not.
    #[schemars(range(min = 1, max = 10_000))]
    pub write_cost_percent: u32,
    /// An I/O that has been in flight for so long is reported.
    pub stall_report_after: Duration,
    /// How it is chosen how much noisy tenants are throttled for the pool's latency target.
    pub method: Method,
    /// Which load makes a tenant noisy.
    pub noisy: Noisy,
    /// Bytes per second above which a tenant is noisy for `method = "pid"`; "adaptive" goes by shares of the load.
    pub noisy_above: Bytes,
    /// How many requests tenants may have in flight, so that their latency targets are met; together with other hosts where
    /// there is an exchange.
    pub slots: Slots,
    /// Mean latency of the device that slots aim at; without this key "needs" finds it, the others take half of the smallest
    /// target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_latency: Option<Duration>,
    /// All slots together, on all hosts: never more, and the total of "rwd".
    #[schemars(range(min = 1, max = 1_000_000))]
    pub slots_most: u32,
    /// How often slots are decided where there is no exchange, "100ms" to "60s"; without this key 1 s, for "needs" in
    /// `evenkeel serve` 100 ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_period: Option<Duration>,
    /// The devices of which a cached device is made, for throughput guarantees of control groups; found out when left out.
    pub cache: CachedDevice,
    /// How throughput guarantees of control groups are kept.
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

impl Enforcement {
    /// Name as written in the policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Packets => "packets",
            Self::Cgroup => "cgroup",
            Self::QueueDepth => "queue_depth",
            Self::Osd => "osd",
        }
    }
}

/// The order of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// Reservation, weight and limit for each tenant.
    #[default]
    Mclock,
    /// First come, first served; settings of tenants have no effect.
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
    /// The target of a pool, if it has one.
    pub(crate) fn target(&self) -> Option<target::Config> {
        let (latency, tuning) = (self.latency?, &self.tuning);
        let target = latency.target;
        let published = match tuning.method {
            Method::Adaptive => response::Config::adaptive(target),
            Method::Pid => response::Config::pid(target),
        };
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

    /// Its slots, if tenants have bounds. `period`: how often other hosts report, if there are any.
    pub(crate) fn slots(&self, period: Option<Duration>) -> Option<slots::Config> {
        let tuning = &self.tuning;
        if tuning.slots == Slots::None {
            return None;
        }
        let published = || slots::Config::published(tuning.slots.method(), Duration::ZERO, 0.0).period;
        let own = if tuning.slots == Slots::Needs { slots::Config::NEEDS.period } else { published() };
        let own = tuning.slots_period.map_or(own, Into::into);
        Some(tuning.slots.control(period.unwrap_or(own), tuning.slots_latency, tuning.slots_most))
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
            limit: pool.limit.rates().into(),
            limit_burst: pool.limit.burst,
            target: pool.target(),
            slots: pool.slots(None),
        }
    }
}
