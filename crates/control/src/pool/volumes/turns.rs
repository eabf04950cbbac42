//! The requests that wait for the limit of a volume, in the order in which their tenants take turns.
//!
//! Requests are kept in search trees: whatever a search takes out of the middle, few others are moved, and no request that comes
//! or passes causes a copy of a whole queue to larger memory. The pool's lock is held meanwhile.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;

use super::TenantId;
use crate::time::Instant;
use crate::units::Work;

/// Largest number of the requests that wait for a volume's limit that one call searches for unwanted ones.
pub(super) const AT_ONCE: u64 = 256;

/// A request that waits for the limit of its volume.
pub(super) struct Waiting<R> {
    pub(super) tenant: TenantId,
    /// Number of the request in the order in which requests began to wait for the volume's limit.
    pub(super) came: u64,
    pub(super) since: Instant,
    pub(super) work: Work,
    pub(super) request: R,
}

/// The requests of all tenants that wait for the limit of a volume: one queue for each of these tenants, that of the tenant whose
/// turn is next first.
pub(super) struct Turns<R> {
    /// Tenants, each with its requests by their numbers; no queue is empty.
    queues: VecDeque<(TenantId, BTreeMap<u64, Waiting<R>>)>,
    len: usize,
    /// Number of requests that have waited so far.
    came: u64,
}

impl<R> Turns<R> {
    pub(super) const fn new() -> Self {
        Self { queues: VecDeque::new(), len: 0, came: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of requests that have waited so far: that of the next one.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    /// True if requests of the tenant wait.
    pub(super) fn has(&self, tenant: TenantId) -> bool {
        self.queues.iter().any(|(of, _)| *of == tenant)
    }

    /// Appends a request to its tenant's queue.
    pub(super) fn push(&mut self, mut waiting: Waiting<R>) {
        waiting.came = self.came;
        self.came += 1;
        self.put(waiting);
    }

    /// Adds a request to its tenant's queue, at the place that its number gives.
    fn put(&mut self, waiting: Waiting<R>) {
        self.len += 1;
        match self.queues.iter_mut().find(|(of, _)| *of == waiting.tenant) {
            Some((_, queue)) => {
                queue.insert(waiting.came, waiting);
            }
            None => self.queues.push_back((waiting.tenant, BTreeMap::from([(waiting.came, waiting)]))),
        }
    }

    /// Takes the oldest request of the tenant whose turn it is; the tenant's next turn is behind those of all others.
    pub(super) fn pop(&mut self) -> Option<Waiting<R>> {
        let (tenant, mut queue) = self.queues.pop_front()?;
        let (_, next) = queue.pop_first()?;
        self.len -= 1;
        if !queue.is_empty() {
            self.queues.push_back((tenant, queue));
        }
        Some(next)
    }

    /// Takes all requests of a tenant, oldest first.
    pub(super) fn take_of(&mut self, tenant: TenantId) -> Vec<Waiting<R>> {
        let place = self.queues.iter().position(|(of, _)| *of == tenant);
        let Some((_, queue)) = place.and_then(|place| self.queues.remove(place)) else { return Vec::new() };
        self.len -= queue.len();
        // Their number is known: the memory is taken once.
        queue.into_values().collect()
    }

    /// Goes on with a search of the requests whose numbers are in `search`, oldest first: takes those of the next [`AT_ONCE`] for
    /// which `is_taken` is true; the others keep their order, and few of them are moved. `search` becomes the numbers that are
    /// left, and empty at the end.
    pub(super) fn take_some(
        &mut self,
        search: &mut Range<u64>,
        is_taken: impl Fn(&Waiting<R>) -> bool,
    ) -> Vec<Waiting<R>> {
        let from = search.start;
        let next = self.queues.iter().filter_map(|(_, queue)| Some(*queue.range(from..).next()?.0));
        let begin = next.min().unwrap_or(search.end).min(search.end);
        let end = (begin + AT_ONCE).min(search.end);
        search.start = end;
        let mut taken = Vec::new();
        for (_, queue) in &mut self.queues {
            let searched = queue.range(begin..end).filter(|(_, waiting)| is_taken(waiting));
            let found: Vec<u64> = searched.map(|(&came, _)| came).collect();
            taken.extend(found.iter().filter_map(|came| queue.remove(came)));
        }
        self.queues.retain(|(_, queue)| !queue.is_empty());
        self.len -= taken.len();
        taken.sort_unstable_by_key(|waiting| waiting.came);
        taken
    }

    /// Makes requests of a tenant requests of the tenants that `heir` names; they go in the order in which they came.
    pub(super) fn hand_over(&mut self, from: TenantId, heir: impl Fn(&R) -> Option<TenantId>) {
        for mut waiting in self.take_of(from) {
            waiting.tenant = heir(&waiting.request).unwrap_or(from);
            self.put(waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use proptest::prelude::*;

    use super::*;
    use crate::units::Kind;

    const TENANTS: u32 = 3;

    fn waiting(request: u64, tenant: u32) -> Waiting<u64> {
        let tenant = TenantId { index: tenant, generation: 0 };
        Waiting { tenant, came: 0, since: Instant::ZERO, work: Work::new(Kind::Read, 4_096), request }
    }

    /// The place in memory of each waiting request, by its number.
    fn places(turns: &Turns<u64>) -> BTreeMap<u64, *const Waiting<u64>> {
        let all = turns.queues.iter().flat_map(|(_, queue)| queue);
        all.map(|(&came, waiting)| (came, core::ptr::from_ref(waiting))).collect()
    }

    #[test]
    fn a_step_of_a_search_moves_few_requests_however_many_wait() {
        const MANY: u64 = 60_000;
        for (start, one_in) in [(0, 2), (MANY / 2, 2), (MANY / 2, 1), (MANY - 2 * AT_ONCE, 3)] {
            let mut turns = Turns::new();
            (0..MANY).for_each(|n| turns.push(waiting(n, 0)));
            let (before, mut search) = (places(&turns), start..MANY);
            let taken = turns.take_some(&mut search, |waiting| waiting.request % one_in == 0);
            let expected: Vec<u64> = (start..start + AT_ONCE).filter(|n| n % one_in == 0).collect();
            assert_eq!(taken.iter().map(|waiting| waiting.request).collect::<Vec<_>>(), expected);
            assert_eq!((search, turns.len()), (start + AT_ONCE..MANY, MANY as usize - expected.len()));
            let moved = places(&turns).iter().filter(|&(came, place)| before[came] != *place).count();
            assert!(moved < 2 * AT_ONCE as usize, "{moved} of those that stay are moved");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is queued, passes and is searched for meanwhile, no request is lost, and those of each tenant keep their
        /// order. A step looks at few, and a search ends.
        #[test]
        fn searches_lose_nothing_and_keep_the_order(
            plan in proptest::collection::vec((0..4_u32, 0..400_u64), 1..30),
        ) {
            let mut turns = Turns::new();
            let (mut search, mut steps) = (0..0, 0);
            let (mut sent, mut gone, mut newest) = (0_u64, 0_u64, [None::<u64>; TENANTS as usize]);
            for (step, n) in plan {
                match step {
                    0 => {
                        for _ in 0..n {
                            turns.push(waiting(sent, (sent % u64::from(TENANTS)) as u32));
                            sent += 1;
                        }
                    }
                    1 => {
                        for _ in 0..n {
                            let Some(waiting) = turns.pop() else { break };
                            let newest = &mut newest[waiting.tenant.index as usize];
                            prop_assert!(*newest < Some(waiting.request));
                            *newest = Some(waiting.request);
                            gone += 1;
                        }
                    }
                    _ => {
                        if search.is_empty() {
                            (search, steps) = (0..turns.came(), 0);
                        }
                        let looks = Cell::new(0);
                        let is_taken = |waiting: &Waiting<u64>| {
                            looks.set(looks.get() + 1);
                            waiting.request % 3 == n % 3
                        };
                        let taken = turns.take_some(&mut search, is_taken);
                        steps += 1;
                        prop_assert!(looks.get() <= AT_ONCE && steps <= sent / AT_ONCE + 1);
                        prop_assert!(taken.iter().all(|waiting| waiting.request % 3 == n % 3));
                        prop_assert!(taken.is_sorted_by_key(|waiting| waiting.came));
                        gone += taken.len() as u64;
                    }
                }
                prop_assert_eq!(turns.len() as u64 + gone, sent);
            }
        }
    }
}
