//! A guaranteed throughput on one device: which limit gives it to a tenant?
//!
//! The sensor and the throttle of a [`throughput::Controller`] for a pool, which has the queue itself. A tenant whose limit
//! equals its guarantee gets less whenever the device serves other work, and never makes up for it. So the limit follows
//! the throughput that is still due. It belongs to [`Owner::Throughput`], beside the limits of other owners, and the smallest
//! limit binds. Reservations take precedence over all limits.
//!
//! A guarantee is about reads and writes together, about reads alone or about writes alone. A guarantee of one direction limits
//! the dispatch of requests of this direction only ([`Queue::set_limit_of`](crate::mclock::Queue::set_limit_of)). Misses of a
//! cache below the pool are not known here, and need not be: a tenant that had requests waiting all the time did not get
//! less by its own choice.

use alloc::vec::Vec;

use super::{Pool, Scheduler, Tenant, TenantId};
use crate::limits::Owner;
use crate::log::{Decided, Log};
use crate::mclock::{ClientId, Queue};
use crate::throughput::{
    self, Assignment, Bounds, Config, Controller, Counters, Demand, ENOUGH, Guarantee, InForce, InvalidConfig, LEAST,
    Limit, Rate, Reason, TenantSample,
};
use crate::time::{Duration, Instant};
use crate::units::{Direction, Fraction, Kind, Rates};

/// Time between two measurements and decisions; a guarantee is met in each window of ten of these intervals (1 s).
const INTERVAL: Duration = Duration::from_millis(100);
/// Number of log entries for decisions about a guarantee: enough to see how the present decision came about.
const RECORDS: usize = 32;

/// The requests that a guarantee is about. Guarantees of different scopes to one tenant are enforced independently of
/// each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All requests of a tenant: a rate in bytes counts reads and writes together, a rate in requests also those without data.
    All,
    /// Requests that move data in this direction.
    Of(Direction),
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::All, Self::Of(Direction::Read), Self::Of(Direction::Write)];

    /// The scope's name in logs, metrics and API answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Of(Direction::Read) => "read",
            Self::Of(Direction::Write) => "write",
        }
    }

    #[inline]
    pub(super) fn covers(self, kind: Kind) -> bool {
        match self {
            Self::All => true,
            Self::Of(direction) => kind.direction() == Some(direction),
        }
    }
}

/// The guaranteed throughputs of a tenant: at most one of each scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throughputs {
    /// Guaranteed throughput of all requests together.
    pub all: Option<Rate>,
    /// Guaranteed throughput of reads.
    pub read: Option<Rate>,
    /// Guaranteed throughput of writes.
    pub write: Option<Rate>,
}

impl Throughputs {
    /// No guarantee.
    pub const NONE: Self = Self { all: None, read: None, write: None };

    /// A guaranteed throughput of all requests together, and no other guarantee.
    pub const fn of_all(rate: Rate) -> Self {
        Self { all: Some(rate), ..Self::NONE }
    }

    /// The guarantee for this scope; a rate of 0 is no guarantee.
    pub fn of(&self, scope: Scope) -> Option<Rate> {
        let rate = match scope {
            Scope::All => self.all,
            Scope::Of(Direction::Read) => self.read,
            Scope::Of(Direction::Write) => self.write,
        };
        rate.filter(|rate| rate.value() > 0)
    }
}

/// The throughput guarantees of the policy, and the fractions of them that apply in this pool, because other servers have the
/// rest: of each scope the fraction in requests, and the one in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    of: Throughputs,
    parts: [[Fraction; 2]; Scope::ALL.len()],
}

impl Default for Totals {
    fn default() -> Self {
        Self { of: Throughputs::NONE, parts: [[Fraction::WHOLE; 2]; Scope::ALL.len()] }
    }
}

impl Totals {
    fn part_mut(&mut self, scope: Scope) -> &mut [Fraction; 2] {
        match scope {
            Scope::All => &mut self.parts[0],
            Scope::Of(Direction::Read) => &mut self.parts[1],
            Scope::Of(Direction::Write) => &mut self.parts[2],
        }
    }

    /// The guarantee of this scope, and the part of it that applies in this pool.
    fn here(mut self, scope: Scope) -> Option<(Rate, Rate)> {
        let total = self.of.of(scope)?;
        let [requests, bytes] = *self.part_mut(scope);
        let part = if matches!(total, Rate::BytesPerS(_)) { bytes } else { requests };
        Some((total, total.with_value(part.of_rate(total.value()))))
    }
}

/// The change of a guarantee that the controller knows: to another one, or to another part of the same one.
type Change = fn(&mut Controller, throughput::TenantId, &Guarantee) -> Result<(), InvalidConfig>;

/// The reservation or limit that decided how much throughput a tenant with a guarantee got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The tenant's reservation, which is as high as the smallest limit or higher, and takes precedence.
    Reservation,
    /// The limit that bound the tenant, which is this owner's: on a rate, or on the requests in flight.
    Limit(Owner),
}

impl Binding {
    /// The name of the cause in logs, metrics and API answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reservation => "reservation",
            Self::Limit(owner) => owner.name(),
        }
    }
}

/// A decision about a throughput guarantee, as its log keeps it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The limit assigned for the guarantee, with the reason.
    pub limit: Limit,
    /// The reservation or limit that bound the tenant in the interval before the decision.
    pub binding: Binding,
}

impl Decided for Decision {
    fn is_renewed_by(&self, newer: &Self) -> bool {
        self.limit.reason.name() == newer.limit.reason.name() && self.binding == newer.binding
    }

    fn figure(&self) -> Option<f64> {
        Some(self.limit.limit.value() as f64)
    }
}

/// The state of one throughput guarantee of a tenant.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The requests that the guarantee is about.
    pub scope: Scope,
    /// The guaranteed rate.
    pub guaranteed: Rate,
    /// The guaranteed rate over all servers, of which `guaranteed` is the part in this pool.
    pub total: Rate,
    /// The tenant's rate in the last interval, per second in the unit of the guarantee; `None` before the first interval.
    pub measured: Option<f64>,
    /// The limit assigned for the guarantee, with the reason.
    pub limit: Limit,
    /// The reservation or limit that bound the tenant in the last interval.
    pub binding: Binding,
    /// The latest decisions, oldest first.
    pub records: &'a Log<Decision>,
}

/// The throughput controller of a pool, for all guarantees of its tenants.
pub(super) struct Guarantees {
    controller: Controller,
    next_tick: Instant,
    ticked_at: Instant,
    /// True if requests were served first come, first served since the last tick, so that limits had no effect.
    suspended: bool,
    samples: Vec<TenantSample>,
}

impl Guarantees {
    /// Removes a guarantee from the controller.
    pub(super) fn forget(&mut self, guarantee: &Guaranteed) {
        self.controller.leave(guarantee.id);
    }
}

/// One throughput guarantee of a tenant.
pub(super) struct Guaranteed {
    id: throughput::TenantId,
    pub(super) scope: Scope,
    pub(super) guaranteed: Rate,
    total: Rate,
    /// Bytes or requests in the guarantee's scope that the tenant had completed by the last tick.
    counted: u64,
    /// All requests and bytes that the tenant had completed by the last tick; counters, not rates.
    counted_in_all: Rates,
    measured: Option<f64>,
    limit: Limit,
    binding: Binding,
    records: Log<Decision>,
    /// The newest verdict: true if the guarantee is missed.
    is_missed: bool,
    /// Instant since which no request in the scope is queued or in flight; `None` while there is one.
    idle_since: Option<Instant>,
    /// Time since the last tick in which no request in the scope was queued or in flight, up to `idle_since`.
    idle: Duration,
    /// True if all of the tenant's slots were in use at some time since the last tick.
    pub(super) blocked: bool,
}

impl Guaranteed {
    /// Notes that a request in the scope has arrived: an idle span ends, if there was one.
    pub(super) fn wakes(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.take() {
            self.idle = self.idle + now.since(since);
        }
    }

    /// Notes that no request in the scope is queued or in flight any more: an idle span begins.
    pub(super) fn sleeps(&mut self, now: Instant) {
        self.idle_since.get_or_insert(now);
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            scope: self.scope,
            guaranteed: self.guaranteed,
            total: self.total,
            measured: self.measured,
            limit: self.limit,
            binding: self.binding,
            records: &self.records,
        }
    }

    fn demand(&mut self, now: Instant, length: Duration) -> Demand {
        if self.idle_since.is_some() {
            self.wakes(now);
            self.sleeps(now);
        }
        let idle = core::mem::take(&mut self.idle);
        // A tenant that had nothing queued or in flight for longer may have got all it asked for. With one request at a time
        // there are always short gaps between them.
        match idle.as_secs_f64() <= LEAST * length.as_secs_f64() {
            true => Demand::Backlogged,
            false => Demand::AppLimited,
        }
    }

    fn record(&mut self, now: Instant) {
        self.records.record(now, Decision { limit: self.limit, binding: self.binding });
    }
}

/// A tenant's rates in an interval: `measured` of the requests in a guarantee's scope, in the unit of the guarantee per second;
/// the others of all its requests.
struct Got {
    measured: f64,
    iops: f64,
    bytes_per_s: f64,
}

impl Tenant {
    /// Bytes or requests in this scope (as the variant of `unit` says) that the tenant has completed since it joined.
    pub(super) fn done(&self, scope: Scope, unit: Rate) -> u64 {
        let (stats, all) = (&self.stats, self.done_in_all());
        match (scope, unit) {
            (Scope::All, Rate::BytesPerS(_)) => all.bytes_per_s,
            (Scope::All, Rate::RequestsPerS(_)) => all.iops,
            (Scope::Of(Direction::Read), Rate::BytesPerS(_)) => stats.read_bytes,
            (Scope::Of(Direction::Read), Rate::RequestsPerS(_)) => stats.reads,
            (Scope::Of(Direction::Write), Rate::BytesPerS(_)) => stats.write_bytes,
            (Scope::Of(Direction::Write), Rate::RequestsPerS(_)) => stats.writes,
        }
    }

    /// Requests and bytes completed since the tenant joined; counters, not rates.
    fn done_in_all(&self) -> Rates {
        let stats = &self.stats;
        Rates {
            iops: stats.reads + stats.writes + stats.flushes + stats.metas,
            bytes_per_s: stats.read_bytes.saturating_add(stats.write_bytes),
        }
    }

    /// The smallest limit on the tenant's requests in all scopes, with its owner, and the tenant's reservation (0 for none); in
    /// bytes or requests per second, as the variant of `unit` says.
    fn bounds(&self, unit: Rate) -> (Option<(Owner, u64)>, u64) {
        match unit {
            Rate::BytesPerS(_) => (self.limit_bytes_per_s.binding(), self.own_reservation().bytes_per_s),
            Rate::RequestsPerS(_) => (self.limit_iops.binding(), self.own_reservation().iops),
        }
    }

    /// For a tenant that got the rates `got`: the reservation or limit that bound it, and the limit that was in force for the
    /// guarantee if that was not the assigned one. `beyond`: a reservation took the guarantee's direction beyond its limit.
    fn bound_by(&self, guaranteed: &Guaranteed, got: &Got, beyond: bool) -> (Binding, Option<InForce>) {
        let (limit, reservation) = self.bounds(guaranteed.guaranteed);
        let assigned = guaranteed.limit.limit.value();
        let limit = limit.filter(|&(_, limit)| guaranteed.scope == Scope::All || limit <= assigned);
        let (owner, limit) = limit.unwrap_or((Owner::Throughput, assigned));
        if beyond || (guaranteed.scope == Scope::All && reservation >= limit) {
            // Whatever it got, it was not by our limit.
            return (Binding::Reservation, Some(InForce::default()));
        }
        if got.measured < ENOUGH * limit as f64 {
            let exhausted = |limit: Option<(Owner, u64)>, got: f64| limit.filter(|&(_, l)| got >= ENOUGH * l as f64);
            let slots = self.slots.binding().filter(|_| guaranteed.blocked);
            // Its own limit is exhausted by what it is about, another direction or request size by the rest.
            let other = exhausted(self.limit_bytes_per_s.binding(), got.bytes_per_s)
                .or_else(|| exhausted(self.limit_iops.binding(), got.iops))
                .or(slots);
            if let Some((owner, _)) = other {
                return (Binding::Limit(owner), Some(only(got.measured as u64)));
            }
        }
        (Binding::Limit(owner), (owner != Owner::Throughput).then(|| only(limit)))
    }

    /// True if no request in this scope is in flight; queued requests do not matter.
    pub(super) fn has_none_inside(&self, scope: Scope) -> bool {
        match scope {
            Scope::All => self.in_flight == 0,
            Scope::Of(direction) => self.inside_of[direction as usize] == 0,
        }
    }
}

impl<R> Pool<R> {
    /// Sets, changes or withdraws a tenant's throughput guarantees. They take effect only with [`Scheduler::Mclock`].
    pub fn set_guarantees(&mut self, now: Instant, id: TenantId, throughputs: &Throughputs) {
        let Some(tenant) = self.live_mut(id) else { return };
        tenant.totals.of = *throughputs;
        Scope::ALL.into_iter().for_each(|scope| self.set_guarantee(now, id, scope, Controller::guarantee));
    }

    /// Makes only these fractions of a tenant's guarantee of this scope apply in this pool, in requests and in bytes;
    /// [`Fraction::WHOLE`] for all of it. What the controller has learned stays, so that fractions may change each period.
    pub fn set_guarantee_part(&mut self, now: Instant, id: TenantId, scope: Scope, part: [Fraction; 2]) {
        let Some(tenant) = self.live_mut(id) else { return };
        if core::mem::replace(tenant.totals.part_mut(scope), part) != part {
            self.set_guarantee(now, id, scope, Controller::part);
        }
    }

    /// Demand for a tenant's guarantee of this scope, in the form of that for a limit: requests count as arrived when they have
    /// completed. `None` if the tenant has left the pool, or has no such guarantee that is in force.
    pub fn guarantee_demand(&self, id: TenantId, scope: Scope) -> Option<super::Demand> {
        let tenant = self.tenants.get(id.index as usize).filter(|t| t.live && t.generation == id.generation)?;
        let is_in_force = self.config.scheduler == Scheduler::Mclock;
        let total = rates(tenant.totals.of.of(scope).filter(|_| is_in_force)?);
        let moved = [Rate::RequestsPerS(0), Rate::BytesPerS(0)].map(|unit| tenant.done(scope, unit));
        Some(super::Demand {
            reservation: [0; 2],
            limit: [total.iops, total.bytes_per_s],
            arrived: moved,
            served: moved,
            queued: waiting(&self.queue, tenant.client, scope) as u64,
        })
    }

    /// Makes the part of a guarantee that applies in this pool known to the controller; an earlier one is changed by `change`.
    fn set_guarantee(&mut self, now: Instant, id: TenantId, scope: Scope, change: Change) {
        let Some((total, rate)) = self.tenants[id.index as usize].totals.here(scope) else {
            self.withdraw_guarantee(now, id.index, scope);
            return;
        };
        let tenant = &mut self.tenants[id.index as usize];
        let known = tenant.guaranteed.iter().find(|guaranteed| guaranteed.scope == scope);
        if known.is_some_and(|known| core::mem::discriminant(&known.guaranteed) != core::mem::discriminant(&rate)) {
            self.withdraw_guarantee(now, id.index, scope);
        }
        let tenant = &mut self.tenants[id.index as usize];
        let ceiling = match rate {
            Rate::BytesPerS(_) => tenant.qos.limit.bytes_per_s,
            Rate::RequestsPerS(_) => tenant.qos.limit.iops,
        };
        // A limit below the guarantee binds by itself.
        let ceiling = (ceiling > 0).then_some(ceiling.max(rate.value()));
        let weight = f64::from(tenant.qos.weight.clamp(1, 1_000_000));
        let bounds = Bounds { guaranteed: rate, ceiling };
        // A tenant of the controller for each guarantee: which way the data goes makes no difference to it.
        let guarantee = Guarantee { read: Some(bounds), write: None, weight };
        if self.guarantees.is_none() {
            let config = Config { interval: INTERVAL, ..Config::DEFAULT };
            let Ok(controller) = Controller::new(&config) else { return };
            let next_tick = now + INTERVAL;
            self.guarantees = Some(
                Guarantees { controller, next_tick, ticked_at: now, suspended: false, samples: Vec::new() }.into(),
            );
        }
        let Some(guarantees) = &mut self.guarantees else { return };
        if let Some(known) = tenant.guaranteed.iter_mut().find(|guaranteed| guaranteed.scope == scope) {
            if change(&mut guarantees.controller, known.id, &guarantee).is_ok() {
                (known.guaranteed, known.total) = (rate, total);
            }
        } else if let Ok(throughput_id) = guarantees.controller.join(&guarantee) {
            let idle = tenant.has_none_inside(scope) && self.queue.client_len(tenant.client) == 0;
            let (counted, counted_in_all) = (tenant.done(scope, rate), tenant.done_in_all());
            let place = tenant.guaranteed.partition_point(|guaranteed| guaranteed.scope < scope);
            let guaranteed = Guaranteed {
                id: throughput_id,
                scope,
                guaranteed: rate,
                total,
                counted,
                counted_in_all,
                measured: None,
                limit: Limit { limit: rate, reason: Reason::NotEnoughData },
                binding: Binding::Limit(Owner::Throughput),
                records: Log::new(RECORDS),
                is_missed: false,
                idle_since: idle.then_some(now),
                idle: Duration::ZERO,
                blocked: tenant.blocked,
            };
            tenant.guaranteed.insert(place, guaranteed);
        }
        self.assign(now, id.index);
    }

    /// Withdraws a tenant's guarantee of this scope, and the limit assigned for it.
    fn withdraw_guarantee(&mut self, now: Instant, index: u32, scope: Scope) {
        let tenant = &mut self.tenants[index as usize];
        let Some(place) = tenant.guaranteed.iter().position(|guaranteed| guaranteed.scope == scope) else { return };
        let guarantee = tenant.guaranteed.remove(place);
        if let Some(guarantees) = &mut self.guarantees {
            guarantees.forget(&guarantee);
        }
        self.limit_throughput(now, index, scope, None);
    }

    /// Sets a tenant's guarantees anew after the operator's limit or the tenant's weight has changed.
    pub(super) fn renew_guarantees(&mut self, now: Instant, id: TenantId) {
        let scopes = self.live_mut(id).map(|tenant| tenant.guaranteed.iter().map(|known| known.scope).collect());
        let scopes: Vec<Scope> = scopes.unwrap_or_default();
        scopes.into_iter().for_each(|scope| self.set_guarantee(now, id, scope, Controller::guarantee));
    }

    /// Notes for a tenant's guarantees that a request of this kind has arrived.
    #[inline]
    pub(super) fn wake_guarantees(tenant: &mut Tenant, now: Instant, kind: Kind) {
        for guarantee in tenant.guaranteed.iter_mut().filter(|guarantee| guarantee.scope.covers(kind)) {
            guarantee.wakes(now);
        }
    }

    /// Notes that a request of the tenant has completed or left the queue: guarantees without any other request become idle.
    #[inline(always)]
    pub(super) fn rest_guarantees(&mut self, now: Instant, index: u32) {
        if !self.tenants[index as usize].guaranteed.is_empty() {
            self.rest_each_guarantee(now, index);
        }
    }

    fn rest_each_guarantee(&mut self, now: Instant, index: u32) {
        let tenant = &mut self.tenants[index as usize];
        let mut guaranteed = core::mem::take(&mut tenant.guaranteed);
        for guarantee in guaranteed.iter_mut().filter(|guarantee| tenant.has_none_inside(guarantee.scope)) {
            if waiting(&self.queue, tenant.client, guarantee.scope) == 0 {
                guarantee.sleeps(now);
            }
        }
        tenant.guaranteed = guaranteed;
    }

    /// Notes that limits are in force again after a time of [`Scheduler::None`]: idle spans are counted anew from `now`.
    pub(super) fn resume_guarantees(&mut self, now: Instant) {
        let Some(guarantees) = &mut self.guarantees else { return };
        guarantees.suspended = true;
        for index in 0..self.tenants.len() as u32 {
            self.tenants[index as usize].guaranteed.iter_mut().for_each(|guarantee| {
                guarantee.wakes(now);
                guarantee.idle = Duration::ZERO;
            });
            self.rest_guarantees(now, index);
        }
    }

    /// Measures the throughput of tenants with guarantees and decides their limits anew, if a decision is due.
    #[inline]
    pub(super) fn tick_guarantees(&mut self, now: Instant) {
        if self.guarantees.as_ref().is_some_and(|guarantees| now >= guarantees.next_tick)
            && self.config.scheduler == Scheduler::Mclock
        {
            self.decide_guarantees(now);
        }
    }

    /// When [`Self::tick_guarantees`] is next due.
    #[inline]
    pub(super) fn guarantees_due(&self) -> Instant {
        let acts = self.guarantees.as_ref().filter(|_| self.config.scheduler == Scheduler::Mclock);
        acts.map_or(Instant::FAR_FUTURE, |guarantees| guarantees.next_tick)
    }

    fn decide_guarantees(&mut self, now: Instant) {
        let Some(mut guarantees) = self.guarantees.take() else { return };
        let length = now.since(guarantees.ticked_at);
        guarantees.ticked_at = now;
        guarantees.next_tick += INTERVAL;
        if guarantees.next_tick <= now {
            guarantees.next_tick = now + INTERVAL;
        }
        guarantees.samples.clear();
        let suspended = core::mem::take(&mut guarantees.suspended);
        let per_second = |moved: u64| moved as f64 / length.as_secs_f64().max(1e-9);
        for tenant in self.tenants.iter_mut().filter(|tenant| tenant.live) {
            let mut guaranteed = core::mem::take(&mut tenant.guaranteed);
            for guarantee in &mut guaranteed {
                let (done, all) = (tenant.done(guarantee.scope, guarantee.guaranteed), tenant.done_in_all());
                let before = core::mem::replace(&mut guarantee.counted_in_all, all);
                let got = Got {
                    measured: per_second(done.saturating_sub(core::mem::replace(&mut guarantee.counted, done))),
                    iops: per_second(all.iops.saturating_sub(before.iops)),
                    bytes_per_s: per_second(all.bytes_per_s.saturating_sub(before.bytes_per_s)),
                };
                let beyond = match guarantee.scope {
                    Scope::All => false,
                    Scope::Of(direction) => self.queue.take_beyond_limit_of(tenant.client, direction),
                };
                let (binding, in_force) = tenant.bound_by(guarantee, &got, beyond);
                let in_force = if suspended { Some(InForce::default()) } else { in_force };
                (guarantee.measured, guarantee.binding, guarantee.blocked) =
                    (Some(got.measured), binding, tenant.blocked);
                let cached = match guarantee.guaranteed {
                    Rate::BytesPerS(_) => Counters { read_bytes: done, ..Counters::ZERO },
                    Rate::RequestsPerS(_) => Counters { reads: done, ..Counters::ZERO },
                };
                let demand = guarantee.demand(now, length);
                guarantees.samples.push(TenantSample { cached, in_force, demand, ..TenantSample::new(guarantee.id) });
            }
            tenant.guaranteed = guaranteed;
        }
        guarantees.controller.observe(now, None, &guarantees.samples);
        guarantees.controller.tick(now);
        self.guarantees = Some(guarantees);
        for index in 0..self.tenants.len() as u32 {
            if self.tenants[index as usize].live {
                self.assign(now, index);
            }
        }
    }

    /// Puts the newest decisions about a tenant's guarantees in force, and records them.
    fn assign(&mut self, now: Instant, index: u32) {
        let Some(guarantees) = &self.guarantees else { return };
        let tenant = &mut self.tenants[index as usize];
        let id = TenantId { index, generation: tenant.generation };
        let assignments = guarantees.controller.decision().assignments;
        let mut limits = [None; Scope::ALL.len()];
        for (guarantee, assigned) in tenant.guaranteed.iter_mut().zip(&mut limits) {
            let place = assignments.binary_search_by_key(&guarantee.id, |assignment: &Assignment| assignment.tenant);
            let Some(limit) = place.ok().and_then(|place| assignments[place].read) else { continue };
            guarantee.limit = limit;
            guarantee.record(now);
            let before = guarantee.is_missed;
            guarantee.is_missed = limit.reason.verdict().unwrap_or(before);
            if guarantee.is_missed != before {
                self.guarantee_decided = Some((id, guarantee.scope, limit.reason));
            }
            *assigned = Some((guarantee.scope, limit.limit));
        }
        for (scope, limit) in limits.into_iter().flatten() {
            self.limit_throughput(now, index, scope, Some(limit));
        }
    }

    fn limit_throughput(&mut self, now: Instant, index: u32, scope: Scope, limit: Option<Rate>) {
        let tenant = &mut self.tenants[index as usize];
        let limit = limit.map_or(Rates::UNSET, rates);
        match scope {
            Scope::All => {
                let iops = tenant.limit_iops.set(Owner::Throughput, super::rate(limit.iops));
                let bytes = tenant.limit_bytes_per_s.set(Owner::Throughput, super::rate(limit.bytes_per_s));
                let id = TenantId { index, generation: tenant.generation };
                if iops || bytes {
                    self.apply_qos(now, id);
                }
            }
            Scope::Of(direction) => self.queue.set_limit_of(now, tenant.client, direction, limit),
        }
    }

    /// Lifts the limits assigned for a tenant's guarantees of single directions, or restores them.
    pub(super) fn apply_directions(&mut self, now: Instant, index: u32, in_force: bool) {
        let tenant = &self.tenants[index as usize];
        for guarantee in &tenant.guaranteed {
            if let Scope::Of(direction) = guarantee.scope {
                let limit = if in_force { rates(guarantee.limit.limit) } else { Rates::UNSET };
                self.queue.set_limit_of(now, tenant.client, direction, limit);
            }
        }
    }

    /// The newest change of a guarantee to missed, or to met again, since the last call: the tenant, the guarantee's scope and
    /// the reason. `None` without a change.
    #[inline]
    pub fn take_guarantee_decision(&mut self) -> Option<(TenantId, Scope, Reason)> {
        self.guarantee_decided.take()
    }
}

/// Number of a tenant's queued requests in this scope.
fn waiting<T>(queue: &Queue<T>, client: ClientId, scope: Scope) -> usize {
    match scope {
        Scope::All => queue.client_len(client),
        Scope::Of(direction) => queue.client_len_of(client, direction),
    }
}

fn only(limit: u64) -> InForce {
    InForce { read: Some(limit), write: None }
}

fn rates(limit: Rate) -> Rates {
    match limit {
        Rate::RequestsPerS(iops) => Rates { iops, ..Rates::UNSET },
        Rate::BytesPerS(bytes_per_s) => Rates { bytes_per_s, ..Rates::UNSET },
    }
}
