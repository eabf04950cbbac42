//! A volume in anonymous memory, sparse: pages appear when written.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use super::operation::Extent;

const CHUNK_BITS: u32 = 16;
/// Granularity in bytes at which allocation is tracked and reported.
pub(crate) const CHUNK: u64 = 1 << CHUNK_BITS;
const PAGE: u64 = 4096;
/// Bytes of memory given back at once, in some milliseconds.
const PIECE: u64 = 32 << 20;
/// Bytes of address space set aside so that a volume can grow in place.
const RESERVE: u64 = 1 << 40;

#[repr(align(4096))]
struct Zeros([u8; 1 << 16]);

/// The content of a hole.
static ZEROS: Zeros = Zeros([0; 1 << 16]);

/// Memory that requests read and write in place.
///
/// Concurrent requests to the same bytes race, as they do on a disk; the bytes are
/// therefore only ever touched through raw pointers, never through references.
///
/// Its pages are small unless the system makes all large. Asking for huge ones (MADV_COLLAPSE) is worth 2 to 5 % of a small
/// read, but Linux holds the lock of the address space meanwhile and waits for every processor's turn: beside a program that
/// gives none away, a worker that needs the lock stood still for seconds.
pub(crate) struct Memory {
    base: NonNull<u8>,
    reserved: u64,
    allocated: Box<[AtomicU64]>,
    /// Bytes from the beginning that may be read and written.
    usable: AtomicU64,
}

// SAFETY: the mapping lives as long as the value, and all access goes through raw pointers (see above).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps a volume of `size` bytes.
    pub(crate) fn new(size: u64) -> std::io::Result<Self> {
        let mut reserved = RESERVE.max(size.saturating_mul(2)).next_multiple_of(PAGE);
        let base = loop {
            // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
            let mapped = unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    reserved as usize,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            };
            match mapped {
                Ok(mapped) => break NonNull::new(mapped.cast::<u8>()).ok_or(std::io::ErrorKind::OutOfMemory)?,
                // A limit on the address space: do without room to grow.
                Err(_) if reserved > size.next_multiple_of(PAGE) => reserved = size.next_multiple_of(PAGE),
                Err(error) => return Err(error.into()),
            }
        };
        let words = reserved.div_ceil(64 * CHUNK);
        let memory = Self {
            base,
            reserved,
            allocated: (0..words).map(|_| AtomicU64::new(0)).collect(),
            usable: AtomicU64::new(0),
        };
        memory.grow(size)?;
        Ok(memory)
    }

    /// Makes the first `size` bytes usable.
    pub(crate) fn grow(&self, size: u64) -> std::io::Result<()> {
        if size > self.reserved {
            return Err(std::io::Error::other(format!(
                "a memory volume created with room for {} bytes cannot grow to {size}",
                self.reserved
            )));
        }
        let len = (size.next_multiple_of(PAGE)) as usize;
        // SAFETY: the range lies inside our own mapping.
        unsafe { mprotect(self.base.as_ptr().cast(), len, MprotectFlags::READ | MprotectFlags::WRITE)? };
        self.usable.fetch_max(len as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Address of byte `offset`. The caller has checked the range against the volume's size.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset < self.reserved);
        // SAFETY: `offset` is inside the mapping.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    /// Address where the bytes of `[offset, offset + len)` can be read: in place, or for a hole in memory that is always
    /// zero, which spares the page fault that touching the hole would cost.
    #[inline]
    pub(crate) fn readable(&self, offset: u64, len: u64) -> *const u8 {
        if len <= ZEROS.0.len() as u64 && self.is_hole(offset, len) {
            return ZEROS.0.as_ptr();
        }
        let at = self.at(offset);
        prefetch(at, len);
        at
    }

    #[inline]
    fn is_hole(&self, offset: u64, len: u64) -> bool {
        (offset >> CHUNK_BITS..=(offset + len - 1) >> CHUNK_BITS).all(|chunk| {
            let word = self.allocated[(chunk / 64) as usize].load(Ordering::Relaxed);
            word & (1 << (chunk % 64)) == 0
        })
    }

    /// Copies `data` into the volume at `offset`.
    #[inline]
    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        // SAFETY: the range was checked by the caller, and a request's buffer never overlaps the volume.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.at(offset), data.len()) };
        // Marked after the copy: a trim that runs at the same time then leaves at worst zeros
        // reported as data, never data reported as a hole.
        self.mark(offset, data.len() as u64);
    }

    /// Makes `len` bytes read as zero; `punch` gives whole pages back to the system.
    pub(crate) fn zero(&self, offset: u64, len: u64, punch: bool) {
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(PAGE), end & !(PAGE - 1));
        if !punch {
            self.mark(offset, len);
        }
        if first >= last {
            self.fill(offset, end);
            return;
        }
        self.fill(offset, first);
        self.fill(last, end);
        if punch {
            for chunk in first.div_ceil(CHUNK)..last >> CHUNK_BITS {
                self.allocated[(chunk / 64) as usize].fetch_and(!(1 << (chunk % 64)), Ordering::Relaxed);
            }
        }
        // SAFETY: the range lies inside our own private anonymous mapping, where DONTNEED means zero.
        let dropped = unsafe { madvise(self.at(first).cast(), (last - first) as usize, Advice::LinuxDontNeed) };
        if dropped.is_err() {
            self.fill(first, last);
        }
    }

    fn fill(&self, from: u64, to: u64) {
        if from < to {
            // SAFETY: the range was checked by the caller.
            unsafe { self.at(from).write_bytes(0, (to - from) as usize) };
        }
    }

    #[inline]
    fn mark(&self, offset: u64, len: u64) {
        for chunk in offset >> CHUNK_BITS..=(offset + len - 1) >> CHUNK_BITS {
            let (word, bit) = (&self.allocated[(chunk / 64) as usize], 1 << (chunk % 64));
            // A plain load first: after the first write the line stays shared between cores.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// The extents of `[offset, offset + len)`, allocated ones and holes, at most `max` from the start.
    pub(crate) fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let chunk = at >> CHUNK_BITS;
            let next = ((chunk + 1) << CHUNK_BITS).min(end);
            let hole = self.is_hole(at, next - at);
            let full = extents.len() == max;
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.len += next - at,
                _ if full => break,
                _ => extents.push(Extent { len: next - at, hole }),
            }
            at = next;
        }
        extents
    }
}

impl Drop for Memory {
    /// Gives memory back piece by piece: threads that need the address space meanwhile wait for one piece, not for all.
    fn drop(&mut self) {
        for (at, bytes) in pieces(*self.usable.get_mut()) {
            // SAFETY: inside our own mapping, which nothing uses any more; where it fails, unmapping gives all back.
            let _ = unsafe { madvise(self.at(at).cast(), bytes, Advice::LinuxDontNeed) };
        }
        // SAFETY: our own mapping; connections that read from it hold the volume and with it this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.reserved as usize) };
    }
}

/// Offset and length of each [`PIECE`] of the first `bytes` bytes.
fn pieces(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..bytes.div_ceil(PIECE)).map(move |piece| (piece * PIECE, PIECE.min(bytes - piece * PIECE) as usize))
}

/// Starts to fetch the beginning of data that a reply will soon copy into the socket; the processor fetches the rest by itself.
#[inline]
fn prefetch(at: *const u8, len: u64) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len.min(PAGE)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint, which never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(line as usize).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(memory: &Memory, offset: u64, len: usize) -> Vec<u8> {
        // SAFETY: the tests stay inside the volume.
        unsafe { std::slice::from_raw_parts(memory.at(offset), len) }.to_vec()
    }

    #[test]
    fn holes_are_reported_and_come_back_after_a_trim() {
        let memory = Memory::new(1 << 20).unwrap();
        assert_eq!(memory.extents(0, 1 << 20, 16), [Extent { len: 1 << 20, hole: true }]);
        memory.write(CHUNK + 5, &[7; 10]);
        let extents = memory.extents(0, 1 << 20, 16);
        assert_eq!(
            extents.iter().map(|e| (e.len, e.hole)).collect::<Vec<_>>(),
            [(CHUNK, true), (CHUNK, false), ((1 << 20) - 2 * CHUNK, true)]
        );
        assert_eq!(read(&memory, CHUNK + 4, 3), [0, 7, 7]);
        memory.zero(CHUNK, CHUNK, true);
        assert_eq!(memory.extents(0, 1 << 20, 16).len(), 1);
        assert_eq!(read(&memory, CHUNK + 4, 3), [0, 0, 0]);
    }

    #[test]
    fn extents_end_where_the_question_ends() {
        let memory = Memory::new(1 << 20).unwrap();
        memory.write(CHUNK, &[7; 10]);
        let extents = memory.extents(5, CHUNK + 20, 16);
        assert_eq!(extents.iter().map(|e| (e.len, e.hole)).collect::<Vec<_>>(), [(CHUNK - 5, true), (25, false)]);
    }

    #[test]
    fn a_volume_larger_than_what_is_usually_reserved_is_there_to_its_last_byte() {
        let size = RESERVE + 5 * CHUNK;
        let memory = Memory::new(size).unwrap();
        assert!(memory.reserved >= size);
        memory.write(size - 1, &[3]);
        assert_eq!(read(&memory, size - 2, 2), [0, 3]);
    }

    #[test]
    fn zeroing_is_exact_to_the_byte() {
        let memory = Memory::new(1 << 16).unwrap();
        for (offset, len) in [(0, 1), (4095, 2), (100, 8192), (4096, 4096), (5000, 20000)] {
            memory.write(0, &[0xff; 1 << 16]);
            memory.zero(offset, len, true);
            let all = read(&memory, 0, 1 << 16);
            let wrong =
                all.iter().enumerate().position(|(i, &b)| (b == 0) != (offset..offset + len).contains(&(i as u64)));
            assert_eq!(wrong, None, "zero({offset}, {len})");
        }
    }

    #[test]
    fn memory_is_given_back_in_pieces_to_its_end() {
        let all = |bytes| pieces(bytes).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(all(PAGE), [(0, PAGE as usize)]);
        assert_eq!(all(PIECE), [(0, PIECE as usize)]);
        assert_eq!(all(PIECE + PAGE), [(0, PIECE as usize), (PIECE, PAGE as usize)]);
        let memory = Memory::new(PIECE + 1).unwrap();
        memory.grow(PAGE).unwrap();
        assert_eq!(memory.usable.load(Ordering::Relaxed), PIECE + PAGE);
    }

    #[test]
    fn grows_in_place() {
        let memory = Memory::new(4096).unwrap();
        memory.write(0, &[1; 4096]);
        memory.grow(1 << 30).unwrap();
        memory.write((1 << 30) - 1, &[2]);
        assert_eq!((read(&memory, 0, 1)[0], read(&memory, (1 << 30) - 1, 1)[0]), (1, 2));
        assert!(memory.grow(u64::MAX / 2).is_err());
    }
}
