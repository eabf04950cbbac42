//! When all workers are full: one is kept for the connections that carry little.
//!
//! Evening out loads that fill every worker gains nothing more, and whoever asks a little waits behind somebody's queue
//! wherever it is. With one worker less the others have as much to do as before, and lose 1 / workers of their throughput
//! at most; on the one that is kept nobody waits.

use super::{Move, Moving, Placement, REST_INTERVALS, Reason};

/// A connection that takes a smaller share of a worker's time asks little.
const LITTLE: f64 = 0.01;
/// One that takes a larger share leaves the worker that is kept.
const MUCH: f64 = 0.04;
/// Budgets of moves that are used at a time.
const BUDGETS: f64 = 3.0;
/// Intervals for which all must be full before one is kept, and for which another must have room before it is kept no
/// longer.
const PATIENCE: u32 = 3;

/// Which worker is kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) worker: Option<u32>,
    /// Intervals that speak for a change.
    against: u32,
}

impl Placement {
    /// Keeps a worker for those that ask little, if it is time to, and moves them and the others apart. Whether
    /// anything moves, and why; what a worker that is kept carries counts as much as the heaviest of the others, so that
    /// they are evened out without it.
    pub(super) fn keep_apart(&mut self, moving: &Moving, interval_ns: f64) -> Option<Reason> {
        let little = |counts_for: u64| (counts_for as f64) < LITTLE * interval_ns;
        let anybody = self.entries.iter().flatten().any(|entry| entry.counts_for > 0 && little(entry.counts_for));
        let kept = self.kept.worker;
        let others_full = (0..self.workers as u32).all(|n| Some(n) == kept || self.usages.fullness(n) > 0.0);
        if (anybody && others_full) == kept.is_some() {
            self.kept.against = 0;
        } else {
            self.kept.against += 1;
        }
        if self.kept.against >= PATIENCE {
            self.kept.against = 0;
            self.kept.worker = match kept {
                Some(_) => None,
                None if self.workers > 2 => (0..self.workers as u32).min_by_key(|&n| self.carries[n as usize]),
                None => None,
            };
        }
        let worker = self.kept.worker?;
        // Most of them carry next to nothing.
        let budget = (self.counts.iter().sum::<u64>() as f64 * moving.budget * BUDGETS) as usize + 1;
        for slot in 0..self.entries.len() as u32 {
            let Some(Some(entry)) = self.entries.get(slot as usize) else { continue };
            let (from, counts_for) = (entry.worker, entry.counts_for);
            let stays = if from == worker { counts_for as f64 <= MUCH * interval_ns } else { !little(counts_for) };
            if self.moves.len() >= budget || stays || !entry.forecast.is_known() {
                continue;
            }
            let lightest = (0..self.workers as u32).filter(|&n| n != worker).min_by_key(|&n| self.carries[n as usize]);
            let to = if from == worker { lightest.unwrap_or(from) } else { worker };
            self.transfer(slot, to);
            self.moves.push(Move { slot, from, to });
            if let Some(Some(entry)) = self.entries.get_mut(slot as usize) {
                entry.rests = REST_INTERVALS;
            }
        }
        if !self.moves.is_empty() {
            return Some(Reason::Apart { worker });
        }
        // What is on it stays, and nobody joins it.
        let all = self.slots.iter().zip(&self.loads).zip(&self.assignment);
        let rest: alloc::vec::Vec<_> =
            all.filter(|(_, at)| **at != worker).map(|((slot, load), at)| (*slot, *load, *at)).collect();
        self.slots.clear();
        self.loads.clear();
        self.assignment.clear();
        for (slot, load, at) in rest {
            self.slots.push(slot);
            self.loads.push(load);
            self.assignment.push(at);
        }
        self.fixed[worker as usize] = self.carries.iter().copied().max().unwrap_or(0);
        None
    }
}
