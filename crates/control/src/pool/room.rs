//! Room in the admission budget for the request in turn: for how long are other requests stopped for it?
//!
//! When a request in turn has been overtaken long enough, no other request is admitted until the budget has room for it: the
//! requests in flight complete and leave their room. Requests that hang in a device never complete, so the wait ends when
//! nothing has completed for a while ([`PATIENCE`]), and other requests are admitted again.

use crate::time::{Duration, Instant};

/// A device that works completes a request within this time, which is longer than devices pause for.
const PATIENCE: Duration = Duration::from_millis(250);
/// Upper bound on the pause after a wait for room in vain, as a multiple of the wait. In the pause other requests are admitted.
/// It doubles with each wait in vain in a row, so that a device that hangs takes little time from other requests, and one
/// that stood still once is soon waited for again.
const LONGEST_PAUSE: u64 = 40;
/// Due reservations may be stopped for one part in this many of the time: the same part as the request in turn has by cost.
const ONE_IN: u64 = 64;

/// Decides if other requests are stopped to make room for the request in turn.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// When a request last completed, or was last admitted in turn.
    moved_at: Instant,
    /// Before this instant no requests are stopped to make room.
    in_vain_until: Instant,
    /// Length of the pause after the last wait in vain, as a multiple of the wait; 0: the last wait was not in vain.
    pause: u64,
    /// When the request in turn began to wait for its room, if it goes before due reservations.
    waits_since: Option<Instant>,
    /// When due reservations were stopped for the request in turn; `None`: they are not stopped.
    stopped_since: Option<Instant>,
    /// Before this instant no reservations are stopped.
    paid_until: Instant,
}

impl Room {
    /// Notes that a request has completed, or was admitted in turn.
    #[inline]
    pub(super) fn moves(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// Notes that a request was served in turn.
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

    /// Stops due reservations, too, for a request in turn that goes before them. Reservations are stopped for a moment (4 ms),
    /// in which a fast device makes room; then they are served while the request waits; after 250 ms they are stopped again.
    /// Returns when reservations are to be looked at again if no request completes; `None`: they are not stopped.
    pub(super) fn stop_reservations(&mut self, now: Instant) -> Option<Instant> {
        let since = *self.waits_since.get_or_insert(now);
        let moment_ends = since + Duration::from_nanos(PATIENCE.as_nanos() / ONE_IN);
        let alone = now < moment_ends || now >= since + PATIENCE;
        if !alone || now < self.paid_until {
            return None;
        }
        self.stopped_since.get_or_insert(now);
        Some(if now < moment_ends { moment_ends.min(self.waits_until()) } else { self.waits_until() })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instant_at_which_reservations_go_again_is_named() {
        let at = |us| Instant::ZERO + Duration::from_micros(us);
        let mut room = Room::default();
        let moment_ends = Instant::from_nanos(1_000_000 + 250_000_000 / 64);
        for us in [1_000, 2_000, 4_900] {
            assert_eq!(room.stop_reservations(at(us)), Some(moment_ends), "{us} us");
        }
        for now in [moment_ends, at(5_000), at(250_999)] {
            assert_eq!(room.stop_reservations(now), None, "{now:?}");
        }
        room.moves(at(240_000));
        assert_eq!(room.stop_reservations(at(251_000)), Some(at(490_000)), "without a completion the wait is in vain");
    }
}
