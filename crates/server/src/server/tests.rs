//! Tests of reloads and stops of a server with volumes whose devices fail or hang.

use std::time::Duration;

use evenkeel_control::units::{Fraction, Fractions};
use evenkeel_policy::state::{GuaranteeState, PartsState};

use super::*;

/// `drain_timeout` of a server with a volume that never answers.
const ONE_HANGS: &str = "300ms";
/// `drain_timeout` of a server whose volumes all answer; reaching it is a failure.
const ALL_ANSWER: &str = "30s";

/// A server with the volumes `a`, `b` and `c` in files of 1 MiB, and its folder. Dropping the value stops the server and
/// deletes the folder.
struct Fixture {
    server: Server,
    folder: PathBuf,
}

impl Fixture {
    fn start(name: &str, drain_timeout: &str, more: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("evenkeel-server-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let volumes = ["a", "b", "c"].map(|name| format!("[volumes.{name}]\nsize = \"1MiB\"\n")).concat();
        let text = format!("[server]\nworkers = 1\ndrain_timeout = \"{drain_timeout}\"\n{volumes}{more}");
        let mut config = Config::parse(&text, "test").unwrap();
        config.server.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.server.data_dir = folder.clone();
        Self { server: Server::start(config, Start::default()).unwrap(), folder }
    }

    fn volume(&self, name: &str) -> Arc<crate::volume::Volume> {
        Arc::clone(self.server.shared.snapshot().find(name).unwrap())
    }

    fn fail(&self, name: &str) {
        self.volume(name).sync_has_failed(&io::Error::from_raw_os_error(libc::EIO));
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.server.abort();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_stop_reaches_every_volume_and_tells_of_each_that_failed() {
    let test = Fixture::start("stop", ONE_HANGS, "");
    test.fail("a");
    test.fail("c");
    let b = test.volume("b");
    let hangs = b.hang_syncs();
    let error = test.server.shutdown().unwrap_err().to_string();
    for (volume, words) in [("a", "a.img: "), ("b", "volume \"b\": its device has not answered"), ("c", "c.img: ")] {
        assert!(error.contains(words), "nothing of {volume} in: {error}");
    }
    drop(hangs);
}

#[test]
fn a_stop_after_which_nothing_is_left_succeeds_even_if_workers_end_late() {
    // Over before the worker wakes up.
    let test = Fixture::start("ends-late", "1us", "");
    test.server.shutdown().unwrap();
}

#[test]
fn connections_are_no_more_than_the_limit_of_open_files_allows() {
    let text = "[server]\nworkers = 2\nmax_connections = 100\n[volumes.a]\nsize = \"1MiB\"\n";
    let config = Config::parse(text, "test").unwrap();
    let most = [49, 50, 92, 141, 142, 1 << 40].map(|limit| connections_of(limit, &config).ok());
    assert_eq!(most, [None, Some(8), Some(50), Some(99), Some(100), Some(100)]);
}

#[test]
fn a_worker_that_hangs_is_no_longer_heard_of() {
    let test = Fixture::start("silence", ALL_ANSWER, "");
    let settled = |what: &str, done: &dyn Fn(Duration) -> bool| {
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while !done(test.server.silence()) {
            assert!(std::time::Instant::now() < until, "{what}: {:?}", test.server.silence());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Its housekeeping needs what we hold.
    let held = test.server.shared.stats[0].overdue.lock().unwrap();
    settled("it hangs", &|silence| silence > Duration::from_millis(2_500));
    drop(held);
    settled("it goes on", &|silence| silence < Duration::from_millis(1_500));
}

#[test]
fn a_worker_that_hangs_leaves_when_it_comes_round() {
    let test = Fixture::start("leaving", ALL_ANSWER, "");
    let set = |workers| {
        let mut config = Config::clone(&test.server.config());
        config.server.workers = Workers::Count(workers);
        test.server.reload(config).map(|applied| applied.changes)
    };
    let settled = |what: &str, done: &dyn Fn() -> bool| {
        let until = StdInstant::now() + Duration::from_secs(30);
        while !done() {
            assert!(StdInstant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    set(3).unwrap();
    let heard = |worker: usize| test.server.shared.stats[worker].heard_ns.load(Ordering::Relaxed);
    settled("all have started", &|| (0..3).all(|worker| heard(worker) > 0));
    // The housekeeping of the second needs what we hold.
    let held = test.server.shared.stats[1].overdue.lock().unwrap();
    settled("it hangs", &|| test.server.silence() > Duration::from_millis(1_500));
    set(1).unwrap();
    settled("the third has left", &|| heard(2) == 0);
    assert!(heard(1) > 0, "it has not");
    // Wanted again before it could leave, it stays.
    set(2).unwrap();
    drop(held);
    settled("it goes on", &|| test.server.silence() < Duration::from_millis(1_200));
    assert!(heard(1) > 0 && test.server.state().workers.iter().all(|worker| !worker.leaving));
    let held = test.server.shared.stats[1].overdue.lock().unwrap();
    settled("it hangs again", &|| test.server.silence() > Duration::from_millis(1_500));
    set(1).unwrap();
    drop(held);
    settled("it leaves", &|| heard(1) == 0 && test.server.state().workers.len() == 1);
    settled("its thread ends", &|| *test.server.running.count.lock().unwrap() == 1);
    set(2).unwrap();
    settled("another takes its place", &|| heard(1) > 0);
    assert_eq!(*test.server.running.count.lock().unwrap(), 2, "threads");
}

#[test]
fn a_worker_that_starts_while_the_server_stops_stops_too() {
    let test = Fixture::start("late", ALL_ANSWER, "");
    test.server.shared.draining.store(true, Ordering::Release);
    test.server.shared.tell_all(|| Message::Drain);
    // As of a reload with more workers that is under way.
    test.server.hire(1, 3).unwrap();
    assert!(test.server.running.wait_for_none(Duration::from_secs(30)));
}

#[test]
fn workers_that_a_refused_change_asked_for_do_not_stay() {
    let test = Fixture::start("refused", ALL_ANSWER, "");
    let mut config = Config::clone(&test.server.config());
    config.server.workers = Workers::Count(4);
    // Longer than any file can be.
    config.volumes.get_mut("b").unwrap().size = Some(Bytes(1 << 62));
    assert!(test.server.reload(config).is_err());
    assert_eq!((test.server.shared.workers(), test.server.shared.placement().workers()), (1, 1));
    let until = StdInstant::now() + Duration::from_secs(30);
    while *test.server.running.count.lock().unwrap() > 1 {
        assert!(StdInstant::now() < until, "they still run");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(test.server.config().server.workers, Workers::Count(1));
}

#[test]
fn a_volume_whose_device_hangs_is_removed_all_the_same() {
    let test = Fixture::start("remove", ONE_HANGS, "");
    let a = test.volume("a");
    let hangs = a.hang_syncs();
    let warnings = test.server.remove_volume("a").unwrap();
    assert!(matches!(&warnings[..], [Error::NoAnswer { volume, .. }] if volume == "a"), "{warnings:?}");
    assert!(test.server.state().volumes.iter().all(|volume| volume.name != "a"));
    // The first still hangs, and the next is waited for until it answers.
    let mut config = Config::clone(&test.server.config());
    config.server.drain_timeout = ALL_ANSWER.parse().unwrap();
    test.server.reload(config).unwrap();
    assert!(test.server.remove_volume("b").unwrap().is_empty(), "and others after it");
    drop(hangs);
}

#[test]
fn a_change_in_force_is_reported_as_such_even_if_a_removed_volume_has_lost_data() {
    let test = Fixture::start("warn", ALL_ANSWER, "");
    test.fail("a");
    let mut config = Config::clone(&test.server.config());
    config.volumes.remove("a");
    config.volumes.remove("b");
    let applied = test.server.reload(config.clone()).unwrap();
    assert_eq!(applied.changes, ["volume a removed", "volume b removed"]);
    assert!(matches!(&applied.warnings[..], [Error::Volume { action: "sync", .. }]), "{:?}", applied.warnings);
    assert_eq!(test.server.config().volumes, config.volumes);
}

#[test]
fn a_reload_that_cannot_grow_one_volume_changes_nothing() {
    let test = Fixture::start("grow", ALL_ANSWER, "");
    let mut config = Config::clone(&test.server.config());
    config.volumes.get_mut("a").unwrap().size = Some(Bytes(2 << 20));
    // Longer than any file can be.
    config.volumes.get_mut("b").unwrap().size = Some(Bytes(1 << 62));
    config.volumes.remove("c");
    let error = test.server.reload(config.clone()).unwrap_err();
    assert!(matches!(error, Error::Volume { action: "grow", .. }), "{error}");
    assert_eq!(test.server.state().volumes.iter().map(|v| v.size_bytes).collect::<Vec<_>>(), [1 << 20; 3]);
    assert_eq!(std::fs::metadata(test.folder.join("a.img")).unwrap().len(), 1 << 20, "it would not start again");
    config.volumes.get_mut("b").unwrap().size = Some(Bytes(3 << 20));
    assert_eq!(test.server.reload(config).unwrap().changes.len(), 3);
    assert_eq!(test.server.state().volumes.iter().map(|v| v.size_bytes).collect::<Vec<_>>(), [2 << 20, 3 << 20]);
    assert!(test.server.grow_volume("a", Bytes(1 << 62)).is_err());
    assert_eq!(test.server.config().volumes["a"].size, Some(Bytes(2 << 20)));
}

#[test]
fn a_removed_pool_is_gone_with_its_device_and_may_come_back_without() {
    let test = Fixture::start("pool", ALL_ANSWER, "[pools.second]\nemulate = { preset = \"ssd\" }\n");
    let device = Arc::downgrade(test.server.shared.snapshot().devices[1].as_ref().unwrap());
    let pools = || test.server.state().pools.into_iter().map(|pool| pool.name).collect::<Vec<_>>();
    assert_eq!(pools(), ["main", "second"]);
    let with = Config::clone(&test.server.config());
    let mut without = with.clone();
    without.pools.remove("second");
    test.server.reload(without.clone()).unwrap();
    assert_eq!(pools(), ["main"]);
    let until = StdInstant::now() + Duration::from_secs(30);
    while device.strong_count() > 0 {
        assert!(StdInstant::now() < until, "the thread of its device still runs");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut plain = with.clone();
    plain.pools.get_mut("second").unwrap().emulate = None;
    test.server.reload(plain).unwrap();
    test.server.reload(without).unwrap();
    test.server.reload(with).unwrap();
    assert_eq!(pools(), ["main", "second"]);
    assert!(test.server.shared.snapshot().devices[1].is_some());
}

#[test]
fn in_a_cluster_a_tenant_has_parts_of_its_totals() {
    let more = "[tenants.a]\nreservation = { iops = 1000 }\nlimit = { iops = 4000 }\n\
        [cluster]\netcd = [\"http://127.0.0.1:1\"]\n";
    let test = Fixture::start("parts", ALL_ANSWER, more);
    let key = |name: &str| ("main".to_owned(), name.to_owned());
    let tenant = |name: &str| {
        let state = test.server.state();
        state.pools.iter().flat_map(|pool| &pool.tenants).find(|tenant| tenant.name == name).cloned().unwrap()
    };
    let demands = test.server.demands();
    assert_eq!(demands.keys().cloned().collect::<Vec<_>>(), [key("a")]);
    let demand = demands[&key("a")];
    assert_eq!((demand.reservation, demand.limit, demand.arrived), ([1_000, 0], [4_000, 0], [0, 0]));
    // Before the cluster has said more, almost nothing: a part is shown rounded up.
    let least = PartsState { reservation_iops: Some(1), limit_iops: Some(1), ..PartsState::default() };
    assert_eq!(tenant("a").parts, Some(least.clone()));

    let fractions = Fractions { reservation: [Fraction::of(0.25); 2], limit: [Fraction::of(0.5); 2] };
    test.server.set_fractions(&BTreeMap::from([(key("a"), fractions), (key("gone"), fractions)]));
    let seen = tenant("a");
    let parts = PartsState { reservation_iops: Some(250), limit_iops: Some(2_000), ..PartsState::default() };
    assert_eq!(seen.parts, Some(parts.clone()));
    assert_eq!((seen.qos.limit_iops, seen.limit.iops), (Some(4_000), Some(2_000)), "the total, and what applies here");

    // A tenant that joins later has no part yet; the others keep theirs.
    let mut config = Config::clone(&test.server.config());
    let policy = config.tenants["a"].clone();
    config.tenants.insert("b".into(), policy);
    test.server.reload(config).unwrap();
    assert_eq!((tenant("a").parts, tenant("b").parts), (Some(parts), Some(least)));
    assert_eq!(test.server.demands().len(), 2);
}

#[test]
fn in_a_cluster_a_guarantee_is_a_total_of_its_own() {
    let more = "[tenants.a]\nguarantee = { read.iops = 4000, write.bytes_per_s = \"8MB\" }\n\
        [cluster]\netcd = [\"http://127.0.0.1:1\"]\n";
    let test = Fixture::start("guarantees", ALL_ANSWER, more);
    let key = |name: &str| ("main".to_owned(), name.to_owned());
    let shown = || {
        let state = test.server.state();
        let tenant = state.pools.iter().flat_map(|pool| &pool.tenants).find(|tenant| tenant.name == "a").cloned();
        let of = |of: GuaranteeState| (of.of, of.guaranteed_per_s, of.total_per_s);
        tenant.unwrap().guarantees.into_iter().map(of).collect::<Vec<_>>()
    };
    let demands = test.server.demands();
    assert_eq!(demands.keys().cloned().collect::<Vec<_>>(), [key("read a"), key("write a")]);
    assert_eq!((demands[&key("read a")].limit, demands[&key("write a")].limit), ([4_000, 0], [0, 8_000_000]));
    let least = [("read".to_owned(), 1, Some(4_000)), ("write".to_owned(), 1, Some(8_000_000))];
    assert_eq!(shown(), least, "almost nothing until the cluster has granted a part");
    let half = Fractions { limit: [Fraction::of(0.5); 2], ..Fractions::WHOLE };
    // A part of the tenant's limit, or of a guarantee of one that is not here, is none of this guarantee.
    let others = [(key("a"), Fractions::WHOLE), (key("read b"), Fractions::WHOLE), (key("all a"), Fractions::WHOLE)];
    test.server.set_fractions(&others.into());
    assert_eq!(shown(), least);
    test.server.set_fractions(&BTreeMap::from([(key("read a"), half), (key("a"), Fractions::WHOLE)]));
    assert_eq!(shown(), [("read".to_owned(), 2_000, Some(4_000)), least[1].clone()]);
    test.server.set_fractions(&BTreeMap::from([(key("read a"), Fractions::WHOLE)]));
    assert_eq!(shown()[0], ("read".to_owned(), 4_000, None), "all of it is here");
}

#[test]
fn in_a_cluster_without_totals_a_limit_is_whole() {
    let more = "[tenants.a]\nlimit = { iops = 4000 }\n[cluster]\netcd = [\"http://127.0.0.1:1\"]\ntotals = false\n";
    let test = Fixture::start("each", ALL_ANSWER, more);
    let is_whole = || {
        let state = test.server.state();
        let tenant = state.pools.iter().flat_map(|pool| &pool.tenants).find(|tenant| tenant.name == "a").unwrap();
        tenant.parts.is_none() && tenant.limit.iops == Some(4_000)
    };
    assert!(is_whole());
    let mut config = Config::clone(&test.server.config());
    config.cluster.totals = true;
    let refused = test.server.reload(config).unwrap_err().to_string();
    assert!(refused.contains("cluster.totals") && is_whole(), "{refused}");
}

#[test]
fn without_a_cluster_totals_apply_as_a_whole() {
    let test = Fixture::start("whole", ALL_ANSWER, "[tenants.a]\nlimit = { iops = 4000 }\n");
    let state = test.server.state();
    let tenant = state.pools.iter().flat_map(|pool| &pool.tenants).find(|tenant| tenant.name == "a").unwrap();
    assert_eq!((&tenant.parts, tenant.limit.iops), (&None, Some(4_000)));
}

#[test]
fn a_volume_in_memory_that_is_too_large_is_named_with_the_cure() {
    let test = Fixture::start("large", ALL_ANSWER, "[volumes.m]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    let size = Bytes(1 << 62);
    let large = VolumeConfig { backend: VolumeBackend::Memory, size: Some(size), ..VolumeConfig::default() };
    let refused = test.server.create_volume("large", large).unwrap_err().to_string();
    assert!(refused.starts_with("volume \"large\": cannot map memory"), "{refused}");
    assert!(refused.contains("smaller volumes.large.size"), "{refused}");
    let refused = test.server.grow_volume("m", size).unwrap_err().to_string();
    assert!(refused.starts_with("volume \"m\" is not grown: ") && refused.contains("only a new"), "{refused}");
}
