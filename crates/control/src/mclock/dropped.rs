//! Takes queued requests out of the queue before their turn comes, because they are not wanted any more.

use alloc::vec::Vec;

use super::lanes::Place;
use super::{ClientId, Queue, live_mut, take_all};
use crate::time::Instant;

impl<R> Queue<R> {
    /// Takes those of a client's queued requests out of the queue for which `unwanted` is true; returns each with the instant at
    /// which it was queued. They are not charged, and the others keep their order. O(requests that the client has queued).
    pub fn remove_if(&mut self, now: Instant, id: ClientId, mut unwanted: impl FnMut(&R) -> bool) -> Vec<(Instant, R)> {
        let Some(client) = live_mut(&mut self.clients, id) else { return Vec::new() };
        let mut removed = Vec::new();
        for (request, payload) in take_all(&mut self.requests, client) {
            if unwanted(&payload) {
                removed.push((request.queued_at, payload));
            } else {
                // There is room: as many have just been taken out.
                let _ = self.requests.push(client.fifo_for(request.work.kind), request, payload);
            }
        }
        let put_off = client.len() - client.ordinary_len();
        for _ in 0..put_off {
            let later = client.later_mut();
            let Some(request) = self.requests.front(later).map(|(request, _)| *request) else { break };
            let Some(payload) = self.requests.pop(later) else { break };
            if unwanted(&payload) {
                removed.push((request.queued_at, payload));
            } else {
                let _ = self.requests.push(later, request, payload);
            }
        }
        if put_off > 0 {
            client.account(Place::Later, 0);
        }
        if removed.is_empty() {
            return removed;
        }
        let is_active = client.is_active();
        self.withdraw(id.index);
        if is_active {
            self.place(now, id.index);
        }
        removed
    }
}
