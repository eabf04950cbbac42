//! How slots become the length of a queue of another program: whole numbers, changed seldom.

use core::num::NonZeroU32;

/// A change below this part of the present length is not worth stopping the queue for a moment.
const WORTH: f64 = 0.1;
/// A change below this many requests is not worth it either: a length that is to be halfway between two whole numbers would
/// change for ever.
const WORTH_AT_LEAST: f64 = 0.75;

/// The possible lengths of a device's queues. A device has one queue, or several of the same length, which share its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// How many queues have this length.
    pub queues: NonZeroU32,
    /// Shortest length of each (at least 1).
    pub least: u32,
    /// Longest length of each; counts as `least` if it is smaller.
    pub most: u32,
}

impl Depth {
    /// The length of each queue that is nearest to `slots` slots in all, within the bounds. `f64::INFINITY` and NaN are no
    /// bound: the longest.
    pub fn of(&self, slots: f64) -> u32 {
        libm::round(self.each(slots)) as u32
    }

    /// The length to which to change queues of length `now`; `None` where that is not worth it. The same slots again never
    /// change the length that they have led to; no bound always ends at the longest.
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
