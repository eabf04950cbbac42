//! Which worker serves which connection?
//!
//! A worker is a thread with its connections. A connection stays where it was accepted unless somebody moves it, and what
//! it carries is not known then. Methods by name: `round_robin` and `least_connections` place and never move;
//! `genetic` is the published method (message-aware scheduling for Ceph); `lpt` evens out whatever it costs;
//! `descent`, the default, moves few connections where that certainly helps. See `docs/placement.md`.
//!
//! ```text
//!  join ──▶ worker        observe ──▶ load of the interval ──▶ forecast
//!                                                                 │ tick, once an interval
//!                                                                 ▼
//!                          worth it? ◀── the worker that has most, now and after the moves
//! ```
//!
//! Connections are named by slots: small numbers that their owner uses again when one has left.

use alloc::vec::Vec;

use crate::rng::SplitMix64;
use crate::time::{Duration, Instant};

mod apart;
pub mod descent;
mod exact;
mod forecast;
pub mod genetic;
pub mod lpt;
mod usage;

use apart::Kept;
use descent::Descent;
use forecast::{Contest, Forecast};
pub use usage::Usage;
use usage::Usages;

/// A connection that carries less than this share of what a worker does on average is light: where it is does not
/// matter, and it stays.
const LIGHT_DIVISOR: u64 = 500;
/// A worker that is busy for a smaller share of the time makes nobody wait for long.
const BUSY: f64 = 0.3;
/// Intervals for which a connection stays after it has moved.
const REST_INTERVALS: u32 = 3;
/// Standard deviations of the forecast that a gain must exceed.
const CERTAIN: f64 = 1.0;

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
    /// Few moves away from the heaviest worker.
    Descent(Moving),
    /// The same, and when all workers are full, one is kept for the connections that carry little.
    Apart(Moving),
}

/// Settings of the methods that move connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moving {
    /// How often the load is looked at; 100 ms to minutes.
    pub interval: Duration,
    /// What must be gained, as a fraction (0 to 1): of the heaviest worker's load, for `genetic` of the fitness (the
    /// paper's δ, whose unit there is 1/bytes).
    pub min_gain: f64,
    /// Connections moved at a time, as a fraction of all (0 to 1); at least one. Only `descent` keeps to it.
    pub budget: f64,
}

impl Moving {
    /// The defaults of `descent` and `lpt`: once a second, for 5 %, at most 15 % of the connections.
    pub const fn new() -> Self {
        Self { interval: Duration::from_secs(1), min_gain: 0.05, budget: 0.15 }
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
        Self::Descent(Moving::new())
    }
}

impl Config {
    /// As in a configuration.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastConnections => "least_connections",
            Self::Genetic(_) => "genetic",
            Self::Lpt(_) => "lpt",
            Self::Descent(_) => "descent",
            Self::Apart(_) => "apart",
        }
    }

    const fn moving(&self) -> Option<&Moving> {
        match self {
            Self::RoundRobin | Self::LeastConnections => None,
            Self::Genetic(moving) | Self::Lpt(moving) | Self::Descent(moving) | Self::Apart(moving) => Some(moving),
        }
    }
}

/// What a connection has done since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time that its worker spent on it: the honest load.
    pub cpu: Duration,
    /// Bytes received from it: the paper's load, blind to what reads cost.
    pub received_bytes: u64,
}

/// A connection that goes to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which connection.
    pub slot: u32,
    /// Where it is.
    pub from: u32,
    /// Where it goes.
    pub to: u32,
}

/// Why connections move, or do not. Loads are shares of the interval that a worker is busy, above 1 where it is full and
/// more waits for it than for others; for `genetic`, which counts bytes, multiples of the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// This method leaves connections where they are.
    Static,
    /// There is one worker.
    OneWorker,
    /// No worker is busy enough for anybody to wait.
    NotBusy {
        /// The heaviest worker's load.
        heaviest: f64,
    },
    /// Moving as many as are allowed would gain too little.
    NotWorth {
        /// The heaviest worker's load.
        heaviest: f64,
        /// What would be gained of it, as a fraction.
        gain: f64,
    },
    /// The heaviest worker's load is nearly all of one connection, which cannot be split.
    Elephant {
        /// The connection.
        slot: u32,
        /// Its load.
        load: f64,
    },
    /// The gain may be chance: loads vary by as much from interval to interval.
    Uncertain {
        /// What would be gained, as a fraction of the heaviest worker's load.
        gain: f64,
        /// What it must exceed.
        noise: f64,
    },
    /// Connections move.
    Rebalanced {
        /// The heaviest load of a worker that connections leave or join, as forecast for the next interval if they did not.
        before: f64,
        /// The heaviest load of these workers after the moves.
        after: f64,
    },
    /// All workers are full: one is kept for connections that carry little, and others leave it.
    Apart {
        /// Which.
        worker: u32,
    },
    /// There are more workers or fewer; connections of those that are gone go to the others.
    WorkersChanged {
        /// How many there are.
        workers: usize,
    },
}

impl Reason {
    /// As in logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::OneWorker => "one_worker",
            Self::NotBusy { .. } => "not_busy",
            Self::NotWorth { .. } => "not_worth",
            Self::Elephant { .. } => "elephant",
            Self::Uncertain { .. } => "uncertain",
            Self::Rebalanced { .. } => "rebalanced",
            Self::Apart { .. } => "apart",
            Self::WorkersChanged { .. } => "workers_changed",
        }
    }
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// When.
    pub at: Instant,
    /// Why.
    pub reason: Reason,
    /// How many connections move: [`Placement::moves`] names them.
    pub moves: usize,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
struct Entry {
    worker: u32,
    /// In the interval under way.
    load: u64,
    /// What it counts for until the interval ends: its forecast, or as much as others where there is none.
    counts_for: u64,
    forecast: Forecast,
    rests: u32,
}

/// Places connections and moves them. The same seed and the same input give the same moves.
#[derive(Debug)]
pub struct Placement {
    config: Config,
    entries: Vec<Option<Entry>>,
    workers: usize,
    /// Connections of each worker, and what they count for.
    counts: Vec<u64>,
    carries: Vec<u64>,
    next: usize,
    began_at: Instant,
    usages: Usages,
    kept: Kept,
    contest: Contest,
    rng: SplitMix64,
    descent: Descent,
    moves: Vec<Move>,
    decision: Decision,
    // Kept from tick to tick.
    slots: Vec<u32>,
    loads: Vec<u64>,
    fixed: Vec<u64>,
    hopeless: Vec<bool>,
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
            kept: Kept::default(),
            contest: Contest::default(),
            rng: SplitMix64::new(seed),
            descent: Descent::new(),
            moves: Vec::new(),
            decision: Decision { at: now, reason, moves: 0 },
            slots: Vec::new(),
            loads: Vec::new(),
            fixed: Vec::new(),
            hopeless: Vec::new(),
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

    /// Where a connection is; `None` for a slot nobody uses.
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

    /// A connection has come; its worker. A slot in use is given to the newcomer. O(workers).
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
        let entry =
            Entry { worker: worker as u32, load: 0, counts_for: typical, forecast: Forecast::default(), rests: 0 };
        self.entries[slot as usize] = Some(entry);
        worker as u32
    }

    /// A connection has gone.
    pub fn leave(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get_mut(slot as usize).and_then(Option::take) {
            self.counts[entry.worker as usize] -= 1;
            self.carries[entry.worker as usize] -= entry.counts_for;
        }
    }

    /// The worker for one more: by what they carry where that counts, then by the number of connections.
    fn roomiest(&self) -> usize {
        let by_load = matches!(self.config, Config::Lpt(_) | Config::Descent(_) | Config::Apart(_));
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

    /// What a connection has done since the last time; may come as often as one likes within an interval. O(1).
    #[inline]
    pub fn observe(&mut self, slot: u32, sample: Sample) {
        if let Some(Some(entry)) = self.entries.get_mut(slot as usize) {
            let load =
                if matches!(self.config, Config::Genetic(_)) { sample.received_bytes } else { sample.cpu.as_nanos() };
            entry.load = entry.load.saturating_add(load);
        }
    }

    /// How busy a worker was since it last told; goes with what was observed of its connections, whose loads then only say
    /// which part of it each is. Where no worker ever tells, loads are taken as they are, and a worker as busy as they say.
    /// Workers that do not exist are ignored. O(1).
    pub fn tell(&mut self, worker: u32, usage: Usage) {
        self.usages.tell(worker, usage);
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
        self.kept = Kept::default();
        self.next %= workers;
        self.decision = Decision { at: now, reason: Reason::WorkersChanged { workers }, moves: self.moves.len() };
        self.decision
    }

    /// When [`Placement::tick`] next has something to say; never for methods that do not move.
    pub fn next_tick(&self) -> Option<Instant> {
        Some(self.began_at + self.config.moving()?.interval)
    }

    /// Ends the interval if it is over and says which connections move. What they move is taken as done.
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
            _ => self.even_out(&moving, interval_ns),
        };
        self.decision = Decision { at: now, reason, moves: self.moves.len() };
        Some(self.decision)
    }

    fn end_interval(&mut self, interval_ns: f64) {
        self.contest.fade();
        // Bytes are the same whoever counts them.
        let by_time = !matches!(self.config, Config::Genetic(_));
        let scales: Vec<f64> = if by_time {
            self.carries.fill(0);
            for entry in self.entries.iter().flatten() {
                self.carries[entry.worker as usize] += entry.load;
            }
            let scale = |(worker, &sum): (usize, &u64)| self.usages.scale(worker, sum, interval_ns);
            self.carries.iter().enumerate().map(scale).collect()
        } else {
            alloc::vec![1.0; self.workers]
        };
        for entry in self.entries.iter_mut().flatten() {
            entry.rests = entry.rests.saturating_sub(1);
            if !by_time || self.usages.is_told(entry.worker) {
                let load = core::mem::take(&mut entry.load) as f64 * scales[entry.worker as usize];
                entry.forecast.learn(load as u64, &mut self.contest);
            }
        }
        self.usages.end_interval();
        self.carries.fill(0);
        for entry in self.entries.iter_mut().flatten() {
            let times = if by_time { self.usages.demand(entry.worker) } else { 1.0 };
            if entry.forecast.is_known() {
                entry.counts_for = (entry.forecast.load(&self.contest) as f64 * times) as u64;
            }
            self.carries[entry.worker as usize] += entry.counts_for;
        }
    }

    /// Sorts connections into those that may move and those that stay, which count as fixed. The mean of the workers.
    ///
    /// Connections beside an elephant stay where less than `worth` of the worker's load could leave it: moves that hardly
    /// help there would take the budget from those that do elsewhere.
    fn sort_out(&mut self, worth: f64) -> u64 {
        let mean = self.carries.iter().sum::<u64>() / self.workers as u64;
        // The largest connection of each worker.
        self.fixed.clear();
        self.fixed.resize(self.workers, 0);
        for entry in self.entries.iter().flatten() {
            let largest = &mut self.fixed[entry.worker as usize];
            *largest = entry.counts_for.max(*largest);
        }
        let hopeless = |(&all, &largest)| largest > mean && (all - largest) as f64 <= worth * all as f64;
        self.hopeless.clear();
        self.hopeless.extend(self.carries.iter().zip(&self.fixed).map(hopeless));
        self.fixed.clone_from(&self.carries);
        self.slots.clear();
        self.loads.clear();
        self.assignment.clear();
        for (slot, entry) in self.entries.iter().enumerate() {
            let may_move = |entry: &Entry| {
                entry.counts_for > mean / LIGHT_DIVISOR && entry.rests == 0 && !self.hopeless[entry.worker as usize]
            };
            let Some(entry) = entry.filter(may_move) else { continue };
            self.slots.push(slot as u32);
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
            if let Some(Some(entry)) = self.entries.get_mut(slot as usize) {
                entry.rests = REST_INTERVALS;
            }
        }
    }

    fn even_out(&mut self, moving: &Moving, interval_ns: f64) -> Reason {
        let mean = self.sort_out(moving.min_gain);
        if matches!(self.config, Config::Apart(_))
            && let Some(reason) = self.keep_apart(moving, interval_ns)
        {
            return reason;
        }
        let busy = |load: u64| load as f64 / interval_ns;
        let heaviest = self.heaviest();
        if busy(heaviest) < BUSY {
            return Reason::NotBusy { heaviest: busy(heaviest) };
        }
        let connections = self.counts.iter().sum::<u64>();
        let budget = ((connections as f64 * moving.budget) as usize).max(1);
        if matches!(self.config, Config::Lpt(_)) {
            lpt::assign(&self.fixed, &self.loads, &mut self.assignment);
        } else {
            self.descent.balance(&self.fixed, &self.loads, budget, &mut self.assignment);
        }
        // A worker that nothing can be done for, because its load is one connection, does not speak against helping others.
        let (worker, before, after) = self.change();
        let gain = if before > 0 { 1.0 - after as f64 / before as f64 } else { 0.0 };
        let little = before > 0 && busy(before) < BUSY;
        if little || gain < moving.min_gain {
            return match self.elephant(mean, heaviest) {
                Some((slot, load)) => Reason::Elephant { slot, load: busy(load) },
                None if little => Reason::NotBusy { heaviest: busy(before) },
                None => Reason::NotWorth { heaviest: busy(heaviest), gain },
            };
        }
        let noise = CERTAIN * self.noise(worker) / before as f64;
        if gain < noise {
            return Reason::Uncertain { gain, noise };
        }
        self.adopt();
        Reason::Rebalanced { before: busy(before), after: busy(after) }
    }

    /// The connection that is nearly all of the heaviest worker's load, and what it carries.
    fn elephant(&self, mean: u64, heaviest: u64) -> Option<(u32, u64)> {
        let loads = (0..).zip(&self.entries).filter_map(|(slot, entry)| Some((slot, entry.as_ref()?.counts_for)));
        let largest = loads.max_by_key(|&(_, load)| load);
        largest.filter(|&(_, load)| load > mean && load as f64 > heaviest as f64 * 0.9)
    }

    /// The heaviest worker that connections leave or join under the assignment, what it carries now, and what the
    /// heaviest of these workers carries then.
    fn change(&self) -> (u32, u64, u64) {
        let mut then = self.fixed.clone();
        let mut touched = alloc::vec![false; self.workers];
        for ((&slot, &load), &to) in self.slots.iter().zip(&self.loads).zip(&self.assignment) {
            then[to as usize] += load;
            if let Some(from) = self.worker(slot).filter(|&from| from != to) {
                (touched[from as usize], touched[to as usize]) = (true, true);
            }
        }
        let (mut worker, mut before, mut after) = (0, 0, 0);
        for n in (0..self.workers).filter(|&n| touched[n]) {
            if self.carries[n] > before {
                (worker, before) = (n as u32, self.carries[n]);
            }
            after = after.max(then[n]);
        }
        (worker, before, after)
    }

    /// Standard deviation of what the assignment takes off the worker. A full worker carries as much in any case, so there
    /// only those count that leave it or join it.
    fn noise(&self, worker: u32) -> f64 {
        let stay = 1.0 - self.usages.fullness(worker);
        let moves = |slot: u32, entry: &Entry| match self.slots.binary_search(&slot) {
            Ok(n) => self.assignment[n] != entry.worker && (self.assignment[n] == worker || entry.worker == worker),
            Err(_) => false,
        };
        let scatter = |(slot, entry): (u32, &Entry)| match moves(slot, entry) {
            true => entry.forecast.scatter(),
            false if entry.worker == worker => entry.forecast.scatter() * stay,
            false => 0.0,
        };
        let all = (0..).zip(&self.entries).filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)));
        // Mean absolute error to standard deviation of a normal distribution.
        let times = 1.25 * self.usages.demand(worker);
        times * libm::sqrt(all.map(|one| scatter(one) * scatter(one)).sum())
    }

    /// Load of the heaviest worker under the assignment.
    fn heaviest(&self) -> u64 {
        let mut totals = self.fixed.clone();
        for (&load, &worker) in self.loads.iter().zip(&self.assignment) {
            totals[worker as usize] += load;
        }
        totals.into_iter().max().unwrap_or(0)
    }

    /// The published method: all connections that are not light, whatever they did before.
    fn evolve(&mut self, moving: &Moving) -> Reason {
        for entry in self.entries.iter_mut().flatten() {
            entry.rests = 0;
        }
        let mean = self.sort_out(0.0) as f64;
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
