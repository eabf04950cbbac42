//! Throttles tenants for a pool's latency target by delaying their slots.
//!
//! A throttled tenant may have as many requests in flight as it had when the throttle began, and after each request its slot
//! stays empty for a delay. Packet delays were designed for the same system: a number of requests in circulation, each of
//! which comes back `delay` later. By Little's law `slots` requests that take R each pass at a rate of `slots / (R + delay)`,
//! whether the tenant has four requests queued or four thousand. A short delay already shortens the device's queue a little,
//! and a device that becomes faster gives the tenant more without a decision. A limit in bytes per second has none of these
//! properties: above the device's bandwidth it has no effect, below it the queue of the device runs empty.
//!
//! Reservations take precedence: requests that are due by reservation pass without a slot.

use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use super::guarantee::Scope;
use super::target::{self, Slowed, Target};
use super::{Pool, Scheduler, Tenant, TenantId};
use crate::limits::Owner;
use crate::response::{ClientId, ClientReason, ClientSample, Reason, Throttle, loud_from};
use crate::throughput::Rate;
use crate::time::{Duration, Instant};

/// A tenant's throttle for the pool's latency target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttled {
    /// Requests that the tenant may have in flight; a slot that stays empty for a delay counts as a request.
    pub slots: u64,
    /// Requests that the tenant had in flight when it was not throttled.
    pub usual: u64,
    /// Time for which a slot stays empty after its request has left the device.
    pub delay: Duration,
    /// Reason for the length of the delay.
    pub reason: ClientReason,
}

/// A tenant's slot that stays empty for a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Delay {
    due: Instant,
    /// Index of the tenant.
    index: u32,
    generation: u32,
    /// When the slot's request left the device, and the delay began.
    since: Instant,
}

/// All slots that stay empty for a delay, in order of the ends of the delays.
#[derive(Debug, Default)]
pub(super) struct Delays(BinaryHeap<Reverse<Delay>>);

impl Delays {
    /// Begins the delay of one slot of the tenant of this index and generation.
    pub(super) fn begin(&mut self, now: Instant, index: u32, generation: u32, delay: Duration) {
        self.0.push(Reverse(Delay { due: now + delay, index, generation, since: now }));
    }

    /// When the next delay ends; far in the future if no slot is delayed.
    #[inline]
    pub(super) fn next(&self) -> Instant {
        self.0.peek().map_or(Instant::FAR_FUTURE, |Reverse(delay)| delay.due)
    }

    /// Removes a delay that has ended by `now`; returns index and generation of its tenant, or `None` if none has ended.
    pub(super) fn end(&mut self, now: Instant) -> Option<(u32, u32)> {
        if self.next() > now {
            return None;
        }
        self.0.pop().map(|Reverse(delay)| (delay.index, delay.generation))
    }

    /// Changes the lengths of all delays that have begun to what `delay` gives for a tenant's index and generation; with `None`
    /// the delay is dropped.
    pub(super) fn change(&mut self, delay: impl Fn(u32, u32) -> Option<Duration>) {
        let lengthened = |Reverse(old): Reverse<Delay>| {
            let length = delay(old.index, old.generation)?;
            Some(Reverse(Delay { due: old.since + length, ..old }))
        };
        self.0 = core::mem::take(&mut self.0).into_iter().filter_map(lengthened).collect();
    }
}

/// Replaces `slots` slots with a delay longer than `latency`, the device's, by fewer slots with a shorter delay and the same
/// throughput, so that half of the slots are delayed at a time: the requests of many slots with a long delay would come back
/// as one burst.
fn fewer(slots: u64, delay: Duration, latency: Duration) -> (u64, Duration) {
    let (delay, latency) = (delay.as_nanos(), latency.as_nanos());
    let busy = (2 * latency).saturating_mul(slots).div_ceil((latency + delay).max(1)).clamp(1, slots.max(1));
    let cycle = u128::from(latency + delay) * u128::from(busy) / u128::from(slots.max(1));
    (busy, Duration::from_nanos((cycle as u64).saturating_sub(latency)))
}

/// A tenant's figures that the latency target needs, as of the end of the target's last control interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The tenant's payload bytes that count as load, since it joined.
    moved: u64,
    /// All payload bytes of the tenant since it joined.
    all: u64,
    /// Bytes per second that the tenant would have moved in the last interval without a throttle; 0 if it moved no bytes that
    /// a throttle slows.
    freed: f64,
    /// Time that the tenant's requests spent in the back end since it joined, added up.
    device_time: Duration,
    /// Number of the tenant's requests (or slices) that the back end has served since the tenant joined.
    served: u64,
    /// Mean time of a request (or slice) in the back end, smoothed over intervals.
    latency: Duration,
    /// Mean payload of a request (or slice) in bytes, smoothed over intervals; 0 before requests with payload have completed.
    payload: f64,
    /// The tenant's guarantee of one direction (its scope, and true if it is in bytes), with the bytes or requests that counted
    /// towards it since the tenant joined; `None`: it had no such guarantee.
    guaranteed: Option<(Scope, bool, u64)>,
    /// Mean number of requests in flight in the last interval, rounded up.
    requests: u64,
    /// Number of the tenant's reads that completed in the present interval.
    reads: u64,
    /// Latencies of the tenant's reads that completed in the present interval, added up.
    sum: Duration,
}

impl Seen {
    /// Counts a completed read with this latency.
    #[inline]
    pub(super) fn read(&mut self, response_time: Duration) {
        self.reads += 1;
        self.sum = self.sum + response_time;
    }

    /// Payload bytes per second of a throttle to `slots` slots, each of which serves a request and then stays empty for
    /// `delay`. `None` before requests with payload have completed.
    fn passed_by(&self, slots: u64, delay: Duration) -> Option<f64> {
        let rate = slots as f64 * self.payload / (self.latency + delay).as_secs_f64();
        (rate.is_finite() && rate > 0.0).then_some(rate)
    }
}

impl<R> Pool<R> {
    /// Brings the latency target in line with the pool's settings. The target's controller keeps its state if nothing changes,
    /// or only the target's value.
    pub(super) fn set_target(&mut self, now: Instant) {
        let wanted = self.config.target.filter(|_| self.config.scheduler == Scheduler::Mclock);
        let goes_on = match (&mut self.target, &wanted) {
            (None, None) => true,
            (Some(target), Some(wanted)) => target.config() == wanted || target.adopt(wanted),
            _ => false,
        };
        self.apply_reserved(now);
        if goes_on {
            return;
        }
        self.target = wanted.and_then(|config| Target::new(now, &config).ok().map(Box::new));
        for index in 0..self.tenants.len() as u32 {
            self.set_throttled(now, index, None);
            let tenant = &mut self.tenants[index as usize];
            tenant.counts = true;
            tenant.seen.moved = wanted.map_or(0, |config| tenant.moved(config.load));
            tenant.seen.all = tenant.moved(target::Load::All);
            tenant.seen.device_time = tenant.stats.device_latency.sum();
            tenant.seen.served = tenant.stats.device_latency.count();
            tenant.seen.guaranteed = None;
        }
        self.delays = Delays::default();
    }

    /// Ends delays of slots that are over, and decides the throttles for the latency target anew when a decision is due.
    #[inline]
    pub(super) fn tick_target(&mut self, now: Instant) {
        let Some(target) = &self.target else { return };
        if now >= target.next_tick() {
            self.decide_target(now);
        }
        while let Some((index, generation)) = self.delays.end(now) {
            let tenant = &mut self.tenants[index as usize];
            if tenant.generation == generation {
                tenant.delayed = tenant.delayed.saturating_sub(1);
                self.apply_slots(now, index);
            }
        }
    }

    /// When [`Self::tick_target`] is next due while requests are throttled.
    #[inline]
    pub(super) fn target_due(&self) -> Instant {
        self.target.as_ref().map_or(Instant::FAR_FUTURE, |target| target.next_tick().min(self.delays.next()))
    }

    fn decide_target(&mut self, now: Instant) {
        let Some(mut target) = self.target.take() else { return };
        if let Some(length) = target.close_interval(now, self.in_flight) {
            let load = target.config().load;
            let (samples, loads) = target.samples();
            loads.clear();
            for (index, tenant) in (0u32..).zip(&mut self.tenants).filter(|(_, tenant)| tenant.live) {
                let per_s = |bytes: u64| bytes as f64 / length.as_secs_f64();
                let (moved, all) = (tenant.moved(load), tenant.moved(target::Load::All));
                let device_time = tenant.stats.device_latency.sum();
                let spent = device_time.as_nanos().saturating_sub(tenant.seen.device_time.as_nanos());
                let all_bytes_per_s = per_s(all.saturating_sub(tenant.seen.all));
                // A tenant with all its slots in the device all the time would have so many times the load. One with nothing
                // waiting has all that it asks for.
                let waits = self.queue.client_len(tenant.client) > 0;
                let slots = tenant.throttled.filter(|_| waits).map_or(0, |throttled| throttled.usual);
                let slots = slots.saturating_mul(length.as_nanos());
                let freed = all_bytes_per_s * (slots as f64 / spent.max(1) as f64).max(1.0);
                loads.push(freed);
                tenant.seen.freed = if moved > tenant.seen.moved { freed } else { 0.0 };
                // A guarantee of all is the tenant's limit as well, so that every throttle would break it.
                let throttle = if tenant.is_guaranteed_all() { Throttle::Never } else { tenant.throttle };
                let bytes_per_s = per_s(moved.saturating_sub(tenant.seen.moved));
                let client = client(index, tenant.generation);
                let paid = tenant.paid(length);
                samples.push(ClientSample {
                    client,
                    throttle,
                    bytes_per_s,
                    all_bytes_per_s,
                    freed_bytes_per_s: all_bytes_per_s,
                    reads: false,
                    paid,
                });
                let served = tenant.stats.device_latency.count();
                let newly_served = served.saturating_sub(tenant.seen.served);
                if let Some(latency) = spent.checked_div(newly_served) {
                    let before = tenant.seen.latency.as_nanos();
                    tenant.seen.latency =
                        Duration::from_nanos(if before == 0 { latency } else { (9 * before + latency) / 10 });
                    let (before, payload) = (tenant.seen.payload, all.saturating_sub(tenant.seen.all) as f64);
                    let payload = payload / newly_served as f64;
                    tenant.seen.payload = if before > 0.0 { before + 0.1 * (payload - before) } else { payload };
                }
                let requests = spent.div_ceil(length.as_nanos());
                tenant.seen = Seen { moved, all, device_time, served, requests, ..tenant.seen };
            }
            let loud = loud_from(loads);
            let (mut reads, mut sum) = (0, Duration::ZERO);
            for tenant in self.tenants.iter_mut().filter(|tenant| tenant.live) {
                let (own, own_sum) = (core::mem::take(&mut tenant.seen.reads), core::mem::take(&mut tenant.seen.sum));
                // A tenant that became loud in this interval is not known as such yet.
                if tenant.throttle == Throttle::Never || tenant.seen.freed < loud {
                    (reads, sum) = (reads + own, sum + own_sum);
                }
            }
            target.observe(now, reads, sum);
        }
        let mut decision = target.decide(now);
        let reason = decision.reason;
        let max_delay = target.config().response.max_delay;
        let mut changed = false;
        for index in 0..self.tenants.len() as u32 {
            let tenant = &mut self.tenants[index as usize];
            if !tenant.live {
                continue;
            }
            let client = client(index, tenant.generation);
            tenant.counts = target.counts(client);
            let mut shortened = None;
            let mut asked = Duration::ZERO;
            let throttled = target.delay(client).map(|wanted| {
                // Requests that a limit of their own lets pass later do not wait for the throttle.
                let queued = self.queue.client_len_within(tenant.client, max_delay);
                let usual = tenant.throttled.map_or_else(|| tenant.usual_slots(&reason), |throttled| throttled.usual);
                // The last of the queue waits for as many requests and delays as there are requests for each slot. What a long
                // queue gives it ends with that queue.
                let (latency, most) = (tenant.seen.latency.as_nanos(), max_delay.as_nanos());
                let slots = usual.max(latency.saturating_mul(queued).div_ceil(most));
                let most = (most.saturating_mul(slots) / queued.max(slots)).saturating_sub(latency.min(most / 2));
                let delay = wanted.delay.min(Duration::from_nanos(most));
                shortened = Some(delay).filter(|delay| *delay < wanted.delay);
                let reason = shortened.map_or(wanted.reason, |_| ClientReason::LongestWait);
                asked = delay;
                let (slots, delay) = fewer(slots, delay, tenant.seen.latency);
                Throttled { slots, usual, delay, reason }
            });
            if let Some(delay) = shortened {
                target.shorten(client, delay);
            }
            let id = TenantId { index, generation: tenant.generation };
            match throttled {
                Some(throttled) => {
                    let (Throttled { slots, delay, .. }, rank) = (throttled, (asked, tenant.seen.freed));
                    let bytes_per_s = tenant.seen.passed_by(slots, delay);
                    let slowed = Slowed { tenant: id, slots, delay, bytes_per_s, rank };
                    decision.throttled.add(slowed, Slowed::is_above);
                }
                None if tenant.throttled.is_some() => decision.released.add(id, |_, _| false),
                None => {}
            }
            if throttled != tenant.throttled {
                changed = true;
                self.set_throttled(now, index, throttled);
            }
        }
        if changed {
            let tenants = &self.tenants;
            self.delays.change(|index, generation| {
                let tenant = tenants.get(index as usize).filter(|tenant| tenant.generation == generation)?;
                tenant.throttled.map(|throttled| throttled.delay)
            });
        }
        if target.record(now, decision) {
            self.target_decided = Some(decision);
        }
        self.target = Some(target);
    }

    /// Changes a tenant's throttle for the latency target; `None` ends it.
    fn set_throttled(&mut self, now: Instant, index: u32, throttled: Option<Throttled>) {
        let tenant = &mut self.tenants[index as usize];
        if let (Some(before), None) = (tenant.throttled, throttled) {
            tenant.usual_before = before.usual;
            tenant.delayed = 0;
        }
        tenant.throttled = throttled;
        tenant.slots.set(Owner::Latency, throttled.map(|throttled| throttled.slots));
        self.apply_slots(now, index);
    }
}

impl Tenant {
    /// True if every read and write of the tenant counts towards a throughput guarantee.
    fn is_guaranteed_all(&self) -> bool {
        self.guaranteed.iter().any(|guarantee| guarantee.scope == Scope::All) || self.guaranteed.len() > 1
    }

    /// The tenant's throughput in the last interval, which had this length, divided by its guarantee of one direction.
    /// Infinite without such a guarantee, in the interval in which the guarantee was set, or if the tenant moved nothing in that
    /// direction. Reservations do not count: requests due by reservation pass without a slot, so that a throttle takes nothing
    /// from them.
    fn paid(&mut self, length: Duration) -> f64 {
        let Some(guarantee) = self.guaranteed.first().filter(|guarantee| guarantee.scope != Scope::All) else {
            self.seen.guaranteed = None;
            return f64::INFINITY;
        };
        let (scope, rate) = (guarantee.scope, guarantee.guaranteed);
        let (done, is_of_bytes) = (self.done(scope, rate), matches!(rate, Rate::BytesPerS(_)));
        // All that the tenant moved before it had the guarantee would otherwise count as moved in this interval.
        let before = self.seen.guaranteed.replace((scope, is_of_bytes, done));
        let before = before.filter(|&(of, bytes, _)| (of, bytes) == (scope, is_of_bytes));
        let got = before.map_or(0, |(_, _, before)| done.saturating_sub(before));
        let got_per_s = got as f64 / length.as_secs_f64();
        if got > 0 { got_per_s / (rate.value() as f64).max(1.0) } else { f64::INFINITY }
    }

    /// Number of requests that the tenant has in flight when it is not throttled, at least 1.
    fn usual_slots(&self, reason: &Reason) -> u64 {
        // A burst that is known is throttled before it has filled the device again.
        let before = if matches!(reason, Reason::KnownBurst { .. }) { self.usual_before } else { 0 };
        (self.in_flight - self.lost).max(self.seen.requests).max(before).max(1)
    }
}

/// The number by which the latency controller knows a tenant; numbers are in order of the tenants' indices.
fn client(index: u32, generation: u32) -> ClientId {
    ClientId(u64::from(index) << 32 | u64::from(generation))
}
