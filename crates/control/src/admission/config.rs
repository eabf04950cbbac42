//! Settings of SlowFast CoDel and the switches of its repairs.

pub use crate::invalid::InvalidConfig;

use crate::time::Duration;

/// The shortest interval of either loop: shorter ones would only cost processor time. CoDel, which shortens the fast interval
/// by a square root, does not get there from sensible settings.
pub(super) const MIN_INTERVAL: Duration = Duration::from_micros(1);
/// Largest number of samples in the history: more samples only slow the fit down.
const MAX_HISTORY: u32 = 10_000;

/// Settings of SlowFast CoDel. `Default` is the published form: constants of the authors' public implementation with
/// the paper's trade-off of 0.1 and no repairs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
pub struct SlowFastConfig {
    /// Period of the fast loop while the target is met.
    pub fast_interval: Duration,
    /// Period of the slow loop.
    pub slow_interval: Duration,
    /// Target before the first fit.
    pub target_initial: Duration,
    /// Smallest target.
    pub target_min: Duration,
    /// Largest target.
    pub target_max: Duration,
    /// Budget at the start, in bytes.
    #[cfg_attr(feature = "serde", serde(rename = "budget_initial", with = "crate::text::AsBytes"))]
    pub budget_initial_bytes: u64,
    /// Smallest budget, in bytes.
    #[cfg_attr(feature = "serde", serde(rename = "budget_min", with = "crate::text::AsBytes"))]
    pub budget_min_bytes: u64,
    /// Largest budget, in bytes. The public implementation has no such bound; use alone bounds its growth.
    #[cfg_attr(feature = "serde", serde(rename = "budget_max", with = "crate::text::AsBytes"))]
    pub budget_max_bytes: u64,
    /// Growth of the budget in a fast interval that met the target, in bytes.
    #[cfg_attr(feature = "serde", serde(rename = "budget_increment", with = "crate::text::AsBytes"))]
    pub budget_increment_bytes: u64,
    /// Least fraction of the budget (0 to 1) that is kept in a fast interval, however far latency exceeds the target.
    pub budget_decrease_floor: f64,
    /// The budget grows only while it is below this multiple of the peak occupancy (at least 1).
    pub budget_headroom: f64,
    /// Slow intervals kept for the fit; the published form does not fit before it has them all.
    pub history_samples: u32,
    /// Slope of the throughput-latency curve at the target, in MiB/s per ms, without the repair `relative_tradeoff`: larger
    /// means less latency and less throughput.
    pub tradeoff_mib_per_s_per_ms: f64,
    /// The same slope with throughput and latency each in units of its mean (per cent of throughput per per cent of
    /// latency), with that repair.
    pub tradeoff_relative: f64,
    /// 99th percentile of the explored targets as a multiple of the optimum (above 1).
    pub exploration_p99_factor: f64,
    /// Switches: the known defects of the published SlowFast CoDel that are repaired.
    pub repairs: Repairs,
}

impl Default for SlowFastConfig {
    fn default() -> Self {
        Self::PUBLISHED
    }
}

impl SlowFastConfig {
    /// The constants of the published algorithm, whose known defects are not repaired.
    pub const PUBLISHED: Self = Self {
        fast_interval: Duration::from_millis(50),
        slow_interval: Duration::from_millis(500),
        target_initial: Duration::from_millis(5),
        target_min: Duration::from_millis(1),
        target_max: Duration::from_secs(1),
        budget_initial_bytes: 100 << 10,
        budget_min_bytes: 100 << 10,
        budget_max_bytes: 1 << 30,
        budget_increment_bytes: 10 << 10,
        budget_decrease_floor: 0.5,
        budget_headroom: 1.5,
        history_samples: 100,
        tradeoff_mib_per_s_per_ms: 0.1,
        tradeoff_relative: 0.1,
        exploration_p99_factor: 5.0,
        repairs: Repairs::NONE,
    };

    /// The published constants with every defect repaired.
    pub const REPAIRED: Self = Self { repairs: Repairs::ALL, ..Self::PUBLISHED };

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not make sense, and its required value.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let positive = |x: f64| x > 0.0 && x.is_finite();
        InvalidConfig::check(&[
            (self.fast_interval >= MIN_INTERVAL, "fast_interval", "at least 1 us"),
            (self.slow_interval >= self.fast_interval, "slow_interval", "at least fast_interval"),
            (self.target_min >= MIN_INTERVAL, "target_min", "at least 1 us"),
            (self.target_max > self.target_min, "target_max", "greater than target_min"),
            (
                (self.target_min..=self.target_max).contains(&self.target_initial),
                "target_initial",
                "from target_min to target_max",
            ),
            (self.budget_min_bytes > 0, "budget_min", "greater than 0"),
            (self.budget_max_bytes >= self.budget_min_bytes, "budget_max", "at least budget_min"),
            (
                (self.budget_min_bytes..=self.budget_max_bytes).contains(&self.budget_initial_bytes),
                "budget_initial",
                "from budget_min to budget_max",
            ),
            (self.budget_increment_bytes > 0, "budget_increment", "greater than 0"),
            (
                positive(self.budget_decrease_floor) && self.budget_decrease_floor < 1.0,
                "budget_decrease_floor",
                "between 0 and 1",
            ),
            (self.budget_headroom >= 1.0 && self.budget_headroom.is_finite(), "budget_headroom", "at least 1"),
            ((2..=MAX_HISTORY).contains(&self.history_samples), "history_samples", "from 2 to 10000"),
            (positive(self.tradeoff_mib_per_s_per_ms), "tradeoff_mib_per_s_per_ms", "greater than 0"),
            (positive(self.tradeoff_relative), "tradeoff_relative", "greater than 0"),
            (
                self.exploration_p99_factor > 1.0 && self.exploration_p99_factor.is_finite(),
                "exploration_p99_factor",
                "greater than 1",
            ),
        ])
    }

    /// The same settings, moved into range where [`SlowFastConfig::validate`] would refuse them.
    pub(super) fn in_range(self) -> Self {
        let between = |low: f64, high: f64, x: f64, otherwise: f64| if low < x && x < high { x } else { otherwise };
        let (infinity, published) = (f64::INFINITY, Self::PUBLISHED);
        let fast_interval = self.fast_interval.max(MIN_INTERVAL);
        let target_min = self.target_min.max(MIN_INTERVAL);
        let target_max = self.target_max.max(target_min + Duration::from_nanos(1));
        let budget_min_bytes = self.budget_min_bytes.max(1);
        let budget_max_bytes = self.budget_max_bytes.max(budget_min_bytes);
        Self {
            fast_interval,
            slow_interval: self.slow_interval.max(fast_interval),
            target_initial: self.target_initial.clamp(target_min, target_max),
            target_min,
            target_max,
            budget_initial_bytes: self.budget_initial_bytes.clamp(budget_min_bytes, budget_max_bytes),
            budget_min_bytes,
            budget_max_bytes,
            budget_increment_bytes: self.budget_increment_bytes.max(1),
            budget_decrease_floor: between(0.0, 1.0, self.budget_decrease_floor, published.budget_decrease_floor),
            budget_headroom: between(0.0, infinity, self.budget_headroom, published.budget_headroom).max(1.0),
            history_samples: self.history_samples.clamp(2, MAX_HISTORY),
            tradeoff_mib_per_s_per_ms: between(
                0.0,
                infinity,
                self.tradeoff_mib_per_s_per_ms,
                published.tradeoff_mib_per_s_per_ms,
            ),
            tradeoff_relative: between(0.0, infinity, self.tradeoff_relative, published.tradeoff_relative),
            exploration_p99_factor: between(
                1.0,
                infinity,
                self.exploration_p99_factor,
                published.exploration_p99_factor,
            ),
            repairs: self.repairs,
        }
    }
}

/// Declares the struct of switches from one list of their names, so that each is written once.
macro_rules! switches {
    ($($(#[$attribute:meta])* $name:ident,)*) => {
        /// A switch for each known defect of the published SlowFast CoDel: `true` repairs the defect, `false` keeps it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Repairs {
            $($(#[$attribute])* pub $name: bool,)*
        }

        impl Repairs {
            /// No repairs: the published form with all its defects.
            pub const NONE: Self = Self { $($name: false,)* };
            /// Every known defect repaired.
            pub const ALL: Self = Self { $($name: true,)* };
            /// Name of each switch, with access to its field.
            #[cfg(feature = "serde")]
            pub(super) const SWITCHES: &[(&str, fn(&mut Self) -> &mut bool)] =
                &[$((stringify!($name), |repairs| &mut repairs.$name),)*];
            #[cfg(feature = "serde")]
            pub(super) const NAMES: &[&str] = &[$(stringify!($name),)*];
        }
    };
}

switches! {
    /// Defect: no fit for `history_samples` slow intervals (50 s). Repair: fit from 10 samples on.
    early_fit,
    /// Defect: 10 KiB an interval take 327 s from 100 KiB to 64 MiB. Repair: grow in proportion to budget and latency
    /// margin, mirroring the decrease.
    proportional_growth,
    /// Defect: a history at one target divides by zero, and the garbage target keeps it there. Repair: without a curve
    /// the optimum stays; it never leaves the range of targets that were tried.
    guarded_fit,
    /// Defect: an optimum at the minimum target makes the exploration take ln(0), and it stops for ever. Repair: keep
    /// the mode of the draw above the minimum.
    floored_mode,
    /// Defect: light load looks like a flat curve, which pins the target at its minimum, where it stays when the load
    /// returns. Repair: learn only from intervals in which the budget was the limit, and hold the optimum otherwise.
    app_limited,
    /// Defect: a trade-off in MiB/s per ms means something else on every device. Repair: throughput and latency in
    /// units of their means.
    relative_tradeoff,
    /// Defect: targets are drawn up to 5 times the optimum for ever. Repair: the spread halves with each fit that
    /// agrees with the last, down to 1.25 times, and opens again when one does not.
    settling_exploration,
    /// Defect: a draw below the optimum is pushed further down. Repair: it is pulled towards the optimum.
    pull_towards_optimum,
    /// Defect: below the latency that the smallest budget gives, all targets have the same throughput; this looks like
    /// a flat curve and keeps the target there. Repair: such an interval counts at the latency it showed, and the
    /// optimum rises to it.
    feasible_target,
    /// Defect: where requests take longer than a fast interval, latencies from before a cut cause the next one, down to
    /// the minimum and back. Repair: after a change of the budget only requests admitted since then count.
    await_effect,
    /// Defect: real curves bend more sharply than a logarithm, so samples far below the knee tilt the fit for all that
    /// lies above it, and the target runs away upwards. Repair: only samples within a factor of 3 of the optimum count,
    /// if they are enough for a fit.
    local_fit,
}
