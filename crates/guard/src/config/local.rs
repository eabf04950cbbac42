//! Settings of local devices whose control groups are throttled for a latency target, or limited for their tenants' limits.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use evenkeel_control::{Duration, response};
use evenkeel_policy::config::{Enforcement, Latency, Limit, Match, Of, Percentile, Pool, Tenant, Throttle};
use evenkeel_policy::effective::{Precedence, Row, latency, listed, settings as settings_of, throttled};
use evenkeel_policy::target::Method;
use evenkeel_policy::units::{Bytes, Rates};

use super::Abilities;
use super::guarantee::own_name;
use super::lower::{Lowering, MAX_ENTRIES, allows, devices_of, has_slots, name_of, owed};
use crate::discovery::groups::Names;
use crate::loops::owed::Owed;
use crate::sensor::cgroup;

/// Largest number of other tenants that a record of a group names.
const MOST_OTHERS: usize = 4;

/// The entry by which a group belongs to its tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedBy {
    /// Index of the tenant in [`LocalConfig::tenants`].
    pub tenant: usize,
    /// The entry, as in `match`.
    pub entry: String,
    /// Entries of other tenants that name the group too, and that it precedes, each with its tenant, the most specific first.
    pub others: Vec<String>,
}

/// A device of this host with a latency target, or with tenants that have limits: `io.max` of noisy control groups is set so that
/// the target is met, and that of tenants with a limit so that they keep it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalConfig {
    /// Name of the device's pool.
    pub pool: String,
    /// The latency target of reads; without one only tenants' limits are enforced.
    pub latency: Option<Latency>,
    /// The device that the groups use, by path or name.
    pub device: String,
    /// Method that chooses by how much groups are throttled.
    pub method: Method,
    /// Bytes per second above which a group is noisy for `method = "pid"`; the method "adaptive" compares the groups' shares
    /// of the load instead.
    pub noisy_above: Bytes,
    /// Longest extra wait of a throttled request.
    pub max_delay: Duration,
    /// The tenants that name control groups.
    pub tenants: Vec<LocalTenant>,
}

/// A tenant that names control groups, and how its groups may be throttled.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalTenant {
    /// Name of the tenant.
    pub name: String,
    /// Entries that name control groups, by their paths below /sys/fs/cgroup or as containers, pods or virtual machines.
    pub groups: Vec<Match>,
    /// Throttle rank of the tenant's groups.
    pub throttle: Throttle,
    /// The tenant's limit on this device: of reads and writes of all its groups together, with [`Self::each`] of each group.
    pub limit: Limit,
    /// The tenant's reservation and guarantee; no throttle takes the tenant below them.
    pub owed: Owed,
    /// True if the tenant has a throughput guarantee on the device, which takes precedence over the latency target: the
    /// guarantee's loop sets `io.max` of the tenant's groups.
    pub guaranteed: bool,
    /// True if each group is a tenant of its own.
    pub each: bool,
}

impl LocalTenant {
    /// An entry of [`Self::groups`] in messages: a group's path, or an entry as it is written.
    pub fn shown(entry: &Match) -> String {
        match entry {
            Match::Cgroup(path) => path.clone(),
            other => other.to_string(),
        }
    }

    /// The rates of the limit at this minute of the day; without a minute those of all hours.
    pub fn limit_at(&self, minute: Option<u16>) -> Rates {
        let both = self.limit.when.zip(minute);
        let is_on = both.is_none_or(|(hours, minute)| hours.contains(minute));
        if is_on { self.limit.rates() } else { Rates::default() }
    }

    /// The reason for the limits of a group that uses up its part of the tenant's limit, as a sentence.
    pub fn limit_reason(&self) -> String {
        let of = if self.each { "" } else { ", which the tenant's groups share by their use" };
        format!("the group is at its part of the limit {} of tenant {}{of}", self.limit, self.name)
    }

    /// Name, in records, of the tenant to which a group belongs: this one's, or with [`Self::each`] the group's own.
    pub fn name_of(&self, group: &str) -> String {
        if !self.each {
            return self.name.clone();
        }
        let patterns = self.groups.iter().filter_map(|entry| match entry {
            Match::Cgroup(pattern) if cgroup::names(pattern, group) => Some((entry.specificity(), pattern.as_str())),
            _ => None,
        });
        let pattern = patterns.max_by_key(|(rank, _)| *rank).map_or("", |(_, pattern)| pattern);
        own_name(&self.name, pattern, group)
    }
}

impl LocalConfig {
    /// Index, in [`Self::tenants`], of the tenant of a group by the group's path alone, as [`Self::tenant_among`].
    pub fn tenant_of(&self, group: &str) -> Option<usize> {
        self.tenant_among(&Names::default(), group)
    }

    /// Index, in [`Self::tenants`], of the tenant of a group, by the most specific entry that names the group; `None` if no
    /// entry does. `names`: the containers, pods and virtual machines of this host.
    pub fn tenant_among(&self, names: &Names, group: &str) -> Option<usize> {
        self.naming(names, group).first().map(|(_, place)| *place)
    }

    /// The entries that name a group, the most specific first, each with the index of its tenant in [`Self::tenants`]. Of equally
    /// specific ones that of the tenant that is first by name comes first.
    fn naming(&self, names: &Names, group: &str) -> Vec<(&Match, usize)> {
        let tenants = self.tenants.iter().enumerate();
        let entries = tenants.flat_map(|(place, tenant)| tenant.groups.iter().map(move |entry| (entry, place)));
        let mut naming: Vec<(&Match, usize)> = entries.filter(|(entry, _)| names.names(entry, group)).collect();
        naming.sort_by_key(|(entry, _)| Reverse(entry.specificity()));
        naming
    }

    /// The entry by which a group belongs to its tenant, and what else names the group; `None` if no entry does.
    pub fn named_by(&self, names: &Names, group: &str) -> Option<NamedBy> {
        let naming = self.naming(names, group);
        let (entry, tenant) = *naming.first()?;
        let mut seen = BTreeSet::from([tenant]);
        let others = naming.iter().filter(|(_, other)| seen.insert(*other)).take(MOST_OTHERS);
        let shown = |(other, place): &(&Match, usize)| {
            let owner = self.tenants.get(*place).map_or("", |terms| terms.name.as_str());
            format!("{other} of tenant {owner}")
        };
        Some(NamedBy { tenant, entry: entry.to_string(), others: others.map(shown).collect() })
    }

    /// True if an entry names containers, pods or virtual machines, whose names have to be searched for.
    pub fn needs_names(&self) -> bool {
        self.tenants.iter().flat_map(|tenant| &tenant.groups).any(|entry| !matches!(entry, Match::Cgroup(_)))
    }

    /// True if an entry names pods by a label or annotation, for which the container runtime has to be asked.
    pub fn needs_marks(&self) -> bool {
        self.tenants.iter().flat_map(|tenant| &tenant.groups).any(Match::is_marked)
    }

    /// Figure of the latencies that the target bounds; without a target the mean, which is then only shown.
    pub fn figure(&self) -> Percentile {
        self.latency.map_or(Percentile::Mean, |latency| latency.percentile)
    }

    /// Settings of the controller that chooses by how much groups are throttled; `None` without a latency target. `interval`:
    /// time between decisions.
    pub fn controller(&self, interval: Duration) -> Option<response::Config> {
        let latency = self.latency?;
        Some(response::Config {
            interval,
            // A limit can be any number.
            step: Duration::ZERO,
            max_delay: self.max_delay,
            noisy_bytes_per_s: self.noisy_above.0,
            ..self.method.published(latency.target)
        })
    }
}

/// The part of a tenant's limit on a pool that applies on each of so many devices.
fn on_each(limit: Limit, devices: usize) -> Limit {
    let part = |rate: u64| if rate == 0 { 0 } else { (rate / devices.max(1) as u64).max(1) };
    Limit { iops: part(limit.iops), bytes_per_s: Bytes(part(limit.bytes_per_s.0)), ..limit }
}

impl<'f> Lowering<'f, '_> {
    /// The tenants that name control groups, as terms for a pool's latency target. `devices`: number of the pool's devices.
    fn local_tenants(&self, name: &str, devices: usize) -> Vec<LocalTenant> {
        let terms = |(tenant, settings): (&'f String, &'f Tenant)| {
            let there = settings.on(name);
            let by_path = settings.matches.iter().any(|entry| matches!(entry, Match::Cgroup(_)));
            LocalTenant {
                name: tenant.clone(),
                groups: settings.matches.iter().filter(|entry| entry.is_of_groups()).cloned().collect(),
                throttle: match there.throttle {
                    // Others are to wait for it.
                    Throttle::Normal if there.latency.is_some() => Throttle::Last,
                    throttle => throttle,
                },
                each: settings.each,
                limit: on_each(there.limit, devices),
                owed: Owed::of(&there),
                guaranteed: by_path && !(there.guarantee.read.is_unset() && there.guarantee.write.is_unset()),
            }
        };
        self.tenants.iter().map(terms).filter(|terms| !terms.groups.is_empty()).collect()
    }

    /// A pool with devices of this host and a latency target, for which noisy control groups are throttled, or a tenant's limit.
    pub(super) fn local(&mut self, name: &str, pool: &Pool, abilities: Abilities) {
        let (_, devices) = devices_of(pool);
        if devices.is_empty() || has_slots(pool) || !allows(pool, Enforcement::Cgroup) {
            return;
        }
        let tenants = self.local_tenants(name, devices.len());
        // Groups with a guarantee are limited by that.
        let mut others = tenants.iter().filter(|tenant| !tenant.guaranteed);
        if !others.any(|tenant| pool.latency.is_some() || tenant.limit.rates() != Rates::default()) {
            return;
        }
        if let Some(latency) = pool.latency {
            self.measurable(name, latency, abilities);
        }
        self.local_pools.insert(name.to_owned());
        self.rows_of_local(name, pool.latency, &devices, &tenants);
        for device in &devices {
            let local = LocalConfig {
                pool: name.to_owned(),
                latency: pool.latency,
                device: (*device).to_owned(),
                method: pool.tuning.method,
                noisy_above: pool.tuning.noisy_above,
                max_delay: pool.max_delay,
                tenants: tenants.clone(),
            };
            let controller = local.controller(self.lowered.config.agent.interval);
            if let Some(Err(invalid)) = controller.map(|settings| settings.validate()) {
                let path: &[&str] = match invalid.setting {
                    "target" => &["pools", name, "latency", "target"],
                    "max_delay" => &["pools", name, "max_delay"],
                    other => &["agent", other],
                };
                let key = path.join(".");
                if !self.lowered.faults.iter().any(|fault| fault.key == key) {
                    self.fault(path, format!("must be {}", invalid.must_be));
                }
            }
            let named = name_of(&self.lowered.config.local, name, device, devices.len() == 1);
            self.lowered.config.local.insert(named, local);
        }
        if self.lowered.config.local.len() > MAX_ENTRIES {
            let message =
                format!("have more than {MAX_ENTRIES} devices with latency targets or limits; leave some out");
            self.fault(&["pools"], message);
        }
    }

    fn rows_of_local(&mut self, name: &str, target: Option<Latency>, devices: &[&str], tenants: &[LocalTenant]) {
        let on: Vec<String> = devices.iter().map(|device| (*device).to_owned()).collect();
        let named = tenants.iter().filter(|tenant| !tenant.guaranteed);
        let throttled = throttled("io.max of groups of", named.map(|tenant| (tenant.name.as_str(), tenant.throttle)));
        if let Some(target) = target {
            let or = if target.percentile == Percentile::Mean { " or diskstats" } else { "" };
            let by = format!("block tracepoints{or}");
            let row = Row::of_pool(name, Enforcement::Cgroup, Some(Precedence::Latency), latency(target, Of::Reads));
            let row = row.by(format!("reads of groups that are not noisy on {}, by {by}", listed(devices)), throttled);
            self.lowered.config.enforced.rows.push(Row { on: on.clone(), ..row });
        }
        self.lowered.config.enforced.tenants.extend(tenants.iter().map(|tenant| tenant.name.clone()));
        for tenant in tenants.iter().filter(|tenant| !tenant.guaranteed) {
            let Some(settings) = self.tenants.get(&tenant.name) else { continue };
            let there = settings.on(name);
            // Without a latency target there is no throttle that a reservation bounds.
            let reserved = owed(&there).filter(|(of, _)| target.is_some() && *of == Precedence::Reservation);
            let groups = listed(&tenant.groups.iter().map(LocalTenant::shown).collect::<Vec<_>>());
            let row = Row::of_pool(name, Enforcement::Cgroup, None, String::new());
            let row = row.by(format!("io.stat of {groups}"), format!("io.max of {groups}, never below this rate"));
            self.rows(&tenant.name, reserved, &Row { on: on.clone(), ..row.clone() });
            let limit = settings_of(&there).into_iter().filter(|(of, _)| *of == Precedence::TenantLimit);
            let share = if devices.len() > 1 { ", on each device an equal part" } else { "" };
            let row = row.by(format!("io.stat of {groups}"), format!("io.max of {groups}, shared by use{share}"));
            self.rows(&tenant.name, limit, &Row { on: on.clone(), ..row });
        }
    }
}
