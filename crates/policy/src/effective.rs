//! The effective policy of a host: the enforcement point of each setting, the setting that wins over others, and settings that
//! are not enforced.
//!
//! `evenkeel check` shows these records. [`served`] gives the part of `evenkeel serve`; `evenkeel guard` makes its own part when
//! it translates the policy to its control loops.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{
    Backend, Config, DEFAULT_TENANT, Enforcement, Latency, Match, Of, Pool, Priority, Scheduler, Slots, Tenant,
    Throttle,
};
use crate::document::dotted;
use crate::problem::Problem;
use crate::units::Rates;

/// Settings in the order in which they win: a later one never breaks an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precedence {
    /// The limit of a pool.
    PoolLimit,
    /// The reservation of a tenant.
    Reservation,
    /// The limit of a tenant, which is never below its reservation.
    TenantLimit,
    /// The throughput guarantee of a tenant.
    Guarantee,
    /// The latency target of a pool or tenant.
    Latency,
    /// The weight of a tenant.
    Weight,
}

evenkeel_control::named!(Precedence: PoolLimit "pool limit", Reservation "reservation", TenantLimit "tenant limit",
    Guarantee "throughput guarantee", Latency "latency target", Weight "weight");

impl Precedence {
    /// The setting's rank in the order of precedence; rank 1 wins over all others.
    pub const fn rank(self) -> usize {
        self as usize + 1
    }

    /// Name of the setting with precedence, of this one and `other`.
    pub fn winner(self, other: Self) -> &'static str {
        self.min(other).name()
    }

    /// The order of precedence of all settings, in words.
    pub fn in_words() -> String {
        let note = |entry| if entry == Self::TenantLimit { " (never below its reservation)" } else { "" };
        Self::ALL.map(|entry| format!("{} {}{}", entry.rank(), entry.name(), note(entry))).join(", ")
    }
}

/// A setting at the place where it is enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The tenant; null for all tenants or clients of the pool.
    pub tenant: Option<String>,
    /// The pool; null for all pools of the server, where clients bring the tenant.
    pub pool: Option<String>,
    /// The enforcement point.
    pub point: Enforcement,
    /// The setting and its value.
    pub setting: String,
    /// The requests that are measured for the setting.
    pub measured: String,
    /// The tenants that are throttled for the setting.
    pub throttled: String,
    /// Place of the setting in the precedence; null for admission control.
    pub precedence: Option<Precedence>,
    /// Devices and control groups that it is about, as the policy names them.
    pub on: Vec<String>,
    /// The state on this host: "unsuitable" if something is lost.
    pub here: Presence,
}

impl Row {
    /// A row about all tenants or clients of a pool.
    pub fn of_pool(pool: &str, point: Enforcement, precedence: Option<Precedence>, setting: String) -> Self {
        Self { pool: Some(pool.to_owned()), point, setting, precedence, ..Self::default() }
    }

    /// The row, completed by a text on the measured requests and a text on the throttled requests.
    #[must_use]
    pub fn by(self, measured: impl Into<String>, throttled: impl Into<String>) -> Self {
        Self { measured: measured.into(), throttled: throttled.into(), ..self }
    }

    /// True if the row is about the pool, device or control group with this name.
    pub fn is_about(&self, name: &str) -> bool {
        self.pool.as_deref() == Some(name) || self.on.iter().any(|on| on == name)
    }
}

/// The part of the policy that one program (server or agent) enforces on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforced {
    /// One row for each setting.
    pub rows: Vec<Row>,
    /// Names of the tenants whose requests are measured or throttled.
    pub tenants: BTreeSet<String>,
}

impl Enforced {
    /// Adds a row for a setting of a tenant.
    pub fn push(&mut self, tenant: &str, row: Row) {
        self.tenants.insert(tenant.to_owned());
        self.rows.push(Row { tenant: Some(tenant.to_owned()), ..row });
    }

    /// The notes of the other program that are about pools and tenants for which this program enforces no setting.
    fn uncovered(&self, mut notes: Vec<Problem>) -> Vec<Problem> {
        let pools = self.rows.iter().filter_map(|row| Some(dotted(&["pools", row.pool.as_deref()?])));
        let covered: BTreeSet<String> =
            pools.chain(self.tenants.iter().map(|name| dotted(&["tenants", name]))).collect();
        notes.retain(|note| !covered.contains(owner(&note.key)));
        notes
    }
}

/// The pool or tenant that a dotted key is about: the key's first two parts.
pub(crate) fn owner(key: &str) -> &str {
    let Some(table) = key.find('.') else { return key };
    let name = &key[table + 1..];
    let length = match name.strip_prefix('"') {
        Some(quoted) => quoted.find('"').map(|end| end + 2),
        None => name.find('.'),
    };
    &key[..length.map_or(key.len(), |length| table + 1 + length)]
}

/// Something that is not enforced here, or with less.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// Key of the setting in the policy, and the reason why it is not enforced.
    pub why: Problem,
    /// The effect on the host's tenants because the setting is not enforced.
    pub lost: String,
    /// The cure; empty if there is nothing to do where another host enforces it.
    pub cure: String,
    /// "unsuitable" if it is enforced all the same, with less.
    pub here: Presence,
}

impl From<Problem> for Missing {
    /// The record of a setting that is not enforced, from a program's note about its key.
    fn from(why: Problem) -> Self {
        if is_idle_tenant(&why) {
            let (what, cure) = why.message.split_once("; ").unwrap_or((why.message.as_str(), ""));
            let (message, cure) = (what.to_owned(), cure.to_owned());
            let lost = "its settings apply to no request".to_owned();
            return Self { why: Problem { message, ..why }, lost, cure, here: Presence::Missing };
        }
        let lost = match why.key.rsplit('.').next().unwrap_or_default() {
            "limit" => "requests beyond the limit are not throttled",
            "reservation" | "guarantee" | "read" | "write" => "the tenant may get less than the policy says",
            "latency" => "no request waits for the latency target to be met",
            "priority" => "the tenant is served as if its priority were normal",
            "match" => "the named clients and volumes belong to no tenant here",
            _ if why.key == owner(&why.key) => "no setting of this table is enforced",
            _ => "the setting has no effect",
        };
        Self { why, lost: lost.into(), cure: String::new(), here: Presence::Missing }
    }
}

/// The settings that neither server nor agent enforces. Each program is given by the policy that it enforces, and its notes on
/// settings that it leaves to the other program.
pub fn unenforced(serve: (&Enforced, Vec<Problem>), guard: (&Enforced, Vec<Problem>)) -> Vec<Missing> {
    // What is noted of such a tenant holds for each of its keys.
    let idle: BTreeSet<String> =
        serve.1.iter().filter(|note| is_idle_tenant(note)).map(|note| note.key.clone()).collect();
    let is_said = |note: &Problem| idle.contains(owner(&note.key)) && !idle.contains(&note.key);
    let mut notes = serve.0.uncovered(guard.1);
    notes.retain(|note| !is_said(note));
    if !serve.0.rows.is_empty() {
        notes.iter_mut().for_each(|note| {
            let is_whole_pool = note.message.starts_with("nothing to enforce here");
            note.message += if note.key.starts_with("tenants.") {
                "; no volume here belongs to the tenant"
            } else if is_whole_pool {
                "; no volume of this file is on the pool: is the pool's name right?"
            } else {
                "; no volume of this file uses this key"
            };
        });
    }
    let known: BTreeSet<String> = notes.iter().map(|note| note.key.clone()).collect();
    let is_new = |note: &Problem| !known.contains(&note.key) && !known.contains(owner(&note.key));
    notes.extend(guard.0.uncovered(serve.1).into_iter().filter(|note| is_new(note) && !is_said(note)));
    notes.into_iter().map(Missing::from).collect()
}

/// True if a note is about a tenant as a whole, to which neither volumes nor clients belong.
fn is_idle_tenant(note: &Problem) -> bool {
    note.key.starts_with("tenants.") && owner(&note.key) == note.key
}

/// Availability of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// In use as it is.
    #[default]
    Present,
    /// A module that is installed but not loaded.
    Loadable,
    /// There, but set so that something is lost.
    Unsuitable,
    /// Absent.
    Missing,
}

evenkeel_control::named!(Presence: Present "yes", Loadable "not loaded", Unsuitable "unsuitable", Missing "missing");

/// The finding about one part of the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The part, for programs: `fq`.
    pub part: String,
    /// The purpose.
    pub purpose: String,
    /// The presence.
    pub presence: Presence,
    /// The file or answer of the kernel that shows the presence.
    pub evidence: String,
    /// The effect of its absence; empty if it is present.
    pub lost: String,
    /// The cure; empty if there is nothing to do.
    pub cure: String,
}

impl Finding {
    /// The finding about a part with this purpose; the texts are the evidence, the effect of the part's absence, and the cure.
    pub fn new(part: &str, purpose: &str, presence: Presence, [evidence, lost, cure]: [String; 3]) -> Self {
        Self { part: part.into(), purpose: purpose.into(), presence, evidence, lost, cure }
    }
}

/// The abilities of `evenkeel guard` on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Preflight {
    /// True if latencies can be measured at all.
    pub can_measure: bool,
    /// True if clients can be throttled.
    pub can_act: bool,
    /// Each part by itself.
    pub findings: Vec<Finding>,
}

/// The result of `evenkeel check`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checked {
    /// Faults that keep the file from being used.
    pub errors: Vec<Problem>,
    /// Doubts about it.
    pub warnings: Vec<Problem>,
    /// Each setting at the place where it is enforced.
    pub rows: Vec<Row>,
    /// Settings in the order in which they win.
    pub precedence: Vec<Precedence>,
    /// Settings that are not enforced here, or with less.
    pub missing: Vec<Missing>,
    /// The features of the host's kernel.
    pub host: Preflight,
}

impl Checked {
    /// The number of notes on settings that are not enforced on this host and have no row.
    pub fn unlisted(&self) -> usize {
        let names = self.rows.iter().flat_map(|row| [("pools", &row.pool), ("tenants", &row.tenant)]);
        let listed: BTreeSet<String> =
            names.filter_map(|(table, name)| Some(dotted(&[table, name.as_deref()?]))).collect();
        let is_unlisted = |missing: &&Missing| {
            let key = missing.why.key.as_str();
            let of_policy = key.starts_with("pools.") || key.starts_with("tenants.");
            missing.here == Presence::Missing && of_policy && (owner(key) != key || !listed.contains(key))
        };
        self.missing.iter().filter(is_unlisted).count()
    }
}

/// A list as text: its first three entries, and the number of further ones.
pub fn listed(entries: &[impl AsRef<str>]) -> String {
    let (named, more) = entries.split_at(entries.len().min(3));
    let named: Vec<&str> = named.iter().map(AsRef::as_ref).collect();
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("{}{more}", named.join(", "))
}

/// A latency target in words. `of` names the requests whose latency is measured.
pub fn latency(latency: Latency, of: Of) -> String {
    let of = match of {
        Of::Reads => "reads",
        Of::Writes => "writes",
        Of::All => "all requests",
    };
    format!("latency {} of {of} < {}", latency.percentile, latency.target)
}

/// The tenants that are throttled for a pool's latency target, in words. `what` names the delayed requests or packets.
pub fn throttled<'n>(what: &str, tenants: impl Iterator<Item = (&'n str, Throttle)> + Clone) -> String {
    let how = [(Throttle::Normal, "when noisy"), (Throttle::Always, "always"), (Throttle::Last, "last")];
    let how = how.into_iter().chain([(Throttle::Never, "never")]).filter_map(|(throttle, how)| {
        let named: Vec<&str> = tenants.clone().filter(|(_, own)| *own == throttle).map(|(name, _)| name).collect();
        (!named.is_empty()).then(|| format!("{} {how}", listed(&named)))
    });
    format!("{what} {}", how.collect::<Vec<_>>().join("; "))
}

/// The settings of a tenant in words, each with its precedence.
pub fn settings(tenant: &Tenant) -> Vec<(Precedence, String)> {
    let rates = [
        (Precedence::Reservation, "reservation", tenant.reservation),
        (Precedence::TenantLimit, "limit", tenant.limit.rates()),
        (Precedence::Guarantee, "guarantee", tenant.guarantee.together()),
        (Precedence::Guarantee, "guarantee read", tenant.guarantee.read.rates()),
        (Precedence::Guarantee, "guarantee write", tenant.guarantee.write.rates()),
    ];
    let set = rates.into_iter().filter(|(_, _, rates)| !rates.is_unset());
    let in_words = |(precedence, name, rates): (Precedence, &str, Rates)| match precedence {
        Precedence::TenantLimit => (precedence, format!("{name} {}", tenant.limit)),
        _ => (precedence, format!("{name} {rates}")),
    };
    let mut all: Vec<_> = set.map(in_words).collect();
    all.extend(tenant.latency.map(|target| (Precedence::Latency, latency(target, Of::All))));
    let priority = if tenant.priority == Priority::Background { ", priority background" } else { "" };
    let at = tenant.weight_at.map_or_else(String::new, |at| format!(", {} at {}", at.weight, at.when));
    all.push((Precedence::Weight, format!("weight {}{at}{priority}", tenant.weight)));
    all
}

/// Tenants of a server to which neither volumes nor clients belong, and whose `match` has no entries for the agent. The list is
/// empty if the configuration names no volumes, because volumes are then added by command.
pub(crate) fn idle(config: &Config) -> Vec<(&str, &Tenant)> {
    if config.volumes.is_empty() || config.volumes == Config::default().volumes {
        return Vec::new();
    }
    let owners = config.owners();
    let used: BTreeSet<&str> = config.volumes.iter().map(|(name, volume)| owners.of(name, volume)).collect();
    let tenants = config.tenants.iter().map(|(name, tenant)| (name.as_str(), tenant));
    let of_volumes = |tenant: &Tenant| tenant.matches.iter().all(|entry| matches!(entry, Match::Volume(_)));
    tenants.filter(|(name, tenant)| *name != DEFAULT_TENANT && !used.contains(name) && of_volumes(tenant)).collect()
}

/// The part of a configuration that `evenkeel serve` enforces: the settings of pools that have volumes, and of tenants to which
/// volumes or clients belong.
pub fn served(config: &Config) -> Enforced {
    let (owners, mut out) = (config.owners(), Enforced::default());
    let mut pools: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut devices = BTreeSet::new();
    for (name, volume) in &config.volumes {
        pools.entry(&volume.pool).or_default().insert(owners.of(name, volume));
        if volume.backend != Backend::Memory {
            devices.insert(volume.pool.as_str());
        }
    }
    // Their clients may open volumes of all pools.
    let by_client: BTreeSet<&str> = config
        .tenants
        .iter()
        .filter(|(_, tenant)| tenant.matches.iter().any(|entry| matches!(entry, Match::Client(_))))
        .map(|(name, _)| name.as_str())
        .collect();
    let mut scheduled: Vec<(&str, &Pool)> = Vec::new();
    for (name, tenants) in &pools {
        let Some(pool) = config.pools.get(*name) else { continue };
        of_pool(config, (name, pool, devices.contains(name)), tenants.union(&by_client), &mut out);
        if pool.tuning.scheduler == Scheduler::Mclock {
            tenants.difference(&by_client).for_each(|tenant| of_tenant(config, tenant, (Some(name), pool), &mut out));
            scheduled.push((name, pool));
        } else {
            // Their settings have no effect, which is a warning: they belong here all the same.
            out.tenants.extend(tenants.union(&by_client).map(|tenant| (*tenant).to_owned()));
        }
    }
    if let Some((first, pool)) = scheduled.first() {
        let everywhere = ((pools.len() == 1).then_some(*first), *pool);
        for tenant in by_client {
            of_tenant(config, tenant, everywhere, &mut out);
            let differs = |(name, _): &&(&str, &Pool)| config.tenants[tenant].pools.contains_key(*name);
            let differing = scheduled.iter().filter(differs).filter(|_| everywhere.0.is_none());
            differing.for_each(|(name, pool)| of_tenant(config, tenant, (Some(name), pool), &mut out));
        }
    }
    for (name, volume) in config.volumes.iter().filter(|(_, volume)| !volume.limit.rates().is_unset()) {
        let limit = format!("limit {} of volume {name}", volume.limit);
        let row = Row::of_pool(&volume.pool, Enforcement::Queue, Some(Precedence::PoolLimit), limit);
        out.rows.push(row.by("the volume's requests", "requests of all its clients"));
    }
    for (name, tenant) in idle(config) {
        out.rows.extend(settings(tenant).into_iter().map(|(precedence, setting)| {
            let row = Row::of_pool("", Enforcement::Queue, Some(precedence), setting).by("no requests", "no requests");
            Row { tenant: Some(name.to_owned()), pool: None, here: Presence::Missing, ..row }
        }));
    }
    out
}

/// Adds the settings of a pool to `out`. `on_device` is false if all volumes of the pool are in memory, so that neither latency
/// target nor admission budget applies.
fn of_pool<'n>(
    config: &Config,
    (name, pool, on_device): (&str, &Pool, bool),
    tenants: impl Iterator<Item = &'n &'n str> + Clone,
    out: &mut Enforced,
) {
    let row = |precedence, setting| Row::of_pool(name, Enforcement::Queue, precedence, setting);
    if !pool.limit.rates().is_unset() {
        let limit = row(Some(Precedence::PoolLimit), format!("limit {}", pool.limit));
        out.rows.push(limit.by("the pool's requests", "requests of all tenants"));
    }
    if !on_device {
        return;
    }
    if let Some(target) = pool.latency {
        let throttles = tenants.filter_map(|tenant| Some((*tenant, config.tenants.get(*tenant)?.on(name).throttle)));
        let target = row(Some(Precedence::Latency), latency(target, Of::Reads));
        out.rows.push(target.by("reads of tenants that are not noisy", throttled("requests of", throttles)));
    }
    let admission = row(None, format!("admission {}", pool.tuning.admission.name()));
    out.rows.push(admission.by("latency and rate of the device", "requests of all tenants, beyond its budget"));
}

fn of_tenant(config: &Config, name: &str, (pool_name, pool): (Option<&str>, &Pool), out: &mut Enforced) {
    let on = |tenant: &Tenant| settings(&pool_name.map_or_else(|| tenant.clone(), |pool| tenant.on(pool)));
    let all = config.tenants.get(name).map(on).unwrap_or_default();
    for (precedence, setting) in all {
        let throttled = match precedence {
            Precedence::Reservation | Precedence::Weight => "requests of other tenants",
            // Without slots nothing is done for it, which is a warning.
            Precedence::Latency if pool.tuning.slots == Slots::None => continue,
            Precedence::Latency => "slots of all tenants",
            _ => "its own requests",
        };
        let each = config.tenants.get(name).is_some_and(|tenant| tenant.each);
        let measured = if each { "requests of each volume by itself" } else { "its own requests" };
        let row = Row::of_pool("", Enforcement::Queue, Some(precedence), setting).by(measured, throttled);
        out.push(name, Row { pool: pool_name.map(str::to_owned), ..row });
    }
}

#[cfg(test)]
#[path = "effective_tests.rs"]
mod tests;
