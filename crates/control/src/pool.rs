//! One shared device: scheduler, pool limit, admission and slots as one state machine.
//!
//! ```text
//!  submit ──▶ mClock (tenants) ──▶ pool limit ──▶ admission ──▶ dispatch ──▶ back end ──▶ complete
//!             reservation, weight,  IOPS and       bytes in flight           (not ours)
//!             limit, slots          bytes/s
//! ```
//!
//! Some requests pass although the budget is used up: see `shares.rs`. Limits of single volumes come first: see `volumes.rs`.
//!
//! Requests are throttled only before dispatch, where they can still be reordered. A pool is generic over the request type
//! `R`, which it carries but does not read. The server wraps a pool in a lock and batches; the simulator calls it directly.
//!
//! Order of calls: any number of [`Pool::submit`] and [`Pool::complete`], then [`Pool::dispatch`] until it no longer answers
//! [`Next::Run`]. The answer [`Next::Wait`] names the instant at which to call `dispatch` again, unless a request is submitted
//! or completes before.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::admission::{self, Admission, Decision};
use crate::limits::{LimitSet, Owner, rate};
use crate::mclock::{ClientId, CostModel, Phase, Pull, Qos, Queue, Wish};
use crate::price::Price;
use crate::response::{Shape, Throttle};
use crate::slices::Slices;
use crate::throughput;
use crate::time::{Duration, Instant};
use crate::token_bucket::TokenBucket;
use crate::units::{Fractions, Kind, Rates, Work};

mod dropped;
mod fractions;
pub mod guarantee;
mod prices;
mod room;
mod shares;
pub mod slots;
pub mod target;
mod throttles;
mod view;
mod volumes;

pub use fractions::Demand;
use guarantee::{Guaranteed, Guarantees, Scope};
use shares::Shares;
use slots::{Granted, Slots, Tally};
use target::Target;
pub use throttles::Throttled;
use throttles::{Delays, Seen};
pub use view::{TenantStats, TenantView};
pub use volumes::VolumeView;

/// The rule by which the next request is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// By reservation, weight and limit of each tenant.
    Mclock,
    /// First come, first served; guarantees to tenants have no effect.
    None,
}

/// Settings of a pool; all of them can change while the pool runs.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The scheduler, which chooses the next request.
    pub scheduler: Scheduler,
    /// Admission control: how much may be in flight.
    pub admission: admission::Config,
    /// Base cost of a request for the admission budget, on top of its payload, in bytes.
    pub base_cost_bytes: u32,
    /// The cost of a request when tenants share the device by weight.
    pub cost: CostModel,
    /// The limit on all of the pool's requests together.
    pub limit: Rates,
    /// Unused pool limit that may be saved up, as time at the limit rate.
    /// Saved-up limit also makes up for late wake-ups, so zero costs throughput.
    pub limit_burst: Duration,
    /// The latency target for reads, and which tenants may be throttled for it. Only with [`Scheduler::Mclock`]; settings
    /// that [`target::Config::validate`] refuses count as no target.
    pub target: Option<target::Config>,
    /// The controller that bounds each tenant's requests in flight, for latency targets of tenants. Only with
    /// [`Scheduler::Mclock`]; settings that [`slots::Config::validate`] refuses set no bounds.
    pub slots: Option<slots::Config>,
}

/// Identifies a tenant of one [`Pool`]; never reused for another tenant of that pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TenantId {
    index: u32,
    generation: u32,
}

/// Stands for one dispatched request: [`Pool::dispatch`] returns it, and [`Pool::complete`] takes it back.
#[derive(Debug)]
#[must_use = "a ticket that is not completed occupies the admission budget for ever"]
pub struct Ticket {
    tenant: TenantId,
    work: Work,
    cost: u64,
    queued_at: Instant,
    /// When the tenant's own limits ceased to throttle the request; when it was queued if they did not throttle it.
    free_at: Instant,
    admitted_at: Instant,
    /// Time after the dispatch in which the request was not at the device ([`Ticket::waited_until`]).
    aside: Duration,
    /// Time for which the limit of its volume throttled the request before it was queued.
    limited: Duration,
    reserved: bool,
    /// True if the request was given up ([`Pool::give_up`]).
    lost: bool,
    /// True if the device may have had no work with the request ([`Ticket::note_blank`]).
    blank: bool,
}

impl Ticket {
    /// True if the request was dispatched for its tenant's reservation, not by weight: queues behind the pool should serve it
    /// first.
    #[inline]
    pub fn is_reserved(&self) -> bool {
        self.reserved
    }

    /// The tenant that the request belongs to.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Time at which the request was dispatched to the back end.
    pub fn admitted_at(&self) -> Instant {
        self.admitted_at
    }

    /// Kind, size and part of the request.
    pub fn work(&self) -> Work {
        self.work
    }

    /// Makes the latency of a request that is divided into slices count from `began`, when its first slice was queued. For the
    /// ticket of the slice with which the request [ends](crate::units::Part::ends).
    pub fn began_at(&mut self, began: Instant) {
        // A wait for the limit of a volume lies in between.
        (self.queued_at, self.limited) = (self.queued_at.min(began), Duration::ZERO);
    }
}

/// Outcome of a request in the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The back end served the request.
    Done,
    /// The back end reported an error.
    Failed,
    /// The request was never handed to the back end, because its connection is gone; its latency is not the back end's.
    Cancelled,
}

/// The answer of [`Pool::dispatch`].
#[derive(Debug)]
pub enum Next<R> {
    /// Hand this request to the back end now.
    Run(R, Ticket),
    /// Requests are queued but may not be dispatched yet; call again at this instant, or after the next completion.
    Wait(Instant),
    /// Nothing is queued.
    Idle,
}

struct Tenant {
    generation: u32,
    live: bool,
    client: ClientId,
    qos: Qos,
    /// The fractions of the policy's reservation and limit that apply in this pool.
    fractions: Fractions,
    limit_iops: LimitSet,
    limit_bytes_per_s: LimitSet,
    slots: LimitSet,
    blocked: bool,
    queued_fifo: usize,
    /// Number of queued requests that may be unwanted, see [`Pool::drop_unwanted`].
    unwanted: dropped::Unwanted,
    in_flight: u64,
    /// Number of requests in flight that were given up ([`Pool::give_up`]).
    lost: u64,
    /// Number of requests in flight by [`Direction`](crate::units::Direction).
    inside_of: [u32; 2],
    /// Cost of the requests in flight for the admission budget, in bytes.
    in_flight_cost: u64,
    /// True if the tenant has a share of the admission budget.
    sharing: bool,
    /// True if the tenant waits for the check whether its share of the budget has room for a request.
    asking: bool,
    /// Instant until which the tenant's limits throttle it; its share is checked again then. Far in the future: no check is
    /// scheduled.
    parked: Instant,
    stats: TenantStats,
    throttle: Throttle,
    /// True if the tenant's reads count in the latency that the pool's target bounds.
    counts: bool,
    throttled: Option<Throttled>,
    /// Number of the tenant's slots that stay empty for a delay; see [`Delays`].
    delayed: u64,
    /// [`Throttled::usual`] of the last time that the tenant was throttled, to begin with if its load returns.
    usual_before: u64,
    seen: Seen,
    guaranteed: Vec<Guaranteed>,
    totals: guarantee::Totals,
    tally: Tally,
    granted: Granted,
    /// The shape of the tenant's latencies, while a target for a percentile needs it.
    shape: Option<Box<Shape>>,
}

impl Tenant {
    fn out_of_slots(&self) -> bool {
        self.slots.effective().is_some_and(|slots| self.in_flight - self.lost + self.delayed >= slots)
    }

    /// The tenant's completed payload bytes that count as `load`, since it joined.
    fn moved(&self, load: target::Load) -> u64 {
        match load {
            target::Load::Writes => self.stats.write_bytes,
            target::Load::Reads => self.stats.read_bytes,
            target::Load::All => self.stats.read_bytes.saturating_add(self.stats.write_bytes),
        }
    }
}

/// A queued request with the tenant it belongs to.
struct Entry<R> {
    tenant: TenantId,
    limited: Duration,
    request: R,
}

/// One shared device with its tenants and queued requests. See the module's documentation.
pub struct Pool<R> {
    config: Config,
    queue: Queue<Entry<R>>,
    fifo: VecDeque<(Instant, Work, Entry<R>)>,
    bucket: TokenBucket,
    admission: Admission,
    shares: Shares,
    /// The newest decision of admission control, until [`Pool::take_decision`] takes it.
    decided: Option<Decision>,
    tenants: Vec<Tenant>,
    free: Vec<u32>,
    in_flight: u64,
    /// Number of requests in flight that take no admission budget ([`Pool::exempt`]).
    exempt: u64,
    /// Number of tenants with a reservation.
    reserved: u32,
    /// True if a reservation has changed and admission control does not know it yet ([`Pool::apply_reserved`]).
    reserved_is_due: bool,
    target: Option<Box<Target>>,
    /// The last decision for the latency target that changed in kind, until [`Pool::take_target_decision`].
    target_decided: Option<target::Decision>,
    delays: Delays,
    guarantees: Option<Box<Guarantees>>,
    /// The newest change of a guarantee to missed or to kept, until [`Pool::take_guarantee_decision`] takes it.
    guarantee_decided: Option<(TenantId, Scope, throughput::Reason)>,
    slots: Option<Box<Slots>>,
    slices: Slices,
    price: Price,
    volumes: volumes::Volumes<R>,
}

impl<R> Pool<R> {
    /// An idle pool without tenants. `seed` is for the random trials of adaptive admission control.
    pub fn new(config: Config, now: Instant, seed: u64) -> Self {
        let mut pool = Self {
            queue: Queue::new(config.cost),
            fifo: VecDeque::new(),
            bucket: TokenBucket::new(config.limit, config.limit_burst),
            admission: Admission::new(config.admission, now, seed),
            shares: Shares::default(),
            decided: None,
            tenants: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            exempt: 0,
            reserved: 0,
            reserved_is_due: false,
            target: None,
            target_decided: None,
            delays: Delays::default(),
            guarantees: None,
            guarantee_decided: None,
            slots: None,
            slices: Slices::new(now),
            price: Price::new(config.base_cost_bytes),
            volumes: volumes::Volumes::new(),
            config,
        };
        pool.set_target(now);
        pool.set_slot_controller(now);
        pool
    }

    /// Adds a tenant. O(log tenants).
    pub fn join(&mut self, now: Instant, qos: Qos) -> TenantId {
        let client = self.queue.join(now, qos);
        self.count_reservation(Rates::UNSET, qos.reservation);
        let mut tenant = Tenant {
            generation: 0,
            live: true,
            client,
            qos,
            fractions: Fractions::WHOLE,
            limit_iops: LimitSet::NONE,
            limit_bytes_per_s: LimitSet::NONE,
            slots: LimitSet::NONE,
            blocked: false,
            queued_fifo: 0,
            unwanted: dropped::Unwanted::default(),
            in_flight: 0,
            lost: 0,
            inside_of: [0; 2],
            in_flight_cost: 0,
            sharing: false,
            asking: false,
            parked: Instant::FAR_FUTURE,
            stats: TenantStats::default(),
            throttle: Throttle::Normal,
            counts: true,
            throttled: None,
            delayed: 0,
            usual_before: 0,
            seen: Seen::default(),
            guaranteed: Vec::new(),
            totals: guarantee::Totals::default(),
            tally: Tally::default(),
            granted: Granted::default(),
            shape: None,
        };
        tenant.limit_iops.set(Owner::Operator, rate(qos.limit.iops));
        tenant.limit_bytes_per_s.set(Owner::Operator, rate(qos.limit.bytes_per_s));
        if let Some(index) = self.free.pop() {
            tenant.generation = self.tenants[index as usize].generation + 1;
            let generation = tenant.generation;
            self.tenants[index as usize] = tenant;
            return TenantId { index, generation };
        }
        self.tenants.push(tenant);
        TenantId { index: self.tenants.len() as u32 - 1, generation: 0 }
    }

    /// Removes a tenant and returns its queued requests, oldest first. Its requests in flight still complete as usual.
    pub fn leave(&mut self, id: TenantId) -> Vec<R> {
        let Some(tenant) = self.live_mut(id) else { return Vec::new() };
        let guaranteed = core::mem::take(&mut tenant.guaranteed);
        if let Some(guarantees) = &mut self.guarantees {
            guaranteed.iter().for_each(|guarantee| guarantees.forget(guarantee));
        }
        let Some(tenant) = self.live_mut(id) else { return Vec::new() };
        (tenant.live, tenant.queued_fifo) = (false, 0);
        let (client, reservation) = (tenant.client, tenant.qos.reservation);
        self.count_reservation(reservation, Rates::UNSET);
        let mut requests: Vec<R> = self.queue.leave(client).into_iter().map(|entry| entry.request).collect();
        let (gone, kept) = core::mem::take(&mut self.fifo).into_iter().partition(|(_, _, entry)| entry.tenant == id);
        self.fifo = kept;
        let gone: VecDeque<_> = gone;
        requests.extend(gone.into_iter().map(|(_, _, entry)| entry.request));
        requests.extend(self.volumes.leave(id));
        self.leave_shares(id.index);
        self.free.push(id.index);
        requests
    }

    /// Changes a tenant's QoS policy: reservation, limit, weight, burst and priority.
    pub fn set_qos(&mut self, now: Instant, id: TenantId, qos: Qos) {
        if self.live_mut(id).is_none() {
            return;
        }
        self.end_share(id.index);
        let tenant = &mut self.tenants[id.index as usize];
        let before = core::mem::replace(&mut tenant.qos, qos).reservation;
        tenant.set_own_limits();
        if tenant.in_flight > 0 {
            self.ask_for_share(id.index);
        }
        self.keep_share(id.index);
        self.count_reservation(before, qos.reservation);
        self.apply_qos(now, id);
        self.renew_guarantees(now, id);
    }

    /// Changes if and in which order a tenant is throttled for the pool's latency target, from the next decision on.
    pub fn set_throttle(&mut self, id: TenantId, throttle: Throttle) {
        if let Some(tenant) = self.live_mut(id) {
            tenant.throttle = throttle;
        }
    }

    /// Sets or withdraws (rate 0) a tenant's limit of this [`Owner`], operator or controller; the smallest of all owners' holds.
    pub fn set_limit(&mut self, now: Instant, id: TenantId, owner: Owner, limit: Rates) {
        let Some(tenant) = self.live_mut(id) else { return };
        let iops = tenant.limit_iops.set(owner, rate(limit.iops));
        let bytes = tenant.limit_bytes_per_s.set(owner, rate(limit.bytes_per_s));
        if iops || bytes {
            self.apply_qos(now, id);
        }
    }

    /// As [`Pool::set_limit`], for a bound on a tenant's requests in flight; `None` withdraws it.
    pub fn set_slots(&mut self, now: Instant, id: TenantId, owner: Owner, slots: Option<u64>) {
        let Some(tenant) = self.live_mut(id) else { return };
        tenant.slots.set(owner, slots);
        self.apply_slots(now, id.index);
    }

    /// Changes the pool's settings; requests queued and in flight stay.
    pub fn reconfigure(&mut self, now: Instant, config: Config) {
        let change = self.price.configure(config.base_cost_bytes);
        self.bucket.set_rates(now, config.limit, config.limit_burst);
        if config.admission != self.config.admission {
            self.admission.reconfigure(config.admission, now);
        }
        self.apply_price(now, config.cost, change);
        if config.scheduler != self.config.scheduler {
            self.switch_scheduler(now, config.scheduler);
        }
        self.config = config;
        self.set_target(now);
        self.set_slot_controller(now);
    }

    /// Queues a request that the limit of its volume has throttled for the time `limited`.
    ///
    /// # Errors
    /// Gives the request back when the tenant has left.
    #[inline]
    fn enqueue(&mut self, now: Instant, id: TenantId, work: Work, request: R, limited: Duration) -> Result<(), R> {
        let scheduler = self.config.scheduler;
        let Some(tenant) = self.live_mut(id) else { return Err(request) };
        Self::wake_guarantees(tenant, now, work.kind);
        tenant.tally.arrives(now, work.payload());
        let entry = Entry { tenant: id, limited, request };
        match scheduler {
            Scheduler::Mclock => {
                let client = tenant.client;
                self.ask_for_share(id.index);
                self.queue.push(now, client, work, entry).map_err(|entry| entry.request)
            }
            Scheduler::None => {
                tenant.queued_fifo += 1;
                self.ask_for_share(id.index);
                self.fifo.push_back((now, work, entry));
                Ok(())
            }
        }
    }

    /// The next request for the back end, if one may be dispatched at `now`.
    #[inline]
    pub fn dispatch(&mut self, now: Instant) -> Next<R> {
        loop {
            if let Ok(next) = self.dispatch_wanted(now, |_| true) {
                return next;
            }
        }
    }

    /// Like [`Pool::dispatch`], but asks `wish` if the request in turn runs, is put off, or is given back.
    ///
    /// # Errors
    /// `Some`: the request in turn, for which `wish` answered [`Wish::Never`], is given back. `None`: the request was put off, or
    /// some requests have passed the limits of their volumes and more are due. Call again for the next request. What is given
    /// back or put off is not charged to a limit, share or budget. [`Scheduler::None`] puts none off.
    #[inline]
    pub fn dispatch_wanted<W: Into<Wish>>(
        &mut self,
        now: Instant,
        wish: impl Fn(&R) -> W,
    ) -> Result<Next<R>, Option<R>> {
        if now >= self.admission.next_tick() {
            self.decided = self.admission.tick(now).or(self.decided);
        }
        self.tick_controllers(now);
        self.pass_volumes(now, &wish)?;
        if let Some(next) = self.before_the_budget(now) {
            return Ok(next);
        }
        let base = self.base_in_budget();
        let (phase, work, queued_at, free_at, entry) = match self.config.scheduler {
            Scheduler::Mclock => {
                let pulled = match self.pull_in_order(now, &wish) {
                    Ok(pulled) => pulled,
                    Err(None) => return Err(None),
                    Err(Some((queued_at, unwanted))) => {
                        self.tenants[unwanted.tenant.index as usize].tally.leaves(queued_at);
                        self.keep_share(unwanted.tenant.index);
                        self.rest_guarantees(now, unwanted.tenant.index);
                        return Err(Some(unwanted.request));
                    }
                };
                match pulled {
                    Pull::Ready { phase, work, queued_at, free_at, payload, .. } => {
                        (Some(phase), work, queued_at, free_at, payload)
                    }
                    Pull::Refused(until) => {
                        return Ok(Next::Wait(until.min(self.admission.next_tick()).min(self.controllers_due())));
                    }
                    Pull::Wait(until) => return Ok(self.waits_elsewhere(until)),
                    Pull::Idle => return Ok(self.waits_elsewhere(self.controllers_due())),
                }
            }
            Scheduler::None => {
                let Some((_, work, entry)) = self.fifo.front() else { return Ok(Next::Idle) };
                let wanted = wish(&entry.request).into() != Wish::Never;
                if wanted && !self.admission.fits(base + u64::from(work.bytes)) {
                    return Ok(Next::Wait(self.admission.next_tick().min(self.volumes.due())));
                }
                let Some((queued_at, work, entry)) = self.fifo.pop_front() else { return Ok(Next::Idle) };
                let tenant = &mut self.tenants[entry.tenant.index as usize];
                tenant.queued_fifo -= 1;
                if !wanted {
                    tenant.tally.leaves(queued_at);
                    self.keep_share(entry.tenant.index);
                    return Err(Some(entry.request));
                }
                (None, work, queued_at, queued_at, entry)
            }
        };
        // At least 1: a cost of 0 marks what is exempt.
        let cost = (base + u64::from(work.bytes)).max(1);
        self.bucket.take(now, &work);
        self.admission.admit(cost);
        self.in_flight += 1;
        let index = entry.tenant.index;
        let tenant = &mut self.tenants[index as usize];
        tenant.in_flight += 1;
        tenant.in_flight_cost += cost;
        tenant.tally.leaves(queued_at);
        tenant.tally.enters(now, work.payload());
        if let Some(direction) = work.kind.direction() {
            tenant.inside_of[direction as usize] += 1;
        }
        match phase {
            Some(Phase::Reservation) => tenant.stats.by_reservation += 1,
            Some(Phase::Weight) => tenant.stats.by_weight += 1,
            None => {}
        }
        if work.part.begins() {
            tenant.stats.queue_latency.record(now.since(queued_at) + entry.limited);
            tenant.stats.limited = tenant.stats.limited + entry.limited;
        }
        if tenant.out_of_slots() {
            self.apply_slots(now, index);
        }
        let reserved = phase == Some(Phase::Reservation);
        let (tenant, limited, admitted_at, aside) = (entry.tenant, entry.limited, now, Duration::ZERO);
        let (lost, blank) = (false, false);
        let it = Ticket { tenant, work, cost, queued_at, free_at, admitted_at, aside, limited, reserved, lost, blank };
        Ok(Next::Run(entry.request, it))
    }

    /// The answer if no request is queued, or all wait for the pool's limit or slots; `None`: the budget decides.
    #[inline]
    fn before_the_budget(&self, now: Instant) -> Option<Next<R>> {
        if self.queued() == 0 {
            self.admission.set_waiting(false);
            return Some(self.volumes.idle());
        }
        if self.slots.as_ref().is_some_and(|slots| self.in_flight >= slots.together()) {
            return Some(self.waits_elsewhere(self.controllers_due()));
        }
        let ready = self.bucket.ready_at();
        (ready > now).then(|| self.waits_elsewhere(ready))
    }

    /// The answer that requests wait until `until`, for something other than the budget.
    fn waits_elsewhere(&self, until: Instant) -> Next<R> {
        self.admission.set_waiting(false);
        Next::Wait(until.min(self.controllers_due()))
    }

    /// Takes back the ticket of a request that left the back end at `now`, with `outcome`.
    #[inline]
    pub fn complete(&mut self, now: Instant, ticket: Ticket, outcome: Outcome) {
        self.in_flight -= 1;
        self.exempt -= u64::from(ticket.is_exempt());
        self.shares.room.moves(now);
        let latency = now.since(ticket.admitted_at);
        match (outcome, ticket.is_exempt()) {
            (_, true) => {}
            (Outcome::Done, false) => {
                let (Work { kind, bytes, .. }, latency) = (ticket.work, latency - ticket.aside);
                self.admission.observe(now, ticket.cost, kind, u64::from(bytes), latency);
                let busy = self.admission.is_holding_back();
                self.slices.observe(now, kind, bytes, latency);
                let direction = kind.direction().filter(|_| !ticket.blank);
                let mut change = self.price.observe(now, busy, direction, bytes, latency);
                if self.admission.settled_bytes() == u64::MAX {
                    change = change.or_else(|| self.price.unbounded(now));
                }
                if change.is_some() {
                    self.apply_price(now, self.config.cost, change);
                }
            }
            // A failure may come back at once: its latency says nothing about the queue.
            (Outcome::Failed | Outcome::Cancelled, false) => self.admission.forget(ticket.cost),
        }
        if let Some(target) = &mut self.target {
            target.progress();
        }
        let tenant = &mut self.tenants[ticket.tenant.index as usize];
        if tenant.generation != ticket.tenant.generation {
            return;
        }
        tenant.in_flight -= 1;
        tenant.lost -= u64::from(ticket.lost);
        tenant.in_flight_cost -= ticket.cost;
        if !ticket.lost {
            tenant.tally.exits(ticket.admitted_at, latency);
        }
        if let Some(direction) = ticket.work.kind.direction() {
            tenant.inside_of[direction as usize] -= 1;
        }
        if let Some(throttled) = tenant.throttled
            && outcome != Outcome::Cancelled
            && !ticket.lost
            && tenant.in_flight - tenant.lost + tenant.delayed < throttled.slots
        {
            tenant.delayed += 1;
            self.delays.begin(now, ticket.tenant.index, tenant.generation, throttled.delay);
        }
        if let Some(target) = &mut self.target
            && (outcome, ticket.work.kind, tenant.counts) == (Outcome::Done, Kind::Read, true)
            && ticket.work.part.ends()
            && !ticket.lost
        {
            // Throttling others does not mend what its own limit makes it wait.
            let response_time = now.since(ticket.free_at);
            tenant.seen.read(response_time);
            target.read(response_time);
        }
        let stats = &mut tenant.stats;
        match outcome {
            Outcome::Done => {
                let Work { kind, bytes, part } = ticket.work;
                let (bytes, requests) = (u64::from(bytes), u64::from(part.ends()));
                match kind {
                    Kind::Read => (stats.reads, stats.read_bytes) = (stats.reads + requests, stats.read_bytes + bytes),
                    Kind::Write => {
                        (stats.writes, stats.write_bytes) = (stats.writes + requests, stats.write_bytes + bytes);
                    }
                    Kind::Flush => stats.flushes += requests,
                    Kind::Meta => stats.metas += requests,
                }
                stats.device_latency.record(latency);
                tenant.tally.waited_aside(ticket.aside, part.ends());
                if part.ends() {
                    let response_time = now.since(ticket.queued_at);
                    stats.latency.record(response_time + ticket.limited);
                    if let Some(shape) = &mut tenant.shape
                        && !ticket.lost
                    {
                        shape.record(response_time - ticket.aside);
                    }
                }
            }
            Outcome::Failed => stats.errors += 1,
            Outcome::Cancelled => {}
        }
        let blocked = tenant.blocked;
        self.keep_share(ticket.tenant.index);
        self.rest_guarantees(now, ticket.tenant.index);
        if blocked {
            self.apply_slots(now, ticket.tenant.index);
        }
    }

    /// Number of requests queued in the pool.
    #[inline]
    pub fn queued(&self) -> usize {
        self.queue.len() + self.fifo.len()
    }

    /// Number of the pool's requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The newest decision of admission control since the last call of this function, for a record.
    #[inline]
    pub fn take_decision(&mut self) -> Option<Decision> {
        self.decided.take()
    }

    /// State of the pool's latency target; `None` if the pool has none.
    pub fn target(&self) -> Option<target::View<'_>> {
        self.target.as_deref().map(Target::view)
    }

    /// The newest decision for the pool's latency target that differed in kind from the one before, since the last call.
    #[inline]
    pub fn take_target_decision(&mut self) -> Option<target::Decision> {
        self.target_decided.take()
    }

    /// The sizes of the slices into which the caller divides large requests before [`Pool::submit`].
    #[inline]
    pub fn slices(&self) -> &Slices {
        &self.slices
    }

    /// State of the admission controller.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Ends delays that are over, and decides anew about latency target, guarantees and slots where a decision is due. Call it
    /// before reading the state of a pool that may be idle; [`Pool::dispatch`] calls it itself.
    #[inline]
    pub fn tick_controllers(&mut self, now: Instant) {
        if self.reserved_is_due {
            self.apply_reserved(now);
        }
        self.tick_target(now);
        self.tick_guarantees(now);
        self.tick_slots(now);
    }

    /// When [`Self::tick_controllers`] is next due while requests are throttled, or the limit of a volume lets one pass.
    #[inline]
    fn controllers_due(&self) -> Instant {
        self.target_due().min(self.guarantees_due()).min(self.slots_due()).min(self.volumes.due())
    }

    #[inline]
    fn live_mut(&mut self, id: TenantId) -> Option<&mut Tenant> {
        self.tenants.get_mut(id.index as usize).filter(|t| t.live && t.generation == id.generation)
    }

    fn apply_qos(&mut self, now: Instant, id: TenantId) {
        let tenant = &self.tenants[id.index as usize];
        let (qos, fractions) = tenant.effective_qos();
        self.queue.set_qos_in_part(now, tenant.client, qos, &fractions, false);
    }

    fn apply_slots(&mut self, now: Instant, index: u32) {
        let tenant = &mut self.tenants[index as usize];
        let block = tenant.out_of_slots();
        if block == tenant.blocked || !tenant.live {
            return;
        }
        tenant.blocked = block;
        if block {
            tenant.guaranteed.iter_mut().for_each(|guarantee| guarantee.blocked = true);
            self.queue.block(now, tenant.client);
        } else {
            self.queue.unblock(now, tenant.client);
            self.keep_share(index);
        }
    }

    /// Moves all queued requests to the queue of the scheduler `to`, each tenant's requests in order.
    fn switch_scheduler(&mut self, now: Instant, to: Scheduler) {
        match to {
            Scheduler::Mclock => {
                for (queued_at, work, entry) in core::mem::take(&mut self.fifo) {
                    let tenant = &mut self.tenants[entry.tenant.index as usize];
                    tenant.queued_fifo -= 1;
                    // Only live tenants have entries in the fifo: `leave` takes theirs out.
                    let _ = self.queue.push(queued_at, tenant.client, work, entry);
                }
                self.resume_guarantees(now);
            }
            Scheduler::None => {
                for index in 0..self.tenants.len() as u32 {
                    self.apply_directions(now, index, false);
                }
                for tenant in self.tenants.iter_mut().filter(|tenant| tenant.live) {
                    self.queue.unblock(now, tenant.client);
                    tenant.blocked = false;
                    self.queue.set_qos(now, tenant.client, Qos { limit: Rates::UNSET, ..tenant.qos });
                }
                while let Pull::Ready { work, queued_at, payload, .. } = self.queue.pull(now, |_, _| true) {
                    self.tenants[payload.tenant.index as usize].queued_fifo += 1;
                    self.fifo.push_back((queued_at, work, payload));
                }
                for tenant in self.tenants.iter().filter(|tenant| tenant.live) {
                    let (qos, fractions) = tenant.effective_qos();
                    self.queue.set_qos_in_part(now, tenant.client, qos, &fractions, false);
                }
                for index in 0..self.tenants.len() as u32 {
                    self.apply_directions(now, index, true);
                }
            }
        }
    }
}
