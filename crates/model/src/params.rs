//! Errors in the parameters of a model.

use core::fmt;

use evenkeel_control::Duration;

/// A parameter of a model that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidParams {
    /// Number of RAID-0 levels above the device that has the parameter.
    pub depth: u32,
    /// The key of the parameter in TOML: the field's name, mostly without its unit.
    pub parameter: &'static str,
    /// The rule that the parameter breaks, worded to follow "must be".
    pub must_be: &'static str,
}

impl fmt::Display for InvalidParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.depth).try_for_each(|_| f.write_str("member."))?;
        write!(f, "{} must be {}", self.parameter, self.must_be)
    }
}

impl core::error::Error for InvalidParams {}

/// Fails with the first broken rule of `rules`; a rule is (holds, parameter, text after "must be").
pub(crate) fn check(rules: &[(bool, &'static str, &'static str)]) -> Result<(), InvalidParams> {
    match rules.iter().find(|(holds, ..)| !holds) {
        None => Ok(()),
        Some(&(_, parameter, must_be)) => Err(InvalidParams { depth: 0, parameter, must_be }),
    }
}

/// A function that divides a time by `speed`, for a device `speed` times as fast.
pub(crate) fn faster_time(speed: f64) -> impl Fn(Duration) -> Duration {
    move |time| Duration::from_nanos((time.as_nanos() as f64 / speed) as u64)
}

/// A function that multiplies a rate by `speed`, for a device `speed` times as fast; at least 1.
pub(crate) fn faster_rate(speed: f64) -> impl Fn(u64) -> u64 {
    move |rate| ((rate as f64 * speed) as u64).max(1)
}
