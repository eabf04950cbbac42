//! Finds the repetitions of requests that failed or were dropped.

use std::collections::{HashMap, VecDeque};

use evenkeel_control::{Duration, Instant};
use evenkeel_flight::{Kind, Outcome};

use super::Record;

/// Longest time between the end of a request and its repetition: clients repeat for a minute or so.
const WITHIN: Duration = Duration::from_secs(120);
/// Largest number of failed requests that are remembered.
const MOST: usize = 1 << 16;

/// The fields that two requests have in common of which one repeats the other.
type What = (u32, Kind, u64, u64);

/// The requests that failed or were dropped lately.
#[derive(Default)]
pub(super) struct Again {
    /// For each: from when on an arriving request like it is its repetition.
    from: HashMap<What, Instant>,
    /// When each ended, oldest first.
    ends: VecDeque<(Instant, What)>,
}

impl Again {
    /// True if a request repeats one that failed or was dropped. To be called for every request, in the order of their ends.
    pub(super) fn repeats(&mut self, record: &Record) -> bool {
        while let Some(&(ended, what)) = self.ends.front()
            && (ended + WITHIN < record.done || self.ends.len() > MOST)
        {
            self.ends.pop_front();
            // A later one like it stays until its own time is over.
            if self.from.get(&what).is_some_and(|&from| from <= ended) {
                self.from.remove(&what);
            }
        }
        if self.from.is_empty() && record.outcome == Outcome::Done {
            return false;
        }
        let what = (record.volume, record.kind, record.offset, record.length);
        let repeats = self.from.get(&what).is_some_and(|&from| record.arrived > from);
        if repeats {
            self.from.remove(&what);
        }
        let from = match record.outcome {
            Outcome::Done => return repeats,
            // Two alike that fail together are no repetition of each other.
            Outcome::Failed(_) => record.done,
            // Its client may have come back long before its turn came.
            Outcome::Cancelled => record.arrived,
        };
        self.from.insert(what, from);
        self.ends.push_back((record.done, what));
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::request::ConnKey;

    fn record(from_ms: u64, to_ms: u64, offset: u64, outcome: Outcome) -> Record {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        Record {
            arrived: at(from_ms),
            admitted: at(from_ms),
            done: at(to_ms),
            offset,
            length: 4096,
            key: ConnKey { slot: 0, generation: 0 },
            tenant: None,
            volume: 0,
            pool: 0,
            outcome,
            kind: Kind::Write,
            durable: false,
        }
    }

    #[test]
    fn a_repetition_is_told_apart_from_another_request() {
        let mut again = Again::default();
        let mut repeats = |from, to, offset, outcome| again.repeats(&record(from, to, offset, outcome));
        let failed = Outcome::Failed(5);
        assert!(!repeats(1, 2, 0, Outcome::Done));
        assert!(!repeats(3, 10, 0, failed));
        assert!(!repeats(4, 11, 0, failed), "it was sent together with the first");
        assert!(!repeats(12, 13, 8192, Outcome::Done), "another offset");
        assert!(repeats(12, 14, 0, failed), "it fails again");
        assert!(repeats(15, 16, 0, Outcome::Done));
        assert!(!repeats(17, 18, 0, Outcome::Done), "the repetition was answered");
        // The client comes back before the turn of its first request.
        assert!(!repeats(20, 500, 0, Outcome::Cancelled));
        assert!(repeats(30, 501, 0, Outcome::Done));
        // Too late for a repetition.
        assert!(!repeats(600, 610, 0, failed));
        assert!(!repeats(300_000, 300_001, 0, Outcome::Done));
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut again = Again::default();
        (0..3 * MOST as u64).for_each(|n| assert!(!again.repeats(&record(1, 2, n << 12, Outcome::Failed(5)))));
        assert!(again.ends.len() <= MOST + 1 && again.from.len() <= MOST + 1, "{}", again.ends.len());
    }
}
