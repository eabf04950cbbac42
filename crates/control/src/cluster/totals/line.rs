//! Figures of reports: sums of them, and those that no member reports.

use super::{Line, MOST_NEED, ROUNDING};

impl Line {
    /// Adds the figures of another line.
    pub fn add(&mut self, other: &Self) {
        self.need += other.need;
        self.throttled += other.throttled;
        self.lack += other.lack;
        self.floor += other.floor;
        self.claim += other.claim;
        self.safe += other.safe;
    }

    /// Takes off the figures of a line that was added before.
    pub fn remove(&mut self, other: &Self) {
        self.need = (self.need - other.need).max(0.0);
        self.throttled = (self.throttled - other.throttled).max(0.0);
        self.lack = (self.lack - other.lack).max(0.0);
        self.floor = (self.floor - other.floor).max(0.0);
        self.claim = (self.claim - other.claim).max(0.0);
        self.safe = (self.safe - other.safe).max(0.0);
    }

    /// True if all figures are in the range that one member reports, so that the line may be added up.
    pub fn is_valid(&self) -> bool {
        self.is_valid_of(1)
    }

    /// True if all figures are in the range of the sum of this number of members' reports.
    pub fn is_valid_of(&self, members: u64) -> bool {
        let members = members as f64;
        let is_within = |figure: f64, most: f64| (0.0..=most * ROUNDING).contains(&figure);
        is_within(self.need, MOST_NEED * members)
            && is_within(self.throttled, self.need)
            && is_within(self.lack, members)
            && is_within(self.floor, self.need)
            && is_within(self.claim, members)
            && is_within(self.safe, members)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Asked, Share};
    use super::*;

    #[test]
    fn figures_that_no_member_reports_are_not_added_up() {
        let line = Line { need: 0.5, throttled: 0.5, lack: 0.1, floor: 0.5, claim: 1.0, safe: 1.0 };
        assert!(line.is_valid());
        for wrong in [
            Line { need: 1e7, ..line },
            Line { throttled: 0.6, ..line },
            Line { lack: 1.1, ..line },
            Line { floor: 0.6, ..line },
            Line { claim: 1.1, ..line },
            Line { safe: 1.1, ..line },
        ] {
            assert!(!wrong.is_valid(), "{wrong:?}");
        }
        let two = Line { claim: 1.9, ..line };
        assert!(!two.is_valid() && two.is_valid_of(2));
        let most = Asked { requests: 1e300, arrived: 1e300, queued: 1e300, served: 1e300 };
        let mut share = Share::new(0, 100);
        share.measure(&most, 1.0);
        let most = share.report();
        assert!(most.is_valid(), "{most:?}");
    }
}
