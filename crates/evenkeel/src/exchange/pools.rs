//! The pools of this server as they take part in the exchange.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_control::exchange::Round;
use evenkeel_control::slots::Summary;
use evenkeel_policy::exchange::PoolRecord;

use super::{Member, Pools};
use crate::serve::Manager;

/// See the module's documentation.
pub(crate) struct ServedPools(pub(crate) Arc<Manager>);

impl Member for ServedPools {
    fn report(&mut self) -> Pools {
        let summaries = self.0.server().slot_summaries();
        summaries.iter().map(|(name, summary)| (name.clone(), PoolRecord::from(summary))).collect()
    }

    fn decide(&mut self, round: &Round<'_, Pools>, ramp: f64) {
        let sums = sums(round);
        self.0.server().decide_slots(|pool| sums.get(pool).cloned(), ramp);
    }

    fn alone(&mut self) {
        self.0.server().decide_slots_alone();
    }
}

/// What all hosts did, by pool: added up in the order of their names, so that the sums are the same everywhere.
pub(crate) fn sums<'a>(round: &Round<'a, Pools>) -> BTreeMap<&'a str, Summary> {
    let mut sums: BTreeMap<&str, Summary> = BTreeMap::new();
    for (name, record) in round.members.iter().flat_map(|member| &member.report.content) {
        sums.entry(name).or_default().add(&record.into());
    }
    sums
}
