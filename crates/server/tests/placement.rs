//! Connections move between workers while they serve.

mod support;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenkeel_nbd::wire::{Command, CommandFlags};
use evenkeel_policy::config::Engine;
use support::{Client, ENGINES, TestServer, pattern};

const TWO_WORKERS: &str = "[server]\nworkers = 2\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n";

/// Keeps `depth` requests outstanding until told to stop.
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
    assert_eq!(state.placement.method, "descent");
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
                scope.spawn(move || {
                    let mut client = if n % 2 == 0 { test.connect("disk0") } else { test.connect_tcp("disk0") };
                    let region = n << 20;
                    for round in 0.. {
                        // Several writes in flight, then all of them read back, while the connection moves.
                        let data: Vec<_> = (0..16).map(|place| pattern(round * 16 + place, n, 4096)).collect();
                        let at = |place: usize| region + place as u64 * 4096;
                        let send = |client: &mut Client, place: usize| {
                            client.send(Command::Write, CommandFlags::NONE, at(place), 4096, &data[place])
                        };
                        let cookies: Vec<_> = (0..16).map(|place| send(&mut client, place)).collect();
                        cookies.into_iter().for_each(|cookie| _ = client.wait(cookie).unwrap());
                        let read = |client: &mut Client, place| {
                            client.send(Command::Read, CommandFlags::NONE, at(place), 4096, &[])
                        };
                        let cookies: Vec<_> = (0..16).map(|place| read(&mut client, place)).collect();
                        for (cookie, data) in cookies.into_iter().zip(&data) {
                            assert_eq!(&client.wait(cookie).unwrap(), data);
                        }
                        written.fetch_add(16, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
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
