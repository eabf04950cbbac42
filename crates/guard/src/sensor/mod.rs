//! Sensors: readers of the kernel's files and of OSDs' counters, and pure parsers of the content.
//!
//! | module | measures |
//! |---|---|
//! | [`cache`] | what a cached device is made of, and what its cache and its slow device did |
//! | [`cgroup`] | which control groups there are, and what each did on which device |
//! | [`diskstats`] | latency, rate, size and number in flight of each block device's requests |
//! | [`faults`] | which devices fail, hang or lack a part |
//! | [`initiators`] | what single initiators moved, where LIO counts it |
//! | [`queue`] | through which queues a device is reached, and what says how long they are |
//! | [`osd`] | what a Ceph OSD counts: latency of its store, what waits at its throttle |
//! | [`pressure`] | how long tasks of a control group waited for I/O |
//! | [`retransmits`] | TCP segments sent again, for the whole host |
//! | [`tracepoints`] | how long single reads take |
//! | [`requests`] | every request of chosen devices, with the control group that submitted it |
//! | [`cgroup_paths`] | paths of control groups by number |
//! | [`source`] | a file that stays open |

pub mod cache;
mod cache_dm;
pub mod cgroup;
pub mod cgroup_paths;
pub mod diskstats;
mod events;
pub mod faults;
pub mod initiators;
pub mod osd;
pub mod pressure;
pub mod queue;
pub mod requests;
mod requests_bpf;
pub mod retransmits;
mod ring;
pub mod source;
pub mod tracepoints;

pub use source::Source;

/// Parses an answer of device mapper, for fuzzing.
#[cfg(feature = "fuzz")]
pub(crate) fn read_device_mapper(bytes: &[u8]) {
    let _ = cache_dm::answer(bytes);
}

/// Reads the bytes, filled up to a ring of the host recorder, between two positions, for fuzzing. Returns the new position of the
/// consumer, the length of the ring in bytes, and the number of records.
#[cfg(feature = "fuzz")]
pub(crate) fn read_ring(bytes: &[u8], consumer: u64, producer: u64) -> (u64, usize, usize) {
    let mut count = 0;
    let (read, length) = ring::read_bytes(bytes, consumer, producer, |record| {
        count += 1;
        requests::check(record);
    });
    (read, length, count)
}
