//! What is held back, and how: the vocabulary of the packet delay.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whose packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Client {
    /// Everything that the service ports send to this address.
    Address(IpAddr),
    /// One TCP connection: for clients behind one address (network address translation), and for a client that uses
    /// two resources. Goes before [`Client::Address`].
    Connection {
        /// The client's address.
        address: IpAddr,
        /// The client's port.
        client_port: u16,
        /// The port of the service on this host.
        service_port: u16,
    },
}

impl Client {
    /// The same client with an IPv4 address that a dual-stack socket reported as IPv6 turned back into what is on the
    /// wire.
    pub(crate) fn canonical(self) -> Self {
        match self {
            Self::Address(address) => Self::Address(address.to_canonical()),
            Self::Connection { address, client_port, service_port } => {
                Self::Connection { address: address.to_canonical(), client_port, service_port }
            }
        }
    }
}

/// Which packets that are sent to a client wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packets {
    /// TCP segments without payload: slows a client that writes, as its window opens late. Has no effect while the
    /// target's receive window is not capped, because responses carry the acknowledgement along.
    Acknowledgements,
    /// TCP segments with payload: slows a client that reads.
    Data,
    /// Both: works on every client, and slows both what it reads and what it writes.
    All,
}

/// A delay for one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Which packets.
    pub packets: Packets,
    /// How long each waits. Rounded up to the next step; zero means not at all.
    pub delay: Duration,
}

/// All that is held back at one time.
pub type Holds = BTreeMap<Client, Hold>;
