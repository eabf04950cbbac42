//! Keys (slot and generation) of connections, and their homes: the workers that serve them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use evenkeel_control::Instant;
use evenkeel_control::mclock::Wish;
use evenkeel_nbd::wire::Command;

use crate::budget::LeftBehind;
use crate::handshakes::Place;
use crate::worker::request::{ConnKey, is_change};

/// The table of connections: for each slot, its generation and the home of its connection.
pub(crate) struct Slots {
    /// For each slot: generation of the connection that uses it or used it last (an even number), plus 1 if the connection's
    /// client has closed its sending side.
    generations: Vec<AtomicU32>,
    homes: Vec<AtomicU32>,
    /// For each slot: number of requests in flight whose connection is closed.
    orphans: Vec<AtomicU32>,
    /// By slot, the remainders of closed connections whose requests have not all ended.
    rests: Mutex<HashMap<u32, Rest>>,
    free: Mutex<Vec<u32>>,
}

/// The part of a closed connection that stays until the connection's last request has ended. Until then the connection, and
/// the buffer bytes that it left behind, count for its client and its tenant.
pub(crate) struct Rest {
    pub(crate) _place: Place,
    pub(crate) left: Option<LeftBehind>,
}

impl Slots {
    /// A table with `count` free slots.
    pub(crate) fn new(count: u32) -> Self {
        let zeros = || (0..count).map(|_| AtomicU32::new(0)).collect();
        Self {
            generations: zeros(),
            homes: zeros(),
            orphans: zeros(),
            rests: Mutex::default(),
            free: Mutex::new((0..count).rev().collect()),
        }
    }

    /// Takes a slot and returns the key of a new connection, which has no home yet; `None` if no slot is free.
    pub(crate) fn take(&self) -> Option<ConnKey> {
        Some(self.key(self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?))
    }

    /// The key of the connection that uses a slot at present or, if it is free, used it last.
    pub(crate) fn key(&self, slot: u32) -> ConnKey {
        ConnKey { slot, generation: self.generations[slot as usize].load(Ordering::Acquire) & !1 }
    }

    /// Ends a connection: results of its requests in flight are not delivered any more. The slot becomes free only when its
    /// `in_flight` requests have ended, too: otherwise clients that connect, send requests and disconnect could fill a pool's
    /// queue without bound, or exceed the bound on one client's connections.
    pub(crate) fn give(&self, key: ConnKey, in_flight: u32, rest: Rest) {
        let slot = key.slot as usize;
        self.rests.lock().unwrap_or_else(PoisonError::into_inner).insert(key.slot, rest);
        // One more than there are, so that the last of them does not free the slot before we are done.
        self.orphans[slot].store(in_flight + 1, Ordering::Release);
        self.generations[slot].store(key.generation.wrapping_add(2), Ordering::Release);
        self.bury(key, 0, None);
    }

    /// Records that the client of a connection has closed its sending side: from now on only requests that change data are
    /// carried out, see [`Self::wish`].
    pub(crate) fn half_close(&self, key: ConnKey) {
        self.generations[key.slot as usize].store(key.generation | 1, Ordering::Release);
    }

    /// Records the end of a request whose connection is closed and which held `bytes` of buffer memory. `ended`: time at
    /// which the back end completed the request; `None` if the back end never began it.
    pub(crate) fn bury(&self, key: ConnKey, bytes: u64, ended: Option<Instant>) {
        let mut rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = rests.get_mut(&key.slot).and_then(|rest| rest.left.as_mut()) {
            left.end(ended, bytes);
        }
        if self.orphans[key.slot as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
            // Before the slot has another connection.
            let rest = rests.remove(&key.slot);
            drop(rests);
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(key.slot);
            drop(rest);
        }
    }

    /// True if the connection still exists.
    #[inline]
    pub(crate) fn is_alive(&self, key: ConnKey) -> bool {
        self.generations[key.slot as usize].load(Ordering::Acquire) & !1 == key.generation
    }

    /// The decision, by the state of its connection, if a request whose turn has come is carried out now, later or never.
    #[inline]
    pub(crate) fn wish(&self, key: ConnKey, command: Command) -> Wish {
        let generation = self.generations[key.slot as usize].load(Ordering::Acquire);
        if generation == key.generation {
            Wish::Now
        } else if generation == key.generation | 1 && is_change(command) {
            Wish::Later
        } else {
            Wish::Never
        }
    }

    /// Index of the worker that serves the connection.
    #[inline]
    pub(crate) fn home(&self, key: ConnKey) -> usize {
        self.homes[key.slot as usize].load(Ordering::Acquire) as usize
    }

    /// Makes `worker` the home of the connection, before the connection is handed over to it.
    pub(crate) fn set_home(&self, key: ConnKey, worker: usize) {
        self.homes[key.slot as usize].store(worker as u32, Ordering::Release);
    }

    /// The keys of all connections that exist at about this moment.
    pub(crate) fn all_alive(&self) -> Vec<ConnKey> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut used = vec![true; self.homes.len()];
        free.into_iter().for_each(|slot| used[slot as usize] = false);
        (0..used.len()).filter(|&slot| used[slot]).map(|slot| self.key(slot as u32)).collect()
    }

    /// Number of slots in use: by open connections, and by closed ones whose requests have not all ended.
    pub(crate) fn taken(&self) -> u32 {
        (self.len() - self.free.lock().unwrap_or_else(PoisonError::into_inner).len()) as u32
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.homes.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_control::Duration;

    use super::*;
    use crate::budget::Budget;
    use crate::handshakes::Handshakes;
    use crate::transport::Peer;

    #[test]
    fn a_connection_counts_as_one_of_its_client_until_its_last_request_has_ended() {
        let (now, peer) = (Instant::ZERO, Peer::default());
        let handshakes = Arc::new(Handshakes::new(64, 64, Duration::from_secs(30), 16));
        let account = Budget::new(1 << 20).account(&"tenant".into());
        let slots = Slots::new(16);
        let mut gone = Vec::new();
        while let Ok((_, place)) = handshakes.begin(&peer, now) {
            let key = slots.take().expect("the client may not have all");
            slots.give(key, 2, Rest { _place: place, left: Some(account.join().leave_behind(now, 1, 200)) });
            gone.push(key);
        }
        assert!(gone.len() < 16 && account.connections() as usize == gone.len());
        slots.bury(gone[0], 100, Some(now));
        assert!(handshakes.begin(&peer, now).is_err());
        slots.bury(gone[0], 100, Some(now));
        assert!(handshakes.begin(&peer, now).is_ok());
        assert_eq!((account.connections() as usize, slots.taken() as usize), (gone.len() - 1, gone.len() - 1));
    }
}
