//! Membership of a cluster: the same reports give the same view on every host; hosts that fall silent, get lost or join; hosts
//! whose clocks differ.

use evenkeel_control::cluster::{Config, Fault, Member, Membership, Presence, Report, Status};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const CONFIG: Config = Config::new(Duration::from_secs(1));
/// Number of the period in which most tests begin; a period is one second.
const START: u64 = 1_000;

fn at(period: u64, millis: u64) -> Instant {
    Instant::from_nanos(period * SECOND + millis * 1_000_000)
}

fn report(period: u64, content: u64) -> Report<u64> {
    Report { incarnation: 1, period, joined: START, leaving: false, content }
}

fn membership(own: &str) -> Membership<u64> {
    Membership::new(CONFIG, own, 1).expect("valid")
}

/// The view of `period`: each member's host name, age of its report in periods and content; then the names of expired hosts.
fn seen(members: &Membership<u64>, period: u64) -> (Vec<(String, u64, u64)>, Vec<String>) {
    let view = members.view(period);
    let member = |member: &Member<'_, u64>| (member.host.to_owned(), member.age, member.report.content);
    (view.members.iter().map(member).collect(), view.expired.iter().map(|&host| host.to_owned()).collect())
}

/// Lets all `hosts` report each of `periods` just after its end, and asserts that the period is then decided.
fn all_report(members: &mut Membership<u64>, hosts: &[&str], periods: std::ops::RangeInclusive<u64>) {
    for period in periods {
        for host in hosts {
            members.observe(at(period + 1, 20), host, report(period, period)).expect("taken in");
        }
        assert_eq!(members.poll(at(period + 1, 21)), Some(period));
    }
}

#[test]
fn a_period_is_decided_once_and_when_all_have_reported_it() {
    let mut ours = membership("a");
    all_report(&mut ours, &["a", "b", "c"], START..=START + 1);
    let period = START + 2;
    for host in ["c", "a"] {
        ours.observe(at(period + 1, 20), host, report(period, 7)).expect("taken in");
        assert_eq!(ours.poll(at(period + 1, 20)), None, "b has reported so far and is waited for");
    }
    ours.observe(at(period + 1, 30), "b", report(period, 8)).expect("taken in");
    assert_eq!(ours.poll(at(period + 1, 30)), Some(period));
    assert_eq!(ours.poll(at(period + 1, 31)), None);
    let all = [("a", 7), ("b", 8), ("c", 7)].map(|(host, content)| (host.to_owned(), 0, content));
    assert_eq!(seen(&ours, period), (all.to_vec(), vec![]));
}

#[test]
fn a_suspect_host_counts_by_its_last_report_until_lease_and_safe_time_are_over() {
    let mut ours = membership("a");
    all_report(&mut ours, &["a", "b"], START..=START);
    let first = START + 1;
    ours.observe(at(first + 1, 20), "a", report(first, first)).expect("taken in");
    let deadline = ours.deadline(at(first + 1, 20));
    assert_eq!(deadline, at(first + 2, 500), "a clock a period behind, and half a period on the way");
    assert_eq!(ours.poll(at(first + 2, 499)), None);
    assert_eq!(ours.poll(deadline), Some(first));
    let mut shares = vec![ours.view(first).members.len()];
    for period in first + 1..first + 8 {
        ours.observe(at(period + 1, 600), "a", report(period, period)).expect("taken in");
        assert_eq!(ours.poll(at(period + 1, 600)), Some(period), "a suspect member is not waited for again");
        shares.push(ours.view(period).members.len());
    }
    let until = (CONFIG.lease + CONFIG.safe) as usize;
    assert_eq!(shares[..until], vec![2; until]);
    assert_eq!(shares[until..], vec![1; shares.len() - until]);
    assert_eq!(ours.view(first + 7).expired, ["b"], "it may still use its safe minimum");
}

#[test]
fn a_host_gives_up_before_its_share_is_given_away_whatever_the_skew_and_lease() {
    for (lease, safe) in [(2, 1), (3, 1), (5, 2)] {
        let config = Config { lease, safe, ..CONFIG };
        // Clocks: ours is right, the other host's ahead of it by the most that is allowed, and it hears us for the last time.
        let mut ours = Membership::new(config, "a", 1).expect("valid");
        let mut other = Membership::new(config, "b", 1).expect("valid");
        for host in [&mut ours, &mut other] {
            host.observe(at(START + 1, 0), "a", report(START, 0)).expect("taken in");
        }
        let lost = (0..20_000).step_by(10).find(|&ms| ours.status(at(START + 1, ms)) == Status::Lost);
        let given_away = (0..20).find_map(|n| {
            let period = START + 1 + n;
            // By the clock that is ahead it is over; by ours it is one period earlier.
            other.observe(at(period + 1, 0), "b", report(period, 0)).expect("taken in");
            (other.view(period).members.len() == 1).then_some((period + 1 - START - 1 - 1) * 1_000)
        });
        let (lost, given_away) = (lost.expect("it gives up"), given_away.expect("it is given away"));
        assert!(
            lost < given_away,
            "lease {lease}, safe {safe}: given up after {lost} ms, given away after {given_away} ms"
        );
    }
}

#[test]
fn who_loses_the_cluster_holds_on_then_falls_back_and_comes_back_in_steps() {
    let mut ours = membership("a");
    assert_eq!(ours.status(at(START, 0)), Status::Lost, "nothing heard yet");
    let ramp = |ours: &Membership<u64>, period| match ours.status(at(period + 1, 10)) {
        Status::Shared { ramp } => ramp,
        other => panic!("{other:?}"),
    };
    let mut ramps = Vec::new();
    for period in START..START + 5 {
        ours.observe(at(period + 1, 0), "a", report(period, 0)).expect("taken in");
        ramps.push(ramp(&ours, period));
    }
    assert_eq!((ramps[0], ramps[3], ramps[4]), (0.0, 1.0, 1.0));
    assert!(ramps.is_sorted());
    let last = START + 4;
    let after = |periods| ours.status(at(last + 1 + periods, 10));
    assert_eq!(after(1), Status::Shared { ramp: 1.0 });
    assert_eq!(after(2), Status::Holding { missed: 2 });
    assert_eq!(after(3), Status::Lost);
    let back = Report { joined: last + 9, ..report(last + 9, 0) };
    ours.observe(at(last + 10, 0), "a", back).expect("taken in");
    assert_eq!(ramp(&ours, last + 9), 0.0);
}

#[test]
fn an_ended_lease_frees_a_share_early_and_a_member_that_leaves_at_once() {
    let mut ours = membership("a");
    all_report(&mut ours, &["a", "b", "c"], START..=START + 1);
    let period = START + 2;
    ours.lease_ended("b");
    let leaving = Report { leaving: true, ..report(period, 0) };
    ours.observe(at(period + 1, 0), "c", leaving).expect("taken in");
    let mut members = Vec::new();
    for period in period..period + 3 {
        ours.observe(at(period + 1, 10), "a", report(period, 0)).expect("taken in");
        assert_eq!(ours.poll(at(period + 1, 10)), Some(period), "neither is waited for");
        members.push(seen(&ours, period).0.into_iter().map(|(host, ..)| host).collect::<Vec<_>>());
    }
    assert_eq!(members, [vec!["a", "b"], vec!["a"], vec!["a"]]);
    // It was only the key that was lost.
    ours.observe(at(period + 3, 500), "b", report(period + 2, 0)).expect("taken in");
    assert_eq!(ours.view(period + 2).members.len(), 2);
}

#[test]
fn of_two_processes_with_one_name_the_later_counts() {
    let mut ours = membership("a");
    let of = |incarnation, period| Report { incarnation, ..report(period, incarnation) };
    ours.observe(at(START + 1, 0), "b", of(5, START)).expect("taken in");
    ours.observe(at(START + 1, 0), "b", of(7, START)).expect("a restart");
    assert_eq!(ours.observe(at(START + 2, 0), "b", of(5, START + 1)), Err(Fault::Duplicate { counts: 7 }));
    assert_eq!(seen(&ours, START + 1).0, [("b".to_owned(), 1, 7)]);
    // Another process under our own name does not show that we are heard.
    ours.observe(at(START + 2, 0), "a", of(5, START + 1)).expect("taken in");
    assert_eq!(ours.status(at(START + 2, 0)), Status::Lost);
    // A host whose clock was wrong at its last start is not shut out for ever.
    let later = START + CONFIG.lease + CONFIG.safe + 3;
    ours.observe(at(later + 1, 0), "b", of(5, later)).expect("the other one is long gone");
}

#[test]
fn what_cannot_be_is_reported_and_ignored() {
    let mut ours = Membership::new(Config { max_members: 2, ..CONFIG }, "a", 1).expect("valid");
    let now = at(START, 500);
    assert_eq!(ours.observe(now, "b", report(START + 2, 0)), Err(Fault::Future { ahead: 2 }));
    assert_eq!(ours.observe(now, "b", report(START - 6, 0)), Err(Fault::Late { behind: 6 }));
    ours.observe(now, "b", report(START, 1)).expect("taken in");
    ours.observe(now, "b", report(START, 1)).expect("reported twice");
    assert_eq!(ours.observe(now, "b", report(START, 2)), Err(Fault::Conflict));
    ours.observe(now, "c", report(START, 1)).expect("taken in");
    assert_eq!(ours.observe(now, "d", report(START, 1)), Err(Fault::TooMany { max: 2 }));
    assert_eq!(seen(&ours, START).0, [("b".to_owned(), 0, 1), ("c".to_owned(), 0, 1)]);
    // An expired member is forgotten for it.
    ours.observe(at(START + 8, 0), "c", report(START + 7, 1)).expect("taken in");
    ours.observe(at(START + 8, 0), "d", report(START + 7, 1)).expect("taken in");
    let presence: Vec<_> = ours.known(at(START + 8, 0)).collect();
    assert_eq!(presence, [("c", 1, Presence::Present), ("d", 1, Presence::Present)]);
}

#[test]
fn a_clock_that_is_set_back_does_not_stop_the_cluster() {
    let mut ours = membership("a");
    all_report(&mut ours, &["a"], START..=START + 3);
    let back = START - 500;
    assert_eq!(ours.poll(at(back, 0)), None, "what lies ahead is forgotten");
    assert_eq!(ours.status(at(back, 0)), Status::Lost);
    ours.observe(at(back + 1, 0), "a", Report { joined: back, ..report(back, 0) }).expect("taken in");
    assert_eq!(ours.poll(at(back + 1, 0)), Some(back));
}

#[test]
fn settings_out_of_range_are_named() {
    for (config, setting) in [
        (Config::new(Duration::from_nanos(1)), "period"),
        (Config { lease: 1, ..CONFIG }, "lease"),
        (Config { safe: 0, ..CONFIG }, "safe"),
        (Config { ramp: 0, ..CONFIG }, "ramp"),
        (Config { max_members: 0, ..CONFIG }, "max_members"),
    ] {
        assert_eq!(Membership::<u64>::new(config, "a", 1).expect_err("refused").setting, setting);
    }
}

/// A report on its way to another host.
#[derive(Clone, Debug)]
struct Message {
    /// Index in [`NAMES`] of the host that sent the report.
    host: usize,
    report: Report<u64>,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn message() -> impl Strategy<Value = Message> {
    // Within what is accepted at one moment; content follows from who and when, as it does for honest hosts.
    (0..NAMES.len(), 0u64..6, 0u64..3).prop_map(|(host, offset, incarnation)| {
        let period = START + offset;
        let content = 100 * period + 10 * incarnation + host as u64;
        let leaving = offset == 5 && host % 2 == 0 && incarnation == 1;
        Message { host, report: Report { incarnation, period, joined: START, leaving, content } }
    })
}

proptest! {
    /// The same set of reports gives the same views, in any order and with any number of copies.
    #[test]
    fn order_and_repetition_do_not_matter(
        messages in proptest::collection::vec(message(), 1..60),
        seed: u64,
        own in 0..NAMES.len(),
    ) {
        let now = at(START + 5, 500);
        // One process says one thing about one period.
        let mut set = std::collections::BTreeMap::new();
        for message in messages {
            set.entry((message.host, message.report.incarnation, message.report.period)).or_insert(message);
        }
        let mut shuffled: Vec<&Message> = set.values().chain(set.values()).collect();
        let mut random = SplitMix64::new(seed);
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, random.next_below(i as u64 + 1) as usize);
        }
        let mut in_order = membership("a");
        let mut at_random = membership(NAMES[own]);
        for message in set.values() {
            let _ = in_order.observe(now, NAMES[message.host], message.report.clone());
        }
        for message in shuffled {
            let _ = at_random.observe(now, NAMES[message.host], message.report.clone());
        }
        for period in START..START + 12 {
            prop_assert_eq!(seen(&in_order, period), seen(&at_random, period));
        }
    }

    /// Hosts whose clocks differ by up to a period, and whose reports take up to a third of a period to arrive, decide every
    /// period from the same reports; no host counts as suspect.
    #[test]
    fn clocks_that_are_a_period_apart_do_not_matter(
        skews in proptest::collection::vec(0u64..=1_000, 2..=5),
        seed: u64,
    ) {
        let mut random = SplitMix64::new(seed);
        let periods = START..START + 12;
        // (arrival, to whom, from whom, period), on the scale of the slowest clock in milliseconds. A clock that is
        // ahead by `skew` says a period is over that much earlier.
        let mut arrivals = Vec::new();
        for (from, &skew) in skews.iter().enumerate() {
            for period in periods.clone() {
                for to in 0..skews.len() {
                    let sent = (period + 1) * 1_000 - skew;
                    arrivals.push((sent + random.next_below(334), to, from, period));
                }
            }
        }
        arrivals.sort_unstable();
        let mut hosts: Vec<_> = (0..skews.len()).map(|host| membership(NAMES[host])).collect();
        let mut decided = vec![std::collections::BTreeMap::new(); skews.len()];
        let (first, last) = (START * 1_000, (START + 14) * 1_000);
        let mut next = 0;
        for ms in first..last {
            while let Some(&(_, to, from, period)) = arrivals.get(next).filter(|(arrival, ..)| *arrival <= ms) {
                let now = at(0, ms + skews[to]);
                hosts[to].observe(now, NAMES[from], report(period, period * 10 + from as u64)).expect("taken in");
                next += 1;
            }
            for (host, members) in hosts.iter_mut().enumerate() {
                let now = at(0, ms + skews[host]);
                while let Some(period) = members.poll(now) {
                    let again = decided[host].insert(period, seen(members, period));
                    prop_assert!(again.is_none(), "period {} was decided twice", period);
                }
            }
        }
        // While they find each other, hosts may know of each other at different times.
        for period in periods.skip(3) {
            for host in &decided {
                let (members, expired) = &host[&period];
                prop_assert_eq!(members.len(), skews.len());
                prop_assert!(members.iter().all(|(_, age, _)| *age == 0));
                prop_assert!(expired.is_empty());
                prop_assert_eq!(host.get(&period), decided[0].get(&period));
            }
        }
    }

    /// Under any reports and clocks at most `max_members` hosts are known, one moment decides no period twice, and the next
    /// deadline lies in the future.
    #[test]
    fn anything_may_come_in(events in proptest::collection::vec((0u64..40, 0usize..5, 0u64..4, 0u64..50, 0u8..20), 0..300)) {
        let mut ours = Membership::new(Config { max_members: 3, ..CONFIG }, "a", 1).expect("valid");
        for (clock, host, incarnation, period, what) in events {
            let now = at(START + clock, 700);
            match what {
                0 => ours.lease_ended(NAMES[host]),
                1..4 => {
                    let mut seen = std::collections::BTreeSet::new();
                    while let Some(period) = ours.poll(now) {
                        prop_assert!(seen.insert(period));
                        prop_assert!(ours.view(period).members.len() <= 3);
                    }
                    prop_assert!(ours.deadline(now) > now);
                }
                _ => {
                    let report = Report { incarnation, leaving: what == 5, ..report(START + period, u64::from(what)) };
                    let _ = ours.observe(now, NAMES[host], report);
                }
            }
            prop_assert!(ours.known(now).count() <= 3);
        }
    }
}
