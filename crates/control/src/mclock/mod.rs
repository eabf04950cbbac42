//! mClock: who goes next?
//!
//! Each client has a *reservation* (served at least this fast), a *limit* (never
//! faster) and a *weight* (its share of what is left). After Gulati, Merchant and
//! Varman, "mClock: Handling Throughput Variability for Hypervisor IO Scheduling"
//! (OSDI 2010), with these differences, each explained where it is made and in
//! `docs/algorithms/mclock.md`:
//!
//! - One tag of each kind for a client, not for a request: a guarantee changes at once
//!   for requests that already wait.
//! - Weight tags live in virtual time (start-time fair queueing), so that no other tag is
//!   adjusted when a client joins or wakes up, and everything is O(log clients).
//! - Reservations and limits hold in requests/s and bytes/s together.
//! - A background priority, and a 64th of the service for clients that would starve.
//!
//! ```text
//!              push ──▶ FIFO of each client
//!                             │
//!     reserved: by reservation tag (clients with a reservation)
//!     ready:    by weight tag      (within limit; normal and background)      ──▶ pull
//!     held:     by limit tag       (over limit)
//! ```
//!
//! A client with something to do is in `ready` or in `held` unless it is blocked, and in `reserved` as well if it has a
//! reservation. Nothing here reads a clock and all arithmetic is on integers.

mod claim;
mod client;
mod dropped;
mod heap;
mod lanes;
mod slab;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::time::{Duration, Instant};
use crate::units::{Direction, Fractions, Kind, Rates, Work};

pub use dropped::Search;

use claim::Claim;
use client::{
    BACKGROUND, Class, Client, MAX_CREDIT, MAX_CREDIT_BYTES, MAX_CREDIT_REQUESTS, PLAIN, RESERVED, VirtualTime,
};
use heap::Heap;
use lanes::{Lanes, Place};
use slab::{Fifo, Request, Slab};

/// The greatest weight; greater ones count as this, and 0 counts as 1.
pub const MAX_WEIGHT: u32 = 1_000_000;

/// Identifies a client of one [`Queue`]; never reused for another client (index + generation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId {
    index: u32,
    generation: u32,
}

/// The QoS policy of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qos {
    /// Rates at which the client is served at least while it has requests: a request is due while either rate is behind.
    /// Takes precedence over the limit.
    pub reservation: Rates,
    /// Rates that the client does not exceed: over any window at most limit × (window + burst) plus one request is served.
    pub limit: Rates,
    /// The client's share of the service that reservations leave, relative to other weights, 1..=[`MAX_WEIGHT`].
    pub weight: u32,
    /// Unused limit that may be saved up, as time at the limit rate.
    pub burst: Duration,
    /// True if the client is served in the weight phase only when no normal client can be, except for a 64th of the
    /// service that normal clients get.
    pub background: bool,
}

impl Default for Qos {
    fn default() -> Self {
        Self { reservation: Rates::UNSET, limit: Rates::UNSET, weight: 1, burst: Duration::ZERO, background: false }
    }
}

/// The cost of a request: how much it takes of the service that clients share by weight. A cost unit is a byte read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Bytes that each request costs on top of its payload.
    pub base_bytes: u32,
    /// A written byte costs this many hundredths of a read byte.
    pub write_percent: u32,
}

impl Default for CostModel {
    fn default() -> Self {
        Self { base_bytes: 4_096, write_percent: 100 }
    }
}

impl CostModel {
    /// The cost of a request: at least 1, at most `u32::MAX`.
    #[inline]
    fn cost(&self, work: &Work) -> u32 {
        let bytes = u64::from(work.bytes);
        let payload = if work.kind == Kind::Write { bytes * u64::from(self.write_percent) / 100 } else { bytes };
        u32::try_from(u64::from(self.base_bytes) + payload).unwrap_or(u32::MAX).max(1)
    }

    /// Largest lag of a client behind virtual time when it has requests again, in cost units.
    #[inline]
    fn credit(&self) -> u64 {
        (MAX_CREDIT_REQUESTS * u64::from(self.base_bytes)).clamp(MAX_CREDIT, MAX_CREDIT_BYTES)
    }
}

/// Reason for which a request was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The request's client was behind its reservation.
    Reservation,
    /// The request's client was next by weight.
    Weight,
}

/// The answer of [`Queue::pull`].
#[derive(Debug)]
pub enum Pull<R> {
    /// This request is to be served now.
    Ready {
        /// The client of the request.
        client: ClientId,
        /// Reason for which the request was chosen.
        phase: Phase,
        /// Kind, size and part of the request.
        work: Work,
        /// When the request was pushed.
        queued_at: Instant,
        /// Instant since which no limit of its client has throttled the request: since then it has waited for other clients.
        free_at: Instant,
        /// The request itself.
        payload: R,
    },
    /// The request in turn was refused by `admit`. Until this instant the next pull chooses the same request, unless another
    /// function is called in between; at this instant a limit admits another client, or a reservation falls due.
    Refused(Instant),
    /// Every client with queued requests is throttled by its limit until this instant.
    Wait(Instant),
    /// No request is queued, or all clients with queued requests are blocked and have no reservation.
    Idle,
}

/// The caller's wish for a request whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The request is served.
    Now,
    /// The request is put off: served at background priority while no other request of its client waits, and otherwise by a
    /// 64th of the client's service. Its client's limits apply to the request, the reservation does not.
    Later,
    /// The request is given back to the caller.
    Never,
}

impl From<bool> for Wish {
    fn from(wanted: bool) -> Self {
        if wanted { Self::Now } else { Self::Never }
    }
}

/// A client chosen to be served, and why.
struct Choice {
    index: u32,
    phase: Phase,
    /// The list of the client in which its next request is.
    place: Place,
    /// True if the client is served by weight although a reservation is due.
    ahead_of_reservations: bool,
    /// True if the client is a background client although a normal one could be served.
    ahead_of_normal: bool,
    /// True if the client is served ahead of its turn ([`Queue::pull_beside`]).
    beside: bool,
}

/// The scheduler: requests are pushed in any order of clients, and pulled in the order of reservations, weights and limits.
///
/// Requests of one client are served in the order in which they were pushed, unless a direction has a limit of its own:
/// then reads keep their order among themselves, and so do writes. Memory is proportional to the largest number of
/// clients that there were at a time, and to the largest recent number of queued requests.
pub struct Queue<R> {
    cost: CostModel,
    clients: Vec<Client>,
    /// Indices of clients that have left.
    vacant: Vec<u32>,
    requests: Slab<R>,
    reserved: Heap<false>,
    held: Heap<false>,
    ready: [Heap<true>; 3],
    /// The start tag of the last request served by weight, for each class.
    virtual_time: [VirtualTime; 2],
    /// Virtual time of normal clients when one of them was last served by weight although a reservation was due. Clients of
    /// the heap `RESERVED` count as at most their credit behind this time; their tags are raised only when they are charged or
    /// leave the heap, so that passing many of them costs nothing.
    passed: VirtualTime,
    /// Service owed to the weight phase while reservations take all service.
    weight_claim: Claim,
    /// Service owed to background clients while normal clients take all service.
    background_claim: Claim,
}

impl<R> Queue<R> {
    /// An empty queue.
    pub fn new(cost: CostModel) -> Self {
        Self {
            cost,
            clients: Vec::new(),
            vacant: Vec::new(),
            requests: Slab::new(),
            reserved: Heap::new(),
            held: Heap::new(),
            ready: [Heap::new(), Heap::new(), Heap::new()],
            virtual_time: [0; 2],
            passed: 0,
            weight_claim: Claim::default(),
            background_claim: Claim::default(),
        }
    }

    /// Adds a client. It starts at the present virtual time, so it neither starves others nor is starved;
    /// its limit starts with a full burst. O(1) amortised.
    ///
    /// # Panics
    /// With 2³² - 1 clients.
    pub fn join(&mut self, _now: Instant, qos: Qos) -> ClientId {
        if let Some(index) = self.vacant.pop() {
            let client = &mut self.clients[index as usize];
            let generation = client.generation + 1;
            *client = Client::new(generation, &qos, self.virtual_time);
            return ClientId { index, generation };
        }
        let index = self.clients.len() as u32;
        assert!(index < u32::MAX, "fewer than 2^32 - 1 clients");
        self.clients.push(Client::new(0, &qos, self.virtual_time));
        self.reserved.grow();
        self.held.grow();
        self.ready.iter_mut().for_each(Heap::grow);
        ClientId { index, generation: 0 }
    }

    /// Removes a client and returns its queued requests, oldest first, followed by requests that were put off; none if the
    /// client has left before. O(log clients + requests returned).
    pub fn leave(&mut self, id: ClientId) -> Vec<R> {
        let Some(client) = live_mut(&mut self.clients, id) else { return Vec::new() };
        client.live = false;
        let mut payloads: Vec<R> =
            take_all(&mut self.requests, client).into_iter().map(|(_, payload)| payload).collect();
        while client.is_active()
            && let Some(payload) = self.requests.pop(client.later_mut())
        {
            payloads.push(payload);
        }
        client.lanes = None;
        // The last generation is not given out again: an id must never name two clients.
        if id.generation < u32::MAX {
            self.vacant.push(id.index);
        }
        self.withdraw(id.index);
        payloads
    }

    /// Changes a client's QoS policy; effective at once, also for requests that wait, without a burst of saved-up credit.
    /// Does nothing if the client has left. O(log clients).
    ///
    /// Settings that do not change keep their state, so that a controller may adjust one limit
    /// often without disturbing the others.
    pub fn set_qos(&mut self, now: Instant, id: ClientId, qos: Qos) {
        self.set_qos_in_part(now, id, qos, &Fractions::WHOLE, false);
    }

    /// Like [`Queue::set_qos`], for a client of which only `fractions` of reservation and limit apply here. `keeps_credit`:
    /// what the client has saved up of its limit, and what it may catch up of its reservation, stays as a number of requests or
    /// bytes, within the bounds of the new rates; so a part may change often without a burst or a loss. O(log clients).
    pub fn set_qos_in_part(&mut self, now: Instant, id: ClientId, qos: Qos, fractions: &Fractions, keeps_credit: bool) {
        let Some(client) = live_mut(&mut self.clients, id) else { return };
        let is_active = client.is_active();
        self.withdraw(id.index);
        self.clients[id.index as usize].set_qos(now, &qos, fractions, keeps_credit, self.virtual_time);
        if is_active {
            self.place(now, id.index);
        }
    }

    /// Sets or withdraws (unset) a limit on one direction of a client, beside the limit on all its requests. The limit
    /// throttles neither requests of the other direction nor requests that move no data. Effective at once, also for requests
    /// that wait. The client's burst applies to the limit too, and like every limit it yields to a higher reservation. Does
    /// nothing if the client has left. O(log clients); a client's first limit of this kind, and the withdrawal of its last, go
    /// through all requests that the client has queued, some ns for each: none is copied, and no memory is taken.
    pub fn set_limit_of(&mut self, now: Instant, id: ClientId, direction: Direction, limit: Rates) {
        let Some(client) = live_mut(&mut self.clients, id) else { return };
        let had = client.lanes.is_some();
        if !had && limit.is_unset() {
            return;
        }
        let burst = client.burst();
        let lanes = client.lanes.get_or_insert_with(|| Lanes::new(burst).into());
        lanes.set_limit(now, direction, limit, burst);
        let keeps = lanes.is_limited();
        if !had {
            let mut waiting = core::mem::replace(&mut client.fifo, Fifo::EMPTY);
            while let Some((request, _)) = self.requests.front(&waiting) {
                let kind = request.work.kind;
                self.requests.shift(&mut waiting, client.fifo_for(kind));
            }
        } else if !keeps {
            let mut merged = Fifo::EMPTY;
            while let Some(place) = oldest_of(&self.requests, client) {
                self.requests.shift(client.fifo_mut(place), &mut merged);
            }
            (client.fifo, client.lanes) = (merged, None);
        }
        if client.is_active() {
            self.withdraw(id.index);
            self.place(now, id.index);
        }
    }

    /// True if the client's reservation has taken this direction beyond the direction's own limit since the last call.
    pub fn take_beyond_limit_of(&mut self, id: ClientId, direction: Direction) -> bool {
        let lanes = live_mut(&mut self.clients, id).and_then(|client| client.lanes.as_mut());
        lanes.is_some_and(|lanes| lanes.take_beyond(direction))
    }

    /// Changes the cost model for requests pushed from now on. O(clients · log clients) if the credit changes.
    pub fn set_cost_model(&mut self, now: Instant, cost: CostModel) {
        self.release(now);
        let (before, after) = (self.cost.credit(), cost.credit());
        if before != after {
            // Those that were passed keep no more than the credit of that time.
            (0..self.clients.len() as u32).for_each(|index| self.catch_up_passed(index));
        }
        self.cost = cost;
        if before == after {
            return;
        }
        for index in 0..self.clients.len() as u32 {
            if self.ready.iter().any(|ready| ready.key_of(index).is_some()) {
                self.enter(index);
            }
        }
    }

    /// Keeps a client's requests queued until [`Queue::unblock`], except for those that are due by its reservation, which
    /// takes precedence. The client can still push requests. O(log clients).
    pub fn block(&mut self, now: Instant, id: ClientId) {
        let Some(client) = live_mut(&mut self.clients, id) else { return };
        client.blocked = true;
        if client.is_active() {
            self.withdraw(id.index);
            self.place(now, id.index);
        }
    }

    /// Ends [`Queue::block`]; the time blocked earns the client no share by weight. O(log clients).
    pub fn unblock(&mut self, now: Instant, id: ClientId) {
        let Some(client) = live_mut(&mut self.clients, id) else { return };
        if core::mem::replace(&mut client.blocked, false) && client.is_active() {
            self.place(now, id.index);
        }
    }

    /// Queues a request. O(log clients) if the client had none queued, else O(1).
    ///
    /// # Errors
    /// Gives the payload back when the client has left (or 2³² - 1 requests are queued).
    #[inline]
    pub fn push(&mut self, now: Instant, id: ClientId, work: Work, payload: R) -> Result<(), R> {
        let Some(client) = live_mut(&mut self.clients, id) else { return Err(payload) };
        let request = Request { queued_at: now, work, cost: self.cost.cost(&work) };
        let was_active = client.is_active();
        let fifo = client.fifo_for(work.kind);
        self.requests.push(fifo, request, payload)?;
        // Behind another one of its list it changes nothing.
        if fifo.len() == 1 {
            if !was_active {
                client.activate(now);
            }
            self.place(now, id.index);
        }
        Ok(())
    }

    /// The next request to serve. O(log clients), amortised over the clients that their limit releases.
    ///
    /// `admit` is asked about the chosen request, by payload and work; if it returns false, no tag moves and the answer is
    /// [`Pull::Refused`]. After [`Pull::Wait`] a pull at the named instant finds a request, and an earlier pull does not,
    /// unless another function is called in between.
    #[inline]
    pub fn pull(&mut self, now: Instant, admit: impl FnOnce(&R, &Work) -> bool) -> Pull<R> {
        self.release(now);
        let Some(choice) = self.choose(now) else { return self.next_due() };
        self.take(now, &choice, admit)
    }

    /// Like [`Queue::pull`], but asks `wish` if the request in turn is served, put off, or given back. O(log clients),
    /// amortised over the clients that their limit releases.
    ///
    /// # Errors
    /// `Some`: the request in turn, for which `wish` answered [`Wish::Never`], is given back with the instant at which it was
    /// queued. `None`: the request was put off. Neither is charged, so that the next pull finds the same turn for the client's
    /// next request. A pull at the instant of [`Pull::Wait`] may find no other request.
    #[inline]
    pub fn pull_wanted<W: Into<Wish>>(
        &mut self,
        now: Instant,
        admit: impl FnOnce(&R, &Work) -> bool,
        wish: impl FnOnce(&R) -> W,
    ) -> Result<Pull<R>, Option<(Instant, R)>> {
        self.release(now);
        let Some(choice) = self.choose(now) else { return Ok(self.next_due()) };
        self.serve(now, choice, admit, wish)
    }

    /// [`Queue::pull_wanted`] for one client, ahead of its turn: after a pull was refused, the caller may have room for a
    /// request of this client. Limits apply, and background clients keep behind normal ones: [`Pull::Idle`] if the client may
    /// not be served. The service counts against the client's share by weight, but puts the client ahead of others by no more
    /// than service by reservation does.
    ///
    /// # Errors
    /// As [`Queue::pull_wanted`].
    #[inline]
    pub fn pull_beside<W: Into<Wish>>(
        &mut self,
        now: Instant,
        id: ClientId,
        admit: impl FnOnce(&R, &Work) -> bool,
        wish: impl FnOnce(&R) -> W,
    ) -> Result<Pull<R>, Option<(Instant, R)>> {
        let is_live = live_mut(&mut self.clients, id).is_some();
        if !is_live || [PLAIN, RESERVED].iter().all(|&heap| self.ready[heap].key_of(id.index).is_none()) {
            return Ok(Pull::Idle);
        }
        let choice = self.with_place(now, Choice { beside: true, ..Choice::weight(id.index) });
        self.serve(now, choice, admit, wish)
    }

    /// The next request of the client that is furthest behind its reservation, whatever request is in turn; [`Pull::Idle`] if
    /// no client is behind. O(log clients).
    ///
    /// # Errors
    /// As [`Queue::pull_wanted`].
    #[inline]
    pub fn pull_reserved<W: Into<Wish>>(
        &mut self,
        now: Instant,
        admit: impl FnOnce(&R, &Work) -> bool,
        wish: impl FnOnce(&R) -> W,
    ) -> Result<Pull<R>, Option<(Instant, R)>> {
        let due = self.reserved.peek().filter(|(due, _)| *due <= now.as_nanos());
        let Some((_, index)) = due else { return Ok(Pull::Idle) };
        let choice = self.with_place(now, Choice::reservation(index));
        self.serve(now, choice, admit, wish)
    }

    /// Serves the next request of the chosen client, gives it back or puts it off, as `wish` answers.
    #[inline(always)]
    fn serve<W: Into<Wish>>(
        &mut self,
        now: Instant,
        choice: Choice,
        admit: impl FnOnce(&R, &Work) -> bool,
        wish: impl FnOnce(&R) -> W,
    ) -> Result<Pull<R>, Option<(Instant, R)>> {
        let client = &mut self.clients[choice.index as usize];
        let fifo = client.fifo_mut(choice.place);
        let front = self.requests.front(fifo);
        let Some((&request, payload)) = front else { return Ok(Pull::Idle) };
        let wish = wish(payload).into();
        if wish == Wish::Now || wish == Wish::Later && choice.place == Place::Later {
            return Ok(self.take(now, &choice, admit));
        }
        let Some(payload) = self.requests.pop(fifo) else { return Ok(Pull::Idle) };
        let is_last = fifo.is_empty();
        let unwanted = if wish == Wish::Later {
            // There is room: it has just been taken out.
            let _ = self.requests.push(client.later_mut(), request, payload);
            None
        } else {
            Some((request.queued_at, payload))
        };
        client.account(choice.place, 0);
        if !client.is_active() {
            self.withdraw(choice.index);
        } else if is_last {
            // What is left may have to wait longer, or behind others.
            self.place(now, choice.index);
        }
        Err(unwanted)
    }

    /// Serves the oldest request in the chosen list of the chosen client, if `admit` returns true for it.
    #[inline]
    fn take(&mut self, now: Instant, choice: &Choice, admit: impl FnOnce(&R, &Work) -> bool) -> Pull<R> {
        let client = &mut self.clients[choice.index as usize];
        let id = ClientId { index: choice.index, generation: client.generation };
        let fifo = client.fifo_mut(choice.place);
        let Some((&Request { queued_at, work, cost }, payload)) = self.requests.front(fifo) else { return Pull::Idle };
        if !admit(payload, &work) {
            return Pull::Refused(self.next_change(now, choice.index));
        }
        let Some(payload) = self.requests.pop(fifo) else { return Pull::Idle };
        // A reservation may pass a limit.
        let free_at = Instant::from_nanos(client.limit_due_in(choice.place)).min(now).max(queued_at);
        self.charge(now, choice, &work, cost);
        Pull::Ready { client: id, phase: choice.phase, work, queued_at, free_at, payload }
    }

    /// True if a client with requests waiting is behind its reservation.
    #[inline]
    pub fn is_reservation_due(&self, now: Instant) -> bool {
        self.reserved.peek().is_some_and(|(due, _)| due <= now.as_nanos())
    }

    /// True if the next request is served by weight although a reservation is due: a 64th of the service, by cost, goes by
    /// weight first, so that clients without a reservation do not starve.
    #[inline]
    pub fn is_claimed(&self, now: Instant) -> bool {
        self.choose_client(now).is_some_and(|choice| choice.ahead_of_reservations)
    }

    /// Number of requests queued, of all clients.
    #[inline]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// True if nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.requests.len() == 0
    }

    /// Number of requests that this client has queued; 0 if it has left.
    pub fn client_len(&self, id: ClientId) -> usize {
        let client =
            self.clients.get(id.index as usize).filter(|client| client.live && client.generation == id.generation);
        client.map_or(0, |client| client.len() as usize)
    }

    /// When the limits of a client let its next request pass; `None` if they throttle none of its requests now.
    pub fn throttled_until(&self, id: ClientId) -> Option<Instant> {
        let client =
            self.clients.get(id.index as usize).filter(|client| client.live && client.generation == id.generation);
        client.and_then(|_| self.held.key_of(id.index)).map(Instant::from_nanos)
    }

    /// Number of requests that this client has queued and that were not put off: those of this direction if a direction of the
    /// client has a limit of its own, otherwise all.
    pub fn client_len_of(&self, id: ClientId, direction: Direction) -> usize {
        let client =
            self.clients.get(id.index as usize).filter(|client| client.live && client.generation == id.generation);
        let lanes = client.and_then(|client| client.lanes.as_ref());
        let ordinary = || client.map_or(0, |client| client.ordinary_len() as usize);
        lanes.map_or_else(ordinary, |lanes| lanes.fifo(direction).len() as usize)
    }

    /// Moves clients whose limit no longer throttles them from the heap `held` to the heaps `ready`.
    #[inline]
    fn release(&mut self, now: Instant) {
        while let Some((due, index)) = self.held.peek() {
            if due > now.as_nanos() {
                break;
            }
            self.held.remove(index);
            self.make_ready(index);
        }
    }

    /// The client to serve at `now`, and the list of its next request; `None` if no client may be served.
    #[inline(always)]
    fn choose(&self, now: Instant) -> Option<Choice> {
        Some(self.with_place(now, self.choose_client(now)?))
    }

    /// `choice` with `place` set to the list in which the client's next request is.
    #[inline(always)]
    fn with_place(&self, now: Instant, choice: Choice) -> Choice {
        let client = &self.clients[choice.index as usize];
        let age = |fifo: &Fifo| self.requests.front(fifo).map(|(request, _)| request.queued_at);
        let place = client.turn(now, choice.phase == Phase::Reservation, age);
        Choice { place, ..choice }
    }

    /// The client to serve at `now`, without the list of its next request; `None` if no client may be served.
    #[inline(always)]
    fn choose_client(&self, now: Instant) -> Option<Choice> {
        let is_due = |due: u64| due <= now.as_nanos();
        let due = self.reserved.peek().filter(|&(due, _)| is_due(due)).map(|(_, index)| index);
        let [plain, background, reserved] = [PLAIN, BACKGROUND, RESERVED].map(|heap| self.ready[heap].peek());
        let reserved = reserved.map(|(key, index)| (self.key_after_passing(key, index), index));
        let normal = earlier(plain, reserved);
        let ahead_of_normal = self.background_claim.is_owed() && normal.is_some() && background.is_some();
        let or_background =
            |normal: Option<(u64, u32)>| if ahead_of_normal { background } else { normal.or(background) };
        if let Some(due) = due {
            // The claim is for those whom the reservation phase does not serve.
            let unserved =
                |head: Option<(u64, u32)>| head.filter(|&(_, index)| !self.reserved.key_of(index).is_some_and(is_due));
            let second = || or_background(earlier(plain, unserved(reserved))).and_then(|head| unserved(Some(head)));
            return Some(match self.weight_claim.is_owed().then(second).flatten() {
                Some((_, index)) => Choice { ahead_of_reservations: true, ahead_of_normal, ..Choice::weight(index) },
                None => Choice::reservation(due),
            });
        }
        let (_, index) = or_background(normal)?;
        Some(Choice { ahead_of_normal, ..Choice::weight(index) })
    }

    /// The earliest time at which another request may go before that of the client `chosen`: a reservation becomes due, a
    /// limit releases a client, or the order of the client's own requests changes.
    fn next_change(&self, now: Instant, chosen: u32) -> Instant {
        let reserved = self.reserved.peek().map(|(due, _)| due);
        // One that is served by weight ahead of reservations gives way once its own is due.
        let own = self.reserved.key_of(chosen);
        let reserved = reserved.into_iter().chain(own).filter(|&due| due > now.as_nanos());
        let held = self.held.peek().map(|(due, _)| due);
        let of_chosen = self.clients[chosen as usize].next_turn(now);
        reserved.chain(held).chain(of_chosen).min().map_or(Instant::FAR_FUTURE, Instant::from_nanos)
    }

    /// The answer when no client may be served now.
    #[inline]
    fn next_due(&self) -> Pull<R> {
        let reserved = self.reserved.peek().map(|(due, _)| due);
        let held = self.held.peek().map(|(due, _)| due);
        match reserved.into_iter().chain(held).min() {
            Some(due) => Pull::Wait(Instant::from_nanos(due)),
            None => Pull::Idle,
        }
    }

    /// Moves the chosen client's tags for a request that is served, and the client to its new positions in the heaps.
    #[inline(always)]
    fn charge(&mut self, now: Instant, choice: &Choice, work: &Work, cost: u32) {
        let index = choice.index;
        self.catch_up_passed(index);
        let client = &mut self.clients[index as usize];
        let class = client.class() as usize;
        client.account(choice.place, cost);
        let background_waits = !self.ready[BACKGROUND].is_empty();
        match choice.phase {
            Phase::Reservation => {
                client.charge_reservation(now, work, cost, self.virtual_time[class]);
                let weight_waits =
                    background_waits || [PLAIN, RESERVED].iter().any(|&heap| !self.ready[heap].is_empty());
                self.weight_claim.earn(cost, weight_waits);
            }
            Phase::Weight => {
                if choice.beside {
                    client.bound_lead(cost, self.virtual_time[class]);
                } else {
                    // Not backwards for one who returned with a credit.
                    self.virtual_time[class] = self.virtual_time[class].max(client.weight_tag);
                }
                client.charge_weight(now, work, cost);
                if choice.ahead_of_reservations {
                    self.weight_claim.spend(cost);
                    self.passed = self.virtual_time[Class::Normal as usize];
                }
                if choice.ahead_of_normal {
                    self.background_claim.spend(cost);
                } else if client.class() == Class::Normal {
                    self.background_claim.earn(cost, background_waits);
                }
            }
        }
        if client.is_active() {
            self.place(now, index);
        } else {
            self.withdraw(index);
        }
    }

    /// The key by which a client of the heap `RESERVED` takes its turn by weight, if its key in the heap is `key`: at most the
    /// credit behind `passed`.
    #[inline]
    fn key_after_passing(&self, key: u64, index: u32) -> u64 {
        let was_passed = (key.wrapping_sub(self.passed as u64) as i64) < 0;
        if was_passed { self.clients[index as usize].caught_up(self.passed, self.cost.credit()) as u64 } else { key }
    }

    /// Raises the weight tag of a client of the heap `RESERVED` to [`Self::key_after_passing`], before the client is charged
    /// or leaves the heap. Does nothing for other clients.
    #[inline]
    fn catch_up_passed(&mut self, index: u32) {
        if self.ready[RESERVED].key_of(index).is_some() {
            self.clients[index as usize].catch_up(self.passed, self.cost.credit());
        }
    }

    /// Puts a client with queued requests into the heaps, at the positions that its tags give.
    #[inline]
    fn place(&mut self, now: Instant, index: u32) {
        let client = &mut self.clients[index as usize];
        if client.settle(self.virtual_time) {
            self.ready.iter_mut().for_each(|heap| heap.remove(index));
        }
        if client.reserved {
            match client.ordinary_len() {
                0 => self.reserved.remove(index),
                _ => self.reserved.set(index, client.reservation_due()),
            }
        }
        if client.blocked {
            return;
        }
        let due = client.limit_due();
        if due > now.as_nanos() {
            let heap = client.ready_in();
            self.catch_up_passed(index);
            self.ready[heap].remove(index);
            self.held.set(index, due);
        } else {
            self.held.remove(index);
            self.make_ready(index);
        }
    }

    /// Enters a client into the heap for its turn by weight, or updates its position there.
    #[inline(always)]
    fn make_ready(&mut self, index: u32) {
        // One that waits with a reservation has its tag lifted by `catch_up_passed` alone.
        if self.ready[RESERVED].key_of(index).is_some() {
            self.ready[RESERVED].set(index, self.clients[index as usize].weight_tag as u64);
        } else {
            self.enter(index);
        }
    }

    /// Enters a client into the heap for its turn by weight, at most a small credit behind the present virtual time: time in
    /// which the client had no requests, or was blocked, gives it no more than that.
    #[inline(always)]
    fn enter(&mut self, index: u32) {
        let client = &mut self.clients[index as usize];
        client.catch_up(self.virtual_time[client.class() as usize], self.cost.credit());
        self.ready[client.ready_in()].set(index, client.weight_tag as u64);
    }

    /// Takes a client out of all heaps.
    #[inline]
    fn withdraw(&mut self, index: u32) {
        self.catch_up_passed(index);
        self.reserved.remove(index);
        self.held.remove(index);
        self.ready.iter_mut().for_each(|heap| heap.remove(index));
    }
}

impl Choice {
    #[inline]
    fn reservation(index: u32) -> Self {
        Self { phase: Phase::Reservation, ..Self::weight(index) }
    }

    #[inline]
    fn weight(index: u32) -> Self {
        let (phase, place) = (Phase::Weight, Place::Common);
        Self { index, phase, place, ahead_of_reservations: false, ahead_of_normal: false, beside: false }
    }
}

/// Of two heads of heaps (key and client), the one with the earlier key. Keys of a class lie within half of their range.
#[inline]
fn earlier(one: Option<(u64, u32)>, other: Option<(u64, u32)>) -> Option<(u64, u32)> {
    match (one, other) {
        (Some(a), Some(b)) => Some(if (b.0.wrapping_sub(a.0) as i64) < 0 { b } else { a }),
        (one, other) => one.or(other),
    }
}

#[inline]
fn live_mut(clients: &mut [Client], id: ClientId) -> Option<&mut Client> {
    clients.get_mut(id.index as usize).filter(|client| client.live && client.generation == id.generation)
}

/// The list of a client's oldest request that was not put off.
fn oldest_of<R>(requests: &Slab<R>, client: &Client) -> Option<Place> {
    client.oldest(|fifo| requests.front(fifo).map(|(request, _)| request.queued_at))
}

/// Takes out all requests that a client has queued and that were not put off, oldest first.
fn take_all<R>(requests: &mut Slab<R>, client: &mut Client) -> Vec<(Request, R)> {
    let mut all = Vec::with_capacity(client.len() as usize);
    while let Some(place) = oldest_of(requests, client) {
        let fifo = client.fifo_mut(place);
        let Some(request) = requests.front(fifo).map(|(request, _)| *request) else { break };
        let Some(payload) = requests.pop(fifo) else { break };
        all.push((request, payload));
    }
    all
}
