//! Sums of shards by age: periods of clocks that differ, and shards whose sums have ended.
//!
//! All members of such a shard have died, or have lost the store. These may use their safe parts, which are kept free like those
//! of members that expire one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_control::cluster::shard::Shard;
use evenkeel_control::cluster::totals::{Line, Sums};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::cluster::Totals;

use super::{Ledger, UNDATED};

/// Safe parts of the members of shards whose sums have ended, and when that was noted; `None`: since the last look at the time.
pub(super) type Gone = BTreeMap<Shard, (Option<Instant>, Arc<Totals>)>;

/// True if a host can be in both shards.
fn overlap(one: Shard, other: Shard) -> bool {
    let contains = |larger: Shard, smaller: Shard| smaller.within().any(|shard| shard == larger);
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

/// The shards that have no member in the shard `own`.
pub(super) fn outside(gone: &Gone, own: Shard) -> impl Iterator<Item = (Shard, &Arc<Totals>)> {
    gone.iter().filter(move |(shard, _)| !overlap(**shard, own)).map(|(shard, (_, totals))| (*shard, totals))
}

impl Ledger {
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

    /// Ends sums that are too old. The safe parts stay, unless a shard with some of the members has a newer sum.
    pub(super) fn end_old_sums(&mut self) {
        let (newest, kept) = (self.newest_period(), self.kept);
        let mut old = Vec::new();
        self.shards.retain(|shard, sum| {
            let stays = sum.period == UNDATED || newest - sum.period <= kept;
            if !stays {
                old.push((*shard, Arc::clone(&sum.totals)));
            }
            stays
        });
        self.gone.extend(old.into_iter().map(|(shard, totals)| (shard, (None, Arc::new(expired(&totals))))));
        let shards = &self.shards;
        self.gone.retain(|shard, _| !shards.keys().any(|other| overlap(*shard, *other)));
    }

    /// Forgets the safe parts of shards whose sums ended at least `after` ago.
    pub(super) fn forget_gone(&mut self, now: Instant, after: Duration) {
        let number = self.gone.len();
        self.gone.values_mut().for_each(|(since, _)| *since = since.or(Some(now)));
        self.gone.retain(|_, (since, _)| since.is_none_or(|since| now.since(since) < after));
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
