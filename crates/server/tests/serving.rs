//! Data stays right while connections move, volumes and promises change, and everything runs on both engines.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_nbd::wire::{Command, CommandFlags, Errno};
use evenkeel_policy::config::{Engine, Workers};
use evenkeel_policy::units::Bytes;
use support::{Client, ENGINES, TestServer, pattern};

/// Reads and writes a region of its own with many requests outstanding, and checks every byte.
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
fn promises_change_under_load_without_dropping_a_connection() {
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
                config.pools.get_mut("main").unwrap().scheduler = evenkeel_policy::config::Scheduler::None;
            }
            let changes = test.server.reload(config).unwrap();
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
fn an_impossible_reload_changes_nothing() {
    let test = TestServer::start("impossible", Engine::Auto, "[volumes.disk0]\nsize = \"8MiB\"\n");
    let mut client = test.connect("disk0");
    let mut config = test.config.clone();
    config.server.workers = Workers::Count(7);
    config.tenants.get_mut("default").unwrap().weight = 9;
    let error = test.server.reload(config).unwrap_err().to_string();
    assert!(error.contains("workers"), "{error}");
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
fn a_tenant_can_be_told_by_its_address() {
    let text = "[tenants.local]\nclients = [\"127.0.0.0/8\"]\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let test = TestServer::start("address", Engine::Auto, text);
    test.connect_tcp("disk0").write(0, &[1; 512]).unwrap();
    test.connect("disk0").read(0, 512).unwrap();
    let state = test.server.state();
    let tenant = |name: &str| state.pools[0].tenants.iter().find(|t| t.name == name).unwrap().clone();
    assert_eq!((tenant("local").writes_total, tenant("local").reads_total), (1, 0));
    assert_eq!((tenant("default").writes_total, tenant("default").reads_total), (0, 1));
}

#[test]
fn a_limit_holds_and_a_light_neighbour_gets_its_half() {
    // A pool of 2,000 IOPS; the heavy tenant always has 32 requests waiting. The device is paced, so the
    // shares are compared within one run, and a late wake-up of the machine is made up for by the pool's burst.
    let text = "[pools.main]\nlimit = { iops = 2000 }\nadmission = \"none\"\n[tenants.heavy]\n[tenants.light]\n\
        [volumes.heavy]\nbackend = \"memory\"\nsize = \"8MiB\"\n[volumes.light]\nbackend = \"memory\"\nsize = \"8MiB\"\n";
    let mut best = 0.0;
    for attempt in 1..=5 {
        let test = TestServer::start("neighbour", Engine::Auto, text);
        let stop = AtomicBool::new(false);
        let run = Duration::from_secs(2);
        let (heavy, light, took) = std::thread::scope(|scope| {
            let heavy = scope.spawn(|| {
                let mut client = test.connect("heavy");
                let mut cookies: std::collections::VecDeque<_> =
                    (0..32).map(|_| client.send(Command::Read, CommandFlags::NONE, 0, 4096, &[])).collect();
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    client.wait(cookies.pop_front().unwrap()).unwrap();
                    cookies.push_back(client.send(Command::Read, CommandFlags::NONE, 0, 4096, &[]));
                    count += 1;
                }
                count
            });
            let mut client = test.connect("light");
            let (start, mut count) = (Instant::now(), 0);
            while start.elapsed() < run {
                client.read(0, 4096).unwrap();
                count += 1;
            }
            let took = start.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            (heavy.join().unwrap(), count, took)
        });
        let (total, share) = (f64::from(heavy + light) / took, f64::from(light) / f64::from(heavy + light));
        println!("attempt {attempt}: {total:.0} IOPS in all, the light tenant has {:.1} %", share * 100.0);
        // At most the limit, its burst of 10 ms, and what was outstanding at either end.
        assert!(total * took <= 2000.0 * (took + 0.010) + 40.0, "the limit was exceeded: {total}");
        best = f64::max(best, share * (total / 2000.0));
        if share >= 0.475 && total >= 1960.0 {
            return;
        }
    }
    panic!("the light tenant never got its share: {best:.3} of the pool at best");
}
