//! Longest processing time first (Graham 1969): connections in descending order of load, each to the worker with the least
//! load so far. Loads become nearly even, but nearly all connections move.

use alloc::vec::Vec;

/// Assigns a worker to every connection anew. `fixed`: load that each worker has in any case; `loads`: load of each connection;
/// `assignment`: is set to the worker of each connection. O(n log n + n · workers) for n connections.
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
