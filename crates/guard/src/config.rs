//! The agent's configuration: which resources have a goal, and how it may be kept.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use evenkeel_control::response;
use evenkeel_policy::check::{Errors, Problem};
use evenkeel_policy::config::{Exchange, Files, Http, Latency, Percentile, Status, Terms};
use evenkeel_policy::document::Document;
use evenkeel_policy::exchange::MAX_POOLS;
pub use evenkeel_policy::goal::Method;
use evenkeel_policy::goal::default_noisy_above;
use evenkeel_policy::units::{Bytes, Cidr, Duration};
use evenkeel_policy::{budget_that_hangs, rate_that_hangs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::actuator::{Actuator, Packets};

mod array;
mod ceph;
mod guarantee;

pub use array::{ArrayConfig, ArrayVolume};
pub use ceph::CephConfig;
pub use guarantee::{GoalConfig, GuaranteeConfig, GuaranteeMethod, HybridConfig};

/// A configuration that shows every key with its default, commented.
pub const EXAMPLE: &str = include_str!("../guard.example.toml");

/// Ports of iSCSI, NVMe/TCP and NBD.
pub const DEFAULT_PORTS: [u16; 3] = [3260, 4420, 10809];

/// More resources than a host has; each costs work at every tick.
const MAX_RESOURCES: usize = 1_000;

/// Everything an operator says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The agent.
    pub guard: Guard,
    /// Resources with a goal, by the names that `evenkeel guard discover` shows.
    pub resources: BTreeMap<String, ResourceConfig>,
    /// Hybrid devices whose tenants were guaranteed a throughput, by names of your own.
    pub hybrids: BTreeMap<String, HybridConfig>,
    /// Arrays that this host shares with others, by the name that all hosts give them.
    pub arrays: BTreeMap<String, ArrayConfig>,
    /// How hosts that share arrays tell each other what they do.
    pub exchange: Exchange,
    /// Ceph OSDs of this host; without this table they are left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceph: Option<CephConfig>,
}

/// The agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Guard {
    /// TCP address of the read-only API and metrics, or "off".
    pub status: Status,
    /// How often is measured and decided.
    pub interval: Duration,
    /// How often clients, targets and devices are looked for.
    pub discover_every: Duration,
    /// Network devices by which clients are reached.
    pub interfaces: Vec<String>,
    /// TCP ports of the targets whose packets may wait.
    pub ports: Vec<u16>,
    /// Distance between delays.
    pub step: Duration,
    /// Longest delay.
    pub max_delay: Duration,
    /// A delay that is not renewed ends after this.
    pub timeout: Duration,
    /// What was there before, so that it can be put back.
    pub journal: PathBuf,
    /// What lets packets wait.
    pub actuator: Actuator,
    /// How a delay is chosen.
    pub method: Method,
    /// Which packets wait.
    pub packets: PacketChoice,
    /// Clients that are never held back: addresses, blocks of addresses, or names that targets know them by.
    pub never: Vec<Who>,
    /// Clients that are held back first, whatever they do.
    pub always: Vec<Who>,
    /// Clients that are held back only when nothing else helps.
    pub important: Vec<Who>,
    /// How the API and metrics are served.
    pub http: Http,
    /// Certificates for HTTPS; without this table there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Files>,
}

impl Guard {
    /// On what terms the API and metrics are served.
    pub fn terms(&self) -> Terms {
        Terms { table: "guard", http: self.http, files: self.tls.clone() }
    }
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            status: Status::At(SocketAddr::from(([127, 0, 0, 1], 9810))),
            interval: Duration::from_millis(100),
            discover_every: Duration::from_secs(10),
            interfaces: Vec::new(),
            ports: DEFAULT_PORTS.to_vec(),
            step: Duration::from_micros(500),
            max_delay: Duration::from_millis(20),
            timeout: Duration::from_secs(3),
            journal: "/run/evenkeel/guard.journal".into(),
            actuator: Actuator::default(),
            method: Method::Adaptive,
            packets: PacketChoice::Acknowledgements,
            never: Vec::new(),
            always: Vec::new(),
            important: Vec::new(),
            http: Http::default(),
            tls: None,
        }
    }
}

/// Which packets wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PacketChoice {
    /// Those without payload, which holds writers back; all, should that have no effect.
    #[default]
    Acknowledgements,
    /// Those with payload, which holds readers back.
    Data,
    /// All that is sent to the client.
    All,
}

impl PacketChoice {
    /// In the actuator's words.
    pub const fn packets(self) -> Packets {
        match self {
            Self::Acknowledgements => Packets::Acknowledgements,
            Self::Data => Packets::Data,
            Self::All => Packets::All,
        }
    }
}

/// A resource with a goal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceConfig {
    /// What the latency of reads is to stay below.
    pub latency: Latency,
    /// Devices that belong to it, by path or name; default: those that stand on what has this name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Bytes per second above which a client counts as noisy for `method = "pid"`; "adaptive" goes by shares of the load.
    #[serde(default = "default_noisy_above")]
    pub noisy_above: Bytes,
    /// As for the whole agent, for this resource alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub never: Vec<Who>,
    /// As for the whole agent, for this resource alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub always: Vec<Who>,
    /// As for the whole agent, for this resource alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub important: Vec<Who>,
}

/// A client, or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Who {
    /// By address.
    Addresses(Cidr),
    /// By the name that a target knows it by.
    Name(String),
}

impl From<String> for Who {
    fn from(text: String) -> Self {
        Cidr::from_str(&text).map_or(Self::Name(text), Self::Addresses)
    }
}

impl From<Who> for String {
    fn from(who: Who) -> Self {
        match who {
            Who::Addresses(block) => block.to_string(),
            Who::Name(name) => name,
        }
    }
}

impl Who {
    /// Whether a client with this address and these names is meant.
    pub fn is(&self, address: IpAddr, names: &[String]) -> bool {
        match self {
            Self::Addresses(block) => block.contains(address),
            Self::Name(name) => names.contains(name),
        }
    }
}

/// What can be measured here, as far as goals depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Whether the kernel shows the block layer's tracepoints, by which single reads are measured.
    pub tracepoints: bool,
}

impl Config {
    /// Reads a configuration; `origin` names the text in errors.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str, origin: &str, abilities: Abilities) -> Result<Self, Errors> {
        Self::check(text, origin, abilities).map(|(config, _)| config)
    }

    /// The same, with what is doubtful about it.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn check(text: &str, origin: &str, abilities: Abilities) -> Result<(Self, Vec<Problem>), Errors> {
        let (document, mut errors) = Document::parse(text, origin);
        let (config, more) = document.read::<Self>();
        errors.extend(more);
        if let Some(config) = &config {
            errors.extend(config.faults(&document, abilities));
        }
        errors.sort_by_key(|problem| problem.position);
        match config.filter(|_| errors.is_empty()) {
            Some(config) => {
                let doubts = config.doubts(&document);
                Ok((config, doubts))
            }
            None => Err(Errors(errors)),
        }
    }

    /// Reads a file; tells what is doubtful about it, too.
    ///
    /// # Errors
    /// That it cannot be read, or all that is wrong with it.
    pub fn read(path: &Path, abilities: Abilities) -> Result<(Self, Vec<Problem>), Errors> {
        let origin = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::check(&text, &origin, abilities),
            Err(error) => {
                let message = format!("cannot read the configuration: {error}");
                Err(Errors(vec![Problem { origin, position: None, key: String::new(), message }]))
            }
        }
    }

    /// Whether devices and their clients have to be watched: whether there is anything to guard besides OSDs.
    pub fn watches_devices(&self) -> bool {
        !(self.resources.is_empty() && self.hybrids.is_empty() && self.arrays.is_empty())
    }

    /// How often is measured and decided: OSDs have an interval of their own.
    pub fn interval(&self) -> Duration {
        let of_osds = self.ceph.as_ref().filter(|_| !self.watches_devices());
        of_osds.map_or(self.guard.interval, |ceph| ceph.sample_every)
    }

    /// Devices of resources that were not left to discovery.
    pub fn configured(&self) -> crate::discovery::map::Configured {
        let named = self.resources.iter().filter(|(_, resource)| !resource.devices.is_empty());
        named.map(|(name, resource)| (name.clone(), resource.devices.clone())).collect()
    }

    /// The settings of a resource's controller.
    pub fn controller(&self, resource: &ResourceConfig) -> response::Config {
        let goal = resource.latency.target.into();
        let published = match self.guard.method {
            Method::Adaptive => response::Config::adaptive(goal),
            Method::Pid => response::Config::pid(goal),
        };
        response::Config {
            interval: self.guard.interval.into(),
            step: self.guard.step.into(),
            max_delay: self.guard.max_delay.into(),
            noisy_bytes_per_s: resource.noisy_above.0,
            ..published
        }
    }

    /// What is doubtful, and does not keep an agent from running.
    fn doubts(&self, document: &Document<'_>) -> Vec<Problem> {
        let mut doubts = Vec::new();
        let mut doubt = |path: &[&str], message: String| doubts.push(document.complain(path, message));
        if let Status::At(address) = self.guard.status
            && let Some(danger) = self.guard.terms().danger(address)
        {
            doubt(&["guard", "status"], danger);
        }
        // Limits so small that clients would seem to hang.
        for (hybrid, settings) in &self.hybrids {
            for (tenant, guarantee) in &settings.tenants {
                for (direction, goal) in [("read", guarantee.read), ("write", guarantee.write)] {
                    let Some(goal) = goal.filter(|goal| goal.bytes_per_s.is_some()) else { continue };
                    for (key, rate) in [("bytes_per_s", goal.bytes_per_s), ("ceiling", goal.ceiling)] {
                        if let Some(hang) = rate.and_then(rate_that_hangs) {
                            doubt(&["hybrids", hybrid, "tenants", tenant, direction, key], hang);
                        }
                    }
                }
            }
        }
        // What a request costs an OSD beside its bytes, only the OSD knows.
        if let Some((key, hang)) = self.ceph.as_ref().and_then(|ceph| budget_that_hangs(&ceph.admission, Bytes(0))) {
            doubt(&["ceph", "admission", key], hang);
        }
        doubts
    }

    fn faults(&self, document: &Document<'_>, abilities: Abilities) -> Vec<Problem> {
        let mut faults = Vec::new();
        let mut fault = |path: &[&str], message: String| faults.push(document.complain(path, message));
        let guard = &self.guard;
        if guard.ports.is_empty() {
            fault(&["guard", "ports"], "is empty; name the targets' ports, for iSCSI 3260".into());
        }
        let (least, most) = (Duration::from_secs(1), Duration::from_secs(3600));
        if !(least..=most).contains(&guard.discover_every) {
            fault(&["guard", "discover_every"], format!("is {}; write \"1s\" to \"1h\"", guard.discover_every));
        }
        // A delay must outlast a few ticks that come late.
        let renewed = Duration(evenkeel_control::Duration::from_nanos(guard.interval.0.as_nanos().saturating_mul(3)));
        if guard.timeout < renewed || guard.timeout > most {
            fault(
                &["guard", "timeout"],
                format!("is {}; write at least three intervals ({renewed}) and at most \"1h\"", guard.timeout),
            );
        }
        if guard.step.is_zero() {
            fault(&["guard", "step"], "is 0; write for example \"500us\"".into());
        }
        for ([table, key], message) in guard.terms().faults() {
            fault(&["guard", table, key], message);
        }
        if self.resources.len() > MAX_RESOURCES {
            fault(&["resources"], format!("are more than {MAX_RESOURCES}; name those that matter"));
        }
        for (name, resource) in &self.resources {
            if let Percentile::At(percentile) = resource.latency.percentile
                && !abilities.tracepoints
            {
                fault(
                    &["resources", name, "latency", "percentile"],
                    format!(
                        "p{percentile} cannot be measured: the kernel tells single response times by tracepoints only, \
                         and shows none here (`evenkeel guard check`); write percentile = \"mean\", with a target for the mean"
                    ),
                );
            }
            if let Err(invalid) = self.controller(resource).validate() {
                let (table, key): (&[&str], _) = match invalid.setting {
                    "goal" => (&["resources", name, "latency"], "target"),
                    other => (&["guard"], other),
                };
                let path: Vec<&str> = table.iter().copied().chain([key]).collect();
                fault(&path, format!("must be {}", invalid.must_be));
            }
        }
        if self.hybrids.len() > MAX_RESOURCES {
            fault(&["hybrids"], format!("are more than {MAX_RESOURCES}; name those that matter"));
        }
        for (name, hybrid) in &self.hybrids {
            for (key, message) in hybrid.faults() {
                let path: Vec<&str> = ["hybrids", name].into_iter().chain(key).collect();
                fault(&path, message);
            }
        }
        if self.arrays.len() > MAX_POOLS {
            fault(&["arrays"], format!("are more than the {MAX_POOLS} that a host may tell others of"));
        }
        for (name, array) in &self.arrays {
            for (key, message) in array.faults(name, guard.interval, &self.exchange) {
                let path: Vec<&str> = ["arrays", name].into_iter().chain(key).collect();
                fault(&path, message);
            }
        }
        for (key, message) in self.exchange.faults() {
            fault(&["exchange", key], message);
        }
        if !self.exchange.etcd.is_empty() && self.exchange.period < guard.interval {
            fault(&["exchange", "period"], format!("must be at least guard.interval ({})", guard.interval));
        }
        for (key, message) in self.ceph.iter().flat_map(CephConfig::faults) {
            fault(&["ceph", key], message);
        }
        faults.dedup();
        faults
    }
}
