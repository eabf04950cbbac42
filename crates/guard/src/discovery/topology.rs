//! Block devices as sysfs shows them, and the pool on which each device lies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::lvm;
use super::roots::{self, Roots};
use crate::error::{Error, Fault};
use crate::sensor::diskstats::DeviceNumber;

/// Largest number of layers of devices below a device that are searched; deeper stacks are mistakes or loops.
const MAX_DEPTH: u32 = 16;

/// A block device or partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name: `sda1`, `dm-3`.
    pub name: String,
    /// Major and minor number.
    pub number: DeviceNumber,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Name of the partition's disk; `None` if the device is no partition.
    pub partition_of: Option<String>,
    /// Name and uuid of the device in device mapper (the uuid may be empty); `None` if it is no mapped device.
    pub dm: Option<(String, String)>,
    /// The RAID level of an md array; `None` for other devices.
    pub md_level: Option<String>,
    /// Names of the devices of which this device is made.
    pub slaves: Vec<String>,
}

impl Device {
    /// Names of volume group and logical volume, if LVM made the device.
    pub fn lvm(&self) -> Option<(String, String)> {
        let (name, uuid) = self.dm.as_ref()?;
        uuid.starts_with("LVM-").then(|| lvm::split(name)).flatten()
    }
}

/// A pool: a set of devices that share a bottleneck, so that load on one slows the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pool {
    /// An LVM volume group, by its name.
    VolumeGroup(String),
    /// An md array, by the kernel's name.
    Array(String),
    /// A multipath device, by its device-mapper name.
    Multipath(String),
    /// A disk, or a device that lies on several pools and that none of the known layers has made, by its name.
    Disk(String),
}

impl Pool {
    /// Name of the pool, as the configuration uses it.
    pub fn name(&self) -> &str {
        match self {
            Self::VolumeGroup(name) | Self::Array(name) | Self::Multipath(name) | Self::Disk(name) => name,
        }
    }

    /// Kind of the pool in words, for example `volume group`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::VolumeGroup(_) => "volume group",
            Self::Array(_) => "array",
            Self::Multipath(_) => "multipath device",
            Self::Disk(_) => "disk",
        }
    }
}

/// All block devices of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    devices: BTreeMap<String, Device>,
    by_number: BTreeMap<DeviceNumber, String>,
}

impl Topology {
    /// Reads the block devices from `/sys/block`. A device is left out and its error returned if one of its files cannot be
    /// read or has an unknown format. A device that vanishes during the call is left out.
    pub fn read(roots: &Roots) -> (Self, Vec<Error>) {
        let folder = roots.sys.join("block");
        let (mut devices, mut faults) = (Vec::new(), Vec::new());
        let mut take = |device: Result<Option<Device>, Error>| match device {
            Ok(device) => devices.extend(device),
            Err(fault) => faults.push(fault),
        };
        let mut unlisted = Vec::new();
        let mut names = |folder: &Path| {
            roots::names(folder).unwrap_or_else(|fault| {
                unlisted.push(fault);
                Vec::new()
            })
        };
        for disk in names(&folder) {
            let path = folder.join(&disk);
            take(read_device(&path, &disk, None));
            for name in names(&path) {
                // Partitions are folders of their disk with this file.
                let partition = path.join(&name);
                if name.starts_with(disk.as_str()) && partition.join("partition").exists() {
                    take(read_device(&partition, &name, Some(&disk)));
                }
            }
        }
        faults.append(&mut unlisted);
        (Self::of(devices), faults)
    }

    /// A topology that consists of these devices.
    pub fn of(devices: impl IntoIterator<Item = Device>) -> Self {
        let devices: BTreeMap<_, _> = devices.into_iter().map(|device| (device.name.clone(), device)).collect();
        let by_number = devices.values().map(|device| (device.number, device.name.clone())).collect();
        Self { devices, by_number }
    }

    /// The device with the kernel's name `name`, such as `sda1`.
    pub fn get(&self, name: &str) -> Option<&Device> {
        self.devices.get(name)
    }

    /// The device with this number.
    pub fn by_number(&self, number: DeviceNumber) -> Option<&Device> {
        self.get(self.by_number.get(&number)?)
    }

    /// The device at a path in `/dev`: `/dev/sda1`, `/dev/mapper/vg-lv`, `/dev/vg/lv`.
    ///
    /// This method does not know other links in `/dev`, such as those in `by-id`; resolve links before the call.
    pub fn by_path(&self, path: &Path) -> Option<&Device> {
        let path = path.strip_prefix("/dev").ok()?.to_str()?;
        match path.split_once('/') {
            None => self.get(path),
            Some(("mapper", name)) => {
                self.devices.values().find(|device| device.dm.as_ref().is_some_and(|dm| dm.0 == name))
            }
            Some((group, volume)) => {
                self.devices.values().find(|device| device.lvm().is_some_and(|(g, v)| g == group && v == volume))
            }
        }
    }

    /// All devices, sorted by name.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    /// The pool on which `device` lies: its volume group, array, multipath device or disk.
    pub fn pool_of(&self, device: &Device) -> Pool {
        self.pool_at(device, MAX_DEPTH)
    }

    fn pool_at(&self, device: &Device, depth: u32) -> Pool {
        let below = || {
            let parent = device.partition_of.iter();
            let depth = depth.checked_sub(1)?;
            let below: BTreeSet<_> = parent
                .chain(&device.slaves)
                .filter_map(|name| self.get(name))
                .map(|slave| self.pool_at(slave, depth))
                .collect();
            // What lies on several pools is one of its own.
            let mut below = below.into_iter();
            below.next().filter(|_| below.next().is_none())
        };
        let own = || match &device.dm {
            Some((name, _)) => Pool::Disk(name.clone()),
            None => Pool::Disk(device.name.clone()),
        };
        if let Some((group, _)) = device.lvm() {
            return Pool::VolumeGroup(group);
        }
        if device.md_level.is_some() {
            return Pool::Array(device.name.clone());
        }
        match &device.dm {
            Some((name, uuid)) if uuid.starts_with("mpath-") => Pool::Multipath(name.clone()),
            _ => below().unwrap_or_else(own),
        }
    }
}

fn read_device(path: &Path, name: &str, disk: Option<&str>) -> Result<Option<Device>, Error> {
    let file = path.join("dev");
    let Some(dev) = roots::value(&file)? else { return Ok(None) };
    let number = dev.parse().map_err(|problem: String| Fault::new(1, problem).in_file(&file))?;
    let file = path.join("size");
    let sectors = roots::value(&file)?.unwrap_or_else(|| "0".into());
    let sectors: u64 =
        sectors.parse().map_err(|_| Fault::new(1, format!("{sectors:?} is not a number of sectors")).in_file(&file))?;
    let dm = match roots::value(&path.join("dm/name"))? {
        Some(name) => Some((name, roots::value(&path.join("dm/uuid"))?.unwrap_or_default())),
        None => None,
    };
    Ok(Some(Device {
        name: name.to_owned(),
        number,
        size_bytes: sectors.saturating_mul(512),
        partition_of: disk.map(str::to_owned),
        dm,
        md_level: roots::value(&path.join("md/level"))?,
        slaves: roots::names(&path.join("slaves"))?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, minor: u32) -> Device {
        Device { name: name.into(), number: DeviceNumber { major: 252, minor }, ..Device::default() }
    }

    fn mapped(name: &str, minor: u32, dm: &str, uuid: &str, slaves: &[&str]) -> Device {
        let slaves = slaves.iter().map(|&slave| slave.to_owned()).collect();
        Device { dm: Some((dm.into(), uuid.into())), slaves, ..device(name, minor) }
    }

    fn pool(topology: &Topology, name: &str) -> Pool {
        topology.pool_of(topology.get(name).expect("is there"))
    }

    #[test]
    fn each_device_stands_on_what_saturates() {
        let topology = Topology::of([
            device("sda", 0),
            Device { partition_of: Some("sda".into()), ..device("sda1", 1) },
            device("sdb", 2),
            Device { md_level: Some("raid1".into()), slaves: vec!["sda1".into(), "sdb".into()], ..device("md0", 3) },
            mapped("dm-0", 4, "vg--x-lv--1", "LVM-abc", &["md0"]),
            mapped("dm-1", 5, "secret", "CRYPT-LUKS2-1", &["sda1"]),
            mapped("dm-2", 6, "mpatha", "mpath-3600", &["sda", "sdb"]),
            mapped("dm-3", 7, "both", "", &["sda", "sdb"]),
            mapped("dm-4", 8, "over-mpath", "", &["dm-2"]),
        ]);
        assert_eq!(pool(&topology, "sda1"), Pool::Disk("sda".into()));
        assert_eq!(pool(&topology, "md0"), Pool::Array("md0".into()));
        assert_eq!(pool(&topology, "dm-0"), Pool::VolumeGroup("vg-x".into()));
        assert_eq!(pool(&topology, "dm-1"), Pool::Disk("sda".into()));
        assert_eq!(pool(&topology, "dm-2"), Pool::Multipath("mpatha".into()));
        assert_eq!(pool(&topology, "dm-3"), Pool::Disk("both".into()));
        assert_eq!(pool(&topology, "dm-4"), Pool::Multipath("mpatha".into()));
    }

    #[test]
    fn paths_in_dev_are_found_by_all_their_names() {
        let topology = Topology::of([mapped("dm-0", 4, "vg--x-lv--1", "LVM-abc", &[])]);
        for path in ["/dev/dm-0", "/dev/mapper/vg--x-lv--1", "/dev/vg-x/lv-1"] {
            assert_eq!(topology.by_path(Path::new(path)).map(|device| device.name.as_str()), Some("dm-0"), "{path}");
        }
        assert_eq!(topology.by_path(Path::new("/dev/sda")), None);
        assert_eq!(topology.by_path(Path::new("/home/dm-0")), None);
    }

    #[test]
    fn a_loop_of_slaves_ends() {
        let topology = Topology::of([mapped("dm-0", 0, "a", "", &["dm-1"]), mapped("dm-1", 1, "b", "", &["dm-0"])]);
        assert!(matches!(pool(&topology, "dm-0"), Pool::Disk(_)));
    }
}
