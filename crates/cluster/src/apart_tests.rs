//! Tests of a divided cluster whose members' clocks differ by minutes: each member writes sums by its own clock.

use super::*;

/// Periods between the clocks of two hosts: five minutes.
const APART: u64 = 300;
/// Tick of the period at which the first host reports; each further host does so three ticks later.
const PHASE: u64 = 3;

/// A sum of a shard.
struct Written {
    shard: Shard,
    /// Revision of the store up to which the sum has reports.
    revision: u64,
    totals: Totals,
}

/// Two hosts in each of two shards, and their store.
struct Divided {
    names: Vec<String>,
    shards: Vec<Shard>,
    hosts: Vec<Host>,
    /// All reports that were written, with their revisions and hosts.
    reports: Vec<(u64, usize, Record)>,
    /// All sums that were written.
    sums: Vec<Written>,
    /// Sums on their way, with the ticks at which they are there.
    pending: Vec<(u64, Written)>,
    /// Numbers of reports and of sums that each host has passed.
    read: Vec<[usize; 2]>,
    revision: u64,
    rng: SplitMix64,
    tick: u64,
}

impl Divided {
    fn new(seed: u64) -> Self {
        let all = || (b'a'..=b'z').map(|letter| char::from(letter).to_string());
        let own = Shard::of("a", 1);
        let mut names: Vec<String> = all().filter(|name| own.holds(name)).take(2).collect();
        names.extend(all().filter(|name| !own.holds(name)).take(2));
        let shards: Vec<Shard> = names.iter().map(|name| Shard::of(name, 1)).collect();
        let mut hosts: Vec<Host> = (1..).zip(&names).map(|(incarnation, name)| Host::new(name, incarnation)).collect();
        for (host, (name, shard)) in hosts.iter_mut().zip(names.iter().zip(&shards)) {
            host.sharing.begin(at(0), *shard, &BTreeSet::from([name.as_str()]));
        }
        let read = vec![[0; 2]; names.len()];
        let (reports, sums, pending) = (Vec::new(), Vec::new(), Vec::new());
        let rng = SplitMix64::new(seed);
        Self { names, shards, hosts, reports, sums, pending, read, revision: 0, rng, tick: 0 }
    }

    fn tick(&mut self) {
        self.tick += 1;
        let tick = self.tick;
        for n in 0..self.hosts.len() {
            let host = &mut self.hosts[n];
            host.arrived += host.rate / TICKS;
            let phase = PHASE * n as u64;
            if tick % TICKS == phase {
                let period = tick / TICKS + APART * n as u64;
                let totals = host.report(tick, period);
                if !host.is_cut {
                    self.revision += 1;
                    let report = Record { lease: LEASE, bits: 1, ..record(n as u64 + 1, period, totals) };
                    self.reports.push((self.revision, n, report));
                }
            }
            if tick % TICKS == (phase + 2) % TICKS && !host.is_cut {
                let (revision, totals) = (host.sharing.added_up_to(), host.sharing.together());
                let written = Written { shard: self.shards[n], revision, totals };
                self.pending.push((tick + self.rng.next_below(4), written));
            }
            let some = self.rng.next_below(4);
            let reads = if host.is_cut { 0 } else { some };
            for _ in 0..reads {
                let [reports, sums] = &mut self.read[n];
                if let Some((revision, of, report)) = self.reports.get(*reports) {
                    *reports += 1;
                    if self.shards[*of] == self.shards[n] {
                        host.sharing.note_revision(*revision);
                        host.sharing.heard(at(tick), &self.names[*of], report, true);
                    }
                }
                if let Some(Written { shard, revision, totals }) = self.sums.get(*sums) {
                    *sums += 1;
                    // The host that wrote it may know no other host whose clock is near its own.
                    host.sharing.summed(at(tick), *shard, *revision, Some((1, totals.clone())));
                }
            }
            host.sharing.keep_time(at(tick));
        }
        self.write();
        let parts: Vec<f64> = self.hosts.iter().map(Host::part).collect();
        assert!(parts.iter().sum::<f64>() <= 1.0 + 1e-4, "tick {tick}: {parts:?}");
    }

    /// Writes the sums that are there, except those with earlier reports than a sum before.
    fn write(&mut self) {
        let tick = self.tick;
        let pending = std::mem::take(&mut self.pending).into_iter();
        let (due, later): (Vec<_>, Vec<_>) = pending.partition(|(there, _)| *there <= tick);
        self.pending = later;
        for (_, written) in due {
            let newest = self.sums.iter().rev().find(|known| known.shard == written.shard);
            if newest.is_none_or(|known| known.revision <= written.revision) {
                self.revision += 1;
                self.sums.push(written);
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        (0..seconds * TICKS).for_each(|_| self.tick());
    }

    /// One host asks for more than all have, the others for little.
    fn ask(&mut self, busy: usize) {
        self.hosts.iter_mut().enumerate().for_each(|(n, host)| host.rate = if n == busy { 4_000 } else { 100 });
    }

    fn assert_shared(&self, busy: usize, seed: u64) {
        let contacts: Vec<String> = self.hosts.iter().map(Host::contact).collect();
        assert!(contacts.iter().all(|contact| contact == "shared"), "seed {seed}: {contacts:?}");
        assert!(self.hosts[busy].part() > 0.6, "seed {seed}, host {busy}: {}", self.hosts[busy].part());
    }
}

#[test]
fn parts_follow_demand_between_shards_whose_clocks_differ_by_minutes() {
    for seed in 0..20 {
        let mut world = Divided::new(seed);
        for busy in [0, 3, 1] {
            world.ask(busy);
            // Each tick checks the sum.
            world.run(12);
            world.assert_shared(busy, seed);
        }
    }
}

#[test]
fn a_member_that_loses_the_store_comes_back_among_clocks_that_differ_by_minutes() {
    for seed in 0..20 {
        let mut world = Divided::new(seed);
        world.ask(0);
        world.run(12);
        world.assert_shared(0, seed);
        world.hosts[0].is_cut = true;
        world.run(12);
        assert_eq!(world.hosts[0].contact(), "alone", "seed {seed}");
        world.hosts[0].is_cut = false;
        world.run(12);
        world.assert_shared(0, seed);
    }
}

#[test]
fn a_sum_with_earlier_reports_takes_the_place_of_none_with_later_ones() {
    let [own, other] = [0, 1].map(|index| format!("1-00{index}").parse::<Shard>().expect("a shard"));
    let name = (b'a'..=b'z').map(|letter| char::from(letter).to_string()).find(|name| own.holds(name));
    let mut host = Host::new(&name.expect("a host of the shard"), 1);
    host.sharing.begin(at(1), own, &BTreeSet::new());
    let claims = |claim: f64| {
        let lines = Line { need: claim, claim, safe: 0.5, ..Line::default() };
        let sums = [Sums { members: 1, lines, reserved: 0.0 }, Sums::default()];
        Some((1, Totals::from([("main".into(), BTreeMap::from([("db".into(), sums)]))])))
    };
    let mut claimed = |revision: u64, claim: f64| {
        host.sharing.summed(at(2), other, revision, claims(claim));
        host.sharing.ledger.refresh();
        host.sharing.ledger.others(&key())[0].lines.claim
    };
    assert_eq!([claimed(9, 0.5), claimed(8, 0.25), claimed(9, 0.375), claimed(10, 0.25)], [0.5, 0.5, 0.375, 0.25]);
    // A store that was restored has lower revisions.
    host.sharing.begin(at(3), own, &BTreeSet::new());
    host.sharing.summed(at(3), other, 3, claims(0.75));
    host.sharing.ledger.refresh();
    assert_eq!(host.sharing.ledger.others(&key())[0].lines.claim, 0.75);
}

#[test]
fn a_sum_of_unknown_age_delays_parts_for_a_lease() {
    let mut host = Host::new("a", 1);
    let own = Shard::of("a", 1);
    let other: Shard = if own.to_string() == "1-000" { "1-001" } else { "1-000" }.parse().expect("a shard");
    host.rate = 1_000;
    host.sharing.begin(at(1), own, &BTreeSet::new());
    host.sharing.found_undated(at(1), other);
    for (period, contact) in [(1, "none"), (2, "none"), (3, "none"), (4, "shared")] {
        let totals = host.report(10 * period, period);
        host.sharing.note_revision(10 * period);
        host.sharing.heard(at(10 * period), "a", &record(1, period, totals), true);
        let together = host.sharing.together();
        host.sharing.summed(at(10 * period), own, 10 * period, Some((1, together)));
        assert_eq!(host.contact(), contact, "period {period}");
    }
}
