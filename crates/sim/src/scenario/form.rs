//! The tables of a scenario, as written.

use std::collections::BTreeMap;

use evenkeel_model::device::DeviceParams;
use evenkeel_model::worker::WorkerParams;
use evenkeel_policy::config::{Placement, Pool, Tenant};
use evenkeel_policy::units::{Bytes, Duration};
use serde::Deserialize;

use crate::workload::form::Form;
use crate::world::FrontSetup;

/// A scenario as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// A few words.
    #[serde(default)]
    pub(super) title: String,
    /// The purpose.
    #[serde(default)]
    pub(super) description: String,
    /// Virtual time that counts.
    pub(super) duration: Duration,
    /// Virtual time before it.
    #[serde(default)]
    pub(super) warmup: Duration,
    /// Distance of the samples of the time series.
    pub(super) sample_every: Option<Duration>,
    /// Large requests are divided into slices in front of the pool.
    #[serde(default = "yes")]
    pub(super) divide: bool,
    /// The first seed.
    #[serde(default = "one")]
    pub(super) seed: u64,
    /// How many seeds.
    #[serde(default = "one_32")]
    pub(super) seeds: u32,
    /// The workers, which receive requests and send replies.
    pub(super) workers: Option<WorkersForm>,
    /// The device behind the pool.
    pub(super) device: DeviceParams,
    /// The pool, as in a configuration.
    #[serde(default)]
    pub(super) pool: Pool,
    /// The QoS policy of each tenant, as in a configuration.
    pub(super) tenants: BTreeMap<String, Tenant>,
    /// The clients.
    #[serde(default)]
    pub(super) client: Vec<ClientForm>,
    /// The changes in mid-run.
    #[serde(default)]
    pub(super) change: Vec<ChangeForm>,
    /// The bounds on the outcome.
    #[serde(default)]
    pub(super) bound: Vec<BoundForm>,
}

fn one() -> u64 {
    1
}

fn yes() -> bool {
    true
}

fn one_32() -> u32 {
    1
}

/// Workers before the pool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkersForm {
    /// How many.
    pub(super) count: u32,
    /// Processor time of a request with its reply, without its bytes.
    #[serde(default = "time_per_request")]
    pub(super) time_per_request: Duration,
    /// Processor time of each 1024 bytes of payload.
    #[serde(default = "time_per_kib")]
    pub(super) time_per_kib: Duration,
    /// The placement of connections, as in a configuration.
    #[serde(default)]
    pub(super) placement: Placement,
    /// Connections of each client.
    #[serde(default = "one_32")]
    pub(super) connections: u32,
}

/// As measured on `serve`: [`WorkerParams::serve`].
fn time_per_request() -> Duration {
    let serve = WorkerParams::serve();
    serve.receive_time + serve.send_time
}

fn time_per_kib() -> Duration {
    Duration::from_nanos(KIB_SECONDS_NS / WorkerParams::serve().receive_bytes_per_s)
}

/// Nanoseconds in a second, for each of the bytes in a KiB.
const KIB_SECONDS_NS: u64 = 1024 * 1_000_000_000;

impl WorkersForm {
    /// The setup of a run. Time without bytes is halved between receiving and sending, as [`WorkerParams::serve`] has
    /// it.
    pub(super) fn setup(&self) -> FrontSetup {
        let receive_time = Duration::from_nanos(self.time_per_request.as_nanos() / 2);
        let bytes_per_s = KIB_SECONDS_NS.checked_div(self.time_per_kib.as_nanos()).unwrap_or(u64::MAX);
        let params = WorkerParams {
            receive_time,
            receive_bytes_per_s: bytes_per_s,
            send_time: self.time_per_request - receive_time,
            send_bytes_per_s: bytes_per_s,
            ..WorkerParams::serve()
        };
        FrontSetup { count: self.count, params, placement: self.placement.control(), connections: self.connections }
    }
}

/// A client.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientForm {
    /// Its tenant.
    pub(super) tenant: String,
    /// Its workload.
    pub(super) workload: Form,
    /// When it begins.
    #[serde(default)]
    pub(super) from: Duration,
    /// When it stops sending.
    pub(super) until: Option<Duration>,
    /// How many of them there are.
    #[serde(default = "one_32")]
    pub(super) count: u32,
}

/// A change in mid-run: the tables take the place of the same entries before.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeForm {
    /// When.
    pub(super) at: Duration,
    /// The device does nothing for so long.
    pub(super) stall: Option<Duration>,
    /// Entries of the device.
    pub(super) device: Option<toml::Table>,
    /// Entries of the pool.
    pub(super) pool: Option<toml::Table>,
    /// Entries of tenants.
    #[serde(default)]
    pub(super) tenants: BTreeMap<String, toml::Table>,
}

impl ChangeForm {
    pub(super) fn is_empty(&self) -> bool {
        self.stall.is_none() && self.device.is_none() && self.pool.is_none() && self.tenants.is_empty()
    }

    /// A change in a few words.
    pub(super) fn words(what: &str, table: &toml::Table) -> String {
        let entries: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        format!("{what}: {}", entries.join(", "))
    }
}

/// A bound that a run must meet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BoundForm {
    /// The metric.
    pub(super) metric: String,
    /// At least.
    pub(super) min: Option<Limit>,
    /// At most.
    pub(super) max: Option<Limit>,
    /// Measure from here on.
    pub(super) from: Option<Duration>,
    /// Measure until here.
    pub(super) until: Option<Duration>,
    /// Why it matters.
    #[serde(default)]
    pub(super) why: String,
}

/// A number, or a quantity in the unit of its metric or another.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Limit {
    /// In the unit that the metric's name ends with.
    Number(f64),
    /// "5ms", "200MB".
    Text(String),
}

impl Limit {
    /// The value in the unit that the name of the metric ends with.
    pub(super) fn value(&self, metric: &str) -> Result<f64, String> {
        let text = match self {
            Self::Number(value) if value.is_finite() => return Ok(*value),
            Self::Number(value) => return Err(format!("{value} bounds nothing; leave it out")),
            Self::Text(text) => text,
        };
        let time = || text.parse::<Duration>().map(|time| time.as_secs_f64()).map_err(|error| error.to_string());
        let bytes = || text.parse::<Bytes>().map(|bytes| bytes.0 as f64).map_err(|error| error.to_string());
        match metric {
            _ if metric.ends_with("bytes") || metric.ends_with("bytes_per_s") => bytes(),
            _ if metric.ends_with("_ms") => time().map(|seconds| seconds * 1e3),
            _ if metric.ends_with("_s") && !metric.ends_with("per_s") => time(),
            _ => Err(format!("{text:?} is a text, but {metric} is a plain number; write it without quotes")),
        }
    }
}
