//! Tests of the changes that a reload makes, and of those that it refuses.

use evenkeel_control::mclock::Qos;
use evenkeel_policy::Config;
use evenkeel_policy::change::{Change, plan};
use evenkeel_policy::units::Bytes;

const BEFORE: &str =
    "[pools.fast.emulate]\n[tenants.gold]\nweight = 2\n[volumes.a]\nsize = \"1MiB\"\n[volumes.b]\nsize = \"1MiB\"\n";

pub(super) fn config(text: &str) -> Config {
    Config::parse(text, "test").unwrap_or_else(|errors| panic!("{errors}"))
}

fn at(text: &str, hour: u16) -> Config {
    let mut config = config(text);
    config.set_time(hour * 60);
    config
}

#[test]
fn the_same_text_changes_nothing() {
    assert_eq!(plan(&config(BEFORE), &config(BEFORE)), Ok(Vec::new()));
}

#[test]
fn guarantees_pools_and_volumes_change_live() {
    let after = "[server]\nworkers = 7\ndefault_export = \"a\"\ndrain_timeout = \"1s\"\n[pools.main]\nlimit.iops = 5\n[pools.new]\n\
                 [tenants.silver]\n[tenants.default]\nweight = 3\n[volumes.a]\nsize = \"2MiB\"\ndescription = \"x\"\n[volumes.c]\nsize = \"1MiB\"\n";
    let changes = plan(&config(BEFORE), &config(after)).expect("all of it can change live");
    let name = |text: &str| text.to_owned();
    assert_eq!(
        changes,
        [
            Change::Server { key: "workers" },
            Change::Server { key: "default_export" },
            Change::Server { key: "drain_timeout" },
            Change::PoolAdded(name("new")),
            Change::PoolChanged(name("main")),
            Change::TenantAdded(name("silver")),
            Change::TenantChanged(name("default")),
            Change::VolumeRemoved(name("b")),
            Change::VolumeAdded(name("c")),
            Change::VolumeGrown { name: name("a"), to: Bytes(2 << 20) },
            Change::VolumeChanged(name("a")),
            Change::TenantRemoved(name("gold")),
            Change::PoolRemoved(name("fast")),
        ]
    );
    assert_eq!(changes[9].to_string(), "volume a grown to 2MiB");
}

#[test]
fn a_limit_changes_when_its_hours_begin_and_end() {
    let text = "[pools.main]\nlimit = { iops = 9, when = \"08:00-18:00\" }\n\
                [tenants.gold]\nlimit = { bytes_per_s = \"400MB\", when = \"22:00-06:00\" }\nreservation.iops = 7\n\
                [tenants.gold.pools.main]\nlimit = { iops = 8, when = \"23:00-24:00\" }\n";
    let at = |hour| at(text, hour);
    let changes = |from, to| plan(&at(from), &at(to)).expect("live");
    let (pool, tenant) = (Change::PoolChanged("main".into()), Change::TenantChanged("gold".into()));
    assert_eq!(changes(0, 5), Vec::new());
    assert_eq!(changes(5, 6), std::slice::from_ref(&tenant));
    assert_eq!(changes(7, 8), std::slice::from_ref(&pool));
    assert_eq!(changes(17, 22), [pool, tenant.clone()]);
    assert_eq!(changes(22, 23), [tenant]);
    let qos = |hour, pool: &str| Qos::from(&at(hour).tenants["gold"].on(pool));
    for (hour, everywhere, on_main) in [(5, 400_000_000, 0), (6, 0, 0), (23, 400_000_000, 8)] {
        let (other, main) = (qos(hour, "other"), qos(hour, "main"));
        assert_eq!((other.limit.bytes_per_s, main.limit.iops), (everywhere, on_main), "{hour}");
        assert_eq!(other.reservation.iops, 7, "a reservation has no hours");
    }
    let pool = |hour| evenkeel_control::pool::Config::from(&at(hour).pools["main"]).limit.iops;
    assert_eq!((pool(7), pool(8)), (0, 9));
}

#[test]
fn a_limit_of_a_volume_changes_live_and_with_its_hours() {
    let text = "[volumes.a]\nsize = \"1MiB\"\nlimit = { iops = 9, burst = \"50ms\", when = \"08:00-18:00\" }\n";
    let at = |hour| at(text, hour);
    let changed = [Change::VolumeChanged("a".into())];
    let without = config("[volumes.a]\nsize = \"1MiB\"\n");
    assert_eq!(plan(&without, &config(text)).expect("live"), changed);
    assert_eq!(plan(&at(7), &at(8)).expect("live"), changed);
    assert_eq!(plan(&at(8), &at(9)).expect("live"), Vec::new());
    let in_force = |hour| at(hour).volumes["a"].limit.in_force().iops;
    assert_eq!([7, 8, 17, 18].map(in_force), [0, 9, 9, 0]);
}

#[test]
fn a_weight_changes_when_its_hours_begin_and_end() {
    let text = "[tenants.gold]\nweight = 2\nweight_at = { weight = 8, when = \"22:00-06:00\" }\n\
                [tenants.gold.pools.own]\nweight = 3\n\
                [tenants.gold.pools.both]\nweight = 4\nweight_at = { weight = 5, when = \"08:00-18:00\" }\n\
                [pools.own]\n[pools.both]\n";
    let at = |hour| at(text, hour);
    let weight = |hour, pool: &str| Qos::from(&at(hour).tenants["gold"].on(pool)).weight;
    for (hour, everywhere, both) in [(5, 8, 4), (6, 2, 4), (8, 2, 5), (18, 2, 4), (22, 8, 4)] {
        assert_eq!((weight(hour, "main"), weight(hour, "own"), weight(hour, "both")), (everywhere, 3, both), "{hour}");
    }
    assert_eq!(Qos::from(&config(text).tenants["gold"]).weight, 2, "before any time is set");
    let changes = |from, to| plan(&at(from), &at(to)).expect("live");
    assert_eq!(changes(6, 7), Vec::new());
    assert_eq!(changes(7, 8), [Change::TenantChanged("gold".into())]);
    assert_eq!(changes(18, 22), [Change::TenantChanged("gold".into())]);
}

#[test]
fn a_volume_on_another_server_stays_as_it_is() {
    let far = |settings: &str| config(&format!("[volumes.far]\nbackend = \"nbd\"\n{settings}"));
    let before = far("uri = \"nbd://a/\"\n");
    let after = "uri = \"nbd://b/\"\nconnections = 2\nreconnect_timeout = \"5s\"\nunflushed = \"kept\"\n";
    let refused = plan(&before, &far(after)).expect_err("it must be opened anew");
    let keys = ["uri", "connections", "reconnect_timeout", "unflushed"].map(|key| format!("volumes.far.{key}"));
    assert_eq!(refused.0, keys);
}

#[test]
fn what_needs_a_restart_is_refused_with_the_whole_list() {
    let after = "[server]\nlisten = [\"127.0.0.1:1\"]\nread_only = true\n[pools.fast]\n[pools.main.emulate]\n\
                 [volumes.a]\nsize = \"4KiB\"\ncache = \"buffered\"\n[volumes.b]\nsize = \"1MiB\"\nbackend = \"memory\"\n";
    let refused = plan(&config(BEFORE), &config(after)).expect_err("a restart is needed");
    let keys: Vec<&str> = refused.0.iter().map(|text| text.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(
        keys,
        [
            "server.listen",
            "server.read_only",
            "pools.fast.emulate",
            "pools.main.emulate",
            "volumes.a.cache",
            "volumes.a.size",
            "volumes.b.backend"
        ]
    );
    assert!(refused.to_string().starts_with("nothing was changed"), "{refused}");
}
