//! Tests of a store so slow that a report comes back only after the next one was made.

use super::*;

/// Ticks from a report until both hosts have read it: more than a period, and less than a lease.
const DELAY: u64 = 14;

#[test]
fn parts_follow_demand_though_each_report_comes_back_after_the_next_one_was_made() {
    let mut hosts = [Host::new("a", 1), Host::new("b", 2)];
    let mut log: Vec<(u64, usize, Record)> = Vec::new();
    for tick in 1..=200 {
        for (n, host) in hosts.iter_mut().enumerate() {
            host.rate = if (tick <= 100) == (n == 0) { 4_000 } else { 100 };
            host.arrived += host.rate / TICKS;
            if tick % TICKS == 4 * n as u64 {
                let period = tick / TICKS;
                let totals = host.report(tick, period);
                let made = Record { lease: LEASE, ..record(n as u64 + 1, period, totals) };
                log.push((tick + DELAY, n, made));
            }
        }
        for (_, n, record) in log.iter().filter(|(read, ..)| *read == tick) {
            hosts.iter_mut().for_each(|host| host.sharing.heard(at(tick), NAMES[*n], record, false));
        }
        hosts.iter_mut().for_each(|host| host.sharing.keep_time(at(tick)));
        let parts = hosts.each_ref().map(Host::part);
        assert!(parts.iter().sum::<f64>() <= 1.0 + 1e-4, "tick {tick}: {parts:?}");
        if tick % 100 == 0 {
            let busy = parts[usize::from(tick > 100)];
            assert!(busy > 0.7, "tick {tick}: {parts:?}");
        }
    }
    assert!(hosts.iter().all(|host| host.contact() == "shared"));
}

#[test]
fn a_report_that_comes_back_later_than_a_lease_gives_no_part() {
    let mut host = Host::new("a", 1);
    host.rate = 1_000;
    let first = host.report(10, 1);
    host.report(20, 2);
    host.sharing.heard(at(41), "a", &record(1, 1, first), false);
    assert_eq!((host.contact(), host.part() < 1e-6), ("none".to_owned(), true));
}

#[test]
fn a_late_sum_counts_only_for_reports_that_came_back_before_the_sum_before_it() {
    let mut host = Host::new("a", 1);
    let shard = Shard::of("a", 1);
    host.sharing.begin(at(1), shard, &BTreeSet::from(["a"]));
    let report = |host: &mut Host, period: u64| {
        let totals = host.report(10 * period, period);
        host.sharing.heard(at(10 * period + 4), "a", &record(1, period, totals), true);
    };
    // After the next report was made.
    let sum = |host: &mut Host, period: u64| {
        let together = host.sharing.together();
        host.sharing.summed(at(10 * period + 15), shard, period, Some((1, together)));
    };
    report(&mut host, 1);
    report(&mut host, 2);
    // The same sum again is no other one.
    for _ in 0..2 {
        sum(&mut host, 1);
        assert_eq!((host.contact(), host.part() < 1e-6), ("none".to_owned(), true));
    }
    report(&mut host, 3);
    sum(&mut host, 2);
    assert_eq!((host.contact(), host.part()), ("shared".to_owned(), 1.0));
}
