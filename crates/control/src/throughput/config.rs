//! Settings of the throughput controller.

pub use crate::invalid::InvalidConfig;

use super::{Bounds, Guarantee};
use crate::time::Duration;

/// Upper bound on [`Config::interval`] and on [`Config::window`].
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// The method by which limits are assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"), schemars(rename = "GuaranteeMethod"))]
pub enum Method {
    /// The guarantee is the limit, as people do it by hand.
    Static,
    /// The published equations.
    Saat,
    /// Learns the throughput that a limit yields, and makes up for missing throughput in later windows.
    #[default]
    Accurate,
}

crate::named!(Method: Static "static", Saat "saat", Accurate "accurate");

/// Settings of the controller of one cached device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The method by which limits are assigned.
    pub method: Method,
    /// Time between two calls of [`Controller::tick`](super::Controller::tick), 50 ms to 60 s. [`Method::Saat`] was published
    /// with 1 s; [`Method::Accurate`] meets the guarantee in each [window](Self::window) of several intervals.
    pub interval: Duration,
    /// [`Method::Accurate`] meets the guarantee over each window of this length (50 ms to 60 s); a window shorter than
    /// [`Self::interval`] counts as one interval.
    pub window: Duration,
    /// Bandwidth of the slow device in bytes per second, if it was measured (1 or more); `None`: it is estimated.
    pub slow_bytes_per_s: Option<u64>,
    /// An assigned limit is at most this many times the guarantee (1 to 100).
    pub max_raise: f64,
}

impl Config {
    /// [`Method::Accurate`] once a second, the slow device's bandwidth estimated, limits at most four times the guarantee.
    pub const DEFAULT: Self = Self {
        method: Method::Accurate,
        interval: Duration::from_secs(1),
        window: Duration::from_secs(1),
        slow_bytes_per_s: None,
        max_raise: 4.0,
    };

    /// Checks that the settings make sense.
    ///
    /// # Errors
    /// The first setting that does not make sense, and its required value.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let interval = Duration::from_millis(50)..=LONGEST;
        InvalidConfig::check(&[
            (interval.contains(&self.interval), "interval", "from 50 ms to 60 s"),
            (interval.contains(&self.window), "window", "from 50 ms to 60 s"),
            (self.slow_bytes_per_s != Some(0), "slow_bytes_per_s", "1 or more, or left out"),
            ((1.0..=100.0).contains(&self.max_raise), "max_raise", "from 1 to 100"),
        ])
    }

    /// The length of a window in seconds; at least [`Self::interval`].
    pub(super) fn window_s(&self) -> f64 {
        self.window.as_secs_f64().max(self.interval.as_secs_f64())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

pub(super) fn validate_guarantee(guarantee: &Guarantee) -> Result<(), InvalidConfig> {
    let bounds = || [guarantee.read, guarantee.write].into_iter().flatten();
    let above = |bounds: &Bounds| bounds.ceiling.is_none_or(|ceiling| ceiling >= bounds.guaranteed.value());
    InvalidConfig::check(&[
        (bounds().all(|bounds| bounds.guaranteed.value() > 0), "guarantee", "above 0"),
        (bounds().all(|bounds| above(&bounds)), "ceiling", "at least the guarantee"),
        (guarantee.weight > 0.0 && guarantee.weight <= 1e6, "weight", "above 0 and at most 1000000"),
    ])
}
