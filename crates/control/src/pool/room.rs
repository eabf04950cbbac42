//! Room for the request in turn: for how long are other requests stopped for it?
//!
//! A request that has been overtaken long enough waits for room in the budget, and nothing else is admitted meanwhile: the
//! requests in flight complete and leave their room. Requests that hang in a device never do, so the wait ends when nothing
//! has completed for a while, and other requests are admitted again.

use crate::time::{Duration, Instant};

/// A device that works completes a request within this time: it is longer than devices pause for.
const PATIENCE: Duration = Duration::from_millis(250);
/// For how long other requests are admitted after a wait in vain, so that a device that hangs takes little of their time.
const AFTER_WAIT_IN_VAIN: Duration = Duration::from_secs(10);

/// Decides if other requests are stopped to make room for the request in turn.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// When a request last came back, or was last admitted in turn.
    moved_at: Instant,
    /// Before this instant no requests are stopped to make room.
    in_vain_until: Instant,
}

impl Room {
    /// A request has come back, or was admitted in turn.
    #[inline]
    pub(super) fn moves(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// True if other requests are stopped now to make room for the request in turn.
    pub(super) fn is_worth_a_wait(&mut self, now: Instant) -> bool {
        if now >= self.in_vain_until && now >= self.waits_until() {
            self.in_vain_until = now + AFTER_WAIT_IN_VAIN;
        }
        now >= self.in_vain_until
    }

    /// When the wait for room ends if no request completes.
    pub(super) fn waits_until(&self) -> Instant {
        self.moved_at + PATIENCE
    }
}
