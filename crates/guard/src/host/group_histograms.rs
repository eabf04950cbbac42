//! Histograms of the reads of single control groups, of which there is a fixed number. A group keeps its histogram for as long as
//! it is watched.

use std::collections::{BTreeMap, BTreeSet};

/// Number of histograms of single groups: more than a node of Kubernetes has pods by default. Each takes 3.3 kB of kernel memory,
/// and one in use a system call in each tick.
pub(super) const MOST: u32 = 128;

/// A control group: the place of its device among those with groups, and its path.
pub(super) type Key = (u32, String);

/// The histogram of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the histogram, below [`MOST`].
    pub(super) histogram: u32,
    /// True if the group's reads count for the latency target.
    pub(super) counts: bool,
}

/// The groups that have a histogram of their own.
#[derive(Debug, Default)]
pub(super) struct GroupHistograms(BTreeMap<Key, Place>);

impl GroupHistograms {
    /// The groups with their histograms.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, Place)> {
        self.0.iter().map(|(key, place)| (key, *place))
    }

    /// The histogram of a group; `None` if it has none of its own.
    pub(super) fn histogram(&self, device: u32, group: &str) -> Option<u32> {
        self.0.get(&(device, group.to_owned())).map(|place| place.histogram)
    }

    /// Takes the histograms of groups that are no longer watched, and gives free ones to new groups, in their order. Returns the
    /// ones that it gives: they may have counts of late reads of another group. `watched`: device and path of each group, and
    /// true if its reads count for the latency target.
    pub(super) fn renew<'a>(&mut self, watched: impl IntoIterator<Item = (u32, &'a str, bool)>) -> Vec<u32> {
        let mut before = std::mem::take(&mut self.0);
        let mut new = Vec::new();
        for (device, group, counts) in watched {
            let key = (device, group.to_owned());
            match before.remove(&key) {
                Some(place) => {
                    self.0.insert(key, Place { counts, ..place });
                }
                None => new.push((key, counts)),
            }
        }
        let taken: BTreeSet<u32> = self.0.values().map(|place| place.histogram).collect();
        let free = (0..MOST).filter(|histogram| !taken.contains(histogram));
        let given: Vec<u32> = free.take(new.len()).collect();
        let places = given.iter().copied();
        self.0.extend(new.into_iter().zip(places).map(|((key, counts), histogram)| (key, Place { histogram, counts })));
        given
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_group_keeps_its_histogram_and_a_new_one_gets_a_free_one() {
        let mut known = GroupHistograms::default();
        assert_eq!(known.renew([(0, "a", true), (0, "b", true), (1, "a", false)]), [0, 1, 2]);
        let groups = [(0, "a"), (0, "b"), (1, "a")];
        let of = |known: &GroupHistograms| groups.map(|(device, group)| known.histogram(device, group));
        assert_eq!(of(&known), [Some(0), Some(1), Some(2)]);
        assert_eq!(known.renew([(1, "a", true), (0, "c", true), (0, "b", false)]), [0], "that of a, for c");
        assert_eq!((of(&known), known.histogram(0, "c")), ([None, Some(1), Some(2)], Some(0)));
        let counting: Vec<bool> = known.iter().map(|(_, place)| place.counts).collect();
        assert_eq!(counting, [false, true, true], "of b, c and the other a");
    }

    proptest! {
        /// No two groups share a histogram, each that stays keeps its own, and none is without one while one is free.
        #[test]
        fn no_two_groups_share_a_histogram(
            steps in prop::collection::vec(prop::collection::btree_set(0..200_u32, 0..180), 1..6)
        ) {
            let mut known = GroupHistograms::default();
            for step in steps {
                let before: BTreeMap<Key, Place> = known.iter().map(|(key, place)| (key.clone(), place)).collect();
                let names: Vec<String> = step.iter().map(ToString::to_string).collect();
                let given = known.renew(names.iter().map(|name| (7, name.as_str(), true)));
                let given: BTreeSet<u32> = given.into_iter().collect();
                let new = known.iter().filter(|(key, _)| !before.contains_key(*key));
                let new: BTreeSet<u32> = new.map(|(_, place)| place.histogram).collect();
                prop_assert_eq!(given, new, "those of new groups");
                let used: BTreeSet<u32> = known.iter().map(|(_, place)| place.histogram).collect();
                let expected = names.len().min(MOST as usize);
                prop_assert_eq!((used.len(), known.iter().count()), (expected, expected));
                prop_assert!(used.iter().all(|histogram| *histogram < MOST));
                for ((device, name), place) in &before {
                    let after = known.histogram(*device, name);
                    prop_assert!(after == Some(place.histogram) || !names.contains(name));
                }
            }
        }
    }
}
