//! A throttle on the cost of the requests in flight, in bytes.
//!
//! With a constant budget this is admission control `fixed`; adaptive methods change the budget of the same throttle.

/// A bound on the cost of all requests in flight together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throttle {
    /// Cost of requests in flight, in bytes.
    pub(super) inside: u64,
    /// Cost of requests that may be in flight, in bytes; `u64::MAX` = unbounded.
    pub(super) budget: u64,
}

impl Throttle {
    pub(super) const fn new(budget: u64) -> Self {
        Self { inside: 0, budget }
    }

    /// True if a request of this cost may enter, by Ceph's rule: a request enters if the sum with it stays within the budget.
    /// A request that alone exceeds the budget enters as soon as the requests in flight are within the budget. The sum
    /// therefore stays below budget + the largest request, and no request waits for ever.
    #[inline]
    pub(super) const fn fits(&self, cost: u64) -> bool {
        self.inside.saturating_add(cost) <= self.budget || (cost > self.budget && self.inside <= self.budget)
    }

    #[inline]
    pub(super) const fn admit(&mut self, cost: u64) {
        self.inside = self.inside.saturating_add(cost);
    }

    /// Takes the cost of a request that has left off the cost in flight. A larger cost than that in flight is a mistake of
    /// the caller; a release build then counts 0 in flight, so that requests are admitted again.
    #[inline]
    pub(super) fn release(&mut self, cost: u64) {
        debug_assert!(cost <= self.inside, "released {cost} of {} bytes in flight", self.inside);
        self.inside = self.inside.saturating_sub(cost);
    }
}
