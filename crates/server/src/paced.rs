//! The processor time of an activity, measured where it is spent.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration as StdDuration;

use evenkeel_control::duty::{Config, Duty, Turn};
use evenkeel_control::{Duration, Instant};

use crate::clock;

/// An activity that clients cause and that storms must not make more of: it takes a tenth of a processor in the long run.
///
/// The caller asks before it does something for a client whether it is the client's turn, and charges afterwards what it took.
pub struct Paced<C>(Mutex<Duty<C>>);

/// Processor time of the calling thread, from its beginning on.
#[derive(Debug)]
pub struct Work {
    begun_ns: u64,
}

impl Work {
    /// Begins now.
    #[inline]
    pub fn begin() -> Self {
        Self { begun_ns: clock::thread_cpu_ns() }
    }

    /// The same with something that has taken so long before.
    pub(crate) fn after(self, ns: u64) -> Self {
        Self { begun_ns: self.begun_ns.saturating_sub(ns) }
    }

    /// How long after another one it has begun, in nanoseconds.
    pub(crate) fn since(&self, before: &Self) -> u64 {
        self.begun_ns.saturating_sub(before.begun_ns)
    }
}

impl<C: Ord + Copy> Default for Paced<C> {
    fn default() -> Self {
        Self::new(Config::STORM)
    }
}

impl<C: Ord + Copy> Paced<C> {
    /// An activity that has taken nothing yet.
    pub fn new(config: Config) -> Self {
        Self(Mutex::new(Duty::new(config)))
    }

    /// So much may be used at once from now on.
    pub(crate) fn set_burst(&self, burst: Duration) {
        self.duty().set_burst(clock::now(), burst);
    }

    /// A client's turn.
    pub(crate) fn turn(&self, client: C) -> Turn {
        self.duty().turn(clock::now(), client)
    }

    /// When the next client may come of which nothing is known; `None`: now.
    pub(crate) fn newcomer(&self) -> Option<Instant> {
        self.duty().newcomer(clock::now())
    }

    /// For how long a client has to wait; `None`: it is its turn. Then ask again.
    pub fn delay(&self, client: C) -> Option<StdDuration> {
        match self.turn(client) {
            Turn::Own | Turn::Spare => None,
            Turn::Wait { until, .. } => Some(until.since(clock::now()).into()),
        }
    }

    /// For how long a client has to wait of which nothing is known yet.
    pub fn delay_of_newcomer(&self) -> Option<StdDuration> {
        self.newcomer().map(|until| until.since(clock::now()).into())
    }

    /// Waits on this thread until it is a client's turn.
    pub fn wait(&self, client: C) {
        while let Some(delay) = self.delay(client) {
            std::thread::sleep(delay);
        }
    }

    /// Waits likewise, then does `work` for the client.
    pub fn run<T>(&self, client: C, work: impl FnOnce() -> T) -> T {
        self.wait(client);
        let begun = Work::begin();
        let done = work();
        self.charge(client, &begun);
        done
    }

    /// Something was done for a client, on this thread and since `work` was begun. What comes next begins where it ended.
    pub fn charge(&self, client: C, work: &Work) -> Work {
        let next = Work::begin();
        self.duty().spent(clock::now(), client, Duration::from_nanos(next.since(work)));
        next
    }

    /// The same of something that could not wait: [`Duty::spent_anyway`].
    pub(crate) fn charge_anyway(&self, client: C, work: &Work) -> Work {
        let next = Work::begin();
        self.duty().spent_anyway(clock::now(), client, Duration::from_nanos(next.since(work)));
        next
    }

    fn duty(&self) -> MutexGuard<'_, Duty<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
