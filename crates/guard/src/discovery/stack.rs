//! The device of this host at which control groups are limited, for an entry of a pool's `devices`.
//!
//! | entry | device |
//! |---|---|
//! | path in `/dev`, name of the kernel or of device mapper | this device; of a partition its disk |
//! | name of an LVM volume group | the device below the group's volumes |
//! | path of a file or mount point | the device below the file system |
//!
//! The way down leads through partitions, also those of kpartx, and LVM to a disk, an md array, or a device that dm-crypt or
//! multipath has made.
//! Threads of md and dm-crypt submit requests in place of the groups, so that groups are told apart above these layers only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::mounts;
use super::roots::{self, Roots};
use super::topology::{Device, Topology};
use crate::sensor::cache::number_of;
use crate::sensor::diskstats::DeviceNumber;

/// Largest number of layers of devices below a device that are searched; deeper stacks are mistakes or loops.
const MAX_DEPTH: u32 = 16;

/// A device at which groups are limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Number of the device, by which `io.stat` and `io.max` know it: never that of a partition.
    pub number: DeviceNumber,
    /// Numbers of this device and of its partitions; the kernel names one of them when it reports a read.
    pub timed: Vec<DeviceNumber>,
    /// Numbers of this device, of all devices below it, and of their partitions.
    pub whole: Vec<DeviceNumber>,
    /// The kernel's sequence number of the device, or before Linux 5.15 the number of its folder: another device of the same
    /// number does not have it.
    pub sequence: Option<String>,
}

/// The reason why groups cannot be limited at an entry of `devices`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUsable {
    /// There is nothing of this name on this host.
    #[error("there is no block device {0}")]
    NoDevice(String),
    /// The entry is on several devices.
    #[error("{name} is on several devices: {devices}")]
    Several {
        /// The entry.
        name: String,
        /// The kernel's names of the devices.
        devices: String,
    },
    /// The file system at a path does not lead to a device at which groups can be limited.
    #[error("{path} is in a file system of kind {kind}, {why}")]
    FileSystem {
        /// The path.
        path: String,
        /// Kind of the file system.
        kind: String,
        /// The reason, as a clause that begins with a pronoun.
        why: &'static str,
    },
}

impl NotUsable {
    /// The fault and its cure as one text.
    pub fn note(&self) -> String {
        let elsewhere = if matches!(self, Self::NoDevice(_)) { "not on this host: " } else { "" };
        format!("{elsewhere}{self}; {}", self.cure())
    }

    /// Advice on how to cure the fault.
    pub const fn cure(&self) -> &'static str {
        match self {
            Self::NoDevice(_) => {
                "write a path in /dev, a name as in /proc/diskstats, a volume group, or the path of a mounted file system"
            }
            Self::Several { .. } => "name each of these devices: each is measured and decided about by itself",
            Self::FileSystem { .. } => "name a device (`lsblk` shows all), or keep the data in ext4, f2fs or xfs",
        }
    }
}

/// True if an entry of `devices` is the path of a file or mount point, on a file system that may hang.
pub fn is_file(name: &str) -> bool {
    name.starts_with('/') && !name.starts_with("/dev/")
}

/// The device for an entry of `devices` that is its path in `/dev` or the kernel's name; `None` if there is none.
pub fn named(roots: &Roots, name: &str) -> Option<Limited> {
    limited(roots, number_of(roots, name)?)
}

/// The device for the entry `name` of a pool's `devices`. Reads all block devices of the host if [`named`] finds none.
///
/// # Errors
/// The reason why there is none at which groups can be limited.
pub fn find(roots: &Roots, name: &str) -> Result<Limited, NotUsable> {
    let absent = || NotUsable::NoDevice(name.to_owned());
    if let Some(found) = named(roots, name) {
        return Ok(found);
    }
    if name.starts_with("/dev/") {
        return Err(absent());
    }
    let (topology, _) = Topology::read(roots);
    let mut below = BTreeMap::new();
    if name.starts_with('/') {
        stand_on(&topology, of_file(roots, &topology, name)?, MAX_DEPTH, &mut below);
    } else if let Some(device) = topology.devices().find(|device| device.dm.as_ref().is_some_and(|dm| dm.0 == name)) {
        below.insert(device.name.clone(), device.number);
    } else {
        let volumes = topology.devices().filter(|device| device.lvm().is_some_and(|(group, _)| group == name));
        volumes.for_each(|volume| stand_on(&topology, volume, MAX_DEPTH, &mut below));
    }
    if below.len() > 1 {
        let devices: Vec<String> = below.into_keys().collect();
        return Err(NotUsable::Several { name: name.to_owned(), devices: devices.join(", ") });
    }
    let found = below.into_values().next();
    found.and_then(|number| limited(roots, number)).ok_or_else(absent)
}

/// The file systems that are mounted from devices with these numbers.
pub fn file_systems(roots: &Roots, numbers: &[DeviceNumber]) -> Vec<mounts::Mount> {
    mounted(roots).into_iter().filter(|mount| numbers.contains(&mount.device)).collect()
}

/// Numbers of the devices that lie on a device with one of these numbers, and these numbers.
pub fn above(roots: &Roots, numbers: &[DeviceNumber]) -> Vec<DeviceNumber> {
    let (topology, _) = Topology::read(roots);
    let mut all = numbers.to_vec();
    // Each round finds one layer more.
    for _ in 0..MAX_DEPTH {
        let is_on = |device: &&Device| {
            let mut below = device.slaves.iter().filter_map(|slave| topology.get(slave));
            !all.contains(&device.number) && below.any(|slave| all.contains(&slave.number))
        };
        let more: Vec<DeviceNumber> = topology.devices().filter(is_on).map(|device| device.number).collect();
        if more.is_empty() {
            break;
        }
        all.extend(more);
    }
    all
}

fn mounted(roots: &Roots) -> Vec<mounts::Mount> {
    let text = roots::text(&roots.proc.join("self/mountinfo")).ok();
    text.and_then(|text| mounts::parse(&text).ok()).unwrap_or_default()
}

/// The block device of the file system with the file or mount point `name`.
fn of_file<'t>(roots: &Roots, topology: &'t Topology, name: &str) -> Result<&'t Device, NotUsable> {
    let mounts = mounted(roots);
    let mount = match Path::new(name).canonicalize() {
        Ok(path) => mounts::holding(&mounts, &path),
        Err(_) => mounts.iter().rfind(|mount| mount.point == Path::new(name)),
    };
    let Some(mount) = mount else { return Err(NotUsable::NoDevice(name.to_owned())) };
    let refused = |why| NotUsable::FileSystem { path: name.to_owned(), kind: mount.kind.clone(), why };
    match mount.kind.as_str() {
        "btrfs" => Err(refused("which combines devices by itself, so that the device of a file is unknown")),
        "zfs" => Err(refused("whose own threads read and write for all groups, so that none can be throttled")),
        _ => topology
            .by_number(mount.device)
            .or_else(|| topology.by_path(&mount.source))
            .ok_or_else(|| refused("which has no block device of this host")),
    }
}

/// Adds the devices on which `device` lies to `found`, by name.
fn stand_on(topology: &Topology, device: &Device, depth: u32, found: &mut BTreeMap<String, DeviceNumber>) {
    let below: Vec<&Device> = match &device.partition_of {
        Some(disk) => topology.get(disk).into_iter().collect(),
        None if device.lvm().is_some() || device.dm.as_ref().is_some_and(|(_, uuid)| is_of_kpartx(uuid)) => {
            device.slaves.iter().filter_map(|slave| topology.get(slave)).collect()
        }
        None => Vec::new(),
    };
    match depth.checked_sub(1).filter(|_| !below.is_empty()) {
        Some(depth) => below.into_iter().for_each(|device| stand_on(topology, device, depth, found)),
        None => {
            found.insert(device.name.clone(), device.number);
        }
    }
}

/// True if kpartx made the device of device mapper with this uuid: a partition of the one below it, as of a multipath device.
fn is_of_kpartx(uuid: &str) -> bool {
    let number = uuid.strip_prefix("part").and_then(|rest| rest.split_once('-'));
    number.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

/// The folder of the device that kpartx has partitioned, for that of a partition; of other devices their own.
fn whole_of_kpartx(roots: &Roots, folder: PathBuf) -> PathBuf {
    let uuid = roots::value(&folder.join("dm/uuid")).ok().flatten().unwrap_or_default();
    if !is_of_kpartx(&uuid) {
        return folder;
    }
    let slaves = roots::names(&folder.join("slaves")).unwrap_or_default();
    let below = slaves.first().and_then(|slave| folder_of(roots, number_of(roots, slave)?));
    below.unwrap_or(folder)
}

/// Numbers of the device with this number, of all devices below it, and of their partitions; empty if there is no such device.
pub fn whole(roots: &Roots, number: DeviceNumber) -> Vec<DeviceNumber> {
    limited(roots, number).map(|device| device.whole).unwrap_or_default()
}

/// The device with this number, with all devices below it; of a partition its disk.
fn limited(roots: &Roots, number: DeviceNumber) -> Option<Limited> {
    let folder = whole_of_kpartx(roots, folder_of(roots, number)?);
    let number = number_in(&folder)?;
    let mut whole = Vec::new();
    add_below(roots, &folder, MAX_DEPTH, &mut whole);
    let timed = [number].into_iter().chain(partitions(&folder)).collect();
    Some(Limited { number, timed, whole, sequence: roots::sequence_of(&folder) })
}

/// Folder in sysfs of the device with this number; of a partition that of its disk.
pub(super) fn folder_of(roots: &Roots, number: DeviceNumber) -> Option<PathBuf> {
    let folder = std::fs::canonicalize(roots.sys.join(format!("dev/block/{number}"))).ok()?;
    let is_partition = folder.join("partition").exists();
    if is_partition { folder.parent().map(Path::to_owned) } else { Some(folder) }
}

pub(super) fn number_in(folder: &Path) -> Option<DeviceNumber> {
    roots::value(&folder.join("dev")).ok()??.parse().ok()
}

/// Numbers of the partitions of the disk with this folder.
pub(super) fn partitions(folder: &Path) -> Vec<DeviceNumber> {
    let below = roots::names(folder).unwrap_or_default().into_iter().map(|name| folder.join(name));
    below.filter(|folder| folder.join("partition").exists()).filter_map(|folder| number_in(&folder)).collect()
}

fn add_below(roots: &Roots, folder: &Path, depth: u32, whole: &mut Vec<DeviceNumber>) {
    let Some(number) = number_in(folder).filter(|number| !whole.contains(number)) else { return };
    whole.push(number);
    whole.extend(partitions(folder));
    let Some(depth) = depth.checked_sub(1) else { return };
    for slave in roots::names(&folder.join("slaves")).unwrap_or_default() {
        if let Some(folder) = number_of(roots, &slave).and_then(|number| folder_of(roots, number)) {
            add_below(roots, &folder, depth, whole);
        }
    }
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
