//! Collects the statistics of a run while it is simulated.

use evenkeel_control::admission::Decision;
use evenkeel_control::mclock::Qos;
use evenkeel_control::units::{Kind, Rates};
use evenkeel_control::{Duration, Instant};

use super::result::{
    BudgetSpread, Completion, Deficit, NO_BOUND_BYTES, Run, Sample, Served, TenantResult, TenantSample,
};
use super::{Setup, Tenant};

/// Length of the windows over which reservations are judged.
const DEFICIT_WINDOW: Duration = Duration::from_secs(1);
/// Length of the last part of a window; a request submitted in it need not be completed by the window's end.
const DEFICIT_EDGE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Meter {
    from: Instant,
    tenants: Vec<TenantMeter>,
    budget: BudgetMeter,
    series: Vec<Sample>,
}

#[derive(Debug)]
struct TenantMeter {
    result: TenantResult,
    /// Completions since the last sample.
    served: Served,
    /// Latencies of the completions since the last sample, in nanoseconds.
    responses_ns: Vec<u64>,
    /// The tenant's reservation, with its shortage so far.
    guarantee: Guarantee,
}

impl Meter {
    pub(super) fn new(setup: &Setup, budget_bytes: u64) -> Self {
        let from = Instant::ZERO + setup.warmup;
        let tenant = |tenant: &Tenant| TenantMeter {
            result: TenantResult { name: tenant.name.clone(), ..TenantResult::default() },
            served: Served::default(),
            responses_ns: Vec::new(),
            guarantee: Guarantee::new(from, tenant.qos.reservation),
        };
        Self {
            from,
            tenants: setup.tenants.iter().map(tenant).collect(),
            budget: BudgetMeter::new(from, budget_bytes),
            series: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn submitted(&mut self, now: Instant, tenant: usize, bytes: u32) {
        self.tenants[tenant].guarantee.submitted(now, bytes);
    }

    #[inline]
    pub(super) fn completed(&mut self, now: Instant, tenant: usize, completion: &Completion) {
        let tenant = &mut self.tenants[tenant];
        tenant.guarantee.completed(now, completion.bytes);
        if now < self.from {
            return;
        }
        let response = now.since(completion.sent_at);
        let result = &mut tenant.result;
        result.requests += 1;
        result.bytes += u64::from(completion.bytes);
        if completion.kind == Kind::Read {
            result.read_bytes += u64::from(completion.bytes);
        }
        result.response.record(response);
        result.queue_wait.record(completion.admitted_at.since(completion.entered_at));
        result.device.record(completion.left_at.since(completion.admitted_at));
        result.inversion = result.inversion + completion.inversion;
        tenant.responses_ns.push(response.as_nanos());
        let (bytes, response_ns) = (u64::from(completion.bytes), response.as_nanos());
        tenant.served.add(&Served { requests: 1, bytes, response_ns });
    }

    #[inline]
    pub(super) fn budget(&mut self, now: Instant, bytes: u64) {
        if bytes != self.budget.bytes {
            self.budget.change(now, bytes);
        }
    }

    pub(super) fn set_qos(&mut self, now: Instant, tenant: usize, qos: &Qos) {
        let guarantee = &mut self.tenants[tenant].guarantee;
        guarantee.close_windows(now);
        guarantee.reservation = qos.reservation;
    }

    pub(super) fn sample(&mut self, at: Instant, decision: &Decision, in_flight_bytes: u64, queued: usize) {
        let tenants = self.tenants.iter_mut().map(TenantMeter::sample).collect();
        self.series.push(Sample {
            at,
            budget_bytes: decision.budget_bytes,
            target: decision.target,
            reason: decision.reason,
            target_reason: decision.target_reason,
            in_flight_bytes,
            queued,
            tenants,
        });
    }

    pub(super) fn finish(mut self, end: Instant, seed: u64, events: u64) -> Run {
        self.budget.change(end, self.budget.bytes);
        let finish = |mut tenant: TenantMeter| {
            tenant.guarantee.close_windows(end);
            TenantResult { deficit: tenant.guarantee.deficit, ..tenant.result }
        };
        Run {
            seed,
            counted_from: self.from,
            counted: end.since(self.from),
            tenants: self.tenants.into_iter().map(finish).collect(),
            budget: self.budget.spread(),
            series: self.series,
            events,
            workers: Vec::new(),
            moves: 0,
        }
    }
}

impl TenantMeter {
    fn sample(&mut self) -> TenantSample {
        let served = std::mem::take(&mut self.served);
        let place = (self.responses_ns.len() * 99).div_ceil(100).saturating_sub(1);
        let p99_ns = if self.responses_ns.is_empty() { 0 } else { *self.responses_ns.select_nth_unstable(place).1 };
        self.responses_ns.clear();
        TenantSample { served, p99_response: Duration::from_nanos(p99_ns) }
    }
}

/// A tenant's reservation, compared with its requests and completions.
#[derive(Debug, Default)]
struct Guarantee {
    reservation: Rates,
    from: Instant,
    window_end: Instant,
    outstanding: Amount,
    /// Requests that were outstanding when the present window began.
    left: Amount,
    /// Requests submitted in the present window.
    submitted: Amount,
    /// Requests submitted in the last [`DEFICIT_EDGE`] of the present window.
    submitted_last: Amount,
    /// Requests completed in the present window.
    served: Amount,
    /// Completions due for the reservation and missing, in the windows judged so far.
    deficit: Deficit,
}

#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    requests: u64,
    bytes: u64,
}

impl Amount {
    #[inline]
    fn add(&mut self, bytes: u32) {
        self.requests += 1;
        self.bytes += u64::from(bytes);
    }
}

impl Guarantee {
    fn new(from: Instant, reservation: Rates) -> Self {
        Self { reservation, from, window_end: from, ..Self::default() }
    }

    #[inline]
    fn submitted(&mut self, now: Instant, bytes: u32) {
        self.close_windows(now);
        for amount in [&mut self.outstanding, &mut self.submitted] {
            amount.add(bytes);
        }
        if self.window_end.since(now) <= DEFICIT_EDGE {
            self.submitted_last.add(bytes);
        }
    }

    #[inline]
    fn completed(&mut self, now: Instant, bytes: u32) {
        self.close_windows(now);
        self.served.requests += 1;
        self.served.bytes += u64::from(bytes);
        self.outstanding.requests -= 1;
        self.outstanding.bytes -= u64::from(bytes);
    }

    /// Judges the windows that ended by `now`. The warm-up counts as one window, which is not judged.
    #[inline]
    fn close_windows(&mut self, now: Instant) {
        while now >= self.window_end {
            if self.window_end > self.from {
                self.judge();
            }
            self.window_end += DEFICIT_WINDOW;
            self.left = self.outstanding;
            (self.submitted, self.submitted_last, self.served) = Default::default();
        }
    }

    fn judge(&mut self) {
        let due = |of: fn(&Amount) -> u64| {
            of(&self.left) + of(&self.submitted) - of(&self.submitted_last).min(of(&self.outstanding))
        };
        let short = |guaranteed: u64, of: fn(&Amount) -> u64| guaranteed.min(due(of)).saturating_sub(of(&self.served));
        let requests = short(self.reservation.iops, |amount| amount.requests);
        let bytes = short(self.reservation.bytes_per_s, |amount| amount.bytes);
        self.deficit.requests += requests;
        self.deficit.bytes += bytes;
        self.deficit.windows += u64::from(requests > 0 || bytes > 0);
    }
}

/// Sums from which mean and standard deviation of the admission budget over time are computed.
#[derive(Debug)]
struct BudgetMeter {
    bytes: u64,
    since: Instant,
    from: Instant,
    seconds: f64,
    sum: f64,
    squares: f64,
    min: u64,
    max: u64,
}

impl BudgetMeter {
    fn new(from: Instant, bytes: u64) -> Self {
        Self { bytes, since: Instant::ZERO, from, seconds: 0.0, sum: 0.0, squares: 0.0, min: u64::MAX, max: 0 }
    }

    /// Counts the present budget for the time up to `now`. From `now` on the budget is `bytes`.
    fn change(&mut self, now: Instant, bytes: u64) {
        if now > self.from {
            let value = self.bytes.min(NO_BOUND_BYTES) as f64;
            let seconds = now.since(self.since.max(self.from)).as_secs_f64();
            self.seconds += seconds;
            self.sum += value * seconds;
            self.squares += value * value * seconds;
            self.min = self.min.min(self.bytes);
            self.max = self.max.max(self.bytes);
        }
        (self.since, self.bytes) = (now, bytes);
    }

    fn spread(&self) -> BudgetSpread {
        let (min_bytes, max_bytes) = (self.min, self.max);
        if min_bytes == u64::MAX {
            return BudgetSpread { mean_bytes: f64::INFINITY, cv: 0.0, min_bytes, max_bytes };
        }
        let mean_bytes = self.sum / self.seconds;
        let variance = (self.squares / self.seconds - mean_bytes * mean_bytes).max(0.0);
        // Exactly 0 for a constant, whatever the rounding.
        let cv = if min_bytes == max_bytes { 0.0 } else { libm::sqrt(variance) / mean_bytes };
        BudgetSpread { mean_bytes, cv, min_bytes, max_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn each_budget_counts_for_as_long_as_it_was_in_force() {
        let mut meter = BudgetMeter::new(at(1_000), 100);
        meter.change(at(500), 7);
        meter.change(at(900), 100);
        meter.change(at(4_000), 300);
        meter.change(at(5_000), 300);
        let spread = meter.spread();
        // 100 for 3 s and 300 for 1 s: mean 150, variance 7,500.
        assert_eq!((spread.min_bytes, spread.max_bytes), (100, 300));
        assert!((spread.mean_bytes - 150.0).abs() < 1e-9);
        assert!((spread.cv - 7_500f64.sqrt() / 150.0).abs() < 1e-9);
    }

    #[test]
    fn a_request_at_the_edge_of_a_window_is_no_deficit() {
        let mut guarantee = Guarantee::new(at(1_000), Rates { iops: 200, bytes_per_s: 102_400 });
        // One after the other, each takes 5 ms: one is always under way.
        guarantee.submitted(at(2), 512);
        for n in 0..2_000 {
            guarantee.completed(at(7 + 5 * n), 512);
            guarantee.submitted(at(7 + 5 * n), 512);
        }
        assert_eq!(guarantee.deficit, Deficit::default());
    }

    #[test]
    fn a_reservation_is_judged_by_what_was_asked_and_only_in_counted_time() {
        let mut guarantee = Guarantee::new(at(1_000), Rates { iops: 10, bytes_per_s: 0 });
        // Not counted: 8 asked, none served.
        (0..8).for_each(|_| guarantee.submitted(at(10), 512));
        // First window: 8 left over, 5 served. Second: the 3 left. Third: 20 asked, 10 guaranteed, 4 served.
        (0..5).for_each(|_| guarantee.completed(at(1_500), 512));
        (0..3).for_each(|_| guarantee.completed(at(2_999), 512));
        (0..20).for_each(|_| guarantee.submitted(at(3_000), 512));
        (0..4).for_each(|_| guarantee.completed(at(3_500), 512));
        // Cut short: not judged.
        guarantee.close_windows(at(4_500));
        assert_eq!(guarantee.deficit, Deficit { requests: 3 + 6, bytes: 0, windows: 2 });
    }
}
