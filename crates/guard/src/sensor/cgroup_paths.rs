//! Paths of control groups (cgroup v2) by the number by which the kernel knows a group: the inode number of its folder.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::cgroup::ROOT;

/// Largest number of groups that are searched: a host with more of them is searched in part.
const MAX_SEARCHED: usize = 65_536;
/// Path of the group that all others are below.
const OUTERMOST: &str = "/";

/// Folder where cgroup v2 is mounted: [`ROOT`], or beside groups of version 1 its folder `unified`; `None` if there is none.
pub fn mounted() -> Option<PathBuf> {
    let root = Path::new(ROOT);
    [root.to_owned(), root.join("unified")].into_iter().find(|folder| folder.join("cgroup.procs").exists())
}

/// Paths, relative to `root`, of the groups with the numbers `wanted`: for example `system.slice/cron.service`, and `/` for
/// `root` itself. Groups that do not exist, or that cannot be read, are missing. Reads all folders until all groups are found.
pub fn find(root: &Path, wanted: &BTreeSet<u64>) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    if let Ok(metadata) = std::fs::metadata(root)
        && wanted.contains(&metadata.ino())
    {
        found.insert(metadata.ino(), OUTERMOST.to_owned());
    }
    let mut folders = VecDeque::from([PathBuf::new()]);
    let mut searched = 0;
    while let Some(parent) = folders.pop_front() {
        if found.len() == wanted.len() || searched == MAX_SEARCHED {
            break;
        }
        searched += 1;
        // A group that vanishes meanwhile has none below it.
        for entry in std::fs::read_dir(root.join(&parent)).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = parent.join(entry.file_name());
            if wanted.contains(&entry.ino()) {
                found.insert(entry.ino(), path.to_string_lossy().into_owned());
            }
            // Those beyond are never searched.
            if searched + folders.len() < MAX_SEARCHED {
                folders.push_back(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn groups_are_found_by_their_inode_numbers() {
        let root = std::env::temp_dir().join(format!("evenkeel-cgroup-paths-{}", std::process::id()));
        let nested = root.join("system.slice/db.service");
        fs::create_dir_all(&nested).expect("made");
        fs::create_dir_all(root.join("user.slice")).expect("made");
        fs::write(root.join("cgroup.procs"), "").expect("written");
        let number = |path: &Path| fs::metadata(path).expect("there").ino();
        let (outermost, group, file) = (number(&root), number(&nested), number(&root.join("cgroup.procs")));
        let all = find(&root, &BTreeSet::from([outermost, group, file]));
        let none = find(&root, &BTreeSet::new());
        fs::remove_dir_all(&root).expect("removed");
        let wanted = [(outermost, "/".to_owned()), (group, "system.slice/db.service".to_owned())];
        assert_eq!(all, BTreeMap::from(wanted), "a file is no group");
        assert!(none.is_empty());
        assert!(find(&root, &BTreeSet::from([group])).is_empty(), "the tree has gone");
    }
}
