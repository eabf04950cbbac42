//! The other members' reports on tenants with totals, added up by tenant.
//!
//! Members of this host's shard count one by one. Members of other shards count by the newest sums of their shards; a sum of a
//! larger shard that contains this host's shard counts as a whole, so that some members may count twice, never none. Of a shard
//! whose sums end, the safe parts count after the lease and the safe time.
//!
//! Members whose reports cannot be read, because they have another version, are counted only ([`Ledger::unread`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_control::cluster::shard::{Seen, Shard, cover};
use evenkeel_control::cluster::totals::{Line, Sums};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::cluster::{MAX_SUM_TOTALS, Totals};

use crate::participant::Key;

mod gone;
mod shown;

use gone::contains;

/// The most members whose reports are kept; a shard has far fewer.
const MAX_HOSTS: usize = 1_024;
/// Period of a sum that this host has made itself, before the first sum of a shard.
const UNDATED: u64 = 0;

/// When a report of a member was read, and how long its member has contact with the cluster by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct News {
    /// Tells the report from others of the member: incarnation, period, and number of earlier reports about the period.
    pub(crate) report: (u64, u64, u8),
    /// When the report was read first.
    pub(crate) read: Instant,
    /// Time from then after which the member has lost the cluster, unless a newer report of it has reached the store.
    pub(crate) counts_for: Duration,
}

/// The newest report of a member.
#[derive(Clone, Debug)]
struct Entry {
    totals: Totals,
    /// True if the report cannot be read; it has no figures then.
    is_unread: bool,
    /// `None`: only the store says when the member has expired.
    news: Option<News>,
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

/// Key of figures that count: a shard, and true for the safe parts of members that are gone.
type Counted = (Shard, bool);

/// The newest sum of a shard.
#[derive(Clone, Debug)]
struct ShardSum {
    period: u64,
    /// Revision of the store up to which the reports of the shard's members are in the sum; 0: not known.
    revision: u64,
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
    gone: gone::Gone,
    /// Sums over the other shards: those of `counted`, added up.
    far: BTreeMap<Key, [Count; 2]>,
    counted: BTreeMap<Counted, Arc<Totals>>,
    /// Number of members in the sums that count: of other shards, and of a larger shard that contains this host's.
    far_members: [u64; 2],
    /// True if a sum has changed since `far` was made.
    far_is_old: bool,
    /// Number of other members of this host's shard whose newest reports cannot be read, expired ones included.
    unread: u64,
    /// Newest sums of shards that cannot be read: when they were read, and the number of their members.
    unread_sums: BTreeMap<Shard, (Instant, u64)>,
    /// True if a member was left out, as there were too many, since the newest report of this host, and since the one before.
    left_out: [bool; 2],
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
            gone: gone::Gone::new(),
            far: BTreeMap::new(),
            counted: BTreeMap::new(),
            far_members: [0; 2],
            far_is_old: false,
            unread: 0,
            unread_sums: BTreeMap::new(),
            left_out: [false; 2],
        }
    }

    /// Notes that this host reports: members that were left out report again before the next time.
    pub(crate) fn next_period(&mut self) {
        self.left_out = [false, self.left_out[0]];
    }

    /// True if members report that are not in the sums, because there are too many. Their parts are not known.
    pub(crate) fn is_overfull(&self) -> bool {
        self.left_out != [false; 2]
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
        self.far_is_old |= shard != self.shard || self.gone.keys().any(|gone| contains(shard, *gone));
        self.shard = shard;
        self.hosts.retain(|host, _| shard.holds(host));
        // All values are read anew, and the revisions of a store that was restored are lower ones.
        self.left_out = [false; 2];
        self.shards.values_mut().for_each(|sum| sum.revision = 0);
        for (host, entry) in &mut self.hosts {
            if !present.contains(host.as_str()) {
                entry.ended = entry.ended.or(Some(now));
            }
        }
        let others = self.hosts.iter().filter(|(host, _)| **host != self.own);
        self.unread = others.filter(|(_, entry)| entry.is_unread).count() as u64;
        self.near.clear();
        for (_, entry) in self.hosts.iter().filter(|(host, _)| **host != self.own) {
            change_all(&mut self.near, &entry.totals, |count, sums| count.add(&entry.counted(sums)));
        }
    }

    /// Takes in a member's newest report, or with `None` that it has left. Returns the tenants whose sums may have changed.
    pub(crate) fn put(&mut self, host: &str, totals: Option<Totals>) -> BTreeSet<Key> {
        self.put_entry(host, totals.map(|totals| Entry { totals, is_unread: false, news: None, ended: None }))
    }

    /// Takes in a member's newest report, as [`Self::put`] does. A report that is read again, because a watch begins anew or a
    /// write was repeated, was made no later than it was read first.
    pub(crate) fn put_news(&mut self, host: &str, totals: Totals, news: Option<News>) -> BTreeSet<Key> {
        let known = self.hosts.get(host).filter(|entry| entry.totals == totals).and_then(|entry| entry.news);
        let news = news.map(|news| known.filter(|known| known.report == news.report).unwrap_or(news));
        self.put_entry(host, Some(Entry { totals, is_unread: false, news, ended: None }))
    }

    /// Takes in that a member's newest report cannot be read, or that such a member is `leaving`. Returns the tenants whose sums
    /// may have changed.
    pub(crate) fn put_unread(&mut self, host: &str, leaving: bool) -> BTreeSet<Key> {
        let entry = Entry { totals: Totals::new(), is_unread: true, news: None, ended: None };
        self.put_entry(host, (!leaving).then_some(entry))
    }

    fn put_entry(&mut self, host: &str, entry: Option<Entry>) -> BTreeSet<Key> {
        if !self.shard.holds(host) {
            return BTreeSet::new();
        }
        if !self.hosts.contains_key(host) && self.hosts.len() >= MAX_HOSTS {
            self.left_out[0] |= entry.is_some();
            return BTreeSet::new();
        }
        self.replace(host, entry)
    }

    /// Takes in that a member has written a value that is no report: it is not silent, so only the store says when it expires.
    pub(crate) fn put_unusable(&mut self, host: &str) {
        if let Some(entry) = self.hosts.get_mut(host) {
            entry.news = None;
        }
    }

    /// Takes in that the newest sum of a shard cannot be read, with its number of members, or with `None` that the shard's last
    /// such member has left. It counts beside the shard's newest sum that can be read, as members of both versions write sums.
    pub(crate) fn put_unread_sum(&mut self, now: Instant, shard: Shard, members: Option<u64>) {
        match members {
            Some(members) => self.unread_sums.insert(shard, (now, members)),
            None => self.unread_sums.remove(&shard),
        };
    }

    /// Number of other members whose reports cannot be read, expired ones included. Some may count twice, none is left out.
    pub(crate) fn unread(&self) -> u64 {
        self.unread_sums().fold(self.unread, u64::saturating_add)
    }

    /// Number of other members whose reports cannot be read and count at present.
    pub(crate) fn unread_now(&self) -> u64 {
        let others = self.hosts.iter().filter(|(host, _)| **host != self.own);
        let present = others.filter(|(_, entry)| entry.is_unread && entry.ended.is_none()).count() as u64;
        self.unread_sums().fold(present, u64::saturating_add)
    }

    fn unread_sums(&self) -> impl Iterator<Item = u64> {
        let outside = self.unread_sums.iter().filter(move |(shard, _)| self.is_outside(shard));
        outside.map(|(_, (_, members))| *members)
    }

    /// True of a shard with members that are not in this host's shard.
    pub(crate) fn is_outside(&self, shard: &Shard) -> bool {
        *shard != self.shard && !shard.within().any(|larger| larger == self.shard)
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

    /// Notes that members have expired which had lost the cluster when this host made a report, at `made`, that it has read back
    /// now: with this report it has read all that the store had before. Returns the tenants whose sums may have changed.
    ///
    /// The store itself may say so much later: it extends all leases when another of its servers begins to lead.
    pub(crate) fn end_silent(&mut self, now: Instant, made: Instant) -> BTreeSet<Key> {
        let is_silent =
            |entry: &Entry| entry.ended.is_none() && entry.news.is_some_and(|news| made >= news.read + news.counts_for);
        let others = self.hosts.iter().filter(|(host, _)| **host != self.own);
        let silent: Vec<String> = others.filter(|(_, entry)| is_silent(entry)).map(|(host, _)| host.clone()).collect();
        silent.iter().flat_map(|host| self.end(now, host)).collect()
    }

    /// Forgets members that expired at least `after` ago. Returns the tenants whose sums may have changed.
    pub(crate) fn forget(&mut self, now: Instant, after: Duration) -> BTreeSet<Key> {
        self.unread_sums.retain(|_, (read, _)| now.since(*read) < after);
        self.forget_gone(now, after);
        let is_old = |entry: &Entry| entry.ended.is_some_and(|ended| now.since(ended) >= after);
        let old: Vec<String> =
            self.hosts.iter().filter(|(_, entry)| is_old(entry)).map(|(host, _)| host.clone()).collect();
        old.iter().flat_map(|host| self.replace(host, None)).collect()
    }

    fn replace(&mut self, host: &str, entry: Option<Entry>) -> BTreeSet<Key> {
        let mut changed = BTreeSet::new();
        let before = self.hosts.remove(host);
        if host != self.own {
            let number = |entry: &Option<Entry>| u64::from(entry.as_ref().is_some_and(|entry| entry.is_unread));
            self.unread = (self.unread + number(&entry)).saturating_sub(number(&before));
            if let Some(before) = &before {
                change_all(&mut self.near, &before.totals, |count, sums| count.remove(&before.counted(sums)));
            }
            if let Some(entry) = &entry {
                change_all(&mut self.near, &entry.totals, |count, sums| count.add(&entry.counted(sums)));
            }
            changed.extend(before.iter().chain(&entry).flat_map(|entry| each(&entry.totals)).map(|(key, _)| key));
        }
        self.hosts.extend(entry.map(|entry| (host.to_owned(), entry)));
        self.far_is_old |= self.gone.keys().any(|gone| gone.holds(host));
        changed
    }

    /// Keeps the reports of members outside `shard`, which this host reads one by one until now, as a sum of the whole cluster:
    /// no shard has published one yet when a cluster divides. It counts until the sums of the shards have as many members, or
    /// are newer by the periods for which a sum counts. Members that cannot be read go on to count until they are forgotten.
    pub(crate) fn keep_outside(&mut self, now: Instant, shard: Shard) {
        if self.shard != Shard::WHOLE || shard == Shard::WHOLE {
            return;
        }
        let mut totals = Totals::new();
        let (mut members, mut unread) = (0_u64, 0_u64);
        let outside = self.hosts.iter().filter(|(host, _)| **host != self.own && !shard.holds(host));
        for (_, entry) in outside {
            members += u64::from(entry.ended.is_none() && !entry.is_unread);
            unread += u64::from(entry.is_unread);
            for ((pool, tenant), units) in each(&entry.totals) {
                let sums = totals.entry(pool).or_default().entry(tenant).or_default();
                sums.iter_mut().zip(units).for_each(|(to, sums)| add(to, &entry.counted(sums)));
            }
        }
        if unread > 0 {
            let (read, before) = self.unread_sums.entry(Shard::WHOLE).or_insert((now, 0));
            (*read, *before) = (now, unread.max(*before));
        }
        // Sums that are newer are read again when the watch of the shard begins.
        self.shards.clear();
        if !totals.is_empty() {
            let sum = ShardSum { period: UNDATED, revision: 0, members, totals: Arc::new(totals) };
            self.shards.insert(Shard::WHOLE, sum);
        }
        self.far_is_old = true;
    }

    /// Takes in the sum of a shard (number of members, and their figures), or with `None` that the shard's last member has left.
    /// `period`: when the sum was written, by this host's clock; `revision`: up to which reports are in it. Returns false if a
    /// sum with later reports is known, so that this one does not count.
    pub(crate) fn put_sum_of(&mut self, shard: Shard, period: u64, revision: u64, sum: Option<(u64, Totals)>) -> bool {
        let is_newer = |known: &ShardSum| revision > 0 && known.revision > revision;
        if sum.is_some() && self.shards.get(&shard).is_some_and(is_newer) {
            return false;
        }
        self.date_anew(period);
        match sum {
            Some((members, totals)) => {
                self.shards.insert(shard, ShardSum { period, revision, members, totals: Arc::new(totals) })
            }
            None => self.shards.remove(&shard),
        };
        self.end_old_sums();
        self.take_back(|gone| gone == shard || contains(gone, shard));
        self.far_is_old = true;
        true
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
        let own = self.shard;
        self.take_back(|gone| contains(own, gone));
        let newest = self.newest_period();
        // From the first sums on, the one of `keep_outside` is the older one. Of the sums found when a watch begins, some may be
        // old, too.
        if let Some(whole) = self.shards.get_mut(&Shard::WHOLE).filter(|whole| whole.period == UNDATED) {
            whole.period = newest.saturating_sub(1);
        }
        let outside = self.shards.iter().filter(|(shard, _)| self.is_outside(shard));
        let seen: Vec<Seen> = outside
            .map(|(shard, sum)| Seen { shard: *shard, age: newest - sum.period, members: sum.members })
            .collect();
        let shards = &self.shards;
        let covering = cover(&seen);
        let members = |with_own: bool| {
            let sums = covering.iter().filter(|shard| contains(**shard, own) == with_own);
            sums.filter_map(|shard| shards.get(shard)).map(|sum| sum.members).fold(0, u64::saturating_add)
        };
        self.far_members = [members(false), members(true)];
        let mut present: BTreeMap<Counted, &Arc<Totals>> =
            covering.into_iter().filter_map(|shard| Some(((shard, false), &shards.get(&shard)?.totals))).collect();
        present.extend(gone::kept(&self.gone).map(|(shard, totals)| ((shard, true), totals)));
        let far = &mut self.far;
        self.counted.retain(|of, totals| {
            let stays = present.get(of).is_some_and(|newest| Arc::ptr_eq(newest, totals));
            if !stays {
                change_all(far, totals, Count::remove);
            }
            stays
        });
        for (of, totals) in present {
            self.counted.entry(of).or_insert_with(|| {
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
                // An expired member without a safe part leaves nothing.
                if entry.ended.is_some() && units.iter().all(|sums| entry.counted(sums) == Sums::default()) {
                    continue;
                }
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
    use evenkeel_policy::cluster::MAX_TOTALS;

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
    fn a_member_that_was_silent_for_long_before_a_report_of_this_host_has_expired() {
        let mut ledger = Ledger::new("a", 5);
        let at = |s: u64| Instant::ZERO + Duration::from_secs(s);
        let news = |period: u64, s: u64| {
            Some(News { report: (1, period, 0), read: at(s), counts_for: Duration::from_secs(5) })
        };
        ledger.put_news("b", claims(0.2), news(7, 10));
        // The same report again, and no matter when this host's report came back.
        ledger.put_news("b", claims(0.2), news(7, 12));
        assert_eq!((ledger.end_silent(at(30), at(14)), of(&ledger)), (BTreeSet::new(), (1, 0.2, 0.0)));
        assert_eq!(ledger.end_silent(at(30), at(15)), BTreeSet::from([key()]));
        assert_eq!((ledger.end_silent(at(31), at(16)), of(&ledger)), (BTreeSet::new(), (0, 0.0, 0.1)));
        // It is back. This host itself, and a member whose lease is not known, never expire so.
        ledger.put_news("a", claims(0.3), news(1, 1));
        ledger.put_news("b", claims(0.2), news(8, 32));
        ledger.put_news("c", claims(0.4), None);
        assert_eq!((ledger.end_silent(at(36), at(36)), of(&ledger)), (BTreeSet::new(), (2, 0.6, 0.0)));
        assert_eq!(ledger.end_silent(at(37), at(37)), BTreeSet::from([key()]));
        assert_eq!(of(&ledger), (1, 0.4, 0.1));
        // Other figures in a report of the same number are another report.
        ledger.put_news("b", claims(0.1), news(8, 40));
        assert_eq!((ledger.end_silent(at(44), at(44)), of(&ledger)), (BTreeSet::new(), (2, 0.5, 0.0)));
        // It is not silent that nothing it writes can be used.
        ledger.put_unusable("b");
        assert_eq!((ledger.end_silent(at(60), at(60)), of(&ledger)), (BTreeSet::new(), (2, 0.5, 0.0)));
    }

    #[test]
    fn members_beyond_those_that_are_kept_are_known_to_be_missing_for_two_periods() {
        let mut ledger = Ledger::new("a", 5);
        (0..MAX_HOSTS).for_each(|n| drop(ledger.put(&format!("h{n}"), Some(claims(0.0)))));
        ledger.put("h0", Some(claims(0.1)));
        assert!(!ledger.is_overfull());
        ledger.put("more", Some(claims(0.5)));
        assert!(ledger.is_overfull() && of(&ledger) == (MAX_HOSTS as u64, 0.1, 0.0));
        ledger.next_period();
        assert!(ledger.is_overfull(), "it may report later in its period");
        ledger.next_period();
        assert!(!ledger.is_overfull());
        ledger.put("more", Some(claims(0.5)));
        ledger.begin(Instant::ZERO, Shard::WHOLE, &BTreeSet::new());
        assert!(!ledger.is_overfull());
    }

    #[test]
    fn totals_are_shown_by_host_with_the_largest_parts_first() {
        let mut ledger = Ledger::new("h0", 5);
        assert!(ledger.by_host().is_empty());
        for n in 0..12_u32 {
            ledger.put(&format!("h{n}"), Some(claims(f64::from(n) / 100.0)));
        }
        // Of an expired member the safe part, a tenth.
        ledger.end(Instant::ZERO, "h11");
        let shown = ledger.by_host();
        let [total] = shown.as_slice() else { panic!("{shown:?}") };
        assert_eq!((total.pool.as_str(), total.tenant.as_str(), total.unit.as_str()), ("main", "db", "requests"));
        let hosts: Vec<&str> = total.hosts.iter().map(|of| of.host.as_str()).collect();
        assert_eq!(hosts, ["h10", "h11", "h9", "h8", "h7", "h6", "h5", "h4"]);
        assert_eq!(total.more_hosts, 4);
        assert!((total.more_part - 0.06).abs() < 1e-9, "{total:?}");
        // Members of another shard, of which only the sum is known.
        let own = Shard::of("h0", 1);
        let other: Shard = if own.to_string() == "1-000" { "1-001" } else { "1-000" }.parse().expect("a shard");
        let mut ledger = Ledger::new("h0", 5);
        ledger.begin(Instant::ZERO, own, &BTreeSet::new());
        ledger.put_sum(other, 1, Some((3, claims(0.4))));
        ledger.refresh();
        let shown = ledger.by_host();
        let [total] = shown.as_slice() else { panic!("{shown:?}") };
        assert_eq!((total.hosts.len(), total.more_hosts, total.more_part), (0, 1, 0.4));
    }

    #[test]
    fn a_guarantee_is_shown_with_its_tenant() {
        let sums = Sums { members: 1, lines: Line { claim: 0.5, ..Line::default() }, reserved: 0.0 };
        let mut ledger = Ledger::new("own", 5);
        let of_pool = BTreeMap::from([("read db".into(), [Sums::default(), sums]), ("db".into(), [sums; 2])]);
        ledger.put("own", Some(Totals::from([("main".into(), of_pool)])));
        let shown = ledger.by_host();
        let shown: Vec<(&str, &str)> = shown.iter().map(|of| (of.tenant.as_str(), of.unit.as_str())).collect();
        assert_eq!(shown, [("db", "requests"), ("db", "bytes"), ("db", "bytes of guarantee.read")]);
    }

    #[test]
    fn of_many_totals_those_of_this_hosts_tenants_are_shown_first_and_the_last_ones_not() {
        let sums = Sums { members: 1, lines: Line { claim: 0.25, ..Line::default() }, reserved: 0.0 };
        let totals = |names: Vec<String>| {
            let of_pool = names.into_iter().map(|name| (name, [sums, Sums::default()])).collect();
            Totals::from([("main".into(), of_pool)])
        };
        let many = |start: &str| totals((0..MAX_TOTALS).map(|n| format!("{start}{n:03}")).collect());
        let mut ledger = Ledger::new("own", 5);
        ledger.put("c", Some(many("b")));
        ledger.put("d", Some(many("a")));
        ledger.put("own", Some(totals(vec!["a001".into(), "z".into()])));
        let shown = ledger.by_host();
        let names: Vec<&str> = shown.iter().map(|of| of.tenant.as_str()).collect();
        assert_eq!((names.len(), &names[..3], names.last()), (MAX_TOTALS, &["a001", "z", "a000"][..], Some(&"a254")));
        let hosts: Vec<usize> = shown[..3].iter().map(|of| of.hosts.len()).collect();
        assert_eq!(hosts, [2, 1, 1]);
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
    fn members_that_cannot_be_read_are_counted_until_they_leave_or_are_forgotten() {
        let mut ledger = Ledger::new("a", 5);
        let at = |s: u64| Instant::ZERO + Duration::from_secs(s);
        let counts = |ledger: &Ledger| (ledger.unread(), ledger.unread_now());
        ledger.put("b", Some(claims(0.2)));
        // The second version takes the place of the first one on the same host.
        assert_eq!(ledger.put_unread("b", false), BTreeSet::from([key()]));
        ["a", "b", "c"].into_iter().for_each(|host| drop(ledger.put_unread(host, false)));
        assert_eq!((counts(&ledger), of(&ledger)), ((2, 2), (0, 0.0, 0.0)), "this host is none of the others");
        ledger.end(at(1), "b");
        assert_eq!(counts(&ledger), (2, 1));
        ledger.put_unread("c", true);
        assert_eq!(counts(&ledger), (1, 0));
        ledger.begin(at(2), Shard::WHOLE, &BTreeSet::new());
        assert_eq!(counts(&ledger), (1, 0));
        ledger.put("b", Some(claims(0.2)));
        assert_eq!((counts(&ledger), of(&ledger)), ((0, 0), (1, 0.2, 0.0)));
        ledger.put_unread("d", false);
        ledger.end(at(3), "d");
        ledger.forget(at(63), Duration::from_secs(60));
        assert_eq!(counts(&ledger), (0, 0));
        // Sums of other shards, too.
        let own = Shard::of("a", 1);
        let other: Shard = if own.to_string() == "1-000" { "1-001" } else { "1-000" }.parse().expect("a shard");
        [(own, 4), (other, 3)].into_iter().for_each(|(of, members)| ledger.put_unread_sum(at(70), of, Some(members)));
        assert_eq!(counts(&ledger), (0, 0), "all are members of the whole cluster");
        ledger.begin(at(70), own, &BTreeSet::from(["a", "b"]));
        assert_eq!(counts(&ledger), (3, 3));
        ledger.forget(at(130), Duration::from_secs(60));
        assert_eq!(counts(&ledger), (0, 0));
        ledger.put_unread_sum(at(130), other, Some(3));
        ledger.put_unread_sum(at(131), other, None);
        assert_eq!(counts(&ledger), (0, 0));
    }

    #[test]
    fn members_of_other_shards_count_by_their_last_reports_until_the_first_sums_come() {
        let mut ledger = Ledger::new("a", 5);
        let own = Shard::of("a", 1);
        let other: Shard = if own.to_string() == "1-000" { "1-001" } else { "1-000" }.parse().expect("a shard");
        let names: Vec<String> = (b'b'..=b'z').map(|letter| char::from(letter).to_string()).collect();
        let outside: Vec<&str> = names.iter().map(String::as_str).filter(|name| other.holds(name)).take(2).collect();
        for host in ["a", outside[0], outside[1]] {
            ledger.put(host, Some(claims(0.3)));
        }
        let divide = |ledger: &mut Ledger| {
            ledger.keep_outside(Instant::ZERO, own);
            ledger.begin(Instant::ZERO, own, &BTreeSet::from(["a"]));
            ledger.refresh();
        };
        divide(&mut ledger);
        assert_eq!(of(&ledger), (2, 0.6, 0.0));
        // The sum of this host's shard says nothing of the others, and one of few members is not all.
        for (shard, members) in [(own, 1), (other, 1)] {
            ledger.put_sum(shard, 1_000, Some((members, claims(0.1))));
            ledger.refresh();
            assert_eq!(of(&ledger), (2, 0.6, 0.0));
        }
        ledger.put_sum(other, 1_000, Some((2, claims(0.5))));
        ledger.refresh();
        assert_eq!(of(&ledger), (1, 0.5, 0.0), "a sum of both");
        // In a divided cluster there are sums: nothing is kept.
        divide(&mut ledger);
        assert_eq!(of(&ledger), (1, 0.5, 0.0));
        // Sums of fewer members replace the old reports when these are too old for a sum.
        for (period, expected) in [(1_004, (2, 0.6, 0.0)), (1_005, (1, 0.2, 0.0))] {
            ledger.put_sum(other, period, Some((1, claims(0.2))));
            ledger.refresh();
            assert_eq!(of(&ledger), expected, "{period}");
        }
        // An old sum that is found when the watch begins makes the last reports no older.
        let mut ledger = Ledger::new("a", 5);
        outside.iter().for_each(|host| drop(ledger.put(host, Some(claims(0.3)))));
        divide(&mut ledger);
        let smaller: Shard = format!("2-{:03x}", *other.hashes().start() >> 14).parse().expect("a shard");
        ledger.put_sum(smaller, 995, Some((1, claims(0.1))));
        ledger.put_sum(own, 1_000, Some((1, claims(0.1))));
        ledger.refresh();
        assert_eq!(of(&ledger), (2, 0.6, 0.0));
        // Members that cannot be read go on to count.
        let mut ledger = Ledger::new("a", 5);
        outside.iter().for_each(|host| drop(ledger.put_unread(host, false)));
        divide(&mut ledger);
        assert_eq!((ledger.unread(), ledger.unread_now()), (2, 2));
        ledger.forget(Instant::ZERO + Duration::from_secs(60), Duration::from_secs(60));
        assert_eq!(ledger.unread(), 0);
    }

    #[test]
    fn an_expired_member_without_a_safe_part_takes_no_room_in_the_sum_of_its_shard() {
        let mut ledger = Ledger::new("a", 5);
        let claim = Sums { members: 1, lines: Line { claim: 0.3, ..Line::default() }, reserved: 0.0 };
        let mail = Totals::from([("main".into(), BTreeMap::from([("mail".into(), [claim, Sums::default()])]))]);
        ledger.put("b", Some(mail));
        ledger.put("c", Some(claims(0.2)));
        let names = |ledger: &Ledger| ledger.together()["main"].keys().cloned().collect::<Vec<String>>();
        assert_eq!(names(&ledger), ["db", "mail"]);
        ledger.end(Instant::ZERO, "b");
        ledger.end(Instant::ZERO, "c");
        assert_eq!(names(&ledger), ["db"]);
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
