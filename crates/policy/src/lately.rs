//! Recent figures of a tenant or pool, its targets with their verdicts, and what throttles it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// True for 0, false, an empty text or list, and `None`. Rows of which there may be very many leave such a field out of the JSON,
/// and its absence means the same.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Verdict on a target. The worst is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The target is not met.
    Missed,
    /// The target is not met, and the controller has done all that it may.
    Unachievable,
    /// The target is met.
    Met,
    /// The load asked for nothing, or for less than the target, or nothing is known at present.
    Idle,
}

impl Verdict {
    /// The verdict as a word for people. A missed target is in capitals, so that it stands out without colour.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Missed => "MISSED",
            Self::Unachievable => "UNACHIEVABLE",
            Self::Met => "met",
            Self::Idle => "idle",
        }
    }

    /// True if the target is not met, for any reason.
    pub const fn is_missed(self) -> bool {
        matches!(self, Self::Missed | Self::Unachievable)
    }
}

/// The kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A latency.
    Latency,
    /// A throughput guarantee.
    Guarantee,
    /// A reservation.
    Reservation,
}

/// A target with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Target {
    /// As text: `p99 < 20 ms`, `300 IOPS`, `50.0 MB/s read`.
    pub what: String,
    /// The kind.
    pub kind: Kind,
    /// The verdict.
    pub verdict: Verdict,
}

/// The cause of a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The latency target of the pool: the tenant is noisy.
    LatencyTarget,
    /// The tenant's limit.
    Limit,
    /// The slots granted to the tenant.
    Slots,
    /// The pool's limit.
    PoolLimit,
    /// The budget of admission control.
    Admission,
}

/// The throttle of a tenant or pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThrottledBy {
    /// The owner of the limit that throttles: `operator`, `latency`, `throughput`, `slots`, or the kind of admission control.
    pub by: String,
    /// The kind of limit that throttles.
    pub cause: Cause,
    /// The value of the limit: `400 IOPS`, `256 KiB`.
    pub how: String,
    /// Reason as a sentence.
    pub because: String,
}

/// Requests that waited for the limit of a volume, counted since the volume has a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitWaits {
    /// Requests that wait.
    pub waiting_requests: u64,
    /// Requests that have waited.
    pub waited_requests_total: u64,
    /// The time that these requests waited, added up.
    pub waited_ms_total: u64,
}

/// Figures of a tenant or pool within a window, its verdicts, and what throttles it. Fields of 0, empty or `null` are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Lately {
    /// Length of the window.
    pub window_s: f64,
    /// Requests completed per second.
    #[serde(skip_serializing_if = "is_default")]
    pub iops: f64,
    /// Payload bytes per second.
    #[serde(skip_serializing_if = "is_default")]
    pub bytes_per_s: f64,
    /// Requests per second that were dispatched for the reservation.
    #[serde(skip_serializing_if = "is_default")]
    pub by_reservation_iops: f64,
    /// Requests per second that were dispatched by weight.
    #[serde(skip_serializing_if = "is_default")]
    pub by_weight_iops: f64,
    /// Requests that the device failed.
    #[serde(skip_serializing_if = "is_default")]
    pub errors: u64,
    /// Mean latency; `null` if nothing completed. Of an agent's pool for control groups: of the reads that its target counts.
    #[serde(skip_serializing_if = "is_default")]
    pub latency_ms: Option<f64>,
    /// Mean latency in the queue; `null` if nothing completed.
    #[serde(skip_serializing_if = "is_default")]
    pub queue_latency_ms: Option<f64>,
    /// Mean latency in the device; `null` if nothing completed.
    #[serde(skip_serializing_if = "is_default")]
    pub device_latency_ms: Option<f64>,
    /// 99th percentile of the latencies of the last second; `null` if nothing completed, or no history is recorded. Of an agent
    /// of the reads of the last 5 to 10 s; `null` where reads are not timed one by one.
    #[serde(skip_serializing_if = "is_default")]
    pub p99_ms: Option<f64>,
    /// Targets with their verdicts.
    #[serde(skip_serializing_if = "is_default")]
    pub targets: Vec<Target>,
    /// The throttle; of a tenant its pool's limit, too, but not the pool's admission control.
    #[serde(skip_serializing_if = "is_default")]
    pub throttled_by: Option<ThrottledBy>,
    /// The newest reason on record, as a sentence.
    #[serde(skip_serializing_if = "is_default")]
    pub because: String,
}
