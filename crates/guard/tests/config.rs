//! What a configuration must be, and what is said about one that is not.

use evenkeel_guard::Config;
use evenkeel_guard::config::{Abilities, CephConfig, EXAMPLE, Guard, Method, Who};
use evenkeel_policy::config::Percentile;
use proptest::prelude::*;

const NONE: Abilities = Abilities { tracepoints: false };

fn complaints(text: &str) -> String {
    Config::parse(text, "guard.toml", NONE).expect_err("a fault").to_string()
}

#[test]
fn the_example_is_valid_and_its_comments_are_the_defaults() {
    let example = Config::parse(EXAMPLE, "example", NONE).expect("valid");
    assert_eq!(example.resources.len(), 1);
    // With every commented key made real, nothing changes but what has no default.
    let line = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.contains(" = ") && key.starts_with(|c: char| c.is_ascii_lowercase()) => key.to_owned(),
        _ => line.to_owned(),
    };
    let spelled: String = EXAMPLE.lines().map(line).map(|line| line + "\n").collect();
    let mut spelled = Config::parse(&spelled, "example", NONE).expect("valid");
    spelled.resources.get_mut("vg1").expect("is there").devices.clear();
    let pool = spelled.hybrids.get_mut("pool").expect("is there");
    (pool.slow, pool.fast, pool.slow_bytes_per_s) = (None, None, None);
    pool.tenants.get_mut("database").expect("is there").write = None;
    let san = spelled.arrays.get_mut("san").expect("is there");
    san.latency = None;
    san.volumes.get_mut("database").expect("is there").ceiling = None;
    (spelled.exchange.etcd, spelled.exchange.host) = (Vec::new(), None);
    let ceph = spelled.ceph.as_mut().expect("is there");
    (ceph.only, ceph.sockets) = (Vec::new(), Vec::new());
    assert_eq!(spelled, example);
    let expected = Guard { interfaces: vec!["eth0".into()], never: example.guard.never.clone(), ..Guard::default() };
    assert_eq!(example.guard, expected);
    assert_eq!(example.ceph, Some(CephConfig::default()));
}

#[test]
fn an_empty_text_is_a_configuration_without_goals() {
    let config = Config::parse("", "guard.toml", NONE).expect("valid");
    assert_eq!(config, Config::default());
    assert_eq!(config.guard.method, Method::Adaptive);
}

#[test]
fn faults_name_file_line_key_and_cure() {
    let cases = [
        (
            "[guard]\nintervall = \"1s\"\n",
            "guard.toml:2:1: guard.intervall: unknown key \"intervall\"; did you mean \"interval\"?",
        ),
        ("[resources.a]\n", "the key `latency` is missing"),
        ("[resources.a]\nlatency.target = 15\n", "guard.toml:2:"),
        ("[resources.a]\nlatency.target = \"0\"\n", "resources.a.latency.target: must be from 10 us"),
        ("[guard]\nports = []\n", "guard.toml:2:1: guard.ports: is empty"),
        ("[guard]\ntimeout = \"100ms\"\n", "at least three intervals (300ms)"),
        ("[guard]\nstep = \"0\"\n", "guard.step: is 0"),
        ("[guard]\ndiscover_every = \"1ms\"\n", "guard.discover_every: is 1ms"),
        ("[resources.a]\nlatency.target = \"15ms\"\nlatency.percentile = \"median\"\n", "no figure of latencies"),
        (
            "[guard]\n[guard.http]\ntls = \"always\"\n",
            "guard.toml:3:1: guard.http.tls: there is no certificate for HTTPS; add [guard.tls]",
        ),
        ("[guard.tls]\ncertificate = \"c\"\n", "the key `key` is missing"),
        ("[guard.tls]\ncertificate = \"c\"\nkey = \"k\"\nrequired = \"no\"\n", "unknown key \"required\""),
        (
            "[guard.tls]\ncertificate = \"c\"\nkey = \"k\"\nrevoked = \"r\"\n",
            "guard.toml:4:1: guard.tls.revoked: nothing can be revoked",
        ),
        ("[hybrids.a]\n", "the key `device` is missing"),
        ("[ceph]\nsample_every = \"1ms\"\n", "guard.toml:2:1: ceph.sample_every: is 1ms; write \"5ms\" to \"1s\""),
        ("[ceph]\nanswer_within = \"1m\"\n", "ceph.answer_within: is"),
        ("[ceph]\nadmission = \"none\"\n", "leave the table out"),
        ("[ceph]\nadmission = { kind = \"fixed\", budget = 0 }\n", "budget must be greater than 0"),
        ("[hybrids.a]\ndevice = \"dm-0\"\n", "hybrids.a.tenants: names nobody"),
        ("[hybrids.a]\ndevice = \"dm-0\"\nperiod = \"1ms\"\n", "hybrids.a.period: must be from 50 ms"),
        ("[hybrids.a]\ndevice = \"dm-0\"\nmax_raise = 0.5\n", "hybrids.a.max_raise: must be from 1"),
        ("[arrays.a]\n", "arrays.a.volumes: names nothing"),
        ("[arrays.\"a b\"]\n", "is no name of an array"),
        ("[arrays.a]\nmethod = \"sfq_d\"\n", "arrays.a.method: must be \"needs\""),
        ("[arrays.a]\nmethod = \"drg\"\n[exchange]\netcd = [\"http://a:1\"]\n", "arrays.a.method: must be"),
        ("[arrays.a]\nperiod = \"10ms\"\n", "arrays.a.period: is 10ms"),
        ("[guard]\ninterval = \"2s\"\ntimeout = \"9s\"\n[arrays.a]\n", "arrays.a.period: is 1s"),
        ("[arrays.a]\nlatency = \"1us\"\n", "arrays.a.latency: must be from 10 us"),
        ("[arrays.a]\nmost = 0\n", "arrays.a.most: must be"),
        ("[arrays.a.volumes.v]\n", "the key `device` is missing"),
        ("[arrays.a.volumes.v]\ndevice = \"sda\"\nweight = 0.0\n", "arrays.a.volumes.v.weight: must be above 0"),
        ("[arrays.a.volumes.v]\ndevice = \"sda\"\nceiling = 0\n", "arrays.a.volumes.v.ceiling: must be at least 1"),
        ("[arrays.a.volumes.v]\ndevice = \"sda\"\nlatency.target = \"0\"\n", "arrays.a.volumes.v.latency: must"),
        ("[exchange]\nlease = \"1s\"\n", "exchange.lease: must be 2"),
    ];
    for (text, expected) in cases {
        let complaints = complaints(text);
        assert!(complaints.contains(expected), "{text}: {complaints}");
    }
}

#[test]
fn whoever_shows_names_and_loads_to_others_is_told() {
    let doubts = |text: &str| {
        let (_, doubts) = Config::check(text, "guard.toml", NONE).expect("valid");
        doubts.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let beyond = "[guard]\nstatus = \"192.0.2.1:9810\"\n";
    let tls = "[guard.tls]\ncertificate = \"c\"\nkey = \"k\"\n";
    for (tables, cure) in [("", "set [guard.tls]"), (tls, "set guard.tls.clients")] {
        let doubts = doubts(&format!("{beyond}{tables}"));
        assert!(doubts.len() == 1 && doubts[0].starts_with("guard.toml:2:1: guard.status: "), "{doubts:?}");
        assert!(doubts[0].contains("192.0.2.1:9810") && doubts[0].contains(cure), "{doubts:?}");
    }
    for tables in [
        &format!("{tls}clients = \"a\"\n"),
        &format!("{tls}[guard.http]\ncertificates = \"optional\"\n"),
        "[guard.http]\ntls = \"no\"\n",
    ] {
        assert_eq!(doubts(&format!("{beyond}{tables}")), [""; 0], "{tables}");
    }
    for text in ["", "[guard]\nstatus = \"off\"\n", "[guard]\nstatus = \"[::1]:9810\"\n"] {
        assert_eq!(doubts(text), [""; 0], "{text}");
    }
}

#[test]
fn values_that_hang_are_told() {
    let tenant = "[hybrids.h]\ndevice = \"/dev/vdb\"\n[hybrids.h.tenants.a]\ngroup = \"a.slice\"\n";
    for (text, place, words) in [
        (format!("{tenant}read = {{ bytes_per_s = 10 }}\n"), "5:10: hybrids.h.tenants.a.read.bytes_per_s", "\"10MB\""),
        (
            format!("{tenant}write = {{ bytes_per_s = 1, ceiling = \"1GB\" }}\n"),
            "5:11: hybrids.h.tenants.a.write.bytes_per_s",
            "less than one request",
        ),
        (
            "[ceph]\nadmission = { kind = \"fixed\", budget = 64 }\n".into(),
            "2:31: ceph.admission.budget",
            "64 is below",
        ),
        (
            "[ceph]\nadmission = { kind = \"slowfast\", budget_min = 64, budget_initial = 64, budget_max = 64 }\n"
                .into(),
            "ceph.admission.budget_max",
            "64 is below",
        ),
    ] {
        let (_, doubts) = Config::check(&text, "guard.toml", NONE).expect("valid");
        let [doubt] = &doubts[..] else { panic!("{text}: {doubts:?}") };
        let doubt = doubt.to_string();
        assert!(doubt.contains(place) && doubt.contains(words), "{doubt}");
    }
    let fine = format!(
        "{tenant}read = {{ bytes_per_s = 4096 }}\nwrite = {{ iops = 1, ceiling = 1 }}\n[ceph]\nadmission = \"elastic\"\n"
    );
    assert_eq!(Config::check(&fine, "guard.toml", NONE).expect("valid").1, []);
}

#[test]
fn guarantees_that_make_no_sense_are_refused() {
    let cases = [
        ("group = \"a\"", "read: is missing, and so is write"),
        ("group = \"a\"\nread = {}", "hybrids.p.tenants.t.read: must have either bytes_per_s or iops"),
        ("group = \"a\"\nread = { bytes_per_s = 1, iops = 1 }", "must have either bytes_per_s or iops"),
        ("group = \"a\"\nread = { iops = 0 }", "read: guarantee must be above 0"),
        ("group = \"a\"\nread = { iops = 9, ceiling = 8 }", "read: ceiling must be at least the guarantee"),
        ("group = \"a\"\nread = { iops = 9 }\nweight = 0.0", "weight: weight must be above 0"),
        ("group = \"../a\"\nread = { iops = 9 }", "hybrids.p.tenants.t.group: must be a path below"),
        ("group = \"/\"\nread = { iops = 9 }", "hybrids.p.tenants.t.group: must be a path below"),
    ];
    for (tenant, expected) in cases {
        let complaints = complaints(&format!("[hybrids.p]\ndevice = \"dm-0\"\n[hybrids.p.tenants.t]\n{tenant}\n"));
        assert!(complaints.contains(expected), "{tenant}: {complaints}");
    }
}

#[test]
fn percentiles_are_refused_with_the_reason_where_they_cannot_be_measured() {
    let text = "[resources.a]\nlatency.target = \"15ms\"\nlatency.percentile = 99\n";
    let without = complaints(text);
    assert!(without.contains("guard.toml:3:9: resources.a.latency.percentile: p99 cannot be measured"), "{without}");
    assert!(without.contains("shows none here"), "{without}");
    let with = Config::parse(text, "guard.toml", Abilities { tracepoints: true }).expect("can be measured");
    assert_eq!(with.resources["a"].latency.percentile, Percentile::At(99.0));
}

#[test]
fn clients_are_meant_by_block_or_name() {
    let address = "10.0.0.9".parse().expect("an address");
    let who = |text: &str| Who::from(text.to_owned());
    assert!(who("10.0.0.0/24").is(address, &[]));
    assert!(!who("10.0.1.0/24").is(address, &[]));
    assert!(who("iqn.x").is(address, &["iqn.x".into()]));
    assert!(!who("iqn.x").is(address, &["iqn.xy".into()]));
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "(\\[guard\\]\n|\\[resources.a\\]\n)?[ -~\né]{0,200}") {
        let _ = Config::parse(&text, "guard.toml", NONE);
    }
}
