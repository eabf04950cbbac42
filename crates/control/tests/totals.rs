//! Totals over a cluster: the members' parts never exceed the total together, whatever is late, missing or gone, and they follow
//! demand.

use evenkeel_control::cluster::totals::{Asked, Contact, Line, Share, Sums};
use evenkeel_control::rng::SplitMix64;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// An entry of the store, in its order: a member's new report with the report's number, or the end of the member's lease.
#[derive(Clone, Copy, Debug)]
struct Entry {
    member: usize,
    report: Option<(u64, Line)>,
}

/// A member, and the connection between it and the store.
struct Member {
    share: Share,
    /// Number of entries that the member has read.
    read: usize,
    /// Number of reports made.
    reports: u64,
    /// The first report that has not come back.
    awaited: Option<u64>,
    /// The report that is on its way to the store; a newer one takes its place.
    flying: Option<(u64, Line)>,
    /// True if the member can neither read nor write.
    is_cut: bool,
}

/// Members with a store that keeps the order of all writes.
struct World {
    totals: (u64, u64),
    log: Vec<Entry>,
    members: Vec<Member>,
    /// For each member, the index of the entry with which its lease ended, unless the member has reported since.
    expired: Vec<Option<usize>>,
}

impl World {
    fn new(count: usize, totals: (u64, u64)) -> Self {
        let member = |_| Member {
            share: Share::new(totals.0, totals.1),
            read: 0,
            reports: 0,
            awaited: None,
            flying: None,
            is_cut: false,
        };
        Self { totals, log: Vec::new(), members: (0..count).map(member).collect(), expired: vec![None; count] }
    }

    fn report(&mut self, member: usize, asked: &Asked) {
        let member = &mut self.members[member];
        member.reports += 1;
        member.share.measure(asked, 1.0);
        member.flying = Some((member.reports, member.share.report()));
        member.awaited = member.awaited.or(Some(member.reports));
    }

    /// A measurement within a period, and a report if it is due, or `always`.
    fn measure(&mut self, member: usize, asked: &Asked, always: bool) {
        let member = &mut self.members[member];
        member.share.measure(asked, 0.25);
        if always || member.share.is_due() {
            member.reports += 1;
            member.flying = Some((member.reports, member.share.early_report()));
            member.awaited = member.awaited.or(Some(member.reports));
        }
    }

    /// The report that is on its way reaches the store.
    fn land(&mut self, member: usize) {
        if self.members[member].is_cut {
            return;
        }
        if let Some(report) = self.members[member].flying.take() {
            self.log.push(Entry { member, report: Some(report) });
            self.expired[member] = None;
        }
    }

    /// The sums over all members but `own` after the first `read` entries, and the number of its own newest report there.
    fn view(&self, own: usize, read: usize) -> (Sums, u64) {
        let mut newest: Vec<Option<(u64, Line)>> = vec![None; self.members.len()];
        let mut gone = vec![false; self.members.len()];
        for entry in &self.log[..read] {
            newest[entry.member] = entry.report.or(newest[entry.member]);
            gone[entry.member] = entry.report.is_none();
        }
        let mut sums = Sums::default();
        for (member, report) in newest.iter().enumerate().filter(|(member, _)| *member != own) {
            match report {
                Some((_, line)) if gone[member] => sums.reserved += line.safe,
                Some((_, line)) => {
                    sums.members += 1;
                    sums.lines.add(line);
                }
                None => {}
            }
        }
        let back = newest[own].filter(|_| !gone[own]).map_or(0, |(number, _)| number);
        (sums, back)
    }

    /// Lets a member read the next entry.
    fn read(&mut self, member: usize) {
        let at = self.members[member].read;
        if self.members[member].is_cut || at == self.log.len() {
            return;
        }
        let (sums, back) = self.view(member, at + 1);
        let member = &mut self.members[member];
        member.read = at + 1;
        if back > 0 && back == member.reports {
            member.share.observe(&sums, true);
            member.awaited = None;
        } else if member.awaited.is_some_and(|awaited| back >= awaited) {
            member.share.observe_earlier(&sums);
            member.awaited = Some(member.reports);
        } else {
            member.share.observe(&sums, false);
        }
    }

    /// Ends the lease of a member that cannot write: it has noticed that before.
    fn expire(&mut self, member: usize) {
        let known = self.log.iter().any(|entry| entry.member == member);
        if self.members[member].is_cut && known && self.expired[member].is_none() {
            self.members[member].share.lost();
            self.members[member].awaited = None;
            self.expired[member] = Some(self.log.len());
            self.log.push(Entry { member, report: None });
        }
    }

    /// Time has passed until every other member has read of the expiry, or has expired itself and all have read of that.
    fn alone(&mut self, member: usize) {
        let Some(at) = self.expired[member] else { return };
        // Of what a member takes that has never had contact the others know nothing.
        if self.members[member].share.contact() != Contact::Lost {
            return;
        }
        let read_by_all = |at: usize| self.members.iter().all(|member| member.is_cut || member.read > at);
        let others_know = (0..self.members.len()).filter(|&other| other != member).all(|other| {
            !self.members[other].is_cut || self.members[other].read > at || self.expired[other].is_some_and(read_by_all)
        });
        if read_by_all(at) && others_know {
            self.members[member].share.alone();
        }
    }

    /// The connection of a member works again; reports that were on their way while it did not are lost.
    fn restore(&mut self, member: usize) {
        self.members[member].is_cut = false;
        self.members[member].flying = None;
    }

    fn assert_bounded(&self) {
        let limits: f64 = self.members.iter().map(|member| member.share.limit()).sum();
        assert!(limits <= 1.0 + 1e-9, "{limits} of a total");
        let (reservation, limit) = (self.totals.0 as f64, self.totals.1 as f64);
        for member in self.members.iter().filter(|_| limit > 0.0 && reservation <= limit) {
            let share = &member.share;
            assert!(share.reservation() * reservation <= share.limit() * limit + 1e-6, "{share:?}");
        }
    }

    /// A period without faults: all members report what `asked` says, and read what all reported.
    fn period(&mut self, asked: impl Fn(usize) -> f64) {
        for member in 0..self.members.len() {
            let (need, part) = (asked(member), self.members[member].share.limit());
            let served = need.min(part);
            self.report(member, &Asked { requests: 1e4, arrived: need, queued: (need - served).max(0.0), served });
        }
        for member in 0..self.members.len() {
            self.land(member);
        }
        self.read_all();
    }

    fn read_all(&mut self) {
        for member in 0..self.members.len() {
            while !self.members[member].is_cut && self.members[member].read < self.log.len() {
                self.read(member);
            }
        }
        self.assert_bounded();
    }

    fn limits(&self) -> Vec<f64> {
        self.members.iter().map(|member| member.share.limit()).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Report(usize, f64, f64),
    Measure(usize, f64, bool),
    Land(usize),
    Read(usize),
    ReadAll,
    Cut(usize),
    Expire(usize),
    Alone(usize),
    Restore(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let member = 0..5_usize;
    prop_oneof![
        8 => (member.clone(), 0.0..1.5_f64, prop_oneof![Just(0.0), 0.0..2.0_f64])
            .prop_map(|(member, arrived, queued)| Step::Report(member, arrived, queued)),
        4 => (member.clone(), 0.0..1.5_f64, any::<bool>())
            .prop_map(|(member, arrived, always)| Step::Measure(member, arrived, always)),
        8 => member.clone().prop_map(Step::Land),
        8 => member.clone().prop_map(Step::Read),
        3 => Just(Step::ReadAll),
        1 => member.clone().prop_map(Step::Cut),
        2 => member.clone().prop_map(Step::Expire),
        2 => member.clone().prop_map(Step::Alone),
        2 => member.prop_map(Step::Restore),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Reports that are late, lost or missing, members that read late, lose the store, expire and come back.
    #[test]
    fn parts_never_exceed_the_total(
        steps in proptest::collection::vec(step(), 1..400),
        count in 1..=5_usize,
        reservation in 0..=4_000_u64,
        limit in prop_oneof![Just(0), Just(4_000_u64)],
    ) {
        let mut world = World::new(count, (reservation, limit));
        for step in steps {
            match step {
                Step::Report(member, arrived, queued) if member < count => {
                    world.report(member, &Asked { requests: 100.0, arrived, queued, served: arrived });
                }
                Step::Measure(member, arrived, always) if member < count => {
                    let asked = Asked { requests: 100.0, arrived, queued: arrived / 2.0, served: arrived / 2.0 };
                    world.measure(member, &asked, always);
                }
                Step::Land(member) if member < count => world.land(member),
                Step::Read(member) if member < count => world.read(member),
                Step::ReadAll => world.read_all(),
                Step::Cut(member) if member < count => world.members[member].is_cut = true,
                Step::Expire(member) if member < count => world.expire(member),
                Step::Alone(member) if member < count => world.alone(member),
                Step::Restore(member) if member < count => world.restore(member),
                _ => {}
            }
            world.assert_bounded();
        }
    }
}

proptest! {
    // The assertions hold with high probability.
    #![proptest_config(ProptestConfig {
        cases: 256,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn parts_settle_by_demand(
        before in proptest::collection::vec(0.0..2.0_f64, 2..12),
        seed in any::<u64>(),
    ) {
        let count = before.len();
        let mut world = World::new(count, (0, 4_000));
        for _ in 0..4 {
            world.period(|member| before[member]);
        }
        let mut rng = SplitMix64::new(seed);
        let after: Vec<f64> = (0..count).map(|_| 2.0 * rng.next_f64()).collect();
        for _ in 0..6 {
            world.period(|member| after[member]);
        }
        // Of the need and the part of the queue that counts, as a member reports it.
        let sum: f64 = after.iter().sum();
        for (limit, need) in world.limits().into_iter().zip(&after) {
            let fair = if sum < 0.9 { *need } else { (need / sum).min(*need) };
            prop_assert!(limit >= 0.45 * fair, "{limit} for {need} of {sum}");
        }
        let used: f64 = world.limits().iter().zip(&after).map(|(limit, need)| limit.min(*need)).sum();
        prop_assert!(used >= 0.85 * sum.min(1.0), "{used} of {sum}");
    }
}

#[test]
fn demand_that_moves_takes_the_parts_along() {
    for count in [2, 3, 10, 30] {
        let mut world = World::new(count, (3_000, 4_000));
        for period in 0..40 {
            let busy = period / 10 % count;
            world.period(|member| if member == busy { 1.5 } else { 0.0 });
            let limits = world.limits();
            if period % 10 >= 2 && period > 3 {
                assert!(limits[busy] >= 0.96, "{} of {count} in period {period}", limits[busy]);
                assert!(world.members[busy].share.reservation() >= 0.96);
            }
        }
    }
}

#[test]
fn members_that_all_want_more_share_equally() {
    let mut world = World::new(4, (0, 4_000));
    for _ in 0..12 {
        world.period(|_| 1.0);
    }
    for limit in world.limits() {
        assert!((limit - (1.0 - 1.0 / 64.0) / 4.0).abs() < 0.02, "{limit}");
    }
    // One that asks for a twentieth gets about a twentieth of what the others get.
    for _ in 0..6 {
        world.period(|member| if member == 0 { 0.05 } else { 1.0 });
    }
    let limits = world.limits();
    assert!((0.01..0.06).contains(&limits[0]) && limits[1..].iter().all(|limit| *limit > 0.28), "{limits:?}");
}

#[test]
fn what_is_not_needed_goes_to_the_member_that_is_throttled() {
    let mut world = World::new(3, (0, 4_000));
    for _ in 0..8 {
        world.period(|member| [0.1, 0.1, 0.7][member]);
    }
    let limits = world.limits();
    assert!(limits[0] >= 0.1 && limits[1] >= 0.1 && limits[2] >= 0.7, "{limits:?}");
}

/// Clients in closed loops ask for what passes; needs alone would leave the first member's part as it is.
#[test]
fn members_with_closed_loops_share_equally_after_ten_periods() {
    let mut world = World::new(2, (0, 100_000));
    let queued = 64.0 / 100_000.0;
    for period in 0..12 {
        for member in 0..2 {
            let served = world.members[member].share.limit();
            let arrived = if period == 0 { queued } else { served };
            world.report(member, &Asked { requests: 1e5 * arrived, arrived, queued, served });
        }
        (0..2).for_each(|member| world.land(member));
        world.read_all();
    }
    let limits = world.limits();
    assert!((limits[0] - limits[1]).abs() < 0.1, "{limits:?}");
    assert!(limits.iter().sum::<f64>() > 0.9, "{limits:?}");
}

/// A member that has few requests queued because it needs little does not get an equal part.
#[test]
fn a_small_need_that_queues_a_little_takes_little_from_others() {
    let mut world = World::new(10, (0, 4_000));
    for _ in 0..10 {
        for member in 0..10 {
            let (need, part) = (if member == 0 { 2.0_f64 } else { 0.01 }, world.members[member].share.limit());
            let queued = if member == 0 { need } else { 0.000_25 };
            let served = need.min(part);
            world.report(member, &Asked { requests: 4_000.0 * need, arrived: need, queued, served });
        }
        (0..10).for_each(|member| world.land(member));
        world.read_all();
    }
    assert!(world.limits()[0] > 0.7, "{:?}", world.limits());
}

#[test]
fn what_a_dead_member_had_moves_to_the_others_except_for_its_safe_part() {
    let mut world = World::new(3, (3_000, 4_000));
    for _ in 0..6 {
        world.period(|_| 0.6);
    }
    world.members[2].is_cut = true;
    for _ in 0..3 {
        world.period(|_| 0.6);
    }
    world.expire(2);
    world.read_all();
    // Parts grow in the first period. Then queues are shorter, and for a period each member sees its own lower need beside the
    // old needs of the others.
    for _ in 0..4 {
        world.period(|_| 0.6);
    }
    // A quarter of the limit stays for the third member: the reservation fits beside it.
    let sum = world.limits()[..2].iter().sum::<f64>();
    assert!((0.73..=0.75).contains(&sum), "{sum}");
    let reserved: f64 = world.members[..2].iter().map(|member| member.share.reservation()).sum();
    assert!(reserved >= 0.97, "{reserved} of the reservation");
    world.alone(2);
    assert_eq!(world.members[2].share.contact(), Contact::Alone);
    assert!((world.limits()[2] - 0.25).abs() < 1e-12);
    world.assert_bounded();
    // Back again, within two periods.
    world.restore(2);
    for _ in 0..2 {
        world.period(|_| 0.6);
    }
    let limits = world.limits();
    assert!(limits.iter().all(|limit| (0.29..0.38).contains(limit)), "{limits:?}");
}

#[test]
fn a_member_alone_in_the_cluster_has_everything() {
    let mut world = World::new(1, (3_000, 4_000));
    world.period(|_| 0.1);
    assert!((world.limits()[0] - 1.0).abs() < 1e-12 && (world.members[0].share.reservation() - 1.0).abs() < 1e-12);
}

/// Demand moves from one member to another: early reports move the part within half a period, and then no more are made.
#[test]
fn early_reports_take_parts_along_within_a_period() {
    for count in [2, 3, 10, 100] {
        let mut world = World::new(count, (3_000, 4_000));
        for _ in 0..6 {
            world.period(|member| if member == 0 { 1.5 } else { 0.0 });
        }
        let mut before = 0;
        for measurement in 0..6 {
            before = world.log.len();
            for member in 0..count {
                let (need, part) = (if member == 1 { 1.5_f64 } else { 0.0 }, world.members[member].share.limit());
                let served = need.min(part);
                let asked = Asked { requests: 1e4, arrived: need, queued: need - served, served };
                world.measure(member, &asked, false);
                world.land(member);
                world.read_all();
            }
            assert!(measurement < 1 || world.limits()[1] >= 0.9, "{count}, {measurement}: {:?}", world.limits());
        }
        assert_eq!(world.log.len(), before, "{count}: reports without need");
    }
}

#[test]
fn members_that_cannot_be_read_have_equal_parts_and_more_waits_for_a_second_report() {
    let rest = |members: u64, claim: f64| {
        let lines = Line { need: 0.9, claim, ..Line::default() };
        Sums { members, lines, reserved: 0.0 }
    };
    let asked = Asked { requests: 10_000.0, arrived: 0.9, queued: 0.1, served: 0.9 };
    let mut share = Share::new(3_000, 4_000);
    let report = |share: &mut Share| {
        share.measure(&asked, 1.0);
        share.report()
    };
    share.observe(&rest(1, 0.5), false);
    report(&mut share);
    share.observe(&rest(1, 0.5), true);
    let before = share.limit();
    share.set_unread(2);
    // Two of four members: half of the limit, at once.
    assert!(before > 0.4 && (share.limit() - before * 0.5 / (0.5 + before)).abs() < 1e-9, "{share:?}");
    let line = report(&mut share);
    assert!(line.claim <= 0.5 && line.safe <= 0.25 && share.reservation() <= 0.6, "{line:?}, {share:?}");
    // One of the two was replaced by a member that can be read.
    share.set_unread(1);
    for _ in 0..2 {
        share.observe(&rest(2, 0.2), true);
        assert!(share.limit() <= 0.3, "the others may not have made room: {share:?}");
        report(&mut share);
    }
    share.observe(&rest(2, 0.2), true);
    assert!((0.35..=0.55).contains(&share.limit()), "{share:?}");
    // All can be read: the claims alone count.
    share.set_unread(0);
    report(&mut share);
    share.observe(&rest(2, 0.2), true);
    assert!(share.limit() > 0.4, "{share:?}");
}

#[test]
fn without_floors_members_that_read_each_other_divide_what_the_unread_ones_leave() {
    let rest = Sums { members: 1, lines: Line { claim: 0.2, ..Line::default() }, reserved: 0.0 };
    let mut share = Share::new(1_000, 4_000);
    share.set_unread(2);
    share.observe(&rest, false);
    for _ in 0..3 {
        share.report();
        share.observe(&rest, true);
    }
    // A quarter of the reservation, and a little more.
    assert!((0.25..0.28).contains(&share.reservation()), "{share:?}");
}
