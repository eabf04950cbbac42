//! A priority queue of client indices whose keys can change.
//!
//! A 4-ary heap on a flat array, with an array of each client's position in it: the four
//! children of an entry share a cache line or two, and a heap of 10,000 entries is seven
//! levels deep (a binary one fourteen). All operations are O(log n). Positions are in an
//! array of their own because they are written at every step of a sift, and a whole client
//! is three cache lines.

use alloc::vec::Vec;

const ARITY: usize = 4;
const ABSENT: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    index: u32,
}

/// A min-heap of client indices, each present at most once.
///
/// With `WRAPPING`, keys are the low 64 bits of wider numbers that lie within 2⁶³ of each other, and compare
/// modulo 2⁶⁴.
pub(super) struct Heap<const WRAPPING: bool> {
    entries: Vec<Entry>,
    positions: Vec<u32>,
}

impl<const WRAPPING: bool> Heap<WRAPPING> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), positions: Vec::new() }
    }

    /// Makes room for one more client index, the next higher one.
    pub(super) fn grow(&mut self) {
        self.positions.push(ABSENT);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The smallest key, and the index of its client; `None` if the heap is empty.
    #[inline]
    pub(super) fn peek(&self) -> Option<(u64, u32)> {
        self.entries.first().map(|entry| (entry.key, entry.index))
    }

    /// The key of a client, if it is present.
    #[inline]
    pub(super) fn key_of(&self, index: u32) -> Option<u64> {
        let position = self.positions[index as usize];
        (position != ABSENT).then(|| self.entries[position as usize].key)
    }

    /// Inserts a client or changes its key.
    #[inline]
    pub(super) fn set(&mut self, index: u32, key: u64) {
        let entry = Entry { key, index };
        let position = self.positions[index as usize];
        if position == ABSENT {
            self.entries.push(entry);
            self.sift_up(self.entries.len() - 1, entry);
            return;
        }
        let position = position as usize;
        if Self::before(self.entries[position].key, key) {
            self.sift_down(position, entry);
        } else {
            self.sift_up(position, entry);
        }
    }

    /// Takes a client out, if it is present.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) {
        let position = self.positions[index as usize];
        if position == ABSENT {
            return;
        }
        self.positions[index as usize] = ABSENT;
        let position = position as usize;
        let removed = self.entries[position];
        let Some(last) = self.entries.pop() else { return };
        if last.index == index {
            return;
        }
        if Self::before(removed.key, last.key) {
            self.sift_down(position, last);
        } else {
            self.sift_up(position, last);
        }
    }

    #[inline]
    fn before(a: u64, b: u64) -> bool {
        if WRAPPING { (a.wrapping_sub(b) as i64) < 0 } else { a < b }
    }

    #[inline]
    fn put(&mut self, position: usize, entry: Entry) {
        self.entries[position] = entry;
        self.positions[entry.index as usize] = position as u32;
    }

    /// Moves the hole at `position` towards the root until `entry` fits.
    #[inline]
    fn sift_up(&mut self, mut position: usize, entry: Entry) {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            let above = self.entries[parent];
            if !Self::before(entry.key, above.key) {
                break;
            }
            self.put(position, above);
            position = parent;
        }
        self.put(position, entry);
    }

    /// Moves the hole at `position` towards the leaves until `entry` fits.
    #[inline]
    fn sift_down(&mut self, mut position: usize, entry: Entry) {
        loop {
            let first = ARITY * position + 1;
            let (child, least) = match self.entries.get(first..first + ARITY) {
                // Pairwise, so that the two halves run in parallel and nothing branches.
                Some(c) => {
                    let left = if Self::before(c[1].key, c[0].key) { (first + 1, c[1]) } else { (first, c[0]) };
                    let right = if Self::before(c[3].key, c[2].key) { (first + 3, c[3]) } else { (first + 2, c[2]) };
                    if Self::before(right.1.key, left.1.key) { right } else { left }
                }
                None => {
                    let Some(last) = self.entries.get(first..) else { break };
                    let mut least: Option<(usize, Entry)> = None;
                    for (offset, &entry) in last.iter().enumerate() {
                        if least.is_none_or(|(_, best)| Self::before(entry.key, best.key)) {
                            least = Some((first + offset, entry));
                        }
                    }
                    let Some(least) = least else { break };
                    least
                }
            };
            if !Self::before(least.key, entry.key) {
                break;
            }
            self.put(position, least);
            position = child;
        }
        self.put(position, entry);
    }
}
