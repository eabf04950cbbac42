//! The pools of this server as they take part in the exchange.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_control::exchange::Round;
use evenkeel_control::exchange::fleet::Said;
use evenkeel_control::slots::Summary;
use evenkeel_policy::exchange::{self, PoolRecord, Pools};

use super::Member;
use crate::serve::Manager;

/// See the module's documentation.
pub(crate) struct ServedPools(pub(crate) Arc<Manager>);

impl Member for ServedPools {
    fn report(&mut self) -> Pools {
        let summaries = self.0.server().slot_summaries();
        summaries.iter().map(|(name, summary)| (name.clone(), PoolRecord::from(summary))).collect()
    }

    fn decide(&mut self, round: &Round<'_, Said<Pools>>, ramp: f64) {
        let sums = sums(round);
        self.0.server().decide_slots(|pool| sums.get(pool).cloned(), ramp);
    }

    fn alone(&mut self) {
        self.0.server().decide_slots_alone();
    }
}

/// What all hosts did, by pool: added up in the order of their names, so that the sums are the same everywhere.
pub(crate) fn sums<'a>(round: &Round<'a, Said<Pools>>) -> BTreeMap<&'a str, Summary> {
    exchange::together(round.members.iter().map(|member| &member.report.content.content))
}

/// What hosts or sections said together, as it is told.
pub(super) fn together(parts: &mut dyn Iterator<Item = &Pools>) -> Pools {
    let sums = exchange::together(parts);
    sums.iter().map(|(name, sum)| ((*name).to_owned(), PoolRecord::from(sum))).collect()
}
