//! Rules on baselines: methods for comparison, which only simulations may use.

use std::collections::BTreeMap;

use super::{Finding, Findings};
use crate::config::{Config, Pool, Slots};
use evenkeel_control::admission::Config as Admission;

/// All findings about the configuration of a server, in the order of its tables.
pub fn findings(config: &Config) -> Vec<Finding> {
    let mut out = Findings(super::simulated(config));
    of_pools(&config.pools, &mut out);
    out.0
}

/// Reports every baseline in the settings of pools as an error.
pub(super) fn of_pools(pools: &BTreeMap<String, Pool>, out: &mut Findings) {
    for (name, pool) in pools {
        let mut only_simulated = |key, value: &str, known: &str| {
            let message = format!("{value:?} is a method for comparisons, in `evenkeel sim` only; known: {known}");
            out.error(&["pools", name, "tuning", key], message);
        };
        let tuning = &pool.tuning;
        if tuning.admission.is_baseline() {
            only_simulated("admission", tuning.admission.name(), &Admission::NAMES.join(", "));
        }
        if matches!(tuning.slots, Slots::SfqD | Slots::DrgSmoothed) {
            only_simulated("slots", tuning.slots.name(), "none, rwd, parda, drg, needs");
        }
    }
}
