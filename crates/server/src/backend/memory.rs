//! The back end of volumes in memory: sparse anonymous memory, whose pages are allocated when they are written.

use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use rustix::process::{Resource, getrlimit};

use super::operation::Extent;
use super::tables::Tables;
use crate::faults::{Call, Faults};
use crate::ram::{CHUNK, Full, PIECE, Room};

const CHUNK_BITS: u32 = CHUNK.ilog2();
const PAGE: u64 = 4096;
/// Size of a huge page, in bytes, on processors with pages of 4 KiB.
const HUGE: u64 = 2 << 20;
/// Largest number of bytes, with those of holes, in one step of a zeroing. A MiB of holes costs a hundredth of the time of a
/// written one.
const SPAN: u64 = 32 << 20;
/// Least number of bytes of address space reserved for a volume, so that it can grow in place.
const RESERVE: u64 = 1 << 40;

#[repr(align(4096))]
struct Zeros([u8; 1 << 16]);

/// Zeros, which are the content of any hole.
static ZEROS: Zeros = Zeros([0; 1 << 16]);

/// Length in bytes of [`MORE_ZEROS`]: of the longest read that a configuration allows (`server.max_request`). Its page tables
/// take 2 MiB at most.
const MORE: u64 = 1 << 30;
/// Zeros for reads of longer holes, read-only; `None` in a process whose address space is limited. Where holes were read in a
/// volume itself, the page tables for them would take 2 MiB for each GiB of holes.
static MORE_ZEROS: OnceLock<Option<Mapping>> = OnceLock::new();

/// Address of a mapping that is never unmapped and never written.
struct Mapping(*const u8);

// SAFETY: the mapping belongs to the whole process and is only read.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Maps [`MORE_ZEROS`].
#[cold]
fn map_zeros() -> Option<Mapping> {
    // Buffers and volumes need a limited address space more.
    if getrlimit(Resource::As).current.is_some() {
        return None;
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), MORE as usize, ProtFlags::READ, flags) }.ok()?;
    // Where all pages are huge and the system shares no huge page of zeros (`use_zero_page`), each one read takes 2 MiB.
    // SAFETY: advice on our own mapping, which changes no content. It fails where no pages are huge.
    let _ = unsafe { madvise(mapped, MORE as usize, Advice::LinuxNoHugepage) };
    Some(Mapping(mapped.cast::<u8>().cast_const()))
}

/// Address of `len` bytes that are always zero; `None` if there are no such.
#[inline]
fn zeros(len: u64) -> Option<*const u8> {
    if len <= ZEROS.0.len() as u64 {
        return Some(ZEROS.0.as_ptr());
    }
    let more = MORE_ZEROS.get_or_init(map_zeros).as_ref();
    more.filter(|_| len <= MORE).map(|mapping| mapping.0)
}

/// The memory of one volume, which requests read and write in place.
///
/// Concurrent requests to the same bytes race, as they do on a disk. The bytes are therefore accessed only through raw
/// pointers, never through references.
///
/// The memory is taken from the [`Room`] of all volumes in memory, so that the count is at least the memory in use. A volume
/// that fits into half of the room takes its whole size when it is created. Its pages are huge (2 MiB), which makes requests
/// about a tenth faster, and the first write to one takes a fraction of a millisecond. Linux may decline to make pages huge.
/// MADV_COLLAPSE is not used to make them huge later: Linux holds the lock of the address space during that call, and waits for
/// every processor, so that workers stood still for seconds beside a program that does not give up its processor.
///
/// Larger volumes, and what a volume has grown by, have small pages and take chunks: a chunk in which any page was written
/// counts in full until the whole chunk is trimmed, up to 16 times the memory in use after writes of single pages far apart.
/// Where the system makes all pages huge, such writes may use 32 times the memory that is counted.
pub(crate) struct Memory {
    base: NonNull<u8>,
    reserved: u64,
    /// One bit for each chunk: 1 if it is allocated, 0 if it is a hole.
    allocated: Box<[AtomicU64]>,
    tables: Tables,
    room: Room,
    /// Number of chunks, from the beginning, that were taken from `room` when the volume was created.
    taken: u64,
    /// Number of bytes, from the beginning, that may be read and written.
    usable: AtomicU64,
    faults: Faults,
}

// SAFETY: the mapping lives as long as the value, and all access goes through raw pointers (see above).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps a volume of `size` bytes without a bound on its memory.
    #[cfg(test)]
    pub(crate) fn new(size: u64) -> std::io::Result<Self> {
        Self::within(size, Room::new(None))
    }

    /// Maps a volume of `size` bytes, which takes memory from `room` at once, or when its holes are written.
    pub(crate) fn within(size: u64, room: Room) -> std::io::Result<Self> {
        // No system has as much as the upper bound, beyond which the sums here would overflow.
        let mut reserved = RESERVE.max(size.saturating_mul(2).min(1 << 62)).next_multiple_of(PAGE);
        // Space to begin at a huge page.
        let mut more = HUGE;
        let mapped = loop {
            // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
            let mapped = unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    (reserved + more) as usize,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            };
            match mapped {
                Ok(mapped) => break mapped.cast::<u8>(),
                // A limit on the address space: do without room to grow.
                Err(_) if reserved > size.next_multiple_of(PAGE) => reserved = size.next_multiple_of(PAGE),
                Err(_) if more > 0 => more = 0,
                Err(error) => return Err(error.into()),
            }
        };
        let skipped = if more > 0 { mapped.align_offset(HUGE as usize) } else { 0 };
        // SAFETY: both parts lie inside the new mapping, which nothing uses yet.
        let base = unsafe {
            let base = mapped.add(skipped);
            if skipped > 0 {
                munmap(mapped.cast(), skipped)?;
            }
            if more > 0 {
                munmap(base.add(reserved as usize).cast(), more as usize - skipped)?;
            }
            NonNull::new(base).ok_or(std::io::ErrorKind::OutOfMemory)?
        };
        let words = reserved.div_ceil(64 * CHUNK);
        let memory = Self {
            base,
            reserved,
            allocated: (0..words).map(|_| AtomicU64::new(0)).collect(),
            tables: Tables::of(reserved, room.clone()),
            taken: room.reserve(size / HUGE * (HUGE / CHUNK)),
            room,
            usable: AtomicU64::new(0),
            faults: Faults::NONE,
        };
        memory.grow(size)?;
        if memory.taken > 0 {
            // SAFETY: advice on a part of our own mapping, which changes no content. Where it fails, pages are small.
            let _ = unsafe { madvise(base.as_ptr().cast(), (memory.taken * CHUNK) as usize, Advice::LinuxHugepage) };
        }
        Ok(memory)
    }

    /// Sets the faults that a test injects into calls on the memory.
    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Makes the first `size` bytes readable and writable; fails if that is more address space than was reserved.
    pub(crate) fn grow(&self, size: u64) -> std::io::Result<()> {
        if size > self.reserved {
            return Err(std::io::Error::other(format!(
                "a volume in memory that was created with room for {} bytes cannot grow to {size}; only a new, empty one can be that large",
                self.reserved
            )));
        }
        let len = (size.next_multiple_of(PAGE)) as usize;
        // SAFETY: the range lies inside our own mapping.
        unsafe { mprotect(self.base.as_ptr().cast(), len, MprotectFlags::READ | MprotectFlags::WRITE)? };
        self.usable.fetch_max(len as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Address of the byte at `offset`, which the caller must have checked against the volume's size.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset < self.reserved);
        // SAFETY: `offset` is inside the mapping.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    /// Address at which the bytes of `[offset, offset + len)` can be read. It is in the volume, or for a hole in memory that
    /// is always zero, which avoids the page fault that reading the hole would cost.
    #[inline]
    pub(crate) fn readable(&self, offset: u64, len: u64) -> *const u8 {
        if self.is_hole(offset, len)
            && let Some(zeros) = zeros(len)
        {
            return zeros;
        }
        let at = self.at(offset);
        prefetch(at, len);
        at
    }

    /// True if a read of the range at [`Self::readable`] would touch, in the volume, a [`PIECE`] that is a hole, and so add a
    /// page table: the range is to be read [part](Self::part) by part.
    #[inline]
    pub(crate) fn is_sparse(&self, offset: u64, len: u64) -> bool {
        let (first, last) = (offset / PIECE, (offset + len - 1) / PIECE);
        if first == last && len <= ZEROS.0.len() as u64 {
            return false;
        }
        (first..=last).any(|piece| self.written(piece) == 0) && (first < last || zeros(len).is_none())
    }

    /// Address and length of the first part of `[offset, offset + len)`: at most what lies in one [`PIECE`], and of a piece that
    /// is a hole bytes that are always zero, outside the volume.
    pub(crate) fn part(&self, offset: u64, len: u64) -> (*const u8, u64) {
        let len = len.min(PIECE - offset % PIECE);
        if self.written(offset / PIECE) > 0 {
            return (self.at(offset), len);
        }
        zeros(len).map_or((ZEROS.0.as_ptr(), len.min(ZEROS.0.len() as u64)), |zeros| (zeros, len))
    }

    #[inline]
    fn is_hole(&self, offset: u64, len: u64) -> bool {
        chunks(offset, len).all(|chunk| self.lacks(chunk))
    }

    /// True if a chunk is a hole.
    #[inline]
    fn lacks(&self, chunk: u64) -> bool {
        let word = self.allocated[(chunk / 64) as usize].load(Ordering::Relaxed);
        word & (1 << (chunk % 64)) == 0
    }

    /// Copies `data` into the volume at `offset`; fails, and copies nothing, if there is no room for the holes in the range.
    #[inline]
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Full> {
        let len = data.len() as u64;
        let taken = self.take_room(offset, len)?;
        // SAFETY: the range was checked by the caller, and a request's buffer never overlaps the volume.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.at(offset), data.len()) };
        // Marked after the copy: a trim that runs at the same time then leaves at worst zeros
        // reported as data, never data reported as a hole.
        self.mark(offset, len, taken);
        Ok(())
    }

    /// Number of bytes of the range that may be zeroed in one step, which takes a fraction of a millisecond: at most [`SPAN`],
    /// with at most [`PIECE`] of written chunks. At least 1 unless `len` is 0.
    pub(crate) fn step(&self, offset: u64, len: u64) -> u64 {
        let (mut at, end) = (offset, offset + len.min(SPAN));
        let mut written = 0;
        while at < end {
            written += self.written(at / PIECE);
            if written > PIECE / CHUNK && at > offset {
                break;
            }
            at = ((at / PIECE + 1) * PIECE).min(end);
        }
        at - offset
    }

    /// Number of chunks that are no holes in the piece with the index `piece`.
    fn written(&self, piece: u64) -> u64 {
        const OF_WORD: u64 = 64 / (PIECE / CHUNK);
        let word = self.allocated[(piece / OF_WORD) as usize].load(Ordering::Relaxed);
        let bits = word >> (piece % OF_WORD * (PIECE / CHUNK)) & (u64::MAX >> (64 - PIECE / CHUNK));
        u64::from(bits.count_ones())
    }

    /// Makes `len` bytes from `offset` read as zero. With `punch`, whole pages are given back to the system. Without it, the
    /// whole range is allocated afterwards; if there is no room for that, the call fails and changes nothing.
    pub(crate) fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), Full> {
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(PAGE), end & !(PAGE - 1));
        if !punch {
            let taken = self.take_room(offset, len)?;
            self.mark(offset, len, taken);
        }
        if first >= last {
            let middle = first.min(end);
            self.clear(offset, middle);
            self.clear(middle, end);
            return Ok(());
        }
        self.clear(offset, first);
        self.clear(last, end);
        // The first chunk of each run of chunks that were allocated and now are not, and the one after its last.
        let mut freed: Vec<(u64, u64)> = Vec::new();
        if punch {
            for chunk in first.div_ceil(CHUNK)..last >> CHUNK_BITS {
                let (word, bit) = (&self.allocated[(chunk / 64) as usize], 1 << (chunk % 64));
                if word.fetch_and(!bit, Ordering::Relaxed) & bit == 0 {
                    continue;
                }
                match freed.last_mut().filter(|(_, next)| *next == chunk) {
                    Some((_, next)) => *next += 1,
                    None => freed.push((chunk, chunk + 1)),
                }
            }
        }
        // SAFETY: the range lies inside our own private anonymous mapping, where DONTNEED means zero.
        let give_back = |()| unsafe { madvise(self.at(first).cast(), (last - first) as usize, Advice::LinuxDontNeed) };
        if self.faults.check(Call::Advise).and_then(give_back).is_err() {
            self.zero_in_place(first, last, &freed);
        } else if !freed.is_empty() {
            self.room.give_back(freed.iter().map(|&(from, to)| self.counted(from, to)).sum());
        }
        Ok(())
    }

    /// Zeroes the whole pages from `first` up to `last`, which the system does not take back. The runs of chunks in `freed` stay
    /// allocated. Holes are not written, because that would take memory.
    #[cold]
    fn zero_in_place(&self, first: u64, last: u64, freed: &[(u64, u64)]) {
        for chunk in chunks(first, last - first).filter(|&chunk| !self.lacks(chunk)) {
            self.fill(first.max(chunk << CHUNK_BITS), last.min((chunk + 1) << CHUNK_BITS));
        }
        for &(from, to) in freed {
            let (offset, len) = (from << CHUNK_BITS, (to - from) << CHUNK_BITS);
            self.fill(offset, offset + len);
            // The room that they took was not given back.
            self.mark(offset, len, self.counted(from, to));
        }
    }

    /// Zeroes the bytes from `from` up to `to`, all in one page. A hole is zero already, or a write is under way that may as well
    /// come after. It is not touched: a write would allocate the page, and a read would add a page table.
    fn clear(&self, from: u64, to: u64) {
        if from < to && !self.is_hole(from, to - from) {
            self.fill(from, to);
        }
    }

    fn fill(&self, from: u64, to: u64) {
        if from < to {
            // SAFETY: the range was checked by the caller.
            unsafe { self.at(from).write_bytes(0, (to - from) as usize) };
        }
    }

    /// Number of chunks, of those from `from` up to `to`, that count one by one.
    fn counted(&self, from: u64, to: u64) -> u64 {
        to.saturating_sub(from.max(self.taken))
    }

    /// Takes room for the holes in a range and for their page tables; returns the number of chunks of the holes. Without holes it
    /// costs one load of a word that [`Self::mark`] reads in any case.
    #[inline]
    fn take_room(&self, offset: u64, len: u64) -> Result<u64, Full> {
        let holes = chunks(offset, len).filter(|&chunk| self.lacks(chunk) && chunk >= self.taken).count() as u64;
        if holes > 0 {
            self.room.take(holes)?;
            let (first, last) = ((self.taken * CHUNK).max(offset) / PIECE, (offset + len - 1) / PIECE);
            self.tables.take(first..=last).inspect_err(|_| self.room.give_back(holes))?;
        }
        Ok(holes)
    }

    /// Marks the chunks of a range, for which `taken` chunks of room were taken, as allocated. Concurrent writes and trims
    /// may have changed the same chunks since, so the count is corrected to the chunks that were marked here; it may exceed
    /// the room by the chunks of writes under way.
    #[inline]
    fn mark(&self, offset: u64, len: u64, taken: u64) {
        let mut marked = 0;
        for chunk in chunks(offset, len) {
            let (word, bit) = (&self.allocated[(chunk / 64) as usize], 1 << (chunk % 64));
            // A plain load first: after the first write the line stays shared between cores.
            if word.load(Ordering::Relaxed) & bit == 0 {
                let is_new = word.fetch_or(bit, Ordering::Relaxed) & bit == 0;
                marked += u64::from(is_new && chunk >= self.taken);
            }
        }
        if marked < taken {
            self.room.give_back(taken - marked);
        } else if marked > taken {
            self.room.count(marked - taken);
        }
    }

    /// The extents of `[offset, offset + len)`, both allocated ranges and holes; at most the first `max`.
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
    /// Gives the memory back piece by piece: other threads that need the lock of the address space wait for one piece, not
    /// for all.
    fn drop(&mut self) {
        let usable = *self.usable.get_mut();
        for (at, bytes) in pieces(usable) {
            // SAFETY: inside our own mapping, which nothing uses any more; where it fails, unmapping gives all back.
            let _ = unsafe { madvise(self.at(at).cast(), bytes, Advice::LinuxDontNeed) };
        }
        // SAFETY: our own mapping; connections that read from it hold the volume and with it this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.reserved as usize) };
        let counted = self.taken..usable.div_ceil(CHUNK);
        self.room.give_back(self.taken + counted.filter(|&chunk| !self.lacks(chunk)).count() as u64);
    }
}

/// Numbers of the chunks that a range of bytes touches.
#[inline]
fn chunks(offset: u64, len: u64) -> RangeInclusive<u64> {
    offset >> CHUNK_BITS..=(offset + len - 1) >> CHUNK_BITS
}

/// Offset and length of each [`PIECE`] of the first `bytes` bytes.
fn pieces(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..bytes.div_ceil(PIECE)).map(move |piece| (piece * PIECE, PIECE.min(bytes - piece * PIECE) as usize))
}

/// Starts to fetch, into the processor's cache, the beginning of data that a reply will soon copy into the socket; the
/// processor fetches the rest by itself.
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
    use crate::faults::{Fault, Injection};

    fn read(memory: &Memory, offset: u64, len: usize) -> Vec<u8> {
        // SAFETY: the tests stay inside the volume.
        unsafe { std::slice::from_raw_parts(memory.at(offset), len) }.to_vec()
    }

    #[test]
    fn holes_are_reported_and_come_back_after_a_trim() {
        let memory = Memory::new(1 << 20).unwrap();
        assert_eq!(memory.extents(0, 1 << 20, 16), [Extent { len: 1 << 20, hole: true }]);
        memory.write(CHUNK + 5, &[7; 10]).unwrap();
        let extents = memory.extents(0, 1 << 20, 16);
        assert_eq!(
            extents.iter().map(|e| (e.len, e.hole)).collect::<Vec<_>>(),
            [(CHUNK, true), (CHUNK, false), ((1 << 20) - 2 * CHUNK, true)]
        );
        assert_eq!(read(&memory, CHUNK + 4, 3), [0, 7, 7]);
        memory.zero(CHUNK, CHUNK, true).unwrap();
        assert_eq!(memory.extents(0, 1 << 20, 16).len(), 1);
        assert_eq!(read(&memory, CHUNK + 4, 3), [0, 0, 0]);
    }

    #[test]
    fn extents_end_where_the_question_ends() {
        let memory = Memory::new(1 << 20).unwrap();
        memory.write(CHUNK, &[7; 10]).unwrap();
        let extents = memory.extents(5, CHUNK + 20, 16);
        assert_eq!(extents.iter().map(|e| (e.len, e.hole)).collect::<Vec<_>>(), [(CHUNK - 5, true), (25, false)]);
    }

    #[test]
    fn a_volume_larger_than_what_is_usually_reserved_is_there_to_its_last_byte() {
        let size = RESERVE + 5 * CHUNK;
        let memory = Memory::new(size).unwrap();
        assert!(memory.reserved >= size);
        memory.write(size - 1, &[3]).unwrap();
        assert_eq!(read(&memory, size - 2, 2), [0, 3]);
    }

    #[test]
    fn zeroing_is_exact_to_the_byte() {
        let memory = Memory::new(1 << 16).unwrap();
        for (offset, len) in [(0, 1), (4095, 2), (100, 8192), (4096, 4096), (5000, 20000)] {
            memory.write(0, &[0xff; 1 << 16]).unwrap();
            memory.zero(offset, len, true).unwrap();
            let all = read(&memory, 0, 1 << 16);
            let wrong =
                all.iter().enumerate().position(|(i, &b)| (b == 0) != (offset..offset + len).contains(&(i as u64)));
            assert_eq!(wrong, None, "zero({offset}, {len})");
        }
    }

    #[test]
    fn memory_that_the_system_does_not_take_back_is_zeroed_and_still_counts() {
        for errno in [libc::EINVAL, libc::ENOMEM, libc::EAGAIN] {
            let room = Room::new(Some(16 * CHUNK));
            let mut memory = Memory::within(1 << 30, room.clone()).unwrap();
            let faults = Faults::table();
            memory.set_faults(faults.clone());
            let refuse = |times| {
                let (call, fault) = (Call::Advise, Fault::Errno(errno));
                faults.add(Injection { place: String::new(), call, fault, skip: 0, times });
            };
            for chunk in [0, 1, 2, 5, 9] {
                memory.write(chunk * CHUNK, &[7; CHUNK as usize]).unwrap();
            }
            let extents = memory.extents(0, 1 << 30, 16);
            let before = resident(&memory);
            // Parts of the first and the last of the chunks, and holes between them and behind.
            refuse(1);
            memory.zero(100, (1 << 30) - 200, true).unwrap();
            assert_eq!(faults.met(Call::Advise), 1);
            let all = read(&memory, 0, 10 << CHUNK_BITS);
            assert!(all[..100].iter().all(|&byte| byte == 7) && all[100..].iter().all(|&byte| byte == 0));
            assert_eq!((memory.extents(0, 1 << 30, 16), room.used()), (extents, 5), "what has memory is allocated");
            assert!(resident(&memory) <= before + 8, "a hole has taken memory");
            // Zeroes that are to have memory, over a hole.
            refuse(1);
            memory.zero(8 * CHUNK, 2 * CHUNK, false).unwrap();
            assert_eq!((read(&memory, 8 * CHUNK, 2 << CHUNK_BITS), room.used()), (vec![0; 2 << CHUNK_BITS], 6));
            assert_eq!(faults.met(Call::Advise), 2);
            memory.zero(0, 1 << 30, true).unwrap();
            assert_eq!((memory.extents(0, 1 << 30, 16), room.used()), (vec![Extent { len: 1 << 30, hole: true }], 0));
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
    fn a_step_of_a_zeroing_covers_little_that_was_written() {
        let (size, all) = (256 << 20, |memory: &Memory| -> Vec<u64> {
            let mut at = 4096;
            std::iter::from_fn(|| {
                let step = memory.step(at, (256 << 20) - at);
                at += step;
                (step > 0).then_some(step)
            })
            .collect()
        });
        let memory = Memory::new(size).unwrap();
        assert_eq!(all(&memory), [vec![SPAN; 7], vec![SPAN - 4096]].concat(), "holes");
        memory.mark(0, size, size / CHUNK);
        assert_eq!(all(&memory), [vec![PIECE - 4096], vec![PIECE; 127]].concat(), "every page may have been written");
        memory.zero(0, size, true).unwrap();
        // One chunk in eight: as many in eight pieces as a whole piece has.
        (0..size / CHUNK).step_by(8).for_each(|chunk| memory.mark(chunk * CHUNK, CHUNK, 1));
        assert_eq!(all(&memory), [vec![8 * PIECE - 4096], vec![8 * PIECE; 15]].concat());
        assert_eq!((memory.step(5, 1), memory.step(0, 0)), (1, 0));
    }

    /// A figure, see `cargo test --release -p evenkeel-server --lib zeroing_takes -- --ignored --nocapture`.
    #[test]
    #[ignore = "prints a figure, which a busy machine changes"]
    fn a_step_of_a_zeroing_takes_a_fraction_of_a_millisecond() {
        let size = 256 << 20;
        let memory = Memory::new(size).unwrap();
        (0..size).step_by(PIECE as usize).for_each(|at| memory.write(at, &[7; PIECE as usize]).unwrap());
        let (mut at, mut took) = (0, Vec::new());
        while at < size {
            let begun = std::time::Instant::now();
            let step = memory.step(at, size - at);
            memory.zero(at, step, true).unwrap();
            took.push(begun.elapsed());
            at += step;
        }
        took.sort_unstable();
        let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
        println!("{} steps of written pages: median {median:?}, longest {longest:?}", took.len());
        assert!(median < std::time::Duration::from_millis(1), "{median:?}");
    }

    #[test]
    fn holes_take_memory_once_and_only_where_there_is_room() {
        let room = Room::new(Some(4 * CHUNK));
        let [memory, other] = [(); 2].map(|()| Memory::within(1 << 20, room.clone()).unwrap());
        let chunk = |n: u64| n * CHUNK;
        for byte in 1..4 {
            memory.write(chunk(1) + 100, &[byte; 10]).unwrap();
        }
        assert_eq!(room.used(), 1, "what is there takes none");
        assert_eq!(memory.write(chunk(0), &[9; 5 << 16]), Err(Full), "four of these are holes, and three are left");
        assert_eq!((room.used(), read(&memory, chunk(1) + 100, 1), read(&memory, 0, 1)), (1, vec![3], vec![0]));
        memory.write(chunk(2) - 1, &[4, 4]).unwrap();
        other.write(chunk(9), &[5; 1 << 16]).unwrap();
        memory.zero(chunk(8), 4096, false).unwrap();
        assert_eq!(room.used(), 4);
        assert_eq!(memory.write(chunk(3), &[1]), Err(Full));
        assert_eq!(memory.zero(chunk(3), 4096, false), Err(Full), "zeroes that are to have memory");
        memory.write(chunk(1), &[6; 2 << 16]).unwrap();
        assert_eq!((room.used(), memory.extents(chunk(3), CHUNK, 1)), (4, vec![Extent { len: CHUNK, hole: true }]));

        // A chunk of which one byte is left counts, and a hole has nothing to give.
        memory.zero(chunk(1), CHUNK - 1, true).unwrap();
        memory.zero(chunk(10), 3 << 16, true).unwrap();
        assert_eq!(room.used(), 4);
        memory.zero(chunk(0), 3 << 16, true).unwrap();
        assert_eq!(room.used(), 2);
        memory.grow(2 << 20).unwrap();
        memory.write((2 << 20) - 1, &[7]).unwrap();
        assert_eq!(room.used(), 3);
        drop(memory);
        assert_eq!(room.used(), 1);
        drop(other);
        assert_eq!(room.used(), 0);
    }

    /// Memory in KiB that the kernel counts for the mapping at whose beginning the volume begins.
    fn resident(memory: &Memory) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-", memory.base.as_ptr() as usize);
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&begins));
        let anonymous = lines.find_map(|line| line.strip_prefix("Anonymous:")).expect("it is mapped");
        anonymous.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn all_holes_are_read_from_the_same_zeros_however_long() {
        let memory = Memory::new(1 << 30).unwrap();
        memory.write(512 << 20, &[7]).unwrap();
        let volume = memory.at(0) as usize..memory.at((1 << 30) - 1) as usize;
        for len in [1, CHUNK, CHUNK + 1, 32 << 20, 256 << 20] {
            let [one, other] = [0, 700 << 20].map(|offset| memory.readable(offset, len));
            assert_eq!(one, other, "{len} bytes");
            assert!(!volume.contains(&(one as usize)), "the page tables of the volume stay as they are");
            // SAFETY: that many bytes can be read there.
            let ends = unsafe { [*one, *one.add(len as usize - 1)] };
            assert_eq!(ends, [0, 0], "{len} bytes");
        }
        let beside = (512 << 20) - 100_000;
        assert_eq!(memory.readable(beside, 200_000), memory.at(beside).cast_const(), "not only a hole");
        assert_eq!((zeros(MORE + 1), zeros(MORE).is_some()), (None, true));
    }

    #[test]
    fn zeros_for_long_holes_never_become_huge_pages() {
        let begins = format!("{:x}-", zeros(MORE).expect("it is mapped") as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&begins));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).expect("it is listed");
        let has_huge = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(flags.split_whitespace().any(|flag| flag == "nh"), has_huge, "{flags}");
    }

    #[test]
    fn trims_of_parts_of_pages_take_no_memory() {
        let memory = Memory::new(1 << 20).unwrap();
        for offset in (0..1 << 20).step_by(2 * PAGE as usize) {
            memory.zero(offset + 10, 100, true).unwrap();
            memory.zero(offset + PAGE - 10, 20, true).unwrap();
        }
        assert_eq!(resident(&memory), 0);
        memory.write(CHUNK, &[7; 3 * PAGE as usize]).unwrap();
        assert!(resident(&memory) >= 12);
        // Data becomes zero, also next to a hole.
        memory.zero(CHUNK - 10, 20, true).unwrap();
        let edge = read(&memory, CHUNK, 11);
        assert!(edge[..10].iter().all(|&byte| byte == 0) && edge[10] == 7, "{edge:?}");
        assert!(memory.is_hole(0, CHUNK));
    }

    #[test]
    fn a_volume_that_fits_into_half_of_the_room_takes_its_whole_size() {
        let chunks = |bytes: u64| (bytes / CHUNK) as i64;
        let room = Room::new(Some(5 * HUGE));
        let memory = Memory::within(2 * HUGE + CHUNK, room.clone()).unwrap();
        let small = Memory::within(HUGE, room.clone()).unwrap();
        assert_eq!((memory.at(0) as u64 % HUGE, room.used()), (0, chunks(2 * HUGE)), "the second does not fit");
        memory.write(HUGE - 1, &[1; 2]).unwrap();
        memory.zero(0, HUGE, true).unwrap();
        memory.zero(HUGE, CHUNK, false).unwrap();
        assert_eq!((read(&memory, HUGE - 1, 3), room.used()), (vec![0; 3], chunks(2 * HUGE)));

        // The part of the last huge page, and the part by which the volume grew, count by the chunk.
        memory.grow(8 * HUGE).unwrap();
        memory.write(2 * HUGE - 1, &[2; 2]).unwrap();
        memory.write(4 * HUGE, &[3; CHUNK as usize]).unwrap();
        assert_eq!(room.used(), chunks(2 * HUGE) + 2);
        small.write(0, &[4]).unwrap();
        memory.zero(0, 5 * HUGE, true).unwrap();
        assert_eq!(room.used(), chunks(2 * HUGE) + 1);
        memory.write(4 * HUGE, &[5]).unwrap();
        drop(memory);
        assert_eq!(room.used(), 1);
        drop(small);
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn what_is_counted_is_what_is_there_after_writes_and_trims_at_the_same_time() {
        let room = Room::new(Some(24 * CHUNK));
        let memory = Memory::within(64 * CHUNK, room.clone()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let memory = &memory;
                scope.spawn(move || {
                    let mut random = thread;
                    for _ in 0..2_000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let (first, count) = ((random >> 40) % 62, 1 + (random >> 50) % 2);
                        // Without room, nothing is done.
                        let _ = match (random >> 60) % 3 {
                            0 => memory.zero(first * CHUNK, count * CHUNK, true),
                            1 => memory.zero(first * CHUNK, count * CHUNK, false),
                            _ => memory.write((first + 1) * CHUNK - 8, &[7; 16]),
                        };
                    }
                });
            }
        });
        let there = (0..64).filter(|&chunk| !memory.lacks(chunk)).count();
        assert!(there <= 24 + 4 * 2, "{there} chunks, with those of writes beside a trim");
        assert_eq!(room.used(), there as i64);
    }

    #[test]
    fn the_largest_size_that_a_configuration_allows_is_refused_by_the_system() {
        for size in [i64::MAX as u64, 1 << 62] {
            let error = Memory::new(size).err().expect("no processor has so many addresses");
            assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "{error}");
        }
    }

    #[test]
    fn grows_in_place() {
        let memory = Memory::new(4096).unwrap();
        memory.write(0, &[1; 4096]).unwrap();
        memory.grow(1 << 30).unwrap();
        memory.write((1 << 30) - 1, &[2]).unwrap();
        assert_eq!((read(&memory, 0, 1)[0], read(&memory, (1 << 30) - 1, 1)[0]), (1, 2));
        assert!(memory.grow(u64::MAX / 2).is_err());
    }
}
