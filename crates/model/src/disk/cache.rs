//! The cache in the disk's memory. A segment holds one run of neighbouring blocks that were read ahead or written.

use alloc::vec::Vec;
use core::ops::Range;

use super::params::Cache as Params;

/// The content of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Blocks that were read ahead and not sent to the host yet.
    Ahead,
    /// Blocks that the host wrote and that are on the platter, too.
    Clean,
    /// Written blocks that are not on the platter yet.
    Dirty,
    /// Written blocks that are being written to the platter.
    Writing,
}

#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) id: u64,
    pub(super) blocks: Range<u64>,
    pub(super) content: Content,
    /// Value of the cache's use counter at the last use of the segment.
    used: u64,
}

/// The segments of the cache. Unwritten data is data that is not on the platter yet; segments without it are replaced in order
/// of last use. O(segments) an operation.
#[derive(Debug, Default)]
pub(super) struct Cache {
    segments: Vec<Segment>,
    uses: u64,
    ids: u64,
}

impl Cache {
    pub(super) fn segment(&self, id: u64) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.id == id)
    }

    fn segment_mut(&mut self, id: u64) -> Option<&mut Segment> {
        self.segments.iter_mut().find(|segment| segment.id == id)
    }

    pub(super) fn dirty(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.content == Content::Dirty)
    }

    /// True if a segment with an id below `id` holds unwritten data.
    pub(super) fn unwritten_before(&self, id: u64) -> bool {
        self.segments.iter().any(|segment| segment.is_unwritten() && segment.id < id)
    }

    /// The id that the next new segment will get; it is above the ids of all segments so far.
    pub(super) fn next_id(&self) -> u64 {
        self.ids
    }

    /// The segment that holds all of `blocks`.
    pub(super) fn find(&self, blocks: &Range<u64>) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.blocks.start <= blocks.start && blocks.end <= segment.blocks.end)
    }

    /// The read-ahead segment that holds `block` or ends right before it.
    pub(super) fn find_reaching(&self, block: u64) -> Option<&Segment> {
        // One condition, which seldom holds: it is asked for each waiting command at each motion of the arm.
        let within = |blocks: &Range<u64>| block.wrapping_sub(blocks.start) <= blocks.end.wrapping_sub(blocks.start);
        let reaches = |segment: &&Segment| (segment.content == Content::Ahead) & within(&segment.blocks);
        self.segments.iter().find(reaches)
    }

    /// Records that the blocks of segment `id` before `end` were sent to the host; a read-ahead segment drops them.
    pub(super) fn hand_out(&mut self, id: u64, end: u64) {
        self.uses += 1;
        let used = self.uses;
        if let Some(segment) = self.segment_mut(id) {
            segment.used = used;
            if segment.content == Content::Ahead {
                segment.blocks = end..segment.blocks.end.max(end);
            }
        }
    }

    /// Records that the blocks before `end` were read from the platter into segment `id`.
    pub(super) fn fill(&mut self, id: u64, end: u64) {
        if let Some(segment) = self.segment_mut(id) {
            segment.blocks.end = segment.blocks.end.max(end);
        }
    }

    pub(super) fn set_content(&mut self, id: u64, content: Content) {
        if let Some(segment) = self.segment_mut(id) {
            segment.content = content;
        }
    }

    /// Makes a new segment for reading ahead from `block` on, and returns its id; `None` if the cache is full of unwritten data.
    pub(super) fn open(&mut self, block: u64, params: &Params) -> Option<u64> {
        self.make_room(1, params).then(|| self.add(block..block, Content::Ahead))
    }

    /// True if a write of `blocks` begins inside the blocks of an earlier write in the cache, or right behind them.
    pub(super) fn extends(&self, blocks: &Range<u64>) -> bool {
        self.segments.iter().any(|segment| segment.content != Content::Ahead && segment.is_continued_by(blocks))
    }

    /// Stores a write. False if the cache has no room until unwritten data is on the platter.
    pub(super) fn write(&mut self, blocks: Range<u64>, params: &Params) -> bool {
        self.uses += 1;
        let (used, most) = (self.uses, u64::from(params.segment_blocks));
        let grown = self.segments.iter_mut().find(|segment| {
            segment.content == Content::Dirty
                && segment.is_continued_by(&blocks)
                && blocks.end - segment.blocks.start <= most
        });
        if let Some(segment) = grown {
            segment.blocks.end = segment.blocks.end.max(blocks.end);
            segment.used = used;
            self.forget(&blocks);
            return true;
        }
        // What is on the platter already gives way to what continues it, so that a stream of writes stays in one place.
        self.segments.retain(|segment| segment.content != Content::Clean || !segment.is_continued_by(&blocks));
        let room = self.make_room(units(&blocks, params), params);
        if room {
            self.forget(&blocks);
            self.add(blocks, Content::Dirty);
        }
        room
    }

    /// Drops out-of-date copies of `blocks` from segments without unwritten data.
    pub(super) fn forget(&mut self, blocks: &Range<u64>) {
        for segment in self.segments.iter_mut().filter(|segment| !segment.is_unwritten()) {
            let old = &mut segment.blocks;
            if blocks.start < old.end && old.start < blocks.end {
                *old =
                    if old.start < blocks.start { old.start..blocks.start } else { blocks.end.min(old.end)..old.end };
            }
        }
    }

    fn add(&mut self, blocks: Range<u64>, content: Content) -> u64 {
        self.uses += 1;
        let id = self.ids;
        self.ids += 1;
        self.segments.push(Segment { id, blocks, content, used: self.uses });
        id
    }

    /// Frees room for `needed` segments: the least recently used segments without unwritten data are dropped first. False, and no
    /// segment is dropped, if unwritten data leaves too little room.
    fn make_room(&mut self, needed: u64, params: &Params) -> bool {
        let size = |segment: &Segment| units(&segment.blocks, params);
        let most = u64::from(params.segments);
        let kept: u64 = self.segments.iter().filter(|segment| segment.is_unwritten()).map(size).sum();
        if kept + needed > most {
            return false;
        }
        let mut taken: u64 = self.segments.iter().map(size).sum();
        while taken + needed > most {
            let oldest = (0..self.segments.len())
                .filter(|&index| !self.segments[index].is_unwritten())
                .min_by_key(|&index| self.segments[index].used);
            let Some(oldest) = oldest else { return false };
            taken -= size(&self.segments.swap_remove(oldest));
        }
        true
    }
}

impl Segment {
    /// True if `blocks` begin inside the segment or right behind it.
    fn is_continued_by(&self, blocks: &Range<u64>) -> bool {
        (self.blocks.start..=self.blocks.end).contains(&blocks.start)
    }

    fn is_unwritten(&self) -> bool {
        matches!(self.content, Content::Dirty | Content::Writing)
    }
}

/// Number of segments that `blocks` take; a run longer than a segment takes several.
pub(super) fn units(blocks: &Range<u64>, params: &Params) -> u64 {
    (blocks.end - blocks.start).div_ceil(u64::from(params.segment_blocks.max(1))).max(1)
}
