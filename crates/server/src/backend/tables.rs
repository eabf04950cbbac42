//! Counts the page tables of volumes in memory.
//!
//! The system adds a page table of 4 KiB for each 2 MiB of addresses in which a page is first written, and keeps the table when
//! all pages are given back. A client that writes a page and trims it again, all over a volume that is larger than the memory,
//! would so take 2 MiB for each GiB of addresses, while nothing is written. So page tables count in the [`Room`], until the
//! volume is dropped.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ram::{Full, PIECE, Room};

/// The page tables of one volume: one for each [`PIECE`] in which there was ever a chunk that counts by itself.
pub(super) struct Tables {
    /// One bit for each piece: 1 if its page table is counted.
    counted: Box<[AtomicU64]>,
    room: Room,
}

impl Tables {
    /// No page tables yet, for a volume of at most `bytes` bytes.
    pub(super) fn of(bytes: u64, room: Room) -> Self {
        let words = bytes.div_ceil(64 * PIECE);
        Self { counted: (0..words).map(|_| AtomicU64::new(0)).collect(), room }
    }

    /// Counts the page tables of the pieces with these indices that are not counted yet. Fails if there is no room for one of
    /// them; those before it stay counted.
    pub(super) fn take(&self, pieces: RangeInclusive<u64>) -> Result<(), Full> {
        for piece in pieces {
            let (word, bit) = (&self.counted[(piece / 64) as usize], 1 << (piece % 64));
            if word.load(Relaxed) & bit != 0 {
                continue;
            }
            self.room.take_table()?;
            if word.fetch_or(bit, Relaxed) & bit != 0 {
                // Another thread was faster.
                self.room.give_back_tables(1);
            }
        }
        Ok(())
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let tables: u64 = self.counted.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum();
        self.room.give_back_tables(tables);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::FileExt as _;

    use crate::backend::memory::Memory;
    use crate::ram::{CHUNK, Full, PIECE, Room};

    /// True if the system has mapped the page at `offset` of a volume, so that there is a page table for it.
    pub(crate) fn is_mapped(memory: &Memory, offset: u64) -> bool {
        let page = memory.at(offset) as u64 / rustix::param::page_size() as u64;
        let mut entry = [0; 8];
        let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
        pages.read_exact_at(&mut entry, page * 8).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[test]
    fn pages_that_are_written_and_trimmed_leave_page_tables_that_count() {
        let room = Room::new(Some(3 * CHUNK));
        let memory = Memory::within(1 << 30, room.clone()).unwrap();
        for piece in 0..3 {
            memory.write(piece * PIECE, &[7]).unwrap();
            memory.zero(piece * PIECE, PIECE, true).unwrap();
        }
        assert_eq!((room.used(), room.tables()), (0, 3));
        assert_eq!(memory.write(3 * PIECE, &[7]), Err(Full), "as many as there may be chunks");
        assert_eq!(memory.zero(3 * PIECE, 4096, false), Err(Full));
        assert_eq!((room.used(), room.tables()), (0, 3), "a write that fails takes nothing");
        memory.write(2 * PIECE + CHUNK, &[7]).unwrap();
        assert_eq!((room.used(), room.tables()), (1, 3), "the page table is there");
        drop(memory);
        assert_eq!((room.used(), room.tables()), (0, 0));
    }

    #[test]
    fn a_volume_that_has_taken_its_whole_size_counts_page_tables_of_the_rest_only() {
        let room = Room::new(Some(5 * PIECE));
        let memory = Memory::within(2 * PIECE, room.clone()).unwrap();
        memory.write(0, &[7]).unwrap();
        memory.grow(4 * PIECE).unwrap();
        memory.write(2 * PIECE - 1, &[7, 7]).unwrap();
        assert_eq!(room.tables(), 1);
    }

    #[test]
    fn a_trim_of_part_of_a_page_in_a_hole_adds_no_page_table() {
        let memory = Memory::within(1 << 30, Room::new(None)).unwrap();
        for offset in [2 * PIECE + 10, 4 * PIECE - 10] {
            memory.zero(offset, 20, true).unwrap();
            assert!(!is_mapped(&memory, offset) && !is_mapped(&memory, offset + 19), "offset {offset}");
        }
        memory.write(6 * PIECE, &[7; 100]).unwrap();
        memory.zero(6 * PIECE + 10, 20, true).unwrap();
        assert!(is_mapped(&memory, 6 * PIECE));
    }

    #[test]
    fn holes_beside_data_are_read_outside_the_volume() {
        let memory = Memory::within(1 << 30, Room::new(None)).unwrap();
        memory.write(3 * PIECE + 5, &[7]).unwrap();
        assert!(memory.is_sparse(2 * PIECE, 2 * PIECE) && memory.is_sparse(3 * PIECE - 1, 2));
        assert!(!memory.is_sparse(3 * PIECE, PIECE) && !memory.is_sparse(0, 4096));
        let volume = memory.at(0) as usize..memory.at((1 << 30) - 1) as usize;
        let (mut at, mut own) = (2 * PIECE + 100, 0);
        while at < 5 * PIECE {
            let (address, len) = memory.part(at, 5 * PIECE - at);
            assert!(len > 0 && at / PIECE == (at + len - 1) / PIECE, "{at}: {len} bytes");
            let is_own = volume.contains(&(address as usize));
            assert_eq!(is_own, at / PIECE == 3, "offset {at}");
            own += if is_own { len } else { 0 };
            at += len;
        }
        assert_eq!((at, own), (5 * PIECE, PIECE));
    }
}
