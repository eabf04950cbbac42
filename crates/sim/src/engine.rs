//! What happens next: an event queue in integer nanoseconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_control::Instant;

/// Events in order of time, and of insertion among simultaneous ones.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    pushed: u64,
    now: Instant,
}

#[derive(Debug)]
struct Entry<E> {
    at: Instant,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), pushed: 0, now: Instant::ZERO }
    }
}

impl<E> Queue<E> {
    /// The instant of the last event taken out.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Makes `event` happen at `at`, or now if that is past. O(log n).
    pub fn push(&mut self, at: Instant, event: E) {
        self.heap.push(Reverse(Entry { at: at.max(self.now), order: self.pushed, event }));
        self.pushed += 1;
    }

    /// The next event. O(log n).
    pub fn pop(&mut self) -> Option<(Instant, E)> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some((entry.at, entry.event))
    }
}
