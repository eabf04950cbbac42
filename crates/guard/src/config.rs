//! The agent's configuration: the policy, and the settings of this host in addition to it.
//!
//! A file holds `[tenants]` and `[pools]` in the language of [`evenkeel_policy`], `[agent]` and `[cluster]`. What the policy
//! asks of this host is lowered to the settings of the loops: each pool has the enforcement points that apply to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_control::response;
use evenkeel_policy::check::{Errors, Problem};
use evenkeel_policy::config::{
    Bound, Cluster, DEFAULT_POOL, Elsewhere, Files, Http, Latency, Match, Percentile, Pool, Status, Tenant, Terms,
    Throttle,
};
use evenkeel_policy::document::Document;
use evenkeel_policy::effective::Enforced;
use evenkeel_policy::source::Source;
pub use evenkeel_policy::target::Method;
use evenkeel_policy::units::{Bytes, Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::actuator::Packets;
use crate::discovery::sockets::DEFAULT_PORTS;
use crate::loops::owed::Owed;

mod array;
mod ceph;
mod guarantee;
mod local;
mod lower;

pub use array::{ArrayConfig, ArrayVolume};
pub use ceph::{CephConfig, CephSettings};
pub use guarantee::{CachedConfig, GuaranteeConfig};
pub use local::{LocalConfig, LocalTenant, NamedBy};

/// A configuration that shows every key with its default, commented.
pub const EXAMPLE: &str = include_str!("../guard.example.toml");

/// The JSON schema of `[agent]` (draft 2020-12).
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(AgentConfig).to_value()
}

/// The content of a configuration file, as an operator writes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    agent: AgentConfig,
    pools: BTreeMap<String, Pool>,
    tenants: BTreeMap<String, Tenant>,
    cluster: Cluster,
    #[serde(rename = "server")]
    _server: Elsewhere,
    volumes: BTreeMap<String, Volume>,
    #[serde(rename = "policy")]
    _policy: Option<PathBuf>,
}

/// The settings of a volume of `evenkeel serve` that the agent reads: the volume's pool.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
struct Volume {
    pool: String,
}

impl Default for Volume {
    fn default() -> Self {
        Self { pool: DEFAULT_POOL.into() }
    }
}

/// The policy that this host enforces, as settings of the loops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Settings of the agent itself (`[agent]`).
    pub agent: AgentConfig,
    /// Pools with a latency target, by name: packets to noisy clients of these pools are delayed.
    pub packets: BTreeMap<String, PacketsConfig>,
    /// Devices whose control groups have throughput guarantees, by the names of their pools.
    pub cached: BTreeMap<String, CachedConfig>,
    /// Devices whose noisy control groups are throttled for a latency target, by the names of their pools.
    pub local: BTreeMap<String, LocalConfig>,
    /// Arrays that this host shares with others, by the names of their pools.
    pub arrays: BTreeMap<String, ArrayConfig>,
    /// The cluster of hosts that share arrays or limits of tenants (`[cluster]`).
    pub cluster: Cluster,
    /// Ceph OSDs of this host, if a pool names them.
    pub ceph: Option<CephConfig>,
    /// The enforced settings as rows of the effective policy, for `evenkeel check`.
    pub enforced: Enforced,
    /// Notes on the parts of the policy that the agent does not enforce on this host.
    pub notes: Vec<Problem>,
}

/// Settings of the agent itself: the table `[agent]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Address of API and metrics, or "off".
    pub status: Status,
    /// Time between decisions.
    pub interval: Duration,
    /// Time between searches for clients, targets and devices.
    pub discover_every: Duration,
    /// Network devices by which clients are reached; without any, the agent measures and decides, and delays no packet.
    pub interfaces: Vec<String>,
    /// TCP ports of the targets: iSCSI, NVMe/TCP, NBD.
    pub ports: Vec<u16>,
    /// Step of delays.
    pub step: Duration,
    /// Longest delay.
    pub max_delay: Duration,
    /// A delay that the agent does not renew ends after this; set it longer for 100,000 delayed clients.
    pub timeout: Duration,
    /// File of changed settings.
    pub journal: PathBuf,
    /// Folder with the history in its subfolder `history`. Default: `$STATE_DIRECTORY`, as systemd sets it, else no history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Bound on the history, at least "4MiB"; or "off".
    pub history: Bound,
    /// Packets to delay.
    pub packets: Packets,
    /// HTTPS for other machines.
    pub http: Http,
    /// Certificates for HTTPS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Files>,
    /// OSDs.
    pub ceph: CephSettings,
}

impl AgentConfig {
    /// TLS and client certificates with which the API and metrics are served.
    pub fn terms(&self) -> Terms {
        Terms { table: "agent", http: self.http.clone(), files: self.tls.clone() }
    }

    /// Folder of the history; `None` without a folder for data. `state_directory`: the value of `$STATE_DIRECTORY`, of whose
    /// folders the first counts.
    pub fn history_path(&self, state_directory: Option<&str>) -> Option<PathBuf> {
        let of_service = || state_directory?.split(':').next().filter(|path| !path.is_empty()).map(PathBuf::from);
        self.data_dir.clone().or_else(of_service).map(|folder| folder.join("history"))
    }
}

impl Default for AgentConfig {
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
            data_dir: None,
            history: Bound::default(),
            packets: Packets::Acknowledgements,
            http: Http::default(),
            tls: None,
            ceph: CephSettings::default(),
        }
    }
}

/// A pool with a latency target, for which packets to clients are delayed.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketsConfig {
    /// The latency target of the pool's reads.
    pub latency: Latency,
    /// Devices of the pool, by path or name. If empty, the pool consists of the devices on the volume group, array, multipath
    /// device or disk that has the pool's name.
    pub devices: Vec<String>,
    /// Method that chooses the delays.
    pub method: Method,
    /// Bytes per second above which a client is noisy for `method = "pid"`; the method "adaptive" compares the clients'
    /// shares of the load instead.
    pub noisy_above: Bytes,
    /// Permitted throttling of the clients of each tenant.
    pub throttles: Throttles,
}

/// Permitted throttling of the clients of one tenant on one pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientTerms {
    /// Name of the tenant; empty for clients that no tenant names.
    pub tenant: String,
    /// Throttle rank of the tenant's clients: never throttled, last, normally or always.
    pub throttle: Throttle,
    /// The tenant's reservation and guarantee; no throttle takes the tenant's throughput below them.
    pub owed: Owed,
}

/// The tenants that name clients, and how the clients of each may be throttled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Throttles {
    /// Entries of the tenants' `match` settings, each with the index of its tenant in `tenants`; the most specific entry
    /// first.
    by_entry: Arc<Vec<(Match, usize)>>,
    /// Terms of each tenant; index 0 is for clients that no tenant names.
    tenants: Arc<Vec<ClientTerms>>,
}

impl Throttles {
    /// The tenant of a client with this address and these initiator names, as an index of [`Self::tenants`]; 0 if no tenant
    /// names the client.
    pub fn tenant_of(&self, address: IpAddr, names: &[String]) -> usize {
        let known = self.by_entry.iter().find(|(entry, _)| entry.names_initiator(address, names));
        known.map_or(0, |(_, place)| *place)
    }

    /// The terms of each tenant; at index 0 those of clients that no tenant names.
    pub fn tenants(&self) -> &[ClientTerms] {
        &self.tenants
    }
}

/// The kernel features that decide which latency targets this host can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// True if the kernel shows the block layer's tracepoints, by which single reads are measured.
    pub tracepoints: bool,
}

/// Translates a pool to the settings of each enforcement point that applies to the pool. The order matters: later points look
/// at the earlier ones' settings.
fn at_each_point(lowering: &mut lower::Lowering<'_, '_>, name: &str, pool: &Pool, abilities: Abilities) {
    lowering.osds(name, pool);
    lowering.array(name, pool);
    lowering.groups(name, pool);
    lowering.local(name, pool, abilities);
    lowering.packets(name, pool, abilities);
}

impl Config {
    /// Reads a configuration; `origin` names the text in errors.
    ///
    /// # Errors
    /// All faults of the configuration.
    pub fn parse(text: &str, origin: &str, abilities: Abilities) -> Result<Self, Errors> {
        Self::check(&Source::of(text, origin), abilities).map(|(config, _)| config)
    }

    /// Reads a configuration like [`Self::parse`]; also returns warnings.
    ///
    /// # Errors
    /// All faults of the configuration.
    pub fn check(source: &Source, abilities: Abilities) -> Result<(Self, Vec<Problem>), Errors> {
        let (document, mut errors) = Document::of(source);
        let (file, more) = document.read::<File>();
        errors.extend(more);
        let lowered = file.map(|file| lower::lower(file, &document, abilities));
        let lowered = lowered.map(|lowered| {
            errors.extend(lowered.faults);
            (lowered.config, lowered.doubts)
        });
        errors.sort_by_key(|problem| problem.position);
        errors.dedup();
        match lowered.filter(|_| errors.is_empty()) {
            Some(lowered) => Ok(lowered),
            None => Err(Errors(errors)),
        }
    }

    /// Reads a configuration file and the policy file that it names; also returns warnings.
    ///
    /// # Errors
    /// A file cannot be read, or the configuration has faults, all of which the error lists.
    pub fn read(path: &Path, abilities: Abilities) -> Result<(Self, Vec<Problem>), Errors> {
        Self::check(&Source::read(path)?, abilities)
    }

    /// True if block devices and their clients have to be watched, because the policy enforces more than throttles of OSDs.
    pub fn watches_devices(&self) -> bool {
        !(self.packets.is_empty() && self.cached.is_empty() && self.local.is_empty() && self.arrays.is_empty())
    }

    /// True if packets may be delayed: the configuration names network interfaces, and a pool has a latency target for
    /// packets.
    pub fn delays_packets(&self) -> bool {
        !self.agent.interfaces.is_empty() && !self.packets.is_empty()
    }

    /// True if the agent may change settings of this host under this configuration; otherwise the agent only measures,
    /// without a journal.
    pub fn sets_something(&self) -> bool {
        let groups = !self.cached.is_empty() || !self.local.is_empty();
        self.delays_packets() || groups || !self.arrays.is_empty() || self.ceph.is_some()
    }

    /// True if limits or guarantees of control groups on this host are totals over all members of the cluster. Limits of tenants
    /// with a throughput guarantee are not: the guarantee limits their groups.
    pub fn shares_totals(&self) -> bool {
        let has_limit = |tenant: &LocalTenant| !tenant.guaranteed && !tenant.limit.rates().is_unset();
        let has_limits = || self.local.values().flat_map(|local| &local.tenants).any(has_limit);
        self.cluster.has_totals() && (!self.cached.is_empty() || has_limits())
    }

    /// The changes in `newer` that need a restart of the agent, as texts: changed keys of `[agent]`, `[cluster]` and OSDs,
    /// and the first use of a part of the agent that is not running. `has_joined`: true if the agent shares totals of limits in
    /// a cluster, which it does from its start on or never.
    pub fn needs_restart(&self, newer: &Self, has_joined: bool) -> Vec<String> {
        let values = |config: &Self| serde_json::to_value(&config.agent).unwrap_or_default();
        let (old, new) = (values(self), values(newer));
        let keys = old.as_object().into_iter().chain(new.as_object()).flat_map(|values| values.keys());
        let keys: BTreeSet<&String> = keys.filter(|key| old.get(key) != new.get(key)).collect();
        let mut changed: Vec<String> = keys.into_iter().map(|key| format!("agent.{key}")).collect();
        changed.extend((self.cluster != newer.cluster).then(|| "cluster".to_owned()));
        changed.extend((self.ceph != newer.ceph).then(|| "changing pools with osd: devices".to_owned()));
        let begins = |of: fn(&Self) -> bool| !of(self) && of(newer);
        changed.extend(begins(Self::watches_devices).then(|| "adding the first pool with devices".to_owned()));
        let slots = begins(|config| !config.arrays.is_empty());
        changed.extend(slots.then(|| "adding the first pool with slots".to_owned()));
        // Without arrays and totals the agent has not joined the cluster.
        let totals = begins(Self::shares_totals) && self.arrays.is_empty() && !has_joined;
        changed.extend(totals.then(|| "adding the first limit or guarantee of control groups in a cluster".to_owned()));
        let only_watched = self.watches_devices() && !self.sets_something();
        changed.extend((only_watched && !newer.cached.is_empty()).then(|| "adding the first guarantee".to_owned()));
        let targets = begins(|config| !config.packets.is_empty());
        changed.extend(targets.then(|| "adding the first latency target".to_owned()));
        // Programs that time the reads of groups are loaded at the start, with a place for each pool.
        let differs = self.local.keys().ne(newer.local.keys());
        changed.extend(differs.then(|| "changing the devices with a target or limits for control groups".to_owned()));
        let groups_percentile = |config: &Self| config.local.values().any(|pool| pool.figure() != Percentile::Mean);
        let first = !differs && !groups_percentile(self) && groups_percentile(newer);
        changed.extend(first.then(|| "adding the first latency target of control groups for a percentile".to_owned()));
        let percentile =
            |config: &Self| config.packets.values().any(|pool| pool.latency.percentile != Percentile::Mean);
        // Single reads are measured from the start or never.
        let first = !percentile(self) && percentile(newer);
        changed.extend(first.then(|| "adding the first latency target for a percentile".to_owned()));
        if (percentile(self) || percentile(newer)) && self.packets.keys().ne(newer.packets.keys()) {
            changed.push("changing the pools with latency targets while one target is for a percentile".to_owned());
        }
        changed
    }

    /// Names of the pools whose settings differ between this configuration and `newer`; OSDs do not count.
    pub fn changed_pools(&self, newer: &Self) -> Vec<String> {
        fn differ<T: PartialEq>(old: &BTreeMap<String, T>, new: &BTreeMap<String, T>) -> BTreeSet<String> {
            old.keys().chain(new.keys()).filter(|name| old.get(*name) != new.get(*name)).cloned().collect()
        }
        let mut changed = differ(&self.packets, &newer.packets);
        changed.extend(differ(&self.cached, &newer.cached));
        changed.extend(differ(&self.local, &newer.local));
        changed.extend(differ(&self.arrays, &newer.arrays));
        changed.into_iter().collect()
    }

    /// Time between two ticks: `agent.interval`, or the sampling interval of OSDs if only OSDs are controlled.
    pub fn interval(&self) -> Duration {
        let of_osds = self.ceph.as_ref().filter(|_| !self.watches_devices());
        of_osds.map_or(self.agent.interval, |ceph| ceph.settings.sample_every)
    }

    /// Devices by name of the pool, for pools whose configuration names devices; discovery finds the devices of the other
    /// pools.
    pub fn configured(&self) -> crate::discovery::map::Configured {
        let named = self.packets.iter().filter(|(_, pool)| !pool.devices.is_empty());
        named.map(|(name, pool)| (name.clone(), pool.devices.clone())).collect()
    }

    /// Settings of the controller that chooses the packet delays for `pool`.
    pub fn controller(&self, pool: &PacketsConfig) -> response::Config {
        response::Config {
            interval: self.agent.interval,
            step: self.agent.step,
            max_delay: self.agent.max_delay,
            noisy_bytes_per_s: pool.noisy_above.0,
            ..pool.method.published(pool.latency.target)
        }
    }
}
