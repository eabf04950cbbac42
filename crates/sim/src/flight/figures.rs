//! Figures of a load as it was recorded or as it was simulated: rates, percentiles, and the seconds in which targets were missed.

use evenkeel_control::Duration;
use evenkeel_flight::Kind;
use evenkeel_policy::tenant::{Of, Percentile};
use serde::Serialize;

use super::load::{Load, Sent};
use crate::world::Latencies;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Index of the tenant.
    pub tenant: usize,
    /// Kind as recorded.
    pub kind: Kind,
    /// Payload in bytes.
    pub bytes: u32,
    /// Completion, in nanoseconds since the start.
    pub at_ns: u64,
    /// From arrival to completion, in nanoseconds.
    pub latency_ns: u64,
    /// From arrival to admission, in nanoseconds.
    pub queue_ns: u64,
    /// From admission to completion, in nanoseconds.
    pub device_ns: u64,
}

impl Done {
    /// The completion of a request as it was recorded.
    pub fn recorded(request: &Sent) -> Self {
        Self {
            tenant: request.tenant,
            kind: request.kind,
            bytes: request.io.bytes,
            at_ns: request.completion_ns(),
            latency_ns: request.queue_ns.saturating_add(request.device_ns),
            queue_ns: request.queue_ns,
            device_ns: request.device_ns,
        }
    }
}

/// A latency target that figures are judged by.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Index of the tenant; `None`: all tenants of the pool.
    pub tenant: Option<usize>,
    /// Upper bound on the statistic.
    pub time: Duration,
    /// Statistic of the latencies.
    pub percentile: Percentile,
    /// The requests that count.
    pub of: Of,
}

impl Target {
    fn counts(&self, done: &Done) -> bool {
        let kind = match self.of {
            Of::Reads => done.kind == Kind::Read,
            Of::Writes => done.kind == Kind::Write,
            Of::All => true,
        };
        kind && self.tenant.is_none_or(|tenant| tenant == done.tenant)
    }

    /// The target in words: `bulk: p99 of reads at most 20 ms`.
    pub fn words(&self, tenants: &[String]) -> String {
        let who = self.tenant.and_then(|tenant| tenants.get(tenant)).map_or("pool", String::as_str);
        let of = match self.of {
            Of::Reads => "reads",
            Of::Writes => "writes",
            Of::All => "all requests",
        };
        let time = evenkeel_policy::figures::milliseconds(self.time.as_millis_f64());
        format!("{who}: {} of {of} at most {time}", self.percentile)
    }
}

/// The requests of a target that completed in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests whose latency exceeded the target's time.
    pub over: u64,
    /// Sum of the latencies, in nanoseconds.
    pub sum_ns: u64,
}

impl Second {
    /// Adds the requests of another second.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.over += other.over;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// True if these requests meet the target; also without any.
    pub fn meets(&self, target: &Target) -> bool {
        match target.percentile {
            Percentile::Mean => self.sum_ns <= target.time.as_nanos().saturating_mul(self.requests),
            // A percentile is at most the target's time if no larger share of the requests takes longer.
            Percentile::At(percent) => self.over as f64 <= (1.0 - percent / 100.0) * self.requests as f64 + 1e-9,
        }
    }
}

/// The figures of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TenantFigures {
    /// Name of the tenant.
    pub tenant: String,
    /// Completed requests.
    pub requests: u64,
    /// Seconds from the tenant's first arrival to its last completion; of a sample without the time between its runs.
    pub seconds: f64,
    /// Requests per second over this time.
    pub iops: f64,
    /// Payload bytes per second over this time.
    pub bytes_per_s: f64,
    /// Mean latency, in milliseconds.
    pub mean_ms: f64,
    /// Median latency, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the latency, in milliseconds.
    pub p99_ms: f64,
    /// 99.9th percentile of the latency, in milliseconds.
    pub p999_ms: f64,
    /// Mean queue latency, in milliseconds: the time for which a request was throttled.
    pub throttled_ms: f64,
    /// Share of the requests' time that was queue latency, 0 to 1.
    pub throttled: f64,
    /// Seconds in which a target of the tenant was missed.
    pub missed_s: u64,
}

/// The figures of the device for one kind of request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindFigures {
    /// `reads`, `writes`, `flushes` or `others`.
    pub kind: &'static str,
    /// Completed requests.
    pub requests: u64,
    /// Median of the device latency, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the device latency, in milliseconds.
    pub p99_ms: f64,
}

/// A target with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetFigures {
    /// The target in words.
    pub target: String,
    /// The target's time, in milliseconds.
    pub target_ms: f64,
    /// The statistic over all requests, in milliseconds.
    pub achieved_ms: f64,
    /// True if there are requests, and the statistic over all of them is within the target.
    pub met: bool,
    /// Seconds with requests.
    pub seconds: u64,
    /// Seconds with requests in which the target was missed.
    pub missed_s: u64,
    /// The requests of each second, from the start.
    #[serde(skip)]
    pub course: Vec<Second>,
}

/// The figures of a tenant in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Completed requests.
    pub requests: u64,
    /// Their payload in bytes.
    pub bytes: u64,
    /// 99th percentile of their latency, in nanoseconds; 0 without requests.
    pub p99_ns: u64,
}

/// The figures of a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Seconds from the first arrival to the last completion.
    pub seconds: f64,
    /// Requests that did not complete in the time that was simulated.
    pub unfinished: u64,
    /// The tenants, in the order of the load.
    pub tenants: Vec<TenantFigures>,
    /// The device, by kind of request; kinds without requests are left out.
    pub kinds: Vec<KindFigures>,
    /// The latency targets.
    pub targets: Vec<TargetFigures>,
    /// For each second, from the start: the figures of each tenant; none of a second without requests.
    #[serde(skip)]
    pub course: Vec<Vec<Moment>>,
}

impl TargetFigures {
    /// The verdict in words.
    pub fn verdict(&self) -> &'static str {
        match (self.seconds, self.met) {
            (0, _) => "not judged, no requests",
            (_, true) => "met",
            (_, false) => "missed",
        }
    }
}

impl Figures {
    /// Payload bytes per second of all tenants, each over its own time.
    pub fn bytes_per_s(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.bytes_per_s).sum()
    }

    /// True if all requests completed, and all latency targets are met over all requests; a target without requests is not met.
    pub fn meets_targets(&self) -> bool {
        self.unfinished == 0 && self.targets.iter().all(|target| target.met)
    }
}

#[derive(Debug, Default)]
struct TenantTally {
    requests: u64,
    bytes: u64,
    /// Time of the earlier runs: from the first arrival to the last completion of each, and what counts beside it.
    earlier_ns: u64,
    /// First arrival of the present run.
    first_ns: Option<u64>,
    last_ns: u64,
    latency: Latencies,
    queue_ns: u128,
    latency_ns: u128,
    /// Latencies of the present second.
    recent_ns: Vec<u64>,
    recent_bytes: u64,
}

impl TenantTally {
    /// Time from the first arrival to the last completion of the present run, in nanoseconds.
    fn run_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns))
    }
}

/// Collects the figures of requests, which come in order of completion. O(1) a request.
#[derive(Debug)]
pub struct Tally<'a> {
    names: &'a [String],
    targets: &'a [Target],
    tenants: Vec<TenantTally>,
    kinds: [Latencies; 4],
    /// For each target: latencies, and the requests by second.
    of_targets: Vec<(Latencies, Vec<Second>)>,
    course: Vec<Vec<Moment>>,
    /// Number of requests in the present second.
    in_second: u64,
    total: u64,
    last_ns: u64,
}

/// Names of the kinds in results, in order of their places.
const KINDS: [&str; 4] = ["reads", "writes", "flushes", "others"];

/// The place of a kind in [`KINDS`].
pub(super) fn place_of(kind: Kind) -> usize {
    match kind {
        Kind::Read => 0,
        Kind::Write => 1,
        Kind::Flush => 2,
        Kind::Trim | Kind::Zero | Kind::Other => 3,
    }
}

/// The name in results of the kind at a place.
pub(super) fn kind_name(place: usize) -> &'static str {
    KINDS[place.min(KINDS.len() - 1)]
}

impl<'a> Tally<'a> {
    /// A tally without requests, of tenants with these names.
    pub fn new(names: &'a [String], targets: &'a [Target]) -> Self {
        Self {
            names,
            targets,
            tenants: names.iter().map(|_| TenantTally::default()).collect(),
            kinds: std::array::from_fn(|_| Latencies::default()),
            of_targets: targets.iter().map(|_| Default::default()).collect(),
            course: Vec::new(),
            in_second: 0,
            total: 0,
            last_ns: 0,
        }
    }

    /// Number of requests so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The last completion so far, in nanoseconds since the start.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Counts a request.
    pub fn add(&mut self, done: &Done) {
        let second = usize::try_from(done.at_ns / SECOND).unwrap_or(usize::MAX);
        while self.course.len() < second {
            self.close_second();
        }
        self.total += 1;
        self.in_second += 1;
        self.last_ns = self.last_ns.max(done.at_ns);
        self.kinds[place_of(done.kind)].record(Duration::from_nanos(done.device_ns));
        for (target, (latencies, course)) in self.targets.iter().zip(&mut self.of_targets) {
            if target.counts(done) {
                latencies.record(Duration::from_nanos(done.latency_ns));
                if course.len() <= second {
                    course.resize(second + 1, Second::default());
                }
                let over = u64::from(done.latency_ns > target.time.as_nanos());
                course[second].add(&Second { requests: 1, over, sum_ns: done.latency_ns });
            }
        }
        let Some(tenant) = self.tenants.get_mut(done.tenant) else { return };
        let arrival_ns = done.at_ns.saturating_sub(done.latency_ns);
        tenant.requests += 1;
        tenant.bytes += u64::from(done.bytes);
        tenant.first_ns = Some(tenant.first_ns.map_or(arrival_ns, |first| first.min(arrival_ns)));
        tenant.last_ns = tenant.last_ns.max(done.at_ns);
        tenant.latency.record(Duration::from_nanos(done.latency_ns));
        tenant.queue_ns += u128::from(done.queue_ns);
        tenant.latency_ns += u128::from(done.latency_ns);
        tenant.recent_ns.push(done.latency_ns);
        tenant.recent_bytes += u64::from(done.bytes);
    }

    /// Ends a run of a sample: for the rates of a tenant counts the time from its first arrival to its last completion in the
    /// run, and beside it `idle_ns`, by tenant.
    pub fn next_run(&mut self, idle_ns: &[u64]) {
        let idle_ns = idle_ns.iter().copied().chain(std::iter::repeat(0));
        for (tenant, idle_ns) in self.tenants.iter_mut().zip(idle_ns) {
            tenant.earlier_ns = tenant.earlier_ns.saturating_add(tenant.run_ns()).saturating_add(idle_ns);
            tenant.first_ns = None;
        }
    }

    fn close_second(&mut self) {
        if std::mem::take(&mut self.in_second) == 0 {
            // A recording may have many tenants, and be idle for days.
            self.course.push(Vec::new());
            return;
        }
        let moments = self.tenants.iter_mut().map(|tenant| {
            let requests = tenant.recent_ns.len();
            let place = (requests * 99).div_ceil(100).saturating_sub(1);
            let p99_ns = if requests == 0 { 0 } else { *tenant.recent_ns.select_nth_unstable(place).1 };
            tenant.recent_ns.clear();
            Moment { requests: requests as u64, bytes: std::mem::take(&mut tenant.recent_bytes), p99_ns }
        });
        let moments = moments.collect();
        self.course.push(moments);
    }

    /// The figures of all requests; `unfinished` further ones did not complete.
    pub fn finish(mut self, unfinished: u64) -> Figures {
        self.close_second();
        let targets: Vec<TargetFigures> =
            self.targets.iter().zip(self.of_targets).map(|(target, of)| judged(target, self.names, of)).collect();
        let missed = |tenant: usize| {
            let own = self.targets.iter().zip(&targets).filter(|(target, _)| target.tenant == Some(tenant));
            own.map(|(_, figures)| figures.missed_s).max().unwrap_or(0)
        };
        let tenants = self.names.iter().zip(&self.tenants).enumerate().map(|(place, (name, tenant))| {
            let seconds = tenant.earlier_ns.saturating_add(tenant.run_ns()) as f64 / 1e9;
            let requests = tenant.requests.max(1) as f64;
            TenantFigures {
                tenant: name.clone(),
                requests: tenant.requests,
                seconds,
                iops: rate(tenant.requests, seconds),
                bytes_per_s: rate(tenant.bytes, seconds),
                mean_ms: tenant.latency.mean().as_millis_f64(),
                p50_ms: tenant.latency.p50().as_millis_f64(),
                p99_ms: tenant.latency.p99().as_millis_f64(),
                p999_ms: tenant.latency.p999().as_millis_f64(),
                throttled_ms: tenant.queue_ns as f64 / requests / 1e6,
                throttled: tenant.queue_ns as f64 / (tenant.latency_ns.max(1)) as f64,
                missed_s: missed(place),
            }
        });
        let kinds = self.kinds.iter().enumerate().filter(|(_, latencies)| latencies.count() > 0);
        let kinds = kinds.map(|(place, latencies)| KindFigures {
            kind: kind_name(place),
            requests: latencies.count(),
            p50_ms: latencies.p50().as_millis_f64(),
            p99_ms: latencies.p99().as_millis_f64(),
        });
        let (tenants, kinds) = (tenants.collect(), kinds.collect());
        Figures { seconds: self.last_ns as f64 / 1e9, unfinished, tenants, kinds, targets, course: self.course }
    }
}

/// A number by second; 0 over no time.
fn rate(number: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { number as f64 / seconds } else { 0.0 }
}

fn judged(target: &Target, names: &[String], (latencies, course): (Latencies, Vec<Second>)) -> TargetFigures {
    let mut all = Second::default();
    course.iter().for_each(|second| all.add(second));
    let achieved = match target.percentile {
        Percentile::Mean => latencies.mean(),
        Percentile::At(percent) => latencies.quantile(percent / 100.0),
    };
    let (met, target_ms, achieved_ms) = (all.meets(target), target.time.as_millis_f64(), achieved.as_millis_f64());
    TargetFigures {
        target: target.words(names),
        target_ms,
        // The verdict counts requests, the figure is rounded: it does not contradict the verdict.
        achieved_ms: if met { achieved_ms.min(target_ms) } else { achieved_ms.max(target_ms) },
        met: met && all.requests > 0,
        seconds: course.iter().filter(|second| second.requests > 0).count() as u64,
        missed_s: course.iter().filter(|second| !second.meets(target)).count() as u64,
        course,
    }
}

/// The figures of a load as it was recorded.
pub fn recorded(load: &Load, targets: &[Target]) -> Figures {
    let mut order: Vec<&Sent> = load.requests.iter().collect();
    order.sort_by_key(|request| request.completion_ns());
    let mut tally = Tally::new(&load.tenants, targets);
    let idle = load.idle();
    let mut ended = idle.iter();
    let mut begins = load.starts.iter().skip(1).copied().peekable();
    for request in order {
        while begins.next_if(|&begin_ns| request.completion_ns() >= begin_ns).is_some() {
            tally.next_run(ended.next().map_or(&[][..], Vec::as_slice));
        }
        tally.add(&Done::recorded(request));
    }
    ended.for_each(|idle_ns| tally.next_run(idle_ns));
    tally.finish(0)
}

#[cfg(test)]
mod tests {
    use super::super::policy;
    use super::super::replay::simulate;
    use super::super::tests::{recording, request};
    use super::*;

    fn done(at_ms: u64, latency_ms: u64) -> Done {
        let (at_ns, latency_ns) = (at_ms * 1_000_000, latency_ms * 1_000_000);
        Done { tenant: 0, kind: Kind::Read, bytes: 4096, at_ns, latency_ns, queue_ns: latency_ns / 4, device_ns: 0 }
    }

    #[test]
    fn a_target_is_judged_over_each_second_and_over_all() {
        let names = ["a".to_owned()];
        let (time, percentile) = (Duration::from_millis(10), Percentile::At(90.0));
        let targets = [Target { tenant: Some(0), time, percentile, of: Of::Reads }];
        let mut tally = Tally::new(&names, &targets);
        // In the second second 2 of 10 take longer; of all 20 it is 2, which is allowed.
        (0..10).for_each(|n| tally.add(&done(100 + n, 5)));
        (0..10).for_each(|n| tally.add(&done(2_100 + n, if n < 2 { 30 } else { 5 })));
        let figures = tally.finish(0);
        let [target] = &figures.targets[..] else { panic!("{:?}", figures.targets) };
        assert_eq!((target.met, target.seconds, target.missed_s), (true, 2, 1));
        assert_eq!((figures.tenants[0].missed_s, figures.course.len()), (1, 3));
        assert_eq!(figures.course[2][0], Moment { requests: 10, bytes: 40_960, p99_ns: 30_000_000 });
        assert!((figures.tenants[0].throttled - 0.25).abs() < 1e-9);
        let seconds = figures.tenants[0].seconds;
        assert!((seconds - 2.014).abs() < 1e-9, "{seconds}");
    }

    #[test]
    fn a_second_without_requests_takes_no_memory_for_its_tenants() {
        let names = ["a".to_owned(), "b".to_owned()];
        let mut tally = Tally::new(&names, &[]);
        [100, 5_100, 7_100].iter().for_each(|&at_ms| tally.add(&done(at_ms, 5)));
        let course = tally.finish(0).course;
        assert_eq!(course.iter().map(Vec::len).collect::<Vec<_>>(), [2, 0, 0, 0, 0, 2, 0, 2]);
        for second in [0_usize, 5, 7] {
            assert_eq!((course[second][0].requests, course[second][1].requests), (1, 0), "{second}");
        }
    }

    #[test]
    fn rates_count_the_time_of_runs_alone() {
        let names = ["a".to_owned(), "b".to_owned()];
        let mut tally = Tally::new(&names, &[]);
        // 10 ms of the first run, 20 ms of the last, and 7 ms without requests; the second run has no request of the tenant.
        [10, 15].iter().for_each(|&at_ms| tally.add(&done(at_ms, 5)));
        tally.next_run(&[3_000_000]);
        tally.add(&Done { tenant: 1, ..done(500, 5) });
        tally.next_run(&[4_000_000, 0]);
        [1_010, 1_025].iter().for_each(|&at_ms| tally.add(&done(at_ms, 5)));
        let figures = tally.finish(0);
        let seconds: Vec<f64> = figures.tenants.iter().map(|tenant| tenant.seconds).collect();
        assert!((seconds[0] - 0.037).abs() < 1e-9 && (seconds[1] - 0.005).abs() < 1e-9, "{seconds:?}");
        assert!((figures.tenants[0].iops - 4.0 / 0.037).abs() < 1e-6 && (figures.seconds - 1.025).abs() < 1e-9);
    }

    #[test]
    fn a_tenant_with_one_request_in_a_run_has_the_rate_of_the_whole_time() {
        // 10 s: a request each 10 ms; of the other tenant one in the middle of each second but the fourth.
        let dense = (0..1_000).map(|n| request(n * 10_000_000, 1_000_000));
        let sparse = (0..10).filter(|&n| n != 3).map(|n| evenkeel_flight::Request {
            tenant: 1,
            client: 1,
            ..request(n * 1_000_000_000 + 500_000_000, 1_000_000)
        });
        let recording = recording(dense.chain(sparse).collect());
        let begins: Vec<u64> = (0..10).map(|n| n * 1_000_000_000).collect();
        let runs = Load::of_runs(recording.clone(), &begins, None).unwrap();
        let whole = Load::new(recording, None).unwrap();
        let text = "kind = \"store\"\nread_latency = \"1ms\"\nwrite_latency = \"1ms\"\n";
        let device = policy::device(text, "test", &[]).unwrap();
        let simulated = |load: &Load| simulate(load, &device, None, &[], 1).unwrap();
        let pairs = [(recorded(&runs, &[]), recorded(&whole, &[])), (simulated(&runs), simulated(&whole))];
        for (runs, whole) in pairs {
            for (runs, whole) in runs.tenants.iter().zip(&whole.tenants) {
                assert!((runs.iops / whole.iops - 1.0).abs() < 0.02, "{runs:?} of runs, {whole:?} of all");
            }
            assert_eq!((runs.tenants.len(), runs.tenants[1].requests), (2, 9));
        }
    }

    #[test]
    fn a_target_without_requests_or_with_unfinished_ones_is_not_met() {
        let names = ["a".to_owned()];
        let target = |of| Target { tenant: Some(0), time: Duration::from_millis(10), percentile: Percentile::Mean, of };
        let (reads, writes) = ([target(Of::Reads)], [target(Of::Writes)]);
        let of = |targets: &[Target], unfinished| {
            let mut tally = Tally::new(&names, targets);
            tally.add(&done(100, 5));
            tally.finish(unfinished)
        };
        assert!(of(&reads, 0).meets_targets() && !of(&reads, 1).meets_targets());
        let none = of(&writes, 0);
        assert!(!none.meets_targets() && none.targets[0].verdict().contains("no requests"), "{none:?}");
    }

    #[test]
    fn the_shown_figure_agrees_with_the_verdict() {
        let names = ["a".to_owned()];
        for (latency_ns, met) in [(10_000_001, false), (10_000_000, true), (9_999_999, true)] {
            let (time, percentile) = (Duration::from_millis(10), Percentile::At(99.0));
            let targets = [Target { tenant: Some(0), time, percentile, of: Of::All }];
            let mut tally = Tally::new(&names, &targets);
            tally.add(&Done { latency_ns, ..done(100, 5) });
            let figures = tally.finish(0);
            let [target] = &figures.targets[..] else { panic!("one target") };
            let agrees = if met { target.achieved_ms <= 10.0 } else { target.achieved_ms >= 10.0 };
            assert!(target.met == met && agrees, "{latency_ns}: {target:?}");
        }
    }
}
