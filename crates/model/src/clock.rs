//! The device's own time.

use evenkeel_control::{Duration, Instant};

/// A clock that stands still during stalls: the device's own.
///
/// A model that keeps its events in this time moves all of them at once when it stalls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceClock {
    stalled_until: Instant,
    /// All stalls so far, the present one in full.
    lag: Duration,
}

impl DeviceClock {
    /// The device time of `now`.
    pub(crate) fn at(&self, now: Instant) -> Instant {
        now.max(self.stalled_until) - self.lag
    }

    /// When the device reaches `device_time`, which it has not passed yet.
    pub(crate) fn reached(&self, device_time: Instant) -> Instant {
        device_time + self.lag
    }

    /// Stands still for `length` from `now`, on top of a stall already under way.
    pub(crate) fn stall(&mut self, now: Instant, length: Duration) {
        self.stalled_until = self.stalled_until.max(now) + length;
        self.lag = self.lag + length;
    }
}
