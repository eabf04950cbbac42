//! A tenant of the policy: the clients and volumes that belong to it, and its settings.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use evenkeel_control::mclock::Qos;
use evenkeel_control::pool::slots::LatencyTarget;
use evenkeel_control::pool::target::Statistic;
pub use evenkeel_control::response::Throttle;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de};

use crate::access::{Caller, Who};
use crate::hours::Hours;
use crate::names::closest;
use crate::units::{Bytes, Duration, Rates, UnitError, as_text};

/// A tenant: the clients, volumes and control groups that belong to it, and its QoS policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tenant {
    /// Clients, volumes, devices and control groups that belong to it.
    #[serde(rename = "match")]
    pub matches: Vec<Match>,
    /// Each volume or control group is a tenant of its own: `database/db-3`.
    pub each: bool,
    /// Share of what reservations leave, and of the budget; 1 to 1000000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub weight: u32,
    /// Weight at some hours: `{ weight = 8, when = "22:00-06:00" }`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_at: Option<WeightAt>,
    /// Rate that the tenant gets whenever it asks.
    pub reservation: Rates,
    /// Largest rate, not below the reservation: `iops`, `bytes_per_s`, `burst`, `when` (`"22:00-06:00"`).
    pub limit: Limit,
    /// Throughput guarantee over each second in which the tenant asks for it: `iops` or `bytes_per_s`, not above `limit`,
    /// useless below `reservation`. For one direction `read` or `write` (`guarantee.read = { bytes_per_s = "40MB" }`), beside
    /// it `ceiling`, the most to which `guard` sets `io.max`.
    pub guarantee: Guarantee,
    /// Latency target over each second, on pools with `slots`: `{ target = "10ms", percentile = 99, of = "all" }`; `percentile`
    /// defaults to "mean".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Rank in the scheduler.
    pub priority: Priority,
    /// Throttle rank for others' latency targets.
    pub throttle: Throttle,
    /// For `guard`: most requests in flight of each device in `match`, on pools with `slots`. Default: its queue depth.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_in_flight: Option<u32>,
    /// `[tenants.NAME.pools.POOL]`: any key of this table but `match`, `each` and `pools`, for one pool.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<String, OnPool>,
}

/// Settings of a tenant that differ on one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OnPool {
    /// As `weight` of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub weight: Option<u32>,
    /// As `weight_at` of the tenant; that one has no effect on a pool with a `weight` of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_at: Option<WeightAt>,
    /// As `reservation` of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Rates>,
    /// As `limit` of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// As `guarantee` of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Guarantee>,
    /// As `latency` of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// As `priority` of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// As `throttle` of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Throttle>,
    /// As `max_in_flight` of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_in_flight: Option<u32>,
}

impl Default for Tenant {
    fn default() -> Self {
        Self {
            matches: Vec::new(),
            each: false,
            weight: 1,
            weight_at: None,
            reservation: Rates::default(),
            limit: Limit::default(),
            guarantee: Guarantee::default(),
            latency: None,
            priority: Priority::Normal,
            throttle: Throttle::Normal,
            max_in_flight: None,
            pools: BTreeMap::new(),
        }
    }
}

impl Tenant {
    /// True if the tenant has a reservation, a guarantee or a latency target on any pool.
    pub fn is_owed_something(&self) -> bool {
        let own = |own: &OnPool| own.reservation.is_some() || own.guarantee.is_some() || own.latency.is_some();
        let everywhere = self.reservation != Rates::default() || self.guarantee != Guarantee::default();
        everywhere || self.latency.is_some() || self.pools.values().any(own)
    }

    /// The tenant with the settings that apply to it on the pool with this name.
    pub fn on(&self, pool: &str) -> Self {
        let base = self.clone();
        let Some(own) = self.pools.get(pool) else { return Self { pools: BTreeMap::new(), ..base } };
        Self {
            matches: base.matches,
            each: base.each,
            weight: own.weight.unwrap_or(base.weight),
            weight_at: own.weight_at.or(base.weight_at.filter(|_| own.weight.is_none())),
            reservation: own.reservation.unwrap_or(base.reservation),
            limit: own.limit.unwrap_or(base.limit),
            guarantee: own.guarantee.unwrap_or(base.guarantee),
            latency: own.latency.or(base.latency),
            priority: own.priority.unwrap_or(base.priority),
            throttle: own.throttle.unwrap_or(base.throttle),
            max_in_flight: own.max_in_flight.or(base.max_in_flight),
            pools: BTreeMap::new(),
        }
    }

    /// The weight that applies at the time that was set last; without any, `weight`.
    pub fn weight_in_force(&self) -> u32 {
        self.weight_at.filter(|at| at.is_on).map_or(self.weight, |at| at.weight)
    }

    /// Puts the limits and weights with hours into force or out of it, as they are at this minute of the day.
    pub(crate) fn set_time(&mut self, minute: u16) {
        let set = |limit: Option<&mut Limit>, weight: Option<&mut WeightAt>| {
            if let Some(limit) = limit {
                limit.set_time(minute);
            }
            if let Some(weight) = weight {
                weight.is_on = weight.when.contains(minute);
            }
        };
        set(Some(&mut self.limit), self.weight_at.as_mut());
        self.pools.values_mut().for_each(|own| set(own.limit.as_mut(), own.weight_at.as_mut()));
    }

    /// The tenant's latency target as the pool's type.
    pub fn latency_target(&self) -> Option<LatencyTarget> {
        let latency = self.latency?;
        Some(LatencyTarget { time: latency.target, statistic: latency.percentile.into() })
    }
}

impl From<&Tenant> for Qos {
    fn from(tenant: &Tenant) -> Self {
        Self {
            reservation: tenant.reservation.into(),
            limit: tenant.limit.in_force().into(),
            weight: tenant.weight_in_force(),
            burst: tenant.limit.burst,
            background: tenant.priority == Priority::Background,
        }
    }
}

/// A pair of rates that are never exceeded together; a rate left out (or 0) is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limit {
    /// Requests per second; 0 = not set.
    pub iops: u64,
    /// Payload bytes per second, for example "200MB"; 0 = not set.
    pub bytes_per_s: Bytes,
    /// Unused limit that may be saved up, as time at the limit rate. It also makes up for late wake-ups: 0 costs throughput.
    pub burst: Duration,
    /// Hours of the day in which the limit applies, by the host's clocks: "22:00-06:00". Default: all. They move with clocks that
    /// are set forward or back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Hours>,
    /// True outside the hours in `when`; set by [`Config::set_time`](crate::Config::set_time).
    #[serde(skip)]
    pub is_off: bool,
}

impl Default for Limit {
    fn default() -> Self {
        Self { iops: 0, bytes_per_s: Bytes(0), burst: Duration::from_millis(10), when: None, is_off: false }
    }
}

impl Limit {
    /// The rates of the value, at any hour, without its other settings.
    pub const fn rates(self) -> Rates {
        Rates { iops: self.iops, bytes_per_s: self.bytes_per_s }
    }

    /// The rates that apply at the time that was set last; without any, at all hours.
    pub const fn in_force(self) -> Rates {
        if self.is_off { Rates { iops: 0, bytes_per_s: Bytes(0) } } else { self.rates() }
    }

    /// Puts the limit into force or out of it, as it is at this minute of the day.
    pub(crate) fn set_time(&mut self, minute: u16) {
        self.is_off = self.when.is_some_and(|hours| !hours.contains(minute));
    }
}

/// The rates and the hours: `400MB/s at 22:00-06:00`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rates().fmt(f)?;
        self.when.map_or(Ok(()), |hours| write!(f, " at {hours}"))
    }
}

/// A weight at some hours of the day, in place of the tenant's other weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightAt {
    /// The weight in these hours; 1 to 1000000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub weight: u32,
    /// Hours of the day in which the weight applies, by the host's clocks: "22:00-06:00".
    pub when: Hours,
    /// True in the hours in `when`; set by [`Config::set_time`](crate::Config::set_time).
    #[serde(skip)]
    pub is_on: bool,
}

/// A throughput guarantee: of reads and writes together, or of each direction for itself; each either iops or bytes_per_s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Guarantee {
    /// Requests per second, reads and writes together; 0 = not guaranteed.
    pub iops: u64,
    /// Payload bytes per second, reads and writes together, for example "50MB"; 0 = not guaranteed.
    pub bytes_per_s: Bytes,
    /// Of reads; writes are not throttled for it.
    pub read: Direction,
    /// Of writes; reads are not throttled for it.
    pub write: Direction,
}

/// A throughput guarantee of one direction: either iops or bytes_per_s; a rate left out (or 0) is not guaranteed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Direction {
    /// Requests per second; 0 = not guaranteed.
    pub iops: u64,
    /// Payload bytes per second, for example "200MB"; 0 = not guaranteed.
    pub bytes_per_s: Bytes,
    /// The limit that keeps the guarantee is never above this, in the unit of the guarantee; for control groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Bytes>,
}

/// A latency target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Upper bound on the latency from arrival to completion.
    pub target: Duration,
    /// The figure of the latencies that is compared with the target: "mean", or a percentile such as 99.
    #[serde(default)]
    pub percentile: Percentile,
    /// The requests that count: "reads" for a pool and "all" for a tenant, which are the defaults; others are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Of>,
}

impl Latency {
    /// A latency target for the mean latency.
    pub const fn mean(target: Duration) -> Self {
        Self { target, percentile: Percentile::Mean, of: None }
    }
}

/// The requests whose latency counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Both.
    All,
}

/// The statistic of latencies that a target bounds: the mean, or a percentile such as 99.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Percentile {
    /// The mean of the latencies.
    #[default]
    Mean,
    /// A percentile of the latencies, above 0 and below 100.
    At(f64),
}

// What is read is a number.
impl Eq for Percentile {}

impl Percentile {
    fn at(percent: f64) -> Result<Self, String> {
        if percent > 0.0 && percent < 100.0 {
            return Ok(Self::At(percent));
        }
        Err(format!("{percent} is not a percentile; write \"mean\", or a number above 0 and below 100 such as 99"))
    }
}

/// The name in records and messages: `mean`, `p99`.
impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mean => f.write_str("mean"),
            Self::At(percent) => write!(f, "p{percent}"),
        }
    }
}

impl From<Percentile> for Statistic {
    fn from(percentile: Percentile) -> Self {
        match percentile {
            Percentile::Mean => Self::Mean,
            Percentile::At(percent) => Self::Percentile(percent),
        }
    }
}

impl From<Statistic> for Percentile {
    fn from(statistic: Statistic) -> Self {
        match statistic {
            Statistic::Mean => Self::Mean,
            Statistic::Percentile(percent) => Self::At(percent),
        }
    }
}

impl Serialize for Percentile {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Mean => serializer.serialize_str("mean"),
            Self::At(percent) if percent.fract() == 0.0 => serializer.serialize_u64(*percent as u64),
            Self::At(percent) => serializer.serialize_f64(*percent),
        }
    }
}

impl<'de> Deserialize<'de> for Percentile {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Percentile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"mean\", or a percentile such as 99")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Percentile, E> {
                match text {
                    "mean" => Ok(Percentile::Mean),
                    _ => Err(E::custom(format!(
                        "{text:?} is not a statistic of latencies; write \"mean\", or a percentile such as 99"
                    ))),
                }
            }

            fn visit_u64<E: de::Error>(self, percent: u64) -> Result<Percentile, E> {
                self.visit_f64(percent as f64)
            }

            fn visit_i64<E: de::Error>(self, percent: i64) -> Result<Percentile, E> {
                self.visit_f64(percent as f64)
            }

            fn visit_f64<E: de::Error>(self, percent: f64) -> Result<Percentile, E> {
                Percentile::at(percent).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Percentile {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Percentile".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "const": "mean" }, { "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 100 }]
        })
    }
}

/// Rank of a tenant in the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Served by weight.
    #[default]
    Normal,
    /// Beyond its reservation, served when no normal tenant can be.
    Background,
}

/// An entry of a tenant's `match`: clients, volumes or other objects that belong to the tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// Clients of the server, named as in `allow` and `deny`.
    Client(Who),
    /// Volumes whose names fit this pattern; `*` stands for any letters, `?` for one letter.
    Volume(String),
    /// Clients of this host's iSCSI targets whose initiator names fit this pattern, with `*` and `?` as for volumes.
    Initiator(String),
    /// Control groups of this host whose paths below /sys/fs/cgroup fit this pattern; `*` and `?` stand for letters of one name
    /// in the path.
    Cgroup(String),
    /// Containers of this host (Docker, Podman, containerd, CRI-O) whose names fit this pattern, with `*` and `?` as for volumes.
    Container(String),
    /// Kubernetes pods of this host whose namespaces and names fit the two patterns of `NAMESPACE/NAME`.
    Pod(String),
    /// Kubernetes pods of this host with a label `KEY=VALUE`; the value is a pattern, as for volumes.
    PodLabel(String),
    /// Kubernetes pods of this host with an annotation `KEY=VALUE`; the value is a pattern, as for volumes.
    PodAnnotation(String),
    /// Virtual machines of this host (libvirt, systemd-machined) whose names fit this pattern.
    Machine(String),
    /// Block devices of this host whose paths or names fit this pattern, with `*` and `?` as for volumes.
    Device(String),
}

const VOLUME: &str = "volume:";
const INITIATOR: &str = "initiator:";
const CGROUP: &str = "cgroup:";
const CONTAINER: &str = "container:";
const POD: &str = "pod:";
const POD_LABEL: &str = "pod-label:";
const POD_ANNOTATION: &str = "pod-annotation:";
const MACHINE: &str = "machine:";
const DEVICE: &str = "device:";
/// The prefixes of entries, before the colon, with the kind of entry that each denotes.
const KINDS: [&str; 12] = [
    "volume",
    "address",
    "uid",
    "certificate",
    "initiator",
    "cgroup",
    "container",
    "pod",
    "pod-label",
    "pod-annotation",
    "machine",
    "device",
];

/// Prefix of a kind of entries with any pattern behind it, what makes an entry of the pattern, and the message for an entry
/// without a pattern.
type Patterned = (&'static str, fn(String) -> Match, &'static str);

/// The kinds of entries with any pattern behind a prefix.
const PATTERNS: [Patterned; 5] = [
    (VOLUME, Match::Volume, "names no volume; write for example \"volume:db-*\""),
    (
        INITIATOR,
        Match::Initiator,
        "names no client of a target; write for example \"initiator:iqn.2026-01.example:db\"",
    ),
    (CONTAINER, Match::Container, "names no container; write for example \"container:db-*\""),
    (MACHINE, Match::Machine, "names no virtual machine; write for example \"machine:db-*\""),
    (DEVICE, Match::Device, "names no device; write for example \"device:/dev/mapper/mpatha\""),
];

/// The kinds of entries with `KEY=VALUE` behind a prefix.
const MARKS: [(&str, Marked); 2] = [(POD_LABEL, Match::PodLabel), (POD_ANNOTATION, Match::PodAnnotation)];

/// Makes an entry from its `KEY=VALUE`.
type Marked = fn(String) -> Match;

impl Match {
    /// True if the entry names this client.
    pub fn names(&self, caller: &Caller<'_>) -> bool {
        matches!(self, Self::Client(who) if who.names(caller))
    }

    /// True if the entry names this volume.
    pub fn names_volume(&self, name: &str) -> bool {
        matches!(self, Self::Volume(pattern) if fits(pattern, name))
    }

    /// True if the entry names the control group with this path.
    pub fn names_group(&self, path: &str) -> bool {
        matches!(self, Self::Cgroup(pattern) if fits_path(pattern, path))
    }

    /// True if the entry names an initiator (client of an iSCSI target) by its address or one of its names.
    pub fn names_initiator(&self, address: IpAddr, names: &[String]) -> bool {
        match self {
            Self::Client(Who::Address(block)) => block.contains(address),
            Self::Initiator(pattern) => names.iter().any(|name| fits(pattern, name)),
            _ => false,
        }
    }

    /// True if the entry names control groups of a host, by their paths or by the names of what runs in them.
    pub const fn is_of_groups(&self) -> bool {
        matches!(self, Self::Cgroup(_) | Self::Container(_) | Self::Pod(_) | Self::Machine(_)) || self.is_marked()
    }

    /// True if the entry names pods by a label or annotation, which only the container runtime knows.
    pub const fn is_marked(&self) -> bool {
        matches!(self, Self::PodLabel(_) | Self::PodAnnotation(_))
    }
}

impl FromStr for Match {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        for (prefix, entry, wrong) in PATTERNS {
            match text.strip_prefix(prefix) {
                None => {}
                Some("") => return Err(UnitError::new(format!("{text:?} {wrong}"))),
                Some(pattern) => return Ok(entry(pattern.to_owned())),
            }
        }
        if let Some(group) = text.strip_prefix(CGROUP) {
            let outside = group.split('/').any(|part| part == "..");
            if outside || group.split('/').all(str::is_empty) {
                return Err(UnitError::new(format!(
                    "{text:?} must be a path below /sys/fs/cgroup, as `systemd-cgls` shows them; write for example \"cgroup:system.slice/postgresql.service\""
                )));
            }
            return Ok(Self::Cgroup(group.to_owned()));
        }
        if let Some(pattern) = text.strip_prefix(POD) {
            let parts: Vec<&str> = pattern.split('/').collect();
            if !matches!(parts[..], [namespace, name] if !namespace.is_empty() && !name.is_empty()) {
                return Err(UnitError::new(format!(
                    "{text:?} must be a namespace and the name of a pod; write for example \"pod:shop/postgres-*\""
                )));
            }
            return Ok(Self::Pod(pattern.to_owned()));
        }
        for (prefix, entry) in MARKS {
            let Some(pattern) = text.strip_prefix(prefix) else { continue };
            let key = pattern.split_once('=').map_or("", |(key, _)| key);
            if key.is_empty() || key.contains(['*', '?']) {
                return Err(UnitError::new(format!(
                    "{text:?} must be a key and a value, which may have wildcards; write for example \"{prefix}app=postgres-*\""
                )));
            }
            return Ok(entry(pattern.to_owned()));
        }
        let who = text.parse().map(Self::Client);
        who.map_err(|error: UnitError| {
            let kind = text.split_once(':').and_then(|(kind, name)| Some((kind, closest(kind, &KINDS)?, name)));
            match kind {
                Some((kind, meant, name)) if kind != meant => {
                    let (meant, what) = (format!("{meant}:{name}"), "names neither clients nor volumes");
                    return UnitError::new(format!("{text:?} {what}; did you mean {meant:?}?"));
                }
                None if !text.contains('/') => {}
                _ => return error,
            }
            UnitError::new(format!(
                "{text:?} names neither clients nor volumes; write \"volume:db-*\", \"address:10.1.0.0/16\", \"uid:1000\", \"unix\", \"certificate:db.example.org\", \"initiator:NAME\", \"cgroup:PATH\", \"container:NAME\", \"pod:NAMESPACE/NAME\", \"pod-label:KEY=VALUE\", \"pod-annotation:KEY=VALUE\", \"machine:NAME\" or \"device:PATH\""
            ))
        })
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(Who::Address(block)) => write!(f, "address:{block}"),
            Self::Client(who) => who.fmt(f),
            Self::Volume(pattern) => write!(f, "{VOLUME}{pattern}"),
            Self::Initiator(pattern) => write!(f, "{INITIATOR}{pattern}"),
            Self::Cgroup(group) => write!(f, "{CGROUP}{group}"),
            Self::Container(pattern) => write!(f, "{CONTAINER}{pattern}"),
            Self::Pod(pattern) => write!(f, "{POD}{pattern}"),
            Self::PodLabel(pattern) => write!(f, "{POD_LABEL}{pattern}"),
            Self::PodAnnotation(pattern) => write!(f, "{POD_ANNOTATION}{pattern}"),
            Self::Machine(pattern) => write!(f, "{MACHINE}{pattern}"),
            Self::Device(device) => write!(f, "{DEVICE}{device}"),
        }
    }
}

as_text!(Match, "volumes or clients such as \"volume:db-*\", \"address:10.1.0.0/16\", \"uid:1000\" or \"certificate:db.example.org\"", None, { "type": "string" });

/// True if a path fits a pattern: each of its names that of the pattern at the same place, see [`fits`]. Slashes at the start
/// and the end do not count.
pub fn fits_path(pattern: &str, path: &str) -> bool {
    let mut path = path.split('/').filter(|part| !part.is_empty());
    let mut pattern = pattern.split('/').filter(|part| !part.is_empty());
    pattern.all(|part| path.next().is_some_and(|name| fits(part, name))) && path.next().is_none()
}

/// True if a name fits a pattern, in which `*` stands for any letters and `?` for one letter. O(letters of the pattern × letters
/// of the name); a name with another beginning than the pattern takes few steps.
pub fn fits(pattern: &str, name: &str) -> bool {
    let given = pattern.find(['*', '?']).unwrap_or(pattern.len());
    if !name.starts_with(&pattern[..given]) {
        return false;
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut here, mut star) = (0, 0, None);
    while here < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, here));
                at += 1;
            }
            Some(&letter) if letter == '?' || letter == name[here] => {
                at += 1;
                here += 1;
            }
            _ => {
                let Some((behind, taken)) = star else { return false };
                star = Some((behind, taken + 1));
                (at, here) = (behind + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|&letter| letter == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_groups_fits_name_by_name() {
        let entry: Match = "cgroup:system.slice/db-*.service".parse().unwrap();
        assert!(entry.names_group("system.slice/db-1.service") && entry.names_group("/system.slice/db-1.service/"));
        assert!(!entry.names_group("system.slice/db-1.service/worker") && !entry.names_group("system.slice"));
        assert!(!fits_path("a*", "a/b") && fits_path("a*/?", "ab/b") && !fits_path("*", "/"));
        assert!(!Match::Volume("system.slice".into()).names_group("system.slice"));
    }

    #[test]
    fn patterns_fit_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("db-*", "db-1", true),
            ("db-*", "db-", true),
            ("db-*", "adb-1", false),
            ("*", "", true),
            ("d?sk*0", "disk-00", true),
            ("d?sk*0", "disk-01", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("disk0", "disk0", true),
            ("disk0", "disk01", false),
            ("disk0*", "disk", false),
            ("?isk0", "äisk0", true),
            ("ä?", "ä", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn an_entry_prints_as_it_is_written() {
        for text in [
            "volume:db-*",
            "address:10.1.0.0/16",
            "uid:1000",
            "unix",
            "certificate:db.example.org",
            "initiator:iqn.2026-01.example:db",
            "cgroup:system.slice/postgresql@*.service",
            "container:db-*",
            "pod:shop/postgres-?",
            "pod-label:app.kubernetes.io/name=postgres",
            "pod-annotation:example.org/storage=*",
            "machine:db 1",
            "device:/dev/mapper/mpatha",
        ] {
            assert_eq!(text.parse::<Match>().unwrap().to_string(), text);
        }
        assert_eq!("10.1.0.0/16".parse::<Match>().unwrap().to_string(), "address:10.1.0.0/16");
        for text in [
            "volume:",
            "db-*",
            "address:10.1.0.1/16",
            "uid:root",
            "",
            "initiator:",
            "device:",
            "container:",
            "machine:",
            "pod:",
            "pod:shop",
            "pod:/db",
            "pod:shop/",
            "pod:shop/db/0",
            "pod-label:app",
            "pod-label:=db",
            "pod-annotation:a*=b",
            "cgroup:/",
            "cgroup:a/../b",
        ] {
            assert!(text.parse::<Match>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_entry_of_unknown_kind_is_answered_by_the_kinds_there_are() {
        for (text, words) in [
            ("volumes:db-*", "did you mean \"volume:db-*\"?"),
            ("containr:db", "did you mean \"container:db\"?"),
            ("pods:a/b", "did you mean \"pod:a/b\"?"),
            ("devce:/dev/sda", "did you mean \"device:/dev/sda\"?"),
            ("vol:db-*", "write \"volume:db-*\""),
            ("user:root", "\"initiator:NAME\""),
            ("uid:root", "is not a user; write \"uid:\""),
            ("10.1.0.1/16", "write \"10.1.0.0/16\""),
        ] {
            let error = text.parse::<Match>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_percentile_prints_as_it_is_written() {
        let read = |text: &str| toml::from_str::<Latency>(&format!("target = \"5ms\"\npercentile = {text}"));
        for (text, expected) in
            [("99", Percentile::At(99.0)), ("99.9", Percentile::At(99.9)), ("\"mean\"", Percentile::Mean)]
        {
            let latency = read(text).unwrap();
            assert_eq!(latency.percentile, expected);
            assert_eq!(toml::from_str::<Latency>(&toml::to_string(&latency).unwrap()).unwrap(), latency);
        }
        for text in ["0", "100", "-1", "\"median\"", "\"p99\"", "nan"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
