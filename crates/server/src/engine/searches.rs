//! Bound on concurrent searches for holes, of all volumes together: they cost processor time, not device time, so that
//! admission control does not throttle them.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use evenkeel_control::pool::TenantId;

use super::turns::Turns;

/// Divisor: the number of processors divided by this, but at least one, may be busy with searches.
const PROCESSORS: usize = 4;
/// Duration of a search from which it counts as waiting for a device, and no longer as busy; other searches end within some
/// ms.
const WAITS_AFTER: Duration = Duration::from_millis(100);

/// The tenant of a search, by the index of its pool and its number there.
pub(crate) type Owner = (usize, TenantId);

/// The bound on all searches of this process.
pub(crate) fn all() -> &'static Searches {
    static ALL: OnceLock<Searches> = OnceLock::new();
    ALL.get_or_init(|| Searches::new(thread::available_parallelism().map_or(1, usize::from) / PROCESSORS, WAITS_AFTER))
}

/// Admits searches, of which at most `most` are busy at a time. Tenants take turns, however many volumes each has.
pub(crate) struct Searches {
    most: usize,
    waits_after: Duration,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    came: u64,
    waiting: Turns<Owner, (u64, Thread)>,
    /// Running searches: the number of each, and the time at which it began.
    begun: Vec<(u64, Instant)>,
}

/// A running search, which ends when this value is dropped.
pub(crate) struct Search<'a> {
    of: &'a Searches,
    number: u64,
}

impl Searches {
    fn new(most: usize, waits_after: Duration) -> Self {
        Self { most: most.max(1), waits_after, queue: Mutex::default() }
    }

    /// Blocks the calling thread until its search, one of `owner`, may begin.
    pub(crate) fn begin(&self, owner: Owner) -> Search<'_> {
        let number = self.queue().come(owner, thread::current());
        loop {
            let wait = self.queue().begin(number, self.most, self.waits_after, Instant::now());
            match wait {
                None => return Search { of: self, number },
                Some(wait) => thread::park_timeout(wait),
            }
        }
    }

    /// Number of searches that have asked to begin so far.
    #[cfg(test)]
    pub(crate) fn came(&self) -> u64 {
        self.queue().came
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        self.of.queue().end(self.number);
    }
}

impl Queue {
    fn come(&mut self, owner: Owner, thread: Thread) -> u64 {
        self.came += 1;
        self.waiting.push(owner, (self.came, thread));
        self.came
    }

    /// Begins the search with this number and returns `None`; or returns the longest time for which it should wait before it
    /// asks again.
    fn begin(&mut self, number: u64, most: usize, waits_after: Duration, now: Instant) -> Option<Duration> {
        if self.waiting.front().is_none_or(|(first, _)| *first != number) {
            // It is called when it is the first.
            return Some(Duration::MAX);
        }
        let left = |(_, since): &(u64, Instant)| waits_after.checked_sub(now.duration_since(*since));
        let busy = self.begun.iter().filter_map(left).filter(|left| !left.is_zero());
        if busy.clone().count() >= most {
            return busy.min();
        }
        self.waiting.pop();
        self.begun.push((number, now));
        self.call();
        None
    }

    fn end(&mut self, number: u64) {
        self.begun.retain(|(begun, _)| *begun != number);
        self.call();
    }

    /// Wakes the first waiting search, which then asks again.
    fn call(&self) {
        self.waiting.front().into_iter().for_each(|(_, thread)| thread.unpark());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::engine::threads::tests::tenants;

    #[test]
    fn searches_begin_in_their_order_and_one_that_hangs_keeps_no_other_waiting() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let begin =
            |queue: &mut Queue, number, ms| queue.begin(number, 2, WAITS_AFTER, start + Duration::from_millis(ms));
        let owner = (0, tenants(1)[0]);
        let numbers: Vec<_> = (0..5).map(|_| queue.come(owner, thread::current())).collect();
        assert_eq!(begin(&mut queue, numbers[1], 0), Some(Duration::MAX), "it is not the first");
        assert_eq!([0, 1].map(|n| begin(&mut queue, numbers[n], n as u64)), [None, None]);
        assert_eq!(begin(&mut queue, numbers[2], 1), Some(Duration::from_millis(99)));
        queue.end(numbers[1]);
        assert_eq!(begin(&mut queue, numbers[2], 2), None);
        assert_eq!(begin(&mut queue, numbers[3], 99), Some(Duration::from_millis(1)));
        assert_eq!(begin(&mut queue, numbers[3], 100), None, "the first does not count any more");
        queue.end(numbers[0]);
        assert_eq!(begin(&mut queue, numbers[4], 101), Some(Duration::from_millis(1)));
        queue.end(numbers[3]);
        assert_eq!(begin(&mut queue, numbers[4], 101), None);
        queue.end(numbers[2]);
        queue.end(numbers[4]);
        assert!(queue.begun.is_empty() && queue.waiting.is_empty());
    }

    #[test]
    fn tenants_search_in_turn_however_many_volumes_each_has() {
        let (mut queue, now, tenants) = (Queue::default(), Instant::now(), tenants(2));
        let come = |queue: &mut Queue, owner, searches| -> Vec<u64> {
            (0..searches).map(|_| queue.come(owner, thread::current())).collect()
        };
        let of_many = come(&mut queue, (0, tenants[0]), 1_000);
        let of_one = come(&mut queue, (0, tenants[1]), 2);
        // The same number in another pool is another tenant's.
        let elsewhere = come(&mut queue, (1, tenants[0]), 1);
        for number in [of_many[0], of_one[0], elsewhere[0], of_many[1], of_one[1], of_many[2], of_many[3]] {
            assert_eq!(queue.begin(number, 1, WAITS_AFTER, now), None, "search {number} has its turn");
            queue.end(number);
        }
    }

    #[test]
    fn of_many_threads_no_more_search_at_a_time() {
        let owner = (0, tenants(1)[0]);
        let (searches, under_way, ended) = (Searches::new(2, Duration::MAX), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    let _search = searches.begin(owner);
                    assert!(under_way.fetch_add(1, Ordering::SeqCst) < 2);
                    (0..100).for_each(|_| thread::yield_now());
                    under_way.fetch_sub(1, Ordering::SeqCst);
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(ended.into_inner(), 32);
        assert!(all().most >= 1);
    }
}
