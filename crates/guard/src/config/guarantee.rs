//! Devices whose control groups have throughput guarantees, as their loop wants them.

use std::collections::BTreeMap;

use evenkeel_control::throughput;
use evenkeel_policy::config::{CachedDevice, Direction, GuaranteeTuning, Match};

use crate::loops::owed::Owed;
use crate::sensor::cgroup;

/// A device, mostly a slow one behind a fast one, whose control groups have a throughput guarantee.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedConfig {
    /// The device that the groups use, by path or name: a dm-cache, dm-writecache or bcache.
    pub device: String,
    /// The devices below it; found out where left out.
    pub cache: CachedDevice,
    /// How limits are assigned, and when.
    pub tuning: GuaranteeTuning,
    /// Which groups have which guarantee, by the names of their tenants.
    pub tenants: BTreeMap<String, GuaranteeConfig>,
    /// Groups of tenants without a guarantee here, which no pattern of another tenant takes in.
    pub exempt: Vec<String>,
}

/// The guarantee of each of some groups.
#[derive(Clone, Debug, PartialEq)]
pub struct GuaranteeConfig {
    /// A control group by its path below /sys/fs/cgroup. `*` and `?` stand for parts of a name: each group that is found
    /// has the guarantee for itself.
    pub group: String,
    /// The guarantee of reads.
    pub read: Direction,
    /// The guarantee of writes.
    pub write: Direction,
    /// Share of what is short, beside other tenants.
    pub weight: u32,
    /// The part that no limit takes: the reservation.
    pub owed: Owed,
}

impl GuaranteeConfig {
    /// In the controller's words.
    pub fn guarantee(&self) -> throughput::Guarantee {
        throughput::Guarantee { read: self.read.control(), write: self.write.control(), weight: f64::from(self.weight) }
    }
}

impl CachedConfig {
    /// The name in [`Self::tenants`] whose guarantee a group has: that of the most specific pattern, unless this belongs to a
    /// tenant without a guarantee.
    pub fn tenant_of(&self, group: &str) -> Option<&str> {
        let exempt = self.exempt.iter().map(|pattern| (pattern, None));
        let tenants = self.tenants.iter().rev().map(|(name, tenant)| (&tenant.group, Some(name.as_str())));
        let naming = exempt.chain(tenants).filter(|(pattern, _)| cgroup::names(pattern, group));
        let specificity = |pattern: &str| Match::Cgroup(pattern.trim_matches('/').to_owned()).specificity();
        naming.max_by_key(|(pattern, _)| specificity(pattern)).and_then(|(_, tenant)| tenant)
    }

    /// How often is decided: the published equations and fixed limits are for whole periods.
    pub fn interval(&self) -> evenkeel_control::Duration {
        self.tuning.every()
    }

    /// The controller's settings.
    pub fn controller(&self) -> throughput::Config {
        self.tuning.control(self.cache.slow_bytes_per_s)
    }
}
