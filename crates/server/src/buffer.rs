//! Payload buffers: page-aligned for `O_DIRECT`, pooled, and counted against one bound.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignment of every buffer: what `O_DIRECT` asks on any device.
pub(crate) const ALIGN: usize = 4096;
/// Largest buffer that the pool keeps for reuse; larger ones are rare and go back to the allocator.
const MAX_POOLED: usize = 1 << 20;
/// Bytes that a worker's pool keeps at most.
const MAX_KEPT: usize = 8 << 20;
/// Size classes 4 KiB, 8 KiB … [`MAX_POOLED`].
const CLASSES: usize = (MAX_POOLED / ALIGN).ilog2() as usize + 1;

/// A page-aligned buffer of plain bytes.
pub(crate) struct Buffer {
    ptr: NonNull<u8>,
    capacity: usize,
    len: usize,
}

// SAFETY: a `Buffer` owns its memory; nothing else points to it.
unsafe impl Send for Buffer {}

impl Buffer {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).expect("a buffer is far smaller than the address space")
    }

    fn allocate(capacity: usize, len: usize) -> Self {
        let layout = Self::layout(capacity);
        // SAFETY: `capacity` is at least `ALIGN`, so the layout is not empty.
        let ptr = unsafe { alloc(layout) };
        let Some(ptr) = NonNull::new(ptr) else { std::alloc::handle_alloc_error(layout) };
        // Uninitialised memory must never reach a client or be read as a slice.
        // SAFETY: `ptr` is valid for `capacity` bytes.
        unsafe { ptr.as_ptr().write_bytes(0, capacity) };
        Self { ptr, capacity, len }
    }

    /// Start of the bytes.
    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The bytes.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len <= capacity`, and every byte was initialised on allocation.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, to fill in.
    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// Number of bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate` with this very layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
    }
}

/// A worker's free lists.
#[derive(Default)]
pub(crate) struct BufferPool {
    free: [Vec<Buffer>; CLASSES],
    kept: usize,
}

impl BufferPool {
    /// Bytes that a buffer of `len` bytes takes.
    #[inline]
    pub(crate) fn capacity(len: usize) -> usize {
        if len > MAX_POOLED { len.next_multiple_of(ALIGN) } else { len.next_power_of_two().max(ALIGN) }
    }

    /// A buffer of `len` bytes with arbitrary initialised content.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Buffer {
        let capacity = Self::capacity(len);
        if capacity > MAX_POOLED {
            return Buffer::allocate(capacity, len);
        }
        match self.free[class(capacity)].pop() {
            Some(mut buffer) => {
                self.kept -= capacity;
                buffer.len = len;
                buffer
            }
            None => Buffer::allocate(capacity, len),
        }
    }

    /// Takes a buffer back.
    #[inline]
    pub(crate) fn give(&mut self, buffer: Buffer) {
        let capacity = buffer.capacity;
        if capacity > MAX_POOLED {
            return;
        }
        self.kept += capacity;
        self.free[class(capacity)].push(buffer);
        // The largest go first: a few of them would take the place of thousands of small ones.
        while self.kept > MAX_KEPT {
            let Some(largest) = self.free.iter_mut().rev().find_map(Vec::pop) else { return };
            self.kept -= largest.capacity;
        }
    }
}

#[inline]
fn class(capacity: usize) -> usize {
    (capacity / ALIGN).ilog2() as usize
}

/// Bound on the bytes that requests of all connections may hold in buffers.
#[derive(Clone)]
pub(crate) struct Budget(Arc<BudgetInner>);

struct BudgetInner {
    used: AtomicU64,
    limit: u64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(BudgetInner { used: AtomicU64::new(0), limit }))
    }

    /// Takes `bytes` out of the budget unless that would exceed it. A request larger than the whole budget gets through
    /// when nothing else is outstanding, so that nothing waits for ever.
    #[inline]
    pub(crate) fn try_take(&self, bytes: u64) -> bool {
        let fits = |used: u64| (used == 0 || used + bytes <= self.0.limit).then_some(used + bytes);
        self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Puts `bytes` back.
    #[inline]
    pub(crate) fn give(&self, bytes: u64) {
        if bytes > 0 {
            self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes taken at present.
    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that are not taken at present.
    pub(crate) fn free(&self) -> u64 {
        self.0.limit.saturating_sub(self.used())
    }

    /// The bound.
    pub(crate) fn limit(&self) -> u64 {
        self.0.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_reused_and_bounded() {
        let mut pool = BufferPool::default();
        let mut first = pool.take(5000);
        assert_eq!((first.len(), first.as_mut_ptr() as usize % ALIGN), (5000, 0));
        let address = first.as_mut_ptr();
        pool.give(first);
        assert_eq!(pool.take(8192).as_mut_ptr(), address, "same class, so the same memory");
        for _ in 0..64 {
            let many: Vec<_> = (0..64).map(|_| pool.take(MAX_POOLED)).collect();
            many.into_iter().for_each(|buffer| pool.give(buffer));
        }
        assert!(pool.kept <= MAX_KEPT);
        let mut small = pool.take(ALIGN);
        let address = small.as_mut_ptr();
        pool.give(small);
        assert_eq!(pool.take(ALIGN).as_mut_ptr(), address, "large buffers do not keep small ones out");
    }

    #[test]
    fn the_budget_lets_one_oversized_request_through_alone() {
        let budget = Budget::new(100);
        assert!(budget.try_take(60));
        assert!(!budget.try_take(41));
        assert!(budget.try_take(40));
        budget.give(100);
        assert!(budget.try_take(1000));
        assert!(!budget.try_take(1));
        budget.give(1000);
        assert_eq!(budget.used(), 0);
    }
}
