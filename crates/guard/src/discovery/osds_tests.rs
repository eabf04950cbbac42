use std::os::unix::net::UnixListener;

use super::*;
use crate::folder::folder;

fn listen(path: &Path) -> UnixListener {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    UnixListener::bind(path).unwrap()
}

fn names(entries: &[OsdEntry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

#[test]
fn sockets_of_packages_cephadm_and_configured_places_are_found_in_order() {
    let root = folder("find");
    let fsid = "11111111-2222-3333-4444-555555555555";
    let _open = [
        "run/ceph/ceph-osd.10.asok",
        "run/ceph/ceph-osd.2.asok",
        "run/ceph/ceph-mon.a.asok",
        "run/ceph/ceph-client.osd.1.asok.txt",
        &format!("run/ceph/{fsid}/ceph-osd.0.asok"),
        &format!("run/ceph/{fsid}/ceph-osd.2.asok"),
        "mine/osd.7.asok",
    ]
    .map(|path| listen(&root.join(path)));
    // A file that is no socket.
    std::fs::write(root.join("run/ceph/ceph-osd.4.asok"), "").unwrap();
    let down = root.join("elsewhere/ceph-osd.9.asok");
    let found = find(&root, &[root.join("mine"), down.clone(), root.join("nowhere")]);
    let second = format!("{fsid}/osd.2");
    assert_eq!(names(&found), ["osd.0", &second, "ceph/osd.2", "osd.7", "osd.9", "osd.10"]);
    assert_eq!(found[4].socket, down);
    assert!(find(&root.join("none"), &[]).is_empty());
}

#[test]
fn only_names_of_osds_count() {
    for (path, wanted) in [
        ("ceph-osd.3.asok", Some(3)),
        ("osd.3.asok", Some(3)),
        ("ceph-osd.3.94021.asok", Some(3)),
        ("ceph-osd.x.asok", None),
        ("ceph-osd.3", None),
        ("myosd.3.asok", None),
        ("ceph-mon.3.asok", None),
        ("ceph-osd.99999999999.asok", None),
    ] {
        assert_eq!(number(Path::new(path)), wanted, "{path}");
    }
}

#[test]
fn sixty_osds_are_all_found() {
    let root = folder("sixty");
    let _open: Vec<_> = (0..60).map(|n| listen(&root.join(format!("run/ceph/ceph-osd.{n}.asok")))).collect();
    assert_eq!(find(&root, &[]).len(), 60);
}

#[test]
fn an_osd_that_links_lead_to_is_one() {
    let root = folder("links");
    let _open = listen(&root.join("run/ceph/ceph-osd.3.asok"));
    std::os::unix::fs::symlink(root.join("run"), root.join("var-run")).unwrap();
    let link = root.join("var-run/ceph");
    let found = find(&root, &[link.clone(), link.join("ceph-osd.3.asok"), link.join("ceph-osd.4.asok")]);
    assert_eq!(names(&found), ["osd.3", "osd.4"]);
    assert_eq!(found[1].socket, root.join("run/ceph/ceph-osd.4.asok"));
}

#[test]
fn a_socket_that_an_earlier_process_left_is_no_osd() {
    let root = folder("left");
    let _open = ["ceph-osd.3.100.asok", "ceph-osd.3.200.asok", "ceph-osd.3.300.asok"]
        .map(|name| listen(&root.join("run/ceph").join(name)));
    // The newest process need not have the largest id.
    let now = rustix::fs::Timespec { tv_sec: 4_000_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    let newest = root.join("run/ceph/ceph-osd.3.200.asok");
    rustix::fs::utimensat(rustix::fs::CWD, &newest, &times, rustix::fs::AtFlags::empty()).unwrap();
    let found = find(&root, &[]);
    assert_eq!(found, [OsdEntry { name: "osd.3".into(), socket: newest }]);
}
