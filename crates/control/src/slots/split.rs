//! Sharing out.

use alloc::vec::Vec;

/// One claim on slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Claim {
    /// The need; infinite for a target that cannot be met.
    pub need: f64,
    /// The weight (above 0).
    pub weight: f64,
    /// The claim's weight in sharing out what is left (0 or more).
    pub use_for: f64,
}

/// Shares out `total` so that the claims that are met have as much weight as possible, by taking the smallest for its weight
/// first (for equal weights that is the best). Every claim gets `least`. What is left is shared by `use_for`: among the
/// claims that could not be met, if there are some. O(n log n).
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
