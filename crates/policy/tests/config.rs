//! Tests of configurations: defaults, and errors, each with its place and remedy, all of them at once.

use evenkeel_control::admission::{Config as Admission, ElasticConfig, Repairs, SlowFastConfig};
use evenkeel_control::pool::guarantee::Throughputs;
use evenkeel_control::throughput::Rate;
use evenkeel_policy::Config;
use evenkeel_policy::access::Caller;
use evenkeel_policy::check::{Problem, check};
use evenkeel_policy::config::{Backend, Cache, Limit, Priority, Scheduler, Status, Volume};
use evenkeel_policy::units::Bytes;
use proptest::prelude::*;

fn parse(text: &str) -> Config {
    Config::parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> Vec<Problem> {
    check(text, "test.toml").errors
}

/// Asserts that `text` has exactly one error, at this place, and that its message contains these words.
#[track_caller]
fn assert_error(text: &str, place: &str, words: &[&str]) {
    let found = errors(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    let message = found[0].to_string();
    assert!(message.starts_with(&format!("test.toml:{place}: ")), "not at {place}: {message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
}

#[test]
fn nothing_said_means_one_file_volume_on_an_adaptive_pool() {
    let config = parse("");
    assert_eq!(config, Config::default());
    assert_eq!(config.pools["main"].tuning.scheduler, Scheduler::Mclock);
    assert_eq!(config.pools["main"].tuning.admission, Admission::Elastic(ElasticConfig { tolerance: 0.025 }));
    assert_eq!((config.volumes["disk0"].size, config.volumes["disk0"].backend), (Some(Bytes(1 << 30)), Backend::File));
    assert_eq!(config.server.listen, ["127.0.0.1:10809".parse().expect("an address")]);
    assert_eq!(config.server.unix_paths(), [std::path::PathBuf::from("evenkeel-data/nbd.sock")]);
    assert_eq!(config.default_export(), Some("disk0"));
    assert!(config.validate("").is_ok_and(|warnings| warnings.is_empty()));
}

#[test]
fn everything_said_is_heard() {
    let config = parse(
        r#"
        [server]
        listen = ["[::1]:1234"]
        unix = []
        status = "off"
        workers = 3
        engine = "epoll"
        buffer_memory = "64MiB"
        [pools.fast]
        tuning.scheduler = "none"
        tuning.admission = { kind = "fixed", budget = "512KiB" }
        limit = { iops = 5000, bytes_per_s = "200MB" }
        [tenants.gold]
        reservation = { iops = 100 }
        weight = 9
        priority = "background"
        match = ["10.0.0.0/8"]
        [volumes.a]
        pool = "fast"
        tenant = "gold"
        backend = "memory"
        size = "1.5GiB"
        [volumes.b]
        size = 4096
        cache = "buffered"
        "#,
    );
    assert_eq!(config.server.status, Status::Off);
    assert!(config.server.unix_paths().is_empty());
    assert_eq!(config.pools["fast"].tuning.admission, Admission::Fixed { budget_bytes: 512 << 10 });
    assert_eq!(config.pools["fast"].limit, Limit { iops: 5_000, bytes_per_s: Bytes(200_000_000), ..Limit::default() });
    assert!(config.pools.contains_key("main") && config.tenants.contains_key("default"));
    let gold = &config.tenants["gold"];
    assert_eq!((gold.weight, gold.priority, gold.reservation.iops), (9, Priority::Background, 100));
    assert_eq!(config.volumes["a"].size, Some(Bytes(3 << 29)));
    assert_eq!(config.volumes["b"].cache, Cache::Buffered);
    assert_eq!(config.default_export(), None, "two volumes, none of them disk0");
}

#[test]
fn slowfast_settings_overlay_its_defaults() {
    let config = parse(
        "[pools.main]\ntuning.admission = { kind = \"slowfast\", target_min = \"2ms\", repairs = [\"early_fit\"] }\n",
    );
    let Admission::SlowFast(settings) = &config.pools["main"].tuning.admission else { panic!("not slowfast") };
    assert_eq!(settings.target_min.to_string(), "2ms");
    assert_eq!(settings.slow_interval, SlowFastConfig::REPAIRED.slow_interval);
    assert!(settings.repairs.early_fit && !settings.repairs.guarded_fit);
    let none = parse("[pools.main]\ntuning.admission = { kind = \"slowfast\", repairs = \"none\" }\n");
    let Admission::SlowFast(settings) = &none.pools["main"].tuning.admission else { panic!("not slowfast") };
    assert_eq!(settings.repairs, Repairs::NONE);
}

#[test]
fn a_volume_finds_its_tenant_and_a_client_its_own() {
    let config = parse(
        "[tenants.web]\nmatch = [\"10.0.0.0/8\"]\n[tenants.db]\nmatch = [\"10.1.0.0/16\"]\n\
         [volumes.web]\nsize = 4096\n[volumes.other]\nsize = 4096\n[volumes.third]\nsize = 4096\ntenant = \"db\"\n",
    );
    let (owners, clients) = (config.owners(), config.clients());
    let tenant = |name: &str| owners.of(name, &config.volumes[name]).to_owned();
    assert_eq!((tenant("web"), tenant("other"), tenant("third")), ("web".into(), "default".into(), "db".into()));
    let of = |address: &str| {
        let address = Some(address.parse().expect("an address"));
        clients.tenant_of(&Caller { address, ..Caller::default() })
    };
    assert_eq!((of("10.9.0.1"), of("10.1.0.1"), of("192.0.2.1")), (Some("web"), Some("db"), None));
}

#[test]
fn the_most_specific_entry_decides_whose_a_connection_is() {
    let config = parse(
        "[server.tls]\ncertificate = \"c\"\nkey = \"k\"\nclients = \"a\"\n\
         [tenants.all]\nmatch = [\"volume:*\", \"unix\"]\n[tenants.db]\nmatch = [\"volume:db-*\", \"uid:1000\"]\n\
         [tenants.one]\nmatch = [\"volume:db-1\", \"certificate:one.example.org\"]\n\
         [volumes.db-1]\nsize = 4096\n[volumes.db-2]\nsize = 4096\n[volumes.web]\nsize = 4096\n\
         [volumes.own]\nsize = 4096\ntenant = \"default\"\n",
    );
    let (owners, clients) = (config.owners(), config.clients());
    for (volume, tenant) in [("db-1", "one"), ("db-2", "db"), ("web", "all"), ("own", "default")] {
        assert_eq!(owners.of(volume, &config.volumes[volume]), tenant, "{volume}");
    }
    let (names, fingerprint) = (["one.example.org".to_owned()], [0; 32]);
    let of = |uid, certificate| clients.tenant_of(&Caller { address: None, uid, certificate });
    assert_eq!((of(Some(1000), None), of(Some(1), None), of(None, None)), (Some("db"), Some("all"), None));
    assert_eq!(of(Some(1000), Some((&names[..], &fingerprint))), Some("one"));
}

#[test]
fn unknown_keys_are_named_with_what_was_meant() {
    assert_error(
        "[pools.main]\ntuning.sceduler = \"none\"\n",
        "2:8: pools.main.tuning.sceduler",
        &["did you mean \"scheduler\""],
    );
    assert_error("[server]\n  lisen = []\n", "2:3: server.lisen", &["did you mean \"listen\""]);
    assert_error("[sever]\n", "1:2: sever", &["did you mean \"server\""]);
    assert_error("[tenants.a]\nfrobnicate = 1\n", "2:1: tenants.a.frobnicate", &["known: ", "weight"]);
    assert_error("[pools.main]\nlimit = { iop = 5 }\n", "2:11: pools.main.limit.iop", &["did you mean \"iops\""]);
    assert_error(
        "[pools.main.tuning.admission]\nkind = \"slowfast\"\ntarget_mim = \"1ms\"\n",
        "3:1: pools.main.tuning.admission.target_mim",
        &["target_min"],
    );
}

#[test]
fn unknown_values_are_named_with_what_was_meant() {
    assert_error(
        "[pools.main]\ntuning.scheduler = \"mclok\"\n",
        "2:20: pools.main.tuning.scheduler",
        &["did you mean \"mclock\""],
    );
    assert_error(
        "[pools.main.emulate]\npreset = \"hhd\"\n",
        "2:10: pools.main.emulate.preset",
        &["did you mean \"hdd\""],
    );
    assert_error("[pools.main.emulate]\niop = 5\n", "2:1: pools.main.emulate.iop", &["did you mean \"iops\""]);
    assert_error("[pools.main]\ntuning.admission = \"slow\"\n", "2:20: pools.main.tuning.admission", &["slowfast"]);
    assert_error(
        "[pools.main]\ntuning.admission = \"fixed\"\n",
        "2:20: pools.main.tuning.admission",
        &["needs a budget", "512KiB"],
    );
    assert_error(
        "[volumes.a]\nbackend = \"files\"\nsize = 1024\n",
        "2:11: volumes.a.backend",
        &["did you mean \"file\""],
    );
    assert_error("[server]\nengine = \"uring\"\n", "2:10: server.engine", &["io_uring"]);
}

#[test]
fn wrong_quantities_say_what_would_be_right() {
    assert_error("[volumes.a]\nsize = \"12 parsecs\"\n", "2:8: volumes.a.size", &["64KiB"]);
    assert_error("[volumes.a]\nsize = -5\n", "2:8: volumes.a.size", &["a number of bytes"]);
    assert_error("[tenants.a]\nlimit.burst = 5\n", "2:15: tenants.a.limit.burst", &["\"5ms\""]);
    assert_error("[server]\nlisten = [\"localhost\"]\n", "2:11: server.listen", &["127.0.0.1:10809"]);
    assert_error("[server]\nstatus = \"no\"\n", "2:10: server.status", &["off"]);
    assert_error("[tenants.a]\nmatch = [\"10.1.2.3/16\"]\n", "2:10: tenants.a.match", &["10.1.0.0/16"]);
    assert_error("[server]\nworkers = 0\n", "2:1: server.workers", &["auto"]);
    assert_error("[tenants.a]\nweight = \"heavy\"\n", "2:10: tenants.a.weight", &["write a whole number"]);
    assert_error("[pools.main.emulate]\nbandwidth = \"fast\"\n", "2:13: pools.main.emulate.bandwidth", &["64KiB"]);
    assert_error("[pools.main.emulate]\ncommit_size = \"5GiB\"\n", "2:15: pools.main.emulate.commit_size", &["4GiB"]);
    assert_error(
        "[pools.main]\ntuning.admission = { kind = \"slowfast\", target_min = 5 }\n",
        "2:54: pools.main.tuning.admission.target_min",
        &["5ms"],
    );
}

#[test]
fn rules_beyond_types_are_checked_in_place() {
    let memory = "backend = \"memory\"\nsize = 4096\n";
    for (text, place, words) in [
        ("[tenants.a]\nweight = 0\n".to_owned(), "2:1: tenants.a.weight", &["1 to 1000000"][..]),
        (
            "[tenants.a]\nweight_at = { weight = 0, when = \"22:00-06:00\" }\n".into(),
            "2:15: tenants.a.weight_at.weight",
            &["1 to 1000000"],
        ),
        ("[pools.main]\nlatency.target = \"1us\"\n".into(), "2:9: pools.main.latency.target", &["from 10 us to 100 s"]),
        (
            "[pools.main]\nlatency.target = \"1ms\"\nmax_delay = \"11s\"\n".into(),
            "3:1: pools.main.max_delay",
            &["at most 10 s"],
        ),
        (
            "[pools.main]\nlatency.target = \"1ms\"\ntuning.scheduler = \"none\"\n".into(),
            "2:1: pools.main.latency",
            &["mclock"],
        ),
        (
            "[pools.main]\nlatency = { target = \"1ms\", percentile = 100 }\n".into(),
            "2:42: pools.main.latency.percentile",
            &["below 100"],
        ),
        (
            "[pools.main]\nlatency = { target = \"1ms\", of = \"all\" }\n".into(),
            "2:29: pools.main.latency.of",
            &["reads"],
        ),
        (
            "[tenants.a]\nlatency = { target = \"1ms\", of = \"reads\" }\n".into(),
            "2:29: tenants.a.latency.of",
            &["all"],
        ),
        (
            "[tenants.a]\nguarantee = { iops = 10, bytes_per_s = 5 }\n".into(),
            "2:1: tenants.a.guarantee",
            &["either iops or bytes_per_s"],
        ),
        (
            "[tenants.a]\nlimit.iops = 5\nguarantee.iops = 6\n".into(),
            "3:1: tenants.a.guarantee",
            &["6 IOPS", "limit of 5 IOPS"],
        ),
        (
            "[tenants.a]\nguarantee.read = { iops = 10, bytes_per_s = 5 }\n".into(),
            "2:11: tenants.a.guarantee.read",
            &["either iops or bytes_per_s"],
        ),
        (
            "[tenants.a]\nguarantee = { iops = 10, write = { iops = 5 } }\n".into(),
            "2:1: tenants.a.guarantee",
            &["for all requests and for each direction"],
        ),
        (
            "[tenants.a]\nlimit.iops = 5\nguarantee = { read.iops = 3, write.iops = 3 }\n".into(),
            "3:1: tenants.a.guarantee",
            &["6 IOPS", "limit of 5 IOPS"],
        ),
        (
            "[tenants.a]\nreservation.iops = 10\nlimit.iops = 5\n".into(),
            "2:1: tenants.a.reservation",
            &["10 IOPS", "5 IOPS"],
        ),
        (format!("[volumes.a]\npool = \"mian\"\n{memory}"), "2:1: volumes.a.pool", &["did you mean \"main\""]),
        (
            format!("[volumes.a]\ntenant = \"nobody\"\n{memory}"),
            "2:1: volumes.a.tenant",
            &["no tenant \"nobody\"", "default"],
        ),
        ("[volumes.a]\nbackend = \"memory\"\n".into(), "2:1: volumes.a.backend", &["size = \"1GiB\""]),
        ("[volumes.a]\nbackend = \"block\"\n".into(), "2:1: volumes.a.backend", &["needs a path"]),
        (
            "[volumes.a]\nbackend = \"block\"\npath = \"/dev/x\"\nsize = 512\n".into(),
            "4:1: volumes.a.size",
            &["remove"],
        ),
        (format!("[volumes.a]\npath = \"x\"\n{memory}"), "2:1: volumes.a.path", &["has no path"]),
        (
            "[volumes.a]\nbackend = \"emulate\"\nsize = 512\n".into(),
            "2:1: volumes.a.backend",
            &["[pools.main.emulate]"],
        ),
        ("[volumes.a]\nsize = 0\n".into(), "2:1: volumes.a.size", &["greater than 0"]),
        ("[volumes.\"../a\"]\nsize = 512\n".into(), "1:10: volumes.\"../a\"", &["usable name"]),
        (
            "[volumes.a]\npath = \"x\"\nsize=512\n[volumes.b]\npath = \"x\"\nsize=512\n".into(),
            "5:1: volumes.b.path",
            &["volume \"a\""],
        ),
        (
            "[tenants.a]\nmatch = [\"10.0.0.0/8\"]\n[tenants.b]\nmatch = [\"10.0.0.0/8\"]\n".into(),
            "4:1: tenants.b.match",
            &["tenant \"a\""],
        ),
        ("[pools.main]\ntuning.write_cost_percent = 0\n".into(), "2:8: pools.main.tuning.write_cost_percent", &["100"]),
        ("[pools.main]\ntuning.base_cost = \"5GiB\"\n".into(), "2:8: pools.main.tuning.base_cost", &["4GiB"]),
        (
            "[pools.main]\ntuning.stall_report_after = \"0s\"\n".into(),
            "2:8: pools.main.tuning.stall_report_after",
            &["10s"],
        ),
        (
            "[pools.main]\ntuning.admission = { kind = \"fixed\", budget = 0 }\n".into(),
            "2:8: pools.main.tuning.admission",
            &["greater than 0"],
        ),
        (
            "[pools.main]\ntuning.admission = { kind = \"fixed\", target_min = \"1ms\", budget = 1 }\n".into(),
            "2:20: pools.main.tuning.admission",
            &["target_min", "slowfast"],
        ),
        (
            "[pools.main]\ntuning.admission = { kind = \"elastic\", tolerance = 1.0 }\n".into(),
            "2:8: pools.main.tuning.admission",
            &["tolerance", "from 0.001 to 0.5"],
        ),
        (
            "[pools.main]\ntuning.admission = { kind = \"slowfast\", tolerance = 0.1 }\n".into(),
            "2:20: pools.main.tuning.admission",
            &["tolerance", "elastic"],
        ),
        (
            "[pools.main]\ntuning.admission = { kind = \"wbt\", target = \"1s\" }\n".into(),
            "2:8: pools.main.tuning.admission",
            &["\"wbt\"", "evenkeel sim", "known: none, fixed, elastic, slowfast"],
        ),
        (
            "[pools.main]\ntuning.admission = { kind = \"vegas\", target = \"1ms\" }\n".into(),
            "2:20: pools.main.tuning.admission",
            &["target", "wbt"],
        ),
        (
            "[pools.main]\ntuning.admission = { kind = \"slowfast\", target_max = \"1ms\" }\n".into(),
            "2:8: pools.main.tuning.admission",
            &["target_max must be"],
        ),
        ("[pools.main]\ntuning.slots = \"sfq_d\"\n".into(), "2:8: pools.main.tuning.slots", &["sfq_d", "evenkeel sim"]),
        (
            "[pools.main]\ntuning.slots = \"drg_smoothed\"\n".into(),
            "2:8: pools.main.tuning.slots",
            &["drg_smoothed", "evenkeel sim"],
        ),
        (
            "[pools.main.emulate]\nbandwidth = 0\n".into(),
            "1:13: pools.main.emulate",
            &["bandwidth must be greater than 0"],
        ),
        ("[pools.main.emulate]\njitter = 9.0\n".into(), "1:13: pools.main.emulate", &["jitter must be 0 to 2"]),
        ("[server]\nlisten = []\nunix = []\n".into(), "2:1: server.listen", &["listens nowhere"]),
        ("[server]\nlisten = [\"127.0.0.1:9809\"]\n".into(), "1:2: server.status", &["already serves NBD"]),
        ("[server]\nbuffer_memory = \"1MiB\"\n".into(), "2:1: server.buffer_memory", &["32MiB"]),
        ("[server]\npeer_timeout = \"500ms\"\n".into(), "2:1: server.peer_timeout", &["1s", "1h"]),
        ("[server]\nbusy_poll = \"2ms\"\n".into(), "2:1: server.busy_poll", &["1ms"]),
        ("[server.record]\nkeep = \"1s\"\n".into(), "2:1: server.record.keep", &["10s", "1h"]),
        ("[server.record]\nsize = \"1MiB\"\n".into(), "2:1: server.record.size", &["16MiB"]),
        ("[server]\nmax_connections = 0\n".into(), "2:1: server.max_connections", &["1 to 1048576"]),
        ("[server]\nmax_connections = 4294967295\n".into(), "2:1: server.max_connections", &["1 to 1048576"]),
        (
            "[pools.main.emulate]\nstall_every = \"1ns\"\n".into(),
            "1:13: pools.main.emulate",
            &["0 (never) or at least 1ms"],
        ),
        (
            "[server]\nunix = [\"d/v.img\"]\n[volumes.v]\nsize = \"1MiB\"\npath = \"d/v.img\"\n".into(),
            "5:1: volumes.v.path",
            &["also the path of a socket"],
        ),
        (
            format!("[volumes.v]\nsize = \"1MiB\"\ndescription = \"{}\"\n", "x".repeat(4097)),
            "3:1: volumes.v.description",
            &["4096 bytes"],
        ),
        ("[server]\ndefault_export = \"disk1\"\n".into(), "2:1: server.default_export", &["did you mean \"disk0\""]),
        (format!("[server]\nunix = [\"{}\"]\n", "x".repeat(108)), "2:1: server.unix", &["107 bytes"]),
        ("[server]\nunix = [\"a\"]\ncontrol = \"a\"\n".into(), "3:1: server.control", &["used twice"]),
    ] {
        assert_error(&text, place, words);
    }
}

#[test]
fn all_errors_come_at_once_in_the_order_of_the_text() {
    let text = "[server]\nlisen = []\nworkers = \"x\"\n[pools.main]\ntuning.admission = \"fast\"\n[tenants.a]\nweight = 0\n[volumes.v]\nsize = \"1XB\"\npool = \"mian\"\n";
    let found = errors(text);
    let lines: Vec<_> = found.iter().map(|problem| problem.position.expect("a place").0).collect();
    assert_eq!(lines, [2, 3, 5, 7, 9, 10], "{found:#?}");
}

#[test]
fn syntax_errors_have_a_place_and_one_line() {
    let found = errors("[server\nlisten = [\n");
    assert!(!found.is_empty());
    assert!(found.iter().all(|problem| problem.position.is_some() && !problem.message.contains('\n')), "{found:#?}");
    let doubled = errors("[server]\nworkers = 1\nworkers = 2\n");
    assert_eq!(doubled[0].position.map(|(line, _)| line), Some(3), "{doubled:#?}");
}

#[test]
fn doubts_are_warnings() {
    let report = check(
        "[server]\nlisten = [\"0.0.0.0:10809\"]\n[pools.main]\nlimit.iops = 100\n[tenants.default]\nreservation.iops = 200\n[volumes.a]\nsize = 1000\n\
         [tenants.idle]\n[volumes.idle]\nsize = 4096\n",
        "test.toml",
    );
    assert!(report.errors.is_empty(), "{:#?}", report.errors);
    let keys: Vec<_> = report.warnings.iter().map(|warning| warning.key.as_str()).collect();
    assert_eq!(keys, ["server.listen", "pools.main.limit", "volumes.a.size"]);
    assert!(report.warnings[1].message.contains("of tenant default come to 200 IOPS"), "{}", report.warnings[1]);
}

#[test]
fn guarantees_without_effect_are_doubtful() {
    let text = "[tenants.a]\nreservation.iops = 200\nguarantee.iops = 100\n[tenants.b]\nguarantee.bytes_per_s = \"1MB\"\n\
        [pools.main]\ntuning.scheduler = \"none\"\n[volumes.b]\nsize = 4096\n";
    let report = check(text, "test.toml");
    assert!(report.errors.is_empty(), "{:#?}", report.errors);
    let keys: Vec<_> = report.warnings.iter().map(|warning| warning.key.as_str()).collect();
    assert_eq!(keys, ["pools.main.tuning.scheduler", "tenants.a.guarantee"]);
    let guaranteed = |name: &str| report.config.tenants[name].guarantee.control();
    assert_eq!(guaranteed("a"), Throughputs::of_all(Rate::RequestsPerS(100)));
    assert_eq!(guaranteed("b"), Throughputs::of_all(Rate::BytesPerS(1_000_000)));
    assert_eq!(guaranteed("default"), Throughputs::NONE);
    // A reservation of all may be needed by the direction to which nothing was guaranteed.
    let text = "[tenants.a]\nreservation.iops = 200\nguarantee.read.iops = 100\n\
        [tenants.b]\nreservation.iops = 200\nguarantee = { read.iops = 100, write.iops = 50 }\n";
    let report = check(text, "test.toml");
    let keys: Vec<_> = report.warnings.iter().map(|warning| warning.key.as_str()).collect();
    assert_eq!(keys, ["tenants.b.guarantee"], "{:#?}", report.errors);
    let [of_a, of_b] = ["a", "b"].map(|name| report.config.tenants[name].guarantee.control());
    assert_eq!(of_a, Throughputs { read: Some(Rate::RequestsPerS(100)), ..Throughputs::NONE });
    assert_eq!((of_b.all, of_b.write), (None, Some(Rate::RequestsPerS(50))));
}

#[test]
fn what_is_written_reads_back() {
    let mut config = parse(evenkeel_policy::EXAMPLE);
    let volume = Volume { description: "with \"quotes\"".into(), size: Some(Bytes(1 << 20)), ..Volume::default() };
    config.volumes.insert("more".into(), volume);
    let text = toml::to_string(&config).expect("a configuration is a table");
    assert_eq!(parse(&text), config);
}

#[test]
fn a_huge_text_is_refused_without_reading_it() {
    let text = "#".repeat(evenkeel_policy::check::MAX_TEXT_BYTES + 1);
    assert!(errors(&text)[0].message.contains("right file"));
}

/// Fragments from which random texts similar to configurations are composed.
fn near_configurations() -> impl Strategy<Value = String> {
    let pieces = [
        "[server]\n",
        "[pools.main]\n",
        "[pools.a.tuning.admission]\n",
        "[tenants.t]\n",
        "[volumes.v]\n",
        "[[volumes.v]]\n",
        "listen = [\"127.0.0.1:1\"]\n",
        "tuning.admission = ",
        "\"slowfast\"\n",
        "{ kind = \"fixed\" }\n",
        "kind = \"fixed\"\n",
        "limit = { iops = 5 }\n",
        "limit.iops = 3\n",
        "size = \"1GiB\"\n",
        "size = 1e9\n",
        "weight = -1\n",
        "match = [1]\n",
        "workers = ",
        "99999999999999999999\n",
        "\"auto\"\n",
        "budget = 5\n",
        "=",
        "\n",
        "é = 1\n",
        "volumes = 3\n",
        "x.y.z = []\n",
        "emulate = { jitter = nan }\n",
        "pool = \"mian\"\n",
        "\"",
        "'''",
        "1979-05-27\n",
    ];
    proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 0..16).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_text_makes_the_check_panic(text in "\\PC{0,200}") {
        let _ = check(&text, "test.toml");
    }

    #[test]
    fn texts_close_to_configurations_do_not_either(text in near_configurations()) {
        let report = check(&text, "test.toml");
        // Whatever is left passes the rules, or there is an error to show.
        prop_assert!(!report.errors.is_empty() || report.config.validate("").is_ok());
        for problem in &report.errors {
            prop_assert!(!problem.message.is_empty() && !problem.message.contains('\n'));
        }
    }
}

#[test]
fn a_volume_on_another_server_says_where() {
    let far = |settings: &str| format!("[volumes.far]\nbackend = \"nbd\"\n{settings}");
    let uri = "uri = \"nbd://[2001:db8::1]/disk%200\"\n";
    let config = parse(&far(&format!("{uri}connections = 4\nunflushed = \"kept\"\nreconnect_timeout = \"5s\"\n")));
    let volume = &config.volumes["far"];
    assert_eq!(volume.uri.as_ref().map(ToString::to_string).as_deref(), Some("nbd://[2001:db8::1]:10809/disk%200"));
    assert_eq!((volume.connections, volume.reconnect_timeout.to_string().as_str()), (4, "5s"));
    assert_eq!(config.path_of("far", volume), None);
    let wrong = |text: &str, key: &str, why: &str| {
        let found = errors(text);
        let fits = |problem: &&Problem| problem.key == key && problem.message.contains(why);
        assert!(found.iter().find(fits).is_some_and(|problem| problem.position.is_some()), "{key}, {why}: {found:#?}");
    };
    wrong(&far(""), "volumes.far.backend", "needs a uri");
    wrong(&far("uri = \"far:10809\"\n"), "volumes.far.uri", "not an NBD URI");
    wrong(&far("uri = \"nbds://far/\"\n"), "volumes.far.uri", "set uri_tls.authorities");
    let files = "uri_tls = { authorities = \"a\", certificate = \"c\", key = \"k\" }\n";
    let secure = parse(&far(&format!("uri = \"nbds://far/\"\n{files}")));
    assert_eq!(secure.volumes["far"].uri_tls.as_ref().map(|tls| tls.paths().count()), Some(3));
    wrong(&far(&format!("uri = \"nbd://far/\"\n{files}")), "volumes.far.uri_tls", "write nbds://");
    wrong(
        &far("uri = \"nbds://far/\"\nuri_tls = { authorities = \"a\", key = \"k\" }\n"),
        "volumes.far.uri_tls",
        "set both or neither",
    );
    wrong(
        "[volumes.a]\nsize = 4096\nuri_tls = { authorities = \"a\" }\n",
        "volumes.a.uri_tls",
        "backend \"file\" has no uri_tls",
    );
    let apart = far(&format!("uri = \"nbds://far/a\"\n{files}"));
    let twice = format!("{apart}[volumes.other]\nbackend = \"nbd\"\nuri = \"nbd://far/a\"\n");
    wrong(&twice, "volumes.other.uri", "already holds volume \"far\"");
    for own in ["nbd://127.0.0.1/a", "nbd://localhost:10809/a", "nbd+unix:///a?socket=evenkeel-data/nbd.sock"] {
        wrong(&far(&format!("uri = \"{own}\"\n")), "volumes.far.uri", "is this server's own address");
    }
    for (setting, key, why) in [
        ("connections = 0\n", "connections", "1 to 64"),
        ("connections = 65\n", "connections", "1 to 64"),
        ("reconnect_timeout = \"10ms\"\n", "reconnect_timeout", "\"1s\" to \"1h\""),
        ("size = 4096\n", "size", "remove this key"),
        ("path = \"/x\"\n", "path", "has no path"),
        ("unflushed = \"gone\"\n", "unflushed", "lost"),
    ] {
        wrong(&far(&format!("{uri}{setting}")), &format!("volumes.far.{key}"), why);
    }
    wrong(&format!("[volumes.a]\nsize = 4096\n{uri}"), "volumes.a.uri", "backend \"file\" has no uri");
    let twice = format!("{}[volumes.other]\nbackend = \"nbd\"\n{uri}", far(uri));
    wrong(&twice, "volumes.other.uri", "already holds volume \"far\"");
}

#[test]
fn a_volume_in_a_ceph_cluster_says_which_image() {
    let image = |settings: &str| format!("[volumes.far]\nbackend = \"rbd\"\n{settings}");
    let rbd = "rbd = \"pool/team/disk@monday\"\n";
    let user = "ceph_conf = \"/c\"\nceph_user = \"evenkeel\"\nceph_keyring = \"/k\"\n";
    let config = parse(&image(&format!("{rbd}{user}")));
    let volume = &config.volumes["far"];
    assert_eq!(volume.rbd.as_ref().map(ToString::to_string).as_deref(), Some("pool/team/disk@monday"));
    assert_eq!((volume.ceph_user.as_deref(), config.path_of("far", volume)), (Some("evenkeel"), None));
    assert!(volume.backend.has_its_size());
    let wrong = |text: &str, key: &str, why: &str| {
        let found = errors(text);
        let fits = |problem: &&Problem| problem.key == key && problem.message.contains(why);
        assert!(found.iter().find(fits).is_some_and(|problem| problem.position.is_some()), "{key}, {why}: {found:#?}");
    };
    wrong(&image(""), "volumes.far.backend", "needs an image");
    wrong(&image("rbd = \"disk\"\n"), "volumes.far.rbd", "POOL/IMAGE");
    for (setting, key, why) in [
        ("size = 4096\n", "size", "remove this key"),
        ("path = \"/x\"\n", "path", "has no path"),
        ("uri = \"nbd://a/b\"\n", "uri", "has no uri"),
        ("ceph_user = \"client.admin\"\n", "ceph_user", "without \"client.\""),
    ] {
        wrong(&image(&format!("{rbd}{setting}")), &format!("volumes.far.{key}"), why);
    }
    wrong(&format!("[volumes.a]\nsize = 4096\n{rbd}"), "volumes.a.rbd", "backend \"file\" has no rbd");
    let twice = format!("{}[volumes.other]\nbackend = \"rbd\"\n{rbd}", image(rbd));
    wrong(&twice, "volumes.other.rbd", "already holds volume \"far\"");
    let two_clusters = format!("{}[volumes.other]\nbackend = \"rbd\"\n{rbd}ceph_conf = \"/other\"\n", image(rbd));
    assert_eq!(parse(&two_clusters).volumes.len(), 2);
}

#[test]
fn values_that_hang_are_warnings_and_known_as_such() {
    for (text, place, words) in [
        ("[tenants.a]\nlimit = { bytes_per_s = 10 }\n", "tenants.a.limit.bytes_per_s", "\"10MB\""),
        (
            "[tenants.a]\nguarantee = { bytes_per_s = 4095 }\n",
            "tenants.a.guarantee.bytes_per_s",
            "less than one request",
        ),
        ("[tenants.a]\nlimit = { bytes_per_s = \"2KiB\" }\n", "tenants.a.limit.bytes_per_s", "use at least 4KiB"),
        ("[tenants.a]\nguarantee.read = { bytes_per_s = 1 }\n", "tenants.a.guarantee.read.bytes_per_s", "\"1MB\""),
        ("[tenants.a]\nguarantee.write = { bytes_per_s = 1 }\n", "tenants.a.guarantee.write.bytes_per_s", "\"1MB\""),
        ("[pools.main]\nlimit = { bytes_per_s = 500 }\n", "pools.main.limit.bytes_per_s", "\"500MB\""),
        ("[pools.main.emulate]\nbandwidth = 50\n", "pools.main.emulate.bandwidth", "\"50MB\""),
        ("[pools.main.emulate]\nread_latency = \"2s\"\n", "pools.main.emulate.read_latency", "at most \"1s\""),
        (
            "[pools.main.emulate]\nwrite_latency = \"1h\"\n",
            "pools.main.emulate.write_latency",
            "less than one a second",
        ),
        ("[pools.main.emulate]\ncommit_latency = \"1001ms\"\n", "pools.main.emulate.commit_latency", "at most \"1s\""),
        (
            "[pools.main]\ntuning.admission = { kind = \"fixed\", budget = 64 }\n",
            "pools.main.tuning.admission.budget",
            "8096",
        ),
        (
            "[pools.main]\ntuning.admission = { kind = \"slowfast\", budget_min = 64, budget_initial = 64, budget_max = 4096 }\n",
            "pools.main.tuning.admission.budget_max",
            "8096",
        ),
    ] {
        let report = check(text, "test");
        assert!(report.errors.is_empty(), "{text}: {:?}", report.errors);
        let warning = report.warnings.iter().find(|warning| warning.key == place).unwrap_or_else(|| panic!("{text}"));
        assert!(warning.message.contains(words) && warning.position.is_some_and(|(line, _)| line == 2), "{warning}");
        let hangs = report.config.hangs("test");
        assert_eq!(hangs.len(), 1, "{text}: {hangs:?}");
        assert_eq!((&hangs[0].key, &hangs[0].message), (&warning.key, &warning.message));
    }
    // Small, and meant; and other warnings.
    let text = "[server]\nstatus = \"0.0.0.0:9809\"\n[tenants.a]\nlimit = { iops = 1, bytes_per_s = 4096 }\n\
                [pools.main]\ntuning.admission = { kind = \"fixed\", budget = 8096 }\nlimit = { bytes_per_s = 0 }\n\
                [pools.main.emulate]\nread_latency = \"1s\"\n";
    let report = check(text, "test");
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
    assert_eq!(report.config.hangs("test"), []);
}

#[test]
fn format_and_grow_belong_to_files() {
    let config = parse("[volumes.a]\npath = \"x\"\nsize = 4096\ngrow = true\nformat = \"raw\"\n");
    assert!(config.volumes["a"].grow && config.volumes["a"].format.is_some());
    assert_error("[volumes.a]\ngrow = true\n", "2:1: volumes.a.grow", &["a size"]);
    assert_error("[volumes.a]\nbackend = \"block\"\npath = \"x\"\ngrow = true\n", "4:1: volumes.a.grow", &["\"file\""]);
    assert_error(
        "[volumes.a]\nbackend = \"memory\"\nsize = 4096\nformat = \"raw\"\n",
        "4:1: volumes.a.format",
        &["memory"],
    );
    assert_error("[volumes.a]\nsize = 4096\nformat = \"qcow2\"\n", "3:10: volumes.a.format", &["raw"]);
}

#[test]
fn names_that_nothing_belongs_to_are_warnings_with_the_one_that_was_meant() {
    let volume = "[volumes.database]\nsize = 4096\n";
    for (text, place, meant) in [
        (format!("[tenants.databse]\nweight = 2\n{volume}"), "tenants.databse", "\"database\""),
        (format!("[tenants.defualt]\nweight = 2\n{volume}"), "tenants.defualt", "\"default\""),
        (format!("[pools.mian]\nlimit = {{ iops = 5 }}\n{volume}"), "pools.mian", "\"main\""),
    ] {
        let report = check(&text, "test");
        assert!(report.errors.is_empty(), "{text}: {:?}", report.errors);
        let [warning] = &report.warnings[..] else { panic!("{text}: {:?}", report.warnings) };
        assert!(warning.key == place && warning.position.is_some_and(|(line, _)| line == 1), "{warning}");
        assert!(warning.message.contains("did you mean") && warning.message.contains(meant), "{warning}");
        assert_eq!(report.config.hangs("test"), [], "a command may make it");
    }
    for text in [
        // Something belongs to it.
        format!("[tenants.databse]\nmatch = [\"192.0.2.0/24\"]\n{volume}"),
        format!("[tenants.databse]\n[volumes.other]\nsize = 4096\ntenant = \"databse\"\n{volume}"),
        // The one that could have been meant is there.
        format!("[tenants.databse]\n[tenants.database]\n[tenants.default]\nweight = 2\n{volume}"),
        format!("[pools.mian]\n[pools.main]\nlimit = {{ iops = 5 }}\n{volume}"),
        // Others come by command.
        format!("[tenants.backup]\n[tenants.disk1]\n[pools.spare]\n{volume}"),
        "[tenants.disk1]\n[tenants.database]\n".to_owned(),
    ] {
        assert_eq!(check(&text, "test").warnings, [], "{text}");
    }
    // As many as there may be are compared in no time.
    let many: String =
        (0..10_000).map(|n| format!("[tenants.tenant-{n}]\n[volumes.volume-{n}]\nsize = 4096\n")).collect();
    let config = parse(&many);
    let begun = std::time::Instant::now();
    config.validate("test").unwrap();
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
}

/// A policy that is valid for `evenkeel guard`, too.
const SHARED: &str = "[agent]\ninterfaces = [\"eth0\"]\n[agent.http]\ntls = \"no\"\n\
    [pools.vg1]\ndevices = [\"/dev/vg1/lv1\"]\nenforce = [\"packets\"]\nlatency.target = \"15ms\"\n\
    [pools.\"iqn.2026-01.example:disk\"]\nlatency.target = \"15ms\"\n\
    [pools.vg1.tuning]\ncache.slow = \"/dev/sdb\"\nguarantee.period = \"2s\"\n\
    [tenants.db]\nmatch = [\"initiator:iqn.x:db\", \"cgroup:db.slice\", \"device:/dev/sda\", \"address:192.0.2.1\"]\n\
    max_in_flight = 64\nguarantee.read = { bytes_per_s = \"1MB\", ceiling = \"2MB\" }\n\
    [tenants.db.pools.vg1]\nweight = 4\nthrottle = \"last\"\n";

#[test]
fn what_another_program_enforces_is_taken_and_reported() {
    let report = check(SHARED, "shared.toml");
    assert_eq!(report.errors, []);
    assert_eq!(report.warnings, []);
    let keys: Vec<&str> = report.elsewhere.iter().map(|warning| warning.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "pools.vg1.devices",
            "pools.vg1.enforce",
            "pools.vg1.tuning.cache",
            "pools.vg1.tuning.guarantee",
            "tenants.db.match",
            "tenants.db.max_in_flight",
            "tenants.db.guarantee.read.ceiling",
        ]
    );
    let told = report.elsewhere.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(
        told.contains("shared.toml:6:1: pools.vg1.devices: has no effect here: `evenkeel guard` enforces"),
        "{told}"
    );
    assert!(told.contains("initiator:iqn.x:db, cgroup:db.slice, device:/dev/sda can only be seen by"), "{told}");
    assert_eq!(report.config.tenants["db"].on("vg1").weight, 4);
    assert_eq!(report.config.tenants["db"].on("main").weight, 1);
}

#[test]
fn a_pool_that_leaves_the_queue_out_says_so_where_it_has_volumes() {
    let text = "[pools.main]\nenforce = [\"packets\"]\n[volumes.disk0]\nsize = \"1GiB\"\n";
    let warnings = check(text, "test").warnings;
    assert!(warnings.len() == 1 && warnings[0].message.contains("add \"queue\""), "{warnings:?}");
    let both = text.replace("[\"packets\"]", "[\"queue\"]");
    assert_eq!(check(&both, "test").warnings, []);
}

#[test]
fn faults_of_keys_for_other_programs_are_reported_all_the_same() {
    for (text, expected) in [
        ("[tenants.a]\nmax_in_flight = 0\n", "2:1: tenants.a.max_in_flight: must be at least 1"),
        ("[tenants.a.pools.vg9]\nweight = 1\n", "1:18: tenants.a.pools.vg9: there is no pool \"vg9\""),
        ("[tenants.a.pools.main]\nweight = 0\n", "tenants.a.pools.main.weight: 0 is out of range"),
        ("[tenants.a.pools.main]\nlimit.iops = 5\nreservation.iops = 6\n", "a.pools.main.reservation: 6 IOPS reserved"),
        ("[tenants.a]\nreservation.iops = 6\n[tenants.a.pools.main]\nlimit.iops = 5\n", "a.pools.main.limit: 6 IOPS"),
        (
            "[tenants.a.pools.main]\nlatency.target = \"0s\"\n",
            "tenants.a.pools.main.latency.target: must be more than 0s",
        ),
        ("[tenants.a.pools.main]\nguarantee.read = { iops = 1, bytes_per_s = 1 }\n", "must be either iops or"),
        ("[tenants.a]\nguarantee.read.ceiling = 5\n", "tenants.a.guarantee.read.ceiling: belongs to a guarantee"),
        ("[tenants.a]\nguarantee.read = { iops = 9, ceiling = 8 }\n", "read.ceiling: must be at least the guarantee"),
        ("[pools.main.tuning.guarantee]\nperiod = \"1ms\"\n", "main.tuning.guarantee.period: must be from 50 ms"),
        ("[pools.main.tuning]\nguarantee.max_raise = 0.5\n", "tuning.guarantee.max_raise: must be from 1"),
        ("[pools.main.tuning]\nguarantee.interval = \"1ms\"\n", "tuning.guarantee.interval: must be from 50 ms"),
        ("[pools.main.tuning]\ncache.slow_bytes_per_s = 0\n", "tuning.cache.slow_bytes_per_s: must be"),
        ("[pools.main.tuning]\nslots = \"needs\"\nslots_period = \"1ms\"\n", "tuning.slots_period: must be from"),
        ("[pools.main]\nenforce = [\"cgroups\"]\n", "did you mean \"cgroup\""),
        ("[pools.main]\ndevices = [\"\"]\n", "pools.main.devices: one of the devices has no name"),
        ("agent = 5\n", "agent: "),
        ("[tenants.a]\nmatch = [\"cgroup:../a\"]\n", "must be a path below /sys/fs/cgroup"),
    ] {
        let errors = Config::parse(text, "test").expect_err(text).to_string();
        assert!(errors.contains(expected), "{text}: {errors}");
    }
}
