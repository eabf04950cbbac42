//! Tests of volumes with the backend `nbd`, which a remote server stores: nbdkit, qemu-nbd or another `evenkeel serve`.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::Value;

use crate::fio;
use crate::harness::{Case, EVENKEEL, MIB, Process, SIZE, Server, assert_same, until};

on_both_engines! {
    far_volumes_pass_verification: "nbdkit" "qemu-nbd" "fio";
    far_volumes_are_copied_and_compared: "nbdkit" "qemu-nbd" "qemu-img" "nbdcopy";
    servers_killed_under_load_lose_nothing: "nbdkit" "qemu-nbd" "qemu-img";
    a_killed_server_fails_the_flush_of_what_it_may_have_lost: "nbdkit" "qemu-io";
    a_server_that_is_slow_and_fails_is_passed_on: "nbdkit" "qemu-io" "fio";
    a_server_that_is_not_there_is_named: "nbdkit" "nbdinfo";
}

/// The remote server that stores a volume of the server under test: nbdkit or qemu-nbd (`Program`), or another `evenkeel serve`
/// (`Own`). Its export has [`SIZE`] bytes unless the program's arguments say otherwise.
enum Peer {
    Program { words: Vec<String>, socket: PathBuf, process: Process },
    Own { case: Case, server: Option<Server> },
}

impl Peer {
    fn program(case: &Case, words: Vec<String>, socket: PathBuf) -> Self {
        let process = Self::run(case, &words, &socket);
        Self::Program { words, socket, process }
    }

    fn run(case: &Case, words: &[String], socket: &PathBuf) -> Process {
        // One that was killed leaves it behind.
        let _ = fs::remove_file(socket);
        let mut process = case.start(&words.iter().map(String::as_str).collect::<Vec<_>>());
        until("a server", || {
            assert_eq!(process.ended(), None, "{words:?}");
            UnixStream::connect(socket).ok()
        });
        process
    }

    fn nbdkit(case: &Case, arguments: &[&str]) -> Self {
        let socket = case.path("nbdkit.sock");
        let mut words = vec!["nbdkit".to_owned(), "-f".to_owned(), "-U".to_owned(), socket.display().to_string()];
        words.extend(arguments.iter().map(|&word| word.to_owned()));
        Self::program(case, words, socket)
    }

    fn nbdkit_file(case: &Case) -> Self {
        let file = new_file(case, "nbdkit.img");
        Self::nbdkit(case, &["file", &file])
    }

    fn qemu_nbd(case: &Case) -> Self {
        let (socket, file) = (case.path("qemu.sock"), new_file(case, "qemu.img"));
        let words =
            ["qemu-nbd", "-t", "-e", "8", "-f", "raw", "--discard=unmap", "-k", &socket.display().to_string(), &file];
        Self::program(case, words.map(str::to_owned).into(), socket)
    }

    fn own(case: &Case) -> Self {
        let case = case.beside();
        let server = case.serve_with(&[], &Self::own_volume());
        Self::Own { case, server: Some(server) }
    }

    fn own_volume() -> String {
        format!("[volumes.disk]\nsize = {SIZE}\n")
    }

    /// Starts one remote server of each kind (nbdkit, qemu-nbd, evenkeel), each with a file for its data.
    fn all(case: &Case) -> [Self; 3] {
        [Self::nbdkit_file(case), Self::qemu_nbd(case), Self::own(case)]
    }

    /// Configuration of a volume `far` that this remote server stores, with the further lines `settings`.
    fn volume(&self, settings: &str) -> String {
        let uri = match self {
            Self::Program { socket, .. } => format!("nbd+unix:///?socket={}", socket.display()),
            Self::Own { server, .. } => server.as_ref().expect("it runs").unix("disk"),
        };
        format!("[volumes.far]\nbackend = \"nbd\"\nuri = \"{uri}\"\n{settings}")
    }

    /// The file in which this remote server keeps its data.
    fn file(&self) -> PathBuf {
        match self {
            Self::Program { words, .. } => words.last().expect("the file").into(),
            Self::Own { case, .. } => case.path("disk.img"),
        }
    }

    fn kill(&mut self) {
        match self {
            Self::Program { process, .. } => process.kill(),
            Self::Own { server, .. } => server.as_mut().expect("it runs").process.kill(),
        }
    }

    fn start_again(&mut self, beside: &Case) {
        match self {
            Self::Program { words, socket, process } => *process = Self::run(beside, words, socket),
            Self::Own { case, server } => {
                *server = None;
                *server = Some(case.serve_with(&[], &Self::own_volume()));
            }
        }
    }
}

fn new_file(case: &Case, name: &str) -> String {
    fs::File::create(case.path(name)).and_then(|file| file.set_len(SIZE)).expect("a file");
    case.file(name)
}

fn remote(server: &Server) -> Value {
    server.state()["volumes"][0]["remote"].clone()
}

/// Runs the command line `words` of `qemu-io`, and asserts that it fails with EIO.
#[track_caller]
fn io_error(case: &Case, words: &[&str]) {
    let output = case.run(words);
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(!output.status.success() && said.contains("Input/output error"), "{words:?}: {}: {said}", output.status);
}

fn far_volumes_pass_verification(case: &Case) {
    for mut peer in Peer::all(case) {
        let server = case.serve_with(&[], &peer.volume("connections = 4\n"));
        for uri in server.uris("far") {
            let regions = ["--numjobs=4", "--offset_increment=8m", "--size=1m"];
            let job = fio::verify(case, &uri, &[&["--rw=randwrite", "--bs=4k", "--fsync=32"][..], &regions].concat());
            assert_eq!(fio::bytes(&job), (4 * MIB, 4 * MIB), "{uri}");
            let job = fio::verify(case, &uri, &["--rw=randwrite", "--bsrange=512-64k", "--size=4m", "--fsync=16"]);
            assert_eq!(fio::bytes(&job), (4 * MIB, 4 * MIB), "{uri}");
            let mix = ["--op", "mix", "--trim-percent", "5", "--zero-percent", "5", "--flush-every", "16", "--fua"];
            let load = [EVENKEEL, "load", &uri, "--verify", "--requests", "4000", "--queue-depth", "32"];
            case.succeed(&[&load[..], &mix].concat());
        }
        assert_eq!(remote(&server)["reconnects_total"], 0, "{}", server.log());
        server.stop();
        peer.kill();
    }
}

fn far_volumes_are_copied_and_compared(case: &Case) {
    let (image, content) = case.image();
    for mut peer in Peer::all(case) {
        let server = case.serve_with(&[], &peer.volume(""));
        for uri in server.uris("far") {
            case.succeed(&["qemu-io", "-f", "raw", "-c", &format!("write -P 0x5a 0 {SIZE}"), &uri]);
            case.succeed(&["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", &image, &uri]);
            let compare = ["qemu-img", "compare", "-f", "raw", "-F", "raw", &image, &uri];
            assert!(case.succeed(&compare).contains("identical"));
            assert_same(&case.content(&uri), &content, &uri);
        }
        server.stop();
        peer.kill();
        assert_same(&fs::read(peer.file()).expect("the file behind"), &content, "what the far server holds");
    }
}

fn servers_killed_under_load_lose_nothing(case: &Case) {
    for connections in [1, 4] {
        for mut peer in Peer::all(case) {
            // What a file server has acknowledged is in the kernel's cache, which a killed process does not take along.
            let volume = peer.volume(&format!("connections = {connections}\nunflushed = \"kept\"\n"));
            // So slow that the load lasts for 15 s and cannot be over before the third kill, however late that is.
            let server = case.serve_with(&[], &format!("{volume}[pools.main]\nlimit = {{ iops = 2000 }}\n"));
            let uri = server.unix("far");
            let mix = ["--op", "mix", "--zero-percent", "5", "--flush-every", "16", "--block-size", "4k:80,64k:20"];
            let load = [EVENKEEL, "load", &uri, "--verify", "--requests", "30000", "--queue-depth", "16"];
            let mut load = case.start(&[&load[..], &mix].concat());
            for _ in 0..3 {
                let before = server.requests();
                until("load", || (server.requests() > before + 500).then_some(()));
                peer.kill();
                assert_eq!(load.ended(), None, "the load is over too early: {}", server.log());
                until("that it is missed", || (remote(&server)["connected"] == false).then_some(()));
                peer.start_again(case);
                until("that it is back", || (remote(&server)["connected"] == true).then_some(()));
            }
            case.configure(&volume);
            server.signal(rustix::process::Signal::HUP);
            let status = load.end();
            assert!(status.success(), "{status}: {}", server.log());
            let volume = server.state()["volumes"][0].clone();
            assert!(volume["remote"]["reconnects_total"].as_u64() >= Some(3), "{volume}");
            assert_eq!(volume["error"], Value::Null);
            let file = peer.file().display().to_string();
            server.stop();
            peer.kill();
            // The file is what clients saw last: another server serves the same.
            peer.start_again(case);
            let server = case.serve_with(&[], &peer.volume(""));
            assert!(
                case.succeed(&["qemu-img", "compare", "-f", "raw", "-F", "raw", &file, &server.unix("far")])
                    .contains("identical")
            );
            server.stop();
            peer.kill();
        }
    }
}

fn a_killed_server_fails_the_flush_of_what_it_may_have_lost(case: &Case) {
    // Here it does lose it.
    let mut peer = Peer::nbdkit(case, &["memory", "32M"]);
    let server = case.serve_with(&[], &peer.volume(""));
    let uri = server.unix("far");
    // Writes without any flush, even at its end.
    let write = [EVENKEEL, "load", &uri, "--op", "write", "--size", "64k", "--requests", "100"];
    case.succeed(&write);
    assert_eq!(remote(&server)["unflushed"], true);
    peer.kill();
    peer.start_again(case);
    until("that it is back", || (remote(&server)["reconnects_total"] == 1).then_some(()));
    case.succeed(&["qemu-io", "-r", "-f", "raw", "-c", "read -P 0 0 64k", &uri]);
    case.succeed(&write);
    // It says no more than that it has failed.
    case.fail(&["qemu-io", "-f", "raw", "-t", "writeback", "-c", "flush", &uri]);
    io_error(case, &["qemu-io", "-f", "raw", "-t", "writeback", "-c", "write -f 0 4k", &uri]);
    let shown = case.succeed(&[EVENKEEL, "state", "--data-dir", &case.file("")]);
    assert!(shown.contains("FAILED: volume far") && shown.contains("reconnected 1 time,"), "{shown}");
    // A stop says so, too.
    let mut server = server;
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.process.end().code(), Some(1), "{}", server.log());
    assert!(server.log().contains("not flushed"), "{}", server.log());
}

fn a_server_that_is_slow_and_fails_is_passed_on(case: &Case) {
    let trigger = case.file("trigger");
    let arguments =
        ["--filter=error", "--filter=delay", "memory", "32M", "delay-read=3ms", "delay-write=3ms", "error=EIO"];
    let rate = ["error-rate=100%", &format!("error-file={trigger}")];
    let peer = Peer::nbdkit(case, &[&arguments[..], &rate].concat());
    let server = case.serve_with(&[], &peer.volume("connections = 2\n"));
    let uri = server.unix("far");
    let job = fio::verify(case, &uri, &["--rw=randwrite", "--bs=4k", "--size=2m", "--fsync=64"]);
    assert_eq!(fio::bytes(&job), (2 * MIB, 2 * MIB));
    fs::write(&trigger, "").expect("written");
    io_error(case, &["qemu-io", "-f", "raw", "-c", "read 0 4k", &uri]);
    fs::remove_file(&trigger).expect("it is there");
    case.succeed(&["qemu-io", "-f", "raw", "-c", "write -P 0x33 0 4k", "-c", "read -P 0x33 0 4k", "-c", "flush", &uri]);
    assert_eq!(remote(&server)["reconnects_total"], 0, "{}", server.log());
    server.stop();
}

fn a_server_that_is_not_there_is_named(case: &Case) {
    let mut peer = Peer::nbdkit(case, &["memory", "32M"]);
    let tables = peer.volume("");
    peer.kill();
    let config = case.configure(&tables);
    let complaint = case.fail(&[EVENKEEL, "serve", "--config", &config]);
    let parts = ["volume \"far\"", "nbdkit.sock", "Connection refused", "Start that server, or correct the uri"];
    assert!(parts.iter().all(|part| complaint.contains(part)), "{complaint}");
    peer.start_again(case);
    let server = case.serve_with(&[], "[volumes.here]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    let uri = tables.split('"').nth(3).expect("the uri");
    let at = case.file("");
    case.succeed(&[EVENKEEL, "volume", "create", "far", "--backend", "nbd", "--uri", uri, "--data-dir", &at]);
    assert_eq!(case.succeed(&["nbdinfo", "--size", &server.unix("far")]).trim(), SIZE.to_string());
    server.stop();
    // It was recorded, and is there again.
    let server = case.serve_with(&[], "[volumes.here]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    assert_eq!(case.succeed(&["nbdinfo", "--size", &server.unix("far")]).trim(), SIZE.to_string());
    server.stop();
}
