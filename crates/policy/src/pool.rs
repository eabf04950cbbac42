//! A pool of the policy: a shared device that saturates.

use evenkeel_control::mclock::CostModel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admission::Admission;
use crate::emulate::Emulate;
use crate::goal::{self, Method, Noisy};
use crate::slots::Slots;
use crate::tenant::{Latency, Limit};
use crate::units::{Bytes, Duration};

/// A shared device that saturates: one scheduler and one admission control in front of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// What the latency of reads is to stay below; noisy tenants are throttled for it, and their own reads do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// The most the pool lets through.
    pub limit: Limit,
    /// The longest that a throttled request waits more than it would otherwise.
    pub max_delay: Duration,
    /// All else.
    pub tuning: Tuning,
    /// Parameters of the emulated device behind volumes with `backend = "emulate"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulate: Option<Emulate>,
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
    /// All slots together, on all hosts: never more, and the total of "rwd" and "sfq_d".
    #[schemars(range(min = 1, max = 1_000_000))]
    pub slots_most: u32,
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
            latency: None,
            limit: Limit::default(),
            max_delay: Duration::from_secs(2),
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
            noisy_above: goal::default_noisy_above(),
            slots: Slots::None,
            slots_latency: None,
            slots_most: 4_096,
        }
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
            admission: (&tuning.admission).into(),
            base_cost_bytes: base,
            cost: CostModel { base_bytes: base, write_percent: tuning.write_cost_percent },
            limit: pool.limit.rates().into(),
            limit_burst: pool.limit.burst.into(),
            goal: goal::of(pool),
            slots: crate::slots::of(pool, None),
        }
    }
}
