//! Tests of the experiment on totals over a cluster, with few and short runs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use evenkeel_sim::experiment::totals::setup::{LIMIT, STEPS_PER_S, Setup};
use evenkeel_sim::experiment::totals::world::{Outcome, simulate, timed};
use evenkeel_sim::experiment::totals::{self, Fault, judge};
use evenkeel_sim::experiment::{Options, Row};

/// Checks runs with this fault: the limit is never exceeded, the reservation is reached in all settled windows, and service is
/// at least `least` per cent of that of the central scheduler.
fn check(members: usize, fault: Fault, seconds: u64, seeds: RangeInclusive<u64>, least: f64) {
    for seed in seeds {
        let setup = Setup { members, fault, seconds };
        let outcome = simulate(&setup, seed).expect("a run");
        let [ours, equal] = [&outcome.parts, &outcome.equal].map(|served| judge(&setup, served, &outcome.central));
        let case = format!("{members} members, {fault:?}, seed {seed}: {ours:?}, equal parts: {equal:?}");
        assert!(outcome.most <= 1.0 + 1e-9, "{case}: {} of the total", outcome.most);
        assert!(ours.limit_exceeded <= 0.0 && ours.reservation_missed <= 0.0, "{case}");
        assert!(ours.throughput >= least && ours.throughput > equal.throughput + 10.0, "{case}");
    }
}

#[test]
fn three_members_never_exceed_the_limit_and_reach_the_reservation() {
    Fault::ALL.into_iter().for_each(|fault| check(3, fault, 40, 1..=4, 99.0));
}

/// The safe parts of a tenth that is dead or cut off are kept free, which the central scheduler does not do.
#[test]
fn a_hundred_members_never_exceed_the_limit_and_reach_the_reservation() {
    for (fault, least) in
        [(Fault::None, 97.0), (Fault::Skew, 97.0), (Fault::Partition, 95.5), (Fault::Death, 94.0), (Fault::Loss, 94.0)]
    {
        check(100, fault, 40, 1..=2, least);
    }
}

/// They report once a period.
#[test]
fn a_thousand_members_never_exceed_the_limit_and_reach_the_reservation() {
    check(1_000, Fault::None, 25, 1..=1, 90.0);
}

#[test]
fn ten_thousand_members_never_exceed_the_limit() {
    let setup = Setup { members: 10_000, fault: Fault::None, seconds: 3 };
    let now = Cell::new(0_u64);
    let clock = || {
        now.set(now.get() + 1_000_000);
        now.get()
    };
    let outcome = timed(&setup, 1, &clock).expect("a run");
    assert!((0.5..=1.0 + 1e-9).contains(&outcome.most), "{} of the total", outcome.most);
    // Each reports once a period, and reads some two hundred values.
    assert!((0.9..=1.1).contains(&outcome.reports), "{} reports", outcome.reports);
    assert!((50_000.0..500_000.0).contains(&outcome.traffic), "{} bytes", outcome.traffic);
    // A millisecond for the members' decisions in each step, for the values of a shard, and for the sums.
    let expected = 300.0 / 30_000.0 + outcome.reports + 1.0;
    assert!((outcome.processor_ms - expected).abs() < 1e-9, "{} ms, not {expected}", outcome.processor_ms);
}

#[test]
fn ten_thousand_members_have_three_seeds_and_are_no_part_of_a_quick_run() {
    let runs = |quick: bool, seeds: Option<usize>| {
        let options = Options { seed: 1, quick, seeds, ..Options::default() };
        let mut number: BTreeMap<usize, usize> = BTreeMap::new();
        let stopped = totals::run(&options, &mut |_, runs: &[(Setup, u64)]| -> Result<Vec<Outcome>, String> {
            runs.iter().for_each(|(setup, _)| *number.entry(setup.members).or_default() += 1);
            Err("counted".to_owned())
        });
        assert_eq!(stopped.expect_err("it has no outcomes"), "counted");
        number
    };
    let faults = Fault::ALL.len();
    let expected = |numbers: &[(usize, usize)]| -> BTreeMap<usize, usize> {
        numbers.iter().map(|(members, seeds)| (*members, seeds * faults)).collect()
    };
    assert_eq!(runs(false, None), expected(&[(3, 30), (100, 30), (1_000, 30), (10_000, 3)]));
    assert_eq!(runs(true, None), expected(&[(3, 2), (100, 2), (1_000, 2)]));
    assert_eq!(runs(false, Some(1)), expected(&[(3, 1), (100, 1), (1_000, 1), (10_000, 1)]));
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let setup = Setup { members: 3, fault: Fault::Loss, seconds: 4 };
    let run = |seed| simulate(&setup, seed).expect("a run");
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
    assert!(simulate(&Setup { members: 0, ..setup.clone() }, 5).is_err());
}

#[test]
fn windows_are_judged_as_documented() {
    let setup = Setup { members: 3, fault: Fault::None, seconds: 20 };
    let steps = 20 * STEPS_PER_S;
    let rate = |iops: f64| vec![iops / STEPS_PER_S as f64; steps];
    let central = rate(LIMIT as f64);
    let of = |iops: f64| judge(&setup, &rate(iops), &central);
    assert_eq!((of(4_300.0).limit_exceeded, of(4_100.0).limit_exceeded), (100.0, 0.0));
    assert_eq!((of(2_800.0).reservation_missed, of(2_900.0).reservation_missed), (100.0, 0.0));
    assert!((of(2_000.0).throughput - 50.0).abs() < 1e-9);
    // Of 3,000 IOPS.
    for (iops, deficit) in [(3_500.0, 0.0), (2_970.0, 1.0), (1_500.0, 50.0)] {
        assert!((of(iops).reservation_deficit - deficit).abs() < 1e-6, "{iops} IOPS: {:?}", of(iops));
    }
    // A device that cannot serve the reservation is no fault of the parts.
    let slow = judge(&setup, &rate(960.0), &rate(1_000.0));
    assert!(slow.reservation_missed <= 0.0 && (slow.reservation_deficit - 4.0).abs() < 1e-6, "{slow:?}");
    // What is served later makes up for nothing.
    let mut late = rate(3_000.0);
    late[15 * STEPS_PER_S..17 * STEPS_PER_S].fill(0.0);
    late[17 * STEPS_PER_S..].fill(80.0);
    assert!(judge(&setup, &late, &central).reservation_deficit > 5.0);
    // Demand moves at the 10th second: what is missed within 3 s is not counted, but among all windows.
    let mut dip = rate(3_500.0);
    dip[10 * STEPS_PER_S..12 * STEPS_PER_S].fill(0.0);
    let judged = judge(&setup, &dip, &central);
    assert!(judged.reservation_missed <= 0.0 && judged.missed_of_all > 0.0, "{judged:?}");
}

#[test]
fn rows_hold_what_was_measured() {
    let outcome = |(setup, _): &(Setup, u64)| {
        let steps = setup.seconds as usize * STEPS_PER_S;
        let rate = |iops: f64| vec![iops / STEPS_PER_S as f64; steps];
        let (parts, equal, central) = (rate(3_960.0), rate(2_000.0), rate(4_000.0));
        // Below the bar with 100 members, above it with 3.
        let traffic = 40_000.0;
        Outcome { parts, equal, central, most: 1.0, reports: 1.5, traffic, processor_ms: 0.25 }
    };
    let options = Options { seed: 1, quick: true, ..Options::default() };
    let report = totals::run(&options, &mut |_, runs: &[(Setup, u64)]| -> Result<_, String> {
        Ok(runs.iter().map(outcome).collect())
    })
    .expect("a report");
    let rows: Vec<&Row> = report.sections.iter().flat_map(|section| &section.rows).collect();
    let of = |metric: &str| rows.iter().filter(|row| row.full_metric() == metric).collect::<Vec<_>>();
    for (metric, equal, ours) in [
        ("limit_exceeded_percent", 0.0, 0.0),
        ("reservation_missed_percent", 100.0, 0.0),
        ("reservation_deficit_vs_central_percent", 100.0 / 3.0, 0.0),
        ("throughput_vs_central_percent", 50.0, 99.0),
    ] {
        assert_eq!(of(metric).len(), 15, "{metric}");
        for row in of(metric) {
            let near = |value: Option<f64>, expected: f64| value.is_some_and(|value| (value - expected).abs() < 1e-6);
            assert!(near(row.baseline, equal) && near(row.evenkeel, ours) && row.is_met() == Some(true), "{row:?}");
        }
    }
    assert!(of("largest_sum_of_parts").iter().all(|row| row.is_met() == Some(true)));
    assert_eq!(of("throughput_vs_central_percent_central").len(), 15);
    for (metric, figure, met) in [
        ("reports_per_member_and_period", 1.5, [None; 3]),
        ("traffic_bytes_per_member_and_period", 40_000.0, [Some(false), Some(true), Some(true)]),
        ("processor_ms_per_member_and_period", 0.25, [Some(true); 3]),
    ] {
        let rows = of(metric);
        assert!(rows.len() == 15 && rows.iter().all(|row| row.evenkeel == Some(figure)), "{metric}");
        // Five faults with each number of members.
        let found: Vec<Option<bool>> = rows.iter().step_by(5).map(|row| row.is_met()).collect();
        assert_eq!(found, met, "{metric}");
    }
}
