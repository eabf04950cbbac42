//! Finds the process that holds a TCP port or the lock of a file, for the message that port or file is in use.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::places::Target;

/// Id of the process that listens on `address`; `None` if the system does not show the process, for example because it
/// belongs to another user.
pub(crate) fn of_tcp(address: SocketAddr) -> Option<u32> {
    // A socket for all IPv6 addresses usually has the port for IPv4, too.
    let mut tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    if address.is_ipv6() {
        tables.reverse();
    }
    let inode = tables.iter().find_map(|table| listener(&fs::read_to_string(table).ok()?, address.port()))?;
    let link = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let path = process.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else { continue };
        let Ok(descriptors) = fs::read_dir(path.join("fd")) else { continue };
        if descriptors.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == Path::new(&link))) {
            return Some(pid);
        }
    }
    None
}

/// The inode of the socket that listens on `port`, from `table`, the text of `/proc/net/tcp`.
fn listener(table: &str, port: u16) -> Option<u64> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (local, state) = (fields.nth(1)?, fields.nth(1)?);
        let local_port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        if state != LISTEN || local_port != port {
            return None;
        }
        fields.nth(5)?.parse().ok()
    })
}

/// Id of the process that has `file` locked (`flock`); `None` if the system does not show the process.
pub(crate) fn of_lock(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let target = Target::of(&metadata);
    locker(&locks, metadata.dev(), metadata.ino(), |pid| has_open(pid, target))
}

/// The process of a lock on the file with the number `inode` on the device `device`, from `table`, the text of `/proc/locks`.
/// Files of other devices may have the same inode, and some file systems (btrfs, overlayfs) show another device there than
/// the file's metadata: a process behind such a line counts if it has the file open.
fn locker(table: &str, device: u64, inode: u64, has_open: impl Fn(u32) -> bool) -> Option<u32> {
    let same_inode = || {
        table.lines().filter_map(move |line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, "FLOCK", _, _, pid, place, ..] = fields[..] else { return None };
            let mut parts = place.split(':');
            let (major, minor) = (hexadecimal(parts.next()?)?, hexadecimal(parts.next()?)?);
            let is_same = parts.next()?.parse::<u64>() == Ok(inode);
            is_same.then_some((pid.parse::<u32>().ok()?, libc::makedev(major, minor) == device))
        })
    };
    let on_device = same_inode().find(|&(_, on_device)| on_device).map(|(pid, _)| pid);
    on_device.or_else(|| same_inode().map(|(pid, _)| pid).find(|&pid| has_open(pid)))
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

/// True if the process `pid` is known to have the file `target` open.
fn has_open(pid: u32, target: Target) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|fd| fs::metadata(fd.path()).is_ok_and(|metadata| Target::of(&metadata) == target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_lock_on_another_device_with_the_same_inode_names_no_holder() {
        let table = "1: FLOCK  ADVISORY  WRITE 11 08:01:4242 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 12 08:1f:4242 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 13 08:1f:4242 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 14 08:1f:4242 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 15 08:1f:4243 0 EOF\n";
        let never = |_| false;
        assert_eq!(locker(table, libc::makedev(8, 0x1f), 4242, never), Some(14));
        assert_eq!(locker(table, libc::makedev(8, 1), 4242, never), Some(11));
        assert_eq!(locker(table, libc::makedev(8, 2), 4242, never), None, "the inode alone says nothing");
        // As on btrfs, where the device in the table is not that of the metadata.
        assert_eq!(locker(table, libc::makedev(0, 50), 4242, |pid| pid == 14), Some(14));
        assert_eq!(locker("", libc::makedev(8, 1), 4242, |_| true), None);
    }

    #[test]
    fn names_the_process_that_has_a_file_open() {
        let path = std::env::temp_dir().join(format!("evenkeel-open-{}", std::process::id()));
        let file = File::create(&path).expect("a folder for temporary files");
        let target = Target::of(&file.metadata().expect("it is open"));
        assert!(has_open(std::process::id(), target));
        drop(file);
        assert!(!has_open(std::process::id(), target));
        fs::remove_file(path).expect("it is there");
    }

    #[test]
    fn finds_the_listening_socket_in_the_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:2A39 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 111 1\n   \
                     1: 0100007F:2A39 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 222 1\n";
        assert_eq!(listener(table, 0x2A39), Some(222));
        assert_eq!(listener(table, 0x2A38), None);
    }

    #[test]
    fn names_this_process() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let holder = of_tcp(socket.local_addr().expect("bound"));
        assert_eq!(holder, Some(std::process::id()));
    }
}
