//! Valid data and garbage in the flash, without a table of every page.
//!
//! Data is counted in units of 4 KiB. The flash consists of [`GROUPS`] groups of equal size for the capacity, and of spare
//! groups; groups are filled one after the other. The address space consists of [`REGIONS`] regions. The model counts the
//! valid units of each region in each group. A write makes as many old units of its region garbage: the oldest if the write
//! continues the last write to the region, random units otherwise. So sequential passes leave groups that are all garbage and
//! cost nothing to collect, random writes leave a little garbage everywhere, and regions that are written often differ from
//! others. Write amplification follows: to collect the group with the fewest valid units moves v / (1 − v) units for each unit
//! gained, v being its valid share.

use alloc::vec;
use alloc::vec::Vec;

use evenkeel_control::rng::SplitMix64;

use super::params::{Geometry, UNIT_BYTES};

/// Number of groups that make up the capacity; enough for the valid share of the group under collection to change smoothly.
const GROUPS: usize = 512;
/// Number of regions of equal size that make up the address space.
const REGIONS: usize = 64;
/// Number of groups beyond capacity and spare space: two that are being filled and two that collection keeps free.
const RESERVE: usize = 4;
/// Number of free groups below which collection runs; with half as many, it gains as much space as the host writes.
const LOW: f64 = 8.0;

/// Valid units of one region in each group, with a Fenwick tree of their prefix sums (Fenwick 1994).
struct Region {
    /// Valid units of the region, by group.
    units: Vec<u32>,
    tree: Vec<u32>,
    /// Valid units of the region in all groups.
    valid: u32,
    /// End of the last write, in units from the start of the region.
    next: u64,
    /// Units written so far by the present sequential pass over the region; 0 if the last write was random.
    pass: u32,
    /// Result of the last search for the oldest group with data of the region: the group and its age.
    oldest: (usize, u64),
}

impl Region {
    fn new(groups: usize) -> Self {
        Self {
            units: vec![0; groups],
            tree: vec![0; groups + 1],
            valid: 0,
            next: u64::MAX,
            pass: 0,
            oldest: (0, u64::MAX),
        }
    }

    fn add(&mut self, group: usize, count: u32) {
        self.units[group] += count;
        self.valid += count;
        let mut node = group + 1;
        while node < self.tree.len() {
            self.tree[node] += count;
            node += node & node.wrapping_neg();
        }
    }

    fn remove(&mut self, group: usize, count: u32) {
        self.units[group] -= count;
        self.valid -= count;
        let mut node = group + 1;
        while node < self.tree.len() {
            self.tree[node] -= count;
            node += node & node.wrapping_neg();
        }
    }

    /// The group that holds valid unit number `rank` (from 0) of the region, if its valid units are numbered group by group.
    fn find(&self, mut rank: u32) -> usize {
        let (mut node, mut step) = (0, self.tree.len().next_power_of_two() / 2);
        while step > 0 {
            if node + step < self.tree.len() && self.tree[node + step] <= rank {
                node += step;
                rank -= self.tree[node];
            }
            step /= 2;
        }
        node
    }
}

#[derive(Clone, Copy, Default)]
struct Group {
    valid: u32,
    /// Number of the group's last opening, counted over all groups; a lower number means older data.
    age: u64,
}

/// The group that collection empties.
struct Victim {
    group: usize,
    /// Valid units of the group when its collection began.
    valid_at_start: u32,
    /// The region whose units are moved now; units of regions with lower numbers are moved already.
    region: usize,
}

/// A group that is being filled, with `room` for further units.
struct Open {
    group: usize,
    room: u32,
}

/// Groups and regions of the flash.
pub(super) struct Space {
    /// Units of a group.
    size: u32,
    region_units: u64,
    regions: Vec<Region>,
    groups: Vec<Group>,
    /// By group: true if the group is full and collection may take it.
    closed: Vec<bool>,
    free: Vec<usize>,
    /// The group that the host's writes fill.
    host: Open,
    /// The group that collection fills.
    moved: Open,
    victim: Option<Victim>,
    /// Openings of groups so far.
    begun: u64,
    /// Units that collection must move for the host's writes so far and has not moved; less than one after each write.
    credit: f64,
}

impl Space {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let units = geometry.capacity_bytes.div_ceil(UNIT_BYTES);
        let size = units.div_ceil(GROUPS as u64) as u32;
        let spare = libm::ceil(geometry.spare_percent / 100.0 * GROUPS as f64) as usize;
        let count = GROUPS + spare + RESERVE;
        let mut space = Self {
            size,
            region_units: units.div_ceil(REGIONS as u64),
            regions: (0..REGIONS).map(|_| Region::new(count)).collect(),
            groups: vec![Group::default(); count],
            closed: vec![false; count],
            free: (0..count).rev().collect(),
            host: Open { group: 0, room: 0 },
            moved: Open { group: 0, room: 0 },
            victim: None,
            begun: 0,
            credit: 0.0,
        };
        space.fill(geometry, units);
        space.host = space.open();
        space.moved = space.open();
        space
    }

    /// Fills groups with the initial data: densely, or on an aged drive as random writes leave it.
    ///
    /// On an aged drive a group's valid share is e^(−k·age), the age falling from 1 (oldest group) to 0 (newest), with k such
    /// that the mean is the share of valid data (Desnoyers, SYSTOR 2012, for first in first out).
    fn fill(&mut self, geometry: &Geometry, units: u64) {
        let data = (units as f64 * geometry.used) as u64;
        let filled =
            if geometry.aged { self.groups.len() - RESERVE } else { data.div_ceil(u64::from(self.size)) as usize };
        let share = data as f64 / (filled as f64 * f64::from(self.size)).max(1.0);
        let decay = decay_of_mean(share);
        let mut left = data;
        for i in 0..filled {
            let group = self.open().group;
            let age = 1.0 - i as f64 / filled as f64;
            let wanted = if geometry.aged {
                libm::round(f64::from(self.size) * libm::exp(-decay * age)) as u64
            } else {
                u64::from(self.size)
            };
            let valid = wanted.min(left);
            // Dealt one by one to the regions in turn.
            let dealt_to = |region: u64, units: u64| (units + REGIONS as u64 - 1 - region) / REGIONS as u64;
            for region in 0..REGIONS as u64 {
                let part = dealt_to(region, data - left + valid) - dealt_to(region, data - left);
                self.regions[region as usize].add(group, part as u32);
            }
            left -= valid;
            self.groups[group].valid = valid as u32;
            self.closed[group] = true;
        }
    }

    /// Writes `count` units from `unit` on; returns the number of units that collection moves for this write.
    pub(super) fn write(&mut self, unit: u64, count: u64, rng: &mut SplitMix64) -> u64 {
        let mut moves = 0;
        self.each_region(unit, count, |space, region, start, count| {
            // In steps small enough for collection to keep up.
            let step = space.size.div_ceil(8);
            for begin in (0..count).step_by(step as usize) {
                let part = step.min(count - begin);
                space.overwrite(region, start + u64::from(begin), part, rng);
                space.append(region, part, true);
                moves += space.moves_for(part);
            }
        });
        moves
    }

    /// Trims `count` units from `unit` on: in each region they touch, the trimmed part of its valid units becomes garbage, evenly
    /// over the groups.
    pub(super) fn trim(&mut self, unit: u64, count: u64) {
        self.each_region(unit, count, |space, region, _, count| {
            let whole = space.region_units;
            let mut carry = 0;
            for group in 0..space.groups.len() {
                let held = u64::from(space.regions[region].units[group]);
                let due = held * u64::from(count) + carry;
                let gone = (due / whole).min(held) as u32;
                carry = due - u64::from(gone) * whole;
                if gone > 0 {
                    space.discard(region, group, gone);
                }
            }
        });
    }

    /// Collects as much as the write of `written` more units requires; returns the number of units moved.
    fn moves_for(&mut self, written: u32) -> u64 {
        let low = LOW * f64::from(self.size);
        let free = self.free_units();
        if free >= low {
            return 0;
        }
        let Some(victim) = self.victim() else { return 0 };
        let share = f64::from(victim.valid_at_start) / f64::from(self.size);
        self.credit += f64::from(written) * share / (1.0 - share) * 2.0 * (1.0 - free / low);
        let due = libm::floor(self.credit);
        self.credit -= due;
        self.collect(due as u64)
    }

    /// Calls `work(self, region, start, units)` for each region that `count` units from `unit` on touch; `start` is the first
    /// unit touched, counted from the start of the region.
    fn each_region(&mut self, unit: u64, count: u64, mut work: impl FnMut(&mut Self, usize, u64, u32)) {
        let (mut unit, mut left) = (unit % (self.region_units * REGIONS as u64), count);
        while left > 0 {
            let (region, start) = ((unit / self.region_units) as usize, unit % self.region_units);
            let part = left.min(self.region_units - start);
            work(self, region, start, part as u32);
            unit = (unit + part) % (self.region_units * REGIONS as u64);
            left -= part;
        }
    }

    fn overwrite(&mut self, region: usize, start: u64, count: u32, rng: &mut SplitMix64) {
        let whole = self.region_units;
        let known = &mut self.regions[region];
        let sequential = start == known.next || start == 0;
        if !sequential || start == 0 {
            known.pass = 0;
        }
        known.next = start + u64::from(count);
        if !sequential {
            for _ in 0..count {
                let rank = rng.next_below(whole);
                let known = &self.regions[region];
                if rank < u64::from(known.valid) {
                    let group = known.find(rank as u32);
                    self.discard(region, group, 1);
                }
            }
            self.make_room(region, count);
            return;
        }
        // What the pass has not reached yet is spread over the rest of the region.
        let old = u64::from(known.valid.saturating_sub(known.pass));
        let room = (whole - u64::from(known.pass)).max(1);
        known.pass += count;
        let expected = u64::from(count) * old;
        let gone = expected / room + u64::from(rng.next_below(room) < expected % room);
        let mut left = gone.min(old) as u32;
        while left > 0 {
            let group = self.oldest(region);
            let part = left.min(self.regions[region].units[group]);
            self.discard(region, group, part);
            left -= part;
        }
        self.make_room(region, count);
    }

    /// Makes valid units of a region garbage, as many as necessary for `count` more to be at most the size of the region.
    fn make_room(&mut self, region: usize, count: u32) {
        while u64::from(self.regions[region].valid) + u64::from(count) > self.region_units {
            let group = self.regions[region].find(0);
            self.discard(region, group, 1);
        }
    }

    /// The oldest group that holds data of the region; there must be one.
    fn oldest(&mut self, region: usize) -> usize {
        let known = &self.regions[region];
        let (group, age) = known.oldest;
        if known.units[group] > 0 && self.groups[group].age == age {
            return group;
        }
        let held = (0..self.groups.len()).filter(|&group| known.units[group] > 0);
        let oldest = held.min_by_key(|&group| self.groups[group].age).unwrap_or(0);
        self.regions[region].oldest = (oldest, self.groups[oldest].age);
        oldest
    }

    fn discard(&mut self, region: usize, group: usize, count: u32) {
        self.regions[region].remove(group, count);
        self.groups[group].valid -= count;
    }

    /// Adds `count` valid units of a region to the group that the host's writes fill, or if not `host` to the one that collection
    /// fills.
    fn append(&mut self, region: usize, mut count: u32, host: bool) {
        while count > 0 {
            let open = if host { &mut self.host } else { &mut self.moved };
            let part = count.min(open.room);
            open.room -= part;
            let (group, full) = (open.group, open.room == 0);
            if part > 0 {
                self.regions[region].add(group, part);
                self.groups[group].valid += part;
                count -= part;
            }
            if full {
                self.closed[group] = true;
                let next = self.open();
                *(if host { &mut self.host } else { &mut self.moved }) = next;
            }
        }
    }

    /// Moves up to `due` valid units out of groups under collection; returns the number moved.
    fn collect(&mut self, due: u64) -> u64 {
        let mut moved = 0;
        while moved < due {
            let Some(victim) = self.victim() else { break };
            let (group, region) = (victim.group, victim.region);
            let part = u64::from(self.regions[region].units[group]).min(due - moved) as u32;
            self.discard(region, group, part);
            self.append(region, part, false);
            moved += u64::from(part);
            self.finish_victim();
        }
        moved
    }

    /// Proceeds to the next region with valid units in the group under collection; frees the group if no valid units are left.
    fn finish_victim(&mut self) {
        let Some(victim) = &mut self.victim else { return };
        while victim.region < REGIONS && self.regions[victim.region].units[victim.group] == 0 {
            victim.region += 1;
        }
        if victim.region == REGIONS {
            self.free.push(victim.group);
            self.victim = None;
        }
    }

    /// The group under collection. If there is none, collection begins with the closed group that has the fewest valid units,
    /// unless even this group has no garbage.
    fn victim(&mut self) -> Option<&Victim> {
        // Each turn either finds a victim with something in it or frees one with nothing.
        while self.victim.is_none() {
            let group = self.emptiest()?;
            let valid = self.groups[group].valid;
            if valid >= self.size {
                return None;
            }
            self.closed[group] = false;
            self.victim = Some(Victim { group, valid_at_start: valid, region: 0 });
            self.finish_victim();
            if self.free.len() > RESERVE {
                break;
            }
        }
        self.victim.as_ref()
    }

    /// Units that can be written without more collection; the group under collection counts by the part of it that is done.
    fn free_units(&self) -> f64 {
        let open = f64::from(self.host.room) + f64::from(self.moved.room);
        let gained = self.victim.as_ref().map_or(0.0, |victim| {
            let left = f64::from(self.groups[victim.group].valid);
            1.0 - left / f64::from(victim.valid_at_start.max(1))
        });
        (self.free.len() as f64 + gained) * f64::from(self.size) + open
    }

    /// Opens a group to be filled: a free one, or if there is none, the closed group with the fewest valid units, in place of its
    /// garbage.
    fn open(&mut self) -> Open {
        let group = self.free.pop().or_else(|| self.emptiest()).unwrap_or(0);
        self.closed[group] = false;
        self.begun += 1;
        self.groups[group].age = self.begun;
        Open { group, room: self.size - self.groups[group].valid }
    }

    fn emptiest(&self) -> Option<usize> {
        (0..self.groups.len()).filter(|&group| self.closed[group]).min_by_key(|&group| self.groups[group].valid)
    }
}

/// The k with (1 − e^−k) / k = `mean`, by bisection.
fn decay_of_mean(mean: f64) -> f64 {
    let (mut low, mut high) = (0.0, 700.0);
    for _ in 0..60 {
        let k = (low + high) / 2.0;
        if (1.0 - libm::exp(-k)) / k > mean { low = k } else { high = k }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests;
