//! Tests of the experiment on the shared iSCSI target: the experiment's bars, and properties that must hold on other modelled
//! iSCSI targets, too.

use evenkeel_control::response::Config;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::jitter::Jitter;
use evenkeel_model::link::{Delayed, LinkParams};
use evenkeel_sim::experiment::iscsi::judge::{Verdict, judge};
use evenkeel_sim::experiment::iscsi::world::{Control, Host, Outcome, Setup, simulate, written_mb_per_s};
use evenkeel_sim::experiment::iscsi::{self};
use evenkeel_sim::experiment::{Options, Report, Row};

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn reproduce(seed: u64) -> Report {
    iscsi::run(&Options { seed, quick: true, ..Options::default() }, &mut |_, runs: &[(Setup, u64)]| {
        runs.iter().map(|(setup, seed)| simulate(setup, *seed)).collect::<Result<Vec<_>, _>>()
    })
    .unwrap()
}

#[test]
fn targets_are_held_and_the_paper_is_reproduced() {
    // Not a seed that constants were looked at with.
    let report = reproduce(8200);
    let rows = || report.sections.iter().flat_map(|section| &section.rows);
    let is_paper = |row: &&Row| ["20 ms", "15 ms", "10 ms"].contains(&row.case.as_str());
    let judged: Vec<&Row> = rows().filter(|row| row.bar.is_some()).filter(is_paper).collect();
    assert_eq!(judged.len(), 3 * 4, "three targets; above, settled, settled again, written");
    for row in judged {
        let ours = row.evenkeel.unwrap();
        // Five seeds of 28 windows: a single one above the target is 0.7 %, so that 1 % leaves no room for chance.
        let bound = match row.metric.as_str() {
            "above_target_percent" => ours <= 2.2,
            "write_throughput_vs_best_constant_percent" => ours >= 97.0,
            _ => ours <= 1.0,
        };
        assert!(bound, "{row:?}");
    }
    for target in ["20 ms", "15 ms", "10 ms"] {
        let of = |metric: &str| rows().find(|row| row.case == target && row.full_metric() == metric).unwrap();
        let above = of("above_target_percent");
        assert!(above.baseline.unwrap() > 90.0 && above.faithful.unwrap() > 20.0, "{above:?}");
        let late = of("late_mean_ratio");
        assert!((0.9..1.1).contains(&late.faithful.unwrap()), "the published controller holds the mean: {late:?}");
        assert!(of("settle_s").faithful.unwrap() > 2.0, "and takes its time");
        let (low, high) = (of("above_target_percent_low"), of("above_target_percent_high"));
        assert!(high.baseline < Some(0.0), "fewer windows above the target than without control: {high:?}");
        assert!(low.evenkeel <= above.evenkeel && above.evenkeel <= high.evenkeel);
    }
    let unfavourable = report.claims.iter().filter(|claim| claim.source.contains("unfavourable"));
    assert!(unfavourable.clone().count() == 2 && unfavourable.into_iter().all(|claim| !claim.reproduced));
    let favourable: Vec<_> = report.claims.iter().filter(|claim| !claim.source.contains("unfavourable")).collect();
    assert!(favourable.len() > 10 && favourable.iter().all(|claim| claim.reproduced), "{favourable:#?}");
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let small = |seed| {
        let setup = bursts(LinkParams::shared(), &[4, 4, 4], Config::adaptive(Duration::from_millis(15)));
        simulate(&Setup { duration: Duration::from_secs(15), ..setup }, seed).unwrap()
    };
    assert_eq!(small(5), small(5));
    assert_ne!(small(5), small(6));
}

const BURSTS: [(u64, u64); 2] = [(5, 35), (40, 70)];

/// A setup with the reader and, for each element of `writers`, a host with that many writers in bursts.
fn bursts(link: LinkParams, writers: &[usize], config: Config) -> Setup {
    let reader = Host {
        id: 1,
        kind: Kind::Read,
        bytes: 4096,
        streams: 1,
        pace: Duration::from_micros(15_625),
        active: vec![(at(0), at(75))],
    };
    let active: Vec<_> = BURSTS.iter().map(|&(begin, end)| (at(begin), at(end))).collect();
    let writer = |(&streams, id): (&usize, u64)| Host {
        id,
        kind: Kind::Write,
        bytes: 64 << 10,
        streams,
        pace: Duration::ZERO,
        active: active.clone(),
    };
    let hosts = std::iter::once(reader).chain(writers.iter().zip(2..).map(writer)).collect();
    let control = Control::Controller(config);
    Setup { link, hosts, on: Delayed::Acknowledgements, control, duration: Duration::from_secs(75) }
}

fn verdict(setup: &Setup, target_ms: f64, seed: u64) -> (Verdict, Outcome) {
    let outcome = simulate(setup, seed).unwrap();
    (judge(&outcome, &BURSTS.map(|(begin, end)| (at(begin), at(end))), target_ms), outcome)
}

#[test]
fn targets_it_was_not_made_for() {
    let shared = LinkParams::shared();
    let cases = [
        ("a large window: two delays for a write", LinkParams { target_window_bytes: 24 << 10, ..shared }, 15),
        ("a small window: ten", LinkParams { target_window_bytes: 6 << 10, ..shared }, 20),
        ("service times without variation", LinkParams { jitter: Jitter::None, ..shared }, 15),
        ("unsteady service times", LinkParams { jitter: Jitter::LogNormal { sigma: 0.7 }, ..shared }, 20),
        (
            "four slow servers instead of one",
            LinkParams {
                servers: 4,
                read_time: Duration::from_millis(8),
                write_time: Duration::from_millis(12),
                ..shared
            },
            20,
        ),
    ];
    for (name, link, target_ms) in cases {
        let setup = bursts(link, &[4, 4, 4], Config::adaptive(Duration::from_millis(target_ms)));
        let (mut above, mut windows) = (0, 0);
        for seed in 31..34 {
            let (verdict, _) = verdict(&setup, target_ms as f64, seed);
            println!("{name}: {verdict:?}");
            assert!(verdict.settle_s.iter().all(|&settle| settle <= 2.0), "{name}: {verdict:?}");
            (above, windows) = (above + verdict.above, windows + verdict.windows);
        }
        assert!(above * 33 <= windows, "{name}: {above} of {windows} windows above the target");
    }
}

#[test]
fn the_loudest_host_gives_up_most() {
    let setup = bursts(LinkParams::shared(), &[8, 2, 2], Config::adaptive(Duration::from_millis(15)));
    let (verdict, outcome) = verdict(&setup, 15.0, 9);
    assert!(verdict.above * 20 <= verdict.windows, "{verdict:?}");
    let settled = outcome.between(at(15), at(35));
    let mean = |host: usize| settled.iter().map(|tick| tick.delay_ms[host]).sum::<f64>() / settled.len() as f64;
    let bytes = |host: usize| settled.iter().map(|tick| tick.written_bytes[host]).sum::<u64>();
    assert!(mean(1) > 2.0 * mean(2).max(mean(3)), "{} {} {}", mean(1), mean(2), mean(3));
    assert!(bytes(1) < 4 * bytes(2) && bytes(1) > bytes(2), "{} {}", bytes(1), bytes(2));
}

#[test]
fn delays_end_with_the_load_and_idle_costs_nothing() {
    let setup = bursts(LinkParams::shared(), &[4, 4, 4], Config::adaptive(Duration::from_millis(15)));
    let (_, outcome) = verdict(&setup, 15.0, 12);
    let delayed =
        |from, until| outcome.between(at(from), at(until)).iter().any(|tick| tick.delay_ms.iter().any(|&d| d > 0.0));
    assert!(!delayed(0, 5), "before the first burst");
    assert!(delayed(6, 35));
    assert!(!delayed(37, 40), "2 s after the first burst");
    assert!(!delayed(72, 75), "2 s after the second");
}

#[test]
fn an_open_window_is_noticed_and_delaying_all_packets_is_effective() {
    let open = LinkParams { target_window_bytes: 1 << 20, ..LinkParams::shared() };
    let mut setup = bursts(open, &[4, 4, 4], Config::adaptive(Duration::from_millis(15)));
    let (_, outcome) = verdict(&setup, 15.0, 3);
    let said = |outcome: &Outcome, from, until| {
        outcome.between(at(from), at(until)).iter().any(|tick| tick.reason == Some("ineffective"))
    };
    assert!(said(&outcome, 5, 30), "within 25 s");
    setup.on = Delayed::Everything;
    // One delay for each write: it takes a longer one.
    let long = Config { max_delay: Duration::from_millis(60), ..Config::adaptive(Duration::from_millis(15)) };
    setup.control = Control::Controller(long);
    let (everything, outcome) = verdict(&setup, 15.0, 3);
    assert!(!said(&outcome, 0, 75));
    assert!(everything.above * 20 <= everything.windows, "{everything:?}");
}

/// In each burst the hosts begin one after the other. In the second burst the overshoot is at most 20 % of the latency target.
#[test]
fn hosts_that_return_one_by_one_are_met_in_time() {
    for target_ms in [20.0, 15.0, 10.0] {
        for seed in 50..56 {
            let config = Config::adaptive(Duration::from_nanos((target_ms * 1e6) as u64));
            let mut setup = bursts(LinkParams::shared(), &[4, 4, 4], config);
            for (host, n) in setup.hosts.iter_mut().skip(1).zip(0..) {
                let late = Duration::from_millis(350 * n);
                host.active.iter_mut().for_each(|(begin, _)| *begin += late);
            }
            let (verdict, _) = verdict(&setup, target_ms, seed);
            assert!(verdict.overshoot_ratio[1] <= 1.2, "target {target_ms}, seed {seed}: {verdict:?}");
        }
    }
}

/// Per cent of the windows of 1 s above the latency target, over seeds 900 to 904. `pace` is the time between the reader's
/// requests; `bursts_s` are beginnings and ends of the writers' bursts in seconds.
fn above_percent(pace: Duration, bursts_s: &[(u64, u64)], control: &Control) -> f64 {
    let active: Vec<_> = bursts_s.iter().map(|&(begin, end)| (at(begin), at(end))).collect();
    let (mut above, mut windows) = (0, 0);
    for seed in 900..905 {
        let mut setup = bursts(LinkParams::shared(), &[4, 4, 4], Config::adaptive(Duration::from_millis(15)));
        setup.hosts[0].pace = pace;
        setup.hosts.iter_mut().skip(1).for_each(|host| host.active.clone_from(&active));
        setup.control = control.clone();
        let verdict = judge(&simulate(&setup, seed).unwrap(), &active, 15.0);
        (above, windows) = (above + verdict.above, windows + verdict.windows);
    }
    100.0 * f64::from(above) / f64::from(windows)
}

#[test]
fn a_target_is_held_for_a_reader_of_two_reads_a_second_and_beside_short_bursts() {
    let ours = Control::Controller(Config::adaptive(Duration::from_millis(15)));
    let constant = Control::Schedule((2..5).map(|host| (at(0), host, Duration::from_micros(6_500))).collect());
    let short: Vec<(u64, u64)> = (0..16).map(|n| (5 + 4 * n, 7 + 4 * n)).collect();
    let every = Duration::from_micros(15_625);
    for (name, pace, bursts_s) in
        [("two reads a second", Duration::from_millis(500), &BURSTS[..]), ("bursts of 2 s", every, &short[..])]
    {
        let (ours, constant) = (above_percent(pace, bursts_s, &ours), above_percent(pace, bursts_s, &constant));
        println!("{name}: {ours:.1} % of windows above the target, with a constant delay {constant:.1} %");
        // Without control all are above it.
        assert!(ours <= 5.0 + constant, "{name}: {ours} and {constant}");
    }
}

/// If the longest delay cannot meet the latency target, the controller tries the throttle. On a modelled iSCSI target this
/// trial ends with the right decision with every seed.
#[test]
fn every_trial_on_a_modelled_target_ends_as_it_must() {
    let shared = LinkParams::shared();
    let open = LinkParams { target_window_bytes: 1 << 20, ..shared };
    for (name, link, on, bites) in [
        ("open window, acknowledgements", open, Delayed::Acknowledgements, false),
        ("open window, everything", open, Delayed::Everything, true),
        ("capped window, acknowledgements", shared, Delayed::Acknowledgements, true),
    ] {
        let config = Config { max_delay: Duration::from_millis(4), ..Config::adaptive(Duration::from_millis(12)) };
        let runs = 60;
        let mut tried = 0;
        for seed in 700..700 + runs {
            let mut setup = bursts(link, &[4, 4, 4], config);
            (setup.on, setup.duration) = (on, Duration::from_secs(33));
            let outcome = simulate(&setup, seed).unwrap();
            let said = |reason| outcome.ticks.iter().any(|tick| tick.reason == Some(reason));
            tried += usize::from(said("testing_effect"));
            assert_eq!(said("ineffective"), !bites, "{name}, seed {seed}");
        }
        assert_eq!(tried as u64, runs, "{name}");
    }
}

#[test]
fn what_is_moved_is_what_is_counted() {
    let setup = bursts(LinkParams::shared(), &[4], Config::adaptive(Duration::from_millis(15)));
    let (_, outcome) = verdict(&setup, 15.0, 2);
    assert_eq!(outcome.ticks.len(), 750);
    assert!(outcome.ticks.iter().all(|tick| tick.written_bytes.iter().all(|bytes| bytes % 65_536 == 0)));
    assert_eq!(written_mb_per_s(outcome.between(at(36), at(40))), 0.0, "nothing is written in the pause");
    let reads: u64 = outcome.between(at(36), at(40)).iter().map(|tick| tick.reads).sum();
    assert_eq!(reads, 4 * 64, "the reader keeps its pace");
}
