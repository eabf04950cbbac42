//! Reports that come back only after the next one was made, as with a slow store.
//!
//! From a report that has come back on, the store may hold this one or any later one. What the smallest of their claims allows is
//! in all of them, so that it may be in use before the newest report is back. Safe parts follow the same rule.

use super::{Contact, Share, Sums};

/// The smallest figures of several reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    claim: f64,
    safe: f64,
}

impl Share {
    /// Adds the newest report to those that have not come back.
    pub(super) fn await_newest(&mut self) {
        let newest = self.newest();
        self.awaited = Some(self.awaited.map_or(newest, |earlier| Awaited {
            claim: earlier.claim.min(newest.claim),
            safe: earlier.safe.min(newest.safe),
        }));
    }

    fn newest(&self) -> Awaited {
        Awaited { claim: self.claim, safe: self.newest_safe }
    }

    /// Takes in the sums over the other members as [`Share::observe`] does. To be called when an awaited report of this member
    /// has come back that is not its newest one, and that was made within the last lease. All reports are awaited that were made
    /// after the last call of [`Share::lost`] or of [`Share::observe`] with `own_is_back`. A call of this function ends that for
    /// all reports so far, except the newest one.
    ///
    /// Beside members that cannot be read nothing grows, as no claims of theirs order it.
    pub fn observe_earlier(&mut self, others: &Sums) {
        self.observe(others, false);
        let Some(awaited) = self.awaited.filter(|_| self.is_new && self.unread == 0) else { return };
        (self.contact, self.had_contact, self.remembered) = (Contact::Shared, true, 0);
        let free = self.free();
        self.granted = self.granted.max(awaited.claim.min(free - others.lines.claim));
        self.safe = self.safe.max(awaited.safe.min(free - others.lines.safe));
        self.awaited = Some(self.newest());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Asked, Line};
    use super::*;

    fn report(share: &mut Share, arrived: f64) -> Line {
        share.measure(&Asked { requests: 1e4, arrived, queued: 0.0, served: arrived }, 1.0);
        share.report()
    }

    #[test]
    fn the_smallest_claim_of_the_reports_that_may_be_in_the_store_is_in_use() {
        let mut share = Share::new(0, 4_000);
        let rest = Sums { members: 2, lines: Line { need: 0.2, claim: 0.2, ..Line::default() }, reserved: 0.0 };
        share.observe(&rest, false);
        let smaller = report(&mut share, 0.1).claim;
        let larger = report(&mut share, 0.7).claim;
        assert!(larger > smaller && share.limit() == 0.0);
        // Of the two, the first one is back.
        share.observe_earlier(&rest);
        assert!((share.limit() - smaller).abs() < 1e-12 && share.contact() == Contact::Shared, "{share:?}");
        // The second one is back, and another one is on its way.
        let largest = report(&mut share, 0.8).claim;
        share.observe_earlier(&rest);
        assert!((share.limit() - larger.min(largest).min(0.8)).abs() < 1e-12, "{share:?}");
        // After a loss no report of before counts.
        share.lost();
        let kept = share.limit();
        share.observe_earlier(&rest);
        assert!(share.contact() == Contact::Lost && share.limit() <= kept, "{share:?}");
    }
}
