//! Tests of hosts whose clocks differ by minutes.

use std::collections::BTreeMap;

use evenkeel_control::cluster::totals::{Line, Sums};

use super::*;

/// A host in a cluster with periods of a second, with the parts that it gets and the state that it shows.
fn host() -> (Driver<Server>, Arc<Mutex<Parts>>, Arc<Mutex<ClusterState>>) {
    let (parts, state) = (Arc::<Mutex<Parts>>::default(), Arc::<Mutex<ClusterState>>::default());
    let etcd = vec!["http://127.0.0.1:1".parse().expect("an address")];
    let cluster = config::Cluster { etcd, period: Time::from_secs(1), ..config::Cluster::default() };
    let settings = Settings { cluster, host: "b".into(), incarnation: 1, clock, kept: None, may_rename: true };
    let driver = Driver::new(settings, Server(Arc::clone(&parts)), Arc::clone(&state)).expect("good settings");
    (driver, parts, state)
}

/// Takes in a sum of `shard` about this period.
fn summed(driver: &mut Driver<Server>, shard: Shard, period: u64, members: u64, totals: Totals) {
    let contribution = Contribution { bits: shard.bits(), members, content: Pools::new() };
    let record = driver.record(period, 0, false, contribution, totals);
    let value = text(&record).expect("few pools").into_bytes();
    driver.take_in(Event::Summed { shard: shard.to_string(), value, written: 1 });
}

#[test]
fn claims_of_other_shards_count_however_far_the_clock_is_off() {
    let own = Shard::of("b", 1);
    let other: Shard = if own.to_string() == "1-000" { "1-001" } else { "1-000" }.parse().expect("a shard");
    // This host's clock says that it is period 1,000.
    for period in [800, 995, 1_000, 1_005, 1_200] {
        let (mut driver, parts, _) = host();
        let (endpoint, all, sums) = ("etcd".into(), Vec::new(), Vec::new());
        driver.take_in(Event::Watching { endpoint, shard: own, all, sums });
        report(&mut driver, 1);
        let lines = Line { need: 0.75, throttled: 0.75, claim: 0.75, safe: 0.25, ..Line::default() };
        let sums = [Sums { members: 3, lines, reserved: 0.0 }, Sums::default()];
        let claims = Totals::from([("main".into(), BTreeMap::from([("db".into(), sums)]))]);
        // A member whose clock is off adds up the claims of all, and knows itself only.
        summed(&mut driver, other, period, 1, claims);
        let together = driver.totals.together();
        summed(&mut driver, own, 1_000, 1, together);
        driver.divide(false);
        let part = lock(&parts).get(&key()).map_or(0, |part| part.limit[0].of_rate(1_000_000));
        assert!((240_000..=250_010).contains(&part), "period {period}: {part}");
    }
}

#[test]
fn a_sum_of_this_hosts_shard_counts_however_far_the_clock_of_its_publisher_is_off() {
    let own = Shard::of("b", 1);
    // This host's clock says that it is period 1,000.
    for period in [700, 997, 1_003, 1_300] {
        let (mut driver, parts, _) = host();
        driver.take_in(Event::At { revision: 5 });
        let (endpoint, all, sums) = ("etcd".into(), Vec::new(), Vec::new());
        driver.take_in(Event::Watching { endpoint, shard: own, all, sums });
        driver.take_in(Event::At { revision: 7 });
        report(&mut driver, 1);
        // One that has reports of after it was written is from before the store was restored.
        for (revision, written, is_in) in [(6, 8, false), (1_000, 9, false), (7, 10, true)] {
            let contribution = Contribution { bits: own.bits(), members: 1, content: Pools::new() };
            let record = driver.record(period, 0, false, contribution, driver.totals.together());
            let value = text(&Record { revision, ..record }).expect("few pools").into_bytes();
            driver.take_in(Event::Summed { shard: own.to_string(), value, written });
            driver.divide(false);
            let part = lock(&parts).get(&key()).map_or(0, |part| part.limit[0].of_rate(1_000_000));
            assert_eq!(part > 900_000, is_in, "period {period}, revision {revision}: {part}");
        }
    }
}

#[test]
fn a_host_that_leaves_does_not_end_a_shard_with_members_whose_clocks_are_far() {
    let (mut driver, _, _) = host();
    let own = Shard::of("b", 1);
    let (endpoint, all, sums) = ("etcd".into(), Vec::new(), Vec::new());
    driver.take_in(Event::Watching { endpoint, shard: own, all, sums });
    let last = || {
        let contribution = Contribution { bits: own.bits(), members: 1, content: Pools::new() };
        Sum { shard: own, period: 1_000, leaving: true, contribution }
    };
    assert!(driver.sum(last()).is_some());
    let names = (b'c'..=b'z').map(|letter| char::from(letter).to_string());
    let host = names.into_iter().find(|name| own.holds(name)).expect("a host of the shard");
    let value = value(&driver, 1_300);
    driver.take_in(Event::Reported { host: host.clone(), value });
    assert!(driver.sum(last()).is_none());
    driver.take_in(Event::Ended { host });
    assert!(driver.sum(last()).is_some());
}

#[test]
fn an_old_sum_that_a_watch_finds_delays_parts_unless_it_is_the_last_one_of_its_shard() {
    let own = Shard::of("b", 1);
    let other: Shard = if own.to_string() == "1-000" { "1-001" } else { "1-000" }.parse().expect("a shard");
    for leaving in [false, true] {
        let (mut driver, parts, _) = host();
        let contribution = Contribution { bits: other.bits(), members: 1, content: Pools::new() };
        let old = text(&driver.record(700, 0, leaving, contribution, Totals::new())).expect("few pools").into_bytes();
        let (endpoint, all, sums) = ("etcd".into(), Vec::new(), vec![(other.to_string(), old, 1)]);
        driver.take_in(Event::Watching { endpoint, shard: own, all, sums });
        report(&mut driver, 1);
        let together = driver.totals.together();
        summed(&mut driver, own, 1_000, 1, together);
        driver.divide(false);
        let part = lock(&parts).get(&key()).map_or(0, |part| part.limit[0].of_rate(1_000_000));
        assert_eq!(part > 900_000, leaving, "{part}");
    }
}

#[test]
fn a_host_that_divides_further_does_not_end_its_shard_of_members_whose_clocks_are_far() {
    let (own, half) = (Shard::of("b", 1), Shard::of("b", 2));
    let names = (b'c'..=b'z').map(|letter| char::from(letter).to_string());
    let host_left = names.into_iter().find(|name| own.holds(name) && !half.holds(name)).expect("a host of the shard");
    for is_far in [false, true] {
        let (mut driver, _, _) = host();
        let watch = |driver: &mut Driver<Server>, shard: Shard| {
            let (endpoint, all, sums) = ("etcd".into(), Vec::new(), Vec::new());
            driver.take_in(Event::Watching { endpoint, shard, all, sums });
        };
        watch(&mut driver, own);
        summed(&mut driver, own, 999, 1, Totals::new());
        if is_far {
            let value = value(&driver, 1_300);
            driver.take_in(Event::Reported { host: host_left.clone(), value });
        }
        watch(&mut driver, half);
        let last = driver.cluster.to_publish(clock());
        assert_eq!(last.is_some_and(|last| last.leaving && last.shard == own), !is_far);
    }
}

#[test]
fn a_host_whose_clock_is_far_from_most_others_decides_its_slots_alone() {
    let (mut driver, _, state) = host();
    let (endpoint, all, sums) = ("etcd".into(), Vec::new(), Vec::new());
    driver.take_in(Event::Watching { endpoint, shard: Shard::WHOLE, all, sums });
    report(&mut driver, 1);
    let mut shown = |of: &str, period: Option<u64>| {
        let event = match period {
            Some(period) => {
                let contribution = Contribution { bits: 0, members: 1, content: Pools::new() };
                let record = driver.record(period, 0, false, contribution, Totals::new());
                Event::Reported { host: of.to_owned(), value: text(&record).expect("few pools").into_bytes() }
            }
            None => Event::Ended { host: of.to_owned() },
        };
        driver.take_in(event);
        driver.decide(clock());
        driver.publish_state(clock());
        let state = lock(&state).clone();
        assert_eq!(state.status == "lost", state.error.is_some_and(|error| error.contains("NTP")), "{}", state.because);
        state.status
    };
    assert_eq!(shown("c", Some(1_000)), "shared");
    assert_eq!(shown("d", Some(800)), "shared", "the clock of one of two is near");
    assert_eq!(shown("e", Some(1_200)), "lost");
    assert_eq!(shown("e", Some(1_000)), "shared", "its clock is right now");
    assert_eq!(shown("c", Some(800)), "lost");
    assert_eq!(shown("c", None), "shared", "it has gone");
    assert_eq!(shown("d", None), "shared");
}

/// A value with a report about this period.
fn value(driver: &Driver<Server>, period: u64) -> Vec<u8> {
    let contribution = Contribution { bits: 0, members: 1, content: Pools::new() };
    text(&driver.record(period, 0, false, contribution, Totals::new())).expect("few pools").into_bytes()
}

/// The status, and whether the error names the clocks.
fn shown(driver: &mut Driver<Server>, state: &Mutex<ClusterState>) -> (String, bool) {
    driver.decide(clock());
    driver.publish_state(clock());
    let state = lock(state).clone();
    (state.status, state.error.is_some_and(|error| error.contains("NTP")))
}

/// A watch begins, with this report of host c.
fn watching(driver: &mut Driver<Server>, period: Option<u64>) {
    let all = period.map(|period| ("c".to_owned(), value(driver, period))).into_iter().collect();
    driver.take_in(Event::Watching { endpoint: "etcd".into(), shard: Shard::WHOLE, all, sums: Vec::new() });
}

#[test]
fn old_reports_that_a_new_watch_finds_say_nothing_of_clocks() {
    let (mut driver, _, state) = host();
    watching(&mut driver, Some(800));
    report(&mut driver, 1);
    assert_eq!(shown(&mut driver, &state), ("shared".to_owned(), false), "c may have died");
    let late = value(&driver, 800);
    driver.take_in(Event::Reported { host: "c".into(), value: late });
    assert_eq!(shown(&mut driver, &state), ("lost".to_owned(), true));
    watching(&mut driver, Some(800));
    assert_eq!(shown(&mut driver, &state), ("lost".to_owned(), true), "known before");
    watching(&mut driver, None);
    assert_eq!(shown(&mut driver, &state), ("shared".to_owned(), false), "c is gone");
    watching(&mut driver, Some(1_200));
    assert_eq!(shown(&mut driver, &state), ("lost".to_owned(), true), "no old report is about the future");
}

#[test]
fn a_host_whose_own_reports_are_not_back_says_nothing_of_clocks() {
    let (mut driver, _, state) = host();
    watching(&mut driver, None);
    let late = value(&driver, 800);
    driver.take_in(Event::Reported { host: "c".into(), value: late });
    assert_eq!(shown(&mut driver, &state), ("lost".to_owned(), false));
    report(&mut driver, 1);
    assert_eq!(shown(&mut driver, &state), ("lost".to_owned(), true));
}

#[test]
fn any_number_of_hosts_with_far_clocks_takes_little_memory() {
    let (mut driver, _, _) = host();
    watching(&mut driver, None);
    let late = value(&driver, 800);
    for n in 0..2 * FAR_CLOCKS {
        driver.take_in(Event::Reported { host: format!("h{n}"), value: late.clone() });
    }
    assert_eq!(driver.far_clocks.len(), FAR_CLOCKS);
}
