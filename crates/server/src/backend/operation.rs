//! An operation on a back end, its result, and the report of it to the worker.

use crate::mailbox::Mailbox;

/// Upper bound on the extents in one reply; a client asks again for the rest.
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
    /// Read into memory.
    Read { ptr: *mut u8, len: u32, offset: u64 },
    /// Write out of memory; `durable` = on stable storage before it completes.
    Write { ptr: *const u8, len: u32, offset: u64, durable: bool },
    /// Put all writes onto stable storage that had completed when `turn` was asked for.
    Sync { turn: u64 },
    /// Give a range back to the file system or device.
    Trim { offset: u64, len: u64 },
    /// Make a range read as zero: by a hole if `punch`, by writing zeros only if `may_write`.
    Zero { offset: u64, len: u64, punch: bool, may_write: bool },
    /// Read a range ahead.
    Cache { offset: u64, len: u64 },
    /// Find data and holes in a range, at most `max` extents.
    Extents { offset: u64, len: u64, max: usize },
}

// SAFETY: the pointers are handed from thread to thread together with the duty to finish the operation; see the type.
unsafe impl Send for FileIo {}

/// The result of an operation.
#[derive(Debug)]
pub(crate) enum IoResult {
    /// Bytes moved, or minus the errno.
    Code(i32),
    /// The extents found, allocated ones and holes.
    Extents(Vec<Extent>),
}

impl IoResult {
    /// The result of a system call.
    pub(crate) fn of(done: rustix::io::Result<i32>) -> Self {
        Self::Code(done.unwrap_or_else(|errno| -errno.raw_os_error()))
    }
}

/// A report about an operation of a worker, under its token.
pub(crate) enum Report {
    /// The operation with this token is done, with this result.
    Done(u32, IoResult),
    /// The operation with this token may start: those that it waited for are done.
    Start(u32),
}

/// Mailbox for the reports to a worker.
pub(crate) type Reports = Mailbox<Report>;
