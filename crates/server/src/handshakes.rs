//! Connections that have not chosen a volume yet, and how many of them there may be.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::refusals::Reason;
use crate::worker::transport::Peer;

/// Counts negotiations under way, all together and of each client.
pub(crate) struct Handshakes {
    most: u32,
    most_of_client: u32,
    under_way: Mutex<UnderWay>,
}

#[derive(Default)]
struct UnderWay {
    all: u32,
    of: HashMap<Client, u32>,
}

/// Who counts as one: an IPv4 address, the /64 of an IPv6 address, of which one host has as many as it likes, or a user
/// of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    V4(u32),
    V6(u64),
    User(Option<u32>),
}

impl From<&Peer> for Client {
    fn from(peer: &Peer) -> Self {
        match peer.address.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => Self::V4(address.to_bits()),
            Some(IpAddr::V6(address)) => Self::V6((address.to_bits() >> 64) as u64),
            None => Self::User(peer.uid),
        }
    }
}

impl Handshakes {
    /// At most so many at once.
    pub(crate) fn new(most: u32, most_of_client: u32) -> Self {
        Self { most, most_of_client, under_way: Mutex::default() }
    }

    /// One more, until the ticket is dropped.
    ///
    /// # Errors
    /// Which bound it would exceed.
    pub(crate) fn begin(self: &Arc<Self>, peer: &Peer) -> Result<Ticket, Reason> {
        let client = peer.into();
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let UnderWay { all, of } = &mut *under_way;
        if *all >= self.most {
            return Err(Reason::Handshakes);
        }
        let count = of.get(&client).copied().unwrap_or(0);
        if count >= self.most_of_client {
            return Err(Reason::HandshakesOfClient);
        }
        of.insert(client, count + 1);
        *all += 1;
        Ok(Ticket { handshakes: Arc::clone(self), client })
    }
}

/// A negotiation under way.
pub(crate) struct Ticket {
    handshakes: Arc<Handshakes>,
    client: Client,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut under_way = self.handshakes.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.all -= 1;
        if let Entry::Occupied(mut count) = under_way.of.entry(self.client) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Peer {
        Peer { address: Some(address.parse().unwrap()), ..Peer::default() }
    }

    #[test]
    fn one_client_cannot_take_the_places_of_others() {
        let handshakes = Arc::new(Handshakes::new(3, 2));
        let mut held: Vec<_> = (0..2).map(|_| handshakes.begin(&at("192.0.2.1")).ok().unwrap()).collect();
        assert_eq!(handshakes.begin(&at("192.0.2.1")).err(), Some(Reason::HandshakesOfClient));
        assert_eq!(handshakes.begin(&at("::ffff:192.0.2.1")).err(), Some(Reason::HandshakesOfClient));
        held.push(handshakes.begin(&at("192.0.2.2")).ok().unwrap());
        assert_eq!(handshakes.begin(&at("192.0.2.3")).err(), Some(Reason::Handshakes));
        held.remove(0);
        assert!(handshakes.begin(&at("192.0.2.1")).is_ok());
        held.clear();
        let under_way = handshakes.under_way.lock().unwrap();
        assert!(under_way.all == 0 && under_way.of.is_empty(), "nothing is left of those that are done");
    }

    #[test]
    fn a_host_is_its_network_where_it_has_many_addresses_and_a_user_where_it_has_none() {
        let client = |peer: &Peer| Client::from(peer);
        assert_eq!(client(&at("2001:db8::1")), client(&at("2001:db8::ffff:1")));
        assert_ne!(client(&at("2001:db8::1")), client(&at("2001:db8:0:1::1")));
        assert_ne!(client(&at("192.0.2.1")), client(&at("192.0.2.2")));
        let user = |uid| Client::from(&Peer { uid: Some(uid), ..Peer::default() });
        assert!(user(1) == user(1) && user(1) != user(2));
    }
}
