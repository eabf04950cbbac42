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
fn a_late_sum_counts_for_the_reports_that_are_in_it() {
    let mut host = Host::new("a", 1);
    let shard = Shard::of("a", 1);
    host.sharing.begin(at(1), shard, &BTreeSet::from(["a"]));
    // Both are back before the first sum.
    for period in [1, 2] {
        let totals = host.report(10 * period, period);
        host.sharing.note_revision(10 * period);
        host.sharing.heard(at(10 * period + 4), "a", &record(1, period, totals), true);
    }
    let together = host.sharing.together();
    let mut sum = |revision: u64| {
        host.sharing.summed(at(25), shard, revision, Some((1, together.clone())));
        (host.contact(), host.part())
    };
    let (contact, part) = sum(9);
    assert!(contact == "none" && part < 1e-6, "{contact}: {part}");
    assert_eq!(sum(10), ("shared".to_owned(), 1.0), "the first report is in it");
}

#[test]
fn a_part_waits_for_the_reports_that_are_in_sums_of_smaller_shards_within() {
    let mut host = Host::new("a", 1);
    let (shard, half) = (Shard::of("a", 1), Shard::of("a", 2));
    host.sharing.begin(at(1), shard, &BTreeSet::from(["a"]));
    let totals = host.report(10, 1);
    host.sharing.note_revision(7);
    host.sharing.heard(at(11), "a", &record(1, 1, totals.clone()), true);
    host.sharing.summed(at(12), half, 9, Some((1, totals.clone())));
    let sum = |host: &mut Host| {
        host.sharing.summed(at(13), shard, 7, Some((1, totals.clone())));
        host.contact()
    };
    assert_eq!(sum(&mut host), "none");
    let other = (b'b'..=b'z').map(|letter| char::from(letter).to_string()).find(|name| half.holds(name));
    host.sharing.note_revision(9);
    host.sharing.heard(at(14), &other.expect("a host of the smaller shard"), &record(2, 1, Totals::new()), true);
    assert_eq!(sum(&mut host), "shared");
}

#[test]
fn a_report_that_is_read_after_the_sum_that_has_it_counts() {
    let mut host = Host::new("a", 1);
    let shard = Shard::of("a", 1);
    host.sharing.begin(at(1), shard, &BTreeSet::from(["a"]));
    let totals = host.report(10, 1);
    host.sharing.summed(at(12), shard, 7, Some((1, totals.clone())));
    assert_eq!(host.contact(), "none");
    host.sharing.note_revision(7);
    host.sharing.heard(at(13), "a", &record(1, 1, totals), true);
    assert_eq!((host.contact(), host.part()), ("shared".to_owned(), 1.0));
}
