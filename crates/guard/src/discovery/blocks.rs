//! Block devices that an operator names to record their requests, with the disk and the part of it that each is.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::roots::{self, Roots};
use super::stack::{folder_of, number_in, partitions};
use crate::sensor::cache::number_of;
use crate::sensor::diskstats::DeviceNumber;

/// Length, in bytes, of the sectors in which sysfs and tracepoints count.
pub const SECTOR_BYTES: u64 = 512;

/// A block device: a disk, a stacked device, or a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Name of the device: its path without `/dev/`.
    pub name: String,
    /// Number of the device.
    pub number: DeviceNumber,
    /// Number of the disk of which the device is a partition, or of the device itself.
    pub disk: DeviceNumber,
    /// Numbers of all devices to which requests of this one are submitted: itself, and its partitions or its disk.
    pub all: Vec<DeviceNumber>,
    /// First sector of the device on the disk.
    pub start: u64,
    /// Number of sectors of the device.
    pub sectors: u64,
}

/// The reason why a path names no block device.
#[derive(Debug, thiserror::Error)]
pub enum NoBlock {
    /// Nothing at the path can be read.
    #[error("cannot read {}: {cause}; name a block device, such as /dev/nvme0n1 (`lsblk` shows all)", .path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// There is something else at the path.
    #[error("{} is not a block device; name one, such as /dev/nvme0n1 (`lsblk` shows all, `findmnt -T` that of a file)", .0.display())]
    Other(PathBuf),
    /// The kernel shows no device with the number of the path.
    #[error("the kernel shows no device {number} for {} in {}; mount sysfs, or name a device that exists", .path.display(), .folder.display())]
    Unknown {
        /// The path.
        path: PathBuf,
        /// Number of the path's device.
        number: DeviceNumber,
        /// Folder where sysfs shows devices by number.
        folder: PathBuf,
    },
}

impl Block {
    /// The block device at `path`; links are followed.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn find(roots: &Roots, path: &Path) -> Result<Self, NoBlock> {
        let metadata = std::fs::metadata(path).map_err(|cause| NoBlock::Unreadable { path: path.to_owned(), cause })?;
        if !metadata.file_type().is_block_device() {
            return Err(NoBlock::Other(path.to_owned()));
        }
        let number = metadata.rdev();
        let number = DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) };
        let name = path.strip_prefix("/dev").unwrap_or(path).display().to_string();
        Self::with(roots, name, number).ok_or_else(|| NoBlock::Unknown {
            path: path.to_owned(),
            number,
            folder: roots.sys.join("dev/block"),
        })
    }

    /// The block device `name`, a path in `/dev` (links are followed) or the kernel's name; with `number`, the device of this
    /// number under that name. `None` if sysfs does not show it.
    pub fn named(roots: &Roots, name: &str, number: Option<DeviceNumber>) -> Option<Self> {
        let number = number.or_else(|| number_of(roots, name))?;
        Self::with(roots, name.strip_prefix("/dev/").unwrap_or(name).to_owned(), number)
    }

    /// The block device with this number; `None` if sysfs does not show it.
    fn with(roots: &Roots, name: String, number: DeviceNumber) -> Option<Self> {
        let own = roots.sys.join(format!("dev/block/{number}"));
        let count = |file: &str| roots::value(&own.join(file)).ok()??.parse::<u64>().ok();
        let folder = folder_of(roots, number)?;
        let disk = number_in(&folder)?;
        let (start, others) = if disk == number { (0, partitions(&folder)) } else { (count("start")?, vec![number]) };
        let all = [disk].into_iter().chain(others).collect();
        Some(Self { name, number, disk, all, start, sectors: count("size")? })
    }

    /// Offset in the device, in bytes, of a request that was submitted to `device` and is for these sectors of `disk`; `None` if
    /// it is no request of this device.
    ///
    /// A request without sectors, as a flush, is one of the disk, and of the partition that it was submitted to.
    pub fn offset_of(&self, disk: DeviceNumber, device: DeviceNumber, sector: u64, sectors: u32) -> Option<u64> {
        if disk != self.disk {
            return None;
        }
        let is_whole = self.number == self.disk;
        if sectors == 0 && (is_whole || device == self.number) {
            return Some(sector.saturating_sub(self.start).saturating_mul(SECTOR_BYTES));
        }
        let within = sector.checked_sub(self.start).filter(|_| sectors > 0)?;
        let is_here = is_whole || within.saturating_add(u64::from(sectors)) <= self.sectors;
        is_here.then(|| within.saturating_mul(SECTOR_BYTES))
    }

    /// Length of the device, in bytes.
    pub fn bytes(&self) -> u64 {
        self.sectors.saturating_mul(SECTOR_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::{Folder, folder};

    const DISK: DeviceNumber = DeviceNumber { major: 8, minor: 16 };
    const FIRST: DeviceNumber = DeviceNumber { major: 8, minor: 17 };
    const SECOND: DeviceNumber = DeviceNumber { major: 8, minor: 18 };

    /// Makes a sysfs with a disk of two partitions in a folder of this name.
    fn sysfs(name: &str) -> (Folder, Roots) {
        let root = folder(name);
        for (device, number, start, size) in [
            ("sys/devices/sdb", DISK, None, "20000"),
            ("sys/devices/sdb/sdb1", FIRST, Some("2048"), "8000"),
            ("sys/devices/sdb/sdb2", SECOND, Some("10048"), "9000"),
        ] {
            let mut files = vec![("dev", number.to_string()), ("size", size.to_owned())];
            files.extend(start.map(|start| ("start", start.to_owned())));
            files.extend(start.map(|_| ("partition", "1".to_owned())));
            for (file, text) in files {
                root.file(&format!("{device}/{file}"), text + "\n");
            }
            root.link(&format!("sys/dev/block/{number}"), device);
        }
        let roots = Roots::under(&root);
        (root, roots)
    }

    #[test]
    fn a_partition_is_a_part_of_its_disk() {
        let (_root, roots) = sysfs("blocks");
        let block = |number| Block::with(&roots, "b".to_owned(), number);
        let (disk, second) = (block(DISK).expect("a disk"), block(SECOND).expect("a partition"));
        let absent = block(DeviceNumber { major: 8, minor: 19 });
        assert_eq!(absent, None);
        let mut all = disk.all.clone();
        all.sort();
        assert_eq!((all, second.all.clone()), (vec![DISK, FIRST, SECOND], vec![DISK, SECOND]));
        assert_eq!((disk.disk, disk.start, disk.bytes()), (DISK, 0, 20_000 * 512));
        assert_eq!((second.disk, second.start, second.bytes()), (DISK, 10_048, 9_000 * 512));
        // In the partition, across its end, before it, in another disk; the first through the disk, too.
        assert_eq!(second.offset_of(DISK, SECOND, 10_056, 8), Some(4096));
        assert_eq!(second.offset_of(DISK, DISK, 19_040, 8), Some(8_992 * 512));
        assert_eq!(second.offset_of(DISK, DISK, 19_041, 8), None);
        assert_eq!(second.offset_of(DISK, FIRST, 2_048, 8), None);
        assert_eq!(second.offset_of(FIRST, SECOND, 10_056, 8), None);
        assert_eq!(disk.offset_of(DISK, SECOND, 10_056, 8), Some(10_056 * 512));
    }

    #[test]
    fn a_device_is_found_by_name_and_by_number() {
        let (root, roots) = sysfs("blocks-named");
        root.file("sys/class/block/evenkeel-b/dev", format!("{SECOND}\n"));
        let found =
            |name: &str, number| Block::named(&roots, name, number).map(|block| (block.name, block.number, block.disk));
        let wanted = |name: &str, number| Some((name.to_owned(), number, DISK));
        let by_path = found("/dev/evenkeel-b", None);
        let by_name = found("evenkeel-b", None);
        let by_number = found("/srv/database", Some(DISK));
        let absent = found("/dev/evenkeel-c", None);
        assert_eq!((by_path, by_name), (wanted("evenkeel-b", SECOND), wanted("evenkeel-b", SECOND)));
        assert_eq!((by_number, absent), (wanted("/srv/database", DISK), None));
    }

    #[test]
    fn a_flush_is_one_of_the_disk_and_of_its_partition() {
        let block = |number, start| Block {
            name: "b".to_owned(),
            number,
            disk: DISK,
            all: vec![DISK, FIRST, SECOND],
            start,
            sectors: 1_000,
        };
        let flush = |block: Block, device| block.offset_of(DISK, device, 0, 0);
        assert_eq!(flush(block(DISK, 0), SECOND), Some(0));
        assert_eq!(flush(block(SECOND, 4_000), SECOND), Some(0));
        assert_eq!(flush(block(SECOND, 4_000), FIRST), None);
    }

    #[test]
    fn a_path_without_a_block_device_is_refused_with_a_cure() {
        let refused = |path: &str| Block::find(&Roots::default(), Path::new(path)).expect_err("none").to_string();
        let absent = refused("/dev/evenkeel/none");
        assert!(absent.contains("/dev/evenkeel/none: No such file") && absent.contains("lsblk"), "{absent}");
        let other = refused("/dev/null");
        assert!(other.starts_with("/dev/null is not a block device; name one"), "{other}");
    }
}
