//! Settings of the control-group loop, from the policy: devices whose control groups have throughput guarantees.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use evenkeel_control::throughput;
use evenkeel_policy::cluster::guarantee_total;
use evenkeel_policy::config::{CachedDevice, Direction, Enforcement, Guarantee, GuaranteeTuning, Match, Pool};
use evenkeel_policy::effective::{Precedence, Row, listed};
use evenkeel_policy::rate_that_hangs;

use super::lower::{Lowering, MAX_ENTRIES, allows, devices_of, has_slots, name_of, owed};
use crate::loops::owed::Owed;
use crate::sensor::cgroup;

/// A device, usually a slow one behind a fast cache, whose control groups have throughput guarantees.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedConfig {
    /// Name of the device's pool.
    pub pool: String,
    /// The device that the groups use, by path or name: a dm-cache, dm-writecache or bcache.
    pub device: String,
    /// The slow and the fast device below `device`; the agent finds a device that the configuration leaves out.
    pub cache: CachedDevice,
    /// Method and timing by which the groups' limits are assigned.
    pub tuning: GuaranteeTuning,
    /// Guarantees and the groups that have them, by the names of their tenants.
    pub tenants: BTreeMap<String, GuaranteeConfig>,
    /// Control groups (paths or patterns) of tenants without a guarantee on this device, each after its tenant; less specific
    /// patterns of other tenants do not apply to these groups.
    pub exempt: Vec<(String, String)>,
}

/// A tenant's throughput guarantee, and the control groups that have it.
#[derive(Clone, Debug, PartialEq)]
pub struct GuaranteeConfig {
    /// Name of the tenant in the policy.
    pub tenant: String,
    /// Path of the control group below /sys/fs/cgroup, in which `*` and `?` may stand for parts of a name; each group that
    /// matches has the whole guarantee for itself, or in a cluster the tenant's groups share this host's part of it.
    pub group: String,
    /// Throughput guarantee and ceiling of reads.
    pub read: Direction,
    /// Throughput guarantee and ceiling of writes.
    pub write: Direction,
    /// Weight of the tenant relative to other tenants if not all guarantees can be met.
    pub weight: u32,
    /// The tenant's reservation; no limit is set below it.
    pub owed: Owed,
    /// Name of the tenant if each of its groups is a tenant of its own.
    pub each: Option<String>,
}

/// Name of a group that is a tenant of its own, of tenant `owner`: see [`GuaranteeConfig::shown`].
pub(super) fn own_name(owner: &str, pattern: &str, group: &str) -> String {
    let (pattern, parts): (Vec<&str>, Vec<&str>) =
        (pattern.trim_matches('/').split('/').collect(), group.trim_matches('/').split('/').collect());
    let open = pattern.iter().position(|part| part.contains(['*', '?'])).unwrap_or(parts.len().saturating_sub(1));
    format!("{owner}/{}", parts[open.min(parts.len().saturating_sub(1))..].join("/"))
}

impl GuaranteeConfig {
    /// Name of the tenant to which a group belongs, for records: `tenant`, or with `each` the group's own, made of the tenant's
    /// and of the group's path from the first component on that the pattern leaves open (`database/db-3.service`).
    pub fn shown(&self, tenant: &str, group: &str) -> String {
        self.each.as_ref().map_or_else(|| tenant.to_owned(), |owner| own_name(owner, &self.group, group))
    }

    /// Names of the totals that a group's guarantees of reads and of writes are in a cluster: those of the policy's tenant, or
    /// with `each` the group's own. `None` for a name that is too long.
    pub fn totals(&self, group: &str) -> [Option<String>; 2] {
        ["read", "write"].map(|of| guarantee_total(of, &self.shown(&self.tenant, group)))
    }

    /// The guarantee as the controller's type.
    pub fn guarantee(&self) -> throughput::Guarantee {
        throughput::Guarantee { read: self.read.control(), write: self.write.control(), weight: f64::from(self.weight) }
    }
}

impl CachedConfig {
    /// The key in [`Self::tenants`] of the guarantee that a group has, by the most specific pattern that fits, and of equally
    /// specific ones that of the tenant that is first by name. `None` if no pattern fits, or that pattern belongs to a tenant
    /// without a guarantee.
    pub fn tenant_of(&self, group: &str) -> Option<&str> {
        let exempt = self.exempt.iter().map(|(owner, pattern)| (pattern, owner, None));
        let tenants = self.tenants.iter().map(|(key, of)| (&of.group, &of.tenant, Some(key.as_str())));
        let naming = exempt.chain(tenants).filter(|(pattern, ..)| cgroup::names(pattern, group));
        let rank = |pattern: &str| Reverse(Match::Cgroup(pattern.to_owned()).specificity());
        naming.min_by_key(|(pattern, owner, _)| (rank(pattern), *owner)).and_then(|(.., key)| key)
    }

    /// Time between decisions. For the methods "saat" and "static" this is their period.
    pub fn interval(&self) -> evenkeel_control::Duration {
        self.tuning.every()
    }

    /// Settings of the controller that assigns the groups' limits.
    pub fn controller(&self) -> throughput::Config {
        self.tuning.control(self.cache.slow_bytes_per_s)
    }
}

impl<'f> Lowering<'f, '_> {
    /// A pool with devices of this host and tenants whose control groups have guarantees.
    pub(super) fn groups(&mut self, name: &str, pool: &Pool) {
        let (_, devices) = devices_of(pool);
        if devices.is_empty() || has_slots(pool) || !allows(pool, Enforcement::Cgroup) {
            return;
        }
        let (mut tenants, mut exempt) = (BTreeMap::new(), Vec::new());
        // Errors in the settings as such are reported already.
        let cache = &pool.tuning.cache;
        let mut controller = throughput::Controller::new(&pool.tuning.guarantee.control(cache.slow_bytes_per_s)).ok();
        for (tenant, settings) in self.tenants {
            let groups = |entry: &'f Match| match entry {
                Match::Cgroup(group) => Some(group.as_str()),
                _ => None,
            };
            let groups: Vec<&str> = settings.matches.iter().filter_map(groups).collect();
            let there = settings.on(name);
            let Guarantee { read, write, .. } = there.guarantee;
            if groups.is_empty() {
                continue;
            }
            if read.is_unset() && write.is_unset() {
                exempt.extend(groups.into_iter().map(|group| (tenant.clone(), group.to_owned())));
                continue;
            }
            self.grouped.insert(tenant);
            let said = self.said(tenant, name, "guarantee");
            for group in &groups {
                let row = Row::of_pool(name, Enforcement::Cgroup, None, String::new());
                let row = row.by(format!("io.stat of {group}"), format!("io.max of {group} on {}", listed(&devices)));
                let on = devices.iter().chain([group]).map(|name| (*name).to_owned()).collect();
                let (reserved, guarantees): (Vec<_>, Vec<_>) =
                    owed(&there).partition(|(of, _)| *of == Precedence::Reservation);
                let row = Row { on, ..row };
                self.rows(tenant, guarantees.into_iter(), &row);
                let throttled = format!("{}, never below this rate", row.throttled);
                self.rows(tenant, reserved.into_iter(), &Row { throttled, ..row });
                let guarantee = GuaranteeConfig {
                    tenant: tenant.clone(),
                    group: (*group).to_owned(),
                    read,
                    write,
                    weight: there.weight,
                    owed: Owed::reservation_of(&there),
                    each: settings.each.then(|| tenant.clone()),
                };
                let refused = controller.as_mut().and_then(|controller| controller.join(&guarantee.guarantee()).err());
                // Weights are checked wherever they stand.
                if let Some(invalid) = refused.filter(|invalid| invalid.setting != "weight") {
                    let message = format!("{} must be {}", invalid.setting, invalid.must_be);
                    if !self.lowered.faults.iter().any(|fault| fault.key.starts_with(&said.join("."))) {
                        self.fault(&said, message);
                    }
                }
                tenants.insert(name_of(&tenants, tenant, group, groups.len() == 1), guarantee);
            }
            // Limits so small that clients would seem to hang.
            for (direction, of) in [("read", read), ("write", write)] {
                if of.bytes_per_s.0 == 0 {
                    continue;
                }
                for (key, rate) in [("bytes_per_s", Some(of.bytes_per_s)), ("ceiling", of.ceiling)] {
                    if let Some(hang) = rate.and_then(rate_that_hangs) {
                        self.doubt(&[&said[..], &[direction, key]].concat(), hang);
                    }
                }
            }
            self.lowered.doubts.dedup();
        }
        if tenants.is_empty() {
            return;
        }
        if devices.len() > 1 && (cache.slow.is_some() || cache.fast.is_some()) {
            let message = "names what one cached device is made of, and the pool has several; give each a pool of its own, or remove slow and fast";
            self.fault(&["pools", name, "tuning", "cache"], message);
        }
        // Between two ticks nothing is decided, and samples far apart count as pauses.
        let ticks = self.lowered.config.agent.interval;
        let mut tuning = pool.tuning.guarantee.clone();
        tuning.interval = tuning.interval.max(ticks);
        if tuning.every() < ticks {
            let message = format!("is {}; write at least agent.interval ({ticks})", tuning.period);
            self.fault(&["pools", name, "tuning", "guarantee", "period"], message);
        }
        for device in &devices {
            let cached = CachedConfig {
                pool: name.to_owned(),
                device: (*device).to_owned(),
                cache: cache.clone(),
                tuning: tuning.clone(),
                tenants: tenants.clone(),
                exempt: exempt.clone(),
            };
            let named = name_of(&self.lowered.config.cached, name, device, devices.len() == 1);
            self.lowered.config.cached.insert(named, cached);
        }
        if self.lowered.config.cached.len() > MAX_ENTRIES {
            let message = format!("have more than {MAX_ENTRIES} devices with guarantees; leave some out");
            self.fault(&["pools"], message);
        }
    }
}
