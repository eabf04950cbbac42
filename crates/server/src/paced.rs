//! The processor time of an activity, measured where it is spent.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration as StdDuration;

use evenkeel_control::Instant;
use evenkeel_control::duty::{Config, Duty, Turn};

use crate::clock;

/// An activity that clients cause and that storms must not make more of: it takes a tenth of a processor in the long run.
///
/// Whoever is about to do something for a client asks whether it is the client's turn, and charges afterwards what it took.
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

    /// Whether it is a client's turn.
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
        let took = next.begun_ns.saturating_sub(work.begun_ns);
        self.duty().spent(clock::now(), client, evenkeel_control::Duration::from_nanos(took));
        next
    }

    fn duty(&self) -> MutexGuard<'_, Duty<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
