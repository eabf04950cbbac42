//! One direction of a TCP connection, in flights: the data of a window at once.

use alloc::collections::VecDeque;

/// The sender's side of a byte stream, and the receiver's count. Payload of requests, one after the other.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Request, and what of it has not been sent.
    queue: VecDeque<(u64, u64)>,
    /// Bytes sent, acknowledged and received so far.
    sent: u64,
    acked: u64,
    received: u64,
    /// Received and not acknowledged yet.
    pub(super) unacked: u64,
    /// Counts the acknowledgements, so that a timer that was overtaken is known.
    pub(super) acks: u64,
}

/// A piece of a request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) request: u64,
    pub(super) bytes: u64,
    /// True if the request is complete with it.
    pub(super) last: bool,
}

impl Stream {
    pub(super) fn push(&mut self, request: u64, bytes: u64) {
        self.queue.push_back((request, bytes));
    }

    /// The next flight that the window allows. As TCP does against silly windows, less than half of the window goes only
    /// if it is all there is of a request.
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

    /// A flight arrived.
    pub(super) fn receive(&mut self, bytes: u64) {
        self.received += bytes;
        self.unacked += bytes;
    }

    /// The receiver acknowledges all it has; answers up to where.
    pub(super) fn acknowledge(&mut self) -> u64 {
        self.unacked = 0;
        self.acks += 1;
        self.received
    }

    /// The sender learns of an acknowledgement; a later one may have been faster.
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
