//! Verdicts: targets met or missed, the recent performance of a tenant or pool, and its throttle.
//!
//! Verdicts are computed only in this module, from counts at both ends of a window and the records at its end. API, metrics,
//! `top` and dashboard show the results.

use evenkeel_control::pool::TenantView;

use crate::explain;
use crate::figures::{bytes, bytes_per_s, counted, counted_figure, ms, rates, short};
pub use crate::lately::{Cause, Kind, Lately, Target, ThrottledBy, Verdict};
use crate::state::{GuaranteeState, LatencyTargetState, LimitState, PoolState, TenantSlotsState, TenantState};

/// Fraction of a limit from which on a rate counts as at the limit, because counts in a window are never exact.
const AT_LIMIT: f64 = 0.95;
/// Fraction of a guarantee or reservation from which on it counts as met, because counts in a window are never exact.
pub const AS_GUARANTEED: f64 = 0.98;
/// Mean number of queued requests from which on a tenant counts as asking for more than it gets. A client at queue depth 1 has at
/// most one queued request; from one half on, its requests wait longer in the queue than in the device.
const BACKLOG: f64 = 0.5;
/// Divisor of a budget: while the cost in flight is below the budget divided by this, every request still fits, so requests that
/// are queued do not wait for the budget.
const ROOM: u64 = 8;

/// Counters of a tenant at one instant, or their growth over a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Number of requests completed.
    pub requests: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Requests dispatched for the reservation.
    pub by_reservation: u64,
    /// Requests dispatched by weight.
    pub by_weight: u64,
    /// Requests that the device failed.
    pub errors: u64,
    /// Number of requests whose latencies are summed up in `latency_s`, `queue_s` and `device_s`.
    pub latencies: u64,
    /// Sum of latencies, in seconds.
    pub latency_s: f64,
    /// Part of `latency_s` that requests spent in the queue, in seconds.
    pub queue_s: f64,
    /// Part of `queue_s` in which requests waited for the limits of their volumes, in seconds: they were no backlog.
    pub limited_s: f64,
    /// Part of `latency_s` that requests spent in the device, in seconds.
    pub device_s: f64,
    /// Number of one-second windows in which the tenant's latency target was judged.
    pub windows: u64,
    /// Number of the `windows` in which the target was missed.
    pub violated: u64,
    /// Number of queued requests at the instant; for a window, the smaller of the numbers at its two ends.
    pub queued: u64,
}

impl From<&TenantView<'_>> for Counts {
    fn from(view: &TenantView<'_>) -> Self {
        let stats = view.stats;
        Self {
            requests: stats.reads + stats.writes + stats.flushes + stats.metas,
            bytes: stats.read_bytes + stats.write_bytes,
            by_reservation: stats.by_reservation,
            by_weight: stats.by_weight,
            errors: stats.errors,
            latencies: stats.latency.count(),
            latency_s: stats.latency.sum().as_secs_f64(),
            queue_s: stats.queue_latency.sum().as_secs_f64(),
            limited_s: stats.limited.as_secs_f64(),
            device_s: stats.device_latency.sum().as_secs_f64(),
            windows: view.granted.windows,
            violated: view.granted.violated,
            queued: view.queued as u64,
        }
    }
}

impl Counts {
    /// The growth of the counters since `was`; 0 for a counter that was reset in between.
    #[must_use]
    pub fn since(&self, was: &Self) -> Self {
        let mut grown = self.with(was, u64::saturating_sub, |is, was| (is - was).max(0.0));
        grown.queued = self.queued.min(was.queued);
        grown
    }

    fn plus(&self, other: &Self) -> Self {
        self.with(other, |a, b| a + b, |a, b| a + b)
    }

    fn with(&self, other: &Self, count: fn(u64, u64) -> u64, time: fn(f64, f64) -> f64) -> Self {
        Self {
            requests: count(self.requests, other.requests),
            bytes: count(self.bytes, other.bytes),
            by_reservation: count(self.by_reservation, other.by_reservation),
            by_weight: count(self.by_weight, other.by_weight),
            errors: count(self.errors, other.errors),
            latencies: count(self.latencies, other.latencies),
            latency_s: time(self.latency_s, other.latency_s),
            queue_s: time(self.queue_s, other.queue_s),
            limited_s: time(self.limited_s, other.limited_s),
            device_s: time(self.device_s, other.device_s),
            windows: count(self.windows, other.windows),
            violated: count(self.violated, other.violated),
            queued: count(self.queued, other.queued),
        }
    }

    /// True if on average requests were queued during the window, which these counts are of.
    fn has_backlog(&self, window_s: f64) -> bool {
        self.queue_s - self.limited_s >= BACKLOG * window_s
    }

    fn lately(&self, window_s: f64) -> Lately {
        let per_s = |count: u64| count as f64 / window_s;
        let mean = |sum_s: f64| (self.latencies > 0).then(|| sum_s * 1e3 / self.latencies as f64);
        Lately {
            window_s,
            iops: per_s(self.requests),
            bytes_per_s: per_s(self.bytes),
            by_reservation_iops: per_s(self.by_reservation),
            by_weight_iops: per_s(self.by_weight),
            errors: self.errors,
            latency_ms: mean(self.latency_s),
            queue_latency_ms: mean(self.queue_s),
            device_latency_ms: mean(self.device_s),
            ..Lately::default()
        }
    }
}

/// Verdict on a latency target, from its last measured figure and the name of the newest decision's reason.
pub fn latency(target_ms: f64, measured_ms: Option<f64>, reason: &str) -> Verdict {
    match (measured_ms, reason) {
        // The figure is from before the last reads stopped.
        (None, _) | (_, "not_enough_data" | "idle" | "signal_lost") => Verdict::Idle,
        (Some(measured), _) if measured <= target_ms => Verdict::Met,
        (_, "unachievable") => Verdict::Unachievable,
        _ => Verdict::Missed,
    }
}

/// Verdict on a pool's latency target, also if there were no requests recently.
pub fn latency_target(target: &LatencyTargetState) -> Verdict {
    let reason = target.decision.as_ref().map_or("", |decision| decision.reason.as_str());
    match latency(target.target_ms, target.measured_ms, reason) {
        // The throttle's effect is tested only once it is as large as allowed. An agent says so after the test, because with
        // --dry-run it tests a throttle that is not applied.
        Verdict::Missed if reason == "testing_effect" => Verdict::Unachievable,
        verdict => verdict,
    }
}

/// A pool's latency target with the verdict on its figure. `reason`: name of the newest reason.
pub fn of_latency(target: &LatencyTargetState, reason: &str) -> Target {
    named(target, latency(target.target_ms, target.measured_ms, reason))
}

fn named(target: &LatencyTargetState, verdict: Verdict) -> Target {
    Target { what: format!("{} < {} ms", target.percentile, short(target.target_ms)), kind: Kind::Latency, verdict }
}

/// A tenant's latency target with the verdict on it; `None` without a target. `seconds` and `violated` are the numbers of seconds
/// in a window that were judged and that missed the target; if no second was judged, `measured_ms` decides.
pub fn by_seconds(slots: &TenantSlotsState, seconds: u64, violated: u64, measured_ms: Option<f64>) -> Option<Target> {
    let target_ms = slots.target_ms?;
    let verdict = match (seconds, violated) {
        (_, 1..) if slots.reason == "unachievable" => Verdict::Unachievable,
        (_, 1..) => Verdict::Missed,
        (1.., 0) => Verdict::Met,
        (0, 0) => latency(target_ms, measured_ms, &slots.reason),
    };
    let statistic = if slots.percentile.is_empty() { "mean" } else { &slots.percentile };
    Some(Target { what: format!("{statistic} < {} ms", short(target_ms)), kind: Kind::Latency, verdict })
}

/// Verdict on a throughput guarantee, from the last measured rate and the name of the newest decision's reason. A rate below the
/// guarantee is judged as idle if the tenant asked for no more.
pub fn guarantee(guaranteed: f64, measured: Option<f64>, reason: &str) -> Verdict {
    match (measured, reason) {
        (None, _) | (_, "idle" | "app_limited" | "not_enough_data" | "counters_reset" | "signal_lost") => Verdict::Idle,
        (Some(measured), _) if measured >= AS_GUARANTEED * guaranteed => Verdict::Met,
        (_, "unachievable" | "at_ceiling" | "no_solution") => Verdict::Unachievable,
        _ => Verdict::Missed,
    }
}

/// A throughput guarantee with the verdict on it.
pub fn of_guarantee(of: &GuaranteeState) -> Target {
    let guaranteed = of.guaranteed_per_s as f64;
    let rate = of.rate(guaranteed);
    let what = if of.of == "all" { rate } else { format!("{rate} {}", of.of) };
    Target { what, kind: Kind::Guarantee, verdict: guarantee(guaranteed, of.measured_per_s, &of.reason) }
}

/// The throttle by the limit of a throughput guarantee; `None` if the rate is below the limit.
pub fn at_guarantee(of: &GuaranteeState) -> Option<ThrottledBy> {
    let limit = of.limit_per_s as f64;
    let (by, how, because) = (of.binding.clone(), of.rate(limit), of.because.clone());
    let is_at = of.measured_per_s.is_some_and(|measured| measured >= AT_LIMIT * limit);
    is_at.then_some(ThrottledBy { by, cause: Cause::Limit, how, because })
}

/// The throttle of a client or control group whose requests are delayed for a latency target; `None` without a delay.
pub fn delayed(delay_ms: f64, because: &str) -> Option<ThrottledBy> {
    (delay_ms > 0.0).then(|| for_latency(format!("{} ms delay", ms(delay_ms)), because))
}

/// The throttle of a pool on which `throttled` clients or groups, each called `thing`, are delayed for its latency target; `None`
/// if `throttled` is 0.
pub fn delays(throttled: usize, thing: &str, mean_delay_ms: f64, because: &str) -> Option<ThrottledBy> {
    let how = || format!("{}, mean {} ms", counted(throttled as u64, thing), ms(mean_delay_ms));
    (throttled > 0).then(|| for_latency(how(), because))
}

fn for_latency(how: String, because: &str) -> ThrottledBy {
    ThrottledBy { by: "latency".into(), cause: Cause::LatencyTarget, how, because: because.to_owned() }
}

/// The throttle of a control group by its part of its tenant's limit, which lets these bytes per second pass.
pub fn at_part(rate: f64, because: &str) -> ThrottledBy {
    let (how, because) = (bytes_per_s(rate), because.to_owned());
    ThrottledBy { by: "operator".into(), cause: Cause::Limit, how, because }
}

/// The throttle of a volume whose shortened queues have `length` slots (requests) together; `None` if `length` is 0.
pub fn shortened(length: u64, because: &str) -> Option<ThrottledBy> {
    let (how, because) = (format!("queue of {length}"), because.to_owned());
    (length > 0).then_some(ThrottledBy { by: "slots".into(), cause: Cause::Slots, how, because })
}

/// Fills in [`PoolState::lately`] and [`TenantState::lately`]. `work` has the growth of each tenant's counters over the window,
/// in the order of the pool's tenants; `None` for a tenant that is newer than the window.
pub fn judge(pool: &mut PoolState, work: &[Option<Counts>], window_s: f64) {
    let sum = work.iter().flatten().fold(Counts::default(), |sum, one| sum.plus(one));
    let mut lately = sum.lately(window_s);
    let limit = at_limit(&pool.limit, &lately).map(|(by, how)| {
        let because = explain::at_limit(&format!("pool {}", pool.name), &how, &by);
        ThrottledBy { by, cause: Cause::PoolLimit, how, because }
    });
    let admission = &pool.admission;
    let has_room = admission.budget_bytes.is_none_or(|budget| admission.in_flight_bytes < budget / ROOM);
    let may_space = limit.is_none() && has_room;
    let tenants = pool.tenants.iter().zip(work);
    let own = tenants.map(|(tenant, work)| {
        let work = work.as_ref()?;
        let own = throttled_by(tenant, &work.lately(window_s));
        own.or_else(|| spaced_by_own(tenant, work, window_s, &pool.limit).filter(|_| may_space))
    });
    let own: Vec<Option<ThrottledBy>> = own.collect();
    // The backlog of the other tenants, which do not wait for a throttle of their own.
    let others = work.iter().zip(&own).filter(|(_, own)| own.is_none()).filter_map(|(work, _)| work.as_ref());
    let others = others.fold(Counts::default(), |sum, one| sum.plus(one));
    let spaced = limit_of(&pool.limit).filter(|_| may_space && others.has_backlog(window_s));
    let spaced = spaced.map(|(by, how)| {
        let because = explain::spaced(&format!("pool {}", pool.name), &how, &by);
        ThrottledBy { by, cause: Cause::PoolLimit, how, because }
    });
    let at_most = limit.as_ref().or(spaced.as_ref());
    let budget = admission.budget_bytes.filter(|_| at_most.is_none()).map(bytes).map(|how| {
        let (by, because) = (admission.kind.clone(), explain::at_budget(&how, &admission.reason));
        ThrottledBy { by, cause: Cause::Admission, how, because }
    });
    let whole = at_most.or(budget.as_ref());
    // True if requests wait for the pool, and not for what throttles their tenant. The pool's own number of queued requests is
    // from another instant than the tenants' numbers.
    let mut waits = false;
    for ((tenant, work), own) in pool.tenants.iter_mut().zip(work).zip(own) {
        waits |= own.is_none() && tenant.queued_requests > 0;
        tenant.lately = work.as_ref().map(|work| of_tenant(tenant, work, window_s, whole, own));
    }
    let target = pool.latency_target.as_ref();
    let is_idle = lately.iops <= 0.0;
    let judged = |target| named(target, if is_idle { Verdict::Idle } else { latency_target(target) });
    lately.targets.extend(target.map(judged));
    let decided = target.and_then(|target| target.decision.as_ref()).map(|decision| decision.because.as_str());
    let at_limit = limit.as_ref().or(spaced.as_ref().filter(|_| waits)).map(|limit| limit.because.as_str());
    lately.because = explain::pool(at_limit, decided, &admission.reason);
    lately.throttled_by = limit.or(spaced.or(budget).filter(|_| waits));
    pool.lately = Some(lately);
}

/// Recent figures and verdicts of a tenant. `own` is the throttle of the tenant itself. Without one the throttle of its pool,
/// `whole`, applies to the tenant's queued requests.
fn of_tenant(
    tenant: &TenantState,
    work: &Counts,
    window_s: f64,
    whole: Option<&ThrottledBy>,
    own: Option<ThrottledBy>,
) -> Lately {
    let lately = work.lately(window_s);
    let targets = targets(tenant, work, &lately);
    let waits = explain::queued(tenant.queued_requests, whole.map(|whole| whole.because.as_str()));
    let limit = whole.filter(|whole| whole.cause == Cause::PoolLimit && tenant.queued_requests > 0);
    let at_pool = || limit.map(|limit| ThrottledBy { because: waits.clone(), ..limit.clone() });
    let throttled_by = own.or_else(at_pool);
    let decided = tenant.guarantees.first().map(|guarantee| &guarantee.because);
    let decided = decided.or(tenant.slots.as_ref().map(|slots| &slots.because)).filter(|because| !because.is_empty());
    let because = throttled_by.as_ref().map(|by| &by.because).or(decided).unwrap_or(&waits).clone();
    Lately { targets, throttled_by, because, ..lately }
}

fn targets(tenant: &TenantState, work: &Counts, lately: &Lately) -> Vec<Target> {
    let mut targets = Vec::new();
    targets.extend(tenant.slots.as_ref().and_then(|slots| by_seconds(slots, work.windows, work.violated, None)));
    targets.extend(tenant.guarantees.iter().map(of_guarantee));
    // One that had nothing queued would have got more, had it asked.
    let waited = if work.queue_s > 0.0 { work.has_backlog(lately.window_s) } else { work.queued > 0 };
    let asks_for_more = tenant.queued_requests > 0 && waited;
    let (qos, parts) = (&tenant.qos, tenant.parts.as_ref());
    // Of a total, this host owes its part.
    let of_iops = parts.map_or(qos.reservation_iops, |parts| parts.reservation_iops);
    let of_bytes = parts.map_or(qos.reservation_bytes_per_s, |parts| parts.reservation_bytes_per_s);
    let iops = of_iops.map(|reserved| (reserved, lately.iops, rates(Some(reserved), None)));
    let bytes = of_bytes.map(|rate| (rate, lately.bytes_per_s, rates(None, Some(rate))));
    targets.extend(iops.into_iter().chain(bytes).map(|(reserved, got, what)| {
        let verdict = match asks_for_more {
            _ if got >= AS_GUARANTEED * reserved as f64 => Verdict::Met,
            true => Verdict::Missed,
            false => Verdict::Idle,
        };
        Target { what, kind: Kind::Reservation, verdict }
    }));
    targets
}

/// The throttle of a tenant for its pool's latency target; `None` if the tenant is not throttled for the target.
pub fn for_target(tenant: &TenantState) -> Option<ThrottledBy> {
    let throttled = tenant.throttled.as_ref()?;
    let by = throttled.slots_owner.clone();
    let how = format!("{}, {} ms delay", counted(throttled.slots, "slot"), ms(throttled.delay_ms));
    let because = explain::throttled_for_target(&by, &throttled.because);
    Some(ThrottledBy { by, cause: Cause::LatencyTarget, how, because })
}

/// The throttle of the tenant itself, the first that applies of: the pool's latency target, the limit, the slots.
fn throttled_by(tenant: &TenantState, lately: &Lately) -> Option<ThrottledBy> {
    if let Some(by) = for_target(tenant) {
        return Some(by);
    }
    if let Some((by, how)) = at_limit(&tenant.limit, lately) {
        let guarantee = tenant.guarantees.iter().find(|guarantee| guarantee.binding == by);
        let because =
            guarantee.map_or_else(|| explain::at_limit("it", &how, &by), |guarantee| guarantee.because.clone());
        let because = with_total(tenant, &by, because);
        return Some(ThrottledBy { by, cause: Cause::Limit, how, because });
    }
    let slots = tenant.slots.as_ref()?;
    let granted = slots.granted.filter(|&granted| slots.used >= AT_LIMIT * granted)?;
    let (by, how, because) = ("slots".into(), counted_figure(granted, "slot"), slots.because.clone());
    Some(ThrottledBy { by, cause: Cause::Slots, how, because })
}

/// The throttle of a tenant whose requests wait for its own limit although their rate is below it; `None` if the limit of its
/// pool is lower. The caller checks that the pool is not at its limit and that its budget has room.
fn spaced_by_own(tenant: &TenantState, work: &Counts, window_s: f64, pool: &LimitState) -> Option<ThrottledBy> {
    let is_lower = |own: Option<u64>, pool: Option<u64>| own.is_some_and(|own| pool.is_none_or(|pool| own <= pool));
    let limit = &tenant.limit;
    let is_tighter = is_lower(limit.iops, pool.iops) || is_lower(limit.bytes_per_s, pool.bytes_per_s);
    let waits = is_tighter && tenant.queued_requests > 0 && work.has_backlog(window_s);
    let (by, how) = limit_of(limit).filter(|(by, _)| waits && by == "operator")?;
    let because = with_total(tenant, &by, explain::spaced("the tenant", &how, &by));
    Some(ThrottledBy { by, cause: Cause::Limit, how, because })
}

/// The reason `because` for a throttle by the limit of the owner `by`, with the total of which this limit is a part in a cluster.
fn with_total(tenant: &TenantState, by: &str, because: String) -> String {
    let (iops, bytes_per_s) = (tenant.qos.limit_iops, tenant.qos.limit_bytes_per_s);
    let is_part = by == "operator" && tenant.parts.is_some() && (iops.is_some() || bytes_per_s.is_some());
    if is_part {
        format!(
            "{because}: this is this host's part of the limit of {} over all hosts of the cluster",
            rates(iops, bytes_per_s)
        )
    } else {
        because
    }
}

/// The throttle of a volume whose requests wait for its limit; `None` without one.
pub fn at_limit_of_volume(volume: &str, limit: &LimitState) -> Option<ThrottledBy> {
    let (by, how) = limit_of(limit)?;
    let because = explain::at_limit(&format!("volume {volume}"), &how, &by);
    Some(ThrottledBy { by, cause: Cause::Limit, how, because })
}

/// Owner and amount of a limit, whatever the rate; `None` without one.
fn limit_of(limit: &LimitState) -> Option<(String, String)> {
    let set = |limit: Option<u64>, owner: &Option<String>| limit.map(|_| owner.clone());
    let owner = set(limit.iops, &limit.iops_owner).or(set(limit.bytes_per_s, &limit.bytes_per_s_owner))?;
    Some((owner.unwrap_or_else(|| "operator".into()), rates(limit.iops, limit.bytes_per_s)))
}

/// Owner and amount of a limit that the rate has reached; `None` if it has reached no limit.
fn at_limit(limit: &LimitState, lately: &Lately) -> Option<(String, String)> {
    let is_at = |limit: Option<u64>, rate: f64| limit.is_some_and(|limit| rate >= AT_LIMIT * limit as f64);
    let owner = |owner: &Option<String>| owner.clone().unwrap_or_else(|| "operator".into());
    if is_at(limit.iops, lately.iops) {
        return Some((owner(&limit.iops_owner), rates(limit.iops, None)));
    }
    is_at(limit.bytes_per_s, lately.bytes_per_s)
        .then(|| (owner(&limit.bytes_per_s_owner), rates(None, limit.bytes_per_s)))
}
