//! A promised throughput on one device: which limit gives it to a tenant?
//!
//! The sensor and the throttle of a [`throughput::Controller`] where the queue is ours. A tenant under a limit of exactly
//! what it was promised gets less whenever the device has other things to do, and never has it back. So the limit follows
//! what is still due: it belongs to [`Owner::Throughput`], beside those of others, and the smallest binds. Reservations go
//! before all of them.
//!
//! A pool has one queue for each tenant, so that a promise is about reads and writes together. What misses a cache below
//! is not known here, and does not have to be: who had requests waiting all the time was kept from what it did not get.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Pool, Scheduler, Tenant, TenantId};
use crate::limits::Owner;
use crate::throughput::{
    self, Assignment, Config, Controller, Counters, Demand, Goal, InForce, Limit, Promise, Rate, Reason, TenantSample,
};
use crate::time::{Duration, Instant};

/// How often is measured and decided; a promise holds in each window of ten.
const INTERVAL: Duration = Duration::from_millis(100);
/// Decisions of a tenant that are remembered: enough to see how the present one came about.
const RECORDS: usize = 32;
/// A tenant that had nothing waiting or inside for a larger part of an interval than this may have got all it asked for.
/// With one request at a time there is always a little between them.
const IDLE_AT_MOST: f64 = 0.1;
/// Slots that were all taken bound who got less than this part of its limit.
const NOT_SHORT: f64 = 0.97;

/// What decides how much a tenant gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Its reservation is as high as the smallest limit or higher, and wins.
    Reservation,
    /// The smallest limit, which is this owner's; of a rate, or of the requests inside.
    Limit(Owner),
}

impl Binding {
    /// Name as shown to people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reservation => "reservation",
            Self::Limit(owner) => owner.name(),
        }
    }
}

/// A decision as it is remembered; one that stays the same in kind is one record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// When it was taken first.
    pub from: Instant,
    /// When it was taken last.
    pub until: Instant,
    /// How often.
    pub times: u64,
    /// The limit and why, as it was the last time.
    pub limit: Limit,
    /// What bound in the interval before.
    pub binding: Binding,
}

/// A look at a tenant's promise.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// What was promised.
    pub promised: Rate,
    /// What the tenant got in the last interval, per second; `None` before the first.
    pub measured: Option<f64>,
    /// The limit assigned for it, and why.
    pub limit: Limit,
    /// What bound in the last interval.
    pub binding: Binding,
    /// Decisions lately, oldest first.
    pub records: &'a VecDeque<Record>,
}

/// The controller of all promises on a pool.
pub(super) struct Promises {
    controller: Controller,
    next_tick: Instant,
    ticked_at: Instant,
    samples: Vec<TenantSample>,
}

impl Promises {
    /// A tenant is gone, and its promise with it.
    pub(super) fn forget(&mut self, promise: &Promised) {
        self.controller.leave(promise.id);
    }
}

/// A tenant's promise.
pub(super) struct Promised {
    id: throughput::TenantId,
    promised: Rate,
    /// What it had done at the last tick.
    counted: u64,
    measured: Option<f64>,
    limit: Limit,
    binding: Binding,
    records: VecDeque<Record>,
    /// Since when it has nothing waiting or inside.
    idle_since: Option<Instant>,
    /// For how long it had nothing since the last tick.
    idle: Duration,
    /// Whether its slots were all taken since the last tick.
    pub(super) blocked: bool,
}

impl Promised {
    /// A request comes, the first after some time or not.
    pub(super) fn wakes(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.take() {
            self.idle = self.idle + now.since(since);
        }
    }

    /// Its last request has left.
    pub(super) fn rests(&mut self, now: Instant) {
        self.idle_since.get_or_insert(now);
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            promised: self.promised,
            measured: self.measured,
            limit: self.limit,
            binding: self.binding,
            records: &self.records,
        }
    }

    fn demand(&mut self, now: Instant, length: Duration) -> Demand {
        if self.idle_since.is_some() {
            self.wakes(now);
            self.rests(now);
        }
        let idle = core::mem::take(&mut self.idle);
        match idle.as_secs_f64() <= IDLE_AT_MOST * length.as_secs_f64() {
            true => Demand::Backlogged,
            false => Demand::AppLimited,
        }
    }

    fn record(&mut self, now: Instant) -> bool {
        let (limit, binding) = (self.limit, self.binding);
        match self.records.back_mut() {
            Some(last) if last.limit.reason.name() == limit.reason.name() && last.binding == binding => {
                (last.until, last.limit) = (now, limit);
                last.times += 1;
                false
            }
            _ => {
                if self.records.len() == RECORDS {
                    self.records.pop_front();
                }
                self.records.push_back(Record { from: now, until: now, times: 1, limit, binding });
                true
            }
        }
    }
}

impl Tenant {
    /// What it has done in the unit of a promise.
    fn done(&self, unit: Rate) -> u64 {
        let stats = &self.stats;
        match unit {
            Rate::BytesPerS(_) => stats.read_bytes.saturating_add(stats.write_bytes),
            Rate::RequestsPerS(_) => stats.reads + stats.writes + stats.flushes + stats.metas,
        }
    }

    /// The smallest limit in the unit of a promise, and the reservation, 0 for none.
    fn bounds(&self, unit: Rate) -> (Option<(Owner, u64)>, u64) {
        match unit {
            Rate::BytesPerS(_) => (self.limit_bytes_per_s.binding(), self.qos.reservation.bytes_per_s),
            Rate::RequestsPerS(_) => (self.limit_iops.binding(), self.qos.reservation.iops),
        }
    }

    /// What bound it, if it got so much.
    fn bound_by(&self, promised: &Promised, measured: f64) -> Binding {
        let (limit, reservation) = self.bounds(promised.promised);
        let (owner, limit) = limit.unwrap_or((Owner::Throughput, promised.limit.limit.value()));
        if reservation >= limit {
            return Binding::Reservation;
        }
        match self.slots.binding().filter(|_| promised.blocked && measured < NOT_SHORT * limit as f64) {
            Some((owner, _)) => Binding::Limit(owner),
            None => Binding::Limit(owner),
        }
    }
}

impl<R> Pool<R> {
    /// Promises a tenant a throughput of reads and writes together, another one, or none any more. Only with
    /// [`Scheduler::Mclock`] anything comes of it. A rate of 0 is no promise.
    pub fn set_promise(&mut self, now: Instant, id: TenantId, promised: Option<Rate>) {
        let Some(tenant) = self.live_mut(id) else { return };
        let Some(rate) = promised.filter(|rate| rate.value() > 0) else {
            self.withdraw_promise(now, id.index);
            return;
        };
        let same = tenant
            .promise
            .as_ref()
            .is_some_and(|promise| core::mem::discriminant(&promise.promised) == core::mem::discriminant(&rate));
        if !same {
            self.withdraw_promise(now, id.index);
        }
        let tenant = &mut self.tenants[id.index as usize];
        let ceiling = match rate {
            Rate::BytesPerS(_) => tenant.qos.limit.bytes_per_s,
            Rate::RequestsPerS(_) => tenant.qos.limit.iops,
        };
        // A limit below the promise binds by itself.
        let ceiling = (ceiling > 0).then_some(ceiling.max(rate.value()));
        let weight = f64::from(tenant.qos.weight.clamp(1, 1_000_000));
        let goal = Goal { promised: rate, ceiling };
        let promise = Promise { read: Some(goal), write: None, weight };
        if self.promises.is_none() {
            let config = Config { interval: INTERVAL, ..Config::DEFAULT };
            let Ok(controller) = Controller::new(&config) else { return };
            let next_tick = now + INTERVAL;
            self.promises = Some(Promises { controller, next_tick, ticked_at: now, samples: Vec::new() }.into());
        }
        let Some(promises) = &mut self.promises else { return };
        if let Some(known) = &mut tenant.promise {
            if promises.controller.promise(known.id, &promise).is_ok() {
                known.promised = rate;
            }
        } else if let Ok(throughput_id) = promises.controller.join(&promise) {
            let idle = tenant.in_flight == 0 && self.queue.client_len(tenant.client) == 0;
            tenant.promise = Some(
                Promised {
                    id: throughput_id,
                    promised: rate,
                    counted: tenant.done(rate),
                    measured: None,
                    limit: Limit { limit: rate, reason: Reason::NotEnoughData },
                    binding: Binding::Limit(Owner::Throughput),
                    records: VecDeque::new(),
                    idle_since: idle.then_some(now),
                    idle: Duration::ZERO,
                    blocked: false,
                }
                .into(),
            );
        }
        self.assign(now, id.index);
    }

    /// Takes a promise back, and its limit with it.
    pub(super) fn withdraw_promise(&mut self, now: Instant, index: u32) {
        let tenant = &mut self.tenants[index as usize];
        let Some(promise) = tenant.promise.take() else { return };
        if let Some(promises) = &mut self.promises {
            promises.forget(&promise);
        }
        self.limit_throughput(now, index, None);
    }

    /// The operator's limit or the weight has changed.
    pub(super) fn renew_promise(&mut self, now: Instant, id: TenantId) {
        let promised = self.live_mut(id).and_then(|tenant| Some(tenant.promise.as_ref()?.promised));
        if promised.is_some() {
            self.set_promise(now, id, promised);
        }
    }

    /// Measures and decides anew when it is time.
    #[inline]
    pub(super) fn tick_promises(&mut self, now: Instant) {
        if self.promises.as_ref().is_some_and(|promises| now >= promises.next_tick)
            && self.config.scheduler == Scheduler::Mclock
        {
            self.decide_promises(now);
        }
    }

    /// When that is next.
    #[inline]
    pub(super) fn promises_due(&self) -> Instant {
        self.promises.as_ref().map_or(Instant::FAR_FUTURE, |promises| promises.next_tick)
    }

    fn decide_promises(&mut self, now: Instant) {
        let Some(mut promises) = self.promises.take() else { return };
        let length = now.since(promises.ticked_at);
        promises.ticked_at = now;
        promises.next_tick += INTERVAL;
        if promises.next_tick <= now {
            promises.next_tick = now + INTERVAL;
        }
        promises.samples.clear();
        for tenant in self.tenants.iter_mut().filter(|tenant| tenant.live) {
            let Some(mut promise) = tenant.promise.take() else { continue };
            let done = tenant.done(promise.promised);
            let moved = done.saturating_sub(promise.counted) as f64;
            let measured = moved / length.as_secs_f64().max(1e-9);
            (promise.counted, promise.measured) = (done, Some(measured));
            promise.binding = tenant.bound_by(&promise, measured);
            promise.blocked = tenant.blocked;
            let in_force = match promise.binding {
                Binding::Limit(Owner::Throughput) => None,
                // Whatever it got, it was not by our limit.
                Binding::Reservation => Some(InForce::default()),
                Binding::Limit(Owner::Operator) => tenant.bounds(promise.promised).0.map(|(_, limit)| limit).map(only),
                Binding::Limit(_) => Some(only(measured as u64)),
            };
            let hybrid = match promise.promised {
                Rate::BytesPerS(_) => Counters { read_bytes: done, ..Counters::ZERO },
                Rate::RequestsPerS(_) => Counters { reads: done, ..Counters::ZERO },
            };
            let demand = promise.demand(now, length);
            let sample = TenantSample { hybrid, in_force, demand, ..TenantSample::new(promise.id) };
            promises.samples.push(sample);
            tenant.promise = Some(promise);
        }
        promises.controller.observe(now, None, &promises.samples);
        promises.controller.tick(now);
        self.promises = Some(promises);
        for index in 0..self.tenants.len() as u32 {
            if self.tenants[index as usize].live {
                self.assign(now, index);
            }
        }
    }

    /// Puts the newest decision about a tenant in force, and records it.
    fn assign(&mut self, now: Instant, index: u32) {
        let Some(promises) = &self.promises else { return };
        let tenant = &mut self.tenants[index as usize];
        let Some(promise) = &mut tenant.promise else { return };
        let assignments = promises.controller.decision().assignments;
        let place = assignments.binary_search_by_key(&promise.id, |assignment: &Assignment| assignment.tenant);
        let Some(limit) = place.ok().and_then(|place| assignments[place].read) else { return };
        promise.limit = limit;
        let before = promise.records.back().map(|record| record.limit.reason);
        if promise.record(now) && (is_short(&limit.reason) || before.as_ref().is_some_and(is_short)) {
            let generation = tenant.generation;
            self.promise_decided = Some((TenantId { index, generation }, limit.reason));
        }
        self.limit_throughput(now, index, Some(limit.limit));
    }

    fn limit_throughput(&mut self, now: Instant, index: u32, limit: Option<Rate>) {
        let tenant = &mut self.tenants[index as usize];
        let (mut iops, mut bytes_per_s) = (None, None);
        match limit {
            Some(Rate::RequestsPerS(limit)) => iops = Some(limit),
            Some(Rate::BytesPerS(limit)) => bytes_per_s = Some(limit),
            None => {}
        }
        let iops = tenant.limit_iops.set(Owner::Throughput, iops);
        let bytes = tenant.limit_bytes_per_s.set(Owner::Throughput, bytes_per_s);
        let id = TenantId { index, generation: tenant.generation };
        if iops || bytes {
            self.apply_qos(now, id);
        }
    }

    /// A promise that cannot be kept since, or can again, and why, since the last call; the newest if there were several.
    #[inline]
    pub fn take_promise_decision(&mut self) -> Option<(TenantId, Reason)> {
        self.promise_decided.take()
    }
}

/// Whether a promise is not kept although its tenant waits.
fn is_short(reason: &Reason) -> bool {
    matches!(reason, Reason::AtCeiling { .. } | Reason::Infeasible { .. })
}

fn only(limit: u64) -> InForce {
    InForce { read: Some(limit), write: None }
}
