//! Room for the request in turn: for how long are other requests stopped for it?
//!
//! A request that has been overtaken long enough waits for room in the budget, and nothing else is admitted meanwhile: the
//! requests in flight complete and leave their room. Requests that hang in a device never do, so the wait ends when nothing
//! has completed for a while, and other requests are admitted again.

use crate::time::{Duration, Instant};

/// A device that works completes a request within this time: it is longer than devices pause for.
const PATIENCE: Duration = Duration::from_millis(250);
/// For how long other requests are admitted after a wait in vain, as a multiple of the wait: twice as long after each such wait
/// in a row, so that a device that hangs takes little of their time, and one that has stood still once is soon trusted again.
const LONGEST_PAUSE: u64 = 40;
/// Part of the time for which due reservations may be stopped: one in this many, as by cost.
const ONE_IN: u64 = 64;

/// Decides if other requests are stopped to make room for the request in turn.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// When a request last came back, or was last admitted in turn.
    moved_at: Instant,
    /// Before this instant no requests are stopped to make room.
    in_vain_until: Instant,
    /// Length of the pause after the last wait in vain, as a multiple of the wait; 0: the last wait was not in vain.
    pause: u64,
    /// When the request in turn began to wait for its room, if it is one that goes before reservations.
    waits_since: Option<Instant>,
    /// When due reservations were stopped for it.
    stopped_since: Option<Instant>,
    /// Before this instant no reservations are stopped.
    paid_until: Instant,
}

impl Room {
    /// A request has come back, or was admitted in turn.
    #[inline]
    pub(super) fn moves(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// A request was served in turn.
    #[inline]
    pub(super) fn serves(&mut self, now: Instant) {
        (self.pause, self.waits_since) = (0, None);
        self.lets_reservations_go(now);
    }

    /// True if other requests are stopped now to make room for the request in turn.
    pub(super) fn is_worth_a_wait(&mut self, now: Instant) -> bool {
        if now >= self.in_vain_until && now >= self.waits_until() {
            self.pause = (2 * self.pause).clamp(1, LONGEST_PAUSE);
            self.in_vain_until = now + Duration::from_nanos(PATIENCE.as_nanos() * self.pause);
            self.lets_reservations_go(now);
        }
        now >= self.in_vain_until
    }

    /// True if reservations that are due are stopped, too: the request in turn goes before them. It is given a moment without
    /// them, in which a fast device makes room, then waits for room beside them, and then without them.
    pub(super) fn stops_reservations(&mut self, now: Instant) -> bool {
        let since = *self.waits_since.get_or_insert(now);
        let moment = Duration::from_nanos(PATIENCE.as_nanos() / ONE_IN);
        let alone = now < since + moment || now >= since + PATIENCE;
        let stops = alone && now >= self.paid_until;
        if stops {
            self.stopped_since.get_or_insert(now);
        }
        stops
    }

    fn lets_reservations_go(&mut self, now: Instant) {
        if let Some(since) = self.stopped_since.take() {
            self.paid_until = now + Duration::from_nanos(now.since(since).as_nanos().saturating_mul(ONE_IN));
        }
    }

    /// When the wait for room ends if no request completes.
    pub(super) fn waits_until(&self) -> Instant {
        self.moved_at + PATIENCE
    }
}
