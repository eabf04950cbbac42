//! Tests of the preflight findings about the queues of a configuration's arrays, and about the parts that a policy lacks, in
//! a captured tree.

use std::os::unix::fs::PermissionsExt as _;

use evenkeel_guard::config::{Abilities, Config};
use evenkeel_guard::discovery::map::PoolEntry;
use evenkeel_guard::discovery::{Map, Roots};
use evenkeel_guard::preflight::arrays::{judge, judge_etcd};
use evenkeel_guard::preflight::{Finding, Preflight, Presence, lacks};
use evenkeel_policy::document::Document;

use crate::tree;

use tree::Tree;

fn config(device: &str) -> Config {
    let text = format!(
        "[pools.san]\ntuning.slots = \"needs\"\n[tenants.database]\nmatch = [\"device:{device}\"]\nlatency.target = \"10ms\"\n"
    );
    Config::parse(&text, "test", Abilities { tracepoints: false }).expect("a configuration")
}

#[test]
fn each_volume_says_its_queues_and_their_bounds() {
    let tree = Tree::new("initiators.tree");
    let roots = Roots::under(tree.root());
    let depth = tree.root().join("sys/class/block/sdb/device/queue_depth");
    std::fs::write(&depth, "77\n").expect("written");
    let [found] = <[_; 1]>::try_from(judge(&config("sdb"), &roots)).expect("one volume");
    assert_eq!((found.part.as_str(), found.presence, found.lost.as_str()), ("san/database", Presence::Present, ""));
    assert_eq!(found.evidence, "sdb: queue_depth 77, kept within 1 to 77");
    let [found] = <[_; 1]>::try_from(judge(&config("nvme0n1"), &roots)).expect("one volume");
    assert!(found.evidence.contains("of each of 2 queues, kept within 4 to "), "{}", found.evidence);
    std::fs::write(&depth, "many\n").expect("written");
    std::fs::set_permissions(&depth, std::fs::Permissions::from_mode(0o644)).expect("set");
    let [found] = <[_; 1]>::try_from(judge(&config("sdb"), &roots)).expect("one volume");
    assert_eq!(found.presence, Presence::Unsuitable);
    assert!(found.cure.contains("queue_depth has \"many\""), "{}", found.cure);
}

#[test]
fn a_volume_without_a_queue_and_etcd_without_an_answer_say_what_is_lost() {
    let tree = Tree::new("initiators.tree");
    let found = &judge(&config("no-such-disk"), &Roots::under(tree.root()))[0];
    assert_eq!(found.presence, Presence::Missing);
    assert!(found.lost.contains("cannot be throttled") && found.cure.contains("no-such-disk"), "{found:?}");
    let (there, gone) = (judge_etcd("http://a:1", &Ok(3)), judge_etcd("http://a:1", &Err("refused".into())));
    assert_eq!((there.presence, there.lost.as_str()), (Presence::Present, ""));
    assert!(there.evidence.contains("3 members"), "{there:?}");
    assert_eq!(gone.presence, Presence::Missing);
    assert!(gone.lost.contains("alone") && gone.cure.contains("refused"), "{gone:?}");
}

#[test]
fn rows_are_marked_by_what_this_host_lacks_for_their_point() {
    let tree = Tree::new("initiators.tree");
    tree.root().dir("sys/class/net/eth0");
    let roots = Roots::under(tree.root());
    let finding = |part: &str, presence| Finding {
        part: part.into(),
        purpose: String::new(),
        presence,
        evidence: "seen".into(),
        lost: "lost".into(),
        cure: "cure".into(),
    };
    let pool = PoolEntry { name: "vg1".into(), kind: "disk".into(), devices: Vec::new() };
    let map = Map { pools: vec![pool], ..Map::default() };
    let on = |links: &str, htb, window| {
        let text = format!("[agent]\ninterfaces = [{links}]\n[pools.vg1]\nlatency.target = \"9ms\"\n");
        let mut config = Config::parse(&text, "test", Abilities { tracepoints: false }).expect("valid");
        let findings = vec![finding("htb", htb), finding("receive_window", window), finding("lio", Presence::Missing)];
        let host = Preflight { findings, ..Preflight::default() };
        let complain = |key: &[&str], message: String| Document::parse(&text, "test").0.complain(key, message);
        let missing = lacks(&mut config, &host, &map, (&roots, tree.root().path()), complain);
        let why = missing.iter().map(|missing| missing.why.to_string()).collect::<Vec<_>>();
        (config.enforced.rows[0].here, why)
    };
    let check = |htb, window| on("\"eth0\"", htb, window);
    let (present, missing, unsuitable) = (Presence::Present, Presence::Missing, Presence::Unsuitable);
    assert_eq!(check(present, present), (present, vec![]));
    assert_eq!(check(Presence::Loadable, present), (present, vec![]), "a module is loaded when it is needed");
    let htb = "test:3:8: pools.vg1: htb is missing: seen".to_owned();
    assert_eq!(check(missing, present), (missing, vec![htb]));
    let window = "test:3:8: pools.vg1: receive_window is unsuitable: seen".to_owned();
    assert_eq!(check(present, unsuitable), (unsuitable, vec![window]));
    let (_, why) = on("\"eth0\", \"eth1\"", present, present);
    assert_eq!(why, ["test:2:1: agent.interfaces: there is no network device eth1"]);
}
