//! Faults of a configuration.

use core::fmt;

/// A setting whose value is out of range, or does not fit other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    /// Name of the setting that is at fault.
    pub setting: &'static str,
    /// The rule that the setting's value breaks, in words that complete "the setting must be …".
    pub must_be: &'static str,
}

/// A rule for a setting: true if the rule holds, the setting's name, and the required value in words.
pub(crate) type Rule = (bool, &'static str, &'static str);

impl InvalidConfig {
    /// Checks `rules` in their order.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub(crate) fn check(rules: &[Rule]) -> Result<(), Self> {
        match rules.iter().find(|(holds, ..)| !holds) {
            None => Ok(()),
            Some(&(_, setting, must_be)) => Err(Self { setting, must_be }),
        }
    }
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.setting, self.must_be)
    }
}

impl core::error::Error for InvalidConfig {}
