//! Device time: virtual time without stalls.

use evenkeel_control::{Duration, Instant};

/// A clock that stands still during stalls.
///
/// A model that keeps its events in this clock's time moves all of them at once when it stalls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceClock {
    stalled_until: Instant,
    /// Total length of the stalls so far; a stall in progress counts in full.
    lag: Duration,
}

impl DeviceClock {
    /// The device time at the instant `now`.
    pub(crate) fn at(&self, now: Instant) -> Instant {
        now.max(self.stalled_until) - self.lag
    }

    /// The instant at which the device clock reaches `device_time`, which must not lie before the clock's present time.
    pub(crate) fn reached(&self, device_time: Instant) -> Instant {
        device_time + self.lag
    }

    /// Stalls the clock for `length` from `now`, or from the end of a stall in progress.
    pub(crate) fn stall(&mut self, now: Instant, length: Duration) {
        self.stalled_until = self.stalled_until.max(now) + length;
        self.lag = self.lag + length;
    }
}

/// Defines `next_event`, `poll`, `in_flight` and `stall` for a model that keeps its events in device time.
macro_rules! polled {
    () => {
        /// Time of the next poll, as nothing completes before that instant; `Instant::FAR_FUTURE` when nothing is in flight.
        pub fn next_event(&self) -> Instant {
            if self.done.is_empty() { self.next_device_event() } else { self.seen }
        }

        /// The next request that has completed by `now`, in order of completion; call until `None`.
        pub fn poll(&mut self, now: Instant) -> Option<u64> {
            self.advance(now);
            let id = self.done.pop_front()?;
            self.inside -= 1;
            Some(id)
        }

        /// Requests submitted and not yet returned by [`Self::poll`].
        pub fn in_flight(&self) -> usize {
            self.inside
        }

        /// Stalls the device for `length` from `now`, or from the end of a stall in progress.
        pub fn stall(&mut self, now: Instant, length: Duration) {
            self.advance(now);
            self.clock.stall(self.seen, length);
        }
    };
}
pub(crate) use polled;
