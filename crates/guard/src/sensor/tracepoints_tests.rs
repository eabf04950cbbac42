//! Tests of the buckets, and of the BPF programs in this machine's kernel; the last are skipped if the kernel refuses them.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use rustix::thread::UnshareFlags;

use super::*;
use crate::apart::{apart, own_cgroup, skip, tracefs};

#[test]
fn the_middle_of_a_bucket_is_within_three_percent_of_all_in_it() {
    // As the program computes it.
    let bucket = |ns: u64| match ns >> FLOOR_BITS {
        0 => 0,
        _ => {
            let exponent = 63 - ns.leading_zeros() as i32;
            let sub = (ns >> (exponent - SUB_BITS)) as usize & ((1 << SUB_BITS) - 1);
            (1 + sub + (((exponent - FLOOR_BITS) as usize) << SUB_BITS)).min(BUCKETS - 1)
        }
    };
    for ns in (12..38).flat_map(|bits| [1u64 << bits, (1 << bits) + (1 << (bits - 3)) - 1, (2 << bits) - 1]) {
        let middle = middle(bucket(ns)).as_nanos() as f64;
        assert!((middle / ns as f64 - 1.0).abs() <= 0.032, "{ns}: {middle}");
    }
    assert_eq!(bucket((1 << 38) - 1), BUCKETS - 2);
}

#[test]
fn a_group_is_known_by_the_half_of_its_number_that_all_kernels_have_in_common() {
    assert_eq!(lower_half(1 << 32 | 77), lower_half(77));
    assert_ne!(lower_half(1 << 32 | 77), lower_half(78));
}

#[test]
fn entries_that_could_not_be_set_are_set_at_the_next_call() {
    let mut known = BTreeMap::from([(1, 1), (2, 2)]);
    let wanted = BTreeMap::from([(2, 7), (3, 3), (4, 4)]);
    let mut map = known.clone();
    for most in 0..6 {
        let mut calls = 0;
        let mut set = |key, value: Option<u32>| {
            calls += 1;
            match value {
                _ if calls > most => return Err(()),
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
            Ok(())
        };
        let result = bring_in_line(&mut known, &wanted, &mut set);
        assert_eq!(known, map);
        if result.is_ok() {
            assert_eq!((most, &map), (3, &wanted));
            return;
        }
    }
    panic!("it ends");
}

/// Reads a file `count` times, bypassing the page cache. Returns the number of the file's device, the duration of each read
/// as this thread measures it, and a function that makes one more read; `None` if the file system does not allow such reads.
fn timed_reads(count: usize) -> Option<(DeviceNumber, Vec<std::time::Duration>, impl FnMut() -> std::time::Duration)> {
    let path = std::env::current_exe().ok()?;
    let device = path.metadata().ok()?.dev();
    let number = DeviceNumber { major: rustix::fs::major(device), minor: rustix::fs::minor(device) };
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(direct).open(&path).ok()?;
    let mut memory = vec![0u8; 3 * 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_exact(&mut memory[aligned..][..4096]).ok()?;
    let mut place = 0;
    let mut one = move || {
        place = (place + 1) % 200;
        let began = std::time::Instant::now();
        file.seek(SeekFrom::Start(place * 4096)).unwrap();
        file.read_exact(&mut memory[aligned..][..4096]).unwrap();
        began.elapsed()
    };
    let times = (0..count).map(|_| one()).collect();
    Some((number, times, one))
}

#[test]
fn reads_are_counted_with_the_time_that_they_take() {
    apart(UnshareFlags::NEWNS, || {
        let Some(folder) = tracefs() else { return skip("no tracefs") };
        let Ok(events) = Events::read(&[folder]) else { return skip("no block tracepoints") };
        let Some((number, _, mut one)) = timed_reads(3) else { return skip("no reads around the page cache") };
        let mut times = match ReadTimes::start(&events, 2) {
            Err(Error::Programs { cause }) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
                return skip("not allowed");
            }
            other => other.unwrap(),
        };
        let found = |times: &mut ReadTimes, group| {
            let mut found = Vec::new();
            times
                .read(group, |bucket, count| found.extend(std::iter::repeat_n(middle(bucket), count as usize)))
                .unwrap();
            found
        };
        one();
        assert!(found(&mut times, 1).is_empty(), "nothing is watched");
        times.watch([(number, 1)]).unwrap();
        let mut own: Vec<_> = (0..100).map(|_| one()).collect();
        let mut seen = found(&mut times, 1);
        if seen.is_empty() {
            return skip("the file is on no device that the kernel counts reads of");
        }
        // Others may read from the device meanwhile.
        assert!(seen.len() >= 95, "{} of 100", seen.len());
        assert!(found(&mut times, 0).is_empty(), "another group");
        own.sort();
        seen.sort();
        let longest = own[own.len() - 1].mul_f64(1.05);
        let within = seen.iter().filter(|time| std::time::Duration::from(**time) <= longest).count();
        assert!(within >= 95, "{within} took no longer than all do as seen from here, {longest:?}: {seen:?}");
        assert!(std::time::Duration::from(seen[seen.len() / 2]) >= own[0] / 50, "no device is that fast: {seen:?}");
        times.watch([]).unwrap();
        // What was under way is still counted.
        std::thread::sleep(std::time::Duration::from_millis(500));
        found(&mut times, 1);
        one();
        assert!(found(&mut times, 1).is_empty(), "no longer watched");
    });
}

#[test]
fn reads_of_a_control_group_are_told_apart_from_others() {
    apart(UnshareFlags::NEWNS, || {
        let Some(folder) = tracefs() else { return skip("no tracefs") };
        let Ok(events) = Events::read(&[folder]) else { return skip("no block tracepoints") };
        let Some(cgroup) = own_cgroup() else { return skip("no cgroup v2") };
        let Some((number, _, mut one)) = timed_reads(3) else { return skip("no reads around the page cache") };
        let mut times = match ReadTimes::start_by_cgroup(&events, 2) {
            Err(Error::Programs { cause }) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
                return skip("not allowed");
            }
            other => other.unwrap(),
        };
        times.watch([(number, 0)]).unwrap();
        let count = |times: &mut ReadTimes, histogram| {
            let mut reads = 0;
            times.read(histogram, |_, more| reads += more).unwrap();
            reads
        };
        for _ in 0..100 {
            one();
        }
        let others = count(&mut times, 0);
        if others == 0 {
            return skip("the file is on no device that the kernel counts reads of");
        }
        assert!(others >= 95 && count(&mut times, 1) == 0, "no group is chosen: {others} of 100");
        // As the kernel numbered groups before 5.5.
        times.watch_cgroups([(lower_half(cgroup) | 7 << 32, 0, 1)]).unwrap();
        for _ in 0..100 {
            one();
        }
        let own = count(&mut times, 1);
        if own == 0 {
            return skip("this process's control group is not visible here");
        }
        assert!(own >= 95, "{own} of 100");
        times.watch_cgroups([]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        count(&mut times, 1);
        one();
        assert_eq!(count(&mut times, 1), 0, "no longer chosen");
    });
}

#[test]
fn counts_of_a_group_are_discarded_before_its_histogram_goes_to_another_one() {
    apart(UnshareFlags::NEWNS, || {
        let Some(folder) = tracefs() else { return skip("no tracefs") };
        let Ok(events) = Events::read(&[folder]) else { return skip("no block tracepoints") };
        let Some(cgroup) = own_cgroup() else { return skip("no cgroup v2") };
        let Some((number, _, mut one)) = timed_reads(3) else { return skip("no reads around the page cache") };
        let mut times = match ReadTimes::start_by_cgroup(&events, 2) {
            Err(Error::Programs { cause }) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
                return skip("not allowed");
            }
            other => other.unwrap(),
        };
        times.watch([(number, 0)]).unwrap();
        let mut count_of_100 = |times: &mut ReadTimes, histogram, discards: bool| {
            for _ in 0..100 {
                one();
            }
            if discards {
                times.discard(histogram).unwrap();
            }
            let mut reads = 0;
            times.read(histogram, |_, more| reads += more).unwrap();
            reads
        };
        times.watch_cgroups([(cgroup, 0, 1)]).unwrap();
        if count_of_100(&mut times, 1, false) == 0 {
            return skip("reads of this process's control group are not seen here");
        }
        // Others of the group may read meanwhile, but hardly between two calls.
        let left = count_of_100(&mut times, 1, true);
        assert!(left <= 5, "{left} reads of the group before");
        // No group has this id: a new one that has the histogram and does not read.
        times.watch_cgroups([(u64::MAX, 0, 1)]).unwrap();
        times.discard(1).unwrap();
        let other = count_of_100(&mut times, 1, false);
        assert!(other <= 5, "{other} reads of the group before");
        // The same id again, as if the kernel had given it to a new group.
        times.watch_cgroups([(cgroup, 0, 1)]).unwrap();
        let again = count_of_100(&mut times, 1, false);
        assert!(again >= 95, "{again} of 100");
    });
}

#[test]
fn maps_have_room_for_as_many_again() {
    let most = MAX_DEVICES;
    for (wanted, elements) in [
        (0, LEAST_ROOM),
        (LEAST_ROOM / 2, LEAST_ROOM),
        (LEAST_ROOM + 1, 4 * LEAST_ROOM),
        (most / 2, most),
        (most, most),
        (usize::MAX, most),
    ] {
        assert_eq!(room(wanted, most), elements, "{wanted}");
    }
}

#[test]
fn more_devices_and_groups_than_there_is_room_for_get_larger_maps() {
    apart(UnshareFlags::NEWNS, || {
        let Some(folder) = tracefs() else { return skip("no tracefs") };
        let Ok(events) = Events::read(&[folder]) else { return skip("no block tracepoints") };
        let Some(cgroup) = own_cgroup() else { return skip("no cgroup v2") };
        let Some((number, _, mut one)) = timed_reads(3) else { return skip("no reads around the page cache") };
        let mut times = match ReadTimes::start_by_cgroup(&events, 2) {
            Err(Error::Programs { cause }) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
                return skip("not allowed");
            }
            other => other.unwrap(),
        };
        assert_eq!(times.submissions.room, [LEAST_ROOM; 2]);
        times.watch([(number, 0)]).unwrap();
        times.watch_cgroups([(cgroup, 0, 1)]).unwrap();
        let own = |times: &mut ReadTimes, one: &mut dyn FnMut() -> std::time::Duration| {
            for _ in 0..100 {
                one();
            }
            let mut own = 0;
            times.read(1, |_, reads| own += reads).unwrap();
            own
        };
        if own(&mut times, &mut one) < 95 {
            return skip("reads of this process's control group are not seen here");
        }
        let more = LEAST_ROOM as u32;
        // Devices that do not exist.
        let others = (0..more).map(|minor| (DeviceNumber { major: 4_095, minor }, 0));
        times.watch(others.chain([(number, 0)])).unwrap();
        assert_eq!(times.submissions.room, [4 * LEAST_ROOM, LEAST_ROOM]);
        times.watch_cgroups((0..more).map(|id| (u64::from(id), 7, 0)).chain([(cgroup, 0, 1)])).unwrap();
        assert_eq!(times.submissions.room, [4 * LEAST_ROOM; 2]);
        assert_eq!((times.watched.len(), times.watched_cgroups.len()), (LEAST_ROOM + 1, LEAST_ROOM + 1));
        let counted = own(&mut times, &mut one);
        assert!(counted >= 95, "{counted} of 100");
        // Fewer are no reason for smaller maps.
        times.watch([]).unwrap();
        assert_eq!((times.watched.len(), times.submissions.room[0]), (0, 4 * LEAST_ROOM));
    });
}
