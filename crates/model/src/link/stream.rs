//! One direction of a TCP connection, in flights: a flight is the data that a window allows.

use alloc::collections::VecDeque;

/// The sender's side of a byte stream, with the receiver's counts. Requests' payloads follow each other.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Requests in order, each with its bytes that are not sent yet.
    queue: VecDeque<(u64, u64)>,
    /// Total bytes sent, acknowledged and received.
    sent: u64,
    acked: u64,
    received: u64,
    /// Bytes received and not acknowledged yet.
    pub(super) unacked: u64,
    /// Number of acknowledgements, by which a timer that came too late is recognised.
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

    /// The next flight that the window allows. As in TCP's silly window avoidance, less than half a window is only sent
    /// if it is the rest of a request.
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

    /// Counts the arrival of a flight.
    pub(super) fn receive(&mut self, bytes: u64) {
        self.received += bytes;
        self.unacked += bytes;
    }

    /// Acknowledges all bytes received; the number of bytes acknowledged in total.
    pub(super) fn acknowledge(&mut self) -> u64 {
        self.unacked = 0;
        self.acks += 1;
        self.received
    }

    /// The sender receives an acknowledgement; a later one may have arrived before.
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
