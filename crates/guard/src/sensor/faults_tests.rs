//! Tests with device trees laid out by hand.

use super::*;
use crate::folder::{Folder, folder};

/// Two disks, `ek0` and `ek1`.
struct Host {
    root: Folder,
    faults: Faults,
    second: u64,
}

impl Host {
    fn new(name: &str) -> Self {
        let host = Self { root: folder(&format!("faults-{name}")), faults: Faults::default(), second: 0 };
        for disk in ["ek0", "ek1"] {
            host.put(disk, "device/state", "running\n");
            host.put(disk, "device/ioerr_cnt", "0x7\n");
        }
        host
    }

    fn put(&self, device: &str, file: &str, text: &str) {
        self.root.file(&format!("sys/block/{device}/{file}"), text);
    }

    /// Makes the device `above` of others.
    fn stack(&self, above: &str, below: &[&str]) {
        for name in below {
            self.root.link(&format!("sys/block/{above}/slaves/{name}"), &format!("sys/block/{name}"));
        }
    }

    /// The faults of this device and of those below it, a second after the last look.
    fn look(&mut self, device: &str) -> Vec<Faulty> {
        self.second += 1;
        let now = Instant::ZERO + Duration::from_secs(self.second);
        let used = [("a".to_owned(), device.to_owned())];
        self.faults.sample(now, &Roots::under(&self.root), &used)
    }

    /// The faults as device, fault, and if the pool goes on without the device.
    fn found(&mut self, device: &str) -> Vec<(String, Fault, bool)> {
        let faulty = self.look(device).into_iter();
        faulty.map(|Faulty { device, fault, is_redundant, .. }| (device, fault, is_redundant)).collect()
    }
}

#[test]
fn a_state_counts_from_its_second_look_on() {
    let mut host = Host::new("state");
    assert_eq!(host.look("ek0"), []);
    host.put("ek0", "device/state", "offline\n");
    assert_eq!(host.look("ek0"), []);
    let offline = ("ek0".to_owned(), Fault::Offline("offline".into()), false);
    assert_eq!(host.found("ek0"), [offline]);
    host.put("ek0", "device/state", "blocked\n");
    assert_eq!(host.look("ek0"), []);
    assert_eq!(host.found("ek0"), [("ek0".to_owned(), Fault::Waits("blocked".into()), false)]);
    host.put("ek0", "device/state", "running\n");
    assert_eq!(host.look("ek0"), []);
}

#[test]
fn commands_that_fail_again_and_again_are_a_fault_for_a_minute() {
    let mut host = Host::new("errors");
    assert_eq!(host.look("ek0"), [], "what was counted before says nothing");
    host.put("ek0", "device/ioerr_cnt", "0x9\n");
    assert_eq!(host.look("ek0"), [], "a tool's commands");
    host.put("ek0", "device/ioerr_cnt", "0x10\n");
    let seconds = Duration::from_secs;
    let failed = |since, last| Fault::Failed { commands: 9, since: seconds(since), last: seconds(last) };
    assert_eq!(host.found("ek0"), [("ek0".to_owned(), failed(1, 0), false)]);
    host.second += 59;
    assert_eq!(host.found("ek0"), [("ek0".to_owned(), failed(61, 60), false)]);
    assert_eq!(host.look("ek0"), []);
}

#[test]
fn devices_below_are_found_and_those_that_others_replace_are_told_apart() {
    let mut host = Host::new("stack");
    host.stack("ekdm-0", &["ek0", "ek1"]);
    host.put("ekdm-0", "dm/uuid", "LVM-1\n");
    host.put("ek1", "device/state", "dead\n");
    host.look("ekdm-0");
    let dead = |is_redundant| ("ek1".to_owned(), Fault::Offline("dead".into()), is_redundant);
    assert_eq!(host.found("ekdm-0"), [dead(false)]);
    host.put("ekdm-0", "dm/uuid", "mpath-1\n");
    assert_eq!(host.found("ekdm-0"), [dead(true)]);
    host.put("ekdm-0", "dm/suspended", "1\n");
    host.look("ekdm-0");
    let suspended = ("ekdm-0".to_owned(), Fault::Waits("suspended".into()), false);
    assert_eq!(host.found("ekdm-0"), [dead(true), suspended]);
    host.stack("ekmd0", &["ek0", "ek1"]);
    host.put("ekmd0", "md/degraded", "1\n");
    host.look("ekmd0");
    assert_eq!(host.found("ekmd0"), [dead(true), ("ekmd0".to_owned(), Fault::Degraded(1), false)]);
}

#[test]
fn nothing_takes_the_place_of_all_paths() {
    let mut host = Host::new("paths");
    host.stack("ekdm-0", &["ek0", "ek1"]);
    host.put("ekdm-0", "dm/uuid", "mpath-1\n");
    host.put("ek0", "device/state", "offline\n");
    host.look("ekdm-0");
    let offline = |disk: &str, is_redundant| (disk.to_owned(), Fault::Offline("offline".into()), is_redundant);
    assert_eq!(host.found("ekdm-0"), [offline("ek0", true)]);
    host.put("ek1", "device/state", "offline\n");
    host.look("ekdm-0");
    assert_eq!(host.found("ekdm-0"), [offline("ek0", false), offline("ek1", false)]);
    host.put("ek0", "device/state", "running\n");
    assert_eq!(host.found("ekdm-0"), [offline("ek1", true)]);
}

#[test]
fn errors_of_ext4_are_found_on_the_device_and_on_its_partitions() {
    let mut host = Host::new("ext4");
    host.put("ek0/ek0p1", "partition", "1\n");
    for (name, errors) in [("ek0p1", "3\n"), ("ek1", "0\n"), ("other", "5\n")] {
        host.root.file(&format!("sys/fs/ext4/{name}/errors_count"), errors);
    }
    let found = [("ek0p1".to_owned(), Fault::FileSystem(3), false)];
    assert_eq!(host.found("ek0"), found);
    assert_eq!(host.look("ek1"), []);
    assert_eq!(host.look("absent"), []);
}

#[test]
fn a_device_of_two_pools_has_one_fault() {
    let mut host = Host::new("pools");
    host.stack("ekmd0", &["ek0"]);
    host.put("ekmd0", "md/degraded", "0\n");
    host.put("ek0", "device/state", "dead\n");
    let used = [("a", "ekmd0"), ("b", "ek0")].map(|(pool, device)| (pool.to_owned(), device.to_owned()));
    let roots = Roots::under(&host.root);
    host.faults.sample(Instant::ZERO, &roots, &used);
    let faulty = host.faults.sample(Instant::ZERO, &roots, &used);
    assert_eq!(faulty.len(), 1, "{faulty:?}");
    assert!(faulty[0].pools.iter().eq(["a", "b"]) && !faulty[0].is_redundant, "{faulty:?}");
}
