//! Tests of a pool's latency target for reads, in virtual time, with the controllers that the server runs in real time.

use evenkeel_control::{Duration, Instant};
use evenkeel_sim::scenario::metric::Metric;
use evenkeel_sim::scenario::{self, Scenario};
use evenkeel_sim::world::{Run, run_quietly};

const TARGET_MS: f64 = 15.0;

fn scenario(assignments: &[&str]) -> Scenario {
    let text = include_str!("../../../scenarios/latency-target.toml");
    let assignments: Vec<String> = assignments.iter().map(|&text| text.to_owned()).collect();
    let mut open = |name: &str| Err(std::io::Error::other(format!("no trace {name}")));
    scenario::parse(text, "latency-target.toml", &assignments, &mut open).unwrap_or_else(|e| panic!("{e:?}")).scenario
}

fn run(assignments: &[&str], seed: u64) -> Run {
    run_quietly(&scenario(assignments).setup, seed).unwrap()
}

/// Values of a metric in each second of the run, from second `from` to second `until`.
fn seconds(run: &Run, metric: &str, from: u64, until: u64) -> Vec<f64> {
    let (backup, database) = ("backup".to_owned(), "database".to_owned());
    let metric = Metric::parse(metric, &[&backup, &database]).unwrap();
    let at = |second| Instant::ZERO + Duration::from_secs(second);
    (from..until).map(|second| metric.measure(run, Some((at(second), at(second + 1))))).collect()
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

/// Values of the reads' latency metric in each second of both bursts, without the first second of each burst.
fn reads_in_bursts(run: &Run) -> Vec<f64> {
    [seconds(run, "database.mean_ms", 6, 25), seconds(run, "database.mean_ms", 31, 50)].concat()
}

#[test]
fn the_target_is_held_and_costs_no_throughput() {
    for seed in 1..=5 {
        let (without, with) = (run(&["pool.latency.target=\"10s\""], seed), run(&[], seed));
        assert!(mean(&reads_in_bursts(&without)) > 2.0 * TARGET_MS, "seed {seed}: there is something to hold");
        let reads = reads_in_bursts(&with);
        let late = reads.iter().filter(|&&ms| ms > TARGET_MS).count();
        assert!(late * 100 <= reads.len(), "seed {seed}: {late} seconds late: {reads:.1?}");
        let written = |run: &Run| mean(&seconds(run, "backup.bytes_per_s", 6, 25));
        assert!(written(&with) >= 0.97 * written(&without), "seed {seed}: {} {}", written(&with), written(&without));
    }
}

#[test]
fn a_burst_is_met_within_its_first_second() {
    for seed in 1..=5 {
        let run = run(&[], seed);
        let (first, again) = (seconds(&run, "database.mean_ms", 5, 6)[0], seconds(&run, "database.mean_ms", 30, 31)[0]);
        assert!(first < 1.5 * TARGET_MS && again < 1.5 * TARGET_MS, "seed {seed}: {first:.1} ms, then {again:.1} ms");
    }
}

#[test]
fn the_published_controller_approaches_it() {
    let run = run(&["pool.tuning.method=\"pid\""], 1);
    let reads = seconds(&run, "database.mean_ms", 30, 50);
    assert!(reads[0] > 1.3 * TARGET_MS && reads[19] < 1.15 * TARGET_MS, "{reads:.1?}");
}

#[test]
fn a_percentile_is_held_too() {
    for seed in 1..=3 {
        let mut setup = scenario(&["pool.latency.percentile=99", "pool.latency.target=\"25ms\""]).setup;
        (setup.warmup, setup.duration) = (Duration::from_secs(7), Duration::from_secs(43));
        let run = run_quietly(&setup, seed).unwrap();
        let p99 = run.tenants[1].response.p99().as_millis_f64();
        assert!((12.0..=25.0).contains(&p99), "seed {seed}: {p99} ms");
    }
}

#[test]
fn on_a_disk_behind_elastic_admission_as_well() {
    let disk = ["device.iops=180", "device.bandwidth=\"10MB\""];
    for seed in 1..=3 {
        let late = |admission: &str, target: &str| {
            let settings =
                [format!("pool.tuning.admission=\"{admission}\""), format!("pool.latency.target=\"{target}\"")];
            let reads = reads_in_bursts(&run(&[&disk[..], &settings.each_ref().map(String::as_str)].concat(), seed));
            reads.iter().filter(|&&ms| ms > 20.0).count()
        };
        // A cold search for the budget is part of the first burst.
        let (without, with) = (late("none", "10s"), late("elastic", "20ms"));
        assert!(without >= 15 && with * 4 <= without, "seed {seed}: of 38 seconds {without} late without, {with} with");
    }
}

#[test]
fn reservations_and_throttle_never_win() {
    let guaranteed = run(&["tenants.backup.reservation.bytes_per_s=\"90MB\"", "pool.latency.target=\"2ms\""], 1);
    let written = mean(&seconds(&guaranteed, "backup.bytes_per_s", 6, 25));
    assert!(written >= 89.5e6, "{written}");
    let spared = run(&["tenants.backup.throttle=\"never\""], 1);
    assert!(mean(&reads_in_bursts(&spared)) > 2.0 * TARGET_MS);
}

/// The values of `metrics` in a run of the scenario `text`.
fn measured(text: &str, tenants: &[String], metrics: &[&str]) -> Vec<f64> {
    let names: Vec<&String> = tenants.iter().collect();
    let mut open = |name: &str| Err(std::io::Error::other(format!("no trace {name}")));
    let parsed = scenario::parse(text, "test", &[], &mut open).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    let run = run_quietly(&parsed.scenario.setup, 1).unwrap();
    metrics.iter().map(|metric| Metric::parse(metric, &names).unwrap().measure(&run, None)).collect()
}

#[test]
fn four_hundred_tenants_of_sixty_kib_a_second_are_noisy_together() {
    let text = |target: &str| {
        let mut text = format!(
            "duration = \"10s\"\nwarmup = \"5s\"\n[device]\nkind = \"store\"\npreset = \"ssd\"\niops = 6000\n\
             [pool]\ntuning.admission = \"none\"\nlatency.target = \"{target}\"\n[tenants.database]\n[[client]]\n\
             tenant = \"database\"\nworkload = {{ op = \"read\", rate = 64, block_size = \"4k\", size = \"20GiB\" }}\n"
        );
        for n in 0..400 {
            text += &format!(
                "[tenants.t{n}]\n[[client]]\ntenant = \"t{n}\"\n\
                 workload = {{ op = \"write\", queue_depth = 1, block_size = \"4k\", size = \"20GiB\" }}\n"
            );
        }
        text
    };
    let tenants: Vec<String> = std::iter::once("database".into()).chain((0..400).map(|n| format!("t{n}"))).collect();
    let metrics = ["database.mean_ms", "bytes_per_s"];
    let (none, with) = (measured(&text("100s"), &tenants, &metrics), measured(&text("15ms"), &tenants, &metrics));
    println!(
        "reads {:.1} ms without a target, {:.1} ms with; {:.3e} and {:.3e} bytes/s",
        none[0], with[0], none[1], with[1]
    );
    assert!(none[0] > 45.0 && with[0] <= 15.0, "{none:?} {with:?}");
    assert!(with[1] > 0.95 * none[1], "{none:?} {with:?}");
}

/// A latency target does not violate a reservation, and a throttled request waits for a bounded time.
#[test]
fn a_reservation_of_500_iops_is_kept_beside_a_target() {
    let text = |target: &str| {
        format!(
            "duration = \"20s\"\nwarmup = \"5s\"\n[device]\nkind = \"store\"\npreset = \"ssd\"\niops = 1500\n\
             [pool]\ntuning.admission = {{ kind = \"fixed\", budget = \"1MiB\" }}\nlatency.target = \"{target}\"\n\
             latency.percentile = 99\n[tenants.database]\n[tenants.reserved]\nreservation = {{ iops = 500 }}\n\
             [tenants.background]\n[[client]]\ntenant = \"database\"\n\
             workload = {{ op = \"read\", rate = 64, block_size = \"4k\", size = \"20GiB\" }}\n\
             [[client]]\ntenant = \"reserved\"\n\
             workload = {{ op = \"write\", queue_depth = 32, block_size = \"16k\", size = \"20GiB\" }}\n\
             [[client]]\ntenant = \"background\"\n\
             workload = {{ op = \"write\", queue_depth = 256, block_size = \"64k\", size = \"20GiB\" }}\n"
        )
    };
    let tenants = ["background", "database", "reserved"].map(str::to_owned);
    let metrics = ["reserved.iops", "background.p999_ms", "database.p99_ms"];
    let (none, with) = (measured(&text("100s"), &tenants, &metrics), measured(&text("15ms"), &tenants, &metrics));
    println!("reserved, IOPS; background p999, ms; database p99, ms: {none:.0?} without a target, {with:.0?} with");
    assert!(none[0] >= 500.0 && with[0] >= 499.0, "{none:?} {with:?}");
    assert!(with[1] <= none[1] + 2_300.0, "{none:?} {with:?}");
}
