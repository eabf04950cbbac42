//! Clients of an iSCSI target over TCP, with delayed packets from the target, and the storage behind it.
//!
//! ```text
//!  client ── requests, data to write ──▶ ┌────────┐ ──▶ queue ──▶ servers
//!         ◀── delay ◀── acknowledgements │ target │
//!         ◀── delay ◀── data, responses  └────────┘ ◀── done
//! ```
//!
//! A connection is a byte stream with a receive window in each direction. A window of data travels as one flight; the next
//! flight is sent when the last one is acknowledged. So a write of several windows waits for acknowledgements, and delaying
//! these slows the client without losing a packet. The last flight of a request needs no acknowledgement, and any payload sent
//! back carries one: with a window as large as the request, delayed acknowledgements have no effect.
//!
//! Left out: losses (the modelled experiments had none), slow start (connections are long-lived), segments within a flight,
//! R2T (writes are unsolicited).

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Reverse;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use crate::jitter::Jitter;
use crate::params::{InvalidParams, check};

mod array;
mod stream;

use array::Array;
use stream::{Flight, Stream};

/// Bytes of a request or response without data: the basic header segment of an iSCSI PDU.
const HEADER_BYTES: u64 = 48;
/// Payload of a TCP segment in bytes. A receiver acknowledges two full segments immediately, and less data after a delay.
const SEGMENT_BYTES: u64 = 1448;

/// The packets from the target to a client that are delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delayed {
    /// Acknowledgements without payload; slows clients whose writes exceed a window.
    #[default]
    Acknowledgements,
    /// Packets with payload; slows clients that read.
    Payload,
    /// All packets; slows all clients.
    Everything,
}

/// A delay of packets from the target to a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// Length of the delay.
    pub delay: Duration,
    /// The packets that are delayed.
    pub on: Delayed,
}

impl Throttle {
    fn on_acknowledgements(self) -> Duration {
        if self.on == Delayed::Payload { Duration::ZERO } else { self.delay }
    }

    fn on_payload(self) -> Duration {
        if self.on == Delayed::Acknowledgements { Duration::ZERO } else { self.delay }
    }
}

/// The parameters of a [`Link`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkParams {
    /// One-way time of a packet, processing included, without the time for its bytes.
    pub latency: Duration,
    /// Rate of all clients together towards the target, in bytes per second.
    pub to_target_bytes_per_s: u64,
    /// Rate of the target towards all clients together, in bytes per second.
    pub from_target_bytes_per_s: u64,
    /// The target's receive window for a connection: upper bound on the unacknowledged data towards the target, in bytes.
    pub target_window_bytes: u64,
    /// A client's receive window for a connection: upper bound on the unacknowledged data towards the client, in bytes.
    pub client_window_bytes: u64,
    /// Time after which the target acknowledges data of less than two segments.
    pub delayed_ack: Duration,
    /// Number of requests that the storage serves at the same time.
    pub servers: u32,
    /// Mean service time of a read.
    pub read_time: Duration,
    /// Mean service time of a write.
    pub write_time: Duration,
    /// Distribution of service times around their means.
    pub jitter: Jitter,
}

impl LinkParams {
    /// A target on a slow pool, as measured with one client and requests of 64 KiB: a write takes 2.9 ms plus twice the delay of
    /// acknowledgements, a read 4.0 ms plus twice the delay of payload.
    pub const fn one_client() -> Self {
        Self {
            latency: Duration::from_micros(150),
            to_target_bytes_per_s: 1_000_000_000,
            from_target_bytes_per_s: 46_000_000,
            target_window_bytes: 24 << 10,
            client_window_bytes: 40 << 10,
            delayed_ack: Duration::from_millis(40),
            servers: 1,
            read_time: Duration::from_millis(2),
            write_time: Duration::from_millis(2),
            jitter: Jitter::None,
        }
    }

    /// The target of [`Self::one_client`] under twelve writers from three hosts and a reader, as measured. The storage serves a
    /// read in 3 ms and a write in 3.4 ms. With many connections each has a smaller receive window (12 KiB), so that a write of
    /// 64 KiB waits for five delayed acknowledgements.
    pub const fn shared() -> Self {
        Self {
            target_window_bytes: 12 << 10,
            read_time: Duration::from_millis(3),
            write_time: Duration::from_micros(3400),
            jitter: Jitter::LogNormal { sigma: 0.25 },
            ..Self::one_client()
        }
    }

    /// Checks that the parameters are in range.
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        check(&[
            (self.to_target_bytes_per_s > 0, "to_target_bytes_per_s", "greater than 0"),
            (self.from_target_bytes_per_s > 0, "from_target_bytes_per_s", "greater than 0"),
            (self.target_window_bytes >= 2 * SEGMENT_BYTES, "target_window_bytes", "at least 2896"),
            (self.client_window_bytes >= 2 * SEGMENT_BYTES, "client_window_bytes", "at least 2896"),
            (self.servers > 0, "servers", "greater than 0"),
            (self.read_time > Duration::ZERO, "read_time", "greater than 0"),
            (self.write_time > Duration::ZERO, "write_time", "greater than 0"),
            (self.jitter.is_valid(), "jitter", "uniform with a spread of 0 to 1 or lognormal with a sigma of 0 to 2"),
        ])
    }
}

/// A request whose response has arrived at its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Number of the request's connection.
    pub connection: usize,
    /// The caller's id of the request.
    pub id: u64,
    /// Time from submission to the arrival of the response's last byte.
    pub response: Duration,
}

/// Totals that the target has counted for a connection so far, like a kernel's disk statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads that the storage completed.
    pub reads: u64,
    /// Sum over the completed reads of their time at the storage, in the queue and in service.
    pub read_time: Duration,
    /// Payload bytes of the completed reads.
    pub read_bytes: u64,
    /// Writes that the storage completed.
    pub writes: u64,
    /// Payload bytes of the completed writes.
    pub written_bytes: u64,
}

#[derive(Debug, Default)]
struct Connection {
    throttle: Throttle,
    to_target: Stream,
    to_client: Stream,
    counters: Counters,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    connection: usize,
    id: u64,
    kind: Kind,
    bytes: u64,
    submitted: Instant,
    at_storage: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A flight (a window of data) of a request arrives at the target.
    AtTarget { connection: usize, request: u64, bytes: u64, last: bool },
    /// A flight arrives at a client. It acknowledges the first `acks` bytes towards the target, all that the target had
    /// received when it sent the flight.
    AtClient { connection: usize, request: u64, bytes: u64, last: bool, acks: u64 },
    /// An acknowledgement of all bytes up to `up_to` arrives at a client.
    AckAtClient { connection: usize, up_to: u64 },
    /// An acknowledgement of all bytes up to `up_to` arrives at the target.
    AckAtTarget { connection: usize, up_to: u64 },
    /// The timer of a delayed acknowledgement ends. The target acknowledges now, unless it has sent an acknowledgement since the
    /// timer's start, when it had sent `acks` of them.
    DelayedAck { connection: usize, acks: u64 },
    /// The storage has served a request.
    Served { request: u64 },
}

/// Clients, a target and its storage. A connection's [`Throttle`] can change at any time, for packets sent after the change.
#[derive(Debug)]
pub struct Link {
    params: LinkParams,
    rng: SplitMix64,
    connections: Vec<Connection>,
    requests: BTreeMap<u64, Request>,
    submitted: u64,
    array: Array,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    pushed: u64,
    /// When the wire towards the target has carried all data sent so far.
    to_target_free: Instant,
    /// When the wire from the target has carried all data sent so far.
    from_target_free: Instant,
}

impl Link {
    /// A link with `connections` idle connections. The same seed and calls give the same completions. With parameters that
    /// [`LinkParams::validate`] refuses, requests may never complete.
    pub fn new(params: LinkParams, connections: usize, seed: u64) -> Self {
        Self {
            params,
            rng: SplitMix64::new(seed),
            connections: (0..connections).map(|_| Connection::default()).collect(),
            requests: BTreeMap::new(),
            submitted: 0,
            array: Array::new(),
            events: BinaryHeap::new(),
            pushed: 0,
            to_target_free: Instant::ZERO,
            from_target_free: Instant::ZERO,
        }
    }

    /// Sets the delay of packets that are sent to the connection's client from now on.
    ///
    /// # Panics
    /// When there is no connection of this number.
    pub fn set_throttle(&mut self, connection: usize, throttle: Throttle) {
        self.connections[connection].throttle = throttle;
    }

    /// The target's totals for a connection.
    ///
    /// # Panics
    /// When there is no connection of this number.
    pub fn counters(&self, connection: usize) -> Counters {
        self.connections[connection].counters
    }

    /// Submits a request of the connection's client; [`Link::poll`] returns `id` when it has completed.
    ///
    /// # Panics
    /// When there is no connection of this number.
    pub fn submit(&mut self, now: Instant, connection: usize, id: u64, kind: Kind, bytes: u32) {
        let request = self.submitted;
        self.submitted += 1;
        let bytes = u64::from(bytes);
        self.requests.insert(request, Request { connection, id, kind, bytes, submitted: now, at_storage: now });
        let payload = if kind == Kind::Write { bytes } else { 0 };
        self.connections[connection].to_target.push(request, HEADER_BYTES + payload);
        self.send_to_target(now, connection);
    }

    /// Time of the next poll; `Instant::FAR_FUTURE` when nothing is in flight.
    pub fn next_event(&self) -> Instant {
        self.events.peek().map_or(Instant::FAR_FUTURE, |Reverse((at, ..))| *at)
    }

    /// The next request whose response arrived at its client by `now`, in order of arrival; call until `None`.
    pub fn poll(&mut self, now: Instant) -> Option<Done> {
        while let Some(&Reverse((at, _, event))) = self.events.peek() {
            if at > now {
                return None;
            }
            self.events.pop();
            if let Some(done) = self.happen(at, event) {
                return Some(done);
            }
        }
        None
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.events.push(Reverse((at, self.pushed, event)));
        self.pushed += 1;
    }

    fn happen(&mut self, now: Instant, event: Event) -> Option<Done> {
        match event {
            Event::AtTarget { connection, request, bytes, last } => {
                self.connections[connection].to_target.receive(bytes);
                if last {
                    self.at_storage(now, request);
                }
                self.acknowledge(now, connection);
            }
            Event::AckAtClient { connection, up_to } => {
                self.connections[connection].to_target.acknowledged(up_to);
                self.send_to_target(now, connection);
            }
            Event::AckAtTarget { connection, up_to } => {
                self.connections[connection].to_client.acknowledged(up_to);
                self.send_to_client(now, connection);
            }
            Event::DelayedAck { connection, acks } => {
                let stream = &self.connections[connection].to_target;
                if stream.acks == acks && stream.unacked > 0 {
                    self.send_ack(now, connection);
                }
            }
            Event::Served { request } => self.served(now, request),
            Event::AtClient { connection, request, bytes, last, acks } => {
                let stream = &mut self.connections[connection].to_client;
                stream.receive(bytes);
                let up_to = stream.acknowledge();
                self.push(now + self.params.latency, Event::AckAtTarget { connection, up_to });
                self.connections[connection].to_target.acknowledged(acks);
                self.send_to_target(now, connection);
                if last && let Some(done) = self.requests.remove(&request) {
                    return Some(Done { connection, id: done.id, response: now.since(done.submitted) });
                }
            }
        }
        None
    }

    fn send_to_target(&mut self, now: Instant, connection: usize) {
        let window = self.params.target_window_bytes;
        while let Some(Flight { request, bytes, last }) = self.connections[connection].to_target.next(window) {
            let begins = now.max(self.to_target_free);
            self.to_target_free = begins + over_wire(bytes, self.params.to_target_bytes_per_s);
            let at = self.to_target_free + self.params.latency;
            self.push(at, Event::AtTarget { connection, request, bytes, last });
        }
    }

    fn send_to_client(&mut self, now: Instant, connection: usize) {
        let window = self.params.client_window_bytes;
        while let Some(Flight { request, bytes, last }) = self.connections[connection].to_client.next(window) {
            let begins = now.max(self.from_target_free);
            self.from_target_free = begins + over_wire(bytes, self.params.from_target_bytes_per_s);
            let link = &mut self.connections[connection];
            let acks = link.to_target.acknowledge();
            let at = self.from_target_free + self.params.latency + link.throttle.on_payload();
            self.push(at, Event::AtClient { connection, request, bytes, last, acks });
        }
    }

    /// Lets the target acknowledge the data it has received: immediately from two segments on, less data after `delayed_ack`.
    fn acknowledge(&mut self, now: Instant, connection: usize) {
        let stream = &self.connections[connection].to_target;
        if stream.unacked >= 2 * SEGMENT_BYTES {
            self.send_ack(now, connection);
        } else if stream.unacked > 0 {
            let acks = stream.acks;
            self.push(now + self.params.delayed_ack, Event::DelayedAck { connection, acks });
        }
    }

    fn send_ack(&mut self, now: Instant, connection: usize) {
        let link = &mut self.connections[connection];
        let up_to = link.to_target.acknowledge();
        let at = now + self.params.latency + link.throttle.on_acknowledgements();
        self.push(at, Event::AckAtClient { connection, up_to });
    }

    fn at_storage(&mut self, now: Instant, number: u64) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        request.at_storage = now;
        let kind = request.kind;
        if let Some(until) = self.array.submit(now, number, kind, &self.params, &mut self.rng) {
            self.push(until, Event::Served { request: number });
        }
    }

    fn served(&mut self, now: Instant, number: u64) {
        if let Some((next, until)) = self.array.end(now, &self.params, &mut self.rng) {
            self.push(until, Event::Served { request: next });
        }
        let Some(&request) = self.requests.get(&number) else { return };
        let link = &mut self.connections[request.connection];
        let counters = &mut link.counters;
        let payload = if request.kind == Kind::Read {
            counters.reads += 1;
            counters.read_time = counters.read_time + now.since(request.at_storage);
            counters.read_bytes += request.bytes;
            request.bytes
        } else {
            counters.writes += 1;
            counters.written_bytes += request.bytes;
            0
        };
        link.to_client.push(number, HEADER_BYTES + payload);
        self.send_to_client(now, request.connection);
    }
}

fn over_wire(bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000).div_ceil(bytes_per_s.max(1)))
}
