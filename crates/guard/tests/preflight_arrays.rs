//! What is said of the queues of a configuration's arrays, over a captured tree.

use std::os::unix::fs::PermissionsExt as _;

use evenkeel_guard::config::{Abilities, Config};
use evenkeel_guard::discovery::Roots;
use evenkeel_guard::preflight::Presence;
use evenkeel_guard::preflight::arrays::{judge, judge_etcd};

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
    assert!(there.evidence.contains("3 hosts"), "{there:?}");
    assert_eq!(gone.presence, Presence::Missing);
    assert!(gone.lost.contains("alone") && gone.cure.contains("refused"), "{gone:?}");
}
