//! Names of connections, and their homes: the workers that serve them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use evenkeel_control::Instant;
use evenkeel_control::mclock::Wish;
use evenkeel_nbd::wire::Command;

use crate::budget::LeftBehind;
use crate::handshakes::Place;
use crate::worker::request::{ConnKey, is_change};

/// Names and homes of connections, by slot.
pub(crate) struct Slots {
    /// Generation of the connection that uses each slot, or used it last; one more if its client has closed its end.
    generations: Vec<AtomicU32>,
    homes: Vec<AtomicU32>,
    /// Requests in flight that have outlived their connection, by slot.
    orphans: Vec<AtomicU32>,
    /// Rests of closed connections whose requests have not all ended, by slot.
    rests: Mutex<HashMap<u32, Rest>>,
    free: Mutex<Vec<u32>>,
}

/// The part of a connection that stays until its last request has ended: it still counts as its client's and its tenant's,
/// and so do the bytes that it left behind.
pub(crate) struct Rest {
    pub(crate) _place: Place,
    pub(crate) left: Option<LeftBehind>,
}

impl Slots {
    /// Room for `count` connections.
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

    /// Names a new connection, which has no home yet; `None` when all slots are taken.
    pub(crate) fn take(&self) -> Option<ConnKey> {
        Some(self.key(self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?))
    }

    /// The connection that uses a slot at present, or used it last.
    pub(crate) fn key(&self, slot: u32) -> ConnKey {
        ConnKey { slot, generation: self.generations[slot as usize].load(Ordering::Acquire) & !1 }
    }

    /// The connection is gone; results of its requests under way are not delivered. Its slot is free once its `in_flight`
    /// requests have ended, too: otherwise clients that connect, ask and leave could fill a pool's queue without bound, or
    /// exceed the bound on one client's connections.
    pub(crate) fn give(&self, key: ConnKey, in_flight: u32, rest: Rest) {
        let slot = key.slot as usize;
        self.rests.lock().unwrap_or_else(PoisonError::into_inner).insert(key.slot, rest);
        // One more than there are, so that the last of them does not free the slot before we are done.
        self.orphans[slot].store(in_flight + 1, Ordering::Release);
        self.generations[slot].store(key.generation.wrapping_add(2), Ordering::Release);
        self.bury(key, 0, None);
    }

    /// The client of a connection has closed its end: from now on only changes are carried out, see [`Self::wish`].
    pub(crate) fn half_close(&self, key: ConnKey) {
        self.generations[key.slot as usize].store(key.generation | 1, Ordering::Release);
    }

    /// A request has ended whose connection is gone, and which held `bytes` of buffer memory. `ended`: when the back end ended
    /// it; `None` if that never began it.
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

    /// Tells if a request whose turn has come is carried out now, later or never, by the state of its connection.
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

    /// The worker that serves the connection.
    #[inline]
    pub(crate) fn home(&self, key: ConnKey) -> usize {
        self.homes[key.slot as usize].load(Ordering::Acquire) as usize
    }

    /// The connection now belongs to `worker`, which is about to get it.
    pub(crate) fn set_home(&self, key: ConnKey, worker: usize) {
        self.homes[key.slot as usize].store(worker as u32, Ordering::Release);
    }

    /// Every connection that exists at this moment, about.
    pub(crate) fn all_alive(&self) -> Vec<ConnKey> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut used = vec![true; self.homes.len()];
        free.into_iter().for_each(|slot| used[slot as usize] = false);
        (0..used.len()).filter(|&slot| used[slot]).map(|slot| self.key(slot as u32)).collect()
    }

    /// Slots in use: connections that exist, and closed ones whose requests have not all ended.
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
