//! A ring of records that BPF programs write and this process reads, without a system call (BPF_MAP_TYPE_RINGBUF).
//!
//! ```text
//!  page of the consumer │ page of the producer │ data │ the same data
//!   position: written    position: read          read
//! ```
//!
//! Positions count bytes since the beginning and never wrap. A record is a header of 8 bytes and its content, filled up to a
//! multiple of 8. The header begins with the content's length; its highest bit is set while the record is being written, the
//! next one if the record is discarded. The data are mapped twice, so that a record that crosses the end of the ring is in one
//! piece. The format is that of the kernel's `Documentation/bpf/ringbuf.rst`.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::bpf::{Kind, Map};

/// Bit of a header's length that is set while the record is being written.
const BUSY: u32 = 1 << 31;
/// Bit of a header's length that is set if the record is to be skipped.
const DISCARDED: u32 = 1 << 30;
/// Length of a header, in bytes.
const HEADER: usize = 8;

/// The data of a ring.
trait Data {
    /// Length of the ring, in bytes.
    fn length(&self) -> usize;

    /// First word of the header at `at`; the kernel may be writing it.
    fn header(&self, at: usize) -> u32;

    /// The `length` bytes from `at` on, which are those of a complete record. They may lie beyond the end of the ring, where it
    /// begins again.
    fn bytes(&self, at: usize, length: usize) -> &[u8];
}

/// Calls `each` with the contents of the records from the position `consumer` to the position `producer`, up to the first that
/// is being written. Returns the new position of the consumer, a multiple of 8 as `consumer` is one.
///
/// Positions and headers that no kernel writes end the reading: at most one ring of records is read, and none from beyond it.
fn records(data: &impl Data, consumer: u64, producer: u64, mut each: impl FnMut(&[u8])) -> u64 {
    let size = data.length() as u64;
    let producer = producer - producer % HEADER as u64;
    if producer.saturating_sub(consumer) > size {
        // More than the ring has room for: the oldest are overwritten, and the others begin nowhere.
        return producer;
    }
    let mut at = consumer;
    while at < producer {
        let place = (at % size) as usize;
        let header = data.header(place);
        if header & BUSY != 0 {
            break;
        }
        let length = (header & !DISCARDED) as usize;
        let all = (HEADER + length).next_multiple_of(8) as u64;
        if all > (producer - at).min(size) {
            // No kernel writes that: what is there cannot be read.
            return producer;
        }
        if header & DISCARDED == 0 {
            each(data.bytes(place + HEADER, length));
        }
        at += all;
    }
    at
}

/// A part of the ring in this process's memory. Dropping it unmaps the part.
#[derive(Debug)]
struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    fn new(map: &Map, protection: ProtFlags, bytes: usize, offset: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address =
            unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED, map.descriptor(), offset as u64) }?;
        Ok(Self { address: NonNull::new(address.cast()).ok_or(Errno::NOMEM)?, bytes })
    }

    /// The position at the beginning of the part.
    fn position(&self) -> &AtomicU64 {
        // SAFETY: the part begins with a page that has a position, is aligned to a page, and is mapped as long as `self` lives.
        // Nothing accesses the position except atomically.
        unsafe { AtomicU64::from_ptr(self.address.as_ptr().cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and what borrows from it has ended.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// A ring, as its only reader has it.
#[derive(Debug)]
pub(super) struct Ring {
    map: Map,
    consumer: Mapping,
    /// The producer's page, and the data twice.
    produced: Mapping,
    page: usize,
    length: usize,
}

impl Ring {
    /// Makes a ring with `length` bytes for records, a power of two and whole pages.
    ///
    /// # Errors
    /// [`Errno::INVAL`] before Linux 5.8.
    pub(super) fn new(length: usize) -> Result<Self, Errno> {
        let map = Map::new(Kind::Ring, 0, 0, length)?;
        let page = rustix::param::page_size();
        let consumer = Mapping::new(&map, ProtFlags::READ | ProtFlags::WRITE, page, 0)?;
        let produced = Mapping::new(&map, ProtFlags::READ, page + 2 * length, page)?;
        Ok(Self { map, consumer, produced, page, length })
    }

    /// The map that BPF programs write to.
    pub(super) fn map(&self) -> &Map {
        &self.map
    }

    /// Calls `each` with the content of every record that is complete, in the order of their beginnings, and releases them.
    pub(super) fn drain(&mut self, each: impl FnMut(&[u8])) {
        let consumer = self.consumer.position().load(Ordering::Relaxed);
        let producer = self.produced.position().load(Ordering::Relaxed);
        // What was written before the position moved on is seen.
        fence(Ordering::Acquire);
        let read = records(&*self, consumer, producer, each);
        self.consumer.position().store(read, Ordering::Release);
    }
}

impl Data for Ring {
    fn length(&self) -> usize {
        self.length
    }

    fn header(&self, at: usize) -> u32 {
        assert!(at + HEADER <= 2 * self.length && at.is_multiple_of(HEADER), "the header is in the data");
        // SAFETY: by the assertion the word lies in the mapping, aligned to 8 bytes. This process only reads it, atomically.
        let word = unsafe { AtomicU32::from_ptr(self.produced.address.as_ptr().add(self.page + at).cast()) };
        let header = word.load(Ordering::Relaxed);
        // The content was written before the bit was cleared.
        fence(Ordering::Acquire);
        header
    }

    fn bytes(&self, at: usize, length: usize) -> &[u8] {
        assert!(at + length <= 2 * self.length, "the record is in the data");
        // SAFETY: by the assertion the bytes lie in the mapping. The kernel changes no byte of a complete record before the
        // consumer's position has passed it, which `drain` sets only after the last use of the bytes.
        unsafe { std::slice::from_raw_parts(self.produced.address.as_ptr().add(self.page + at), length) }
    }
}

/// Data of a ring of a length, twice, in memory of this process.
#[cfg(any(test, feature = "fuzz"))]
struct Bytes(Vec<u8>, usize);

#[cfg(any(test, feature = "fuzz"))]
impl Data for Bytes {
    fn length(&self) -> usize {
        self.1
    }

    fn header(&self, at: usize) -> u32 {
        assert!(at.is_multiple_of(HEADER), "headers are aligned");
        u32::from_ne_bytes(std::array::from_fn(|n| self.0[at + n]))
    }

    fn bytes(&self, at: usize, length: usize) -> &[u8] {
        &self.0[at..at + length]
    }
}

/// Reads `data`, filled up with zeros to a ring, between two positions of which the first is a multiple of 8. Calls `each` with
/// the contents of the records. Returns the new position of the consumer, and the length of the ring in bytes. For fuzzing.
#[cfg(feature = "fuzz")]
pub(super) fn read_bytes(data: &[u8], consumer: u64, producer: u64, each: impl FnMut(&[u8])) -> (u64, usize) {
    let length = data.len().next_power_of_two().max(64);
    let mut once = data.to_vec();
    once.resize(length, 0);
    let bytes = Bytes(once.repeat(2), length);
    (records(&bytes, consumer, producer, each), length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Bytes {
        fn new(length: usize) -> Self {
            Self(vec![0; 2 * length], length)
        }

        /// Writes a record at a position, and returns the position behind it.
        fn put(&mut self, at: u64, bits: u32, content: &[u8]) -> u64 {
            let mut record = (content.len() as u32 | bits).to_ne_bytes().to_vec();
            record.extend([0; 4]);
            record.extend_from_slice(content);
            record.resize(record.len().next_multiple_of(8), 0xee);
            for (n, byte) in record.iter().enumerate() {
                let place = (at as usize + n) % self.1;
                self.0[place] = *byte;
                self.0[place + self.1] = *byte;
            }
            at + record.len() as u64
        }

        fn read(&self, consumer: u64, producer: u64) -> (Vec<Vec<u8>>, u64) {
            let mut found = Vec::new();
            let at = records(self, consumer, producer, |content| found.push(content.to_vec()));
            (found, at)
        }
    }

    #[test]
    fn a_record_that_is_being_written_ends_the_reading() {
        let mut data = Bytes::new(64);
        let first = data.put(0, 0, b"one");
        let second = data.put(first, BUSY, b"second");
        let end = data.put(second, 0, b"3");
        assert_eq!((first, second, end), (16, 32, 48));
        assert_eq!(data.read(0, end), (vec![b"one".to_vec()], first));
        assert_eq!(data.read(first, end), (vec![], first), "still being written");
        data.put(first, 0, b"second");
        assert_eq!(data.read(first, end), (vec![b"second".to_vec(), b"3".to_vec()], end));
        assert_eq!(data.read(end, end), (vec![], end), "nothing more");
    }

    #[test]
    fn a_discarded_record_is_skipped() {
        let mut data = Bytes::new(64);
        let first = data.put(0, DISCARDED, b"gone");
        let end = data.put(first, 0, b"kept");
        assert_eq!(data.read(0, end), (vec![b"kept".to_vec()], end));
        data.put(0, DISCARDED | BUSY, b"gone");
        assert_eq!(data.read(0, end), (vec![], 0), "not discarded yet");
    }

    #[test]
    fn a_record_that_crosses_the_end_is_in_one_piece() {
        let mut data = Bytes::new(64);
        let begin = 3 * 64 + 48;
        let content: Vec<u8> = (0..24).collect();
        let end = data.put(begin, 0, &content);
        assert_eq!(end, 4 * 64 + 16);
        assert_eq!(data.read(begin, end), (vec![content], end));
    }

    #[test]
    fn a_length_beyond_the_producer_is_no_record() {
        let mut data = Bytes::new(64);
        let end = data.put(0, 0, &[7; 16]);
        assert_eq!(data.read(0, end - 8), (vec![], end - 8));
        data.put(0, 0x3fff_ffff, b"");
        assert_eq!(data.read(0, end), (vec![], end));
    }

    #[test]
    fn positions_that_no_kernel_writes_end_the_reading() {
        let data = Bytes::new(64);
        assert_eq!(data.read(0, 64), (vec![vec![]; 8], 64), "headers of empty records");
        assert_eq!(data.read(0, 72), (vec![], 72), "more than a ring");
        assert_eq!(data.read(0, u64::MAX), (vec![], u64::MAX - 7));
        assert_eq!(data.read(0, 13), (vec![vec![]], 8), "not at a header");
        assert_eq!(data.read(16, 8), (vec![], 16), "backwards");
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            contents in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..60),
        ) {
            let mut data = Bytes::new(64);
            let mut at = 0;
            for (content, is_discarded) in contents {
                let end = data.put(at, if is_discarded { DISCARDED } else { 0 }, &content);
                let wanted = if is_discarded { vec![] } else { vec![content] };
                prop_assert_eq!(data.read(at, end), (wanted, end));
                at = end;
            }
        }

        #[test]
        fn arbitrary_data_do_not_panic(
            data in proptest::collection::vec(any::<u8>(), 64),
            consumer in 0..100_u64,
            producer in prop_oneof![0..1_000_u64, any::<u64>()],
        ) {
            let data = Bytes(data.repeat(2), 64);
            let consumer = consumer * 8;
            let (found, at) = data.read(consumer, producer);
            prop_assert!((consumer..=consumer.max(producer)).contains(&at) && at.is_multiple_of(8));
            prop_assert!(found.len() <= 8);
            // A second reading finds nothing new: it ends at once, where the first ended.
            prop_assert_eq!(data.read(at, producer), (vec![], at));
        }
    }
}
