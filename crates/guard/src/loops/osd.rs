//! Control of an OSD's throttle: from the OSD's counters to a budget in bytes, with a reason.
//!
//! ```text
//!  perf dump ─▶ Mind::sample ─▶ control::admission ─▶ bluestore_throttle_bytes, records
//! ```
//!
//! Counters are sums over a sampling interval, not single requests. At the end of an interval the controller observes the
//! requests that have reached the device in the interval, each with the mean cost and the mean latency, as if the device had
//! completed them in a batch. The smallest mean latency of an interval takes the place of the smallest latency of a request.

use std::collections::VecDeque;

use evenkeel_control::admission::{Admission, Config, Decision};
use evenkeel_control::log::{Decided, Log};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::config::Enforcement;
use evenkeel_policy::decision::{DecisionRecord, Unit, seconds};
use evenkeel_policy::explain::{self, ReasonData};

use super::MAX_RECORDS;
use super::osd_order::Order;
use crate::sensor::osd::Counters;

/// Largest number of requests that the controller observes for one sample; if there were more, each observed request stands
/// for several. The controller compares blocks of at least 16 requests.
const MAX_TOLD: u64 = 2_000;
/// Factor by which each sample fades the earlier ones in the ratio of bytes written to cost, so that the ratio covers about
/// the latest 250 samples.
const RATIO_MEMORY: f64 = 1.0 - 1.0 / 256.0;
/// Number of sampling intervals over which the time that requests waited at the throttle is averaged: long enough that even a
/// slow device commits several times.
const WAITS: usize = 8;
/// Upper bound in bytes on the throttle of an OSD that had no bound itself: 16 times BlueStore's default.
const NO_BOUND_BYTES: u64 = 1 << 30;
/// For `elastic`: number of mean latencies that must pass after a change until the throughput counts as the new budget's. The
/// store commits in batches, and in the first batches a doubled budget brings 2 to 4 % less throughput than later.
const STEADY_LATENCIES: u64 = 3;
/// Age of a sample, in sampling intervals, from which it is not compared with the next sample any more.
const MAX_GAP_INTERVALS: u64 = 25;

/// The way in which [`Mind::sample`] has used a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The sample was the first, or the first after a gap: there is no earlier sample to compare it with.
    First,
    /// The OSD's counters began anew: the OSD was restarted, or its counters were reset.
    Anew,
    /// The sample was compared with the previous one, and a decision was made.
    Counted,
}

/// An OSD's figures in the last sampling interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Length of the interval.
    pub window_s: f64,
    /// Mean time from passing the throttle to being committed; `None` if no transaction was committed.
    pub store_latency_ms: Option<f64>,
    /// Transactions committed per second.
    pub commits_per_s: f64,
    /// Cost of the committed transactions per second: bytes, and the base cost that BlueStore charges for each.
    pub cost_bytes_per_s: f64,
    /// Cost of the transactions in flight.
    pub in_flight_bytes: u64,
    /// Transactions that wait at the throttle; a thread of the OSD waits with each.
    pub waiting: u64,
}

/// The controller of one OSD, with the state that it needs from sample to sample.
pub struct Mind {
    admission: Admission,
    interval: Duration,
    before: Option<(Instant, Counters)>,
    order: Order,
    /// The latest [`WAITS`] samples: time of the sample, and the OSD's running total, at that time, of the seconds that
    /// requests have waited at the throttle.
    waits: VecDeque<(Instant, f64)>,
    /// The OSD's throttle in bytes before the agent set it: upper bound on budgets.
    most: u64,
    /// Total cost, in bytes, of the requests that had reached the device by the previous sample.
    reached: u64,
    /// Sum of the bytes that clients wrote, in which older samples fade.
    written: f64,
    /// Sum of the cost of these writes in bytes, in which older samples fade in the same way.
    cost: f64,
    measured: Measured,
    decisions: Log<Budget>,
    samples: u64,
}

impl Mind {
    /// A controller that starts at `now` and takes a sample every `interval`; `seed` seeds the random choices of its
    /// exploration.
    pub fn new(config: Config, interval: Duration, now: Instant, seed: u64) -> Self {
        Self {
            admission: Admission::new(config, now, seed),
            interval,
            before: None,
            order: Order::default(),
            waits: VecDeque::with_capacity(WAITS),
            most: NO_BOUND_BYTES,
            reached: 0,
            written: 0.0,
            cost: 0.0,
            measured: Measured::default(),
            decisions: Log::new(MAX_RECORDS),
            samples: 0,
        }
    }

    /// Takes in the OSD's counters as read at `now`, and decides on the budget.
    pub fn sample(&mut self, now: Instant, counters: &Counters) -> Taken {
        self.samples += 1;
        // However long ago: an OSD that starts takes longer than a gap.
        if self.before.is_some_and(|(_, before)| !counters.continue_from(&before)) {
            self.forget(now, counters);
            return Taken::Anew;
        }
        let before =
            self.before.filter(|(at, _)| now.since(*at).as_nanos() / MAX_GAP_INTERVALS < self.interval.as_nanos());
        let Some((at, before)) = before else {
            self.forget(now, counters);
            return Taken::First;
        };
        self.before = Some((now, *counters));
        self.measure(now.since(at), &before, counters);
        self.tell(now, now.since(at), &before, counters);
        self.admission.tick(now);
        let decision = Decision { budget_bytes: self.budget_bytes(), ..*self.admission.decision() };
        self.decisions.record(now, Budget(decision));
        Taken::Counted
    }

    /// Makes these counters the first sample, because the activity before `now` is unknown; the controller keeps its
    /// estimates.
    fn forget(&mut self, now: Instant, counters: &Counters) {
        self.before = Some((now, *counters));
        self.admission.forget(self.admission.in_flight_bytes());
        self.order.forget();
        self.waits.clear();
        self.reached = self.cost_reached(counters);
        self.admission.admit(counters.bytes.get_sum.saturating_sub(self.reached));
        self.measured = Measured { in_flight_bytes: counters.bytes.val, ..Measured::default() };
    }

    fn measure(&mut self, took: Duration, before: &Counters, counters: &Counters) {
        let seconds = took.as_secs_f64().max(f64::MIN_POSITIVE);
        let since = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let cost = since(counters.bytes.get_sum, before.bytes.get_sum);
        self.cost = self.cost * RATIO_MEMORY + cost;
        self.written *= RATIO_MEMORY;
        // Without it the cost stands for it: a ratio of 1.
        self.written += match (counters.store.payload(), before.store.payload()) {
            (Some(now), Some(before)) => since(now, before),
            _ => cost,
        };
        self.measured = Measured {
            window_s: took.as_secs_f64(),
            store_latency_ms: counters.store.latency_since(&before.store).map(|seconds| seconds * 1e3),
            commits_per_s: since(counters.store.committed(), before.store.committed()) / seconds,
            cost_bytes_per_s: since(counters.bytes.put_sum, before.bytes.put_sum) / seconds,
            in_flight_bytes: counters.bytes.val,
            waiting: counters.bytes.waiting(),
        };
    }

    fn cost_reached(&mut self, counters: &Counters) -> u64 {
        self.order.cost_reached(counters.bytes.get, counters.bytes.get_sum, counters.store.reached_device())
    }

    /// Bytes that clients wrote divided by the cost in bytes, 0 to 1. Bytes and cost are both counted when requests come in,
    /// and so do not measure the store's throughput while the budget changes.
    fn payload_ratio(&self) -> f64 {
        if self.cost > 0.0 { (self.written / self.cost).clamp(0.0, 1.0) } else { 1.0 }
    }

    fn tell(&mut self, now: Instant, took: Duration, before: &Counters, counters: &Counters) {
        let got = counters.bytes.get_sum - before.bytes.get_sum;
        let reached = self.cost_reached(counters);
        let told = (counters.store.reached_device() - before.store.reached_device()).min(MAX_TOLD);
        let held = (self.held_back(now, before, counters) * told as f64).round() as u64;
        let latency = self.latency(took, before, counters);
        let ratio = self.payload_ratio();
        if told == 0 {
            self.admission.set_waiting(counters.bytes.waiting() > 0);
            self.admission.admit(got);
            return;
        }
        let done = reached.saturating_sub(core::mem::replace(&mut self.reached, reached));
        let part = |sum: u64, index: u64| (u128::from(sum) * u128::from(index) / u128::from(told)) as u64;
        for index in 0..told {
            self.admission.admit(part(got, index + 1) - part(got, index));
            // Rounding and the moment between two questions must not make it less than nothing.
            let cost = (part(done, index + 1) - part(done, index)).min(self.admission.in_flight_bytes());
            self.admission.set_waiting(index < held);
            self.admission.observe(now, cost, Kind::Write, (cost as f64 * ratio) as u64, latency);
        }
        self.admission.set_waiting(counters.bytes.waiting() > 0);
    }

    /// Share (0 to 1) of the interval's requests during which another request waited at the throttle: 1 if a request waits at
    /// both ends of the interval. Otherwise the share of requests that had to wait or, if larger, the mean number of threads
    /// that waited: a request that comes while all threads wait at the throttle waits inside the scheduler, and the OSD does
    /// not count it. The mean is taken over several intervals, since after each commit there is room for a while.
    fn held_back(&mut self, now: Instant, before: &Counters, counters: &Counters) -> f64 {
        if self.waits.len() == WAITS {
            self.waits.pop_front();
        }
        let (wait, earlier) = (counters.bytes.wait, before.bytes.wait);
        let (since, sum) = self.waits.front().copied().unwrap_or((now, wait.sum));
        self.waits.push_back((now, wait.sum));
        if counters.bytes.waiting() > 0 && before.bytes.waiting() > 0 {
            return 1.0;
        }
        let committed = counters.store.committed() - before.store.committed();
        let waited = (wait.avgcount - earlier.avgcount) as f64 / committed.max(1) as f64;
        let threads = (wait.sum - sum) / now.since(since).as_secs_f64().max(f64::MIN_POSITIVE);
        waited.max(threads).clamp(0.0, 1.0)
    }

    /// The latency that the controller observes. `elastic` decides by latency and time of completion, and must not count
    /// requests that were admitted under another budget. The counters only show that requests were committed since the
    /// previous sample. So the age of a request counts from that sample, and several latencies have to pass until the store
    /// is steady.
    fn latency(&self, took: Duration, before: &Counters, counters: &Counters) -> Duration {
        let mean = counters.store.latency_since(&before.store).unwrap_or(0.0);
        let mean = Duration::from_nanos((mean * 1e9) as u64);
        match self.admission.config() {
            Config::Elastic(_) => Duration::from_nanos(mean.as_nanos() * STEADY_LATENCIES + took.as_nanos()),
            _ => mean,
        }
    }

    /// Limits budgets to `throttle_bytes`, the OSD's throttle while the agent has set nothing; 0 means that the OSD has no
    /// throttle.
    pub fn limit(&mut self, throttle_bytes: u64) {
        self.most = if throttle_bytes == 0 { NO_BOUND_BYTES } else { throttle_bytes };
    }

    /// The budget: bytes that may be in flight in the store, to be set as its throttle. Only a fixed budget of the policy may
    /// exceed [the limit](Self::limit).
    pub fn budget_bytes(&self) -> u64 {
        let budget = self.admission.decision().budget_bytes;
        if matches!(self.admission.config(), Config::Fixed { .. }) { budget } else { budget.min(self.most) }
    }

    /// The newest decision, with its reason.
    pub fn decision(&self) -> &Decision {
        self.admission.decision()
    }

    /// Name of the controller's admission method.
    pub fn method(&self) -> &'static str {
        self.admission.config().name()
    }

    /// The OSD's figures in the newest sampling interval.
    pub fn measured(&self) -> Measured {
        self.measured
    }

    /// Number of samples taken in since the start.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The log of decisions, oldest first.
    pub fn decisions(&self) -> &Log<Budget> {
        &self.decisions
    }
}

impl Budget {
    /// The decisions of `log` as records, oldest first; `osd` is the name of the OSD.
    pub fn records(log: &Log<Self>, osd: &str) -> impl Iterator<Item = DecisionRecord> {
        log.iter().map(|entry| {
            let Budget(decision) = &entry.decision;
            DecisionRecord {
                point: Enforcement::Osd,
                pool: osd.to_owned(),
                reason: ReasonData::from(&decision.reason).kind,
                because: explain::admission(&decision.reason),
                set: Some(decision.budget_bytes as f64),
                set_in: Unit::Bytes,
                ..DecisionRecord::of(entry, seconds)
            }
        })
    }
}

/// A decision on the budget, as the log keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Budget(Decision);

impl Decided for Budget {
    fn is_renewed_by(&self, newer: &Self) -> bool {
        std::mem::discriminant(&self.0.reason) == std::mem::discriminant(&newer.0.reason)
    }

    fn figure(&self) -> Option<f64> {
        Some(self.0.budget_bytes as f64)
    }
}

impl std::fmt::Debug for Mind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mind").field("decision", self.admission.decision()).field("measured", &self.measured).finish()
    }
}

#[cfg(test)]
#[path = "osd_tests.rs"]
mod tests;
