//! Tests of finding the queues below block devices, in a captured tree.

use std::os::unix::fs::PermissionsExt as _;

use evenkeel_guard::discovery::Roots;
use evenkeel_guard::sensor::queue::{Knob, NoQueue, find};

use crate::tree;

use tree::Tree;

/// For each queue of a device: name of its disk, its setting, and its number of hardware queues.
fn queues(tree: &Tree, device: &str) -> Vec<(String, Knob, u32)> {
    let found = find(&Roots::under(tree.root()), device).expect("has queues");
    let each = found.into_iter().map(|queue| {
        assert!(queue.path.is_file() && queue.path.ends_with(queue.knob.name()), "{queue:?}");
        (queue.disk, queue.knob, queue.queues.get())
    });
    each.collect()
}

#[test]
fn disks_are_found_behind_whatever_stands_on_them() {
    let tree = Tree::new("initiators.tree");
    let sdb = ("sdb".to_owned(), Knob::QueueDepth, 1);
    let sdc = ("sdc".to_owned(), Knob::QueueDepth, 1);
    for (device, expected) in [
        ("sdb", vec![sdb.clone()]),
        ("/dev/sdb", vec![sdb.clone()]),
        ("sdb1", vec![sdb.clone()]),
        ("dm-0", vec![sdb.clone(), sdc.clone()]),
        ("dm-1", vec![sdb, sdc]),
        ("nvme0n1", vec![("nvme0c0n1".to_owned(), Knob::Requests, 2), ("nvme0c1n1".to_owned(), Knob::Requests, 1)]),
        ("nvme2n1", vec![("nvme2n1".to_owned(), Knob::Requests, 1)]),
    ] {
        assert_eq!(queues(&tree, device), expected, "{device}");
    }
}

#[test]
fn a_depth_that_cannot_be_set_is_not_the_setting() {
    let tree = Tree::new("initiators.tree");
    let depth = tree.root().join("sys/class/block/sdb/device/queue_depth");
    std::fs::set_permissions(depth, std::fs::Permissions::from_mode(0o444)).expect("set");
    assert_eq!(queues(&tree, "sdb"), [("sdb".to_owned(), Knob::Requests, 1)]);
}

#[test]
fn what_has_no_queue_is_reported() {
    let tree = Tree::new("initiators.tree");
    let roots = Roots::under(tree.root());
    assert!(matches!(find(&roots, "no-such-disk"), Err(NoQueue::NoDevice(device)) if device == "no-such-disk"));
    assert!(matches!(find(&roots, "ram0"), Err(NoQueue::NoSetting { disk, .. }) if disk == "ram0"));
}
