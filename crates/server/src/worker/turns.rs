//! Connections that negotiate and wait for their turn.

use std::collections::VecDeque;

use evenkeel_control::Instant;

use super::request::ConnKey;

/// Two queues: of clients that are within their own account, and of the others, which must not be in their way.
pub(super) struct Turns {
    queues: [VecDeque<ConnKey>; 2],
    /// When the first of either is to be called.
    at: Instant,
}

impl Default for Turns {
    fn default() -> Self {
        Self { queues: Default::default(), at: Instant::FAR_FUTURE }
    }
}

impl Turns {
    /// When to look again.
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// When to look again and in which queue to wait, if others wait for time that is left over.
    pub(super) fn crowd(&self) -> Option<(Instant, bool)> {
        (!self.queues[usize::from(false)].is_empty()).then_some((self.at, false))
    }

    /// Puts a connection behind those that wait.
    pub(super) fn push(&mut self, key: ConnKey, until: Instant, own: bool) {
        self.queues[usize::from(own)].push_back(key);
        self.at = self.at.min(until);
    }

    /// Puts a connection in front of them.
    pub(super) fn put_back(&mut self, key: ConnKey, until: Instant, own: bool) {
        self.queues[usize::from(own)].push_front(key);
        self.at = self.at.min(until);
    }

    /// The queues to be looked at now, in this order; a connection that still waits is put back.
    pub(super) fn due(&mut self) -> [bool; 2] {
        self.at = Instant::FAR_FUTURE;
        [true, false]
    }

    /// The first of a queue.
    pub(super) fn pop(&mut self, own: bool) -> Option<ConnKey> {
        self.queues[usize::from(own)].pop_front()
    }
}
