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
    assert!(idle.state().reads.unwrap().latency_ms.is_none());
}

#[test]
fn a_percentile_is_that_of_single_reads() {
    let mut slow = local("99");
    assert!(slow.wants_percentile());
    assert!(run(&mut slow, Sense::Groups, 2, Some(40)) > Duration::ZERO);
    let shown = slow.state();
    let (target, reads) = (shown.latency_target.as_ref().unwrap(), shown.reads.as_ref().unwrap());
    assert_eq!((target.percentile.as_str(), reads.measured.as_str()), ("p99", "groups"));
    assert!((shown.percentile_ms().unwrap() / 40.0 - 1.0).abs() < 0.07, "{shown:?}");
    assert!(shown.lately.targets[0].verdict.is_missed(), "{shown:?}");
    assert_eq!(shown.lately.throttled_by.unwrap().how.split_once(',').unwrap().0, "1 group");
}

#[test]
fn percentiles_are_shown_wherever_single_reads_are_timed() {
    for percentile in ["99", "\"mean\""] {
        let mut timed = local(percentile);
        assert_eq!(timed.state().reads.unwrap().percentiles, None);
        run(&mut timed, Sense::Groups, 2, Some(40));
        let shown = timed.state().reads.unwrap().percentiles.unwrap();
        for ms in [shown.p50_ms, shown.p99_ms, shown.p999_ms] {
            assert!((ms / 40.0 - 1.0).abs() < 0.07, "{percentile}: {shown:?}");
        }
    }
}

#[test]
fn a_group_has_the_percentiles_of_its_own_reads_alone() {
    let mut local = local("\"mean\"");
    let db = local.join(db_of(&local), "db", false).unwrap();
    let bulk = local.join(bulk_of(&local), "bulk", false).unwrap();
    let percentiles = |local: &Local, group: &str| {
        let state = local.state();
        let found = state.groups().iter().find(|known| known.group == group);
        found.unwrap().read_percentiles
    };
    assert_eq!(percentiles(&local, "db"), None);
    for interval in 1..=20 {
        local.begin(at(interval), Sense::Groups);
        local.count_of(db, at(interval), bucket(2), 98);
        local.count_of(db, at(interval), bucket(40), 2);
        local.count_of(bulk, at(interval), bucket(200), 5);
    }
    let (of_db, of_bulk) = (percentiles(&local, "db").unwrap(), percentiles(&local, "bulk").unwrap());
    for (found, ms) in [(of_db.p50_ms, 2.0), (of_db.p99_ms, 40.0), (of_bulk.p50_ms, 200.0), (of_bulk.p99_ms, 200.0)] {
        assert!((found / ms - 1.0).abs() < 0.07, "{of_db:?} and {of_bulk:?}");
    }
    assert_eq!(local.state().reads.unwrap().percentiles, None, "another call counts for the target");
    for interval in [100, 200] {
        local.begin(at(interval), Sense::Groups);
    }
    assert_eq!(percentiles(&local, "db"), None, "of the last 5 to 10 s");
    local.leave(db);
    local.count_of(db, at(200), bucket(2), 1);
    assert_eq!(local.state().groups().len(), 1, "a group that has gone counts nothing");
}

#[test]
fn pressure_counts_for_reads_and_for_those_that_are_still_waited_for() {
    let mut local = local("\"mean\"");
    let db = local.join(db_of(&local), "db", false).unwrap();
    for (interval, stalled_ms, [reads, writes], read_ms) in [
        (1, 0, [0, 0], None),
        (2, 100, [0, 0], None),
        // Two intervals for four reads.
        (3, 200, [4, 0], Some(50.0)),
        // The group waits for its writes.
        (4, 300, [4, 9], None),
        (5, 400, [5, 9], Some(100.0)),
    ] {
        local.stalled(db, Duration::from_millis(stalled_ms));
        local.measure(db, at(interval), Counters { reads, writes, ..Counters::ZERO });
        let (mean, _) = local.waited();
        assert_eq!(mean.map(|mean| mean.as_millis_f64().round()), read_ms, "{interval}");
    }
}

#[test]
fn a_read_now_and_then_is_no_sign_of_a_device_without_statistics() {
    let mut local = local("\"mean\"");
    let db = local.join(db_of(&local), "db", false).unwrap();
    let idle = diskstats::Sample { interval: INTERVAL, ..diskstats::Sample::default() };
    for interval in 1..=200 {
        // One each 5 s, which the statistics show in another interval.
        local.measure(db, at(interval), Counters { reads: interval / 50, ..Counters::ZERO });
        local.tick(at(interval), Some(idle));
        assert!(!local.wants_pressure(), "{interval}");
    }
}

#[test]
fn a_device_without_statistics_is_measured_by_single_reads_or_by_pressure() {
    for (sense, shown) in [(Sense::Groups, "groups"), (Sense::Statistics, "pressure")] {
        let mut local = local("\"mean\"");
        let db = local.join(db_of(&local), "db", false).unwrap();
        let bulk = local.join(bulk_of(&local), "bulk", false).unwrap();
        for interval in 1..=60 {
            local.begin(at(interval), sense);
            if sense == Sense::Groups {
                local.count(bucket(40), 2);
            } else if local.wants_pressure() {
                local.stalled(db, Duration::from_millis(80 * interval));
            }
            let read = Counters { read_bytes: interval * 8_192, reads: interval * 2, ..Counters::ZERO };
            local.measure(db, at(interval), read);
            let written = Counters { written_bytes: interval * (160 << 16), writes: interval * 160, ..Counters::ZERO };
            local.measure(bulk, at(interval), written);
            local.tick(at(interval), None);
            assert!(interval > 20 || local.limits(bulk) == Limits::NONE, "not for a moment: {interval}");
        }
        let reads = local.state().reads.unwrap();
        assert_eq!(reads.measured, shown);
        let read_ms = reads.latency_ms.unwrap();
        assert!((read_ms / 40.0 - 1.0).abs() < 0.07, "{read_ms}");
        assert!(local.limits(bulk).wbps.is_some(), "{shown}: {}", local.limits(bulk));
        assert_eq!(local.because().contains("only estimated"), sense == Sense::Statistics, "{}", local.because());
    }
}

/// Checks a device whose reads the kernel completes as those of another one, as on NVMe multipath.
#[test]
fn where_no_read_of_groups_is_timed_the_statistics_count_for_a_mean() {
    for (percentile, shown) in [("\"mean\"", "statistics"), ("99", "groups")] {
        let mut local = local(percentile);
        let db = local.join(db_of(&local), "db", false).unwrap();
        let bulk = local.join(bulk_of(&local), "bulk", false).unwrap();
        for interval in 1..=80 {
            local.begin(at(interval), Sense::Groups);
            let read = Counters { read_bytes: interval * 40_960, reads: interval * 10, ..Counters::ZERO };
            local.measure(db, at(interval), read);
            let written = Counters { written_bytes: interval * (160 << 16), writes: interval * 160, ..Counters::ZERO };
            local.measure(bulk, at(interval), written);
            local.tick(at(interval), Some(device(40)));
            assert!(interval > 20 || local.limits(bulk) == Limits::NONE, "not for a moment: {interval}");
        }
        assert_eq!(local.state().reads.unwrap().measured, shown);
        let is_mean = shown == "statistics";
        assert_eq!((local.limits(bulk).wbps.is_some(), local.is_untimed()), (is_mean, !is_mean), "{percentile}");
        // Single reads count again once they are timed for a while.
        for interval in 81..=112 {
            local.begin(at(interval), Sense::Groups);
            local.count(bucket(2), 10);
            local.tick(at(interval), Some(device(40)));
            let measured = if interval < 111 { shown } else { "groups" };
            assert_eq!(local.state().reads.unwrap().measured, measured, "{percentile}: {interval}");
            assert!(!local.is_untimed(), "{percentile}: {interval}");
        }
    }
}

/// Checks that the signal does not come and go where the reads of one group are timed now and then, and those of another never.
#[test]
fn where_few_reads_of_many_are_timed_the_statistics_go_on_to_count() {
    let mut local = local("\"mean\"");
    let db = local.join(db_of(&local), "db", false).unwrap();
    for interval in 1..=300 {
        local.begin(at(interval), Sense::Groups);
        if interval % 50 == 0 {
            local.count(bucket(2), 1);
        }
        local.measure(db, at(interval), Counters { reads: interval * 10, ..Counters::ZERO });
        local.tick(at(interval), Some(device(5)));
        let shown = if interval < 40 { "groups" } else { "statistics" };
        assert!((30..40).contains(&interval) || local.state().reads.unwrap().measured == shown, "{interval}: {shown}");
    }
}

#[test]
fn a_device_that_completes_nothing_is_not_one_whose_reads_are_not_timed() {
    let mut local = local("99");
    let db = local.join(db_of(&local), "db", false).unwrap();
    let stuck = diskstats::Sample { interval: INTERVAL, in_flight: 9, ..diskstats::Sample::default() };
    assert!(stuck.is_stuck());
    for interval in 1..=100 {
        local.begin(at(interval), Sense::Groups);
        local.measure(db, at(interval), Counters { reads: interval, ..Counters::ZERO });
        local.tick(at(interval), Some(stuck));
        assert!(!local.is_untimed(), "{interval}");
    }
}

#[test]
fn a_group_that_is_measured_in_its_turn_does_not_read_until_the_next_one() {
    let mut local = local("99");
    let db = local.join(db_of(&local), "db", false).unwrap();
    for interval in 1..=200 {
        local.begin(at(interval), Sense::Groups);
        // Two reads between measurements that are 8 s apart, as of thousands of groups.
        if interval % 80 == 1 {
            local.measure(db, at(interval), Counters { reads: interval / 40, ..Counters::ZERO });
        }
        local.tick(at(interval), Some(device(5)));
        assert!(!local.is_untimed(), "{interval}");
    }
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
    assert_eq!(local.state().groups().len(), 1);
}

#[test]
fn another_target_keeps_what_was_learned_and_other_settings_do_not() {
    let mut known = local("\"mean\"");
    run(&mut known, Sense::Statistics, 40, None);
    let mut config = known.config().clone();
    config.latency.as_mut().unwrap().target = Duration::from_millis(12);
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
        let names: Vec<String> = local.state().groups().iter().map(|group| group.tenant.clone()).collect();
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

/// A device with two groups of a tenant with a limit, of which the first one writes as much as it may, up to 100 MB/s.
struct Limited {
    local: Local,
    groups: [ClientId; 2],
    db: ClientId,
    written: f64,
    interval: u64,
}

impl Limited {
    fn new(limit: &str) -> Self {
        Self::of("latency.target = \"10ms\"\n", limit)
    }

    /// The pool has these settings too.
    fn of(settings: &str, limit: &str) -> Self {
        let text = format!(
            "[pools.disk]\ndevices = [\"sda\"]\n{settings}[tenants.db]\nmatch = [\"cgroup:db\"]\n\
             [tenants.bulk]\nmatch = [\"cgroup:bulk-*\"]\nlimit = {limit}\n"
        );
        let config = Config::parse(&text, "test", Abilities { tracepoints: true }).unwrap();
        let mut local = Local::new("disk", &config.local["disk"], INTERVAL).unwrap();
        let bulk = local.config.tenant_of("bulk-1").unwrap();
        let groups = ["bulk-1", "bulk-2"].map(|group| local.join(bulk, group, false).unwrap());
        let db = db_of(&local);
        let db = local.join(db, "db", false).unwrap();
        Self { local, groups, db, written: 0.0, interval: 0 }
    }

    /// Runs so many intervals in which reads take `read_ms`. Returns the smallest limit on bytes that the first group writes.
    fn run(&mut self, intervals: u64, read_ms: u64) -> Option<u64> {
        let mut least = None;
        for _ in 0..intervals {
            self.interval += 1;
            let (now, [first, second]) = (at(self.interval), self.groups);
            let limits = self.local.limits(first);
            self.local.in_force(first, limits);
            self.written += limits.wbps.map_or(1e7, |limit| 1e7_f64.min(limit as f64 / 10.0));
            self.local.begin(now, Sense::Statistics);
            let bytes = self.written as u64;
            let written = Counters { written_bytes: bytes, writes: bytes >> 16, ..Counters::ZERO };
            self.local.measure(first, now, written);
            self.local.measure(second, now, Counters::ZERO);
            let (read_bytes, reads) = (self.interval * 40_960, self.interval * 10);
            self.local.measure(self.db, now, Counters { read_bytes, reads, ..Counters::ZERO });
            self.local.tick(now, Some(device(read_ms)));
            let limit = self.local.limits(first).wbps;
            least = [least, limit].into_iter().flatten().min();
        }
        least
    }
}

#[test]
fn a_tenant_s_limit_is_shared_by_its_groups_and_directions() {
    let mut limited = Limited::new("{ bytes_per_s = \"50MB\" }");
    limited.run(30, 1);
    let limits = limited.groups.map(|group| limited.local.limits(group));
    let sum: u64 = limits.iter().flat_map(Limits::all).flatten().sum();
    assert!(sum <= 50_000_000 && limits[0].wbps.is_some_and(|limit| limit > 45_000_000), "{limits:?}");
    assert!(limits[1].rbps.is_some() && limits[1].riops.is_none(), "{limits:?}");
    assert_eq!(limited.local.limits(limited.db), Limits::NONE, "another tenant's");
    let shown = |limited: &Limited, at: usize| limited.local.state().groups()[at].clone();
    let first = shown(&limited, 0).lately;
    assert!(first.because.contains("limit 50MB/s of tenant bulk"), "{first:?}");
    assert_eq!(first.throttled_by.unwrap().by, "operator", "no delay for the latency target");
    let second = shown(&limited, 1);
    assert!(second.lately.because.is_empty() && second.lately.throttled_by.is_none());
    assert!(second.limits.is_some());
    // A group that another program limits has no part.
    limited.local.is_foreign(limited.groups[0], Limits { wbps: Some(7), ..Limits::NONE });
    assert_eq!(limited.local.limits(limited.groups[0]), Limits::NONE);
    limited.run(20, 1);
    let second = limited.local.limits(limited.groups[1]);
    assert_eq!(second.rbps.zip(second.wbps).map(|(read, write)| (read + write) / 1_000_000), Some(48));
}

#[test]
fn without_a_latency_target_limits_are_kept_and_nothing_else_throttles() {
    let mut limited = Limited::of("", "{ bytes_per_s = \"50MB\" }");
    limited.run(30, 400);
    let least = limited.run(200, 400).unwrap();
    let limits = limited.groups.map(|group| limited.local.limits(group));
    let sum: u64 = limits.iter().flat_map(Limits::all).flatten().sum();
    assert!(sum <= 50_000_000 && least > 40_000_000, "{limits:?} {least}");
    assert!(limits[0].wbps.is_some_and(|limit| limit > 45_000_000), "{limits:?}");
    assert!(!limited.local.is_noisy(limited.groups[0]) && limited.local.records(usize::MAX).next().is_none());
    let state = limited.local.state();
    assert!(state.latency_target.is_none() && state.lately.targets.is_empty());
    assert!(state.reads.unwrap().latency_ms.is_some() && state.lately.because.contains("without a latency target"));
    // A target begins with what the controller has not learned yet; another limit is taken over.
    let with = Limited::new("{ bytes_per_s = \"50MB\" }").local.config;
    assert!(!limited.local.adopt(&with, INTERVAL));
    let newer = Limited::of("", "{ bytes_per_s = \"5MB\" }").local.config;
    assert!(limited.local.adopt(&newer, INTERVAL));
    limited.run(1, 1);
    assert!(limited.local.limits(limited.groups[0]).wbps.is_some_and(|limit| limit <= 5_000_000));
}

#[test]
fn a_throttle_for_the_latency_target_goes_below_the_limit_and_ends_at_it() {
    let mut limited = Limited::new("{ bytes_per_s = \"50MB\" }");
    limited.run(30, 1);
    let least = limited.run(200, 40).unwrap();
    assert!(least < 40_000_000, "{least}");
    limited.run(2_000, 1);
    let limit = limited.local.limits(limited.groups[0]).wbps.unwrap();
    assert!((40_000_000..=50_000_000).contains(&limit), "{limit}");
}

#[test]
fn a_limit_applies_in_its_hours_and_a_newer_one_is_taken_over() {
    let mut limited = Limited::new("{ iops = 400, when = \"22:00-06:00\" }");
    assert!(limited.local.keeps_hours());
    let limits = |limited: &Limited| limited.local.limits(limited.groups[0]);
    limited.local.set_minute(12 * 60);
    limited.run(20, 1);
    assert_eq!(limits(&limited), Limits::NONE);
    limited.local.set_minute(23 * 60);
    limited.run(20, 1);
    assert!(limits(&limited).wiops.is_some_and(|limit| limit <= 400), "{}", limits(&limited));
    let newer = Limited::new("{ bytes_per_s = \"5MB\" }").local.config;
    assert!(limited.local.adopt(&newer, INTERVAL));
    limited.run(1, 1);
    let newer = limits(&limited);
    assert!(newer.wiops.is_none() && newer.wbps.is_some_and(|limit| limit <= 5_000_000), "{newer}");
}

#[test]
fn in_a_cluster_a_part_of_the_limit_applies_and_demand_is_counted() {
    let mut limited = Limited::new("{ bytes_per_s = \"50MB\" }");
    limited.local.share_totals(true);
    limited.run(2, 1);
    let sum = |limited: &Limited| -> u64 {
        limited.groups.iter().flat_map(|group| limited.local.limits(*group).all()).flatten().sum()
    };
    assert!((3_000_000..=3_125_000).contains(&sum(&limited)), "a 16th before a part is known: {}", sum(&limited));
    let demands = limited.local.demands();
    let before = demands["bulk"];
    assert_eq!((demands.len(), before.limit, before.queued), (1, [0, 50_000_000], 1), "{demands:?}");
    let halves = [1.0, 0.5].map(evenkeel_control::units::Fraction::of);
    limited.local.set_part("bulk", halves);
    limited.run(30, 1);
    assert!((20_000_000..=25_000_000).contains(&sum(&limited)), "{}", sum(&limited));
    // It writes as much as it may, and wants more.
    let now = limited.local.demands()["bulk"];
    assert!((40_000_000..=75_000_000).contains(&(now.arrived[1] - before.arrived[1])), "{now:?}");
    assert_eq!(now.arrived[1], limited.written as u64 - 10_000_000, "all but the first interval");
    assert_eq!((now.queued, now.served), (1, now.arrived));
    let shown = limited.local.state().groups()[0].lately.clone();
    assert!(shown.because.contains("and this host has 25"), "{shown:?}");
    limited.local.share_totals(false);
    limited.run(2, 1);
    assert!(sum(&limited) > 45_000_000 && limited.local.demands().is_empty(), "the whole limit");
}

#[test]
fn without_a_part_groups_go_on_and_a_first_request_is_seen_as_demand() {
    use evenkeel_control::units::Fraction;
    const FIRST: u64 = 1 << 20;
    // An interval in which the first group has written so much since the start, and all else rests.
    let rest = |limited: &mut Limited, written: u64| {
        limited.interval += 1;
        let (now, [first, second]) = (at(limited.interval), limited.groups);
        let counters = Counters { written_bytes: written, writes: written.min(1), ..Counters::ZERO };
        limited.local.measure(first, now, counters);
        limited.local.measure(second, now, Counters::ZERO);
        limited.local.tick(now, None);
    };
    let sum = |limited: &Limited| -> u64 {
        limited.groups.iter().flat_map(|group| limited.local.limits(*group).all()).flatten().sum()
    };
    for part in [None, Some(0.0), Some(1e-4)] {
        let mut limited = Limited::new("{ bytes_per_s = \"50MB\" }");
        limited.local.share_totals(true);
        rest(&mut limited, 0);
        let before = limited.local.demands()["bulk"];
        if let Some(part) = part {
            limited.local.set_part("bulk", [Fraction::of(part); 2]);
        }
        (0..20).for_each(|_| rest(&mut limited, 0));
        // The kernel counts the request when it lets it pass.
        let (mut waited, mut passed) = (0, 0);
        while passed < FIRST {
            rest(&mut limited, 0);
            passed += limited.local.limits(limited.groups[0]).wbps.unwrap_or(u64::MAX) / 10;
            waited += 1;
            assert!(waited < 20, "{part:?}: more than 2 s");
        }
        rest(&mut limited, FIRST);
        let demand = limited.local.demands()["bulk"];
        assert_eq!((demand.arrived[1] - before.arrived[1], demand.queued), (FIRST, 1), "{part:?}");
        // From now on a part that is granted applies, however small.
        let is_small = part == Some(1e-4);
        assert_eq!(sum(&limited) <= 5_000, is_small, "{part:?}: {}", sum(&limited));
        (0..40).for_each(|_| rest(&mut limited, FIRST));
        assert!(sum(&limited) > 3_000_000, "{part:?}: {}", sum(&limited));
    }
}
