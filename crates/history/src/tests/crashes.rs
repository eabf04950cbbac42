//! Ends at any moment: a copy of the folder at each write is what `kill -9` leaves.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{AMPLE, Scratch, T0, copy, open, recorded, same_at_all, second, slices};
use crate::content::Content;
use crate::error::Note;
use crate::folder::{Sink, path_of};
use crate::frame::HEAD;
use crate::resolution::{Resolution, Stream};
use crate::{Bounds, Entry, Error, Filter, History, Reader};

/// Copies the folder in the middle of each write, and behind it.
#[derive(Debug)]
struct Copying {
    from: PathBuf,
    to: PathBuf,
    copies: u64,
    /// Seconds that were recorded before the write.
    before: Arc<AtomicU64>,
}

impl Copying {
    fn copy(&mut self) {
        self.copies += 1;
        copy(&self.from, &self.to.join(format!("{}-{}", self.before.load(Ordering::Relaxed), self.copies)));
    }
}

impl Sink for Copying {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let (half, rest) = bytes.split_at(bytes.len() / 2);
        file.write_all(half)?;
        self.copy();
        file.write_all(rest)?;
        self.copy();
        Ok(())
    }
}

#[test]
fn nothing_is_lost_or_doubled_whenever_it_is_killed() {
    const SECONDS: u64 = 125;
    let (scratch, copies) = (Scratch::new(), Scratch::new());
    let before = Arc::new(AtomicU64::new(0));
    let (from, to) = (scratch.path().to_owned(), copies.path().to_owned());
    let sink = Copying { from: from.clone(), to, copies: 0, before: Arc::clone(&before) };
    let (mut history, notes) = History::open_with(from, AMPLE, Box::new(sink)).expect("a history");
    assert!(notes.is_empty(), "{notes:?}");
    for n in 0..SECONDS {
        history.append(&second(T0 + n, 2));
        before.store(n + 1, Ordering::Relaxed);
    }
    let mut checked = 0_u64;
    for entry in fs::read_dir(copies.path()).expect("a folder") {
        let folder = entry.expect("an entry").path();
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let least: u64 = name.split_once('-').expect("a number").0.parse().expect("a number");
        let (mut history, _) = open(&folder, AMPLE);
        let kept = same_at_all(&folder)[0];
        assert!((least..=least + 1).contains(&kept), "{kept} seconds in {name}");
        // It continues where it ended, also with what was not complete.
        let until = if checked.is_multiple_of(16) { 625 } else { SECONDS + 15 };
        (T0 + kept..T0 + until).for_each(|at| history.append(&second(at, 2)));
        assert_eq!(same_at_all(&folder)[0], until, "{name}");
        assert_eq!(slices(&folder, Resolution::TenMinutes)[0].recorded, until.min(600), "{name}");
        drop(history);
        fs::remove_dir_all(&folder).expect("removed");
        checked += 1;
    }
    assert!(checked > 2 * SECONDS, "only {checked} copies");
}

#[test]
fn a_tail_that_was_torn_at_any_byte_is_cut() {
    const SECONDS: u64 = 12;
    let (scratch, torn) = (Scratch::new(), Scratch::new());
    drop(recorded(scratch.path(), SECONDS));
    let stream = Stream::of(Resolution::Second);
    let whole = fs::read(path_of(scratch.path(), stream, T0)).expect("a file");
    let all = slices(scratch.path(), Resolution::Second);
    let mut ends = Vec::new();
    let mut content = Content::new(whole.clone(), stream).expect("a file");
    while let Ok(Some(_)) = content.block() {
        ends.push(content.read);
    }
    assert_eq!((ends.len() as u64, ends.last()), (SECONDS, Some(&whole.len())));
    let noises: [&[u8]; 3] = [&[], &[0; 9], &[0xff; 30]];
    for length in 0..=whole.len() {
        for noise in noises {
            // The noise may be what was torn off.
            let bytes = [&whole[..length], noise].concat();
            let kept = ends.iter().filter(|end| bytes.get(..**end) == Some(&whole[..**end])).count();
            let folder = torn.path().join(format!("{length}-{}", noise.len()));
            copy(scratch.path(), &folder);
            fs::write(path_of(&folder, stream, T0), &bytes).expect("written");
            let (mut history, notes) = open(&folder, AMPLE);
            let cut = notes.iter().any(|note| matches!(note, Note::Cut { .. }));
            let aside = notes.iter().any(|note| matches!(note, Note::SetAside { .. }));
            let clean = noise.is_empty() && (ends.contains(&length) || length == HEAD);
            assert!(cut || aside || clean, "{length} bytes, then {noise:?}: {notes:?}");
            history.append(&second(T0 + SECONDS, 2));
            let read = slices(&folder, Resolution::Second);
            let (newest, before) = read.split_last().expect("the newest");
            assert_eq!(newest.at, T0 + SECONDS);
            let seconds: Vec<_> = before.iter().filter(|slice| slice.seconds == 1).cloned().collect();
            assert_eq!(seconds, all[..kept], "{length} bytes, then {noise:?}");
            fs::remove_dir_all(&folder).expect("removed");
        }
    }
}

#[test]
fn the_time_of_a_restart_is_a_gap() {
    let scratch = Scratch::new();
    drop(recorded(scratch.path(), 5));
    let (mut history, notes) = History::open(scratch.path(), Bounds::default()).expect("a history");
    assert!(notes.is_empty(), "{notes:?}");
    (T0 + 100..T0 + 103).for_each(|at| history.append(&second(at, 2)));
    let reader = Reader::new(scratch.path());
    let gaps = |resolution: Resolution, to: u64| {
        let range = reader.range(T0 - 50, to, resolution, &Filter::default()).expect("a folder");
        let gap = |entry: Result<Entry, Error>| match entry.expect("no error") {
            Entry::Gap { from, to } => Some((from - T0, to - T0)),
            Entry::Slice(_) => None,
        };
        range.filter_map(gap).collect::<Vec<_>>()
    };
    assert_eq!(gaps(Resolution::Second, u64::MAX), [(5, 100)]);
    assert_eq!(gaps(Resolution::Second, T0 + 107), [(5, 100), (103, 107)]);
    assert_eq!(gaps(Resolution::TenSeconds, u64::MAX), [(10, 100)]);
    assert!(gaps(Resolution::TenMinutes, u64::MAX).is_empty());
    assert_eq!(slices(scratch.path(), Resolution::TenMinutes)[0].recorded, 8);
}
