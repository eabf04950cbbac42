//! The other members' reports on tenants with totals, added up by tenant.
//!
//! Members of this host's shard count one by one. Members of other shards count by the newest sums of their shards; a sum of a
//! larger shard that contains this host's shard counts as a whole, so that some members may count twice, never none. A shard
//! whose sums end is forgotten after the lease and the safe time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_control::cluster::shard::{Seen, Shard, cover};
use evenkeel_control::cluster::totals::{Line, Sums};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::cluster::{MAX_SUM_TOTALS, Totals};

use crate::participant::Key;

/// The most members whose reports are kept; a shard has far fewer.
const MAX_HOSTS: usize = 1_024;

/// The newest report of a member.
#[derive(Clone, Debug)]
struct Entry {
    totals: Totals,
    /// When the member expired; `None` while its report counts.
    ended: Option<Instant>,
}

impl Entry {
    /// The figures that count: of an expired member the safe part, which it may still use.
    fn counted(&self, sums: &Sums) -> Sums {
        if self.ended.is_none() {
            return *sums;
        }
        Sums { members: 0, lines: Line::default(), reserved: sums.reserved + sums.lines.safe }
    }
}

/// Sums to which reports are added, and from which they are removed.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    sums: Sums,
    /// Number of reports with a part that is kept free.
    reserving: u64,
}

impl Count {
    fn add(&mut self, sums: &Sums) {
        add(&mut self.sums, sums);
        self.reserving += u64::from(sums.reserved > 0.0);
    }

    fn remove(&mut self, sums: &Sums) {
        self.sums.members = self.sums.members.saturating_sub(sums.members);
        self.sums.lines.remove(&sums.lines);
        self.sums.reserved = (self.sums.reserved - sums.reserved).max(0.0);
        self.reserving = self.reserving.saturating_sub(u64::from(sums.reserved > 0.0));
        // Rounding leaves no rests.
        if self.sums.members == 0 {
            self.sums.lines = Line::default();
        }
        if self.reserving == 0 {
            self.sums.reserved = 0.0;
        }
    }

    fn is_empty(&self) -> bool {
        self.sums.members == 0 && self.reserving == 0
    }
}

fn add(to: &mut Sums, sums: &Sums) {
    to.members = to.members.saturating_add(sums.members);
    to.lines.add(&sums.lines);
    to.reserved += sums.reserved;
}

/// The figures of all tenants, with the names of their pools and their own.
fn each(totals: &Totals) -> impl Iterator<Item = (Key, &[Sums; 2])> {
    totals
        .iter()
        .flat_map(|(pool, tenants)| tenants.iter().map(move |(tenant, units)| ((pool.clone(), tenant.clone()), units)))
}

/// Adds the figures of all tenants to `counts`, or removes them, by `change`.
fn change_all(counts: &mut BTreeMap<Key, [Count; 2]>, totals: &Totals, change: impl Fn(&mut Count, &Sums)) {
    for (key, units) in each(totals) {
        let of_tenant = counts.entry(key.clone()).or_default();
        of_tenant.iter_mut().zip(units).for_each(|(count, sums)| change(count, sums));
        if of_tenant.iter().all(Count::is_empty) {
            counts.remove(&key);
        }
    }
}

/// The newest sum of a shard.
#[derive(Clone, Debug)]
struct ShardSum {
    period: u64,
    members: u64,
    totals: Arc<Totals>,
}

/// The newest reports of this host's shard, and the newest sums of all shards.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    own: String,
    shard: Shard,
    /// Number of periods for which the newest sum of a shard counts.
    kept: u64,
    /// Members of this host's shard, this host included.
    hosts: BTreeMap<String, Entry>,
    /// Sums over the other members of this host's shard.
    near: BTreeMap<Key, [Count; 2]>,
    shards: BTreeMap<Shard, ShardSum>,
    /// Sums over the other shards: those of `counted`, added up.
    far: BTreeMap<Key, [Count; 2]>,
    counted: BTreeMap<Shard, Arc<Totals>>,
    /// True if a sum has changed since `far` was made.
    far_is_old: bool,
}

impl Ledger {
    /// A ledger without reports. `own`: name of this host; `kept`: number of periods for which the newest sum of a shard counts.
    pub(crate) fn new(own: &str, kept: u64) -> Self {
        Self {
            own: own.to_owned(),
            shard: Shard::WHOLE,
            kept,
            hosts: BTreeMap::new(),
            near: BTreeMap::new(),
            shards: BTreeMap::new(),
            far: BTreeMap::new(),
            counted: BTreeMap::new(),
            far_is_old: false,
        }
    }

    /// Name of this host.
    pub(crate) fn own(&self) -> &str {
        &self.own
    }

    /// This host's shard.
    pub(crate) fn shard(&self) -> Shard {
        self.shard
    }

    /// Makes `shard` this host's shard, forgets members of other shards, and notes that members that are not `present` have
    /// expired.
    pub(crate) fn begin(&mut self, now: Instant, shard: Shard, present: &BTreeSet<&str>) {
        self.far_is_old |= shard != self.shard;
        self.shard = shard;
        self.hosts.retain(|host, _| shard.holds(host));
        for (host, entry) in &mut self.hosts {
            if !present.contains(host.as_str()) {
                entry.ended = entry.ended.or(Some(now));
            }
        }
        self.near.clear();
        for (_, entry) in self.hosts.iter().filter(|(host, _)| **host != self.own) {
            change_all(&mut self.near, &entry.totals, |count, sums| count.add(&entry.counted(sums)));
        }
    }

    /// Takes in a member's newest report, or with `None` that it has left. Returns the tenants whose sums may have changed.
    pub(crate) fn put(&mut self, host: &str, totals: Option<Totals>) -> BTreeSet<Key> {
        let is_known = self.hosts.contains_key(host);
        if !self.shard.holds(host) || (!is_known && self.hosts.len() >= MAX_HOSTS) {
            return BTreeSet::new();
        }
        self.replace(host, totals.map(|totals| Entry { totals, ended: None }))
    }

    /// Notes that a member has expired. Returns the tenants whose sums may have changed.
    pub(crate) fn end(&mut self, now: Instant, host: &str) -> BTreeSet<Key> {
        match self.hosts.get(host) {
            Some(entry) if entry.ended.is_none() => {
                let entry = Entry { ended: Some(now), ..entry.clone() };
                self.replace(host, Some(entry))
            }
            _ => BTreeSet::new(),
        }
    }

    /// Forgets members that expired at least `after` ago. Returns the tenants whose sums may have changed.
    pub(crate) fn forget(&mut self, now: Instant, after: Duration) -> BTreeSet<Key> {
        let is_old = |entry: &Entry| entry.ended.is_some_and(|ended| now.since(ended) >= after);
        let old: Vec<String> =
            self.hosts.iter().filter(|(_, entry)| is_old(entry)).map(|(host, _)| host.clone()).collect();
        old.iter().flat_map(|host| self.replace(host, None)).collect()
    }

    fn replace(&mut self, host: &str, entry: Option<Entry>) -> BTreeSet<Key> {
        let mut changed = BTreeSet::new();
        let before = self.hosts.remove(host);
        if host != self.own {
            if let Some(before) = &before {
                change_all(&mut self.near, &before.totals, |count, sums| count.remove(&before.counted(sums)));
            }
            if let Some(entry) = &entry {
                change_all(&mut self.near, &entry.totals, |count, sums| count.add(&entry.counted(sums)));
            }
            changed.extend(before.iter().chain(&entry).flat_map(|entry| each(&entry.totals)).map(|(key, _)| key));
        }
        self.hosts.extend(entry.map(|entry| (host.to_owned(), entry)));
        changed
    }

    /// Takes in the sum of a shard (number of members, and their figures), or with `None` that the shard's last member has left.
    pub(crate) fn put_sum(&mut self, shard: Shard, period: u64, sum: Option<(u64, Totals)>) {
        match sum {
            Some((members, totals)) => {
                self.shards.insert(shard, ShardSum { period, members, totals: Arc::new(totals) })
            }
            None => self.shards.remove(&shard),
        };
        let newest = self.newest_period();
        self.shards.retain(|_, sum| newest - sum.period <= self.kept);
        self.far_is_old = true;
    }

    fn newest_period(&self) -> u64 {
        self.shards.values().map(|sum| sum.period).max().unwrap_or(0)
    }

    /// True if the sum of a shard has changed since the last call of [`Self::refresh`].
    pub(crate) fn is_old(&self) -> bool {
        self.far_is_old
    }

    /// Adds up the sums of the other shards if one has changed; true if so. Only sums that have changed cost time.
    pub(crate) fn refresh(&mut self) -> bool {
        if !std::mem::take(&mut self.far_is_old) {
            return false;
        }
        let newest = self.newest_period();
        let own = self.shard;
        let is_outside = |shard: &Shard| *shard != own && !shard.within().any(|larger| larger == own);
        let outside = self.shards.iter().filter(|(shard, _)| is_outside(shard));
        let seen: Vec<Seen> = outside
            .map(|(shard, sum)| Seen { shard: *shard, age: newest - sum.period, members: sum.members })
            .collect();
        let shards = &self.shards;
        let present: BTreeMap<Shard, &Arc<Totals>> =
            cover(&seen).into_iter().filter_map(|shard| Some((shard, &shards.get(&shard)?.totals))).collect();
        let far = &mut self.far;
        self.counted.retain(|shard, totals| {
            let stays = present.get(shard).is_some_and(|newest| Arc::ptr_eq(newest, totals));
            if !stays {
                change_all(far, totals, Count::remove);
            }
            stays
        });
        for (shard, totals) in present {
            self.counted.entry(shard).or_insert_with(|| {
                change_all(far, totals, Count::add);
                Arc::clone(totals)
            });
        }
        true
    }

    /// Sums over all other members for a tenant, in requests and in bytes.
    pub(crate) fn others(&self, key: &Key) -> [Sums; 2] {
        let mut sums = [Sums::default(); 2];
        for counts in [self.far.get(key), self.near.get(key)].into_iter().flatten() {
            sums.iter_mut().zip(counts).for_each(|(to, count)| add(to, &count.sums));
        }
        sums
    }

    /// Sums over this host's shard, this host included, for the other shards.
    pub(crate) fn together(&self) -> Totals {
        let (mut totals, mut number) = (Totals::new(), 0);
        for entry in self.hosts.values() {
            for ((pool, tenant), units) in each(&entry.totals) {
                let of_pool = totals.entry(pool).or_default();
                if !of_pool.contains_key(&tenant) {
                    if number == MAX_SUM_TOTALS {
                        continue;
                    }
                    number += 1;
                }
                let sums = of_pool.entry(tenant).or_default();
                sums.iter_mut().zip(units).for_each(|(to, sums)| add(to, &entry.counted(sums)));
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        ("main".into(), "db".into())
    }

    fn claims(claim: f64) -> Totals {
        let sums = Sums { members: 1, lines: Line { claim, safe: 0.1, ..Line::default() }, reserved: 0.0 };
        Totals::from([("main".into(), BTreeMap::from([("db".into(), [sums, Sums::default()])]))])
    }

    fn of(ledger: &Ledger) -> (u64, f64, f64) {
        let [sums, unset] = ledger.others(&key());
        assert_eq!(unset, Sums::default());
        let figure = |figure: f64| (1e9 * figure).round() / 1e9;
        (sums.members, figure(sums.lines.claim), figure(sums.reserved))
    }

    #[test]
    fn members_count_until_they_leave_and_expired_ones_with_their_safe_part() {
        let mut ledger = Ledger::new("a", 5);
        let at = |s: u64| Instant::ZERO + Duration::from_secs(s);
        assert_eq!(ledger.put("a", Some(claims(0.5))), BTreeSet::new(), "this host is none of the others");
        assert_eq!(ledger.put("b", Some(claims(0.2))), BTreeSet::from([key()]));
        ledger.put("c", Some(claims(0.3)));
        assert_eq!(of(&ledger), (2, 0.5, 0.0));
        ledger.put("c", Some(claims(0.1)));
        ledger.end(at(1), "b");
        assert_eq!(of(&ledger), (1, 0.1, 0.1));
        assert_eq!(ledger.end(at(2), "b"), BTreeSet::new(), "it has expired already");
        ledger.put("c", None);
        assert_eq!(of(&ledger), (0, 0.0, 0.1));
        assert!(ledger.forget(at(60), Duration::from_secs(60)).is_empty());
        assert_eq!(ledger.forget(at(61), Duration::from_secs(60)), BTreeSet::from([key()]));
        assert_eq!((of(&ledger), ledger.others(&key())), ((0, 0.0, 0.0), [Sums::default(); 2]));
    }

    #[test]
    fn a_member_that_is_missing_when_a_watch_begins_has_expired() {
        let mut ledger = Ledger::new("a", 5);
        ["b", "c"].into_iter().for_each(|host| drop(ledger.put(host, Some(claims(0.2)))));
        ledger.begin(Instant::ZERO, Shard::WHOLE, &BTreeSet::from(["c"]));
        assert_eq!(of(&ledger), (1, 0.2, 0.1));
        // Members of other shards are not read any more.
        let shard = Shard::of("c", 12);
        ledger.begin(Instant::ZERO, shard, &BTreeSet::from(["c"]));
        assert_eq!(of(&ledger), (1, 0.2, u64::from(shard.holds("b")) as f64 * 0.1));
    }

    #[test]
    fn other_shards_count_by_their_sums() {
        let mut ledger = Ledger::new("a", 5);
        let own = Shard::of("a", 1);
        let other: Shard = if own.to_string() == "1-000" { "1-001" } else { "1-000" }.parse().expect("a shard");
        ledger.begin(Instant::ZERO, own, &BTreeSet::from(["a"]));
        ledger.put("a", Some(claims(0.5)));
        assert_eq!(ledger.together()["main"]["db"][0].lines.claim, 0.5);
        let sum = |claim: f64| Some((3, claims(claim)));
        ledger.put_sum(own, 10, sum(0.5));
        assert!(ledger.refresh() && !ledger.refresh());
        assert_eq!(of(&ledger), (0, 0.0, 0.0), "its members are known one by one");
        ledger.put_sum(other, 10, sum(0.4));
        ledger.refresh();
        assert_eq!(of(&ledger), (1, 0.4, 0.0));
        // Part of the same shard, and larger ones count instead.
        let hash = *other.hashes().start();
        let smaller: Shard = format!("2-{:03x}", hash >> 14).parse().expect("a shard");
        ledger.put_sum(smaller, 10, sum(0.1));
        ledger.refresh();
        assert_eq!(of(&ledger), (1, 0.4, 0.0));
        // A newer sum replaces the one before, without a rest.
        (0..100).for_each(|n| {
            ledger.put_sum(other, 10, sum(0.01 * f64::from(n)));
            assert!(ledger.is_old() && ledger.refresh() && !ledger.is_old());
        });
        ledger.put_sum(other, 10, sum(0.4));
        ledger.refresh();
        assert_eq!(of(&ledger), (1, 0.4, 0.0));
        // No more sums of it.
        ledger.put_sum(smaller, 16, sum(0.1));
        ledger.refresh();
        assert_eq!(of(&ledger), (1, 0.1, 0.0));
        ledger.put_sum(smaller, 17, None);
        ledger.refresh();
        assert_eq!(of(&ledger), (0, 0.0, 0.0));
    }
}
