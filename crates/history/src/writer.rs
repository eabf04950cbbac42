//! One stream on disk: its files, of which the newest is appended to.
//!
//! A block is prepared, which yields its size, and then committed. If either fails, the file is closed behind its last whole
//! block, and the next block begins another file.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use crate::bound::{Used, file_limit};
use crate::codec::{Block, Codec, MAX_NAMES};
use crate::content::Content;
use crate::error::{Error, Note, failed};
use crate::folder::{Disk, Kept, append, create, path_of, remove, unreadable};
use crate::frame::{HEAD, Head, Tail, frame};
use crate::resolution::Stream;

/// The file that is appended to. It is opened for each block, so that the number of descriptors does not depend on how many
/// streams have begun.
#[derive(Debug)]
struct Open {
    codec: Codec,
    start: u64,
    /// False until the first block is committed.
    exists: bool,
}

/// Appends blocks to a stream.
#[derive(Debug)]
pub(crate) struct Writer {
    stream: Stream,
    /// All files, oldest first.
    pub(crate) files: VecDeque<Kept>,
    /// The newest of them, or one that is about to be created.
    open: Option<Open>,
    /// The bytes that are to be written: the block that was prepared, with a head before it if the file is new.
    ready: Vec<u8>,
    /// End of that block, Unix time in seconds.
    ready_end: u64,
    /// End of the newest block, Unix time in seconds; 0 without one.
    pub(crate) end: u64,
    /// The open file has bytes that may not survive a loss of power.
    unsynced: bool,
    /// A file was created since the folder was last synced.
    pub(crate) created: bool,
}

impl Writer {
    /// Continues the newest of these files. Cuts off a block at its end that was not written to its own end.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn open(disk: &Disk, stream: Stream, kept: Vec<Kept>, notes: &mut Vec<Note>) -> Result<Self, Error> {
        let (files, ready) = (VecDeque::from(kept), Vec::new());
        let mut writer =
            Self { stream, files, open: None, ready, ready_end: 0, end: 0, unsynced: false, created: false };
        while let Some(Kept { start, bytes }) = writer.files.pop_back() {
            let path = path_of(&disk.folder, stream, start);
            let content = match disk.sink.read(&path, u64::MAX) {
                Ok(content) => content,
                Err(error) => {
                    notes.push(unreadable(&path, error)?);
                    continue;
                }
            };
            let Ok(mut content) = Content::new(content, stream) else { continue };
            let mut end = None;
            let tail = loop {
                match content.block() {
                    Ok(Some(block)) => end = Some(block.slice.end()),
                    Ok(None) => break None,
                    Err(tail) => break Some(tail),
                }
            };
            let whole = content.read as u64;
            if whole < bytes {
                notes.push(Note::Cut { path: path.clone(), bytes: bytes - whole });
            }
            let Some(end) = end else {
                // Not even the first block is whole.
                remove(&path)?;
                continue;
            };
            append(&path)?.set_len(whole).map_err(failed("cut", &path))?;
            // Behind what is no block another file is begun.
            if tail != Some(Tail::Damaged) {
                writer.open = Some(Open { codec: content.codec, start, exists: true });
            }
            writer.files.push_back(Kept { start, bytes: whole });
            writer.end = end;
            break;
        }
        Ok(writer)
    }

    /// The room that the stream takes.
    pub(crate) fn used(&self) -> Used {
        let bytes = self.files.iter().map(|kept| kept.bytes).sum();
        Used { start: self.files.front().map(|kept| kept.start), files: self.files.len(), bytes }
    }

    /// Paths of the files that have data after `at`, Unix time in seconds, or that cannot be read.
    pub(crate) fn later_than(&self, disk: &Disk, at: u64) -> Vec<PathBuf> {
        let ends = self.files.iter().skip(1).map(|next| next.start).chain([self.end]);
        let later = self.files.iter().zip(ends).filter(|&(_, end)| end > at);
        let paths = later.map(|(kept, _)| (kept.start, path_of(&disk.folder, self.stream, kept.start)));
        // A file may end long before the next one begins: the clock was put forward in between.
        let has_later = |start: u64, path: &Path| start >= at || end_of(path, self.stream).is_none_or(|end| end > at);
        paths.filter(|(start, path)| has_later(*start, path)).map(|(_, path)| path).collect()
    }

    /// True if at `now`, Unix time in seconds, all data of the oldest file have been kept for long enough.
    pub(crate) fn is_old(&self, now: u64) -> bool {
        self.files.get(1).is_some_and(|second| second.start.saturating_add(self.stream.kept_s) <= now)
    }

    /// Prepares a block, which begins no sooner than the newest one ends; returns the number of bytes that it will take.
    ///
    /// # Errors
    /// [`Error::File`] if the file before could not be synced. Then [`Self::abandon`] has to follow.
    pub(crate) fn prepare(&mut self, disk: &Disk, block: &Block) -> Result<u64, Error> {
        let (at, stream) = (block.slice.at, self.stream);
        let long = self.files.back().is_some_and(|kept| kept.bytes >= file_limit(disk.bound));
        let span = |at: u64| at / stream.span_s;
        let full = |open: &Open| span(at) != span(open.start) || open.codec.names.len() >= MAX_NAMES;
        if long || self.open.as_ref().is_some_and(full) {
            self.sync(disk)?;
            self.open = None;
        }
        let open = self.open.get_or_insert_with(|| Open { codec: Codec::new(stream, at), start: at, exists: false });
        self.ready.clear();
        if !open.exists {
            self.ready.extend_from_slice(&Head { stream, start: at }.bytes());
        }
        let mut payload = Vec::new();
        open.codec.encode(block, &mut payload);
        frame(&mut self.ready, &payload);
        self.ready_end = block.slice.end();
        Ok(self.ready.len() as u64)
    }

    /// Writes the block that was prepared.
    ///
    /// # Errors
    /// [`Error::File`]. Then [`Self::abandon`] has to follow.
    pub(crate) fn commit(&mut self, disk: &mut Disk) -> Result<(), Error> {
        let Some(open) = self.open.as_mut() else { return Ok(()) };
        let path = path_of(&disk.folder, self.stream, open.start);
        let mut file = if open.exists { append(&path)? } else { create(&path)? };
        if !std::mem::replace(&mut open.exists, true) {
            self.files.push_back(Kept { start: open.start, bytes: 0 });
            self.created = true;
        }
        let Some(newest) = self.files.back_mut() else { return Ok(()) };
        disk.sink.write(&mut file, &self.ready).map_err(failed("write", &path))?;
        newest.bytes += self.ready.len() as u64;
        (self.end, self.unsynced) = (self.ready_end, true);
        Ok(())
    }

    /// Closes the file behind its last whole block.
    pub(crate) fn abandon(&mut self, disk: &Disk) {
        let Some(open) = self.open.take().filter(|open| open.exists) else { return };
        let path = path_of(&disk.folder, self.stream, open.start);
        let whole = self.files.back().map_or(0, |kept| kept.bytes);
        // If the rest cannot be cut off now, readers stop before it, and so does the next start.
        if whole > HEAD as u64 {
            let _ = append(&path).map(|file| file.set_len(whole).and_then(|()| file.sync_data()));
        } else {
            self.files.pop_back();
            let _ = remove(&path);
        }
        self.unsynced = false;
    }

    /// Makes what was written survive a loss of power; the folder itself is left to the caller.
    ///
    /// # Errors
    /// [`Error::File`]. Then [`Self::abandon`] has to follow.
    pub(crate) fn sync(&mut self, disk: &Disk) -> Result<(), Error> {
        if self.unsynced
            && let Some(open) = self.open.as_ref().filter(|open| open.exists)
        {
            let path = path_of(&disk.folder, self.stream, open.start);
            append(&path)?.sync_data().map_err(failed("sync", &path))?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Removes the oldest file, unless it is the only one.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn drop_oldest(&mut self, disk: &Disk) -> Result<(), Error> {
        if self.files.len() > 1
            && let Some(oldest) = self.files.front()
        {
            remove(&path_of(&disk.folder, self.stream, oldest.start))?;
            self.files.pop_front();
        }
        Ok(())
    }
}

/// End of the newest whole block of a file, Unix time in seconds; `None` if the file cannot be read.
fn end_of(path: &Path, stream: Stream) -> Option<u64> {
    let mut content = Content::new(fs::read(path).ok()?, stream).ok()?;
    let mut end = 0;
    while let Ok(Some(block)) = content.block() {
        end = block.slice.end();
    }
    Some(end)
}
