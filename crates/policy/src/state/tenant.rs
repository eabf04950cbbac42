//! The records of a tenant on one pool: its QoS policy, its guarantees, its throttle and its latencies.

use evenkeel_control::Instant;
use evenkeel_control::log::Entry;
use evenkeel_control::pool::guarantee::{Decision, View};
use evenkeel_control::throughput::Rate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::{DecisionRecord, Unit};
use crate::explain;
use crate::figures::{count, megabytes};
use crate::lately::Lately;
use crate::parts::{PartsState, set};

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
    /// Throttle for the pool's latency target; `null` without one.
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
    /// Part of its bytes that missed the cache in the last interval, 0 to 1; `null` without I/O, or without a cache.
    pub miss_rate: Option<f64>,
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
            miss_rate: None,
            limit_per_s: view.limit.limit.value(),
            reason: view.limit.reason.name().into(),
            because: explain::guarantee(&view.limit, Some(view.binding), &subject),
            binding: view.binding.name().into(),
            decisions: view.records.iter().filter(|entry| at(entry.from) >= since).map(decision).collect(),
        }
    }

    /// The unit of its rates.
    pub fn rates_in(&self) -> Unit {
        if self.unit == "bytes" { Unit::BytesPerS } else { Unit::RequestsPerS }
    }

    /// A rate in its unit as text of few characters.
    pub fn rate(&self, per_s: f64) -> String {
        if self.unit == "bytes" { megabytes(per_s) + " MB/s" } else { count(per_s) + " IOPS" }
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
