//! Discovery over a captured tree.

mod tree;

use std::net::IpAddr;
use std::path::Path;

use evenkeel_guard::discovery::map::Configured;
use evenkeel_guard::discovery::{KnownBy, Link, Map, Roots, Server, Survey, Topology};
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
    assert_eq!((logged_in.device.as_deref(), logged_in.resource.as_deref()), (Some("dm-0"), Some("vg-a")));
    assert_eq!(logged_in.known_by, KnownBy::Session);
    assert_eq!(logged_in.connections.len(), 1);
    assert!(
        logged_in.counters.as_ref().is_some_and(|path| path.ends_with("iqn.lab:b1/lun_3/statistics/scsi_auth_intr"))
    );
    assert_eq!((links[1].client, links[1].known_by), (None, KnownBy::Nobody));
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
    for (server, client, device, resource) in expected {
        let links = of(&map, server);
        assert_eq!(links.len(), 1, "{server:?}");
        assert_eq!((links[0].client, links[0].known_by), (address(client), KnownBy::Connection));
        assert_eq!((links[0].device.as_deref(), links[0].resource.as_deref()), (Some(device), Some(resource)));
    }
    let tgt = of(&map, Server::Tgt);
    assert_eq!(tgt[0].client, address("10.0.0.11"));
    assert_eq!(tgt[1].device.as_deref(), Some("sda1"));
}

#[test]
fn one_address_on_two_resources_is_reported() {
    let map = mapped(&Configured::new());
    let ambiguous = map.ambiguous();
    let resources: Vec<_> = ambiguous[&address("10.0.0.13").expect("one")].iter().copied().collect();
    assert_eq!(resources, ["vg-a", "vgb"]);
    let note = map.notes.iter().find(|note| note.kind == "ambiguous_address").expect("a note");
    assert!(note.message.contains("10.0.0.13") && note.message.contains("vg-a, vgb"), "{}", note.message);
    // Its tgt path /dev/vg1/lv1 does not exist here.
    assert!(map.notes.iter().any(|note| note.kind == "unknown_device"));
}

#[test]
fn a_configured_resource_takes_its_devices() {
    let devices = ["/dev/vg-a/lv1", "dm-1", "vgb-lv1"].map(str::to_owned).to_vec();
    let map = mapped(&Configured::from([("everything".into(), devices)]));
    assert!(of(&map, Server::Lio).iter().all(|link| link.resource.as_deref() == Some("everything")));
    // All that 10.0.0.13 reaches is one resource now.
    assert!(map.ambiguous().is_empty());
    let entry = map.resources.iter().find(|entry| entry.name == "everything").expect("is listed");
    assert_eq!((entry.kind.as_str(), entry.devices.len()), ("configured", 3));
}

#[test]
fn a_damaged_tree_is_reported_and_the_rest_stands() {
    let tree = Tree::new("targets.tree");
    std::fs::write(tree.root().join("proc/net/tcp"), "head\nnonsense\n").expect("written");
    let survey = Survey::read(&Roots::under(tree.root()), Some("  LUN: x\n"));
    assert_eq!(survey.problems.len(), 2, "{:?}", survey.problems);
    assert!(survey.problems[0].contains("net/tcp:2: has fewer than 10 fields"), "{}", survey.problems[0]);
    assert_eq!(survey.lio.len(), 2);
    std::fs::write(tree.root().join("sys/block/sda/dev"), "eight").expect("written");
    let error = Topology::read(&Roots::under(tree.root())).expect_err("no number");
    assert!(error.to_string().contains("sys/block/sda/dev:1"), "{error}");
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
