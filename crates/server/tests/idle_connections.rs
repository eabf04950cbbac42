//! A test of the memory that idle connections cost. The test is alone in its file, because the memory of the whole process is
//! measured.

mod support;

use std::io::Read;

use evenkeel_nbd::wire::Framing;
use evenkeel_policy::config::Engine;
use support::{Client, Stream, TestServer, pattern, skip};

/// Not a test: the clients of `ten_thousand_idle_connections…`, in a process with file descriptors of its own.
#[test]
#[ignore = "started by another test"]
fn hold_idle_connections() {
    let Some(socket) = std::env::var_os("EVENKEEL_TEST_SOCKET") else { return };
    let address = std::env::var("EVENKEEL_TEST_ADDRESS").unwrap();
    support::raise_descriptor_limit();
    // A user and an address are two clients, each of which has a part of the connections.
    let connect = |n| match n % 2 {
        0 => Stream::Unix(std::os::unix::net::UnixStream::connect(&socket).unwrap()),
        _ => Stream::Tcp(std::net::TcpStream::connect(&address).unwrap()),
    };
    let idle: Vec<Client> = (0..IDLE).map(|n| Client::new(connect(n), "disk0", Framing::Structured)).collect();
    // Until the test closes the pipe.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(idle);
}

const IDLE: usize = 10_000;

#[test]
fn ten_thousand_idle_connections_cost_little_and_hurt_no_other() {
    use rustix::process::{Resource, getrlimit};
    if getrlimit(Resource::Nofile).maximum.is_some_and(|limit| limit < IDLE as u64 / 5 * 8 + 200) {
        return skip("the hard limit on open files is too low");
    }
    let test = TestServer::start(
        "idle",
        Engine::Auto,
        "[server]\nmax_connections = 32768\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n",
    );
    let before = resident_bytes();
    let mut holder = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hold_idle_connections", "--ignored"])
        .env("EVENKEEL_TEST_SOCKET", test.socket())
        .env("EVENKEEL_TEST_ADDRESS", test.tcp().to_string())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    test.wait_for("all open", |state| state.volumes[0].connections == IDLE as u64);
    let each = resident_bytes().saturating_sub(before) / IDLE as u64;
    println!("{each} bytes for an idle connection");
    assert!(each < 8 << 10, "{each} bytes for an idle connection");
    let mut client = test.connect("disk0");
    for n in 0..200 {
        client.write(n * 512, &pattern(n, 0, 512)).unwrap();
        assert_eq!(client.read(n * 512, 512).unwrap(), pattern(n, 0, 512));
    }
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    test.wait_for("all closed", |state| state.connections == 1);
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
