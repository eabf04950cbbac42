//! mClock: who goes next? (stub; the interface is fixed)
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::time::{Duration, Instant};
use crate::units::{Rates, Work};

/// Names a client of one [`Queue`]; never reused for another client (index + generation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId {
    index: u32,
    generation: u32,
}

/// What a client was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qos {
    /// Served at least this fast whenever it asks.
    pub reservation: Rates,
    /// Never served faster than this (plus burst).
    pub limit: Rates,
    /// Share of what is left after reservations, 1..=1_000_000.
    pub weight: u32,
    /// How much unused limit may be saved up, as time at the limit rate.
    pub burst: Duration,
    /// Served in the weight phase only when no normal client can be.
    pub background: bool,
}

impl Default for Qos {
    fn default() -> Self {
        Self { reservation: Rates::UNSET, limit: Rates::UNSET, weight: 1, burst: Duration::ZERO, background: false }
    }
}

/// How much of the device a request takes, in cost units that the weights share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Bytes every request costs on top of its payload.
    pub base_bytes: u32,
    /// A written byte costs this many hundredths of a read byte.
    pub write_percent: u32,
}

impl Default for CostModel {
    fn default() -> Self {
        Self { base_bytes: 4_096, write_percent: 100 }
    }
}

/// Why a request was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its client was behind its reservation.
    Reservation,
    /// By weight.
    Weight,
}

/// The answer of [`Queue::pull`].
#[derive(Debug)]
pub enum Pull<R> {
    /// Serve this one now.
    Ready {
        /// Whose request it is.
        client: ClientId,
        /// Why it was chosen.
        phase: Phase,
        /// What it asks.
        work: Work,
        /// When it was pushed.
        queued_at: Instant,
        /// The request itself.
        payload: R,
    },
    /// A request is due, but `admit` refused it.
    Refused,
    /// Every waiting client is held back by its limit until this instant.
    Wait(Instant),
    /// Nothing waits, or all that waits is blocked.
    Idle,
}

struct Client<R> {
    generation: u32,
    live: bool,
    blocked: bool,
    queue: VecDeque<(Instant, Work, R)>,
}

/// The queue.
pub struct Queue<R> {
    clients: Vec<Client<R>>,
    next: usize,
    len: usize,
}

impl<R> Queue<R> {
    /// An empty queue.
    pub fn new(_cost: CostModel) -> Self {
        Self { clients: Vec::new(), next: 0, len: 0 }
    }
    /// Adds a client.
    pub fn join(&mut self, _now: Instant, _qos: Qos) -> ClientId {
        self.clients.push(Client { generation: 0, live: true, blocked: false, queue: VecDeque::new() });
        ClientId { index: (self.clients.len() - 1) as u32, generation: 0 }
    }
    /// Removes a client and hands back what it had queued, oldest first.
    pub fn leave(&mut self, id: ClientId) -> Vec<R> {
        let c = &mut self.clients[id.index as usize];
        c.live = false;
        self.len -= c.queue.len();
        c.queue.drain(..).map(|x| x.2).collect()
    }
    /// Changes a promise; effective at once, without a burst of saved-up credit.
    pub fn set_qos(&mut self, _now: Instant, _id: ClientId, _qos: Qos) {}
    /// Changes the cost model for requests pushed from now on.
    pub fn set_cost_model(&mut self, _cost: CostModel) {}
    /// Keeps a client's requests queued until [`Queue::unblock`].
    pub fn block(&mut self, _now: Instant, id: ClientId) {
        self.clients[id.index as usize].blocked = true;
    }
    /// Ends [`Queue::block`].
    pub fn unblock(&mut self, _now: Instant, id: ClientId) {
        self.clients[id.index as usize].blocked = false;
    }
    /// Queues a request.
    ///
    /// # Errors
    /// Gives the payload back when the client has left.
    pub fn push(&mut self, now: Instant, id: ClientId, work: Work, payload: R) -> Result<(), R> {
        match self.clients.get_mut(id.index as usize) {
            Some(client) if client.live => client.queue.push_back((now, work, payload)),
            _ => return Err(payload),
        }
        self.len += 1;
        Ok(())
    }
    /// The next request to serve. `admit` is asked about the one chosen; if it says no, nothing changes.
    pub fn pull(&mut self, _now: Instant, admit: impl FnOnce(ClientId, &Work) -> bool) -> Pull<R> {
        let n = self.clients.len();
        for k in 0..n {
            let i = (self.next + k) % n;
            let c = &mut self.clients[i];
            if c.live && !c.blocked && !c.queue.is_empty() {
                let id = ClientId { index: i as u32, generation: c.generation };
                if !admit(id, &c.queue[0].1) {
                    return Pull::Refused;
                }
                let (queued_at, work, payload) = c.queue.pop_front().expect("not empty");
                self.next = i + 1;
                self.len -= 1;
                return Pull::Ready { client: id, phase: Phase::Weight, work, queued_at, payload };
            }
        }
        Pull::Idle
    }
    /// Requests queued.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Requests this client has queued.
    pub fn client_len(&self, id: ClientId) -> usize {
        self.clients[id.index as usize].queue.len()
    }
}
