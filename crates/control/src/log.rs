//! A log of controllers' decisions. A decision that is taken again and again without a change in kind is one entry.
//!
//! One log may serve several subjects (the tenants of a pool): each subject remembers its [`Newest`] entry, and the log's
//! capacity is for the entries of all subjects together.

use alloc::collections::VecDeque;

use crate::time::Instant;

/// A decision that a [`Log`] can keep. Its text is made only when the log is read, because that is rare and decisions are
/// frequent.
pub trait Decided {
    /// True if `newer` is the same decision in kind, so that it only renews this one and makes no entry of its own.
    fn is_renewed_by(&self, newer: &Self) -> bool;

    /// The number that the decision set, if any; an [`Entry`] keeps its least and largest value.
    fn figure(&self) -> Option<f64> {
        None
    }
}

/// A decision, with the span of time in which it was only renewed.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry<D> {
    /// Time at which the decision was taken first.
    pub from: Instant,
    /// Time at which the decision was taken last.
    pub until: Instant,
    /// Number of times that the decision was taken.
    pub times: u64,
    /// The decision as it was taken last, at `until`.
    pub decision: D,
    /// The least [`Decided::figure`] between `from` and `until`.
    pub least: Option<f64>,
    /// The largest [`Decided::figure`] between `from` and `until`.
    pub most: Option<f64>,
}

/// A reference to the log entry of a subject's newest decision; empty before the subject's first decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Newest(Option<u64>);

/// The latest decisions, oldest first.
#[derive(Clone, Debug)]
pub struct Log<D> {
    entries: VecDeque<Entry<D>>,
    capacity: usize,
    /// Number of entries that were dropped so far because the log was full.
    dropped: u64,
    last: Newest,
}

impl<D> Default for Log<D> {
    fn default() -> Self {
        Self::new(1)
    }
}

impl<D> Log<D> {
    /// An empty log for `capacity` entries; a capacity of 0 counts as 1. Memory is allocated with the first entry.
    pub const fn new(capacity: usize) -> Self {
        let capacity = if capacity == 0 { 1 } else { capacity };
        Self { entries: VecDeque::new(), capacity, dropped: 0, last: Newest(None) }
    }

    /// Raises the log's capacity to at least `capacity` entries.
    pub fn reserve(&mut self, capacity: usize) {
        self.capacity = self.capacity.max(capacity);
    }

    /// The entry of a subject's newest decision, if the log still has it. O(1).
    pub fn newest_mut(&mut self, newest: Newest) -> Option<&mut Entry<D>> {
        let place = newest.0?.checked_sub(self.dropped)?;
        self.entries.get_mut(usize::try_from(place).ok()?)
    }

    /// The newest entry.
    pub fn last(&self) -> Option<&Entry<D>> {
        self.entries.back()
    }

    /// The newest entry, to be renewed directly ([`Entry::renew`]).
    pub fn last_mut(&mut self) -> Option<&mut Entry<D>> {
        self.entries.back_mut()
    }

    /// All entries in ascending order of [`Entry::from`].
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry<D>> + ExactSizeIterator {
        self.entries.iter()
    }
}

impl<D: Decided> Log<D> {
    /// Records a decision of the subject to which `newest` belongs. True if it makes a new entry, false if it renews the
    /// subject's newest one. O(1).
    pub fn record_of(&mut self, newest: &mut Newest, now: Instant, decision: D) -> bool {
        if let Some(entry) = self.newest_mut(*newest).filter(|entry| entry.decision.is_renewed_by(&decision)) {
            entry.renew(now, decision);
            return false;
        }
        if self.entries.len() >= self.capacity {
            self.entries.pop_front();
            self.dropped += 1;
        }
        *newest = Newest(Some(self.dropped + self.entries.len() as u64));
        let figure = decision.figure();
        self.entries.push_back(Entry { from: now, until: now, times: 1, decision, least: figure, most: figure });
        true
    }

    /// Records a decision like [`Log::record_of`] in a log of only one subject; true if the decision makes a new entry.
    pub fn record(&mut self, now: Instant, decision: D) -> bool {
        let mut newest = self.last;
        let new = self.record_of(&mut newest, now, decision);
        self.last = newest;
        new
    }
}

impl<D: Decided> Entry<D> {
    /// Counts the entry's decision once more, taken at `now` as `decision`, and its figure in the least and largest.
    pub fn renew(&mut self, now: Instant, decision: D) {
        if let Some(figure) = decision.figure() {
            self.least = Some(self.least.map_or(figure, |least| least.min(figure)));
            self.most = Some(self.most.map_or(figure, |most| most.max(figure)));
        }
        (self.until, self.decision) = (now, decision);
        self.times += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Duration;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Limit {
        reason: u8,
        value: u8,
    }

    impl Decided for Limit {
        fn is_renewed_by(&self, newer: &Self) -> bool {
            self.reason == newer.reason
        }

        fn figure(&self) -> Option<f64> {
            Some(f64::from(self.value))
        }
    }

    fn at(step: usize) -> Instant {
        Instant::ZERO + Duration::from_millis(step as u64)
    }

    proptest! {
        #[test]
        fn every_decision_is_in_one_entry_of_its_subject(
            decisions in prop::collection::vec((0..3usize, 0..3u8, 0..9u8), 0..200),
        ) {
            let mut log = Log::new(1_000);
            let mut newest = [Newest::default(); 3];
            let mut before = [None; 3];
            for (step, &(subject, reason, value)) in decisions.iter().enumerate() {
                let new = log.record_of(&mut newest[subject], at(step), Limit { reason, value });
                prop_assert_eq!(new, before[subject].replace(reason) != Some(reason));
                let entry = log.newest_mut(newest[subject]).unwrap();
                prop_assert_eq!((entry.until, entry.decision), (at(step), Limit { reason, value }));
                prop_assert!(entry.least <= Some(f64::from(value)) && Some(f64::from(value)) <= entry.most);
            }
            prop_assert_eq!(log.iter().map(|entry| entry.times).sum::<u64>(), decisions.len() as u64);
        }

        #[test]
        fn a_log_keeps_the_newest(capacity in 0..5usize, reasons in prop::collection::vec(0..4u8, 1..60)) {
            let mut log = Log::new(capacity);
            for (step, &reason) in reasons.iter().enumerate() {
                log.record(at(step), Limit { reason, value: 0 });
            }
            prop_assert!(log.iter().len() <= capacity.max(1));
            let last = log.last().unwrap();
            prop_assert_eq!((last.until, last.decision.reason), (at(reasons.len() - 1), *reasons.last().unwrap()));
        }
    }

    #[test]
    fn a_subject_whose_entry_is_gone_begins_another() {
        let mut log = Log::new(1);
        let (mut one, mut other) = (Newest::default(), Newest::default());
        let limit = Limit { reason: 1, value: 1 };
        assert!(log.record_of(&mut one, at(0), limit));
        assert!(log.record_of(&mut other, at(1), limit));
        assert!(log.record_of(&mut one, at(2), limit), "the first entry had to make room");
        assert_eq!(log.iter().len(), 1);
    }
}
