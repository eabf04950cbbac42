//! Records of controllers' decisions as API, `top` and dashboard show them, for server and agent alike.

use std::fmt;

use evenkeel_control::log::Entry;
use evenkeel_control::response;
use evenkeel_control::throughput::Rate;
use evenkeel_control::{Duration, Instant};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Enforcement;
use crate::figures::{bytes, bytes_per_s, counted, counted_figure, large, milliseconds};
use crate::tenant::Percentile;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Milliseconds.
    #[default]
    Ms,
    /// Bytes per second.
    BytesPerS,
    /// Requests per second.
    RequestsPerS,
    /// Requests in flight.
    Slots,
    /// Bytes in flight.
    Bytes,
}

impl From<Rate> for Unit {
    fn from(rate: Rate) -> Self {
        match rate {
            Rate::BytesPerS(_) => Self::BytesPerS,
            Rate::RequestsPerS(_) => Self::RequestsPerS,
        }
    }
}

evenkeel_control::named!(Unit: Ms "ms", BytesPerS "bytes_per_s", RequestsPerS "requests_per_s", Slots "slots",
    Bytes "bytes");

impl Unit {
    /// `figure` as text with its unit, for people.
    pub fn text(self, figure: f64) -> String {
        match self {
            Self::Ms => milliseconds(figure),
            Self::BytesPerS => bytes_per_s(figure),
            Self::RequestsPerS => format!("{} IOPS", large(figure)),
            Self::Slots => counted_figure(figure, "slot"),
            Self::Bytes => bytes(figure as u64),
        }
    }
}

/// A client that a decision throttles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Throttled {
    /// The client's address.
    pub client: String,
    /// Delay of packets to the client.
    pub delay_ms: f64,
    /// Reason for the length of the delay.
    pub because: String,
}

/// A tenant or client that a decision throttles more than most others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MostThrottled {
    /// The tenant; empty for a client that no tenant names.
    pub tenant: String,
    /// The client's address; empty where a whole tenant is throttled.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// Time for which a slot of the tenant stays empty after a request, or delay of packets to the client.
    pub delay_ms: f64,
    /// Payload that the throttle lets pass beside a reservation; `null` = known as a delay alone.
    pub bytes_per_s: Option<f64>,
}

/// A decision, for as long as its reason stayed the same. Figures are those of the last time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DecisionRecord {
    /// The enforcement point.
    pub point: Enforcement,
    /// The pool.
    pub pool: String,
    /// The tenant that the decision is about; empty for a decision about a whole pool.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The part of the tenant that the decision is about: its reads (`read`), its writes (`write`), or a control group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// Time at which the decision was taken first, since the start.
    pub from_s: f64,
    /// Time at which the decision was taken last, since the start.
    pub until_s: f64,
    /// Number of times that it was taken.
    pub times: u64,
    /// Name of the reason, `reads_over_target` for example.
    pub reason: String,
    /// Reason as a sentence.
    pub because: String,
    /// The measured figure, in `measured_in`; `null` where nothing was measured.
    pub measured: Option<f64>,
    /// The target for the measured figure, in `measured_in`; `null` without a target.
    pub target: Option<f64>,
    /// Unit of `measured` and `target`.
    pub measured_in: Unit,
    /// The value set, in `set_in`: a delay, a limit, slots, a budget; `null` = no bound.
    pub set: Option<f64>,
    /// The smallest value set from `from_s` to `until_s`, in `set_in`; `null` = no bound.
    pub least_set: Option<f64>,
    /// The largest value set from `from_s` to `until_s`, in `set_in`; `null` = no bound.
    pub most_set: Option<f64>,
    /// Unit of `set`, `least_set` and `most_set`.
    pub set_in: Unit,
    /// The figure of latencies that is measured: `mean`, or a percentile such as `p99`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub percentile: String,
    /// Number of tenants or clients that the decision throttles.
    pub throttled: u64,
    /// The most throttled tenants or clients, at most two.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub most_throttled: Vec<MostThrottled>,
    /// Number of tenants or clients that the decision released when it was taken first.
    #[serde(skip_serializing_if = "crate::lately::is_default")]
    pub released: u64,
    /// Some of the released, at most two: names of tenants, or addresses of clients.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub some_released: Vec<String>,
    /// Tenants or clients that the decision throttles, where they are listed one by one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Throttled>,
}

impl DecisionRecord {
    /// A record with the times and extremes of an entry of the decision log. `at` converts an instant to seconds since the start
    /// of the program.
    pub fn of<D>(entry: &Entry<D>, at: impl Fn(Instant) -> f64) -> Self {
        Self {
            from_s: at(entry.from),
            until_s: at(entry.until),
            times: entry.times,
            least_set: entry.least,
            most_set: entry.most,
            ..Self::default()
        }
    }

    /// This record with the reason and the figures of a decision for the latency target of `pool`.
    #[must_use]
    pub fn with_latency(
        self,
        pool: &str,
        percentile: Percentile,
        reason: &response::Reason,
        mean_delay: Duration,
    ) -> Self {
        let (measured, target) = reason.figures();
        Self {
            pool: pool.to_owned(),
            reason: reason.name().to_owned(),
            percentile: percentile.to_string(),
            measured: measured.map(Duration::as_millis_f64),
            target: target.map(Duration::as_millis_f64),
            set: Some(mean_delay.as_millis_f64()),
            ..self
        }
    }

    /// The subject of the decision as text: pool, tenant, and the part of the tenant's requests.
    pub fn subject(&self) -> String {
        let parts = [&self.pool, &self.tenant, &self.of];
        parts.into_iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for DecisionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s to {:.1} s, {}: {} (", self.from_s, self.until_s, self.subject(), self.because)?;
        write!(f, "{}", counted(self.times, "time"))?;
        let text = |figure: Option<f64>| figure.map_or_else(|| "no bound".into(), |figure| self.set_in.text(figure));
        match (self.least_set, self.most_set) {
            (None, _) | (_, None) => {}
            (least, most) if least == most => write!(f, ", {}", text(self.set))?,
            (least, most) => write!(f, ", {} to {}, now {}", text(least), text(most), text(self.set))?,
        }
        if let Some(measured) = self.measured {
            write!(f, ", measured {}", self.measured_in.text(measured))?;
        }
        f.write_str(")")?;
        for client in &self.clients {
            write!(f, "\n  {} waits {}: {}", client.client, Unit::Ms.text(client.delay_ms), client.because)?;
        }
        Ok(())
    }
}

/// The newest `count` of `records`, newest first.
pub fn newest(mut records: Vec<DecisionRecord>, count: usize) -> Vec<DecisionRecord> {
    records.sort_by(|a, b| b.until_s.total_cmp(&a.until_s).then_with(|| b.from_s.total_cmp(&a.from_s)));
    records.truncate(count);
    records
}

/// Seconds from the start of the program to `at`; the program's clock began at zero.
pub fn seconds(at: Instant) -> f64 {
    at.since(Instant::ZERO).as_secs_f64()
}

/// Answer of `/api/v1/decisions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Decisions {
    /// Newest first.
    pub decisions: Vec<DecisionRecord>,
}
