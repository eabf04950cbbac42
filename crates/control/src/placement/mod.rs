//! Which worker serves which connection?
//!
//! A worker is a thread with its connections. A connection stays where it was accepted unless it is moved, and its load is
//! not known when it is accepted. Methods by name: `round_robin` and `least_connections` place and never move; `genetic` is
//! the published method (message-aware scheduling for Ceph); `lpt` evens out load at any cost; `waits`, the default, moves
//! connections to where they wait less. See `docs/algorithms/placement.md`.
//!
//! ```text
//!  join ──▶ worker        observe ──▶ load of the interval ──▶ tick, once an interval ──▶ moves, and why
//! ```
//!
//! Connections are named by slots: small numbers that their owner uses again when one has left.

use alloc::vec::Vec;

use crate::rng::SplitMix64;
use crate::time::{Duration, Instant};

pub mod exact;
pub mod genetic;
pub mod lpt;
mod usage;
mod waits;

pub use usage::Usage;
use usage::{Part, Usages};
use waits::Waits;

/// `genetic` and `lpt` do not move a connection that carries less than this part (1/500) of what a worker does on average.
const LIGHT_DIVISOR: u64 = 500;
/// `lpt` moves nothing while every worker is busy for less than this part of the time.
const BUSY: f64 = 0.3;
/// Largest load of a connection in an interval, so that the loads of 65,536 add up: 78 hours, or 281 TB.
const MOST_LOAD: u64 = u64::MAX >> 16;

/// How connections are placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Config {
    /// One worker after the other.
    RoundRobin,
    /// The worker with the fewest connections, for good: what Ceph does today.
    LeastConnections,
    /// The published method: connections moved by a genetic algorithm, by the bytes that they received.
    Genetic(Moving),
    /// All connections anew, the heaviest first, each to the lightest worker.
    Lpt(Moving),
    /// Connections go where they wait less, if others lose less by that than they gain.
    Waits(Moving),
}

/// Settings of the methods that move connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moving {
    /// Time between two decisions; 100 ms to minutes.
    pub interval: Duration,
    /// The least gain of a move, as a fraction (0 to 1): for `waits` of the time that the connection's requests take, for
    /// `lpt` of the heaviest worker's load, for `genetic` of the fitness (the paper's δ, whose unit there is 1/bytes).
    pub min_gain: f64,
}

impl Moving {
    /// The defaults of `waits`: ten times a second, for 5 %.
    pub const fn new() -> Self {
        Self { interval: Duration::from_millis(100), min_gain: 0.05 }
    }

    /// The default of `lpt`: once a second.
    pub const fn slow() -> Self {
        Self { interval: Duration::from_secs(1), ..Self::new() }
    }

    /// As published: every 5 s (section III.B).
    pub const fn published() -> Self {
        Self { interval: Duration::from_secs(5), ..Self::new() }
    }
}

impl Default for Moving {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::Waits(Moving::new())
    }
}

impl Config {
    /// Name of the method, as in a configuration.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastConnections => "least_connections",
            Self::Genetic(_) => "genetic",
            Self::Lpt(_) => "lpt",
            Self::Waits(_) => "waits",
        }
    }

    const fn moving(&self) -> Option<&Moving> {
        match self {
            Self::RoundRobin | Self::LeastConnections => None,
            Self::Genetic(moving) | Self::Lpt(moving) | Self::Waits(moving) => Some(moving),
        }
    }
}

/// A connection's work since the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time that the worker spent on the connection: the load of `lpt` and `waits`.
    pub cpu: Duration,
    /// Bytes received from the client: the load of `genetic`, as in the paper, blind to what reads cost.
    pub received_bytes: u64,
}

/// A connection that goes to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which connection.
    pub slot: u32,
    /// The worker that it leaves.
    pub from: u32,
    /// The worker that it goes to.
    pub to: u32,
}

/// Why connections move, or do not. Loads are shares of the time that a worker is busy; for `genetic`, which counts bytes,
/// multiples of the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// This method leaves connections where they are.
    Static,
    /// There is one worker.
    OneWorker,
    /// No worker is so busy that requests wait.
    NotBusy {
        /// The heaviest worker's load.
        heaviest: f64,
    },
    /// The best moves that were found would gain too little.
    NotWorth {
        /// The heaviest worker's load.
        heaviest: f64,
        /// The gain, as [`Moving::min_gain`] counts it.
        gain: f64,
    },
    /// The heaviest worker's load is nearly all of one connection, which cannot be split.
    Elephant {
        /// The connection.
        slot: u32,
        /// The heaviest worker's load.
        heaviest: f64,
    },
    /// The gain may be chance: it varies by as much from interval to interval.
    Uncertain {
        /// The gain, as [`Moving::min_gain`] counts it.
        gain: f64,
        /// The least gain that is no chance.
        noise: f64,
    },
    /// Connections move.
    Rebalanced {
        /// The heaviest worker's load.
        before: f64,
        /// The heaviest worker's load in the same interval, had the moves been made before it.
        after: f64,
    },
    /// A connection is on another worker for a short time, to see what it does where it need not share a full worker.
    Trial {
        /// The worker of the trial.
        worker: u32,
    },
    /// There are more workers or fewer; connections of those that are gone go to the others.
    WorkersChanged {
        /// Number of workers from now on.
        workers: usize,
    },
}

impl Reason {
    /// Name of the reason, as in logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::OneWorker => "one_worker",
            Self::NotBusy { .. } => "not_busy",
            Self::NotWorth { .. } => "not_worth",
            Self::Elephant { .. } => "elephant",
            Self::Uncertain { .. } => "uncertain",
            Self::Rebalanced { .. } => "rebalanced",
            Self::Trial { .. } => "trial",
            Self::WorkersChanged { .. } => "workers_changed",
        }
    }
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Time of the decision.
    pub at: Instant,
    /// Reason for the moves, or for none.
    pub reason: Reason,
    /// Number of connections that move; [`Placement::moves`] names them.
    pub moves: usize,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
struct Entry {
    worker: u32,
    /// Load in the interval under way, in ns or bytes.
    load: u64,
    /// The load that counts until the interval ends: that of the interval before, or the mean of all connections for a new
    /// one.
    counts_for: u64,
}

/// Places connections and moves them. The same seed and the same input give the same moves.
#[derive(Debug)]
pub struct Placement {
    config: Config,
    entries: Vec<Option<Entry>>,
    workers: usize,
    /// Number of connections of each worker.
    counts: Vec<u64>,
    /// Load of each worker: the sum of its connections' [`Entry::counts_for`].
    carries: Vec<u64>,
    next: usize,
    began_at: Instant,
    usages: Usages,
    rng: SplitMix64,
    waits: Waits,
    moves: Vec<Move>,
    decision: Decision,
    // Kept from tick to tick.
    slots: Vec<u32>,
    loads: Vec<u64>,
    fixed: Vec<u64>,
    assignment: Vec<u32>,
}

impl Placement {
    /// Places connections on `workers` workers (at least one).
    pub fn new(config: Config, workers: usize, seed: u64, now: Instant) -> Self {
        let workers = workers.max(1);
        let reason = if config.moving().is_some() { Reason::NotBusy { heaviest: 0.0 } } else { Reason::Static };
        let mut usages = Usages::default();
        usages.resize(workers);
        Self {
            config,
            entries: Vec::new(),
            workers,
            counts: alloc::vec![0; workers],
            carries: alloc::vec![0; workers],
            next: 0,
            began_at: now,
            usages,
            rng: SplitMix64::new(seed),
            waits: Waits::default(),
            moves: Vec::new(),
            decision: Decision { at: now, reason, moves: 0 },
            slots: Vec::new(),
            loads: Vec::new(),
            fixed: Vec::new(),
            assignment: Vec::new(),
        }
    }

    /// Name of the method.
    pub const fn method(&self) -> &'static str {
        self.config.name()
    }

    /// Number of workers.
    pub const fn workers(&self) -> usize {
        self.workers
    }

    /// Where a connection is; `None` for an unused slot.
    pub fn worker(&self, slot: u32) -> Option<u32> {
        Some(self.entries.get(slot as usize)?.as_ref()?.worker)
    }

    /// The moves of the last decision.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// The last decision.
    pub const fn decision(&self) -> Decision {
        self.decision
    }

    /// Adds a connection and returns its worker. A slot in use is given to the newcomer. O(workers).
    pub fn join(&mut self, slot: u32) -> u32 {
        self.leave(slot);
        // What it will carry is not known: as much as others, so that many who come at once are spread.
        let typical = self.carries.iter().sum::<u64>() / self.counts.iter().sum::<u64>().max(1);
        let worker = if matches!(self.config, Config::RoundRobin | Config::Genetic(_)) {
            self.next = (self.next + 1) % self.workers;
            self.next
        } else {
            self.roomiest()
        };
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, None);
        }
        self.counts[worker] += 1;
        self.carries[worker] += typical;
        self.entries[slot as usize] = Some(Entry { worker: worker as u32, load: 0, counts_for: typical });
        self.waits.forget(slot);
        worker as u32
    }

    /// Removes a connection.
    pub fn leave(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get_mut(slot as usize).and_then(Option::take) {
            self.counts[entry.worker as usize] -= 1;
            self.carries[entry.worker as usize] -= entry.counts_for;
        }
    }

    /// The worker for one more connection: the one with the least load where the method counts it, then with the fewest
    /// connections.
    fn roomiest(&self) -> usize {
        let by_load = matches!(self.config, Config::Lpt(_) | Config::Waits(_));
        let key = |&worker: &usize| (if by_load { self.carries[worker] } else { 0 }, self.counts[worker]);
        (0..self.workers).min_by_key(key).unwrap_or(0)
    }

    /// Counts a connection for another worker.
    fn transfer(&mut self, slot: u32, to: u32) {
        let Some(Some(entry)) = self.entries.get_mut(slot as usize) else { return };
        for (worker, sign) in [(entry.worker, false), (to, true)] {
            let (count, carried) = (&mut self.counts[worker as usize], &mut self.carries[worker as usize]);
            if sign {
                (*count, *carried) = (*count + 1, *carried + entry.counts_for);
            } else {
                (*count, *carried) = (*count - 1, *carried - entry.counts_for);
            }
        }
        entry.worker = to;
    }

    /// A connection is on another worker than was decided: a move that could not be carried out. Workers that do not
    /// exist are ignored.
    pub fn found_on(&mut self, slot: u32, worker: u32) {
        if (worker as usize) < self.workers {
            self.transfer(slot, worker);
        }
    }

    /// Observes a connection's work since the last time; may come as often as one likes within an interval. O(1).
    #[inline]
    pub fn observe(&mut self, slot: u32, sample: Sample) {
        if let Some(Some(entry)) = self.entries.get_mut(slot as usize) {
            let load =
                if matches!(self.config, Config::Genetic(_)) { sample.received_bytes } else { sample.cpu.as_nanos() };
            entry.load = entry.load.saturating_add(load).min(MOST_LOAD);
        }
    }

    /// Takes how busy a worker was since its last report. The loads observed of its connections then only say how that time
    /// divides among them. Where no worker ever reports, loads are taken as they are, and a worker counts as busy as its
    /// connections' loads say. Workers that do not exist are ignored. O(1).
    pub fn observe_worker(&mut self, worker: u32, usage: Usage) {
        self.usages.observe(worker, usage);
    }

    /// There are `workers` workers (at least one) from now on. Connections of those that are gone move; where there are
    /// more, the next tick fills them.
    pub fn set_workers(&mut self, now: Instant, workers: usize) -> Decision {
        self.moves.clear();
        let workers = workers.max(1);
        self.workers = workers;
        let longest = workers.max(self.counts.len());
        self.counts.resize(longest, 0);
        self.carries.resize(longest, 0);
        for slot in 0..self.entries.len() as u32 {
            let Some(from) = self.worker(slot).filter(|&worker| worker as usize >= workers) else { continue };
            let to = self.roomiest() as u32;
            self.transfer(slot, to);
            self.moves.push(Move { slot, from, to });
        }
        self.counts.truncate(workers);
        self.carries.truncate(workers);
        self.usages.resize(workers);
        self.next %= workers;
        self.decision = Decision { at: now, reason: Reason::WorkersChanged { workers }, moves: self.moves.len() };
        self.decision
    }

    /// Time between two decisions of [`Placement::tick`]; `None` for methods that never move connections.
    pub fn interval(&self) -> Option<Duration> {
        Some(self.config.moving()?.interval)
    }

    /// Time of the next decision of [`Placement::tick`]; `None` for methods that never move connections.
    pub fn next_tick(&self) -> Option<Instant> {
        Some(self.began_at + self.interval()?)
    }

    /// Ends the interval if it is over and decides which connections move. The moves are taken as done.
    ///
    /// O(n log n) for n connections.
    pub fn tick(&mut self, now: Instant) -> Option<Decision> {
        let moving = *self.config.moving()?;
        if now < self.began_at + moving.interval {
            return None;
        }
        let interval_ns = now.since(self.began_at).as_nanos() as f64;
        self.began_at = now;
        self.moves.clear();
        self.end_interval(interval_ns);
        let reason = match self.config {
            _ if self.workers == 1 => Reason::OneWorker,
            Config::Genetic(_) => self.evolve(&moving),
            Config::Waits(_) => self.shorten_waits(&moving),
            _ => self.even_out(&moving, interval_ns),
        };
        self.decision = Decision { at: now, reason, moves: self.moves.len() };
        Some(self.decision)
    }

    /// Turns the observations of each connection into its load.
    fn end_interval(&mut self, interval_ns: f64) {
        self.carries.fill(0);
        self.entries.iter().flatten().for_each(|entry| self.carries[entry.worker as usize] += entry.load);
        let part = |(worker, &sum): (usize, &u64)| self.usages.part(worker, sum, interval_ns);
        let parts: Vec<Option<Part>> = self.carries.iter().enumerate().map(part).collect();
        if matches!(self.config, Config::Waits(_)) {
            let each = self.usages.each_ns().map(|each| each / interval_ns);
            self.waits.begin_slot(each, self.workers, &mut self.rng);
        }
        self.usages.end_interval();
        self.carries.fill(0);
        for (slot, entry) in (0..).zip(&mut self.entries) {
            let Some(entry) = entry else { continue };
            let part = parts[entry.worker as usize];
            let new = part.map(|part| part.times(entry.load));
            match self.config {
                // Bytes are the same on both sides.
                Config::Genetic(_) => entry.counts_for = core::mem::take(&mut entry.load),
                Config::Waits(_) => {
                    if let Some(mean) = self.waits.learn(slot, entry.worker, new) {
                        entry.counts_for = (f64::from(mean) * interval_ns) as u64;
                    }
                }
                _ => {
                    if let Some(Part { open, hidden, .. }) = new {
                        entry.counts_for = (f64::from(open + hidden) * interval_ns) as u64;
                    }
                }
            }
            entry.load = if part.is_some() { 0 } else { entry.load };
            self.carries[entry.worker as usize] += entry.counts_for;
        }
    }

    /// Sorts connections into those that may move and those that stay, which count as fixed. Returns the mean load of the
    /// workers.
    fn sort_out(&mut self) -> u64 {
        let mean = self.carries.iter().sum::<u64>() / self.workers as u64;
        self.fixed.clone_from(&self.carries);
        self.slots.clear();
        self.loads.clear();
        self.assignment.clear();
        for (slot, entry) in (0..).zip(&self.entries) {
            let Some(entry) = entry.filter(|entry| entry.counts_for > mean / LIGHT_DIVISOR) else { continue };
            self.slots.push(slot);
            self.loads.push(entry.counts_for);
            self.assignment.push(entry.worker);
            self.fixed[entry.worker as usize] -= entry.counts_for;
        }
        mean
    }

    /// Adopts the assignment that was found.
    fn adopt(&mut self) {
        for n in 0..self.slots.len() {
            let (slot, to) = (self.slots[n], self.assignment[n]);
            let Some(from) = self.worker(slot).filter(|&from| from != to) else { continue };
            self.transfer(slot, to);
            self.moves.push(Move { slot, from, to });
        }
    }

    /// `lpt`: assigns all connections anew, however many move.
    fn even_out(&mut self, moving: &Moving, interval_ns: f64) -> Reason {
        let mean = self.sort_out();
        let busy = |load: u64| load as f64 / interval_ns;
        let before = self.heaviest();
        if busy(before) < BUSY {
            return Reason::NotBusy { heaviest: busy(before) };
        }
        lpt::assign(&self.fixed, &self.loads, &mut self.assignment);
        let after = self.heaviest();
        let gain = 1.0 - after as f64 / before as f64;
        if gain < moving.min_gain {
            return match self.elephant(mean, before) {
                Some(slot) => Reason::Elephant { slot, heaviest: busy(before) },
                None => Reason::NotWorth { heaviest: busy(before), gain },
            };
        }
        self.adopt();
        Reason::Rebalanced { before: busy(before), after: busy(after) }
    }

    /// The connection that is nearly all of the heaviest worker's load.
    fn elephant(&self, mean: u64, heaviest: u64) -> Option<u32> {
        let loads = (0..).zip(&self.entries).filter_map(|(slot, entry)| Some((slot, entry.as_ref()?.counts_for)));
        let largest = loads.max_by_key(|&(_, load)| load);
        largest.filter(|&(_, load)| load > mean && load as f64 > heaviest as f64 * 0.9).map(|(slot, _)| slot)
    }

    /// Load of the heaviest worker under the assignment.
    fn heaviest(&self) -> u64 {
        let mut totals = self.fixed.clone();
        for (&load, &worker) in self.loads.iter().zip(&self.assignment) {
            totals[worker as usize] += load;
        }
        totals.into_iter().max().unwrap_or(0)
    }

    /// `genetic`, the published method: all connections that are not light, whatever they did before.
    fn evolve(&mut self, moving: &Moving) -> Reason {
        let mean = self.sort_out() as f64;
        let times = |load: u64| load as f64 / mean;
        let before = self.heaviest();
        let gain = genetic::evolve(&self.fixed, &self.loads, &mut self.assignment, &mut self.rng);
        if gain < moving.min_gain {
            return Reason::NotWorth { heaviest: times(before), gain };
        }
        self.adopt();
        Reason::Rebalanced { before: times(before), after: times(self.heaviest()) }
    }
}
