//! How an emulated device is written.

use evenkeel_model::jitter::Jitter;
use evenkeel_model::store::StoreParams;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device::complaint;
use crate::units::{Bytes, Duration};

/// Every stall is an event of its own; more of them than this would keep a core busy with nothing else.
const MIN_STALL_EVERY: evenkeel_control::Duration = evenkeel_control::Duration::from_millis(1);

/// Devices that [`Emulate`] starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A batching store with a deep buffer on an SSD.
    #[default]
    Ssd,
    /// The same on a disk whose every request seeks.
    Hdd,
}

/// An emulated device: what is left out comes from the preset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Emulate {
    /// The device to start from: "ssd" (default) or "hdd".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Payload bytes per second the device moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bytes>,
    /// Requests per second the device moves, however small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Time every read takes on top of its transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency: Option<Duration>,
    /// Time every write takes on top of its transfer, before it is committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency: Option<Duration>,
    /// Time one commit takes, however many writes it carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_latency: Option<Duration>,
    /// What each commit first writes to the device, in turn with the data; 0 = the log is on another device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_size: Option<Bytes>,
    /// Requests one commit carries at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_batch_max: Option<u32>,
    /// Writes of at most this size go into the log and are applied later; 0 = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred_max: Option<Bytes>,
    /// Deferred bytes that may await application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred_backlog_max: Option<Bytes>,
    /// How latencies vary: standard deviation of their logarithm, 0 (not at all) to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    /// Period at which the device stops; "0s" = never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_every: Option<Duration>,
    /// How long it stops each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_for: Option<Duration>,
}

impl Emulate {
    /// The parameters of the model.
    ///
    /// # Errors
    /// Says which parameter makes no sense and what would be right.
    pub fn params(&self) -> Result<StoreParams, String> {
        let preset = match self.preset.unwrap_or_default() {
            Preset::Ssd => StoreParams::ssd(),
            Preset::Hdd => StoreParams::hdd(),
        };
        let bytes = |bytes: Option<Bytes>, preset: u64| bytes.map_or(preset, |bytes| bytes.0);
        let time = |time: Option<Duration>, preset| time.map_or(preset, Into::into);
        let params = StoreParams {
            bandwidth_bytes_per_s: bytes(self.bandwidth, preset.bandwidth_bytes_per_s),
            iops: self.iops.unwrap_or(preset.iops),
            read_latency: time(self.read_latency, preset.read_latency),
            write_latency: time(self.write_latency, preset.write_latency),
            commit_latency: time(self.commit_latency, preset.commit_latency),
            commit_bytes: u32::try_from(bytes(self.commit_size, preset.commit_bytes.into()))
                .map_err(|_| "commit_size must be less than 4GiB")?,
            commit_batch_max: self.commit_batch_max.unwrap_or(preset.commit_batch_max),
            deferred_max_bytes: u32::try_from(bytes(self.deferred_max, preset.deferred_max_bytes.into()))
                .map_err(|_| "deferred_max must be less than 4GiB")?,
            deferred_backlog_max_bytes: bytes(self.deferred_backlog_max, preset.deferred_backlog_max_bytes),
            jitter: match self.jitter {
                None => preset.jitter,
                Some(0.0) => Jitter::None,
                Some(sigma) => Jitter::LogNormal { sigma },
            },
            stall_every: time(self.stall_every, preset.stall_every),
            stall_for: time(self.stall_for, preset.stall_for),
        };
        if params.stall_every != evenkeel_control::Duration::ZERO && params.stall_every < MIN_STALL_EVERY {
            return Err("stall_every must be 0 (never) or at least 1ms".into());
        }
        params.validate().map_err(|error| complaint(&error))?;
        Ok(params)
    }
}
