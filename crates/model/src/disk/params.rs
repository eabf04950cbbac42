//! The parameters of a [`Disk`](super::Disk).

use alloc::vec::Vec;

use evenkeel_control::Duration;

use super::BLOCK_BYTES;
use crate::params::{InvalidParams, check};

/// The parameters of a [`Disk`](super::Disk); all of them can change while it runs.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DiskParams {
    /// Revolutions of the spindle per minute, 1 to 100,000.
    pub rpm: u32,
    /// Recording surfaces, with one head each.
    pub surfaces: u32,
    /// Zones from the outer to the inner edge, in the order of the blocks.
    pub zones: Vec<Zone>,
    /// Blocks without data at the end of every cylinder.
    pub spare_blocks_per_cylinder: u32,
    /// Usable size in bytes; at most the size of all zones together.
    #[cfg_attr(feature = "serde", serde(rename = "capacity", with = "evenkeel_control::text::AsBytes"))]
    pub capacity_bytes: u64,
    /// Seek times: pairs of a distance in cylinders and a time, in order of distance. Times are interpolated linearly between
    /// pairs, and extrapolated from the last two.
    pub seek: Vec<(u32, Duration)>,
    /// Time to switch to another head in the same cylinder.
    pub head_switch: Duration,
    /// Additional time for the head to settle on another track before it may write.
    pub write_settle: Duration,
    /// Time from the end of a read's overhead to the earliest moment at which the head can read for it, even without a seek.
    pub setup: Duration,
    /// Controller time of commands.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub overhead: Overhead,
    /// Rate at which payload crosses the interface, in bytes per second.
    #[cfg_attr(feature = "serde", serde(rename = "bus_bandwidth", with = "evenkeel_control::text::AsBytes"))]
    pub bus_bandwidth_bytes_per_s: u64,
    /// Commands that the disk accepts at once; further ones wait in order of arrival.
    pub queue_depth: u32,
    /// Order in which accepted commands get the arm.
    pub scheduling: Scheduling,
    /// The cache.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub cache: Cache,
}

/// A zone: neighbouring cylinders with the same number of blocks on every track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Zone {
    /// The outermost cylinder of the zone; cylinders between zones are not used.
    pub first_cylinder: u32,
    /// The innermost cylinder of the zone.
    pub last_cylinder: u32,
    /// Blocks of 512 bytes on a track.
    pub blocks_per_track: u32,
    /// Blocks of rotation by which a track starts later than the previous track of its cylinder.
    #[cfg_attr(feature = "serde", serde(default))]
    pub track_skew_blocks: u32,
    /// Blocks of rotation by which a cylinder starts later than the last track of the previous cylinder.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cylinder_skew_blocks: u32,
}

/// Controller time of a command, without its transfer over the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Overhead {
    /// Overhead of a read from the cache that begins where the last read from the same read-ahead segment ended.
    #[cfg_attr(feature = "serde", serde(rename = "read_sequential_overhead"))]
    pub read_sequential: Duration,
    /// Overhead of any other read from the cache, of a read where the disk is reading ahead, and of work without payload.
    #[cfg_attr(feature = "serde", serde(rename = "read_hit_overhead"))]
    pub read_hit: Duration,
    /// Overhead of a read that needs the arm, before the arm begins to move.
    #[cfg_attr(feature = "serde", serde(rename = "read_miss_overhead"))]
    pub read_miss: Duration,
    /// Overhead of a write that begins inside the blocks of an earlier write in the cache, or right behind them.
    #[cfg_attr(feature = "serde", serde(rename = "write_hit_overhead"))]
    pub write_hit: Duration,
    /// Overhead of any other write.
    #[cfg_attr(feature = "serde", serde(rename = "write_overhead"))]
    pub write: Duration,
}

/// Order in which accepted commands get the arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Scheduling {
    /// First come, first served.
    Fcfs,
    /// Ascending block numbers from the arm's position, then again from the lowest.
    Elevator,
    /// Shortest positioning time first, seek plus rotation (native command queueing).
    #[default]
    Sptf,
}

/// The cache of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cache {
    /// Number of segments, each for one run of neighbouring blocks that were read ahead or written; at least 2.
    pub segments: u32,
    /// Blocks that a segment holds.
    pub segment_blocks: u32,
    /// Blocks that the disk reads ahead beyond the last block sent to the host, while no command waits; 0 = none.
    pub read_ahead_blocks: u32,
    /// Blocks that the disk reads ahead in the same way even while commands wait, after a read that continued another; 0 = none.
    pub read_ahead_min_blocks: u32,
    /// True if a write completes when its data is in the cache; false: when it is on the platter.
    pub write_back: bool,
}

#[cfg(feature = "serde")]
impl crate::preset::Preset for DiskParams {
    const PRESETS: crate::preset::Presets<Self> = &[("nearline", Self::nearline), ("cheetah9lp", Self::cheetah9lp)];
}

impl DiskParams {
    /// Seagate Cheetah 9LP of 1998: 9.1 GB, 10,045 rpm, queue depth 1.
    ///
    /// Geometry, seek times, settle times and cache size are published measurements. Controller overheads, set-up time and the
    /// speed of the interface come from the trace with which the model is validated (see `docs/algorithms/models.md`).
    pub fn cheetah9lp() -> Self {
        // First and last cylinder, blocks per track.
        const ZONES: [(u32, u32, u32); 11] = [
            (0, 846, 254),
            (848, 1643, 245),
            (1645, 2392, 238),
            (2394, 3096, 227),
            (3098, 3757, 217),
            (3759, 4379, 209),
            (4381, 4964, 201),
            (4966, 5515, 189),
            (5516, 6031, 181),
            (6032, 6517, 174),
            (6518, 6961, 167),
        ];
        // Cylinders, microseconds.
        const SEEK: [(u32, u64); 42] = [
            (1, 831),
            (2, 1_003),
            (3, 1_089),
            (5, 1_268),
            (8, 1_439),
            (12, 1_449),
            (18, 1_533),
            (25, 1_625),
            (35, 1_712),
            (50, 1_804),
            (70, 1_945),
            (100, 2_145),
            (150, 2_259),
            (200, 2_517),
            (250, 2_607),
            (300, 2_699),
            (350, 2_874),
            (400, 3_051),
            (450, 3_104),
            (500, 3_230),
            (600, 3_399),
            (700, 3_638),
            (800, 3_823),
            (900, 3_995),
            (1_000, 4_118),
            (1_200, 4_397),
            (1_400, 4_573),
            (1_600, 4_833),
            (1_800, 4_993),
            (2_000, 5_282),
            (2_300, 5_624),
            (2_600, 5_963),
            (3_000, 6_345),
            (3_400, 6_847),
            (3_800, 7_164),
            (4_200, 7_649),
            (4_700, 8_135),
            (5_200, 8_659),
            (5_700, 9_201),
            (6_200, 9_830),
            (6_600, 10_230),
            (6_894, 10_627),
        ];
        let zones = ZONES.iter().enumerate().map(|(index, &(first_cylinder, last_cylinder, blocks_per_track))| Zone {
            first_cylinder,
            last_cylinder,
            blocks_per_track,
            track_skew_blocks: if index < 6 { 97 } else { 88 },
            // 133 in the outermost zone, 80 in the innermost.
            cylinder_skew_blocks: 80 + (blocks_per_track - 167) * 53 / 87,
        });
        Self {
            rpm: 10_045,
            surfaces: 12,
            zones: zones.collect(),
            spare_blocks_per_cylinder: 21,
            capacity_bytes: 17_783_240 * BLOCK_BYTES,
            seek: SEEK.iter().map(|&(cylinders, us)| (cylinders, Duration::from_micros(us))).collect(),
            head_switch: Duration::from_micros(30),
            write_settle: Duration::from_micros(461),
            setup: Duration::from_micros(620),
            overhead: Overhead {
                read_sequential: Duration::from_micros(70),
                read_hit: Duration::from_micros(260),
                read_miss: Duration::from_micros(260),
                write_hit: Duration::from_micros(465),
                write: Duration::from_micros(715),
            },
            bus_bandwidth_bytes_per_s: 4_995_000,
            queue_depth: 1,
            scheduling: Scheduling::Fcfs,
            cache: Cache {
                segments: 3,
                segment_blocks: 561,
                read_ahead_blocks: 561,
                read_ahead_min_blocks: 0,
                write_back: true,
            },
        }
    }

    /// A typical disk of today's servers: 8 TB, 7,200 rpm, 8.5 ms average seek, sequential reads at 250 MB/s (outer edge) to
    /// 131 MB/s (inner edge), queue depth 32.
    ///
    /// No particular product: the figures are typical of the class; the seek time grows with the square root of the distance.
    pub fn nearline() -> Self {
        const ZONES: u32 = 20;
        const CYLINDERS: u32 = 30_000;
        let zones = (0..ZONES).map(|index| {
            let blocks_per_track = 4_560 - index * 120;
            Zone {
                first_cylinder: index * CYLINDERS,
                last_cylinder: (index + 1) * CYLINDERS - 1,
                blocks_per_track,
                // 1 ms of 8.33 ms: a little more than a switch takes.
                track_skew_blocks: blocks_per_track * 12 / 100,
                cylinder_skew_blocks: blocks_per_track * 12 / 100,
            }
        });
        let full_stroke = f64::from(ZONES * CYLINDERS);
        let seek = (0..=24).map(|step| {
            // Dense where the root bends.
            let distance = (full_stroke * libm::pow(f64::from(step) / 24.0, 3.0)) as u32;
            let us = 600.0 + 14_800.0 * libm::sqrt(f64::from(distance) / full_stroke);
            (distance.max(1), Duration::from_micros(us as u64))
        });
        Self {
            rpm: 7_200,
            surfaces: 8,
            zones: zones.collect(),
            spare_blocks_per_cylinder: 64,
            capacity_bytes: 8_000_000_000_000,
            seek: seek.collect(),
            head_switch: Duration::from_micros(800),
            write_settle: Duration::from_micros(100),
            setup: Duration::from_micros(200),
            overhead: Overhead {
                read_sequential: Duration::from_micros(50),
                read_hit: Duration::from_micros(100),
                read_miss: Duration::from_micros(100),
                write_hit: Duration::from_micros(60),
                write: Duration::from_micros(100),
            },
            bus_bandwidth_bytes_per_s: 550_000_000,
            queue_depth: 32,
            scheduling: Scheduling::Sptf,
            cache: Cache {
                segments: 128,
                segment_blocks: 4_096,
                read_ahead_blocks: 4_096,
                read_ahead_min_blocks: 1_024,
                write_back: true,
            },
        }
    }

    /// Time of one revolution.
    pub fn revolution(&self) -> Duration {
        Duration::from_nanos((60_000_000_000 + u64::from(self.rpm) / 2) / u64::from(self.rpm.max(1)))
    }

    /// Time of a seek over `cylinders`; zero for 0. O(log n).
    pub fn seek_time(&self, cylinders: u32) -> Duration {
        if cylinders == 0 {
            return Duration::ZERO;
        }
        let above = self.seek.partition_point(|&(distance, _)| distance < cylinders);
        let (low, high) = match (above, self.seek.as_slice()) {
            (_, []) => return Duration::ZERO,
            (0, [first, ..]) => return first.1,
            (_, [only]) => return only.1,
            (above, points) => {
                let high = above.min(points.len() - 1);
                (points[high - 1], points[high])
            }
        };
        let (run, rise) = (u64::from(high.0 - low.0), high.1.as_nanos().saturating_sub(low.1.as_nanos()));
        let part = u64::from(cylinders - low.0);
        let beyond = match rise.checked_mul(part) {
            Some(product) => product / run,
            None => u64::try_from(u128::from(rise) * u128::from(part) / u128::from(run)).unwrap_or(u64::MAX),
        };
        low.1 + Duration::from_nanos(beyond)
    }

    /// Number of data blocks in all zones together.
    pub fn zoned_blocks(&self) -> u64 {
        let blocks = self.zones.iter().map(|zone| zone.cylinders().saturating_mul(self.blocks_per_cylinder(zone)));
        blocks.fold(0, u64::saturating_add)
    }

    /// Number of blocks that requests can address: the capacity in blocks.
    pub fn blocks(&self) -> u64 {
        self.capacity_bytes / BLOCK_BYTES
    }

    /// Number of data blocks in a cylinder of `zone`.
    pub(super) fn blocks_per_cylinder(&self, zone: &Zone) -> u64 {
        (u64::from(self.surfaces) * u64::from(zone.blocks_per_track))
            .saturating_sub(u64::from(self.spare_blocks_per_cylinder))
    }

    /// Time for `blocks` to cross the interface, rounded up to a nanosecond.
    pub(super) fn bus_time(&self, blocks: u64) -> Duration {
        let nanos = u128::from(blocks * BLOCK_BYTES) * 1_000_000_000;
        Duration::from_nanos(nanos.div_ceil(u128::from(self.bus_bandwidth_bytes_per_s.max(1))) as u64)
    }

    /// Checks that the parameters are in range and fit together.
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        let zones_rise = self.zones.iter().all(|zone| zone.first_cylinder <= zone.last_cylinder)
            && self.zones.windows(2).all(|pair| pair[0].last_cylinder < pair[1].first_cylinder);
        let tracks_fit = self.zones.iter().all(|zone| (1..=1 << 20).contains(&zone.blocks_per_track));
        let skews_fit =
            self.zones.iter().all(|zone| zone.track_skew_blocks.max(zone.cylinder_skew_blocks) < zone.blocks_per_track);
        let spares_fit = self.zones.iter().all(|zone| self.spare_blocks_per_cylinder < zone.blocks_per_track);
        let seek_rises = self.seek.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        check(&[
            ((1..=100_000).contains(&self.rpm), "rpm", "1 to 100000"),
            ((1..=1_024).contains(&self.surfaces), "surfaces", "1 to 1024"),
            (!self.zones.is_empty(), "zones", "at least one"),
            (zones_rise, "zones", "in rising order of cylinders, without overlap"),
            (tracks_fit, "blocks_per_track", "1 to 1048576"),
            (skews_fit, "track_skew_blocks and cylinder_skew_blocks", "less than blocks_per_track"),
            (spares_fit, "spare_blocks_per_cylinder", "less than the blocks of a track"),
            (
                self.blocks() > 0 && self.blocks() <= self.zoned_blocks(),
                "capacity",
                "at least 512 and at most what the zones hold",
            ),
            (
                !self.seek.is_empty() && self.seek[0].0 > 0,
                "seek",
                "at least one pair, from a distance of 1 cylinder on",
            ),
            (seek_rises, "seek", "pairs of rising distance and time that does not fall"),
            (self.bus_bandwidth_bytes_per_s > 0, "bus_bandwidth", "greater than 0"),
            ((1..=1_024).contains(&self.queue_depth), "queue_depth", "1 to 1024"),
            ((2..=4_096).contains(&self.cache.segments), "segments", "2 to 4096"),
            (self.cache.segment_blocks > 0, "segment_blocks", "greater than 0"),
            (self.cache.read_ahead_blocks <= self.cache.segment_blocks, "read_ahead_blocks", "at most segment_blocks"),
            (
                self.cache.read_ahead_min_blocks <= self.cache.read_ahead_blocks,
                "read_ahead_min_blocks",
                "at most read_ahead_blocks",
            ),
        ])
    }
}

impl Zone {
    pub(super) fn cylinders(&self) -> u64 {
        u64::from(self.last_cylinder.saturating_sub(self.first_cylinder)) + 1
    }
}
