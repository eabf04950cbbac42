//! The parameters of a cached device.

use evenkeel_control::Duration;

use crate::params::{InvalidParams, check};

/// Rule for the blocks that the fast device caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u8", into = "u8"))]
pub enum Promotion {
    /// Every block that is read or written (Flashcache, bcache). A write goes to the fast device and replaces the least
    /// recently used block.
    #[default]
    Always,
    /// A block whose number of recent misses exceeds `misses`, in effect as with dm-cache's smq policy. Before that, reads and
    /// writes of the block go to the slow device.
    Reused {
        /// Recent misses of a block before the one that caches it, 1 to 255.
        misses: u8,
    },
}

/// Converts the number of misses before a block is cached; 0 means [`Promotion::Always`].
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

/// The parameters of a [`Cached`](super::Cached); all but `fast_bytes`, `block_bytes` and `promotion` can change while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CachedParams {
    /// Size of the fast device, in bytes; at least one block, at most a million blocks.
    #[cfg_attr(feature = "serde", serde(rename = "fast_size", with = "evenkeel_control::text::AsBytes"))]
    pub fast_bytes: u64,
    /// Size of a block, the unit of caching, in bytes (512 B to 16 MiB).
    #[cfg_attr(feature = "serde", serde(rename = "block", with = "evenkeel_control::text::AsBytes"))]
    pub block_bytes: u32,
    /// Rate at which the fast device moves payload, in bytes per second.
    #[cfg_attr(feature = "serde", serde(rename = "fast_bandwidth", with = "evenkeel_control::text::AsBytes"))]
    pub fast_bytes_per_s: u64,
    /// Latency of a request on the fast device, added to the time for its payload; latencies of requests overlap.
    pub fast_latency: Duration,
    /// Rate at which the slow device moves payload, in bytes per second.
    #[cfg_attr(feature = "serde", serde(rename = "slow_bandwidth", with = "evenkeel_control::text::AsBytes"))]
    pub slow_bytes_per_s: u64,
    /// Latency of a request on the slow device, added to the time for its payload; latencies of requests overlap.
    pub slow_latency: Duration,
    /// Rule for the blocks that the fast device caches.
    #[cfg_attr(feature = "serde", serde(rename = "promote_after"))]
    pub promotion: Promotion,
    /// Part of the fast device that may be dirty, 0 to 1; above it, dirty blocks are written back.
    pub dirty_above: f64,
    /// Rate of the write-back, in bytes per second; 0 = a dirty block is only written when it is replaced.
    #[cfg_attr(feature = "serde", serde(rename = "write_back", with = "evenkeel_control::text::AsBytes"))]
    pub write_back_bytes_per_s: u64,
}

#[cfg(feature = "serde")]
impl crate::preset::Preset for CachedParams {
    const PRESETS: crate::preset::Presets<Self> = &[("paper", Self::paper), ("lab", Self::lab)];
}

impl CachedParams {
    /// The device of the SAAT paper (Wang et al.): 100 MB of persistent memory that caches a SATA drive under Flashcache.
    ///
    /// The paper gives sizes only. The slow device's rate, 150 MB/s, was chosen so that a fixed limit equal to the guarantee
    /// falls short of the guarantee by as much as in the paper: see `docs/algorithms/models.md`.
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

    /// The device of the lab: dm-cache with smq, 64 MiB of memory that caches a null block device of 10 MB/s.
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

    /// Checks that the parameters are in range and fit together.
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
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

    /// Number of blocks that the fast device holds.
    pub const fn blocks(&self) -> u64 {
        // Not validated yet when it is asked.
        let block = if self.block_bytes == 0 { 1 } else { self.block_bytes as u64 };
        self.fast_bytes / block
    }
}
