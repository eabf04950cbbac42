//! Tests of the point on a host whose reads take longer the more a group writes.

use std::collections::BTreeMap;

use super::*;
use crate::Agent;
use crate::actuator::io_max;
use crate::loops::local::Sense;
use crate::loops::record::State;
use crate::points::fake_host::{FREE, Host, config, state};

const POLICY: &str = "[pools.disk]\ndevices = [\"no-disk\"]\nlatency.target = \"10ms\"\n\
    [tenants.db]\nmatch = [\"cgroup:slice/db\"]\n[tenants.bulk]\nmatch = [\"cgroup:slice/bulk-*\"]\n";

/// In place of a line of [`POLICY`]: the slow device of throughput guarantees.
const CACHED: &str = "tuning.cache.slow = \"no-slow\"\ntuning.guarantee.interval = \"1s\"\n[tenants.db]\n";

/// In place of the same line: a guarantee besides.
fn guaranteed() -> String {
    format!("{CACHED}guarantee.read.bytes_per_s = \"10MB\"\n")
}

#[test]
fn a_noisy_group_is_throttled_until_reads_are_fast_and_released_when_it_is_quiet() {
    let mut host = Host::new("noisy");
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 2);
    assert!(host.latency_ms > 40.0, "without limits reads are slow: {}", host.latency_ms);
    host.run(&mut agent, 400);
    assert!(host.latency_ms < 12.0, "{} ms, {}", host.latency_ms, host.io_max("slice/bulk-1"));
    let limits = host.limits("slice/bulk-1");
    assert!(limits.wbps.is_some() && limits.wiops.is_some() && limits.rbps.is_none(), "{limits}");
    assert_eq!(host.io_max("slice/db"), "", "the other group is not touched");
    let shown = agent.locals[0].state();
    let target = shown.latency_target.as_ref().unwrap();
    let reads = shown.reads.as_ref().unwrap();
    assert_eq!((target.target_ms, &*target.percentile, &*reads.measured), (10.0, "mean", "statistics"));
    let bulk = &shown.groups()[0];
    assert!(bulk.delay_ms > 10.0 && bulk.limits.is_some() && bulk.tenant == "bulk", "{bulk:?}");
    let because = agent.records(Some("disk"), 1)[0].because.clone();
    assert!(because.contains("bulk (slice/bulk-1) to "), "{because}");
    host.writes_now = false;
    host.run(&mut agent, 100);
    assert_eq!(host.io_max("slice/bulk-1"), FREE);
    assert!(host.journal.is_clear());
}

#[test]
fn where_the_kernel_counts_no_read_pressure_counts_and_the_decision_says_how_coarse_it_is() {
    let mut host = Host::new("pressure");
    host.counted = false;
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 20);
    let measured = |agent: &Agent| agent.locals[0].state().reads.unwrap().measured;
    assert_eq!((measured(&agent).as_str(), &*host.io_max("slice/bulk-1")), ("statistics", ""), "not for a moment");
    host.run(&mut agent, 600);
    assert_eq!(measured(&agent), "pressure");
    assert!(host.latency_ms < 20.0, "{} ms, {}", host.latency_ms, host.io_max("slice/bulk-1"));
    assert!(host.limits("slice/bulk-1").wbps.is_some());
    let because = agent.records(Some("disk"), 1)[0].because.clone();
    assert!(because.contains("latency is only estimated, from io.pressure"), "{because}");
    // Without pressure nothing is measured, and a note names the cure.
    assert!(agent.locals[0].state().notes.is_empty());
    std::fs::remove_file(host.file("slice/db", "io.pressure")).unwrap();
    for _ in 0..11 {
        host.ticks += 1;
        let uncounted = b"4095 1 no-disk 0 0 0 0 0 0 0 0 0 0 0\n";
        let errors = agent.tick(host.now(), uncounted, Some(&mut host.journal));
        assert!(errors.is_empty(), "{errors:?}");
    }
    let notes = agent.locals[0].state().notes;
    assert!(notes.len() == 1 && notes[0].contains("psi=1"), "{notes:?}");
    // Once the kernel counts reads again, they count.
    host.counted = true;
    host.run(&mut agent, 5);
    assert_eq!(measured(&agent), "statistics");
    let because = agent.records(Some("disk"), 1)[0].because.clone();
    assert!(!because.contains("io.pressure"), "{because}");
}

#[test]
fn a_percentile_of_which_no_read_is_timed_is_named_with_its_cure() {
    let mut host = Host::new("untimed");
    let policy = POLICY.replace("latency.target = \"10ms\"", "latency = { target = \"10ms\", percentile = 99 }");
    let config = Config::parse(&policy, "test", crate::config::Abilities { tracepoints: true }).unwrap();
    let mut agent = Agent::open(&config, &Roots::under(&host.root), &host.root.join("cgroup")).unwrap();
    agent.locals[0].mind.begin(host.now(), Sense::Groups);
    host.run(&mut agent, 20);
    assert!(agent.locals[0].state().notes.is_empty(), "not for a moment");
    host.run(&mut agent, 40);
    let notes = agent.locals[0].state().notes;
    assert!(notes.len() == 1 && notes[0].contains("write percentile = \"mean\""), "{notes:?}");
}

#[test]
fn a_device_that_becomes_slower_and_faster_is_followed() {
    let mut host = Host::new("speed");
    let mut agent = host.agent(POLICY);
    let mut allowed = Vec::new();
    for speed in [1.0, 0.4, 1.0] {
        host.speed = speed;
        host.run(&mut agent, 800);
        let mut sum_ms = 0.0;
        for _ in 0..200 {
            host.run(&mut agent, 1);
            sum_ms += host.latency_ms;
        }
        let mean_ms = sum_ms / 200.0;
        assert!(mean_ms < 13.0, "{speed}: {mean_ms} ms, {}", host.io_max("slice/bulk-1"));
        allowed.push(host.limits("slice/bulk-1").wbps.unwrap_or(u64::MAX));
    }
    assert!(allowed[1] < allowed[0] / 2, "{allowed:?}");
    assert!(allowed[2] > 2 * allowed[1], "{allowed:?}");
}

#[test]
fn a_limit_of_before_is_an_upper_bound_and_comes_back() {
    let mut host = Host::new("before");
    let before = FREE.replace("wbps=max", "wbps=60000000");
    std::fs::write(host.file("slice/bulk-1", "io.max"), &before).unwrap();
    let mut agent = host.agent(POLICY);
    let mut least = u64::MAX;
    for _ in 0..300 {
        host.run(&mut agent, 1);
        let limit = host.limits("slice/bulk-1").wbps.unwrap();
        assert!(limit <= 60_000_000, "{limit}");
        least = least.min(limit);
    }
    assert!(least < 40_000_000, "reads take 24 ms with the limit of before: {least}");
    assert!(!host.journal.is_clear());
    // As systemd does at each daemon-reload, for a unit with this limit.
    std::fs::write(host.file("slice/bulk-1", "io.max"), &before).unwrap();
    host.run(&mut agent, 30);
    let limit = host.limits("slice/bulk-1").wbps.unwrap();
    assert!(limit < 60_000_000, "the group is throttled again: {limit}");
    // The end, as of a killed agent whose sentinel acts.
    host.journal.restore_all();
    assert_eq!(host.io_max("slice/bulk-1"), before);
}

#[test]
fn limits_that_another_program_sets_meanwhile_stay() {
    let mut host = Host::new("foreign");
    host.slow_device();
    let policy = POLICY.replace("[tenants.db]\n", &guaranteed());
    let mut agent = host.agent(&policy);
    host.run(&mut agent, 100);
    assert!(host.limits("slice/bulk-1").wbps.is_some() && host.limits("slice/db").rbps.is_some());
    let foreign = [FREE.replace("wbps=max", "wbps=90000000"), FREE.replace("rbps=max", "rbps=5")];
    for (group, limits) in ["slice/bulk-1", "slice/db"].into_iter().zip(&foreign) {
        std::fs::write(host.file(group, "io.max"), limits).unwrap();
    }
    for _ in 0..50 {
        host.run(&mut agent, 1);
        assert_eq!([host.io_max("slice/bulk-1"), host.io_max("slice/db")], foreign);
    }
    let bulk = |agent: &Agent| agent.locals[0].mind.state().groups()[0].clone();
    assert_eq!(bulk(&agent).foreign_limit.as_deref(), Some("rbps=max wbps=90000000 riops=max wiops=max"));
    let db = state(&agent).groups.remove(0);
    assert_eq!(db.foreign_limit.as_deref(), Some("rbps=5 wbps=max riops=max wiops=max"));
    // A newer policy does not change that.
    host.reload(&mut agent, &policy.replace("latency.target", "max_delay = \"1s\"\nlatency.target"));
    host.run(&mut agent, 30);
    let group = bulk(&agent);
    assert!(group.foreign_limit.is_some() && group.delay_ms == 0.0);
    assert!(host.journal.restore_all().is_empty());
    assert_eq!([host.io_max("slice/bulk-1"), host.io_max("slice/db")], foreign);
}

#[test]
fn limits_that_another_program_sets_after_those_of_before_are_noticed() {
    let mut host = Host::new("undone");
    let before = FREE.replace("wbps=max", "wbps=60000000");
    std::fs::write(host.file("slice/bulk-1", "io.max"), &before).unwrap();
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 100);
    assert!(host.limits("slice/bulk-1").wbps.unwrap() < 60_000_000);
    host.journal.set_writable(false);
    let mut failed = 0;
    for limits in [before, FREE.replace("wbps=max", "wbps=90000000")] {
        std::fs::write(host.file("slice/bulk-1", "io.max"), limits).unwrap();
        for _ in 0..11 {
            let diskstats = host.work();
            host.ticks += 1;
            failed += agent.tick(host.now(), diskstats.as_bytes(), Some(&mut host.journal)).len();
        }
    }
    assert!(failed > 0, "the journal cannot be written");
    host.journal.set_writable(true);
    host.run(&mut agent, 2);
    let shown = agent.locals[0].state();
    let bulk = shown.groups().iter().find(|group| group.group == "slice/bulk-1").unwrap();
    assert_eq!(bulk.foreign_limit.as_deref(), Some("rbps=max wbps=90000000 riops=max wiops=max"));
    assert!(host.journal.is_clear());
}

#[test]
fn a_group_that_is_gone_leaves_nothing_and_a_new_one_is_found_within_a_second() {
    let mut host = Host::new("gone");
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 100);
    assert!(!host.journal.is_clear());
    std::fs::remove_dir_all(host.root.join("cgroup/slice/bulk-1")).unwrap();
    host.run(&mut agent, 1);
    assert!(host.journal.is_clear());
    assert_eq!(state(&agent).groups.len(), 1);
    host.group("slice/bulk-1");
    host.group("slice/bulk-2");
    host.run(&mut agent, 11);
    let groups: Vec<String> = state(&agent).groups.into_iter().map(|group| group.group).collect();
    assert_eq!(groups, ["slice/bulk-1", "slice/bulk-2", "slice/db"]);
}

#[test]
fn a_nested_group_is_found_within_a_second_by_the_kernel_s_word() {
    let mut host = Host::new("watched");
    let mut agent = host.agent(&POLICY.replace("slice/bulk-*", "slice/a/b/bulk-*"));
    host.run(&mut agent, 11);
    assert!(agent.locals[0].is_settled && state(&agent).groups.len() == 1);
    let notes = agent.locals[0].state().notes;
    assert!(notes.iter().any(|note| note.contains("no group fits")), "{notes:?}");
    host.run(&mut agent, 10);
    assert_eq!(agent.locals[0].state().notes, notes, "of the search before");
    host.group("slice/a/b/bulk-7");
    host.run(&mut agent, 11);
    assert!(agent.locals[0].is_settled && state(&agent).groups.len() == 2);
    // The kernel says nothing of a controller that is switched on: until it is, each second brings a search.
    std::fs::create_dir(host.root.join("cgroup/slice/a/b/bulk-8")).unwrap();
    host.run(&mut agent, 11);
    assert!(!agent.locals[0].is_settled && state(&agent).groups.len() == 2);
    host.group("slice/a/b/bulk-8");
    host.run(&mut agent, 11);
    assert!(agent.locals[0].is_settled && state(&agent).groups.len() == 3);
}

#[test]
fn a_container_belongs_to_the_tenant_that_its_name_fits() {
    let mut host = Host::new("container");
    let id = "ab".repeat(32);
    host.group(&format!("slice/docker-{id}.scope"));
    let mut agent = host.agent(
        "[pools.disk]\ndevices = [\"no-disk\"]\nlatency.target = \"10ms\"\n[tenants.db]\nmatch = [\"cgroup:slice/db\"]\n\
         [tenants.bulk]\nmatch = [\"container:bulk-*\"]\n[tenants.rest]\nmatch = [\"container:*\"]\n",
    );
    let tenants =
        |agent: &Agent| -> Vec<String> { state(agent).groups.into_iter().map(|group| group.tenant).collect() };
    host.run(&mut agent, 1);
    assert_eq!(tenants(&agent), ["db", "rest"], "its name is not known yet");
    host.root.file(&format!("var/lib/docker/containers/{id}/config.v2.json"), "{\"Name\":\"/bulk-7\"}");
    host.run(&mut agent, 11);
    assert_eq!(tenants(&agent), ["db", "bulk"]);
    let group = state(&agent).groups.pop().unwrap();
    assert_eq!(group.matched_by, "container:bulk-*");
    assert_eq!(group.also_matched_by, ["container:* of tenant rest"]);
    std::fs::remove_dir_all(host.root.join("cgroup/slice").join(format!("docker-{id}.scope"))).unwrap();
    host.run(&mut agent, 11);
    assert_eq!(tenants(&agent), ["db"]);
}

#[test]
fn a_volume_group_is_followed_down_to_its_disk() {
    let mut host = Host::new("stack");
    for (name, number) in [("no-disk", "4095:1"), ("no-dm", "4094:0")] {
        host.root.file(&format!("sys/block/{name}/dev"), number);
    }
    for (file, text) in [("dm/name", "no--vg-lv"), ("dm/uuid", "LVM-1"), ("slaves/no-disk", "")] {
        host.root.file(&format!("sys/block/no-dm/{file}"), text);
    }
    let mut agent = host.agent(&POLICY.replace("no-disk", "no-vg"));
    host.run(&mut agent, 100);
    assert_eq!(state(&agent).device_number, "4095:1");
    assert!(host.limits("slice/bulk-1").wbps.is_some(), "{}", host.io_max("slice/bulk-1"));
    std::fs::remove_file(host.root.join("sys/dev/block/4095:1")).unwrap();
    host.run(&mut agent, 11);
    assert!(host.journal.is_clear() && host.io_max("slice/bulk-1") == FREE, "the disk is gone");
}

#[test]
fn a_path_is_followed_to_the_file_system_that_is_mounted_there() {
    let mut host = Host::new("mounted");
    host.slow_device();
    for (name, number) in [("no-disk", "4095:1"), ("no-slow", "4095:2")] {
        host.root.file(&format!("sys/block/{name}/dev"), number);
    }
    let name = host.root.dir("data").canonicalize().unwrap().to_str().unwrap().to_owned();
    let above = "1 0 4095:1 / / rw - ext4 /dev/no-disk rw\n";
    let mounts = host.root.file("proc/self/mountinfo", above);
    let mut agent = host.agent(&POLICY.replace("no-disk", &name));
    host.run(&mut agent, 200);
    assert_eq!(state(&agent).device_number, "4095:1", "nothing is mounted there yet");
    assert!(host.limits("slice/bulk-1").wbps.is_some(), "{}", host.io_max("slice/bulk-1"));
    // A look that hangs stalls no tick, and the device stays.
    let (release, released) = std::sync::mpsc::channel::<()>();
    let hang = move |_: &String| {
        let _ = released.recv();
        Look { place: None, found: None }
    };
    assert!(agent.locals[0].looking.ask(&name, hang));
    host.run(&mut agent, 30);
    let notes = agent.locals[0].state().notes;
    assert!(notes.iter().any(|note| note.contains("does not answer")), "{notes:?}");
    assert!(state(&agent).device_number == "4095:1" && !host.journal.is_clear());
    drop(release);
    while agent.locals[0].looking.open() > 0 {
        host.run(&mut agent, 10);
    }
    std::fs::write(&mounts, format!("{above}2 1 4095:2 / {name} rw - xfs /dev/no-slow rw\n")).unwrap();
    host.run(&mut agent, 101);
    assert_eq!(state(&agent).device_number, "4095:2");
    assert!(host.journal.is_clear() && host.io_max("slice/bulk-1") == FREE, "{}", host.io_max("slice/bulk-1"));
}

#[test]
fn a_path_that_hangs_is_searched_once_and_hides_no_other() {
    let at = |name: &str| -> AtRoot { (PathBuf::from("/"), name.to_owned()) };
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Arc::new(Mutex::new(released));
    let find = move |path: &AtRoot| {
        if path.1 == "/hung" {
            let _ = released.lock().unwrap().recv();
        }
        path.1 != "/absent"
    };
    let (mut looking, long) = (Aside::default(), std::time::Duration::from_secs(600));
    assert!(finds_any(&mut looking, &[at("/hung"), at("/here")], long, find.clone()));
    assert!(!finds_any(&mut looking, &[at("/absent"), at("/hung")], long, find.clone()), "it waits for no hung path");
    assert_eq!(looking.open(), 1, "one thread hangs");
    assert!(!finds_any(&mut looking, &[at("/new"), at("/hung")], std::time::Duration::ZERO, |_| false));
    drop(release);
    while looking.open() > 0 {
        assert!(looking.answer(long).is_some());
    }
    assert!(finds_any(&mut looking, &[at("/hung")], long, find), "it may be searched again");
}

#[test]
fn the_device_at_a_path_is_searched_for_when_something_else_is_there() {
    let host = Host::new("place");
    let (roots, path) = (Roots::under(&host.root), host.root.join("data"));
    let name = path.to_str().unwrap();
    let absent = Look::at(&roots, name, None);
    assert!(absent.place.is_none() && absent.found.is_some());
    assert!(Look::at(&roots, name, Some(absent.place)).found.is_none());
    std::fs::create_dir_all(&path).unwrap();
    let there = Look::at(&roots, name, Some(absent.place));
    assert!(there.place.is_some() && there.found.is_some());
    assert!(Look::at(&roots, name, Some(there.place)).found.is_none());
}

#[test]
fn a_group_that_is_made_anew_is_no_work_of_another_program() {
    let mut host = Host::new("anew");
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 100);
    assert!(host.limits("slice/bulk-1").wbps.is_some());
    // Its folder has another number, and it has no limits.
    let group = agent.locals[0].groups.list.iter_mut().find(|group| group.name == "slice/bulk-1").unwrap();
    group.own.numbers = vec![0];
    std::fs::write(host.file("slice/bulk-1", "io.max"), "").unwrap();
    host.run(&mut agent, 30);
    assert!(state(&agent).groups.iter().all(|group| group.foreign_limit.is_none()));
    assert_eq!(host.io_max("slice/bulk-1"), "");
}

#[test]
fn no_limit_is_set_while_the_device_completes_no_request() {
    let mut host = Host::new("stuck");
    let mut agent = host.agent(POLICY);
    let mut diskstats = String::new();
    for _ in 0..30 {
        diskstats = host.work();
        host.ticks += 1;
        assert!(agent.tick(host.now(), diskstats.as_bytes(), None).is_empty());
    }
    // As many requests are completed as before, and one is in flight.
    let stuck = diskstats.replace(" 0 0 0\n", " 1 0 0\n");
    for _ in 0..3 {
        host.ticks += 1;
        assert!(agent.tick(host.now(), stuck.as_bytes(), Some(&mut host.journal)).is_empty());
        assert_eq!(host.io_max("slice/bulk-1"), "");
    }
    host.run(&mut agent, 5);
    assert!(host.limits("slice/bulk-1").wbps.is_some(), "{}", host.io_max("slice/bulk-1"));
}

#[test]
fn limits_that_stay_the_same_are_not_written() {
    let mut host = Host::new("same");
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 200);
    // The same limits in another spelling, which a write would replace.
    let spelled = host.io_max("slice/bulk-1").replace(' ', "  ");
    std::fs::write(host.file("slice/bulk-1", "io.max"), &spelled).unwrap();
    for _ in 0..8 {
        // Without a sample the decision stays.
        host.ticks += 1;
        let errors = agent.tick(host.now(), b"", Some(&mut host.journal));
        assert!(errors.is_empty(), "{errors:?}");
    }
    assert_eq!(host.io_max("slice/bulk-1"), spelled);
}

#[test]
fn without_a_journal_nothing_is_written() {
    let mut host = Host::new("dry");
    host.slow_device();
    let mut agent = host.agent(&POLICY.replace("[tenants.db]\n", &guaranteed()));
    for _ in 0..30 {
        let diskstats = host.work();
        host.ticks += 1;
        assert!(agent.tick(host.now(), diskstats.as_bytes(), None).is_empty());
    }
    assert_eq!((host.io_max("slice/bulk-1"), host.io_max("slice/db")), (String::new(), String::new()));
    assert!(agent.locals[0].mind.state().groups()[0].delay_ms > 0.0, "it would be throttled");
    assert_eq!(state(&agent).groups[0].read.as_ref().unwrap().guaranteed_per_s, 10_000_000);
}

#[test]
fn a_reservation_wins_and_a_guarantee_excludes_a_group() {
    let mut host = Host::new("owed");
    // Half of all that the group moves.
    let reserved = POLICY.replace("[tenants.bulk]\n", "[tenants.bulk]\nreservation.iops = 800\n");
    let mut agent = host.agent(&reserved);
    let mut least = u64::MAX;
    for _ in 0..300 {
        host.run(&mut agent, 1);
        least = least.min(host.limits("slice/bulk-1").wiops.unwrap_or(u64::MAX));
    }
    assert!((800..1400).contains(&least), "throttled, and not below what is reserved: {least}");
    let guaranteed = POLICY.replace("[tenants.bulk]\n", "[tenants.bulk]\nguarantee.write.iops = 9\n");
    let config = config(&guaranteed);
    assert!(config.local["disk"].tenants.iter().any(|tenant| tenant.name == "bulk" && tenant.guaranteed));
    let mut mind = local::Local::new("disk", &config.local["disk"], Duration::from_millis(100)).unwrap();
    let tenant = config.local["disk"].tenant_of("slice/bulk-7").unwrap();
    let bulk = mind.join(tenant, "slice/bulk-7", true);
    let state = mind.state();
    let (group, because) = (&state.groups()[0], "has a throughput guarantee");
    assert!(bulk.is_some() && group.exempt_because.is_some());
    assert!(group.lately.because.starts_with(because), "{group:?}");
}

#[test]
fn a_policy_with_another_target_keeps_limits_and_one_without_puts_them_back() {
    let mut host = Host::new("reload");
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 200);
    let in_force = host.io_max("slice/bulk-1");
    let at = (&Roots::under(&host.root), &*host.root.join("cgroup"));
    let errors = agent.reload(&config(&POLICY.replace("10ms", "11ms")), at, Some(&mut host.journal)).unwrap();
    assert!(errors.0.is_empty() && host.io_max("slice/bulk-1") == in_force, "{errors:?}");
    assert!(state(&agent).groups.iter().any(|group| group.delay_ms > 0.0));
    let at = (&Roots::under(&host.root), &*host.root.join("cgroup"));
    assert!(agent.reload(&config(""), at, Some(&mut host.journal)).unwrap().0.is_empty());
    assert_eq!(host.io_max("slice/bulk-1"), FREE);
    assert!(host.journal.is_clear() && agent.names().is_empty());
}

#[test]
fn a_throttled_group_that_gets_a_guarantee_is_limited_by_that_alone() {
    let mut host = Host::new("guaranteed");
    host.slow_device();
    let policy = POLICY.replace("[tenants.db]\n", CACHED);
    let mut agent = host.agent(&policy);
    host.run(&mut agent, 200);
    assert!(host.limits("slice/bulk-1").wiops.is_some());
    let guarantee = "[tenants.bulk]\nguarantee.write = { bytes_per_s = \"10MB\" }\n";
    host.reload(&mut agent, &policy.replace("[tenants.bulk]\n", guarantee));
    for _ in 0..30 {
        host.run(&mut agent, 1);
        let limits = host.limits("slice/bulk-1");
        assert!(limits.wbps.is_some_and(|limit| limit >= 10_000_000) && limits.wiops.is_none(), "{limits}");
    }
    let state: State = agent.state();
    assert!(state.cgroups().flat_map(|(_, at)| &at.groups).all(|group| group.foreign_limit.is_none()));
    host.journal.restore_all();
    assert!(host.journal.is_clear() && host.io_max("slice/bulk-1") == FREE, "{}", host.io_max("slice/bulk-1"));
}

#[test]
fn a_group_that_a_guarantee_has_by_its_path_is_not_throttled_by_its_name() {
    let mut host = Host::new("by-name");
    host.slow_device();
    host.group(&format!("slice/docker-{}.scope", "ab".repeat(32)));
    let policy = POLICY.replace("[tenants.db]\n", CACHED).replace("cgroup:slice/bulk-*", "container:abababababab");
    let owed = "[tenants.owed]\nmatch = [\"cgroup:slice/docker-*\"]\nguarantee.write = { bytes_per_s = \"10MB\" }\n";
    let mut agent = host.agent(&format!("{policy}{owed}"));
    host.run(&mut agent, 1);
    let state = agent.locals[0].state();
    let shown = state.groups().iter().find(|group| group.group.contains("docker")).unwrap();
    assert!(shown.tenant == "bulk" && shown.throttle == "never" && shown.exempt_because.is_some(), "{shown:?}");
}

/// Makes a partition of the disk.
fn partition(host: &Host) {
    host.root.file("sys/class/block/no-disk/no-disk1/dev", "4095:2");
    host.root.file("sys/class/block/no-disk/no-disk1/partition", "1");
    host.root.link("sys/class/block/no-disk1", "sys/class/block/no-disk/no-disk1");
    host.root.link("sys/dev/block/4095:2", "sys/class/block/no-disk/no-disk1");
}

#[test]
fn of_two_points_on_one_disk_one_sets_limits() {
    let mut host = Host::new("two");
    partition(&host);
    let other = "[pools.other]\ndevices = [\"no-disk1\"]\nlatency.target = \"5ms\"\n[tenants.db]\n";
    let policy = POLICY.replace("[tenants.db]\n", other);
    let mut agent = host.agent(&policy);
    for _ in 0..50 {
        host.run(&mut agent, 1);
        assert!(agent.locals[1].groups.list.is_empty() && agent.locals[1].devices().next().is_none());
        let notes = agent.locals[1].state().notes;
        assert!(notes.len() == 1 && notes[0].contains("pool disk controls the disk of no-disk1"), "{notes:?}");
    }
    assert!(host.limits("slice/bulk-1").wbps.is_some());
    // It takes over where the first ends.
    host.reload(&mut agent, &policy.replace("[pools.disk]\n", "[pools.disk]\nenforce = [\"packets\"]\n"));
    host.run(&mut agent, 11);
    assert_eq!((agent.locals.len(), agent.locals[0].groups.list.len()), (1, 2));
}

#[test]
fn a_point_keeps_its_disk_beside_a_new_one_that_comes_first() {
    let mut host = Host::new("first");
    partition(&host);
    let policy = format!("{POLICY}limit.bytes_per_s = \"10MB\"\n");
    let mut agent = host.agent(&policy);
    host.run(&mut agent, 30);
    let new = "[pools.a]\ndevices = [\"no-disk1\"]\nlatency.target = \"5ms\"\n[tenants.db]\n";
    host.reload(&mut agent, &policy.replace("[tenants.db]\n", new));
    for _ in 0..30 {
        host.run(&mut agent, 1);
        assert!(agent.locals[0].name() == "a" && agent.locals[0].groups.list.is_empty());
        let limits = host.limits("slice/bulk-1");
        let sum: u64 = [limits.rbps, limits.wbps].into_iter().flatten().sum();
        assert!((1..=10_000_000).contains(&sum), "{limits}");
    }
    let shown = agent.locals[1].state();
    assert!(shown.groups().iter().all(|group| group.foreign_limit.is_none()), "{:?}", shown.groups());
}

#[test]
fn of_a_group_and_one_below_it_one_is_throttled() {
    let mut host = Host::new("nested");
    host.group("slice/bulk-1/inner");
    host.group("slice/db-more");
    let rest = "[tenants.rest]\nmatch = [\"cgroup:slice/bulk-1/*\", \"cgroup:slice\", \"cgroup:slice/db-more\"]\n";
    let mut agent = host.agent(&format!("{POLICY}{rest}"));
    host.run(&mut agent, 1);
    let groups: Vec<String> = state(&agent).groups.into_iter().map(|group| group.group).collect();
    assert_eq!(groups, ["slice/bulk-1", "slice/db", "slice/db-more"]);
    let notes = agent.locals[0].state().notes;
    let of = |name: &str| notes.iter().any(|note| note.starts_with(&format!("{name} is left alone")));
    assert!(notes.len() == 2 && of("slice/bulk-1/inner") && of("slice"), "{notes:?}");
    let numbers = agent.locals[0].watched().flat_map(|(_, _, numbers)| numbers);
    assert_eq!(numbers.count(), 4, "tasks of the inner group are of the outer one");
}

#[test]
fn a_limit_that_could_not_be_confirmed_is_restored_as_well() {
    let mut host = Host::new("unconfirmed");
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 200);
    assert!(host.limits("slice/bulk-1").wbps.is_some());
    host.writes_now = false;
    for _ in 0..100 {
        // As after an error of the journal behind the write.
        agent.locals[0].groups.list.iter_mut().for_each(|group| group.set = None);
        host.run(&mut agent, 1);
    }
    assert_eq!(host.io_max("slice/bulk-1"), FREE);
    assert!(host.journal.is_clear());
}

#[test]
fn of_many_groups_some_are_released_and_searched_at_each_tick() {
    let mut host = Host::new("many");
    host.writes_now = false;
    (2..=14).for_each(|number| host.group(&format!("slice/bulk-{number}")));
    (0..MOST_WALKED).for_each(|number| host.group(&format!("slice/bulk-1/inner-{number}")));
    host.group("slice/db/inner");
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 1);
    let numbers = |agent: &Agent, name: &str| {
        let group = agent.locals[0].groups.list.iter().find(|group| group.name == name).unwrap();
        group.own.numbers.len()
    };
    assert_eq!((numbers(&agent, "slice/bulk-1"), numbers(&agent, "slice/db")), (MOST_WALKED + 1, 1));
    host.run(&mut agent, 1);
    assert_eq!(numbers(&agent, "slice/db"), 2);
    let limits = Limits { wbps: Some(1_000_000), ..Limits::NONE };
    for group in &mut agent.locals[0].groups.list {
        io_max::set_all(&mut host.journal, &mut [(&mut group.row, limits)]).unwrap();
        group.set = Some(limits);
    }
    for left in [5, 0] {
        host.run(&mut agent, 1);
        let limited = agent.locals[0].groups.list.iter().filter(|group| host.limits(&group.name) == limits);
        assert_eq!(limited.count(), left, "of 15 groups");
    }
}

#[test]
fn of_five_hundred_groups_few_are_read_and_written_at_each_tick() {
    let mut host = Host::new("five-hundred");
    let numbers = 2..=499_u64;
    numbers.clone().for_each(|number| host.group(&format!("slice/bulk-{number}")));
    let mut agent = host.agent(&POLICY.replace("[tenants.bulk]\n", "[tenants.bulk]\nthrottle = \"always\"\n"));
    let mut all = 0;
    for tick in 1..=100 {
        for number in numbers.clone() {
            // Each at a rate of its own, which changes.
            let writes = tick * (1 + number % 7) + (tick / 20) * tick;
            let bytes = 65_536 * writes;
            let text = format!("4095:1 rbytes=0 wbytes={bytes} rios=0 wios={writes}\n");
            host.stat(&format!("slice/bulk-{number}"), &text);
        }
        let set = |agent: &Agent| -> Vec<_> { agent.locals[0].groups.list.iter().map(|group| group.set).collect() };
        let (before, from) = (set(&agent), agent.locals[0].next);
        host.run(&mut agent, 1);
        let (after, to) = (set(&agent), agent.locals[0].next);
        assert_eq!(after.len(), 500);
        assert!(to == from + MOST_READ || to == 0, "{from} {to}");
        let written = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert!(written <= MOST_WRITTEN, "{written}");
        all += written;
    }
    assert!(all > 100, "limits are set: {all}");
}

#[test]
fn rows_that_are_refused_do_not_keep_others_from_being_released() {
    let mut host = Host::new("refused");
    host.writes_now = false;
    (2..=14).for_each(|number| host.group(&format!("slice/bulk-{number}")));
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 1);
    let limits = Limits { wbps: Some(1_000_000), ..Limits::NONE };
    for group in &mut agent.locals[0].groups.list {
        io_max::set_all(&mut host.journal, &mut [(&mut group.row, limits)]).unwrap();
        group.set = Some(limits);
    }
    let names: Vec<String> = agent.locals[0].groups.list.iter().map(|group| group.name.clone()).collect();
    let (refused, others) = names[1..].split_at(MOST_WRITTEN);
    refused.iter().for_each(|name| std::fs::write(host.file(name, "io.max"), "4095:1 rbps=what").unwrap());
    for _ in 0..2 {
        let diskstats = host.work();
        host.ticks += 1;
        let errors = agent.tick(host.now(), diskstats.as_bytes(), Some(&mut host.journal));
        assert!(errors.len() >= MOST_WRITTEN, "{errors:?}");
    }
    assert!(others.len() == 4 && others.iter().all(|name| host.io_max(name) == FREE));
    // Once they can be written, they are released as well.
    let row = format!("4095:1 {limits}");
    refused.iter().for_each(|name| std::fs::write(host.file(name, "io.max"), &row).unwrap());
    host.run(&mut agent, 1);
    assert!(host.journal.is_clear());
}

#[test]
fn a_tenant_s_limit_is_written_seldom_and_restored() {
    let mut host = Host::new("limit");
    let mut agent = host.agent(&format!("{POLICY}limit.bytes_per_s = \"10MB\"\n"));
    let (mut written, mut before) = (0, Limits::NONE);
    for _ in 0..60 {
        host.run(&mut agent, 1);
        let limits = host.limits("slice/bulk-1");
        let sum: u64 = [limits.rbps, limits.wbps].into_iter().flatten().sum();
        assert!((1..=10_000_000).contains(&sum), "{limits}");
        written += u32::from(limits != before);
        before = limits;
    }
    assert!(written <= 6, "{written} times");
    assert!(before.wbps.is_some_and(|limit| limit > 8_000_000), "nearly all for writes: {before}");
    assert_eq!(host.io_max("slice/db"), "", "the other tenant has no limit");
    assert!(!host.journal.is_clear());
    host.writes_now = false;
    host.reload(&mut agent, POLICY);
    host.run(&mut agent, 5);
    assert!(host.journal.is_clear() && host.io_max("slice/bulk-1") == FREE, "{}", host.io_max("slice/bulk-1"));
}

#[test]
fn in_a_cluster_a_host_takes_no_more_than_its_part_of_a_limit() {
    use evenkeel_control::units::{Fraction, Fractions};
    let mut host = Host::new("total");
    let policy = format!("{POLICY}limit.bytes_per_s = \"10MB\"\n");
    let mut agent = host.agent(&policy);
    agent.share_totals();
    host.run(&mut agent, 3);
    let sum = |host: &Host| host.limits("slice/bulk-1").all().into_iter().flatten().sum::<u64>();
    assert!((300_000..=625_000).contains(&sum(&host)), "no part is known: {}", host.io_max("slice/bulk-1"));
    let key = ("disk".to_owned(), "bulk".to_owned());
    assert_eq!(agent.demands()[&key].limit, [0, 10_000_000]);
    let half = Fractions { limit: [Fraction::of(0.5); 2], ..Fractions::WHOLE };
    agent.divide(&BTreeMap::from([(key, half)]));
    host.run(&mut agent, 60);
    assert!((4_000_000..=5_000_000).contains(&sum(&host)), "{}", host.io_max("slice/bulk-1"));
    host.reload(&mut agent, &policy.replace("latency.target", "max_delay = \"1s\"\nlatency.target"));
    host.run(&mut agent, 2);
    assert!((4_000_000..=5_000_000).contains(&sum(&host)), "a newer policy: {}", host.io_max("slice/bulk-1"));
    assert!(!counts_here(DeviceNumber { major: 43, minor: 0 }) && counts_here(DeviceNumber { major: 8, minor: 0 }));
    // The server of an NBD device below counts the requests.
    assert!(!agent.demands().is_empty());
    agent.locals[0].device.as_mut().unwrap().whole.push(DeviceNumber { major: 43, minor: 0 });
    host.run(&mut agent, 1);
    assert!(agent.demands().is_empty());
}

#[test]
fn a_newer_policy_leaves_the_limit_of_a_guarantee_in_force() {
    let mut host = Host::new("guarantee-stays");
    host.slow_device();
    let policy = POLICY.replace("[tenants.db]\n", &guaranteed());
    let mut agent = host.agent(&policy);
    host.run(&mut agent, 100);
    assert!(host.limits("slice/db").rbps.is_some());
    host.reload(&mut agent, &policy.replace("latency.target", "max_delay = \"1s\"\nlatency.target"));
    for _ in 0..30 {
        host.run(&mut agent, 1);
        assert!(host.limits("slice/db").rbps.is_some(), "{}", host.io_max("slice/db"));
    }
    // Also where the point for the latency target ends.
    host.reload(&mut agent, &policy.replace("latency.target = \"10ms\"\n", ""));
    assert!(agent.locals.is_empty() && host.limits("slice/db").rbps.is_some(), "{}", host.io_max("slice/db"));
    host.run(&mut agent, 30);
    let state: State = agent.state();
    assert!(state.cgroups().flat_map(|(_, at)| &at.groups).all(|group| group.foreign_limit.is_none()));
    host.journal.restore_all();
    assert_eq!([host.io_max("slice/db"), host.io_max("slice/bulk-1")], [FREE, FREE]);
}

#[test]
fn a_group_whose_guarantee_ends_is_limited_as_its_tenant_is() {
    let mut host = Host::new("guarantee-ends");
    host.slow_device();
    let rest = "[tenants.rest]\nmatch = [\"cgroup:slice/rest\"]\n[tenants.bulk]\n";
    let policy = POLICY.replace("[tenants.db]\n", &guaranteed()).replace("[tenants.bulk]\n", rest);
    let mut agent = host.agent(&format!("{policy}guarantee.write.bytes_per_s = \"1MB\"\n"));
    host.run(&mut agent, 30);
    assert!(host.limits("slice/bulk-1").wbps.is_some(), "{}", host.io_max("slice/bulk-1"));
    host.reload(&mut agent, &format!("{policy}limit.bytes_per_s = \"10MB\"\n"));
    for _ in 0..30 {
        host.run(&mut agent, 1);
        let limits = host.limits("slice/bulk-1");
        let sum: u64 = [limits.rbps, limits.wbps].into_iter().flatten().sum();
        assert!((1..=10_000_000).contains(&sum), "{limits}");
    }
    let shown = agent.locals[0].state();
    assert!(shown.groups().iter().all(|group| group.foreign_limit.is_none()), "{:?}", shown.groups());
    host.journal.restore_all();
    assert_eq!(host.io_max("slice/bulk-1"), FREE);
}

#[test]
fn a_group_that_is_made_anew_at_a_reload_is_no_work_of_another_program() {
    let mut host = Host::new("anew-at-reload");
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 100);
    assert!(host.limits("slice/bulk-1").wbps.is_some());
    host.reload(&mut agent, &POLICY.replace("latency.target", "max_delay = \"1s\"\nlatency.target"));
    // The file of before stays open, so that its number is not used again.
    std::fs::remove_dir_all(host.root.join("cgroup/slice/bulk-1")).unwrap();
    host.group("slice/bulk-1");
    host.run(&mut agent, 1);
    let bulk = |agent: &Agent| agent.locals[0].state().groups().iter().find(|of| of.group == "slice/bulk-1").cloned();
    assert!(bulk(&agent).is_some_and(|group| group.foreign_limit.is_none()));
    host.run(&mut agent, 300);
    assert!(bulk(&agent).is_some_and(|group| group.foreign_limit.is_none()));
    assert!(host.limits("slice/bulk-1").wbps.is_some(), "{}", host.io_max("slice/bulk-1"));
}

#[test]
fn a_device_that_is_made_anew_with_its_number_gets_limits_again() {
    let mut host = Host::new("same-number");
    let sequence = host.root.join("sys/class/block/no-disk/diskseq");
    std::fs::write(&sequence, "7\n").unwrap();
    let mut agent = host.agent(POLICY);
    host.run(&mut agent, 200);
    assert!(host.limits("slice/bulk-1").wbps.is_some());
    // The kernel forgets the limits with the device.
    std::fs::write(&sequence, "8\n").unwrap();
    std::fs::write(host.file("slice/bulk-1", "io.max"), "").unwrap();
    host.run(&mut agent, 11);
    let shown = agent.locals[0].state();
    assert!(shown.groups().iter().all(|group| group.foreign_limit.is_none()), "{:?}", shown.groups());
    host.run(&mut agent, 300);
    assert!(host.limits("slice/bulk-1").wbps.is_some(), "{}", host.io_max("slice/bulk-1"));
}
