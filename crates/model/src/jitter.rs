//! Latency that varies from request to request.

use evenkeel_control::Duration;
use evenkeel_control::rng::SplitMix64;

/// Distribution of a latency around its nominal value, which is the mean in all variants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Jitter {
    /// No variation.
    #[default]
    None,
    /// Uniform within ± `spread` (0 to 1) of the nominal value.
    Uniform {
        /// Half width as a fraction of the nominal value.
        spread: f64,
    },
    /// Lognormal, with a long tail as on real devices.
    LogNormal {
        /// Standard deviation of the latency's natural logarithm (0 to 2); 0.25 puts the p99 at 1.7 times the nominal value.
        sigma: f64,
    },
}

impl Jitter {
    /// True if the parameters are in range.
    pub fn is_valid(&self) -> bool {
        match *self {
            Self::None => true,
            Self::Uniform { spread } => (0.0..=1.0).contains(&spread),
            Self::LogNormal { sigma } => (0.0..=2.0).contains(&sigma),
        }
    }

    /// A random latency with the mean `nominal`.
    pub fn apply(&self, nominal: Duration, rng: &mut SplitMix64) -> Duration {
        let factor = match *self {
            Self::None => return nominal,
            Self::Uniform { spread } => 1.0 + spread * (2.0 * rng.next_f64() - 1.0),
            Self::LogNormal { sigma } => libm::exp(sigma * rng.next_normal() - sigma * sigma / 2.0),
        };
        // The cast takes what is negative or not a number to 0.
        Duration::from_nanos((nominal.as_nanos() as f64 * factor) as u64)
    }
}
