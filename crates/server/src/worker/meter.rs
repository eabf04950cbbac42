//! The processor time that connections cost their worker, estimated from samples.

use evenkeel_control::{Duration, Instant};

use crate::clock;

/// One round in this number is timed, and counts for all of them.
const ROUNDS: u64 = 8;
/// Weight of a new round in the average time that a request takes between receiving and sending.
const WEIGHT: f64 = 1.0 / 32.0;

/// A time of more than the usual one times this factor means that the worker lost the processor, to others or because its quota
/// was used up. It says nothing of the connection, and counts for no more than this factor.
const LOST: u64 = 8;
/// Upper bound that the first time counts for, in nanoseconds: the worker may have lost the processor during it.
const FIRST_NS: u64 = 20_000;
/// Divisor of a new time's weight in the usual time.
const USUAL: u64 = 16;

/// The cost of a connection to its worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Toll {
    /// Time spent on receiving and sending, out of samples, in nanoseconds.
    ns: u64,
    /// Usual time of one receiving or sending, in nanoseconds; 0 before the first.
    usual_ns: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// Requests that had been received in all when the cost was last taken.
    pub(crate) requests: u64,
}

impl Toll {
    /// Adds one receiving or sending that took `ns`, and counts for `rounds` rounds.
    fn add(&mut self, ns: u64, rounds: u64) {
        let most = if self.usual_ns > 0 { self.usual_ns * LOST } else { FIRST_NS };
        let ns = ns.min(most);
        self.usual_ns = if self.usual_ns > 0 { (self.usual_ns * (USUAL - 1) + ns) / USUAL } else { ns }.max(1);
        self.ns += ns * rounds;
    }

    /// Takes the cost since the last call; `requests`: received in all so far.
    pub(super) fn take(&mut self, requests: u64) -> Self {
        std::mem::replace(self, Self { usual_ns: self.usual_ns, requests, ..Self::default() })
    }

    /// Time spent on receiving and sending, in nanoseconds.
    pub(super) const fn ns(&self) -> u64 {
        self.ns
    }
}

/// Times one round of the worker's loop in eight, drawn by chance, so that no periodic work escapes it.
#[derive(Debug)]
pub(super) struct Meter {
    random: u64,
    on: bool,
    /// Requests received in all up to the last round.
    requests: u64,
    ns_per_request: f64,
    rounds: Rounds,
}

/// Sums over all rounds since they were last taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    /// Requests received.
    pub(super) requests: u64,
    /// Sum of each round's number of requests squared. Divided by `requests`, it is the number of requests in a round, in the
    /// mean over requests.
    pub(super) squares: u64,
    /// Time without work, in nanoseconds, including the time spent on looking for events.
    pub(super) waited_ns: u64,
    /// The part of `waited_ns` spent on looking for events.
    pub(super) looked_ns: u64,
}

impl Meter {
    /// Nothing measured yet; `requests` have been received before.
    pub(super) fn new(requests: u64) -> Self {
        Self { random: 0x9e37_79b9_7f4a_7c15, on: false, requests, ns_per_request: 0.0, rounds: Rounds::default() }
    }

    /// Decides by chance if the round that begins is timed.
    #[inline]
    pub(super) fn begin_round(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.on = self.random.is_multiple_of(ROUNDS);
    }

    /// Begins to time something, if this round is timed.
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

    /// Takes the sums over all rounds since the last call.
    pub(super) fn take_rounds(&mut self) -> Rounds {
        std::mem::take(&mut self.rounds)
    }

    /// Adds the time since `since` to a connection's cost, for this round and the untimed ones that it stands for.
    #[inline]
    pub(super) fn stop(&self, since: Option<Instant>, toll: &mut Toll) {
        if let Some(since) = since {
            toll.add(clock::now().since(since).as_nanos(), ROUNDS);
        }
    }

    /// Ends the timing of work that is shared by all requests of the round; `requests` have been received in all so far.
    #[inline]
    pub(super) fn share(&mut self, since: Option<Instant>, requests: u64) {
        let new = requests - std::mem::replace(&mut self.requests, requests);
        self.rounds.requests += new;
        self.rounds.squares += new * new;
        if let (Some(since), true) = (since, new > 0) {
            let each = clock::now().since(since).as_nanos() as f64 / new as f64;
            let most = if self.ns_per_request > 0.0 { self.ns_per_request * LOST as f64 } else { each };
            self.ns_per_request += (each.min(most) - self.ns_per_request) * WEIGHT;
        }
    }

    /// Time that the shared work takes for `requests` requests, in nanoseconds.
    pub(super) fn of_requests(&self, requests: u64) -> u64 {
        (requests as f64 * self.ns_per_request) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_processor_does_not_count_against_a_connection() {
        // Every tenth time the worker's quota is used up for 4 ms.
        let mut toll = Toll::default();
        (0..1_000).for_each(|n| toll.add(if n % 10 == 0 { 4_000_000 } else { 20_000 }, 1));
        let told = toll.take(7);
        assert!((20_000_000..60_000_000).contains(&told.ns()), "{told:?}, not 420 ms");
        assert_eq!((toll.ns, toll.requests), (0, 7));
        // What takes longer for good is soon believed, the usual time not being forgotten at once.
        (0..200).for_each(|_| toll.add(200_000, 8));
        assert!(toll.usual_ns > 190_000 && toll.ns > 180 * 8 * 200_000, "{toll:?}");
    }
}
