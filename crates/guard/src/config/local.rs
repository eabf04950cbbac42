//! Settings of local devices whose control groups are throttled for a latency target, or limited for their tenants' limits.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use evenkeel_control::{Duration, response};
use evenkeel_policy::config::{Latency, Limit, Match, Percentile, Throttle};
use evenkeel_policy::target::Method;
use evenkeel_policy::units::{Bytes, Rates};

use super::guarantee::own_name;
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
#[derive(Clone, Debug, PartialEq)]
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
    /// When the tenant's groups are throttled, in relation to other groups.
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
        let of = if self.each { "" } else { ", which its groups share by their use" };
        format!("it is at its part of the limit {} of tenant {}{of}", self.limit, self.name)
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
