//! Clients that never get on with it: bounds in number and time, with real sockets.

use crate::support;

use std::io::{Read, Write};
use std::time::Duration;

use evenkeel_policy::config::Engine;
use support::{PATIENCE, TestServer};

fn start(name: &str, server: &str) -> TestServer {
    let text = format!("[server]\n{server}\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    TestServer::start(name, Engine::Auto, &text)
}

/// Whether the server greets; otherwise it has closed.
fn is_greeted(mut stream: &std::net::TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The kernel may interrupt a read, see `support::Stream`. This one goes on then.
    stream.read_exact(&mut [0; 18]).is_ok()
}

fn refused(test: &TestServer, reason: &str) -> u64 {
    test.server.state().refused_clients_total[reason]
}

#[test]
fn one_client_has_its_share_of_unfinished_handshakes_and_no_more() {
    let test = start("handshakes-share", "max_handshakes = 5\nmax_handshakes_per_client = 3");
    let mut idle: Vec<_> = (0..3).map(|_| test.raw_tcp()).collect();
    assert!(idle.iter().all(is_greeted));
    assert!(!is_greeted(&test.raw_tcp()), "the fourth of one address");
    assert_eq!(refused(&test, "handshakes_of_client"), 1);
    // Another client, here the user of the Unix socket, still gets in, until there are too many of all.
    let local: Vec<_> = (0..2).map(|_| test.raw_unix()).collect();
    for mut stream in &local {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
    }
    let mut one_more = test.raw_unix();
    one_more.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(one_more.read_exact(&mut [0; 18]).is_err(), "the sixth of all");
    assert_eq!(refused(&test, "handshakes"), 1);
    // Places of those that go or choose a volume are free again.
    idle.pop();
    test.wait_for("the place given back", |state| state.connections == 4);
    let _served: Vec<_> = (0..10).map(|_| test.connect_tcp("disk0")).collect();
    assert!(is_greeted(&test.raw_tcp()));
    assert_eq!((refused(&test, "handshakes_of_client"), refused(&test, "handshakes")), (1, 1));
}

#[test]
fn what_trickles_makes_no_handshake_longer() {
    let test = start("handshakes-trickle", "handshake_timeout = \"200ms\"");
    let silent = test.raw_tcp();
    // A byte of an option now and then; and whole options, each of which is answered.
    let unknown = b"IHAVEOPT\0\0\0\x63\0\0\0\0";
    let trickle = |piece: usize| {
        let mut stream = test.raw_tcp();
        stream.write_all(b"\0\0\0\x03").unwrap();
        std::thread::spawn(move || {
            let pieces = unknown.chunks(piece).cycle();
            let sent = pieces.take_while(|piece| {
                std::thread::sleep(Duration::from_millis(20));
                stream.write_all(piece).is_ok()
            });
            sent.take(1500).count()
        })
    };
    for trickling in [trickle(1), trickle(unknown.len())] {
        assert!(trickling.join().unwrap() < 1500, "closed before the half minute is over");
    }
    assert!(is_greeted(&silent));
    assert!((&silent).read_exact(&mut [0; 1]).is_err(), "closed");
    test.wait_for("all gone", |state| state.connections == 0);
    assert_eq!(refused(&test, "handshake_timeout"), 3);
}
