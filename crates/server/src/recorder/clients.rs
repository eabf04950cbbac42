//! The clients behind the keys of connections.

use std::collections::HashMap;
use std::sync::Arc;

use crate::transport::Peer;
use crate::worker::request::ConnKey;

/// Largest number of connections that are remembered between two looks of the thread although others have their slots.
const MOST_REPLACED: usize = 1 << 16;

/// The client of a connection.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) key: ConnKey,
    pub(super) peer: Peer,
    /// Name of the tenant to which the connection belonged when it chose its export.
    pub(super) tenant: Arc<str>,
}

/// The clients of all connections that have chosen an export, by slot. An entry stays after its connection has ended, because
/// requests of it may still end, until another connection has the slot.
#[derive(Default)]
pub(super) struct Clients {
    newest: HashMap<u32, Known>,
    /// Entries that were replaced while a session was on and that the thread has not taken over.
    replaced: Vec<Known>,
}

impl Clients {
    /// Notes the client of a connection. `is_on`: true if a session is on.
    pub(super) fn attached(&mut self, key: ConnKey, peer: &Peer, tenant: &Arc<str>, is_on: bool) {
        let known = Known { key, peer: peer.clone(), tenant: Arc::clone(tenant) };
        let before = self.newest.insert(key.slot, known);
        if is_on && self.replaced.len() < MOST_REPLACED {
            self.replaced.extend(before.filter(|before| before.key != key));
        }
    }

    /// The client of a connection, unless another one has its slot.
    pub(super) fn get(&self, key: ConnKey) -> Option<&Known> {
        self.newest.get(&key.slot).filter(|known| known.key == key)
    }

    /// Takes the entries that were replaced since the previous call.
    pub(super) fn take_replaced(&mut self) -> Vec<Known> {
        std::mem::take(&mut self.replaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_of_an_ended_connection_is_known_until_its_records_are_taken() {
        let key = |generation| ConnKey { slot: 3, generation };
        let mut clients = Clients::default();
        let attach = |clients: &mut Clients, generation, is_on| {
            let peer = Peer { uid: Some(generation), ..Peer::default() };
            clients.attached(key(generation), &peer, &"t".into(), is_on);
        };
        attach(&mut clients, 0, false);
        attach(&mut clients, 2, false);
        assert!(clients.get(key(0)).is_none() && clients.take_replaced().is_empty());
        attach(&mut clients, 4, true);
        let replaced = clients.take_replaced();
        assert_eq!(replaced.iter().map(|known| known.peer.uid).collect::<Vec<_>>(), [Some(2)]);
        assert_eq!(clients.get(key(4)).map(|known| known.peer.uid), Some(Some(4)));
    }
}
