//! Connections that negotiate and wait for their turn.

use std::collections::VecDeque;

use evenkeel_control::Instant;

use super::request::ConnKey;

/// Two queues of negotiating connections: of clients within their own account, and of the others, which must not delay those.
pub(super) struct Turns {
    queues: [VecDeque<ConnKey>; 2],
    /// When the first connection of one of the queues is to be called.
    at: Instant,
}

impl Default for Turns {
    fn default() -> Self {
        Self { queues: Default::default(), at: Instant::FAR_FUTURE }
    }
}

impl Turns {
    /// When a waiting connection is to be called next.
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// When to call next, and the queue to wait in, if connections wait for time that is left over.
    pub(super) fn crowd(&self) -> Option<(Instant, bool)> {
        (!self.queues[usize::from(false)].is_empty()).then_some((self.at, false))
    }

    /// Puts a connection at the end of a queue. `until`: when it may go on; `own`: its client is within its own account.
    pub(super) fn push(&mut self, key: ConnKey, until: Instant, own: bool) {
        self.queues[usize::from(own)].push_back(key);
        self.at = self.at.min(until);
    }

    /// Puts a connection back at the front of a queue.
    pub(super) fn put_back(&mut self, key: ConnKey, until: Instant, own: bool) {
        self.queues[usize::from(own)].push_front(key);
        self.at = self.at.min(until);
    }

    /// The queues to look at now, in this order; a connection that has to wait on is to be put back.
    pub(super) fn due(&mut self) -> [bool; 2] {
        self.at = Instant::FAR_FUTURE;
        [true, false]
    }

    /// Takes the first connection of a queue.
    pub(super) fn pop(&mut self, own: bool) -> Option<ConnKey> {
        self.queues[usize::from(own)].pop_front()
    }
}
