//! Estimates from samples how much processor time each connection costs its worker.

use evenkeel_control::{Duration, Instant};

use crate::clock;

/// One round of the worker's loop in this number is timed, and counts for all of them.
const ROUNDS: u64 = 8;
/// Weight of a timed round in the moving average of a request's processor time between receiving and sending.
const WEIGHT: f64 = 1.0 / 32.0;

/// A measured time above this multiple of the usual time means that the worker lost the processor, to another program or
/// because its quota was used up. It does not come from the connection, and counts as this multiple only.
const LOST: u64 = 8;
/// Upper bound on a connection's first measured time, in nanoseconds, because the worker may have lost the processor during
/// it.
const FIRST_NS: u64 = 20_000;
/// A measured time has the weight 1/`USUAL` in the moving average that is the usual time.
const USUAL: u64 = 16;

/// The cost of a connection to its worker since the worker's newest report to the placement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Toll {
    /// Estimated time that the worker spent on receiving from and sending to the connection, in nanoseconds.
    ns: u64,
    /// Moving average of the time of one receive or send, in nanoseconds; 0 before the first.
    usual_ns: u64,
    /// Bytes received from the client since the newest report.
    pub(crate) received: u64,
    /// Requests that the connection had received since it was accepted, as of the newest report.
    pub(crate) requests: u64,
}

impl Toll {
    /// Adds one receive or send that took `ns` nanoseconds and stands for that of `rounds` rounds.
    fn add(&mut self, ns: u64, rounds: u64) {
        let most = if self.usual_ns > 0 { self.usual_ns * LOST } else { FIRST_NS };
        let ns = ns.min(most);
        self.usual_ns = if self.usual_ns > 0 { (self.usual_ns * (USUAL - 1) + ns) / USUAL } else { ns }.max(1);
        self.ns += ns * rounds;
    }

    /// Returns the cost since the previous call, and begins anew. `requests`: requests received since the connection was
    /// accepted.
    pub(super) fn take(&mut self, requests: u64) -> Self {
        std::mem::replace(self, Self { usual_ns: self.usual_ns, requests, ..Self::default() })
    }

    /// Estimated time spent on receiving and sending, in nanoseconds.
    pub(super) const fn ns(&self) -> u64 {
        self.ns
    }
}

/// Times one in eight rounds of the worker's loop, chosen at random so that no periodic work is missed.
#[derive(Debug)]
pub(super) struct Meter {
    random: u64,
    on: bool,
    /// Requests that the worker had received in its life, as of the end of the previous round.
    requests: u64,
    ns_per_request: f64,
    rounds: Rounds,
}

/// Sums over all rounds of the worker's loop since the newest call of [`Meter::take_rounds`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    /// Requests that the worker received.
    pub(super) requests: u64,
    /// Sum of the squares of each round's number of requests. Divided by `requests`, it is the mean over requests of the
    /// number of requests in the same round.
    pub(super) squares: u64,
    /// Time without work in nanoseconds: asleep, or looking for events in vain.
    pub(super) waited_ns: u64,
    /// The part of `waited_ns` spent on looking for events without sleeping.
    pub(super) looked_ns: u64,
}

impl Meter {
    /// A meter before its first round; `requests`: requests that earlier workers with the same index have received.
    pub(super) fn new(requests: u64) -> Self {
        Self { random: 0x9e37_79b9_7f4a_7c15, on: false, requests, ns_per_request: 0.0, rounds: Rounds::default() }
    }

    /// Decides at random if the round that begins is timed.
    #[inline]
    pub(super) fn begin_round(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.on = self.random.is_multiple_of(ROUNDS);
    }

    /// The present time as the start of a measurement; `None` if this round is not timed.
    #[inline]
    pub(super) fn start(&self) -> Option<Instant> {
        self.on.then(clock::now)
    }

    /// Counts time without work: `whole` in all, of which the worker spent `looked` on looking for events, and slept for the
    /// rest.
    #[inline]
    pub(super) fn waited(&mut self, whole: Duration, looked: Duration) {
        self.rounds.waited_ns += whole.as_nanos();
        self.rounds.looked_ns += looked.as_nanos();
    }

    /// Returns the sums over all rounds since the previous call, and begins anew.
    pub(super) fn take_rounds(&mut self) -> Rounds {
        std::mem::take(&mut self.rounds)
    }

    /// Adds the time since `since` to a connection's cost, multiplied by the number of rounds that a timed round stands for.
    #[inline]
    pub(super) fn stop(&self, since: Option<Instant>, toll: &mut Toll) {
        if let Some(since) = since {
            toll.add(clock::now().since(since).as_nanos(), ROUNDS);
        }
    }

    /// Ends the timing, begun at `since`, of work that all requests of the round share; `requests`: requests that the worker
    /// has received in its life.
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

    /// Estimated time of the shared work for `requests` requests, in nanoseconds.
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
