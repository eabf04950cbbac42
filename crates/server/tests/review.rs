//! Tests of faults that reviews of the code suspected.

use crate::support;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_nbd::wire::{Command, CommandFlags, Errno};
use evenkeel_policy::config::Engine;
use support::{Client, ENGINES, TestServer, pattern};

const MEMORY: &str = "[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n";
/// Configuration that lets one request a second through; the others wait in the pool.
const SLOW: &str = "[tenants.default]\nlimit = { iops = 1 }\n";

/// Sends `count` requests of `length` bytes, and does not wait for the replies.
fn ask(client: &mut Client, count: u64, command: Command, length: u64) {
    let payload = if command == Command::Write { vec![1; length as usize] } else { Vec::new() };
    let requests: Vec<u8> =
        (0..count).flat_map(|n| client.encode(n, command, CommandFlags::NONE, 0, length, &payload)).collect();
    client.stream.write_all(&requests).unwrap();
}

#[test]
fn the_buffer_budget_counts_what_is_allocated() {
    let test = TestServer::start("footprint", Engine::Auto, &format!("{SLOW}{MEMORY}"));
    let mut client = test.connect("disk0");
    ask(&mut client, 100, Command::Write, 1);
    // The first goes through at once, and the bucket may let one more pass meanwhile.
    test.wait_for("all of them", |state| state.pools[0].queued_requests >= 95);
    let used = test.server.state().buffer_memory_used_bytes;
    assert!(used >= 95 * 4096, "writes of one byte take a page each, and {used} bytes are counted");
    drop(client);
}

#[test]
fn answers_to_block_status_count_until_they_are_read() {
    let test = TestServer::start("extents", Engine::Auto, MEMORY);
    let mut client = test.connect("disk0");
    // Every other chunk is data, so that each answer is as long as answers get.
    for n in 0..512 {
        client.write(n << 17, &[1; 512]).unwrap();
    }
    // More than the socket takes.
    ask(&mut client, 256, Command::BlockStatus, 64 << 20);
    test.wait_for("a full socket", |state| state.buffer_memory_used_bytes >= 16 << 10);
    drop(client);
    test.wait_for("all given back", |state| state.connections == 0 && state.buffer_memory_used_bytes == 0);
}

#[test]
fn requests_left_in_a_queue_by_clients_that_go_take_neither_connections_nor_memory() {
    // After the first request of 512 bytes the next turn comes in minutes.
    let text = format!("[server]\nmax_connections = 4\n[tenants.default]\nlimit = {{ bytes_per_s = 1 }}\n{MEMORY}");
    let test = TestServer::start("ask-and-go", Engine::Auto, &text);
    for _ in 0..20 {
        let mut client = test.connect("disk0");
        ask(&mut client, 50, Command::Read, 512);
        test.wait_for("the requests", |state| state.pools[0].queued_requests >= 40);
        drop(client);
        test.wait_for("the end", |state| state.connections == 0 && state.pools[0].queued_requests == 0);
    }
    let state = test.server.state();
    assert_eq!((state.refused_connections_total, state.buffer_memory_used_bytes), (0, 0), "{state:#?}");
}

#[test]
fn want_of_space_does_not_spoil_later_flushes() {
    let Some(disk) = support::SmallDisk::mount("want_of_space_does_not_spoil_later_flushes") else { return };
    for engine in ENGINES {
        let test = TestServer::start("space", engine, &disk.volume());
        let mut client = test.connect("disk0");
        let results: Vec<_> =
            (0..4).map(|n| client.write_with(CommandFlags::FUA, n << 20, &vec![7; 1 << 20])).collect();
        assert!(results.contains(&Err(Errno::NoSpace)), "{results:?}");
        let trim = client.send(Command::Trim, CommandFlags::NONE, 0, 16 << 20, &[]);
        client.wait(trim).unwrap();
        client.write_with(CommandFlags::FUA, 0, &[1; 4096]).unwrap();
        client.write_with(CommandFlags::FUA, 5, &[1; 7]).unwrap();
        client.flush().unwrap();
        test.server.shutdown().unwrap();
    }
}

#[test]
fn a_removed_volume_keeps_no_connection_even_on_the_move() {
    let text = format!("[server]\nworkers = 4\n{MEMORY}");
    let test = TestServer::start("vanish-moving", Engine::Auto, &text);
    let volume = test.config.volumes["disk0"].clone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                test.server.shuffle_connections();
            }
        });
        for _ in 0..30 {
            test.server.create_volume("passing", volume.clone()).unwrap();
            let mut clients: Vec<_> = (0..16).map(|_| test.connect("passing")).collect();
            let started = Instant::now();
            test.server.remove_volume("passing").unwrap();
            // The time after which the server gives up waiting for them is 5 s.
            let took = started.elapsed();
            clients.iter_mut().for_each(Client::wait_for_close);
            assert!(took < Duration::from_secs(4), "connections outlived their volume: {took:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    test.wait_for("all closed", |state| state.connections == 0);
}

#[test]
fn a_pool_that_comes_back_has_its_new_settings() {
    let text = "[pools.second]\nlimit = { iops = 100 }\n[tenants.a]\nweight = 2\n\
        [volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let test = TestServer::start("pool-again", Engine::Auto, text);
    let mut without = test.config.clone();
    without.pools.remove("second");
    without.tenants.get_mut("a").unwrap().weight = 7;
    test.server.reload(without).unwrap();
    let mut again = test.config.clone();
    again.pools.get_mut("second").unwrap().limit.iops = 900;
    again.tenants.get_mut("a").unwrap().weight = 7;
    test.server.reload(again).unwrap();
    let state = test.server.state();
    let pool = state.pools.iter().find(|pool| pool.name == "second").unwrap();
    assert_eq!(pool.limit.iops, Some(900));
    let tenant = pool.tenants.iter().find(|tenant| tenant.name == "a").unwrap();
    assert_eq!(tenant.qos.weight, 7);
}

#[test]
fn what_differs_on_a_pool_is_in_force_there_alone() {
    let text = "[pools.second]\n[tenants.a]\nweight = 2\nlimit.iops = 300\n\
        [tenants.a.pools.second]\nlimit.iops = 100\npriority = \"background\"\n\
        [volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let test = TestServer::start("on-pool", Engine::Auto, text);
    let there = |pool: &str| {
        let state = test.server.state();
        let pool = state.pools.into_iter().find(|known| known.name == pool).unwrap();
        let tenant = pool.tenants.into_iter().find(|tenant| tenant.name == "a").unwrap();
        (tenant.qos.weight, tenant.limit.iops, tenant.qos.priority.clone())
    };
    assert_eq!(there("main"), (2, Some(300), "normal".to_owned()));
    assert_eq!(there("second"), (2, Some(100), "background".to_owned()));
    let mut newer = test.config.clone();
    newer.tenants.get_mut("a").unwrap().pools.get_mut("second").unwrap().weight = Some(9);
    test.server.reload(newer).unwrap();
    assert_eq!(there("main"), (2, Some(300), "normal".to_owned()));
    assert_eq!(there("second"), (9, Some(100), "background".to_owned()));
}

#[test]
fn clients_that_send_far_ahead_are_served_in_full() {
    // 64 clients with 256 KiB each is more than a quarter of the buffer memory.
    let text = format!("[server]\nbuffer_memory = \"32MiB\"\nmax_inflight_per_connection = 4\n{MEMORY}");
    let test = TestServer::start("ahead", Engine::Auto, &text);
    std::thread::scope(|scope| {
        for n in 0..64u64 {
            let mut client = test.connect("disk0");
            scope.spawn(move || {
                let base = n << 20;
                let mut bytes = Vec::new();
                for k in 0..200 {
                    let (offset, payload) = (base + k * 4096, pattern(base + k, n, 4096));
                    bytes.extend(client.encode(k, Command::Write, CommandFlags::NONE, offset, 4096, &payload));
                    client.expect(k, Command::Write, offset, 4096);
                }
                client.stream.write_all(&bytes).unwrap();
                for k in 0..200 {
                    client.wait(k).unwrap();
                }
                for k in 0..200 {
                    client.expect(k, Command::Read, base + k * 4096, 4096);
                    let request = client.encode(k, Command::Read, CommandFlags::NONE, base + k * 4096, 4096, &[]);
                    client.stream.write_all(&request).unwrap();
                    assert_eq!(client.wait(k).unwrap(), pattern(base + k, n, 4096));
                }
            });
        }
    });
    test.wait_for("all closed", |state| state.connections == 0);
    assert_eq!(test.server.state().buffer_memory_used_bytes, 0);
}

#[test]
fn large_writes_that_do_not_go_on_stop_no_other() {
    let text = format!("[server]\nbuffer_memory = \"64MiB\"\n{MEMORY}");
    let test = TestServer::start("headers", Engine::Auto, &text);
    let payload = pattern(0, 6, 32 << 20);
    let greedy: Vec<_> = (0..16)
        .map(|_| {
            let mut client = test.connect("disk0");
            let header = client.encode(0, Command::Write, CommandFlags::NONE, 0, 32 << 20, &[]);
            client.stream.write_all(&header).unwrap();
            client.stream.write_all(&payload[..1000]).unwrap();
            client
        })
        .collect();
    // A slice each, not what they announce.
    test.wait_for("what they can get", |state| state.buffer_memory_used_bytes >= 16 << 16);
    assert!(test.server.state().buffer_memory_used_bytes <= 16 << 20);
    let mut quick = test.connect("disk0");
    for n in 0..50 {
        quick.write(n << 16, &pattern(n, 5, 1 << 16)).unwrap();
        assert_eq!(quick.read(n << 16, 1 << 16).unwrap(), pattern(n, 5, 1 << 16));
    }
    // One that sends what it has announced is served in full.
    let mut honest = greedy.into_iter().next().unwrap();
    honest.expect(0, Command::Write, 0, 32 << 20);
    honest.stream.write_all(&payload[1000..]).unwrap();
    assert!(honest.wait(0).is_ok());
    assert_eq!(honest.read(0, 32 << 20).unwrap(), payload);
    drop((honest, quick));
    test.wait_for("all given back", |state| state.connections == 0 && state.buffer_memory_used_bytes == 0);
}

/// Charges to the default tenant: bytes read, bytes written, and the number of requests that are neither.
fn charged(test: &TestServer) -> (u64, u64, u64) {
    let tenant = &test.server.state().pools[0].tenants[0];
    (tenant.read_bytes_total, tenant.write_bytes_total, tenant.metas_total)
}

fn ask_for(test: &TestServer, command: Command, flags: CommandFlags, length: u64) -> Result<(), Errno> {
    let mut client = test.connect("disk0");
    let cookie = client.send(command, flags, 0, length, &[]);
    client.wait(cookie).map(drop)
}

#[test]
fn zeros_that_must_be_written_are_charged_as_written() {
    const LENGTH: u64 = 8 << 20;
    let test = TestServer::start("zeros-memory", Engine::Auto, MEMORY);
    ask_for(&test, Command::WriteZeroes, CommandFlags::NONE, LENGTH).unwrap();
    test.wait_for("a cheap one", |_| charged(&test) == (0, 0, 1));
    ask_for(&test, Command::WriteZeroes, CommandFlags::NO_HOLE, LENGTH).unwrap();
    test.wait_for("a dear one", |_| charged(&test) == (0, LENGTH, 1));

    // A file system that punches holes, but can zero by writing only.
    const LESS: u64 = 512 << 10;
    let name = "zeros_that_must_be_written_are_charged_as_written";
    let Some(disk) = support::SmallDisk::mount(name) else { return };
    for engine in ENGINES {
        let test = TestServer::start("zeros-file", engine, &format!("[server]\nworkers = 2\n{}", disk.volume()));
        test.connect("disk0").write(0, &[7; 4096]).unwrap();
        let fast = CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
        assert_eq!(ask_for(&test, Command::WriteZeroes, fast, LESS), Err(Errno::NotSupported));
        for round in 1..=2 {
            ask_for(&test, Command::WriteZeroes, CommandFlags::NO_HOLE, LESS).unwrap();
            test.wait_for("a dear one", |_| charged(&test) == (0, 4096 + round * LESS, 0));
        }
        assert_eq!(test.connect("disk0").read(0, 4096).unwrap(), [0; 4096]);
        ask_for(&test, Command::WriteZeroes, CommandFlags::NONE, LESS).unwrap();
        test.wait_for("a cheap one", |_| charged(&test) == (4096, 4096 + 2 * LESS, 1));
        test.server.shutdown().unwrap();
    }
}

#[test]
fn reading_ahead_is_charged_where_it_reads() {
    for (cache, bytes, metas) in [("direct", 0, 1), ("buffered", 1 << 20, 0)] {
        let text = format!("[volumes.disk0]\nsize = \"1MiB\"\ncache = \"{cache}\"\n");
        let test = TestServer::start("ahead-charge", Engine::Auto, &text);
        ask_for(&test, Command::Cache, CommandFlags::NONE, 1 << 20).unwrap();
        test.wait_for("the charge", |_| charged(&test) == (bytes, 0, metas));
    }
}
