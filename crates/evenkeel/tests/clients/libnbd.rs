//! Tests of content, holes and totals with the NBD clients `nbdinfo` and `nbdcopy`.

use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Case, DATA, SIZE, Server, VOLUMES, assert_same, assert_sparse, data_bytes};

on_both_engines! {
    nbdinfo_sees_what_is_offered: "nbdinfo";
    nbdinfo_lists_ten_thousand_exports_on_a_unix_socket: "nbdinfo";
    nbdinfo_lists_exports_over_tcp_for_longer_than_the_handshake_timeout: "nbdinfo";
    nbdinfo_maps_data_and_holes: "nbdinfo" "nbdcopy";
    nbdcopy_keeps_content_and_holes: "nbdcopy";
    nbdcopy_makes_holes_in_a_full_volume: "nbdcopy" "nbdinfo";
    nbdcopy_copies_from_volume_to_volume: "nbdcopy" "nbdinfo";
}

fn nbdinfo_sees_what_is_offered(case: &Case) {
    let server = case.serve();
    for volume in VOLUMES {
        for uri in server.uris(volume) {
            assert_eq!(case.succeed(&["nbdinfo", "--size", &uri]).trim(), SIZE.to_string());
            let info = case.json(&["nbdinfo", "--json", &uri]);
            let export = &info["exports"][0];
            assert_eq!((&info["protocol"], &info["structured"]), (&json!("newstyle-fixed"), &json!(true)));
            assert_eq!((&export["export-name"], &export["export-size"]), (&json!(volume), &json!(SIZE)));
            assert_eq!(export["contexts"], json!(["base:allocation"]));
            assert_eq!((&export["is_read_only"], &export["block_size_minimum"]), (&json!(false), &json!(1)));
            for ability in ["cache", "df", "fast_zero", "flush", "fua", "multi_conn", "trim", "zero"] {
                assert_eq!(export[format!("can_{ability}")], true, "{volume} {ability}");
            }
        }
    }
    for uri in server.uris("") {
        assert_eq!(case.exports(&uri), ["buffered", "direct", "memory"]);
    }
    for uri in server.uris("none") {
        let complaint = case.fail(&["nbdinfo", "--size", &uri]);
        assert!(complaint.contains("none"), "{complaint}");
    }
    server.stop();
}

/// Asserts that `nbdinfo` lists and describes `count` volumes of a server with the keys `server`, at the URI of `place`.
fn list(case: &Case, count: usize, server: &str, place: impl Fn(&Server) -> String) {
    let names: Vec<String> = (0..count).map(|n| format!("volume-{n:05}")).collect();
    let volume = |name: &String| format!("[volumes.{name}]\nbackend = \"memory\"\nsize = 4096\n");
    let server = case.serve_with(&[], &format!("{server}{}", names.iter().map(volume).collect::<String>()));
    let begun = Instant::now();
    let listed = case.exports(&place(&server));
    println!("{count} exports listed in {:.2} s", begun.elapsed().as_secs_f64());
    assert_eq!(listed.len(), count);
    assert!(listed.iter().zip(&names).all(|(listed, name)| listed == name), "{:?}", listed.first());
    server.stop();
}

/// Two options for each export are far more than the 4,096 of a server without exports.
fn nbdinfo_lists_ten_thousand_exports_on_a_unix_socket(case: &Case) {
    list(case, 10_000, "", |server| server.unix(""));
}

/// libnbd sends one of the options so that its kernel holds it for 200 ms: this list takes 5 s, and each answer adds to the 1 s.
fn nbdinfo_lists_exports_over_tcp_for_longer_than_the_handshake_timeout(case: &Case) {
    list(case, 25, "handshake_timeout = \"1s\"\n", |server| format!("nbd://{}/", server.tcp()));
}

/// Offset and length in bytes, and flags (1: hole, 2: zero; 3: both), of each extent of a volume, as `nbdinfo` prints them.
fn extents(case: &Case, uri: &str) -> Vec<(u64, u64, u64)> {
    let map = case.json(&["nbdinfo", "--map", "--json", uri]);
    let number = |extent: &Value, key: &str| extent[key].as_u64().expect("a number");
    let extents = map.as_array().expect("a list").iter();
    extents.map(|extent| (number(extent, "offset"), number(extent, "length"), number(extent, "type"))).collect()
}

/// The [`extents`] of a volume that holds [`Case::image`].
fn expected_extents() -> Vec<(u64, u64, u64)> {
    let mut extents = Vec::new();
    let mut at = 0;
    for (start, end) in DATA {
        extents.push((at, start - at, 3));
        extents.push((start, end - start, 0));
        at = end;
    }
    extents
}

fn nbdinfo_maps_data_and_holes(case: &Case) {
    let server = case.serve();
    let (image, _) = case.image();
    for volume in VOLUMES {
        for uri in server.uris(volume) {
            case.succeed(&["nbdcopy", &image, &uri]);
            assert_eq!(extents(case, &uri), expected_extents(), "{uri}");
            let totals = case.json(&["nbdinfo", "--map", "--totals", "--json", &uri]);
            let data = totals.as_array().expect("a list").iter().find(|total| total["type"] == 0);
            assert_eq!(data.expect("some data")["size"], data_bytes(), "{totals}");
        }
    }
    server.stop();
}

/// Copies with `nbdcopy` over the given number of connections, and flushes at the end.
#[track_caller]
fn copy(case: &Case, connections: u64, from: &str, to: &str) {
    // Without as many threads it opens fewer connections.
    let [connections, threads] = ["connections", "threads"].map(|name| format!("--{name}={connections}"));
    case.succeed(&["nbdcopy", "--flush", &connections, &threads, from, to]);
}

fn nbdcopy_keeps_content_and_holes(case: &Case) {
    let server = case.serve();
    let (image, content) = case.image();
    for volume in VOLUMES {
        for (uri, connections) in server.uris(volume).into_iter().zip([1, 4]) {
            let before = server.accepted();
            copy(case, connections, &image, &uri);
            assert!(server.accepted() >= before + connections, "{uri}");
            copy(case, connections, &uri, &case.file("out.img"));
            assert_same(&std::fs::read(case.path("out.img")).expect("the copy"), &content, &uri);
            assert_sparse(&case.path("out.img"));
            std::fs::remove_file(case.path("out.img")).expect("it is there");
        }
        if volume != "memory" {
            assert_sparse(&case.path(&format!("{volume}.img")));
            let stored = std::fs::read(case.path(&format!("{volume}.img"))).expect("the volume's file");
            assert_same(&stored, &content, volume);
        }
    }
    server.stop();
}

fn nbdcopy_makes_holes_in_a_full_volume(case: &Case) {
    let server = case.serve();
    let ((image, content), full) = (case.image(), case.full_image());
    for volume in VOLUMES {
        let [tcp, unix] = server.uris(volume);
        copy(case, 4, &full, &tcp);
        assert_eq!(extents(case, &unix), [(0, SIZE, 0)], "{volume}");
        copy(case, 4, &image, &unix);
        assert_same(&case.content(&tcp), &content, volume);
        assert_eq!(extents(case, &tcp), expected_extents(), "{volume}");
        if volume != "memory" {
            assert_sparse(&case.path(&format!("{volume}.img")));
        }
    }
    server.stop();
}

fn nbdcopy_copies_from_volume_to_volume(case: &Case) {
    let server = case.serve();
    let (image, content) = case.image();
    case.succeed(&["nbdcopy", &image, &server.unix("memory")]);
    for (from, to, connections) in [("memory", "direct", 1), ("direct", "buffered", 4), ("buffered", "memory", 4)] {
        let ([from, _], [_, to]) = (server.uris(from), server.uris(to));
        copy(case, connections, &from, &to);
        assert_eq!(extents(case, &to), expected_extents(), "{to}");
        assert_same(&case.content(&to), &content, &to);
        // What comes next must not find the answer there already.
        if !from.contains("buffered") {
            case.succeed(&["nbdcopy", &case.full_image(), &from]);
        }
    }
    server.stop();
}
