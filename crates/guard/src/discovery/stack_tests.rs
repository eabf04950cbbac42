//! Tests with device trees laid out by hand.

use super::*;
use crate::folder::{Folder, folder};

/// Two disks: `ek0` with partition `ek0p1`, and `ek1`. On the partition the volume group vg-a with one volume, on both disks
/// the volume group wide, on the second disk a device of dm-crypt with the volume group safe.
struct Host(Folder);

impl Host {
    fn new(name: &str) -> Self {
        let host = Self(folder(&format!("stack-{name}")));
        host.device("ek0", "ek0", "4090:0", &[]);
        host.device("ek0/ek0p1", "ek0p1", "4090:1", &[]);
        std::fs::write(host.0.join("sys/block/ek0/ek0p1/partition"), "1\n").unwrap();
        host.device("ek1", "ek1", "4090:16", &[]);
        host.mapped("ekdm-0", "4091:0", "vg--a-root", "LVM-1", &["ek0p1"]);
        host.mapped("ekdm-1", "4091:1", "wide-all", "LVM-2", &["ek0p1", "ek1"]);
        host.mapped("ekdm-2", "4091:2", "secret", "CRYPT-LUKS2-3", &["ek1"]);
        host.mapped("ekdm-3", "4091:3", "safe-db", "LVM-4", &["ekdm-2"]);
        let mounts = "1 0 4090:1 / /ek-none/boot rw - ext4 /dev/ek0p1 rw\n\
            2 0 4091:3 / /ek-none/db rw - xfs /dev/mapper/safe-db rw\n\
            3 0 0:44 / /ek-none/b rw - btrfs /dev/ek1 rw\n4 0 0:45 / /ek-none/z rw - zfs tank rw\n\
            5 0 0:46 / /ek-none/n rw - nfs server:/x rw\n";
        host.0.file("proc/self/mountinfo", mounts);
        host
    }

    fn device(&self, path: &str, name: &str, number: &str, slaves: &[&str]) {
        let folder = format!("sys/block/{path}");
        for below in slaves {
            self.0.dir(&format!("{folder}/slaves/{below}"));
        }
        self.0.file(&format!("{folder}/dev"), number);
        for link in [format!("sys/class/block/{name}"), format!("sys/dev/block/{number}")] {
            self.0.link(&link, &folder);
        }
    }

    fn mapped(&self, name: &str, number: &str, dm: &str, uuid: &str, slaves: &[&str]) {
        self.device(name, name, number, slaves);
        self.0.file(&format!("sys/block/{name}/dm/name"), dm);
        self.0.file(&format!("sys/block/{name}/dm/uuid"), uuid);
    }

    fn roots(&self) -> Roots {
        Roots::under(&self.0)
    }

    /// Number of the device for an entry, or the fault.
    fn find(&self, name: &str) -> Result<String, String> {
        find(&self.roots(), name).map(|found| found.number.to_string()).map_err(|why| why.note())
    }
}

#[test]
fn every_kind_of_entry_leads_to_the_device_that_is_limited() {
    let host = Host::new("kinds");
    for (entry, number) in [
        ("ek0", "4090:0"),
        ("ek0p1", "4090:0"),
        ("/dev/ekdm-1", "4091:1"),
        ("vg-a", "4090:0"),
        ("secret", "4091:2"),
        ("safe", "4091:2"),
        ("/ek-none/boot", "4090:0"),
        ("/ek-none/db", "4091:2"),
    ] {
        assert_eq!(host.find(entry).as_deref(), Ok(number), "{entry}");
    }
}

/// As the root file system of a host that starts from a SAN.
#[test]
fn partitions_of_a_multipath_device_lead_to_that_device() {
    let host = Host::new("kpartx");
    host.mapped("ekdm-4", "4091:4", "mpa", "mpath-36001", &["ek1"]);
    host.mapped("ekdm-5", "4091:5", "mpa1", "part1-mpath-36001", &["ekdm-4"]);
    host.mapped("ekdm-6", "4091:6", "mpa2", "part2-mpath-36001", &["ekdm-4"]);
    host.mapped("ekdm-7", "4091:7", "parted-lv", "LVM-7", &["ekdm-5", "ekdm-6"]);
    host.0.file("proc/self/mountinfo", "1 0 4091:5 / /ek-none/san rw - xfs /dev/mapper/mpa1 rw\n");
    for entry in ["mpa", "mpa1", "/dev/ekdm-6", "parted", "/ek-none/san"] {
        assert_eq!(host.find(entry).as_deref(), Ok("4091:4"), "{entry}");
    }
    for (uuid, is_it) in [("part12-mpath-3", true), ("part-mpath-3", false), ("partition-1", false), ("LVM-1", false)] {
        assert_eq!(is_of_kpartx(uuid), is_it, "{uuid}");
    }
}

#[test]
fn an_entry_without_a_single_device_says_why_and_what_to_do() {
    let host = Host::new("faults");
    for (entry, words) in [
        ("wide", "is on several devices: ek0, ek1; name each"),
        ("/ek-none/b", "kind btrfs, which combines devices"),
        ("/ek-none/z", "kind zfs, whose own threads"),
        ("/ek-none/n", "kind nfs, which has no block device"),
        ("/ek-none/other", "not on this host: there is no block device /ek-none/other; write"),
        ("/dev/ek-none", "not on this host: there is no block device /dev/ek-none"),
        ("vg", "not on this host: there is no block device vg"),
    ] {
        let why = host.find(entry).unwrap_err();
        assert!(why.contains(words), "{entry}: {why}");
    }
}

#[test]
fn reads_are_timed_in_the_device_itself_and_all_devices_below_are_known() {
    let host = Host::new("timed");
    let texts = |numbers: Vec<DeviceNumber>| -> Vec<String> { numbers.iter().map(ToString::to_string).collect() };
    let found = |entry: &str| find(&host.roots(), entry).unwrap();
    assert_eq!(texts(found("ek0p1").timed), ["4090:0", "4090:1"]);
    assert_eq!(texts(found("safe").timed), ["4091:2"]);
    assert_eq!(texts(found("safe").whole), ["4091:2", "4090:16"]);
    assert_eq!(texts(found("ekdm-1").whole), ["4091:1", "4090:0", "4090:1", "4090:16"]);
    let whole = |number: &str| texts(whole(&host.roots(), number.parse().unwrap()));
    assert_eq!(whole("4091:3"), ["4091:3", "4091:2", "4090:16"]);
    assert!(whole("4091:4").is_empty());
}

#[test]
fn file_systems_above_a_device_are_found_through_all_layers() {
    let host = Host::new("above");
    let disk: DeviceNumber = "4090:16".parse().unwrap();
    let mut all: Vec<String> = above(&host.roots(), &[disk]).iter().map(ToString::to_string).collect();
    all.sort();
    assert_eq!(all, ["4090:16", "4091:1", "4091:2", "4091:3"]);
    let found = file_systems(&host.roots(), &above(&host.roots(), &[disk]));
    let found: Vec<String> = found.iter().map(|mount| format!("{} {}", mount.kind, mount.point.display())).collect();
    assert_eq!(found, ["xfs /ek-none/db"]);
}

/// Kernels before 5.15 have no sequence numbers.
#[test]
fn a_device_that_comes_back_with_its_number_is_another_one() {
    let host = Host::new("comes-back");
    let sequence = || named(&host.roots(), "ek1").and_then(|found| found.sequence);
    let before = sequence();
    assert!(before.is_some() && sequence() == before);
    // The folder of before stays elsewhere, so that its number is not used again.
    let folder = host.0.join("sys/block/ek1");
    std::fs::rename(&folder, host.0.join("gone")).unwrap();
    assert_eq!(sequence(), None);
    host.0.file("sys/block/ek1/dev", "4090:16");
    assert!(sequence().is_some_and(|after| Some(after) != before));
    host.0.file("sys/block/ek1/diskseq", "9\n");
    assert_eq!(sequence().as_deref(), Some("9"), "the kernel's own number comes first");
}
