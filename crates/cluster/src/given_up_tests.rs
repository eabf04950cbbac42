//! Tests of a host that gives up its name for another one, with a real etcd.

use tokio::sync::{mpsc, watch};

use super::*;
use crate::clock::since_boot;
use crate::publish::{self, Outgoing, ToPublish};

#[test]
fn a_name_that_became_free_before_it_is_given_up_leaves_no_member_behind() {
    let Some(etcd) = Etcd::start() else { return };
    let settings = etcd.settings("a", wall_clock);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let members = || etcd.ctl(&["get", "--prefix", "--keys-only", "evenkeel/main/members/"]).expect("an answer");
    runtime.block_on(async {
        let (events, mut happened) = mpsc::channel(8);
        let (outgoing, own) = watch::channel(None);
        let (outgoing_sum, sum) = watch::channel(None);
        let publisher = tokio::spawn(publish::run(settings, Arc::default(), events, ToPublish { own, sum }));
        let (text, made) = ("{}".to_owned(), since_boot());
        outgoing.send_replace(Some(Outgoing { text, leaving: false, kept: None, made }));
        assert!(matches!(happened.recv().await, Some(Event::Written)));
        assert!(members().contains("/a"));
        drop((outgoing, outgoing_sum));
        publisher.await.expect("it ends");
    });
    assert!(!members().contains("/a"));
}
