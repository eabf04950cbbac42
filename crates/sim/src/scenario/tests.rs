use super::*;
use crate::world;
use evenkeel_control::admission;
use evenkeel_control::pool::guarantee::Throughputs;
use proptest::prelude::*;

const MINIMAL: &str = r#"
duration = "1s"
[device]
kind = "store"
[pool]
tuning.admission = "none"
[tenants.a]
[tenants."b.c"]
weight = 3
[[client]]
tenant = "a"
workload = { op = "write" }
[[client]]
tenant = "b.c"
count = 2
from = "100ms"
until = "900ms"
workload = { queue_depth = 4, block_size = "64k" }
"#;

/// A function that opens traces and finds none: every file is missing.
fn no_file(name: &str) -> io::Result<Box<dyn BufRead>> {
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no {name} here")))
}

fn read(text: &str, set: &[&str]) -> Result<Scenario, Vec<Problem>> {
    let set: Vec<String> = set.iter().map(|&set| set.to_owned()).collect();
    parse(text, "test.toml", &set, &mut no_file).map(|parsed| parsed.scenario)
}

fn errors(text: &str, set: &[&str]) -> String {
    let problems = read(text, set).expect_err("errors");
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

/// The smallest valid scenario, with `text` appended.
fn with(text: &str) -> String {
    format!("{MINIMAL}{text}")
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

#[test]
fn what_is_said_is_what_is_run() {
    let scenario = read(MINIMAL, &[]).unwrap();
    let setup = &scenario.setup;
    assert_eq!((setup.warmup, setup.duration), (Duration::ZERO, Duration::from_secs(1)));
    assert_eq!(setup.sample_every, Duration::from_millis(5), "about 200 samples");
    assert_eq!((scenario.seed, scenario.seeds), (1, 1));
    assert_eq!(setup.tenants.iter().map(|tenant| tenant.name.as_str()).collect::<Vec<_>>(), ["a", "b.c"]);
    assert_eq!(setup.tenants[1].qos.weight, 3);
    let clients: Vec<_> = setup.clients.iter().map(|client| (client.tenant, client.from, client.until)).collect();
    assert_eq!(clients, [(0, at(0), at(1000)), (1, at(100), at(900)), (1, at(100), at(900))]);
    assert!(matches!(setup.pool.admission, admission::Config::None));
    let run = world::run_quietly(setup, scenario.seed).unwrap();
    assert!(run.tenants.iter().all(|tenant| tenant.requests > 0));
}

#[test]
fn workers_are_those_of_serve_unless_set_otherwise() {
    let plain = read(&with("[workers]\ncount = 4\n"), &[]).unwrap().setup.workers.unwrap();
    let serve = evenkeel_model::worker::WorkerParams::serve();
    let near = |one: u64, other: u64| one.abs_diff(other) <= other / 100;
    assert_eq!((plain.params.receive_time, plain.params.send_time), (serve.receive_time, serve.send_time));
    assert!(near(plain.params.receive_bytes_per_s, serve.receive_bytes_per_s), "{:?}", plain.params);
    assert_eq!((plain.count, plain.connections, plain.placement.name()), (4, 1, "waits"));
    let set = ["workers.placement=round_robin", "workers.time_per_request=1ms", "workers.time_per_kib=1us"];
    let slow = read(&with("[workers]\ncount = 1\nconnections = 3\n"), &set).unwrap().setup.workers.unwrap();
    assert_eq!((slow.count, slow.connections, slow.placement.name()), (1, 3, "round_robin"));
    assert_eq!(slow.params.receive_time + slow.params.send_time, Duration::from_millis(1));
    assert_eq!(slow.params.send_bytes_per_s, 1_024_000_000);
    assert!(read(MINIMAL, &[]).unwrap().setup.workers.is_none());
}

#[test]
fn values_are_put_over_the_text() {
    let set = [
        "pool.tuning.admission={ kind = \"fixed\", budget = \"1MiB\" }",
        "pool.tuning.admission.budget=64KiB",
        "duration=3s",
        "tenants.\"b.c\".weight=6",
        "tenants.\"b.c\".pools.main.weight=7",
        "client.1.count=5",
        "client.0.workload.queue_depth=9",
        "pool.limit.iops=100",
        "seeds=4",
    ];
    let scenario = read(MINIMAL, &set).unwrap();
    assert_eq!(scenario.setup.pool.admission, admission::Config::Fixed { budget_bytes: 65536 });
    assert_eq!(scenario.setup.duration, Duration::from_secs(3));
    assert_eq!((scenario.setup.tenants[1].qos.weight, scenario.seeds), (7, 4));
    assert_eq!((scenario.setup.clients.len(), scenario.setup.pool.limit.iops), (6, 100));
}

#[test]
fn changes_lie_on_top_of_each_other() {
    let changes = r#"
[[change]]
at = "600ms"
pool = { tuning.base_cost = "8KiB" }
[[change]]
at = "300ms"
stall = "20ms"
device = { bandwidth = "50MB" }
pool = { tuning.admission = { kind = "fixed", budget = "128KiB" } }
[[change]]
at = "900ms"
device = { iops = 777 }
tenants.a = { limit = { iops = 5 } }
"#;
    let scenario = read(&with(changes), &[]).unwrap();
    let changes = &scenario.setup.changes;
    assert_eq!(changes.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [300, 300, 300, 600, 900, 900].map(at));
    let pool = |index: usize| match &changes[index].1 {
        Change::Pool(pool) => (pool.admission, pool.base_cost_bytes),
        other => panic!("{other:?}"),
    };
    let fixed = admission::Config::Fixed { budget_bytes: 131_072 };
    assert_eq!((pool(2), pool(3)), ((fixed, 4000), (fixed, 8192)), "the later keeps what the earlier said");
    let device = |index: usize| match &changes[index].1 {
        Change::Device(DeviceParams::Store(store)) => (store.bandwidth_bytes_per_s, store.iops),
        other => panic!("{other:?}"),
    };
    assert_eq!((device(1).0, device(4)), (50_000_000, (50_000_000, 777)));
    assert!(matches!(changes[0].1, Change::Stall(length) if length == Duration::from_millis(20)));
    assert!(matches!(changes[5].1, Change::Tenant(0, qos, Throughputs::NONE, None) if qos.limit.iops == 5));
    assert_eq!(scenario.marks.len(), 3);
    assert!(scenario.marks[0].1.contains("stall 20ms") && scenario.marks[0].1.contains("bandwidth"));
}

#[test]
fn a_scenario_runs_what_there_is_to_compare_with() {
    let admission =
        |kind: &str| read(MINIMAL, &[&format!("pool.tuning.admission={kind}")]).unwrap().setup.pool.admission;
    assert_eq!(["theta", "vegas", "gradient"].map(admission).map(|config| config.is_baseline()), [true; 3]);
    assert_eq!(admission("wbt"), admission::Config::Wbt { target: Duration::from_millis(2) });
    assert!(read(MINIMAL, &["pool.tuning.slots=sfq_d"]).unwrap().setup.pool.slots.is_some());
}

#[test]
fn every_error_has_its_line_its_key_and_a_cure() {
    let mut wrong = String::new();
    for (text, set, wanted) in [
        (
            "[[bound]]\nmetric = 'a.p99_m'\nmax = 3",
            &[][..],
            "test.toml:20:1: bound.0.metric: there is no metric of a tenant \"p99_m\"; did you mean \"p99_ms\"",
        ),
        ("[[bound]]\nmetric = 'd.p99_ms'\nmax = 3", &[], "bound.0.metric: there is no tenant \"d\""),
        (
            "[[bound]]\nmetric = 'iosp'\nmax = 3",
            &[],
            "did you mean \"iops\"?; those of a tenant are written TENANT.NAME",
        ),
        ("[[bound]]\nmetric = 'iops'", &[], "test.toml:19:1: bound.0: bounds nothing; give min, max or both"),
        ("[[bound]]\nmetric = 'iops'\nmin = 3\nmax = 2", &[], "test.toml:21:1: bound.0.min: is more than max"),
        ("[[bound]]\nmetric = 'iops'\nmax = '3ms'", &[], "bound.0.max: \"3ms\" is a text, but iops is a plain number"),
        ("[[bound]]\nmetric = 'a.p99_ms'\nmax = '3MB'", &[], "bound.0.max: \"3MB\" is not a length of time"),
        ("[[bound]]\nmetric = 'a.p99_ms'\nmax = 3\nfrom = '500ms'", &[], "known for the whole run only"),
        ("[[bound]]\nmetric = 'a.iops'\nmax = 3\nfrom = '2s'", &[], "bound.0.from: is not before the end of the run"),
        ("[[client]]\ntenant = 'x'\nworkload = {}", &[], "test.toml:20:1: client.2.tenant: there is no tenant \"x\""),
        ("[[client]]\ntenant = 'a'\nworkload = { trace = 'gone' }", &[], "client.2.workload.trace: "),
        (
            "[workers]\ncount = 2\nplacment = 'waits'",
            &[],
            "test.toml:21:1: workers.placment: unknown key \"placment\"; did you mean \"placement\"?",
        ),
        ("[workers]\ncount = 0", &[], "test.toml:20:1: workers.count: 0 is out of range; use 1 to 1024"),
        ("[workers]\ncount = 2\ntime_per_request = '5ns'", &[], "test.toml:21:1: workers.time_per_request: 5ns is out"),
        ("[workers]\ncount = 2\nconnections = 0", &[], "workers.connections: 0 for each of 3 clients; use 1 to 100000"),
        (
            "[[client]]\ntenant = 'a'\nworkload = { queue_depht = 3 }",
            &[],
            "client.2.workload.queue_depht: unknown key \"queue_depht\"; did you mean \"queue_depth\"?",
        ),
        (
            "[[client]]\ntenant = 'a'\nfrom = '1s'\nworkload = {}",
            &[],
            "client.2.from: is not before the end of the run at 1s",
        ),
        (
            "[[client]]\ntenant = 'a'\nfrom = '5ms'\nuntil = '2ms'\nworkload = {}",
            &[],
            "client.2.until: is not after from",
        ),
        ("[[change]]\nat = '5s'\nstall = '1s'", &[], "test.toml:20:1: change.0.at: is after the end of the run"),
        ("[[change]]\nat = '5ms'", &[], "change.0: changes nothing; give stall"),
        ("[[change]]\nat = '5ms'\ndevice = { kind = 'ssd' }", &[], "change.0.device"),
        (
            "[[change]]\nat = '5ms'\npool = { tuning.admission = { kind = 'fixed', budget = 0 } }",
            &[],
            "test.toml:21:17: change.0.pool.tuning.admission: budget must be greater than 0",
        ),
        (
            "[[change]]\nat = '5ms'\npool = { tuning.admision = 'none' }",
            &[],
            "change.0.pool.tuning.admision: unknown key \"admision\"; did you mean \"admission\"?",
        ),
        ("[[change]]\nat = '5ms'\ntenants.a.weight = 0", &[], "change.0.tenants.a.weight: "),
        ("", &["duration=0s"], "--set duration=0s: duration: 0 would count nothing"),
        ("", &["duration=3x"], "--set duration=3x: duration: \"3x\" is not a length of time"),
        ("", &["sample_every=1ns"], "--set sample_every=1ns: sample_every: makes more than"),
        ("", &["device.jitter=9"], "jitter"),
        ("", &["device.bandwith=9"], "device.bandwith: unknown key \"bandwith\"; did you mean \"bandwidth\"?"),
        (
            "[[change]]\nat = '5ms'\ndevice.iops = 'x'",
            &[],
            "test.toml:21:15: change.0.device.iops: the text \"x\" does not fit; write a whole number",
        ),
        (
            "",
            &["pool.tuning.admission={ kind = \"wbt\", target = \"0s\" }"],
            "pool.tuning.admission: target must be greater than 0",
        ),
        ("", &["pool.tuning.admission={ kind = \"vegas\", target = \"1s\" }"], "`target` belongs to kind = \"wbt\""),
        ("", &["device.kind=dsk"], "dsk"),
        ("", &["tenants.a.weight=0"], "--set tenants.a.weight=0: tenants.a.weight: "),
        ("", &["pool.emulate.preset=ssd"], "the device of a scenario is in [device]"),
        ("", &["pool.devices=[\"sda\"]"], "pool.devices: has no effect here: `evenkeel guard` enforces"),
        ("", &["pool.enforce=[\"packets\"]"], "pool.enforce: has no effect here"),
        ("", &["pool.tuning.cache.slow=sdb"], "pool.tuning.cache: has no effect here"),
        ("", &["tenants.a.max_in_flight=4"], "tenants.a.max_in_flight: has no effect here"),
        ("", &["tenants.a.pools.main.max_in_flight=4"], "tenants.a.pools.main.max_in_flight: has no effect here"),
        ("", &["tenants.a.pools.other.weight=4"], "tenants.a.pools.other: there is no pool \"other\""),
        ("", &["tenants.a.match=[\"cgroup:a\"]"], "tenants.a.match: clients of a scenario say themselves"),
        ("", &["tenants.a.each=true"], "tenants.a.each: a scenario has no volumes"),
        ("[volumes.v]\nlimit.iops = 5\n", &[], "volumes: a scenario has no volumes, and enforces no limits of volumes"),
        ("", &["volumes.v.limit.iops=5"], "volumes: a scenario has no volumes, and enforces no limits of volumes"),
        ("", &["tenants.a.limit.when=22:00-06:00"], "tenants.a.limit.when: a scenario has no time of day"),
        (
            "",
            &["tenants.a.weight_at={ weight = 2, when = \"22:00-06:00\" }"],
            "tenants.a.weight_at: a scenario has no time of day",
        ),
        ("", &["seeds=0"], "--set seeds=0: seeds: 0 is out of range"),
        ("", &["client.7.count=2"], "client has the elements 0 to 1; write client.0, not client.7"),
        ("", &["duration.x=2"], "duration is a string, not a table"),
        ("", &["seeds=[\"a\"]", "seeds.0.x=2"], "seeds.0 is a string, not a table; set seeds.0 itself"),
        ("", &["seeds=[]", "seeds.0=2"], "seeds has no elements; set seeds as a whole"),
        ("", &["nothing"], "write KEY=VALUE"),
        ("", &["a b=2"], "is not a key"),
    ] {
        let errors = errors(&with(text), set);
        if !errors.contains(wanted) {
            wrong += &format!("{text} {set:?}\n  wanted {wanted}\n  got {errors}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn all_errors_come_at_once_and_each_only_once() {
    let errors = errors(&with(""), &["duration=3x", "pool.tuning.scheduler=fifo", "client.0.tenant=z"]);
    assert_eq!(errors.lines().count(), 2, "{errors}");
    for (text, set) in [(with("[volumes.v]\nlimit.iops = 5\n"), &[][..]), (with(""), &["volumes.v.limit.iops=5"])] {
        let problems = read(&text, set).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
    }
    let missing = read("[device]\nkind = 'store'\n[tenants.a]\n", &[]).unwrap_err();
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0].message, "the key `duration` is missing");
    assert_eq!(missing[0].key, "");
}

#[test]
fn metrics_measure_what_their_names_say() {
    let scenario = read(MINIMAL, &["pool.tuning.admission={ kind = \"fixed\", budget = \"256KiB\" }"]).unwrap();
    let run = world::run_quietly(&scenario.setup, 1).unwrap();
    let names = ["a".to_owned(), "b.c".to_owned()];
    let names: Vec<&String> = names.iter().collect();
    let value = |name: &str| Metric::parse(name, &names).unwrap().measure(&run, None);
    let b = &run.tenants[1];
    assert_eq!(value("b.c.requests"), b.requests as f64);
    assert_eq!(value("b.c.bytes_per_s"), b.bytes as f64);
    assert_eq!(value("b.c.p99_ms"), b.response.p99().as_secs_f64() * 1e3);
    assert!((value("a.iops") + value("b.c.iops") - value("iops")).abs() < 1e-9);
    assert_eq!((value("budget_mean_bytes"), value("budget_cv")), (262_144.0, 0.0));
    // All windows together hold everything; outside of its hours a client receives nothing, and has no latency.
    let part =
        |name: &str, from, until| Metric::parse(name, &names).unwrap().measure(&run, Some((at(from), at(until))));
    assert!((part("a.iops", 0, 1000) - value("a.iops")).abs() < 1e-9);
    assert!((part("a.mean_ms", 0, 1000) - value("a.mean_ms")).abs() < 1e-3);
    assert_eq!(part("b.c.iops", 0, 100), 0.0);
    assert!(part("b.c.mean_ms", 0, 100).is_nan() && part("b.c.iops", 200, 800) > 0.0);
    for metric in Metric::all(&["a".into(), "b.c".into()]) {
        assert_eq!(value(&metric.to_string()).to_bits(), metric.measure(&run, None).to_bits(), "{metric}");
    }
}

#[test]
fn a_bound_holds_at_its_edge_and_never_without_a_value() {
    let text = with("[[bound]]\nmetric = 'a.p99_ms'\nmin = '1ms'\nmax = 3.5\nwhy = 'so'");
    let bound = read(&text, &[]).unwrap().bounds.remove(0);
    assert_eq!((bound.min, bound.max, bound.why.as_str()), (Some(1.0), Some(3.5), "so"));
    for (value, met) in [(1.0, true), (3.5, true), (0.999, false), (3.501, false), (f64::NAN, false)] {
        assert_eq!(bound.is_met_by(value), met, "{value}");
    }
}

proptest! {
    #[test]
    fn no_text_and_no_assignment_makes_the_reader_panic(text in "\\PC{0,200}", set in "\\PC{0,60}") {
        let _ = read(&text, &[&set]);
        let _ = read(MINIMAL, &[&set]);
    }

    #[test]
    fn nor_do_texts_close_to_scenarios(from in 0..MINIMAL.len(), length in 0usize..40, junk in "[\\[\\]a-z0-9.=\"{}\n ]{0,8}") {
        let until = (from + length).min(MINIMAL.len());
        let _ = read(&format!("{}{junk}{}", &MINIMAL[..from], &MINIMAL[until..]), &[]);
    }

    #[test]
    fn keys_of_any_shape_are_set_or_refused(key in "[a-z0-9.\"_-]{1,24}", value in "[a-z0-9.\"\\[\\]{}= ,]{0,12}") {
        let _ = read(MINIMAL, &[&format!("{key}={value}")]);
    }
}

/// The text of the documentation page that describes scenarios.
const PAGE: &str = include_str!("../../../../docs/guide/sim.md");

#[test]
fn the_page_shows_a_scenario_that_can_be_run() {
    let (_, example) = PAGE.split_once("```toml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let scenario = read(example, &[]).unwrap();
    let run = world::run_quietly(&scenario.setup, scenario.seed).unwrap();
    let value = scenario.bounds[0].measure(&run);
    assert!(scenario.bounds[0].is_met_by(value), "{value}");
}

#[test]
fn the_page_names_every_metric() {
    for metric in Metric::all(&["tenant".into()]) {
        assert!(PAGE.contains(&format!("`{}`", metric.name())), "{metric}");
    }
}
