//! Limits on single directions of a client, with a list of requests for each direction.
//!
//! A client's requests usually wait in one list. If its reads or its writes have a limit of their own, one list is not enough:
//! the first request that has to wait would stop requests of the other direction behind it. So this client has three lists:
//! reads, writes, and requests that move no data. Its next request is the oldest one that its limits let pass. A client
//! without limits on single directions has one list, and only pays for the check of a pointer.

use crate::time::{Duration, Instant};
use crate::token_bucket::TokenBucket;
use crate::units::{Direction, Kind, Rates, Work};

use super::slab::Fifo;
use super::{ClientId, Queue};

/// One of a client's lists of queued requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Requests that move no data; all requests if no direction of the client has a limit of its own.
    Common,
    Of(Direction),
    /// Requests that were put off; all of them change data.
    Later,
}

impl Place {
    /// The lists of requests that were not put off; of requests of equal age, that of the earlier list goes first.
    pub(super) const ORDINARY: [Self; 3] = [Self::Common, Self::Of(Direction::Read), Self::Of(Direction::Write)];
}

/// The queued requests of one direction of a client, with the limit on this direction.
struct Lane {
    fifo: Fifo,
    limit: TokenBucket,
    limited: bool,
    /// True if a reservation has taken this direction beyond its limit since the last call of [`Lanes::take_beyond`].
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

    /// Sets the limit on a direction, or removes it if `limit` is unset. `burst`: unused limit that may be saved up, as time.
    pub(super) fn set_limit(&mut self, now: Instant, direction: Direction, limit: Rates, burst: Duration) {
        let lane = &mut self.0[direction as usize];
        lane.limited = !limit.is_unset();
        lane.limit.set_rates(now, limit, burst);
    }

    /// Changes the unused limit that may be saved up, as time at the limit rate; the limits stay.
    pub(super) fn set_burst(&mut self, now: Instant, burst: Duration) {
        self.0.iter_mut().for_each(|lane| lane.limit.set_burst(now, burst));
    }

    /// True if at least one direction has a limit.
    pub(super) fn is_limited(&self) -> bool {
        self.0.iter().any(|lane| lane.limited)
    }

    /// Number of queued requests of both directions.
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

    /// The limit on the direction whose requests are in the list `place`, if there is one.
    #[inline]
    pub(super) fn limit(&self, place: Place) -> Option<&TokenBucket> {
        let Place::Of(direction) = place else { return None };
        let lane = &self.0[direction as usize];
        lane.limited.then_some(&lane.limit)
    }

    /// When the limit on a direction lets the next request of the list `place` pass, in ns; 0 if no limit applies.
    #[inline]
    pub(super) fn due(&self, place: Place) -> u64 {
        match place {
            Place::Common => 0,
            Place::Of(direction) => self.0[direction as usize].due(),
            // Whatever it is, the limit on writes goes for it: what was put off changes something.
            Place::Later => self.0[Direction::Write as usize].due(),
        }
    }

    /// Charges a served request to the limit on its direction.
    ///
    /// Only service by reservation counts as service beyond the limit. Service by weight is never meant to be: it only seems so
    /// if two callers read their clocks in another order than that of their calls.
    #[inline]
    pub(super) fn charge(&mut self, now: Instant, work: &Work, by_reservation: bool) {
        let Some(direction) = work.kind.direction() else { return };
        let lane = &mut self.0[direction as usize];
        if lane.limited {
            lane.beyond |= by_reservation && lane.limit.ready_at() > now;
            lane.limit.take(now, work);
        }
    }

    /// True if a reservation has taken this direction beyond its limit since the last call for this direction.
    pub(super) fn take_beyond(&mut self, direction: Direction) -> bool {
        core::mem::take(&mut self.0[direction as usize].beyond)
    }
}

/// The list in which a request of this kind waits, if a direction of its client has a limit of its own.
#[inline]
pub(super) fn place_of(kind: Kind) -> Place {
    kind.direction().map_or(Place::Common, Place::Of)
}

impl<R> Queue<R> {
    /// Number of requests that this client has queued, without those that limits on single directions do not let pass within
    /// `time`, if all requests of a direction are like the oldest one. 0 if the client has left. O(1).
    pub fn client_len_within(&self, id: ClientId, time: Duration) -> u64 {
        let client =
            self.clients.get(id.index as usize).filter(|client| client.live && client.generation == id.generation);
        let beyond = |lanes: &Lanes, direction: Direction| {
            let (limit, fifo) = (lanes.limit(Place::Of(direction))?, lanes.fifo(direction));
            let (oldest, _) = self.requests.front(fifo)?;
            Some(u64::from(fifo.len()).saturating_sub(limit.number_in(time, &oldest.work)))
        };
        client.map_or(0, |client| {
            let lanes = client.lanes.iter();
            let later = lanes.flat_map(|lanes| Direction::ALL.map(|direction| beyond(lanes, direction).unwrap_or(0)));
            u64::from(client.len()) - later.sum::<u64>()
        })
    }
}
