//! Clients of an iSCSI target over TCP, with a delay on what is sent back to them, and the storage behind.
//!
//! ```text
//!  client ── requests, data to write ──▶ ┌────────┐ ──▶ queue ──▶ servers
//!         ◀── delay ◀── acknowledgements │ target │
//!         ◀── delay ◀── data, responses  └────────┘ ◀── done
//! ```
//!
//! A connection is a byte stream each way with a window. A window of data travels as one flight; the next goes when
//! the flight is acknowledged. A write of several windows therefore waits for some acknowledgements, and to delay
//! those slows the client without losing a packet. The last flight needs none, and whatever is sent back anyway carries
//! an acknowledgement with it: with a window as large as the request, delayed acknowledgements do nothing at all.
//!
//! Left out: losses (nothing is lost here, as nothing was in the experiments that this stands for), slow start (the
//! connections are long-lived), segments within a flight, R2T (writes go unsolicited).

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

/// Bytes of a request or response without data: the header of a protocol data unit.
const HEADER_BYTES: u64 = 48;
/// A receiver acknowledges two full segments at once, and less after a while.
const SEGMENT_BYTES: u64 = 1448;

/// Which packets to a client are delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delayed {
    /// Acknowledgements without payload: slows clients that write more than a window at once.
    #[default]
    Acknowledgements,
    /// All with payload: slows clients that read.
    Payload,
    /// Everything: slows all clients.
    Everything,
}

/// A delay on what is sent to a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// How long.
    pub delay: Duration,
    /// On what.
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
    /// Time of a packet from one end to the other, processing included.
    pub latency: Duration,
    /// The rate of arrival at the target, in bytes per second, of all clients together.
    pub to_target_bytes_per_s: u64,
    /// The rate of departure from the target, in bytes per second, to all clients together.
    pub from_target_bytes_per_s: u64,
    /// The target's receive window, in bytes: how much of a write may be under way unacknowledged.
    pub target_window_bytes: u64,
    /// A client's receive window, in bytes: the same for what it reads.
    pub client_window_bytes: u64,
    /// After this a receiver acknowledges less than two segments too.
    pub delayed_ack: Duration,
    /// Requests that the storage serves side by side.
    pub servers: u32,
    /// Service time of a read.
    pub read_time: Duration,
    /// Service time of a write.
    pub write_time: Duration,
    /// How service times vary.
    pub jitter: Jitter,
}

impl LinkParams {
    /// A target on a slow pool, as measured with one client at a time and 64 KiB requests: 2.9 ms and two delays for a
    /// write, 4.0 ms and two delays for a read.
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

    /// The same with a pool of 3 ms (3.4 ms with what a write costs besides), as measured with twelve writers from three hosts beside a reader. Many connections
    /// left less of the receive buffer to each: five delays for a write.
    pub const fn shared() -> Self {
        Self {
            target_window_bytes: 12 << 10,
            read_time: Duration::from_millis(3),
            write_time: Duration::from_micros(3400),
            jitter: Jitter::LogNormal { sigma: 0.25 },
            ..Self::one_client()
        }
    }

    /// Checks that the parameters make sense.
    ///
    /// # Errors
    /// The first that does not, and what would be right.
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

/// A request that has come back to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Of which connection.
    pub connection: usize,
    /// The caller's number.
    pub id: u64,
    /// From submission to the last byte back.
    pub response: Duration,
}

/// The target's own counters of a connection, as a kernel's disk statistics are: since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads that the storage completed.
    pub reads: u64,
    /// Time they spent waiting and in service, summed.
    pub read_time: Duration,
    /// Payload of these reads, in bytes.
    pub read_bytes: u64,
    /// Writes that the storage completed.
    pub writes: u64,
    /// Payload of these writes, in bytes.
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
    /// A flight arrives at the target.
    AtTarget { connection: usize, request: u64, bytes: u64, last: bool },
    /// A flight arrives at a client, with an acknowledgement of what the target had then.
    AtClient { connection: usize, request: u64, bytes: u64, last: bool, acks: u64 },
    /// An acknowledgement arrives at a client.
    AckAtClient { connection: usize, up_to: u64 },
    /// An acknowledgement arrives at the target.
    AckAtTarget { connection: usize, up_to: u64 },
    /// The target acknowledges, if it has not by then.
    DelayedAck { connection: usize, acks: u64 },
    /// The storage is done with a request.
    Served { request: u64 },
}

/// Clients, a target and its storage. The verbs are those of the other models; delays can change at any time and hold for
/// what is sent from then on.
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
    /// Until when the wire to and from the target is busy.
    to_target_free: Instant,
    from_target_free: Instant,
}

impl Link {
    /// `connections` idle connections. The same seed and calls give the same completions. Parameters that
    /// [`LinkParams::validate`] refuses give a link on which nothing may ever complete.
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

    /// Delays what is sent on a connection from now on.
    ///
    /// # Panics
    /// When there is no connection of this number.
    pub fn set_throttle(&mut self, connection: usize, throttle: Throttle) {
        self.connections[connection].throttle = throttle;
    }

    /// The target's counters of a connection.
    ///
    /// # Panics
    /// When there is no connection of this number.
    pub fn counters(&self, connection: usize) -> Counters {
        self.connections[connection].counters
    }

    /// A client sends a request; `id` comes back from [`Link::poll`] and is not looked into.
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

    /// When to poll next; `Instant::FAR_FUTURE` when nothing is under way.
    pub fn next_event(&self) -> Instant {
        self.events.peek().map_or(Instant::FAR_FUTURE, |Reverse((at, ..))| *at)
    }

    /// The next request that is back at its client by `now`, in order; call until `None`.
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

    /// The target has received something: it acknowledges two segments at once, and less after a while.
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
