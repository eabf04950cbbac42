//! Operations on back ends, their results, and the reports of them to workers.

use crate::mailbox::Mailbox;

/// Largest number of extents in one reply; a client asks again for the rest of its range.
pub(crate) const MAX_EXTENTS: usize = 1024;

/// A run of bytes that is either allocated or a hole that reads as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Length in bytes.
    pub(crate) len: u64,
    /// True for a hole, which reads as zero; false for allocated bytes.
    pub(crate) hole: bool,
}

/// An operation on a back end. Its pointers are valid until the operation is reported done: until then the buffer is in the
/// worker's table of operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileIo {
    /// Reads `len` bytes at `offset` into memory.
    Read { ptr: *mut u8, len: u32, offset: u64 },
    /// Writes `len` bytes from memory at `offset`; with `durable`, the bytes are on stable storage before the operation
    /// completes.
    Write { ptr: *const u8, len: u32, offset: u64, durable: bool },
    /// Makes all writes durable that had completed when `turn` was asked for.
    Sync { turn: u64 },
    /// Gives a range back to the file system or device.
    Trim { offset: u64, len: u64 },
    /// Makes a range read as zero: by a hole if `punch`, and by writing zeros only if `may_write`.
    Zero { offset: u64, len: u64, punch: bool, may_write: bool },
    /// Reads a range ahead into a cache.
    Cache { offset: u64, len: u64 },
    /// Finds data and holes in a range, at most `max` extents from its start.
    Extents { offset: u64, len: u64, max: usize },
}

// SAFETY: the pointers are handed from thread to thread together with the duty to finish the operation; see the type.
unsafe impl Send for FileIo {}

/// The result of an operation on a back end.
#[derive(Debug)]
pub(crate) enum IoResult {
    /// Number of bytes moved (0 for other operations), or minus the errno.
    Code(i32),
    /// The extents found, both data and holes, in order and without gaps.
    Extents(Vec<Extent>),
}

impl IoResult {
    /// The result from that of a system call: its number, or minus the errno.
    pub(crate) fn of(done: rustix::io::Result<i32>) -> Self {
        Self::Code(done.unwrap_or_else(|errno| -errno.raw_os_error()))
    }
}

/// A report to a worker about one of its operations, which the token names.
pub(crate) enum Report {
    /// The operation with this token is done, with this result.
    Done(u32, IoResult),
    /// The operation with this token may start: the operations that it waited for are done.
    Start(u32),
}

/// Mailbox for the reports to a worker.
pub(crate) type Reports = Mailbox<Report>;
