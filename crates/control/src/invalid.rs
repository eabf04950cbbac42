//! Faults of a configuration.

use core::fmt;

/// A setting that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    /// Its name.
    pub setting: &'static str,
    /// The rule that it breaks.
    pub must_be: &'static str,
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.setting, self.must_be)
    }
}

impl core::error::Error for InvalidConfig {}
