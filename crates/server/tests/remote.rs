//! Tests of volumes on another NBD server: the properties taken over from it, and its loss, its wrong answers and its hangs.

use crate::fake;
use crate::support;

use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_nbd::server::reply;
use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Framing, TransmissionFlags};
use evenkeel_policy::config::Engine;
use evenkeel_policy::state::{RemoteState, VolumeState};
use evenkeel_server::{Error, Server, Start};
use fake::{Act, Fake, Seen, Shown};
use support::{Client, ENGINES, Random, Scratch, TestServer, pattern};

const FRAMINGS: [Framing; 3] = [Framing::Simple, Framing::Structured, Framing::Extended];

/// A server, and the fake remote server that holds its volume `far`.
struct Pair {
    fake: Fake,
    test: TestServer,
    _folder: Scratch,
}

impl Pair {
    fn new(name: &str, shown: Shown, settings: &str, behaviour: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        let folder = Scratch::new(&format!("{name}-fake"));
        let fake = Fake::start(folder.path(), shown, behaviour);
        let test = TestServer::start(name, Engine::Auto, &fake.volume(settings));
        Self { fake, test, _folder: folder }
    }

    fn client(&self) -> Client {
        self.test.connect("far")
    }

    fn volume(&self) -> VolumeState {
        self.test.server.state().volumes.remove(0)
    }

    fn remote(&self) -> RemoteState {
        self.volume().remote.expect("a remote volume")
    }

    fn wait_for(&self, what: &str, mut done: impl FnMut(&RemoteState) -> bool) {
        self.test.wait_for(what, |state| state.volumes[0].remote.as_ref().is_some_and(&mut done));
    }

    fn wait_for_connections(&self, count: u64) {
        self.wait_for("connections", |remote| remote.connections == count);
    }
}

/// The error with which a server with the configuration `text` refuses to start.
fn refusal(name: &str, text: &str) -> Error {
    let scratch = Scratch::new(name);
    let config = support::config(&scratch, Engine::Auto, text);
    Server::start(config, Start::default()).err().expect("it must not start")
}

fn without(flags: &[TransmissionFlags]) -> Shown {
    let shown = Shown::default();
    Shown { flags: flags.iter().fold(shown.flags, |all, flag| all.without(*flag)), ..shown }
}

fn flagged(client: &mut Client, command: Command, flags: CommandFlags, offset: u64, length: u64) -> Result<(), Errno> {
    let payload = if command == Command::Write { pattern(offset, 7, length as usize) } else { Vec::new() };
    let cookie = client.send(command, flags, offset, length, &payload);
    client.wait(cookie).map(drop)
}

#[test]
fn everything_goes_through_in_every_framing() {
    for engine in ENGINES {
        for framing in FRAMINGS {
            let folder = Scratch::new("framings-fake");
            let fake = Fake::start(folder.path(), Shown { framing, ..Shown::default() }, |_| Act::Serve);
            let test = TestServer::start("framings", engine, &fake.volume(""));
            let mut client = test.connect("far");
            assert_eq!(client.connected.size, 4 << 20);
            for (n, length) in [1, 511, 4096, 65_537, 1 << 20].into_iter().enumerate() {
                let (offset, content) = (n as u64 * 4097, pattern(n as u64, 1, length));
                client.write(offset, &content).unwrap();
                assert_eq!(fake.content(offset as usize, length), content);
                assert_eq!(client.read(offset, length as u64).unwrap(), content);
            }
            flagged(&mut client, Command::WriteZeroes, CommandFlags::NO_HOLE, 100, 5000).unwrap();
            assert_eq!(client.read(99, 5002).unwrap()[1..5001], [0; 5000]);
            flagged(&mut client, Command::Trim, CommandFlags::NONE, 65_536, 4096).unwrap();
            flagged(&mut client, Command::Cache, CommandFlags::NONE, 0, 4096).unwrap();
            client.flush().unwrap();
            for command in [Command::Trim, Command::Cache, Command::Flush] {
                assert_eq!(fake.seen(command).len(), 1, "{command:?}");
            }
            let cookie = client.send(Command::BlockStatus, CommandFlags::NONE, 4096, (4 << 20) - 4096, &[]);
            client.wait(cookie).unwrap();
            // Without structured replies nobody tells.
            let expected = if framing == Framing::Simple {
                vec![((4 << 20) - 4096, 0)]
            } else {
                vec![((2 << 20) - 4096, 0), (2 << 20, 3)]
            };
            assert_eq!(client.answers.extents, expected, "{framing:?}");
            assert_eq!(client.write((4 << 20) - 1, &[1, 2]), Err(Errno::NoSpace));
            client.disconnect();
            test.server.shutdown().unwrap();
        }
    }
}

#[test]
fn what_the_export_can_do_is_what_clients_learn() {
    use TransmissionFlags as Has;
    let all =
        [Has::SEND_FLUSH, Has::SEND_FUA, Has::SEND_TRIM, Has::SEND_WRITE_ZEROES, Has::SEND_FAST_ZERO, Has::SEND_CACHE];
    for (missing, gone) in [
        (vec![], vec![]),
        (vec![Has::SEND_TRIM], vec![Has::SEND_TRIM]),
        // A write and a flush do the same.
        (vec![Has::SEND_FUA], vec![]),
        (vec![Has::SEND_FUA, Has::SEND_FLUSH], vec![Has::SEND_FUA, Has::SEND_FLUSH]),
        // Of trims and of what is divided, only a flush makes sure.
        (vec![Has::SEND_FLUSH], vec![Has::SEND_FLUSH, Has::SEND_FUA]),
        (vec![Has::SEND_FAST_ZERO], vec![Has::SEND_FAST_ZERO]),
        (vec![Has::SEND_WRITE_ZEROES], vec![Has::SEND_WRITE_ZEROES, Has::SEND_FAST_ZERO]),
        (vec![Has::SEND_CACHE], vec![Has::SEND_CACHE]),
    ] {
        let pair = Pair::new("flags", without(&missing), "", |_| Act::Serve);
        let client = pair.client();
        for flag in all {
            assert_eq!(client.connected.flags.contains(flag), !gone.contains(&flag), "{missing:?}: {flag:?}");
        }
        assert!(client.connected.flags.contains(Has::CAN_MULTI_CONN));
        assert!(!client.connected.flags.contains(Has::READ_ONLY));
    }
    let shown = Shown::default();
    let pair = Pair::new("flags-ro", Shown { flags: shown.flags | Has::READ_ONLY, ..shown }, "", |_| Act::Serve);
    let mut client = pair.client();
    assert!(client.connected.flags.contains(Has::READ_ONLY) && pair.volume().read_only);
    assert_eq!(client.write(0, &[1]), Err(Errno::Perm));
    assert_eq!(client.read(0, 1).unwrap(), [0]);
    let pair = Pair::new("flags-set-ro", Shown::default(), "read_only = true\n", |_| Act::Serve);
    assert_eq!(pair.client().write(0, &[1]), Err(Errno::Perm));
    assert_eq!(pair.fake.seen(Command::Write).len(), 0);
}

#[test]
fn block_sizes_are_passed_on_and_obeyed() {
    let shown = Shown { min_block: 512, max_payload: 1 << 20, ..Shown::default() };
    let pair = Pair::new("blocks", shown, "", |_| Act::Serve);
    let mut client = pair.client();
    assert_eq!((client.connected.min_block, client.connected.max_payload), (512, 1 << 20));
    assert_eq!(client.read(0, 100), Err(Errno::Invalid));
    assert_eq!(client.write(1, &[0; 512]), Err(Errno::Invalid));
    assert_eq!(client.read(0, (1 << 20) + 512), Err(Errno::Invalid));
    let content = pattern(0, 1, 1 << 20);
    client.write(512, &content).unwrap();
    assert_eq!(client.read(512, 1 << 20).unwrap(), content);
    let blocks = |seen: &Seen| (seen.request.offset | seen.request.length).is_multiple_of(512);
    assert!(pair.fake.log().iter().all(blocks), "{:?}", pair.fake.log());
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let refused = |shown: Shown| {
        let folder = Scratch::new("refused-fake");
        let fake = Fake::start(folder.path(), shown, |_| Act::Serve);
        refusal("refused", &fake.volume("")).to_string()
    };
    for (shown, why) in [
        (Shown { size: 0, ..Shown::default() }, "0 bytes cannot be served"),
        (Shown { size: 1 << 63, ..Shown::default() }, "cannot be served"),
        (Shown { max_payload: 4096, ..Shown::default() }, "at most 4096 bytes in one request"),
    ] {
        let error = refused(shown);
        assert!(error.contains("volume \"far\"") && error.contains("fake.sock") && error.contains(why), "{error}");
    }
    let nobody = "[volumes.far]\nbackend = \"nbd\"\nuri = \"nbd+unix:///disk?socket=/nonexistent/socket\"\n";
    let error = refusal("nobody", nobody).to_string();
    assert!(error.contains("No such file") && error.contains("Start that server, or correct the uri"), "{error}");
    let folder = Scratch::new("greeting-fake");
    let (path, wrong) = (folder.path().join("wrong.sock"), b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || std::io::Write::write_all(&mut listener.accept().unwrap().0, wrong).unwrap());
    let error = refusal("greeting", &nobody.replace("/nonexistent/socket", &path.display().to_string())).to_string();
    assert!(error.contains("not an NBD server"), "{error}");
    let folder = Scratch::new("none-fake");
    let fake = Fake::start(folder.path(), Shown::default(), |_| Act::Serve);
    let error = refusal("none", &fake.volume("").replace("/disk?", "/none?")).to_string();
    assert!(error.contains("no such export"), "{error}");
}

#[test]
fn errors_keep_their_names() {
    let pair = Pair::new("errors", Shown::default(), "", |seen| match seen.request.offset / 4096 {
        1 => Act::Fail(Errno::NoSpace),
        2 => Act::Fail(Errno::NoMem),
        3 => Act::Fail(Errno::Io),
        4 => Act::Fail(Errno::Perm),
        // A server that does not know its own rules.
        5 => Act::Fail(Errno::Invalid),
        _ => Act::Serve,
    });
    let mut client = pair.client();
    for (n, errno) in [Errno::NoSpace, Errno::NoMem, Errno::Io, Errno::Perm, Errno::Io].into_iter().enumerate() {
        let offset = (n as u64 + 1) * 4096;
        assert_eq!(client.write(offset, &[1; 4096]), Err(errno));
        assert_eq!(client.read(offset, 4096), Err(errno));
    }
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    assert_eq!((pair.volume().error, pair.remote().reconnects_total), (None, 0));
}

#[test]
fn zeroing_that_is_not_fast_is_tried_once_more_as_what_it_costs() {
    let not_fast = |seen: &Seen| {
        let fast = seen.request.flags.contains(CommandFlags::FAST_ZERO);
        if seen.request.command == Command::WriteZeroes && fast { Act::Fail(Errno::NotSupported) } else { Act::Serve }
    };
    let pair = Pair::new("not-fast", Shown::default(), "", not_fast);
    let mut client = pair.client();
    client.write(0, &[1; 8192]).unwrap();
    let asked = flagged(&mut client, Command::WriteZeroes, CommandFlags::FAST_ZERO, 0, 4096);
    assert_eq!(asked, Err(Errno::NotSupported));
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    flagged(&mut client, Command::WriteZeroes, CommandFlags::NONE, 0, 4096).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [0; 4096]);
    assert_eq!(pair.fake.seen(Command::WriteZeroes).len(), 3);
    // One that says so to plain zeroing has failed it.
    let never = |seen: &Seen| {
        if seen.request.command == Command::WriteZeroes { Act::Fail(Errno::NotSupported) } else { Act::Serve }
    };
    let pair = Pair::new("never-zero", Shown::default(), "", never);
    let asked = flagged(&mut pair.client(), Command::WriteZeroes, CommandFlags::NONE, 0, 4096);
    assert_eq!(asked, Err(Errno::Io));
}

#[test]
fn ranges_beyond_what_headers_carry_go_in_pieces() {
    for framing in [Framing::Structured, Framing::Extended] {
        let pair = Pair::new("huge", Shown { size: 16 << 30, framing, ..Shown::default() }, "", |_| Act::Serve);
        let mut client = pair.client();
        flagged(&mut client, Command::Trim, CommandFlags::NONE, 4096, (5 << 30) + 512).unwrap();
        let mut at = 4096;
        for seen in pair.fake.seen(Command::Trim) {
            assert_eq!(seen.request.offset, at);
            at += seen.request.length;
        }
        assert_eq!(at, 4096 + (5 << 30) + 512);
    }
}

#[test]
fn durable_writes_are_durable_with_and_without_fua() {
    let pair = Pair::new("fua", Shown::default(), "", |_| Act::Serve);
    flagged(&mut pair.client(), Command::Write, CommandFlags::FUA, 0, 4096).unwrap();
    let log = pair.fake.log();
    assert!(log.len() == 1 && log[0].request.flags.contains(CommandFlags::FUA), "{log:?}");
    assert!(!pair.remote().unflushed);
    let pair = Pair::new("no-fua", without(&[TransmissionFlags::SEND_FUA]), "", |_| Act::Serve);
    flagged(&mut pair.client(), Command::Write, CommandFlags::FUA, 0, 4096).unwrap();
    let commands: Vec<_> = pair.fake.log().iter().map(|seen| seen.request.command).collect();
    assert_eq!(commands, [Command::Write, Command::Flush]);
}

#[test]
fn connections_that_break_now_and_then_lose_nothing() {
    for connections in [1, 4] {
        // Every 20th request ends its connection, every other of them after it was carried out.
        let count = AtomicUsize::new(0);
        let behaviour = move |_: &Seen| match count.fetch_add(1, Ordering::SeqCst) % 40 {
            19 => Act::HangUp,
            39 => Act::ServeAndHangUp,
            _ => Act::Serve,
        };
        let settings = format!("connections = {connections}\nunflushed = \"kept\"\n");
        let pair = Pair::new(&format!("breaks-{connections}"), Shown::default(), &settings, behaviour);
        pair.wait_for_connections(connections);
        let mut client = pair.client();
        for round in 0..10 {
            let write = |n| client.send(Command::Write, CommandFlags::NONE, n * 4096, 4096, &pattern(n, round, 4096));
            let cookies: Vec<_> = (0..16).map(write).collect();
            cookies.into_iter().for_each(|cookie| drop(client.wait(cookie).unwrap()));
            let read = |n: u64| client.send(Command::Read, CommandFlags::NONE, n * 4096, 4096, &[]);
            let cookies: Vec<_> = (0..16).map(read).collect();
            for (n, cookie) in cookies.into_iter().enumerate() {
                assert!(client.wait(cookie).unwrap() == pattern(n as u64, round, 4096), "{n} in round {round}");
            }
            client.flush().unwrap();
        }
        let remote = pair.remote();
        assert!(
            remote.reconnects_total > 0 && remote.retransmits_total > 0 && remote.last_error.is_some(),
            "{remote:?}"
        );
        assert_eq!((pair.volume().error, remote.unflushed), (None, false));
        client.disconnect();
        pair.test.wait_for("nothing left", |state| state.buffer_memory_used_bytes == 0);
    }
}

#[test]
fn a_flush_never_claims_what_may_be_lost() {
    let pair = || Pair::new("claims", Shown::default(), "", |_| Act::Serve);
    let reconnected = |pair: &Pair| pair.wait_for("a new connection", |r| r.connected && r.reconnects_total == 1);
    // Flushed, or durable by itself: nothing can be lost.
    let good = pair();
    let mut client = good.client();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.write_with(CommandFlags::FUA, 4096, &[2; 4096]).unwrap();
    client.read(0, 4096).unwrap();
    good.fake.hang_up();
    reconnected(&good);
    client.flush().unwrap();
    assert_eq!(good.volume().error, None);
    client.disconnect();
    good.test.server.shutdown().unwrap();
    // Acknowledged, and no more.
    for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
        let bad = pair();
        let mut client = bad.client();
        flagged(&mut client, command, CommandFlags::NONE, 0, 4096).unwrap();
        bad.wait_for("an unflushed write", |remote| remote.unflushed);
        bad.fake.hang_up();
        reconnected(&bad);
        assert_eq!(client.flush(), Err(Errno::Io), "{command:?}");
        assert_eq!(client.flush(), Err(Errno::Io), "not even the next time");
        assert_eq!(client.write_with(CommandFlags::FUA, 0, &[3; 512]), Err(Errno::Io));
        client.write(0, &[4; 512]).unwrap();
        assert_eq!(client.read(0, 512).unwrap(), [4; 512]);
        let error = bad.volume().error.expect("an error");
        assert!(error.contains("not flushed"), "{error}");
        assert_eq!(bad.fake.seen(Command::Flush).len(), 0, "nothing was asked that could not be believed");
        client.disconnect();
        let stop = bad.test.server.shutdown().unwrap_err().to_string();
        assert!(stop.contains("not flushed") && stop.contains("far"), "{stop}");
    }
    // The operator knows better.
    let kept = Pair::new("claims-kept", Shown::default(), "unflushed = \"kept\"\n", |_| Act::Serve);
    let mut client = kept.client();
    client.write(0, &[1; 4096]).unwrap();
    kept.fake.hang_up();
    reconnected(&kept);
    assert!(kept.remote().unflushed);
    client.flush().unwrap();
    assert!(!kept.remote().unflushed && kept.fake.seen(Command::Flush).len() == 1);
}

#[test]
fn a_write_that_was_not_answered_is_sent_again_and_is_no_loss() {
    let first = |seen: &Seen| if seen.connection == 0 { Act::ServeAndHangUp } else { Act::Serve };
    let pair = Pair::new("unanswered", Shown::default(), "", first);
    let mut client = pair.client();
    client.write(0, &pattern(0, 1, 4096)).unwrap();
    client.flush().unwrap();
    let connections: Vec<_> = pair.fake.seen(Command::Write).iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 1]);
    assert_eq!((pair.volume().error, pair.remote().retransmits_total), (None, 1));
}

#[test]
fn a_flush_that_breaks_its_connection() {
    let break_flush = |seen: &Seen| {
        if seen.connection == 0 && seen.request.command == Command::Flush { Act::ServeAndHangUp } else { Act::Serve }
    };
    // With nothing to lose it is asked again; with something, nobody knows what it has come to.
    let pair = Pair::new("breaking-flush", Shown::default(), "", break_flush);
    pair.client().flush().unwrap();
    assert_eq!(pair.fake.seen(Command::Flush).len(), 2);
    let pair = Pair::new("breaking-flush-dirty", Shown::default(), "", break_flush);
    let mut client = pair.client();
    client.write(0, &[1; 512]).unwrap();
    assert_eq!(client.flush(), Err(Errno::Io));
    assert_eq!(client.flush(), Err(Errno::Io));
}

#[test]
fn a_flush_goes_to_every_connection_that_needs_it() {
    // Two writes wait for each other, so that each connection gets one.
    let met = Arc::new(std::sync::Barrier::new(2));
    let behaviour = move |seen: &Seen| {
        if seen.request.command == Command::Write && seen.request.offset < 8192 {
            met.wait();
        }
        Act::Serve
    };
    let pair = Pair::new("every", Shown::default(), "connections = 2\n", behaviour);
    pair.wait_for_connections(2);
    let mut client = pair.client();
    let write = |n: u64| client.send(Command::Write, CommandFlags::NONE, n * 4096, 4096, &[n as u8; 4096]);
    let cookies: Vec<_> = (0..2).map(write).collect();
    cookies.into_iter().for_each(|cookie| drop(client.wait(cookie).unwrap()));
    client.flush().unwrap();
    let mut flushed: Vec<_> = pair.fake.seen(Command::Flush).iter().map(|seen| seen.connection).collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [0, 1]);
    // One that has nothing to lose may go; one that has may not.
    client.write(16_384, &[9; 4096]).unwrap();
    let dirty = pair.fake.seen(Command::Write)[2].connection;
    pair.fake.hang_up_on(1 - dirty);
    pair.wait_for("a new connection", |remote| remote.connections == 2 && remote.reconnects_total == 1);
    client.flush().unwrap();
    assert_eq!(pair.fake.seen(Command::Flush)[2].connection, dirty);
    client.write(16_384, &[8; 4096]).unwrap();
    let dirty = pair.fake.seen(Command::Write)[3].connection;
    pair.fake.hang_up_on(dirty);
    pair.wait_for("a new connection", |remote| remote.connections == 2 && remote.reconnects_total == 2);
    assert_eq!(client.flush(), Err(Errno::Io));
}

#[test]
fn a_flush_that_the_server_fails_fails_for_good() {
    let fail = AtomicUsize::new(0);
    let behaviour = move |seen: &Seen| match seen.request.command {
        Command::Flush if fail.fetch_add(1, Ordering::SeqCst) == 0 => Act::Fail(Errno::Io),
        _ => Act::Serve,
    };
    let pair = Pair::new("failing-flush", Shown::default(), "unflushed = \"kept\"\n", behaviour);
    let mut client = pair.client();
    client.write(0, &[1; 512]).unwrap();
    assert_eq!((client.flush(), client.flush()), (Err(Errno::Io), Err(Errno::Io)));
    let error = pair.volume().error.expect("an error");
    assert!(error.contains("answered a flush with an error"), "{error}");
}

#[test]
fn without_coherent_connections_there_is_one() {
    let shown = without(&[TransmissionFlags::CAN_MULTI_CONN]);
    let pair = Pair::new("incoherent", shown, "connections = 4\n", |_| Act::Serve);
    let mut client = pair.client();
    (0..32).for_each(|n| client.write(n * 512, &[n as u8; 512]).unwrap());
    let remote = pair.remote();
    assert_eq!((remote.connections, remote.connections_wanted), (1, 1));
    assert!(pair.fake.log().iter().all(|seen| seen.connection == 0));
}

#[test]
fn requests_wait_for_a_server_that_is_away_and_then_fail() {
    let pair = Pair::new("away", Shown::default(), "reconnect_timeout = \"1s\"\n", |_| Act::Serve);
    let mut client = pair.client();
    client.write_with(CommandFlags::FUA, 0, &pattern(0, 1, 4096)).unwrap();
    pair.fake.go_away();
    pair.wait_for("it is gone", |remote| !remote.connected && remote.away_ms.is_some());
    let cookies = [
        client.send(Command::Read, CommandFlags::NONE, 0, 4096, &[]),
        client.send(Command::Write, CommandFlags::NONE, 4096, 512, &[1; 512]),
        client.send(Command::Flush, CommandFlags::NONE, 0, 0, &[]),
    ];
    for cookie in cookies {
        assert_eq!(client.wait(cookie), Err(Errno::Io));
    }
    // From here on nobody waits.
    assert_eq!(client.read(0, 512), Err(Errno::Io));
    let remote = pair.remote();
    assert!(!remote.connected && remote.waiting_requests == 0 && remote.in_flight_requests == 0, "{remote:?}");
    assert!(remote.away_ms >= Some(1000), "{remote:?}");
    pair.fake.come_back();
    pair.wait_for("it is back", |remote| remote.connected);
    assert_eq!(client.read(0, 4096).unwrap(), pattern(0, 1, 4096));
    // Nothing was acknowledged that could be lost.
    client.flush().unwrap();
    assert_eq!(pair.volume().error, None);
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_away() {
    let pair = Pair::new("silent", Shown::default(), "reconnect_timeout = \"1s\"\n", |_| Act::Serve);
    let mut client = pair.client();
    pair.fake.go_away();
    let _silent = UnixListener::bind(pair.fake.path()).unwrap();
    pair.wait_for("it is gone", |remote| !remote.connected && remote.away_ms.is_some());
    let asked = Instant::now();
    assert_eq!(client.read(0, 512), Err(Errno::Io));
    // The handshake alone would be given ten seconds.
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
}

#[test]
fn requests_that_wait_are_answered_when_the_server_is_back() {
    let settings = "[pools.main]\ntuning.admission = \"none\"\n";
    let pair = Pair::new("back", Shown::default(), settings, |_| Act::Serve);
    let mut client = pair.client();
    pair.fake.go_away();
    pair.wait_for("it is gone", |remote| !remote.connected);
    let write = |n: u64| client.send(Command::Write, CommandFlags::NONE, n * 512, 512, &pattern(n, 2, 512));
    let mut cookies: Vec<_> = (0..100).map(write).collect();
    cookies.push(client.send(Command::Flush, CommandFlags::NONE, 0, 0, &[]));
    pair.wait_for("all wait", |remote| remote.waiting_requests == 101);
    pair.fake.come_back();
    cookies.into_iter().for_each(|cookie| drop(client.wait(cookie).unwrap()));
    for n in 0..100 {
        assert!(pair.fake.content(n as usize * 512, 512) == pattern(n, 2, 512), "{n}");
    }
    let offsets: Vec<_> = pair.fake.seen(Command::Write).iter().map(|seen| seen.request.offset / 512).collect();
    assert_eq!(offsets, (0..100).collect::<Vec<_>>(), "in the order in which they came");
}

#[test]
fn an_export_that_comes_back_as_something_else_is_not_used() {
    let shown = Shown::default();
    for (now, why) in [
        (Shown { size: 1 << 20, ..shown }, "clients of the volume expect 4194304"),
        (Shown { flags: shown.flags | TransmissionFlags::READ_ONLY, ..shown }, "read-only"),
        (without(&[TransmissionFlags::SEND_FLUSH]), "no longer supports flush"),
        (Shown { min_block: 512, ..shown }, "multiples of 512 bytes"),
        (Shown { max_payload: 1 << 16, ..shown }, "up to 65536"),
    ] {
        let pair = Pair::new("changed", shown, "", |_| Act::Serve);
        let mut client = pair.client();
        client.read(0, 512).unwrap();
        pair.fake.show(now);
        pair.fake.hang_up();
        pair.wait_for(why, |remote| remote.last_error.as_ref().is_some_and(|error| error.contains(why)));
        let cookie = client.send(Command::Write, CommandFlags::NONE, 0, 512, &[5; 512]);
        pair.wait_for("it waits", |remote| !remote.connected && remote.waiting_requests == 1);
        assert_eq!(pair.fake.seen(Command::Write).len(), 0);
        // What was meant comes back, and more of it does no harm.
        pair.fake.show(Shown { size: 8 << 20, ..shown });
        client.wait(cookie).unwrap();
        assert_eq!((client.read(0, 512).unwrap(), pair.volume().size_bytes), (vec![5; 512], 4 << 20));
    }
}

/// Wrong replies to a request that no correct server sends, each with words of the error that it must cause.
fn lies(seen: &Seen) -> Vec<(&'static str, Vec<u8>)> {
    let (framing, cookie, offset) = (seen.framing, seen.request.cookie, seen.request.offset);
    let length = seen.request.length;
    let header = |cookie, offset, length| reply::read(framing, cookie, offset, length).as_slice().to_vec();
    let mut all = vec![
        ("wrong magic", vec![0x55; 64]),
        ("not outstanding", header(cookie ^ 1 << 40, offset, 4096)),
        ("not outstanding", header(cookie ^ 1, offset, 4096)),
        ("not outstanding", {
            let mut twice = header(cookie, offset, length as u32);
            twice.extend(std::iter::repeat_n(0, length as usize));
            [twice.clone(), twice].concat()
        }),
    ];
    if framing.has_chunks() {
        let chunk = |at, length, done| reply::data_chunk(framing, cookie, offset, at, length, done).as_slice().to_vec();
        all.extend([
            ("outside the range", chunk(offset, 1 << 30, true)),
            ("outside the range", chunk(offset.wrapping_sub(4096), 4096, true)),
            ("outside the range", chunk(u64::MAX - 10, 4096, true)),
            ("before it is complete", [chunk(offset, 1, true), vec![7]].concat()),
            ("sent twice", [chunk(offset, 1, false), vec![7], chunk(offset, 1, true)].concat()),
        ]);
        let mut error = reply::error_at(framing, cookie, offset, Errno::Io, offset + length).as_slice().to_vec();
        all.push(("outside the range", error.clone()));
        let at = if framing.is_extended() { 32 } else { 20 };
        error[at + 4..at + 6].copy_from_slice(&u16::MAX.to_be_bytes());
        all.push(("wrong length", error));
    }
    all
}

#[test]
fn a_server_that_lies_loses_its_connection_and_nothing_else_is_lost() {
    for framing in FRAMINGS {
        let shown = Shown { framing, ..Shown::default() };
        let probe = evenkeel_nbd::wire::Request {
            cookie: 1,
            command: Command::Read,
            flags: CommandFlags::NONE,
            offset: 8192,
            length: 4096,
        };
        let count = lies(&Seen { connection: 0, nth: 0, request: probe, framing }).len();
        let told = Arc::new(Mutex::new(Vec::new()));
        let behaviour = {
            let told = Arc::clone(&told);
            move |seen: &Seen| {
                // The first request of each connection is served: so nobody has a reason to slow down.
                if seen.nth == 0 || seen.connection >= count {
                    return Act::Serve;
                }
                let (why, bytes) = lies(seen).swap_remove(seen.connection);
                told.lock().unwrap().push(why);
                Act::Send(bytes)
            }
        };
        let pair = Pair::new("lies", shown, "unflushed = \"kept\"\n", behaviour);
        let mut client = pair.client();
        client.write(8192, &pattern(2, 1, 4096)).unwrap();
        // Lied to on one connection, a read is served as the first one of the next; one of the lies begins with an answer.
        for n in 0..=count {
            let cookie = client.send(Command::Read, CommandFlags::NONE, 8192, 4096, &[]);
            assert_eq!(client.wait(cookie).map(|bytes| bytes.len()), Ok(4096), "{n}");
        }
        assert_eq!(client.read(8192, 4096).unwrap(), pattern(2, 1, 4096));
        assert_eq!(told.lock().unwrap().len(), count);
        let remote = pair.remote();
        assert_eq!(remote.reconnects_total, count as u64, "{remote:?}");
        let last = told.lock().unwrap()[count - 1];
        assert!(remote.last_error.as_ref().is_some_and(|error| error.contains(last)), "{last}: {remote:?}");
    }
}

#[test]
fn a_request_that_no_connection_survives_fails_in_the_end() {
    let poison = |seen: &Seen| if seen.request.offset == 4096 { Act::HangUp } else { Act::Serve };
    let pair = Pair::new("poison", Shown::default(), "reconnect_timeout = \"1s\"\n", poison);
    let mut client = pair.client();
    assert_eq!(client.read(4096, 512), Err(Errno::Io));
    pair.wait_for_connections(1);
    assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
    assert!(pair.fake.seen(Command::Read).len() > 2, "it was tried");
}

#[test]
fn a_server_that_says_good_bye_is_not_believed_to_have_failed() {
    let good_bye = |seen: &Seen| if seen.connection == 0 { Act::Fail(Errno::Shutdown) } else { Act::Serve };
    let pair = Pair::new("good-bye", Shown::default(), "", good_bye);
    let mut client = pair.client();
    let cookies = [
        client.send(Command::Write, CommandFlags::NONE, 0, 512, &[1; 512]),
        client.send(Command::Flush, CommandFlags::NONE, 0, 0, &[]),
    ];
    cookies.into_iter().for_each(|cookie| drop(client.wait(cookie).unwrap()));
    assert_eq!((client.read(0, 512).unwrap(), pair.volume().error), (vec![1; 512], None));
}

#[test]
fn a_server_without_answers_is_reported_and_delays_no_other() {
    let folder = Scratch::new("silent-fake");
    let fake = Fake::start(folder.path(), Shown::default(), |seen| {
        if seen.request.offset == 4096 { Act::Ignore } else { Act::Serve }
    });
    let text = format!(
        "[server]\ndrain_timeout = \"100ms\"\n[pools.main]\ntuning.stall_report_after = \"100ms\"\n{}\
         [volumes.here]\nbackend = \"memory\"\nsize = \"1MiB\"\n",
        fake.volume("")
    );
    let test = TestServer::start("silent", Engine::Auto, &text);
    let (mut silent, mut far, mut here) = (test.connect("far"), test.connect("far"), test.connect("here"));
    silent.send(Command::Read, CommandFlags::NONE, 4096, 4096, &[]);
    test.wait_for("a report", |state| state.pools[0].overdue.iter().any(|io| io.volume == "far"));
    for n in 0..100 {
        here.write(n * 512, &[1; 512]).unwrap();
        far.write(n * 8192, &[1; 512]).unwrap();
    }
    let remote = test.server.state().volumes.into_iter().find_map(|volume| volume.remote).unwrap();
    assert!(remote.connected && remote.in_flight_requests == 1, "{remote:?}");
    let stop = test.server.shutdown().unwrap_err().to_string();
    assert!(stop.contains("still in flight"), "{stop}");
}

#[test]
fn a_removed_volume_lets_its_connections_go() {
    let pair = Pair::new("removed", Shown::default(), "connections = 3\n", |_| Act::Serve);
    pair.wait_for_connections(3);
    let mut client = pair.client();
    client.write(0, &[1; 512]).unwrap();
    drop(client);
    assert!(pair.test.server.remove_volume("far").unwrap().is_empty());
    assert_eq!(pair.fake.seen(Command::Flush).len(), 1, "what was written was flushed");
    let text = pair.fake.volume("");
    let volume = evenkeel_policy::Config::parse(&text, "test").unwrap().volumes.remove("far").unwrap();
    pair.test.server.create_volume("far", volume).unwrap();
    assert_eq!(pair.client().read(0, 512).unwrap(), [1; 512]);
    let grown = pair.test.server.grow_volume("far", evenkeel_policy::units::Bytes(8 << 20));
    assert!(grown.is_err_and(|error| error.to_string().contains("restart the server, or remove the volume")));
}

#[test]
fn whatever_crashes_when_what_is_flushed_is_there() {
    const BLOCKS: u64 = 32;
    let (mut kept, mut lost) = (0, 0);
    for seed in 1..=12u64 {
        let connections = 1 + seed % 3;
        let random = Mutex::new(Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let behaviour = move |_: &Seen| match random.lock().unwrap().below(48) {
            0 => Act::Crash,
            1 => Act::HangUp,
            2 => Act::ServeAndHangUp,
            _ => Act::Serve,
        };
        let shown = Shown { size: BLOCKS * 512, ..Shown::default() };
        let settings = format!("connections = {connections}\n");
        let pair = Pair::new(&format!("crashes-{seed}"), shown, &settings, behaviour);
        let text = pair.fake.volume(&settings);
        let volume = evenkeel_policy::Config::parse(&text, "test").unwrap().volumes.remove("far").unwrap();
        let mut client = pair.client();
        let mut random = Random(seed);
        // What each block was last acknowledged to hold, if that is known.
        let mut acknowledged = vec![None; BLOCKS as usize];
        for generation in 0..60 {
            let first = random.below(BLOCKS - 4);
            let writes: Vec<_> = (first..first + 1 + random.below(4))
                .map(|block| {
                    let durable = if random.below(8) == 0 { CommandFlags::FUA } else { CommandFlags::NONE };
                    let content = pattern(block, generation, 512);
                    (block, content.clone(), client.send(Command::Write, durable, block * 512, 512, &content))
                })
                .collect();
            for (block, content, cookie) in writes {
                // One that was to be durable fails when writes before it were lost.
                acknowledged[block as usize] = client.wait(cookie).is_ok().then_some(content);
            }
            if random.below(3) > 0 {
                continue;
            }
            match client.flush() {
                Ok(()) => {
                    kept += 1;
                    for (block, content) in acknowledged.iter().enumerate() {
                        let durable = pair.fake.durable(block * 512, 512);
                        assert!(
                            content.as_ref().is_none_or(|content| *content == durable),
                            "seed {seed}: {block} is lost"
                        );
                    }
                }
                Err(errno) => {
                    lost += 1;
                    assert_eq!(errno, Errno::Io);
                    assert!(pair.volume().error.is_some(), "it is lost for good");
                    client.disconnect();
                    pair.test.server.remove_volume("far").unwrap();
                    let until = std::time::Instant::now() + support::PATIENCE;
                    while let Err(error) = pair.test.server.create_volume("far", volume.clone()) {
                        assert!(std::time::Instant::now() < until, "{error}");
                    }
                    client = pair.client();
                    acknowledged.fill(None);
                }
            }
        }
    }
    assert!(kept > 50 && lost > 20, "{kept} flushes succeeded, {lost} failed");
}
