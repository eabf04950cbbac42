//! Tests that hostile, dead and unlucky clients, and failing devices, do not harm other clients, the server, or data.

use crate::support;

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Framing};
use evenkeel_policy::config::Engine;
use evenkeel_server::{Error, Server, Start};
use support::{Client, ENGINES, PATIENCE, Stream, TestServer, pattern};

const MEMORY: &str = "[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n";

/// All bytes that a client sends in a short session: negotiation, a write, a read, a flush and a disconnect request.
fn whole_life() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&3u32.to_be_bytes());
    let mut option = |code: u32, data: &[u8]| {
        bytes.extend_from_slice(b"IHAVEOPT");
        bytes.extend_from_slice(&code.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
    };
    option(8, &[]);
    option(7, b"\0\0\0\x05disk0\0\0");
    let mut request = |command: u16, offset: u64, length: u32| {
        bytes.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&7u64.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        if command == 1 {
            bytes.extend(std::iter::repeat_n(0xabu8, length as usize));
        }
    };
    request(1, 4096, 64);
    request(0, 4096, 64);
    request(3, 0, 0);
    request(2, 0, 0);
    bytes
}

#[test]
fn a_client_may_die_at_any_byte() {
    let test = TestServer::start("die", Engine::Auto, MEMORY);
    let life = whole_life();
    for cut in 0..=life.len() {
        let mut stream = test.raw_unix();
        stream.write_all(&life[..cut]).unwrap();
        if cut % 3 == 0 {
            // Some die after they have seen an answer.
            stream.read_exact(&mut [0; 18]).unwrap();
        }
    }
    // The last ones may still wait to be accepted.
    let all = life.len() as u64 + 1;
    test.wait_for("all connections closed", |state| state.accepted_connections_total == all && state.connections == 0);
    assert_eq!(test.server.state().buffer_memory_used_bytes, 0);
    let mut client = test.connect("disk0");
    assert_eq!(client.read(4096, 64).unwrap(), [0xab; 64]);
}

#[test]
fn clients_that_freeze_at_any_byte_delay_no_other() {
    let test = TestServer::start("freeze", Engine::Auto, MEMORY);
    let life = whole_life();
    let frozen: Vec<_> = (0..life.len())
        .map(|cut| {
            let mut stream = test.raw_unix();
            stream.write_all(&life[..cut]).unwrap();
            stream
        })
        .collect();
    let mut client = test.connect("disk0");
    // Beyond the bytes that some of the frozen ones write, at any time.
    for n in 2..102 {
        client.write(n * 4096, &pattern(n, 0, 4096)).unwrap();
        assert!(client.read(n * 4096, 4096).unwrap() == pattern(n, 0, 4096));
    }
    drop(frozen);
    test.wait_for("the frozen ones gone", |state| state.connections == 1);
}

#[test]
fn a_client_that_does_not_choose_an_export_in_time_is_closed() {
    let text = format!("[server]\nhandshake_timeout = \"100ms\"\n{MEMORY}");
    let test = TestServer::start("late", Engine::Auto, &text);
    let mut late = test.raw_tcp();
    late.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let mut all = Vec::new();
    late.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 18, "the greeting, and nothing more");
}

#[test]
fn a_reader_that_does_not_read_holds_bounded_memory_and_delays_no_other() {
    for engine in ENGINES {
        let text = "[server]\nbuffer_memory = \"32MiB\"\n[volumes.disk0]\nsize = \"64MiB\"\n";
        let test = TestServer::start("slow-reader", engine, text);
        let mut slow: Vec<Client> = (0..4).map(|_| test.connect("disk0")).collect();
        for client in &mut slow {
            // 200 MiB of replies asked for, none taken.
            let requests: Vec<u8> =
                (0..200).flat_map(|n| client.encode(n, Command::Read, CommandFlags::NONE, 0, 1 << 20, &[])).collect();
            client.stream.write_all(&requests).unwrap();
        }
        let mut quick = test.connect("disk0");
        for n in 0..50 {
            quick.write(n * 4096, &pattern(n, 1, 4096)).unwrap();
            let state = test.server.state();
            assert!(state.buffer_memory_used_bytes <= 32 << 20, "{}", state.buffer_memory_used_bytes);
        }
        // A slow reader that starts to read gets all of it.
        let mut one = slow.pop().unwrap();
        drop(slow);
        (0..200).for_each(|n| one.expect(n, Command::Read, 0, 1 << 20));
        for n in 0..200 {
            assert_eq!(one.wait(n).unwrap().len(), 1 << 20);
        }
        drop(one);
        test.wait_for("memory given back", |state| state.buffer_memory_used_bytes == 0);
    }
}

#[test]
fn more_connections_than_allowed_are_closed_at_once() {
    let text = format!("[server]\nmax_connections = 3\n{MEMORY}");
    let test = TestServer::start("many", Engine::Auto, &text);
    let clients: Vec<_> = (0..3).map(|_| test.connect("disk0")).collect();
    let mut refused = test.raw_tcp();
    refused.set_read_timeout(Some(support::PATIENCE)).unwrap();
    assert_eq!(refused.read_to_end(&mut Vec::new()).unwrap(), 0, "closed without a greeting");
    assert_eq!(test.server.state().refused_connections_total, 1);
    drop(clients);
    test.wait_for("room again", |state| state.connections == 0);
    assert!(test.connect("disk0").read(0, 1).is_ok());
}

#[test]
fn errors_of_a_request_keep_the_connection_and_violations_end_it() {
    let test = TestServer::start("errors", Engine::Auto, MEMORY);
    let mut client = test.connect_tcp("disk0");
    let end = client.connected.size;
    assert_eq!(client.read(end, 1), Err(Errno::Invalid));
    assert_eq!(client.read(u64::MAX, 512), Err(Errno::Invalid));
    assert_eq!(client.write(end - 1, &[1, 2]), Err(Errno::NoSpace));
    let unknown = client.send(Command::Unknown(99), CommandFlags::NONE, 0, 0, &[]);
    assert_eq!(client.wait(unknown), Err(Errno::Invalid));
    let too_long = vec![0; (64 << 20) + 1];
    assert!(client.write(0, &too_long).is_err());
    assert!(client.read(0, 512).is_ok(), "the connection is still good");
    client.stream.write_all(&[0xff; 64]).unwrap();
    client.wait_for_close();
    assert!(test.connect_tcp("disk0").read(0, 512).is_ok(), "and others are");
}

#[test]
fn what_a_half_closed_client_asked_to_change_is_changed_and_answered() {
    let test = TestServer::start("half", Engine::Auto, "[volumes.disk0]\nsize = \"64MiB\"\n");
    let mut client = test.connect_tcp("disk0");
    let cookies: Vec<_> = (0..64)
        .map(|n| match n % 2 {
            0 => client.send(Command::Write, CommandFlags::NONE, n << 16, 1 << 16, &pattern(n, 7, 1 << 16)),
            _ => client.send(Command::Read, CommandFlags::NONE, n << 16, 1 << 16, &[]),
        })
        .collect();
    client.stream.finish_writing();
    for cookie in cookies.into_iter().step_by(2) {
        client.wait(cookie).unwrap();
    }
    client.wait_for_close();
    let mut other = test.connect("disk0");
    for n in (0..64).step_by(2) {
        assert_eq!(other.read(n << 16, 1 << 16).unwrap(), pattern(n, 7, 1 << 16));
    }
}

#[test]
fn what_clients_asked_for_that_are_gone_is_not_read() {
    // After the first of 512 bytes the next turn of the tenant comes in minutes.
    let text = format!("[tenants.default]\nlimit = {{ bytes_per_s = 1 }}\n{MEMORY}");
    let test = TestServer::start("gone", Engine::Auto, &text);
    test.connect("disk0").read(0, 512).unwrap();
    for _ in 0..100 {
        let mut client = test.connect_tcp("disk0");
        for n in 0..64 {
            client.send(Command::Read, CommandFlags::NONE, n * 512, 512, &[]);
        }
    }
    test.wait_for("all of them gone", |state| state.connections == 0);
}

#[test]
fn what_a_client_asked_for_beyond_what_it_may_have_at_once_is_not_read_once_it_is_gone() {
    let text = format!("[tenants.default]\nlimit = {{ bytes_per_s = 1 }}\n{MEMORY}");
    let test = TestServer::start("gone-beyond", Engine::Auto, &text);
    test.connect("disk0").read(0, 512).unwrap();
    for _ in 0..20 {
        let client = test.connect("disk0");
        let mut bytes = Vec::new();
        for n in 0..2_000 {
            bytes.extend(client.encode(n, Command::Read, CommandFlags::NONE, n % 64 * 512, 512, &[]));
        }
        let mut stream = client.stream;
        stream.write_all(&bytes).unwrap();
    }
    test.wait_for("all of them gone", |state| state.connections == 0);
}

#[test]
fn a_write_behind_more_reads_than_may_wait_is_done_if_a_disconnect_follows() {
    for engine in ENGINES {
        let test = TestServer::start("reads-goodbye", engine, "[volumes.disk0]\nsize = \"1MiB\"\n");
        let client = test.connect("disk0");
        let mut bytes = Vec::new();
        for n in 0..2_000 {
            bytes.extend(client.encode(n, Command::Read, CommandFlags::NONE, n % 64 * 512, 512, &[]));
        }
        bytes.extend(client.encode(2_000, Command::Write, CommandFlags::NONE, 0, 512, &pattern(1, 2, 512)));
        bytes.extend(client.encode(2_001, Command::Disconnect, CommandFlags::NONE, 0, 0, &[]));
        let mut stream = client.stream;
        stream.write_all(&bytes).unwrap();
        drop(stream);
        test.wait_for("the client gone", |state| state.connections == 0);
        assert_eq!(test.connect("disk0").read(0, 512).unwrap(), pattern(1, 2, 512));
    }
}

/// Lets a client send a hundred writes of `size` bytes and a disconnect request, and close without reading a reply; checks
/// that all writes are carried out.
fn write_and_go(test: &TestServer, size: u64) {
    write_and_leave(test, test.connect("disk0"), size, drop);
}

/// As [`write_and_go`], with a client that is already there and closes with `leave`.
fn write_and_leave(test: &TestServer, client: Client, size: u64, leave: impl FnOnce(Stream)) {
    let mut bytes = Vec::new();
    for n in 0..100 {
        let payload = pattern(n, 2, size as usize);
        bytes.extend(client.encode(n, Command::Write, CommandFlags::NONE, n * size, size, &payload));
    }
    bytes.extend(client.encode(1000, Command::Disconnect, CommandFlags::NONE, 0, 0, &[]));
    let mut stream = client.stream;
    stream.write_all(&bytes).unwrap();
    leave(stream);
    test.wait_for("the client gone", |state| state.connections == 0);
    let mut other = test.connect("disk0");
    for n in 0..100 {
        assert_eq!(other.read(n * size, size).unwrap(), pattern(n, 2, size as usize), "write {n}");
    }
    drop(other);
    test.wait_for("memory given back", |state| state.buffer_memory_used_bytes == 0);
}

/// Resets a TCP connection when all that was sent has arrived: the reset drops what has not.
fn reset(stream: Stream) {
    let Stream::Tcp(stream) = stream else { panic!("a reset is of TCP") };
    let until = Instant::now() + PATIENCE;
    let mut on_their_way: libc::c_int = 1;
    while on_their_way > 0 {
        assert!(Instant::now() < until, "{on_their_way} bytes do not arrive");
        // SAFETY: writes one number (SIOCOUTQ, for sockets the same request).
        let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut on_their_way) };
        assert_eq!(asked, 0);
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

#[test]
fn what_arrived_before_a_disconnect_is_done_even_if_a_reset_follows() {
    for engine in ENGINES {
        let test = TestServer::start("goodbye-reset", engine, "[volumes.disk0]\nsize = \"64MiB\"\n");
        (0..5).for_each(|_| write_and_leave(&test, test.connect_tcp("disk0"), 4096, reset));
        let test = TestServer::start("full-goodbye-reset", engine, FEW_AT_ONCE);
        write_and_leave(&test, test.connect_tcp("disk0"), 512, reset);
    }
}

#[test]
fn what_was_asked_before_a_disconnect_is_done_even_if_the_client_is_gone() {
    for engine in ENGINES {
        let test = TestServer::start("goodbye", engine, "[volumes.disk0]\nsize = \"64MiB\"\n");
        write_and_go(&test, 4096);
    }
}

/// Configuration of a volume so slow, and with so few requests at once, that a client is gone long before its last request is
/// read.
const FEW_AT_ONCE: &str = r#"
    [server]
    max_inflight_per_connection = 4
    [pools.slow]
    emulate = { preset = "ssd", write_latency = "2ms" }
    [volumes.disk0]
    backend = "emulate"
    pool = "slow"
    size = "1MiB"
"#;

#[test]
fn a_disconnect_that_waits_behind_a_full_queue_is_still_read() {
    for engine in ENGINES {
        write_and_go(&TestServer::start("full-goodbye", engine, FEW_AT_ONCE), 512);
    }
}

#[test]
fn requests_are_as_large_as_the_configured_bound_and_no_larger() {
    const MOST: u64 = 128 << 20;
    let text = "[server]\nmax_request = \"128MiB\"\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"256MiB\"\n";
    let test = TestServer::start("max-request", Engine::Auto, text);
    for framing in [Framing::Structured, Framing::Extended] {
        let mut client = Client::new(Stream::Unix(test.raw_unix()), "disk0", framing);
        assert_eq!(u64::from(client.connected.max_payload), MOST);
        // Its last MiB differs from the rest.
        let mut payload = vec![7; MOST as usize + 1];
        payload[(127 << 20)..].copy_from_slice(&pattern(1, 1, (1 << 20) + 1));
        assert_eq!(client.write(1 << 20, &payload[..MOST as usize]), Ok(()));
        assert!(client.read(1 << 20, MOST).unwrap() == payload[..MOST as usize]);
        // One byte more is refused before anything of it is written, and its payload goes by.
        payload.fill(9);
        assert_eq!(client.write(1 << 20, &payload), Err(Errno::Invalid));
        assert_eq!(client.read(1 << 20, MOST + 1), Err(Errno::Invalid));
        assert_eq!(client.read(1 << 20, 4096).unwrap(), [7; 4096]);
        client.write(1 << 20, &vec![0; 127 << 20]).unwrap();
    }
}

#[test]
fn an_operation_that_never_returns_is_reported_and_blocks_no_other() {
    let text = r#"
        [pools.stuck]
        tuning.admission = { kind = "fixed", budget = "64KiB" }
        tuning.stall_report_after = "200ms"
        emulate = { preset = "ssd", read_latency = "2000s", write_latency = "2000s" }
        [volumes.stuck]
        backend = "emulate"
        pool = "stuck"
        size = "1MiB"
        [volumes.fine]
        backend = "memory"
        size = "1MiB"
    "#;
    let test = TestServer::start("stuck", Engine::Auto, text);
    let mut stuck = test.connect("stuck");
    let first = stuck.send(Command::Write, CommandFlags::NONE, 0, 4096, &[1; 4096]);
    let mut fine = test.connect("fine");
    fine.write(0, &[2; 4096]).unwrap();
    let of_stuck =
        |state: &evenkeel_policy::state::State| state.pools.iter().find(|pool| pool.name == "stuck").unwrap().clone();
    test.wait_for("the report", |state| {
        of_stuck(state).overdue.iter().any(|io| io.volume == "stuck" && io.kind == "write")
    });
    assert_eq!(of_stuck(&test.server.state()).admission.in_flight_bytes, 0, "its share of the budget is free again");
    fine.write(0, &[3; 4096]).unwrap();
    assert!(!stuck.answers.done.contains_key(&first));
    // Not even the stop waits for it longer than it was told to.
    test.server.abort();
}

#[test]
fn a_removed_volume_ends_its_connections_and_releases_its_file() {
    for engine in ENGINES {
        let text = "[volumes.disk0]\nsize = \"16MiB\"\n[volumes.other]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
        let test = TestServer::start("vanish", engine, text);
        let mut client = test.connect("disk0");
        let mut other = test.connect("other");
        client.write(0, &pattern(0, 3, 4096)).unwrap();
        for n in 0..200 {
            client.send(Command::Write, CommandFlags::NONE, 4096 * (n % 16), 4096, &[9; 4096]);
        }
        test.server.remove_volume("disk0").unwrap();
        client.wait_for_close();
        other.write(0, &[1]).unwrap();
        assert!(matches!(test.server.remove_volume("disk0"), Err(Error::Unknown { .. })));
        let again = test.config.volumes["disk0"].clone();
        test.server.create_volume("disk0", again).unwrap();
        assert_eq!(test.connect("disk0").read(0, 1).unwrap().len(), 1);
    }
}

#[test]
fn a_full_file_system_is_an_error_of_the_request() {
    let Some(disk) = support::SmallDisk::mount("a_full_file_system_is_an_error_of_the_request") else { return };
    for engine in ENGINES {
        let test = TestServer::start("full", engine, &disk.volume());
        let mut client = test.connect("disk0");
        let results: Vec<_> = (0..4).map(|n| client.write(n << 20, &vec![7; 1 << 20])).collect();
        assert!(results.contains(&Err(Errno::NoSpace)), "{results:?}");
        assert!(results.iter().all(|r| matches!(r, Ok(()) | Err(Errno::NoSpace))), "{results:?}");
        assert!(client.read(0, 4096).is_ok());
        // Room made by a trim is room.
        let trim = client.send(Command::Trim, CommandFlags::NONE, 0, 16 << 20, &[]);
        client.wait(trim).unwrap();
        client.write(8 << 20, &[1; 4096]).unwrap();
    }
}

#[test]
fn a_file_that_was_cut_short_fails_reads_beyond_its_end() {
    for engine in ENGINES {
        let test = TestServer::start("short", engine, "[volumes.disk0]\nsize = \"1MiB\"\n");
        let mut client = test.connect("disk0");
        client.write(0, &[5; 4096]).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(test.scratch.path().join("disk0.img")).unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);
        assert_eq!(client.read(8192, 4096), Err(Errno::Io));
        assert_eq!(client.read(0, 8192), Err(Errno::Io));
    }
}

#[test]
fn two_servers_on_one_volume_are_one_too_many() {
    let test = TestServer::start("twice", Engine::Auto, "[volumes.disk0]\nsize = \"1MiB\"\n");
    let scratch = support::Scratch::new("twice-second");
    let mut config = support::config(&scratch, Engine::Auto, "[volumes.disk0]\nsize = \"1MiB\"\n");
    config.volumes.get_mut("disk0").unwrap().path = Some(test.scratch.path().join("disk0.img"));
    let begun = Instant::now();
    match Server::start(config, Start::default()).err() {
        Some(error @ Error::InUse { .. }) => assert!(error.to_string().contains("in use by process"), "{error}"),
        other => panic!("{other:?}"),
    }
    // A killed server's operations keep its files locked for a moment.
    assert!((Duration::from_secs(5)..PATIENCE).contains(&begun.elapsed()), "refused after {:?}", begun.elapsed());
    assert!(test.connect("disk0").read(0, 1).is_ok());
}

#[test]
fn a_graceful_stop_answers_everything_and_leaves_it_on_disk() {
    for engine in ENGINES {
        let test = TestServer::start("stop", engine, "[volumes.disk0]\nsize = \"64MiB\"\n");
        let mut client = test.connect("disk0");
        let cookies: Vec<_> = (0..200)
            .map(|n| client.send(Command::Write, CommandFlags::NONE, n * 4096, 4096, &pattern(n, 4, 4096)))
            .collect();
        // At least the first has arrived.
        client.wait(cookies[0]).unwrap();
        test.server.shutdown().unwrap();
        client.wait_for_close();
        let image = std::fs::read(test.scratch.path().join("disk0.img")).unwrap();
        for (n, cookie) in cookies.iter().enumerate().skip(1) {
            if let Some(result) = client.answers.done.get(cookie) {
                assert!(result.is_ok());
                assert_eq!(image[n * 4096..][..4096], pattern(n as u64, 4, 4096));
            }
        }
        assert!(!test.socket().exists());
        drop(test.server);
        let again = Server::start(test.config.clone(), Start::default()).unwrap();
        again.shutdown().unwrap();
    }
}

#[test]
fn every_framing_is_served() {
    let test = TestServer::start("framing", Engine::Auto, MEMORY);
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        let mut client = Client::new(Stream::Unix(test.raw_unix()), "", framing);
        assert_eq!(client.connected.framing, framing);
        client.write(4096, &[1, 2, 3]).unwrap();
        assert_eq!(client.read(4095, 5).unwrap(), [0, 1, 2, 3, 0]);
        client.flush().unwrap();
        if framing != Framing::Simple {
            let status = client.send(Command::BlockStatus, CommandFlags::NONE, 0, 1 << 20, &[]);
            client.wait(status).unwrap();
            assert_eq!(client.answers.extents, [(1 << 16, 0), ((1 << 20) - (1 << 16), 3)]);
        }
        let zeroes = client.send(Command::WriteZeroes, CommandFlags::NONE, 4096, 3, &[]);
        client.wait(zeroes).unwrap();
        assert_eq!(client.read(4095, 5).unwrap(), [0; 5]);
        client.disconnect();
    }
    test.wait_for("all gone", |state| state.connections == 0);
}

#[test]
fn a_lost_operation_is_reported_even_when_its_volume_is_removed() {
    let text = r#"
        [server]
        drain_timeout = "100ms"
        [pools.stuck]
        tuning.stall_report_after = "100ms"
        emulate = { preset = "ssd", read_latency = "2000s", write_latency = "2000s" }
        [volumes.stuck]
        backend = "emulate"
        pool = "stuck"
        size = "1MiB"
    "#;
    let test = TestServer::start("stuck-removed", Engine::Auto, text);
    let mut client = test.connect("stuck");
    client.send(Command::Write, CommandFlags::NONE, 0, 4096, &[1; 4096]);
    let age = |state: &evenkeel_policy::state::State| {
        let pool = state.pools.iter().find(|pool| pool.name == "stuck")?;
        pool.overdue.iter().map(|io| io.age_s).reduce(f64::max)
    };
    test.wait_for("the report", |state| age(state).is_some());
    let warnings = test.server.remove_volume("stuck").unwrap();
    assert!(matches!(&warnings[..], [Error::NoAnswer { .. }]), "{warnings:?}");
    let before = age(&test.server.state()).unwrap();
    test.wait_for("the next report", |state| age(state).expect("it has not come back") > before);
    test.server.abort();
}

#[test]
fn a_stop_that_cuts_answers_off_says_so() {
    let text = format!("[server]\ndrain_timeout = \"100ms\"\n{MEMORY}");
    let test = TestServer::start("cut-off", Engine::Auto, &text);
    let mut client = test.connect("disk0");
    client.send(Command::Read, CommandFlags::NONE, 0, 32 << 20, &[]);
    assert!(client.receive(), "the answer begins, and the client takes no more of it");
    let stop = test.server.shutdown().unwrap_err().to_string();
    assert!(stop.contains("had not taken all of their answers") && !stop.contains("in flight"), "{stop}");
}

#[test]
fn a_block_device_that_another_program_has_is_refused() {
    use std::os::unix::fs::OpenOptionsExt;
    let scratch = support::Scratch::new("claimed");
    let Some(device) = support::loop_device(&scratch) else {
        return;
    };
    let text = format!("[volumes.disk0]\nbackend = \"block\"\npath = \"{}\"\n", device.path().display());
    let start = || Server::start(support::config(&scratch, Engine::Auto, &text), Start::default());
    // As a mount does.
    let claim = || std::fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device.path());
    let claimed = claim().unwrap();
    let error = start().err().expect("it is claimed").to_string();
    assert!(error.contains("mounted"), "{error}");
    drop(claimed);
    let server = start().unwrap();
    assert!(claim().is_err(), "nobody may mount it while it is served");
    assert!(start().is_err(), "nor may a second server have it");
    server.shutdown().unwrap();
}
