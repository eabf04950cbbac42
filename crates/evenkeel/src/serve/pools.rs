//! The pools of this server as a participant in the cluster: they share slots, and tenants' reservations, limits and guarantees.

use std::sync::Arc;

use evenkeel_cluster::{Demands, Participant, Parts, sums};
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

    fn demands(&mut self) -> Demands {
        self.0.server().demands()
    }

    fn divide(&mut self, parts: &Parts) {
        self.0.server().set_fractions(parts);
    }
}
