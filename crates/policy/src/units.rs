//! Quantities as people write them: `"64KiB"`, `"50ms"`, `{ iops = 5000, bytes_per_s = "200MB" }`, `"10.0.0.0/8"`.
//!
//! Each type parses from text, prints as a text that parses back to the same value, and
//! names the remedy in its error.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

pub use evenkeel_control::Duration;
pub(crate) use evenkeel_control::as_text;
pub use evenkeel_control::text::{Bytes, UnitError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::figures::bytes_per_s;

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

impl Rates {
    /// True if neither rate is set.
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
        // As it was written; bytes that were not written with a unit, to three digits.
        let bytes = match self.bytes_per_s {
            Bytes(rate) if self.bytes_per_s.to_string().ends_with(char::is_numeric) => bytes_per_s(rate as f64),
            rate => format!("{rate}/s"),
        };
        match (self.iops, self.bytes_per_s.0) {
            (0, 0) => f.write_str("none"),
            (iops, 0) => write!(f, "{iops} IOPS"),
            (0, _) => f.write_str(&bytes),
            (iops, _) => write!(f, "{iops} IOPS and {bytes}"),
        }
    }
}

/// The address as 128 bits. IPv4 addresses are in the mapped range, so that both families compare alike.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl Cidr {
    /// Length of the block's prefix in bits, within the 128 bits of [`bits`].
    fn prefix_of_128(self) -> u32 {
        u32::from(self.prefix) + if self.address.is_ipv4() { 96 } else { 0 }
    }

    /// True if `address` lies in the block. An IPv4 address written as IPv6 (`::ffff:10.0.0.1`) counts as IPv4.
    pub fn contains(self, address: IpAddr) -> bool {
        same_prefix(bits(self.address), bits(address), self.prefix_of_128())
    }

    /// Length of the block's prefix in bits, IPv4 counted as mapped IPv6. Of several blocks the one with the longest prefix is
    /// the most specific.
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
            UnitError::new(format!(
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
            return Err(UnitError::new(format!(
                "{text:?} has bits set beyond its prefix; write \"{network}/{prefix}\""
            )));
        }
        Ok(block)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

as_text!(Cidr, "a block of addresses such as \"10.1.0.0/16\"", None, { "type": "string" });
