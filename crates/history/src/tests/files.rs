//! Files: bound, modes, versions, a full disk, a clock that is set.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{AMPLE, Scratch, T0, entries, open, recorded, same_at_all, second, size, slices};
use crate::error::{Error, Note};
use crate::folder::{Sink, list, path_of};
use crate::history::{RETRY_S, STEP_BACK_S};
use crate::resolution::{Resolution, Stream};
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
    // A month later the old files go, one with each second, except for the last of each.
    let files = || list(scratch.path()).expect("a folder").files[0].len();
    let before = files();
    history.append(&second(T0 + 32 * 86_400, 1));
    assert_eq!(files(), before, "one came, and one went");
    (1..100).for_each(|n| history.append(&second(T0 + 32 * 86_400 + n, 1)));
    assert_eq!(files(), 2);
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
    let mut history = recorded(scratch.path(), 400);
    history.append(&second(T0 + 399, 2));
    history.append(&second(T0 + 350, 2));
    assert_eq!((history.status().skipped_seconds, history.status().newest), (2, Some(T0 + 400)));
    history.append(&second(T0 + 400 + STEP_BACK_S, 2));
    history.append(&second(T0 + 399, 2));
    let notes = history.take_notes();
    assert!(!notes.is_empty(), "nothing was set aside");
    let later = |note: &Note| matches!(note, Note::SetAside { because, .. } if because.contains("clock"));
    assert!(notes.iter().all(later), "{notes:?}");
    assert_eq!(history.status().newest, Some(T0 + 400), "the file before and the second");
    history.append(&second(T0 + 400, 2));
    assert_eq!((history.status().lost_seconds, history.status().skipped_seconds), (0, 2));
    // Of six minutes the seconds went by age or are set aside, and the minutes stay.
    assert_eq!(same_at_all(scratch.path())[0], 362);
}
