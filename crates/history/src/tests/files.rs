//! Files: bound, modes, versions, a full disk, a clock that is set.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{AMPLE, Scratch, T0, entries, open, recorded, same_at_all, second, size, slices};
use crate::error::{Error, Note};
use crate::folder::{Plain, Sink, list, path_of};
use crate::frame::HEAD;
use crate::history::{BACK_SECONDS, RETRY_S, STEP_BACK_S};
use crate::resolution::{Resolution, Stream};
use crate::store::STEADY_SECONDS;
use crate::{Bounds, Entry, Filter, History, Reader};

const SECONDS: Stream = Stream::of(Resolution::Second);

/// A disk with so many bytes of room.
#[derive(Debug)]
struct Small(Arc<AtomicU64>);

impl Sink for Small {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let room = self.0.load(Ordering::Relaxed);
        let taken = room.min(bytes.len() as u64);
        file.write_all(&bytes[..taken as usize])?;
        self.0.store(room - taken, Ordering::Relaxed);
        if taken < bytes.len() as u64 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

#[test]
fn a_full_disk_pauses_recording_until_there_is_room() {
    // Other room each time, so that each kind of write fails at various of its bytes.
    for room in (0..6_000).step_by(101) {
        let (scratch, left) = (Scratch::new(), Arc::new(AtomicU64::new(room)));
        let sink = Box::new(Small(Arc::clone(&left)));
        let (mut history, _) = History::open_with(scratch.path().to_owned(), AMPLE, sink).expect("a history");
        let mut at = T0;
        while history.status().paused.is_none() {
            history.append(&second(at, 2));
            at += 1;
        }
        let notes = history.take_notes();
        assert!(matches!(&notes[..], [Note::Paused { because }] if because.contains("cannot write")), "{notes:?}");
        let mut lost = history.status().lost_seconds;
        assert!(lost <= 1, "{lost}");
        for _ in 1..RETRY_S {
            history.append(&second(at, 2));
            (at, lost) = (at + 1, lost + 1);
        }
        assert_eq!((history.status().lost_seconds, history.status().errors), (lost, 1));
        left.store(u64::MAX, Ordering::Relaxed);
        (at..at + 700).for_each(|at| history.append(&second(at, 2)));
        assert_eq!((history.status().lost_seconds, history.status().paused), (lost, None));
        assert_eq!(history.take_notes(), [Note::Resumed { lost_seconds: lost }]);
        assert!(history.sync());
        assert_eq!(same_at_all(scratch.path())[0], at + 700 - T0 - lost, "{room} bytes of room");
        let read = entries(scratch.path(), Resolution::Second);
        let gaps = read.iter().filter(|entry| matches!(entry, Entry::Gap { .. })).count();
        assert!(gaps <= 1, "{gaps} gaps");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_tried_again() {
    let scratch = Scratch::new();
    let (file, folder) = (scratch.path().join("file"), scratch.path().join("file/history"));
    fs::write(&file, "in the way").expect("written");
    let (mut history, notes) = History::open(folder, Bounds::default()).expect("paused");
    assert!(matches!(&notes[..], [Note::Paused { because }] if because.contains("cannot make")), "{notes:?}");
    history.append(&second(T0, 2));
    assert!(!history.sync());
    assert_eq!((history.status().lost_seconds, history.status().newest), (1, None));
    fs::remove_file(&file).expect("removed");
    (T0 + 1..=T0 + RETRY_S).for_each(|at| history.append(&second(at, 2)));
    assert_eq!((history.status().newest, history.oldest()), (Some(T0 + RETRY_S + 1), Some(T0 + RETRY_S)));
    assert_eq!(history.take_notes(), [Note::Resumed { lost_seconds: RETRY_S }]);
}

#[test]
fn the_bound_is_never_exceeded() {
    const BOUND: u64 = 128 << 10;
    let scratch = Scratch::new();
    let (mut history, _) = open(scratch.path(), BOUND);
    let (mut most, mut oldest) = (0, T0);
    for at in T0..T0 + 4_000 {
        history.append(&second(at, 12));
        let used = size(scratch.path());
        assert!(used <= BOUND, "{used} bytes");
        most = most.max(used);
        if at.is_multiple_of(97) {
            assert_eq!(history.status().bytes, used);
            assert!(history.oldest() >= Some(oldest), "older than before");
            oldest = history.oldest().expect("data");
        }
    }
    let status = history.status();
    assert_eq!((status.lost_seconds, status.dropped_blocks, status.errors), (0, 0, 0), "{status:?}");
    assert!(most > BOUND / 2, "at most {most} bytes");
    // Coarser with age, without a gap or an overlap.
    let read = slices(scratch.path(), Resolution::Second);
    assert!(read.is_sorted_by(|a, b| a.seconds >= b.seconds), "finer before coarser");
    assert!(read.windows(2).all(|pair| pair[0].end() == pair[1].at), "a gap");
    assert_eq!(read.first().map(|slice| slice.at), Reader::new(scratch.path()).oldest().expect("a folder"));
    assert!(read.last().is_some_and(|slice| (slice.seconds, slice.end()) == (1, T0 + 4_000)));
}

#[test]
fn seconds_are_kept_for_an_hour_and_nothing_is_counted_twice() {
    let scratch = Scratch::new();
    let (mut history, _) = open(scratch.path(), AMPLE);
    (T0..T0 + 7_300).for_each(|at| history.append(&second(at, 1)));
    let read = slices(scratch.path(), Resolution::Second);
    let finest = read.iter().filter(|slice| slice.seconds == 1).count();
    assert!((3_600..=3_900).contains(&finest), "{finest} seconds");
    assert_eq!(same_at_all(scratch.path())[0], 7_300);
    assert_eq!(history.oldest(), Some(T0));
    // A month later the old files go, one with each second, when the clock is known to be steady.
    let files = || list(scratch.path()).expect("a folder").files[0].len();
    let before = files();
    let month = T0 + 32 * 86_400;
    (0..10).for_each(|n| history.append(&second(month + n, 1)));
    assert_eq!(files(), before + 1, "one came, and none went");
    (10..STEADY_SECONDS).for_each(|n| history.append(&second(month + n, 0)));
    assert_eq!(files(), before + 12, "twelve came, and none went");
    (0..100).for_each(|n| history.append(&second(month + STEADY_SECONDS + n, 0)));
    assert_eq!(files(), 13);
}

#[test]
fn a_second_that_is_too_large_for_the_bound_is_not_recorded() {
    let scratch = Scratch::new();
    let (mut history, _) = open(scratch.path(), 16 << 10);
    history.append(&second(T0, 200));
    let status = history.status();
    assert_eq!((status.lost_seconds, status.newest), (1, None));
    assert!(status.paused.is_some_and(|why| why.contains("set the key history to 16 times as many")));
    history.append(&second(T0 + RETRY_S, 2));
    assert_eq!(history.status().paused, None);
    assert_eq!(same_at_all(scratch.path())[0], 1);
}

#[test]
fn the_owner_alone_reads_and_one_process_records() {
    let scratch = Scratch::new();
    let folder = scratch.path().join("a/history");
    fs::create_dir_all(&folder).expect("a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("set");
    let history = recorded(&folder, 11);
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let files: Vec<_> = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(files.iter().all(|path| mode(path) == 0o600));
    let again = History::open(&folder, Bounds::default());
    assert!(matches!(again, Err(Error::InUse { .. })), "{again:?}");
    drop(history);
    assert!(History::open(&folder, Bounds::default()).is_ok());
    let small = History::open(&folder, Bounds { bytes: Bounds::LEAST - 1 });
    assert!(matches!(small, Err(Error::Bound { .. })), "{small:?}");
}

#[test]
fn another_version_is_set_aside_and_begun_anew() {
    let scratch = Scratch::new();
    drop(recorded(scratch.path(), 9));
    let path = path_of(scratch.path(), SECONDS, T0);
    let mut bytes = fs::read(&path).expect("a file");
    bytes[8] = 2;
    fs::write(&path, bytes).expect("written");
    let wrong = Reader::new(scratch.path()).range(0, u64::MAX, Resolution::Second, &Filter::default());
    let wrong: Vec<_> = wrong.expect("a folder").collect();
    assert!(matches!(wrong[0], Err(Error::Version { found: 2, .. })), "{wrong:?}");
    let (mut history, notes) = open(scratch.path(), AMPLE);
    let aside = path.with_extension("evh.format-2");
    assert_eq!(notes, [Note::SetAside { path: aside.clone(), because: "from another version of Evenkeel" }]);
    assert!(notes[0].to_string().contains("is from another version of Evenkeel: it is kept as"), "{}", notes[0]);
    assert!(aside.exists() && !path.exists());
    history.append(&second(T0 + 20, 2));
    assert_eq!(same_at_all(scratch.path())[0], 1);
}

#[test]
fn a_clock_that_is_set_back_leaves_what_is_later_aside() {
    let scratch = Scratch::new();
    let mut history = recorded(scratch.path(), 300);
    history.append(&second(T0 + 299, 2));
    history.append(&second(T0 + 250, 2));
    assert_eq!((history.status().skipped_seconds, history.status().newest), (2, Some(T0 + 300)));
    history.append(&second(T0 + 300 + STEP_BACK_S, 2));
    // For so long it may be the clock that is wrong now.
    (0..BACK_SECONDS).for_each(|_| history.append(&second(T0 + 300, 2)));
    assert_eq!((history.take_notes(), history.status().newest), (Vec::new(), Some(T0 + 301 + STEP_BACK_S)));
    history.append(&second(T0 + 300, 2));
    let notes = history.take_notes();
    assert!(!notes.is_empty(), "nothing was set aside");
    let later = |note: &Note| matches!(note, Note::SetAside { because, .. } if because.contains("clock"));
    assert!(notes.iter().all(later), "{notes:?}");
    assert_eq!(history.status().newest, Some(T0 + 301), "the files before and the second");
    history.append(&second(T0 + 301, 2));
    let status = history.status();
    assert_eq!((status.lost_seconds, status.skipped_seconds), (0, 2 + BACK_SECONDS));
    assert_eq!(same_at_all(scratch.path())[0], 302, "a file that ends before stays");
}

#[test]
fn a_clock_that_is_wrong_for_minutes_costs_nothing() {
    let scratch = Scratch::new();
    let folder = scratch.path();
    drop(recorded(folder, 700));
    let before = slices(folder, Resolution::Second);
    // Without a battery a clock begins in 1970, until the network corrects it.
    let (mut history, _) = open(folder, AMPLE);
    (0..BACK_SECONDS).for_each(|at| history.append(&second(at, 2)));
    assert!(history.take_notes().is_empty());
    (T0 + 700..T0 + 720).for_each(|at| history.append(&second(at, 2)));
    assert_eq!(same_at_all(folder)[0], 720);
    // A year ahead for minutes; then what it recorded is set aside, and all else stays.
    let ahead = T0 + 365 * 86_400;
    (ahead..ahead + 200).for_each(|at| history.append(&second(at, 2)));
    (0..=BACK_SECONDS).for_each(|n| history.append(&second(T0 + 1_200 + n, 2)));
    assert!(!history.take_notes().is_empty());
    let after = slices(folder, Resolution::Second);
    assert_eq!(after[..700], before[..]);
    assert_eq!(same_at_all(folder)[0], 721);
}

/// A disk on which the files of seconds cannot be read beyond their heads, or (`true`) at all.
#[derive(Debug)]
struct Failing(bool);

impl Sink for Failing {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn read(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let fails = path.to_string_lossy().contains("/001-") && (self.0 || most > HEAD as u64);
        if fails { Err(rustix::io::Errno::IO.into()) } else { Plain.read(path, most) }
    }
}

#[test]
fn a_file_that_its_disk_cannot_read_does_not_end_the_recording() {
    for fails_at_head in [false, true] {
        let scratch = Scratch::new();
        drop(recorded(scratch.path(), 120));
        let opened = History::open_with(scratch.path().to_owned(), AMPLE, Box::new(Failing(fails_at_head)));
        let (mut history, notes) = opened.expect("a history");
        let aside = path_of(scratch.path(), SECONDS, T0).with_extension("evh.unreadable");
        assert!(matches!(&notes[..], [Note::SetAside { path, .. }] if *path == aside), "{notes:?}");
        assert_eq!(history.status().bytes, size(scratch.path()), "the file counts for the bound");
        (T0 + 120..T0 + 130).for_each(|at| history.append(&second(at, 2)));
        let status = history.status();
        assert_eq!((status.paused, status.lost_seconds), (None, 0));
        let read = slices(scratch.path(), Resolution::TenSeconds);
        assert_eq!(read.iter().map(|slice| slice.recorded).sum::<u64>(), 130);
    }
}
