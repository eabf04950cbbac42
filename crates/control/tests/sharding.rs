//! Clusters that are divided into shards: every decision counts each host exactly once, no matter which host publishes a
//! shard's sum. Hosts die, are cut off, and join; clusters grow; settings differ between hosts.

use std::collections::BTreeMap;

use evenkeel_control::cluster::shard::{MAX_BITS, Seen, Shard, Sizes, cover, hash};
use evenkeel_control::cluster::sharding::{Cluster, Contribution, Sum};
use evenkeel_control::cluster::{Config, Report, Status};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const CONFIG: Config = Config::new(Duration::from_secs(1));
/// Length of a control period, in milliseconds.
const PERIOD: u64 = 1_000;
/// Time step of the simulation, in milliseconds.
const STEP: u64 = 50;
/// Upper bound on a message's way from the store to a host, in milliseconds.
const WAY: u64 = 60;
const START: u64 = 1_000 * PERIOD;
/// Slots that all hosts together may grant.
const TOTAL: f64 = 120.0;

/// A sum over hosts: how many times it contains each host.
type Count = BTreeMap<String, u64>;

fn together(parts: &mut dyn Iterator<Item = &Count>) -> Count {
    let mut sum = Count::new();
    for (host, times) in parts.flatten() {
        *sum.entry(host.clone()).or_default() += times;
    }
    sum
}

#[derive(Clone)]
enum Message {
    Host(String, Report<Contribution<Count>>),
    Sum(Sum<Count>),
    Ended(String),
}

struct Node {
    name: String,
    cluster: Cluster<Count>,
    sizes: Sizes,
    /// The shard whose hosts' reports the node receives; `None` while it is cut off and until it reads them again.
    watches: Option<Shard>,
    /// The node sends and receives nothing before this moment, in milliseconds.
    cut_until: u64,
    incarnation: u64,
    /// Last period that the node has reported.
    reported: u64,
    /// Period in which the node joined.
    joined: u64,
    /// Slots that the node may use by its last decision.
    granted: f64,
    /// By period: the sum from which the node decided, and that all its parts were of that period.
    decided: BTreeMap<u64, (Count, bool)>,
}

/// Hosts and a store: each host writes its report there once a period, and every host that watches receives the change.
struct World {
    /// Virtual time in milliseconds.
    now: u64,
    random: SplitMix64,
    nodes: Vec<Node>,
    /// The store's reports by host, each with the millisecond in which it was written.
    hosts: BTreeMap<String, (Report<Contribution<Count>>, u64)>,
    /// The store's sums by shard.
    sums: BTreeMap<Shard, Sum<Count>>,
    /// Messages under way: millisecond of arrival, receiving host, message.
    on_the_way: Vec<(u64, String, Message)>,
    /// Most slots that all hosts together were granted at any time so far.
    most: f64,
    /// Time for which the hosts have now been granted more than the total, in milliseconds.
    over: u64,
    /// Largest value of `over` so far, in milliseconds.
    longest: u64,
    /// No host can read a sum from the store.
    corrupt: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        let (hosts, sums) = (BTreeMap::new(), BTreeMap::new());
        Self {
            now: START,
            random,
            nodes: vec![],
            hosts,
            sums,
            on_the_way: vec![],
            most: 0.0,
            over: 0,
            longest: 0,
            corrupt: false,
        }
    }

    fn instant(&self) -> Instant {
        Instant::from_nanos(self.now * 1_000_000)
    }

    fn period(&self) -> u64 {
        self.now / PERIOD
    }

    fn join(&mut self, name: &str, sizes: Sizes) {
        let cluster = Cluster::new(CONFIG, sizes, together, name, self.now + 1).expect("valid");
        let (reported, joined) = (self.period() - 1, self.period());
        let mut node = Node {
            name: name.into(),
            cluster,
            sizes,
            watches: None,
            cut_until: 0,
            incarnation: self.now + 1,
            reported,
            joined,
            granted: 0.0,
            decided: BTreeMap::new(),
        };
        let bits = sizes.bits(self.hosts.len() as u64);
        self.follow(&mut node, Shard::of(name, bits));
        self.nodes.push(node);
    }

    /// Lets the node read all reports of this shard and all sums from the store, and receive their changes from now on.
    fn follow(&self, node: &mut Node, shard: Shard) {
        let now = self.instant();
        node.cluster.divide(now, shard);
        node.watches = Some(shard);
        let gone: Vec<String> = node.cluster.members(now).map(|(host, _)| host.to_owned()).collect();
        for host in gone.iter().filter(|host| !self.hosts.contains_key(*host)) {
            node.cluster.lease_ended(host);
        }
        for (host, (report, _)) in self.hosts.iter().filter(|(host, _)| shard.holds(host)) {
            let _ = node.cluster.observe(now, host, report.clone());
        }
        for sum in self.sums.values() {
            let _ = node.cluster.observe_sum(now, sum.clone());
        }
    }

    fn send_all(&mut self, message: &Message) {
        for node in &self.nodes {
            let wants = match message {
                Message::Host(host, _) | Message::Ended(host) => node.watches.is_some_and(|shard| shard.holds(host)),
                Message::Sum(_) => true,
            };
            if wants && node.cut_until <= self.now {
                let arrives = self.now + self.random.next_below(WAY);
                self.on_the_way.push((arrives, node.name.clone(), message.clone()));
            }
        }
    }

    fn put_sum(&mut self, sum: Sum<Count>) {
        if self.sums.get(&sum.shard).is_none_or(|known| known.period < sum.period) {
            self.sums.insert(sum.shard, sum.clone());
            // Nobody can read it; it is there, and the next one comes in its place.
            if !self.corrupt {
                self.send_all(&Message::Sum(sum));
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let (now, instant, period) = (self.now, self.instant(), self.period());
        self.on_the_way.sort_by_key(|(at, ..)| *at);
        let arrived = self.on_the_way.iter().take_while(|(at, ..)| *at <= now).count();
        for (_, to, message) in self.on_the_way.drain(..arrived).collect::<Vec<_>>() {
            let Some(node) = self.nodes.iter_mut().find(|node| node.name == to && node.cut_until <= now) else {
                continue;
            };
            match message {
                Message::Host(host, report) => node.cluster.observe(instant, &host, report).unwrap_or_default(),
                Message::Sum(sum) => node.cluster.observe_sum(instant, sum).unwrap_or_default(),
                Message::Ended(host) => node.cluster.lease_ended(&host),
            }
        }
        let lease = (CONFIG.lease + 1) * PERIOD;
        let ended: Vec<String> =
            self.hosts.iter().filter(|(_, (_, written))| now - written > lease).map(|(host, _)| host.clone()).collect();
        for host in ended {
            self.hosts.remove(&host);
            self.send_all(&Message::Ended(host));
        }
        for index in 0..self.nodes.len() {
            let mut node = self.nodes.swap_remove(index);
            self.act(&mut node, instant, period);
            self.nodes.push(node);
            let last = self.nodes.len() - 1;
            self.nodes.swap(index, last);
        }
        let granted: f64 = self.nodes.iter().map(|node| node.granted).sum();
        self.most = self.most.max(granted);
        self.over = if granted > TOTAL * 1.001 { self.over + STEP } else { 0 };
        self.longest = self.longest.max(self.over);
    }

    fn act(&mut self, node: &mut Node, now: Instant, period: u64) {
        let connected = node.cut_until <= self.now;
        if connected && node.watches.is_none() {
            let shard = node.cluster.shard();
            self.follow(node, shard);
        }
        if node.reported + 1 < period {
            node.reported = period - 1;
            if node.cluster.status(now) == Status::Lost {
                node.joined = period - 1;
            }
            let content = Count::from([(node.name.clone(), 1)]);
            let content = Contribution { bits: node.cluster.shard().bits(), members: 1, content };
            let incarnation = node.incarnation;
            let report = Report { incarnation, period: period - 1, joined: node.joined, leaving: false, content };
            if connected {
                self.hosts.insert(node.name.clone(), (report.clone(), self.now));
                self.send_all(&Message::Host(node.name.clone(), report.clone()));
                self.on_the_way.push((self.now + 20, node.name.clone(), Message::Host(node.name.clone(), report)));
            }
        }
        loop {
            let status = node.cluster.status(now);
            let Some(view) = node.cluster.poll(now) else { break };
            let parts = view.members.iter().map(|member| &member.report.content.content);
            let (sum, fresh) = (together(&mut parts.into_iter()), view.members.iter().all(|member| member.age == 0));
            let decided = view.period;
            if let Status::Shared { ramp } = status {
                node.granted = TOTAL * ramp / sum.len() as f64;
            }
            assert!(node.decided.insert(decided, (sum, fresh)).is_none(), "{}: {decided} decided twice", node.name);
        }
        if node.cluster.status(now) == Status::Lost {
            node.granted = 0.0;
        }
        if let Some(sum) = node.cluster.to_publish(now).filter(|_| connected) {
            let shard = sum.shard;
            self.put_sum(sum);
            // The one that acts is not among those who receive it.
            if let Some(sum) = self.sums.get(&shard).filter(|_| !self.corrupt) {
                self.on_the_way.push((self.now + 20, node.name.clone(), Message::Sum(sum.clone())));
            }
        }
        if connected && node.cluster.wanted() != node.cluster.shard() {
            self.follow(node, node.cluster.wanted());
        }
    }

    fn run(&mut self, periods: u64) {
        for _ in 0..periods * PERIOD / STEP {
            self.step();
        }
    }

    fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.name == name).expect("a host of that name")
    }

    fn kill(&mut self, name: &str) {
        self.nodes.retain(|node| node.name != name);
    }

    /// Asserts that no decision so far counted a host twice, and that in each of the last `periods` every host decided from
    /// fresh sums that count each present host once.
    fn check(&self, periods: u64) {
        for node in &self.nodes {
            for (period, (sum, _)) in &node.decided {
                assert!(sum.values().all(|&times| times == 1), "{}: {period}: {sum:?}", node.name);
            }
        }
        let everyone: Count = self.nodes.iter().map(|node| (node.name.clone(), 1)).collect();
        let last = self.period() - 2;
        for period in last - periods..=last {
            for node in &self.nodes {
                let (sum, fresh) =
                    node.decided.get(&period).unwrap_or_else(|| panic!("{}: {period} missing", node.name));
                assert_eq!(*sum, everyone, "{}: {period} of {last}", node.name);
                assert!(fresh, "{}: {period}", node.name);
            }
        }
    }
}

fn name(n: usize) -> String {
    format!("host-{n:03}")
}

fn world(hosts: usize, sizes: Sizes) -> World {
    let mut world = World::new(hosts as u64);
    for n in 0..hosts {
        world.join(&name(n), sizes);
    }
    world
}

const FOURS: Sizes = Sizes { above: 4, most: Some(4) };

#[test]
fn shards_are_halves_of_halves_and_have_one_name() {
    for bits in 0..=MAX_BITS {
        let mut next = 0u32;
        let mut shards: Vec<Shard> = (0..2_000).map(|n| Shard::of(&name(n), bits)).collect();
        shards.sort_unstable();
        shards.dedup();
        for shard in &shards {
            assert_eq!(shard.to_string().parse(), Ok(*shard));
            assert!(u32::from(*shard.hashes().start()) >= next, "they do not overlap");
            next = u32::from(*shard.hashes().end()) + 1;
            assert_eq!(shard.within().count(), usize::from(bits));
        }
        assert!(shards.len() >= 1 << bits.min(7), "{bits}: {} shards", shards.len());
    }
    for n in 0..1_000 {
        let (host, shard) = (name(n), Shard::of(&name(n), 5));
        assert!(shard.holds(&host) && shard.hashes().contains(&hash(&host)));
        assert!(shard.within().all(|larger| larger.holds(&host)));
    }
    for text in ["", "4", "4-", "4-10", "4-0010", "04-001", "4-010", "13-000", "4-00A", "4-00g", "-1-000", "4-+01"] {
        assert!(text.parse::<Shard>().is_err(), "{text}");
    }
}

#[test]
fn how_finely_a_cluster_is_divided_follows_its_size_and_does_not_waver() {
    let sizes = Sizes { above: 100, most: None };
    let bits = [100, 101, 256, 257, 1_024, 4_096, 10_000].map(|hosts| sizes.bits(hosts));
    assert_eq!(bits, [0, 4, 4, 5, 5, 6, 7]);
    assert_eq!([4, 5, 9, 16, 17].map(|hosts| FOURS.bits(hosts)), [0, 1, 2, 2, 3]);
    assert_eq!(sizes.bits(u64::MAX), MAX_BITS);
    assert_eq!([(0, 101), (4, 100), (4, 81), (4, 80)].map(|(now, hosts)| sizes.bits_after(now, hosts)), [4, 4, 4, 0]);
}

#[test]
fn a_small_cluster_is_not_divided() {
    let mut world = world(4, FOURS);
    world.run(12);
    world.check(4);
    assert!(world.sums.is_empty() && world.nodes.iter().all(|node| !node.cluster.is_divided()));
}

#[test]
fn a_cluster_that_grows_is_divided_and_one_that_shrinks_comes_together_again() {
    let mut world = world(4, FOURS);
    world.run(12);
    for n in 4..24 {
        world.join(&name(n), FOURS);
        world.run(1 + n as u64 % 3);
    }
    world.run(12);
    world.check(4);
    assert!(world.nodes.iter().all(|node| node.cluster.shard().bits() == 3 && node.cluster.size() == 24));
    assert!(world.most <= TOTAL * 1.001, "granted at most {}", world.most);
    for n in 3..24 {
        world.kill(&name(n));
    }
    world.run(30);
    world.check(4);
    assert!(world.nodes.iter().all(|node| !node.cluster.is_divided() && node.cluster.size() == 3));
    assert!(world.most <= TOTAL * 1.001, "granted at most {}", world.most);
}

#[test]
fn who_speaks_for_a_shard_may_die_and_the_next_one_does() {
    let mut world = world(12, FOURS);
    world.run(14);
    world.check(4);
    let first = world.nodes.iter().map(|node| node.name.clone()).min().expect("hosts");
    world.kill(&first);
    world.run(CONFIG.lease + CONFIG.safe + 6);
    world.check(2);
    assert!(world.most <= TOTAL * 1.001);
}

#[test]
fn who_speaks_for_a_shard_may_hear_nothing_and_still_be_there() {
    // It reports and its reports are heard, but it never finds a period complete: what it should publish another one does.
    let mut world = world(12, FOURS);
    world.run(14);
    let first = world.nodes.iter().map(|node| node.name.clone()).min().expect("hosts");
    let shard = world.node(&first).cluster.shard();
    for _ in 0..6 * PERIOD / STEP {
        world.step();
        let deaf = world.node(&first);
        // As if it had been stopped just before it publishes.
        deaf.cluster.to_publish(Instant::FAR_FUTURE);
    }
    let published = world.sums.get(&shard).expect("a sum").period;
    let others = world.nodes.iter().filter(|node| node.cluster.shard() == shard).count();
    assert!(others == 1 || published + 2 >= world.period(), "{others} hosts, {published} published");
}

#[test]
fn unreadable_sums_are_as_good_as_none_and_the_last_one_counts_for_a_lease() {
    let mut world = world(12, FOURS);
    world.run(14);
    world.corrupt = true;
    world.run(2);
    let counted = |world: &World| world.nodes.iter().map(|node| node.cluster.size()).collect::<Vec<_>>();
    assert_eq!(counted(&world), [12; 12], "the last sums stand");
    world.run(CONFIG.lease + 3);
    assert!(world.nodes.iter().all(|node| node.granted == 0.0), "without sums everyone is on its own");
    world.corrupt = false;
    world.run(CONFIG.lease + CONFIG.safe + 8);
    world.check(2);
    assert!(world.most <= TOTAL * 1.001);
}

#[test]
fn a_host_that_stops_in_order_and_was_the_last_of_its_shard_takes_it_along() {
    let mut world = world(12, Sizes { above: 1, most: Some(1) });
    world.run(14);
    let alone = world.nodes.iter().find(|node| {
        let shard = node.cluster.shard();
        world.nodes.iter().filter(|other| other.cluster.shard() == shard).count() == 1
    });
    let alone = alone.expect("one in a shard of its own").name.clone();
    let now = world.instant();
    let sum = world.node(&alone).cluster.last_sum(now).expect("it was the last one");
    assert!(sum.leaving);
    world.kill(&alone);
    world.put_sum(sum);
    world.run(4);
    assert_eq!(world.nodes[0].cluster.size(), 11, "at once, before its lease is over");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The published shards overlap at random: exactly one of the shards that `cover` picks holds each host.
    #[test]
    fn a_cover_counts_every_host_once(
        hosts in proptest::collection::btree_map(0usize..500, 0u8..6, 1..60),
        suspect in proptest::collection::vec(any::<bool>(), 64),
    ) {
        // Every host's shard is published, by itself at least; the hosts in it are all that belong there.
        let shards: std::collections::BTreeSet<Shard> = hosts.iter().map(|(n, bits)| Shard::of(&name(*n), *bits)).collect();
        let seen: Vec<Seen> = shards.iter().enumerate().map(|(n, &shard)| Seen {
            shard,
            age: u64::from(suspect[n % suspect.len()]),
            members: hosts.keys().filter(|n| shard.holds(&name(**n))).count() as u64,
        }).collect();
        let counts = cover(&seen);
        for n in hosts.keys() {
            let times = counts.iter().filter(|shard| shard.holds(&name(*n))).count();
            prop_assert_eq!(times, 1, "host {}: {:?} of {:?}", n, counts, seen);
        }
    }

    /// Hosts join, die, are cut off and have settings of their own: no host is counted twice, more slots than the total are
    /// granted for no longer than a suspect host counts, and in the end all decide from the same sums of all hosts.
    #[test]
    fn whatever_happens_every_host_is_counted_once(
        seed: u64,
        first in 1usize..20,
        events in proptest::collection::vec((0u8..5, 0usize..32, 1u64..8, 1u64..8), 0..24),
    ) {
        let mut world = World::new(seed);
        for n in 0..first {
            world.join(&name(n), FOURS);
        }
        world.run(10);
        for (what, n, a, b) in events {
            let host = name(n);
            let there = world.nodes.iter().any(|node| node.name == host);
            let sizes = Sizes { above: 2 * a, most: Some(b) };
            match what {
                0 if there && world.nodes.len() > 1 => world.kill(&host),
                1 if there => {
                    let until = world.now + a * PERIOD;
                    let node = world.node(&host);
                    (node.cut_until, node.watches) = (until, None);
                }
                2 if there => {
                    let node = world.node(&host);
                    node.sizes = sizes;
                    node.cluster.set_sizes(sizes);
                }
                _ if !there && !world.hosts.contains_key(&host) => world.join(&host, if what == 3 { FOURS } else { sizes }),
                _ => {}
            }
            world.run(b % 4);
        }
        world.run(2 * (CONFIG.lease + CONFIG.safe) + 30);
        world.check(3);
        prop_assert!(world.longest <= (CONFIG.lease + CONFIG.safe) * PERIOD, "too many for {} ms", world.longest);
    }
}
