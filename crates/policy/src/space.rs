//! Space of volumes in files: allocated bytes of each volume, and free bytes of the file systems below.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::figures::{bytes, counted};
use crate::trouble::Trouble;

/// Free part of a file system below which it counts as soon full.
const SOON_FULL: f64 = 0.05;

/// The space of a volume in a file, measured in the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpaceState {
    /// Bytes that the file system has allocated to the file.
    pub allocated_bytes: u64,
    /// Device number of the file system, `8:1` for example; volumes with the same one share its space.
    pub file_system: String,
    /// Free bytes of the file system.
    pub free_bytes: u64,
    /// Size of the file system.
    pub capacity_bytes: u64,
}

/// A file system with volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem<'s> {
    /// Path of one of its volumes.
    pub path: &'s str,
    /// Number of its volumes.
    pub volumes: u64,
    /// Bytes that its volumes may still allocate.
    pub unallocated_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Size.
    pub capacity_bytes: u64,
}

impl FileSystem<'_> {
    /// The space as a sentence.
    pub fn sentence(&self) -> String {
        let Self { path, volumes, unallocated_bytes, free_bytes, capacity_bytes } = self;
        format!(
            "{} of {} are free on the file system of {path}, whose {} may allocate {} more",
            bytes(*free_bytes),
            bytes(*capacity_bytes),
            counted(*volumes, "volume"),
            bytes(*unallocated_bytes)
        )
    }

    /// The trouble that the file system may soon be full: volumes may allocate more than is free, and little is free. `None` if
    /// there is no such trouble.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        is_scarce(self.free_bytes, self.capacity_bytes, self.unallocated_bytes).then(|| {
            Trouble::warning(
                "space",
                "",
                format!(
                    "{}: writes fail{}",
                    self.sentence(),
                    if self.free_bytes > 0 { " when it is full" } else { "" }
                ),
                format!(
                    "make room there (`df {}`), or trim or move a volume: `evenkeel volume list` shows which have most",
                    self.path
                ),
            )
            .of_part(self.path)
        })
    }
}

/// True if a file system with so many free bytes may soon be full: little is free, and less than what may still be allocated.
pub fn is_scarce(free_bytes: u64, capacity_bytes: u64, unallocated_bytes: u64) -> bool {
    (free_bytes as f64) < SOON_FULL * capacity_bytes as f64 && unallocated_bytes > free_bytes
}

/// The file systems of volumes, in the order of their device numbers. Each volume has its space, its path, and the bytes that
/// it may still allocate.
pub(crate) fn file_systems<'s>(volumes: impl Iterator<Item = (&'s SpaceState, &'s str, u64)>) -> Vec<FileSystem<'s>> {
    let mut systems: BTreeMap<&str, FileSystem<'_>> = BTreeMap::new();
    for (space, path, unallocated) in volumes {
        let system = systems.entry(&space.file_system).or_insert(FileSystem {
            path,
            volumes: 0,
            unallocated_bytes: 0,
            free_bytes: space.free_bytes,
            capacity_bytes: space.capacity_bytes,
        });
        system.volumes += 1;
        system.unallocated_bytes = system.unallocated_bytes.saturating_add(unallocated);
    }
    systems.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trouble::Level;

    fn space(file_system: &str, free_bytes: u64) -> SpaceState {
        SpaceState { allocated_bytes: 0, file_system: file_system.into(), free_bytes, capacity_bytes: 100 << 30 }
    }

    #[test]
    fn volumes_share_the_space_of_their_file_system() {
        let (first, second) = (space("8:1", 4 << 30), space("8:2", 9 << 30));
        let volumes =
            [(&first, "/srv/a.img", 3), (&first, "/srv/b.img", 2), (&first, "/srv/c.img", 0), (&second, "/d", 10)];
        let systems = file_systems(volumes.map(|(space, path, gib)| (space, path, gib << 30)).into_iter());
        let of = |system: &FileSystem<'_>| (system.volumes, system.unallocated_bytes >> 30);
        assert_eq!(systems.iter().map(of).collect::<Vec<_>>(), [(3, 5), (1, 10)]);
        let sentence =
            "4.0 GiB of 100.0 GiB are free on the file system of /srv/a.img, whose 3 volumes may allocate 5.0 GiB more";
        assert_eq!(systems[0].sentence(), sentence);
    }

    #[test]
    fn a_file_system_is_soon_full_if_little_is_free_and_volumes_may_need_more() {
        let trouble = |allocated: u64, free: u64| {
            let space = space("8:1", free << 30);
            file_systems([(&space, "/srv/a.img", (10 - allocated) << 30)].into_iter())[0].trouble()
        };
        // The volume has 10 GiB.
        for (allocated, free, soon) in [(0, 4, true), (0, 5, false), (5, 4, true), (6, 4, false), (7, 3, false)] {
            assert_eq!(trouble(allocated, free).is_some(), soon, "{allocated} {free}");
        }
        assert!(trouble(0, 0).is_some_and(|full| full.because.ends_with("more: writes fail")));
        let trouble = trouble(0, 4).expect("soon full");
        assert_eq!((trouble.level, trouble.kind.as_str()), (Level::Warning, "space"));
        assert!(trouble.cure.contains("df /srv/a.img") && trouble.because.contains("may allocate 10.0 GiB more"));
    }
}
