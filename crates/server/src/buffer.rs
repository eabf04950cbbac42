//! Buffers for payloads: page-aligned for direct I/O (`O_DIRECT`), and pooled for reuse.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

use crate::faults::{Call, Faults};

/// Alignment of every buffer in bytes: enough for `O_DIRECT` on any device.
pub(crate) const ALIGN: usize = 4096;
/// Size, in bytes, of the largest buffers that the pool keeps for reuse; larger ones are rare and go back to the allocator.
const MAX_POOLED: usize = 1 << 20;
/// Upper bound on the bytes that a worker's pool keeps for reuse.
const MAX_KEPT: usize = 8 << 20;
/// Number of size classes of pooled buffers: 4 KiB, 8 KiB … [`MAX_POOLED`].
const CLASSES: usize = (MAX_POOLED / ALIGN).ilog2() as usize + 1;

/// A page-aligned buffer of bytes.
pub(crate) struct Buffer {
    ptr: NonNull<u8>,
    capacity: u32,
    len: u32,
}

// SAFETY: a `Buffer` owns its memory; nothing else points to it.
unsafe impl Send for Buffer {}

impl Buffer {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).expect("a buffer is far smaller than the address space")
    }

    /// A zeroed buffer of `len` bytes in `capacity` bytes of memory; `None` if the system refuses the memory, by a limit of
    /// the process or for want of overcommit.
    fn allocate(capacity: usize, len: usize) -> Option<Self> {
        let (kept, len) = (capacity.try_into().ok()?, len.try_into().ok()?);
        let layout = Self::layout(capacity);
        // SAFETY: `capacity` is at least `ALIGN`, so the layout is not empty.
        let ptr = NonNull::new(unsafe { alloc(layout) })?;
        // Uninitialised memory must never reach a client or be read as a slice.
        // SAFETY: `ptr` is valid for `capacity` bytes.
        unsafe { ptr.as_ptr().write_bytes(0, capacity) };
        Some(Self { ptr, capacity: kept, len })
    }

    /// Address of the buffer's first byte.
    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The buffer's bytes, for reading.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len <= capacity`, and every byte was initialised on allocation.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len()) }
    }

    /// The buffer's bytes, for writing.
    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len()) }
    }

    /// Number of bytes in the buffer.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate` with this very layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity as usize)) }
    }
}

/// A worker's free buffers, by size class.
#[derive(Default)]
pub(crate) struct BufferPool {
    free: [Vec<Buffer>; CLASSES],
    kept: usize,
    /// Bytes allocated since the newest call of [`Self::take_fresh`].
    fresh: u64,
    faults: Faults,
}

impl BufferPool {
    /// An empty pool. `faults`: faults that a test injects into allocations.
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    /// Number of bytes that are allocated for a buffer of `len` bytes.
    #[inline]
    pub(crate) fn capacity(len: usize) -> usize {
        if len > MAX_POOLED { len.next_multiple_of(ALIGN) } else { len.next_power_of_two().max(ALIGN) }
    }

    /// A buffer of `len` bytes with arbitrary initialised content; `None` if the system has no memory for it.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<Buffer> {
        self.faults.check(Call::Malloc).ok()?;
        let capacity = Self::capacity(len);
        if capacity > MAX_POOLED {
            self.fresh += capacity as u64;
            return Buffer::allocate(capacity, len);
        }
        match self.free[class(capacity)].pop() {
            Some(mut buffer) => {
                self.kept -= capacity;
                buffer.len = len as u32;
                Some(buffer)
            }
            None => {
                self.fresh += capacity as u64;
                Buffer::allocate(capacity, len)
            }
        }
    }

    /// Number of bytes that were newly allocated since the previous call.
    #[inline]
    pub(crate) fn take_fresh(&mut self) -> u64 {
        std::mem::take(&mut self.fresh)
    }

    /// Takes a buffer back into the pool for reuse, or frees it if the pool holds enough.
    #[inline]
    pub(crate) fn give(&mut self, buffer: Buffer) {
        let capacity = buffer.capacity as usize;
        if capacity > MAX_POOLED {
            return;
        }
        self.kept += capacity;
        self.free[class(capacity)].push(buffer);
        // The largest go first: a few of them would take the place of thousands of small ones. At once, because a heap of which
        // little by little is freed between other uses grows.
        while self.kept > MAX_KEPT {
            let Some(largest) = self.free.iter_mut().rev().find_map(Vec::pop) else { return };
            self.kept -= largest.capacity as usize;
        }
    }
}

#[inline]
fn class(capacity: usize) -> usize {
    (capacity / ALIGN).ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_reused_and_bounded() {
        let mut pool = BufferPool::default();
        let mut first = pool.take(5000).unwrap();
        assert_eq!((first.len(), first.as_mut_ptr() as usize % ALIGN), (5000, 0));
        let address = first.as_mut_ptr();
        pool.give(first);
        assert_eq!(pool.take(8192).unwrap().as_mut_ptr(), address, "same class, so the same memory");
        for _ in 0..64 {
            let many: Vec<_> = (0..64).map(|_| pool.take(MAX_POOLED).unwrap()).collect();
            many.into_iter().for_each(|buffer| pool.give(buffer));
        }
        assert!(pool.kept <= MAX_KEPT);
        pool.take_fresh();
        let many: Vec<_> = (0..=MAX_KEPT / MAX_POOLED).map(|_| pool.take(MAX_POOLED).unwrap()).collect();
        assert_eq!((pool.take_fresh(), pool.take_fresh()), (MAX_POOLED as u64, 0), "one was not there");
        many.into_iter().for_each(|buffer| pool.give(buffer));
        let mut small = pool.take(ALIGN).unwrap();
        let address = small.as_mut_ptr();
        pool.give(small);
        assert_eq!(pool.take(ALIGN).unwrap().as_mut_ptr(), address, "large buffers do not keep small ones out");
    }
}
