//! The interface to a participant, which reports statistics of its tenants and gets the view of all hosts to decide by.

use std::collections::BTreeMap;

use evenkeel_control::cluster::View;
use evenkeel_control::cluster::sharding::Contribution;
use evenkeel_control::slots::Summary;
use evenkeel_policy::cluster::{self, Pools};

/// The pools of this host: they report and decide.
pub trait Participant: Send + 'static {
    /// The tenants' summaries since the last call, by pool.
    fn report(&mut self) -> Pools;
    /// Decides by all members' reports of one period, or all shards' sums. `ramp`: fraction of its share that this host
    /// takes, 0 to 1.
    fn decide(&mut self, view: &View<'_, Contribution<Pools>>, ramp: f64);
    /// The cluster is lost: this host decides on its own until the next call of [`Participant::decide`].
    fn alone(&mut self);
}

/// The sums of all members' reports by pool, added up in the order of the members' names, so that all hosts get the same.
pub fn sums<'a>(view: &View<'a, Contribution<Pools>>) -> BTreeMap<&'a str, Summary> {
    cluster::together(view.members.iter().map(|member| &member.report.content.content))
}

/// The sum of reports of hosts or shards, as it is published.
pub(crate) fn together(parts: &mut dyn Iterator<Item = &Pools>) -> Pools {
    cluster::together(parts).into_iter().map(|(name, sum)| (name.to_owned(), sum)).collect()
}
