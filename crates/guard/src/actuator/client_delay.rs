//! Types of the packet delay: clients, and the delays of the packets to them.

use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A client whose packets may be delayed, or one connection of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Client {
    /// All packets that the service ports send to this address.
    Address(IpAddr),
    /// The packets of one TCP connection: for clients that share an address (network address translation), and for a client
    /// that uses two pools. A delay for a connection takes precedence over one for its [`Client::Address`].
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
    /// This client with a plain IPv4 address if a dual-stack socket reported the address as an IPv6 address.
    pub(crate) fn canonical(self) -> Self {
        match self {
            Self::Address(address) => Self::Address(address.to_canonical()),
            Self::Connection { address, client_port, service_port } => {
                Self::Connection { address: address.to_canonical(), client_port, service_port }
            }
        }
    }
}

/// The packets that are delayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PacketChoice")]
pub enum Packets {
    // TCP segments without payload: a client's TCP window opens late. Has no effect while the target's receive window is not
    // capped, because then responses carry the acknowledgements.
    /// Throttles writers; becomes "all" where it has no effect.
    #[default]
    Acknowledgements,
    // TCP segments with payload.
    /// Throttles readers.
    Data,
    // All TCP segments.
    /// Throttles both.
    All,
}

/// The delay of packets to one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delay {
    /// The kind of packets that are delayed.
    pub packets: Packets,
    /// Delay of each packet, exact to 1 ns; zero means no delay.
    pub delay: Duration,
}

impl Delay {
    const NONE: Self = Self { packets: Packets::All, delay: Duration::ZERO };

    /// Combines two delays of one client: the longer delay, for all packets if the two delays are for different kinds of
    /// packets.
    pub(crate) fn or_longer(self, other: Self) -> Self {
        if self.delay.is_zero() {
            return other;
        }
        if other.delay.is_zero() {
            return self;
        }
        let packets = if self.packets == other.packets { self.packets } else { Packets::All };
        Self { packets, delay: self.delay.max(other.delay) }
    }
}

/// The delays of all clients at one time, sorted by client.
///
/// An entry with a delay of zero keeps the place (index) of a client that is not throttled now. Places stay the same while
/// delays change, so that a decision about 100,000 clients writes only the changed delays and moves no entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delays(Vec<(Client, Delay)>);

impl Delays {
    /// Delays without any client.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Delays with a place for each of these clients, none of which is throttled yet.
    pub(crate) fn places(clients: impl IntoIterator<Item = Client>) -> Self {
        clients.into_iter().map(|client| (client, Delay::NONE)).collect()
    }

    /// Index of the client's entry; `None` if the client has no entry.
    pub(crate) fn place(&self, client: &Client) -> Option<usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(client)).ok()
    }

    /// The delay of the entry with the index `place`, to be changed.
    pub(crate) fn at(&mut self, place: usize) -> Option<&mut Delay> {
        self.0.get_mut(place).map(|(_, delay)| delay)
    }

    /// Sets all delays to zero; the entries keep their places.
    pub(crate) fn release(&mut self) {
        self.0.iter_mut().for_each(|(_, delay)| *delay = Delay::NONE);
    }

    /// The delay of a client; `None` if the client is not throttled.
    pub fn get(&self, client: &Client) -> Option<&Delay> {
        let delay = self.place(client).and_then(|place| self.0.get(place)).map(|(_, delay)| delay);
        delay.filter(|delay| !delay.delay.is_zero())
    }

    /// The throttled clients with their delays, sorted by client.
    pub fn iter(&self) -> impl Iterator<Item = (&Client, &Delay)> {
        self.0.iter().filter(|(_, delay)| !delay.delay.is_zero()).map(|(client, delay)| (client, delay))
    }

    /// Number of throttled clients. O(entries).
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// True if no client is throttled.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl FromIterator<(Client, Delay)> for Delays {
    /// Collects delays. Several delays of one client are combined: the longest delay, for all packets if the delays are for
    /// different kinds of packets.
    fn from_iter<I: IntoIterator<Item = (Client, Delay)>>(delays: I) -> Self {
        let mut all: Vec<_> = delays.into_iter().map(|(client, delay)| (client.canonical(), delay)).collect();
        all.sort_by_key(|(client, _)| *client);
        all.dedup_by(|(client, delay), (kept, longer)| {
            let same = client == kept;
            if same {
                *longer = longer.or_longer(*delay);
            }
            same
        });
        Self(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay(packets: Packets, ms: u64) -> Delay {
        Delay { packets, delay: Duration::from_millis(ms) }
    }

    #[test]
    fn of_two_delays_the_longer_counts_and_a_delay_of_zero_is_none() {
        let client = |text: &str| Client::Address(text.parse().unwrap());
        let delays: Delays = [
            (client("10.0.0.2"), delay(Packets::Data, 3)),
            (client("::ffff:10.0.0.1"), delay(Packets::Acknowledgements, 5)),
            (client("10.0.0.1"), delay(Packets::Data, 2)),
            (client("10.0.0.3"), delay(Packets::All, 0)),
        ]
        .into_iter()
        .collect();
        assert_eq!(delays.len(), 2);
        assert_eq!(delays.get(&client("10.0.0.1")), Some(&delay(Packets::All, 5)));
        assert_eq!(delays.get(&client("10.0.0.3")), None);
        assert!(delays.iter().map(|(client, _)| *client).eq([client("10.0.0.1"), client("10.0.0.2")]));
        assert!(Delays::places([client("10.0.0.1")]).is_empty());
    }
}
