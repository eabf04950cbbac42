//! Divides a number of slots among workloads.

use alloc::vec::Vec;

/// One workload's claim on slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Claim {
    /// Slots that the workload's target needs; infinite for a target that cannot be met.
    pub need: f64,
    /// The workload's weight (above 0).
    pub weight: f64,
    /// The claim's weight when slots are shared out that are left after needs are met (0 or more).
    pub use_for: f64,
}

/// Divides `total` slots so that the claims whose need is met have much weight together: claims are met in ascending order of
/// need per weight, which is optimal for equal weights. Every claim gets `least` slots, or an equal part of too small a total.
/// Slots that are left are shared by `use_for` among the claims that are not met, or among all if all are met. O(n log n).
pub(super) fn smallest_first(claims: &[Claim], total: f64, least: f64) -> Vec<f64> {
    let least = least.min(total / claims.len().max(1) as f64);
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by(|&a, &b| (claims[a].need / claims[a].weight).total_cmp(&(claims[b].need / claims[b].weight)));
    let mut slots = alloc::vec![least; claims.len()];
    let mut left = total - least * claims.len() as f64;
    let mut unmet = Vec::new();
    for place in order {
        let more = (claims[place].need - least).max(0.0);
        if more <= left {
            slots[place] += more;
            left -= more;
        } else {
            unmet.push(place);
        }
    }
    // Those that could not be met come before those that have all they need.
    let takers: Vec<usize> = if unmet.is_empty() { (0..claims.len()).collect() } else { unmet };
    let uses: f64 = takers.iter().map(|&place| claims[place].use_for).sum();
    let equal = 1.0 / takers.len().max(1) as f64;
    for place in takers {
        slots[place] += left * if uses > 0.0 { claims[place].use_for / uses } else { equal };
    }
    slots
}
