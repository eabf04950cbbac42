//! Longest processing time first (Graham 1969): the heaviest connection to the lightest worker, and so on. Nearly even,
//! and nearly everything moves.

use alloc::vec::Vec;

/// Assigns every connection anew, on top of what each worker keeps (`fixed`). O(n log n + n · workers).
pub fn assign(fixed: &[u64], loads: &[u64], assignment: &mut [u32]) {
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_unstable_by_key(|&connection| (core::cmp::Reverse(loads[connection]), connection));
    let mut totals = fixed.to_vec();
    for connection in order {
        let lightest = (0..totals.len()).min_by_key(|&worker| totals[worker]).unwrap_or(0);
        totals[lightest] += loads[connection];
        assignment[connection] = lightest as u32;
    }
}
