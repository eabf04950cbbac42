//! Settings of the control-group loop: devices whose control groups have throughput guarantees.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use evenkeel_control::throughput;
use evenkeel_policy::cluster::guarantee_total;
use evenkeel_policy::config::{CachedDevice, Direction, GuaranteeTuning, Match};

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
    /// Weight of the tenant relative to other tenants if not all guarantees can be kept.
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
