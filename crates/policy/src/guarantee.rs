//! A guaranteed throughput on a pool: how it is written, and how its decisions are told.

use evenkeel_control::pool::guarantee::{Binding, Goals, Record, View};
use evenkeel_control::throughput::{Limit, Rate, Reason};

use crate::config::Guarantee;
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

/// A rate as people read it.
fn told(unit: Rate, value: f64) -> String {
    match unit {
        Rate::BytesPerS(_) if value >= 1e5 => format!("{:.1} MB/s", value / 1e6),
        Rate::BytesPerS(_) => format!("{value:.0} B/s"),
        Rate::RequestsPerS(_) => format!("{value:.0} requests/s"),
    }
}

/// Why a limit is what it is, as a sentence about a tenant of a pool.
pub fn sentence(limit: &Limit, binding: Binding) -> String {
    let rate = |value: f64| told(limit.limit, value);
    let assigned = rate(limit.limit.value() as f64);
    match limit.reason {
        Reason::NotEnoughData => format!("nothing has been measured yet: the guarantee of {assigned} is the limit"),
        Reason::AsGuaranteed => format!("the guarantee of {assigned} is the limit"),
        Reason::Idle => format!("it asked for nothing; the limit stays at {assigned}"),
        Reason::AppLimited { measured, .. } => {
            format!("it asked for {}, less than it may have; the limit stays at {assigned}", rate(measured))
        }
        Reason::Compensating { measured, guaranteed, .. } => format!(
            "the device takes its time: {} of {} guaranteed; the limit of {assigned} makes up for that",
            rate(measured),
            rate(guaranteed)
        ),
        Reason::Repaying { measured, guaranteed, owed } => format!(
            "it is owed {:.1} s of its guarantee: {} of {} guaranteed; the limit of {assigned} repays some of that",
            owed / guaranteed.max(f64::MIN_POSITIVE),
            rate(measured),
            rate(guaranteed)
        ),
        Reason::GivingBack { measured, guaranteed, .. } => format!(
            "it has had more than was due: {} of {} guaranteed; the limit of {assigned} takes that back",
            rate(measured),
            rate(guaranteed)
        ),
        Reason::Infeasible { measured, guaranteed, .. } | Reason::AtCeiling { measured, guaranteed } => format!(
            "the guarantee cannot be kept now: {} of {} guaranteed under a limit of {assigned}; give it a reservation, raise its own limit or a limit of the pool, or move load away",
            rate(measured),
            rate(guaranteed)
        ),
        Reason::OtherLimit { .. } => match binding {
            Binding::Reservation => {
                format!("its reservation is higher and wins; {assigned} would be the limit, and nothing is learned")
            }
            Binding::Limit(owner) => format!(
                "held back by another owner ({}); {assigned} would be the limit, and nothing is owed meanwhile",
                owner.name()
            ),
        },
        // Of methods that need to see a slow device.
        Reason::NoSolution { .. } | Reason::SlowDeviceUnknown => format!("the limit stays at {assigned}"),
        Reason::CountersReset => format!("after a pause it is measured anew; the limit stays at {assigned}"),
        Reason::SignalLost => format!("nothing can be measured: the guarantee of {assigned} is the limit"),
    }
}

/// A guarantee as a record; `at` turns an instant into seconds since the start.
pub fn state(view: &View<'_>, at: impl Fn(evenkeel_control::Instant) -> f64) -> GuaranteeState {
    let decision = |record: &Record| GuaranteeDecision {
        from_s: at(record.from),
        until_s: at(record.until),
        times: record.times,
        reason: record.limit.reason.name().into(),
        because: sentence(&record.limit, record.binding),
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
        because: sentence(&view.limit, view.binding),
        binding: view.binding.name().into(),
        decisions: view.records.iter().map(decision).collect(),
    }
}
