//! An operation on a back end, what comes of it, and how its worker hears of that.

use crate::mailbox::Mailbox;

/// Extents in one reply at most; a client asks again for the rest.
pub(crate) const MAX_EXTENTS: usize = 1024;

/// A run of bytes that is either allocated or a hole that reads as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Length in bytes.
    pub(crate) len: u64,
    /// True if it is a hole.
    pub(crate) hole: bool,
}

/// One operation on a file. Pointers stay valid until the operation is reported done:
/// the buffer sits in the worker's table of operations until then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileIo {
    /// Into memory.
    Read { ptr: *mut u8, len: u32, offset: u64 },
    /// Out of memory; `durable` = on stable storage before it completes.
    Write { ptr: *const u8, len: u32, offset: u64, durable: bool },
    /// All writes onto stable storage that had completed when `turn` was asked for.
    Sync { turn: u64 },
    /// Give a range back.
    Trim { offset: u64, len: u64 },
    /// Zero a range.
    Zero { offset: u64, len: u64, punch: bool, may_write: bool },
    /// Read ahead.
    Cache { offset: u64, len: u64 },
    /// Find holes.
    Extents { offset: u64, len: u64, max: usize },
}

// SAFETY: the pointers are handed from thread to thread together with the duty to finish the operation; see the type.
unsafe impl Send for FileIo {}

/// The result of an operation.
#[derive(Debug)]
pub(crate) enum IoResult {
    /// Bytes moved, or minus the errno.
    Code(i32),
    /// The allocated extents.
    Extents(Vec<Extent>),
}

impl IoResult {
    /// That of a system call.
    pub(crate) fn of(done: rustix::io::Result<i32>) -> Self {
        Self::Code(done.unwrap_or_else(|errno| -errno.raw_os_error()))
    }
}

/// A report about an operation of a worker, under its token.
pub(crate) enum Report {
    /// It is done.
    Done(u32, IoResult),
    /// An operation whose predecessor is done: start it.
    Start(u32),
}

/// Where the reports to a worker go.
pub(crate) type Reports = Mailbox<Report>;
