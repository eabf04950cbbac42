//! What is shown: the state of the agent, and its decisions with their reasons.
//!
//! Units are last in the names. What does not apply is `null`.

use std::net::IpAddr;

use evenkeel_control::response::{ClientReason, Reason};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::explain::{self, Throttles};
use evenkeel_policy::state::ExchangeState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::array_record::ArrayState;
use super::guarantee_record::HybridState;
use super::osd_record::OsdState;
use crate::discovery::Note;

/// The agent at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct State {
    /// Version of the program.
    pub version: String,
    /// Time since the start.
    pub uptime_s: f64,
    /// Decisions taken, each for all resources; of OSDs alone, seconds.
    pub ticks_total: u64,
    /// How often is measured and decided.
    pub interval_ms: f64,
    /// Whether decisions take effect.
    pub acting: bool,
    /// Why not, or how.
    pub acting_reason: String,
    /// Ticks that came more than half an interval late.
    pub late_ticks_total: u64,
    /// Measurements and changes that failed.
    pub errors_total: u64,
    /// What the last one said.
    pub last_error: Option<String>,
    /// Age of the map of clients and devices; `null` where none is needed.
    #[serde(default)]
    pub map_age_s: Option<f64>,
    /// Resources with a goal.
    pub resources: Vec<ResourceState>,
    /// Hybrid devices whose tenants were guaranteed a throughput.
    #[serde(default)]
    pub hybrids: Vec<HybridState>,
    /// Arrays that this host shares with others.
    #[serde(default)]
    pub arrays: Vec<ArrayState>,
    /// How the exchange with other hosts goes, if there is one.
    #[serde(default)]
    pub exchange: Option<ExchangeState>,
    /// Ceph OSDs of this host, if they are controlled.
    #[serde(default)]
    pub osds: Vec<OsdState>,
    /// What is uncertain about the map of clients and devices.
    pub notes: Vec<Note>,
}

/// A resource with a goal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceState {
    /// Its name.
    pub name: String,
    /// What the latency of reads is to stay below.
    pub target_ms: f64,
    /// Which figure of the latencies that is: `mean`, or for example `p99`.
    pub percentile: String,
    /// Mean latency of the reads of the last interval; `null` if none completed.
    pub read_response_ms: Option<f64>,
    /// That percentile of the reads of the last 5 to 10 s, to 3 %; `null` without reads, and for a goal for the mean.
    pub read_percentile_ms: Option<f64>,
    /// Bytes read per second in the last interval.
    pub read_bytes_per_s: f64,
    /// Bytes written per second in the last interval.
    pub write_bytes_per_s: f64,
    /// Requests inside its devices.
    pub in_flight: u64,
    /// Mean delay of those throttled, weighted by their load.
    pub mean_delay_ms: f64,
    /// Why, for programs.
    pub reason: String,
    /// Why, as a sentence.
    pub because: String,
    /// Which packets wait: `acknowledgements`, `data` or `all`.
    pub packets: String,
    /// Devices measured.
    pub devices: Vec<DeviceState>,
    /// Clients that reach it.
    pub clients: Vec<ClientState>,
}

/// A device of a resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceState {
    /// The kernel's name.
    pub name: String,
    /// Mean latency of the reads of the last interval; `null` if none completed.
    pub read_response_ms: Option<f64>,
    /// Mean latency of the writes of the last interval; `null` if none completed.
    pub write_response_ms: Option<f64>,
    /// Bytes read per second.
    pub read_bytes_per_s: f64,
    /// Bytes written per second.
    pub write_bytes_per_s: f64,
    /// Requests inside.
    pub in_flight: u64,
}

/// A client of a resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientState {
    /// Its address.
    pub address: String,
    /// Names that targets know it by.
    pub names: Vec<String>,
    /// `ordinary`, `important`, `never` or `always`.
    pub standing: String,
    /// Why it is never throttled, if not because an operator said so.
    pub exempt_because: Option<String>,
    /// Its load.
    pub bytes_per_s: f64,
    /// Whether the load is an equal part of what a device shared with others did, because nobody tells more.
    pub load_is_estimated: bool,
    /// How long what is sent to it waits.
    pub delay_ms: f64,
    /// Why so long; empty if it is not throttled.
    pub because: String,
}

/// A client that is throttled by a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldClient {
    /// Its address.
    pub client: String,
    /// How long what is sent to it waits.
    pub delay_ms: f64,
    /// Why so long.
    pub because: String,
}

/// A decision for one resource, for as long as it stayed the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// For which resource.
    pub resource: String,
    /// When it was taken, since the start.
    pub from_s: f64,
    /// When it was taken last.
    pub until_s: f64,
    /// How many times.
    pub times: u64,
    /// Why, for programs.
    pub reason: String,
    /// Why, as a sentence, with the figures of the last time.
    pub because: String,
    /// What was measured the last time.
    pub measured_ms: Option<f64>,
    /// What the controller aims at.
    pub target_ms: Option<f64>,
    /// Who is throttled.
    pub held: Vec<HeldClient>,
}

/// A decision as it is kept: its text is made when somebody asks, which is seldom beside ten times a second.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    pub(super) from: Instant,
    pub(super) until: Instant,
    pub(super) times: u64,
    /// As of the last time.
    pub(super) reason: Reason,
    /// What else was done about it.
    pub(super) also: Option<&'static str>,
    /// Who is throttled.
    pub(super) held: Vec<(IpAddr, Duration, ClientReason)>,
}

impl Decided {
    /// As it is shown, for a resource of this name.
    pub(super) fn record(&self, resource: &str) -> Record {
        let (measured, target) = self.reason.figures();
        let held = |(client, delay, reason): &(IpAddr, Duration, ClientReason)| HeldClient {
            client: client.to_string(),
            delay_ms: delay.as_millis_f64(),
            because: explain::throttled(reason),
        };
        let because = explain::latency(&self.reason, Throttles::Clients);
        Record {
            resource: resource.to_owned(),
            from_s: seconds(self.from),
            until_s: seconds(self.until),
            times: self.times,
            reason: self.reason.name().to_owned(),
            because: self.also.map_or_else(|| because.clone(), |also| format!("{because}; {also}")),
            measured_ms: measured.map(Duration::as_millis_f64),
            target_ms: target.map(Duration::as_millis_f64),
            held: self.held.iter().map(held).collect(),
        }
    }
}

/// Seconds of an instant, for records.
fn seconds(at: Instant) -> f64 {
    at.since(Instant::ZERO).as_secs_f64()
}
