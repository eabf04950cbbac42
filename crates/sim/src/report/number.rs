//! Formatting of numbers for report pages and terminals.

use serde::{Serialize, Serializer};

/// A number that a page shows, serialised with six significant digits, which is more than a plot resolves; a number
/// that is not finite becomes `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decimal(pub f64);

impl From<f64> for Decimal {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.0.is_finite() {
            return serializer.serialize_none();
        }
        // Through text: the nearest number with six digits, which JSON then writes as such.
        let rounded: f64 = format!("{:.5e}", self.0).parse().unwrap_or(self.0);
        if rounded.fract() == 0.0 && rounded.abs() < 1e15 {
            serializer.serialize_i64(rounded as i64)
        } else {
            serializer.serialize_f64(rounded)
        }
    }
}

/// The number as text with at least four significant digits: `0.01234`, `1.234`, `123.4`, `12345`.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = libm::log10(value.abs()).floor() as i32;
    if !(-5..15).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let text = format!("{value:.*}", usize::try_from(3 - magnitude).unwrap_or(0));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
