//! Limits of single volumes, in front of the scheduler.
//!
//! A tenant's requests may be of several volumes, and a volume's requests of several tenants. So a request of a volume with a
//! limit is queued for its tenant once that limit lets it pass, and requests of other volumes go before it. Tenants that share
//! a volume take turns at its limit, so that none waits for the backlog of another; the requests of each keep their order. A
//! pool without such limits pays for the check of a map, and for that of an instant.

mod turns;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;

use super::dropped::ONE_IN;
use super::view::of_operator;
use super::{Next, Pool, TenantId};
use crate::limits::LimitSet;
use crate::mclock::Wish;
use crate::time::{Duration, Instant};
use crate::token_bucket::TokenBucket;
use crate::units::{Rates, Work};
use turns::{Turns, Waiting};

/// Largest number of requests that pass the limits of their volumes in one step of [`Pool::dispatch_wanted`]: about as much work
/// as one dispatch.
const PASS_AT_ONCE: usize = 4;

/// Time for which a volume's limit counts as binding after a request has waited for it: a volume that is idle between its
/// requests often has none that waits.
const BINDS_FOR: Duration = Duration::from_secs(1);

/// The limit of a volume, and the requests that wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeView {
    /// The limit on all requests of the volume together.
    pub limit: Rates,
    /// Number of requests that wait for the limit.
    pub waiting: usize,
    /// True if a request waits for the limit, or waited for it within the last second.
    pub binds: bool,
    /// Number of requests that have passed after a wait for the limit, since the volume has one.
    pub waits: u64,
    /// The time that these requests waited, added up.
    pub waited: Duration,
}

impl VolumeView {
    /// The limits on the volume, by owner: on IOPS, and on bytes per second.
    pub fn limits(&self) -> [LimitSet; 2] {
        of_operator(self.limit)
    }
}

/// A volume with a limit.
struct Volume<R> {
    limit: Rates,
    bucket: TokenBucket,
    waiting: Turns<R>,
    /// Number of waiting requests that may be unwanted, see [`Pool::drop_unwanted_of`].
    unwanted: u64,
    /// Numbers of the requests that the present search for unwanted ones is still to look at; empty without a search.
    search: Range<u64>,
    /// When a request last passed that had waited for the limit.
    bound_at: Option<Instant>,
    /// Number of requests that have passed after a wait for the limit.
    waits: u64,
    /// The time that these requests waited, added up.
    waited: Duration,
    /// True if the limit was withdrawn while requests waited: they pass step by step, and new requests wait behind them.
    withdrawn: bool,
}

/// The volumes of a pool that have limits.
pub(super) struct Volumes<R> {
    limited: BTreeMap<u32, Volume<R>>,
    /// Volumes with waiting requests, each with the instant at which its limit lets the next one pass.
    next: BTreeSet<(Instant, u32)>,
    /// The first instant of `next`; in the far future if no request waits.
    due: Instant,
}

impl<R> Volumes<R> {
    pub(super) const fn new() -> Self {
        Self { limited: BTreeMap::new(), next: BTreeSet::new(), due: Instant::FAR_FUTURE }
    }

    /// When the limit of a volume lets the next waiting request pass.
    #[inline]
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// The answer of a pool in which no request is queued.
    #[inline]
    pub(super) fn idle<T>(&self) -> Next<T> {
        if self.due == Instant::FAR_FUTURE { Next::Idle } else { Next::Wait(self.due) }
    }

    /// Takes the waiting requests of a tenant that leaves.
    pub(super) fn leave(&mut self, id: TenantId) -> Vec<R> {
        let theirs = self.limited.iter().filter(|(_, of)| of.waiting.has(id));
        let volumes: Vec<u32> = theirs.map(|(&volume, _)| volume).collect();
        let taken = volumes.into_iter().flat_map(|volume| self.take_of(volume, id));
        taken.map(|waiting| waiting.request).collect()
    }

    /// Notes that `next` has changed.
    fn settle(&mut self) {
        self.due = self.next.first().map_or(Instant::FAR_FUTURE, |&(due, _)| due);
    }

    /// Sets the limit of a volume; does nothing if it has this limit.
    fn set(&mut self, now: Instant, volume: u32, limit: Rates, burst: Duration) {
        let Some(of) = self.limited.get_mut(&volume) else {
            let bucket = TokenBucket::new(limit, burst);
            let of = Volume {
                limit,
                bucket,
                waiting: Turns::new(),
                unwanted: 0,
                search: 0..0,
                bound_at: None,
                waits: 0,
                waited: Duration::ZERO,
                withdrawn: false,
            };
            self.limited.insert(volume, of);
            return;
        };
        if of.limit == limit && of.bucket.burst() == burst && !of.withdrawn {
            return;
        }
        self.next.remove(&(of.bucket.ready_at(), volume));
        of.bucket.set_rates(now, limit, burst);
        (of.limit, of.withdrawn) = (limit, false);
        if !of.waiting.is_empty() {
            self.next.insert((of.bucket.ready_at(), volume));
        }
        self.settle();
    }

    /// Withdraws the limit of a volume; the requests that wait for it are due at once.
    fn withdraw(&mut self, volume: u32) {
        let Some(of) = self.limited.get_mut(&volume) else { return };
        if of.waiting.is_empty() {
            self.limited.remove(&volume);
            return;
        }
        self.next.remove(&(of.bucket.ready_at(), volume));
        of.bucket = TokenBucket::new(Rates::UNSET, Duration::ZERO);
        (of.limit, of.withdrawn) = (Rates::UNSET, true);
        self.next.insert((of.bucket.ready_at(), volume));
        self.settle();
    }

    /// Returns a request that passes at `now`, charged to the limit of its volume; otherwise it waits here.
    fn admit(&mut self, now: Instant, volume: u32, waiting: Waiting<R>) -> Option<Waiting<R>> {
        let Some(of) = self.limited.get_mut(&volume) else { return Some(waiting) };
        if of.waiting.is_empty() {
            let ready = of.bucket.ready_at();
            if ready <= now {
                of.bucket.take(now, &waiting.work);
                return Some(waiting);
            }
            self.next.insert((ready, volume));
            self.due = self.due.min(ready);
        }
        of.waiting.push(waiting);
        None
    }

    /// The next waiting request that passes at `now`, charged to the limit of its volume; as an error one that is not wanted,
    /// which is not charged.
    fn pass(&mut self, now: Instant, is_wanted: impl Fn(&R) -> bool) -> Option<Result<Waiting<R>, R>> {
        let (ready, volume) = self.next.first().copied().filter(|(ready, _)| *ready <= now)?;
        self.next.remove(&(ready, volume));
        let of = self.limited.get_mut(&volume)?;
        let passed = of.waiting.pop()?;
        let is_wanted = is_wanted(&passed.request);
        if is_wanted {
            of.bucket.take(now, &passed.work);
            of.bound_at = Some(now);
            of.waits += 1;
            of.waited = of.waited + now.since(passed.since);
        }
        if !of.waiting.is_empty() {
            self.next.insert((of.bucket.ready_at(), volume));
        } else if of.withdrawn {
            self.limited.remove(&volume);
        }
        self.settle();
        Some(if is_wanted { Ok(passed) } else { Err(passed.request) })
    }

    /// Takes the requests of a tenant that wait for the limit of a volume, oldest first.
    fn take_of(&mut self, volume: u32, tenant: TenantId) -> Vec<Waiting<R>> {
        let Some(of) = self.limited.get_mut(&volume) else { return Vec::new() };
        let taken = of.waiting.take_of(tenant);
        self.note_taken(volume);
        taken
    }

    /// [`Turns::take_some`] of a volume with its present search.
    fn take_some(&mut self, volume: u32, is_taken: impl Fn(&Waiting<R>) -> bool) -> Vec<Waiting<R>> {
        let Some(of) = self.limited.get_mut(&volume) else { return Vec::new() };
        let taken = of.waiting.take_some(&mut of.search, is_taken);
        self.note_taken(volume);
        taken
    }

    /// Notes that requests of a volume were taken: if none waits any more, its limit lets none pass next.
    fn note_taken(&mut self, volume: u32) {
        let Some(of) = self.limited.get_mut(&volume) else { return };
        if of.waiting.is_empty() {
            self.next.remove(&(of.bucket.ready_at(), volume));
            if of.withdrawn {
                self.limited.remove(&volume);
            }
            self.settle();
        }
    }
}

impl<R> Pool<R> {
    /// Queues a request immediately; the limit of its volume does not delay it.
    ///
    /// # Errors
    /// Gives the request back when the tenant has left.
    #[inline]
    pub fn submit(&mut self, now: Instant, id: TenantId, work: Work, request: R) -> Result<(), R> {
        self.enqueue(now, id, work, request, Duration::ZERO)
    }

    /// Queues a request of this volume when the volume's limit allows it; immediately if the volume has no limit.
    ///
    /// # Errors
    /// Gives the request back when the tenant has left.
    #[inline]
    pub fn submit_of(&mut self, now: Instant, volume: u32, id: TenantId, work: Work, request: R) -> Result<(), R> {
        if self.volumes.limited.is_empty() {
            return self.submit(now, id, work, request);
        }
        self.submit_limited(now, volume, id, work, request)
    }

    fn submit_limited(&mut self, now: Instant, volume: u32, id: TenantId, work: Work, request: R) -> Result<(), R> {
        if self.live_mut(id).is_none() {
            return Err(request);
        }
        let waiting = Waiting { tenant: id, came: 0, since: now, work, request };
        match self.volumes.admit(now, volume, waiting) {
            Some(Waiting { request, .. }) => self.submit(now, id, work, request),
            None => Ok(()),
        }
    }

    /// As [`Pool::leave`], but those of the requests that wait for the limit of a volume become requests of the tenants that
    /// `heir` names, in the order in which they came. All others that have an heir have passed the limits of their volumes
    /// already.
    pub fn leave_to(&mut self, id: TenantId, heir: impl Fn(&R) -> Option<TenantId>) -> Vec<R> {
        let tenants = &self.tenants;
        let heir = |request: &R| {
            heir(request).filter(|heir| {
                let tenant = tenants.get(heir.index as usize);
                tenant.is_some_and(|tenant| tenant.live && tenant.generation == heir.generation)
            })
        };
        self.volumes.limited.values_mut().for_each(|of| of.waiting.hand_over(id, heir));
        self.leave(id)
    }

    /// Sets the limits of single volumes by volume id. The duration is the unused limit that may be saved up, as time at the
    /// limit rate. All clients of a volume share its limit, which applies beside those of tenants and pool. A volume that
    /// `limits` leaves out has none. A change takes effect at once, also for requests that wait. Those that wait for a removed
    /// limit pass a few at a time, at the next dispatches.
    pub fn limit_volumes(&mut self, now: Instant, limits: &BTreeMap<u32, (Rates, Duration)>) {
        let withdrawn = self.volumes.limited.keys().filter(|volume| !limits.contains_key(*volume));
        let withdrawn: Vec<u32> = withdrawn.copied().collect();
        withdrawn.into_iter().for_each(|volume| self.volumes.withdraw(volume));
        for (&volume, &(limit, burst)) in limits {
            self.volumes.set(now, volume, limit, burst);
        }
    }

    /// The limit of a volume with its state at `now`; `None` for a volume without a limit.
    pub fn volume(&self, now: Instant, volume: u32) -> Option<VolumeView> {
        let of = self.volumes.limited.get(&volume).filter(|of| !of.withdrawn)?;
        let waiting = of.waiting.len();
        let binds = waiting > 0 || of.bound_at.is_some_and(|at| now.since(at) < BINDS_FOR);
        Some(VolumeView { limit: of.limit, waiting, binds, waits: of.waits, waited: of.waited })
    }

    /// As [`Pool::drop_unwanted`], for the requests that wait for the limit of this volume; [`Pool::is_searching_of`] tells if
    /// the search goes on.
    pub fn drop_unwanted_of(&mut self, volume: u32, more: u64, unwanted: impl Fn(&R) -> bool) -> Vec<R> {
        let Some(of) = self.volumes.limited.get_mut(&volume) else { return Vec::new() };
        of.unwanted += more;
        if of.search.is_empty() {
            if of.unwanted * ONE_IN < of.waiting.len() as u64 {
                return Vec::new();
            }
            (of.unwanted, of.search) = (0, 0..of.waiting.came());
        }
        let dropped = self.volumes.take_some(volume, |waiting| unwanted(&waiting.request));
        if let Some(of) = self.volumes.limited.get_mut(&volume).filter(|of| of.search.is_empty()) {
            let waiting = of.waiting.len() as u64;
            if waiting > 0 && of.unwanted * ONE_IN >= waiting {
                // Of those that became unwanted during the search, some may be where it had been already.
                (of.unwanted, of.search) = (0, 0..of.waiting.came());
            }
        }
        dropped.into_iter().map(|waiting| waiting.request).collect()
    }

    /// True if a search of [`Pool::drop_unwanted_of`] has not ended: it goes on with the next call.
    pub fn is_searching_of(&self, volume: u32) -> bool {
        self.volumes.limited.get(&volume).is_some_and(|of| !of.search.is_empty())
    }

    /// Queues waiting requests that the limits of their volumes let pass, at most [`PASS_AT_ONCE`].
    ///
    /// # Errors
    /// `Some`: a request that `wish` does not want, before the others pass. `None`: more requests are due.
    #[inline]
    pub(super) fn pass_volumes<W: Into<Wish>>(
        &mut self,
        now: Instant,
        wish: impl Fn(&R) -> W,
    ) -> Result<(), Option<R>> {
        if self.volumes.due > now {
            return Ok(());
        }
        self.pass_due_volumes(now, |request| wish(request).into() != Wish::Never)
    }

    fn pass_due_volumes(&mut self, now: Instant, is_wanted: impl Fn(&R) -> bool) -> Result<(), Option<R>> {
        for _ in 0..PASS_AT_ONCE {
            match self.volumes.pass(now, &is_wanted) {
                Some(Ok(waiting)) => self.pass_on(now, waiting),
                Some(Err(unwanted)) => return Err(Some(unwanted)),
                None => return Ok(()),
            }
        }
        if self.volumes.due > now { Ok(()) } else { Err(None) }
    }

    fn pass_on(&mut self, now: Instant, waiting: Waiting<R>) {
        let Waiting { tenant, since, work, request, .. } = waiting;
        // The tenant is there: one that leaves takes its requests along.
        let _ = self.enqueue(now, tenant, work, request, now.since(since));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::super::{Config, Outcome, Scheduler};
    use super::turns::AT_ONCE;
    use super::*;
    use crate::admission;
    use crate::mclock::Qos;
    use crate::units::Kind;

    const READ: Work = Work::new(Kind::Read, 4_096);
    const BURST: Duration = Duration::from_millis(10);
    const LIMITED: u32 = 1;
    const OTHER: u32 = 2;

    fn pool(scheduler: Scheduler) -> Pool<u32> {
        let config = Config {
            scheduler,
            admission: admission::Config::None,
            base_cost_bytes: 0,
            cost: Default::default(),
            limit: Rates::UNSET,
            limit_burst: Duration::ZERO,
            target: None,
            slots: None,
        };
        Pool::new(config, Instant::ZERO, 0)
    }

    fn iops(iops: u64) -> Rates {
        Rates { iops, bytes_per_s: 0 }
    }

    fn limit(pool: &mut Pool<u32>, now: Instant, limit: Rates) {
        pool.limit_volumes(now, &BTreeMap::from([(LIMITED, (limit, BURST))]));
    }

    fn ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// Dispatches and completes all that may run at `now`; returns the requests, and when to dispatch again.
    fn run(pool: &mut Pool<u32>, now: Instant) -> (Vec<u32>, Instant) {
        let mut ran = Vec::new();
        loop {
            match pool.dispatch(now) {
                Next::Run(request, ticket) => {
                    ran.push(request);
                    pool.complete(now, ticket, Outcome::Done);
                }
                Next::Wait(until) => return (ran, until),
                Next::Idle => return (ran, Instant::FAR_FUTURE),
            }
        }
    }

    #[test]
    fn a_volume_gets_its_rate_and_other_volumes_of_its_tenants_do_not_wait() {
        for (rate, expected) in [(iops(1_000), 10_000), (Rates { iops: 0, bytes_per_s: 100 * 4_096 }, 1_000)] {
            let mut pool = pool(Scheduler::Mclock);
            let tenants = [(); 2].map(|()| pool.join(Instant::ZERO, Qos::default()));
            limit(&mut pool, Instant::ZERO, rate);
            let (mut passed, mut others, mut waiting) = (0_u32, 0_u32, 0_usize);
            // Asked every 3 ms only, whatever is due; each tenant always has more requests of the volume.
            for now in (0..10_000).step_by(3).map(ms) {
                while waiting < 64 {
                    assert!(pool.submit_of(now, LIMITED, tenants[waiting % 2], READ, LIMITED).is_ok());
                    waiting += 1;
                }
                assert!(pool.submit_of(now, OTHER, tenants[0], READ, OTHER).is_ok());
                let (ran, _) = run(&mut pool, now);
                let of_volume = ran.iter().filter(|request| **request == LIMITED).count();
                assert_eq!(ran.len() - of_volume, 1, "the other volume's request runs at once");
                (waiting, passed, others) = (waiting - of_volume, passed + of_volume as u32, others + 1);
            }
            assert!((expected * 95 / 100..=expected * 105 / 100).contains(&passed), "{passed} of {expected}");
            assert_eq!(others, 3_334);
            let view = pool.volume(ms(10_000), LIMITED).expect("it has a limit");
            assert!(view.binds && view.waiting == waiting && view.limit == rate, "{view:?}");
            assert_eq!(pool.volume(ms(10_000), OTHER), None);
        }
    }

    #[test]
    fn the_wait_for_the_limit_counts_in_the_latency_that_the_client_sees() {
        let mut pool = pool(Scheduler::Mclock);
        let tenant = pool.join(ms(0), Qos::default());
        pool.limit_volumes(ms(0), &BTreeMap::from([(LIMITED, (iops(10), Duration::ZERO))]));
        for n in 0..2 {
            assert!(pool.submit_of(ms(0), LIMITED, tenant, READ, n).is_ok());
        }
        assert_eq!(run(&mut pool, ms(0)), (vec![0], ms(100)));
        assert_eq!(pool.tenant(tenant).map(|tenant| tenant.queued), Some(0), "it is not queued in the scheduler");
        assert_eq!(run(&mut pool, ms(100)), (vec![1], Instant::FAR_FUTURE));
        let stats = pool.tenant(tenant).expect("it is there").stats.clone();
        let waited = Duration::from_millis(100);
        assert_eq!((stats.queue_latency.max(), stats.latency.max()), (waited, waited));
        assert_eq!(stats.device_latency.max(), Duration::ZERO);
        assert_eq!(stats.limited, waited, "nothing of it is a backlog of the scheduler");
        let view = pool.volume(ms(1_000), LIMITED).expect("it has a limit");
        assert!(view.binds);
        assert_eq!((view.waits, view.waited), (1, waited), "the first request passed at once");
        assert!(pool.volume(ms(2_000), LIMITED).is_some_and(|view| !view.binds), "that is a while ago");
    }

    #[test]
    fn a_limit_changes_while_requests_wait_for_it() {
        for scheduler in [Scheduler::Mclock, Scheduler::None] {
            let mut pool = pool(scheduler);
            let tenant = pool.join(ms(0), Qos::default());
            limit(&mut pool, ms(0), iops(1));
            for n in 0..1_000 {
                assert!(pool.submit_of(ms(1), LIMITED, tenant, READ, n).is_ok());
            }
            assert_eq!(run(&mut pool, ms(1)).0, [0]);
            limit(&mut pool, ms(1), iops(1_000));
            let raised: usize = (1..=101).map(|at| run(&mut pool, ms(at)).0.len()).sum();
            assert!((95..=112).contains(&raised), "{raised} in 0.1 s at 1000 IOPS, {scheduler:?}");
            pool.limit_volumes(ms(101), &BTreeMap::new());
            let (rest, until) = run(&mut pool, ms(101));
            assert_eq!((rest.len(), until), (999 - raised, Instant::FAR_FUTURE), "without a limit all of them go");
            assert!(rest.is_sorted(), "in their order");
            assert_eq!(pool.volume(ms(101), LIMITED), None);
        }
    }

    #[test]
    fn tenants_that_share_a_volume_take_turns_at_its_limit() {
        const BUSY: u32 = 0;
        const QUIET: u32 = 1;
        let mut pool = pool(Scheduler::Mclock);
        let reservation = iops(50);
        let [busy, quiet] = [Qos::default(), Qos { reservation, ..Qos::default() }].map(|qos| pool.join(ms(0), qos));
        pool.limit_volumes(ms(0), &BTreeMap::from([(LIMITED, (iops(100), Duration::ZERO))]));
        for _ in 0..10_000 {
            assert!(pool.submit_of(ms(0), LIMITED, busy, READ, BUSY).is_ok());
        }
        // One request at a time, for 2 s.
        assert!(pool.submit_of(ms(0), LIMITED, quiet, READ, QUIET).is_ok());
        let mut passed = [0_u32; 2];
        for now in (0..2_000).map(ms) {
            for request in run(&mut pool, now).0 {
                passed[request as usize] += 1;
                if request == QUIET {
                    assert!(pool.submit_of(now, LIMITED, quiet, READ, QUIET).is_ok());
                }
            }
        }
        assert!((95..=101).contains(&passed[QUIET as usize]) && passed[BUSY as usize] >= 95, "{passed:?}");
        // The busy one's requests become the quiet one's, which keeps the order of all.
        assert!(pool.leave_to(busy, |_| Some(quiet)).is_empty());
        let waiting = pool.volume(ms(2_000), LIMITED).map(|view| view.waiting);
        assert_eq!(waiting, Some(10_000 - passed[BUSY as usize] as usize + 1));
        let until = run(&mut pool, ms(2_000)).1;
        assert_eq!(run(&mut pool, until).0, [BUSY], "the newest request of the quiet one came last");
    }

    #[test]
    fn requests_whose_limit_was_withdrawn_pass_in_steps_in_their_order() {
        const MANY: u32 = 10_000;
        let mut pool = pool(Scheduler::Mclock);
        let tenant = pool.join(ms(0), Qos::default());
        let submit = |pool: &mut Pool<u32>, n| assert!(pool.submit_of(ms(1), LIMITED, tenant, READ, n).is_ok());
        limit(&mut pool, ms(0), iops(1));
        (0..MANY).for_each(|n| submit(&mut pool, n));
        assert_eq!(run(&mut pool, ms(1)).0, [0]);
        pool.limit_volumes(ms(1), &BTreeMap::new());
        assert_eq!((pool.queued(), pool.volume(ms(1), LIMITED)), (0, None), "the withdrawal itself queues none");
        let wish = |_: &u32| Wish::Now;
        for step in 1..=10 {
            assert!(matches!(pool.dispatch_wanted(ms(1), wish), Err(None)));
            assert_eq!(pool.queued(), step * PASS_AT_ONCE);
        }
        submit(&mut pool, MANY);
        let (ran, until) = run(&mut pool, ms(1));
        assert_eq!((ran, until), ((1..=MANY).collect::<Vec<_>>(), Instant::FAR_FUTURE), "a new one goes behind them");
        assert!(pool.volumes.limited.is_empty());
        // The limit comes back while requests still pass: the rest waits for it.
        limit(&mut pool, ms(1), iops(1));
        (0..100).for_each(|n| submit(&mut pool, n));
        assert_eq!(run(&mut pool, ms(1)).0, [0]);
        pool.limit_volumes(ms(1), &BTreeMap::new());
        assert!(matches!(pool.dispatch_wanted(ms(1), wish), Err(None)));
        pool.limit_volumes(ms(1), &BTreeMap::from([(LIMITED, (iops(10), Duration::ZERO))]));
        let (ran, until) = run(&mut pool, ms(1));
        assert!(ran.len() <= PASS_AT_ONCE + 1 && until > ms(1) && until < ms(102), "{ran:?}, {until:?}");
        let rest = 99 - ran.len();
        assert_eq!(pool.volume(ms(1), LIMITED).map(|view| view.waiting), Some(rest));
        // A tenant that leaves takes the rest along, and nothing of the volume stays.
        pool.limit_volumes(ms(1), &BTreeMap::new());
        assert_eq!(pool.leave(tenant).len(), rest);
        assert!(pool.volumes.limited.is_empty() && pool.volumes.due() == Instant::FAR_FUTURE);
    }

    #[test]
    fn unwanted_requests_and_those_of_a_tenant_that_leaves_do_not_wait() {
        let mut pool = pool(Scheduler::Mclock);
        let [stays, leaves] = [(); 2].map(|()| pool.join(ms(0), Qos::default()));
        limit(&mut pool, ms(0), iops(1));
        for n in 0..100 {
            let tenant = if n % 2 == 0 { stays } else { leaves };
            assert!(pool.submit_of(ms(1), LIMITED, tenant, READ, n).is_ok());
        }
        assert_eq!(run(&mut pool, ms(1)).0, [0]);
        assert_eq!(pool.leave(leaves), (0..100).filter(|n| n % 2 == 1).collect::<Vec<_>>());
        assert_eq!(pool.submit_of(ms(1), LIMITED, leaves, READ, 7), Err(7), "it has left");
        let late = |n: &u32| *n >= 20;
        assert!(pool.drop_unwanted_of(LIMITED, 1, late).is_empty(), "few may be: that is not worth a search");
        assert_eq!(pool.drop_unwanted_of(LIMITED, 40, late), (20..100).step_by(2).collect::<Vec<_>>());
        assert_eq!(pool.volume(ms(1), LIMITED).map(|view| view.waiting), Some(9));
        // One whose turn comes is given back without a charge: the next one passes at the same instant.
        let Next::Wait(until) = pool.dispatch(ms(1)) else { panic!("the rest waits") };
        let wish = |n: &u32| if *n == 2 { Wish::Never } else { Wish::Now };
        assert!(matches!(pool.dispatch_wanted(until, wish), Err(Some(2))));
        assert!(matches!(pool.dispatch_wanted(until, wish), Ok(Next::Run(4, _))));
        assert!(matches!(pool.dispatch_wanted(until, wish), Ok(Next::Wait(next)) if next > until));
    }

    #[test]
    fn many_waiting_requests_are_searched_in_steps_and_pass_between_them() {
        let mut pool = pool(Scheduler::Mclock);
        let tenants = [(); 2].map(|()| pool.join(ms(0), Qos::default()));
        limit(&mut pool, ms(0), iops(1));
        let all = 4 * AT_ONCE as u32;
        for n in 0..all {
            assert!(pool.submit_of(ms(1), LIMITED, tenants[n as usize % 2], READ, n).is_ok());
        }
        // The first one has passed at once.
        assert_eq!(run(&mut pool, ms(1)).0, [0]);
        let looks = core::cell::Cell::new(0);
        let unwanted = |n: &u32| {
            looks.set(looks.get() + 1);
            n % 4 > 1
        };
        let (mut more, mut dropped) = (u64::from(all), Vec::new());
        loop {
            dropped.extend(pool.drop_unwanted_of(LIMITED, more, unwanted));
            assert!(looks.replace(0) <= AT_ONCE);
            if !pool.is_searching_of(LIMITED) {
                break;
            }
            more = 0;
        }
        assert_eq!(dropped, (0..all).filter(|n| n % 4 > 1).collect::<Vec<_>>());
        assert!(pool.drop_unwanted_of(LIMITED, 0, unwanted).is_empty() && looks.get() == 0);
        assert_eq!(pool.leave(tenants[0]), (4..all).step_by(4).collect::<Vec<_>>());
        assert_eq!(pool.leave(tenants[1]), (1..all).step_by(4).collect::<Vec<_>>());
        assert!(!pool.is_searching_of(LIMITED) && pool.volume(ms(1), LIMITED).is_some_and(|view| view.waiting == 0));
    }

    #[test]
    fn waiting_requests_that_become_unwanted_during_a_search_are_found_too() {
        let mut pool = pool(Scheduler::Mclock);
        let tenant = pool.join(ms(0), Qos::default());
        limit(&mut pool, ms(0), iops(1));
        let all = 4 * AT_ONCE as u32;
        (0..all).for_each(|n| assert!(pool.submit_of(ms(1), LIMITED, tenant, READ, n).is_ok()));
        assert_eq!(run(&mut pool, ms(1)).0, [0]);
        let mut dropped = pool.drop_unwanted_of(LIMITED, u64::from(all), |n| n % 2 == 1);
        assert!(pool.is_searching_of(LIMITED));
        for more in [u64::from(all), 0, 0, 0, 0, 0, 0, 0] {
            dropped.extend(pool.drop_unwanted_of(LIMITED, more, |n| n % 4 > 0));
        }
        assert!(!pool.is_searching_of(LIMITED), "it ends");
        dropped.sort_unstable();
        assert_eq!(dropped, (0..all).filter(|n| n % 4 > 0).collect::<Vec<_>>());
        assert_eq!(pool.leave(tenant), (4..all).step_by(4).collect::<Vec<_>>());
    }

    #[test]
    fn requests_of_a_tenant_that_leaves_keep_their_places_and_are_charged_once() {
        let mut pool = pool(Scheduler::Mclock);
        let [leaves, heir] = [(); 2].map(|()| pool.join(ms(0), Qos::default()));
        pool.limit_volumes(ms(0), &BTreeMap::from([(LIMITED, (iops(10), Duration::ZERO))]));
        for (tenant, n) in [(leaves, 0), (leaves, 1), (heir, 2), (leaves, 3)] {
            assert!(pool.submit_of(ms(0), LIMITED, tenant, READ, n).is_ok());
        }
        assert_eq!(pool.leave_to(leaves, |n| (*n < 3).then_some(heir)), [0, 3], "one has passed, one has no heir");
        assert!(pool.submit(ms(0), heir, READ, 0).is_ok());
        assert_eq!(run(&mut pool, ms(0)), (vec![0], ms(100)), "it does not wait for the limit again");
        assert_eq!(run(&mut pool, ms(100)), (vec![1], ms(200)), "it keeps its place");
        assert_eq!(run(&mut pool, ms(200)), (vec![2], Instant::FAR_FUTURE));
        // An heir that has left, too, gets nothing.
        for n in 4..6 {
            assert!(pool.submit_of(ms(200), LIMITED, heir, READ, n).is_ok());
        }
        assert_eq!(pool.leave_to(heir, |_| Some(leaves)), [4, 5]);
        assert_eq!(run(&mut pool, ms(300)), (vec![], Instant::FAR_FUTURE));
    }

    proptest! {
        /// Over any time, requests of a volume pass at its rate, in their order; none is lost, and the pool names the instant at
        /// which the next one passes.
        #[test]
        fn requests_pass_in_order_at_the_rate_and_none_is_lost(
            rate in 1..5_000_u64,
            steps in proptest::collection::vec((0..30_u64, 0..6_u32), 1..60),
        ) {
            let mut pool = pool(Scheduler::Mclock);
            let tenant = pool.join(ms(0), Qos::default());
            limit(&mut pool, ms(0), iops(rate));
            let (mut now, mut sent, mut ran) = (ms(0), 0, Vec::new());
            for (after, requests) in steps {
                now += Duration::from_millis(after);
                for _ in 0..requests {
                    prop_assert!(pool.submit_of(now, LIMITED, tenant, READ, sent).is_ok());
                    sent += 1;
                }
                ran.extend(run(&mut pool, now).0);
                let most = (now + BURST).as_nanos() * rate / 1_000_000_000 + 1;
                prop_assert!(ran.len() as u64 <= most, "{} by {now:?}", ran.len());
            }
            while (ran.len() as u32) < sent {
                let (none, until) = run(&mut pool, now);
                prop_assert!(none.is_empty() && until > now && until < Instant::FAR_FUTURE);
                let (next, _) = run(&mut pool, until);
                prop_assert!(!next.is_empty(), "one passes when the pool says so");
                ran.extend(next);
                now = until;
            }
            prop_assert_eq!(ran, (0..sent).collect::<Vec<_>>());
        }
    }
}
