//! The arrays of this host, and its tenants' limits and guarantees of control groups, as a participant in the cluster.

use std::sync::{Arc, Mutex};

use evenkeel_cluster::{Demands, Participant, Parts, sums};
use evenkeel_control::cluster::View;
use evenkeel_control::cluster::sharding::Contribution;
use evenkeel_guard::host::{Shared, lock};
use evenkeel_policy::cluster::Pools;

/// The agent's state, shared with its loop. The cluster decides slots under the state's lock, between two ticks of the loop;
/// only the loop changes settings of the host.
pub(super) struct GuardedPools(pub(super) Arc<Mutex<Shared>>);

impl Participant for GuardedPools {
    fn report(&mut self) -> Pools {
        lock(&self.0).agent.summaries()
    }

    fn decide(&mut self, view: &View<'_, Contribution<Pools>>, ramp: f64) {
        lock(&self.0).agent.decide(&sums(view), ramp);
    }

    fn alone(&mut self) {
        lock(&self.0).agent.alone();
    }

    fn demands(&mut self) -> Demands {
        lock(&self.0).agent.demands()
    }

    fn divide(&mut self, parts: &Parts) {
        lock(&self.0).agent.divide(parts);
    }
}
