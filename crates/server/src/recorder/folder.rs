//! The files in the folder of the last minutes: the segments of the ring, those that a server before this one has left, and those
//! that are kept because a latency target was missed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Beginning of the names of segments.
const SEGMENT: &str = "segment-";
/// Beginning of the names of segments of the run before.
const BEFORE: &str = "before-";
/// Beginning of the names of segments that are kept because a latency target was missed; behind it is the time of the miss.
const MISSED: &str = "missed-";
/// End of the names of recordings.
const ENDING: &str = ".evf";
/// Largest number of misses of which segments are kept.
pub(super) const MISSES: usize = 5;
/// A file system is nearly full if less than this part of it is free ...
const LEAST_FREE: u64 = 20;
/// ... and less than so many bytes.
const ENOUGH: u64 = 1 << 30;

/// Path of the segment with this number.
pub(super) fn segment(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{SEGMENT}{number:010}{ENDING}"))
}

/// The segments in a folder, oldest first.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn segments(folder: &Path) -> io::Result<Vec<PathBuf>> {
    files(folder, SEGMENT)
}

/// The recordings in a folder whose names begin with `beginning`, in the order of their names.
fn files(folder: &Path, beginning: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| is_ours(name, beginning)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// True if a name is `beginning`, numbers, and the end of recordings. Other files in the folder are never touched.
fn is_ours(name: &str, beginning: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix(beginning).and_then(|rest| rest.strip_suffix(ENDING));
    numbers.is_some_and(|numbers| numbers.split('-').all(is_number))
}

fn remove(paths: &[PathBuf]) {
    paths.iter().for_each(|path| drop(fs::remove_file(path)));
}

/// Renames the segments of the run before, if there are any, in place of those of the run before that. A segment that cannot be
/// renamed is removed: it would count as one of the new ring.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn set_aside(folder: &Path) -> io::Result<()> {
    let segments = segments(folder)?;
    if segments.is_empty() {
        return Ok(());
    }
    remove(&files(folder, BEFORE)?);
    for path in segments {
        let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix(SEGMENT));
        let renamed = number.map(|number| fs::rename(&path, folder.join(format!("{BEFORE}{number}"))));
        if !matches!(renamed, Some(Ok(()))) {
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

/// Removes the segments of the ring and of the run before.
pub(super) fn clear(folder: &Path) {
    [SEGMENT, BEFORE].iter().for_each(|beginning| remove(&files(folder, beginning).unwrap_or_default()));
}

/// A file beside the ring.
struct Beside {
    path: PathBuf,
    bytes: u64,
    /// True if a segment of the ring is the same file, so that it takes no space of its own.
    is_shared: bool,
}

/// The files beside the ring, oldest first.
fn beside(folder: &Path) -> io::Result<Vec<Beside>> {
    let mut found = Vec::new();
    for path in [files(folder, BEFORE)?, files(folder, MISSED)?].concat() {
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let changed = (metadata.mtime(), metadata.mtime_nsec());
        found.push((changed, Beside { path, bytes: metadata.len(), is_shared: metadata.nlink() > 1 }));
    }
    found.sort_by(|(changed, one), (later, other)| changed.cmp(later).then_with(|| one.path.cmp(&other.path)));
    Ok(found.into_iter().map(|(_, file)| file).collect())
}

/// Space that files beside the ring take, in bytes.
pub(super) fn bytes_beside(folder: &Path) -> u64 {
    let found = beside(folder).unwrap_or_default();
    found.iter().filter(|file| !file.is_shared).map(|file| file.bytes).sum()
}

/// Removes the oldest files beside the ring until the others have at most `most` bytes, and are of at most `misses` misses.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn make_room(folder: &Path, most: u64, misses: usize) -> io::Result<()> {
    let missed = files(folder, MISSED)?;
    let times: BTreeSet<&str> = missed.iter().filter_map(|path| time_of(path)).collect();
    let old: BTreeSet<&str> = times.iter().copied().take(times.len().saturating_sub(misses)).collect();
    let is_old = |path: &&PathBuf| time_of(path).is_some_and(|time| old.contains(time));
    missed.iter().filter(is_old).for_each(|path| drop(fs::remove_file(path)));

    let found = beside(folder)?;
    let mut bytes: u64 = found.iter().map(|file| file.bytes).sum();
    for file in found {
        if bytes <= most {
            break;
        }
        bytes -= file.bytes;
        let _ = fs::remove_file(&file.path);
    }
    Ok(())
}

/// The time in the name of a file that is kept because of a miss.
fn time_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_prefix(MISSED)?.split(['-', '.']).next()
}

/// Keeps the newest of these `segments`, given with their sizes, under names with the time `unix_s` of a miss: links, for which
/// nothing is copied. Files beside the ring have at most `most` bytes then, and the oldest are removed for that, unless there is
/// no segment to keep. Returns the number of segments.
///
/// # Errors
/// If a link cannot be made; none of them is left then.
pub(super) fn keep(folder: &Path, segments: &[(PathBuf, u64)], unix_s: u64, most: u64) -> io::Result<usize> {
    let (mut bytes, mut count) = (0_u64, 0_usize);
    for &(_, size) in segments.iter().rev() {
        if bytes + size > most {
            break;
        }
        bytes += size;
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    make_room(folder, most - bytes, MISSES - 1)?;
    let mut links = Vec::new();
    for (number, (path, _)) in segments[segments.len() - count..].iter().enumerate() {
        let link = folder.join(format!("{MISSED}{unix_s}-{number:03}{ENDING}"));
        fs::hard_link(path, &link).inspect_err(|_| remove(&links))?;
        links.push(link);
    }
    Ok(count)
}

/// The error if the file system of this file or folder is nearly full: less than 5 % and less than 1 GiB free, which recordings
/// leave to the volumes. `None` if there is more, or the file system cannot be asked.
pub fn shortage(path: &Path) -> Option<io::Error> {
    let space = rustix::fs::statvfs(path).ok()?;
    let [free, all] = [space.f_bavail, space.f_blocks].map(|blocks| blocks.saturating_mul(space.f_frsize));
    is_nearly_full(free, all).then(|| {
        io::Error::new(io::ErrorKind::StorageFull, "less than 5 % of the file system is free, and less than 1 GiB")
    })
}

fn is_nearly_full(free: u64, all: u64) -> bool {
    free < (all / LEAST_FREE).min(ENOUGH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed when the value is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("evenkeel-folder-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).expect("a folder");
            Self(path)
        }

        /// Makes a file of 100 bytes.
        fn make(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, [7; 100]).expect("written");
            path
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).expect("a folder").flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_generation_of_segments_outlives_the_server() {
        let folder = Scratch::new("before");
        for name in ["segment-0000000003.evf", "before-0000000001.evf", "segment-mine.evf", "before-.evf"] {
            folder.make(name);
        }
        for _ in 0..2 {
            // Nothing was recorded since the second time.
            set_aside(&folder.0).expect("renamed");
            assert_eq!(folder.names(), ["before-.evf", "before-0000000003.evf", "segment-mine.evf"]);
        }
        folder.make("segment-0000000000.evf");
        folder.make("missed-1700000000-000.evf");
        clear(&folder.0);
        assert_eq!(folder.names(), ["before-.evf", "missed-1700000000-000.evf", "segment-mine.evf"]);
    }

    #[test]
    fn a_miss_keeps_the_newest_segments_within_the_bound() {
        let folder = Scratch::new("missed");
        folder.make("before-0000000000.evf");
        let segments: Vec<(PathBuf, u64)> = (0..4).map(|number| (segment(&folder.0, number), 100)).collect();
        for (path, _) in &segments {
            folder.make(path.file_name().and_then(|name| name.to_str()).expect("a name"));
        }
        assert_eq!(keep(&folder.0, &segments, 1_700_000_000, 350).expect("linked"), 3);
        let kept = |name: &str| folder.names().iter().filter(|found| found.starts_with(name)).count();
        assert_eq!((kept("missed-1700000000-"), kept("before-"), kept("segment-")), (3, 0, 4));
        assert_eq!(bytes_beside(&folder.0), 0, "a link takes no space");
        fs::remove_file(&segments[1].0).expect("removed");
        assert_eq!(bytes_beside(&folder.0), 100, "the ring has let it go");
        // A later one replaces the oldest files, whose time it was.
        assert_eq!(keep(&folder.0, &segments[3..], 1_700_000_600, 350).expect("linked"), 1);
        assert_eq!((kept("missed-1700000000-"), kept("missed-1700000600-")), (2, 1));
        // A segment that is gone: nothing is left of the try.
        assert!(keep(&folder.0, &[segments[3].clone(), segments[1].clone()], 1_700_001_200, 350).is_err());
        assert_eq!(kept("missed-1700001200-"), 0);
        assert_eq!(keep(&folder.0, &segments[3..], 1_700_001_800, 99).expect("nothing to do"), 0, "it is too large");
        assert_eq!(kept("missed-1700000600-"), 1, "nothing was removed for nothing");
    }

    #[test]
    fn files_of_few_misses_are_kept() {
        let folder = Scratch::new("misses");
        let segments = [(folder.make("segment-0000000000.evf"), 100), (folder.make("segment-0000000001.evf"), 100)];
        for n in 0..7 {
            keep(&folder.0, &segments, 1_700_000_000 + n, 1 << 20).expect("linked");
        }
        let mut missed = files(&folder.0, MISSED).expect("a folder");
        assert_eq!(missed.len(), 2 * MISSES);
        assert_eq!(time_of(&missed.remove(0)), Some("1700000002"));
    }

    #[test]
    fn a_large_file_system_is_not_nearly_full_with_a_gigabyte() {
        assert!(is_nearly_full(49, 1_000) && !is_nearly_full(50, 1_000));
        assert!(is_nearly_full((1 << 30) - 1, 1 << 50) && !is_nearly_full(1 << 30, 1 << 50));
        assert!(!is_nearly_full(0, 0), "it has no size");
    }
}
