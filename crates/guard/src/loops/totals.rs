//! The parts of tenants' totals that apply on this host, in a cluster in which a policy's limits and guarantees are totals over
//! all members.
//!
//! The kernel queues what `io.max` delays, and does not show how much that is. A tenant with a group that uses up its part counts
//! as one with a request queued, so that its part grows like that of a client which waits for answers.
//!
//! The kernel counts a request when it lets it pass. A part of nearly nothing would stop a group, and no demand would ever
//! show. So a tenant has at least [`LEAST`] of its total here while no part is granted, and after a period in which its groups
//! moved nothing, until they move something. M hosts in this state exceed a total by at most M times [`LEAST`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use evenkeel_control::pool::Demand;
use evenkeel_control::units::{Fraction, Fractions};
use evenkeel_policy::cluster::MAX_TENANT_NAME;
use evenkeel_policy::units::{Bytes, Rates};

/// Least part of a total that applies to a tenant without a granted part, or without requests.
const LEAST: f64 = 1.0 / 16.0;

/// The fraction that stands for no part: nothing is granted.
fn nothing() -> Fraction {
    Fraction::of(0.0)
}

/// A tenant's part of its total, and what its groups have moved. Both in requests, and in bytes.
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

/// The parts of tenants' totals, by name: the tenant's for a limit, and
/// [`guarantee_total`](evenkeel_policy::cluster::guarantee_total) for a guarantee.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    /// True if limits and guarantees are totals over all members of a cluster; otherwise they apply as a whole.
    are_shared: bool,
    of: BTreeMap<Arc<str>, Total>,
    /// True if a part has changed since totals were shared out.
    changed: bool,
}

impl Totals {
    /// Sets if limits and guarantees are totals over all members of a cluster. Returns true if that is new.
    pub(super) fn share(&mut self, are_shared: bool) -> bool {
        std::mem::replace(&mut self.are_shared, are_shared) != are_shared
    }

    /// True if this is the name of a total. A longer name cannot be reported.
    pub(super) fn cover(&self, name: &str) -> bool {
        self.are_shared && name.len() <= MAX_TENANT_NAME
    }

    /// The part that applies on this host of a total, which is `whole`.
    pub(super) fn part_of(&self, name: &str, whole: Rates) -> Rates {
        if !self.cover(name) {
            return whole;
        }
        let part = self.of.get(name).copied().unwrap_or_default().applied();
        let part = Fractions { limit: part, ..Fractions::WHOLE }.of_limit(whole.into());
        Rates { iops: part.iops, bytes_per_s: Bytes(part.bytes_per_s) }
    }

    /// Takes over the granted part of a total.
    pub(super) fn grant(&mut self, name: &str, part: [Fraction; 2]) {
        if let Some(total) = self.of.get_mut(name).filter(|total| total.part != part) {
            total.part = part;
            self.changed = true;
        }
    }

    /// Notes which totals' groups move something. Returns true if a part that applies has changed since the last call.
    pub(super) fn look<'a>(&mut self, busy: impl Iterator<Item = &'a str>) -> bool {
        let mut changed = std::mem::take(&mut self.changed);
        if self.of.is_empty() {
            return changed;
        }
        let busy: BTreeSet<&str> = busy.collect();
        for (name, total) in &mut self.of {
            let rests = !busy.contains(&**name);
            changed |= std::mem::replace(&mut total.rests, rests) != rests;
        }
        changed
    }

    /// Adds a group to the demand for a total, which is `whole`: the requests and bytes that it has moved since the last call.
    /// `wants_more`: it uses up its part.
    pub(super) fn count(
        &mut self,
        demands: &mut BTreeMap<String, Demand>,
        (name, whole): (&Arc<str>, Rates),
        moved: [u64; 2],
        wants_more: bool,
    ) {
        if !self.cover(name) {
            return;
        }
        let total = self.of.entry(Arc::clone(name)).or_default();
        total.moved = [0, 1].map(|n| total.moved[n].saturating_add(moved[n]));
        let demand = demands.entry(name.to_string()).or_default();
        demand.limit = [whole.iops, whole.bytes_per_s.0];
        (demand.arrived, demand.served) = (total.moved, total.moved);
        demand.queued = demand.queued.max(u64::from(wants_more));
    }

    /// Forgets all totals but these.
    pub(super) fn keep(&mut self, demands: &BTreeMap<String, Demand>) {
        self.of.retain(|name, _| demands.contains_key(&**name));
    }
}

/// A reason that names a total, with the part of it that this host has, as a sentence.
pub(super) fn with_part(reason: &str, part: impl Display) -> String {
    format!("{reason}; this total holds for all hosts of the cluster together, and this host has {part} of it")
}
