//! Finds the process that listens on a TCP port, for the message that the port is taken.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Id of the process that listens on `address`; `None` if the system does not show the process, for example because it
/// belongs to another user.
pub(crate) fn of_tcp(address: SocketAddr) -> Option<u32> {
    let table = if address.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    let inode = listener(&fs::read_to_string(table).ok()?, address.port())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

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
