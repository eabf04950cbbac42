//! Tests of the configuration: which texts are accepted, and the messages for others.

use evenkeel_guard::Config;
use evenkeel_guard::config::{Abilities, AgentConfig, CephConfig, EXAMPLE, Method};
use evenkeel_policy::config::{Enforcement, GuaranteeTuning, Percentile, Slots, Throttle};
use evenkeel_policy::source::Source;
use evenkeel_policy::units::{Bytes, Duration};
use proptest::prelude::*;

const NONE: Abilities = Abilities { tracepoints: false };

fn complaints(text: &str) -> String {
    Config::parse(text, "guard.toml", NONE).expect_err("a fault").to_string()
}

#[test]
fn the_example_is_valid_and_its_comments_are_the_defaults() {
    let example = Config::parse(EXAMPLE, "example", NONE).expect("valid");
    assert_eq!(example.packets.len(), 1);
    // With every commented key made real, nothing changes but what has no default.
    let line = |line: &str| match line.strip_prefix('#') {
        Some(key) if key.contains(" = ") && key.starts_with(|c: char| c.is_ascii_lowercase()) => key.to_owned(),
        _ => line.to_owned(),
    };
    let spelled: String = EXAMPLE.lines().map(line).map(|line| line + "\n").collect();
    let mut spelled = Config::parse(&spelled, "example", NONE).expect("valid");
    spelled.packets.get_mut("vg1").expect("is there").devices.clear();
    let cached = spelled.cached.get_mut("cached").expect("is there");
    cached.cache = Default::default();
    cached.tenants.get_mut("web").expect("is there").write = Default::default();
    let san = spelled.arrays.get_mut("san").expect("is there");
    san.latency = None;
    san.volumes.get_mut("db").expect("is there").ceiling = None;
    (spelled.cluster.etcd, spelled.cluster.host) = (Vec::new(), None);
    spelled.enforced = example.enforced.clone();
    assert_eq!(spelled, example);
    let expected = AgentConfig { interfaces: vec!["eth0".into()], ..AgentConfig::default() };
    assert_eq!(example.agent, expected);
    assert_eq!(example.ceph, Some(CephConfig::default()));
    assert_eq!(example.notes, [], "all of it is enforced");
    let rows: Vec<_> = example.enforced.rows.iter().map(|row| (row.point.name(), row.setting.as_str())).collect();
    let expected = [
        ("cgroup", "guarantee read 200MB/s"),
        ("osd", "admission elastic"),
        ("queue_depth", "latency mean of all requests < 10ms"),
        ("queue_depth", "weight 1"),
        ("packets", "latency mean of reads < 15ms"),
    ];
    assert_eq!(rows, expected);
    let tenants: Vec<&str> = example.enforced.tenants.iter().map(String::as_str).collect();
    assert_eq!(tenants, ["database", "db", "web"]);
}

#[test]
fn an_empty_text_is_a_configuration_without_targets() {
    let config = Config::parse("", "guard.toml", NONE).expect("valid");
    assert_eq!(config, Config::default());
    let config = Config::parse("[pools.a]\nlatency.target = \"15ms\"\n", "guard.toml", NONE).expect("valid");
    assert_eq!(config.packets["a"].method, Method::Adaptive);
}

#[test]
fn faults_name_file_line_key_and_cure() {
    let cases = [
        (
            "[agent]\nintervall = \"1s\"\n",
            "guard.toml:2:1: agent.intervall: unknown key \"intervall\"; did you mean \"interval\"?",
        ),
        ("[guard]\n", "unknown key \"guard\""),
        ("[resources.a]\n", "unknown key \"resources\""),
        ("[pools.a]\nlatency = {}\n", "the key `target` is missing"),
        ("[pools.a]\nlatency.target = 15\n", "guard.toml:2:"),
        ("[pools.a]\nlatency.target = \"0\"\n", "pools.a.latency.target: must be from 10 us"),
        ("[pools.a]\nlatency = { target = \"9ms\", of = \"writes\" }\n", "pools.a.latency.of: a pool's target"),
        ("[agent]\nports = []\n", "guard.toml:2:1: agent.ports: is empty"),
        ("[agent]\ntimeout = \"100ms\"\n", "at least three times agent.interval (300ms)"),
        ("[agent]\nstep = \"0\"\n", "agent.step: is 0"),
        ("[agent]\ndiscover_every = \"1ms\"\n", "agent.discover_every: is 1ms"),
        ("[pools.a]\nlatency.target = \"15ms\"\nlatency.percentile = \"median\"\n", "not a statistic of latencies"),
        (
            "[agent]\n[agent.http]\ntls = \"always\"\n",
            "guard.toml:3:1: agent.http.tls: there is no certificate for HTTPS; add [agent.tls]",
        ),
        ("[agent.tls]\ncertificate = \"c\"\n", "the key `key` is missing"),
        ("[agent.tls]\ncertificate = \"c\"\nkey = \"k\"\nrequired = \"no\"\n", "unknown key \"required\""),
        (
            "[agent.tls]\ncertificate = \"c\"\nkey = \"k\"\nrevoked = \"r\"\n",
            "guard.toml:4:1: agent.tls.revoked: nothing can be revoked",
        ),
        (
            "[agent.ceph]\nsample_every = \"1ms\"\n",
            "guard.toml:2:1: agent.ceph.sample_every: is 1ms; write \"5ms\" to \"1s\"",
        ),
        ("[agent.ceph]\nanswer_within = \"1m\"\n", "agent.ceph.answer_within: is"),
        (
            "[pools.a]\ndevices = [\"osd:*\"]\ntuning.admission = \"none\"\n",
            "a.tuning.admission: is \"none\", which controls no OSD",
        ),
        (
            "[pools.a]\ndevices = [\"osd:*\"]\ntuning.admission = { kind = \"fixed\", budget = 0 }\n",
            "budget must be greater than 0",
        ),
        ("[pools.a]\ndevices = [\"osd:\"]\n", "guard.toml:2:1: pools.a.devices: \"osd:\" names no OSD"),
        (
            "[pools.a]\ndevices = [\"osd:*\"]\n[pools.b]\ndevices = [\"osd:osd.1\"]\n",
            "4:1: pools.b.devices: another pool",
        ),
        (
            "[pools.a]\ndevices = [\"dm-0\"]\ntuning.guarantee.period = \"1ms\"\n",
            "guarantee.period: must be from 50 ms",
        ),
        ("[pools.a]\ndevices = [\"dm-0\"]\ntuning.guarantee.max_raise = 0.5\n", "guarantee.max_raise: must be from 1"),
        ("[pools.a]\ndevices = [\"dm-0\"]\nenforce = [\"cgroups\"]\n", "did you mean \"cgroup\""),
        ("[pools.\"a b\"]\n", "is not a usable name"),
        (
            "[pools.\"a:b\"]\ntuning.slots = \"needs\"\n[tenants.t]\nmatch = [\"device:sda\"]\n",
            "cannot name an array that hosts share",
        ),
        ("[tenants.a]\nweight = 0\n", "tenants.a.weight: 0 is out of range"),
        ("[tenants.a.pools.b]\nweight = 1\n", "tenants.a.pools.b: there is no pool \"b\""),
        ("[tenants.a]\nmatch = [\"device:sda\"]\n[tenants.b]\nmatch = [\"device:sda\"]\n", "already belongs to tenant"),
        ("[cluster]\nlease = \"1s\"\n", "cluster.lease: must be 2"),
    ];
    for (text, expected) in cases {
        let complaints = complaints(text);
        assert!(complaints.contains(expected), "{text}: {complaints}");
    }
}

#[test]
fn faults_of_arrays_are_reported_at_the_keys_of_their_pools() {
    let array = "[tenants.t]\nmatch = [\"device:sda\"]\n[pools.a.tuning]\n";
    for (text, expected) in [
        (
            "slots = \"sfq_d\"\n".to_owned(),
            "guard.toml:4:1: pools.a.tuning.slots: \"sfq_d\" is a method for comparisons",
        ),
        ("slots = \"drg\"\n[cluster]\netcd = [\"http://a:1\"]\n".to_owned(), "pools.a.tuning.slots: must be"),
        (
            "slots = \"needs\"\nslots_period = \"10ms\"\n".to_owned(),
            "guard.toml:5:1: pools.a.tuning.slots_period: is 10ms",
        ),
        (
            "slots = \"needs\"\n[agent]\ninterval = \"2s\"\ntimeout = \"9s\"\n".to_owned(),
            "pools.a.tuning.slots_period: is 1s",
        ),
        ("slots = \"needs\"\nslots_latency = \"1us\"\n".to_owned(), "pools.a.tuning.slots_latency: must be from 10 us"),
        ("slots = \"needs\"\nslots_most = 0\n".to_owned(), "pools.a.tuning.slots_most: must be"),
        (
            "slots = \"needs\"\n[tenants.u]\nmax_in_flight = 0\n".to_owned(),
            "tenants.u.max_in_flight: must be at least 1",
        ),
        (
            "slots = \"needs\"\n[tenants.u]\nlatency.target = \"0\"\n".to_owned(),
            "tenants.u.latency.target: must be more than 0s",
        ),
    ] {
        let complaints = complaints(&format!("{array}{text}"));
        assert!(complaints.contains(expected), "{text}: {complaints}");
        // A policy for other hosts is no fault here: without a device nothing is enforced.
        if expected.contains("tuning.slots: must") {
            let elsewhere = format!("{array}{text}").replace("device:sda", "192.0.2.1");
            Config::parse(&elsewhere, "guard.toml", NONE).expect("not for this host");
        }
    }
}

#[test]
fn an_address_that_shows_names_and_loads_to_others_is_warned_of() {
    let doubts = |text: &str| {
        let (_, doubts) = Config::check(&Source::of(text, "guard.toml"), NONE).expect("valid");
        doubts.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let beyond = "[agent]\nstatus = \"192.0.2.1:9810\"\n";
    let tls = "[agent.tls]\ncertificate = \"c\"\nkey = \"k\"\n";
    for (tables, cure) in [("", "set [agent.tls]"), (tls, "set agent.tls.clients")] {
        let doubts = doubts(&format!("{beyond}{tables}"));
        assert!(doubts.len() == 1 && doubts[0].starts_with("guard.toml:2:1: agent.status: "), "{doubts:?}");
        assert!(doubts[0].contains("192.0.2.1:9810") && doubts[0].contains(cure), "{doubts:?}");
    }
    for tables in [
        &format!("{tls}clients = \"a\"\n"),
        &format!("{tls}[agent.http]\ncertificates = \"optional\"\n"),
        "[agent.http]\ntls = \"no\"\n",
    ] {
        assert_eq!(doubts(&format!("{beyond}{tables}")), [""; 0], "{tables}");
    }
    for text in ["", "[agent]\nstatus = \"off\"\n", "[agent]\nstatus = \"[::1]:9810\"\n"] {
        assert_eq!(doubts(text), [""; 0], "{text}");
    }
}

#[test]
fn values_that_hang_are_reported() {
    let tenant = "[pools.h]\ndevices = [\"/dev/vdb\"]\n[tenants.a]\nmatch = [\"cgroup:a.slice\"]\n";
    let osds = "[pools.c]\ndevices = [\"osd:*\"]\n";
    for (text, place, words) in [
        (
            format!("{tenant}guarantee.read = {{ bytes_per_s = 10 }}\n"),
            "5:20: tenants.a.guarantee.read.bytes_per_s",
            "\"10MB\"",
        ),
        (
            format!("{tenant}guarantee.write = {{ bytes_per_s = 1, ceiling = \"1GB\" }}\n"),
            "5:21: tenants.a.guarantee.write.bytes_per_s",
            "less than one request",
        ),
        (
            format!("{tenant}[tenants.a.pools.h]\nguarantee.write = {{ bytes_per_s = 1 }}\n"),
            "6:21: tenants.a.pools.h.guarantee.write.bytes_per_s",
            "less than one request",
        ),
        (
            format!("{osds}tuning.admission = {{ kind = \"fixed\", budget = 64 }}\n"),
            "3:38: pools.c.tuning.admission.budget",
            "64 is below",
        ),
        (
            format!(
                "{osds}tuning.admission = {{ kind = \"slowfast\", budget_min = 64, budget_initial = 64, budget_max = 64 }}\n"
            ),
            "pools.c.tuning.admission.budget_max",
            "64 is below",
        ),
    ] {
        let (_, doubts) = Config::check(&Source::of(&text, "guard.toml"), NONE).expect("valid");
        let [doubt] = &doubts[..] else { panic!("{text}: {doubts:?}") };
        let doubt = doubt.to_string();
        assert!(doubt.contains(place) && doubt.contains(words), "{doubt}");
    }
    let fine = format!(
        "{tenant}guarantee.read = {{ bytes_per_s = 4096 }}\nguarantee.write = {{ iops = 1, ceiling = 1 }}\n\
         {osds}tuning.admission = \"elastic\"\n"
    );
    assert_eq!(Config::check(&Source::of(&fine, "guard.toml"), NONE).expect("valid").1, []);
}

#[test]
fn guarantees_that_make_no_sense_are_refused() {
    let cases = [
        ("guarantee.read = { bytes_per_s = 1, iops = 1 }", "must be either iops or bytes_per_s"),
        ("guarantee.read = { iops = 9, ceiling = 8 }", "guarantee.read.ceiling: must be at least the guarantee"),
        ("guarantee.read = { ceiling = 8 }", "guarantee.read.ceiling: belongs to a guarantee"),
        ("guarantee.read = { iops = 9 }\nweight = 0", "tenants.t.weight: 0 is out of range"),
    ];
    for (tenant, expected) in cases {
        let text = format!("[pools.p]\ndevices = [\"dm-0\"]\n[tenants.t]\nmatch = [\"cgroup:a\"]\n{tenant}\n");
        let complaints = complaints(&text);
        assert!(complaints.contains(expected), "{tenant}: {complaints}");
        assert_eq!(complaints.lines().count(), 1, "{complaints}");
    }
    for group in ["../a", "/"] {
        let complaints = complaints(&format!("[tenants.t]\nmatch = [\"cgroup:{group}\"]\n"));
        assert!(complaints.contains("guard.toml:2:") && complaints.contains("must be a path below"), "{complaints}");
    }
    let two = "[pools.p]\ndevices = [\"dm-0\", \"dm-1\"]\ntuning.cache.slow = \"sdb\"\n\
               [tenants.t]\nmatch = [\"cgroup:a\"]\nguarantee.read.iops = 9\n";
    assert!(complaints(two).contains("guard.toml:3:8: pools.p.tuning.cache: names what one cached device"));
    let config = Config::parse(&two.replace(".slow = \"sdb\"", ".slow_bytes_per_s = \"1MB\""), "guard.toml", NONE);
    let config = config.expect("valid");
    assert_eq!(config.cached.keys().collect::<Vec<_>>(), ["p.dm-0", "p.dm-1"]);
}

#[test]
fn guarantees_are_decided_no_more_often_than_the_agent_ticks() {
    let cached = |agent: &str, tuning: &str| {
        let text = format!(
            "[agent]\n{agent}\n[pools.a]\ndevices = [\"dm-0\"]\n{tuning}\n[tenants.t]\nmatch = [\"cgroup:t\"]\n\
             guarantee.read = {{ bytes_per_s = \"9MB\" }}\n"
        );
        Config::parse(&text, "guard.toml", NONE).map(|config| config.cached["a"].interval())
    };
    assert_eq!(cached("", ""), Ok(Duration::from_millis(100)));
    assert_eq!(cached("interval = \"600ms\"", ""), Ok(Duration::from_millis(600)));
    assert_eq!(cached("interval = \"20ms\"", "tuning.guarantee.interval = \"50ms\""), Ok(Duration::from_millis(50)));
    let refused = cached("interval = \"2s\"\ntimeout = \"9s\"", "").expect_err("a fault").to_string();
    let expected = "pools.a.tuning.guarantee.period: is 1s; write at least agent.interval (2s)";
    assert!(refused.contains(expected), "{refused}");
}

#[test]
fn bounds_of_the_agent_hold_with_and_without_packets_and_are_one_fault() {
    for (keys, expected) in [
        (
            "interval = \"10ms\"\ntimeout = \"50ms\"",
            "guard.toml:3:1: agent.timeout: is 50ms; write at least three times agent.interval (30ms) and 100ms",
        ),
        ("interval = \"0s\"", "guard.toml:2:1: agent.interval: is 0s; write \"10ms\" to \"60s\""),
        ("interval = \"61s\"\ntimeout = \"1h\"", "agent.interval: is 61s; write"),
        ("max_delay = \"11s\"", "agent.max_delay: is 11s; write more than 0 and at most 1s"),
        ("step = \"0s\"\nmax_delay = \"0s\"", "agent.max_delay: is 0s"),
    ] {
        for pool in ["", "[pools.a]\nlatency.target = \"15ms\"\n"] {
            let complaints = complaints(&format!("[agent]\n{keys}\n{pool}"));
            assert!(complaints.contains(expected), "{complaints}");
            let key = expected.split(": ").find(|part| part.starts_with("agent.")).expect("a key");
            assert_eq!(complaints.matches(key).count(), 1, "{complaints}");
        }
    }
}

#[test]
fn percentiles_are_refused_with_the_reason_where_they_cannot_be_measured() {
    let text = "[pools.a]\nlatency.target = \"15ms\"\nlatency.percentile = 99\n";
    let without = complaints(text);
    assert!(without.contains("guard.toml:3:9: pools.a.latency.percentile: p99 cannot be measured"), "{without}");
    assert!(without.contains("this host has none"), "{without}");
    let with = Config::parse(text, "guard.toml", Abilities { tracepoints: true }).expect("can be measured");
    assert_eq!(with.packets["a"].latency.percentile, Percentile::At(99.0));
}

/// A policy that several hosts share, with parts for `evenkeel serve` and for the agent.
const SHARED: &str = r#"
[server]
listen = []
[volumes.disk0]
size = "1GiB"
[pools.main]
limit = { iops = 5 }
[pools.served]
latency.target = "1ms"
enforce = ["queue"]
[pools.vg1]
latency.target = "15ms"
tuning = { method = "pid", noisy_above = "1MiB", base_cost = 5 }
[pools.cached]
devices = ["/dev/mapper/pool"]
latency.target = "20ms"
tuning.guarantee = { method = "saat", period = "2s" }
[pools.san]
devices = ["/dev/mapper/mpatha", "/dev/mapper/mpathb", "/dev/mapper/mpathc"]
tuning = { slots = "rwd", slots_most = 12, slots_latency = "5ms", slots_period = "2s" }
[pools.ceph]
devices = ["osd:osd.0", "osd:osd.1?"]
[tenants.default]
throttle = "always"
[tenants.database]
match = ["initiator:iqn.x", "address:192.0.2.0/24", "cgroup:db-*.slice", "device:/dev/mapper/*"]
throttle = "last"
weight = 3
latency.target = "10ms"
guarantee = { read.bytes_per_s = "10MB" }
[tenants.database.pools.cached]
throttle = "never"
guarantee = { write = { iops = 5, ceiling = 9 } }
weight = 7
[tenants.backup]
match = ["address:192.0.2.1", "device:/dev/mapper/mpathb", "volume:b", "uid:7"]
max_in_flight = 4
priority = "background"
limit.iops = 7
"#;

#[test]
fn each_pool_has_the_enforcement_points_that_apply_to_it() {
    let config = Config::parse(SHARED, "guard.toml", NONE).expect("valid");
    assert_eq!(config.packets.keys().collect::<Vec<_>>(), ["cached", "vg1"]);
    let vg1 = &config.packets["vg1"];
    assert_eq!((vg1.method, vg1.noisy_above, vg1.devices.len()), (Method::Pid, Bytes(1 << 20), 0));
    assert_eq!(config.packets["cached"].devices, ["/dev/mapper/pool"]);
    assert_eq!(config.cached.keys().collect::<Vec<_>>(), ["cached"]);
    let cached = &config.cached["cached"];
    assert_eq!((cached.device.as_str(), cached.tuning.period), ("/dev/mapper/pool", Duration::from_secs(2)));
    assert_ne!(cached.tuning.method, GuaranteeTuning::default().method);
    let database = &cached.tenants["database"];
    assert_eq!((database.group.as_str(), database.weight), ("db-*.slice", 7));
    assert!(database.read.is_unset() && database.write.iops == 5 && database.write.ceiling == Some(Bytes(9)));
    let san = &config.arrays["san"];
    assert_eq!((san.method, san.most, san.period), (Slots::Rwd, 12, Duration::from_secs(2)));
    assert_eq!(san.latency, Some(Duration::from_millis(5)));
    let volumes: Vec<_> = san.volumes.iter().map(|(name, volume)| (name.as_str(), volume.device.as_str())).collect();
    assert_eq!(
        volumes,
        [
            ("backup", "/dev/mapper/mpathb"),
            ("database.mpatha", "/dev/mapper/mpatha"),
            ("database.mpathc", "/dev/mapper/mpathc")
        ]
    );
    assert_eq!((san.volumes["backup"].ceiling, san.volumes["backup"].latency), (Some(4), None));
    let mpatha = &san.volumes["database.mpatha"];
    assert_eq!((mpatha.weight, mpatha.ceiling), (3.0, None));
    assert_eq!(mpatha.latency.map(|latency| latency.target), Some(Duration::from_millis(10)));
    let ceph = config.ceph.expect("a pool names OSDs");
    assert_eq!(ceph.admission, CephConfig::default().admission);
    assert!(ceph.wants("osd.0") && ceph.wants("osd.12") && !ceph.wants("osd.1") && !ceph.wants("osd.2"));
}

#[test]
fn what_is_not_enforced_here_is_noted_once_each() {
    let config = Config::parse(SHARED, "guard.toml", NONE).expect("valid");
    let notes: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
    let expected = [
        "guard.toml:6:8: pools.main: nothing to enforce here: `evenkeel serve` has volumes on the pool, and the pool has no devices",
        "pools.served: nothing to enforce here: enforce leaves the pool to `evenkeel serve`",
        "guard.toml:13:50: pools.vg1.tuning.base_cost: has no effect here: `evenkeel serve`",
        "tenants.backup.match: volume:b, uid:7 can only be seen by `evenkeel serve`",
        "tenants.backup.limit: has no effect here",
        "tenants.backup.priority: has no effect here",
    ];
    assert_eq!(notes.len(), expected.len(), "{notes:#?}");
    for (note, expected) in notes.iter().zip(expected) {
        assert!(note.contains(expected), "{note} instead of {expected}");
    }
}

#[test]
fn groups_without_a_guarantee_are_throttled_for_a_latency_target() {
    const LOCAL: &str = "[pools.disk]\ndevices = [\"/dev/nvme0n1\"]\nlatency.target = \"5ms\"\nmax_delay = \"1s\"\n\
        [tenants.db]\nmatch = [\"cgroup:system.slice/postgresql@*.service\"]\nthrottle = \"never\"\n\
        reservation.iops = 500\n[tenants.backup]\nmatch = [\"cgroup:system.slice/*.service\", \"cgroup:b\"]\n";
    let read = |text: &str| Config::parse(text, "guard.toml", NONE).expect("valid");
    let config = read(LOCAL);
    assert!(config.packets.is_empty() && config.cached.is_empty() && config.sets_something());
    let disk = &config.local["disk"];
    assert_eq!((disk.device.as_str(), disk.max_delay), ("/dev/nvme0n1", Duration::from_secs(1)));
    let tenant = |group: &str| disk.tenant_of(group).map(|place| disk.tenants[place].name.as_str());
    assert_eq!(tenant("system.slice/postgresql@main.service"), Some("db"));
    assert_eq!((tenant("system.slice/tar.service"), tenant("b"), tenant("c")), (Some("backup"), Some("backup"), None));
    assert!(config.notes.len() == 1 && config.notes[0].message.contains("bounds throttling"), "{:?}", config.notes);
    let rows: Vec<_> = config.enforced.rows.iter().map(|row| (row.point.name(), row.setting.as_str())).collect();
    assert_eq!(rows, [("cgroup", "latency mean of reads < 5ms"), ("cgroup", "reservation 500 IOPS")]);
    // With clients of a target, or by name, packets as well.
    let clients = read(&format!("{LOCAL}[tenants.web]\nmatch = [\"address:192.0.2.1\"]\n"));
    assert!(clients.packets.contains_key("disk") && clients.local.contains_key("disk"));
    // A target host goes on delaying packets with a policy that it shares with hosts whose groups are named.
    let target = format!("[agent]\ninterfaces = [\"eth0\"]\n{LOCAL}");
    let (shared, doubts) = Config::check(&Source::of(&target, "guard.toml"), NONE).expect("valid");
    assert!(shared.packets.contains_key("disk") && shared.local.contains_key("disk"));
    let doubts: Vec<String> = doubts.iter().map(ToString::to_string).collect();
    assert!(doubts.iter().any(|doubt| doubt.contains("pools.disk") && doubt.contains("enforce = ")), "{doubts:?}");
    // Others wait for a tenant with a latency target of its own.
    let important = read(&LOCAL.replace("[tenants.backup]\n", "[tenants.backup]\nlatency.target = \"9ms\"\n"));
    let throttles: Vec<Throttle> = important.local["disk"].tenants.iter().map(|tenant| tenant.throttle).collect();
    assert_eq!(throttles, [Throttle::Last, Throttle::Never]);
    for (points, packets, local) in [("cgroup", false, true), ("packets", true, false)] {
        let config = read(&LOCAL.replace("max_delay", &format!("enforce = [\"{points}\"]\nmax_delay")));
        assert_eq!((config.packets.len() == 1, config.local.len() == 1), (packets, local), "{points}");
    }
    // A guarantee takes precedence: where all groups have one, none is throttled.
    let guaranteed = LOCAL.replace("[tenants.backup]\n", "[tenants.backup]\nguarantee.read.iops = 900\n");
    let all = guaranteed.replace("throttle =", "guarantee.read.iops = 900\nthrottle =");
    assert!(read(&guaranteed).local.contains_key("disk") && read(&all).local.is_empty());
    let percentile = LOCAL.replace("latency.target = \"5ms\"", "latency = { target = \"5ms\", percentile = 99 }");
    assert!(complaints(&percentile).contains("p99 cannot be measured"));
    let long = complaints(&LOCAL.replace("\"1s\"", "\"11s\""));
    assert!(long.contains("pools.disk.max_delay: must be above 0 and at most 10 s"), "{long}");
}

#[test]
fn enforce_restricts_where_a_pool_is_enforced() {
    let with = |points: &str| {
        let text = SHARED.replace("[pools.cached]\n", &format!("[pools.cached]\nenforce = [{points}]\n"));
        let config = Config::parse(&text, "guard.toml", NONE).expect("valid");
        (config.packets.contains_key("cached"), config.cached.contains_key("cached"))
    };
    assert_eq!(with("\"packets\", \"queue\""), (true, false));
    assert_eq!(with("\"cgroup\""), (false, true));
    assert_eq!(with("\"osd\""), (false, false));
    assert_eq!(Enforcement::QueueDepth.name(), "queue_depth");
}

#[test]
fn a_pool_of_volumes_is_the_servers_unless_it_is_said_to_be_more() {
    let text = "[pools.main]\nlatency = { target = \"9ms\", percentile = 99 }\n[volumes.a]\nsize = \"1MiB\"\n";
    let config = Config::parse(text, "test", NONE).expect("the server needs no tracepoints");
    assert!(config.packets.is_empty());
    assert!(config.notes[0].message.contains("`evenkeel serve` has volumes on"), "{:?}", config.notes);
    for more in ["devices = [\"dm-0\"]", "enforce = [\"queue\", \"packets\"]"] {
        let text = text.replace(", percentile = 99", "").replace("[volumes", &format!("{more}\n[volumes"));
        let config = Config::parse(&text, "test", NONE).expect("valid");
        assert!(config.packets.contains_key("main"), "{more}");
    }
}

#[test]
fn devices_of_the_only_pool_with_slots_may_be_left_out() {
    let one = "[pools.san]\ntuning.slots = \"needs\"\n[tenants.a]\nmatch = [\"device:sda\", \"device:sdb\"]\n";
    let config = Config::parse(one, "guard.toml", NONE).expect("valid");
    assert_eq!(config.arrays["san"].volumes.keys().collect::<Vec<_>>(), ["a.sda", "a.sdb"]);
    let two = format!("{one}[pools.other]\ntuning.slots = \"needs\"\ndevices = [\"sdb\"]\n");
    let config = Config::parse(&two, "guard.toml", NONE).expect("valid");
    assert_eq!(config.arrays.keys().collect::<Vec<_>>(), ["other"]);
    let notes: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
    assert!(
        notes.len() == 1 && notes[0].contains("pools.san: nothing to enforce here: the pool names no devices"),
        "{notes:?}"
    );
    let pattern = one.replace("device:sdb", "device:sd*");
    let config = Config::parse(&pattern, "guard.toml", NONE).expect("valid");
    assert!(config.notes[0].message.contains("add pools.san.devices"), "{:?}", config.notes);
}

#[test]
fn the_most_specific_entry_decides_whether_a_client_is_throttled() {
    let config = Config::parse(SHARED, "guard.toml", NONE).expect("valid");
    let of = |pool: &str, address: &str, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let throttles = &config.packets[pool].throttles;
        throttles.tenants()[throttles.tenant_of(address.parse().expect("an address"), &names)].throttle
    };
    assert_eq!(of("vg1", "192.0.2.9", &[]), Throttle::Last);
    assert_eq!(of("vg1", "192.0.2.1", &[]), Throttle::Normal, "of the smaller block");
    assert_eq!(of("vg1", "192.0.2.1", &["iqn.x"]), Throttle::Last, "a name goes before an address");
    assert_eq!(of("vg1", "10.0.0.9", &["iqn.xy"]), Throttle::Always, "as the default");
    assert_eq!(of("cached", "10.0.0.9", &["iqn.x"]), Throttle::Never, "on this pool");
    assert_eq!(of("cached", "192.0.2.1", &[]), Throttle::Normal);
}

#[test]
fn of_equally_specific_patterns_that_of_the_first_tenant_decides_for_guarantees_too() {
    let owner = |guaranteed: &str| {
        let text = format!(
            "[pools.cached]\ndevices = [\"dm-0\"]\n[tenants.a]\nmatch = [\"cgroup:x?*\"]\n\
             [tenants.b]\nmatch = [\"cgroup:x*?\"]\n[tenants.{guaranteed}.guarantee]\nread.bytes_per_s = \"9MB\"\n"
        );
        let config = Config::parse(&text, "guard.toml", NONE).expect("valid");
        config.cached["cached"].tenant_of("xyz").map(str::to_owned)
    };
    assert_eq!((owner("a").as_deref(), owner("b")), (Some("a"), None));
}

proptest! {
    /// If the tenants' names decide whose a group is, the check of the policy warns; otherwise it does not.
    #[test]
    fn the_order_of_tenants_decides_only_with_a_warning(one in "[ab*?]{1,3}", other in "[ab*?]{1,3}") {
        prop_assume!(one != other);
        let read = |one: &str, other: &str| {
            let text = format!(
                "[pools.disk]\ndevices = [\"sda\"]\nlatency.target = \"5ms\"\n\
                 [tenants.x]\nmatch = [\"cgroup:{one}\"]\n[tenants.y]\nmatch = [\"cgroup:{other}\"]\n"
            );
            Config::check(&Source::of(&text, "guard.toml"), NONE).expect("valid")
        };
        let ((forth, doubts), (back, _)) = (read(&one, &other), read(&other, &one));
        let owner = |config: &Config, path: &str| {
            let disk = &config.local["disk"];
            disk.tenant_of(path).map(|place| disk.tenants[place].groups[0].to_string())
        };
        // All paths of up to six letters.
        let mut paths = vec![String::new()];
        for at in 0..63 {
            let longer = ["a", "b"].map(|letter| format!("{}{letter}", paths[at]));
            paths.extend(longer);
        }
        let differs = paths[1..].iter().any(|path| owner(&forth, path) != owner(&back, path));
        let warns = doubts.iter().any(|doubt| doubt.to_string().contains("which is first by name"));
        prop_assert_eq!(differs, warns);
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in "(\\[agent\\]\n|\\[pools.a\\]\n|\\[tenants.a\\]\n)?[ -~\né]{0,200}") {
        let _ = Config::parse(&text, "guard.toml", NONE);
    }
}

/// Pages of the documentation whose examples are no configurations of the agent but scenarios of `evenkeel sim` or loads of
/// `evenkeel load`.
const OTHER_FILES: [&str; 3] = ["sim.md", "workloads.md", "load.md"];

#[test]
fn every_page_shows_configurations_that_a_program_takes() {
    let docs = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    let folders = ["", "guide", "reference", "algorithms"].map(|folder| docs.join(folder));
    let pages = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).map(|page| page.unwrap().path());
    let pages = pages.chain([docs.join("../README.md")]);
    let mut checked = 0;
    for page in pages.filter(|page| page.extension().is_some_and(|end| end == "md")) {
        if OTHER_FILES.iter().any(|name| page.ends_with(name)) {
            continue;
        }
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = text.split("```toml\n").skip(1).filter_map(|block| block.split("```").next());
        for block in blocks.filter(|block| !block.contains("[[job]]")) {
            let serve = evenkeel_policy::Config::parse(block, "page").err();
            let guard = Config::parse(block, "page", Abilities { tracepoints: true }).err();
            if let (Some(serve), Some(guard)) = (serve, guard) {
                panic!("{}: neither serve takes it:\n{serve}\nnor guard:\n{guard}\n{block}", page.display());
            }
            checked += 1;
        }
    }
    assert!(checked >= 12, "{checked}");
}

#[test]
fn what_takes_a_restart_is_named_and_what_changes_is_listed() {
    let read = |text: &str| Config::parse(text, "page", Abilities { tracepoints: true }).unwrap();
    let pool = "[pools.vg]\nlatency.target = \"15ms\"\n";
    let old = read(pool);
    let new = read(&format!("{pool}tuning.method = \"pid\"\n[pools.other]\nlatency.target = \"9ms\"\n"));
    assert_eq!((old.needs_restart(&new, false), old.changed_pools(&new)), (vec![], vec!["other".into(), "vg".into()]));
    assert!(old.changed_pools(&old).is_empty());
    let beyond = read(&format!("[agent]\ninterval = \"50ms\"\njournal = \"/tmp/j\"\n{pool}"));
    assert_eq!(old.needs_restart(&beyond, false), ["agent.interval", "agent.journal"]);
    let arrays = read(&format!("{pool}[pools.san]\ntuning.slots = \"needs\"\n[tenants.a]\nmatch = [\"device:sda\"]\n"));
    assert_eq!(old.needs_restart(&arrays, false), ["adding the first pool with slots"]);
    // An agent that only watches has no journal.
    let cached = "[pools.fast]\ndevices = [\"dm-0\"]\n[tenants.db]\nmatch = [\"cgroup:db\"]\nguarantee.read = { bytes_per_s = \"9MB\" }\n";
    assert_eq!(old.needs_restart(&read(&format!("{pool}{cached}")), false), ["adding the first guarantee"]);
    // Single reads are measured by programs that are loaded at the start.
    let percentile = read(&format!("{pool}latency.percentile = 99\n"));
    assert_eq!(old.needs_restart(&percentile, false), ["adding the first latency target for a percentile"]);
    assert_eq!(percentile.needs_restart(&percentile, false), Vec::<String>::new());
    let interfaces = "[agent]\ninterfaces = [\"eth0\"]\n";
    let acting = read(&format!("{interfaces}{pool}"));
    assert!(acting.needs_restart(&read(&format!("{interfaces}{pool}{cached}")), false).is_empty());
}

#[test]
fn only_labels_and_annotations_of_pods_need_the_container_runtime() {
    for (entry, names, marks) in [
        ("cgroup:a/b", false, false),
        ("pod:shop/db", true, false),
        ("pod-label:app=db", true, true),
        ("pod-annotation:example.org/storage=*", true, true),
    ] {
        let text = format!(
            "[pools.disk]\ndevices = [\"sda\"]\nlatency.target = \"5ms\"\n[tenants.db]\nmatch = [\"{entry}\"]\n"
        );
        let config = Config::parse(&text, "guard.toml", NONE).expect("valid");
        let disk = &config.local["disk"];
        assert_eq!((disk.needs_names(), disk.needs_marks()), (names, marks), "{entry}");
    }
}

#[test]
fn a_limit_of_control_groups_is_enforced_on_devices_with_and_without_a_latency_target() {
    const LIMIT: &str = "[pools.disk]\ndevices = [\"/dev/a\", \"/dev/b\"]\nlatency.target = \"5ms\"\n\
        [tenants.bulk]\nmatch = [\"cgroup:b\"]\nlimit = { iops = 100, bytes_per_s = \"50MB\" }\n";
    let without = LIMIT.replace("latency.target = \"5ms\"\n", "");
    for (text, has_target) in [(LIMIT, true), (without.as_str(), false)] {
        let config = Config::parse(text, "guard.toml", NONE).expect("valid");
        let disk = &config.local["disk.a"];
        let limit = disk.tenants[0].limit;
        assert_eq!((limit.iops, limit.bytes_per_s.0), (50, 25_000_000), "half of it on each device");
        assert_eq!(disk.latency.is_some(), has_target);
        let mut rows = config.enforced.rows.iter();
        let row = rows.find(|row| row.setting.starts_with("limit ")).expect("a row");
        assert_eq!((row.tenant.as_deref(), row.point.name()), (Some("bulk"), "cgroup"));
        assert!(config.notes.is_empty() && config.sets_something(), "{:?}", config.notes);
    }
    let elsewhere = Config::parse(&LIMIT.replace("cgroup:b", "uid:7"), "guard.toml", NONE).expect("valid");
    let notes: Vec<String> = elsewhere.notes.iter().map(ToString::to_string).collect();
    assert!(notes.iter().any(|note| note.contains("tenants.bulk.limit: has no effect here")), "{notes:?}");
    let unset = without.replace("limit = { iops = 100, bytes_per_s = \"50MB\" }\n", "");
    let unset = Config::parse(&unset, "guard.toml", NONE).expect("valid");
    assert!(unset.local.is_empty(), "neither a target nor a limit");
}

#[test]
fn limits_of_control_groups_are_totals_in_a_cluster() {
    const LIMIT: &str = "limit.iops = 100\n";
    let read = |limit: &str, more: &str| {
        let text = format!(
            "[pools.disk]\ndevices = [\"sda\"]\nlatency.target = \"5ms\"\n[tenants.bulk]\nmatch = [\"cgroup:b\"]\n\
             {limit}[cluster]\netcd = [\"http://a:2379\"]\n{more}"
        );
        Config::parse(&text, "guard.toml", NONE).expect("valid")
    };
    let (without, limited) = (read("", ""), read(LIMIT, ""));
    assert!(!without.shares_totals() && limited.shares_totals() && !read(LIMIT, "totals = false\n").shares_totals());
    assert_eq!(limited.local["disk"].pool, "disk");
    assert!(!limited.notes.iter().any(|note| note.to_string().contains("tenants.bulk.limit")), "{:?}", limited.notes);
    // The agent joins a cluster at its start or never.
    let first = "adding the first limit or guarantee of control groups in a cluster";
    assert_eq!(without.needs_restart(&limited, false), [first]);
    assert!(limited.needs_restart(&without, true).is_empty());
    // The last limit went, the agent has stayed in the cluster.
    assert!(without.needs_restart(&limited, true).is_empty());
    // A guarantee limits the tenant's groups, and is a total itself.
    let other = "[tenants.other]\nmatch = [\"cgroup:c\"]\n";
    let guaranteed = read(&format!("limit.iops = 1000\nguarantee.read.iops = 900\n{other}"), "");
    assert!(guaranteed.local["disk"].tenants.iter().any(|tenant| tenant.guaranteed && tenant.limit.iops == 1000));
    assert_eq!((guaranteed.cached["disk"].pool.as_str(), guaranteed.shares_totals()), ("disk", true));
    assert!(read(&format!("{LIMIT}{other}"), "").shares_totals());
}

#[test]
fn limits_that_a_cluster_does_not_hold_at_targets_of_this_host_are_warned_of() {
    const CLIENT: &str = "[tenants.bulk]\nmatch = [\"address:192.0.2.1\"]\n";
    const LIMIT: &str = "limit = { iops = 100 }\n";
    const CLUSTER: &str = "[cluster]\netcd = [\"http://a:2379\"]\n";
    let doubts = |tables: &str| {
        let text = format!("[pools.vg1]\ndevices = [\"sda\"]\nlatency.target = \"5ms\"\n{tables}");
        let (_, doubts) = Config::check(&Source::of(&text, "guard.toml"), NONE).expect("valid");
        doubts.iter().map(ToString::to_string).filter(|doubt| doubt.contains("is a total")).collect::<Vec<_>>()
    };
    let lost = doubts(&format!("{CLIENT}{LIMIT}{CLUSTER}"));
    let [doubt] = lost.as_slice() else { panic!("{lost:?}") };
    assert!(doubt.contains("tenants.bulk.limit: is a total over all members"), "{doubt}");
    assert!(doubt.contains("on vg1 are neither limited nor counted here"), "{doubt}");
    let on_pool = doubts(&format!("{CLIENT}[tenants.bulk.pools.vg1]\n{LIMIT}{CLUSTER}"));
    assert!(on_pool.len() == 1 && on_pool[0].contains("tenants.bulk.pools.vg1.limit: "), "{on_pool:?}");
    // Without a limit, clients or totals nothing is lost, nor where requests count at a server.
    for tables in [
        format!("{CLIENT}{CLUSTER}"),
        format!("[tenants.bulk]\nmatch = [\"volume:v\"]\n{LIMIT}{CLUSTER}"),
        format!("{CLIENT}{LIMIT}{CLUSTER}totals = false\n"),
        format!("{CLIENT}{LIMIT}"),
        format!("{CLIENT}[tenants.bulk.pools.other]\n{LIMIT}[pools.other]\n{CLUSTER}"),
        format!("{CLIENT}{LIMIT}{CLUSTER}[volumes.v]\npool = \"vg1\"\n"),
    ] {
        assert_eq!(doubts(&tables), Vec::<String>::new(), "{tables}");
    }
}

#[test]
fn rates_of_a_tenant_on_a_pool_of_osds_are_noted() {
    let text = "[pools.ceph]\ndevices = [\"osd:*\"]\n[tenants.bulk]\nmatch = [\"address:192.0.2.1\"]\n\
        pools.ceph.limit.iops = 100\npools.ceph.weight = 2\n";
    let config = Config::parse(text, "guard.toml", NONE).expect("valid");
    let notes: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
    let on_osds: Vec<&String> = notes.iter().filter(|note| note.contains("OSDs do not know tenants")).collect();
    let [note] = on_osds.as_slice() else { panic!("{notes:?}") };
    assert!(note.contains("tenants.bulk.pools.ceph.limit: "), "{note}");
    let others = Config::parse(&text.replace("osd:*", "sda"), "guard.toml", NONE).expect("valid").notes;
    assert!(!others.iter().any(|note| note.to_string().contains("OSDs do not know tenants")), "{others:?}");
}
