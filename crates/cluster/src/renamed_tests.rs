//! Tests of a host whose name another running process has.

use evenkeel_control::cluster::View;
use evenkeel_control::pool::Demand;
use evenkeel_policy::config;
use evenkeel_policy::units::Duration as Time;

use super::*;

#[path = "clock_tests.rs"]
mod clocks;

/// A quarter of a period after the period has begun.
fn clock() -> Instant {
    Instant::from_nanos(1_000_250_000_000)
}

fn key() -> Key {
    ("main".into(), "db".into())
}

/// A participant with one tenant, and the parts that it was given.
struct Server(Arc<Mutex<Parts>>);

impl Participant for Server {
    fn report(&mut self) -> Pools {
        Pools::new()
    }

    fn decide(&mut self, _: &View<'_, Contribution<Pools>>, _: f64) {}

    fn alone(&mut self) {}

    fn demands(&mut self) -> Demands {
        // It has served a million requests so far, and no more come.
        let (arrived, served) = ([1_000_000, 0], [1_000_000, 0]);
        Demands::from([(key(), Demand { limit: [1_000, 0], arrived, served, ..Demand::default() })])
    }

    fn divide(&mut self, parts: &Parts) {
        lock(&self.0).extend(parts.iter().map(|(key, part)| (key.clone(), *part)));
    }
}

/// The report after `periods` periods comes back at once. Returns its need.
fn report(driver: &mut Driver<Server>, periods: u64) -> f64 {
    let now = clock() + Duration::from_nanos(periods * driver.cluster.config().period.as_nanos());
    let outgoing = driver.report(now).expect("a report");
    let host = driver.settings.host.clone();
    let value = outgoing.text.into_bytes();
    let (pool, tenant) = key();
    let need = Record::parse(&value).expect("a record").totals[&pool][&tenant][0].lines.need;
    driver.take_in(Event::Reported { host, value });
    driver.divide(false);
    need
}

#[test]
fn a_host_whose_name_another_running_process_has_becomes_a_member_of_its_own() {
    let (parts, state) = (Arc::<Mutex<Parts>>::default(), Arc::<Mutex<ClusterState>>::default());
    let etcd = vec!["http://127.0.0.1:1".parse().expect("an address")];
    let cluster = config::Cluster { etcd, period: Time::from_secs(1), ..config::Cluster::default() };
    let (host, incarnation) = ("b".into(), 0x1_2345_6789);
    let settings = Settings { cluster, host, incarnation, clock, kept: None, may_rename: true };
    let mut driver = Driver::new(settings, Server(Arc::clone(&parts)), Arc::clone(&state)).expect("good settings");
    let part = || lock(&parts).get(&key()).copied().unwrap_or_else(totals::least).limit[0];
    let nothing = totals::least().limit[0];
    for periods in 1..4 {
        report(&mut driver, periods);
    }
    assert!(part() > nothing, "its reports came back");

    driver.faults.note(clock(), "c", "corrupt", "is of no use");
    driver.access.traffic.sent.store(7, Ordering::Relaxed);
    driver.take_in(Event::Rival);
    assert!(driver.has_rival);
    let mut driver = driver.renamed().expect("good settings");
    assert!(part() == nothing, "the others keep nothing free for another name");
    assert_eq!((driver.settings.host.as_str(), driver.has_rival), ("b-23456789", false));
    driver.publish_state(clock());
    let shown = lock(&state).clone();
    assert_eq!(shown.host, "b-23456789");
    assert_eq!((shown.ignored_total.get("corrupt"), shown.sent_bytes_total), (Some(&1), 7), "counters go on");
    assert!(shown.because.contains("another running process is host \"b\""), "{}", shown.because);
    assert!(shown.because.contains("cluster.host"), "{}", shown.because);
    let need = report(&mut driver, 4);
    assert!(need < 1.0, "requests under the old name are no demand: {need}");
    for periods in 5..7 {
        report(&mut driver, periods);
    }
    assert!(part() > nothing, "it is a member");

    // However often that happens, the name stays short.
    let driver = driver.renamed().expect("good settings");
    assert_eq!((driver.settings.host.as_str(), driver.taken.as_deref()), ("b-23456789", Some("b")));
    let long = driver.settings.renamed(&"x".repeat(64)).host;
    assert!(evenkeel_policy::is_name(&long) && long.ends_with("x-23456789"), "{long}");
}
