//! Descent: from the present assignment, the few moves that take load off the heaviest worker.
//!
//! ```text
//!  heaviest ─┬─ a connection ─────────────▶ a lighter one      a move, 1 of the budget
//!            └─ a connection ◀──swapped──▶ one of a lighter     a swap, 2 of the budget
//! ```
//!
//! Each step takes the change that removes the most excess over the mean for each connection moved, and no step makes
//! the heavier of its two workers heavier than it was: the result is never worse than the beginning, whenever it stops.

use alloc::vec::Vec;

use super::exact;

/// A worker this close to the mean of those that can still be improved (as a fraction) is good enough.
const PRECISION_DIVISOR: u64 = 1_000;
/// A single move that removes this share of what could be removed at best is taken without looking for swaps.
const GOOD_MOVE_PERCENT: u64 = 70;
/// Lightest workers that swaps are looked for with. All, where there are not more.
const SWAP_WORKERS: usize = 8;

/// A connection on its worker.
#[derive(Clone, Copy, Debug)]
struct Member {
    load: u64,
    index: u32,
}

/// A change: a connection of the heaviest worker to another one, perhaps against one of the other's.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// Place of the connection among those of the heaviest worker.
    gives: usize,
    to: usize,
    /// Place of the one that comes back among those of the other.
    takes: Option<usize>,
    /// Excess over the mean that it removes.
    gain: u64,
    /// Load of the heavier of the two afterwards.
    heavier: u64,
    /// Connections more that are elsewhere than in the beginning; negative where one returns.
    cost: i64,
}

impl Change {
    /// Whether it gains more for each connection moved, or leaves less on the heavier of the two for the same.
    fn is_better_than(&self, other: &Self) -> bool {
        let (mine, its) = (i128::from(self.cost.max(1)), i128::from(other.cost.max(1)));
        let (gain, others) = (i128::from(self.gain) * its, i128::from(other.gain) * mine);
        gain > others || (gain == others && (self.heavier, self.cost) < (other.heavier, other.cost))
    }
}

/// Finds few moves that even out the load. Keeps its memory from call to call.
#[derive(Debug, Default)]
pub struct Descent {
    members: Vec<Vec<Member>>,
    totals: Vec<u64>,
    frozen: Vec<bool>,
    lightest: Vec<usize>,
    home: Vec<u32>,
}

impl Descent {
    /// Nothing allocated yet.
    pub const fn new() -> Self {
        Self { members: Vec::new(), totals: Vec::new(), frozen: Vec::new(), lightest: Vec::new(), home: Vec::new() }
    }

    /// Moves at most `budget` connections between workers so that the heaviest has as little as possible; how many are
    /// elsewhere than before.
    ///
    /// `fixed` is what each worker carries and keeps. `loads` and `assignment` have one entry for each connection that
    /// may move, loads in any unit whose sum fits 64 bits; a worker that does not exist counts as worker 0.
    ///
    /// O(n log n) for n connections, and O(workers + connections of a worker) for each move.
    ///
    /// # Panics
    /// When `loads` and `assignment` differ in length, or there are no workers.
    pub fn balance(&mut self, fixed: &[u64], loads: &[u64], budget: usize, assignment: &mut [u32]) -> usize {
        assert_eq!(loads.len(), assignment.len(), "one load for each connection");
        assert!(!fixed.is_empty(), "connections need a worker");
        self.fill(fixed, loads, assignment);
        let mut left = budget as i64;
        while let Some((heaviest, mean)) = self.heaviest() {
            match self.best_change(heaviest, mean, left) {
                Some(change) => {
                    left -= change.cost;
                    self.apply(heaviest, change, assignment);
                }
                None => self.frozen[heaviest] = true,
            }
        }
        let with_members = self.totals.iter().zip(&self.members).filter(|(_, members)| !members.is_empty());
        let most = with_members.map(|(&total, _)| total).max().unwrap_or(0);
        if most > self.bound(fixed, loads, most) && exact::improve(fixed, loads, &self.home, budget, most, assignment) {
            return assignment.iter().zip(&self.home).filter(|(worker, home)| worker != home).count();
        }
        (budget as i64 - left) as usize
    }

    /// No assignment leaves less than this on the heaviest of the workers that these connections may be on: where more
    /// than `most` stays, nobody would put one.
    fn bound(&self, fixed: &[u64], loads: &[u64], most: u64) -> u64 {
        let (mut sum, mut workers) = (0, 0);
        for (&total, _) in self.totals.iter().zip(fixed).filter(|&(_, &stays)| stays < most) {
            sum += total;
            workers += 1;
        }
        sum.div_ceil(workers.max(1)).max(loads.iter().copied().max().unwrap_or(0))
    }

    fn fill(&mut self, fixed: &[u64], loads: &[u64], assignment: &mut [u32]) {
        let workers = fixed.len();
        self.members.iter_mut().for_each(Vec::clear);
        self.members.resize_with(workers, Vec::new);
        self.totals.clear();
        self.totals.extend_from_slice(fixed);
        self.frozen.clear();
        self.frozen.resize(workers, false);
        for (index, (&load, worker)) in loads.iter().zip(&mut *assignment).enumerate() {
            if *worker as usize >= workers {
                *worker = 0;
            }
            self.members[*worker as usize].push(Member { load, index: index as u32 });
            self.totals[*worker as usize] += load;
        }
        self.home.clear();
        self.home.extend_from_slice(assignment);
        for members in &mut self.members {
            members.sort_unstable_by_key(|member| (member.load, member.index));
        }
    }

    /// The heaviest worker that may still be improved, and the mean of all such; none when it is good enough.
    fn heaviest(&self) -> Option<(usize, u64)> {
        let (mut heaviest, mut sum, mut count) = (None, 0, 0);
        for (worker, &total) in self.totals.iter().enumerate().filter(|&(worker, _)| !self.frozen[worker]) {
            sum += total;
            count += 1;
            if heaviest.is_none_or(|(_, most)| total > most) {
                heaviest = Some((worker, total));
            }
        }
        let (worker, total) = heaviest?;
        let mean = sum / count;
        (count > 1 && total - mean > mean / PRECISION_DIVISOR).then_some((worker, mean))
    }

    /// What a member costs when it moves from `from` to `to`.
    fn cost(&self, member: Member, from: usize, to: usize) -> i64 {
        let home = self.home[member.index as usize] as usize;
        i64::from(home != to) - i64::from(home != from)
    }

    fn best_change(&mut self, from: usize, mean: u64, left: i64) -> Option<Change> {
        let mut best: Option<Change> = None;
        let mut most_room = 0;
        for to in 0..self.totals.len() {
            if to == from || self.frozen[to] {
                continue;
            }
            most_room = most_room.max(mean.saturating_sub(self.totals[to]));
            self.best_move(from, to, mean, left, &mut best);
        }
        let possible = most_room.min(self.totals[from] - mean);
        if best.is_some_and(|best| best.gain * 100 >= possible * GOOD_MOVE_PERCENT) {
            return best;
        }
        self.find_lightest(from);
        for n in 0..self.lightest.len() {
            self.best_swap(from, self.lightest[n], mean, left, &mut best);
        }
        best
    }

    fn consider(&self, from: usize, change: Change, mean: u64, transfer: u64, left: i64, best: &mut Option<Change>) {
        let (more, less) = (self.totals[from], self.totals[change.to]);
        let heavier = (more - transfer).max(less + transfer);
        if change.cost > left || transfer == 0 || heavier >= more {
            return;
        }
        let excess = |load: u64| load.saturating_sub(mean);
        let before = excess(more) + excess(less);
        let gain = before.saturating_sub(excess(more - transfer) + excess(less + transfer));
        let change = Change { gain, heavier, ..change };
        if best.as_ref().is_none_or(|best| change.is_better_than(best)) {
            *best = Some(change);
        }
    }

    /// The connections nearest to half of the difference, from both sides.
    fn best_move(&self, from: usize, to: usize, mean: u64, left: i64, best: &mut Option<Change>) {
        let gap = self.totals[from].saturating_sub(self.totals[to]);
        let members = &self.members[from];
        let middle = members.partition_point(|member| member.load <= gap / 2);
        let first = middle.saturating_sub(2);
        for (gives, &member) in members.iter().enumerate().take(middle + 2).skip(first) {
            let cost = self.cost(member, from, to);
            let change = Change { gives, to, takes: None, gain: 0, heavier: 0, cost };
            if member.load < gap {
                self.consider(from, change, mean, member.load, left, best);
            }
        }
    }

    /// The lightest workers that may still change.
    fn find_lightest(&mut self, from: usize) {
        self.lightest.clear();
        for worker in 0..self.totals.len() {
            if worker == from || self.frozen[worker] {
                continue;
            }
            let place = self.lightest.partition_point(|&other| self.totals[other] <= self.totals[worker]);
            if place < SWAP_WORKERS {
                self.lightest.truncate(SWAP_WORKERS - 1);
                self.lightest.insert(place, worker);
            }
        }
    }

    /// Pairs whose difference is nearest to half of that of the workers: both lists are sorted, one pass finds them.
    fn best_swap(&self, from: usize, to: usize, mean: u64, left: i64, best: &mut Option<Change>) {
        let gap = self.totals[from].saturating_sub(self.totals[to]);
        let (ours, theirs) = (&self.members[from], &self.members[to]);
        let mut other = 0;
        for (gives, mine) in ours.iter().enumerate() {
            while other < theirs.len() && theirs[other].load + gap / 2 < mine.load {
                other += 1;
            }
            for (takes, &its) in theirs.iter().enumerate().take(other + 1).skip(other.saturating_sub(1)) {
                if its.load >= mine.load || mine.load - its.load >= gap {
                    continue;
                }
                let cost = self.cost(*mine, from, to) + self.cost(its, to, from);
                let change = Change { gives, to, takes: Some(takes), gain: 0, heavier: 0, cost };
                self.consider(from, change, mean, mine.load - its.load, left, best);
            }
        }
    }

    fn apply(&mut self, from: usize, change: Change, assignment: &mut [u32]) {
        let mine = self.members[from].remove(change.gives);
        let its = change.takes.map(|takes| self.members[change.to].remove(takes));
        self.put(mine, from, change.to, assignment);
        if let Some(its) = its {
            self.put(its, change.to, from, assignment);
        }
    }

    fn put(&mut self, member: Member, from: usize, to: usize, assignment: &mut [u32]) {
        let key = (member.load, member.index);
        let place = self.members[to].partition_point(|other| (other.load, other.index) < key);
        self.members[to].insert(place, member);
        self.totals[from] -= member.load;
        self.totals[to] += member.load;
        assignment[member.index as usize] = to as u32;
    }
}
