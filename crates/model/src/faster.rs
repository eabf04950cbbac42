//! A device that is faster than another one: its clock runs faster.

use evenkeel_control::{Duration, Instant};

use crate::Io;
use crate::device::{DeviceParams, Machine};

/// The factor 1, in thousandths.
const ONE: u64 = 1_000;

/// A device of any model whose clock runs faster by a factor: each latency is divided by it, each rate is multiplied by it, and
/// as many requests as before are served at once. Times of periodic stalls and rates of throttles belong to the device, too.
///
/// Completions are seen at the first nanosecond that does not lie before them.
pub struct Faster<D> {
    device: D,
    /// The factor, in thousandths.
    thousandths: u64,
}

impl<D: Machine> Faster<D> {
    /// The idle `device` with a clock that runs `thousandths` / 1,000 times as fast; below 1,000 as fast as before.
    pub fn new(device: D, thousandths: u32) -> Self {
        Self { device, thousandths: u64::from(thousandths).max(ONE) }
    }

    /// The device's time at `now`, rounded down. Nanoseconds since zero grow by the factor.
    fn device_time(&self, now: Instant) -> Instant {
        Instant::from_nanos(self.grown(now.as_nanos()))
    }

    fn grown(&self, nanos: u64) -> u64 {
        let grown = u128::from(nanos) * u128::from(self.thousandths) / u128::from(ONE);
        u64::try_from(grown).unwrap_or(u64::MAX)
    }
}

impl<D: Machine> Machine for Faster<D> {
    fn name(&self) -> &'static str {
        self.device.name()
    }

    fn submit(&mut self, now: Instant, id: u64, io: Io) {
        let at = self.device_time(now);
        self.device.submit(at, id, io);
    }

    fn next_event(&self) -> Instant {
        let next = self.device.next_event();
        if next == Instant::FAR_FUTURE {
            return next;
        }
        // The first instant whose device time is not before `next`.
        let shrunk = (u128::from(next.as_nanos()) * u128::from(ONE)).div_ceil(u128::from(self.thousandths));
        u64::try_from(shrunk).map_or(Instant::FAR_FUTURE, Instant::from_nanos)
    }

    fn poll(&mut self, now: Instant) -> Option<u64> {
        let at = self.device_time(now);
        self.device.poll(at)
    }

    /// Stalls the device: it serves nothing for `length` from `now`, however fast it is.
    fn stall(&mut self, now: Instant, length: Duration) {
        let (at, length) = (self.device_time(now), Duration::from_nanos(self.grown(length.as_nanos())));
        self.device.stall(at, length);
    }

    fn set_params(&mut self, now: Instant, params: &DeviceParams) {
        let at = self.device_time(now);
        self.device.set_params(at, params);
    }
}
