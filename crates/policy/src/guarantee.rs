//! Throughput guarantees of tenants: in the controller's words, and as records.

use evenkeel_control::pool::guarantee::{Goals, Record, View};
use evenkeel_control::throughput::Rate;

use crate::config::Guarantee;
use crate::explain;
use crate::state::{GuaranteeDecision, GuaranteeState};
use crate::units::{Bytes, Rates};

impl Guarantee {
    /// Of reads and writes together.
    pub const fn together(&self) -> Rates {
        Rates { iops: self.iops, bytes_per_s: self.bytes_per_s }
    }

    /// All that was guaranteed, whatever it is about.
    pub fn sum(&self) -> Rates {
        [self.read, self.write].into_iter().fold(self.together(), |sum, one| Rates {
            iops: sum.iops.saturating_add(one.iops),
            bytes_per_s: Bytes(sum.bytes_per_s.0.saturating_add(one.bytes_per_s.0)),
        })
    }

    /// In the controller's words: bytes go before requests, as nothing can be guaranteed in both.
    pub fn goals(&self) -> Goals {
        let rate = |guarantee: Rates| match (guarantee.bytes_per_s.0, guarantee.iops) {
            (0, 0) => None,
            (0, iops) => Some(Rate::RequestsPerS(iops)),
            (bytes_per_s, _) => Some(Rate::BytesPerS(bytes_per_s)),
        };
        Goals { all: rate(self.together()), read: rate(self.read), write: rate(self.write) }
    }
}

/// A guarantee as a record; `at` turns an instant into seconds since the start.
pub fn state(view: &View<'_>, at: impl Fn(evenkeel_control::Instant) -> f64) -> GuaranteeState {
    let decision = |record: &Record| GuaranteeDecision {
        from_s: at(record.from),
        until_s: at(record.until),
        times: record.times,
        reason: record.limit.reason.name().into(),
        because: explain::guarantee(&record.limit, Some(record.binding)),
        limit_per_s: record.limit.limit.value(),
        binding: record.binding.name().into(),
    };
    GuaranteeState {
        of: view.scope.name().into(),
        unit: match view.guaranteed {
            Rate::BytesPerS(_) => "bytes",
            Rate::RequestsPerS(_) => "requests",
        }
        .into(),
        guaranteed_per_s: view.guaranteed.value(),
        measured_per_s: view.measured,
        limit_per_s: view.limit.limit.value(),
        reason: view.limit.reason.name().into(),
        because: explain::guarantee(&view.limit, Some(view.binding)),
        binding: view.binding.name().into(),
        decisions: view.records.iter().map(decision).collect(),
    }
}
