//! Sums of shards by age: periods of clocks that differ, and shards whose sums have ended.
//!
//! All members of such a shard have died, or have lost the store. These may use their safe parts, which are kept free like those
//! of members that expire one by one. Of a member that comes back, the safe part is kept free no more: it counts by its reports,
//! or by a sum of its shard or of a part of that. A larger shard that is formed later knows nothing of members that are gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_control::cluster::shard::Shard;
use evenkeel_control::cluster::totals::{Line, Sums};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::cluster::Totals;

use super::{Ledger, ShardSum, UNDATED, add, each};

/// A shard whose sums have ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    /// When that was noted; `None`: since the last look at the time.
    since: Option<Instant>,
    /// The shard's last sum.
    last: Totals,
    /// The safe parts of the members that have not come back.
    kept: Arc<Totals>,
}

/// Shards whose sums have ended. This host was in none of them.
pub(super) type Gone = BTreeMap<Shard, Ended>;

/// True if `larger` contains `smaller`, and is not the same shard.
pub(super) fn contains(larger: Shard, smaller: Shard) -> bool {
    smaller.within().any(|shard| shard == larger)
}

/// True if a host can be in both shards.
fn overlap(one: Shard, other: Shard) -> bool {
    one == other || contains(one, other) || contains(other, one)
}

/// The same figures after all members have expired.
fn expired(totals: &Totals) -> Totals {
    let mut safe = totals.clone();
    for sums in safe.values_mut().flat_map(BTreeMap::values_mut).flatten() {
        *sums = Sums { members: 0, lines: Line::default(), reserved: sums.reserved + sums.lines.safe };
    }
    safe
}

/// The safe parts that are kept free.
pub(super) fn kept(gone: &Gone) -> impl Iterator<Item = (Shard, &Arc<Totals>)> {
    gone.iter().map(|(shard, ended)| (*shard, &ended.kept))
}

/// Safe parts of the members of a shard that are still missing, by its `last` sums and those over the members that are `back`.
fn missing(last: &Sums, back: &Sums) -> f64 {
    let members = last.members.saturating_sub(back.members) as f64 / last.members.max(1) as f64;
    last.lines.safe * members + (last.reserved - back.reserved).max(0.0)
}

impl Ended {
    /// The safe parts that are left after these members are back, at most those before: a member that is gone again counts by its
    /// new reports.
    fn left(&self, back: &Totals) -> Totals {
        let mut left = Totals::new();
        for ((pool, tenant), last) in each(&self.last) {
            let of = |totals: &Totals| {
                let of_pool = totals.get(&pool);
                of_pool.and_then(|tenants| tenants.get(&tenant)).copied().unwrap_or_default()
            };
            let (back, before) = (of(back), of(&self.kept));
            let part = |n: usize| before[n].reserved.min(missing(&last[n], &back[n]));
            let units = [0, 1].map(|n| Sums { reserved: part(n), ..Sums::default() });
            if units.iter().any(|sums| sums.reserved > 0.0) {
                left.entry(pool).or_default().insert(tenant, units);
            }
        }
        left
    }
}

/// Adds figures by tenant.
fn add_all(to: &mut Totals, totals: &Totals) {
    for ((pool, tenant), units) in each(totals) {
        let sums = to.entry(pool).or_default().entry(tenant).or_default();
        sums.iter_mut().zip(units).for_each(|(to, sums)| add(to, sums));
    }
}

impl Ledger {
    /// As [`Self::put_sum_of`], of a sum whose revision is not known.
    #[cfg(test)]
    pub(crate) fn put_sum(&mut self, shard: Shard, period: u64, sum: Option<(u64, Totals)>) {
        self.put_sum_of(shard, period, 0, sum);
    }

    /// The newest sum of this host's shard: the revision of the store up to which reports are in it, and the figures.
    pub(crate) fn own_sum(&self) -> Option<(u64, Arc<Totals>)> {
        self.shards.get(&self.shard).map(|sum| (sum.revision, Arc::clone(&sum.totals)))
    }

    /// Revision of the store up to which reports are in the sums of smaller shards within this host's; 0: none are known.
    pub(crate) fn revision_within(&self) -> u64 {
        let within = self.shards.iter().filter(|(shard, _)| contains(self.shard, **shard));
        within.map(|(_, sum)| sum.revision).max().unwrap_or(0)
    }

    /// Number of members that count at present, this host included, however far their clocks are off.
    pub(crate) fn members(&self) -> u64 {
        let near = self.hosts.values().filter(|entry| entry.ended.is_none()).count() as u64;
        let [outside, with_own] = self.far_members;
        outside.saturating_add(near.max(with_own))
    }

    /// Dates the known sums anew, one period before `period`, if theirs is so far from it that this host's clock was set, or no
    /// sum was read for long.
    pub(super) fn date_anew(&mut self, period: u64) {
        let apart = self.kept.saturating_add(2);
        for known in self.shards.values_mut().filter(|known| known.period != UNDATED) {
            if known.period.abs_diff(period) > apart {
                known.period = period.saturating_sub(1).max(1);
            }
        }
    }

    /// Ends sums that are too old. The safe parts stay.
    pub(super) fn end_old_sums(&mut self) {
        let (newest, kept) = (self.newest_period(), self.kept);
        let is_old = |sum: &ShardSum| sum.period != UNDATED && newest - sum.period > kept;
        let old: Vec<Shard> = self.shards.iter().filter(|(_, sum)| is_old(sum)).map(|(shard, _)| *shard).collect();
        // Smaller shards first: a larger one that ends with them has their members.
        for shard in old.into_iter().rev() {
            if let Some(sum) = self.shards.remove(&shard) {
                self.end_sum(shard, &sum.totals);
            }
        }
    }

    /// Keeps the safe parts of a shard whose sums have ended. Members of this host's shard are known one by one, and those of a
    /// larger shard that has a sum are in this sum.
    fn end_sum(&mut self, shard: Shard, totals: &Totals) {
        let is_summed = |larger: Shard| larger != Shard::WHOLE && self.shards.contains_key(&larger);
        if overlap(shard, self.shard) || shard.within().any(is_summed) {
            return;
        }
        let mut last = totals.clone();
        if let Some(before) = self.gone.remove(&shard) {
            add_all(&mut last, &before.kept);
        }
        let kept = Arc::new(expired(&last));
        self.gone.insert(shard, Ended { since: None, last, kept });
        // After a division its members count by the sums of its parts already.
        self.take_back(|gone| gone == shard);
    }

    /// Takes the members that are back off the safe parts of these shards.
    pub(super) fn take_back(&mut self, is_concerned: impl Fn(Shard) -> bool) {
        let mut gone = std::mem::take(&mut self.gone);
        for (shard, ended) in gone.iter_mut().filter(|(shard, _)| is_concerned(**shard)) {
            let left = ended.left(&self.back(*shard));
            if left != *ended.kept {
                ended.kept = Arc::new(left);
            }
        }
        gone.retain(|_, ended| !ended.kept.is_empty());
        self.gone = gone;
    }

    /// The figures of the members of a shard that are known to be back: of this host's shard one by one, expired ones included,
    /// and otherwise by the sums of the shard or of parts of it.
    fn back(&self, shard: Shard) -> Totals {
        let mut back = Totals::new();
        if contains(self.shard, shard) {
            let hosts = self.hosts.iter().filter(|(host, _)| shard.holds(host));
            hosts.for_each(|(_, entry)| add_all(&mut back, &entry.totals));
            return back;
        }
        let is_part = |of: Shard| of == shard || contains(shard, of);
        let is_summed = |of: Shard| is_part(of) && self.shards.contains_key(&of);
        for (of, sum) in &self.shards {
            if is_part(*of) && !of.within().any(is_summed) {
                add_all(&mut back, &sum.totals);
            }
        }
        back
    }

    /// Forgets the safe parts of shards whose sums ended at least `after` ago.
    pub(super) fn forget_gone(&mut self, now: Instant, after: Duration) {
        let number = self.gone.len();
        self.gone.values_mut().for_each(|ended| ended.since = ended.since.or(Some(now)));
        self.gone.retain(|_, ended| ended.since.is_none_or(|since| now.since(since) < after));
        self.far_is_old |= self.gone.len() != number;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A sum of three members with this claim.
    fn sum(claim: f64) -> Option<(u64, Totals)> {
        let sums = Sums { members: 3, lines: Line { claim, safe: 0.125, ..Line::default() }, reserved: 0.125 };
        Some((3, Totals::from([("main".into(), BTreeMap::from([("db".into(), [sums, Sums::default()])]))])))
    }

    /// Members, claims and kept parts of the other members.
    fn of(ledger: &mut Ledger) -> (u64, f64, f64) {
        ledger.refresh();
        let [sums, _] = ledger.others(&("main".into(), "db".into()));
        (sums.members, sums.lines.claim, sums.reserved)
    }

    /// A ledger of host a with the shards of its half of the cluster and of the other half.
    fn halves() -> (Ledger, Shard, Shard) {
        let own = Shard::of("a", 1);
        let other: Shard = if own.to_string() == "1-000" { "1-001" } else { "1-000" }.parse().expect("a shard");
        let mut ledger = Ledger::new("a", 5);
        ledger.begin(Instant::ZERO, own, &BTreeSet::from(["a"]));
        (ledger, own, other)
    }

    #[test]
    fn of_a_shard_whose_members_are_all_gone_the_safe_parts_stay_for_a_while() {
        let (mut ledger, own, other) = halves();
        let at = |s: u64| Instant::ZERO + Duration::from_secs(s);
        let ended = |ledger: &mut Ledger, from: u64| {
            ledger.put_sum(other, from, sum(0.5));
            for period in from..from + 12 {
                ledger.put_sum(own, period, sum(0.25));
                let expected = if period <= from + 5 { (3, 0.5, 0.125) } else { (0, 0.0, 0.25) };
                assert_eq!(of(ledger), expected, "period {period} after {from}");
            }
        };
        ended(&mut ledger, 10);
        // Some of its members come back, and are gone again.
        let half: Shard = format!("2-{:03x}", *other.hashes().start() >> 14).parse().expect("a shard");
        ledger.put_sum(half, 22, sum(0.5));
        assert_eq!(of(&mut ledger), (3, 0.5, 0.125));
        ledger.put_sum(half, 22, None);
        assert_eq!(of(&mut ledger), (0, 0.0, 0.0), "it has ended in order");
        ended(&mut ledger, 30);
        ledger.forget(at(1), Duration::from_secs(60));
        ledger.forget(at(60), Duration::from_secs(60));
        assert_eq!(of(&mut ledger), (0, 0.0, 0.25));
        ledger.forget(at(61), Duration::from_secs(60));
        assert_eq!(of(&mut ledger), (0, 0.0, 0.0));
    }

    /// Figures of this number of members.
    fn figures(members: u64, claim: f64, safe: f64, reserved: f64) -> Totals {
        let sums = Sums { members, lines: Line { claim, safe, ..Line::default() }, reserved };
        Totals::from([("main".into(), BTreeMap::from([("db".into(), [sums, Sums::default()])]))])
    }

    /// A ledger that knows another shard, whose four members are gone and leave a part of 5/8.
    fn with_gone() -> (Ledger, Shard, Shard) {
        let (mut ledger, own, other) = halves();
        ledger.put_sum(other, 10, Some((4, figures(4, 0.75, 0.5, 0.125))));
        (10..=16).for_each(|period| ledger.put_sum(own, period, sum(0.25)));
        assert_eq!(of(&mut ledger), (0, 0.0, 0.625));
        (ledger, own, other)
    }

    #[test]
    fn a_member_that_comes_back_leaves_the_safe_parts_of_the_others() {
        let (mut ledger, own, other) = with_gone();
        ledger.put_sum(other, 17, Some((1, figures(1, 0.375, 0.125, 0.0))));
        assert_eq!(of(&mut ledger), (1, 0.375, 0.5), "three of four safe parts, and what was kept before");
        // It goes again, and another one comes back.
        (18..=23).for_each(|period| ledger.put_sum(own, period, sum(0.25)));
        assert_eq!(of(&mut ledger), (0, 0.0, 0.625));
        ledger.put_sum(other, 24, Some((1, figures(1, 0.25, 0.125, 0.0))));
        assert_eq!(of(&mut ledger), (1, 0.25, 0.5));
        ledger.forget(Instant::ZERO, Duration::from_secs(60));
        ledger.forget(Instant::ZERO + Duration::from_secs(60), Duration::from_secs(60));
        assert_eq!(of(&mut ledger), (1, 0.25, 0.0));
    }

    #[test]
    fn members_that_all_come_back_leave_nothing_and_nor_do_those_that_go_in_order() {
        let (mut ledger, _, other) = with_gone();
        ledger.put_sum(other, 17, Some((2, figures(2, 0.375, 0.25, 0.0))));
        assert_eq!(of(&mut ledger), (2, 0.375, 0.375));
        ledger.put_sum(other, 18, Some((4, figures(4, 0.5, 0.5, 0.125))));
        assert_eq!(of(&mut ledger), (4, 0.5, 0.125));
        ledger.put_sum(other, 19, Some((1, figures(1, 0.5, 0.125, 0.0))));
        assert_eq!(of(&mut ledger), (1, 0.5, 0.0));
    }

    #[test]
    fn a_cluster_that_unites_keeps_the_safe_parts_of_members_that_are_gone() {
        let (mut ledger, _, other) = with_gone();
        let names = (b'b'..=b'z').map(|letter| char::from(letter).to_string());
        let back = names.into_iter().find(|name| other.holds(name)).expect("a host of the other shard");
        ledger.begin(Instant::ZERO, Shard::WHOLE, &BTreeSet::from(["a"]));
        assert_eq!(of(&mut ledger), (0, 0.0, 0.625));
        ledger.put(&back, Some(figures(1, 0.375, 0.125, 0.0)));
        assert_eq!(of(&mut ledger), (1, 0.375, 0.5));
        ledger.end(Instant::ZERO, &back);
        assert_eq!(of(&mut ledger), (0, 0.0, 0.625), "it is gone again, with its safe part");
        ledger.put(&back, None);
        assert_eq!(of(&mut ledger), (0, 0.0, 0.5), "it has left");
    }

    #[test]
    fn a_larger_shard_that_is_formed_later_knows_nothing_of_members_that_are_gone() {
        let (mut ledger, own, other) = halves();
        let half: Shard = format!("2-{:03x}", *other.hashes().start() >> 14).parse().expect("a shard");
        ledger.put_sum(half, 10, Some((4, figures(4, 0.75, 0.5, 0.0))));
        // The larger one has a sum when the smaller one ends: it has its members.
        (10..=16).for_each(|period| ledger.put_sum(other, period, sum(0.25)));
        assert_eq!(of(&mut ledger), (3, 0.25, 0.125));
        ledger.put_sum(other, 16, None);
        ledger.put_sum(half, 16, Some((4, figures(4, 0.75, 0.5, 0.0))));
        (17..=22).for_each(|period| ledger.put_sum(own, period, sum(0.25)));
        assert_eq!(of(&mut ledger), (0, 0.0, 0.5));
        ledger.put_sum(other, 23, sum(0.25));
        assert_eq!(of(&mut ledger), (3, 0.25, 0.625));
    }

    #[test]
    fn the_last_sum_of_a_shard_that_has_divided_leaves_nothing() {
        let (mut ledger, own, other) = halves();
        let first = *other.hashes().start() >> 14;
        let parts = [first, first + 1].map(|index| format!("2-{index:03x}").parse::<Shard>().expect("a shard"));
        ledger.put_sum(other, 10, Some((4, figures(4, 0.75, 0.5, 0.125))));
        for period in 11..=15 {
            ledger.put_sum(own, period, sum(0.25));
            parts.iter().for_each(|part| ledger.put_sum(*part, period, Some((2, figures(2, 0.25, 0.25, 0.0625)))));
        }
        assert_eq!(of(&mut ledger), (4, 0.5, 0.125));
        // The sum of another shard ends it, before those of its parts.
        ledger.put_sum(own, 16, sum(0.25));
        assert_eq!(of(&mut ledger), (4, 0.5, 0.125));
    }

    #[test]
    fn a_clock_that_is_set_loses_no_sum() {
        let (mut ledger, own, other) = halves();
        ledger.put_sum(other, 1_000, sum(0.5));
        for period in [1_000, 1_200, 1_201, 900, 901] {
            ledger.put_sum(own, period, sum(0.25));
            assert_eq!(of(&mut ledger), (3, 0.5, 0.125), "period {period}");
        }
        ledger.put_sum(other, 901, sum(0.375));
        assert_eq!(of(&mut ledger), (3, 0.375, 0.125));
    }
}
