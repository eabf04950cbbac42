//! Quantities as people write them: `"64KiB"`, `"50ms"`, `{ iops = 5000, bytes_per_s = "200MB" }`, `"10.0.0.0/8"`.
//!
//! Each parses from text, prints as text that parses back to the same value, and
//! says in its error what would have been right.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de};

/// A text that is not the quantity it should be; the message says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

impl UnitError {
    pub(crate) fn new(message: String) -> Self {
        Self(message)
    }
}

/// A number of bytes.
///
/// Written as an integer or as a number with a unit. `K`, `M`, `G`, `T` and `KiB`, `MiB`, `GiB`, `TiB` count in
/// steps of 1024 (as qemu and fio do), `kB`, `MB`, `GB`, `TB` in steps of 1000. A fraction is allowed where it
/// makes whole bytes: `"1.5GiB"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A length of time, written as a number with one of the units `ns`, `us`, `ms`, `s`, `m`, `h`, `d`: `"50ms"`, `"1.5s"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub evenkeel_control::Duration);

/// A pair of rates that hold together; a rate left out (or 0) is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// Requests per second; 0 = not set.
    pub iops: u64,
    /// Payload bytes per second, for example "200MB"; 0 = not set.
    pub bytes_per_s: Bytes,
}

/// A block of IP addresses: `"10.1.0.0/16"`, `"fd00::/8"`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

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

/// Splits `text` into a decimal number and a unit and multiplies them exactly; `None` if it is no such thing, does
/// not come out whole or does not fit.
fn scaled(text: &str, unit: impl FnOnce(&str) -> Option<u64>) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let factor = u128::from(unit(text[end..].trim())?);
    let number = text[..end].replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    // 18 digits keep the products below 2^128.
    if whole.is_empty() || fraction.len() > 18 || number.ends_with('.') {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?;
    let parts = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    let divisor = 10u128.pow(fraction.len() as u32);
    let fractional = u128::from(parts) * factor;
    if fractional % divisor != 0 {
        return None;
    }
    u64::try_from(u128::from(whole) * factor + fractional / divisor).ok()
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
        scaled(text, unit).map(Self).ok_or_else(|| {
            UnitError(format!(
                "{text:?} is not a number of whole bytes; write for example 4096, \"64KiB\" (= \"64K\", 1024 each) or \"200MB\" (1000 each)"
            ))
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
        let nanos = if text.trim() == "0" { Some(0) } else { scaled(text, unit) };
        nanos.map(|n| Self(evenkeel_control::Duration::from_nanos(n))).ok_or_else(|| {
            UnitError(format!(
                "{text:?} is not a length of time; write a number with a unit, for example \"50ms\", \"2s\" or \"5m\""
            ))
        })
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let fits = TIME_UNITS.iter().filter(|&&(_, factor)| nanos.is_multiple_of(factor));
        match fits.max_by_key(|&&(_, factor)| factor) {
            Some(&(unit, factor)) if nanos > 0 => write!(f, "{}{unit}", nanos / factor),
            _ => f.write_str("0s"),
        }
    }
}

impl Duration {
    /// A duration of `n` microseconds.
    pub const fn from_micros(n: u64) -> Self {
        Self(evenkeel_control::Duration::from_micros(n))
    }

    /// A duration of `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self(evenkeel_control::Duration::from_millis(n))
    }

    /// A duration of `n` seconds.
    pub const fn from_secs(n: u64) -> Self {
        Self(evenkeel_control::Duration::from_secs(n))
    }

    /// Whether it is no time at all.
    pub fn is_zero(self) -> bool {
        self.0.as_nanos() == 0
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl TryFrom<Bytes> for u32 {
    type Error = std::num::TryFromIntError;

    fn try_from(bytes: Bytes) -> Result<Self, Self::Error> {
        bytes.0.try_into()
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl From<evenkeel_control::Duration> for Duration {
    fn from(d: evenkeel_control::Duration) -> Self {
        Self(d)
    }
}

impl From<Duration> for evenkeel_control::Duration {
    fn from(d: Duration) -> Self {
        d.0
    }
}

impl From<Duration> for std::time::Duration {
    fn from(d: Duration) -> Self {
        d.0.into()
    }
}

impl Rates {
    /// Whether neither rate is set.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

impl From<Rates> for evenkeel_control::units::Rates {
    fn from(rates: Rates) -> Self {
        Self { iops: rates.iops, bytes_per_s: rates.bytes_per_s.0 }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.iops, self.bytes_per_s.0) {
            (0, 0) => f.write_str("none"),
            (iops, 0) => write!(f, "{iops} IOPS"),
            (0, _) => write!(f, "{}/s", self.bytes_per_s),
            (iops, _) => write!(f, "{iops} IOPS and {}/s", self.bytes_per_s),
        }
    }
}

/// The address as 128 bits, IPv4 in the mapped range, so that both families compare alike.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl Cidr {
    /// The bits of the prefix, counted from the top of [`bits`].
    fn prefix_of_128(self) -> u32 {
        u32::from(self.prefix) + if self.address.is_ipv4() { 96 } else { 0 }
    }

    /// Whether `address` lies in the block; an IPv4 address written as IPv6 (`::ffff:10.0.0.1`) counts as IPv4.
    pub fn contains(self, address: IpAddr) -> bool {
        same_prefix(bits(self.address), bits(address), self.prefix_of_128())
    }

    /// Length of the prefix, for choosing the most specific block: longer is more specific, IPv4 counted as mapped IPv6.
    pub fn specificity(self) -> u32 {
        self.prefix_of_128()
    }
}

fn same_prefix(a: u128, b: u128, prefix: u32) -> bool {
    prefix == 0 || (a ^ b) >> (128 - prefix) == 0
}

impl FromStr for Cidr {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || {
            UnitError(format!(
                "{text:?} is not a block of addresses; write for example \"10.1.0.0/16\", \"fd00::/8\" or \"192.0.2.7\""
            ))
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| wrong())?;
        let full = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.trim().parse().ok().filter(|&p: &u8| p <= full).ok_or_else(wrong)?,
            None => full,
        };
        let block = Self { address, prefix };
        let host = 128 - block.prefix_of_128();
        let network = bits(address).checked_shr(host).and_then(|top| top.checked_shl(host)).unwrap_or(0);
        if bits(address) != network {
            let network = match address {
                IpAddr::V4(_) => IpAddr::V4((network as u32).into()),
                IpAddr::V6(_) => IpAddr::V6(network.into()),
            };
            return Err(UnitError(format!("{text:?} has bits set beyond its prefix; write \"{network}/{prefix}\"")));
        }
        Ok(block)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Reads a value that is written as text, or as an integer where `integers` allow.
pub(crate) struct TextVisitor<T> {
    pub(crate) expecting: &'static str,
    pub(crate) integer: Option<fn(u64) -> Result<T, UnitError>>,
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

/// Serialises as text and reads what it writes.
macro_rules! as_text {
    ($type:ident, $expecting:literal, $integer:expr, $schema:tt) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::units::TextVisitor { expecting: $expecting, integer: $integer })
            }
        }

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}
pub(crate) use as_text;

as_text!(Bytes, "a number of bytes such as 4096, \"64KiB\" or \"200MB\"", Some(|n| Ok(Bytes(n))), {
    "type": ["string", "integer"],
    "minimum": 0,
    "pattern": r"^[0-9][0-9_]*(\.[0-9]+)? ?([KMGTPkmgtp]([Ii]?[Bb])?|[Bb])?$"
});
as_text!(Duration, "a length of time such as \"50ms\" or \"2s\"", None, {
    "type": "string",
    "pattern": r"^(0|[0-9][0-9_]*(\.[0-9]+)? ?(ns|us|ms|s|m|h|d))$"
});
as_text!(Cidr, "a block of addresses such as \"10.1.0.0/16\"", None, { "type": "string" });
