//! The order in which runs begin: the longest first, so that no thread has a long run left when the others have finished.

use std::collections::HashMap;

use evenkeel_sim::world::Setup;

use crate::parallel::Stopped;

/// Events per second of virtual time in earlier runs, by device and load.
#[derive(Debug, Default)]
pub(super) struct Pace(HashMap<String, f64>);

fn key(setup: &Setup) -> String {
    format!("{:?} {:?}", setup.device, setup.clients)
}

/// Length of a run in seconds of virtual time.
fn seconds(setup: &Setup) -> f64 {
    setup.end().as_nanos() as f64 / 1e9
}

impl Pace {
    /// Indices of `runs` in the order in which they begin: loads that have not run before, then those with the most events.
    pub(super) fn order(&self, runs: &[(Setup, u64)]) -> Vec<usize> {
        let expected = |(setup, _): &(Setup, u64)| {
            let per_s = self.0.get(&key(setup)).copied().unwrap_or(f64::INFINITY);
            (per_s * seconds(setup), seconds(setup))
        };
        let lengths: Vec<(f64, f64)> = runs.iter().map(expected).collect();
        let mut order: Vec<usize> = (0..runs.len()).collect();
        order.sort_by(|&a, &b| {
            let (one, other) = (lengths[a], lengths[b]);
            other.0.total_cmp(&one.0).then(other.1.total_cmp(&one.1))
        });
        order
    }

    /// Takes the number of events of a run of `setup`.
    pub(super) fn learn(&mut self, setup: &Setup, events: u64) {
        self.0.insert(key(setup), events as f64 / seconds(setup).max(1e-9));
    }
}

/// `stopped` with the index of a failed run among the runs before they were brought into `order`. Of several failed runs it is
/// the first in `order`.
pub(super) fn before_order(stopped: Stopped, order: &[usize]) -> Stopped {
    match stopped {
        Stopped::Failed { place, failure } => {
            let place = order.get(place).copied().unwrap_or(place);
            Stopped::Failed { place, failure }
        }
        interrupted @ Stopped::Interrupted { .. } => interrupted,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_control::mclock::Qos;
    use evenkeel_control::units::Kind;
    use evenkeel_control::{Duration, Instant};
    use evenkeel_model::device::DeviceParams;
    use evenkeel_model::store::StoreParams;
    use evenkeel_sim::workload::{Requests, Spec};
    use evenkeel_sim::world::{Client, Failure, Tenant};

    use super::*;

    fn setup(depth: u32, seconds: u64) -> Setup {
        let client = Client {
            tenant: 0,
            workload: Spec::closed(depth, Requests::random(Kind::Write, 4096, 1 << 30)),
            from: Instant::ZERO,
            until: Instant::FAR_FUTURE,
        };
        let device = DeviceParams::Store(StoreParams::ssd());
        Setup::new(device, vec![Tenant::new("one", Qos::default())], vec![client], Duration::from_secs(seconds))
    }

    #[test]
    fn unknown_loads_begin_first_and_then_those_with_the_most_events() {
        let mut pace = Pace::default();
        let runs = [(setup(1, 10), 1), (setup(1, 100), 1), (setup(64, 20), 1), (setup(64, 20), 2), (setup(8, 1), 1)];
        assert_eq!(pace.order(&runs), [1, 2, 3, 0, 4], "by virtual time while nothing is known");
        pace.learn(&setup(1, 50), 500);
        pace.learn(&setup(64, 50), 50_000);
        // 10 events a second and 1,000; the load with a depth of 8 is unknown.
        assert_eq!(pace.order(&runs), [4, 2, 3, 1, 0]);
    }

    #[test]
    fn a_failed_run_is_named_by_its_place_before() {
        let failed = Stopped::Failed { place: 1, failure: Failure::Setup { what: String::new() } };
        assert!(matches!(before_order(failed, &[4, 7]), Stopped::Failed { place: 7, .. }));
        let interrupted = Stopped::Interrupted { done: 1, of: 2 };
        assert!(matches!(before_order(interrupted, &[4, 7]), Stopped::Interrupted { done: 1, of: 2 }));
    }
}
