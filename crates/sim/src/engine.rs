//! The event queue, in integer nanoseconds of virtual time.
//!
//! *Events* are pushed once, happen once and carry data. *Alarms* are few and fixed in number. Each is set to one
//! instant, which can be moved earlier or later at no cost; so alarms suit a state machine that names a new deadline
//! after each call. An event that were moved would leave a stale entry in the heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use evenkeel_control::Instant;

use crate::slab::Slab;

/// More events than this at one instant of virtual time count as an endless loop. A million clients that all start at
/// the same instant stay below; an endless loop exceeds the number in well under a second of real time.
pub const EVENTS_AT_ONE_INSTANT: u64 = 4_000_000;

/// Bits of a heap's entry for an event's index.
const PLACE_BITS: u32 = 24;
/// Bits of a heap's entry for an event's sequence number: enough for days of real time.
const NUMBER_BITS: u32 = 40;

/// A number by which events are in order of instant, then of sequence number.
#[inline]
fn order(at: Instant, number: u64) -> u128 {
    u128::from(at.as_nanos()) << NUMBER_BITS | u128::from(number)
}

/// The alarm or event that the queue delivers next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due<E> {
    /// The alarm with this number fired; it is off until it is set again.
    Alarm(usize),
    /// An event, with its data.
    Event(E),
}

/// Events and alarms in order of time. At one instant alarms come first, in order of their numbers, then events in order
/// of insertion: the order depends on nothing but the calls made.
#[derive(Debug)]
pub struct Queue<E, const ALARMS: usize = 0> {
    /// For each pending event its [`order`], and below that in [`PLACE_BITS`] its index in `events`: one number, which takes less
    /// room and fewer jumps to compare than three.
    heap: BinaryHeap<Reverse<u128>>,
    events: Slab<E>,
    /// Pending events that were pushed in order of time: instant, sequence number and event of each.
    line: VecDeque<(Instant, u64, E)>,
    alarms: [Instant; ALARMS],
    pushed: u64,
    now: Instant,
    at_this_instant: u64,
    popped: u64,
}

impl<E, const ALARMS: usize> Default for Queue<E, ALARMS> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            events: Slab::default(),
            line: VecDeque::new(),
            alarms: [Instant::FAR_FUTURE; ALARMS],
            pushed: 0,
            now: Instant::ZERO,
            at_this_instant: 0,
            popped: 0,
        }
    }
}

impl<E, const ALARMS: usize> Queue<E, ALARMS> {
    /// Current virtual time: the instant of the last event or alarm taken out.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Events and alarms taken out so far.
    pub fn popped(&self) -> u64 {
        self.popped
    }

    /// True if more than [`EVENTS_AT_ONE_INSTANT`] events and alarms were taken out at the present virtual instant, which
    /// means an endless loop.
    #[inline]
    pub fn is_looping(&self) -> bool {
        self.at_this_instant > EVENTS_AT_ONE_INSTANT
    }

    /// Makes `event` happen at `at`, or at the present instant if `at` is past. O(log n) for n pending events.
    ///
    /// # Panics
    /// With more than 2²⁴ pending events, and at the event after 2⁴⁰ pushed ones.
    pub fn push(&mut self, at: Instant, event: E) {
        let (place, number) = (self.events.insert(event), self.number());
        assert!(place < 1 << PLACE_BITS, "at most 2^24 events are pending");
        self.heap.push(Reverse(order(at.max(self.now), number) << PLACE_BITS | u128::from(place)));
    }

    /// The sequence number of an event that is pushed now.
    #[inline]
    fn number(&mut self) -> u64 {
        let number = self.pushed;
        assert!(number < 1 << NUMBER_BITS, "at most 2^40 events are pushed");
        self.pushed += 1;
        number
    }

    /// As [`Self::push`], but O(1) if no earlier call of this function named a later instant: for events that all come the same
    /// time after they are pushed.
    ///
    /// # Panics
    /// As [`Self::push`].
    #[inline]
    pub fn push_in_line(&mut self, at: Instant, event: E) {
        let at = at.max(self.now);
        if self.line.back().is_some_and(|(last, ..)| *last > at) {
            self.push(at, event);
            return;
        }
        let number = self.number();
        self.line.push_back((at, number, event));
    }

    /// Sets an alarm to `at`, or to now if `at` is past, in place of its earlier instant; `Instant::FAR_FUTURE` turns it off.
    ///
    /// # Panics
    /// When there is no alarm of this number.
    #[inline]
    pub fn set_alarm(&mut self, alarm: usize, at: Instant) {
        self.alarms[alarm] = at.max(self.now);
    }

    /// Takes out the next event or alarm, and moves virtual time to its instant; `None` if none is due before
    /// `Instant::FAR_FUTURE`. O(log n + alarms) for n pending events.
    #[inline]
    pub fn pop(&mut self) -> Option<(Instant, Due<E>)> {
        let in_heap = self.heap.peek().map(|Reverse(entry)| entry >> PLACE_BITS);
        let in_line = self.line.front().map(|(at, number, _)| order(*at, *number));
        let is_line_first = in_line.is_some_and(|first| in_heap.is_none_or(|other| first < other));
        let event = if is_line_first { in_line } else { in_heap };
        let mut at = event.map_or(Instant::FAR_FUTURE, |order| Instant::from_nanos((order >> NUMBER_BITS) as u64));
        let mut first = None;
        for (number, &alarm) in self.alarms.iter().enumerate().rev() {
            if alarm <= at {
                (at, first) = (alarm, Some(number));
            }
        }
        if at == Instant::FAR_FUTURE {
            return None;
        }
        let due = match first {
            Some(number) => {
                self.alarms[number] = Instant::FAR_FUTURE;
                Due::Alarm(number)
            }
            None if is_line_first => Due::Event(self.line.pop_front()?.2),
            None => Due::Event(self.events.remove(self.heap.pop()?.0 as u64 & ((1 << PLACE_BITS) - 1))?),
        };
        self.at_this_instant = if at == self.now { self.at_this_instant + 1 } else { 1 };
        self.now = at;
        self.popped += 1;
        Some((at, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_keep_their_order_whatever_their_numbers() {
        for pushed in [0, (1 << 36) - 1, (1 << NUMBER_BITS) - 4] {
            let mut queue: Queue<u8> = Queue { pushed, ..Queue::default() };
            let at = Instant::from_nanos(5);
            queue.push(at, 0);
            queue.push_in_line(at, 1);
            queue.push(at, 2);
            queue.push_in_line(at, 3);
            let order: Vec<Due<u8>> = std::iter::from_fn(|| queue.pop()).map(|(_, due)| due).collect();
            assert_eq!(order, [0, 1, 2, 3].map(Due::Event), "from number {pushed} on");
        }
    }

    #[test]
    #[should_panic(expected = "at most 2^40 events")]
    fn a_number_that_does_not_fit_is_noticed() {
        let mut queue: Queue<u8> = Queue { pushed: 1 << NUMBER_BITS, ..Queue::default() };
        queue.push_in_line(Instant::ZERO, 0);
    }
}
