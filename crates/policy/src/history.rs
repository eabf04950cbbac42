//! The history: its bound in the configuration, and the records behind `/api/v1/history`.
//!
//! Times are Unix time in seconds. Names end with their unit. A figure that does not apply is `null`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, UnitError, as_text};

/// The bound on a history on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// No history is recorded.
    Off,
    /// The history takes at most so many bytes.
    At(Bytes),
}

impl Bound {
    /// The smallest bound: the files that are written take up to half of it.
    pub const LEAST: Bytes = Bytes(4 << 20);

    fn new(bytes: Bytes) -> Result<Self, UnitError> {
        match bytes {
            Bytes(0) => Ok(Self::Off),
            bytes if bytes < Self::LEAST => Err(UnitError::new(format!(
                "\"{bytes}\" is too small for a history; write \"{}\" or more, or \"off\"",
                Self::LEAST
            ))),
            bytes => Ok(Self::At(bytes)),
        }
    }
}

impl Default for Bound {
    /// An hour of 2,000 tenants at a resolution of a second, and a month of them at coarser ones.
    fn default() -> Self {
        Self::At(Bytes(256 << 20))
    }
}

impl FromStr for Bound {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let bytes = match text.trim() {
            "off" => return Ok(Self::Off),
            other => other.parse(),
        };
        let cure = |_| UnitError::new(format!("{text:?} is not a bound; write for example \"256MiB\", or \"off\""));
        bytes.map_err(cure).and_then(Self::new)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(bytes) => write!(f, "{bytes}"),
        }
    }
}

as_text!(Bound, "a number of bytes such as \"256MiB\", or \"off\"", Some(|n| Bound::new(Bytes(n))), {
    "type": ["string", "integer"]
});

/// The JSON schema of [`History`] (draft 2020-12).
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(History).to_value()
}

/// The answer of `/api/v1/history`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// Start of the oldest record; `null` without any.
    pub oldest_s: Option<u64>,
    /// Start of the time asked for.
    pub from_s: u64,
    /// End of the time asked for.
    pub to_s: u64,
    /// Step asked for; steps of a time for which it is no longer kept are longer.
    pub step_s: u64,
    /// Figures, in the order of time; a step without any series was recorded, and all series were idle.
    pub steps: Vec<Step>,
    /// Times without record.
    pub gaps: Vec<Gap>,
    /// Decisions, throttles, troubles, starts and stops, in the order of time.
    pub events: Vec<Event>,
    /// Start of the range to request next, if the answer would have been too long; steps and gaps end here.
    pub next_s: Option<u64>,
    /// Files that cannot be read, and why nothing is recorded at present.
    pub problems: Vec<String>,
}

/// Figures of a step of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Begin of the step, as Unix time.
    pub at_s: u64,
    /// Length of the step.
    pub seconds: u64,
    /// Seconds of it that were recorded.
    pub recorded_s: u64,
    /// The series that were not idle.
    pub series: Vec<Series>,
}

/// Figures of a tenant, a pool or a device in a step. Of percentiles each is the largest of the step's seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Pool.
    pub pool: String,
    /// Tenant; empty: the whole pool.
    pub tenant: String,
    /// Device; empty: all of them together.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Requests completed per recorded second.
    pub iops: f64,
    /// Payload bytes per recorded second.
    pub bytes_per_s: f64,
    /// Mean size of a request.
    pub request_bytes: Option<f64>,
    /// Requests that failed.
    pub errors: u64,
    /// Mean latency.
    pub latency_ms: Option<f64>,
    /// Median of the latencies.
    pub p50_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// 99.9th percentile.
    pub p999_ms: Option<f64>,
    /// Requests queued.
    pub queued: Option<Gauge>,
    /// Requests in flight.
    pub in_flight: Option<Gauge>,
    /// Budget of admission control.
    pub budget_bytes: Option<Gauge>,
    /// Slots.
    pub slots: Option<Gauge>,
    /// Limit in force, in requests per second.
    pub limit_iops: Option<Gauge>,
    /// Limit in force, in payload bytes per second.
    pub limit_bytes_per_s: Option<Gauge>,
    /// Throttle delay of a request.
    pub delay_ms: Option<Gauge>,
}

/// A quantity that has a value in each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gauge {
    /// Mean of the seconds with a value.
    pub mean: f64,
    /// The largest value.
    pub max: f64,
}

/// A time without record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// Begin.
    pub from_s: u64,
    /// End.
    pub to_s: u64,
    /// Reason for which there is no record, as a sentence.
    pub because: String,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A controller decided, or a throttle began, changed or ended.
    #[default]
    Decision,
    /// A trouble began.
    TroubleBegins,
    /// A trouble ended.
    TroubleEnds,
    /// The server or agent started.
    Started,
    /// The server or agent was stopped.
    Stopped,
}

impl EventKind {
    /// The kind in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Decision => "decision",
            Self::TroubleBegins => "trouble",
            Self::TroubleEnds => "trouble ended",
            Self::Started => "started",
            Self::Stopped => "stopped",
        }
    }
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// When it happened.
    pub at_s: u64,
    /// The kind.
    pub kind: EventKind,
    /// Pool of a decision.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pool: String,
    /// Tenant of a decision; empty if it is about the pool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// Object in trouble: `tenant shop in pool main`; empty for the whole server or agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// `critical` or `warning`, of a trouble.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub level: String,
    /// Name of a decision's reason, of a throttle's owner (`throttled_by_latency`), or of the kind of trouble.
    pub reason: String,
    /// Reason as a sentence.
    pub because: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_number_of_bytes_or_off() {
        for (text, bound) in
            [("off", Bound::Off), ("0", Bound::Off), ("256MiB", Bound::default()), ("4MiB", Bound::At(Bound::LEAST))]
        {
            assert_eq!(text.parse(), Ok(bound), "{text}");
            assert_eq!(bound.to_string().parse(), Ok(bound), "{bound}");
        }
        for (text, cure) in [("1MiB", "4MiB"), ("much", "256MiB"), ("-1", "256MiB")] {
            let error = text.parse::<Bound>().expect_err(text).to_string();
            assert!(error.contains(cure), "{error}");
        }
        assert_eq!(serde_json::from_str::<Bound>("0").ok(), Some(Bound::Off));
        assert!(serde_json::from_str::<Bound>("17").is_err());
    }
}
