//! Replies to long reads of volumes in memory in which holes lie beside data.

use crate::backend::memory::Memory;

/// Bytes of a volume in memory. Where a whole piece ([`crate::ram::PIECE`]) is a hole, they are sent from memory that
/// is always zero: to read the hole in the volume would add a page table.
pub(crate) struct Sparse {
    memory: *const Memory,
    offset: u64,
    bytes: usize,
}

impl Sparse {
    /// The `len` bytes from `offset` of a volume; `None` if they can be sent from one place without adding a page table.
    #[inline]
    pub(super) fn of(memory: &Memory, offset: u64, len: u64) -> Option<Self> {
        memory.is_sparse(offset, len).then(|| Self { memory: std::ptr::from_ref(memory), offset, bytes: len as usize })
    }

    /// Number of bytes.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds up to `most` bytes, without the first `skip`, to the list of a system call, until that has `pieces` pieces; returns
    /// the number of bytes added.
    ///
    /// # Safety
    /// The volume is still there.
    pub(super) unsafe fn add_to(&self, list: &mut Vec<libc::iovec>, skip: usize, most: usize, pieces: usize) -> usize {
        // SAFETY: by this function's contract.
        let memory = unsafe { &*self.memory };
        let mut added = 0;
        while added < most && list.len() < pieces {
            let (at, len) = memory.part(self.offset + (skip + added) as u64, (most - added) as u64);
            list.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len as usize });
            added += len as usize;
        }
        added
    }
}
