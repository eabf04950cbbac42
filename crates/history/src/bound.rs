//! The choice of the data to remove when the files reach their bound.
//!
//! All resolutions are written at the same time, so that data become coarser when the file with the finer ones is removed.
//! Seconds have up to half of the room, and marks up to an eighth. Beyond that the oldest data that are not yet at ten
//! minutes become coarser first; after them go the oldest data of all.

/// The room that a stream takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Start of the oldest data, Unix time in seconds; `None` without data.
    pub(crate) start: Option<u64>,
    /// Number of files.
    pub(crate) files: usize,
    /// Their length together.
    pub(crate) bytes: u64,
}

/// Length from which on a file is continued in another one, in bytes.
pub(crate) const fn file_limit(bound: u64) -> u64 {
    bound / 32
}

/// Length of the largest block, in bytes. With it the five files that are written, which are never removed, take less than
/// half of the room.
pub(crate) const fn block_limit(bound: u64) -> u64 {
    bound / 16
}

/// Index of the stream whose oldest file has to go; `None` if no stream has more than the file that is written.
pub(crate) fn victim(used: &[Used; 5], bound: u64) -> Option<usize> {
    let [seconds, tens, minutes, coarsest, marks]: [usize; 5] = [0, 1, 2, 3, 4];
    let has_older = |stream: &usize| used[*stream].files > 1;
    let over = [(marks, bound / 8), (seconds, bound / 2)];
    let over = over.into_iter().filter(|&(stream, share)| used[stream].bytes > share).map(|(stream, _)| stream);
    // Of two streams that begin together the finer goes, as the coarser has the same data.
    let coarsened = [tens, minutes].into_iter().filter(has_older).min_by_key(|&stream| used[stream].start);
    over.chain(coarsened).chain([coarsest, seconds, marks]).find(has_older)
}
