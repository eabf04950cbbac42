//! Ports for servers that take a number and no socket.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// A TCP port of 127.0.0.1 which nothing else gets while the value lives. A socket is bound to it and does not listen. The
/// kernel gives such a port to no socket that asks for any port, and to no outgoing connection. A server that asks for
/// it by number gets it if it sets `SO_REUSEADDR`, as servers in Go and Rust do, once and again.
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
