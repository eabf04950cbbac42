//! Drops queued requests that are not wanted any more, such as those of a client that is gone, before their turn comes: behind
//! a limit that may take minutes.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Entry, Pool, Scheduler, TenantId};
use crate::time::Instant;

/// A tenant's queue is searched for unwanted requests once their share of the queue may be one in this number. So each dropped
/// request costs the search of at most this number of requests.
const ONE_IN: u64 = 8;

impl<R> Pool<R> {
    /// To be called when `more` further queued requests of a tenant may have become unwanted. Once that may be an eighth of the
    /// tenant's queue, takes all requests for which `unwanted` is true out of the queue and returns them; until then returns
    /// none. They are charged to no limit, share or budget. O(queued requests of the tenant; of all tenants without a scheduler),
    /// and so O(1) for each unwanted request.
    pub fn drop_unwanted(&mut self, now: Instant, id: TenantId, more: u64, unwanted: impl Fn(&R) -> bool) -> Vec<R> {
        let scheduler = self.config.scheduler;
        let Some(tenant) = self.live_mut(id) else { return Vec::new() };
        tenant.unwanted += more;
        let (client, of_fifo, most) = (tenant.client, tenant.queued_fifo, tenant.unwanted * ONE_IN);
        let queued = match scheduler {
            Scheduler::Mclock => self.queue.client_len(client),
            // The queue is one of all tenants.
            Scheduler::None if of_fifo > 0 => self.fifo.len(),
            Scheduler::None => 0,
        };
        if most < queued as u64 {
            return Vec::new();
        }
        let (mut requests, mut came) = (Vec::new(), Vec::new());
        match scheduler {
            Scheduler::Mclock => {
                for (queued_at, entry) in self.queue.remove_if(now, client, |entry| unwanted(&entry.request)) {
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
        let Some(tenant) = self.live_mut(id) else { return requests };
        tenant.unwanted = 0;
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
