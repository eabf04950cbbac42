//! Slots of pools: how they are written.

use evenkeel_control::slots as control;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Pool};
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

    fn method(self) -> control::Method {
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

/// Slots of a pool, if tenants have bounds. `period`: how often other hosts report, if there are any.
pub(crate) fn of(pool: &Pool, period: Option<Duration>) -> Option<control::Config> {
    let tuning = &pool.tuning;
    if tuning.slots == Slots::None {
        return None;
    }
    let published = || control::Config::published(tuning.slots.method(), Duration::ZERO, 0.0).period;
    let own = if tuning.slots == Slots::Needs { control::Config::NEEDS.period } else { published() };
    let own = tuning.slots_period.map_or(own, Into::into);
    Some(tuning.slots.control(period.unwrap_or(own), tuning.slots_latency, tuning.slots_most))
}

impl Config {
    /// A pool as its state machine wants it.
    pub fn control(&self, pool: &Pool) -> evenkeel_control::pool::Config {
        let period = (!self.exchange.etcd.is_empty()).then_some(self.exchange.period);
        evenkeel_control::pool::Config { slots: of(pool, period), ..pool.into() }
    }
}
