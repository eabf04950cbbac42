//! Connections that have much to send, and the order in which they send: tenants take turns, and so do the connections of each
//! tenant. A tenant with a thousand connections delays the replies of another tenant as much as a tenant with one.

use std::collections::{HashMap, VecDeque};

/// The connections of a worker that have much to send. A tenant sends once, and then once more after each other tenant that has
/// much to send. Pushing and taking are O(1).
#[derive(Default)]
pub(super) struct LongSends {
    /// Slots of connections by tenant, those of each tenant in the order of their turns; no queue is empty.
    slots: HashMap<usize, VecDeque<u32>>,
    /// The tenants in `slots`, each once, in the order of their turns.
    tenants: VecDeque<usize>,
}

impl LongSends {
    /// True if no connection waits to send.
    pub(super) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Puts the connection in `slot` behind the other connections of its tenant; `tenant`: a number that tells the tenant from
    /// others.
    pub(super) fn push(&mut self, tenant: usize, slot: u32) {
        let slots = self.slots.entry(tenant).or_default();
        if slots.is_empty() {
            self.tenants.push_back(tenant);
        }
        slots.push_back(slot);
    }

    /// Takes the slot of the connection whose turn it is; the turn of its tenant is over.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let tenant = self.tenants.pop_front()?;
        let slots = self.slots.get_mut(&tenant)?;
        let slot = slots.pop_front();
        if slots.is_empty() {
            self.slots.remove(&tenant);
        } else {
            self.tenants.push_back(tenant);
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tenant_with_many_connections_sends_once_before_each_other_tenant_has() {
        const MANY: u32 = 1_000;
        let mut long = LongSends::default();
        (0..MANY).for_each(|slot| long.push(1, slot));
        long.push(2, MANY);
        assert_eq!([(); 3].map(|()| long.pop()), [Some(0), Some(MANY), Some(1)]);
        // Those that have more to send have their next turns behind the others of their tenant.
        [(1, 0), (2, MANY), (1, 1)].into_iter().for_each(|(tenant, slot)| long.push(tenant, slot));
        assert_eq!([(); 3].map(|()| long.pop()), [Some(2), Some(MANY), Some(3)]);
        let rest: Vec<u32> = std::iter::from_fn(|| long.pop()).collect();
        assert!(rest.iter().copied().eq((4..MANY).chain([0, 1])), "{rest:?}");
        assert!(long.is_empty() && long.slots.is_empty());
    }

    proptest! {
        /// Each connection is taken as often as it is put in, those of each tenant in their order, and while a tenant waits, no
        /// other tenant has two turns.
        #[test]
        fn none_is_lost_and_tenants_take_turns(
            steps in proptest::collection::vec((0..5_usize, any::<bool>()), 0..200),
        ) {
            let mut long = LongSends::default();
            // For each tenant: its slots, and the turns of the others since it began to wait or had its own.
            let mut model: Vec<(VecDeque<u32>, [u32; 5])> = vec![Default::default(); 5];
            let end = std::iter::repeat_n((0, false), 200);
            for (slot, (tenant, is_push)) in (0..).zip(steps.into_iter().chain(end)) {
                if is_push {
                    if model[tenant].0.is_empty() {
                        model[tenant].1 = [0; 5];
                    }
                    model[tenant].0.push_back(slot);
                    long.push(tenant, slot);
                    continue;
                }
                let Some(slot) = long.pop() else {
                    prop_assert!(model.iter().all(|(slots, _)| slots.is_empty()));
                    continue;
                };
                let of = model.iter().position(|(slots, _)| slots.front() == Some(&slot));
                prop_assert!(of.is_some(), "{} is not the next one of a tenant", slot);
                let of = of.unwrap_or_default();
                model[of] = (model[of].0.split_off(1), [0; 5]);
                for (slots, turns) in &mut model {
                    turns[of] += 1;
                    prop_assert!(slots.is_empty() || turns[of] <= 1);
                }
            }
            prop_assert!(long.is_empty() && long.slots.is_empty());
        }
    }
}
