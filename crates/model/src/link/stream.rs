//! One direction of a TCP connection. Data travels in flights: a flight is data of one request that is sent together, at most
//! as much as the receive window allows.

use alloc::collections::VecDeque;

/// A byte stream: the sender's queue and counts, and the receiver's counts. Data of the requests is sent in order.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Requests in order, each with its bytes that are not sent yet.
    queue: VecDeque<(u64, u64)>,
    /// Bytes that the sender has sent so far.
    sent: u64,
    /// Bytes for which the sender has received acknowledgements so far.
    acked: u64,
    /// Bytes that the receiver has received so far.
    received: u64,
    /// Bytes that the receiver has received and not acknowledged yet.
    pub(super) unacked: u64,
    /// Acknowledgements sent so far. A timer of a delayed acknowledgement is void if this number has changed since its start.
    pub(super) acks: u64,
}

/// A part of a request in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) request: u64,
    pub(super) bytes: u64,
    /// True if the flight completes its request.
    pub(super) last: bool,
}

impl Stream {
    pub(super) fn push(&mut self, request: u64, bytes: u64) {
        self.queue.push_back((request, bytes));
    }

    /// The next flight that a window of `window` bytes allows; `None` if it allows none. As in TCP's silly window avoidance, less
    /// than half a window is only sent if it is the rest of a request.
    pub(super) fn next(&mut self, window: u64) -> Option<Flight> {
        let (request, left) = self.queue.front_mut()?;
        let open = window.saturating_sub(self.sent - self.acked);
        let bytes = open.min(*left);
        if bytes == 0 || bytes < *left && 2 * bytes < window {
            return None;
        }
        *left -= bytes;
        let flight = Flight { request: *request, bytes, last: *left == 0 };
        if flight.last {
            self.queue.pop_front();
        }
        self.sent += bytes;
        Some(flight)
    }

    /// Counts a flight of `bytes` that arrives at the receiver.
    pub(super) fn receive(&mut self, bytes: u64) {
        self.received += bytes;
        self.unacked += bytes;
    }

    /// Lets the receiver acknowledge all bytes received; returns the stream's bytes acknowledged so far.
    pub(super) fn acknowledge(&mut self) -> u64 {
        self.unacked = 0;
        self.acks += 1;
        self.received
    }

    /// Counts an acknowledgement of the first `up_to` bytes that arrives at the sender, perhaps after a later one.
    pub(super) fn acknowledged(&mut self, up_to: u64) {
        self.acked = self.acked.max(up_to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_cuts_requests_into_flights() {
        let mut stream = Stream::default();
        stream.push(1, 100);
        stream.push(2, 10);
        let flight = |request, bytes, last| Some(Flight { request, bytes, last });
        assert_eq!(stream.next(40), flight(1, 40, false));
        assert_eq!(stream.next(40), None);
        stream.receive(40);
        let ack = stream.acknowledge();
        stream.acknowledged(ack);
        assert_eq!(stream.next(40), flight(1, 40, false));
        stream.receive(40);
        let (first, second) = (ack, stream.acknowledge());
        stream.acknowledged(second);
        stream.acknowledged(first);
        assert_eq!(stream.next(40), flight(1, 20, true));
        assert_eq!(stream.next(40), flight(2, 10, true));
        assert_eq!(stream.next(40), None);
    }

    #[test]
    fn a_small_opening_is_not_used() {
        let mut stream = Stream::default();
        stream.push(1, 30);
        stream.push(2, 100);
        assert_eq!(stream.next(40).map(|flight| flight.bytes), Some(30));
        assert_eq!(stream.next(40), None, "10 of 100 are not worth a packet");
    }
}
