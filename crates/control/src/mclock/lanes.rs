//! Limits on one direction of a client: a list of its own for what each may throttle.
//!
//! A client's requests wait in one list. Where its reads or its writes have a limit of their own that would not do: the
//! first request that has to wait would keep those of the other direction behind it. So such a client has three: reads,
//! writes, and what moves no data. The next request is the oldest of those whose limits let them pass. A client
//! without such limits has none of this, and pays for a look at a pointer.

use crate::time::{Duration, Instant};
use crate::token_bucket::TokenBucket;
use crate::units::{Direction, Kind, Rates, Work};

use super::slab::Fifo;

/// One of a client's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Requests that no limit on a direction is about; all where there is no such limit.
    Common,
    Of(Direction),
    /// Requests that were put off; they all change data.
    Later,
}

impl Place {
    /// The places of requests that were not put off, in the order in which they go where all else is equal.
    pub(super) const ORDINARY: [Self; 3] = [Self::Common, Self::Of(Direction::Read), Self::Of(Direction::Write)];
}

/// One direction.
struct Lane {
    fifo: Fifo,
    limit: TokenBucket,
    limited: bool,
    /// True if a reservation has taken it beyond its limit since [`Lanes::take_beyond`].
    beyond: bool,
}

impl Lane {
    fn new(burst: Duration) -> Self {
        Self { fifo: Fifo::EMPTY, limit: TokenBucket::new(Rates::UNSET, burst), limited: false, beyond: false }
    }

    fn due(&self) -> u64 {
        if self.limited { self.limit.ready_at().as_nanos() } else { 0 }
    }
}

/// Both directions of a client of which at least one has a limit of its own.
pub(super) struct Lanes([Lane; 2]);

impl Lanes {
    pub(super) fn new(burst: Duration) -> Self {
        Self(Direction::ALL.map(|_| Lane::new(burst)))
    }

    /// Sets the limit on a direction; none if unset.
    pub(super) fn set_limit(&mut self, now: Instant, direction: Direction, limit: Rates, burst: Duration) {
        let lane = &mut self.0[direction as usize];
        lane.limited = !limit.is_unset();
        lane.limit.set_rates(now, limit, burst);
    }

    /// Changes how much unused limit may be saved up, and nothing else.
    pub(super) fn set_burst(&mut self, now: Instant, burst: Duration) {
        self.0.iter_mut().for_each(|lane| lane.limit.set_burst(now, burst));
    }

    /// True if a direction has a limit.
    pub(super) fn is_limited(&self) -> bool {
        self.0.iter().any(|lane| lane.limited)
    }

    /// Requests of both directions.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.0.iter().map(|lane| lane.fifo.len()).sum()
    }

    #[inline]
    pub(super) fn fifo(&self, direction: Direction) -> &Fifo {
        &self.0[direction as usize].fifo
    }

    #[inline]
    pub(super) fn fifo_mut(&mut self, direction: Direction) -> &mut Fifo {
        &mut self.0[direction as usize].fifo
    }

    /// The limit on what waits in a place, if there is one.
    #[inline]
    pub(super) fn limit(&self, place: Place) -> Option<&TokenBucket> {
        let Place::Of(direction) = place else { return None };
        let lane = &self.0[direction as usize];
        lane.limited.then_some(&lane.limit)
    }

    /// When the limit on a place lets its next request pass, in ns.
    #[inline]
    pub(super) fn due(&self, place: Place) -> u64 {
        match place {
            Place::Common => 0,
            Place::Of(direction) => self.0[direction as usize].due(),
            // Whatever it is, the limit on writes goes for it: what was put off changes something.
            Place::Later => self.0[Direction::Write as usize].due(),
        }
    }

    /// Charges the limit on the request's direction.
    ///
    /// Only service by reservation counts as beyond the limit. Service by weight may seem to be, where two callers' clocks
    /// were read in another order than they came, and that says nothing.
    #[inline]
    pub(super) fn charge(&mut self, now: Instant, work: &Work, by_reservation: bool) {
        let Some(direction) = work.kind.direction() else { return };
        let lane = &mut self.0[direction as usize];
        if lane.limited {
            lane.beyond |= by_reservation && lane.limit.ready_at() > now;
            lane.limit.take(now, work);
        }
    }

    /// True if a reservation has taken a direction beyond its limit since the last call.
    pub(super) fn take_beyond(&mut self, direction: Direction) -> bool {
        core::mem::take(&mut self.0[direction as usize].beyond)
    }
}

/// Where a request of this kind waits if there are lanes.
#[inline]
pub(super) fn place_of(kind: Kind) -> Place {
    kind.direction().map_or(Place::Common, Place::Of)
}
