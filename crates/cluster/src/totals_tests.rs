//! Tests of the shares of several hosts whose reports go through a store with one order, with delays and faults.

use std::ops::RangeInclusive;

use evenkeel_control::rng::SplitMix64;
use evenkeel_policy::cluster::{Header, Pools, READS, VERSION};

use super::*;

#[path = "apart_tests.rs"]
mod apart;
#[path = "restored_tests.rs"]
mod restored;
#[path = "silence_tests.rs"]
mod silence;
#[path = "slow_tests.rs"]
mod slow;
#[path = "versions_tests.rs"]
mod versions;

/// Limit of the tenant, in IOPS.
const LIMIT: u64 = 3_000;
/// Ticks in a second, which is the length of a period.
const TICKS: u64 = 10;
/// Ticks from a member's last report until the store notes the end of its lease.
const EXPIRY: u64 = 35;
/// Periods of a member's lease, as in the reports of the hosts of a [`World`].
const LEASE: u64 = 3;

fn at(tick: u64) -> Instant {
    Instant::from_nanos(tick * 100_000_000)
}

fn key() -> Key {
    ("main".into(), "db".into())
}

fn record(incarnation: u64, period: u64, totals: Totals) -> Record {
    let (early, joined, period_us, bits, pools) = (0, 0, 1_000_000, 0, Pools::new());
    Record {
        v: VERSION,
        reads: READS,
        incarnation,
        period,
        early,
        joined,
        period_us,
        lease: 0,
        revision: 0,
        leaving: false,
        bits,
        members: 1,
        pools,
        totals,
    }
}

struct Host {
    sharing: Sharing,
    /// Number of changes that the host has read.
    read: usize,
    /// Requests per second that are asked for.
    rate: u64,
    arrived: u64,
    is_cut: bool,
    /// True if its reports reach the store, but it reads nothing.
    is_deaf: bool,
    is_dead: bool,
    last_put: u64,
    /// The start of its records, and the versions that it reads.
    v: String,
    reads: RangeInclusive<u32>,
}

impl Host {
    fn new(name: &str, incarnation: u64) -> Self {
        let sharing = Sharing::new(&config::Cluster::default(), name, incarnation);
        let (v, reads) = (format!("\"v\":{VERSION}"), VERSION..=VERSION);
        let (is_cut, is_deaf, is_dead) = (false, false, false);
        Self { sharing, read: 0, rate: 0, arrived: 0, is_cut, is_deaf, is_dead, last_put: 0, v, reads }
    }

    /// The part of the limit that applies on the host.
    fn part(&self) -> f64 {
        let parts = self.sharing.parts();
        parts.get(&key()).map_or(0.0, |fractions| fractions.limit[0].of_rate(1_000_000_000) as f64 / 1e9)
    }

    /// The text of a record of this host's version.
    fn text(&self, record: &Record) -> String {
        record.text().expect("no pools").replacen(&format!("\"v\":{VERSION}"), &self.v, 1)
    }

    /// Takes in the value of another host's key, or of its own.
    fn take_in(&mut self, tick: u64, host: &str, text: &str) {
        match Record::parse_as(text.as_bytes(), &self.reads) {
            Ok(record) => self.sharing.heard(at(tick), host, &record, false),
            Err(_) => {
                let header = Header::of_other_version(text.as_bytes(), &self.reads).expect("of another version");
                self.sharing.unread(host, header.leaving);
            }
        }
    }

    fn contact(&self) -> String {
        self.sharing.state().map(|state| state.contact).unwrap_or_default()
    }

    fn report(&mut self, tick: u64, period: u64) -> Totals {
        let queued = if self.rate as f64 > self.part() * LIMIT as f64 { self.rate / 2 } else { 0 };
        let arrived = [self.arrived, 4_096 * self.arrived];
        let demand = Demand { limit: [LIMIT, 0], arrived, queued, ..Demand::default() };
        self.sharing.report(at(tick), period, &Demands::from([(key(), demand)]))
    }
}

/// A change in the store.
enum Change {
    Put(String),
    Ended,
}

/// Three hosts and their store.
struct World {
    hosts: Vec<Host>,
    /// Each change with the host that it is of.
    log: Vec<(usize, Change)>,
    /// Changes that a stalled store has not taken in yet, with the ticks of their reports.
    stalled: Option<Vec<(u64, usize, String)>>,
    rng: SplitMix64,
    tick: u64,
    /// Ticks as [`EXPIRY`].
    expiry: u64,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl World {
    fn new(seed: u64) -> Self {
        let hosts = (1..).zip(NAMES).map(|(incarnation, name)| Host::new(name, incarnation)).collect();
        Self { hosts, log: Vec::new(), stalled: None, rng: SplitMix64::new(seed), tick: 0, expiry: EXPIRY }
    }

    fn ask(&mut self, rates: [u64; 3]) {
        self.hosts.iter_mut().zip(rates).for_each(|(host, rate)| host.rate = rate);
    }

    fn parts(&self) -> Vec<f64> {
        self.hosts.iter().map(|host| if host.is_dead { 0.0 } else { host.part() }).collect()
    }

    fn tick(&mut self) {
        self.tick += 1;
        let tick = self.tick;
        for n in 0..self.hosts.len() {
            let host = &mut self.hosts[n];
            if host.last_put > 0 && tick > host.last_put.saturating_add(self.expiry) {
                host.last_put = 0;
                self.log.push((n, Change::Ended));
            }
            let host = &mut self.hosts[n];
            if host.is_dead {
                continue;
            }
            host.arrived += host.rate / TICKS;
            // Clocks differ by minutes.
            let period = tick / TICKS + 100 * n as u64;
            if tick % TICKS == 3 * n as u64 {
                let totals = host.report(tick, period);
                if !host.is_cut {
                    let text = host.text(&Record { lease: LEASE, ..record(n as u64 + 1, period, totals) });
                    match &mut self.stalled {
                        Some(waiting) => waiting.push((tick, n, text)),
                        None => {
                            host.last_put = tick;
                            self.log.push((n, Change::Put(text)));
                        }
                    }
                }
            }
            let some = self.rng.next_below(4);
            let host = &mut self.hosts[n];
            let reads = if host.is_cut || host.is_deaf || self.stalled.is_some() { 0 } else { some };
            for _ in 0..reads {
                let Some((of, change)) = self.log.get(host.read) else { break };
                host.read += 1;
                match change {
                    Change::Put(text) => host.take_in(tick, NAMES[*of], text),
                    Change::Ended => host.sharing.ended(at(tick), NAMES[*of]),
                }
            }
            host.sharing.keep_time(at(tick));
            assert!(host.is_cut || self.stalled.is_some() || host.sharing.deadline() > at(tick));
        }
        let parts = self.parts();
        assert!(parts.iter().sum::<f64>() <= 1.0 + 1e-4, "tick {tick}: {parts:?}");
    }

    /// The store goes on, with the reports that are not older than the lease.
    fn resume(&mut self) {
        for (made, n, text) in self.stalled.take().unwrap_or_default() {
            if self.tick < made + 3 * TICKS {
                self.hosts[n].last_put = self.tick;
                self.log.push((n, Change::Put(text)));
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        (0..seconds * TICKS).for_each(|_| self.tick());
    }
}

#[test]
fn parts_follow_demand_and_never_exceed_the_limit() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.ask([4_000, 400, 100]);
        world.run(6);
        let parts = world.parts();
        assert!(parts[0] > 0.7 && parts[1] > 0.05, "seed {seed}: {parts:?}");
        world.ask([100, 400, 4_000]);
        world.run(4);
        let parts = world.parts();
        assert!(parts[2] > 0.6 && parts[0] < 0.25, "seed {seed}: {parts:?}");
        assert!(world.hosts.iter().all(|host| host.contact() == "shared"));
    }
}

#[test]
fn the_others_get_the_part_of_a_host_that_dies_except_its_safe_part() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.ask([4_000, 300, 300]);
        world.run(8);
        assert!(world.parts()[0] > 0.6, "seed {seed}: {:?}", world.parts());
        world.hosts[0].is_dead = true;
        world.ask([0, 3_000, 3_000]);
        // Lease, period and two seconds.
        world.run(6);
        let sum = world.parts().iter().sum::<f64>();
        assert!((0.6..=2.0 / 3.0 + 1e-4).contains(&sum), "seed {seed}: {:?}", world.parts());
        world.run(70);
        assert!(world.parts().iter().sum::<f64>() > 0.9, "seed {seed}: it is forgotten: {:?}", world.parts());
    }
}

#[test]
fn a_host_without_the_store_keeps_its_safe_part_and_comes_back() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.ask([4_000, 300, 300]);
        world.run(8);
        world.hosts[0].is_cut = true;
        world.run(5);
        let host = &world.hosts[0];
        assert_eq!(host.contact(), "lost");
        assert!((0.3..=0.334).contains(&host.part()), "seed {seed}: {}", host.part());
        world.run(10);
        assert_eq!(world.hosts[0].contact(), "alone");
        world.hosts[0].is_cut = false;
        world.run(8);
        assert_eq!(world.hosts[0].contact(), "shared");
        assert!(world.parts()[0] > 0.6, "seed {seed}: {:?}", world.parts());
    }
}

#[test]
fn a_store_that_stalls_delays_parts_and_doubles_none() {
    for seed in 0..20 {
        // Shorter than the lease, and longer.
        for stall in [1, 2, 5, 15] {
            let mut world = World::new(seed);
            world.ask([4_000, 400, 100]);
            world.run(8);
            world.stalled = Some(Vec::new());
            world.ask([100, 400, 4_000]);
            // Each tick checks the sum.
            world.run(stall);
            world.resume();
            world.run(8);
            let parts = world.parts();
            assert!(parts[2] > 0.6 && parts[0] < 0.25, "seed {seed}, {stall} s: {parts:?}");
            assert!(world.hosts.iter().all(|host| host.contact() == "shared"), "seed {seed}, {stall} s");
        }
    }
}

#[test]
fn a_host_that_restarts_without_the_store_continues_with_its_safe_part() {
    fn restart(world: &mut World) {
        let before = &world.hosts[0];
        let mut host = Host::new(NAMES[0], 1);
        (host.is_cut, host.rate) = (true, before.rate);
        (host.last_put, host.read) = (before.last_put, world.log.len());
        host.sharing.resume(before.sharing.kept());
        world.hosts[0] = host;
    }
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.ask([300, 4_000, 4_000]);
        world.run(8);
        // The others use almost all of the limit when the process ends.
        assert!(world.parts()[0] < 0.2, "seed {seed}: {:?}", world.parts());
        world.ask([4_000, 4_000, 4_000]);
        restart(&mut world);
        world.run(6);
        assert_eq!((world.hosts[0].contact(), world.parts()[0] < 1e-6), ("lost".to_owned(), true), "seed {seed}");
        world.run(8);
        let host = &world.hosts[0];
        assert_eq!(host.contact(), "alone");
        assert!((0.3..=0.334).contains(&host.part()), "seed {seed}: {}", host.part());
        // Again: with the first report the part is in use.
        restart(&mut world);
        world.run(2);
        assert!((0.3..=0.334).contains(&world.parts()[0]), "seed {seed}: {:?}", world.parts());
        world.hosts[0].is_cut = false;
        world.run(8);
        assert_eq!(world.hosts[0].contact(), "shared");
    }
}

#[test]
fn what_a_restart_keeps_is_for_tenants_of_the_first_report() {
    let mut world = World::new(1);
    world.ask([1_000, 1_000, 1_000]);
    world.run(8);
    let before = &world.hosts[0].sharing;
    let kept = before.kept();
    let safe = kept[&key()][0].map(|kept| kept.safe).expect("a safe part");
    assert!((safe - 1.0 / 3.0).abs() < 0.01 && kept[&key()][1].is_none() && !before.is_apart(), "{kept:?}");
    assert_eq!((before.kept_for(), before.kept_step()), (StdDuration::from_secs(50), StdDuration::from_secs(15)));
    let mut host = Host::new("a", 2);
    host.sharing.resume(kept);
    assert!(host.sharing.is_apart(), "a process that ends before its first report leaves the file");
    // The tenant comes later only.
    host.sharing.report(at(10), 1, &Demands::new());
    host.report(20, 2);
    assert_eq!((host.contact(), host.sharing.kept()), ("none".to_owned(), KeptParts::new()));
}

#[test]
fn each_host_shows_the_parts_of_all() {
    let mut world = World::new(1);
    world.ask([4_000, 400, 100]);
    world.run(8);
    for host in &world.hosts {
        let by_host = host.sharing.state().map(|state| state.by_host).unwrap_or_default();
        let [total] = by_host.as_slice() else { panic!("{by_host:?}") };
        let names: Vec<&str> = total.hosts.iter().map(|of| of.host.as_str()).collect();
        assert_eq!((names, total.more_hosts), (vec!["a", "b", "c"], 0));
        assert!(total.hosts[0].part > 0.7 && total.hosts.iter().all(|of| of.part > 0.0), "{total:?}");
    }
    // One without such tenants shows those of the others.
    let mut other = Sharing::new(&config::Cluster::default(), "d", 9);
    let totals = world.hosts[0].report(90, 9);
    other.heard(at(90), "a", &record(1, 9, totals), false);
    other.report(at(91), 9, &Demands::new());
    let state = other.state().expect("the totals of a");
    assert_eq!((state.contact.as_str(), state.tenants, state.by_host.len()), ("", 0, 1));
}

#[test]
fn a_limit_that_is_set_after_the_first_report_begins_anew() {
    let kept = Kept { safe: 0.25, members: 4, is_alone: true };
    let mut host = Host::new("a", 2);
    host.sharing.resume(KeptParts::from([(key(), [None, Some(kept)])]));
    let demands = |limit: [u64; 2]| Demands::from([(key(), Demand { limit, ..Demand::default() })]);
    host.sharing.report(at(10), 1, &demands([LIMIT, 0]));
    host.sharing.report(at(20), 2, &demands([LIMIT, LIMIT]));
    // By the first report this host has no safe part in bytes.
    assert_eq!((host.sharing.kept(), host.contact()), (KeptParts::new(), "none".to_owned()));
    assert!(host.sharing.parts()[&key()].limit[1].of_rate(1_000_000_000) < 1_000);
}

#[test]
fn a_host_that_was_never_in_contact_says_so() {
    let mut world = World::new(1);
    world.ask([1_000, 1_000, 1_000]);
    world.hosts.iter_mut().for_each(|host| host.is_cut = true);
    world.run(9);
    assert_eq!((world.hosts[0].contact(), world.hosts[0].part() < 1e-6), ("none".to_owned(), true));
    let because = world.hosts[0].sharing.state().map(|state| state.because).unwrap_or_default();
    assert!(because.contains("an eighth from 10 s after the start on"), "{because}");
    world.run(3);
    assert_eq!((world.hosts[0].contact(), world.hosts[0].part()), ("alone".to_owned(), 0.125));
    let because = world.hosts[0].sharing.state().map(|state| state.because).unwrap_or_default();
    assert!(because.contains("an eighth of the reservations, limits and guarantees of 1 tenant"), "{because}");
}

#[test]
fn an_early_report_counts_when_it_is_read_back() {
    let [mut a, mut b] = [("a", 1), ("b", 2)].map(|(name, incarnation)| Host::new(name, incarnation));
    let demand = |queued: u64, arrived: u64| {
        Demands::from([(key(), Demand { limit: [LIMIT, 0], arrived: [arrived, 0], queued, ..Demand::default() })])
    };
    let mut arrived = 0;
    for period in 1..=4 {
        arrived += 3_000;
        let of_a = record(1, period, a.sharing.report(at(10 * period), period, &demand(1_000, arrived)));
        let of_b = record(2, period, b.sharing.report(at(10 * period), period, &demand(0, 0)));
        for (name, record) in [("a", of_a), ("b", of_b)] {
            [&mut a, &mut b].into_iter().for_each(|host| host.sharing.heard(at(10 * period + 1), name, &record, false));
        }
    }
    assert!(a.part() > 0.9 && b.part() < 0.1, "{} and {}", a.part(), b.part());
    // A quarter of a period later a is idle, and b has requests.
    assert!(a.sharing.measure(at(43), &demand(0, arrived), true));
    assert!(!b.sharing.measure(at(43), &demand(500, 900), true), "a's claim leaves nothing yet");
    for _ in 0..2 {
        for (n, name) in NAMES.into_iter().enumerate().take(2) {
            let host = [&mut a, &mut b].into_iter().nth(n).expect("two hosts");
            let (early, totals) = host.sharing.early_report(at(44)).expect("a report before");
            let mut record = record(n as u64 + 1, 4, totals);
            record.early = early;
            let older = Record { early: early - 1, ..record.clone() };
            let before = b.part();
            b.sharing.heard(at(44), name, &older, false);
            assert!(name == "a" || b.part() <= before, "an older report of b counts");
            [&mut a, &mut b].into_iter().for_each(|host| host.sharing.heard(at(44), name, &record, false));
        }
    }
    assert!(b.part() > 0.9 && a.part() < 0.1, "{} and {}", a.part(), b.part());
}

#[test]
fn a_first_limit_is_reported_at_once_and_in_a_divided_cluster_with_the_next_report() {
    let demand = |limit: u64| Demands::from([(key(), Demand { limit: [limit, 0], ..Demand::default() })]);
    let mut host = Host::new("a", 1);
    host.sharing.report(at(10), 1, &demand(0));
    assert!(!host.sharing.measure(at(12), &demand(LIMIT), false));
    assert_eq!(host.contact(), "", "no share is made that could not be reported");
    assert!(host.sharing.measure(at(15), &demand(LIMIT), true));
    assert_eq!((host.contact(), host.part() < 1e-6), ("none".to_owned(), true));
    let (early, totals) = host.sharing.early_report(at(15)).expect("a report before");
    assert!(!host.sharing.measure(at(17), &demand(LIMIT), true), "one report, although it is not back");
    host.sharing.heard(at(18), "a", &Record { early, ..record(1, 1, totals) }, false);
    assert_eq!((host.contact(), host.part()), ("shared".to_owned(), 1.0));
}

#[test]
fn in_a_divided_cluster_a_part_waits_for_the_sum_of_the_shard() {
    let mut host = Host::new("a", 1);
    let shard = Shard::of("a", 1);
    host.sharing.begin(at(1), shard, &BTreeSet::from(["a"]));
    host.rate = 1_000;
    let totals = host.report(10, 1);
    host.sharing.note_revision(1);
    host.sharing.heard(at(11), "a", &record(1, 1, totals), true);
    assert_eq!((host.contact(), host.part() < 1e-6), ("none".to_owned(), true));
    let together = host.sharing.together();
    // An older sum, and one without the tenant, say nothing of this report.
    host.sharing.summed(at(12), shard, 0, Some((1, together.clone())));
    host.sharing.summed(at(12), shard, 1, Some((1, Totals::new())));
    assert_eq!(host.contact(), "none");
    host.sharing.summed(at(12), shard, 1, Some((1, together)));
    assert_eq!((host.contact(), host.part()), ("shared".to_owned(), 1.0));
}

#[test]
fn a_cluster_that_divides_leaves_the_parts_of_other_shards_until_their_sums_come() {
    let own = Shard::of("a", 1);
    let other: Shard = if own.to_string() == "1-000" { "1-001" } else { "1-000" }.parse().expect("a shard");
    let far = (b'b'..=b'z').map(|letter| char::from(letter).to_string()).find(|name| other.holds(name));
    let far = far.expect("a host of the other shard");
    let claims = |claim: f64| {
        let lines = Line { need: claim, throttled: claim, claim, safe: 0.5, ..Line::default() };
        let sums = Sums { members: 1, lines, reserved: 0.0 };
        Totals::from([("main".into(), BTreeMap::from([("db".into(), [sums, Sums::default()])]))])
    };
    let mut host = Host::new("a", 1);
    host.rate = 4_000;
    host.sharing.heard(at(1), &far, &record(2, 1, claims(0.5)), false);
    for period in 1..=3 {
        host.arrived += 4_000;
        let totals = host.report(10 * period, period);
        host.sharing.heard(at(10 * period + 1), "a", &record(1, period, totals), false);
    }
    assert!((0.45..=0.5).contains(&host.part()), "{}", host.part());
    host.sharing.begin(at(32), own, &BTreeSet::from(["a", far.as_str()]));
    for (period, claim, parts) in [(4, None, 0.45..=0.5), (5, Some(0.1), 0.6..=0.9)] {
        host.arrived += 4_000;
        let totals = host.report(10 * period, period);
        host.sharing.heard(at(10 * period + 1), "a", &record(1, period, totals), true);
        if let Some(claim) = claim {
            host.sharing.summed(at(10 * period + 1), other, period, Some((1, claims(claim))));
        }
        let together = host.sharing.together();
        host.sharing.summed(at(10 * period + 2), own, period, Some((1, together)));
        assert_eq!(host.contact(), "shared");
        assert!(parts.contains(&host.part()), "period {period}: {}", host.part());
    }
}

#[test]
fn tenants_without_room_in_the_sum_of_their_shard_have_no_part_that_other_shards_do_not_know() {
    let mut host = Host::new("a", 1);
    let shard = Shard::of("a", 1);
    host.sharing.begin(at(1), shard, &BTreeSet::from(["a"]));
    let sums = [Sums { members: 1, ..Sums::default() }; 2];
    let full = Totals::from([("other".into(), (0..MAX_SUM_TOTALS).map(|n| (format!("t{n}"), sums)).collect())]);
    let excess = |host: &Host| host.sharing.state().map_or(0, |state| state.excess_tenants);
    let mut period = 0;
    let mut sum = |host: &mut Host, totals: Option<Totals>| {
        period += 1;
        let report = host.report(10 * period, period);
        host.sharing.heard(at(10 * period + 1), "a", &record(1, period, report), true);
        let totals = totals.unwrap_or_else(|| host.sharing.together());
        host.sharing.summed(at(10 * period + 2), shard, period, Some((2, totals)));
        host.sharing.keep_time(at(10 * period + 3));
        assert!(host.sharing.deadline() > at(10 * period + 3));
    };
    // No eighth of the total after a while, as without the cluster.
    (0..30).for_each(|_| sum(&mut host, Some(full.clone())));
    assert!(host.part() < 1e-6 && excess(&host) == 1, "{}", host.part());
    sum(&mut host, None);
    assert!(host.part() > 0.9 && excess(&host) == 0 && host.contact() == "shared", "{}", host.part());
    // A part that other shards forget is the safe part at most.
    host.rate = 4_000;
    let lines = Line { claim: 0.3, safe: 0.5, ..Line::default() };
    let of_b = [Sums { members: 1, lines, reserved: 0.0 }, Sums::default()];
    let of_b = Totals::from([("main".into(), BTreeMap::from([("db".into(), of_b)]))]);
    let b = (b'b'..=b'z').map(|letter| char::from(letter).to_string()).find(|name| shard.holds(name));
    host.sharing.heard(at(10), &b.expect("a host of the shard"), &record(2, 1, of_b), true);
    (0..2).for_each(|_| sum(&mut host, None));
    assert!(host.part() > 0.6, "{}", host.part());
    sum(&mut host, Some(full));
    assert!(host.part() <= 0.5 && excess(&host) == 1, "{}", host.part());
    // Nothing is left out when the cluster is not divided any more, so that its loss is noticed.
    period += 1;
    let report = host.report(10 * period, period);
    host.sharing.heard(at(10 * period + 1), "a", &record(1, period, report), false);
    assert_eq!((host.contact(), excess(&host)), ("shared".to_owned(), 0));
    host.sharing.keep_time(at(10 * period + 40));
    assert!(host.contact() == "lost" && host.part() <= 0.5, "{}", host.part());
}

#[test]
fn tenants_beyond_a_report_and_units_without_totals_are_left_out() {
    let mut sharing = Sharing::new(&config::Cluster::default(), "a", 1);
    let demand = |limit| Demand { limit, ..Demand::default() };
    let number = MAX_TOTALS + 2;
    let demands: Demands = (0..number).map(|n| (("main".into(), format!("t{n:04}")), demand([0, 1_000]))).collect();
    let totals = sharing.report(at(10), 1, &demands);
    assert_eq!(totals["main"].len(), MAX_TOTALS);
    let [iops, bytes] = totals["main"]["t0000"];
    assert_eq!((iops, bytes.members), (Sums::default(), 1));
    let state = sharing.state().expect("tenants");
    assert_eq!((state.tenants, state.excess_tenants), (MAX_TOTALS as u64, 2));
    // A limit in requests that a reload sets does not apply as a whole on each host until it is measured.
    assert_eq!(sharing.parts()[&("main".to_owned(), "t0000".to_owned())].limit[0], Fraction::of(0.0));
    // Without a limit any more.
    let totals = sharing.report(at(20), 2, &Demands::new());
    assert!(totals.is_empty() && sharing.parts().is_empty() && sharing.state().is_none());
}
