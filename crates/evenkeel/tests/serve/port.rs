//! Free TCP ports of 127.0.0.1 for servers that take a port number but no open socket.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// A TCP port of 127.0.0.1 that is reserved until the value is dropped, by a socket that is bound and does not listen. The kernel
/// assigns such a port to no socket that asks for any port and to no outgoing connection. A server that binds to the
/// number with `SO_REUSEADDR`, as servers in Go and Rust do, gets the port, also repeatedly.
pub(crate) struct Port(TcpListener);

impl Port {
    pub(crate) fn reserve() -> Self {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        sockopt::set_socket_reuseaddr(&socket, true).expect("an option of every socket");
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        Self(socket.into())
    }

    pub(crate) fn number(&self) -> u16 {
        self.0.local_addr().expect("it is bound").port()
    }
}
