//! Converts slots into queue depths of a device that another program serves: whole numbers, changed seldom.

use core::num::NonZeroU32;

/// A change by less than this part of the present queue depth is not made: each change stops the queue for a moment.
const WORTH: f64 = 0.1;
/// A change by less than this many requests is not made either: a depth that should be halfway between two whole numbers would
/// change for ever.
const WORTH_AT_LEAST: f64 = 0.75;

/// The possible depths of a device's queues. A device has one queue, or several of the same depth, which share its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Number of queues of the device.
    pub queues: NonZeroU32,
    /// Smallest depth of each queue, in requests (at least 1).
    pub least: u32,
    /// Largest depth of each queue, in requests; a value below `least` counts as `least`.
    pub most: u32,
}

impl Depth {
    /// The depth of each queue at which all queues together are nearest to `slots` slots, within the bounds. `f64::INFINITY`
    /// and NaN stand for no bound on slots and give the largest depth.
    pub fn of(&self, slots: f64) -> u32 {
        libm::round(self.each(slots)) as u32
    }

    /// The depth to which to change queues of depth `now` for `slots` slots; `None` if the change is too small to be made.
    /// After a change, the same slots do not change the depth again. No bound on slots always leads to the largest depth.
    pub fn change(&self, now: u32, slots: f64) -> Option<u32> {
        let (each, wanted) = (self.each(slots), self.of(slots));
        let differs = (each - f64::from(now)).abs();
        let out_of_bounds = !(self.least..=self.longest()).contains(&now);
        let unbound = each >= f64::from(self.longest());
        let worth = unbound || out_of_bounds || differs > (WORTH * f64::from(now)).max(WORTH_AT_LEAST);
        (worth && wanted != now).then_some(wanted)
    }

    fn longest(&self) -> u32 {
        self.most.max(self.least)
    }

    fn each(&self, slots: f64) -> f64 {
        let slots = if slots.is_nan() { f64::INFINITY } else { slots };
        (slots / f64::from(self.queues.get())).clamp(f64::from(self.least), f64::from(self.longest()))
    }
}
