//! Troubles of storage: a full disk, a back end that fails, a device that stalls, and memory that is used up.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::server::{Folder, Load, Server, run};
use super::stage::Trouble;

/// A file system of 8 MiB in memory, unmounted when the value is dropped.
struct Small(PathBuf);

impl Small {
    /// The file system, mounted at `at`; `None` without the right to mount.
    fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(&at).stdout(Stdio::null()).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self(at))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Bounds the size of the files that a server may write, as a full disk does.
fn bound_files(server: &Server, bytes: u64) {
    let bound = Command::new("prlimit").args(["--pid", &server.id().to_string(), &format!("--fsize={bytes}")]).status();
    assert!(bound.expect("prlimit").success());
}

#[test]
fn a_full_disk() {
    let folder = Folder::new();
    let small = Small::mount(folder.join("small"));
    let path = small.as_ref().map(|small| format!("path = {:?}\n", small.0.join("disk.img")));
    let text = format!("[volumes.disk]\nsize = \"64MiB\"\n{}", path.unwrap_or_default());
    let server = Server::configured(&folder, &text);
    if small.is_none() {
        // Enough for the files of the history.
        bound_files(&server, 16 << 20);
    }
    let part = ["--offset", "32MiB", "--block-size", "1MiB", "--requests", "32"];
    let written = run(&folder, &[&["load", server.uri(), "--op", "write"], &part[..]].concat());
    assert!(!written.status.success(), "there is room for all");
    let trouble = Trouble::new("io_errors", "volume disk", "failed (write: ", "make room on the file system of ");
    trouble.follows_failures(&folder, server, &text);
}

/// A server, and another one that stores its volume `far`; `keys`: tables before that of the volume.
fn with_peer(folder: &Folder, far: &Folder, keys: &str) -> (Server, Server, String) {
    let peer = Server::start(far, &[]);
    let text = format!("{keys}[volumes.far]\nbackend = \"nbd\"\nuri = \"{}\"\n", peer.uri());
    (Server::configured(folder, &text), peer, text)
}

#[test]
fn a_back_end_that_fails() {
    let (folder, far) = (Folder::new(), Folder::new());
    let (server, peer, text) = with_peer(&folder, &far, "");
    bound_files(&peer, 4096);
    let written = run(&folder, &["load", server.uri(), "--op", "write", "--requests", "10"]);
    assert!(!written.status.success(), "the other server refuses no write");
    let trouble = Trouble::new(
        "io_errors",
        "volume far",
        "failed (write: ",
        "look for the error in the log of the server at nbd://",
    );
    trouble.follows_failures(&folder, server, &text);
}

#[test]
fn a_device_that_stalls() {
    let (folder, far) = (Folder::new(), Folder::new());
    let (server, peer, text) = with_peer(&folder, &far, "[pools.main]\ntuning.stall_report_after = \"1s\"\n");
    peer.signal("STOP");
    let load = Load::start(&folder, "far", &["--op", "read"]);
    let trouble =
        Trouble::new("stalled", "pool main", "OVERDUE: read of ", "the server behind the volume has not answered");
    trouble.outlives(&folder, server, &text, || {
        drop(load);
        peer.signal("CONT");
    });
}

#[test]
fn a_file_that_is_moved_away() {
    let folder = Folder::new();
    let text = "[volumes.disk]\nsize = \"16MiB\"\n";
    let server = Server::configured(&folder, text);
    let (path, aside) = (folder.join("evenkeel-data/disk.img"), folder.join("evenkeel-data/disk.old"));
    fs::rename(&path, &aside).expect("moved");
    let trouble = Trouble::new("displaced", "volume disk", "was deleted, moved or replaced", "move it back");
    trouble.outlives(&folder, server, text, || fs::rename(&aside, &path).expect("moved back"));
}

#[test]
fn memory_that_is_used_up() {
    let folder = Folder::new();
    // One tenant alone gets half of the memory. Requests come faster than the device takes their data.
    let tenants: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
    let tables = tenants
        .iter()
        .map(|name| format!("[tenants.{name}]\n[volumes.{name}]\nbackend = \"emulate\"\nsize = \"8MiB\"\n"));
    let text = format!(
        "[server]\nbuffer_memory = \"32MiB\"\n[pools.main]\ntuning.admission = \"none\"\n\
         [pools.main.emulate]\nbandwidth = \"100KB\"\n{}",
        tables.collect::<String>()
    );
    let server = Server::configured(&folder, &text);
    let requests = ["--op", "write", "--block-size", "32KiB", "--queue-depth", "256"];
    let loads: Vec<Load> = tenants.iter().map(|name| Load::start(&folder, name, &requests)).collect();
    let trouble = Trouble {
        kind: "buffer_memory",
        about: "",
        cause: "of buffer memory are in use: requests wait for free memory",
        cure: "raise server.buffer_memory",
        recorded: "of buffer memory are in use",
    };
    trouble.outlives(&folder, server, &text, || drop(loads));
}
