//! The base cost of a pool's requests: in weights, in the admission budget, and in the size of slices.

use super::Pool;
use crate::mclock::CostModel;
use crate::price::Change;
use crate::time::Instant;

impl<R> Pool<R> {
    /// Bytes that a request costs on top of its payload: the configured or the measured base cost.
    pub fn base_cost(&self) -> u64 {
        self.price.base().into()
    }

    /// The base cost in the admission budget, in bytes: `elastic` counts with the one in force, other controllers with the
    /// configured one.
    #[inline]
    pub(super) fn base_in_budget(&self) -> u64 {
        u64::from(if self.admission.is_elastic() { self.price.base() } else { self.config.base_cost_bytes })
    }

    /// Sets the base cost of the weights to the configured one of `cost` or the measured one, whichever is larger. A `change`
    /// of the base cost also changes the budget and the slices.
    pub(super) fn apply_price(&mut self, now: Instant, cost: CostModel, change: Option<Change>) {
        let base_bytes = cost.base_bytes.max(self.price.measured());
        self.queue.set_cost_model(now, CostModel { base_bytes, ..cost });
        if let Some(change) = change {
            self.admission.rescale(now, change);
            self.slices.set_price(change.base);
        }
    }
}
