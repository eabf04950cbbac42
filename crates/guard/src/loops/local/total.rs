//! The parts of tenants' limits that apply on this host, in a cluster in which a policy's limits are totals over all members.
//!
//! The kernel queues what `io.max` delays, and does not show how much that is. A tenant with a group that uses up its part counts
//! as one with a request queued, so that its part grows like that of a client which waits for answers.
//!
//! The kernel counts a request when it lets it pass. A part of nearly nothing would stop a group, and no demand would ever
//! show. So a tenant has at least [`LEAST`] of its limit here while no part is granted, and after a period in which its groups
//! moved nothing, until they move something. M hosts in this state exceed a limit by at most M times [`LEAST`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_control::pool::Demand;
use evenkeel_control::units::{Fraction, Fractions};
use evenkeel_policy::cluster::MAX_TENANT_NAME;
use evenkeel_policy::units::{Bytes, Rates};

use super::{Due, Group, Local};
use crate::config::LocalTenant;

/// Least part of a limit that applies to a tenant without a granted part, or without requests.
const LEAST: f64 = 1.0 / 16.0;

/// The fraction that stands for no part: nothing is granted.
fn nothing() -> Fraction {
    Fraction::of(0.0)
}

/// A tenant's part of its limit, and what its groups have moved. Both in requests, and in bytes.
#[derive(Clone, Copy, Debug)]
struct Total {
    part: [Fraction; 2],
    moved: [u64; 2],
    /// True if no group has moved anything in the last period and since.
    rests: bool,
}

impl Default for Total {
    fn default() -> Self {
        Self { part: [nothing(); 2], moved: [0; 2], rests: false }
    }
}

impl Total {
    /// The part that applies on this host.
    fn applied(&self) -> [Fraction; 2] {
        let is_least = |part: Fraction| self.rests || part == nothing();
        self.part.map(|part| if is_least(part) { part.max(Fraction::of(LEAST)) } else { part })
    }
}

/// The parts of tenants' limits, by the names of the tenants.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    /// True if limits are totals over all members of a cluster; otherwise they apply as a whole.
    are_shared: bool,
    of: BTreeMap<Arc<str>, Total>,
    /// True if a part has changed since limits were shared out.
    changed: bool,
}

impl Totals {
    /// True if the limit of this tenant is a total. A longer name cannot be reported.
    fn cover(&self, tenant: &str) -> bool {
        self.are_shared && tenant.len() <= MAX_TENANT_NAME
    }

    /// The part of a tenant's limit that applies on this host.
    pub(super) fn limit_of(&self, tenant: &str, limit: Rates) -> Rates {
        if !self.cover(tenant) {
            return limit;
        }
        let part = self.of.get(tenant).copied().unwrap_or_default().applied();
        let part = Fractions { limit: part, ..Fractions::WHOLE }.of_limit(limit.into());
        Rates { iops: part.iops, bytes_per_s: Bytes(part.bytes_per_s) }
    }

    /// Notes which tenants' groups move something. Returns true if a part that applies has changed since the last call.
    pub(super) fn look<'a>(&mut self, groups: impl Iterator<Item = &'a Group>) -> bool {
        let mut changed = std::mem::take(&mut self.changed);
        if self.of.is_empty() {
            return changed;
        }
        let busy: BTreeSet<&str> = groups.filter(|group| !group.share.rests()).map(|group| &*group.shown).collect();
        for (name, total) in &mut self.of {
            let rests = !busy.contains(&**name);
            changed |= std::mem::replace(&mut total.rests, rests) != rests;
        }
        changed
    }
}

impl Local {
    /// Sets if tenants' limits are totals over all members of a cluster: the least part of each applies here then, until
    /// [`Self::set_part`] is called.
    pub fn share_totals(&mut self, are_shared: bool) {
        if std::mem::replace(&mut self.totals.are_shared, are_shared) != are_shared {
            self.share_due = Due::default();
        }
    }

    /// Takes over the parts of tenants' limits from the device's controller under the policy before.
    pub fn take_parts(&mut self, old: &mut Self) {
        self.totals = std::mem::take(&mut old.totals);
    }

    /// Makes these fractions of a tenant's limit apply from the next tick on: of requests, and of bytes.
    pub fn set_part(&mut self, tenant: &str, part: [Fraction; 2]) {
        if let Some(total) = self.totals.of.get_mut(tenant).filter(|total| total.part != part) {
            total.part = part;
            self.totals.changed = true;
        }
    }

    /// Demand of the tenants with groups here whose limits are totals, by name.
    pub fn demands(&mut self) -> BTreeMap<String, Demand> {
        let Self { config, groups, minute, totals, .. } = self;
        let mut demands: BTreeMap<String, Demand> = BTreeMap::new();
        for group in groups.iter_mut() {
            let moved = std::mem::take(&mut group.moved);
            let limit = config.tenants.get(group.tenant).map_or_else(Rates::default, |terms| terms.limit_at(*minute));
            if !group.has_part() || limit.is_unset() || !totals.cover(&group.shown) {
                continue;
            }
            let total = totals.of.entry(Arc::clone(&group.shown)).or_default();
            total.moved = [0, 1].map(|n| total.moved[n].saturating_add(moved[n]));
            let demand = demands.entry(group.shown.to_string()).or_default();
            demand.limit = [limit.iops, limit.bytes_per_s.0];
            (demand.arrived, demand.served) = (total.moved, total.moved);
            let wants_more = group.share.is_used_up() || group.share.is_used_up_by(&group.pace);
            demand.queued = demand.queued.max(u64::from(wants_more));
        }
        totals.of.retain(|name, _| demands.contains_key(&**name));
        demands
    }

    /// The reason for the limits of a group that uses up its part of the tenant's limit, as a sentence.
    pub(super) fn limit_reason(&self, group: &Group, terms: &LocalTenant) -> String {
        let reason = terms.limit_reason();
        if !self.totals.cover(&group.shown) {
            return reason;
        }
        let part = self.totals.limit_of(&group.shown, terms.limit_at(self.minute));
        format!("{reason}; this total holds for all hosts of the cluster together, and this host has {part} of it")
    }
}
