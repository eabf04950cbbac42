//! Finds NBD servers that are processes (nbd-server, qemu-nbd, `evenkeel serve`), with their connections and open files.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::mark;
use super::roots::{self, Roots};
use super::sockets::{DEFAULT_PORTS, Socket, SocketState};
use crate::error::Error;
use crate::sensor::diskstats::DeviceNumber;

/// An NBD server that is recognised by the name of its program, `evenkeel serve` also by a [`mark`] in the program's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// nbd-server: one process for each connection.
    NbdServer,
    /// qemu-nbd: one process for each image.
    QemuNbd,
    /// `evenkeel serve`: one process for all volumes.
    Evenkeel,
}

impl Program {
    /// The NBD server that a command line runs; `None` if it runs another program. `marked` returns true if the program's
    /// file has the [`mark`]; it is called only if the program's name is unknown and `serve` is among the arguments.
    fn of(command: &[String], marked: impl FnOnce() -> bool) -> Option<Self> {
        let program = Path::new(command.first()?).file_name().and_then(|name| name.to_str());
        let serves = || command.iter().skip(1).any(|word| word == "serve");
        match program {
            Some("nbd-server") => Some(Self::NbdServer),
            Some("qemu-nbd") => Some(Self::QemuNbd),
            Some("evenkeel") => serves().then_some(Self::Evenkeel),
            _ => (serves() && marked()).then_some(Self::Evenkeel),
        }
    }
}

/// A file or block device that a process has open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenFile {
    /// Path of the file in the mount namespace of the process.
    pub path: PathBuf,
    /// Number of the block device, or of the device with the file's file system; `None` if it cannot be read.
    pub number: Option<DeviceNumber>,
}

/// A server process, with its clients' connections and its open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Id of the process.
    pub id: u32,
    /// The program that the process runs.
    pub program: Program,
    /// Established TCP connections between clients and the process.
    pub connections: Vec<Socket>,
    /// Sockets on which the process waits for connections.
    pub listening: Vec<Socket>,
    /// Open block devices and files of the process that may hold volumes.
    pub files: Vec<OpenFile>,
    /// True if the process is in another network namespace, so that its connections are not seen.
    pub elsewhere: bool,
    /// True if the process is in another mount namespace, so that its paths are not valid in the agent's.
    pub own_mounts: bool,
}

/// The result of a search for servers among all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The NBD servers that were found.
    pub servers: Vec<Process>,
    /// Number of other network namespaces in which processes run.
    pub other_namespaces: usize,
}

/// Finds the NBD servers among all processes; `sockets` are the TCP sockets of this network namespace.
///
/// # Errors
/// If the list of processes cannot be read. Processes that end during the search, or whose files this process may not read,
/// are left out.
pub fn read(roots: &Roots, sockets: &[Socket]) -> Result<Found, Error> {
    let namespace = |folder: &Path, kind: &str| roots::link(&folder.join("ns").join(kind));
    let [ours, our_mounts] = ["net", "mnt"].map(|kind| namespace(&roots.proc.join("self"), kind));
    let mut others = BTreeSet::new();
    let mut found = Vec::new();
    for entry in roots::names(&roots.proc)? {
        let Ok(id) = entry.parse() else { continue };
        let folder = roots.proc.join(&entry);
        let other = namespace(&folder, "net").filter(|namespace| ours.as_ref().is_some_and(|ours| ours != namespace));
        let elsewhere = other.is_some();
        others.extend(other);
        let Ok(command) = roots::text(&folder.join("cmdline")) else { continue };
        let marked = || mark::is_marked(&folder.join("exe"));
        let Some(program) = Program::of(&words(&command), marked) else { continue };
        let Ok(descriptors) = roots::names(&folder.join("fd")) else { continue };
        // The first three are standard input and output, and a server may have those open again under other numbers.
        let (standard, others) =
            descriptors.iter().partition::<Vec<_>, _>(|fd| fd.parse::<u32>().is_ok_and(|fd| fd <= 2));
        let link = |fd: &String| roots::link(&folder.join("fd").join(fd));
        let standard: Vec<PathBuf> = standard.into_iter().filter_map(link).collect();
        let links = others.into_iter().filter_map(|fd| Some((link(fd)?, fd)));
        let links: Vec<(PathBuf, &String)> = links.filter(|(link, _)| !standard.contains(link)).collect();
        let inodes: Vec<u64> = links.iter().filter_map(|(link, _)| socket_inode(link)).collect();
        let with = |state: SocketState| {
            let own = sockets.iter().filter(|socket| socket.state == state && inodes.contains(&socket.inode));
            own.copied().collect()
        };
        let files = links.into_iter().filter(|(link, _)| may_hold_data(link));
        let files = files.map(|(path, fd)| OpenFile { number: device_of(&folder.join("fd").join(fd)), path });
        let mut files: Vec<OpenFile> = files.collect();
        files.sort();
        files.dedup();
        let mounts = namespace(&folder, "mnt");
        found.push(Process {
            id,
            program,
            connections: with(SocketState::Established),
            listening: with(SocketState::Listening),
            files,
            elsewhere,
            own_mounts: mounts.is_some() && our_mounts.is_some() && mounts != our_mounts,
        });
    }
    // What it connects to itself, an etcd or the server behind its volume, is no client. Of servers with a process for each
    // connection, another process listens.
    let mut ports: BTreeMap<Program, BTreeSet<u16>> = BTreeMap::new();
    for process in &found {
        let listening = process.listening.iter().map(|socket| socket.local.port());
        ports.entry(process.program).or_insert_with(|| BTreeSet::from(DEFAULT_PORTS)).extend(listening);
    }
    for process in &mut found {
        let ports = &ports[&process.program];
        process.connections.retain(|socket| ports.contains(&socket.local.port()));
    }
    Ok(Found { servers: found, other_namespaces: others.len() })
}

/// The words of a command line, which are separated by zero bytes.
fn words(command: &str) -> Vec<String> {
    command.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Inode number of a socket in a descriptor's link: 123 of `socket:[123]`.
fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok().filter(|&inode| inode > 0)
}

/// Number of the block device that is open as `descriptor`, or of the device with the open file's file system. A descriptor's
/// link in /proc leads to the file itself, even if the file's path is not valid in this mount namespace.
fn device_of(descriptor: &Path) -> Option<DeviceNumber> {
    let metadata = std::fs::metadata(descriptor).ok()?;
    let kind = metadata.file_type();
    let number = match () {
        () if kind.is_block_device() => metadata.rdev(),
        () if kind.is_file() => metadata.dev(),
        () => return None,
    };
    Some(DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) })
}

/// True if the target of a descriptor's link may be a volume: a file or block device that has not been deleted and is no log,
/// lock, part of a server's history or the like.
fn may_hold_data(link: &Path) -> bool {
    const NO_DATA: [&str; 6] = ["log", "pid", "lock", "sock", "conf", "evh"];
    const NO_VOLUMES: [&str; 8] =
        ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts", "/dev/shm"];
    let text = link.to_string_lossy();
    let system = ["/proc", "/sys", "/run"].iter().chain(&NO_VOLUMES).any(|folder| link.starts_with(folder));
    // A lock may have no other name.
    let kind = link.extension().or(link.file_name()).and_then(|kind| kind.to_str());
    link.is_absolute() && !system && !text.ends_with(" (deleted)") && !kind.is_some_and(|kind| NO_DATA.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::{Folder, folder};
    use proptest::prelude::*;

    #[test]
    fn servers_are_known_by_their_programs() {
        let of = |command: &str| Program::of(&words(command), || false);
        assert_eq!(of("/usr/bin/nbd-server\0-d\0"), Some(Program::NbdServer));
        assert_eq!(of("qemu-nbd\0-t\0/srv/a.img\0"), Some(Program::QemuNbd));
        assert_eq!(of("/opt/evenkeel\0serve\0"), Some(Program::Evenkeel));
        assert_eq!(of("/opt/evenkeel\0guard\0run\0"), None);
        assert_eq!(of("bash\0nbd-server\0"), None);
        assert_eq!(of(""), None);
        // Only what may be ours is looked at more closely.
        let marked = |command: &str| Program::of(&words(command), || true);
        assert_eq!(marked("/opt/blocks\0serve\0"), Some(Program::Evenkeel));
        assert_eq!(marked("serve\0"), None);
        assert_eq!(marked("/opt/blocks\0guard\0run\0"), None);
    }

    /// Makes a process with this command line; returns the folder of its open files.
    fn process(root: &Folder, id: u32, command: &str) -> PathBuf {
        root.file(&format!("proc/{id}/cmdline"), command);
        let fds = root.join(format!("proc/{id}/fd"));
        std::fs::create_dir(&fds).expect("made");
        fds
    }

    #[test]
    fn a_server_of_ours_is_found_under_any_name() {
        let root = folder("any-name");
        let process = |id: u32, command: &str, program: &[u8]| {
            let fds = process(&root, id, command);
            root.file(&format!("proc/{id}/exe"), program);
            std::os::unix::fs::symlink("/dev/vg1/lv1", fds.join("7")).expect("a link");
        };
        process(7, "/srv/blocks\0serve\0", &mark::program(b"Evenkeel\0"));
        process(8, "/srv/other\0serve\0", &mark::program(b"Other\0"));
        process(9, "/srv/blocks\0guard\0run\0", &mark::program(b"Evenkeel\0"));
        let found = read(&Roots::under(&root), &[]).expect("read").servers;
        let told: Vec<_> = found.iter().map(|server| (server.id, server.program)).collect();
        assert_eq!(told, [(7, Program::Evenkeel)]);
    }

    #[test]
    fn a_log_and_a_history_are_no_volumes() {
        let root = folder("logs");
        let fds = process(&root, 7, "evenkeel\0serve\0");
        let history = [("8", "/srv/history/lock"), ("9", "/srv/history/000-1.evh")];
        let logs = [("1", "/srv/said"), ("2", "/srv/serve.out"), ("5", "/srv/serve.out")];
        for (fd, file) in [("7", "/srv/a.img")].into_iter().chain(logs).chain(history) {
            std::os::unix::fs::symlink(file, fds.join(fd)).expect("a link");
        }
        let found = read(&Roots::under(&root), &[]).expect("read").servers;
        let files: Vec<_> = found.into_iter().flat_map(|server| server.files).map(|file| file.path).collect();
        assert_eq!(files, [PathBuf::from("/srv/a.img")]);
    }

    #[test]
    fn the_device_of_an_open_file_is_known_whatever_its_path_means() {
        let root = folder("open");
        let volume = root.file("volume", "");
        std::os::unix::fs::symlink(&volume, process(&root, 7, "qemu-nbd\0").join("7")).expect("a link");
        let number = std::fs::metadata(volume).expect("is there").dev();
        let found = read(&Roots::under(&root), &[]).expect("read").servers;
        let numbers: Vec<_> = found[0].files.iter().filter_map(|file| file.number).collect();
        let device = DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) };
        assert_eq!((numbers, found[0].own_mounts), (vec![device], false));
    }

    #[test]
    fn what_a_server_connects_to_is_no_client() {
        let root = folder("outbound");
        let process = |id: u32, command: &str, inodes: &[u64]| {
            let fds = process(&root, id, command);
            for inode in inodes {
                std::os::unix::fs::symlink(format!("socket:[{inode}]"), fds.join(inode.to_string())).expect("a link");
            }
        };
        let socket = |inode, state, local: &str, remote: &str| {
            let [local, remote] = [local, remote].map(|end| end.parse().expect("an address"));
            Socket { local, remote, state, inode }
        };
        process(7, "nbd-server\0", &[11]);
        process(8, "nbd-server\0", &[12, 13]);
        process(9, "evenkeel\0serve\0", &[14]);
        let sockets = [
            socket(11, SocketState::Listening, "0.0.0.0:7777", "0.0.0.0:0"),
            socket(12, SocketState::Established, "10.0.0.1:7777", "10.0.0.12:40000"),
            socket(13, SocketState::Established, "10.0.0.1:50000", "10.0.0.13:10809"),
            socket(14, SocketState::Established, "10.0.0.1:50001", "10.0.0.14:2379"),
        ];
        let found = read(&Roots::under(&root), &sockets).expect("read").servers;
        let clients: Vec<_> = found.iter().map(|server| server.connections.clone()).collect();
        assert_eq!(clients, [vec![], vec![sockets[1]], vec![]]);
    }

    #[test]
    fn only_what_can_be_a_volume_counts() {
        for path in ["/dev/vg1/lv1", "/dev/dm-3", "/srv/a.img", "/srv/disk"] {
            assert!(may_hold_data(Path::new(path)), "{path}");
        }
        for path in [
            "socket:[12]",
            "anon_inode:[eventpoll]",
            "/dev/null",
            "/dev/pts/3",
            "/var/x.log",
            "/srv/a.img (deleted)",
            "/proc/1/stat",
        ] {
            assert!(!may_hold_data(Path::new(path)), "{path}");
        }
        assert_eq!(socket_inode(Path::new("socket:[12]")), Some(12));
        assert_eq!(socket_inode(Path::new("socket:[]")), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,100}") {
            let _ = (Program::of(&words(&text), || false), socket_inode(Path::new(&text)), may_hold_data(Path::new(&text)));
        }
    }
}
