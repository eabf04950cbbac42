//! The parameters of a cached device.

use evenkeel_control::Duration;

use crate::params::{InvalidParams, check};

/// Which blocks the fast device takes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u8", into = "u8"))]
pub enum Promotion {
    /// Every block that is asked for (Flashcache, bcache). A write goes to the fast device and pushes out the block that was
    /// not used for longest.
    #[default]
    Always,
    /// A block that has missed this often lately (1 to 255), as dm-cache's smq policy in effect; until then both reads and
    /// writes of it go to the slow device.
    Reused {
        /// Misses before it is taken in.
        misses: u8,
    },
}

/// From the misses before a block is taken in, 0 for [`Promotion::Always`].
impl From<u8> for Promotion {
    fn from(misses: u8) -> Self {
        if misses == 0 { Self::Always } else { Self::Reused { misses } }
    }
}

impl From<Promotion> for u8 {
    fn from(promotion: Promotion) -> Self {
        match promotion {
            Promotion::Always => 0,
            Promotion::Reused { misses } => misses,
        }
    }
}

/// The parameters of a [`Cached`](super::Cached); everything but sizes can change while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CachedParams {
    /// Size of the fast device; at least one block, at most a million.
    #[cfg_attr(feature = "serde", serde(rename = "fast_size", with = "evenkeel_control::text::AsBytes"))]
    pub fast_bytes: u64,
    /// The bytes that are kept or not kept together (512 B to 16 MiB).
    #[cfg_attr(feature = "serde", serde(rename = "block", with = "evenkeel_control::text::AsBytes"))]
    pub block_bytes: u32,
    /// Payload that the fast device moves, in bytes per second.
    #[cfg_attr(feature = "serde", serde(rename = "fast_bandwidth", with = "evenkeel_control::text::AsBytes"))]
    pub fast_bytes_per_s: u64,
    /// Time of a request on the fast device on top of that; requests overlap here.
    pub fast_latency: Duration,
    /// Payload that the slow device moves, in bytes per second.
    #[cfg_attr(feature = "serde", serde(rename = "slow_bandwidth", with = "evenkeel_control::text::AsBytes"))]
    pub slow_bytes_per_s: u64,
    /// Time of a request on the slow device on top of that; requests overlap here.
    pub slow_latency: Duration,
    /// Which blocks the fast device takes in.
    #[cfg_attr(feature = "serde", serde(rename = "promote_after"))]
    pub promotion: Promotion,
    /// Part of the fast device that may hold what the slow one does not have, 0 to 1; more is written back.
    pub dirty_above: f64,
    /// How fast it is written back, in bytes per second; 0 = only when a block is pushed out.
    #[cfg_attr(feature = "serde", serde(rename = "write_back", with = "evenkeel_control::text::AsBytes"))]
    pub write_back_bytes_per_s: u64,
}

#[cfg(feature = "serde")]
impl crate::preset::Preset for CachedParams {
    const PRESETS: crate::preset::Presets<Self> = &[("paper", Self::paper), ("lab", Self::lab)];
}

impl CachedParams {
    /// The device of the SAAT paper: 100 MB of persistent memory over a SATA drive under Flashcache.
    ///
    /// The paper gives sizes only. The slow device's rate was chosen so that a group under its guarantee as a limit loses as
    /// much as in the paper: see `docs/algorithms/models.md`.
    pub const fn paper() -> Self {
        Self {
            fast_bytes: 100_000_000,
            block_bytes: 128 << 10,
            fast_bytes_per_s: 2_000_000_000,
            fast_latency: Duration::from_micros(20),
            slow_bytes_per_s: 150_000_000,
            slow_latency: Duration::from_micros(1_000),
            promotion: Promotion::Always,
            dirty_above: 1.0,
            write_back_bytes_per_s: 0,
        }
    }

    /// The device of the lab: dm-cache with smq, 64 MB of memory over a null block device of 10 MB/s.
    pub const fn lab() -> Self {
        Self {
            fast_bytes: 64 << 20,
            block_bytes: 64 << 10,
            fast_bytes_per_s: 400_000_000,
            fast_latency: Duration::from_micros(200),
            slow_bytes_per_s: 10_000_000,
            slow_latency: Duration::from_micros(200),
            promotion: Promotion::Reused { misses: 2 },
            dirty_above: 1.0,
            write_back_bytes_per_s: 0,
        }
    }

    /// Checks that the parameters make sense together.
    ///
    /// # Errors
    /// The first parameter that does not, and what would be right.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        let rate = 1_000..=1_000_000_000_000;
        let latency = |latency: Duration| latency <= Duration::from_secs(10);
        check(&[
            ((512..=16 << 20).contains(&self.block_bytes), "block", "512 B to 16 MiB"),
            ((1..=1_000_000).contains(&self.blocks()), "fast_size", "1 to 1000000 blocks"),
            (rate.contains(&self.fast_bytes_per_s), "fast_bandwidth", "1 kB/s to 1 TB/s"),
            (latency(self.fast_latency), "fast_latency", "at most 10 s"),
            (rate.contains(&self.slow_bytes_per_s), "slow_bandwidth", "1 kB/s to 1 TB/s"),
            (latency(self.slow_latency), "slow_latency", "at most 10 s"),
            (self.promotion != Promotion::Reused { misses: 0 }, "promote_after", "1 to 255 misses"),
            ((0.0..=1.0).contains(&self.dirty_above), "dirty_above", "0 to 1"),
            (self.write_back_bytes_per_s <= self.slow_bytes_per_s, "write_back", "at most slow_bandwidth"),
        ])
    }

    /// Blocks that the fast device holds.
    pub const fn blocks(&self) -> u64 {
        // Not validated yet when it is asked.
        let block = if self.block_bytes == 0 { 1 } else { self.block_bytes as u64 };
        self.fast_bytes / block
    }
}
