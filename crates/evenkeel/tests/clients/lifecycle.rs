//! Tests of the effects on clients when the server runs out of descriptors, starts, reloads or stops, or when other clients
//! are killed.

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use rustix::process::Signal;

use crate::harness::{Case, EVENKEEL, MIB, Process, SIZE, Server, Session, VOLUMES, assert_same, until};

on_both_engines! {
    without_descriptors_those_who_are_in_stay_and_others_wait: "qemu-io" "nbdinfo" "prlimit";
    clients_killed_in_flight_harm_no_other: "fio" "qemu-img" "qemu-io";
    a_second_server_of_the_same_data_refuses: "qemu-io";
    a_stop_keeps_what_was_acknowledged: "qemu-io" "fio" "nbdcopy";
    a_reload_keeps_connections: "fio" "qemu-io";
    systemd_hands_over_its_socket: "systemd-socket-activate" "nbdinfo" "qemu-io";
    descriptor_three_is_served: "nbdinfo" "nbdcopy";
    only_direct_volumes_go_around_the_page_cache: "qemu-io";
}

/// Starts `fio` on the volume at `uri` with a running time of 600 s, longer than any test.
fn endless_fio(case: &Case, uri: &str, arguments: &[&str]) -> Process {
    let uri = format!("--uri={uri}");
    let mut words = vec!["fio", "--name=endless", "--ioengine=nbd", &uri, "--thread", "--iodepth=32", "--bs=4k"];
    words.extend(["--time_based", "--runtime=600", "--size=4m", "--output=/dev/null"]);
    words.extend(arguments);
    case.start(&words)
}

/// Waits until the server has answered more than `before + 32` requests since its start; panics if `client` ends earlier.
#[track_caller]
fn until_in_flight(server: &Server, client: &mut Process, before: u64) {
    until("requests", || {
        assert_eq!(client.ended(), None, "the client ended by itself");
        (server.requests() > before + 32).then_some(())
    });
}

/// A TCP connection to the server from the local address 127.0.0.`host`.
fn connect_from(server: &Server, host: u8) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&stream, &SocketAddr::from(([127, 0, 0, host], 0))).expect("a local address");
    let to: SocketAddr = server.tcp().parse().expect("an address");
    connect(&stream, &to).expect("there is room to wait");
    stream.into()
}

/// Panics unless the server greets a new connection.
#[track_caller]
fn assert_greeted(client: &mut TcpStream) {
    let mut greeting = [0; 8];
    client.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a bound");
    client.read_exact(&mut greeting).expect("it is served");
    assert_eq!(&greeting, b"NBDMAGIC");
}

fn without_descriptors_those_who_are_in_stay_and_others_wait(case: &Case) {
    let volume = "[volumes.v]\nsize = \"32MiB\"\n";
    let server = case.serve_with(&["prlimit", "--nofile=64"], volume);
    let mut session = Session::open(case, &server.unix("v"));
    session.ask("write -P 0x11 0 1M", "wrote 1048576/1048576");
    // One client does not get all that the descriptors allow.
    let mut greedy: Vec<_> = (0..100).map(|_| connect_from(&server, 1)).collect();
    assert_greeted(&mut connect_from(&server, 2));
    assert_greeted(&mut greedy[0]);
    // Many get it, and those beyond wait.
    let mut crowd: Vec<_> = (3..103).map(|host| connect_from(&server, host)).collect();
    server.until_logged("cannot accept connections");
    assert_greeted(&mut crowd[0]);
    session.ask("read -P 0x11 0 1M", "read 1048576/1048576");
    session.ask("write -P 0x22 1M 1M", "wrote 1048576/1048576");
    // Those that wait are admitted as soon as some leave.
    let last = crowd.pop();
    crowd.clear();
    greedy.clear();
    let mut last = last.expect("a hundred");
    assert_greeted(&mut last);
    until("the end of the crowd", || (server.state()["connections"] == 2).then_some(()));
    for uri in server.uris("v") {
        assert_eq!(case.succeed(&["nbdinfo", "--size", &uri]).trim(), SIZE.to_string());
    }
    session.ask("read -P 0x22 1M 1M", "read 1048576/1048576");
    let state = server.state();
    assert!(state["refused_connections_total"].as_u64() >= Some(1), "{state}");
    let mut troubles = state["health"]["troubles"].as_array().expect("a list").iter();
    assert!(troubles.any(|trouble| trouble["kind"] == "connections_refused"), "{state}");
    drop((session, last));
    until("the end of all connections", || (server.state()["connections"] == 0).then_some(()));
    server.stop();
}

fn clients_killed_in_flight_harm_no_other(case: &Case) {
    const ROUNDS: usize = 30;
    let server = case.serve();
    let mut witness = Session::open(case, &server.unix("buffered"));
    witness.ask("write -P 0x33 16M 1M", "wrote 1048576/1048576");
    for round in 0..ROUNDS {
        // The last one is gone with all its requests, so that what is counted now is this one's.
        until("the end of a connection", || (server.state()["connections"] == 1).then_some(()));
        let before = server.requests();
        let uri = &server.uris(VOLUMES[round % VOLUMES.len()])[round / 3 % 2];
        let mut client = if round % 2 == 0 {
            endless_fio(case, uri, &["--rw=randrw", "--numjobs=2"])
        } else {
            let (tcp, (_, socket)) = (server.tcp(), uri.split_once("socket=").unwrap_or_default());
            let address = match tcp.rsplit_once(':') {
                Some((host, port)) if socket.is_empty() => {
                    format!("type=inet,file.server.host={host},file.server.port={port}")
                }
                _ => format!("type=unix,file.server.path={socket}"),
            };
            // The bench writes on from 0 for as long as it lives; an image of 4 MiB keeps it from where the witness lies.
            let image = format!(
                "driver=raw,size=4194304,file.driver=nbd,file.export={},file.server.{address}",
                VOLUMES[round % VOLUMES.len()]
            );
            let words = ["-c", "1000000000", "-d", "32", "-s", "65536", "-w", "--image-opts", &image];
            case.start(&[&["qemu-img", "bench"], &words[..]].concat())
        };
        until_in_flight(&server, &mut client, before);
        client.kill();
    }
    witness.ask("read -P 0x33 16M 1M", "read 1048576/1048576");
    drop(witness);
    // Requests of those that are gone end after their connections.
    until("the end of all connections and requests", || {
        let state = server.state();
        let left = [&state["connections"], &state["buffer_memory_used_bytes"], &state["pools"][0]["queued_requests"]];
        left.iter().all(|&left| *left == 0).then_some(())
    });
    for volume in VOLUMES {
        for uri in server.uris(volume) {
            case.succeed(&["qemu-io", "-f", "raw", "-c", "write -P 0x44 0 4M", "-c", "read -P 0x44 0 4M", &uri]);
        }
    }
    server.stop();
}

fn a_second_server_of_the_same_data_refuses(case: &Case) {
    let server = case.serve();
    let at = case.file("");
    let same = ["serve", "--listen", "127.0.0.1:0", "--status", "off"];
    let complaint = case.fail(&[&[EVENKEEL][..], &same, &["--data-dir", &at]].concat());
    assert!(complaint.contains("--data-dir") && complaint.contains("another server answers on"), "{complaint}");
    // The same file from another folder: the file itself is locked.
    fs::write(case.path("other.toml"), format!("[volumes.v]\npath = \"{}\"\n", case.file("direct.img")))
        .expect("written");
    let other = [&same[..], &["--config", "other.toml", "--data-dir", "other"]].concat();
    let complaint = case.fail(&[&[EVENKEEL][..], &other].concat());
    assert!(complaint.contains("direct.img") && complaint.contains("in use"), "{complaint}");
    for uri in server.uris("direct") {
        case.succeed(&["qemu-io", "-f", "raw", "-c", "write -P 0x55 0 1M", "-c", "read -P 0x55 0 1M", &uri]);
    }
    server.stop();
    // Nothing of the first is in the way of the next.
    case.serve().stop();
}

fn a_stop_keeps_what_was_acknowledged(case: &Case) {
    let server = case.serve();
    let mut expected = vec![0; (SIZE - 8 * MIB) as usize];
    for (n, piece) in expected.chunks_mut(3_000_001).enumerate() {
        let (pattern, offset) = (n as u8 + 1, 8 * MIB as usize + n * 3_000_001);
        piece.fill(pattern);
        for volume in ["direct", "buffered"] {
            let write = format!("write -P {pattern} {offset} {}", piece.len());
            case.succeed(&["qemu-io", "-f", "raw", "-t", "unsafe", "-c", &write, &server.unix(volume)]);
        }
    }
    let mut session = Session::open(case, &server.unix("buffered"));
    session.ask("write -P 0x66 4M 1M", "wrote 1048576/1048576");
    let before = server.requests();
    let mut clients = ["direct", "buffered", "memory"].map(|volume| {
        let uri = &server.uris(volume)[0];
        endless_fio(case, uri, &["--rw=randwrite"])
    });
    for client in &mut clients {
        until_in_flight(&server, client, before);
    }
    server.stop();
    for client in &mut clients {
        assert_ne!(client.end().code(), Some(0), "the server is gone");
    }
    let stored = |volume: &str| fs::read(case.path(&format!("{volume}.img"))).expect("the volume's file");
    for volume in ["direct", "buffered"] {
        assert_same(&stored(volume)[8 * MIB as usize..], &expected, volume);
    }
    assert_eq!(stored("buffered")[4 << 20..5 << 20], vec![0x66; 1 << 20]);
    let server = case.serve();
    for volume in ["direct", "buffered"] {
        assert_same(&case.content(&server.uris(volume)[0]), &stored(volume), volume);
    }
    server.stop();
}

fn a_reload_keeps_connections(case: &Case) {
    const VOLUME: &str = "[volumes.v]\nsize = \"32MiB\"\n";
    let slow = format!("[tenants.default]\nlimit = {{ iops = 10 }}\n{VOLUME}");
    let server = case.serve_with(&[], &slow);
    let limit = || server.state()["pools"][0]["tenants"][0]["qos"]["limit_iops"].clone();
    assert_eq!(limit(), 10);
    let mut session = Session::open(case, &server.uris("v")[0]);
    session.ask("write -P 0x77 16M 4k", "wrote 4096/4096");
    let before = server.requests();
    // 2048 requests, which would take more than three minutes at 10 IOPS: they end in time only if the reload speeds them up.
    let uri = format!("--uri={}", server.unix("v"));
    let jobs = ["--rw=randwrite", "--bs=4k", "--size=4m", "--numjobs=1", "--iodepth=8", "--thread", "--fsync=256"];
    let verify = ["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0"];
    let words = [&["fio", "--name=reload", "--ioengine=nbd", &uri, "--output=fio.log"][..], &jobs, &verify].concat();
    let mut fio = case.start(&words);
    until("the first requests", || (server.requests() > before).then_some(()));
    let accepted = server.accepted();
    for (wrong, why) in
        [("[tenants.default]\nweight = 0\n", "weight"), ("[tenants", "config.toml"), ("colour = 1\n", "colour")]
    {
        case.configure(&format!("{VOLUME}{wrong}"));
        let refusals = || server.log().matches("reload refused").count();
        let before = refusals();
        server.signal(Signal::HUP);
        until("a refusal", || (refusals() > before).then_some(()));
        let log = server.log();
        let refusal = log.rsplit("reload refused").next().expect("the last one");
        assert!(refusal.contains(why), "{refusal}");
        assert_eq!(limit(), 10, "{wrong}");
        assert_eq!(fio.ended(), None, "{wrong}");
    }
    case.configure(VOLUME);
    server.signal(Signal::HUP);
    server.until_logged("reloaded: tenant default changed");
    assert!(limit().is_null(), "{}", limit());
    let status = fio.end();
    assert!(status.success(), "{status}: {}", fs::read_to_string(case.path("fio.log")).unwrap_or_default());
    session.ask("read -P 0x77 16M 4k", "read 4096/4096");
    assert_eq!(server.accepted(), accepted, "somebody had to connect again");
    server.stop();
}

fn systemd_hands_over_its_socket(case: &Case) {
    let socket = case.file("activated.sock");
    let address = format!("--listen={socket}");
    let volume = "[volumes.v]\nsize = \"32MiB\"\n";
    // It becomes the server when the first client comes.
    let server = case.spawn(case.command(&["systemd-socket-activate", &address], volume));
    until("the socket", || fs::exists(&socket).ok().filter(|&exists| exists));
    let uri = format!("nbd+unix:///v?socket={socket}");
    assert_eq!(case.succeed(&["nbdinfo", "--size", &uri]).trim(), SIZE.to_string());
    case.succeed(&["qemu-io", "-f", "raw", "-c", "write -P 0x88 0 1M", "-c", "read -P 0x88 0 1M", &uri]);
    assert!(!case.path("nbd.sock").exists(), "the configured addresses are not used");
    server.stop();
    assert!(fs::exists(&socket).expect("known"), "the socket belongs to systemd");
}

fn descriptor_three_is_served(case: &Case) {
    let (image, content) = case.image();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let tcp = format!("nbd://{}/v", listener.local_addr().expect("bound"));
    let path = case.file("three.sock");
    let unix = format!("nbd+unix:///v?socket={path}");
    let listeners = [OwnedFd::from(listener), OwnedFd::from(UnixListener::bind(&path).expect("bound"))];
    let config = case.configure("[volumes.v]\nsize = \"32MiB\"\n");
    for (listener, uri) in listeners.into_iter().zip([tcp, unix]) {
        // The socket becomes descriptor 3 and the shell becomes the server, as a service manager does it.
        let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve --config \"$1\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, EVENKEEL, &config]).stdin(Stdio::from(listener));
        let server = case.spawn(command);
        assert_eq!(case.succeed(&["nbdinfo", "--size", &uri]).trim(), SIZE.to_string());
        case.succeed(&["nbdcopy", "--connections=4", "--threads=4", &image, &uri]);
        assert_same(&case.content(&uri), &content, &uri);
        server.stop();
    }
}

fn only_direct_volumes_go_around_the_page_cache(case: &Case) {
    let direct = i32::try_from(OFlags::DIRECT.bits()).expect("a flag of open");
    let options = |name: &str| fs::OpenOptions::new().read(true).custom_flags(direct).open(case.path(name));
    let server = case.serve();
    // Not every file system can.
    let possible = options("direct.img").is_ok();
    for (volume, expected) in [("direct", possible), ("buffered", false)] {
        let write = ["qemu-io", "-f", "raw", "-c", "write -P 0x99 0 64k", "-c", "read -P 0x99 0 64k"];
        case.succeed(&[&write[..], &[&server.unix(volume)]].concat());
        let path = case.path(&format!("{volume}.img")).canonicalize().expect("it exists");
        let process = Path::new("/proc").join(server.pid().to_string());
        let descriptors = fs::read_dir(process.join("fd")).expect("its descriptors").flatten();
        let open: Vec<_> = descriptors.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == path)).collect();
        assert!(!open.is_empty(), "{volume}");
        let flags = open.iter().map(|fd| {
            let info = fs::read_to_string(process.join("fdinfo").join(fd.file_name())).expect("a descriptor");
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
            u32::from_str_radix(flags.trim(), 8).expect("octal")
        });
        assert_eq!(flags.into_iter().any(|flags| flags & OFlags::DIRECT.bits() != 0), expected, "{volume}");
    }
    server.stop();
}
