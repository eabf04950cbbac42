//! Queues of negotiating connections that wait for their client's turn, which bounds the client's processor time.

use std::collections::VecDeque;

use evenkeel_control::Instant;

use super::request::ConnKey;

/// Two queues of negotiating connections: one for clients that are within their own share of processor time, and one for the
/// other clients, which use time that is left over and must not delay the former.
pub(super) struct Turns {
    queues: [VecDeque<ConnKey>; 2],
    /// Earliest moment when the first connection of a queue may go on.
    at: Instant,
}

impl Default for Turns {
    fn default() -> Self {
        Self { queues: Default::default(), at: Instant::FAR_FUTURE }
    }
}

impl Turns {
    /// Earliest moment when the first connection of a queue may go on; [`Instant::FAR_FUTURE`] if none waits.
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// If connections wait for left-over time: the moment when the first may go on, and the number of their queue (`false`).
    pub(super) fn crowd(&self) -> Option<(Instant, bool)> {
        (!self.queues[usize::from(false)].is_empty()).then_some((self.at, false))
    }

    /// Puts a connection at the end of a queue. `until`: when the connection may go on; `own`: true if its client is within
    /// its own share of processor time.
    pub(super) fn push(&mut self, key: ConnKey, until: Instant, own: bool) {
        self.queues[usize::from(own)].push_back(key);
        self.at = self.at.min(until);
    }

    /// Puts a connection back at the front of a queue; the arguments are those of [`Self::push`].
    pub(super) fn put_back(&mut self, key: ConnKey, until: Instant, own: bool) {
        self.queues[usize::from(own)].push_front(key);
        self.at = self.at.min(until);
    }

    /// The queues (`own`) to look at now, in this order. Resets [`Self::at`]: a connection that must wait on is to be put
    /// back.
    pub(super) fn due(&mut self) -> [bool; 2] {
        self.at = Instant::FAR_FUTURE;
        [true, false]
    }

    /// Takes the first connection out of a queue.
    pub(super) fn pop(&mut self, own: bool) -> Option<ConnKey> {
        self.queues[usize::from(own)].pop_front()
    }
}
