//! Settings of the slot controller.

use crate::invalid::InvalidConfig;
use crate::time::Duration;

/// The method by which the slots of a device are shared out to its tenants, on all hosts that share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"), schemars(rename = "Slots"))]
pub enum Method {
    /// No bound on a tenant's requests in flight.
    #[default]
    None,
    /// A fixed total of slots, divided by weight.
    Rwd,
    /// A window for each tenant that follows the device's latency.
    Parda,
    /// A fixed total for all together; for simulations alone.
    #[cfg_attr(feature = "serde", schemars(skip))]
    SfqD,
    /// By need, which is the slots that a tenant takes to meet its target: the smallest needs first, as published.
    Drg,
    /// [`Method::Drg`] with the other reading of the paper's equation (4.1), a moving average; for simulations alone.
    #[cfg_attr(feature = "serde", schemars(skip))]
    DrgSmoothed,
    /// By need, as [`Method::Drg`], but so that the latencies of all tenants are the same fraction of their targets while that
    /// can be done.
    Needs,
}

crate::named!(Method: None "none", Rwd "rwd", Parda "parda", SfqD "sfq_d", Drg "drg",
    DrgSmoothed "drg_smoothed", Needs "needs");

/// Settings of a [`Controller`](super::Controller).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The method by which slots are shared out.
    pub method: Method,
    /// Time between two decisions (10 ms to 60 s).
    pub period: Duration,
    /// Mean device latency at which the total number of slots aims (10 us to 100 s). `None`: [`Method::Needs`] chooses one,
    /// other methods aim at half of the smallest target.
    pub latency: Option<Duration>,
    /// Smallest number of slots of all workloads together, with which methods without a fixed total begin (1 to 1e6).
    pub least: f64,
    /// Largest number of slots of all workloads together, and the total of methods with a fixed one (`least` to 1e6).
    pub most: f64,
}

impl Config {
    /// Settings as in the publications of the methods: one decision a second.
    pub const fn published(method: Method, latency: Duration, most: f64) -> Self {
        Self { method, period: Duration::from_secs(1), latency: Some(latency), least: 4.0, most }
    }

    /// The defaults of [`Method::Needs`]: ten decisions a second.
    pub const NEEDS: Self =
        Self { method: Method::Needs, period: Duration::from_millis(100), latency: None, least: 4.0, most: 4096.0 };

    /// Settings from a configuration: one decision each `period`; `least` is that of [`Self::NEEDS`], or `most` if smaller.
    pub fn configured(method: Method, period: Duration, latency: Option<Duration>, most: u32) -> Self {
        let most = f64::from(most);
        Self { method, period, latency, least: Self::NEEDS.least.min(most), most }
    }

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not make sense, and its required value.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let periods = Duration::from_millis(10)..=Duration::from_secs(60);
        let latencies = Duration::from_micros(10)..=Duration::from_secs(100);
        InvalidConfig::check(&[
            (periods.contains(&self.period), "period", "from 10 ms to 60 s"),
            (self.latency.is_none_or(|latency| latencies.contains(&latency)), "latency", "from 10 us to 100 s"),
            ((1.0..=1e6).contains(&self.least), "least", "from 1 to 1,000,000"),
            ((self.least..=1e6).contains(&self.most), "most", "at least `least`, at most 1,000,000"),
        ])
    }
}
