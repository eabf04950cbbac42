//! Tests of the DRG paper's experiment, run with one seed.

use evenkeel_control::slots::Method;
use evenkeel_control::{Duration, Instant};
use evenkeel_sim::experiment::drg::world::{Outcome, Setup, simulate};
use evenkeel_sim::experiment::drg::{self, Traces};
use evenkeel_sim::experiment::{Options, Report};

fn reproduce(seed: u64) -> (Report, Vec<(Setup, u64)>, Vec<Outcome>) {
    let (mut all, mut outcomes) = (Vec::new(), Vec::new());
    let options = Options { seed, quick: true, ..Options::default() };
    let report = drg::run(&options, &Traces::default(), &mut |_, runs: &[(Setup, u64)]| {
        let half = runs.len() / 2;
        let each = |runs: &[(Setup, u64)]| runs.iter().map(|(setup, seed)| simulate(setup, *seed)).collect::<Vec<_>>();
        let came = std::thread::scope(|scope| {
            let first = scope.spawn(|| each(&runs[..half]));
            let second = each(&runs[half..]);
            let mut came = first.join().expect("no panic");
            came.extend(second);
            came
        });
        all = runs.to_vec();
        outcomes = came.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok::<_, String>(outcomes.clone())
    });
    (report.expect("a report"), all, outcomes)
}

#[test]
fn targets_that_a_static_share_misses_are_met() {
    let (report, runs, outcomes) = reproduce(20);
    let row = |case: &str, metric: &str| {
        let rows = || report.sections.iter().flat_map(|section| &section.rows);
        rows().find(|row| row.case == case && row.full_metric() == metric).unwrap_or_else(|| panic!("{case} {metric}"))
    };
    let missed = |case: &str| row(case, "violations_percent");
    let mut starved = 0.0f64;
    for case in ["slo_a", "slo_b"] {
        for name in ["web0", "web1", "tpcc0", "tpcc1"] {
            let row = missed(&format!("{case}, {name}"));
            let ours = row.evenkeel.expect("a figure");
            assert!(ours <= 0.0, "{case}, {name}: {ours} %");
            let faithful = row.faithful.expect("a figure");
            assert!(faithful <= 5.0, "{case}, {name}: {faithful} % under DRG");
            starved = starved.max(row.baseline.expect("a figure"));
        }
        let throughput = row(case, "throughput");
        let (ours, rwd) = (throughput.evenkeel.expect("a figure"), throughput.baseline.expect("a figure"));
        assert!(ours >= 0.99 * rwd, "{case}: {ours} requests a second, {rwd} under RW(D)");
    }
    assert!(starved >= 5.0, "a static share starves someone: {starved} %");
    // Who waits for a neighbour without control does not with it.
    for name in ["web0", "web1", "tpcc0", "tpcc1"] {
        let case = format!("neighbour, {name}");
        let ours = row(&case, "neighbour_violations_percent").evenkeel.expect("a figure");
        let none = row(&case, "neighbour_violations_percent_none").baseline.expect("a figure");
        assert!(ours <= 0.0, "{case}: {ours} %");
        assert!(none >= 10.0 || name == "tpcc1", "{case}: {none} % without control");
    }
    let kept = row("unachievable", "unachievable_workloads_kept");
    assert!(kept.evenkeel >= kept.baseline, "{kept:?}");
    // Arrivals are counted by second: 345 web requests a second, and none of a host that is gone.
    let sent = |run: usize, workload: usize| outcomes[run].seconds[workload].iter().map(|second| second.sent);
    assert!((38_000..45_000).contains(&sent(0, 0).sum::<u64>()), "{}", sent(0, 0).sum::<u64>());
    let dies = |(setup, _): &(Setup, u64)| setup.workloads[3].until < Instant::FAR_FUTURE;
    let death = runs.iter().position(dies).expect("a death");
    assert!(sent(death, 3).nth(29) > Some(0) && sent(death, 3).skip(30).all(|sent| sent == 0), "gone at 40 s");
    // The same seed, the same run.
    assert_eq!(simulate(&runs[3].0, runs[3].1).as_ref(), Ok(&outcomes[3]));
}

#[test]
fn lost_figures_change_nothing_on_a_single_host() {
    let mut all = Vec::new();
    let options = Options { seed: 20, quick: true, ..Options::default() };
    let stopped = drg::run(&options, &Traces::default(), &mut |_, runs: &[(Setup, u64)]| {
        all = runs.to_vec();
        Err::<Vec<Outcome>, _>("only the setups are wanted")
    });
    assert!(stopped.is_err());
    let is_single = |setup: &Setup| setup.workloads.iter().all(|workload| workload.host == 0);
    assert!(all.iter().any(|(setup, _)| setup.partition.is_some()));
    assert!(all.iter().all(|(setup, _)| setup.partition.is_none() || !is_single(setup)));
    for method in [Method::Rwd, Method::Drg] {
        let found = all.iter().find(|(setup, _)| is_single(setup) && setup.slots.method == method);
        let (setup, seed) = found.expect("a run of the method");
        let heard = Setup { lead: Duration::from_secs(1), duration: Duration::from_secs(4), ..setup.clone() };
        let lost = Setup { partition: Some((Instant::ZERO, Instant::FAR_FUTURE)), ..heard.clone() };
        let outcome = simulate(&heard, *seed).expect("an outcome");
        assert!(outcome.seconds.iter().flatten().any(|second| second.completed > 0));
        assert_eq!(simulate(&lost, *seed), Ok(outcome));
    }
}
