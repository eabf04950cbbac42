//! What connections cost their worker, out of samples.

use evenkeel_control::{Duration, Instant};

use crate::clock;

/// One round in so many is timed, and counts for all of them.
const ROUNDS: u64 = 8;
/// Weight of a new round in the time that a request takes between receiving and sending.
const WEIGHT: f64 = 1.0 / 32.0;

/// Times one round of the worker's loop in eight, drawn by chance, so that nothing periodic escapes it.
#[derive(Debug)]
pub(super) struct Meter {
    random: u64,
    on: bool,
    /// Requests received up to the last round.
    requests: u64,
    ns_per_request: f64,
    rounds: Rounds,
}

/// What all rounds since the last time were like.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    /// Requests received.
    pub(super) requests: u64,
    /// Of each round the square of that, added up: divided by the requests it is how many lie there together, in the mean
    /// over requests.
    pub(super) squares: u64,
    /// Time in which there was nothing to do, looking for events included.
    pub(super) waited_ns: u64,
    /// The part of it spent on looking.
    pub(super) looked_ns: u64,
}

impl Meter {
    /// Nothing measured; so many requests have been received before.
    pub(super) fn new(requests: u64) -> Self {
        Self { random: 0x9e37_79b9_7f4a_7c15, on: false, requests, ns_per_request: 0.0, rounds: Rounds::default() }
    }

    /// Draws whether the round that begins is timed.
    #[inline]
    pub(super) fn begin_round(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.on = self.random.is_multiple_of(ROUNDS);
    }

    /// Begins to time something, if this round is.
    #[inline]
    pub(super) fn start(&self) -> Option<Instant> {
        self.on.then(clock::now)
    }

    /// The worker has looked for events, and then perhaps slept, because there was nothing to do.
    #[inline]
    pub(super) fn waited(&mut self, whole: Duration, looked: Duration) {
        self.rounds.waited_ns += whole.as_nanos();
        self.rounds.looked_ns += looked.as_nanos();
    }

    /// What all rounds since the last time were like.
    pub(super) fn take_rounds(&mut self) -> Rounds {
        std::mem::take(&mut self.rounds)
    }

    /// What it took, for all rounds that are like it, in nanoseconds.
    #[inline]
    pub(super) fn stop(&self, since: Option<Instant>) -> u64 {
        since.map_or(0, |since| clock::now().since(since).as_nanos() * ROUNDS)
    }

    /// Ends the timing of what was done for all requests of the round together; `requests` have been received so far.
    #[inline]
    pub(super) fn share(&mut self, since: Option<Instant>, requests: u64) {
        let new = requests - std::mem::replace(&mut self.requests, requests);
        self.rounds.requests += new;
        self.rounds.squares += new * new;
        if let (Some(since), true) = (since, new > 0) {
            let each = clock::now().since(since).as_nanos() as f64 / new as f64;
            self.ns_per_request += (each - self.ns_per_request) * WEIGHT;
        }
    }

    /// The share of so many requests in what was done for all together, in nanoseconds.
    pub(super) fn of_requests(&self, requests: u64) -> u64 {
        (requests as f64 * self.ns_per_request) as u64
    }
}
