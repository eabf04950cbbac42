//! The interface to a participant: whose statistics are reported, and by whom slots are decided.

use std::collections::BTreeMap;

use evenkeel_control::exchange::Round;
use evenkeel_control::exchange::fleet::Said;
use evenkeel_control::slots::Summary;
use evenkeel_policy::exchange::{self, PoolRecord, Pools};

/// The pools of this host: they report and decide.
pub trait Member: Send + 'static {
    /// The tenants' report since the last call.
    fn report(&mut self) -> Pools;
    /// All hosts' reports of one period, or all sections' sums. `ramp`: how much of its share this host takes, 0 to 1.
    fn decide(&mut self, round: &Round<'_, Said<Pools>>, ramp: f64);
    /// The exchange is lost: this host is on its own until the next call of [`Member::decide`].
    fn alone(&mut self);
}

/// The sums of all hosts by pool, added up in the order of their names, so that they are the same everywhere.
pub fn sums<'a>(round: &Round<'a, Said<Pools>>) -> BTreeMap<&'a str, Summary> {
    exchange::together(round.members.iter().map(|member| &member.report.content.content))
}

/// The joint report of hosts or sections, as it is published.
pub(crate) fn together(parts: &mut dyn Iterator<Item = &Pools>) -> Pools {
    let sums = exchange::together(parts);
    sums.iter().map(|(name, sum)| ((*name).to_owned(), PoolRecord::from(sum))).collect()
}
