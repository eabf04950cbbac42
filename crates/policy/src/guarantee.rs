//! Throughput guarantees of tenants: their settings, and the conversion to the controller's types.

use evenkeel_control::pool::guarantee::Throughputs;
use evenkeel_control::throughput::{self, Method, Rate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tenant::{Direction, Guarantee};
use crate::units::{Bytes, Duration, Rates};

/// The devices of which a cached device is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CachedDevice {
    /// The slow device, by path or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<String>,
    /// The fast device, by path or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast: Option<String>,
    /// Throughput of the slow device, in bytes per second; without this key estimated while it is busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_bytes_per_s: Option<Bytes>,
}

/// Method and settings of throughput guarantees of control groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GuaranteeTuning {
    /// Assignment of limits; "saat": as published; "static": limit = guarantee.
    pub method: Method,
    /// Time in which the guarantee is due, "50ms" to "60s".
    pub period: Duration,
    /// Control interval of "accurate"; the others decide once in a period.
    pub interval: Duration,
    /// Largest limit ÷ guarantee.
    pub max_raise: f64,
}

impl Default for GuaranteeTuning {
    fn default() -> Self {
        Self {
            method: Method::Accurate,
            period: Duration::from_secs(1),
            interval: Duration::from_millis(100),
            max_raise: throughput::Config::DEFAULT.max_raise,
        }
    }
}

impl GuaranteeTuning {
    /// Time between decisions: the setting `interval` for the method "accurate"; other methods decide once per period.
    pub fn every(&self) -> Duration {
        let often = self.method == Method::Accurate && self.interval < self.period;
        if often { self.interval } else { self.period }
    }

    /// The settings as the controller's type. `slow_bytes_per_s` is the rate of the slow device behind a cache, if it is set.
    pub fn control(&self, slow_bytes_per_s: Option<Bytes>) -> throughput::Config {
        throughput::Config {
            method: self.method,
            interval: self.every(),
            window: self.period,
            slow_bytes_per_s: slow_bytes_per_s.map(|bytes| bytes.0),
            max_raise: self.max_raise,
        }
    }

    /// The fault of these settings or of the slow device's rate: its key in a pool's `tuning`, and a message with the remedy.
    /// `None` without a fault.
    pub(crate) fn fault(&self, slow_bytes_per_s: Option<Bytes>) -> Option<([&'static str; 2], String)> {
        let invalid = throughput::Controller::new(&self.control(slow_bytes_per_s)).err()?;
        let keys = match invalid.setting {
            "interval" if self.every() != self.period => ["guarantee", "interval"],
            "interval" | "window" => ["guarantee", "period"],
            "slow_bytes_per_s" => ["cache", "slow_bytes_per_s"],
            other => ["guarantee", other],
        };
        Some((keys, format!("must be {}", invalid.must_be)))
    }
}

impl Direction {
    /// The guaranteed rates.
    pub const fn rates(self) -> Rates {
        Rates { iops: self.iops, bytes_per_s: self.bytes_per_s }
    }

    /// True if no rate is guaranteed.
    pub fn is_unset(&self) -> bool {
        self.rates().is_unset()
    }

    /// The guarantee as the controller's type; `None` if no rate is set. The byte rate counts if it is set, otherwise the request
    /// rate: both cannot be guaranteed.
    pub fn control(self) -> Option<throughput::Bounds> {
        let guaranteed = rate(self.rates())?;
        Some(throughput::Bounds { guaranteed, ceiling: self.ceiling.map(|ceiling| ceiling.0) })
    }
}

impl From<Rates> for Direction {
    fn from(rates: Rates) -> Self {
        Self { iops: rates.iops, bytes_per_s: rates.bytes_per_s, ceiling: None }
    }
}

/// The guaranteed rate: the byte rate if it is set, otherwise the request rate; `None` if neither is set.
fn rate(guarantee: Rates) -> Option<Rate> {
    match (guarantee.bytes_per_s.0, guarantee.iops) {
        (0, 0) => None,
        (0, iops) => Some(Rate::RequestsPerS(iops)),
        (bytes_per_s, _) => Some(Rate::BytesPerS(bytes_per_s)),
    }
}

impl Guarantee {
    /// The rates that are guaranteed for reads and writes together.
    pub const fn together(&self) -> Rates {
        Rates { iops: self.iops, bytes_per_s: self.bytes_per_s }
    }

    /// The sum of all guaranteed rates: those for all requests, for reads, and for writes.
    pub fn sum(&self) -> Rates {
        [self.read.rates(), self.write.rates()].into_iter().fold(self.together(), |sum, one| Rates {
            iops: sum.iops.saturating_add(one.iops),
            bytes_per_s: Bytes(sum.bytes_per_s.0.saturating_add(one.bytes_per_s.0)),
        })
    }

    /// The guarantees as the controller's type. A byte rate counts if it is set, otherwise the request rate: both cannot be
    /// guaranteed.
    pub fn control(&self) -> Throughputs {
        Throughputs { all: rate(self.together()), read: rate(self.read.rates()), write: rate(self.write.rates()) }
    }
}
