//! The workers before the pool: who receives requests and sends replies.
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

/// Bytes of a request and of a reply besides the payload, as in the NBD protocol.
const REQUEST_HEADER: u32 = 28;
const REPLY_HEADER: u32 = 16;

/// Workers, connections and what is on its way through them.
#[derive(Debug)]
pub(super) struct Front<T> {
    placed: Placed,
    /// Of each client.
    connections_each: u32,
    /// By client: its first connection once it has come, and how many requests it has sent.
    clients: Vec<Option<(u32, u32)>>,
    connections: u32,
    carried: Slab<T>,
    /// Of the seconds that count.
    busy: Vec<f64>,
    looks: u32,
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

    /// A client opens its connections.
    pub(super) fn connect(&mut self, client: usize) {
        self.clients[client] = Some((self.connections, 0));
        for _ in 0..self.connections_each {
            self.placed.connect();
        }
        self.connections += self.connections_each;
    }

    /// A client closes them; what is under way on them is still answered.
    pub(super) fn disconnect(&mut self, client: usize) {
        let Some((first, _)) = self.clients[client] else { return };
        (first..first + self.connections_each).for_each(|connection| self.placed.placement.leave(connection));
    }

    /// The connection of the client's next request: they take turns.
    pub(super) fn next_connection(&mut self, client: usize) -> u32 {
        let Some((first, sent)) = &mut self.clients[client] else { return 0 };
        let turn = *sent % self.connections_each;
        *sent = turn + 1;
        *first + turn
    }

    /// A request or a reply about `io` goes through the worker of `connection`.
    pub(super) fn pass(&mut self, now: Instant, connection: u32, side: Side, io: &Io, what: T) {
        let bytes = match side {
            Side::Receive => REQUEST_HEADER + if io.kind == Kind::Write { io.bytes } else { 0 },
            Side::Send => REPLY_HEADER + if io.kind == Kind::Read { io.bytes } else { 0 },
        };
        let id = self.carried.insert(what);
        self.placed.workers.submit(now, connection, u64::from(id), side, bytes);
    }

    /// The next thing that has passed by `now`; call until `None`.
    pub(super) fn poll(&mut self, now: Instant) -> Option<T> {
        let done = self.placed.workers.poll(now)?;
        self.carried.remove(done.id)
    }

    pub(super) fn next_event(&self) -> Instant {
        self.placed.workers.next_event()
    }

    /// Requests and replies that a worker has or that wait for one.
    pub(super) fn under_way(&self) -> usize {
        self.carried.len()
    }

    /// A tenth of a second is over: the placement hears what it cost, and moves connections. What counts goes into the
    /// result.
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
