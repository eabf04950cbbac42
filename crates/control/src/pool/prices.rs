//! The base cost of a pool's requests, as it counts in sharing by weight, in the admission budget and in the size of slices.

use super::{Pool, Ticket};
use crate::mclock::CostModel;
use crate::price::Change;
use crate::time::Instant;

impl Ticket {
    /// Notes that the device may have had no work with the request, such as the read of a hole: the base cost is not measured by
    /// it.
    pub fn note_blank(&mut self) {
        self.blank = true;
    }

    /// True if [`Pool::exempt`] has freed the admission budget that the request took.
    pub fn is_exempt(&self) -> bool {
        self.cost == 0
    }
}

impl<R> Pool<R> {
    /// Bytes that a request costs on top of its payload: the base cost in force, which is the configured or the measured one.
    pub fn base_cost(&self) -> u64 {
        self.price.base().into()
    }

    /// The base cost of a request in the admission budget, in bytes: the `elastic` controller counts the base cost in force
    /// (configured or measured), other controllers the configured one.
    #[inline]
    pub(super) fn base_in_budget(&self) -> u64 {
        u64::from(if self.admission.is_elastic() { self.price.base() } else { self.config.base_cost_bytes })
    }

    /// Sets the base cost for sharing by weight to the larger of that of `cost` (configured) and the measured one. A `change` of
    /// the base cost in force also changes the admission budget and the size of slices.
    pub(super) fn apply_price(&mut self, now: Instant, cost: CostModel, change: Option<Change>) {
        let base_bytes = cost.base_bytes.max(self.price.measured());
        self.queue.set_cost_model(now, CostModel { base_bytes, ..cost });
        if let Some(change) = change {
            self.admission.rescale(now, change);
            self.slices.set_price(change.base);
        }
    }
}
