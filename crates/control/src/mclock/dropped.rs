//! Takes queued requests out of the queue before their turn comes, because they are not wanted any more.

use alloc::vec::Vec;

use super::lanes::Place;
use super::slab::NONE;
use super::{ClientId, Queue, live_mut};
use crate::time::Instant;
use crate::units::Direction;

/// The lists of a client, in the order in which they are searched: while the client keeps its lists, a request moves only to a
/// later one.
const LISTS: [Place; 4] = [Place::Common, Place::Of(Direction::Read), Place::Of(Direction::Write), Place::Later];

/// A search through the requests that a client has queued when it begins; it goes on with each call of [`Queue::remove_some`].
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Index in [`LISTS`] of the list that is searched; their number at the end.
    list: usize,
    /// Slot of the newest request of this list that was searched and stays; [`NONE`] if there is none.
    after: u32,
    /// Number of requests of this list that are still to be searched; `None` before the first one. Those that come meanwhile do
    /// not count, so that the search ends.
    left: Option<u32>,
    /// True if directions of the client had lists of their own at the newest call.
    has_lanes: bool,
}

impl Default for Search {
    fn default() -> Self {
        Self { list: 0, after: NONE, left: None, has_lanes: false }
    }
}

impl Search {
    /// True if all requests were searched.
    pub fn has_ended(&self) -> bool {
        self.list >= LISTS.len()
    }
}

impl<R> Queue<R> {
    /// Goes on with a search of a client's queued requests: takes those of the next `most` out of the queue for which `unwanted`
    /// is true; returns each with the instant at which it was queued. They are not charged, and the others keep their order.
    /// O(most + log clients), whatever the number of queued requests. The search begins anew when requests have moved to other
    /// lists, because a direction has got its first limit or lost its last one.
    pub fn remove_some(
        &mut self,
        now: Instant,
        id: ClientId,
        search: &mut Search,
        mut most: u32,
        mut unwanted: impl FnMut(&R) -> bool,
    ) -> Vec<(Instant, R)> {
        let mut removed = Vec::new();
        let Some(client) = live_mut(&mut self.clients, id) else {
            search.list = LISTS.len();
            return removed;
        };
        let has_lanes = client.lanes.is_some();
        if search.has_lanes != has_lanes {
            *search = Search { has_lanes, ..Search::default() };
        }
        while let Some(&place) = LISTS.get(search.list) {
            let has_list = match place {
                Place::Common => true,
                Place::Of(_) => has_lanes,
                Place::Later => client.len() > client.ordinary_len(),
            };
            let mut left = 0;
            if has_list {
                let fifo = client.fifo_mut(place);
                left = search.left.unwrap_or(fifo.len()).min(fifo.len());
                let next = left.min(most);
                if next > 0 {
                    let searched =
                        self.requests.sift(fifo, id.index, &mut search.after, next, &mut unwanted, &mut removed);
                    // Fewer at the end of the list: some of those to be searched were served.
                    left = if searched < next { 0 } else { left - searched };
                    most -= searched;
                }
                if place == Place::Later {
                    client.account(Place::Later, 0);
                }
            }
            if left > 0 {
                search.left = Some(left);
                break;
            }
            (search.list, search.after, search.left) = (search.list + 1, NONE, None);
        }
        if removed.is_empty() {
            return removed;
        }
        let is_active = client.is_active();
        self.withdraw(id.index);
        if is_active {
            self.place(now, id.index);
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{CostModel, Pull, Qos, Wish};
    use super::*;
    use crate::time::Duration;
    use crate::units::{Kind, Rates, Work};

    #[derive(Clone, Debug)]
    enum Step {
        Push(Kind),
        Pull(Wish),
        Search(u32),
        Limit(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let kind = prop_oneof![Just(Kind::Read), Just(Kind::Write), Just(Kind::Meta)];
        let wish = prop_oneof![3 => Just(Wish::Now), 1 => Just(Wish::Later), 1 => Just(Wish::Never)];
        let step = prop_oneof![
            5 => kind.prop_map(Step::Push),
            4 => wish.prop_map(Step::Pull),
            4 => (1..5_u32).prop_map(Step::Search),
            1 => any::<bool>().prop_map(Step::Limit),
        ];
        proptest::collection::vec(step, 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Each call looks at few requests and loses none that is wanted. A search finds all that were not wanted when it began,
        /// whatever comes, is served or put off meanwhile, and if requests move to other lists.
        #[test]
        fn a_search_in_steps_finds_what_is_not_wanted_and_loses_nothing(plan in steps()) {
            let mut queue: Queue<u32> = Queue::new(CostModel::default());
            let clients = [(); 2].map(|()| queue.join(Instant::ZERO, Qos::default()));
            let mut now = Instant::from_nanos(1_000_000);
            let unwanted = |name: &u32| name.is_multiple_of(3);
            let (mut search, mut began_at, mut undisturbed): (Option<Search>, u32, bool) = (None, 0, true);
            // There and back between two calls is not noticed.
            let mut moves = 0;
            let (mut next, mut left): (u32, Vec<(u32, Kind)>) = (0, Vec::new());
            for step in plan {
                now += Duration::from_nanos(1_000);
                match step {
                    Step::Push(kind) => {
                        // The other client's requests use the slots that were freed.
                        for client in clients {
                            prop_assert!(queue.push(now, client, Work::new(kind, 512), next).is_ok());
                            if client == clients[0] {
                                left.push((next, kind));
                            }
                            next += 1;
                        }
                    }
                    Step::Pull(wish) => match queue.pull_wanted(now, |_, _| true, |_| wish) {
                        Ok(Pull::Ready { client, payload, .. }) if client == clients[0] => {
                            left.retain(|(name, _)| *name != payload);
                        }
                        Err(Some((_, payload))) => left.retain(|(name, _)| *name != payload),
                        Err(None) | Ok(_) => {}
                    },
                    Step::Limit(limited) => {
                        let limit = if limited { Rates { iops: 1_000_000_000, bytes_per_s: 0 } } else { Rates::UNSET };
                        queue.set_limit_of(now, clients[0], Direction::Write, limit);
                        moves += 1;
                        undisturbed &= moves < 2;
                    }
                    Step::Search(most) => {
                        let mut of = *search.get_or_insert_with(|| {
                            (began_at, undisturbed) = (next, true);
                            Search::default()
                        });
                        moves = 0;
                        let mut seen = 0;
                        let removed = queue.remove_some(now, clients[0], &mut of, most, |name| {
                            seen += 1;
                            unwanted(name)
                        });
                        prop_assert!(seen <= most);
                        for (_, name) in removed {
                            prop_assert!(unwanted(&name) && left.iter().any(|(of, _)| *of == name));
                            left.retain(|(of, _)| *of != name);
                        }
                        search = Some(of);
                        if of.has_ended() {
                            search = None;
                            if undisturbed {
                                prop_assert!(!left.iter().any(|(name, _)| *name < began_at && unwanted(name)));
                            }
                        }
                    }
                }
                prop_assert_eq!(queue.client_len(clients[0]), left.len());
            }
            let mut rest: Vec<u32> = queue.leave(clients[0]);
            rest.sort_unstable();
            left.sort_unstable_by_key(|(name, _)| *name);
            prop_assert_eq!(rest, left.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
        }

        /// What stays goes in its order, whatever the steps.
        #[test]
        fn what_a_search_leaves_keeps_its_order(length in 1..100_u32, most in 1..20_u32, one_in in 1..5_u32) {
            let mut queue: Queue<u32> = Queue::new(CostModel::default());
            let client = queue.join(Instant::ZERO, Qos::default());
            let now = Instant::from_nanos(1_000_000);
            for name in 0..length {
                prop_assert!(queue.push(now, client, Work::new(Kind::Read, 512), name).is_ok());
            }
            let unwanted = |name: &u32| name.is_multiple_of(one_in);
            let (mut search, mut removed) = (Search::default(), Vec::new());
            while !search.has_ended() {
                removed.extend(queue.remove_some(now, client, &mut search, most, unwanted).into_iter().map(|(_, r)| r));
            }
            prop_assert_eq!(removed, (0..length).filter(unwanted).collect::<Vec<_>>());
            prop_assert!(queue.push(now, client, Work::new(Kind::Read, 512), length).is_ok());
            let mut rest = Vec::new();
            while let Pull::Ready { payload, .. } = queue.pull(now, |_, _| true) {
                rest.push(payload);
            }
            prop_assert_eq!(rest, (0..=length).filter(|name| *name == length || !unwanted(name)).collect::<Vec<_>>());
        }
    }
}
