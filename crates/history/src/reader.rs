//! Reading a history, also while another process records it.
//!
//! For each time the data are those of the wanted resolution; where it is no longer kept, those of the finest coarser one;
//! and where a step is not complete yet, what finer data have of it.

use std::collections::VecDeque;
use std::path::PathBuf;

use crate::blocks::Blocks;
use crate::coarsener::Coarsener;
use crate::error::Error;
use crate::figures::Slice;
use crate::filter::Filter;
use crate::folder::{Listing, list};
use crate::mark::Mark;
use crate::resolution::{Resolution, Stream};

/// A part of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Figures of a step of time.
    Slice(Slice),
    /// Nothing was recorded: the program did not run, recording was paused, or the clock was set.
    Gap {
        /// Begin, Unix time in seconds.
        from: u64,
        /// End, likewise.
        to: u64,
    },
}

/// Reads a history.
#[derive(Clone, Debug)]
pub struct Reader {
    folder: PathBuf,
}

impl Reader {
    /// A reader of the history in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Start of the oldest data, Unix time in seconds; `None` without data. O(files).
    ///
    /// # Errors
    /// [`Error::File`] if the folder cannot be read.
    pub fn oldest(&self) -> Result<Option<u64>, Error> {
        Ok(oldest(&list(&self.folder)?))
    }

    /// The slices and gaps from `from` until before `to` (Unix time in seconds; `u64::MAX`: to the end), in the order of time.
    /// Steps that are partly within are included. Slices do not overlap; each has the wanted resolution, or a coarser one where
    /// the data are older than that is kept. The filter leaves out samples, not slices. The time before the oldest data is no
    /// gap.
    ///
    /// Reads each file that has data of the time once; one file is in memory at a time.
    ///
    /// # Errors
    /// [`Error::File`] if the folder cannot be read. Items may be errors of single files ([`Error::Damaged`],
    /// [`Error::Version`], [`Error::File`]); the next item goes on behind them.
    pub fn range(&self, from: u64, to: u64, resolution: Resolution, filter: &Filter) -> Result<Range, Error> {
        let listing = list(&self.folder)?;
        let step = resolution.seconds();
        let begin = from - from % step;
        let end = to.checked_next_multiple_of(step).unwrap_or(u64::MAX);
        let part = |resolution: Resolution, limit: u64, finer: bool| {
            let stream = Stream::of(resolution);
            let blocks = Blocks::new(&self.folder, stream, &listing.files[stream.index], begin, limit);
            Part { blocks, limit, finer }
        };
        let (finer, others) = Resolution::ALL.split_at(resolution as usize);
        let mut parts = VecDeque::new();
        let mut limit = end;
        for &coarser in others {
            parts.push_front(part(coarser, limit, false));
            limit = listing.files[coarser as usize].first().map_or(limit, |kept| limit.min(kept.start));
        }
        parts.extend(finer.iter().rev().map(|&finer| part(finer, end, true)));
        let reached = oldest(&listing).map(|oldest| from.max(oldest));
        let merge = Coarsener::new(resolution);
        Ok(Range { parts, merge, begin, to, read: 0, reached, ready: VecDeque::new(), filter: filter.clone() })
    }

    /// The marks from `from` until before `to`, Unix time in seconds, in the order in which they were recorded.
    ///
    /// # Errors
    /// As [`Self::range`].
    pub fn marks(
        &self,
        from: u64,
        to: u64,
        filter: &Filter,
    ) -> Result<impl Iterator<Item = Result<Mark, Error>> + use<>, Error> {
        let (files, filter) = (list(&self.folder)?.files, filter.clone());
        // A mark is recorded with the second in which it happened, or a later one.
        let blocks = Blocks::new(&self.folder, Stream::MARKS, &files[Stream::MARKS.index], from, u64::MAX);
        let marks = blocks.flat_map(|block| {
            let (marks, error) = match block {
                Ok(block) => (block.marks, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            marks.into_iter().map(Ok).chain(error.map(Err))
        });
        Ok(marks.filter(move |mark| match mark {
            Ok(mark) => (from..to).contains(&mark.at) && filter.mark(mark),
            Err(_) => true,
        }))
    }
}

/// Start of the oldest samples, Unix time in seconds.
fn oldest(listing: &Listing) -> Option<u64> {
    let samples = &listing.files[..Resolution::ALL.len()];
    samples.iter().filter_map(|files| files.first()).map(|kept| kept.start).min()
}

/// Data of one resolution.
#[derive(Debug)]
struct Part {
    blocks: Blocks,
    /// From here on, Unix time in seconds, the next part is to be used.
    limit: u64,
    /// The data are finer than wanted.
    finer: bool,
}

/// Iterator over the slices and gaps of a range of time, in the order of time.
#[derive(Debug)]
pub struct Range {
    parts: VecDeque<Part>,
    merge: Coarsener,
    begin: u64,
    to: u64,
    /// End of the newest slice read, Unix time in seconds. What begins sooner was read at another resolution.
    read: u64,
    /// End of the newest slice returned; before it the start of the range. `None` if there are no data at all, or at the end.
    reached: Option<u64>,
    ready: VecDeque<Entry>,
    filter: Filter,
}

impl Range {
    /// Takes in a slice that was read.
    fn read(&mut self, slice: Slice, finer: bool) {
        if slice.at < self.read || slice.end() <= self.begin {
            return;
        }
        self.read = slice.end();
        let mut done = Vec::new();
        if finer {
            self.merge.push(&slice, &mut done);
        } else {
            done.push(slice);
        }
        done.into_iter().for_each(|slice| self.show(slice));
    }

    /// Makes a slice ready, with the gap before it.
    fn show(&mut self, mut slice: Slice) {
        self.gap_until(slice.at);
        self.reached = Some(slice.end());
        slice.samples.retain(|sample| self.filter.series(&sample.series));
        self.ready.push_back(Entry::Slice(slice));
    }

    /// Makes the gap ready, if there is one.
    fn gap_until(&mut self, to: u64) {
        if let Some(from) = self.reached.filter(|reached| *reached < to) {
            self.ready.push_back(Entry::Gap { from, to });
        }
    }
}

impl Iterator for Range {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(Ok(entry));
            }
            let Some(part) = self.parts.front_mut() else {
                // The step that is not complete, and the time since the newest data; then nothing.
                self.reached?;
                if let Some(slice) = self.merge.take() {
                    self.show(slice);
                }
                if self.to != u64::MAX {
                    self.gap_until(self.to);
                }
                self.reached = None;
                continue;
            };
            let (limit, finer) = (part.limit, part.finer);
            match part.blocks.next() {
                // The finer data have all of the range.
                Some(Ok(block)) if block.slice.at < limit && limit <= self.begin => {}
                Some(Ok(block)) if block.slice.at < limit => self.read(block.slice, finer),
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(_)) | None => {
                    self.parts.pop_front();
                    if let Some(next) = self.parts.front_mut() {
                        // An hour of seconds takes longer to read than a month in steps of ten minutes.
                        next.blocks.skip_to(self.read);
                    }
                }
            }
        }
    }
}
