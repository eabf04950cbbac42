//! How a fast device over a slow one is written.

use evenkeel_model::hybrid::{HybridParams, Promotion};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Duration};

/// Devices that [`Hybrid`] starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// 100 MB of persistent memory over a drive of 150 MB/s, which takes in every block.
    #[default]
    Paper,
    /// 64 MiB of memory over a device of 10 MB/s, which takes in blocks that have missed twice.
    Lab,
}

/// A fast device that caches a slow one: what is left out comes from the preset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Hybrid {
    /// The device to start from: "paper" (default) or "lab".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Size of the fast device: 1 to 1000000 blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_size: Option<Bytes>,
    /// What is kept or not kept together, 512 B to 16 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<Bytes>,
    /// Payload bytes per second the fast device moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_bandwidth: Option<Bytes>,
    /// Time of a request there on top of that; requests overlap here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_latency: Option<Duration>,
    /// Payload bytes per second the slow device moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_bandwidth: Option<Bytes>,
    /// Time of a request there on top of that; requests overlap here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_latency: Option<Duration>,
    /// Misses before a block is taken in, at most 255; 0 = every block is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promote_after: Option<u8>,
    /// Part of the fast device that may hold what the slow one does not have, 0 to 1; more is written back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_above: Option<f64>,
    /// Bytes per second it is written back with; 0 = only when a block is pushed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_back: Option<Bytes>,
}

impl Hybrid {
    /// The parameters of the model.
    ///
    /// # Errors
    /// Says which key makes no sense and what would be right.
    pub fn params(&self) -> Result<HybridParams, String> {
        let preset = match self.preset.unwrap_or_default() {
            Preset::Paper => HybridParams::paper(),
            Preset::Lab => HybridParams::lab(),
        };
        let bytes = |key: Option<Bytes>, preset| key.map_or(preset, |bytes| bytes.0);
        let latency = |key: Option<Duration>, preset| key.map_or(preset, Into::into);
        let params = HybridParams {
            fast_bytes: bytes(self.fast_size, preset.fast_bytes),
            // What does not fit is too large, and said to be.
            block_bytes: self.block.map_or(preset.block_bytes, |block| u32::try_from(block.0).unwrap_or(u32::MAX)),
            fast_bytes_per_s: bytes(self.fast_bandwidth, preset.fast_bytes_per_s),
            fast_latency: latency(self.fast_latency, preset.fast_latency),
            slow_bytes_per_s: bytes(self.slow_bandwidth, preset.slow_bytes_per_s),
            slow_latency: latency(self.slow_latency, preset.slow_latency),
            promotion: match self.promote_after {
                None => preset.promotion,
                Some(0) => Promotion::Always,
                Some(misses) => Promotion::Reused { misses },
            },
            dirty_above: self.dirty_above.unwrap_or(preset.dirty_above),
            write_back_bytes_per_s: bytes(self.write_back, preset.write_back_bytes_per_s),
        };
        params.validate().map_err(|error| {
            let (key, must_be) = match error.parameter {
                "fast_bytes" => ("fast_size", error.must_be),
                "block_bytes" => ("block", error.must_be),
                "fast_bytes_per_s" => ("fast_bandwidth", error.must_be),
                "slow_bytes_per_s" => ("slow_bandwidth", error.must_be),
                "write_back_bytes_per_s" => ("write_back", "at most slow_bandwidth"),
                other => (other, error.must_be),
            };
            format!("{key} must be {must_be}")
        })?;
        Ok(params)
    }
}
