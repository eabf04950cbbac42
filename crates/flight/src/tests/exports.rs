//! Exports of a small recording, as literal text.

use std::io;

use super::request;
use crate::{Head, Kind, Name, Outcome, Recording, Request, Table, to_blkparse, to_fio, to_fio_2, to_msr};

fn recording() -> Recording {
    let name = |table, number, name: &str| Name { table, number, name: name.into(), pool: String::new(), bytes: 0 };
    let write = Request {
        tenant: 2,
        volume: 7,
        kind: Kind::Write,
        durable: true,
        queue_ns: 0,
        device_ns: 50_000,
        offset: 1_000,
        length: 100,
        outcome: Outcome::Failed(5),
        ..request(250_000)
    };
    let flush =
        Request { kind: Kind::Flush, queue_ns: 1_000, device_ns: 2_000, offset: 0, length: 0, ..request(300_000) };
    let trim =
        Request { kind: Kind::Trim, offset: 1 << 20, length: 1 << 20, outcome: Outcome::Cancelled, ..request(400_000) };
    let empty = Request { length: 0, ..request(500_000) };
    let other = Request { kind: Kind::Other, ..request(600_000) };
    let zero = Request { kind: Kind::Zero, offset: 1 << 20, length: 1 << 20, ..request(450_000) };
    let repeated = Request { retried: true, ..request(480_000) };
    let refused = Request { queue_ns: 0, device_ns: 0, outcome: Outcome::Failed(28), ..request(490_000) };
    Recording {
        head: Head { started_unix_ns: 1_000_000_000_000_000_000, ..Head::default() },
        names: vec![name(Table::Tenant, 1, "shop"), name(Table::Volume, 0, "db 1"), name(Table::Client, 3, "peer")],
        requests: vec![request(10_000), write, flush, trim, zero, repeated, refused, empty, other],
        ..Recording::default()
    }
}

/// The text that an export writes.
fn text(export: impl FnOnce(&mut Vec<u8>) -> io::Result<u64>) -> String {
    let mut bytes = Vec::new();
    export(&mut bytes).expect("memory can be written");
    String::from_utf8(bytes).expect("text")
}

#[test]
fn fio_gets_requests_with_times() {
    let expected = "\
fio version 3 iolog
0 db_1 add
0 db_1 open
0 volume-7 add
0 volume-7 open
10 db_1 read 4096 4096
250 volume-7 write 1000 100
300 db_1 sync 0 0
450 db_1 trim 1048576 1048576
450 db_1 close
450 volume-7 close
";
    assert_eq!(text(|out| to_fio(&recording(), out)), expected);
}

#[test]
fn older_fio_gets_requests_and_waits() {
    let expected = "\
fio version 2 iolog
db_1 add
db_1 open
volume-7 add
volume-7 open
db_1 read 4096 4096
volume-7 wait 250
volume-7 write 1000 100
db_1 sync 0 0
db_1 wait 200
db_1 trim 1048576 1048576
db_1 close
volume-7 close
";
    assert_eq!(text(|out| to_fio_2(&recording(), out)), expected);
}

#[test]
fn msr_gets_reads_and_writes() {
    let expected = "\
126444736000000100,shop,0,Read,4096,4096,1020
126444736000002500,tenant-2,7,Write,1000,100,500
";
    assert_eq!(text(|out| to_msr(&recording(), out)), expected);
    // What was cancelled has no latency.
    let mut cancelled = recording();
    cancelled.requests.insert(1, Request { outcome: Outcome::Cancelled, ..request(20_000) });
    assert_eq!(text(|out| to_msr(&cancelled, out)), expected);
}

#[test]
fn blkparse_gets_the_events_of_each_request() {
    let expected = [
        " 43,0    0        1     0.000010000     3  Q   R 8 + 8 [shop]\n",
        " 43,0    0        2     0.000012000     3  D   R 8 + 8 [shop]\n",
        " 43,0    0        3     0.000112000     3  C   R 8 + 8 [0]\n",
        " 43,7    0        4     0.000250000     3  Q  WF 1 + 2 [tenant-2]\n",
        " 43,7    0        5     0.000250000     3  D  WF 1 + 2 [tenant-2]\n",
        " 43,7    0        6     0.000300000     3  C  WF 1 + 2 [5]\n",
        " 43,0    0        7     0.000300000     3  Q FWS [shop]\n",
        " 43,0    0        8     0.000301000     3  D FWS [shop]\n",
        " 43,0    0        9     0.000303000     3  C FWS 0 [0]\n",
        " 43,0    0       10     0.000400000     3  Q   D 2048 + 2048 [shop]\n",
        " 43,0    0       11     0.000450000     3  Q   D 2048 + 2048 [shop]\n",
        " 43,0    0       12     0.000452000     3  D   D 2048 + 2048 [shop]\n",
        " 43,0    0       13     0.000490000     3  Q   R 8 + 8 [shop]\n",
        " 43,0    0       14     0.000490000     3  D   R 8 + 8 [shop]\n",
        " 43,0    0       15     0.000490000     3  C   R 8 + 8 [28]\n",
        " 43,0    0       16     0.000552000     3  C   D 2048 + 2048 [0]\n",
    ];
    assert_eq!(text(|out| to_blkparse(&recording(), out)), expected.concat());
}

#[test]
fn requests_that_are_left_out_do_not_count_as_written() {
    let recording = recording();
    let mut out = Vec::new();
    let mut written = vec![to_fio(&recording, &mut out), to_fio_2(&recording, &mut out)];
    written.extend([to_msr(&recording, &mut out), to_blkparse(&recording, &mut out)]);
    let written: Vec<u64> = written.into_iter().map(|count| count.expect("memory can be written")).collect();
    assert_eq!(written, [4, 4, 2, 6]);
}

#[test]
fn names_are_words_and_stay_different() {
    let table = Table::Volume;
    let name = |number, name: &str| Name { table, number, name: name.into(), pool: String::new(), bytes: 0 };
    let names = vec![name(0, "a b"), name(1, "a,b"), name(2, ""), name(3, "old"), name(3, "new")];
    let requests = (0..4).map(|volume| Request { volume, ..request(0) }).collect();
    let text = text(|out| to_fio(&Recording { names, requests, ..Recording::default() }, out));
    let reads: Vec<&str> = text.lines().filter_map(|line| line.strip_suffix(" read 4096 4096")).collect();
    assert_eq!(reads, ["0 a_b", "0 a_b-1", "0 volume-2", "0 new"]);
}
