//! Tests of connections under TLS: many requests at once, moves between workers, and clients that misbehave.

use crate::authority;
use crate::support;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::handshakes::{STORM_SHARE, storm};
use authority::{Authority, secure, start_tls};
use evenkeel_nbd::wire::{Command, CommandFlags, Framing};
use evenkeel_policy::config::Engine;
use rustls::ClientConfig;
use support::{Client, ENGINES, PATIENCE, Scratch, Stream, TestServer, config, pattern};

const MEMORY: &str = "[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n";

/// A server with a certificate authority of its own, and the TLS configuration of a client with a certificate of that
/// authority.
fn start(name: &str, engine: Engine, server: &str, volumes: &str) -> (TestServer, Arc<ClientConfig>) {
    let (scratch, authority) = (Scratch::new(name), Authority::new());
    let text = format!("[server]\n{server}\n{}{volumes}", authority.serve(scratch.path(), ""));
    let client = authority.client(&authority.issue("alice"));
    let config = config(&scratch, engine, &text);
    (TestServer::with_config(scratch, config), client)
}

fn connect(test: &TestServer, config: &Arc<ClientConfig>) -> Client {
    let mut stream = secure(test.raw_tcp(), config);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    Client::greeted(Stream::Tls(Box::new(stream)), "disk0", Framing::Structured)
}

#[test]
fn small_and_large_requests_come_through_whole_on_both_engines() {
    for engine in ENGINES {
        for volumes in [MEMORY, "[volumes.disk0]\nsize = \"64MiB\"\n"] {
            let (test, config) = start("tls-content", engine, "", volumes);
            let mut client = connect(&test, &config);
            for (n, len) in [1, 511, 4096, 16_384, 16_385, 100_000, 1 << 20, 20 << 20].into_iter().enumerate() {
                let data = pattern(n as u64, 1, len);
                client.write(n as u64 * 512, &data).unwrap();
                assert!(client.read(n as u64 * 512, len as u64).unwrap() == data, "{len} bytes");
            }
            client.flush().unwrap();
            client.disconnect();
            test.wait_for("the connection gone", |state| state.connections == 0);
        }
    }
}

#[test]
fn a_storm_of_handshakes_takes_a_share_of_a_processor() {
    let (test, config) = start("tls-storm", Engine::Auto, "busy_poll = \"0s\"\nworkers = 2", MEMORY);
    let share = storm(
        &test,
        |done| {
            let mut stream = secure(test.raw_tcp_from(1)?, &config);
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock)?;
            }
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        },
        || {
            let mut stream = secure(test.raw_tcp_from(2).unwrap(), &config);
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
            Client::greeted(Stream::Tls(Box::new(stream)), "disk0", Framing::Structured)
        },
    );
    assert!(share < STORM_SHARE, "{share} of a processor");
}

#[test]
fn many_requests_at_once_are_answered_while_the_connection_moves() {
    let (test, config) = start("tls-moving", Engine::Auto, "workers = 2", MEMORY);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..3u64 {
            let mut client = connect(&test, &config);
            let stop = &stop;
            scope.spawn(move || {
                let at = |round: u64| (n << 20) + round % 16 * 65_536;
                let mut open: VecDeque<(u64, u64)> = VecDeque::new();
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    let data = pattern(n, round, 50_000);
                    client.write(at(round), &data).unwrap();
                    let cookie = client.send(Command::Read, CommandFlags::NONE, at(round), 50_000, &[]);
                    open.push_back((cookie, round));
                    if open.len() > 12 {
                        let (cookie, round) = open.pop_front().unwrap();
                        assert!(client.wait(cookie).unwrap() == pattern(n, round, 50_000), "round {round}");
                    }
                    round += 1;
                }
                for (cookie, round) in open {
                    assert!(client.wait(cookie).unwrap() == pattern(n, round, 50_000), "round {round}");
                }
                assert!(round > 20, "only {round} rounds");
            });
        }
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            test.server.shuffle_connections();
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_client_that_takes_no_replies_delays_no_other_and_holds_bounded_memory() {
    let (test, config) = start(
        "tls-slow",
        Engine::Auto,
        "workers = 1\nbuffer_memory = \"32MiB\"",
        "[volumes.disk0]\nsize = \"64MiB\"\n",
    );
    let mut slow: Vec<Client> = (0..4).map(|_| connect(&test, &config)).collect();
    for client in &mut slow {
        let requests: Vec<u8> =
            (0..200).flat_map(|n| client.encode(n, Command::Read, CommandFlags::NONE, 0, 1 << 20, &[])).collect();
        client.stream.write_all(&requests).unwrap();
    }
    let mut quick = connect(&test, &config);
    for n in 0..50 {
        quick.write(n * 4096, &pattern(n, 1, 4096)).unwrap();
        let used = test.server.state().buffer_memory_used_bytes;
        assert!(used <= 32 << 20, "{used}");
    }
}

/// All bytes that the server sends until it closes the connection.
fn last_words(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = Vec::new();
    // A reset says the same as an end.
    let _ = stream.read_to_end(&mut all);
    all
}

#[test]
fn who_starts_tls_and_dawdles_is_closed_in_time() {
    // Long enough for what they do before they dawdle.
    let (test, config) = start("tls-late", Engine::Auto, "handshake_timeout = \"2s\"", MEMORY);
    let silent = start_tls(test.raw_tcp());
    // Done with TLS, and then nothing.
    let mut idle = secure(test.raw_tcp(), &config);
    while idle.conn.is_handshaking() {
        idle.conn.complete_io(&mut idle.sock).unwrap();
    }
    // A byte of a greeting now and then is no progress either.
    let mut trickling = start_tls(test.raw_tcp());
    let trickle = std::thread::spawn(move || {
        let record = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
        record
            .iter()
            .cycle()
            .take_while(|byte| {
                std::thread::sleep(Duration::from_millis(20));
                trickling.write_all(&[**byte]).is_ok()
            })
            .count()
    });
    let said = last_words(silent);
    assert!(said.is_empty() || said[0] == 21, "neither silence nor an alert: {said:?}");
    last_words(idle.sock);
    assert!(trickle.join().unwrap() < 1000);
    test.wait_for("all gone", |state| state.connections == 0);
}

#[test]
fn what_is_no_tls_ends_the_connection_with_an_alert() {
    let (test, _) = start("tls-garbage", Engine::Auto, "", MEMORY);
    for garbage in [&b"IHAVEOPT\0\0\0\x03\0\0\0\0"[..], &[0xff; 70_000], &[22, 3, 1, 0xff, 0xff]] {
        let mut stream = start_tls(test.raw_tcp());
        let _ = stream.write_all(garbage);
        let said = last_words(stream);
        assert!(said.is_empty() || said[0] == 21, "neither silence nor an alert: {said:?}");
    }
    // Slipped in behind STARTTLS: not answered.
    let mut stream = test.raw_tcp();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(b"\0\0\0\x01IHAVEOPT\0\0\0\x05\0\0\0\0IHAVEOPT\0\0\0\x03\0\0\0\0").unwrap();
    assert_eq!(last_words(stream).len(), 20, "the answer to STARTTLS and nothing more");
    test.wait_for("all gone", |state| state.connections == 0);
}

#[test]
fn a_graceful_stop_answers_what_was_asked() {
    let (test, config) = start("tls-drain", Engine::Auto, "", MEMORY);
    let mut client = connect(&test, &config);
    let data = pattern(1, 1, 1 << 20);
    client.write(0, &data).unwrap();
    let cookies: Vec<_> = (0..8).map(|_| client.send(Command::Read, CommandFlags::NONE, 0, 1 << 20, &[])).collect();
    test.wait_for("all of it asked", |state| {
        state.pools[0].tenants.iter().map(|tenant| tenant.reads_total).sum::<u64>() >= 1
    });
    let server = test.server;
    std::thread::scope(|scope| {
        scope.spawn(|| server.shutdown().unwrap());
        client.wait_for_close();
    });
    let answered = cookies.iter().filter(|cookie| client.answers.done.contains_key(cookie)).count();
    assert!(answered >= 1, "what was begun is answered");
    for cookie in cookies {
        if let Some(result) = client.answers.done.remove(&cookie) {
            assert!(result.unwrap() == data);
        }
    }
}

#[test]
fn a_reload_during_a_handshake_counts_for_who_ends_it() {
    for still_trusted in [true, false] {
        let (test, config) = start("tls-reload", Engine::Auto, "", MEMORY);
        let mut stream = secure(test.raw_tcp(), &config);
        stream.sock.set_read_timeout(Some(PATIENCE)).unwrap();
        // All but the client's last words, with its certificate.
        stream.conn.write_tls(&mut stream.sock).unwrap();
        while stream.conn.is_handshaking() {
            // A read with a timeout is not restarted after a signal, such as one that stops the process.
            match stream.conn.read_tls(&mut stream.sock) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.unwrap(),
            };
            stream.conn.process_new_packets().unwrap();
        }
        let other = Authority::new();
        let renewed =
            if still_trusted { test.scratch.path().join("server.pem") } else { test.scratch.path().join("ca.pem") };
        let content = if still_trusted { std::fs::read_to_string(&renewed).unwrap() + "\n" } else { other.certificate };
        std::fs::write(renewed, content).unwrap();
        let applied = test.server.reload(test.config.clone()).unwrap();
        assert_eq!(applied.changes, ["certificates changed"]);
        // Each worker has taken it up when it has served others.
        for _ in 0..8 {
            let _ = test.raw_tcp().read_exact(&mut [0; 18]);
        }
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).unwrap();
        }
        if still_trusted {
            Client::greeted(Stream::Tls(Box::new(stream)), "disk0", Framing::Structured).read(0, 512).unwrap();
            continue;
        }
        let _ = stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x05disk0");
        let said = stream.read(&mut [0; 512]);
        assert!(!matches!(said, Ok(1..)), "admitted by an authority that is trusted no more");
        test.wait_for("closed", |state| state.refused_clients_total["tls_bad_certificate"] == 1);
    }
}

#[test]
fn a_command_about_something_else_does_not_read_certificates_again() {
    let (test, _) = start("tls-command", Engine::Auto, "", MEMORY);
    std::fs::write(test.scratch.path().join("server.pem"), "half a renew").unwrap();
    let mut config = test.config.clone();
    config.tenants.get_mut("default").unwrap().weight = 3;
    assert_eq!(test.server.put(config.clone()).unwrap().changes.len(), 1);
    assert_eq!(test.server.config().tenants["default"].weight, 3);
    assert!(test.server.reload(config).is_err(), "a reload is for the files");
}
