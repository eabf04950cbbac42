//! Watches on the folders of all control groups: the kernel reports new groups and groups that are gone (inotify), so that no
//! search is needed while there are none.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::io::Errno;

/// Largest number of groups that are watched: half of the watches that a kernel grants to a user at least, which all programs
/// of root share. Users without privileges may make as many groups as they like.
const MAX_WATCHED: usize = if cfg!(test) { 300 } else { 4_096 };
/// Largest number of levels of groups that are watched: those that a search for groups visits at most.
const MAX_DEPTH: u32 = 12;
/// Number of calls of [`Watch::follow`] that watch nothing after one that could not watch all groups.
const PAUSE: u8 = 10;
/// Largest number of events that one call takes in: the kernel queues fewer by default.
const MAX_EVENTS: usize = 20_000;
/// Bytes that one system call reads: some hundred events.
const BUFFER: usize = 16 << 10;

/// Watches on control groups.
#[derive(Debug, Default)]
pub struct Watch {
    inotify: Option<OwnedFd>,
    /// Descriptors of the watches.
    watched: BTreeSet<i32>,
    /// True if all groups are watched.
    is_complete: bool,
    /// Number of further calls of [`Self::follow`] that watch nothing.
    pause: u8,
}

impl Watch {
    /// True if all groups are watched, so that [`Self::has_changed`] speaks for all of them. The kernel bounds the number of
    /// watches of a user.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Watches all groups below the folder `root`, and `root` itself. Call it before a search for groups: a group that is made
    /// during the search is then a change. If not all can be watched, none is: other programs need watches, too.
    pub fn follow(&mut self, root: &Path) {
        if let Some(left) = self.pause.checked_sub(1) {
            self.pause = left;
            return;
        }
        if self.inotify.is_none() {
            self.inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok();
        }
        let Some(inotify) = &self.inotify else { return };
        let mut watched = BTreeSet::new();
        self.is_complete = is_watched(inotify, root, MAX_DEPTH, &mut watched);
        // Most kernels keep the watch on a control group that is gone.
        for gone in self.watched.difference(&watched) {
            let _ = remove_watch(inotify, *gone);
        }
        self.watched = watched;
        if !self.is_complete {
            *self = Self { pause: PAUSE, ..Self::default() };
        }
    }

    /// True if a group was made or removed since the previous call, or if that is not known.
    pub fn has_changed(&mut self) -> bool {
        let Some(inotify) = self.inotify.as_ref() else { return true };
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut has_changed = !self.is_complete;
        for _ in 0..MAX_EVENTS {
            match reader.next() {
                // Files of a group come and go with the group.
                Ok(event) => has_changed |= event.events().intersects(ReadFlags::ISDIR | ReadFlags::QUEUE_OVERFLOW),
                Err(Errno::AGAIN) => return has_changed,
                Err(_) => return true,
            }
        }
        true
    }
}

/// Watches a group and all groups below it; true if each of them is watched. `watched`: descriptors of the watches so far.
fn is_watched(inotify: &OwnedFd, folder: &Path, depth: u32, watched: &mut BTreeSet<i32>) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return true };
    if watched.len() >= MAX_WATCHED {
        return false;
    }
    let events = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
    match add_watch(inotify, folder, events) {
        Ok(descriptor) => {
            watched.insert(descriptor);
        }
        // The watch on the group above it has an event for one that is gone. A search finds nothing below one that is closed.
        Err(Errno::NOENT | Errno::ACCESS) => return true,
        Err(_) => return false,
    }
    // A folder of the kernel has two links, and one more for each folder in it.
    if std::fs::metadata(folder).map_or(true, |metadata| metadata.nlink() == 2) {
        return true;
    }
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return error.kind() == ErrorKind::NotFound,
    };
    let mut all = true;
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        all &= is_watched(inotify, &entry.path(), depth, watched);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::folder;

    #[test]
    fn groups_that_come_and_go_are_changes_and_files_are_none() {
        let root = folder("watch");
        let group = |path: &str| std::fs::create_dir_all(root.join(path)).unwrap();
        group("a/b");
        let mut watch = Watch::default();
        assert!(watch.has_changed() && !watch.is_complete(), "nothing is known before");
        watch.follow(&root);
        assert!(watch.is_complete() && !watch.has_changed());
        std::fs::write(root.join("a/b/io.max"), "").unwrap();
        assert!(!watch.has_changed());
        for path in ["c", "a/b/d"] {
            group(path);
            assert!(watch.has_changed() && !watch.has_changed(), "{path}");
        }
        // Not watched before the next call.
        group("c/e");
        assert!(!watch.has_changed());
        watch.follow(&root);
        std::fs::remove_dir(root.join("c/e")).unwrap();
        assert!(watch.has_changed() && !watch.has_changed());
        std::fs::remove_dir_all(root.join("a")).unwrap();
        assert!(watch.has_changed());
    }

    #[test]
    fn with_more_groups_than_are_watched_each_call_is_a_change() {
        let root = folder("watch-many");
        (0..MAX_WATCHED).for_each(|number| std::fs::create_dir(root.join(number.to_string())).unwrap());
        let mut watch = Watch::default();
        watch.follow(&root);
        assert!(!watch.is_complete() && watch.has_changed() && watch.has_changed());
        assert!(watch.inotify.is_none(), "it keeps no watches from other programs");
        std::fs::remove_dir(root.join("0")).unwrap();
        for _ in 0..PAUSE {
            watch.follow(&root);
            assert!(!watch.is_complete() && watch.has_changed());
        }
        watch.follow(&root);
        assert!(watch.is_complete() && !watch.has_changed());
    }

    /// A folder that is moved away stands for a control group that is gone: the kernel keeps the watch on either.
    #[test]
    fn a_group_that_is_gone_is_watched_no_longer() {
        let (root, elsewhere) = (folder("watch-gone"), folder("watch-elsewhere"));
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        let mut watch = Watch::default();
        watch.follow(&root);
        assert_eq!(watch.watched.len(), 3);
        std::fs::rename(root.join("a/b"), elsewhere.join("b")).unwrap();
        assert!(watch.has_changed());
        watch.follow(&root);
        assert_eq!(watch.watched.len(), 2);
        std::fs::create_dir(elsewhere.join("b/c")).unwrap();
        assert!(watch.is_complete() && !watch.has_changed());
    }
}
