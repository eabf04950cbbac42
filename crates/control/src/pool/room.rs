//! Room for the request in turn: for how long do the others stand still for it?
//!
//! A request that has been overtaken long enough waits for room, and nothing else is admitted meanwhile: what is in flight
//! comes back and leaves its room. What hangs in a device never does, so the wait ends when nothing has come back for a while, and
//! the others go on.

use crate::time::{Duration, Instant};

/// Something comes back within this time from a device that works: longer than devices pause for.
const PATIENCE: Duration = Duration::from_millis(250);
/// For how long the others go on after a wait in vain, so that a device that hangs takes little of their time.
const AFTER_WAIT_IN_VAIN: Duration = Duration::from_secs(10);

/// Decides if it is worth to wait for room.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// When a request last came back, or was last admitted in turn.
    moved_at: Instant,
    /// Until then nothing waits for room.
    in_vain_until: Instant,
}

impl Room {
    /// A request has come back, or was admitted in turn.
    #[inline]
    pub(super) fn moves(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// True if the others stand still.
    pub(super) fn is_worth_a_wait(&mut self, now: Instant) -> bool {
        if now >= self.in_vain_until && now >= self.waits_until() {
            self.in_vain_until = now + AFTER_WAIT_IN_VAIN;
        }
        now >= self.in_vain_until
    }

    /// Until when, if nothing comes back.
    pub(super) fn waits_until(&self) -> Instant {
        self.moved_at + PATIENCE
    }
}
