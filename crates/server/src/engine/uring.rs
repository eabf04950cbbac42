//! A worker's io_uring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::{IoUring, opcode, squeue, types};

use super::FileIo;
use crate::backend::file::File;

/// Submission queue entries: one batch of a few deep connections.
const SUBMISSIONS: u32 = 512;
/// Operations that go to the kernel with one system call.
///
/// The kernel starts a batch when it has prepared all of it, at 2 to 3 us an operation. In one batch, 32 operations
/// keep the device waiting for 80 us, come back together, and never overlap with what the client sends next.
/// In fours they spread out, for a system call each.
const SUBMIT_BATCH: usize = 4;
/// Operations that may be inside the kernel at once: no more than the completion queue holds, so that it never overflows.
const COMPLETIONS: u32 = 4096;

/// A ring owned by one worker thread.
pub(crate) struct Uring {
    ring: IoUring,
    /// Entries that found the ring full.
    backlog: VecDeque<squeue::Entry>,
    inside: u32,
    unsubmitted: bool,
}

impl Uring {
    /// Sets a ring up for the calling thread.
    pub(crate) fn new() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(SUBMISSIONS)
            // Kernels before 6.0 do not know these flags.
            .or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).build(SUBMISSIONS))?;
        Ok(Self { ring, backlog: VecDeque::new(), inside: 0, unsubmitted: false })
    }

    /// Readable when operations have completed.
    pub(crate) fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Queues a read or write under `token`; it goes out with the next [`Uring::submit`]. False for
    /// other operations: the kernel would give them to threads anyway, and syncs have to wait for each other.
    #[inline]
    pub(crate) fn push(&mut self, token: u32, io: &FileIo, file: &File) -> bool {
        let entry = match *io {
            FileIo::Read { ptr, len, offset } => {
                opcode::Read::new(types::Fd(file.fd_for(ptr, offset, len)), ptr, len).offset(offset).build()
            }
            FileIo::Write { ptr, len, offset, durable } => {
                opcode::Write::new(types::Fd(file.fd_for(ptr, offset, len)), ptr, len)
                    .offset(offset)
                    .rw_flags(if durable { libc::RWF_DSYNC } else { 0 })
                    .build()
            }
            FileIo::Sync { .. }
            | FileIo::Trim { .. }
            | FileIo::Zero { .. }
            | FileIo::Cache { .. }
            | FileIo::Extents { .. } => return false,
        };
        let entry = entry.user_data(u64::from(token));
        if !self.backlog.is_empty() || !self.try_push(&entry) {
            self.backlog.push_back(entry);
        }
        true
    }

    /// Puts an entry on the ring if there is room for it and, later, for its completion.
    #[inline]
    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        if self.inside == COMPLETIONS {
            return false;
        }
        // SAFETY: buffer and file live in the worker's table of operations until the completion is reaped.
        if unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit_now();
            // SAFETY: as above.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return false;
            }
        }
        self.inside += 1;
        self.unsubmitted = true;
        if self.ring.submission().len() >= SUBMIT_BATCH {
            self.submit_now();
        }
        true
    }

    fn submit_now(&mut self) {
        loop {
            match self.ring.submit() {
                // The kernel may take only some, for want of memory.
                Ok(_) => self.unsubmitted = !self.ring.submission().is_empty(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // EAGAIN, EBUSY: the entries stay queued and go with the next call.
                Err(_) => {}
            }
            return;
        }
    }

    /// Hands queued operations to the kernel, in one system call.
    #[inline]
    pub(crate) fn submit(&mut self) {
        while let Some(entry) = self.backlog.pop_front() {
            if !self.try_push(&entry) {
                self.backlog.push_front(entry);
                break;
            }
        }
        if self.unsubmitted {
            self.submit_now();
        }
    }

    /// Whether a submission is left over that the kernel did not take.
    pub(crate) fn wants_submit(&self) -> bool {
        self.unsubmitted || (!self.backlog.is_empty() && self.inside < COMPLETIONS)
    }

    /// Reports completed operations: token, and bytes or minus the errno.
    #[inline]
    pub(crate) fn reap(&mut self, mut done: impl FnMut(u32, i32)) {
        for completion in self.ring.completion() {
            self.inside -= 1;
            done(completion.user_data() as u32, completion.result());
        }
    }
}

/// Whether the kernel lets this process use io_uring.
pub(crate) fn probe() -> io::Result<()> {
    Uring::new().map(drop)
}
