//! Tests that the requests of one client do not delay those of another. Each test counts the attacker's requests that are
//! carried out for each request of the light client, so that a slow or busy machine changes nothing.

use crate::support;

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

use evenkeel_nbd::wire::{Command, CommandFlags, Framing};
use evenkeel_policy::config::Engine;
use evenkeel_policy::state::State;
use support::{Client, Stream, TestServer, pattern};

/// Number of the attacker's connections, and (`DEPTH`) of requests that each keeps outstanding.
const CONNECTIONS: usize = 8;
const DEPTH: usize = 64;
/// Number of requests that the light client sends.
const LIGHT: u64 = 200;
/// Bytes of the attacker's volume, to which no data is ever written.
const SIZE: u64 = 4 << 30;
/// Largest number of the attacker's requests for each request of the light client. A worker works on pools for 0.25 ms in a
/// row, about twice for each request of the light client, and a request of the attacker takes at least 0.1 ms. A worker that
/// carried out all waiting requests would reach `CONNECTIONS` times `DEPTH`.
const AT_MOST: u64 = 64;

/// Number of the attacker's requests that are carried out while the light client's reads are served. The light client begins
/// when more than `after` requests of the attacker have been carried out.
fn noise_beside_light(test: &TestServer, command: Command, length: u64, after: u64) -> u64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stops = support::Stop(&stop);
        let attack = || test.connect("noise").keep_asking(command, length, DEPTH, &stop);
        let attackers: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(attack)).collect();
        test.wait_for("the attack", |state| carried_out(state) > after);
        let mut light = test.connect("light");
        let before = carried_out(&test.server.state());
        (0..LIGHT).for_each(|_| drop(light.read(0, 4096).unwrap()));
        let noise = carried_out(&test.server.state()) - before;
        drop(stops);
        assert!(attackers.into_iter().all(|attacker| attacker.join().is_ok()));
        noise
    })
}

#[test]
fn work_on_memory_of_another_pool_is_shared_out_in_turns() {
    let text = "[server]\nworkers = 1\n[pools.noise]\n\
                [volumes.light]\nbackend = \"memory\"\nsize = \"1MiB\"\n\
                [volumes.noise]\nbackend = \"memory\"\npool = \"noise\"\nsize = \"4GiB\"\n";
    for command in [Command::Trim, Command::WriteZeroes] {
        let test = TestServer::start(&format!("isolation-{command:?}"), Engine::Auto, text);
        let noise = noise_beside_light(&test, command, SIZE, (CONNECTIONS * DEPTH) as u64);
        println!("{command:?}: {noise} requests of the attacker beside {LIGHT} of the light client");
        assert!(noise <= AT_MOST * LIGHT, "{command:?}: {noise} requests beside {LIGHT}");
    }
}

/// Number of pieces of data in the fragmented file. Each is one file system block (`PIECE` bytes) long; a piece begins every
/// `APART` bytes, with a hole behind it.
const PIECES: u64 = 4096;
const PIECE: u64 = 4 << 10;
const APART: u64 = 256 << 10;
/// Largest number of extents in one reply of a volume in a file.
const MOST_EXTENTS: usize = 1024;

/// A server with a fragmented file as the volume `noise`, and a volume `light` in memory, whose reads wait for no disk.
fn fragmented(test: &str, engine: Engine, pools: &str) -> TestServer {
    let scratch = support::Scratch::new(test);
    let text = format!(
        "[server]\nworkers = 1\n{pools}[tenants.light]\n[tenants.noise]\n\
         [volumes.light]\nbackend = \"memory\"\nsize = \"1MiB\"\n[volumes.noise]\npool = \"noise\"\nsize = {}\n",
        PIECES * APART
    );
    let config = support::config(&scratch, engine, &text);
    let test = TestServer::with_config(scratch, config);
    let file = std::fs::OpenOptions::new().write(true).open(test.scratch.path().join("noise.img")).unwrap();
    (0..PIECES).for_each(|n| file.write_all_at(&[1; PIECE as usize], n * APART).unwrap());
    test
}

#[test]
fn a_fragmented_file_is_described_piece_by_piece_in_short_answers() {
    for engine in support::ENGINES {
        let test = fragmented("fragments", engine, "[pools.noise]\n");
        let mut client = test.connect("noise");
        let (size, mut at, mut pieces, mut answers) = (PIECES * APART, 0, 0, 0);
        while at < size {
            let cookie = client.send(Command::BlockStatus, CommandFlags::NONE, at, size - at, &[]);
            client.wait(cookie).unwrap();
            let extents = std::mem::take(&mut client.answers.extents);
            assert!((1..=MOST_EXTENTS).contains(&extents.len()), "{} extents at {at}", extents.len());
            for (length, status) in extents {
                // A piece may be cut in two where one answer ends and the next begins, not change its place.
                let is_data = at % APART < PIECE;
                assert_eq!(status == 0, is_data, "{engine:?}: {length} bytes at {at}");
                let end = at / APART * APART + if is_data { PIECE } else { APART };
                assert!(at + length <= end, "{engine:?}: {length} bytes at {at}");
                pieces += u64::from(is_data && at + length == end);
                at += length;
            }
            answers += 1;
        }
        assert_eq!((at, pieces), (size, PIECES));
        assert!(answers as usize >= 2 * PIECES as usize / MOST_EXTENTS, "{answers} answers");
        test.wait_for("all of them counted", |state| carried_out(state) == answers);
    }
}

#[test]
fn searches_of_a_fragmented_file_keep_no_other_pool_waiting() {
    for engine in support::ENGINES {
        let test = fragmented("searches", engine, "[pools.noise]\n");
        let noise = noise_beside_light(&test, Command::BlockStatus, PIECES * APART, DEPTH as u64);
        println!("{engine:?}: {noise} searches beside {LIGHT} requests of the light client");
        assert!(noise <= AT_MOST * LIGHT, "{engine:?}: {noise} searches beside {LIGHT}");
    }
}

#[test]
fn searches_of_a_fragmented_file_are_paid_for_by_weight() {
    // The pool's limit makes both wait, whatever the machine can do. A search costs 16 KiB and `base_cost`, a read 4 KiB and
    // that: two and a half times as many reads. If searches cost nothing but `base_cost`, it would be half as many.
    let text = "[pools.noise]\nlimit = { iops = 100 }\n[volumes.reads]\ntenant = \"light\"\npool = \"noise\"\nsize = \"1MiB\"\n";
    let test = fragmented("weights", Engine::Auto, text);
    let stop = AtomicBool::new(false);
    let (reads, searches) = std::thread::scope(|scope| {
        let _stops = support::Stop(&stop);
        scope.spawn(|| test.connect("reads").keep_asking(Command::Read, 4096, DEPTH, &stop));
        scope.spawn(|| test.connect("noise").keep_asking(Command::BlockStatus, PIECES * APART, DEPTH, &stop));
        let done = |state: &State| {
            let pool = state.pools.iter().find(|pool| pool.name == "noise").unwrap();
            let of = |name| pool.tenants.iter().find(|tenant| tenant.name == name).unwrap();
            (of("light").reads_total, of("noise").metas_total)
        };
        test.wait_for("both of them", |state| done(state).0.min(done(state).1) > 0);
        let (first_reads, first_searches) = done(&test.server.state());
        test.wait_for("300 requests", |state| done(state).0 + done(state).1 >= first_reads + first_searches + 300);
        let (reads, searches) = done(&test.server.state());
        (reads - first_reads, searches - first_searches)
    });
    println!("{reads} reads beside {searches} searches");
    assert!(reads >= searches, "{reads} reads beside {searches} searches");
}

/// Configuration of two tenants with volumes in files, because reads of files need buffers.
const TENANTS: &str = "[tenants.light]\n[tenants.noise]\n\
    [volumes.light]\ntenant = \"light\"\nsize = \"16MiB\"\n[volumes.noise]\ntenant = \"noise\"\nsize = \"64MiB\"\n";

#[test]
fn writes_that_stop_half_way_keep_no_memory_from_another_tenant() {
    for engine in support::ENGINES {
        let text = format!("[server]\nbuffer_memory = \"32MiB\"\n{TENANTS}");
        let test = TestServer::start("half-arrived", engine, &text);
        let mut attackers: Vec<_> = (0..300).map(|_| test.connect("noise")).collect();
        for attacker in &mut attackers {
            let header = attacker.encode(0, Command::Write, CommandFlags::NONE, 0, 32 << 20, &[]);
            attacker.stream.write_all(&header).unwrap();
            attacker.stream.write_all(&[1; 1000]).unwrap();
        }
        test.wait_for("all that they can get", |state| state.buffer_memory_used_bytes > 31 << 20);
        let mut light = test.connect("light");
        for n in 0..200 {
            light.write(n << 12, &pattern(n, 1, 4096)).unwrap();
            assert_eq!(light.read(n << 12, 4096).unwrap(), pattern(n, 1, 4096));
        }
        // What is above its floor it gets as well: those that are in the way go.
        light.write(0, &pattern(0, 2, 8 << 20)).unwrap();
        assert!(light.read(0, 8 << 20).unwrap() == pattern(0, 2, 8 << 20));
        test.wait_for("some of them closed", |state| state.connections < 300);
        drop(attackers);
        test.wait_for("all given back", |state| state.buffer_memory_used_bytes == 0);
    }
}

#[test]
fn replies_that_are_not_taken_keep_no_memory_from_another_tenant() {
    let text = format!("[server]\nbuffer_memory = \"32MiB\"\n{TENANTS}");
    let test = TestServer::start("not-taken", Engine::Auto, &text);
    let mut attackers: Vec<_> = (0..100).map(|_| test.connect("noise")).collect();
    for attacker in &mut attackers {
        for n in 0..64 {
            attacker.send(Command::Read, CommandFlags::NONE, n << 19, 1 << 19, &[]);
        }
    }
    test.wait_for("all that they can get", |state| state.buffer_memory_used_bytes > 24 << 20);
    let mut light = test.connect("light");
    for n in 0..200 {
        assert_eq!(light.read(n << 12, 4096).unwrap(), [0; 4096]);
    }
    assert!(light.read(0, 8 << 20).unwrap() == vec![0; 8 << 20]);
}

#[test]
fn clients_that_come_and_go_leave_no_more_in_flight_than_two_have() {
    let text = "[pools.slow]\ntuning.admission = \"none\"\nemulate = { preset = \"ssd\", read_latency = \"500ms\" }\n\
                [volumes.noise]\nbackend = \"emulate\"\npool = \"slow\"\nsize = \"8MiB\"\n";
    let test = TestServer::start("left-behind", Engine::Auto, text);
    let mut most = 0;
    for _ in 0..12 {
        let mut client = test.connect("noise");
        for n in 0..64 {
            client.send(Command::Read, CommandFlags::NONE, n << 16, 1 << 16, &[]);
        }
        drop(client);
        test.wait_for("the client gone", |state| state.connections == 0);
        most = most.max(test.server.state().buffer_memory_used_bytes);
    }
    println!("{most} bytes");
    // Each asks for 4 MiB, and from 4 MiB on those that come wait.
    assert!((4 << 20..=8 << 20).contains(&most), "{most} bytes");
    test.wait_for("all given back", |state| state.buffer_memory_used_bytes == 0);
    // Those that come later have more than the floor.
    assert!(test.connect("noise").read(0, 1 << 20).unwrap() == vec![0; 1 << 20]);
}

#[test]
fn one_client_cannot_take_all_connections() {
    let test = TestServer::start("flood", Engine::Auto, &format!("[server]\nmax_connections = 64\n{TENANTS}"));
    let flood: Vec<_> = (0..64).map(|_| test.raw_tcp()).collect();
    test.wait_for("the flood", |state| state.accepted_connections_total + state.refused_connections_total >= 64);
    // Half of the places, less what is kept.
    assert_eq!(test.server.state().accepted_connections_total, 30);
    // A user of this machine is another client than an address.
    let mut light: Vec<_> = (0..8).map(|_| test.connect("light")).collect();
    light.iter_mut().for_each(|light| drop(light.read(0, 512).unwrap()));
    drop(flood);
}

#[test]
fn one_tenant_cannot_take_all_connections_from_many_addresses() {
    const PLACES: u64 = 64;
    /// Half of the places, less what is kept.
    const OF_TENANT: u64 = 30;
    let test =
        TestServer::start("tenant-flood", Engine::Auto, &format!("[server]\nmax_connections = {PLACES}\n{TENANTS}"));
    let connect =
        |host, volume| Client::new(Stream::Tcp(test.raw_tcp_from(host).unwrap()), volume, Framing::Structured);
    // One connection of each address, which no bound on a client refuses.
    let mut flood: Vec<_> = (0..PLACES).map(|n| connect(2 + n as u8, "noise")).collect();
    let refused = |state: &State| state.refused_clients_total["connections_of_tenant"];
    test.wait_for("the refusals", |state| refused(state) == PLACES - OF_TENANT && state.connections == OF_TENANT);
    let all: u64 = test.server.state().refused_clients_total.values().sum();
    assert_eq!(all, PLACES - OF_TENANT, "for no other reason");
    for (n, client) in (0..).zip(&mut flood) {
        if n < OF_TENANT {
            client.read(0, 512).unwrap();
        } else {
            assert!(!client.receive(), "connection {n} is closed");
        }
    }
    // Another tenant connects, from new addresses and from those of the flood.
    let mut light: Vec<_> = (0..8).map(|n| connect(if n < 4 { 2 + n } else { 200 + n }, "light")).collect();
    light.push(test.connect("light"));
    light.iter_mut().for_each(|light| drop(light.read(0, 512).unwrap()));
    assert_eq!(refused(&test.server.state()), PLACES - OF_TENANT);
}

/// Number of trims, zeroings and searches that have been carried out, all of which are the attacker's.
fn carried_out(state: &State) -> u64 {
    state.pools.iter().flat_map(|pool| &pool.tenants).map(|tenant| tenant.metas_total).sum()
}
