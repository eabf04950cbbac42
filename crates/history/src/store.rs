//! An open folder: writes seconds at all resolutions, and keeps to the bound.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::blocks::Blocks;
use crate::bound::{Used, block_limit, victim};
use crate::coarsener::Coarsener;
use crate::codec::Block;
use crate::error::{Error, Note, failed};
use crate::figures::Slice;
use crate::folder::{Disk, Kept, list, make, path_of, remove, set_aside, unreadable};
use crate::frame::{HEAD, Head, Unusable};
use crate::mark::Mark;
use crate::resolution::{Resolution, Stream};
use crate::writer::Writer;

/// Seconds that have to be recorded, since the start or since the clock was put forward by more than as many seconds, before
/// files are removed by age: a clock that is wrong for minutes costs no data.
pub(crate) const STEADY_SECONDS: u64 = 3_600;

/// An open folder, whose lock this process holds.
#[derive(Debug)]
pub(crate) struct Store {
    /// One for each stream.
    writers: Vec<Writer>,
    /// From a second to ten seconds, on to a minute, and on to ten minutes.
    coarseners: Vec<Coarsener>,
    /// Blocks that are still to be written, in the order of time within each stream.
    pending: VecDeque<Block>,
    /// Files that were set aside, each with its length in bytes; the last is removed first.
    aside: Vec<(PathBuf, u64)>,
    /// Seconds recorded since the start, or since the clock was put forward.
    steady: u64,
    _lock: File,
}

impl Store {
    /// Opens or makes the folder. Files that cannot be used are set aside, and a block that was not written to its end is cut
    /// off. Steps of time that are not complete are taken up again from the finer data.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process has the folder open, [`Error::File`].
    pub(crate) fn load(disk: &Disk, notes: &mut Vec<Note>) -> Result<Self, Error> {
        let lock = make(&disk.folder)?;
        for (stream, files) in Stream::ALL.into_iter().zip(list(&disk.folder)?.files) {
            for Kept { start, .. } in files {
                notes.extend(unusable(disk, &path_of(&disk.folder, stream, start), Head { stream, start })?);
            }
        }
        let mut writers = Vec::new();
        for (stream, files) in Stream::ALL.into_iter().zip(list(&disk.folder)?.files) {
            writers.push(Writer::open(disk, stream, files, notes)?);
        }
        let mut aside = list(&disk.folder)?.aside;
        aside.reverse();
        let coarseners = Resolution::ALL[1..].iter().copied().map(Coarsener::new).collect();
        let mut store = Self { writers, coarseners, pending: VecDeque::new(), aside, steady: 0, _lock: lock };
        store.restore(&disk.folder);
        Ok(store)
    }

    /// Fills the coarseners with the data on disk that are not yet part of a coarser block.
    fn restore(&mut self, folder: &Path) {
        let mut closed: Vec<Slice> = Vec::new();
        for (n, coarsener) in self.coarseners.iter_mut().enumerate() {
            let from = self.writers[n + 1].end;
            let files = self.writers[n].files.make_contiguous();
            let blocks = Blocks::new(folder, Stream::ALL[n], files, from, u64::MAX).filter_map(Result::ok);
            let mut done = Vec::new();
            for slice in blocks.map(|block| block.slice).chain(closed).filter(|slice| slice.at >= from) {
                coarsener.push(&slice, &mut done);
            }
            self.pending.extend(done.iter().cloned().map(Block::from));
            closed = done;
        }
    }

    /// End of the newest data, Unix time in seconds: no later second may begin sooner.
    pub(crate) fn end(&self) -> u64 {
        self.writers.iter().map(|writer| writer.end).max().unwrap_or(0)
    }

    /// Start of the oldest samples, Unix time in seconds.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.writers[..Resolution::ALL.len()].iter().filter_map(|writer| writer.used().start).min()
    }

    /// Bytes of all files together.
    pub(crate) fn bytes(&self) -> u64 {
        let written: u64 = self.writers.iter().map(|writer| writer.used().bytes).sum();
        written + self.aside.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Writes the slice of a second. The coarser ones that it completes, and the marks, are written by [`Self::flush`].
    ///
    /// # Errors
    /// [`Error::File`], [`Error::TooLarge`]. The second is not recorded then.
    pub(crate) fn second(&mut self, disk: &mut Disk, slice: Slice, marks: Vec<Mark>) -> Result<(), Error> {
        let (at, block) = (slice.at, Block::from(slice));
        let ahead = at.saturating_sub(self.end());
        self.write(disk, &block)?;
        self.steady = if ahead > STEADY_SECONDS { 0 } else { self.steady.saturating_add(1) };
        let mut finer = vec![block.slice];
        for coarsener in &mut self.coarseners {
            let mut done = Vec::new();
            finer.iter().for_each(|slice| coarsener.push(slice, &mut done));
            self.pending.extend(done.iter().cloned().map(Block::from));
            finer = done;
        }
        if !marks.is_empty() {
            self.pending.push_back(Block { slice: Slice::second(at, &[]), marks });
        }
        Ok(())
    }

    /// Writes the blocks that are still to be written, and, once the clock is steady, removes one file whose data have been
    /// kept for long enough. A block that cannot be written is kept for the next call. Returns the number of blocks that were
    /// dropped because they are too large for the bound.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn flush(&mut self, disk: &mut Disk) -> Result<u64, Error> {
        let mut dropped = 0;
        while let Some(block) = self.pending.pop_front() {
            match self.write(disk, &block) {
                Ok(()) => {}
                Err(Error::TooLarge { .. }) => dropped += 1,
                Err(error) => {
                    self.pending.push_front(block);
                    return Err(error);
                }
            }
        }
        if self.steady < STEADY_SECONDS {
            return Ok(dropped);
        }
        let now = self.end();
        let old = self.writers.iter_mut().find(|writer| writer.is_old(now));
        old.map_or(Ok(()), |writer| writer.drop_oldest(disk))?;
        Ok(dropped)
    }

    fn write(&mut self, disk: &mut Disk, block: &Block) -> Result<(), Error> {
        let of = |stream: &Stream| stream.step == block.slice.seconds && block.marks.is_empty();
        let index = Stream::ALL.iter().find(|stream| of(stream)).map_or(Stream::MARKS.index, |stream| stream.index);
        let written = self.writers[index].prepare(disk, block).and_then(|bytes| {
            self.make_room(disk, bytes)?;
            self.writers[index].commit(disk)
        });
        if written.is_err() {
            self.writers[index].abandon(disk);
        }
        written
    }

    /// Removes files until so many bytes more are within the bound.
    fn make_room(&mut self, disk: &Disk, bytes: u64) -> Result<(), Error> {
        if bytes > block_limit(disk.bound) {
            return Err(Error::TooLarge { bytes });
        }
        while self.bytes() + bytes > disk.bound {
            if let Some((path, _)) = self.aside.last() {
                remove(path)?;
                self.aside.pop();
                continue;
            }
            let mut used = [Used::default(); 5];
            used.iter_mut().zip(&self.writers).for_each(|(used, writer)| *used = writer.used());
            // There is always one: the files that are written take less than half of the bound.
            let Some(stream) = victim(&used, disk.bound) else { break };
            self.writers[stream].drop_oldest(disk)?;
        }
        Ok(())
    }

    /// Makes all that was written survive a loss of power.
    ///
    /// # Errors
    /// [`Error::File`]. The files that were open are closed then.
    pub(crate) fn sync(&mut self, disk: &Disk) -> Result<(), Error> {
        let mut synced = self.writers.iter_mut().try_for_each(|writer| writer.sync(disk));
        if synced.is_ok() && self.writers.iter().any(|writer| writer.created) {
            let folder = File::open(&disk.folder).and_then(|folder| folder.sync_all());
            synced = folder.map_err(failed("sync", &disk.folder));
        }
        for writer in &mut self.writers {
            match synced {
                Ok(()) => writer.created = false,
                Err(_) => writer.abandon(disk),
            }
        }
        synced
    }

    /// Sets the files aside that have data after `at`, Unix time in seconds. The folder has to be opened anew.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn set_later_aside(self, disk: &Disk, at: u64, notes: &mut Vec<Note>) -> Result<(), Error> {
        for path in self.writers.iter().flat_map(|writer| writer.later_than(disk, at)) {
            notes.push(set_aside(&path, "later", "of a later time, as the clock was set back")?);
        }
        Ok(())
    }
}

/// `None` if the file has this head. Otherwise it is set aside, or removed if its head was not written to its end.
fn unusable(disk: &Disk, path: &Path, expected: Head) -> Result<Option<Note>, Error> {
    let head = match disk.sink.read(path, HEAD as u64) {
        Ok(head) => head,
        Err(error) => return unreadable(path, error).map(Some),
    };
    let note = match Head::read(&head) {
        Ok(head) if head == expected => return Ok(None),
        Ok(_) | Err(Unusable::Damaged) => set_aside(path, "damaged", "damaged")?,
        Err(Unusable::Version(found)) => {
            set_aside(path, &format!("format-{found}"), "from another version of Evenkeel")?
        }
        Err(Unusable::Short) => {
            remove(path)?;
            Note::Cut { path: path.to_owned(), bytes: head.len() as u64 }
        }
    };
    Ok(Some(note))
}
