use super::*;
use crate::config::{Abilities, Config};
use crate::sensor::diskstats::Flow;
use crate::sensor::tracepoints::BUCKETS;

const INTERVAL: Duration = Duration::from_millis(100);

fn local(percentile: &str) -> Local {
    let text = format!(
        "[pools.disk]\ndevices = [\"sda\"]\nlatency = {{ target = \"10ms\", percentile = {percentile} }}\n\
         [tenants.db]\nmatch = [\"cgroup:db\"]\n[tenants.bulk]\nmatch = [\"cgroup:bulk\"]\n"
    );
    let config = Config::parse(&text, "test", Abilities { tracepoints: true }).unwrap();
    Local::new("disk", &config.local["disk"], INTERVAL).unwrap()
}

fn at(interval: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(100 * interval)
}

/// Ten reads of `read_ms` and 160 writes of 20 ms in an interval.
fn device(read_ms: u64) -> diskstats::Sample {
    let reads = Flow { completed: 10, bytes: 40_960, time: Duration::from_millis(10 * read_ms) };
    let writes = Flow { completed: 160, bytes: 160 << 16, time: Duration::from_millis(160 * 20) };
    diskstats::Sample { interval: INTERVAL, reads, writes, in_flight: 1 }
}

fn bucket(ms: u64) -> usize {
    (0..BUCKETS).find(|bucket| middle(*bucket) >= Duration::from_millis(ms)).expect("a bucket")
}

/// Runs 20 intervals in which a group reads, another one writes, the device's reads take `device_ms`, and those that count take
/// `counted_ms` (`None`: there are none). Returns the wait of the writer's requests.
fn run(local: &mut Local, sense: Sense, device_ms: u64, counted_ms: Option<u64>) -> Duration {
    let db = local.join(db_of(local), "db", false).unwrap();
    let bulk = local.join(bulk_of(local), "bulk", false).unwrap();
    for interval in 1..=20 {
        local.begin(at(interval), sense);
        if let Some(ms) = counted_ms {
            local.count(bucket(ms), 10);
        }
        let read = Counters { read_bytes: interval * 40_960, reads: interval * 10, ..Counters::ZERO };
        local.measure(db, at(interval), read);
        let written = Counters { written_bytes: interval * (160 << 16), writes: interval * 160, ..Counters::ZERO };
        local.measure(bulk, at(interval), written);
        local.tick(at(interval), Some(device(device_ms)));
    }
    local.groups.iter().find(|group| group.id == bulk).unwrap().delay.0
}

fn db_of(local: &Local) -> usize {
    local.config.tenant_of("db").unwrap()
}

fn bulk_of(local: &Local) -> usize {
    local.config.tenant_of("bulk").unwrap()
}

#[test]
fn the_reads_that_count_decide_and_not_all_of_the_device() {
    assert!(run(&mut local("\"mean\""), Sense::Groups, 40, Some(2)).is_zero(), "reads that count are fast");
    assert!(run(&mut local("\"mean\""), Sense::Groups, 2, Some(40)) > Duration::ZERO, "reads that count are slow");
    assert!(run(&mut local("\"mean\""), Sense::Statistics, 40, None) > Duration::ZERO);
    let mut idle = local("\"mean\"");
    assert!(run(&mut idle, Sense::Groups, 40, None).is_zero(), "no read that counts waits");
    assert!(idle.state().latency.unwrap().read_latency_ms.is_none());
}

#[test]
fn a_percentile_is_that_of_single_reads() {
    let mut slow = local("99");
    assert!(slow.wants_percentile());
    assert!(run(&mut slow, Sense::Groups, 2, Some(40)) > Duration::ZERO);
    let shown = slow.state().latency.unwrap();
    assert_eq!((shown.percentile.as_str(), shown.measured.as_str()), ("p99", "groups"));
    assert!((shown.read_percentile_ms.unwrap() / 40.0 - 1.0).abs() < 0.07, "{shown:?}");
}

#[test]
fn limits_are_for_the_direction_in_which_a_group_is_noisy_and_end_with_it() {
    let mut local = local("\"mean\"");
    run(&mut local, Sense::Statistics, 40, None);
    let bulk = ClientId(2);
    let limits = local.limits(bulk);
    assert!(limits.wbps.is_some() && limits.wiops.is_some_and(|limit| limit < 1_600), "{limits}");
    assert_eq!((limits.rbps, limits.riops), (None, None));
    assert!(local.is_noisy(bulk) && !local.is_noisy(ClientId(1)));
    assert_eq!(local.limits(ClientId(1)), Limits::NONE);
    local.is_foreign(bulk, Limits { wbps: Some(7), ..Limits::NONE });
    local.tick(at(21), Some(device(40)));
    assert_eq!(local.limits(bulk), Limits::NONE, "another program's limit is left alone");
    local.leave(bulk);
    assert_eq!(local.state().groups.len(), 1);
}

#[test]
fn another_target_keeps_what_was_learned_and_other_settings_do_not() {
    let mut known = local("\"mean\"");
    run(&mut known, Sense::Statistics, 40, None);
    let mut config = known.config().clone();
    config.latency.target = Duration::from_millis(12);
    assert!(known.adopt(&config, INTERVAL) && known.config() == &config && known.groups.len() == 2);
    config.max_delay = Duration::from_secs(1);
    assert!(!known.adopt(&config, INTERVAL));
}

#[test]
fn a_reader_that_gets_more_while_another_group_is_throttled_does_not_become_noisy() {
    let mut local = local("\"mean\"");
    run(&mut local, Sense::Statistics, 40, None);
    let (db, bulk, tenant) = (ClientId(1), ClientId(2), db_of(&local));
    let other = local.join(tenant, "other", false).unwrap();
    let mut writes = 20.0 * 160.0;
    let mut least: f64 = 160.0;
    for interval in 21..=200 {
        let limits = local.limits(bulk);
        local.in_force(bulk, limits);
        // Forty times what it was at first: the throttled group leaves room for it.
        let more = (interval - 20) * 1_638_400;
        let read = Counters { read_bytes: 20 * 40_960 + more, reads: 200 + 400 * (interval - 20), ..Counters::ZERO };
        local.begin(at(interval), Sense::Statistics);
        local.measure(db, at(interval), read);
        let passed = limits.wiops.map_or(160.0, |limit| 160f64.min(limit as f64 / 10.0));
        least = least.min(passed);
        writes += passed;
        let count = writes as u64;
        let written = Counters { written_bytes: count << 16, writes: count, ..Counters::ZERO };
        local.measure(bulk, at(interval), written);
        let few = Counters { read_bytes: interval * 4_096, reads: interval, ..Counters::ZERO };
        local.measure(other, at(interval), few);
        local.tick(at(interval), Some(device(40)));
        assert!(!local.is_noisy(db) && !local.is_noisy(other), "{interval}");
    }
    assert!(least < 24.0, "the throttled group moves less than the reader: {least} of 160 requests");
}

#[test]
fn with_each_a_group_is_a_tenant_of_its_own() {
    let sampled = |each: &str| {
        let text = format!(
            "[pools.disk]\ndevices = [\"sda\"]\nlatency.target = \"10ms\"\n[tenants.bulk]\n{each}\
             match = [\"cgroup:slice/bulk-*\"]\nreservation.iops = 100\n"
        );
        let config = Config::parse(&text, "test", Abilities { tracepoints: true }).unwrap();
        let mut local = Local::new("disk", &config.local["disk"], INTERVAL).unwrap();
        let groups = ["slice/bulk-1", "slice/bulk-2"].map(|group| local.join(0, group, false).unwrap());
        for interval in 1..=2 {
            for group in groups {
                let written = Counters { written_bytes: interval * 81_920, writes: interval * 20, ..Counters::ZERO };
                local.measure(group, at(interval), written);
            }
            local.tick(at(interval), Some(device(1)));
        }
        let names: Vec<String> = local.state().groups.into_iter().map(|group| group.tenant).collect();
        (names, local.samples[0].paid)
    };
    let (names, paid) = sampled("");
    assert!(names == ["bulk", "bulk"] && (paid - 4.0).abs() < 1e-6, "{names:?} {paid}");
    let (names, paid) = sampled("each = true\n");
    assert!(names == ["bulk/bulk-1", "bulk/bulk-2"] && (paid - 2.0).abs() < 1e-6, "{names:?} {paid}");
}

#[test]
fn of_many_throttled_groups_a_decision_keeps_those_that_wait_longest() {
    let mut local = local("\"mean\"");
    let tenant = bulk_of(&local);
    for number in 0..KEPT as u64 + 36 {
        let id = local.join(tenant, "bulk", false).unwrap();
        local.group(id).unwrap().delay.0 = Duration::from_millis(number);
    }
    let (held, throttled, groups) = local.held();
    assert_eq!((held.len(), throttled), (KEPT, KEPT + 35), "the first does not wait");
    assert!(held.iter().all(|held| held.delay >= Duration::from_millis(36)));
    assert!(held.is_sorted_by_key(|held| held.delay), "in the order of their numbers");
    local.groups[1].delay.0 = Duration::ZERO;
    assert_ne!(local.held().2, groups, "another decision, though it keeps the same");
}

#[test]
fn records_are_made_of_as_many_decisions_as_are_asked_for() {
    let mut local = local("\"mean\"");
    run(&mut local, Sense::Statistics, 40, None);
    let all: Vec<DecisionRecord> = local.records(usize::MAX).collect();
    let newest: Vec<DecisionRecord> = local.records(1).collect();
    assert!(all.len() > 1 && newest[..] == all[all.len() - 1..], "{newest:?}");
}
