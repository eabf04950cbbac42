//! The tables of a scenario, as deserialized from TOML.

use std::collections::BTreeMap;

use evenkeel_model::device::DeviceParams;
use evenkeel_model::worker::WorkerParams;
use evenkeel_policy::config::{Placement, Pool, Tenant};
use evenkeel_policy::units::{Bytes, Duration};
use serde::Deserialize;

use crate::workload::form::Form;
use crate::world::FrontSetup;

/// A scenario as deserialized from TOML.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Title of the scenario, a few words.
    #[serde(default)]
    pub(super) title: String,
    /// Purpose of the scenario.
    #[serde(default)]
    pub(super) description: String,
    /// Length of the counted time, in virtual time after the warm-up.
    pub(super) duration: Duration,
    /// Length of the warm-up, the virtual time before the counted time.
    #[serde(default)]
    pub(super) warmup: Duration,
    /// Interval of the samples of the time series.
    pub(super) sample_every: Option<Duration>,
    /// True if large requests are divided into slices before the pool.
    #[serde(default = "yes")]
    pub(super) divide: bool,
    /// The first seed.
    #[serde(default = "one")]
    pub(super) seed: u64,
    /// Number of seeds.
    #[serde(default = "one_32")]
    pub(super) seeds: u32,
    /// The workers, which receive requests and send replies; `None`: workers are not modelled.
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

/// The workers between clients and pool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkersForm {
    /// Number of workers.
    pub(super) count: u32,
    /// CPU time of a worker for a request and its reply, without the time for payload.
    #[serde(default = "time_per_request")]
    pub(super) time_per_request: Duration,
    /// CPU time of a worker for each 1024 bytes of payload.
    #[serde(default = "time_per_kib")]
    pub(super) time_per_kib: Duration,
    /// The placement of connections, as in a configuration.
    #[serde(default)]
    pub(super) placement: Placement,
    /// Number of connections of each client, over which its requests are sent in turn.
    #[serde(default = "one_32")]
    pub(super) connections: u32,
}

/// The default CPU time of a request and its reply, as measured on `serve`; see [`WorkerParams::serve`].
fn time_per_request() -> Duration {
    let serve = WorkerParams::serve();
    serve.receive_time + serve.send_time
}

fn time_per_kib() -> Duration {
    Duration::from_nanos(KIB_SECONDS_NS / WorkerParams::serve().receive_bytes_per_s)
}

/// Divided by a time per KiB in nanoseconds, this gives bytes per second.
const KIB_SECONDS_NS: u64 = 1024 * 1_000_000_000;

impl WorkersForm {
    /// The workers of a run. The time per request is divided equally between receiving and sending, as in
    /// [`WorkerParams::serve`].
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

/// A client, or several identical ones.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientForm {
    /// Name of the client's tenant.
    pub(super) tenant: String,
    /// The client's workload.
    pub(super) workload: Form,
    /// Virtual time at which the client begins to send requests, from the start of the run.
    #[serde(default)]
    pub(super) from: Duration,
    /// Virtual time at which the client stops sending requests; `None`: the end of the run.
    pub(super) until: Option<Duration>,
    /// Number of identical clients.
    #[serde(default = "one_32")]
    pub(super) count: u32,
}

/// A change in mid-run. Entries of the change's tables replace the entries of the same name of the device, the pool or the
/// tenants.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeForm {
    /// Virtual time of the change, from the start of the run.
    pub(super) at: Duration,
    /// Duration for which the device serves no request, from the change on.
    pub(super) stall: Option<Duration>,
    /// Changed entries of the device.
    pub(super) device: Option<toml::Table>,
    /// Changed entries of the pool.
    pub(super) pool: Option<toml::Table>,
    /// Changed entries of tenants, by the tenant's name.
    #[serde(default)]
    pub(super) tenants: BTreeMap<String, toml::Table>,
}

impl ChangeForm {
    pub(super) fn is_empty(&self) -> bool {
        self.stall.is_none() && self.device.is_none() && self.pool.is_none() && self.tenants.is_empty()
    }

    /// A description of a change in a few words: `what` is the changed object, `table` its changed entries.
    pub(super) fn words(what: &str, table: &toml::Table) -> String {
        let entries: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        format!("{what}: {}", entries.join(", "))
    }
}

/// A bound that a run must meet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BoundForm {
    /// Name of the metric that the bound limits.
    pub(super) metric: String,
    /// The smallest value that meets the bound.
    pub(super) min: Option<Limit>,
    /// The largest value that meets the bound.
    pub(super) max: Option<Limit>,
    /// Start of the window in which the metric is measured, as virtual time from the start of the run.
    pub(super) from: Option<Duration>,
    /// End of the window in which the metric is measured, as virtual time from the start of the run.
    pub(super) until: Option<Duration>,
    /// Reason for the bound.
    #[serde(default)]
    pub(super) why: String,
}

/// A bound's value: a number in the metric's unit, or a quantity with its own unit.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Limit {
    /// A number in the unit that the metric's name ends with.
    Number(f64),
    /// A quantity with a unit: "5ms", "200MB".
    Text(String),
}

impl Limit {
    /// The value in the unit that the name of the metric ends with.
    pub(super) fn value(&self, metric: &str) -> Result<f64, String> {
        let text = match self {
            Self::Number(value) if value.is_finite() => return Ok(*value),
            Self::Number(value) => return Err(format!("{value} is no bound; remove this key")),
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
