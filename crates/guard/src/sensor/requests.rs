//! Every request of chosen block devices, as the block layer's tracepoints show it: figures without data.
//!
//! BPF programs follow each bio from its submission to its completion and put its figures into a ring of 4 MiB, which
//! [`Requests::drain`] reads. The control group of a request is that of the task that submits it: of a buffered write the task
//! is mostly one of the kernel, in the root group. Requests that were in flight before the start are passed over.

use std::array;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::diskstats::DeviceNumber;
use super::events::{Attached, FOLDERS, attach, formats, in_events, of_events};
use super::requests_bpf::{
    ARRIVAL, ARRIVALS, BIO_BYTES, CGROUP, COMPLETION, DEVICE, DEVICE_BYTES, DISK, ERROR, ISSUE, KEY_BYTES, LETTERS,
    LOST, Maps, RECORD_BYTES, SECTOR, SECTORS, at_completion, at_issue, at_queue,
};
use super::ring::Ring;
use crate::bpf::{Kind, Map};
use crate::error::Error;

/// Length of the ring, in bytes: 58,000 requests, as a device completes in 50 ms at 1.1 million IOPS.
const RING_BYTES: usize = 4 << 20;
/// Largest number of requests in flight that are followed; if there are more, the oldest are lost. Each takes some 130 bytes of
/// kernel memory. A processor may keep 128 free places to itself, those of 512 processors a half.
const MAX_IN_FLIGHT: usize = 131_072;
/// Names of the tracepoints that are used, in tracefs's folder `events/block`.
const EVENTS: [&str; 4] = ["block_bio_queue", "block_rq_issue", "block_bio_complete", "block_rq_complete"];

/// A request that has completed: a bio. Times are those of `CLOCK_MONOTONIC`, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time of the submission.
    pub arrival_ns: u64,
    /// Time at which the kernel issued the request to the disk; `None` if it is not known, as for stacked devices.
    pub issue_ns: Option<u64>,
    /// Time of the completion.
    pub completion_ns: u64,
    /// Number of the control group of the task that submitted the request: the inode number of the group's folder.
    pub cgroup: u64,
    /// First sector of 512 bytes, counted from the beginning of the disk; 0 for a flush.
    pub sector: u64,
    /// Number of sectors of 512 bytes; 0 for a flush.
    pub sectors: u32,
    /// The disk, also for a request to a partition.
    pub disk: DeviceNumber,
    /// The disk or partition that the request was submitted to; the disk before Linux 5.12.
    pub device: DeviceNumber,
    /// Error number of Linux; 0 if the request succeeded.
    pub error: u16,
    /// Letters of the operation and its flags, filled up with zeros: `R`, `W`, `D`, ..., as blkparse prints them.
    pub letters: [u8; 8],
}

impl Request {
    /// Decodes a record of the ring; `None` if its length is another one.
    fn parse(record: &[u8]) -> Option<Self> {
        if record.len() != RECORD_BYTES as usize {
            return None;
        }
        // What follows the end of the letters is left over from earlier events.
        let mut letters: [u8; 8] = part(record, LETTERS);
        let end = letters.iter().position(|&letter| letter == 0).unwrap_or(letters.len());
        letters[end..].fill(0);
        let number = |at| u64::from_ne_bytes(part(record, at));
        let issue_ns = number(ISSUE);
        let error = i32::from_ne_bytes(part(record, ERROR)).unsigned_abs();
        Some(Self {
            arrival_ns: number(ARRIVAL),
            issue_ns: (issue_ns != 0).then_some(issue_ns),
            completion_ns: number(COMPLETION),
            cgroup: number(CGROUP),
            sector: number(SECTOR),
            sectors: u32::from_ne_bytes(part(record, SECTORS)),
            disk: of_events(part(record, DISK)),
            device: of_events(part(record, DEVICE)),
            error: u16::try_from(error).unwrap_or(libc::EIO as u16),
            letters,
        })
    }
}

/// Decodes a record of the ring and checks the request, for fuzzing.
#[cfg(feature = "fuzz")]
pub(super) fn check(record: &[u8]) {
    let request = Request::parse(record);
    assert_eq!(request.is_some(), record.len() == RECORD_BYTES as usize, "a request has its length");
    let Some(Request { issue_ns, disk, device, letters, .. }) = request else { return };
    assert_ne!(issue_ns, Some(0), "a request that was not issued has no time of issue");
    for (number, at) in [(disk, DISK), (device, DEVICE)] {
        assert_eq!(in_events(number), part::<4>(record, at), "another device");
    }
    let end = letters.iter().position(|&letter| letter == 0).unwrap_or(letters.len());
    assert!(letters[end..].iter().all(|&letter| letter == 0), "letters behind the end");
}

/// The `N` bytes from `at` on.
fn part<const N: usize>(record: &[u8], at: i16) -> [u8; N] {
    array::from_fn(|n| record[at as usize + n])
}

/// The attached BPF programs with what they have recorded. The programs are detached when this value is dropped or this process
/// ends.
#[derive(Debug)]
pub struct Requests {
    ring: Ring,
    counts: Map,
    /// Number of requests that were read from the ring.
    received: u64,
    /// The program that sees submissions; `None` once no more are recorded.
    arrivals: Option<Attached>,
    _others: Vec<Attached>,
}

impl Requests {
    /// Loads and attaches the programs, by the descriptions of tracepoints in the first of `folders` that has them. From now on
    /// requests that are submitted to these devices are recorded: disks and partitions, each with its disk.
    ///
    /// # Errors
    /// [`Error::NoTracepoints`] without tracefs, [`Error::NoRing`] before Linux 5.8, [`Error::Unrecorded`] with what else the
    /// kernel refuses; as [`Error::Read`] and [`Error::Parse`] say for the tracepoints.
    pub fn start(
        folders: &[PathBuf],
        devices: impl IntoIterator<Item = (DeviceNumber, DeviceNumber)>,
    ) -> Result<Self, Error> {
        let [queue, issue, completions @ ..] = formats(folders, EVENTS)
            .map_err(|error| if error.is_absent() { Error::NoTracepoints { folder: FOLDERS[0] } } else { error })?;
        // Before Linux 5.11 the maps count as locked memory. Where that may not be raised it may be enough already.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        let ring = Ring::new(RING_BYTES).map_err(|cause| match cause {
            Errno::INVAL => Error::NoRing,
            cause => failed(cause),
        })?;
        let start = || {
            let devices: Vec<(DeviceNumber, DeviceNumber)> = devices.into_iter().collect();
            let chosen = Map::new(Kind::Fixed, DEVICE_BYTES, DEVICE_BYTES, devices.len().max(1))?;
            for (device, disk) in devices {
                chosen.update(&in_events(device), &in_events(disk))?;
            }
            let in_flight = Map::new(Kind::Recent, KEY_BYTES, BIO_BYTES as usize, MAX_IN_FLIGHT)?;
            let counts = Map::new(Kind::Array, 4, 8, 2)?;
            let maps = Maps { devices: &chosen, in_flight: &in_flight, counts: &counts, ring: ring.map() };
            // Completions first, so that no request is followed that is not seen to complete.
            let mut others = Vec::new();
            for format in &completions {
                others.push(attach(format, at_completion(format, &maps))?);
            }
            others.push(attach(&issue, at_issue(&issue, &maps))?);
            let arrivals = attach(&queue, at_queue(&queue, &maps))?;
            Ok::<_, Errno>((counts, others, arrivals))
        };
        let (counts, others, arrivals) = start().map_err(failed)?;
        Ok(Self { ring, counts, received: 0, arrivals: Some(arrivals), _others: others })
    }

    /// Calls `each` with every request that has completed since the previous call.
    pub fn drain(&mut self, mut each: impl FnMut(Request)) {
        let received = &mut self.received;
        self.ring.drain(|record| {
            *received += 1;
            if let Some(request) = Request::parse(record) {
                each(request);
            }
        });
    }

    /// Number of requests since the start for which the ring had no room.
    ///
    /// # Errors
    /// [`Error::Unrecorded`] with what the kernel refuses.
    pub fn lost(&self) -> Result<u64, Error> {
        self.count(LOST)
    }

    /// Number of requests that were submitted since the start, but not seen to complete. They are in flight, were more than can
    /// be followed, had the same operation and place as others at the same time, or completed in an interrupt of a BPF program,
    /// for which the kernel runs no other one.
    ///
    /// # Errors
    /// [`Error::Unrecorded`] with what the kernel refuses.
    pub fn incomplete(&self) -> Result<u64, Error> {
        Ok(self.count(ARRIVALS)?.saturating_sub(self.count(LOST)?.saturating_add(self.received)))
    }

    /// Ends the recording of requests that are submitted from now on; those in flight are still recorded.
    pub fn end_arrivals(&mut self) {
        self.arrivals = None;
    }

    fn count(&self, index: i32) -> Result<u64, Error> {
        let mut value = [0; 8];
        self.counts.read(&index.to_ne_bytes(), &mut value).map_err(failed)?;
        Ok(u64::from_ne_bytes(value))
    }
}

fn failed(cause: Errno) -> Error {
    Error::Unrecorded { cause: cause.into() }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
