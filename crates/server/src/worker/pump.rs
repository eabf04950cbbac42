//! Takes requests through their pool to the back end and results to replies; carries out requests on volumes in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use evenkeel_control::pool::{Next, Outcome, TenantId, Ticket};
use evenkeel_control::units::{Part, Work};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_nbd::server::reply;
use evenkeel_nbd::wire::{self, Command, CommandFlags, Errno};
use evenkeel_policy::explain;

use super::connection::{Ending, Payload, Phase};
use super::message::Message;
use super::operations::Operation;
use super::request::{Output, Request, Whole, is_change};
use super::stepwise::Ready;
use super::{Worker, mail};
use crate::backend::Backend;
use crate::backend::operation::Extent;
use crate::budget::Charge;
use crate::clock;
use crate::snapshot::Snapshot;
use crate::transport::Peer;

/// Largest effort of the requests dispatched while a pool's lock is held once; unit: one read from memory.
const DISPATCH_BATCH: u64 = 256;
/// Effort spent on volumes in memory between two looks at the clock; unit: one read from memory.
const LOOK_AFTER: u64 = 64;
/// Least effort of a write: wherever the range was zeroed or never written, the system may add a huge page (2 MiB), in a fraction
/// of a millisecond.
const WRITE: u64 = LOOK_AFTER / 4;
/// Bytes of new buffers, for reads of a device, whose allocation takes about as long as one read from memory: they are zeroed,
/// and the system adds their pages one by one, 1 MiB in some 150 us.
const FRESH: u64 = 4 << 10;
/// Upper bound on the bytes that the reply to a block status request has beside its extents.
const BESIDE_EXTENTS: usize = 64;
/// Largest number of tenants whose queues are searched for unwanted requests while a pool's lock is held once; each search goes
/// on in the next round.
const SEARCHES: usize = 2;
/// Largest number of closed connections that one round adds up before its searches: thousands may close together, and there are
/// as many rounds then.
const MERGED_AT_ONCE: usize = 256;
/// Number of pools that have their time within one [turn](Worker::turn), if all of them have much to do.
const POOLS_IN_A_TURN: u64 = 2;

/// A worker's work for one pool, collected between two times that it takes the pool's lock.
#[derive(Default)]
pub(super) struct PoolWork {
    /// Requests to submit to the pool, with their tenant and their work for the device.
    pub(super) incoming: Vec<(TenantId, Work, Box<Request>)>,
    /// Requests that the pool has dispatched and this worker has not carried out yet.
    pub(super) ready: VecDeque<Ready>,
    /// Tickets of requests that have left the back end, to be reported to the pool.
    pub(super) completed: Vec<(Ticket, Outcome)>,
    /// Connections that have closed with requests in flight: their tenants, the ids of their volumes, and numbers of such
    /// requests. Also tenants and volumes whose queues are still searched for such requests.
    pub(super) left: VecDeque<(TenantId, u32, u64)>,
    /// Requests taken out of the pool's queue because their connections are closed, to be discarded.
    dropped: VecDeque<Box<Request>>,
    /// When the worker is to visit the pool even if no event asks for it.
    pub(super) wake_at: Instant,
    /// True if the pool is on the worker's list of pools to visit.
    pub(super) active: bool,
}

impl Worker {
    /// Visits the pools that have something to do, one after the other, until no pool can go on or a [turn](Self::turn) is over.
    /// Sockets wait for so long.
    pub(super) fn pump(&mut self) {
        if self.active.is_empty() {
            return;
        }
        self.waking.others();
        let turn = self.turn();
        let until = clock::now() + turn;
        while let Some(index) = self.active.pop_front() {
            let now = clock::now();
            if self.visit(index, now, (now + time_of_pool(turn)).min(until)) {
                self.pools[index].active = false;
                continue;
            }
            self.active.push_back(index);
            if clock::now() >= until {
                return;
            }
        }
    }

    /// Submits, dispatches and carries out requests of a pool; true if nothing more can be done at present, false if `until`
    /// came first.
    pub(super) fn visit(&mut self, index: usize, mut now: Instant, until: Instant) -> bool {
        // Taken anew for each: a resubmission may have brought a new one, with more pools.
        let snapshot = Arc::clone(&self.snapshot);
        let pool = &snapshot.pools[index];
        // What has come since the step before goes in between the steps.
        let mut looks_first = self.pools[index].ready.front().is_some_and(Ready::is_begun);
        loop {
            if !std::mem::take(&mut looks_first) && !self.pools[index].ready.is_empty() {
                if !self.carry_out(&snapshot, index, now, until) {
                    return false;
                }
                now = clock::now();
                self.tape.stamp(now);
            }
            let recording = self.shared.recorder.is_on();
            let work = &mut self.pools[index];
            let (mut rejected, mut unwanted) = (Vec::new(), Vec::new());
            let slots = &self.shared.slots;
            let some = work.left.len().min(MERGED_AT_ONCE);
            let mut left = merged(work.left.drain(..some)).into_iter();
            let (wake_at, decided, target, missed_target, guaranteed) = {
                let mut state = pool.lock();
                for (ticket, outcome) in work.completed.drain(..) {
                    state.complete(now, ticket, outcome);
                }
                for (tenant, what, mut request) in work.incoming.drain(..) {
                    if recording && request.arrived == Instant::ZERO {
                        request.arrived = now;
                    }
                    if let Err(request) = state.submit_of(now, request.volume, tenant, what, request) {
                        rejected.push((what, request));
                    }
                }
                // Places and memory of those that are gone are for others at once, not when the turn of each request comes.
                let mut going_on = Vec::new();
                for (tenant, volume, requests) in left.by_ref().take(SEARCHES) {
                    let gone = state.drop_unwanted(now, tenant, requests, |it| !slots.is_alive(it.key));
                    work.dropped.extend(gone);
                    let gone = state.drop_unwanted_of(volume, requests, |it| !slots.is_alive(it.key));
                    work.dropped.extend(gone);
                    if state.is_searching(tenant) || state.is_searching_of(volume) {
                        going_on.push((tenant, volume, 0));
                    }
                }
                // All others come before these once more.
                work.left.extend(left.chain(going_on));
                let mut effort: u64 = work.ready.iter().map(effort_of).sum();
                let wake_at = loop {
                    match state.dispatch_wanted(now, |request| slots.wish(request.key, request.command)) {
                        Ok(Next::Run(mut request, mut ticket)) => {
                            let command = request.command;
                            if let Some(slice) = &mut request.slice {
                                slice.admitted = now;
                                // The payload of a write comes when its client sends it: as of an undivided one, that is no
                                // time for which the server lets it wait, and no reason to throttle others.
                                if ticket.work().part == Part::Last && command != Command::Write {
                                    ticket.began_at(slice.since);
                                }
                            }
                            let volume = snapshot.volume(request.volume);
                            let in_memory = volume.is_some_and(|volume| volume.backend.is_memory());
                            // Carried out by this worker as soon as it has unlocked, or a search for holes, of which the
                            // engine does few at a time: admission guards the queue of a device, and would only
                            // keep others waiting for this one.
                            let searches = request.command == Command::BlockStatus
                                && volume.is_some_and(|volume| matches!(volume.backend, Backend::File(_)));
                            if in_memory || searches {
                                state.exempt(&mut ticket);
                            }
                            let ready = Ready::new(request, ticket);
                            effort += if in_memory { effort_of(&ready) } else { 1 };
                            work.ready.push_back(ready);
                        }
                        Ok(Next::Wait(until)) => break until,
                        Ok(Next::Idle) => break Instant::FAR_FUTURE,
                        Err(request) => {
                            unwanted.extend(request);
                            effort += 1;
                        }
                    }
                    // What is taken out cannot be reordered any more.
                    if effort >= DISPATCH_BATCH {
                        break now;
                    }
                };
                pool.note_slices(&state);
                // Rare: a guarantee that has become unachievable, or achievable again.
                let guaranteed = state.take_guarantee_decision().and_then(|(id, scope, reason)| {
                    let view = state.tenant(id)?.guarantee(scope)?;
                    // The reason of the change, which may not be the newest.
                    let mut limit = view.limit;
                    limit.reason = reason;
                    Some((id, scope.name(), limit, view.binding))
                });
                let missed_target = state.take_missed_target(now);
                let target = state.take_target_decision();
                let target = target.and_then(|decision| Some((decision, state.target()?.config.statistic)));
                (wake_at, state.take_decision(), target, missed_target, guaranteed)
            };
            if let Some(decision) = decided {
                tracing::debug!(
                    pool = pool.name,
                    budget_bytes = (decision.budget_bytes < u64::MAX).then_some(decision.budget_bytes),
                    target_ms = decision.target.map(|target| target.as_millis_f64()),
                    reason = evenkeel_policy::explain::admission(&decision.reason),
                    "admission control has decided a pool's budget"
                );
            }
            let known = |id| {
                let mut tenants = snapshot.tenants[index].iter();
                tenants.find(|(_, known)| **known == id).map(|(name, _)| &**name)
            };
            let name_of = |id| known(id).unwrap_or_default();
            if let Some((decision, statistic)) = target
                && pool.log_target(statistic, &decision, |id| known(id).map(str::to_owned))
            {
                self.shared.recorder.target_missed();
            }
            if let Some(missed) = missed_target {
                self.shared.recorder.target_missed();
                let tenant = name_of(missed.tenant);
                let because = explain::missed(&missed, tenant);
                let not_logged = missed.unreported;
                tracing::warn!(pool = pool.name, tenant, not_logged, "latency target missed: {because}");
            }
            if let Some((id, of, limit, binding)) = guaranteed {
                let tenant = name_of(id);
                let (reason, missed) = (limit.reason.name(), limit.reason.is_missed());
                let because = explain::guarantee(&limit, Some(binding), &explain::part_of(tenant, of));
                if missed {
                    tracing::warn!(pool = pool.name, tenant, of, reason, "guaranteed throughput missed: {because}");
                } else {
                    tracing::info!(
                        pool = pool.name,
                        tenant,
                        of,
                        reason,
                        "guaranteed throughput no longer missed: {because}"
                    );
                }
            }
            work.wake_at = wake_at;
            let was_rejected = !rejected.is_empty();
            for (what, request) in rejected {
                self.resubmit(index, what, request);
            }
            for request in unwanted {
                self.discard(request);
            }
            for _ in 0..DISPATCH_BATCH {
                let Some(request) = self.pools[index].dropped.pop_front() else { break };
                self.discard(request);
            }
            let has_dropped = !self.pools[index].dropped.is_empty();
            if (was_rejected || has_dropped || !self.pools[index].left.is_empty()) && clock::now() >= until {
                // The snapshot with the tenant's successor is not there yet, or there are many to search or to discard.
                return false;
            }
            let work = &self.pools[index];
            if work.ready.is_empty() && work.incoming.is_empty() && work.left.is_empty() && !has_dropped {
                return true;
            }
        }
    }

    /// Carries out dispatched requests of a pool, or one step of each; false if `until` comes before all of them have had
    /// their turn. Those of which steps are left are the next ones then, with those that the pool dispatches meanwhile.
    fn carry_out(&mut self, snapshot: &Snapshot, index: usize, now: Instant, until: Instant) -> bool {
        let mut effort = 0;
        self.buffers.take_fresh();
        for _ in 0..self.pools[index].ready.len() {
            let Some(ready) = self.pools[index].ready.pop_front() else { break };
            effort += effort_of(&ready);
            self.execute(snapshot, index, ready, now);
            effort += self.buffers.take_fresh() / FRESH;
            if effort >= LOOK_AFTER {
                if clock::now() >= until {
                    return false;
                }
                effort = 0;
            }
        }
        true
    }

    #[inline]
    fn execute(&mut self, snapshot: &Snapshot, pool: usize, mut ready: Ready, now: Instant) {
        let newest;
        let known = match snapshot.volume(ready.request.volume) {
            None => {
                // It may come from a worker that has a newer snapshot, with a new volume.
                newest = self.shared.snapshot();
                newest.volume(ready.request.volume)
            }
            known => known,
        };
        let Some(volume) = known else {
            self.note(pool, &ready.request, &ready.ticket, Some(Errno::Shutdown));
            self.pools[pool].completed.push((ready.ticket, Outcome::Cancelled));
            self.answer(ready.request, Err(Errno::Shutdown));
            return;
        };
        let in_memory = match &volume.backend {
            Backend::Memory(memory) => Some(memory),
            Backend::Emulate(memory, _) if ready.is_off_device() => Some(memory),
            Backend::Emulate(..) | Backend::File(_) | Backend::Remote(_) | Backend::Rbd(_) => None,
        };
        if let Some(memory) = in_memory {
            let Some(result) = ready.carry_out(memory) else {
                return self.pools[pool].ready.push_back(ready);
            };
            let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Failed };
            if result.is_err() {
                volume.has_no_room(ready.request.offset, ready.request.length);
            } else if ready.request.command == Command::Trim {
                volume.has_trimmed(ready.request.length, ready.ticket.work().part.ends());
            }
            self.note(pool, &ready.request, &ready.ticket, result.as_ref().err().copied());
            self.pools[pool].completed.push((ready.ticket, outcome));
            return self.answer(ready.request, result);
        }
        let (request, ticket) = (ready.request, ready.ticket);
        match &volume.backend {
            Backend::Memory(_) => {}
            Backend::Emulate(_, device) => {
                let io = Io { kind: ticket.work().kind, offset: request.offset, bytes: ticket.work().payload() };
                let device = Arc::clone(device);
                let token = self.operations.insert(Operation::new(pool, volume, request, ticket, now));
                device.submit(io, token, &self.reports);
            }
            Backend::File(_) | Backend::Remote(_) | Backend::Rbd(_) => {
                self.start_operation(Operation::new(pool, volume, request, ticket, now));
            }
        }
    }

    /// Submits a request to its pool once more, because the request's tenant was removed while it waited, and its connection now
    /// belongs to another tenant.
    fn resubmit(&mut self, pool: usize, work: Work, request: Box<Request>) {
        if self.shared.epoch() != self.epoch {
            self.refresh();
        }
        // It may name a tenant that there is no more, and the request would come back for ever.
        self.judge(request.key.slot as usize);
        let connection = self.connections[request.key.slot as usize].as_ref().filter(|c| c.key == request.key);
        let tenant = match connection.map(|connection| &connection.phase) {
            Some(Phase::Attached(attached)) => Some(attached.tenant),
            // Served by another worker, which knows the client's address: the volume's tenant pays.
            _ => self
                .snapshot
                .volume(request.volume)
                .and_then(|volume| Some(self.snapshot.tenant(volume, &Peer::default())?.1)),
        };
        match tenant {
            Some(tenant) => self.pools[pool].incoming.push((tenant, work, request)),
            None => {
                self.note_dropped(&request);
                self.answer(request, Err(Errno::Shutdown));
            }
        }
    }

    /// Releases a request's buffer, and passes the request's result to its connection, whichever worker serves that
    /// connection.
    #[inline(always)]
    pub(super) fn answer(&mut self, mut request: Box<Request>, result: Result<Output, Errno>) {
        if let Some(buffer) = request.buffer.take() {
            self.buffers.give(buffer);
        }
        self.deliver(request, result);
    }

    /// Ends a request that is not to be carried out: drops it if its connection is gone, and else answers it with a shutdown
    /// error, because the client has closed its sending side.
    fn discard(&mut self, mut request: Box<Request>) {
        self.note_dropped(&request);
        if self.shared.slots.is_alive(request.key) {
            return self.answer(request, Err(Errno::Shutdown));
        }
        self.shared.slots.bury(request.key, request.charge.bytes(), None);
        if let Some(buffer) = request.buffer.take() {
            self.buffers.give(buffer);
        }
    }

    /// Turns the result of a request into a reply, or passes it on to the worker that serves the request's connection.
    #[inline]
    pub(super) fn deliver(&mut self, mut request: Box<Request>, result: Result<Output, Errno>) {
        let key = request.key;
        let connection = match &mut self.connections[key.slot as usize] {
            Some(connection) if connection.key == key => connection,
            _ => {
                if self.shared.slots.is_alive(key) {
                    // Served elsewhere, or on its way here.
                    let home = self.shared.slots.home(key);
                    mail(&mut self.outbox, home, Message::Completed(request, result));
                } else {
                    self.shared.slots.bury(key, request.charge.bytes(), Some(clock::now()));
                    if let Ok(Output::Bytes(buffer)) = result {
                        self.buffers.give(buffer);
                    }
                }
                return;
            }
        };
        connection.in_flight -= 1;
        connection.changes -= u32::from(is_change(request.command));
        let charge = std::mem::take(&mut request.charge);
        connection.charged -= charge.bytes();
        if let Some(slice) = request.slice.take() {
            if self.shared.recorder.is_on()
                && let Some(divided) = connection.divided.get(slice.whole)
            {
                let now = clock::now();
                divided.at_device.add(slice.admitted.min(now), now);
            }
            return self.deliver_slice(slice.whole, request, charge, result);
        }
        let Phase::Attached(attached) = &connection.phase else { return };
        let (framing, cookie, offset) = (attached.session.framing, request.cookie, request.offset);
        let (header, payload) = match result {
            Err(errno) => (Some(reply::error(framing, cookie, offset, errno)), Payload::None),
            Ok(Output::Nothing) => (Some(reply::ok(framing, cookie, offset)), Payload::None),
            Ok(Output::InPlace(ptr)) => {
                let header = reply::read(framing, cookie, offset, request.length as u32);
                (Some(header), Payload::in_place(&attached.volume.backend, ptr, offset, request.length))
            }
            Ok(Output::Bytes(buffer)) => {
                (Some(reply::read(framing, cookie, offset, request.length as u32)), Payload::Buffer(buffer))
            }
            Ok(Output::Extents(extents)) => {
                let one = request.flags.contains(CommandFlags::REQ_ONE);
                let message = block_status((framing, cookie, offset), request.length, one, &extents);
                (None, Payload::Owned(message))
            }
        };
        // Only the payload of a reply still holds memory.
        let holds = matches!(payload, Payload::Buffer(_) | Payload::Owned(_));
        let charge = if holds { charge } else { Charge::default() };
        connection.out.push(header, payload, charge);
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(key.slot);
        }
        self.spare.give(request);
    }
}

impl Worker {
    /// Passes the result of a slice on to the divided request that the slice belongs to.
    fn deliver_slice(&mut self, whole: Whole, request: Box<Request>, charge: Charge, result: Result<Output, Errno>) {
        let slot = request.key.slot as usize;
        let Some(mut connection) = self.connections[slot].take() else { return };
        let offset = request.offset;
        self.spare.give(request);
        self.slice_done(&mut connection, whole, offset, charge, result);
        if connection.ending != Ending::Open {
            // It may be the last that kept the connection from closing, without a reply: the rest of a write never comes.
            self.mark_dirty(&mut connection);
        }
        self.connections[slot] = Some(connection);
    }
}

/// Effort of the next step of a request on a volume in memory, for the dispatch and for the looks at the clock.
#[inline]
fn effort_of(ready: &Ready) -> u64 {
    let least = if ready.request.command == Command::Write { WRITE } else { 0 };
    ready.effort().max(least)
}

/// Longest time that a worker spends in a row on one pool while other pools wait, if its [turn](Worker::turn) lasts `turn`.
fn time_of_pool(turn: Duration) -> Duration {
    Duration::from_nanos(turn.as_nanos() / POOLS_IN_A_TURN)
}

/// Adds up the requests that closed connections of one tenant to one volume have left, for one search of the queue: a search for
/// each would go through the rest of the queue in vain.
fn merged(left: impl IntoIterator<Item = (TenantId, u32, u64)>) -> Vec<(TenantId, u32, u64)> {
    let mut merged: Vec<(TenantId, u32, u64)> = Vec::new();
    let mut places = HashMap::new();
    for (tenant, volume, requests) in left {
        let place = *places.entry((tenant, volume)).or_insert(merged.len());
        match merged.get_mut(place) {
            Some(of) => of.2 += requests,
            None => merged.push((tenant, volume, requests)),
        }
    }
    merged
}

/// The reply to a block status request for `length` bytes, of which `extents` are known. It holds about as much memory as it is
/// charged; growing from nothing, it would take up to twice as much.
fn block_status(
    (framing, cookie, offset): (wire::Framing, u64, u64),
    length: u64,
    one: bool,
    extents: &[Extent],
) -> Vec<u8> {
    let most = if one { 1 } else { extents.len() };
    let each = if framing.is_extended() { size_of::<Extent>() } else { size_of::<Extent>() / 2 };
    let extents = extents.iter().map(|extent| wire::Extent {
        length: extent.len,
        status: if extent.hole { wire::STATE_HOLE | wire::STATE_ZERO } else { 0 },
    });
    let mut message = Vec::with_capacity(BESIDE_EXTENTS + most * each);
    reply::block_status(framing, cookie, offset, length, one, extents, &mut message);
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::operation::MAX_EXTENTS;

    #[test]
    fn connections_of_a_tenant_that_close_together_cause_one_search() {
        let worker = crate::worker::tests::worker();
        let mut pool = worker.snapshot.pools[0].lock();
        let [one, other] = [(); 2].map(|()| pool.join(Instant::ZERO, Default::default()));
        let left = vec![(one, 0, 3), (other, 0, 1), (one, 0, 1_000), (one, 1, 5)];
        assert_eq!(merged(left), [(one, 0, 1_003), (other, 0, 1), (one, 1, 5)]);
    }

    #[test]
    fn a_search_for_each_of_hundreds_of_tenants_ends_in_one_visit() {
        let mut worker = crate::worker::tests::worker();
        let tenants: Vec<TenantId> = {
            let mut pool = worker.snapshot.pools[0].lock();
            (0..3 * MERGED_AT_ONCE).map(|_| pool.join(Instant::ZERO, Default::default())).collect()
        };
        worker.pools[0].left.extend(tenants.into_iter().map(|tenant| (tenant, 0, 1)));
        assert!(worker.visit(0, clock::now(), Instant::FAR_FUTURE), "nothing is left to do");
        assert!(worker.pools[0].left.is_empty());
    }

    #[test]
    fn the_reply_to_a_block_status_request_holds_what_it_is_charged() {
        let extents: Vec<Extent> = (0..MAX_EXTENTS).map(|n| Extent { len: 4096, hole: n % 2 == 0 }).collect();
        let length = 4096 * MAX_EXTENTS as u64;
        for framing in [wire::Framing::Structured, wire::Framing::Extended] {
            for (one, most) in [(false, MAX_EXTENTS), (true, 1)] {
                let message = block_status((framing, 7, 0), length, one, &extents);
                assert!(message.len() >= most * size_of::<Extent>() / 2);
                assert!(message.capacity() <= most * size_of::<Extent>() + BESIDE_EXTENTS, "{}", message.capacity());
            }
        }
    }
}
