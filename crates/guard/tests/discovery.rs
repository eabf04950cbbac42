//! Tests of discovery in a captured tree.

use crate::tree;

use std::net::IpAddr;
use std::path::Path;

use evenkeel_guard::discovery::map::Configured;
use evenkeel_guard::discovery::{KnownBy, Link, Map, Note, Roots, Server, Survey, Topology};
use tree::Tree;

fn mapped(configured: &Configured) -> Map {
    let tree = Tree::new("targets.tree");
    let survey = Survey::read(&Roots::under(tree.root()), Some(include_str!("fixtures/tgtadm")));
    assert_eq!(survey.problems, Vec::<String>::new());
    Map::of(&survey, configured, Path::to_owned)
}

fn of(map: &Map, server: Server) -> Vec<&Link> {
    map.links.iter().filter(|link| link.server == server).collect()
}

fn address(text: &str) -> Option<IpAddr> {
    Some(text.parse().expect("an address"))
}

#[test]
fn lio_links_initiators_to_volumes_by_their_sessions() {
    let map = mapped(&Configured::new());
    let links = of(&map, Server::Lio);
    assert_eq!(links.len(), 3);
    let logged_in = links[0];
    assert_eq!(logged_in.client, address("10.0.0.13"));
    assert_eq!(logged_in.client_name.as_deref(), Some("iqn.lab:b1"));
    assert_eq!((logged_in.device.as_deref(), logged_in.pool.as_deref()), (Some("dm-0"), Some("vg-a")));
    assert_eq!(logged_in.known_by, KnownBy::Session);
    assert_eq!(logged_in.connections.len(), 1);
    assert!(
        logged_in.counters.as_ref().is_some_and(|path| path.ends_with("iqn.lab:b1/lun_3/statistics/scsi_auth_intr"))
    );
    assert_eq!((links[1].client, links[1].known_by), (None, KnownBy::Unknown));
}

#[test]
fn a_session_without_access_list_is_found_by_elimination() {
    let map = mapped(&Configured::new());
    let link = of(&map, Server::Lio)[2];
    assert_eq!((link.client, link.known_by), (address("10.0.0.19"), KnownBy::Elimination));
    assert_eq!(link.client_name.as_deref(), Some("iqn.lab:b9"));
    assert_eq!(link.device.as_deref(), Some("dm-1"));
}

#[test]
fn other_servers_are_found_by_their_connections() {
    let map = mapped(&Configured::new());
    let expected = [
        (Server::Nvmet, "10.0.0.20", "dm-2", "vgb"),
        (Server::NbdServer, "10.0.0.14", "dm-1", "vg-a"),
        // A file: by the file system it is in.
        (Server::QemuNbd, "10.0.0.13", "dm-2", "vgb"),
    ];
    for (server, client, device, pool) in expected {
        let links = of(&map, server);
        assert_eq!(links.len(), 1, "{server:?}");
        assert_eq!((links[0].client, links[0].known_by), (address(client), KnownBy::Connection));
        assert_eq!((links[0].device.as_deref(), links[0].pool.as_deref()), (Some(device), Some(pool)));
    }
    let tgt = of(&map, Server::Tgt);
    let tree = Tree::new("targets.tree");
    let tcp = tree.root().join("proc/net/tcp");
    let sockets = std::fs::read_to_string(&tcp).expect("read").replace("0B00000A", "6300000A");
    std::fs::write(&tcp, sockets).expect("written");
    let survey = Survey::read(&Roots::under(tree.root()), Some(include_str!("fixtures/tgtadm")));
    let elsewhere = Map::of(&survey, &Configured::new(), Path::to_owned);
    assert!(of(&elsewhere, Server::Tgt).iter().all(|link| link.client.is_none()), "no connection from there");
    assert_eq!(tgt[0].client, address("10.0.0.11"));
    assert_eq!(tgt[1].device.as_deref(), Some("sda1"));
}

#[test]
fn the_nvme_target_tells_its_hosts_where_the_kernel_does() {
    let tree = Tree::new("targets.tree");
    let host = |controller: &str, name: &str, address: &str| {
        let folder = format!("sys/kernel/debug/nvmet/nqn.lab:s1/{controller}");
        tree.root().file(&format!("{folder}/hostnqn"), format!("{name}\n"));
        tree.root().file(&format!("{folder}/host_traddr"), format!("{address}\n"));
    };
    let links = || {
        let survey = Survey::read(&Roots::under(tree.root()), None);
        let map = Map::of(&survey, &Configured::new(), Path::to_owned);
        let links = map.links.into_iter().filter(|link| link.server == Server::Nvmet);
        links.map(|link| (link.client, link.client_name, link.known_by)).collect::<Vec<_>>()
    };
    host("ctrl1", "nqn.host:a", "10.0.0.20");
    assert_eq!(links(), [(address("10.0.0.20"), Some("nqn.host:a".into()), KnownBy::Session)]);
    host("ctrl2", "nqn.host:b", "10.0.0.20");
    let names: Vec<_> = links().into_iter().filter_map(|(_, name, _)| name).collect();
    assert_eq!(names, ["nqn.host:a", "nqn.host:b"]);

    // Two subsystems on one port: whose connection it is is known by the hosts alone.
    let second = "sys/kernel/config/nvmet/subsystems/nqn.lab:s2/namespaces/1";
    tree.root().file(&format!("{second}/device_path"), "/dev/sdc\n");
    tree.root().file(&format!("{second}/enable"), "1\n");
    tree.root().dir("sys/kernel/config/nvmet/ports/1/subsystems/nqn.lab:s2");
    let known: Vec<_> = links().into_iter().map(|(_, _, known_by)| known_by).collect();
    assert_eq!(known, [KnownBy::Session, KnownBy::Session, KnownBy::Candidate], "by name for s1, a guess for s2");
    std::fs::remove_dir_all(tree.root().join("sys/kernel/debug/nvmet/nqn.lab:s1/ctrl2")).expect("removed");
    host("ctrl1", "nqn.host:a", "10.9.9.9");
    let clients: Vec<_> = links().into_iter().map(|(client, _, _)| client).collect();
    assert_eq!(clients, [None, address("10.0.0.20")], "nobody seen here is connected to s1");
}

#[test]
fn what_other_network_namespaces_hide_is_said() {
    let tree = Tree::new("targets.tree");
    let namespace = |process: &str, number: u32| {
        let folder = tree.root().dir(&format!("proc/{process}/ns"));
        std::os::unix::fs::symlink(format!("net:[{number}]"), folder.join("net")).expect("a link");
    };
    [("self", 1), ("100", 1), ("101", 2), ("102", 3)]
        .into_iter()
        .for_each(|(process, number)| namespace(process, number));
    let survey = Survey::read(&Roots::under(tree.root()), None);
    assert_eq!(survey.other_namespaces, 2);
    let map = Map::of(&survey, &Configured::new(), Path::to_owned);
    let of_kind = |kind: &str| map.notes.iter().filter(|note| note.kind == kind).collect::<Vec<_>>();
    let process = of_kind("other_namespace");
    assert_eq!(process.len(), 1, "{:?}", map.notes);
    assert!(process[0].message.contains("process 101 (qemu-nbd)"), "{}", process[0].message);
    assert!(of_kind("other_namespaces")[0].message.contains("2 other network namespaces"));
}

#[test]
fn paths_of_another_mount_namespace_are_not_looked_up_here() {
    let tree = Tree::new("targets.tree");
    for (process, number) in [("self", 1), ("100", 1), ("101", 2)] {
        let folder = tree.root().dir(&format!("proc/{process}/ns"));
        std::os::unix::fs::symlink(format!("mnt:[{number}]"), folder.join("mnt")).expect("a link");
    }
    let map = Map::of(&Survey::read(&Roots::under(tree.root()), None), &Configured::new(), Path::to_owned);
    let link = of(&map, Server::QemuNbd)[0];
    assert_eq!((link.device.as_deref(), link.path.as_deref()), (None, Some(Path::new("/srv/images/x.img"))));
    let unknown = |note: &&Note| note.kind == "unknown_device" && note.message.contains("/srv/images/x.img");
    assert!(map.notes.iter().any(|note| unknown(&note)), "{:?}", map.notes);
    assert_eq!(of(&map, Server::NbdServer)[0].device.as_deref(), Some("dm-1"));
}

#[test]
fn one_address_on_two_resources_is_reported() {
    let map = mapped(&Configured::new());
    let ambiguous = map.ambiguous();
    let pools: Vec<_> = ambiguous[&address("10.0.0.13").expect("one")].iter().copied().collect();
    assert_eq!(pools, ["vg-a", "vgb"]);
    let of_address = |note: &&Note| note.kind == "ambiguous_address" && note.message.contains("10.0.0.13");
    let note = map.notes.iter().find(of_address).expect("a note");
    assert!(note.message.contains("vg-a, vgb") && note.message.contains("by connections"), "{}", note.message);
    // Its tgt path /dev/vg1/lv1 does not exist here.
    assert!(map.notes.iter().any(|note| note.kind == "unknown_device"));
}

#[test]
fn a_connection_that_leads_to_no_known_volume_is_reported() {
    let tree = Tree::new("targets.tree");
    let tcp = tree.root().join("proc/net/tcp");
    let sockets = std::fs::read_to_string(&tcp).expect("read");
    let map = || Map::of(&Survey::read(&Roots::under(tree.root()), None), &Configured::new(), Path::to_owned);
    assert_eq!(map().unexplained, []);
    // Of one that is a client, and of one that is none.
    let other = |from: &str| format!("  9: 0100000A:0CBE {from}:9C47 01 0:0 0:0 0 0 0 9 1 0 0\n");
    std::fs::write(&tcp, sockets + &other("0D00000A") + &other("6300000A")).expect("written");
    let unexplained: Vec<_> = map().unexplained.iter().map(|found| (found.local.port(), found.remote.ip())).collect();
    assert_eq!(unexplained, [(3262, address("10.0.0.13").expect("one"))]);
}

#[test]
fn a_configured_resource_takes_its_devices() {
    let devices = ["/dev/vg-a/lv1", "dm-1", "vgb-lv1"].map(str::to_owned).to_vec();
    let map = mapped(&Configured::from([("everything".into(), devices)]));
    assert!(of(&map, Server::Lio).iter().all(|link| link.pool.as_deref() == Some("everything")));
    // All that 10.0.0.13 reaches is one pool now.
    let ambiguous = map.ambiguous();
    assert!(!ambiguous.contains_key(&address("10.0.0.13").expect("one")));
    // One of the two volumes of tgt is on no known pool.
    let reached = &ambiguous[&address("10.0.0.11").expect("one")];
    assert!(reached.len() == 2 && reached.contains("sda"), "{reached:?}");
    let entry = map.pools.iter().find(|entry| entry.name == "everything").expect("is listed");
    assert_eq!((entry.kind.as_str(), entry.devices.len()), ("configured", 3));
}

#[test]
fn a_configured_volume_group_takes_its_volumes() {
    let map = mapped(&Configured::from([("everything".into(), vec!["vg-a".into()])]));
    assert!(of(&map, Server::Lio).iter().all(|link| link.pool.as_deref() == Some("everything")));
}

#[test]
fn links_are_followed_from_volumes_and_from_names_of_devices() {
    let tree = Tree::new("targets.tree");
    let survey = Survey::read(&Roots::under(tree.root()), None);
    let resolved = |path: &Path| match path.to_str() {
        Some("/srv/images/x.img") => "/var/x.img".into(),
        Some("/dev/disk/by-id/wwn-1") => "/dev/dm-1".into(),
        _ => path.to_owned(),
    };
    let configured = Configured::from([("named".into(), vec!["/dev/disk/by-id/wwn-1".into()])]);
    let map = Map::of(&survey, &configured, resolved);
    // Not that of the file system with the link.
    assert_eq!(of(&map, Server::QemuNbd)[0].device.as_deref(), Some("sda1"));
    let named = of(&map, Server::NbdServer)[0];
    assert_eq!((named.device.as_deref(), named.pool.as_deref()), (Some("dm-1"), Some("named")));
}

#[test]
fn a_damaged_tree_is_reported_and_the_rest_stands() {
    let tree = Tree::new("targets.tree");
    std::fs::write(tree.root().join("proc/net/tcp"), "head\nnonsense\n").expect("written");
    let survey = Survey::read(&Roots::under(tree.root()), Some("        LUN: x\n"));
    assert_eq!(survey.problems.len(), 2, "{:?}", survey.problems);
    assert!(survey.problems[0].contains("net/tcp:2: has fewer than 10 fields"), "{}", survey.problems[0]);
    assert_eq!(survey.lio.len(), 2);
    std::fs::write(tree.root().join("sys/block/sda/dev"), "eight").expect("written");
    let (topology, faults) = Topology::read(&Roots::under(tree.root()));
    assert!(faults.len() == 1 && faults[0].to_string().contains("sys/block/sda/dev:1"), "{faults:?}");
    assert!(topology.get("sda").is_none() && topology.get("dm-0").is_some(), "the others are there");
}

#[test]
fn an_empty_machine_has_an_empty_map() {
    let roots = Roots::under(Path::new("/nonexistent"));
    let survey = Survey::read(&roots, None);
    assert_eq!(Map::of(&survey, &Configured::new(), Path::to_owned), Map::default());
}

#[test]
fn this_machine_can_be_read() {
    let survey = Survey::read(&Roots::default(), None);
    assert!(survey.topology.devices().all(|device| !device.name.is_empty()));
    Map::of(&survey, &Configured::new(), evenkeel_guard::discovery::resolved);
}
