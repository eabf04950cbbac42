//! How operations reach a file: reads and writes by the kernel's ring, the rest and, without a ring, all of them by threads.
//!
//! Sockets do not come through here. They are read and written without blocking and
//! waited for with epoll in both engines, so a connection owns nothing of the engine
//! and can move to another worker at any time. The ring's own descriptor sits in the
//! same epoll set, so one wait covers both.

pub(crate) mod priority;
pub(crate) mod threads;
pub(crate) mod uring;

use crate::backend::file::File;
use crate::backend::overlap::Lane;
use crate::backend::{Backend, Extent};
use crate::faults::Call;
use crate::volume::Volume;

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

/// What came of an operation.
#[derive(Debug)]
pub(crate) enum IoResult {
    /// Bytes moved, or minus the errno.
    Code(i32),
    /// What is allocated.
    Extents(Vec<Extent>),
}

impl FileIo {
    /// Which pages it touches, in which lane; `None` if it can disturb no other.
    #[inline]
    pub(crate) fn lane(&self, file: &File) -> Option<(Lane, u64, u64)> {
        if !file.has_two_lanes() {
            return None;
        }
        match *self {
            Self::Read { ptr, len, offset } => {
                (!file.is_direct(ptr, offset, len)).then_some((Lane::Cached, offset, len.into()))
            }
            Self::Write { ptr, len, offset, .. } => {
                let lane = if file.is_direct(ptr, offset, len) { Lane::DirectWrite } else { Lane::Cached };
                Some((lane, offset, len.into()))
            }
            // Edges inside a page are zeroed in the cache, and where zeroing is not offloaded all of it.
            Self::Trim { offset, len } | Self::Zero { offset, len, .. } => Some((Lane::Cached, offset, len)),
            Self::Sync { .. } | Self::Cache { .. } | Self::Extents { .. } => None,
        }
    }

    /// Carries the operation out on the calling thread.
    pub(crate) fn run(self, volume: &Volume) -> IoResult {
        let file = match (&volume.backend, self) {
            (Backend::File(file), _) => file,
            (Backend::Rbd(rbd), Self::Extents { offset, len, max }) => return rbd.extents(offset, len, max),
            _ => return IoResult::Code(-libc::EINVAL),
        };
        let done = match self {
            Self::Read { ptr, len, offset } => file.faults().cut(Call::Read, len).and_then(|len| {
                // SAFETY: `ptr` is valid for `len` bytes until the operation is reported done.
                retry(|| unsafe { libc::pread(file.fd_for(ptr, offset, len), ptr.cast(), len as usize, offset as i64) })
            }),
            Self::Write { ptr, len, offset, durable } => file.faults().cut(Call::Write, len).and_then(|len| {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                let iov = libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len as usize };
                // SAFETY: as above.
                retry(|| unsafe {
                    libc::pwritev2(file.fd_for(ptr, offset, len), &raw const iov, 1, offset as i64, flags)
                })
            }),
            Self::Sync { turn } => volume.sync(turn).map(|()| 0),
            Self::Trim { offset, len } => file.trim(offset, len).map(|()| 0),
            Self::Zero { offset, len, punch, may_write } => file.zero(offset, len, punch, may_write).map(|()| 0),
            Self::Cache { offset, len } => {
                file.cache(offset, len);
                Ok(0)
            }
            Self::Extents { offset, len, max } => match file.extents(offset, len, max) {
                Ok(extents) => return IoResult::Extents(extents),
                Err(error) => Err(error),
            },
        };
        IoResult::Code(done.unwrap_or_else(|errno| -errno.raw_os_error()))
    }
}

fn retry(mut call: impl FnMut() -> isize) -> rustix::io::Result<i32> {
    loop {
        let n = call();
        if n >= 0 {
            return Ok(n as i32);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            code => return Err(rustix::io::Errno::from_raw_os_error(code.unwrap_or(libc::EIO))),
        }
    }
}
