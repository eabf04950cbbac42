//! Shares out a tenant's limit: it bounds reads and writes of all groups of the tenant together, while `io.max` bounds one
//! direction of one group.
//!
//! A place is one direction of one group. Once in a period each place gets a part of the limit:
//!
//! - a floor, so that it can begin;
//! - its rate in the last period and some room, or a bit less than its rate if it used up its part and may want more;
//! - of the rest, each place that used up its part an equal share. So places that all want more come to equal parts, and
//!   directions of one program, whose rates depend on each other, keep their ratio. Without such a place the rest goes to all by
//!   their rates.
//!
//! Together these parts are the limit. Bytes and requests are shared out independently. The kernel bounds bursts by itself.
//!
//! The kernel counts a request when it lets it pass, so nothing shows that the first request of a place waits. Therefore a place
//! that does not use up its part may have [`BEGIN`]. If many such places begin in one period, they exceed the limit until the
//! period ends, by at most [`OVER`].

use evenkeel_control::Duration;
use evenkeel_policy::units::Rates;

use super::super::owed::Pace;
use crate::actuator::io_max::Limits;

/// Time between two decisions about the parts of a limit.
pub(in crate::loops) const EVERY: Duration = Duration::from_secs(1);
/// Part of a limit that is shared out: a part in force may exceed the decided one slightly before it is written.
const SHARED_OUT: f64 = 0.97;
/// Part of a limit that is divided equally among all places.
const FLOOR: f64 = 0.05;
/// Part of its part from which on a place uses it up.
const USED_UP: f64 = 0.9;
/// The part of a place that does not use up its part, as a multiple of its rate. Such a place must not count as one that does.
const ROOM: f64 = 1.15;
/// Part of its rate that a place which uses up its part leaves to be shared out equally.
const LEFT: f64 = 0.1;
/// Parts that differ by at most this part stay as they are.
const SAME: f64 = 0.1;
/// Bytes per second that a place may have at least if it does not use up its part: most requests wait half a second or less.
const BEGIN: f64 = 262_144.0;
/// Largest part of a limit that all places together may have beyond it, so that each may have [`BEGIN`].
const OVER: f64 = 0.5;

/// One direction of a group, with its rate in the last period and its part of the limit in the same unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::loops) struct Place {
    pub(in crate::loops) rate: f64,
    pub(in crate::loops) part: f64,
}

impl Place {
    pub(in crate::loops) fn uses_up(&self) -> bool {
        self.rate > 0.0 && self.rate >= USED_UP * self.part
    }
}

/// The new parts of these places, which together are `limit`.
pub(in crate::loops) fn parts(limit: f64, places: &[Place]) -> Vec<f64> {
    let count = places.len() as f64;
    let (floor, open) = (FLOOR * limit / count, (1.0 - FLOOR) * limit);
    let wanted = |place: &Place| {
        let factor = if place.uses_up() { 1.0 - LEFT } else { ROOM };
        (factor * place.rate - floor).max(0.0)
    };
    let all: f64 = places.iter().map(wanted).sum();
    if all >= open {
        return places.iter().map(|place| floor + open / all * wanted(place)).collect();
    }
    let rest = open - all;
    let hungry = places.iter().filter(|place| place.uses_up()).count() as f64;
    let rates: f64 = places.iter().map(|place| place.rate).sum();
    let of_rest = |place: &Place| match place.uses_up() {
        true => 1.0 / hungry,
        false if hungry > 0.0 => 0.0,
        false if rates > 0.0 => place.rate / rates,
        false => 1.0 / count,
    };
    places.iter().map(|place| floor + wanted(place) + rest * of_rest(place)).collect()
}

/// A group's parts of its tenant's limit. Rates are in the order of [`Limits::all`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Share {
    /// Bytes and requests since the parts were decided on last, in measurements of this length in seconds.
    moved: [f64; 4],
    length_s: f64,
    /// Rates in the last period with a measurement, and the parts at its end; 0 without one.
    rates: [f64; 4],
    had: [f64; 4],
    limits: Limits,
    /// Bytes per second that the group may have at least, of reads and of writes.
    least: [u64; 2],
}

impl Share {
    /// Takes in the throughput of the group in an interval of this length.
    pub(super) fn measure(&mut self, length: Duration, pace: &Pace) {
        let seconds = length.as_secs_f64();
        let rates = [pace.bytes[0], pace.bytes[1], pace.requests[0], pace.requests[1]];
        self.moved.iter_mut().zip(rates).for_each(|(moved, rate)| *moved += seconds * rate);
        self.length_s += seconds;
    }

    /// The limits that are the group's parts, or more where it may begin; [`Limits::NONE`] without a limit of the tenant.
    pub(super) fn limits(&self) -> Limits {
        let [read, write] = self.least;
        let Limits { rbps, wbps, .. } = self.limits;
        Limits { rbps: rbps.map(|part| part.max(read)), wbps: wbps.map(|part| part.max(write)), ..self.limits }
    }

    /// True if the group used up one of its parts in the last period.
    pub(super) fn is_used_up(&self) -> bool {
        (0..4).any(|at| self.limits.all()[at].is_some() && self.place(at).uses_up())
    }

    /// True if the group uses up one of its parts at this throughput.
    pub(super) fn is_used_up_by(&self, pace: &Pace) -> bool {
        let rates = [pace.bytes[0], pace.bytes[1], pace.requests[0], pace.requests[1]];
        let part = |at: usize| self.limits.all()[at].map_or(0.0, |limit| limit as f64);
        (0..4).any(|at| self.limits.all()[at].is_some() && Place { rate: rates[at], part: part(at) }.uses_up())
    }

    fn place(&self, at: usize) -> Place {
        Place { rate: self.rates[at], part: self.had[at] }
    }

    /// True if the group has moved nothing in the last period and since.
    pub(super) fn rests(&self) -> bool {
        self.moved.iter().chain(&self.rates).all(|moved| *moved <= 0.0)
    }

    /// Ends the period of the group.
    pub(super) fn end_period(&mut self) {
        if self.length_s > 0.0 {
            self.rates = self.moved.map(|moved| moved / self.length_s);
            self.had = self.limits.all().map(|part| part.map_or(0.0, |part| part as f64));
        }
        (self.moved, self.length_s) = ([0.0; 4], 0.0);
    }
}

/// Shares out a tenant's limit among its groups, by their use in the last period. All parts stay as they are while each would
/// change little, if together they do not exceed the limit: if some of them changed, all together might exceed it.
pub(super) fn divide(limit: Rates, groups: &mut [&mut Share]) {
    let begin = begin(limit.bytes_per_s.0, groups.len());
    for share in groups.iter_mut() {
        share.least = [0, 1].map(|at| if share.place(at).uses_up() { 0 } else { begin });
    }
    let (bytes, requests) = (of_groups(limit.bytes_per_s.0, groups, 0), of_groups(limit.iops, groups, 2));
    let both = bytes.into_iter().zip(requests);
    let new: Vec<Limits> = both.map(|([rbps, wbps], [riops, wiops])| Limits { rbps, wbps, riops, wiops }).collect();
    let fits = do_fit(limit.bytes_per_s.0, groups, 0) && do_fit(limit.iops, groups, 2);
    if fits && groups.iter().zip(&new).all(|(share, new)| new.is_near(&share.limits, SAME)) {
        return;
    }
    groups.iter_mut().zip(new).for_each(|(share, new)| share.limits = new);
}

/// Bytes per second that each place may have at least if it does not use up its part.
pub(in crate::loops) fn begin(limit: u64, groups: usize) -> u64 {
    let of_each = OVER * SHARED_OUT * limit as f64 / (2 * groups.max(1)) as f64;
    BEGIN.min(of_each) as u64
}

/// True if the present parts of all groups together do not exceed the limit. `first`: as for [`of_groups`].
fn do_fit(limit: u64, groups: &[&mut Share], first: usize) -> bool {
    let parts = groups.iter().flat_map(|share| [share.limits.all()[first], share.limits.all()[first + 1]]);
    limit == 0 || parts.flatten().fold(0, u64::saturating_add) <= limit
}

/// The parts of reads and of writes of each group. `first`: the place of the limit of reads in [`Limits::all`].
fn of_groups(limit: u64, groups: &[&mut Share], first: usize) -> Vec<[Option<u64>; 2]> {
    if limit == 0 {
        return vec![[None; 2]; groups.len()];
    }
    let places: Vec<Place> = groups.iter().flat_map(|share| [share.place(first), share.place(first + 1)]).collect();
    let parts = parts(SHARED_OUT * limit as f64, &places);
    let set = |part: f64| Some((part as u64).max(Limits::LEAST));
    parts.chunks_exact(2).map(|both| [set(both[0]), set(both[1])]).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::units::Bytes;
    use proptest::prelude::*;

    use super::*;

    /// Ends a period of the groups of a tenant, and shares out the tenant's limit.
    fn share_out(limit: Rates, groups: &mut [&mut Share]) {
        groups.iter_mut().for_each(|share| share.end_period());
        divide(limit, groups);
    }

    /// Runs periods in which each place asks for so much, and returns the parts of the last two periods.
    fn run(limit: f64, asked: &[f64], periods: usize) -> [Vec<Place>; 2] {
        let mut places = vec![Place::default(); asked.len()];
        let mut before = places.clone();
        for _ in 0..periods {
            before.clone_from(&places);
            for (place, part) in places.iter_mut().zip(parts(limit, &before)) {
                place.part = part;
            }
            for (place, asked) in places.iter_mut().zip(asked) {
                place.rate = asked.min(place.part);
            }
        }
        [before, places]
    }

    #[test]
    fn a_busy_place_gets_nearly_all_and_one_that_begins_comes_to_an_equal_part() {
        let [_, alone] = run(1e6, &[f64::INFINITY, 0.0, 0.0, 0.0], 3);
        assert!(alone[0].part > 0.95e6, "{alone:?}");
        let mut places = alone;
        for _ in 0..60 {
            // The second one wants all that it can get from now on.
            places[1].rate = places[1].part;
            places[0].rate = places[0].part;
            let new = parts(1e6, &places);
            places.iter_mut().zip(new).for_each(|(place, part)| place.part = part);
        }
        assert!((places[0].part / places[1].part - 1.0).abs() < 0.05, "{places:?}");
    }

    #[test]
    fn parts_are_stable_while_groups_ask_for_the_same() {
        let all = f64::INFINITY;
        for asked in [[8e5, 1.5e5, 0.0, 0.0], [all, all, 0.0, 0.0], [all, 1e4, 0.0, 0.0], [1e5, 2e5, 3e5, 0.0]] {
            for periods in 60..70 {
                let [before, after] = run(1e6, &asked, periods);
                for (before, after) in before.iter().zip(&after) {
                    assert!((after.part / before.part - 1.0).abs() < SAME, "{asked:?}: {before:?} {after:?}");
                }
            }
        }
    }

    #[test]
    fn directions_of_one_program_keep_their_ratio() {
        let mut places = [Place { rate: 7e5, part: 7e5 }, Place { rate: 3e5, part: 3e5 }];
        for _ in 0..50 {
            let new = parts(1e6, &places);
            places.iter_mut().zip(new).for_each(|(place, part)| place.part = part);
            // Seven reads for three writes.
            let all = (places[0].part / 0.7).min(places[1].part / 0.3);
            (places[0].rate, places[1].rate) = (0.7 * all, 0.3 * all);
            assert!(all > 0.85e6, "{places:?}");
        }
    }

    #[test]
    fn small_changes_are_not_taken_over_and_larger_ones_are() {
        let limit = Rates { iops: 1_000, bytes_per_s: Bytes(0) };
        let pace = |reads: f64| Pace { bytes: [4096.0 * reads, 0.0], requests: [reads, 0.0] };
        let mut share = Share::default();
        let mut set = Vec::new();
        for reads in [900.0, 900.0, 880.0, 910.0, 0.0, 0.0] {
            share.measure(EVERY, &pace(reads));
            share_out(limit, &mut [&mut share]);
            set.push(share.limits());
        }
        assert!(set[0].riops.is_some_and(|limit| (900..=970).contains(&limit)), "{set:?}");
        assert_eq!((set[0].rbps, set[0].wbps), (None, None));
        assert!(set[1] == set[0] && set[2] == set[0] && set[3] == set[0], "{set:?}");
        let equal = |limit: Option<u64>| limit.is_some_and(|limit| (480..=485).contains(&limit));
        assert!(equal(set[5].riops) && equal(set[5].wiops), "nothing is asked for: {set:?}");
        share_out(Rates::default(), &mut [&mut share]);
        assert_eq!(share.limits(), Limits::NONE);
    }

    #[test]
    fn parts_that_exceed_a_limit_which_shrinks_a_little_are_not_kept() {
        let limit = |iops: u64| Rates { iops, bytes_per_s: Bytes(0) };
        let pace = |reads: f64| Pace { bytes: [0.0; 2], requests: [reads, 0.0] };
        let mut share = Share::default();
        let mut sums = Vec::new();
        for iops in [1_000, 980, 920] {
            share.measure(EVERY, &pace(900.0));
            share_out(limit(iops), &mut [&mut share]);
            sums.push(share.limits().all().into_iter().flatten().sum::<u64>());
        }
        assert!(sums[0] == sums[1] && (921..=970).contains(&sums[0]), "{sums:?}");
        assert!(sums[2] <= 893, "{sums:?}");
        assert!(share.is_used_up_by(&pace(900.0)) && !share.is_used_up_by(&pace(100.0)));
    }

    #[test]
    fn the_first_request_of_a_group_beside_a_busy_one_does_not_wait_long() {
        let limit = Rates { iops: 0, bytes_per_s: Bytes(10_000_000) };
        let mut shares = [Share::default(); 10];
        for _ in 0..5 {
            let written = shares[0].limits().wbps.map_or(1e7, |limit| limit as f64);
            shares[0].measure(EVERY, &Pace { bytes: [0.0, written], requests: [0.0, written / 65_536.0] });
            shares[1..].iter_mut().for_each(|share| share.measure(EVERY, &Pace::default()));
            let mut all: Vec<&mut Share> = shares.iter_mut().collect();
            share_out(limit, &mut all);
        }
        let parts: Vec<u64> = shares.iter().flat_map(|share| share.limits().all()).flatten().collect();
        assert!(parts.len() == 20 && parts.iter().all(|part| *part >= 240_000), "{parts:?}");
        assert!(shares[0].limits().wbps.is_some_and(|limit| limit > 9_000_000), "{parts:?}");
        assert!(parts.iter().sum::<u64>() <= 15_000_000, "{parts:?}");
        // Once they all want more, the parts are the limit.
        for _ in 0..5 {
            for share in &mut shares {
                let [read, written] = [share.limits().rbps, share.limits().wbps].map(|limit| limit.unwrap_or(0) as f64);
                share.measure(EVERY, &Pace { bytes: [read, written], requests: [1.0; 2] });
            }
            let mut all: Vec<&mut Share> = shares.iter_mut().collect();
            share_out(limit, &mut all);
        }
        let sum: u64 = shares.iter().flat_map(|share| share.limits().all()).flatten().sum();
        assert!(sum <= 9_700_000, "{sum}");
    }

    #[test]
    fn within_a_period_parts_follow_the_limit_alone() {
        let limit = |bytes: u64| Rates { iops: 0, bytes_per_s: Bytes(bytes) };
        let mut shares = [Share::default(); 2];
        for (share, written) in shares.iter_mut().zip([8e6, 1e6]) {
            share.measure(EVERY, &Pace { bytes: [0.0, written], requests: [0.0, 1e3] });
        }
        let mut all: Vec<&mut Share> = shares.iter_mut().collect();
        share_out(limit(10_000_000), &mut all);
        let first = shares.map(|share| share.limits());
        for bytes in [10_000_000, 20_000_000, 10_000_000, 10_000_000] {
            let mut all: Vec<&mut Share> = shares.iter_mut().collect();
            divide(limit(bytes), &mut all);
        }
        assert_eq!(shares.map(|share| share.limits()), first);
        let mut all: Vec<&mut Share> = shares.iter_mut().collect();
        divide(limit(1_000_000), &mut all);
        let sum: u64 = shares.iter().flat_map(|share| share.limits().all()).flatten().sum();
        assert!(sum <= 1_500_000, "{sum}");
    }

    #[test]
    fn a_group_that_stops_may_begin_again_also_if_no_part_changes() {
        let limit = Rates { iops: 0, bytes_per_s: Bytes(1_000_000) };
        let mut share = Share::default();
        let mut set = Vec::new();
        // Both directions want all that they can get, and then nothing.
        for rate in [1e6_f64, 1e6, 1e6, 0.0] {
            let rate = share.limits().rbps.map_or(rate, |part| rate.min(part as f64));
            share.measure(EVERY, &Pace { bytes: [rate; 2], requests: [1.0; 2] });
            share_out(limit, &mut [&mut share]);
            set.push((share.limits, share.least, share.rests()));
        }
        assert!(set[3].0 == set[2].0 && set[2].1 == [0, 0], "{set:?}");
        assert!(set[3].1.iter().all(|least| *least > 240_000), "{set:?}");
        share.measure(EVERY, &Pace::default());
        assert!(!share.rests() && set.iter().all(|(.., rests)| !rests), "it has moved requests");
        share.end_period();
        assert!(share.rests());
        share.measure(EVERY, &Pace { bytes: [1.0, 0.0], requests: [1.0, 0.0] });
        assert!(!share.rests());
    }

    #[test]
    fn groups_share_one_limit() {
        let limit = Rates { iops: 0, bytes_per_s: Bytes(100_000_000) };
        let mut shares = [Share::default(); 3];
        shares[1].measure(EVERY, &Pace { bytes: [0.0, 9e8], requests: [0.0, 9e3] });
        let mut all: Vec<&mut Share> = shares.iter_mut().collect();
        share_out(limit, &mut all);
        let sum: u64 = shares.iter().flat_map(|share| share.limits().all()).flatten().sum();
        assert!(sum <= 97_000_000, "{sum}");
        assert!(shares[1].limits().wbps.is_some_and(|limit| limit > 92_000_000) && shares[1].is_used_up());
        assert!(shares[0].limits().rbps.is_some() && !shares[0].is_used_up());
    }

    proptest! {
        /// Parts are the limit together, and no place has less than its floor, whatever was used and shared out before.
        #[test]
        fn parts_are_the_limit_together(
            limit in 100.0..1e10_f64,
            used in prop::collection::vec((0.0..2.0_f64, 0.0..1.0_f64), 1..40),
        ) {
            let place = |(rate, part): (f64, f64)| Place { rate: rate * limit, part: part * limit };
            let places: Vec<Place> = used.into_iter().map(place).collect();
            let new = parts(limit, &places);
            let sum: f64 = new.iter().sum();
            prop_assert!((sum / limit - 1.0).abs() < 1e-9, "{sum} of {limit}");
            let floor = FLOOR * limit / places.len() as f64;
            prop_assert!(new.iter().all(|part| *part >= floor * (1.0 - 1e-9)), "{new:?}");
        }

        /// Most of what is asked for, or of the limit, is used after a while.
        #[test]
        fn most_of_a_limit_is_used(asked in prop::collection::vec(0.0..2.0_f64, 1..20)) {
            let [_, places] = run(1.0, &asked, 200);
            let used: f64 = places.iter().map(|place| place.rate).sum();
            let most = asked.iter().sum::<f64>().min(1.0);
            prop_assert!(used >= 0.6 * most, "{asked:?} {places:?}");
        }
    }
}
