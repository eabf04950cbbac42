//! The arrays of this host as they take part in the exchange with others.

use std::sync::{Arc, Mutex};

use evenkeel_cluster::{Member, sums};
use evenkeel_control::exchange::Round;
use evenkeel_control::exchange::fleet::Said;
use evenkeel_guard::host::{Shared, lock};
use evenkeel_policy::exchange::{PoolRecord, Pools};

/// Periods end and slots are decided between two ticks of the loop, which alone changes settings.
pub(super) struct SharedArrays(pub(super) Arc<Mutex<Shared>>);

impl Member for SharedArrays {
    fn report(&mut self) -> Pools {
        let summaries = lock(&self.0).agent.summaries();
        summaries.iter().map(|(name, summary)| (name.clone(), PoolRecord::from(summary))).collect()
    }

    fn decide(&mut self, round: &Round<'_, Said<Pools>>, ramp: f64) {
        lock(&self.0).agent.decide(&sums(round), ramp);
    }

    fn alone(&mut self) {
        lock(&self.0).agent.alone();
    }
}
