//! Figures of single groups for records: the latencies of a group's own reads, and the entry by which it belongs to its tenant.
//!
//! The sensor counts the reads of up to 128 groups of a host in histograms of their own. A read counts for the group whose task
//! submits it: reads that `io.max` delays are submitted by the kernel, and count for no group.

use evenkeel_control::Instant;
use evenkeel_control::response::ClientId;

use super::Local;
use crate::config::NamedBy;
use crate::loops::packets::percentile::Window;
use crate::loops::record::ReadPercentiles;

/// Figures of a group that only records need.
#[derive(Default)]
pub(super) struct Shown {
    /// Counts of the group's own reads; `None` before the first.
    reads: Option<Window>,
    by: NamedBy,
}

impl Shown {
    /// Drops counts that are too old at `now`.
    pub(super) fn advance(&mut self, now: Instant) {
        self.reads.iter_mut().for_each(|reads| reads.advance(now));
    }

    /// Percentiles of the group's own reads; `None` without reads that are counted for it.
    pub(super) fn percentiles(&self) -> Option<ReadPercentiles> {
        self.reads.as_ref().and_then(Window::usual)
    }

    /// The entry by which the group belongs to its tenant.
    pub(super) const fn by(&self) -> &NamedBy {
        &self.by
    }
}

impl Local {
    /// Takes in single reads of one group in the present interval that ends at `now`: their number in a bucket of
    /// [`crate::sensor::tracepoints`]. [`Self::count`] alone counts them for the latency target.
    pub fn count_of(&mut self, group: ClientId, now: Instant, bucket: usize, reads: u64) {
        if let Some(known) = self.group(group) {
            known.record.reads.get_or_insert_with(|| Window::new(now)).count(bucket, reads);
        }
    }

    /// Records the entry by which a group belongs to its tenant.
    pub fn set_named_by(&mut self, group: ClientId, by: NamedBy) {
        if let Some(known) = self.group(group) {
            known.record.by = by;
        }
    }
}
