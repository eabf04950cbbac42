//! Sizes, patterns and bursts of a workload's requests, with their spelling in load jobs and scenarios.

use std::fmt;
use std::str::FromStr;

use crate::units::{Bytes, Duration, UnitError, as_text};

/// The largest block, in bytes. A batch of requests of this size must fit in memory.
const MAX_BLOCK_BYTES: u64 = 32 << 20;
/// The largest weight of a block size.
const MAX_WEIGHT: u32 = 1_000_000;
/// The longest duration of sending or pausing in a burst; sums of durations then cannot overflow.
const MAX_BURST_NS: u64 = 3_600_000_000_000;

/// Block sizes in bytes with their weights: `4k` or `4k:80,64k:20`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeMix(pub Vec<(u64, u32)>);

/// The distribution of requests' offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Uniformly distributed offsets.
    Random,
    /// One block after the other; the first block follows the last one.
    Sequential,
    /// Zipf-distributed blocks with this exponent; hot blocks are spread over the volume.
    Zipf(f64),
}

/// Durations of sending and of pausing of a bursty client, written as `200ms:800ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Duration for which requests are sent.
    pub on_ns: u64,
    /// Duration for which no requests are sent.
    pub off_ns: u64,
}

impl SizeMix {
    /// The largest block, in bytes.
    pub fn largest(&self) -> u64 {
        self.0.iter().map(|&(size, _)| size).max().unwrap_or(0)
    }
}

impl Burst {
    /// Time from the start of one burst to the start of the next.
    pub fn period_ns(self) -> u64 {
        self.on_ns + self.off_ns
    }
}

impl FromStr for SizeMix {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let entry = |part: &str| {
            let (size, weight) = part.split_once(':').unwrap_or((part, "1"));
            let size = size.parse::<Bytes>()?.0;
            let weight = weight.trim().parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight));
            let weight = weight.ok_or_else(|| {
                UnitError::new(format!(
                    "{part:?} has no weight from 1 to {MAX_WEIGHT} after the colon, as in 4k:80,64k:20"
                ))
            })?;
            if size == 0 || size > MAX_BLOCK_BYTES {
                return Err(UnitError::new(format!("a block is 1 to {MAX_BLOCK_BYTES} bytes, not {size}")));
            }
            Ok((size, weight))
        };
        text.split(',').map(|part| entry(part.trim())).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for SizeMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, &(size, weight)) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match self.0.len() {
                1 => write!(f, "{}", Bytes(size))?,
                _ => write!(f, "{comma}{}:{weight}", Bytes(size))?,
            }
        }
        Ok(())
    }
}

impl FromStr for Pattern {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        match (text, text.strip_prefix("zipf:")) {
            ("random", _) => Ok(Self::Random),
            ("sequential", _) => Ok(Self::Sequential),
            (_, Some(exponent)) => match exponent.parse::<f64>() {
                Ok(exponent) if exponent > 0.0 && exponent <= 10.0 => Ok(Self::Zipf(exponent)),
                _ => {
                    Err(UnitError::new(format!("{exponent:?} is not an exponent above 0, at most 10, as in zipf:1.1")))
                }
            },
            _ => Err(UnitError::new(format!("{text:?} is not one of random, sequential, zipf:EXPONENT"))),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
            Self::Sequential => f.write_str("sequential"),
            Self::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

impl FromStr for Burst {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::new(format!("{text:?} is not ON:OFF, as in 200ms:800ms"));
        let (on, off) = text.split_once(':').ok_or_else(wrong)?;
        let nanos = |text: &str| text.parse::<Duration>().map(|d| d.as_nanos());
        let burst = Self { on_ns: nanos(on)?, off_ns: nanos(off)? };
        if burst.on_ns == 0 || burst.on_ns > MAX_BURST_NS || burst.off_ns > MAX_BURST_NS {
            let message = "a burst is ON:OFF, with ON from 1ns to 1h and OFF of at most 1h, as in 200ms:800ms";
            return Err(UnitError::new(message.into()));
        }
        Ok(burst)
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Duration::from_nanos;
        write!(f, "{}:{}", time(self.on_ns), time(self.off_ns))
    }
}

as_text!(SizeMix, "a block size (4096, \"4k\") or a mix (\"4k:80,64k:20\")", Some(|n| n.to_string().parse()), {
    "type": ["string", "integer"],
    "minimum": 1
});
as_text!(Pattern, "\"random\", \"sequential\" or \"zipf:EXPONENT\"", None, { "type": "string" });
as_text!(Burst, "on and off times such as \"200ms:800ms\"", None, { "type": "string" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_patterns_and_bursts_parse_and_print_as_they_parse() {
        let mix = |text: &str| text.parse::<SizeMix>().unwrap();
        assert_eq!(mix("4k").0, [(4096, 1)]);
        assert_eq!(mix("4k:80, 64K:20").0, [(4096, 80), (65536, 20)]);
        assert_eq!(mix("512").0, [(512, 1)]);
        assert_eq!(mix("1MiB").0, [(1 << 20, 1)]);
        assert_eq!(mix(&mix("4k:80,64K:20").to_string()), mix("4k:80,64K:20"));
        for bad in ["", "4x", "0", "4k:0", "4k:", "64m", "4k,,8k"] {
            assert!(bad.parse::<SizeMix>().is_err(), "{bad}");
        }
        for good in [Pattern::Random, Pattern::Sequential, Pattern::Zipf(1.1)] {
            assert_eq!(good.to_string().parse(), Ok(good));
        }
        for bad in ["zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:nan", "zipf:11", "Random"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
        let burst = Burst { on_ns: 200_000_000, off_ns: 800_000_000 };
        assert_eq!("200ms:800ms".parse(), Ok(burst));
        assert_eq!(burst.to_string(), "200ms:800ms");
        for bad in ["200ms", "0s:1s", "1s:2d", "a:b"] {
            assert!(bad.parse::<Burst>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_number_is_a_size_and_is_checked_like_one() {
        let read = |text: &str| toml::from_str::<std::collections::BTreeMap<String, SizeMix>>(text);
        assert_eq!(read("a = 4096").unwrap()["a"].0, [(4096, 1)]);
        assert_eq!(read("a = \"4k:1,8k:3\"").unwrap()["a"].largest(), 8192);
        assert!(read("a = 0").unwrap_err().to_string().contains("1 to 33554432 bytes"));
    }
}
