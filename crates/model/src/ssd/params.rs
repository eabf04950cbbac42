//! The parameters of a solid-state drive.

use evenkeel_control::Duration;

use crate::jitter::Jitter;
use crate::params::{InvalidParams, check, faster_rate, faster_time};

/// The part of a drive that cannot change while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Geometry {
    /// Buses between controller and flash.
    pub channels: u32,
    /// Dies of all channels together; each reads, programs and erases independently.
    pub dies: u32,
    /// Size of a page in bytes, which one read of a die returns; consecutive pages of the address space are on consecutive dies.
    #[cfg_attr(feature = "serde", serde(rename = "page", with = "evenkeel_control::text::AsBytes"))]
    pub page_bytes: u32,
    /// Size of a program unit in bytes, which one program of a die writes (all its planes together).
    #[cfg_attr(feature = "serde", serde(rename = "program", with = "evenkeel_control::text::AsBytes"))]
    pub program_bytes: u32,
    /// Size of a flash block in bytes, which one erase of a die frees.
    #[cfg_attr(feature = "serde", serde(rename = "block", with = "evenkeel_control::text::AsBytes"))]
    pub block_bytes: u64,
    /// Size of the address space in bytes; larger offsets wrap around.
    #[cfg_attr(feature = "serde", serde(rename = "capacity", with = "evenkeel_control::text::AsBytes"))]
    pub capacity_bytes: u64,
    /// Flash beyond the capacity that garbage collection can use, in per cent of the capacity, 1 to 100. A drive has more raw
    /// flash than that, as bad blocks, parity and tables take a part.
    pub spare_percent: f64,
    /// Part of the address space that holds data at the start, 0 to 1.
    pub used: f64,
    /// True: the initial data was overwritten at random for a long time, so that garbage is everywhere and collection runs from
    /// the first write on. False: unused flash is erased at the start.
    pub aged: bool,
}

/// The parameters of an [`Ssd`](super::Ssd); everything but the geometry can change while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SsdParams {
    /// Sizes, which cannot change while it runs.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub geometry: Geometry,
    /// Commands that the drive accepts at once; further ones wait in order of arrival.
    pub queue_depth: u32,
    /// Time that the controller takes for each command, one command at a time; its inverse is an upper bound on the IOPS.
    pub command_time: Duration,
    /// Firmware latency of a read, after `command_time`; latencies of commands overlap.
    pub read_latency: Duration,
    /// Firmware latency of any other command, as its last step; latencies of commands overlap.
    pub write_latency: Duration,
    /// Rate at which the host link moves payload, in bytes per second.
    #[cfg_attr(feature = "serde", serde(rename = "link_bandwidth", with = "evenkeel_control::text::AsBytes"))]
    pub link_bandwidth_bytes_per_s: u64,
    /// Time for which each command occupies the link, on top of its payload.
    pub link_command_time: Duration,
    /// True if the link moves both ways at once, each at full speed.
    pub link_duplex: bool,
    /// Rate at which each channel moves payload, in bytes per second.
    #[cfg_attr(feature = "serde", serde(rename = "channel_bandwidth", with = "evenkeel_control::text::AsBytes"))]
    pub channel_bandwidth_bytes_per_s: u64,
    /// Time a die takes to read a page.
    pub page_read_time: Duration,
    /// Time a die takes to program one unit outside of the fast region.
    pub program_time: Duration,
    /// Time a die takes to erase a block.
    pub erase_time: Duration,
    /// Time that a die takes to suspend a program or an erase for a read; the die resumes it after the reads. Zero: a read waits
    /// until the program or erase ends.
    pub suspend_latency: Duration,
    /// Size of the buffer for written data on its way to the flash, in bytes; a write completes when it is in the buffer.
    #[cfg_attr(feature = "serde", serde(rename = "buffer", with = "evenkeel_control::text::AsBytes"))]
    pub buffer_bytes: u64,
    /// True if a flush waits until the buffered data is in the flash, as on a drive without capacitors.
    pub buffer_volatile: bool,
    /// Size of the fast region in bytes: cells that hold one bit each, until an idle drive moves their data on; 0 = none.
    #[cfg_attr(feature = "serde", serde(rename = "slc", with = "evenkeel_control::text::AsBytes"))]
    pub slc_bytes: u64,
    /// Time a die takes to program one unit of the fast region.
    pub slc_program_time: Duration,
    /// Idle time after which the drive moves data out of the fast region.
    pub slc_idle: Duration,
    /// Distribution of read, program and erase times.
    #[cfg_attr(feature = "serde", serde(with = "crate::preset::jitter"))]
    pub jitter: Jitter,
}

#[cfg(feature = "serde")]
impl crate::preset::Preset for SsdParams {
    const PRESETS: crate::preset::Presets<Self> = &[("sata", Self::sata), ("nvme", Self::nvme)];
}

impl SsdParams {
    /// A client drive of 250 GB on a SATA link, half full, with a fast region of 12 GB for writes.
    ///
    /// Modelled on the published figures of the Samsung 860 EVO 250 GB, which are in `tests/ssd_facts.rs`.
    pub const fn sata() -> Self {
        Self {
            geometry: Geometry {
                channels: 4,
                dies: 16,
                page_bytes: 16 << 10,
                program_bytes: 32 << 10,
                block_bytes: 24 << 20,
                capacity_bytes: 250_000_000_000,
                spare_percent: 7.0,
                used: 0.5,
                aged: false,
            },
            queue_depth: 32,
            command_time: Duration::from_micros(2),
            read_latency: Duration::from_micros(16),
            write_latency: Duration::from_micros(12),
            link_bandwidth_bytes_per_s: 550_000_000,
            link_command_time: Duration::from_nanos(2_750),
            link_duplex: false,
            channel_bandwidth_bytes_per_s: 400_000_000,
            page_read_time: Duration::from_micros(60),
            program_time: Duration::from_micros(2_000),
            erase_time: Duration::from_micros(3_500),
            suspend_latency: Duration::ZERO,
            buffer_bytes: 16 << 20,
            buffer_volatile: true,
            slc_bytes: 12_000_000_000,
            slc_program_time: Duration::from_micros(400),
            slc_idle: Duration::from_millis(500),
            jitter: Jitter::LogNormal { sigma: 0.1 },
        }
    }

    /// A data centre drive of 1.92 TB on PCIe 3.0 x4, full and aged, with capacitors that protect its buffer.
    ///
    /// Modelled on the data sheet of the Samsung PM983 1.92 TB, whose figures are in `tests/ssd_facts.rs`.
    pub const fn nvme() -> Self {
        Self {
            geometry: Geometry {
                channels: 8,
                dies: 64,
                page_bytes: 16 << 10,
                program_bytes: 32 << 10,
                block_bytes: 24 << 20,
                capacity_bytes: 1_920_000_000_000,
                spare_percent: 6.0,
                used: 1.0,
                aged: true,
            },
            queue_depth: 1_023,
            command_time: Duration::from_nanos(1_850),
            read_latency: Duration::from_micros(16),
            write_latency: Duration::from_micros(46),
            link_bandwidth_bytes_per_s: 3_200_000_000,
            link_command_time: Duration::ZERO,
            link_duplex: true,
            channel_bandwidth_bytes_per_s: 800_000_000,
            page_read_time: Duration::from_micros(60),
            program_time: Duration::from_micros(960),
            erase_time: Duration::from_micros(3_500),
            suspend_latency: Duration::from_micros(30),
            buffer_bytes: 16 << 20,
            buffer_volatile: false,
            slc_bytes: 0,
            slc_program_time: Duration::from_micros(200),
            slc_idle: Duration::from_millis(500),
            jitter: Jitter::LogNormal { sigma: 0.1 },
        }
    }

    /// The parameters with all times of work divided by `speed` and all rates multiplied by it; `slc_idle` stays. `speed` is
    /// above 0.
    pub fn scaled(&self, speed: f64) -> Self {
        let (time, rate) = (faster_time(speed), faster_rate(speed));
        Self {
            command_time: time(self.command_time),
            read_latency: time(self.read_latency),
            write_latency: time(self.write_latency),
            link_bandwidth_bytes_per_s: rate(self.link_bandwidth_bytes_per_s),
            link_command_time: time(self.link_command_time),
            channel_bandwidth_bytes_per_s: rate(self.channel_bandwidth_bytes_per_s),
            page_read_time: time(self.page_read_time),
            program_time: time(self.program_time),
            erase_time: time(self.erase_time),
            suspend_latency: time(self.suspend_latency),
            slc_program_time: time(self.slc_program_time),
            ..*self
        }
    }

    /// Checks that the parameters are in range and fit together.
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        let g = &self.geometry;
        let unit = UNIT_BYTES as u32;
        let whole = |bytes: u32| bytes >= unit && bytes.is_multiple_of(unit) && bytes <= 16 << 20;
        check(&[
            ((1..=1_024).contains(&g.channels), "channels", "1 to 1024"),
            (g.dies >= g.channels && g.dies <= 4_096, "dies", "at least as many as channels, at most 4096"),
            (whole(g.page_bytes), "page", "a multiple of 4 KiB up to 16 MiB"),
            (whole(g.program_bytes), "program", "a multiple of 4 KiB up to 16 MiB"),
            (g.block_bytes >= u64::from(g.program_bytes), "block", "at least program"),
            ((1 << 30..=1 << 50).contains(&g.capacity_bytes), "capacity", "1 GiB to 1 PiB"),
            ((1.0..=100.0).contains(&g.spare_percent), "spare_percent", "1 to 100"),
            ((0.0..=1.0).contains(&g.used), "used", "0 to 1"),
            ((1..=65_536).contains(&self.queue_depth), "queue_depth", "1 to 65536"),
            (self.link_bandwidth_bytes_per_s > 0, "link_bandwidth", "greater than 0"),
            (self.channel_bandwidth_bytes_per_s > 0, "channel_bandwidth", "greater than 0"),
            (self.buffer_bytes >= u64::from(g.program_bytes), "buffer", "at least program"),
            (self.jitter.is_valid(), "jitter", "0 to 2"),
        ])
    }

    /// Time for which the link moves `bytes` of payload, rounded up, so that its rate is never exceeded.
    pub(super) fn link_time(&self, bytes: u64) -> Duration {
        transfer(bytes, self.link_bandwidth_bytes_per_s)
    }

    /// Time for which a channel moves `bytes` of payload, rounded up, so that its rate is never exceeded.
    pub(super) fn channel_time(&self, bytes: u64) -> Duration {
        transfer(bytes, self.channel_bandwidth_bytes_per_s)
    }

    /// Rate at which an idle drive moves data out of its fast region, in bytes per second.
    pub(super) fn fold_bytes_per_s(&self) -> f64 {
        let each = self.page_read_time + self.program_time;
        f64::from(self.geometry.dies) * f64::from(self.geometry.program_bytes) / each.as_secs_f64().max(1e-9)
    }
}

/// Size of a unit of the address space, in bytes; the drive counts valid data in such units.
pub(super) const UNIT_BYTES: u64 = 4 << 10;

fn transfer(bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_nanos((u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s.max(1))) as u64)
}
