//! Positions of blocks, and when they pass under the head.
//!
//! All angles are whole nanoseconds of rotation and are rounded in one way only. So the end of one block is exactly the
//! beginning of the next, and a sequential request never misses the next block by a rounding error.

use alloc::vec::Vec;

use evenkeel_control::{Duration, Instant};

use super::params::{DiskParams, Zone};

/// A track, on which the head or a block is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Track {
    pub(super) cylinder: u32,
    pub(super) surface: u32,
}

/// Position of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    track: Track,
    /// Sectors from the index mark to the block, skew included.
    slot: u64,
    /// Nanoseconds of rotation from the index mark to the block.
    slot_ns: u64,
    /// Sectors of the track.
    slots: u64,
    /// Blocks from this one, included, to the last data block of the track.
    left: u64,
}

/// The head at the end of a motion, from which it may go to one of several places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    at: Instant,
    track: Track,
    /// Angle of the platters at `at`, in nanoseconds of rotation.
    angle_ns: u64,
}

/// A run of neighbouring blocks that passes under the head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// Instant at which the first block begins to pass.
    pub(super) first: Instant,
    /// Instant at which the last block has passed.
    pub(super) end: Instant,
    /// Number of blocks that have passed.
    pub(super) blocks: u64,
    /// Track of the head after the last block.
    pub(super) track: Track,
}

/// The platters: layout and rotation.
#[derive(Debug)]
pub(super) struct Geometry {
    params: DiskParams,
    /// For each zone: its first block, the number of data blocks in each of its cylinders, and its parameters.
    zones: Vec<(u64, u64, Zone)>,
    revolution_ns: u64,
    /// Angle of the platters at time zero, in nanoseconds of rotation.
    phase_ns: u64,
    /// Seek time in nanoseconds by distance in cylinders; empty for a disk with more than [`LISTED_SEEKS`] of them.
    seeks_ns: Vec<u32>,
}

/// Largest number of cylinders up to which seek times are listed: a list of 64 KiB. The nearest of many commands is found by
/// the seek times to all.
const LISTED_SEEKS: u32 = 16_384;

/// The seek times of a disk in nanoseconds by distance in cylinders; empty if there are too many, or one is too long.
fn listed_seeks(params: &DiskParams) -> Vec<u32> {
    let cylinders = params.zones.iter().map(|zone| zone.last_cylinder).max().unwrap_or(0);
    if cylinders >= LISTED_SEEKS {
        return Vec::new();
    }
    let seek_ns = |distance: u32| u32::try_from(params.seek_time(distance).as_nanos()).ok();
    (0..=cylinders).map(seek_ns).collect::<Option<Vec<u32>>>().unwrap_or_default()
}

impl Geometry {
    pub(super) fn new(params: DiskParams, phase: u64) -> Self {
        let mut first = 0;
        let mut zones = Vec::with_capacity(params.zones.len());
        for zone in &params.zones {
            let blocks = params.blocks_per_cylinder(zone);
            zones.push((first, blocks, *zone));
            first += blocks * zone.cylinders();
        }
        let revolution_ns = params.revolution().as_nanos();
        let seeks_ns = listed_seeks(&params);
        Self { params, zones, revolution_ns, phase_ns: phase % revolution_ns, seeks_ns }
    }

    pub(super) fn params(&self) -> &DiskParams {
        &self.params
    }

    /// The position of `block`.
    pub(super) fn place(&self, block: u64) -> Place {
        let index = self.zones.partition_point(|&(first, ..)| first <= block).saturating_sub(1);
        let (first, blocks, zone) = self.zones[index];
        let slots = u64::from(zone.blocks_per_track);
        let (cylinder, within) = ((block - first) / blocks, (block - first) % blocks);
        let (surface, sector) = (within / slots, within % slots);
        let per_track = u64::from(zone.track_skew_blocks);
        let per_cylinder = u64::from(self.params.surfaces - 1) * per_track + u64::from(zone.cylinder_skew_blocks);
        let skew = cylinder % slots * (per_cylinder % slots) + surface * per_track;
        let slot = (sector + skew) % slots;
        Place {
            track: Track { cylinder: zone.first_cylinder + cylinder as u32, surface: surface as u32 },
            slot,
            slot_ns: self.slot_ns(slots, slot),
            slots,
            left: (slots - sector).min(blocks - within),
        }
    }

    /// When `block` begins to pass under the head, which leaves track `from` at `at`; not before `ready`, when the electronics
    /// are ready.
    pub(super) fn reach(&self, at: Instant, from: Track, block: u64, write: bool, ready: Instant) -> Instant {
        let place = self.place(block);
        let arrived = at + self.move_time(from, place.track, write);
        self.next_pass(arrived.max(ready), &place)
    }

    /// The head, which leaves track `from` at `at`.
    pub(super) fn head(&self, at: Instant, from: Track) -> Head {
        Head { at, track: from, angle_ns: self.angle_ns(at) }
    }

    /// As [`Self::reach`], for one of many places; `None` if the place is not reached before `limit`, as far as that follows from
    /// the way there alone.
    #[inline]
    pub(super) fn reach_within(
        &self,
        head: &Head,
        place: &Place,
        write: bool,
        ready: Instant,
        limit: Option<Instant>,
    ) -> Option<Instant> {
        let arrived = (head.at + self.move_time(head.track, place.track, write)).max(ready);
        if limit.is_some_and(|limit| arrived >= limit) {
            return None;
        }
        let turned_ns = head.angle_ns + arrived.since(head.at).as_nanos() % self.revolution_ns;
        let angle_ns = if turned_ns >= self.revolution_ns { turned_ns - self.revolution_ns } else { turned_ns };
        Some(arrived + self.wait(place, angle_ns))
    }

    /// The pass over `blocks` blocks from `block` on, which begins at `first`; it is cut off at `until`.
    pub(super) fn pass(&self, first: Instant, block: u64, blocks: u64, write: bool, until: Instant) -> Pass {
        let mut place = self.place(block);
        let mut pass = Pass { first, end: first, blocks: 0, track: place.track };
        let mut begin = first;
        while begin <= until {
            let here = place.left.min(blocks - pass.blocks);
            let start_ns = place.slot_ns;
            // All of them, if nothing cuts the pass off.
            let passed = if until == Instant::FAR_FUTURE {
                here
            } else {
                let until_ns = start_ns.saturating_add(until.since(begin).as_nanos());
                here.min(self.slots_within(&place, until_ns) - place.slot)
            };
            pass.track = place.track;
            pass.end = begin + Duration::from_nanos(self.slot_ns(place.slots, place.slot + passed) - start_ns);
            pass.blocks += passed;
            if passed < here || pass.blocks == blocks {
                break;
            }
            let next = self.place(block + pass.blocks);
            begin = self.next_pass(pass.end + self.move_time(place.track, next.track, write), &next);
            place = next;
        }
        pass
    }

    /// Time to move the head from one track to another and to settle; zero for the same track.
    fn move_time(&self, from: Track, to: Track, write: bool) -> Duration {
        let distance = from.cylinder.abs_diff(to.cylinder);
        let travel = match (distance, from.surface == to.surface) {
            (0, true) => return Duration::ZERO,
            (0, false) => self.params.head_switch,
            (_, true) => self.seek_time(distance),
            // The switch happens on the way.
            (_, false) => self.seek_time(distance).max(self.params.head_switch),
        };
        travel + if write { self.params.write_settle } else { Duration::ZERO }
    }

    /// [`DiskParams::seek_time`].
    #[inline]
    fn seek_time(&self, cylinders: u32) -> Duration {
        match self.seeks_ns.get(cylinders as usize) {
            Some(&ns) => Duration::from_nanos(ns.into()),
            None => self.params.seek_time(cylinders),
        }
    }

    fn next_pass(&self, at: Instant, place: &Place) -> Instant {
        at + self.wait(place, self.angle_ns(at))
    }

    /// Angle of the platters at `at`, in nanoseconds of rotation.
    fn angle_ns(&self, at: Instant) -> u64 {
        (at.as_nanos() % self.revolution_ns + self.phase_ns) % self.revolution_ns
    }

    /// Time from the angle `angle_ns` of the platters until `place` begins to pass under the head.
    #[inline]
    fn wait(&self, place: &Place, angle_ns: u64) -> Duration {
        let wait_ns = place.slot_ns + self.revolution_ns - angle_ns;
        Duration::from_nanos(if wait_ns >= self.revolution_ns { wait_ns - self.revolution_ns } else { wait_ns })
    }

    /// Nanoseconds of rotation from the index mark to the beginning of sector `slot` of a track of `slots` sectors; more than a
    /// revolution if `slot` counts on beyond the end of the track.
    fn slot_ns(&self, slots: u64, slot: u64) -> u64 {
        slot * self.revolution_ns / slots
    }

    /// Number of sectors from the index mark that have passed after `ns` nanoseconds: the inverse of [`Self::slot_ns`].
    fn slots_within(&self, place: &Place, ns: u64) -> u64 {
        let slots = ((u128::from(ns) + 1) * u128::from(place.slots) - 1) / u128::from(self.revolution_ns);
        u64::try_from(slots).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn listed_seek_times_are_those_of_the_parameters() {
        let slow = DiskParams { seek: alloc::vec![(1, Duration::from_secs(5))], ..DiskParams::cheetah9lp() };
        let all = [DiskParams::cheetah9lp(), DiskParams::nearline(), slow].map(|params| Geometry::new(params, 7));
        assert_eq!(all.each_ref().map(|geometry| geometry.seeks_ns.len()), [6_962, 0, 0]);
        for geometry in all {
            for distance in (0..7_000).chain([100_000, 599_999]) {
                assert_eq!(geometry.seek_time(distance), geometry.params.seek_time(distance), "{distance} cylinders");
            }
        }
    }

    proptest! {
        #[test]
        fn a_place_among_many_is_reached_when_it_is_reached_alone_or_left_out(
            (at, phase, from, block) in (0u64..1 << 50, any::<u64>(), 0u64..17_783_240, 0u64..17_783_240),
            (write, later, limit) in (any::<bool>(), 0u64..20_000_000, prop::option::of(0u64..30_000_000)),
        ) {
            let geometry = Geometry::new(DiskParams::cheetah9lp(), phase);
            let (at, from) = (Instant::from_nanos(at), geometry.place(from).track);
            let ready = at + Duration::from_nanos(later);
            let alone = geometry.reach(at, from, block, write, ready);
            let limit = limit.map(|nanos| at + Duration::from_nanos(nanos));
            let (head, place) = (geometry.head(at, from), geometry.place(block));
            match geometry.reach_within(&head, &place, write, ready, limit) {
                Some(first) => prop_assert_eq!(first, alone),
                None => prop_assert!(limit.is_some_and(|limit| alone >= limit)),
            }
        }

        #[test]
        fn a_pass_that_is_cut_off_late_is_whole(
            (block, blocks, write) in (0u64..17_000_000, 1u64..3_000, any::<bool>()),
        ) {
            let geometry = Geometry::new(DiskParams::cheetah9lp(), 7);
            let late = Instant::from_nanos(1 << 60);
            let pass = |until| geometry.pass(Instant::ZERO, block, blocks, write, until);
            let (whole, late) = (pass(Instant::FAR_FUTURE), pass(late));
            prop_assert_eq!((whole.blocks, whole.end, whole.track), (blocks, late.end, late.track));
        }
    }
}
