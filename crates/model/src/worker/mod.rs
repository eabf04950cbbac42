//! Worker threads of a messenger: each serves the messages of its connections, one after the other.
//!
//! ```text
//!  connection 0 ──▶┐
//!  connection 3 ──▶┼── queue ──▶ worker 0 ──▶ received, or on its way to the peer
//!  connection 7 ──▶┘
//!  connection 1 ──▶┬── queue ──▶ worker 1          a connection stays until it is moved
//! ```
//!
//! To receive or to send a message takes its worker a fixed time and a time for each byte. A worker serves its messages in
//! order of arrival; the messages of a connection keep their order when the connection moves.
//!
//! Left out: batches (a worker that finds several messages pays the fixed time for each), work of the kernel on other cores,
//! priorities.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};

mod params;

pub use params::{Side, WorkerParams};

/// A message that its worker has finished receiving or sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Time at which the worker finished the message.
    pub at: Instant,
    /// Number of the message's connection.
    pub connection: u32,
    /// The caller's id of the message.
    pub id: u64,
    /// Direction of the message.
    pub side: Side,
}

/// Totals of a connection since it was made, over all its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages received.
    pub received: u64,
    /// Bytes of the received messages.
    pub received_bytes: u64,
    /// Messages sent.
    pub sent: u64,
    /// Bytes of the sent messages.
    pub sent_bytes: u64,
    /// Time that workers spent on the connection, the cost of moves included.
    pub busy: Duration,
}

impl Counters {
    /// The work done since the counters had the values `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            received: self.received - before.received,
            received_bytes: self.received_bytes - before.received_bytes,
            sent: self.sent - before.sent,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            busy: self.busy - before.busy,
        }
    }
}

/// Totals of a worker since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worked {
    /// Messages received and sent.
    pub messages: u64,
    /// Time spent on messages.
    pub busy: Duration,
    /// Sum over all messages of the worker's queue length when the message's service began, the message included.
    pub among: u64,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    id: u64,
    connection: u32,
    bytes: u32,
    side: Side,
}

#[derive(Debug)]
struct Connection {
    worker: u32,
    /// When the new worker gets the connection and the messages in `held`; `None` = the connection is not being moved.
    handover: Option<Instant>,
    held: VecDeque<Message>,
    /// Time added to the connection's next message because of a move; zero = no move since its last message.
    extra: Duration,
    counters: Counters,
}

/// The message that a worker serves, with its service time and the end of its service.
#[derive(Clone, Copy, Debug)]
struct Service {
    message: Message,
    time: Duration,
    ends: Instant,
}

impl Connection {
    fn of(worker: u32) -> Self {
        Self { worker, handover: None, held: VecDeque::new(), extra: Duration::ZERO, counters: Counters::default() }
    }
}

#[derive(Debug, Default)]
struct Worker {
    queue: VecDeque<Message>,
    service: Option<Service>,
    worked: Worked,
}

/// Workers and their connections. Completions and their times do not depend on when the caller polls.
#[derive(Debug)]
pub struct Workers {
    params: WorkerParams,
    /// Sizes of messages with their nominal times, by direction and by a bit of the size: few sizes are common, and a division
    /// takes long.
    times: [[(u32, Duration); 2]; 2],
    rng: SplitMix64,
    workers: Vec<Worker>,
    /// For each worker, the end of the service of its message; `Instant::FAR_FUTURE` if it serves none.
    ends: Vec<Instant>,
    connections: Vec<Connection>,
    /// Numbers of the connections that are being moved.
    moving: Vec<u32>,
    /// The earliest end of a service or a handover.
    next: Instant,
    done: VecDeque<Done>,
}

impl Workers {
    /// Makes `workers` idle workers (at least one), and a connection for each element of `homes`, the number of the
    /// connection's worker. The same seed and calls give the same completions. With parameters that
    /// [`WorkerParams::validate`] refuses, messages may take no time at all.
    ///
    /// # Panics
    /// When a worker in `homes` does not exist.
    pub fn new(params: WorkerParams, workers: usize, homes: &[u32], seed: u64) -> Self {
        let workers = workers.max(1);
        assert!(homes.iter().all(|&worker| (worker as usize) < workers), "connections need a worker that exists");
        Self {
            params,
            times: [Side::Receive, Side::Send].map(|side| [(0, params.time(side, 0)); 2]),
            rng: SplitMix64::new(seed),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            ends: vec![Instant::FAR_FUTURE; workers],
            connections: homes.iter().map(|&worker| Connection::of(worker)).collect(),
            moving: Vec::new(),
            next: Instant::FAR_FUTURE,
            done: VecDeque::new(),
        }
    }

    /// Adds a connection that `worker` serves; returns the connection's number, one above the highest so far.
    ///
    /// # Panics
    /// When there is no worker of this number.
    pub fn connect(&mut self, worker: u32) -> u32 {
        assert!((worker as usize) < self.workers.len(), "connections need a worker that exists");
        self.connections.push(Connection::of(worker));
        self.connections.len() as u32 - 1
    }

    /// Queues a message of `bytes`, header included, to be received or sent by the connection's worker. [`Workers::poll`] returns
    /// the message when the worker has finished it. O(1).
    ///
    /// # Panics
    /// When there is no connection of this number.
    pub fn submit(&mut self, now: Instant, connection: u32, id: u64, side: Side, bytes: u32) {
        self.advance(now);
        let message = Message { id, connection, bytes, side };
        let to = &mut self.connections[connection as usize];
        if to.handover.is_some() {
            to.held.push_back(message);
            return;
        }
        let worker = to.worker as usize;
        self.workers[worker].queue.push_back(message);
        self.serve(now, worker);
    }

    /// Moves a connection with its queued messages to another worker; the old worker finishes the message that it serves. A
    /// connection that is being moved already changes its new worker. O(messages of the old worker).
    ///
    /// # Panics
    /// When there is no such connection or worker.
    pub fn move_to(&mut self, now: Instant, connection: u32, worker: u32) {
        self.advance(now);
        assert!((worker as usize) < self.workers.len(), "connections need a worker that exists");
        let moved = &mut self.connections[connection as usize];
        let from = core::mem::replace(&mut moved.worker, worker);
        if from == worker {
            return;
        }
        moved.extra = self.params.move_time;
        if moved.handover.is_some() {
            // Not there yet: it goes on from the way.
            return;
        }
        let old = &mut self.workers[from as usize];
        let under_way = old.service.filter(|service| service.message.connection == connection);
        let at = under_way.map_or(now, |service| service.ends) + self.params.handover;
        moved.handover = Some(at);
        let held = &mut moved.held;
        old.queue.retain(|message| {
            let stays = message.connection != connection;
            if !stays {
                held.push_back(*message);
            }
            stays
        });
        self.moving.push(connection);
        self.next = self.next.min(at);
    }

    /// Time of the next poll; `Instant::FAR_FUTURE` when nothing is in flight.
    #[inline]
    pub fn next_event(&self) -> Instant {
        self.done.front().map_or(self.next, |done| done.at)
    }

    /// The next message that a worker finished by `now`, in order of completion; call until `None`. O(workers).
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Option<Done> {
        self.advance(now);
        self.done.pop_front()
    }

    /// The totals of a connection.
    ///
    /// # Panics
    /// When there is no connection of this number.
    pub fn counters(&self, connection: u32) -> Counters {
        self.connections[connection as usize].counters
    }

    /// The worker of a connection; during a move, the new one.
    ///
    /// # Panics
    /// When there is no connection of this number.
    pub fn worker(&self, connection: u32) -> u32 {
        self.connections[connection as usize].worker
    }

    /// The totals of a worker.
    ///
    /// # Panics
    /// When there is no worker of this number.
    pub fn worked(&self, worker: u32) -> Worked {
        self.workers[worker as usize].worked
    }

    /// Messages queued at a worker, the one being served included.
    ///
    /// # Panics
    /// When there is no worker of this number.
    pub fn waiting(&self, worker: u32) -> usize {
        let worker = &self.workers[worker as usize];
        worker.queue.len() + usize::from(worker.service.is_some())
    }

    /// Handles all ends of services and handovers up to `now`.
    fn advance(&mut self, now: Instant) {
        while self.next <= now {
            let at = self.next;
            for worker in 0..self.ends.len() {
                if self.ends[worker] <= at {
                    self.end(worker);
                }
            }
            self.arrive(at);
            let handovers = self.moving.iter().filter_map(|&moved| self.connections[moved as usize].handover);
            let first = self.ends.iter().copied().min().unwrap_or(Instant::FAR_FUTURE);
            self.next = handovers.min().map_or(first, |handover| handover.min(first));
        }
    }

    /// Ends the service of a worker's message, and begins the next one.
    fn end(&mut self, worker: usize) {
        let Some(Service { message, time, ends }) = self.workers[worker].service.take() else { return };
        self.ends[worker] = Instant::FAR_FUTURE;
        let worked = &mut self.workers[worker].worked;
        worked.messages += 1;
        worked.busy = worked.busy + time;
        let counters = &mut self.connections[message.connection as usize].counters;
        counters.busy = counters.busy + time;
        let (count, bytes) = match message.side {
            Side::Receive => (&mut counters.received, &mut counters.received_bytes),
            Side::Send => (&mut counters.sent, &mut counters.sent_bytes),
        };
        *count += 1;
        *bytes += u64::from(message.bytes);
        self.done.push_back(Done { at: ends, connection: message.connection, id: message.id, side: message.side });
        self.serve(ends, worker);
    }

    /// Begins the service of the next queued message, unless the worker serves one.
    fn serve(&mut self, now: Instant, worker: usize) {
        if self.workers[worker].service.is_some() {
            return;
        }
        let Some(message) = self.workers[worker].queue.pop_front() else { return };
        let nominal = self.nominal(message.side, message.bytes);
        let extra = core::mem::take(&mut self.connections[message.connection as usize].extra);
        let time = self.params.jitter.apply(nominal, &mut self.rng) + extra;
        let ends = now + time;
        self.workers[worker].worked.among += self.workers[worker].queue.len() as u64 + 1;
        self.workers[worker].service = Some(Service { message, time, ends });
        self.ends[worker] = ends;
        self.next = self.next.min(ends);
    }

    /// Nominal time of a message: [`WorkerParams::time`].
    #[inline]
    fn nominal(&mut self, side: Side, bytes: u32) -> Duration {
        let known = &mut self.times[usize::from(side == Side::Send)][(bytes >> 12 & 1) as usize];
        if known.0 != bytes {
            *known = (bytes, self.params.time(side, bytes));
        }
        known.1
    }

    /// Gives connections whose handover ends by `now` to their new workers.
    fn arrive(&mut self, now: Instant) {
        let mut place = 0;
        while let Some(&moved) = self.moving.get(place) {
            let connection = &mut self.connections[moved as usize];
            if connection.handover.is_none_or(|at| at > now) {
                place += 1;
                continue;
            }
            connection.handover = None;
            let worker = connection.worker as usize;
            self.workers[worker].queue.append(&mut connection.held);
            self.moving.remove(place);
            self.serve(now, worker);
        }
    }
}
