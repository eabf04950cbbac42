//! Shares of the admission budget: which request passes although the budget is used up?
//!
//! The budget bounds the bytes in flight, and the scheduler decides whose turn it is. Without shares the two would divide bytes
//! by weight: a tenant whose requests take the device little time would wait for tenants whose requests take long. A device
//! without admission control divides its time otherwise: it serves each tenant in proportion to its requests in flight. So
//! the budget is divided by weight among the tenants that have anything queued or in flight,
//!
//! ```text
//! share = budget × weight / sum of weights
//! ```
//!
//! and a request passes beside a budget that is used up if its cost and its tenant's cost in flight together are at most the
//! tenant's share. Where shares are smaller than requests, a request that is smaller than the mean of the requests in flight
//! passes if its tenant has nothing in flight, unless it is the turn of a tenant with a greater weight. No request passes while
//! a reservation is due. None passes either while the tenant in turn has nothing in flight, its request is larger than its
//! share, and others have had their part by weight since the last request in turn: they would take the room for this request
//! as fast as room becomes free (see [`Room`]). See `docs/algorithms/mclock.md`.
//!
//! A tenant's share is checked when the tenant submits a request, when one of its requests completes, and when its limits
//! cease to throttle it: O(1), with a limit O(log tenants).

use alloc::collections::{BinaryHeap, VecDeque};
use core::cmp::Reverse;

use super::room::Room;
use super::{Entry, Pool, Scheduler, Ticket};
use crate::mclock::{Phase, Pull, Wish};
use crate::time::Instant;
use crate::units::{Rates, Work};

/// Answer of a pull: see [`Queue::pull_wanted`](crate::mclock::Queue::pull_wanted).
type Pulled<R> = Result<Pull<Entry<R>>, Option<(Instant, Entry<R>)>>;

/// The tenants that share the admission budget, and those whose shares are to be checked for room.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Sum of the weights of the tenants that have anything queued or in flight.
    weights: u64,
    /// Cost in bytes of the requests that have passed beside the budget since a request was last served in turn.
    overtaken: u64,
    /// Decides if other requests are stopped to make room for the request in turn.
    pub(super) room: Room,
    /// Indices of tenants that submitted a request, or had one completed, since their share was last checked; each once.
    asking: VecDeque<u32>,
    /// Tenants that were throttled by their limits when their share was checked: until when, and the tenant's index. An entry
    /// with another instant than the tenant's `parked` is outdated.
    throttled: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl Shares {
    /// Share of a tenant of this weight in a budget of `budget_bytes`: the bytes that the tenant may have in flight although
    /// the budget is used up.
    fn of(&self, weight: u32, budget_bytes: u64) -> u64 {
        let share = u128::from(budget_bytes) * u128::from(weight) / u128::from(self.weights.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

/// A request that goes before due reservations, so that these do not starve other requests, may exceed the budget if its cost
/// is at most the budget divided by this number: it delays the requests in flight only a little.
const SMALL_PART: u64 = 8;

/// The request in turn, for which the budget has no room.
#[derive(Clone, Copy, Default)]
struct InTurn {
    /// Weight of the request's tenant.
    weight: u32,
    /// Cost of the request in bytes.
    cost: u64,
    /// True if the request's tenant has nothing in flight.
    waits: bool,
}

impl Shares {
    /// Notes the answer of a pull that the budget did not refuse. A request that is served by reservation, or given back, does
    /// not count as served in turn.
    #[inline]
    fn serve<R>(&mut self, now: Instant, pulled: &Pulled<R>) {
        if !matches!(pulled, Ok(Pull::Ready { phase: Phase::Reservation, .. }) | Err(_)) {
            self.overtaken = 0;
            self.room.serves(now);
        }
        self.room.moves(now);
    }

    /// True if the request in turn is larger than its tenant's share, its tenant has nothing in flight, and requests of other
    /// tenants that passed beside the budget since the last request in turn have had their part by weight.
    fn have_overtaken(&self, InTurn { weight, cost, waits }: InTurn, budget_bytes: u64) -> bool {
        let own = u64::from(weight.max(1));
        let others = u128::from(self.weights.saturating_sub(own));
        let enough = u128::from(self.overtaken) * u128::from(own) > u128::from(cost) * others;
        waits && enough && cost > self.of(weight.max(1), budget_bytes)
    }
}

impl Ticket {
    /// Notes that the caller hands the request to the device only at `now`: until then the request waited for others to the same
    /// bytes. That wait says nothing about the device, and to throttle other tenants does not shorten it.
    pub fn waited_until(&mut self, now: Instant) {
        let aside = now.since(self.admitted_at);
        self.free_at += aside - self.aside;
        self.aside = aside;
    }

    /// Time at which the request was handed to the device.
    pub fn in_flight_since(&self) -> Instant {
        self.admitted_at + self.aside
    }
}

impl<R> Pool<R> {
    /// Notes that the tenant of this index has submitted a request, or that one of its requests has completed: its share of
    /// the budget is to be checked for room.
    #[inline]
    pub(super) fn ask_for_share(&mut self, index: u32) {
        let tenant = &mut self.tenants[index as usize];
        if !core::mem::replace(&mut tenant.sharing, true) {
            self.shares.weights += u64::from(tenant.qos.weight.max(1));
        }
        if !core::mem::replace(&mut tenant.asking, true) {
            self.shares.asking.push_back(index);
        }
    }

    /// Notes that a tenant has one request less, queued or in flight. A tenant without requests has no share of the budget.
    #[inline]
    pub(super) fn keep_share(&mut self, index: u32) {
        let tenant = &self.tenants[index as usize];
        if tenant.queued_fifo > 0 || self.queue.client_len(tenant.client) > 0 {
            self.ask_for_share(index);
        } else if tenant.in_flight == 0 {
            self.end_share(index);
        }
    }

    /// Ends a tenant's share of the budget.
    pub(super) fn end_share(&mut self, index: u32) {
        let tenant = &mut self.tenants[index as usize];
        if core::mem::replace(&mut tenant.sharing, false) {
            self.shares.weights -= u64::from(tenant.qos.weight.max(1));
        }
    }

    /// Removes a tenant that has left the pool from the shares of the budget.
    pub(super) fn leave_shares(&mut self, index: u32) {
        self.end_share(index);
        let tenant = &mut self.tenants[index as usize];
        tenant.parked = Instant::FAR_FUTURE;
        if core::mem::replace(&mut tenant.asking, false) {
            self.shares.asking.retain(|&asking| asking != index);
        }
    }

    /// The next request of the queue: the request in turn if it fits the budget, otherwise a request that may pass beside the
    /// budget, if there is one.
    #[inline]
    pub(super) fn pull_in_order<W: Into<Wish>>(&mut self, now: Instant, wish: impl Fn(&R) -> W) -> Pulled<R> {
        let base = self.base_in_budget();
        let (admission, tenants) = (&self.admission, &self.tenants);
        let mut in_turn = InTurn::default();
        let fits = |entry: &Entry<R>, work: &Work| {
            let tenant = &tenants[entry.tenant.index as usize];
            let cost = base + u64::from(work.bytes);
            in_turn = InTurn { weight: tenant.qos.weight, cost, waits: tenant.in_flight_cost == 0 };
            admission.fits(cost)
        };
        let pulled = self.queue.pull_wanted(now, fits, |entry| wish(&entry.request));
        let Ok(Pull::Refused(until)) = pulled else {
            self.shares.serve(now, &pulled);
            return pulled;
        };
        let budget = admission.settled_bytes();
        let claimed = self.queue.is_claimed(now);
        if claimed && in_turn.cost <= budget / SMALL_PART {
            // What goes before reservations now and then keeps them waiting for nothing.
            let pulled = self.queue.pull_wanted(now, |_, _| true, |entry| wish(&entry.request));
            self.shares.serve(now, &pulled);
            return pulled;
        }
        let room = &mut self.shares.room;
        if claimed
            && room.is_worth_a_wait(now)
            && let Some(end) = room.stop_reservations(now)
        {
            return Ok(Pull::Refused(until.min(end)));
        }
        if !self.queue.is_reservation_due(now) {
            return self.pull_within_share(now, until, in_turn, &wish);
        }
        // A reservation goes before shares, and before a budget that is used up: that may be a trial, or what is in flight was
        // admitted under a larger one. Half of it is left to a request that waits for its room.
        let most = if claimed { budget / 2 } else { budget };
        let fits = |entry: &Entry<R>, work: &Work| {
            let own = tenants[entry.tenant.index as usize].in_flight_cost;
            own == 0 || own.saturating_add(base + u64::from(work.bytes)) <= most
        };
        self.queue.pull_reserved(now, fits, |entry| wish(&entry.request))
    }

    /// The next request that passes beside the budget while the request in turn waits, until `until` at least. A tenant whose
    /// share has no room is checked again after its next submission or completion, or when its limits cease to throttle it.
    #[inline]
    fn pull_within_share<W: Into<Wish>>(
        &mut self,
        now: Instant,
        until: Instant,
        in_turn: InTurn,
        wish: impl Fn(&R) -> W,
    ) -> Pulled<R> {
        let (base, budget) = (self.base_in_budget(), self.admission.budget_bytes());
        if self.shares.have_overtaken(in_turn, budget) && self.shares.room.is_worth_a_wait(now) {
            return Ok(Pull::Refused(until.min(self.shares.room.waits_until())));
        }
        let counted = (self.in_flight - self.exempt).max(1);
        let small = (self.admission.in_flight_bytes() / counted).saturating_sub(1);
        while let Some(&Reverse((until, index))) = self.shares.throttled.peek()
            && until <= now
        {
            self.shares.throttled.pop();
            let parked = &mut self.tenants[index as usize].parked;
            if *parked == until {
                *parked = Instant::FAR_FUTURE;
                self.ask_for_share(index);
            }
        }
        while let Some(index) = self.shares.asking.pop_front() {
            let tenant = &mut self.tenants[index as usize];
            tenant.asking = false;
            if let Some(until) = self.queue.throttled_until(tenant.client) {
                if until < tenant.parked {
                    tenant.parked = until;
                    self.shares.throttled.push(Reverse((until, index)));
                }
                continue;
            }
            let room = self.shares.of(tenant.qos.weight.max(1), budget).saturating_sub(tenant.in_flight_cost);
            let may_begin = tenant.in_flight_cost == 0 && tenant.qos.weight >= in_turn.weight;
            let room = if may_begin { room.max(small) } else { room };
            let fits = |_: &Entry<R>, work: &Work| base + u64::from(work.bytes) <= room;
            let pulled = self.queue.pull_beside(now, tenant.client, fits, |entry| wish(&entry.request));
            if !matches!(pulled, Ok(Pull::Idle | Pull::Wait(_) | Pull::Refused(_))) {
                if let Ok(Pull::Ready { work, .. }) = &pulled {
                    self.shares.overtaken += base + u64::from(work.bytes);
                }
                self.ask_for_share(index);
                return pulled;
            }
        }
        Ok(Pull::Refused(until))
    }

    /// Frees the admission budget of a request that is in no queue of the back end, because the caller carries it out itself.
    /// The ticket still goes to [`Pool::complete`] at the end of the request; admission control learns nothing from it.
    pub fn exempt(&mut self, ticket: &mut Ticket) {
        if !ticket.is_exempt() {
            self.admission.forget(ticket.cost);
            self.exempt += 1;
            let tenant = &mut self.tenants[ticket.tenant.index as usize];
            if tenant.generation == ticket.tenant.generation {
                tenant.in_flight_cost -= ticket.cost;
            }
            ticket.cost = 0;
        }
    }

    /// [`Pool::exempt`] for a request that seems to be lost in the back end; from now on it also takes none of its tenant's
    /// slots.
    pub fn give_up(&mut self, now: Instant, ticket: &mut Ticket) {
        self.exempt(ticket);
        let tenant = &mut self.tenants[ticket.tenant.index as usize];
        if tenant.generation == ticket.tenant.generation && !core::mem::replace(&mut ticket.lost, true) {
            tenant.lost += 1;
            // What it takes from now on says nothing about the device.
            tenant.tally.exits(ticket.admitted_at, now.since(ticket.admitted_at));
            self.apply_slots(now, ticket.tenant.index);
        }
    }

    /// Updates the number of tenants with a reservation when one tenant's reservation changes from `before` to `after`. Admission
    /// control gets all changes together, before the next request is dispatched.
    pub(super) fn count_reservation(&mut self, before: Rates, after: Rates) {
        self.reserved = self.reserved + u32::from(after != Rates::UNSET) - u32::from(before != Rates::UNSET);
        self.reserved_is_due = true;
    }

    /// Passes on to admission control if a reservation takes precedence over throughput: the scheduler cannot call back requests
    /// that are in the device.
    pub(super) fn apply_reserved(&mut self, now: Instant) {
        self.admission.set_reserved(now, self.config.scheduler == Scheduler::Mclock && self.reserved > 0);
        self.reserved_is_due = false;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Next, Outcome, Pool, Scheduler};
    use crate::admission;
    use crate::mclock::{CostModel, Qos};
    use crate::slices::FIRST;
    use crate::time::{Duration, Instant};
    use crate::units::{Direction, Kind, Rates, Work};

    /// A pool with this admission control and nothing else that throttles.
    fn pool(admission: admission::Config) -> Pool<u32> {
        let config = Config {
            scheduler: Scheduler::Mclock,
            admission,
            base_cost_bytes: 0,
            cost: CostModel::default(),
            limit: Rates::UNSET,
            limit_burst: Duration::ZERO,
            target: None,
            slots: None,
        };
        Pool::new(config, Instant::ZERO, 1)
    }

    /// The smallest slice of reads, in bytes, in 10 s on a device for which the first size is right. Each slice waits 0.5 ms for
    /// other requests to the same bytes; with `is_reported` the pool learns of that.
    fn smallest_slice(is_reported: bool) -> u32 {
        let mut pool = pool(admission::Config::None);
        let tenant = pool.join(Instant::ZERO, Qos::default());
        let mut least = u32::MAX;
        for step in 0..5_000 {
            let mut now = Instant::ZERO + Duration::from_millis(2 * step);
            let slice = pool.slices().bytes(Direction::Read);
            least = least.min(slice);
            for bytes in [4_096, slice] {
                pool.submit(now, tenant, Work::new(Kind::Read, bytes), bytes).expect("it is there");
                let Next::Run(_, mut ticket) = pool.dispatch(now) else { panic!("nothing throttles it") };
                let begins = now + Duration::from_micros(if bytes == slice { 500 } else { 0 });
                if is_reported {
                    ticket.waited_until(begins);
                    assert_eq!((ticket.in_flight_since(), ticket.admitted_at()), (begins, now));
                }
                // 0.1 ms, and 1 GB/s.
                let ends = begins + Duration::from_nanos(100_000 + u64::from(bytes));
                pool.complete(ends, ticket, Outcome::Done);
                now = ends;
            }
        }
        least
    }

    #[test]
    fn a_wait_for_requests_to_the_same_bytes_is_no_time_of_the_device() {
        assert_eq!(smallest_slice(true), FIRST);
        assert!(smallest_slice(false) < FIRST);
    }

    #[test]
    fn what_has_left_the_queue_does_not_wait_for_the_budget() {
        let mut pool = pool(admission::Config::Fixed { budget_bytes: 4_096 });
        let tenant = pool.join(Instant::ZERO, Qos::default());
        for request in 0..2 {
            pool.submit(Instant::ZERO, tenant, Work::new(Kind::Read, 4_096), request).expect("it is there");
        }
        assert!(matches!(pool.dispatch(Instant::ZERO), Next::Run(0, _)));
        assert!(matches!(pool.dispatch(Instant::ZERO), Next::Wait(_)));
        assert!(pool.admission().is_holding_back());
        assert_eq!(pool.leave(tenant), [1]);
        assert!(matches!(pool.dispatch(Instant::ZERO), Next::Idle));
        assert!(!pool.admission().is_holding_back());
    }
}
