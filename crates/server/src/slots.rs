//! Names and homes of connections.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use evenkeel_control::mclock::Wish;
use evenkeel_nbd::wire::Command;

use crate::worker::request::{ConnKey, is_change};

/// Names and homes of connections.
pub(crate) struct Slots {
    /// Of the connection that uses each slot, or used it last; one more if its client has closed its end.
    generations: Vec<AtomicU32>,
    homes: Vec<AtomicU32>,
    /// Requests that outlived their connection.
    orphans: Vec<AtomicU32>,
    free: Mutex<Vec<u32>>,
}

impl Slots {
    /// Room for `count` connections.
    pub(crate) fn new(count: u32) -> Self {
        let zeros = || (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { generations: zeros(), homes: zeros(), orphans: zeros(), free: Mutex::new((0..count).rev().collect()) }
    }

    /// Names a new connection, which has no home yet; `None` when there are too many.
    pub(crate) fn take(&self) -> Option<ConnKey> {
        Some(self.key(self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?))
    }

    /// The connection that uses a slot at present, or used it last.
    pub(crate) fn key(&self, slot: u32) -> ConnKey {
        ConnKey { slot, generation: self.generations[slot as usize].load(Ordering::Acquire) & !1 }
    }

    /// The connection is gone; what is under way for it is not to be delivered. Its slot is free once its
    /// `in_flight` requests have ended too: otherwise clients that come, ask and go could fill a pool's queue without bound.
    pub(crate) fn give(&self, key: ConnKey, in_flight: u32) {
        let slot = key.slot as usize;
        // One more than there are, so that the last of them does not free the slot before we are done.
        self.orphans[slot].store(in_flight + 1, Ordering::Release);
        self.generations[slot].store(key.generation.wrapping_add(2), Ordering::Release);
        self.bury(key);
    }

    /// The client of a connection has closed its end.
    pub(crate) fn half_close(&self, key: ConnKey) {
        self.generations[key.slot as usize].store(key.generation | 1, Ordering::Release);
    }

    /// A request has ended whose connection is gone.
    pub(crate) fn bury(&self, key: ConnKey) {
        if self.orphans[key.slot as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(key.slot);
        }
    }

    /// True if the connection still exists.
    #[inline]
    pub(crate) fn is_alive(&self, key: ConnKey) -> bool {
        self.generations[key.slot as usize].load(Ordering::Acquire) & !1 == key.generation
    }

    /// The fate of a request of a connection, now that its turn has come.
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

    /// Connections that exist, and those that requests have outlived.
    pub(crate) fn taken(&self) -> u32 {
        (self.len() - self.free.lock().unwrap_or_else(PoisonError::into_inner).len()) as u32
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> usize {
        self.homes.len()
    }
}
