//! Tests that data stays correct while connections move and volumes and guarantees change, with both engines.

use crate::support;

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_nbd::wire::{Command, CommandFlags, Errno};
use evenkeel_policy::config::Engine;
use evenkeel_policy::units::Bytes;
use support::{Client, ENGINES, Stream, TestServer, pattern};

/// Writes and reads 256 KiB from `base` on with 32 requests outstanding, and checks every byte, until `stop` is set. Returns
/// the number of rounds.
fn hammer(mut client: Client, base: u64, stop: &AtomicBool) -> u64 {
    const BLOCKS: u64 = 32;
    const BLOCK: u64 = 8192;
    let mut generation = 0;
    while !stop.load(Ordering::Relaxed) {
        generation += 1;
        let writes: Vec<_> = (0..BLOCKS)
            .map(|n| {
                let offset = base + n * BLOCK;
                client.send(
                    Command::Write,
                    CommandFlags::NONE,
                    offset,
                    BLOCK,
                    &pattern(offset, generation, BLOCK as usize),
                )
            })
            .collect();
        for cookie in writes {
            client.wait(cookie).unwrap();
        }
        let reads: Vec<_> =
            (0..BLOCKS).map(|n| client.send(Command::Read, CommandFlags::NONE, base + n * BLOCK, BLOCK, &[])).collect();
        for (n, cookie) in (0..).zip(reads) {
            let offset = base + n * BLOCK;
            assert_eq!(client.wait(cookie).unwrap(), pattern(offset, generation, BLOCK as usize), "offset {offset}");
        }
    }
    generation
}

#[test]
fn connections_move_between_workers_with_requests_in_flight() {
    for engine in ENGINES {
        for text in ["[volumes.disk0]\nsize = \"64MiB\"\n", "[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n"]
        {
            let text = format!("[server]\nworkers = 4\n{text}");
            let test = TestServer::start("move", engine, &text);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let hammers: Vec<_> = (0..6)
                    .map(|n| {
                        let client = if n % 2 == 0 { test.connect("disk0") } else { test.connect_tcp("disk0") };
                        let stop = &stop;
                        scope.spawn(move || hammer(client, n << 20, stop))
                    })
                    .collect();
                for _ in 0..2000 {
                    test.server.shuffle_connections();
                    std::thread::sleep(Duration::from_micros(300));
                }
                stop.store(true, Ordering::Relaxed);
                for hammer in hammers {
                    assert!(hammer.join().unwrap() > 0);
                }
            });
            test.wait_for("all closed", |state| state.connections == 0);
            assert_eq!(test.server.state().buffer_memory_used_bytes, 0);
        }
    }
}

#[test]
fn a_graceful_stop_answers_connections_on_their_way_between_workers() {
    const READS: u64 = 8;
    let text = "[server]\nworkers = 4\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    for round in 0..40 {
        let test = TestServer::start("stop-moving", Engine::Auto, text);
        let mut clients: Vec<_> = (0..2).map(|_| test.connect_tcp("disk0")).collect();
        for client in &mut clients {
            for _ in 0..READS {
                client.send(Command::Read, CommandFlags::NONE, 0, 1 << 20, &[]);
            }
        }
        let asked = READS * clients.len() as u64;
        test.wait_for("all of it asked", |state| {
            state.pools[0].tenants.iter().map(|tenant| tenant.reads_total).sum::<u64>() == asked
        });
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    test.server.shuffle_connections();
                }
            });
            for client in &mut clients {
                scope.spawn(|| client.wait_for_close());
            }
            test.server.shutdown().unwrap();
            stopped.store(true, Ordering::Relaxed);
        });
        let answered: usize = clients.iter().map(|client| client.answers.done.len()).sum();
        assert_eq!(answered as u64, asked, "round {round}");
    }
}

/// Requests dispatched by reservation go to the kernel with a raised I/O priority, which the kernel must accept from both
/// engines.
#[test]
fn what_a_reservation_is_owed_comes_through_whole_on_both_engines() {
    for engine in ENGINES {
        let text = "[tenants.default]\nreservation.iops = 1_000_000\n[volumes.disk0]\nsize = \"8MiB\"\n";
        let test = TestServer::start("reserved", engine, text);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let hammers: Vec<_> = (0..2)
                .map(|n| {
                    let (client, stop) = (test.connect("disk0"), &stop);
                    scope.spawn(move || hammer(client, n << 20, stop))
                })
                .collect();
            test.wait_for("reserved requests", |state| {
                state.pools[0].tenants.iter().map(|tenant| tenant.by_reservation_total).sum::<u64>() > 1000
            });
            stop.store(true, Ordering::Relaxed);
            hammers.into_iter().for_each(|hammer| assert!(hammer.join().unwrap() > 0));
        });
    }
}

/// TCP resets a socket that is closed while requests arrive, and drops the bytes that the client has not received; the server
/// must avoid that.
#[test]
fn a_graceful_stop_answers_a_client_that_asks_on() {
    const READS: u64 = 4;
    for round in 0..10 {
        let text = "[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
        let test = TestServer::start("asks-on", Engine::Auto, text);
        let mut client = test.connect_tcp("disk0");
        let first: Vec<_> =
            (0..READS).map(|_| client.send(Command::Read, CommandFlags::NONE, 0, 1 << 20, &[])).collect();
        test.wait_for("all of it asked", |state| {
            state.pools[0].tenants.iter().map(|tenant| tenant.reads_total).sum::<u64>() == READS
        });
        let Stream::Tcp(stream) = &client.stream else { unreachable!() };
        let mut asks_on = stream.try_clone().unwrap();
        let later: Vec<_> = (READS + 1000..50_000)
            .map(|cookie| {
                client.expect(cookie, Command::Flush, 0, 0);
                client.encode(cookie, Command::Flush, CommandFlags::NONE, 0, 0, &[])
            })
            .collect();
        std::thread::scope(|scope| {
            scope.spawn(|| test.server.shutdown().unwrap());
            scope.spawn(move || {
                let _ = later.iter().try_for_each(|request| asks_on.write_all(request));
            });
            client.wait_for_close();
            // Ends the one that asks on.
            let Stream::Tcp(stream) = &client.stream else { unreachable!() };
            let _ = stream.shutdown(Shutdown::Both);
        });
        let answered = first.iter().filter(|cookie| client.answers.done.contains_key(cookie)).count();
        assert_eq!(answered as u64, READS, "round {round}");
    }
}

#[test]
fn looking_for_events_before_sleeping_changes_nothing_but_time() {
    for (engine, busy_poll) in ENGINES.into_iter().flat_map(|e| [0, 200, 1000].map(|us| (e, us))) {
        let scratch = support::Scratch::new("looking");
        let text = "[server]\nworkers = 2\n[pools.paced]\nlimit = { iops = 3000 }\n[volumes.disk0]\nsize = \"8MiB\"\n\
            [volumes.paced]\nbackend = \"memory\"\npool = \"paced\"\nsize = \"8MiB\"\n";
        let mut config = support::config(&scratch, engine, text);
        config.server.busy_poll = evenkeel_policy::units::Duration::from_micros(busy_poll);
        let test = TestServer::with_config(scratch, config);
        let stop = AtomicBool::new(false);
        let started = Instant::now();
        std::thread::scope(|scope| {
            let hammers: Vec<_> = ["disk0", "disk0", "paced"]
                .into_iter()
                .zip(0..)
                .map(|(export, n)| {
                    let (client, stop) = (test.connect(export), &stop);
                    scope.spawn(move || hammer(client, n << 20, stop))
                })
                .collect();
            // Each round of the paced one is 64 requests, from wherever its connection is.
            test.wait_for("some rounds", |state| {
                test.server.shuffle_connections();
                state.pools.iter().flat_map(|pool| &pool.tenants).map(|t| t.writes_total).min() >= Some(100)
            });
            stop.store(true, Ordering::Relaxed);
            hammers.into_iter().for_each(|hammer| assert!(hammer.join().unwrap() > 0));
        });
        test.wait_for("all closed", |state| state.connections == 0 && state.buffer_memory_used_bytes == 0);
        let state = test.server.state();
        let paced = &state.pools.iter().find(|pool| pool.name == "paced").unwrap().tenants[0];
        let most = 3000.0 * (started.elapsed().as_secs_f64() + 0.010) + 1.0;
        let served = paced.reads_total + paced.writes_total;
        assert!(served as f64 <= most, "the limit was exceeded: {served} of {most}");
    }
}

#[test]
fn guarantees_change_under_load_without_dropping_a_connection() {
    let text = "[tenants.a]\nweight = 3\n[tenants.b]\n[volumes.a]\nbackend = \"memory\"\nsize = \"8MiB\"\n[volumes.b]\nbackend = \"memory\"\nsize = \"8MiB\"\n";
    let test = TestServer::start("reload", Engine::Auto, text);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let hammers: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|name| {
                let (client, stop) = (test.connect(name), &stop);
                scope.spawn(move || hammer(client, 0, stop))
            })
            .collect();
        for round in 0..100u32 {
            let mut config = test.config.clone();
            if round % 2 == 0 {
                // Its connections fall to the default tenant, with what they have queued.
                config.tenants.remove("b");
                config.tenants.get_mut("a").unwrap().weight = round + 1;
                config.pools.get_mut("main").unwrap().tuning.scheduler = evenkeel_policy::config::Scheduler::None;
            }
            let changes = test.server.reload(config).unwrap().changes;
            assert!(!changes.is_empty());
            std::thread::sleep(Duration::from_millis(3));
        }
        stop.store(true, Ordering::Relaxed);
        for hammer in hammers {
            assert!(hammer.join().unwrap() > 0);
        }
    });
    assert_eq!(test.server.state().accepted_connections_total, 2);
}

#[test]
fn a_sparse_volume_shows_what_is_allocated_to_it() {
    let text = "[volumes.disk0]\nsize = \"64MiB\"\n[volumes.m]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let test = TestServer::start("allocated", Engine::Auto, text);
    test.wait_for("a measurement", |state| state.volumes.iter().any(|volume| volume.space.is_some()));
    let volumes = test.server.state().volumes;
    let space = volumes[0].space.as_ref().unwrap();
    assert!(space.allocated_bytes < 32 << 20 && space.capacity_bytes > 0, "{space:?}");
    assert_eq!(volumes[1].space, None, "memory has no file system");
}

#[test]
fn each_volume_of_a_tenant_is_a_tenant_of_its_own() {
    let volumes = "[volumes.db-1]\nbackend = \"memory\"\nsize = \"1MiB\"\n[volumes.db-2]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let text = format!("[tenants.db]\neach = true\nweight = 3\nmatch = [\"volume:db-*\"]\n{volumes}");
    let test = TestServer::start("each", Engine::Auto, &text);
    let tenants = || -> Vec<(String, u32, u64)> {
        let tenants = test.server.state().pools.swap_remove(0).tenants;
        tenants.into_iter().map(|tenant| (tenant.name, tenant.qos.weight, tenant.reads_total)).collect()
    };
    let row = |name: &str, weight, reads| (name.to_owned(), weight, reads);
    let mut client = test.connect("db-2");
    client.read(0, 4096).unwrap();
    test.wait_for("the read", |state| state.pools[0].tenants.iter().any(|tenant| tenant.reads_total == 1));
    assert_eq!(tenants(), [row("db/db-1", 3, 0), row("db/db-2", 3, 1), row("default", 1, 0)]);
    let owners: Vec<String> = test.server.state().volumes.into_iter().map(|volume| volume.tenant).collect();
    assert_eq!(owners, ["db/db-1", "db/db-2"]);
    // Together again, while a client is connected.
    let mut config = test.config.clone();
    config.tenants.get_mut("db").unwrap().each = false;
    test.server.reload(config).unwrap();
    client.read(0, 4096).unwrap();
    test.wait_for("a read of the tenant", |state| {
        state.pools[0].tenants.iter().any(|tenant| tenant.name == "db" && tenant.reads_total == 1)
    });
    assert_eq!(tenants(), [row("db", 3, 1), row("default", 1, 0)]);
}

#[test]
fn an_impossible_reload_changes_nothing() {
    let test = TestServer::start("impossible", Engine::Auto, "[volumes.disk0]\nsize = \"8MiB\"\n");
    let mut client = test.connect("disk0");
    let mut config = test.config.clone();
    config.server.max_connections = 7;
    config.tenants.get_mut("default").unwrap().weight = 9;
    let error = test.server.reload(config).unwrap_err().to_string();
    assert!(error.contains("max_connections"), "{error}");
    assert_eq!(test.server.config().tenants["default"].weight, 1);

    let mut config = test.config.clone();
    let mut volume = config.volumes["disk0"].clone();
    volume.path = Some("/proc/no/such/file".into());
    config.volumes.insert("new".into(), volume);
    config.tenants.get_mut("default").unwrap().weight = 9;
    assert!(test.server.reload(config).is_err());
    assert_eq!(test.server.config().tenants["default"].weight, 1);
    assert!(client.read(0, 512).is_ok());
}

#[test]
fn volumes_appear_grow_and_vanish_while_others_serve() {
    for engine in ENGINES {
        let test = TestServer::start("volumes", engine, "[volumes.disk0]\nsize = \"1MiB\"\n");
        let mut volume = test.config.volumes["disk0"].clone();
        volume.size = Some(Bytes(2 << 20));
        test.server.create_volume("more", volume.clone()).unwrap();
        assert!(test.server.create_volume("more", volume).is_err());
        let mut client = test.connect("more");
        assert_eq!(client.connected.size, 2 << 20);
        assert_eq!(client.read(2 << 20, 1), Err(Errno::Invalid));
        test.server.grow_volume("more", Bytes(4 << 20)).unwrap();
        assert!(test.server.grow_volume("more", Bytes(1 << 20)).is_err());
        client.write(3 << 20, &[7; 100]).unwrap();
        assert_eq!(test.connect("more").connected.size, 4 << 20);
        test.server.remove_volume("more").unwrap();
        let image = std::fs::read(test.scratch.path().join("more.img")).unwrap();
        assert_eq!((image.len(), image[3 << 20]), (4 << 20, 7));
    }
}

#[test]
fn a_read_only_volume_refuses_writes_and_leaves_the_file_alone() {
    let test = TestServer::start("ro", Engine::Auto, "[volumes.disk0]\nsize = \"1MiB\"\n");
    test.connect("disk0").write(0, &[1; 512]).unwrap();
    test.server.shutdown().unwrap();
    let mut config = test.config.clone();
    config.server.read_only = true;
    drop(test.server);
    let path = test.scratch.path().join("disk0.img");
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    let server = evenkeel_server::Server::start(config, evenkeel_server::Start::default()).unwrap();
    let stream = std::os::unix::net::UnixStream::connect(test.scratch.path().join("nbd.sock")).unwrap();
    let mut client = Client::new(support::Stream::Unix(stream), "disk0", evenkeel_nbd::wire::Framing::Structured);
    assert_eq!(client.write(0, &[2; 512]), Err(Errno::Perm));
    assert_eq!(client.read(0, 512).unwrap(), [1; 512]);
    server.shutdown().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
}

#[test]
fn a_tenant_can_be_known_by_its_address() {
    let text = "[tenants.local]\nmatch = [\"127.0.0.0/8\"]\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let test = TestServer::start("address", Engine::Auto, text);
    test.connect_tcp("disk0").write(0, &[1; 512]).unwrap();
    test.connect("disk0").read(0, 512).unwrap();
    let state = test.server.state();
    let tenant = |name: &str| state.pools[0].tenants.iter().find(|t| t.name == name).unwrap().clone();
    assert_eq!((tenant("local").writes_total, tenant("local").reads_total), (1, 0));
    assert_eq!((tenant("default").writes_total, tenant("default").reads_total), (0, 1));
}
