//! The queues through which this host reaches a block device, and the setting of each queue's length.
//!
//! | device | setting | shortest | requests that wait for a place |
//! |---|---|---|---|
//! | SCSI (iSCSI, FC, SAS, ATA) | `device/queue_depth` | 1 | show in the kernel's statistics: their time counts |
//! | NVMe and others | `queue/nr_requests`, of each hardware queue | 4 | do not |
//!
//! For a device without a queue of its own (multipath, LVM), the queues of the disks below it are found.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::cache::number_of;
use crate::discovery::roots::{self, Roots};
use crate::error::Error;

/// Largest number of layers of devices below a device that are searched; deeper stacks are mistakes or loops.
const MAX_DEPTH: u32 = 16;
/// Largest number of disks that a volume may consist of.
const MAX_QUEUES: usize = 256;
/// The kernel's lower bound on `nr_requests` (BLKDEV_MIN_RQ).
const LEAST_REQUESTS: u32 = 4;
/// Bits of a file's mode that give write permission.
const WRITABLE: u32 = 0o222;

/// The kernel's setting for the length of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// `queue_depth` of a SCSI device: requests that may be in flight at the device.
    QueueDepth,
    /// `nr_requests` of the block layer: requests that may be in flight in each hardware queue.
    Requests,
}

impl Knob {
    /// True if `file` is an `nr_requests`: before the kernel changes it, the kernel waits until the disk's queues are empty.
    pub fn waits_for_disk(file: &Path) -> bool {
        file.ends_with(Self::Requests.name())
    }

    /// Name of the setting's file in sysfs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueDepth => "queue_depth",
            Self::Requests => "nr_requests",
        }
    }

    /// The smallest value of the setting that the kernel accepts.
    pub const fn least(self) -> u32 {
        match self {
            Self::QueueDepth => 1,
            Self::Requests => LEAST_REQUESTS,
        }
    }

    /// True if the time for which requests wait for a slot of the queue counts in the kernel's statistics of the disk.
    pub const fn shows_waiting(self) -> bool {
        matches!(self, Self::QueueDepth)
    }
}

/// The queues of a disk, and the setting of their length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The kernel's name of the disk.
    pub disk: String,
    /// The setting for the length of the disk's queues.
    pub knob: Knob,
    /// Path of the setting's file in sysfs, with links resolved: another disk that later gets the same name has another path.
    pub path: PathBuf,
    /// Number of hardware queues of the disk; the setting is the length of each.
    pub queues: NonZeroU32,
}

/// An error because of which the queues of a device cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum NoQueue {
    /// There is no block device of this name.
    #[error("there is no block device {0} now; write a path in /dev or a name as in /proc/diskstats")]
    NoDevice(String),
    /// A disk of the device has no setting for the length of its queues.
    #[error(
        "{device}: {disk} has neither queue_depth nor nr_requests; name the disks of the array, or devices on them"
    )]
    NoSetting {
        /// Name of the device as configured.
        device: String,
        /// The kernel's name of the disk: a device below `device`, or `device` itself.
        disk: String,
    },
    /// The device of this name consists of too many disks.
    #[error("{0} is on more than {MAX_QUEUES} disks; name them one by one")]
    TooMany(String),
    /// A folder of sysfs cannot be read.
    #[error(transparent)]
    File(#[from] Error),
}

/// The queues of `device`, a path in `/dev` or the kernel's name: its own queue, or the queues of the disks below it.
///
/// # Errors
/// A message that names the missing part and its cure.
pub fn find(roots: &Roots, device: &str) -> Result<Vec<Queue>, NoQueue> {
    let absent = || NoQueue::NoDevice(device.to_owned());
    let number = number_of(roots, device).ok_or_else(absent)?;
    let folder = std::fs::canonicalize(roots.sys.join(format!("dev/block/{number}"))).map_err(|_| absent())?;
    let mut search = Search { roots, device, seen: BTreeSet::new(), found: Vec::new() };
    search.follow(&folder, MAX_DEPTH)?;
    Ok(search.found)
}

struct Search<'a> {
    roots: &'a Roots,
    device: &'a str,
    seen: BTreeSet<PathBuf>,
    found: Vec<Queue>,
}

impl Search<'_> {
    fn follow(&mut self, folder: &Path, depth: u32) -> Result<(), NoQueue> {
        // Queues are those of the whole disk.
        let folder = if folder.join("partition").exists() { folder.parent().unwrap_or(folder) } else { folder };
        if !self.seen.insert(folder.to_owned()) {
            return Ok(());
        }
        let disk = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(queue) = own(folder, &disk)? {
            self.found.push(queue);
            return if self.found.len() > MAX_QUEUES { Err(NoQueue::TooMany(self.device.to_owned())) } else { Ok(()) };
        }
        let mut below = paths(self.roots, &disk)?;
        below.extend(roots::names(&folder.join("slaves"))?.into_iter().map(|slave| folder.join("slaves").join(slave)));
        let below: Vec<PathBuf> = below.iter().filter_map(|link| std::fs::canonicalize(link).ok()).collect();
        let Some(deeper) = depth.checked_sub(1).filter(|_| !below.is_empty()) else {
            return Err(NoQueue::NoSetting { device: self.device.to_owned(), disk });
        };
        below.iter().try_for_each(|folder| self.follow(folder, deeper))
    }
}

/// Sysfs folders of the paths below the disk `head` of the kernel's own NVMe multipath: the disk `nvme0n1` has paths
/// `nvme0c0n1`, `nvme0c1n1`, which are hidden from /dev. Other disks have none.
pub(crate) fn paths(roots: &Roots, head: &str) -> Result<Vec<PathBuf>, Error> {
    if !head.starts_with("nvme") {
        return Ok(Vec::new());
    }
    let blocks = roots.sys.join("block");
    let names = roots::names(&blocks)?;
    Ok(names.into_iter().filter(|name| is_path_of(name, head)).map(|name| blocks.join(name)).collect())
}

/// True if `name` is a path of the multipath disk `head`: `nvme0c3n1` of `nvme0n1`.
fn is_path_of(name: &str, head: &str) -> bool {
    let split = |name: &'_ str| {
        let (subsystem, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
        Some((subsystem.to_owned(), namespace.to_owned()))
    };
    let (Some((subsystem, namespace)), Some((path, of))) = (split(head), split(name)) else { return false };
    path.split_once('c').is_some_and(|(of, _)| of == subsystem) && of == namespace
}

/// The queue of the disk whose folder in sysfs is `folder`; `None` if it has no queue whose length can be set.
fn own(folder: &Path, disk: &str) -> Result<Option<Queue>, Error> {
    let queue = |knob, path: &Path, queues| {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Queue { disk: disk.to_owned(), knob, path, queues }
    };
    let depth = folder.join("device/queue_depth");
    if is_writable(&depth) {
        return Ok(Some(queue(Knob::QueueDepth, &depth, NonZeroU32::MIN)));
    }
    // Only what has hardware queues has a bound; each of them has a folder.
    let queues = roots::names(&folder.join("mq"))?.len();
    let requests = folder.join("queue/nr_requests");
    let queues = u32::try_from(queues).ok().and_then(NonZeroU32::new).filter(|_| is_writable(&requests));
    Ok(queues.map(|queues| queue(Knob::Requests, &requests, queues)))
}

/// True if the file's permissions allow writing; with some drivers the length of a queue cannot be set.
fn is_writable(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.permissions().mode() & WRITABLE != 0)
}

#[cfg(test)]
mod tests {
    use super::is_path_of;

    #[test]
    fn paths_of_a_multipath_disk_are_known_by_their_names() {
        for (name, head, is) in [
            ("nvme0c0n1", "nvme0n1", true),
            ("nvme0c12n1", "nvme0n1", true),
            ("nvme1c0n1", "nvme0n1", false),
            ("nvme0c0n2", "nvme0n1", false),
            ("nvme0n1", "nvme0n1", false),
            ("sda", "nvme0n1", false),
        ] {
            assert_eq!(is_path_of(name, head), is, "{name} of {head}");
        }
    }
}
