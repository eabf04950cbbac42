//! Detects a signal that shows no reads although groups read, as the kernel neither counts nor times them there.

use evenkeel_control::{Duration, Instant};

/// Time for which groups read, and a signal shows no read, until the signal is no longer used. A read shows in both within an
/// interval or two; the counters of many groups are read once a second.
const UNSEEN_FOR: Duration = Duration::from_secs(3);

/// The times in which groups read and a signal shows no read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unseen {
    /// Times of the first and the newest such interval; `None` while the signal shows reads.
    since: Option<(Instant, Instant)>,
    /// Times of the first and the newest interval in which the signal shows reads, after it has shown none.
    again: Option<(Instant, Instant)>,
    blind: bool,
    doubtful: bool,
}

/// Takes in an interval that ends at `now`, of those whose first and newest one are `known`; true if they last long enough. A
/// read of long before is left out: it may have been seen in another interval than its group's.
fn lasts(known: &mut Option<(Instant, Instant)>, now: Instant) -> bool {
    let recent = known.filter(|(_, newest)| now.since(*newest) < UNSEEN_FOR);
    let since = recent.map_or(now, |(since, _)| since);
    *known = Some((since, now));
    now.since(since) >= UNSEEN_FOR
}

impl Unseen {
    /// Takes in an interval that ends at `now`: true for `shows` if the signal shows reads in it, for `reads` if groups read.
    pub(super) fn look(&mut self, now: Instant, shows: bool, reads: bool) {
        if shows {
            (self.since, self.blind) = (None, false);
            self.doubtful &= !lasts(&mut self.again, now);
        } else if reads && lasts(&mut self.since, now) {
            (self.again, self.blind, self.doubtful) = (None, true, true);
        }
    }

    /// True if the signal shows no reads.
    pub(super) const fn is_blind(&self) -> bool {
        self.blind
    }

    /// True if the signal shows no reads, or has not shown some for long enough since: a single read that it shows does not end
    /// this, so that a signal of few reads of many does not come and go.
    pub(super) const fn is_doubtful(&self) -> bool {
        self.doubtful
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_blind_after_a_while_in_which_it_shows_no_read_and_not_after_single_ones() {
        let at = |second: u64| Instant::ZERO + Duration::from_secs(second);
        let (mut steady, mut seldom) = (Unseen::default(), Unseen::default());
        for second in 1..=20 {
            steady.look(at(second), false, true);
            seldom.look(at(second), false, second % 4 == 0);
            assert_eq!((steady.is_blind(), seldom.is_blind()), (second > 3, false), "{second}");
        }
        steady.look(at(21), false, false);
        assert!(steady.is_blind(), "without reads it stays so");
        steady.look(at(22), true, true);
        assert!(!steady.is_blind());
    }

    #[test]
    fn a_signal_that_was_blind_is_doubtful_until_it_shows_reads_for_a_while() {
        let at = |second: u64| Instant::ZERO + Duration::from_secs(second);
        let mut few = Unseen::default();
        for second in 1..=60 {
            // One read in five shows.
            few.look(at(second), second % 5 == 0, true);
            assert_eq!(few.is_doubtful(), second >= 4, "{second}");
        }
        for second in 61..=70 {
            few.look(at(second), true, true);
            assert_eq!((few.is_blind(), few.is_doubtful()), (false, second < 63), "{second}");
        }
        let mut idle = few;
        idle.look(at(90), false, false);
        assert!(!idle.is_doubtful(), "without reads nothing is known");
    }
}
