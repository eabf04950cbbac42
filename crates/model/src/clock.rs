//! Device time: virtual time without stalls.

use evenkeel_control::{Duration, Instant};

/// A clock that stands still during stalls.
///
/// A model that keeps its events in this clock's time moves all of them at once when it stalls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceClock {
    stalled_until: Instant,
    /// Sum of all stalls so far; the present one counts in full.
    lag: Duration,
}

impl DeviceClock {
    /// The device time at the instant `now`.
    pub(crate) fn at(&self, now: Instant) -> Instant {
        now.max(self.stalled_until) - self.lag
    }

    /// The instant at which the device clock reaches `device_time`, which must not lie before its present time.
    pub(crate) fn reached(&self, device_time: Instant) -> Instant {
        device_time + self.lag
    }

    /// Stalls the clock for `length` from `now`, or from the end of a stall in progress.
    pub(crate) fn stall(&mut self, now: Instant, length: Duration) {
        self.stalled_until = self.stalled_until.max(now) + length;
        self.lag = self.lag + length;
    }
}
