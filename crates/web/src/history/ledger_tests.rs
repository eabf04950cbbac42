//! Tests of recording and of answers about it, with time as an argument.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use evenkeel_history::{Gauge, Series};
use evenkeel_policy::decision::DecisionRecord;
use evenkeel_policy::health::Trouble;
use evenkeel_policy::history::{EventKind, History as Answer};

use super::*;
use crate::folder::Folder;
use crate::history::{Query, answer};

const SERVER: Program = Program { name: "server", key: "server.history" };
/// A time at which steps of all resolutions begin.
const T0: u64 = 1_760_000_400;

impl Folder {
    fn place(&self) -> Place {
        Place { folder: self.join("history"), bytes: Bounds::LEAST }
    }
}

/// Tenants of which each completes 100 requests per call.
struct Tenants {
    series: Vec<Arc<Series>>,
    calls: u64,
}

impl Tenants {
    fn new(count: u64) -> Self {
        let series = |n| Series { pool: "main".into(), tenant: format!("tenant-{n}"), device: String::new() };
        Self { series: (0..count).map(|n| Arc::new(series(n))).collect(), calls: 0 }
    }
}

impl Sense for Tenants {
    fn samples(&mut self) -> Vec<Sample> {
        self.calls += 1;
        let sample = |(n, series): (u64, &Arc<Series>)| {
            let noise = ((self.calls * 2_654_435_761) ^ (n * 40_503)) % 251;
            let figures = Figures {
                requests: 100,
                bytes: 409_600,
                latency_us: 100 * (900 + noise),
                p50_us: 800 + noise,
                p99_us: 3_000 + 7 * noise,
                p999_us: 9_000 + 13 * noise,
                in_flight: Gauge::at(noise % 32),
                queued: Gauge::at(noise % 5),
                limit_iops: Gauge::at(5_000),
                ..Figures::default()
            };
            Sample { series: Arc::clone(series), figures }
        };
        (0..).zip(&self.series).map(sample).collect()
    }

    fn held(&mut self) -> Held {
        let uptime_s = self.calls as f64;
        let decision = DecisionRecord {
            pool: "main".into(),
            from_s: uptime_s - uptime_s % 10.0,
            reason: "reads_over_target".into(),
            because: "reads take 20 ms".into(),
            ..DecisionRecord::default()
        };
        Held { uptime_s, decisions: vec![decision], ..Held::default() }
    }
}

fn asked(place: &Place, from: u64, to: u64) -> Answer {
    let query = Query { from: T0 + from, to: T0 + to, step: Some(1), ..Query::default() };
    answer(&place.folder, &query).expect("an answer")
}

/// Records each second of a range after [`T0`].
fn run(ledger: &mut Ledger, place: &Place, sense: &mut Tenants, seconds: std::ops::Range<u64>) {
    seconds.for_each(|second| ledger.record(T0 + second, Some(place), sense));
}

#[test]
fn what_was_recorded_is_there_after_a_stop_and_after_a_kill_and_gaps_are_named() {
    let scratch = Folder::new();
    let (place, mut sense) = (scratch.place(), Tenants::new(2));
    let mut ledger = Ledger::new(SERVER, T0);
    run(&mut ledger, &place, &mut sense, 1..100);
    ledger.stop(T0 + 100, Some(&place), &mut sense);
    // A second run, which is killed: nothing is closed, and the newest block is cut.
    let mut ledger = Ledger::new(SERVER, T0 + 130);
    run(&mut ledger, &place, &mut sense, 131..200);
    drop(ledger);
    let newest = fs::read_dir(&place.folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let newest = newest.filter(|path| path.to_string_lossy().contains("/001-")).max().expect("a file of seconds");
    let bytes = fs::read(&newest).expect("a file");
    fs::write(&newest, &bytes[..bytes.len() - 3]).expect("written");
    let mut ledger = Ledger::new(SERVER, T0 + 260);
    run(&mut ledger, &place, &mut sense, 261..300);

    let answer = asked(&place, 0, 300);
    assert_eq!((answer.step_s, answer.oldest_s, answer.next_s), (1, Some(T0), None));
    assert!(answer.problems.is_empty(), "{:?}", answer.problems);
    let recorded: u64 = answer.steps.iter().map(|step| step.recorded_s).sum();
    assert_eq!(recorded, 101 + 68 + 39);
    let gaps: Vec<_> = answer.gaps.iter().map(|gap| (gap.from_s - T0, gap.to_s - T0)).collect();
    assert_eq!(gaps, [(101, 130), (198, 260)]);
    assert!(answer.gaps[0].because.contains("a graceful stop"), "{:?}", answer.gaps[0]);
    assert!(answer.gaps[1].because.contains("kill -9"), "{:?}", answer.gaps[1]);
    let of = |kind| answer.events.iter().filter(move |event| event.kind == kind).map(|event| event.at_s - T0);
    assert_eq!(of(EventKind::Started).collect::<Vec<_>>(), [0, 130, 260]);
    assert_eq!(of(EventKind::Stopped).collect::<Vec<_>>(), [100]);
    assert!(of(EventKind::Decision).count() > 10);
    let series = &answer.steps[5].series[1];
    assert_eq!((series.tenant.as_str(), series.iops, series.request_bytes), ("tenant-1", 100.0, Some(4_096.0)));
    assert!(series.p50_ms < series.p99_ms && series.p99_ms < series.p999_ms, "{series:?}");
    // The owner alone reads.
    let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!((mode(&place.folder), mode(&newest)), (0o700, 0o600));
}

/// The page asks again until the steps reach the moment of its first answer after a restart.
#[test]
fn steps_end_before_a_gap_until_the_second_after_it_is_recorded() {
    let scratch = Folder::new();
    let (place, mut sense) = (scratch.place(), Tenants::new(1));
    let mut ledger = Ledger::new(SERVER, T0);
    run(&mut ledger, &place, &mut sense, 1..101);
    drop(ledger);
    let mut ledger = Ledger::new(SERVER, T0 + 102);
    let found = |to: u64| {
        let answer = asked(&place, 0, to);
        let end = answer.steps.last().map(|step| step.at_s + step.seconds - T0);
        (end, answer.gaps.iter().map(|gap| (gap.from_s - T0, gap.to_s - T0)).collect::<Vec<_>>())
    };
    assert_eq!(found(103), (Some(100), Vec::new()));
    run(&mut ledger, &place, &mut sense, 103..104);
    assert_eq!(found(104), (Some(103), vec![(100, 102)]));
}

#[test]
fn seconds_that_were_missed_share_their_figures_and_a_suspended_machine_has_none() {
    let scratch = Folder::new();
    let (place, mut sense) = (scratch.place(), Tenants::new(1));
    let mut ledger = Ledger::new(SERVER, T0);
    for at in [1, 2, 6, 7, 600, 601, 602] {
        ledger.record(T0 + at, Some(&place), &mut sense);
    }
    let answer = asked(&place, 0, 602);
    let at = |second: u64| answer.steps.iter().find(|step| step.at_s == T0 + second).map(|step| step.series[0].iops);
    assert_eq!(
        [at(1), at(2), at(5), at(6), at(300), at(601)],
        [100.0, 25.0, 25.0, 100.0, 0.0, 100.0].map(|iops| { Some(iops).filter(|iops| *iops > 0.0) })
    );
    assert_eq!(answer.gaps.len(), 1);
    assert!(answer.gaps[0].because.contains("suspended"), "{:?}", answer.gaps[0]);
    // A clock that was set back by a second is no second twice.
    ledger.record(T0 + 601, Some(&place), &mut sense);
    ledger.record(T0 + 602, Some(&place), &mut sense);
    assert_eq!(asked(&place, 590, 602).steps.len(), 2);
}

#[test]
fn events_are_recorded_after_a_clock_that_was_wrong_at_the_start() {
    let scratch = Folder::new();
    let (place, mut sense) = (scratch.place(), Tenants::new(1));
    // A year ahead for some seconds, until the network corrects the clock.
    let mut ledger = Ledger::new(SERVER, T0 + 31_536_000);
    run(&mut ledger, &place, &mut sense, 31_536_001..31_536_010);
    run(&mut ledger, &place, &mut sense, 0..700);
    let answer = asked(&place, 0, 700);
    assert!(!answer.steps.is_empty(), "nothing is recorded");
    let decisions = answer.events.iter().filter(|event| event.kind == EventKind::Decision);
    let times: Vec<u64> = decisions.map(|event| event.at_s - T0).collect();
    assert!(times.iter().any(|at| *at > 610), "{times:?}");
    // Events wait while nothing is recorded.
    assert!(times.iter().filter(|at| **at < 500).count() > 10, "{times:?}");
}

#[test]
fn a_clock_that_was_set_back_is_named_until_it_has_caught_up() {
    let scratch = Folder::new();
    let (place, mut sense) = (scratch.place(), Tenants::new(1));
    let mut ledger = Ledger::new(SERVER, T0 + 1_000);
    run(&mut ledger, &place, &mut sense, 1_001..1_010);
    // A step of two seconds is soon made up for.
    run(&mut ledger, &place, &mut sense, 1_007..1_012);
    assert_eq!(ledger.behind(), None);
    run(&mut ledger, &place, &mut sense, 400..412);
    let sentence = "the clock was set back, and is 10 min behind the newest record: nothing is recorded";
    assert_eq!((ledger.behind().as_deref(), ledger.problem()), (Some(sentence), None));
    run(&mut ledger, &place, &mut sense, 1_012..1_016);
    assert_eq!(ledger.behind(), None);
}

#[test]
fn a_start_with_a_wrong_clock_is_recorded_at_its_time_and_costs_no_history() {
    let scratch = Folder::new();
    let (place, mut sense) = (scratch.place(), Tenants::new(1));
    let mut ledger = Ledger::new(SERVER, T0);
    run(&mut ledger, &place, &mut sense, 1..100);
    ledger.stop(T0 + 100, Some(&place), &mut sense);
    // Without a battery the clock begins in 1970, until the network corrects it.
    let mut ledger = Ledger::new(SERVER, 5);
    (6..30).for_each(|now| ledger.record(now, Some(&place), &mut sense));
    run(&mut ledger, &place, &mut sense, 200..210);
    let answer = asked(&place, 0, 210);
    let recorded: u64 = answer.steps.iter().map(|step| step.recorded_s).sum();
    assert_eq!(recorded, 101 + 9);
    assert!(answer.problems.is_empty(), "{:?}", answer.problems);
    let gaps: Vec<_> = answer.gaps.iter().map(|gap| (gap.from_s - T0, gap.to_s - T0)).collect();
    assert_eq!(gaps, [(101, 200)]);
    assert!(answer.gaps[0].because.contains("a graceful stop"), "{:?}", answer.gaps[0]);
}

#[test]
fn a_folder_that_cannot_be_used_stops_nothing_and_is_tried_again() {
    let scratch = Folder::new();
    let (place, mut sense) = (scratch.place(), Tenants::new(1));
    fs::write(&place.folder, "a file").expect("written");
    let mut ledger = Ledger::new(SERVER, T0);
    run(&mut ledger, &place, &mut sense, 1..20);
    assert!(ledger.problem().is_some_and(|problem| problem.contains("history")));
    fs::remove_file(&place.folder).expect("removed");
    run(&mut ledger, &place, &mut sense, 20..40);
    assert_eq!(ledger.problem(), None);
    assert!(asked(&place, 0, 40).events.iter().any(|event| event.because.contains("could not be recorded")));
    // Another process records here: both go on, and this one tries again.
    let mut second = Ledger::new(SERVER, T0 + 40);
    run(&mut second, &place, &mut sense, 41..45);
    assert!(second.problem().is_some_and(|problem| problem.contains("another process")));
    drop(ledger);
    run(&mut second, &place, &mut sense, 45..60);
    assert_eq!(second.problem(), None);
    // Switched off, and on again.
    second.record(T0 + 60, None, &mut sense);
    assert!(second.open.is_none());
    run(&mut second, &place, &mut sense, 61..70);
    assert!(second.open.is_some());
}

#[test]
fn a_long_answer_ends_early_and_says_where_to_ask_on() {
    let scratch = Folder::new();
    let (place, mut sense) = (Place { bytes: 64 << 20, ..scratch.place() }, Tenants::new(300));
    let mut ledger = Ledger::new(SERVER, T0);
    run(&mut ledger, &place, &mut sense, 1..101);
    let (mut from, mut seconds, mut asks) = (T0, 0, 0);
    loop {
        let query = Query { from, to: T0 + 100, ..Query::default() };
        let answer = answer(&place.folder, &query).expect("an answer");
        assert!(answer.steps.iter().map(|step| step.series.len()).sum::<usize>() <= 20_000);
        seconds += answer.steps.len();
        asks += 1;
        let Some(next) = answer.next_s else { break };
        from = next;
    }
    assert_eq!((seconds, asks), (100, 2));
    let one = Query { from: T0, to: T0 + 100, tenant: Some("tenant-7".into()), step: Some(10), ..Query::default() };
    let answer = answer(&place.folder, &one).expect("an answer");
    assert_eq!((answer.steps.len(), answer.next_s), (10, None));
    assert!(answer.steps.iter().all(|step| step.series.len() == 1 && step.series[0].iops == 100.0));
    let wrong = |query: &Query| crate::history::answer(&place.folder, query).expect_err("no answer").to_string();
    assert!(wrong(&Query { step: Some(7), ..one.clone() }).contains("1, 10, 60 or 600"));
    assert!(wrong(&Query { to: T0, ..one }).contains("not later than `from`"));
}

/// Thousands of tenants, all of which miss their targets.
struct Missing;

impl Sense for Missing {
    fn samples(&mut self) -> Vec<Sample> {
        Vec::new()
    }

    fn held(&mut self) -> Held {
        let missed = |n: u64| {
            let about = format!("tenant t{n} in pool main");
            Trouble::warning("target_missed", about, "p99 is 9 ms", "wait")
        };
        Held { troubles: (0..2_500).map(missed).collect(), ..Held::default() }
    }
}

#[test]
fn events_of_one_second_that_an_answer_leaves_out_are_counted() {
    let scratch = Folder::new();
    let place = Place { bytes: 64 << 20, ..scratch.place() };
    let mut ledger = Ledger::new(SERVER, T0);
    (1..5).for_each(|second| ledger.record(T0 + second, Some(&place), &mut Missing));
    let answer = asked(&place, 0, 4);
    // The start of the program is one more.
    assert_eq!((answer.events.len(), answer.next_s), (2_000, Some(T0 + 1)));
    let problems = answer.problems.join("\n");
    assert!(problems.contains("501 of them are left out"), "{problems}");
    assert!(asked(&place, 1, 4).problems.is_empty());
}

/// Half a percent of a processor is 5 ms a second; what the pools of a server take for their figures comes on top.
#[test]
fn a_second_of_a_thousand_tenants_takes_milliseconds_and_bytes() {
    let scratch = Folder::new();
    let (place, mut sense) = (Place { bytes: 64 << 20, ..scratch.place() }, Tenants::new(1_000));
    let mut ledger = Ledger::new(SERVER, T0);
    run(&mut ledger, &place, &mut sense, 1..11);
    let work = Work::begin();
    run(&mut ledger, &place, &mut sense, 11..131);
    let each = work.spent() / 120;
    let bytes: u64 =
        fs::read_dir(&place.folder).expect("a folder").map(|file| file.unwrap().metadata().unwrap().len()).sum();
    let work = Work::begin();
    let query = Query { from: T0, to: T0 + 120, tenant: Some("tenant-7".into()), ..Query::default() };
    assert_eq!(answer(&place.folder, &query).expect("an answer").steps.len(), 120);
    let read = work.spent() / 120;
    println!("at 1,000 tenants each second {each:?} and {} bytes; read in {read:?}", bytes / 130);
    assert!(each.as_micros() < 5_000, "{each:?}");
    assert!(bytes / 130 < 40_000, "{bytes} bytes");
}
