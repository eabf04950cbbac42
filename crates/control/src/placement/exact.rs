//! Few connections: all ways to place them, as far as a bounded search gets.

use alloc::vec::Vec;

/// Connections up to which it is tried.
const MOST_CONNECTIONS: usize = 16;
/// Partial assignments that are looked at: some 10 ns each.
const MOST_NODES: u32 = 2_000;

/// A depth-first search, the heaviest connection first, that gives up what cannot become better than the best so far.
pub(super) struct Search<'a> {
    loads: &'a [u64],
    home: &'a [u32],
    order: Vec<usize>,
    totals: Vec<u64>,
    trial: Vec<u32>,
    nodes: u32,
    best: u64,
    found: bool,
}

/// Improves `assignment`, in which the heaviest worker that has one of these connections carries `heaviest`, if a better
/// one moves at most `budget` connections away from `home`; whether one was found. (A worker that carries more of what
/// stays does not matter: nothing helps it.) Where [`MOST_NODES`] are enough, the result is the best there is.
pub(super) fn improve(
    fixed: &[u64],
    loads: &[u64],
    home: &[u32],
    budget: usize,
    heaviest: u64,
    assignment: &mut [u32],
) -> bool {
    if loads.len() > MOST_CONNECTIONS {
        return false;
    }
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_unstable_by_key(|&n| (core::cmp::Reverse(loads[n]), n));
    let (totals, trial) = (fixed.to_vec(), assignment.to_vec());
    let mut search = Search { loads, home, order, totals, trial, nodes: 0, best: heaviest, found: false };
    search.place(0, budget, assignment);
    search.found
}

impl Search<'_> {
    fn place(&mut self, depth: usize, left: usize, best: &mut [u32]) {
        let Some(&connection) = self.order.get(depth) else {
            // Every worker that has one of them is below the best so far, or this would not have been reached.
            self.best = self.trial.iter().map(|&worker| self.totals[worker as usize]).max().unwrap_or(0);
            self.found = true;
            best.copy_from_slice(&self.trial);
            return;
        };
        let (load, home) = (self.loads[connection], self.home[connection] as usize);
        // At home first: that costs nothing.
        for worker in core::iter::once(home).chain((0..self.totals.len()).filter(|&worker| worker != home)) {
            let cost = usize::from(worker != home);
            if cost > left || self.totals[worker] + load >= self.best {
                continue;
            }
            self.nodes += 1;
            if self.nodes > MOST_NODES {
                return;
            }
            self.totals[worker] += load;
            self.trial[connection] = worker as u32;
            self.place(depth + 1, left - cost, best);
            self.totals[worker] -= load;
        }
    }
}
