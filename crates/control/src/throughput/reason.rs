//! Why a limit is what it is.

/// Why a limit is what it is. Rates are in the unit of the guarantee, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// No interval has been seen yet: the guarantee is the limit.
    NotEnoughData,
    /// The guarantee itself is the limit: the method knows no other, or nothing has to be made up for.
    AsGuaranteed,
    /// The tenant asked for nothing: the limit stays, nothing is learned and nothing is owed.
    Idle,
    /// The tenant asked for less than it may have: the limit stays, nothing is learned and nothing is owed.
    AppLimited {
        /// The tenant's rate in the last window.
        measured: f64,
        /// The tenant's mean limit in the last window, which it did not use up.
        limit: f64,
    },
    /// Misses cost throughput: the limit stands as far above the guarantee as makes up for them.
    Compensating {
        /// The tenant's rate in the last interval.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
        /// Part of the tenant's bytes that came from or went to the slow device, 0 to 1.
        miss_rate: f64,
    },
    /// The tenant is owed more than half of its guarantee for a window: the limit also repays that debt.
    Repaying {
        /// The tenant's rate in the last interval.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
        /// The debt to the tenant, in units (bytes or requests).
        owed: f64,
    },
    /// The tenant got more than it was guaranteed: the limit takes that back.
    GivingBack {
        /// The tenant's rate in the last interval.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
        /// The excess of the tenant, in units (bytes or requests).
        ahead: f64,
    },
    /// At the present miss rate the slow device cannot keep what was guaranteed; its bandwidth is shared by weight.
    /// Throughput that is missed for this reason is not owed afterwards.
    Unachievable {
        /// The tenant's rate in the last interval.
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
    /// The published equation has no solution here (the guarantee is unachievable at this miss rate, or the slow device did more
    /// than it can): the limit is the guarantee.
    NoSolution {
        /// The tenant's rate in the last interval.
        measured: f64,
        /// The guaranteed rate.
        guaranteed: f64,
    },
    /// The published method needs the bandwidth of the slow device or the miss rate, and does not know it: the limit stays.
    SlowDeviceUnknown,
    /// A limit of another program was in force: respected, and nothing is learned from it.
    OtherLimit {
        /// The other program's limit; infinite if it had lifted the limit.
        in_force: f64,
    },
    /// Counters began anew, or there was a pause: nothing is learned from this interval.
    CountersReset,
    /// No samples for a while: the guarantee is the limit.
    SignalLost,
}

impl Reason {
    /// True if the guarantee is not kept although its tenant has requests waiting.
    pub const fn is_missed(&self) -> bool {
        matches!(self, Self::AtCeiling { .. } | Self::Unachievable { .. })
    }

    /// Name as shown to people and programs.
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
