//! A byte throttle: how much may be in flight at once.
//!
//! With a constant budget this is admission control `fixed`; adaptive answers move the budget of the same throttle.

/// A bound on the cost of all that is in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throttle {
    /// Cost of requests in flight, in bytes.
    pub(super) inside: u64,
    /// Bytes that may be in flight; `u64::MAX` = unbounded.
    pub(super) budget: u64,
}

impl Throttle {
    pub(super) const fn new(budget: u64) -> Self {
        Self { inside: 0, budget }
    }

    /// Ceph's rule: nothing that would take the sum over the budget enters, except that a request which could never
    /// fit (it alone exceeds the budget) enters as soon as the rest is within the budget. The sum therefore stays
    /// below budget + the largest request, and no request waits for ever.
    #[inline]
    pub(super) const fn fits(&self, cost: u64) -> bool {
        self.inside.saturating_add(cost) <= self.budget || (cost > self.budget && self.inside <= self.budget)
    }

    #[inline]
    pub(super) const fn admit(&mut self, cost: u64) {
        self.inside = self.inside.saturating_add(cost);
    }

    /// Gives a request's cost back. More than what is in flight is a mistake of the caller; a release build then counts
    /// from zero, so that requests are admitted again.
    #[inline]
    pub(super) fn release(&mut self, cost: u64) {
        debug_assert!(cost <= self.inside, "released {cost} of {} bytes inside", self.inside);
        self.inside = self.inside.saturating_sub(cost);
    }
}
