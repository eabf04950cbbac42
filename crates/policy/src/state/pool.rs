//! The records of a pool: admission control, its latency target, and the division of its slots.

use evenkeel_control::pool::{TenantId, target};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tenant::{LimitState, TenantState};
use crate::decision::{DecisionRecord, MostThrottled};
use crate::explain::{self, ReasonData, Throttles};
use crate::lately::Lately;
use crate::tenant::{Latency, Percentile};

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
    /// Latency target for reads; `null` without one.
    pub latency_target: Option<LatencyTargetState>,
    /// Division of slots; `null` without slots.
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
    /// True if the slots are decided with other hosts; otherwise this host decides.
    pub clustered: bool,
    /// All slots together, on all hosts; `null` = no bound.
    pub total: Option<f64>,
    /// Smallest factor by which all targets could be multiplied and still be met; they are met if it is at most 1. `null`
    /// without targets, or for a factor above ten.
    pub tightness: Option<f64>,
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
    /// Time of the decision, on the scale of the state's `uptime_s`.
    pub decided_at_s: f64,
    /// Reason as a sentence.
    pub reason: String,
    /// Reason for the value of the target, as a sentence; empty without a target.
    pub target_reason: String,
    /// Reason as data, for programs.
    pub reason_data: ReasonData,
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
    /// The record of a target and of the figure that is compared with it, without any decision.
    pub fn of(latency: Latency, measured_ms: Option<f64>) -> Self {
        let (target_ms, percentile) = (latency.target.as_millis_f64(), latency.percentile.to_string());
        Self { target_ms, percentile, measured_ms, ..Self::default() }
    }

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
