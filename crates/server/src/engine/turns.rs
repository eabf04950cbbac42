//! A queue whose owners take turns.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// A queue whose owners take turns: an item waits for at most one item of each other owner beside the earlier items of its own
/// owner, however many the others have.
pub(crate) struct Turns<K, T> {
    /// The first item of each owner, in the order of their turns.
    first: VecDeque<(K, T)>,
    /// The owners' items after the first.
    behind: HashMap<K, VecDeque<T>>,
}

impl<K, T> Default for Turns<K, T> {
    fn default() -> Self {
        Self { first: VecDeque::new(), behind: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash, T> Turns<K, T> {
    /// Adds an item behind all others of its owner.
    pub(crate) fn push(&mut self, owner: K, item: T) {
        if self.first.iter().any(|(first, _)| *first == owner) {
            self.behind.entry(owner).or_default().push_back(item);
        } else {
            self.first.push_back((owner, item));
        }
    }

    /// Takes the item whose turn it is; its owner's next item goes behind those of all other owners.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let (owner, item) = self.first.pop_front()?;
        if let Entry::Occupied(mut behind) = self.behind.entry(owner) {
            self.first.extend(behind.get_mut().pop_front().map(|next| (owner, next)));
            if behind.get().is_empty() {
                behind.remove();
            }
        }
        Some(item)
    }

    /// The item whose turn it is.
    pub(crate) fn front(&self) -> Option<&T> {
        self.first.front().map(|(_, item)| item)
    }

    /// True if no item waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.behind.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_owner_keeps_its_order_and_waits_for_one_item_of_each_other(
            steps in prop::collection::vec(prop::option::of(0..4_u8), 0..200),
        ) {
            let mut turns: Turns<u8, (u8, usize)> = Turns::default();
            // By owner, the numbers of its items, and how often other owners had a turn since its latest one.
            let mut waiting: BTreeMap<u8, VecDeque<usize>> = BTreeMap::new();
            let mut passed: BTreeMap<u8, BTreeMap<u8, u32>> = BTreeMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                let Some(owner) = step else {
                    let front = turns.front().copied();
                    let item = turns.pop();
                    prop_assert_eq!(front, item);
                    let Some((owner, number)) = item else {
                        prop_assert!(waiting.values().all(VecDeque::is_empty));
                        continue;
                    };
                    prop_assert_eq!(waiting.get_mut(&owner).and_then(VecDeque::pop_front), Some(number));
                    passed.remove(&owner);
                    for (&other, _) in waiting.iter().filter(|(other, items)| **other != owner && !items.is_empty()) {
                        let times = passed.entry(other).or_default().entry(owner).or_default();
                        *times += 1;
                        prop_assert!(*times <= 1, "{other} waits for two of {owner}");
                    }
                    continue;
                };
                turns.push(owner, (owner, number));
                let own = waiting.entry(owner).or_default();
                if own.is_empty() {
                    passed.remove(&owner);
                }
                own.push_back(number);
            }
            prop_assert_eq!(turns.is_empty(), waiting.values().all(VecDeque::is_empty));
        }
    }
}
