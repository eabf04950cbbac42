//! TCP sockets of this network namespace, from `/proc/net/tcp` and `/proc/net/tcp6`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::Fault;

/// Default TCP ports of iSCSI, NVMe/TCP and NBD, in this order.
pub const DEFAULT_PORTS: [u16; 3] = [3260, 4420, 10809];

/// The state of a TCP socket, as far as discovery distinguishes states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// The socket is connected.
    Established,
    /// The socket waits for connections.
    Listening,
    /// Any other state: the connection is being opened or closed.
    Other,
}

/// One TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Address and port on this host.
    pub local: SocketAddr,
    /// Address and port of the other end.
    pub remote: SocketAddr,
    /// State of the socket.
    pub state: SocketState,
    /// Inode number, by which `/proc/PID/fd` names the socket; 0 for sockets of the kernel itself.
    pub inode: u64,
}

/// Parses the text of `/proc/net/tcp` or `/proc/net/tcp6`. IPv4 addresses in IPv6 form become IPv4 addresses.
///
/// # Errors
/// The first line that is not in the file's format.
pub fn parse(text: &str) -> Result<Vec<Socket>, Fault> {
    let lines = text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(index, line)| parse_line(line).map_err(|problem| Fault::new(index + 1, problem))).collect()
}

fn parse_line(line: &str) -> Result<Socket, String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let &[_, local, remote, state, _, _, _, _, _, inode, ..] = fields.as_slice() else {
        return Err("has fewer than 10 fields".into());
    };
    let state = match state {
        "01" => SocketState::Established,
        "0A" => SocketState::Listening,
        _ => SocketState::Other,
    };
    let inode = inode.parse().map_err(|_| format!("the inode is {inode:?}, not a number"))?;
    let end = |text: &str| endpoint(text).ok_or_else(|| format!("{text:?} is not an address of this file"));
    Ok(Socket { local: end(local)?, remote: end(remote)?, state, inode })
}

/// Parses an address and port. The kernel prints the address as hexadecimal numbers of 32 bits, each of which has the memory
/// content of four bytes in network order.
fn endpoint(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |from: usize| Some(u32::from_str_radix(address.get(from..from + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (n, place) in bytes.chunks_exact_mut(4).enumerate() {
                place.copy_from_slice(&word(8 * n)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = include_str!("../../tests/fixtures/net_tcp");
    const TCP6: &str = include_str!("../../tests/fixtures/net_tcp6");

    #[test]
    fn addresses_ports_and_states() {
        let sockets = parse(TCP).expect("the kernel's format");
        assert_eq!(sockets.len(), 3);
        assert_eq!(sockets[0].local, "10.0.0.1:3260".parse().expect("an address"));
        assert_eq!(sockets[0].state, SocketState::Listening);
        assert_eq!(sockets[1].remote, "10.0.0.13:43210".parse().expect("an address"));
        assert_eq!((sockets[1].state, sockets[1].inode), (SocketState::Established, 0));
        assert_eq!(sockets[2].inode, 51_234);
        let sockets = parse(TCP6).expect("the kernel's format");
        assert_eq!(sockets[0].remote, "10.0.0.12:49153".parse().expect("an address"));
        assert_eq!(sockets[1].remote, "[fd00::12]:49154".parse().expect("an address"));
    }

    #[test]
    fn a_fault_names_its_line() {
        let fault = parse("head\n  0: 0100007F:07E8 x\n").expect_err("too few");
        assert_eq!(fault.line, 2);
        assert!(parse("head\n0: 0100007Fé:07E8 00000000:0000 0A 0 0 0 0 0 7 1\n").is_err());
    }

    #[test]
    fn this_machine_is_understood() {
        for path in ["/proc/net/tcp", "/proc/net/tcp6"] {
            if let Ok(text) = std::fs::read_to_string(path) {
                parse(&text).expect("the kernel's format");
            }
        }
    }
}
