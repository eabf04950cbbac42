//! The pools of this server as a participant in the cluster.

use std::sync::Arc;

use evenkeel_cluster::{Participant, sums};
use evenkeel_control::cluster::View;
use evenkeel_control::cluster::sharding::Contribution;
use evenkeel_policy::cluster::Pools;
use evenkeel_web::serve::Manager;

/// The server, whose pools share the slots of their devices with other hosts.
pub(super) struct ServedPools(pub(super) Arc<Manager>);

impl Participant for ServedPools {
    fn report(&mut self) -> Pools {
        self.0.server().slot_summaries()
    }

    fn decide(&mut self, view: &View<'_, Contribution<Pools>>, ramp: f64) {
        let sums = sums(view);
        self.0.server().decide_slots(|pool| sums.get(pool).cloned(), ramp);
    }

    fn alone(&mut self) {
        self.0.server().decide_slots_alone();
    }
}
