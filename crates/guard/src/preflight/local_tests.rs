//! Tests with files of the kernel laid out by hand.

use evenkeel_policy::document::Document;

use super::super::{Preflight, lacks};
use super::*;
use crate::config::Abilities;
use crate::discovery::Map;
use crate::folder::{Folder, folder};

const POLICY: &str = "[pools.disk]\ndevices = [\"ek0\"]\nlatency.target = \"10ms\"\n\
    [tenants.db]\nmatch = [\"cgroup:slice/db\", \"container:web\"]\n";

/// A disk with a group, both as they should be.
struct Host(Folder);

impl Host {
    fn new(name: &str) -> Self {
        let host = Self(folder(&format!("preflight-{name}")));
        host.file("sys/block/ek0/dev", "4090:0");
        host.file("sys/block/ek0/queue/scheduler", "[mq-deadline] kyber bfq none\n");
        host.file("sys/block/ek0/queue/wbt_lat_usec", "0\n");
        for link in ["sys/class/block/ek0", "sys/dev/block/4090:0"] {
            host.0.link(link, "sys/block/ek0");
        }
        let mounts = "1 0 4090:0 / /srv rw - ext4 /dev/ek0 rw\n2 0 4090:0 / /boot rw - vfat /dev/ek0 rw\n";
        host.file("proc/self/mountinfo", mounts);
        host.file("cgroup/io.cost.qos", "4090:0 enable=0 ctrl=auto\n4089:0 enable=1 ctrl=user\n");
        host.file("cgroup/slice/db/io.stat", "");
        host.file("cgroup/slice/db/io.max", "");
        host.file("cgroup/slice/db/memory.stat", "");
        host
    }

    fn file(&self, path: &str, text: &str) {
        self.0.file(path, text);
    }

    fn config(&self) -> Config {
        Config::parse(POLICY, "test", Abilities { tracepoints: true }).unwrap()
    }

    fn judge(&self) -> Vec<Finding> {
        judge(&self.config(), &Roots::under(&self.0), &self.0.join("cgroup"))
    }

    /// The only finding.
    fn only(&self) -> Finding {
        let mut found = self.judge();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

#[test]
fn a_host_as_it_should_be_has_no_finding() {
    let found = Host::new("none").judge();
    assert!(found.is_empty(), "{found:?}");
    let found = judge(&Config::default(), &Roots::default(), Path::new("/"));
    assert!(found.is_empty(), "without such a pool nothing is read: {found:?}");
}

#[test]
fn other_throttles_of_the_device_are_named_with_their_cure() {
    for (file, text, part, cure) in [
        ("cgroup/io.cost.qos", "4090:0 enable=1 ctrl=user\n", "io.cost of ek0", "echo \"4090:0 enable=0\" > "),
        ("sys/block/ek0/queue/scheduler", "mq-deadline [bfq] none\n", "BFQ of ek0", "echo mq-deadline > "),
        ("sys/block/ek0/queue/wbt_lat_usec", "75000\n", "wbt of ek0", "echo 0 > "),
        ("sys/block/ek0/queue/iostats", "0\n", "statistics of ek0", "echo 1 > "),
    ] {
        let host = Host::new("throttles");
        host.file(file, text);
        let found = host.only();
        assert_eq!((found.part.as_str(), found.presence), (part, Presence::Unsuitable));
        assert!(found.cure.starts_with(cure) && !found.lost.is_empty(), "{found:?}");
    }
}

#[test]
fn throttles_of_the_paths_of_nvme_multipath_are_named() {
    let host = Host::new("nvme-paths");
    host.file("sys/block/nvme90n1/queue/scheduler", "none\n");
    host.0.link("sys/dev/block/4092:0", "sys/block/nvme90n1");
    host.file("sys/block/nvme91c0n1/queue/wbt_lat_usec", "2000\n");
    let number = DeviceNumber { major: 4092, minor: 0 };
    let limited = Limited { number, timed: vec![number], whole: vec![number], sequence: None };
    let found = || throttles("nvme90n1", &limited, &Roots::under(&host.0), &host.0.join("cgroup"));
    assert!(found().is_empty(), "a path of another disk");
    host.file("sys/block/nvme90c0n1/queue/wbt_lat_usec", "2000\n");
    let found = found();
    assert!(found.len() == 1 && found[0].part == "wbt of nvme90n1", "{found:?}");
    assert!(found[0].evidence.contains("nvme90c0n1/queue/wbt_lat_usec is 2000"), "{found:?}");
}

#[test]
fn layers_whose_threads_write_in_place_of_the_groups_are_named() {
    for (name, number, file, text, kind, path) in [
        ("ekdm-8", "4088:8", "dm/uuid", "CRYPT-LUKS2-1-secret", "dm-crypt of ek0", "/dev/mapper/secret"),
        ("ekdm-7", "4088:7", "dm/uuid", "mpath-36001", "multipath of ek0", "/dev/mapper/secret"),
        ("ekmd-9", "4088:9", "md/level", "raid5", "md of ek0", "/dev/ekmd-9"),
    ] {
        let host = Host::new("layers");
        let folder = format!("sys/block/{name}");
        host.file(&format!("{folder}/dev"), number);
        if file == "dm/uuid" {
            host.file(&format!("{folder}/dm/name"), "secret");
        }
        std::fs::create_dir_all(host.0.join(&folder).join("slaves/ek0")).unwrap();
        std::os::unix::fs::symlink(host.0.join(&folder), host.0.join("sys/dev/block").join(number)).unwrap();
        for other in ["LVM-1", "CRYPT-VERITY-1", "raid0", "raid1"] {
            host.file(&format!("{folder}/{file}"), other);
            let found = host.judge();
            assert!(found.is_empty(), "{other}: {found:?}");
        }
        host.file(&format!("{folder}/{file}"), text);
        let found = host.only();
        assert_eq!((found.part.as_str(), found.presence), (kind, Presence::Unsuitable));
        assert!(found.evidence.starts_with(path) && found.cure.contains(path), "{found:?}");
    }
}

#[test]
fn of_several_layers_the_topmost_is_named() {
    let host = Host::new("layers-both");
    for (name, number, below, file, text) in [
        ("ekmd-9", "4088:9", "ek0", "md/level", "raid5"),
        ("ekdm-8", "4088:8", "ekmd-9", "dm/uuid", "CRYPT-LUKS2-1-secret"),
    ] {
        let folder = format!("sys/block/{name}");
        host.file(&format!("{folder}/dev"), number);
        host.file(&format!("{folder}/{file}"), text);
        host.0.dir(&format!("{folder}/slaves/{below}"));
        host.0.link(&format!("sys/dev/block/{number}"), &folder);
    }
    host.file("sys/block/ekdm-8/dm/name", "secret");
    let found = host.only();
    assert_eq!(found.part, "dm-crypt of ek0");
    assert!(found.cure.contains("/dev/mapper/secret in devices"), "{found:?}");
    // The cure ends the finding.
    host.0.link("sys/class/block/ekdm-8", "sys/block/ekdm-8");
    let both = POLICY.replace("\"ek0\"", "\"ek0\", \"ekdm-8\"");
    let config = Config::parse(&both, "test", Abilities { tracepoints: true }).unwrap();
    let found = judge(&config, &Roots::under(&host.0), &host.0.join("cgroup"));
    assert!(!found.iter().any(|finding| finding.part.starts_with("dm-crypt")), "{found:?}");
}

#[test]
fn statistics_of_a_device_below_are_not_needed() {
    let host = Host::new("statistics");
    let [number, below] = [0, 1].map(|minor| DeviceNumber { major: 4090, minor });
    let limited = Limited { number, timed: vec![number], whole: vec![number, below], sequence: None };
    let found = |of: &str| {
        host.file(&format!("sys/dev/block/4090:{of}/queue/iostats"), "0\n");
        statistics("ek0", &limited, &Roots::under(&host.0))
    };
    assert!(found("1").is_none());
    assert!(found("0").is_some_and(|found| found.evidence.contains("4090:0/queue/iostats is 0")));
}

#[test]
fn file_systems_whose_writes_count_for_no_group_are_named() {
    let cases = [("ext4", "rw,data=journal", "data=journal"), ("ntfs3", "rw", "is ntfs3, whose pages")];
    for (kind, options, words) in cases {
        let host = Host::new("writeback");
        host.file("proc/self/mountinfo", &format!("1 0 4090:0 / /srv rw - {kind} /dev/ek0 {options}\n"));
        let found = host.only();
        assert!(found.part == "writeback of ek0" && found.evidence.contains(words), "{found:?}");
    }
}

#[test]
fn a_journal_that_all_groups_share_is_named() {
    let host = Host::new("journal");
    host.file("proc/fs/jbd2/ek1-8/info", "");
    host.file("proc/fs/jbd2/ek0/info", "");
    assert!(host.judge().is_empty(), "journals of other devices");
    host.file("proc/fs/jbd2/ek0-8/info", "");
    let found = host.only();
    assert_eq!((found.part.as_str(), found.presence), ("journal of ek0", Presence::Unsuitable));
    assert!(found.evidence.starts_with("/srv is ext4") && found.lost.contains("fsync"), "{found:?}");
    host.file("proc/self/mountinfo", "1 0 4090:0 / /boot rw - ext4 /dev/ek0 rw\n");
    assert!(host.judge().is_empty(), "no group writes to /boot");
    // With its data in the journal there is another finding about it.
    host.file("proc/self/mountinfo", "1 0 4090:0 / /srv rw - ext4 /dev/ek0 rw,data=journal\n");
    assert_eq!(host.only().part, "writeback of ek0");
}

#[test]
fn a_runtime_that_does_not_list_pods_is_named() {
    let host = Host::new("labels");
    let policy = POLICY.replace("container:web", "pod-label:app=web");
    let config = Config::parse(&policy, "test", Abilities { tracepoints: true }).unwrap();
    let judge = || judge(&config, &Roots::under(&host.0), &host.0.join("cgroup"));
    assert!(judge().is_empty(), "there are no pods");
    host.file("cgroup/kubepods/pod7/io.stat", "");
    let found = judge();
    assert!(found.len() == 1 && found[0].part == MARKS, "{found:?}");
    assert!(found[0].evidence.contains("CRI socket"), "{found:?}");
}

#[test]
fn groups_without_controllers_and_cgroup_v1_are_named() {
    let host = Host::new("groups");
    std::fs::remove_file(host.0.join("cgroup/slice/db/memory.stat")).unwrap();
    let found = host.only();
    assert!(found.part == "group slice/db of ek0" && found.cure.contains("MemoryAccounting=yes"), "{found:?}");
    std::fs::remove_file(host.0.join("cgroup/slice/db/io.stat")).unwrap();
    assert!(host.only().cure.contains("cgroup/slice/cgroup.subtree_control"));
    let unlimited = Host::new("no-io-max");
    std::fs::remove_file(unlimited.0.join("cgroup/slice/db/io.max")).unwrap();
    let found = unlimited.only();
    assert!(found.part == "group slice/db of ek0" && found.cure.contains("BLK_DEV_THROTTLING"), "{found:?}");
    let v1 = Host::new("v1");
    std::fs::create_dir_all(v1.0.join("cgroup/blkio")).unwrap();
    let found = v1.only();
    assert_eq!((found.part.as_str(), found.presence), (V1, Presence::Missing));
}

#[test]
fn rows_of_the_policy_are_enforced_with_less() {
    let host = Host::new("rows");
    host.file("sys/block/ek0/queue/wbt_lat_usec", "2000\n");
    let mut config = host.config();
    let preflight = Preflight { findings: host.judge(), ..Preflight::default() };
    let at = (&Roots::under(&host.0), &*host.0.join("cgroup"));
    let complain = |key: &[&str], message: String| Document::parse(POLICY, "test").0.complain(key, message);
    let missing = lacks(&mut config, &preflight, &Map::default(), at, complain);
    let why: Vec<String> = missing.iter().map(|missing| missing.why.to_string()).collect();
    assert!(why.len() == 1 && why[0].contains("pools.disk: wbt of ek0 is unsuitable: "), "{why:?}");
    assert_eq!(config.enforced.rows[0].here, Presence::Unsuitable);
}
