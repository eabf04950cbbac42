//! Tests of clients that do not complete their negotiation, with real sockets: bounds on their number, time and processor
//! time.

use crate::support;

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_nbd::client::{Handshake, Outcome, Purpose, Wanted};
use evenkeel_nbd::wire::{Framing, option, reply};
use evenkeel_policy::config::Engine;
use support::{Client, PATIENCE, Stop, Stream, TestServer};

fn start(name: &str, server: &str) -> TestServer {
    let text = format!("[server]\n{server}\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    TestServer::start(name, Engine::Auto, &text)
}

/// True if the server sends its greeting; false if it closes the connection.
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

/// A server with `volumes` volumes in memory; `server`: keys of its section `[server]`.
fn start_many(name: &str, server: &str, volumes: usize) -> TestServer {
    let mut text = format!("[server]\n{server}\n");
    for n in 0..volumes {
        write!(text, "[volumes.volume-{n:05}]\nbackend = \"memory\"\nsize = \"1MiB\"\n").unwrap();
    }
    TestServer::start(name, Engine::Auto, &text)
}

/// A client that sends options of the negotiation and reads every answer to its end.
struct Asker<S> {
    stream: S,
    /// True if the client sends the header of an option in one call and the data in another.
    split: bool,
    input: Vec<u8>,
}

impl<S: Read + Write> Asker<S> {
    fn new(mut stream: S, split: bool) -> io::Result<Self> {
        stream.read_exact(&mut [0; 18])?;
        stream.write_all(&[0, 0, 0, 3])?;
        Ok(Self { stream, split, input: Vec::new() })
    }

    fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.input.len() < bytes {
            let mut more = [0; 16_384];
            let read = self.stream.read(&mut more)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.input.extend_from_slice(&more[..read]);
        }
        let rest = self.input.split_off(bytes);
        Ok(std::mem::replace(&mut self.input, rest))
    }

    /// Sends an option; returns the data of each reply but the last, which must be an acknowledgement.
    fn ask(&mut self, option: u32, data: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        if self.split {
            self.stream.write_all(&bytes)?;
            bytes.clear();
        }
        bytes.extend(data);
        self.stream.write_all(&bytes)?;
        let mut answers = Vec::new();
        loop {
            let head = self.take(20)?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let data = self.take(word(16) as usize)?;
            if word(12) == reply::ACK {
                return Ok(answers);
            }
            assert_eq!(word(12) & reply::ERROR_BIT, 0, "option {option} is refused with {:x}", word(12));
            answers.push(data);
        }
    }

    /// Lists all exports, and sends two options for each of the first `most`; returns how many were listed.
    fn describe(&mut self, most: usize) -> io::Result<usize> {
        assert_eq!(self.ask(option::STRUCTURED_REPLY, b"")?, Vec::<Vec<u8>>::new());
        let list = self.ask(option::LIST, b"")?;
        for name in list.iter().take(most) {
            // It comes with its length before it, as it is to be asked for.
            let info = [name, &[0, 1, 0, 3][..]].concat();
            assert_eq!(self.ask(option::INFO, &info)?.len(), 2, "size and block sizes");
            let contexts = [name, &[0; 4][..]].concat();
            assert_eq!(self.ask(option::LIST_META_CONTEXT, &contexts)?.len(), 1);
        }
        Ok(list.len())
    }
}

/// Longest time in which 10,000 exports are listed on one connection, in the answer to one option. An idle machine takes 0.1 s.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn ten_thousand_exports_are_listed_and_described_on_one_connection() {
    let test = start_many("handshakes-many", "", 10_000);
    let timed = |place: &str, what: &str, ask: &mut dyn FnMut() -> usize| {
        let begun = Instant::now();
        assert_eq!(ask(), 10_000);
        let took = begun.elapsed();
        println!("{place}: 10,000 exports {what} in {:.2} s", took.as_secs_f64());
        took
    };
    let tcp = test.raw_tcp();
    tcp.set_nodelay(true).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let unix = test.raw_unix();
    unix.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut tcp, mut unix) = (Asker::new(tcp, false).unwrap(), Asker::new(unix, false).unwrap());
    let lists = [
        timed("TCP", "listed", &mut || tcp.ask(option::LIST, b"").unwrap().len()),
        timed("Unix socket", "listed", &mut || unix.ask(option::LIST, b"").unwrap().len()),
    ];
    assert!(lists.iter().all(|took| *took < LISTED_WITHIN), "{lists:?}");
    let both = timed("TCP", "listed and described", &mut || tcp.describe(usize::MAX).unwrap())
        + timed("Unix socket", "listed and described", &mut || unix.describe(usize::MAX).unwrap());
    // 20,000 options each, one after the other, take less than a second on an idle machine. With acknowledgements that are
    // delayed it would be minutes.
    assert!(both < 2 * PATIENCE, "{both:?}");
}

#[test]
fn a_client_that_lists_ten_thousand_exports_waits_for_one_answer() {
    let test = start_many("handshakes-list", "", 10_000);
    let names: Vec<_> = (0..10_000).map(|n| format!("volume-{n:05}")).collect();
    for mut stream in [Stream::Tcp(test.raw_tcp()), Stream::Unix(test.raw_unix())] {
        stream.set_timeout(Some(PATIENCE));
        let (purpose, framing) = (Purpose::List, Framing::Structured);
        let mut handshake =
            Handshake::new(Wanted { export: String::new(), purpose, framing, base_allocation: false, tls: false });
        let (mut input, mut out, mut round_trips) = (Vec::new(), Vec::new(), 0);
        let begun = Instant::now();
        let listed = loop {
            let step = handshake.advance(&input, &mut out).unwrap_or_else(|violation| panic!("{violation}"));
            input.drain(..step.consumed);
            match step.outcome {
                Some(Outcome::Listed(listed)) => break listed,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            if !out.is_empty() {
                stream.write_all(&out).unwrap();
                out.clear();
                round_trips += 1;
            }
            let mut more = [0; 16_384];
            let read = stream.read(&mut more).unwrap();
            assert!(read > 0, "the server closed the connection");
            input.extend_from_slice(&more[..read]);
        };
        let took = begun.elapsed();
        println!("10,000 exports listed in {:.2} s", took.as_secs_f64());
        assert_eq!(round_trips, 1, "one option asks for all of them");
        let mut found: Vec<_> = listed.into_iter().map(|export| export.name).collect();
        found.sort();
        assert!(found == names, "{} exports", found.len());
        assert!(took < LISTED_WITHIN, "{took:?}");
    }
}

#[test]
fn options_that_come_in_pieces_are_acknowledged_at_once() {
    let test = start_many("handshakes-pieces", "", 1_000);
    // Without TCP_NODELAY the second piece is sent when the first is acknowledged: 40 ms later each time, if that is delayed.
    let stream = test.raw_tcp();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let begun = Instant::now();
    Asker::new(stream, true).unwrap().describe(usize::MAX).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}, of 80 s with delays", begun.elapsed());
}

#[test]
fn lists_that_are_read_late_are_whole_and_keep_no_other_client_waiting() {
    let test = start_many("handshakes-unread", "", 10_000);
    let unread: Vec<_> = (0..16)
        .map(|_| {
            let mut stream = test.raw_unix();
            stream.write_all(b"\0\0\0\x03").unwrap();
            stream.write_all(&b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(16)).unwrap();
            stream
        })
        .collect();
    // Others are served meanwhile, and what is read late is whole.
    let other = test.raw_unix();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(Asker::new(other, false).unwrap().describe(10).unwrap(), 10_000);
    for mut stream in unread {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut all = vec![0; 18 + 16 * (10_000 * (20 + 4 + "volume-00000".len()) + 20)];
        stream.read_exact(&mut all).unwrap();
        let last = b"\0\x03\xe8\x89\x04Ue\xa9\0\0\0\x03\0\0\0\x01\0\0\0\0";
        assert!(all.ends_with(last), "the last list ends with its acknowledgement");
    }
}

/// Repeats `attack`, which counts its successes, in four threads for 8 s. Returns the share of one processor that the workers
/// take in the last 5 s, when the attacker's burst is used up. Checks that clients made by `connect`, from another address,
/// are served in this time.
pub(crate) fn storm(
    test: &TestServer,
    attack: impl Fn(&AtomicU64) -> io::Result<()> + Sync,
    connect: impl Fn() -> Client,
) -> f64 {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // The server may hang up.
                    let _ = attack(&done);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(3));
        let (begun, before) = (Instant::now(), test.cpu_s());
        let until = begun + Duration::from_secs(5);
        let mut served = 0;
        while Instant::now() < until {
            let mut client = connect();
            client.read(0, 4096).unwrap();
            client.disconnect();
            served += 1;
            std::thread::sleep(Duration::from_millis(100));
        }
        // The figures are a second old at most.
        let share = (test.cpu_s() - before) / (begun.elapsed().as_secs_f64() - 1.0);
        assert!(served >= 5, "another client got in {served} times in 5 s");
        assert!(done.load(Ordering::Relaxed) > 0);
        share
    })
}

/// A client from another address than the attacker's.
fn bystander(test: &TestServer) -> Client {
    Client::new(Stream::Tcp(test.raw_tcp_from(2).unwrap()), "volume-00000", Framing::Structured)
}

/// Largest share of one processor in a storm: a tenth for the attacker, and the rest for the other clients and for work of
/// the kernel that the server does not measure.
pub(crate) const STORM_SHARE: f64 = 0.35;

#[test]
fn a_storm_of_lists_takes_a_share_of_a_processor() {
    let test = start_many("handshakes-lists", "busy_poll = \"0s\"\nworkers = 2", 1_000);
    let attack = |done: &AtomicU64| {
        let stream = test.raw_tcp_from(1)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut asker = Asker::new(stream, false)?;
        (0..100).try_for_each(|_| {
            asker.ask(option::LIST, b"")?;
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    };
    let share = storm(&test, attack, || bystander(&test));
    assert!(share < STORM_SHARE, "{share} of a processor");
}

#[test]
fn a_storm_of_connections_takes_a_share_of_a_processor() {
    let test = start_many("handshakes-connections", "busy_poll = \"0s\"\nworkers = 2", 1);
    let attack = |done: &AtomicU64| {
        let mut stream = test.raw_tcp_from(1)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.read_exact(&mut [0; 18])?;
        done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let share = storm(&test, attack, || bystander(&test));
    assert!(share < STORM_SHARE, "{share} of a processor");
}
