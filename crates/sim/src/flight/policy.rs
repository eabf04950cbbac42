//! Policies and devices of a replay, as they are read from texts and written.

use std::collections::BTreeMap;

use evenkeel_control::units::Rates;
use evenkeel_model::device::DeviceParams;
use evenkeel_policy::check::Problem;
use evenkeel_policy::config::{DEFAULT_POOL, DEFAULT_TENANT, Pool, Tenant, Volume, in_policy};
use evenkeel_policy::document::Document;
use evenkeel_policy::tenant::{Match, Of, OnPool};
use evenkeel_policy::{Config, Severity, is_name, simulated};
use serde::Serialize;
use toml::{Table, Value};

use super::figures::Target;
use super::load::Load;
use crate::world;

/// The policy under which a load is simulated: one pool, and tenants.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Name of the pool.
    pub name: String,
    /// The pool.
    pub pool: Pool,
    /// The tenants by name.
    pub tenants: BTreeMap<String, Tenant>,
}

/// A throughput that a policy guarantees a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guaranteed {
    /// Index of the tenant in [`Load::tenants`].
    pub tenant: usize,
    /// The larger of reservation and guarantee, for each rate.
    pub rates: Rates,
}

/// The assignments (`KEY=VALUE`) of a command line, by what they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignments {
    /// Assignments to keys of the device, without `device.`.
    pub device: Vec<String>,
    /// Assignments to keys of the policy.
    pub policy: Vec<String>,
}

impl Assignments {
    /// Divides assignments: a key that begins with `device.` is one of the device, all others are keys of the policy; there
    /// `pool.` stands for the table of the pool `pool`.
    pub fn new(all: &[String], pool: &str) -> Self {
        let mut divided = Self::default();
        for assignment in all {
            if let Some(rest) = assignment.strip_prefix("device.") {
                divided.device.push(rest.to_owned());
            } else if let Some(rest) = assignment.strip_prefix("pool.") {
                divided.policy.push(format!("pools.{}.{rest}", as_key(pool)));
            } else {
                divided.policy.push(assignment.clone());
            }
        }
        divided
    }
}

/// Reads a device from a text in TOML, such as a file of `scenarios/devices`; `origin` names the text in errors.
///
/// # Errors
/// Every problem of the text and of the assignments.
pub fn device(text: &str, origin: &str, assignments: &[String]) -> Result<DeviceParams, Vec<Problem>> {
    let (mut document, mut errors) = Document::parse(text, origin);
    for assignment in assignments {
        errors.extend(document.assign(assignment).err());
    }
    let (device, more) = document.read::<DeviceParams>();
    errors.extend(more);
    match device {
        Some(device) if errors.is_empty() => match device.validate() {
            Ok(()) => Ok(device),
            Err(invalid) => Err(vec![document.complain(&[], invalid.to_string())]),
        },
        _ => Err(errors),
    }
}

/// The device as a text in TOML, which [`device`] reads.
///
/// # Errors
/// A message, for parameters that have no written form.
pub fn device_text(device: &DeviceParams) -> Result<String, String> {
    let table = Table::try_from(device).map_err(|error| error.to_string())?;
    toml::to_string(&table).map_err(|error| error.to_string())
}

/// A recorded policy without the limits of its volumes, which a replay does not enforce, and the names of the volumes that
/// have one. A text that cannot be read stays as it is.
pub fn without_limits_of_volumes(text: &str) -> (String, Vec<String>) {
    let mut table = toml::from_str::<Table>(text).unwrap_or_default();
    let volumes = table.get_mut("volumes").and_then(Value::as_table_mut).into_iter().flatten();
    let mut limited = Vec::new();
    for (name, volume) in volumes {
        if volume.as_table_mut().is_some_and(|volume| volume.remove("limit").is_some()) {
            limited.push(name.clone());
        }
    }
    match toml::to_string(&table) {
        Ok(without) if !limited.is_empty() => (without, limited),
        _ => (text.to_owned(), Vec::new()),
    }
}

impl Policy {
    /// Reads the part of a configuration that concerns the pool `name`; `origin` names the text in errors. If there is no such
    /// pool and only one other, that one is taken, also for assignments to keys of `name`.
    ///
    /// # Errors
    /// Every problem of the text and of the assignments.
    pub fn parse(text: &str, origin: &str, name: &str, assignments: &[String]) -> Result<Self, Vec<Problem>> {
        let taken = taken(text, name);
        let begin = format!("pools.{}.", as_key(name));
        let to_taken = |assignment: &String| match assignment.strip_prefix(&begin) {
            Some(rest) => format!("pools.{}.{rest}", as_key(&taken)),
            None => assignment.clone(),
        };
        let assignments: Vec<String> = assignments.iter().map(to_taken).collect();
        let (mut document, mut errors) = Document::parse(text, origin);
        for assignment in &assignments {
            errors.extend(document.assign(assignment).err().or_else(|| without_effect(assignment, &taken)));
        }
        if document.has(&["policy"]) {
            let message = "names another file; give that file, with [tenants] and [pools]";
            errors.push(document.complain(&["policy"], message));
        }
        let (config, more) = document.read::<Config>();
        errors.extend(more);
        let Some(read) = config.filter(|_| errors.is_empty()) else { return Err(errors) };
        let limited = |volume: &Volume| volume.pool == taken && !volume.limit.rates().is_unset();
        for (name, _) in read.volumes.iter().filter(|(_, volume)| limited(volume)) {
            errors.push(document.complain(&["volumes", name, "limit"], NO_LIMITS_OF_VOLUMES));
        }
        // A replay has no volumes, no server and no cluster: rules about them have nothing to say.
        let mut config = Config { pools: read.pools, tenants: read.tenants, ..Config::default() };
        config.volumes.clear();
        config.pools.entry(DEFAULT_POOL.into()).or_default();
        config.tenants.entry(DEFAULT_TENANT.into()).or_default();
        for finding in simulated(&config) {
            let path: Vec<&str> = finding.path.iter().map(String::as_str).collect();
            if finding.severity == Severity::Error && matches!(path.first(), Some(&("pools" | "tenants"))) {
                errors.push(document.complain(&path, finding.message));
            }
        }
        for path in timed(&config, &taken) {
            errors.push(document.complain(&path, NO_TIME_OF_DAY));
        }
        for path in timed_weights(&config) {
            errors.push(document.complain(&path, NO_TIME_OF_DAY_FOR_WEIGHTS));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let pool = config.pools.remove(&taken).unwrap_or_default();
        if taken != name {
            for tenant in config.tenants.values_mut() {
                if let Some(own) = tenant.pools.remove(&taken) {
                    tenant.pools.insert(name.to_owned(), own);
                }
            }
        }
        Ok(Self { name: name.to_owned(), pool, tenants: config.tenants })
    }

    /// The name in the policy of a tenant of a recording: that of a tenant with `each` for its volumes' `TENANT/VOLUME`, and for
    /// the path of a control group that of the tenant whose `match` names it.
    pub(super) fn key<'n>(&'n self, name: &'n str) -> &'n str {
        let base = in_policy(name);
        if is_name(name) || self.tenants.contains_key(name) {
            return name;
        }
        if self.tenants.get(base).is_some_and(|tenant| tenant.each) {
            return base;
        }
        self.of_group(name).unwrap_or(name)
    }

    /// The tenant whose `match` has the most specific entry that names the control group with this path; `None` if none does.
    pub(super) fn of_group(&self, path: &str) -> Option<&str> {
        // Of equally specific entries that of the first tenant decides.
        let owners = self.tenants.iter().rev().filter_map(|(name, tenant)| {
            let entries = tenant.matches.iter().filter(|entry| entry.names_group(path));
            Some((entries.map(Match::specificity).max()?, name.as_str()))
        });
        owners.max_by_key(|(specificity, _)| *specificity).map(|(_, name)| name)
    }

    /// The settings of the tenant `name` on the pool; those of the default tenant if the policy does not name it.
    pub fn tenant(&self, name: &str) -> Tenant {
        let tenant = self.tenants.get(self.key(name)).or_else(|| self.tenants.get(DEFAULT_TENANT));
        tenant.map(|tenant| tenant.on(&self.name)).unwrap_or_default()
    }

    /// The tenants with a latency target, a reservation or a guarantee on the pool that have no requests in a load.
    pub fn absent(&self, load: &Load) -> Vec<&str> {
        let is_owed = |name: &str| name != DEFAULT_TENANT && self.tenant(name).is_owed_something();
        let is_present = |name: &str| load.tenants.iter().any(|tenant| self.key(tenant) == name);
        self.tenants.keys().map(String::as_str).filter(|name| is_owed(name) && !is_present(name)).collect()
    }

    /// The tenants that assignments (`KEY=VALUE`) name, but that have neither requests in a load nor a latency target, a
    /// reservation or a guarantee: those are among [`Self::absent`].
    pub fn assigned_in_vain(&self, assignments: &[String], load: &Load) -> Vec<&str> {
        let absent = self.absent(load);
        let is_assigned = |name: &str| {
            let begins = [format!("tenants.{name}."), format!("tenants.\"{name}\".")];
            assignments.iter().any(|assignment| begins.iter().any(|begin| assignment.trim_start().starts_with(begin)))
        };
        let is_present = |name: &str| load.tenants.iter().any(|tenant| self.key(tenant) == name);
        let is_vain = |name: &&str| *name != DEFAULT_TENANT && is_assigned(name) && !is_present(name);
        let names = self.tenants.keys().map(String::as_str).filter(is_vain);
        names.filter(|name| !absent.contains(name)).collect()
    }

    /// The settings of the tenant `name` on the pool, to be changed; of a tenant with `each` those of all its volumes. They
    /// become those of the tenant on all pools.
    pub fn tenant_mut(&mut self, name: &str) -> &mut Tenant {
        let (own, key) = (self.tenant(name), self.key(name).to_owned());
        let tenant = self.tenants.entry(key).or_default();
        *tenant = Tenant { matches: std::mem::take(&mut tenant.matches), ..own };
        tenant
    }

    /// Makes the control group with this path a tenant with the settings that it has, unless it belongs to one.
    pub(super) fn adopt_group(&mut self, path: &str) {
        if self.tenants.contains_key(self.key(path)) {
            return;
        }
        let matches = vec![Match::Cgroup(path.to_owned())];
        let (name, tenant) = (self.free_name(path), Tenant { matches, ..self.tenant(path) });
        self.tenants.insert(name, tenant);
    }

    /// A name that no tenant has, for the control group with this path: its folder's, with `_` for letters that no name has.
    fn free_name(&self, path: &str) -> String {
        let folder = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path);
        let is_usable = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
        let replaced = folder.chars().map(|letter| if is_usable(letter) { letter } else { '_' });
        let usable: String = replaced.take(40).collect();
        let base = if is_name(&usable) { usable } else { format!("group-{usable}") };
        let (mut name, mut number) = (base.clone(), 2_u64);
        while self.tenants.contains_key(&name) {
            name = format!("{base}-{number}");
            number += 1;
        }
        name
    }

    /// The tenant `name` as the simulation has it.
    pub(super) fn simulated(&self, name: &str) -> world::Tenant {
        let tenant = self.tenant(name);
        world::Tenant {
            name: name.to_owned(),
            qos: (&tenant).into(),
            throttle: tenant.throttle,
            guarantee: tenant.guarantee.control(),
            latency_target: tenant.latency_target(),
        }
    }

    /// The latency targets of the policy for a load: those of its tenants, then that of the pool.
    pub fn targets(&self, load: &Load) -> Vec<Target> {
        let own = load.tenants.iter().enumerate().filter_map(|(place, name)| {
            let latency = self.tenant(name).latency?;
            let of = latency.of.unwrap_or(Of::All);
            Some(Target { tenant: Some(place), time: latency.target, percentile: latency.percentile, of })
        });
        let pool = self.pool.latency.map(|latency| {
            let of = latency.of.unwrap_or(Of::Reads);
            Target { tenant: None, time: latency.target, percentile: latency.percentile, of }
        });
        own.chain(pool).collect()
    }

    /// The throughputs that the policy guarantees tenants of a load.
    pub fn guaranteed(&self, load: &Load) -> Vec<Guaranteed> {
        let of = |(tenant, name): (usize, &String)| {
            let own = self.tenant(name);
            let sum = own.guarantee.sum();
            let rates = Rates {
                iops: own.reservation.iops.max(sum.iops),
                bytes_per_s: own.reservation.bytes_per_s.0.max(sum.bytes_per_s.0),
            };
            (!rates.is_unset()).then_some(Guaranteed { tenant, rates })
        };
        load.tenants.iter().enumerate().filter_map(of).collect()
    }

    /// The policy as a text in TOML: tables `[pools]` and `[tenants]`, without keys that have their default values.
    ///
    /// # Errors
    /// A message, for settings that have no written form.
    pub fn text(&self) -> Result<String, String> {
        let mut pools = Table::new();
        pools.insert(self.name.clone(), Value::Table(sparse(&self.pool, &Pool::default())?));
        let mut tenants = Table::new();
        for (name, tenant) in &self.tenants {
            tenants.insert(name.clone(), Value::Table(sparse(tenant, &Tenant::default())?));
        }
        let mut all = Table::new();
        all.insert("pools".into(), Value::Table(pools));
        all.insert("tenants".into(), Value::Table(tenants));
        toml::to_string(&all).map_err(|error| error.to_string())
    }
}

/// A name as a part of a dotted key in TOML, in quotes if it needs them.
fn as_key(name: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    match name.chars().all(is_bare) {
        true => name.to_owned(),
        false => Value::String(name.to_owned()).to_string(),
    }
}

/// The problem of an assignment that would change nothing in a replay of the pool `pool`; `None` if it may change something.
fn without_effect(assignment: &str, pool: &str) -> Option<Problem> {
    let key = assignment.split_once('=').map_or(assignment, |(key, _)| key).trim();
    let is_in = |table: &str| key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let own = [as_key(pool), format!("\"{pool}\""), format!("'{pool}'")];
    if key == "pools" || is_in("tenants") || own.iter().any(|pool| is_in(&format!("pools.{pool}"))) {
        return None;
    }
    let message = if is_in("pools") {
        format!("names another pool: the replay has only {pool:?}, whose keys may begin with pool., too")
    } else {
        "changes nothing in a replay: its keys begin with pool., tenants. or device.".to_owned()
    };
    Some(Problem { origin: format!("--set {assignment}"), position: None, key: key.to_owned(), message })
}

/// The reason why limits of volumes are refused.
const NO_LIMITS_OF_VOLUMES: &str = "a replay does not enforce limits of volumes; remove this key, or move the limit to the \
                                    tenant if all its requests are of this volume";

/// The reason why limits with `when` are refused.
const NO_TIME_OF_DAY: &str = "a replay has no time of day; remove this key to simulate the hours of the limit, and the limit \
                              to simulate the others";

/// The reason why weights with `when` are refused.
const NO_TIME_OF_DAY_FOR_WEIGHTS: &str =
    "a replay has no time of day; remove this key to simulate the other hours, and set weight to simulate these";

/// The name of the pool of a policy that stands for the pool `name`: the only one, if there is none of this name.
fn taken(text: &str, name: &str) -> String {
    let table = toml::from_str::<Table>(text).unwrap_or_default();
    let pools = table.get("pools").and_then(Value::as_table);
    let mut names = pools.into_iter().flat_map(|pools| pools.keys());
    match (names.next(), names.next()) {
        (Some(only), None) => only.clone(),
        _ => name.to_owned(),
    }
}

/// The keys of limits that hold at some hours alone, of the tenants and of the pool.
fn timed<'c>(config: &'c Config, pool: &'c str) -> Vec<Vec<&'c str>> {
    let of_pool = config.pools.get(pool).filter(|pool| pool.limit.when.is_some());
    let of_pool = of_pool.into_iter().map(|_| vec!["pools", pool, "limit", "when"]);
    let has_in = |own: &OnPool| own.limit.is_some_and(|limit| limit.when.is_some());
    of_pool.chain(of_tenants(config, &["limit", "when"], |tenant| tenant.limit.when.is_some(), has_in)).collect()
}

/// The keys of weights that hold at some hours alone.
fn timed_weights(config: &Config) -> Vec<Vec<&str>> {
    of_tenants(config, &["weight_at"], |tenant| tenant.weight_at.is_some(), |own| own.weight_at.is_some())
}

/// The paths of `key` of those tenants that have it, in general (`has`) or on a pool (`has_in`).
fn of_tenants<'c>(
    config: &'c Config,
    key: &[&'c str],
    has: impl Fn(&Tenant) -> bool,
    has_in: impl Fn(&OnPool) -> bool,
) -> Vec<Vec<&'c str>> {
    let mut paths = Vec::new();
    for (name, tenant) in &config.tenants {
        let own = has(tenant).then_some(vec!["tenants", name.as_str()]);
        let pools = tenant.pools.iter().filter(|(_, own)| has_in(own));
        let of_pools = pools.map(|(pool, _)| vec!["tenants", name.as_str(), "pools", pool.as_str()]);
        paths.extend(own.into_iter().chain(of_pools).map(|path| [&path[..], key].concat()));
    }
    paths
}

/// The keys of `value` whose values differ from those of `base`.
fn sparse<T: Serialize>(value: &T, base: &T) -> Result<Table, String> {
    let table = |of: &T| Table::try_from(of).map_err(|error| error.to_string());
    let (value, base) = (table(value)?, table(base)?);
    Ok(differing(value, &base))
}

fn differing(value: Table, base: &Table) -> Table {
    let mut out = Table::new();
    for (key, value) in value {
        match (value, base.get(&key)) {
            (value, Some(same)) if value == *same => {}
            // A table with a kind is complete in itself.
            (Value::Table(value), Some(Value::Table(base))) if !value.contains_key("kind") => {
                out.insert(key, Value::Table(differing(value, base)));
            }
            (value, _) => {
                out.insert(key, value);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recording, request};
    use super::*;
    use evenkeel_control::Duration;
    use evenkeel_model::ssd::SsdParams;
    use evenkeel_model::store::StoreParams;

    #[test]
    fn a_policy_is_written_as_it_is_read() {
        let text = "[pools.main]\nlatency = { target = \"20ms\", percentile = 99 }\ntuning.admission = \"none\"\n\
                    [tenants.t0]\nreservation.iops = 500\nlatency = { target = \"5ms\" }\n";
        let policy = Policy::parse(text, "test", "main", &[]).unwrap();
        let load = Load::new(recording(vec![request(0, 1_000)]), None).unwrap();
        let targets = policy.targets(&load);
        assert_eq!((targets[0].tenant, targets[0].time), (Some(0), Duration::from_millis(5)));
        assert_eq!((targets[1].tenant, targets[1].of), (None, Of::Reads));
        assert_eq!(policy.guaranteed(&load)[0].rates.iops, 500);
        let written = policy.text().unwrap();
        assert!(!written.contains("weight"), "{written}");
        assert_eq!(Policy::parse(&written, "again", "main", &[]).unwrap(), policy);
    }

    #[test]
    fn assignments_go_to_device_and_policy() {
        let all = ["device.iops=7", "pool.tuning.admission=none", "tenants.a.weight=3"].map(str::to_owned);
        let divided = Assignments::new(&all, "main");
        assert_eq!(divided.device, ["iops=7"]);
        assert_eq!(divided.policy, ["pools.main.tuning.admission=none", "tenants.a.weight=3"]);
        let policy = Policy::parse("", "test", "main", &divided.policy).unwrap();
        assert_eq!((policy.tenant("a").weight, policy.tenant("other").weight), (3, 1));
        let wrong = Policy::parse("", "test", "main", &["tenants.a.weigth=3".to_owned()]).unwrap_err();
        assert!(wrong[0].to_string().contains("weigth"), "{wrong:?}");
    }

    #[test]
    fn assignments_that_change_nothing_are_refused() {
        let of = |key: &str, pool: &str, text: &str| {
            let divided = Assignments::new(&[format!("{key}=5")], pool);
            let parsed = Policy::parse(text, "test", pool, &divided.policy);
            parsed.map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        };
        let no_text = "[pools.main]\n[pools.other]\n";
        for key in ["server.drain", "pools.other.limit.iops", "limit.iops", "tenant.a.weight"] {
            let refused = of(key, "main", no_text).unwrap_err();
            assert!(refused.contains(&format!("--set {key}=5")) && refused.contains("pool."), "{refused}");
        }
        let whole = ["pools={ main = { limit = { iops = 5 } } }".to_owned()];
        assert_eq!(Policy::parse("", "test", "main", &whole).unwrap().pool.limit.iops, 5);
        // Names with dots, as logical volumes and devices may have.
        let short = "pool.limit.iops";
        for (pool, key) in [("vg.1", short), ("vg.1", "pools.\"vg.1\".limit.iops"), ("dm:0", short)] {
            let policy = of(key, pool, "").unwrap();
            assert_eq!((policy.name.as_str(), policy.pool.limit.iops), (pool, 5), "{key}");
        }
        assert_eq!((as_key("vg1"), as_key("vg.1")), ("vg1".to_owned(), "\"vg.1\"".to_owned()));
    }

    #[test]
    fn a_tenant_with_each_is_that_of_its_volumes() {
        let text = "[tenants.database]\neach = true\nreservation.iops = 70\n[tenants.shop]\nlatency.target = \"5ms\"\n\
                    [tenants.plain]\nweight = 9\n";
        let mut policy = Policy::parse(text, "test", "main", &[]).unwrap();
        let of = |policy: &Policy, name| policy.tenant(name).reservation.iops;
        assert_eq!((of(&policy, "database/db-3"), of(&policy, "shop/db-3")), (70, 0));
        policy.tenant_mut("database/db-3").reservation.iops = 80;
        assert_eq!((of(&policy, "database/db-4"), policy.tenants.len()), (80, 4));
        let again = Policy::parse(&policy.text().unwrap(), "again", "main", &[]).unwrap();
        assert_eq!(again, policy);
        // Of the tenants with targets those are named that have no requests.
        let mut load = Load::new(recording(vec![request(0, 1_000)]), None).unwrap();
        assert_eq!(policy.absent(&load), ["database", "shop"]);
        load.tenants = vec!["database/db-3".to_owned()];
        assert_eq!(policy.absent(&load), ["shop"]);
    }

    #[test]
    fn a_mistyped_tenant_of_an_assignment_is_found() {
        let set = ["tenants.t0.weight=3", "tenants.t9.limit.iops=5", "tenants.default.weight=4"].map(str::to_owned);
        let policy = Policy::parse("[tenants.t8]\nweight = 2\n", "test", "main", &set).unwrap();
        let load = Load::new(recording(vec![request(0, 1_000)]), None).unwrap();
        assert_eq!(policy.assigned_in_vain(&set, &load), ["t9"]);
    }

    #[test]
    fn limits_with_hours_are_refused() {
        let hours = "limit = { iops = 100, when = \"22:00-06:00\" }\n";
        for text in [format!("[tenants.a]\n{hours}"), format!("[tenants.a.pools.main]\n{hours}")] {
            let refused = Policy::parse(&text, "test", "main", &[]).unwrap_err();
            let message = refused[0].to_string();
            assert!(message.contains("limit.when: a replay has no time of day"), "{message}");
        }
        let text = "[tenants.a]\nweight_at = { weight = 2, when = \"22:00-06:00\" }\n";
        let message = Policy::parse(text, "test", "main", &[]).unwrap_err()[0].to_string();
        assert!(message.contains("weight_at: a replay has no time of day"), "{message}");
    }

    #[test]
    fn limits_of_volumes_of_the_pool_are_refused() {
        let text = |pool: &str| {
            let volume = format!("[volumes.v]\nsize = \"1MiB\"\npool = \"{pool}\"\nlimit = {{ iops = 5 }}\n");
            format!("[pools.main]\n[pools.other]\n{volume}")
        };
        let message = Policy::parse(&text("main"), "test", "main", &[]).unwrap_err()[0].to_string();
        assert!(message.contains("volumes.v.limit: a replay does not enforce limits of volumes"), "{message}");
        assert!(Policy::parse(&text("other"), "test", "main", &[]).is_ok(), "of another pool");
        // That of a recording is replayed without them.
        let (without, limited) = without_limits_of_volumes(&text("main"));
        assert_eq!(limited, ["v"]);
        assert!(Policy::parse(&without, "test", "main", &[]).is_ok(), "{without}");
        assert_eq!(without_limits_of_volumes("[pools.main]\n"), ("[pools.main]\n".to_owned(), Vec::new()));
        assert_eq!(without_limits_of_volumes("no = ").0, "no = ");
    }

    #[test]
    fn assignments_change_the_pool_that_is_taken() {
        let text = "[pools.fast]\nmax_delay = \"77ms\"\n[tenants.a]\npools.fast.weight = 5\n";
        let divided = Assignments::new(&["pool.tuning.admission=none".to_owned()], "vg1");
        let policy = Policy::parse(text, "test", "vg1", &divided.policy).unwrap();
        assert_eq!(policy.pool.max_delay, Duration::from_millis(77));
        assert_eq!(policy.pool.tuning.admission, evenkeel_control::admission::Config::None);
        assert_eq!((policy.name.as_str(), policy.tenant("a").weight), ("vg1", 5));
    }

    #[test]
    fn a_device_is_written_as_it_is_read() {
        for params in [DeviceParams::Store(StoreParams::ssd()), DeviceParams::Ssd(SsdParams::nvme())] {
            let text = device_text(&params).unwrap();
            assert_eq!(device(&text, "test", &[]).unwrap(), params, "{text}");
        }
        let changed = device("kind = \"store\"", "test", &["iops=77".to_owned()]).unwrap();
        assert!(matches!(changed, DeviceParams::Store(store) if store.iops == 77));
        assert!(device("kind = \"store\"\niops = 0", "test", &[]).unwrap_err()[0].message.contains("iops must be"));
    }
}
