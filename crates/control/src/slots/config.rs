//! Settings.

use crate::invalid::InvalidConfig;
use crate::time::Duration;

/// How slots are shared out, by the names that users give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// No workload has a bound.
    None,
    /// RW(D): a fixed total in proportion to weights (Jin and Chase).
    Rwd,
    /// A window for each workload that follows the device's latency (PARDA; Gulati, Ahmad and Waldspurger).
    Parda,
    /// SFQ(D): a fixed total for all together, in the order of weighted fair queueing (Jin and Chase).
    SfqD,
    /// As published (Liu, Xu and Yang).
    Drg,
    /// Ours: targets met with equal margins while that can be done.
    Needs,
}

impl Method {
    /// Every method, as the documentation lists them.
    pub const ALL: [Self; 6] = [Self::None, Self::Rwd, Self::Parda, Self::SfqD, Self::Drg, Self::Needs];

    /// Name in configuration and results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Rwd => "rwd",
            Self::Parda => "parda",
            Self::SfqD => "sfq_d",
            Self::Drg => "drg",
            Self::Needs => "needs",
        }
    }

    /// True if a host needs the summaries of the others: the others of these need nothing but their own figures.
    pub const fn needs_cluster(self) -> bool {
        matches!(self, Self::Drg | Self::Needs)
    }
}

/// Settings of a [`Controller`](super::Controller).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// How slots are shared out.
    pub method: Method,
    /// How often (10 ms to 60 s).
    pub period: Duration,
    /// Mean latency of the device that the total aims at (10 us to 100 s). `None`: found ([`Method::Needs`]), or half of the
    /// smallest target.
    pub latency: Option<Duration>,
    /// All slots together: never fewer, and with how many to begin (1 to 1e6).
    pub least: f64,
    /// All slots together: never more, and what methods with a fixed total have (at least `least`, at most 1e6).
    pub most: f64,
}

impl Config {
    /// As published: periods of a second.
    pub const fn published(method: Method, latency: Duration, most: f64) -> Self {
        Self { method, period: Duration::from_secs(1), latency: Some(latency), least: 4.0, most }
    }

    /// Ours: ten times a second.
    pub const NEEDS: Self =
        Self { method: Method::Needs, period: Duration::from_millis(100), latency: None, least: 4.0, most: 4096.0 };

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not, and what would be right.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let within = |d: Duration, least: Duration, most: Duration| (least..=most).contains(&d);
        let rules = [
            (within(self.period, Duration::from_millis(10), Duration::from_secs(60)), "period", "from 10 ms to 60 s"),
            (
                self.latency.is_none_or(|l| within(l, Duration::from_micros(10), Duration::from_secs(100))),
                "latency",
                "from 10 us to 100 s",
            ),
            ((1.0..=1e6).contains(&self.least), "least", "from 1 to 1,000,000"),
            (
                (1.0..=1e6).contains(&self.most) && self.most >= self.least,
                "most",
                "at least `least`, at most 1,000,000",
            ),
        ];
        match rules.iter().find(|(holds, ..)| !holds) {
            Some(&(_, setting, must_be)) => Err(InvalidConfig { setting, must_be }),
            None => Ok(()),
        }
    }
}
