//! The blocks that are on the fast device, with replacement of the least recently used one.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// The slot number that means "no slot".
const NONE: u32 = u32::MAX;

/// A block on the fast device.
#[derive(Clone, Copy, Debug)]
struct Slot {
    block: u64,
    /// Number of the slot that was used next after this one, or [`NONE`].
    newer: u32,
    /// Number of the slot that was used last before this one, or [`NONE`].
    older: u32,
    /// True if the slow device does not have the block's present content.
    dirty: bool,
}

/// The blocks on the fast device, in order of last use.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    slots: Vec<Slot>,
    capacity: usize,
    /// Hash table from a block to its slot number, with open addressing and linear probing; at most half full.
    index: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// Pairs of slot and block in the order in which the blocks became dirty. A pair is void if the slot is clean again or
    /// holds another block.
    dirtied: VecDeque<(u32, u64)>,
    /// Number of dirty blocks.
    dirty: usize,
}

impl Cache {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            slots: Vec::with_capacity(capacity),
            capacity,
            index: vec![NONE; (2 * capacity).next_power_of_two()],
            newest: NONE,
            oldest: NONE,
            dirtied: VecDeque::new(),
            dirty: 0,
        }
    }

    /// `Ok`: the place in the index of `block`, which is in the cache. `Err`: the free place where `block` would go.
    fn place(&self, block: u64) -> Result<usize, usize> {
        let mask = self.index.len() - 1;
        let mut place = home(block, mask);
        loop {
            match self.index[place] {
                NONE => return Err(place),
                slot if self.slots[slot as usize].block == block => return Ok(place),
                _ => place = (place + 1) & mask,
            }
        }
    }

    /// Marks a block as the last one used, and as dirty if `write`. False if the block is not in the cache.
    pub(super) fn touch(&mut self, block: u64, write: bool) -> bool {
        let Ok(place) = self.place(block) else { return false };
        let slot = self.index[place];
        if self.newest != slot {
            self.unlink(slot);
            self.link_newest(slot);
        }
        if write {
            self.soil(slot);
        }
        true
    }

    /// Inserts a block that is not in the cache, dirty if `write`. True if it replaced a dirty block.
    pub(super) fn insert(&mut self, block: u64, write: bool) -> bool {
        let mut was_dirty = false;
        let slot = if self.slots.len() < self.capacity {
            self.slots.push(Slot { block, newer: NONE, older: NONE, dirty: false });
            (self.slots.len() - 1) as u32
        } else {
            let slot = self.oldest;
            self.unlink(slot);
            let victim = self.slots[slot as usize];
            if let Ok(place) = self.place(victim.block) {
                self.remove(place);
            }
            was_dirty = victim.dirty;
            self.dirty -= usize::from(was_dirty);
            self.slots[slot as usize] = Slot { block, newer: NONE, older: NONE, dirty: false };
            slot
        };
        if let Err(place) = self.place(block) {
            self.index[place] = slot;
        }
        self.link_newest(slot);
        if write {
            self.soil(slot);
        }
        was_dirty
    }

    /// Number of dirty blocks, whose content the slow device does not have.
    pub(super) const fn dirty(&self) -> usize {
        self.dirty
    }

    /// Marks the block that has been dirty for longest as clean. False if no block is dirty.
    pub(super) fn clean_one(&mut self) -> bool {
        while let Some((slot, block)) = self.dirtied.pop_front() {
            let slot = &mut self.slots[slot as usize];
            if slot.dirty && slot.block == block {
                slot.dirty = false;
                self.dirty -= 1;
                return true;
            }
        }
        false
    }

    fn soil(&mut self, slot: u32) {
        let found = &mut self.slots[slot as usize];
        if found.dirty {
            return;
        }
        found.dirty = true;
        self.dirty += 1;
        self.dirtied.push_back((slot, found.block));
        // Entries that no longer hold are dropped before they outnumber the blocks.
        if self.dirtied.len() > 2 * self.capacity {
            let slots = &self.slots;
            let mut seen = vec![false; slots.len()];
            self.dirtied.retain(|&(slot, block)| {
                let found = &slots[slot as usize];
                found.dirty && found.block == block && !core::mem::replace(&mut seen[slot as usize], true)
            });
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let second = core::mem::replace(&mut self.newest, slot);
        let found = &mut self.slots[slot as usize];
        (found.newer, found.older) = (NONE, second);
        match second {
            NONE => self.oldest = slot,
            second => self.slots[second as usize].newer = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { newer, older, .. } = self.slots[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }

    /// Empties a place of the index, and moves later entries so that they are still found.
    fn remove(&mut self, place: usize) {
        let mask = self.index.len() - 1;
        let (mut hole, mut next) = (place, (place + 1) & mask);
        while self.index[next] != NONE {
            let wanted = home(self.slots[self.index[next] as usize].block, mask);
            // Whether the hole lies between where it wants to be and where it is, around the end.
            if (next.wrapping_sub(wanted) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.index[hole] = self.index[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.index[hole] = NONE;
    }
}

/// The place in the index where the search for a block begins.
fn home(block: u64, mask: usize) -> usize {
    (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_control::rng::SplitMix64;

    #[test]
    fn holds_what_a_plain_list_holds() {
        let mut rng = SplitMix64::new(3);
        for capacity in [1, 2, 7, 64] {
            let mut cache = Cache::new(capacity);
            // Newest last, with whether it is dirty.
            let mut list: Vec<(u64, bool)> = Vec::new();
            for _ in 0..20_000 {
                if rng.next_below(10) == 0 {
                    let cleaned = cache.clean_one();
                    assert_eq!(cleaned, list.iter().any(|entry| entry.1));
                    if cleaned {
                        // The list does not know who became dirty first: it takes what the cache says.
                        let clean = list.iter().position(|&(block, dirty)| {
                            dirty && cache.place(block).is_ok_and(|at| !cache.slots[cache.index[at] as usize].dirty)
                        });
                        list[clean.unwrap()].1 = false;
                    }
                    continue;
                }
                let (block, write) = (rng.next_below(2 * capacity as u64 + 3), rng.next_below(3) == 0);
                let known = list.iter().position(|entry| entry.0 == block);
                assert_eq!(cache.touch(block, write), known.is_some());
                let dirty = match known {
                    Some(at) => list.remove(at).1,
                    None => {
                        let victim = (list.len() == capacity).then(|| list.remove(0));
                        assert_eq!(cache.insert(block, write), victim.is_some_and(|victim| victim.1));
                        false
                    }
                };
                list.push((block, dirty || write));
                assert_eq!(cache.dirty(), list.iter().filter(|entry| entry.1).count());
            }
        }
    }

    #[test]
    fn who_was_dirty_for_longest_is_cleaned_first() {
        let mut cache = Cache::new(4);
        for block in 0..4 {
            cache.insert(block, true);
        }
        cache.touch(0, true);
        assert!(cache.clean_one());
        // Block 0 is clean and the newest; 1 is dirty and the oldest.
        assert!(cache.insert(10, false));
        assert_eq!(cache.dirty(), 2);
    }
}
