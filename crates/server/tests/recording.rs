//! Tests of recordings: every request of a known load is in the file, as its client sent it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::support;

use evenkeel_flight::{Kind, Outcome, Recording, Request, Table};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno};
use evenkeel_policy::config::Engine;
use evenkeel_server::{Order, Recorded, Server, Start};
use support::{SmallDisk, Stop, TestServer, pattern};

const SIZE: u64 = 48 << 20;

/// An order to record into `name` in the server's folder until it is ended.
fn order(test: &TestServer, name: &str) -> Order {
    Order {
        file: file(test, name),
        pool: None,
        length: Duration::from_secs(3600),
        max_bytes: 1 << 30,
        key: None,
        force: false,
    }
}

fn file(test: &TestServer, name: &str) -> PathBuf {
    test.scratch.path().join(name)
}

/// Ends the recording and reads it; also returns its figures.
fn ended(test: &TestServer) -> (Recorded, Recording) {
    let figures = test.server.end_recording().expect("a recording was begun");
    assert!(figures.ended && figures.error.is_none(), "{figures:?}");
    let recording = Recording::read(&figures.file).expect("a recording");
    assert!(recording.complete, "the end is marked");
    assert_eq!((recording.requests.len() as u64, recording.lost), (figures.requests, figures.lost));
    (figures, recording)
}

fn name(recording: &Recording, table: Table, number: u32) -> &str {
    recording.name(table, number).map_or("", |name| name.name.as_str())
}

/// A request as a client knows it: kind, durability, offset, length and outcome.
type Known = (Kind, bool, u64, u64, Outcome);

fn known(request: &Request) -> Known {
    (request.kind, request.durable, request.offset, request.length, request.outcome)
}

#[test]
fn every_request_of_a_known_load_is_recorded_once_as_it_was_sent() {
    let text = "[server]\nworkers = 2\n[tenants.shop]\n[volumes.disk0]\nsize = \"48MiB\"\ntenant = \"shop\"\n[volumes.mem]\nbackend = \"memory\"\nsize = \"48MiB\"\n";
    for engine in support::ENGINES {
        let test = TestServer::start("recording-load", engine, text);
        let mut clients = [test.connect("disk0"), test.connect_tcp("mem")];
        let payload = pattern(1, 2, 20 << 20);
        clients[0].write(0, &payload[..4096]).unwrap();
        test.server.record(order(&test, "load.evf")).unwrap();

        let mut sent: Vec<Known> = Vec::new();
        for client in &mut clients {
            let done = |kind, durable, offset, length| (kind, durable, offset, length, Outcome::Done);
            client.write(4096, &payload[..8192]).unwrap();
            sent.push(done(Kind::Write, false, 4096, 8192));
            client.write_with(CommandFlags::FUA, 0, &payload[..4096]).unwrap();
            sent.push(done(Kind::Write, true, 0, 4096));
            client.read(4096, 8192).unwrap();
            sent.push(done(Kind::Read, false, 4096, 8192));
            client.flush().unwrap();
            sent.push(done(Kind::Flush, false, 0, 0));
            for (command, kind) in [(Command::Trim, Kind::Trim), (Command::WriteZeroes, Kind::Zero)] {
                let cookie = client.send(command, CommandFlags::NONE, 65_536, 4096, &[]);
                client.wait(cookie).unwrap();
                sent.push(done(kind, false, 65_536, 4096));
            }
            // In slices, of which a client knows nothing.
            client.write_with(CommandFlags::FUA, 1 << 20, &payload).unwrap();
            sent.push(done(Kind::Write, true, 1 << 20, 20 << 20));
            assert!(client.read(1 << 20, 20 << 20).unwrap() == payload);
            sent.push(done(Kind::Read, false, 1 << 20, 20 << 20));
            // Refused before it comes to the pool.
            let errno = client.read(SIZE, 4096).unwrap_err();
            sent.push((Kind::Read, false, SIZE, 4096, Outcome::Failed(errno.code() as u16)));
        }

        let (figures, recording) = ended(&test);
        assert_eq!((figures.lost, recording.head.source.as_str()), (0, "serve"));
        assert!(recording.head.policy.contains("[tenants.shop"), "{}", recording.head.policy);
        assert!(!recording.head.anonymised && figures.bytes > 0);
        let mode = fs::metadata(&figures.file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        assert_eq!(recording.requests.iter().map(known).collect::<Vec<_>>(), sent, "{engine:?}");
        let mut before = 0;
        for (place, request) in recording.requests.iter().enumerate() {
            let (tenant, volume) = if place < sent.len() / 2 { ("shop", "disk0") } else { ("default", "mem") };
            assert_eq!(name(&recording, Table::Tenant, request.tenant), tenant, "{request:?}");
            let named = recording.name(Table::Volume, request.volume).unwrap();
            assert_eq!((named.name.as_str(), named.pool.as_str(), named.bytes), (volume, "main", SIZE));
            let client = name(&recording, Table::Client, request.client);
            assert!(if volume == "mem" { client.starts_with("127.0.0.1:") } else { client.starts_with("unix uid") });
            // Each was sent when the one before was answered.
            assert!(request.arrival_ns >= before, "{request:?} before {before}");
            before = request.arrival_ns + request.queue_ns + request.device_ns;
            assert!(request.outcome != Outcome::Done || request.device_ns > 0, "{request:?}");
        }
        assert!(before as f64 / 1e9 <= figures.seconds, "{before} ns in {} s", figures.seconds);
    }
}

#[test]
fn a_failed_request_and_its_repetition_are_told_apart() {
    for engine in support::ENGINES {
        let test = TestServer::start("recording-failed", engine, "[volumes.disk0]\nsize = \"16MiB\"\n");
        let mut client = test.connect("disk0");
        client.write(0, &pattern(0, 1, 1 << 20)).unwrap();
        fs::OpenOptions::new().write(true).open(file(&test, "disk0.img")).unwrap().set_len(1 << 20).unwrap();
        test.server.record(order(&test, "failed.evf")).unwrap();
        assert_eq!(client.read(2 << 20, 4096), Err(Errno::Io));
        client.read(0, 4096).unwrap();
        assert_eq!(client.read(2 << 20, 4096), Err(Errno::Io));
        let (_, recording) = ended(&test);
        let seen = |request: &Request| (request.offset, request.outcome, request.retried);
        let failed = Outcome::Failed(5);
        assert_eq!(
            recording.requests.iter().map(seen).collect::<Vec<_>>(),
            [(2 << 20, failed, false), (0, Outcome::Done, false), (2 << 20, failed, true)]
        );
    }
}

#[test]
fn requests_of_a_client_that_has_gone_are_cancelled() {
    const READS: u64 = 30;
    // So slow that most of them wait when the server notices that the client has gone.
    let text = "[tenants.default]\nlimit = { iops = 1 }\n[volumes.disk0]\nsize = \"16MiB\"\n";
    let test = TestServer::start("recording-cancelled", Engine::Auto, text);
    let mut client = test.connect("disk0");
    test.server.record(order(&test, "cancelled.evf")).unwrap();
    let mut all = Vec::new();
    for n in 0..READS {
        client.expect(n, Command::Read, n << 12, 4096);
        all.extend(client.encode(n, Command::Read, CommandFlags::NONE, n << 12, 4096, &[]));
    }
    client.stream.write_all(&all).unwrap();
    client.wait(0).unwrap();
    drop(client);
    test.wait_for("all have ended", |_| test.server.recorded().is_some_and(|figures| figures.requests >= READS));
    // The client comes back and repeats its last read.
    test.connect("disk0").read((READS - 1) << 12, 4096).unwrap();
    let (_, recording) = ended(&test);
    let (first, repeated) = recording.requests.split_at(READS as usize);
    let count = |outcome| first.iter().filter(|request| request.outcome == outcome).count();
    let (done, cancelled) = (count(Outcome::Done), count(Outcome::Cancelled));
    assert!(done >= 1 && cancelled >= 1 && done + cancelled == READS as usize, "{done} and {cancelled}");
    let mut offsets: Vec<u64> = first.iter().map(|request| request.offset >> 12).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..READS).collect::<Vec<_>>());
    assert!(first.iter().all(|request| name(&recording, Table::Tenant, request.tenant) == "default"));
    assert!(first.iter().all(|request| request.outcome != Outcome::Cancelled || request.device_ns == 0));
    assert_eq!(
        repeated.iter().map(|request| (request.retried, request.outcome)).collect::<Vec<_>>(),
        [(true, Outcome::Done)]
    );
    assert_ne!(repeated[0].client, first[0].client, "another connection");
}

#[test]
fn an_order_that_cannot_be_carried_out_is_refused_with_a_cure() {
    let text = "[pools.other]\n[volumes.disk0]\nsize = \"1MiB\"\n[volumes.b]\nsize = \"1MiB\"\npool = \"other\"\n";
    let test = TestServer::start("recording-refused", Engine::Auto, text);
    let refused = |order: Order| test.server.record(order).map(drop).unwrap_err().to_string();
    fs::write(file(&test, "there"), "text").unwrap();
    fs::write(file(&test, "empty"), "").unwrap();
    for (wrong, cure) in [
        (Order { file: "relative".into(), ..order(&test, "x") }, "from the root"),
        (Order { pool: Some("none".into()), ..order(&test, "x") }, "no pool named"),
        (Order { key: Some(b"short".to_vec()), ..order(&test, "x") }, "urandom"),
        (Order { max_bytes: 5, ..order(&test, "x") }, "--max-size"),
        (Order { length: Duration::ZERO, ..order(&test, "x") }, "1m"),
        (order(&test, "no/folder"), "folder"),
        (order(&test, "there"), "--force"),
        (Order { force: true, ..order(&test, "there") }, "not a recording"),
        (Order { force: true, ..order(&test, "empty") }, "not a recording"),
        (Order { force: true, ..order(&test, "disk0.img") }, "holds volume \"disk0\""),
        (Order { force: true, ..order(&test, "files.toml") }, "this server's volume files"),
        (order(&test, "flight/segment-0000000000.evf"), "last requests"),
        (order(&test, "history/shop.evf"), "history"),
    ] {
        let why = refused(wrong);
        assert!(why.contains(cure), "{why} has no {cure}");
    }
    assert!(!file(&test, "x").exists() && fs::metadata(file(&test, "disk0.img")).unwrap().len() == 1 << 20);
    assert!(test.server.recorded().is_none() && test.server.end_recording().is_none());

    // One after the other, the second in place of the first.
    let begun = test.server.record(Order { pool: Some("other".into()), ..order(&test, "x") }).unwrap();
    assert!(!begun.ended);
    assert!(refused(order(&test, "y")).contains("--stop"));
    let mut clients = [test.connect("disk0"), test.connect("b")];
    clients.iter_mut().for_each(|client| drop(client.read(0, 4096).unwrap()));
    let (_, first) = ended(&test);
    assert_eq!(first.requests.len(), 1, "only one pool was asked for");
    assert_eq!(first.name(Table::Volume, first.requests[0].volume).unwrap().pool, "other");
    test.server.record(Order { force: true, ..order(&test, "x") }).unwrap();
    clients.iter_mut().for_each(|client| drop(client.read(0, 4096).unwrap()));
    assert_eq!(ended(&test).1.requests.len(), 2);
}

#[test]
fn no_recording_is_ended_by_the_end_of_the_one_before() {
    let test =
        TestServer::start("recording-again", Engine::Auto, "[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    let mut client = test.connect("disk0");
    for n in 0..100 {
        test.server.record(Order { force: n > 0, ..order(&test, "again.evf") }).unwrap();
        client.read(n << 12, 4096).unwrap();
        let (_, recording) = ended(&test);
        assert_eq!(recording.requests.iter().map(|request| request.offset).collect::<Vec<_>>(), [n << 12]);
    }
}

#[test]
fn a_recording_ends_by_itself_and_with_the_server() {
    let test =
        TestServer::start("recording-ends", Engine::Auto, "[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    test.server.record(Order { length: Duration::from_millis(1), ..order(&test, "short") }).unwrap();
    test.wait_for("the time is over", |_| test.server.recorded().is_some_and(|figures| figures.ended));
    assert!(Recording::read(&file(&test, "short")).unwrap().complete);
    test.server.record(order(&test, "long")).unwrap();
    test.connect("disk0").read(0, 4096).unwrap();
    test.server.shutdown().unwrap();
    let recording = Recording::read(&file(&test, "long")).unwrap();
    assert!(recording.complete && recording.requests.len() == 1, "{:?}", recording.requests);
    assert!(test.server.record(order(&test, "late")).is_err() && !file(&test, "late").exists());
}

#[test]
fn an_anonymised_recording_has_other_offsets_and_no_names() {
    let test = TestServer::start(
        "recording-hidden",
        Engine::Auto,
        "[volumes.secret]\nbackend = \"memory\"\nsize = \"1GiB\"\n",
    );
    let mut client = test.connect("secret");
    let key = Some(b"sixteen bytes or more".to_vec());
    test.server.record(Order { key, ..order(&test, "hidden.evf") }).unwrap();
    (0..64).for_each(|n| drop(client.read(n << 24, 4096).unwrap()));
    let (figures, recording) = ended(&test);
    assert!(recording.head.anonymised && recording.head.policy.is_empty());
    assert!(recording.requests.iter().any(|request| request.offset % (1 << 24) != 0), "{:?}", recording.requests);
    assert!(recording.requests.iter().all(|request| request.offset + request.length <= 1 << 30));
    let text = fs::read(&figures.file).unwrap();
    for hidden in ["secret", "unix", "default"] {
        assert!(!text.windows(hidden.len()).any(|part| part == hidden.as_bytes()), "{hidden} is in the file");
    }
}

#[test]
fn the_last_minutes_are_saved_after_the_fact() {
    let text = "[server]\nrecord = { keep = \"1m\", size = \"16MiB\" }\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let test = TestServer::start("recording-last", Engine::Auto, text);
    let mut client = test.connect("disk0");
    (0..100).for_each(|n| drop(client.read(n << 12, 4096).unwrap()));
    let saved = test.server.record_last(Order { length: Duration::from_secs(60), ..order(&test, "last.evf") }).unwrap();
    assert_eq!((saved.requests, saved.lost, saved.ended), (100, 0, true), "{saved:?}");
    let recording = Recording::read(&saved.file).unwrap();
    assert!(recording.complete && recording.head.policy.contains("disk0"));
    assert_eq!(
        recording.requests.iter().map(|request| request.offset >> 12).collect::<Vec<_>>(),
        (0..100).collect::<Vec<_>>()
    );
    assert_eq!(name(&recording, Table::Tenant, recording.requests[0].tenant), "default");
    // While the ring goes on, another recording has its own requests only.
    test.server.record(order(&test, "now.evf")).unwrap();
    client.read(0, 4096).unwrap();
    assert_eq!(ended(&test).1.requests.len(), 1);
    let again = Order { length: Duration::from_secs(60), force: true, ..order(&test, "last.evf") };
    assert_eq!(test.server.record_last(again.clone()).unwrap().requests, 101);

    // With other settings, the ring goes on with what it has.
    let mut config = test.config.clone();
    config.server.record.as_mut().unwrap().on_miss = true;
    test.server.reload(config.clone()).unwrap();
    assert_eq!(test.server.record_last(again).unwrap().requests, 101);

    config.server.record = None;
    test.server.reload(config).unwrap();
    test.wait_for("the segments are removed", |_| kept(&test, "segment-").is_empty());
    let refused = test.server.record_last(order(&test, "none.evf")).map(drop).unwrap_err().to_string();
    assert!(refused.contains("record = {"), "{refused}");
}

#[test]
fn a_policy_that_changes_during_a_recording_is_noted() {
    let text = "[tenants.shop]\nlimit = { iops = 5000 }\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let test = TestServer::start("recording-policy", Engine::Auto, text);
    test.server.record(order(&test, "one.evf")).unwrap();
    test.connect("disk0").read(0, 4096).unwrap();
    assert_eq!(ended(&test).0.note, None);
    test.server.record(order(&test, "two.evf")).unwrap();
    let mut config = test.config.clone();
    config.tenants.remove("shop");
    test.server.reload(config).unwrap();
    test.connect("disk0").read(0, 4096).unwrap();
    let (figures, recording) = ended(&test);
    assert!(recording.head.policy.contains("[tenants.shop"), "{}", recording.head.policy);
    let note = figures.note.unwrap_or_default();
    assert!(note.contains("policy changed"), "{note:?}");

    // A policy for which the recording would have no room.
    test.server.record(Order { max_bytes: 1 << 20, ..order(&test, "three.evf") }).unwrap();
    let mut config = test.config.clone();
    let shop = config.tenants["shop"].clone();
    config.tenants.extend((0..1500).map(|n| (format!("{n:060}"), shop.clone())));
    test.server.reload(config).unwrap();
    let note = ended(&test).0.note.unwrap_or_default();
    assert!(note.contains("policy changed"), "{note:?}");
}

#[test]
fn the_last_minutes_of_a_server_that_ended_are_set_aside() {
    let text = "[server]\nrecord = { keep = \"1m\", size = \"16MiB\" }\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let test = TestServer::start("recording-before", Engine::Auto, text);
    test.connect("disk0").read(4096, 4096).unwrap();
    test.server.shutdown().unwrap();
    assert_eq!((kept(&test, "segment-").len(), kept(&test, "before-").len()), (1, 0));
    let next = Server::start(test.config.clone(), Start::default()).unwrap();
    test.wait_for("the segment is set aside", |_| !kept(&test, "before-").is_empty());
    let recording = Recording::read(&kept(&test, "before-")[0]).unwrap();
    assert!(recording.complete && recording.requests.len() == 1, "{:?}", recording.requests);
    next.shutdown().unwrap();
}

#[test]
fn a_full_disk_ends_a_recording_and_nothing_else() {
    const READS: u64 = 16_384;
    let Some(disk) = SmallDisk::mount("recording-full-disk") else { return };
    // Room for 64 KiB: more than one block of the recording, less than all.
    fs::write(disk.path().join("filler"), vec![1_u8; 960 << 10]).unwrap();
    let text = "[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n";
    let test = TestServer::start("recording-full", Engine::Auto, text);
    let mut client = test.connect("disk0");
    test.server.record(Order { file: disk.path().join("full.evf"), ..order(&test, "x") }).unwrap();
    (0..READS).for_each(|n| drop(client.read((n * 7_919 % READS) << 12, 4096).unwrap()));
    test.wait_for("the recording has ended", |_| test.server.recorded().is_some_and(|figures| figures.ended));
    let figures = test.server.recorded().expect("a recording was begun");
    let why = figures.error.expect("there was no room");
    assert!(why.contains("cannot write") && why.contains("Make room"), "{why}");
    let recording = Recording::read(&figures.file).unwrap();
    assert!(!recording.requests.is_empty() && (recording.requests.len() as u64) < READS);
    assert_eq!(recording.requests.len() as u64, figures.requests, "what is in no block counts as lost");
    assert!(recording.requests.iter().all(|request| request.outcome == Outcome::Done && request.length == 4096));
    // The client notices nothing, and there is room elsewhere.
    test.server.record(order(&test, "again.evf")).unwrap();
    client.read(0, 4096).unwrap();
    assert_eq!(ended(&test).1.requests.len(), 1);
}

/// Paths of the files of the last minutes whose names begin with `beginning`.
fn kept(test: &TestServer, beginning: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(test.config.server.flight_path()).into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning));
    entries.map(|entry| entry.path()).filter(is_one).collect()
}

#[test]
fn a_missed_target_saves_the_last_minutes_once() {
    let text = "[server]\nrecord = { keep = \"1m\", size = \"16MiB\", on_miss = true }\n\
        [pools.main]\nlatency = { target = \"1ms\" }\n[pools.main.emulate]\nread_latency = \"20ms\"\n\
        [volumes.slow]\nbackend = \"emulate\"\nsize = \"8MiB\"\n";
    let test = TestServer::start("recording-missed", Engine::Auto, text);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stop(&stop);
        // No read is as fast as the target, and no other tenant can be throttled for it.
        scope.spawn(|| test.connect("slow").keep_asking(Command::Read, 4096, 4, &stop));
        let mut whole = None;
        test.wait_for("a file with the last minutes", |_| {
            let read = kept(&test, "missed-").first().and_then(|path| Recording::read(path).ok());
            whole = read.filter(|recording| recording.complete);
            whole.is_some()
        });
        let recording: Recording = whole.expect("waited for");
        assert!(!recording.requests.is_empty() && recording.head.policy.contains("slow"), "{}", recording.head.policy);
        assert!(recording.requests.iter().all(|request| request.kind == Kind::Read && request.length == 4096));
        // One for each segment, of one miss.
        let files = kept(&test, "missed-");
        let time =
            |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.split('-').nth(1).map(str::to_owned));
        assert!(files.iter().all(|path| time(path).is_some() && time(path) == time(&files[0])), "{files:?}");
        assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
    });
}
