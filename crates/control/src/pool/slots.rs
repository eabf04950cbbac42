//! Slots of tenants: the figures of each tenant in a period, and the number of requests that it may have in flight.
//!
//! The sensor and the throttle of a [`slots::Controller`](crate::slots::Controller) for a pool, which has the queue itself. A
//! pool that has the device for itself decides alone. A pool that shares the device with pools of other hosts reports its
//! tenants' figures to them ([`Pool::take_summary`]), and decides from the figures of all pools ([`Pool::decide_slots`]).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::guarantee::Scope;
use super::target::Statistic;
use super::{Pool, Scheduler, TenantId};
use crate::limits::Owner;
use crate::response::Shape;
pub use crate::slots::Config;
use crate::slots::{Controller, InvalidConfig, Reason, Report, Summary, Workload, WorkloadId};
use crate::throughput::Rate;
use crate::time::{Duration, Instant};
use crate::units::Rates;

/// Length of the windows in each of which a tenant's latency is compared with its target.
const WINDOW: Duration = Duration::from_secs(1);
/// A tenant with requests queued has a slot at least once in this time, however small its share.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Least time between two reports of a missed target of the same tenant.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// A latency target of a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyTarget {
    /// Upper bound on the statistic of the tenant's latencies.
    pub time: Duration,
    /// The statistic, over the latencies in each second.
    pub statistic: Statistic,
}

impl LatencyTarget {
    /// A target for the mean latency.
    pub const fn mean(time: Duration) -> Self {
        Self { time, statistic: Statistic::Mean }
    }
}

/// Sums over a tenant's requests since it joined; the figures of a period are differences of two readings. Sums of instants
/// and of times may wrap around; wrapping differences stay exact.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) arrived: u64,
    /// Payload of the requests that arrived.
    pub(super) arrived_bytes: u64,
    pub(super) waiting: u64,
    /// Requests that have entered the device, and their payload.
    pub(super) entered: [u64; 2],
    /// Sum of the instants, in ns, at which the queued requests were queued.
    queued_at: u64,
    /// The instant, in ns, at which the request that left the queue last had been queued.
    left: u64,
    /// Time in the queue of all requests that have entered the device, added up, in ns.
    waits: u64,
    inside: u64,
    /// Sum of the instants, in ns, at which the requests in flight were dispatched.
    admitted_at: u64,
    /// Time in the device of all requests that have left the device, added up, in ns.
    spent: u64,
    /// Time after the dispatch in which completed pieces waited for others to the same bytes, added up, in ns; and the same of
    /// the pieces with which whole requests ended.
    aside: [u64; 2],
}

impl Tally {
    #[inline]
    pub(super) fn arrives(&mut self, now: Instant, payload: u32) {
        self.arrived += 1;
        self.arrived_bytes += u64::from(payload);
        self.waiting += 1;
        self.queued_at = self.queued_at.wrapping_add(now.as_nanos());
    }

    /// Notes that a request that was queued at `queued_at` left the queue, dispatched or not.
    #[inline]
    pub(super) fn leaves(&mut self, queued_at: Instant) {
        self.waiting -= 1;
        self.queued_at = self.queued_at.wrapping_sub(queued_at.as_nanos());
        self.left = queued_at.as_nanos();
    }

    /// Notes that the request that left the queue last enters the device.
    #[inline]
    pub(super) fn enters(&mut self, now: Instant, payload: u32) {
        self.entered = [self.entered[0] + 1, self.entered[1] + u64::from(payload)];
        self.waits = self.waits.wrapping_add(now.as_nanos()).wrapping_sub(self.left);
        self.inside += 1;
        self.admitted_at = self.admitted_at.wrapping_add(now.as_nanos());
    }

    #[inline]
    pub(super) fn exits(&mut self, admitted_at: Instant, latency: Duration) {
        self.inside -= 1;
        self.admitted_at = self.admitted_at.wrapping_sub(admitted_at.as_nanos());
        self.spent = self.spent.wrapping_add(latency.as_nanos());
    }

    /// Notes that a piece completed which waited after its dispatch, for the time `aside`, for others to the same bytes. `ends`:
    /// a whole request ended with it.
    #[inline]
    pub(super) fn waited_aside(&mut self, aside: Duration, ends: bool) {
        let [of_pieces, of_whole] = &mut self.aside;
        *of_pieces = of_pieces.wrapping_add(aside.as_nanos());
        if ends {
            *of_whole = of_whole.wrapping_add(aside.as_nanos());
        }
    }

    /// The time that the queued requests have waited by `now`, added up.
    fn waited(&self, now: Instant) -> Duration {
        Duration::from_nanos(self.waiting.wrapping_mul(now.as_nanos()).wrapping_sub(self.queued_at))
    }

    /// Time that requests spent in the device since the tenant joined, added up, in ns; wraps around.
    fn occupied(&self, now: Instant) -> u64 {
        self.spent.wrapping_add(self.inside.wrapping_mul(now.as_nanos())).wrapping_sub(self.admitted_at)
    }
}

/// Readings of a tenant's sums at the beginning of the period.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    arrived: u64,
    waits: u64,
    occupied: u64,
    completed: u64,
    finished: u64,
    bytes: u64,
    device_time: Duration,
    latency: Duration,
    aside: [u64; 2],
}

/// Sums over a tenant's requests in a second, or longer until a request completes. A piece is a whole request, or a slice of a
/// request that is divided into slices.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Number of whole requests that completed.
    finished: u64,
    /// Latencies of the whole requests that completed, added up.
    latency: Duration,
    /// Number of pieces that completed.
    pieces: u64,
    /// The time that pieces waited and were in the device, added up.
    stayed: Duration,
    /// The time that the pieces that completed waited for others to the same bytes, added up. The window may have begun later.
    aside: Duration,
    /// Device latencies of the pieces that completed, without `aside`, added up.
    device_time: Duration,
}

impl Window {
    /// The time that pieces waited and were in the device, without their waits for others to the same bytes, added up.
    fn stayed(&self) -> Duration {
        (self.stayed - self.aside).max(self.stayed.min(self.device_time))
    }
}

/// A latency target that a tenant has missed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Missed {
    /// The tenant.
    pub tenant: TenantId,
    /// The target.
    pub target: LatencyTarget,
    /// The tenant's latency in the latest second in which it exceeded the target.
    pub figure: Duration,
    /// Number of earlier seconds in which the latency exceeded the target and which were not reported.
    pub unreported: u64,
    /// Reason for which the tenant has no more slots; `None` before the first decision about slots.
    pub reason: Option<Reason>,
}

/// A tenant's target, its slots, and how often it missed the target.
#[derive(Clone, Debug, Default)]
pub struct Granted {
    /// The target for the tenant's latency in each second; `None` if it has no target.
    pub target: Option<LatencyTarget>,
    /// Ratio of the latency percentile that the target is for to the mean latency, over the last 5 to 10 s; 1 for a target of
    /// the mean.
    pub times_mean: f64,
    /// Requests that the tenant may have in flight until the next decision; `None` for no bound.
    pub slots: Option<u64>,
    /// The decided number of slots with its fraction, before it is rounded to `slots`; `None` for no bound.
    pub share: Option<f64>,
    /// Number of slots that the tenant needs to meet its target.
    pub need: f64,
    /// Reason for the number of slots of the tenant; `None` before the first decision.
    pub reason: Option<Reason>,
    /// The tenant's report on the last period.
    pub report: Report,
    /// Number of seconds with completed requests since the target was set.
    pub windows: u64,
    /// Number of seconds since the target was set in which the tenant's latency exceeded the target.
    pub violated: u64,
    mark: Mark,
    /// Number of whole requests that completed in the last period.
    finished: u64,
    /// Mean payload of the tenant's pieces (whole requests or slices) in bytes, in the last period with payload.
    mean_bytes: u64,
    /// Mean number of pieces of a request in the last second in which a request completed; less than 1 counts as 1.
    pieces: f64,
    /// Mean latency of whole requests divided by the mean latency of pieces, in the last second in which a request completed;
    /// less than 1 counts as 1.
    stretch: f64,
    /// Slots (0 to 1) that the tenant did not get or use in earlier periods, because shares were rounded down or it asked for
    /// less; they are added to its next share.
    owed: f64,
    /// Sums over the present second.
    window: Window,
    /// True if the tenant is in [`Slots::missed`].
    listed: bool,
    /// The latency in the latest second in which it exceeded the target.
    figure: Duration,
    /// Number of the seconds in `violated` that reports cover, and the time of the last report.
    told: (u64, Instant),
}

/// The slot controller of a pool.
pub(super) struct Slots {
    controller: Controller,
    config: Config,
    began: Instant,
    next_tick: Instant,
    window_began: Instant,
    /// True if decisions rest on the figures of other hosts too.
    clustered: bool,
    /// Part of its share that each tenant gets, from 0 (only the least that each tenant has) to 1.
    ramp: f64,
    /// Upper bound on the requests in flight of all tenants of this pool together.
    together: u64,
    /// The summary of the last period for other hosts, until [`Pool::take_summary`] takes it.
    summary: Option<Summary>,
    total: Option<f64>,
    tightness: Option<f64>,
    workloads: Vec<Workload>,
    /// Indices of tenants that have missed their target in seconds that may not be reported yet; each once.
    missed: VecDeque<u32>,
}

impl Slots {
    #[inline]
    pub(super) fn together(&self) -> u64 {
        self.together
    }
}

/// The state of a pool's slot controller.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The controller's settings.
    pub config: &'a Config,
    /// Slots of all pools of the cluster together; `None`: no bound.
    pub total: Option<f64>,
    /// Smallest factor by which all targets could be multiplied and still be met; they are met if it is at most 1. `None`
    /// without targets, or for a factor above ten.
    pub tightness: Option<f64>,
    /// True if decisions rest on the figures of other hosts too.
    pub clustered: bool,
}

impl<R> Pool<R> {
    /// Sets the target for a tenant's latency in each second; `None` for no target.
    pub fn set_latency_target(&mut self, id: TenantId, target: Option<LatencyTarget>) {
        if let Some(tenant) = self.live_mut(id)
            && tenant.granted.target != target
        {
            let granted = &mut tenant.granted;
            (granted.target, granted.windows, granted.violated, granted.told.0) = (target, 0, 0, 0);
            granted.window = Window::default();
            let is_percentile = target.is_some_and(|target| target.statistic != Statistic::Mean);
            if is_percentile != tenant.shape.is_some() {
                tenant.shape = is_percentile.then(|| Box::new(Shape::new(Instant::ZERO)));
            }
        }
    }

    /// For a device that is shared with pools of other hosts. `clustered`: the figures of these pools are received, and the
    /// caller passes them to [`Pool::decide_slots`]; periods end when [`Pool::take_summary`] is called.
    ///
    /// Otherwise the pool decides alone, and begins with the least total: it does not use the cluster's total, and takes no
    /// more slots than the latency that it measures allows. Fixed totals and their shares stay as they are. Not to be called
    /// where no other host shares the device.
    pub fn share_slots(&mut self, clustered: bool) {
        let Some(slots) = &mut self.slots else { return };
        if slots.clustered && !clustered {
            slots.ramp = 1.0;
        }
        if clustered && !slots.clustered {
            slots.controller.forget();
        }
        slots.clustered = clustered;
        slots.controller.set_alone(!clustered);
    }

    /// Sets the part of its share that each tenant gets, from 0 (only the least that each tenant has) to 1: a host that joins
    /// takes its part of the cluster's slots in steps, while the other hosts free it.
    pub fn set_slot_ramp(&mut self, ramp: f64) {
        if let Some(slots) = &mut self.slots {
            slots.ramp = ramp.clamp(0.0, 1.0);
        }
    }

    /// A latency target that a tenant has missed, to be reported now; at most one report in ten seconds for each tenant, with
    /// the number of missed seconds that were not reported. To be called at least once a second, each time until it returns
    /// `None`.
    #[inline]
    pub fn take_missed_target(&mut self, now: Instant) -> Option<Missed> {
        if self.slots.as_ref()?.missed.is_empty() { None } else { self.find_missed_target(now) }
    }

    #[cold]
    fn find_missed_target(&mut self, now: Instant) -> Option<Missed> {
        let slots = self.slots.as_mut()?;
        while let Some(index) = slots.missed.pop_front() {
            let tenant = &mut self.tenants[index as usize];
            tenant.granted.listed = false;
            let id = TenantId { index, generation: tenant.generation };
            // The seconds that are not reported now are when it misses the next one.
            if let Some(missed) = tenant.granted.tell(now, id).filter(|_| tenant.live) {
                return Some(missed);
            }
        }
        None
    }

    /// The summary of this pool's tenants in the last period, for the other hosts; returned once for each period. If the other
    /// hosts' figures are received ([`Pool::share_slots`]), this call ends the period.
    pub fn take_summary(&mut self, now: Instant) -> Option<Summary> {
        if self.slots.as_ref()?.clustered {
            self.end_period(now);
        }
        self.slots.as_mut()?.summary.take()
    }

    /// State of the slot controller; `None` if the pool has none.
    pub fn slots(&self) -> Option<View<'_>> {
        let slots = self.slots.as_deref()?;
        Some(View { config: &slots.config, total: slots.total, tightness: slots.tightness, clustered: slots.clustered })
    }

    /// Begins, replaces or ends the slot controller as the pool's settings say.
    pub(super) fn set_slot_controller(&mut self, now: Instant) {
        let wanted = self.config.slots.filter(|_| self.config.scheduler == Scheduler::Mclock);
        if self.slots.as_ref().map(|slots| slots.config) == wanted {
            return;
        }
        let begun = |config: Config| -> Result<Box<Slots>, InvalidConfig> {
            let mut controller = Controller::new(&config)?;
            controller.set_alone(self.slots.as_ref().is_some_and(|slots| slots.controller.is_alone()));
            Ok(Box::new(Slots {
                controller,
                config,
                began: now,
                next_tick: now + config.period,
                window_began: now,
                clustered: self.slots.as_ref().is_some_and(|slots| slots.clustered),
                ramp: 1.0,
                together: u64::MAX,
                summary: None,
                total: None,
                tightness: None,
                workloads: Vec::new(),
                missed: VecDeque::new(),
            }))
        };
        self.slots = wanted.and_then(|config| begun(config).ok());
        for index in 0..self.tenants.len() as u32 {
            let tenant = &mut self.tenants[index as usize];
            tenant.granted = Granted { target: tenant.granted.target, ..Granted::default() };
            tenant.mark(now);
            tenant.slots.set(Owner::Slots, None);
            self.apply_slots(now, index);
        }
    }

    /// Ends the period if it is over, unless [`Pool::take_summary`] ends periods.
    #[inline]
    pub(super) fn tick_slots(&mut self, now: Instant) {
        if now >= self.slots_due() {
            self.end_period(now);
        }
    }

    /// When [`Self::tick_slots`] next ends a period; far in the future if [`Pool::take_summary`] ends periods.
    #[inline]
    pub(super) fn slots_due(&self) -> Instant {
        let own = self.slots.as_ref().filter(|slots| !slots.clustered);
        own.map_or(Instant::FAR_FUTURE, |slots| slots.next_tick)
    }

    fn end_period(&mut self, now: Instant) {
        let Some(mut slots) = self.slots.take() else { return };
        let length = now.since(slots.began);
        slots.began = now;
        slots.next_tick += slots.config.period;
        if slots.next_tick <= now {
            slots.next_tick = now + slots.config.period;
        }
        let window_ends = now.since(slots.window_began) >= WINDOW;
        if window_ends {
            slots.window_began = now;
        }
        slots.workloads.clear();
        for (index, tenant) in (0u32..).zip(&mut self.tenants).filter(|(_, tenant)| tenant.live) {
            let report = tenant.end_period(now, length);
            if window_ends && tenant.granted.judge() && !core::mem::replace(&mut tenant.granted.listed, true) {
                slots.missed.push_back(index);
            }
            slots.workloads.push(Workload {
                id: WorkloadId(u64::from(index) << 32 | u64::from(tenant.generation)),
                target: tenant.granted.mean_target(),
                weight: f64::from(tenant.qos.weight.max(1)),
                guaranteed_iops: tenant.guaranteed_iops(),
                report,
            });
        }
        let summary = slots.controller.observe(&slots.workloads);
        let alone = (!slots.clustered).then(|| summary.clone());
        slots.summary = Some(summary.clone());
        self.slots = Some(slots);
        if let Some(summary) = alone {
            self.decide_slots(now, &summary);
        }
    }

    /// Decides the slots of this pool's tenants from the figures of the whole cluster in the last period: `cluster` is the sum
    /// of the summaries of all pools, this pool's included.
    pub fn decide_slots(&mut self, now: Instant, cluster: &Summary) {
        let Some(mut slots) = self.slots.take() else { return };
        let plan = slots.controller.tick(cluster);
        (slots.total, slots.tightness) = (plan.total, plan.tightness);
        let bounded = plan.shares.iter().any(|share| share.slots.is_some());
        slots.together = plan.total.filter(|_| !bounded).map_or(u64::MAX, |total| total as u64);
        for share in plan.shares {
            let (index, generation) = ((share.id.0 >> 32) as u32, share.id.0 as u32);
            let Some(tenant) = self.tenants.get_mut(index as usize) else { continue };
            if !tenant.live || tenant.generation != generation {
                continue;
            }
            let granted = &mut tenant.granted;
            let ramp = slots.ramp;
            let least = (slots.config.period.as_secs_f64() / LONGEST_PAUSE.as_secs_f64()).min(1.0);
            let share_now = share.slots.map(|slots| (slots * ramp).max(slots.min(1.0)).max(least));
            granted.slots = share_now.map(|slots| granted.round(slots));
            (granted.share, granted.need, granted.reason) = (share_now, share.need, Some(share.reason));
            let slots = granted.slots;
            tenant.slots.set(Owner::Slots, slots);
            self.apply_slots(now, index);
        }
        self.slots = Some(slots);
    }
}

impl super::Tenant {
    fn mark(&mut self, now: Instant) {
        let stats = &self.stats;
        self.granted.mark = Mark {
            arrived: self.tally.arrived,
            waits: self.tally.waits,
            occupied: self.tally.occupied(now),
            completed: stats.device_latency.count(),
            finished: stats.latency.count(),
            bytes: stats.read_bytes.saturating_add(stats.write_bytes),
            device_time: stats.device_latency.sum(),
            latency: stats.latency.sum(),
            aside: self.tally.aside,
        };
    }

    fn end_period(&mut self, now: Instant, length: Duration) -> Report {
        let before = self.granted.mark;
        self.mark(now);
        let after = &self.granted.mark;
        let less = |a: Duration, b: Duration| Duration::from_nanos(a.as_nanos().wrapping_sub(b.as_nanos()));
        let (finished, waits) =
            (after.finished - before.finished, Duration::from_nanos(after.waits.wrapping_sub(before.waits)));
        // The tenant's own requests make each other wait so: other tenants and the device have no part in it.
        let aside = |which: usize| Duration::from_nanos(after.aside[which].wrapping_sub(before.aside[which]));
        let [of_pieces, of_whole] = [aside(0), aside(1)];
        let report = Report {
            length,
            arrived: after.arrived - before.arrived,
            completed: after.completed - before.completed,
            bytes: after.bytes.saturating_sub(before.bytes),
            queued: self.tally.waiting,
            waited: self.tally.waited(now),
            occupied: Duration::from_nanos(after.occupied.wrapping_sub(before.occupied)),
            aside: of_pieces,
            device_time: less(after.device_time, before.device_time) - of_pieces,
            latency: less(after.latency, before.latency) - of_whole,
        };
        self.granted.times_mean = 1.0;
        if let (Some(shape), Some(LatencyTarget { statistic: Statistic::Percentile(percentile), .. })) =
            (&mut self.shape, self.granted.target)
        {
            shape.close_interval(now);
            // As many times the mean as it was lately, whatever the mean is now.
            let mean = Duration::from_secs(1);
            let times = shape.percentile(mean, percentile / 100.0).map_or(1.0, Duration::as_secs_f64);
            self.granted.times_mean = times.max(1e-3);
        }
        let window = &mut self.granted.window;
        window.finished += finished;
        window.latency = window.latency + report.latency;
        window.pieces += report.completed;
        window.stayed = window.stayed + waits + report.occupied;
        (window.aside, window.device_time) = (window.aside + report.aside, window.device_time + report.device_time);
        if let Some(mean) = report.bytes.checked_div(report.completed).filter(|&mean| mean > 0) {
            self.granted.mean_bytes = mean;
        }
        (self.granted.report, self.granted.finished) = (report, finished);
        report
    }

    /// Requests (or slices) per second that are reserved for or guaranteed to the tenant: bounds for other tenants' targets
    /// leave them. A rate in bytes is divided by the mean size, and counts once a size is known.
    fn guaranteed_iops(&self) -> f64 {
        let granted = &self.granted;
        let of_bytes = |bytes: u64| if granted.mean_bytes > 0 { bytes as f64 / granted.mean_bytes as f64 } else { 0.0 };
        let iops = |rate: Rate| match rate {
            Rate::BytesPerS(bytes) => of_bytes(bytes),
            Rate::RequestsPerS(requests) => requests as f64 * granted.pieces.max(1.0),
        };
        let of = |all: bool| self.guaranteed.iter().filter(move |guarantee| (guarantee.scope == Scope::All) == all);
        let sum = |all| of(all).map(|guarantee| iops(guarantee.guaranteed)).sum::<f64>();
        // A reservation counts slices.
        let Rates { iops, bytes_per_s } = self.own_reservation();
        (iops as f64).max(of_bytes(bytes_per_s)).max(sum(true)).max(sum(false))
    }
}

impl Granted {
    /// Rounds `slots` to a whole number so that the mean over periods is `slots`. A period at whose end no request waits counts
    /// only with the slots that were used: a tenant that uses less than its fraction of a slot always has a slot.
    fn round(&mut self, slots: f64) -> u64 {
        let used = self.report.occupied.as_secs_f64() / self.report.length.as_secs_f64().max(1e-9);
        let (share, whole) = (self.share.unwrap_or(0.0), self.slots.unwrap_or(0) as f64);
        let cost = if self.report.queued > 0 { whole } else { whole.min(used) };
        self.owed = (self.owed + share - cost).clamp(0.0, 1.0);
        libm::floor(slots + self.owed) as u64
    }

    /// Mean latency of the tenant's requests in the last period, in seconds, converted to that of slices if requests are
    /// divided into slices; `None` when no request completed.
    pub fn latency_s(&self) -> Option<f64> {
        let mean_s = self.report.latency.as_secs_f64() / self.finished as f64;
        (self.finished > 0).then(|| mean_s / self.stretch.max(1.0))
    }

    /// The statistic that the tenant's target is for, in the last period and in seconds: the mean latency of whole requests times
    /// the learned ratio; `None` when no request completed.
    pub fn figure_s(&self) -> Option<f64> {
        (self.finished > 0).then(|| self.report.latency.as_secs_f64() / self.finished as f64 * self.times_mean)
    }

    /// The tenant's target, converted to a target for the mean latency of requests, or of slices if requests are divided.
    fn mean_target(&self) -> Option<Duration> {
        let target = self.target?;
        Some(Duration::from_nanos((target.time.as_nanos() as f64 / self.times_mean / self.stretch.max(1.0)) as u64))
    }

    /// Ends the tenant's window of a second, and counts it. True if the tenant's latency in the window exceeded its target.
    fn judge(&mut self) -> bool {
        if self.window.finished == 0 {
            return false;
        }
        let window = core::mem::take(&mut self.window);
        let (Window { finished, latency, pieces, .. }, stayed) = (window, window.stayed());
        let (mean_s, pieces) = (latency.as_secs_f64() / finished as f64, pieces as f64);
        self.pieces = pieces / finished as f64;
        self.stretch = if self.pieces > 1.0 { mean_s / (stayed.as_secs_f64() / pieces).max(1e-9) } else { 1.0 };
        if let Some(target) = self.target {
            self.windows += 1;
            let figure_s = mean_s * self.times_mean;
            if figure_s > target.time.as_secs_f64() {
                self.violated += 1;
                self.figure = Duration::from_nanos((figure_s * 1e9) as u64);
                return true;
            }
        }
        false
    }

    /// The report of the tenant's missed target, if a report is due.
    fn tell(&mut self, now: Instant, tenant: TenantId) -> Option<Missed> {
        let (told, at) = self.told;
        let target = self.target.filter(|_| self.violated > told && (told == 0 || now.since(at) >= TOLD_EVERY))?;
        self.told = (self.violated, now);
        Some(Missed { tenant, target, figure: self.figure, unreported: self.violated - told - 1, reason: self.reason })
    }
}
