//! Tests with `fio --ioengine=nbd`, which verifies the data that it has written.

use serde_json::Value;

use crate::harness::{Case, MIB, Server, VOLUMES};

on_both_engines! {
    fio_verifies_one_connection: "fio";
    fio_verifies_four_connections: "fio";
    fio_verifies_blocks_of_mixed_sizes: "fio";
    fio_verifies_what_another_server_left: "fio";
}

/// Runs fio jobs that verify their data by CRC-32C, and asserts that they succeed. Returns fio's JSON totals of all jobs.
#[track_caller]
pub(crate) fn verify(case: &Case, uri: &str, arguments: &[&str]) -> Value {
    let uri = format!("--uri={uri}");
    let mut words = vec!["fio", "--name=verify", "--ioengine=nbd", &uri, "--thread", "--iodepth=16"];
    words.extend(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0"]);
    words.extend(["--group_reporting", "--output-format=json"]);
    words.extend(arguments);
    let said = case.succeed(&words);
    // Remarks come before the report.
    let report = said.find("\n{").map_or(said.as_str(), |at| &said[at..]);
    let mut report: Value = serde_json::from_str(report).unwrap_or_else(|error| panic!("{words:?}: {error}\n{said}"));
    let job = report["jobs"][0].take();
    assert_eq!(job["error"], 0, "{words:?}");
    job
}

/// Number of bytes that fio wrote, and number of bytes that it read, from its totals `job`.
pub(crate) fn bytes(job: &Value) -> (u64, u64) {
    let count = |op: &str| job[op]["io_bytes"].as_u64().expect("a number");
    (count("write"), count("read"))
}

fn each_volume(server: &Server, mut run: impl FnMut(&str)) {
    for volume in VOLUMES {
        for uri in server.uris(volume) {
            run(&uri);
        }
    }
}

fn fio_verifies_one_connection(case: &Case) {
    let server = case.serve();
    each_volume(&server, |uri| {
        let job = verify(case, uri, &["--rw=randwrite", "--bs=4k", "--size=4m", "--fsync=64"]);
        assert_eq!(bytes(&job), (4 * MIB, 4 * MIB), "{uri}");
        assert!(job["sync"]["total_ios"].as_u64() >= Some(1024 / 64 - 1), "{}", job["sync"]);
    });
    server.stop();
}

fn fio_verifies_four_connections(case: &Case) {
    let server = case.serve();
    each_volume(&server, |uri| {
        let regions = ["--numjobs=4", "--offset_increment=8m", "--size=2m"];
        let before = server.accepted();
        let job = verify(case, uri, &[&["--rw=randwrite", "--bs=4k", "--fsync=32"][..], &regions].concat());
        assert_eq!(bytes(&job), (8 * MIB, 8 * MIB), "{uri}");
        assert!(server.accepted() >= before + 4, "{uri}");
    });
    server.stop();
}

fn fio_verifies_blocks_of_mixed_sizes(case: &Case) {
    let server = case.serve();
    each_volume(&server, |uri| {
        // Less than a page goes another way than whole pages, to the same pages.
        let job = verify(case, uri, &["--rw=randwrite", "--bsrange=512-64k", "--size=4m", "--fsync=16"]);
        assert_eq!(bytes(&job), (4 * MIB, 4 * MIB), "{uri}");
        let job = verify(case, uri, &["--rw=randrw", "--bs=4k", "--offset=16m", "--size=4m"]);
        assert!(job["write"]["io_bytes"].as_u64() > Some(MIB), "{uri}");
    });
    server.stop();
}

fn fio_verifies_what_another_server_left(case: &Case) {
    let writes = ["--rw=write", "--bs=64k", "--size=8m", "--end_fsync=1"];
    let server = case.serve();
    for volume in ["direct", "buffered"] {
        verify(case, &server.unix(volume), &writes);
    }
    server.stop();
    let server = case.serve();
    for volume in ["direct", "buffered"] {
        let job = verify(case, &server.uris(volume)[0], &[&writes[..], &["--verify_only"]].concat());
        assert_eq!(bytes(&job).1, 8 * MIB, "{volume}");
    }
    server.stop();
}
