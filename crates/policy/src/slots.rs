//! Slots of pools: how they are written.

use evenkeel_control::slots as control;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Duration;

/// How the slots of a device are shared out between its tenants, on all hosts that share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Slots {
    /// No tenant has a bound.
    #[default]
    None,
    /// A fixed total by weight.
    Rwd,
    /// A window for each tenant that follows the device's latency.
    Parda,
    /// A fixed total for all together; for simulations alone.
    #[schemars(skip)]
    SfqD,
    /// By need, smallest first, as published.
    Drg,
    /// By need: all targets with equal margins while that can be done.
    Needs,
}

impl Slots {
    /// In the controller's words: decided once in `period`; `latency` and `most` as in the configuration of a pool.
    pub fn control(self, period: Duration, latency: Option<Duration>, most: u32) -> control::Config {
        let (ours, most) = (control::Config::NEEDS, f64::from(most));
        control::Config { method: self.method(), period, latency, least: ours.least.min(most), most }
    }

    /// The method in the controller's words.
    pub(crate) fn method(self) -> control::Method {
        match self {
            Self::None => control::Method::None,
            Self::Rwd => control::Method::Rwd,
            Self::Parda => control::Method::Parda,
            Self::SfqD => control::Method::SfqD,
            Self::Drg => control::Method::Drg,
            Self::Needs => control::Method::Needs,
        }
    }
}
