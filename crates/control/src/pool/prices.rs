//! The base cost of a pool's requests: in weights, in the admission budget, and in the size of slices.

use super::Pool;
use crate::mclock::CostModel;
use crate::price::Change;
use crate::time::Instant;

impl<R> Pool<R> {
    /// Bytes that a request costs beside its own, as configured or measured.
    pub fn base_cost(&self) -> u64 {
        self.price.base().into()
    }

    /// The same for the admission budget: that of another controller than `elastic` counts in configured ones.
    #[inline]
    pub(super) fn base_in_budget(&self) -> u64 {
        u64::from(if self.admission.is_elastic() { self.price.base() } else { self.config.base_cost_bytes })
    }

    /// Weights share out the time of the device by the `cost` configured, and by what was measured where that is more. A
    /// `change` of it changes the budget and the slices.
    pub(super) fn apply_price(&mut self, now: Instant, cost: CostModel, change: Option<Change>) {
        let base_bytes = cost.base_bytes.max(self.price.measured());
        self.queue.set_cost_model(now, CostModel { base_bytes, ..cost });
        if let Some(change) = change {
            self.admission.rescale(now, change);
            self.slices.set_price(change.base);
        }
    }
}
