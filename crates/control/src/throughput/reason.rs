//! Reasons for the values of limits.

/// Reason for the value of a limit. Rates are in the unit of the guarantee, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No interval has been seen yet: the guarantee is the limit.
    NotEnoughData,
    /// The limit equals the guarantee: the method assigns no other limit, or no throughput has to be made up for.
    AsGuaranteed,
    /// The tenant asked for nothing: the limit stays, nothing is learned and nothing is owed.
    Idle,
    /// The tenant asked for less than its limit allows: the limit stays, nothing is learned and nothing is owed.
    AppLimited {
        /// The tenant's rate in the latest complete window.
        measured: f64,
        /// The tenant's mean limit in the latest complete window, which it did not use up.
        limit: f64,
    },
    /// Cache misses cost throughput: the limit is above the guarantee by as much as makes up for them.
    Compensating {
        /// The tenant's rate in the last interval.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
        /// Part of the tenant's bytes in the last interval that came from or went to the slow device, 0 to 1.
        miss_rate: f64,
    },
    /// The tenant is owed more than half of the throughput that one window guarantees: the limit also repays that debt.
    Repaying {
        /// The tenant's rate in the last interval.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
        /// The debt to the tenant, in units (bytes or requests).
        owed: f64,
    },
    /// The tenant got more than its guarantee before: the limit is below the guarantee until that excess is used up.
    GivingBack {
        /// The tenant's rate in the last interval.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
        /// The excess of the tenant, in units (bytes or requests).
        ahead: f64,
    },
    /// At the present miss rates the slow device cannot give all tenants their guarantees; its bandwidth is shared by weight.
    /// Throughput that is missing for this reason is not owed afterwards.
    Unachievable {
        /// The tenant's rate, averaged over about ten windows.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
        /// The rate that the tenant can have at the present miss rate.
        attainable: f64,
    },
    /// The limit is as high as it may be, and the tenant still gets less than it was guaranteed.
    AtCeiling {
        /// The tenant's rate in the last interval.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
    },
    /// The published equation (SAAT) has no solution: the guarantee is unachievable at this miss rate, or the slow device moved
    /// more than its assumed bandwidth. The limit is the guarantee.
    NoSolution {
        /// The tenant's rate in the last interval.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
    },
    /// The published method (SAAT) does not know the bandwidth of the slow device or the miss rate: the limit stays.
    SlowDeviceUnknown,
    /// A limit that another program had set was in force: nothing is learned from the interval.
    OtherLimit {
        /// The other program's limit; infinite if that program had removed the limit.
        in_force: f64,
    },
    /// Counters began anew, or samples paused for more than 5 intervals: nothing is learned from this interval.
    CountersReset,
    /// No sample came for more than 5 intervals: the limit is the guarantee.
    SignalLost,
}

impl Reason {
    /// True if the guarantee is not met although its tenant has requests waiting.
    pub const fn is_missed(&self) -> bool {
        matches!(self, Self::AtCeiling { .. } | Self::Unachievable { .. })
    }

    /// True if a guarantee is missed with this reason, false if it is met; `None` if the reason leaves it as it was: a debt is
    /// repaid, or the interval does not count.
    pub const fn verdict(&self) -> Option<bool> {
        match self {
            Self::AtCeiling { .. } | Self::Unachievable { .. } => Some(true),
            Self::Repaying { .. } | Self::OtherLimit { .. } | Self::CountersReset => None,
            Self::GivingBack { ahead, .. } if *ahead < 0.0 => None,
            Self::NotEnoughData
            | Self::AsGuaranteed
            | Self::Idle
            | Self::AppLimited { .. }
            | Self::Compensating { .. }
            | Self::GivingBack { .. }
            | Self::NoSolution { .. }
            | Self::SlowDeviceUnknown
            | Self::SignalLost => Some(false),
        }
    }

    /// The reason's name in logs, metrics and API answers.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NotEnoughData => "not_enough_data",
            Self::AsGuaranteed => "as_guaranteed",
            Self::Idle => "idle",
            Self::AppLimited { .. } => "app_limited",
            Self::Compensating { .. } => "compensating",
            Self::Repaying { .. } => "repaying",
            Self::GivingBack { .. } => "giving_back",
            Self::Unachievable { .. } => "unachievable",
            Self::AtCeiling { .. } => "at_ceiling",
            Self::NoSolution { .. } => "no_solution",
            Self::SlowDeviceUnknown => "slow_device_unknown",
            Self::OtherLimit { .. } => "other_limit",
            Self::CountersReset => "counters_reset",
            Self::SignalLost => "signal_lost",
        }
    }

    /// The measured rate and the guaranteed rate, per second, where the reason has them.
    pub const fn figures(&self) -> (Option<f64>, Option<f64>) {
        match *self {
            Self::Compensating { measured, guaranteed, .. }
            | Self::Repaying { measured, guaranteed, .. }
            | Self::GivingBack { measured, guaranteed, .. }
            | Self::Unachievable { measured, guaranteed, .. }
            | Self::AtCeiling { measured, guaranteed }
            | Self::NoSolution { measured, guaranteed } => (Some(measured), Some(guaranteed)),
            Self::AppLimited { measured, .. } => (Some(measured), None),
            Self::NotEnoughData
            | Self::AsGuaranteed
            | Self::Idle
            | Self::SlowDeviceUnknown
            | Self::OtherLimit { .. }
            | Self::CountersReset
            | Self::SignalLost => (None, None),
        }
    }
}
