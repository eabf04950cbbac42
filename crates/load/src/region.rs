//! A region: a part of the volume, with its possible content.

use crate::content::SECTOR;
use crate::model::{Floor, Holds, Model};
use crate::stream::{Op, Planned, Range};

/// The part of the volume that some connections of one thread use together.
pub(crate) struct Region {
    /// Position of the region in the volume.
    pub(crate) range: Range,
    /// The possible content of the region's blocks; `None` unless reads are checked or writes recorded.
    pub(crate) model: Option<Model>,
    /// Completed writes that are not yet durable; empty unless durable writes are recorded.
    undurable: Vec<Range>,
    sweep: Option<Sweep>,
}

/// A pass over the whole region that has begun.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    op: Op,
    at: u64,
    step: u64,
}

/// The most completed writes that are kept until a FLUSH makes them durable. Further writes are not recorded, so
/// that the journal guarantees less.
const MAX_UNDURABLE: usize = 1 << 20;

impl Region {
    /// A region; `model` is `None` unless reads are checked or writes recorded.
    pub(crate) fn new(range: Range, model: Option<Model>) -> Self {
        Self { range, model, undurable: Vec::new(), sweep: None }
    }

    /// Starts a pass over the region with requests of at most `step` bytes. A pass of reads visits only
    /// blocks whose content is known.
    pub(crate) fn start_sweep(&mut self, op: Op, step: u64) {
        self.sweep = Some(Sweep { op, at: self.range.start, step });
    }

    /// The next request of the pass; `None` at its end.
    pub(crate) fn sweep(&mut self) -> Option<Planned> {
        let end = self.range.start + self.range.length;
        let sweep = self.sweep.as_mut()?;
        let (unit, model) = match (&self.model, sweep.op) {
            (Some(model), Op::Read) => (model.grain, Some(model)),
            _ => (SECTOR, None),
        };
        let known = |at: u64| model.is_none_or(|model| model.at_rest(at) != Some(Holds::Unknown));
        if model.is_some() {
            while sweep.at < end && !known(sweep.at) {
                sweep.at += unit;
            }
        }
        let offset = sweep.at;
        if offset >= end {
            return None;
        }
        let mut length = sweep.step.min(end - offset);
        if model.is_some() {
            length = (offset..offset + length).step_by(unit as usize).take_while(|&at| known(at)).count() as u64 * unit;
        }
        sweep.at += length;
        Some(Planned { op: sweep.op, offset, length })
    }

    /// Records a completed write that is not durable yet.
    pub(crate) fn completed(&mut self, offset: u64, length: u64) {
        if self.undurable.len() < MAX_UNDURABLE {
            self.undurable.push(Range { start: offset, length });
        }
    }

    /// Prepares for a FLUSH that is about to be sent: returns the ranges that become durable if it succeeds. The region
    /// forgets these ranges, because after a failed FLUSH no later one can make them durable.
    pub(crate) fn begin_flush(&mut self) -> Vec<Floor> {
        let mut floors = Vec::new();
        for range in std::mem::take(&mut self.undurable) {
            if let Some(model) = &self.model {
                model.floors(range.start, range.length, &mut floors);
            }
        }
        floors
    }
}

/// Cuts `range` into `parts` parts at multiples of `unit` from its start. The last part gets the remainder.
pub(crate) fn partition(range: Range, parts: u32, unit: u64) -> Vec<Range> {
    let each = range.length / u64::from(parts) / unit * unit;
    let part = |index: u64| {
        let start = range.start + index * each;
        let length = if index + 1 == u64::from(parts) { range.length - index * each } else { each };
        Range { start, length }
    };
    (0..u64::from(parts)).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;

    fn all(region: &mut Region) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| region.sweep()).map(|planned| (planned.offset, planned.length)).collect()
    }

    #[test]
    fn a_filling_sweep_covers_the_region_once() {
        let mut region = Region::new(Range { start: 4096, length: 20 * 4096 }, None);
        region.start_sweep(Op::Write, 8 * 4096);
        assert_eq!(all(&mut region), [(4096, 32768), (36864, 32768), (69632, 16384)]);
        assert_eq!(region.sweep(), None);
    }

    #[test]
    fn a_checking_sweep_visits_what_is_known() {
        let model = Model::new(Content::new(1), 0, 10 * 4096, 4096);
        let mut region = Region::new(Range { start: 0, length: 10 * 4096 }, Some(model));
        let model = region.model.as_mut().unwrap();
        model.set(4096, 3 * 4096, Holds::Write(1));
        model.set(9 * 4096, 4096, Holds::Zeroes);
        region.start_sweep(Op::Read, 8192);
        assert_eq!(all(&mut region), [(4096, 8192), (12288, 4096), (36864, 4096)]);
    }

    #[test]
    fn a_flush_covers_what_had_completed_and_only_once() {
        let model = Model::new(Content::new(1), 0, 10 * 4096, 4096);
        let mut region = Region::new(Range { start: 0, length: 10 * 4096 }, Some(model));
        let model = region.model.as_mut().unwrap();
        let ticket = model.begin_write(4096, 4096);
        let late = model.begin_write(0, 4096);
        model.end_write(4096, 4096, ticket, true);
        region.completed(4096, 4096);
        let floor = Floor { offset: 4096, length: 4096, generation: ticket.generation };
        assert_eq!(region.begin_flush(), [floor]);
        region.model.as_mut().unwrap().end_write(0, 4096, late, true);
        assert_eq!(region.begin_flush(), []);
    }

    #[test]
    fn partitions_are_disjoint_and_whole() {
        let range = Range { start: 4096, length: 100 * 4096 };
        for parts in 1..=7 {
            let ranges = partition(range, parts, 65536);
            let mut at = range.start;
            for part in &ranges {
                assert_eq!((part.start, (part.start - range.start) % 65536), (at, 0));
                at += part.length;
            }
            assert_eq!((ranges.len(), at), (parts as usize, range.start + range.length));
        }
    }
}
