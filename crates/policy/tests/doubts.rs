//! Tests of settings without effect. They are errors if another key was surely intended, otherwise warnings, each with its
//! remedy.

use evenkeel_policy::Config;
use evenkeel_policy::check::check;
use evenkeel_policy::config::in_policy;
use evenkeel_policy::effective::served;

/// Asserts that `text` has exactly these errors.
#[track_caller]
fn assert_errors(text: &str, expected: &[&str]) {
    let errors: Vec<String> = check(text, "test").errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors, expected, "{text}");
}

/// Key and message of each warning about `text`, which must have no errors.
#[track_caller]
fn warnings(text: &str) -> Vec<(String, String)> {
    let report = check(text, "test");
    assert_eq!(report.errors, [], "{text}");
    report.warnings.into_iter().map(|warning| (warning.key, warning.message)).collect()
}

#[test]
fn a_key_of_another_back_end_is_an_error() {
    for (key, value) in [("connections", "4"), ("reconnect_timeout", "\"5s\""), ("unflushed", "\"kept\"")] {
        let cure = format!("backend \"file\" has no {key}; remove this key, or use backend = \"nbd\"");
        assert_errors(
            &format!("[volumes.a]\nsize = 4096\n{key} = {value}\n"),
            &[&format!("test:3:1: volumes.a.{key}: {cure}")],
        );
    }
    let cure = "has no cache; remove this key, or use backend = \"file\"";
    assert_errors(
        "[volumes.a]\nbackend = \"memory\"\nsize = 4096\ncache = \"buffered\"\n",
        &[&format!("test:4:1: volumes.a.cache: backend \"memory\" {cure}")],
    );
    assert_errors(
        "[volumes.a]\nbackend = \"nbd\"\nuri = \"nbd://far/x\"\ncache = \"buffered\"\n",
        &[&format!("test:4:1: volumes.a.cache: backend \"nbd\" {cure}")],
    );
    assert_errors("[volumes.a]\nsize = 4096\ncache = \"buffered\"\nconnections = 1\n", &[]);
    assert_errors("[volumes.a]\nbackend = \"rbd\"\nrbd = \"p/i\"\ncache = \"buffered\"\n", &[]);
}

#[test]
fn an_empty_path_of_a_socket_is_an_error() {
    assert_errors("[server]\nunix = [\"\"]\n", &["test:2:1: server.unix: is empty; write a path, or [] for none"]);
    assert_errors(
        "[server]\ncontrol = \"\"\n",
        &["test:2:1: server.control: is empty; write a path, or remove this key"],
    );
}

#[test]
fn certificates_that_no_tenant_names_are_doubtful() {
    let tls = "[server.tls]\ncertificate = \"c\"\nkey = \"k\"\nclients = \"a\"\nnamed_only = true\n";
    let [(key, message)] = &warnings(tls)[..] else { panic!("one warning") };
    assert!(key == "server.tls.named_only" && message.contains("[\"certificate:NAME\"]"), "{key}: {message}");
    let named = format!("{tls}[tenants.a]\nmatch = [\"certificate:a.example.org\"]\n");
    assert_eq!(warnings(&named), []);
    let unnamed = format!("{tls}[tenants.a]\nmatch = [\"address:192.0.2.0/24\"]\n");
    assert_eq!(warnings(&unnamed).len(), 1);
}

const VOLUME: &str = "[volumes.a]\nsize = 4096\n";

#[test]
fn a_latency_target_without_slots_is_doubtful_wherever_it_stands() {
    let own = format!("[tenants.a.pools.main]\nlatency.target = \"5ms\"\n{VOLUME}");
    let [(key, message)] = &warnings(&own)[..] else { panic!("{own}") };
    assert!(key == "pools.main.tuning.slots" && message.contains("tenant of volume \"a\""), "{key}: {message}");
    let slots = "[pools.main]\ntuning.slots = \"needs\"\n";
    assert_eq!(warnings(&format!("{slots}{own}")), []);

    let by_client = "[tenants.web]\nmatch = [\"address:192.0.2.1\"]\n";
    let everywhere = format!("{by_client}latency.target = \"5ms\"\n{VOLUME}");
    let [(key, message)] = &warnings(&everywhere)[..] else { panic!("{everywhere}") };
    assert!(key == "pools.main.tuning.slots" && message.starts_with("tenant \"web\" has"), "{key}: {message}");
    // One of the pools has slots for it.
    let fast = "[pools.fast]\ntuning.slots = \"needs\"\n[volumes.b]\npool = \"fast\"\nsize = 4096\n";
    assert_eq!(warnings(&format!("{fast}{everywhere}")), []);
    let on_main = format!("{fast}{by_client}[tenants.web.pools.main]\nlatency.target = \"5ms\"\n{VOLUME}");
    assert_eq!(warnings(&on_main).len(), 1);
}

#[test]
fn settings_of_a_tenant_without_a_scheduler_are_doubtful() {
    let fifo = |settings: &str| format!("[pools.main]\ntuning.scheduler = \"none\"\n[tenants.a]\n{settings}{VOLUME}");
    for (settings, what) in [
        ("reservation.iops = 5\n", "a reservation,"),
        ("limit.iops = 5\n", "a limit,"),
        ("guarantee.iops = 5\n", "a throughput guarantee,"),
        ("[tenants.a.pools.main]\nlimit.iops = 5\n", "a limit,"),
        ("[tenants.web]\nmatch = [\"address:192.0.2.1\"]\nlimit.iops = 5\n", "tenant \"web\" has a limit,"),
    ] {
        let text = fifo(settings);
        let [(key, message)] = &warnings(&text)[..] else { panic!("{text}") };
        assert!(key == "pools.main.tuning.scheduler" && message.contains(what), "{key}: {message}");
    }
    assert_eq!(warnings(&fifo("weight = 3\n")), []);
    // It has volumes here: no other reason is to be given.
    let enforced = served(&Config::parse(&fifo("limit.iops = 5\n"), "test").expect("valid"));
    assert!(enforced.tenants.contains("a") && enforced.rows.iter().all(|row| row.tenant.is_none()), "{enforced:?}");
}

#[test]
fn each_is_for_volumes_and_control_groups() {
    let volumes = "[volumes.db-1]\nsize = 4096\n[volumes.db-2]\nsize = 4096\n";
    let text = |name: &str, entry: &str| format!("[tenants.{name}]\neach = true\nmatch = [\"{entry}\"]\n{volumes}");
    let only = "makes tenants of volumes and control groups only, and match has";
    for entry in ["address:192.0.2.0/28", "device:/dev/vdb", "initiator:iqn.2026-01.example:db"] {
        let errors = check(&text("db", entry), "test").errors;
        assert!(
            errors.iter().any(|error| error.key == "tenants.db.each" && error.message.contains(only)),
            "{errors:?}"
        );
    }
    assert_errors(
        &text("default", "volume:db-*"),
        &[
            "test:2:1: tenants.default.each: is not for the default tenant, to which all other clients belong; name the volumes in match of another tenant",
        ],
    );
    // Each volume is owed the reservation.
    let reserved = |iops: u64| {
        format!(
            "{}[pools.main]\nlimit.iops = 90\n[tenants.db.pools.main]\nreservation.iops = {iops}\n",
            text("db", "volume:db-*")
        )
    };
    assert_eq!(warnings(&reserved(45)), []);
    let found = warnings(&reserved(46));
    assert!(found.len() == 1 && found[0].1.contains("of tenant db come to 92 IOPS"), "{found:?}");
}

#[test]
fn each_volume_is_scheduled_by_itself() {
    let text = "[tenants.db]\neach = true\nweight = 3\nmatch = [\"volume:db-*\"]\n[pools.fast]\n\
                [volumes.db-1]\nsize = 4096\n[volumes.db-2]\nsize = 4096\npool = \"fast\"\n[volumes.web]\nsize = 4096\n";
    let config = Config::parse(text, "test").expect("valid");
    let owners = config.owners();
    let on = |pool: &str| owners.scheduled_on(pool).into_keys().map(|name| name.into_owned()).collect::<Vec<_>>();
    assert_eq!(
        (on("main"), on("fast")),
        (vec!["db/db-1".into(), "default".into()], vec!["db/db-2".into(), "default".into()])
    );
    assert_eq!(owners.scheduled_on("main")["db/db-1"].weight, 3);
    for (name, tenant) in [("db-1", "db/db-1"), ("db-2", "db/db-2"), ("web", "default")] {
        let scheduled = owners.scheduled(name, &config.volumes[name]);
        assert_eq!((&*scheduled, in_policy(&scheduled)), (tenant, owners.of(name, &config.volumes[name])));
    }
    let rows = served(&config).rows;
    assert!(
        rows.iter()
            .any(|row| row.tenant.as_deref() == Some("db") && row.measured == "requests of each volume by itself")
    );
}

#[test]
fn hours_of_no_rate_are_doubtful() {
    let text = "[pools.main]\nlimit.when = \"22:00-06:00\"\n";
    let found = warnings(text);
    assert!(found.iter().any(|(key, message)| key == "pools.main.limit" && message.contains("add iops")), "{found:?}");
    assert!(warnings(&format!("{text}limit.iops = 5\n")).iter().all(|(key, _)| key != "pools.main.limit"));
}

#[test]
fn a_limit_of_a_volume_is_checked_as_that_of_a_tenant() {
    let of = |limit: &str| warnings(&format!("[volumes.a]\nsize = 4096\nlimit = {limit}\n"));
    for (limit, wrong, cure) in [
        ("{ bytes_per_s = 400 }", "volumes.a.limit.bytes_per_s", "is a unit missing, as in \"400MB\"?"),
        ("{ when = \"22:00-06:00\" }", "volumes.a.limit", "add iops"),
    ] {
        let found = of(limit);
        let [(key, message)] = &found[..] else { panic!("{found:?}") };
        assert!(key == wrong && message.contains(cure), "{key}: {message}");
    }
    let found = of("{ iops = 5, bytes_per_s = \"40MB\", burst = \"1s\", when = \"22:00-06:00\" }");
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(check("[volumes.a]\nsize = 4096\nlimit = { weight = 5 }\n", "test").errors.len(), 1);
}

#[test]
fn the_same_weight_at_other_hours_is_doubtful() {
    let of = |weight: u32| {
        let at = format!("weight_at = {{ weight = {weight}, when = \"22:00-06:00\" }}\n");
        let found = warnings(&format!("[tenants.default]\nweight = 3\n{at}")).into_iter();
        found.filter(|(key, _)| key.starts_with("tenants.default.weight_at")).collect::<Vec<_>>()
    };
    let same = of(3);
    let [(key, message)] = &same[..] else { panic!("{same:?}") };
    assert!(key == "tenants.default.weight_at.weight" && message.contains("remove weight_at"), "{key}: {message}");
    assert!(of(4).is_empty(), "{:?}", of(4));
}

#[test]
fn volumes_differ_by_large_and_small_letters() {
    let text = "[tenants.a]\nmatch = [\"volume:DB\"]\n[tenants.b]\nmatch = [\"volume:db\"]\n";
    let config = Config::parse(text, "test").expect("two volumes");
    let volume = &config.volumes["disk0"];
    assert_eq!((config.owners().of("DB", volume), config.owners().of("db", volume)), ("a", "b"));
}

#[test]
fn slots_are_decided_as_often_as_the_agent_would() {
    let period = |period: &str| format!("[pools.main.tuning]\nslots = \"needs\"\nslots_period = \"{period}\"\n");
    assert_errors(&period("50ms"), &["test:3:1: pools.main.tuning.slots_period: must be from 100 ms to 60 s"]);
    assert_errors(&period("100ms"), &[]);
    assert_errors(&format!("{}[cluster]\netcd = [\"http://127.0.0.1:2379\"]\n", period("50ms")), &[]);
}
