use evenkeel_policy::units::Bytes;

use super::*;
use crate::config::{Abilities, Config};

fn guarantees(text: &str) -> Guarantees {
    let text = format!("[pools.pool]\ndevices = [\"dm-0\"]\ntuning.guarantee.interval = \"1s\"\n{text}");
    let config = Config::parse(&text, "test", Abilities { tracepoints: false }).unwrap();
    Guarantees::new("pool", &config.cached["pool"]).unwrap()
}

const ONE: &str =
    "[tenants.db]\nmatch = [\"cgroup:db\"]\nguarantee.read = { bytes_per_s = \"20MB\", ceiling = \"30MB\" }\n";

fn at(second: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(second)
}

fn usage(read: u64, missed: u64) -> Usage {
    let bytes = |read_bytes| Counters { read_bytes, reads: read_bytes / 65_536, ..Counters::ZERO };
    Usage { cached: bytes(read), slow: bytes(missed) }
}

fn found(tenant: TenantId, usage: Usage, limit: Option<u64>) -> Found {
    Found { tenant, usage: Some(usage), limits: Some(Limits { rbps: limit, ..Limits::NONE }) }
}

/// Runs a tenant that moves bytes at nine tenths of its limit in each second; returns its limit in the last second, in bytes
/// per second.
fn run(guarantees: &mut Guarantees, tenant: TenantId, seconds: std::ops::Range<u64>) -> u64 {
    let mut total = 0;
    for second in seconds {
        let limit = guarantees.limits().find(|(id, _)| *id == tenant).unwrap().1.rbps;
        total += limit.unwrap() * 9 / 10;
        guarantees.tick(at(second), None, &[found(tenant, usage(total, total / 10), limit)]);
    }
    guarantees.limits().next().unwrap().1.rbps.unwrap()
}

#[test]
fn the_limit_begins_at_the_guarantee_and_rises_with_what_is_missing() {
    let mut guarantees = guarantees(ONE);
    let tenant = guarantees.join("db", "db").unwrap().unwrap();
    assert_eq!(guarantees.limits().collect::<Vec<_>>(), [(tenant, Limits { rbps: Some(20_000_000), ..Limits::NONE })]);
    let limit = run(&mut guarantees, tenant, 0..30);
    assert!((21_500_000..=24_000_000).contains(&limit), "20 MB/s need a limit of 22.2: {limit}");
    let state = guarantees.state().groups.remove(0);
    let read = state.read.unwrap();
    assert!((read.measured_per_s.unwrap() / 20e6 - 1.0).abs() < 0.05, "{read:?}");
    assert!((read.miss_rate.unwrap() - 0.1).abs() < 1e-3 && read.guaranteed_per_s == 20_000_000, "{read:?}");
    assert_eq!((read.unit.as_str(), Some(state.lately.bytes_per_s)), ("bytes", read.measured_per_s));
    assert_eq!((state.lately.targets[0].what.as_str(), state.lately.window_s), ("20.0 MB/s read", 1.0));
    assert_eq!((state.write, state.foreign_limit), (None, None));
}

#[test]
fn a_ceiling_is_never_exceeded() {
    let mut guarantees = guarantees(ONE);
    let tenant = guarantees.join("db", "db").unwrap().unwrap();
    for second in 0..60 {
        let limit = guarantees.limits().next().unwrap().1.rbps;
        guarantees.tick(at(second), None, &[found(tenant, usage(second * 9_000_000, second * 8_000_000), limit)]);
        assert!(guarantees.limits().all(|(_, limits)| limits.rbps.unwrap() <= 30_000_000));
    }
    assert_eq!(guarantees.config().tenants["db"].read.ceiling, Some(Bytes(30_000_000)));
}

#[test]
fn requests_become_limits_on_requests() {
    let mut guarantees =
        guarantees("[tenants.a]\nmatch = [\"cgroup:a\"]\nguarantee = { read.iops = 100, write.iops = 50 }\n");
    let tenant = guarantees.join("a", "a").unwrap().unwrap();
    guarantees.tick(at(0), None, &[]);
    let expected = Limits { riops: Some(100), wiops: Some(50), ..Limits::NONE };
    assert_eq!(guarantees.limits().collect::<Vec<_>>(), [(tenant, expected)]);
    assert!(guarantees.join("nobody", "b").unwrap().is_none());
}

#[test]
fn the_same_reason_is_one_record_and_another_one_a_new_one() {
    let mut guarantees = guarantees(ONE);
    let tenant = guarantees.join("db", "db").unwrap().unwrap();
    run(&mut guarantees, tenant, 0..20);
    let before = guarantees.records().count();
    assert!(before < 10, "{before} records of 20 periods");
    // Counters that began anew.
    let limit = guarantees.limits().next().unwrap().1.rbps;
    guarantees.tick(at(20), None, &[found(tenant, usage(0, 0), limit)]);
    let newest = guarantees.records().last().unwrap();
    assert_eq!((newest.reason.as_str(), newest.times, newest.until_s), ("counters_reset", 1, 20.0));
    guarantees.tick(at(21), None, &[found(tenant, usage(0, 0), limit)]);
    let newest = guarantees.records().last().unwrap();
    assert_eq!((newest.reason.as_str(), newest.pool.as_str(), newest.of.as_str()), ("idle", "pool", "db read"));
    assert!(newest.because.contains("asked for nothing"), "{}", newest.because);
    let times: u64 = guarantees.records().map(|record| record.times).sum();
    assert_eq!(times, 22, "every decision is in one record");
}

#[test]
fn a_group_that_cannot_be_read_has_what_was_guaranteed() {
    let mut guarantees = guarantees(ONE);
    let tenant = guarantees.join("db", "db").unwrap().unwrap();
    let other = guarantees.join("db", "db-2").unwrap().unwrap();
    let raised = run(&mut guarantees, tenant, 0..30);
    assert!(raised > 21_000_000, "{raised}");
    let mut tick = |second: u64, usage_of: Option<Usage>| {
        let unread = Found { tenant, usage: usage_of, limits: None };
        guarantees.tick(at(second), None, &[unread, found(other, usage(second, 0), None)]);
        let read = guarantees.tenants[0].as_ref().unwrap().read.unwrap();
        (read.limit.value() > 21_000_000, read.reason.name())
    };
    assert!(tick(34, None).0, "not yet");
    assert_eq!(tick(35, None), (false, "signal_lost"));
    assert_ne!(tick(36, Some(usage(1 << 40, 1 << 37))).1, "signal_lost");
}

#[test]
fn records_are_bounded_and_go_on_after_the_oldest_are_gone() {
    let mut guarantees = guarantees(ONE);
    let tenant = guarantees.join("db", "db").unwrap().unwrap();
    let mut total = 0;
    for second in 0..3 * MAX_RECORDS as u64 {
        // In turn nothing and something, so that each reason is new.
        total += second % 2 * 19_000_000;
        let limit = guarantees.limits().next().unwrap().1.rbps;
        guarantees.tick(at(second), None, &[found(tenant, usage(total, total / 9), limit)]);
    }
    assert_eq!(guarantees.records().count(), MAX_RECORDS);
    assert!(guarantees.records().all(|record| record.times == 1));
}

#[test]
fn a_tenant_with_limits_of_another_program_is_left_alone() {
    let mut guarantees = guarantees(ONE);
    let tenant = guarantees.join("db", "db").unwrap().unwrap();
    let other = guarantees.join("db", "db-2").unwrap().unwrap();
    guarantees.is_foreign(tenant, Limits { rbps: Some(7), ..Limits::NONE });
    assert!(guarantees.limits().map(|(id, _)| id).eq([other]));
    let states = guarantees.state().groups;
    assert_eq!(states[0].foreign_limit.as_deref(), Some("rbps=7 wbps=max riops=max wiops=max"));
    guarantees.leave(other);
    assert_eq!((guarantees.limits().count(), guarantees.state().groups.len()), (0, 1));
    assert_eq!(guarantees.join("db", "db-3").unwrap(), Some(other), "its number is given anew");
    assert_eq!(guarantees.limits().count(), 1);
}

#[test]
fn no_limit_is_less_than_kernels_take() {
    let text = "[tenants.db]\nmatch = [\"cgroup:db\"]\nguarantee.read = { iops = 1 }\n";
    let mut guarantees = guarantees(text);
    let tenant = guarantees.join("db", "db").unwrap().unwrap();
    for second in 0..5 {
        let limit = guarantees.limits().next().unwrap().1.riops;
        assert!(limit >= Some(2), "{limit:?}");
        let limits = Some(Limits { riops: limit, ..Limits::NONE });
        guarantees.tick(at(second), None, &[Found { tenant, usage: Some(Usage::default()), limits }]);
    }
}

/// Checks precedence: the limit that enforces other groups' guarantees never goes below the group's reservation, whatever the
/// units of limit and reservation.
#[test]
fn no_limit_takes_a_reservation() {
    // Requests of 64 KiB: 640 of them are 41.9 MB.
    for (reservation, least) in [("bytes_per_s = \"45MB\"", 45_000_000), ("iops = 640", 41_943_040), ("iops = 1", 0)] {
        let mut guarantees = guarantees(&format!("{ONE}reservation = {{ {reservation} }}\n"));
        let tenant = guarantees.join("db", "db").unwrap().unwrap();
        let limit = run(&mut guarantees, tenant, 0..10);
        assert!(limit >= least && limit <= least.max(24_000_000) * 101 / 100, "{reservation}: {limit}");
        let reason = guarantees.tenants[0].as_ref().unwrap().read.unwrap().reason;
        assert_ne!(reason.name(), "other_limit", "{reservation}: it is the agent's own");
    }
}

#[test]
fn in_a_cluster_a_part_of_the_guarantee_is_kept_and_demand_is_counted() {
    let mut guarantees = guarantees(ONE);
    let tenant = guarantees.join("db", "db").unwrap().unwrap();
    guarantees.share_totals(true);
    let limit = |guarantees: &Guarantees| guarantees.limits().next().unwrap().1.rbps.unwrap();
    guarantees.tick(at(0), None, &[found(tenant, usage(0, 0), None)]);
    assert_eq!(limit(&guarantees), 1_250_000, "a 16th before a part is known");
    let before = guarantees.demands()["read db"];
    assert_eq!((before.limit, before.arrived, before.queued), ([0, 20_000_000], [0, 0], 0));
    guarantees.set_part("read db", [1.0, 0.5].map(Fraction::of));
    // It moves nine tenths of what it may, and wants more.
    let raised = run(&mut guarantees, tenant, 1..31);
    assert!((10_500_000..=12_500_000).contains(&raised), "10 MB/s need a limit of 11.1: {raised}");
    let demand = guarantees.demands()["read db"];
    assert_eq!((demand.queued, demand.served, demand.limit), (1, demand.arrived, [0, 20_000_000]));
    assert!((250_000_000..=320_000_000).contains(&demand.arrived[1]), "{demand:?}");
    let read = guarantees.state().groups.remove(0).read.unwrap();
    assert_eq!((read.guaranteed_per_s, read.total_per_s), (10_000_000, Some(20_000_000)));
    let part = "this total holds for all hosts of the cluster together, and this host has 10";
    assert!(read.because.contains(part), "{}", read.because);
    assert!(guarantees.records().last().unwrap().because.contains(part));
    // Less applies from the next decision on, and the ceiling with it.
    guarantees.set_part("read db", [Fraction::of(0.1); 2]);
    let moved = demand.arrived[1];
    guarantees.tick(at(31), None, &[found(tenant, usage(moved + 9_000_000, moved / 10), Some(raised))]);
    assert!(limit(&guarantees) <= 3_000_000, "{}", limit(&guarantees));
    guarantees.share_totals(false);
    let now = Some(limit(&guarantees));
    guarantees.tick(at(32), None, &[found(tenant, usage(moved + 11_000_000, moved / 10), now)]);
    let read = guarantees.state().groups.remove(0).read.unwrap();
    let whole = (read.guaranteed_per_s, read.total_per_s, guarantees.demands().len());
    assert_eq!(whole, (20_000_000, None, 0), "the whole guarantee");
}

#[test]
fn in_a_cluster_groups_of_a_tenant_share_this_hosts_part() {
    let policy = "[tenants.db]\nmatch = [\"cgroup:db-*\"]\nguarantee.read = { bytes_per_s = \"20MB\" }\n";
    for (each, names) in [("", vec!["read db"]), ("each = true\n", vec!["read db/db-1", "read db/db-2"])] {
        let mut guarantees = guarantees(&format!("{policy}{each}"));
        guarantees.share_totals(true);
        let groups = ["db-1", "db-2"].map(|group| guarantees.join("db", group).unwrap().unwrap());
        let mut moved = [0, 0];
        for second in 0..40 {
            let limits: Vec<_> = guarantees.limits().map(|(_, limits)| limits.rbps).collect();
            let found: Vec<_> = (0..2).map(|n| found(groups[n], usage(moved[n], 0), limits[n])).collect();
            guarantees.tick(at(second), None, &found);
            if second == 0 {
                assert_eq!(guarantees.demands().into_keys().collect::<Vec<_>>(), names);
                names.iter().for_each(|name| guarantees.set_part(name, [Fraction::of(0.5); 2]));
            }
            // The first one uses all that it may, and the other one nothing.
            moved[0] += guarantees.limits().next().unwrap().1.rbps.unwrap();
        }
        let states = guarantees.state().groups;
        let parts: Vec<u64> = states.iter().map(|group| group.read.as_ref().unwrap().guaranteed_per_s).collect();
        if each.is_empty() {
            assert!((9_000_000..10_000_000).contains(&parts[0]), "{parts:?}");
            assert_eq!(parts[1], 262_144, "its first request does not wait long");
        } else {
            assert_eq!(parts[0], 10_000_000, "a total of its own");
        }
    }
}
