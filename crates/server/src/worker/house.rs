//! A worker's periodic tasks: once a second deadlines, overdue operations and statistics, and, as often as the placement of
//! connections decides, reports of the cost of connections.
//!
//! A worker with thousands of connections looks after some of them in each round of its loop, so that requests do not wait
//! for long.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use evenkeel_control::placement::Sample;
use evenkeel_control::{Duration, Instant};

use super::connection::{Connection, Ending, Phase};
use super::ended::ENDS_IN_A_ROUND;
use super::message::Message;
use super::seen::Seen;
use super::{CLOSING, Worker};
use crate::refusals::Reason;

/// Interval at which a worker checks deadlines and overdue operations, and updates statistics.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Largest number of connections that are looked after in one round of the worker's loop, which takes some 100 us.
pub(super) const IN_A_ROUND: usize = 128;
/// Longest stall of a connection whose tenant holds more than its share of buffer memory while other tenants wait for some. A
/// bit less than a second, so that the second check finds the connection.
const GIVES_WAY_AFTER: Duration = Duration::from_millis(900);
/// Longest stall of a connection without requests in flight while the server stops.
const KEEPS_A_STOP_WAITING: Duration = Duration::from_secs(2);
/// Longest stall of a connection while other connections of its own tenant wait for buffer memory.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(20);

/// Progress of a worker's periodic tasks, which are done in passes over all connections.
pub(super) struct House {
    /// Interval between two passes, and so between two reports to the placement: as often as the placement decides, but at
    /// least once a second.
    every: Duration,
    begun_at: Instant,
    /// Instant at which the newest pass began that checks connections.
    looked_at: Instant,
    /// True if connections are checked in this pass; false if their cost is only reported.
    looks: bool,
    /// Sum of the worker's busy fractions (0 to 1 each) since the newest pass in which connections were checked, and
    /// their number.
    busy: (f64, u32),
    /// The slot at which the pass goes on in the next round; `None` between two passes.
    next: Option<usize>,
    /// Records of the connections looked after so far in this pass.
    clients: Vec<Seen>,
}

impl House {
    /// The state before the first pass. `interval`: how often the placement decides; `None` if it never moves connections.
    pub(super) fn new(now: Instant, interval: Option<Duration>) -> Self {
        let every = interval.map_or(HOUSEKEEPING, |interval| interval.min(HOUSEKEEPING));
        Self { every, begun_at: now, looked_at: now, looks: false, busy: (0.0, 0), next: None, clients: Vec::new() }
    }

    /// When to go on with the pass that is under way, or else to begin the next one.
    pub(super) fn due_at(&self) -> Instant {
        if self.next.is_some() { self.begun_at } else { self.begun_at + self.every }
    }

    /// Begins a pass over all connections at `now`.
    fn begin(&mut self, now: Instant) {
        self.begun_at = now;
        self.looks = now >= self.looked_at + HOUSEKEEPING;
        if self.looks {
            self.looked_at = now;
        }
    }
}

impl Worker {
    /// Begins a pass over all connections, or goes on with the next [`IN_A_ROUND`] of them, and closes at most
    /// [`ENDS_IN_A_ROUND`].
    pub(super) fn keep_house(&mut self, now: Instant) {
        let first = self.house.next.unwrap_or_else(|| {
            self.house.begin(now);
            0
        });
        if first == 0 && self.house.looks {
            // For want of a wake-up that the kernel has refused.
            self.on_mail();
            let stats = &self.shared.stats[self.index];
            stats.requests.store(self.requests, Ordering::Relaxed);
            stats.heard_ns.store(now.as_nanos(), Ordering::Relaxed);
            self.report_overdue(now);
            self.tape.rest(self.shared.recorder.session());
        }
        let mut slots = first..self.connections.len();
        let (mut seen, mut closed) = (0, 0);
        while seen < IN_A_ROUND
            && closed < ENDS_IN_A_ROUND
            && let Some(slot) = slots.next()
        {
            if self.connections[slot].is_some() {
                seen += 1;
                if self.house.looks {
                    self.look_after(slot, now);
                    // To discard what the client has sent takes as long as looking after many.
                    closed += u32::from(self.connections[slot].is_none());
                }
            }
        }
        self.tell_costs(first..slots.start);
        self.house.next = (slots.start < self.connections.len()).then_some(slots.start);
        if self.house.next.is_none() {
            if self.house.looks {
                let clients = std::mem::take(&mut self.house.clients);
                *self.shared.stats[self.index].clients.lock().unwrap_or_else(PoisonError::into_inner) = clients;
            }
            self.tell_usage(now);
        }
    }

    /// Closes the connection in `slot` if it has negotiated or stalled for too long, and else records its state.
    fn look_after(&mut self, slot: usize, now: Instant) {
        let Some(connection) = &mut self.connections[slot] else { return };
        if connection.ending == Ending::Lingering {
            if connection.is_done() {
                self.connections[slot].take().into_iter().for_each(|connection| self.close(connection));
            }
            return;
        }
        let too_long = match &connection.phase {
            Phase::Handshake(_) => {
                let late = connection.ticket.as_ref().is_some_and(|ticket| ticket.is_late(now));
                late.then_some(Reason::HandshakeTimeout.because())
            }
            Phase::Attached(_) => {
                let in_the_way = connection.account().is_some_and(|account| account.is_in_the_way());
                let stalled = connection.stalled(now, in_the_way, self.draining);
                let keeps_waiting = self.draining && connection.in_flight == 0 && stalled >= KEEPS_A_STOP_WAITING;
                let in_the_way = in_the_way && stalled >= GIVES_WAY_AFTER;
                let stuck = stalled >= STUCK_AFTER && connection.account().is_some_and(|account| account.waits());
                if in_the_way {
                    Some(
                        "the client hardly sends or receives data, and its tenant holds more than its share of server.buffer_memory, for which other tenants wait",
                    )
                } else if keeps_waiting {
                    Some("the server stops, and the client hardly receives its answers")
                } else {
                    stuck.then_some("the client hardly sends or receives data, and holds part of server.buffer_memory, for which its tenant's other connections wait")
                }
            }
        };
        let Some(why) = too_long else {
            self.house.clients.extend(Seen::of(connection, now));
            return;
        };
        if let Some(connection) = self.connections[slot].take() {
            if connection.volume().is_none() {
                self.shared.refusals.count(Reason::HandshakeTimeout);
            }
            self.say(CLOSING, why, &connection.peer, &why);
            self.close(connection);
        }
    }

    /// Checks a connection against the newest snapshot; false if it must end. A reload may end thousands of connections, of which
    /// the log has few.
    pub(super) fn follows(&mut self, connection: &mut Connection) -> bool {
        match connection.follow(&self.snapshot) {
            Ok(()) => true,
            Err(reason) => {
                if let Some((kind, why)) = reason {
                    self.say(CLOSING, kind, &connection.peer, &why);
                }
                false
            }
        }
    }

    /// Reports to the placement the cost of the connections in `slots` since the report before.
    fn tell_costs(&mut self, slots: Range<usize>) {
        let here = self.index as u32;
        let mut placement = self.shared.placement();
        for connection in self.connections[slots].iter_mut().flatten() {
            let (slot, toll) = (connection.key.slot, connection.toll.take(connection.requests));
            let requests = connection.requests - toll.requests;
            let cpu = Duration::from_nanos(toll.ns() + self.meter.of_requests(requests));
            placement.observe(slot, Sample { cpu, received_bytes: toll.received });
            // It did not come as far as was decided, or is on its way still: then its next worker says so.
            if placement.worker(slot) != Some(here) {
                placement.found_on(slot, here);
            }
        }
    }

    /// Reports to the placement how busy the worker was since the report before. The first worker also asks the placement
    /// which connections should move, and sends those moves to the workers.
    fn tell_usage(&mut self, now: Instant) {
        let (shared, here) = (&self.shared, self.index as u32);
        let usage = self.occupation.take(now, self.meter.take_rounds());
        let stats = &shared.stats[self.index];
        stats.cpu_ns.store(self.occupation.cpu_ns(), Ordering::Relaxed);
        self.house.busy.0 += usage.busy;
        self.house.busy.1 += 1;
        if self.house.looks {
            let (sum, count) = std::mem::take(&mut self.house.busy);
            stats.busy.store((sum / f64::from(count)).to_bits(), Ordering::Relaxed);
        }
        let mut placement = shared.placement();
        placement.observe_worker(here, usage);
        let decides = here == 0 && !self.draining;
        // As regular as the beginnings are, which do not depend on how many connections there are.
        let Some(decision) = decides.then(|| placement.tick(self.house.begun_at)).flatten() else { return };
        shared.moves.fetch_add(decision.moves as u64, Ordering::Relaxed);
        if decision.moves > 0 {
            let (reason, because) = (decision.reason.name(), evenkeel_policy::explain::placement(&decision.reason));
            tracing::info!(moves = decision.moves, reason, "placement: {because}");
        }
        for one in placement.moves() {
            let key = shared.slots.key(one.slot);
            shared.post(one.from as usize, Message::Move(key, one.to as usize));
        }
    }
}
