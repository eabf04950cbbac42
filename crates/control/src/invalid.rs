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

/// True if a rule holds; the setting that it is about; its required value.
pub(crate) type Rule = (bool, &'static str, &'static str);

impl InvalidConfig {
    /// Checks rules in turn.
    ///
    /// # Errors
    /// The first one that does not hold.
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
