//! Tests of half-open and half-closed TCP connections: clients whose host or network is gone, so that no packet comes from
//! them any more, not even one that ends the connection; and clients that have closed their sending side and still take
//! replies.

use crate::support;

use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use evenkeel_nbd::wire::{Command, CommandFlags, Errno};
use evenkeel_policy::config::Engine;
use support::{Client, Stream, TestServer, pattern};

/// Configuration with a `peer_timeout` of 5 s. A live client that takes no replies counts as gone after that time, too, so a
/// test must have seen what it waits for within it.
const TEXT: &str = "[server]\npeer_timeout = \"5s\"\nbuffer_memory = \"32MiB\"\nmax_connections = 3\n\
    [tenants.slow]\nlimit = { iops = 1 }\n\
    [volumes.disk0]\nsize = \"64MiB\"\n[volumes.slow]\nbackend = \"memory\"\nsize = \"1MiB\"\n";

/// Simulates that a client's host vanishes. Waits until the server has acknowledged all that the client sent, so that the
/// client sends no more packets; then its socket drops every packet that arrives.
fn vanish(client: &Client) {
    let Stream::Tcp(stream) = &client.stream else { panic!("only TCP has networks that fail") };
    let fd = stream.as_raw_fd();
    let until = Instant::now() + support::PATIENCE;
    while unacknowledged(fd) > 0 {
        assert!(Instant::now() < until, "the server does not acknowledge what it was sent");
        std::thread::yield_now();
    }
    // BPF: return 0 bytes of the packet.
    let mut nothing = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    // SAFETY: the program and its one instruction outlive the call.
    let set = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn unacknowledged(fd: RawFd) -> libc::c_int {
    let mut bytes = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ for sockets) writes one int.
    assert_eq!(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) }, 0);
    bytes
}

#[test]
fn a_client_whose_host_vanishes_gives_everything_back() {
    let test = TestServer::start("vanished", Engine::Auto, TEXT);

    // One is idle, and acknowledges nothing but questions.
    let idle = test.connect_tcp("disk0");
    // One has replies under way, more than the sockets take, which hold buffer memory.
    let mut reading = test.connect_tcp("disk0");
    let requests: Vec<u8> =
        (0..16).flat_map(|n| reading.encode(n, Command::Read, CommandFlags::NONE, n << 20, 1 << 20, &[])).collect();
    reading.stream.write_all(&requests).unwrap();
    // One waits for requests that its limit throttles, for a minute.
    let mut waiting = test.connect_tcp("slow");
    let writes: Vec<u8> = (0..60)
        .flat_map(|n| waiting.encode(n, Command::Write, CommandFlags::NONE, n << 12, 4096, &pattern(n, 0, 4096)))
        .collect();
    waiting.stream.write_all(&writes).unwrap();
    test.wait_for("replies that nobody takes, and requests that wait", |state| {
        state.buffer_memory_used_bytes > 8 << 20 && state.pools[0].queued_requests >= 55
    });

    [&idle, &reading, &waiting].into_iter().for_each(vanish);
    test.wait_for("all of them given up", |state| {
        let pool = &state.pools[0];
        state.connections == 0
            && state.buffer_memory_used_bytes == 0
            && pool.queued_requests == 0
            && pool.admission.in_flight_bytes == 0
    });
    // Their places are free, and the tenant's limit is not used up by what they left.
    let mut others: Vec<_> = ["disk0", "disk0", "slow"].map(|export| test.connect_tcp(export)).into();
    for other in &mut others {
        assert!(other.read(0, 512).is_ok());
    }
    assert_eq!(test.server.state().refused_connections_total, 0);
}

#[test]
fn a_silent_client_that_is_still_there_stays() {
    let test = TestServer::start("silent", Engine::Auto, TEXT);
    let mut silent = test.connect_tcp("disk0");
    let gone = test.connect_tcp("disk0");
    vanish(&gone);
    // They fell silent at the same time, and the one that is left has answered every question since.
    test.wait_for("the other one given up", |state| state.connections == 1);
    assert!(silent.read(0, 512).is_ok());
}

/// Number of requests that each client in the test below sends.
const EACH: u64 = 100;

#[test]
fn writes_of_a_half_closed_client_go_behind_those_of_other_tenants_and_its_reads_are_dropped() {
    let text = "[pools.main]\nlimit = { iops = 200 }\n[tenants.light]\n[tenants.other]\n\
        [volumes.light]\ntenant = \"light\"\nbackend = \"memory\"\nsize = \"1MiB\"\n\
        [volumes.other]\ntenant = \"other\"\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let test = TestServer::start("half-closed", Engine::Auto, text);
    let of = |name: &str| {
        let state = test.server.state();
        let tenant = state.pools[0].tenants.iter().find(|tenant| tenant.name == name);
        tenant.map(|tenant| (tenant.reads_total, tenant.writes_total)).unwrap()
    };
    let mut other = test.connect_tcp("other");
    let writes: Vec<u64> =
        (0..EACH).map(|n| other.send(Command::Write, CommandFlags::NONE, n * 512, 512, &pattern(n, 3, 512))).collect();
    let read = other.send(Command::Read, CommandFlags::NONE, 0, 512, &[]);
    other.stream.finish_writing();

    let mut light = test.connect_tcp("light");
    let reads: Vec<u64> = (0..EACH).map(|n| light.send(Command::Read, CommandFlags::NONE, n * 512, 512, &[])).collect();
    let mut reads = reads.into_iter();
    light.wait(reads.next().unwrap()).unwrap();
    let (_, before) = of("other");
    reads.for_each(|cookie| drop(light.wait(cookie).unwrap()));
    let (_, after) = of("other");
    // By weight they would be as many as the reads; in the background a 64th, and what was under way.
    assert!(after - before < EACH / 8, "{} writes beside {EACH} reads", after - before);
    assert!(after < EACH, "all were carried out before it counted");

    // Then their turn comes, and they are answered.
    writes.into_iter().for_each(|cookie| drop(other.wait(cookie).unwrap()));
    assert_eq!(other.wait(read), Err(Errno::Shutdown), "a read is not carried out");
    other.wait_for_close();
    assert_eq!(of("other"), (0, EACH));
    let mut again = test.connect("other");
    for n in 0..EACH {
        assert_eq!(again.read(n * 512, 512).unwrap(), pattern(n, 3, 512));
    }
}
