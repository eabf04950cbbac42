//! Tests of the records' form, and of the BPF programs in this machine's kernel with a loop device; the last are skipped if the
//! kernel refuses them.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use rustix::thread::UnshareFlags;

use super::*;
use crate::apart::{apart, own_cgroup, skip, tracefs};
use crate::folder::{Folder, folder};

/// A record as the programs write it: one of the read that [`read`] returns.
fn record() -> Vec<u8> {
    let mut record = vec![0xee; RECORD_BYTES as usize];
    let mut put = |at: i16, bytes: &[u8]| record[at as usize..][..bytes.len()].copy_from_slice(bytes);
    for (at, number) in [(ARRIVAL, 1_000_u64), (ISSUE, 1_500), (COMPLETION, 9_000), (CGROUP, 77), (SECTOR, 1 << 33)] {
        put(at, &number.to_ne_bytes());
    }
    put(SECTORS, &8_u32.to_ne_bytes());
    put(DISK, &in_events(DeviceNumber { major: 259, minor: 0 }));
    put(DEVICE, &in_events(DeviceNumber { major: 259, minor: 2 }));
    put(ERROR, &(-5_i32).to_ne_bytes());
    put(LETTERS, b"RA\0W\0\0\0S");
    record
}

fn read() -> Request {
    Request {
        arrival_ns: 1_000,
        issue_ns: Some(1_500),
        completion_ns: 9_000,
        cgroup: 77,
        sector: 1 << 33,
        sectors: 8,
        disk: DeviceNumber { major: 259, minor: 0 },
        device: DeviceNumber { major: 259, minor: 2 },
        error: 5,
        letters: *b"RA\0\0\0\0\0\0",
    }
}

#[test]
fn a_record_is_a_request() {
    assert_eq!(Request::parse(&record()), Some(read()));
    let mut not_issued = record();
    not_issued[ISSUE as usize..][..8].fill(0);
    assert_eq!(Request::parse(&not_issued), Some(Request { issue_ns: None, ..read() }));
    assert_eq!(Request::parse(&record()[1..]), None);
}

#[test]
fn figures_of_a_record_do_not_overlap() {
    let mut figures = [
        (ARRIVAL, 8),
        (ISSUE, 8),
        (CGROUP, 8),
        (SECTOR, 8),
        (SECTORS, 4),
        (DEVICE, 4),
        (LETTERS, 8),
        (COMPLETION, 8),
        (DISK, 4),
        (ERROR, 4),
    ];
    figures.sort();
    let mut end = 0;
    for (at, bytes) in figures {
        assert_eq!((at, at % bytes), (end, 0));
        end = at + bytes;
    }
    assert_eq!(end, RECORD_BYTES);
}

proptest! {
    #[test]
    fn every_record_of_the_length_is_a_request(record in proptest::collection::vec(any::<u8>(), 0..80)) {
        prop_assert_eq!(Request::parse(&record).is_some(), record.len() == RECORD_BYTES as usize);
    }
}

/// A loop device of 4 MiB on a file of its own; dropping it removes both.
struct Loop {
    device: PathBuf,
    _folder: Folder,
}

impl Loop {
    /// Makes the device; `None` if this machine has no loop devices.
    fn new(name: &str) -> Option<Self> {
        let folder = folder(&format!("loop-{name}"));
        let file = folder.file("disk", vec![7_u8; 4 << 20]);
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(Self { device: String::from_utf8_lossy(&output.stdout).trim().into(), _folder: folder })
    }

    fn number(&self) -> DeviceNumber {
        let number = std::fs::metadata(&self.device).expect("a device").rdev();
        DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) }
    }

    /// Opens the device so that requests go past the page cache.
    fn open(&self) -> File {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(direct).open(&self.device).expect("opened")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// Starts to record the requests of a device; `None` if this process may not, after the test was skipped.
fn started(number: DeviceNumber) -> Option<Requests> {
    let Some(folder) = tracefs() else {
        skip("no tracefs");
        return None;
    };
    match Requests::start(&[folder], [(number, number)]) {
        Err(Error::NoTracepoints { .. }) => {
            skip("no block tracepoints");
            None
        }
        Err(Error::NoRing) => {
            skip("no ring buffer of BPF");
            None
        }
        Err(Error::Unrecorded { cause }) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
            skip("not allowed");
            None
        }
        other => Some(other.unwrap()),
    }
}

/// The `bytes` of `memory` from the first address on that every device reads into past the page cache.
fn aligned(memory: &mut [u8], bytes: usize) -> &mut [u8] {
    let begin = memory.as_ptr().align_offset(4096);
    &mut memory[begin..][..bytes]
}

#[test]
fn direct_reads_of_a_loop_device_are_recorded_with_their_offsets() {
    apart(UnshareFlags::NEWNS, || {
        let Some(device) = Loop::new("reads") else { return skip("no loop device") };
        let Some(mut requests) = started(device.number()) else { return };
        let file = device.open();
        let mut memory = vec![0; 2 * 4096];
        let buffer = aligned(&mut memory, 4096);
        // Far apart and in no order, so that the kernel merges none.
        let offsets: Vec<u64> = (0..100).map(|n| n * 37 % 100 * 8 * 4096).collect();
        for &offset in &offsets {
            file.read_exact_at(buffer, offset).expect("read");
        }
        requests.end_arrivals();
        let mut seen = Vec::new();
        requests.drain(|request| seen.push(request));
        let wanted: BTreeSet<u64> = offsets.iter().map(|offset| offset / 512).collect();
        let own: Vec<&Request> = seen
            .iter()
            .filter(|request| request.letters[0] == b'R' && request.sectors == 8 && wanted.contains(&request.sector))
            .collect();
        // Others may read from the device meanwhile, and an interrupt may keep a program from running.
        let found: BTreeSet<u64> = own.iter().map(|request| request.sector).collect();
        assert!(found.len() >= 95, "{} of 100: {seen:?}", found.len());
        let cgroup = own[0].cgroup;
        for request in own {
            assert!(request.disk == device.number() && request.device == request.disk && request.error == 0);
            let issue_ns = request.issue_ns.expect("a disk with a queue");
            assert!(request.arrival_ns <= issue_ns && issue_ns <= request.completion_ns, "{request:?}");
            assert_eq!(request.cgroup, cgroup, "one task submits all");
        }
        if let Some(own) = own_cgroup() {
            assert_eq!(cgroup, own, "the group of the task that submits");
        }
        assert_eq!(requests.lost().expect("a count"), 0);
        assert!(requests.incomplete().expect("a count") <= 10);
        file.read_exact_at(buffer, 4096).expect("read");
        requests.drain(|request| assert_ne!(request.sector, 8, "no longer recorded"));
    });
}

#[test]
fn writes_and_flushes_of_a_loop_device_are_recorded() {
    apart(UnshareFlags::NEWNS, || {
        let Some(device) = Loop::new("writes") else { return skip("no loop device") };
        let Some(mut requests) = started(device.number()) else { return };
        let file = device.open();
        let mut memory = vec![0; 2 * 4096];
        let buffer = aligned(&mut memory, 4096);
        for n in 0..20 {
            file.write_all_at(buffer, n * 64 * 4096 % (4 << 20)).expect("written");
            file.sync_data().expect("flushed");
        }
        let mut seen = Vec::new();
        requests.drain(|request| seen.push(request));
        let count = |is: &dyn Fn(&Request) -> bool| seen.iter().filter(|&request| is(request)).count();
        let writes = count(&|request| request.letters[0] == b'W' && request.sectors == 8);
        assert!(writes >= 18, "{writes} of 20: {seen:?}");
        let flushes = count(&|request| request.letters[..2] == *b"FW" && request.sectors == 0);
        let cache = Path::new("/sys/dev/block").join(device.number().to_string()).join("queue/write_cache");
        match std::fs::read_to_string(&cache).unwrap_or_default().trim() {
            "write back" => assert!(flushes >= 18, "{flushes} of 20: {seen:?}"),
            _ => assert_eq!(flushes, 0, "a device without a cache gets no flushes"),
        }
    });
}
