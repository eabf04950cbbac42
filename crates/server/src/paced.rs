//! The processor time of an activity, measured where it is spent.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration as StdDuration;

use evenkeel_control::duty::{Config, Duty, Turn};
use evenkeel_control::{Duration, Instant};

use crate::clock;

/// An activity that clients cause and that storms must not make more of: in the long run it takes at most the share of a
/// processor that its [`Config`] sets.
///
/// The caller asks before it does something for a client whether it is the client's turn, and charges afterwards what it took.
pub struct Paced<C>(Mutex<Duty<C>>);

/// A measurement of the calling thread's processor time, from its beginning on.
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

    /// The same measurement as if it had begun `ns` of processor time earlier.
    pub(crate) fn after(self, ns: u64) -> Self {
        Self { begun_ns: self.begun_ns.saturating_sub(ns) }
    }

    /// Processor time from the beginning of `before` to the beginning of this one, in nanoseconds.
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

    /// Sets the processor time that may be used at once.
    pub(crate) fn set_burst(&self, burst: Duration) {
        self.duty().set_burst(clock::now(), burst);
    }

    /// Tells if it is a client's turn now.
    pub(crate) fn turn(&self, client: C) -> Turn {
        self.duty().turn(clock::now(), client)
    }

    /// When the next client may come of whom nothing is known yet; `None`: now.
    pub(crate) fn newcomer(&self) -> Option<Instant> {
        self.duty().newcomer(clock::now())
    }

    /// How long a client has to wait before it asks again; `None`: it is its turn.
    pub fn delay(&self, client: C) -> Option<StdDuration> {
        match self.turn(client) {
            Turn::Own | Turn::Spare => None,
            Turn::Wait { until, .. } => Some(until.since(clock::now()).into()),
        }
    }

    /// How long the next client has to wait of whom nothing is known yet; `None`: it may come now.
    pub fn delay_of_newcomer(&self) -> Option<StdDuration> {
        self.newcomer().map(|until| until.since(clock::now()).into())
    }

    /// Waits on this thread until it is a client's turn.
    pub fn wait(&self, client: C) {
        while let Some(delay) = self.delay(client) {
            std::thread::sleep(delay);
        }
    }

    /// Waits until it is the client's turn, then does `work` and charges the client for it.
    pub fn run<T>(&self, client: C, work: impl FnOnce() -> T) -> T {
        self.wait(client);
        let begun = Work::begin();
        let done = work();
        self.charge(client, &begun);
        done
    }

    /// Charges a client this thread's processor time since `work` began; returns the beginning of what comes next.
    pub fn charge(&self, client: C, work: &Work) -> Work {
        let next = Work::begin();
        self.duty().spent(clock::now(), client, Duration::from_nanos(next.since(work)));
        next
    }

    /// As [`Self::charge`], for work that could not wait for the client's turn: [`Duty::spent_anyway`].
    pub(crate) fn charge_anyway(&self, client: C, work: &Work) -> Work {
        let next = Work::begin();
        self.duty().spent_anyway(clock::now(), client, Duration::from_nanos(next.since(work)));
        next
    }

    fn duty(&self) -> MutexGuard<'_, Duty<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
