//! The workers between clients and pool, which receive requests and send replies.
//!
//! ```text
//!  client ──▶ connection ──▶ worker ──▶ pool ──▶ device ──▶ worker ──▶ client
//! ```

use evenkeel_control::Instant;
use evenkeel_control::placement::Placement;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_model::Io;
use evenkeel_model::worker::Side;

use super::{FrontSetup, WorkerResult};
use crate::placed::{LOOK, Placed};
use crate::slab::Slab;

/// Bytes of a request besides its payload, as in the NBD protocol.
const REQUEST_HEADER: u32 = 28;
/// Bytes of a reply besides its payload, as in the NBD protocol.
const REPLY_HEADER: u32 = 16;

/// Workers, connections, and the requests and replies on their way through them.
#[derive(Debug)]
pub(super) struct Front<T> {
    placed: Placed,
    /// Number of connections of each client.
    connections_each: u32,
    /// Per client: number of its first connection, and the turn that decides which connection its next request takes; `None`
    /// while the client is not connected.
    clients: Vec<Option<(u32, u32)>>,
    /// Number of connections opened so far.
    connections: u32,
    /// The requests and replies that workers hold.
    carried: Slab<T>,
    /// Per worker: sum over the counted intervals of [`LOOK`] of the busy fraction, 0 to 1, of each interval.
    busy: Vec<f64>,
    /// Number of counted intervals of [`LOOK`].
    looks: u32,
    /// Number of moves of a connection to another worker in the counted time.
    moves: u64,
}

impl<T> Front<T> {
    pub(super) fn new(setup: &FrontSetup, clients: usize, seeds: &mut SplitMix64) -> Self {
        let placement = Placement::new(setup.placement, setup.count as usize, seeds.next_u64(), Instant::ZERO);
        Self {
            placed: Placed::empty(setup.params, placement, seeds.next_u64()),
            connections_each: setup.connections.max(1),
            clients: vec![None; clients],
            connections: 0,
            carried: Slab::default(),
            busy: vec![0.0; setup.count as usize],
            looks: 0,
            moves: 0,
        }
    }

    /// Opens the connections of a client.
    pub(super) fn connect(&mut self, client: usize) {
        self.clients[client] = Some((self.connections, 0));
        for _ in 0..self.connections_each {
            self.placed.connect();
        }
        self.connections += self.connections_each;
    }

    /// Closes the connections of a client. Requests that are under way on them are still answered.
    pub(super) fn disconnect(&mut self, client: usize) {
        let Some((first, _)) = self.clients[client] else { return };
        (first..first + self.connections_each).for_each(|connection| self.placed.placement.leave(connection));
    }

    /// The number of the connection that carries the client's next request. A client's connections take turns.
    pub(super) fn next_connection(&mut self, client: usize) -> u32 {
        let Some((first, sent)) = &mut self.clients[client] else { return 0 };
        let turn = *sent % self.connections_each;
        *sent = turn + 1;
        *first + turn
    }

    /// Hands a request (`side` is receiving) or a reply (sending) about `io` to the worker of `connection`. `poll` returns
    /// `what` when the worker has finished.
    pub(super) fn pass(&mut self, now: Instant, connection: u32, side: Side, io: &Io, what: T) {
        let bytes = match side {
            Side::Receive => REQUEST_HEADER + if io.kind == Kind::Write { io.bytes } else { 0 },
            Side::Send => REPLY_HEADER + if io.kind == Kind::Read { io.bytes } else { 0 },
        };
        let id = self.carried.insert(what);
        self.placed.workers.submit(now, connection, u64::from(id), side, bytes);
    }

    /// The next request or reply that a worker has finished by `now`; to be called until the answer is `None`.
    pub(super) fn poll(&mut self, now: Instant) -> Option<T> {
        let done = self.placed.workers.poll(now)?;
        self.carried.remove(done.id)
    }

    pub(super) fn next_event(&self) -> Instant {
        self.placed.workers.next_event()
    }

    /// Number of requests and replies that workers hold, queued ones included.
    pub(super) fn under_way(&self) -> usize {
        self.carried.len()
    }

    /// Ends an interval of [`LOOK`]: the placement receives the interval's loads, and moves connections. `counted` is true if
    /// the interval lies in the counted time.
    pub(super) fn look(&mut self, now: Instant, counted: bool) {
        self.placed.observe(self.connections, |_, _, _| {});
        let busy = self.placed.tell(LOOK);
        let moves = self.placed.tick(now);
        if counted {
            self.busy.iter_mut().zip(busy).for_each(|(sum, busy)| *sum += busy);
            self.looks += 1;
            self.moves += moves as u64;
        }
    }

    pub(super) fn result(&self) -> (Vec<WorkerResult>, u64) {
        let looks = f64::from(self.looks.max(1));
        (self.busy.iter().map(|busy| WorkerResult { busy: busy / looks }).collect(), self.moves)
    }
}
