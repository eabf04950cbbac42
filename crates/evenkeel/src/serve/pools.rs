//! The pools of this server as they take part in the exchange.

use std::sync::Arc;

use evenkeel_cluster::{Member, sums};
use evenkeel_control::exchange::Round;
use evenkeel_control::exchange::fleet::Said;
use evenkeel_policy::exchange::{PoolRecord, Pools};
use evenkeel_web::serve::Manager;

/// See the module's documentation.
pub(super) struct ServedPools(pub(super) Arc<Manager>);

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
