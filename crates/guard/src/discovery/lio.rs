//! Reads the iSCSI targets of LIO, the kernel's SCSI target, from configfs.
//!
//! ```text
//! target/iscsi/IQN/tpgt_1/np/10.0.0.1:3260
//!                        /lun/lun_0/X ──▶ target/core/iblock_0/NAME
//!                        /acls/INITIATOR/info            session and address
//!                                       /lun_0/X ──▶ lun/lun_0
//!                                       /lun_0/statistics/scsi_auth_intr/{read,write}_mbytes
//!                        /dynamic_sessions               names without addresses
//! ```

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::roots::{self, Roots};
use crate::error::Error;
use crate::sensor::diskstats::DeviceNumber;

/// A target portal group of LIO: a target with its addresses, volumes and initiators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Name of the target.
    pub target: String,
    /// Addresses on which the group accepts connections.
    pub portals: Vec<SocketAddr>,
    /// Volumes of the group.
    pub luns: Vec<Lun>,
    /// Initiators with an access list of their own.
    pub initiators: Vec<Initiator>,
    /// Names of initiators that are logged in without an access list; the kernel does not show their addresses.
    pub dynamic: Vec<String>,
}

/// A volume of a target portal group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lun {
    /// Name of the volume in the target, such as `lun_0`.
    pub name: String,
    /// The block device or file that holds the volume's data.
    pub backing: Backing,
}

/// The block device or file that holds a volume's data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Number of the block device, if the kernel shows it.
    pub number: Option<DeviceNumber>,
    /// Path of the block device or file that holds the data, if the kernel shows it.
    pub path: Option<PathBuf>,
}

/// An initiator with an access list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initiator {
    /// Name of the initiator (IQN).
    pub name: String,
    /// IP addresses from which the initiator is connected; empty while the initiator is not logged in.
    pub addresses: Vec<IpAddr>,
    /// The volumes that are mapped to the initiator.
    pub luns: Vec<MappedLun>,
}

/// A volume that is mapped to an initiator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedLun {
    /// Name of the volume in the group: a [`Lun::name`].
    pub lun: String,
    /// Folder in configfs with the counters of this initiator at this volume.
    pub counters: PathBuf,
}

/// Reads all target portal groups of all iSCSI targets; empty if LIO is not loaded.
///
/// # Errors
/// If a file or folder that exists cannot be read.
pub fn read(roots: &Roots) -> Result<Vec<Group>, Error> {
    let target = roots.configfs().join("target");
    let fabric = target.join("iscsi");
    let mut groups = Vec::new();
    for name in roots::names(&fabric)? {
        let folder = fabric.join(&name);
        for group in roots::names(&folder)?.iter().filter(|entry| entry.starts_with("tpgt_")) {
            groups.push(read_group(&target, &name, &folder.join(group))?);
        }
    }
    Ok(groups)
}

fn read_group(root: &Path, target: &str, folder: &Path) -> Result<Group, Error> {
    let portals = roots::names(&folder.join("np"))?.iter().filter_map(|name| name.parse().ok()).collect();
    let mut luns = Vec::new();
    for name in roots::names(&folder.join("lun"))? {
        // Names of the link and of the backstore are free; the link's last two parts are adapter and backstore.
        if let Some(tail) = linked(&folder.join("lun").join(&name))? {
            luns.push(Lun { name, backing: read_backing(&root.join("core").join(tail))? });
        }
    }
    let acls = folder.join("acls");
    let mut initiators = Vec::new();
    for name in roots::names(&acls)? {
        initiators.push(read_initiator(&acls.join(&name), name)?);
    }
    let dynamic = roots::value(&folder.join("dynamic_sessions"))?.map_or_else(Vec::new, |text| sessions(&text));
    Ok(Group { target: target.to_owned(), portals, luns, initiators, dynamic })
}

fn read_initiator(folder: &Path, name: String) -> Result<Initiator, Error> {
    let addresses = roots::value(&folder.join("info"))?.map_or_else(Vec::new, |text| addresses(&text));
    let mut luns = Vec::new();
    for entry in roots::names(folder)?.iter().filter(|entry| entry.starts_with("lun_")) {
        let lun = folder.join(entry);
        let Some(tail) = linked(&lun)? else { continue };
        let Some(linked) = tail.file_name() else { continue };
        let counters = lun.join("statistics/scsi_auth_intr");
        luns.push(MappedLun { lun: linked.to_string_lossy().into_owned(), counters });
    }
    Ok(Initiator { name, addresses, luns })
}

/// The last two parts of the path to which the first symbolic link in `folder` leads; `None` if there is no link.
fn linked(folder: &Path) -> Result<Option<PathBuf>, Error> {
    let target = roots::names(folder)?.iter().find_map(|entry| roots::link(&folder.join(entry)));
    Ok(target.and_then(|target| {
        let parts: Vec<_> = target.components().collect();
        let tail = parts.get(parts.len().checked_sub(2)?..)?;
        Some(tail.iter().collect())
    }))
}

fn read_backing(folder: &Path) -> Result<Backing, Error> {
    let info = roots::value(&folder.join("info"))?.unwrap_or_default();
    let mut backing = backing(&info);
    if let Some(path) = roots::value(&folder.join("udev_path"))?.filter(|path| !path.is_empty()) {
        backing.path = Some(path.into());
    }
    Ok(backing)
}

/// Device number and path from `info`, the text of the file of this name of a backstore of type iblock or fileio.
pub fn backing(info: &str) -> Backing {
    let after = |label: &str| {
        let rest = info.split_once(label)?.1.trim_start_matches(' ');
        rest.split([' ', '\n']).next().filter(|word| !word.is_empty())
    };
    let number = after("Major:").zip(after("Minor:"));
    let number =
        number.and_then(|(major, minor)| Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? }));
    let path = after("UDEV PATH:").or_else(|| after(" File:"));
    Backing { number, path: path.filter(|path| path.starts_with('/')).map(Into::into) }
}

/// Addresses of the initiator's connections from `info`, the text of the file of this name of an access list.
pub fn addresses(info: &str) -> Vec<IpAddr> {
    // The alias comes before them, as the initiator wrote it: with line ends and whatever may look like an address.
    let Some((_, connections)) = info.rsplit_once("[iSCSI Connections]") else { return Vec::new() };
    let lines = connections.lines().filter_map(|line| line.trim().strip_prefix("Address "));
    let mut found: Vec<IpAddr> = lines.filter_map(|rest| address(rest.split_whitespace().next()?)).collect();
    found.sort();
    found.dedup();
    found
}

/// Parses an IP address as the kernel and tools write it: perhaps with brackets, with a zone, or with an IPv4 address in IPv6
/// form.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let text = text.strip_prefix('[').map_or(text, |rest| rest.split(']').next().unwrap_or(rest));
    let text = text.split('%').next().unwrap_or(text);
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Names of initiators in the text of `dynamic_sessions`; the kernel ends each with a line end, and some with a zero byte as
/// well.
pub fn sessions(text: &str) -> Vec<String> {
    let names = text.split(['\n', '\0']).map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INFO: &str = include_str!("../../tests/fixtures/lio_acl_info");

    #[test]
    fn a_session_tells_its_addresses() {
        let found = addresses(INFO);
        let expected: Vec<IpAddr> = ["10.0.0.13", "fd00::13"].iter().map(|a| a.parse().expect("one")).collect();
        assert_eq!(found, expected);
        let forged = INFO.replace("Alias: b3", "Alias: b3\n-----[iSCSI Connections]-----\n   Address 10.0.0.99 TCP");
        assert_eq!(addresses(&forged), expected);
        assert!(addresses("No active iSCSI Session for Initiator Endpoint: iqn.x\n").is_empty());
    }

    #[test]
    fn backstores_tell_device_or_file() {
        let iblock = "Status: ACTIVATED  Max Queue Depth: 128  SectorSize: 512  HwMaxSectors: 512\n        iBlock device: dm-0  UDEV PATH: /dev/mapper/vg1-lv1  readonly: 0  exclusive: 1\n        Major: 252 Minor: 0  CLAIMED: IBLOCK\n";
        let expected =
            Backing { number: Some(DeviceNumber { major: 252, minor: 0 }), path: Some("/dev/mapper/vg1-lv1".into()) };
        assert_eq!(backing(iblock), expected);
        let fileio = "Status: ACTIVATED  Max Queue Depth: 0  SectorSize: 512  HwMaxSectors: 16384\n        TCM FILEIO ID: 0        File: /srv/a.img  Size: 1048576  Mode: O_DSYNC Async: 0\n";
        assert_eq!(backing(fileio), Backing { number: None, path: Some("/srv/a.img".into()) });
        assert_eq!(backing("Status: DEACTIVATED"), Backing::default());
    }

    #[test]
    fn session_names_end_with_lines_or_zeros() {
        assert_eq!(sessions("iqn.a:1\n\0iqn.b:2\n\0"), ["iqn.a:1", "iqn.b:2"]);
        assert!(sessions("\n").is_empty());
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,300}") {
            let _ = (addresses(&text), backing(&text), sessions(&text), address(&text));
        }
    }
}
