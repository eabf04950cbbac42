//! Drops queued requests that are not wanted any more, such as those of a client that is gone, before their turn comes: behind
//! a limit that may take minutes.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Entry, Pool, Scheduler, TenantId};
use crate::mclock::Search;
use crate::time::Instant;

/// A tenant's queue is searched for unwanted requests once their share of the queue may be one in this number. So each dropped
/// request costs the search of at most this number of requests.
pub(super) const ONE_IN: u64 = 8;
/// Largest number of a tenant's queued requests that one call searches. The caller holds the pool's lock meanwhile, and tenants
/// with thousands of queued requests would otherwise keep all others waiting for milliseconds.
const AT_ONCE: u32 = 256;

/// A tenant's queued requests that may be unwanted.
#[derive(Default)]
pub(super) struct Unwanted {
    /// Their number, without those that the present search looks for.
    number: u64,
    /// The present search, which goes on with the next call of [`Pool::drop_unwanted`].
    search: Option<Search>,
}

impl<R> Pool<R> {
    /// To be called when `more` further queued requests of a tenant may have become unwanted. Once that may be an eighth of the
    /// tenant's queue, a search begins that takes requests for which `unwanted` is true out of the queue; until then returns
    /// none. Each call searches a part of the queue and returns what it has taken out; [`Pool::is_searching`] tells if the search
    /// goes on. What is taken out is charged to no limit, share or budget. O(log tenants); without a scheduler O(queued requests
    /// of all tenants).
    pub fn drop_unwanted(&mut self, now: Instant, id: TenantId, more: u64, unwanted: impl Fn(&R) -> bool) -> Vec<R> {
        let scheduler = self.config.scheduler;
        let Some(tenant) = self.live_mut(id) else { return Vec::new() };
        tenant.unwanted.number += more;
        let (client, of_fifo, most) = (tenant.client, tenant.queued_fifo, tenant.unwanted.number * ONE_IN);
        let search = tenant.unwanted.search.take();
        let queued = match scheduler {
            Scheduler::Mclock => self.queue.client_len(client),
            // The queue is one of all tenants.
            Scheduler::None if of_fifo > 0 => self.fifo.len(),
            Scheduler::None => 0,
        };
        if search.is_none() && most < queued as u64 {
            return Vec::new();
        }
        let is_new = search.is_none();
        let mut search = search.unwrap_or_default();
        let (mut requests, mut came) = (Vec::new(), Vec::new());
        match scheduler {
            Scheduler::Mclock => {
                let is_unwanted = |entry: &Entry<R>| unwanted(&entry.request);
                for (queued_at, entry) in self.queue.remove_some(now, client, &mut search, AT_ONCE, is_unwanted) {
                    came.push(queued_at);
                    requests.push(entry.request);
                }
            }
            Scheduler::None => {
                let is_unwanted = |entry: &Entry<R>| entry.tenant == id && unwanted(&entry.request);
                let mut kept = VecDeque::with_capacity(self.fifo.len());
                for (queued_at, work, entry) in core::mem::take(&mut self.fifo) {
                    if is_unwanted(&entry) {
                        came.push(queued_at);
                        requests.push(entry.request);
                    } else {
                        kept.push_back((queued_at, work, entry));
                    }
                }
                self.fifo = kept;
            }
        }
        let queued = self.queue.client_len(client) as u64;
        let Some(tenant) = self.live_mut(id) else { return requests };
        if is_new {
            tenant.unwanted.number = 0;
        }
        if scheduler == Scheduler::Mclock && !search.has_ended() {
            tenant.unwanted.search = Some(search);
        } else if queued > 0 && tenant.unwanted.number * ONE_IN >= queued {
            // Of those that became unwanted during the search, some may be where it had been already.
            tenant.unwanted = Unwanted { number: 0, search: Some(Search::default()) };
        }
        if scheduler == Scheduler::None {
            tenant.queued_fifo -= requests.len();
        }
        came.into_iter().for_each(|queued_at| tenant.tally.leaves(queued_at));
        if !requests.is_empty() {
            self.keep_share(id.index);
            self.rest_guarantees(now, id.index);
        }
        requests
    }

    /// True if a search of [`Pool::drop_unwanted`] through the tenant's queue has not ended: it goes on with the next call, for
    /// which `more` may be 0.
    pub fn is_searching(&self, id: TenantId) -> bool {
        let tenant = self.tenants.get(id.index as usize);
        tenant
            .is_some_and(|tenant| tenant.live && tenant.generation == id.generation && tenant.unwanted.search.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Next, Outcome};
    use super::*;
    use crate::admission;
    use crate::mclock::{Qos, Wish};
    use crate::time::Duration;
    use crate::units::{Kind, Rates, Work};

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

    fn write() -> Work {
        Work::new(Kind::Write, 512)
    }

    #[test]
    fn what_is_not_wanted_leaves_the_queue_before_its_turn_and_the_rest_keeps_its_order() {
        for scheduler in [Scheduler::Mclock, Scheduler::None] {
            let mut pool = pool(scheduler);
            // Behind the first request the next one's turn comes in minutes.
            let limit = Rates { iops: 0, bytes_per_s: 1 };
            let slow = pool.join(Instant::ZERO, Qos { limit, ..Qos::default() });
            let other = pool.join(Instant::ZERO, Qos::default());
            let now = Instant::ZERO + Duration::from_millis(1);
            for n in 0..100 {
                assert!(pool.submit(now, slow, write(), n).is_ok());
            }
            assert!(pool.submit(now, other, write(), 1_000).is_ok());
            let odd = |n: &u32| n % 2 == 1;
            assert!(pool.drop_unwanted(now, slow, 12, odd).is_empty(), "few may be: that is not worth a search");
            let dropped = pool.drop_unwanted(now, slow, 50, odd);
            assert_eq!(dropped, (0..100).filter(odd).collect::<Vec<_>>(), "{scheduler:?}");
            assert_eq!(pool.queued(), 51);
            assert!(pool.drop_unwanted(now, slow, 100, odd).is_empty(), "there are no more");
            let mut later = now;
            let mut ran = Vec::new();
            while pool.queued() > 0 {
                match pool.dispatch(later) {
                    Next::Run(n, ticket) => {
                        ran.push(n);
                        pool.complete(later, ticket, Outcome::Done);
                    }
                    Next::Wait(until) => later = until.max(later + Duration::from_nanos(1)),
                    Next::Idle => panic!("{} are queued", pool.queued()),
                }
            }
            ran.retain(|n| *n != 1_000);
            assert_eq!(ran, (0..100).filter(|n| n % 2 == 0).collect::<Vec<_>>(), "{scheduler:?}");
        }
    }

    #[test]
    fn a_long_queue_is_searched_in_steps_and_requests_go_on_between_them() {
        let mut pool = pool(Scheduler::Mclock);
        let tenant = pool.join(Instant::ZERO, Qos::default());
        let now = Instant::ZERO + Duration::from_millis(1);
        let all = 10 * AT_ONCE;
        for n in 0..all {
            assert!(pool.submit(now, tenant, write(), n).is_ok());
        }
        let looks = core::cell::Cell::new(0);
        let odd = |n: &u32| {
            looks.set(looks.get() + 1);
            n % 2 == 1
        };
        let (mut more, mut dropped, mut ran) = (u64::from(all / 2), Vec::new(), Vec::new());
        loop {
            dropped.extend(pool.drop_unwanted(now, tenant, more, odd));
            assert!(looks.replace(0) <= AT_ONCE);
            if !pool.is_searching(tenant) {
                break;
            }
            more = 0;
            let Next::Run(n, ticket) = pool.dispatch(now) else { panic!("{} are queued", pool.queued()) };
            ran.push(n);
            pool.complete(now, ticket, Outcome::Done);
        }
        let even_first: Vec<u32> = (0..).step_by(2).take(ran.len()).collect();
        assert_eq!(ran, even_first);
        assert_eq!(dropped, (1..all).step_by(2).collect::<Vec<_>>());
        assert!(pool.drop_unwanted(now, tenant, 0, odd).is_empty() && !pool.is_searching(tenant));
        assert_eq!(looks.get(), 0, "there is nothing to be searched for");
    }

    #[test]
    fn what_becomes_unwanted_during_a_search_is_found_too() {
        let mut pool = pool(Scheduler::Mclock);
        let tenant = pool.join(Instant::ZERO, Qos::default());
        let now = Instant::ZERO + Duration::from_millis(1);
        let all = 4 * AT_ONCE;
        for n in 0..all {
            assert!(pool.submit(now, tenant, write(), n).is_ok());
        }
        let mut dropped = pool.drop_unwanted(now, tenant, u64::from(all / 2), |n| n % 2 == 1);
        assert!(pool.is_searching(tenant));
        // Half of what is left, also of what was searched already.
        let mut more = u64::from(all / 4);
        for _ in 0..100 {
            dropped.extend(pool.drop_unwanted(now, tenant, more, |n| n % 4 > 0));
            more = 0;
            if !pool.is_searching(tenant) {
                break;
            }
        }
        assert!(!pool.is_searching(tenant), "it ends");
        dropped.sort_unstable();
        assert_eq!(dropped, (0..all).filter(|n| n % 4 > 0).collect::<Vec<_>>());
        assert_eq!(pool.queued(), all as usize / 4);
    }

    #[test]
    fn a_tenant_that_leaves_ends_its_search() {
        let mut pool = pool(Scheduler::Mclock);
        let now = Instant::ZERO + Duration::from_millis(1);
        let all = 2 * AT_ONCE;
        let [gone, next] = [0, all].map(|first| {
            let tenant = pool.join(now, Qos::default());
            for n in first..first + all {
                assert!(pool.submit(now, tenant, write(), n).is_ok());
            }
            if first == 0 {
                assert_eq!(pool.drop_unwanted(now, tenant, all.into(), |n| n % 2 == 0).len(), AT_ONCE as usize / 2);
                assert!(pool.is_searching(tenant));
                assert_eq!(pool.leave(tenant).len(), (all - AT_ONCE / 2) as usize);
            }
            tenant
        });
        assert!(!pool.is_searching(gone) && !pool.is_searching(next));
        assert!(pool.drop_unwanted(now, gone, 1_000, |_| true).is_empty());
        assert_eq!(pool.queued(), all as usize, "the tenant in its place keeps its requests");
    }

    #[test]
    fn what_was_put_off_is_dropped_too_and_the_tenant_goes_on() {
        let mut pool = pool(Scheduler::Mclock);
        let tenant = pool.join(Instant::ZERO, Qos::default());
        let now = Instant::ZERO + Duration::from_millis(1);
        for n in 0..10 {
            assert!(pool.submit(now, tenant, write(), n).is_ok());
        }
        // The changes of a client that has closed its sending side: the first three are put off.
        for _ in 0..3 {
            assert!(matches!(pool.dispatch_wanted(now, |n| if *n < 3 { Wish::Later } else { Wish::Now }), Err(None)));
        }
        let dropped = pool.drop_unwanted(now, tenant, 10, |n| *n < 5);
        assert_eq!(dropped, [3, 4, 0, 1, 2]);
        let ran: Vec<u32> = core::iter::from_fn(|| match pool.dispatch(now) {
            Next::Run(n, _) => Some(n),
            Next::Wait(_) | Next::Idle => None,
        })
        .collect();
        assert_eq!(ran, [5, 6, 7, 8, 9]);
        assert_eq!((pool.queued(), pool.drop_unwanted(now, tenant, 1, |_| true).len()), (0, 0));
        assert!(pool.submit(now, tenant, write(), 10).is_ok());
        assert!(matches!(pool.dispatch(now), Next::Run(10, _)));
    }
}
