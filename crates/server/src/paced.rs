//! Bounds the processor time of an activity, which is measured on the threads that carry it out.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration as StdDuration;

use evenkeel_control::duty::{Config, Duty, Turn};
use evenkeel_control::{Duration, Instant};

use crate::clock;

/// An activity that clients cause, with a bound on its processor time even during storms of requests: in the long run, at
/// most the share of a processor that its [`Config`] sets.
///
/// Before the caller does something for a client, it asks if it is the client's turn; afterwards it charges the client the
/// processor time used.
pub struct Paced<C>(Mutex<Duty<C>>);

/// A measurement of the calling thread's processor time, from the call of [`Work::begin`] on.
#[derive(Debug)]
pub struct Work {
    begun_ns: u64,
}

impl Work {
    /// Begins a measurement now.
    #[inline]
    pub fn begin() -> Self {
        Self { begun_ns: clock::thread_cpu_ns() }
    }

    /// Processor time of the calling thread since the beginning.
    pub fn spent(&self) -> StdDuration {
        StdDuration::from_nanos(clock::thread_cpu_ns().saturating_sub(self.begun_ns))
    }

    /// This measurement, as if it had begun `ns` nanoseconds of processor time earlier.
    pub(crate) fn after(self, ns: u64) -> Self {
        Self { begun_ns: self.begun_ns.saturating_sub(ns) }
    }

    /// Processor time from the beginning of the measurement `before` to the beginning of this one, in nanoseconds.
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
    /// An activity that has used no processor time yet.
    pub fn new(config: Config) -> Self {
        Self(Mutex::new(Duty::new(config)))
    }

    /// As [`Self::default`], for clients that may belong to sites; `site_of` is that of [`Duty::with_sites`].
    pub fn of_sites(site_of: fn(C) -> Option<C>) -> Self {
        Self::with_sites(Config::STORM, site_of)
    }

    /// As [`Self::new`], for clients that may belong to sites; `site_of` is that of [`Duty::with_sites`].
    pub(crate) fn with_sites(config: Config, site_of: fn(C) -> Option<C>) -> Self {
        Self(Mutex::new(Duty::with_sites(config, site_of)))
    }

    /// Sets the burst: the processor time that the activity may use at once after a pause.
    pub(crate) fn set_burst(&self, burst: Duration) {
        self.duty().set_burst(clock::now(), burst);
    }

    /// The answer if it is the client's turn now, or until when the client has to wait.
    pub(crate) fn turn(&self, client: C) -> Turn {
        self.duty().turn(clock::now(), client)
    }

    /// Time from which an unknown client may be served; `None`: at once.
    pub(crate) fn newcomer(&self) -> Option<Instant> {
        self.duty().newcomer(clock::now())
    }

    /// Time for which a client has to wait before it asks again; `None` means that it is the client's turn now.
    pub fn delay(&self, client: C) -> Option<StdDuration> {
        match self.turn(client) {
            Turn::Own | Turn::Spare => None,
            Turn::Wait { until, .. } => Some(until.since(clock::now()).into()),
        }
    }

    /// Time for which an unknown client has to wait; `None` means that it may be served at once.
    pub fn delay_of_newcomer(&self) -> Option<StdDuration> {
        self.newcomer().map(|until| until.since(clock::now()).into())
    }

    /// Blocks the calling thread until it is the client's turn.
    pub fn wait(&self, client: C) {
        while let Some(delay) = self.delay(client) {
            std::thread::sleep(delay);
        }
    }

    /// Blocks until it is the client's turn, then does `work` and charges the client its processor time.
    pub fn run<T>(&self, client: C, work: impl FnOnce() -> T) -> T {
        self.wait(client);
        let begun = Work::begin();
        let done = work();
        self.charge(client, &begun);
        done
    }

    /// Charges a client this thread's processor time since `work` began; returns a new measurement that begins now.
    pub fn charge(&self, client: C, work: &Work) -> Work {
        let next = Work::begin();
        self.duty().spent(clock::now(), client, Duration::from_nanos(next.since(work)));
        next
    }

    /// As [`Self::charge`], for work that could not wait for the client's turn; see [`Duty::spent_anyway`].
    pub(crate) fn charge_anyway(&self, client: C, work: &Work) -> Work {
        let next = Work::begin();
        self.duty().spent_anyway(clock::now(), client, Duration::from_nanos(next.since(work)));
        next
    }

    fn duty(&self) -> MutexGuard<'_, Duty<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
