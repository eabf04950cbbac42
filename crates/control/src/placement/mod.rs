//! Placement: the assignment of connections to workers.
//!
//! A worker is a thread with its connections. A connection stays on its first worker unless it is moved, and its load is
//! not known when it is accepted. Methods by name: `round_robin` and `least_connections` place and never move; `genetic` is
//! the published method (message-aware scheduling for Ceph); `lpt` evens out load, however many connections move; `waits`,
//! the default, moves connections to workers where they wait less. See `docs/algorithms/placement.md`.
//!
//! ```text
//!  join ──▶ worker        observe ──▶ load of the interval ──▶ tick, once an interval ──▶ moves, and why
//! ```
//!
//! A connection is identified by its slot: a small number that the caller uses again when the connection has left.

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

/// `genetic` and `lpt` do not move a connection whose load is at most the mean load of a worker divided by this number.
const LIGHT_DIVISOR: u64 = 500;
/// `lpt` moves no connection while every worker is busy for less than this part of the time.
const BUSY: f64 = 0.3;
/// The interval between two decisions grows by itself for each so many connections: a decision about thousands of them takes
/// milliseconds, in which the worker that decides serves no requests.
const MANY: u64 = 1024;
/// Upper bound on a connection's load in an interval (ns or bytes), so that the sum over 65,536 connections fits 64 bits: 78
/// hours, or 281 TB.
const MOST_LOAD: u64 = u64::MAX >> 16;

/// The method by which connections are placed on workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Config {
    /// A new connection goes to the next worker in turn, and never moves.
    RoundRobin,
    /// A new connection goes to the worker with the fewest connections, and never moves, as in Ceph today.
    LeastConnections,
    /// The published method: a genetic algorithm moves connections by the bytes received on them.
    Genetic(Moving),
    /// In each interval all connections are placed anew, the heaviest first, each on the worker with the least load so far.
    Lpt(Moving),
    /// Connections move to workers where they wait less, if other connections lose less by that than these gain.
    Waits(Moving),
}

/// Settings of the methods that move connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moving {
    /// Time between two decisions; 100 ms to minutes.
    pub interval: Duration,
    /// The least gain for which connections move, as a fraction (0 to 1). `waits`: of the time that the connection's requests
    /// take; `lpt`: of the heaviest worker's load; `genetic`: of the fitness (the paper's δ, which has the unit 1/bytes there).
    pub min_gain: f64,
}

impl Moving {
    /// The defaults of `waits`: ten decisions a second, a least gain of 5 %.
    pub const fn new() -> Self {
        Self { interval: Duration::from_millis(100), min_gain: 0.05 }
    }

    /// The defaults of `lpt`: one decision a second, a least gain of 5 %.
    pub const fn slow() -> Self {
        Self { interval: Duration::from_secs(1), ..Self::new() }
    }

    /// The published interval of `genetic`: a decision every 5 s (section III.B of the paper).
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

/// A connection's work since its previous sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time that the worker spent on the connection: the load of `lpt` and `waits`.
    pub cpu: Duration,
    /// Bytes received from the client: the load of `genetic`, as in the paper, which does not see the cost of reads.
    pub received_bytes: u64,
}

/// A connection that goes to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Slot (number) of the connection.
    pub slot: u32,
    /// The worker that the connection leaves.
    pub from: u32,
    /// The worker that the connection goes to.
    pub to: u32,
}

/// Reason for which connections move, or do not. A worker's load is the part of the time for which it is busy (0 to 1); for
/// `genetic`, which counts bytes, a multiple of the workers' mean load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// The method never moves connections.
    Static,
    /// There is only one worker.
    OneWorker,
    /// No worker is so busy that requests wait.
    NotBusy {
        /// The heaviest worker's load.
        heaviest: f64,
    },
    /// The best moves that were found would gain less than [`Moving::min_gain`].
    NotWorth {
        /// The heaviest worker's load.
        heaviest: f64,
        /// The gain of these moves, as [`Moving::min_gain`] counts it.
        gain: f64,
    },
    /// Nearly all of the heaviest worker's load is that of one connection, which cannot be divided.
    Elephant {
        /// Slot (number) of the connection.
        slot: u32,
        /// The heaviest worker's load.
        heaviest: f64,
    },
    /// The gain of the best move may be chance: it varies by as much from interval to interval.
    Uncertain {
        /// The gain of this move, as [`Moving::min_gain`] counts it.
        gain: f64,
        /// The least gain that chance does not explain, as [`Moving::min_gain`] counts it.
        noise: f64,
    },
    /// Connections move.
    Rebalanced {
        /// The heaviest worker's load in the past without the moves.
        before: f64,
        /// The load that the heaviest worker would have had in the same time with the moves.
        after: f64,
    },
    /// A connection is on another worker for a short time, to measure its load where it does not share a full worker.
    Trial {
        /// The worker on which the connection is during the trial.
        worker: u32,
    },
    /// The number of workers changed; connections of workers that are gone move to the others.
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

/// A decision about which connections move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Time of the decision.
    pub at: Instant,
    /// Reason for the moves, or for none.
    pub reason: Reason,
    /// Number of connections that move; [`Placement::moves`] lists them.
    pub moves: usize,
}

/// A connection's worker and its load.
#[derive(Clone, Copy, Debug)]
struct Entry {
    worker: u32,
    /// Load observed in the present interval so far, in ns, or in bytes for `genetic`.
    load: u64,
    /// The load that counts until the interval ends, in ns or bytes: the connection's load in the past, or for a new
    /// connection the mean of all.
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

    /// The worker of the connection in `slot`; `None` for an unused slot.
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

    /// Adds a connection in `slot` and returns its worker. A connection that was in the slot is removed. O(workers).
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

    /// Removes the connection in `slot`, if there is one.
    pub fn leave(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get_mut(slot as usize).and_then(Option::take) {
            self.counts[entry.worker as usize] -= 1;
            self.carries[entry.worker as usize] -= entry.counts_for;
        }
    }

    /// The worker for one more connection: the one with the least load, if the method goes by time; of equals, the one with
    /// the fewest connections.
    fn roomiest(&self) -> usize {
        let by_load = matches!(self.config, Config::Lpt(_) | Config::Waits(_));
        let key = |&worker: &usize| (if by_load { self.carries[worker] } else { 0 }, self.counts[worker]);
        (0..self.workers).min_by_key(key).unwrap_or(0)
    }

    /// Counts the connection in `slot`, and its load, for the worker `to` instead of its worker so far.
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

    /// Notes that a connection is on `worker` and not on the one that was decided, because a move could not be carried out. A
    /// worker that does not exist is ignored.
    pub fn found_on(&mut self, slot: u32, worker: u32) {
        if (worker as usize) < self.workers {
            self.transfer(slot, worker);
        }
    }

    /// Takes a connection's work since its previous sample; any number of times in an interval. O(1).
    #[inline]
    pub fn observe(&mut self, slot: u32, sample: Sample) {
        if let Some(Some(entry)) = self.entries.get_mut(slot as usize) {
            let load =
                if matches!(self.config, Config::Genetic(_)) { sample.received_bytes } else { sample.cpu.as_nanos() };
            entry.load = entry.load.saturating_add(load).min(MOST_LOAD);
        }
    }

    /// Takes a worker's report on how busy it was since its previous report. The observed loads of its connections then only
    /// divide this time among them. If no worker ever reports, a worker counts as busy for the sum of its connections' loads.
    /// A worker that does not exist is ignored. O(1).
    pub fn observe_worker(&mut self, worker: u32, usage: Usage) {
        self.usages.observe(worker, usage);
    }

    /// Sets the number of workers (at least one). Connections of workers that are gone move at once; to new workers
    /// connections move at the next tick.
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

    /// Least time between two decisions of [`Placement::tick`], that with fewer than 1,024 connections; `None` for methods that
    /// never move connections.
    pub fn interval(&self) -> Option<Duration> {
        Some(self.config.moving()?.interval)
    }

    /// Time of the next decision of [`Placement::tick`]; `None` for methods that never move connections.
    pub fn next_tick(&self) -> Option<Instant> {
        let times = 1 + self.counts.iter().sum::<u64>() / MANY;
        Some(self.began_at + Duration::from_nanos(self.interval()?.as_nanos().saturating_mul(times)))
    }

    /// Ends the interval if it is over, and decides which connections move; `None` if it is not over, or the method never moves
    /// connections. The caller has to carry out [`Placement::moves`]: they count as done.
    ///
    /// O(n log n) for n connections.
    pub fn tick(&mut self, now: Instant) -> Option<Decision> {
        let moving = *self.config.moving()?;
        if now < self.next_tick()? {
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

    /// Ends an interval of `interval_ns` ns: updates the load that counts of each connection and worker.
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

    /// Lists the connections that may move; the load of all others counts as fixed on their workers. Returns the workers' mean
    /// load.
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

    /// Moves connections to the workers of the assignment that was found.
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

    /// Slot of a connection whose load exceeds 90 % of the load of the heaviest worker, `heaviest`, and `mean`, the mean load of
    /// workers.
    fn elephant(&self, mean: u64, heaviest: u64) -> Option<u32> {
        let loads = (0..).zip(&self.entries).filter_map(|(slot, entry)| Some((slot, entry.as_ref()?.counts_for)));
        let largest = loads.max_by_key(|&(_, load)| load);
        largest.filter(|&(_, load)| load > mean && load as f64 > heaviest as f64 * 0.9).map(|(slot, _)| slot)
    }

    /// Load of the heaviest worker with the connections placed as in `assignment`, in ns or bytes.
    fn heaviest(&self) -> u64 {
        let mut totals = self.fixed.clone();
        for (&load, &worker) in self.loads.iter().zip(&self.assignment) {
            totals[worker as usize] += load;
        }
        totals.into_iter().max().unwrap_or(0)
    }

    /// `genetic`, the published method: may move all connections that are not light, by their load in the last interval alone.
    fn evolve(&mut self, moving: &Moving) -> Reason {
        // Without load the heaviest worker has 0 times the mean.
        let mean = self.sort_out().max(1) as f64;
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
