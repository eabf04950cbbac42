//! A tenant's limit as a total over all members of a cluster: demand of its groups on this host, and the part that applies here.

use std::collections::BTreeMap;

use evenkeel_control::pool::Demand;
use evenkeel_control::units::Fraction;
use evenkeel_policy::units::Rates;

use super::{Due, Group, Local};
use crate::config::LocalTenant;
use crate::loops::totals::with_part;

impl Local {
    /// Sets if tenants' limits are totals over all members of a cluster: the least part of each applies here then, until
    /// [`Self::set_part`] is called.
    pub fn share_totals(&mut self, are_shared: bool) {
        if self.totals.share(are_shared) {
            self.share_due = Due::default();
        }
    }

    /// Takes over the parts of tenants' limits from the device's controller under the policy before.
    pub fn take_parts(&mut self, old: &mut Self) {
        self.totals = std::mem::take(&mut old.totals);
    }

    /// Makes these fractions of a tenant's limit apply from the next tick on: of requests, and of bytes.
    pub fn set_part(&mut self, tenant: &str, part: [Fraction; 2]) {
        self.totals.grant(tenant, part);
    }

    /// Demand of the tenants with groups here whose limits are totals, by name.
    pub fn demands(&mut self) -> BTreeMap<String, Demand> {
        let Self { config, groups, minute, totals, .. } = self;
        let mut demands = BTreeMap::new();
        for group in groups.iter_mut() {
            let moved = std::mem::take(&mut group.moved);
            let limit = config.tenants.get(group.tenant).map_or_else(Rates::default, |terms| terms.limit_at(*minute));
            if group.has_part() && !limit.is_unset() {
                let wants_more = group.share.is_used_up() || group.share.is_used_up_by(&group.pace);
                totals.count(&mut demands, (&group.shown, limit), moved, wants_more);
            }
        }
        totals.keep(&demands);
        demands
    }

    /// The reason for the limits of a group that uses up its part of the tenant's limit, as a sentence.
    pub(super) fn limit_reason(&self, group: &Group, terms: &LocalTenant) -> String {
        let reason = terms.limit_reason();
        if !self.totals.cover(&group.shown) {
            return reason;
        }
        with_part(&reason, self.totals.part_of(&group.shown, terms.limit_at(self.minute)))
    }
}
