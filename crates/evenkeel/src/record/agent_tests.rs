//! Tests of the devices and tenants that an agent's state names.

use evenkeel_guard::loops::record::{
    CgroupState, DeviceState, GroupState, OsdState, PacketsState, QueueDepthState, VolumeState,
};
use evenkeel_policy::state::ClusterState;

use super::*;
use crate::folder::Folder;

/// The state of an agent with pools at these points.
fn state(pools: impl IntoIterator<Item = (&'static str, At)>) -> State {
    let pool = |(name, at): (&str, At)| PoolState { name: name.to_owned(), at, ..PoolState::default() };
    State { pools: pools.into_iter().map(pool).collect(), ..State::default() }
}

fn cgroup(device: &str, number: &str, groups: &[(&str, &str)]) -> At {
    let group = |&(group, tenant): &(&str, &str)| GroupState {
        group: group.to_owned(),
        tenant: tenant.to_owned(),
        ..GroupState::default()
    };
    At::Cgroup(CgroupState {
        device: device.to_owned(),
        device_number: number.to_owned(),
        groups: groups.iter().map(group).collect(),
        ..CgroupState::default()
    })
}

fn packets(devices: &[&str]) -> At {
    let device = |name: &&str| DeviceState { name: (*name).to_owned(), ..DeviceState::default() };
    At::Packets(PacketsState { devices: devices.iter().map(device).collect(), ..PacketsState::default() })
}

fn volumes(volumes: &[(&str, &str)]) -> At {
    let volume = |&(name, device): &(&str, &str)| VolumeState {
        name: name.to_owned(),
        device: device.to_owned(),
        ..VolumeState::default()
    };
    At::QueueDepth(QueueDepthState { volumes: volumes.iter().map(volume).collect(), ..QueueDepthState::default() })
}

fn device(name: &str, number: Option<(u32, u32)>, owner: Option<&str>) -> Device {
    let number = number.map(|(major, minor)| DeviceNumber { major, minor });
    Device { name: name.to_owned(), number, owner: owner.map(str::to_owned) }
}

#[test]
fn a_pool_of_control_groups_has_its_device_and_the_tenants_of_the_policy() {
    let groups = [("system.slice/db@1.service", "database"), ("/bulk.slice/", "backup")];
    let state = state([("vg1", cgroup("/dev/vg1/data", "253:4", &groups)), ("vg2", cgroup("sdz", "8:400", &[]))]);
    let found = Pool::of(&state, "vg1").expect("a pool");
    assert_eq!(found.devices, [device("/dev/vg1/data", Some((253, 4)), None)]);
    let wanted = [("system.slice/db@1.service", "database"), ("bulk.slice", "backup")];
    let wanted = BTreeMap::from(wanted.map(|(group, tenant)| (group.to_owned(), tenant.to_owned())));
    assert_eq!(found.groups, wanted);
    assert_eq!((found.name, found.note), ("vg1", None));
}

#[test]
fn a_volume_of_an_array_has_the_tenant_of_the_volume() {
    let state = state([("san", volumes(&[("db", "/dev/mapper/a"), ("mail", "sdb")]))]);
    let found = Pool::of(&state, "san").expect("a pool");
    assert_eq!(found.devices, [device("/dev/mapper/a", None, Some("db")), device("sdb", None, Some("mail"))]);
    assert!(found.groups.is_empty() && found.note.is_none());
}

#[test]
fn a_tenant_with_several_volumes_or_groups_has_its_own_name() {
    let several = [("db.sda", "/dev/sda"), ("db./dev/old/sda", "/dev/old/sda"), ("v1.0", "/dev/sdb")];
    let groups = [
        ("web.slice/shop.service", "shop.shop.service"),
        ("web.slice/job@1.service", "shop.job@*.service"),
        ("db.slice/db@1.service", "database/db@1.service"),
        ("mail.slice", "mail.slice"),
    ];
    let state = state([("san", volumes(&several)), ("vg1", cgroup("/dev/vg1/data", "253:4", &groups))]);
    let owners: Vec<Option<String>> =
        Pool::of(&state, "san").expect("a pool").devices.into_iter().map(|device| device.owner).collect();
    assert_eq!(owners, ["db", "db", "v1.0"].map(|owner| Some(owner.to_owned())));
    // That of a pattern keeps its path, which `match` of a policy names.
    let wanted = [
        ("web.slice/shop.service", "shop"),
        ("db.slice/db@1.service", "database/db@1.service"),
        ("mail.slice", "mail.slice"),
    ];
    let wanted = BTreeMap::from(wanted.map(|(group, tenant)| (group.to_owned(), tenant.to_owned())));
    assert_eq!(Pool::of(&state, "vg1").expect("a pool").groups, wanted);
}

#[test]
fn a_pool_of_clients_has_its_devices_and_a_note() {
    let state = state([("vg1", packets(&["dm-3", "cciss!c0d0"]))]);
    let found = Pool::of(&state, "vg1").expect("a pool");
    assert_eq!(found.devices, [device("/dev/dm-3", None, None), device("/dev/cciss/c0d0", None, None)]);
    assert!(found.note.is_some_and(|note| note.contains("over the network")));
}

#[test]
fn a_pool_that_cannot_be_recorded_is_refused_with_a_cure() {
    let osd = At::Osd(OsdState::default());
    let state = state([
        ("vg1", cgroup("/dev/gone", "", &[("a", "b")])),
        ("vg1", packets(&[])),
        ("san", volumes(&[])),
        ("osd.3", osd),
    ]);
    let refused = |pool| Pool::of(&state, pool).map(drop).expect_err("refused");
    let unknown = refused("vg7");
    assert!(unknown.is::<Usage>() && unknown.to_string().contains("`evenkeel guard status`"), "{unknown}");
    let osd = refused("osd.3").to_string();
    assert!(osd.contains("is an OSD") && osd.contains("--device") && osd.contains("on the OSD's host"), "{osd}");
    for pool in ["vg1", "san"] {
        let none = refused(pool).to_string();
        let is_named = none.contains(&format!("no device of pool {pool}"));
        assert!(is_named && none.contains("on the host that has it"), "{none}");
    }
}

#[test]
fn an_agent_of_another_host_is_named_with_its_host() {
    let booted = State { boot_id: "9f86d081".into(), version: "0.0.1".into(), ..State::default() };
    assert!(is_here(&booted, "9f86d081"));
    assert!(!is_here(&booted, "60303ae2") && !is_here(&booted, "") && !is_here(&State::default(), ""));
    let own = Roots::default().boot_id();
    assert!(is_here(&State { boot_id: own.clone(), ..State::default() }, &own), "{own:?}");
    let alone = elsewhere(&booted, "192.0.2.1:9810", "vg1");
    assert!(alone.contains("host (192.0.2.1:9810)") && alone.contains("run this command there, as root"), "{alone}");
    let unknown = elsewhere(&State { boot_id: String::new(), ..booted.clone() }, "192.0.2.1:9810", "vg1");
    assert!(unknown.contains("version 0.0.1") && unknown.contains("with --device"), "{unknown}");
    let cluster = ClusterState { host: "storage1".into(), ..ClusterState::default() };
    let clustered = State { cluster: Some(cluster), ..booted };
    let named = elsewhere(&clustered, "192.0.2.1:9810", "vg1");
    assert!(named.contains("host storage1 (192.0.2.1:9810)"), "{named}");
}

/// A folder with a sysfs with these disks.
fn sysfs(disks: &[(&str, &str)]) -> Folder {
    let root = Folder::new();
    for (disk, number) in disks {
        let folder = format!("sys/devices/{disk}");
        root.file(&format!("{folder}/dev"), format!("{number}\n"));
        root.file(&format!("{folder}/size"), "4096\n");
        for link in [format!("sys/dev/block/{number}"), format!("sys/class/block/{disk}")] {
            root.link(&link, &folder);
        }
    }
    root
}

#[test]
fn devices_of_a_pool_are_those_of_this_host_and_each_is_recorded_once() {
    let root = sysfs(&[("evenkeel-a", "4095:1"), ("evenkeel-b", "4095:2")]);
    let roots = Roots::under(&root);
    let groups = [("db.slice", "database")];
    let state = state([
        ("vg1", packets(&["evenkeel-a"])),
        ("vg1", cgroup("/srv/data", "4095:2", &groups)),
        ("vg1", volumes(&[("mail", "evenkeel-a")])),
        ("vg2", packets(&["evenkeel-c"])),
        ("san", volumes(&[("db", "/dev/evenkeel-d"), ("mail", "evenkeel-b")])),
    ]);
    let resolved = |pool| Pool::of(&state, pool).and_then(|found| found.resolve(&roots));
    let (here, absent, part) = (resolved("vg1"), resolved("vg2").map(drop), resolved("san"));
    let here = here.expect("two devices");
    let names: Vec<(&str, u64)> = here.blocks.iter().map(|block| (block.name.as_str(), block.bytes())).collect();
    assert_eq!(names, [("evenkeel-a", 2 << 20), ("/srv/data", 2 << 20)]);
    assert_eq!(here.owners, [Some("mail".to_owned()), None]);
    assert_eq!((here.pool.as_deref(), here.note), (Some("vg1"), None));
    assert_eq!(here.groups, BTreeMap::from([("db.slice".to_owned(), "database".to_owned())]));
    let absent = absent.expect_err("not there").to_string();
    assert!(absent.contains("no device of pool vg2 is on this host") && absent.contains("/dev/evenkeel-c"), "{absent}");
    // Another host of a shared policy has the other one.
    let part = part.expect("one device");
    assert_eq!((part.blocks.len(), part.owners), (1, vec![Some("mail".to_owned())]));
    assert!(part.note.is_some_and(|note| note.contains("no such device: /dev/evenkeel-d")));
}
