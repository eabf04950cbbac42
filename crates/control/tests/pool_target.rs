//! A latency target of a pool, call by call: whose reads count, which tenants are throttled and how, and how throttles end.

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::limits::Owner;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket, guarantee, target};
use evenkeel_control::response::{self, Reason, Throttle};
use evenkeel_control::throughput::Rate;
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};

const READ: Work = Work::new(Kind::Read, 4096);
const WRITE: Work = Work::new(Kind::Write, 65536);
const INTERVAL_MS: u64 = 100;

fn config(target_ms: u64) -> Config {
    let response = response::Config {
        step: Duration::ZERO,
        max_delay: Duration::from_secs(1),
        ..response::Config::adaptive(Duration::from_millis(target_ms))
    };
    Config {
        scheduler: Scheduler::Mclock,
        admission: Admission::None,
        base_cost_bytes: 4000,
        cost: CostModel::default(),
        limit: Rates::UNSET,
        limit_burst: Duration::ZERO,
        target: Some(target::Config { response, statistic: target::Statistic::Mean, load: target::Load::Writes }),
        slots: None,
    }
}

/// A pool with a tenant that reads now and then and one that writes as much as it can, in front of a device whose latency each
/// test sets.
struct Bench {
    pool: Pool<TenantId>,
    reader: TenantId,
    writer: TenantId,
    now_ms: u64,
    /// Number of requests that the writer keeps queued or in flight.
    depth: u64,
    /// Requests in flight in order of dispatch: when each completes, its tenant and its ticket.
    inside: Vec<(u64, TenantId, Ticket)>,
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

impl Bench {
    fn new(config: Config, writer: Qos) -> Self {
        let mut pool = Pool::new(config, at(0), 1);
        let (reader, writer) = (pool.join(at(0), Qos::default()), pool.join(at(0), writer));
        Self { pool, reader, writer, now_ms: 0, depth: 8, inside: Vec::new() }
    }

    /// Hands all requests that may go to the device, which takes `takes_ms` ms for each; returns the pool's last answer.
    fn dispatch(&mut self, takes_ms: u64) -> Next<TenantId> {
        loop {
            match self.pool.dispatch(at(self.now_ms)) {
                Next::Run(tenant, ticket) => self.inside.push((self.now_ms + takes_ms, tenant, ticket)),
                other => return other,
            }
        }
    }

    fn complete(&mut self) {
        let now_ms = self.now_ms;
        let (done, left) = std::mem::take(&mut self.inside).into_iter().partition(|(due, ..)| *due <= now_ms);
        self.inside = left;
        let done: Vec<(u64, TenantId, Ticket)> = done;
        for (_, _, ticket) in done {
            self.pool.complete(at(now_ms), ticket, Outcome::Done);
        }
    }

    /// Runs for `for_ms` ms, with a device that takes `takes_ms` ms for each request: the writer keeps `depth` requests in the
    /// pool, the reader sends one every 10 ms.
    fn run(&mut self, for_ms: u64, takes_ms: u64) {
        for _ in 0..for_ms {
            self.now_ms += 1;
            self.complete();
            let view = self.pool.tenant(self.writer).unwrap();
            for _ in view.queued as u64 + view.in_flight..self.depth {
                self.pool.submit(at(self.now_ms), self.writer, WRITE, self.writer).unwrap();
            }
            if self.now_ms.is_multiple_of(10) {
                self.pool.submit(at(self.now_ms), self.reader, READ, self.reader).unwrap();
            }
            self.dispatch(takes_ms);
        }
    }

    fn reason(&self) -> Reason {
        self.pool.target().unwrap().records.last().unwrap().decision.reason
    }

    fn throttled(&self, tenant: TenantId) -> Option<evenkeel_control::pool::Throttled> {
        self.pool.tenant(tenant).unwrap().throttled
    }
}

#[test]
fn who_writes_much_while_reads_are_late_is_throttled_with_its_reason() {
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(1_000, 5);
    assert!(matches!(bench.reason(), Reason::UnderTarget { .. }), "{:?}", bench.reason());
    assert_eq!(bench.throttled(bench.writer), None);
    bench.run(600, 40);
    let hold = bench.throttled(bench.writer).expect("reads take 40 ms");
    assert!((8..=10).contains(&hold.usual), "about what it had in flight: {hold:?}");
    assert!(hold.slots < hold.usual, "half of them are delayed, so that fewer let as much pass: {hold:?}");
    assert!(hold.delay > Duration::ZERO);
    assert_eq!(bench.throttled(bench.reader), None);
    let view = bench.pool.tenant(bench.writer).unwrap();
    assert_eq!(view.slots.binding(), Some((Owner::Latency, hold.slots)), "the owner is shown");
    let told = bench.pool.target().unwrap();
    assert_eq!(told.measured, Some(Duration::from_millis(40)));
    let kinds: Vec<&str> = told.records.iter().map(|record| record.decision.reason.name()).collect();
    assert_eq!(kinds[..2], ["under_target", "reads_over_target"], "{kinds:?}");
    assert!(told.records.iter().all(|record| record.times > 0 && record.from <= record.until));
}

#[test]
fn a_target_below_the_latency_of_the_device_is_missed_within_5_s_and_unachievable_within_30_s() {
    let mut config = config(2);
    config.target.as_mut().unwrap().response.max_delay = Duration::from_secs(2);
    let mut bench = Bench::new(config, Qos::default());
    bench.depth = 64;
    let (mut missed, mut unachievable) = (None, None);
    while unachievable.is_none() && bench.now_ms < 60_000 {
        // 5 ms without load, 70 ms beside all writes.
        let takes_ms = 5 + bench.inside.len() as u64;
        bench.run(1, takes_ms);
        let Some(reason) = bench.pool.target().unwrap().records.last().map(|record| record.decision.reason) else {
            continue;
        };
        let now_ms = Some(bench.now_ms);
        missed = missed.or(now_ms.filter(|_| matches!(reason, Reason::ReadsOverTarget { .. })));
        unachievable = now_ms.filter(|_| matches!(reason, Reason::Unachievable { .. }));
    }
    assert!(missed.is_some_and(|ms| ms <= 5_000), "missed after {missed:?} ms");
    assert!(unachievable.is_some_and(|ms| ms <= 30_000), "unachievable after {unachievable:?} ms");
}

#[test]
fn slots_stay_unused_after_their_requests_as_long_as_they_should() {
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(2_000, 40);
    let writes = |bench: &Bench| bench.pool.tenant(bench.writer).unwrap().stats.writes as f64;
    let (before, mut expected, mut longest, mut ms) = (writes(&bench), 0.0, 0.0_f64, 0);
    // Until it is tried whether that helps at all.
    while let Some(hold) = bench.throttled(bench.writer) {
        bench.run(1, 40);
        let view = bench.pool.tenant(bench.writer).unwrap();
        assert!(view.in_flight <= hold.usual, "{} of {hold:?}", view.in_flight);
        // By Little's law.
        expected += hold.slots as f64 / (40.0 + hold.delay.as_millis_f64());
        longest = longest.max(hold.delay.as_millis_f64() * 8.0 / hold.slots as f64);
        ms += 1;
    }
    let served = writes(&bench) - before;
    assert!(ms >= 2_000, "{ms} ms");
    assert!((served - expected).abs() <= 0.05 * expected + 8.0, "{served} of {expected:.1}");
    assert!(longest > 100.0, "the target cannot be met, so that rests are long: {longest}");
}

#[test]
fn the_reads_of_a_noisy_tenant_do_not_count() {
    let mut bench = Bench::new(config(20), Qos::default());
    for round in 0..1_000 {
        bench.now_ms += 1;
        bench.complete();
        for work in [WRITE, READ] {
            bench.pool.submit(at(bench.now_ms), bench.writer, work, bench.writer).unwrap();
        }
        bench.dispatch(50);
        assert_eq!(bench.throttled(bench.writer), None, "in round {round}: {:?}", bench.pool.target());
    }
    assert_eq!(bench.pool.target().unwrap().measured, None, "{:?}", bench.reason());
}

#[test]
fn what_a_read_waits_for_a_limit_of_its_own_tenant_does_not_count() {
    let mut bench = Bench::new(config(20), Qos::default());
    // Half of what it asks.
    let half = Qos { limit: Rates { iops: 50, bytes_per_s: 0 }, ..Qos::default() };
    bench.pool.set_qos(at(0), bench.reader, half);
    bench.run(3_000, 5);
    let seen = bench.pool.tenant(bench.reader).unwrap().stats.latency.max();
    assert!(seen > Duration::from_secs(1), "it waits long: {seen:?}");
    assert_eq!(
        bench.pool.target().unwrap().measured,
        Some(Duration::from_millis(5)),
        "the device has nothing to do with it"
    );
    assert_eq!(bench.throttled(bench.writer), None);
    // What the device takes counts as before.
    bench.run(600, 40);
    assert_eq!(bench.pool.target().unwrap().measured, Some(Duration::from_millis(40)));
    assert!(bench.throttled(bench.writer).is_some());
}

#[test]
fn a_tenant_that_is_never_throttled_is_not_and_its_reads_count() {
    let mut bench = Bench::new(config(20), Qos::default());
    bench.pool.set_throttle(bench.writer, Throttle::Never);
    bench.run(2_000, 40);
    assert_eq!(bench.throttled(bench.writer), None);
    assert!(matches!(bench.reason(), Reason::NoNoisy { .. }), "{:?}", bench.reason());
}

#[test]
fn a_reservation_wins_over_a_throttle() {
    let reservation = Rates { iops: 150, bytes_per_s: 0 };
    let mut bench = Bench::new(config(20), Qos { reservation, ..Qos::default() });
    bench.run(2_000, 40);
    assert!(bench.throttled(bench.writer).is_some());
    let before = bench.pool.tenant(bench.writer).unwrap().stats.writes;
    bench.run(4_000, 40);
    let view = bench.pool.tenant(bench.writer).unwrap();
    let served = view.stats.writes - before;
    assert!((590..=660).contains(&served), "{served} of 600 guaranteed, {:?}", view.throttled);
}

#[test]
fn a_guarantee_wins_over_a_throttle() {
    let mut bench = Bench::new(config(20), Qos::default());
    let guaranteed = guarantee::Throughputs::of_all(Rate::RequestsPerS(150));
    bench.pool.set_guarantees(at(0), bench.writer, &guaranteed);
    bench.run(2_000, 40);
    let before = bench.pool.tenant(bench.writer).unwrap().stats.writes;
    bench.run(4_000, 40);
    let served = bench.pool.tenant(bench.writer).unwrap().stats.writes - before;
    assert_eq!(bench.throttled(bench.writer), None);
    assert!((590..=640).contains(&served), "{served} of 600 guaranteed");
    assert!(matches!(bench.reason(), Reason::NoNoisy { .. }), "{:?}", bench.reason());
}

/// A tenant that has moved much before it is guaranteed anything, or before there is a latency target.
#[test]
fn a_guarantee_wins_over_a_throttle_from_the_moment_it_is_set() {
    let guaranteed = guarantee::Throughputs { write: Some(Rate::RequestsPerS(100)), ..guarantee::Throughputs::NONE };
    for is_target_last in [false, true] {
        let mut bench = Bench::new(config(20), Qos::default());
        if is_target_last {
            bench.pool.reconfigure(at(0), Config { target: None, ..config(20) });
        }
        bench.run(20_000, 5);
        bench.pool.set_guarantees(at(bench.now_ms), bench.writer, &guaranteed);
        bench.pool.reconfigure(at(bench.now_ms), config(20));
        bench.run(3_000, 40);
        let before = bench.pool.tenant(bench.writer).unwrap().stats.writes;
        bench.run(4_000, 40);
        let served = bench.pool.tenant(bench.writer).unwrap().stats.writes - before;
        assert!(served >= 380, "{served} of 400 guaranteed, the target last: {is_target_last}");
    }
}

#[test]
fn a_throttled_request_waits_a_second_longer_at_most() {
    for (first, then) in [(8, 8), (64, 64), (2, 64), (1, 200)] {
        let mut bench = Bench::new(config(20), Qos::default());
        bench.depth = first;
        bench.run(3_000, 40);
        assert!(bench.throttled(bench.writer).is_some());
        bench.depth = then;
        bench.run(20_000, 40);
        let longest = bench.pool.tenant(bench.writer).unwrap().stats.latency.max();
        // A queue that grows is noticed at the next decision.
        assert!(longest <= Duration::from_millis(1_000 + 2 * 40 + 2 * INTERVAL_MS), "{first} to {then}: {longest:?}");
    }
}

#[test]
fn four_hundred_small_writers_are_noisy_together() {
    let mut bench = Bench::new(config(20), Qos::default());
    bench.depth = 0;
    let crowd: Vec<TenantId> = (0..400).map(|_| bench.pool.join(at(0), Qos::default())).collect();
    let small = Work::new(Kind::Write, 4096);
    // Each has one request at a time, 25 a second.
    for _ in 0..3_000 {
        for &tenant in &crowd {
            let view = bench.pool.tenant(tenant).unwrap();
            if view.queued as u64 + view.in_flight == 0 {
                bench.pool.submit(at(bench.now_ms), tenant, small, tenant).unwrap();
            }
        }
        bench.run(1, 40);
    }
    let held = crowd.iter().filter(|&&tenant| bench.throttled(tenant).is_some()).count();
    assert!(held == 400 && bench.throttled(bench.reader).is_none(), "{held}: {:?}", bench.reason());
    let target::Few { first, count } = bench.pool.target().unwrap().records.last().unwrap().decision.throttled;
    let listed: Vec<TenantId> = first.iter().flatten().map(|one| one.tenant).collect();
    assert!(count == 400 && listed.len() == 2 && listed[0] != listed[1], "{count}: {first:?}");
    assert!(listed.iter().all(|tenant| crowd.contains(tenant)), "{first:?}");
}

#[test]
fn a_decision_says_to_what_it_throttles_a_tenant_and_which_it_releases() {
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(1_500, 40);
    let decision = |bench: &Bench| bench.pool.target().unwrap().records.last().unwrap().decision;
    let (throttled, hold) = (decision(&bench).throttled, bench.throttled(bench.writer).expect("reads take 40 ms"));
    let [Some(most), None] = throttled.first else { panic!("{throttled:?}") };
    assert_eq!((throttled.count, most.tenant, most.slots, most.delay), (1, bench.writer, hold.slots, hold.delay));
    let expected = hold.slots as f64 * 65_536.0 / (0.04 + hold.delay.as_secs_f64());
    assert!((most.bytes_per_s.expect("writes have completed") / expected - 1.0).abs() < 0.01, "{most:?}");
    // The rate is that of the tenant, as long as it is throttled.
    let written = |bench: &Bench| bench.pool.tenant(bench.writer).unwrap().stats.write_bytes as f64;
    let (before, mut said, mut ms) = (written(&bench), 0.0, 0);
    while let Some(most) = decision(&bench).throttled.first[0].filter(|_| ms < 2_000) {
        bench.run(1, 40);
        said += most.bytes_per_s.unwrap() / 1e3;
        ms += 1;
    }
    let got = written(&bench) - before;
    assert!(ms >= 500 && (got / said - 1.0).abs() < 0.25, "{got} bytes in {ms} ms, {said} expected");
    // The writer stops: the decision that releases it says so, also after it was renewed.
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(1_500, 40);
    bench.depth = 0;
    bench.run(10_000, 5);
    let records: Vec<_> = bench.pool.target().unwrap().records.iter().map(|entry| entry.decision).collect();
    let releasing: Vec<_> = records.iter().filter(|decision| decision.released.count > 0).collect();
    assert!(!releasing.is_empty() && records[0].released.count == 0, "{records:?}");
    let whom = [Some(bench.writer), None];
    assert!(releasing.iter().all(|one| one.released.first == whom && one.throttled.count == 0), "{releasing:?}");
}

#[test]
fn a_throttle_ends_with_the_target_the_load_or_the_tenant() {
    // The target.
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(1_000, 40);
    assert!(bench.throttled(bench.writer).is_some());
    bench.pool.reconfigure(at(bench.now_ms), Config { target: None, ..config(20) });
    assert!(bench.throttled(bench.writer).is_none() && bench.pool.target().is_none());
    assert_eq!(bench.pool.tenant(bench.writer).unwrap().slots.binding(), None);
    // The load: for whoever looks, without a request that would bring it about.
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(1_000, 40);
    bench.now_ms += 100;
    bench.complete();
    bench.now_ms += 5_000;
    bench.pool.tick_controllers(at(bench.now_ms));
    assert_eq!(bench.throttled(bench.writer), None, "{:?}", bench.reason());
    // The tenant: what it rested is not its successor's.
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(1_000, 40);
    bench.pool.leave(bench.writer);
    let heir = bench.pool.join(at(bench.now_ms), Qos::default());
    for _ in 0..100 {
        bench.pool.submit(at(bench.now_ms), heir, WRITE, heir).unwrap();
    }
    bench.dispatch(1);
    assert_eq!(bench.pool.tenant(heir).unwrap().in_flight, 100);
}

#[test]
fn another_target_goes_on_with_what_is_known_and_other_settings_begin_anew() {
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(1_000, 40);
    let decisions = bench.pool.target().unwrap().records.iter().len();
    bench.pool.reconfigure(at(bench.now_ms), config(30));
    let view = bench.pool.target().unwrap();
    assert_eq!((view.config.response.target, view.records.iter().len()), (Duration::from_millis(30), decisions));
    assert!(bench.throttled(bench.writer).is_some());
    let mut other = config(30);
    other.target.as_mut().unwrap().load = target::Load::All;
    bench.pool.reconfigure(at(bench.now_ms), other);
    assert!(bench.throttled(bench.writer).is_none() && bench.pool.target().unwrap().records.last().is_none());
}

#[test]
fn a_device_that_hangs_is_not_taken_for_idle() {
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(1_000, 40);
    let hold = bench.throttled(bench.writer);
    assert!(hold.is_some());
    // Nothing comes out for 0.8 s.
    for _ in 0..8 {
        bench.now_ms += INTERVAL_MS;
        bench.dispatch(10_000);
    }
    assert!(bench.throttled(bench.writer).is_some(), "{:?}", bench.reason());
    bench.now_ms += 10 * INTERVAL_MS;
    bench.dispatch(10_000);
    assert!(bench.throttled(bench.writer).is_none(), "on old news no tenant is throttled for ever");
    assert_eq!(bench.reason(), Reason::SignalLost);
}

#[test]
fn a_percentile_is_above_0_and_below_100() {
    let target = config(10).target.unwrap();
    let with = |statistic| target::Config { statistic, ..target }.validate().map_err(|e| e.setting);
    assert_eq!(with(target::Statistic::Mean), Ok(()));
    for percentile in [0.1, 50.0, 99.9] {
        assert_eq!(with(target::Statistic::Percentile(percentile)), Ok(()), "{percentile}");
    }
    for percentile in [-1.0, 0.0, 100.0, 101.0, f64::NAN] {
        assert_eq!(with(target::Statistic::Percentile(percentile)), Err("statistic"), "{percentile}");
    }
}

#[test]
fn a_victim_that_writes_now_and_then_is_not_noisy() {
    let mut bench = Bench::new(config(20), Qos::default());
    bench.run(1_000, 5);
    let (mut idle, mut noisy_reader) = (0, 0);
    for ms in 0..20_000_u64 {
        // While the writer is throttled the reader moves most: 32 KiB every 10 ms, and a write of 4 KiB every 300 ms.
        if ms.is_multiple_of(10) {
            let large = Work::new(Kind::Read, 32_768);
            bench.pool.submit(at(bench.now_ms + 1), bench.reader, large, bench.reader).unwrap();
        }
        if ms.is_multiple_of(300) {
            bench.pool.submit(at(bench.now_ms + 1), bench.reader, Work::new(Kind::Write, 4096), bench.reader).unwrap();
        }
        bench.run(1, 40);
        idle += u32::from(matches!(bench.reason(), Reason::Idle));
        noisy_reader += u32::from(bench.throttled(bench.reader).is_some());
    }
    assert_eq!((idle, noisy_reader), (0, 0), "ms without a read that counts, and with the reader throttled");
}

#[test]
fn a_guarantee_of_reads_leaves_writes_to_the_throttle() {
    let mut bench = Bench::new(config(20), Qos::default());
    let guaranteed = guarantee::Throughputs { read: Some(Rate::RequestsPerS(20)), ..guarantee::Throughputs::NONE };
    bench.pool.set_guarantees(at(0), bench.writer, &guaranteed);
    bench.run(2_000, 40);
    assert!(bench.throttled(bench.writer).is_some_and(|throttled| throttled.delay > Duration::ZERO));
    // Once it reads, the delay leaves it what it is guaranteed.
    let reads = |bench: &Bench| bench.pool.tenant(bench.writer).unwrap().stats.reads;
    let mut before = 0;
    for ms in 0..12_000_u64 {
        if ms == 6_000 {
            before = reads(&bench);
        }
        let view = bench.pool.tenant(bench.writer).unwrap();
        if view.queued < 40 {
            bench.pool.submit(at(bench.now_ms), bench.writer, READ, bench.writer).unwrap();
        }
        bench.run(1, 40);
    }
    let served = reads(&bench) - before;
    assert!(served >= 6 * 19, "{served} of 120 guaranteed reads");
}

/// Reads of the writer wait for the limit that their guarantee is: no throttle makes them wait longer, so they leave the delay of
/// its writes as it is.
#[test]
fn reads_that_wait_for_a_limit_of_their_own_shorten_no_delay() {
    let mut bench = Bench::new(config(20), Qos::default());
    let guaranteed = guarantee::Throughputs { read: Some(Rate::RequestsPerS(2)), ..guarantee::Throughputs::NONE };
    bench.pool.set_guarantees(at(0), bench.writer, &guaranteed);
    for _ in 0..5_000 {
        bench.pool.submit(at(0), bench.writer, READ, bench.writer).unwrap();
    }
    bench.depth = 0;
    let (mut writes, mut throttled_ms) = (0, 0);
    for ms in 0..30_000_u64 {
        let written = bench.pool.tenant(bench.writer).unwrap().stats.writes;
        for _ in writes..written + 8 {
            bench.pool.submit(at(bench.now_ms), bench.writer, WRITE, bench.writer).unwrap();
        }
        writes = written + 8;
        bench.run(1, 40);
        let Some(throttled) = bench.throttled(bench.writer) else { continue };
        throttled_ms += 1;
        assert!(throttled.slots <= 16, "{throttled:?} at {ms} ms");
        assert!(!matches!(bench.reason(), Reason::Ineffective { .. }), "at {ms} ms");
    }
    assert!(throttled_ms >= 10_000, "{throttled_ms} ms: {:?}", bench.reason());
}
