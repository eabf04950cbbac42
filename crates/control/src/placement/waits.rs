//! The method `waits`: a connection moves to a worker where it waits less, if others lose less by that than it gains.
//!
//! A connection waits only if another one asks at the same time. So the load of each connection is kept for each time slot (an
//! interval of the past), and the waits under any assignment follow from sums over time slots:
//!
//! ```text
//!  time slot   1   2   3   4   5                    1   2   3   4   5
//!  worker 0   ██  ··  ██  ··  ██   a        a:     ██  ··  ██  ··  ██
//!             ██  ··  ██  ··  ██   b  ─┐
//!  worker 1   ··  ██  ··  ██  ··   c   │    b, c:  ██  ██  ██  ██  ██
//!             ··  ██  ··  ██  ··   d   └▶   d:     ··  ██  ··  ██  ··
//! ```
//!
//! The load of a connection on a full worker is less than it would be elsewhere. There it counts by its waiting work, as if
//! this work would wait on another worker, too; a trial finds out if it would. See `docs/algorithms/placement.md`.

use alloc::vec::Vec;

use super::usage::Part;
use super::{Move, Moving, Placement, Reason};
use crate::rng::SplitMix64;

/// Number of past time slots that are kept. A new one replaces one drawn at random, so that their ages are spread.
const SLOTS: usize = 32;
/// A gain is certain if it exceeds 0 by this many standard errors.
const CERTAIN: f32 = 3.0;
/// Number of time slots that a trial takes. In the first one the work that waited on the old worker is served.
const TRIAL: usize = 4;
/// After a failed trial the next one begins this many lengths of a trial later: trials affect less than 1 % of the time.
const RARELY: usize = 100;
/// Upper bound on the loss of the other connections by a successful trial, as a part of the gain of all.
const LOSS: f32 = 0.25;
/// Number of connections whose moves are computed exactly in a decision: those with the largest estimated gain.
const CANDIDATES: usize = 64;
/// Number of pairs of a connection and a worker whose gain is estimated in a decision; further connections are estimated in
/// the next decision.
const PAIRS: usize = 16_384;
/// Bit mask of all time slots.
const ALL: u32 = u32::MAX;

type Row = [f32; SLOTS];

/// The work of a connection, or of all connections of a worker, in each time slot.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Load while the worker was not full, as a part of the time slot.
    open: Row,
    /// Load while the worker was full, as a part of the time slot.
    hidden: Row,
    /// CPU time of requests that were waiting while the worker was full, as a part of the time slot.
    closed: Row,
    /// For a connection the part of the time slot in which it has requests, 0 to 1; for a worker the sum over connections.
    asks: Row,
}

impl Share {
    const NONE: Self = Self { open: [0.0; SLOTS], hidden: [0.0; SLOTS], closed: [0.0; SLOTS], asks: [0.0; SLOTS] };

    fn add(&mut self, other: &Self, sign: f32) {
        for n in 0..SLOTS {
            self.open[n] += sign * other.open[n];
            self.hidden[n] += sign * other.hidden[n];
            self.closed[n] += sign * other.closed[n];
            self.asks[n] += sign * other.asks[n];
        }
    }

    fn load(&self, n: usize) -> f32 {
        self.open[n] + self.hidden[n]
    }

    fn total(&self) -> f32 {
        (0..SLOTS).map(|n| self.load(n)).sum()
    }
}

/// The work of a connection in past time slots.
#[derive(Clone, Copy, Debug)]
struct Past {
    share: Share,
    /// Bit mask of the time slots for which the connection's work is known.
    known: u32,
    /// Bit mask of the time slots in which the connection had requests.
    busy: u32,
}

impl Past {
    const NONE: Self = Self { share: Share::NONE, known: 0, busy: 0 };

    /// Estimates for each time slot the part in which the connection has requests. Requests that come one by one at random count
    /// evenly for all time slots; requests that come in bursts count only for their own. `slots`: number of time slots so
    /// far; `each`: time of a request, in time slots.
    fn spread(&mut self, slots: f32, each: f32) {
        let busy = self.busy.count_ones() as f32;
        let by_chance = slots * (1.0 - libm::expf(-self.share.total() / each / slots));
        let even = (busy / by_chance).min(1.0);
        for n in 0..SLOTS {
            let own = (self.busy >> n & 1) as f32;
            let any = if (n as f32) < slots { busy / slots } else { 0.0 };
            self.share.asks[n] = own + (any - own) * even;
        }
    }
}

/// The sums over a worker's connections, by time slot.
#[derive(Clone, Debug)]
struct Worker {
    sum: Share,
    /// For each time slot, the logarithm of the time that a request takes divided by its time without other requests.
    logs: Row,
    /// By how much the logarithms of all the worker's connections together rise per unit of additional load (first row), and
    /// of additional waiting work (second row).
    slopes: [Row; 2],
}

/// A trial: a connection was moved to another worker to measure its load there.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Slot (number) of the connection.
    slot: u32,
    from: u32,
    to: u32,
    began: usize,
    /// Bit mask of the time slots of the trial so far, without the first.
    seen: u32,
}

/// The gain of a move: reductions of the logarithm of the time that requests take, summed over time slots.
#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    /// Gain of all connections; each counts by the part of the time in which it has requests.
    all: f32,
    /// Standard error of `all`.
    error: f32,
    /// Gain of the connections that do not move.
    others: f32,
    /// Gain of all connections, each counted by its load.
    work: f32,
    /// Number of time slots, with fractions, in which the connection that moves has requests.
    asks: f32,
    /// Sum over time slots of the load of the connection that moves.
    load: f32,
}

impl Gain {
    fn sure(&self) -> f32 {
        self.all - CERTAIN * self.error
    }

    /// True if the gain is certain and at least `min_gain`, and requests weighted by load lose at most `min_gain`.
    fn is_worth(&self, min_gain: f32) -> bool {
        self.sure() > 0.0 && self.all >= min_gain * self.asks && self.work >= -min_gain * self.load
    }
}

/// The work of connections in the past time slots, and the trial under way.
#[derive(Debug, Default)]
pub(super) struct Waits {
    connections: Vec<Past>,
    workers: Vec<Worker>,
    /// Index of the newest time slot in rows, below [`SLOTS`].
    slot: usize,
    /// Number of time slots so far.
    seen: usize,
    /// Mean time of a request, in time slots.
    each: f32,
    /// The connection with which the next decision begins to estimate gains.
    next: usize,
    trial: Option<Trial>,
    next_trial: usize,
}

impl Waits {
    /// Clears the past of the connection of number `slot`, because the number now belongs to a new connection.
    pub(super) fn forget(&mut self, slot: u32) {
        if self.connections.len() <= slot as usize {
            self.connections.resize(slot as usize + 1, Past::NONE);
        }
        self.connections[slot as usize] = Past::NONE;
        self.trial = self.trial.filter(|trial| trial.slot != slot);
    }

    /// Chooses the index at which the time slot that ends now is kept. `each`: the mean time of a request in this time slot, in
    /// time slots, if it is known.
    pub(super) fn begin_slot(&mut self, each: Option<f64>, workers: usize, rng: &mut SplitMix64) {
        self.slot = if self.seen < SLOTS { self.seen } else { rng.next_below(SLOTS as u64) as usize };
        self.seen += 1;
        let each = each.map_or(1.0 / SLOTS as f32, |each| each as f32).max(f32::EPSILON);
        self.each += (each - self.each) / self.seen.min(SLOTS) as f32;
        self.workers.clear();
        self.workers.resize(workers, Worker { sum: Share::NONE, logs: [0.0; SLOTS], slopes: [[0.0; SLOTS]; 2] });
    }

    /// Keeps the work `new` of the connection of number `slot` in the newest time slot, if it is known. Returns the connection's
    /// mean load over its known time slots, as a part of a time slot.
    pub(super) fn learn(&mut self, slot: u32, worker: u32, new: Option<Part>) -> Option<f32> {
        let (past, n) = (&mut self.connections[slot as usize], self.slot);
        if let Some(Part { open, hidden, waiting }) = new {
            (past.share.open[n], past.share.hidden[n], past.share.closed[n]) = (open, hidden, waiting);
            past.known |= 1 << n;
            past.busy = past.busy & !(1 << n) | u32::from(open + hidden > 0.0) << n;
        }
        if past.busy != 0 {
            past.spread(self.seen.min(SLOTS) as f32, self.each);
            self.workers[worker as usize].sum.add(&past.share, 1.0);
        } else {
            past.share.asks = [0.0; SLOTS];
        }
        (past.known != 0).then(|| past.share.total() / past.known.count_ones() as f32)
    }

    /// Logarithm of the time that a request takes beside the load `open` and the waiting work `closed`, divided by its time
    /// alone; as in a queue with random arrivals.
    fn log(&self, open: f32, closed: f32) -> f32 {
        libm::logf((self.each + closed.max(0.0)) / (1.0 - open).max(self.each) / self.each)
    }

    fn count(&mut self, slot: u32, worker: u32, sign: f32) {
        let share = self.connections[slot as usize].share;
        self.workers[worker as usize].sum.add(&share, sign);
        self.take_logs(worker as usize);
    }

    fn take_logs(&mut self, worker: usize) {
        let sum = &self.workers[worker].sum;
        let logs = core::array::from_fn(|n| self.log(sum.open[n], sum.closed[n]));
        let open = core::array::from_fn(|n| sum.asks[n] / (1.0 - sum.open[n]).max(self.each));
        let closed = core::array::from_fn(|n| sum.asks[n] / (self.each + sum.closed[n].max(0.0)));
        let worker = &mut self.workers[worker];
        (worker.logs, worker.slopes) = (logs, [open, closed]);
    }

    /// Mean load of the heaviest worker over the time slots, as a part of a time slot.
    fn heaviest(&self) -> f64 {
        let most = self.workers.iter().map(|worker| worker.sum.total()).fold(0.0, f32::max);
        f64::from(most / self.seen.clamp(1, SLOTS) as f32)
    }

    /// [`Self::log`] of the worker `from` without its connection of number `slot`, in the time slots in which that has requests.
    fn left(&self, slot: u32, from: u32) -> Row {
        let (c, a) = (&self.connections[slot as usize].share, &self.workers[from as usize].sum);
        let log = |n: usize| self.log(a.open[n] - c.open[n], a.closed[n] - c.closed[n]);
        core::array::from_fn(|n| if c.asks[n] > 0.0 { log(n) } else { 0.0 })
    }

    /// The gain of a move of the connection of number `slot`, over the time slots of the bit mask `among`. `left`:
    /// [`Self::left`] for the worker `from`. `hopeful`: as if none of the connection's work would wait on the worker `to`.
    fn gain(&self, slot: u32, (from, left): (u32, &Row), to: u32, among: u32, hopeful: bool) -> Gain {
        let c = &self.connections[slot as usize].share;
        let (from, to) = (&self.workers[from as usize], &self.workers[to as usize]);
        let (a, b) = (&from.sum, &to.sum);
        let (mut gain, mut squares, mut weights) = (Gain::default(), 0.0, 0.0);
        for n in (0..SLOTS).filter(|&n| among >> n & 1 == 1 && c.asks[n] > 0.0) {
            let before = (from.logs[n], to.logs[n]);
            let (open, closed) = if hopeful { (c.load(n), 0.0) } else { (c.open[n], c.closed[n]) };
            let after = (left[n], self.log(b.open[n] + open, b.closed[n] + closed));
            let shorter = before.0 - after.1;
            let others = (a.asks[n] - c.asks[n]) * (before.0 - after.0) + b.asks[n] * (before.1 - after.1);
            let all = c.asks[n] * shorter + others;
            gain.all += all;
            gain.others += others;
            gain.work += a.load(n) * before.0 + b.load(n) * before.1;
            gain.work -= (a.load(n) - c.load(n)) * after.0 + (b.load(n) + c.load(n)) * after.1;
            // It does as much more as its requests take less time, where they did not leave it any.
            if c.hidden[n] > 0.0 {
                gain.work += (c.hidden[n] * (libm::expf(shorter) - 1.0)).min(1.0) - c.hidden[n] * shorter;
            }
            gain.asks += c.asks[n];
            gain.load += c.load(n);
            squares += all * all / c.asks[n];
            weights += c.asks[n] * c.asks[n];
        }
        if gain.asks > 0.0 {
            // As if there had been one more slot, in which nothing would be gained.
            let one = weights / gain.asks;
            let asks = gain.asks + one;
            let mean = gain.all / asks;
            gain.error = libm::sqrtf((squares / asks - mean * mean).max(0.0) * one / gain.asks) * asks;
        }
        gain
    }

    /// An estimate of the gain of the best move of the connection of number `slot`, from the slopes of the workers.
    fn guarantee(&self, slot: u32, from: u32) -> f32 {
        let c = &self.connections[slot as usize].share;
        let cost = |worker: &Worker| {
            let [open, closed] = &worker.slopes;
            (0..SLOTS).map(|n| c.asks[n] * worker.logs[n] + c.open[n] * open[n] + c.closed[n] * closed[n]).sum::<f32>()
        };
        let others = (0..).zip(&self.workers).filter(|&(to, _)| to != from);
        cost(&self.workers[from as usize]) - others.map(|(_, worker)| cost(worker)).fold(f32::MAX, f32::min)
    }
}

/// Sorts pairs of gain and connection, the largest gain first.
fn most_first(all: &mut [(f32, u32)]) {
    all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
}

impl Placement {
    /// `waits`: makes the moves with a certain gain, those with the largest first; without any, may begin a trial.
    pub(super) fn shorten_waits(&mut self, moving: &Moving) -> Reason {
        (0..self.workers).for_each(|worker| self.waits.take_logs(worker));
        let before = self.waits.heaviest();
        if self.goes_on_trying() {
            return Reason::Trial { worker: self.waits.trial.map_or(0, |trial| trial.to) };
        }
        let candidates = self.candidates();
        let is_worth = |gain: &Gain| gain.is_worth(moving.min_gain as f32);
        let exact = |&(_, slot): &(f32, u32)| Some((self.best(slot, false, is_worth)?.0.sure(), slot));
        let mut worth: Vec<(f32, u32)> = candidates.iter().filter_map(exact).collect();
        most_first(&mut worth);
        for (_, slot) in worth {
            if let Some((_, to)) = self.best(slot, false, is_worth) {
                self.go(slot, to);
            }
        }
        if !self.moves.is_empty() {
            return Reason::Rebalanced { before, after: self.waits.heaviest() };
        }
        self.begin_trial(&candidates, is_worth).unwrap_or_else(|| self.why_not(&candidates, before))
    }

    /// The connections with the largest estimated gain (first of the pair), among those whose turn it is in this decision.
    fn candidates(&mut self) -> Vec<(f32, u32)> {
        let (first, count) = (self.waits.next, self.entries.len());
        let turns = (0..count).map(|n| ((first + n) % count) as u32);
        let asks = |&slot: &u32| self.waits.connections[slot as usize].busy != 0;
        let busy = turns.filter(asks).filter_map(|slot| Some((slot, self.worker(slot)?)));
        let looked_at = busy.take(PAIRS / self.workers);
        let mut candidates: Vec<(f32, u32)> =
            looked_at.map(|(slot, worker)| (self.waits.guarantee(slot, worker), slot)).collect();
        self.waits.next = candidates.last().map_or(0, |&(_, slot)| slot as usize + 1);
        most_first(&mut candidates);
        candidates.truncate(CANDIDATES);
        candidates
    }

    /// The best move of the connection of number `slot` for which `is_good` holds: its gain, and the worker it leads to.
    fn best(&self, slot: u32, hopeful: bool, is_good: impl Fn(&Gain) -> bool) -> Option<(Gain, u32)> {
        let from = self.worker(slot)?;
        let left = self.waits.left(slot, from);
        let others = (0..self.workers as u32).filter(|&to| to != from);
        let gains = others.map(|to| (self.waits.gain(slot, (from, &left), to, ALL, hopeful), to));
        gains.filter(|(gain, _)| is_good(gain)).max_by(|a, b| a.0.sure().total_cmp(&b.0.sure()))
    }

    /// The reason why no connection moves, not even the first candidate, which has the largest estimated gain.
    fn why_not(&self, candidates: &[(f32, u32)], heaviest: f64) -> Reason {
        let (all, most) = self.carries.iter().fold((0, 0), |(all, most), &one| (all + one, most.max(one)));
        if let Some(slot) = self.elephant(all / self.workers as u64, most) {
            return Reason::Elephant { slot, heaviest };
        }
        let likely = candidates.first().and_then(|&(_, slot)| self.best(slot, false, |gain| gain.all > 0.0));
        let Some((gain, _)) = likely else { return Reason::NotWorth { heaviest, gain: 0.0 } };
        let part = |logs: f32| f64::from(1.0 - libm::expf(-logs / gain.asks));
        if gain.sure() > 0.0 {
            return Reason::NotWorth { heaviest, gain: part(gain.all) };
        }
        Reason::Uncertain { gain: part(gain.all), noise: part(CERTAIN * gain.error) }
    }

    fn go(&mut self, slot: u32, to: u32) {
        let Some(from) = self.worker(slot).filter(|&from| from != to) else { return };
        self.waits.count(slot, from, -1.0);
        self.waits.count(slot, to, 1.0);
        self.transfer(slot, to);
        self.moves.push(Move { slot, from, to });
    }

    /// Begins a trial: a connection of a full worker moves to a worker where it would gain if none of its work waited there.
    fn begin_trial(&mut self, candidates: &[(f32, u32)], is_good: impl Fn(&Gain) -> bool) -> Option<Reason> {
        if self.waits.seen < self.waits.next_trial {
            return None;
        }
        let full = |slot: u32| self.waits.connections[slot as usize].share.hidden.iter().any(|&hidden| hidden > 0.0);
        let likely = candidates.iter().map(|&(_, slot)| slot).filter(|&slot| full(slot));
        let hopes = likely.filter_map(|slot| Some((slot, self.worker(slot)?, self.best(slot, true, &is_good)?)));
        let (slot, from, (_, to)) = hopes.max_by(|a, b| a.2.0.sure().total_cmp(&b.2.0.sure()))?;
        self.go(slot, to);
        self.waits.trial = Some(Trial { slot, from, to, began: self.waits.seen, seen: 0 });
        Some(Reason::Trial { worker: to })
    }

    /// True if a trial is under way or has just failed. At the end of a trial the connection goes back if all connections
    /// together would gain by that, or if the others have lost too much ([`LOSS`]) of the gain.
    fn goes_on_trying(&mut self) -> bool {
        let Some(mut trial) = self.waits.trial.take() else { return false };
        let age = self.waits.seen - trial.began;
        if self.worker(trial.slot) != Some(trial.to) || trial.from as usize >= self.workers {
            return false;
        }
        trial.seen |= if age > 1 { 1 << self.waits.slot } else { 0 };
        if age < TRIAL {
            self.waits.trial = Some(trial);
            return true;
        }
        let left = self.waits.left(trial.slot, trial.to);
        let back = self.waits.gain(trial.slot, (trial.to, &left), trial.from, trial.seen, false);
        // If it asked for nothing, nothing is known.
        if back.asks == 0.0 || back.all > 0.0 || back.others > -LOSS * back.all {
            self.waits.next_trial = self.waits.seen + if back.asks == 0.0 { SLOTS } else { RARELY * TRIAL };
            self.go(trial.slot, trial.from);
            return true;
        }
        false
    }
}
