//! How a disk and stripes over several devices are written.

use evenkeel_model::disk::{CacheParams, DiskParams, Overhead, Scheduling as Order, Zone as ModelZone};
use evenkeel_model::raid::Raid0Params;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device::{Device, complaint};
use crate::units::{Bytes, Duration};

/// Disks that [`Disk`] starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A disk as found in servers today: 8 TB, 7,200 rpm, a queue of 32.
    #[default]
    Nearline,
    /// Seagate Cheetah 9LP of 1998: 9.1 GB, 10,045 rpm, one command at a time.
    Cheetah9lp,
}

/// In which order the commands inside get the arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// First come, first served.
    Fcfs,
    /// By rising address from where the arm is, then again from the lowest.
    Elevator,
    /// Shortest positioning time first, seek and rotation together.
    Sptf,
}

impl From<Scheduling> for Order {
    fn from(scheduling: Scheduling) -> Self {
        match scheduling {
            Scheduling::Fcfs => Self::Fcfs,
            Scheduling::Elevator => Self::Elevator,
            Scheduling::Sptf => Self::Sptf,
        }
    }
}

/// Neighbouring cylinders with the same number of blocks on every track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// The outermost cylinder.
    pub first_cylinder: u32,
    /// The innermost cylinder.
    pub last_cylinder: u32,
    /// Blocks of 512 bytes on a track.
    pub blocks_per_track: u32,
    /// By how many blocks a track starts later than the previous one of its cylinder.
    #[serde(default)]
    pub track_skew_blocks: u32,
    /// By how many blocks a cylinder starts later than the last track of the previous one.
    #[serde(default)]
    pub cylinder_skew_blocks: u32,
}

impl From<&Zone> for ModelZone {
    fn from(zone: &Zone) -> Self {
        Self {
            first_cylinder: zone.first_cylinder,
            last_cylinder: zone.last_cylinder,
            blocks_per_track: zone.blocks_per_track,
            track_skew_blocks: zone.track_skew_blocks,
            cylinder_skew_blocks: zone.cylinder_skew_blocks,
        }
    }
}

/// A disk: what is left out comes from the preset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    /// The disk to start from: "nearline" (default) or "cheetah9lp".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Revolutions per minute, 1 to 100,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpm: Option<u32>,
    /// Recording surfaces, one head each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surfaces: Option<u32>,
    /// From the outer to the inner edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<Zone>>,
    /// Blocks at the end of every cylinder that hold no data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare_blocks_per_cylinder: Option<u32>,
    /// What a user sees; at most what the zones hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Bytes>,
    /// Pairs of a distance in cylinders, rising, and the time to move that far; linear in between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seek: Option<Vec<(u32, Duration)>>,
    /// Time to switch to another head in the same cylinder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_switch: Option<Duration>,
    /// What the arm needs on top, before it may write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_settle: Option<Duration>,
    /// From decoding a command to the first moment the head can read or write for it, even if the arm need not move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup: Option<Duration>,
    /// Time of the controller for a read that continues where the last one ended, from the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_sequential_overhead: Option<Duration>,
    /// The same for any other read from the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_hit_overhead: Option<Duration>,
    /// The same for a read that needs the arm, before the arm begins to move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_miss_overhead: Option<Duration>,
    /// The same for a write that continues or repeats one in the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_hit_overhead: Option<Duration>,
    /// The same for any other write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_overhead: Option<Duration>,
    /// Payload bytes per second that cross the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus_bandwidth: Option<Bytes>,
    /// Commands inside the disk at once, 1 to 1,024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    /// In which order they get the arm: "fcfs", "elevator" or "sptf".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,
    /// Parts of the cache, 2 to 4,096, each with one run of neighbouring blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<u32>,
    /// Blocks a segment holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment_blocks: Option<u32>,
    /// How far beyond the last block handed out the disk reads while nothing else waits; 0 = not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ahead_blocks: Option<u32>,
    /// How far it does so even while others wait, after a read that continued another; 0 = not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ahead_min_blocks: Option<u32>,
    /// Whether a write is done when its data is in the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_back: Option<bool>,
}

impl Disk {
    /// The parameters of the model.
    ///
    /// # Errors
    /// Says which parameter makes no sense and what would be right.
    pub fn params(&self) -> Result<DiskParams, String> {
        let preset = match self.preset.unwrap_or_default() {
            Preset::Nearline => DiskParams::nearline(),
            Preset::Cheetah9lp => DiskParams::cheetah9lp(),
        };
        let time = |time: Option<Duration>, preset| time.map_or(preset, Into::into);
        let bytes = |bytes: Option<Bytes>, preset| bytes.map_or(preset, Into::into);
        let seek = |pairs: &Vec<(u32, Duration)>| pairs.iter().map(|&(cylinders, time)| (cylinders, time.0)).collect();
        let params = DiskParams {
            rpm: self.rpm.unwrap_or(preset.rpm),
            surfaces: self.surfaces.unwrap_or(preset.surfaces),
            zones: self.zones.as_ref().map_or(preset.zones, |zones| zones.iter().map(Into::into).collect()),
            spare_blocks_per_cylinder: self.spare_blocks_per_cylinder.unwrap_or(preset.spare_blocks_per_cylinder),
            capacity_bytes: bytes(self.capacity, preset.capacity_bytes),
            seek: self.seek.as_ref().map_or(preset.seek, seek),
            head_switch: time(self.head_switch, preset.head_switch),
            write_settle: time(self.write_settle, preset.write_settle),
            setup: time(self.setup, preset.setup),
            overhead: Overhead {
                read_sequential: time(self.read_sequential_overhead, preset.overhead.read_sequential),
                read_hit: time(self.read_hit_overhead, preset.overhead.read_hit),
                read_miss: time(self.read_miss_overhead, preset.overhead.read_miss),
                write_hit: time(self.write_hit_overhead, preset.overhead.write_hit),
                write: time(self.write_overhead, preset.overhead.write),
            },
            bus_bandwidth_bytes_per_s: bytes(self.bus_bandwidth, preset.bus_bandwidth_bytes_per_s),
            queue_depth: self.queue_depth.unwrap_or(preset.queue_depth),
            scheduling: self.scheduling.map_or(preset.scheduling, Into::into),
            cache: CacheParams {
                segments: self.segments.unwrap_or(preset.cache.segments),
                segment_blocks: self.segment_blocks.unwrap_or(preset.cache.segment_blocks),
                read_ahead_blocks: self.read_ahead_blocks.unwrap_or(preset.cache.read_ahead_blocks),
                read_ahead_min_blocks: self.read_ahead_min_blocks.unwrap_or(preset.cache.read_ahead_min_blocks),
                write_back: self.write_back.unwrap_or(preset.cache.write_back),
            },
        };
        params.validate().map_err(|error| complaint(&error))?;
        Ok(params)
    }
}

/// Stripes over equal devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Raid0 {
    /// How many devices, 1 to 1,024; default 4.
    pub members: u32,
    /// Bytes in a row on one of them; default 64 KiB.
    pub stripe: Bytes,
    /// What each of them is, a table with `kind`; default a disk.
    pub member: Box<Device>,
}

impl Default for Raid0 {
    fn default() -> Self {
        Self { members: 4, stripe: Bytes(64 << 10), member: Box::new(Device::Disk(Disk::default())) }
    }
}

impl Raid0 {
    /// The parameters of the model.
    ///
    /// # Errors
    /// Says which parameter makes no sense and what would be right; one of the member begins with `member.`.
    pub fn params(&self) -> Result<Raid0Params, String> {
        let member = self.member.params().map_err(|error| format!("member.{error}"))?;
        let params = Raid0Params { members: self.members, stripe_bytes: self.stripe.0, member: Box::new(member) };
        params.validate().map_err(|error| complaint(&error))?;
        Ok(params)
    }
}
