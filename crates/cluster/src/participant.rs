//! The interface to a participant: it reports statistics of its tenants, and decides by the reports of all hosts.

use std::collections::BTreeMap;

use evenkeel_control::cluster::View;
use evenkeel_control::cluster::sharding::Contribution;
use evenkeel_control::pool::Demand;
use evenkeel_control::slots::Summary;
use evenkeel_control::units::Fractions;
use evenkeel_policy::cluster::{self, Pools};

/// Name of a pool, and name of a tenant in it or of the throughput guarantee of such a tenant.
pub type Key = (String, String);

/// The demand of each tenant that has a reservation or a limit, and for each guarantee, as for a limit.
pub type Demands = BTreeMap<Key, Demand>;

/// The fractions of tenants' reservations and limits that apply on this host. A throughput guarantee has its fraction in the
/// field of the limit.
pub type Parts = BTreeMap<Key, Fractions>;

/// The pools of this host: they report their load to the cluster, and decide by the reports of all members.
pub trait Participant: Send + 'static {
    /// Summaries of the tenants' load since the previous call, by pool.
    fn report(&mut self) -> Pools;
    /// Decides by all members' reports of one period, or in a divided cluster by the sums of all shards. `ramp`: fraction of
    /// its share that this host takes, 0 to 1.
    fn decide(&mut self, view: &View<'_, Contribution<Pools>>, ramp: f64);
    /// Called when the cluster is lost, at the start and at the end: this host decides on its own until the next call of
    /// [`Participant::decide`].
    fn alone(&mut self);
    /// The demand of the tenants whose reservation and limit are totals over all members; only called if the cluster has
    /// totals. None: this host serves no such tenants.
    fn demands(&mut self) -> Demands {
        Demands::new()
    }
    /// Makes these parts of the tenants' totals apply on this host; other tenants keep theirs. Called after each change of a
    /// part, not only once a period.
    fn divide(&mut self, _parts: &Parts) {}
}

/// Sums of all members' reports, by pool; added up in the order of the members' names, so that all hosts get the same sums.
pub fn sums<'a>(view: &View<'a, Contribution<Pools>>) -> BTreeMap<&'a str, Summary> {
    cluster::together(view.members.iter().map(|member| &member.report.content.content))
}

/// The sum, by pool, of reports of hosts or shards, which a shard publishes.
pub(crate) fn together(parts: &mut dyn Iterator<Item = &Pools>) -> Pools {
    cluster::together(parts).into_iter().map(|(name, sum)| (name.to_owned(), sum)).collect()
}
