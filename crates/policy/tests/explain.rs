//! Tests every sentence about a decision against the file `sentences.txt`, which lists each reason as data and below it the
//! sentence.
//!
//! To change a sentence, edit the file first and `explain.rs` after it, until the test passes. With EVENKEEL_WRITE=1 the test
//! writes the file.

use std::fmt::{Debug, Write as _};

use evenkeel_control::limits::Owner;
use evenkeel_control::mclock::Qos;
use evenkeel_control::pool::guarantee::Binding;
use evenkeel_control::pool::slots::{LatencyTarget, Missed};
use evenkeel_control::response::ClientReason;
use evenkeel_control::throughput::{Limit, Rate};
use evenkeel_control::{Duration, Instant, admission, placement, response, slots, throughput};
use evenkeel_policy::config::{Config, Percentile, Pool};
use evenkeel_policy::decision::{DecisionRecord, MostThrottled, Unit};
use evenkeel_policy::explain::{self, OfSlots, Throttles};
use evenkeel_policy::state::{
    AdmissionState, GuaranteeState, LatencyTargetState, LimitState, PoolState, TenantSlotsState, TenantState,
    ThrottledState,
};
use evenkeel_policy::verdict::{Counts, judge};

/// The text of `sentences.txt` under construction.
struct Page(String);

impl Page {
    fn part(&mut self, title: &str) {
        let _ = write!(self.0, "\n# {title}\n");
    }

    fn say(&mut self, reason: impl Debug, sentence: &str) {
        let _ = write!(self.0, "\n{reason:?}\n    {}\n", sentence.replace('\n', "\n    "));
    }
}

/// A record of pool `main` with a target for the percentile 99, that throttles `most` and `others` further ones.
fn of_target(most: &[MostThrottled], others: u64) -> DecisionRecord {
    DecisionRecord {
        pool: "main".into(),
        percentile: "p99".into(),
        throttled: most.len() as u64 + others,
        most_throttled: most.to_vec(),
        ..DecisionRecord::default()
    }
}

/// The record [`of_target`], which releases `backup`.
fn releasing(most: &[MostThrottled], others: u64) -> DecisionRecord {
    DecisionRecord { released: 1, some_released: vec!["backup".into()], ..of_target(most, others) }
}

fn tenant(name: &str, bytes_per_s: Option<f64>) -> MostThrottled {
    MostThrottled { tenant: name.into(), client: String::new(), delay_ms: 24.2, bytes_per_s }
}

fn client(tenant: &str, address: &str) -> MostThrottled {
    MostThrottled { tenant: tenant.into(), client: address.into(), delay_ms: 12.0, bytes_per_s: None }
}

fn latency(page: &mut Page) {
    use response::Reason;
    let (ms, us) = (Duration::from_millis, Duration::from_micros);
    let (measured, target, delay) = (us(12_480), ms(10), us(24_200));
    let reasons = [
        Reason::NotEnoughData,
        Reason::Idle,
        Reason::SignalLost,
        Reason::UnderTarget { measured: us(123), target: ms(10) },
        Reason::NoNoisy { measured, target },
        Reason::ReadsOverTarget { measured, target },
        Reason::ReadsOverTarget { measured: us(1_234_567), target },
        Reason::ReadsNearTarget { measured: us(9_300), target, set_point: Some(us(8_500)) },
        Reason::ReadsNearTarget { measured: us(9_300), target, set_point: None },
        Reason::ReadsUnderTarget { measured: us(9_996), target },
        Reason::AwaitingEffect { target },
        Reason::KnownBurst { held: delay },
        Reason::AtLargestDelay { measured: us(9_300), target },
        Reason::Unachievable { measured, target },
        Reason::TestingEffect { delay },
        Reason::Ineffective { delay },
    ];
    page.part("latency target of a pool: tenants of serve");
    let backup = tenant("backup", Some(40e6));
    let none = of_target(&[], 0);
    for reason in &reasons {
        let throttles_none = matches!(
            reason,
            Reason::NotEnoughData
                | Reason::Idle
                | Reason::SignalLost
                | Reason::UnderTarget { .. }
                | Reason::NoNoisy { .. }
                | Reason::Ineffective { .. }
        );
        let one = of_target(std::slice::from_ref(&backup), 0);
        page.say(reason, &explain::latency(reason, Throttles::Tenants, if throttles_none { &none } else { &one }));
    }
    page.part("latency target of a pool: who is throttled and released");
    let (over, under) = (Reason::ReadsOverTarget { measured, target }, Reason::UnderTarget { measured: ms(9), target });
    let less = Reason::ReadsUnderTarget { measured: ms(9), target };
    let (two, log) = ([backup.clone(), tenant("log", Some(3_210_000.0))], tenant("log", None));
    for (case, reason, record) in [
        ("none yet", over, &none),
        ("two", over, &of_target(&two, 0)),
        ("two and one more", over, &of_target(&two, 1)),
        ("two and four more, less than before", less, &of_target(&two, 4)),
        ("a rate that is not known", over, &of_target(std::slice::from_ref(&log), 0)),
        ("one throttled, one released", less, &releasing(std::slice::from_ref(&log), 0)),
        ("the last one released", under, &releasing(&[], 0)),
        ("the last one released", Reason::Idle, &releasing(&[], 0)),
        ("the last one released", Reason::Ineffective { delay }, &releasing(&[], 0)),
        ("known again, none listed", Reason::KnownBurst { held: delay }, &none),
        ("one known again", Reason::KnownBurst { held: delay }, &of_target(&two[..1], 0)),
    ] {
        page.say((case, reason), &explain::latency(&reason, Throttles::Tenants, record));
    }
    let mean = DecisionRecord { percentile: "mean".into(), ..of_target(&two, 0) };
    page.say("a target for the mean", &explain::latency(&over, Throttles::Tenants, &mean));
    page.part("latency target of a pool: clients of guard");
    let clients = of_target(&[client("backup", "192.0.2.17"), client("", "192.0.2.18")], 4);
    reasons[4..6].iter().for_each(|reason| page.say(reason, &explain::latency(reason, Throttles::Clients, &clients)));
    page.part("delay of a tenant or client");
    for reason in [
        ClientReason::SameForAll,
        ClientReason::ShareOfLoad { share: 0.914 },
        ClientReason::LongestWait,
        ClientReason::Owed,
        ClientReason::LargestDelay,
    ] {
        page.say(reason, &explain::throttled(&reason));
    }
}

fn budget(page: &mut Page) {
    use admission::Reason;
    let ms = Duration::from_millis;
    page.part("budget of a pool");
    for reason in [
        Reason::Initial,
        Reason::Configured,
        Reason::Idle,
        Reason::Stalled { in_flight_bytes: 65_536 },
        Reason::Stalled { in_flight_bytes: 70_123 },
        Reason::LatencyOverTarget { min: ms(9), target: ms(5) },
        Reason::LatencyUnderTarget { min: ms(4), target: ms(5) },
        Reason::BudgetNotUsed { peak_bytes: 12_345_678 },
        Reason::BudgetAtMaximum,
        Reason::TargetExplored { optimum: ms(5), samples: 1 },
        Reason::TargetExplored { optimum: ms(5), samples: 3 },
        Reason::TargetFitted { optimum: ms(5), slope_mib_per_s: 1.5 },
        Reason::FitDegenerate { samples: 100 },
        Reason::AppLimited { waited: 1, completions: 10 },
        Reason::IncreasePays { gain: 0.157 },
        Reason::IncreasePays { gain: 0.5 },
        Reason::IncreasePays { gain: 1.0 },
        Reason::IncreaseFutile { gain: -0.157 },
        Reason::IncreaseFutile { gain: 0.01 },
        Reason::IncreaseFutile { gain: 0.0 },
        Reason::ReductionFree { loss: -0.5346 },
        Reason::ReductionFree { loss: 0.01 },
        Reason::ReductionFree { loss: -0.0001 },
        Reason::ReductionCosts { loss: 0.2 },
        Reason::Power { power: 1.234_5 },
        Reason::QueueEstimated { requests: 1.0 },
        Reason::QueueEstimated { requests: 12.34 },
        Reason::LatencyGradient { gradient: 0.852 },
    ] {
        page.say(reason, &explain::admission(&reason));
    }
}

fn placed(page: &mut Page) {
    use placement::Reason;
    page.part("connections on workers");
    for reason in [
        Reason::Static,
        Reason::OneWorker,
        Reason::NotBusy { heaviest: 0.123 },
        Reason::NotWorth { heaviest: 0.9, gain: 0.021 },
        Reason::Elephant { slot: 7, heaviest: 0.97 },
        Reason::Uncertain { gain: 0.1, noise: 0.12 },
        Reason::Rebalanced { before: 0.98, after: 0.71 },
        Reason::Trial { worker: 3 },
        Reason::WorkersChanged { workers: 1 },
        Reason::WorkersChanged { workers: 4 },
    ] {
        page.say(reason, &explain::placement(&reason));
    }
}

fn guarantee(page: &mut Page) {
    use throughput::Reason;
    let (measured, guaranteed) = (133_332_176.0, 150_000_000.0);
    let reasons = [
        Reason::NotEnoughData,
        Reason::AsGuaranteed,
        Reason::Idle,
        Reason::AppLimited { measured: 20_480.0, limit: guaranteed },
        Reason::AppLimited { measured: 0.0, limit: f64::INFINITY },
        Reason::Compensating { measured, guaranteed, miss_rate: 0.0712 },
        Reason::Repaying { measured, guaranteed, owed: 50_000_000.0 },
        Reason::GivingBack { measured: 163_000_000.0, guaranteed, ahead: 5e6 },
        Reason::Unachievable { measured, guaranteed, attainable: 140e6 },
        Reason::AtCeiling { measured, guaranteed },
        Reason::OtherLimit { in_force: 1e6 },
        Reason::NoSolution { measured, guaranteed },
        Reason::SlowDeviceUnknown,
        Reason::CountersReset,
        Reason::SignalLost,
    ];
    let limit = |reason| Limit { limit: Rate::BytesPerS(160_000_000), reason };
    page.part("throughput guarantee of a control group on a cached device");
    let group = explain::part_of("database", "read");
    reasons.iter().for_each(|&reason| page.say(reason, &explain::guarantee(&limit(reason), None, &group)));
    let lifted = Reason::OtherLimit { in_force: f64::INFINITY };
    page.say(lifted, &explain::guarantee(&limit(lifted), None, &group));
    page.part("throughput guarantee of a tenant of serve, where the sentence differs");
    let own = Binding::Limit(Owner::Throughput);
    let who = explain::part_of("database", "all");
    for &reason in &reasons {
        let sentence = explain::guarantee(&limit(reason), Some(own), &who);
        if sentence != explain::guarantee(&limit(reason), None, &who) {
            page.say(reason, &sentence);
        }
    }
    let other = Reason::OtherLimit { in_force: 1e6 };
    page.say((other, Binding::Reservation), &explain::guarantee(&limit(other), Some(Binding::Reservation), &who));
    let iops = Limit {
        limit: Rate::RequestsPerS(441),
        reason: Reason::GivingBack { measured: 1.0, guaranteed: 400.0, ahead: 9.0 },
    };
    page.say(iops, &explain::guarantee(&iops, Some(own), &explain::part_of("database", "write")));
}

fn slots_of_tenants(page: &mut Page) {
    use slots::Reason;
    let reasons = [
        Reason::Unbounded,
        Reason::ByWeight,
        Reason::Idle,
        Reason::EqualMargin { tightness: 0.6543 },
        Reason::NeedMet,
        Reason::Unachievable { achievable_at: Some(1.5432) },
        Reason::Unachievable { achievable_at: None },
        Reason::ByLatency,
    ];
    page.part("slots of a tenant with a latency target");
    let (target, measured) = (Some((Percentile::At(99.0), Duration::from_millis(10))), Duration::from_micros(12_480));
    let with = OfSlots { tenant: "database", granted: Some(3.84), target, measured: Some(measured) };
    for reason in &reasons {
        let granted = with.granted.filter(|_| *reason != Reason::Unbounded);
        let measured = with.measured.filter(|_| *reason != Reason::Idle);
        page.say(reason, &explain::slots(reason, &OfSlots { granted, measured, ..with }));
    }
    page.part("slots of a tenant without a latency target");
    for reason in &reasons {
        let granted = Some(1.0).filter(|_| *reason != Reason::Unbounded);
        let backup = OfSlots { tenant: "backup", granted, ..OfSlots::default() };
        page.say(reason, &explain::slots(reason, &backup));
    }
    page.part("latency target of a tenant, missed");
    let pool = Config::default().control(&Pool::default());
    let mut pool = evenkeel_control::pool::Pool::<()>::new(pool, Instant::ZERO, 1);
    let mut one = Missed {
        tenant: pool.join(Instant::ZERO, Qos::default()),
        target: LatencyTarget::mean(Duration::from_millis(10)),
        figure: Duration::from_micros(12_540),
        unreported: 3,
        reason: None,
    };
    page.say("without a reason", &explain::missed(&one, "database"));
    one.reason = Some(reasons[5]);
    page.say(one.reason, &explain::missed(&one, "database"));
}

/// The sentences that a pool and its tenant `it` show, and the throttles of both.
fn verdict(page: &mut Page, case: &str, mut pool: PoolState, tenant: TenantState, work: Counts) {
    pool.name = "main".into();
    let tenant = TenantState { name: "backup".into(), ..tenant };
    pool.queued_requests = tenant.queued_requests;
    pool.tenants = vec![tenant];
    judge(&mut pool, &[Some(work)], 1.0);
    let mut text = String::new();
    for (name, lately) in [("pool", &pool.lately), ("tenant", &pool.tenants[0].lately)] {
        let lately = lately.as_ref().expect("a verdict");
        let targets = lately.targets.iter().map(|target| format!("{} {}", target.what, target.verdict.word()));
        let targets: Vec<String> = targets.collect();
        let by = lately.throttled_by.as_ref().map_or_else(|| "-".into(), |by| format!("{} {}", by.by, by.how));
        let _ = write!(text, "\n{name}: [{}] [{by}] {}", targets.join(", "), lately.because);
    }
    page.say(case, text.trim_start());
}

fn verdicts(page: &mut Page) {
    let admission = AdmissionState {
        kind: "elastic".into(),
        budget_bytes: Some(256 << 10),
        reason: explain::admission(&admission::Reason::ReductionCosts { loss: 0.2 }),
        ..AdmissionState::default()
    };
    let pool = PoolState { admission, ..PoolState::default() };
    let limit = |iops| LimitState { iops: Some(iops), iops_owner: Some("operator".into()), ..LimitState::default() };
    let queued = |queued_requests| TenantState { queued_requests, ..TenantState::default() };
    let work = |requests| Counts { requests, bytes: requests * 4096, queued: 1, ..Counts::default() };
    let mut say =
        |case: &str, pool: &PoolState, tenant, requests| verdict(page, case, pool.clone(), tenant, work(requests));
    say("no request", &pool, queued(0), 0);
    say("1 request queued", &pool, queued(1), 100);
    say("15 requests queued", &pool, queued(15), 100);
    let configured = explain::admission(&admission::Reason::Configured);
    let unbounded = AdmissionState { kind: "none".into(), reason: configured, ..AdmissionState::default() };
    say("no budget", &PoolState { admission: unbounded, ..PoolState::default() }, queued(15), 100);
    let limited = PoolState { limit: limit(300), ..pool.clone() };
    say("pool at its limit", &limited, queued(15), 300);
    say("tenant at its limit", &pool, TenantState { limit: limit(12_500), ..queued(1) }, 12_500);
    let by_guarantee = LimitState {
        bytes_per_s: Some(133_332_176),
        bytes_per_s_owner: Some("throughput".into()),
        ..LimitState::default()
    };
    say("tenant at the limit of its guarantee", &pool, TenantState { limit: by_guarantee, ..queued(1) }, 32_552);
    for slots in [1, 64] {
        let because = explain::throttled(&ClientReason::ShareOfLoad { share: 1.0 });
        let throttled = ThrottledState { slots, slots_owner: "latency".into(), delay_ms: 24.2, because };
        say(
            "tenant throttled for the pool's target",
            &pool,
            TenantState { throttled: Some(throttled), ..queued(1) },
            9,
        );
    }
    for granted in [1.0, 3.84] {
        let of = OfSlots { tenant: "backup", granted: Some(granted), ..OfSlots::default() };
        let because = explain::slots(&slots::Reason::ByWeight, &of);
        let slots = TenantSlotsState { granted: Some(granted), used: granted, because, ..TenantSlotsState::default() };
        say("tenant with all its slots in use", &pool, TenantState { slots: Some(slots), ..queued(1) }, 9);
    }
    let guarantee = |unit: &str, guaranteed_per_s, measured_per_s| {
        let (of, unit) = ("all".into(), unit.into());
        let guarantee = GuaranteeState { of, unit, guaranteed_per_s, measured_per_s, ..GuaranteeState::default() };
        TenantState { guarantees: vec![guarantee], ..queued(1) }
    };
    say("guarantee met", &pool, guarantee("bytes", 133_332_176, Some(133_332_176.0)), 9);
    say("guarantee missed", &pool, guarantee("requests", 400, Some(9.0)), 9);
    let decision = |reason: &response::Reason| DecisionRecord {
        reason: reason.name().into(),
        because: match reason {
            response::Reason::Idle => explain::latency(reason, Throttles::Tenants, &releasing(&[], 0)),
            _ => explain::latency(reason, Throttles::Tenants, &of_target(&[tenant("backup", Some(40e6))], 0)),
        },
        ..DecisionRecord::default()
    };
    let (measured, target) = (Duration::from_micros(12_480), Duration::from_millis(10));
    for (measured_ms, reason) in [
        (9.0, response::Reason::ReadsUnderTarget { measured: Duration::from_millis(9), target }),
        (12.48, response::Reason::ReadsOverTarget { measured, target }),
        (12.48, response::Reason::Unachievable { measured, target }),
        (12.48, response::Reason::Idle),
    ] {
        let decision = Some(decision(&reason));
        let (percentile, measured_ms) = ("p99".into(), Some(measured_ms));
        let target = LatencyTargetState { target_ms: 10.0, percentile, measured_ms, decision, ..Default::default() };
        let pool = PoolState { latency_target: Some(target), ..pool.clone() };
        let because = explain::throttled(&ClientReason::SameForAll);
        let throttled = ThrottledState { slots: 4, slots_owner: "operator".into(), delay_ms: 5.0, because };
        let throttled = (reason != response::Reason::Idle).then_some(throttled);
        say("pool with a latency target", &pool, TenantState { throttled, ..queued(1) }, 9);
    }
}

fn records(page: &mut Page) {
    page.part("records of decisions");
    let figures = [1.0, 133_332_176.0];
    for unit in [Unit::Ms, Unit::BytesPerS, Unit::RequestsPerS, Unit::Slots, Unit::Bytes] {
        page.say(unit, &figures.map(|figure| unit.text(figure)).join(", "));
    }
    let mut record = DecisionRecord {
        pool: "main".into(),
        tenant: "backup".into(),
        times: 1,
        until_s: 1.0,
        because: "why".into(),
        set: Some(1.0),
        least_set: Some(1.0),
        most_set: Some(1.0),
        set_in: Unit::Slots,
        ..DecisionRecord::default()
    };
    page.say("one decision", &record.to_string());
    record = DecisionRecord { times: 22, most_set: Some(3.84), measured: Some(12.48), ..record };
    page.say("many", &record.to_string());
}

#[test]
fn every_sentence_about_a_decision_is_on_one_page() {
    let mut page =
        Page("Sentences about decisions: a reason as data, below it what a person reads. See explain.rs.\n".into());
    latency(&mut page);
    budget(&mut page);
    placed(&mut page);
    guarantee(&mut page);
    slots_of_tenants(&mut page);
    page.part("verdicts: [targets] [what throttles] why");
    verdicts(&mut page);
    records(&mut page);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sentences.txt");
    if std::env::var_os("EVENKEEL_WRITE").is_some() {
        std::fs::write(file, &page.0).expect("a file");
    }
    let expected = std::fs::read_to_string(file).expect("sentences.txt");
    for (number, (made, expected)) in (1..).zip(page.0.lines().zip(expected.lines())) {
        assert_eq!(made, expected, "line {number} of sentences.txt; EVENKEEL_WRITE=1 writes the file");
    }
    assert_eq!(page.0, expected, "the length; EVENKEEL_WRITE=1 writes the file");
    // The matches in explain.rs name every reason there is.
    let source = include_str!("../src/explain.rs");
    let reasons = source.split("Reason::").skip(1).map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
    let missing: Vec<&str> = reasons.flatten().filter(|reason| !page.0.contains(&format!("\n{reason}"))).collect();
    let missing: Vec<&str> = missing.into_iter().filter(|reason| !page.0.contains(&format!("({reason}"))).collect();
    assert!(source.matches("Reason::").count() > 60 && missing.is_empty(), "no sentence for {missing:?}");
}
