//! Tests of connections that move between workers while they have requests in flight.

use crate::support;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenkeel_nbd::wire::{Command, CommandFlags};
use evenkeel_policy::config::{Engine, Workers};
use support::{Client, ENGINES, TestServer, pattern};

const TWO_WORKERS: &str = "[server]\nworkers = 2\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n";

/// Keeps `depth` reads outstanding until `stop` is set.
fn hammer(client: &mut Client, depth: u64, stop: &AtomicBool) {
    let mut cookies: VecDeque<u64> =
        (0..depth).map(|n| client.send(Command::Read, CommandFlags::NONE, n * 4096, 4096, &[])).collect();
    while !stop.load(Ordering::Relaxed) {
        client.wait(cookies.pop_front().unwrap()).unwrap();
        cookies.push_back(client.send(Command::Read, CommandFlags::NONE, 0, 4096, &[]));
    }
    cookies.into_iter().for_each(|cookie| _ = client.wait(cookie).unwrap());
}

#[test]
fn two_heavy_connections_on_one_worker_are_parted() {
    let test = TestServer::start("parted", Engine::Auto, TWO_WORKERS);
    // Spread by their number, so that the first and the third share a worker; the others do nothing.
    let mut clients: Vec<Client> = (0..4).map(|_| test.connect("disk0")).collect();
    assert_eq!(test.server.state().workers.iter().map(|worker| worker.connections).collect::<Vec<_>>(), [2, 2]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (first, rest) = clients.split_at_mut(2);
        for client in [&mut first[0], &mut rest[0]] {
            let stop = &stop;
            scope.spawn(move || hammer(client, 32, stop));
        }
        test.wait_for("a move", |state| state.placement.moves_total > 0);
        stop.store(true, Ordering::Relaxed);
    });
    let state = test.server.state();
    assert_eq!(state.placement.method, "waits");
    assert_eq!(state.workers.iter().map(|worker| worker.connections).sum::<u64>(), 4);
    for client in &mut clients {
        client.write(0, &pattern(1, 1, 512)).unwrap();
        assert_eq!(client.read(0, 512).unwrap(), pattern(1, 1, 512));
    }
}

#[test]
fn methods_that_never_move_leave_connections_where_they_are() {
    let text = TWO_WORKERS.replace("workers = 2", "workers = 2\nplacement = \"least_connections\"");
    let test = TestServer::start("static", Engine::Auto, &text);
    let clients: Vec<Client> = (0..5).map(|_| test.connect("disk0")).collect();
    let counts = || test.server.state().workers.iter().map(|worker| worker.connections).collect::<Vec<_>>();
    assert_eq!(counts(), [3, 2]);
    drop(clients);
    test.wait_for("all gone", |state| state.connections == 0);
    assert_eq!(test.server.state().placement.reason, "static");
    let _next = test.connect("disk0");
    assert_eq!(counts(), [1, 0]);
}

fn connect(test: &TestServer, n: u64) -> Client {
    if n.is_multiple_of(2) { test.connect("disk0") } else { test.connect_tcp("disk0") }
}

/// Writes the first 64 KiB of the `n`th MiB of the volume with 16 requests at once, and reads them back, until `stop` is set.
/// Adds the number of writes to `written`.
fn verify(client: &mut Client, n: u64, stop: &AtomicBool, written: &AtomicU64) {
    let at = |place: usize| (n << 20) + place as u64 * 4096;
    for round in 0.. {
        let data: Vec<_> = (0..16).map(|place| pattern(round * 16 + place, n, 4096)).collect();
        let write =
            |client: &mut Client, place| client.send(Command::Write, CommandFlags::NONE, at(place), 4096, &data[place]);
        let cookies: Vec<_> = (0..16).map(|place| write(client, place)).collect();
        cookies.into_iter().for_each(|cookie| _ = client.wait(cookie).unwrap());
        let read = |client: &mut Client, place| client.send(Command::Read, CommandFlags::NONE, at(place), 4096, &[]);
        let cookies: Vec<_> = (0..16).map(|place| read(client, place)).collect();
        for (cookie, data) in cookies.into_iter().zip(&data) {
            assert_eq!(&client.wait(cookie).unwrap(), data);
        }
        written.fetch_add(16, Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[test]
fn ten_thousand_moves_lose_nothing() {
    const CLIENTS: u64 = 8;
    const MOVES: u64 = 10_000;
    for engine in ENGINES {
        let text = "[server]\nworkers = 3\n[volumes.disk0]\nsize = \"16MiB\"\n";
        let test = TestServer::start("moves", engine, text);
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for n in 0..CLIENTS {
                let (test, stop, written) = (&test, &stop, &written);
                scope.spawn(move || verify(&mut connect(test, n), n, stop, written));
            }
            test.wait_for("all connected", |state| state.connections == CLIENTS);
            for moved in 0..MOVES / CLIENTS {
                test.server.shuffle_connections();
                if moved.is_multiple_of(8) {
                    // So that the moves meet requests.
                    let before = written.load(Ordering::Relaxed);
                    test.wait_for("progress", |_| written.load(Ordering::Relaxed) > before);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        test.wait_for("all closed", |state| state.connections == 0 && state.buffer_memory_used_bytes == 0);
    }
}

fn set_workers(test: &TestServer, workers: u32) {
    let mut config = evenkeel_policy::Config::clone(&test.server.config());
    config.server.workers = Workers::Count(workers);
    let applied = test.server.reload(config).unwrap();
    assert_eq!(applied.changes, ["server.workers changed"]);
}

#[test]
fn workers_come_and_go_and_nothing_is_lost() {
    const CLIENTS: u64 = 8;
    for (engine, backend) in ENGINES.into_iter().flat_map(|engine| [(engine, "file"), (engine, "memory")]) {
        let text = format!(
            "[server]\nworkers = 4\nmax_connections = 256\n[volumes.disk0]\nsize = \"16MiB\"\nbackend = \"{backend}\"\n"
        );
        let test = TestServer::start("workers", engine, &text);
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (test, stop, written) = (&test, &stop, &written);
            for n in 0..CLIENTS {
                scope.spawn(move || verify(&mut connect(test, n), n, stop, written));
            }
            // Others come, ask, and hang up with requests in flight.
            for n in CLIENTS..CLIENTS + 2 {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let mut client = connect(test, n);
                        let read =
                            |place: u64| client.send(Command::Read, CommandFlags::NONE, place << 16, 1 << 16, &[]);
                        let cookies: Vec<_> = (0..32).map(read).collect();
                        // So that they do not come faster than they are served.
                        client.wait(cookies[0]).unwrap();
                        drop(client);
                    }
                });
            }
            test.wait_for("all connected", |state| state.connections >= CLIENTS);
            for round in 0..10 {
                for workers in [1, 3, 8, 2, 4] {
                    set_workers(test, workers);
                    // Some changes come while the workers of the last one still leave.
                    if round % 2 == 0 {
                        let before = written.load(Ordering::Relaxed);
                        test.wait_for("progress", |_| written.load(Ordering::Relaxed) > before + 16);
                        test.wait_for("those that are too many have left", |state| {
                            state.workers.len() == workers as usize
                                && state.workers.iter().all(|worker| !worker.leaving)
                        });
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        test.wait_for("all closed, and those that are too many have left", |state| {
            state.connections == 0
                && state.buffer_memory_used_bytes == 0
                && state.workers.len() == 4
                && state.workers.iter().all(|worker| !worker.leaving && worker.connections == 0)
        });
        let state = test.server.state();
        assert_eq!(state.workers.iter().map(|worker| worker.connections).collect::<Vec<_>>(), [0; 4]);
        assert_eq!(state.refused_connections_total, 0, "those that hang up give their places back");
        let received: u64 = state.workers.iter().map(|worker| worker.requests_total).sum();
        assert!(received > 0 && state.placement.reason != "static", "{state:?}");
    }
}

#[test]
fn newcomers_go_to_workers_that_stay_and_to_new_ones() {
    let test = TestServer::start("newcomers", Engine::Auto, TWO_WORKERS);
    let counts = || test.server.state().workers.iter().map(|worker| worker.connections).collect::<Vec<_>>();
    let mut clients: Vec<Client> = (0..6).map(|n| connect(&test, n)).collect();
    assert_eq!(counts(), [3, 3]);
    set_workers(&test, 1);
    test.wait_for("one is left", |state| state.workers.len() == 1 && state.workers[0].connections == 6);
    set_workers(&test, 3);
    assert_eq!(test.server.state().placement.reason, "workers_changed");
    clients.extend((0..4).map(|n| connect(&test, n)));
    assert_eq!(counts(), [6, 2, 2]);
    for client in &mut clients {
        assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
    }
    assert_eq!(test.server.state().connections, 10);
}
