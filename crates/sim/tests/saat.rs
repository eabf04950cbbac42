//! Tests of the SAAT experiment on the cached device: a few runs with a seed that was not used to choose constants, and checks
//! of the experiment's bookkeeping.

use evenkeel_control::Duration;
use evenkeel_control::throughput::{Config, Method};
use evenkeel_model::cached::CachedParams;
use evenkeel_sim::experiment::saat::recorded::{Recorded, name_of};
use evenkeel_sim::experiment::saat::run::simulate;
use evenkeel_sim::experiment::saat::tenants::Habits;
use evenkeel_sim::experiment::saat::world::{Control, Outcome, Setup};
use evenkeel_sim::experiment::saat::{self, grid};
use evenkeel_sim::experiment::{Options, Report, Row};
use evenkeel_sim::workload::trace::{self, Reader};

fn setup(group: usize, control: Control, seconds: u64) -> Setup {
    let tenants = grid::groups(&saat::Traces::new())[group].cases[0].clone();
    let lead = Duration::from_secs(10);
    let (device, habits) = (CachedParams::paper(), Habits::FITTED);
    Setup { device, tenants, habits, control, lead, duration: Duration::from_secs(seconds) }
}

/// The report, and the names of its batches, if every tenant gets what `tenths` says of its run and its guarantee.
fn reported(quick: bool, tenths: impl Fn(&Setup, f64) -> Vec<f64>) -> (Report, Vec<String>) {
    let (options, mut names) = (Options { seed: 1, quick, ..Options::default() }, Vec::new());
    let report = saat::run(&options, &saat::Traces::new(), &mut |name, runs: &[(Setup, u64)]| -> Result<_, String> {
        names.push(name.to_owned());
        let outcome = |(setup, _): &(Setup, u64)| Outcome {
            tenths: setup.tenants.iter().map(|tenant| tenths(setup, tenant.guaranteed)).collect(),
        };
        Ok(runs.iter().map(outcome).collect())
    });
    (report.unwrap(), names)
}

/// DAT (deviation of the mean throughput) and jitter of a run, as fractions of the guarantee, averaged over the tenants.
fn figures(setup: &Setup, outcome: &Outcome) -> (f64, f64) {
    let n = setup.tenants.len() as f64;
    let of = |(place, guaranteed): (usize, f64)| {
        let periods = outcome.periods(place, 0);
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / periods.len() as f64;
        let far = |rate: f64| (rate / guaranteed - 1.0).abs();
        (far(mean(&mut periods.iter().copied())), mean(&mut periods.iter().map(|&rate| far(rate))))
    };
    let all = setup.tenants.iter().map(|tenant| tenant.guaranteed).enumerate().map(of);
    all.fold((0.0, 0.0), |sum, each| (sum.0 + each.0 / n, sum.1 + each.1 / n))
}

#[test]
fn guarantees_are_kept_where_a_plain_limit_falls_short() {
    let often = Config { interval: Duration::from_millis(100), ..Config::DEFAULT };
    for group in [1, 7, 13] {
        let run = |config| {
            let setup = setup(group, Control::Controller(config), 60);
            figures(&setup, &simulate(&setup, 7100).unwrap())
        };
        let (plain, ours) = (run(Config { method: Method::Static, ..often }), run(often));
        assert!(plain.0 > 0.02 && (plain.1 - plain.0).abs() < 0.002, "every second falls short alike: {plain:?}");
        assert!(ours.0 < 0.01 && ours.0 < 0.2 * plain.0, "{ours:?} against {plain:?}");
        assert!(ours.1 < plain.1, "and steadier: {ours:?} against {plain:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    for control in [Control::Controller(Config::DEFAULT), Control::Oracle] {
        let setup = setup(5, control, 5);
        let run = |seed| simulate(&setup, seed).unwrap();
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
        assert_eq!([0, 1, 9].map(|phase| run(5).periods(0, phase).len()), [5, 4, 4]);
    }
}

#[test]
fn rows_hold_what_was_measured() {
    // Every tenant gets 90 % of its guarantee, in every second as much; with our method every 100 ms 99.6 %.
    let got = |setup: &Setup| match setup.control {
        Control::Controller(Config { method: Method::Accurate, interval, .. }) if interval < Duration::from_secs(1) => {
            0.996
        }
        _ => 0.9,
    };
    let (report, _) = reported(true, |setup, guaranteed| vec![0.1 * got(setup) * guaranteed; 40]);
    let rows: Vec<&Row> = report.sections.iter().flat_map(|section| &section.rows).collect();
    let named = |metric: &str| rows.iter().filter(|row| row.full_metric() == metric).collect::<Vec<_>>();
    let near = |value: Option<f64>, expected: f64| assert!((value.unwrap() - expected).abs() < 1e-6, "{value:?}");
    for metric in ["dat_percent", "dat_worst_phase_percent", "jitter_percent", "jitter_worst_phase_percent"] {
        assert_eq!(named(metric).len(), 15, "fourteen groups and their mean");
        for row in named(metric) {
            near(row.baseline, 10.0);
            near(row.faithful, 10.0);
            near(row.evenkeel, 0.4);
        }
    }
    let ratios = named("jitter_vs_oracle_worst_phase_ratio");
    assert_eq!(ratios.len(), 15);
    for row in ratios {
        near(row.baseline, 1.0);
        near(row.faithful, 1.0);
        near(row.evenkeel, 0.04);
    }
    assert_eq!(named("dat_percent_oracle").len(), 15);
    let judged: Vec<Option<bool>> = rows.iter().map(|row| row.is_met()).filter(Option::is_some).collect();
    assert_eq!(judged, [Some(true); 28], "both bars in each group");
    assert!(report.claims.iter().any(|claim| !claim.reproduced), "SAAT did not help");
}

/// Four seconds of ours are right if they begin with the controller's own, and 20 % off if they begin half a second later.
#[test]
fn bars_are_judged_in_the_phase_in_which_a_method_is_worst() {
    let tenths = |setup: &Setup, guaranteed: f64| -> Vec<f64> {
        let is_ours = match setup.control {
            Control::Controller(Config { method: Method::Accurate, interval, .. }) => interval < Duration::from_secs(1),
            _ => false,
        };
        let got = |place: usize| match place % 20 {
            _ if !is_ours => 0.9,
            5..=14 => 0.8,
            _ => 1.2,
        };
        (0..40).map(|place| 0.1 * got(place) * guaranteed).collect()
    };
    let (report, _) = reported(true, tenths);
    // Half a second later three whole seconds are left: 0.8, 1.2 and 0.8.
    for (metric, [others, ours], met) in [
        ("dat_percent", [10.0, 0.0], None),
        ("dat_worst_phase_percent", [10.0, 20.0 / 3.0], Some(false)),
        ("jitter_percent", [10.0, 0.0], None),
        ("jitter_worst_phase_percent", [10.0, 20.0], None),
        ("jitter_vs_oracle_worst_phase_ratio", [1.0, 2.0], Some(false)),
    ] {
        let rows: Vec<&Row> = report.sections[0].rows.iter().filter(|row| row.full_metric() == metric).collect();
        assert_eq!(rows.len(), 15, "{metric}");
        for row in &rows {
            for (value, expected) in [(row.baseline, others), (row.faithful, others), (row.evenkeel, ours)] {
                assert!((value.unwrap() - expected).abs() < 1e-6, "{metric}: {value:?} instead of {expected}");
            }
        }
        assert!(rows[..14].iter().all(|row| row.is_met() == met), "{metric}");
        assert_eq!(rows[14].is_met(), None, "{metric}: the mean of the groups has no bar");
    }
}

#[test]
fn other_constants_are_tried_with_their_own_device_and_tenants() {
    // 6 % are missing under a plain limit and 3 % by the published method, twice that with larger latencies.
    let got = |setup: &Setup| {
        let missing = match setup.control {
            Control::Controller(Config { method: Method::Static, .. }) => 0.06,
            Control::Controller(Config { method: Method::Saat, .. }) => 0.03,
            _ => 0.0,
        };
        1.0 - if setup.device.slow_latency > Duration::from_millis(1) { 2.0 * missing } else { missing }
    };
    let (report, names) = reported(false, |setup, guaranteed| vec![0.1 * got(setup) * guaranteed; 20]);
    assert_eq!(names, ["groups", "sensitivity"]);
    let section = &report.sections[1];
    let dat: Vec<&Row> = section.rows.iter().filter(|row| row.full_metric() == "dat_percent").collect();
    assert_eq!((dat.len(), section.rows.len()), (12, 24));
    for row in dat {
        let factor = if row.case.contains("1250 us") { 2.0 } else { 1.0 };
        let expected = [6.0 * factor, 3.0 * factor, 0.0];
        let measured = [row.baseline, row.faithful, row.evenkeel].map(Option::unwrap);
        assert!(
            measured.iter().zip(expected).all(|(measured, expected)| (measured - expected).abs() < 1e-6),
            "{row:?}"
        );
    }
    assert!(section.text[0].contains("between 3.00 and 3.00 %"), "12 % are beyond what fits: {}", section.text[0]);
}

/// A trace in the format of the MSR Cambridge files with `requests` requests, of which one in `reads_in` is a read. Requests go
/// to the first `span` bytes, except that 400 consecutive ones of every 6,000 go to new offsets.
fn msr(requests: u64, reads_in: u64, span: u64) -> String {
    let line = |n: u64| {
        let op = if n.is_multiple_of(reads_in) { "Read" } else { "Write" };
        let offset = if n % 6_000 < 400 { (1 << 30) + n * 131_072 } else { n * 7_919 * 131_072 % span };
        format!("{},host,0,{op},{offset},131072,100\n", 128_166_372_003_061_629 + n * 10_000)
    };
    (0..requests).map(line).collect()
}

fn recorded(texts: &[String]) -> Recorded {
    let mut recorded = Recorded::default();
    for text in texts {
        recorded.add(Reader::new(text.as_bytes(), "msr.csv", trace::Options::default())).unwrap();
    }
    recorded
}

#[test]
fn recorded_traces_are_replayed_and_guarantees_to_them_kept() {
    let text = msr(40_000, 4, 64 << 20);
    let usr = std::sync::Arc::new(recorded(&[text]));
    assert_eq!((usr.requests(), usr.reads()), (40_000, Some(0.25)));
    let groups = grid::groups(&saat::Traces::from([("usr", usr)]));
    let tenants = groups[0].cases[0].clone();
    assert!(tenants[0].recorded.is_some() && groups[0].cases[1][0].recorded.is_none(), "of usr, not of prn");
    assert_eq!(tenants[0].guaranteed_of(evenkeel_control::units::Kind::Read), 37_500_000.0, "a quarter of 150 MB/s");
    let run = |config| {
        let setup = Setup {
            device: CachedParams::paper(),
            tenants: tenants.clone(),
            habits: Habits::FITTED,
            control: Control::Controller(config),
            lead: Duration::from_secs(10),
            duration: Duration::from_secs(60),
        };
        figures(&setup, &simulate(&setup, 7100).unwrap())
    };
    let often = Config { interval: Duration::from_millis(100), ..Config::DEFAULT };
    let (plain, ours) = (run(Config { method: Method::Static, ..often }), run(often));
    assert!(plain.0 > 0.005, "misses cost something: {plain:?}");
    assert!(ours.0 < 0.0045 && ours.0 < plain.0, "{ours:?} against {plain:?}");
}

#[test]
fn requests_of_a_recorded_trace_count_with_their_own_size() {
    // 8 KiB and 512 KiB in turn, all within the cache.
    let line =
        |n: u64| format!("{},h,0,Read,{},{},1\n{},h,0,Write,0,8192,1\n", n, (n % 8) << 20, 8192 << (6 * (n % 2)), n);
    let usr = std::sync::Arc::new(recorded(&[(0..1_000).map(line).collect()]));
    let groups = grid::groups(&saat::Traces::from([("usr", usr)]));
    let control = Control::Controller(Config { method: Method::Static, ..Config::DEFAULT });
    let tenants = groups[0].cases[0].clone();
    let setup = Setup { tenants, ..setup(0, control, 20) };
    let (dat, _) = figures(&setup, &simulate(&setup, 7100).unwrap());
    assert!(dat < 0.02, "without misses the limit is what it gets: {dat}");
}

#[test]
fn files_are_known_by_name_and_added_up() {
    let names = ["usr_0.csv", "src1_2.csv", "WEB.csv", "rsrch_1.csv.txt", "prxy_0.csv", "csv", ""].map(name_of);
    assert_eq!(names, [Some("usr"), Some("src"), Some("web"), Some("rsrch"), None, None, None]);
    let two = recorded(&[msr(100, 2, 1 << 20), msr(50, 2, 1 << 20)]);
    assert_eq!((two.requests(), two.reads()), (150, Some(0.5)));
    assert_eq!(recorded(&[msr(10, 11, 1 << 20).lines().skip(1).collect::<Vec<_>>().join("\n")]).reads(), None);
    let broken = Recorded::default().add(Reader::new(&b"1,h,0,Read,0,512,1\nnonsense\n"[..], "x", Default::default()));
    assert!(broken.is_err());
}
