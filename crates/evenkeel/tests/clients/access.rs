//! Tests of access lists with common NBD clients: an allowed client reads the volume's content, other clients report that the
//! server refuses them.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::Signal;

use crate::harness::{Case, SIZE, assert_same};

on_both_engines! {
    volumes_are_for_whom_they_allow: "nbdinfo" "nbdcopy" "qemu-img";
    a_reload_admits_and_excludes: "nbdinfo";
}

/// Entry of an access list that allows the user who runs the test.
fn me(case: &Case) -> String {
    format!("uid:{}", fs::metadata(case.path("")).unwrap().uid())
}

fn volumes_are_for_whom_they_allow(case: &Case) {
    let tables = format!(
        "deny = [\"192.0.2.0/24\"]\n\
         [volumes.open]\nbackend = \"memory\"\nsize = \"32MiB\"\n\
         [volumes.local]\nbackend = \"memory\"\nsize = \"32MiB\"\nallow = [\"{}\"]\n\
         [volumes.remote]\nbackend = \"memory\"\nsize = \"32MiB\"\nallow = [\"127.0.0.0/8\"]\ndeny = [\"unix\"]\n",
        me(case)
    );
    let server = case.serve_with(&[], &tables);
    let tcp = |volume: &str| format!("nbd://{}/{volume}", server.tcp());
    let (image, content) = case.image();
    for uri in [server.unix("local"), tcp("remote"), server.unix("open"), tcp("open")] {
        assert_eq!(case.succeed(&["nbdinfo", "--size", &uri]).trim(), SIZE.to_string());
        case.succeed(&["nbdcopy", &image, &uri]);
        assert_same(&case.content(&uri), &content, &uri);
    }
    for uri in [tcp("local"), server.unix("remote")] {
        let complaint = case.fail(&["nbdinfo", "--size", &uri]);
        assert!(complaint.contains("policy prevents"), "{complaint}");
        case.fail(&["nbdcopy", &image, &uri]);
        case.fail(&["qemu-img", "info", &uri]);
    }
    assert_eq!(case.exports(&tcp("")), ["open", "remote"]);
    assert_eq!(case.exports(&server.unix("")), ["local", "open"]);
    server.until_logged("the key allow of the volume does not name this client");
    server.until_logged("the key deny of the volume names this client");
    let refused = &server.state()["refused_clients_total"];
    assert!(refused["volume_allow"].as_u64() >= Some(3) && refused["volume_deny"].as_u64() >= Some(3), "{refused}");
    server.stop();
}

fn a_reload_admits_and_excludes(case: &Case) {
    let tables = |keys: &str| format!("{keys}\n[volumes.v]\nbackend = \"memory\"\nsize = \"32MiB\"\n");
    let server = case.serve_with(&[], &tables("deny = [\"unix\"]"));
    let tcp = format!("nbd://{}/v", server.tcp());
    case.fail(&["nbdinfo", "--size", &server.unix("v")]);
    case.succeed(&["nbdinfo", "--size", &tcp]);
    case.configure(&tables("allow = [\"unix\"]"));
    server.signal(Signal::HUP);
    server.until_logged("server.allow changed");
    case.succeed(&["nbdinfo", "--size", &server.unix("v")]);
    case.fail(&["nbdinfo", "--size", &tcp]);
    // What is a mistake changes nothing.
    case.configure(&tables("allow = []"));
    server.signal(Signal::HUP);
    server.until_logged("admits no client");
    case.succeed(&["nbdinfo", "--size", &server.unix("v")]);
    server.stop();
}
