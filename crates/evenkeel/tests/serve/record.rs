//! Tests of `evenkeel record` with a server: an interrupt and `--stop` end a recording, which is kept; a killed process and a
//! full disk leave one that can be read.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use evenkeel_flight::{Kind, Recording};
use serde_json::Value;

use super::server::{EVENKEEL, Folder, PATIENCE, Server, control, fail, run, succeed, until, wait};

/// Waits until the server has the recording of this command under way.
fn until_begun(folder: &Folder, recorder: &mut Child) {
    wait("the recording is under way", || {
        let answer = control(&folder.join("evenkeel-data/control.sock"), "GET", "/api/v1/record", &[], "");
        let status: Value = serde_json::from_str(&answer.body).expect("JSON");
        let (is_begun, ended) = (status["ended"] == false, recorder.try_wait().expect("a child"));
        assert!(is_begun || ended.is_none(), "the command has ended, {ended:?}: {status:#}");
        is_begun
    });
}

#[test]
fn an_interrupt_ends_a_recording_and_keeps_it() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let mut command = Command::new(EVENKEEL);
    command.args(["record", "--for", "1h", "--json", "night.rec"]).current_dir(folder.path());
    for ends_by_signal in [true, false] {
        let mut recorder = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        until_begun(&folder, &mut recorder);
        let second = fail(&folder, &["record", "other.rec"]);
        assert!(second.contains("under way") && second.contains("--stop"), "{second}");
        succeed(&folder, &["load", server.uri(), "--op", "write", "--requests", "500", "--queue-depth", "8"]);
        if ends_by_signal {
            let id = recorder.id().to_string();
            assert!(Command::new("kill").args(["-INT", &id]).status().expect("it runs").success());
        } else {
            let stopped = succeed(&folder, &["record", "--stop"]);
            assert!(stopped.contains("night.rec: ") && stopped.contains(" requests in "), "{stopped}");
        }
        let output = recorder.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let figures: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&figures["lost"], &figures["ended"]), (&Value::from(0), &Value::from(true)), "{figures:#}");
        let recording = Recording::read(&folder.join("night.rec")).expect("a recording");
        assert!(recording.complete);
        assert_eq!(recording.requests.iter().filter(|request| request.kind == Kind::Write).count(), 500);
        let exists = fail(&folder, &["record", "night.rec"]);
        assert!(exists.contains("exists") && exists.contains("--force"), "{exists}");
        command.arg("--force");
    }
    assert!(fail(&folder, &["record", "--last", "1m", "last.rec"]).contains("record = {"));
    assert_eq!(run(&folder, &["record"]).status.code(), Some(2), "no file");
    server.stop();
}

/// Number of requests in a full block of a recording, which is written at once.
const BLOCK: usize = 4_096;

/// Starts `evenkeel record` for an hour, and waits until the server records.
fn begin(folder: &Folder, file: &str) -> Child {
    let mut command = Command::new(EVENKEEL);
    command.args(["record", "--for", "1h", "--json", file]).current_dir(folder.path());
    let mut recorder = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    until_begun(folder, &mut recorder);
    recorder
}

/// Waits until a full block of a recording is in its file; returns the number of requests there.
fn until_written(file: &Path) -> usize {
    until("a full block", PATIENCE, || {
        let recording = Recording::read(file).expect("a recording can be read while it goes on");
        assert!(!recording.complete, "it has ended");
        let written = recording.requests.len();
        if written >= BLOCK { Ok(written) } else { Err(format!("{written} requests are in the file")) }
    })
}

/// Writes some blocks' worth of requests.
fn write(folder: &Folder, server: &Server, requests: &str) {
    succeed(folder, &["load", server.uri(), "--op", "write", "--requests", requests, "--queue-depth", "8"]);
}

#[test]
fn a_recording_outlives_the_command_that_began_it() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let mut recorder = begin(&folder, "night.rec");
    recorder.kill().expect("killed");
    recorder.wait().expect("it ends");
    write(&folder, &server, "5000");
    until_written(&folder.join("night.rec"));
    write(&folder, &server, "500");
    let stopped = succeed(&folder, &["record", "--stop"]);
    assert!(stopped.contains("night.rec: "), "{stopped}");
    let recording = Recording::read(&folder.join("night.rec")).expect("a recording");
    assert!(recording.complete && recording.lost == 0);
    assert_eq!(recording.requests.iter().filter(|request| request.kind == Kind::Write).count(), 5_500);
    server.stop();
}

#[test]
fn the_recording_of_a_killed_server_is_readable_to_its_last_block() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &[]);
    let recorder = begin(&folder, "night.rec");
    write(&folder, &server, "5000");
    let written = until_written(&folder.join("night.rec"));
    server.signal("KILL");
    server.end_unread();
    let output = recorder.wait_with_output().expect("it ends");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{complaint}");
    assert!(complaint.contains("what was recorded before is in") && complaint.contains("night.rec"), "{complaint}");
    let recording = Recording::read(&folder.join("night.rec")).expect("a recording");
    assert!(!recording.complete && recording.requests.len() >= written, "{written} were there");
    assert!(recording.requests.iter().any(|request| request.kind == Kind::Write));
    let info: Value = serde_json::from_str(&succeed(&folder, &["trace", "info", "--json", "night.rec"])).expect("JSON");
    assert_eq!((&info["complete"], &info["lost"]), (&Value::from(false), &Value::from(0)), "{info:#}");
    // The next server records in its place.
    let server = Server::start(&folder, &[]);
    succeed(&folder, &["record", "--for", "1ms", "--force", "night.rec"]);
    assert!(Recording::read(&folder.join("night.rec")).expect("a recording").complete);
    server.stop();
}

#[test]
fn a_recording_without_room_ends_and_the_server_goes_on() {
    let folder = Folder::new();
    // Files of 64 KiB at most: a write beyond is an error, as on a full disk.
    let script = "ulimit -f 128; exec \"$0\" \"$@\"";
    fs::write(folder.join("e.toml"), "[volumes.disk0]\nsize = \"64KiB\"\n").expect("written");
    let mut command = Command::new("sh");
    command.current_dir(folder.path()).args(["-c", script, EVENKEEL, "serve", "--config", "e.toml"]);
    let server = Server::spawn(command.args(["--listen", "127.0.0.1:0", "--status", "127.0.0.1:0"]));
    let recorder = begin(&folder, "full.rec");
    succeed(&folder, &["load", server.uri(), "--requests", "40000", "--queue-depth", "8"]);
    let output = recorder.wait_with_output().expect("it ends by itself");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("cannot write") && complaint.contains("Make room"), "{complaint}");
    let recording = Recording::read(&folder.join("full.rec")).expect("a recording");
    assert!(!recording.complete && !recording.requests.is_empty() && recording.requests.len() < 40_000);
    succeed(&folder, &["load", server.uri(), "--requests", "100"]);
    server.stop();
}

#[test]
fn a_file_that_is_no_recording_is_refused_with_its_name() {
    let folder = Folder::new();
    fs::write(folder.join("device.toml"), "kind = \"store\"\n").expect("written");
    let commands =
        |file| [vec!["trace", "info", file], vec!["fit", file], vec!["replay", file, "--device", "device.toml"]];
    let version = [&b"EVENKFLT"[..], &99_u16.to_le_bytes(), &[0_u8; 20]].concat();
    for (file, content, why) in [
        ("text.rec", &b"this is no recording, whatever it is called\n"[..], "text.rec"),
        ("empty.rec", &b""[..], "empty.rec"),
        ("later.rec", &version[..], "format 99"),
        ("short.rec", &b"EVENKFLT\x01\0"[..], "record again"),
    ] {
        fs::write(folder.join(file), content).expect("written");
        for command in commands(file) {
            let complaint = fail(&folder, &command);
            assert!(complaint.contains(file) && complaint.contains(why), "{command:?}: {complaint}");
            assert!(!complaint.contains("panicked"), "{command:?}: {complaint}");
        }
    }
}
