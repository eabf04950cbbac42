//! The best of all placements of a few connections on workers. It takes exponential time, and is there for comparisons only.

use alloc::vec::Vec;

/// A depth-first search over placements, the heaviest connection first. A partial placement that cannot become better than the
/// best one so far is given up.
struct Search<'a> {
    loads: &'a [u64],
    home: &'a [u32],
    order: Vec<usize>,
    totals: Vec<u64>,
    trial: Vec<u32>,
    best: u64,
}

/// Changes `assignment` so that the heaviest worker has as little load as possible, with at most `budget` connections moved;
/// returns that worker's load. `fixed`: load that each worker has in any case; `loads`: load of each connection.
///
/// # Panics
/// When `loads` and `assignment` differ in length, or a connection is on a worker that does not exist.
pub fn assign(fixed: &[u64], loads: &[u64], budget: usize, assignment: &mut [u32]) -> u64 {
    assert_eq!(loads.len(), assignment.len(), "one load for each connection");
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_unstable_by_key(|&n| (core::cmp::Reverse(loads[n]), n));
    let (home, totals) = (assignment.to_vec(), fixed.to_vec());
    let mut search = Search { loads, home: &home, order, totals, trial: home.clone(), best: u64::MAX };
    search.place(0, budget, assignment);
    search.best
}

impl Search<'_> {
    fn place(&mut self, depth: usize, left: usize, best: &mut [u32]) {
        let Some(&connection) = self.order.get(depth) else {
            let heaviest = self.totals.iter().copied().max().unwrap_or(0);
            if heaviest < self.best {
                self.best = heaviest;
                best.copy_from_slice(&self.trial);
            }
            return;
        };
        let (load, home) = (self.loads[connection], self.home[connection] as usize);
        // At home first: that costs nothing.
        for worker in core::iter::once(home).chain((0..self.totals.len()).filter(|&worker| worker != home)) {
            let cost = usize::from(worker != home);
            if cost > left || self.totals[worker] + load >= self.best {
                continue;
            }
            self.totals[worker] += load;
            self.trial[connection] = worker as u32;
            self.place(depth + 1, left - cost, best);
            self.totals[worker] -= load;
        }
    }
}
