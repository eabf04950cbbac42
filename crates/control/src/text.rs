//! Quantities as people write them: `"64KiB"`, `"50ms"`.
//!
//! Each type of quantity parses from text, prints as text that parses back to the same value, and says in its error which
//! form is expected.

#[doc(hidden)]
pub use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::num::IntErrorKind;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::time::Duration;

/// The error for a text that is not a quantity of the expected type; the message says which form is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError(String);

impl UnitError {
    /// An error with this message.
    pub fn new(message: String) -> Self {
        Self(message)
    }
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for UnitError {}

/// A number of bytes.
///
/// Written as an integer or as a number with a unit. `K`, `M`, `G`, `T` and `KiB`, `MiB`, `GiB`, `TiB` count in
/// steps of 1024 (as qemu and fio do), `kB`, `MB`, `GB`, `TB` in steps of 1000. A fraction is allowed where it
/// makes whole bytes: `"1.5GiB"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

const BYTE_UNITS: [(&str, u64); 15] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("P", 1 << 50),
];

const TIME_UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Reason for which a text is no quantity.
enum Misfit {
    /// The text is no number with a known unit, or no whole number of the smallest unit.
    Form,
    /// The quantity, in the smallest unit (bytes or ns), does not fit 64 bits.
    Large,
}

/// Splits `text` into a decimal number and a unit, and multiplies the number exactly by the factor that `unit` gives.
fn scaled(text: &str, unit: impl FnOnce(&str) -> Option<u64>) -> Result<u64, Misfit> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let factor = u128::from(unit(text[end..].trim()).ok_or(Misfit::Form)?);
    let number = text[..end].replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    // 18 digits keep the products below 2^128.
    if whole.is_empty() || fraction.len() > 18 || number.ends_with('.') {
        return Err(Misfit::Form);
    }
    let whole = whole.parse::<u64>().map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow => Misfit::Large,
        _ => Misfit::Form,
    })?;
    let parts = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().map_err(|_| Misfit::Form)? };
    let divisor = 10u128.pow(fraction.len() as u32);
    let fractional = u128::from(parts) * factor;
    if fractional % divisor != 0 {
        return Err(Misfit::Form);
    }
    u64::try_from(u128::from(whole) * factor + fractional / divisor).map_err(|_| Misfit::Large)
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let unit = |unit: &str| {
            if unit.is_empty() {
                return Some(1);
            }
            let found = BYTE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
            found.map(|&(_, factor)| factor)
        };
        scaled(text, unit).map(Self).map_err(|misfit| {
            UnitError(match misfit {
                Misfit::Large => format!("{text:?} is too large; write less than 16384PiB"),
                Misfit::Form => format!(
                    "{text:?} is not a number of whole bytes; write for example 4096, \"64KiB\" (= \"64K\", 1024 each) or \"200MB\" (1000 each)"
                ),
            })
        })
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Spelled-out units only; of those that divide evenly the largest.
        let fits = BYTE_UNITS[1..10].iter().filter(|&&(_, factor)| self.0 > 0 && self.0.is_multiple_of(factor));
        match fits.max_by_key(|&&(_, factor)| factor) {
            Some(&(unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for Duration {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let unit = |unit: &str| TIME_UNITS.iter().find(|&&(name, _)| name == unit).map(|&(_, factor)| factor);
        let nanos = if text.trim() == "0" { Ok(0) } else { scaled(text, unit) };
        nanos.map(Self::from_nanos).map_err(|misfit| {
            UnitError(match misfit {
                Misfit::Large => format!("{text:?} is too long; write less than 200000d"),
                Misfit::Form => format!(
                    "{text:?} is not a length of time; write a number with a unit, for example \"50ms\", \"2s\" or \"5m\""
                ),
            })
        })
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.as_nanos();
        let fits = TIME_UNITS.iter().filter(|&&(_, factor)| nanos.is_multiple_of(factor));
        match fits.max_by_key(|&&(_, factor)| factor) {
            Some(&(unit, factor)) if nanos > 0 => write!(f, "{}{unit}", nanos / factor),
            _ => f.write_str("0s"),
        }
    }
}

/// Reads a value that is written as text, or as an integer if `integer` is set.
#[doc(hidden)]
pub struct TextVisitor<T> {
    pub expecting: &'static str,
    pub integer: Option<fn(u64) -> Result<T, UnitError>>,
}

impl<T: FromStr<Err = UnitError>> de::Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        match self.integer {
            Some(make) => make(n).map_err(E::custom),
            None => Err(E::invalid_type(de::Unexpected::Unsigned(n), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        match u64::try_from(n) {
            Ok(n) => self.visit_u64(n),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
        }
    }
}

/// Implements `serde` and JSON schema for a type in its text form (`Display` and `FromStr`).
#[macro_export]
macro_rules! as_text {
    ($type:ident, $expecting:literal, $integer:expr, $schema:tt) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::text::TextVisitor { expecting: $expecting, integer: $integer })
            }
        }

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> $crate::text::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}

crate::as_text!(Bytes, "a number of bytes such as 4096, \"64KiB\" or \"200MB\"", Some(|n| Ok(Bytes(n))), {
    "type": ["string", "integer"],
    "minimum": 0,
    "pattern": r"^[0-9][0-9_]*(\.[0-9]+)? ?([KMGTPkmgtp]([Ii]?[Bb])?|[Bb])?$"
});
crate::as_text!(Duration, "a length of time such as \"50ms\" or \"2s\"", None, {
    "type": "string",
    "pattern": r"^(0|[0-9][0-9_]*(\.[0-9]+)? ?(ns|us|ms|s|m|h|d))$"
});

/// Text form of an integer field that holds bytes or bytes per second: written and read like [`Bytes`]. For
/// `#[serde(with = "AsBytes")]`.
pub struct AsBytes;

impl AsBytes {
    /// Writes a number of bytes as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &(impl Copy + Into<u64>), serializer: S) -> Result<S::Ok, S::Error> {
        Bytes((*bytes).into()).serialize(serializer)
    }

    /// Reads a number of bytes.
    ///
    /// # Errors
    /// A value that is no number of bytes, or too large for the field.
    pub fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        let bytes = Bytes::deserialize(deserializer)?;
        bytes.0.try_into().map_err(|_| de::Error::custom("must be less than 4GiB"))
    }
}

impl schemars::JsonSchema for AsBytes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Bytes::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Bytes::json_schema(generator)
    }
}
